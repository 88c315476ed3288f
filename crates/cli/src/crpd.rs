//! `isochrome lab crpd`: measures the cache-related preemption delay against the size of the working set.

use anyhow::{Context as _, Result};
use isochrome_host::color::Target;
use isochrome_host::color::pool::FramePool;
use isochrome_host::sys::clock;
use isochrome_lab::crpd::modeled::{FrontEnd, Request, play};
use isochrome_lab::crpd::{COLUMNS, Condition, Crpd, PASSES, Preempting, Walk, conclude, section};
use isochrome_lab::samples::{Block, csv};
use isochrome_model::evidence::Section;
use isochrome_model::miss_ratio::Touches;

use crate::args::CrpdOptions;
use crate::coloring::own_colors;
use crate::context::Context;
use crate::results::{self, Outcome};
use crate::simulate::named_machine;
use crate::verdict::Verdict;
use crate::workload::can_hold;
use crate::{evidence, probe};

pub fn run(options: &CrpdOptions) -> Result<Verdict> {
    let measurement = &options.measurement;
    if let (Some(name), Some(mhz)) = (&options.modeled.machine, options.modeled.mhz) {
        return modeled(options, name, mhz);
    }
    let touches = options.kind;
    let mut context = Context::new(measurement)?;
    let target = context.target(measurement)?;
    let count = target.geometry.color_count(context.machine.page_bytes);
    let (percents, colors) = (sizes(options.step), own_colors(options.colors.as_deref(), count)?);
    let pages = Preempting::pages_per_color(target, &percents, colors.len());
    let (palette, pool) = context.collect_pages(measurement, target, pages)?;
    let cpu = context.cpu;
    let notes = probe::measure(&mut context, Some((&pool, target.level)), vec![cpu])?;

    let settings = context.settle();
    let mut experiment =
        Preempting { pool: &pool, target, touches, lines_per_jump: options.lines_per_jump, percents, colors };
    let blocks = results::measure("preempting", &mut experiment, &context.amount(options.blocks, options.jobs))?;
    let warnings = notes.iter().map(evidence::note_text).chain(context.warnings(&settings)).collect();
    drop(settings);
    let measured = measured(&context, &experiment, &blocks);
    let (section, raw) = (section(&measured), csv(&blocks, &COLUMNS.map(str::to_owned)));
    results::leave(&options.results, Outcome { context: &context, palette: Some(palette), section, raw, warnings })
}

/// Returns the results of `blocks` of `experiment`. The slope of the delay is compared with the refill time of the machine, if it is known.
fn measured(context: &Context, experiment: &Preempting, blocks: &[Block<Condition>]) -> Crpd {
    let Preempting { pool, target, touches, lines_per_jump, colors, .. } = experiment;
    let mut levels = context.machine.levels.iter().filter(|level| level.level == target.level);
    Crpd {
        touches: *touches,
        lines_per_jump: *lines_per_jump,
        level: target.level,
        ways: target.geometry.ways,
        lines_per_color: target.geometry.lines_per_color(context.machine.page_bytes),
        colors: [colors.len() as u32, pool.colors()],
        passes: PASSES,
        points: conclude(blocks, PASSES, clock::rate_hz()),
        refill_ns: levels
            .find_map(|level| level.refill)
            .map(|fact| [fact.value.clean_ns.0 as f64, fact.value.dirty_ns.0 as f64]),
        modeled: None,
    }
}

/// Measures preemption delays of working sets of `percents` percent of half of the colors in `pool`. Returns the section and all samples.
pub fn in_short(
    context: &Context,
    (pool, target): (&FramePool, Target),
    percents: Vec<u32>,
    (blocks, jobs): (u32, u32),
) -> Result<(Section, String)> {
    let colors = own_colors(None, pool.colors())?;
    let (touches, lines_per_jump) = (Touches::Data, 8);
    let _settings = context.settle();
    let mut experiment = Preempting { pool, target, touches, lines_per_jump, percents, colors };
    let blocks = results::measure("preempting", &mut experiment, &context.amount(blocks, jobs))?;
    let measured = measured(context, &experiment, &blocks);
    Ok((section(&measured), csv(&blocks, &COLUMNS.map(str::to_owned))))
}

