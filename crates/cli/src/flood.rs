//! `isochrome lab flood`: floods a cache, to leave it in the worst state for tasks, and verifies the effect.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use isochrome_host::color::Target;
use isochrome_host::color::pool::FramePool;
use isochrome_host::counters::events::Quantity;
use isochrome_host::interrupt;
use isochrome_host::load::flooder::{Flooder, reserved_colors};
use isochrome_host::sys::clock;
use isochrome_lab::flood::{Check, Verification, conclude, pages_to_verify, section};
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::csv;
use isochrome_model::evidence::PaletteEvidence;
use isochrome_model::flood::Pattern;
use isochrome_model::flood::parameters::Parameters;
use isochrome_model::geometry::Geometry;
use isochrome_model::units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{FloodOptions, Results};
use crate::coloring::listed;
use crate::context::Context;
use crate::files;
use crate::probe::saved;
use crate::progress::{self, Takes};
use crate::results::{self, Outcome};
use crate::verdict::Verdict;

/// Schema of the printed result of a flood without self-check.
pub const SCHEMA: &str = "isochrome-flooded/1";

/// Result of a flood without self-check.
#[derive(Serialize, JsonSchema)]
pub struct Flooded {
    /// Pattern of the accesses.
    pattern: Pattern,
    /// Size of the memory of one flood, in bytes.
    memory: Bytes,
    /// Number of floods.
    floods: u64,
    /// Duration of all floods, in seconds.
    seconds: f64,
}

pub fn run(options: &FloodOptions) -> Result<Verdict> {
    let Results { output, raw, .. } = &options.results;
    anyhow::ensure!(
        options.verify || (output.is_none() && raw.is_none()),
        "a flood without --verify leaves no evidence\n  hint: --verify"
    );
    let measurement = &options.measurement;
    let context = Context::new(measurement)?;
    let declared = context.target(measurement)?;
    let parameters = parameters(options.machine.as_deref(), &context, declared.level)?;
    parameters.iter().for_each(|parameters| eprintln!("{parameters}"));
    if options.machine.is_none() {
        eprintln!(
            "(hint: isochrome probe -o machine.json, then --machine machine.json, compares them with measured sizes)"
        );
    }
    let geometry = |level| parameters.iter().find(|it| it.level == level).map(Parameters::geometry);
    let first = first_level(&context).and(geometry(1));
    let target = Target { geometry: geometry(declared.level).unwrap_or(declared.geometry), ..declared };
    // Colors are found with the geometry that the system declares, not with the measured one.
    let (palette, pool) = context.collect_pages(measurement, declared, pages_to_verify(target, first))?;
    if options.verify {
        check(options, &context, palette, &pool, target, first, &parameters)
    } else {
        flood(options, &context, &pool, target, first)
    }
}

/// Returns the parameters of the first level and of the level to flood: those that the system declares, and those that a saved probe has
/// measured.
fn parameters(probe: Option<&Path>, context: &Context, level: u8) -> Result<Vec<Parameters>> {
    let probed = probe.map(|path| saved(path, &context.machine)).transpose()?;
    if let (Some(path), Some(probed)) = (probe.map(Path::display), &probed) {
        anyhow::ensure!(
            !probed.latency.is_empty(),
            "{path}: holds no times of loads\n  hint: isochrome probe -o {path}"
        );
    }
    let of = |number: u8| {
        let declared = context.machine.data_level_of(number, context.cpu)?.geometry.value;
        let felt = probed.as_ref().and_then(|probed| probed.felt_bytes(number, context.cpu));
        Some(Parameters { level: number, declared, felt })
    };
    let mut numbers = vec![1, level];
    numbers.dedup();
    Ok(numbers.into_iter().filter_map(of).collect())
}

/// Returns the geometry of the first data level of the context's CPU; `None` if the machine describes none.
pub fn first_level(context: &Context) -> Option<Geometry> {
    context.machine.data_level_of(1, context.cpu).map(|level| level.geometry.value)
}

