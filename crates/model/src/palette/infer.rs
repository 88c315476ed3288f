//! Infers colors from samples.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::samples::{Method, PageSample, Samples};
use super::{Palette, Rule, SCHEMA};
use crate::gf2::{self, Linearity};
use crate::units::{Color, FrameNumber};

/// Least percentage of a page's lines that an eviction set must evict to count as evicting the page.
const EVICTED_PERCENT: u8 = 50;
/// Least share of evictions in both directions at which two groups count as one color. It is below half, because replacement
/// can keep part of a page by chance. It is far above the share that a set of another color evicts in the best of several
/// tests, which is next to nothing.
const SAME_COLOR_SHARE: f32 = 0.3;
/// Share of pages without a color above which a palette is in doubt.
const AMBIGUOUS_SHARE: f64 = 0.02;

/// Share of the frames that a linear rule must explain. It is below 1 because a measured color is wrong now and then.
const LINEAR_AGREEMENT: f64 = 0.97;

/// A reason not to trust a palette.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "doubt", rename_all = "snake_case")]
pub enum Doubt {
    /// The number of colors differs from the number that the geometry implies.
    Count {
        /// Number of colors found.
        found: u32,
        /// Number of colors expected.
        expected: u32,
    },
    /// Many pages have no clear color.
    Ambiguous {
        /// Number of pages without a color.
        pages: u64,
        /// Number of pages tested.
        of: u64,
    },
    /// The eviction set of a group evicts too little of the group, or the eviction set of another group evicts too much.
    Blurred {
        /// Group that was tested.
        group: u32,
        /// Group whose set was traversed.
        by: u32,
        /// Share that was evicted, 0 to 1.
        share: f32,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Count { found, expected } => write!(f, "{found} colors found where the geometry has {expected}"),
            Doubt::Ambiguous { pages, of } => write!(f, "{pages} of {of} pages have no clear color"),
            Doubt::Blurred { group, by, share } => {
                write!(f, "the eviction set of group {by} evicts {:.0} % of a page of group {group}", share * 100.0)
            }
        }
    }
}

/// Result of inferring a palette from samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inference {
    /// The palette inferred.
    pub palette: Palette,
    /// Number of colors to expect from the geometry.
    pub colors_expected: u32,
    /// Color of each group.
    pub group_colors: Vec<Color>,
    /// Color of each page; `None` if the tests do not agree on one.
    pub page_colors: Vec<Option<Color>>,
    /// Number of pages of each color.
    pub per_color: Vec<u64>,
    /// Indices of the pages without a color.
    pub ambiguous: Vec<u32>,
    /// Eviction matrix: row i, column j has the mean share of a page of color i that an eviction set of color j evicts.
    pub eviction: Vec<Vec<f64>>,
    /// Reasons not to trust the palette; empty if nothing speaks against it.
    pub doubts: Vec<Doubt>,
    /// Description of how frame numbers lead to colors.
    pub rule_in_words: String,
}

/// Infers a palette from `samples`: merges groups that evict each other, gives every page the color its tests agree on,
/// looks for a linear rule over the frame numbers, and lists reasons to doubt the result.
pub fn infer(samples: &Samples) -> Inference {
    let colors_expected = samples.geometry.color_count(samples.page_bytes);
    // With frame bits, there are as many colors as the geometry has. Eviction tests that contradict this only lead to doubts.
    let (mut group_colors, colors) = match samples.method {
        Method::Bits => ((0..samples.cross.len()).map(|i| Color(i as u16)).collect(), colors_expected),
        Method::Timing | Method::Counters => {
            let merged = merge_groups(&samples.cross);
            let colors = color_count(&merged);
            (merged, colors)
        }
    };
    let mut page_colors: Vec<Option<Color>> = match samples.method {
        Method::Bits => {
            samples.pages.iter().map(|page| Some(samples.geometry.color_of(page.frame?, samples.page_bytes))).collect()
        }
        Method::Timing | Method::Counters => {
            samples.pages.iter().map(|page| color_of_tests(page, &group_colors)).collect()
        }
    };
    let (rule, rule_in_words) = rule_of(samples, &page_colors, colors);
    if let Rule::Linear { masks } = &rule {
        renumber(masks, samples, &mut group_colors, &mut page_colors);
    }
    let mut per_color = vec![0u64; colors as usize];
    for color in page_colors.iter().flatten() {
        per_color[usize::from(color.0)] += 1;
    }
    let ambiguous: Vec<u32> = (0u32..).zip(&page_colors).filter(|(_, c)| c.is_none()).map(|(i, _)| i).collect();
    Inference {
        doubts: doubts(samples, &group_colors, colors, colors_expected, ambiguous.len()),
        palette: palette(samples.level, colors, rule),
        colors_expected,
        eviction: eviction_matrix(&samples.cross, &group_colors, colors as usize),
        group_colors,
        page_colors,
        per_color,
        ambiguous,
        rule_in_words,
    }
}

