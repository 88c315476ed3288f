//! Gaps that nobody reports: times in which a CPU did nothing although the kernel accounted them to the thread that had it.
//!
//! A hypervisor that takes a CPU without counting this as steal time causes such gaps, and so does firmware. A job that meets one seems to
//! execute for longer. Its record is that of an overrun, so no job can be excused by itself. But gaps meet whatever has the CPU. After a run
//! with such jobs, the clock is therefore watched on the CPUs of the tasks, and the run is compared with the watch.
//!
//! Gaps come in bursts: on a shared host the variance of their number in a second was 5 to 7 times its mean, which are equal for independent
//! events. So the unit of the comparison is an interval of up to a second, of which the run has N and the watch M. K intervals of the run have
//! jobs that would have needed a gap of a given length. Interval i of the watch has g(i) gaps of this length, alone or with those that follow
//! while a job is under way; jobs that have the CPU for a share u of the time would have met one of them with the probability
//! 1 - (1 - u)^g(i). W is the number of intervals in which they would have, a sum of so many independent events. If gaps account for the jobs,
//! each of the K + W intervals lies in the run with the probability N / (N + M), so K has a binomial distribution for each value of W.
//! [PrzyborowskiWilenski1940] The tail probabilities are averaged over W, and twice the average of p-values is a p-value. [VovkWang2020]
//!
//! If so many intervals are improbable then, the jobs are the task's own. Otherwise they are no reason to accuse the task, and none to trust
//! it. All this supposes that as much is withheld during the watch as during the run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

use super::observed::Spread;
use super::{Limit, Run, TaskOutcome};
use crate::units::{CpuId, Ns};

/// Largest probability that a task which does nothing wrong is accused because of gaps, for each of its limits.
pub const ACCUSED_WRONGLY: f64 = 0.01;

/// Shortest and longest interval. In between, a run has ten.
const INTERVAL: [Ns; 2] = [Ns(50_000_000), Ns(1_000_000_000)];

/// Returns the length of the intervals in which gaps are counted after a run for `duration`.
pub fn gap_interval(duration: Ns) -> Ns {
    Ns(duration.0 / 10).clamp(INTERVAL[0], INTERVAL[1])
}

fn longest_interval() -> Ns {
    INTERVAL[1]
}

/// Number of gaps of about the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GapCount {
    /// Shortest length that counts here; the longest is at most 1/64 above.
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
    /// Time in which 99 % of the jobs are complete: a job may meet all gaps that begin in this time; 0 in evidence of earlier versions.
    #[serde(default)]
    pub within: Ns,
    /// Length of an interval.
    #[serde(default = "longest_interval")]
    pub interval: Ns,
    /// For each interval of watching with gaps: what a job loses that meets a gap of this interval first, which is the sum of all gaps from
    /// this one on that begin `within` this time. Empty in evidence of earlier versions: each gap is then taken to lie alone in an interval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_interval: Vec<Vec<GapCount>>,
}

impl UnreportedGaps {
    /// Begins an account of the gaps of a CPU.
    ///
    /// `watched`: time for which the clock was watched. `threshold`: shortest gap.
    pub fn new(cpu: CpuId, watched: Ns, threshold: Ns) -> UnreportedGaps {
        UnreportedGaps {
            cpu,
            watched,
            threshold,
            gaps: Vec::new(),
            within: Ns(0),
            interval: longest_interval(),
            by_interval: Vec::new(),
        }
    }

    /// Sums up gaps for a comparison with jobs.
    ///
    /// `within`: time in which nearly all jobs are complete. `interval`: length of an interval ([`gap_interval`]). `gaps`: time of watching at
    /// which each gap was seen, and its length, in the order of time.
    pub fn with(self, within: Ns, interval: Ns, gaps: &[(Ns, Ns)]) -> UnreportedGaps {
        let counts = |gaps: &[(Ns, Ns)]| {
            let mut spread = Spread::default();
            gaps.iter().for_each(|(_, length)| spread.push(length.0));
            spread.counts()
        };
        let lost = lost(within, gaps);
        let intervals = lost.chunk_by(|(a, _), (b, _)| a.0 / interval.0 == b.0 / interval.0);
        UnreportedGaps { gaps: counts(gaps), within, interval, by_interval: intervals.map(counts).collect(), ..self }
    }

    /// Returns the number of gaps that last for about `length` or longer.
    fn at_least(&self, length: Ns) -> u64 {
        counted_from(&self.gaps, length)
    }

