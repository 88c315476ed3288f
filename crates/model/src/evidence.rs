//! Evidence: what was run, on what machine, under which conditions, and what came out. One versioned JSON file; raw
//! samples lie beside it and are named in it with their hashes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::stats::HighWaterMark;
use crate::units::{Bytes, Color, CpuId, Cycles, Ns};

/// Version of the evidence file.
pub const SCHEMA: &str = "isochrome-evidence/1";

/// Everything a report is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of isochrome that wrote it.
    pub isochrome: String,
    /// When it was taken, seconds since 1970-01-01 UTC.
    pub taken_unix_s: u64,
    /// The command line that made it.
    pub command: Vec<String>,
    /// Seed of every random choice of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// CPU the experiments ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// The machine, with what was measured of it.
    pub machine: Machine,
    /// [`Machine::fingerprint`] of the machine at that time.
    pub fingerprint: String,
    /// The colors found; absent when the machine has none or they could not be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub palette: Option<PaletteEvidence>,
    /// The experiments, in the order run.
    pub experiments: Vec<Experiment>,
    /// Run time against conflicts, one per level measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<Conflicts>,
    /// Delay of a pre-emption against the working set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crpd: Vec<crate::crpd::Crpd>,
    /// What passing the CPU from one task to another costs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<crate::switch::Switches>,
    /// What programs cost each other through the caches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interference: Vec<crate::interference::Interference>,
    /// What floods leave of a victim's lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floods: Vec<crate::flood::verify::Verification>,
    /// What packets cost, by path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packets: Vec<crate::net::Net>,
    /// What tasks did over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watches: Vec<crate::watch::Watched>,
    /// Tasks with a set miss ratio: predicted, and measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<crate::miss_ratio::measured::Comparison>,
    /// A task set that ran, every job held against its bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<crate::running::Run>,
    /// What the reader must know to judge the numbers (no counters, noisy host...), most important first.
    pub warnings: Vec<String>,
    /// Files of raw samples, relative to the evidence file.
    pub raw: Vec<RawFile>,
}

/// A file of raw samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawFile {
    /// Path relative to the evidence file.
    pub path: String,
    /// SHA-256 of its contents, in hexadecimal.
    pub sha256: String,
}

/// How a palette was found and how sure it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaletteEvidence {
    /// Cache level colored.
    pub level: u8,
    /// Colors found.
    pub colors: u32,
    /// Colors the geometry leads one to expect.
    pub colors_expected: u32,
    /// How it was measured: `bits`, `timing` or `counters`.
    pub method: String,
    /// Pages classified.
    pub pages: u64,
    /// Pages left without a color after confirmation.
    pub ambiguous: u64,
    /// Time the whole measurement took, in seconds.
    pub seconds: f64,
    /// Time to classify one page, in microseconds.
    pub us_per_page: f64,
    /// Pages of each color.
    pub per_color: Vec<u64>,
    /// Row i, column j: share (0 to 1) of a page of color i that traversing the eviction set of color j evicts.
    pub eviction: Vec<Vec<f64>>,
    /// The rule found for frame numbers, in words, or why there is none.
    pub rule: String,
}

/// What else happens between the jobs of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Nothing: the co-runner only spins. Gives c_min.
    Alone,
    /// The task in ordinary memory; the co-runner makes every line of the cache dirty.
    Unpartitioned,
    /// The task in its own colors; the co-runner makes every line of the other colors dirty.
    Partitioned,
    /// The task in its own colors; the co-runner dirties the other colors and reads, but never writes, other pages of the task's
    /// colors. [Liedtke1997, §5.3]
    SingleWriter,
}

/// One kernel at one problem size under all conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// `filter`, `dct`, `fft`, `matmul` or `combined`.
    pub bench: String,
    /// The problem size, by the name of its option: `taps`, `points`, `slice_us`, `rate_hz`; written beside `bench`.
    #[serde(flatten)]
    pub parameter: BTreeMap<String, u64>,
    /// Element type: `f64` or `i32`.
    pub element: String,
    /// Memory a job touches.
    pub working_set: Bytes,
    /// Outcome per condition.
    pub conditions: BTreeMap<Condition, Outcome>,
}

/// How the pages of a buffer were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placing {
    /// Every color alike.
    Balanced,
    /// A color drawn at random for each page: what a stock kernel does.
    Random,
    /// Some colors with more pages than ways, as many with none.
    Conflicting,
}

