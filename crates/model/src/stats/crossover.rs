//! Randomized crossovers: windows of two conditions in random order within blocks, on the same running program.
//!
//! The inference rests on the randomization alone. Without an effect, the values of a block's windows are the same whatever
//! conditions the windows were given, so every assignment of the conditions within the block was equally likely. The test compares
//! the assignment that was drawn with all others. Neither a distribution nor independence of the windows is assumed: a trend, a
//! disturbance of several windows and long tails make the test less powerful, not wrong. \[Ernst2004\]

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use super::SIGNIFICANT;

/// Number of windows above which the normal approximation replaces the exact distribution of the rank sum.
const EXACT_WINDOWS_MAX: usize = 160;

/// Number of halvings by which the ends of an interval are found: to a millionth of the range of all differences.
const HALVINGS: usize = 20;

/// Values of a block's windows: one positive number for each window in each of two conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossoverBlock {
    /// Values of the windows in the condition whose effect is examined.
    pub treated: Vec<f64>,
    /// Values of the windows in the other condition.
    pub control: Vec<f64>,
}

/// Share by which the values of treated windows differ from those of control windows.
///
/// The test is that of aligned ranks: logarithms are compared with the median of their block, and ranked over all blocks; the
/// statistic is the sum of the ranks of the treated windows. Its distribution is that over all assignments within the blocks. The
/// estimate is the shift that makes the sum what it is on average (Hodges and Lehmann), and the interval has all shifts that the
/// test does not reject. \[Hodges1962, Hodges1963\]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Crossover {
    /// Estimate of the difference, as a share of the value in the control condition: -0.1 is 10 % less.
    pub estimate: f64,
    /// All differences that the test does not reject at the level; `None` if too few blocks can reject any.
    pub interval: Option<[f64; 2]>,
    /// Probability of a rank sum at least as far out if there is no difference.
    pub p: f64,
    /// Number of blocks compared.
    pub blocks: u64,
}

impl Crossover {
    /// Returns the difference that `blocks` show, with the interval whose probability of missing the true one is at most `level`.
    ///
    /// Blocks that lack one of the conditions say nothing and are left out. `None` if no block is left. All values must be positive
    /// and finite.
    pub fn of(blocks: &[CrossoverBlock], level: f64) -> Option<Crossover> {
        let logs: Vec<CrossoverBlock> = blocks
            .iter()
            .filter(|block| !block.treated.is_empty() && !block.control.is_empty())
            .map(|block| {
                let ln = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
                CrossoverBlock { treated: ln(&block.treated), control: ln(&block.control) }
            })
            .collect();
        let differences =
            logs.iter().flat_map(|block| block.treated.iter().flat_map(|a| block.control.iter().map(move |b| a - b)));
        let (low, high) =
            differences.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), it| (low.min(it), high.max(it)));
        if low > high {
            return None;
        }
        assert!(low.is_finite() && high.is_finite(), "a value is not a positive number");
        // Beyond the outermost differences the ranks of all treated windows are lower, or higher, than those of their block.
        let beyond = 1e-9 + 1e-3 * (high - low);
        let (low, high) = (low - beyond, high + beyond);
        let estimate = (crossing(low, high, |shift| Ranks::of(&logs, shift).excess() > 0.0)
            + crossing(low, high, |shift| Ranks::of(&logs, shift).excess() >= 0.0))
            / 2.0;
        let p_at = |shift: f64| Ranks::of(&logs, shift).p();
        let p = p_at(0.0);
        let interval = (p_at(low) <= level && p_at(high) <= level).then(|| {
            let from = crossing(low, estimate, |shift| p_at(shift) <= level);
            let to = crossing(estimate, high, |shift| p_at(shift) > level);
            // The p-value is a step function of the shift and may rise again in a step: the interval must agree with the test of zero.
            if p > level { [from.min(0.0), to.max(0.0)] } else { [from, to] }
        });
        Some(Crossover {
            estimate: estimate.exp_m1(),
            interval: interval.map(|ends| ends.map(f64::exp_m1)),
            p,
            blocks: logs.len() as u64,
        })
    }

    /// Whether the interval leaves out zero, so that there is a difference.
    pub fn differs(&self) -> bool {
        self.interval.is_some_and(|[low, high]| low > 0.0 || high < 0.0)
    }

    /// Returns the largest difference, in either direction, that the interval does not rule out; `None` without an interval.
    pub fn at_most(&self) -> Option<f64> {
        self.interval.map(|[low, high]| low.abs().max(high.abs()))
    }
}

