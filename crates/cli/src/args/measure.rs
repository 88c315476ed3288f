//! Options of the verbs that measure programs, and of those that show everything at once.

use std::net::SocketAddr;

use super::*;

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// Make the harmless settings that help, after asking about each
    #[arg(long, group = "change")]
    pub fix: bool,
    /// Take back what --fix has changed
    #[arg(long, group = "change")]
    pub undo: bool,
    /// Make all settings without asking
    #[arg(long, requires = "fix")]
    pub yes: bool,
    /// Make the settings at every start as well, by files in /etc/sysctl.d and /etc/tmpfiles.d
    #[arg(long, requires = "fix")]
    pub persistent: bool,
    /// Show what --fix or --undo would do, and change nothing
    #[arg(long, requires = "change")]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "change")]
    pub json: bool,
}

/// Options of `watch`.
#[derive(Debug, Args)]
pub struct WatchOptions {
    /// Processes to watch, with all their threads and all that they start [default: all processes]
    #[arg(value_name = "PID")]
    pub pids: Vec<u32>,
    /// Program to start and watch, with its arguments; it is killed at the end of the watch
    #[arg(value_name = "CMD", last = true)]
    pub program: Vec<String>,
    /// CPUs to watch [default: all]
    #[arg(long, value_name = "LIST")]
    pub cpu: Option<String>,
    /// Cache level whose misses are counted, if the machine can count them
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub level: u8,
    /// Read the counters at this rate by a task of the highest priority on every CPU, instead of at every switch by the kernel
    #[arg(long, value_name = "RATE", value_parser = period, conflicts_with = "replay")]
    pub poll: Option<Ns>,
    /// Length of the watch [default: until Ctrl-C or the end of the program]
    #[arg(long, value_name = "TIME")]
    pub duration: Option<Ns>,
    /// Time between two reads of the kernel's records
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    pub every: Ns,
    /// Time between two updates of the screen and of the metrics
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub interval: Ns,
    /// Number of tasks to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
    /// Write every slice to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Record every slice to this file, for --replay
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Evaluate recorded slices instead of watching
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pids", "program", "cpu", "duration", "prometheus", "record"])]
    pub replay: Option<PathBuf>,
    /// Serve metrics for Prometheus at this address, or at this port of the loopback device
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub prometheus: Option<SocketAddr>,
    /// Print JSON at the end
    #[arg(long)]
    pub json: bool,
    /// Write the evidence to this file, for `isochrome report`: the tasks shown, each with its timeline
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Draw the timelines of the tasks shown to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Options of `profile`.
#[derive(Debug, Args)]
pub struct ProfileOptions {
    /// Task set; docs/how-to/tasksets.md describes the format
    #[arg(value_name = "FILE")]
    pub tasks: PathBuf,
    /// Write the profile to this file after every profiling run; a profile in the file is continued
    #[arg(short, long, value_name = "FILE", default_value = "profile.json")]
    pub output: PathBuf,
    /// Start from scratch even if the output file holds results
    #[arg(long)]
    pub again: bool,
    /// Run enough jobs of each point that, with 95 % confidence, a further job exceeds the longest with at most this probability
    #[arg(long, value_name = "P", default_value_t = 1e-3)]
    pub exceed: f64,
    /// Number of jobs in a profiling run, which measures one task with one number of partitions
    #[arg(long, alias = "visit", value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub jobs_per_run: u64,
    /// Add this margin to the longest time observed, in percent of that time
    #[arg(long, value_name = "PERCENT", default_value_t = 20.0)]
    pub margin: f64,
    /// Measure no point between two whose typical times differ by at most this, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub flat: f64,
    /// Number of partitions [default: all colors of the level]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub partitions: Option<u32>,
    /// Take the refill time from this file, as `isochrome probe -o` writes it [default: measure it]
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Sources of the colors of frames.
    #[command(flatten)]
    pub frames: Frames,
    /// Simulate traces on this machine instead of running programs: a name or a file as for `simulate`
    #[arg(long, value_name = "MACHINE", requires_all = ["trace", "mhz"])]
    pub from_trace: Option<String>,
    /// Trace of one job of a task in the iso format (see `isochrome trace`), or TASK=workload:SPEC; repeatable
    #[arg(long, value_name = "TASK=FILE", requires = "from_trace")]
    pub trace: Vec<String>,
    /// Clock rate of the modeled machine
    #[arg(long, value_name = "MHZ", requires = "from_trace", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mhz: Option<u32>,
    /// Draw the execution times against the number of partitions to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `demo`.
#[derive(Debug, Args)]
pub struct DemoOptions {
    /// Demonstration other than the default one, if one was requested.
    #[command(subcommand)]
    pub of: Option<DemoOf>,
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Folder for the report
    #[arg(short, long, value_name = "DIR", default_value = "report")]
    pub output: PathBuf,
    /// Measure the paper's kernels as well: filter, cosine and Fourier transforms, matrix multiplication, some minutes more
    #[arg(long)]
    pub full: bool,
    /// Run fewer sizes and blocks, for an impression within seconds instead of a measurement
    #[arg(long)]
    pub quick: bool,
    /// Play preemptions on a model of this machine instead of measuring here: a built-in machine, or a file that describes one
    /// [if none is named: cortex-a72 at 1500 MHz]
    #[arg(long, value_name = "MACHINE", num_args = 0..=1, conflicts_with_all = ["full", "quick", "cpu", "level", "by", "memory", "seed"])]
    pub model: Option<Option<String>>,
    /// Clock rate of the modeled machine
    #[arg(long, value_name = "MHZ", requires = "model", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mhz: Option<u32>,
}

/// Demonstrations other than the default one.
#[derive(Debug, Subcommand)]
pub enum DemoOf {
    /// Profile, plan, run and report four programs of a robot
    Taskset(DemoTasksetOptions),
}

/// Options of `demo taskset`.
#[derive(Debug, Args)]
pub struct DemoTasksetOptions {
    /// Folder for all files
    #[arg(short, long, value_name = "DIR", default_value = "robot-demo")]
    pub output: PathBuf,
    /// Length of the run with partitions, and of the run without
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub duration: Ns,
    /// Add this margin to the longest time observed, in percent of that time
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0)]
    pub margin: f64,
    /// Seed of every random choice [default: a fresh one, which is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Parses a polling rate such as `500Hz` or `10kHz`, and returns the time between two polls.
fn period(text: &str) -> Result<Ns, String> {
    let wrong = || format!("`{text}` is not a rate of 1Hz to 100kHz: 500Hz, 10kHz");
    let number = text.strip_suffix("Hz").ok_or_else(wrong)?;
    let (number, scale) = number.strip_suffix('k').map_or((number, 1.0), |number| (number, 1e3));
    let rate = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    if (1.0..=1e5).contains(&rate) { Ok(Ns((1e9 / rate) as u64)) } else { Err(wrong()) }
}

/// Parses an address that may be given by its port alone.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let with_port = || text.parse().ok().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    text.parse().ok().or_else(with_port).ok_or_else(|| format!("`{text}` is not an address: 127.0.0.1:9187, or a port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_become_periods() {
        assert_eq!(period("500Hz"), Ok(Ns(2_000_000)));
        assert_eq!(period("10kHz"), Ok(Ns(100_000)));
        assert_eq!(period("2.5 kHz"), Ok(Ns(400_000)));
        for wrong in ["500", "10k", "0Hz", "1MHz", "-5Hz", "Hz", "NaNHz", "200kHz"] {
            assert!(period(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
