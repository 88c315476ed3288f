//! Useful cache blocks, which bound the cost of a preemption, computed from the trace of a task.

use super::Access;
use crate::geometry::Geometry;

/// Number of lines that a preemption can cost a task, for each access before which the preemption may come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsefulBlocks {
    /// For each access, the number of lines that are in the cache just before it and are hit later.
    pub at: Vec<u32>,
}

impl UsefulBlocks {
    /// Computes the useful cache blocks of a task that runs alone on an LRU cache: before access i, the lines in the cache
    /// whose next access is a hit. A preemption there costs at most one refill for each of them. [Lee1998, §3]
    pub fn of(accesses: &[Access], geometry: Geometry) -> UsefulBlocks {
        let shift = geometry.line_bytes.0.trailing_zeros();
        let ways = geometry.ways as usize;
        let mut sets: Vec<Vec<(u64, usize)>> = vec![Vec::new(); geometry.set_count as usize];
        // A line is useful between an access and the next hit: +1 after the access, -1 after the hit.
        let mut change = vec![0i64; accesses.len() + 1];
        for (time, access) in accesses.iter().enumerate() {
            for line in access.address >> shift..=access.last() >> shift {
                let set = &mut sets[(line % geometry.set_count) as usize];
                if let Some(position) = set.iter().position(|(found, _)| *found == line) {
                    let (_, previous) = set.remove(position);
                    change[previous + 1] += 1;
                    change[time + 1] -= 1;
                } else if set.len() == ways {
                    set.pop();
                }
                set.insert(0, (line, time));
            }
        }
        let mut useful = 0;
        let at = change[..accesses.len()].iter().map(|change| {
            useful += change;
            u32::try_from(useful).unwrap_or(u32::MAX)
        });
        UsefulBlocks { at: at.collect() }
    }

    /// Returns the largest number of useful blocks at any point: a bound on the preemption delay, in refills.
    pub fn most(&self) -> u32 {
        self.at.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Hierarchy, Level, Semantics};
    use crate::units::Bytes;
    use proptest::prelude::*;

    #[test]
    fn a_loop_that_fits_has_all_its_blocks_useful_in_the_middle() {
        let geometry = Geometry { set_count: 4, ways: 2, line_bytes: Bytes(32) };
        let accesses: Vec<Access> = (0..24).map(|i| Access::read(i % 8 * 32)).collect();
        let useful = UsefulBlocks::of(&accesses, geometry);
        assert_eq!(useful.most(), 8);
        // Before the first access the cache is empty. Before the last access only the line of that access will be used
        // again.
        assert_eq!((useful.at[0], useful.at[23]), (0, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// A preemption that empties the whole cache costs exactly the useful blocks at that point.
        #[test]
        fn emptying_the_cache_costs_the_useful_blocks(
            lines in proptest::collection::vec(0u64..30, 1..120),
            at in any::<proptest::sample::Index>(),
        ) {
            let geometry = Geometry { set_count: 4, ways: 2, line_bytes: Bytes(32) };
            let accesses: Vec<Access> = lines.iter().map(|line| Access::read(line * 32)).collect();
            let at = at.index(accesses.len());
            let misses = |accesses: &[Access], before: usize| {
                let level = || vec![Level::lru("L", geometry)];
                let mut hierarchy = Hierarchy::chain(level(), Semantics::default()).unwrap();
                let mut misses = 0;
                for (time, access) in accesses.iter().enumerate() {
                    if time == before {
                        misses += hierarchy.level_counts()[0].counts.read_misses;
                        hierarchy = Hierarchy::chain(level(), Semantics::default()).unwrap();
                    }
                    hierarchy.access(*access);
                }
                misses + hierarchy.level_counts()[0].counts.read_misses
            };
            let extra = misses(&accesses, at) - misses(&accesses, usize::MAX);
            prop_assert_eq!(u64::from(UsefulBlocks::of(&accesses, geometry).at[at]), extra);
        }
    }
}