    /// Returns the number of intervals in a time, of which a part of one counts as one.
    fn intervals(&self, time: Ns) -> u64 {
        time.0.div_ceil(self.interval.0.max(1)).max(1)
    }

    /// Returns the number of gaps in each interval from which on a job loses about `length` or more, where there are any.
    fn at_least_by_interval(&self, length: Ns) -> Vec<u64> {
        let counts: Vec<u64> = match self.by_interval.is_empty() {
            true => vec![1; self.at_least(length).min(self.intervals(self.watched)) as usize],
            false => self.by_interval.iter().map(|gaps| counted_from(gaps, length)).collect(),
        };
        counts.into_iter().filter(|count| *count > 0).collect()
    }
}

/// Returns the time of each gap, and the sum of all that begin `within` this time from there on.
fn lost(within: Ns, gaps: &[(Ns, Ns)]) -> Vec<(Ns, Ns)> {
    let (mut end, mut sum) = (0, 0);
    let from = |(first, (at, length)): (usize, &(Ns, Ns))| {
        // The windows of consecutive gaps begin and end in the same order, so each gap is added and taken away once.
        if end <= first {
            (end, sum) = (first, 0);
        }
        while end < gaps.len() && (end == first || gaps[end].0.0 < at.0 + within.0) {
            sum += gaps[end].1.0;
            end += 1;
        }
        let lost = Ns(sum);
        sum -= length.0;
        (*at, lost)
    };
    gaps.iter().enumerate().map(from).collect()
}

/// Returns the number of gaps that last for `length` or longer, or for up to 1/64 less.
fn counted_from(gaps: &[GapCount], length: Ns) -> u64 {
    let long = gaps.iter().filter(|gap| gap.least.0.saturating_add(gap.least.0 / 64) >= length.0);
    long.fold(0, |sum, gap| sum.saturating_add(gap.count))
}

/// A gap that jobs would have needed not to exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeededGap {
    /// Release of the first of these jobs. In evidence of earlier versions all are 0, so that the jobs are taken for those of one interval.
    #[serde(default)]
    pub at: Ns,
    /// Longest gap that one of them would have needed.
    #[serde(alias = "least")]
    pub gap: Ns,
}

/// The longest needed gap of each interval, in bounded memory: if there are too many intervals, longer ones are taken.
#[derive(Clone, Debug)]
pub(super) struct NeededGaps {
    interval: Ns,
    gaps: Vec<NeededGap>,
}

impl Default for NeededGaps {
    fn default() -> NeededGaps {
        NeededGaps { interval: INTERVAL[0], gaps: Vec::new() }
    }
}

impl NeededGaps {
    const MAX: usize = 512;

    /// Adds a gap that a job would have needed which was released at `at`.
    pub(super) fn push(&mut self, at: Ns, gap: Ns) {
        match self.gaps.last_mut() {
            Some(last) if last.at.0 / self.interval.0 == at.0 / self.interval.0 => last.gap = last.gap.max(gap),
            _ => self.gaps.push(NeededGap { at, gap }),
        }
        while self.gaps.len() > Self::MAX {
            self.interval.0 *= 2;
            self.gaps = by_interval(&self.gaps, self.interval);
        }
    }

    pub(super) fn gaps(&self) -> &[NeededGap] {
        &self.gaps
    }
}

/// Returns the first release and the longest needed gap of each interval.
fn by_interval(gaps: &[NeededGap], interval: Ns) -> Vec<NeededGap> {
    let of_one = |gaps: &[NeededGap]| {
        gaps.iter().copied().reduce(|first, gap| NeededGap { gap: first.gap.max(gap.gap), ..first })
    };
    let number = |gap: &NeededGap| gap.at.0 / interval.0.max(1);
    gaps.chunk_by(|a, b| number(a) == number(b)).filter_map(of_one).collect()
}

/// Comparison of the jobs of a task that exceed a limit with the gaps of its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GapComparison {
    /// Number of intervals of the run with jobs that would have needed gaps.
    pub intervals: u64,
    /// Shortest gap that was needed in one of them.
    pub needed: Ns,
    /// Number of gaps of this length or longer that were seen.
    pub seen: u64,
    /// Time for which the clock was watched.
    pub watched: Ns,
    /// Probability of so many intervals if gaps meet jobs as often, per time, as the watching thread: the smallest one for the shortest
    /// length needed in each octave, times the number of these lengths.
    pub p: f64,
}

