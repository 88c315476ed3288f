//! Jobs of programs that run: released, seen, and timed.

pub mod blocks;
pub mod engine;
pub mod line;
pub mod marks;
pub mod planned;
pub mod profiling;
pub mod recording;
mod releases;
pub mod shielding;

use std::io;
use std::time::Duration;

/// What goes wrong with the jobs of a program.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
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
    /// It cannot be measured so.
    #[error("{program} {what}\n  hint: {hint}")]
    Unfit {
        /// As it was named.
        program: String,
        /// What happened.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// Its pipes or clocks fail.
    #[error("{program}: {source}\n  hint: please report it with `uname -r`")]
    Pipe {
        /// As it was named.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
}
