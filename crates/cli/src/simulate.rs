//! `isochrome simulate`: the modeled machine.

mod scenario;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use isochrome_host::interrupt;
use isochrome_model::flood::{DoublePurge, Flood, Leaves};
use isochrome_model::geometry::Geometry;
use isochrome_model::machine::Holds;
use isochrome_model::sim::{
    Access, Allocation, ColorCurve, DESCRIBED_SCHEMA, DescribedMachine, FloodCheck, FloodResult, Hierarchy, Kind,
    Level, LevelCounts, MemoryCounts, PageTable, Semantics, Simulator, StackDistances, Timing,
};
use isochrome_model::trace::Reader;
use isochrome_model::units::{Bytes, Color};
use isochrome_report::figure;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{ModeledMachine, Program, ResultOptions, SimulateOptions, SimulateQuestion};
use crate::{Verdict, files};

/// Accesses of a workload handed over at a time.
const BATCH: usize = 4096;

/// Versions of what is printed as JSON.
pub const SCHEMA: &str = "isochrome-simulation/1";
pub const CURVE_SCHEMA: &str = "isochrome-curve/1";
pub const FLOODS_SCHEMA: &str = "isochrome-modeled-flood/1";
pub const SCENARIO_SCHEMA: &str = "isochrome-scenario-outcome/1";

/// Counts of a run.
#[derive(Serialize, JsonSchema)]
pub struct Outcome {
    /// The caches, from the innermost out.
    levels: Vec<LevelCounts>,
    /// Transfers from and to memory.
    memory: MemoryCounts,
}

/// Runs the verb.
pub fn run(options: &SimulateOptions) -> Result<Verdict> {
    match &options.question {
        Some(SimulateQuestion::Machines) => machines()?,
        Some(SimulateQuestion::Curve { level, program, verify, svg, result }) => {
            return curve(level, program, *verify, svg.as_deref(), result);
        }
        Some(SimulateQuestion::Flood { machine, result }) => flood(machine, result)?,
        None => match &options.scenario {
            Some(path) => scenario::run(path, options.svg.as_deref(), &options.result)?,
            None => count(options)?,
        },
    }
    Ok(Verdict::Holds)
}

/// Writes and prints a result, as text unless JSON is asked for.
fn tell(
    schema: &'static str,
    result: &impl Serialize,
    options: &ResultOptions,
    text: impl FnOnce() -> String,
) -> Result<()> {
    let result = &files::versioned(schema, result);
    if let Some(path) = &options.output {
        files::write_json(path, result)?;
    }
    if options.json { files::print_json(result) } else { files::print(&text()) }
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
    tell(SCHEMA, &outcome, &options.result, || counts_told(&outcome.levels, outcome.memory))
}

/// A table of counts.
fn counts_told(levels: &[LevelCounts], memory: MemoryCounts) -> String {
    let mut text = format!(
        "{:8} {:>14} {:>14} {:>14} {:>14} {:>14}\n",
        "level", "reads", "writes", "read misses", "write misses", "write-backs"
    );
    for LevelCounts { name, counts } in levels {
        let [reads, writes, read_misses] = [counts.reads, counts.writes, counts.read_misses];
        let (write_misses, writebacks) = (counts.write_misses, counts.writebacks);
        let _ =
            writeln!(text, "{name:8} {reads:>14} {writes:>14} {read_misses:>14} {write_misses:>14} {writebacks:>14}");
    }
    let _ = writeln!(text, "{:8} {:>14} {:>14}", "memory", memory.reads, memory.writes);
    text
}

enum Resolved {
    Described(Box<DescribedMachine>),
    Chain(Vec<Level>, Semantics),
}

/// The machine asked for, with names for levels that have none.
fn resolve(machine: &ModeledMachine) -> Result<Resolved> {
    if let Some(name) = &machine.machine {
        let mut described = named_machine(name)?;
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

/// A machine that comes with isochrome, or that a file describes.
pub fn named_machine(name: &str) -> Result<DescribedMachine> {
    match DescribedMachine::named(name) {
        Some(described) => Ok(described),
        None if Path::new(name).exists() => files::read_json(Path::new(name), DESCRIBED_SCHEMA),
        None => bail!(
            "{name}: no such machine and no such file\n  hint: {}",
            DescribedMachine::names().collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Hands all accesses of the program to `each`; after an interruption, those up to then.
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
            let progress = progress(bytes);
            let mut reader = Reader::new(program.format, &shown, progress.wrap_read(input));
            loop {
                let batch = reader.next_batch()?;
                if batch.is_empty() || interrupted() {
                    break;
                }
                hand_over(batch);
            }
            progress.finish_and_clear();
        }
        (None, Some(workload)) => {
            let mut batch = Vec::with_capacity(BATCH);
            for access in workload.accesses() {
                batch.push(access);
                if batch.len() == BATCH {
                    hand_over(&batch);
                    batch.clear();
                    if interrupted() {
                        break;
                    }
                }
            }
            hand_over(&batch);
        }
        _ => bail!("no program\n  hint: --trace FILE [--format din|lackey|u64|iso], or --workload matmul"),
    }
    Ok(())
}

/// Whether to stop and tell what has been counted.
fn interrupted() -> bool {
    let interrupted = interrupt::interrupted();
    if interrupted {
        eprintln!("interrupted: this is how far it went");
    }
    interrupted
}

/// The stream of a path, and its length where it has one.
fn open(path: &Path) -> io::Result<(Box<dyn Read>, u64)> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), 0));
    }
    let file = File::open(path)?;
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
#[derive(Serialize, JsonSchema)]
pub struct Curve {
    /// Accesses to lines.
    accesses: u64,
    /// Misses with as many ways as the index says, from 0.
    misses_by_ways: Vec<u64>,
    /// Numbers of colors.
    colors: Vec<u32>,
    /// Misses with as many colors as `colors` has at the same index.
    misses_by_colors: Vec<u64>,
    /// Points of the curve over colors, by the full simulator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    verified: Vec<Verified>,
}

