//! Arguments: the one definition behind parser, help, manual pages and completions. Parsing touches nothing.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use isochrome_model::analysis::Analysis;
use isochrome_model::export::Target;
use isochrome_model::flood::Pattern;
use isochrome_model::plan::{Method, Objective};
use isochrome_model::taskset::RefillChoice;
use isochrome_model::units::{Bytes, Ns, ParseError};

/// Gives real-time tasks on stock Linux their own part of the cache, and shows what that is worth.
#[derive(Debug, Parser)]
#[command(
    name = "isochrome",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 done and holds, 1 could not run, 2 a bound or threshold was violated, 3 inconclusive.\n\
                  Start with `isochrome doctor`, or with everything at once: `isochrome demo`."
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

impl Arguments {
    /// Parses a command line. As with `env` or `nice` no `--` is needed before a program, also where processes may be named instead: what
    /// is not a number begins a program.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
        let mut words: Vec<OsString> = words.into_iter().collect();
        let mut definition = Arguments::command();
        let verb = words.get(1).filter(|verb| *verb == "map" || *verb == "watch");
        if let Some(verb) = verb.and_then(|verb| definition.find_subcommand_mut(verb)) {
            // Only then it is known which options take values.
            verb.build();
            let takes_value = |word: &str| {
                verb.get_opts().any(|option| match word.strip_prefix("--") {
                    Some(name) => option.get_long() == Some(name),
                    None => word.len() == 2 && word.chars().nth(1) == option.get_short(),
                })
            };
            let mut at = 2;
            while let Some(word) = words.get(at).map(|word| word.to_string_lossy().into_owned()) {
                if word == "--" {
                    break;
                }
                if !word.starts_with('-') && word.parse::<u64>().is_err() {
                    words.insert(at, "--".into());
                    break;
                }
                at += if word.starts_with('-') && takes_value(&word) { 2 } else { 1 };
            }
        }
        Arguments::try_parse_from(words)
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Say what this machine allows and how to allow more
    #[command(
        after_help = "Examples:\n  isochrome doctor\n  isochrome doctor --json | jq '.checks[] | select(.status != \"ok\")'"
    )]
    Doctor(DoctorOptions),
    /// Measure the caches: latencies, refill time per color, sharing between CPUs, retention
    #[command(
        after_help = "Examples:\n  isochrome probe\n  isochrome probe --cpu 1 -o machine.json\nWithout --cpu every CPU is probed."
    )]
    Probe(ProbeOptions),
    /// Find the page colors of a cache level
    #[command(after_help = "Examples:\n  isochrome palette\n  isochrome palette --by timing --pages 65536 --json\n  \
                            isochrome palette --verify --again timing\n  isochrome palette -o palette.json --samples samples.json\n  \
                            isochrome palette --replay samples.json\n  isochrome palette --save --memory 4G")]
    Palette(PaletteOptions),
    /// Show the colors of a program's memory: pages per color and mapping, conflicts, expected misses
    #[command(
        after_help = "Examples:\n  isochrome map $(pidof redis-server)\n  isochrome map --verify -o map.svg python3 -c 'x = [0] * 10**7; input()'\n  \
                      isochrome map --watch --json 1234 | jq .total.sum\nFrames are colored by the saved palette: isochrome palette --save"
    )]
    Map(MapOptions),
    /// List who holds which colors, and how much of their memory lies in them
    #[command(
        after_help = "Examples:\n  isochrome ps\n  isochrome ps --json | jq '.grants[] | select(.memory.drift > 0.005)'\nA program that a process of the list started is shown below it; shared memory is not moved, but counted."
    )]
    Ps(PsOptions),
    /// Measure what a cache flood costs a task, with and without colors of its own
    #[command(
        after_help = "Examples:\n  isochrome bench filter --taps 4096 --json\n  isochrome bench matmul --slice-us 25\n  \
                            isochrome bench fft --points 2048 --raw jobs.csv\n  isochrome bench conflicts -o conflicts.json\n  isochrome bench crpd --colors 0-7 -o crpd.json\n  isochrome bench switch\n  \
                            isochrome bench net --svg net.svg\n  \
                            isochrome bench interference --program 'gzip -9c big.tar' --program 'isochrome job --jobs 6000 write 1024' -o interference.json\n  \
                            isochrome bench interference --machine i7-2600 --mhz 3400"
    )]
    Bench(BenchOptions),
    /// Drive a cache to the state that tasks like least, and prove that it is reached
    #[command(after_help = "Examples:\n  isochrome flood --verify\n  isochrome flood --verify --json | jq .worst\n  \
                            isochrome flood --pattern storm --colors 4-15 --duration 30s\n  isochrome probe -o machine.json && isochrome flood --verify --machine machine.json\n\
                            With --verify: exit code 2 where even the worst flood leaves more than 5 % of a victim's lines.")]
    Flood(FloodOptions),
    /// Do it all, here, now: doctor, probe, palette, four kernels under four conditions, and a report
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  isochrome demo\n  isochrome demo --quick -o /tmp/report\n  isochrome demo taskset"
    )]
    Demo(DemoOptions),
    /// Count cache events of a program on a modeled machine
    #[command(
        subcommand_negates_reqs = true,
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  isochrome simulate --machine zen3 --workload matmul\n  \
                      isochrome simulate --level 32K:8:64:lru:wb:wa --level 512K:8:64:lru:wb:wa --trace prog.din --json\n  \
                      valgrind --tool=lackey --trace-mem=yes ls 2>&1 | isochrome simulate --machine cortex-a72 --trace - --format lackey\n  \
                      isochrome simulate --scenario examples/interference.toml --svg interference.svg\n  \
                      isochrome simulate curve --level 1M:16:64 --workload fft:points=4096 --svg curve.svg\n  \
                      isochrome simulate flood --machine pentium-ii\n  isochrome simulate machines"
    )]
    Simulate(Box<SimulateOptions>),
    /// Record what a program accesses, for `simulate`
    #[command(
        after_help = "Examples:\n  isochrome trace ls -l\n  isochrome trace --by lackey --format din -o ls.din ls -l\n\
                      Needs valgrind, or qemu-user and a C compiler (Debian packages valgrind; qemu-user, gcc, libc6-dev)."
    )]
    Trace(TraceOptions),
    /// Run a task that misses in a cache with a set ratio, here or on a modeled machine
    #[command(
        after_help = "Examples:\n  isochrome workload --miss-ratio 33%\n  isochrome workload --miss-ratio 50% --level 1 --kind code --locality spatial\n  \
                      isochrome workload --miss-ratio 33% --search --svg search.svg\n  isochrome workload --miss-ratio 33% --machine zen3 --policy lru"
    )]
    Workload(WorkloadOptions),
    /// Show what tasks do over time, sliced at context switches
    #[command(
        after_help = "Examples:\n  isochrome watch --cpu 1 --duration 10s\n  isochrome watch $(pidof control) --csv slices.csv\n  \
                      isochrome watch --record run.slices -- ./control --rate 1000\n  isochrome watch --replay run.slices --json\n  \
                      isochrome watch --cpu 0-3 --prometheus 9187\n  isochrome watch -o watch.json --svg watch.svg -- ./control; isochrome report watch.json -o watch.html\n\
                      Without root (or CAP_PERFMON, CAP_DAC_READ_SEARCH, CAP_IPC_LOCK) only processes of one's own, PID or -- CMD, and only their times and switches."
    )]
    Watch(WatchOptions),
    /// Measure how long every task of a set executes, against its share of the cache
    #[command(after_help = "Examples:\n  isochrome profile examples/robot/taskset.toml -o profile.json\n  \
                      isochrome profile taskset.toml --exceed 1e-4 --margin 10 -o profile.json\n  \
                      isochrome profile taskset.toml --from-trace zen3 --mhz 3500 --trace control=control.iso --trace fft=workload:fft:points=1024\n\
                      It goes on where it was interrupted. The next step: isochrome plan profile.json -o plan.json")]
    Profile(ProfileOptions),
    /// Assign tasks to cores and cache partitions so that all deadlines hold, optimally if need be
    #[command(
        after_help = "Examples:\n  isochrome plan examples/kim2013-table1.json --cores 4 --memory 1G --copies 4\n  \
                      isochrome plan tasks.toml --objective utilization --time-limit 30s --json -o plan.json\n  \
                      isochrome plan examples/kim2013-table1.json --cores 4 --memory 1G --copies 2 --compare"
    )]
    Plan(PlanOptions),
    /// Bound how late each task can be under a given allocation, and say how far the verdict carries
    #[command(after_help = "Examples:\n  isochrome analyze tasks.json --allocation plan.json\n  \
                      isochrome analyze tasks.json --allocation plan.json --analysis combined-multiset --json")]
    Analyze(AnalyzeOptions),
    /// Say a plan in the words of another system: resctrl, oci, xen, jailhouse, bao, pqos, systemd, palloc
    #[command(
        after_help = "Examples:\n  isochrome export resctrl plan.json --ways 16 | sh -s control=4711\n  isochrome export xen plan.json -o guests\n  \
                      isochrome export oci plan.json --ways 20 --least-ways 2 --cache-id 0"
    )]
    Export(ExportOptions),
    /// Run the programs of a plan, and hold every job against its bound
    #[command(after_help = "Examples:\n  isochrome run plan.json -o out --duration 30s\n  \
                      isochrome run plan.json --hyperperiods 100 --on-violation stop\n  isochrome run plan.json -o out --duration 30s --compare none\n\
                      Needs root: real-time priorities, events of the scheduler, colors of frames.")]
    Run(RunPlanOptions),
    /// Move the pages of a program that runs onto chosen colors
    #[command(
        after_help = "Examples:\n  isochrome recolor 4711 --colors 0-3\n  isochrome recolor 4711 --colors 0-3 --dry-run --json\n  \
                      isochrome recolor 4711 --repair\nContents and addresses stay; shared memory is not moved. The program gets no transparent huge pages from then on.\n\
                      Killed with SIGKILL, isochrome may leave the program waiting, and memory mapped in it, until --repair. Killed just as it stops a\n\
                      thread, it may make one call such as epoll_wait end with EINTR."
    )]
    Recolor(RecolorOptions),
    /// Run a program on chosen colors, and keep it there
    #[command(after_help = "Examples:\n  isochrome exec --colors 0-3 ./control --rate 1000\n  \
                      isochrome exec --colors auto:4 --cpu 2,3 --fifo 20 --ready line:started ./server\nIts exit status is that of the program.\n\
                      Killed with SIGKILL, it leaves the program running and no longer watched; killed while it moves pages, it leaves the program\n\
                      waiting, unharmed, until `isochrome recolor PID --repair`.")]
    Exec(ExecOptions),
    /// Make a task set of a file of another tool
    #[command(
        after_help = "Example:\n  isochrome import rt-app workload.json -o taskset.toml\nWhat has no counterpart is named on standard error."
    )]
    Import(ImportOptions),
    /// Do the jobs of a workload that is built in, one for every line on standard input
    #[command(hide = true)]
    Job(JobOptions),
    /// Make a report to read from evidence
    #[command(
        after_help = "Examples:\n  isochrome report report/evidence.json -o report/index.html\n  isochrome report run --text\n  isochrome report - < evidence.json > r.html"
    )]
    Report(ReportOptions),
    /// Write the manual pages
    #[command(after_help = "Example:\n  isochrome man -o /usr/local/share/man/man1")]
    Man(ManOptions),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  isochrome completions bash > /etc/bash_completion.d/isochrome")]
    Completions(CompletionOptions),
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Where and on what to measure.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// CPU to measure on [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Cache level to color [default: the outermost private one with more than one color]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// How colors are found
    #[arg(long, value_enum, default_value_t = By::Auto)]
    pub by: By,
    /// Limit of the memory used [default: 1G; to save a palette, three quarters of what is free]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Seed of every random choice [default: a fresh one, which is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl Place {
    /// Limit of the memory used.
    pub fn memory(&self) -> Bytes {
        self.memory.unwrap_or(Bytes(1 << 30))
    }
}

