//! From what happened on the CPUs to jobs.
//!
//! A program's job begins when its thread is woken (or when a line releases it, or the program says so) and is complete when the thread
//! sleeps again (or answers, or says so). Execution is the time it had the CPU in between, less the steal time; it is preempted when it
//! loses the CPU though it would have gone on.
//!
//! *Steal time* follows from what the kernel accounts. The time accounted to a thread leaves out what the hypervisor withheld
//! (CONFIG_PARAVIRT_TIME_ACCOUNTING), so the steal time of a thread is the time it had the CPU, from switch-in to switch-out, less the time
//! accounted to it. The kernel accounts nothing to an idle CPU: there the steal time is how long a released job waits for the CPU to begin.
//! A job's steal time is all the hypervisor took since the CPU was last idle, because the backlog from then delays this job too.
//!
//! *Misses* are counted from a thread's coming to its leaving. Where two jobs of a task lie in one such time, what was counted in it is neither's, and
//! both have no misses; of a job with marks they include what the thread does from its wake-up to the first mark, and from the last until it sleeps.

use std::collections::VecDeque;

use isochrome_model::running::{JobRecord, STEAL_DELAY_FACTOR, Stretch};
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::SwitchOut;

use super::{EventKind, ThreadName};

/// The least difference, in ns, between the time a thread had the CPU and the time accounted to it that counts as steal time. The two are
/// not read at the same instant, and an exit to the hypervisor in between takes 5 to 15 us.
const STEAL_MIN: u64 = 20_000;

/// No CPU takes longer to leave an idle state, with what an interrupt takes: one that was told to do something and does not begin it for
/// longer than this was withheld.
const BEGIN_MAX: u64 = 200_000;

/// Stretches kept of every CPU, for the timeline of a violation.
const STRETCHES: usize = 512;

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// When.
    pub at: Ns,
    /// What.
    pub what: Observed,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Observed {
    /// An event of the scheduler.
    Scheduler(CpuId, EventKind),
    /// So much was counted from when this thread got the CPU until it leaves it, which is reported next.
    Misses(i32, u64),
    /// A line was written that releases a job of this task, due then.
    Released(usize, Ns),
    /// Since then until now it is not known whether the line was written: its writer was held up.
    HeldUp(usize, Ns),
    /// The line was read that completes it.
    Answered(usize),
    /// The program says that a job of this task begins.
    Begins(usize),
    /// The program says that it is complete.
    Ends(usize),
}

/// A job that is not complete.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// When it was opened, at its release or after.
    opened: Ns,
    release: Ns,
    start: Option<Ns>,
    /// When it was answered, where that was reported before who did it had the CPU.
    answered: Option<Ns>,
    /// For how long it is not known whether its line was written.
    held_up: u64,
    execution: u64,
    preemptions: u32,
    misses: Option<u64>,
}

/// What a thread does, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Unknown,
    Asleep(Ns),
    Awake,
    Running,
}

struct Watched {
    thread: i32,
    jobs: Jobs,
    cpu: CpuId,
    state: State,
    /// Since when its time on the CPU has not been added yet.
    running_since: Ns,
    woken: Ns,
    /// When its own CPU was told to wake it.
    woken_here: Option<Ns>,
    awake_since: Ns,
    /// It left the CPU for what the kernel or a device is to do.
    blocked: bool,
    open: Option<Open>,
    /// Complete, and the thread has not left the CPU yet: its misses are reported when it does.
    held: Option<JobRecord>,
    /// Counted while it had the CPU that it leaves now.
    missed: Option<u64>,
    next: u64,
    /// When its last job was complete.
    completed: Ns,
}

impl Watched {
    /// Since when its job waits for the CPU, which is idle (`idle`) or another's.
    fn waiting(&self, idle: bool) -> Option<Ns> {
        let open = self.open.filter(|_| self.state == State::Awake && !self.blocked)?;
        // A CPU that is told to wake it may tell so late, when it comes to it; an idle one whose program sleeps for reasons of its own has
        // nothing to do.
        let written = self.jobs == Jobs::Line && open.start.is_none() && !idle;
        Some(if written { open.opened } else { self.awake_since })
    }
}

