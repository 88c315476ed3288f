//! The reference implementation of the hierarchy, which is slow and simple. Tests check that [`Hierarchy`] counts the same.
//!
//! It models a chain of levels with lines of one size, without sectors and masks. LRU, FIFO and tree-PLRU choose the victim
//! from the times of past uses and fills instead of from policy bits.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::geometry::Geometry;
use crate::units::Bytes;

const LINE: u64 = 64;

#[derive(Clone, Copy)]
struct Entry {
    line: u64,
    dirty: bool,
    filled: u64,
}

struct Set {
    ways: Vec<Option<Entry>>,
    /// Time of the last use of each way, no matter which line it held; 0 for a way that was never used.
    used: Vec<u64>,
    bits: BTreeSet<usize>,
    /// Age of each way, no matter which line it holds.
    ages: Vec<u8>,
}

struct NaiveLevel {
    level: Level,
    sets: Vec<Set>,
    counts: Counts,
    rng: fastrand::Rng,
}

struct ReferenceHierarchy {
    levels: Vec<NaiveLevel>,
    memory: MemoryCounts,
    semantics: Semantics,
    time: u64,
}

/// Halves `ways` down to one way, which is returned. Each step takes the less recently used half, or the left one if neither
/// was used.
fn older(used: &[u64], ways: std::ops::Range<usize>) -> usize {
    if ways.len() == 1 {
        return ways.start;
    }
    let middle = ways.start + ways.len() / 2;
    let newest = |range: std::ops::Range<usize>| used[range].iter().max().copied().unwrap();
    let left = newest(ways.start..middle) <= newest(middle..ways.end);
    older(used, if left { ways.start..middle } else { middle..ways.end })
}

impl ReferenceHierarchy {
    fn new(levels: Vec<Level>, semantics: Semantics) -> ReferenceHierarchy {
        let set = |level: &Level| Set {
            ways: vec![None; level.geometry.ways as usize],
            used: vec![0; level.geometry.ways as usize],
            bits: BTreeSet::new(),
            ages: vec![3; level.geometry.ways as usize],
        };
        let levels = levels.into_iter().map(|level| NaiveLevel {
            sets: (0..level.geometry.set_count).map(|_| set(&level)).collect(),
            counts: Counts::default(),
            rng: fastrand::Rng::with_seed(if let Policy::Random { seed } = level.policy { seed } else { 0 }),
            level,
        });
        ReferenceHierarchy { levels: levels.collect(), memory: MemoryCounts::default(), semantics, time: 0 }
    }

    fn set(&mut self, at: usize, line: u64) -> &mut Set {
        let sets = self.levels[at].sets.len() as u64;
        &mut self.levels[at].sets[(line % sets) as usize]
    }

    fn way(&mut self, at: usize, line: u64) -> Option<usize> {
        self.set(at, line).ways.iter().position(|entry| entry.is_some_and(|entry| entry.line == line))
    }

    fn age(&mut self, at: usize, line: u64, accessed: Option<usize>) {
        let Policy::Qlru(variant) = self.levels[at].level.policy else { return };
        let ages = &mut self.set(at, line).ages;
        let spares = matches!(variant.update, Update::ToThreeButAccessed | Update::ByOneButAccessed);
        let grows = |way: usize| !(spares && accessed == Some(way));
        let old =
            |ages: &[u8], counted: &dyn Fn(usize) -> bool| (0..ages.len()).any(|way| counted(way) && ages[way] == 3);
        let older = |ages: &mut Vec<u8>| (0..ages.len()).filter(|way| grows(*way)).for_each(|way| ages[way] += 1);
        match variant.update {
            Update::ToThree | Update::ToThreeButAccessed => {
                while (0..ages.len()).any(grows) && !old(ages, &grows) {
                    older(ages);
                }
            }
            Update::ByOne | Update::ByOneButAccessed => {
                if !old(ages, &|_| true) {
                    older(ages);
                }
            }
        }
    }

    fn touch(&mut self, at: usize, line: u64, way: usize, new: bool) {
        self.time += 1;
        let time = self.time;
        let policy = self.levels[at].level.policy;
        let rare = match policy {
            Policy::Qlru(Qlru { insertion: Insertion::Rarely { one_in, .. }, .. }) if new => {
                self.levels[at].rng.u8(0..one_in) == 0
            }
            _ => false,
        };
        let set = self.set(at, line);
        set.used[way] = time;
        set.bits.insert(way);
        if set.bits.len() == set.ways.len() {
            set.bits = BTreeSet::from([way]);
        }
        if let Policy::Qlru(variant) = policy {
            set.ages[way] = match (new, variant.insertion, set.ages[way]) {
                (true, Insertion::Age(age), _) => age,
                (true, Insertion::Rarely { age, .. }, _) if rare => age,
                (true, Insertion::Rarely { otherwise, .. }, _) => otherwise,
                (false, _, 3) => variant.hit[0],
                (false, _, 2) => variant.hit[1],
                (false, ..) => 0,
            };
            if !variant.on_miss_only {
                self.age(at, line, Some(way));
            }
        }
    }

