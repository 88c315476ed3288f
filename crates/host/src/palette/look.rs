//! Looking at evictions: how much of a page a traversal of other pages pushes out of a cache level.

use isochrome_model::units::Bytes;

use crate::error::HostError;
use crate::sys::memory::{Arena, page_bytes};

/// Something that can tell how much of a page other pages evict: by time, by hardware counters, or on a modeled cache.
///
/// Shares are 0 to 1. Noise (a neighbor on the core, an interrupt) only ever raises a share; replacement luck can lower one.
pub trait Look {
    /// Touches `targets`, traverses `set` `passes` times, and writes for each target the share of its lines that are gone
    /// since.
    fn look(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>);

    /// Lowest share of `target` in up to `repeats` looks; stops at the first look that does not evict it.
    fn lowest(&mut self, set: &[u32], target: u32, passes: u32, repeats: u32) -> f32 {
        let (mut low, mut shares) = (1.0f32, Vec::with_capacity(1));
        for _ in 0..repeats {
            self.look(set, &[target], passes, &mut shares);
            low = low.min(shares[0]);
            if low < EVICTED {
                break;
            }
        }
        low
    }

    /// Whether `set` evicts `target` in each of up to `repeats` looks.
    fn evicts(&mut self, set: &[u32], target: u32, passes: u32, repeats: u32) -> bool {
        self.lowest(set, target, passes, repeats) >= EVICTED
    }
}

/// Share from which a page counts as evicted.
pub const EVICTED: f32 = 0.5;

/// Lines of a page that one look times: enough to stand out of the clock's quantum, few enough that the prefetchers of
/// today's cores, which bring in the rest of a page after some misses, have not begun.
const STEPS: u32 = 16;

/// Walks of each kind taken to calibrate.
const CALIBRATION_WALKS: usize = 400;

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
    fn inner_pages(&self) -> usize {
        (2 * self.inner.0 as usize / page_bytes()).max(4)
    }

    /// Pages that push a page out of the level looked at.
    fn outer_pages(&self) -> usize {
        4 * self.level.0 as usize / page_bytes()
    }

    /// Pages an arena must have for calibration.
    pub fn pages_needed(&self) -> usize {
        self.inner_pages() + self.outer_pages() + 1
    }
}

/// Looks by time: a dependent walk over some lines of a page is slow where they must come from further out.
pub struct TimedLook<'a> {
    arena: &'a Arena,
    line_bytes: usize,
    rng: fastrand::Rng,
    /// Ticks of a walk whose lines are all in the level.
    hit_ticks: f64,
    /// Ticks of a walk whose lines are all further out.
    miss_ticks: f64,
}

impl<'a> TimedLook<'a> {
    /// Writes a chain into every page of `arena` and measures how long walks take whose lines are in the level and
    /// further out.
    ///
    /// Fails with [`HostError::TimingBlurred`] when the two do not fall into separate modes.
    pub fn calibrate(arena: &'a Arena, sizes: LevelSizes, seed: u64) -> Result<Self, HostError> {
        let mut rng = fastrand::Rng::with_seed(seed);
        write_chains(arena, sizes.line_bytes, &mut rng);
        let (inner, outer) = (sizes.inner_pages(), sizes.outer_pages());
        let pages: Vec<u32> = (0..arena.page_count() as u32).collect();
        assert!(pages.len() >= sizes.pages_needed(), "an arena of {} pages is too small to calibrate", pages.len());
        let mut look = TimedLook { arena, line_bytes: sizes.line_bytes, rng, hit_ticks: 0.0, miss_ticks: 0.0 };
        let (mut hits, mut misses) = (Vec::new(), Vec::new());
        for _ in 0..CALIBRATION_WALKS {
            let first = look.rng.usize(0..=pages.len() - sizes.pages_needed());
            let (target, others) = (pages[first], &pages[first + 1..]);
            look.prepare(&others[..inner], &[target, target], 2);
            hits.push(look.walk(target));
            look.prepare(&others[inner..inner + outer], &[target, target], 1);
            misses.push(look.walk(target));
        }
        hits.sort_unstable();
        misses.sort_unstable();
        // Noise lengthens walks of both kinds, prefetching shortens those that miss: three quarters of each must lie apart.
        let (hit_p75, miss_p25) = (hits[hits.len() * 3 / 4], misses[misses.len() / 4]);
        if hit_p75 * 5 > miss_p25 * 4 {
            return Err(HostError::TimingBlurred { hit_ticks: hit_p75, miss_ticks: miss_p25, lines: STEPS });
        }
        look.hit_ticks = hits[hits.len() / 2] as f64;
        look.miss_ticks = miss_p25 as f64;
        Ok(look)
    }

    fn prepare(&self, set: &[u32], targets: &[u32], passes: u32) {
        self.arena.touch(targets, self.line_bytes);
        for _ in 0..passes {
            self.arena.touch(set, self.line_bytes);
        }
    }

    fn walk(&mut self, target: u32) -> u64 {
        let lines = page_bytes() / self.line_bytes;
        self.arena.walk(target, (self.rng.usize(0..lines) * self.line_bytes) as u64, STEPS).0
    }
}

impl Look for TimedLook<'_> {
    fn look(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>) {
        self.prepare(set, targets, passes);
        shares.clear();
        for target in targets {
            let ticks = self.walk(*target) as f64;
            let share = (ticks - self.hit_ticks) / (self.miss_ticks - self.hit_ticks);
            shares.push((share as f32).clamp(0.0, 1.0));
        }
    }
}

/// Gives every page a chain of its own, in random order: a core that learns which lines of a page follow the first would
/// fetch them ahead if all pages were alike.
fn write_chains(arena: &Arena, line_bytes: usize, rng: &mut fastrand::Rng) {
    let mut order: Vec<u16> = (0..(page_bytes() / line_bytes) as u16).collect();
    for page in 0..arena.page_count() as u32 {
        rng.shuffle(&mut order);
        arena.write_chain(page, &order, line_bytes);
    }
}
