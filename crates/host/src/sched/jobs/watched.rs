//! A task that is watched: what its thread does, and the jobs that follow from it.

use isochrome_model::running::{JobRecord, STEAL_DELAY_FACTOR};
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::SwitchOut;

use super::JobTracker;

/// A job that is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// When it was opened, at its release or after.
    pub(super) opened: Ns,
    pub(super) release: Ns,
    pub(super) start: Option<Ns>,
    /// When it was answered, where that was reported before who did it had the CPU.
    pub(super) answered: Option<Ns>,
    /// For how long it is not known whether its line was written.
    pub(super) held_up: u64,
    pub(super) execution: u64,
    pub(super) preemptions: u32,
    pub(super) misses: Option<u64>,
}

/// What a thread does, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Unknown,
    Asleep(Ns),
    Awake,
    Running,
}

/// A task, and what is known of the thread that does its jobs.
pub(super) struct Watched {
    pub(super) thread: i32,
    pub(super) jobs: Jobs,
    pub(super) cpu: CpuId,
    pub(super) state: State,
    /// Since when its time on the CPU has not been added yet.
    pub(super) running_since: Ns,
    pub(super) woken: Ns,
    /// When its own CPU was told to wake it.
    pub(super) woken_here: Option<Ns>,
    pub(super) awake_since: Ns,
    /// It left the CPU for what the kernel or a device is to do.
    pub(super) blocked: bool,
    pub(super) open: Option<Open>,
    /// The job that is complete while its thread still has the CPU; its misses are known once the thread leaves it.
    pub(super) held: Option<JobRecord>,
    /// Counted while it had the CPU that it leaves now.
    pub(super) missed: Option<u64>,
    pub(super) next: u64,
    /// When its last job was complete.
    pub(super) completed: Ns,
}

impl Watched {
    /// Jobs are those of `thread`, which runs on `cpu` only; the first is number `next`.
    pub(super) fn new(thread: i32, jobs: Jobs, cpu: CpuId, next: u64) -> Watched {
        Watched {
            thread,
            jobs,
            cpu,
            state: State::Unknown,
            running_since: Ns(0),
            woken: Ns(0),
            woken_here: None,
            awake_since: Ns(0),
            blocked: false,
            open: None,
            held: None,
            missed: None,
            next,
            completed: Ns(0),
        }
    }

    /// Since when its job waits for the CPU, which is idle (`idle`) or another's.
    pub(super) fn waiting(&self, idle: bool) -> Option<Ns> {
        let open = self.open.filter(|_| self.state == State::Awake && !self.blocked)?;
        // A CPU that is told to wake it may tell so late, when it comes to it; an idle one whose program sleeps for reasons of its own has
        // nothing to do.
        let written = self.jobs == Jobs::Line && open.start.is_none() && !idle;
        Some(if written { open.opened } else { self.awake_since })
    }
}

impl JobTracker {
    /// The line is read that completes the job of `task`.
    pub(super) fn answer(&mut self, task: usize, at: Ns) {
        let Some(Watched { state, open: Some(open), .. }) = &mut self.watched[task] else { return };
        match *state {
            // Nothing woke it since: the answer was written before it slept.
            State::Asleep(since) if open.start.is_some_and(|start| start <= since) => self.complete(task, since),
            // It had the CPU, as its answer shows; for how long is reported when it leaves.
            _ if open.start.is_none() => open.answered = Some(at),
            _ => self.complete(task, at),
        }
    }

    /// A job of `task`, released at `release`, begins to be watched.
    pub(super) fn open(&mut self, task: usize, at: Ns, release: Ns) {
        if let Some(answered) = self.watched[task].as_ref().and_then(|watched| watched.open?.answered) {
            self.complete(task, answered);
        }
        let Some(watched) = &mut self.watched[task] else { return };
        let running = watched.state == State::Running;
        if running {
            watched.running_since = at;
        }
        let (cpu, waited) = (watched.cpu, release < watched.completed);
        // Of two jobs in one turn on the CPU neither's misses are known.
        let apart = watched.held.is_none();
        self.done.extend(watched.held.take().map(unknown));
        watched.open = Some(Open {
            opened: at,
            release,
            start: running.then_some(at),
            answered: None,
            held_up: 0,
            execution: 0,
            preemptions: 0,
            misses: (self.counted && apart).then_some(0),
        });
        let others = self.watched.iter().flatten().filter(|other| other.cpu == cpu && other.open.is_some());
        if let Some(cpu) = self.cpus.get_mut(cpu.0 as usize).and_then(Option::as_mut)
            && others.count() == 1
            && !waited
        {
            cpu.busy_since = release;
        }
    }

