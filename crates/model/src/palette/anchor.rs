//! Giving colors measured anew the numbers they had before.
//!
//! Measuring finds which frames compete, not what their color is called. Numbers that others rely on (grants, command lines)
//! must last for the boot, so a new palette takes over those of the earlier one by the frames that both know.

use std::collections::BTreeMap;

use super::infer::matched;
use super::{Palette, Rule};
use crate::units::{Color, FrameNumber};

/// Share of the frames known before that must still have their color for the others to be believed.
pub const SAME: f64 = 0.98;
/// Share from which most frames were left in place, so that numbers still mean the same colors.
const MOSTLY: f64 = 0.5;
/// Frames of each color that must be known to both, for its number to rest on more than an accident.
const COMMON_PER_COLOR: usize = 4;
/// Frames looked at where both palettes are rules.
const RULE_FRAMES: u64 = 1 << 16;

/// A palette with the numbers of an earlier one.
#[derive(Clone, Debug, PartialEq)]
pub struct Anchored {
    /// The new palette; where the earlier one still holds, with the frames that only that one knows.
    pub palette: Palette,
    /// Frames known to both.
    pub common: usize,
    /// Share (0 to 1) of them that have the same color in both, whatever its number.
    pub agreement: f64,
}

impl Anchored {
    /// Whether the frames measured before still have their colors.
    pub fn holds(&self) -> bool {
        self.agreement >= SAME
    }
}

/// Why color numbers cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanchored {
    /// The palettes know too few frames in common, of some color: so many in all.
    Apart(usize),
    /// Most frames have another color now, or there is another number of colors: the old numbers mean nothing any more.
    LaidOutAnew,
}

/// `newer` with the color numbers of `older`, matched by the frames that both know.
pub fn anchor(newer: &Palette, older: &Palette) -> Result<Anchored, Unanchored> {
    if newer.colors != older.colors || newer.level != older.level {
        return Err(Unanchored::LaidOutAnew);
    }
    let pair = |frame: FrameNumber| Some((newer.color_of(frame)?, older.color_of(frame)?));
    let mut common = BTreeMap::<(Color, Color), usize>::new();
    match newer.frames().or(older.frames()) {
        Some(frames) => frames.iter().copied().filter_map(pair).for_each(|p| *common.entry(p).or_default() += 1),
        None => (0..RULE_FRAMES).map(FrameNumber).filter_map(pair).for_each(|p| *common.entry(p).or_default() += 1),
    }
    let count: usize = common.values().sum();
    let numbers = matched(common.clone());
    let agreed: usize = numbers.iter().filter_map(|(from, to)| common.get(&(*from, *to))).sum();
    let agreement = agreed as f64 / count.max(1) as f64;
    let of_color = |color: u16| common.iter().filter(|((from, _), _)| from.0 == color).map(|(_, n)| *n).sum::<usize>();
    if (0..newer.colors as u16).any(|color| of_color(color) < COMMON_PER_COLOR) {
        return Err(Unanchored::Apart(count));
    }
    if numbers.len() < newer.colors as usize || agreement < MOSTLY {
        return Err(Unanchored::LaidOutAnew);
    }
    let palette = match (&newer.rule, &older.rule) {
        (Rule::Table { frames, colors }, _) => {
            let renumbered = colors.iter().map(|color| numbers.get(color).copied().unwrap_or(*color));
            let mut table: BTreeMap<FrameNumber, Color> = match &older.rule {
                Rule::Table { frames, colors } if agreement >= SAME => {
                    frames.iter().copied().zip(colors.iter().copied()).collect()
                }
                _ => BTreeMap::new(),
            };
            table.extend(frames.iter().copied().zip(renumbered));
            let (frames, colors) = table.into_iter().unzip();
            Palette { rule: Rule::Table { frames, colors }, ..newer.clone() }
        }
        // Two rules that agree are one; the older one's numbers stay.
        (_, Rule::Bits | Rule::Linear { .. }) if agreement >= SAME => {
            Palette { rule: older.rule.clone(), ..newer.clone() }
        }
        _ => return Err(Unanchored::LaidOutAnew),
    };
    Ok(Anchored { palette, common: count, agreement })
}

#[cfg(test)]
mod tests {
    use super::super::SCHEMA;
    use super::*;

