//! The cache-related cost of a preemption against the size of the preempted task's working set: the experiment of [Sebek2002, §3.5].
//!
//! A task loops over a working set. In one iteration a task that evicts the whole cache preempts it. The cache-related preemption delay (CRPD)
//! is the time by which that iteration is longer than the one before. Under LRU the delay grows linearly with the working set until that fills
//! the cache. It falls to zero at `1 + 1/ways` of the cache, where no useful line is left to evict. [Sebek2002, Figure 7]

pub mod modeled;
mod preempt;
mod section;

use isochrome_model::miss_ratio::Touches;
use isochrome_model::stats::{BLOCKS_MIN, HighWaterMark, Line, Straightness, median};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::{Accepted, Arm, Block, Judged, accept};

pub use preempt::{PASSES, Preempting};
pub use section::section;

/// Order in which the task accesses its working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Walk {
    /// Every line in the order of addresses. Loads do not wait for each other, so misses overlap and are prefetched.
    InOrder,
    /// Along a chain through all lines in random order, so that each load waits for the one before. In code, the pieces between jumps follow
    /// each other in random order.
    Random,
}

/// Condition of a block. Times of different conditions are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Order of the accesses to the working set.
    pub walk: Walk,
    /// Whether the preempting task avoids the colors of the preempted one.
    pub partitioned: bool,
    /// Size of the working set, in percent of its colors.
    pub percent: u32,
}

/// The values of a sample: lines of the working set; ticks of the undisturbed iteration, `b - a` [Sebek2002, Figure 9]; and ticks of the
/// preempted iteration without the time of the preempting task, `(c - b) + (e - d)`.
pub const COLUMNS: [&str; 3] = ["lines", "alone", "preempted"];

/// Returns the delay in ticks, `CRPD = ((e - d) + (c - b)) - (b - a)`. It is negative if noise lengthened the undisturbed iteration.
fn delay(job: &[f64]) -> f64 {
    job[2] - job[1]
}

/// A block is not accepted if its iterations with spinning are slow, as that shows a disturbance.
pub const JUDGED: Judged = Judged { cost: |job| job[2], canary: None };

/// Delay at one size of the working set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Condition of the measurement.
    #[serde(flatten)]
    pub condition: Condition,
    /// Number of lines of the working set.
    pub lines: u64,
    /// Effect of a flood on the delay compared with spinning, in ns.
    pub delay_ns: f64,
    /// 95 % confidence interval of the effect; `None` for fewer than six blocks, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ns: Option<[f64; 2]>,
    /// Delay after a flood minus the delay of the control, in ns, block by block; empty in files of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delays_ns: Vec<f64>,
    /// Median delay of the control, in ns, which disturbances other than the flood cause.
    pub control_ns: f64,
    /// Longest delay after a flood, in ns. This is an observation, not a bound.
    pub delay_ns_max: HighWaterMark,
    /// Median time of an undisturbed iteration, per pass over the working set, in ns.
    pub pass_ns: f64,
    /// Number of blocks run.
    pub blocks: u64,
    /// Number of accepted blocks.
    pub blocks_quiet: u64,
}

/// Result of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Crpd {
    /// Content of the working set.
    #[serde(default)]
    pub touches: Touches,
    /// Number of code lines that are executed from one jump to the next.
    ///
    /// A core fetches ahead along the jumps that its branch predictor has stored. Code with more jumps runs at another speed, so its delay
    /// depends on the size of the predictor as well as on lines lost from the cache. The code of \[Sebek2002\] has no jumps.
    #[serde(default = "every_line")]
    pub lines_per_jump: u32,
    /// Cache level that is flooded.
    pub level: u8,
    /// Number of ways of the level.
    pub ways: u32,
    /// Number of lines of one color.
    pub lines_per_color: u64,
    /// Number of colors of the preempted task, and of the cache.
    pub colors: [u32; 2],
    /// Number of passes over the working set in an iteration.
    pub passes: u32,
    /// Results of all conditions, ordered by walk, partitioning and size.
    pub points: Vec<Point>,
    /// Time to refill a color after clean and after dirty lines, as `isochrome probe` measures it, in ns; absent if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_ns: Option<[f64; 2]>,
    /// Name of the modeled machine, if the experiment was simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modeled: Option<String>,
}

/// Returns 1, the number of code lines per jump in evidence of earlier versions, which does not record this number.
fn every_line() -> u32 {
    1
}

/// Results that follow from the points of one walk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The line through the unpartitioned points from 10 to 90 %: delay in ns over lines.
    pub growth: Option<Line>,
    /// Test of whether the unpartitioned points from 10 to 90 % lie on a line; `None` if the delays of single blocks are unknown.
    pub straight: Option<Straightness>,
    /// Delay at the largest size divided by the longest delay; it must be at most [`FALLEN`]. `None` if that size does not exceed 100 %.
    pub left_beyond: Option<f64>,
    /// Partitioned delay divided by the unpartitioned one, both at 50 %.
    pub left_at_half: Option<f64>,
    /// Time to refill one color, in ns: the delay of the color's lines according to the slope, plus the time of a pass over these lines when
    /// they are cached.
    pub refill_ns: Option<f64>,
}

