//! Miss curves: misses against cache size, from one pass over a program.
//!
//! Under LRU, a set of n ways holds everything that a set of n - 1 ways holds. So one list per set in the order of use
//! tells for every number of ways whether an access hits: by the position at which its line is found (its stack distance).

use fearless_simd::{Simd, dispatch};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::recency::{BATCH, DIRTY, KEPT_BITS, Request, Requests, Sets, vectors};
use super::{Access, ConfigError, Level};
use crate::geometry::Geometry;
use crate::units::Bytes;

/// Misses of a program for each number of ways of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MissCurve {
    /// Number of accesses to lines.
    pub accesses: u64,
    /// Number of misses with 0, 1, 2... ways.
    pub misses_by_ways: Vec<u64>,
}

/// Counts stack distances for several numbers of sets at once. The set of a line is its number modulo the number of sets.
#[derive(Debug)]
pub struct StackDistances {
    line_shift: u32,
    set_counts: Vec<u64>,
    ways: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Vectors(Vectors),
    /// Used for more ways than the vectors have lanes, and for programs that touch too many regions.
    Lists(Vec<Lists>),
}

/// Number of accesses that are turned into requests at a time: few enough for the caches, and enough to be worth a dispatch to
/// every worker.
const CHUNK: usize = 1 << 15;

/// Most threads that are used. Further ones would wait for the requests, which a single thread prepares.
const THREADS_MAX: usize = 9;

/// Sets kept in vectors. While one thread turns accesses into requests, the others count the requests of the previous chunk,
/// each for its own share of the sets.
#[derive(Debug)]
struct Vectors {
    requests: Requests,
    parts: Box<dyn AnyParts>,
    /// Number of requests so far.
    taken: u64,
    /// Requests of the last chunk, which are not counted yet.
    ready: Vec<Request>,
    next: Vec<Request>,
}

impl Vectors {
    /// Counts accesses, except for those of the last chunk, and returns how many accesses were taken. Fewer than all are taken
    /// only if they touch too many regions.
    fn run(&mut self, accesses: &[Access]) -> usize {
        let Vectors { requests, parts, taken, ready, next } = self;
        let mut done = 0;
        for chunk in accesses.chunks(CHUNK) {
            next.clear();
            let prepare = || requests.each_batch(chunk, |batch| next.extend_from_slice(batch));
            let (prepared, ()) = rayon::join(prepare, || parts.run(ready));
            std::mem::swap(ready, next);
            *taken += ready.len() as u64;
            done += prepared;
            if prepared < chunk.len() {
                break;
            }
        }
        done
    }

    /// Counts the requests of the last chunk.
    fn finish(&mut self) {
        self.parts.run(&self.ready);
        self.ready.clear();
    }

    /// Returns, for each number of sets: how often a line was found at each position, followed by how often it was not found;
    /// and the entries, each set's least recently used first.
    fn state(&self, set_counts: &[u64], ways: usize) -> Vec<(Vec<u64>, Vec<Request>)> {
        let stacks = self.parts.stacks();
        let state = |set_count: &u64| {
            let (mut found, mut entries) = (vec![0; ways + 1], Vec::new());
            for (_, of_part, held) in stacks.iter().filter(|(of, ..)| of == set_count) {
                found.iter_mut().zip(*of_part).for_each(|(sum, found)| *sum += found);
                entries.extend(held);
            }
            found[0] = self.taken - found[1..].iter().sum::<u64>();
            (found, entries)
        };
        set_counts.iter().map(state).collect()
    }
}

/// The parts of all workers, independent of the number of vectors per set.
trait AnyParts: Send + Sync + std::fmt::Debug {
    fn run(&mut self, requests: &[Request]);
    /// Returns the contents of each stack, one for each number of sets or worker's share of it. The contents are: the number of sets; how often a
    /// line was found at each position but the first, and after the last way how often it was not found; and the entries, each set's least recently
    /// used first.
    fn stacks(&self) -> Vec<(u64, &[u64; 33], Vec<Request>)>;
}

/// All sets of one set count, or a worker's share of them, with how often a line was found at each position; the entry
/// behind the last way counts the misses.
#[derive(Debug)]
struct Stack<const V: usize> {
    set_count: u64,
    sets: Sets<V>,
    found: [u64; 33],
}

/// The share of one worker: one or several set counts, ascending, and the requests to its own sets.
#[derive(Debug)]
struct Part<const V: usize> {
    stacks: Vec<Stack<V>>,
    ways: usize,
    /// Bits of a request that decide to which worker it belongs: the request belongs to this worker if they equal those of
    /// `own`.
    own_mask: Request,
    own: Request,
}

