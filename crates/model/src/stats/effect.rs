//! Effects: paired differences per block, with confidence intervals and p-values, also for several effects together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

/// Largest p-value of a significant effect, and the probability that the interval of an [`Effect`] misses the true effect.
pub const SIGNIFICANT: f64 = 0.05;

/// Fewest blocks from which an effect can be significant.
pub const BLOCKS_MIN: u64 = 6;

/// Number of differences above which the normal approximation replaces the exact distribution.
const EXACT_MAX: usize = 60;

/// The typical difference between treatment and control over the blocks of a condition, with its 95 % confidence interval.
///
/// The estimate is that of Hodges and Lehmann, the median of the means of all pairs of differences. Interval and p-value are
/// those of Wilcoxon's signed-rank test. Rank sums are whole numbers, so an interval that ends at rank sums covers the effect
/// in somewhat more than 95 % of all cases; its ends are interpolated to 95 %. Interval and p-value assume only that the
/// differences are distributed symmetrically around the effect, as they are if the same noise affects treatment and control.
/// [Hollander1999, 3.1 to 3.3]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// Estimate of the effect, in the unit of the differences.
    pub estimate: f64,
    /// Confidence interval of 95 %; `None` for fewer than six differences, which cannot give one.
    pub interval: Option<[f64; 2]>,
    /// Probability of differences at least as far from zero if there is no effect.
    pub p: f64,
    /// Number of blocks compared.
    pub n: u64,
}

impl Effect {
    /// Returns the effect that `differences` show, one per block; `None` without differences. No difference may be NaN.
    pub fn of(differences: &[f64]) -> Option<Effect> {
        let means = pair_means(differences);
        let n = differences.len();
        let estimate = match means.len() {
            0 => return None,
            odd if odd % 2 == 1 => means[odd / 2],
            even => (means[even / 2 - 1] + means[even / 2]) / 2.0,
        };
        // The interval ends at the means beyond which the test would reject an effect.
        let interval = rejected_up_to(n).map(|(rejected, further)| {
            let between = |at: usize, next: usize| means[at] + further * (means[next] - means[at]);
            let last = means.len() - 1 - rejected;
            [between(rejected, rejected + 1), between(last, last - 1)]
        });
        Some(Effect { estimate, interval, p: signed_rank(differences), n: n as u64 })
    }

    /// Whether the p-value alone rules out an effect of zero, without correction for other effects.
    pub fn is_significant(&self) -> bool {
        self.p <= SIGNIFICANT
    }
}

/// Returns the p-values adjusted for being judged together, in the same order. If every effect with an adjusted p-value of at
/// most 0.05 is called significant, the probability that any such effect does not exist is at most 0.05. \[Holm1979\]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut highest: f64 = 0.0;
    for (rank, at) in order.into_iter().enumerate() {
        highest = highest.max((p.len() - rank) as f64 * p[at]).min(1.0);
        adjusted[at] = highest;
    }
    adjusted
}

/// Returns the fewest blocks from which each of `effects` effects can be significant when they are judged together. The smallest
/// p-value of the signed-rank test, `2 / 2^n`, must reach the level of the first step of Holm's method.
pub fn blocks_needed(effects: usize) -> u64 {
    (1.0 + (effects.max(1) as f64 / SIGNIFICANT).log2()).ceil() as u64
}

/// Returns the smallest effect, in standard deviations of the blocks' differences, that `blocks` blocks show in 80 % of all
/// experiments when `effects` effects are judged together. The signed-rank test needs π/3 times as many blocks as a test of the
/// mean of normal differences.
pub fn visible_effect(blocks: u64, effects: usize) -> f64 {
    let z = |p: f64| Normal::standard().inverse_cdf(p);
    let sum = z(1.0 - SIGNIFICANT / 2.0 / effects.max(1) as f64) + z(0.8);
    sum * (std::f64::consts::PI / 3.0 / blocks.max(1) as f64).sqrt()
}

