//! Looking at evictions: how much of a page a traversal of other pages pushes out of a cache level.

use std::time::{Duration, Instant};

use isochrome_model::units::{Bytes, Cycles};

use crate::counters::Counters;
use crate::error::HostError;
use crate::sys::heap::Ground;
use crate::sys::memory::{Arena, page_bytes};

/// Something that can tell how much of a page other pages evict: by time, by hardware counters, or on a modeled cache.
///
/// Shares are 0 to 1. Noise (a neighbor on the core, an interrupt) only ever raises a share; replacement luck can lower one.
pub trait Look {
    /// Touches `targets`, traverses `set` `passes` times, and writes for each target the share of its lines that are gone
    /// since.
    fn look(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>);

    /// Why nothing can be looked at any more, if that is so.
    fn failure(&mut self) -> Option<HostError> {
        None
    }

    /// Looks one after the other, each at some targets after a set; the shares of each.
    fn look_at_all(&mut self, looks: &[(&[u32], &[u32])], passes: u32) -> Vec<Vec<f32>> {
        let one = |(set, targets): &(&[u32], &[u32])| {
            let mut shares = Vec::with_capacity(targets.len());
            self.look(set, targets, passes, &mut shares);
            shares
        };
        looks.iter().map(one).collect()
    }

    /// Lowest share of `target` in up to `repeats` looks; stops at the first that is at most `enough`.
    fn lowest(&mut self, set: &[u32], target: u32, passes: u32, repeats: u32, enough: f32) -> f32 {
        let (mut low, mut shares) = (1.0f32, Vec::with_capacity(1));
        for _ in 0..repeats {
            self.look(set, &[target], passes, &mut shares);
            low = low.min(shares[0]);
            if low <= enough {
                break;
            }
        }
        low
    }

    /// The share of `target` that is gone after a wait in which nothing is touched: the control of a look that takes as long.
    fn control(&mut self, target: u32, wait: Duration) -> f32 {
        let mut shares = Vec::with_capacity(1);
        let _ = wait;
        self.look(&[], &[target], 0, &mut shares);
        shares[0]
    }

    /// Whether `set` evicts `target` in `needed` of up to `looks` looks, in none of which a page would be lost without that.
    ///
    /// What disturbs comes in bursts that are longer than many looks, so a look at nothing decides whether they count. After several
    /// bursts the answer is no.
    fn evicts(&mut self, set: &[u32], target: u32, passes: u32, looks: u32, needed: u32) -> bool {
        const BURSTS: u32 = 6;
        const BURST: Duration = Duration::from_micros(50);
        let mut shares = Vec::with_capacity(1);
        for burst in 1..=BURSTS {
            let begin = Instant::now();
            let mut kept = 0;
            for _ in 0..looks {
                self.look(set, &[target], passes, &mut shares);
                kept += u32::from(shares[0] < EVICTED);
                if kept > looks - needed {
                    return false;
                }
            }
            if self.control(target, begin.elapsed() / looks) < EVICTED {
                return true;
            }
            std::thread::sleep(burst * BURST);
        }
        false
    }
}

/// A look at the pages of an arena.
pub trait ArenaLook: Look {
    /// Makes `pages` resident and fit for looks.
    fn make_ready(&mut self, pages: std::ops::Range<u32>);

    /// The memory looked at.
    fn arena(&self) -> &Arena;

    /// Gives the memory back.
    fn into_arena(self: Box<Self>) -> Arena;
}

/// Share from which a page counts as evicted.
pub const EVICTED: f32 = 0.5;

/// Lines of a page that a look touches and walks: enough to stand out of the clock's quantum, few enough that the prefetchers of
/// today's cores, which bring in the rest of a page after some misses, have not begun.
pub const STEPS: u32 = 16;

/// Walks of each kind taken to calibrate; fewer, but not fewer than the second number, where a large level makes them slow.
const CALIBRATION_WALKS: usize = 120;
const CALIBRATION_WALKS_AT_LEAST: usize = 24;
const CALIBRATION_TIME: Duration = Duration::from_secs(1);

/// The level looked at and the one inside it.
#[derive(Clone, Copy, Debug)]
pub struct LevelSizes {
    /// Bytes per line.
    pub line_bytes: usize,
    /// Size of the next level inside.
    pub inner: Bytes,
    /// Size of the level looked at.
    pub level: Bytes,
}

impl LevelSizes {
    /// Pages that push a page out of the inner level and stay small beside the level looked at.
    pub(crate) fn inner_pages(&self) -> usize {
        (2 * self.inner.0 as usize / page_bytes()).max(4)
    }

    /// Pages that push a page out of the level looked at, and not much further: a level outside may have other users.
    fn outer_pages(&self) -> usize {
        2 * self.level.0 as usize / page_bytes()
    }

    /// Pages an arena must have for calibration.
    pub fn pages_needed(&self) -> usize {
        self.inner_pages() + self.outer_pages() + 1
    }
}

