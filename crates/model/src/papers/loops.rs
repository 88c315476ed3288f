//! [Sebek2002] on modeled caches: miss ratios of loops, preemption delays, and the refills of a context switch.
//!
//! All tasks are loops of straight code that touch each of their lines once per iteration. [Sebek2002, §3.3]

use serde::Deserialize;

use super::{Played, Wrong, machine};
use crate::evidence::figure::{Axis, Chart, Dash, Hue, Line, Track, TrackBar, Tracks};
use crate::evidence::format;
use crate::geometry::Geometry;
use crate::machine::Holds;
use crate::sim::{Access, Hierarchy, Kind, Level, MachineModel, Policy, Semantics};
use crate::units::Bytes;
use crate::workload::Workload;

const STYLES: [(Hue, Dash); 5] = [
    (Hue::Unpartitioned, Dash::Solid),
    (Hue::Partitioned, Dash::Dashed),
    (Hue::SingleWriter, Dash::Dotted),
    (Hue::ByWays, Dash::Solid),
    (Hue::Ink, Dash::Dashed),
];

/// Distance between the addresses of the preempting task and those of the preempted one.
const APART: u64 = 1 << 30;

/// Loops around the size of a cache, for several associativities.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loops {
    /// Size of the cache.
    cache: String,
    /// Bytes per line.
    line: u64,
    /// The associativities.
    ways: Vec<u32>,
    /// Sizes of the loop, in percent of the cache.
    percents: Vec<u64>,
    /// Further size, in bytes, whose miss ratio is stated.
    #[serde(default)]
    example: Option<u64>,
}

/// Touches every line of a loop over `area` bytes once, and returns the cycles that this took.
fn pass(caches: &mut Hierarchy, area: u64, line: u64) -> u64 {
    let before = caches.clock();
    let accesses = Workload::Code { area: Bytes(area), line: Bytes(line), passes: 1 }.accesses();
    accesses.for_each(|access| caches.access(access));
    caches.clock() - before
}

/// Lets another task, whose loop has `area` bytes, displace lines.
fn preempt(caches: &mut Hierarchy, area: u64, line: u64) -> u64 {
    let before = caches.clock();
    (0..area / line).for_each(|i| caches.access(Access { kind: Kind::Fetch, ..Access::read(APART + i * line) }));
    caches.clock() - before
}

impl Loops {
    fn size(&self) -> Result<u64, Wrong> {
        Ok(self.cache.parse::<Bytes>()?.0)
    }

    fn caches(&self, ways: u32) -> Result<Hierarchy, Wrong> {
        let geometry = Geometry::of_size(Bytes(self.size()?), ways, Bytes(self.line));
        let geometry = geometry.ok_or_else(|| format!("{ways} ways do not divide {}", self.cache))?;
        Ok(Hierarchy::chain(vec![Level::lru("L1", geometry)], Semantics::default())?)
    }

    /// Returns the misses of one pass of a loop over `area` bytes that has run before.
    fn steady_misses(&self, ways: u32, area: u64) -> Result<u64, Wrong> {
        let mut caches = self.caches(ways)?;
        (0..2).for_each(|_| _ = pass(&mut caches, area, self.line));
        caches.reset_counts();
        pass(&mut caches, area, self.line);
        Ok(caches.memory().reads)
    }

    /// Plays [Sebek2002, Figure 5]: the steady miss ratio against the size, beside the formula of the paper.
    pub(super) fn miss_ratios(&self) -> Result<Played, Wrong> {
        let size = self.size()?;
        let (mut lines, mut played) = (Vec::new(), Played::default());
        for (ways, (hue, dash)) in self.ways.iter().copied().zip(STYLES.into_iter().cycle()) {
            let ratio =
                |area: u64| Ok::<_, Wrong>(100.0 * self.steady_misses(ways, area)? as f64 / (area / self.line) as f64);
            let area = |percent: u64| size * percent / 100 / self.line * self.line;
            let formula =
                |area: u64| 100.0 * ((area as f64 - size as f64) / size as f64 * f64::from(ways)).clamp(0.0, 1.0);
            let points = self.percents.iter().map(|&percent| Ok::<_, Wrong>((percent as f64, ratio(area(percent))?)));
            lines.push(Line::new(&format!("{ways} ways"), hue, dash, points.collect::<Result<_, _>>()?));
            let straight = self.percents.iter().map(|&percent| (percent as f64, formula(area(percent)))).collect();
            lines.push(Line::new(&format!("{ways}, formula"), hue, Dash::Thin, straight));
            if let Some(example) = self.example {
                played.number(format!("{ways} ways, example, %"), ratio(example)?);
                played.number(format!("{ways} ways, example by the formula, %"), formula(example));
            }
        }
        played
            .chart("", self.chart("Miss ratio of a loop", "Thin: the paper's formula; else LRU.", "misses, %", lines));
        Ok(played)
    }

