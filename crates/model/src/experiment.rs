//! From raw jobs to the outcome of each condition.
//!
//! Jobs run in blocks. In a block a job that follows the co-runner's work and a job that follows mere spinning for the same
//! time take turns at random, so that whatever else disturbs the machine disturbs both; and only blocks count whose
//! spinning half, the control, was quiet.

use std::collections::BTreeMap;

use crate::evidence::{Condition, JobSummary, Outcome};
use crate::stats::{HighWaterMark, Sorted, median, quiet_blocks};
use crate::units::{Color, Cycles, Ns};

/// One job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// How long it took.
    pub cycles: Cycles,
    /// Level-2 demand misses, where counted.
    pub l2_misses: Option<u64>,
    /// Level-1 data misses, where counted.
    pub l1_misses: Option<u64>,
    /// Share (0 to 1) of the lines of a few witness pages, in the same colors as the task's, that were gone from the cache when
    /// the job began; by time, so that it needs no counters.
    pub lost: Option<f64>,
}

/// Jobs that ran together on the same pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Condition.
    pub condition: Condition,
    /// Jobs that followed the co-runner's work, in the order run.
    pub jobs: Vec<Job>,
    /// Jobs that followed spinning, in the order run.
    pub control: Vec<Job>,
    /// Colors of the task's memory; empty for ordinary memory.
    pub colors: Vec<Color>,
    /// Time the host withheld the CPU meanwhile.
    pub steal_ns: Ns,
}

/// A control is quiet up to this share above the quietest of its condition.
pub const QUIET_TOLERANCE: f64 = 0.10;

/// And up to this share of its witness pages lost while nothing but spinning went on.
pub const QUIET_LOST: f64 = 0.10;

/// Points kept of a distribution for drawing.
const CCDF_POINTS: usize = 64;

/// Outcome of each condition that has blocks, over quiet blocks only and the same number of them for each condition.
///
/// A condition without a quiet block has an outcome with `n` = 0. All blocks must hold the same number of jobs.
pub fn conclude(blocks: &[Block]) -> BTreeMap<Condition, Outcome> {
    let mut by_condition = BTreeMap::<Condition, Vec<&Block>>::new();
    for block in blocks {
        by_condition.entry(block.condition).or_default().push(block);
    }
    // Of a condition without undisturbed blocks nothing is left, and nothing is concluded.
    let undisturbed: BTreeMap<Condition, Vec<&Block>> = by_condition
        .iter()
        .map(|(condition, blocks)| (*condition, blocks.iter().copied().filter(|b| kept_its_cache(b)).collect()))
        .collect();
    let control_medians: Vec<Vec<u64>> =
        undisturbed.values().map(|blocks| blocks.iter().map(|b| median_cycles(&b.control)).collect()).collect();
    let quiet = quiet_blocks(&control_medians, QUIET_TOLERANCE);
    by_condition
        .into_iter()
        .zip(undisturbed.values().zip(quiet.kept.iter().zip(&quiet.quiet_n)))
        .map(|((condition, blocks), (undisturbed, (kept, quiet_n)))| {
            let kept: Vec<&Block> = kept.iter().map(|i| undisturbed[*i]).collect();
            (condition, outcome(&kept, blocks.len() as u64, *quiet_n as u64))
        })
        .collect()
}

/// The smallest number of quiet blocks of any condition, and of none where a condition has no block at all.
pub fn quiet_blocks_at_least(outcomes: &BTreeMap<Condition, Outcome>) -> u64 {
    outcomes.values().map(|outcome| outcome.blocks_quiet).min().unwrap_or(0)
}

/// Whether the cache kept its contents while the control did nothing: what the control's execution times may be too coarse to
/// show, since a core fetches ahead what is read in order.
fn kept_its_cache(block: &Block) -> bool {
    median_lost(&block.control).is_none_or(|lost| lost <= QUIET_LOST)
}

fn median_lost(jobs: &[Job]) -> Option<f64> {
    let lost: Option<Vec<f64>> = jobs.iter().map(|job| job.lost).collect();
    median(&lost?)
}

fn median_cycles(jobs: &[Job]) -> u64 {
    Sorted::of(jobs.iter().map(|job| job.cycles.0)).map_or(u64::MAX, |sorted| sorted.median())
}

fn outcome(kept: &[&Block], blocks: u64, blocks_quiet: u64) -> Outcome {
    let jobs: Vec<Job> = kept.iter().flat_map(|block| &block.jobs).copied().collect();
    let control: Vec<Job> = kept.iter().flat_map(|block| &block.control).copied().collect();
    let cycles: Vec<u64> = jobs.iter().map(|job| job.cycles.0).collect();
    let ccdf = Sorted::of(cycles.iter().copied()).map_or_else(Vec::new, |sorted| sorted.ccdf(CCDF_POINTS));
    Outcome {
        jobs: summary(&jobs),
        control: summary(&control),
        blocks,
        blocks_quiet,
        colors: kept.first().map_or_else(Vec::new, |block| block.colors.clone()),
        high_water_mark: HighWaterMark::of(&cycles).unwrap_or(HighWaterMark { value: 0, n: 0, last_rose_at: 0 }),
        ccdf: ccdf.into_iter().map(|(cycles, share)| (Cycles(cycles), share)).collect(),
        steal_ns: Ns(kept.iter().map(|block| block.steal_ns.0).sum()),
    }
}

