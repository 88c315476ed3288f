//! `isochrome probe`: what the caches of this machine are like.

use std::fmt::Write;

use anyhow::Result;
use isochrome_host::palette::Collection;
use isochrome_host::pool::FramePool;
use isochrome_host::probe::{ProbeRequest, probe};
use isochrome_host::sysfs::Note;
use isochrome_model::machine::{CacheLevel, Fact, Holds, Machine, Source};
use isochrome_model::report::retention_sentence;
use isochrome_model::units::CpuId;

use crate::args::ProbeOptions;
use crate::station::{Station, spinner};
use crate::{Verdict, files};

pub fn run(options: &ProbeOptions) -> Result<Verdict> {
    let place = &options.place;
    let mut station = Station::new(place)?;
    // Without colors there is no refill time of one; everything else is measured all the same.
    let bar = spinner("finding colors");
    let colors = station.target(place).and_then(|target| {
        let _settings = station.pin();
        Ok((target.level, station.collect(place, target)?))
    });
    bar.finish_and_clear();
    let pool = match colors {
        Ok((level, collection)) => Some((pool_of(collection), level)),
        Err(error) => {
            eprintln!("no refill time per color: {error:#}");
            None
        }
    };
    let cpus = place.cpu.map(|cpu| vec![CpuId(cpu)]).unwrap_or_default();
    let notes = measure(&mut station, pool.as_ref().map(|(pool, level)| (pool, *level)), cpus)?;
    if let Some(path) = &options.output {
        files::write_json(path, &station.machine)?;
    }
    if options.json {
        files::print_json(&station.machine)?;
    } else {
        files::print(&text(&station.machine, &notes))?;
    }
    Ok(Verdict::Holds)
}

/// The memory of a collection, by color.
pub fn pool_of(collection: Collection) -> FramePool {
    FramePool::new(collection.arena, &collection.inference.page_colors, collection.inference.palette.colors)
}

/// Measures the station's machine; what could not be measured, and what contradicts the declared.
pub fn measure(station: &mut Station, pool: Option<(&FramePool, u8)>, cpus: Vec<CpuId>) -> Result<Vec<Note>> {
    let bar = spinner("probing");
    let request = ProbeRequest { cpus, seed: station.seed };
    let notes = probe(&mut station.machine, pool, &request, |doing| bar.set_message(doing.to_owned()))?;
    bar.finish_and_clear();
    Ok(notes)
}

/// The machine as a table, and what it means.
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
    for note in notes {
        let _ = writeln!(text, "note: {}: {}\n  hint: {}", note.subject, note.reason, note.hint);
    }
    text
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
    if let Some(seen) = level.sharing_seen {
        text.push_str(if seen.value {
            ", CPUs seen to evict each other"
        } else {
            ", CPUs not seen to evict each other"
        });
    }
    text.push('\n');
    if !level.retention.is_empty() {
        let _ = writeln!(text, "    {}", retention_sentence(level));
    }
    text
}

fn sign<T>(fact: Fact<T>) -> &'static str {
    if fact.source == Source::Measured { "" } else { " (not measured)" }
}
