//! Turns `--colors` and related options into a request to the host: which colors, by which palette, in how much memory.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use isochrome_host::color::Target;
use isochrome_host::color::ledger::{Sharing, Wanted};
use isochrome_host::color::saved::Boot;
use isochrome_host::color::source::{Source, fits};
use isochrome_host::coloring::{Coloring, Request};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::recolor::{Limits, MAX_PAUSE};
use isochrome_model::palette::{Palette, SCHEMA};
use isochrome_model::units::{Bytes, Color, CpuId, ParseError, format_list, parse_list};

use crate::args::ChosenColors;
use crate::files;

/// Returns the coloring that `chosen` requests for a program on `cpus`, without granting any colors yet. If the palette is not known, it is
/// measured with the seed `seed`.
pub fn resolve(chosen: &ChosenColors, cpus: Vec<CpuId>, seed: u64) -> Result<Coloring> {
    let sysfs = Sysfs::system();
    let (machine, _) = sysfs.machine()?;
    let boot = Boot::of(&machine, &sysfs);
    let palette = chosen.frames.palette.as_ref().map(|path| named_palette(path, &boot)).transpose()?;
    ensure!(!cpus.is_empty(), "the program may run on no CPU");
    let source = Source { palette, trusted: chosen.frames.trust_palette, level: chosen.level, seed };
    let (known, numbers) = source.known(&machine, &boot, &cpus)?;
    if let Some(level) = chosen.level {
        ensure!(
            known.level() == level,
            "the palette is of level {}, not {level}\n  hint: isochrome palette --level {level} -o FILE, then --palette FILE",
            known.level()
        );
    }
    let wanted = wanted(chosen, known.colors())?;
    let available = available(&sysfs)?;
    let memory = chosen.frames.memory.unwrap_or(Bytes(available.0 / 2));
    ensure!(
        memory <= available,
        "a limit of {memory} is more than the {available} of memory that are available\n  hint: lower --memory"
    );
    let max_pause = chosen.max_pause.map_or(MAX_PAUSE, |time| Duration::from_nanos(time.0));
    let limits = Limits { memory, max_pause, force: chosen.force, gives_way: false, part: None };
    let sharing = chosen.group.clone().map_or(Sharing::Exclusive, Sharing::Group);
    let request = Request { cpus, wanted, sharing, spread: chosen.spread, limits };
    Ok(Coloring::new((known, numbers), &machine, request))
}

/// Checks that `chosen` names colors at all. This check does not depend on the machine.
pub fn well_formed(chosen: &ChosenColors) -> Result<()> {
    match wanted(chosen, u32::from(u16::MAX)) {
        // How many colors there are is known later, and no colors at all is said with a hint of its own.
        Err(error) if matches!(error.downcast_ref(), Some(ParseError::List { .. })) => Err(error),
        _ => Ok(()),
    }
}

/// Checks that the colors in `chosen` exist on the first of `cpus`, as far as that is known without measuring.
pub fn check(chosen: &ChosenColors, cpus: &[CpuId]) -> Result<()> {
    let sysfs = Sysfs::system();
    let (machine, _) = sysfs.machine()?;
    let cpu = *cpus.first().context("the program may run on no CPU")?;
    let count = match &chosen.frames.palette {
        Some(path) => named_palette(path, &Boot::of(&machine, &sysfs))?.colors,
        None => Target::of(&machine, chosen.level, cpu)?.geometry.color_count(machine.page_bytes),
    };
    wanted(chosen, count).map(drop)
}

/// Returns the colors in `list`, which may be `all`, out of `count`. Fails if the list is empty.
pub fn listed(list: &str, count: u32) -> Result<Vec<Color>> {
    let colors = if list == "all" { (0..count).collect() } else { parse_list(list, count)? };
    let hint = "hint: --colors 0-3; for a program also auto:4, any four that are free";
    ensure!(!colors.is_empty(), "no colors were given\n  {hint}");
    Ok(colors.into_iter().map(|color| Color(color as u16)).collect())
}

/// Returns the colors in `list`, or the first half of `count` colors if `None`, for a task. Fails if the list is empty or has all colors.
pub fn own_colors(list: Option<&str>, count: u32) -> Result<Vec<Color>> {
    let half = format_list(&(0..(count / 2).max(1)).collect::<Vec<_>>());
    let colors = listed(list.unwrap_or(&half), count)?;
    ensure!(
        (colors.len() as u32) < count,
        "all {count} colors for the task leave none for anything else\n  hint: --colors {half}"
    );
    Ok(colors)
}

/// Returns the colors that `chosen` names out of `count`, or for `auto:N` the number of free colors wanted.
fn wanted(chosen: &ChosenColors, count: u32) -> Result<Wanted> {
    let text = chosen.colors.as_deref().unwrap_or(if chosen.spread { "all" } else { "" });
    if let Some(number) = text.strip_prefix("auto:") {
        let number = number.parse().ok().filter(|number| *number > 0);
        let number = number.with_context(|| format!("`{text}` names no number of colors\n  hint: --colors auto:4"))?;
        return Ok(Wanted::Free(number));
    }
    Ok(Wanted::Colors(listed(text, count)?))
}

/// Reads the palette in a file. Fails if it does not hold on this machine in the boot `now`.
fn named_palette(path: &Path, now: &Boot) -> Result<Palette> {
    let shown = path.display();
    let palette: Palette = files::read_json(path, SCHEMA)?;
    match fits(&palette, now) {
        Ok(()) => Ok(palette),
        Err(wrong) => anyhow::bail!("{shown}: {wrong}\n  hint: isochrome palette -o {shown}"),
    }
}

/// Returns the memory that programs can have without swapping.
pub fn available(sysfs: &Sysfs) -> Result<Bytes> {
    let hint = "hint: --memory 1G";
    let unknown = || format!("/proc/meminfo does not say how much memory is available\n  {hint}");
    sysfs.memory("MemAvailable").with_context(unknown)
}
