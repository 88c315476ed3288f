//! Programs on their colors: which colors a program gets, that its pages get there, and that they stay.
//!
//! [`Coloring`] brings together what the rooms below know separately: the colors of frames ([`KnownColors`]), whose colors are whose
//! ([`ledger`]), and how pages are moved ([`recolor`](crate::recolor)). A [`Keeper`] does with it what `exec` is for: it puts a program on
//! its colors while it runs, and looks after it until it ends. [`Placed`](placed::Placed) is the report of both.

mod keeper;
mod pace;
pub mod placed;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use isochrome_model::machine::{CacheLevel, Machine};
use isochrome_model::palette::{Palette, Rule, SCHEMA};
use isochrome_model::units::{Color, CpuId, FrameNumber};

pub use self::keeper::{Hooks, Keeper, Notice, Program};
pub use self::pace::Readiness;
use crate::color::known::{KnownColors, Verified};
use crate::color::ledger::{self, GrantRequest, Ledger, Owner, Sharing};
use crate::color::reference::{Numbers, Reference};
use crate::color::{resident, saved};
use crate::error::HostError;
use crate::process::Pid;
use crate::recolor::watch::{Tally, Watch};
use crate::recolor::{Limits, RecolorError, Report, Wanted, inspect};
use crate::runtime;

/// For how long a program that turns its memory over all the time is moved again and again: it is never all there.
const PLACING_LIMIT: Duration = Duration::from_secs(15);

/// Attempts at placing pages anew after eviction tests found too many of them off color.
const ATTEMPTS: u32 = 5;

/// What a program is to get.
#[derive(Clone, Debug)]
pub struct Request {
    /// CPUs that it runs on.
    pub cpus: Vec<CpuId>,
    /// Which colors.
    pub wanted: ledger::Wanted,
    /// Who else may use them.
    pub sharing: Sharing,
    /// Whether pages are dealt evenly over them.
    pub spread: bool,
    /// How far a recoloring may go.
    pub limits: Limits,
}

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
    /// What `request` asks for, by what is `known` and what became of the `numbers` of colors; nobody is given anything yet.
    ///
    /// Fails with [`HostError::NoSuchLevel`] where the machine has no cache of the level that is known.
    pub fn new(
        (known, numbers): (KnownColors, Option<Numbers>),
        machine: &Machine,
        request: Request,
    ) -> Result<Coloring, HostError> {
        let Request { cpus, wanted: asked, sharing, spread, limits } = request;
        let level = known.level();
        let cache = cpus.first().and_then(|cpu| machine.data_level_of(level, *cpu)).or(machine.data_level(level));
        let cache = cache.ok_or(HostError::NoSuchLevel { level })?.clone();
        let colors = match &asked {
            ledger::Wanted::Colors(colors) => colors.clone(),
            ledger::Wanted::Free(_) => Vec::new(),
        };
        let known = Arc::new(RwLock::new(Known(known)));
        Ok(Coloring { known, cache, cpus, sharing, asked, colors, spread, numbers, followed: None, limits })
    }

    /// The same for another program, which gets `colors` and runs on `cpus`.
    pub fn of_another(&self, colors: Vec<Color>, cpus: Vec<CpuId>) -> Coloring {
        Coloring { cpus, asked: ledger::Wanted::Colors(colors.clone()), colors, ..self.clone() }
    }

    /// The same, with the colors entered in the ledger as those of `own`: this process, which holds them until its program can. From now on
    /// it gives way to other commands that work on the program.
    ///
    /// Fails as [`Ledger::grant`] does.
    pub fn reserved(mut self, own: Owner) -> Result<Coloring, HostError> {
        self.limits.gives_way = true;
        self.grant(own, None)?;
        Ok(self)
    }

    /// Enters the colors in the ledger as those of `owner`, in place of `before` where another process had them for it.
    ///
    /// Fails as [`Ledger::open`] and [`Ledger::grant`] do.
    pub fn grant(&mut self, owner: Owner, before: Option<&Owner>) -> Result<(), HostError> {
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
    ///
    /// Fails as [`grant`](Self::grant) does.
    pub fn lease(&mut self, owner: Owner) -> Result<Lease, HostError> {
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
        const STOPPING_ATTEMPTS: u32 = 20;
        const IDLE: u32 = 3;
        /// Attempts make progress when together they raise the share of the resident pages that are on color by so much. A program may touch
        /// new memory, and grow, for ever.
        const PROGRESS: f64 = 0.01;
        let begin = Instant::now();
        let (mut failed, mut idle, mut most) = (0, 0, 0.0);
        loop {
            let error = self.with(|wanted| watch.round(pids, wanted, &self.limits)).into_iter().next();
            match error {
                Some((_, error)) if error.may_pass() && failed < STOPPING_ATTEMPTS => {
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

    /// Moves the pages of `pids` to the colors as [`place_again`](Self::place_again) does, and puts samples of them to eviction tests:
    /// again while too many are off color, a few times at most. `unverified` gets why pages could not be tested.
    ///
    /// Returns what the last tests say; `None` where colors are not measured, nothing is on color, or nothing could be tested.
    pub fn place_verified(
        &self,
        watch: &mut Watch,
        pids: &[Pid],
        mut unverified: impl FnMut(RecolorError),
    ) -> Result<Option<Verified>, RecolorError> {
        let begin = Instant::now();
        let mut attempt = 1;
        loop {
            self.place_again(watch, pids)?;
            let verified = self.verify(watch, pids).unwrap_or_else(|error| {
                unverified(error);
                None
            });
            if verified.is_none_or(|verified| verified.holds())
                || attempt == ATTEMPTS
                || begin.elapsed() > PLACING_LIMIT
            {
                return Ok(verified);
            }
            attempt += 1;
        }
    }

    /// As [`Watch::verify`], of these colors.
    fn verify(&self, watch: &mut Watch, pids: &[Pid]) -> Result<Option<Verified>, RecolorError> {
        self.with(|wanted| watch.verify(pids, wanted, &self.limits))
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

/// Colors of `.0` in the ledger; given back when it goes.
pub struct Lease(Owner);

impl Drop for Lease {
    fn drop(&mut self) {
        // What cannot be given back now is known to be nobody's once this process has ended.
        let _ = Ledger::open(&runtime::folder()).and_then(|mut ledger| ledger.release(&self.0));
    }
}
