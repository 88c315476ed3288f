//! Errors from reading what the kernel reports about a process.

use std::io;
use std::path::PathBuf;

/// Reasons why the kernel provides no information about a process.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is no such process.
    #[error("there is no process {pid}\n  hint: `ps -e` lists them; it may have ended")]
    NoSuchProcess {
        /// The requested process.
        pid: u32,
    },
    /// The process ended while it was inspected.
    #[error("process {pid} has ended\n  hint: nothing is left to be done")]
    Ended {
        /// The process.
        pid: i32,
    },
    /// The process belongs to another user, or tracing is restricted.
    #[error(
        "process {pid} may not be traced: it belongs to another user, or tracing is restricted\n  hint: run as root, or as its owner with: sysctl kernel.yama.ptrace_scope=0"
    )]
    Denied {
        /// The process.
        pid: i32,
    },
    /// The process has no memory of its own.
    #[error(
        "process {pid} ({command}) has no memory of its own: it is a thread of the kernel, or it has ended\n  hint: choose a program, which has memory (RSS): `ps -e -o pid,rss,comm` shows it"
    )]
    NoUserMemory {
        /// The process.
        pid: u32,
        /// Name of the process.
        command: String,
    },
    /// This user may not see the memory of the process.
    #[error("process {pid} ({command}): its memory is not shown: {source}\n  hint: run as root, or as its owner")]
    MemoryDenied {
        /// The process.
        pid: u32,
        /// Name of the process.
        command: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file under /proc cannot be read.
    #[error(
        "{path}: {source}\n  hint: is /proc mounted, and may you read it? the process may be ending: then try again"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file under /proc has an unknown format.
    #[error("{path}: not in the form expected\n  hint: please report it with `uname -r`")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

impl ProcessError {
    /// Whether the process does not exist, or has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self, ProcessError::NoSuchProcess { .. } | ProcessError::Ended { .. })
    }
}
