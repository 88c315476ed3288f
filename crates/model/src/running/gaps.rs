//! Gaps that nobody reports: times in which a CPU did nothing although the kernel accounted them to the thread that had it.
//!
//! A hypervisor that takes a CPU without counting this as steal time causes such gaps, and so does firmware. A job that meets one seems to
//! execute for longer. Its record is that of an overrun, so no job can be excused by itself. But gaps meet whatever has the CPU. After a run
//! with such jobs, the clock is therefore watched on the CPUs of the tasks, and two rates are compared: of k jobs that would have needed gaps
//! of a length in the time E(j) that jobs took, and of w gaps of this length in the time E(w) of watching. If both rates are equal, each of the
//! k + w gaps lies in a job with the probability E(j) / (E(j) + E(w)), so the number of those that do has a binomial distribution.
//! [PrzyborowskiWilenski1940]
//!
//! If so many jobs are improbable then, they are the task's own. Otherwise they are no reason to accuse the task, and none to trust it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

use super::observed::Spread;
use super::{Limit, Run, TaskOutcome};
use crate::units::{CpuId, Ns};

/// Largest probability that a task which does nothing wrong is accused because of gaps, for each of its limits.
pub const ACCUSED_WRONGLY: f64 = 0.01;

/// Number of gaps of about the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GapCount {
    /// Shortest length that counts here; the next count begins at most 1/64 above.
    pub least: Ns,
    /// Number of gaps.
    pub count: u64,
}

/// The gaps of a CPU that nobody reports, as a thread saw them that only watched the clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnreportedGaps {
    /// The CPU.
    pub cpu: CpuId,
    /// Time for which the clock was watched.
    pub watched: Ns,
    /// Shortest time between two readings that is a gap.
    pub threshold: Ns,
    /// The gaps, ascending by length.
    pub gaps: Vec<GapCount>,
}

impl UnreportedGaps {
    /// Sums up gaps of these lengths.
    pub fn of(cpu: CpuId, watched: Ns, threshold: Ns, lengths: &[Ns]) -> UnreportedGaps {
        let mut spread = Spread::default();
        lengths.iter().for_each(|length| spread.push(length.0));
        UnreportedGaps { cpu, watched, threshold, gaps: spread.counts() }
    }

    /// Returns the number of gaps that last for about `length` or longer.
    fn at_least(&self, length: Ns) -> u64 {
        counted_from(&self.gaps, length)
    }
}

/// Returns the number of gaps whose count begins at `length` or above.
fn counted_from(gaps: &[GapCount], length: Ns) -> u64 {
    gaps.iter().filter(|gap| gap.least >= length).map(|gap| gap.count).sum()
}

fn octave(gap: GapCount) -> u32 {
    gap.least.0.max(1).ilog2()
}

/// Comparison of the jobs of a task that exceed a limit with the gaps of its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GapComparison {
    /// Shortest gap that one of the jobs would have needed.
    pub needed: Ns,
    /// Number of gaps of this length or longer that were seen.
    pub seen: u64,
    /// Time for which the clock was watched.
    pub watched: Ns,
    /// Probability of so many jobs if gaps meet jobs as often, per time, as the watching thread: the smallest one for the shortest
    /// length needed in each octave, times the number of these lengths.
    pub p: f64,
}

