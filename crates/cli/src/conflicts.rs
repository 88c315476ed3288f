//! `isochrome bench conflicts`: what conflicts of a buffer's pages cost, and from it the miss penalty.

use anyhow::Result;
use isochrome_host::conflicts::{ConflictsRequest, conflicts, pages_per_color};
use isochrome_host::interrupt;
use isochrome_host::sys::clock;
use isochrome_model::evidence::{Conflicts, MissPenalty};
use isochrome_model::machine::{Fact, Source};
use isochrome_model::report::conflicts::{is_conclusive, text};
use serde::Serialize;

use crate::args::ConflictsOptions;
use crate::station::{Station, progress};
use crate::{Verdict, evidence, files};

/// The result as printed.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    conflicts: &'a Conflicts,
    /// Of the walk in order, by `sum`.
    linear: Option<MissPenalty>,
    /// Of the walk at random, by `sum`.
    random: Option<MissPenalty>,
    counter_hz: u64,
    seed: u64,
}

pub fn run(options: &ConflictsOptions) -> Result<Verdict> {
    let place = &options.place;
    let station = Station::new(place)?;
    let target = station.target(place)?;
    let request = ConflictsRequest { buffers: options.buffers as usize, rounds: options.rounds, seed: station.seed };
    let (palette, pool) = station.collect_pages(place, target, pages_per_color(target, request))?;
    let settings = station.settle();
    let bar = progress("walking over buffers", 1);
    let measured = conflicts(&pool, target, request, |done, total| {
        bar.set_length(u64::from(total));
        bar.set_position(u64::from(done));
    })?;
    bar.finish_and_clear();
    let warnings: Vec<String> = station.notes.iter().chain(settings.notes()).map(evidence::told).collect();
    drop(settings);
    let hz = clock::rate_hz();
    if let Some(path) = &options.output {
        let mut evidence = evidence::of(&station, Some(palette), Vec::new(), &[], warnings);
        evidence.conflicts = vec![measured.clone()];
        evidence.machine.counter_hz = Some(Fact { value: hz, source: Source::Measured });
        files::write_json(path, &evidence)?;
    }
    if options.json {
        files::print_json(&Printed {
            linear: measured.penalty(|walk| walk.sum, |walk| walk.linear_ns, Some(hz)),
            random: measured.penalty(|walk| walk.sum, |walk| walk.random_ns, Some(hz)),
            conflicts: &measured,
            counter_hz: hz,
            seed: station.seed,
        })?;
    } else {
        files::print(&text(&measured, Some(hz)))?;
    }
    let conclusive = is_conclusive(&measured) && !interrupt::interrupted();
    Ok(if conclusive { Verdict::Holds } else { Verdict::Inconclusive })
}
