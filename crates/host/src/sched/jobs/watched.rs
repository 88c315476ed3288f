//! State of a watched task: what its thread does, and the jobs that follow from it.

use isochrome_model::running::JobRecord;
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::SwitchOut;

use super::JobTracker;
use super::cpu::{INTERRUPTS_MAX, Steal};

/// A job that is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// Time at which the job was opened: at its release or later.
    pub(super) opened: Ns,
    pub(super) release: Ns,
    pub(super) start: Option<Ns>,
    /// Time of the answer, if the answer was read before the thread was known to have the CPU.
    pub(super) answered: Option<Ns>,
    /// Time, in ns, for which the job's line was not written although the task could have begun, or may not have been written.
    pub(super) held_up: u64,
    pub(super) execution: u64,
    /// Steal time, in ns, that was left out of the execution.
    pub(super) deducted: u64,
    pub(super) preemptions: u32,
    pub(super) misses: Option<u64>,
}

/// A complete job whose thread still has the CPU. Its steal time is known once the kernel accounts time to the thread, and its misses are known once
/// the thread leaves the CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Complete {
    open: Open,
    at: Ns,
    instance: u64,
    busy: BusyPeriod,
}

/// State of a thread, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Unknown,
    Asleep(Ns),
    Awake,
    Running,
}

/// A busy period of a CPU at a rank: the time in which the CPU always has a job of that rank or a smaller one.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyPeriod {
    /// Time at which the busy period began.
    pub(super) since: Ns,
    /// Earliest beginning of the last jobs of the tasks that can execute in the busy period. The lines that these jobs loaded are still in the cache,
    /// unless the hypervisor took the CPU after this time.
    pub(super) warm_since: Ns,
}

/// A watched task, and what is known of the thread that executes its jobs.
pub(super) struct Watched {
    pub(super) thread: i32,
    pub(super) jobs: Jobs,
    pub(super) cpu: CpuId,
    /// Rank of the task, whose jobs are delayed by jobs of the same or a smaller rank.
    pub(super) rank: usize,
    /// Last busy period of the CPU at this rank that is known to have begun; `None` before the first.
    pub(super) busy: Option<BusyPeriod>,
    pub(super) state: State,
    /// Time up to which the thread's time on the CPU has been added to the execution.
    pub(super) running_since: Ns,
    /// Time since which the kernel has been waking the thread; `None` if that is not known, or the thread is awake.
    pub(super) waking: Option<Ns>,
    pub(super) woken: Ns,
    /// Time of the last wake-up of the thread, if it was recorded on the thread's own CPU.
    pub(super) woken_here: Option<Ns>,
    pub(super) awake_since: Ns,
    /// Whether the thread left the CPU to wait for the kernel or a device.
    pub(super) blocked: bool,
    pub(super) open: Option<Open>,
    /// Complete jobs that are not reported yet.
    pub(super) complete: Vec<Complete>,
    /// Misses of the thread since it got the CPU, which it is about to leave.
    pub(super) missed: Option<u64>,
    pub(super) next: u64,
    /// Time at which the last complete job first had the CPU; 0 before the first job.
    pub(super) begun: Ns,
    /// Time at which the last job was complete.
    pub(super) completed: Ns,
}

impl Watched {
    /// Creates the state of a task whose jobs `thread` executes on `cpu` only. `next` is the number of the first job.
    pub(super) fn new(thread: i32, jobs: Jobs, (cpu, rank): (CpuId, usize), next: u64) -> Watched {
        Watched {
            thread,
            jobs,
            cpu,
            rank,
            busy: None,
            state: State::Unknown,
            running_since: Ns(0),
            waking: None,
            woken: Ns(0),
            woken_here: None,
            awake_since: Ns(0),
            blocked: false,
            open: None,
            complete: Vec::new(),
            missed: None,
            next,
            begun: Ns(0),
            completed: Ns(0),
        }
    }

    /// Returns the time since which the job has been waiting for the CPU; `None` if no job waits. `idle`: whether the CPU is idle.
    pub(super) fn waiting(&self, idle: bool) -> Option<Ns> {
        let open = self.open.filter(|_| self.state == State::Awake && !self.blocked)?;
        // A busy CPU that is to wake the thread may report the wake-up late, so there the job waits since its line was written. On an idle CPU
        // the thread may have slept for reasons of its own, so there the job waits since the wake-up.
        let written = self.jobs == Jobs::Line && open.start.is_none() && !idle;
        Some(if written { open.opened } else { self.awake_since })
    }
}