/// How colors are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The first that works: bits, counters, timing
    Auto,
    /// Frame-number bits, verified by eviction tests
    Bits,
    /// The time of walks over pages; needs no privilege
    Timing,
    /// Hardware counters of misses
    Counters,
}

/// Options of `probe`.
#[derive(Debug, Args)]
pub struct ProbeOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the machine file here
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `palette`.
#[derive(Debug, Args)]
pub struct PaletteOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Pages to classify [default: 8192; with --save all of --memory]
    #[arg(long, value_name = "N")]
    pub pages: Option<usize>,
    /// Save the color of every frame measured, for this boot: later commands find it, and measuring more adds to it
    #[arg(long)]
    pub save: bool,
    /// Put the colors to a test that does not use the eviction sets
    #[arg(long)]
    pub verify: bool,
    /// Find the colors of the same pages again by this method, and compare; repeatable
    #[arg(long, value_enum, value_name = "METHOD")]
    pub again: Vec<By>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the palette here
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write everything that was seen here, to be replayed
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Conclude from saved samples instead of measuring; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verify", "again", "samples", "save"])]
    pub replay: Option<PathBuf>,
}

/// Options of `map`.
#[derive(Debug, Args)]
pub struct MapOptions {
    /// Process
    #[arg(value_name = "PID", required_unless_present = "program", conflicts_with = "program")]
    pub pid: Option<u32>,
    /// Program to start, with its arguments
    #[arg(value_name = "CMD", last = true)]
    pub program: Vec<String>,
    /// Look at a program that is started after this time
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub after: Ns,
    /// Look again and again, until it ends
    #[arg(long)]
    pub watch: bool,
    /// Time between looks
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Ns,
    /// Measure colors of fresh memory without the saved palette, and compare
    #[arg(long)]
    pub verify: bool,
    /// CPU to test the palette on [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Cache level [default: the outermost private one with more than one color]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Limit of the memory used to test the palette [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw the heat map here, as SVG
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `ps`.
#[derive(Debug, Args)]
pub struct PsOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `bench`.
#[derive(Debug, Args)]
pub struct BenchOptions {
    /// What the job does.
    #[command(subcommand)]
    pub kernel: BenchKernel,
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
    /// What conflicts of a buffer's pages cost: walks over it, balanced, random and conflicting
    Conflicts(ConflictsOptions),
    /// What a pre-emption costs through the cache, against the size of the working set
    Crpd(CrpdOptions),
    /// What it costs to pass the CPU from one task to another: switches and pre-emptions, direct part and cache part
    Switch(SwitchOptions),
    /// What packets cost a network stack after a flood, with and without colors of its components
    Net(NetOptions),
    /// What unmodified programs cost each other, on different CPUs and on one by turns, with and without colors or cache ways
    Interference(InterferenceOptions),
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

/// Options of `flood`.
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
    /// Looks of each kind in a block, with --verify
    #[arg(long, value_name = "N", default_value_t = 10, requires = "verify", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub looks: u32,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `bench conflicts`.
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

/// Options of `bench crpd`.
#[derive(Debug, Args)]
pub struct CrpdOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// What the working set is
    #[arg(long, value_enum, default_value_t = TouchKind::Data)]
    pub kind: TouchKind,
    /// Colors of the working set [default: the first half]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Working sets from 5 to 130 percent of these colors, in steps of this
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub step: u32,
    /// Blocks of each size, walk and condition; more are run, up to four times as many, while too few are quiet
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Pre-emptions of each kind in a block
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: u32,
    /// Play it on this machine that comes with isochrome, or that a file describes, instead of here
    #[arg(long, value_name = "MACHINE", requires = "mhz", conflicts_with = "output")]
    pub machine: Option<String>,
    /// Clock rate of the modeled machine
    #[arg(long, value_name = "MHZ", requires = "machine", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mhz: Option<u32>,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Where an experiment leaves its results.
#[derive(Debug, Args)]
pub struct Results {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the evidence here, for `isochrome report`
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write everything that was timed here, as CSV
    #[arg(long, value_name = "FILE")]
    pub raw: Option<PathBuf>,
}

/// Options of `bench switch`.
#[derive(Debug, Args)]
pub struct SwitchOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Colors that floods keep out of in partitioned conditions [default: the first half]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Blocks of each condition; more are run, up to four times as many, while too few are quiet
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: u32,
    /// Passages of each kind in a block
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: u32,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// Options of `bench interference`.
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
    #[arg(long, value_enum, value_name = "WHAT")]
    pub by: Vec<Division>,
    /// Palette that tells the color of a frame, as `isochrome palette -o` writes it [default: that of `isochrome palette --save`, and what is measured]
    #[arg(long, value_name = "FILE")]
    pub palette: Option<PathBuf>,
    /// Believe the palette without eviction tests
    #[arg(long)]
    pub trust_palette: bool,
    /// Cache level that the palette must be of
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Limit of the memory touched to find frames of the colors [default: half of what is available]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Seed of every random choice [default: a fresh one, which is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Play it on this machine that comes with isochrome, or that a file describes, instead of here
    #[arg(long, value_name = "MACHINE", requires = "mhz")]
    pub machine: Option<String>,
    /// Clock rate of the modeled machine
    #[arg(long, value_name = "MHZ", requires = "machine", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mhz: Option<u32>,
    /// Where results go.
    #[command(flatten)]
    pub results: Results,
}

/// What a cache is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Division {
    /// Page colors.
    Colors,
    /// Cache ways, by resctrl.
    Ways,
}

/// Options of `bench net`.
#[derive(Debug, Args)]
pub struct NetOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Through what [default: all that there are]
    #[arg(long, value_enum)]
    pub path: Option<NetPath>,
    /// The flood that is held against mere writing, as `isochrome flood --verify` names it
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

/// Through what packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetPath {
    /// smoltcp and a card in memory; needs no privilege
    Memory,
    /// smoltcp and a TAP device in a network namespace of its own; needs root
    Tap,
    /// The kernel's UDP over the loopback device, of which only the application's memory has colors
    Kernel,
}

