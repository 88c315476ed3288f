//! Effect of floods on real memory: the share of a known victim's lines that they evict, and the cost of reloading an evicted line.
//!
//! A victim's lines are loaded. Then one of three things happens, in random order within a block: spinning for as long as a flood takes, the
//! flood, or a traversal that certainly evicts everything, followed by the same flood. After the first, all lines are cached. After the last,
//! none is, and the caches are in the state that the flood leaves. So the share of evicted lines is interpolated from the time of a walk over
//! some lines, between the times of these two controls. This estimate does not depend on the state that the flood leaves, or on how long a
//! refill takes in that state.
//!
//! Lines that come from further out than the next level take longer still, but are no more evicted than others. So a walk counts as entirely
//! evicted if it takes at least the first decile of the walks over lines that are certainly evicted. The same estimate is made for the two
//! controls, whose true shares are known. The estimate for the flood is then scaled between these two.

mod check;
mod section;

use isochrome_model::flood::Pattern;
use isochrome_model::stats::{median, quantile};
use isochrome_model::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::{Accepted, Arm, Block, Judged, accept};

pub use check::{Check, pages_to_verify};
pub use section::section;

/// The condition of a block: the flood that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// Pattern of the flood.
    pub pattern: Pattern,
}

/// The first values of a sample: ticks of a flood; misses of the level and lines that the level wrote back during the walks, if counted. The
/// ticks of each walk over some of the victim's lines follow; every walk has equally many lines.
pub const COLUMNS: [&str; 3] = ["flood_ticks", "misses", "write_backs"];

fn walks(test: &[f64]) -> &[f64] {
    &test[COLUMNS.len()..]
}

/// A block is not accepted if its walks after spinning are slow, as that shows a disturbance.
pub const JUDGED: Judged = Judged { cost: |test| median(walks(test)).unwrap_or_default(), canary: None };

/// Result of testing a flood.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Achieved {
    /// Pattern of the flood.
    pub pattern: Pattern,
    /// Size of the memory that the flooder writes or reads in one pass.
    pub memory: Bytes,
    /// Duration of a flood, in ns.
    pub flood_ns: f64,
    /// Share (0 to 1) of the tested lines that were evicted.
    pub gone: f64,
    /// Shares (0 to 1) of evicted lines that time shows in the two controls, with all lines cached and with all lines certainly evicted: `gone`
    /// is interpolated between the two. Absent if misses were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_controls: Option<[f64; 2]>,
    /// Time of a load of a cached line, in ns.
    pub hit_ns: f64,
    /// Median time of a load after the flood, in ns.
    pub flooded_ns: f64,
    /// Time of a load of a line that is certainly evicted, in ns: the first decile.
    pub sure_ns: f64,
    /// Number of lines written back for each line refilled, by counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_backs_per_refill: Option<f64>,
    /// Number of accepted tests after the flood.
    pub n: u64,
    /// Number of blocks run.
    pub blocks: u64,
    /// Number of accepted blocks.
    pub blocks_quiet: u64,
}

/// A pattern that was not tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotTried {
    /// Pattern of the flood.
    pub pattern: Pattern,
    /// Reason why it was not tried.
    pub reason: String,
}

/// The self-check of the flooder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// Cache level that is flooded.
    pub level: u8,
    /// Number of ways of the first data level, and of the flooded level.
    pub ways: [u32; 2],
    /// Parameters of the levels and their sources, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
    /// Number of lines of the victim in each test.
    pub lines: u64,
    /// Whether evicted lines were counted; otherwise they were determined by time.
    pub counted: bool,
    /// Results of the patterns that were tried.
    pub achieved: Vec<Achieved>,
    /// Patterns that were not tried.
    pub not_tried: Vec<NotTried>,
}

/// The numbers of the section: the self-check, and the flood after which a load takes longest.
#[derive(Serialize, JsonSchema)]
pub struct Numbers<'a> {
    #[serde(flatten)]
    verification: &'a Verification,
    /// Pattern of the flood after which a load takes longest; `None` if nothing was measured.
    worst: Option<Pattern>,
}

/// Greatest share of the lines that a sufficient flood may leave.
pub const LEFT_AT_MOST: f64 = 0.05;
/// Least ratio of the time of loading an evicted line to that of a cached one. If the ratio is smaller, time does not tell evicted lines from
/// cached ones.
const APART: f64 = 1.25;

