//! Settings for real-time work: saved, set, and restored when the guard is dropped, also when a panic unwinds.
//!
//! CPU, policy and timer slack belong to the calling thread and memory locks to the process, so no setting outlives the
//! process and no journal is needed: after SIGKILL there is nothing to restore. Threads and programs started under the guard
//! inherit CPU and policy; start them before, or give them their own CPU and policy.
//!
//! A setting that cannot be made is reported together with a remedy, and the other settings are made anyway. The caller decides
//! what a result is worth without that setting.

use std::hint::black_box;
use std::io;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use isochrome_model::units::{Bytes, CpuId, Ns, format_list};
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, current_timer_slack, sched_getaffinity, sched_setaffinity, set_current_timer_slack};
use serde::Serialize;

use crate::error::SystemError;
use crate::machine::sysfs::{Note, Sysfs};
use crate::sys::scheduling::Scheduling;

/// CAP_IPC_LOCK. [Linux, include/uapi/linux/capability.h]
pub(crate) const CAP_IPC_LOCK: u32 = 14;
/// CAP_SYS_PTRACE. [Linux, include/uapi/linux/capability.h]
pub(crate) const CAP_SYS_PTRACE: u32 = 19;

/// Size of the part of the stack next to its limit that prefaulting leaves untouched, in bytes.
const STACK_MARGIN: u64 = 64 << 10;

/// Returns the CPUs that the calling thread may run on, ascending.
pub fn allowed_cpus() -> Result<Vec<CpuId>, SystemError> {
    let set = sched_getaffinity(None).map_err(|error| SystemError::Affinity { source: error.into() })?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| CpuId(cpu as u32)).collect())
}

/// Settings to make for the calling thread; none at first.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is set before `apply`"]
pub struct RealtimeRequest {
    cpu: Option<CpuId>,
    fifo_priority: Option<u8>,
    lock_memory: bool,
    timer_slack: Option<Ns>,
    stack: Option<Bytes>,
}

impl RealtimeRequest {
    /// Makes a request for no settings.
    pub fn new() -> RealtimeRequest {
        RealtimeRequest::default()
    }

    /// Requests that the thread runs on `cpu` only.
    pub fn pin(mut self, cpu: CpuId) -> RealtimeRequest {
        self.cpu = Some(cpu);
        self
    }

    /// Requests SCHED_FIFO at `priority`.
    ///
    /// Panics unless `priority` is 1 to 99.
    pub fn fifo(mut self, priority: u8) -> RealtimeRequest {
        assert!((1..=99).contains(&priority), "SCHED_FIFO has priorities 1 to 99, not {priority}");
        self.fifo_priority = Some(priority);
        self
    }

    /// Requests that the memory of the process is never paged out, present and future mappings alike.
    ///
    /// Pages are locked as they are touched (MCL_ONFAULT), not brought in: populating would make every later mapping of a large
    /// pool slow, and would wait forever on a range whose faults nobody serves. Touch the pages that must not fault.
    pub fn lock_memory(mut self) -> RealtimeRequest {
        self.lock_memory = true;
        self
    }

    /// Requests a timer slack: how late the kernel may let a sleep of this thread end to save wake-ups. The usual default is 50 us.
    ///
    /// 0 is taken as 1 ns: to the kernel 0 means the default.
    pub fn timer_slack(mut self, slack: Ns) -> RealtimeRequest {
        self.timer_slack = Some(slack);
        self
    }

    /// Requests that `bytes` of the stack are touched now, so that no call faults them in later.
    pub fn prefault_stack(mut self, bytes: Bytes) -> RealtimeRequest {
        self.stack = Some(bytes);
        self
    }

    /// Makes the settings, and returns the guard that restores the former ones.
    ///
    /// The policy is set last, because the preparations need not run at real-time priority.
    pub fn apply(self) -> RealtimeSettings {
        let mut settings =
            RealtimeSettings { former: Vec::new(), notes: Vec::new(), changes: Vec::new(), same_thread: PhantomData };
        if let Some(cpu) = self.cpu {
            settings.pin(cpu);
        }
        if self.lock_memory {
            settings.lock_memory();
        }
        if let Some(bytes) = self.stack {
            settings.prefault_stack(bytes);
        }
        if let Some(slack) = self.timer_slack {
            settings.set_timer_slack(slack);
        }
        if let Some(priority) = self.fifo_priority {
            settings.set_fifo(priority);
        }
        settings
    }
}

/// A setting that was changed, for reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Name of the setting.
    pub setting: &'static str,
    /// Former value of the setting.
    pub before: String,
    /// Value of the setting under the guard.
    pub now: String,
}

/// A former setting that has to be restored.
enum Former {
    Affinity(CpuSet),
    Scheduling(Scheduling),
    TimerSlack(NonZeroU64),
    MemoryUnlocked,
}

