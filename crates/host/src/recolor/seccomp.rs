//! Programs that filter their system calls (seccomp): whether the filters allow the calls that a recoloring makes.

use std::io;

use isochrome_model::seccomp::{Call, Instruction, Verdict, verdict};

use super::calls::{DROP_LOCKED, HELPER_FLAGS, REFERENCE_MAPPED, REFERENCE_OPENED, USERFAULT_FLAGS};
use super::error::RecolorError;
use crate::process::{Pid, status_of};
use crate::sys::agent::WAITING_CALL;
use crate::sys::trace::{self, ThreadId};
use crate::sys::userfault;

/// A system call that a recoloring makes the process issue.
struct Made {
    name: &'static str,
    number: libc::c_long,
    arguments: [u64; 6],
    /// Whether the call may fail, because there is an alternative or it does not matter.
    may_fail: bool,
}

const fn needed(name: &'static str, number: libc::c_long, arguments: [u64; 6]) -> Made {
    Made { name, number, arguments, may_fail: false }
}

const fn tried(name: &'static str, number: libc::c_long, arguments: [u64; 6]) -> Made {
    Made { name, number, arguments, may_fail: true }
}

const MAPPING: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE) as u64;
const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXECUTE: u64 = libc::PROT_EXEC as u64;

/// System calls that every thread of the program may make: parked threads wait, and interrupted calls are restarted.
const OF_EVERY_THREAD: [Made; 2] =
    [needed("restart_syscall", libc::SYS_restart_syscall, [0; 6]), needed(WAITING_CALL.0, WAITING_CALL.1, [0; 6])];

/// System calls that the leader and the helpers that it creates make for the work. Addresses and descriptors are left out, because
/// filters cannot know them.
const FOR_THE_WORK: [Made; 25] = [
    needed("mmap", libc::SYS_mmap, [0, 0, libc::PROT_NONE as u64, MAPPING, u64::MAX, 0]),
    needed("mmap", libc::SYS_mmap, [0, 0, READ | EXECUTE, MAPPING, u64::MAX, 0]),
    needed("munlock", libc::SYS_munlock, [0; 6]),
    needed("mprotect", libc::SYS_mprotect, [0, 0, READ | WRITE, 0, 0, 0]),
    needed("mprotect", libc::SYS_mprotect, [0, 0, READ | WRITE | EXECUTE, 0, 0, 0]),
    needed("mprotect", libc::SYS_mprotect, [0, 0, READ | EXECUTE, 0, 0, 0]),
    tried("madvise", libc::SYS_madvise, [0, 0, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0]),
    tried("madvise", libc::SYS_madvise, [0, 0, libc::MADV_HUGEPAGE as u64, 0, 0, 0]),
    tried("madvise", libc::SYS_madvise, [0, 0, libc::MADV_UNMERGEABLE as u64, 0, 0, 0]),
    needed("madvise", libc::SYS_madvise, [0, 0, libc::MADV_DONTFORK as u64, 0, 0, 0]),
    needed("madvise", libc::SYS_madvise, [0, 0, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0]),
    needed("madvise", libc::SYS_madvise, [0, 0, libc::MADV_DONTNEED as u64, 0, 0, 0]),
    tried("madvise", libc::SYS_madvise, [0, 0, DROP_LOCKED, 0, 0, 0]),
    tried("madvise", libc::SYS_madvise, [0, 0, libc::MADV_COLD as u64, 0, 0, 0]),
    needed("clone", libc::SYS_clone, [HELPER_FLAGS, 0, 0, 0, 0, 0]),
    needed("exit", libc::SYS_exit, [0; 6]),
    tried("prctl", libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 0, 0, 0, 0, 0]),
    tried("prctl", libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0]),
    tried("userfaultfd", libc::SYS_userfaultfd, [USERFAULT_FLAGS, 0, 0, 0, 0, 0]),
    tried("userfaultfd", libc::SYS_userfaultfd, [USERFAULT_FLAGS | userfault::USER_MODE_ONLY as u64, 0, 0, 0, 0, 0]),
    tried("ioctl", libc::SYS_ioctl, [0, userfault::UFFDIO_API as u64, 0, 0, 0, 0]),
    tried("ioctl", libc::SYS_ioctl, [0, userfault::UFFDIO_REGISTER, 0, 0, 0, 0]),
    tried("ioctl", libc::SYS_ioctl, [0, userfault::UFFDIO_MOVE, 0, 0, 0, 0]),
    needed("close", libc::SYS_close, [0; 6]),
    needed("munmap", libc::SYS_munmap, [0; 6]),
];

