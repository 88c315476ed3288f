//! Why a run does not begin, or ends.

use std::io;
use std::time::Duration;

use crate::error::SystemError;
use crate::process::ProcessError;
use crate::sched::SchedError;

/// Trouble with a run: with one of its programs, with its CPUs, or with what it is watched by.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot be started.
    #[error(
        "{program}: cannot be started: {source}\n  hint: is it in PATH, and may you use the CPUs and the policy asked for?"
    )]
    Start {
        /// As it was named.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program has ended, or closed its output.
    #[error(
        "{program} has ended while it was to {action}\n  hint: a program seen by lines goes on until its standard input ends"
    )]
    Ended {
        /// As it was named.
        program: String,
        /// What it was to do.
        action: &'static str,
    },
    /// It did not answer in time.
    #[error(
        "{program} did not {action} within {limit:?}\n  hint: it prints a line when it is ready and one for every line that it reads, and does not keep them in a buffer (fflush, print(flush=True))"
    )]
    Late {
        /// As it was named.
        program: String,
        /// What it was to do.
        action: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// It completed jobs that nobody released.
    #[error(
        "{program} printed {lines} lines that complete no job\n  hint: one line when it is ready, one for every line that it reads; anything else belongs on standard error"
    )]
    Unreleased {
        /// As it was named.
        program: String,
        /// How many too many.
        lines: u64,
    },
    /// It did not run as a program of a task set does.
    #[error("{program} {what}\n  hint: run it by hand; docs/tasksets.md says how the jobs of a program are seen")]
    Failed {
        /// As it was named.
        program: String,
        /// What happened.
        what: String,
    },
    /// Its pipes or clocks fail.
    #[error("{program}: {source}\n  hint: please report it with `uname -r`")]
    Pipe {
        /// As it was named.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another run has the CPU.
    #[error(
        "CPU {cpu} is that of another run (process {pid})\n  hint: wait for its end, or choose another CPU in the task set"
    )]
    CpuTaken {
        /// The CPU.
        cpu: u32,
        /// Process of the other run.
        pid: u32,
    },
    /// The scheduler cannot be watched.
    #[error("{0}")]
    Sched(#[from] SchedError),
    /// This process says nothing of itself.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// The journal cannot be written, or the CPUs not be learned.
    #[error("{0}")]
    System(#[from] SystemError),
}