/// Returns the number of pages of each color that [`in_short`] takes.
pub fn pages_in_short(target: Target, percents: &[u32], colors: usize) -> usize {
    Preempting::pages_per_color(target, percents, colors)
}

/// Plays preemptions on a modeled machine, for `demo --model` and for machines on which nothing can be shown.
pub fn on_a_model(name: &str, mhz: u32, percents: &[u32]) -> Result<Section> {
    let machine = named_machine(name)?;
    let mut data = machine.levels.iter().filter(|level| can_hold(level.holds, Touches::Data));
    let level = &data.nth(1).with_context(|| format!("{name} has no second level"))?.cache;
    let count = level.geometry.color_count(machine.page_bytes);
    let request = Request {
        machine: &machine,
        level,
        touches: Touches::Data,
        front_end: FrontEnd::SERIAL,
        walks: &[Walk::InOrder],
        percents,
        colors: &own_colors(None, count)?,
        passes: PASSES,
    };
    let blocks = play(&request)?;
    Ok(section(&Crpd {
        touches: Touches::Data,
        lines_per_jump: 8,
        level: 2,
        ways: level.geometry.ways,
        lines_per_color: level.geometry.lines_per_color(machine.page_bytes),
        colors: [request.colors.len() as u32, count],
        passes: PASSES,
        points: conclude(&blocks, PASSES, u64::from(mhz) * 1_000_000),
        refill_ns: None,
        modeled: Some(machine.name.clone()),
    }))
}

/// Runs the experiment on a modeled machine.
fn modeled(options: &CrpdOptions, name: &str, mhz: u32) -> Result<Verdict> {
    let touches = options.kind;
    let machine = named_machine(name)?;
    let number = options.measurement.level.unwrap_or(2);
    let mut holding = machine.levels.iter().filter(|level| can_hold(level.holds, touches));
    let level = usize::from(number).checked_sub(1).and_then(|index| holding.nth(index));
    let level = &level.with_context(|| format!("{name} has no level {number}\n  hint: --level chooses one"))?.cache;
    let count = level.geometry.color_count(machine.page_bytes);
    let (colors, percents) = (own_colors(options.colors.as_deref(), count)?, sizes(options.step));
    // The modeled core waits for each miss, so the order of the lines makes no difference and one walk is enough.
    let request = Request {
        machine: &machine,
        level,
        touches,
        front_end: FrontEnd::SERIAL,
        walks: &[Walk::InOrder],
        percents: &percents,
        colors: &colors,
        passes: PASSES,
    };
    let blocks = play(&request)?;
    let measured = Crpd {
        touches,
        lines_per_jump: options.lines_per_jump,
        level: number,
        ways: level.geometry.ways,
        lines_per_color: level.geometry.lines_per_color(machine.page_bytes),
        colors: [colors.len() as u32, count],
        passes: PASSES,
        points: conclude(&blocks, PASSES, u64::from(mhz) * 1_000_000),
        refill_ns: None,
        modeled: Some(machine.name.clone()),
    };
    let raw = csv(&blocks, &COLUMNS.map(str::to_owned));
    results::leave_modeled(&options.results, &machine.name, section(&measured), &raw)
}

/// Returns the sizes of the working sets in percent of the partition: from 5 to 130 in steps of `step`, always with 50 and 100.
fn sizes(step: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> =
        (step..=130).step_by(step as usize).filter(|percent| *percent > 5).chain([5, 50, 100, 130]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    #[test]
    fn working_sets_go_from_5_to_130_percent() {
        assert_eq!(super::sizes(50), [5, 50, 100, 130]);
        assert_eq!(super::sizes(3).iter().filter(|percent| **percent < 5).count(), 0);
    }
}
