//! `isochrome probe`: measures the caches of this machine.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use isochrome_host::color::pool::FramePool;
use isochrome_host::machine::sysfs::Note;
use isochrome_host::probe::{ProbeRequest, probe, supply};
use isochrome_model::costs::Costs;
use isochrome_model::machine::{CacheLevel, Fact, Holds, Machine, SCHEMA, Source};
use isochrome_model::supply::CpuSupply;
use isochrome_model::units::{CpuId, Ns, format_list};
use isochrome_report::retention_sentence;

use crate::args::ProbeOptions;
use crate::context::Context;
use crate::progress::{self, Takes};
use crate::verdict::Verdict;
use crate::{files, hints};

pub fn run(options: &ProbeOptions) -> Result<Verdict> {
    let measurement = &options.measurement;
    let mut context = Context::new(measurement)?;
    // Without colors the refill time of a color cannot be measured, but everything else is.
    let colors = context
        .target(measurement)
        .and_then(|target| Ok((context.collect(measurement, target, None)?.1, target.level)));
    let pool = match colors {
        Ok(pool) => Some(pool),
        Err(error) => {
            eprintln!("no refill time per color: {}", hints::text(&*error));
            None
        }
    };
    let cpus = measurement.cpu.map_or_else(|| context.machine.cpus.clone(), |cpu| vec![CpuId(cpu)]);
    let mut notes = measure(&mut context, pool.as_ref().map(|(pool, level)| (pool, *level)), cpus.clone())?;
    if options.supply_time > Ns(0) {
        let allowed = isochrome_host::machine::setting::allowed_cpus()?;
        let cpus: Vec<CpuId> = cpus.into_iter().filter(|cpu| allowed.contains(cpu)).collect();
        // Half of the CPUs are watched at a time.
        let time = Duration::from_nanos(options.supply_time.0.saturating_mul(if cpus.len() > 1 { 2 } else { 1 }));
        let bar = progress::step("supply", Takes::For(time), "the table");
        let progress = |doing: &str| bar.set_message(format!("{doing} (all CPUs take {time:.0?})"));
        notes.extend(supply::measure(&mut context.machine, &cpus, options.supply_time, progress));
        bar.finish_and_clear();
    }
    // A terminal shows the notes once, at the end of the text.
    if options.output.json || !io::stdout().is_terminal() {
        eprint!("{}", notes_text(&notes));
    }
    files::leave(&options.output, &context.machine, || text(&context.machine, &notes))?;
    Ok(Verdict::Holds)
}

/// Reads the probe result for `machine` from `path`. Fails if it was measured on another machine.
pub fn saved(path: &Path, machine: &Machine) -> Result<Machine> {
    let (shown, saved): (_, Machine) = (path.display(), files::read_json(path, SCHEMA)?);
    anyhow::ensure!(
        saved.fingerprint() == machine.fingerprint(),
        "{shown}: was measured on another machine\n  hint: isochrome probe -o {shown}"
    );
    Ok(saved)
}

/// Measures the machine on the CPU of the context, and then on those of `cpus` where this process may run. Returns notes on what could not be
/// measured, and on what contradicts the declared values.
///
/// The calling thread must not be pinned, because its affinity decides which other CPUs can be measured.
pub fn measure(context: &mut Context, pool: Option<(&FramePool, u8)>, cpus: Vec<CpuId>) -> Result<Vec<Note>> {
    let allowed = isochrome_host::machine::setting::allowed_cpus()?;
    let others = cpus.into_iter().filter(|&cpu| cpu != context.cpu);
    let (others, forbidden): (Vec<CpuId>, Vec<CpuId>) = others.partition(|cpu| allowed.contains(cpu));
    let cpus = std::iter::once(context.cpu).chain(others).collect();

    let bar = progress::step("probing", Takes::Words("seconds for each CPU"), "");
    let request = ProbeRequest { cpus, seed: context.seed };
    let mut notes =
        probe(&mut context.machine, pool, &request, |doing| bar.set_message(format!("{doing} (seconds for each CPU)")));
    bar.finish_and_clear();
    if !forbidden.is_empty() {
        let list: Vec<u32> = forbidden.iter().map(|cpu| cpu.0).collect();
        notes.push(Note {
            subject: "probe".to_owned(),
            reason: format!("not measured on CPU {}: this process may not run there", format_list(&list)),
            hint: "widen this cgroup's cpuset.cpus, or the affinity that it was started with".to_owned(),
        });
    }
    Ok(notes)
}

