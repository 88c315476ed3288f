//! Profiling runs, and what those of one number of partitions show together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{HighWaterMark, Sorted, exceedance_with_unknown};

/// Confidence level of the statement on how often jobs exceed a high-water mark.
pub const CONFIDENCE: f64 = 0.95;

/// Share of the jobs with steal time above which nothing is said about exceeding a high-water mark.
pub const CENSORED_MAX: f64 = 0.05;

/// All profiling runs of a task on one number of partitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Partitions.
    pub partitions: u32,
    /// The profiling runs, in the order in which they were made.
    #[serde(alias = "visits")]
    pub runs: Vec<ProfilingRun>,
}

/// A profiling run: some jobs of one task on one number of partitions. Times are execution times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProfilingRun {
    /// Jobs whose execution time is known.
    pub jobs: u64,
    /// Their times together.
    pub sum_ns: u64,
    /// The median.
    pub median_ns: u64,
    /// The longest, those with steal time included: they executed at least as long.
    pub longest: HighWaterMark,
    /// Longest time from release to completion in which it did not execute.
    pub waiting_ns: u64,
    /// Jobs with steal time while they executed. How long they executed is known to be at least what was accounted to them (they are censored),
    /// so they count for the longest alone.
    #[serde(default, alias = "stolen")]
    pub jobs_with_steal: u64,
    /// Cache misses of all jobs together, where they could be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Cycles per instruction, where they could be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_per_instruction: Option<f64>,
}

/// The execution of a job in a profiling run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// Time accounted to it, in ns: how long it executed at least.
    pub time_ns: u64,
    /// Whether the hypervisor took the CPU meanwhile, so that it may have executed longer.
    pub is_censored: bool,
    /// Time from its release to its completion in which it did not execute, where nothing else explains that.
    pub waiting_ns: u64,
    /// Its misses, where they were counted.
    pub misses: Option<u64>,
}

impl ProfilingRun {
    /// The profiling run of these jobs, in order; `None` where the execution time of none is known.
    pub fn of(jobs: &[Execution]) -> Option<ProfilingRun> {
        let known = || jobs.iter().filter(|job| !job.is_censored);
        let median_ns = Sorted::of(known().map(|job| job.time_ns))?.median();
        let all: Vec<u64> = jobs.iter().map(|job| job.time_ns).collect();
        Some(ProfilingRun {
            jobs: known().count() as u64,
            sum_ns: known().map(|job| job.time_ns).sum(),
            median_ns,
            longest: HighWaterMark::of(&all)?,
            waiting_ns: jobs.iter().map(|job| job.waiting_ns).max().unwrap_or(0),
            jobs_with_steal: jobs.iter().filter(|job| job.is_censored).count() as u64,
            // They are those of all jobs or of none.
            misses: known().map(|job| job.misses).sum(),
            cycles_per_instruction: None,
        })
    }
}

impl Point {
    /// Jobs of all profiling runs whose execution time is known.
    pub fn jobs(&self) -> u64 {
        self.runs.iter().map(|run| run.jobs).sum()
    }

    /// Mean execution time in ns; 0 for no jobs.
    pub fn average_ns(&self) -> f64 {
        let sum: u64 = self.runs.iter().map(|run| run.sum_ns).sum();
        sum as f64 / self.jobs().max(1) as f64
    }

    /// The longest time seen; an observation, not a bound.
    pub fn high_water_ns(&self) -> u64 {
        self.runs.iter().map(|run| run.longest.value).max().unwrap_or(0)
    }

    /// The lowest median of all profiling runs, because disturbances only add.
    pub fn typical_ns(&self) -> u64 {
        self.runs.iter().map(|run| run.median_ns).min().unwrap_or(0)
    }

    /// Misses per job. `None` if they were not counted in every profiling run.
    pub fn misses(&self) -> Option<f64> {
        let sum: Option<u64> = self.runs.iter().map(|run| run.misses).sum();
        sum.filter(|_| self.jobs() > 0).map(|misses| misses as f64 / self.jobs() as f64)
    }

