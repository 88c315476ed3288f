//! From what happened on the CPUs to jobs.
//!
//! A program's job begins when its thread is woken (or when a line releases it, or the program says so) and is complete when the thread
//! sleeps again (or answers, or says so). Execution is the time it had the CPU in between, less the steal time; it is preempted when it
//! loses the CPU though it would have gone on.
//!
//! *Misses* are counted from a thread's coming to its leaving. Where two jobs of a task lie in one such time, what was counted in it is neither's, and
//! both have no misses; of a job with marks they include what the thread does from its wake-up to the first mark, and from the last until it sleeps.

mod cpu;
pub mod events;
#[cfg(test)]
mod fixture;
mod watched;

use isochrome_model::running::JobRecord;
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{CpuId, Ns};

use self::cpu::Cpu;
use self::watched::{State, Watched, unknown};
use super::EventKind;

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Time of the event.
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
    /// The line that completes the job was read.
    Answered(usize),
    /// The program says that a job of this task begins.
    Begins(usize),
    /// The program says that it is complete.
    Ends(usize),
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
        JobTracker {
            watched: (0..tasks).map(|_| None).collect(),
            by_thread: Vec::new(),
            cpus: {
                let last = cpus.iter().map(|id| id.0 + 1).max().unwrap_or(0);
                (0..last).map(|id| cpus.contains(&CpuId(id)).then(Cpu::default)).collect()
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

    /// Jobs of `task` are those of `thread`, which runs on `cpu` only. `rank`: its index among the priorities of that CPU, the highest first;
    /// the same for all where any job can delay any other.
    pub fn follow(&mut self, task: usize, thread: i32, jobs: Jobs, cpu: CpuId, rank: usize) {
        let next = self.watched[task].as_ref().map_or(0, |before| before.next);
        self.forget(task);
        self.by_thread.push((thread, task));
        self.by_thread.sort_unstable();
        let busy = self.busy_at(cpu, rank);
        self.watched[task] = Some(Watched { busy, ..Watched::new(thread, jobs, (cpu, rank), next) });
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
}
