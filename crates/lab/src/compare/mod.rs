//! What colors of its own are worth to a program that runs: a randomized crossover within one process.
//!
//! The pages of a running program can be moved between two layouts of the cache, so both conditions are measured in the same process, on the same
//! data, seconds apart. *Spread*: the pages of the program and of its neighbor lie evenly on all colors. *Apart*: each has its own. Windows of the
//! conditions come in blocks, in random order within a block. Before *every* window all pages that can be moved are given fresh frames, so that the
//! costs of moving, and of giving up huge pages for it, are the same in both conditions. Each block has two windows of each condition. Two windows of
//! the same condition show differences that the conditions do not cause (A/A).
//!
//! Before anything is moved, a few windows are measured *as found*. Their order is not random, so they are reported without a test. If the programs
//! can be started anew, further windows come in pairs, one as found and one apart, in random order. The programs are started anew for each of these
//! windows.
//!
//! A window counts if the placement was verified before and after it. Whether it counts never depends on the measured value. A block
//! counts if all of its windows do.

mod conclude;
pub mod measure;
pub mod party;
pub mod place;
mod run;
#[cfg(test)]
mod run_tests;
mod section;

use isochrome_model::stats::{Crossover, Look};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use conclude::{About, Distribution, LookTaken, Samples, Step, conclude};
pub use run::{Cell, Experiment, Progress, Recorded, Settings, block_windows, once, order, preparation, run};
pub use section::{csv, section};

/// Placement of the pages of the programs in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The pages lie where the system has put them: nothing was moved yet.
    AsFound,
    /// All pages lie evenly on all colors, those of both programs.
    Spread,
    /// The pages of each program lie on its own colors.
    Apart,
}

impl Condition {
    /// Returns the name of the condition in tables.
    pub fn name(self) -> &'static str {
        match self {
            Condition::AsFound => "as found",
            Condition::Spread => "spread",
            Condition::Apart => "apart",
        }
    }
}

/// Statistic that sums up the values of a window in one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Statistic {
    /// The median.
    #[serde(rename = "median")]
    Median,
    /// The value that 1 % exceed.
    #[serde(rename = "p99")]
    P99,
    /// The value that one in a thousand exceeds.
    #[serde(rename = "p99.9")]
    P999,
    /// The mean.
    #[serde(rename = "mean")]
    Mean,
    /// The number of values per second.
    #[serde(rename = "throughput")]
    Throughput,
}

impl Statistic {
    /// Returns the name of the statistic.
    pub fn name(self) -> &'static str {
        match self {
            Statistic::Median => "median",
            Statistic::P99 => "99 % quantile",
            Statistic::P999 => "99.9 % quantile",
            Statistic::Mean => "mean",
            Statistic::Throughput => "throughput",
        }
    }

    /// Returns the share (0 to 1) below which the statistic is; `None` if it is not a quantile.
    pub fn quantile(self) -> Option<f64> {
        match self {
            Statistic::Median => Some(0.5),
            Statistic::P99 => Some(0.99),
            Statistic::P999 => Some(0.999),
            Statistic::Mean | Statistic::Throughput => None,
        }
    }

    /// Returns the fewest values of a window that have the statistic.
    pub fn values_needed(self) -> usize {
        match self {
            Statistic::Median | Statistic::Mean | Statistic::Throughput => 1,
            Statistic::P99 => 100,
            Statistic::P999 => 1000,
        }
    }

    /// Returns the statistic of `values` that were measured in `seconds`; `None` if there are too few values.
    pub fn of(self, values: &[f64], seconds: f64) -> Option<f64> {
        if values.len() < self.values_needed() {
            return None;
        }
        match self {
            Statistic::Median => isochrome_model::stats::median(values),
            Statistic::P99 | Statistic::P999 => {
                let mut sorted = values.to_vec();
                sorted.sort_unstable_by(f64::total_cmp);
                let rank = (self.quantile()? * sorted.len() as f64).ceil() as usize;
                sorted.get(rank.saturating_sub(1)).copied()
            }
            Statistic::Mean => Some(values.iter().sum::<f64>() / values.len() as f64),
            Statistic::Throughput => Some(values.len() as f64 / seconds),
        }
    }
}

/// A program of the experiment, and its colors where the programs are apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Program {
    /// Command line or name of the program.
    pub name: String,
    /// Number of the program's process.
    pub pid: i32,
    /// Colors of the program where the programs are apart.
    pub colors: Vec<u32>,
    /// CPUs that the program may run on.
    pub cpus: Vec<u32>,
}

/// Placement of the pages of one program in a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Placed {
    /// Number of pages that can be moved.
    pub pages: u64,
    /// Number of pages that cannot be moved; they stay in their place in every condition.
    pub immovable: u64,
    /// Number of pages that were given another frame before the window.
    pub moved: u64,
    /// Share (0 to 1) of the movable pages that had an allowed color, the lower of before and after the window.
    pub on_color: f64,
    /// Pages of the most frequent allowed color divided by an even share, or an even share divided by the pages of the rarest, whichever is more; the
    /// higher of before and after the window.
    pub crowding: f64,
    /// Share (0 to 1) of a sample that was on color by eviction tests; `None` if no sample was tested in this window.
    pub verified: Option<f64>,
}

