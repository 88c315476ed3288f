//! Activity of a CPU: which thread had the CPU when, and for how long the hypervisor withheld it.
//!
//! *Steal time* follows from the time that the kernel accounts. The time accounted to a thread leaves out what the hypervisor withheld
//! (CONFIG_PARAVIRT_TIME_ACCOUNTING), so the steal time of a thread is the time it had the CPU, from switch-in to switch-out, less the time
//! accounted to it. The kernel accounts nothing to an idle CPU, so there the steal time is the time for which a released job waits until the CPU
//! begins it. A job's steal time is all the hypervisor took since the CPU last had no job of its task's priority or a higher one, because the
//! backlog from then delays this job too.

use std::collections::VecDeque;

use isochrome_model::running::CpuInterval;
use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::SwitchOut;

use super::JobTracker;
use super::watched::State;
use crate::sched::ThreadName;

/// The least difference, in ns, between the time a thread had the CPU and the time accounted to it that counts as steal time. The two are
/// not read at the same instant, and an exit to the hypervisor in between takes 5 to 15 us.
const STEAL_MIN: u64 = 20_000;

/// Longest time, in ns, that a CPU takes to leave an idle state and serve an interrupt. A CPU that does not begin a job for longer than this was
/// withheld by the hypervisor.
const BEGIN_MAX: u64 = 200_000;

/// Longest time, in ns, that interrupts take that have waited for a CPU, in addition to the time for which they have waited.
pub(super) const INTERRUPTS_MAX: u64 = 100_000;

/// Number of intervals that are kept for every CPU, for the timeline of a violation, and number of steals.
const INTERVALS: usize = 512;

/// An interval in which the hypervisor withheld a CPU for `time`.
#[derive(Clone, Copy)]
pub(super) struct Steal {
    pub(super) from: Ns,
    pub(super) to: Ns,
    pub(super) time: Ns,
}

/// State of a CPU of the tasks since the last switch.
#[derive(Default)]
pub(super) struct Cpu {
    pub(super) running: i32,
    pub(super) name: ThreadName,
    pub(super) since: Ns,
    /// Time since which accounted time is added up: that of the switch, or of the end of the last steal from the running thread of a task.
    accounted_since: Ns,
    /// Time accounted to the running thread since `accounted_since`; `None` if none was accounted since the switch.
    accounted: Option<Ns>,
    /// Time at which another CPU last woke a thread of a task on this CPU, if that was after `accounted_since`.
    pub(super) woken_from_afar: Option<Ns>,
    pub(super) known: bool,
    pub(super) steals: VecDeque<Steal>,
    pub(super) intervals: VecDeque<(Ns, Ns, i32, ThreadName)>,
}

impl Cpu {
    fn push_steal(&mut self, steal: Steal) {
        if self.steals.len() == INTERVALS {
            self.steals.pop_front();
        }
        self.steals.push_back(steal);
    }

    /// Returns the steal until `at` that is not known yet; `None` if there was none. `task`: whether the thread that had the CPU belongs to a
    /// task. `waiting`: returns the time since which a job has been waiting for the CPU.
    ///
    /// A CPU that wakes a thread on another CPU sets the other CPU's clock of accounted time, without knowing how much time is being withheld from
    /// the other CPU. Time withheld until then is accounted to the thread that seems to have the CPU. Later the kernel can leave out no more than the
    /// time since then. If it leaves out all of that time, except for interrupts that waited, all of the time before may have been withheld as well.
    /// [Linux, kernel/sched/core.c, update_rq_clock_task]
    fn withheld(&self, at: Ns, task: bool, waiting: impl Fn() -> Option<Ns>) -> Option<Steal> {
        let accounted = if self.running == 0 { Ns(0) } else { self.accounted? };
        let all = at.0.saturating_sub(self.accounted_since.0);
        let unaccounted = all.saturating_sub(accounted.0);
        let since_woken = self.woken_from_afar.map_or(0, |woken| at.0.saturating_sub(woken.0));
        let unaccounted = match since_woken >= BEGIN_MAX && unaccounted + INTERRUPTS_MAX >= since_woken {
            true => all,
            false => unaccounted,
        };
        let (from, time, least) = if task {
            (self.accounted_since, unaccounted, STEAL_MIN)
        } else {
            // Only steal time while a job waits matters. Nothing is accounted to the idle task, so all its time since then is unaccounted.
            let from = self.accounted_since.max(waiting()?);
            (from, unaccounted.min(at.0.saturating_sub(from.0)), BEGIN_MAX)
        };
        (time >= least).then_some(Steal { from, to: at, time: Ns(time) })
    }
}