/// One buffer and what walks over it took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacedWalk {
    /// How its pages were chosen.
    pub placing: Placing,
    /// Pages that compete: [`Placement::sum`](crate::placement::Placement::sum).
    pub sum: u64,
    /// Pages beyond those that fit: [`Placement::excess`](crate::placement::Placement::excess).
    pub excess: u64,
    /// Reading every line in order, in ns; the shortest of all rounds.
    pub linear_ns: f64,
    /// Following a chain through all lines in random order, in ns; the shortest of all rounds.
    pub random_ns: f64,
}

/// The experiment of \[Hanemaaijer1993\]: the time to walk over a buffer against the conflicts of its pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conflicts {
    /// Cache level.
    pub level: u8,
    /// What fits into a color of it.
    pub shape: crate::placement::ColorShape,
    /// Bytes per page.
    pub page_bytes: Bytes,
    /// Pages of the buffer.
    pub pages: u64,
    /// Rounds over all buffers; of each buffer the shortest walk counts.
    pub rounds: u32,
    /// Every buffer.
    pub walks: Vec<PlacedWalk>,
}

/// What a miss costs, from the line of run time over `sum`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MissPenalty {
    /// Time per line of the pages that compete, in ns: `slope / lines per page`. \[Hanemaaijer1993\]
    pub ns_per_line: f64,
    /// Half the width of its 95 % confidence interval, in ns.
    pub ns_error: f64,
    /// The same in ticks of the constant-rate counter; absent where its rate is not known.
    pub cycles_per_line: Option<f64>,
    /// Half the width of that interval, in ticks.
    pub cycles_error: Option<f64>,
    /// Share of the variance of run time that `sum` explains, 0 to 1.
    pub r_squared: f64,
    /// Buffers.
    pub n: u64,
    /// Whether the penalty is positive beyond its interval.
    pub rises: bool,
}

impl Conflicts {
    /// The penalty by the times `ns` over the conflicts `x` of each buffer; `None` when the buffers do not differ.
    ///
    /// `counter_hz`: ticks per second.
    pub fn penalty(
        &self,
        x: impl Fn(&PlacedWalk) -> u64,
        ns: impl Fn(&PlacedWalk) -> f64,
        counter_hz: Option<u64>,
    ) -> Option<MissPenalty> {
        let points: Vec<(f64, f64)> = self.walks.iter().map(|walk| (x(walk) as f64, ns(walk))).collect();
        let line = crate::stats::Line::through(&points)?;
        let lines = self.shape.page_lines as f64;
        let (ns_per_line, ns_error) = (line.slope / lines, line.slope_error / lines);
        let cycles = |ns: f64| counter_hz.map(|hz| ns * hz as f64 / 1e9);
        Some(MissPenalty {
            ns_per_line,
            ns_error,
            cycles_per_line: cycles(ns_per_line),
            cycles_error: cycles(ns_error),
            r_squared: line.r_squared,
            n: line.n,
            rises: line.rises(),
        })
    }
}

/// What jobs of one kind took, over the quiet blocks only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Jobs.
    pub n: u64,
    /// Shortest job.
    pub cycles_min: Cycles,
    /// Median job.
    pub cycles_median: Cycles,
    /// 99 % of the jobs took at most this.
    pub cycles_p99: Cycles,
    /// 99.9 % of the jobs took at most this.
    pub cycles_p999: Cycles,
    /// Longest job. An observation, not a bound.
    pub cycles_max: Cycles,
    /// Median level-2 demand misses per job; `None` where there are no counters.
    pub l2_misses_median: Option<f64>,
    /// Median level-1 data misses per job; `None` where there are no counters.
    pub l1_misses_median: Option<f64>,
    /// Median share (0 to 1) of the lines of witness pages, in the same colors as the task's memory, that were gone from the
    /// colored level when the job began, by time; `None` where time cannot tell.
    #[serde(default)]
    pub lost_median: Option<f64>,
}

/// One condition of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Jobs that followed the co-runner's work.
    #[serde(flatten)]
    pub jobs: JobSummary,
    /// The paired control: jobs of the same blocks that followed mere spinning for the same time.
    pub control: JobSummary,
    /// Blocks run.
    pub blocks: u64,
    /// Blocks whose control was quiet; only these count.
    pub blocks_quiet: u64,
    /// Colors of the task's memory; empty for ordinary memory.
    pub colors: Vec<Color>,
    /// The longest job, its sample count and when it last rose.
    pub high_water_mark: HighWaterMark,
    /// Share of jobs (0 to 1) that took longer than each number of cycles, ascending; thinned for drawing.
    pub ccdf: Vec<(Cycles, f64)>,
    /// Time the host withheld the CPU during the blocks that count.
    pub steal_ns: Ns,
}
