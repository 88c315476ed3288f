//! State of a run while its programs run, and the end of programs: by themselves, by a failure, or when the run is over.

use std::collections::BTreeMap;
use std::io;
use std::process::Child;
use std::time::Duration;

use isochrome_model::running::{
    Failure, Overhead, Placement, ReleaseClock, ReleasePattern, Releases, Requirement, Violation,
};
use isochrome_model::units::{Bytes, CpuId, Ns};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::{Hooks, Request};
use crate::process::Pid;
use crate::run::gaps::{GapsBeside, WatchBeside};
use crate::run::marks::MarkReader;
use crate::run::planned::Planned;
use crate::sys::clock::monotonic;
use crate::sys::launch;

/// Signal that asks a program to end.
const SIGTERM: i32 = 15;
/// Signal that kills a program.
const SIGKILL: i32 = 9;

/// A program that was started.
pub(super) struct Started {
    pub(super) pid: Pid,
    /// Child process; `None` for a message-driven program, whose child process is owned by its `MessageDrivenProgram`.
    pub(super) child: Option<Child>,
    pub(super) gone: bool,
    pub(super) memory: Bytes,
    /// Reader of the marks that the program sets; `None` if the program sets none.
    pub(super) marks: Option<MarkReader>,
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// State that changes while programs run.
pub(super) struct Session<'a, 'h> {
    pub(super) request: &'a Request<'a>,
    pub(super) hooks: &'a mut Hooks<'h>,
    pub(super) names: Vec<String>,
    pub(super) started: Vec<Started>,
    pub(super) violations: Vec<Violation>,
    pub(super) failures: Vec<Failure>,
    pub(super) notes: Vec<String>,
    /// Number of the last job of each task that was reported as a violation before it was complete.
    pub(super) reported: BTreeMap<usize, u64>,
    pub(super) begin: Ns,
    pub(super) stop: bool,
    pub(super) unrecorded: Option<io::Error>,
    pub(super) overhead: Overhead,
    /// Counts of releases, by program.
    pub(super) releases: Vec<Releases>,
    /// Clocks that count the releases of programs that wake themselves, by program.
    pub(super) clocks: Vec<ReleaseClock>,
    /// Threads that watch the clock on CPUs of tasks whose jobs exceeded limits.
    pub(super) watches: BTreeMap<CpuId, WatchBeside>,
    /// Where the memory of each program lay once the first jobs were released; `None` before that.
    pub(super) begins: Option<Vec<Option<Placement>>>,
}

impl<'a, 'h> Session<'a, 'h> {
    /// Creates the state of a run before any program is started.
    pub(super) fn new(request: &'a Request<'a>, hooks: &'a mut Hooks<'h>) -> Session<'a, 'h> {
        let pattern = |planned: &Planned| -> ReleasePattern {
            planned.requirement.as_ref().map(Requirement::release_pattern).unwrap_or_default()
        };
        Session {
            request,
            hooks,
            names: request.programs.iter().map(|planned| planned.program.name.clone()).collect(),
            started: Vec::new(),
            violations: Vec::new(),
            failures: Vec::new(),
            notes: Vec::new(),
            reported: BTreeMap::new(),
            begin: Ns(u64::MAX),
            stop: false,
            unrecorded: None,
            overhead: Overhead::default(),
            releases: vec![Releases::default(); request.programs.len()],
            clocks: request.programs.iter().map(|planned| ReleaseClock::new(pattern(planned))).collect(),
            watches: BTreeMap::new(),
            begins: None,
        }
    }

    /// Returns the time since the first release; 0 before the first release.
    pub(super) fn since_begin(&self) -> Ns {
        Ns(monotonic().0.saturating_sub(self.begin.0))
    }

    /// Records that a program failed. For a best-effort program this is only a note; otherwise the run ends unless `keep_going` is set.
    pub(super) fn fail(&mut self, task: usize, what: String) {
        if self.request.programs[task].requirement.is_none() {
            // A best-effort program has no requirement that it could violate.
            return self.notes.push(format!("{}: {what}", self.names[task]));
        }
        self.failures.push(Failure { task: self.names[task].clone(), at: self.since_begin(), what });
        self.stop |= !self.request.keep_going;
    }

    /// Kills a program that cannot stay in the run, and records why.
    pub(super) fn give_up(&mut self, task: usize, what: String) {
        if !std::mem::replace(&mut self.started[task].gone, true) {
            let _ = launch::send(self.started[task].pid.0, SIGKILL);
            self.fail(task, what);
        }
    }

    /// Marks programs that have ended by themselves, and records how they ended.
    pub(super) fn note_ends(&mut self) {
        for task in 0..self.started.len() {
            if !self.started[task].gone
                && let Some(how) = ended(self.started[task].pid)
            {
                self.started[task].gone = true;
                self.fail(task, how);
            }
        }
    }

    /// Returns the name of each program with the largest amount of memory of its own that the program had.
    pub(super) fn memory(&self) -> Vec<(String, Bytes)> {
        self.names.iter().cloned().zip(self.started.iter().map(|started| started.memory)).collect()
    }

    /// Returns where the memory of each program lies; `None` for programs that have ended, and if the placement cannot be determined.
    pub(super) fn placements(&mut self) -> Vec<Option<Placement>> {
        let mut inspect =
            |task, started: &Started| if started.gone { None } else { (self.hooks.inspect)(task, &[started.pid]) };
        self.started.iter().enumerate().map(|(task, started)| inspect(task, started)).collect()
    }

    /// Returns the gaps that were seen, once the tasks have ended. The watches used only time in which no other thread needed the CPU, so this time
    /// does not count as overhead of this program.
    pub(super) fn gaps(&mut self) -> Vec<GapsBeside> {
        let gaps: Vec<GapsBeside> =
            std::mem::take(&mut self.watches).into_values().filter_map(WatchBeside::end).collect();
        let spare: u64 = gaps.iter().map(|gaps| gaps.watched().0).sum();
        self.overhead.tool_cpu.0 = self.overhead.tool_cpu.0.saturating_sub(spare);
        gaps
    }

    /// Sends SIGTERM to all programs that are not message-driven, and waits up to 500 ms until they have ended.
    pub(super) fn end(&mut self) {
        for started in self.started.iter().filter(|started| started.child.is_some() && !started.gone) {
            let _ = launch::send(started.pid.0, SIGTERM);
        }
        let limit = monotonic().0 + 500_000_000;
        while monotonic().0 < limit && self.started.iter().any(|one| one.child.is_some() && ended(one.pid).is_none()) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns how process `pid`, a child of this process, has ended; `None` if it has not ended. Leaves the exit status to a later wait.
pub(super) fn ended(pid: Pid) -> Option<String> {
    let id = rustix::process::Pid::from_raw(pid.0)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(id), options).ok()??;
    Some(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    })
}
