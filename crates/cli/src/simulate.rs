//! `isochrome simulate`: simulates programs on a modeled machine.

mod scenario;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use isochrome_host::interrupt;
use isochrome_model::flood::{DoublePurge, Flood, Leaves};
use isochrome_model::geometry::Geometry;
use isochrome_model::layout;
use isochrome_model::machine::Holds;
use isochrome_model::sim::{
    Access, Allocation, ColorCurve, FloodCheck, FloodResult, Hierarchy, Kind, Level, LevelCounts, MACHINE_MODEL_SCHEMA,
    MachineModel, MemoryCounts, PageTable, Semantics, Simulator, StackDistances,
};
use isochrome_model::trace::Reader;
use isochrome_model::units::Bytes;
use isochrome_report::figure;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{ModeledMachine, Output, Program, SimulateOptions, SimulateQuestion};
use crate::files;
use crate::progress::{self, Takes};
use crate::verdict::Verdict;

/// Error text for a level that has too many colors to be simulated color by color.
pub const TOO_MANY_COLORS: &str = "more colors than fit into 16 bits";

/// Number of accesses of a workload in a batch.
const BATCH: usize = 4096;

/// Schemas of the printed JSON.
pub const SCHEMA: &str = "isochrome-simulation/1";
pub const CURVE_SCHEMA: &str = "isochrome-curve/1";
pub const FLOODS_SCHEMA: &str = "isochrome-modeled-flood/1";
pub const SCENARIO_SCHEMA: &str = "isochrome-scenario-outcome/1";

/// Counts of events in a run.
#[derive(Serialize, JsonSchema)]
pub struct Outcome {
    /// Counts of the caches, innermost first.
    levels: Vec<LevelCounts>,
    /// Transfers from and to memory.
    memory: MemoryCounts,
}

/// Carries out `isochrome simulate`.
pub fn run(options: &SimulateOptions) -> Result<Verdict> {
    match &options.question {
        Some(SimulateQuestion::Machines) => machines()?,
        Some(SimulateQuestion::Curve { level, page, program, verify, svg, output }) => {
            return curve((level, *page), program, *verify, svg, output);
        }
        Some(SimulateQuestion::Flood { machine, output }) => flood(machine, output)?,
        None => match &options.scenario {
            Some(path) => scenario::run(path, &options.svg, &options.output)?,
            None => count(options)?,
        },
    }
    Ok(Verdict::Holds)
}

fn count(options: &SimulateOptions) -> Result<()> {
    let mut simulator = Simulator::machine(&resolve(&options.machine)?)?;
    each_batch(&options.program, |batch| simulator.run(batch))?;
    let (levels, memory) = simulator.counts();
    let outcome = Outcome { levels, memory };
    files::leave(&options.output, &files::versioned(SCHEMA, &outcome), || {
        counts_reported(&outcome.levels, outcome.memory)
    })
}

/// Formats the counts of all levels and of memory as a table.
fn counts_reported(levels: &[LevelCounts], memory: MemoryCounts) -> String {
    let mut text = format!(
        "{:8} {:>13} {:>13} {:>13} {:>13} {:>13}\n",
        "level", "reads", "writes", "read misses", "write misses", "write-backs"
    );
    for LevelCounts { name, counts } in levels {
        let [reads, writes, read_misses] = [counts.reads, counts.writes, counts.read_misses];
        let (write_misses, writebacks) = (counts.write_misses, counts.writebacks);
        let _ =
            writeln!(text, "{name:8} {reads:>13} {writes:>13} {read_misses:>13} {write_misses:>13} {writebacks:>13}");
    }
    let _ = writeln!(text, "{:8} {:>13} {:>13}", "memory", memory.reads, memory.writes);
    text
}

/// Returns the machine that the options describe.
fn resolve(machine: &ModeledMachine) -> Result<MachineModel> {
    let mut described = match &machine.machine {
        Some(name) => named_machine(name)?,
        None => MachineModel::of_levels("the levels given", machine.levels.iter().cloned()),
    };
    ensure!(
        !described.levels.is_empty(),
        "no machine\n  hint: --machine zen3, or --level 32K:8:64:lru:wb:wa for each level from the innermost out"
    );
    if machine.pycachesim {
        described.semantics = Semantics::pycachesim();
    }
    for level in &mut described.levels {
        level.cache.policy = machine.policy.unwrap_or(level.cache.policy);
    }
    Ok(described)
}