    fn choose(&mut self, at: usize, line: u64) -> usize {
        let policy = self.levels[at].level.policy;
        if let Policy::Qlru(Qlru { on_miss_only: true, .. }) = policy {
            self.age(at, line, None);
        }
        let ways = self.levels[at].level.geometry.ways as usize;
        let random = if matches!(policy, Policy::Random { .. }) { self.levels[at].rng.usize(0..ways) } else { 0 };
        let set = self.set(at, line);
        match policy {
            Policy::Lru => (0..ways).min_by_key(|way| set.used[*way]).unwrap(),
            Policy::Fifo => (0..ways).min_by_key(|way| set.ways[*way].unwrap().filled).unwrap(),
            Policy::TreePlru => older(&set.used, 0..ways),
            Policy::BitPlru => (0..ways).find(|way| !set.bits.contains(way)).unwrap_or(0),
            Policy::Random { .. } => random,
            Policy::Qlru(_) => set.ages.iter().position(|age| *age == 3).unwrap_or(0),
        }
    }

    fn empty(&mut self, at: usize, line: u64) -> Option<usize> {
        let right = matches!(self.levels[at].level.policy, Policy::Qlru(Qlru { replacement: 2, .. }));
        let ways = &self.set(at, line).ways;
        if right { ways.iter().rposition(Option::is_none) } else { ways.iter().position(Option::is_none) }
    }

    fn drop_above(&mut self, at: usize, line: u64) {
        for above in (0..at).rev() {
            // The innermost copy leaves first, so that its newer contents are written over an older copy and not the other way
            // round.
            let inner = at - 1 - above;
            if let Some(way) = self.way(inner, line) {
                let entry = self.set(inner, line).ways[way].take().unwrap();
                if entry.dirty {
                    self.levels[inner].counts.writebacks += 1;
                    self.write(inner + 1, line, true, true);
                }
            }
        }
    }

    fn room(&mut self, at: usize, line: u64) -> usize {
        if let Some(way) = self.empty(at, line) {
            return way;
        }
        let way = self.choose(at, line);
        self.leave(at, line, way);
        way
    }

    fn leave(&mut self, at: usize, line: u64, way: usize) {
        let leaving = self.set(at, line).ways[way].unwrap().line;
        if self.levels[at].level.inclusion == Inclusion::Inclusive {
            self.drop_above(at, leaving);
        }
        let entry = self.set(at, line).ways[way].take().unwrap();
        let victim_cache = self.levels.get(at + 1).is_some_and(|below| below.level.inclusion == Inclusion::Exclusive);
        if entry.dirty {
            self.levels[at].counts.writebacks += 1;
            self.write(at + 1, entry.line, true, true);
        } else if victim_cache {
            self.write(at + 1, entry.line, true, false);
        }
    }

    fn bring(&mut self, at: usize, line: u64, fetch: bool, dirty: bool) {
        let first = self.semantics.write_back_first.then(|| self.room(at, line));
        let handed = fetch && self.read(at + 1, line);
        let way = first.unwrap_or_else(|| self.room(at, line));
        let filled = self.time + 1;
        self.set(at, line).ways[way] = Some(Entry { line, dirty: dirty || handed, filled });
        self.touch(at, line, way, true);
    }

    fn read(&mut self, at: usize, line: u64) -> bool {
        if at == self.levels.len() {
            self.memory.reads += 1;
            return false;
        }
        let exclusive = self.levels[at].level.inclusion == Inclusion::Exclusive;
        self.levels[at].counts.reads += 1;
        match self.way(at, line) {
            Some(way) if exclusive => self.set(at, line).ways[way].take().unwrap().dirty,
            Some(way) => {
                self.touch(at, line, way, false);
                false
            }
            None => {
                self.levels[at].counts.read_misses += 1;
                if exclusive {
                    return self.read(at + 1, line);
                }
                self.bring(at, line, true, false);
                false
            }
        }
    }

