//! `isochrome recolor`: the pages of a program that runs, moved onto chosen colors.

use std::fmt::Write;

use anyhow::Result;
use isochrome_host::ledger::{Ledger, Owner};
use isochrome_host::recolor::process::Pid;
use isochrome_host::recolor::{self, Report};
use isochrome_host::runtime;
use serde::Serialize;

use crate::args::RecolorOptions;
use crate::coloring::Coloring;
use crate::{Verdict, files, station};

/// What a repair did, as printed.
#[derive(Serialize)]
struct Repair {
    pid: i32,
    /// Whether anything was left to put right.
    repaired: bool,
}

pub fn run(options: &RecolorOptions) -> Result<Verdict> {
    let pid = Pid(options.pid);
    if options.repair {
        let repaired = recolor::repair(pid)?;
        if options.json {
            files::print_json(&Repair { pid: pid.0, repaired })?;
        } else if repaired {
            files::print(&format!("process {} goes on as before\n", pid.0))?;
        } else {
            files::print(&format!("nothing was left to put right in process {}\n", pid.0))?;
        }
        return Ok(Verdict::Holds);
    }
    // Told before anything is measured for it.
    pid.check(options.colors.force)?;
    let mut coloring = Coloring::of(&options.colors, pid.cpus()?, station::seed(None))?;
    let report = if options.dry_run {
        anyhow::ensure!(
            !coloring.colors().is_empty(),
            "a dry run chooses no colors\n  hint: name them: `isochrome ps` lists those that are held"
        );
        coloring.with(|wanted| recolor::inspect(pid, wanted))?
    } else {
        let owner = Owner::of(pid.0 as u32)?;
        coloring.grant(owner.clone(), None)?;
        let outcome = coloring.with(|wanted| recolor::recolor(pid, wanted, &coloring.limits));
        if outcome.is_err() {
            Ledger::open(&runtime::folder())?.release(&owner)?;
        }
        outcome?
    };
    if options.json {
        files::print_json(&report)?;
    } else {
        files::print(&text(&report, options.dry_run))?;
    }
    Ok(Verdict::Holds)
}

/// A table of the mappings, then sums.
pub fn text(report: &Report, dry_run: bool) -> String {
    let moved = if dry_run { "to move" } else { "moved" };
    let mut text = format!("{:<33} {:>8} {:>8} {moved:>8} {:>8}  mapping\n", "addresses", "resident", "right", "left");
    for region in &report.regions {
        let name = if region.name.is_empty() { "anonymous" } else { &region.name };
        let why = region.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "{:016x}-{:016x} {:>8} {:>8} {:>8} {:>8}  {name}{why}",
            region.start, region.end, region.resident, region.right, region.moved, region.left
        );
    }
    let _ = writeln!(
        text,
        "{:<33} {:>8} {:>8} {:>8} {:>8}  pages in all",
        format!("process {}, {} threads", report.pid, report.threads),
        report.resident(),
        report.right(),
        report.moved(),
        report.left()
    );
    if let Some(pause) = report.pause_ns {
        let _ = writeln!(
            text,
            "it stood still for {:.1} ms; {} of memory were touched to find the frames",
            pause as f64 / 1e6,
            report.touched
        );
    }
    text
}