/// Returns the size of the largest data level of the context's CPU.
fn last_level(context: &Context) -> Bytes {
    let levels = (1..=4).filter_map(|level| context.machine.data_level_of(level, context.cpu));
    levels.map(|level| level.geometry.value.cache_bytes()).max().unwrap_or_default()
}

fn check(
    options: &FloodOptions,
    context: &Context,
    palette: PaletteEvidence,
    pool: &FramePool,
    target: Target,
    first: Option<Geometry>,
    parameters: &[Parameters],
) -> Result<Verdict> {
    anyhow::ensure!(options.colors.is_none(), "--verify floods all colors\n  hint: leave --colors out");
    let reserved = reserved_colors(first);
    anyhow::ensure!(
        pool.colors() as usize > reserved,
        "none of the {} colors is left for a victim, because the flooder reserves {reserved}\n  hint: --level, for a level of more colors",
        pool.colors()
    );
    let patterns = if options.pattern.is_empty() { &Pattern::ALL[..] } else { &options.pattern };
    let write_backs = (target.level == 2).then_some(Quantity::L2WriteBacks);
    let counters = context.counters(target.level, write_backs);
    if counters.is_none() {
        eprintln!("no counters of misses here: lines gone are judged by time, write-backs are not counted");
    }
    let settings = context.settle();
    let levels = (first, last_level(context));
    let mut experiment = Check::new(pool, target, levels, (patterns, options.passes), counters.as_ref())?;
    let blocks = results::measure("flooding", &mut experiment, &context.amount(options.blocks, options.samples))?;
    let warnings = context.warnings(&settings);
    drop(settings);
    let achieved = conclude(&blocks, experiment.lines(), clock::rate_hz(), |pattern| experiment.memory(pattern));
    let verification = Verification {
        level: target.level,
        ways: [first.map_or(0, |first| first.ways), target.geometry.ways],
        parameters: parameters.iter().map(Parameters::to_string).collect(),
        lines: experiment.lines(),
        counted: Verification::all_counted(&achieved),
        achieved,
        not_tried: experiment.not_tried.clone(),
    };
    let section = section(&verification);
    let raw = csv(&blocks, &experiment.columns());
    results::leave(&options.results, Outcome { context, palette: Some(palette), section, raw, warnings })
}

/// Repeats one flood for the duration in `options`, or until interrupted.
fn flood(
    options: &FloodOptions,
    context: &Context,
    pool: &FramePool,
    target: Target,
    first: Option<Geometry>,
) -> Result<Verdict> {
    let colors = listed(options.colors.as_deref().unwrap_or("all"), pool.colors())?;
    let pattern = match options.pattern[..] {
        [] => Pattern::Write,
        [pattern] => pattern,
        _ => anyhow::bail!("one flood at a time\n  hint: one --pattern, or --verify to compare them"),
    };
    let _settings = context.pin();
    let flooder = Flooder::new(pool, target.geometry, first, &colors, pattern)?.with_passes(options.passes);
    let length = Duration::from_nanos(options.duration.0);
    let _bar = progress::step("flooding", Takes::For(length), "");
    let begin = Instant::now();
    let mut floods = 0;
    while begin.elapsed() < length && !interrupt::interrupted() {
        flooder.run();
        floods += 1;
    }
    let flooded = Flooded { pattern, memory: flooder.size(), floods, seconds: begin.elapsed().as_secs_f64() };
    let Flooded { memory, seconds, .. } = flooded;
    let per_flood = 1e6 * seconds / floods.max(1) as f64;
    let text = || format!("{floods} floods of {memory} by {pattern} in {seconds:.1} s, {per_flood:.0} us each\n");
    files::show(options.results.json, &files::versioned(SCHEMA, &flooded), text)?;
    Ok(Verdict::Holds)
}
