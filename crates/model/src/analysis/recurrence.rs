//! The recurrence that the bounds of a core follow from. A plan keeps it, so that it can be replayed for a job that the hypervisor delayed.
//!
//! While the hypervisor withholds a CPU nothing runs there. So steal time delays every job of a busy period once, like blocking, and
//! afterwards the partitions and the private levels have to be refilled:
//!
//! ```text
//! w(q) = B + s + n (Δ |∪{S(k) : k ∈ hep(i)}| + P) + (q + 1) (C(i) + ω(i)) + Σ j∈hp(i): what R charges for jobs of τ(j) in w(q)
//! R(s, n) = max { w(q) + J(i) - q T(i) : q = 0, 1, ... as long as the busy period lasts }
//! ```
//!
//! s is the steal time in the busy period of τ(i) and the tasks above, n the number of times that the CPU was taken, and P the time to refill the
//! private levels. Without steal time, R is the bound of the plan. If steal time makes the busy period longer than T(i), it holds several jobs of
//! τ(i), which q numbers. Programs that the hypervisor runs in this time can displace all partitions of the core. At any time each partition holds
//! the contents of one task, so one refill of each partition restores what was lost. If a task below i can block τ(i), the partitions of the tasks
//! below are refilled as well.
//!
//! Interrupts that release jobs wait while the CPU is withheld. If the CPU was withheld until the busy period began, or until shortly before,
//! interrupts of the tasks below τ(i) that came before the busy period are served in it.
//!
//! Steal time before the busy period delays no job by itself. But it has displaced lines that τ(i) and the tasks above left in the cache, and lines
//! that a task below has loaded that blocks them. This counts as one more time that the CPU was taken, without steal time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::families::{Backlog, window_with};
use super::{Analysis, Charges, CoreTask, Workspace};
use crate::taskset::PartitionSet;
use crate::units::Ns;

/// Most earlier jobs of the task in one busy period that are replayed. If the busy period can hold more, any response is allowed. A response
/// that exceeds its bound takes up to this many analyses of the core, of a few microseconds each.
const EARLIER_JOBS_MAX: u64 = 128;

/// CPU time that the hypervisor took in a busy period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steal {
    /// Steal time in the busy period, in ns.
    pub time_ns: u64,
    /// Number of times that the hypervisor took the CPU in the busy period. It is one more if the hypervisor took the CPU before the busy
    /// period, but after the last job of one of the tasks had begun.
    pub times: u64,
    /// Steal time before the busy period, in ns, during which interrupts waited that are served in the busy period.
    pub before_ns: u64,
}

/// The recurrence from which the bounds of all tasks of a core follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recurrence {
    /// The analysis that gives the bounds.
    pub analysis: Analysis,
    /// Costs of the hardware and the kernel.
    pub charges: Charges,
    /// The tasks, highest priority first.
    pub tasks: Vec<CoreTask>,
}

impl Recurrence {
    /// Whether the recurrence can be replayed for a core of `tasks` tasks. A recurrence that was read from a file may be unusable.
    pub fn is_of(&self, tasks: usize) -> bool {
        self.tasks.len() == tasks && self.tasks.iter().all(|task| task.period_ns > 0)
    }

    /// Returns the largest number of jobs of the task at `index` that can precede a job of that task in its busy period. `busy`: time from the
    /// beginning of the busy period to the release of the job.
    pub fn earlier_jobs(&self, index: usize, busy: Ns) -> u64 {
        let CoreTask { period_ns, jitter_ns, .. } = self.tasks[index];
        busy.0.saturating_add(jitter_ns) / period_ns
    }