/// Element type of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Element {
    /// 64-bit floating point
    F64,
    /// 32-bit integers
    I32,
}

/// How much to run, and what to do with the outcome.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Blocks of each condition; more are run, up to four times as many, while too few are quiet
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub blocks: u32,
    /// Jobs of each kind per block
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub jobs: u32,
    /// Colors of the task where it has its own, such as 0-3 [default: as many as its memory needs]
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write every job to this CSV file
    #[arg(long, value_name = "FILE")]
    pub raw: Option<PathBuf>,
    /// Write the evidence here, for `isochrome report`
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
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

/// Options of `report`.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// Evidence file, or the folder it is in; `-` for standard input
    pub evidence: PathBuf,
    /// Write the report here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// A table for the terminal instead of HTML
    #[arg(long)]
    pub text: bool,
}

/// A task set, and what replaces numbers in it.
#[derive(Debug, Args)]
pub struct TaskSetFile {
    /// Task set, JSON or TOML; `-` for standard input
    #[arg(value_name = "FILE")]
    pub tasks: PathBuf,
    /// How response times are bounded: kim2013, no-interference, ecb-only, ucb-only, ucb-union, ecb-union, ucb-union-multiset,
    /// ecb-union-multiset, combined-multiset
    #[arg(long, value_name = "NAME", default_value_t)]
    pub analysis: Analysis,
    /// Cores, instead of the file's
    #[arg(long, value_name = "N")]
    pub cores: Option<u32>,
    /// Cache partitions, instead of the file's
    #[arg(long, value_name = "N")]
    pub partitions: Option<u32>,
    /// Memory that is colored, instead of the file's
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Time to refill a partition: one of the file's (clean, dirty, serial) or another; the longer of clean and dirty if not given
    #[arg(long, value_name = "TIME")]
    pub refill: Option<RefillChoice>,
}

