//! Misses against cache size, from one pass over a program.
//!
//! Under LRU a set of n ways holds what a set of n - 1 ways holds, so one list per set in the order of use tells for every
//! number of ways at once whether an access hits: at which position its line is found (its stack distance).

use fearless_simd::{Simd, dispatch};
use serde::{Deserialize, Serialize};

use super::recency::{DIRTY, KEPT_BITS, Request, Requests, Sets, vectors};
use super::{Access, ConfigError, Level};
use crate::geometry::Geometry;
use crate::units::Bytes;

/// Misses of a program against its share of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissCurve {
    /// Accesses to lines.
    pub accesses: u64,
    /// Misses with 0, 1, 2... ways.
    pub misses_by_ways: Vec<u64>,
}

/// Counts stack distances for sets selected by line number modulo the sets, for several numbers of sets at once.
#[derive(Debug)]
pub struct StackDistances {
    line_shift: u32,
    set_counts: Vec<u64>,
    ways: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Vectors(Requests, Box<dyn AnyStacks>),
    /// For more ways than vectors have lanes, and for programs that roam too far.
    Lists(Vec<Lists>),
}

/// Stacks for several numbers of sets, whatever the number of ways.
trait AnyStacks: Send + std::fmt::Debug {
    fn run(&mut self, requests: &[Request]);
    /// For each number of sets: how often a line was found at each position and, last, not found; and the entries, each set's
    /// least recently used first.
    fn state(&self) -> Vec<(Vec<u64>, Vec<Request>)>;
}

/// A number of sets and how often a line was found at each position; behind the last way: not found.
#[derive(Debug)]
struct Stack<const V: usize> {
    sets: Sets<V>,
    found: [u64; 33],
}

/// The fewest sets first, each number a multiple of the one before.
#[derive(Debug)]
struct Stacks<const V: usize> {
    stacks: Vec<Stack<V>>,
    ways: usize,
}

impl<const V: usize> Stacks<V> {
    #[inline(always)]
    fn run_with<S: Simd>(&mut self, simd: S, requests: &[Request]) {
        let missing = self.ways;
        // All entries are dirty, so that requests of loads and stores look the same.
        let requests = requests.iter().map(|request| request | DIRTY);
        if let [stack] = &mut self.stacks[..] {
            let mut sets = stack.sets.with(simd);
            for request in requests {
                stack.found[sets.access::<true>(request).position(missing) % 33] += 1;
            }
            return;
        }
        let mut stacks: Vec<_> =
            self.stacks.iter_mut().map(|stack| (stack.sets.with(simd), &mut stack.found)).collect();
        for request in requests {
            for (sets, found) in &mut stacks {
                let position = sets.access::<true>(request).position(missing);
                found[position % 33] += 1;
                // The first among the lines of some sets is the first among fewer lines too.
                if position == 0 {
                    break;
                }
            }
        }
    }
}

impl<const V: usize> AnyStacks for Stacks<V> {
    fn run(&mut self, requests: &[Request]) {
        dispatch!(fearless_simd::Level::new(), simd => self.run_with(simd, requests));
    }

    fn state(&self) -> Vec<(Vec<u64>, Vec<Request>)> {
        let mut first_with_fewer_sets = 0;
        let state = |stack: &Stack<V>| {
            let mut found = stack.found[..=self.ways].to_vec();
            found[0] += first_with_fewer_sets;
            first_with_fewer_sets = found[0];
            (found, stack.sets.entries().collect())
        };
        self.stacks.iter().map(state).collect()
    }
}

/// The plain way: per set a list of lines of 64 bits.
#[derive(Debug)]
struct Lists {
    set_mask: u64,
    ways: usize,
    /// Per set its lines, most recently used first; absent ones are `EMPTY`.
    lines: Vec<u64>,
    /// How often a line was found at each position; the last counts those that were not found.
    found: Vec<u64>,
}

const EMPTY: u64 = u64::MAX;

impl Lists {
    fn new(sets: u64, ways: usize) -> Lists {
        Lists { set_mask: sets - 1, ways, lines: vec![EMPTY; sets as usize * ways], found: vec![0; ways + 1] }
    }

