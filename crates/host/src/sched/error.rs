//! Errors of recording scheduler events.

use std::io;
use std::path::PathBuf;

use crate::counters::CounterError;
use crate::error::SystemError;
use crate::process::ProcessError;

/// Error of recording scheduler events.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    /// Events of the scheduler cannot be recorded.
    #[error(
        "{path}: events of the scheduler cannot be recorded: {source}\n  hint: run as root, on a kernel with CONFIG_FTRACE; in a container, pass tracefs on"
    )]
    Events {
        /// File of the kernel that could not be used.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The kernel does not report to this user when other threads get and leave a CPU.
    #[error(
        "switches of CPUs are not reported to this user, kernel.perf_event_paranoid is {paranoid}: {refused}\n  hint: watch processes of \
         your own; run as root; or, as root: setcap cap_perfmon,cap_dac_read_search,cap_ipc_lock=ep PATH of this program"
    )]
    SwitchesForbidden {
        /// `kernel.perf_event_paranoid`, or `unknown`.
        paranoid: String,
        /// Description of what the kernel refused.
        refused: String,
    },
    /// The kernel does not even report to this user when the user's own threads get and leave a CPU.
    #[error(
        "switches of one's own threads are not reported to this user, kernel.perf_event_paranoid is {paranoid}: {source}\n  hint: as root: sysctl kernel.perf_event_paranoid=2; in a container, its seccomp filter must permit perf_event_open; if memory is refused: sysctl kernel.perf_event_mlock_kb=516"
    )]
    OwnSwitchesForbidden {
        /// `kernel.perf_event_paranoid`, or `unknown`.
        paranoid: String,
        /// Error from the kernel.
        source: io::Error,
    },
    /// A thread that is already running cannot be watched.
    #[error(
        "thread {thread}: cannot be watched: {source}\n  hint: without privilege only processes of one's own, which are not setuid; too many open files: ulimit -n, one per thread and CPU"
    )]
    ThreadNotWatched {
        /// Number of the thread.
        thread: i32,
        /// Error from the kernel.
        source: io::Error,
    },
    /// An event cannot be counted at switches.
    #[error("{0}")]
    Counter(#[from] CounterError),
    /// The process that is to be watched cannot be inspected.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// A file of the kernel cannot be used.
    #[error("{0}")]
    System(#[from] SystemError),
}