impl JobTracker {
    /// Processes the line by which the program answers, at the time `at`, that the job of `task` is complete.
    pub(super) fn answer(&mut self, task: usize, at: Ns) {
        let Some(Watched { state, open: Some(open), .. }) = &mut self.watched[task] else { return };
        match *state {
            // The thread was not woken since, so the answer was written before the thread slept.
            State::Asleep(since) if open.start.is_some_and(|start| start <= since) => self.complete(task, since),
            // The answer shows that the thread had the CPU. For how long is reported when the thread leaves the CPU.
            _ if open.start.is_none() => open.answered = Some(at),
            _ => self.complete(task, at),
        }
    }

    /// Opens a job of `task` at the time `at`, at which its line was written. The job was due at `release`.
    ///
    /// A line that waits for the previous job counts as written when that job is complete. If it is written later, its writer was held up.
    pub(super) fn open_by_line(&mut self, task: usize, at: Ns, release: Ns) {
        self.open(task, at, release);
        let Some(watched) = &mut self.watched[task] else { return };
        let possible = release.max(watched.completed);
        watched.open.iter_mut().for_each(|open| open.held_up = at.0.saturating_sub(possible.0));
    }

    /// Opens a job of `task` at the time `at`. The job was released at `release`.
    pub(super) fn open(&mut self, task: usize, at: Ns, release: Ns) {
        if let Some(answered) = self.watched[task].as_ref().and_then(|watched| watched.open?.answered) {
            self.complete(task, answered);
        }
        let Some(watched) = &mut self.watched[task] else { return };
        let running = watched.state == State::Running;
        if running {
            watched.running_since = at;
        }
        let (cpu, rank, waited) = (watched.cpu, watched.rank, release < watched.completed);
        // If two jobs share an interval on the CPU, the misses of neither are known.
        let apart = watched.complete.is_empty();
        watched.complete.iter_mut().for_each(|complete| complete.open.misses = None);
        watched.open = Some(Open {
            opened: at,
            release,
            start: running.then_some(at),
            answered: None,
            held_up: 0,
            execution: 0,
            deducted: 0,
            preemptions: 0,
            misses: (self.counted && apart).then_some(0),
        });
        if !waited {
            self.begin_busy_periods(cpu, rank, release);
        }
    }

    /// Begins the busy periods on `cpu` whose only job is the one of this rank that was just opened. That job was released at `release`.
    fn begin_busy_periods(&mut self, cpu: CpuId, rank: usize, release: Ns) {
        for at in 0..self.watched.len() {
            let delayed = self.watched[at].as_ref().filter(|watched| watched.cpu == cpu && watched.rank >= rank);
            let Some(of) = delayed.map(|watched| watched.rank) else { continue };
            if self.delaying(cpu, of).count() > 1 {
                continue;
            }
            let busy = Some(BusyPeriod { since: release, warm_since: self.warm_since(cpu, of) });
            self.watched[at].iter_mut().for_each(|watched| watched.busy = busy);
        }
    }

    /// Returns the tasks with a job on `cpu` that delays jobs of this rank.
    fn delaying(&self, cpu: CpuId, rank: usize) -> impl Iterator<Item = &Watched> {
        let delays = move |it: &&Watched| it.cpu == cpu && it.rank <= rank && it.open.is_some();
        self.watched.iter().flatten().filter(delays)
    }

    /// Returns the earliest beginning of the last jobs of all tasks that can execute in a busy period at this rank that begins now: tasks of
    /// this rank and above, and tasks below that have a job, which can block the others.
    fn warm_since(&self, cpu: CpuId, rank: usize) -> Ns {
        let executing = |it: &&Watched| it.cpu == cpu && (it.rank <= rank || it.open.is_some());
        self.watched.iter().flatten().filter(executing).map(|watched| watched.begun).min().unwrap_or_default()
    }