/// Options of `profile`.
#[derive(Debug, Args)]
pub struct ProfileOptions {
    /// Task set (docs/tasksets.md)
    #[arg(value_name = "FILE")]
    pub tasks: PathBuf,
    /// Write the profile here, after every visit; one that is there goes on
    #[arg(short, long, value_name = "FILE", default_value = "profile.json")]
    pub output: PathBuf,
    /// Begin anew, whatever is in the output file
    #[arg(long)]
    pub again: bool,
    /// Run so many jobs of each point that, with 95 % confidence, a further one exceeds the longest with at most this probability
    #[arg(long, value_name = "P", default_value_t = 1e-3)]
    pub exceed: f64,
    /// Jobs of one visit to a task on some partitions
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub visit: u64,
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
    /// Palette that tells the color of a frame [default: that of `isochrome palette --save`, and what is measured]
    #[arg(long, value_name = "FILE")]
    pub palette: Option<PathBuf>,
    /// Believe the palette without eviction tests
    #[arg(long)]
    pub trust_palette: bool,
    /// Limit of the memory touched to find frames of the colors [default: half of what is available]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// What to do without a machine.
    #[command(flatten)]
    pub modeled: ModeledOptions,
    /// Seed of the order and of the colors chosen [default: a fresh one, which is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Draw execution times against partitions into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `profile` without a machine.
#[derive(Debug, Args)]
pub struct ModeledOptions {
    /// Run nothing: take the times from traces on a modeled machine, a name or a file as for `simulate`
    #[arg(long, value_name = "MACHINE", requires_all = ["trace", "mhz"])]
    pub from_trace: Option<String>,
    /// A task's trace of one job in the iso form (`isochrome trace`), or TASK=workload:SPEC; repeatable
    #[arg(long, value_name = "TASK=FILE", requires = "from_trace")]
    pub trace: Vec<String>,
    /// Clock rate of the modeled machine
    #[arg(long, value_name = "MHZ", requires = "from_trace", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mhz: Option<u32>,
}

/// Options of `plan`.
#[derive(Debug, Args)]
pub struct PlanOptions {
    /// What to plan.
    #[command(flatten)]
    pub file: TaskSetFile,
    /// How to plan: optimal, cata, bfd, wfd
    #[arg(long, value_name = "NAME", default_value_t)]
    pub method: Method,
    /// What for: partitions (fewest), utilization (least), margin (largest growth of execution times), refill (largest refill
    /// time); several, the first deciding before the second, with commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "partitions")]
    pub objective: Vec<Objective>,
    /// Stop after this time with the best plan so far and the bound proven so far
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub time_limit: Ns,
    /// Plan for every task this many times
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub copies: u32,
    /// Print a table of all methods instead of a plan
    #[arg(long, conflicts_with_all = ["json", "output", "svg", "gantt"])]
    pub compare: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the plan here, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Draw here which task uses which partition
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Draw here what every core runs after a common release
    #[arg(long, value_name = "FILE")]
    pub gantt: Option<PathBuf>,
}

/// Where priorities come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Priorities {
    /// The file, or deadline-monotonic.
    File,
    /// Audsley's assignment, core by core.
    Audsley,
}

