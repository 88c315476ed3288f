//! Verifies colors by a test that does not use the eviction sets by which they were found.

use isochrome_model::units::Color;
use schemars::JsonSchema;
use serde::Serialize;

use super::Survey;

/// Least share of a page at which it counts as partly evicted: about three lines of a walk of 16. The memory that the tool and the kernel
/// touch has colors, too. It evicts a line or two if the pages under test fill all ways.
const LOST: f32 = 0.2;

/// Shares of a page lost in the test of one color by [`Survey::verify`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct VerifiedShares {
    /// Share lost with as many pages of the color as the cache has ways.
    pub fits: f32,
    /// Share lost with 1.5 times as many pages of the color as the cache has ways.
    pub thrashes: f32,
    /// Share lost with pages of every color, half as many of each as the cache has ways.
    pub spread: f32,
    /// Share lost without any other page.
    pub control: f32,
}

impl VerifiedShares {
    /// Whether the shares are those of one color: less than 0.2 above the control where pages fit, and 0.5 or more where they thrash.
    pub fn hold(self) -> bool {
        self.fits - self.control < LOST && self.spread - self.control < LOST && self.thrashes >= 0.5
    }
}

/// Result of [`Survey::verify`], with one entry per color.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Verification {
    /// Shares lost; `None` for a color with too few pages to test.
    pub shares: Vec<Option<VerifiedShares>>,
}

impl Verification {
    /// Returns the colors that failed or could not be tested.
    pub fn failed(&self) -> Vec<u32> {
        (0..).zip(&self.shares).filter(|(_, s)| !s.is_some_and(VerifiedShares::hold)).map(|(color, _)| color).collect()
    }

    /// Whether every color passed its test.
    pub fn holds(&self) -> bool {
        !self.shares.is_empty() && self.failed().is_empty()
    }

    /// Returns the worst share of each kind over all colors: the highest where pages fit, are spread, or in the control, and the lowest where
    /// they thrash.
    pub fn worst(&self) -> VerifiedShares {
        let tested = || self.shares.iter().flatten();
        VerifiedShares {
            fits: tested().map(|s| s.fits).fold(0.0, f32::max),
            thrashes: tested().map(|s| s.thrashes).fold(1.0, f32::min),
            spread: tested().map(|s| s.spread).fold(0.0, f32::max),
            control: tested().map(|s| s.control).fold(0.0, f32::max),
        }
    }
}

impl Survey {
    /// Tests every color without its eviction set, under three conditions. As many pages of the color as the cache has ways must fit, 1.5
    /// times as many must thrash, and half as many pages of *every* color as ways must fit together.
    ///
    /// A share that must be small is the lowest of several tests. A color that fails is tested again with other pages, a few times. Noise can
    /// make a true color fail, but nothing makes a false color pass.
    pub fn verify(&mut self) -> Verification {
        const TRIES: usize = 8;
        let colors = self.inference().page_colors;
        let members = |color: u16| -> Vec<u32> {
            (0u32..).zip(&colors).filter(|(_, c)| **c == Some(Color(color))).map(|(page, _)| page).collect()
        };
        let by_color: Vec<Vec<u32>> = (0..self.colors() as u16).map(members).collect();
        let shares = (0..by_color.len())
            .map(|color| {
                let mut shares = self.verify_color(color, &by_color);
                for _ in 1..TRIES {
                    if shares.is_none_or(|shares| shares.hold()) {
                        break;
                    }
                    shares = self.verify_color(color, &by_color);
                }
                shares
            })
            .collect();
        Verification { shares }
    }

    /// Tests one color once. Returns `None` if it has too few pages.
    fn verify_color(&mut self, color: usize, by_color: &[Vec<u32>]) -> Option<VerifiedShares> {
        let ways = self.target.geometry.ways as usize;
        let mut choose = |members: &[u32], count| self.rng.choose_multiple(members.iter().copied(), count);
        let chosen = choose(&by_color[color], ways + ways / 2);
        if chosen.len() < ways + ways / 2 {
            return None;
        }
        // Half as many pages of every color as the cache has ways. The page under test is among those of its own color.
        let mut spread = chosen[..ways / 2].to_vec();
        for (other, members) in by_color.iter().enumerate() {
            if other != color {
                spread.extend(choose(members, ways / 2));
            }
        }
        Some(VerifiedShares {
            fits: self.lost(&chosen[..ways]),
            thrashes: self.thrashed(&chosen),
            spread: self.lost(&spread),
            control: self.lost(&chosen[..1]),
        })
    }

    /// Returns the share of the first of `pages` that is evicted when all of them are traversed in turn.
    ///
    /// The result is the median of several tests, or 0 if no test counts. A test counts only if a following test of the page alone evicts next
    /// to nothing. The median removes replacement luck, and this control removes noise.
    fn thrashed(&mut self, pages: &[u32]) -> f32 {
        const TESTS: usize = 8;
        let (mut gone, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..2 * TESTS {
            self.eviction_test.run(pages, &pages[..1], 4, &mut shares);
            let share = shares[0];
            self.eviction_test.run(&pages[..1], &pages[..1], 4, &mut shares);
            if shares[0] < LOST {
                gone.push(share);
            }
            if gone.len() == TESTS {
                break;
            }
        }
        gone.sort_by(f32::total_cmp);
        gone.get(gone.len() / 2).copied().unwrap_or(0.0)
    }

    /// Returns the share of the first of `pages` that is evicted when all of them are traversed in turn: the lowest of several tests.
    fn lost(&mut self, pages: &[u32]) -> f32 {
        self.eviction_test.lowest(pages, pages[0], 4, 8, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::discovered;
    use crate::color::modeled::ModeledEvictionTest;

    #[test]
    fn verification_passes_true_colors_and_fails_false_ones() {
        let mut survey = discovered(ModeledEvictionTest::new(16, 8, 4096, 1)).unwrap();
        survey.classify(2048).unwrap();
        assert!(survey.verify().holds());
        // Groups that mix the colors: pages of one "color" no longer thrash.
        for (i, page) in survey.pages.iter_mut().enumerate() {
            for test in &mut page.tests {
                test.fill(0);
                test[i % 16] = 100;
            }
        }
        assert!(!survey.verify().holds());
    }
}
