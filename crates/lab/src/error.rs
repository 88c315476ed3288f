//! Why an experiment does not go on.

use std::io;

use isochrome_host::color::ColorError;
use isochrome_host::counters::CounterError;
use isochrome_host::error::SystemError;
use isochrome_host::load::flooder::FloodError;
use isochrome_host::load::kernels::KernelError;
use isochrome_host::load::net::NetError;
use isochrome_host::process::ProcessError;
use isochrome_host::recolor::RecolorError;
use isochrome_host::run::RunError;
use isochrome_host::sys::heap::HeapError;

/// Trouble with an experiment.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There are too few colors for every component to have its own.
    #[error("{colors} colors are too few for driver, server, client and flooder\n  hint: take a level of more colors")]
    TooFewColors {
        /// How many there are.
        colors: u32,
    },
    /// Two tasks cannot pass the CPU to each other.
    #[error(
        "{action}: {source}\n  hint: real-time priorities and a second thread take root, or limits (RLIMIT_RTPRIO) that allow them"
    )]
    Passing {
        /// What was done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The pages of a program were on its colors after its mark, and so would be measured from another instant than without colors.
    #[error(
        "{program} had a CPU for {took_ms:.0} ms until it was on its colors, longer than its warm-up of {warm_up_ms:.0} ms\n  hint: a longer warm-up"
    )]
    LateOnColors {
        /// As it was named.
        program: String,
        /// How long it had a CPU until then.
        took_ms: f64,
        /// How long it has one before its mark.
        warm_up_ms: f64,
    },
    /// A program cannot be measured so.
    #[error("{program} {what}\n  hint: {hint}")]
    Unfit {
        /// As it was named.
        program: String,
        /// What happened.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// Memory of chosen colors cannot be had.
    #[error("{0}")]
    Color(#[from] ColorError),
    /// Counters cannot be read.
    #[error("{0}")]
    Counter(#[from] CounterError),
    /// There is no flood.
    #[error("{0}")]
    Flood(#[from] FloodError),
    /// Allocations do not lie in memory of their own.
    #[error("{0}")]
    Heap(#[from] HeapError),
    /// A kernel cannot be had, or computed a wrong result.
    #[error("{0}")]
    Kernel(#[from] KernelError),
    /// A packet was refused, lost or altered.
    #[error("{0}")]
    Net(#[from] NetError),
    /// A program says nothing of itself.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// A program is not on its colors.
    #[error("{0}")]
    Recolor(#[from] RecolorError),
    /// A program does not run.
    #[error("{0}")]
    Run(#[from] RunError),
    /// Memory, or code in it, cannot be had.
    #[error("{0}")]
    System(#[from] SystemError),
}
