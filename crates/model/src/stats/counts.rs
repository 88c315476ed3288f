//! Tests and intervals of counts.

use statrs::distribution::{Binomial, ChiSquared, ContinuousCDF, DiscreteCDF};

/// Returns the p-value of Pearson's chi-square test of `counts` against the uniform distribution, 0 to 1: the probability of
/// counts at least this uneven if all expectations are equal.
///
/// `x = Σ (count - mean)² / mean`, with one degree of freedom less than there are counts. The approximation is good from a mean
/// of about 5 on. Fewer than two counts, or counts that are all 0, cannot be uneven and give 1.
pub fn chi_square_uniform(counts: &[u64]) -> f64 {
    let total: u64 = counts.iter().sum();
    if counts.len() < 2 || total == 0 {
        return 1.0;
    }
    let mean = total as f64 / counts.len() as f64;
    let x = counts.iter().map(|&count| (count as f64 - mean).powi(2) / mean).sum();
    ChiSquared::new((counts.len() - 1) as f64).map_or(1.0, |distribution| distribution.sf(x))
}

/// Returns the 95 % interval of \[Wilson1927\] for the probability of a success after `successes` of `n` trials, within 0 to 1.
/// Without trials it is all of 0 to 1.
///
/// Unlike the textbook's `p ± 1.96 sqrt(p (1 - p) / n)` it is meaningful even if all trials succeed or all fail.
pub fn proportion_interval(successes: u64, n: u64) -> (f64, f64) {
    const Z: f64 = 1.959_963_984_540_054;
    if n == 0 {
        return (0.0, 1.0);
    }
    let n = n as f64;
    let (p, square) = (successes as f64 / n, Z * Z / n);
    let middle = (p + square / 2.0) / (1.0 + square);
    let half = Z * (p * (1.0 - p) / n + square / (4.0 * n)).max(0.0).sqrt() / (1.0 + square);
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

/// Returns the one-sided p-value of the sign test, 0 to 1: the probability of at least `successes` of `n` trials if success and
/// failure are equally probable. Without trials it is 1.
pub fn sign_test(successes: u64, n: u64) -> f64 {
    if successes == 0 {
        return 1.0;
    }
    Binomial::new(0.5, n).map_or(1.0, |distribution| distribution.sf(successes - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proportion_lies_within_its_interval_even_where_every_trial_succeeds() {
        // Wilson's interval for 8 of 10 is (0.490, 0.943); for 0 of 10 it ends at z²/(n + z²) = 0.2775.
        let (low, high) = proportion_interval(8, 10);
        assert!((low - 0.4902).abs() < 1e-4 && (high - 0.9433).abs() < 1e-4, "{low} {high}");
        let (low, high) = proportion_interval(0, 10);
        assert!(low == 0.0 && (high - 0.2775).abs() < 1e-4, "{low} {high}");
        assert_eq!(proportion_interval(0, 0), (0.0, 1.0));
    }

    #[test]
    fn the_sign_test_counts_the_outcomes_of_fair_coins() {
        assert_eq!((sign_test(0, 0), sign_test(0, 5)), (1.0, 1.0));
        // 5 of 5 successes have a probability of 1/32, and at least 4 of 5 have (5 + 1)/32.
        assert!((sign_test(5, 5) - 1.0 / 32.0).abs() < 1e-12 && (sign_test(4, 5) - 6.0 / 32.0).abs() < 1e-12);
    }

    #[test]
    fn even_counts_are_recognized_and_uneven_ones_are_not() {
        assert_eq!(chi_square_uniform(&[10, 10, 10]), 1.0);
        // x = (16 + 4 + 4) / 2 = 12 with 2 degrees: e^-6.
        assert!((chi_square_uniform(&[6, 0, 0]) - (-6.0f64).exp()).abs() < 1e-15);
        // x = (4 + 4) / 10 = 0.8 with 1 degree: erfc(√0.4) = 0.37109.
        assert!((chi_square_uniform(&[12, 8]) - 0.37109).abs() < 1e-5);
        assert!(chi_square_uniform(&[125, 130, 121, 124]) > 0.5);
        assert!(chi_square_uniform(&[125, 130, 60, 124]) < 1e-4);
        assert_eq!((chi_square_uniform(&[]), chi_square_uniform(&[7]), chi_square_uniform(&[0, 0])), (1.0, 1.0, 1.0));
    }
}