    /// Returns the longest response, in ns, of a job of the task at `index` in whose busy period the hypervisor took `steal`: R(s, n) above. At
    /// most `earlier_jobs` jobs of the same task precede the job there. Returns `most_ns` if the response is longer, or if there can be too many
    /// earlier jobs to replay.
    pub fn response_with(&self, index: usize, steal: Steal, earlier_jobs: u64, most_ns: u64) -> u64 {
        let Recurrence { analysis, charges, tasks } = self;
        let task = &tasks[index];
        let reload_ns = reload_ns(tasks, charges.by(*analysis), index);
        let withheld_ns = steal.time_ns.saturating_add(steal.times.saturating_mul(reload_ns));
        let each_job_ns = self.later_job_ns(index);
        let Some(early_ns) = self.early_ns(index, steal.before_ns, most_ns) else { return most_ns };
        let mut workspace = Workspace::default();
        let mut longest = 0;
        for jobs in 0..=earlier_jobs.min(EARLIER_JOBS_MAX) {
            let before = jobs.saturating_mul(task.period_ns);
            let Some(most) = before.saturating_add(most_ns).checked_sub(task.jitter_ns) else { return most_ns };
            let extra_ns = withheld_ns.saturating_add(jobs.saturating_mul(each_job_ns));
            let backlog = Backlog { index, jobs, extra_ns, early_ns, most_ns: most };
            let Some(window) = window_with(tasks, *charges, *analysis, backlog, &mut workspace) else {
                return most_ns;
            };
            let response = window + task.jitter_ns;
            longest = longest.max(response.saturating_sub(before));
            if response <= before.saturating_add(task.period_ns) {
                return longest;
            }
        }
        if earlier_jobs > EARLIER_JOBS_MAX { most_ns } else { longest }
    }

    /// Returns the longest time, in ns, from the release of a task below to the busy period of the task at `index` in which the interrupt of
    /// this release is served; `None` if it exceeds `before_ns` by more than `most_ns`. `before_ns`: time for which the CPU was withheld until
    /// the busy period began, except for interrupts.
    fn early_ns(&self, index: usize, before_ns: u64, most_ns: u64) -> Option<u64> {
        let interrupt_ns = self.charges.release_interrupt_ns;
        if before_ns == 0 || interrupt_ns == 0 {
            return Some(0);
        }
        let releases = |window: u64, task: &CoreTask| window.saturating_add(task.jitter_ns).div_ceil(task.period_ns);
        let mut early = before_ns;
        loop {
            let all = self.tasks[index + 1..].iter().map(|task| releases(early, task)).fold(0, u64::saturating_add);
            let needed = before_ns.saturating_add(all.saturating_mul(interrupt_ns));
            match needed {
                _ if needed > before_ns.saturating_add(most_ns) => return None,
                _ if needed <= early => return Some(early),
                _ => early = needed,
            }
        }
    }

    /// Returns the largest cost, in ns, of a further job of the task at `index` in the same busy period. The job follows the previous one of the same
    /// task, and refills the partitions that other tasks displaced since then.
    fn later_job_ns(&self, index: usize) -> u64 {
        let charges = self.charges.by(self.analysis);
        let task = &self.tasks[index];
        let others = union(&self.tasks[..index]).union(&union(&self.tasks[index + 1..]));
        let displaced = others.intersection(&task.partitions).len();
        let omega = u64::from(displaced).saturating_mul(charges.refill_ns).saturating_add(charges.preemption_ns);
        charges.execution_ns(task).saturating_add(omega).saturating_add(charges.release_interrupt_ns)
    }
}

/// Returns the largest cost, in ns, of withholding the core once, in a window of the task at `index`: a refill of everything that the tasks of the
/// window can lose.
///
/// `|∪{S(k) : k ∈ hep(i)}| Δ + P`, over all tasks of the core if a task below can block τ(i). `charges`: those that the analysis applies.
///
/// Programs that run while the core is withheld may displace all its partitions. At any time each partition holds the contents of one task, and only
/// one task finds its contents in the private levels. So one refill of each restores what was lost, whichever task needs it first. If several tasks
/// use a partition, the later ones would have missed their contents anyway, and the preemptions charge this.
pub(super) fn reload_ns(tasks: &[CoreTask], charges: Charges, index: usize) -> u64 {
    let can_block = |task: &CoreTask| task.nonpreemptive_ns > 0 || !task.holds.is_empty();
    let is_blocked = tasks[index].blocking_ns > 0 || tasks[index + 1..].iter().any(can_block);
    let executing = if is_blocked { tasks } else { &tasks[..=index] };
    let refill = u64::from(union(executing).len()).saturating_mul(charges.refill_ns);
    refill.saturating_add(charges.preemption_ns)
}