/// Options of `analyze`.
#[derive(Debug, Args)]
pub struct AnalyzeOptions {
    /// What to analyze.
    #[command(flatten)]
    pub file: TaskSetFile,
    /// Which task runs where with which partitions: a plan, or its `cores`; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub allocation: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Priorities: those of the file, or audsley to search for some that meet the deadlines
    #[arg(long, value_name = "HOW", default_value = "file")]
    pub priorities: Priorities,
    /// Draw here what every core runs after a common release
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Options of `export`.
#[derive(Debug, Args)]
pub struct ExportOptions {
    /// To whom: resctrl, oci, jailhouse, pqos (cache ways); xen, bao, palloc (page colors); systemd (either)
    #[arg(value_name = "SYSTEM")]
    pub target: Target,
    /// The plan, as `isochrome plan -o` writes it; `-` for standard input
    #[arg(value_name = "PLAN")]
    pub plan: PathBuf,
    /// Cache level that is divided [default: that of the plan, or 3]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Partitions of one cache [default: as many as it has ways; the highest in the plan where it is divided by colors]
    #[arg(long, value_name = "N")]
    pub partitions: Option<u32>,
    /// Number of the cache that serves each core of the plan, in order; one for all if one is given
    #[arg(long, value_name = "LIST", default_value = "0")]
    pub cache_id: String,
    /// Ways of the cache [default: what resctrl of this machine says]
    #[arg(long, value_name = "N")]
    pub ways: Option<u32>,
    /// Fewest ways that a mask may have (resctrl: min_cbm_bits)
    #[arg(long, value_name = "N", default_value_t = 1, requires = "ways")]
    pub least_ways: u32,
    /// Masks may have gaps (resctrl: sparse_masks)
    #[arg(long, requires = "ways")]
    pub sparse: bool,
    /// Classes of service, the default one included (resctrl: num_closids)
    #[arg(long, value_name = "N", default_value_t = 16, requires = "ways")]
    pub classes: u32,
    /// Write the files into this folder instead of printing them
    #[arg(short, long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunPlanOptions {
    /// A plan with programs, as `isochrome plan` makes it of a profile; `-` for standard input
    #[arg(value_name = "PLAN")]
    pub plan: PathBuf,
    /// Folder for the evidence, the report and every job
    #[arg(short, long, value_name = "DIR", default_value = "run")]
    pub output: PathBuf,
    /// For how long, from the first release; with --compare, of each kind
    #[arg(long, value_name = "TIME", default_value = "10s", conflicts_with = "hyperperiods")]
    pub duration: Ns,
    /// For so many times the least common multiple of all periods instead
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    pub hyperperiods: Option<u64>,
    /// Also run the set without partitions, in blocks that alternate in random order, and state the difference
    #[arg(long, value_enum, value_name = "WITH")]
    pub compare: Option<CompareWith>,
    /// What to do when a job is beyond its bound, its deadline or its budget
    #[arg(long, value_enum, default_value_t = ViolationAction::Trace)]
    pub on_violation: ViolationAction,
    /// Go on with the others when a program fails
    #[arg(long)]
    pub keep_going: bool,
    /// Leave other programs on the CPUs of the tasks
    #[arg(long)]
    pub share_cpus: bool,
    /// Neither touch the memory of the tasks beforehand nor lock it
    #[arg(long)]
    pub no_mlock: bool,
    /// Schedule by fixed priorities, or by deadlines; the plan's bounds are those of fixed priorities
    #[arg(long, value_enum, default_value_t = Policy::Fifo)]
    pub policy: Policy,
    /// Palette that tells the color of a frame, as `isochrome palette -o` writes it [default: that of `isochrome palette --save`, and what is measured]
    #[arg(long, value_name = "FILE")]
    pub palette: Option<PathBuf>,
    /// Believe the palette without eviction tests
    #[arg(long)]
    pub trust_palette: bool,
    /// Limit of the memory touched to find frames of the colors [default: half of what is available]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Seed of the order of blocks [default: a fresh one, which is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How the tasks of a run are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// SCHED_FIFO by the priorities of the plan
    Fifo,
    /// SCHED_DEADLINE: time reserved for each task in every period
    Deadline,
}

/// What a run is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompareWith {
    /// The same set without partitions
    None,
}