/// Memory whose pages are walked, each along a chain of its own, through the same [`STEPS`] lines of every page: a line competes with
/// those at the same place of other pages alone, so the others need not be touched. Their places are irregular, as a core that sees a
/// stride fetches ahead.
pub struct Walker<G: Ground = Arena> {
    memory: G,
    line_bytes: usize,
    rng: fastrand::Rng,
    order: Vec<u16>,
}

impl<G: Ground> Walker<G> {
    /// Walks pages of `memory`, once they are [made ready](Self::make_ready).
    pub fn new(memory: G, line_bytes: usize, seed: u64) -> Walker<G> {
        let lines = (page_bytes() / line_bytes) as u16;
        // The same for all that look at the same pages.
        let order = fastrand::Rng::with_seed(1).choose_multiple(0..lines, STEPS as usize);
        Walker { memory, line_bytes, rng: fastrand::Rng::with_seed(seed), order }
    }

    /// Makes `pages` resident and gives each a chain in random order: a core that learns which lines of a page follow the
    /// first would fetch them ahead if all pages were alike.
    pub fn make_ready(&mut self, pages: std::ops::Range<u32>) {
        for page in pages {
            self.rng.shuffle(&mut self.order);
            self.memory.ground().write_chain(page, &self.order, self.line_bytes);
        }
    }

    /// The memory walked.
    pub fn memory(&self) -> &G {
        &self.memory
    }

    /// The memory, without its walker.
    pub fn into_memory(self) -> G {
        self.memory
    }

    /// Touches `targets` and then `passes` times `set`.
    pub fn prepare(&self, set: &[u32], targets: &[u32], passes: u32) {
        self.memory.ground().touch_lines(targets, &self.order, self.line_bytes);
        for _ in 0..passes {
            self.memory.ground().touch_lines(set, &self.order, self.line_bytes);
        }
    }

    /// Time of a dependent walk over `steps` lines of `target`, beginning anywhere.
    pub fn walk(&mut self, target: u32, steps: u32) -> Cycles {
        let from = self.rng.choice(&self.order).map_or(0, |line| usize::from(*line) * self.line_bytes);
        self.memory.ground().walk(target, from as u64, steps)
    }
}

/// Times of a walk over [`STEPS`] lines of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WalkTicks {
    /// With all lines in the level.
    pub hit: f64,
    /// With all lines further out.
    pub miss: f64,
}

impl WalkTicks {
    /// From walks of both kinds.
    ///
    /// Fails with [`HostError::TimingBlurred`] when the two do not fall into separate modes.
    pub fn of(mut hits: Vec<Cycles>, mut misses: Vec<Cycles>) -> Result<WalkTicks, HostError> {
        hits.sort_unstable();
        misses.sort_unstable();
        // Noise lengthens walks of both kinds, prefetching shortens those that miss: three quarters of each must lie apart.
        let (hit_p75, miss_p25) = (hits[hits.len() * 3 / 4], misses[misses.len() / 4]);
        if hit_p75.0 * 5 > miss_p25.0 * 4 {
            return Err(HostError::TimingBlurred { hit_ticks: hit_p75.0, miss_ticks: miss_p25.0, lines: STEPS });
        }
        Ok(WalkTicks { hit: hits[hits.len() / 2].0 as f64, miss: miss_p25.0 as f64 })
    }

    /// Share (0 to 1) of the lines that were further out, from the time of a walk.
    pub fn share_missing(&self, ticks: Cycles) -> f32 {
        (((ticks.0 as f64 - self.hit) / (self.miss - self.hit)) as f32).clamp(0.0, 1.0)
    }
}

/// Pages that show what became of a level while their task did not run.
pub struct Witness<G: Ground = Arena> {
    walker: Walker<G>,
    pages: Vec<u32>,
    /// The same in the order in which they are walked.
    sample: Vec<u32>,
    ticks: WalkTicks,
}

/// Pages of a witness that are walked at most: while it walks more, others take what it has not come to.
const WITNESSES_WALKED: usize = 32;

impl<G: Ground> Witness<G> {
    /// All pages of `memory`; `ticks`: of the level.
    pub fn new(memory: G, line_bytes: usize, ticks: WalkTicks, seed: u64) -> Witness<G> {
        let pages: Vec<u32> = (0..memory.ground().page_count() as u32).collect();
        let mut walker = Walker::new(memory, line_bytes, seed);
        walker.make_ready(0..pages.len() as u32);
        Witness { walker, sample: pages.clone(), pages, ticks }
    }

    /// Brings its lines into the level.
    pub fn refresh(&mut self) {
        self.walker.rng.shuffle(&mut self.sample);
        self.walker.prepare(&self.pages, &self.pages, 1);
    }

