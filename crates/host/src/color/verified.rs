//! Verification of pages that should be on color: samples of the pages, and the results of eviction tests.

use isochrome_model::stats::proportion_interval;
use schemars::JsonSchema;
use serde::Serialize;

use super::known::Page;

/// Size of a sample by which the pages of a process are verified.
pub const VERIFIED_PAGES: usize = 256;

/// Most samples that a verification takes while its result is not significant.
const SAMPLES_MAX: usize = 4;

/// Processes with at most this many pages are verified completely.
const VERIFIED_WHOLE: usize = 1024;

/// Result of eviction tests of a sample of pages that should be on color.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Verified {
    /// Number of pages with a decision.
    pub pages: usize,
    /// Number of these pages that are on color.
    #[serde(rename = "right")]
    pub on_color: usize,
    /// Number of further pages without a decision, because another CPU used them or they went away.
    pub undecided: usize,
}

impl Verified {
    /// Whether at least 99 % of the pages are on color.
    pub fn holds(&self) -> bool {
        100 * self.on_color >= 99 * self.pages
    }

    /// Whether significantly less than 99 % of the pages are on color: more pages of the sample are off color than chance explains.
    pub fn is_refuted(&self) -> bool {
        proportion_interval((self.pages - self.on_color) as u64, self.pages as u64).0 > 0.01
    }

    /// Whether the sample decides if at least 99 % of the pages are on color. It does not if slightly more than 1 % of the sample is off
    /// color.
    pub fn is_decided(&self) -> bool {
        self.holds() || self.is_refuted()
    }

    /// Adds the result for other pages.
    pub fn add(&mut self, other: Verified) {
        self.pages += other.pages;
        self.on_color += other.on_color;
        self.undecided += other.undecided;
    }
}

/// Result of a verification for the pages of one block of frames.
#[derive(Default)]
pub struct BlockTests {
    /// Number of pages on color.
    pub right: usize,
    /// Number of pages off color.
    pub wrong: usize,
}

impl BlockTests {
    /// Whether the block has the colors that it had. A single page of many may be off color by a wrong decision, or because the host has moved this
    /// page only. If the host had moved the block, half of the pages would be off color where half of the colors are allowed, and at most one of
    /// eight pages would be off color with a probability of 9 / 256.
    pub fn has_kept_its_colors(&self) -> bool {
        self.wrong <= 1 && self.right + self.wrong >= 8
    }
}

/// Draws disjoint samples of `pages` for a verification, each in ascending order: the first sample, and further samples to add while the
/// result is not decided ([`Verified::is_decided`]). A small number of pages is a single sample.
pub fn samples(pages: &[Page]) -> Vec<Vec<Page>> {
    if pages.len() <= VERIFIED_WHOLE {
        return if pages.is_empty() { Vec::new() } else { vec![pages.to_vec()] };
    }
    let mut drawn = pages.to_vec();
    fastrand::shuffle(&mut drawn);
    let mut samples: Vec<Vec<Page>> = drawn.chunks_exact(VERIFIED_PAGES).map(<[Page]>::to_vec).collect();
    samples.truncate(SAMPLES_MAX);
    samples.iter_mut().for_each(|sample| sample.sort_unstable_by_key(|(address, _)| *address));
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::pagemap::PageEntry;

    #[test]
    fn a_statement_in_doubt_takes_further_samples_of_other_pages() {
        let verified = |on_color, pages| Verified { on_color, pages, undecided: 0 };
        // 5 of 256 pages are 2 %. If 1 % of all pages are off color, chance explains 5 pages of the sample, but not 12.
        let decided =
            [(254, 256), (251, 256), (244, 256)].map(|(on_color, pages)| verified(on_color, pages).is_decided());
        assert_eq!(decided, [true, false, true]);
        let pages: Vec<Page> = (0..2000).map(|n| (4096 * n, PageEntry::default())).collect();
        let several = samples(&pages);
        let drawn: std::collections::BTreeSet<u64> = several.iter().flatten().map(|page| page.0).collect();
        assert_eq!((several.len(), drawn.len()), (4, 4 * VERIFIED_PAGES));
        assert_eq!(samples(&pages[..1024]).iter().map(Vec::len).collect::<Vec<_>>(), [1024]);
    }
}
