//! The fast path: a chain of LRU write-back caches with lines of one size.
//!
//! The requests that a level hands down do not depend on the levels below. So each level runs a batch of requests by itself, and collects the
//! requests for the next.

use fearless_simd::{Simd, dispatch};

use super::recency::{BATCH, DIRTY, Found, KEPT_BITS, Request, Requests, Sets, vectors};
use super::simulator::Carried;
use super::{
    Access, Counts, Hierarchy, Inclusion, Index, Level, LevelCounts, MemoryCounts, Policy, Semantics, WriteHit,
    WriteMiss,
};

/// Most requests that a batch can cause at the level below: a fetch and a write-back each.
const BELOW: usize = 2 * BATCH;

/// A level, independent of its number of ways.
trait AnyLru: Send + std::fmt::Debug {
    /// Runs at most [`BATCH`] requests, and returns how many requests it wrote to `below` for the level below.
    fn run(&mut self, requests: &[Request], below: &mut [Request; BELOW]) -> usize;
    fn counts(&self) -> Counts;
    /// Returns the entries of all sets, each set's least recently used first.
    fn entries(&self) -> Vec<Request>;
}

/// A level of up to 8 × `V` ways.
#[derive(Debug)]
struct Lru<const V: usize> {
    sets: Sets<V>,
    writes_refresh: bool,
    /// Whether a write that misses reads its line from below.
    writes_fetch: bool,
    counts: Counts,
}

impl<const V: usize> Lru<V> {
    #[inline(always)]
    fn run_with<S: Simd, const REFRESH: bool>(
        &mut self,
        simd: S,
        requests: &[Request],
        below: &mut [Request; BELOW],
    ) -> usize {
        let mut sets = self.sets.with(simd);
        let writes_fetch = self.writes_fetch;
        let (mut left, mut write_misses) = (0, 0);
        for request in requests {
            if let Found::Missing { victim } = sets.access::<REFRESH>(*request) {
                let write = request & DIRTY;
                write_misses += write;
                // Every request is stored, but counted only if needed. This avoids a branch that could be mispredicted.
                below[left % BELOW] = request & !DIRTY;
                left += if writes_fetch { 1 } else { 1 - write as usize };
                below[left % BELOW] = victim;
                left += (victim & DIRTY) as usize;
            }
        }
        let dirty = |requests: &[Request]| requests.iter().map(|request| u64::from(request & DIRTY)).sum::<u64>();
        let (writes, write_backs, write_misses) = (dirty(requests), dirty(&below[..left]), u64::from(write_misses));
        let fetches = left as u64 - write_backs;
        self.counts.reads += requests.len() as u64 - writes;
        self.counts.writes += writes;
        self.counts.read_misses += if writes_fetch { fetches - write_misses } else { fetches };
        self.counts.write_misses += write_misses;
        self.counts.writebacks += write_backs;
        left
    }
}

