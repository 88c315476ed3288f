//! What became of a program's pages: the one report of `exec` and `recolor`.

use std::collections::BTreeMap;
use std::fmt::Write;

use isochrome_host::palette::known::Verified;
use isochrome_host::palette::reference::Numbers;
use isochrome_host::recolor::Report;
use isochrome_host::recolor::watch::Tally;
use isochrome_model::units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of the report.
pub const SCHEMA: &str = "isochrome-recolor/2";

/// Rough cost of a page of memory that is touched and whose color is measured, and of one that is moved, in nanoseconds: for
/// estimates before anything is touched; a dry run says "about".
const TOUCHED_NS: u64 = 15_000;
const MOVED_NS: u64 = 2_500;

/// When a report is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Nothing was touched: what would be done.
    DryRun,
    /// The program is on its colors for the first time, or a recoloring has ended.
    OnColors,
    /// The program has ended.
    End,
}

/// The pages of a program, all its processes together.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Placed {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// When.
    pub event: Event,
    /// The process.
    pub pid: i32,
    /// Whether pages were moved, or all were on color before.
    pub moved: bool,
    /// Resident pages.
    pub resident: usize,
    /// Those of the colors allowed, as far as is known.
    pub on_color: usize,
    /// Those of other colors that can be moved.
    pub off_color: usize,
    /// Those that cannot be moved, by reason.
    pub immovable: BTreeMap<String, usize>,
    /// What eviction tests say of a sample of the pages on color; nothing where none are made.
    pub verified: Option<Verified>,
    /// Most memory that was touched at a time to find frames.
    pub touched_bytes_max: u64,
    /// Longest time for which a thread of it stood still.
    pub pause_ns_max: u64,
    /// Every such time.
    pub pauses_ns: Vec<u64>,
    /// Time from its start to the first report, for a program that was started.
    pub seconds_to_colors: Option<f64>,
    /// Rounds in which pages were moved.
    pub sweeps: u64,
    /// Pages that were on color and that the kernel has put elsewhere since.
    pub drifted: u64,
    /// What a dry run expects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// Where the numbers of the colors come from.
    pub numbers: Option<Numbers>,
    /// What may move pages to other colors here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub movers: Vec<String>,
    /// What went wrong, each once.
    pub errors: Vec<String>,
}

/// What a recoloring would take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Expected {
    /// Pages to move.
    pub pages: usize,
    /// Memory touched to find frames for them.
    pub touched_bytes: u64,
    /// Time.
    pub seconds: f64,
    /// Pauses, each of at most the time allowed.
    pub pauses: u64,
}

impl Expected {
    /// Of moving `pages` pages of `page` bytes to `allowed` of `colors` colors, in pauses of `pause_ns`.
    pub fn of(pages: usize, page: Bytes, allowed: usize, colors: usize, pause_ns: u64) -> Expected {
        let drawn = pages as u64 * colors as u64 / allowed.max(1) as u64;
        let moving = pages as u64 * MOVED_NS;
        Expected {
            pages,
            touched_bytes: drawn * page.0,
            seconds: (drawn * TOUCHED_NS + 2 * moving) as f64 / 1e9,
            pauses: moving.div_ceil(pause_ns.max(1)),
        }
    }
}

impl Placed {
    /// Of process `pid`, by what was done so far.
    pub fn of(event: Event, pid: i32, tally: &Tally) -> Placed {
        Placed {
            schema: SCHEMA,
            event,
            pid,
            moved: tally.sweeps > 0 || tally.off_color == 0 && tally.resident > 0,
            resident: tally.resident,
            on_color: tally.on_color,
            off_color: tally.off_color,
            immovable: tally.immovable.clone(),
            verified: None,
            touched_bytes_max: tally.touched_max.0,
            pause_ns_max: tally.pause_ns_max,
            pauses_ns: tally.pauses_ns.clone(),
            seconds_to_colors: None,
            sweeps: tally.sweeps,
            drifted: tally.drifted,
            expected: None,
            numbers: None,
            movers: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Share of the movable pages that are on color, 0 to 1.
    pub fn share(&self) -> f64 {
        self.on_color as f64 / (self.on_color + self.off_color).max(1) as f64
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let movable = self.on_color + self.off_color;
        if self.event == Event::End && self.sweeps == 0 && movable == 0 && self.errors.is_empty() {
            return "ended before it was on its colors".to_owned();
        }
        let mut line = match self.event {
            Event::DryRun => String::new(),
            _ if !self.moved => "NOT on its colors: ".to_owned(),
            Event::OnColors => "on its colors: ".to_owned(),
            Event::End => "ended: ".to_owned(),
        };
        let _ = write!(line, "{} of {movable} movable pages ({:.1} %)", self.on_color, 100.0 * self.share());
        let immovable: usize = self.immovable.values().sum();
        if immovable > 0 {
            let reasons: Vec<String> = self.immovable.iter().map(|(why, pages)| format!("{pages} {why}")).collect();
            let _ = write!(line, ", {immovable} cannot be moved ({})", reasons.join(", "));
        }
        if let Some(Verified { pages, right, .. }) = self.verified {
            let _ = write!(line, "; verified by eviction tests: {right} of {pages}");
        }
        if let Some(seconds) = self.seconds_to_colors {
            let _ = write!(line, "; {seconds:.2} s after its start");
        }
        if self.sweeps > 0 {
            let (pause, touched) = (self.pause_ns_max as f64 / 1e6, Bytes(self.touched_bytes_max));
            let plural = if self.sweeps == 1 { "" } else { "s" };
            let _ = write!(line, "; longest pause {pause:.1} ms, {touched} touched, {} sweep{plural}", self.sweeps);
        }
        if self.drifted > 0 {
            let _ = write!(line, ", {} pages had drifted", self.drifted);
        }
        if let Some(expected) = self.expected {
            let _ = write!(
                line,
                "; to move: {} pages, touching about {} of memory, in about {:.1} s and {} pauses",
                expected.pages,
                Bytes(expected.touched_bytes),
                expected.seconds,
                expected.pauses
            );
        }
        line
    }
}

/// Adds what a look at a process shows to a tally.
pub fn add(tally: &mut Tally, report: &Report) {
    tally.resident += report.resident();
    tally.on_color += report.right();
    tally.off_color += report.moved();
    for region in report.regions.iter().filter(|region| region.left > 0) {
        *tally.immovable.entry(region.why.clone().unwrap_or_default()).or_default() += region.left;
    }
}
