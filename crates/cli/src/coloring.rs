//! From `--colors` to frames: the one place that knows where the colors of pages come from, and whose they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use isochrome_host::color::Target;
use isochrome_host::color::known::{KnownColors, on_a_cpu};
use isochrome_host::color::ledger::{self, GrantRequest, Ledger, Owner, Sharing};
use isochrome_host::color::reference::{Numbers, Ready, Reference};
use isochrome_host::color::saved::{self, Boot};
use isochrome_host::color::{pagemap, resident};
use isochrome_host::error::HostError;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::process::Pid;
use isochrome_host::recolor::watch::{Tally, Watch};
use isochrome_host::recolor::{Limits, MAX_PAUSE, RecolorError, Report, Wanted, inspect};
use isochrome_host::runtime;
use isochrome_model::machine::{CacheLevel, Machine};
use isochrome_model::palette::{Palette, Rule, SCHEMA};
use isochrome_model::units::{Bytes, Color, CpuId, FrameNumber, format_list, parse_list};

use crate::args::ChosenColors;
use crate::files;

/// For how long a program that turns its memory over all the time is moved again and again: it is never all there.
pub const PLACING_LIMIT: Duration = Duration::from_secs(15);

/// Colors asked for, and what is known of colors here and now.
#[derive(Clone)]
pub struct Coloring {
    known: Arc<RwLock<Known>>,
    /// The level whose colors these are.
    cache: CacheLevel,
    /// CPUs that the program runs on.
    cpus: Vec<CpuId>,
    sharing: Sharing,
    asked: ledger::Wanted,
    colors: Vec<Color>,
    /// Whether pages are dealt evenly over them.
    spread: bool,
    /// What became of the numbers of colors.
    numbers: Option<Numbers>,
    /// When the ledger's numbers were last measured for.
    followed: Option<Instant>,
    /// How far to go.
    pub limits: Limits,
}

impl Coloring {
    /// What `chosen` asks for, for a program that runs on `cpus`; nobody is given anything yet. Nothing has to be known
    /// beforehand: colors that are not are measured. `seed`: of these measurements.
    pub fn of(chosen: &ChosenColors, cpus: Vec<CpuId>, seed: u64) -> Result<Coloring> {
        let sysfs = Sysfs::system();
        let (machine, _) = sysfs.machine()?;
        let (known, numbers) = known_colors(chosen, &machine, &Boot::of(&machine, &sysfs), &cpus, seed)?;
        if let Some(level) = chosen.level {
            anyhow::ensure!(
                known.level() == level,
                "the palette is of level {}, not {level}\n  hint: isochrome palette --level {level} -o FILE, then --palette FILE",
                known.level()
            );
        }
        let (asked, colors) = asked(chosen, known.colors())?;
        let available = available(&sysfs)?;
        let memory = chosen.frames.memory.unwrap_or(Bytes(available.0 / 2));
        anyhow::ensure!(
            memory <= available,
            "a limit of {memory} is more than the {available} of memory that are available\n  hint: lower --memory"
        );
        let level = known.level();
        let cache = cpus.first().and_then(|cpu| machine.data_level_of(level, *cpu)).or(machine.data_level(level));
        let cache = cache.ok_or(HostError::NoSuchLevel { level })?.clone();
        let sharing = chosen.group.clone().map_or(Sharing::Exclusive, Sharing::Group);
        let max_pause = chosen.max_pause.map_or(MAX_PAUSE, |time| Duration::from_nanos(time.0));
        let limits = Limits { memory, max_pause, force: chosen.force, gives_way: false };
        let (known, spread) = (Arc::new(RwLock::new(Known(known))), chosen.spread);
        Ok(Coloring { known, cache, cpus, sharing, asked, colors, spread, numbers, followed: None, limits })
    }