/// What to do when a job is beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ViolationAction {
    /// Keep what its CPU did around it
    Trace,
    /// Also send SIGUSR1 to its program, which ends one that is not prepared
    Signal,
    /// Also end the run
    Stop,
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
    pub command: Vec<std::ffi::OsString>,
}

/// Colors for a program, and where they come from.
#[derive(Clone, Debug, Default, Args)]
pub struct ChosenColors {
    /// Colors, such as 0-3, all, or auto:4 for any four that are free
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Nobody else may have these colors where the CPUs share the cache; this is the default
    #[arg(long, conflicts_with = "group")]
    pub exclusive: bool,
    /// Share the colors with all that name the same group
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Deal the pages evenly over the colors, all of them unless --colors says which: a placement without conflicts
    #[arg(long)]
    pub spread: bool,
    /// Palette that tells the color of a frame, as `isochrome palette -o` writes it [default: that of `isochrome palette --save`, and
    /// what is measured]
    #[arg(long, value_name = "FILE")]
    pub palette: Option<PathBuf>,
    /// Believe the palette without eviction tests: for emulators without caches, and for palettes by formula
    #[arg(long)]
    pub trust_palette: bool,
    /// Cache level [default: the outermost private one with more than one color]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Most memory that is touched to find frames of the colors [default: half of what is available]
    #[arg(long, value_name = "SIZE", alias = "memory")]
    pub max_memory: Option<Bytes>,
    /// Longest that a program stands still at a time while pages are moved [default: 15ms]
    #[arg(long, value_name = "TIME")]
    pub max_pause: Option<Ns>,
    /// Also where pinned memory or asynchronous I/O cannot be told from memory that may be moved
    #[arg(long)]
    pub force: bool,
}

