//! Checks whether a process may be recolored, before anything in it is changed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::error::RecolorError;
use super::exclusive::ExclusiveLock;
use crate::process::{Pid, ProcessError, Region, status_of};
use crate::sys::trace;

impl Pid {
    /// Checks that this process may be recolored, and returns its mappings. Waits while another isochrome works on the process.
    ///
    /// Fails with the [`RecolorError`] that says why the process must be left alone.
    pub fn check(self) -> Result<Vec<Region>, RecolorError> {
        match self.check_locked() {
            Err(RecolorError::Traced { .. }) => {
                // The lock is held during the second check, so that another isochrome cannot attach again in between.
                let _exclusive = ExclusiveLock::wait(self)?;
                self.check_locked()
            }
            checked => checked,
        }
    }

    /// Does the same as [`check`](Self::check) for a caller that already holds the lock for recoloring.
    pub fn check_locked(self) -> Result<Vec<Region>, RecolorError> {
        let pid = self.0;
        let status = self.text("status")?;
        let number = |key: &str| {
            status_of(&status, key).split_ascii_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        if pid as u32 == std::process::id() {
            return Err(RecolorError::Itself);
        }
        if number("Tgid") != pid as u64 {
            return Err(RecolorError::NotAProcess { thread: pid, pid: number("Tgid") });
        }
        if self.is_the_kernels()? {
            return Err(RecolorError::KernelThread { pid });
        }
        if status_of(&status, "VmSize").is_empty() {
            return Err(ProcessError::Ended { pid }.into());
        }
        match number("TracerPid") {
            0 => {}
            // A thread that did not stop in time is let go once it does.
            by if by == u64::from(std::process::id()) => {
                return Err(RecolorError::NotStopping { pid, thread: pid, stood: Duration::ZERO });
            }
            by => return Err(RecolorError::Traced { pid, by }),
        }
        let mut class = [0; 5];
        File::open(self.path("exe"))
            .and_then(|program| program.read_exact_at(&mut class, 0))
            .map_err(self.failed("exe"))?;
        // EI_CLASS: 2 is a 64-bit program.
        if class[4] != 2 {
            return Err(RecolorError::WordSize { pid });
        }
        self.check_alone()?;
        Ok(self.regions()?)
    }

    /// Whether this process is a thread of the kernel. [Linux, include/linux/sched.h, PF_KTHREAD]
    fn is_the_kernels(self) -> Result<bool, RecolorError> {
        Ok(self.stat(9)? >> 21 & 1 == 1)
    }

    /// Checks that neither the parent nor a child of this process runs in the same memory; fails with [`RecolorError::SharesMemory`].
    pub fn check_alone(self) -> Result<(), RecolorError> {
        let parent = self.status("PPid")?.parse().map(Pid);
        match self.children().into_iter().chain(parent).find(|other| trace::same_memory(self.0, other.0)) {
            Some(other) => Err(RecolorError::SharesMemory { pid: self.0, other: other.0 }),
            None => Ok(()),
        }
    }
}
