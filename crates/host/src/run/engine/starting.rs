//! The steps before the first release: programs are started, moved to their colors, locked in memory, and get their priorities.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{Bytes, Ns};

use super::BATCH;
use super::memory::{MEMORY_SLACK, copies_of_files, own_memory};
use super::session::{Session, Started, ended};
use crate::error::without_hint;
use crate::interrupt;
use crate::process::Pid;
use crate::recolor::lock;
use crate::run::error::RunError;
use crate::run::marks::MarkReader;
use crate::run::messages::{MessageDrivenProgram, command};
use crate::run::planned::Planned;
use crate::run::releases::MessageDriven;
use crate::run::shielding::{CpuShield, VARIABLE};
use crate::sched::EventKind;
use crate::sched::jobs::Observed;
use crate::sched::jobs::events::JobEvents;
use crate::sys::clock::monotonic;
use crate::sys::launch::Launch;

/// Longest time that a program may take to become ready.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// Number of unrecorded jobs that a message-driven program completes before it counts as ready.
const FIRST_JOBS: u32 = 5;

/// Time for which the memory of a program must stay unchanged until the program counts as ready.
const SETTLED: Duration = Duration::from_millis(200);

/// Least time in which wake-ups are counted to find the thread that executes the jobs; three periods if that is longer.
const CALIBRATION: Ns = Ns(100_000_000);

/// Number of marks that a program can set between two batches.
const MARKS: usize = 1 << 14;

/// Maximum amount of untouched memory that is touched in advance, for a program without declared memory.
const UNTOUCHED: Bytes = Bytes(64 << 20);

impl Session<'_, '_> {
    /// Starts the programs at ordinary priority, so that a program that prepares for long does not delay the others.
    pub(super) fn start(&mut self, shield: &CpuShield) -> Result<Vec<MessageDriven>, RunError> {
        let mut message_driven = Vec::new();
        for (task, Planned { program, cpu, joins, .. }) in self.request.programs.iter().enumerate() {
            let failed = |source| RunError::Start { program: program.name.clone(), source };
            let open = |path: &PathBuf| {
                let file = File::options().write(true).open(path);
                file.map(Arc::new)
                    .map_err(|error| failed(io::Error::new(error.kind(), format!("{}: {error}", path.display()))))
            };
            let joins = joins.iter().chain(&shield.partition_of(*cpu)).map(open).collect::<Result<_, _>>()?;
            let launch = Launch {
                cpus: Some(vec![cpu.0]),
                scheduling: None,
                environment: vec![(VARIABLE.to_owned(), shield.mark().to_owned())],
                attached: true,
                joins,
                ..Launch::default()
            };
            let mut marks = None;
            let (pid, child) = if program.jobs == Jobs::Line && !program.best_effort {
                let program = MessageDrivenProgram::start(&program.command, &launch)?;
                let pid = program.pid();
                message_driven.push(MessageDriven {
                    task,
                    period: self.request.programs[task].program.period,
                    program,
                });
                (pid, None)
            } else {
                let mut command = command(&program.command).map_err(failed)?;
                launch.prepare(&mut command);
                // Standard output is reserved for the results of the command.
                command.stdin(Stdio::null()).stdout(Stdio::from(io::stderr()));
                if program.jobs == Jobs::Marks {
                    let reader = MarkReader::new(MARKS).map_err(failed)?;
                    reader.tell(&mut command);
                    marks = Some(reader);
                }
                let child = command.spawn().map_err(failed)?;
                (Pid(child.id() as i32), Some(child))
            };
            self.started.push(Started { pid, child, gone: false, memory: Bytes(0), marks });
        }
        Ok(message_driven)
    }

    /// Waits until every program has completed its first jobs and its memory does not grow any more.
    pub(super) fn get_ready(&mut self, message_driven: &mut [MessageDriven]) {
        for MessageDriven { task, program, .. } in message_driven {
            // The first jobs touch the memory that they need, which is moved to its colors afterwards.
            let ready = program
                .ready(READY_LIMIT)
                .and_then(|_| (0..FIRST_JOBS).try_for_each(|_| program.job(READY_LIMIT).map(drop)));
            if let Err(error) = ready {
                // The way in which the program ended is more informative than this error.
                std::thread::sleep(BATCH);
                match ended(self.started[*task].pid) {
                    Some(how) => self.give_up(*task, format!("{how} before it was ready")),
                    None => self.give_up(*task, without_hint(&error)),
                }
            }
        }
        let limit = monotonic().0 + READY_LIMIT.as_nanos() as u64;
        let resident = |pid: Pid| pid.status("VmRSS").unwrap_or_default();
        let (mut last, mut since) = (Vec::new(), monotonic());
        while monotonic().0 < limit && monotonic().0 - since.0 < SETTLED.as_nanos() as u64 && !interrupt::interrupted()
        {
            let now: Vec<String> = self.started.iter().map(|started| resident(started.pid)).collect();
            if now != last {
                (last, since) = (now, monotonic());
            }
            std::thread::sleep(BATCH);
        }
        self.note_ends();
    }

    /// Moves every program to its colors.
    pub(super) fn move_to_colors(&mut self) {
        // A second round moves pages that were touched while other programs were moved.
        for task in (0..self.started.len()).chain(0..self.started.len()) {
            if self.stop || self.started[task].gone {
                continue;
            }
            if let Err(why) = (self.hooks.move_to_colors)(task, &[self.started[task].pid]) {
                self.give_up(task, format!("cannot be colored: {why}"));
            }
        }
        self.note_ends();
    }

