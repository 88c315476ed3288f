//! Straight lines through measured points.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, FisherSnedecor, StudentsT};

/// A straight line fitted to measured points by least squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// Increase of y per unit of x.
    pub slope: f64,
    /// Value of y at x = 0.
    pub intercept: f64,
    /// Half the width of the slope's 95 % confidence interval. It is valid for errors that are independent and alike at every x.
    pub slope_error: f64,
    /// Half the width of the intercept's 95 % confidence interval.
    #[serde(default)]
    pub intercept_error: f64,
    /// Share of y's variance that x explains, 0 to 1.
    pub r_squared: f64,
    /// Number of points.
    pub n: u64,
}

impl Line {
    /// Returns the line through `points` (x, y); `None` for fewer than three points, or if all x or all y are equal.
    ///
    /// `slope = Σ(x - x̄)(y - ȳ) / Σ(x - x̄)²`. Its standard error `sqrt(Σe² / (n - 2) / Σ(x - x̄)²)` times the 97.5 % quantile
    /// of Student's t with n - 2 degrees of freedom is the half width. For the intercept, `1 / Σ(x - x̄)²` is replaced by `1 /
    /// n + x̄² / Σ(x - x̄)²`.
    pub fn through(points: &[(f64, f64)]) -> Option<Line> {
        let n = points.len() as f64;
        if points.len() < 3 {
            return None;
        }
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
        let (x_mean, y_mean) = (mean(|p| p.0), mean(|p| p.1));
        let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(x - x_mean, y - y_mean)).sum::<f64>();
        let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
        if !(xx > 0.0 && yy > 0.0) {
            return None;
        }
        let slope = xy / xx;
        let residual = sum(&|x, y| (y - slope * x).powi(2));
        let degrees = points.len() - 2;
        let half_width = |variance: f64| student_t_975(degrees) * (residual / degrees as f64 * variance).sqrt();
        Some(Line {
            slope,
            intercept: y_mean - slope * x_mean,
            slope_error: half_width(1.0 / xx),
            intercept_error: half_width(1.0 / n + x_mean.powi(2) / xx),
            r_squared: 1.0 - residual / yy,
            n: points.len() as u64,
        })
    }

    /// Returns y at `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }

    /// Whether the slope is positive beyond its confidence interval.
    pub fn rises(&self) -> bool {
        self.slope > self.slope_error
    }
}

/// Returns the 97.5 % quantile of Student's t distribution; infinite without degrees of freedom.
fn student_t_975(degrees: usize) -> f64 {
    StudentsT::new(0.0, 1.0, degrees as f64).map_or(f64::INFINITY, |t| t.inverse_cdf(0.975))
}

/// Largest bend of a relation that counts as straight. Between 10 and 90 %, x squared has a bend of 0.13, and the square root of
/// x one of 0.08.
const BEND_MAX: f64 = 0.05;

/// Result of testing whether repeated measurements at several places lie along a straight line.
///
/// A share of explained variance near 1 does not show this: x squared has 0.95 between 10 and 90 %. The lack-of-fit test compares
/// how far the means at each place lie from the line with how far repetitions lie from their mean. [Draper1998, 2.1]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Straightness {
    /// Probability of means at least as far from the line if the relation is straight.
    pub p: f64,
    /// Largest distance of a mean from the line, as a share of the line's rise between the first and the last place.
    pub bend: f64,
}

impl Straightness {
    /// Returns the result of testing `groups`: places (x), each with its repetitions (y). `None` for fewer than three places,
    /// without repetitions, or if the line neither rises nor falls.
    pub fn of(groups: &[(f64, Vec<f64>)]) -> Option<Straightness> {
        let points: Vec<(f64, f64)> = groups.iter().flat_map(|(x, ys)| ys.iter().map(|y| (*x, *y))).collect();
        let line = Line::through(&points)?;
        let (mut away, mut within, mut bend) = (0.0, 0.0, 0.0_f64);
        let measured: Vec<&(f64, Vec<f64>)> = groups.iter().filter(|(_, ys)| !ys.is_empty()).collect();
        for (x, ys) in &measured {
            let mean = ys.iter().sum::<f64>() / ys.len() as f64;
            let distance = mean - line.at(*x);
            away += ys.len() as f64 * distance.powi(2);
            within += ys.iter().map(|y| (y - mean).powi(2)).sum::<f64>();
            bend = bend.max(distance.abs());
        }
        let xs = measured.iter().map(|(x, _)| *x);
        let range = xs.clone().fold(f64::NEG_INFINITY, f64::max) - xs.fold(f64::INFINITY, f64::min);
        let rise = (line.slope * range).abs();
        let (of_places, of_repetitions) = (measured.len().checked_sub(2)?, points.len().checked_sub(measured.len())?);
        let f = FisherSnedecor::new(of_places as f64, of_repetitions as f64).ok()?;
        let ratio = (away / of_places as f64) / (within / of_repetitions as f64);
        (rise > 0.0).then(|| Straightness { p: if ratio.is_nan() { 1.0 } else { f.sf(ratio) }, bend: bend / rise })
    }