/// Options of `recolor`.
#[derive(Debug, Args)]
pub struct RecolorOptions {
    /// Number of the process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Which colors.
    #[command(flatten)]
    pub colors: ChosenColors,
    /// All processes below it as well
    #[arg(long)]
    pub tree: bool,
    /// Say what would be moved and touched, and how long that takes, and touch nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Put right what a recoloring that was killed has left
    #[arg(long, conflicts_with = "dry_run")]
    pub repair: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write JSON here
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `exec`.
#[derive(Debug, Args)]
pub struct ExecOptions {
    /// Which colors.
    #[command(flatten)]
    pub colors: ChosenColors,
    /// CPUs that the program may run on
    #[arg(long, value_name = "LIST")]
    pub cpu: Option<String>,
    /// Run it as SCHED_FIFO at this priority
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99), conflicts_with = "deadline")]
    pub fifo: Option<u8>,
    /// Run it as SCHED_DEADLINE: so much time in every period, such as 2ms:10ms
    #[arg(long, value_name = "RUNTIME:PERIOD")]
    pub deadline: Option<String>,
    /// When it is ready to be moved: settle:TIME (its memory has not grown for so long, or it runs for 2s), sd_notify, line:TEXT (it printed a line that
    /// holds the text; its standard output is then a pipe), signal (it sent SIGUSR1 to its parent)
    #[arg(long, value_name = "WHEN", default_value = "settle:100ms")]
    pub ready: Ready,
    /// Time between two looks at its pages
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: Ns,
    /// Leave programs that it starts where they are
    #[arg(long)]
    pub no_follow_forks: bool,
    /// Refuse to start a program that cannot be put on its colors now, instead of letting it run where it is
    #[arg(long)]
    pub strict: bool,
    /// Say what would be touched and moved, and how long that takes; start the program, and leave it where it is
    #[arg(long)]
    pub dry_run: bool,
    /// Print what was done as JSON lines on standard error: when the program is on its colors, and at the end
    #[arg(long)]
    pub json: bool,
    /// Write what was done here, as JSON: when the program is on its colors, and again at the end
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The program and its arguments; options go before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    pub command: Vec<std::ffi::OsString>,
}

/// When a program is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Its resident memory has not grown for this time.
    Settle(Ns),
    /// It has sent READY=1 to the socket in NOTIFY_SOCKET.
    SdNotify,
    /// It has printed a line that holds this.
    Line(String),
    /// It has sent SIGUSR1 to its parent.
    Signal,
}

impl std::str::FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Ready, String> {
        match text.split_once(':') {
            Some(("settle", time)) => time.parse().map(Ready::Settle).map_err(|error: ParseError| error.to_string()),
            Some(("line", text)) if !text.is_empty() => Ok(Ready::Line(text.to_owned())),
            None if text == "sd_notify" => Ok(Ready::SdNotify),
            None if text == "signal" => Ok(Ready::Signal),
            _ => Err("write settle:100ms, sd_notify, line:TEXT or signal".to_owned()),
        }
    }
}

/// Options of `import`.
#[derive(Debug, Args)]
pub struct ImportOptions {
    /// Whose file it is
    #[arg(value_enum)]
    pub form: ImportForm,
    /// The file; `-` for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write the task set here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Files that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportForm {
    /// A workload of rt-app, JSON
    RtApp,
}

/// Options of `workload`.
#[derive(Debug, Args)]
pub struct WorkloadOptions {
    /// Misses per access: 33% or 0.33
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub miss_ratio: f64,
    /// What is touched
    #[arg(long, value_enum, default_value_t = TouchKind::Data)]
    pub kind: TouchKind,
    /// By what the ratio is set
    #[arg(long, value_enum, default_value_t = LocalityKind::Temporal)]
    pub locality: LocalityKind,
    /// Where to measure.
    #[command(flatten)]
    pub place: Place,
    /// Turns of the task and of both controls; up to five times as many while too few are quiet
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub turns: u32,
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

/// A share: `33%` or `0.33`.
fn ratio(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.trim().parse().map_err(|_| format!("`{text}` is no share: 33% or 0.33"))?;
    let share = number / scale;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(format!("{text} is not from 0% to 100%")) }
}

