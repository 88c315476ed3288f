//! Flooding: access patterns that leave a cache in the worst state for another task.
//!
//! This module decides the pattern. Other modules carry it out, on real memory or on a modeled cache, and an experiment judges what
//! the pattern achieves on real memory.

pub mod parameters;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::geometry::Geometry;
use crate::named;
use crate::units::Bytes;

named! {
    /// A pattern of accesses that floods a cache.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Pattern, "a flood" {
        /// Writes every line, one after the other: the naive flooder of [Liedtke1997, §5.1]. ([`Flood`])
        Write = "write",
        /// Reads every line, one after the other, so that no refill has to write back a line. ([`Flood`])
        Read = "read",
        /// Leaves the state in which two write-backs precede each refill, if replacement is LRU. ([`DoublePurge`])
        DoublePurge = "double-purge",
        /// Writes more lines of a set in a row than it has ways, set after set, for the densest write-backs. ([`Storm`])
        Storm = "storm",
        /// Follows several chains of dependent loads in random order at once, for as many outstanding misses as the core supports.
        /// ([`Chains`])
        Chains = "chains",
    }
}

/// State in which a flood leaves the lines it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// The lines must be written back before they can be replaced.
    Dirty,
    /// The lines can be replaced at once.
    Clean,
}

/// One access of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Offset into the flooder's memory; it is the beginning of a line.
    pub offset: Bytes,
    /// Whether the access is a store.
    pub write: bool,
}

/// A flood of a whole memory area, line by line: the naive flooder of [Liedtke1997, §5.1].
///
/// With as many lines in each set as the cache has ways, each touched at least twice, the flood displaces everything else in these
/// sets under least-recently-used replacement. Under the usual approximations, twice as many lines do so. The patterns of Löser and
/// Härtig [Loeser1999, §3.2] for the state in which two write-backs precede each refill are in [`DoublePurge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood {
    /// Size of the area.
    pub area: Bytes,
    /// Bytes per line.
    pub line_bytes: Bytes,
    /// Number of times that the area is traversed.
    pub passes: u32,
    /// State of the lines after the flood.
    pub leaves: Leaves,
}

impl Flood {
    /// Returns the accesses, in order.
    pub fn accesses(self) -> impl Iterator<Item = Access> {
        let lines = self.area.0 / self.line_bytes.0.max(1);
        let write = self.leaves == Leaves::Dirty;
        (0..self.passes)
            .flat_map(move |_| (0..lines).map(move |line| Access { offset: Bytes(line * self.line_bytes.0), write }))
    }
}

/// A flood in which every store causes a write-back: it stores to all lines of the area that fall into one set, then to those of the
/// next set.
///
/// In the order of addresses, the stores to one set lie far apart. Here they follow each other: from the first line on that does not
/// fit, every store displaces a line that was written a moment before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    /// The cache, or the part of it that the area maps to.
    pub geometry: Geometry,
    /// Number of lines written in each set; must be more than the ways of the cache.
    pub depth: u32,
}

impl Storm {
    /// Returns the size of the area.
    pub fn area(self) -> Bytes {
        Bytes(self.geometry.set_count * u64::from(self.depth) * self.geometry.line_bytes.0)
    }

    /// Returns the accesses, in order.
    pub fn accesses(self) -> impl Iterator<Item = Access> {
        let Geometry { set_count, line_bytes, .. } = self.geometry;
        let line = move |set, x| Bytes((x * set_count + set) * line_bytes.0);
        (0..set_count)
            .flat_map(move |set| (0..u64::from(self.depth)).map(move |x| Access { offset: line(set, x), write: true }))
    }
}

/// A flood of loads in random order, several at once. Each chain is a cycle through lines of its own, in which every load waits for
/// the load before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chains {
    /// Numbers of the lines, chain after chain, in the order of the loads.
    order: Vec<u32>,
    line_bytes: Bytes,
    /// Number of lines of a chain; the last chain may have fewer.
    length: usize,
}

