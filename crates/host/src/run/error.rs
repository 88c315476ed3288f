//! Errors that prevent a run from beginning, or end it.

use std::io;
use std::time::Duration;

use crate::error::SystemError;
use crate::process::ProcessError;
use crate::sched::SchedError;

/// Error of a run: of one of its programs, of its CPUs, or of the means by which it is watched.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program cannot be started.
    #[error(
        "{program}: cannot be started: {source}\n  hint: is it in PATH, and may you use these CPUs and this policy?"
    )]
    Start {
        /// Name of the program.
        program: String,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The program has ended, or closed its output.
    #[error(
        "{program} has ended while it was to {action}\n  hint: a program seen by lines goes on until its standard input ends"
    )]
    Ended {
        /// Name of the program.
        program: String,
        /// What the program was to do.
        action: &'static str,
    },
    /// The program did not answer in time.
    #[error(
        "{program} did not {action} within {limit:?}\n  hint: it prints a line when it is ready and one for every line that it reads, and does not keep them in a buffer (fflush, print(flush=True))"
    )]
    Late {
        /// Name of the program.
        program: String,
        /// What the program was to do.
        action: &'static str,
        /// Time that the program had.
        limit: Duration,
    },
    /// The program printed more lines than it had jobs to complete.
    #[error(
        "{program} printed {lines} lines that complete no job\n  hint: one line when it is ready, one for every line that it reads; anything else belongs on standard error"
    )]
    Unreleased {
        /// Name of the program.
        program: String,
        /// Number of surplus lines.
        lines: u64,
    },
    /// The program did not run as a program of a task set should.
    #[error(
        "{program} {what}\n  hint: run it by hand; docs/how-to/tasksets.md says how the jobs of a program are seen"
    )]
    Failed {
        /// Name of the program.
        program: String,
        /// Description of the failure.
        what: String,
    },
    /// A pipe or a clock of the program failed.
    #[error("{program}: {source}\n  hint: please report it with `uname -r`")]
    Pipe {
        /// Name of the program.
        program: String,
        /// Error from the kernel.
        source: io::Error,
    },
    /// Another run uses the CPU.
    #[error(
        "CPU {cpu} is that of another run (process {pid})\n  hint: wait for its end, or choose another CPU in the task set"
    )]
    CpuTaken {
        /// The CPU.
        cpu: u32,
        /// Number of the process of the other run.
        pid: u32,
    },
    /// The scheduler cannot be watched.
    #[error("{0}")]
    Sched(#[from] SchedError),
    /// Information about this process cannot be read.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// The journal cannot be written, or the available CPUs cannot be determined.
    #[error("{0}")]
    System(#[from] SystemError),
}
