//! Errors that end an experiment.

use std::io;

use isochrome_host::color::ColorError;
use isochrome_host::counters::CounterError;
use isochrome_host::error::{SystemError, without_hint};
use isochrome_host::load::flooder::FloodError;
use isochrome_host::load::kernels::KernelError;
use isochrome_host::load::net::NetError;
use isochrome_host::process::ProcessError;
use isochrome_host::recolor::RecolorError;
use isochrome_host::run::RunError;
use isochrome_host::sys::heap::HeapError;

/// Error that ends an experiment.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Time does not tell whether lines of canary pages were lost.
    #[error(
        "no block can be accepted, because time does not tell lost lines of canary pages: {}\n  hint: try again when the machine is less busy, or on another CPU or cache level",
        without_hint(why)
    )]
    NoCanaries {
        /// The error of the last calibration.
        why: ColorError,
    },
    /// There are too few colors for every component to have its own.
    #[error("{colors} colors are too few for driver, server, client and flooder\n  hint: take a level of more colors")]
    TooFewColors {
        /// Number of colors of the level.
        colors: u32,
    },
    /// Two tasks cannot pass the CPU to each other.
    #[error(
        "{action}: {source}\n  hint: real-time priorities and a second thread take root, or limits (RLIMIT_RTPRIO) that allow them"
    )]
    Passing {
        /// Action that failed.
        action: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// A program missed its mark: it was on its colors too late, so that it would be timed from another instant than without colors, or it had
    /// already ended. On a busy machine this can happen to a program that fits the experiment.
    #[error("{program} {what}\n  hint: {hint}")]
    MissedMark {
        /// Command line of the program.
        program: String,
        /// Description of the failure, which follows the name of the program.
        what: String,
        /// Remedy for the user.
        hint: &'static str,
    },
    /// A program cannot be measured in this experiment.
    #[error("{program} {what}\n  hint: {hint}")]
    Unfit {
        /// Command line of the program.
        program: String,
        /// Description of the failure, which follows the name of the program.
        what: String,
        /// Remedy for the user.
        hint: &'static str,
    },
    /// Memory of chosen colors cannot be obtained.
    #[error("{0}")]
    Color(#[from] ColorError),
    /// Counters cannot be read.
    #[error("{0}")]
    Counter(#[from] CounterError),
    /// A flood cannot be made.
    #[error("{0}")]
    Flood(#[from] FloodError),
    /// A heap cannot be made, or allocations do not lie in it.
    #[error("{0}")]
    Heap(#[from] HeapError),
    /// A kernel cannot be made, or computed a wrong result.
    #[error("{0}")]
    Kernel(#[from] KernelError),
    /// A packet was refused, lost or altered.
    #[error("{0}")]
    Net(#[from] NetError),
    /// A process has ended, or cannot be inspected.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// A program cannot be moved to its colors.
    #[error("{0}")]
    Recolor(#[from] RecolorError),
    /// A program cannot be started or controlled.
    #[error("{0}")]
    Run(#[from] RunError),
    /// Memory cannot be obtained, or code cannot be placed in it.
    #[error("{0}")]
    System(#[from] SystemError),
}