/// Further system calls that the leader makes where colors are found by eviction tests.
const FOR_THE_REFERENCE: [Made; 3] = [
    needed("openat", libc::SYS_openat, [libc::AT_FDCWD as u64, 0, REFERENCE_OPENED, 0, 0, 0]),
    needed("mmap", libc::SYS_mmap, [0, 0, libc::PROT_NONE as u64, REFERENCE_MAPPED, 0, 0]),
    needed("mprotect", libc::SYS_mprotect, [0, 0, READ, 0, 0, 0]),
];

/// Checks the filters of stopped threads. Each distinct stack of filters is evaluated once.
#[derive(Default)]
pub struct Judge {
    /// Stacks of filters that allow the calls, and whether that includes the calls of [`FOR_THE_WORK`].
    allowed: Vec<(Vec<Vec<Instruction>>, bool)>,
}

impl Judge {
    /// Checks the filters of the stopped `thread`; fails with [`RecolorError::CallForbidden`] if a filter forbids a call that is needed.
    ///
    /// `instruction`: the address behind the instruction that makes the calls. `works`: whether the thread makes the calls
    /// of [`FOR_THE_WORK`], too.
    pub fn check(&mut self, pid: Pid, thread: ThreadId, instruction: u64, works: bool) -> Result<(), RecolorError> {
        let Some(filters) = filters(pid, thread)? else { return Ok(()) };
        if self.allowed.iter().any(|(known, working)| *working >= works && *known == filters) {
            return Ok(());
        }
        let work: &[Made] = if works { &FOR_THE_WORK } else { &[] };
        check_all(pid, thread, &filters, instruction, OF_EVERY_THREAD.iter().chain(work))?;
        self.allowed.push((filters, works));
        Ok(())
    }
}

/// Does the same as [`Judge::check`] for the calls that [`FOR_THE_REFERENCE`] lists.
pub fn check_reference(pid: Pid, thread: ThreadId, instruction: u64) -> Result<(), RecolorError> {
    let Some(filters) = filters(pid, thread)? else { return Ok(()) };
    check_all(pid, thread, &filters, instruction, FOR_THE_REFERENCE.iter())
}

/// Returns the filters of a stopped thread; `None` if the thread's system calls are not filtered.
fn filters(pid: Pid, thread: ThreadId) -> Result<Option<Vec<Vec<Instruction>>>, RecolorError> {
    let status = pid.text(&format!("task/{thread}/status"))?;
    if matches!(status_of(&status, "Seccomp"), "" | "0") {
        return Ok(None);
    }
    // In strict mode no filter can be read, and nothing is allowed.
    trace::filters(thread).map(Some).map_err(|source| RecolorError::Seccomp { pid: pid.0, source })
}

fn check_all<'a>(
    pid: Pid,
    thread: ThreadId,
    filters: &[Vec<Instruction>],
    instruction: u64,
    calls: impl Iterator<Item = &'a Made>,
) -> Result<(), RecolorError> {
    for made in calls {
        match judged(filters, made, instruction) {
            Some(Verdict::Allowed) => {}
            Some(Verdict::Fails(_)) if made.may_fail => {}
            Some(_) => return Err(RecolorError::CallForbidden { pid: pid.0, thread, call: made.name }),
            None => return Err(RecolorError::Seccomp { pid: pid.0, source: io::ErrorKind::InvalidData.into() }),
        }
    }
    Ok(())
}

/// Returns the strictest verdict of the filters on a call; `None` if a filter cannot be evaluated.
fn judged(filters: &[Vec<Instruction>], made: &Made, instruction: u64) -> Option<Verdict> {
    let call =
        Call { number: made.number as u32, architecture: trace::ARCHITECTURE, instruction, arguments: made.arguments };
    let verdicts: Option<Vec<Verdict>> = filters.iter().map(|filter| verdict(filter, &call)).collect();
    verdicts?.into_iter().max().or(Some(Verdict::Allowed))
}
