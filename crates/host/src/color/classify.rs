//! Classifies pages by eviction tests, a batch at a time, until the color of each is decided.

use isochrome_model::palette::PageSample;
use isochrome_model::palette::infer::color_of_tests;
use isochrome_model::units::Color;

use super::eviction::{self, EvictionTest};

/// Number of pages that are classified together at first. A large batch shares the cost of a traversal, but pages of one color evict each
/// other if a batch has more of them than the cache has ways.
const BATCH: usize = 32;
/// Batch size in the rounds that confirm ambiguous pages.
const CONFIRMING_BATCH: usize = 8;
/// Number of rounds that confirm ambiguous pages.
pub(super) const CONFIRMING_ROUNDS: usize = 8;
/// Number of traversals of an eviction set in a test of a page to classify.
pub(crate) const PASSES: u32 = 3;

/// Returns the number of groups that are not exactly one color, and the number of all groups.
///
/// `cross[i][j]` is the share of a page of group i that the set of group j evicts. A group is contradicted if its own set spares its pages, or
/// if another set evicts them.
pub(super) fn contradictions(cross: &[Vec<f32>]) -> (usize, usize) {
    let contradicted = cross.iter().enumerate().filter(|(i, row)| {
        let spared_by_own = row[*i] < eviction::EVICTED / 2.0;
        let evicted_by_another = row.iter().enumerate().any(|(j, share)| j != *i && *share >= eviction::EVICTED);
        spared_by_own || evicted_by_another
    });
    (contradicted.count(), cross.len())
}

/// Tests each page of `open` once by every set, and adds the results to the page's sample.
pub(super) fn classify(
    eviction_test: &mut dyn EvictionTest,
    sets: &[Vec<u32>],
    open: &[u32],
    batch: usize,
    pages: &mut [PageSample],
) {
    let tests: Vec<(&[u32], &[u32])> =
        open.chunks(batch).flat_map(|targets| sets.iter().map(move |set| (set.as_slice(), targets))).collect();
    for page in open {
        pages[*page as usize].tests.push(Vec::with_capacity(sets.len()));
    }
    for ((_, targets), shares) in tests.iter().zip(eviction_test.run_all(&tests, PASSES)) {
        for (page, share) in targets.iter().zip(shares) {
            let tests = pages[*page as usize].tests.last_mut().expect("a test was begun for every page");
            tests.push((share * 100.0) as u8);
        }
    }
}

/// Tests each page of `open` until its color is decided or the rounds are used up. No page of `open` may be part of a set.
///
/// `set_colors`: the color of each set.
pub(super) fn classify_again(
    eviction_test: &mut dyn EvictionTest,
    sets: &[Vec<u32>],
    set_colors: &[Color],
    mut open: Vec<u32>,
    pages: &mut [PageSample],
    rng: &mut fastrand::Rng,
) {
    for round in 0..=CONFIRMING_ROUNDS {
        let batch = if round == 0 { BATCH } else { CONFIRMING_BATCH };
        classify(eviction_test, sets, &open, batch, pages);
        open.retain(|page| color_of_tests(&pages[*page as usize], set_colors).is_none());
        if open.is_empty() {
            break;
        }
        // The next round mixes the pages differently, so two pages that evicted each other are unlikely to meet again.
        rng.shuffle(&mut open);
    }
}

/// Returns, for groups i and j, the share of a page of group i that the set of group j evicts.
///
/// The share of a page is the lowest of several tests. The share of a group is the median over several of its pages.
pub(super) fn cross_evictions(eviction_test: &mut dyn EvictionTest, groups: &[Vec<u32>]) -> Vec<Vec<f32>> {
    const PAGES: usize = 3;
    const REPEATS: usize = 4;
    let mut shares = Vec::new();
    let mut pair = |target_group: &[u32], by: &[u32]| {
        let mut lows: Vec<f32> = target_group
            .iter()
            .take(PAGES)
            .map(|target| {
                // The target cannot be part of the set that is to evict it.
                let set: Vec<u32> = by.iter().copied().filter(|p| p != target).collect();
                (0..REPEATS)
                    .map(|_| {
                        eviction_test.run(&set, &[*target], PASSES, &mut shares);
                        shares[0]
                    })
                    .fold(1.0, f32::min)
            })
            .collect();
        lows.sort_by(f32::total_cmp);
        lows[lows.len() / 2]
    };
    groups.iter().map(|target| groups.iter().map(|by| pair(target, by)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradicted_bits_are_counted_per_color() {
        let clean = [[1.0, 0.0], [0.0, 1.0]].map(|row| row.to_vec());
        assert_eq!(contradictions(&clean), (0, 2));
        // Frame bits that mean nothing: no set evicts its own color.
        assert_eq!(contradictions(&[[0.1, 0.0], [0.0, 0.2]].map(|row| row.to_vec())), (2, 2));
        // Two colors by frame bits that are one color in the cache: the set of each evicts the pages of the other.
        assert_eq!(contradictions(&[[1.0, 0.9], [0.8, 1.0]].map(|row| row.to_vec())), (2, 2));
    }
}