    /// The job of `task` is complete.
    pub(super) fn complete(&mut self, task: usize, at: Ns) {
        let Some(watched) = &mut self.watched[task] else { return };
        let Some(mut open) = watched.open.take() else { return };
        if watched.state == State::Running {
            open.execution += at.0.saturating_sub(watched.running_since.0);
            watched.running_since = at;
        }
        if open.release < self.begin {
            return;
        }
        let steal_time = self.cpus.get(watched.cpu.0 as usize).and_then(Option::as_ref).map_or(0, |cpu| {
            let since = cpu.busy_since.min(open.release);
            let during = cpu.steals.iter().rev().take_while(|steal| steal.to > since);
            // What is older has been made up for.
            let during = during.filter(|steal| steal.to.0 + STEAL_DELAY_FACTOR * steal.time.0 > open.release.0);
            during.filter(|steal| steal.from < at).map(|steal| steal.time.0).sum()
        });
        let start = open.start.unwrap_or(at);
        let job = JobRecord {
            task,
            instance: watched.next,
            release: Ns(open.release.0 - self.begin.0),
            start: Ns(start.0.saturating_sub(self.begin.0)),
            completion: Ns(at.0.saturating_sub(self.begin.0)),
            execution: Ns(open.execution),
            steal_time: Ns(steal_time + open.held_up),
            misses: open.misses,
            preemptions: open.preemptions,
        };
        (watched.next, watched.completed) = (watched.next + 1, at);
        if self.counted && watched.state == State::Running {
            watched.held = Some(job);
        } else {
            self.done.push(job);
        }
    }

    /// `cpu` makes `thread` runnable.
    pub(super) fn wake(&mut self, at: Ns, cpu: CpuId, thread: i32) {
        let Some(task) = self.task_of(thread) else { return };
        let Some(watched) = &mut self.watched[task] else { return };
        if !matches!(watched.state, State::Asleep(_)) {
            return;
        }
        watched.state = State::Awake;
        (watched.woken, watched.awake_since) = (at, at);
        watched.woken_here = (cpu == watched.cpu).then_some(at);
        if watched.jobs == Jobs::Wakeup {
            self.open(task, at, at);
        }
    }

    /// The thread of `task` leaves its CPU, of which the hypervisor took `steal_time` meanwhile.
    pub(super) fn leave(&mut self, task: usize, at: Ns, reason: SwitchOut, steal_time: Ns) {
        let Some(watched) = &mut self.watched[task] else { return };
        if let (State::Running, Some(open)) = (watched.state, &mut watched.open) {
            open.execution += at.0.saturating_sub(watched.running_since.0).saturating_sub(steal_time.0);
            open.preemptions += u32::from(reason == SwitchOut::Preempted);
        }
        let missed = watched.missed.take();
        let more = |misses: Option<u64>| Some(misses? + missed?);
        if let Some(open) = &mut watched.open {
            open.misses = more(open.misses);
        }
        self.done.extend(watched.held.take().map(|held| JobRecord { misses: more(held.misses), ..held }));
        watched.blocked = reason == SwitchOut::Blocked;
        watched.state = match reason {
            SwitchOut::Asleep => State::Asleep(at),
            // A fault that is served, a device: the job is not over.
            SwitchOut::Preempted | SwitchOut::Blocked | SwitchOut::Ended => State::Awake,
        };
        let answered = watched.open.and_then(|open| open.answered);
        if reason == SwitchOut::Asleep && (watched.jobs == Jobs::Wakeup || answered.is_some()) {
            self.complete(task, answered.map_or(at, |answered| answered.min(at)));
        }
    }
}

/// A job whose misses are not known.
pub(super) fn unknown(job: JobRecord) -> JobRecord {
    JobRecord { misses: None, ..job }
}

