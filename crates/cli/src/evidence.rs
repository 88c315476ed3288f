//! Putting evidence together: what was measured, where, when, by which command, and every job beside it.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use isochrome_host::experiment::{Bench, Measured};
use isochrome_host::interrupt;
use isochrome_host::setting::RealtimeSettings;
use isochrome_host::sys::clock;
use isochrome_host::sysfs::Note;
use isochrome_model::evidence::{Condition, Evidence, Experiment, PaletteEvidence, RawFile, SCHEMA};
use isochrome_model::experiment::{Job, kept};
use isochrome_model::machine::Machine;
use isochrome_model::units::format_list;

use crate::files;
use crate::station::Station;

/// Evidence of what was measured at `station`, as of now; see [`about`].
pub fn of(
    station: &Station,
    palette: Option<PaletteEvidence>,
    experiments: Vec<Experiment>,
    raw: &[RawFile],
    warnings: Vec<String>,
) -> Evidence {
    Evidence {
        seed: Some(station.seed),
        cpu: Some(station.cpu),
        palette,
        experiments,
        ..about(&station.machine, raw, warnings)
    }
}

/// Evidence of what was seen on `machine`, as of now; with a warning in front where it was ended early.
pub fn about(machine: &Machine, raw: &[RawFile], mut warnings: Vec<String>) -> Evidence {
    if interrupt::interrupted() {
        warnings.insert(0, "Interrupted: what was not measured by then is missing.".to_owned());
    }
    Evidence {
        schema: SCHEMA.to_owned(),
        isochrome: env!("CARGO_PKG_VERSION").to_owned(),
        taken_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        command: command_line(),
        seed: None,
        cpu: None,
        fingerprint: machine.fingerprint(),
        machine: machine.clone(),
        palette: None,
        experiments: Vec::new(),
        conflicts: Vec::new(),
        crpd: Vec::new(),
        switches: Vec::new(),
        interference: Vec::new(),
        floods: Vec::new(),
        packets: Vec::new(),
        watches: Vec::new(),
        workloads: Vec::new(),
        run: None,
        warnings,
        raw: raw.to_vec(),
    }
}

/// The command line, the program by its name alone: where it lies is nobody's business.
fn command_line() -> Vec<String> {
    let mut command: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    if let Some(program) = command.first_mut() {
        *program =
            Path::new(program.as_str()).file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    }
    command
}

/// Every job, one line each; empty fields were not measured. Cycles are ticks of the constant-rate counter; steal is the whole
/// block's.
pub fn raw_csv(all: &[Measured]) -> String {
    let mut text = String::from(
        "bench,parameter,value,element,block,condition,counts,colors,steal_ns,after,job,cycles,ns,l2_misses,l1_misses,lost\n",
    );
    let number = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
    let ns_per_tick = 1e9 / clock::rate_hz() as f64;
    for measured in all {
        let (parameter, value) = measured.work.parameter();
        let (bench, element) = (measured.work.bench(), measured.work.element());
        for (i, (block, counts)) in measured.blocks.iter().zip(kept(&measured.blocks)).enumerate() {
            let condition = serde_json::to_value(block.condition).ok();
            let condition = condition.as_ref().and_then(|c| c.as_str()).unwrap_or_default();
            let colors: Vec<u32> = block.colors.iter().map(|color| u32::from(color.0)).collect();
            // A list such as 0-3,8 with commas would be two fields.
            let colors = format_list(&colors).replace(',', " ");
            let steal_ns = block.steal_ns.0;
            let mut lines = |after: &str, jobs: &[Job]| {
                for (j, job) in jobs.iter().enumerate() {
                    let _ = writeln!(
                        text,
                        "{bench},{parameter},{value},{element},{i},{condition},{counts},{colors},{steal_ns},{after},{j},{},{:.0},{},{},{}",
                        job.cycles.0,
                        job.cycles.0 as f64 * ns_per_tick,
                        number(job.l2_misses),
                        number(job.l1_misses),
                        job.lost.map_or_else(String::new, |lost| lost.to_string()),
                    );
                }
            };
            lines(if block.condition == Condition::Alone { "spin" } else { "flood" }, &block.jobs);
            lines("spin", &block.control);
        }
    }
    text
}

/// What the reader must know of the machine to judge the numbers.
pub fn warnings(station: &Station, bench: &Bench<'_>, settings: &RealtimeSettings) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(hypervisor) = &station.machine.hypervisor {
        warnings.push(format!(
            "This is a virtual machine ({hypervisor}): other guests share caches and CPUs unseen. Only blocks whose control was \
             quiet count; how many were is stated with every result."
        ));
    }
    if !bench.has_witness() {
        warnings.push(
            "The time of a cached and of an evicted line cannot be told apart here, so no block can be called quiet: nothing \
             is concluded."
                .to_owned(),
        );
    }
    if !bench.has_counters() {
        warnings.push(
            "No performance counters of cache misses here: lines lost are judged by time, and miss counts are absent."
                .to_owned(),
        );
    }
    warnings.extend(station.notes.iter().chain(settings.notes()).map(told));
    warnings
}

/// A note as a warning.
pub fn told(note: &Note) -> String {
    format!("{}: {} (hint: {})", note.subject, note.reason, note.hint)
}

/// Writes the raw jobs of `all` beside the evidence in `folder`; the file's name and hash.
pub fn write_raw(folder: &Path, name: &str, all: &[Measured]) -> Result<RawFile> {
    let text = raw_csv(all);
    files::write(&folder.join(name), &text)?;
    Ok(RawFile { path: name.to_owned(), sha256: files::sha256(&text) })
}
