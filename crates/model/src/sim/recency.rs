//! Sets of lines in the order of use, kept in vector registers.
//!
//! A set is an array of 32-bit entries, most recently used first. An entry consists of a line number and a dirty bit. Moving an
//! entry to the front blends the set with a copy of itself that is shifted by one lane. Single lanes are not written because a
//! vector load of the set soon after would have to wait until the store reaches the cache.
//!
//! Line numbers fit into 31 bits because [`Requests`] replaces their upper bits by region numbers, assigned in the order of
//! first use.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use fearless_simd::{Simd, prelude::*, u32x8};

use super::{Access, Kind};
use crate::geometry::Geometry;

/// A request for a line: the line number in bits 1 to 31, and in bit 0 whether the line becomes dirty. An entry of a set has
/// the same form.
pub(super) type Request = u32;

pub(super) const DIRTY: Request = 1;

/// Number of low bits of a line number that keep their value. The bits above are replaced by the number of their region.
pub(super) const KEPT_BITS: u32 = 20;
/// Maximum number of regions that can be told apart.
const REGIONS_MAX: u32 = (1 << (31 - KEPT_BITS)) - 1;
/// A clean entry for an empty way. No access has its line number.
const EMPTY: Request = u32::MAX - 1;

/// Maximum number of requests in a batch.
pub(super) const BATCH: usize = 1024;

/// Turns accesses into requests.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    line_shift: u32,
    /// Cache of the most recent regions, indexed by their lowest bits: the region, and its number already shifted into
    /// place.
    recent: Box<[(u64, u32); RECENT]>,
    numbers: HashMap<u64, u32>,
}

const RECENT: usize = 64;

impl Requests {
    pub fn new(line_shift: u32) -> Requests {
        Requests { line_shift, recent: Box::new([(u64::MAX, 0); RECENT]), numbers: HashMap::new() }
    }

    /// Calls `run` for batches of requests, one request for each line touched, and returns how many accesses were run. These
    /// are fewer than all only if the program touches more than 2047 different regions of 2^20 lines.
    #[inline]
    pub fn each_batch(&mut self, accesses: &[Access], mut run: impl FnMut(&[Request])) -> usize {
        let line_bytes = 1u64 << self.line_shift;
        let mut batch = [0; BATCH];
        let mut filled = 0;
        for (i, access) in accesses.iter().enumerate() {
            let first = access.address >> self.line_shift;
            let write = Request::from(access.kind == Kind::Write);
            let straddles = (access.address & (line_bytes - 1)) + u64::from(access.bytes) > line_bytes;
            if !straddles && let Some(line) = self.known(first) {
                batch[filled] = line << 1 | write;
                filled += 1;
                if filled == BATCH {
                    run(&batch);
                    filled = 0;
                }
                continue;
            }
            let last = access.last() >> self.line_shift;
            if !self.number_regions(first >> KEPT_BITS..=last >> KEPT_BITS) {
                run(&batch[..filled]);
                return i;
            }
            for line in first..=last {
                batch[filled] = self.look_up(line) << 1 | write;
                filled += 1;
                if filled == BATCH {
                    run(&batch);
                    filled = 0;
                }
            }
        }
        run(&batch[..filled]);
        accesses.len()
    }

    /// Returns the 31-bit number of a line; `None` unless the region of the line is in the cache of recent regions.
    #[inline(always)]
    fn known(&self, line: u64) -> Option<u32> {
        let region = line >> KEPT_BITS;
        let (recent, number) = self.recent[region as usize % RECENT];
        (recent == region).then_some(number | line as u32 & ((1 << KEPT_BITS) - 1))
    }

    /// Gives each of the regions a number, and returns whether all of them have one now.
    #[cold]
    fn number_regions(&mut self, mut regions: RangeInclusive<u64>) -> bool {
        regions.all(|region| {
            let next = self.numbers.len() as u32;
            self.numbers.contains_key(&region)
                || next < REGIONS_MAX && self.numbers.insert(region, next << KEPT_BITS).is_none()
        })
    }

    /// Returns the 31-bit number of a line. The region of the line must have a number.
    fn look_up(&mut self, line: u64) -> u32 {
        let region = line >> KEPT_BITS;
        let number = self.numbers[&region];
        self.recent[region as usize % RECENT] = (region, number);
        number | line as u32 & ((1 << KEPT_BITS) - 1)
    }

    /// Returns the full line number of each entry, and whether the entry is dirty.
    pub fn lines(&self, entries: impl Iterator<Item = Request>) -> Vec<(u64, bool)> {
        let regions: HashMap<u32, u64> = self.numbers.iter().map(|(region, number)| (*number, *region)).collect();
        let kept = (1 << KEPT_BITS) - 1;
        let line = |entry: u32| regions[&(entry >> 1 & !kept)] << KEPT_BITS | u64::from(entry >> 1 & kept);
        entries.map(|entry| (line(entry), entry & DIRTY != 0)).collect()
    }
}

/// Eight entries, or a mask for each.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Lanes([u32; 8]);

/// Loads a set or its masks into vector registers. This module uses loops instead of closures, because a closure that is not
/// inlined loses the CPU's vector instructions.
#[inline(always)]
fn in_registers<S: Simd, const V: usize>(simd: S, lanes: &[Lanes; V]) -> [u32x8<S>; V] {
    let mut vectors = [u32x8::splat(simd, 0); V];
    for i in 0..V {
        vectors[i] = u32x8::from_slice(simd, &lanes[i].0);
    }
    vectors
}