/// Guard of the settings in force. Dropping the guard restores the former settings, the last change first. The settings belong to a thread,
/// so the guard cannot move to another thread.
pub struct RealtimeSettings {
    former: Vec<Former>,
    notes: Vec<Note>,
    changes: Vec<Change>,
    same_thread: PhantomData<Rc<()>>,
}

/// Number of guards that keep the memory of the process locked. Dropping the last guard unlocks the memory.
static LOCK_HOLDERS: Mutex<u32> = Mutex::new(0);

impl RealtimeSettings {
    /// Returns a note on each setting that could not be made, with the reason and a remedy.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Returns the settings that were changed.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Restores the former settings now, and returns a note on each one that could not be restored.
    pub fn restore(mut self) -> Vec<Note> {
        self.put_back()
    }

    fn note(&mut self, subject: &str, reason: impl ToString, hint: &str) {
        self.notes.push(Note { subject: subject.to_owned(), reason: reason.to_string(), hint: hint.to_owned() });
    }

    fn pin(&mut self, cpu: CpuId) {
        const HINT: &str =
            "choose a CPU of `Cpus_allowed_list` in /proc/self/status, or widen this cgroup's cpuset.cpus";
        let subject = format!("run on CPU {} only", cpu.0);
        if cpu.0 as usize >= CpuSet::MAX_CPU {
            return self.note(&subject, format!("CPUs are numbered below {}", CpuSet::MAX_CPU), HINT);
        }
        let mut wanted = CpuSet::new();
        wanted.set(cpu.0 as usize);
        let former = match sched_getaffinity(None) {
            Ok(former) => former,
            Err(error) => return self.note(&subject, error, HINT),
        };
        if let Err(error) = sched_setaffinity(None, &wanted) {
            return self.note(&subject, error, HINT);
        }
        let list = |set: &CpuSet| {
            format_list(&(0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).map(|c| c as u32).collect::<Vec<_>>())
        };
        self.changes.push(Change { setting: "CPUs", before: list(&former), now: list(&wanted) });
        self.former.push(Former::Affinity(former));
    }

    fn set_fifo(&mut self, priority: u8) {
        const HINT: &str = "run as root, or: setcap cap_sys_nice+ep \"$(command -v isochrome)\", or raise `ulimit -r`";
        let wanted = Scheduling::fifo(priority);
        let subject = wanted.to_string();
        let former = match Scheduling::current() {
            Ok(former) => former,
            Err(error) => return self.note(&subject, error, HINT),
        };
        if let Err(error) = wanted.apply() {
            return self.note(&subject, error, HINT);
        }
        self.changes.push(Change { setting: "policy", before: former.to_string(), now: subject });
        self.former.push(Former::Scheduling(former));
    }

    fn set_timer_slack(&mut self, slack: Ns) {
        const SUBJECT: &str = "timer slack";
        const HINT: &str = "this kernel was built without it; sleeps may end up to 50 us late";
        let wanted = NonZeroU64::new(slack.0).unwrap_or(NonZeroU64::MIN);
        let former = match current_timer_slack().map(NonZeroU64::new) {
            Ok(Some(former)) => former,
            // A real-time thread has no timer slack; Linux 6.11 and newer report 0 for such a thread.
            Ok(None) => return,
            Err(error) => return self.note(SUBJECT, error, HINT),
        };
        if let Err(error) = set_current_timer_slack(Some(wanted)) {
            return self.note(SUBJECT, error, HINT);
        }
        self.changes.push(Change { setting: SUBJECT, before: format!("{former} ns"), now: format!("{wanted} ns") });
        self.former.push(Former::TimerSlack(former));
    }

    fn lock_memory(&mut self) {
        const SUBJECT: &str = "lock memory";
        const HINT: &str =
            "run as root, or: setcap cap_ipc_lock+ep \"$(command -v isochrome)\", or: ulimit -l unlimited";
        let mut holders = LOCK_HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if *holders == 0 {
            if locked_kib(&Sysfs::system()) != Some(0) {
                // Restoring by munlockall would also remove locks that others made, so memory is not locked at all.
                drop(holders);
                return self.note(
                    SUBJECT,
                    "the process holds memory locks of its own, or does not show whether it does",
                    "lock memory before asking for real-time settings, or not at all",
                );
            }
            // Under a limit MCL_FUTURE would make later mappings fail instead of staying unlocked.
            let limited = getrlimit(Resource::Memlock).current.is_some() && !has_capability(CAP_IPC_LOCK);
            let future = if limited { MlockAllFlags::empty() } else { MlockAllFlags::FUTURE };
            let wanted = MlockAllFlags::CURRENT | future;
            let locked = match mlockall(wanted | MlockAllFlags::ONFAULT) {
                // Linux before 4.4 does not know ONFAULT.
                Err(rustix::io::Errno::INVAL) => mlockall(wanted),
                other => other,
            };
            if let Err(error) = locked {
                drop(holders);
                return self.note(SUBJECT, error, HINT);
            }
            if limited {
                self.note(SUBJECT, "memory mapped from now on is not locked, since locked memory is limited", HINT);
            }
        }
        *holders += 1;
        drop(holders);
        self.changes.push(Change { setting: "memory", before: "pageable".to_owned(), now: "locked".to_owned() });
        self.former.push(Former::MemoryUnlocked);
    }

