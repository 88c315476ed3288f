//! What changes while programs run, and how programs end: by themselves, by a failure, or when the run is over.

use std::collections::BTreeMap;
use std::io;
use std::process::Child;
use std::time::Duration;

use isochrome_model::running::{
    Failure, Overhead, Placement, ReleaseClock, ReleasePattern, Releases, Requirement, Violation,
};
use isochrome_model::units::{Bytes, Ns};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::{Hooks, Request};
use crate::process::Pid;
use crate::run::marks::MarkReader;
use crate::run::planned::Planned;
use crate::sys::clock::monotonic;
use crate::sys::launch;

/// Asks a program to end.
const SIGTERM: i32 = 15;
/// Ends a program.
const SIGKILL: i32 = 9;

/// A program that was started.
pub(super) struct Started {
    pub(super) pid: Pid,
    /// Those that are not seen by lines.
    pub(super) child: Option<Child>,
    pub(super) gone: bool,
    pub(super) memory: Bytes,
    /// Where it marks its jobs.
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

/// Everything that changes while programs run.
pub(super) struct Session<'a, 'h> {
    pub(super) request: &'a Request<'a>,
    pub(super) hooks: &'a mut Hooks<'h>,
    pub(super) names: Vec<String>,
    pub(super) started: Vec<Started>,
    pub(super) violations: Vec<Violation>,
    pub(super) failures: Vec<Failure>,
    pub(super) notes: Vec<String>,
    /// Jobs already reported while they were not complete.
    pub(super) reported: BTreeMap<usize, u64>,
    pub(super) begin: Ns,
    pub(super) stop: bool,
    pub(super) unrecorded: Option<io::Error>,
    pub(super) overhead: Overhead,
    /// By program.
    pub(super) releases: Vec<Releases>,
    /// By program, of those that wake themselves.
    pub(super) clocks: Vec<ReleaseClock>,
    /// Where the memory of each program lay once the first jobs were released; `None` before that.
    pub(super) begins: Option<Vec<Option<Placement>>>,
}

impl<'a, 'h> Session<'a, 'h> {
    /// One that has begun nothing yet.
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
            begins: None,
        }
    }

    /// Since the first release.
    pub(super) fn since_begin(&self) -> Ns {
        Ns(monotonic().0.saturating_sub(self.begin.0))
    }

    /// Records that a program failed. The program is ended, or has ended.
    pub(super) fn fail(&mut self, task: usize, what: String) {
        if self.request.programs[task].requirement.is_none() {
            // A best-effort program has no requirement that it could violate.
            return self.notes.push(format!("{}: {what}", self.names[task]));
        }
        self.failures.push(Failure { task: self.names[task].clone(), at: self.since_begin(), what });
        self.stop |= !self.request.keep_going;
    }

    /// Ends a program that cannot stay in the run, and records why.
    pub(super) fn give_up(&mut self, task: usize, what: String) {
        if !std::mem::replace(&mut self.started[task].gone, true) {
            let _ = launch::send(self.started[task].pid.0, SIGKILL);
            self.fail(task, what);
        }
    }

    /// Names programs that have ended.
    pub(super) fn look_for_ends(&mut self) {
        for task in 0..self.started.len() {
            if !self.started[task].gone
                && let Some(how) = ended(self.started[task].pid)
            {
                self.started[task].gone = true;
                self.fail(task, how);
            }
        }
    }

    /// Most memory of its own that each program had.
    pub(super) fn memory(&self) -> Vec<(String, Bytes)> {
        self.names.iter().cloned().zip(self.started.iter().map(|started| started.memory)).collect()
    }

    /// Where the memory of each program lies; `None` for those that have ended.
    pub(super) fn placements(&mut self) -> Vec<Option<Placement>> {
        let mut look =
            |task, started: &Started| if started.gone { None } else { (self.hooks.look)(task, &[started.pid]) };
        self.started.iter().enumerate().map(|(task, started)| look(task, started)).collect()
    }

    /// Asks the programs to end, and waits a little.
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

/// How process `pid`, a child of this one, has ended; it stays to be waited for.
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
