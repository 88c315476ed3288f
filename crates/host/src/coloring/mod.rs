//! Putting programs on their colors: choosing the colors, moving the pages, and keeping them there.
//!
//! [`Coloring`] combines the colors of frames ([`KnownColors`]), the owners of colors ([`ledger`]) and the moving of pages
//! ([`recolor`](crate::recolor)). A [`Keeper`] uses a coloring for `exec`: it puts a running program on its colors, and keeps it there until
//! the program ends. [`PlacementReport`](report::PlacementReport) is the report of `exec` and `recolor`.

mod keeper;
mod pace;
pub mod report;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use isochrome_model::machine::{CacheLevel, Machine};
use isochrome_model::palette::{Palette, Rule, SCHEMA};
use isochrome_model::units::{Bytes, Color, CpuId, FrameNumber};

use rustc_hash::FxHashSet;
use rustix::thread::sched_getcpu;

pub use self::keeper::{Hooks, Keeper, Notice, Program};
pub use self::pace::Readiness;
use crate::color::ColorError;
use crate::color::known::{KnownColors, on_a_cpu};
use crate::color::ledger::{self, GrantRequest, Ledger, Owner, Sharing};
use crate::color::reference::{Numbers, Reference};
use crate::color::reserve::Reserve;
use crate::color::verified::Verified;
use crate::color::{resident, saved};
use crate::error::SystemError;
use crate::process::Pid;
use crate::recolor::census::{Census, census};
use crate::recolor::watch::{Tally, Watch};
use crate::recolor::{Anew, LACKS_FRAME, Limits, Place, RecolorError, Report, Wanted, inspect, recolor};
use crate::runtime;

/// Time for which a program is moved again and again if it keeps replacing its memory. Such a program is never completely on its colors.
const MOVING_LIMIT: Duration = Duration::from_secs(15);

/// Most attempts at placing pages while eviction tests find too many of them off color.
const ATTEMPTS: u32 = 5;

/// The colors that a program should get, and how it is moved to them.
#[derive(Clone, Debug)]
pub struct Request {
    /// CPUs that the program runs on.
    pub cpus: Vec<CpuId>,
    /// The colors wanted.
    pub wanted: ledger::Wanted,
    /// Who else may use the colors.
    pub sharing: Sharing,
    /// Whether pages are distributed evenly over the colors.
    pub spread: bool,
    /// Limits of a recoloring.
    pub limits: Limits,
}

/// The colors requested for a program, and the present knowledge of the colors of pages.
#[derive(Clone)]
pub struct Coloring {
    known: Arc<RwLock<Known>>,
    /// The cache of the colors; `None` if the machine does not show its shape, which a trusted palette can do without.
    cache: Option<CacheLevel>,
    /// The CPUs of each instance of the cache.
    shared_by: Vec<Vec<CpuId>>,
    /// CPUs that the program runs on.
    cpus: Vec<CpuId>,
    sharing: Sharing,
    requested: ledger::Wanted,
    colors: Vec<Color>,
    /// Whether pages are distributed evenly over the colors.
    spread: bool,
    /// Where the numbers of the colors come from; `None` if the palette is trusted.
    numbers: Option<Numbers>,
    /// Time at which the numbers were last measured again to follow the ledger.
    followed: Option<Instant>,
    /// Limits of a recoloring.
    pub limits: Limits,
    /// Frames that are handed over before any are drawn.
    reserve: Option<Arc<Mutex<Reserve>>>,
    /// Parts of the memory that have some of the colors only.
    places: Vec<Place>,
}

impl Coloring {
    /// Returns the coloring for `request`, given what is `known` of colors and where the `numbers` of colors come from.
    ///
    /// Nothing is entered in the ledger yet. If `machine` does not show the cache, all CPUs are taken to share it, so that no two owners get the same
    /// color.
    pub fn new((known, numbers): (KnownColors, Option<Numbers>), machine: &Machine, request: Request) -> Coloring {
        let Request { cpus, wanted: requested, sharing, spread, limits } = request;
        let level = known.level();
        let cache = cpus.first().and_then(|cpu| machine.data_level_of(level, *cpu)).or(machine.data_level(level));
        let shared_by = cache.map_or_else(|| vec![machine.cpus.clone()], |cache| cache.shared_by.value.clone());
        let colors = match &requested {
            ledger::Wanted::Colors(colors) => colors.clone(),
            ledger::Wanted::Free(_) => Vec::new(),
        };
        let known = Arc::new(RwLock::new(Known(known)));
        Coloring {
            known,
            cache: cache.cloned(),
            shared_by,
            cpus,
            sharing,
            requested,
            colors,
            spread,
            numbers,
            followed: None,
            limits,
            reserve: None,
            places: Vec::new(),
        }
    }

