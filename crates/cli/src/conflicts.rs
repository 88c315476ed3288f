//! `isochrome lab conflicts`: measures the cost of conflicts among a buffer's pages, and derives the miss penalty from it.

use anyhow::Result;
use isochrome_lab::conflicts::{Walks, pages_per_color, section};
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::csv;

use crate::args::ConflictsOptions;
use crate::context::Context;
use crate::results::{self, Outcome};
use crate::verdict::Verdict;

pub fn run(options: &ConflictsOptions) -> Result<Verdict> {
    let measurement = &options.measurement;
    let context = Context::new(measurement)?;
    let target = context.target(measurement)?;
    let pages = pages_per_color(target, options.buffers, context.seed);
    let (palette, pool) = context.collect_pages(measurement, target, pages)?;
    let settings = context.settle();
    let mut experiment = Walks::new(&pool, target, options.buffers, context.seed)?;
    let blocks = results::measure("walking over buffers", &mut experiment, &context.amount(options.rounds, 1))?;
    let measured = experiment.conclude(&blocks);
    let warnings = context.warnings(&settings);
    drop(settings);
    let section = section(&measured);
    let raw = csv(&blocks, &experiment.columns());
    let outcome = Outcome { context: &context, palette: Some(palette), section, raw, warnings };
    results::leave(&options.results, outcome)
}
