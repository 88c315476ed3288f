//! The fast path: a chain of LRU write-back caches with lines of one size.
//!
//! A set is an array of 32-bit entries, most recently used first, each a tag and a dirty bit. Moving an entry to the front is a
//! blend of the set with itself shifted by one lane, done in vector registers: writing single lanes of a set that is loaded as a
//! vector soon after would make the load wait for the store to reach the cache.
//!
//! Tags fit into 31 bits because the upper address bits are numbered as they come up ([`Regions`]).

use std::collections::HashMap;

use wide::u32x8;

use super::simulator::Carried;
use super::{
    Access, Counts, Hierarchy, Inclusion, Index, Kind, Level, LevelCounts, MemoryCounts, Policy, Semantics, WriteHit,
    WriteMiss,
};

/// Bits of a line number that keep their value; the bits above are replaced by the number of their region.
const KEPT_BITS: u32 = 20;
/// Regions that can be told apart.
const REGIONS_MAX: u32 = (1 << (31 - KEPT_BITS)) - 1;
/// A clean entry whose tag no line has.
const EMPTY: u32 = u32::MAX - 1;

/// Numbers for the upper bits of line numbers.
#[derive(Clone, Debug)]
struct Regions {
    /// By the lowest bits of the region: the region and its number, already in place.
    recent: Box<[(u64, u32); RECENT]>,
    numbers: HashMap<u64, u32>,
}

const RECENT: usize = 64;

impl Regions {
    fn new() -> Regions {
        Regions { recent: Box::new([(u64::MAX, 0); RECENT]), numbers: HashMap::new() }
    }

    /// The line number in 31 bits, if its region was seen lately.
    #[inline]
    fn known(&self, line: u64) -> Option<u32> {
        let region = line >> KEPT_BITS;
        let (recent, number) = self.recent[region as usize % RECENT];
        (recent == region).then_some(number | (line & ((1 << KEPT_BITS) - 1)) as u32)
    }

    /// The line number in 31 bits; `None` when there are too many regions.
    fn compact(&mut self, line: u64) -> Option<u32> {
        let number = self.look_up(line >> KEPT_BITS)?;
        Some(number | (line & ((1 << KEPT_BITS) - 1)) as u32)
    }

    #[cold]
    fn look_up(&mut self, region: u64) -> Option<u32> {
        let next = self.numbers.len() as u32;
        let number = match self.numbers.get(&region) {
            Some(number) => *number,
            None if next == REGIONS_MAX => return None,
            None => {
                self.numbers.insert(region, next << KEPT_BITS);
                next << KEPT_BITS
            }
        };
        self.recent[region as usize % RECENT] = (region, number);
        Some(number)
    }
}

/// What lies below a level: another, or memory.
trait Below: Send + std::fmt::Debug {
    fn read(&mut self, request: Request);
    fn write_back(&mut self, request: Request);
    /// Appends the counts and the entries of this level and those below, each set's least recently used first.
    fn carry(&self, into: &mut Vec<(Counts, Vec<u32>)>) -> MemoryCounts;
}

impl<B: Below + ?Sized> Below for Box<B> {
    fn read(&mut self, request: Request) {
        (**self).read(request);
    }

    fn write_back(&mut self, request: Request) {
        (**self).write_back(request);
    }

    fn carry(&self, into: &mut Vec<(Counts, Vec<u32>)>) -> MemoryCounts {
        (**self).carry(into)
    }
}

impl Below for MemoryCounts {
    fn read(&mut self, _: Request) {
        self.reads += 1;
    }

    fn write_back(&mut self, _: Request) {
        self.writes += 1;
    }

    fn carry(&self, _: &mut Vec<(Counts, Vec<u32>)>) -> MemoryCounts {
        *self
    }
}

/// A level of up to 8 `V` ways.
#[derive(Debug)]
struct Lru<const V: usize, const REFRESH: bool, B> {
    sets: Vec<[u32x8; V]>,
    ways: usize,
    write_backs_fetch: bool,
    counts: Counts,
    below: B,
}

/// A request is a line number and, as bit 0, whether the line becomes dirty; an entry of a set has the same form.
type Request = u32;

const DIRTY: u32 = 1;

/// Row i: the lanes up to and including lane i, which take the shifted set.
const fn shifted<const V: usize>() -> [[[u32; 8]; V]; 32] {
    let mut masks = [[[0; 8]; V]; 32];
    let mut position = 0;
    while position < 8 * V {
        let mut lane = 0;
        while lane <= position {
            masks[position][lane / 8][lane % 8] = u32::MAX;
            lane += 1;
        }
        position += 1;
    }
    masks
}

impl<const V: usize, const REFRESH: bool, B: Below> Lru<V, REFRESH, B> {
    const SHIFTED: &[[[u32; 8]; V]; 32] = &shifted::<V>();

