//! Misses against cache size, from one pass over a program.
//!
//! Under LRU a set of n ways holds what a set of n - 1 ways holds, so one list per set in the order of use tells for every
//! number of ways at once whether an access hits: at which position its line is found (its stack distance).

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

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

/// Counts stack distances for sets selected by line number modulo the sets.
#[derive(Clone, Debug)]
pub struct StackDistances {
    line_shift: u32,
    set_mask: u64,
    ways: usize,
    /// Per set its lines, most recently used first; absent ones are `EMPTY`.
    lines: Vec<u64>,
    /// How often a line was found at each position; the last counts those that were not found.
    found: Vec<u64>,
}

const EMPTY: u64 = u64::MAX;

impl StackDistances {
    /// Empty sets; distances up to the ways of the geometry are told apart.
    pub fn new(geometry: Geometry) -> Result<StackDistances, ConfigError> {
        let level = Level { index: super::Index::Bits, ..Level::lru("curve", geometry) };
        level.check()?;
        let ways = geometry.ways as usize;
        Ok(StackDistances {
            line_shift: geometry.line_bytes.0.trailing_zeros(),
            set_mask: geometry.set_count - 1,
            ways,
            lines: vec![EMPTY; geometry.set_count as usize * ways],
            found: vec![0; ways + 1],
        })
    }

    /// Counts some accesses.
    pub fn run(&mut self, accesses: &[Access]) {
        match self.ways {
            4 => self.run_fixed::<4>(accesses),
            8 => self.run_fixed::<8>(accesses),
            16 => self.run_fixed::<16>(accesses),
            _ => {
                for access in accesses {
                    for line in access.address >> self.line_shift..=access.last() >> self.line_shift {
                        let set = (line & self.set_mask) as usize * self.ways;
                        let lines = &mut self.lines[set..][..self.ways];
                        let position = lines.iter().position(|found| *found == line).unwrap_or(self.ways);
                        lines[..(position + 1).min(self.ways)].rotate_right(1);
                        lines[0] = line;
                        self.found[position] += 1;
                    }
                }
            }
        }
    }

    /// The same, for a number of ways the compiler knows.
    fn run_fixed<const WAYS: usize>(&mut self, accesses: &[Access]) {
        let (sets, _) = self.lines.as_chunks_mut::<WAYS>();
        for access in accesses {
            for line in access.address >> self.line_shift..=access.last() >> self.line_shift {
                let lines = &mut sets[(line & self.set_mask) as usize];
                if lines[0] == line {
                    self.found[0] += 1;
                    continue;
                }
                // Every line moves back by one until the place of the one looked for is free.
                let mut carried = line;
                let mut position = WAYS;
                for (i, place) in lines.iter_mut().enumerate() {
                    carried = std::mem::replace(place, carried);
                    if carried == line {
                        position = i;
                        break;
                    }
                }
                self.found[position] += 1;
            }
        }
    }

    /// The curve so far.
    pub fn curve(&self) -> MissCurve {
        let accesses: u64 = self.found.iter().sum();
        let mut misses = accesses;
        let misses_by_ways = std::iter::once(accesses)
            .chain(self.found[..self.ways].iter().map(|found| {
                misses -= found;
                misses
            }))
            .collect();
        MissCurve { accesses, misses_by_ways }
    }
}

/// Misses of every pair of set count (1, 2, 4... up to `1 << set_bits_max`) and ways (1 to `ways`), in one pass over the trace:
/// row i is `1 << i` sets, column j is j + 1 ways.
pub fn misses_by_sets_and_ways(
    accesses: &[Access],
    line_bytes: Bytes,
    set_bits_max: u32,
    ways: u32,
) -> Result<Vec<Vec<u64>>, ConfigError> {
    let geometry = |bits: u32| Geometry { set_count: 1 << bits.min(63), ways, line_bytes };
    let mut distances: Vec<StackDistances> =
        (0..=set_bits_max).map(|bits| StackDistances::new(geometry(bits))).collect::<Result<_, _>>()?;
    distances.par_iter_mut().for_each(|distances| distances.run(accesses));
    Ok(distances.iter().map(|distances| distances.curve().misses_by_ways[1..].to_vec()).collect())
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
            ways in 1u32..20,
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
    }
}
