//! Conclusions from the windows: the effect, the comparison of equal conditions, and the distributions.

use std::collections::BTreeMap;

use isochrome_model::stats::{Crossover, CrossoverBlock, Look, Looks, SIGNIFICANT, holm, median};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::run::{Recorded, Settings, block_windows, last_look};
use super::{Compared, Condition, Program, Window};

/// Most values of a condition that are kept for its distribution.
const KEPT: usize = 200_000;

/// Number of windows of a pair of restarts.
const PAIR: u64 = 2;

/// Shares below which the values of a distribution are listed.
const SHARES: [f64; 23] = [
    0.001, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99,
    0.995, 0.999, 1.0,
];

/// An interim look at the experiment, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LookTaken {
    /// Number of blocks before the look, and its level.
    pub look: Look,
    /// Effect at this look.
    pub effect: Crossover,
}

/// The distribution of all values in one condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// The condition.
    pub condition: Condition,
    /// Number of windows that count.
    pub windows: u64,
    /// Number of values in them.
    pub values: u64,
    /// Median of the statistic of these windows; `None` without windows.
    pub typical: Option<f64>,
    /// Pairs of a share (0 to 1) and the value below which that share of the values is.
    pub quantiles: Vec<(f64, f64)>,
}

/// Values by condition. Of very many, a random sample is kept.
#[derive(Clone, Debug, Default)]
pub struct Samples(BTreeMap<Condition, (u64, Vec<f64>)>);

impl Samples {
    /// Adds the values of a window.
    pub fn add(&mut self, condition: Condition, values: Vec<f64>, rng: &mut fastrand::Rng) {
        let (count, kept) = self.0.entry(condition).or_default();
        for value in values {
            *count += 1;
            if kept.len() < KEPT {
                kept.push(value);
            } else if let Some(slot) = kept.get_mut(rng.u64(..*count) as usize) {
                *slot = value;
            }
        }
    }

    fn distribution(&self, condition: Condition, windows: &[Window]) -> Option<Distribution> {
        let (count, values) = self.0.get(&condition)?;
        let mut sorted = values.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| sorted[((share * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len()) - 1];
        let typical: Vec<f64> = windows
            .iter()
            .filter(|window| window.condition == condition && window.excluded.is_none())
            .filter_map(|window| window.value)
            .collect();
        Some(Distribution {
            condition,
            windows: typical.len() as u64,
            values: *count,
            typical: median(&typical),
            quantiles: if sorted.is_empty() { Vec::new() } else { SHARES.map(|share| (share, at(share))).to_vec() },
        })
    }
}

/// Returns the windows of each block of which all `size` windows count.
fn complete(windows: &[Window], size: u64) -> impl Iterator<Item = Vec<&Window>> {
    let mut blocks: BTreeMap<u64, Vec<&Window>> = BTreeMap::new();
    for window in windows {
        if let (Some(block), None) = (window.block, &window.excluded) {
            blocks.entry(block).or_default().push(window);
        }
    }
    blocks.into_values().filter(move |block| block.len() as u64 == size)
}

/// Returns apart (treated) and `control` of every block of which all `size` windows count and have a positive value.
fn against(
    control: Condition,
    windows: &[Window],
    size: u64,
    value: impl Fn(&Window) -> Option<f64>,
) -> Vec<CrossoverBlock> {
    let positive = |window: &Window| value(window).filter(|value| value.is_finite() && *value > 0.0);
    let block = |block: Vec<&Window>| {
        let of = |condition| -> Option<Vec<f64>> {
            block.iter().filter(|window| window.condition == condition).map(|window| positive(window)).collect()
        };
        Some(CrossoverBlock { treated: of(Condition::Apart)?, control: of(control)? })
    };
    complete(windows, size).filter_map(block).collect()
}

/// Returns apart (treated) and spread (control) of every block of which all windows count and have a positive value.
pub(super) fn blocks_of(windows: &[Window], value: impl Fn(&Window) -> Option<f64>) -> Vec<CrossoverBlock> {
    against(Condition::Spread, windows, block_windows(&[]), value)
}

/// Returns the second (treated) and the first (control) window of each condition of every block of which all windows count and have a positive value.
fn same(windows: &[Window]) -> Vec<CrossoverBlock> {
    let pairs = |block: Vec<&Window>| {
        [Condition::Spread, Condition::Apart].map(|condition| {
            let of = |again| -> Vec<f64> {
                let is_one = |window: &&&Window| window.condition == condition && window.again == again;
                block.iter().filter(is_one).filter_map(|window| window.value).collect()
            };
            CrossoverBlock { treated: of(true), control: of(false) }
        })
    };
    complete(windows, block_windows(&[])).flat_map(pairs).collect()
}

/// The victim with some number of colors of its own, against spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Number of colors of the victim.
    pub colors: u32,
    /// Median of the statistic of the windows with this number of colors.
    pub typical: f64,
    /// Difference from spread, with an interval of 95 % for this number alone.
    pub effect: Crossover,
    /// p-value of the difference, corrected (Holm) for all numbers of the curve.
    pub p: f64,
}