/// An interval in which the hypervisor withheld a CPU for `time`.
#[derive(Clone, Copy)]
struct Steal {
    from: Ns,
    to: Ns,
    time: Ns,
}

struct Cpu {
    running: i32,
    name: ThreadName,
    since: Ns,
    /// Accounted to who has it since then; `None` where nothing was.
    accounted: Option<Ns>,
    known: bool,
    /// When the first of the jobs was released since which it has always had one.
    busy_since: Ns,
    steals: VecDeque<Steal>,
    stretches: VecDeque<(Ns, Ns, i32, ThreadName)>,
}

impl Cpu {
    fn push_steal(&mut self, steal: Steal) {
        if self.steals.len() == STRETCHES {
            self.steals.pop_front();
        }
        self.steals.push_back(steal);
    }

    /// The steal time since the last switch, at the switch at `at`. `task`: whether the thread that had the CPU belongs to a task.
    /// `waiting`: when the first job was opened that the CPU has not begun.
    fn withheld(&self, at: Ns, task: bool, waiting: impl Fn() -> Option<Ns>) -> Option<Steal> {
        let accounted = if self.running == 0 { Ns(0) } else { self.accounted? };
        let unaccounted = at.0.saturating_sub(self.since.0).saturating_sub(accounted.0);
        let (from, time, least) = if task {
            (self.since, unaccounted, STEAL_MIN)
        } else {
            // Only that time was a job's, and nobody's is not accounted at all.
            let from = self.since.max(waiting()?);
            (from, unaccounted.min(at.0.saturating_sub(from.0)), BEGIN_MAX)
        };
        (time >= least).then_some(Steal { from, to: at, time: Ns(time) })
    }
}

/// Watches the threads of tasks.
pub struct JobTracker {
    watched: Vec<Option<Watched>>,
    /// Threads and their tasks, by ascending thread: looked up at every event, which hashing would make half as long again.
    by_thread: Vec<(i32, usize)>,
    /// By their numbers.
    cpus: Vec<Option<Cpu>>,
    /// Nothing before this counts.
    begin: Ns,
    counted: bool,
    /// Whether there is a hypervisor that can withhold a CPU.
    hypervisor: bool,
    done: Vec<JobRecord>,
}

impl JobTracker {
    /// Of `tasks` tasks, none of which has a thread yet, on `cpus`; jobs released before `begin` do not count. `counted`: whether misses are
    /// reported. `hypervisor`: whether there is one; without it, time that is not accounted is the kernel's own.
    pub fn new(tasks: usize, cpus: &[CpuId], begin: Ns, counted: bool, hypervisor: bool) -> JobTracker {
        let cpu = || Cpu {
            running: 0,
            name: ThreadName::default(),
            since: Ns(0),
            accounted: None,
            known: false,
            busy_since: Ns(0),
            steals: VecDeque::new(),
            stretches: VecDeque::new(),
        };
        JobTracker {
            watched: (0..tasks).map(|_| None).collect(),
            by_thread: Vec::new(),
            cpus: {
                let last = cpus.iter().map(|id| id.0 + 1).max().unwrap_or(0);
                (0..last).map(|id| cpus.contains(&CpuId(id)).then(cpu)).collect()
            },
            begin,
            counted,
            hypervisor,
            done: Vec::new(),
        }
    }

    fn task_of(&self, thread: i32) -> Option<usize> {
        let at = self.by_thread.binary_search_by_key(&thread, |(thread, _)| *thread).ok()?;
        Some(self.by_thread[at].1)
    }

    fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.get(id.0 as usize)?.as_ref()
    }

    /// Jobs of `task` are those of `thread`, which runs on `cpu` only.
    pub fn follow(&mut self, task: usize, thread: i32, jobs: Jobs, cpu: CpuId) {
        let next = self.watched[task].as_ref().map_or(0, |before| before.next);
        self.forget(task);
        self.by_thread.push((thread, task));
        self.by_thread.sort_unstable();
        self.watched[task] = Some(Watched {
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
        });
    }

    /// The thread that does the jobs of `task`.
    pub fn thread(&self, task: usize) -> Option<i32> {
        Some(self.watched[task].as_ref()?.thread)
    }

    /// `task` has no jobs any more.
    pub fn forget(&mut self, task: usize) {
        if let Some(gone) = self.watched[task].take() {
            self.by_thread.retain(|(thread, _)| *thread != gone.thread);
            self.done.extend(gone.held.map(unknown));
        }
    }

    /// When the job of `task` was released that is not complete, and its number.
    pub fn pending(&self, task: usize) -> Option<(Ns, u64)> {
        let watched = self.watched[task].as_ref()?;
        Some((watched.open?.release, watched.next)).filter(|(release, _)| *release >= self.begin)
    }

    /// For how long the thread of `task` has not slept, where it has its CPU or nobody is known to have it.
    pub fn awake(&self, task: usize, now: Ns) -> Option<Ns> {
        let watched = self.watched[task].as_ref()?;
        let cpu = self.cpu(watched.cpu)?;
        let has_it = !cpu.known || cpu.running == watched.thread;
        let awake = has_it && !self.asleep(task);
        awake.then(|| Ns(now.0.saturating_sub(watched.awake_since.0.max(self.begin.0))))
    }

    /// Whether the thread of `task` sleeps.
    pub fn asleep(&self, task: usize) -> bool {
        self.watched[task].as_ref().is_some_and(|watched| matches!(watched.state, State::Asleep(_)))
    }

    /// Moves the jobs that are complete behind those in `jobs`.
    pub fn take(&mut self, jobs: &mut Vec<JobRecord>) {
        jobs.append(&mut self.done);
    }

    /// Events were lost, or there are no more: what is under way is not known any more.
    pub fn lose(&mut self) {
        for watched in self.watched.iter_mut().flatten() {
            watched.state = State::Unknown;
            self.done.extend(watched.held.take().map(unknown));
            if let Some(open) = &mut watched.open {
                open.misses = None;
            }
            if watched.jobs != Jobs::Line {
                watched.open = None;
            }
        }
        self.cpus.iter_mut().flatten().for_each(|cpu| cpu.known = false);
    }

    /// Takes note of what happened; in the order in which it happened.
    pub fn note(&mut self, Observation { at, what }: Observation) {
        match what {
            Observed::Scheduler(cpu, EventKind::Switch { from, reason, to, to_name, .. }) => {
                self.switch(at, cpu, from, reason, to, to_name);
            }
            Observed::Scheduler(_, EventKind::Runtime { thread, time }) => self.account(at, thread, time),
            Observed::Scheduler(cpu, EventKind::Wakeup { thread }) => self.wake(at, cpu, thread),
            Observed::Scheduler(..) => {}
            Observed::Misses(thread, count) => {
                let watched = self.task_of(thread).and_then(|task| self.watched[task].as_mut());
                watched.into_iter().for_each(|watched| watched.missed = Some(count));
            }
            Observed::Released(task, due) => self.open(task, at, due),
            Observed::HeldUp(task, since) => {
                let open = self.watched[task].as_mut().and_then(|watched| watched.open.as_mut());
                open.into_iter().for_each(|open| open.held_up += at.0 - since.0);
            }
            Observed::Begins(task) => {
                // Released when it was woken, unless that was for the job before.
                let woken = self.watched[task].as_mut().map(|watched| std::mem::take(&mut watched.woken));
                let release = woken.filter(|woken| woken.0 > 0).unwrap_or(at);
                self.open(task, at, release);
            }
            Observed::Answered(task) => self.answer(task, at),
            Observed::Ends(task) => self.complete(task, at),
        }
    }

    fn answer(&mut self, task: usize, at: Ns) {
        let Some(Watched { state, open: Some(open), .. }) = &mut self.watched[task] else { return };
        match *state {
            // Nothing woke it since: the answer was written before it slept.
            State::Asleep(since) if open.start.is_some_and(|start| start <= since) => self.complete(task, since),
            // It had the CPU, as its answer shows; for how long is reported when it leaves.
            _ if open.start.is_none() => open.answered = Some(at),
            _ => self.complete(task, at),
        }
    }

    fn open(&mut self, task: usize, at: Ns, release: Ns) {
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

    fn complete(&mut self, task: usize, at: Ns) {
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

    fn wake(&mut self, at: Ns, cpu: CpuId, thread: i32) {
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

    fn account(&mut self, at: Ns, thread: i32, time: Ns) {
        if let Some(watched) = self.task_of(thread).and_then(|task| self.watched[task].as_ref()) {
            let id = watched.cpu;
            let Some(cpu) = self.cpu(id) else { return };
            if !cpu.known || cpu.running != thread {
                // Nothing was reported yet, or not this: some kernels do not tell what an idle CPU does before it gives itself away. Where it
                // is reported that it was to wake the thread, it gave itself away then, and what was not accounted since is steal time.
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
        // Any CPU may account it: the one that counts is where it runs.
        if let Some(cpu) = self.cpus.iter_mut().flatten().find(|cpu| cpu.known && cpu.running == thread) {
            cpu.accounted.get_or_insert_default().0 += time.0;
        }
    }

    fn switch(&mut self, at: Ns, id: CpuId, from: i32, reason: SwitchOut, to: i32, name: ThreadName) {
        let mut steal_time = Ns(0);
        let of_task = self.task_of(from).is_some();
        let waiting = || {
            let here = self.watched.iter().flatten().filter(|watched| watched.cpu == id);
            here.filter_map(|watched| watched.waiting(from == 0)).min()
        };
        if let Some(cpu) = self.cpus.get_mut(id.0 as usize).and_then(Option::as_mut) {
            if cpu.known {
                if let Some(withheld) = cpu.withheld(at, of_task, waiting).filter(|_| self.hypervisor) {
                    steal_time = withheld.time;
                    cpu.push_steal(withheld);
                }
                if cpu.stretches.len() == STRETCHES {
                    cpu.stretches.pop_front();
                }
                cpu.stretches.push_back((cpu.since, at, cpu.running, cpu.name));
            }
            (cpu.running, cpu.name, cpu.since, cpu.accounted, cpu.known) = (to, name, at, None, true);
        }
        if let Some(task) = self.task_of(from) {
            self.leave(task, at, reason, steal_time);
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

    fn leave(&mut self, task: usize, at: Ns, reason: SwitchOut, steal_time: Ns) {
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

    /// What the CPU of `task` did from `from` to `to`, times counted from the first release; threads of tasks by the names in `names`.
    pub fn timeline(&self, task: usize, from: Ns, to: Ns, names: &[String]) -> Vec<Stretch> {
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
        let all = cpu.stretches.iter().chain([&now]);
        let (from, to) = (Ns(from.0 + self.begin.0), Ns(to.0 + self.begin.0));
        let now_to = to;
        all.filter(|stretch| stretch.1 > from && stretch.0 < to)
            .map(|&(begin, end, thread, name)| Stretch {
                from: count(begin.max(from)),
                to: count(end.min(now_to)),
                what: what(thread, name),
            })
            .collect()
    }
}

/// A job whose misses are not known.
fn unknown(job: JobRecord) -> JobRecord {
    JobRecord { misses: None, ..job }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::perf::GroupReading;

    const CPU: CpuId = CpuId(1);

    struct Fixture(JobTracker);

    impl Fixture {
        fn new(jobs: Jobs) -> Fixture {
            Fixture::of(jobs, false)
        }

        fn of(jobs: Jobs, counted: bool) -> Fixture {
            let mut watch = JobTracker::new(2, &[CPU], Ns(1000), counted, true);
            watch.follow(0, 11, jobs, CPU);
            watch.follow(1, 22, Jobs::Wakeup, CPU);
            Fixture(watch)
        }

        fn switch(&mut self, at: u64, from: i32, reason: SwitchOut, to: i32) -> &mut Self {
            self.event(
                at,
                EventKind::Switch {
                    from,
                    from_name: ThreadName::default(),
                    reason,
                    to,
                    to_name: ThreadName::default(),
                    reading: GroupReading::default(),
                },
            )
        }

        fn wake(&mut self, at: u64, thread: i32) -> &mut Self {
            self.event(at, EventKind::Wakeup { thread })
        }

        fn event(&mut self, at: u64, what: EventKind) -> &mut Self {
            self.0.note(Observation { at: Ns(at), what: Observed::Scheduler(CPU, what) });
            self
        }

        fn fact(&mut self, at: u64, what: Observed) -> &mut Self {
            self.0.note(Observation { at: Ns(at), what });
            self
        }

        /// Task, instance, release, start, completion, execution, preemptions.
        fn jobs(&mut self) -> Vec<(usize, u64, u64, u64, u64, u64, u32)> {
            let mut jobs = Vec::new();
            self.0.take(&mut jobs);
            let row = |j: JobRecord| {
                (j.task, j.instance, j.release.0, j.start.0, j.completion.0, j.execution.0, j.preemptions)
            };
            jobs.into_iter().map(row).collect()
        }
    }

    use SwitchOut::{Asleep, Blocked, Preempted};

    #[test]
    fn a_job_goes_from_waking_to_sleep_and_what_preempts_it_is_not_its_execution() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(900, 11, Asleep, 22).switch(950, 22, Asleep, 0);
        // Woken at 2000, has the CPU from 2010 to 2100, is preempted by 22 until 2150, and goes on to 2200.
        fixture.wake(2000, 11).switch(2010, 0, Preempted, 11).wake(2095, 22).switch(2100, 11, Preempted, 22);
        fixture.switch(2150, 22, Asleep, 11).switch(2200, 11, Asleep, 0);
        assert_eq!(fixture.jobs(), [(1, 0, 1095, 1100, 1150, 50, 0), (0, 0, 1000, 1010, 1200, 140, 1)]);
    }

    /// Task, instance, misses.
    fn misses(fixture: &mut Fixture) -> Vec<(usize, u64, Option<u64>)> {
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        jobs.into_iter().map(|job| (job.task, job.instance, job.misses)).collect()
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
        assert_eq!(misses(&mut fixture), [(1, 0, Some(70)), (0, 0, Some(11)), (0, 1, None)]);
        // Where nothing is counted, nothing is waited for.
        let mut fixture = Fixture::new(Jobs::Marks);
        fixture.switch(900, 11, Asleep, 0);
        fixture
            .wake(2000, 11)
            .switch(2010, 0, Preempted, 11)
            .fact(2020, Observed::Begins(0))
            .fact(2100, Observed::Ends(0));
        assert_eq!(misses(&mut fixture), [(0, 0, None)]);
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
        assert_eq!(misses(&mut fixture), (0..5).zip(expected).map(|(at, misses)| (0, at, misses)).collect::<Vec<_>>());
        // Reports end where complete jobs end.
        fixture
            .wake(7000, 11)
            .switch(7010, 0, Preempted, 11)
            .fact(7020, Observed::Begins(0))
            .fact(7030, Observed::Ends(0));
        assert_eq!(misses(&mut fixture), []);
        fixture.0.lose();
        assert_eq!(misses(&mut fixture), [(0, 5, None)]);
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
    fn steal_time_is_what_a_thread_had_and_was_not_accounted() {
        let mut fixture = Fixture::new(Jobs::Wakeup);
        fixture.switch(850, 22, Asleep, 11).switch(900, 11, Asleep, 0).wake(2000, 11).switch(2000, 0, Preempted, 11);
        fixture.event(102_000, EventKind::Runtime { thread: 11, time: Ns(60_000) });
        fixture.event(112_000, EventKind::Runtime { thread: 11, time: Ns(10_000) }).switch(112_000, 11, Asleep, 0);
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        assert_eq!((jobs[0].steal_time, jobs[0].execution, jobs[0].response()), (Ns(40_000), Ns(70_000), Ns(110_000)));
        // The job that waits behind one with steal time has steal time as well.
        fixture.wake(200_000, 22).switch(200_000, 0, Preempted, 22).wake(205_000, 11);
        fixture.event(230_000, EventKind::Runtime { thread: 22, time: Ns(10_000) }).switch(230_000, 22, Asleep, 11);
        fixture.switch(240_000, 11, Asleep, 0);
        fixture.0.take(&mut jobs);
        assert_eq!((jobs[2].task, jobs[2].steal_time, jobs[2].execution), (0, Ns(20_000), Ns(10_000)));
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
        // That it gave itself to 11 is not reported.
        fixture.switch(900, 11, Asleep, 0).wake(2000, 11);
        fixture.event(62_000, EventKind::Runtime { thread: 11, time: Ns(10_000) }).switch(62_001, 11, Asleep, 0);
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        assert_eq!((jobs[0].start, jobs[0].execution, jobs[0].steal_time), (Ns(1000), Ns(10_000), Ns(50_001)));
        assert_eq!(jobs[0].response(), Ns(60_001));
        // That it was to wake 22 is not reported either: 90 us may be an idle state, 250 us are not.
        let mut fixture = Fixture::new(Jobs::Line);
        for (release, ran) in [(1_000_000, 1_100_000), (2_000_000, 2_260_000)] {
            fixture.switch(release - 500, 11, Asleep, 0).fact(release, Observed::Released(0, Ns(release)));
            fixture.event(ran, EventKind::Runtime { thread: 11, time: Ns(10_000) }).switch(ran + 1, 11, Asleep, 0);
            fixture.fact(ran + 10, Observed::Answered(0));
        }
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        let row = |job: &JobRecord| (job.start.0, job.execution.0, job.steal_time.0);
        assert_eq!(jobs.iter().map(row).collect::<Vec<_>>(), [(1_089_000, 10_001, 0), (1_999_000, 10_000, 250_001)]);
    }

    #[test]
    fn steal_time_of_another_thread_or_of_an_idle_cpu_counts_for_the_job_that_waits() {
        let mut fixture = Fixture::new(Jobs::Line);
        let rows = |fixture: &mut Fixture| {
            let mut jobs = Vec::new();
            fixture.0.take(&mut jobs);
            jobs.into_iter().map(|j| (j.release.0, j.start.0, j.steal_time.0, j.execution.0)).collect::<Vec<_>>()
        };
        // 99 had it for 900 us and is accounted 100 of them; its time may be accounted from elsewhere.
        fixture.switch(1_000, 11, Asleep, 99).fact(101_000, Observed::Released(0, Ns(101_000)));
        fixture.wake(900_000, 11).0.note(Observation {
            at: Ns(901_000),
            what: Observed::Scheduler(CpuId(0), EventKind::Runtime { thread: 99, time: Ns(100_000) }),
        });
        fixture.switch(901_000, 99, Preempted, 11).event(951_000, EventKind::Runtime { thread: 11, time: Ns(50_000) });
        fixture.switch(951_000, 11, Asleep, 0).fact(952_000, Observed::Answered(0));
        assert_eq!(rows(&mut fixture), [(100_000, 900_000, 800_000, 50_000)]);
        // Nobody had it for 150 us, which may be an idle state, and for 300 us, which may not.
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
        // Nor does it count as the job's that its line may have been written 250 us later than is said, but it is tagged.
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
        // The first job has 30 us of steal time; the second is due meanwhile and written late, 22 comes while the second has the CPU.
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
        // After that it had none.
        fixture.fact(91_000, Observed::Released(0, Ns(91_000))).switch(91_000, 0, Preempted, 11);
        fixture.event(95_000, EventKind::Runtime { thread: 11, time: Ns(4000) }).switch(95_000, 11, Asleep, 0);
        fixture.fact(96_000, Observed::Answered(0));
        let mut jobs = Vec::new();
        fixture.0.take(&mut jobs);
        let rows: Vec<_> = jobs.iter().map(|j| (j.task, j.release.0, j.completion.0, j.steal_time.0)).collect();
        let expected = [
            (0, 10_000, 60_000, 30_000),
            (0, 30_000, 72_000, 30_000),
            (1, 69_000, 79_000, 30_000),
            (0, 90_000, 94_000, 0),
        ];
        assert_eq!(rows, expected);
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
        let stretches = fixture.0.timeline(0, Ns(900), Ns(1600), &names);
        let row = |s: &Stretch| (s.from.0, s.to.0, s.what.clone());
        assert_eq!(
            stretches.iter().map(row).collect::<Vec<_>>(),
            [(900, 1000, String::new()), (1000, 1500, "kworker".to_owned()), (1500, 1600, "control".to_owned())]
        );
    }
}
