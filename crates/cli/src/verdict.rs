//! The outcome of a command, and its exit codes.

use std::process::ExitCode;

/// Outcome of a command, which decides the exit code.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// The command is done, and all requirements were met.
    Holds,
    /// The command is done, and a requirement was violated.
    Violated,
    /// The command ran, but its results are inconclusive.
    Inconclusive,
    /// A program was run and ended with this exit code.
    Ended(ExitCode),
}

/// Exit code for errors, including wrong arguments.
pub const COULD_NOT_RUN: u8 = 1;
/// Exit code if a deadline, bound or threshold was violated.
pub const VIOLATED: u8 = 2;
/// Exit code if the measurements do not allow a conclusion.
pub const INCONCLUSIVE: u8 = 3;