    /// Returns the busy period at this rank that `cpu` is in, for a task that was not watched until now; `None` if no job delays jobs of this
    /// rank. It began no later than the busy periods of the tasks that have such a job.
    pub(super) fn busy_at(&self, cpu: CpuId, rank: usize) -> Option<BusyPeriod> {
        let since = self.delaying(cpu, rank).filter_map(|watched| Some(watched.busy?.since)).min()?;
        Some(BusyPeriod { since, warm_since: Ns(0) })
    }

    /// Completes the job of `task` at the time `at`.
    pub(super) fn complete(&mut self, task: usize, at: Ns) {
        let Some(watched) = &mut self.watched[task] else { return };
        let Some(mut open) = watched.open.take() else { return };
        let running = watched.state == State::Running;
        if running {
            open.execution += at.0.saturating_sub(watched.running_since.0);
            watched.running_since = at;
        }
        if open.release < self.begin {
            return;
        }
        let busy = watched.busy.unwrap_or(BusyPeriod { since: open.release, warm_since: watched.begun });
        let complete = Complete { open, at, instance: watched.next, busy };
        (watched.next, watched.begun, watched.completed) = (watched.next + 1, open.start.unwrap_or(at), at);
        if running && (self.counted || self.hypervisor) {
            watched.complete.push(complete);
        } else {
            self.report(task, complete);
        }
    }

    /// Reports a complete job of `task` with the steal time that is known by now.
    fn report(&mut self, task: usize, Complete { open, at, instance, busy }: Complete) {
        let Some(watched) = &self.watched[task] else { return };
        let since = busy.since.min(open.release);
        let cpu = self.cpu(watched.cpu);
        let after = |at: Ns| {
            cpu.into_iter().flat_map(move |cpu| cpu.steals.iter().rev().take_while(move |steal| steal.to > at))
        };
        let is_cold = after(busy.warm_since).any(|steal| steal.to <= since);
        // Of a steal that began before the busy period or ended after the job, at most this much time was taken in between.
        let taken = |steal: &Steal| steal.time.0.min(steal.to.min(at).0 - since.max(steal.from).0);
        let (steal_time, steals) =
            after(since).filter(|steal| steal.from < at).fold((0, 0), |(time, n), steal| (time + taken(steal), n + 1));
        let mut before = 0;
        for steal in cpu.into_iter().flat_map(|cpu| cpu.steals.iter().rev()).filter(|steal| steal.from < since) {
            let part = steal.time.0.min(since.0 - steal.from.0);
            if since.0.saturating_sub(steal.to.0) > before + part + INTERRUPTS_MAX {
                break;
            }
            before += part;
        }
        let start = open.start.unwrap_or(at);
        self.done.push(JobRecord {
            task,
            instance,
            release: Ns(open.release.0 - self.begin.0),
            start: Ns(start.0.saturating_sub(self.begin.0)),
            completion: Ns(at.0.saturating_sub(self.begin.0)),
            execution: Ns(open.execution),
            steal_time: Ns(steal_time + open.held_up),
            steals: steals + u32::from(is_cold),
            steal_before: Ns(before),
            busy: Ns(open.release.0 - since.0),
            deducted: Ns(open.deducted),
            // Of a job that was never seen on the CPU, as records were lost, nothing is known.
            misses: open.misses.filter(|_| open.start.is_some()),
            preemptions: open.preemptions,
        });
    }

    /// Reports the complete jobs of `task` whose thread has the CPU, but for the last `kept`.
    pub(super) fn report_complete(&mut self, task: usize, kept: usize) {
        let Some(watched) = &mut self.watched[task] else { return };
        let known = watched.complete.len().saturating_sub(kept);
        let complete: Vec<Complete> = watched.complete.drain(..known).collect();
        complete.into_iter().for_each(|complete| self.report(task, complete));
    }

    /// Reports the complete jobs of `task` whose thread has the CPU, without misses.
    pub(super) fn report_without_misses(&mut self, task: usize) {
        if let Some(watched) = &mut self.watched[task] {
            watched.complete.iter_mut().for_each(|complete| complete.open.misses = None);
        }
        self.report_complete(task, 0);
    }

