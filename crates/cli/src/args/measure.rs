//! Options of the verbs that measure programs, and of those that show everything at once.

use super::*;

/// Options of `watch`.
#[derive(Debug, Args)]
pub struct WatchOptions {
    /// Processes, all their threads, and what they start [default: everything]
    #[arg(value_name = "PID")]
    pub pids: Vec<u32>,
    /// Program to start and watch, with its arguments; it is ended with the watch
    #[arg(value_name = "CMD", last = true)]
    pub program: Vec<String>,
    /// CPUs to watch [default: all]
    #[arg(long, value_name = "LIST")]
    pub cpu: Option<String>,
    /// Cache level whose misses are counted, where the machine counts them
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub level: u8,
    /// Have a task of the highest priority on every CPU read the counters at this rate, to compare, instead of the kernel at every switch
    #[arg(long, value_name = "RATE", value_parser = crate::watch::period, conflicts_with = "replay")]
    pub poll: Option<Ns>,
    /// For how long [default: until Ctrl-C, or the program ends]
    #[arg(long, value_name = "TIME")]
    pub duration: Option<Ns>,
    /// Time between two looks at what the kernel has recorded
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    pub every: Ns,
    /// Time between two updates of the screen and of the metrics
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub interval: Ns,
    /// Tasks shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
    /// Write every slice here, as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Record every slice here, to be replayed
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Conclude from recorded slices instead of watching
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pids", "program", "cpu", "duration", "prometheus", "record"])]
    pub replay: Option<PathBuf>,
    /// Serve metrics for Prometheus here: an address, or a port of this machine alone
    #[arg(long, value_name = "ADDR", value_parser = crate::watch::address)]
    pub prometheus: Option<std::net::SocketAddr>,
    /// Print JSON at the end
    #[arg(long)]
    pub json: bool,
    /// Write the evidence here, for `isochrome report`: the tasks shown and a timeline of each
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Draw the timelines of the tasks shown here
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Options of `profile`.
#[derive(Debug, Args)]
pub struct ProfileOptions {
    /// Task set (docs/tasksets.md)
    #[arg(value_name = "FILE")]
    pub tasks: PathBuf,
    /// Write the profile here, after every profiling run; one that is there goes on
    #[arg(short, long, value_name = "FILE", default_value = "profile.json")]
    pub output: PathBuf,
    /// Start from scratch even if the output file holds results
    #[arg(long)]
    pub again: bool,
    /// Run so many jobs of each point that, with 95 % confidence, a further one exceeds the longest with at most this probability
    #[arg(long, value_name = "P", default_value_t = 1e-3)]
    pub exceed: f64,
    /// Jobs of one profiling run, of one task on some partitions
    #[arg(long, alias = "visit", value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub jobs_per_run: u64,
    /// Add this to the longest time seen, in percent of it
    #[arg(long, value_name = "PERCENT", default_value_t = 20.0)]
    pub margin: f64,
    /// Measure nothing between two points whose typical times differ by no more than this, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub flat: f64,
    /// Partitions to measure [default: all colors of the level]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub partitions: Option<u32>,
    /// Take the refill time from this machine file, as `isochrome probe -o` writes it [default: measure it]
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Where frames of the colors come from.
    #[command(flatten)]
    pub frames: Frames,
    /// Run nothing: take the times from traces on a modeled machine, a name or a file as for `simulate`
    #[arg(long, value_name = "MACHINE", requires_all = ["trace", "mhz"])]
    pub from_trace: Option<String>,
    /// A task's trace of one job in the iso form (`isochrome trace`), or TASK=workload:SPEC; repeatable
    #[arg(long, value_name = "TASK=FILE", requires = "from_trace")]
    pub trace: Vec<String>,
    /// Clock rate of the modeled machine
    #[arg(long, value_name = "MHZ", requires = "from_trace", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mhz: Option<u32>,
    /// Draw execution times against partitions into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `demo`.
#[derive(Debug, Args)]
pub struct DemoOptions {
    /// Something else.
    #[command(subcommand)]
    pub of: Option<DemoOf>,
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Folder of the report
    #[arg(short, long, value_name = "DIR", default_value = "report")]
    pub output: PathBuf,
    /// Fewer sizes and blocks: a look in seconds, not a measurement
    #[arg(long)]
    pub quick: bool,
}

/// What else there is to show.
#[derive(Debug, Subcommand)]
pub enum DemoOf {
    /// Four programs of a robot: profile, plan, run, report
    Taskset(DemoTasksetOptions),
}

/// Options of `demo taskset`.
#[derive(Debug, Args)]
pub struct DemoTasksetOptions {
    /// Folder for everything
    #[arg(short, long, value_name = "DIR", default_value = "robot-demo")]
    pub output: PathBuf,
    /// How long they run, partitioned and without partitions each
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub duration: Ns,
    /// Add this to the longest time seen, in percent of it
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0)]
    pub margin: f64,
    /// Seed of every random choice [default: a fresh one, which is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}