impl JobTracker {
    /// Adds `time`, which the kernel accounts to `thread` on the CPU `by`. If the switch to a thread of a task was not reported, it is inferred.
    pub(super) fn account(&mut self, at: Ns, by: CpuId, thread: i32, time: Ns) {
        if let Some(watched) = self.task_of(thread).and_then(|task| self.watched[task].as_ref()) {
            let id = watched.cpu;
            let Some(cpu) = self.cpu(id) else { return };
            if !cpu.known || cpu.running != thread {
                // The switch to the thread was not reported: some kernels do not report how an idle CPU passes to a thread. If the CPU was to
                // wake the thread while it was idle, the switch is assumed to have happened then, so unaccounted time since then is steal time.
                // Otherwise this applies to the opening of the job, if the thread began much later.
                let since = Ns(at.0.saturating_sub(time.0).max(cpu.since.0));
                let since_idle = |at: &Ns| self.hypervisor && cpu.known && cpu.running == 0 && *at >= cpu.since;
                let withheld = |opened: &Ns| since.0.saturating_sub(opened.0) > BEGIN_MAX;
                let opened = watched.open.map(|open| open.opened);
                let woken = watched.woken_here.filter(since_idle).or(opened.filter(since_idle).filter(withheld));
                self.switch(
                    woken.unwrap_or(since),
                    id,
                    cpu.running,
                    SwitchOut::Preempted,
                    thread,
                    ThreadName::default(),
                );
            }
        }
        // Any CPU may account the time. It belongs to the CPU on which the thread runs.
        let task = self.task_of(thread);
        let mut running = self.cpus.iter_mut().enumerate().filter_map(|(id, cpu)| Some((id, cpu.as_mut()?)));
        let Some((id, cpu)) = running.find(|(_, cpu)| cpu.known && cpu.running == thread) else { return };
        cpu.accounted.get_or_insert_default().0 += time.0;
        // What is being withheld of a CPU no other CPU knows.
        let Some(task) = task.filter(|_| self.hypervisor && by.0 as usize == id) else { return };
        let steal = cpu.withheld(at, true, || None);
        cpu.woken_from_afar = None;
        if let Some(steal) = steal {
            cpu.push_steal(steal);
            (cpu.accounted_since, cpu.accounted) = (at, Some(Ns(0)));
            self.deduct(task, steal);
        }
        // The misses of the last job are known once the thread leaves the CPU.
        self.report_complete(task, usize::from(self.counted));
    }

    /// Processes the switch of CPU `id` from thread `from` to thread `to`, whose name is `name`.
    pub(super) fn switch(&mut self, at: Ns, id: CpuId, from: i32, reason: SwitchOut, to: i32, name: ThreadName) {
        let leaving = self.task_of(from);
        let mut steal = None;
        let waiting = || {
            let here = self.watched.iter().flatten().filter(|watched| watched.cpu == id);
            here.filter_map(|watched| watched.waiting(from == 0)).min()
        };
        if let Some(cpu) = self.cpus.get_mut(id.0 as usize).and_then(Option::as_mut) {
            if cpu.known {
                steal = cpu.withheld(at, leaving.is_some(), waiting).filter(|_| self.hypervisor);
                steal.into_iter().for_each(|steal| cpu.push_steal(steal));
                if cpu.intervals.len() == INTERVALS {
                    cpu.intervals.pop_front();
                }
                cpu.intervals.push_back((cpu.since, at, cpu.running, cpu.name));
            }
            (cpu.running, cpu.name, cpu.since, cpu.known) = (to, name, at, true);
            (cpu.accounted_since, cpu.accounted, cpu.woken_from_afar) = (at, None, None);
        }
        if let Some(task) = leaving {
            steal.into_iter().for_each(|steal| self.deduct(task, steal));
            self.leave(task, at, reason);
        }
        if let Some(task) = self.task_of(to)
            && let Some(watched) = &mut self.watched[task]
        {
            if !matches!(watched.state, State::Awake | State::Running) {
                watched.awake_since = at;
            }
            (watched.state, watched.blocked) = (State::Running, false);
            watched.running_since = at;
            watched.missed = None;
            if let Some(open) = &mut watched.open {
                open.start.get_or_insert(at);
            }
        }
    }