    fn new(level: &Level, semantics: Semantics, below: B) -> Self {
        Lru {
            sets: vec![[u32x8::splat(EMPTY); V]; level.geometry.set_count as usize],
            ways: level.geometry.ways as usize,
            write_backs_fetch: semantics.write_backs_fetch,
            counts: Counts::default(),
            below,
        }
    }

    #[inline(always)]
    fn set_of(&self, request: Request) -> usize {
        (request >> 1) as usize & (self.sets.len() - 1)
    }

    /// Lanes that hold the line of `request`, dirty or not; bit i is lane i.
    #[inline(always)]
    fn lanes(set: &[u32x8; V], request: Request) -> u32 {
        let key = u32x8::splat(request | DIRTY);
        let mut lanes = 0;
        for (i, vector) in set.iter().enumerate() {
            lanes |= (*vector | u32x8::splat(DIRTY)).simd_eq(key).to_bitmask() << (8 * i);
        }
        lanes
    }

    /// Lets `front` become the first entry, in place of the one at `position`; those before it move back by one.
    #[inline(always)]
    fn move_to_front(set: &mut [u32x8; V], position: usize, front: u32) {
        let mut carried = front;
        for (vector, mask) in set.iter_mut().zip(&Self::SHIFTED[position]) {
            let old = vector.to_array();
            let shifted = u32x8::new([carried, old[0], old[1], old[2], old[3], old[4], old[5], old[6]]);
            let take = u32x8::new(*mask);
            carried = old[7];
            *vector = (shifted & take) | (*vector & !take);
        }
    }

    /// One access to this level; `fetch`: a missing line is read from below.
    #[inline(always)]
    fn access(&mut self, request: Request, fetch: bool) {
        let index = self.set_of(request);
        let mut set = self.sets[index];
        let lanes = Self::lanes(&set, request);
        if lanes == 0 {
            self.miss(request, fetch);
            return;
        }
        // The single entry is taken from memory: indexing the copy would force it out of its registers.
        let position = lanes.trailing_zeros() as usize % (8 * V);
        let entry = self.sets[index][position / 8].as_array()[position % 8];
        if REFRESH || request & DIRTY == 0 {
            Self::move_to_front(&mut set, position, entry | request);
            self.sets[index] = set;
        } else {
            self.sets[index][position / 8].as_mut_array()[position % 8] = entry | DIRTY;
        }
    }

    #[inline(never)]
    fn miss(&mut self, request: Request, fetch: bool) {
        if request & DIRTY == 0 {
            self.counts.read_misses += 1;
        } else {
            self.counts.write_misses += 1;
        }
        if fetch {
            self.below.read(request & !DIRTY);
        }
        let index = self.set_of(request);
        let last = self.ways - 1;
        let victim = self.sets[index][last / 8].as_array()[last % 8];
        let mut set = self.sets[index];
        // Lanes beyond the last way stay empty: the mask ends at the victim's.
        Self::move_to_front(&mut set, last % 32, request);
        self.sets[index] = set;
        if victim & DIRTY == DIRTY {
            self.counts.writebacks += 1;
            self.below.write_back(victim);
        }
    }
}

impl<const V: usize, const REFRESH: bool, B: Below> Below for Lru<V, REFRESH, B> {
    #[inline]
    fn read(&mut self, request: Request) {
        self.counts.reads += 1;
        self.access(request, true);
    }

    fn write_back(&mut self, request: Request) {
        self.counts.writes += 1;
        self.access(request, self.write_backs_fetch);
    }

    fn carry(&self, into: &mut Vec<(Counts, Vec<u32>)>) -> MemoryCounts {
        let entries =
            |set: &[u32x8; V]| set.iter().rev().flat_map(|v| v.to_array().into_iter().rev()).collect::<Vec<_>>();
        let occupied = self.sets.iter().flat_map(entries).filter(|entry| *entry != EMPTY);
        into.push((self.counts, occupied.collect()));
        self.below.carry(into)
    }
}

/// The innermost level, which the program's accesses reach in batches.
trait Innermost: Below {
    fn run(&mut self, requests: &[Request]);
}

impl<const V: usize, const REFRESH: bool, B: Below> Innermost for Lru<V, REFRESH, B> {
    fn run(&mut self, requests: &[Request]) {
        let mut writes = 0;
        for request in requests {
            writes += u64::from(request & DIRTY);
            self.access(*request, true);
        }
        self.counts.writes += writes;
        self.counts.reads += requests.len() as u64 - writes;
    }
}

/// A chain of LRU, write-back, write-allocate, non-inclusive levels.
#[derive(Debug)]
pub struct LruChain {
    names: Vec<String>,
    innermost: Box<dyn Innermost>,
    regions: Regions,
    line_shift: u32,
    requests: Vec<Request>,
}

/// Accesses handed to the innermost level at a time.
const BATCH: usize = 1024;

/// Vectors of 8 entries that hold a set: 1, 2 or 4.
fn vectors(level: &Level) -> u32 {
    level.geometry.ways.div_ceil(8).next_power_of_two()
}

