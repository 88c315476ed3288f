//! Execution times on a modeled machine: simulates the trace of one job of each task with each share of the colors.

use anyhow::{Context as _, Result, ensure};
use isochrome_host::interrupt;
use isochrome_model::machine::Holds;
use isochrome_model::profile::{Profile, ProfilingRun, Request};
use isochrome_model::sim::{Allocation, MachineModel, PageTable};
use isochrome_model::stats::HighWaterMark;
use isochrome_model::taskset::Scope;
use isochrome_model::taskset::programs::Declared;
use isochrome_model::trace::Format;
use isochrome_model::units::Bytes;

use crate::args::{ProfileOptions, Program};
use crate::files;
use crate::simulate::{TOO_MANY_COLORS, each_batch, named_machine};

/// Memory of a modeled machine: so much that it never limits a plan.
const MEMORY: Bytes = Bytes(64 << 30);

/// Returns the profile of the tasks on the modeled machine, from a trace of each.
pub fn run(options: &ProfileOptions, name: &str, declared: Declared, text: &str) -> Result<Profile> {
    let programs = declared.programs.clone();
    let machine = named_machine(name)?;
    let mhz = options.mhz.context("how long a cycle takes is not known\n  hint: --mhz 3400")?;
    let traces = programs.periodic().map(|task| trace_of(&options.trace, &task.name)).collect::<Result<Vec<_>>>()?;
    let number = usize::from(programs.level);
    let data = || machine.levels.iter().filter(|level| level.holds != Holds::Instruction);
    let level = data().nth(number - 1);
    let level = level.with_context(|| format!("{} has no data level {}", machine.name, programs.level))?;
    let colors = level.cache.color_count(machine.page_bytes);
    let partitions = super::partitions(options, &declared, colors);
    ensure!(
        partitions <= colors,
        "--partitions {partitions} are more than the {colors} colors of {}",
        level.cache.name
    );
    // Misses come one after the other and memory answers each, because nothing guarantees that a level in between holds the line.
    let between: u64 = machine.timing.read_cycles.iter().skip(number - 1).sum();
    let miss_cycles = between + machine.timing.memory_read_cycles;
    let geometry = level.cache.geometry;
    let lines = u64::from(geometry.ways) * geometry.set_count / u64::from(colors);
    let nanoseconds = |cycles: u64| (cycles as f64 * 1e3 / f64::from(mhz)).ceil() as u64;
    let mut profile = Profile {
        by: format!(
            "a trace of one job of each task on the modeled {} at {mhz} MHz, the caches warm from the same job",
            machine.name
        ),
        cache: if level.shared { Scope::Shared } else { Scope::Private },
        memory_bytes: MEMORY,
        refill_ns_per_partition: Some(nanoseconds(lines * miss_cycles)),
        ..Profile::begin(programs, partitions, files::sha256(text), options.margin / 100.0)
    };
    super::carry(&mut profile, options, &declared)?;
    let periodic: Vec<usize> =
        (0..profile.tasks.len()).filter(|task| !profile.tasks[*task].program.best_effort).collect();
    let request = Request { jobs: 1, jobs_per_run: 1, flat: options.flat / 100.0, seed: 0 };
    profile.measure(
        request,
        |task, partitions, _| {
            let trace = &traces[periodic.iter().position(|of| *of == task).expect("only periodic tasks are measured")];
            let (cycles, misses) = job(&machine, number, colors, partitions, trace)?;
            let time = nanoseconds(cycles);
            let longest = HighWaterMark { value: time, n: 1, last_rose_at: 1 };
            let run = ProfilingRun {
                jobs: 1,
                sum_ns: time,
                median_ns: time,
                longest,
                waiting_ns: 0,
                jobs_with_steal: 0,
                misses: Some(misses),
                cycles_per_instruction: None,
            };
            Ok::<_, anyhow::Error>((!interrupt::interrupted()).then_some(run))
        },
        |profile| files::write_json(&options.output, profile),
    )?;
    Ok(profile)
}

/// Returns the trace that `given` names for `task`: as `TASK=FILE`, or as `TASK=workload:SPEC`.
fn trace_of(given: &[String], task: &str) -> Result<Program> {
    let found = given.iter().find_map(|text| text.strip_prefix(task)?.strip_prefix('='));
    let found = found.with_context(|| {
        format!("{task}: no trace of a job is given\n  hint: --trace {task}=FILE, or --trace {task}=workload:fft:points=1024")
    })?;
    let program = Program { trace: None, format: Format::Iso, data_only: false, workload: None };
    Ok(match found.strip_prefix("workload:") {
        Some(spec) => Program { workload: Some(spec.parse()?), ..program },
        None => Program { trace: Some(found.into()), ..program },
    })
}

/// Simulates two jobs, and returns the cycles of the second and its misses of the level.
fn job(machine: &MachineModel, level: usize, colors: u32, partitions: u32, trace: &Program) -> Result<(u64, u64)> {
    let allocation = Allocation::first_colors(partitions, colors).context(TOO_MANY_COLORS)?;
    let (mut pages, mut caches) = (PageTable::new(machine.page_bytes, allocation), machine.hierarchy(1)?);
    for _ in 0..2 {
        caches.reset_counts();
        each_batch(trace, |batch| pages.run(batch, &mut caches))?;
    }
    let data = machine.levels.iter().filter(|level| level.holds != Holds::Instruction);
    let name = data.map(|level| level.cache.name.clone()).nth(level - 1).unwrap_or_default();
    let counts = caches.caches_named(&name).first().map(|cache| caches.counts(*cache));
    Ok((caches.cycles(), counts.map_or(0, |counts| counts.read_misses + counts.write_misses)))
}