    /// Leaves a steal out of the execution of the jobs during which the thread of `task` had the CPU. The time of the steal is not known more
    /// exactly, so each of several jobs may have suffered all of it.
    pub(super) fn deduct(&mut self, task: usize, steal: Steal) {
        let Some(watched) = &mut self.watched[task] else { return };
        if let (State::Running, Some(open)) = (watched.state, &mut watched.open) {
            let ran = steal.to.0.saturating_sub(watched.running_since.0);
            open.execution += ran.saturating_sub(steal.time.0);
            open.deducted += steal.time.0;
            watched.running_since = steal.to;
        }
        for complete in &mut watched.complete {
            let met = steal.time.0.min(complete.at.0.saturating_sub(steal.from.0));
            complete.open.execution = complete.open.execution.saturating_sub(met);
            complete.open.deducted += met;
        }
    }

    /// Processes the wake-up of `thread`, which was recorded on `cpu`.
    ///
    /// The thread counts as woken since the kernel began to wake it, or since it slept if that was later. In between, its CPU may have been
    /// withheld, so that it did not serve the interrupt by which another CPU asks it to wake the thread.
    pub(super) fn wake(&mut self, at: Ns, cpu: CpuId, thread: i32) {
        let Some(task) = self.task_of(thread) else { return };
        let Some(watched) = &mut self.watched[task] else { return };
        if cpu != watched.cpu
            && let Some(woken) = self.cpus.get_mut(watched.cpu.0 as usize).and_then(Option::as_mut)
        {
            woken.woken_from_afar = Some(at);
        }
        let waking = watched.waking.take();
        let State::Asleep(asleep) = watched.state else { return };
        let since = waking.map_or(at, |waking| waking.max(asleep));
        watched.state = State::Awake;
        (watched.woken, watched.awake_since) = (since, since);
        watched.woken_here = (cpu == watched.cpu).then_some(since);
        if watched.jobs == Jobs::Wakeup {
            self.open(task, at, since);
        }
    }