/// Returns masks by position: row i selects the lanes up to and including lane i.
const fn lanes_up_to<const V: usize>() -> [[Lanes; V]; 32] {
    let mut masks = [[Lanes([0; 8]); V]; 32];
    let mut position = 0;
    while position < 8 * V {
        let mut lane = 0;
        while lane <= position {
            masks[position][lane / 8].0[lane % 8] = u32::MAX;
            lane += 1;
        }
        position += 1;
    }
    masks
}

/// Returns the number of 8-lane vectors that hold a set of at most 32 ways: 1, 2 or 4.
pub(super) fn vectors(ways: u32) -> u32 {
    ways.div_ceil(8).next_power_of_two()
}

/// Sets of up to 8 `V` ways, indexed by the lowest bits of the line number.
#[derive(Clone, Debug)]
pub(super) struct Sets<const V: usize> {
    sets: Vec<[Lanes; V]>,
    ways: usize,
}

impl<const V: usize> Sets<V> {
    /// Creates empty sets. Their number must be a power of two and at most 2^20, because only the kept bits of a line
    /// number select its set.
    pub fn new(geometry: Geometry) -> Sets<V> {
        assert!(geometry.set_count.is_power_of_two() && geometry.set_count <= 1 << KEPT_BITS);
        assert!((1..=8 * V).contains(&(geometry.ways as usize)));
        let sets = vec![[Lanes([EMPTY; 8]); V]; geometry.set_count as usize];
        Sets { sets, ways: geometry.ways as usize }
    }

    /// Returns the entries of all sets, each set's least recently used first.
    pub fn entries(&self) -> impl Iterator<Item = Request> {
        let reversed = |set: &[Lanes; V]| set.map(|lanes| lanes.0).into_iter().rev().flat_map(|v| v.into_iter().rev());
        self.sets.iter().flat_map(move |set| reversed(set).filter(|entry| *entry != EMPTY))
    }

    /// Borrows the sets for many accesses, with the constants of the vector code loaded.
    #[inline(always)]
    pub fn with<S: Simd>(&mut self, simd: S) -> SetsInUse<'_, S, V> {
        let last = (self.ways - 1) % (8 * V);
        let all_ways = in_registers(simd, &SetsInUse::<S, V>::LANES_UP_TO[last]);
        SetsInUse { simd, sets: &mut self.sets, last, all_ways }
    }
}

/// Result of looking a line up in its set.
pub(super) enum Found {
    /// The line was at this position in the order of use, 0 the most recent.
    At(usize),
    /// The line was not in the set, and displaced `victim`.
    Missing { victim: Request },
}

impl Found {
    /// Returns the position at which the line was found, or `missing` if it was not.
    #[inline(always)]
    pub fn position(self, missing: usize) -> usize {
        match self {
            Found::At(position) => position,
            Found::Missing { .. } => missing,
        }
    }
}

/// Borrowed sets together with the constants that the vector code keeps in registers.
pub(super) struct SetsInUse<'a, S: Simd, const V: usize> {
    simd: S,
    sets: &'a mut [[Lanes; V]],
    last: usize,
    all_ways: [u32x8<S>; V],
}

impl<S: Simd, const V: usize> SetsInUse<'_, S, V> {
    const LANES_UP_TO: &'static [[Lanes; V]; 32] = &lanes_up_to::<V>();

    /// Makes the requested line the most recently used of its set, and returns its previous position or the line that it
    /// displaced. Without `REFRESH`, a write to a line that is present leaves the order unchanged.
    #[inline(always)]
    pub fn access<const REFRESH: bool>(&mut self, request: Request) -> Found {
        let set = &mut self.sets[(request >> 1) as usize & (self.sets.len() - 1)];
        // Most accesses are to the most recently used line of the set. This check keeps the next access from waiting for the
        // vectors.
        let front = set[0].0[0];
        if (front ^ request) & !DIRTY == 0 {
            if front & DIRTY < request & DIRTY {
                set[0].0[0] = request;
            }
            return Found::At(0);
        }
        let key = u32x8::splat(self.simd, request | DIRTY);
        let vectors = in_registers(self.simd, set);
        let mut lanes = 0;
        for (i, vector) in vectors.iter().enumerate() {
            lanes |= (*vector | DIRTY).simd_eq(key).to_bitmask() << (8 * i);
        }
        if lanes == 0 {
            let victim = set[self.last / 8].0[self.last % 8];
            // Lanes beyond the last way stay empty.
            Self::shift(self.simd, set, vectors, self.all_ways, request);
            return Found::Missing { victim };
        }
        let position = lanes.trailing_zeros() as usize % (8 * V);
        // The single entry is taken from memory: indexing the vectors would force them out of their registers.
        let entry = set[position / 8].0[position % 8];
        if REFRESH || request & DIRTY == 0 {
            let masks = in_registers(self.simd, &Self::LANES_UP_TO[position]);
            Self::shift(self.simd, set, vectors, masks, entry | request);
        } else {
            set[position / 8].0[position % 8] = entry | DIRTY;
        }
        Found::At(position)
    }

    /// Stores the set with the lanes in `masks` moved back by one and `front` put before them.
    #[inline(always)]
    fn shift(simd: S, set: &mut [Lanes; V], vectors: [u32x8<S>; V], masks: [u32x8<S>; V], front: Request) {
        let mut before = u32x8::splat(simd, front);
        for i in 0..V {
            let shifted = before.slide::<7>(vectors[i]);
            before = vectors[i];
            let blend = (shifted & masks[i]) | (vectors[i] & !masks[i]);
            blend.store_slice(&mut set[i].0);
        }
    }
}
