//! Evaluates a flood by counting the memory transfers that one access causes after the flood.

use super::{Access, CacheId, ConfigError, Hierarchy, Inclusion, Level, MemoryCounts, Policy, Semantics, WriteHit};
use crate::flood::{self, DoublePurge, NoDoublePurge};

/// A model of two cache levels on which floods are tried.
#[derive(Clone, Debug)]
pub struct FloodCheck {
    hierarchy: Hierarchy,
    levels: [Level; 2],
}

/// Result of reading lines after a flood, each separately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FloodResult {
    /// Number of lines tried, each after the same flood.
    pub lines: u64,
    /// Number of tried lines that cost one memory read and two memory writes.
    pub double_purged: u64,
    /// Number of memory reads of all lines together.
    pub reads: u64,
    /// Number of memory writes of all lines together.
    pub writes: u64,
}

impl FloodResult {
    /// Returns the share (0 to 1) of the lines in the double-purge state.
    pub fn share(&self) -> f64 {
        self.double_purged as f64 / self.lines.max(1) as f64
    }
}

impl FloodCheck {
    /// Creates the two levels with empty caches.
    pub fn new(first: Level, second: Level, semantics: Semantics) -> Result<FloodCheck, ConfigError> {
        let hierarchy = Hierarchy::chain(vec![first.clone(), second.clone()], semantics)?;
        Ok(FloodCheck { hierarchy, levels: [first, second] })
    }

    /// Returns the double-purge pattern for these levels, or the reason why it does not exist.
    pub fn pattern(&self) -> Result<DoublePurge, NoDoublePurge> {
        let [first, second] = &self.levels;
        if second.inclusion == Inclusion::Inclusive {
            return Err(NoDoublePurge::InclusiveSecond);
        }
        if second.inclusion == Inclusion::Exclusive {
            return Err(NoDoublePurge::Exclusive);
        }
        if self.levels.iter().any(|level| level.write_hit == WriteHit::Through) {
            return Err(NoDoublePurge::WriteThrough);
        }
        let pattern = DoublePurge::new(first.geometry, second.geometry)?;
        if self.levels.iter().any(|level| level.policy != Policy::Lru) {
            Err(NoDoublePurge::NotLru)
        } else {
            Ok(pattern)
        }
    }

    /// Carries out a flood of the memory that begins at address 0.
    pub fn flood(&mut self, accesses: impl Iterator<Item = flood::Access>) {
        for flood::Access { offset, write } in accesses {
            self.hierarchy.access(if write { Access::write(offset.0) } else { Access::read(offset.0) });
        }
    }

    /// Returns the hierarchy in its present state, with the first and the second level.
    pub fn caches(&self) -> (&Hierarchy, [CacheId; 2]) {
        (&self.hierarchy, [CacheId(1), CacheId(0)])
    }

    /// Returns the memory transfers of one read of `address` in the present state, which does not change.
    pub fn cost(&self, address: u64) -> MemoryCounts {
        let mut after = self.hierarchy.clone();
        after.reset_counts();
        after.access(Access::read(address));
        after.memory()
    }

    /// Tries a read of each of the addresses separately, all in the present state, and sums the results up.
    pub fn check(&self, addresses: impl Iterator<Item = u64>) -> FloodResult {
        addresses.fold(FloodResult::default(), |sum, address| {
            let MemoryCounts { reads, writes } = self.cost(address);
            FloodResult {
                lines: sum.lines + 1,
                double_purged: sum.double_purged + u64::from((reads, writes) == (1, 2)),
                reads: sum.reads + reads,
                writes: sum.writes + writes,
            }
        })
    }

    /// Returns the addresses of all lines of representative `x` in rows 2 and up. As a victim, they share no line with the
    /// flooder if `x` exceeds the flooder's representatives.
    pub fn victims(&self, pattern: DoublePurge, x: u64) -> impl Iterator<Item = u64> + use<> {
        let sets = self.levels[0].geometry.set_count;
        (2..pattern.rows()).flat_map(move |y| (0..sets).map(move |z| pattern.offset(x, y, z).0))
    }

