//! Tests and intervals of counts.

use statrs::distribution::{Binomial, ChiSquared, ContinuousCDF, DiscreteCDF};

/// How probable counts at least this uneven are if each count has the same expectation: the p-value of Pearson's
/// chi-square test against the uniform distribution, 0 to 1. Small means: not even.
///
/// `x = Σ (count - mean)² / mean` with one degree of freedom less than there are counts. Good from a mean of about 5
/// on. Fewer than two counts, or none above 0, cannot be uneven: 1.
pub fn chi_square_uniform(counts: &[u64]) -> f64 {
    let total: u64 = counts.iter().sum();
    if counts.len() < 2 || total == 0 {
        return 1.0;
    }
    let mean = total as f64 / counts.len() as f64;
    let x = counts.iter().map(|&count| (count as f64 - mean).powi(2) / mean).sum();
    ChiSquared::new((counts.len() - 1) as f64).map_or(1.0, |distribution| distribution.sf(x))
}

/// Where the probability of a success lies after `successes` of `n` trials: the 95 % interval of \[Wilson1927\], within 0 to 1; of
/// no trials it knows nothing.
///
/// Unlike the textbook's `p ± 1.96 sqrt(p (1 - p) / n)` it says something where all trials succeed, or none.
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

/// How probable at least `successes` of `n` trials are where success and failure are equally probable: the one-sided p-value of the
/// sign test, 0 to 1. Of no trials: 1.
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
        // 1/32, and (5 + 1)/32.
        assert!((sign_test(5, 5) - 1.0 / 32.0).abs() < 1e-12 && (sign_test(4, 5) - 6.0 / 32.0).abs() < 1e-12);
    }

    #[test]
    fn even_counts_look_even_and_uneven_ones_do_not() {
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