    /// Writes a line at level `at`. `back`: the whole line comes from the level above. `dirty`: false only for a clean line
    /// that is handed to a victim cache.
    fn write(&mut self, at: usize, line: u64, back: bool, dirty: bool) {
        if at == self.levels.len() {
            self.memory.writes += 1;
            return;
        }
        let (hit, miss) = (self.levels[at].level.write_hit, self.levels[at].level.write_miss);
        let through = hit == WriteHit::Through;
        self.levels[at].counts.writes += 1;
        if let Some(way) = self.way(at, line) {
            self.set(at, line).ways[way].as_mut().unwrap().dirty |= dirty && !through;
            if self.semantics.writes_refresh {
                self.touch(at, line, way, false);
            }
            if through {
                self.write(at + 1, line, back, dirty);
            }
            return;
        }
        self.levels[at].counts.write_misses += 1;
        let mut around = miss == WriteMiss::Around;
        if miss == WriteMiss::AllocateUnlessDirty && back && dirty && self.empty(at, line).is_none() {
            let way = self.choose(at, line);
            around = self.set(at, line).ways[way].unwrap().dirty;
            if !around {
                self.leave(at, line, way);
            }
        }
        if !around {
            let fetch = !back || dirty && self.semantics.write_backs_fetch;
            self.bring(at, line, fetch, dirty && !through);
        }
        if around || through {
            self.write(at + 1, line, back, dirty);
        }
    }

    fn counts(&self) -> (Vec<Counts>, MemoryCounts) {
        (self.levels.iter().map(|level| level.counts).collect(), self.memory)
    }
}

pub(super) fn policy() -> impl Strategy<Value = Policy> {
    let qlru = (0u8..3, 0u8..2, 0u8..4, 0u8..3, 0usize..4, any::<bool>(), any::<bool>()).prop_map(
        |(three, two, age, replacement, update, on_miss_only, rarely)| {
            let update = [Update::ToThree, Update::ToThreeButAccessed, Update::ByOne, Update::ByOneButAccessed][update];
            let insertion =
                if rarely { Insertion::Rarely { age, one_in: 3, otherwise: 2 } } else { Insertion::Age(age) };
            Policy::Qlru(Qlru { hit: [three, two], insertion, replacement, update, on_miss_only })
        },
    );
    prop_oneof![
        Just(Policy::Lru),
        Just(Policy::TreePlru),
        Just(Policy::BitPlru),
        Just(Policy::Fifo),
        any::<u64>().prop_map(|seed| Policy::Random { seed }),
        qlru,
    ]
}

fn level(inner: bool) -> impl Strategy<Value = Level> {
    let inclusion = if inner {
        Just(Inclusion::NonInclusive).boxed()
    } else {
        prop_oneof![Just(Inclusion::NonInclusive), Just(Inclusion::Inclusive), Just(Inclusion::Exclusive)].boxed()
    };
    (0u32..4, 1u64..7, policy(), any::<bool>(), 0u8..3, inclusion).prop_map(
        |(ways_log, set_count, policy, through, miss, inclusion)| Level {
            policy,
            inclusion,
            write_hit: if through && inclusion != Inclusion::Exclusive { WriteHit::Through } else { WriteHit::Back },
            write_miss: [WriteMiss::Allocate, WriteMiss::Around, WriteMiss::AllocateUnlessDirty][usize::from(miss)],
            ..Level::lru("", Geometry { set_count, ways: 1 << ways_log, line_bytes: Bytes(LINE) })
        },
    )
}

fn semantics() -> impl Strategy<Value = Semantics> {
    any::<[bool; 3]>().prop_map(|[writes_refresh, write_backs_fetch, write_back_first]| Semantics {
        writes_refresh,
        write_backs_fetch,
        write_back_first,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_machine_counts_as_its_reference_implementation(
        inner in level(true),
        outer in proptest::collection::vec(level(false), 0..3),
        semantics in semantics(),
        accesses in proptest::collection::vec((0u64..64, any::<bool>()), 1..600),
    ) {
        let levels: Vec<Level> = std::iter::once(inner).chain(outer).collect();
        let mut hierarchy = Hierarchy::chain(levels.clone(), semantics).unwrap();
        let mut reference = ReferenceHierarchy::new(levels, semantics);
        for (line, write) in accesses {
            let address = line * LINE;
            if write {
                hierarchy.access(Access::write(address));
                reference.write(0, line, false, true);
            } else {
                hierarchy.access(Access::read(address));
                reference.read(0, line);
            }
            let counts: Vec<Counts> = hierarchy.level_counts().into_iter().map(|level| level.counts).collect();
            prop_assert_eq!((counts, hierarchy.memory()), reference.counts());
        }
    }
}