    /// Whether `chosen` can be had at all on `cpus`, as far as that is known without measuring.
    pub fn check(chosen: &ChosenColors, cpus: &[CpuId]) -> Result<()> {
        let sysfs = Sysfs::system();
        let (machine, _) = sysfs.machine()?;
        let cpu = *cpus.first().context("the program may run on no CPU")?;
        let count = match &chosen.frames.palette {
            Some(path) => named_palette(path, &Boot::of(&machine, &sysfs))?.colors,
            None => Target::of(&machine, chosen.level, cpu)?.geometry.color_count(machine.page_bytes),
        };
        asked(chosen, count).map(drop)
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

    /// What became of the numbers of colors; `None` where a palette was named that is trusted.
    pub fn numbers(&self) -> Option<&Numbers> {
        self.numbers.as_ref()
    }

    /// The colors of the frames that `pid` has, as far as they are known.
    ///
    /// Fails with [`HostError::FramesHidden`] and as [`resident::mappings`] does.
    pub fn palette_of(&self, pid: u32) -> Result<Palette, HostError> {
        let mappings = resident::mappings(pid)?;
        let frames = mappings.iter().flat_map(|mapping| &mapping.pages).filter_map(|page| page.frame);
        let known = self.known();
        let known = |frame: FrameNumber| Some((frame, known.0.of_frame(frame)?));
        let table: BTreeMap<FrameNumber, Color> = frames.filter_map(known).collect();
        let (frames, colors) = table.into_iter().unzip();
        Ok(Palette {
            schema: SCHEMA.to_owned(),
            level: self.level(),
            colors: self.color_count(),
            rule: Rule::Table { frames, colors },
            fingerprint: None,
            boot_id: None,
        })
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where `error` says that the pages of known color may have lost it: checks them, and measures others if it is so. What became of the
    /// numbers of colors; `None` where there was nothing to be done, or it failed.
    pub fn renew_after(&self, error: &RecolorError) -> Option<Numbers> {
        if !error.doubts_reference() {
            return None;
        }
        self.known_mut().0.renew(&runtime::folder(), fastrand::u64(..)).ok()
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the ledger: another `recolor` may have given `owner` other colors, or the colors may have other numbers now.
    ///
    /// Returns where the new numbers come from, if the numbers have changed. Where they cannot be measured this is left for a while: it is
    /// work of a second.
    pub fn follow(&mut self, owner: &Owner) -> Option<Numbers> {
        const AGAIN: Duration = Duration::from_secs(10);
        let folder = runtime::folder();
        let level = self.level();
        let in_ledger = ledger::numbering_of(&folder, level);
        let is_another = |reference: &Reference| in_ledger.is_some_and(|numbering| numbering != reference.numbering);
        let differs = self.known().0.reference().is_some_and(is_another);
        let mut numbers = None;
        if differs && self.followed.is_none_or(|followed| followed.elapsed() >= AGAIN) {
            numbers = self.known_mut().0.renew(&folder, fastrand::u64(..)).ok();
            self.followed = Some(Instant::now());
        }
        if let Some(colors) = ledger::colors_of(&folder, owner, level).filter(|_| !differs || numbers.is_some()) {
            self.asked = ledger::Wanted::Colors(colors.clone());
            self.colors = colors;
        }
        numbers
    }

    /// The colors; none while they are still to be chosen.
    pub fn colors(&self) -> &[Color] {
        &self.colors
    }

    /// Colors that the level has.
    pub fn color_count(&self) -> u32 {
        self.known().0.colors()
    }

    /// Moves the pages of `pids` to the colors, and again where that fails for a reason that may pass.
    pub fn place(&self, pids: &[Pid]) -> Result<Tally, RecolorError> {
        self.place_again(&mut Watch::default(), pids)
    }

    /// As [`place`](Self::place), but leaves alone what `watch` has seen to be in place.
    pub fn place_again(&self, watch: &mut Watch, pids: &[Pid]) -> Result<Tally, RecolorError> {
        /// Attempts in vain: at stopping a process, and at moving what is left.
        const ATTEMPTS: u32 = 20;
        const IDLE: u32 = 3;
        /// Attempts make progress when together they raise the share of the resident pages that are on color by so much. A program may touch
        /// new memory, and grow, for ever.
        const PROGRESS: f64 = 0.01;
        let begin = Instant::now();
        let (mut failed, mut idle, mut most) = (0, 0, 0.0);
        loop {
            let error = self.with(|wanted| watch.round(pids, wanted, &self.limits)).into_iter().next();
            match error {
                Some((_, error)) if error.may_pass() && failed < ATTEMPTS => {
                    failed += 1;
                    if self.renew_after(&error).is_none() {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
                Some((_, error)) => return Err(error),
                None => {
                    let tally = watch.tally();
                    let share = tally.on_color as f64 / tally.resident.max(1) as f64;
                    (idle, most) = if share > most + PROGRESS { (0, share) } else { (idle + 1, most) };
                    if tally.off_color == 0 && !watch.is_waiting() || idle >= IDLE || begin.elapsed() > PLACING_LIMIT {
                        return Ok(tally.clone());
                    }
                }
            }
        }
    }

    /// Leaves what was measured of the programs that `watch` has seen for the `exec`s that watch over them.
    pub fn hand_over(&self, watch: &Watch) -> Result<(), RecolorError> {
        watch.hand_over(&self.known().0)
    }

    /// Where the pages of `pid` lie.
    pub fn look(&self, pid: Pid) -> Result<Report, RecolorError> {
        self.with(|wanted| inspect(pid, wanted))
    }

    /// The level whose colors these are.
    pub fn level(&self) -> u8 {
        self.known().0.level()
    }

    /// Does `work` with the frames wanted.
    pub fn with<T>(&self, work: impl FnOnce(&Wanted) -> T) -> T {
        self.with_colors(&self.colors, work)
    }

    /// Does `work` with frames of some of the colors.
    pub fn with_colors<T>(&self, colors: &[Color], work: impl FnOnce(&Wanted) -> T) -> T {
        work(&Wanted { known: &self.known().0, colors, spread: self.spread })
    }
}

/// What is known of colors, from one command to its end.
struct Known(KnownColors);

impl Drop for Known {
    fn drop(&mut self) {
        // A saved table that was found to be wrong is repaired by what was measured in its place.
        if let Some(measured) = self.0.stale() {
            // Where it cannot be written, the next command finds it wrong as well.
            let _ = saved::repair(&runtime::folder(), self.0.level(), &measured);
        }
    }
}

/// What is known of the colors of the level that `chosen` means.
fn known_colors(
    chosen: &ChosenColors,
    machine: &Machine,
    boot: &Boot,
    cpus: &[CpuId],
    seed: u64,
) -> Result<(KnownColors, Option<Numbers>)> {
    let folder = runtime::folder();
    let named = chosen.frames.palette.as_ref().map(|path| named_palette(path, boot)).transpose()?;
    let cpu = *cpus.first().context("the program may run on no CPU")?;
    if chosen.frames.trust_palette {
        if pagemap::hidden() {
            return Err(HostError::FramesHidden.into());
        }
        let trusted = match named {
            Some(palette) => palette,
            None => saved::load(&folder, Target::of(machine, chosen.level, cpu)?.level, boot)?,
        };
        return Ok((KnownColors::trusted(trusted), None));
    }
    let level = named.as_ref().map(|palette| palette.level).or(chosen.level);
    let target = Target::of(machine, level, cpu)?;
    let ready = on_a_cpu(cpus, || Reference::obtain(&folder, target, seed, boot))?;
    let Ready { reference, mut tester, numbers } = ready;
    let is_named = named.is_some();
    let palette = match named {
        Some(palette) => {
            if let Some(order) = reference.order_by_frames(&tester, &palette)? {
                tester.renumber(&order);
            }
            Some(palette)
        }
        // What is saved only saves time, so whatever is wrong with it is no reason to stop.
        None => saved::load(&folder, target.level, boot).ok().or(reference.rule.clone()),
    };
    let reference = reference.with_sets(tester.sets().to_vec());
    Ok((KnownColors::measured(reference, palette, is_named, cpus.to_vec()), Some(numbers)))
}

/// The colors in `list`, which may be `all`; at least one.
pub fn listed(list: &str, count: u32) -> Result<Vec<Color>> {
    let colors = if list == "all" { (0..count).collect() } else { parse_list(list, count)? };
    let hint = "hint: --colors 0-3; for a program also auto:4, any four that are free";
    anyhow::ensure!(!colors.is_empty(), "no colors were given\n  {hint}");
    Ok(colors.into_iter().map(|color| Color(color as u16)).collect())
}

/// The colors in `list` for a task, or the first half of `count`: some, but not all.
pub fn own_colors(list: Option<&str>, count: u32) -> Result<Vec<Color>> {
    let half = format_list(&(0..(count / 2).max(1)).collect::<Vec<_>>());
    let colors = listed(list.unwrap_or(&half), count)?;
    anyhow::ensure!(
        (colors.len() as u32) < count,
        "all {count} colors for the task leave none for anything else\n  hint: --colors {half}"
    );
    Ok(colors)
}

/// The colors that `chosen` names, `auto:N` among them, out of `count`.
fn asked(chosen: &ChosenColors, count: u32) -> Result<(ledger::Wanted, Vec<Color>)> {
    let text = chosen.colors.as_deref().unwrap_or(if chosen.spread { "all" } else { "" });
    if let Some(number) = text.strip_prefix("auto:") {
        let number = number.parse().ok().filter(|number| *number > 0);
        let number = number.with_context(|| format!("`{text}` names no number of colors\n  hint: --colors auto:4"))?;
        return Ok((ledger::Wanted::Free(number), Vec::new()));
    }
    let colors = listed(text, count)?;
    Ok((ledger::Wanted::Colors(colors.clone()), colors))
}

/// The palette in a file, if it holds here and now.
fn named_palette(path: &Path, now: &Boot) -> Result<Palette> {
    let shown = path.display();
    let palette: Palette = files::read_json(path, SCHEMA)?;
    let wrong = match (&palette.fingerprint, &palette.boot_id, &palette.rule) {
        (_, _, Rule::Hidden) => "holds no colors of frames, as the kernel hid their numbers to all but root",
        (Some(of), ..) if *of != now.fingerprint => "was measured on another machine",
        (_, of, Rule::Table { .. }) if of.as_ref() != Some(&now.boot_id) => {
            "a table of frames holds for one boot, and this is another"
        }
        _ => return Ok(palette),
    };
    anyhow::bail!("{shown}: {wrong}\n  hint: isochrome palette -o {shown}")
}

/// Memory that programs can have without swapping.
pub fn available(sysfs: &Sysfs) -> Result<Bytes> {
    let hint = "hint: --memory 1G";
    let unknown = || format!("/proc/meminfo does not say how much memory is available\n  {hint}");
    sysfs.memory("MemAvailable").with_context(unknown)
}

/// Colors of `.0` in the ledger; given back when it goes.
pub struct Lease(Owner);

impl Drop for Lease {
    fn drop(&mut self) {
        // What cannot be given back now is known to be nobody's once this process has ended.
        let _ = Ledger::open(&runtime::folder()).and_then(|mut ledger| ledger.release(&self.0));
    }
}
