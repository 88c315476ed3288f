//! What floods achieved on real memory: whether a known victim's lines are gone, and what bringing one back costs.
//!
//! A victim's lines are loaded, then one of three things happens, in random order within a block: mere spinning for as long as a flood
//! takes, the flood, or a flood that certainly leaves nothing, followed by the same flood. After the first the lines are there, after
//! the last none is, and the caches are in the state that the flood leaves; so where the time of a walk over some lines lies between
//! these two tells the share of them that is gone, whatever state the flood leaves and however long a refill takes in it.
//!
//! Lines that come from further out than the next level take longer still, and are no more than gone: so a walk counts as gone from the
//! first decile of the walks over lines that certainly are. What this makes of the two controls, whose truth is known, is the scale
//! on which the flood is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Pattern;
use crate::stats::{Sorted, median, quiet_blocks};
use crate::units::{Bytes, Cycles};

/// One look at the victim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Times of the walks over the lines looked at, equally many in each.
    pub walks: Vec<Cycles>,
    /// Of these, how many missed; where counted.
    pub misses: Option<u64>,
    /// Lines written back by the level meanwhile; where counted.
    pub write_backs: Option<u64>,
}

/// Looks at the same victim, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The flood.
    pub pattern: Pattern,
    /// How long it takes.
    pub flood: Cycles,
    /// After spinning.
    pub hit: Vec<Look>,
    /// After the flood.
    pub flooded: Vec<Look>,
    /// After a flood that leaves nothing, and the flood.
    pub sure: Vec<Look>,
}

/// What a flood achieved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Achieved {
    /// The flood.
    pub pattern: Pattern,
    /// Memory it goes over.
    pub memory: Bytes,
    /// How long it takes, in ns.
    pub flood_ns: f64,
    /// Share (0 to 1) of the lines looked at that are gone.
    pub gone: f64,
    /// What time by itself says of lines that are there, and of lines that are certainly gone: `gone` is read on the scale between them.
    /// Absent where lines were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_controls: Option<[f64; 2]>,
    /// Time of a load where the lines are there, in ns.
    pub hit_ns: f64,
    /// Time of a load after the flood, in ns: the median.
    pub flooded_ns: f64,
    /// Time of a load of a line that is certainly gone, in ns: the first decile.
    pub sure_ns: f64,
    /// Lines written back for one that is refilled, by counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_backs_per_refill: Option<f64>,
    /// Looks after the flood that count.
    pub n: u64,
    /// Blocks run.
    pub blocks: u64,
    /// Blocks that count.
    pub blocks_quiet: u64,
}

/// A pattern that was not tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTried {
    /// The flood.
    pub pattern: Pattern,
    /// Why.
    pub reason: String,
}

/// The self-check of the flooder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// Cache level.
    pub level: u8,
    /// Ways of the first data level and of this one.
    pub ways: [u32; 2],
    /// Where these are from, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
    /// Lines of the victim looked at each time.
    pub lines: u64,
    /// Whether lines gone were counted; otherwise they were judged by time.
    pub counted: bool,
    /// What was tried.
    pub achieved: Vec<Achieved>,
    /// What was not.
    pub not_tried: Vec<NotTried>,
}

/// Share of the lines that a flood may leave.
pub const LEFT_AT_MOST: f64 = 0.05;
/// Blocks after whose spinning the victim was so much slower than at its quickest do not count.
const TOLERANCE: f64 = 0.1;
/// A load of a line that is gone takes at least so many times as long as one of a line that is there, or time tells nothing.
const APART: f64 = 1.25;

