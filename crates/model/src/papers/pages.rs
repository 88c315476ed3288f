//! [Hanemaaijer1993] on a modeled cache: the frames of a buffer, how many of its pages share a cache page, and what that costs.

use serde::Deserialize;

use super::{Played, Wrong, machine};
use crate::evidence::figure::{Axis, Bar, Bars, Chart, Dash, Hue, Line, Mark};
use crate::evidence::format;
use crate::geometry::Geometry;
use crate::placement::{Contiguity, Placement, ResidentPage};
use crate::sim::{Access, Allocation, ConfigError, Hierarchy, Level, PageTable, Semantics};
use crate::stats;
use crate::units::{Bytes, Color, FrameNumber};

/// The document's cache: 256 KiB, direct-mapped, 16-byte lines.
const CACHE: Geometry = Geometry { set_count: 16384, ways: 1, line_bytes: Bytes(16) };
const PAGE: Bytes = Bytes(4096);
const CACHE_PAGES: u64 = 64;
const PASSES: f64 = 100.0;

/// Returns the placement of a buffer with these frames.
fn placement(frames: &[u64]) -> Placement {
    Placement::of_colors(frames.iter().map(|frame| Color((frame % CACHE_PAGES) as u16)), CACHE_PAGES as u32)
}

/// Returns the misses of one pass over the warm buffer with these frames, which touches every line in order.
fn misses(caches: &mut Hierarchy, frames: &[u64]) -> u64 {
    for _ in 0..2 {
        caches.reset_counts();
        for line in frames.iter().flat_map(|frame| (0..PAGE.0).step_by(16).map(move |line| frame * PAGE.0 + line)) {
            caches.access(Access::read(line));
        }
    }
    caches.memory().reads
}

/// Returns the conflict sum of a buffer, and the misses of one pass over the warm buffer. `histogram` is p(1), p(2), p(3)...:
/// p(n) cache pages hold n pages of the buffer each.
///
/// Fails only if the modeled cache is invalid.
pub fn misses_per_pass(histogram: &[u64]) -> Result<(u64, u64), ConfigError> {
    let mut frames = Vec::new();
    let mut page = 0;
    for (count, pages) in (1..).zip(histogram) {
        for _ in 0..*pages {
            frames.extend((0..count).map(|row| row * CACHE_PAGES + page));
            page += 1;
        }
    }
    let mut caches = Hierarchy::chain(vec![Level::lru("L2", CACHE)], Semantics::default())?;
    Ok((placement(&frames).sum(1), misses(&mut caches, &frames)))
}

/// A buffer in random frames.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Pages of the buffer.
    pages: u64,
    /// Frames of the machine.
    frames: u64,
    /// Seed of the choice of frames.
    seed: u64,
}

impl Buffer {
    fn drawn(&self, seed: u64) -> Vec<u64> {
        let mut table = PageTable::new(PAGE, Allocation::Random { frames: self.frames, seed });
        (0..self.pages).map(|page| table.frame(page).0).collect()
    }

    pub(super) fn play(&self) -> Played {
        let frames = self.drawn(self.seed);
        let placement = placement(&frames);
        let at = |frame: &u64| ((frame % CACHE_PAGES) as f64, (frame / CACHE_PAGES) as f64);
        let competes = |frame: &&u64| placement.per_color[(*frame % CACHE_PAGES) as usize] > 1;
        let marks = |competing: bool, hue| {
            let points = frames.iter().filter(|frame| competes(frame) == competing).map(at);
            let marks = points.map(|at| Mark { at, hollow: !competing }).collect();
            Line { marks, ..Line::new("", hue, Dash::Thin, Vec::new()) }
        };
        let rows = self.frames.div_ceil(CACHE_PAGES);
        let mut played = Played::default();
        played.figure(Chart {
            title: "Map of physical memory".to_owned(),
            description: "Each mark is a page of the buffer. Pages above each other share a cache page; those that do are filled.".to_owned(),
            x: Axis::linear("cache page, frame modulo 64", (0.0, (CACHE_PAGES - 1) as f64), format::tick),
            y: Axis::linear("256 KiB of memory, each a row", (0.0, rows as f64), format::tick),
            lines: vec![marks(true, Hue::Unpartitioned), marks(false, Hue::Partitioned)],
            rules: Vec::new(),
        });
        let resident =
            |(page, frame): (u64, &u64)| ResidentPage { page, frame: Some(FrameNumber(*frame)), anonymous: true };
        let pages: Vec<ResidentPage> = (0..).zip(&frames).map(resident).collect();
        played.number("sum", placement.sum(1) as f64);
        played.number("contiguity, %", 100.0 * Contiguity::of(&pages).share().unwrap_or(0.0));
        for (count, cache_pages) in placement.counts() {
            played.number(format!("p({count})"), cache_pages as f64);
        }
        played
    }
}

/// Many buffers in random frames.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffers {
    /// A buffer; the seeds count up from its seed.
    buffer: Buffer,
    /// Number of buffers.
    count: u64,
    /// The mean p(1), p(2), p(3)... of the document.
    printed: Vec<f64>,
}