/// Formats the notes, each with its hint.
pub fn notes_text(notes: &[Note]) -> String {
    notes.iter().map(|note| format!("note: {}: {}\n  hint: {}\n", note.subject, note.reason, note.hint)).collect()
}

/// Formats the machine as a table, with the notes below it.
fn text(machine: &Machine, notes: &[Note]) -> String {
    let mut text = format!("{} ({}), {} CPUs", machine.cpu_model, machine.architecture, machine.cpus.len());
    if let (Some(hz), Some(quantum)) = (machine.counter_hz, machine.counter_quantum) {
        let _ = write!(text, ", counter {:.1} MHz in steps of {:.1} ticks", hz.value as f64 / 1e6, quantum.value);
    }
    text.push('\n');
    for level in machine.levels.iter().filter(|level| level.holds != Holds::Instruction) {
        text.push_str(&text_of(level, machine));
    }
    if let Some(load) = machine.memory_load_ns {
        let _ = writeln!(text, "memory: load {:.1} ns{}", load.value, sign(load));
    }
    text.push_str(&machine.costs.as_ref().map(costs_text).unwrap_or_default());
    machine.supply.iter().for_each(|fact| text.push_str(&supply_text(&fact.value)));
    text + &notes_text(notes)
}

/// Formats the supply of a CPU that the analysis charges.
pub fn supply_text(supply: &CpuSupply) -> String {
    let (watched, threshold) = (supply.watched_ns.0 as f64 / 1e9, supply.threshold_ns.0 as f64 / 1e3);
    format!(
        "supply of CPU {}, observed for {watched:.1} s: {} gaps of more than {threshold} us; withheld: {}\n",
        supply.cpu.0, supply.gaps, supply.steps
    )
}

/// Formats the costs that the analysis charges, with the CPU and the level on which they were measured.
pub fn costs_text(costs: &Costs) -> String {
    format!("costs that the analysis charges, measured on CPU {} for level {}:\n{costs}", costs.cpu.0, costs.level)
}

fn text_of(level: &CacheLevel, machine: &Machine) -> String {
    let geometry = level.geometry.value;
    let mut text = format!(
        "L{}: {}, {} ways, {} sets, {} colors",
        level.level,
        geometry.cache_bytes(),
        geometry.ways,
        geometry.set_count,
        geometry.color_count(machine.page_bytes)
    );
    if let Some(load) = level.load_ns {
        let _ = write!(text, ", load {:.2} ns{}", load.value, sign(load));
    }
    if let Some(refill) = level.refill {
        let _ = write!(
            text,
            ", refill of a color ({} lines) {} ns clean, {} ns dirty",
            refill.value.lines, refill.value.clean_ns.0, refill.value.dirty_ns.0
        );
    }
    if let Some(test) = level.replacement {
        text.push_str(if test.value.contradicts_lru() { ", replacement not LRU" } else { ", replacement as by LRU" });
    }
    if let Some(seen) = level.sharing_seen {
        text.push_str(if seen.value {
            ", CPUs seen to evict each other"
        } else {
            ", CPUs not seen to evict each other"
        });
    }
    text.push('\n');
    if let Some(test) = level.replacement {
        let _ = writeln!(text, "    {}", test.value);
    }
    if !level.retention.is_empty() {
        let _ = writeln!(text, "    {}", retention_sentence(level));
    }
    text
}

fn sign<T>(fact: Fact<T>) -> &'static str {
    if fact.source == Source::Measured { "" } else { " (not measured)" }
}
