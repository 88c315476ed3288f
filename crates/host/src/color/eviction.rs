//! Eviction tests: how much of a page a traversal of other pages evicts from a cache level.

use std::time::{Duration, Instant};

use isochrome_model::units::{Bytes, Cycles};
use serde::{Deserialize, Serialize};

use crate::color::error::ColorError;
use crate::counters::{CounterError, Counters};
use crate::error::SystemError;
use crate::machine::sysfs::Sysfs;
use crate::sys::heap::BackingMemory;
use crate::sys::memory::{Arena, page_bytes};

/// An eviction test, which measures the share of a page that other pages evict, by time, by hardware counters, or on a modeled cache.
///
/// Shares are 0 to 1. Noise, such as a neighbor on the core or an interrupt, only raises a share; replacement luck can lower it.
pub trait EvictionTest {
    /// Touches `targets`, traverses `set` `passes` times, and writes to `shares` for each target the share of its lines that were evicted.
    fn run(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>);

    /// Takes out and returns the reason why tests no longer work; `None` if they do.
    fn failure(&mut self) -> Option<ColorError> {
        None
    }

    /// Whether tests still work. Their results mean nothing once they do not.
    fn works(&self) -> bool {
        true
    }

    /// Runs `tests`, each a set and its targets, one after the other, and returns the shares of each.
    fn run_all(&mut self, tests: &[(&[u32], &[u32])], passes: u32) -> Vec<Vec<f32>> {
        let one = |(set, targets): &(&[u32], &[u32])| {
            let mut shares = Vec::with_capacity(targets.len());
            self.run(set, targets, passes, &mut shares);
            shares
        };
        tests.iter().map(one).collect()
    }

    /// Returns the lowest share of `target` in up to `repeats` tests. Stops at the first share that is at most `enough`.
    fn lowest(&mut self, set: &[u32], target: u32, passes: u32, repeats: u32, enough: f32) -> f32 {
        let (mut low, mut shares) = (1.0f32, Vec::with_capacity(1));
        for _ in 0..repeats {
            self.run(set, &[target], passes, &mut shares);
            low = low.min(shares[0]);
            if low <= enough {
                break;
            }
        }
        low
    }

    /// Returns the share of `target` that is evicted after a wait in which nothing is touched. This is the control of a test that takes as
    /// long.
    ///
    /// The provided implementation does not wait.
    fn control(&mut self, target: u32, wait: Duration) -> f32 {
        let mut shares = Vec::with_capacity(1);
        let _ = wait;
        self.run(&[], &[target], 0, &mut shares);
        shares[0]
    }

    /// Whether `set` evicts `target` in at least `needed` of `tests` undisturbed tests.
    ///
    /// Disturbances come in bursts that are longer than many tests, so a control without a traversal decides whether the tests count. If
    /// several controls in a row are disturbed, the result is `false`.
    fn evicts(&mut self, set: &[u32], target: u32, passes: u32, tests: u32, needed: u32) -> bool {
        const BURSTS: u32 = 6;
        const BURST: Duration = Duration::from_micros(50);
        let mut shares = Vec::with_capacity(1);
        for burst in 1..=BURSTS {
            let begin = Instant::now();
            let mut kept = 0;
            for _ in 0..tests {
                self.run(set, &[target], passes, &mut shares);
                kept += u32::from(shares[0] < EVICTED);
                if kept > tests - needed {
                    return false;
                }
            }
            if self.control(target, begin.elapsed() / tests) < EVICTED {
                return true;
            }
            std::thread::sleep(burst * BURST);
        }
        false
    }
}

/// An eviction test of the pages of an arena.
pub trait ArenaEvictionTest: EvictionTest {
    /// Makes `pages` resident and prepares them for tests.
    fn make_ready(&mut self, pages: std::ops::Range<u32>);

    /// Returns the memory whose pages are tested.
    fn arena(&self) -> &Arena;

    /// Returns the memory and drops the test.
    fn into_arena(self: Box<Self>) -> Arena;
}

/// Least evicted share at which a page counts as evicted.
pub const EVICTED: f32 = 0.5;

