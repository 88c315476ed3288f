//! `isochrome lab conflicts`: what conflicts of a buffer's pages cost, and from it the miss penalty.

use anyhow::Result;
use isochrome_lab::conflicts::{Walks, pages_per_color, section};
use isochrome_lab::runner::Experiment;
use isochrome_lab::samples::csv;

use crate::Verdict;
use crate::args::ConflictsOptions;
use crate::results::{self, Outcome};
use crate::station::Station;

pub fn run(options: &ConflictsOptions) -> Result<Verdict> {
    let place = &options.place;
    let station = Station::new(place)?;
    let target = station.target(place)?;
    let pages = pages_per_color(target, options.buffers, station.seed);
    let (palette, pool) = station.collect_pages(place, target, pages)?;
    let settings = station.settle();
    let mut experiment = Walks::new(&pool, target, options.buffers, station.seed)?;
    let blocks = results::measure("walking over buffers", &mut experiment, &station.amount(options.rounds, 1))?;
    let measured = experiment.conclude(&blocks);
    let warnings = station.warnings(&settings);
    drop(settings);
    let section = section(&measured);
    let raw = csv(&blocks, &experiment.columns());
    let outcome = Outcome { station: &station, palette: Some(palette), section, raw, warnings };
    results::leave(&options.results, outcome)
}