/// Returns the means of all pairs of values, including each value with itself, ascending.
fn pair_means(values: &[f64]) -> Vec<f64> {
    assert!(values.iter().all(|value| !value.is_nan()), "a difference is NaN");
    let mut means = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (i, a) in values.iter().enumerate() {
        means.extend(values[i..].iter().map(|b| (a + b) / 2.0));
    }
    means.sort_unstable_by(f64::total_cmp);
    means
}

/// Returns the largest rank sum of `n` differences without ties at which the two-sided test still rejects. The second number is
/// the share (0 to 1) of the step to the next rank sum after which the level reaches [`SIGNIFICANT`]. `None` if the test never
/// rejects.
fn rejected_up_to(n: usize) -> Option<(usize, f64)> {
    if n > EXACT_MAX {
        let (mean, deviation) = moments(n);
        let sum = mean - z_975() * deviation;
        return Some((sum.floor() as usize, sum.fract()));
    }
    let ranks: Vec<usize> = (1..=n).map(|rank| 2 * rank).collect();
    let counts = sums(&ranks);
    let all: f64 = counts.iter().sum();
    let mut below = 0.0;
    for (sum, count) in counts.iter().step_by(2).enumerate() {
        let level = 2.0 * (below + count) / all;
        if level > SIGNIFICANT {
            let before = 2.0 * below / all;
            return sum.checked_sub(1).map(|rejected| (rejected, (SIGNIFICANT - before) / (level - before)));
        }
        below += count;
    }
    None
}

