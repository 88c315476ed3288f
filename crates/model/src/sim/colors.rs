//! Misses against the number of page colors, in one pass over a program.

use std::collections::HashMap;

use rayon::prelude::*;

use super::{Access, ConfigError, Index, Level, StackDistances};
use crate::geometry::Geometry;
use crate::units::Bytes;

/// Most numbers of colors that are tried.
const COUNTS_MAX: u64 = 32;
/// Most lines of all caches together. As 64-bit line numbers they take half a GiB.
const LINES_MAX: u64 = 1 << 26;
/// Number of accesses that are counted at a time.
const BATCH: usize = 1 << 16;

/// Counts the misses of a program that is given some of a level's colors, for several numbers of colors at once, under LRU.
///
/// The program's pages are given the colors in turn, in the order in which they are first touched: with k colors, page i gets
/// color i modulo k, and the sets of these k colors belong to the program. The accesses are not kept.
#[derive(Debug)]
pub struct ColorCurve {
    page_shift: u32,
    ways: usize,
    pages: HashMap<u64, u64>,
    /// Accesses not counted yet, with the number of the page in place of its address.
    pending: Vec<Access>,
    tried: Vec<Tried>,
}

#[derive(Debug)]
struct Tried {
    colors: u64,
    /// `colors` rounded up to a power of two: the number of colors of the cache in which this number is tried.
    span: u64,
    distances: StackDistances,
    batch: Vec<Access>,
}

impl ColorCurve {
    /// Creates a curve over all numbers of colors of `geometry`; if there are more than 32, over at most 32 numbers at equal
    /// distances, up to all colors.
    pub fn new(geometry: Geometry, page_bytes: Bytes) -> Result<ColorCurve, ConfigError> {
        let wrong = |what: String| Err(ConfigError::Hierarchy { what });
        if !page_bytes.0.is_power_of_two() || page_bytes.0 < geometry.line_bytes.0 {
            return wrong("a page is a power of two of at least one line".to_owned());
        }
        Level { index: Index::Bits, ..Level::lru("curve", geometry) }.check()?;
        let colors = u64::from(geometry.color_count(page_bytes));
        let step = colors.div_ceil(COUNTS_MAX);
        let mut counts: Vec<u64> = (0..colors.div_ceil(step)).map(|i| colors - i * step).collect();
        counts.reverse();
        let shape =
            |count: u64| Geometry { set_count: geometry.set_count / colors * count.next_power_of_two(), ..geometry };
        let lines: u64 = counts.iter().map(|count| shape(*count).set_count * u64::from(geometry.ways)).sum();
        if lines > LINES_MAX {
            return wrong(format!(
                "curves over {} numbers of colors take {lines} lines, more than {LINES_MAX}",
                counts.len()
            ));
        }
        let tried = counts.into_iter().map(|colors| {
            let distances = StackDistances::undivided(shape(colors))?;
            Ok(Tried { colors, span: colors.next_power_of_two(), distances, batch: Vec::new() })
        });
        Ok(ColorCurve {
            page_shift: page_bytes.0.trailing_zeros(),
            ways: geometry.ways as usize,
            pages: HashMap::new(),
            pending: Vec::with_capacity(BATCH),
            tried: tried.collect::<Result<_, _>>()?,
        })
    }

    /// Counts `accesses`.
    pub fn run(&mut self, accesses: &[Access]) {
        let shift = self.page_shift;
        for part in accesses.iter().flat_map(|access| access.by_pages(shift)) {
            let next = self.pages.len() as u64;
            let page = *self.pages.entry(part.address >> shift).or_insert(next);
            self.pending.push(Access { address: page << shift | part.address & ((1 << shift) - 1), ..part });
            if self.pending.len() >= BATCH {
                self.count();
            }
        }
    }

    fn count(&mut self) {
        let (pending, shift) = (&self.pending, self.page_shift);
        self.tried.par_iter_mut().for_each(|Tried { colors, span, distances, batch }| {
            batch.clear();
            batch.extend(pending.iter().map(|access| {
                let page = access.address >> shift;
                let frame = page / *colors * *span + page % *colors;
                Access { address: frame << shift | access.address & ((1 << shift) - 1), ..*access }
            }));
            distances.run(batch);
        });
        self.pending.clear();
    }

    /// Returns each number of colors that was tried, with the misses.
    pub fn misses(&mut self) -> Vec<(u32, u64)> {
        self.count();
        let ways = self.ways;
        let misses = |tried: &mut Tried| (tried.colors as u32, tried.distances.curve().misses_by_ways[ways]);
        self.tried.iter_mut().map(misses).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Allocation, Hierarchy, PageTable, Semantics};
    use crate::units::Color;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn colors_are_sets_of_their_own(accesses in proptest::collection::vec((0u64..400_000, 1u32..300), 1..1500)) {
            let accesses: Vec<Access> =
                accesses.into_iter().map(|(address, bytes)| Access { bytes, ..Access::read(address) }).collect();
            // 64 KiB 2-way: 8 colors of 64 sets.
            let geometry = Geometry { set_count: 512, ways: 2, line_bytes: Bytes(64) };
            let mut curve = ColorCurve::new(geometry, Bytes(4096)).unwrap();
            accesses.chunks(100).for_each(|chunk| curve.run(chunk));
            let found = curve.misses();
            prop_assert_eq!(found.len(), 8);
            for (colors, misses) in found {
                let granted = (0..colors as u16).map(Color).collect();
                let mut table = PageTable::new(Bytes(4096), Allocation::Colored { colors: granted, color_count: 8 });
                let mut cache = Hierarchy::chain(vec![Level::lru("L", geometry)], Semantics::default()).unwrap();
                for part in accesses.iter().flat_map(|access| access.by_pages(12)) {
                    cache.access(table.translate(part));
                }
                prop_assert_eq!(misses, cache.memory().reads, "{} colors", colors);
            }
        }
    }

    #[test]
    fn of_many_colors_32_are_tried_and_all_of_them_last() {
        let geometry = Geometry::of_size(Bytes(32 << 20), 16, Bytes(64)).unwrap();
        let tried = ColorCurve::new(geometry, Bytes(4096)).unwrap().misses();
        assert_eq!((tried.len(), tried[0].0, tried[31].0), (32, 16, 512));
        let huge = Geometry::of_size(Bytes(4 << 30), 16, Bytes(64)).unwrap();
        assert!(ColorCurve::new(huge, Bytes(4096)).unwrap_err().to_string().contains("more than"));
    }
}