/// What each flood achieved. `lines` are looked at each time; times are ticks of `counter_hz` per second; `memory`: what a flood goes over.
///
/// Where looks were counted, those after the flood and those of both controls, so is the share of lines gone, between the counts of the
/// controls; else it is told by time, block by block.
pub fn conclude(blocks: &[Block], lines: u64, counter_hz: u64, memory: impl Fn(Pattern) -> Bytes) -> Vec<Achieved> {
    let mut by_pattern: BTreeMap<Pattern, Vec<&Block>> = BTreeMap::new();
    for block in blocks {
        by_pattern.entry(block.pattern).or_default().push(block);
    }
    // Each pattern keeps all of its quiet blocks: none is compared with another's maximum.
    let conclude = |(pattern, blocks): (Pattern, Vec<&Block>)| {
        let timed: Vec<Timed> = blocks.iter().filter_map(|block| Timed::of(block)).collect();
        let controls: Vec<u64> = timed.iter().map(|block| block.hit as u64).collect();
        let quiet = quiet_blocks(&[controls], TOLERANCE).kept.remove(0);
        let kept: Vec<&Timed> =
            quiet.into_iter().map(|at| &timed[at]).filter(|block| block.sure >= APART * block.hit).collect();
        let of = |value: fn(&Timed) -> f64| median(&kept.iter().map(|block| value(block)).collect::<Vec<_>>());
        let looks: Vec<&Look> = kept.iter().flat_map(|block| &block.block.flooded).collect();
        let walks = looks.first().map_or(1, |look| look.walks.len());
        let ns = |ticks: f64| ticks * 1e9 / counter_hz as f64;
        let per_line = |ticks: f64| ns(ticks) * walks as f64 / lines as f64;
        let missed = counted(&looks, |look| look.misses);
        let in_control = |of: fn(&Block) -> &Vec<Look>| {
            counted(&kept.iter().flat_map(|block| of(block.block)).collect::<Vec<_>>(), |look| look.misses)
        };
        // Counters too count misses of lines that are there, and not all of lines that are gone: read between the controls.
        let by_count = missed.zip(in_control(|block| &block.hit)).zip(in_control(|block| &block.sure));
        let by_count = by_count.filter(|((_, hit), sure)| sure > hit);
        let by_time = of(|block| block.gone())?;
        let controls = [of(|block| block.share(&block.block.hit))?, of(|block| block.share(&block.block.sure))?];
        Some(Achieved {
            pattern,
            memory: memory(pattern),
            flood_ns: ns(of(|block| block.block.flood.0 as f64)?),
            gone: by_count.map_or(by_time, |((missed, hit), sure)| (missed - hit) / (sure - hit)).clamp(0.0, 1.0),
            gone_controls: by_count.is_none().then_some(controls),
            hit_ns: per_line(of(|block| block.hit)?),
            flooded_ns: per_line(of(|block| typical(&block.block.flooded).unwrap_or_default())?),
            sure_ns: per_line(of(|block| block.sure)?),
            write_backs_per_refill: missed
                .zip(counted(&looks, |look| look.write_backs))
                .map(|(missed, written)| written / missed.max(1.0)),
            n: looks.len() as u64,
            blocks: blocks.len() as u64,
            blocks_quiet: kept.len() as u64,
        })
    };
    by_pattern.into_iter().filter_map(conclude).collect()
}

/// Median time of a walk.
fn typical(looks: &[Look]) -> Option<f64> {
    quantile(looks, 0.5)
}

fn quantile(looks: &[Look], q: f64) -> Option<f64> {
    Some(Sorted::of(looks.iter().flat_map(|look| &look.walks).map(|walk| walk.0))?.quantile(q) as f64)
}

/// A block and what its controls say of the time of a walk.
struct Timed<'a> {
    block: &'a Block,
    hit: f64,
    sure: f64,
}

impl<'a> Timed<'a> {
    fn of(block: &'a Block) -> Option<Timed<'a>> {
        Some(Timed { block, hit: typical(&block.hit)?, sure: quantile(&block.sure, 0.1)? })
    }

    /// Share of the lines that the flood has taken away, on the scale between the controls.
    fn gone(&self) -> f64 {
        let [hit, flooded, sure] = [&self.block.hit, &self.block.flooded, &self.block.sure].map(|l| self.share(l));
        if sure > hit { (flooded - hit) / (sure - hit) } else { 0.0 }
    }

    /// Share of the lines of `looks` that are gone: the mean of what each walk says.
    fn share(&self, looks: &[Look]) -> f64 {
        let walks = || looks.iter().flat_map(|look| &look.walks);
        let shares = walks().map(|walk| ((walk.0 as f64 - self.hit) / (self.sure - self.hit)).clamp(0.0, 1.0));
        shares.sum::<f64>() / walks().count().max(1) as f64
    }
}

/// Median of what was counted; `None` unless it was in every look.
fn counted(looks: &[&Look], of: fn(&Look) -> Option<u64>) -> Option<f64> {
    let counts: Option<Vec<f64>> = looks.iter().map(|look| of(look).map(|count| count as f64)).collect();
    median(&counts?)
}

impl Achieved {
    /// Whether the flood leaves more lines than [`LEFT_AT_MOST`].
    pub fn falls_short(&self) -> bool {
        1.0 - self.gone > LEFT_AT_MOST
    }
}

impl Verification {
    /// Whether the lines gone of all floods were counted.
    pub fn all_counted(achieved: &[Achieved]) -> bool {
        !achieved.is_empty() && achieved.iter().all(|flood| flood.gone_controls.is_none())
    }