    fn prefault_stack(&mut self, bytes: Bytes) {
        const SUBJECT: &str = "prefault the stack";
        const HINT: &str = "give the thread a larger stack, or request less";
        let Some(free) = stack_left(&Sysfs::system()) else {
            return self.note(SUBJECT, "/proc/self/maps does not show this thread's stack", HINT);
        };
        let within = free.0.saturating_sub(STACK_MARGIN);
        if bytes.0 > within {
            self.note(SUBJECT, format!("{} left of the stack, {bytes} requested", Bytes(within)), HINT);
        }
        touch_stack(bytes.0.div_ceil(TOUCH_BYTES).min(within / (TOUCH_BYTES + FRAME_OVERHEAD)));
    }

    fn put_back(&mut self) -> Vec<Note> {
        let mut failed = Vec::new();
        while let Some(former) = self.former.pop() {
            let (subject, result): (_, io::Result<()>) = match former {
                Former::Affinity(cpus) => ("CPUs", sched_setaffinity(None, &cpus).map_err(Into::into)),
                Former::Scheduling(scheduling) => ("policy", scheduling.apply()),
                Former::TimerSlack(slack) => ("timer slack", set_current_timer_slack(Some(slack)).map_err(Into::into)),
                Former::MemoryUnlocked => {
                    let mut holders = LOCK_HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
                    *holders -= 1;
                    ("memory", if *holders == 0 { munlockall().map_err(Into::into) } else { Ok(()) })
                }
            };
            if let Err(error) = result {
                failed.push(Note {
                    subject: format!("restore {subject}"),
                    reason: error.to_string(),
                    hint: "the setting ends with this process".to_owned(),
                });
            }
        }
        failed
    }
}

impl Drop for RealtimeSettings {
    fn drop(&mut self) {
        // No caller is left for a report; a setting that stays ends with the process.
        let _ = self.put_back();
    }
}

/// Returns the locked memory of this process, in KiB; `None` if the kernel does not show it.
fn locked_kib(sysfs: &Sysfs) -> Option<u64> {
    let status = sysfs.text("proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Whether this process has capability number `capability` in effect.
pub(crate) fn has_capability(capability: u32) -> bool {
    Sysfs::system()
        .text("proc/self/status")
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .is_some_and(|effective| effective >> capability & 1 == 1)
}

/// Returns the size of the calling thread's stack that is still free; `None` if it is not known.
fn stack_left(sysfs: &Sysfs) -> Option<Bytes> {
    let here = 0u8;
    let address = std::ptr::from_ref(&here).addr() as u64;
    let maps = sysfs.text("proc/self/maps")?;
    stack_below(address, &maps, getrlimit(Resource::Stack).current).map(Bytes)
}

/// Returns the bytes of stack below `address` according to `maps`, the text of /proc/self/maps; `None` if no mapping contains `address`. The
/// main thread's stack can grow to `limit` bytes.
fn stack_below(address: u64, maps: &str, limit: Option<u64>) -> Option<u64> {
    maps.lines().find_map(|line| {
        let (start, rest) = line.split_once('-')?;
        let (end, rest) = rest.split_once(' ')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        if !(start..end).contains(&address) {
            return None;
        }
        match limit {
            Some(limit) if rest.ends_with("[stack]") => Some(limit.saturating_sub(end - address)),
            _ => Some(address - start),
        }
    })
}

/// Size of the stack that each call of [`touch_stack`] touches, in bytes.
const TOUCH_BYTES: u64 = 4096;

/// Upper bound of the stack that a call of [`touch_stack`] needs in addition, in bytes: return address, saved registers, alignment.
const FRAME_OVERHEAD: u64 = 512;

/// Writes at least [`TOUCH_BYTES`] of the stack in each of `calls` nested calls.
#[inline(never)]
fn touch_stack(calls: u64) {
    if calls == 0 {
        return;
    }
    let mut frame = [0u8; TOUCH_BYTES as usize];
    black_box(&mut frame);
    touch_stack(calls - 1);
    // Keeps the bytes in use across the call, so that the recursion cannot become a loop.
    black_box(&mut frame);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_left_ends_at_the_mapping_or_at_the_limit() {
        let maps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0   [stack]";
        // A thread's stack: 2 MiB mapped, 64 KiB used.
        assert_eq!(stack_below(0x7f00_001f_0000, maps, Some(8 << 20)), Some(0x1f_0000));
        // The main thread's stack: 132 KiB mapped, 4 KiB used, grows to 8 MiB.
        assert_eq!(stack_below(0x7ffc_0002_0000, maps, Some(8 << 20)), Some((8 << 20) - 4096));
        assert_eq!(stack_below(0x1000, maps, Some(8 << 20)), None);
    }
}