/// Returns the result of each flood. Each test loads `lines` lines. Times in `blocks` are ticks of a counter of `counter_hz` Hz. `memory`
/// returns the size of the memory that a flood traverses.
///
/// If misses were counted after the flood and in both controls, the share of evicted lines is interpolated between the counts of the controls.
/// Otherwise it is interpolated between their times, block by block.
pub fn conclude(
    blocks: &[Block<Condition>],
    lines: u64,
    counter_hz: u64,
    memory: impl Fn(Pattern) -> Bytes,
) -> Vec<Achieved> {
    let conclude = |accepted: &Accepted<'_, Condition>| {
        let kept: Vec<Timed<'_>> = accepted.blocks.iter().filter_map(|block| Timed::of(block)).collect();
        let of = |value: fn(&Timed<'_>) -> f64| median(&kept.iter().map(value).collect::<Vec<_>>());
        let ns = |ticks: f64| ticks * 1e9 / counter_hz as f64;
        let count = kept.first().map_or(1, |block| walks(block.flooded[0]).len());
        let per_line = |ticks: f64| ns(ticks) * count as f64 / lines as f64;
        let counted = |rows: fn(&Timed<'_>) -> Vec<f64>| {
            let counts: Vec<f64> = kept.iter().flat_map(rows).collect();
            if counts.iter().any(|count| count.is_nan()) { None } else { median(&counts) }
        };
        let missed = counted(|block| block.flooded.iter().map(|test| test[1]).collect());
        // Counters also count some misses of cached lines, and not all misses of evicted lines. So the count is interpolated between the
        // controls.
        let by_count = missed
            .zip(counted(|block| block.there.iter().map(|test| test[1]).collect()))
            .zip(counted(|block| block.gone.iter().map(|test| test[1]).collect()));
        let by_count = by_count.filter(|((_, there), gone)| gone > there);
        let by_time = of(|block| block.share_flooded())?;
        let controls = [of(|block| block.share(&block.there))?, of(|block| block.share(&block.gone))?];
        let written = counted(|block| block.flooded.iter().map(|test| test[2]).collect());
        Some(Achieved {
            pattern: accepted.condition.pattern,
            memory: memory(accepted.condition.pattern),
            flood_ns: ns(of(|block| block.flooded[0][0])?),
            gone: by_count.map_or(by_time, |((missed, there), gone)| (missed - there) / (gone - there)).clamp(0.0, 1.0),
            gone_controls: by_count.is_none().then_some(controls),
            hit_ns: per_line(of(|block| block.hit)?),
            flooded_ns: per_line(of(|block| quantile_of(&block.flooded, 0.5).unwrap_or_default())?),
            sure_ns: per_line(of(|block| block.sure)?),
            write_backs_per_refill: missed.zip(written).map(|(missed, written)| written / missed.max(1.0)),
            n: kept.iter().map(|block| block.flooded.len() as u64).sum(),
            blocks: accepted.run,
            blocks_quiet: kept.len() as u64,
        })
    };
    accept(blocks, &JUDGED).iter().filter_map(conclude).collect()
}

fn quantile_of(tests: &[&[f64]], q: f64) -> Option<f64> {
    quantile(&tests.iter().flat_map(|test| walks(test)).copied().collect::<Vec<_>>(), q)
}

/// A block, with the times of walks over cached (`hit`) and evicted (`sure`) lines by its controls, in ticks.
struct Timed<'a> {
    there: Vec<&'a [f64]>,
    flooded: Vec<&'a [f64]>,
    gone: Vec<&'a [f64]>,
    hit: f64,
    sure: f64,
}

impl<'a> Timed<'a> {
    /// Returns the times of `block`; `None` if they do not tell evicted lines from cached ones.
    fn of(block: &'a Block<Condition>) -> Option<Timed<'a>> {
        let (there, flooded, gone) = (block.compared(), block.rows(Arm::Treatment), block.rows(Arm::Extreme));
        let (hit, sure) = (quantile_of(&there, 0.5)?, quantile_of(&gone, 0.1)?);
        (sure >= APART * hit && !flooded.is_empty()).then_some(Timed { there, flooded, gone, hit, sure })
    }

    /// Returns the share of the lines that the flood has evicted, on the scale between the controls.
    fn share_flooded(&self) -> f64 {
        let [there, flooded, gone] = [&self.there, &self.flooded, &self.gone].map(|tests| self.share(tests));
        if gone > there { (flooded - there) / (gone - there) } else { 0.0 }
    }

    /// Returns the share of evicted lines in `tests`, the mean over their walks.
    fn share(&self, tests: &[&[f64]]) -> f64 {
        let walks = || tests.iter().flat_map(|test| walks(test));
        let shares = walks().map(|walk| ((walk - self.hit) / (self.sure - self.hit)).clamp(0.0, 1.0));
        shares.sum::<f64>() / walks().count().max(1) as f64
    }
}

impl Achieved {
    /// Whether the flood leaves more lines than [`LEFT_AT_MOST`].
    pub fn falls_short(&self) -> bool {
        1.0 - self.gone > LEFT_AT_MOST
    }
}

impl Verification {
    /// Whether the evicted lines were counted for every flood.
    pub fn all_counted(achieved: &[Achieved]) -> bool {
        !achieved.is_empty() && achieved.iter().all(|flood| flood.gone_controls.is_none())
    }