/// Greatest share of the longest delay that the delay at the largest size may have.
pub const FALLEN: f64 = 0.5;

/// Least share of the variance of the delays that the line must explain.
pub const LINEAR_R_SQUARED: f64 = 0.95;

/// Greatest share of the unpartitioned delay that may remain with colors, at a working set of half of its colors.
pub const LEFT_AT_HALF: f64 = 0.3;

/// Sizes at which the delay should grow linearly, in percent.
const LINEAR: std::ops::RangeInclusive<u32> = 10..=90;

/// Returns one point for each condition in `blocks`. Times in `blocks` are ticks of a counter of `counter_hz` Hz. An iteration is `passes`
/// passes over the working set.
pub fn conclude(blocks: &[Block<Condition>], passes: u32, counter_hz: u64) -> Vec<Point> {
    let ns = |ticks: f64| ticks * 1e9 / counter_hz as f64;
    let point = |accepted: &Accepted<'_, Condition>| {
        let effect = accepted.effect(|job| ns(delay(job)))?;
        Some(Point {
            condition: accepted.condition,
            lines: accepted.median(Arm::Treatment, |job| job[0]) as u64,
            delay_ns: effect.estimate,
            interval_ns: effect.interval,
            delays_ns: accepted.blocks.iter().map(|block| block.difference(|job| ns(delay(job)))).collect(),
            control_ns: accepted.median(Arm::Control, |job| ns(delay(job))),
            delay_ns_max: accepted.longest(Arm::Treatment, |job| ns(delay(job)))?,
            pass_ns: accepted.median(Arm::Treatment, |job| ns(job[1])) / f64::from(passes.max(1)),
            blocks: accepted.run,
            blocks_quiet: effect.n,
        })
    };
    accept(blocks, &JUDGED).iter().filter_map(point).collect()
}

impl Crpd {
    /// Returns the points of one walk, either the partitioned or the unpartitioned ones, in recorded order.
    pub fn points_of(&self, walk: Walk, partitioned: bool) -> impl Iterator<Item = &Point> {
        self.points
            .iter()
            .filter(move |point| point.condition.walk == walk && point.condition.partitioned == partitioned)
    }

    /// Returns the walks of which unpartitioned points were measured.
    pub fn walks(&self) -> impl Iterator<Item = Walk> {
        [Walk::InOrder, Walk::Random].into_iter().filter(|walk| self.points_of(*walk, false).next().is_some())
    }

    /// Returns the predicted delay at `percent`, as a share of the delay of a working set that just fits. The prediction grows linearly to 100 %
    /// and falls to zero at `1 + 1/ways`. [Sebek2002, Figure 7]
    pub fn theory(&self, percent: f64) -> f64 {
        let size = percent / 100.0;
        let beyond = (size - 1.0).max(0.0) * f64::from(self.ways);
        (if size <= 1.0 { size } else { 1.0 - beyond }).max(0.0)
    }

    /// Returns the results that follow from the points of `walk`.
    pub fn reading(&self, walk: Walk) -> Reading {
        let open: Vec<&Point> = self.points_of(walk, false).collect();
        let linear = || open.iter().filter(|point| LINEAR.contains(&point.condition.percent));
        let growth = Line::through(&linear().map(|point| (point.lines as f64, point.delay_ns)).collect::<Vec<_>>());
        let longest = open.iter().map(|point| point.delay_ns).fold(f64::NEG_INFINITY, f64::max);
        let last = open.iter().max_by_key(|point| point.condition.percent);
        let at_half = |partitioned| {
            self.points_of(walk, partitioned).find(|point| point.condition.percent == 50).map(|point| point.delay_ns)
        };
        let pass_per_line = median(&linear().map(|point| point.pass_ns / point.lines as f64).collect::<Vec<_>>());
        let groups: Vec<(f64, Vec<f64>)> =
            linear().map(|point| (point.lines as f64, point.delays_ns.clone())).collect();
        Reading {
            growth,
            straight: Straightness::of(&groups),
            left_beyond: last
                .filter(|point| point.condition.percent > 100 && longest > 0.0)
                .map(|point| point.delay_ns / longest),
            left_at_half: at_half(true).zip(at_half(false)).map(|(own, open)| own / open),
            refill_ns: growth.zip(pass_per_line).map(|(line, pass)| (line.slope + pass) * self.lines_per_color as f64),
        }
    }

    /// Whether the delay of every measured walk is as theory predicts: it grows linearly, it falls once the working set exceeds its colors, and
    /// partitioning removes most of it.
    pub fn holds(&self) -> bool {
        self.walks().all(|walk| {
            let reading = self.reading(walk);
            reading.growth.is_some_and(|line| line.r_squared >= LINEAR_R_SQUARED)
                && reading.straight.is_none_or(|it| it.holds())
                && reading.left_beyond.is_none_or(|left| left <= FALLEN)
                && reading.left_at_half.is_none_or(|left| left <= LEFT_AT_HALF)
        })
    }

