//! Tasks with a set miss ratio: the measured ratio against the predicted one. [Sebek2002, §3.3]
//!
//! The task is a loop over lines. If misses of the level can be counted, counters give the miss ratio of the task. Otherwise the ratio is
//! interpolated from the time of the task, between the times of two controls. All lines of the first control fit into the level, and no line of
//! the second does. If there are enough colors, both controls have as many pages as the task, hence the same translation of addresses.

pub mod modeled;
pub mod search;
mod section;
mod walks;

use isochrome_model::evidence::Standing;
use isochrome_model::miss_ratio::{Locality, Task};
use isochrome_model::stats::{BLOCKS_MIN, Effect, median};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::{Arm, Block, Judged, accept};
use search::{NEAR, TRIES, Tried, found};

pub use section::section;
pub use walks::{Walks, pages_per_color};

/// The condition of a block: one size of the loop, in one try of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// Number of the try, from 1.
    pub attempt: u64,
    /// Number of lines of the task's loop.
    pub lines: u64,
}

/// The values of a sample, per access: time in ns, and misses if they are counted. The control is the loop whose lines all fit, the treatment is
/// the task, and the extreme is the loop of which no line fits.
pub const COLUMNS: [&str; 2] = ["access_ns", "misses"];

fn access_ns(passes: &[f64]) -> f64 {
    passes[0]
}

fn misses(passes: &[f64]) -> f64 {
    passes[1]
}

/// A block is not accepted if its passes over the lines that fit are slow, as that shows a disturbance.
pub const JUDGED: Judged = Judged { cost: access_ns, canary: None };

/// Greatest number of misses per line that a trusted counter may show for the control whose lines all fit.
const COUNTED_FITTING: f64 = 0.25;
/// Misses per line that a trusted counter must show for the control of which no line fits. Prefetches avoid some misses, and speculative fetches
/// that are never used add some.
const COUNTED_MISSING: std::ops::RangeInclusive<f64> = 0.5..=1.5;

/// Method by which a ratio was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// By counters of misses.
    Counters,
    /// By time, interpolated between the times of two controls.
    Time,
}

/// Result of executing a task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Executed {
    /// Misses per access: the [estimate](Effect) over accepted blocks.
    pub miss_ratio: f64,
    /// 95 % confidence interval of the ratio; `None` for fewer than six blocks, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Method by which the ratio was measured.
    pub by: By,
    /// Time per access, in ns.
    pub access_ns: f64,
    /// Time per access of the control that always hits, in ns.
    pub hit_ns: f64,
    /// Time per access of the control that always misses, in ns.
    pub miss_ns: f64,
    /// Counted misses per line of both controls, if misses were counted: about 0 and 1 if the counters are right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<[f64; 2]>,
    /// Number of blocks run.
    #[serde(alias = "turns")]
    pub blocks: u64,
    /// Number of accepted blocks.
    #[serde(alias = "turns_quiet")]
    pub blocks_quiet: u64,
}

/// Returns the measured miss ratio and times of `task` from the blocks of one condition; `None` if no block was accepted.
///
/// Counters are trusted if they count almost no misses of the control that fits, and about one miss per line of the other control. Otherwise the
/// ratio is interpolated by time between the two controls.
pub fn conclude(task: &Task, blocks: &[Block<Condition>]) -> Option<Executed> {
    let all = accept(blocks, &JUDGED);
    let [accepted] = &all[..] else { return None };
    let accesses_per_line = task.accesses_per_pass() as f64 / task.lines as f64;
    let per_line = |arm: Arm| Some(median(&accepted.values(arm, misses))? * accesses_per_line);
    let counted = per_line(Arm::Control).zip(per_line(Arm::Extreme));
    let by = match counted {
        Some((fitting, missing)) if fitting <= COUNTED_FITTING && COUNTED_MISSING.contains(&missing) => By::Counters,
        _ => By::Time,
    };
    let ratio = |block: &&Block<Condition>| match by {
        // A block that was not counted, because the counters were taken away, has no ratio.
        By::Counters if block.rows(Arm::Treatment).iter().any(|row| misses(row).is_nan()) => f64::NAN,
        By::Counters => block.median(Arm::Treatment, misses),
        // Time shows the share of lines that miss. Only one of the accesses to a line can miss, hence the division.
        By::Time => {
            let missing = block.median(Arm::Extreme, access_ns) - block.median(Arm::Control, access_ns);
            block.difference(access_ns) / missing / accesses_per_line
        }
    };
    let ratios: Vec<f64> = accepted.blocks.iter().map(ratio).filter(|ratio| ratio.is_finite()).collect();
    let effect = Effect::of(&ratios)?;
    Some(Executed {
        miss_ratio: effect.estimate,
        interval: effect.interval,
        by,
        access_ns: accepted.median(Arm::Treatment, access_ns),
        hit_ns: accepted.median(Arm::Control, access_ns),
        miss_ns: accepted.median(Arm::Extreme, access_ns),
        counted: counted.map(|(fitting, missing)| [fitting, missing]),
        blocks: accepted.run,
        blocks_quiet: effect.n,
    })
}

