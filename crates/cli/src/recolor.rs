//! `isochrome recolor`: moves the pages of a running program onto chosen colors.

use std::time::Instant;

use anyhow::Result;
use isochrome_host::color::ledger::{Ledger, Owner};
use isochrome_host::coloring::report::{Event, PlacementReport};
use isochrome_host::process::Pid;
use isochrome_host::recolor::claim::Claim;
use isochrome_host::recolor::watch::family;
use isochrome_host::recolor::{self, RegionReport, Report};
use isochrome_host::runtime;
use isochrome_model::layout::{Align, Table};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::RecolorOptions;
use crate::placement::line;
use crate::verdict::Verdict;
use crate::{coloring, context, files, hints};

/// Schema of the printed result of a repair.
pub const REPAIR_SCHEMA: &str = "isochrome-repair/1";

/// Result of a repair.
#[derive(Serialize, JsonSchema)]
pub struct Repair {
    pid: i32,
    /// Whether there was anything to repair.
    repaired: bool,
}

pub fn run(options: &RecolorOptions) -> Result<Verdict> {
    let pid = Pid(options.pid);
    if options.repair {
        let repaired = recolor::repair(pid)?;
        let repair = Repair { pid: pid.0, repaired };
        files::show(options.output.json, &files::versioned(REPAIR_SCHEMA, &repair), || match repaired {
            true => format!("process {} goes on as before\n", pid.0),
            false => format!("nothing was left to repair in process {}\n", pid.0),
        })?;
        return Ok(Verdict::Holds);
    }
    // A process that cannot be recolored is reported before anything is measured.
    if let Err(error) = pid.check()
        && !error.may_pass()
    {
        return Err(error.into());
    }
    let mut coloring = coloring::resolve(&options.colors, pid.cpus()?, context::seed(options.colors.frames.seed))?;
    let pids = if options.tree { family(pid) } else { vec![pid] };
    if options.dry_run {
        anyhow::ensure!(
            !coloring.colors().is_empty(),
            "a dry run chooses no colors\n  hint: name them: `isochrome ps` lists those that are held"
        );
        let report = coloring.expect(pid)?;
        show(options, PlacementReport::expected(&report, &coloring), &report)?;
        return Ok(Verdict::Holds);
    }
    // While the claim is held, an `exec` that keeps the program on its colors moves no pages.
    let _claim = Claim::of(&pids)?;
    let owner = Owner::of(pid.0 as u32)?;
    coloring.grant(owner.clone(), None)?;
    let begin = Instant::now();
    let mut watch = coloring.watch();
    let unverified = |error| eprintln!("isochrome: not verified: {}", hints::text(&error));
    let verified = match coloring.move_verified(&mut watch, &pids, unverified) {
        Ok(verified) => verified,
        Err(error) => {
            Ledger::open(&runtime::folder())?.release(&owner)?;
            return Err(error.into());
        }
    };
    // Without the handover an `exec` that keeps the program on its colors would measure the same pages again.
    if let Err(error) = coloring.hand_over(&watch) {
        eprintln!("isochrome: {}", hints::text(&error));
    }
    let report = coloring.inspect(pid)?;
    let placement = PlacementReport {
        verified,
        seconds_to_colors: Some(begin.elapsed().as_secs_f64()),
        numbers: coloring.numbers().cloned(),
        ..PlacementReport::of(Event::OnColors, pid.0, watch.tally()).with_movers()
    };
    let nothing = placement.tally.on_color == 0 && placement.tally.resident > 0;
    show(options, placement, &report)?;
    Ok(if nothing { Verdict::Inconclusive } else { Verdict::Holds })
}

/// The report, with the mappings of the process.
#[derive(Serialize, JsonSchema)]
pub struct Shown<'a> {
    #[serde(flatten)]
    placement: PlacementReport,
    /// Mappings of the process. `exec`, whose report has the same schema, does not list them.
    #[schemars(skip_serializing_if = "<[_]>::is_empty")]
    regions: &'a [RegionReport],
}

fn show(options: &RecolorOptions, placement: PlacementReport, report: &Report) -> Result<()> {
    let shown = Shown { placement, regions: &report.regions };
    files::leave(&options.output, &shown, || format!("{}{}\n", text(report, files::width()), line(&shown.placement)))
}

/// Formats a report as a table of the mappings, and sums below it.
fn text(report: &Report, width: usize) -> String {
    let numbers = ["resident", "on color", "off color", "immovable"].map(|head| (head, Align::Right));
    let mut table = Table::new([("addresses", Align::Left)].into_iter().chain(numbers)).notes("mapping");
    for region in &report.regions {
        let name = if region.name.is_empty() { "anonymous" } else { &region.name };
        let why: Vec<String> = match region.why.len() {
            1 => region.why.keys().cloned().collect(),
            _ => region.why.iter().map(|(why, pages)| format!("{why} ({pages})")).collect(),
        };
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(", ")) };
        let pages = [region.resident, region.on_color, region.moved, region.immovable].map(|pages| pages.to_string());
        let addresses = format!("{:016x}-{:016x}", region.start, region.end);
        table.noted([addresses].into_iter().chain(pages), format!("{name}{why}"));
    }
    let sums =
        [report.resident(), report.on_color(), report.moved(), report.immovable()].map(|pages| pages.to_string());
    let whose = format!("process {}, {} threads", report.pid, report.threads);
    table.noted([whose].into_iter().chain(sums), "pages in all");
    table.text(width)
}

#[cfg(test)]
mod tests {
    use isochrome_model::layout::{WIDTH, columns};

    use super::*;

    #[test]
    fn mappings_fit_80_columns_and_keep_their_names_and_reasons() {
        let region = |name: &str| RegionReport {
            start: 0x7fff_ffff_0000,
            end: 0x7fff_ffff_f000,
            name: name.to_owned(),
            resident: 12_345_678,
            on_color: 1,
            moved: 2,
            immovable: 3,
            why: [("shared memory".to_owned(), 1), ("locked for a device".to_owned(), 2)].into(),
        };
        let long = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30";
        let regions = vec![region(""), region(long)];
        let report = Report { pid: 1, regions, threads: 1, ..Report::default() };
        let shown = text(&report, WIDTH);
        assert!(shown.lines().all(|line| columns(line) <= WIDTH), "{shown}");
        let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("{long}: locked for a device (2), shared memory (1)")), "{shown}");
    }
}
