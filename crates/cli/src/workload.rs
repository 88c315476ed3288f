//! `isochrome lab workload`: runs a task that misses with a set ratio, on this machine or a modeled one.

use anyhow::{Context as _, Result, ensure};
use isochrome_host::color::Target;
use isochrome_host::color::pool::FramePool;
use isochrome_host::counters::events::INSTRUCTIONS;
use isochrome_host::counters::{CounterError, miss_counters};
use isochrome_host::error::without_hint;
use isochrome_host::interrupt;
use isochrome_lab::miss_ratio::modeled::miss_ratio;
use isochrome_lab::miss_ratio::search::{self, search};
use isochrome_lab::miss_ratio::{COLUMNS, Comparison, Executed, Modeled, Walks, conclude, pages_per_color, section};
use isochrome_lab::runner::Amount;
use isochrome_lab::samples::csv;
use isochrome_model::evidence::{PaletteEvidence, Section};
use isochrome_model::geometry::Geometry;
use isochrome_model::machine::Holds;
use isochrome_model::miss_ratio::{Locality, Task, Touches, VISIT_BYTES};
use isochrome_model::units::Bytes;
use isochrome_report::figure;

use crate::args::WorkloadOptions;
use crate::context::Context;
use crate::results::{self, Outcome};
use crate::simulate::named_machine;
use crate::verdict::Verdict;
use crate::{evidence, files, hints};

pub fn run(options: &WorkloadOptions) -> Result<Verdict> {
    let (touches, locality) = (options.kind, options.locality);
    ensure!(
        !(options.search && locality == Locality::Spatial),
        "every line of a task with spatial locality misses, whatever its size\n  hint: --search with --locality temporal or combined"
    );
    match &options.machine {
        Some(name) => {
            let section = section(&modeled(options, name, touches, locality)?);
            draw(options, &section)?;
            results::print(options.results.json, &section, 0)?;
            Ok(results::verdict(&section))
        }
        None => executed(options, touches, locality),
    }
}

fn draw(options: &WorkloadOptions, section: &Section) -> Result<()> {
    let drawn = || figure::of_sections("Misses of a loop", [section]);
    options.svg.as_ref().map_or(Ok(()), |path| files::write(path, &drawn()))
}

/// Whether a level that holds `holds` can hold the data or code that `touches` names.
pub fn can_hold(holds: Holds, touches: Touches) -> bool {
    match touches {
        Touches::Data => holds != Holds::Instruction,
        Touches::Code => holds != Holds::Data,
    }
}

fn modeled(options: &WorkloadOptions, name: &str, touches: Touches, locality: Locality) -> Result<Comparison> {
    let mut machine = named_machine(name)?;
    for level in &mut machine.levels {
        level.cache.policy = options.policy.unwrap_or(level.cache.policy);
    }
    let number = options.measurement.level.unwrap_or(2);
    let holding = || machine.levels.iter().filter(|level| can_hold(level.holds, touches));
    let index = usize::from(number).checked_sub(1).context("levels are counted from 1\n  hint: --level 2")?;
    let level = holding().nth(index).with_context(|| {
        format!("{name} has no level {number}\n  hint: it has {}; --level chooses one", holding().count())
    })?;
    let task = Task::of_ratio(touches, level.cache.geometry, options.miss_ratio, locality)?;
    let miss_ratio = miss_ratio(&machine, &level.cache, &task)?;
    let colors = level.cache.geometry.color_count(machine.page_bytes);
    let mut compared = Comparison::of(task, number, colors, locality, options.miss_ratio);
    compared.modeled = Some(Modeled { machine: name.to_owned(), policy: level.cache.policy.to_string(), miss_ratio });
    Ok(compared)
}

/// The level and the memory that the task runs on.
struct Setting {
    context: Context,
    target: Target,
    pool: Option<FramePool>,
    palette: Option<PaletteEvidence>,
    /// Reason why no colors were found although the level has several.
    uncolored: Option<String>,
}