    fn access(&mut self, line: u64) {
        let set = (line & self.set_mask) as usize * self.ways;
        let lines = &mut self.lines[set..][..self.ways];
        let position = lines.iter().position(|found| *found == line).unwrap_or(self.ways);
        lines[..(position + 1).min(self.ways)].rotate_right(1);
        lines[0] = line;
        self.found[position] += 1;
    }
}

impl StackDistances {
    /// Empty sets; distances up to the ways of the geometry are told apart.
    pub fn new(geometry: Geometry) -> Result<StackDistances, ConfigError> {
        StackDistances::of_set_counts(&[geometry.set_count], geometry.ways, geometry.line_bytes)
    }

    /// For each of these numbers of sets, which ascend.
    fn of_set_counts(set_counts: &[u64], ways: u32, line_bytes: Bytes) -> Result<StackDistances, ConfigError> {
        for set_count in set_counts {
            let geometry = Geometry { set_count: *set_count, ways, line_bytes };
            Level { index: super::Index::Bits, ..Level::lru("curve", geometry) }.check()?;
        }
        let line_shift = line_bytes.0.trailing_zeros();
        let fits = ways <= 32 && set_counts.iter().all(|sets| *sets <= 1 << KEPT_BITS);
        let state = if fits {
            State::Vectors(Requests::new(line_shift), any_stacks(set_counts, ways, line_bytes))
        } else {
            State::Lists(set_counts.iter().map(|sets| Lists::new(*sets, ways as usize)).collect())
        };
        Ok(StackDistances { line_shift, set_counts: set_counts.to_vec(), ways: ways as usize, state })
    }

    /// Counts some accesses.
    pub fn run(&mut self, accesses: &[Access]) {
        let mut left = accesses;
        if let State::Vectors(requests, stacks) = &mut self.state {
            left = &accesses[requests.each_batch(accesses, |batch| stacks.run(batch))..];
            if !left.is_empty() {
                self.state = State::Lists(to_lists(requests, stacks.as_ref(), self.ways, &self.set_counts));
            }
        }
        if let State::Lists(lists) = &mut self.state {
            for access in left {
                for line in access.address >> self.line_shift..=access.last() >> self.line_shift {
                    lists.iter_mut().for_each(|lists| lists.access(line));
                }
            }
        }
    }

    /// The curve so far, of the first number of sets.
    pub fn curve(&self) -> MissCurve {
        self.curves().swap_remove(0)
    }

    /// The curve so far of each number of sets.
    fn curves(&self) -> Vec<MissCurve> {
        match &self.state {
            State::Vectors(_, stacks) => stacks.state().iter().map(|(found, _)| curve(found)).collect(),
            State::Lists(lists) => lists.iter().map(|lists| curve(&lists.found)).collect(),
        }
    }
}

/// `found`: how often a line was found at each position; the last counts those that were not found.
fn curve(found: &[u64]) -> MissCurve {
    let accesses: u64 = found.iter().sum();
    let mut misses = accesses;
    let mut without = |found: &u64| {
        misses -= found;
        misses
    };
    let misses_by_ways = std::iter::once(accesses).chain(found[..found.len() - 1].iter().map(&mut without)).collect();
    MissCurve { accesses, misses_by_ways }
}

fn any_stacks(set_counts: &[u64], ways: u32, line_bytes: Bytes) -> Box<dyn AnyStacks> {
    fn stacks<const V: usize>(set_counts: &[u64], ways: u32, line_bytes: Bytes) -> Box<dyn AnyStacks> {
        let sets = |set_count: &u64| Sets::new(Geometry { set_count: *set_count, ways, line_bytes });
        let stack = |set_count| Stack { sets: sets(set_count), found: [0; 33] };
        Box::new(Stacks::<V> { stacks: set_counts.iter().map(stack).collect(), ways: ways as usize })
    }
    match vectors(ways) {
        1 => stacks::<1>(set_counts, ways, line_bytes),
        2 => stacks::<2>(set_counts, ways, line_bytes),
        _ => stacks::<4>(set_counts, ways, line_bytes),
    }
}

