//! Merges two color tables of the same machine.

use std::collections::BTreeMap;

use super::{Palette, Rule};
use crate::units::{Color, FrameNumber};

/// Least share (0 to 1) of the common frames that must have the same color in both tables. Only then are the other frames of
/// the earlier table trusted.
pub const SAME: f64 = 0.98;

/// Result of merging a newer palette with an earlier one.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The newer palette. It is extended by the frames that only the earlier palette knows if [`holds`](Merged::holds)
    /// returns true.
    pub palette: Palette,
    /// Number of frames that both palettes know.
    pub common: usize,
    /// Share (0 to 1) of the common frames that have the same color in both palettes.
    pub agreement: f64,
}

impl Merged {
    /// Returns whether the earlier palette still holds, because enough common frames have kept their colors.
    pub fn holds(&self) -> bool {
        self.agreement >= SAME
    }
}

/// Returns `newer`, extended by the frames that only `older` knows if the two agree on the common frames. Both must number
/// the colors alike.
pub fn merge(newer: &Palette, older: &Palette) -> Merged {
    let alone = |common, agreement| Merged { palette: newer.clone(), common, agreement };
    let (Rule::Table { frames, colors }, Rule::Table { frames: old_frames, colors: old_colors }) =
        (&newer.rule, &older.rule)
    else {
        return alone(0, 0.0);
    };
    if newer.colors != older.colors || newer.level != older.level {
        return alone(0, 0.0);
    }
    let pairs = frames.iter().zip(colors).filter_map(|(frame, color)| Some((*color, older.color_of(*frame)?)));
    let (mut common, mut same) = (0, 0);
    for (new, old) in pairs {
        common += 1;
        same += usize::from(new == old);
    }
    let agreement = f64::from(same as u32) / f64::from(common.max(1) as u32);
    if agreement < SAME {
        return alone(common, agreement);
    }
    let old = old_frames.iter().copied().zip(old_colors.iter().copied());
    let mut table: BTreeMap<FrameNumber, Color> = old.collect();
    table.extend(frames.iter().copied().zip(colors.iter().copied()));
    let (frames, colors) = table.into_iter().unzip();
    Merged { palette: Palette { rule: Rule::Table { frames, colors }, ..newer.clone() }, common, agreement }
}

#[cfg(test)]
mod tests {
    use super::super::SCHEMA;
    use super::*;

    fn palette(rule: Rule) -> Palette {
        Palette { schema: SCHEMA.to_owned(), level: 2, colors: 16, rule, fingerprint: None, boot_id: None }
    }

    /// Returns a table of the frames `range`, in which frame f has the color `color(f)`.
    fn table(range: std::ops::Range<u64>, color: impl Fn(u64) -> u64) -> Palette {
        let colors = range.clone().map(|frame| Color(color(frame) as u16)).collect();
        palette(Rule::Table { frames: range.map(FrameNumber).collect(), colors })
    }

    #[test]
    fn frames_add_up_while_both_tables_agree() {
        let older = table(0..1000, |f| f % 16);
        let merged = merge(&table(500..2000, |f| f % 16), &older);
        assert_eq!((merged.common, merged.agreement, merged.holds()), (500, 1.0, true));
        assert_eq!(merged.palette.frames().unwrap().len(), 2000);
        assert!((0..2000).all(|f| merged.palette.color_of(FrameNumber(f)) == Some(Color((f % 16) as u16))));
    }

    #[test]
    fn frames_that_were_not_measured_again_are_forgotten_once_some_have_changed() {
        let older = table(0..1000, |f| f % 16);
        // A tenth of the frames has another color now. Tables that number all colors differently do not agree either.
        let merged = merge(&table(0..500, |f| if f % 10 == 0 { (f + 1) % 16 } else { f % 16 }), &older);
        assert!(!merged.holds() && merged.agreement == 0.9);
        assert_eq!(merged.palette.color_of(FrameNumber(10)), Some(Color(11)));
        assert_eq!(merged.palette.color_of(FrameNumber(600)), None);
        assert_eq!(merge(&table(0..500, |f| (f * 5 + 3) % 16), &older).palette.frames().unwrap().len(), 500);
    }

    #[test]
    fn palettes_with_nothing_in_common_stay_apart() {
        let older = table(0..1000, |f| f % 16);
        assert_eq!(merge(&table(2000..3000, |f| f % 16), &older).common, 0);
        assert_eq!(merge(&Palette { colors: 8, ..older.clone() }, &older).common, 0);
        assert_eq!(merge(&palette(Rule::Bits), &older).palette, palette(Rule::Bits));
    }

    #[test]
    fn whole_blocks_are_forgotten_and_others_kept() {
        // In blocks of 8 frames, 8 to 39 form whole blocks and 5 to 7 do not. The block of 48 to 55 lacks its last frame.
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
}
