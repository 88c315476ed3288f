//! The priority of the thread that holds a process still.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::process::{Pid, ThreadState};
use crate::sys::scheduling::Scheduling;
use crate::sys::trace::ThreadId;

/// Guard that gives this thread the lowest real-time priority, if permitted. Without it the stopped process would wait for this program's
/// time slice on a loaded machine.
pub(super) struct Haste {
    /// Scheduling of the thread to restore; `None` if it was not changed.
    pub(super) before: Option<Scheduling>,
    /// The CPUs that the thread may otherwise run on; `None` unless this thread is kept on the CPU of a held thread.
    cpus: Option<CpuSet>,
}

impl Haste {
    pub(super) fn begin() -> Haste {
        let ordinary = |now: &Scheduling| now.is_ordinary();
        let before = Scheduling::current().ok().filter(ordinary);
        Haste { before: before.filter(|_| Scheduling::fifo(1).apply().is_ok()), cpus: None }
    }

    /// Keeps this thread on the CPU that `thread` of `pid` ran on last, unless `thread` is a real-time thread, which may never yield its CPU.
    ///
    /// The two threads alternate at every system call. On a shared CPU, the kernel then chooses anew which thread runs, and prefers the thread
    /// that has run least. On another CPU that other threads of the program keep busy, the held thread would wait for the end of a time slice
    /// at every call.
    pub(super) fn share_cpu_with(&mut self, pid: Pid, thread: ThreadId) {
        let Some(state) = pid.thread_state(thread).filter(ThreadState::is_ordinary) else { return };
        self.cpus = self.cpus.or_else(|| sched_getaffinity(None).ok());
        let mut cpu = CpuSet::new();
        cpu.set(state.cpu);
        // A thread that may not run on that CPU stays where it is.
        let _ = sched_setaffinity(None, &cpu);
    }

    /// Returns the CPUs that this thread may run on when it is not kept on one CPU.
    pub(super) fn cpus(&self) -> io::Result<CpuSet> {
        Ok(self.cpus.map_or_else(|| sched_getaffinity(None), Ok)?)
    }
}

impl Drop for Haste {
    fn drop(&mut self) {
        if let Some(cpus) = self.cpus {
            // The thread ran on these CPUs before.
            let _ = sched_setaffinity(None, &cpus);
        }
        if let Some(before) = self.before {
            // Giving up a real-time priority is always permitted.
            let _ = before.apply();
        }
    }
}