/// The miss ratio on a modeled machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Modeled {
    /// Name of the machine.
    pub machine: String,
    /// Replacement policy of the level.
    pub policy: String,
    /// Misses per access.
    pub miss_ratio: f64,
}

/// A task with a set miss ratio: predictions and results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Cache level in which the task should miss.
    pub level: u8,
    /// Number of page colors of the level according to its size; 1 if the level has no colors.
    pub colors: u32,
    /// Kind of locality that sets the ratio.
    pub locality: Locality,
    /// Requested misses per access.
    #[serde(alias = "asked")]
    pub requested: f64,
    /// The task; after a search, the task that is the result of the search.
    pub task: Task,
    /// Size of all lines of the task, in bytes.
    pub bytes: u64,
    /// Misses per access by exact LRU.
    pub predicted_lru: f64,
    /// Misses per access by the straight line of the paper.
    pub predicted_straight: f64,
    /// Result on a modeled machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modeled: Option<Modeled>,
    /// Result on this machine; `None` if no block was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executed: Option<Executed>,
    /// Whether the colors of the task's pages rotate. Otherwise some sets have more lines of the task than others, and the prediction is for
    /// another task.
    pub colored: bool,
    /// Reason why misses were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
    /// Tries of a search, in order; the result is among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<Tried>,
}

impl Comparison {
    /// Returns a comparison for `task` that has predictions only.
    pub fn of(task: Task, level: u8, colors: u32, locality: Locality, requested: f64) -> Comparison {
        Comparison {
            level,
            colors,
            locality,
            requested,
            task,
            bytes: task.lines * task.geometry.line_bytes.0,
            predicted_lru: task.predicted(),
            predicted_straight: task.predicted_straight(),
            modeled: None,
            executed: None,
            colored: false,
            not_counted: None,
            search: Vec::new(),
        }
    }

    /// Returns whether the measured ratio meets the requirement. `None` if nothing is required: on a modeled machine, and for a task whose size
    /// was not searched.
    pub fn standing(&self) -> Option<Standing> {
        let is_enough = |executed: Executed| executed.blocks_quiet >= BLOCKS_MIN;
        match self.search.len() {
            _ if self.modeled.is_some() => None,
            _ if !self.executed.is_some_and(is_enough) => Some(Standing::Inconclusive),
            0 => None,
            _ if found(&self.search, self.requested) => Some(Standing::Holds),
            tries if tries < TRIES => Some(Standing::Inconclusive),
            _ => Some(Standing::Violated),
        }
    }

