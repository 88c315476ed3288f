//! Options of the verbs about modeled machines.

use super::*;

/// Options of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateOptions {
    /// Other questions to the model.
    #[command(subcommand)]
    pub question: Option<SimulateQuestion>,
    /// The machine.
    #[command(flatten)]
    pub machine: ModeledMachine,
    /// What runs on it.
    #[command(flatten)]
    pub program: Program,
    /// Several tasks on a machine, instead of one program: a TOML file; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "levels", "policy", "pycachesim", "trace", "workload", "data_only"])]
    pub scenario: Option<PathBuf>,
    /// Draw here who evicted whom and whose lines lie in which color, of a scenario
    #[arg(long, value_name = "FILE", requires = "scenario")]
    pub svg: Option<PathBuf>,
    /// Where the result goes.
    #[command(flatten)]
    pub output: Output,
}

/// Questions to the model.
#[derive(Debug, Subcommand)]
pub enum SimulateQuestion {
    /// Misses of a level against its ways and its share of colors, by LRU
    Curve {
        /// Size, ways and line of the level: 1M:16:64
        #[arg(long, value_name = "SIZE:WAYS:LINE", default_value = "1M:16:64")]
        level: String,
        /// What runs on it.
        #[command(flatten)]
        program: Program,
        /// Check the miss counts at 1, half and all colors against the full simulator
        #[arg(long)]
        verify: bool,
        /// Draw the curve here
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Where the result goes.
        #[command(flatten)]
        output: Output,
    },
    /// What the floods of Loeser and Haertig achieve on the first two data levels
    Flood {
        /// The machine.
        #[command(flatten)]
        machine: ModeledMachine,
        /// Where the result goes.
        #[command(flatten)]
        output: Output,
    },
    /// The machines that come with isochrome
    Machines,
}

/// A modeled machine.
#[derive(Debug, Args)]
pub struct ModeledMachine {
    /// A machine that comes with isochrome, or a file that describes one
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "levels")]
    pub machine: Option<String>,
    /// A cache level, innermost first: SIZE:WAYS:LINE:POLICY:wb|wt:wa|nwa|wau[:inclusive|exclusive]; repeatable
    #[arg(long = "level", value_name = "LEVEL")]
    pub levels: Vec<isochrome_model::sim::Level>,
    /// Replacement policy of every level instead of its own
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<isochrome_model::sim::Policy>,
    /// Where simulators differ, do as pycachesim does
    #[arg(long)]
    pub pycachesim: bool,
}

/// Options of `trace`.
#[derive(Debug, Args)]
pub struct TraceOptions {
    /// How: lackey (valgrind), qemu (user mode with a plugin), or auto (qemu where it works, else lackey)
    #[arg(long, value_name = "TOOL", default_value = "auto")]
    pub by: isochrome_host::record::By,
    /// Form of the trace: din, lackey, u64 or iso
    #[arg(long, value_name = "FORM", default_value = "iso")]
    pub format: isochrome_model::trace::Format,
    /// Leave instruction fetches out
    #[arg(long)]
    pub data_only: bool,
    /// Write the trace here [default: trace.FORM]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The program and its arguments; options go before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    pub command: Vec<OsString>,
}
