//! `isochrome demo`: repeats the main experiments of [Liedtke1997, §5] on this machine and writes a report.

mod taskset;

use std::fs;
use std::time::Duration;

use anyhow::Result;
use isochrome_host::color::{ColorError, Target};
use isochrome_host::counters::events::Quantity;
use isochrome_host::doctor;
use isochrome_host::interrupt;
use isochrome_host::load::kernels::KernelKind;
use isochrome_host::sys::clock;
use isochrome_lab::error::LabError;
use isochrome_lab::kernels::{Jobs, Kernels, Work, section};
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::csv;
use isochrome_model::evidence::RawFile;
use isochrome_model::units::CpuId;
use isochrome_report::{html, text::table};

use crate::args::{DemoOf, DemoOptions, Verb};
use crate::context::{Context, InDoubt};
use crate::verdict::Verdict;
use crate::{evidence, files, hints, probe, results};

/// Number of blocks of each condition, and number of jobs of each kind in a block.
const AMOUNT: (u32, u32) = (60, 10);
/// The same for `--quick`.
const QUICK_AMOUNT: (u32, u32) = (8, 5);

/// Time slices of the matrix multiplication, in microseconds. [Liedtke1997, Fig. 7]
const SLICES_US: [u64; 6] = [25, 50, 100, 250, 500, 1000];
/// Rates of interruption, in Hz. [Liedtke1997, Fig. 8]
const RATES_HZ: [u64; 4] = [2000, 5000, 10_000, 20_000];

/// Carries out `demo`. `carry_out` carries out the verbs of which `demo taskset` consists.
pub fn run(options: &DemoOptions, carry_out: fn(Verb) -> Result<Verdict>) -> Result<Verdict> {
    if let Some(DemoOf::Taskset(options)) = &options.of {
        return taskset::run_all(options, carry_out);
    }
    let folder = &options.output;
    files::make_folder(folder)?;
    eprintln!("{}", crate::doctor::brief(&doctor::examine(Duration::from_millis(100))));

    let measurement = &options.measurement;
    let mut context = Context::new(measurement)?;
    let mut warnings = Vec::new();
    let colored =
        context.target(measurement).and_then(|target| Ok((target, context.collect(measurement, target, None)?)));
    let (target, found) = match colored {
        Ok((target, found)) => (Some(target), Some(found)),
        // A limitation of the machine becomes a warning in the report; a wrong option is an error.
        Err(error) if is_of_the_machine(&error) => {
            warnings.push(format!("No colors, so no partitioning here: {}", hints::text(&*error)));
            (Target::to_flood(&context.machine, context.cpu), None)
        }
        Err(error) => return Err(error),
    };
    let (palette, pool) = found.unzip();
    if let Some(found) = &palette {
        eprintln!("level {}: {} colors by {} in {:.1} s", found.level, found.colors, found.method, found.seconds);
    }
    if !options.quick {
        let cpus = probed_cpus(&context);
        let of_level = pool.as_ref().zip(palette.as_ref()).map(|(pool, found)| (pool, found.level));
        warnings.extend(probe::measure(&mut context, of_level, cpus)?.iter().map(evidence::note_text));
    }

    let mut experiments = Vec::new();
    let mut raw = Vec::new();
    if let Some(target) = target {
        let (counters, settings) = (context.counters(2, Some(Quantity::L1DataRefills)), context.settle());
        let amount = if options.quick { QUICK_AMOUNT } else { AMOUNT };
        for (kernel, works) in works(options.quick) {
            if interrupt::interrupted() {
                break;
            }
            let mut jobs = match Jobs::new(pool.as_ref(), target, counters.as_ref(), &works, None) {
                Ok(jobs) => jobs,
                Err(error @ LabError::NoCanaries { .. }) => {
                    warnings.push(format!("Not measured: {kernel}: {}", hints::text(&error)));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            eprintln!("  {kernel}");
            let blocks = results::measure(kernel, &mut jobs, &context.amount(amount.0, amount.1))?;
            experiments.extend(jobs.conclude(&blocks));
            let name = format!("{kernel}.csv");
            let file = files::write_raw(&folder.join(&name), &csv(&blocks, &jobs.columns()))?;
            raw.push(RawFile { path: name, ..file });
        }
        warnings.splice(0..0, evidence::warnings(&context, counters.is_some(), &settings));
    }

    let kernels = Kernels { counter_hz: Some(clock::rate_hz()), experiments };
    let section = section(&kernels, &context.machine, palette.as_ref());
    let verdict = results::verdict(&section);
    let evidence = evidence::of(&context, palette, vec![section], &raw, warnings);
    files::write_json(&folder.join("evidence.json"), &evidence)?;
    let index = folder.join("index.html");
    files::write(&index, &html(&evidence))?;
    files::print(&table(&evidence))?;
    let index = fs::canonicalize(&index).unwrap_or(index);
    files::print(&format!("\nreport: {}\n", index.display()))?;
    Ok(verdict)
}

/// Whether `error` is due to the machine or its present state, and not to wrong options.
fn is_of_the_machine(error: &anyhow::Error) -> bool {
    error.is::<InDoubt>()
        || error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<ColorError>())
            .any(|error| error.may_pass() || matches!(error, ColorError::OneColor { .. }))
}

/// Returns the CPU of the context and a few others, which are probed to find out whether they share caches with it.
fn probed_cpus(context: &Context) -> Vec<CpuId> {
    const OTHERS: usize = 2;
    let others = context.allowed.iter().copied().filter(|cpu| *cpu != context.cpu).take(OTHERS);
    std::iter::once(context.cpu).chain(others).collect()
}

/// Returns the jobs that are run, by kernel.
fn works(quick: bool) -> Vec<(&'static str, Vec<Work>)> {
    let short = |kind: KernelKind| {
        let sweep = kind.sizes().sweep;
        let chosen: Vec<usize> = if quick { vec![sweep[sweep.len() - 3]] } else { sweep.to_vec() };
        (kind.name(), chosen.into_iter().map(|size| Work::Short(kind, size)).collect())
    };
    let few = |all: &[u64]| if quick { all[1..2].to_vec() } else { all.to_vec() };
    vec![
        short(KernelKind::FilterF64),
        short(KernelKind::Dct),
        short(KernelKind::Fft),
        ("matmul", few(&SLICES_US).into_iter().map(|slice_us| Work::Matmul { slice_us }).collect()),
        ("combined", few(&RATES_HZ).into_iter().map(|rate_hz| Work::Combined { rate_hz }).collect()),
    ]
}
