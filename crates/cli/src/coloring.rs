//! From `--colors` and `--palette` to frames: the one place that knows where the color of a frame comes from, and whose it is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use isochrome_host::error::HostError;
use isochrome_host::ledger::{self, GrantRequest, Ledger, Numbering, Owner, Sharing};
use isochrome_host::palette::reference::Reference;
use isochrome_host::palette::saved::Boot;
use isochrome_host::recolor::process::Pid;
use isochrome_host::recolor::watch::{Tally, Watch};
use isochrome_host::recolor::{Limits, Placed, RecolorError, Report, Source, Wanted, inspect};
use isochrome_host::sysfs::Sysfs;
use isochrome_host::{pagemap, runtime};
use isochrome_model::machine::CacheLevel;
use isochrome_model::palette::{Palette, Rule, SCHEMA};
use isochrome_model::units::{Bytes, Color, CpuId, FrameNumber, parse_list};

use crate::args::{By, ChosenColors, Place};
use crate::files;
use crate::station::Station;

/// What colors are told by, here and now.
enum Known {
    Frames(Palette),
    /// Where frame numbers are hidden, or do not tell for long.
    Evictions(Reference),
}

impl Known {
    fn level(&self) -> u8 {
        match self {
            Known::Frames(palette) => palette.level,
            Known::Evictions(reference) => reference.level,
        }
    }

    fn colors(&self) -> u32 {
        match self {
            Known::Frames(palette) => palette.colors,
            Known::Evictions(reference) => reference.colors(),
        }
    }
}

/// Colors asked for, by a palette that holds here and now.
#[derive(Clone)]
pub struct Coloring {
    known: Arc<Known>,
    /// The level whose colors these are.
    cache: CacheLevel,
    /// CPUs that the program runs on.
    cpus: Vec<CpuId>,
    sharing: Sharing,
    asked: ledger::Wanted,
    colors: Vec<Color>,
    /// How far to go.
    pub limits: Limits,
}

impl Coloring {
    /// What `chosen` asks for, for a program that runs on `cpus`; nobody is given anything yet. `seed`: of the test that a saved palette is put to.
    pub fn of(chosen: &ChosenColors, cpus: Vec<CpuId>, seed: u64) -> Result<Coloring> {
        let sysfs = Sysfs::system();
        let (machine, _) = sysfs.machine()?;
        let known = match &chosen.palette {
            Some(path) => Known::Frames(named_palette(&sysfs, path, &machine.fingerprint())?),
            None => {
                let cpu = cpus.last().map(|cpu| cpu.0);
                let place = Place { cpu, level: chosen.level, by: By::Auto, memory: None, seed: Some(seed) };
                let station = Station::at(cpu, seed)?;
                let target = station.target(&place)?;
                if chosen.by_eviction || pagemap::hidden() {
                    let boot = Boot::of(&machine, &sysfs);
                    Known::Evictions(Reference::load(&runtime::folder(), target.level, &boot)?)
                } else {
                    Known::Frames(station.saved_palette(&place, target)?.0)
                }
            }
        };
        if let Some(level) = chosen.level {
            anyhow::ensure!(
                known.level() == level,
                "the palette is of level {}, not {level}\n  hint: isochrome palette --level {level} -o FILE, then --palette FILE",
                known.level()
            );
        }
        let (asked, colors) = asked(chosen.colors.as_deref().unwrap_or_default(), known.colors())?;
        let available = available(&sysfs)?;
        let memory = chosen.memory.unwrap_or(Bytes(available.0 / 2));
        anyhow::ensure!(
            memory <= available,
            "a limit of {memory} is more than the {available} of memory that are available\n  hint: lower --memory"
        );
        let level = known.level();
        let cache = cpus.first().and_then(|cpu| machine.data_level_of(level, *cpu)).or(machine.data_level(level));
        let cache = cache.ok_or(HostError::NoSuchLevel { level })?.clone();
        let sharing = chosen.group.clone().map_or(Sharing::Exclusive, Sharing::Group);
        let limits = Limits { memory, force: chosen.force };
        Ok(Coloring { known: Arc::new(known), cache, cpus, sharing, asked, colors, limits })
    }

    /// The same for another program, which gets `colors` and runs on `cpus`.
    pub fn of_another(&self, colors: Vec<Color>, cpus: Vec<CpuId>) -> Coloring {
        Coloring { cpus, asked: ledger::Wanted::Colors(colors.clone()), colors, ..self.clone() }
    }

    /// Enters the colors in the ledger as those of `owner`, in place of `before` where another process had them for it.
    pub fn grant(&mut self, owner: Owner, before: Option<&Owner>) -> Result<()> {
        let mut ledger = Ledger::open(&runtime::folder())?;
        if let Some(before) = before {
            ledger.release(before)?;
        }
        let grant = ledger.grant(GrantRequest {
            owner,
            sharing: self.sharing.clone(),
            cache: &self.cache,
            color_count: self.color_count(),
            cpus: self.cpus.clone(),
            numbering: match *self.known {
                Known::Frames(_) => Numbering::Frames,
                Known::Evictions(_) => Numbering::Evictions,
            },
            wanted: self.asked.clone(),
        })?;
        self.colors = grant.colors;
        self.asked = ledger::Wanted::Colors(self.colors.clone());
        Ok(())
    }

