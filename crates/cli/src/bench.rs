//! `isochrome bench`: what a cache flood costs a task, with and without colors of its own.

use anyhow::Result;
use isochrome_host::kernels::KernelKind;
use isochrome_host::sys::clock;
use isochrome_lab::kernels::{At, Experiment as OfKernel, Jobs, Kernels, Outcome, Work, section};
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::{Block, csv};
use isochrome_model::evidence::RawFile;
use isochrome_model::units::{Color, parse_list};
use isochrome_report::text::table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{BenchKernel, BenchOptions, Element, RunOptions};
use crate::station::Station;
use crate::{Verdict, conflicts, crpd, evidence, files, interference, net, results, switch};

/// One kernel as printed.
#[derive(Serialize, JsonSchema)]
pub struct Kernel<'a> {
    #[serde(flatten)]
    experiment: &'a OfKernel,
    /// Blocks run, under all conditions.
    blocks: u64,
    /// Those that count.
    blocks_quiet: u64,
}

pub fn run(options: &BenchOptions) -> Result<Verdict> {
    let (work, options) = match &options.kernel {
        BenchKernel::Filter { taps, element: Element::F64, options } => {
            (Work::Short(KernelKind::FilterF64, *taps), options)
        }
        BenchKernel::Filter { taps, element: Element::I32, options } => {
            (Work::Short(KernelKind::FilterI32, *taps), options)
        }
        BenchKernel::Dct { points, options } => (Work::Short(KernelKind::Dct, *points), options),
        BenchKernel::Fft { points, options } => (Work::Short(KernelKind::Fft, *points), options),
        BenchKernel::Matmul { slice_us, options } => (Work::Matmul { slice_us: *slice_us }, options),
        BenchKernel::Conflicts(options) => return conflicts::run(options),
        BenchKernel::Crpd(options) => return crpd::run(options),
        BenchKernel::Switch(options) => return switch::run(options),
        BenchKernel::Net(options) => return net::run(options),
        BenchKernel::Interference(options) => return interference::run(options),
        BenchKernel::Combined { rate_hz, options } => (Work::Combined { rate_hz: *rate_hz }, options),
    };
    if let Work::Short(kind, size) = work {
        kind.check_size(size)?;
    }
    let place = &options.place;
    let station = Station::new(place)?;
    let target = station.target(place)?;
    let colors = own_colors(options, target.geometry.color_count(station.machine.page_bytes))?;
    let (palette, pool) = station.collect(place, target, colors.as_ref().map(Vec::len))?;

    let (counters, settings) = (station.counters(), station.settle());
    let mut jobs = Jobs::new(Some(&pool), target, counters.as_ref(), &[work], colors)?;
    let blocks = measure(&mut jobs, &station, work.name(), (options.blocks, options.jobs))?;
    let warnings = evidence::warnings(&station, &jobs, counters.is_some(), &settings);
    drop(settings);
    let kernels = Kernels { counter_hz: Some(clock::rate_hz()), experiments: jobs.conclude(&blocks) };
    let mut section = section(&kernels, &station.machine, Some(&palette));
    let verdict = results::verdict(&section);
    let mut raw = Vec::new();
    if let Some(path) = &options.raw {
        let text = csv(&blocks, &jobs.columns());
        files::write(path, &text)?;
        raw.push(RawFile { path: path.display().to_string(), sha256: files::sha256(&text) });
    }
    if options.json {
        let experiment = &kernels.experiments[0];
        let count = |of: fn(&Outcome) -> u64| experiment.conditions.values().map(of).sum::<u64>();
        let kernel = Kernel { experiment, blocks: count(|it| it.blocks), blocks_quiet: count(|it| it.blocks_quiet) };
        let all = std::mem::replace(&mut section.numbers, serde_json::to_value(kernel)?);
        results::print(true, &section, station.seed)?;
        section.numbers = all;
    }
    let evidence = evidence::of(&station, Some(palette), vec![section], &raw, warnings);
    if let Some(path) = &options.output {
        files::write_json(path, &evidence)?;
    }
    if !options.json {
        files::print(&table(&evidence))?;
    }
    Ok(verdict)
}

/// The blocks of `jobs`. Without canary pages no number of rounds makes a block count, so that there is one.
pub fn measure(
    jobs: &mut Jobs<'_>,
    station: &Station,
    what: &'static str,
    (blocks, samples): (u32, u32),
) -> Result<Vec<Block<At>>> {
    if !jobs.has_canaries() {
        eprintln!("cached and evicted lines cannot be told apart by time here: no block will count");
    }
    results::measure(what, jobs, &station.amount(blocks, samples))
}

fn own_colors(options: &RunOptions, count: u32) -> Result<Option<Vec<Color>>> {
    let Some(list) = &options.colors else { return Ok(None) };
    let colors = parse_list(list, count)?;
    anyhow::ensure!(!colors.is_empty(), "the list of colors is empty\n  hint: --colors 0-3");
    anyhow::ensure!(
        (colors.len() as u32) < count,
        "all {count} colors for the task leave none for anything else\n  hint: --colors 0-{}",
        (count / 2).max(1) - 1
    );
    Ok(Some(colors.into_iter().map(|color| Color(color as u16)).collect()))
}
