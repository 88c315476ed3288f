//! `isochrome simulate --scenario`: simulates several tasks on a modeled machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use isochrome_host::interrupt;
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
        eprintln!("interrupted: this is how far it went");
    }
    files::write_if(svg, || figure::interference(&outcome))?;
    files::leave(output, &files::versioned(SCENARIO_SCHEMA, &outcome), || outcome_text(&outcome))
}

fn outcome_text(outcome: &Outcome) -> String {
    let mut text = String::new();
    for TaskOutcome { name, cpu, jobs, accesses, cycles, preempted, releases_lost, pages, frames_reserved, levels } in
        &outcome.tasks
    {
        let _ = write!(text, "{name} on CPU {cpu}: {jobs} jobs, {accesses} accesses, {cycles} cycles, {pages} pages");
        for (count, what) in [(*preempted, "times preempted"), (*releases_lost, "releases lost")] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        if let Some(frames) = frames_reserved {
            let _ = write!(text, ", {frames} frames reserved");
        }
        let heads = ["accesses", "misses", "cold", "capacity", "conflict", "extrinsic", "lost", "write-backs"];
        let _ = write!(text, "\n  {:8}", "");
        heads.iter().for_each(|head| {
            let _ = write!(text, " {head:>12}");
        });
        text.push('\n');
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
            let _ = write!(text, "  {:8}", level.name);
            row.iter().for_each(|count| {
                let _ = write!(text, " {count:>12}");
            });
            text.push('\n');
        }
    }
    for cache in outcome.caches.iter().filter(|cache| cache.interference.evictions.iter().flatten().any(|n| *n > 0)) {
        let between = cache.interference.between_tasks();
        let _ = writeln!(text, "\n{}: {between} evictions between tasks; by row, of column", cache.name);
        let _ = write!(text, "  {:12}", "");
        outcome.tasks.iter().for_each(|task| {
            let _ = write!(text, " {:>12}", task.name);
        });
        text.push('\n');
        for (task, row) in outcome.tasks.iter().zip(&cache.interference.evictions) {
            let _ = write!(text, "  {:12}", task.name);
            row.iter().for_each(|count| {
                let _ = write!(text, " {count:>12}");
            });
            text.push('\n');
        }
    }
    let _ = write!(text, "\n{}", counts_reported(&outcome.levels, outcome.memory));
    for (cpu, cycles) in outcome.cpu_cycles.iter().enumerate() {
        let _ = writeln!(text, "CPU {cpu}: {cycles} cycles");
    }
    text
}
