//! Helpers: threads that are made inside the process and work there on their own.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid as RawPid, PidfdFlags, pidfd_open};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{Hold, failed};
use crate::interrupt::interrupted;
use crate::process::Pid;
use crate::recolor::calls::HELPER_FLAGS;
use crate::recolor::error::RecolorError;
use crate::sys::agent::DEADLINE_AT;
use crate::sys::launch;
use crate::sys::scheduling::Scheduling;
use crate::sys::trace::{self, Report, ThreadId};

/// Scheduling of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// With the ordinary priority of this program, never real-time: for work while the process runs.
    Calm,
    /// With the priority that this program has while the process stands still.
    Hurried,
}

/// A thread that works in the process, with the address of its table.
#[derive(Clone, Copy)]
pub(super) struct Helper {
    pub(super) thread: ThreadId,
    table: u64,
}

impl Hold {
    /// Creates a thread in the process that will run `code` with `argument` and the stack that ends at `stack`. The thread stays stopped.
    ///
    /// The thread runs on the CPUs and with the scheduling of this program, so that it does not use the CPU time of the thread that created it.
    pub fn make_helper(&mut self, code: u64, argument: u64, stack: u64, pace: Pace) -> Result<(), RecolorError> {
        let answer = self.answer(libc::SYS_clone, [HELPER_FLAGS, stack, 0, 0, 0, 0])?;
        let helper = answer.made.ok_or_else(|| RecolorError::Refused {
            pid: self.pid.0,
            action: "make a thread",
            source: io::Error::from_raw_os_error(-answer.result as i32),
        })?;
        self.helpers.push(Helper { thread: helper, table: argument });
        let own = match (pace, self.haste.before) {
            (Pace::Calm, Some(before)) => Ok(before),
            // A helper that waits for requests at the real-time priority of the requester would keep the requester from their common CPU.
            (Pace::Calm, None) => {
                Scheduling::current().map(|own| if own.is_ordinary() { own } else { Scheduling::other() })
            }
            (Pace::Hurried, _) => Scheduling::current(),
        };
        // If this is refused, the helper keeps the scheduling of the thread that created it.
        let _ = own.and_then(|own| own.apply_to(helper));
        let _ = self.haste.cpus().and_then(|own| Ok(sched_setaffinity(RawPid::from_raw(helper), &own)?));
        let failed = failed(self.pid, helper, "run");
        let registers = trace::registers(helper).map_err(&failed)?;
        trace::set_registers(helper, &registers.at(code).with_argument(argument).with_stack(stack)).map_err(&failed)
    }

    /// Keeps the helper that was made last on `cpu`. If that is refused, it runs where other helpers may.
    pub fn keep_helper_on(&self, cpu: usize) {
        let mut only = CpuSet::new();
        only.set(cpu);
        let _ = self.helpers.last().map(|helper| sched_setaffinity(RawPid::from_raw(helper.thread), &only));
    }

    /// Returns the number of CPUs on which helpers may run; 1 if it cannot be read.
    pub fn cpus(&self) -> usize {
        self.haste.cpus().map_or(1, |cpus| cpus.count() as usize)
    }

    /// Starts the helpers, and waits until all have ended.
    pub fn work(&mut self) -> Result<(), RecolorError> {
        self.send_off().finish()
    }

    /// Starts the helpers, and returns them.
    pub fn send_off(&mut self) -> Helpers {
        let helpers = std::mem::take(&mut self.helpers);
        for helper in &helpers {
            // A helper that cannot go on has ended, which waiting for it will show.
            let _ = trace::go_on(helper.thread, 0);
        }
        Helpers { pid: self.pid, helpers }
    }

    /// Ends a stopped thread that waits in the cave.
    pub(super) fn end_helper(&mut self, helper: ThreadId) -> Result<(), RecolorError> {
        match trace::remote_call(helper, self.journal.cave, libc::SYS_exit, [0; 6], &mut self.held_back) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            Err(source) => Err(failed(self.pid, helper, "end")(source)),
            Ok(_) => Ok(()),
        }
    }
}

/// Threads that work inside a process while it runs. Dropping the value waits until they have ended.
pub struct Helpers {
    pid: Pid,
    helpers: Vec<Helper>,
}

impl Helpers {
    /// Waits until all helpers have ended.
    ///
    /// Fails with [`RecolorError::Interrupted`] if a signal requests the end of this program during the wait; the helpers then leave the rest of
    /// their work undone.
    pub fn wait(mut self) -> Result<(), RecolorError> {
        self.end(true)?;
        if interrupted() { Err(RecolorError::Interrupted { pid: self.pid.0 }) } else { Ok(()) }
    }

    /// Waits until all helpers have done their work and ended.
    pub fn finish(mut self) -> Result<(), RecolorError> {
        self.end(false)
    }

    fn end(&mut self, may_stop: bool) -> Result<(), RecolorError> {
        let mut held_back = Vec::new();
        let helpers = std::mem::take(&mut self.helpers);
        let mut stopped = !may_stop;
        let memory = self.pid.memory();
        let mut stop = || {
            if !stopped && interrupted() {
                stopped = true;
                for helper in &helpers {
                    // Time 0 is a deadline that has passed.
                    let _ = memory.as_ref().map(|memory| memory.write_all_at(&[0; 8], helper.table + DEADLINE_AT));
                }
            }
        };
        let mut wait = |helper: &Helper| wait_for(self.pid, helper.thread, &mut held_back, &mut stop);
        // All helpers are waited for, even if one fails.
        let outcomes: Vec<_> = helpers.iter().map(&mut wait).collect();
        for signal in held_back {
            let _ = launch::send(self.pid.0, signal);
        }
        outcomes.into_iter().collect()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        let _ = self.end(true);
    }
}

/// Waits for a running helper to end. `held_back` gathers the signals that were about to be delivered to the helper; `between` is called at
/// least every 50 ms.
pub(super) fn wait_for(
    pid: Pid,
    helper: ThreadId,
    held_back: &mut Vec<i32>,
    between: &mut dyn FnMut(),
) -> Result<(), RecolorError> {
    let failed = failed(pid, helper, "wait for");
    let end = end_of(helper);
    loop {
        let looked = end.as_ref().is_some_and(|end| {
            let _ = poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&LOOK));
            true
        });
        let limit = if looked { Duration::ZERO } else { Duration::from_millis(50) };
        match trace::report_within(helper, limit) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => between(),
            Err(error) => return Err(failed(error)),
            Ok(Report::Gone) => return Ok(()),
            Ok(Report::Signal(signal)) => {
                held_back.push(signal);
                trace::go_on(helper, 0).map_err(&failed)?;
            }
            Ok(_) => trace::go_on(helper, 0).map_err(&failed)?,
        }
    }
}

/// Time after which a helper that has not ended is examined, in case it was stopped.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Returns a descriptor that becomes readable when `thread` ends, so that waiting for it takes no time from its CPU; `None` if the kernel
/// has none for threads (before Linux 6.9).
fn end_of(thread: ThreadId) -> Option<OwnedFd> {
    // PIDFD_THREAD, to which rustix gives no name.
    pidfd_open(RawPid::from_raw(thread)?, PidfdFlags::from_bits_retain(libc::O_EXCL as u32)).ok()
}