    fn chart(&self, title: &str, description: &str, y: &str, lines: Vec<Line>) -> Chart {
        let x = format!("size of the loop, % of {}", self.cache);
        let chart = Chart::linear(title, description, [&x, y], lines);
        let ends = [self.percents.first(), self.percents.last()].map(|percent| percent.map_or(0.0, |it| *it as f64));
        Chart { x: Axis::linear(&x, (ends[0], ends[1]), format::tick), ..chart }
    }

    /// Plays [Sebek2002, Figure 7]: the share of the cache that a preemption takes from a loop, by size.
    pub(super) fn delays(&self) -> Result<Played, Wrong> {
        let size = self.size()?;
        let mut played = Played::default();
        let mut lines = Vec::new();
        for (ways, (hue, dash)) in self.ways.iter().copied().zip(STYLES.into_iter().cycle()) {
            let lost = |area: u64| {
                let mut caches = self.caches(ways)?;
                let alone = self.steady_misses(ways, area)?;
                (0..2).for_each(|_| _ = pass(&mut caches, area, self.line));
                preempt(&mut caches, size, self.line);
                caches.reset_counts();
                pass(&mut caches, area, self.line);
                Ok::<_, Wrong>(100.0 * caches.memory().reads.saturating_sub(alone) as f64 / (size / self.line) as f64)
            };
            let points = self
                .percents
                .iter()
                .map(|&percent| Ok::<_, Wrong>((percent as f64, lost(size * percent / 100 / self.line * self.line)?)));
            lines.push(Line::new(&format!("{ways} ways"), hue, dash, points.collect::<Result<_, _>>()?));
            let gone = (1..=size / self.line).map(|more| size + more * self.line).find_map(|area| match lost(area) {
                Ok(lost) if lost > 0.0 => None,
                other => Some(other.map(|_| area)),
            });
            if let Some(area) = gone {
                played.number(format!("{ways} ways: no delay from, %"), 100.0 * area? as f64 / size as f64);
            }
        }
        let description =
            "Lines that a preemption by a task as large as the cache takes from a loop, of all lines of the cache.";
        played.chart("", self.chart("Preemption delay in theory", description, "delay, % of a full refill", lines));
        Ok(played)
    }
}

/// A machine whose instruction caches a preempting task floods.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preempted {
    /// Name of the modeled machine.
    machine: String,
    /// Clock rate in MHz.
    mhz: f64,
}

impl Preempted {
    /// Returns the machine without its unified levels unless `second` is set, with this policy in its first level.
    fn model(&self, second: bool, policy: Option<Policy>) -> Result<MachineModel, Wrong> {
        let mut model = machine(&self.machine)?;
        if !second {
            model.levels.retain(|level| level.holds != Holds::Unified);
            (model.timing.read_cycles, model.timing.write_cycles) = (Vec::new(), Vec::new());
        }
        for level in model.levels.iter_mut().filter(|level| level.holds != Holds::Unified) {
            level.cache.policy = policy.unwrap_or(level.cache.policy);
        }
        Ok(model)
    }

    /// Returns size and line size of the first level for instructions.
    fn first_level(&self) -> Result<(u64, u64), Wrong> {
        let model = machine(&self.machine)?;
        let level =
            model.levels.iter().find(|level| level.holds != Holds::Data).ok_or("no level for code".to_owned())?;
        Ok((level.cache.geometry.cache_bytes().0, level.cache.geometry.line_bytes.0))
    }
}

/// The preemption delay against the size of the task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// The machine.
    on: Preempted,
    /// Sizes of the task, in percent of the first level for instructions.
    percents: Vec<u64>,
    /// Cost of the two switches of a preemption beside the delay, in us.
    switches_us: f64,
}

impl Delay {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let (size, line) = self.on.first_level()?;
        let cases = [("tree-PLRU", false, None), ("LRU", false, Some(Policy::Lru)), ("with L2", true, None)];
        let (mut played, mut lines) = (Played::default(), Vec::new());
        for ((name, second, policy), (hue, dash)) in cases.into_iter().zip(STYLES) {
            let model = self.on.model(second, policy)?;
            let delay = |percent: u64| {
                let area = size * percent / 100 / line * line;
                let mut caches = model.hierarchy(1)?;
                let mut passes = |count: u32| (0..count).map(|_| pass(&mut caches, area, line)).last().unwrap_or(0);
                // An iteration takes as long as the one before it from a few on, or every second one does.
                passes(8);
                let alone = passes(1) + passes(1);
                preempt(&mut caches, size, line);
                let after = pass(&mut caches, area, line) + pass(&mut caches, area, line);
                Ok::<_, Wrong>((percent as f64, after.saturating_sub(alone) as f64 / self.on.mhz))
            };
            let points = self.percents.iter().map(|&percent| delay(percent)).collect::<Result<Vec<_>, _>>()?;
            let largest = points.iter().map(|point| point.1).fold(0.0, f64::max);
            let gone = points.iter().find(|point| point.0 > 100.0 && point.1 <= 0.0);
            played.number(format!("{name}: largest, us"), largest);
            played
                .number(format!("{name}: share of the preemption, %"), 100.0 * largest / (largest + self.switches_us));
            gone.into_iter().for_each(|(percent, _)| played.number(format!("{name}: no delay from, %"), *percent));
            lines.push(Line::new(name, hue, dash, points));
        }
        let description =
            "Longer iterations after a preemption by a task as large as the first level, on the modeled machine.";
        let labels = ["size of the preempted task, % of the first level", "preemption delay, us"];
        played.chart("", Chart::linear("Preemption delay of code", description, labels, lines));
        Ok(played)
    }
}

