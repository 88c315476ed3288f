//! Options that several verbs share, each group defined once.

use super::*;

/// A CPU, and what is measured on it.
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
    /// The defaults, on this CPU and level.
    pub fn at(cpu: Option<u32>, level: Option<u8>) -> Place {
        Place { cpu, level, by: By::Auto, memory: None, seed: None }
    }

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

/// Where a result goes.
#[derive(Debug, Args)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the result here, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
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
    /// Write every sample here, as CSV
    #[arg(long, value_name = "FILE")]
    pub raw: Option<PathBuf>,
}

/// How frames of chosen colors are found.
#[derive(Clone, Debug, Default, Args)]
pub struct Frames {
    /// Palette that tells the color of a frame, as `isochrome palette -o` writes it [default: that of `isochrome palette --save`, and what is measured]
    #[arg(long, value_name = "FILE")]
    pub palette: Option<PathBuf>,
    /// Believe the palette without eviction tests: for emulators without caches, and for palettes by formula
    #[arg(long)]
    pub trust_palette: bool,
    /// Limit of the memory touched to find frames of the colors [default: half of what is available]
    #[arg(long, value_name = "SIZE", visible_alias = "max-memory")]
    pub memory: Option<Bytes>,
    /// Seed of every random choice [default: a fresh one]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl Frames {
    /// The colors in `list` of `level`.
    pub fn colors(&self, list: &str, level: Option<u8>) -> ChosenColors {
        ChosenColors { colors: Some(list.to_owned()), level, frames: self.clone(), ..ChosenColors::default() }
    }
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
    /// Where frames come from.
    #[command(flatten)]
    pub frames: Frames,
    /// Cache level [default: the outermost private one with more than one color]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Longest that a program stands still at a time while pages are moved [default: 15ms]
    #[arg(long, value_name = "TIME")]
    pub max_pause: Option<Ns>,
    /// Also where pinned memory or asynchronous I/O cannot be told from memory that may be moved
    #[arg(long)]
    pub force: bool,
}

/// A modeled machine in place of this one.
#[derive(Debug, Args)]
pub struct Modeled {
    /// Play it on this machine that comes with isochrome, or that a file describes, instead of here
    #[arg(long, value_name = "MACHINE", requires = "mhz")]
    pub machine: Option<String>,
    /// Clock rate of the modeled machine
    #[arg(long, value_name = "MHZ", requires = "machine", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mhz: Option<u32>,
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

/// A parser of the values of `T` that have a name in `values`, each with what it means. Names are those of its serde form.
pub fn one_of<T>(values: &[(&'static str, &'static str)]) -> impl TypedValueParser<Value = T> + use<T>
where
    T: serde::de::DeserializeOwned + Clone + Send + Sync + 'static,
{
    let values = values.iter().map(|(name, meaning)| PossibleValue::new(*name).help(*meaning));
    PossibleValuesParser::new(values).try_map(|name| serde_json::from_value(name.into()))
}

/// A parser of what a task touches.
pub fn touches() -> impl TypedValueParser<Value = Touches> {
    one_of(&[("data", "Words of memory"), ("code", "Machine code, made for it: a jump per line")])
}