/// A point of the curve over colors, by the full simulator.
#[derive(Serialize, JsonSchema)]
struct Verified {
    colors: u32,
    misses: u64,
}

/// A program on some colors of a level, by the full simulator.
struct FullSimulation {
    colors: u32,
    pages: PageTable,
    cache: Hierarchy,
}

const PAGE: Bytes = Bytes(4096);

impl FullSimulation {
    fn new(level: &Level, colors: u32) -> Result<FullSimulation> {
        let color_count =
            u16::try_from(level.geometry.color_count(PAGE)).context("more colors than fit into 16 bits")?;
        let granted = (0..colors as u16).map(Color).collect();
        let pages = PageTable::new(PAGE, Allocation::Colored { colors: granted, color_count });
        Ok(FullSimulation { colors, pages, cache: Hierarchy::chain(vec![level.clone()], Semantics::default())? })
    }

    fn run(&mut self, accesses: &[Access]) {
        for part in accesses.iter().flat_map(|access| access.by_pages(PAGE.0.trailing_zeros())) {
            self.cache.access(self.pages.translate(part));
        }
    }
}

fn curve(level: &str, program: &Program, verify: bool, svg: Option<&Path>, options: &ResultOptions) -> Result<Verdict> {
    let level: Level = format!("{level}:lru:wb:wa").parse()?;
    let Geometry { set_count, .. } = level.geometry;
    ensure!(
        set_count.is_power_of_two(),
        "{set_count} sets are not a power of two: colors and ways do not separate\n  hint: give one slice, or a size that is"
    );
    let mut by_colors = ColorCurve::new(level.geometry, PAGE)?;
    let mut by_ways = StackDistances::new(level.geometry)?;
    let tried: Vec<u32> = by_colors.misses().iter().map(|(colors, _)| *colors).collect();
    let mut sample = if verify { vec![0, (tried.len() - 1) / 2, tried.len() - 1] } else { Vec::new() };
    sample.dedup();
    let mut full: Vec<FullSimulation> =
        sample.iter().map(|i| FullSimulation::new(&level, tried[*i])).collect::<Result<_>>()?;
    each_batch(program, |batch| {
        by_ways.run(batch);
        by_colors.run(batch);
        full.iter_mut().for_each(|full| full.run(batch));
    })?;
    let by_ways = by_ways.curve();
    let (colors, misses_by_colors): (Vec<u32>, Vec<u64>) = by_colors.misses().into_iter().unzip();
    let full = full.iter().map(|full| Verified { colors: full.colors, misses: full.cache.memory().reads });
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
    if let Some(path) = svg {
        let title = format!("Misses in {}, {} ways", level.geometry.cache_bytes(), level.geometry.ways);
        let colors: Vec<(u32, u64)> =
            curve.colors.iter().copied().zip(curve.misses_by_colors.iter().copied()).collect();
        files::write(path, &figure::miss_curve(&title, curve.accesses, &curve.misses_by_ways, &colors))?;
    }
    tell(CURVE_SCHEMA, &curve, options, || {
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

/// What floods achieve.
#[derive(Serialize, JsonSchema)]
pub struct Floods {
    /// Where the addresses of the flood are from.
    pattern: String,
    /// Lines accessed after the flood.
    lines: u64,
    /// Those of them that cost a read and two writes of memory.
    double_purged: u64,
    /// Reads of memory that all of them cost.
    memory_reads: u64,
    /// And writes.
    memory_writes: u64,
    /// The same after the naive flood, which writes twice over twice the cache.
    naive_memory_reads: u64,
    /// And writes.
    naive_memory_writes: u64,
    /// By what share of the transfers the naive flood falls short.
    naive_shortfall_transfers: f64,
    /// And of the time of these transfers, where the machine says how long they take.
    naive_shortfall_cycles: Option<f64>,
}

/// A representative that no flood writes.
const FAR: u64 = 1 << 20;

/// Lines tried at most: each is tried on caches of its own.
const TRIED_MAX: usize = 2000;

fn flood(machine: &ModeledMachine, options: &ResultOptions) -> Result<()> {
    let (levels, semantics, timing) = match resolve(machine)? {
        Resolved::Chain(levels, semantics) => (levels, semantics, None),
        Resolved::Described(machine) => {
            let data = machine.levels.into_iter().filter(|level| level.holds != Holds::Instruction);
            (data.map(|level| level.cache).collect(), machine.semantics, Some(machine.timing))
        }
    };
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
        naive_shortfall_cycles: timing
            .map(|Timing { memory_read_cycles, memory_write_cycles, .. }| {
                shortfall(naive, result, memory_read_cycles, memory_write_cycles)
            })
            .filter(|share| share.is_finite()),
    };
    tell(FLOODS_SCHEMA, &floods, options, || {
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

/// What one flood falls short of another, as a share, when a read and a write of memory weigh so much.
fn shortfall(naive: FloodResult, best: FloodResult, read: u64, write: u64) -> f64 {
    let per_line =
        |result: FloodResult| (result.reads * read + result.writes * write) as f64 / result.lines.max(1) as f64;
    1.0 - per_line(naive) / per_line(best)
}