impl Run {
    /// Compares the jobs of `task` that exceed `limit` without an excuse with the gaps of its CPU. `None` if the gaps do not account for the
    /// jobs: no gap was watched for or seen, there are more such jobs than is probable, or no gap was half as long as one of them would have
    /// needed.
    pub(super) fn met_by_gaps(&self, task: &TaskOutcome, limit: Limit) -> Option<GapComparison> {
        let gaps = self.gaps.iter().find(|gaps| Some(gaps.cpu) == task.cpu)?;
        let (needed, observed) = match limit {
            Limit::Bound => (&task.bound_violations.needed, task.response?),
            Limit::Deadline => (&task.deadline_violations.needed, task.response?),
            Limit::Budget => (&task.budget_violations.needed, task.execution?),
        };
        let (shortest, longest) = (needed.first()?, needed.last()?);
        if gaps.at_least(Ns(longest.least.0 / 2)) == 0 {
            return None;
        }
        let exposed = observed.mean_ns * task.jobs as f64;
        let share = exposed / (exposed + gaps.watched.0 as f64);
        let improbable = |length: Ns| {
            let jobs = counted_from(needed, length);
            let all = Binomial::new(share, jobs + gaps.at_least(length));
            all.map_or(0.0, |all| all.sf(jobs.saturating_sub(1)))
        };
        // The jobs of an overrun need much the same. So the shortest length of each octave is enough, and few tests are corrected for.
        let octaves: Vec<Ns> = needed.chunk_by(|a, b| octave(*a) == octave(*b)).map(|of| of[0].least).collect();
        let smallest = octaves.iter().map(|length| improbable(*length)).fold(1.0, f64::min);
        let p = (smallest * octaves.len() as f64).min(1.0);
        (p >= ACCUSED_WRONGLY).then(|| GapComparison {
            needed: shortest.least,
            seen: gaps.at_least(shortest.least),
            watched: gaps.watched,
            p,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::fixture::{good, job, run};
    use crate::running::{Conclusion, Reason};

    /// A run of `n` jobs of 200 ns, of which each of `overruns` executes for 400 ns although its budget is 300 ns.
    fn overrun(n: u64, overruns: u64) -> Run {
        let mut jobs = good(n - overruns);
        jobs.extend((n - overruns..n).map(|instance| job(instance, 450, 400, 0)));
        let mut run = run(&jobs);
        run.tasks[0].cpu = Some(CpuId(1));
        run
    }

    fn seen(watched: u64, lengths: &[u64]) -> Vec<UnreportedGaps> {
        let lengths: Vec<Ns> = lengths.iter().map(|length| Ns(*length)).collect();
        vec![UnreportedGaps::of(CpuId(1), Ns(watched), Ns(5), &lengths)]
    }

    #[test]
    fn a_job_over_its_budget_is_violated_unless_its_cpu_has_such_gaps() {
        let mut run = overrun(1000, 1);
        for (gaps, conclusion) in [
            (Vec::new(), Conclusion::Violated),
            // The jobs execute for 200 us in all. One of so many gaps may well meet them.
            (seen(1_000_000, &[100, 120]), Conclusion::Inconclusive),
            // No gap was half as long as the 100 that the job would have needed.
            (seen(1_000_000, &[49; 50]), Conclusion::Violated),
            (seen(1_000_000, &[50]), Conclusion::Inconclusive),
            // One gap in a thousand times the time: that the other one meets a job has a probability of 0.002 * 2.
            (seen(200_000_000, &[100]), Conclusion::Violated),
            (seen(1_000_000, &[]), Conclusion::Violated),
        ] {
            run.gaps = gaps;
            assert_eq!(run.conclusion().0, conclusion, "{:?}", run.gaps);
        }
        run.gaps = seen(1_000_000, &[100, 120]);
        let (_, reasons) = run.conclusion();
        let Reason::Gaps { limit: Limit::Budget, jobs: 1, of: 1000, compared, .. } = &reasons[0] else {
            panic!("{reasons:?}")
        };
        // P(K >= 1) of 3 gaps, each in a job with a probability of 0.2 / 1.2 (and 100 ns more for the one that is longer).
        assert!((compared.p - (1.0 - (1.0f64 - 0.16673).powi(3))).abs() < 1e-3, "{compared:?}");
        assert_eq!((compared.needed, compared.seen), (Ns(100), 2));
        run.tasks[0].cpu = Some(CpuId(0));
        assert_eq!(run.conclusion().0, Conclusion::Violated, "the gaps are those of another CPU");
    }

    #[test]
    fn more_jobs_than_gaps_account_for_are_violations() {
        let mut run = overrun(20_000, 20);
        // The jobs execute for 4 ms. With 8 gaps in 10 ms, 20 in 4 ms are improbable; with 80, they are not.
        run.gaps = seen(10_000_000, &[150; 8]);
        assert_eq!(run.conclusion().0, Conclusion::Violated);
        run.gaps = seen(10_000_000, &[150; 80]);
        assert_eq!(run.conclusion().0, Conclusion::Inconclusive);
    }

    #[test]
    fn many_short_gaps_are_no_excuse_for_a_few_long_ones() {
        let mut run = overrun(20_000, 20);
        // A hundred gaps are as long as half of the 100 ns that each job would have needed, but only one is as long.
        run.gaps = seen(10_000_000, &[[60; 100].as_slice(), &[100]].concat());
        assert_eq!(run.conclusion().0, Conclusion::Violated);
    }

    /// Whether a simulated run is accused in which gaps meet jobs and the watching thread alike, `rate` of them in 10 ms, and in which so
    /// many jobs take twice as long on top of that.
    fn is_accused(rate: f64, overruns: usize, rng: &mut fastrand::Rng) -> bool {
        let count = |mean: f64, rng: &mut fastrand::Rng| {
            let (limit, mut product, mut count) = ((-mean).exp(), rng.f64(), 0);
            while product > limit {
                (product, count) = (product * rng.f64(), count + 1);
            }
            count
        };
        // Gaps of 60 to 460 ns come at random in the 4 ms of jobs and the 30 ms of watching. A gap of more than 100 ns makes a job exceed its
        // budget, by 100 ns less.
        let mut lengths = |mean| -> Vec<u64> { (0..count(mean, rng)).map(|_| rng.u64(60..460)).collect() };
        let (mut late, watched) = (lengths(rate * 0.4), lengths(rate * 3.0));
        late.extend(std::iter::repeat_n(200, overruns));
        let first = 20_000 - late.len() as u64;
        let mut jobs = good(first);
        jobs.extend((first..).zip(&late).map(|(instance, more)| job(instance, 450, 200 + more, 0)));
        let mut run = run(&jobs);
        (run.tasks[0].cpu, run.gaps) = (Some(CpuId(1)), seen(30_000_000, &watched));
        run.conclusion().0 == Conclusion::Violated
    }

    #[test]
    fn tasks_are_seldom_accused_of_gaps_that_meet_everybody_and_overruns_are_found_unless_gaps_are_frequent() {
        let mut rng = fastrand::Rng::with_seed(18);
        let mut accused = |rate, overruns| (0..1000).filter(|_| is_accused(rate, overruns, &mut rng)).count();
        let rates = [0.2, 1.0, 5.0, 30.0];
        let rows = rates.map(|rate| (rate, [0, 4, 20].map(|overruns| accused(rate, overruns))));
        println!("gaps per 10 ms, and of 1000 runs accused with 0, 4, 20 overruns: {rows:?}");
        for (rate, [good, _, twenty]) in rows {
            // Where gaps are so rare that none may have been seen, a job that meets one is accused.
            assert!(good <= if rate < 5.0 { 60 } else { 15 } && twenty >= 950, "{rows:?}");
        }
    }
}