    /// How often a further job may exceed the high-water mark, at most, with [`CONFIDENCE`]. `None` where more than [`CENSORED_MAX`] of the jobs
    /// had steal time: nothing is said then.
    ///
    /// Long jobs are hit more often than short ones, so that what is known of the others says nothing of them. Each of those that were hit may
    /// have exceeded the mark ([`exceedance_with_unknown`]).
    pub fn exceedance(&self) -> Option<f64> {
        let censored: u64 = self.runs.iter().map(|run| run.jobs_with_steal).sum();
        let all = self.jobs() + censored;
        let few = censored as f64 <= CENSORED_MAX * all as f64;
        few.then(|| exceedance_with_unknown(all, censored, CONFIDENCE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::proportion_interval;

    /// A point of `n` jobs of 100 ns and, one of a hundred, of 1000 ns, of which the hypervisor hits one of ten thousand and `hit` of those of
    /// the long mode. A job that is hit is accounted for a part of its time, or, if `exact`, for all of it.
    fn campaign(n: usize, hit: f64, exact: bool, seed: u64) -> Point {
        let mut rng = fastrand::Rng::with_seed(seed);
        let job = |_| {
            let is_long = rng.f64() < 0.01;
            let (time, hit) = if is_long { (1000, hit) } else { (100, 0.0001) };
            let is_censored = rng.f64() < hit;
            let part = if is_censored && !exact { rng.f64() } else { 1.0 };
            Execution { time_ns: (time as f64 * part) as u64, is_censored, ..Execution::default() }
        };
        let jobs: Vec<Execution> = (0..n).map(job).collect();
        Point { partitions: 1, runs: ProfilingRun::of(&jobs).into_iter().collect() }
    }

    #[test]
    fn a_rare_long_mode_is_missed_in_5_percent_of_the_campaigns_at_most_however_often_it_is_hit() {
        const CAMPAIGNS: u64 = 2000;
        // Missed: less than one of a hundred jobs is said to exceed what is longest, which is not the long mode.
        for (group, (n, hit, exact)) in
            [(299, 0.0, false), (299, 0.5, false), (299, 0.9, false), (2995, 0.9, false), (299, 0.9, true)]
                .into_iter()
                .enumerate()
        {
            let points: Vec<Point> =
                (0..CAMPAIGNS).map(|seed| campaign(n, hit, exact, group as u64 * 1_000_000 + seed)).collect();
            let short = |point: &Point| point.high_water_ns() < 900;
            let missed = |point: &&Point| short(point) && point.exceedance().is_some_and(|claimed| claimed <= 0.01);
            let missed = points.iter().filter(missed).count() as u64;
            // As it was: jobs with steal time do not count.
            let dropped = |point: &&Point| !point.runs.iter().any(|run| run.sum_ns > 100 * run.jobs);
            let before = points.iter().filter(dropped).count();
            let (low, _) = proportion_interval(missed, CAMPAIGNS);
            println!("{n} jobs, {hit} hit, exact {exact}: missed {missed}, without those hit {before} of {CAMPAIGNS}");
            assert!(low <= 0.05, "{missed} of {CAMPAIGNS}");
        }
    }

    #[test]
    fn a_few_jobs_with_steal_time_weaken_the_claim_and_many_refuse_it() {
        let point = |censored: usize| {
            let job = |at: usize| Execution { time_ns: 100, is_censored: at < censored, ..Execution::default() };
            Point {
                partitions: 1,
                runs: ProfilingRun::of(&(0..300).map(job).collect::<Vec<_>>()).into_iter().collect(),
            }
        };
        assert!(point(0).exceedance().is_some_and(|claimed| claimed <= 0.01));
        assert!(point(1).exceedance().is_some_and(|claimed| (0.015..0.016).contains(&claimed)));
        assert!(point(15).exceedance().is_some_and(|claimed| claimed < 0.08));
        assert_eq!(point(16).exceedance(), None);
    }
}