/// A boxed level of the right width above `below`.
macro_rules! level_above {
    ($level:expr, $semantics:expr, $below:expr) => {
        match (vectors($level), $semantics.writes_refresh) {
            (1, true) => Box::new(Lru::<1, true, _>::new($level, $semantics, $below)),
            (1, false) => Box::new(Lru::<1, false, _>::new($level, $semantics, $below)),
            (2, true) => Box::new(Lru::<2, true, _>::new($level, $semantics, $below)),
            (2, false) => Box::new(Lru::<2, false, _>::new($level, $semantics, $below)),
            (_, true) => Box::new(Lru::<4, true, _>::new($level, $semantics, $below)),
            (_, false) => Box::new(Lru::<4, false, _>::new($level, $semantics, $below)),
        }
    };
}

impl LruChain {
    /// `None` when the levels, or their number of ways, are not of this kind.
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
        let mut below: Box<dyn Below> = Box::new(MemoryCounts::default());
        for level in levels.get(2..).unwrap_or_default().iter().rev() {
            below = level_above!(level, semantics, below);
        }
        // The two levels with most of the traffic are compiled as one.
        let innermost: Box<dyn Innermost> = match levels {
            [first, second, ..] => match (vectors(second), semantics.writes_refresh) {
                (1, true) => level_above!(first, semantics, Lru::<1, true, _>::new(second, semantics, below)),
                (1, false) => level_above!(first, semantics, Lru::<1, false, _>::new(second, semantics, below)),
                (2, true) => level_above!(first, semantics, Lru::<2, true, _>::new(second, semantics, below)),
                (2, false) => level_above!(first, semantics, Lru::<2, false, _>::new(second, semantics, below)),
                (_, true) => level_above!(first, semantics, Lru::<4, true, _>::new(second, semantics, below)),
                (_, false) => level_above!(first, semantics, Lru::<4, false, _>::new(second, semantics, below)),
            },
            _ => level_above!(&levels[0], semantics, below),
        };
        Some(LruChain {
            names: levels.iter().map(|level| level.name.clone()).collect(),
            innermost,
            regions: Regions::new(),
            line_shift: line_bytes.0.trailing_zeros(),
            requests: Vec::with_capacity(BATCH),
        })
    }

    /// Runs accesses; returns how many were run. Fewer than all only where the program touches more than 2047 different
    /// regions of 2^20 lines.
    pub fn run(&mut self, accesses: &[Access]) -> usize {
        for (done, chunk) in accesses.chunks(BATCH).enumerate() {
            if let Some(count) = self.compact(chunk) {
                self.innermost.run(&self.requests);
                return done * BATCH + count;
            }
            self.innermost.run(&self.requests);
        }
        accesses.len()
    }

    /// The lines of some accesses; how many accesses got theirs, if not all.
    fn compact(&mut self, chunk: &[Access]) -> Option<usize> {
        self.requests.clear();
        let in_line = (1u64 << self.line_shift) - 1;
        let mut odd = false;
        self.requests.extend(chunk.iter().map(|access| {
            let line = access.address >> self.line_shift;
            let compact = self.regions.known(line);
            odd |= compact.is_none() | ((access.address & in_line) + u64::from(access.bytes) > in_line + 1);
            compact.unwrap_or(0) << 1 | u32::from(access.kind == Kind::Write)
        }));
        if !odd {
            return None;
        }
        self.requests.clear();
        for (i, access) in chunk.iter().enumerate() {
            let before = self.requests.len();
            for line in access.address >> self.line_shift..=access.last() >> self.line_shift {
                let Some(line) = self.regions.compact(line) else {
                    self.requests.truncate(before);
                    return Some(i);
                };
                self.requests.push(line << 1 | u32::from(access.kind == Kind::Write));
            }
        }
        None
    }

    /// Events per level, innermost first, and transfers from and to memory.
    pub fn counts(&self) -> (Vec<LevelCounts>, MemoryCounts) {
        let mut levels = Vec::new();
        let memory = self.innermost.carry(&mut levels);
        let named = self.names.iter().cloned().zip(levels).map(|(name, (counts, _))| LevelCounts { name, counts });
        (named.collect(), memory)
    }

    /// The same caches with the same contents and counts, without limits on the address space.
    pub(super) fn to_hierarchy(&self, levels: &[Level], semantics: Semantics) -> Hierarchy {
        let regions: HashMap<u32, u64> =
            self.regions.numbers.iter().map(|(region, number)| (*number, *region)).collect();
        let kept = (1 << KEPT_BITS) - 1;
        let line = |entry: u32| regions[&(entry >> 1 & !kept)] << KEPT_BITS | u64::from(entry >> 1 & kept);
        let mut carried = Vec::new();
        let memory = self.innermost.carry(&mut carried);
        let lines = |entries: Vec<u32>| entries.into_iter().map(|entry| (line(entry), entry & DIRTY != 0)).collect();
        let carried = carried.into_iter().map(|(counts, entries)| (counts, lines(entries))).collect();
        Hierarchy::resume(levels, semantics, Carried { levels: carried, memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
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
