//! `isochrome bench`: what a cache flood costs a task, with and without colors of its own.

use std::collections::BTreeMap;

use anyhow::Result;
use isochrome_host::experiment::{Amount, Bench, Measured, Work};
use isochrome_host::interrupt;
use isochrome_host::kernels::KernelKind;
use isochrome_host::sys::clock;
use isochrome_model::evidence::{Experiment, RawFile};
use isochrome_model::experiment::{conclude, quiet_blocks_at_least};
use isochrome_model::report::{is_conclusive, text::table};
use isochrome_model::units::{Color, parse_list};

use serde::Serialize;

use crate::args::{BenchKernel, BenchOptions, Element, RunOptions};
use crate::station::{Station, progress};
use crate::{Verdict, conflicts, crpd, evidence, files, interference, net, switch};

/// Quiet blocks of each condition aimed at.
pub const QUIET_BLOCKS: u64 = 10;
/// Rounds of blocks at most.
pub const ROUNDS: u64 = 4;

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
    let bench = Bench::new(Some(&pool), target, counters.as_ref(), &station.sysfs);
    let amount = Amount {
        cpu: station.cpu,
        blocks: options.blocks as usize,
        jobs: options.jobs as usize,
        colors,
        seed: station.seed,
    };
    let measured = measure(&bench, work, &amount)?;
    let warnings = evidence::warnings(&station, &bench, &settings);
    drop(settings);

    let experiment = experiment(&measured);
    let interrupted = measured.interrupted;
    let mut raw = Vec::new();
    if let Some(path) = &options.raw {
        let text = evidence::raw_csv(&[measured]);
        files::write(path, &text)?;
        raw.push(RawFile { path: path.display().to_string(), sha256: files::sha256(&text) });
    }
    let evidence = evidence::of(&station, Some(palette), vec![experiment.clone()], &raw, warnings);
    if let Some(path) = &options.output {
        files::write_json(path, &evidence)?;
    }
    if options.json {
        let blocks = experiment.conditions.values().map(|outcome| outcome.blocks).sum();
        let blocks_quiet = experiment.conditions.values().map(|outcome| outcome.blocks_quiet).sum();
        files::print_json(&Printed {
            experiment,
            blocks,
            blocks_quiet,
            counter_hz: clock::rate_hz(),
            seed: station.seed,
        })?;
    } else {
        files::print(&table(&evidence))?;
    }
    Ok(if is_conclusive(&evidence) && !interrupted { Verdict::Holds } else { Verdict::Inconclusive })
}

/// The result as printed: the experiment, and beside its conditions the blocks of all of them.
#[derive(Serialize)]
struct Printed {
    #[serde(flatten)]
    experiment: Experiment,
    blocks: u64,
    blocks_quiet: u64,
    /// Rate of the counter that all `cycles` are ticks of.
    counter_hz: u64,
    seed: u64,
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

/// Runs `work`, and again while too few blocks are quiet.
pub fn measure(bench: &Bench<'_>, work: Work, amount: &Amount) -> Result<Measured> {
    let mut all: Option<Measured> = None;
    for round in 0..ROUNDS {
        let bar = progress(&work.to_string(), 1);
        let amount = Amount { seed: amount.seed.wrapping_add(round), ..amount.clone() };
        let more = bench.run(work, &amount, |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })?;
        bar.finish_and_clear();
        let measured = match all.take() {
            None => more,
            Some(mut measured) => {
                measured.blocks.extend(more.blocks);
                measured.interrupted |= more.interrupted;
                measured
            }
        };
        let quiet = quiet_blocks_at_least(&conclude(&measured.blocks));
        // Without witness no number of rounds makes a block quiet.
        let enough =
            quiet >= QUIET_BLOCKS.min(amount.blocks as u64) || interrupt::interrupted() || !bench.has_witness();
        all = Some(measured);
        if enough {
            break;
        }
    }
    Ok(all.expect("there is at least one round"))
}

/// What the jobs mean.
pub fn experiment(measured: &Measured) -> Experiment {
    let (name, value) = measured.work.parameter();
    Experiment {
        bench: measured.work.bench().to_owned(),
        parameter: BTreeMap::from([(name.to_owned(), value)]),
        element: measured.work.element().to_owned(),
        working_set: measured.working_set,
        conditions: conclude(&measured.blocks),
    }
}
