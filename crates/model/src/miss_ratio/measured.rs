//! What an executed task says: its ratio of misses by counters or by time, held against the prediction.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::search::{NEAR, TRIES, Tried, found};
use super::{Locality, Task};
use crate::stats::{all_quiet, median, quantile};

/// Turns whose control is so much slower than the quietest do not count.
const TOLERANCE: f64 = 0.1;
/// Fewest quiet turns that say anything.
pub const QUIET_MIN: u64 = 10;
/// Misses per line that a counter may show of the control whose lines all fit.
const COUNTED_FITTING: f64 = 0.25;
/// Those it must show of the control of which no line fits: prefetches take some away, and fetches that come to nothing add some.
const COUNTED_MISSING: std::ops::RangeInclusive<f64> = 0.5..=1.5;

/// How a ratio was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Counters of misses.
    Counters,
    /// Time between that of two controls.
    Time,
}

/// Some passes over a loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passes {
    /// Time per access, in ns.
    pub access_ns: f64,
    /// Misses counted per access, where they are.
    pub misses: Option<f64>,
}

/// The task and its controls, executed one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// The task.
    pub task: Passes,
    /// The control whose lines all fit, the slower of before and after the task.
    pub fitting: Passes,
    /// The control of which no line fits.
    pub missing: Passes,
}

/// A task that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Executed {
    /// Misses per access: the median over quiet turns.
    pub miss_ratio: f64,
    /// Its lower and upper quartile.
    pub quartiles: [f64; 2],
    /// How it was told.
    pub by: By,
    /// Time per access, in ns.
    pub access_ns: f64,
    /// The same of the control that always hits.
    pub hit_ns: f64,
    /// The same of the control that always misses.
    pub miss_ns: f64,
    /// Misses per line that were counted of both controls, where there were counters: about 0 and 1 if they count what they should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<[f64; 2]>,
    /// Turns of each.
    pub turns: u64,
    /// Those that count.
    pub turns_quiet: u64,
}

/// What `turns` of `task` say: over those in which the control that fits was as quick as it can be. `None` without turns.
///
/// Counters are believed where they count next to nothing of the control that fits and about a miss per line of the other; else time
/// between the two tells the ratio.
pub fn conclude(task: &Task, turns: &[Turn]) -> Option<Executed> {
    let picoseconds: Vec<u64> = turns.iter().map(|turn| (turn.fitting.access_ns * 1000.0) as u64).collect();
    let quiet: Vec<&Turn> = all_quiet(&picoseconds, TOLERANCE).into_iter().map(|turn| &turns[turn]).collect();
    let of = |value: &dyn Fn(&Turn) -> Option<f64>| -> Vec<f64> {
        quiet.iter().filter_map(|turn| value(turn)).filter(|value| value.is_finite()).collect()
    };
    let accesses_per_line = task.accesses_per_pass() as f64 / task.lines as f64;
    let per_line = |misses: Vec<f64>| median(&misses).map(|misses| misses * accesses_per_line);
    let counted = per_line(of(&|turn| turn.fitting.misses)).zip(per_line(of(&|turn| turn.missing.misses)));
    let by = match counted {
        Some((fitting, missing)) if fitting <= COUNTED_FITTING && COUNTED_MISSING.contains(&missing) => By::Counters,
        _ => By::Time,
    };
    let ratios = match by {
        By::Counters => of(&|turn| turn.task.misses),
        // Of the lines; of the accesses, as many as there are words of a line.
        By::Time => of(&|turn| {
            let [task, fitting, missing] = [turn.task, turn.fitting, turn.missing].map(|passes| passes.access_ns);
            Some((task - fitting) / (missing - fitting) / accesses_per_line)
        }),
    };
    let ns = |passes: fn(&Turn) -> Passes| median(&of(&|turn| Some(passes(turn).access_ns)));
    Some(Executed {
        miss_ratio: median(&ratios)?,
        quartiles: [quantile(&ratios, 0.25)?, quantile(&ratios, 0.75)?],
        by,
        access_ns: ns(|turn| turn.task)?,
        hit_ns: ns(|turn| turn.fitting)?,
        miss_ns: ns(|turn| turn.missing)?,
        counted: counted.map(|(fitting, missing)| [fitting, missing]),
        turns: turns.len() as u64,
        turns_quiet: quiet.len() as u64,
    })
}

/// The ratio on a modeled machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Modeled {
    /// The machine.
    pub machine: String,
    /// How the level replaces lines.
    pub policy: String,
    /// Misses per access.
    pub miss_ratio: f64,
}

/// A task with a set miss ratio: predicted, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Cache level.
    pub level: u8,
    /// Page colors that the level has by its size; 1 is none.
    pub colors: u32,
    /// By what the ratio is set.
    pub locality: Locality,
    /// Misses per access that were asked for.
    pub asked: f64,
    /// The task; after a search the one of its outcome.
    pub task: Task,
    /// Size of its lines.
    pub bytes: u64,
    /// Misses per access by LRU exactly.
    pub predicted_lru: f64,
    /// The same by the document's straight line.
    pub predicted_straight: f64,
    /// On a modeled machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modeled: Option<Modeled>,
    /// On the machine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executed: Option<Executed>,
    /// Whether the pages of the task had colors in turn. Otherwise some sets have more of its lines than others, and the prediction is for
    /// another task.
    pub colored: bool,
    /// Why misses were not counted, where they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
    /// What a search has tried, in order; the outcome is among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<Tried>,
}

