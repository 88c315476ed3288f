//! Options of the verbs about modeled machines.

use super::*;

/// Options of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateOptions {
    /// Query other than a simulation of one program or scenario; `None` for a simulation.
    #[command(subcommand)]
    pub question: Option<SimulateQuestion>,
    /// The machine to model.
    #[command(flatten)]
    pub machine: ModeledMachine,
    /// Program to run on the machine.
    #[command(flatten)]
    pub program: Program,
    /// Simulate several tasks by this scenario, a TOML file, instead of one program; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "levels", "policy", "pycachesim", "trace", "workload", "data_only"])]
    pub scenario: Option<PathBuf>,
    /// Draw which task of the scenario evicted which, and whose lines lie in which color, to this file, as SVG
    #[arg(long, value_name = "FILE", requires = "scenario")]
    pub svg: Option<PathBuf>,
    /// Destination of the result.
    #[command(flatten)]
    pub output: Output,
}

/// Queries other than a simulation of one program or scenario.
#[derive(Debug, Subcommand)]
pub enum SimulateQuestion {
    /// Count the misses of a level for each number of ways and of colors, under LRU
    Curve {
        /// Size, ways and line size of the level, such as 1M:16:64
        #[arg(long, value_name = "SIZE:WAYS:LINE", default_value = "1M:16:64")]
        level: String,
        /// Size of a page, which some arm64 kernels have as 16K or 64K
        #[arg(long, value_name = "SIZE", default_value = "4K")]
        page: Bytes,
        /// Program whose misses are counted.
        #[command(flatten)]
        program: Program,
        /// Check the miss counts at 1, half and all colors against the full simulator
        #[arg(long)]
        verify: bool,
        /// Draw the curve to this file, as SVG
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Destination of the result.
        #[command(flatten)]
        output: Output,
    },
    /// Evaluate the floods of Loeser and Haertig on the first two data levels
    Flood {
        /// The machine to model.
        #[command(flatten)]
        machine: ModeledMachine,
        /// Destination of the result.
        #[command(flatten)]
        output: Output,
    },
    /// List the built-in machines
    Machines,
}

/// A modeled machine.
#[derive(Debug, Args)]
pub struct ModeledMachine {
    /// Built-in machine, or a file that describes one
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "levels")]
    pub machine: Option<String>,
    /// Cache level, as SIZE:WAYS:LINE:POLICY:wb|wt:wa|nwa|wau[:inclusive|exclusive]; repeatable, innermost first
    #[arg(long = "level", value_name = "LEVEL")]
    pub levels: Vec<isochrome_model::sim::Level>,
    /// Replacement policy of all levels, instead of their own
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<isochrome_model::sim::Policy>,
    /// Behave as pycachesim where simulators differ
    #[arg(long)]
    pub pycachesim: bool,
}

/// Options of `trace`.
#[derive(Debug, Args)]
pub struct TraceOptions {
    /// Tool that records: lackey (valgrind), qemu (user mode with a plugin), or auto (qemu if it works, else lackey)
    #[arg(long, value_name = "TOOL", default_value = "auto")]
    pub by: isochrome_host::record::By,
    /// Format of the trace: din, lackey, u64 or iso
    #[arg(long, value_name = "FORM", default_value = "iso")]
    pub format: isochrome_model::trace::Format,
    /// Leave out instruction fetches
    #[arg(long)]
    pub data_only: bool,
    /// Write the trace to this file [default: trace.FORM]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Program to record, with its arguments; options of isochrome come before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    pub command: Vec<OsString>,
}