impl Chains {
    /// Creates at most `count` chains through an area of `lines` lines, all of about the same length. The same `seed` gives
    /// the same chains.
    pub fn new(lines: u32, line_bytes: Bytes, count: usize, seed: u64) -> Chains {
        let mut order: Vec<u32> = (0..lines).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        Chains { order, line_bytes, length: (lines as usize).div_ceil(count.max(1)).max(1) }
    }

    fn offset(&self, line: u32) -> Bytes {
        Bytes(u64::from(line) * self.line_bytes.0)
    }

    /// Returns the offset at which each chain begins.
    pub fn starts(&self) -> impl Iterator<Item = Bytes> {
        self.order.chunks(self.length).map(|chain| self.offset(chain[0]))
    }

    /// Returns the offset of each line, with the offset of the line that follows it in its chain.
    pub fn links(&self) -> impl Iterator<Item = (Bytes, Bytes)> {
        self.order.chunks(self.length).flat_map(|chain| {
            let next = chain.iter().cycle().skip(1);
            chain.iter().zip(next).map(|(line, next)| (self.offset(*line), self.offset(*next)))
        })
    }

    /// Returns the number of loads along each chain after which every line was loaded.
    pub fn steps(&self) -> usize {
        self.length
    }
}

/// A pattern for two levels after which every refill costs two write-backs. [Loeser1999, §3.2]
///
/// In this state an access finds its line in neither level. The victim of the first level is dirty and no longer in the second
/// level. All lines of the second level that could make room for this victim are dirty, and so is the second level's own victim.
/// This needs write-back levels with least-recently-used replacement, where a line of the first level need not be in the second.
///
/// Lines are named as in the paper: `Ax.y.z`, with z the index in the first level, y.z the index in the second, and x the
/// representative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoublePurge {
    first: Geometry,
    second: Geometry,
}

/// Reasons why a pair of levels does not admit the double-purge state for all lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDoublePurge {
    /// The first level is direct-mapped, so the second level holds every line that the first one holds.
    #[error(
        "a direct-mapped first level holds nothing that the second does not hold: the double-purge state cannot be reached"
    )]
    DirectMappedFirst,
    /// The second level is inclusive.
    #[error("an inclusive second level takes its victims out of the first: the double-purge state cannot be reached")]
    InclusiveSecond,
    /// A level is exclusive, so no line is in both levels.
    #[error("with an exclusive level every victim of the first enters the second: the pattern does not apply")]
    Exclusive,
    /// A level does not replace the least recently used line.
    #[error(
        "a level that is not replaced least recently used first follows no such pattern\n  hint: search for one and see its share"
    )]
    NotLru,
    /// A level is write-through.
    #[error("a write-through level has nothing to write back")]
    WriteThrough,
    /// The geometries do not split an address as the pattern assumes.
    #[error(
        "both levels need lines of one size, a power of two of sets, and the second at least four times the sets of the first"
    )]
    Shape,
}

impl DoublePurge {
    /// Creates the pattern for a first level of at least two ways and a second level of at least four times its sets, with lines of
    /// one size. Fails for other shapes.
    pub fn new(first: Geometry, second: Geometry) -> Result<DoublePurge, NoDoublePurge> {
        if first.ways < 2 {
            return Err(NoDoublePurge::DirectMappedFirst);
        }
        // Rows 0 and 1 belong to the flooder; at least one more row is needed to flood anything.
        let fits = first.line_bytes == second.line_bytes
            && first.set_count.is_power_of_two()
            && second.set_count.is_power_of_two()
            && second.set_count >= 4 * first.set_count;
        if fits && second.ways > 0 { Ok(DoublePurge { first, second }) } else { Err(NoDoublePurge::Shape) }
    }

