//! Options of the experiments.

use super::*;

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum Experiment {
    /// What unmodified programs cost each other, on different CPUs and alternating on one, with and without colors or cache ways
    #[command(
        after_help = "Examples:\n  isochrome lab interference --program 'gzip -9c big.tar' --program 'isochrome job --jobs 6000 write 1024' -o interference.json\n  \
                      isochrome lab interference --machine i7-2600 --mhz 3400"
    )]
    Interference(InterferenceOptions),
    /// What conflicts of a buffer's pages cost: walks over it, balanced, random and conflicting
    Conflicts(ConflictsOptions),
    /// What a preemption costs through the cache, against the size of the working set
    Crpd(CrpdOptions),
    /// What it costs to pass the CPU from one task to another: switches and preemptions, direct part and cache part
    Switch(SwitchOptions),
    /// What packets cost a network stack after a flood, with and without colors of its components
    Net(NetOptions),
    /// Drive a cache to the state that tasks like least, and prove that it is reached
    #[command(
        after_help = "Examples:\n  isochrome lab flood --verify\n  isochrome lab flood --verify --json | jq .worst\n  \
                            isochrome lab flood --pattern storm --colors 4-15 --duration 30s\n  isochrome probe -o machine.json && isochrome lab flood --verify --machine machine.json\n\
                            With --verify: exit code 2 where even the worst flood leaves more than 5 % of a victim's lines."
    )]
    Flood(FloodOptions),
    /// Run a task that misses in a cache with a set ratio, here or on a modeled machine
    #[command(
        after_help = "Examples:\n  isochrome lab workload --miss-ratio 33%\n  isochrome lab workload --miss-ratio 50% --level 1 --kind code --locality spatial\n  \
                      isochrome lab workload --miss-ratio 33% --search --svg search.svg\n  isochrome lab workload --miss-ratio 33% --machine zen3 --policy lru"
    )]
    Workload(WorkloadOptions),
    /// What a cache flood costs a job, with and without colors of its own.
    #[command(flatten)]
    Kernel(BenchKernel),
}

/// The kernels.
#[derive(Debug, Subcommand)]
pub enum BenchKernel {
    /// A digital filter: one sample per job
    Filter {
        /// Coefficients, 4 to 8192
        #[arg(long, value_name = "N", default_value_t = 4096)]
        taps: usize,
        /// Element type
        #[arg(long, value_enum, default_value_t = Element::F64)]
        element: Element,
        /// How much to run.
        #[command(flatten)]
        options: RunOptions,
    },
    /// A discrete cosine transform per job
    Dct {
        /// Points, a power of two from 64 to 8192
        #[arg(long, value_name = "N", default_value_t = 2048)]
        points: usize,
        /// How much to run.
        #[command(flatten)]
        options: RunOptions,
    },
    /// A fast Fourier transform per job
    Fft {
        /// Points, a power of two from 64 to 4096
        #[arg(long, value_name = "N", default_value_t = 2048)]
        points: usize,
        /// How much to run.
        #[command(flatten)]
        options: RunOptions,
    },
    /// 64x64 matrix multiplication, flooded after each time slice
    Matmul {
        /// Time slice in microseconds, 1 to 10000
        #[arg(long, value_name = "US", default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        slice_us: u64,
        /// How much to run.
        #[command(flatten)]
        options: RunOptions,
    },
    /// The matrix multiplication, interrupted by the filter
    Combined {
        /// Interruptions per second of the multiplication's time, 100 to 100000
        #[arg(long, value_name = "HZ", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
        rate_hz: u64,
        /// How much to run.
        #[command(flatten)]
        options: RunOptions,
    },
}

/// How much to run, and what to do with the outcome.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Blocks of each condition; more are run, up to four times as many, while fewer than 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub blocks: u32,
    /// Jobs of each kind per block
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub jobs: u32,
    /// Colors of the task where it has its own, such as 0-3 [default: as many as its memory needs]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Element type of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Element {
    /// 64-bit floating point
    F64,
    /// 32-bit integers
    I32,
}

/// Options of `lab conflicts`.
#[derive(Debug, Args)]
pub struct ConflictsOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Buffers of each placing
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub buffers: u32,
    /// Rounds over all buffers; of each buffer the shortest walk counts
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab crpd`.
#[derive(Debug, Args)]
pub struct CrpdOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// What the working set is
    #[arg(long, value_parser = touches(), default_value = "data")]
    pub kind: Touches,
    /// Lines of code from one jump to the next; more jumps than the branch predictor stores bend the curve
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub lines_per_jump: u32,
    /// Colors of the working set [default: the first half]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Working sets from 5 to 130 percent of these colors, in steps of this
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub step: u32,
    /// Blocks of each size, walk and condition; more are run, up to four times as many, while fewer than 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Preemptions of each kind in a block
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: u32,
    /// A modeled machine instead of this one.
    #[command(flatten)]
    pub modeled: Modeled,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab switch`.