/// Returns the level to measure, with memory of its colors if it has more than one. `lines_max` returns the largest task that is measured.
fn setting(
    options: &WorkloadOptions,
    touches: Touches,
    lines_max: impl Fn(Geometry) -> Result<Task>,
) -> Result<Setting> {
    let context = Context::new(&options.measurement)?;
    let number = match options.measurement.level {
        Some(number) => number,
        None => Target::to_flood(&context.machine, context.cpu).map_or(2, |target| target.level),
    };
    let holds = |level: &&isochrome_model::machine::CacheLevel| {
        level.level == number && can_hold(level.holds, touches) && level.serves(context.cpu)
    };
    let level = context.machine.levels.iter().find(holds);
    let level =
        level.with_context(|| format!("CPU {} has no level {number} for this\n  hint: --level 2", context.cpu.0))?;
    let geometry = level.geometry.value;
    ensure!(
        touches == Touches::Data || geometry.line_bytes.0 >= VISIT_BYTES as u64,
        "lines of {} are too short for code\n  hint: --kind data",
        geometry.line_bytes
    );
    let inner = context
        .machine
        .data_level_of(number.saturating_sub(1), context.cpu)
        .map_or(Bytes(0), |l| l.geometry.value.cache_bytes());
    let mut target = Target { level: number, geometry, inner };
    let colors = geometry.color_count(context.machine.page_bytes) as usize;
    if colors == 1 {
        return Ok(Setting { context, target, pool: None, palette: None, uncolored: None });
    }
    let wanted = pages_per_color(&lines_max(geometry)?, colors);
    let collected = context.target(&options.measurement).and_then(|colored| {
        ensure!(colored.level == number, "level {number} is not colored here\n  hint: --level {}", colored.level);
        target = colored;
        context.collect_pages(&options.measurement, colored, wanted)
    });
    let (palette, pool, uncolored) = match collected {
        Ok((palette, pool)) => (Some(palette), Some(pool), None),
        Err(error) => {
            let why = format!(
                "no colors: {}\nmemory is wherever the kernel has it: some sets get more lines than others",
                hints::text(&*error)
            );
            eprintln!("{why}");
            (None, None, Some(why))
        }
    };
    Ok(Setting { context, target, pool, palette, uncolored })
}

/// Returns a sentence that says why misses are not counted.
fn not_counted(error: &CounterError) -> String {
    match error {
        CounterError::Absent { event, .. } if event == INSTRUCTIONS.name => {
            "this machine offers no performance counters".to_owned()
        }
        _ => without_hint(error),
    }
}

fn executed(options: &WorkloadOptions, touches: Touches, locality: Locality) -> Result<Verdict> {
    let requested = options.miss_ratio;
    let capacity = |geometry: Geometry| geometry.set_count * u64::from(geometry.ways);
    // The largest task that is tried has twice as many lines as the cache.
    let largest = |geometry: Geometry| {
        let task = Task::of_ratio(touches, geometry, requested, locality)?;
        Ok(Task { lines: task.lines.max(2 * capacity(geometry)), ..task })
    };
    let setting = setting(options, touches, largest)?;
    let (context, target) = (&setting.context, setting.target);
    let counters = miss_counters(&context.processor, target.level, touches);
    let settings = context.settle();
    let task = Task::of_ratio(touches, target.geometry, requested, locality)?;
    let amount = context.amount(options.blocks, options.samples);
    eprintln!("{}", amount.power(1));
    let mut blocks = Vec::new();
    let mut attempt = 0;
    let mut measure = |lines: u64| -> Result<Option<Executed>> {
        attempt += 1;
        let task = Task { lines, ..task };
        let mut walks = Walks { pool: setting.pool.as_ref(), target, task, counters: counters.as_ref().ok(), attempt };
        let amount = Amount { seed: context.seed.wrapping_add(attempt), ..amount };
        let measured = results::measure_again("executing", &mut walks, &amount)?;
        let executed = conclude(&task, &measured);
        blocks.extend(measured);
        Ok(executed)
    };
    let (tried, (lines, executed)) = if options.search {
        let capacity = capacity(target.geometry);
        let tried =
            search(requested, [capacity / 2, task.lines, 2 * capacity], |lines| match interrupt::interrupted() {
                true => Ok(None),
                false => measure(lines),
            })?;
        let outcome = search::outcome(&tried, requested);
        (tried, (outcome.map_or(task.lines, |tried| tried.lines), outcome.map(|tried| tried.executed)))
    } else {
        (Vec::new(), (task.lines, measure(task.lines)?))
    };
    let colors = target.geometry.color_count(context.machine.page_bytes);
    let compared = Comparison {
        executed,
        colored: setting.pool.is_some(),
        not_counted: counters.as_ref().err().map(not_counted),
        search: tried,
        ..Comparison::of(Task { lines, ..task }, target.level, colors, locality, requested)
    };
    let noted = context.notes.iter().chain(settings.notes()).map(evidence::note_text);
    let warnings: Vec<String> = setting.uncolored.clone().into_iter().chain(noted).collect();
    drop(settings);
    let section = section(&compared);
    draw(options, &section)?;
    let raw = csv(&blocks, &COLUMNS.map(str::to_owned));
    let outcome = Outcome { context, palette: setting.palette.clone(), section, raw, warnings };
    results::leave(&options.results, outcome)
}
