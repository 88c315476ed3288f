//! Profiling runs, and statistics over all runs on one number of partitions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{HighWaterMark, Sorted, exceedance_with_unknown};

/// Confidence level of the claim on how often jobs exceed a high-water mark.
pub const CONFIDENCE: f64 = 0.95;

/// Largest share of jobs with steal time for which a claim is made on how often jobs exceed a high-water mark.
pub const CENSORED_MAX: f64 = 0.05;

/// All profiling runs of a task on one number of partitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Number of partitions.
    pub partitions: u32,
    /// The profiling runs, in the order in which they were made.
    #[serde(alias = "visits")]
    pub runs: Vec<ProfilingRun>,
}

/// A profiling run: some jobs of one task on one number of partitions. Times are execution times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProfilingRun {
    /// Number of jobs whose execution time is known.
    pub jobs: u64,
    /// Sum of the known execution times, in ns.
    pub sum_ns: u64,
    /// Median of the known execution times, in ns.
    pub median_ns: u64,
    /// Longest execution time, in ns. Jobs with steal time are included, because they executed at least as long as accounted.
    pub longest: HighWaterMark,
    /// Longest time from release to completion in which a job did not execute, in ns.
    pub waiting_ns: u64,
    /// Number of jobs with steal time while they executed. These jobs are censored: they executed at least as long as was accounted to
    /// them. So they count for `longest`, and for no other execution time.
    #[serde(default, alias = "stolen")]
    pub jobs_with_steal: u64,
    /// Sum of the cache misses of the jobs whose execution time is known; `None` if they could not be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Cycles per instruction; `None` if they could not be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_per_instruction: Option<f64>,
}

/// The execution of a job in a profiling run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// Time accounted to the job, in ns. The job executed at least this long.
    pub time_ns: u64,
    /// Whether the hypervisor took the CPU during the execution, so that the job may have executed longer.
    pub is_censored: bool,
    /// Time from release to completion in which the job did not execute, in ns; 0 if something else explains this time.
    pub waiting_ns: u64,
    /// Misses of the job; `None` if they were not counted.
    pub misses: Option<u64>,
}

impl ProfilingRun {
    /// Returns the profiling run of these jobs, in order; `None` if the execution time of no job is known.
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
            // The sum is `None` unless the misses of all these jobs were counted.
            misses: known().map(|job| job.misses).sum(),
            cycles_per_instruction: None,
        })
    }
}

impl Point {
    /// Returns the number of jobs of all profiling runs whose execution time is known.
    pub fn jobs(&self) -> u64 {
        self.runs.iter().map(|run| run.jobs).sum()
    }

    /// Returns the mean execution time in ns; 0 for no jobs.
    pub fn average_ns(&self) -> f64 {
        let sum: u64 = self.runs.iter().map(|run| run.sum_ns).sum();
        sum as f64 / self.jobs().max(1) as f64
    }

    /// Returns the longest execution time seen, in ns. This is an observation, not a bound.
    pub fn high_water_ns(&self) -> u64 {
        self.runs.iter().map(|run| run.longest.value).max().unwrap_or(0)
    }

    /// Returns the lowest median of all profiling runs, in ns. The lowest is typical, because disturbances only add time.
    pub fn typical_ns(&self) -> u64 {
        self.runs.iter().map(|run| run.median_ns).min().unwrap_or(0)
    }

    /// Returns the misses per job; `None` if they were not counted in every profiling run, or without jobs.
    pub fn misses(&self) -> Option<f64> {
        let sum: Option<u64> = self.runs.iter().map(|run| run.misses).sum();
        sum.filter(|_| self.jobs() > 0).map(|misses| misses as f64 / self.jobs() as f64)
    }

    /// Returns an upper limit, with [`CONFIDENCE`], on the probability that a further job exceeds the high-water mark; `None` if more than
    /// [`CENSORED_MAX`] of the jobs had steal time.
    ///
    /// Steal time hits long jobs more often than short ones. So the jobs without steal time show nothing about the others, each of which
    /// may have exceeded the mark ([`exceedance_with_unknown`]).
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

    /// Returns a point of `n` jobs. One job of a hundred takes 1000 ns (the long mode), the others take 100 ns. The hypervisor hits a share
    /// `hit` of the jobs of the long mode, and one of ten thousand others. A job that is hit is accounted for a part of its time, or, if
    /// `exact`, for all of it.
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
        // A campaign misses the long mode if it saw no job of that mode, but claims that at most one of a hundred jobs exceeds the longest
        // job.
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
            // For comparison: campaigns that see no job of the long mode without steal time.
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
