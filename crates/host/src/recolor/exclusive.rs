//! The lock that lets only one process at a time be recolored or repaired.

use std::fs::{self, File};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::RecolorError;
use super::hold::await_stragglers;
use crate::interrupt::interrupted;
use crate::machine::sysfs::Sysfs;
use crate::process::Pid;
use crate::runtime;
use crate::sys::scheduling::Scheduling;

/// Lock guard that is held while a process is recolored or repaired, so that this happens to one process at a time. Two recolorings at
/// once would each take the frames that the other one frees for a moment before it draws them again.
pub struct ExclusiveLock {
    /// The lock file, which is locked for as long as it is open.
    _file: File,
    _share: Share,
}

impl ExclusiveLock {
    /// Waits for the lock in order to work on `pid`.
    ///
    /// Fails with [`RecolorError::Interrupted`] if a signal requests the end of this program during the wait.
    pub fn wait(pid: Pid) -> Result<ExclusiveLock, RecolorError> {
        let folder = runtime::folder();
        let path = folder.join("recolor.lock");
        let failed = |source| RecolorError::Journal { path: path.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(ExclusiveLock { _file: file, _share: Share::half_a_cpu() }),
                Err(error) if error != Errno::WOULDBLOCK => return Err(failed(error.into())),
                Err(_) if interrupted() => return Err(RecolorError::Interrupted { pid: pid.0 }),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for ExclusiveLock {
    fn drop(&mut self) {
        /// How long to wait for threads that were asked to stop and have not stopped yet.
        const LIMIT: Duration = Duration::from_secs(1);
        // If this program ended before such a thread stops, a system call of the thread that the kernel does not restart would end with EINTR.
        await_stragglers(LIMIT);
    }
}

/// Guard that gives this thread, and the helpers that it creates, the nice value that is worth about half of a CPU, if permitted. Without it
/// a helper would get only one share among the many threads of a program that keeps all CPUs busy.
struct Share {
    /// Scheduling of the thread to restore; `None` if nothing was changed.
    before: Option<Scheduling>,
}

impl Share {
    fn half_a_cpu() -> Share {
        /// Ratio of the CPU time of neighboring nice values. [Linux, kernel/sched/core.c, sched_prio_to_weight]
        const STEP: f64 = 1.25;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // This thread is one of the running threads.
        let others = Sysfs::system().running_threads().map_or(0, |running| running.saturating_sub(1));
        let on_each = (others as f64 / cpus as f64).max(1.0);
        let steps = (on_each.ln() / STEP.ln()) as i32;
        let before = Scheduling::current().ok().filter(|now| steps > 0 && now.is_other());
        Share { before: before.filter(|before| before.nicer_by(-steps).apply().is_ok()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // A higher nice value is always permitted.
            let _ = before.apply();
        }
    }
}
