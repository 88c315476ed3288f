//! Infers jobs from events of the scheduler and of the programs.
//!
//! A job begins when its thread is woken, when a line releases the job, or when the program marks the beginning. It is complete when the thread
//! sleeps again, when the program answers by a line, or when the program marks the end. Execution is the time for which the thread had the CPU
//! in between, less the steal time. A job is preempted when its thread loses the CPU although it could have gone on.
//!
//! *Misses* are counted from the time when a thread gets the CPU until it leaves the CPU. If two jobs of a task lie in one such interval, the
//! count belongs to neither, and both have no misses. The misses of a job with marks include those of the thread from its wake-up to the first
//! mark, and from the last mark until it sleeps.

mod cpu;
pub mod events;
#[cfg(test)]
mod fixture;
mod watched;

use isochrome_model::running::JobRecord;
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{CpuId, Ns};

use self::cpu::Cpu;
use self::watched::{State, Watched};
use super::EventKind;

/// An observed event.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Time of the event.
    pub at: Ns,
    /// Kind of the event, with its data.
    pub what: Observed,
}

/// Kind of an observed event, with its data.
#[derive(Clone, Copy, Debug)]
pub enum Observed {
    /// An event of the scheduler on this CPU.
    Scheduler(CpuId, EventKind),
    /// Number of misses of this thread since it got the CPU. The switch by which the thread leaves the CPU is reported next.
    Misses(i32, u64),
    /// A line was written that releases a job of this task. The release was due at this time.
    Released(usize, Ns),
    /// From this time until the event it is unknown whether the line of this task was written, because its writer was held up.
    HeldUp(usize, Ns),
    /// The line was read that completes the job of this task.
    Answered(usize),
    /// The program marked the beginning of a job of this task.
    Begins(usize),
    /// The program marked the end of the job of this task.
    Ends(usize),
}

/// Infers the jobs of tasks from the observed events.
pub struct JobTracker {
    watched: Vec<Option<Watched>>,
    /// Threads with their tasks, by ascending thread. Every event searches this list, which would take half as long again with hashing.
    by_thread: Vec<(i32, usize)>,
    /// CPUs by their numbers; `None` for CPUs that are not watched.
    cpus: Vec<Option<Cpu>>,
    /// Jobs released before this time do not count.
    begin: Ns,
    counted: bool,
    /// Whether there is a hypervisor that can withhold a CPU.
    hypervisor: bool,
    done: Vec<JobRecord>,
}

impl JobTracker {
    /// Creates a tracker of `tasks` tasks, none of which has a thread yet, on `cpus`. Jobs released before `begin` do not count. `counted`:
    /// whether misses are reported. `hypervisor`: whether there is a hypervisor; without one, time that is not accounted is the kernel's own.
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

    /// Makes `thread`, which runs on `cpu` only, the thread that executes the jobs of `task`. `rank`: index of the task by priority on that CPU,
    /// 0 for the highest; the same for all tasks if any job can delay any other.
    pub fn follow(&mut self, task: usize, thread: i32, jobs: Jobs, cpu: CpuId, rank: usize) {
        let next = self.watched[task].as_ref().map_or(0, |before| before.next);
        self.forget(task);
        self.by_thread.push((thread, task));
        self.by_thread.sort_unstable();
        let busy = self.busy_at(cpu, rank);
        self.watched[task] = Some(Watched { busy, ..Watched::new(thread, jobs, (cpu, rank), next) });
    }

    /// Returns the thread that executes the jobs of `task`; `None` if no thread is followed.
    pub fn thread(&self, task: usize) -> Option<i32> {
        Some(self.watched[task].as_ref()?.thread)
    }

    /// Stops following the jobs of `task`.
    pub fn forget(&mut self, task: usize) {
        self.report_without_misses(task);
        if let Some(gone) = self.watched[task].take() {
            self.by_thread.retain(|(thread, _)| *thread != gone.thread);
        }
    }

    /// Returns the release time and the number of the incomplete job of `task`; `None` if there is no such job, or if it does not count.
    pub fn pending(&self, task: usize) -> Option<(Ns, u64)> {
        let watched = self.watched[task].as_ref()?;
        Some((watched.open?.release, watched.next)).filter(|(release, _)| *release >= self.begin)
    }

    /// Returns the time for which the thread of `task` has not slept; `None` if it sleeps, or if another thread is known to have its CPU.
    pub fn awake(&self, task: usize, now: Ns) -> Option<Ns> {
        let watched = self.watched[task].as_ref()?;
        let cpu = self.cpu(watched.cpu)?;
        let has_it = !cpu.known || cpu.running == watched.thread;
        let awake = has_it && !self.asleep(task);
        awake.then(|| Ns(now.0.saturating_sub(watched.awake_since.0.max(self.begin.0))))
    }

    /// Whether the thread of `task` is known to sleep.
    pub fn asleep(&self, task: usize) -> bool {
        self.watched[task].as_ref().is_some_and(|watched| matches!(watched.state, State::Asleep(_)))
    }

    /// Moves the complete jobs to the end of `jobs`.
    pub fn take(&mut self, jobs: &mut Vec<JobRecord>) {
        jobs.append(&mut self.done);
    }

    /// Discards what is known of running threads and open jobs, because events were lost or no more events follow.
    pub fn lose(&mut self) {
        (0..self.watched.len()).for_each(|task| self.report_without_misses(task));
        for watched in self.watched.iter_mut().flatten() {
            watched.state = State::Unknown;
            if let Some(open) = &mut watched.open {
                open.misses = None;
            }
            if watched.jobs != Jobs::Line {
                watched.open = None;
            }
        }
        self.cpus.iter_mut().flatten().for_each(|cpu| cpu.known = false);
    }

    /// Processes an observation. Observations must come in the order of their times.
    pub fn note(&mut self, Observation { at, what }: Observation) {
        match what {
            Observed::Scheduler(cpu, EventKind::Switch { from, reason, to, to_name, .. }) => {
                self.switch(at, cpu, from, reason, to, to_name);
            }
            Observed::Scheduler(cpu, EventKind::Runtime { thread, time }) => self.account(at, cpu, thread, time),
            Observed::Scheduler(_, EventKind::Waking { thread }) => {
                let watched = self.task_of(thread).and_then(|task| self.watched[task].as_mut());
                watched.into_iter().for_each(|watched| watched.waking = Some(at));
            }
            Observed::Scheduler(cpu, EventKind::Wakeup { thread }) => self.wake(at, cpu, thread),
            Observed::Scheduler(..) => {}
            Observed::Misses(thread, count) => {
                let watched = self.task_of(thread).and_then(|task| self.watched[task].as_mut());
                watched.into_iter().for_each(|watched| watched.missed = Some(count));
            }
            Observed::Released(task, due) => self.open_by_line(task, at, due),
            Observed::HeldUp(task, since) => {
                let open = self.watched[task].as_mut().and_then(|watched| watched.open.as_mut());
                open.into_iter().for_each(|open| open.held_up += at.0 - since.0);
            }
            Observed::Begins(task) => {
                // The job was released by the wake-up of its thread, unless that wake-up released the previous job.
                let woken = self.watched[task].as_mut().map(|watched| std::mem::take(&mut watched.woken));
                let release = woken.filter(|woken| woken.0 > 0).unwrap_or(at);
                self.open(task, at, release);
            }
            Observed::Answered(task) => self.answer(task, at),
            Observed::Ends(task) => self.complete(task, at),
        }
    }
}
