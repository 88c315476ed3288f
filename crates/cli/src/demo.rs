//! `isochrome demo`: the heart of [Liedtke1997, §5] on this machine, and a report.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use isochrome_host::doctor;
use isochrome_host::experiment::{Amount, Bench, Measured, Work};
use isochrome_host::interrupt;
use isochrome_host::kernels::KernelKind;
use isochrome_host::palette::Collection;
use isochrome_host::sysfs::Note;
use isochrome_model::evidence::Experiment;
use isochrome_model::experiment::quiet_blocks_at_least;
use isochrome_model::report::{html, text::table};
use isochrome_model::units::CpuId;

use crate::args::DemoOptions;
use crate::station::{Station, spinner};
use crate::{Verdict, bench, evidence, files, probe};

/// Blocks of each condition, jobs of each kind in a block.
const AMOUNT: (usize, usize) = (60, 10);
const QUICK_AMOUNT: (usize, usize) = (8, 5);

/// Time slices of the matrix multiplication, in microseconds. [Liedtke1997, Fig. 7]
const SLICES_US: [u64; 6] = [25, 50, 100, 250, 500, 1000];
/// Rates of interruption. [Liedtke1997, Fig. 8]
const RATES_HZ: [u64; 4] = [2000, 5000, 10_000, 20_000];

pub fn run(options: &DemoOptions) -> Result<Verdict> {
    let folder = &options.output;
    let shown = folder.display();
    fs::create_dir_all(folder)
        .with_context(|| format!("{shown}: cannot create\n  hint: choose another folder with -o"))?;
    eprintln!("{}", crate::doctor::brief(&doctor::examine(Duration::from_millis(100))));

    let place = &options.place;
    let mut station = Station::new(place)?;
    let mut warnings = warnings_of(&station);
    let mut experiments = Vec::new();
    let mut raw = Vec::new();
    let mut palette = None;
    match collect(&station, options) {
        Ok((target, collection)) => {
            let found = collection.evidence();
            eprintln!("level {}: {} colors by {} in {:.1} s", found.level, found.colors, found.method, found.seconds);
            warnings
                .extend(collection.inference.doubts.iter().map(|doubt| format!("The palette is in doubt: {doubt}.")));
            let level = found.level;
            palette = Some(found);
            let pool = probe::pool_of(collection);
            if !options.quick {
                let cpus = probed_cpus(&station);
                warnings.extend(probe::measure(&mut station, Some((&pool, level)), cpus)?.iter().map(told));
            }
            let counters = station.counters();
            let settings = station.settle();
            warnings.extend(settings.notes().iter().map(told));
            let bench = Bench::new(&pool, target, counters.as_ref(), &station.sysfs);
            let (blocks, jobs) = if options.quick { QUICK_AMOUNT } else { AMOUNT };
            let amount = Amount { cpu: station.cpu, blocks, jobs, colors: None, seed: station.seed };
            for (kernel, works) in works(options.quick) {
                let mut measured: Vec<Measured> = Vec::new();
                for work in works {
                    if interrupt::interrupted() {
                        break;
                    }
                    eprintln!("  {work}");
                    measured.push(bench::measure(&bench, work, &amount)?);
                }
                experiments.extend(measured.iter().map(bench::experiment));
                raw.push(evidence::write_raw(folder, &format!("{kernel}.csv"), &measured)?);
            }
        }
        Err(error) => {
            warnings.insert(0, format!("No colors, so no partitioning here: {error:#}"));
            let cpus = probed_cpus(&station);
            warnings.extend(probe::measure(&mut station, None, cpus)?.iter().map(told));
        }
    }
    if interrupt::interrupted() {
        warnings.insert(0, "Interrupted: what was not measured by then is missing.".to_owned());
    }

    let conclusive = experiments.iter().any(|e: &Experiment| quiet_blocks_at_least(&e.conditions) > 0);
    let evidence = evidence::of(&station, palette, experiments, &raw, warnings);
    files::write_json(&folder.join("evidence.json"), &evidence)?;
    let index = folder.join("index.html");
    files::write(&index, &html(&evidence))?;
    files::print(&table(&evidence))?;
    let index = fs::canonicalize(&index).unwrap_or(index);
    files::print(&format!("\nreport: {}\n", index.display()))?;
    Ok(if conclusive { Verdict::Holds } else { Verdict::Inconclusive })
}

fn collect(station: &Station, options: &DemoOptions) -> Result<(isochrome_host::palette::Target, Collection)> {
    let target = station.target(&options.place)?;
    let _settings = station.pin();
    let bar = spinner("finding colors");
    let collection = station.collect(&options.place, target)?;
    bar.finish_and_clear();
    Ok((target, collection))
}

/// What is run, by kernel.
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

/// What the reader must know of the machine to judge the numbers.
fn warnings_of(station: &Station) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(hypervisor) = &station.machine.hypervisor {
        warnings.push(format!(
            "This is a virtual machine ({hypervisor}): other guests share caches and CPUs unseen. Only blocks whose control was \
             quiet count; how many were is stated with every result."
        ));
    }
    if station.counters().is_none() {
        warnings.push(
            "No performance counters of cache misses here: lines lost are judged by time, and miss counts are absent."
                .to_owned(),
        );
    }
    warnings.extend(station.notes.iter().map(told));
    warnings
}

fn told(note: &Note) -> String {
    format!("{}: {} (hint: {})", note.subject, note.reason, note.hint)
}

/// The CPU measured on and a few others, to see whether they share its caches.
fn probed_cpus(station: &Station) -> Vec<CpuId> {
    const OTHERS: usize = 2;
    let others = station.machine.cpus.iter().copied().filter(|cpu| *cpu != station.cpu).take(OTHERS);
    std::iter::once(station.cpu).chain(others).collect()
}