    /// Tries several exaggerations of the pattern, for levels that are not LRU, and returns the best one with its result.
    pub fn search(
        first: &Level,
        second: &Level,
        semantics: Semantics,
    ) -> Result<(Exaggeration, FloodResult), SearchError> {
        let pattern = DoublePurge::new(first.geometry, second.geometry)?;
        let (n1, n2) = (u64::from(first.geometry.ways), u64::from(second.geometry.ways));
        let mut best: Option<(Exaggeration, FloodResult)> = None;
        for more_first in 0..3 {
            for more_second in 0..3 {
                for rounds in [0, 1, 3] {
                    let tried =
                        Exaggeration { first_ways: n1 + more_first, second_ways: n2 + more_second * n2 / 2, rounds };
                    let mut check = FloodCheck::new(first.clone(), second.clone(), semantics)?;
                    check.flood(pattern.exaggerated(tried.first_ways, tried.second_ways, rounds));
                    let result = check.check(check.victims(pattern, 4 * (n1 + n2)));
                    if best.is_none_or(|(_, best)| result.double_purged > best.double_purged) {
                        best = Some((tried, result));
                    }
                }
            }
        }
        Ok(best.expect("something was tried"))
    }
}

/// Parameters of a pattern, which may exceed those that LRU needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exaggeration {
    /// Ways that the pattern assumes for the first level.
    pub first_ways: u64,
    /// Ways that the pattern assumes for the second level.
    pub second_ways: u64,
    /// Number of times that the second step is repeated.
    pub rounds: u32,
}