/// How what was measured stands to what was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A ratio was measured; or a search has found what was asked for.
    Holds,
    /// A search has not found it.
    Violated,
    /// Too few turns were quiet, or a search was ended early.
    Inconclusive,
}

impl Comparison {
    /// Of `task`, before anything came of it.
    pub fn of(task: Task, level: u8, colors: u32, locality: Locality, asked: f64) -> Comparison {
        Comparison {
            level,
            colors,
            locality,
            asked,
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

    /// Misses per access, executed or modeled.
    pub fn miss_ratio(&self) -> Option<f64> {
        self.executed.map(|executed| executed.miss_ratio).or(self.modeled.as_ref().map(|modeled| modeled.miss_ratio))
    }

    /// Whether what was promised came true.
    pub fn verdict(&self) -> Verdict {
        let too_few = self.executed.is_some_and(|executed| executed.turns_quiet < QUIET_MIN);
        match self.search.len() {
            _ if too_few => Verdict::Inconclusive,
            0 => Verdict::Holds,
            _ if found(&self.search, self.asked) => Verdict::Holds,
            tries if tries < TRIES => Verdict::Inconclusive,
            _ => Verdict::Violated,
        }
    }

    /// By how much what was executed is above LRU and what that comes from; `None` where they agree within 2 points.
    pub fn apart(&self) -> Option<(f64, &'static str)> {
        let apart = self.executed?.miss_ratio - self.predicted_lru;
        let why = if !self.colored && self.colors > 1 {
            "without colors some sets have more lines of the loop than others"
        } else if apart < 0.0 {
            "this cache does not replace by exact LRU, and keeps some lines of a set with one too many; or lines are fetched ahead, or misses overlap"
        } else {
            "others use the cache too (stack, kernel, whoever shares the core), or replacement evicts before a set is full"
        };
        (apart.abs() > NEAR).then_some((apart, why))
    }
}

#[cfg(any(test, feature = "fixtures"))]
#[allow(dead_code, unused_imports, missing_docs)]
pub mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::miss_ratio::Touches;
    use crate::units::Bytes;

    pub fn task() -> Task {
        let geometry = Geometry::of_size(Bytes(512 << 10), 8, Bytes(64)).unwrap();
        Task::of_ratio(Touches::Data, geometry, 0.33, Locality::Temporal).unwrap()
    }

    /// Turns of a task that misses in 40 % of its lines, at 2 ns a hit and 12 ns a miss; every fourth is disturbed. `counted`: what a counter reads per
    /// line of task and controls.
    fn turns(counted: Option<[f64; 3]>) -> Vec<Turn> {
        let passes = |ns, counted: Option<f64>| Passes { access_ns: ns, misses: counted };
        let turn = |i: usize| {
            let noise = if i % 4 == 3 { 5.0 } else { 0.0 };
            // Quartiles: a tenth of the ratio up and down.
            let misses = [0.3, 0.4, 0.5][i % 4 % 3];
            Turn {
                task: passes(2.0 + 10.0 * misses + noise, counted.map(|counted| counted[0])),
                fitting: passes(2.0 + noise, counted.map(|counted| counted[1])),
                missing: passes(12.0 + noise, counted.map(|counted| counted[2])),
            }
        };
        (0..40).map(turn).collect()
    }

    #[test]
    fn time_between_the_controls_of_quiet_turns_is_the_ratio() {
        let executed = conclude(&task(), &turns(None)).unwrap();
        assert_eq!((executed.turns, executed.turns_quiet, executed.by), (40, 30, By::Time));
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value} {expected}");
        near(executed.miss_ratio, 0.4);
        near(executed.quartiles[0], 0.3);
        near(executed.quartiles[1], 0.5);
        assert_eq!((executed.hit_ns, executed.miss_ns, executed.counted), (2.0, 12.0, None));
        assert_eq!(conclude(&task(), &[]), None);
        // Two words of a line: half of the accesses.
        let combined = Task { words: 2.0, ..task() };
        near(conclude(&combined, &turns(None)).unwrap().miss_ratio, 0.2);
    }

    #[test]
    fn counters_are_believed_only_where_they_count_the_controls_right() {
        let by = |counted| {
            let executed = conclude(&task(), &turns(Some(counted))).unwrap();
            (executed.by, executed.miss_ratio)
        };
        assert_eq!(by([0.35, 0.01, 0.97]), (By::Counters, 0.35));
        // One that stands still, one that also counts hits, one that counts everything twice.
        for wrong in [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.7, 0.0, 2.0]] {
            let (by, ratio) = by(wrong);
            assert!(by == By::Time && (ratio - 0.4).abs() < 1e-9, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_apart_from_the_prediction_is_told_with_the_likeliest_cause() {
        let mut comparison = Comparison::of(task(), 2, 16, Locality::Temporal, 0.33);
        assert_eq!((comparison.apart(), comparison.verdict()), (None, Verdict::Holds));
        comparison.executed = conclude(&task(), &turns(None));
        assert!(comparison.apart().unwrap().1.contains("without colors"));
        comparison.colored = true;
        assert!(comparison.apart().unwrap().1.contains("others use the cache too"));
        if let Some(executed) = &mut comparison.executed {
            executed.miss_ratio = 0.2;
        }
        let (apart, why) = comparison.apart().unwrap();
        assert!((apart + 0.13).abs() < 0.001 && why.contains("exact LRU"), "{apart}");
        if let Some(executed) = &mut comparison.executed {
            (executed.miss_ratio, executed.turns_quiet) = (0.34, 9);
        }
        assert_eq!((comparison.apart(), comparison.verdict()), (None, Verdict::Inconclusive));
    }
}