    /// Processes that the thread of `task` leaves its CPU.
    pub(super) fn leave(&mut self, task: usize, at: Ns, reason: SwitchOut) {
        let Some(watched) = &mut self.watched[task] else { return };
        if let (State::Running, Some(open)) = (watched.state, &mut watched.open) {
            open.execution += at.0.saturating_sub(watched.running_since.0);
            open.preemptions += u32::from(reason == SwitchOut::Preempted);
        }
        let missed = watched.missed.take();
        let more = |misses: Option<u64>| Some(misses? + missed?);
        let complete = watched.complete.iter_mut().map(|complete| &mut complete.open);
        complete.chain(&mut watched.open).for_each(|open| open.misses = more(open.misses));
        watched.blocked = reason == SwitchOut::Blocked;
        watched.state = match reason {
            SwitchOut::Asleep => State::Asleep(at),
            // The thread waits for a page fault or a device, or was preempted, so the job is not complete.
            SwitchOut::Preempted | SwitchOut::Blocked | SwitchOut::Ended => State::Awake,
        };
        self.report_complete(task, 0);
        let Some(watched) = &self.watched[task] else { return };
        let answered = watched.open.and_then(|open| open.answered);
        if reason == SwitchOut::Asleep && (watched.jobs == Jobs::Wakeup || answered.is_some()) {
            self.complete(task, answered.map_or(at, |answered| answered.min(at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use SwitchOut::{Asleep, Blocked, Preempted};

    use super::super::Observed;
    use super::super::fixture::{CPU, Fixture};
    use super::*;
    use crate::sched::EventKind;

    #[test]
    fn a_job_goes_from_waking_to_sleep_and_what_preempts_it_is_not_its_execution() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(900, 11, Asleep, 22).switch(950, 22, Asleep, 0);
        // 11 is woken at 2000, has the CPU from 2010 to 2100, is preempted by 22 until 2150, and goes on until 2200.
        fixture.wake(2000, 11).switch(2010, 0, Preempted, 11).wake(2095, 22).switch(2100, 11, Preempted, 22);
        fixture.switch(2150, 22, Asleep, 11).switch(2200, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), [(1, 0, 1095, 1100, 1150, 50, 0), (0, 0, 1000, 1010, 1200, 140, 1)]);
    }

    #[test]
    fn misses_of_a_job_are_those_of_its_thread_and_not_of_what_preempts_it() {
        let mut fixture = Fixture::of(Jobs::Wakeup, true);
        let missed = |thread, count| Observed::Misses(thread, count);
        fixture.switch(800, 22, Asleep, 11).switch(900, 11, Asleep, 0).wake(2000, 11).switch(2010, 0, Preempted, 11);
        fixture.wake(2095, 22).fact(2099, missed(11, 5)).switch(2100, 11, Preempted, 22);
        fixture.fact(2149, missed(22, 70)).switch(2150, 22, Asleep, 11);
        fixture.fact(2199, missed(11, 6)).switch(2200, 11, Asleep, 0);
        // The second job has the CPU twice, and nothing is counted the first time.
        fixture.wake(3000, 11).switch(3010, 0, Preempted, 11).switch(3100, 11, Blocked, 0).wake(3110, 11);
        fixture.switch(3120, 0, Preempted, 11).fact(3199, missed(11, 8)).switch(3200, 11, Asleep, 0);
        assert_eq!(fixture.misses(), [(1, 0, Some(70)), (0, 0, Some(11)), (0, 1, None)]);
        // If nothing is counted, a complete job does not wait for its misses, but for the time that the kernel accounts.
        let mut fixture = Fixture::new(Jobs::Marks);
        fixture.switch(900, 11, Asleep, 0);
        fixture
            .wake(2000, 11)
            .switch(2010, 0, Preempted, 11)
            .fact(2020, Observed::Begins(0))
            .fact(2100, Observed::Ends(0));
        assert_eq!(fixture.misses(), []);
        fixture.event(2200, EventKind::Runtime { thread: 11, time: Ns(190) });
        assert_eq!(fixture.misses(), [(0, 0, None)]);
    }

    #[test]
    fn what_is_counted_in_one_slice_is_that_of_the_one_job_in_it() {
        let mut fixture = Fixture::of(Jobs::Marks, true);
        let turn = |fixture: &mut Fixture, at: u64, marks: &[Observed]| {
            fixture.wake(at, 11).switch(at + 10, 0, Preempted, 11);
            for (index, mark) in marks.iter().enumerate() {
                fixture.fact(at + 20 + index as u64, *mark);
            }
            fixture.fact(at + 99, Observed::Misses(11, 40)).switch(at + 100, 11, Asleep, 0);
        };
        fixture.switch(900, 11, Asleep, 0);
        turn(&mut fixture, 2000, &[Observed::Begins(0), Observed::Ends(0)]);
        turn(&mut fixture, 3000, &[Observed::Begins(0), Observed::Ends(0), Observed::Begins(0)]);
        turn(&mut fixture, 4000, &[Observed::Ends(0), Observed::Begins(0), Observed::Ends(0)]);
        // The thread sleeps within the job.
        turn(&mut fixture, 5000, &[Observed::Begins(0)]);
        turn(&mut fixture, 6000, &[Observed::Ends(0)]);
        let expected = [Some(40), None, None, None, Some(80)];
        assert_eq!(fixture.misses(), (0..5).zip(expected).map(|(at, misses)| (0, at, misses)).collect::<Vec<_>>());
        // A complete job whose thread still has the CPU is reported without misses when the events end.
        fixture
            .wake(7000, 11)
            .switch(7010, 0, Preempted, 11)
            .fact(7020, Observed::Begins(0))
            .fact(7030, Observed::Ends(0));
        assert_eq!(fixture.misses(), []);
        fixture.0.lose();
        assert_eq!(fixture.misses(), [(0, 5, None)]);
    }

    #[test]
    fn nothing_is_counted_of_a_job_whose_records_were_lost() {
        let mut fixture = Fixture::of(Jobs::Line, true);
        fixture.switch(900, 11, Asleep, 0);
        fixture.fact(2000, Observed::Released(0, Ns(2000))).fact(2100, Observed::Answered(0));
        fixture.0.lose();
        fixture.fact(3000, Observed::Released(0, Ns(3000))).fact(3100, Observed::Answered(0));
        fixture.fact(4000, Observed::Released(0, Ns(4000)));
        assert_eq!(fixture.misses(), [(0, 0, None), (0, 1, None)]);
    }

    #[test]
    fn waiting_for_a_device_does_not_complete_a_job_and_jobs_before_the_begin_do_not_count() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(10, 11, Asleep, 0).wake(500, 11).switch(510, 0, Preempted, 11).switch(600, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), []);
        fixture.wake(1500, 11).switch(1510, 0, Preempted, 11).switch(1550, 11, Blocked, 0).wake(1560, 11);
        fixture.switch(1570, 0, Preempted, 11);
        assert_eq!(fixture.0.pending(0), Some((Ns(1500), 0)));
        fixture.switch(1600, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), [(0, 0, 500, 510, 600, 70, 0)]);
    }