/// Reasons why no pattern could be searched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// The pattern does not exist for these levels.
    #[error(transparent)]
    None(#[from] NoDoublePurge),
    /// The levels cannot be modeled.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::{Flood, Leaves};
    use crate::geometry::Geometry;
    use crate::sim::WriteMiss;
    use crate::units::Bytes;

    const PAPER: Semantics = Semantics { writes_refresh: true, write_backs_fetch: false, write_back_first: true };

    fn level(name: &str, set_count: u64, ways: u32) -> Level {
        Level::lru(name, Geometry { set_count, ways, line_bytes: Bytes(32) })
    }

    /// Returns the second level that [Loeser1999, §3.2] assumes.
    fn second(set_count: u64, ways: u32) -> Level {
        Level { write_miss: WriteMiss::AllocateUnlessDirty, ..level("L2", set_count, ways) }
    }

    type Lines = &'static [(u64, u64)];

    /// One row of a table: the line (x, y) that is written, then the contents of L1[0], L2[0.0] and L2[2.0], least recently used
    /// first. Of L2[2.0] only modified lines are given.
    struct Step(u64, u64, [Lines; 3]);

    fn assert_follows(n2: u32, steps: &[Step]) {
        let mut check = FloodCheck::new(level("L1", 4, 2), second(32, n2), PAPER).unwrap();
        let pattern = check.pattern().unwrap();
        for (number, Step(x, y, [in_first, in_row_0, modified_in_row_2])) in (1..).zip(steps) {
            check.flood(std::iter::once(flood::Access { offset: pattern.offset(*x, *y, 0), write: true }));
            let (hierarchy, [first, second]) = check.caches();
            let lines =
                |lines: Vec<u64>| -> Vec<(u64, u64)> { lines.into_iter().map(|l| (l / 32, l % 32 / 4)).collect() };
            let order = |cache, set| lines(hierarchy.order(cache, set).unwrap());
            assert_eq!(order(first, 0), *in_first, "L1[0] after step {number}");
            assert_eq!(order(second, 0), *in_row_0, "L2[0.0] after step {number}");
            let mut modified = order(second, 8);
            modified.retain(|(x, y)| hierarchy.holds(second, pattern.offset(*x, *y, 0).0).unwrap().dirty);
            assert_eq!(modified, *modified_in_row_2, "L2[2.0] after step {number}");
        }
        for x in u64::from(n2)..u64::from(n2) + 3 {
            assert_eq!(check.cost(pattern.offset(x, 2, 0).0), MemoryCounts { reads: 1, writes: 2 }, "A{x}.2.0");
        }
    }

    #[test]
    fn table_1_step_by_step_on_a_direct_mapped_second_level() {
        // [Loeser1999, Table 1 and Figure 5].
        assert_follows(
            1,
            &[
                Step(0, 2, [&[(0, 2)], &[], &[]]),
                Step(0, 0, [&[(0, 2), (0, 0)], &[(0, 0)], &[]]),
                Step(1, 0, [&[(0, 0), (1, 0)], &[(1, 0)], &[(0, 2)]]),
                Step(0, 1, [&[(1, 0), (0, 1)], &[(0, 0)], &[(0, 2)]]),
            ],
        );
    }

    #[test]
    fn table_2_step_by_step_on_a_two_way_second_level() {
        // [Loeser1999, Table 2 and Figure 6].
        assert_follows(
            2,
            &[
                Step(0, 2, [&[(0, 2)], &[], &[]]),
                Step(1, 2, [&[(0, 2), (1, 2)], &[], &[]]),
                Step(0, 0, [&[(1, 2), (0, 0)], &[(0, 0)], &[(0, 2)]]),
                Step(1, 0, [&[(0, 0), (1, 0)], &[(0, 0), (1, 0)], &[(0, 2), (1, 2)]]),
                Step(0, 0, [&[(1, 0), (0, 0)], &[(0, 0), (1, 0)], &[(0, 2), (1, 2)]]),
                Step(2, 0, [&[(0, 0), (2, 0)], &[(1, 0), (2, 0)], &[(0, 2), (1, 2)]]),
                Step(0, 0, [&[(2, 0), (0, 0)], &[(1, 0), (2, 0)], &[(0, 2), (1, 2)]]),
                Step(0, 1, [&[(0, 0), (0, 1)], &[(1, 0), (2, 0)], &[(0, 2), (1, 2)]]),
            ],
        );
    }

    #[test]
    fn after_the_general_flood_every_other_line_costs_two_writes_and_one_read() {
        for n1 in 2..=8 {
            for n2 in 1..=16 {
                for write_back_first in [false, true] {
                    let semantics = Semantics { write_back_first, ..PAPER };
                    let mut check = FloodCheck::new(level("L1", 4, n1), second(32, n2), semantics).unwrap();
                    let pattern = check.pattern().unwrap();
                    check.flood(pattern.accesses());
                    for x in u64::from(n2)..u64::from(n2) + 3 {
                        let result = check.check(check.victims(pattern, x));
                        let expected = FloodResult { lines: 24, double_purged: 24, reads: 24, writes: 48 };
                        assert_eq!(result, expected, "n1 = {n1}, n2 = {n2}, x = {x}, {semantics:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn on_the_pentium_ii_the_naive_flooder_falls_short() {
        // [Loeser1999, §3.3]: 16 KiB and 512 KiB, both 4-way; 32-byte lines: 128 and 4096 sets.
        let flooded = |general: bool| {
            let mut check = FloodCheck::new(level("L1d", 128, 4), second(4096, 4), PAPER).unwrap();
            let pattern = check.pattern().unwrap();
            if general {
                check.flood(pattern.accesses());
            } else {
                let area = Bytes(2 << 20);
                check.flood(Flood { area, line_bytes: Bytes(32), passes: 2, leaves: Leaves::Dirty }.accesses());
            }
            check.check(check.victims(pattern, 100).step_by(16))
        };
        let (naive, general) = (flooded(false), flooded(true));
        assert_eq!((general.reads, general.writes), (general.lines, 2 * general.lines));
        // After the naive flood, every line of the first level is also in the second, so its write-back stays there. An access
        // costs one read and one write instead of one read and two writes.
        assert_eq!((naive.reads, naive.writes), (naive.lines, naive.lines));
        let transfers = |result: FloodResult| (result.reads + result.writes) as f64;
        println!(
            "the naive flood falls short of the general one by {:.0} % of the write-backs, {:.0} % of all transfers; the paper \
             measured up to 50 % of the execution time",
            100.0 * (1.0 - naive.writes as f64 / general.writes as f64),
            100.0 * (1.0 - transfers(naive) / transfers(general)),
        );
    }

    #[test]
    fn where_there_is_no_pattern_the_reason_is_given() {
        let check = |first: Level, second: Level| FloodCheck::new(first, second, PAPER).unwrap().pattern().unwrap_err();
        let inclusive = Level { inclusion: Inclusion::Inclusive, ..second(32, 4) };
        assert_eq!(check(level("L1", 4, 2), inclusive), NoDoublePurge::InclusiveSecond);
        assert_eq!(check(level("L1", 4, 1), second(32, 4)), NoDoublePurge::DirectMappedFirst);
        let plru = Level { policy: Policy::TreePlru, ..level("L1", 4, 4) };
        assert_eq!(check(plru, second(32, 4)), NoDoublePurge::NotLru);
        let through = Level { write_hit: WriteHit::Through, ..level("L1", 4, 4) };
        assert_eq!(check(through, second(32, 4)), NoDoublePurge::WriteThrough);
    }

    #[test]
    fn under_lru_the_search_finds_all_lines_and_under_other_policies_it_says_its_share() {
        let (lru, _) = (level("L1", 4, 4), ());
        let (_, result) = FloodCheck::search(&lru, &second(32, 4), PAPER).unwrap();
        assert_eq!(result.share(), 1.0);
        let plru = Level { policy: Policy::TreePlru, ..lru };
        let plru_second = Level { policy: Policy::TreePlru, ..second(32, 4) };
        let (tried, result) = FloodCheck::search(&plru, &plru_second, PAPER).unwrap();
        println!("tree-PLRU 4-way and 4-way: {:.0} % of the lines, with {tried:?}", 100.0 * result.share());
        assert_eq!(result.lines, 24);
    }
}