/// Returns the steps of a curve over these numbers of colors.
fn steps(windows: &[Window], curve: &[u32]) -> Vec<Step> {
    let blocks: Vec<Vec<&Window>> = complete(windows, block_windows(curve)).collect();
    let value = |block: &[&Window], own: Option<u32>| {
        let is_one = |window: &&&Window| window.own == own && (own.is_some() || window.condition == Condition::Spread);
        block.iter().find(is_one).and_then(|window| window.value)
    };
    let step = |own: &u32| {
        let values: Vec<f64> = blocks.iter().filter_map(|block| value(block, Some(*own))).collect();
        let of_block = |block: &Vec<&Window>| CrossoverBlock {
            treated: value(block, Some(*own)).into_iter().collect(),
            control: value(block, None).into_iter().collect(),
        };
        let effect = Crossover::of(&blocks.iter().map(of_block).collect::<Vec<_>>(), SIGNIFICANT)?;
        Some(Step { colors: *own, typical: median(&values)?, effect, p: effect.p })
    };
    let mut steps: Vec<Step> = curve.iter().filter_map(step).collect();
    let corrected = holm(&steps.iter().map(|step| step.p).collect::<Vec<_>>());
    steps.iter_mut().zip(corrected).for_each(|(step, p)| step.p = p);
    steps
}

/// Returns the fewest colors with which the victim is within `margin` of the best of the curve.
fn knee(steps: &[Step], larger_is_better: bool, margin: f64) -> Option<u32> {
    let is_better = |a: f64, b: f64| if larger_is_better { a > b } else { a < b };
    let best = steps.iter().map(|step| step.typical).reduce(|a, b| if is_better(b, a) { b } else { a })?;
    let within = |step: &&Step| match larger_is_better {
        true => step.typical >= best * (1.0 - margin),
        false => step.typical <= best * (1.0 + margin),
    };
    steps.iter().filter(within).map(|step| step.colors).min()
}

/// Description of the experiment, which is part of its result.
pub struct About {
    /// The program that is measured.
    pub victim: Program,
    /// The program beside it.
    pub neighbor: Option<Program>,
    /// Cache level of the colors.
    pub level: u8,
    /// Number of colors of the level.
    pub colors: u32,
    /// The measured quantity, in the words of the command line.
    pub measure: String,
    /// Unit of the values.
    pub unit: String,
    /// Whether larger values are better.
    pub larger_is_better: bool,
    /// Effect that was expected before anything was measured, in sentences.
    pub expected: Vec<String>,
    /// Time in µs in which half of the level is read again; `None` if it was not measured.
    pub refill_us: Option<f64>,
    /// Typical time that a placement took, in s.
    pub placing_s: f64,
}

/// Returns the result of the experiment that `recorded` holds.
pub fn conclude(recorded: Recorded, settings: &Settings, about: About) -> Compared {
    let last = last_look(&recorded, settings);
    let curve = steps(&recorded.windows, &recorded.curve);
    let mut looks = recorded.looks.clone();
    if let Some(last) = last.filter(|last| looks.last() != Some(last)) {
        looks.push(last);
    }
    let p = looks.iter().map(|taken| taken.look.corrected(taken.effect.p)).reduce(f64::min);
    let windows = &recorded.windows;
    let is_curve = !settings.curve.is_empty();
    let compare = |value: fn(&Window) -> Option<f64>| {
        Crossover::of(&blocks_of(windows, value), SIGNIFICANT).filter(|_| !is_curve)
    };
    let conditions = [Condition::AsFound, Condition::Spread, Condition::Apart];
    let distributions =
        conditions.into_iter().filter_map(|condition| recorded.samples.distribution(condition, windows)).collect();
    Compared {
        victim: about.victim,
        neighbor: about.neighbor,
        level: about.level,
        colors: about.colors,
        measure: about.measure,
        unit: about.unit,
        statistic: settings.statistic,
        larger_is_better: about.larger_is_better,
        margin: settings.margin,
        effect: last.map(|last| last.effect),
        p,
        looks,
        planned: Looks::of(settings.blocks).planned().to_vec(),
        same: Crossover::of(&same(windows), SIGNIFICANT).filter(|_| !is_curve),
        restarts_effect: Crossover::of(
            &against(Condition::AsFound, &recorded.restarts, PAIR, |window| window.value),
            SIGNIFICANT,
        ),
        restarts: recorded.restarts,
        neighbor_effect: compare(|window| window.neighbor),
        neighbor_cpu_effect: compare(|window| window.neighbor_cpu),
        knee: knee(&curve, about.larger_is_better, settings.margin),
        curve,
        distributions,
        windows: recorded.windows,
        ended: recorded.ended,
        as_planned: recorded.as_planned,
        left: recorded.left,
        expected: about.expected,
        refill_us: about.refill_us,
        placing_s: about.placing_s,
    }
}