/// What a workload touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TouchKind {
    /// Words of memory
    Data,
    /// Machine code, made for it: a jump per line
    Code,
}

/// By what a workload's miss ratio is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LocalityKind {
    /// One to all words of every line
    Spatial,
    /// Between all of the cache and one line more in every set
    Temporal,
    /// Both in equal parts
    Combined,
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

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManOptions {
    /// Folder to write to
    #[arg(short, long, value_name = "DIR", default_value = "man")]
    pub output: PathBuf,
}

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionOptions {
    /// The shell
    pub shell: clap_complete::Shell,
}

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
    pub result: ResultOptions,
}

/// Where a result goes.
#[derive(Debug, Args)]
pub struct ResultOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the result here, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
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
        /// Hold the misses of the fewest, of half and of all colors against the full simulator
        #[arg(long)]
        verify: bool,
        /// Draw the curve here
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Where the result goes.
        #[command(flatten)]
        result: ResultOptions,
    },
    /// What the floods of Loeser and Haertig achieve on the first two data levels
    Flood {
        /// The machine.
        #[command(flatten)]
        machine: ModeledMachine,
        /// Where the result goes.
        #[command(flatten)]
        result: ResultOptions,
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

/// Where accesses come from.
#[derive(Debug, Args)]
pub struct Program {
    /// A trace; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub trace: Option<PathBuf>,
    /// Form of the trace: din, lackey, u64 or iso
    #[arg(long, value_name = "FORM", default_value = "din")]
    pub format: isochrome_model::trace::Format,
    /// Leave instruction fetches out
    #[arg(long)]
    pub data_only: bool,
    /// A built-in workload, such as matmul, filter:order=256 or walk:area=1M,stride=64,passes=10
    #[arg(long, value_name = "SPEC")]
    pub workload: Option<isochrome_model::workload::Workload>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Verb, clap::Error> {
        Arguments::of(line.split(' ').map(OsString::from)).map(|arguments| arguments.verb)
    }

    #[test]
    fn a_program_needs_no_dashes_and_what_follows_it_is_its_own() {
        Arguments::command().debug_assert();
        for (line, command) in [
            ("isochrome exec --colors 0-3 program -c 1 --colors all", "program -c 1 --colors all"),
            ("isochrome exec --colors 0-3 -- program -c 1", "program -c 1"),
            ("isochrome exec --colors 0-3 -- -program", "-program"),
            ("isochrome exec --colors 0-3 program -- --help", "program -- --help"),
            ("isochrome exec --colors=0-3 -o out program --json", "program --json"),
        ] {
            let Ok(Verb::Exec(options)) = parsed(line) else { panic!("{line}") };
            assert_eq!(options.command.join(" ".as_ref()), command, "{line}");
            assert_eq!(options.colors.colors.as_deref(), Some("0-3"), "{line}");
        }
        for line in ["isochrome exec --colors 0-3", "isochrome exec --colors 0-3 --", "isochrome exec --absent program"]
        {
            assert!(parsed(line).is_err(), "{line}");
        }
        let Ok(Verb::Trace(options)) = parsed("isochrome trace --data-only ls -l") else { panic!("trace") };
        assert_eq!((options.data_only, options.command.join(" ".as_ref())), (true, "ls -l".into()));
    }

    #[test]
    fn a_number_is_a_process_and_anything_else_begins_a_program() {
        for (line, pid, program, json) in [
            ("isochrome map 12 --json", Some(12), "", true),
            ("isochrome map --json 12", Some(12), "", true),
            ("isochrome map sleep 10 --json", None, "sleep 10 --json", false),
            ("isochrome map --json -o map.svg --after 1s sleep 10", None, "sleep 10", true),
            ("isochrome map --json --cpu=1 -- 12 -x", None, "12 -x", true),
        ] {
            let Ok(Verb::Map(options)) = parsed(line) else { panic!("{line}") };
            assert_eq!(
                (options.pid, options.program.join(" "), options.json),
                (pid, program.to_owned(), json),
                "{line}"
            );
        }
        for line in ["isochrome map", "isochrome map 12 sleep 10", "isochrome map 99999999999"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        for (line, pids, program) in [
            ("isochrome watch 1 2 --json", &[1, 2][..], ""),
            ("isochrome watch --duration 1s sleep 10", &[], "sleep 10"),
            ("isochrome watch 1 --json -- sleep 10", &[1], "sleep 10"),
        ] {
            let Ok(Verb::Watch(options)) = parsed(line) else { panic!("{line}") };
            assert_eq!((&options.pids[..], options.program.join(" ")), (pids, program.to_owned()), "{line}");
        }
    }
}
