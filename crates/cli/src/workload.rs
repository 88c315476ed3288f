//! `isochrome workload`: a task that misses with a set ratio, here or on a modeled machine.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use isochrome_host::palette::Target;
use isochrome_host::pool::FramePool;
use isochrome_host::workload::{By, Executed, WorkloadRequest, execute, pages_per_color};
use isochrome_model::geometry::Geometry;
use isochrome_model::machine::Holds;
use isochrome_model::miss_ratio::{Locality, Task, Touches, VISIT_BYTES};
use isochrome_model::report::figure;
use isochrome_model::sim::Simulator;
use isochrome_model::trace::Access;
use isochrome_model::units::Bytes;
use serde::Serialize;

use crate::args::{LocalityKind, TouchKind, WorkloadOptions};
use crate::simulate::named_machine;
use crate::station::Station;
use crate::{Verdict, files};

/// How near to what was asked for a search gets, as a share.
const NEAR: f64 = 0.02;
/// Sizes that a search tries at most.
const TRIES: usize = 14;
/// Fewest quiet turns that say anything.
const QUIET_MIN: u64 = 10;

/// What came out.
#[derive(Serialize)]
struct Outcome {
    level: u8,
    locality: Locality,
    /// Misses per access that were asked for.
    asked: f64,
    task: Task,
    bytes: u64,
    /// By LRU exactly, and by the document's straight line.
    predicted_lru: f64,
    predicted_straight: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    modeled: Option<Modeled>,
    #[serde(skip_serializing_if = "Option::is_none")]
    executed: Option<Executed>,
    /// Sizes tried by a search.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    search: Vec<Tried>,
}

#[derive(Serialize)]
struct Modeled {
    machine: String,
    policy: String,
    miss_ratio: f64,
}

#[derive(Clone, Copy, Serialize)]
struct Tried {
    lines: u64,
    miss_ratio: f64,
}

pub fn run(options: &WorkloadOptions) -> Result<Verdict> {
    let touches = match options.kind {
        TouchKind::Data => Touches::Data,
        TouchKind::Code => Touches::Code,
    };
    let locality = match options.locality {
        LocalityKind::Spatial => Locality::Spatial,
        LocalityKind::Temporal => Locality::Temporal,
        LocalityKind::Combined => Locality::Combined,
    };
    ensure!(
        !(options.search && locality == Locality::Spatial),
        "every line of a task with spatial locality misses, whatever its size\n  hint: --search with --locality temporal or combined"
    );
    let (outcome, verdict) = match &options.machine {
        Some(name) => modeled(options, name, touches, locality)?,
        None => executed(options, touches, locality)?,
    };
    if let Some(path) = &options.svg {
        let per_line = outcome.task.accesses_per_pass() as f64 / outcome.task.lines as f64;
        let last = outcome.executed.map(|e| e.miss_ratio).or(outcome.modeled.as_ref().map(|m| m.miss_ratio));
        let mut measured: Vec<(u64, f64)> =
            outcome.search.iter().map(|tried| (tried.lines, tried.miss_ratio * per_line)).collect();
        if outcome.search.is_empty() {
            measured.extend(last.map(|ratio| (outcome.task.lines, ratio * per_line)));
        }
        measured.sort_by_key(|(lines, _)| *lines);
        let title = format!("Misses of a loop in level {}", outcome.level);
        files::write(path, &figure::loop_misses(&title, outcome.task.geometry, &measured))?;
    }
    if let Some(path) = &options.result.output {
        files::write_json(path, &outcome)?;
    }
    if options.result.json {
        files::print_json(&outcome)?
    } else {
        files::print(&text(&outcome))?
    }
    Ok(verdict)
}

fn outcome(task: Task, level: u8, locality: Locality, asked: f64) -> Outcome {
    Outcome {
        level,
        locality,
        asked,
        task,
        bytes: task.lines * task.geometry.line_bytes.0,
        predicted_lru: task.predicted(),
        predicted_straight: task.predicted_straight(),
        modeled: None,
        executed: None,
        search: Vec::new(),
    }
}

/// Whether a level can hold what is touched.
pub fn can_hold(holds: Holds, touches: Touches) -> bool {
    match touches {
        Touches::Data => holds != Holds::Instruction,
        Touches::Code => holds != Holds::Data,
    }
}