fn color_count(group_colors: &[Color]) -> u32 {
    group_colors.iter().map(|c| u32::from(c.0) + 1).max().unwrap_or(0)
}

/// Renumbers the measured colors as the linear rule numbers them.
fn renumber(masks: &[u64], samples: &Samples, group_colors: &mut [Color], page_colors: &mut [Option<Color>]) {
    let mut common = BTreeMap::<(Color, Color), usize>::new();
    for (page, color) in samples.pages.iter().zip(page_colors.iter()) {
        if let (Some(frame), Some(color)) = (page.frame, color) {
            *common.entry((*color, Color(gf2::color_under(masks, frame.0)))).or_default() += 1;
        }
    }
    let numbers = matched(common);
    for color in group_colors.iter_mut().chain(page_colors.iter_mut().flatten()) {
        *color = numbers.get(color).copied().unwrap_or(*color);
    }
}

/// Matches the colors of two numberings one to one, those with the most pages in common first.
fn matched(common: BTreeMap<(Color, Color), usize>) -> BTreeMap<Color, Color> {
    let mut pairs: Vec<_> = common.into_iter().collect();
    pairs.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let mut numbers = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for ((from, to), _) in pairs {
        if !numbers.contains_key(&from) && taken.insert(to) {
            numbers.insert(from, to);
        }
    }
    numbers
}

/// Returns the color of each group: groups that evict each other in both directions get one color.
///
/// A single direction is not enough: noise adds misses to one test, but hardly ever to both.
pub fn merge_groups(cross: &[Vec<f32>]) -> Vec<Color> {
    let mut colors: Vec<Color> = Vec::with_capacity(cross.len());
    let mut next = 0;
    for (i, row) in cross.iter().enumerate() {
        let same = (0..i).find(|j| row[*j] >= SAME_COLOR_SHARE && cross[*j][i] >= SAME_COLOR_SHARE);
        colors.push(same.map_or_else(
            || {
                next += 1;
                Color(next - 1)
            },
            |j| colors[j],
        ));
    }
    colors
}

/// Returns the color that the tests of a page agree on; `None` if they do not agree.
///
/// Noise only adds evictions, so the lowest share per color over all tests decides first. Now and then a page survives its own
/// color's set in one test, by luck of replacement. Then the tests that are decisive by themselves vote.
///
/// `group_colors`: the color of each group, from [`merge_groups`].
pub fn color_of_tests(page: &PageSample, group_colors: &[Color]) -> Option<Color> {
    let colors = color_count(group_colors) as usize;
    let by_color = |test: &Vec<u8>| {
        let mut shares = vec![0u8; colors];
        for (share, color) in test.iter().zip(group_colors) {
            let share_of_color = &mut shares[usize::from(color.0)];
            *share_of_color = (*share_of_color).max(*share);
        }
        shares
    };
    let tests: Vec<Vec<u8>> = page.tests.iter().map(by_color).collect();
    let lowest = tests.iter().cloned().reduce(|a, b| a.iter().zip(&b).map(|(a, b)| *a.min(b)).collect())?;
    decisive(&lowest).or_else(|| {
        let mut votes = BTreeMap::<Color, usize>::new();
        for color in tests.iter().filter_map(|test| decisive(test)) {
            *votes.entry(color).or_default() += 1;
        }
        let total: usize = votes.values().sum();
        votes.into_iter().find(|(_, n)| 2 * n > total).map(|(color, _)| color)
    })
}

/// Returns the one color whose set evicts the page: at least half of it, and at least twice as much as any other; `None` if
/// there is no such color.
fn decisive(shares: &[u8]) -> Option<Color> {
    let (best, share) = shares.iter().enumerate().max_by_key(|(_, share)| **share)?;
    let second = shares.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, s)| *s).max().unwrap_or(0);
    (*share >= EVICTED_PERCENT && u16::from(*share) >= 2 * u16::from(second)).then_some(Color(best as u16))
}

