//! `isochrome lab switch`: measures the cost of passing the CPU from one task to another, and the cache's part of it.

use anyhow::Result;
use isochrome_host::color::Target;
use isochrome_host::sys::clock;
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::csv;
use isochrome_lab::switch::{Kind, Switches, Switching, conclude, conditions, pages_per_color, section};

use crate::args::SwitchOptions;
use crate::coloring::own_colors;
use crate::context::Context;
use crate::hints;
use crate::results::{self, Outcome};
use crate::verdict::Verdict;

pub fn run(options: &SwitchOptions) -> Result<Verdict> {
    let measurement = &options.measurement;
    let context = Context::new(measurement)?;
    // Without colors, all rows but the partitioned ones are measured.
    let colored = context
        .target(measurement)
        .and_then(|target| Ok((target, context.collect_pages(measurement, target, pages_per_color(target))?)));
    let mut warnings = Vec::new();
    let (target, palette, pool) = match colored {
        Ok((target, (palette, pool))) => (target, Some(palette), Some(pool)),
        Err(error) => {
            eprintln!("no colors: {}", hints::text(&*error));
            warnings.push(
                "No colors: floods use ordinary memory, and the effect of partitions is not measured.".to_owned(),
            );
            let target = Target::to_flood(&context.machine, context.cpu);
            (target.ok_or(error)?, None, None)
        }
    };
    let colors = match &pool {
        Some(pool) => own_colors(options.colors.as_deref(), pool.colors())?,
        None => Vec::new(),
    };
    let settings = context.settle();
    let conditions = conditions(pool.is_some());
    if conditions.iter().all(|condition| condition.kind == Kind::Switch) {
        let text = "No SCHED_FIFO: preemptions are not measured, only switches between threads of equal priority (hint: run as root).";
        eprintln!("{text}");
        warnings.push(text.to_owned());
    }
    let mut experiment = Switching::new(pool.as_ref(), target, colors.clone(), conditions)?;
    let blocks = results::measure("switching", &mut experiment, &context.amount(options.blocks, options.jobs))?;
    warnings.extend(context.warnings(&settings));
    drop(settings);
    let measured = Switches {
        level: target.level,
        colors: pool.as_ref().map(|pool| [colors.len() as u32, pool.colors()]),
        rows: conclude(&blocks, clock::rate_hz()),
    };
    let (section, raw) = (section(&measured), csv(&blocks, &experiment.columns()));
    results::leave(&options.results, Outcome { context: &context, palette, section, raw, warnings })
}
