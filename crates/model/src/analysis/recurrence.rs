//! The recurrence that the bounds of a core follow from, kept with a plan, so that it can be replayed for a job that the hypervisor delayed.
//!
//! While the hypervisor withholds a CPU nothing runs there. So steal time delays every job of a busy period once, like blocking, and
//! afterwards the partitions and the private levels have to be refilled:
//!
//! ```text
//! w(q) = B + s + n (Δ |∪{S(k) : k ∈ hep(i)}| + P) + (q + 1) (C(i) + ω(i)) + Σ j∈hp(i): what R charges for jobs of τ(j) in w(q)
//! R(s, n) = max { w(q) + J(i) - q T(i) : q = 0, 1, ... as long as the busy period lasts }
//! ```
//!
//! s is the steal time in the busy period of τ(i) and above, n how often it was taken, P what private levels cost. Without steal time this is
//! the bound of the plan. A busy period that is longer than T(i) for what was taken holds several jobs of τ(i), hence q. What the hypervisor runs
//! meanwhile can displace all partitions of the core. At any time each partition holds the contents of one task, so one refill of each
//! restores what was lost. Where a task below i can block τ(i), its partitions are among them.
//!
//! Interrupts that release jobs wait while the CPU is withheld. Those of the tasks below τ(i) that came before the busy period are served in it, if the
//! CPU was withheld until then or until shortly before.
//!
//! What was taken before the busy period began delays no job by itself, but has displaced what τ(i) and the tasks above left in
//! the cache, and what a task below that blocks them has loaded: that counts as one more time, with no steal time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::families::{Backlog, window_with};
use super::{Analysis, Charges, CoreTask, Workspace};
use crate::taskset::PartitionSet;
use crate::units::Ns;

/// Earlier jobs of the task in one busy period that are looked at, at most. Nothing is said against later ones. A violation takes as many analyses
/// of the core, each of a microsecond or a few.
const EARLIER_JOBS_MAX: u64 = 128;

/// CPU time that the hypervisor took in a busy period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steal {
    /// Together, in ns.
    pub time_ns: u64,
    /// How often. One more where it took the CPU after the last job of one of the tasks had begun and before the busy period.
    pub times: u64,
    /// Taken before the busy period, while interrupts waited that are served in it, in ns.
    pub before_ns: u64,
}

/// What the bounds of all tasks of a core follow from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recurrence {
    /// The analysis.
    pub analysis: Analysis,
    /// What the hardware and the kernel charge.
    pub charges: Charges,
    /// The tasks, highest priority first.
    pub tasks: Vec<CoreTask>,
}

impl Recurrence {
    /// Whether it can be replayed for a core of so many tasks. A file may say anything.
    pub fn is_of(&self, tasks: usize) -> bool {
        self.tasks.len() == tasks && self.tasks.iter().all(|task| task.period_ns > 0)
    }

    /// How many jobs of the task at `index` can precede one in its busy period, where that one was released `busy` after the busy period began.
    pub fn earlier_jobs(&self, index: usize, busy: Ns) -> u64 {
        let CoreTask { period_ns, jitter_ns, .. } = self.tasks[index];
        busy.0.saturating_add(jitter_ns) / period_ns
    }