    /// Limits the pattern to `rows` rows of the second level, at least four, for a flooder that is kept out of the other rows.
    pub fn within(self, rows: u64) -> Result<DoublePurge, NoDoublePurge> {
        if rows < 4 {
            return Err(NoDoublePurge::Shape);
        }
        Ok(DoublePurge { second: Geometry { set_count: rows * self.first.set_count, ..self.second }, ..self })
    }

    /// Returns the offset of line `Ax.y.z` into memory that is aligned to the second level's sets.
    pub fn offset(&self, x: u64, y: u64, z: u64) -> Bytes {
        Bytes((x * self.second.set_count + y * self.first.set_count + z) * self.first.line_bytes.0)
    }

    /// Returns the number of rows y: the sets of the second level per set of the first.
    pub fn rows(&self) -> u64 {
        self.second.set_count / self.first.set_count
    }

    /// Returns the size of the memory that the flooder needs: the representatives 0 to n1 + n2 - 2.
    pub fn area(&self) -> Bytes {
        self.offset(u64::from(self.first.ways + self.second.ways) - 1, 0, 0)
    }

    /// Returns the accesses of the general algorithm: first every line of rows 2 and up, n2 deep, then for each first-level
    /// set the lines that pin n1 - 1 modified lines in the first level while the second loses them. [Loeser1999, §3.2.2]
    ///
    /// Afterwards an access to any `Ax.y.z` with y > 1 and x >= n2 costs two writes and one read of memory. (The paper says
    /// x > 1, which holds for n2 <= 2: the flooder's own lines are those with x < n2.)
    pub fn accesses(self) -> impl Iterator<Item = Access> {
        let DoublePurge { first, second } = self;
        let (n1, n2) = (u64::from(first.ways), u64::from(second.ways));
        let write = move |x, y, z| Access { offset: self.offset(x, y, z), write: true };
        let fill = (0..n2)
            .flat_map(move |x| (2..self.rows()).flat_map(move |y| (0..first.set_count).map(move |z| write(x, y, z))));
        let purge = (0..first.set_count).flat_map(move |z| self.purge(z, n1, n2));
        fill.chain(purge)
    }

    /// Returns the accesses of the second step for one set of the first level, as the paper gives it for `n1` and `n2`
    /// ways.
    fn purge(self, z: u64, n1: u64, n2: u64) -> impl Iterator<Item = Access> {
        let write = move |x, y| Access { offset: self.offset(x, y, z), write: true };
        let pinned = move || (0..n1 - 1).map(move |x| write(x, 0));
        (0..n2)
            .flat_map(move |x| pinned().chain(std::iter::once(write(x + n1 - 1, 0))))
            .chain(pinned())
            .chain(std::iter::once(write(0, 1)))
    }

