//! Options that several verbs share, each group defined once.

use super::*;

/// The CPU, the cache level and the method of a measurement.
#[derive(Clone, Debug, Args)]
pub struct MeasurementOptions {
    /// CPU to measure on [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Cache level to color [default: of those beyond level 1 with several colors the outermost private one, else the innermost]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Method of finding colors
    #[arg(long, value_enum, default_value_t = By::Auto)]
    pub by: By,
    /// Use at most this much memory [default: 1G; with `palette --save` three quarters of the free memory]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Seed of every random choice [default: a fresh one, which is printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl MeasurementOptions {
    /// Returns the options for this CPU and level, with defaults for the rest.
    pub fn at(cpu: Option<u32>, level: Option<u8>) -> MeasurementOptions {
        MeasurementOptions { cpu, level, by: By::Auto, memory: None, seed: None }
    }

    /// Returns these options with another seed.
    pub fn with_seed(self, seed: Option<u64>) -> MeasurementOptions {
        MeasurementOptions { seed, ..self }
    }

    /// Returns the limit of memory use, by default 1 GiB.
    pub fn memory(&self) -> Bytes {
        self.memory.unwrap_or(Bytes(1 << 30))
    }
}

/// Method of finding colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The first method that works, of bits, counters and timing
    Auto,
    /// Frame-number bits, verified by eviction tests
    Bits,
    /// Time of walks over pages; needs no privilege
    Timing,
    /// Hardware counters of cache misses
    Counters,
}

/// Destination of a result.
#[derive(Debug, Args)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Destinations of the results of an experiment.
#[derive(Debug, Args)]
pub struct Results {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the evidence to this file, for `isochrome report`
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write every sample to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub raw: Option<PathBuf>,
}

/// Form of a report: HTML unless another one is chosen.
#[derive(Clone, Copy, Debug, Args)]
pub struct ReportForm {
    /// Print tables for the terminal instead of HTML
    #[arg(long)]
    pub text: bool,
    /// Print Markdown instead of HTML: machine, command, date and tables, for pages of results
    #[arg(long, conflicts_with = "text")]
    pub markdown: bool,
    /// Print JUnit XML for CI systems: a test case for every requirement of a run, and for the conclusion of any other section
    #[arg(long, conflicts_with_all = ["text", "markdown"])]
    pub junit: bool,
}

/// Sources of the colors of frames, and limits for finding frames.
#[derive(Clone, Debug, Default, Args)]
pub struct Frames {
    /// Palette with the colors of frames, as `isochrome palette -o` writes it [default: the palette of `isochrome palette --save`, and
    /// measurements]
    #[arg(long, value_name = "FILE")]
    pub palette: Option<PathBuf>,
    /// Trust the palette without eviction tests, for emulators without caches and for palettes by formula
    #[arg(long)]
    pub trust_palette: bool,
    /// Touch at most this much memory to find frames of the colors [default: half of the available memory]
    #[arg(long, value_name = "SIZE", visible_alias = "max-memory")]
    pub memory: Option<Bytes>,
    /// Seed of every random choice [default: a fresh one]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl Frames {
    /// Returns options that choose the colors in `list` at cache level `level`, with these sources of frames.
    pub fn colors(&self, list: &str, level: Option<u8>) -> ChosenColors {
        ChosenColors { colors: Some(list.to_owned()), level, frames: self.clone(), ..ChosenColors::default() }
    }
}

/// Colors for a program, and options for moving its pages onto them.
#[derive(Clone, Debug, Default, Args)]
pub struct ChosenColors {
    /// Colors for the program, such as 0-3, all, or auto:4 for any four free colors
    #[arg(long, value_name = "LIST")]
    pub colors: Option<String>,
    /// Let no other program have these colors in the same cache; this is the default
    #[arg(long, conflicts_with = "group")]
    pub exclusive: bool,
    /// Share the colors with all programs of the same group
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Spread the pages evenly over the colors, which avoids conflicts; over all colors unless --colors is given
    #[arg(long)]
    pub spread: bool,
    /// Sources of the colors of frames.
    #[command(flatten)]
    pub frames: Frames,
    /// Cache level [default: of those beyond level 1 with several colors the outermost private one, else the innermost]
    #[arg(long, value_name = "N")]
    pub level: Option<u8>,
    /// Stop the program for at most this long at a time while pages are moved [default: 15ms]
    #[arg(long, value_name = "TIME")]
    pub max_pause: Option<Ns>,
    /// Move pages even if they cannot be distinguished from pinned memory or memory of asynchronous I/O
    #[arg(long)]
    pub force: bool,
}

/// A modeled machine to use instead of this one.
#[derive(Debug, Args)]
pub struct Modeled {
    /// Simulate on this machine instead of measuring here: a built-in machine, or a file that describes one
    #[arg(long, value_name = "MACHINE", requires = "mhz")]
    pub machine: Option<String>,
    /// Clock rate of the modeled machine
    #[arg(long, value_name = "MHZ", requires = "machine", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mhz: Option<u32>,
}

/// Source of the accesses to simulate.
#[derive(Debug, Args)]
pub struct Program {
    /// Read the accesses from this trace; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub trace: Option<PathBuf>,
    /// Format of the trace: din, lackey, u64 or iso
    #[arg(long, value_name = "FORM", default_value = "din")]
    pub format: isochrome_model::trace::Format,
    /// Leave out instruction fetches
    #[arg(long)]
    pub data_only: bool,
    /// Run a built-in workload, such as matmul, filter:order=256 or walk:area=1M,stride=64,passes=10
    #[arg(long, value_name = "SPEC")]
    pub workload: Option<isochrome_model::workload::Workload>,
}

/// Returns a parser for the values of `T` in `values`, which pairs the serde name of each value with its help text.
pub fn one_of<T>(values: &[(&'static str, &'static str)]) -> impl TypedValueParser<Value = T> + use<T>
where
    T: serde::de::DeserializeOwned + Clone + Send + Sync + 'static,
{
    let values = values.iter().map(|(name, meaning)| PossibleValue::new(*name).help(*meaning));
    PossibleValuesParser::new(values).try_map(|name| serde_json::from_value(name.into()))
}

/// Returns a parser for the kind of memory that a task touches: data or code.
pub fn touches() -> impl TypedValueParser<Value = Touches> {
    one_of(&[("data", "Words of memory"), ("code", "Generated machine code, with one jump per line")])
}