fn modeled(options: &WorkloadOptions, name: &str, touches: Touches, locality: Locality) -> Result<(Outcome, Verdict)> {
    let mut machine = named_machine(name)?;
    for level in &mut machine.levels {
        level.cache.policy = options.policy.unwrap_or(level.cache.policy);
    }
    let number = options.place.level.unwrap_or(2);
    let holding = || machine.levels.iter().filter(|level| can_hold(level.holds, touches));
    let index = usize::from(number).checked_sub(1).context("levels are counted from 1\n  hint: --level 2")?;
    let level = holding().nth(index).with_context(|| {
        format!("{name} has no level {number}\n  hint: it has {}; --level chooses one", holding().count())
    })?;
    let task = Task::of_ratio(touches, level.cache.geometry, options.miss_ratio, locality)?;
    let mut simulator = Simulator::machine(&machine)?;
    let pass: Vec<Access> = task.accesses(1).collect();
    let mut misses = || {
        simulator.run(&pass);
        let (levels, _) = simulator.counts();
        levels.iter().find(|counts| counts.name == level.cache.name).map_or(0, |counts| counts.counts.read_misses)
    };
    // From the third pass on every one is like the one before under LRU; other policies take some more.
    let warm = (0..4).map(|_| misses()).last().unwrap_or(0);
    const PASSES: u64 = 4;
    let end = (0..PASSES).map(|_| misses()).last().unwrap_or(0);
    let miss_ratio = (end - warm) as f64 / (PASSES * pass.len() as u64) as f64;
    let mut outcome = outcome(task, number, locality, options.miss_ratio);
    outcome.modeled = Some(Modeled { machine: name.to_owned(), policy: level.cache.policy.to_string(), miss_ratio });
    Ok((outcome, Verdict::Holds))
}

/// Where the task is executed.
struct Place {
    station: Station,
    target: Target,
    pool: Option<FramePool>,
}

/// The level, and memory of its colors where it has any.
fn place(options: &WorkloadOptions, touches: Touches, lines_max: impl Fn(Geometry) -> Result<Task>) -> Result<Place> {
    let station = Station::new(&options.place)?;
    let number = match options.place.level {
        Some(number) => number,
        None => Target::to_flood(&station.machine, station.cpu).map_or(2, |target| target.level),
    };
    let holds = |level: &&isochrome_model::machine::CacheLevel| {
        level.level == number && can_hold(level.holds, touches) && level.serves(station.cpu)
    };
    let level = station.machine.levels.iter().find(holds);
    let level =
        level.with_context(|| format!("CPU {} has no level {number} for this\n  hint: --level 2", station.cpu.0))?;
    let geometry = level.geometry.value;
    ensure!(
        touches == Touches::Data || geometry.line_bytes.0 >= VISIT_BYTES as u64,
        "lines of {} are too short for code\n  hint: --kind data",
        geometry.line_bytes
    );
    let inner =
        station.machine.data_level(number.saturating_sub(1)).map_or(Bytes(0), |l| l.geometry.value.cache_bytes());
    let mut target = Target { level: number, geometry, inner };
    let colors = geometry.color_count(station.machine.page_bytes) as usize;
    if colors == 1 {
        return Ok(Place { station, target, pool: None });
    }
    let wanted = pages_per_color(&lines_max(geometry)?, colors);
    let collected = station.target(&options.place).and_then(|colored| {
        ensure!(colored.level == number, "level {number} is not colored here\n  hint: --level {}", colored.level);
        target = colored;
        station.collect_pages(&options.place, colored, wanted)
    });
    let pool = match collected {
        Ok((_, pool)) => Some(pool),
        Err(error) => {
            eprintln!(
                "no colors: {error:#}\nmemory is wherever the kernel has it: some sets get more lines than others"
            );
            None
        }
    };
    Ok(Place { station, target, pool })
}

