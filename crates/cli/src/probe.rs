//! `isochrome probe`: what the caches of this machine are like.

use std::fmt::Write;

use anyhow::Result;
use isochrome_model::machine::{Holds, Machine};
use isochrome_model::report::retention_sentence;

use crate::args::ProbeOptions;
use crate::station::Station;
use crate::{Verdict, files};

pub fn run(options: &ProbeOptions) -> Result<Verdict> {
    let station = Station::new(&options.place)?;
    if let Some(path) = &options.output {
        files::write_json(path, &station.machine)?;
    }
    if options.json {
        files::print_json(&station.machine)?;
    } else {
        files::print(&text(&station.machine))?;
    }
    Ok(Verdict::Holds)
}

/// The machine as a table, and what it means.
fn text(machine: &Machine) -> String {
    let mut text = format!("{} ({}), {} CPUs\n", machine.cpu_model, machine.architecture, machine.cpus.len());
    for level in machine.levels.iter().filter(|level| level.holds != Holds::Instruction) {
        let geometry = level.geometry.value;
        let _ = writeln!(
            text,
            "L{}: {}, {} ways, {} sets, {} colors",
            level.level,
            geometry.cache_bytes(),
            geometry.ways,
            geometry.set_count,
            geometry.color_count(machine.page_bytes)
        );
        let sentence = retention_sentence(level);
        if !sentence.is_empty() {
            let _ = writeln!(text, "    {sentence}");
        }
    }
    text
}