/// Returns the built-in machine called `name`, else the one that the file `name` describes.
pub fn named_machine(name: &str) -> Result<MachineModel> {
    match MachineModel::named(name) {
        Some(described) => Ok(described),
        None if Path::new(name).exists() => {
            let described: MachineModel = files::read_json(Path::new(name), MACHINE_MODEL_SCHEMA)?;
            described.check().with_context(|| name.to_owned())?;
            Ok(described)
        }
        None => bail!(
            "{name}: no such machine and no such file\n  hint: `isochrome simulate machines` lists them: {}",
            MachineModel::names().collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Passes all accesses of the program to `each`, in batches. An interruption ends this early.
pub fn each_batch(program: &Program, mut each: impl FnMut(&[Access])) -> Result<()> {
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
            let shown = path.display().to_string();
            let (input, bytes) = open(path).with_context(|| shown.clone())?;
            let bar = progress::reading(format!("reading {shown}"), bytes);
            let mut reader = Reader::new(program.format, &shown, bar.wrap_read(input));
            loop {
                let batch = reader.next_batch()?;
                if batch.is_empty() || interrupted() {
                    break;
                }
                hand_over(batch);
            }
            bar.finish_and_clear();
        }
        (None, Some(workload)) => {
            let (mut accesses, mut count) = (workload.accesses(), 0);
            let bar = progress::step("playing the workload", Takes::Words(BY_ACCESSES), "");
            loop {
                let batch: Vec<Access> = accesses.by_ref().take(BATCH).collect();
                if batch.is_empty() || interrupted() {
                    break;
                }
                hand_over(&batch);
                count += batch.len() as u64;
                bar.set_message(format!("playing the workload ({BY_ACCESSES}): {count} accesses"));
            }
        }
        _ => bail!("no program\n  hint: --trace FILE [--format din|lackey|u64|iso], or --workload matmul"),
    }
    Ok(())
}

/// Statement on how long a simulation takes, for the progress report.
pub const BY_ACCESSES: &str = "the time grows with the number of accesses";

/// Whether the run was interrupted, which is reported on standard error.
fn interrupted() -> bool {
    let interrupted = interrupt::interrupted();
    if interrupted {
        eprintln!("interrupted: these are the results so far");
    }
    interrupted
}

/// Opens the file at `path`, or standard input for `-`, and returns the stream and its length; 0 if it is unknown.
fn open(path: &Path) -> io::Result<(Box<dyn Read>, u64)> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), 0));
    }
    let file = File::open(path)?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    Ok((Box::new(file), bytes))
}

fn machines() -> Result<()> {
    let mut text = String::new();
    for name in MachineModel::names() {
        let machine = MachineModel::named(name).expect("named machines exist");
        writeln!(text, "{name:16} {}", machine.name)?;
        for source in &machine.sources {
            let source = format!("{:16}   {source}", "");
            writeln!(text, "{}", layout::wrap(&source, files::width(), 19))?;
        }
    }
    files::print(&text)
}

/// Misses for each share of one level.
#[derive(Serialize, JsonSchema)]
pub struct Curve {
    /// Number of accesses to lines.
    accesses: u64,
    /// Number of misses with 0, 1, 2... ways.
    misses_by_ways: Vec<u64>,
    /// Numbers of colors for which misses were counted.
    colors: Vec<u32>,
    /// Number of misses for each of `colors`.
    misses_by_colors: Vec<u64>,
    /// Points of the curve over colors, counted by the full simulator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    verified: Vec<Verified>,
}

/// A point of the curve over colors, counted by the full simulator.
#[derive(Serialize, JsonSchema)]
struct Verified {
    colors: u32,
    misses: u64,
}