fn eviction_matrix(cross: &[Vec<f32>], group_colors: &[Color], colors: usize) -> Vec<Vec<f64>> {
    let mut sums = vec![vec![(0.0, 0u32); colors]; colors];
    for (row, i) in cross.iter().zip(group_colors) {
        for (share, j) in row.iter().zip(group_colors) {
            let (sum, n) = &mut sums[usize::from(i.0)][usize::from(j.0)];
            *sum += f64::from(*share);
            *n += 1;
        }
    }
    sums.into_iter().map(|row| row.into_iter().map(|(sum, n)| sum / f64::from(n.max(1))).collect()).collect()
}

fn doubts(
    samples: &Samples,
    group_colors: &[Color],
    colors: u32,
    colors_expected: u32,
    ambiguous: usize,
) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    if colors != colors_expected {
        doubts.push(Doubt::Count { found: colors, expected: colors_expected });
    }
    if ambiguous as f64 > AMBIGUOUS_SHARE * samples.pages.len() as f64 {
        doubts.push(Doubt::Ambiguous { pages: ambiguous as u64, of: samples.pages.len() as u64 });
    }
    for (i, row) in samples.cross.iter().enumerate() {
        for (j, share) in row.iter().enumerate() {
            if (group_colors[i] == group_colors[j]) != (*share >= SAME_COLOR_SHARE) {
                doubts.push(Doubt::Blurred { group: i as u32, by: j as u32, share: *share });
            }
        }
    }
    doubts
}

/// Returns the rule over frame numbers, and its description in words.
fn rule_of(samples: &Samples, page_colors: &[Option<Color>], colors: u32) -> (Rule, String) {
    if samples.method == Method::Bits {
        return (Rule::Bits, "the set-index bits of the frame number, confirmed by eviction tests".to_owned());
    }
    let mut known: Vec<(FrameNumber, Color)> =
        samples.pages.iter().zip(page_colors).filter_map(|(page, color)| Some((page.frame?, (*color)?))).collect();
    if known.is_empty() {
        return (
            Rule::Hidden,
            "frame numbers are hidden: the colors hold for the pages measured, in this process".to_owned(),
        );
    }
    known.sort_unstable();
    known.dedup_by_key(|(frame, _)| *frame);
    if let Some((rule, agreement)) = linear(&known, colors) {
        let bits = colors.ilog2();
        let percent = agreement * 100.0;
        return (
            rule,
            format!("linear: {bits} color bits are parities of frame-number bits, {percent:.1} % of the frames agree"),
        );
    }
    let (frames, colors) = known.into_iter().unzip();
    (
        Rule::Table { frames, colors },
        "no linear function of the frame number gives the color (a virtual machine, most likely): a table of the frames measured, for \
         this boot"
            .to_owned(),
    )
}

/// Finds a palette of `colors` colors in which a linear function of the frame number gives the color; `None` if no such
/// function explains `known`. The palette may number the colors differently from `known`.
pub fn linear_palette(level: u8, colors: u32, known: &[(FrameNumber, Color)]) -> Option<Palette> {
    linear(known, colors).map(|(rule, _)| palette(level, colors, rule))
}

fn palette(level: u8, colors: u32, rule: Rule) -> Palette {
    Palette { schema: SCHEMA.to_owned(), level, colors, rule, fingerprint: None, boot_id: None }
}

/// Finds a linear function of the frame number that gives the color, and the share (0 to 1) of the frames that agree with the
/// function; `None` if there is no such function.
fn linear(known: &[(FrameNumber, Color)], colors: u32) -> Option<(Rule, f64)> {
    let labelled: Vec<(u64, u16)> = known.iter().map(|(frame, color)| (frame.0, color.0)).collect();
    match gf2::infer_masks(&labelled, LINEAR_AGREEMENT, 1) {
        Linearity::Linear { masks, agreement, .. } if 1 << masks.len() == colors => {
            Some((Rule::Linear { masks }, agreement))
        }
        _ => None,
    }
}

/// Returns the share (0 to 1) of the pages colored by both on which two colorings agree, however they number the colors.
///
/// Colors are matched greedily by the number of pages they have in common. Returns `None` if no page is colored by both.
pub fn agreement(a: &[Option<Color>], b: &[Option<Color>]) -> Option<f64> {
    let mut common = BTreeMap::<(Color, Color), usize>::new();
    let mut both = 0;
    for pair in a.iter().zip(b).filter_map(|(a, b)| Some(((*a)?, (*b)?))) {
        *common.entry(pair).or_default() += 1;
        both += 1;
    }
    let numbers = matched(common.clone());
    let agreed: usize = numbers.iter().filter_map(|(from, to)| common.get(&(*from, *to))).sum();
    (both > 0).then(|| agreed as f64 / f64::from(both))
}
