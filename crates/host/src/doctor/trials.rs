//! Trials: attempts at operations on this machine, to find out what it allows.

use std::io;
use std::time::Duration;

use isochrome_model::units::Bytes;
use rustix::process::{Resource, getrlimit};

use crate::color::pagemap;
use crate::counters::{CounterError, Slots, usable_slots};
use crate::machine::setting::{CAP_IPC_LOCK, CAP_SYS_PTRACE, has_capability};
use crate::machine::steal::CpuTicks;
use crate::machine::sysfs::Sysfs;
use crate::sched::open;
use crate::sys::memory::Arena;
use crate::sys::scheduling::Scheduling;
use crate::sys::userfault;

/// Results of the trials on this machine.
#[derive(Debug)]
pub struct Trials {
    /// Number of counters that work together.
    pub counters: Result<Slots, CounterError>,
    /// Frame number of a page that was just touched; 0 if the kernel hides it.
    pub frame_number: io::Result<u64>,
    /// Features of a userfaultfd that handles faults of user mode only.
    pub userfault_user: io::Result<u64>,
    /// Features of a userfaultfd that handles all faults, opened by the system call or by /dev/userfaultfd.
    pub userfault_full: io::Result<u64>,
    /// Result of making a thread SCHED_FIFO.
    pub fifo: io::Result<()>,
    /// Whether this process may trace any process, by CAP_SYS_PTRACE.
    pub may_trace_all: bool,
    /// Whether programs in the kernel may report which processes are started.
    pub sees_processes: bool,
    /// Limit of locked memory; `None` without a limit.
    pub memlock_limit: Option<Bytes>,
    /// Share of steal time in CPU time over a short interval; `None` where it is not known.
    pub steal: Option<f64>,
}

impl Trials {
    /// Runs all trials and returns their results. This takes `interval` and some milliseconds, and leaves no lasting change.
    pub fn run(interval: Duration) -> Trials {
        let system = Sysfs::system();
        let before = CpuTicks::read(&system, None);
        std::thread::sleep(interval);
        let steal = before.and_then(|before| CpuTicks::read(&system, None)?.steal_share_since(before));
        // The trial runs on a thread of its own, so that it does not change the caller's policy.
        let fifo = std::thread::spawn(|| Scheduling::fifo(1).apply())
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the trial thread panicked")));
        Trials {
            counters: usable_slots(),
            frame_number: own_frame_number(),
            userfault_user: userfault::features_for_user_mode(),
            userfault_full: userfault::features_for_all_faults(),
            fifo,
            may_trace_all: has_capability(CAP_SYS_PTRACE),
            sees_processes: open::of_processes().is_some(),
            memlock_limit: getrlimit(Resource::Memlock).current.filter(|_| !has_capability(CAP_IPC_LOCK)).map(Bytes),
            steal,
        }
    }
}

/// Returns the frame number of a page of this process as /proc/self/pagemap shows it; 0 if the kernel hides it.
fn own_frame_number() -> io::Result<u64> {
    let mut arena = Arena::map(1)?;
    arena.bytes_mut()[0] = 1;
    std::fs::File::open("/proc/self/pagemap")?;
    Ok(pagemap::frames(&arena, 0..1)[0].map_or(0, |frame| frame.0))
}
