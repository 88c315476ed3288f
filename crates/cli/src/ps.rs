//! `isochrome ps`: who holds which colors.

use std::fmt::Write;

use anyhow::Result;
use isochrome_host::ledger::{self, Grant, Numbering, Sharing};
use isochrome_host::palette::saved::{self, Boot};
use isochrome_host::sysfs::Sysfs;
use isochrome_host::{resident, runtime};
use isochrome_model::palette::Palette;
use isochrome_model::placement::{Placement, ResidentPage};
use isochrome_model::units::{Bytes, format_list};
use serde::Serialize;

use crate::args::PsOptions;
use crate::{Verdict, files};

/// A grant and what its owner makes of it.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    grant: Grant,
    /// The owner's anonymous memory; none where it cannot be seen, no palette is saved, or the colors are told by evictions.
    memory: Option<Memory>,
}

/// Resident anonymous memory of a process by color.
#[derive(Serialize)]
struct Memory {
    /// Pages of each color, and those of unknown color.
    #[serde(flatten)]
    placement: Placement,
    /// Pages of a known color that was not granted.
    drifted: u64,
    /// Share of the pages of known color, 0 to 1.
    drift: f64,
}

pub fn run(options: &PsOptions) -> Result<Verdict> {
    let folder = runtime::folder();
    let grants = ledger::grants_in(&folder)?;
    let sysfs = Sysfs::system();
    let (machine, _) = sysfs.machine()?;
    let boot = Boot::of(&machine, &sysfs);
    let mut notes = Vec::new();
    let rows: Vec<Row> = grants
        .into_iter()
        .map(|grant| {
            // Only to show: what rests on the palette tests it first.
            if grant.numbering == Numbering::Evictions {
                return Row { grant, memory: None };
            }
            let memory = saved::load(&folder, grant.level, &boot).and_then(|palette| memory(&grant, &palette));
            let memory = memory.map_err(|error| notes.push(error.to_string())).ok();
            Row { grant, memory }
        })
        .collect();
    notes.dedup();
    notes.iter().for_each(|note| eprintln!("{note}"));
    if options.json {
        files::print_json(&rows)?;
    } else {
        files::print(&text(&rows, machine.page_bytes))?;
    }
    Ok(Verdict::Holds)
}

fn memory(grant: &Grant, palette: &Palette) -> Result<Memory, isochrome_host::error::HostError> {
    let mappings = resident::mappings(grant.owner.pid)?;
    let pages: Vec<ResidentPage> =
        mappings.iter().flat_map(|mapping| &mapping.pages).filter(|page| page.anonymous).copied().collect();
    let placement = Placement::of(&pages, palette);
    let drifted = placement.outside(&grant.colors);
    Ok(Memory { drift: drifted as f64 / placement.known().max(1) as f64, drifted, placement })
}

fn text(rows: &[Row], page: Bytes) -> String {
    if rows.is_empty() {
        return "no colors are granted\n".to_owned();
    }
    let mut text = format!(
        "{:>8} {:<16} {:>5} {:<8} {:<16} {:<12} {:>9} {:>9} {:>7}  memory per color granted\n",
        "pid", "owner", "level", "CPUs", "sharing", "colors", "resident", "unknown", "drift"
    );
    for Row { grant, memory } in rows {
        let cpus: Vec<u32> = grant.cpus.iter().map(|cpu| cpu.0).collect();
        let colors: Vec<u32> = grant.colors.iter().map(|color| u32::from(color.0)).collect();
        let sharing = match &grant.sharing {
            Sharing::Exclusive => "exclusive".to_owned(),
            Sharing::Group(name) => format!("group {name}"),
        };
        let kib = |pages: u64| format!("{} KiB", pages * page.0 / 1024);
        let (resident, unknown, drift, per_color) = match memory {
            None => ["?"; 4].map(str::to_owned).into(),
            Some(Memory { placement, drift, .. }) => {
                let held = grant.colors.iter().map(|color| placement.per_color.get(usize::from(color.0)).copied());
                let held: Vec<String> = held.map(|pages| (pages.unwrap_or(0) * page.0 / 1024).to_string()).collect();
                (
                    kib(placement.pages()),
                    kib(placement.unknown),
                    format!("{:.1} %", drift * 100.0),
                    format!("{} KiB", held.join(" ")),
                )
            }
        };
        let _ = writeln!(
            text,
            "{:>8} {:<16} {:>5} {:<8} {sharing:<16} {:<12} {resident:>9} {unknown:>9} {drift:>7}  {per_color}",
            grant.owner.pid,
            grant.owner.name.replace(char::is_control, " "),
            grant.level,
            format_list(&cpus),
            format_list(&colors)
        );
    }
    text.push_str(
        "resident: anonymous memory; drift: share of it, as far as its color is known, outside of the colors granted\n",
    );
    text
}
