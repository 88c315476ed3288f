//! The report of `exec` and `recolor` on what was done with a program's pages.

use schemars::JsonSchema;
use serde::Serialize;

use super::Coloring;
use crate::color::reference::Numbers;
use crate::color::verified::Verified;
use crate::doctor::{self, Status};
use crate::machine::sysfs::Sysfs;
use crate::recolor::Report;
use crate::recolor::watch::Tally;
use crate::sys::memory::page_bytes;

/// Version of the report.
pub const SCHEMA: &str = "isochrome-recolor/2";

/// Rough time in ns to touch a page and measure its color, and to move a page. These times serve for the rough estimates of a dry run.
const TOUCHED_NS: u64 = 15_000;
const MOVED_NS: u64 = 2_500;

/// Event at which a report is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A dry run has ended. Nothing was touched or moved, and the report contains the expected work.
    DryRun,
    /// The program is on its colors for the first time, or a recoloring has ended.
    OnColors,
    /// The program has ended.
    End,
}

/// Report on the pages of a program, all its processes together.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PlacementReport {
    /// Version of the report: [`SCHEMA`].
    pub schema: &'static str,
    /// Event at which the report was made.
    pub event: Event,
    /// Process number of the program.
    pub pid: i32,
    /// Whether pages were moved, or all pages were on color already.
    pub moved: bool,
    /// Placement of the program's pages, and the work done for it.
    #[serde(flatten)]
    pub tally: Tally,
    /// Result of eviction tests on a sample of the pages that are on color; `None` if no tests were made.
    pub verified: Option<Verified>,
    /// Time in s from the start of the program until it was on its colors; `None` if that is not so yet, or if the program was not started
    /// here.
    pub seconds_to_colors: Option<f64>,
    /// Work that a dry run expects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// Where the numbers of the colors come from.
    pub numbers: Option<Numbers>,
    /// Names of the mechanisms that may move pages to other colors on this machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub movers: Vec<String>,
    /// Errors, each listed once.
    pub errors: Vec<String>,
}

/// Expected work of a recoloring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Expected {
    /// Number of pages to move.
    pub pages: usize,
    /// Memory touched to find frames for these pages, in bytes.
    pub touched_bytes: u64,
    /// Duration of the recoloring in s.
    pub seconds: f64,
    /// Number of pauses of the program, each at most as long as allowed.
    pub pauses: u64,
}

impl PlacementReport {
    /// Creates the report for process `pid` from what was done so far.
    pub fn of(event: Event, pid: i32, tally: &Tally) -> PlacementReport {
        PlacementReport {
            schema: SCHEMA,
            event,
            pid,
            moved: tally.sweeps > 0 || tally.off_color == 0 && tally.resident > 0,
            tally: tally.clone(),
            verified: None,
            seconds_to_colors: None,
            expected: None,
            numbers: None,
            movers: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Returns this report with the mechanisms that may move pages to other colors on this machine.
    pub fn with_movers(self) -> PlacementReport {
        let movers = doctor::movers(&Sysfs::system()).into_iter().filter(|mover| mover.status == Status::Limited);
        PlacementReport { movers: movers.map(|mover| mover.name).collect(), ..self }
    }

    /// Returns a later report on the same process, with a new `event` and `tally`. Everything else is kept.
    pub fn later(self, event: Event, tally: &Tally) -> PlacementReport {
        let PlacementReport { tally, moved, .. } = PlacementReport::of(event, self.pid, tally);
        PlacementReport { event, tally, moved, ..self }
    }

    /// Creates the report of a dry run: what a recoloring of the process of `report` is expected to do.
    pub fn expected(report: &Report, coloring: &Coloring) -> PlacementReport {
        let (resident, on_color, off_color) = (report.resident(), report.on_color(), report.moved());
        let mut tally = Tally { resident, on_color, off_color, ..Tally::default() };
        for (why, pages) in report.regions.iter().flat_map(|region| &region.why) {
            *tally.immovable.entry(why.clone()).or_default() += pages;
        }
        let pages = off_color as u64;
        let drawn = pages * u64::from(coloring.color_count()) / coloring.colors().len().max(1) as u64;
        let moving = pages * MOVED_NS;
        let expected = Expected {
            pages: off_color,
            touched_bytes: drawn * page_bytes() as u64,
            seconds: (drawn * TOUCHED_NS + 2 * moving) as f64 / 1e9,
            pauses: moving.div_ceil((coloring.limits.max_pause.as_nanos() as u64).max(1)),
        };
        let numbers = coloring.numbers().cloned();
        PlacementReport {
            moved: false,
            expected: Some(expected),
            numbers,
            ..PlacementReport::of(Event::DryRun, report.pid, &tally)
        }
    }

    /// Returns the share of the movable pages that are on color, 0 to 1.
    pub fn share(&self) -> f64 {
        self.tally.on_color as f64 / (self.tally.on_color + self.tally.off_color).max(1) as f64
    }
}