/// Number of lines of a page that a test walks. These are enough lines for the resolution of the clock. They are few enough that the
/// prefetchers of current cores, which fetch the rest of a page after some misses, have not started.
pub const STEPS: u32 = 16;

/// Most and fewest walks of each kind for the calibration, and the time after which it ends once it has the fewest. A large level makes walks
/// slow.
const CALIBRATION_WALKS: usize = 120;
const CALIBRATION_WALKS_AT_LEAST: usize = 24;
const CALIBRATION_TIME: Duration = Duration::from_secs(1);

/// Sizes of the level under test and of the level inside it.
#[derive(Clone, Copy, Debug)]
pub struct LevelSizes {
    /// Bytes per line.
    pub line_bytes: usize,
    /// Size of the next level inside the level under test.
    pub inner: Bytes,
    /// Size of the level under test.
    pub level: Bytes,
}

impl LevelSizes {
    /// Returns the number of pages that evict a page from the inner level, and are still few compared with the level under test.
    pub(crate) fn inner_pages(&self) -> usize {
        (2 * self.inner.0 as usize / page_bytes()).max(4)
    }

    /// Returns the number of pages that evict a page from the level under test, but not much more: a level further out may have other users.
    fn outer_pages(&self) -> usize {
        2 * self.level.0 as usize / page_bytes()
    }

    /// Returns the number of pages that an arena must have for the calibration.
    pub fn pages_needed(&self) -> usize {
        self.inner_pages() + self.outer_pages() + 1
    }
}

/// Which lines of a page a traversal touches, so that it evicts the walked lines of other pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traversal {
    /// Only the walked lines are touched. This takes a quarter of the time, and suffices where a line competes only with lines at the same
    /// offset of other pages.
    WalkedLines,
    /// All lines are touched. The set index of some processors, such as AMD Zen 5, hashes the offset in the page with higher bits of the
    /// address. A line then competes with one line of each page of its color, at an offset that differs from page to page.
    WholePages,
}

impl Traversal {
    /// Returns how many of the `lines` of a page are touched.
    pub fn touched(self, lines: usize) -> usize {
        match self {
            Traversal::WalkedLines => lines.min(STEPS as usize),
            Traversal::WholePages => lines,
        }
    }
}

/// Memory whose pages are walked, each along a chain of its own, through the same [`STEPS`] lines of every page.
///
/// The offsets of these lines are irregular, because a core that detects a stride prefetches.
pub struct Walker<M: BackingMemory = Arena> {
    memory: M,
    line_bytes: usize,
    rng: fastrand::Rng,
    /// All lines of a page, of which the first [`STEPS`] are walked.
    lines: Vec<u16>,
    traversal: Traversal,
}

impl<M: BackingMemory> Walker<M> {
    /// Creates a walker of pages of `memory` that traverses whole pages. Pages have to be [made ready](Self::make_ready) first.
    pub fn new(memory: M, line_bytes: usize, seed: u64) -> Walker<M> {
        let mut lines: Vec<u16> = (0..(page_bytes() / line_bytes) as u16).collect();
        // The same lines are walked by all walkers of the same pages.
        fastrand::Rng::with_seed(1).shuffle(&mut lines);
        Walker { memory, line_bytes, rng: fastrand::Rng::with_seed(seed), lines, traversal: Traversal::WholePages }
    }

    /// Returns this walker with another traversal.
    pub fn with_traversal(self, traversal: Traversal) -> Walker<M> {
        Walker { traversal, ..self }
    }

    /// Makes `pages` resident and gives each a chain in random order. If all chains were alike, a core would learn and prefetch them.
    pub fn make_ready(&mut self, pages: std::ops::Range<u32>) {
        for page in pages {
            let walked = Traversal::WalkedLines.touched(self.lines.len());
            self.rng.shuffle(&mut self.lines[..walked]);
            self.memory.arena().write_chain(page, &self.lines[..walked], self.line_bytes);
        }
    }

    /// Returns the memory that is walked.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the memory and drops the walker.
    pub fn into_memory(self) -> M {
        self.memory
    }