/// Returns the place between `low` and `high` at which `before` ceases to hold.
fn crossing(mut low: f64, mut high: f64, before: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if before(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Aligned ranks of all windows, block by block, after a shift was taken from the treated windows. Ranks are doubled, because shared
/// ranks can be halves.
struct Ranks {
    /// For each block, the ranks of its windows and the number of those windows, which come first, that are treated.
    blocks: Vec<(Vec<usize>, usize)>,
}

impl Ranks {
    fn of(blocks: &[CrossoverBlock], shift: f64) -> Ranks {
        let mut aligned: Vec<(f64, usize, usize)> = Vec::new();
        for (number, block) in blocks.iter().enumerate() {
            let values: Vec<f64> =
                block.treated.iter().map(|value| value - shift).chain(block.control.iter().copied()).collect();
            let center = super::median(&values).unwrap_or_default();
            aligned.extend(values.iter().enumerate().map(|(at, value)| (value - center, number, at)));
        }
        aligned.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut ranks: Vec<(Vec<usize>, usize)> = blocks
            .iter()
            .map(|block| (vec![0; block.treated.len() + block.control.len()], block.treated.len()))
            .collect();
        let mut before = 0;
        for equal in aligned.chunk_by(|a, b| a.0 == b.0) {
            let twice = 2 * before + equal.len() + 1;
            before += equal.len();
            equal.iter().for_each(|(_, block, at)| ranks[*block].0[*at] = twice);
        }
        Ranks { blocks: ranks }
    }

    /// Returns the sum of the ranks of the treated windows.
    fn sum(&self) -> usize {
        self.blocks.iter().map(|(ranks, treated)| ranks[..*treated].iter().sum::<usize>()).sum()
    }

    /// Returns by how much the sum is larger than it is on average.
    fn excess(&self) -> f64 {
        let of_block = |(ranks, treated): &(Vec<usize>, usize)| {
            ranks.iter().sum::<usize>() as f64 * *treated as f64 / ranks.len() as f64
        };
        self.sum() as f64 - self.blocks.iter().map(of_block).sum::<f64>()
    }

    /// Returns the two-sided p-value of the sum over all assignments within the blocks.
    fn p(&self) -> f64 {
        let sums: Vec<Vec<usize>> = self.blocks.iter().map(|(ranks, treated)| subset_sums(ranks, *treated)).collect();
        let windows: usize = self.blocks.iter().map(|(ranks, _)| ranks.len()).sum();
        if windows > EXACT_WINDOWS_MAX {
            return self.approximate_p(&sums);
        }
        let least: usize = sums.iter().filter_map(|sums| sums.iter().min()).sum();
        let mut probabilities = vec![1.0];
        for sums in &sums {
            let (low, high) = (sums.iter().min().copied().unwrap_or(0), sums.iter().max().copied().unwrap_or(0));
            let mut next = vec![0.0; probabilities.len() + high - low];
            let each = 1.0 / sums.len() as f64;
            for sum in sums {
                let shifted = &mut next[sum - low..][..probabilities.len()];
                shifted.iter_mut().zip(&probabilities).for_each(|(to, from)| *to += from * each);
            }
            probabilities = next;
        }
        let at = self.sum() - least;
        let below: f64 = probabilities[..=at].iter().sum();
        let above: f64 = probabilities[at..].iter().sum();
        (2.0 * below.min(above)).min(1.0)
    }

    /// Returns the p-value by the normal distribution of the same mean and variance, corrected for continuity.
    fn approximate_p(&self, sums: &[Vec<usize>]) -> f64 {
        let variance_of = |sums: &Vec<usize>| {
            let mean = sums.iter().sum::<usize>() as f64 / sums.len() as f64;
            sums.iter().map(|sum| (*sum as f64 - mean).powi(2)).sum::<f64>() / sums.len() as f64
        };
        let deviation = sums.iter().map(variance_of).sum::<f64>().sqrt();
        let z = (self.excess().abs() - 1.0).max(0.0) / deviation.max(f64::MIN_POSITIVE);
        (2.0 * Normal::standard().cdf(-z)).min(1.0)
    }
}

/// Returns the sum of each subset of `size` of the `ranks`.
fn subset_sums(ranks: &[usize], size: usize) -> Vec<usize> {
    if size == 0 {
        return vec![0];
    }
    let mut sums = Vec::new();
    for first in 0..=ranks.len() - size {
        sums.extend(subset_sums(&ranks[first + 1..], size - 1).into_iter().map(|sum| sum + ranks[first]));
    }
    sums
}

/// Interim looks at an experiment before its end, and the probability of a wrong claim that each look may spend.
///
/// The levels of all looks add up to [`SIGNIFICANT`]. A claim of any look is wrong only if the interval of that look misses the true
/// difference, so the probability of any wrong claim, of an effect or of none, is at most their sum, whatever rule stops the
/// experiment (Bonferroni's inequality). Later looks spend more, in the manner of O'Brien and Fleming.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Looks(Vec<Look>);

/// An interim look at an experiment that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Look {
    /// Number of blocks after which the look is taken.
    pub blocks: u64,
    /// Probability of a wrong claim that the look may spend.
    pub level: f64,
}

impl Looks {
    /// Shares of the blocks, in percent, and of the level at each look.
    const SPENT: [(u64, f64); 4] = [(40, 0.08), (60, 0.16), (80, 0.26), (100, 0.50)];

    /// Returns the looks at an experiment of at most `blocks` blocks.
    pub fn of(blocks: u64) -> Looks {
        let look = |(percent, share): (u64, f64)| Look {
            blocks: (blocks * percent).div_ceil(100).max(1),
            level: share * SIGNIFICANT,
        };
        let mut looks: Vec<Look> = Self::SPENT.map(look).to_vec();
        // Of looks after the same block the last one counts, with what the others would have spent.
        for at in (1..looks.len()).rev() {
            if looks[at].blocks == looks[at - 1].blocks {
                looks[at - 1].level += looks[at].level;
                looks.remove(at);
            }
        }
        Looks(looks)
    }

    /// Returns the planned looks in order.
    pub fn planned(&self) -> &[Look] {
        &self.0
    }

    /// Returns the look that is due after exactly `blocks` blocks.
    pub fn due(&self, blocks: u64) -> Option<Look> {
        self.0.iter().find(|look| look.blocks == blocks).copied()
    }

    /// Returns the look at an experiment that ended after `blocks` blocks, planned or not: the first one planned for this number of blocks or more.
    pub fn last(&self, blocks: u64) -> Look {
        let planned = self.0.iter().find(|look| look.blocks >= blocks).or(self.0.last());
        planned.copied().unwrap_or(Look { blocks, level: SIGNIFICANT })
    }
}

impl Look {
    /// Returns `p` corrected for the looks: at most [`SIGNIFICANT`] exactly if `p` is at most the level of this look. The smallest of the
    /// corrected values of all looks taken is a p-value again.
    pub fn corrected(&self, p: f64) -> f64 {
        (p * SIGNIFICANT / self.level).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(treated: &[f64], control: &[f64]) -> CrossoverBlock {
        let exp = |values: &[f64]| values.iter().map(|value| value.exp()).collect();
        CrossoverBlock { treated: exp(treated), control: exp(control) }
    }

    /// Returns the p-value by going through all assignments of all blocks, one by one.
    fn by_enumeration(ranks: &Ranks) -> f64 {
        let mut sums = vec![0];
        for (ranks, treated) in &ranks.blocks {
            let of_block = subset_sums(ranks, *treated);
            sums = sums.iter().flat_map(|sum| of_block.iter().map(move |more| sum + more)).collect();
        }
        let observed = ranks.sum();
        let share = |count: usize| count as f64 / sums.len() as f64;
        let below = share(sums.iter().filter(|sum| **sum <= observed).count());
        let above = share(sums.iter().filter(|sum| **sum >= observed).count());
        (2.0 * below.min(above)).min(1.0)
    }

    #[test]
    fn the_most_extreme_assignment_of_four_blocks_has_the_p_value_of_one_in_six_to_the_fourth() {
        // All treated windows are below all controls of their block: one assignment of 6^4, on either side.
        let blocks = vec![block(&[-1.0, -1.1], &[1.0, 1.2]); 4];
        let found = Crossover::of(&blocks, 0.05).unwrap();
        assert!((found.p - 2.0 / 1296.0).abs() < 1e-12, "{found:?}");
        // Of three blocks, 2/216 is not below a level of 0.005: no shift can be rejected.
        assert_eq!(Crossover::of(&blocks[..3], 0.005).unwrap().interval, None);
        assert_eq!(Crossover::of(&[], 0.05), None);
        // A block without one of the conditions says nothing.
        assert_eq!(Crossover::of(&[block(&[1.0], &[])], 0.05), None);
    }

    #[test]
    fn the_exact_distribution_is_that_of_all_assignments() {
        let mut rng = fastrand::Rng::with_seed(19);
        for _ in 0..50 {
            // Few different values, so that ranks are shared, and blocks of different sizes.
            let mut values = |n: usize| (0..n).map(|_| f64::from(rng.u8(..5))).collect::<Vec<f64>>();
            let blocks: Vec<CrossoverBlock> = [(2, 2), (1, 2), (2, 1), (1, 1), (2, 2)]
                .map(|(treated, control)| CrossoverBlock { treated: values(treated), control: values(control) })
                .to_vec();
            let ranks = Ranks::of(&blocks, 0.0);
            assert!((ranks.p() - by_enumeration(&ranks)).abs() < 1e-12);
        }
    }

    #[test]
    fn the_approximation_goes_on_where_the_exact_distribution_ends() {
        let mut rng = fastrand::Rng::with_seed(20);
        for _ in 0..5 {
            let mut values = |n: usize, more: f64| (0..n).map(|_| rng.f64() + more).collect::<Vec<f64>>();
            let blocks: Vec<CrossoverBlock> =
                (0..40).map(|_| CrossoverBlock { treated: values(2, 0.06), control: values(2, 0.0) }).collect();
            let ranks = Ranks::of(&blocks, 0.0);
            let sums: Vec<Vec<usize>> =
                ranks.blocks.iter().map(|(ranks, treated)| subset_sums(ranks, *treated)).collect();
            let (exact, approximate) = (ranks.p(), ranks.approximate_p(&sums));
            assert!((exact - approximate).abs() < 0.01, "{exact} {approximate}");
        }
    }

    #[test]
    fn a_difference_without_noise_is_estimated_as_it_is() {
        // Treated windows take 0.8 times as long, at levels that differ from block to block.
        let blocks: Vec<CrossoverBlock> = (1..=10)
            .map(|level| {
                let level = f64::from(level);
                CrossoverBlock { treated: vec![0.8 * level, 0.8 * level], control: vec![level, level] }
            })
            .collect();
        let found = Crossover::of(&blocks, 0.05).unwrap();
        let [low, high] = found.interval.unwrap();
        assert!((found.estimate + 0.2).abs() < 1e-3 && (low + 0.2).abs() < 1e-3 && (high + 0.2).abs() < 1e-3);
        assert!(found.differs() && (found.at_most().unwrap() - 0.2).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn equal_windows_are_no_evidence() {
        let found = Crossover::of(&vec![block(&[1.0, 1.0], &[1.0, 1.0]); 10], 0.05).unwrap();
        assert!(found.p == 1.0 && !found.differs() && found.estimate.abs() < 1e-6, "{found:?}");
        let [low, high] = found.interval.unwrap();
        assert!(low <= 0.0 && high >= 0.0 && found.at_most().unwrap() < 1e-6, "{found:?}");
    }

    #[test]
    fn the_levels_of_all_looks_are_that_of_one_test() {
        for blocks in [1, 2, 3, 5, 10, 11, 100] {
            let looks = Looks::of(blocks);
            let levels: f64 = looks.planned().iter().map(|look| look.level).sum();
            assert!((levels - SIGNIFICANT).abs() < 1e-12, "{looks:?}");
            assert_eq!(looks.planned().last().unwrap().blocks, blocks);
            assert!(looks.planned().windows(2).all(|pair| pair[0].blocks < pair[1].blocks), "{looks:?}");
        }
        let looks = Looks::of(10);
        assert_eq!(looks.planned().iter().map(|look| look.blocks).collect::<Vec<_>>(), [4, 6, 8, 10]);
        assert_eq!((looks.due(5), looks.due(6).unwrap().level), (None, 0.16 * SIGNIFICANT));
        // An experiment that was interrupted after five blocks spends what the look after six blocks would have.
        assert_eq!(looks.last(5).level, 0.16 * SIGNIFICANT);
        assert_eq!(looks.last(99).level, 0.5 * SIGNIFICANT);
        assert!((looks.last(6).corrected(0.008) - SIGNIFICANT).abs() < 1e-12);
    }
}