    /// The longest response, in ns, of a job of the task at `index` in whose busy period the hypervisor took `steal`, after at most `earlier_jobs`
    /// jobs of the same task: R(s, n) above. `most_ns` where it is more than that, and where there can be too many earlier jobs to tell.
    pub fn response_with(&self, index: usize, steal: Steal, earlier_jobs: u64, most_ns: u64) -> u64 {
        let Recurrence { analysis, charges, tasks } = self;
        let task = &tasks[index];
        let withheld_ns = steal.time_ns.saturating_add(steal.times.saturating_mul(self.reload_ns(index)));
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

    /// What it costs at most, in ns, that the CPU was taken once: a refill of all that the tasks can lose that execute in a busy period of the
    /// task at `index`.
    fn reload_ns(&self, index: usize) -> u64 {
        let charges = self.charges.by(self.analysis);
        let can_block = |task: &CoreTask| task.nonpreemptive_ns > 0 || !task.holds.is_empty();
        let is_blocked = self.tasks[index].blocking_ns > 0 || self.tasks[index + 1..].iter().any(can_block);
        let executing = if is_blocked { &self.tasks[..] } else { &self.tasks[..=index] };
        let refill = u64::from(union(executing).len()).saturating_mul(charges.refill_ns);
        refill.saturating_add(charges.preemption_ns)
    }

    /// How long before the busy period of the task at `index` tasks below can have been released whose interrupts are served in it, in ns, where the
    /// CPU was withheld for `before_ns` until then, except for interrupts. `None` where that is longer than `most_ns`.
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

    /// What a further job of the task at `index` costs at most in the same busy period, in ns. It follows the previous one of its own, and finds
    /// what others displaced meanwhile.
    fn later_job_ns(&self, index: usize) -> u64 {
        let charges = self.charges.by(self.analysis);
        let task = &self.tasks[index];
        let others = union(&self.tasks[..index]).union(&union(&self.tasks[index + 1..]));
        let displaced = others.intersection(&task.partitions).len();
        let omega = u64::from(displaced).saturating_mul(charges.refill_ns).saturating_add(charges.preemption_ns);
        charges.execution_ns(task).saturating_add(omega).saturating_add(charges.release_interrupt_ns)
    }
}

/// The partitions of `tasks`.
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
    /// Interrupts of all tasks of a random core together.
    const INTERRUPTS_MAX_NS: u64 = 10;
    /// Longer than any response.
    const LONG: u64 = u64::MAX / 4;

    fn core(tasks: &[(u64, u64)], refill_ns: u64) -> Recurrence {
        let task = |&(wcet_ns, period_ns): &(u64, u64)| CoreTask::new(wcet_ns, period_ns, PartitionSet::range(0, 2));
        let charges = Charges { refill_ns, ..Charges::default() };
        Recurrence { analysis: Analysis::default(), charges, tasks: tasks.iter().map(task).collect() }
    }

    /// The longest response of a job where the hypervisor took so much once, whichever job of the busy period it is.
    fn with(core: &Recurrence, index: usize, time_ns: u64) -> u64 {
        core.response_with(index, Steal { time_ns, ..ONCE }, EARLIER_JOBS_MAX, LONG)
    }

    #[test]
    fn steal_time_delays_by_itself_and_by_the_jobs_that_come_meanwhile() {
        // C = 10 of T = 100, and 30 of 200: 10 + 30 = 40. Taken 5: 45. Taken 61: 101, so a second job of the first comes, 111.
        let core = core(&[(10, 100), (30, 200)], 0);
        assert_eq!([0, 5, 60, 61].map(|steal| with(&core, 1, steal)), [40, 45, 100, 111]);
        assert_eq!([0, 5].map(|steal| with(&core, 0, steal)), [10, 15]);
    }

    #[test]
    fn at_high_utilization_a_little_steal_time_delays_by_much() {
        // In us: 1000 of 2000 and 990 of 4000 leave 10 until the next job of the first. Taken 30, it waits for all of that one.
        let core = core(&[(1_000_000, 2_000_000), (990_000, 4_000_000)], 0);
        assert_eq!((with(&core, 1, 0), with(&core, 1, 30_000)), (1_990_000, 3_020_000));
    }

    #[test]
    fn a_backlog_reaches_the_next_job_of_the_task_itself() {
        // 60 of 100, taken 90: the first is complete at 150, the second, released at 100, at 210; the third, released at 200, at 270.
        let one = core(&[(60, 100)], 0);
        assert_eq!(with(&one, 0, 90), 150);
        // 30 of 50 above it: w = 100 + 15 + 30 n = 295, which holds n = 6 of them. Of its second job w is 340, 290 after its release.
        let two = core(&[(30, 50), (15, 50)], 0);
        assert_eq!(with(&two, 1, 100), 295);
    }