    /// Returns the activity of the CPU of `task` from `from` to `to`, both counted from the first release. `names`: the names of the tasks.
    pub fn timeline(&self, task: usize, from: Ns, to: Ns, names: &[String]) -> Vec<CpuInterval> {
        let Some(cpu) = self.watched[task].as_ref().and_then(|watched| self.cpu(watched.cpu)) else {
            return Vec::new();
        };
        let count = |at: Ns| Ns(at.0.saturating_sub(self.begin.0));
        let what = |thread: i32, name: ThreadName| match self.task_of(thread) {
            Some(task) => names[task].clone(),
            None if thread == 0 => String::new(),
            None => name.to_string(),
        };
        let now = (cpu.since, to.max(cpu.since), cpu.running, cpu.name);
        let all = cpu.intervals.iter().chain([&now]);
        let (from, to) = (Ns(from.0 + self.begin.0), Ns(to.0 + self.begin.0));
        let now_to = to;
        all.filter(|interval| interval.1 > from && interval.0 < to)
            .map(|&(begin, end, thread, name)| CpuInterval {
                from: count(begin.max(from)),
                to: count(end.min(now_to)),
                what: what(thread, name),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use SwitchOut::{Asleep, Preempted};
    use isochrome_model::running::JobRecord;
    use isochrome_model::taskset::programs::Jobs;

    use super::super::fixture::{CPU, Fixture};
    use super::super::{Observation, Observed};
    use super::*;
    use crate::sched::EventKind;
    use crate::sys::perf::GroupReading;

    #[test]
    fn steal_time_is_what_a_thread_had_and_was_not_accounted() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(850, 22, Asleep, 11).switch(900, 11, Asleep, 0).wake(2000, 11).switch(2000, 0, Preempted, 11);
        fixture.event(102_000, EventKind::Runtime { thread: 11, time: Ns(60_000) });
        fixture.event(112_000, EventKind::Runtime { thread: 11, time: Ns(10_000) }).switch(112_000, 11, Asleep, 0);
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        assert_eq!((jobs[0].steal_time, jobs[0].execution, jobs[0].response()), (Ns(40_000), Ns(70_000), Ns(110_000)));
        // A job that waits for another job with steal time has steal time as well.
        fixture.wake(200_000, 22).switch(200_000, 0, Preempted, 22).wake(205_000, 11);
        fixture.event(230_000, EventKind::Runtime { thread: 22, time: Ns(10_000) }).switch(230_000, 22, Asleep, 11);
        fixture.switch(240_000, 11, Asleep, 0);
        fixture.0.take(&mut jobs);
        assert_eq!((jobs[2].task, jobs[2].steal_time, jobs[2].execution), (0, Ns(20_000), Ns(10_000)));
    }

    #[test]
    fn a_job_whose_answer_is_read_before_its_program_sleeps_has_its_steal_time() {
        let mut fixture = Fixture::new(Jobs::Line);
        fixture.switch(900, 11, Asleep, 0).fact(11_000, Observed::Released(0, Ns(11_000)));
        fixture.wake(11_000, 11).switch(11_000, 0, Preempted, 11);
        // Of 11.3 ms the CPU was withheld for 11. The answer is read 1 us before the program sleeps.
        fixture.fact(11_310_000, Observed::Answered(0));
        fixture
            .event(11_311_000, EventKind::Runtime { thread: 11, time: Ns(300_000) })
            .switch(11_311_000, 11, Asleep, 0);
        // The next line was due in this time.
        fixture.fact(11_312_000, Observed::Released(0, Ns(5_011_000))).wake(11_312_000, 11);
        fixture.switch(11_320_000, 0, Preempted, 11);
        fixture
            .event(11_490_000, EventKind::Runtime { thread: 11, time: Ns(170_000) })
            .switch(11_490_000, 11, Asleep, 0);
        fixture.fact(11_491_000, Observed::Answered(0));
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        let rows: Vec<_> = jobs.iter().map(|j| (j.response().0, j.execution.0, j.steal_time.0, j.steals)).collect();
        let held_up = 2000;
        assert_eq!(rows, [(11_299_000, 299_000, 11_000_000, 1), (6_479_000, 170_000, 11_000_000 + held_up, 1)]);
    }

    #[test]
    fn a_wake_up_by_another_cpu_hides_nothing_of_what_is_withheld_meanwhile() {
        let mut fixture = Fixture::new(Jobs::Line);
        let rows = |fixture: &mut Fixture| {
            let mut jobs = Vec::new();
            fixture.0.take(&mut jobs);
            jobs.into_iter().map(|j| (j.task, j.response().0, j.execution.0, j.steal_time.0)).collect::<Vec<_>>()
        };
        let wake_from_afar = |fixture: &mut Fixture, at, thread| {
            let what = Observed::Scheduler(CpuId(0), EventKind::Wakeup { thread });
            fixture.0.note(Observation { at: Ns(at), what });
        };
        // Thread 99 has the CPU when the line of 11 is written. The CPU is withheld from then on for 15 ms. 5 ms later 22 is woken by the other
        // CPU, and the kernel accounts these 5 ms to 99, and 60 us for the interrupts at the end.
        fixture
            .switch(850, 22, Asleep, 11)
            .switch(900, 11, Asleep, 99)
            .fact(101_000, Observed::Released(0, Ns(101_000)));
        wake_from_afar(&mut fixture, 101_000, 11);
        wake_from_afar(&mut fixture, 5_101_000, 22);
        fixture.event(15_101_000, EventKind::Runtime { thread: 99, time: Ns(5_100_000 + 60_000) });
        fixture.switch(15_101_000, 99, Preempted, 11);
        fixture
            .event(15_201_000, EventKind::Runtime { thread: 11, time: Ns(100_000) })
            .switch(15_201_000, 11, Asleep, 22);
        fixture.fact(15_202_000, Observed::Answered(0));
        fixture
            .event(15_301_000, EventKind::Runtime { thread: 22, time: Ns(100_000) })
            .switch(15_301_000, 22, Asleep, 0);
        assert_eq!(rows(&mut fixture), [(0, 15_100_000, 100_000, 15_000_000), (1, 10_200_000, 100_000, 15_000_000)]);
        // 22 executes for 100 us, then its CPU is withheld for 3 ms. After 2 ms 11 is woken.
        fixture.wake(20_000_000, 22).switch(20_000_000, 0, Preempted, 22);
        fixture.fact(22_100_000, Observed::Released(0, Ns(22_100_000)));
        wake_from_afar(&mut fixture, 22_100_000, 11);
        fixture
            .event(23_100_000, EventKind::Runtime { thread: 22, time: Ns(2_100_000) })
            .switch(23_100_000, 22, Preempted, 11);
        fixture
            .event(23_200_000, EventKind::Runtime { thread: 11, time: Ns(100_000) })
            .switch(23_200_000, 11, Asleep, 22);
        fixture.fact(23_201_000, Observed::Answered(0));
        fixture
            .event(23_300_000, EventKind::Runtime { thread: 22, time: Ns(100_000) })
            .switch(23_300_000, 22, Asleep, 0);
        assert_eq!(rows(&mut fixture), [(0, 1_100_000, 100_000, 1_000_000), (1, 3_300_000, 100_000, 3_100_000)]);
        // Where the CPU goes on for 1 ms after a wake-up, for which all time is accounted, nothing was withheld.
        fixture.wake(30_000_000, 11).switch(30_000_000, 0, Preempted, 11);
        wake_from_afar(&mut fixture, 30_100_000, 22);
        fixture
            .event(31_100_000, EventKind::Runtime { thread: 11, time: Ns(1_100_000) })
            .switch(31_100_000, 11, Asleep, 22);
        fixture
            .event(31_200_000, EventKind::Runtime { thread: 22, time: Ns(100_000) })
            .switch(31_200_000, 22, Asleep, 0);
        assert_eq!(rows(&mut fixture), [(1, 1_100_000, 100_000, 0)]);
    }

    #[test]
    fn jobs_of_one_time_slice_have_the_steal_time_between_two_times_at_which_the_kernel_accounts() {
        let mut fixture = Fixture::new(Jobs::Marks);
        let accounted = |fixture: &mut Fixture, at, time| {
            fixture.event(at, EventKind::Runtime { thread: 11, time: Ns(time) });
        };
        fixture.switch(900, 11, Asleep, 0).wake(11_000, 11).switch(11_000, 0, Preempted, 11);
        fixture.fact(11_000, Observed::Begins(0)).fact(111_000, Observed::Ends(0));
        accounted(&mut fixture, 111_000, 100_000);
        // 50 us are withheld during one of two jobs, 20 us and less are not known as such.
        fixture.fact(120_000, Observed::Begins(0)).fact(190_000, Observed::Ends(0));
        fixture.fact(190_000, Observed::Begins(0)).fact(250_000, Observed::Ends(0));
        accounted(&mut fixture, 250_000, 89_000);
        fixture.fact(260_000, Observed::Begins(0)).fact(300_000, Observed::Ends(0));
        accounted(&mut fixture, 300_000, 31_000);
        fixture.fact(310_000, Observed::Begins(0)).fact(350_000, Observed::Ends(0));
        assert_eq!(fixture.0.pending(0), None);
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        let rows: Vec<_> = jobs.iter().map(|job| (job.execution.0, job.steal_time.0)).collect();
        assert_eq!(rows, [(100_000, 0), (20_000, 50_000), (10_000, 50_000), (40_000, 0)]);
        accounted(&mut fixture, 360_000, 60_000);
        fixture.0.take(&mut jobs);
        assert_eq!((jobs.len(), jobs[4].execution.0), (5, 40_000));
    }

    #[test]
    fn a_switch_that_the_kernel_did_not_tell_is_known_by_the_time_accounted() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(900, 11, Asleep, 99).wake(2000, 11);
        // 11 got the CPU from 99 at 2100, and is accounted 400 ns when it leaves.
        fixture.event(2500, EventKind::Runtime { thread: 11, time: Ns(400) }).switch(2501, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), [(0, 0, 1000, 1100, 1501, 401, 0)]);
    }

