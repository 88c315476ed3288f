//! Why the kernel says nothing of a process.

use std::io;
use std::path::PathBuf;

/// Why the kernel says nothing of a process.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is no such process.
    #[error("there is no process {pid}\n  hint: `ps -e` lists those there are")]
    NoSuchProcess {
        /// Its number.
        pid: i32,
    },
    /// It ended meanwhile.
    #[error("process {pid} has ended\n  hint: nothing is left to be done")]
    Ended {
        /// Its number.
        pid: i32,
    },
    /// It belongs to another user, or tracing is restricted.
    #[error(
        "process {pid} may not be traced: it belongs to another user, or tracing is restricted\n  hint: run as root, or as its owner with: sysctl kernel.yama.ptrace_scope=0"
    )]
    Denied {
        /// Its number.
        pid: i32,
    },
    /// A file of the kernel.
    #[error("{path}: {source}\n  hint: is /proc mounted, and may you read it?")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file of the kernel in an unknown form.
    #[error("{path}: not in the form expected\n  hint: please report it with `uname -r`")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

impl ProcessError {
    /// Whether there is no such process, or no more.
    pub fn is_gone(&self) -> bool {
        matches!(self, ProcessError::NoSuchProcess { .. } | ProcessError::Ended { .. })
    }
}