    /// Whether enough blocks were accepted, and the delay grows significantly with the working set.
    pub fn is_conclusive(&self) -> bool {
        !self.points.is_empty()
            && (self.modeled.is_some() || self.points.iter().all(|point| point.blocks_quiet >= BLOCKS_MIN))
            && self.walks().all(|walk| self.reading(walk).growth.is_some_and(|line| line.rises()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::samples::Sample;

    /// Returns results for a cache of 8 ways on which theory holds. A tick is 1 ns; a missed line costs 10 ticks, a cached one 2.
    pub(crate) fn modeled() -> Crpd {
        let mut crpd = Crpd {
            touches: Touches::Data,
            lines_per_jump: 1,
            level: 2,
            ways: 8,
            lines_per_color: 512,
            colors: [4, 16],
            passes: 2,
            points: Vec::new(),
            refill_ns: Some([6_000.0, 12_000.0]),
            modeled: None,
        };
        let mut blocks = Vec::new();
        for (walk, partitioned) in
            [(Walk::InOrder, false), (Walk::InOrder, true), (Walk::Random, false), (Walk::Random, true)]
        {
            for percent in (10..=130).step_by(10) {
                let lines = 2048 * u64::from(percent) / 100;
                let alone = 4 * lines;
                let delay = if partitioned { 0 } else { (10.0 * 2048.0 * crpd.theory(f64::from(percent))) as u64 };
                let job = |arm, delay: u64| {
                    let values = [lines, alone, alone + delay + 7].map(|value| value as f64).to_vec();
                    vec![Sample { arm, values }; 3]
                };
                // The last block is disturbed: its control is slow too, and the block must not count.
                for noise in [0, 1, 0, 1, 0, 0, 10 * alone] {
                    let samples = [job(Arm::Treatment, delay + noise), job(Arm::Control, noise)].concat();
                    let condition = Condition { walk, partitioned, percent };
                    blocks.push(Block { condition, steal_ns: 0, elapsed_ns: 1, samples });
                }
            }
        }
        crpd.points = conclude(&blocks, crpd.passes, 1_000_000_000);
        crpd
    }

    #[test]
    fn the_delay_is_that_after_a_flood_less_that_of_the_control() {
        let crpd = modeled();
        assert_eq!(crpd.points.len(), 4 * 13);
        let half = crpd.points_of(Walk::Random, false).find(|point| point.condition.percent == 50).unwrap();
        assert_eq!((half.lines, half.delay_ns), (1024, 10_240.0));
        assert_eq!((half.blocks, half.blocks_quiet, half.delay_ns_max.n), (7, 6, 18));
        assert_eq!((half.pass_ns, half.interval_ns), (2048.0, Some([10_240.0; 2])));
        assert!((half.control_ns - 7.0).abs() <= 1.0);
    }

    #[test]
    fn a_cache_that_behaves_as_theory_says_is_read_so() {
        let crpd = modeled();
        let reading = crpd.reading(Walk::Random);
        let line = reading.growth.unwrap();
        assert!((line.slope - 10.0).abs() < 0.1 && line.r_squared > 0.999, "{line:?}");
        assert_eq!((reading.left_beyond, reading.left_at_half), (Some(0.0), Some(0.0)));
        // 512 lines, each of which costs 10 ns more than the 2 ns of a cached line.
        assert!((reading.refill_ns.unwrap() - 512.0 * 12.0).abs() < 60.0);
        assert!(crpd.is_conclusive() && crpd.holds());
    }

    #[test]
    fn each_threshold_that_is_missed_is_a_miss_and_five_accepted_blocks_are_too_few() {
        let with = |change: &dyn Fn(&mut Point)| {
            let mut crpd = modeled();
            crpd.points.iter_mut().for_each(change);
            crpd
        };
        let longest = 10.0 * 2048.0;
        let late = |share: f64| {
            with(&|point| {
                if point.condition.percent > 100 && !point.condition.partitioned {
                    point.delay_ns = share * longest;
                }
            })
        };
        assert!(late(0.45).holds() && !late(0.55).holds(), "a little less than the longest is noise");
        let left = with(&|point| {
            if point.condition.partitioned {
                point.delay_ns = 0.31 * 10.0 * point.lines as f64;
            }
        });
        let bent = with(&|point| {
            if point.condition.percent == 80 {
                point.delay_ns *= 0.4;
            }
        });
        assert!(left.is_conclusive() && !left.holds());
        assert!(bent.is_conclusive() && !bent.holds());
        assert!(!with(&|point| point.blocks_quiet = 5).is_conclusive());
    }

    #[test]
    fn theory_is_a_tent_that_ends_at_one_way_more() {
        let crpd = modeled();
        let at = [0.0, 50.0, 100.0, 106.25, 112.5, 130.0].map(|percent| crpd.theory(percent));
        assert_eq!(at, [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn nothing_measured_is_inconclusive() {
        let mut crpd = modeled();
        crpd.points.clear();
        assert!(!crpd.is_conclusive());
        assert_eq!(crpd.reading(Walk::Random).growth, None);
        assert!(conclude(&[], 2, 1).is_empty());
    }
}