impl Run {
    /// Compares the jobs of `task` that exceed `limit` without an excuse with the gaps of its CPU. `None` if the gaps do not account for the
    /// jobs: they were not watched for, or there are more intervals with such jobs than is probable.
    pub(super) fn met_by_gaps(&self, task: &TaskOutcome, limit: Limit) -> Option<GapComparison> {
        let gaps = self.gaps.iter().find(|gaps| Some(gaps.cpu) == task.cpu)?;
        let (violations, observed) = match limit {
            Limit::Bound => (&task.bound_violations, task.response?),
            Limit::Deadline => (&task.deadline_violations, task.response?),
            Limit::Budget => (&task.budget_violations, task.execution?),
        };
        let mut needed: Vec<u64> = by_interval(&violations.needed, gaps.interval).iter().map(|of| of.gap.0).collect();
        needed.sort_unstable();
        let shortest = *needed.first()?;
        let [run, watch] = [self.duration, gaps.watched].map(|time| gaps.intervals(time) as f64);
        let share = (observed.mean_ns * task.jobs as f64 / self.duration.0.max(1) as f64).min(1.0);
        let improbable = |length: u64| {
            let intervals = needed.iter().filter(|gap| **gap >= length).count() as u64;
            let tail = |others: usize| {
                let all = Binomial::new(run / (run + watch), intervals + others as u64);
                all.map_or(0.0, |all| all.sf(intervals.saturating_sub(1)))
            };
            let meets = |count: u64| 1.0 - (1.0 - share).powf(count as f64);
            let met = number_of_events(gaps.at_least_by_interval(Ns(length)).into_iter().map(meets));
            2.0 * met.into_iter().enumerate().map(|(others, p)| p * tail(others)).sum::<f64>()
        };
        // The jobs of an overrun need much the same. So the shortest length of each octave is enough, and few tests are corrected for.
        let octave = |gap: u64| gap.max(1).ilog2();
        let octaves: Vec<u64> = needed.chunk_by(|a, b| octave(*a) == octave(*b)).map(|of| of[0]).collect();
        let smallest = octaves.iter().map(|length| improbable(*length)).fold(1.0, f64::min);
        let p = (smallest * octaves.len() as f64).min(1.0);
        (p >= ACCUSED_WRONGLY).then(|| GapComparison {
            intervals: needed.len() as u64,
            needed: Ns(shortest),
            seen: gaps.at_least(Ns(shortest)),
            watched: gaps.watched,
            p,
        })
    }
}