    fn palette(rule: Rule) -> Palette {
        Palette { schema: SCHEMA.to_owned(), level: 2, colors: 16, rule, fingerprint: None, boot_id: None }
    }

    /// Frames `range`, frame f of color `color(f)`.
    fn table(range: std::ops::Range<u64>, color: impl Fn(u64) -> u64) -> Palette {
        let colors = range.clone().map(|frame| Color(color(frame) as u16)).collect();
        palette(Rule::Table { frames: range.map(FrameNumber).collect(), colors })
    }

    #[test]
    fn numbers_stay_and_frames_add_up_when_memory_is_measured_again() {
        let older = table(0..1000, |f| f % 16);
        // The same colors under other numbers, over other frames.
        let anchored = anchor(&table(500..2000, |f| (f * 5 + 3) % 16), &older).unwrap();
        assert_eq!((anchored.common, anchored.agreement, anchored.holds()), (500, 1.0, true));
        assert_eq!(anchored.palette.frames().unwrap().len(), 2000);
        assert!((0..2000).all(|f| anchored.palette.color_of(FrameNumber(f)) == Some(Color((f % 16) as u16))));
    }

    #[test]
    fn frames_that_were_not_measured_again_are_forgotten_once_some_have_changed() {
        let older = table(0..1000, |f| f % 16);
        // A tenth of the frames has another color now.
        let anchored = anchor(&table(0..500, |f| if f % 10 == 0 { (f + 1) % 16 } else { f % 16 }), &older).unwrap();
        assert!(!anchored.holds() && anchored.agreement == 0.9);
        assert_eq!(anchored.palette.color_of(FrameNumber(10)), Some(Color(11)));
        assert_eq!(anchored.palette.color_of(FrameNumber(600)), None);
    }

    #[test]
    fn numbers_are_not_invented() {
        let older = table(0..1000, |f| f % 16);
        assert_eq!(anchor(&table(2000..3000, |f| f % 16), &older), Err(Unanchored::Apart(0)));
        // Three frames of each color are too few to tell.
        assert_eq!(anchor(&table(952..3000, |f| f % 16), &older), Err(Unanchored::Apart(48)));
        assert_eq!(anchor(&table(0..1000, |f| f * 7919 / 16 % 16), &older), Err(Unanchored::LaidOutAnew));
        assert_eq!(anchor(&Palette { colors: 8, ..older.clone() }, &older), Err(Unanchored::LaidOutAnew));
    }

    #[test]
    fn whole_blocks_are_forgotten_and_others_kept() {
        // Frames 5 to 39 in blocks of 8: those from 8 to 39 are whole, 5 to 7 are not; and one of 48 to 55 is missing.
        let mut palette = table(5..40, |f| f % 16);
        if let Rule::Table { frames, colors } = &mut palette.rule {
            frames.extend((48..55).map(FrameNumber));
            colors.extend((48..55).map(|f| Color(f % 16)));
        }
        assert_eq!(palette.forget_whole_blocks(8), 32);
        assert_eq!(palette.frames().unwrap(), [5, 6, 7, 48, 49, 50, 51, 52, 53, 54].map(FrameNumber));
        assert_eq!(palette.color_of(FrameNumber(54)), Some(Color(6)));
        assert_eq!(super::super::Palette { rule: Rule::Bits, ..palette }.forget_whole_blocks(8), 0);
    }

    #[test]
    fn palettes_of_every_rule_are_written_and_read_alike() {
        let linear = Rule::Linear { masks: vec![1, 2] };
        for written in [table(3..9, |f| f % 4), palette(linear), palette(Rule::Bits), palette(Rule::Hidden)] {
            let text = serde_json::to_string(&written).unwrap();
            assert_eq!(serde_json::from_str::<Palette>(&text).unwrap(), written, "{text}");
        }
    }

    #[test]
    fn a_rule_found_again_keeps_its_numbers() {
        let older = palette(Rule::Linear { masks: vec![1, 2, 4, 8] });
        let anchored = anchor(&palette(Rule::Linear { masks: vec![8, 4, 2, 1] }), &older).unwrap();
        assert_eq!(anchored.palette.rule, older.rule);
        assert_eq!(anchor(&palette(Rule::Bits), &older).unwrap().palette.rule, older.rule);
    }
}
