//! Cost of conflicts among a buffer's pages: the time to walk over the buffer depends on where its pages lie. \[Hanemaaijer1993\]

mod buffers;
mod section;

use isochrome_model::placement::ColorShape;
use isochrome_model::stats::Line;
use isochrome_model::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::Judged;

pub use buffers::{Walks, pages_per_color};
pub use section::section;

/// The condition of a block: the buffer that is walked over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// Rule by which the pages of the buffer were chosen.
    pub placing: Placing,
    /// Number of the buffer, from 0.
    pub buffer: u64,
}

/// The values of a sample, in ns: the shortest walk in order, and the shortest at random.
pub const COLUMNS: [&str; 2] = ["linear_ns", "random_ns"];

/// Accepts every block whose steal time permits it. There is no control, as buffers are compared with each other by the shortest walk over each.
pub const JUDGED: Judged = Judged { cost: |_| 0.0, canary: None };

/// Rule by which the pages of a buffer are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placing {
    /// Every color has the same number of pages.
    Balanced,
    /// Each page has a color drawn at random, as with a stock kernel.
    Random,
    /// Some colors have more pages than ways, and as many have none.
    Conflicting,
}

/// One buffer, with the times of the walks over it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BufferWalk {
    /// Rule by which the pages of the buffer were chosen.
    pub placing: Placing,
    /// Number of pages that compete: [`Placement::sum`](isochrome_model::placement::Placement::sum).
    pub sum: u64,
    /// Number of pages that do not fit: [`Placement::excess`](isochrome_model::placement::Placement::excess).
    pub excess: u64,
    /// Time of reading every line in order, in ns: the shortest of all rounds.
    pub linear_ns: f64,
    /// Time of following a chain through all lines in random order, in ns: the shortest of all rounds.
    pub random_ns: f64,
}

/// The experiment of \[Hanemaaijer1993\]: the time to walk over a buffer against the conflicts of its pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conflicts {
    /// Cache level of the colors.
    pub level: u8,
    /// Shape that determines how many pages fit into a color.
    pub shape: ColorShape,
    /// Bytes per page.
    pub page_bytes: Bytes,
    /// Number of pages of the buffer.
    pub pages: u64,
    /// Number of rounds over all buffers. The shortest walk over each buffer counts.
    pub rounds: u32,
    /// Rate of the constant-rate counter in Hz, if it is known.
    #[serde(default)]
    pub counter_hz: Option<u64>,
    /// Walks over all buffers.
    pub walks: Vec<BufferWalk>,
}

/// The numbers of the section: the walks, and the miss penalty of each kind of walk.
#[derive(Serialize, JsonSchema)]
pub struct Numbers<'a> {
    #[serde(flatten)]
    measured: &'a Conflicts,
    /// Penalty of the walk in order; `None` if the buffers do not differ.
    linear: Option<MissPenalty>,
    /// Penalty of the walk at random; `None` if the buffers do not differ.
    random: Option<MissPenalty>,
}

/// Cost of a miss, from the line of run time over `sum`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MissPenalty {
    /// Time per line of the pages that compete, in ns: `slope / lines per page`. \[Hanemaaijer1993\]
    pub ns_per_line: f64,
    /// Half the width of the 95 % confidence interval of `ns_per_line`, in ns.
    pub ns_error: f64,
    /// Time per line of the pages that compete, in ticks of the constant-rate counter; absent if the rate of the counter is not known.
    pub cycles_per_line: Option<f64>,
    /// Half the width of the 95 % confidence interval of `cycles_per_line`, in ticks.
    pub cycles_error: Option<f64>,
    /// Share of the variance of run time that `sum` explains, 0 to 1.
    pub r_squared: f64,
    /// Number of buffers.
    pub n: u64,
    /// Whether the penalty is significant: positive, with a confidence interval that excludes 0.
    pub rises: bool,
}

impl Conflicts {
    /// Returns the miss penalty from the least-squares line of the times `ns` over the conflicts `x` of all buffers; `None` if the buffers do
    /// not differ.
    pub fn penalty(&self, x: impl Fn(&BufferWalk) -> u64, ns: impl Fn(&BufferWalk) -> f64) -> Option<MissPenalty> {
        let points: Vec<(f64, f64)> = self.walks.iter().map(|walk| (x(walk) as f64, ns(walk))).collect();
        let line = Line::through(&points)?;
        let lines = self.shape.page_lines as f64;
        let (ns_per_line, ns_error) = (line.slope / lines, line.slope_error / lines);
        let cycles = |ns: f64| self.counter_hz.map(|hz| ns * hz as f64 / 1e9);
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

    /// Returns the numbers that evidence contains and the command prints.
    pub(super) fn numbers(&self) -> Numbers<'_> {
        Numbers { measured: self, linear: self.linear(), random: self.random() }
    }

    /// Returns the miss penalty of the walk in order, by `sum`.
    pub fn linear(&self) -> Option<MissPenalty> {
        self.penalty(|walk| walk.sum, |walk| walk.linear_ns)
    }

    /// Returns the miss penalty of the walk at random, by `sum`.
    pub fn random(&self) -> Option<MissPenalty> {
        self.penalty(|walk| walk.sum, |walk| walk.random_ns)
    }

    /// Whether run time rises significantly with the conflicts on the walk at random. On a walk in order a prefetcher may hide every miss.
    pub fn is_conclusive(&self) -> bool {
        self.random().is_some_and(|penalty| penalty.rises)
    }
}