fn executed(options: &WorkloadOptions, touches: Touches, locality: Locality) -> Result<(Outcome, Verdict)> {
    let asked = options.miss_ratio;
    // The largest that is tried: twice the cache.
    let largest = |geometry: Geometry| {
        let task = Task::of_ratio(touches, geometry, asked, locality)?;
        Ok(Task { lines: task.lines.max(2 * geometry.set_count * u64::from(geometry.ways)), ..task })
    };
    let place = place(options, touches, largest)?;
    let (station, target) = (&place.station, place.target);
    // Counters are of misses of data.
    let counters = if touches == Touches::Data && target.level == 2 { station.counters() } else { None };
    let _settings = station.settle();
    let mut turns_seed = station.seed;
    let mut measure = |task: &Task| -> Result<Executed> {
        turns_seed = turns_seed.wrapping_add(1);
        let request = WorkloadRequest { turns: options.turns as usize, seed: turns_seed };
        let executed = execute(place.pool.as_ref(), target, task, counters.as_ref(), &request)?;
        executed.context("interrupted before anything was measured\n  hint: run it again")
    };
    let task = Task::of_ratio(touches, target.geometry, asked, locality)?;
    let mut found = outcome(task, target.level, locality, asked);
    let mut first = measure(&task)?;
    if options.search {
        // More lines miss more: halving, from half to twice the cache.
        let capacity = target.geometry.set_count * u64::from(target.geometry.ways);
        let (mut low, mut high) = (capacity / 2, 2 * capacity);
        let mut lines = task.lines;
        for _ in 0..TRIES {
            found.search.push(Tried { lines, miss_ratio: first.miss_ratio });
            if (first.miss_ratio - asked).abs() <= NEAR || isochrome_host::interrupt::interrupted() {
                break;
            }
            if first.miss_ratio < asked {
                low = lines
            } else {
                high = lines
            }
            let middle = low.midpoint(high);
            if middle == low || middle == high {
                break;
            }
            lines = middle;
            first = measure(&Task { lines, ..task })?;
        }
        let tuned = lines;
        let search = std::mem::take(&mut found.search);
        found = Outcome { search, ..outcome(Task { lines: tuned, ..task }, target.level, locality, asked) };
    }
    found.executed = Some(first);
    let verdict = if first.turns_quiet < QUIET_MIN {
        Verdict::Inconclusive
    } else if options.search && (first.miss_ratio - asked).abs() > NEAR {
        Verdict::Violated
    } else {
        Verdict::Holds
    };
    Ok((found, verdict))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn text(outcome: &Outcome) -> String {
    let geometry = outcome.task.geometry;
    let touches = match outcome.task.touches {
        Touches::Data => "words of memory",
        Touches::Code => "instructions",
    };
    let mut text = format!(
        "a loop over {} lines ({}) of level {} ({}, {} ways), {:.2} {touches} of each: {} asked for\n",
        outcome.task.lines,
        Bytes(outcome.bytes),
        outcome.level,
        geometry.cache_bytes(),
        geometry.ways,
        outcome.task.words,
        percent(outcome.asked)
    );
    let _ = writeln!(
        text,
        "predicted: {} by LRU exactly, {} by the document's straight line [Sebek2002, Figure 5]",
        percent(outcome.predicted_lru),
        percent(outcome.predicted_straight)
    );
    if let Some(modeled) = &outcome.modeled {
        let _ = writeln!(text, "on {} ({}): {}", modeled.machine, modeled.policy, percent(modeled.miss_ratio));
    }
    for (i, tried) in outcome.search.iter().enumerate() {
        let _ = writeln!(text, "search {:2}: {:>7} lines {:>8}", i + 1, tried.lines, percent(tried.miss_ratio));
    }
    let Some(executed) = outcome.executed else { return text };
    let by = match executed.by {
        By::Counters => "by counters",
        By::Time => "by time (no counters of these misses here)",
    };
    let _ = writeln!(
        text,
        "measured: {} {by}; {:.2} ns per access, {:.2} where all lines fit, {:.2} where none does; {} of {} turns quiet",
        percent(executed.miss_ratio),
        executed.access_ns,
        executed.hit_ns,
        executed.miss_ns,
        executed.turns_quiet,
        executed.turns
    );
    let apart = executed.miss_ratio - outcome.predicted_lru;
    if apart.abs() > NEAR {
        let why = if !executed.colored && geometry.color_count(Bytes(4096)) > 1 {
            "without colors some sets have more lines of the loop than others"
        } else if apart < 0.0 {
            "this cache does not replace by exact LRU: of a set with one line too many it keeps some, or misses overlap"
        } else {
            "others use the cache too (stack, kernel, whoever shares the core), or replacement evicts before a set is full"
        };
        let _ = writeln!(text, "{:+.1} points from LRU: {why}", 100.0 * apart);
    }
    text
}