/// Counts the misses of `level` with pages of `page`, by ways and by colors.
fn curve(
    (level, page): (&str, Bytes),
    program: &Program,
    verify: bool,
    svg: &Option<PathBuf>,
    output: &Output,
) -> Result<Verdict> {
    let level: Level = format!("{level}:lru:wb:wa").parse()?;
    ensure!(page.0.is_power_of_two(), "a page of {page} is not a power of two\n  hint: --page 16K");
    let Geometry { set_count, .. } = level.geometry;
    ensure!(
        set_count.is_power_of_two(),
        "{set_count} sets are not a power of two: colors and ways do not separate\n  hint: give one slice, or a size that is"
    );
    let mut by_colors = ColorCurve::new(level.geometry, page)?;
    let mut by_ways = StackDistances::new(level.geometry)?;
    let tried: Vec<u32> = by_colors.misses().iter().map(|(colors, _)| *colors).collect();
    let mut sample = if verify { vec![0, (tried.len() - 1) / 2, tried.len() - 1] } else { Vec::new() };
    sample.dedup();
    // Returns the state of the full simulator for a program on `colors` colors of the level.
    let count = level.geometry.color_count(page);
    let simulated = |colors: u32| -> Result<_> {
        let allocation = Allocation::first_colors(colors, count).context(TOO_MANY_COLORS)?;
        let caches = Hierarchy::chain(vec![level.clone()], Semantics::default())?;
        Ok((colors, PageTable::new(page, allocation), caches))
    };
    let mut full = sample.iter().map(|i| simulated(tried[*i])).collect::<Result<Vec<_>>>()?;
    each_batch(program, |batch| {
        by_ways.run(batch);
        by_colors.run(batch);
        full.iter_mut().for_each(|(_, pages, caches)| pages.run(batch, caches));
    })?;
    let by_ways = by_ways.curve();
    let (colors, misses_by_colors): (Vec<u32>, Vec<u64>) = by_colors.misses().into_iter().unzip();
    let full = full.iter().map(|(colors, _, caches)| Verified { colors: *colors, misses: caches.memory().reads });
    let curve = Curve {
        accesses: by_ways.accesses,
        misses_by_ways: by_ways.misses_by_ways,
        colors,
        misses_by_colors,
        verified: full.collect(),
    };
    let differs = curve.verified.iter().find(|full| {
        curve.colors.iter().zip(&curve.misses_by_colors).any(|(k, misses)| *k == full.colors && *misses != full.misses)
    });
    files::write_if(svg, || {
        let title = format!("Misses in {}, {} ways", level.geometry.cache_bytes(), level.geometry.ways);
        figure::miss_curve(&title, curve.accesses, &curve.misses_by_ways, &by_colors.misses())
    })?;
    files::leave(output, &files::versioned(CURVE_SCHEMA, &curve), || {
        let mut text = format!("{} accesses to lines\nways   misses\n", curve.accesses);
        for (n, misses) in curve.misses_by_ways.iter().enumerate() {
            let _ = writeln!(text, "{n:4} {misses:>12}");
        }
        text.push_str("colors misses\n");
        for (n, misses) in curve.colors.iter().zip(&curve.misses_by_colors) {
            let _ = writeln!(text, "{n:4} {misses:>12}");
        }
        for Verified { colors, misses } in &curve.verified {
            let _ = writeln!(text, "full simulator with {colors} colors: {misses}");
        }
        text
    })?;
    Ok(if differs.is_some() { Verdict::Violated } else { Verdict::Holds })
}

/// Effect of floods on a modeled machine.
#[derive(Serialize, JsonSchema)]
pub struct Floods {
    /// Source of the addresses of the flood.
    pattern: String,
    /// Number of lines accessed after the flood.
    lines: u64,
    /// Number of lines accessed after the flood that cost one memory read and two memory writes.
    double_purged: u64,
    /// Number of memory reads of all lines accessed after the flood.
    memory_reads: u64,
    /// Number of memory writes of all lines accessed after the flood.
    memory_writes: u64,
    /// Number of memory reads after the naive flood, which writes twice over twice the cache.
    naive_memory_reads: u64,
    /// Number of memory writes after the naive flood.
    naive_memory_writes: u64,
    /// Share of the transfers by which the naive flood falls short.
    naive_shortfall_transfers: f64,
    /// Share of the transfers' time by which the naive flood falls short; `None` if the machine does not say how long transfers take.
    naive_shortfall_cycles: Option<f64>,
}

