//! The common part of all experiments: prints their statistical power, runs their blocks, and leaves samples, evidence and a table.

use anyhow::Result;
use isochrome_host::interrupt;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::sys::clock;
use isochrome_lab::runner::{Amount, Experiment, run};
use isochrome_lab::samples::Block;
use isochrome_model::evidence::{Evidence, PaletteEvidence, RawFile, Section, Standing};
use isochrome_report::text;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::args::Results;
use crate::context::Context;
use crate::verdict::Verdict;
use crate::{evidence, files, progress};

/// Runs the blocks of `experiment` with a progress bar, after printing which effects `amount` can show.
pub fn measure<E: Experiment>(
    doing: &'static str,
    experiment: &mut E,
    amount: &Amount,
) -> Result<Vec<Block<E::Condition>>> {
    eprintln!("{}", amount.power(experiment.conditions().len()));
    measure_again(doing, experiment, amount)
}

/// Runs the blocks of `experiment` with a progress bar.
pub fn measure_again<E: Experiment>(
    doing: &'static str,
    experiment: &mut E,
    amount: &Amount,
) -> Result<Vec<Block<E::Condition>>> {
    let bar = progress::parts(doing, 1, "the tables");
    let blocks = run(experiment, amount, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    Ok(blocks?)
}

/// Returns the schema of the printed numbers of the experiment whose section is `id`.
pub fn schema(id: &str) -> String {
    format!("isochrome-{id}/2")
}

/// The numbers of an experiment, as they are printed.
#[derive(Serialize, JsonSchema)]
pub struct Printed<N> {
    schema: String,
    #[serde(flatten)]
    numbers: N,
    /// Rate of the counter whose ticks are called cycles, per second.
    counter_hz: u64,
    /// The seed of all random choices; 0 on a modeled machine.
    seed: u64,
}

/// Result of an experiment, with the context that it was measured in.
pub struct Outcome<'a> {
    /// Context of the measurement.
    pub context: &'a Context,
    /// The palette in use; `None` if there are no colors.
    pub palette: Option<PaletteEvidence>,
    /// Section of the evidence that holds the results.
    pub section: Section,
    /// All samples, as CSV.
    pub raw: String,
    /// Warnings for the reader.
    pub warnings: Vec<String>,
}

/// Writes samples and evidence to the files in `results`, prints the numbers or a table, and returns the verdict.
pub fn leave(results: &Results, outcome: Outcome<'_>) -> Result<Verdict> {
    let numbers = outcome.section.numbers.clone();
    leave_as(results, outcome, &numbers)
}

/// Does what [`leave`] does, but prints `numbers` as JSON instead of those of the section.
pub fn leave_as(results: &Results, outcome: Outcome<'_>, numbers: &Value) -> Result<Verdict> {
    let Outcome { context, palette, section, raw, warnings } = outcome;
    let (verdict, id) = (verdict(&section), section.id.clone());
    let raw: Option<RawFile> = results.raw.as_ref().map(|path| files::write_raw(path, &raw)).transpose()?;
    let evidence = evidence::of(context, palette, vec![section], raw.as_slice(), warnings);
    if results.json {
        print_numbers(&id, numbers, context.seed)?;
    } else {
        files::print(&text::table(&evidence, files::width()))?;
    }
    results.output.as_ref().map_or(Ok(()), |path| files::write_json(path, &evidence))?;
    Ok(verdict)
}

/// Does what [`leave`] does, for the results of a modeled `machine`.
pub fn leave_modeled(results: &Results, machine: &str, section: Section, raw: &str) -> Result<Verdict> {
    let verdict = verdict(&section);
    let raw: Option<RawFile> = results.raw.as_ref().map(|path| files::write_raw(path, raw)).transpose()?;
    print(results.json, &section, 0)?;
    if let Some(path) = &results.output {
        // Evidence describes the machine that this process runs on, which is not the modeled one.
        let warning = format!("Played on the modeled {machine}: nothing here was measured.");
        let evidence = evidence::about(&Sysfs::system().machine()?.0, raw.as_slice(), vec![warning]);
        files::write_json(path, &Evidence { sections: vec![section], ..evidence })?;
    }
    Ok(verdict)
}

/// Prints `section`, as JSON or as text.
pub fn print(json: bool, section: &Section, seed: u64) -> Result<()> {
    match json {
        true => print_numbers(&section.id, &section.numbers, seed),
        false => files::print(&text::section(section, files::width())),
    }
}

fn print_numbers(id: &str, numbers: &Value, seed: u64) -> Result<()> {
    let mut printed =
        serde_json::to_value(Printed { schema: schema(id), numbers, counter_hz: clock::rate_hz(), seed })?;
    // Numbers may state the rate of another counter, as those of a modeled machine do.
    if let Some(counter_hz) = numbers.get("counter_hz").filter(|hz| !hz.is_null()) {
        printed["counter_hz"] = counter_hz.clone();
    }
    files::print_json(&printed)
}

/// Returns the verdict that follows from `section`; inconclusive if the experiment was interrupted.
pub fn verdict(section: &Section) -> Verdict {
    match section.standing {
        _ if interrupt::interrupted() => Verdict::Inconclusive,
        None | Some(Standing::Holds | Standing::NoGain) => Verdict::Holds,
        Some(Standing::Violated) => Verdict::Violated,
        Some(Standing::Inconclusive) => Verdict::Inconclusive,
    }
}