#[cfg(test)]
mod tests {
    use SwitchOut::{Asleep, Blocked, Preempted};

    use super::super::Observed;
    use super::super::fixture::Fixture;
    use super::*;
    use crate::sched::EventKind;

    #[test]
    fn a_job_goes_from_waking_to_sleep_and_what_preempts_it_is_not_its_execution() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(900, 11, Asleep, 22).switch(950, 22, Asleep, 0);
        // Woken at 2000, has the CPU from 2010 to 2100, is preempted by 22 until 2150, and goes on to 2200.
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
        // Of the second nothing was counted while it had the CPU first.
        fixture.wake(3000, 11).switch(3010, 0, Preempted, 11).switch(3100, 11, Blocked, 0).wake(3110, 11);
        fixture.switch(3120, 0, Preempted, 11).fact(3199, missed(11, 8)).switch(3200, 11, Asleep, 0);
        assert_eq!(fixture.misses(), [(1, 0, Some(70)), (0, 0, Some(11)), (0, 1, None)]);
        // Where nothing is counted, nothing is waited for.
        let mut fixture = Fixture::new(Jobs::Marks);
        fixture.switch(900, 11, Asleep, 0);
        fixture
            .wake(2000, 11)
            .switch(2010, 0, Preempted, 11)
            .fact(2020, Observed::Begins(0))
            .fact(2100, Observed::Ends(0));
        assert_eq!(fixture.misses(), [(0, 0, None)]);
    }

    #[test]
    fn what_is_counted_in_one_turn_on_the_cpu_is_that_of_the_one_job_in_it() {
        let mut fixture = Fixture::of(Jobs::Marks, true);
        let turn = |fixture: &mut Fixture, at: u64, marks: &[Observed]| {
            fixture.wake(at, 11).switch(at + 10, 0, Preempted, 11);
            for (place, mark) in marks.iter().enumerate() {
                fixture.fact(at + 20 + place as u64, *mark);
            }
            fixture.fact(at + 99, Observed::Misses(11, 40)).switch(at + 100, 11, Asleep, 0);
        };
        fixture.switch(900, 11, Asleep, 0);
        turn(&mut fixture, 2000, &[Observed::Begins(0), Observed::Ends(0)]);
        turn(&mut fixture, 3000, &[Observed::Begins(0), Observed::Ends(0), Observed::Begins(0)]);
        turn(&mut fixture, 4000, &[Observed::Ends(0), Observed::Begins(0), Observed::Ends(0)]);
        // It sleeps within the job.
        turn(&mut fixture, 5000, &[Observed::Begins(0)]);
        turn(&mut fixture, 6000, &[Observed::Ends(0)]);
        let expected = [Some(40), None, None, None, Some(80)];
        assert_eq!(fixture.misses(), (0..5).zip(expected).map(|(at, misses)| (0, at, misses)).collect::<Vec<_>>());
        // Reports end where complete jobs end.
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
        // It answers, and sleeps at 2100; the answer is read at 2180.
        fixture.switch(2100, 11, Asleep, 0).fact(2180, Observed::Answered(0));
        // Late: due at 3000, released at 3100, and still awake when its answer is read.
        fixture.fact(3100, Observed::Released(0, Ns(3000))).wake(3101, 11).switch(3110, 0, Preempted, 11);
        fixture.fact(3200, Observed::Answered(0));
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
            .fact(2300, Observed::Ends(0));
        assert_eq!(fixture.jobs(), [(0, 0, 1000, 1020, 1100, 80, 0), (0, 1, 1200, 1200, 1300, 100, 0)]);
    }

    #[test]
    fn an_answer_that_is_heard_before_its_program_is_known_to_have_the_cpu_waits_for_its_execution_time() {
        let mut fixture = Fixture::new(Jobs::Line);
        fixture.switch(900, 11, Asleep, 0).fact(2000, Observed::Released(0, Ns(2000))).wake(2010, 11);
        fixture.fact(2400, Observed::Answered(0));
        assert_eq!(fixture.jobs(), []);
        fixture.event(2410, EventKind::Runtime { thread: 11, time: Ns(395) }).switch(2411, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), [(0, 0, 1000, 1010, 1400, 401, 0)]);
        // Nothing is reported of the second, until the third is released.
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