    #[test]
    fn what_an_idle_cpu_withholds_from_a_thread_it_is_to_wake_is_steal_time() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        // The switch to 11 is not reported.
        fixture.switch(900, 11, Asleep, 0).wake(2000, 11);
        fixture.event(62_000, EventKind::Runtime { thread: 11, time: Ns(10_000) }).switch(62_001, 11, Asleep, 0);
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        assert_eq!((jobs[0].start, jobs[0].execution, jobs[0].steal_time), (Ns(1000), Ns(10_001), Ns(50_000)));
        assert_eq!(jobs[0].response(), Ns(60_001));
        // The wake-up of 11 is not reported either: a delay of 90 us may come from an idle state, one of 250 us may not.
        let mut fixture = Fixture::new(Jobs::Line);
        for (release, ran) in [(1_000_000, 1_100_000), (2_000_000, 2_260_000)] {
            fixture.switch(release - 500, 11, Asleep, 0).fact(release, Observed::Released(0, Ns(release)));
            fixture.event(ran, EventKind::Runtime { thread: 11, time: Ns(10_000) }).switch(ran + 1, 11, Asleep, 0);
            fixture.fact(ran + 10, Observed::Answered(0));
        }
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        let row = |job: &JobRecord| (job.start.0, job.execution.0, job.steal_time.0);
        assert_eq!(jobs.iter().map(row).collect::<Vec<_>>(), [(1_089_000, 10_001, 0), (1_999_000, 10_001, 250_000)]);
    }

    #[test]
    fn what_an_idle_cpu_withholds_before_it_serves_the_interrupt_that_wakes_a_thread_is_steal_time() {
        let mut steal_times = [Some(11_010), None].map(|waking| {
            let mut fixture = Fixture::new(Jobs::Line);
            fixture.switch(900, 11, Asleep, 0).fact(11_000, Observed::Released(0, Ns(11_000)));
            // Another CPU writes the line. That this CPU shall wake the thread is known at once, that it does so 1.6 ms later.
            if let Some(at) = waking {
                fixture.event(at, EventKind::Waking { thread: 11 });
            }
            fixture.wake(1_611_010, 11).switch(1_611_020, 0, Preempted, 11).switch(1_621_020, 11, Asleep, 0);
            fixture.fact(1_621_030, Observed::Answered(0));
            let mut jobs = Vec::new();
            fixture.0.take(&mut jobs);
            (jobs[0].release.0, jobs[0].response().0, jobs[0].steal_time.0)
        });
        steal_times.sort_unstable();
        assert_eq!(steal_times, [(10_000, 1_610_020, 0), (10_000, 1_610_020, 1_600_010)]);
    }

    #[test]
    fn steal_time_of_another_thread_or_of_an_idle_cpu_counts_for_the_job_that_waits() {
        let mut fixture = Fixture::new(Jobs::Line);
        let rows = |fixture: &mut Fixture| {
            let mut jobs = Vec::new();
            fixture.0.take(&mut jobs);
            jobs.into_iter().map(|j| (j.release.0, j.start.0, j.steal_time.0, j.execution.0)).collect::<Vec<_>>()
        };
        // Thread 99 has the CPU for 900 us, of which 100 us are accounted to it. They may be accounted by another CPU.
        fixture.switch(1_000, 11, Asleep, 99).fact(101_000, Observed::Released(0, Ns(101_000)));
        fixture.wake(900_000, 11).0.note(Observation {
            at: Ns(901_000),
            what: Observed::Scheduler(CpuId(0), EventKind::Runtime { thread: 99, time: Ns(100_000) }),
        });
        fixture.switch(901_000, 99, Preempted, 11).event(951_000, EventKind::Runtime { thread: 11, time: Ns(50_000) });
        fixture.switch(951_000, 11, Asleep, 0).fact(952_000, Observed::Answered(0));
        assert_eq!(rows(&mut fixture), [(100_000, 900_000, 800_000, 50_000)]);
        // The CPU is idle for 150 us, which may come from an idle state, and for 300 us, which may not.
        for (release, start) in [(2_001_000, 2_151_000), (3_001_000, 3_301_000)] {
            fixture.fact(release, Observed::Released(0, Ns(release))).wake(release, 11).switch(start, 0, Preempted, 11);
            fixture.event(start + 1000, EventKind::Runtime { thread: 11, time: Ns(1000) }).switch(
                start + 1000,
                11,
                Asleep,
                0,
            );
            fixture.fact(start + 2000, Observed::Answered(0));
        }
        let expected = [(2_000_000, 2_150_000, 0, 1000), (3_000_000, 3_300_000, 300_000, 1000)];
        assert_eq!(rows(&mut fixture), expected);
        // A program that sleeps for 300 us before it takes the line is late by itself.
        fixture.fact(3_311_000, Observed::Released(0, Ns(3_311_000))).wake(3_320_000, 11);
        fixture.switch(3_320_000, 0, Preempted, 11).switch(3_321_000, 11, Asleep, 0).wake(3_621_000, 11);
        fixture.switch(3_621_000, 0, Preempted, 11).event(3_622_000, EventKind::Runtime { thread: 11, time: Ns(1000) });
        fixture.switch(3_622_000, 11, Asleep, 0).fact(3_623_000, Observed::Answered(0));
        assert_eq!(rows(&mut fixture), [(3_310_000, 3_319_000, 0, 2000)]);
        // The steal time of 99 before the release has not delayed the job.
        fixture
            .switch(3_800_000, 0, Preempted, 99)
            .wake(4_400_000, 11)
            .fact(4_351_000, Observed::Released(0, Ns(4_351_000)));
        fixture
            .event(4_401_000, EventKind::Runtime { thread: 99, time: Ns(500_000) })
            .switch(4_401_000, 99, Preempted, 11);
        fixture.event(4_402_000, EventKind::Runtime { thread: 11, time: Ns(1000) }).switch(4_402_000, 11, Asleep, 0);
        fixture.fact(4_403_000, Observed::Answered(0));
        assert_eq!(rows(&mut fixture), [(4_350_000, 4_400_000, 0, 1000)]);
        // The line may have been written 250 us later than reported. The release does not change, but the time counts as steal time.
        fixture
            .fact(5_001_000, Observed::Released(0, Ns(5_001_000)))
            .fact(5_251_000, Observed::HeldUp(0, Ns(5_001_000)));
        fixture
            .switch(5_011_000, 0, Preempted, 99)
            .wake(5_261_000, 11)
            .event(5_261_000, EventKind::Runtime { thread: 99, time: Ns(250_000) });
        fixture
            .switch(5_261_000, 99, Preempted, 11)
            .event(5_262_000, EventKind::Runtime { thread: 11, time: Ns(1000) });
        fixture.switch(5_262_000, 11, Asleep, 0).fact(5_263_000, Observed::Answered(0));
        assert_eq!(rows(&mut fixture), [(5_000_000, 5_260_000, 250_000, 1000)]);
    }

    #[test]
    fn steal_time_counts_for_all_jobs_until_the_cpu_is_idle() {
        let mut fixture = Fixture::new(Jobs::Line);
        // The first job has 30 us of steal time. The second is due in this time, and its line is written 1 us after the first job is complete.
        // 22 is woken while the second executes.
        fixture.switch(850, 22, Asleep, 11).switch(900, 11, Asleep, 0);
        fixture.fact(11_000, Observed::Released(0, Ns(11_000))).switch(11_000, 0, Preempted, 11);
        fixture.event(61_000, EventKind::Runtime { thread: 11, time: Ns(20_000) }).switch(61_000, 11, Asleep, 0);
        fixture.fact(62_000, Observed::Answered(0)).fact(62_000, Observed::Released(0, Ns(31_000)));
        fixture
            .switch(63_000, 0, Preempted, 11)
            .wake(70_000, 22)
            .event(73_000, EventKind::Runtime { thread: 11, time: Ns(10_000) });
        fixture.switch(73_000, 11, Asleep, 22).fact(74_000, Observed::Answered(0));
        fixture.event(80_000, EventKind::Runtime { thread: 22, time: Ns(7000) }).switch(80_000, 22, Asleep, 0);
        // The CPU has been idle since then, so the last job has no steal time.
        fixture.fact(91_000, Observed::Released(0, Ns(91_000))).switch(91_000, 0, Preempted, 11);
        fixture.event(95_000, EventKind::Runtime { thread: 11, time: Ns(4000) }).switch(95_000, 11, Asleep, 0);
        fixture.fact(96_000, Observed::Answered(0));
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        let rows: Vec<_> = jobs.iter().map(|j| (j.task, j.release.0, j.completion.0, j.steal_time.0)).collect();
        let expected = [
            (0, 10_000, 60_000, 30_000),
            (0, 30_000, 72_000, 31_000),
            (1, 69_000, 79_000, 30_000),
            (0, 90_000, 94_000, 0),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn the_timeline_of_a_violation_says_who_had_the_cpu() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(900, 11, Asleep, 0).wake(2000, 11);
        fixture.0.note(Observation {
            at: Ns(2000),
            what: Observed::Scheduler(
                CPU,
                EventKind::Switch {
                    from: 0,
                    from_name: ThreadName::default(),
                    reason: Preempted,
                    to: 99,
                    to_name: ThreadName::of(b"kworker"),
                    reading: GroupReading::default(),
                },
            ),
        });
        fixture.switch(2500, 99, Preempted, 11).switch(2600, 11, Asleep, 0);
        let names = ["control".to_owned(), "other".to_owned()];
        let intervals = fixture.0.timeline(0, Ns(900), Ns(1600), &names);
        let row = |s: &CpuInterval| (s.from.0, s.to.0, s.what.clone());
        assert_eq!(
            intervals.iter().map(row).collect::<Vec<_>>(),
            [(900, 1000, String::new()), (1000, 1500, "kworker".to_owned()), (1500, 1600, "control".to_owned())]
        );
    }
}
