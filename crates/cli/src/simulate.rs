//! `isochrome simulate`: the modeled machine.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use isochrome_model::geometry::Geometry;
use isochrome_model::machine::Holds;
use isochrome_model::sim::{
    Access, DESCRIBED_SCHEMA, DescribedMachine, FloodCheck, Kind, Level, LevelCounts, MemoryCounts, Semantics,
    Simulator, StackDistances, misses_by_colors,
};
use isochrome_model::trace::Reader;
use isochrome_model::units::Bytes;
use serde::Serialize;

use crate::args::{ModeledMachine, Program, SimulateOptions, SimulateQuestion};
use crate::{Verdict, files};

/// Accesses of a workload handed over at a time.
const BATCH: usize = 4096;

/// Counts of a run.
#[derive(Serialize)]
struct Outcome {
    levels: Vec<LevelCounts>,
    memory: MemoryCounts,
}

/// Runs the verb.
pub fn run(options: &SimulateOptions) -> Result<Verdict> {
    match &options.question {
        Some(SimulateQuestion::Machines) => machines()?,
        Some(SimulateQuestion::Curve { level, program, json }) => curve(level, program, *json)?,
        Some(SimulateQuestion::Flood { machine, json }) => flood(machine, *json)?,
        None => count(options)?,
    }
    Ok(Verdict::Holds)
}

fn count(options: &SimulateOptions) -> Result<()> {
    let machine = resolve(&options.machine)?;
    let mut simulator = match &machine {
        Resolved::Described(machine) => Simulator::machine(machine)?,
        Resolved::Chain(levels, semantics) => Simulator::chain(levels.clone(), *semantics)?,
    };
    each_batch(&options.program, |batch| simulator.run(batch))?;
    let (levels, memory) = simulator.counts();
    let outcome = Outcome { levels, memory };
    if options.json {
        return files::print_json(&outcome);
    }
    let mut text = format!(
        "{:8} {:>14} {:>14} {:>14} {:>14} {:>14}\n",
        "level", "reads", "writes", "read misses", "write misses", "write-backs"
    );
    for LevelCounts { name, counts } in &outcome.levels {
        let [reads, writes, read_misses] = [counts.reads, counts.writes, counts.read_misses];
        let (write_misses, writebacks) = (counts.write_misses, counts.writebacks);
        writeln!(text, "{name:8} {reads:>14} {writes:>14} {read_misses:>14} {write_misses:>14} {writebacks:>14}")?;
    }
    writeln!(text, "{:8} {:>14} {:>14}", "memory", outcome.memory.reads, outcome.memory.writes)?;
    files::print(&text)
}

enum Resolved {
    Described(Box<DescribedMachine>),
    Chain(Vec<Level>, Semantics),
}

/// The machine asked for, with names for levels that have none.
fn resolve(machine: &ModeledMachine) -> Result<Resolved> {
    if let Some(name) = &machine.machine {
        let mut described = match DescribedMachine::named(name) {
            Some(described) => described,
            None if Path::new(name).exists() => files::read_json(Path::new(name), DESCRIBED_SCHEMA)?,
            None => bail!(
                "{name}: no such machine and no such file\n  hint: {}",
                DescribedMachine::names().collect::<Vec<_>>().join(", ")
            ),
        };
        if machine.pycachesim {
            described.semantics = Semantics::pycachesim();
        }
        for level in &mut described.levels {
            level.cache.policy = machine.policy.unwrap_or(level.cache.policy);
        }
        return Ok(Resolved::Described(Box::new(described)));
    }
    ensure!(
        !machine.levels.is_empty(),
        "no machine\n  hint: --machine zen3, or --level 32K:8:64:lru:wb:wa for each level from the innermost out"
    );
    let named = |(i, level): (usize, &Level)| {
        let policy = machine.policy.unwrap_or(level.policy);
        Level { policy, ..level.clone() }.named(&format!("L{}", i + 1))
    };
    let semantics = if machine.pycachesim { Semantics::pycachesim() } else { Semantics::default() };
    Ok(Resolved::Chain(machine.levels.iter().enumerate().map(named).collect(), semantics))
}

/// Hands all accesses of the program to `each`.
fn each_batch(program: &Program, mut each: impl FnMut(&[Access])) -> Result<()> {
    let mut kept = Vec::new();
    let mut hand_over = |batch: &[Access]| {
        if program.data_only {
            kept.clear();
            kept.extend(batch.iter().filter(|access| access.kind != Kind::Fetch));
            each(&kept);
        } else {
            each(batch);
        }
    };
    match (&program.trace, program.workload) {
        (Some(path), None) => {
            let (input, bytes) = open(path)?;
            let progress = progress(bytes);
            let mut reader = Reader::new(program.format, &path.display().to_string(), progress.wrap_read(input));
            reader.for_each(hand_over)?;
            progress.finish_and_clear();
        }
        (None, Some(workload)) => {
            let mut batch = Vec::with_capacity(BATCH);
            for access in workload.accesses() {
                batch.push(access);
                if batch.len() == BATCH {
                    hand_over(&batch);
                    batch.clear();
                }
            }
            hand_over(&batch);
        }
        _ => bail!("no program\n  hint: --trace FILE [--format din|lackey|u64|iso], or --workload matmul"),
    }
    Ok(())
}

/// The stream of a path, and its length where it has one.
fn open(path: &Path) -> Result<(Box<dyn Read>, u64)> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), 0));
    }
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    Ok((Box::new(file), bytes))
}

