//! Options of the verbs that plan, analyze and run task sets.

use super::*;

/// A task set, and values that replace those of its file.
#[derive(Debug, Args)]
pub struct TaskSetFile {
    /// Task set, as JSON or TOML; `-` for standard input
    #[arg(value_name = "FILE")]
    pub tasks: PathBuf,
    /// Analysis that bounds response times: kim2013, no-interference, ecb-only, ucb-only, ucb-union, ecb-union, ucb-union-multiset,
    /// ecb-union-multiset, combined-multiset, persistence-multiset
    #[arg(long, value_name = "NAME", default_value_t)]
    pub analysis: Analysis,
    /// Number of cores, instead of that in the file
    #[arg(long, value_name = "N")]
    pub cores: Option<u32>,
    /// Number of cache partitions, instead of that in the file
    #[arg(long, value_name = "N")]
    pub partitions: Option<u32>,
    /// Size of the colored memory, instead of that in the file
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Time to refill a partition: one of the file (clean, dirty, serial) or another time [default: the longer of clean and dirty]
    #[arg(long, value_name = "TIME")]
    pub refill: Option<RefillChoice>,
    /// Replacement policy to assume, instead of that in the file: lru; or any, under which no tasks can share partitions
    #[arg(long, value_name = "POLICY")]
    pub replacement: Option<Replacement>,
    /// File of a probed machine, whose replacement policy is compared with the assumed one [default: that in the profile]
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Supply of the CPUs that bounds charge: measured, as `probe` observed it and the file holds it; or full, if no CPU is ever withheld
    /// [default: measured if the file has it]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub supply: Option<Supply>,
}

/// Supply of the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Supply {
    /// Supply of each CPU as a spinning clock observed it
    Measured,
    /// The whole CPU at any time
    Full,
}

/// Options of `plan`.
#[derive(Debug, Args)]
pub struct PlanOptions {
    /// The task set to plan.
    #[command(flatten)]
    pub file: TaskSetFile,
    /// Planning method: optimal, cata, bfd, wfd
    #[arg(long, value_name = "NAME", default_value_t)]
    pub method: Method,
    /// What to optimize: partitions (fewest), utilization (least), margin (largest growth of execution times), refill (largest refill
    /// time); or several, separated by commas, in order of importance
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "partitions")]
    pub objective: Vec<Objective>,
    /// Stop after this time with the best plan and the bound proven so far
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub time_limit: Ns,
    /// Plan this many copies of every task
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub copies: u32,
    /// Print a table that compares all methods, instead of a plan
    #[arg(long, conflicts_with_all = ["json", "output", "svg", "gantt"])]
    pub compare: bool,
    /// Destination of the plan.
    #[command(flatten)]
    pub output: Output,
    /// Draw which task uses which partition to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Draw the schedule of every core after a common release to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub gantt: Option<PathBuf>,
}

/// Source of the priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Priorities {
    /// The priorities of the file, or deadline-monotonic ones.
    File,
    /// Audsley's assignment on each core.
    Audsley,
}

/// Options of `analyze`.
#[derive(Debug, Args)]
pub struct AnalyzeOptions {
    /// The task set to analyze.
    #[command(flatten)]
    pub file: TaskSetFile,
    /// Allocation of tasks to cores and partitions, from 0: a plan, or its `cores`; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub allocation: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Priorities: file, for those of the task set; or audsley, to search for priorities that meet all deadlines
    #[arg(long, value_name = "HOW", default_value = "file")]
    pub priorities: Priorities,
    /// Draw the schedule of every core after a common release to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Options of `export`.
#[derive(Debug, Args)]
pub struct ExportOptions {
    /// System to export to: resctrl, oci, jailhouse, pqos (cache ways); xen, bao, palloc (page colors); systemd (either)
    #[arg(value_name = "SYSTEM")]
    pub target: Target,
    /// Plan, as `isochrome plan -o` writes it; `-` for standard input
    #[arg(value_name = "PLAN")]
    pub plan: PathBuf,
    /// Cache level to divide [default: that of the plan, or 3]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Number of partitions of one cache [default: its number of ways; with colors, one more than the highest partition in the plan]
    #[arg(long, value_name = "N")]
    pub partitions: Option<u32>,
    /// Number of the cache that serves each core of the plan, in order; a single number is for all cores
    #[arg(long, value_name = "LIST", default_value = "0")]
    pub cache_id: String,
    /// Number of ways of the cache [default: as resctrl of this machine reports]
    #[arg(long, value_name = "N")]
    pub ways: Option<u32>,
    /// Fewest ways of a mask (min_cbm_bits of resctrl)
    #[arg(long, value_name = "N", default_value_t = 1, requires = "ways")]
    pub least_ways: u32,
    /// Allow masks with gaps (sparse_masks of resctrl)
    #[arg(long, requires = "ways")]
    pub sparse: bool,
    /// Number of classes of service, including the default one (num_closids of resctrl)
    #[arg(long, value_name = "N", default_value_t = 16, requires = "ways")]
    pub classes: u32,
    /// Write the files into this folder instead of printing them
    #[arg(short, long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunPlanOptions {
    /// Plan with programs, as `isochrome plan` makes it from a profile; `-` for standard input
    #[arg(value_name = "PLAN")]
    pub plan: PathBuf,
    /// Folder for the evidence, the report and the list of jobs
    #[arg(short, long, value_name = "DIR", default_value = "run")]
    pub output: PathBuf,
    /// Also write the verdicts to this file as JUnit XML, for CI systems: a test case for every task and requirement
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Length of the run from the first release; with --compare, the length for each kind of block
    #[arg(long, value_name = "TIME", default_value = "10s", conflicts_with = "hyperperiods")]
    pub duration: Ns,
    /// Length of the run as a number of hyperperiods, the least common multiple of all periods
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    pub hyperperiods: Option<u64>,
    /// Also run the set without partitions, in pairs of blocks in random order, and report the difference with its confidence interval
    #[arg(long, value_enum, value_name = "WITH")]
    pub compare: Option<CompareWith>,
    /// Action when a job exceeds its bound, its deadline or its budget
    #[arg(long, value_enum, default_value_t = ViolationAction::Trace)]
    pub on_violation: ViolationAction,
    /// Continue with the other programs when a program fails
    #[arg(long)]
    pub keep_going: bool,
    /// Let other programs run on the CPUs of the tasks
    #[arg(long)]
    pub share_cpus: bool,
    /// Do not touch the memory of the tasks in advance, and do not lock it
    #[arg(long)]
    pub no_mlock: bool,
    /// Scheduling policy; the bounds of a plan hold for fixed priorities
    #[arg(long, value_enum, default_value_t = Policy::Fifo)]
    pub policy: Policy,
    /// Sources of the colors of frames.
    #[command(flatten)]
    pub frames: Frames,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Scheduling policy of the tasks in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// SCHED_FIFO by the priorities of the plan
    Fifo,
    /// SCHED_DEADLINE, with reserved time for each task in every period
    Deadline,
}

/// Condition that a run is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompareWith {
    /// The task set without partitions
    None,
}

/// Action when a job exceeds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ViolationAction {
    /// Keep a trace of the CPU around the job
    Trace,
    /// Also send SIGUSR1 to the program, which kills a program without a handler
    Signal,
    /// Also end the run
    Stop,
}