    /// Touches the walked lines of `targets`.
    pub fn touch(&self, targets: &[u32]) {
        self.touch_first(targets, Traversal::WalkedLines);
    }

    fn touch_first(&self, pages: &[u32], traversal: Traversal) {
        let lines = &self.lines[..traversal.touched(self.lines.len())];
        self.memory.arena().touch_lines(pages, lines, self.line_bytes);
    }

    /// Touches `targets` and then traverses `set`, `passes` times.
    pub fn prepare(&self, set: &[u32], targets: &[u32], passes: u32) {
        self.touch(targets);
        for _ in 0..passes {
            self.touch_first(set, self.traversal);
        }
    }

    /// Returns the time of a dependent walk over `steps` lines of `target`, from a random line on.
    pub fn walk(&mut self, target: u32, steps: u32) -> Cycles {
        let walked = Traversal::WalkedLines.touched(self.lines.len());
        let from = usize::from(self.lines[self.rng.usize(..walked)]) * self.line_bytes;
        self.memory.arena().walk(target, from as u64, steps)
    }
}

/// Times of a walk over [`STEPS`] lines of a page, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WalkTicks {
    /// Time of a walk with all lines in the level.
    pub hit: f64,
    /// Time of a walk with all lines further out.
    pub miss: f64,
}

impl WalkTicks {
    /// Calculates the walk times from samples of both kinds.
    ///
    /// Fails with [`ColorError::TimingBlurred`] when hits and misses do not fall into separate modes.
    pub fn of(mut hits: Vec<Cycles>, mut misses: Vec<Cycles>) -> Result<WalkTicks, ColorError> {
        hits.sort_unstable();
        misses.sort_unstable();
        // Noise lengthens walks of both kinds, and prefetching shortens walks that miss. Three quarters of each kind must lie apart.
        let (hit_p75, miss_p25) = (hits[hits.len() * 3 / 4], misses[misses.len() / 4]);
        if hit_p75.0 * 5 > miss_p25.0 * 4 {
            return Err(ColorError::TimingBlurred { hit_ticks: hit_p75.0, miss_ticks: miss_p25.0, lines: STEPS });
        }
        Ok(WalkTicks { hit: hits[hits.len() / 2].0 as f64, miss: miss_p25.0 as f64 })
    }

    /// Returns which lines a traversal has to touch.
    ///
    /// `walks`: times of walks after a traversal that touched only the walked lines, of enough pages to evict everything.
    fn traversal_by(&self, mut walks: Vec<Cycles>) -> Traversal {
        /// Least share of evicted lines at which it is enough to touch the walked lines only. If lines compete at any offset, a quarter of the
        /// pressure is left, and it does not even evict half of the lines.
        const ALL_GONE: f32 = 0.9;
        walks.sort_unstable();
        if self.share_missing(walks[walks.len() / 4]) >= ALL_GONE {
            Traversal::WalkedLines
        } else {
            Traversal::WholePages
        }
    }

    /// Returns the share (0 to 1) of the lines that were further out, given the time of a walk.
    pub fn share_missing(&self, ticks: Cycles) -> f32 {
        (((ticks.0 as f64 - self.hit) / (self.miss - self.hit)) as f32).clamp(0.0, 1.0)
    }
}

/// Returns [`ColorError::CacheNotKept`] for a second level that does not keep its contents, and `error` for one whose misses are too fast to
/// be seen.
///
/// `at_once`, `inner_hits`: times of walks over lines of the first level, directly after they were touched, and after a part of the level
/// inside was touched. If these times differ, there are two levels inside, and the two cases cannot be distinguished.
fn lost_or_blurred(error: ColorError, at_once: Vec<Cycles>, inner_hits: Vec<Cycles>) -> ColorError {
    /// Factor, as the fraction 7/2, between two walk times that shows that a level lies in between. On AMD Zen 5 a walk takes about twice as
    /// long from the second level as from the first, and five times as long from the third.
    const FURTHER_OUT: u64 = 7;
    const OF_INNER: u64 = 2;
    let [first_ticks, inner_ticks] = [at_once, inner_hits].map(|mut walks| {
        walks.sort_unstable();
        walks[walks.len() / 2].0
    });
    let inner_is_first = 2 * inner_ticks < 3 * first_ticks;
    match error {
        ColorError::TimingBlurred { lines, hit_ticks, miss_ticks }
            if inner_is_first && OF_INNER * hit_ticks >= FURTHER_OUT * inner_ticks =>
        {
            ColorError::CacheNotKept { lines, hit_ticks, miss_ticks, inner_ticks }
        }
        error => error,
    }
}