    /// The flood after which a load costs most.
    pub fn worst(&self) -> Option<&Achieved> {
        self.achieved.iter().max_by(|a, b| a.flooded_ns.total_cmp(&b.flooded_ns))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Five looks of one walk each over 100 lines.
    fn looks(times: [u64; 5]) -> Vec<Look> {
        times.map(|time| Look { walks: vec![Cycles(time)], ..Look::default() }).into()
    }

    fn block(pattern: Pattern, hit: u64, flooded: [u64; 5], sure: [u64; 5]) -> Block {
        Block { pattern, flood: Cycles(100_000), hit: looks([hit; 5]), flooded: looks(flooded), sure: looks(sure) }
    }

    pub(crate) fn verified() -> Verification {
        // 100 lines: 4 ns where they are there, 20 where a clean and 40 where a dirty line had to leave; now and then a line comes from
        // further out.
        let gone = [4000, 4000, 4000, 9000, 9000];
        let blocks = [
            block(Pattern::Write, 400, gone, gone),
            block(Pattern::Write, 400, [3640, 4000, 4000, 9000, 4000], gone),
            block(Pattern::Write, 900, [2000; 5], gone),     // disturbed
            block(Pattern::Read, 400, [1200; 5], [2000; 5]), // half of the lines are left
            block(Pattern::Storm, 400, [400; 5], [420; 5]),  // time tells nothing
        ];
        Verification {
            level: 2,
            ways: [8, 8],
            parameters: vec!["L2: 8 ways, by sysfs".to_owned()],
            lines: 100,
            counted: false,
            achieved: conclude(&blocks, 100, 1_000_000_000, |_| Bytes(1 << 20)),
            not_tried: vec![NotTried {
                pattern: Pattern::DoublePurge,
                reason: "the first level is direct-mapped".into(),
            }],
        }
    }

    #[test]
    fn the_share_gone_lies_between_the_controls_of_the_same_block() {
        let verified = verified();
        let [write, read] = verified.achieved[..] else { panic!("{verified:?}") };
        assert_eq!((write.pattern, write.blocks, write.blocks_quiet, write.n), (Pattern::Write, 3, 2, 10));
        // One walk of five lacks (4000 - 3640) / (4000 - 400) = 10 %; the lower of two blocks is their median.
        assert!((write.gone - 0.98).abs() < 1e-9 && !write.falls_short());
        assert_eq!(write.gone_controls, Some([0.0, 1.0]));
        assert_eq!((write.hit_ns, write.flooded_ns, write.sure_ns, write.flood_ns), (4.0, 40.0, 40.0, 100_000.0));
        assert_eq!((read.gone, read.flooded_ns), (0.5, 12.0));
        assert!(read.falls_short());
        assert_eq!(verified.worst().map(|worst| worst.pattern), Some(Pattern::Write));
    }

    #[test]
    fn what_was_counted_goes_before_what_was_timed() {
        let mut block = block(Pattern::Write, 400, [3000; 5], [4000; 5]);
        // A quarter of the misses counted are not of the lines, or of lines that are there.
        for (looks, misses) in [(&mut block.hit, 24), (&mut block.flooded, 98), (&mut block.sure, 124)] {
            looks.iter_mut().for_each(|look| (look.misses, look.write_backs) = (Some(misses), Some(2 * misses)));
        }
        let achieved = conclude(std::slice::from_ref(&block), 100, 1, |_| Bytes(0))[0];
        assert_eq!((achieved.gone, achieved.gone_controls), (0.74, None));
        assert!(Verification::all_counted(&[achieved]));
        assert_eq!(achieved.write_backs_per_refill, Some(2.0));
        block.flooded[2].misses = None;
        let timed = conclude(&[block], 100, 1, |_| Bytes(0))[0];
        assert!((timed.gone - 2600.0 / 3600.0).abs() < 1e-12 && timed.write_backs_per_refill.is_none());
        assert!(!Verification::all_counted(&[achieved, timed]), "one told by time is not told by counters");
    }

    #[test]
    fn nothing_measured_is_nothing_achieved() {
        assert!(conclude(&[], 100, 1, |_| Bytes(0)).is_empty());
    }
}
