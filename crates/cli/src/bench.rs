//! `isochrome lab filter` and the other kernels: measures the cost of a cache flood to a task, with and without colors of its own.

use anyhow::Result;
use isochrome_host::counters::events::Quantity;
use isochrome_host::load::kernels::KernelKind;
use isochrome_host::sys::clock;
use isochrome_lab::kernels::{Experiment as OfKernel, Jobs, Kernels, Outcome, Work, section};
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::csv;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{BenchKernel, Element};
use crate::coloring::own_colors;
use crate::context::Context;
use crate::verdict::Verdict;
use crate::{evidence, results};

/// Printed result of a kernel.
#[derive(Serialize, JsonSchema)]
pub struct Kernel<'a> {
    #[serde(flatten)]
    experiment: &'a OfKernel,
    /// Number of blocks run, under all conditions.
    blocks: u64,
    /// Number of accepted blocks.
    blocks_quiet: u64,
}

pub fn run(kernel: &BenchKernel) -> Result<Verdict> {
    let (work, options) = match kernel {
        BenchKernel::Filter { taps, element, options } => {
            let kind = if *element == Element::F64 { KernelKind::FilterF64 } else { KernelKind::FilterI32 };
            (Work::Short(kind, *taps), options)
        }
        BenchKernel::Dct { points, options } => (Work::Short(KernelKind::Dct, *points), options),
        BenchKernel::Fft { points, options } => (Work::Short(KernelKind::Fft, *points), options),
        BenchKernel::Matmul { slice_us, options } => (Work::Matmul { slice_us: *slice_us }, options),
        BenchKernel::Combined { rate_hz, options } => (Work::Combined { rate_hz: *rate_hz }, options),
    };
    if let Work::Short(kind, size) = work {
        kind.check_size(size)?;
    }
    let measurement = &options.measurement;
    let context = Context::new(measurement)?;
    let target = context.target(measurement)?;
    let count = target.geometry.color_count(context.machine.page_bytes);
    let colors = options.colors.as_deref().map(|list| own_colors(Some(list), count)).transpose()?;
    let (palette, pool) = context.collect(measurement, target, colors.as_ref().map(Vec::len))?;

    let (counters, settings) = (context.counters(2, Some(Quantity::L1DataRefills)), context.settle());
    let mut jobs = Jobs::new(Some(&pool), target, counters.as_ref(), &[work], colors)?;
    let blocks = results::measure(work.name(), &mut jobs, &context.amount(options.blocks, options.jobs))?;
    let warnings = evidence::warnings(&context, counters.is_some(), &settings);
    drop(settings);
    let kernels = Kernels { counter_hz: Some(clock::rate_hz()), experiments: jobs.conclude(&blocks) };
    let (section, raw) = (section(&kernels, &context.machine, Some(&palette)), csv(&blocks, &jobs.columns()));
    let experiment = &kernels.experiments[0];
    let count = |of: fn(&Outcome) -> u64| experiment.conditions.values().map(of).sum::<u64>();
    let kernel = Kernel { experiment, blocks: count(|it| it.blocks), blocks_quiet: count(|it| it.blocks_quiet) };
    let numbers = serde_json::to_value(kernel)?;
    let outcome = results::Outcome { context: &context, palette: Some(palette), section, raw, warnings };
    results::leave_as(&options.results, outcome, &numbers)
}