    /// Share of its lines that are gone, as a walk over part of each page shows; over pages drawn at random where there are many.
    pub fn lost(&mut self) -> f64 {
        let walked = self.sample.len().min(WITNESSES_WALKED);
        let walk = |page: &u32| f64::from(self.ticks.share_missing(self.walker.walk(*page, STEPS)));
        self.sample[..walked].iter().map(walk).sum::<f64>() / walked as f64
    }
}

/// Looks by time: a dependent walk over some lines of a page is slow where they must come from further out.
pub struct TimedLook {
    walker: Walker,
    ticks: WalkTicks,
}

impl TimedLook {
    /// Measures, on the first pages of `arena`, how long walks take whose lines are in the level and further out.
    ///
    /// Fails with [`HostError::TimingBlurred`] when the two do not fall into separate modes.
    pub fn calibrate(arena: Arena, sizes: LevelSizes, seed: u64) -> Result<Self, HostError> {
        let (inner, outer) = (sizes.inner_pages(), sizes.outer_pages());
        let mut pages: Vec<u32> = (0..sizes.pages_needed() as u32).collect();
        let mut walker = Walker::new(arena, sizes.line_bytes, seed);
        walker.make_ready(0..pages.len() as u32);
        let (mut hits, mut misses) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        for walk in 0..CALIBRATION_WALKS {
            if walk >= CALIBRATION_WALKS_AT_LEAST && begin.elapsed() > CALIBRATION_TIME {
                break;
            }
            // Memory may have few pages of one color, and many of another.
            walker.rng.shuffle(&mut pages);
            let (target, others) = (pages[0], &pages[1..]);
            walker.prepare(&others[..inner], &[target, target], 2);
            hits.push(walker.walk(target, STEPS));
            walker.prepare(&others[inner..inner + outer], &[target, target], 1);
            misses.push(walker.walk(target, STEPS));
        }
        Ok(TimedLook { walker, ticks: WalkTicks::of(hits, misses)? })
    }

    /// What the calibration found.
    pub fn ticks(&self) -> WalkTicks {
        self.ticks
    }

    /// Touches `targets`, then `set` `passes` times.
    pub fn prepare(&self, set: &[u32], targets: &[u32], passes: u32) {
        self.walker.prepare(set, targets, passes);
    }

    /// Mean share of the lines of `targets` that are gone, as one walk over part of each shows.
    pub fn share_gone(&mut self, targets: &[u32]) -> f64 {
        let mut sum = 0.0;
        for target in targets {
            sum += f64::from(self.ticks.share_missing(self.walker.walk(*target, STEPS)));
        }
        sum / targets.len().max(1) as f64
    }
}

impl Look for TimedLook {
    fn control(&mut self, target: u32, wait: Duration) -> f32 {
        self.walker.prepare(&[], &[target], 0);
        let begin = Instant::now();
        while begin.elapsed() < wait {
            std::hint::spin_loop();
        }
        let ticks = self.walker.walk(target, STEPS);
        self.ticks.share_missing(ticks)
    }

    fn look(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>) {
        self.walker.prepare(set, targets, passes);
        shares.clear();
        for target in targets {
            let ticks = self.walker.walk(*target, STEPS);
            shares.push(self.ticks.share_missing(ticks));
        }
    }
}

impl ArenaLook for TimedLook {
    fn make_ready(&mut self, pages: std::ops::Range<u32>) {
        self.walker.make_ready(pages);
    }

    fn arena(&self) -> &Arena {
        &self.walker.memory
    }

    fn into_arena(self: Box<Self>) -> Arena {
        self.walker.memory
    }
}

/// Looks by hardware counters: demand misses of a walk over the whole page.
pub struct CountedLook {
    walker: Walker,
    counters: Counters,
}

impl CountedLook {
    /// Looks at pages of `arena`; the first of `counters` counts demand misses of the level.
    pub fn new(arena: Arena, line_bytes: usize, counters: Counters, seed: u64) -> Self {
        CountedLook { counters, walker: Walker::new(arena, line_bytes, seed) }
    }
}

impl Look for CountedLook {
    fn look(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>) {
        let lines = self.walker.order.len() as u32;
        self.walker.prepare(set, targets, passes);
        shares.clear();
        let mut before = self.counters.read();
        for target in targets {
            self.walker.walk(*target, lines);
            let after = self.counters.read();
            // A look during which the counters were taken away says nothing: it counts as noise, which only adds misses.
            let misses = match (&before, &after) {
                (Ok(before), Ok(after)) => self.counters.between(before, after).map_or(u64::MAX, |c| c.values()[0]),
                _ => u64::MAX,
            };
            shares.push((misses.min(u64::from(lines)) as f32 / lines as f32).clamp(0.0, 1.0));
            before = after;
        }
    }
}

impl ArenaLook for CountedLook {
    fn make_ready(&mut self, pages: std::ops::Range<u32>) {
        self.walker.make_ready(pages);
    }

    fn arena(&self) -> &Arena {
        &self.walker.memory
    }

    fn into_arena(self: Box<Self>) -> Arena {
        self.walker.memory
    }
}