    /// Returns by how much the measured ratio is above that of LRU, as a share, and the likeliest cause. `None` if the two agree within
    /// [`NEAR`], or the interval is missing or contains the ratio of LRU.
    pub fn apart(&self) -> Option<(f64, &'static str)> {
        let executed = self.executed?;
        let apart = executed.miss_ratio - self.predicted_lru;
        let why = if !self.colored && self.colors > 1 {
            "without colors some sets have more lines of the loop than others"
        } else if apart < 0.0 {
            "this cache does not replace by exact LRU, and keeps some lines of a set with one too many; or lines are fetched ahead, or misses overlap"
        } else {
            "others use the cache too (stack, kernel, whoever shares the core), or replacement evicts before a set is full"
        };
        let [low, high] = executed.interval?;
        (apart.abs() > NEAR && !(low..=high).contains(&self.predicted_lru)).then_some((apart, why))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::samples::Sample;
    use isochrome_model::geometry::Geometry;
    use isochrome_model::miss_ratio::Touches;
    use isochrome_model::units::Bytes;

    pub(crate) fn task() -> Task {
        let geometry = Geometry::of_size(Bytes(512 << 10), 8, Bytes(64)).unwrap();
        Task::of_ratio(Touches::Data, geometry, 0.33, Locality::Temporal).unwrap()
    }

    /// Returns a result that was measured by time.
    pub(crate) fn executed(miss_ratio: f64) -> Executed {
        Executed {
            miss_ratio,
            interval: Some([miss_ratio - 0.05, miss_ratio + 0.04]),
            by: By::Time,
            access_ns: 5.0,
            hit_ns: 2.0,
            miss_ns: 12.0,
            counted: None,
            blocks: 20,
            blocks_quiet: 15,
        }
    }

    /// Returns blocks of a task that misses in 30, 40 or 50 % of its lines, at 2 ns a hit and 12 ns a miss; every fourth block is disturbed.
    /// `counted` are a counter's misses per line: of the control that fits, of the task, and of the other control.
    fn blocks(counted: [f64; 3]) -> Vec<Block<Condition>> {
        let block = |i: usize| {
            let noise = if i % 4 == 3 { 5.0 } else { 0.0 };
            let missed = [0.3, 0.4, 0.5][i % 4 % 3];
            let times = [2.0, 2.0 + 10.0 * missed, 12.0].map(|ns| ns + noise);
            let arms = [Arm::Control, Arm::Treatment, Arm::Extreme].into_iter().zip(times).zip(counted);
            let each: Vec<Sample> =
                arms.map(|((arm, ns), counted)| Sample { arm, values: vec![ns, counted] }).collect();
            let samples = std::iter::repeat_n(each, 4).flatten().collect();
            Block { condition: Condition { attempt: 1, lines: 8504 }, steal_ns: 0, elapsed_ns: 1, samples }
        };
        (0..40).map(block).collect()
    }

    const NOT_COUNTED: [f64; 3] = [f64::NAN; 3];

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value} {expected}");
    }

    #[test]
    fn time_between_the_controls_of_accepted_blocks_is_the_ratio() {
        let executed = conclude(&task(), &blocks(NOT_COUNTED)).unwrap();
        assert_eq!((executed.blocks, executed.blocks_quiet, executed.by), (40, 30, By::Time));
        near(executed.miss_ratio, 0.4);
        let [low, high] = executed.interval.unwrap();
        assert!(0.3 < low && low < 0.4 && 0.4 < high && high < 0.5, "{low} {high}");
        assert_eq!((executed.hit_ns, executed.miss_ns, executed.counted), (2.0, 12.0, None));
        assert_eq!(conclude(&task(), &[]), None);
        // With two words per line, half as many of the accesses miss.
        let combined = Task { words: 2.0, ..task() };
        near(conclude(&combined, &blocks(NOT_COUNTED)).unwrap().miss_ratio, 0.2);
    }

    #[test]
    fn a_slow_task_does_not_decide_whether_its_block_counts() {
        let mut slow = blocks(NOT_COUNTED);
        for sample in slow[0].samples.iter_mut().filter(|sample| sample.arm == Arm::Treatment) {
            sample.values[0] = 500.0;
        }
        assert_eq!(conclude(&task(), &slow).unwrap().blocks_quiet, 30);
    }

    #[test]
    fn counters_are_believed_only_where_they_count_the_controls_right() {
        let by = |counted| {
            let executed = conclude(&task(), &blocks(counted)).unwrap();
            (executed.by, executed.miss_ratio)
        };
        assert_eq!(by([0.01, 0.35, 0.97]), (By::Counters, 0.35));
        // A counter that stands still, one that also counts hits, and one that counts everything twice.
        for wrong in [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.7, 2.0]] {
            let (by, ratio) = by(wrong);
            assert!(by == By::Time && (ratio - 0.4).abs() < 1e-9, "{wrong:?}");
        }
    }

    #[test]
    fn blocks_after_the_counters_were_taken_away_do_not_count_as_hits() {
        let mut taken_away = blocks([0.01, 0.35, 0.97]);
        for sample in taken_away[20..].iter_mut().flat_map(|block| &mut block.samples) {
            sample.values[1] = f64::NAN;
        }
        let executed = conclude(&task(), &taken_away).unwrap();
        assert_eq!((executed.by, executed.miss_ratio), (By::Counters, 0.35));
        // Of the 30 accepted blocks, 15 are among the first 20.
        assert_eq!((executed.blocks_quiet, executed.interval), (15, Some([0.35, 0.35])));
    }

    #[test]
    fn what_is_apart_from_the_prediction_is_reported_with_the_likeliest_cause() {
        let mut comparison = Comparison::of(task(), 2, 16, Locality::Temporal, 0.33);
        assert_eq!((comparison.apart(), comparison.standing()), (None, Some(Standing::Inconclusive)));
        comparison.executed = Some(executed(0.4));
        assert!(comparison.apart().unwrap().1.contains("without colors"));
        comparison.colored = true;
        assert!(comparison.apart().unwrap().1.contains("others use the cache too"));
        comparison.executed = Some(executed(0.2));
        let (apart, why) = comparison.apart().unwrap();
        assert!((apart + 0.13).abs() < 0.001 && why.contains("exact LRU"), "{apart}");
        assert_eq!(comparison.standing(), None, "nothing was required");
        // The prediction of 33 % lies in the interval from 32 to 41 %.
        comparison.executed = Some(Executed { blocks_quiet: BLOCKS_MIN - 1, ..executed(0.37) });
        assert_eq!((comparison.apart(), comparison.standing()), (None, Some(Standing::Inconclusive)));
    }

    #[test]
    fn what_earlier_versions_recorded_is_read() {
        let text = r#"{"miss_ratio":0.3,"quartiles":[0.2,0.4],"by":"time","access_ns":5,"hit_ns":2,"miss_ns":12,"turns":60,"turns_quiet":44}"#;
        let executed: Executed = serde_json::from_str(text).unwrap();
        assert_eq!((executed.blocks, executed.blocks_quiet, executed.interval), (60, 44, None));
    }
}