/// Canary pages, which show how much of a level was evicted while their task did not run.
pub struct Canaries<M: BackingMemory = Arena> {
    walker: Walker<M>,
    pages: Vec<u32>,
    /// The canary pages, in the order in which they are walked.
    sample: Vec<u32>,
    ticks: WalkTicks,
}

/// Most canary pages that are walked at a time. In a longer walk, other programs evict the last pages before they are reached.
const CANARIES_WALKED: usize = 32;

impl<M: BackingMemory> Canaries<M> {
    /// Makes all pages of `memory` canary pages. `ticks`: walk times of the level.
    pub fn new(memory: M, line_bytes: usize, ticks: WalkTicks, seed: u64) -> Canaries<M> {
        let pages: Vec<u32> = (0..memory.arena().page_count() as u32).collect();
        let mut walker = Walker::new(memory, line_bytes, seed);
        walker.make_ready(0..pages.len() as u32);
        Canaries { walker, sample: pages.clone(), pages, ticks }
    }

    /// Brings the lines of all canary pages into the level.
    pub fn refresh(&mut self) {
        self.walker.rng.shuffle(&mut self.sample);
        self.walker.touch(&self.pages);
        self.walker.touch(&self.pages);
    }

    /// Returns the share of the canary lines that were evicted, by a walk over part of each page. If there are many pages, a random sample
    /// is walked.
    pub fn lost(&mut self) -> f64 {
        let walked = self.sample.len().min(CANARIES_WALKED);
        let walk = |page: &u32| f64::from(self.ticks.share_missing(self.walker.walk(*page, STEPS)));
        self.sample[..walked].iter().map(walk).sum::<f64>() / walked as f64
    }
}

/// An eviction test by time: a dependent walk over some lines of a page is slow if these must be fetched from further out.
pub struct TimedEvictionTest {
    walker: Walker,
    ticks: WalkTicks,
}

impl TimedEvictionTest {
    /// Calibrates tests of the pages of `arena`: measures the walk times, and which lines a traversal has to touch.
    ///
    /// The calibration uses memory of its own, in huge pages where the kernel has any. Single frames come in the order in which they were
    /// freed. If a program on one color has just ended, they all have that color: a few pages then evict each other, and the rest evicts
    /// nothing.
    ///
    /// Fails with [`SystemError::Memory`], with [`ColorError::TimingBlurred`] when hits and misses do not fall into separate modes, and with
    /// [`ColorError::CacheNotKept`] instead if the level has lost lines that were touched a moment before.
    pub fn calibrate(arena: Arena, sizes: LevelSizes, seed: u64) -> Result<Self, ColorError> {
        let (inner, outer) = (sizes.inner_pages(), sizes.outer_pages());
        let huge_bytes = Sysfs::system().huge_page_bytes().unwrap_or(page_bytes());
        let needed = sizes.pages_needed().next_multiple_of(huge_bytes / page_bytes());
        let memory =
            Arena::map_huge(needed, huge_bytes).map_err(|source| SystemError::Memory { pages: needed, source })?;
        let mut pages: Vec<u32> = (0..needed as u32).collect();
        let mut walker = Walker::new(memory, sizes.line_bytes, seed);
        walker.make_ready(0..needed as u32);
        let (mut hits, mut by_walked_lines, mut by_whole_pages) = (Vec::new(), Vec::new(), Vec::new());
        let (mut at_once, mut inner_hits) = (Vec::new(), Vec::new());
        let mut traversals = vec![Traversal::WalkedLines, Traversal::WholePages];
        let begin = Instant::now();
        for walk in 0..CALIBRATION_WALKS {
            if walk >= CALIBRATION_WALKS_AT_LEAST && begin.elapsed() > CALIBRATION_TIME {
                break;
            }
            // Once it is clear which traversal will be used, the other one is skipped to save time.
            if walk == CALIBRATION_WALKS_AT_LEAST
                && let Ok(ticks) = WalkTicks::of(hits.clone(), by_whole_pages.clone())
            {
                traversals = vec![ticks.traversal_by(by_walked_lines.clone())];
            }
            walker.rng.shuffle(&mut pages);
            let (target, others) = (pages[0], &pages[1..]);
            walker.prepare(&others[..inner], &[target, target], 2);
            hits.push(walker.walk(target, STEPS));
            at_once.push(walker.walk(target, STEPS));
            walker.prepare(&others[..inner / 8], &[target, target], 1);
            inner_hits.push(walker.walk(target, STEPS));
            for &traversal in &traversals {
                walker.traversal = traversal;
                walker.prepare(&others[inner..inner + outer], &[target, target], 1);
                let misses = match traversal {
                    Traversal::WalkedLines => &mut by_walked_lines,
                    Traversal::WholePages => &mut by_whole_pages,
                };
                misses.push(walker.walk(target, STEPS));
            }
        }
        let misses = if traversals == [Traversal::WalkedLines] { by_walked_lines.clone() } else { by_whole_pages };
        let ticks = WalkTicks::of(hits, misses).map_err(|error| lost_or_blurred(error, at_once, inner_hits))?;
        let traversal = match traversals[..] {
            [one] => one,
            _ => ticks.traversal_by(by_walked_lines),
        };
        Ok(TimedEvictionTest { walker: Walker::new(arena, sizes.line_bytes, seed).with_traversal(traversal), ticks })
    }