    /// Enters the colors in the ledger as those of `owner` until what this returns goes.
    pub fn lease(&mut self, owner: Owner) -> Result<Lease> {
        self.grant(owner.clone(), None)?;
        Ok(Lease(owner))
    }

    /// The colors; none while they are still to be chosen.
    pub fn colors(&self) -> &[Color] {
        &self.colors
    }

    /// Colors that the level has.
    pub fn color_count(&self) -> u32 {
        self.known.colors()
    }

    /// Moves the pages of `pids` to the colors, and again where that fails for a reason that may pass.
    pub fn place(&self, pids: &[Pid]) -> Result<Tally, RecolorError> {
        self.place_again(&mut Watch::default(), pids)
    }

    /// As [`place`](Self::place), but leaves alone what `watch` has seen to be in place.
    pub fn place_again(&self, watch: &mut Watch, pids: &[Pid]) -> Result<Tally, RecolorError> {
        /// Attempts.
        const ATTEMPTS: u32 = 20;
        let mut round = || self.with(|wanted| watch.round(pids, wanted, &self.limits)).into_iter().next();
        for _ in 0..ATTEMPTS {
            match round() {
                None => return Ok(watch.tally().clone()),
                Some((_, error)) if error.may_pass() => std::thread::sleep(Duration::from_millis(100)),
                Some((_, error)) => return Err(error),
            }
        }
        round().map_or(Ok(watch.tally().clone()), |(_, error)| Err(error))
    }

    /// Where the pages of `pid` lie, which `watch` has moved.
    pub fn look(&self, watch: &Watch, pid: Pid) -> Result<Report, RecolorError> {
        self.with_placed(&self.colors, &watch.placed(pid), |wanted| inspect(pid, wanted))
    }

    /// The level whose colors these are.
    pub fn level(&self) -> u8 {
        self.known.level()
    }

    /// Does `work` with the frames wanted.
    pub fn with<T>(&self, work: impl FnOnce(&Wanted) -> T) -> T {
        self.with_colors(&self.colors, work)
    }

    /// Does `work` with frames of some of the colors.
    pub fn with_colors<T>(&self, colors: &[Color], work: impl FnOnce(&Wanted) -> T) -> T {
        self.with_placed(colors, &Placed::new(), work)
    }

    fn with_placed<T>(&self, colors: &[Color], placed: &Placed, work: impl FnOnce(&Wanted) -> T) -> T {
        let color_count = self.color_count();
        match &*self.known {
            Known::Frames(palette) => {
                let color_of = |frame: FrameNumber| palette.color_of(frame);
                work(&Wanted { source: Source::Frames(&color_of), colors, color_count })
            }
            Known::Evictions(reference) => {
                work(&Wanted { source: Source::Evictions(reference, placed), colors, color_count })
            }
        }
    }
}

/// A list of colors, `all`, or `auto:N`.
fn asked(text: &str, count: u32) -> Result<(ledger::Wanted, Vec<Color>)> {
    if text == "all" {
        let colors: Vec<Color> = (0..count).map(|color| Color(color as u16)).collect();
        return Ok((ledger::Wanted::Colors(colors.clone()), colors));
    }
    if let Some(number) = text.strip_prefix("auto:") {
        let number = number.parse().ok().filter(|number| *number > 0);
        let number = number.with_context(|| format!("`{text}` names no number of colors\n  hint: --colors auto:4"))?;
        return Ok((ledger::Wanted::Free(number), Vec::new()));
    }
    let colors: Vec<Color> = parse_list(text, count)?.into_iter().map(|color| Color(color as u16)).collect();
    anyhow::ensure!(
        !colors.is_empty(),
        "no colors were given\n  hint: --colors 0-3, or auto:4 for any four that are free"
    );
    Ok((ledger::Wanted::Colors(colors.clone()), colors))
}

/// The palette in a file, if it holds here and now.
fn named_palette(sysfs: &Sysfs, path: &Path, fingerprint: &str) -> Result<Palette> {
    let shown = path.display();
    let palette: Palette = files::read_json(path, SCHEMA)?;
    anyhow::ensure!(
        palette.rule != Rule::Hidden,
        "{shown}: holds no colors of frames, as the kernel hid their numbers\n  hint: as root: isochrome palette -o {shown}"
    );
    anyhow::ensure!(
        palette.fingerprint.as_ref().is_none_or(|of| of == fingerprint),
        "{shown}: was measured on another machine\n  hint: isochrome palette -o {shown}"
    );
    let boot = sysfs.text("proc/sys/kernel/random/boot_id").unwrap_or_default();
    let of_this_boot = palette.boot_id.as_deref() == Some(boot.trim());
    anyhow::ensure!(
        of_this_boot || !matches!(palette.rule, Rule::Table { .. }),
        "{shown}: a table of frames holds for one boot, and this is another\n  hint: isochrome palette -o {shown}"
    );
    Ok(palette)
}

/// Memory that programs can have without swapping.
pub fn available(sysfs: &Sysfs) -> Result<Bytes> {
    let text = sysfs.text("proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(Bytes(kib.context("/proc/meminfo does not say how much memory is available\n  hint: --memory 1G")? * 1024))
}

/// Colors of `.0` in the ledger; given back when it goes.
pub struct Lease(Owner);

impl Drop for Lease {
    fn drop(&mut self) {
        // What cannot be given back now is known to be nobody's once this process has ended.
        let _ = Ledger::open(&runtime::folder()).and_then(|mut ledger| ledger.release(&self.0));
    }
}
