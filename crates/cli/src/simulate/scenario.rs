//! `isochrome simulate --scenario`: simulates several tasks on a modeled machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use isochrome_host::interrupt;
use isochrome_model::layout::{Align, Table};
use isochrome_model::sim::scenario::{self, Outcome, Scenario, TaskOutcome};
use isochrome_report::figure;

use super::{BY_ACCESSES, SCENARIO_SCHEMA, counts_reported, named_machine, open};
use crate::args::Output;
use crate::files;
use crate::progress::{self, Takes};

/// Runs a scenario, prints its outcome, and draws it as SVG if `svg` names a file.
pub fn run(path: &Path, svg: &Option<PathBuf>, output: &Output) -> Result<()> {
    let shown = path.display();
    let scenario = Scenario::from_toml(&files::read(path)?).with_context(|| format!("{shown}"))?;
    let machine = match scenario.machine_model().with_context(|| format!("{shown}"))? {
        Some(machine) => machine,
        None => named_machine(scenario.machine.as_deref().unwrap_or_default())?,
    };
    let bar = progress::step("playing the scenario", Takes::Words(BY_ACCESSES), "the table");
    let mut open = |name: &str| open(Path::new(name)).map(|(input, _)| input);
    let mut go_on = |accesses: u64| {
        bar.set_message(format!("playing the scenario ({BY_ACCESSES}): {accesses} accesses"));
        !interrupt::interrupted()
    };
    let outcome = scenario::run(&scenario, &machine, &mut open, &mut go_on).with_context(|| format!("{shown}"))?;
    bar.finish_and_clear();
    if interrupt::interrupted() {
        eprintln!("interrupted: these are the results so far");
    }
    files::write_if(svg, || figure::interference(&outcome))?;
    files::leave(output, &files::versioned(SCENARIO_SCHEMA, &outcome), || outcome_text(&outcome, files::width()))
}

/// Headings of the counts for each level.
const HEADS: [&str; 9] =
    ["level", "accesses", "misses", "cold", "capacity", "conflict", "extrinsic", "lost", "write-backs"];

fn outcome_text(outcome: &Outcome, width: usize) -> String {
    let mut text = String::new();
    for task in &outcome.tasks {
        text += &task_text(task, width);
    }
    for cache in outcome.caches.iter().filter(|cache| cache.interference.evictions.iter().flatten().any(|n| *n > 0)) {
        let between = cache.interference.between_tasks();
        let _ = writeln!(text, "\n{}: {between} evictions between tasks; by row, of column", cache.name);
        let tasks = outcome.tasks.iter().map(|task| task.name.as_str());
        let mut table = table([""].into_iter().chain(tasks));
        for (task, row) in outcome.tasks.iter().zip(&cache.interference.evictions) {
            table.row([task.name.clone()].into_iter().chain(row.iter().map(u64::to_string)));
        }
        text += &table.text(width);
    }
    let _ = write!(text, "\n{}", counts_reported(&outcome.levels, outcome.memory));
    for (cpu, cycles) in outcome.cpu_cycles.iter().enumerate() {
        let _ = writeln!(text, "CPU {cpu}: {cycles} cycles");
    }
    text
}

fn task_text(task: &TaskOutcome, width: usize) -> String {
    let TaskOutcome { name, cpu, jobs, accesses, cycles, preempted, releases_lost, pages, frames_reserved, levels } =
        task;
    let mut line = format!("{name} on CPU {cpu}: {jobs} jobs, {accesses} accesses, {cycles} cycles, {pages} pages");
    for (count, what) in [(*preempted, "times preempted"), (*releases_lost, "releases lost")] {
        if count > 0 {
            let _ = write!(line, ", {count} {what}");
        }
    }
    if let Some(frames) = frames_reserved {
        let _ = write!(line, ", {frames} frames reserved");
    }
    let mut table = table(HEADS);
    for level in levels {
        let (counts, causes) = (level.tally.counts, level.tally.causes);
        let row = [
            counts.reads + counts.writes,
            counts.read_misses + counts.write_misses,
            causes.cold,
            causes.capacity,
            causes.conflict,
            causes.extrinsic,
            level.tally.lost,
            counts.writebacks,
        ];
        table.row([level.name.clone()].into_iter().chain(row.map(|count| count.to_string())));
    }
    format!("{line}\n{}", table.text(width))
}

/// Returns a table without rows whose first column is text.
fn table<'a>(heads: impl IntoIterator<Item = &'a str>) -> Table {
    let side = |column| if column == 0 { Align::Left } else { Align::Right };
    Table::new(heads.into_iter().enumerate().map(|(column, head)| (head, side(column)))).indented(2)
}