/// Bytes below which a trace is read before a bar could be seen.
const LONG_BYTES: u64 = 32 << 20;

/// A bar for long traces; indicatif draws it on terminals only.
fn progress(bytes: u64) -> ProgressBar {
    if bytes < LONG_BYTES {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta}");
    ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn machines() -> Result<()> {
    let mut text = String::new();
    for name in DescribedMachine::names() {
        let machine = DescribedMachine::named(name).expect("named machines exist");
        writeln!(text, "{name:16} {}", machine.name)?;
        for source in &machine.sources {
            writeln!(text, "{:16}   {source}", "")?;
        }
    }
    files::print(&text)
}

/// Misses against a share of one level.
#[derive(Serialize)]
struct Curve {
    accesses: u64,
    misses_by_ways: Vec<u64>,
    misses_by_colors: Vec<u64>,
}

fn curve(level: &str, program: &Program, json: bool) -> Result<()> {
    let level: Level = format!("{level}:lru:wb:wa").parse()?;
    let Geometry { set_count, ways, .. } = level.geometry;
    ensure!(set_count.is_power_of_two(), "{set_count} sets are not a power of two: colors and ways do not separate");
    let mut distances = StackDistances::new(level.geometry)?;
    let mut all = Vec::new();
    each_batch(program, |batch| {
        distances.run(batch);
        all.extend_from_slice(batch);
    })?;
    let by_ways = distances.curve();
    let page = Bytes(4096);
    let by_colors = misses_by_colors(&all, level.geometry, page)?;
    if json {
        return files::print_json(&Curve {
            accesses: by_ways.accesses,
            misses_by_ways: by_ways.misses_by_ways,
            misses_by_colors: by_colors,
        });
    }
    let mut text = format!("{} accesses to lines\nways   misses\n", by_ways.accesses);
    for (n, misses) in by_ways.misses_by_ways.iter().enumerate().take(ways as usize + 1) {
        writeln!(text, "{n:4} {misses:>12}")?;
    }
    writeln!(text, "colors misses")?;
    for (n, misses) in (1..).zip(&by_colors) {
        writeln!(text, "{n:4} {misses:>12}")?;
    }
    files::print(&text)
}

/// What floods achieve.
#[derive(Serialize)]
struct Floods {
    pattern: String,
    lines: u64,
    double_purged: u64,
    memory_reads: u64,
    memory_writes: u64,
    naive_memory_reads: u64,
    naive_memory_writes: u64,
}

/// A representative that no flood writes.
const FAR: u64 = 1 << 20;

/// Lines tried at most: each is tried on caches of its own.
const TRIED_MAX: usize = 2000;

fn flood(machine: &ModeledMachine, json: bool) -> Result<()> {
    let (levels, semantics) = match resolve(machine)? {
        Resolved::Chain(levels, semantics) => (levels, semantics),
        Resolved::Described(machine) => {
            let data = machine.levels.into_iter().filter(|level| level.holds != Holds::Instruction);
            (data.map(|level| level.cache).collect(), machine.semantics)
        }
    };
    let [first, second, ..] = levels.as_slice() else { bail!("a flood of this kind needs two levels") };
    let mut check = FloodCheck::new(first.clone(), second.clone(), semantics)?;
    let (pattern, result, what) = match check.pattern() {
        Ok(pattern) => {
            check.flood(pattern.accesses());
            let victims: Vec<u64> = check.victims(pattern, FAR).collect();
            let step = victims.len().div_ceil(TRIED_MAX);
            (pattern, check.check(victims.into_iter().step_by(step)), "Loeser and Haertig, general".to_owned())
        }
        Err(reason) => {
            let (tried, result) = FloodCheck::search(first, second, semantics).context(reason)?;
            let pattern = isochrome_model::flood::DoublePurge::new(first.geometry, second.geometry)?;
            (pattern, result, format!("searched: {tried:?}"))
        }
    };
    let mut naive = FloodCheck::new(first.clone(), second.clone(), semantics)?;
    let area = Bytes(2 * second.geometry.cache_bytes().0);
    let plain = isochrome_model::flood::Flood {
        area,
        line_bytes: second.geometry.line_bytes,
        passes: 2,
        leaves: isochrome_model::flood::Leaves::Dirty,
    };
    naive.flood(plain.accesses());
    let victims: Vec<u64> = naive.victims(pattern, FAR).collect();
    let step = victims.len().div_ceil(TRIED_MAX);
    let naive = naive.check(victims.into_iter().step_by(step));
    let floods = Floods {
        pattern: what,
        lines: result.lines,
        double_purged: result.double_purged,
        memory_reads: result.reads,
        memory_writes: result.writes,
        naive_memory_reads: naive.reads,
        naive_memory_writes: naive.writes,
    };
    if json {
        return files::print_json(&floods);
    }
    let per_line = |count: u64, lines: u64| count as f64 / lines.max(1) as f64;
    files::print(&format!(
        "pattern: {}\n{} of {} lines cost one read and two writes of memory\nper line: {:.2} reads, {:.2} writes; after the naive \
         flood {:.2} reads, {:.2} writes\n",
        floods.pattern,
        floods.double_purged,
        floods.lines,
        per_line(result.reads, result.lines),
        per_line(result.writes, result.lines),
        per_line(naive.reads, naive.lines),
        per_line(naive.writes, naive.lines),
    ))
}