/// Returns the union of the partitions of `tasks`.
fn union(tasks: &[CoreTask]) -> PartitionSet {
    tasks.iter().fold(PartitionSet::default(), |all, task| all.union(&task.partitions))
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::slice::from_ref;

    use super::super::analyze;
    use super::super::falsify::Case;
    use super::super::schedule::{
        Arrival, Completed, adversarial, contended, play, play_with_steal, sporadic, synchronous,
    };
    use super::*;
    use proptest::prelude::*;

    const NONE: Steal = Steal { time_ns: 0, times: 0, before_ns: 0 };
    const ONCE: Steal = Steal { times: 1, ..NONE };
    /// Most time, in ns, that interrupts of all tasks of a random core take together.
    const INTERRUPTS_MAX_NS: u64 = 10;
    /// A time in ns that is longer than any response.
    const LONG: u64 = u64::MAX / 4;

    fn core(tasks: &[(u64, u64)], refill_ns: u64) -> Recurrence {
        let task = |&(wcet_ns, period_ns): &(u64, u64)| CoreTask::new(wcet_ns, period_ns, PartitionSet::range(0, 2));
        let charges = Charges { refill_ns, ..Charges::default() };
        Recurrence { analysis: Analysis::default(), charges, tasks: tasks.iter().map(task).collect() }
    }

    /// Returns the longest response of any job of a busy period in which the hypervisor took the CPU once, for `time_ns`.
    fn with(core: &Recurrence, index: usize, time_ns: u64) -> u64 {
        core.response_with(index, Steal { time_ns, ..ONCE }, EARLIER_JOBS_MAX, LONG)
    }

    #[test]
    fn steal_time_delays_by_itself_and_by_the_jobs_that_come_meanwhile() {
        // C = 10 with T = 100, and C = 30 with T = 200: 10 + 30 = 40. With 5 of steal time, it is 45. With 61, it is 101, so a second job of the
        // first task comes: 111.
        let core = core(&[(10, 100), (30, 200)], 0);
        assert_eq!([0, 5, 60, 61].map(|steal| with(&core, 1, steal)), [40, 45, 100, 111]);
        assert_eq!([0, 5].map(|steal| with(&core, 0, steal)), [10, 15]);
    }

    #[test]
    fn at_high_utilization_a_little_steal_time_delays_by_much() {
        // In us: C = 1000 with T = 2000 and C = 990 with T = 4000 leave 10 until the next job of the first task. With 30 of steal time, the
        // second task waits for all of that job.
        let core = core(&[(1_000_000, 2_000_000), (990_000, 4_000_000)], 0);
        assert_eq!((with(&core, 1, 0), with(&core, 1, 30_000)), (1_990_000, 3_020_000));
    }

    #[test]
    fn a_backlog_reaches_the_next_job_of_the_task_itself() {
        // C = 60 with T = 100, and 90 of steal time: the first job is complete at 150, the second, released at 100, at 210, and the third,
        // released at 200, at 270.
        let one = core(&[(60, 100)], 0);
        assert_eq!(with(&one, 0, 90), 150);
        // A task with C = 30 and T = 50 above: w = 100 + 15 + 30 n = 295, which holds n = 6 of its jobs. For the second job of the lower task, w
        // is 340, which is 290 after the release of that job.
        let two = core(&[(30, 50), (15, 50)], 0);
        assert_eq!(with(&two, 1, 100), 295);
    }

    #[test]
    fn a_job_is_excused_by_no_more_earlier_jobs_than_its_busy_period_had_time_for() {
        // C = 62 with T = 100, below C = 26 with T = 70: w(q) = 114, 202, 316, 404, 518, 606 and 694, which ends the busy period.
        let mut core = core(&[(26, 70), (62, 100)], 0);
        let response = |earlier_jobs| core.response_with(1, ONCE, earlier_jobs, LONG);
        assert_eq!([0, 1, 2, 3, 4, 100].map(response), [114, 114, 116, 116, 118, 118]);
        assert_eq!([0, 99, 100, 350].map(|busy| core.earlier_jobs(1, Ns(busy))), [0, 0, 1, 3]);
        core.tasks[1].jitter_ns = 1;
        assert_eq!(core.earlier_jobs(1, Ns(99)), 1);
    }

    #[test]
    fn a_later_job_of_a_busy_period_refills_what_others_displaced_since_the_previous_one() {
        let mut core = core(&[(26, 70), (62, 100)], 7);
        core.tasks[1].useful = PartitionSet::default();
        (core.charges.preemption_ns, core.charges.release_interrupt_ns) = (3, 1);
        // The job refills two shared partitions and the private levels, and pays for the interrupt of its release.
        assert_eq!(core.later_job_ns(1), 62 + 2 * 7 + 3 + 1);
        core.tasks[0].partitions = PartitionSet::range(2, 2);
        assert_eq!(core.later_job_ns(1), 62 + 3 + 1);
    }

    #[test]
    fn later_releases_of_the_task_itself_interrupt_the_job_too() {
        // C = 60 with T = 100, an interrupt of 1 and 90 of steal time: 90 + 60 + 1, and 1 for the release at 100.
        let mut one = core(&[(60, 100)], 0);
        one.charges.release_interrupt_ns = 1;
        assert_eq!(with(&one, 0, 90), 152);
        assert_eq!(longest_of_synchronous(&one, 90), [152]);
    }

    #[test]
    fn each_time_costs_a_refill_of_the_partitions_of_the_task_and_those_above() {
        let mut core = core(&[(100, 10_000), (300, 10_000), (300, 10_000)], 7);
        core.tasks[2].partitions = PartitionSet::range(2, 1);
        let response = |core: &Recurrence, times| core.response_with(1, Steal { time_ns: 50, times, ..NONE }, 0, LONG);
        let base = core.response_with(1, NONE, 0, LONG);
        assert_eq!([1, 2].map(|times| response(&core, times)), [base + 50 + 14, base + 50 + 28]);
        // A task below that blocks this one has partitions to lose as well.
        core.tasks[2].nonpreemptive_ns = 1;
        let base = core.response_with(1, NONE, 0, LONG);
        assert_eq!(response(&core, 1), base + 50 + 21);
    }

    #[test]
    fn the_answer_ends_at_what_is_asked_about_where_the_core_is_overloaded_or_too_many_jobs_are_late() {
        let core = core(&[(60, 100), (60, 100)], 0);
        assert_eq!(
            [460, 461, 462].map(|most| core.response_with(1, Steal { time_ns: 1, ..ONCE }, 5, most)),
            [460, 461, 461]
        );
        // The hypervisor takes 10^6 of a CPU that is busy for 99 %: thousands of jobs are late.
        let core = self::core(&[(99, 100)], 0);
        let response = |earlier| core.response_with(0, Steal { time_ns: 1_000_000, ..ONCE }, earlier, 2_000_000);
        assert_eq!((response(100), response(1000)), (1_000_099, 2_000_000));
    }

    /// Returns the longest response of each task if all are released together and the hypervisor takes the CPU at that time, for `steal_ns`.
    fn longest_of_synchronous(core: &Recurrence, steal_ns: u64) -> Vec<u64> {
        const HORIZON_NS: u64 = 4000;
        let arrivals = synchronous(&core.tasks, HORIZON_NS);
        play_with_steal(&core.tasks, core.charges, &arrivals, from_ref(&(0..steal_ns)), HORIZON_NS).responses_ns
    }

    /// Returns the observations of a run about the busy period of `job`: the steal time in it, and the time from its beginning to the release of the
    /// job.
    ///
    /// `jobs`: all jobs of the schedule. `taken`: intervals in which the CPU was withheld.
    fn seen(jobs: &[Completed], job: &Completed, taken: &[Range<u64>]) -> (Steal, Ns) {
        let above = || jobs.iter().filter(|other| other.task <= job.task);
        let mut since = job.release_ns;
        while let Some(before) =
            above().filter(|it| it.release_ns < since && it.completion_ns > since).map(|it| it.release_ns).min()
        {
            since = before;
        }
        let during =
            taken.iter().map(|it| it.start.max(since)..it.end.min(job.completion_ns)).filter(|it| !it.is_empty());
        let (time_ns, times) = during.fold((0, 0), |(time, times), it| (time + it.end - it.start, times + 1));
        // Since its last job began, each task has loaded what it uses. A lower task that has begun a job may block.
        let begun = |task: usize| {
            let complete = jobs.iter().filter(|it| it.task == task && it.completion_ns <= since);
            complete.map(|it| it.start_ns).max().unwrap_or(0)
        };
        let is_open = |it: &&Completed| it.release_ns < since && it.completion_ns > since;
        let open = jobs.iter().filter(is_open).map(|it| it.task);
        let warm_since = (0..=job.task).chain(open).map(begun).min().unwrap_or(0);
        let is_cold = taken.iter().any(|it| it.end <= since && it.end > warm_since);
        // Steal time counts up to shortly before the busy period: interrupts may have the CPU in between, for this long at most.
        let mut before_ns = 0;
        for it in taken.iter().rev().filter(|it| it.start < since) {
            let part = it.end.min(since) - it.start;
            if since - it.end.min(since) > before_ns + part + INTERRUPTS_MAX_NS {
                break;
            }
            before_ns += part;
        }
        (Steal { time_ns, times: times + u64::from(is_cold), before_ns }, Ns(job.release_ns - since))
    }

    /// Returns one to three intervals in which the CPU is withheld, short or long.
    fn random_steal(horizon_ns: u64, random: &mut fastrand::Rng) -> Vec<Range<u64>> {
        let mut taken: Vec<Range<u64>> = Vec::new();
        for _ in 0..random.u8(1..=3) {
            let start = taken.last().map_or(0, |before| before.end) + random.u64(1..horizon_ns / 4);
            taken.push(start..start + if random.bool() { random.u64(1..=4) } else { random.u64(1..=60) });
        }
        taken
    }

    #[test]
    fn no_job_of_a_random_schedule_with_steal_time_is_accused() {
        const HORIZON_NS: u64 = 700;
        let (mut beyond, mut checked) = (0, 0);
        for seed in 0..4000u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let Case { core, analyzed, charges, .. } = Case::random(&mut random, seed.is_multiple_of(4));
            let target = random.usize(0..core.len());
            let schedules: [Vec<Arrival>; 4] = [
                synchronous(&core, HORIZON_NS),
                sporadic(&core, HORIZON_NS, &mut random),
                adversarial(&core, target, HORIZON_NS, &mut random),
                contended(&core, target, HORIZON_NS, &mut random),
            ];
            let analyses = Analysis::ALL.into_iter().filter(|analysis| *analysis != Analysis::NoInterference);
            let bounds: Vec<_> = analyses.map(|analysis| (analysis, analyze(&analyzed, charges, analysis))).collect();
            for arrivals in &schedules {
                let taken = random_steal(HORIZON_NS, &mut random);
                let jobs = play_with_steal(&core, charges, arrivals, &taken, HORIZON_NS).jobs;
                // The busy periods of jobs that are not complete at the end are not known, so only jobs are checked that end before these are
                // released.
                let unfinished = (0..core.len()).filter_map(|task| {
                    let complete = jobs.iter().filter(|job| job.task == task).count();
                    arrivals.iter().filter(|it| it.task == task).nth(complete).map(|it| it.release_ns)
                });
                let known_until = unfinished.min().unwrap_or(HORIZON_NS);
                for (analysis, bounds) in &bounds {
                    let recurrence = Recurrence { analysis: *analysis, charges, tasks: analyzed.clone() };
                    for job in jobs.iter().filter(|job| job.completion_ns <= known_until) {
                        let Some(bound) = bounds[job.task].verdict.response_ns() else { continue };
                        let response = job.completion_ns - job.arrival_ns;
                        checked += 1;
                        if response <= bound {
                            continue;
                        }
                        beyond += 1;
                        let (steal, busy) = seen(&jobs, job, &taken);
                        let earlier = recurrence.earlier_jobs(job.task, busy);
                        let allowed = recurrence.response_with(job.task, steal, earlier, LONG);
                        assert!(
                            response <= allowed,
                            "seed {seed}, {analysis}: {job:?}, {steal:?}, {busy:?}, {allowed}"
                        );
                    }
                }
            }
        }
        println!("{beyond} of {checked} jobs exceed their bounds, all by no more than steal time excuses");
        assert!(beyond > 1000, "{beyond}");
    }

    #[test]
    fn without_steal_time_it_is_the_bound_of_the_plan() {
        for seed in 0..2000u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let Case { analyzed, charges, .. } = Case::random(&mut random, seed.is_multiple_of(4));
            for analysis in Analysis::ALL {
                let core = Recurrence { analysis, charges, tasks: analyzed.clone() };
                for (index, bound) in analyze(&analyzed, charges, analysis).iter().enumerate() {
                    if let Some(response_ns) = bound.verdict.response_ns() {
                        let replayed = core.response_with(index, NONE, EARLIER_JOBS_MAX, LONG);
                        assert_eq!(replayed, response_ns, "seed {seed}, {analysis}, task {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn without_the_refills_a_random_schedule_refutes_the_replay() {
        // Mutation: if steal time displaced nothing, jobs that are late by the refills would be accused.
        let mut core = core(&[(10, 100), (20, 200)], 5);
        (core.tasks[1].partitions, core.tasks[1].useful) = (PartitionSet::range(2, 3), PartitionSet::range(2, 3));
        let (arrivals, taken, idle) = (synchronous(&core.tasks, 200), 15..17, 150..160);
        let jobs = play_with_steal(&core.tasks, core.charges, &arrivals, from_ref(&taken), 200).jobs;
        let job = jobs.iter().find(|job| job.task == 1).unwrap();
        let (steal, busy) = seen(&jobs, job, from_ref(&taken));
        assert_eq!((steal, busy), (Steal { time_ns: 2, ..ONCE }, Ns(0)));
        // 30 without steal time, 2 of steal time, and a refill of the three partitions of the task; those of the first task are not needed
        // again.
        assert_eq!(job.completion_ns, 30 + 2 + 15);
        assert!(core.response_with(1, Steal { times: 0, ..steal }, 0, LONG) < 47);
        assert!(core.response_with(1, steal, 0, LONG) >= 47);
        // The CPU is taken while it is idle. The next job finds its partitions cold, although no steal time is in its busy period.
        let jobs =
            play_with_steal(&core.tasks, core.charges, &synchronous(&core.tasks, 400), from_ref(&idle), 400).jobs;
        let job = jobs.iter().filter(|job| job.task == 1).nth(1).unwrap();
        assert_eq!(job.completion_ns - job.release_ns, 30 + 25);
        let (steal, busy) = seen(&jobs, job, from_ref(&idle));
        assert_eq!((steal, busy), (ONCE, Ns(0)));
        assert_eq!(core.response_with(1, steal, 0, LONG), 55);
        assert_eq!(play(&core.tasks, core.charges, &arrivals, 200).responses_ns, [10, 30]);
    }

    proptest! {
        /// Without refills and blocking, there is a schedule that takes exactly as long as is excused, so no longer response is excused.
        #[test]
        fn without_refills_a_schedule_reaches_what_is_excused(
            tasks in prop::collection::vec((1u64..12, 12u64..40), 1..4), steal_ns in 0u64..80, interrupt_ns in 0u64..2, switch_ns in 0u64..2,
        ) {
            let mut core = core(&tasks, 0);
            (core.charges.release_interrupt_ns, core.charges.switch_ns) = (interrupt_ns, switch_ns);
            let each_job = |&(wcet, period): &(u64, u64)| (wcet + interrupt_ns + 2 * switch_ns) as f64 / period as f64;
            prop_assume!(tasks.iter().map(each_job).sum::<f64>() < 0.95);
            let longest = longest_of_synchronous(&core, steal_ns);
            for (index, longest) in longest.into_iter().enumerate() {
                prop_assert_eq!(with(&core, index, steal_ns), longest, "task {}", index);
            }
        }
    }
}
