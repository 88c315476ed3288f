//! The kernels of [Liedtke1997, §5], with and without colors of their own.

use anyhow::Result;
use isochrome_host::counters::events::Quantity;
use isochrome_host::interrupt;
use isochrome_host::load::kernels::KernelKind;
use isochrome_host::sys::clock;
use isochrome_lab::error::LabError;
use isochrome_lab::kernels::{Jobs, Kernels, Work, section};
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::csv;
use isochrome_model::evidence::{PaletteEvidence, RawFile};

use super::{Colored, Shown};
use crate::args::DemoOptions;
use crate::context::Context;
use crate::{evidence, files, hints, results};

/// Number of blocks of each condition, and number of jobs of each kind in a block.
const AMOUNT: (u32, u32) = (60, 10);
/// Amount for `--quick`: number of blocks of each condition, and number of jobs of each kind in a block.
const QUICK_AMOUNT: (u32, u32) = (8, 5);

/// Time slices of the matrix multiplication, in microseconds. [Liedtke1997, Fig. 7]
const SLICES_US: [u64; 6] = [25, 50, 100, 250, 500, 1000];
/// Rates of interruption, in Hz. [Liedtke1997, Fig. 8]
const RATES_HZ: [u64; 4] = [2000, 5000, 10_000, 20_000];

/// Measures all kernels, and adds their section to what is `shown`.
pub fn measure(
    options: &DemoOptions,
    context: &Context,
    (pool, target): Colored<'_>,
    palette: &PaletteEvidence,
    shown: &mut Shown,
) -> Result<()> {
    let mut experiments = Vec::new();
    let (counters, settings) = (context.counters(2, Some(Quantity::L1DataRefills)), context.settle());
    let amount = if options.quick { QUICK_AMOUNT } else { AMOUNT };
    for (kernel, works) in works(options.quick) {
        if interrupt::interrupted() {
            break;
        }
        let mut jobs = match Jobs::new(Some(pool), target, counters.as_ref(), &works, None) {
            Ok(jobs) => jobs,
            Err(error @ LabError::NoCanaries { .. }) => {
                shown.warnings.push(format!("Not measured: {kernel}: {}", hints::text(&error)));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        eprintln!("  {kernel}");
        let blocks = results::measure(kernel, &mut jobs, &context.amount(amount.0, amount.1))?;
        experiments.extend(jobs.conclude(&blocks));
        let name = format!("{kernel}.csv");
        let file = files::write_raw(&options.output.join(&name), &csv(&blocks, &jobs.columns()))?;
        shown.raw.push(RawFile { path: name, ..file });
    }
    shown.warnings.splice(0..0, evidence::warnings(context, counters.is_some(), &settings));
    let kernels = Kernels { counter_hz: Some(clock::rate_hz()), experiments };
    shown.sections.push(section(&kernels, &context.machine, Some(palette)));
    Ok(())
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
