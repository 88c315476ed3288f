//! Eviction tests of pages of this process.

use isochrome_model::units::FrameNumber;

use super::classify::PASSES;
use super::eviction::{EvictionTest, STEPS, Traversal, WalkTicks, Walker};
use crate::color::pagemap;
use crate::error::HostError;
use crate::sys::memory::Arena;

/// Walks of each kind taken to calibrate.
const CALIBRATION_WALKS: usize = 200;

/// Pages of known color and, if others are to be tested by them, a second memory.
///
/// Pages of the first have its numbers; those of the second come behind.
pub struct LocalEvictionTest {
    walker: Walker,
    second: Option<Walker>,
    ticks: WalkTicks,
    line_bytes: usize,
    targets: [Vec<u32>; 2],
}

impl LocalEvictionTest {
    /// Tests by pages of `arena`, of which those of `sets` are resident. Measures on them how long lines take that are in the level and
    /// further out. `ready`: whether the pages hold the chains to walk along already. `traversal`: what of the sets' pages has to be
    /// touched.
    ///
    /// Fails with [`HostError::TimingBlurred`] when the two do not fall into separate modes.
    pub fn new(
        arena: Arena,
        line_bytes: usize,
        sets: &[Vec<u32>],
        ready: bool,
        traversal: Traversal,
        seed: u64,
    ) -> Result<LocalEvictionTest, HostError> {
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

    /// From now on pages of `arena` can be tested as well, in which `pages` have or get chains. Gives the number of its first page.
    pub fn set_second(&mut self, arena: Arena, pages: &[u32], ready: bool) -> u32 {
        let mut second = Walker::new(arena, self.line_bytes, 1);
        for page in pages.iter().filter(|_| !ready) {
            second.make_ready(*page..*page + 1);
        }
        self.second = Some(second);
        self.first()
    }

    /// Gives the second memory back.
    pub fn take_second(&mut self) -> Option<Arena> {
        self.second.take().map(Walker::into_memory)
    }

    fn first(&self) -> u32 {
        self.walker.memory().page_count() as u32
    }

    /// The frame of a page of the first memory, where the kernel shows it.
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