impl Buffers {
    pub(super) fn play(&self) -> Played {
        let all: Vec<Placement> =
            (0..self.count).map(|more| placement(&self.buffer.drawn(self.buffer.seed + more))).collect();
        let mean = |of: &dyn Fn(&Placement) -> u64| all.iter().map(of).sum::<u64>() as f64 / self.count as f64;
        let mut played = Played::default();
        let mut bars = Vec::new();
        for pages in 1..=5u64 {
            let here = mean(&|placement| placement.counts().get(&pages).copied().unwrap_or(0));
            let printed = self.printed.get(pages as usize - 1).copied();
            let bar =
                |name, length: f64, hue| Bar { name, parts: [0.0, length], hue, text: format::significant(length) };
            bars.push(bar(format!("p({pages}) here"), here, Hue::Partitioned));
            bars.extend(printed.map(|printed| bar(format!("p({pages}) paper"), printed, Hue::Ink)));
            played.number(format!("p({pages})"), here);
        }
        played.figure(Bars { title: "Cache pages that hold n pages of the buffer".to_owned(), bars });
        played.number("sum", mean(&|placement| placement.sum(1)));
        played.number("least sum", all.iter().map(|placement| placement.sum(1)).min().unwrap_or(0) as f64);
        played.number("largest sum", all.iter().map(|placement| placement.sum(1)).max().unwrap_or(0) as f64);
        played
    }
}

/// The time to walk over buffers against their conflicts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Penalty {
    /// The measurements of the document.
    tables: Vec<Table>,
    /// A modeled machine, on which random buffers are walked over.
    machine: String,
    /// Clock rate of the modeled machine in MHz.
    mhz: f64,
}

/// Measurements of one machine in the document.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Name of the table.
    name: String,
    /// Seconds without conflicts.
    base_s: f64,
    /// The penalty that the document derives, in ns per line.
    penalty_ns: f64,
    /// Rows: p(1), p(2), p(3)..., and the seconds of 100 passes.
    rows: Vec<(Vec<u64>, f64)>,
}

impl Penalty {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let mut played = Played::default();
        let mut lines = Vec::new();
        for (table, (hue, dash)) in self.tables.iter().zip(STYLES.into_iter().cycle()) {
            let (measured, simulated) = table.points()?;
            let marks = measured.iter().map(|&at| Mark { at, hollow: false }).collect();
            lines.push(Line { marks, ..Line::new(&table.name, hue, dash, simulated.clone()) });
            if let Some(fit) = stats::Line::through(&measured) {
                let name = |what| format!("{}: {what}", table.name);
                played.number(name("least squares, ns per line"), fit.slope / PASSES / 256.0 * 1e9);
                played.number(name("of 95 %, +- ns"), fit.slope_error / PASSES / 256.0 * 1e9);
            }
            let off = measured.iter().zip(&simulated).map(|(seen, played)| (played.1 / seen.1 - 1.0).abs());
            played.number(format!("{}: largest difference of a row, %", table.name), 100.0 * off.fold(0.0, f64::max));
        }
        let description = "Marks: measured in 1993; lines: the modeled cache's misses times the penalty, from the time without conflicts.";
        let labels = ["sum, pages that share a cache page", "seconds of 100 passes"];
        played.chart("", Chart::linear("Run time against conflicts", description, labels, lines));
        self.on_the_machine(&mut played)?;
        Ok(played)
    }

    /// Walks over random buffers on the modeled machine, both levels, and adds the penalty that follows.
    fn on_the_machine(&self, played: &mut Played) -> Result<(), Wrong> {
        let model = machine(&self.machine)?;
        let walk = |seed| {
            let frames = Buffer { pages: CACHE_PAGES, frames: 1280, seed }.drawn(seed);
            let mut caches = model.hierarchy(1)?;
            misses(&mut caches, &frames);
            Ok::<_, Wrong>((placement(&frames).sum(1) as f64, caches.cycles() as f64))
        };
        let points = (0..12).map(walk).collect::<Result<Vec<_>, _>>()?;
        if let Some(fit) = stats::Line::through(&points) {
            played.number(format!("{}: cycles per line", self.machine), fit.slope / 256.0);
            played.number(format!("{}: ns per line", self.machine), fit.slope / 256.0 / self.mhz * 1e3);
        }
        Ok(())
    }
}

const STYLES: [(Hue, Dash); 3] =
    [(Hue::Unpartitioned, Dash::Solid), (Hue::Partitioned, Dash::Dashed), (Hue::SingleWriter, Dash::Dotted)];

/// Points (sum, seconds).
type Points = Vec<(f64, f64)>;

impl Table {
    /// Returns the measured and the simulated points.
    fn points(&self) -> Result<(Points, Points), Wrong> {
        let mut both = (Points::new(), Points::new());
        for (histogram, seconds) in &self.rows {
            let (sum, misses) = misses_per_pass(histogram)?;
            both.0.push((sum as f64, *seconds));
            both.1.push((sum as f64, self.base_s + PASSES * misses as f64 * self.penalty_ns / 1e9));
        }
        Ok(both)
    }
}
