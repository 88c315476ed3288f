//! The priority of the thread that holds a process still.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::process::{Pid, ThreadState};
use crate::sys::scheduling::Scheduling;
use crate::sys::trace::ThreadId;

/// Gives this thread the lowest real-time priority while it exists, if permitted. Otherwise the stopped process would wait for this
/// program's time slice on a loaded machine.
pub(super) struct Haste {
    /// Scheduling of the thread to restore; `None` if it was not changed.
    pub(super) before: Option<Scheduling>,
    /// The CPUs that the thread may otherwise run on; `None` unless it is kept on the CPU of a held thread.
    cpus: Option<CpuSet>,
}

impl Haste {
    pub(super) fn begin() -> Haste {
        let ordinary = |now: &Scheduling| now.is_ordinary();
        let before = Scheduling::current().ok().filter(ordinary);
        Haste { before: before.filter(|_| Scheduling::fifo(1).apply().is_ok()), cpus: None }
    }

    /// Keeps this thread on the CPU that `thread` of `pid` ran on last, unless that is a real-time thread, which may never yield its CPU.
    ///
    /// The two threads alternate at every system call, and the kernel then chooses anew who runs on that CPU. It prefers the thread that has
    /// run least. So on a CPU that other threads of the program keep busy, the held thread would wait for the end of a time slice at every
    /// call.
    pub(super) fn share_cpu_with(&mut self, pid: Pid, thread: ThreadId) {
        let Some(state) = pid.thread_state(thread).filter(ThreadState::is_ordinary) else { return };
        self.cpus = self.cpus.or_else(|| sched_getaffinity(None).ok());
        let mut cpu = CpuSet::new();
        cpu.set(state.cpu);
        // Where it may not run there, it works from where it is.
        let _ = sched_setaffinity(None, &cpu);
    }

    /// Returns the CPUs that this thread may run on when it is not kept on one.
    pub(super) fn cpus(&self) -> io::Result<CpuSet> {
        Ok(self.cpus.map_or_else(|| sched_getaffinity(None), Ok)?)
    }
}

impl Drop for Haste {
    fn drop(&mut self) {
        if let Some(cpus) = self.cpus {
            // It was permitted before.
            let _ = sched_setaffinity(None, &cpus);
        }
        if let Some(before) = self.before {
            // It was permitted before.
            let _ = before.apply();
        }
    }
}
