//! Eviction tests of pages of this process.

use isochrome_model::units::FrameNumber;

use super::classify::PASSES;
use super::eviction::{EvictionTest, STEPS, Traversal, WalkTicks, Walker};
use crate::color::error::ColorError;
use crate::color::pagemap;
use crate::sys::memory::Arena;

/// Number of walks of each kind for the calibration.
const CALIBRATION_WALKS: usize = 200;

/// Eviction tests of the pages of two memories: one with pages of known color, and a second one whose pages are tested by them.
///
/// Pages of the first memory have the same numbers as in that memory. The numbers of the second memory's pages follow.
pub struct LocalEvictionTest {
    walker: Walker,
    second: Option<Walker>,
    ticks: WalkTicks,
    line_bytes: usize,
    targets: [Vec<u32>; 2],
}

impl LocalEvictionTest {
    /// Creates tests by the pages of `sets` in `arena`, which must be resident, and measures the walk times on these pages.
    ///
    /// `ready`: whether the pages already hold the chains to walk along. `traversal`: which lines of the sets' pages have to be touched.
    ///
    /// Fails with [`ColorError::TimingBlurred`] when hits and misses do not fall into separate modes.
    pub fn new(
        arena: Arena,
        line_bytes: usize,
        sets: &[Vec<u32>],
        ready: bool,
        traversal: Traversal,
        seed: u64,
    ) -> Result<LocalEvictionTest, ColorError> {
        let mut walker = Walker::new(arena, line_bytes, seed).with_traversal(traversal);
        for page in sets.iter().flatten().filter(|_| !ready) {
            walker.make_ready(*page..*page + 1);
        }
        let (mut hits, mut misses) = (Vec::new(), Vec::new());
        for walk in 0..CALIBRATION_WALKS {
            let (color, other) = (walk % sets.len(), (walk + 1 + walk / sets.len()) % sets.len());
            let own = &sets[color];
            let target = own[walk / sets.len() % own.len()];
            let rivals: Vec<u32> = own.iter().copied().filter(|page| *page != target).collect();
            for (set, times) in [(&sets[other], &mut hits), (&rivals, &mut misses)] {
                walker.prepare(set, &[target], PASSES);
                times.push(walker.walk(target, STEPS));
            }
        }
        let ticks = WalkTicks::of(hits, misses)?;
        Ok(LocalEvictionTest { walker, second: None, ticks, line_bytes, targets: Default::default() })
    }

    /// Makes `arena` the second memory, whose `pages` can be tested from now on. Returns the number of its first page.
    ///
    /// `ready`: whether the pages already hold chains to walk along; otherwise this function writes the chains.
    pub fn set_second(&mut self, arena: Arena, pages: &[u32], ready: bool) -> u32 {
        let mut second = Walker::new(arena, self.line_bytes, 1);
        for page in pages.iter().filter(|_| !ready) {
            second.make_ready(*page..*page + 1);
        }
        self.second = Some(second);
        self.first()
    }

    /// Removes and returns the second memory; `None` if there is none.
    pub fn take_second(&mut self) -> Option<Arena> {
        self.second.take().map(Walker::into_memory)
    }

    fn first(&self) -> u32 {
        self.walker.memory().page_count() as u32
    }

    /// Returns the frame of a page of the first memory; `None` if the kernel hides it.
    pub fn frame(&self, page: u32) -> Option<FrameNumber> {
        pagemap::frames(self.walker.memory(), page as usize..page as usize + 1)[0]
    }
}

impl EvictionTest for LocalEvictionTest {
    fn run(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>) {
        let first = self.first();
        let [own, others] = &mut self.targets;
        own.clear();
        others.clear();
        for target in targets {
            match target.checked_sub(first) {
                None => own.push(*target),
                Some(other) => others.push(other),
            }
        }
        if let Some(second) = &self.second {
            second.prepare(&[], others, 0);
        }
        self.walker.prepare(set, own, passes);
        shares.clear();
        for target in targets {
            let ticks = match (target.checked_sub(first), &mut self.second) {
                (Some(other), Some(second)) => second.walk(other, STEPS),
                _ => self.walker.walk(*target, STEPS),
            };
            shares.push(self.ticks.share_missing(ticks));
        }
    }
}