/// The same lines and counts.
fn to_lists(requests: &Requests, stacks: &dyn AnyStacks, ways: usize, set_counts: &[u64]) -> Vec<Lists> {
    let lists = |((found, entries), set_count): ((Vec<u64>, Vec<Request>), &u64)| {
        let mut lists = Lists::new(*set_count, ways);
        requests.lines(entries.into_iter()).into_iter().for_each(|(line, _)| lists.access(line));
        Lists { found, ..lists }
    };
    stacks.state().into_iter().zip(set_counts).map(lists).collect()
}

/// Misses of every pair of set count (1, 2, 4... up to `1 << set_bits_max`) and ways (1 to `ways`), in one pass over the trace:
/// row i is `1 << i` sets, column j is j + 1 ways.
pub fn misses_by_sets_and_ways(
    accesses: &[Access],
    line_bytes: Bytes,
    set_bits_max: u32,
    ways: u32,
) -> Result<Vec<Vec<u64>>, ConfigError> {
    let set_counts: Vec<u64> = (0..=set_bits_max).map(|bits| 1 << bits.min(63)).collect();
    let mut distances = StackDistances::of_set_counts(&set_counts, ways, line_bytes)?;
    distances.run(accesses);
    Ok(distances.curves().into_iter().map(|curve| curve.misses_by_ways[1..].to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Hierarchy, Semantics};
    use proptest::prelude::*;

    fn misses(geometry: Geometry, accesses: &[Access]) -> u64 {
        let mut hierarchy = Hierarchy::chain(vec![Level::lru("L", geometry)], Semantics::default()).unwrap();
        accesses.iter().for_each(|access| hierarchy.access(*access));
        let counts = hierarchy.level_counts()[0].counts;
        counts.read_misses + counts.write_misses
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn one_pass_tells_the_misses_of_every_number_of_ways(
            ways in 1u32..40,
            accesses in proptest::collection::vec((0u64..10_000, 1u32..100), 1..1500),
        ) {
            let accesses: Vec<Access> = accesses.iter().map(|(address, bytes)| Access { bytes: *bytes, ..Access::read(*address) }).collect();
            let geometry = Geometry { set_count: 8, ways, line_bytes: Bytes(32) };
            let mut distances = StackDistances::new(geometry).unwrap();
            distances.run(&accesses);
            let curve = distances.curve();
            prop_assert_eq!(curve.misses_by_ways[0], curve.accesses);
            for ways in 1..=ways {
                prop_assert_eq!(curve.misses_by_ways[ways as usize], misses(Geometry { ways, ..geometry }, &accesses));
            }
        }

        #[test]
        fn lru_of_n_ways_contains_lru_of_n_minus_one(accesses in proptest::collection::vec(0u64..2000, 1..1500)) {
            let accesses: Vec<Access> = accesses.iter().map(|line| Access::read(line * 64)).collect();
            let table = misses_by_sets_and_ways(&accesses, Bytes(64), 5, 16).unwrap();
            for (bits, row) in table.iter().enumerate() {
                prop_assert!(row.windows(2).all(|pair| pair[1] <= pair[0]), "{row:?}");
                let geometry = Geometry { set_count: 1 << bits, ways: 3, line_bytes: Bytes(64) };
                prop_assert_eq!(row[2], misses(geometry, &accesses));
            }
        }

        /// Each region is 2^20 lines of 64 bytes; vectors tell 2047 of them apart.
        #[test]
        fn a_program_that_roams_the_whole_address_space_has_an_exact_curve(
            accesses in proptest::collection::vec((0u64..2500, 0u64..40), 6000..9000)
        ) {
            let accesses: Vec<Access> =
                accesses.into_iter().map(|(region, line)| Access::read(((region % (1 + line * line * line)) << 26) | (line << 6))).collect();
            let mut distances = StackDistances::of_set_counts(&[1, 2, 4], 5, Bytes(64)).unwrap();
            accesses.chunks(100).for_each(|chunk| distances.run(chunk));
            prop_assert!(matches!(distances.state, State::Lists(_)));
            for (bits, curve) in distances.curves().into_iter().enumerate() {
                for ways in 1..=5 {
                    let geometry = Geometry { set_count: 1 << bits, ways, line_bytes: Bytes(64) };
                    prop_assert_eq!(curve.misses_by_ways[ways as usize], misses(geometry, &accesses));
                }
            }
        }
    }
}