    #[test]
    fn a_job_is_excused_by_no_more_earlier_jobs_than_its_busy_period_had_time_for() {
        // 62 of 100 below 26 of 70: w(q) = 114, 202, 316, 404, 518, 606 and 694, which ends the busy period.
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
        // Two partitions that it shares, the private levels and the interrupt of its release.
        assert_eq!(core.later_job_ns(1), 62 + 2 * 7 + 3 + 1);
        core.tasks[0].partitions = PartitionSet::range(2, 2);
        assert_eq!(core.later_job_ns(1), 62 + 3 + 1);
    }

    #[test]
    fn later_releases_of_the_task_itself_interrupt_the_job_too() {
        // 60 of 100 and an interrupt of 1, taken 90: 90 + 60 + 1, and 1 for the release at 100.
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
        // What blocks it has partitions to lose as well.
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
        // Taken 10^6 of a CPU that is busy for 99 %: thousands of jobs are late.
        let core = self::core(&[(99, 100)], 0);
        let response = |earlier| core.response_with(0, Steal { time_ns: 1_000_000, ..ONCE }, earlier, 2_000_000);
        assert_eq!((response(100), response(1000)), (1_000_099, 2_000_000));
    }

    /// The longest response of each task where all are released together and the CPU is taken then for `steal_ns`.
    fn longest_of_synchronous(core: &Recurrence, steal_ns: u64) -> Vec<u64> {
        const HORIZON_NS: u64 = 4000;
        let arrivals = synchronous(&core.tasks, HORIZON_NS);
        play_with_steal(&core.tasks, core.charges, &arrivals, from_ref(&(0..steal_ns)), HORIZON_NS).responses_ns
    }

    /// What a run sees of the busy period of `job`: the steal time in it, and since when it lasted when the job was released.
    ///
    /// `jobs`: all of the schedule. `taken`: when the CPU was withheld.
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
        // What the tasks use has been loaded since the last job of each began; a lower one that has begun a job may block.
        let begun = |task: usize| {
            let complete = jobs.iter().filter(|it| it.task == task && it.completion_ns <= since);
            complete.map(|it| it.start_ns).max().unwrap_or(0)
        };
        let is_open = |it: &&Completed| it.release_ns < since && it.completion_ns > since;
        let open = jobs.iter().filter(is_open).map(|it| it.task);
        let warm_since = (0..=job.task).chain(open).map(begun).min().unwrap_or(0);
        let is_cold = taken.iter().any(|it| it.end <= since && it.end > warm_since);
        // Until shortly before: interrupts have the CPU for as long at most.
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

    /// Intervals in which the CPU is withheld: none to three, short or long.
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
            let Case { core, analyzed, charges } = Case::random(&mut random, seed.is_multiple_of(4));
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
                // Of what is not complete at the end it is not known since when it keeps others busy.
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
        // Mutation: steal time without what it displaces accuses jobs that are late by the refills.
        let mut core = core(&[(10, 100), (20, 200)], 5);
        (core.tasks[1].partitions, core.tasks[1].useful) = (PartitionSet::range(2, 3), PartitionSet::range(2, 3));
        let (arrivals, taken, idle) = (synchronous(&core.tasks, 200), 15..17, 150..160);
        let jobs = play_with_steal(&core.tasks, core.charges, &arrivals, from_ref(&taken), 200).jobs;
        let job = jobs.iter().find(|job| job.task == 1).unwrap();
        let (steal, busy) = seen(&jobs, job, from_ref(&taken));
        assert_eq!((steal, busy), (Steal { time_ns: 2, ..ONCE }, Ns(0)));
        // 30 without steal time, 2 taken, and three partitions of its own lost; those of the first task are not needed again.
        assert_eq!(job.completion_ns, 30 + 2 + 15);
        assert!(core.response_with(1, Steal { times: 0, ..steal }, 0, LONG) < 47);
        assert!(core.response_with(1, steal, 0, LONG) >= 47);
        // The CPU is taken while it is idle: the job after that finds its partitions cold, which is the steal time of no busy period.
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
        /// Where nothing is refilled and nobody blocks, there is a schedule that takes exactly as long: nothing beyond it is excused.
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
