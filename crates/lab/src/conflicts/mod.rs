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
    /// How the pages of the buffer were chosen.
    pub placing: Placing,
    /// Number of the buffer, from 0.
    pub buffer: u64,
}

/// The values of a sample, in ns: the shortest walk in order, and the shortest at random.
pub const COLUMNS: [&str; 2] = ["linear_ns", "random_ns"];

/// Accepts every block whose steal time permits it. There is no control, as buffers are compared with each other by the shortest walk over each.
pub const JUDGED: Judged = Judged { cost: |_| 0.0, canary: None };

/// How the pages of a buffer were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacedWalk {
    /// How its pages were chosen.
    pub placing: Placing,
    /// Pages that compete: [`Placement::sum`](isochrome_model::placement::Placement::sum).
    pub sum: u64,
    /// Pages beyond those that fit: [`Placement::excess`](isochrome_model::placement::Placement::excess).
    pub excess: u64,
    /// Reading every line in order, in ns; the shortest of all rounds.
    pub linear_ns: f64,
    /// Following a chain through all lines in random order, in ns; the shortest of all rounds.
    pub random_ns: f64,
}

/// The experiment of \[Hanemaaijer1993\]: the time to walk over a buffer against the conflicts of its pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conflicts {
    /// Cache level.
    pub level: u8,
    /// What fits into a color of it.
    pub shape: ColorShape,
    /// Bytes per page.
    pub page_bytes: Bytes,
    /// Pages of the buffer.
    pub pages: u64,
    /// Rounds over all buffers; of each buffer the shortest walk counts.
    pub rounds: u32,
    /// Rate of the constant-rate counter, where it is known.
    #[serde(default)]
    pub counter_hz: Option<u64>,
    /// Every buffer.
    pub walks: Vec<PlacedWalk>,
}

/// The numbers of the section: the walks, and the miss penalty by each kind of walk.
#[derive(Serialize, JsonSchema)]
pub struct Numbers<'a> {
    #[serde(flatten)]
    measured: &'a Conflicts,
    /// The penalty of the walk in order; `None` where the buffers do not differ.
    linear: Option<MissPenalty>,
    /// The penalty of the walk at random.
    random: Option<MissPenalty>,
}

/// What a miss costs, from the line of run time over `sum`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Returns the miss penalty by the line of the times `ns` over the conflicts `x` of all buffers; `None` if the buffers do not differ.
    pub fn penalty(&self, x: impl Fn(&PlacedWalk) -> u64, ns: impl Fn(&PlacedWalk) -> f64) -> Option<MissPenalty> {
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

    /// Whether run time rises significantly with the conflicts, in both walks.
    pub fn is_conclusive(&self) -> bool {
        [self.linear(), self.random()].into_iter().all(|penalty| penalty.is_some_and(|it| it.rises))
    }
}