/// Returns mean and standard deviation of the rank sum of `n` differences without an effect.
fn moments(n: usize) -> (f64, f64) {
    let n = n as f64;
    (n * (n + 1.0) / 4.0, (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt())
}

fn z_975() -> f64 {
    Normal::standard().inverse_cdf(1.0 - SIGNIFICANT / 2.0)
}

/// Returns, for each sum, the number of subsets of `terms` that have it.
fn sums(terms: &[usize]) -> Vec<f64> {
    let mut counts = vec![0.0; terms.iter().sum::<usize>() + 1];
    counts[0] = 1.0;
    let mut reach = 0;
    for term in terms {
        reach += term;
        for sum in (*term..=reach).rev() {
            counts[sum] += counts[sum - term];
        }
    }
    counts
}

/// Returns the two-sided p-value of Wilcoxon's signed-rank test. Differences of equal size share their ranks. Differences of
/// zero take ranks, but count for neither side \[Pratt1959\]. The value is exact up to 60 differences, given the ranks.
fn signed_rank(differences: &[f64]) -> f64 {
    let mut sizes: Vec<(f64, bool)> =
        differences.iter().map(|difference| (difference.abs(), *difference > 0.0)).collect();
    sizes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    // Ranks are doubled, because shared ranks can be halves.
    let mut ranks = Vec::new();
    let (mut positive, mut at) = (0, 0);
    for equal in sizes.chunk_by(|a, b| a.0 == b.0) {
        let twice = 2 * at + equal.len() + 1;
        at += equal.len();
        if equal[0].0 > 0.0 {
            positive += twice * equal.iter().filter(|(_, is_positive)| *is_positive).count();
            ranks.extend(std::iter::repeat_n(twice, equal.len()));
        }
    }
    let total: usize = ranks.iter().sum();
    let smaller = positive.min(total - positive);
    if ranks.len() > EXACT_MAX {
        let deviation = ranks.iter().map(|rank| (*rank as f64).powi(2)).sum::<f64>().sqrt() / 2.0;
        // A rank sum is a whole number. Half a step, which is 1 in doubled ranks, is the correction for continuity.
        let z = (smaller as f64 + 1.0 - total as f64 / 2.0) / deviation;
        return (2.0 * Normal::standard().cdf(z)).min(1.0);
    }
    let counts = sums(&ranks);
    let all: f64 = counts.iter().sum();
    (2.0 * counts[..=smaller].iter().sum::<f64>() / all).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hamilton depression scale factors of nine patients before and after tranquilizers, an example of the textbook. The rank
    /// sum of the positive differences is 5, p is 0.0391, the estimate is -0.46, and the interval of 96.1 % from -0.786 to -0.010
    /// contains that of 95 %. [Hollander1999, examples 3.1, 3.3 and 3.4]
    const DEPRESSION: [f64; 9] = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];

    #[test]
    fn the_textbooks_example_comes_out_as_printed() {
        let effect = Effect::of(&DEPRESSION).unwrap();
        assert!((effect.p - 0.0391).abs() < 5e-5, "{effect:?}");
        assert!((effect.estimate + 0.46).abs() < 5e-3, "{effect:?}");
        let [low, high] = effect.interval.unwrap();
        // The next sum, 6, has a level of 0.0547 (28 of 512), so 0.05 is 0.7 of the way from 0.0391. The neighbors of the ends
        // are -0.771 and -0.0235.
        let means = pair_means(&DEPRESSION);
        assert!((means[5] + 0.786).abs() < 1e-9 && (means[39] + 0.010).abs() < 1e-9, "{means:?}");
        assert!((low - (means[5] + 0.7 * (means[6] - means[5]))).abs() < 1e-9, "{effect:?}");
        assert!((high - (means[39] - 0.7 * (means[39] - means[38]))).abs() < 1e-9, "{effect:?}");
        assert!(effect.is_significant());
    }

    #[test]
    fn five_differences_show_nothing_and_six_of_one_sign_do() {
        let five = Effect::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        // 2 of 32 assignments of signs are as extreme.
        assert_eq!((five.p, five.interval), (0.0625, None));
        let six = Effect::of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        assert_eq!((six.p, six.interval, six.estimate), (0.03125, Some([1.3, 5.7]), 3.5));
        assert_eq!(Effect::of(&[]), None);
    }

    #[test]
    fn equal_and_absent_differences_are_no_evidence() {
        assert_eq!(Effect::of(&[0.0; 10]).unwrap().p, 1.0);
        // Eight differences of 1 and eight of -1 have equal rank sums.
        let mut even = vec![1.0; 8];
        even.extend([-1.0; 8]);
        assert_eq!(Effect::of(&even).unwrap().p, 1.0);
        // For differences of the same size and sign, 2 of 2^10 assignments of signs are as extreme.
        assert_eq!(Effect::of(&[3.0; 10]).unwrap().p, 2.0 / 1024.0);
    }

    #[test]
    fn the_approximation_goes_on_where_the_exact_distribution_ends() {
        let mut rng = fastrand::Rng::with_seed(1);
        let many: Vec<f64> = (0..EXACT_MAX).map(|_| rng.f64() - 0.42).collect();
        let exact = signed_rank(&many);
        let ranks: Vec<usize> = (1..=EXACT_MAX).map(|rank| 2 * rank).collect();
        let deviation = ranks.iter().map(|rank| (*rank as f64).powi(2)).sum::<f64>().sqrt() / 2.0;
        let (mean, of_ranks) = moments(EXACT_MAX);
        assert!((deviation / 2.0 - of_ranks).abs() < 1e-9 && mean == 915.0);
        let mut sorted: Vec<f64> = many.clone();
        sorted.sort_unstable_by(|a, b| a.abs().total_cmp(&b.abs()));
        let positive: usize = (1..).zip(&sorted).filter(|(_, value)| **value > 0.0).map(|(rank, _)| rank).sum();
        let z = (positive.min(1830 - positive) as f64 + 0.5 - mean) / of_ranks;
        assert!((2.0 * Normal::standard().cdf(z) - exact).abs() < 0.002, "{exact}");
    }

    #[test]
    fn holms_correction_is_that_of_the_paper() {
        // Of four p-values, the smallest is multiplied by 4 and the next by 3. No adjusted value is lower than that of a
        // smaller p-value.
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(adjusted.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{adjusted:?}");
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }
}
