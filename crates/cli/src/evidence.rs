//! Putting evidence together: what was measured, where, when, by which command, and every job beside it.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use isochrome_host::experiment::Measured;
use isochrome_model::evidence::{Evidence, Experiment, PaletteEvidence, RawFile, SCHEMA};
use isochrome_model::experiment::Job;

use crate::files;
use crate::station::Station;

/// Evidence of what was measured, as of now.
pub fn of(
    station: &Station,
    palette: Option<PaletteEvidence>,
    experiments: Vec<Experiment>,
    raw: &[RawFile],
    warnings: Vec<String>,
) -> Evidence {
    Evidence {
        schema: SCHEMA.to_owned(),
        isochrome: env!("CARGO_PKG_VERSION").to_owned(),
        taken_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        command: command_line(),
        fingerprint: station.machine.fingerprint(),
        machine: station.machine.clone(),
        palette,
        experiments,
        warnings,
        raw: raw.to_vec(),
    }
}

/// The command line, the program by its name alone: where it lies is nobody's business.
fn command_line() -> Vec<String> {
    let mut command: Vec<String> = std::env::args().collect();
    if let Some(program) = command.first_mut() {
        *program =
            Path::new(program.as_str()).file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    }
    command
}

/// Every job, one line each; empty fields were not measured.
pub fn raw_csv(all: &[Measured]) -> String {
    let mut text =
        String::from("bench,parameter,value,element,block,condition,after,job,cycles,l2_misses,l1_misses,lost\n");
    let number = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
    for measured in all {
        let (parameter, value) = measured.work.parameter();
        let (bench, element) = (measured.work.bench(), measured.work.element());
        for (i, block) in measured.blocks.iter().enumerate() {
            let condition = serde_json::to_value(block.condition).ok();
            let condition = condition.as_ref().and_then(|c| c.as_str()).unwrap_or_default();
            let mut lines = |after: &str, jobs: &[Job]| {
                for (j, job) in jobs.iter().enumerate() {
                    let lost = job.lost.map_or_else(String::new, |lost| format!("{lost:.3}"));
                    let _ = writeln!(
                        text,
                        "{bench},{parameter},{value},{element},{i},{condition},{after},{j},{},{},{},{lost}",
                        job.cycles.0,
                        number(job.l2_misses),
                        number(job.l1_misses),
                    );
                }
            };
            lines(if condition == "alone" { "spin" } else { "flood" }, &block.jobs);
            lines("spin", &block.control);
        }
    }
    text
}

/// Writes the raw jobs of `all` beside the evidence in `folder`; the file's name and hash.
pub fn write_raw(folder: &Path, name: &str, all: &[Measured]) -> Result<RawFile> {
    let text = raw_csv(all);
    files::write(&folder.join(name), &text)?;
    Ok(RawFile { path: name.to_owned(), sha256: files::sha256(&text) })
}
