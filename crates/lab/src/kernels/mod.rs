//! Cost of a flood to jobs, with and without colors of their own: the experiments of [Liedtke1997, §5].
//!
//! Jobs run in blocks. In a block, jobs that follow the co-runner's work alternate at random with jobs that follow spinning for the same time.
//! So whatever else disturbs the machine disturbs both kinds.

mod jobs;
mod section;

use std::collections::BTreeMap;

use isochrome_model::stats::{Effect, HighWaterMark, Sorted, median};
use isochrome_model::units::{Bytes, Color, Cycles, Ns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::{Accepted, Arm, Block, Judged, accept};

pub use jobs::{Jobs, Work};
pub use section::section;

/// Memory of a task, and activity of the co-runner between its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The co-runner only spins. This gives c_min.
    Alone,
    /// The task is in ordinary memory, and the co-runner makes every line of the cache dirty.
    Unpartitioned,
    /// The task is in its own colors, and the co-runner makes every line of the other colors dirty.
    Partitioned,
    /// The task is in its own colors. The co-runner makes the other colors dirty, and reads but never writes other pages of the task's colors.
    /// [Liedtke1997, §5.3]
    SingleWriter,
}

/// One kernel at one problem size under all conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Experiment {
    /// Name of the kernel: `filter`, `dct`, `fft`, `matmul` or `combined`.
    pub bench: String,
    /// Problem size, by the name of its option: `taps`, `points`, `slice_us` or `rate_hz`. It is written beside `bench`.
    #[serde(flatten)]
    pub parameter: BTreeMap<String, u64>,
    /// Element type: `f64` or `i32`.
    pub element: String,
    /// Size of the memory that a job touches.
    pub working_set: Bytes,
    /// Outcome of each condition.
    pub conditions: BTreeMap<Condition, Outcome>,
    /// Number of cycles by which own colors shorten the effect of a flood: the effect in an unpartitioned block minus that in a partitioned
    /// block, paired in the order they were run. `None` without both conditions, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_cycles: Option<Effect>,
}

/// Results of measuring kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Kernels {
    /// Rate of the counter whose ticks are called cycles, if it is known.
    pub counter_hz: Option<u64>,
    /// Experiments, in the order they were run.
    pub experiments: Vec<Experiment>,
}

/// Times of the jobs of one kind, over the accepted blocks only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
pub struct JobSummary {
    /// Number of jobs.
    pub n: u64,
    /// Shortest job.
    pub cycles_min: Cycles,
    /// Median job.
    pub cycles_median: Cycles,
    /// 99 % quantile of the jobs.
    pub cycles_p99: Cycles,
    /// 99.9 % quantile of the jobs.
    pub cycles_p999: Cycles,
    /// Longest job. This is an observation, not a bound.
    pub cycles_max: Cycles,
    /// Median number of level-2 demand misses per job; `None` without counters.
    pub l2_misses_median: Option<f64>,
    /// Median number of level-1 data misses per job; `None` without counters.
    pub l1_misses_median: Option<f64>,
    /// Median share (0 to 1) of the lines of canary pages, in the colors of the task's memory, that were evicted from the colored level when the
    /// job began, determined by time; `None` if time does not show it.
    #[serde(default)]
    pub lost_median: Option<f64>,
}

/// Outcome of one condition of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Jobs that followed the co-runner's work.
    #[serde(flatten)]
    pub jobs: JobSummary,
    /// The paired control: jobs of the same blocks that followed spinning for the same time.
    pub control: JobSummary,
    /// Number of blocks run.
    pub blocks: u64,
    /// Number of accepted blocks, whose control was undisturbed.
    pub blocks_quiet: u64,
    /// Colors of the task's memory; empty for ordinary memory.
    pub colors: Vec<Color>,
    /// Longest job, with the number of samples and the sample in which it last rose.
    pub high_water_mark: HighWaterMark,
    /// Share (0 to 1) of the jobs that took longer than each number of cycles, ascending; reduced for drawing.
    pub ccdf: Vec<(Cycles, f64)>,
    /// Steal time during the accepted blocks.
    pub steal_ns: Ns,
    /// Number of cycles by which a job is longer after the co-runner's work than in the control of the same block. `None` without blocks, and in
    /// files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect_cycles: Option<Effect>,
}

/// Kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bench {
    /// A digital filter that processes one sample per job.
    Filter,
    /// A discrete cosine transform.
    Dct,
    /// A fast Fourier transform.
    Fft,
    /// A matrix multiplication in time slices.
    Matmul,
    /// A matrix multiplication that the filter interrupts.
    Combined,
}

/// Condition of a block, with the kind and the size of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct At {
    /// Kind of the job.
    pub bench: Bench,
    /// Problem size of the job.
    pub size: u64,
    /// Memory of the task, and activity between jobs.
    pub condition: Condition,
}

/// The values of a job: its ticks; its level-2 demand misses and level-1 data misses, if counted; and the share (0 to 1) of canary lines, in the
/// colors of the task, that had been evicted when the job began, judged by time.
pub const COLUMNS: [&str; 4] = ["cycles", "l2_misses", "l1_misses", "lost"];

/// A block is not accepted if its control is slow or has lost canary lines, as both show a disturbance. Times alone may be too coarse to show a
/// disturbance, because a core prefetches data that are read in order.
pub const JUDGED: Judged = Judged { cost: |job| job[0], canary: Some(3) };

/// Number of points of a distribution that are kept for drawing.
const CCDF_POINTS: usize = 64;

/// Returns the outcome of each condition of `bench` at `size`, and by how many cycles own colors shorten the effect of a flood. `colors` are the
/// task's own colors. A maximum grows with the number of jobs, so each condition is summarized over equally many blocks: its first accepted
/// ones.
pub fn conclude(
    blocks: &[Block<At>],
    bench: Bench,
    size: u64,
    colors: &[Color],
) -> (BTreeMap<Condition, Outcome>, Option<Effect>) {
    let all = accept(blocks, &JUDGED);
    let of_size: Vec<_> = all.iter().filter(|it| (it.condition.bench, it.condition.size) == (bench, size)).collect();
    let fewest = of_size.iter().map(|it| it.blocks.len()).filter(|n| *n > 0).min().unwrap_or(0);
    let effects = |condition| {
        let accepted = of_size.iter().find(|it| it.condition.condition == condition);
        let blocks = accepted.map_or(&[][..], |it| &it.blocks);
        blocks.iter().map(|block| block.difference(|job| job[0])).collect::<Vec<_>>()
    };
    let [without, with] = [Condition::Unpartitioned, Condition::Partitioned].map(effects);
    let gain = Effect::of(&without.iter().zip(&with).map(|(without, with)| without - with).collect::<Vec<_>>());
    let outcome = |accepted: &&Accepted<'_, At>| {
        let condition = accepted.condition.condition;
        let own = matches!(condition, Condition::Partitioned | Condition::SingleWriter);
        let mut first = (*accepted).clone();
        first.blocks.truncate(fewest);
        let cycles: Vec<u64> = first.values(Arm::Treatment, |job| job[0]).into_iter().map(|it| it as u64).collect();
        let ccdf = Sorted::of(cycles.iter().copied()).map_or_else(Vec::new, |sorted| sorted.ccdf(CCDF_POINTS));
        let outcome = Outcome {
            jobs: summary(&first, Arm::Treatment),
            control: summary(&first, Arm::Control),
            blocks: accepted.run,
            blocks_quiet: accepted.n(),
            colors: if own { colors.to_vec() } else { Vec::new() },
            high_water_mark: HighWaterMark::of(&cycles).unwrap_or(HighWaterMark { value: 0, n: 0, last_rose_at: 0 }),
            ccdf: ccdf.into_iter().map(|(cycles, share)| (Cycles(cycles), share)).collect(),
            steal_ns: Ns(first.blocks.iter().map(|block| block.steal_ns).sum()),
            effect_cycles: accepted.effect(|job| job[0]),
        };
        (condition, outcome)
    };
    (of_size.iter().map(outcome).collect(), gain)
}