fn summary(jobs: &[Job]) -> JobSummary {
    let sorted = Sorted::of(jobs.iter().map(|job| job.cycles.0));
    let at = |q: f64| Cycles(sorted.as_ref().map_or(0, |s| s.quantile(q)));
    let median_of = |misses: fn(&Job) -> Option<u64>| {
        let counted: Option<Vec<u64>> = jobs.iter().map(misses).collect();
        counted.and_then(Sorted::of).map(|sorted| sorted.median() as f64)
    };
    JobSummary {
        n: jobs.len() as u64,
        cycles_min: at(0.0),
        cycles_median: at(0.5),
        cycles_p99: at(0.99),
        cycles_p999: at(0.999),
        cycles_max: at(1.0),
        l2_misses_median: median_of(|job| job.l2_misses),
        l1_misses_median: median_of(|job| job.l1_misses),
        lost_median: median_lost(jobs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(cycles: &[u64]) -> Vec<Job> {
        cycles.iter().map(|c| Job { cycles: Cycles(*c), l2_misses: None, l1_misses: None, lost: None }).collect()
    }

    fn block(condition: Condition, flooded: &[u64], control: &[u64]) -> Block {
        Block { condition, jobs: jobs(flooded), control: jobs(control), colors: vec![], steal_ns: Ns(0) }
    }

    #[test]
    fn only_quiet_blocks_count_and_equally_many_of_each_condition() {
        use Condition::{Partitioned, Unpartitioned};
        let blocks = [
            block(Unpartitioned, &[300, 310], &[100, 101]),
            block(Unpartitioned, &[900, 910], &[200, 210]), // disturbed: its control is twice the quietest
            block(Unpartitioned, &[305, 320], &[104, 105]),
            block(Partitioned, &[110, 111], &[105, 105]),
            block(Partitioned, &[120, 500], &[150, 150]), // disturbed
        ];
        let outcomes = conclude(&blocks);
        let (unpartitioned, partitioned) = (&outcomes[&Unpartitioned], &outcomes[&Partitioned]);
        assert_eq!((unpartitioned.blocks, unpartitioned.blocks_quiet), (3, 2));
        assert_eq!((partitioned.blocks, partitioned.blocks_quiet), (2, 1));
        // One quiet block is what the partitioned condition has; the quietest of the other stands beside it.
        assert_eq!(partitioned.jobs.n, 2);
        assert_eq!(unpartitioned.jobs.n, 2);
        assert_eq!(unpartitioned.jobs.cycles_max, Cycles(310));
        assert_eq!(partitioned.jobs.cycles_max, Cycles(111));
        assert_eq!(partitioned.high_water_mark, HighWaterMark { value: 111, n: 2, last_rose_at: 2 });
    }

    #[test]
    fn misses_are_absent_unless_every_job_was_counted() {
        let mut one = block(Condition::Alone, &[10, 11, 12], &[10, 10, 10]);
        for (job, misses) in one.jobs.iter_mut().zip([5, 7, 9]) {
            job.l2_misses = Some(misses);
        }
        assert_eq!(conclude(std::slice::from_ref(&one))[&Condition::Alone].jobs.l2_misses_median, Some(7.0));
        one.jobs[1].l2_misses = None;
        assert_eq!(conclude(&[one])[&Condition::Alone].jobs.l2_misses_median, None);
    }

    #[test]
    fn a_block_whose_control_lost_its_cache_is_not_quiet() {
        let mut disturbed = block(Condition::Partitioned, &[110, 111], &[100, 101]);
        for (job, lost) in disturbed.control.iter_mut().zip([0.9, 0.02]) {
            job.lost = Some(lost);
        }
        let mut quiet = disturbed.clone();
        quiet.control[0].lost = Some(0.04);
        // Nearest-rank medians: 0.02 of (0.9, 0.02) is quiet, so the first is made worse.
        disturbed.control[1].lost = Some(0.5);
        let outcomes = conclude(&[disturbed, quiet]);
        assert_eq!((outcomes[&Condition::Partitioned].blocks, outcomes[&Condition::Partitioned].blocks_quiet), (2, 1));
        assert_eq!(outcomes[&Condition::Partitioned].control.lost_median, Some(0.02));
    }

    #[test]
    fn no_blocks_are_no_outcome() {
        assert!(conclude(&[]).is_empty());
    }
}