impl<const V: usize> AnyLru for Lru<V> {
    fn run(&mut self, requests: &[Request], below: &mut [Request; BELOW]) -> usize {
        let level = fearless_simd::Level::new();
        if self.writes_refresh {
            dispatch!(level, simd => self.run_with::<_, true>(simd, requests, below))
        } else {
            dispatch!(level, simd => self.run_with::<_, false>(simd, requests, below))
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn entries(&self) -> Vec<Request> {
        self.sets.entries().collect()
    }
}

/// A chain of LRU, write-back, write-allocate, non-inclusive levels.
#[derive(Debug)]
pub struct LruChain {
    names: Vec<String>,
    levels: Vec<Box<dyn AnyLru>>,
    memory: MemoryCounts,
    requests: Requests,
}

impl LruChain {
    /// Creates the chain; `None` if a level is of another kind, or has too many ways or sets.
    pub fn new(levels: &[Level], semantics: Semantics) -> Option<LruChain> {
        let line_bytes = levels.first()?.geometry.line_bytes;
        let fits = |level: &Level| {
            level.check().is_ok()
                && level.geometry.line_bytes == line_bytes
                && level.geometry.ways <= 32
                && level.geometry.set_count.is_power_of_two()
                && level.geometry.set_count <= 1 << KEPT_BITS
                && level.sectors == 1
                && !matches!(level.index, Index::Xor(_))
                && level.policy == Policy::Lru
                && (level.write_hit, level.write_miss) == (WriteHit::Back, WriteMiss::Allocate)
                && level.inclusion == Inclusion::NonInclusive
        };
        if semantics.write_back_first || !levels.iter().all(fits) {
            return None;
        }
        // Only stores write a part of a line, and only to the innermost level. So that level always reads the line.
        let writes_fetch = |i: usize| i == 0 || semantics.write_backs_fetch;
        Some(LruChain {
            names: levels.iter().map(|level| level.name.clone()).collect(),
            levels: levels.iter().enumerate().map(|(i, level)| any_lru(level, semantics, writes_fetch(i))).collect(),
            memory: MemoryCounts::default(),
            requests: Requests::new(line_bytes.0.trailing_zeros()),
        })
    }

    /// Runs accesses, and returns how many were run. These are fewer than all only if the program touches more than 2047
    /// different regions of 2^20 lines.
    pub fn run(&mut self, accesses: &[Access]) -> usize {
        let LruChain { levels, memory, requests, .. } = self;
        requests.each_batch(accesses, |batch| pass(levels, memory, batch))
    }

    /// Returns the events per level, innermost first, and the transfers from and to memory.
    pub fn counts(&self) -> (Vec<LevelCounts>, MemoryCounts) {
        let counts = self.levels.iter().map(|level| level.counts());
        let named = self.names.iter().cloned().zip(counts).map(|(name, counts)| LevelCounts { name, counts });
        (named.collect(), self.memory)
    }

    /// Converts the chain into a general hierarchy with the same contents and counts, which has no limit on the address
    /// space.
    pub(super) fn to_hierarchy(&self, levels: &[Level], semantics: Semantics) -> Hierarchy {
        let lines = |entries: Vec<Request>| self.requests.lines(entries.into_iter());
        let carried = self.levels.iter().map(|level| (level.counts(), lines(level.entries()))).collect();
        Hierarchy::resume(levels, semantics, Carried { levels: carried, memory: self.memory })
    }
}

fn any_lru(level: &Level, semantics: Semantics, writes_fetch: bool) -> Box<dyn AnyLru> {
    fn lru<const V: usize>(level: &Level, semantics: Semantics, writes_fetch: bool) -> Box<dyn AnyLru> {
        let sets = Sets::<V>::new(level.geometry);
        Box::new(Lru { sets, writes_refresh: semantics.writes_refresh, writes_fetch, counts: Counts::default() })
    }
    match vectors(level.geometry.ways) {
        1 => lru::<1>(level, semantics, writes_fetch),
        2 => lru::<2>(level, semantics, writes_fetch),
        _ => lru::<4>(level, semantics, writes_fetch),
    }
}

/// Runs requests on the first level, those that it hands down on the next, and so on down to memory.
fn pass(levels: &mut [Box<dyn AnyLru>], memory: &mut MemoryCounts, requests: &[Request]) {
    let Some((level, levels_below)) = levels.split_first_mut() else {
        let writes = requests.iter().map(|request| u64::from(request & DIRTY)).sum::<u64>();
        memory.writes += writes;
        memory.reads += requests.len() as u64 - writes;
        return;
    };
    let mut below = [0; BELOW];
    let left = level.run(requests, &mut below);
    for batch in below[..left].chunks(BATCH) {
        pass(levels_below, memory, batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::sim::Kind;
    use crate::units::Bytes;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn the_fast_path_counts_as_the_hierarchy(
            shapes in proptest::collection::vec((0u32..5, 1u32..33), 1..4),
            writes_refresh: bool,
            write_backs_fetch: bool,
            accesses in proptest::collection::vec((0u64..400, 0u64..3, any::<bool>(), 1u32..100), 1..3000),
        ) {
            let geometry = |(set_bits, ways)| Geometry { set_count: 1u64 << set_bits, ways, line_bytes: Bytes(64) };
            let levels: Vec<Level> = shapes.into_iter().map(|shape| Level::lru("", geometry(shape))).collect();
            let semantics = Semantics { writes_refresh, write_backs_fetch, write_back_first: false };
            let accesses: Vec<Access> = accesses
                .into_iter()
                .map(|(line, region, write, bytes)| Access {
                    address: (line << 6) + (region << 45) + 7,
                    bytes,
                    kind: if write { Kind::Write } else { Kind::Read },
                })
                .collect();
            let mut fast = LruChain::new(&levels, semantics).unwrap();
            let mut plain = Hierarchy::chain(levels, semantics).unwrap();
            prop_assert_eq!(fast.run(&accesses), accesses.len());
            accesses.iter().for_each(|access| plain.access(*access));
            prop_assert_eq!(fast.counts(), (plain.level_counts(), plain.memory()));
        }
    }
}
