//! Options of the verbs that plan, analyze and run task sets.

use super::*;

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
    /// Where the plan goes.
    #[command(flatten)]
    pub output: Output,
    /// Draw here which task uses which partition
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Draw here what every core runs after a common release
    #[arg(long, value_name = "FILE")]
    pub gantt: Option<PathBuf>,
}

/// Where priorities come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
    /// Also run the set without partitions, in pairs of blocks in random order, and state the difference with its confidence interval
    #[arg(long, value_enum, value_name = "WITH")]
    pub compare: Option<CompareWith>,
    /// What to do when a job exceeds its bound, its deadline or its budget
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
    /// Where frames of the colors come from.
    #[command(flatten)]
    pub frames: Frames,
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

/// What to do when a job exceeds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ViolationAction {
    /// Keep what its CPU did around it
    Trace,
    /// Also send SIGUSR1 to its program, which ends one that is not prepared
    Signal,
    /// Also end the run
    Stop,
}