/// Returns the distribution of the number of independent events that occur: the probability of each number from 0 on.
///
/// `events`: probability of each event.
fn number_of_events(events: impl Iterator<Item = f64>) -> Vec<f64> {
    events.fold(vec![1.0], |numbers, p| {
        let mut next = vec![0.0; numbers.len() + 1];
        for (number, probability) in numbers.into_iter().enumerate() {
            next[number] += probability * (1.0 - p);
            next[number + 1] += probability * p;
        }
        next
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::fixture::{requirement, run, seen as released};
    use crate::running::{Conclusion, JobRecord, Reason, Requirement, Tally};

    const SECOND: Ns = INTERVAL[1];
    /// Time between two releases.
    const PERIOD: Ns = Ns(10_000_000);
    const EXECUTION: Ns = Ns(1_000_000);
    const BUDGET: Ns = Ns(1_100_000);
    /// Gap that a job needs which executes for 300 us more than others.
    const NEEDED: Ns = Ns(200_000);

    fn s(seconds: f64) -> Ns {
        Ns((seconds * SECOND.0 as f64) as u64)
    }

    /// A run for so many seconds of a task that has its CPU for a tenth of the time. `gaps`: beginning and length of each gap of the CPU.
    fn run_with(seconds: u64, gaps: &[(Ns, Ns)]) -> Run {
        let limits = [5_000_000, 9_000_000].map(Ns);
        let task = Requirement {
            period: PERIOD,
            deadline: limits[1],
            bound: Some(crate::running::ResponseBound(limits[0])),
            ..requirement()
        };
        let mut tally = Tally::new(Requirement { budget: Some(BUDGET), ..task });
        let jobs = s(seconds as f64).0 / PERIOD.0;
        for instance in 0..jobs {
            let release = instance * PERIOD.0;
            let met = |(at, _): &&(Ns, Ns)| (release..release + EXECUTION.0).contains(&at.0);
            let execution = Ns(EXECUTION.0 + gaps.iter().filter(met).map(|(_, length)| length.0).sum::<u64>());
            let [release, completion] = [0, execution.0].map(|after| Ns(release + after));
            tally.push(&JobRecord { instance, release, start: release, completion, execution, ..JobRecord::default() });
        }
        let mut run = run(&[]);
        run.tasks = vec![TaskOutcome { releases: Some(released(jobs)), cpu: Some(CpuId(1)), ..tally.outcome() }];
        Run { duration: s(seconds as f64), ..run }
    }

    /// A run for twenty seconds in which a job of each of the first seconds takes 200 us more than its budget.
    fn overrun(seconds: u64) -> Run {
        run_with(20, &Vec::from_iter((0..seconds).map(|second| (s(second as f64), Ns(300_000)))))
    }

    /// A watch for sixty seconds with so many gaps of a length in each of the first seconds.
    fn seen(seconds: u64, gaps: u64, length: Ns) -> Vec<UnreportedGaps> {
        let at = |number: u64| (Ns(SECOND.0 / gaps * number), length);
        vec![UnreportedGaps::new(CpuId(1), s(60.0), Ns(5000)).with(
            EXECUTION,
            SECOND,
            &Vec::from_iter((0..seconds * gaps).map(at)),
        )]
    }

    fn watch_of(gaps: &[(Ns, Ns)]) -> UnreportedGaps {
        UnreportedGaps::new(CpuId(1), s(60.0), Ns(5000)).with(EXECUTION, SECOND, gaps)
    }

    fn concludes(run: Run, gaps: Vec<UnreportedGaps>) -> Conclusion {
        Run { gaps, ..run }.conclusion().0
    }

    #[test]
    fn a_job_over_its_budget_is_violated_unless_its_cpu_may_have_such_gaps() {
        assert_eq!(concludes(run_with(20, &[]), seen(0, 1, NEEDED)), Conclusion::Holds);
        assert_eq!(concludes(overrun(1), Vec::new()), Conclusion::Violated, "nobody watched");
        for (seconds, gaps, conclusion) in [
            // No gap was seen. That all of so many seconds lie in the 20 of 80 has a probability of 1/4 to the power of their number.
            (1, seen(0, 1, NEEDED), Conclusion::Inconclusive),
            (3, seen(0, 1, NEEDED), Conclusion::Inconclusive),
            (4, seen(0, 1, NEEDED), Conclusion::Violated),
            // A tenth of the gaps would have met a job if one comes at a time, and nearly all seconds have one that does if many come.
            (10, seen(30, 1, NEEDED), Conclusion::Violated),
            (10, seen(30, 50, NEEDED), Conclusion::Inconclusive),
            // Shorter ones do not account for the jobs, at any number.
            (10, seen(60, 50, Ns(150_000)), Conclusion::Violated),
        ] {
            assert_eq!(concludes(overrun(seconds), gaps.clone()), conclusion, "{seconds} {gaps:?}");
        }
        let mut elsewhere = overrun(1);
        elsewhere.tasks[0].cpu = Some(CpuId(0));
        assert_eq!(concludes(elsewhere, seen(0, 1, NEEDED)), Conclusion::Violated, "the gaps are those of another CPU");
    }

    #[test]
    fn the_tail_probability_is_averaged_over_the_seconds_that_would_have_met_a_job() {
        let (_, reasons) = Run { gaps: seen(1, 2, NEEDED), ..overrun(3) }.conclusion();
        let Reason::Gaps { limit: Limit::Budget, jobs: 3, of: 2000, compared, .. } = &reasons[0] else {
            panic!("{reasons:?}")
        };
        // 3 seconds, or 3 or 4 of 4 if the one of the watch would have met a job, too: two gaps, each with a probability of about 0.1.
        let share = (1_000_000.0 + 3.0 * 300_000.0 / 2000.0) / 1e7;
        let met = 1.0 - (1.0 - share) * (1.0 - share);
        let expected = 2.0 * ((1.0 - met) / 64.0 + met * (4.0 * 0.75 + 0.25) / 64.0);
        assert!((compared.p - expected).abs() < 1e-9, "{compared:?} {expected}");
        assert_eq!((compared.intervals, compared.needed, compared.seen), (3, NEEDED, 2));
    }

    #[test]
    fn jobs_of_one_second_are_one_burst() {
        let jobs = |apart: f64| Vec::from_iter((0..50).map(|job| (s(apart * job as f64), Ns(300_000))));
        assert_eq!(concludes(run_with(60, &jobs(0.01)), seen(0, 1, NEEDED)), Conclusion::Inconclusive);
        assert_eq!(concludes(run_with(60, &jobs(1.0)), seen(0, 1, NEEDED)), Conclusion::Violated);
        // A short run has shorter intervals, and one may be all that a hopeless task is given.
        let all = run_with(1, &Vec::from_iter((0..100).map(|job| (s(0.01 * job as f64), Ns(300_000)))));
        let watched = UnreportedGaps::new(CpuId(1), s(3.0), Ns(5000)).with(EXECUTION, gap_interval(all.duration), &[]);
        assert_eq!(concludes(all, vec![watched]), Conclusion::Violated);
    }

    #[test]
    fn needed_gaps_take_little_memory_however_many_there_are() {
        let mut needed = NeededGaps::default();
        for (at, gap) in [(0.1, 3), (0.14, 7), (0.12, 5), (0.2, 2), (3.0, 7), (0.0, 1)] {
            needed.push(s(at), Ns(gap));
        }
        let found: Vec<(Ns, u64)> = needed.gaps().iter().map(|needed| (needed.at, needed.gap.0)).collect();
        assert_eq!(found, [(s(0.1), 7), (s(0.2), 2), (s(3.0), 7), (s(0.0), 1)]);
        let mut many = NeededGaps::default();
        (0..10_000).for_each(|second| many.push(s(f64::from(second)), Ns(u64::from(second == 5000))));
        let longest: Vec<u64> = many.gaps().iter().map(|needed| needed.gap.0).filter(|gap| *gap > 0).collect();
        assert!((256..=512).contains(&many.gaps().len()) && longest == [1], "{}", many.gaps().len());
    }

    #[test]
    fn a_job_loses_all_gaps_that_begin_while_it_is_under_way() {
        let gaps = [(0, 3), (10, 4), (10, 1), (19, 5), (50, 7)].map(|(at, length)| (Ns(at), Ns(length)));
        let sums = |within| lost(Ns(within), &gaps).iter().map(|(_, sum)| sum.0).collect::<Vec<_>>();
        assert_eq!(sums(0), [3, 4, 1, 5, 7]);
        assert_eq!(sums(10), [3, 10, 6, 5, 7]);
        assert_eq!(sums(11), [8, 10, 6, 5, 7]);
        assert_eq!(sums(100), [20, 17, 13, 12, 7]);
    }

    #[test]
    fn gaps_of_earlier_evidence_are_read_as_one_in_an_interval() {
        let earlier = |count| {
            let gaps = format!(
                r#"{{"cpu":1,"watched":60000000000,"threshold":5000,"gaps":[{{"least":200000,"count":{count}}}]}}"#
            );
            serde_json::from_str::<UnreportedGaps>(&gaps).unwrap()
        };
        for (count, intervals) in [(3, 3), (1_000_000_000, 60)] {
            assert_eq!(earlier(count).at_least_by_interval(NEEDED), vec![1; intervals]);
        }
        let malformed = UnreportedGaps { interval: Ns(0), ..watch_of(&[]) };
        assert_eq!(concludes(overrun(1), vec![malformed]), Conclusion::Inconclusive, "an interval of no time");
        assert_eq!(counted_from(&[GapCount { least: Ns(u64::MAX), count: u64::MAX }; 2], NEEDED), u64::MAX);
        let needed: NeededGap = serde_json::from_str(r#"{"least":200000,"count":7}"#).unwrap();
        assert_eq!(needed, NeededGap { at: Ns(0), gap: NEEDED });
    }

    /// Gaps of 60 to 460 us in so many seconds: bursts of 1 to 100, of which so many begin in a second, each within a tenth of a second.
    fn bursts(seconds: u64, per_second: f64, rng: &mut fastrand::Rng) -> Vec<(Ns, Ns)> {
        let mut gaps = Vec::new();
        let mut at = 0.0;
        loop {
            at -= (1.0 - rng.f64()).ln() / per_second;
            if at >= seconds as f64 {
                gaps.sort_unstable();
                return gaps;
            }
            for _ in 0..(100.0 * rng.f64().powi(3)).ceil() as u64 {
                gaps.push((s((at + 0.1 * rng.f64()).min(seconds as f64)), Ns(1000 * rng.u64(60..460))));
            }
        }
    }

    #[test]
    fn tasks_are_seldom_accused_of_the_gaps_of_a_shared_host() {
        let lines = include_str!("../../tests/data/gaps.csv").lines().filter(|line| !line.starts_with(['#', 'c']));
        let recorded: Vec<(u64, Ns, Ns)> = lines
            .map(|line| {
                let values: Vec<u64> = line.split(',').map(|value| value.parse().unwrap()).collect();
                (values[0], Ns(1000 * values[1]), Ns(1000 * values[2]))
            })
            .collect();
        for cpu in 0..2 {
            let mut seconds = [0.0; 420];
            recorded
                .iter()
                .filter(|gap| gap.0 == cpu)
                .for_each(|(_, at, _)| seconds[(at.0 / SECOND.0) as usize] += 1.0);
            let mean = seconds.iter().sum::<f64>() / 420.0;
            let variance = seconds.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 420.0;
            println!("CPU {cpu}: {mean:.2} gaps in a second, variance {:.1} times the mean", variance / mean);
            assert!((4.9..7.1).contains(&(variance / mean)), "{mean} {variance}");
        }
        let mut rng = fastrand::Rng::with_seed(18);
        let (mut accused, mut singly, mut late) = (0, 0, 0);
        for number in 0..640 {
            let from = s(320.0 * rng.f64());
            let between = |begin: Ns, length: u64| -> Vec<(Ns, Ns)> {
                let of = recorded.iter().filter(|(cpu, at, _)| {
                    *cpu == number % 2 && (begin.0..begin.0 + s(length as f64).0).contains(&at.0)
                });
                of.map(|(_, at, length)| (Ns(at.0 - begin.0), *length)).collect()
            };
            let gaps = [between(from, 40), between(Ns(from.0 + s(40.0).0), 60)];
            let (run, watched) = (run_with(40, &gaps[0]), watch_of(&gaps[1]));
            late += u32::from(run.tasks[0].budget_violations.jobs > 0);
            singly += u32::from(is_accused_singly(&gaps));
            accused += u32::from(concludes(run, vec![watched]) == Conclusion::Violated);
        }
        println!(
            "accused: {accused} of {late} runs with jobs over their budget, and {singly} if gaps are taken for independent"
        );
        // 1 % is claimed, of 640 runs.
        assert!(late > 400 && accused <= 6 && singly > 20, "{accused} and {singly} of {late}");
    }

    /// Whether the jobs of a run for 40 s that its gaps make exceed their budget are improbable by the gaps of a watch for 60 s if all gaps
    /// are independent: each then lies in a job with the share of the time of jobs.
    fn is_accused_singly([run, watch]: &[Vec<(Ns, Ns)>; 2]) -> bool {
        let in_jobs = |(at, length): &(Ns, Ns)| (at.0 % PERIOD.0 < EXECUTION.0).then_some(length.0);
        let mut needed: Vec<u64> =
            run.iter().filter_map(in_jobs).map(|length| length.saturating_sub(100_000)).collect();
        needed.retain(|needed| *needed > 0);
        needed.sort_unstable();
        let improbable = |length: u64| {
            let jobs = needed.iter().filter(|needed| **needed >= length).count() as u64;
            let others = watch.iter().filter(|gap| gap.1.0 >= length).count() as u64;
            Binomial::new(4.0 / 64.0, jobs + others).unwrap().sf(jobs - 1)
        };
        let octaves: Vec<u64> = needed.chunk_by(|a, b| a.ilog2() == b.ilog2()).map(|of| of[0]).collect();
        octaves.iter().any(|length| improbable(*length) * (octaves.len() as f64) < ACCUSED_WRONGLY)
    }

    #[test]
    fn tasks_are_seldom_accused_of_bursts_that_meet_everybody_and_overruns_are_found_unless_bursts_are_frequent() {
        let mut rng = fastrand::Rng::with_seed(18);
        let mut accused = |per_second: f64, overruns: u64| {
            let is_accused = |_: &u32| {
                let mut late = bursts(20, per_second, &mut rng);
                late.extend((0..overruns).map(|number| (s((20 * number) as f64 / overruns as f64), Ns(300_000))));
                let watched = watch_of(&bursts(60, per_second, &mut rng));
                concludes(run_with(20, &late), vec![watched]) == Conclusion::Violated
            };
            (0..200).filter(is_accused).count()
        };
        let rows = [0.01, 0.1, 0.5, 2.0].map(|rate| (rate, [0, 4, 10].map(|overruns| accused(rate, overruns))));
        println!("bursts per second, and of 200 runs accused with 0, 4, 10 overruns: {rows:?}");
        for (rate, [good, _, ten]) in rows {
            // 1 % is claimed. Of 200 runs with this probability, more than 6 are accused with a probability of 0.005.
            assert!(good <= 6 && (rate > 0.2 || ten >= 190), "{rows:?}");
        }
    }
}