impl<const V: usize> Part<V> {
    #[inline(always)]
    fn run_with<S: Simd>(&mut self, simd: S, requests: &[Request]) {
        for requests in requests.chunks(BATCH) {
            if self.own_mask == 0 {
                self.count(simd, requests);
                continue;
            }
            let mut own = [0; BATCH];
            let mut length = 0;
            for request in requests {
                // Every request is stored, but kept only if it belongs to this worker. This avoids a branch that could be
                // mispredicted.
                own[length % BATCH] = *request;
                length += usize::from(request & self.own_mask == self.own);
            }
            self.count(simd, &own[..length]);
        }
    }

    #[inline(always)]
    fn count<S: Simd>(&mut self, simd: S, requests: &[Request]) {
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
                // A line that is first in its set is also first in its set if there are more sets.
                if position == 0 {
                    break;
                }
            }
        }
    }
}

impl<const V: usize> AnyParts for Vec<Part<V>> {
    fn run(&mut self, requests: &[Request]) {
        self.par_iter_mut().for_each(|part| {
            dispatch!(fearless_simd::Level::new(), simd => part.run_with(simd, requests));
        });
    }

    fn stacks(&self) -> Vec<(u64, &[u64; 33], Vec<Request>)> {
        let stacks = self.iter().flat_map(|part| &part.stacks);
        stacks.map(|stack| (stack.set_count, &stack.found, stack.sets.entries().collect())).collect()
    }
}

/// The simple implementation, for any number of ways: a list of 64-bit line numbers per set.
#[derive(Debug)]
struct Lists {
    set_mask: u64,
    ways: usize,
    /// Lines of each set, most recently used first; empty ways are `EMPTY`.
    lines: Vec<u64>,
    /// How often a line was found at each position; the last element counts the lines that were not found.
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
    /// Creates a counter with empty sets. It distinguishes distances up to the ways of the geometry. The work is divided among
    /// rayon's threads; their number does not change the result.
    pub fn new(geometry: Geometry) -> Result<StackDistances, ConfigError> {
        let Geometry { set_count, ways, line_bytes } = geometry;
        StackDistances::of_set_counts(&[set_count], ways, line_bytes, rayon::current_num_threads())
    }

    /// Like [`new`](Self::new), but counts on one thread, for many instances side by side.
    pub(super) fn undivided(geometry: Geometry) -> Result<StackDistances, ConfigError> {
        StackDistances::of_set_counts(&[geometry.set_count], geometry.ways, geometry.line_bytes, 1)
    }

    /// Creates a counter for several numbers of sets, which must ascend.
    fn of_set_counts(
        set_counts: &[u64],
        ways: u32,
        line_bytes: Bytes,
        threads: usize,
    ) -> Result<StackDistances, ConfigError> {
        for set_count in set_counts {
            let geometry = Geometry { set_count: *set_count, ways, line_bytes };
            Level { index: super::Index::Bits, ..Level::lru("curve", geometry) }.check()?;
        }
        let line_shift = line_bytes.0.trailing_zeros();
        let fits = ways <= 32 && set_counts.iter().all(|sets| *sets <= 1 << KEPT_BITS);
        let state = if fits {
            let parts = any_parts(set_counts, ways, line_bytes, threads.clamp(1, THREADS_MAX));
            let requests = Requests::new(line_shift);
            State::Vectors(Vectors { requests, parts, taken: 0, ready: Vec::new(), next: Vec::new() })
        } else {
            State::Lists(set_counts.iter().map(|sets| Lists::new(*sets, ways as usize)).collect())
        };
        Ok(StackDistances { line_shift, set_counts: set_counts.to_vec(), ways: ways as usize, state })
    }