/// The iterations of a task, one of which is preempted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// The machine.
    on: Preempted,
    /// Size of the preempted task, in percent of the first level for instructions.
    percent: u64,
}

impl Timeline {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let ((size, line), model) = (self.on.first_level()?, self.on.model(false, None)?);
        let area = size * self.percent / 100 / line * line;
        let mut caches = model.hierarchy(1)?;
        (0..4).for_each(|_| _ = pass(&mut caches, area, line));
        let us = |cycles: u64| cycles as f64 / self.on.mhz;
        let begin = caches.clock();
        // a to b undisturbed; then preempted from c to d; it goes on until e, and once more until f.
        pass(&mut caches, area, line);
        let b = caches.clock();
        pass(&mut caches, area, line);
        let c = caches.clock();
        preempt(&mut caches, size, line);
        let d = caches.clock();
        pass(&mut caches, area, line);
        let e = caches.clock();
        pass(&mut caches, area, line);
        let f = caches.clock();
        let at = |cycles: u64| us(cycles - begin);
        let bar = |from, to| TrackBar { range: [at(from), at(to)], pale: 1.0, solid: 0.6 };
        let tracks = [
            ("T2", "preempts", Hue::Unpartitioned, vec![bar(c, d)]),
            ("T1", "iterations", Hue::Partitioned, vec![bar(begin, b), bar(b, c), bar(d, e), bar(e, f)]),
        ];
        let track = |(name, note, hue, bars): (&str, &str, Hue, Vec<TrackBar>)| Track {
            name: name.to_owned(),
            note: note.to_owned(),
            hue,
            bars,
        };
        let mut played = Played::default();
        played.figure(Tracks {
            title: "A preemption and what follows it".to_owned(),
            description: "T1 is preempted between two iterations; the next one refills what T2 displaced.".to_owned(),
            label: "us".to_owned(),
            span: at(f),
            tracks: tracks.map(track).to_vec(),
        });
        played.number("b - a, us: an iteration alone", us(b - begin));
        played.number("d - c, us: the preempting task", us(d - c));
        played.number("e - d, us: the iteration after it", us(e - d));
        played.number("f - e, us: the next one", us(f - e));
        played.number("CRPD, us", us((e - d) + (f - e)) - 2.0 * us(b - begin));
        Ok(played)
    }
}

/// The refills of a context switch, computed from the misses that were counted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Time to refill a line, in cycles.
    line_cycles: f64,
    /// Clock rate in MHz.
    mhz: f64,
    /// Misses of the two switches of a preemption, counted by the paper.
    misses: [f64; 2],
    /// Times of the two switches in the best case, in us, of the paper.
    best_us: [f64; 2],
}

impl Switch {
    pub(super) fn play(&self) -> Played {
        let us = |misses: f64| misses * self.line_cycles / self.mhz;
        let mut played = Played::default();
        let [interrupt, resume] = [0, 1].map(|i| self.best_us[i] + us(self.misses[i]));
        played.number("worst case, interrupt, us", interrupt);
        played.number("worst case, resume, us", resume);
        let refill: f64 = self.misses.iter().copied().map(us).sum();
        // The preempted task loses as many lines as the two switches load.
        played.number("delay of the preempted task, us", refill);
        played.number("worst case, both, us", interrupt + resume);
        played.number("worst case, with delay, us", interrupt + resume + refill);
        let bars =
            [("interrupt", 0, interrupt), ("resume", 1, resume)].map(|(name, i, total)| crate::evidence::figure::Bar {
                name: name.to_owned(),
                parts: [self.best_us[i], total - self.best_us[i]],
                hue: Hue::Unpartitioned,
                text: format!("{} us", format::significant(total)),
            });
        let title = "Switches in the best case, and with all lines missing".to_owned();
        played.figure(crate::evidence::figure::Bars { title, bars: bars.to_vec() });
        played
    }
}