    #[test]
    fn a_line_completes_when_its_program_went_to_sleep_or_else_when_it_was_read() {
        let mut fixture = Fixture::new(Jobs::Line);
        fixture.switch(900, 11, Asleep, 0);
        fixture.fact(2000, Observed::Released(0, Ns(2000))).wake(2001, 11).switch(2010, 0, Preempted, 11);
        // The program answers and sleeps at 2100; the answer is read at 2180.
        fixture.switch(2100, 11, Asleep, 0).fact(2180, Observed::Answered(0));
        // The second line is due at 3000 and written at 3100, and the program is still awake when its answer is read.
        fixture.fact(3100, Observed::Released(0, Ns(3000))).wake(3101, 11).switch(3110, 0, Preempted, 11);
        fixture.fact(3200, Observed::Answered(0)).switch(3300, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), [(0, 0, 1000, 1010, 1100, 90, 0), (0, 1, 2000, 2110, 2200, 90, 0)]);
    }

    #[test]
    fn marks_of_the_program_are_believed_and_the_release_is_its_wake_up() {
        let mut fixture = Fixture::new(Jobs::Marks);
        fixture.switch(900, 11, Asleep, 0).wake(2000, 11).switch(2010, 0, Preempted, 11);
        fixture
            .fact(2020, Observed::Begins(0))
            .fact(2100, Observed::Ends(0))
            .fact(2200, Observed::Begins(0))
            .fact(2300, Observed::Ends(0))
            .switch(2400, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), [(0, 0, 1000, 1020, 1100, 80, 0), (0, 1, 1200, 1200, 1300, 100, 0)]);
    }

    #[test]
    fn steal_time_before_its_release_counts_for_a_job_only_where_its_own_priority_was_busy() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(850, 22, Asleep, 11).switch(900, 11, Asleep, 0);
        // 22, of the lower priority, has the CPU from 2000 to 102 000, of which 60 000 are withheld. 11 is woken after that, preempts 22, and
        // has no steal time.
        fixture.wake(2000, 22).switch(2000, 0, Preempted, 22);
        fixture.event(102_000, EventKind::Runtime { thread: 22, time: Ns(40_000) }).wake(102_000, 11);
        fixture.switch(102_000, 22, Preempted, 11);
        fixture.event(112_000, EventKind::Runtime { thread: 11, time: Ns(10_000) }).switch(112_000, 11, Asleep, 22);
        fixture.event(122_000, EventKind::Runtime { thread: 22, time: Ns(10_000) }).switch(122_000, 22, Asleep, 0);
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        let rows: Vec<_> = jobs.iter().map(|job| (job.task, job.steal_time.0, job.steals)).collect();
        // Job 0 has no steal time, but what its predecessor left in the cache may be displaced.
        assert_eq!(rows, [(0, 0, 1), (1, 60_000, 1)]);
    }

    #[test]
    fn a_task_that_is_followed_anew_has_the_steal_time_of_the_busy_period_that_it_comes_into() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(850, 22, Asleep, 11).switch(900, 11, Asleep, 0);
        let withhold = |fixture: &mut Fixture, at: u64, thread: i32| {
            fixture.wake(at, thread).switch(at, 0, Preempted, thread);
            fixture.event(at + 100_000, EventKind::Runtime { thread, time: Ns(40_000) });
        };
        let steal_times = |fixture: &mut Fixture| {
            let mut jobs = Vec::new();
            fixture.0.take(&mut jobs);
            jobs.iter().map(|job| (job.task, job.steal_time.0, job.busy.0)).collect::<Vec<_>>()
        };
        withhold(&mut fixture, 10_000, 22);
        fixture.switch(110_000, 22, Asleep, 0);
        assert_eq!(steal_times(&mut fixture), [(1, 60_000, 0)]);
        // The steal time of a busy period that is over does not count for the first job of the next one.
        fixture.0.follow(1, 33, Jobs::Wakeup, CPU, 1);
        fixture.switch(111_000, 0, Preempted, 33).switch(112_000, 33, Asleep, 0);
        fixture.wake(200_000, 33).switch(200_000, 0, Preempted, 33).switch(210_000, 33, Asleep, 0);
        assert_eq!(steal_times(&mut fixture), [(1, 0, 0)]);
        // The steal time of the higher task counts, because that task has a job when the other is followed.
        withhold(&mut fixture, 300_000, 11);
        fixture.0.follow(1, 44, Jobs::Wakeup, CPU, 1);
        fixture.switch(400_000, 11, Preempted, 44).switch(401_000, 44, Asleep, 11).wake(402_000, 44);
        fixture.event(403_000, EventKind::Runtime { thread: 11, time: Ns(2000) }).switch(403_000, 11, Asleep, 44);
        fixture.event(404_000, EventKind::Runtime { thread: 44, time: Ns(1000) }).switch(404_000, 44, Asleep, 0);
        assert_eq!(steal_times(&mut fixture), [(0, 60_000, 0), (1, 60_000, 102_000)]);
    }

    #[test]
    fn a_line_that_waits_for_the_writer_and_not_for_the_previous_job_was_held_up() {
        let mut fixture = Fixture::new(Jobs::Line);
        fixture.switch(900, 11, Asleep, 0).fact(2000, Observed::Released(0, Ns(2000))).wake(2010, 11);
        // The job is complete at 2100. The writer reads the answer at 8000, and writes then the line that was due at 4000.
        fixture.switch(2010, 0, Preempted, 11).switch(2100, 11, Asleep, 0).fact(8000, Observed::Answered(0));
        fixture.fact(8010, Observed::Released(0, Ns(4000))).wake(8015, 11).switch(8020, 0, Preempted, 11);
        fixture.switch(8100, 11, Asleep, 0).fact(8110, Observed::Answered(0));
        // The next line waits for its previous job, which is complete at 10 500.
        fixture.fact(9000, Observed::Released(0, Ns(9000))).wake(9010, 11).switch(9010, 0, Preempted, 11);
        fixture.switch(10_500, 11, Asleep, 0).fact(10_510, Observed::Answered(0));
        fixture.fact(10_520, Observed::Released(0, Ns(10_000))).wake(10_530, 11).switch(10_530, 0, Preempted, 11);
        fixture.switch(10_600, 11, Asleep, 0).fact(10_610, Observed::Answered(0));
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        let rows: Vec<_> = jobs.iter().map(|job| (job.release.0, job.response().0, job.steal_time.0)).collect();
        assert_eq!(rows, [(1000, 100, 0), (3000, 4100, 4010), (8000, 1500, 0), (9000, 600, 20)]);
    }

    #[test]
    fn an_answer_that_is_heard_before_its_program_is_known_to_have_the_cpu_waits_for_its_execution_time() {
        let mut fixture = Fixture::new(Jobs::Line);
        fixture.switch(900, 11, Asleep, 0).fact(2000, Observed::Released(0, Ns(2000))).wake(2010, 11);
        fixture.fact(2400, Observed::Answered(0));
        assert_eq!(fixture.jobs(), []);
        fixture.event(2410, EventKind::Runtime { thread: 11, time: Ns(395) }).switch(2411, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), [(0, 0, 1000, 1010, 1400, 401, 0)]);
        // No event of the second job is reported until the third is released.
        fixture.fact(3000, Observed::Released(0, Ns(3000))).fact(3100, Observed::Answered(0));
        fixture.fact(4000, Observed::Released(0, Ns(4000)));
        assert_eq!(fixture.jobs(), [(0, 1, 2000, 2100, 2100, 0, 0)]);
    }

    #[test]
    fn a_job_that_is_the_first_thing_reported_of_its_cpu_has_the_time_it_was_accounted() {
        let mut fixture = Fixture::new(Jobs::Line);
        fixture.fact(2000, Observed::Released(0, Ns(2000)));
        fixture.event(2500, EventKind::Runtime { thread: 11, time: Ns(400) }).switch(2501, 11, Asleep, 0);
        fixture.fact(2600, Observed::Answered(0));
        assert_eq!(fixture.jobs(), [(0, 0, 1000, 1100, 1501, 401, 0)]);
    }
}