    /// Returns a copy of this coloring for another program, which gets `colors` and runs on `cpus`.
    pub fn of_another(&self, colors: Vec<Color>, cpus: Vec<CpuId>) -> Coloring {
        let requested = ledger::Wanted::Colors(colors.clone());
        Coloring { cpus, requested, colors, places: Vec::new(), ..self.clone() }
    }

    /// Returns this coloring with `places`: parts of the memory that have some of its colors only.
    pub fn with_places(self, places: Vec<Place>) -> Coloring {
        Coloring { places, ..self }
    }

    /// Provides a reserve of frames that can hold `size` of memory, for all programs that this coloring moves, and copies made from now on. It has no
    /// frames until it is [stocked](Self::stock_reserve) and [refilled](Self::refill_reserve). `None`: no reserve.
    pub fn hold_reserve(&mut self, size: Option<Bytes>) -> Result<(), SystemError> {
        let has_room = |reserve: &Arc<Mutex<Reserve>>, size| {
            reserve.lock().unwrap_or_else(PoisonError::into_inner).has_room_for(size)
        };
        match (&self.reserve, size) {
            (Some(reserve), Some(size)) if has_room(reserve, size) => {}
            (None, None) => {}
            (_, size) => {
                self.known().0.hold(std::process::id() as i32, Vec::new());
                let reserve = size.map(|size| Reserve::stocking(&self.known().0, size)).transpose()?;
                self.reserve = reserve.map(|reserve| Arc::new(Mutex::new(reserve)));
            }
        }
        Ok(())
    }

    /// Has the reserve provide `size` of memory in frames of `colors`, as [`Reserve::provide`] does.
    pub fn stock_reserve(&self, size: Bytes, colors: &[Color]) {
        if let Some(reserve) = &self.reserve {
            reserve.lock().unwrap_or_else(PoisonError::into_inner).provide(size, colors);
        }
    }

    /// Gives all programs that this coloring moves, and copies made from now on, frames of a reserve that searches for frames that are rare in the
    /// free memory. The reserve holds at most as much memory as draws may touch.
    pub fn search_frames(&mut self) -> Result<(), SystemError> {
        let reserve = Reserve::searching(&self.known().0, self.limits.memory)?;
        self.reserve = Some(Arc::new(Mutex::new(reserve)));
        Ok(())
    }

    /// Takes frames for the reserve if it has too few, as [`Reserve::refill`] does. `may_search`: whether there is enough memory.
    pub fn refill_reserve(&self, may_search: bool) {
        if let Some(reserve) = &self.reserve {
            let known = self.known();
            reserve.lock().unwrap_or_else(PoisonError::into_inner).refill(&known.0, may_search);
        }
    }