    /// Returns the tasks whose memory is to be locked.
    fn to_lock(&self) -> Vec<usize> {
        let tasks = 0..self.started.len();
        let of_task = |task: &usize| self.request.programs[*task].requirement.is_some() && !self.started[*task].gone;
        tasks.filter(|task| self.request.lock && of_task(task)).collect()
    }

    /// Touches the memory of the tasks, so that it is resident before it is needed. Returns for each task whether all of it was touched.
    ///
    /// A program may have mapped far more memory than it will ever use, so nothing is touched if its memory would exceed the declared memory.
    pub(super) fn prefault(&mut self) -> Vec<bool> {
        let mut whole = vec![false; self.started.len()];
        for task in self.to_lock() {
            let (pid, declared) = (self.started[task].pid, self.request.programs[task].program.memory);
            let room = if declared.0 > 0 {
                (declared.0 + MEMORY_SLACK.0 + copies_of_files(pid).0)
                    .saturating_sub(own_memory(pid).unwrap_or_default().0)
            } else {
                UNTOUCHED.0
            };
            let untouched = pid.regions().map(|regions| lock::untouched(&regions));
            whole[task] = untouched.is_ok_and(|untouched| untouched.0 <= room) && lock::prefault(pid).unwrap_or(false);
        }
        whole
    }

    /// Locks the memory of the tasks after it was moved, and returns a description of the outcome.
    pub(super) fn lock(&mut self, whole: &[bool]) -> String {
        let mut locked_memory = Vec::new();
        for task in self.to_lock() {
            let (pid, name) = (self.started[task].pid, &self.names[task]);
            match lock::lock(pid, whole[task]) {
                Ok(()) => {
                    let locked = pid.status("VmLck").unwrap_or_default();
                    let how = if whole[task] { "" } else { ", as it is touched" };
                    locked_memory.push(format!("{name}: {locked} locked{how}"));
                }
                Err(error) => {
                    self.notes.push(format!("{name}: its memory is not locked: {}", without_hint(&error)));
                }
            }
        }
        self.note_ends();
        if locked_memory.is_empty() { "not locked".to_owned() } else { locked_memory.join("; ") }
    }

    /// Gives the programs their priorities, and returns for each the thread that executes its jobs.
    pub(super) fn schedule(&mut self, events: &mut JobEvents) -> Result<Vec<Option<i32>>, RunError> {
        let (mut threads, mut others) = (Vec::<Vec<i32>>::new(), Vec::new());
        for task in 0..self.started.len() {
            let found = self.started[task].pid.threads().unwrap_or_default();
            if let Some(scheduling) = self.request.programs[task].scheduling.filter(|_| !self.started[task].gone) {
                if scheduling.is_deadline() && found.len() > 1 {
                    let what = format!("has {} threads, and SCHED_DEADLINE reserves time for one", found.len());
                    self.give_up(task, what);
                }
                for thread in &found {
                    if let Err(error) = scheduling.apply_to(*thread)
                        && error.raw_os_error() != Some(libc::ESRCH)
                    {
                        let why = if scheduling.is_deadline() { refused_deadline(&error) } else { "" };
                        self.give_up(task, format!("cannot be given {scheduling}: {error}{why}"));
                        break;
                    }
                }
                threads.push(found);
            } else {
                others.extend(found);
                threads.push(Vec::new());
            }
        }
        let all: Vec<i32> = threads.iter().flatten().copied().collect();
        events.follow(&all, &others)?;
        let longest = self.request.programs.iter().map(|planned| 3 * planned.program.period.0).max().unwrap_or(0);
        let several = threads.iter().any(|threads| threads.len() > 1);
        let time = if several { longest.clamp(CALIBRATION.0, 2_000_000_000) } else { 0 };
        let mut observations = Vec::new();
        events.drain(&mut observations)?;
        observations.clear();
        std::thread::sleep(Duration::from_nanos(time));
        events.drain(&mut observations)?;
        let woken = |thread: i32| {
            let wakes =
                |what| matches!(what, Observed::Scheduler(_, EventKind::Wakeup { thread: woken }) if woken == thread);
            observations.iter().filter(|observation| wakes(observation.what)).count()
        };
        Ok(threads
            .iter()
            .zip(self.request.programs)
            .map(|(threads, planned)| {
                let expected = (time / planned.program.period.0.max(1)) as usize;
                threads.iter().copied().min_by_key(|&thread| woken(thread).abs_diff(expected))
            })
            .collect())
    }
}

/// Returns why the kernel refused SCHED_DEADLINE with `error`. [sched(7); Linux, Documentation/scheduler/sched-deadline.rst]
fn refused_deadline(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "; it may run on one CPU, which must be a root domain of its own: a partition of cgroup v2's cpuset, for which the controller must not be \
             bound to cgroup v1, or kernel.sched_rt_runtime_us = -1, which turns admission off"
        }
        Some(libc::EBUSY) => {
            "; the reservations on its CPU are more than kernel.sched_rt_runtime_us in every kernel.sched_rt_period_us admits"
        }
        Some(libc::EINVAL) => {
            "; a period lies between kernel.sched_deadline_period_min_us and _max_us, a runtime is at least 1024 ns and at most the deadline"
        }
        _ => "",
    }
}