#[derive(Debug, Args)]
pub struct SwitchOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Colors that floods keep out of in partitioned conditions [default: the first half]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Blocks of each condition; more are run, up to four times as many, while fewer than 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Handoffs of each kind in a block
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: u32,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab interference`.
#[derive(Debug, Args)]
pub struct InterferenceOptions {
    /// A program that ends by itself, and its arguments, without quotes; repeatable; on a modeled machine a workload, such as
    /// chase:area=4M,line=64,steps=65536,seed=1 [default: a walk and a writer that are built in, in at most two minutes]
    #[arg(long, value_name = "COMMAND")]
    pub program: Vec<String>,
    /// CPU on which programs are measured; the others are for co-runners [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Time for which each program has the shared CPU at a time; several, with commas [default: 2500us; of the programs that are built in
    /// 500us,1ms,2500us,10ms]
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    pub slice: Vec<Ns>,
    /// Time on a CPU before a run is timed: long enough for a program to be moved to its colors meanwhile [default: 1s; of the programs that
    /// are built in 100ms]
    #[arg(long, value_name = "TIME")]
    pub warm_up: Option<Ns>,
    /// Longest time that a program may take alone, from where it is timed
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub limit: Ns,
    /// Blocks of each program and condition; more are run, up to four times as many, while fewer than 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// What to divide the cache by; repeatable [default: colors and ways, as far as they can be had]
    #[arg(long, value_name = "WHAT", value_parser = one_of::<Partitioning>(&[("colors", "Page colors"), ("ways", "Cache ways, by resctrl")]))]
    pub by: Vec<Partitioning>,
    /// Cache level that the palette must be of
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Where frames of the colors come from.
    #[command(flatten)]
    pub frames: Frames,
    /// A modeled machine instead of this one.
    #[command(flatten)]
    pub modeled: Modeled,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab net`.
#[derive(Debug, Args)]
pub struct NetOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Through what [default: all that there are]
    #[arg(long, value_parser = net_path())]
    pub path: Option<isochrome_lab::packets::Path>,
    /// The flood that is compared with mere writing, as `isochrome lab flood --verify` names it
    #[arg(long, value_name = "NAME", default_value = "double-purge")]
    pub pattern: Pattern,
    /// Bytes of the packets, 1 to 8192, with commas [default: 13 sizes from 1 to 8192]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub sizes: Vec<usize>,
    /// Blocks of each size and setting
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Packets of each kind and direction in a block
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub packets: u32,
    /// Pause before each packet
    #[arg(long, value_name = "TIME", default_value = "20us")]
    pub gap: Ns,
    /// Draw the figures here
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab flood`.
#[derive(Debug, Args)]
pub struct FloodOptions {
    /// Where to flood.
    #[command(flatten)]
    pub place: Place,
    /// Tell for every pattern what share of a known victim's lines is gone, and name the worst
    #[arg(long)]
    pub verify: bool,
    /// Which flood: write, read, double-purge, storm, chains; repeatable with --verify [default: write; with --verify all]
    #[arg(long, value_name = "NAME")]
    pub pattern: Vec<Pattern>,
    /// Colors to flood [default: all]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// What `isochrome probe -o FILE` has measured here: sizes of caches as loads felt them, against those of sysfs
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Times a pattern is carried out for one flood
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub passes: u32,
    /// For how long, without --verify
    #[arg(long, value_name = "TIME", default_value = "10s", conflicts_with = "verify")]
    pub duration: Ns,
    /// Blocks of each pattern, with --verify
    #[arg(long, value_name = "N", default_value_t = 60, requires = "verify", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Samples of each kind in a block, with --verify
    #[arg(long, alias = "looks", value_name = "N", default_value_t = 10, requires = "verify", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab workload`.
#[derive(Debug, Args)]
pub struct WorkloadOptions {
    /// Misses per access: 33% or 0.33
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub miss_ratio: f64,
    /// What is touched
    #[arg(long, value_parser = touches(), default_value = "data")]
    pub kind: Touches,
    /// By what the ratio is set
    #[arg(long, value_parser = locality(), default_value = "temporal")]
    pub locality: Locality,
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Blocks, each on other memory; more are run, up to four times as many, while fewer than 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Samples of the task and of both controls in a block
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// Tune the size until the measured ratio is within 2 percentage points, twice at one size
    #[arg(long, conflicts_with = "machine")]
    pub search: bool,
    /// Run it on this machine that comes with isochrome, or that a file describes, instead of here
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["output", "raw"])]
    pub machine: Option<String>,
    /// Replacement policy of all levels of the modeled machine
    #[arg(long, value_name = "POLICY", requires = "machine")]
    pub policy: Option<isochrome_model::sim::Policy>,
    /// Draw predicted and measured ratio against the size here
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// A share: `33%` or `0.33`.
fn ratio(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.trim().parse().map_err(|_| format!("`{text}` is no share: 33% or 0.33"))?;
    let share = number / scale;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(format!("{text} is not from 0% to 100%")) }
}

/// Options of `job`.
#[derive(Debug, Args)]
pub struct JobOptions {
    /// filter, filter-i32, dct, fft, spin, walk or write
    pub kernel: String,
    /// Taps, points, microseconds or KiB
    pub size: usize,
    /// Do so many jobs and end, without waiting for lines
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
}

/// A parser of what packets go through.
fn net_path() -> impl TypedValueParser<Value = isochrome_lab::packets::Path> {
    one_of(&[
        ("memory", "smoltcp and a card in memory; needs no privilege"),
        ("tap", "smoltcp and a TAP device in a network namespace of its own; needs root"),
        ("kernel", "The kernel's UDP over the loopback device, of which only the application's memory has colors"),
    ])
}

/// A parser of what sets a miss ratio.
fn locality() -> impl TypedValueParser<Value = Locality> {
    one_of(&[
        ("spatial", "One to all words of every line"),
        ("temporal", "Between all of the cache and one line more in every set"),
        ("combined", "Both in equal parts"),
    ])
}
