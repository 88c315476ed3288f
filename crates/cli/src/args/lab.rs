//! Options of the experiments.

use super::*;

/// Experiments of `isochrome lab`.
#[derive(Debug, Subcommand)]
pub enum Experiment {
    /// Measure how much unmodified programs slow each other down
    ///
    /// They run on different CPUs and on one, with and without colors or cache ways
    #[command(
        after_help = "Examples:\n  isochrome lab interference --program 'gzip -9c big.tar' --program 'isochrome job --jobs 6000 write 1024' -o interference.json\n  \
                      isochrome lab interference --machine i7-2600 --mhz 3400"
    )]
    Interference(InterferenceOptions),
    /// Measure the cost of conflicts among a buffer's pages
    ///
    /// It walks over balanced, random and conflicting buffers
    #[command(after_help = "Examples:\n  isochrome lab conflicts\n  \
                      isochrome lab conflicts --buffers 80 -o conflicts.json")]
    Conflicts(ConflictsOptions),
    /// Measure the cache-related preemption delay against the size of the working set
    #[command(after_help = "Examples:\n  isochrome lab crpd\n  \
                      isochrome lab crpd --kind code --step 25 -o crpd.json\n  \
                      isochrome report crpd.json -o crpd.html")]
    Crpd(CrpdOptions),
    /// Measure the cost of switches and preemptions, its direct part and its cache part
    #[command(after_help = "Examples:\n  isochrome lab switch\n  isochrome lab switch --blocks 20 --json")]
    Switch(SwitchOptions),
    /// Measure the cost of packets in a network stack after a flood
    ///
    /// Its components have all colors, and colors of their own
    #[command(after_help = "Examples:\n  isochrome lab net\n  \
                      isochrome lab net --path memory --sizes 64,1500 -o net.json")]
    Net(NetOptions),
    /// Flood a cache, to leave it in the worst state for tasks, and verify the effect
    #[command(
        after_help = "Examples:\n  isochrome lab flood --verify\n  isochrome lab flood --verify --json | jq .worst\n  \
                            isochrome lab flood --pattern storm --colors 4-15 --duration 30s\n  isochrome probe -o machine.json && isochrome lab flood --verify --machine machine.json\n\
                            With --verify the exit code is 2 if even the worst flood leaves more than 5 % of a victim's lines."
    )]
    Flood(FloodOptions),
    /// Run a task with a chosen miss ratio, on this machine or a modeled one
    #[command(
        after_help = "Examples:\n  isochrome lab workload --miss-ratio 33%\n  isochrome lab workload --miss-ratio 50% --level 1 --kind code --locality spatial\n  \
                      isochrome lab workload --miss-ratio 33% --search --svg search.svg\n  isochrome lab workload --miss-ratio 33% --machine zen3 --policy lru"
    )]
    Workload(WorkloadOptions),
    /// Play figures of the papers on modeled machines, beside the papers' numbers
    ///
    /// With --measured their commands run on this machine
    #[command(
        after_help = "Examples:\n  isochrome lab paper\n  isochrome lab paper sebek2002/10\n  isochrome lab paper kim2013 -o figures\n  \
                      isochrome lab paper sebek2002/10 --measured -o figures\nWithout a name the figures are listed. docs/results/papers.md has all of them."
    )]
    Paper(PaperOptions),
    /// Measurements of the cost of a cache flood to a kernel, with and without colors for its memory.
    #[command(flatten)]
    Kernel(BenchKernel),
}