    /// Returns the numbers that evidence contains and the command prints.
    pub(super) fn numbers(&self) -> Numbers<'_> {
        Numbers { verification: self, worst: self.worst().map(|worst| worst.pattern) }
    }

    /// Returns the flood after which a load takes longest; `None` if nothing was measured.
    pub fn worst(&self) -> Option<&Achieved> {
        self.achieved.iter().max_by(|a, b| a.flooded_ns.total_cmp(&b.flooded_ns))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::samples::Sample;

    /// Returns a block of five tests in each arm, with one walk over 100 lines each.
    fn block(pattern: Pattern, hit: u64, flooded: [u64; 5], sure: [u64; 5]) -> Block<Condition> {
        let test = |arm, time: u64| Sample { arm, values: vec![100_000.0, f64::NAN, f64::NAN, time as f64] };
        let arms = [(Arm::Control, [hit; 5]), (Arm::Treatment, flooded), (Arm::Extreme, sure)];
        let samples = arms.into_iter().flat_map(|(arm, times)| times.map(|time| test(arm, time))).collect();
        Block { condition: Condition { pattern }, steal_ns: 0, elapsed_ns: 1, samples }
    }

    pub(crate) fn verified() -> Verification {
        // Each of the 100 lines takes 4 ns if it is cached, 20 ns if it replaces a clean line, and 40 ns if it replaces a dirty line. Some lines
        // come from further out and take longer.
        let gone = [4000, 4000, 4000, 9000, 9000];
        let blocks = [
            block(Pattern::Write, 400, gone, gone),
            block(Pattern::Write, 400, [3640, 4000, 4000, 9000, 4000], gone),
            block(Pattern::Write, 900, [2000; 5], gone),     // disturbed
            block(Pattern::Read, 400, [1200; 5], [2000; 5]), // half of the lines are left
            block(Pattern::Storm, 400, [400; 5], [420; 5]),  // times do not differ enough
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
        // One walk of five has (4000 - 3640) / (4000 - 400) = 10 % of its lines left, hence its block has 2 %. The other block has none left, so
        // the median is 1 %.
        assert!((write.gone - 0.99).abs() < 1e-9 && !write.falls_short());
        assert_eq!(write.gone_controls, Some([0.0, 1.0]));
        assert_eq!((write.hit_ns, write.flooded_ns, write.sure_ns, write.flood_ns), (4.0, 40.0, 40.0, 100_000.0));
        assert_eq!((read.gone, read.flooded_ns), (0.5, 12.0));
        assert!(read.falls_short());
        assert_eq!(verified.worst().map(|worst| worst.pattern), Some(Pattern::Write));
    }

    #[test]
    fn what_was_counted_goes_before_what_was_timed() {
        let mut block = block(Pattern::Write, 400, [3000; 5], [4000; 5]);
        // The counter counts 24 misses even if all lines are cached, and 124 if all 100 lines are evicted.
        for (arm, misses) in [(Arm::Control, 24.0), (Arm::Treatment, 98.0), (Arm::Extreme, 124.0)] {
            for test in block.samples.iter_mut().filter(|test| test.arm == arm) {
                (test.values[1], test.values[2]) = (misses, 2.0 * misses);
            }
        }
        let achieved = conclude(std::slice::from_ref(&block), 100, 1, |_| Bytes(0))[0];
        assert_eq!((achieved.gone, achieved.gone_controls), (0.74, None));
        assert!(Verification::all_counted(&[achieved]));
        assert_eq!(achieved.write_backs_per_refill, Some(2.0));
        block.samples[7].values[1] = f64::NAN;
        let timed = conclude(&[block], 100, 1, |_| Bytes(0))[0];
        assert!((timed.gone - 2600.0 / 3600.0).abs() < 1e-12 && timed.write_backs_per_refill.is_none());
        assert!(!Verification::all_counted(&[achieved, timed]), "one measured by time is not measured by counters");
    }

    #[test]
    fn nothing_measured_is_nothing_achieved() {
        assert!(conclude(&[], 100, 1, |_| Bytes(0)).is_empty());
    }
}