    /// Measures some frames of the reserve whose colors are unknown, for half a second at most. Returns whether there were any.
    ///
    /// Fails as [`Reference::tester`] and [`Reserve::measure`] do.
    pub fn measure_reserve(&self) -> Result<bool, ColorError> {
        let (Some(reserve), known) = (&self.reserve, self.known()) else { return Ok(false) };
        let mut reserve = reserve.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reference) = known.0.reference().filter(|_| reserve.has_unknown()) else { return Ok(false) };
        // On one CPU only: where tests fail, they are made later, and perhaps on another one.
        let here = CpuId(sched_getcpu() as u32);
        let cpus = known.0.cpus();
        let cpu = cpus.iter().find(|cpu| **cpu == here).or(cpus.first());
        on_a_cpu(cpu.map(std::slice::from_ref).unwrap_or_default(), || {
            let Some(mut tester) = reference.tester(fastrand::u64(..))? else { return Ok(false) };
            reserve.measure(&known.0, &mut tester).map(|()| true)
        })
    }

    /// Gives the memory of the reserve back, until the next refill.
    pub fn give_back_reserve(&self) {
        if let Some(reserve) = &self.reserve {
            let known = self.known();
            reserve.lock().unwrap_or_else(PoisonError::into_inner).give_back(&known.0);
        }
    }

    /// Returns the number of pages in the reserve, and how many of them are of known color and needed.
    pub fn reserve_pages(&self) -> (usize, usize) {
        self.reserve.as_ref().map_or((0, 0), |reserve| {
            let reserve = reserve.lock().unwrap_or_else(PoisonError::into_inner);
            (reserve.held(), reserve.provided())
        })
    }

    /// Enters the colors in the ledger as those of `own`, and returns the coloring.
    ///
    /// `own` is this process, which holds the colors until its program can. From now on the coloring gives way to other commands that work on
    /// the program.
    ///
    /// Fails as [`Ledger::grant`] does.
    pub fn reserved(mut self, own: Owner) -> Result<Coloring, ColorError> {
        self.limits.gives_way = true;
        self.grant(own, None)?;
        Ok(self)
    }

    /// Enters the colors in the ledger as those of `owner`. If `before` is given, all colors that it holds are released first.
    ///
    /// Fails as [`Ledger::open`] and [`Ledger::grant`] do.
    pub fn grant(&mut self, owner: Owner, before: Option<&Owner>) -> Result<(), ColorError> {
        let mut ledger = Ledger::open(&runtime::folder())?;
        if let Some(before) = before {
            ledger.release(before)?;
        }
        let grant = ledger.grant(GrantRequest {
            owner,
            sharing: self.sharing.clone(),
            level: self.level(),
            shared_by: &self.shared_by,
            color_count: self.color_count(),
            cpus: self.cpus.clone(),
            wanted: self.requested.clone(),
        })?;
        self.colors = grant.colors;
        self.requested = ledger::Wanted::Colors(self.colors.clone());
        Ok(())
    }

    /// Enters the colors in the ledger as those of `owner` until the returned lease is dropped.
    ///
    /// Fails as [`grant`](Self::grant) does.
    pub fn lease(&mut self, owner: Owner) -> Result<Lease, ColorError> {
        self.grant(owner.clone(), None)?;
        Ok(Lease(owner))
    }

    /// Returns where the numbers of the colors come from; `None` if the palette is trusted.
    pub fn numbers(&self) -> Option<&Numbers> {
        self.numbers.as_ref()
    }

    /// Returns the known colors of the frames of `pid`, as a palette.
    ///
    /// Fails with [`ColorError::FramesHidden`] and as [`resident::mappings`] does.
    pub fn palette_of(&self, pid: u32) -> Result<Palette, ColorError> {
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

    /// Checks the pages of known color if `error` casts doubt on them, and measures new pages if they have lost their colors.
    ///
    /// Returns where the numbers of the colors come from now; `None` if there was nothing to do, or if the check failed.
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
    /// Returns where the new numbers come from, if the numbers have changed. If they cannot be measured, the next attempt is made only after a
    /// while, because an attempt takes about a second.
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
            self.requested = ledger::Wanted::Colors(colors.clone());
            self.colors = colors;
        }
        numbers
    }

    /// Returns the colors; empty until they are chosen.
    pub fn colors(&self) -> &[Color] {
        &self.colors
    }

    /// Returns the cache level of the colors, with its geometry and the CPUs that share it.
    ///
    /// Fails with [`ColorError::NoSuchLevel`] if the machine does not show it.
    pub fn cache(&self) -> Result<&CacheLevel, ColorError> {
        self.cache.as_ref().ok_or_else(|| ColorError::NoSuchLevel { level: self.level() })
    }

    /// Returns the CPUs that the program runs on.
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Returns the number of colors of the level.
    pub fn color_count(&self) -> u32 {
        self.known().0.colors()
    }

    /// Moves the pages of `pids` to the colors, and returns the tally of the last round. Tries again where a move fails for a reason that may
    /// pass, and searches for frames of the colors where the draws found too few.
    pub fn move_to_colors(&self, pids: &[Pid]) -> Result<Tally, RecolorError> {
        self.move_watched(&mut Watch::default(), pids)
    }

    /// Does the same as [`move_to_colors`](Self::move_to_colors), but continues with the pages that `watch` has recorded.
    pub fn move_watched(&self, watch: &mut Watch, pids: &[Pid]) -> Result<Tally, RecolorError> {
        /// Most failed attempts at a round, and most rounds in a row without progress.
        const STOPPING_ATTEMPTS: u32 = 20;
        const IDLE: u32 = 3;
        /// Rounds make progress if they raise the share of resident pages that are on color by more than this. A program may touch new memory,
        /// and grow, forever.
        const PROGRESS: f64 = 0.01;
        let begin = Instant::now();
        let (mut failed, mut idle, mut most) = (0, 0, 0.0);
        loop {
            let error = self.with(|wanted| watch.round(pids, wanted, &self.limits)).into_iter().next();
            let lacks_frames = matches!(error, Some((_, RecolorError::TooFewFrames { .. })))
                || watch.tally().immovable.contains_key(LACKS_FRAME);
            // Draws in the program are small. Before pages are left where they are, frames for them are searched in more of the free memory.
            if lacks_frames && self.reserve.is_none() {
                let mut searching = self.clone();
                if searching.search_frames().is_ok() {
                    return searching.move_watched(watch, pids);
                }
            }
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
                    let share = tally.on_color.saturating_sub(watch.undrawn()) as f64 / tally.resident.max(1) as f64;
                    (idle, most) = if share > most + PROGRESS { (0, share) } else { (idle + 1, most) };
                    if tally.off_color == 0 && !watch.is_waiting() || idle >= IDLE || begin.elapsed() > MOVING_LIMIT {
                        return Ok(tally.clone());
                    }
                }
            }
        }
    }

    /// Moves the pages of `pids` to the colors as [`move_watched`](Self::move_watched) does, and tests samples of them by eviction.
    ///
    /// Both are repeated a few times while too many pages are off color. `unverified` is called with the reason where pages could not be
    /// tested.
    ///
    /// Returns the result of the last tests; `None` if colors are not measured, no page is on color, or nothing could be tested.
    pub fn move_verified(
        &self,
        watch: &mut Watch,
        pids: &[Pid],
        mut unverified: impl FnMut(RecolorError),
    ) -> Result<Option<Verified>, RecolorError> {
        let begin = Instant::now();
        let mut attempt = 1;
        loop {
            self.move_watched(watch, pids)?;
            let verified = self.verify(watch, pids).unwrap_or_else(|error| {
                unverified(error);
                None
            });
            if verified.is_none_or(|verified| verified.holds()) || attempt == ATTEMPTS || begin.elapsed() > MOVING_LIMIT
            {
                return Ok(verified);
            }
            attempt += 1;
        }
    }

    /// Does the same as [`Watch::verify`] for these colors.
    fn verify(&self, watch: &mut Watch, pids: &[Pid]) -> Result<Option<Verified>, RecolorError> {
        self.with(|wanted| watch.verify(pids, wanted, &self.limits))
    }

    /// Gives every movable page of `pid` another frame, with the colors in rotation, even if its old frame was on color. Each placement of an
    /// experiment therefore moves as many pages as any other, and draws its frames afresh. Tries again where a move fails for a reason that may pass.
    ///
    /// Returns the number of pages that were given another frame.
    pub fn move_anew(&self, pid: Pid) -> Result<usize, RecolorError> {
        /// Largest number of attempts.
        const ATTEMPTS: u32 = 5;
        // After the first attempt, only the pages that it left are drawn.
        let (mut moved, mut left) = (0, None::<FxHashSet<u64>>);
        let mut attempt = 1;
        loop {
            let done = {
                let known = self.known();
                let (known, colors) = (&known.0, &self.colors[..]);
                let reserve = self.reserve.as_deref();
                let anew = left.as_ref().map_or(Anew::All, Anew::Only);
                let wanted = Wanted { known, colors, spread: true, anew, reserve, places: &[] };
                recolor(pid, &wanted, &self.limits)
            };
            match done {
                Ok(report) => {
                    moved += report.moved();
                    if report.left.is_empty() || attempt == ATTEMPTS {
                        return Ok(moved);
                    }
                    left = Some(report.left);
                }
                Err(error) if error.lacks_frames() && left.is_some() => return Ok(moved),
                Err(error) if error.may_pass() && attempt < ATTEMPTS => {
                    if self.renew_after(&error).is_none() {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
                // The pages that were left stay where they are.
                Err(error) if error.may_pass() && left.is_some() => return Ok(moved),
                Err(error) => return Err(error),
            }
            attempt += 1;
        }
    }

    /// Returns where the pages of `pids` are now, without moving any. Processes that have ended have none.
    pub fn census(&self, pids: &[Pid]) -> Result<Census, RecolorError> {
        let none = vec![0; self.color_count() as usize];
        let mut sum = Census { by_color: none.clone(), anonymous: none, ..Census::default() };
        for pid in pids {
            match self.with(|wanted| census(*pid, wanted)) {
                Ok(census) => sum.add(&census),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }

    /// Tests by eviction a sample of the pages of `pids` that have the colors. `None` if colors are not measured or nothing could be tested.
    pub fn verify_sample(&self, pids: &[Pid]) -> Result<Option<Verified>, RecolorError> {
        let mut watch = Watch::default();
        self.with(|wanted| watch.look(pids, wanted))?;
        self.verify(&mut watch, pids)
    }

    /// Saves the measured colors of the programs that `watch` has inspected, for the `exec` commands that keep these programs on their colors.
    pub fn hand_over(&self, watch: &Watch) -> Result<(), RecolorError> {
        watch.hand_over(&self.known().0)
    }

    /// Returns how many pages of `pid` are on and off color, without moving any.
    pub fn inspect(&self, pid: Pid) -> Result<Report, RecolorError> {
        self.with(|wanted| inspect(pid, wanted))
    }

    /// Returns what moving `pid` for the first time would do, without moving any page.
    pub fn expect(&self, pid: Pid) -> Result<Report, RecolorError> {
        self.with(|wanted| {
            inspect(pid, &Wanted { anew: if self.spread { Anew::All } else { Anew::Nothing }, ..*wanted })
        })
    }

    /// Returns a watch over programs that this coloring moves. If pages are to be distributed evenly, it draws all of them anew at first.
    pub fn watch(&self) -> Watch {
        if self.spread { Watch::drawing_anew() } else { Watch::default() }
    }

    /// Returns the cache level of the colors.
    pub fn level(&self) -> u8 {
        self.known().0.level()
    }

    /// Calls `work` with a description of the frames wanted.
    pub fn with<T>(&self, work: impl FnOnce(&Wanted) -> T) -> T {
        let (reserve, spread) = (self.reserve.as_deref(), self.spread);
        let (colors, places) = (&self.colors[..], &self.places[..]);
        work(&Wanted { known: &self.known().0, colors, spread, anew: Anew::Nothing, reserve, places })
    }
}

/// The knowledge of colors of one command. Dropping it corrects the saved palette, if there is one, by the measured colors.
struct Known(KnownColors);

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(corrections) = self.0.corrections() {
            // If the corrections cannot be written, the next command measures the same colors again.
            let _ = saved::repair(&runtime::folder(), self.0.level(), &corrections);
        }
    }
}

/// A lease of the colors that the owner holds in the ledger. Dropping the lease gives the colors back.
pub struct Lease(Owner);

impl Drop for Lease {
    fn drop(&mut self) {
        // Colors that cannot be given back now are free once this process has ended.
        let _ = Ledger::open(&runtime::folder()).and_then(|mut ledger| ledger.release(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::sysfs::Sysfs;
    use crate::recolor::MAX_PAUSE;

    #[test]
    fn a_trusted_palette_needs_no_cache_that_the_machine_shows_and_all_cpus_are_taken_to_share_it() {
        let shown = Sysfs::system().machine().unwrap().0;
        let hidden = Machine { levels: Vec::new(), ..shown };
        let limits =
            Limits { memory: Bytes(1 << 20), force: false, max_pause: MAX_PAUSE, gives_way: false, part: None };
        let request = Request {
            cpus: vec![hidden.cpus[0]],
            wanted: ledger::Wanted::Colors(vec![Color(3)]),
            sharing: Sharing::Exclusive,
            spread: false,
            limits,
        };
        let coloring = Coloring::new((KnownColors::of_bits(16), None), &hidden, request);
        assert!(matches!(coloring.cache(), Err(ColorError::NoSuchLevel { .. })));
        assert_eq!(coloring.shared_by, std::slice::from_ref(&hidden.cpus));
    }
}