    /// Whether the relation counts as straight. It does not if the bend is both significant and large.
    pub fn holds(&self) -> bool {
        self.p > 0.05 || self.bend <= BEND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_that_of_least_squares() {
        // Anscombe's first set: slope 0.500, intercept 3.00, r² 0.667, standard error of the slope 0.118, as published.
        let x = [10.0, 8.0, 13.0, 9.0, 11.0, 14.0, 6.0, 4.0, 12.0, 7.0, 5.0];
        let y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68];
        let points: Vec<(f64, f64)> = x.into_iter().zip(y).collect();
        let line = Line::through(&points).unwrap();
        assert!((line.slope - 0.500).abs() < 5e-4 && (line.intercept - 3.00).abs() < 5e-3, "{line:?}");
        assert!((line.r_squared - 0.667).abs() < 1e-3, "{line:?}");
        // t(9) = 2.262.
        assert!((line.slope_error - 2.262 * 0.118).abs() < 1e-3 && line.rises(), "{line:?}");
        // The published standard error of the intercept is 1.125.
        assert!((line.intercept_error - 2.262 * 1.125).abs() < 1e-2, "{line:?}");
        assert_eq!(Line::through(&points[..2]), None);
        assert_eq!(Line::through(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
    }

    #[test]
    fn student_quantiles_are_those_of_the_printed_table() {
        for (degrees, t) in [(1, 12.706), (2, 4.303), (5, 2.571), (9, 2.262), (30, 2.042), (100, 1.984)] {
            assert!((student_t_975(degrees) / t - 1.0).abs() < 2e-3, "{degrees}: {}", student_t_975(degrees));
        }
    }

    /// Returns samples of the function `of` at 10, 20 ... 90 % of 1, five at each place, with noise of up to `noise` in either
    /// direction.
    fn sampled(of: fn(f64) -> f64, noise: f64, seed: u64) -> Vec<(f64, Vec<f64>)> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut repeated = |x: f64| (0..5).map(|_| of(x) + noise * (2.0 * rng.f64() - 1.0)).collect();
        (1..=9).map(|tenth| f64::from(tenth) / 10.0).map(|x| (x, repeated(x))).collect()
    }

    #[test]
    fn the_square_and_the_square_root_are_not_straight_however_much_variance_a_line_explains() {
        for (of, bend) in [(|x: f64| x * x) as fn(f64) -> f64, f64::sqrt].into_iter().zip([0.12, 0.08]) {
            let groups = sampled(of, 0.02, 1);
            let points: Vec<(f64, f64)> = groups.iter().flat_map(|(x, ys)| ys.iter().map(|y| (*x, *y))).collect();
            assert!(Line::through(&points).unwrap().r_squared > 0.94);
            let straightness = Straightness::of(&groups).unwrap();
            assert!((straightness.bend - bend).abs() < 0.03 && !straightness.holds(), "{straightness:?}");
        }
    }

    #[test]
    fn a_straight_line_is_rejected_as_often_as_the_level_says_and_a_small_bend_is_let_pass() {
        const RUNS: u64 = 2000;
        let straight = |seed| Straightness::of(&sampled(|x| 3.0 * x + 1.0, 0.5, seed)).unwrap();
        let rejected = (0..RUNS).filter(|seed| straight(*seed).p <= 0.05).count() as u64;
        let (low, high) = crate::stats::proportion_interval(rejected, RUNS);
        assert!((low..=high).contains(&0.05), "{rejected} of {RUNS}");
        // With almost no noise, a bend of 2 % is significant.
        let bent = Straightness::of(&sampled(|x| x + 0.1 * x * x, 1e-6, 1)).unwrap();
        assert!(bent.p < 1e-9 && bent.bend < 0.05 && bent.holds(), "{bent:?}");
    }

    #[test]
    fn what_cannot_be_judged_is_not() {
        let groups = |ys: &[&[f64]]| -> Vec<(f64, Vec<f64>)> {
            (1..).map(f64::from).zip(ys.iter().map(|y| y.to_vec())).collect()
        };
        assert_eq!(Straightness::of(&groups(&[&[1.0, 2.0], &[2.0, 3.0]])), None);
        // No place has repetitions.
        assert_eq!(Straightness::of(&groups(&[&[1.0], &[2.0], &[4.0]])), None);
        assert_eq!(Straightness::of(&[]), None);
    }
}