    /// Returns which lines a traversal has to touch.
    pub fn traversal(&self) -> Traversal {
        self.walker.traversal
    }

    /// Returns the walk times that the calibration found.
    pub fn ticks(&self) -> WalkTicks {
        self.ticks
    }

    /// Touches `targets`, then traverses `set` `passes` times.
    pub fn prepare(&self, set: &[u32], targets: &[u32], passes: u32) {
        self.walker.prepare(set, targets, passes);
    }

    /// Returns the mean share of the lines of `targets` that were evicted, by one walk over part of each.
    pub fn share_gone(&mut self, targets: &[u32]) -> f64 {
        let mut sum = 0.0;
        for target in targets {
            sum += f64::from(self.ticks.share_missing(self.walker.walk(*target, STEPS)));
        }
        sum / targets.len().max(1) as f64
    }
}

impl EvictionTest for TimedEvictionTest {
    fn control(&mut self, target: u32, wait: Duration) -> f32 {
        self.walker.prepare(&[], &[target], 0);
        let begin = Instant::now();
        while begin.elapsed() < wait {
            std::hint::spin_loop();
        }
        let ticks = self.walker.walk(target, STEPS);
        self.ticks.share_missing(ticks)
    }

    fn run(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>) {
        self.walker.prepare(set, targets, passes);
        shares.clear();
        for target in targets {
            let ticks = self.walker.walk(*target, STEPS);
            shares.push(self.ticks.share_missing(ticks));
        }
    }
}

impl ArenaEvictionTest for TimedEvictionTest {
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

/// An eviction test by hardware counters: it counts the demand misses of a walk over the page.
pub struct CountedEvictionTest {
    walker: Walker,
    counters: Counters,
    /// Number of invalid tests since the last valid one, and why the last of them was invalid.
    invalid: u32,
    why: Option<CounterError>,
}

/// Number of invalid tests in a row after which the counters are taken to be lost. Another tool that takes them for a moment spoils fewer.
const INVALID_MAX: u32 = 1000;

impl CountedEvictionTest {
    /// Creates an eviction test of pages of `arena`. The first of `counters` must count demand misses of the level.
    pub fn new(arena: Arena, line_bytes: usize, counters: Counters, seed: u64) -> Self {
        CountedEvictionTest { counters, walker: Walker::new(arena, line_bytes, seed), invalid: 0, why: None }
    }