/// A window of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// Number of the block, or of the pair of windows for which the programs were started anew; `None` for other windows as found.
    pub block: Option<u64>,
    /// Condition of the window.
    pub condition: Condition,
    /// Whether this is the second window of its condition by the order that was drawn, for the comparison of equal conditions.
    pub again: bool,
    /// Number of colors of the victim, in windows of a curve in which the programs are apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<u32>,
    /// Time from the start of the experiment to the start of the window, in s.
    pub at_s: f64,
    /// Length of the window in s.
    pub length_s: f64,
    /// The statistic over the window; `None` if nothing was measured.
    pub value: Option<f64>,
    /// Number of values in the window; 0 if the load generator itself has summed them up.
    pub values: u64,
    /// The statistic of the neighbor; `None` if its progress is not measured.
    pub neighbor: Option<f64>,
    /// Time for which the neighbor had a CPU, per second; `None` without a neighbor.
    pub neighbor_cpu: Option<f64>,
    /// Number of times per second that the victim gave up or lost the CPU; `None` if that is not known.
    pub switches: Option<f64>,
    /// Placement of the pages of the victim and the neighbor; empty for windows as found, and if the pages could not be moved.
    pub placed: Vec<Placed>,
    /// Reason why the window does not count; `None` if it does.
    pub excluded: Option<String>,
}

/// Result of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// The program that is measured.
    pub victim: Program,
    /// The program beside it; `None` if there is none.
    pub neighbor: Option<Program>,
    /// Cache level of the colors.
    pub level: u8,
    /// Number of colors of the level.
    pub colors: u32,
    /// The measured quantity, in the words of the command line.
    pub measure: String,
    /// Unit of the values; empty if it is not known.
    pub unit: String,
    /// The statistic that is compared.
    pub statistic: Statistic,
    /// Whether larger values are better.
    pub larger_is_better: bool,
    /// Difference, as a share, below which an effect would not matter.
    pub margin: f64,
    /// Apart against spread, over the blocks that count, with the interval of the last interim look; `None` without such a block.
    pub effect: Option<Crossover>,
    /// Smallest p-value of all interim looks, corrected for their number.
    pub p: Option<f64>,
    /// The interim looks that were taken at the experiment.
    pub looks: Vec<LookTaken>,
    /// The interim looks that were planned.
    pub planned: Vec<Look>,
    /// Apart against as found, over the pairs of windows of programs that were started anew; `None` without a pair that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts_effect: Option<Crossover>,
    /// Windows of programs that were started anew for each, in pairs of one as found and one apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<Window>,
    /// Comparison of the two windows of each condition, spread against spread and apart against apart, in which nothing differs.
    pub same: Option<Crossover>,
    /// Apart against spread for the progress of the neighbor; `None` if it is not measured.
    pub neighbor_effect: Option<Crossover>,
    /// Apart against spread for the CPU time that the neighbor had.
    pub neighbor_cpu_effect: Option<Crossover>,
    /// The victim with each number of colors against spread; empty unless a curve was asked for.
    pub curve: Vec<Step>,
    /// Fewest colors with which the victim is within the margin of the best of the curve; `None` without a curve.
    pub knee: Option<u32>,
    /// The distribution in each condition over the windows that count.
    pub distributions: Vec<Distribution>,
    /// All windows, in the order in which they were measured.
    pub windows: Vec<Window>,
    /// Reason why the experiment ended.
    pub ended: String,
    /// Whether the experiment ended as planned, and not because something failed or somebody asked for it.
    pub as_planned: bool,
    /// State in which the programs were left.
    pub left: Vec<String>,
    /// Effect that was expected before anything was measured, in sentences.
    pub expected: Vec<String>,
    /// Time in µs in which half of the level is read again after the neighbor has taken it; `None` if it was not measured.
    pub refill_us: Option<f64>,
    /// Typical time that a placement of all pages took, in s.
    pub placing_s: f64,
}

impl Compared {
    /// Whether own colors make a difference.
    pub fn shows_effect(&self) -> bool {
        self.effect.is_some_and(|effect| effect.differs())
    }

    /// Whether there is no difference above the margin.
    pub fn shows_equivalence(&self) -> bool {
        self.effect.and_then(|effect| effect.at_most()).is_some_and(|most| most <= self.margin)
    }

    /// Whether the experiment ended early because pages were not spread evenly: too few frames of some colors were found.
    pub fn lacks_frames(&self) -> bool {
        let is_uneven = |window: &Window| window.placed.iter().any(|placed| placed.crowding > place::CROWDING);
        !self.as_planned && self.windows.last().is_some_and(is_uneven)
    }

    /// Whether the effect is a gain; `None` if there is no significant effect. If apart is significantly worse than as found, there is no gain, even
    /// if apart is better than spread.
    pub fn is_gain(&self) -> Option<bool> {
        let effect = self.effect.filter(|_| self.shows_effect())?;
        let gains = |effect: &Crossover| (effect.estimate > 0.0) == self.larger_is_better;
        let loses_anew = self.restarts_effect.is_some_and(|anew| anew.differs() && !gains(&anew));
        Some(gains(&effect) && !loses_anew)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statistic_of_too_few_values_is_none() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(Statistic::Median.of(&values, 2.0), Some(50.5));
        assert_eq!(Statistic::P99.of(&values, 2.0), Some(99.0));
        assert_eq!(Statistic::P99.of(&values[1..], 2.0), None);
        assert_eq!(Statistic::P999.of(&values, 2.0), None);
        assert_eq!(Statistic::Mean.of(&values, 2.0), Some(50.5));
        assert_eq!(Statistic::Throughput.of(&values, 2.0), Some(50.0));
        assert_eq!(Statistic::Median.of(&[], 2.0), None);
    }
}