    /// Counts `accesses`.
    pub fn run(&mut self, accesses: &[Access]) {
        let mut left = accesses;
        if let State::Vectors(vectors) = &mut self.state {
            left = &accesses[vectors.run(accesses)..];
            if !left.is_empty() {
                vectors.finish();
                self.state = State::Lists(to_lists(vectors, self.ways, &self.set_counts));
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

    /// Returns the miss curve so far, for the first number of sets.
    pub fn curve(&mut self) -> MissCurve {
        self.curves().swap_remove(0)
    }

    /// Returns the miss curve so far, for each number of sets.
    fn curves(&mut self) -> Vec<MissCurve> {
        match &mut self.state {
            State::Vectors(vectors) => {
                vectors.finish();
                vectors.state(&self.set_counts, self.ways).iter().map(|(found, _)| curve(found)).collect()
            }
            State::Lists(lists) => lists.iter().map(|lists| curve(&lists.found)).collect(),
        }
    }
}

/// Builds a miss curve. `found`: how often a line was found at each position; the last element counts those that were not
/// found.
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

/// Divides the work among the threads. If there are several numbers of sets, each goes to one thread as a whole. The sets of a
/// single number are divided by their upper bits among all threads but the one that prepares requests.
fn any_parts(set_counts: &[u64], ways: u32, line_bytes: Bytes, threads: usize) -> Box<dyn AnyParts> {
    fn parts<const V: usize>(set_counts: &[u64], ways: u32, line_bytes: Bytes, threads: usize) -> Box<dyn AnyParts> {
        let stack = |set_count: u64, cut: u64| {
            let sets = Sets::new(Geometry { set_count: set_count / cut, ways, line_bytes });
            Stack { set_count, sets, found: [0; 33] }
        };
        let ways = ways as usize;
        let parts: Vec<Part<V>> = if let [set_count] = *set_counts {
            let cut = (1u64 << threads.saturating_sub(1).max(1).ilog2()).min(set_count);
            let own = |part: u64| (part * (set_count / cut)) as Request * 2;
            let part = |i| Part { stacks: vec![stack(set_count, cut)], ways, own_mask: own(cut - 1), own: own(i) };
            (0..cut).map(part).collect()
        } else {
            let dealt = |i| set_counts.iter().skip(i).step_by(threads);
            let part = |i| Part {
                stacks: dealt(i).map(|set_count| stack(*set_count, 1)).collect(),
                ways,
                own_mask: 0,
                own: 0,
            };
            (0..threads.min(set_counts.len())).map(part).collect()
        };
        Box::new(parts)
    }
    match vectors(ways) {
        1 => parts::<1>(set_counts, ways, line_bytes, threads),
        2 => parts::<2>(set_counts, ways, line_bytes, threads),
        _ => parts::<4>(set_counts, ways, line_bytes, threads),
    }
}

/// Converts the state of the vectors into lists with the same lines and counts.
fn to_lists(vectors: &Vectors, ways: usize, set_counts: &[u64]) -> Vec<Lists> {
    let lists = |((found, entries), set_count): ((Vec<u64>, Vec<Request>), &u64)| {
        let mut lists = Lists::new(*set_count, ways);
        vectors.requests.lines(entries.into_iter()).into_iter().for_each(|(line, _)| lists.access(line));
        Lists { found, ..lists }
    };
    vectors.state(set_counts, ways).into_iter().zip(set_counts).map(lists).collect()
}

/// Counts the misses of every pair of set count (1, 2, 4... up to `1 << set_bits_max`) and ways (1 to `ways`) in one pass over
/// the trace. Row i is for `1 << i` sets, column j for j + 1 ways.
pub fn misses_by_sets_and_ways(
    accesses: &[Access],
    line_bytes: Bytes,
    set_bits_max: u32,
    ways: u32,
) -> Result<Vec<Vec<u64>>, ConfigError> {
    let set_counts: Vec<u64> = (0..=set_bits_max).map(|bits| 1 << bits.min(63)).collect();
    let mut distances = StackDistances::of_set_counts(&set_counts, ways, line_bytes, rayon::current_num_threads())?;
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
        fn any_number_of_threads_counts_the_same(
            set_bits in 0u32..8,
            ways in 1u32..33,
            several: bool,
            accesses in proptest::collection::vec((0u64..100_000, 0u64..2500, 1u32..100), 1..1500),
            chunk in 1usize..600,
        ) {
            let set_counts: Vec<u64> = (if several { 0 } else { set_bits }..=set_bits).map(|bits| 1 << bits).collect();
            // Few regions, or more than vectors tell apart.
            let regions = if chunk % 2 == 0 { 3 } else { 2500 };
            let accesses: Vec<Access> = accesses
                .iter()
                .map(|(address, region, bytes)| (address + ((region % regions) << 26), *bytes))
                .map(|(address, bytes)| Access { bytes, ..Access::read(address) })
                .collect();
            let curves = |threads| {
                let mut distances = StackDistances::of_set_counts(&set_counts, ways, Bytes(64), threads).unwrap();
                let parts = match &distances.state {
                    State::Vectors(vectors) => vectors.parts.stacks().len(),
                    State::Lists(_) => 0,
                };
                accesses.chunks(chunk).for_each(|chunk| distances.run(chunk));
                (distances.curves(), parts)
            };
            let (alone, _) = curves(1);
            for threads in 2..10 {
                let (together, parts) = curves(threads);
                prop_assert_eq!(&together, &alone, "{} threads", threads);
                prop_assert!(several || set_bits == 0 || threads < 3 || parts > 1, "{} parts", parts);
            }
        }

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
            let mut distances = StackDistances::of_set_counts(&[1, 2, 4], 5, Bytes(64), 2).unwrap();
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