    /// Returns [`DoublePurge::accesses`], followed by `rounds` repetitions of the second step for all sets, as if the first level
    /// had `n1` ways and the second `n2`. If replacement is not LRU, more ways than the levels have and more rounds may come
    /// closer to the double-purge state.
    pub fn exaggerated(self, n1: u64, n2: u64, rounds: u32) -> impl Iterator<Item = Access> {
        let fill = self.accesses();
        let purge = move |_| (0..self.first.set_count).flat_map(move |z| self.purge(z, n1, n2));
        fill.chain((0..rounds).flat_map(purge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_touched_once_per_pass_in_order() {
        let flood = Flood { area: Bytes(256), line_bytes: Bytes(64), passes: 2, leaves: Leaves::Dirty };
        let offsets: Vec<u64> = flood.accesses().map(|a| a.offset.0).collect();
        assert_eq!(offsets, [0, 64, 128, 192, 0, 64, 128, 192]);
        assert!(flood.accesses().all(|a| a.write));
        assert!(Flood { leaves: Leaves::Clean, ..flood }.accesses().all(|a| !a.write));
    }

    fn levels(n1: u32, n2: u32) -> (Geometry, Geometry) {
        let level = |set_count, ways| Geometry { set_count, ways, line_bytes: Bytes(32) };
        (level(4, n1), level(32, n2))
    }

    #[test]
    fn the_general_flood_of_two_two_way_levels_is_the_papers_loop() {
        // [Loeser1999, §3.2.2]: for the 2-way L1 and L2, per z: A0.0, A1.0, A0.0, A2.0, A0.0, A0.1.
        let (first, second) = levels(2, 2);
        let flood = DoublePurge::new(first, second).unwrap();
        let accesses: Vec<Bytes> = flood.accesses().map(|access| access.offset).collect();
        let fill = 2 * 6 * 4;
        assert_eq!(accesses.len(), fill + 6 * 4);
        let expected = [(0, 0), (1, 0), (0, 0), (2, 0), (0, 0), (0, 1)].map(|(x, y)| flood.offset(x, y, 3));
        assert_eq!(accesses[fill + 3 * 6..], expected);
        assert!(accesses.iter().all(|offset| *offset < flood.area()));
    }

    #[test]
    fn shapes_without_a_double_purge_are_refused_with_the_reason() {
        let (first, second) = levels(1, 4);
        assert_eq!(DoublePurge::new(first, second), Err(NoDoublePurge::DirectMappedFirst));
        let (first, second) = levels(2, 4);
        assert_eq!(DoublePurge::new(second, first), Err(NoDoublePurge::Shape));
        let odd = Geometry { set_count: 48, ..second };
        assert_eq!(DoublePurge::new(first, odd), Err(NoDoublePurge::Shape));
    }

    #[test]
    fn a_storm_writes_every_line_once_and_each_set_in_a_row() {
        let geometry = Geometry { set_count: 4, ways: 2, line_bytes: Bytes(64) };
        let storm = Storm { geometry, depth: 3 };
        let sets: Vec<u64> = storm.accesses().map(|access| access.offset.0 / 64 % 4).collect();
        assert_eq!(sets, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        let mut offsets: Vec<u64> = storm.accesses().map(|access| access.offset.0).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, (0..12).map(|line| line * 64).collect::<Vec<_>>());
        assert!(storm.accesses().all(|access| access.write && access.offset < storm.area()));
    }

    #[test]
    fn chains_together_load_every_line() {
        for (lines, count) in [(1, 4), (10, 3), (64, 16), (100, 1)] {
            let chains = Chains::new(lines, Bytes(64), count, 7);
            let next: std::collections::BTreeMap<u64, u64> = chains.links().map(|(from, to)| (from.0, to.0)).collect();
            assert_eq!(next.len(), lines as usize);
            assert!(chains.starts().count() <= count);
            let mut seen = std::collections::BTreeSet::new();
            for start in chains.starts() {
                let mut offset = start.0;
                for _ in 0..chains.steps() {
                    seen.insert(offset);
                    offset = next[&offset];
                }
            }
            assert_eq!(seen.len(), lines as usize, "{lines} lines in {count} chains");
        }
    }

    #[test]
    fn a_flooder_kept_to_some_rows_writes_into_no_other() {
        let (first, second) = levels(2, 4);
        let flood = DoublePurge::new(first, second).unwrap().within(5).unwrap();
        assert_eq!((flood.rows(), flood.area()), (5, Bytes(5 * 5 * 4 * 32)));
        assert!(flood.accesses().all(|access| access.offset < flood.area()));
        assert_eq!(flood.within(3), Err(NoDoublePurge::Shape));
    }

    #[test]
    fn patterns_read_back_by_name() {
        for pattern in Pattern::ALL {
            assert_eq!(pattern.name().parse(), Ok(pattern));
        }
        assert!("writes".parse::<Pattern>().unwrap_err().to_string().contains("there are write"));
    }

    #[test]
    fn an_empty_area_is_no_flood() {
        let flood = Flood { area: Bytes(63), line_bytes: Bytes(64), passes: 3, leaves: Leaves::Clean };
        assert_eq!(flood.accesses().count(), 0);
    }
}