/// Number of the line that represents the victim; it is beyond the lines that a flood writes.
const FAR: u64 = 1 << 20;

/// Largest number of lines that are tried, each on its own copy of the caches.
const TRIED_MAX: usize = 2000;

fn flood(machine: &ModeledMachine, output: &Output) -> Result<()> {
    let MachineModel { levels, semantics, timing, .. } = resolve(machine)?;
    let data = levels.into_iter().filter(|level| level.holds != Holds::Instruction);
    let levels: Vec<Level> = data.map(|level| level.cache).collect();
    let [first, second, ..] = levels.as_slice() else {
        bail!("a flood of this kind needs two levels\n  hint: give --level twice, the innermost first")
    };
    let mut check = FloodCheck::new(first.clone(), second.clone(), semantics)?;
    let tried = |check: &FloodCheck, pattern: DoublePurge| {
        let victims: Vec<u64> = check.victims(pattern, FAR).collect();
        let step = victims.len().div_ceil(TRIED_MAX);
        check.check(victims.into_iter().step_by(step))
    };
    let (pattern, result, what) = match check.pattern() {
        Ok(pattern) => {
            check.flood(pattern.accesses());
            (pattern, tried(&check, pattern), "Loeser and Haertig, general".to_owned())
        }
        Err(reason) => {
            let (exaggeration, result) = FloodCheck::search(first, second, semantics).context(reason)?;
            (DoublePurge::new(first.geometry, second.geometry)?, result, format!("searched: {exaggeration:?}"))
        }
    };
    let mut naive = FloodCheck::new(first.clone(), second.clone(), semantics)?;
    let area = Bytes(2 * second.geometry.cache_bytes().0);
    let line_bytes = second.geometry.line_bytes;
    naive.flood(Flood { area, line_bytes, passes: 2, leaves: Leaves::Dirty }.accesses());
    let naive = tried(&naive, pattern);
    let floods = Floods {
        pattern: what,
        lines: result.lines,
        double_purged: result.double_purged,
        memory_reads: result.reads,
        memory_writes: result.writes,
        naive_memory_reads: naive.reads,
        naive_memory_writes: naive.writes,
        naive_shortfall_transfers: shortfall(naive, result, 1, 1),
        // Without times of transfers the shortfall is not a number.
        naive_shortfall_cycles: Some(shortfall(naive, result, timing.memory_read_cycles, timing.memory_write_cycles))
            .filter(|share| share.is_finite()),
    };
    files::leave(output, &files::versioned(FLOODS_SCHEMA, &floods), || {
        let per_line = |count: u64, lines: u64| count as f64 / lines.max(1) as f64;
        let of_time = floods
            .naive_shortfall_cycles
            .map_or(String::new(), |share| format!(" and {:.0} % of their time", 100.0 * share));
        format!(
            "pattern: {}\n{} of {} lines cost one read and two writes of memory\nper line: {:.2} reads, {:.2} writes; after the \
             naive flood {:.2} reads, {:.2} writes\nthe naive flood falls short by {:.0} % of the transfers{of_time}; \
             [Loeser1999, §4] measured up to 50 % of the execution time of a network stack on a Pentium II\n",
            floods.pattern,
            floods.double_purged,
            floods.lines,
            per_line(result.reads, result.lines),
            per_line(result.writes, result.lines),
            per_line(naive.reads, naive.lines),
            per_line(naive.writes, naive.lines),
            100.0 * floods.naive_shortfall_transfers,
        )
    })
}

/// Returns the shortfall of flood `naive` against `best`, as a share of transfers weighted by `read` and `write`.
fn shortfall(naive: FloodResult, best: FloodResult, read: u64, write: u64) -> f64 {
    let per_line =
        |result: FloodResult| (result.reads * read + result.writes * write) as f64 / result.lines.max(1) as f64;
    1.0 - per_line(naive) / per_line(best)
}