fn summary(accepted: &Accepted<'_, At>, arm: Arm) -> JobSummary {
    let sorted = Sorted::of(accepted.values(arm, |job| job[0]).into_iter().map(|it| it as u64));
    let n = sorted.as_ref().map_or(0, Sorted::n);
    let at = |q: f64| Cycles(sorted.as_ref().map_or(0, |s| s.quantile(q)));
    // There is a median only if every job was measured.
    let median_of = |column: usize| {
        let values = accepted.values(arm, |job| job[column]);
        median(&values).filter(|_| values.len() as u64 == n)
    };
    JobSummary {
        n,
        cycles_min: at(0.0),
        cycles_median: at(0.5),
        cycles_p99: at(0.99),
        cycles_p999: at(0.999),
        cycles_max: at(1.0),
        l2_misses_median: median_of(1),
        l1_misses_median: median_of(2),
        lost_median: median_of(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Sample;

    /// Returns a block of jobs after a flood and of controls, each with its cycles. `lost` is the share of canary lines that every job has lost.
    fn block(condition: Condition, flooded: &[u64], control: &[u64], lost: f64) -> Block<At> {
        let job = |arm, cycles: &u64| Sample { arm, values: vec![*cycles as f64, f64::NAN, f64::NAN, lost] };
        let samples =
            flooded.iter().map(|it| job(Arm::Treatment, it)).chain(control.iter().map(|it| job(Arm::Control, it)));
        let condition = At { bench: Bench::Filter, size: 64, condition };
        Block { condition, steal_ns: 0, elapsed_ns: 1, samples: samples.collect() }
    }

    fn concluded(blocks: &[Block<At>]) -> BTreeMap<Condition, Outcome> {
        conclude(blocks, Bench::Filter, 64, &[Color(0)]).0
    }

    #[test]
    fn only_accepted_blocks_count_and_equally_many_of_each_condition() {
        use Condition::{Partitioned, Unpartitioned};
        let blocks = [
            block(Unpartitioned, &[300, 310], &[100, 101], 0.0),
            block(Unpartitioned, &[900, 910], &[200, 210], 0.0), // disturbed: its control is twice as slow
            block(Unpartitioned, &[305, 320], &[104, 105], 0.0),
            block(Partitioned, &[110, 111], &[105, 105], 0.0),
            block(Partitioned, &[120, 500], &[150, 150], 0.0), // disturbed
        ];
        let outcomes = concluded(&blocks);
        let (unpartitioned, partitioned) = (&outcomes[&Unpartitioned], &outcomes[&Partitioned]);
        assert_eq!((unpartitioned.blocks, unpartitioned.blocks_quiet), (3, 2));
        assert_eq!((partitioned.blocks, partitioned.blocks_quiet), (2, 1));
        // The partitioned condition has one accepted block, so only the first accepted block of the other condition counts.
        assert_eq!((partitioned.jobs.n, unpartitioned.jobs.n), (2, 2));
        assert_eq!((unpartitioned.jobs.cycles_max, partitioned.jobs.cycles_max), (Cycles(310), Cycles(111)));
        assert_eq!(partitioned.high_water_mark, HighWaterMark { value: 111, n: 2, last_rose_at: 2 });
        assert_eq!((partitioned.colors.len(), unpartitioned.colors.len()), (1, 0));
        // Blocks are compared with the control that does not decide. The effects are 305 - 101 = 204 and 312.5 - 105 = 207.5, whose median is
        // 205.75. The gain is 204 minus the partitioned effect, 110.5 - 105.
        assert_eq!(unpartitioned.effect_cycles.unwrap().estimate, 205.75);
        assert_eq!(conclude(&blocks, Bench::Filter, 64, &[]).1.unwrap().estimate, 204.0 - 5.5);
    }

    #[test]
    fn misses_are_absent_unless_every_job_was_counted() {
        let mut one = block(Condition::Alone, &[10, 11, 12], &[10, 10, 10], 0.0);
        for (job, misses) in one.samples.iter_mut().zip([5.0, 7.0, 9.0]) {
            job.values[1] = misses;
        }
        assert_eq!(concluded(std::slice::from_ref(&one))[&Condition::Alone].jobs.l2_misses_median, Some(7.0));
        one.samples[1].values[1] = f64::NAN;
        assert_eq!(concluded(&[one])[&Condition::Alone].jobs.l2_misses_median, None);
    }

    #[test]
    fn a_block_whose_control_lost_its_canary_lines_or_has_none_does_not_count() {
        for (lost, accepted) in [(0.09, 1), (0.5, 0), (f64::NAN, 0)] {
            let outcomes = concluded(&[block(Condition::Alone, &[110, 111], &[100, 101], lost)]);
            assert_eq!(outcomes[&Condition::Alone].blocks_quiet, accepted, "{lost}");
        }
        assert!(concluded(&[]).is_empty());
    }
}
