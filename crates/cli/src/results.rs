//! What experiments have in common on the command line: they say what they can show, and leave rows, evidence and a table.

use anyhow::Result;
use isochrome_host::interrupt;
use isochrome_host::sys::clock;
use isochrome_lab::runner::{Amount, Experiment, run};
use isochrome_lab::samples::Block;
use isochrome_model::evidence::{PaletteEvidence, RawFile, Section, Standing};
use isochrome_report::text;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::Results;
use crate::station::{Station, progress};
use crate::{Verdict, evidence, files};

/// The blocks of `experiment`, beside a bar that says what is done. Says beforehand what can be seen.
pub fn measure<E: Experiment>(
    doing: &'static str,
    experiment: &mut E,
    amount: &Amount,
) -> Result<Vec<Block<E::Condition>>> {
    eprintln!("{}", amount.power(experiment.conditions().len()));
    let bar = progress(doing, 1);
    let blocks = run(experiment, amount, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    Ok(blocks?)
}

/// Version of what is printed of the experiment whose section is `id`.
pub fn schema(id: &str) -> String {
    format!("isochrome-{id}/2")
}

/// The numbers of an experiment as printed.
#[derive(Serialize, JsonSchema)]
pub struct Printed<N> {
    schema: String,
    #[serde(flatten)]
    numbers: N,
    /// Ticks per second of the counter that cycles are of.
    counter_hz: u64,
    /// The seed of all random choices; 0 on a modeled machine.
    seed: u64,
}

/// What was measured, and where.
pub struct Outcome<'a> {
    /// Where.
    pub station: &'a Station,
    /// The colors, where there are any.
    pub palette: Option<PaletteEvidence>,
    /// What follows.
    pub section: Section,
    /// Every sample, as CSV.
    pub raw: String,
    /// What to mind.
    pub warnings: Vec<String>,
}

/// Writes rows and evidence where they are asked for, prints what was measured, and says what it came to.
pub fn leave(results: &Results, outcome: Outcome<'_>) -> Result<Verdict> {
    let Outcome { station, palette, section, raw: rows, warnings } = outcome;
    let verdict = verdict(&section);
    let mut raw = Vec::new();
    if let Some(path) = &results.raw {
        files::write(path, &rows)?;
        raw.push(RawFile { path: path.display().to_string(), sha256: files::sha256(&rows) });
    }
    print(results.json, &section, station.seed)?;
    if let Some(path) = &results.output {
        files::write_json(path, &evidence::of(station, palette, vec![section], &raw, warnings))?;
    }
    Ok(verdict)
}

/// Prints `section`.
pub fn print(json: bool, section: &Section, seed: u64) -> Result<()> {
    if !json {
        return files::print(&text::section(section));
    }
    let schema = schema(&section.id);
    let mut printed =
        serde_json::to_value(Printed { schema, numbers: &section.numbers, counter_hz: clock::rate_hz(), seed })?;
    // Numbers may tell of another counter, as those of a modeled machine do.
    if let Some(counter_hz) = section.numbers.get("counter_hz").filter(|hz| !hz.is_null()) {
        printed["counter_hz"] = counter_hz.clone();
    }
    files::print_json(&printed)
}

/// What `section` comes to as an exit code.
pub fn verdict(section: &Section) -> Verdict {
    match section.standing {
        _ if interrupt::interrupted() => Verdict::Inconclusive,
        None | Some(Standing::Holds | Standing::NoGain) => Verdict::Holds,
        Some(Standing::Violated) => Verdict::Violated,
        Some(Standing::Inconclusive) => Verdict::Inconclusive,
    }
}
