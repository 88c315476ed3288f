//! Eviction tests on a modeled cache, to test the search and the classification without hardware.

use std::collections::BTreeSet;

use super::eviction::{ArenaEvictionTest, EvictionTest};
use crate::sys::memory::Arena;

/// Most colors that can be modeled.
const COLORS: usize = 64;

/// A modeled cache with pages of known color. A page is evicted when pages of its color fill the ways.
pub struct ModeledEvictionTest {
    /// Color of each page.
    pub colors: Vec<u16>,
    /// Probability that the test of a page is disturbed, so that a random share of its lines misses.
    pub noise: f64,
    /// Probability that a page survives although pages of its color fill the ways. No page survives 1.5 times as many pages as ways.
    pub luck: f64,
    /// Probability that a test evicts every target, no matter what is traversed.
    pub decay: f64,
    ways: usize,
    rng: fastrand::Rng,
    arena: Arena,
}

impl ModeledEvictionTest {
    pub fn new(colors: u16, ways: usize, pages: usize, seed: u64) -> ModeledEvictionTest {
        let mut rng = fastrand::Rng::with_seed(seed);
        let colors = (0..pages).map(|_| rng.u16(0..colors)).collect();
        // The arena is never touched. Only its size is used.
        ModeledEvictionTest { colors, noise: 0.0, luck: 0.0, decay: 0.0, ways, rng, arena: Arena::map(pages).unwrap() }
    }
}

impl EvictionTest for ModeledEvictionTest {
    fn run(&mut self, set: &[u32], targets: &[u32], _passes: u32, shares: &mut Vec<f32>) {
        let mut rivals = [0; COLORS];
        // A page that occurs several times in the set takes one way.
        for page in set.iter().collect::<BTreeSet<_>>() {
            rivals[usize::from(self.colors[*page as usize])] += 1;
        }
        // A target also competes with the targets of its color that are touched after it.
        let mut later = [0; COLORS];
        shares.clear();
        for target in targets.iter().rev() {
            let color = usize::from(self.colors[*target as usize]);
            let own = usize::from(set.contains(target));
            let against = rivals[color] + later[color] - own;
            later[color] += 1;
            let lucky = against < self.ways * 3 / 2 && self.rng.f64() < self.luck;
            let mut share: f32 = if against >= self.ways && !lucky { 0.9 } else { 0.03 };
            if self.rng.f64() < self.noise {
                share = share.max(self.rng.f32());
            }
            shares.push(share);
        }
        shares.reverse();
        if self.rng.f64() < self.decay {
            shares.fill(1.0);
        }
    }
}

impl ArenaEvictionTest for ModeledEvictionTest {
    fn make_ready(&mut self, _pages: std::ops::Range<u32>) {}

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn into_arena(self: Box<Self>) -> Arena {
        self.arena
    }
}