/// Options of `lab paper`.
#[derive(Debug, Args)]
pub struct PaperOptions {
    /// Figures such as sebek2002/5, or papers with all their figures such as sebek2002 [default: none, and all are listed]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// List the figures
    #[arg(long, conflicts_with = "names")]
    pub list: bool,
    /// Run the commands that measure the same on this machine, instead of playing the figures, and draw their results
    #[arg(long, requires = "names", requires = "output")]
    pub measured: bool,
    /// Print JSON, an object for each figure
    #[arg(long, conflicts_with = "measured")]
    pub json: bool,
    /// Write each figure to this folder, as SVG, JSON and CSV
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Kernels whose jobs are measured with and without floods of the cache.
#[derive(Debug, Subcommand)]
pub enum BenchKernel {
    /// Measure the cost of a flood to a digital filter, one sample per job
    #[command(after_help = "Examples:\n  isochrome lab filter --taps 512 --element i32\n  \
                      isochrome lab filter --colors 0-3 -o filter.json")]
    Filter {
        /// Number of coefficients, 4 to 8192
        #[arg(long, value_name = "N", default_value_t = 4096)]
        taps: usize,
        /// Element type
        #[arg(long, value_enum, default_value_t = Element::F64)]
        element: Element,
        /// Amount of measurement and destination of the results.
        #[command(flatten)]
        options: RunOptions,
    },
    /// Measure the cost of a flood to a discrete cosine transform per job
    #[command(after_help = "Examples:\n  isochrome lab dct --points 1024 -o dct.json")]
    Dct {
        /// Number of points, a power of two from 64 to 8192
        #[arg(long, value_name = "N", default_value_t = 2048)]
        points: usize,
        /// Amount of measurement and destination of the results.
        #[command(flatten)]
        options: RunOptions,
    },
    /// Measure the cost of a flood to a fast Fourier transform per job
    #[command(after_help = "Examples:\n  isochrome lab fft --points 1024 -o fft.json")]
    Fft {
        /// Number of points, a power of two from 64 to 4096
        #[arg(long, value_name = "N", default_value_t = 2048)]
        points: usize,
        /// Amount of measurement and destination of the results.
        #[command(flatten)]
        options: RunOptions,
    },
    /// Measure the cost of a flood after each time slice of a 64x64 matrix multiplication
    #[command(after_help = "Examples:\n  isochrome lab matmul --slice-us 100 -o matmul.json")]
    Matmul {
        /// Time slice in microseconds, 1 to 10000
        #[arg(long, value_name = "US", default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        slice_us: u64,
        /// Amount of measurement and destination of the results.
        #[command(flatten)]
        options: RunOptions,
    },
    /// Measure the cost of a flood to a matrix multiplication that the filter interrupts
    #[command(after_help = "Examples:\n  isochrome lab combined --rate-hz 1000 -o combined.json")]
    Combined {
        /// Number of interruptions per second of the multiplication's time, 100 to 100000
        #[arg(long, value_name = "HZ", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
        rate_hz: u64,
        /// Amount of measurement and destination of the results.
        #[command(flatten)]
        options: RunOptions,
    },
}

/// Amount of measurement of a kernel, and destination of the results.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Number of blocks of each condition; up to four times as many are run until 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub blocks: u32,
    /// Number of jobs of each kind in a block
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub jobs: u32,
    /// Colors of the task in conditions with colors, such as 0-3 [default: as many as its memory needs]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Destinations of the results.
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
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Number of buffers of each kind: balanced, random and conflicting
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub buffers: u32,
    /// Number of rounds over all buffers; the shortest walk over each buffer counts
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Destinations of the results.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab crpd`.
#[derive(Debug, Args)]
pub struct CrpdOptions {
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Content of the working set
    #[arg(long, value_parser = touches(), default_value = "data")]
    pub kind: Touches,
    /// Number of code lines from one jump to the next; if the branch predictor cannot store all jumps, the curve bends
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub lines_per_jump: u32,
    /// Colors of the working set [default: the first half]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Step between working sets, which reach from 5 to 130 percent of these colors
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub step: u32,
    /// Number of blocks of each size, walk and condition; up to four times as many are run until 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Number of preemptions of each kind in a block
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: u32,
    /// A modeled machine to use instead of this one.
    #[command(flatten)]
    pub modeled: Modeled,
    /// Destinations of the results.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab switch`.
#[derive(Debug, Args)]
pub struct SwitchOptions {
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Colors that floods avoid in partitioned conditions [default: the first half]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Number of blocks of each condition; up to four times as many are run until 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Number of handoffs of each kind in a block
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: u32,
    /// Destinations of the results.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab interference`.
#[derive(Debug, Args)]
pub struct InterferenceOptions {
    /// Program that ends by itself, with its arguments, without quotes; repeatable. On a modeled machine a workload, such as
    /// chase:area=4M,line=64,steps=65536,seed=1 [default: a built-in walk and a built-in writer, for at most two minutes]
    #[arg(long, value_name = "COMMAND")]
    pub program: Vec<String>,
    /// CPU to measure programs on; co-runners get the others [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Time slice of each program on the shared CPU; several are separated by commas [default: 2500us; for built-in programs
    /// 500us,1ms,2500us,10ms]
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    pub slice: Vec<Ns>,
    /// Time that a program runs before it is timed, long enough to be moved to its colors [default: 1s; for built-in programs 100ms]
    #[arg(long, value_name = "TIME")]
    pub warm_up: Option<Ns>,
    /// Longest time that a program may take alone after its warm-up
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub limit: Ns,
    /// Number of blocks of each program and condition; up to four times as many are run until 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Method of dividing the cache; repeatable [default: colors and ways, if available]
    #[arg(long, value_name = "WHAT", value_parser = one_of::<Partitioning>(&[("colors", "Page colors"), ("ways", "Cache ways, by resctrl")]))]
    pub by: Vec<Partitioning>,
    /// Cache level, which must be that of the palette
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Sources of the colors of frames.
    #[command(flatten)]
    pub frames: Frames,
    /// A modeled machine to use instead of this one.
    #[command(flatten)]
    pub modeled: Modeled,
    /// Destinations of the results.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab net`.
#[derive(Debug, Args)]
pub struct NetOptions {
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Path that the packets take [default: all paths]
    #[arg(long, value_parser = net_path())]
    pub path: Option<isochrome_lab::packets::Path>,
    /// Flood to compare with mere writing, by its name in `isochrome lab flood --verify`
    #[arg(long, value_name = "NAME", default_value = "double-purge")]
    pub pattern: Pattern,
    /// Packet sizes in bytes, 1 to 8192, separated by commas [default: 13 sizes from 1 to 8192]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub sizes: Vec<usize>,
    /// Number of blocks of each size and setting
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Number of packets of each kind and direction in a block
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub packets: u32,
    /// Pause before each packet
    #[arg(long, value_name = "TIME", default_value = "20us")]
    pub gap: Ns,
    /// Draw the figures to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Destinations of the results.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab flood`.
#[derive(Debug, Args)]
pub struct FloodOptions {
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Measure which share of a known victim's lines each pattern evicts, and report the worst
    #[arg(long)]
    pub verify: bool,
    /// Flood: write, read, double-purge, storm, chains; repeatable with --verify [default: write; with --verify all]
    #[arg(long, value_name = "NAME")]
    pub pattern: Vec<Pattern>,
    /// Colors to flood [default: all]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Compare the cache sizes in sysfs with those that loads measured, from this file of `isochrome probe -o`
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Number of times that the pattern is carried out in one flood
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub passes: u32,
    /// Length of the flood, without --verify
    #[arg(long, value_name = "TIME", default_value = "10s", conflicts_with = "verify")]
    pub duration: Ns,
    /// Number of blocks of each pattern, with --verify
    #[arg(long, value_name = "N", default_value_t = 60, requires = "verify", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Number of samples of each kind in a block, with --verify
    #[arg(long, alias = "looks", value_name = "N", default_value_t = 10, requires = "verify", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// Destinations of the results.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `lab workload`.
#[derive(Debug, Args)]
pub struct WorkloadOptions {
    /// Misses per access, such as 33% or 0.33
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub miss_ratio: f64,
    /// Kind of memory that the task touches
    #[arg(long, value_parser = touches(), default_value = "data")]
    pub kind: Touches,
    /// Kind of locality that sets the ratio
    #[arg(long, value_parser = locality(), default_value = "temporal")]
    pub locality: Locality,
    /// The CPU, the cache level and the method.
    #[command(flatten)]
    pub measurement: MeasurementOptions,
    /// Number of blocks, each on other memory; up to four times as many are run until 10 are accepted
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Number of samples of the task and of both controls in a block
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// Search for a size at which two successive measurements are within 2 percentage points of the ratio
    #[arg(long, conflicts_with = "machine")]
    pub search: bool,
    /// Simulate on this machine instead of measuring here: a built-in machine, or a file that describes one
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["output", "raw"])]
    pub machine: Option<String>,
    /// Replacement policy of all levels of the modeled machine
    #[arg(long, value_name = "POLICY", requires = "machine")]
    pub policy: Option<isochrome_model::sim::Policy>,
    /// Draw the predicted and the measured ratio against the size to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Destinations of the results.
    #[command(flatten)]
    pub results: Results,
}

/// Returns the share that `text` states, such as `33%` or `0.33`. Fails if it is not from 0 to 1.
fn ratio(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.trim().parse().map_err(|_| format!("`{text}` is not a share: 33% or 0.33"))?;
    let share = number / scale;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(format!("{text} is not from 0% to 100%")) }
}

/// Options of `job`.
#[derive(Debug, Args)]
pub struct JobOptions {
    /// Workload: filter, filter-i32, dct, fft, spin, walk or write
    pub kernel: String,
    /// Size in taps, points, microseconds or KiB
    pub size: usize,
    /// Run this many jobs and end, without waiting for lines
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Run on this CPU only
    #[arg(long, value_name = "CPU", value_parser = clap::value_parser!(u32).range(..1024))]
    pub cpu: Option<u32>,
    /// Run a job every TIME, or one after the other for 0s, and print how long each took, without waiting for lines
    #[arg(long, value_name = "TIME", conflicts_with = "jobs")]
    pub every: Option<Ns>,
    /// Measure how much longer a walk takes after a writer to four times its memory, at least 2 MiB, and end
    #[arg(long, conflicts_with_all = ["jobs", "every"])]
    pub refill: bool,
}

/// Returns a parser for the path that packets take.
fn net_path() -> impl TypedValueParser<Value = isochrome_lab::packets::Path> {
    one_of(&[
        ("memory", "smoltcp and a card in memory; needs no privilege"),
        ("tap", "smoltcp and a TAP device in a network namespace of its own; needs root"),
        ("kernel", "UDP of the kernel over the loopback device, where only the application's memory has colors"),
    ])
}

/// Returns a parser for the kind of locality that sets a miss ratio.
fn locality() -> impl TypedValueParser<Value = Locality> {
    one_of(&[
        ("spatial", "The task touches one to all words of every line"),
        ("temporal", "The task has as many lines as the cache, or up to one more in every set"),
        ("combined", "Both kinds contribute equal parts"),
    ])
}