    /// Records whether a test was valid.
    fn note(&mut self, valid: Result<(), CounterError>) {
        match valid {
            Ok(()) => (self.invalid, self.why) = (0, None),
            // The kernel takes a group that reads as its end off the hardware for good.
            Err(error @ CounterError::Failed { .. }) => (self.invalid, self.why) = (INVALID_MAX, Some(error)),
            Err(error) => (self.invalid, self.why) = (self.invalid.saturating_add(1), Some(error)),
        }
    }
}

impl EvictionTest for CountedEvictionTest {
    fn failure(&mut self) -> Option<ColorError> {
        self.why.take_if(|_| self.invalid >= INVALID_MAX).map(ColorError::from)
    }

    fn works(&self) -> bool {
        self.invalid < INVALID_MAX
    }

    fn run(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>) {
        let lines = STEPS;
        shares.clear();
        if !self.works() {
            shares.resize(targets.len(), 1.0);
            return;
        }
        self.walker.prepare(set, targets, passes);
        let mut before = self.counters.read();
        for target in targets {
            self.walker.walk(*target, lines);
            let after = self.counters.read();
            let counted = match (before, &after) {
                (Ok(before), Ok(after)) => self.counters.between(&before, after).map(|counts| counts.values()[0]),
                (Err(error), _) => Err(error),
                // The next reading fails as well, and says why.
                (Ok(_), Err(_)) => Ok(u64::MAX),
            };
            // If the counters were taken away during a test, the test is invalid. It counts as all misses, like noise, which only adds misses.
            let misses = *counted.as_ref().unwrap_or(&u64::MAX);
            self.note(counted.map(drop));
            shares.push((misses.min(u64::from(lines)) as f32 / lines as f32).clamp(0.0, 1.0));
            before = after;
        }
    }
}

impl ArenaEvictionTest for CountedEvictionTest {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns eight walk times with these quartiles.
    fn walks(quartiles: [u64; 3]) -> Vec<Cycles> {
        let [low, median, high] = quartiles;
        [low, low, median, median, median, high, high, high].map(Cycles).to_vec()
    }

    #[test]
    fn whole_pages_are_traversed_where_lines_compete_at_any_offset() {
        // On AMD Zen 5, family 26 model 2, touching 16 lines of each page evicts hardly any line of other pages.
        let ticks = WalkTicks::of(walks([234, 234, 234]), walks([546, 598, 624])).unwrap();
        assert_eq!(ticks.traversal_by(walks([234, 260, 286])), Traversal::WholePages);
        // Under a policy other than LRU, a quarter of the pressure evicts half of the lines.
        assert_eq!(ticks.traversal_by(walks([364, 416, 598])), Traversal::WholePages);
        // If lines compete at one offset only, touching the walked lines evicts as much as touching whole pages.
        assert_eq!(ticks.traversal_by(walks([546, 572, 598])), Traversal::WalkedLines);
    }

    #[test]
    fn a_level_that_loses_its_contents_is_distinguished_from_one_whose_misses_are_fast() {
        // Both cases occurred on AMD Zen 5: lines gone a moment after they were touched, and lines that a traversal did not evict.
        let blurred = |hit, miss| WalkTicks::of(walks([hit; 3]), walks([miss; 3])).unwrap_err();
        let error = |hit, miss, inner| lost_or_blurred(blurred(hit, miss), walks([104; 3]), walks([inner; 3]));
        assert!(matches!(error(546, 520, 104), ColorError::CacheNotKept { hit_ticks: 546, inner_ticks: 104, .. }));
        assert!(matches!(error(208, 208, 104), ColorError::TimingBlurred { .. }));
        // If the level under test is a third level, a hit takes more than four times as long as in the first level, and nothing is wrong.
        assert!(matches!(error(546, 546, 208), ColorError::TimingBlurred { .. }));
    }

    #[test]
    fn lines_that_are_walked_are_traversed_as_well() {
        assert_eq!((Traversal::WalkedLines.touched(64), Traversal::WholePages.touched(64)), (16, 64));
        assert_eq!(Traversal::WalkedLines.touched(8), 8);
    }
}
