//! Summaries of measured samples: quantiles, high-water marks, tails, and what may be claimed from them.
//!
//! Nothing here assumes a distribution. A high-water mark is an observation; [`exceedance_at`] says how often it may
//! still be exceeded, and [`compare_high_water_marks`] refuses to compare two of unequal sample counts.

use serde::{Deserialize, Serialize};

/// The largest value seen, which is not a bound: how many samples it is over, and when it last rose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HighWaterMark {
    /// Largest sample.
    pub value: u64,
    /// Samples looked at.
    pub n: u64,
    /// Number, counted from 1, of the sample that last raised it.
    pub last_rose_at: u64,
}

impl HighWaterMark {
    /// The mark over `samples` in the order they were taken; `None` for no samples.
    pub fn of(samples: &[u64]) -> Option<Self> {
        let (&first, rest) = samples.split_first()?;
        let mut mark = Self { value: first, n: 1, last_rose_at: 1 };
        mark.extend(rest.iter().copied());
        Some(mark)
    }

    /// Takes one more sample into account. An equal sample does not raise the mark.
    pub fn push(&mut self, sample: u64) {
        self.n += 1;
        if sample > self.value {
            self.value = sample;
            self.last_rose_at = self.n;
        }
    }
}

impl Extend<u64> for HighWaterMark {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, samples: T) {
        samples.into_iter().for_each(|sample| self.push(sample));
    }
}

/// Two high-water marks that may not be compared: a maximum grows with its number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "high-water marks of {a_n} and {b_n} samples cannot be compared: a maximum grows with its number of samples\n  \
     hint: compare the first {fewer} samples of both, or a quantile",
    fewer = a_n.min(b_n)
)]
pub struct UnequalSamples {
    /// Samples behind the first mark.
    pub a_n: u64,
    /// Samples behind the second mark.
    pub b_n: u64,
}

/// `a / b`, allowed only over equally many samples.
///
/// Two marks of 0 are equal (1); any other mark is infinitely larger than one of 0.
pub fn compare_high_water_marks(a: HighWaterMark, b: HighWaterMark) -> Result<f64, UnequalSamples> {
    match (a.n == b.n, a.value == b.value) {
        (false, _) => Err(UnequalSamples { a_n: a.n, b_n: b.n }),
        (true, true) => Ok(1.0),
        (true, false) => Ok(a.value as f64 / b.value as f64),
    }
}

/// The probability `p`, at most, that one more job exceeds the largest of `n` jobs; true with `confidence` (0 to 1).
///
/// `p = 1 - (1 - confidence)^(1/n)`, the distribution-free tolerance limit of Wilks (Annals of Mathematical Statistics
/// 12, 1941). Holds for independent jobs under the same conditions, whatever their distribution; says nothing of other
/// conditions. No samples give no claim: 1.
pub fn exceedance_at(n: u64, confidence: f64) -> f64 {
    assert!((0.0..1.0).contains(&confidence), "confidence {confidence} is not in 0..1");
    if n == 0 {
        return 1.0;
    }
    // ln_1p and exp_m1 keep their digits where p is tiny; 1 - powf would lose them.
    -((-confidence).ln_1p() / n as f64).exp_m1()
}

/// Samples in ascending order, at least one: sorted once, asked often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorted(Vec<u64>);

impl Sorted {
    /// `samples` in ascending order; `None` for no samples.
    pub fn of(samples: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut samples: Vec<u64> = samples.into_iter().collect();
        samples.sort_unstable();
        (!samples.is_empty()).then_some(Self(samples))
    }

    /// Number of samples.
    pub fn n(&self) -> u64 {
        self.0.len() as u64
    }

    /// Smallest sample.
    pub fn min(&self) -> u64 {
        self.0[0]
    }

    /// Largest sample. An observation, not a bound.
    pub fn max(&self) -> u64 {
        self.0[self.0.len() - 1]
    }

    /// [`quantile`](Self::quantile) at 0.5; of an even number of samples the lower of the middle two.
    pub fn median(&self) -> u64 {
        self.quantile(0.5)
    }

    /// The smallest sample that at least a share `q` (0 to 1) of all samples do not exceed: by nearest rank, the
    /// `ceil(q * n)`-th smallest. Always a sample that was taken, never interpolated. `q = 0` is the minimum.
    pub fn quantile(&self, q: f64) -> u64 {
        self.0[nearest_rank(q, self.0.len())]
    }

    /// Complementary distribution: pairs `(value, share of samples above it)`, values ascending, shares falling to 0 at
    /// the maximum. Starts at the minimum.
    ///
    /// Of more than `points_max` distinct values (at least 2) some are left out, evenly on a logarithmic scale of the
    /// share: each point kept has at most `1/ratio` of the share of the one before, for the smallest ratio that gives
    /// few enough points. So the tail, where counts are small, stays complete, and each point kept is exact.
    pub fn ccdf(&self, points_max: usize) -> Vec<(u64, f64)> {
        assert!(points_max >= 2, "a distribution needs its first and last point");
        let mut n_above = self.0.len();
        let points: Vec<(u64, usize)> = self
            .0
            .chunk_by(|a, b| a == b)
            .map(|equal| {
                n_above -= equal.len();
                (equal[0], n_above)
            })
            .collect();
        let thin = |ratio: f64| {
            let mut bar = f64::INFINITY;
            let kept = points.iter().filter(|&&(_, n_above)| {
                let keep = n_above as f64 <= bar;
                if keep {
                    bar = n_above as f64 / ratio;
                }
                keep
            });
            kept.copied().collect::<Vec<_>>()
        };
        // The number kept never rises with the ratio, and a ratio above the number of samples keeps the ends alone.
        let (mut few_log, mut many_log) = ((self.0.len() as f64 + 1.0).ln(), 0.0);
        let mut kept = thin(1.0);
        if kept.len() > points_max {
            kept = thin(few_log.exp());
            // 40 halvings fix the ratio to better than any count can tell apart.
            for _ in 0..40 {
                let middle_log = (few_log + many_log) / 2.0;
                let candidate = thin(f64::exp(middle_log));
                if candidate.len() <= points_max {
                    (few_log, kept) = (middle_log, candidate);
                } else {
                    many_log = middle_log;
                }
            }
        }
        kept.into_iter().map(|(value, n_above)| (value, n_above as f64 / self.0.len() as f64)).collect()
    }
}

/// Index into `n` ascending samples of the `ceil(q * n)`-th smallest.
pub(crate) fn nearest_rank(q: f64, n: usize) -> usize {
    assert!((0.0..=1.0).contains(&q), "quantile {q} is not in 0..=1");
    // 0.07 * 100 is a little more than 7 in binary; without the allowance the rank would be 8.
    let rank = (q * n as f64 * (1.0 - 1e-12)).ceil() as usize;
    rank.clamp(1, n) - 1
}

/// Median by the definition of [`Sorted::median`]; `None` for no values. Values must not be NaN.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Quantile by the definition of [`Sorted::quantile`]; `None` for no values. Values must not be NaN, and `q` is from 0 to 1.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    assert!(values.iter().all(|value| !value.is_nan()), "a measured value is NaN");
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    (!values.is_empty()).then(|| values[nearest_rank(q, values.len())])
}

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
    chi_square_survival(x, counts.len() - 1)
}

/// Probability that a chi-square variable with `degrees` degrees of freedom exceeds `x`.
///
/// The regularized upper incomplete gamma function `Q(degrees/2, y)`, `y = x/2`, in its finite form for whole and half
/// numbers [Abramowitz and Stegun, 26.4.4 and 26.4.5]: `Q(1, y) = e^-y`, `Q(1/2, y) = erfc(√y)` and `Q(a + 1, y) = Q(a,
/// y) + y^a e^-y / Γ(a + 1)`. All terms are positive, so nothing cancels.
fn chi_square_survival(x: f64, degrees: usize) -> f64 {
    let y = x / 2.0;
    if y <= 0.0 {
        return 1.0;
    }
    let (a_first, q_first) = if degrees.is_multiple_of(2) { (1.0, (-y).exp()) } else { (0.5, libm::erfc(y.sqrt())) };
    // In logarithms, because y^a and Γ(a + 1) overflow long before their quotient does.
    let term = |step: usize| {
        let a = a_first + step as f64;
        (a * y.ln() - y - libm::lgamma(a + 1.0)).exp()
    };
    let steps = (degrees - 1) / 2;
    (q_first + (0..steps).map(term).sum::<f64>()).min(1.0)
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

/// A straight line through measured points by least squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Increase of y per unit of x.
    pub slope: f64,
    /// y at x = 0.
    pub intercept: f64,
    /// 95 % confidence interval of the slope: half its width. Holds for errors that are independent and alike at every x.
    pub slope_error: f64,
    /// Share of y's variance that x explains, 0 to 1.
    pub r_squared: f64,
    /// Points.
    pub n: u64,
}

impl Line {
    /// The line through `points` (x, y); `None` for fewer than three, or when all x or all y are the same.
    ///
    /// `slope = Σ(x - x̄)(y - ȳ) / Σ(x - x̄)²`; its standard error `sqrt(Σe² / (n - 2) / Σ(x - x̄)²)` times the 97.5 % quantile of
    /// Student's t with n - 2 degrees of freedom is the half width.
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
        Some(Line {
            slope,
            intercept: y_mean - slope * x_mean,
            slope_error: student_t_975(degrees) * (residual / degrees as f64 / xx).sqrt(),
            r_squared: 1.0 - residual / yy,
            n: points.len() as u64,
        })
    }

    /// Whether the slope is positive beyond its confidence interval.
    pub fn rises(&self) -> bool {
        self.slope > self.slope_error
    }
}

/// The 97.5 % quantile of Student's t distribution: exact for 1 and 2 degrees of freedom, else the expansion in 1/degrees from the
/// normal quantile [Abramowitz and Stegun, 26.7.5], off by less than 2 % for 3 degrees and 0.1 % from 6 on.
fn student_t_975(degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY,
        1 => 12.706_204_736,
        2 => 4.302_652_730,
        _ => {
            let (z, n) = (1.959_963_985_f64, degrees as f64);
            let g1 = (z.powi(3) + z) / 4.0;
            let g2 = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
            let g3 = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
            z + g1 / n + g2 / n.powi(2) + g3 / n.powi(3)
        }
    }
}

/// Which blocks of each condition count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuietBlocks {
    /// Per condition, the blocks that count, ascending: equally many of each condition that has any. Empty exactly
    /// where a condition has no blocks.
    pub kept: Vec<Vec<usize>>,
    /// Per condition, how many blocks were quiet before the numbers were made equal.
    pub quiet_n: Vec<usize>,
}

/// All blocks of a condition that are quiet as in [`quiet_blocks`], the quietest first: for medians, which do not grow with the number
/// of samples as maxima do.
pub fn all_quiet(control_medians: &[u64], tolerance: f64) -> Vec<usize> {
    assert!(tolerance >= 0.0, "tolerance {tolerance} is negative");
    let floor = control_medians.iter().min().map_or(0.0, |&lowest| lowest as f64 * (1.0 + tolerance));
    let mut quiet: Vec<usize> =
        (0..control_medians.len()).filter(|&block| control_medians[block] as f64 <= floor).collect();
    quiet.sort_by_key(|&block| control_medians[block]);
    quiet
}

/// The quiet blocks of an experiment that ran all its conditions in blocks, each with a paired control.
///
/// A block is quiet if its control's median is at most `1 + tolerance` times the lowest control median *of the same
/// condition*: a task in few colors has a higher floor than one in ordinary memory. So that all conditions have equally
/// many samples, each keeps only its `k` quietest, where `k` is the smallest number of quiet blocks of any condition
/// that has any. Between equals the earlier block is kept.
///
/// `control_medians`: per condition, the control median of each of its blocks.
pub fn quiet_blocks(control_medians: &[impl AsRef<[u64]>], tolerance: f64) -> QuietBlocks {
    let mut kept: Vec<Vec<usize>> =
        control_medians.iter().map(|medians| all_quiet(medians.as_ref(), tolerance)).collect();
    let quiet_n: Vec<usize> = kept.iter().map(Vec::len).collect();
    let k = quiet_n.iter().copied().filter(|&n| n > 0).min().unwrap_or(0);
    for blocks in &mut kept {
        blocks.truncate(k);
        blocks.sort_unstable();
    }
    QuietBlocks { kept, quiet_n }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(samples: &[u64]) -> Sorted {
        Sorted::of(samples.iter().copied()).expect("samples")
    }

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
    fn quantiles_follow_the_nearest_rank_definition() {
        // The textbook's five: ceil(0.05*5)=1st, ceil(0.3*5)=2nd, ceil(0.4*5)=2nd, ceil(0.5*5)=3rd, 5th.
        let five = sorted(&[50, 15, 40, 20, 35]);
        assert_eq!([0.05, 0.3, 0.4, 0.5, 1.0].map(|q| five.quantile(q)), [15, 20, 20, 35, 50]);
        assert_eq!((five.min(), five.median(), five.max(), five.n()), (15, 35, 50, 5));
        assert_eq!(five.quantile(0.0), 15);
        assert_eq!(sorted(&[4, 1, 3, 2]).median(), 2);
        assert_eq!(Sorted::of([]), None);
    }

    #[test]
    fn whole_percentiles_of_1_to_100_are_themselves() {
        let hundred = sorted(&(1..=100).collect::<Vec<_>>());
        for percent in 1..=100 {
            assert_eq!(hundred.quantile(percent as f64 / 100.0), percent);
        }
    }

    #[test]
    fn medians_of_floats_are_medians_of_their_order() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[2.5]), Some(2.5));
        assert_eq!(median(&[9.0, -1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, -1.0, 2.0, 3.0]), Some(2.0));
    }

    #[test]
    fn high_water_mark_knows_when_it_last_rose() {
        assert_eq!(HighWaterMark::of(&[]), None);
        let mut mark = HighWaterMark::of(&[3, 7, 5, 7]).expect("samples");
        // The second 7 does not raise it.
        assert_eq!(mark, HighWaterMark { value: 7, n: 4, last_rose_at: 2 });
        mark.push(6);
        mark.push(8);
        assert_eq!(mark, HighWaterMark { value: 8, n: 6, last_rose_at: 6 });
    }

    #[test]
    fn samples_for_a_claim_at_95_percent_are_the_known_numbers() {
        // ln(0.05) = -2.995732274; divided by ln(1 - 1e-5) = -1.0000050000333e-5 it is 299571.73, and so on: the fewest
        // samples that support each claim.
        for (n, p) in [(299, 1e-2), (2_995, 1e-3), (29_956, 1e-4), (299_572, 1e-5)] {
            assert!(exceedance_at(n, 0.95) <= p && p < exceedance_at(n - 1, 0.95), "{n}");
        }
        // Three heads in a row: 1 - 0.5^3 = 0.875.
        assert!((exceedance_at(3, 0.875) - 0.5).abs() < 1e-15);
        assert_eq!(exceedance_at(0, 0.95), 1.0);
    }

    #[test]
    fn maxima_of_unequal_sample_counts_are_not_compared() {
        let a = HighWaterMark { value: 30, n: 100, last_rose_at: 1 };
        let b = HighWaterMark { value: 20, n: 100, last_rose_at: 9 };
        assert_eq!(compare_high_water_marks(a, b), Ok(1.5));
        let b = HighWaterMark { n: 101, ..b };
        let refusal = compare_high_water_marks(a, b).expect_err("unequal");
        assert_eq!(refusal, UnequalSamples { a_n: 100, b_n: 101 });
        assert!(refusal.to_string().contains("hint: compare the first 100 samples"), "{refusal}");
        let zero = HighWaterMark { value: 0, ..a };
        assert_eq!(compare_high_water_marks(zero, zero), Ok(1.0));
        assert_eq!(compare_high_water_marks(a, zero), Ok(f64::INFINITY));
    }

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
        assert_eq!(Line::through(&points[..2]), None);
        assert_eq!(Line::through(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
    }

    #[test]
    fn student_quantiles_are_those_of_the_printed_table() {
        for (degrees, t) in [(1, 12.706), (2, 4.303), (5, 2.571), (9, 2.262), (30, 2.042), (100, 1.984)] {
            assert!((student_t_975(degrees) / t - 1.0).abs() < 2e-3, "{degrees}: {}", student_t_975(degrees));
        }
    }

    #[test]
    fn ccdf_of_few_values_is_complete() {
        assert_eq!(sorted(&[5, 1, 1, 9]).ccdf(3), [(1, 0.5), (5, 0.25), (9, 0.0)]);
        assert_eq!(sorted(&[5]).ccdf(2), [(5, 0.0)]);
    }

    #[test]
    fn thinned_ccdf_keeps_every_value_of_the_tail() {
        let points = sorted(&(1..=100_000).collect::<Vec<_>>()).ccdf(200);
        assert!((150..=200).contains(&points.len()), "{}", points.len());
        assert_eq!((points[0], points[points.len() - 1]), ((1, 0.99999), (100_000, 0.0)));
        let last_ten: Vec<u64> = points[points.len() - 10..].iter().map(|point| point.0).collect();
        assert_eq!(last_ten, (99_991..=100_000).collect::<Vec<_>>());
        // Evenly spaced in the logarithm of the share: no step wider than a tenth of a decade or one sample.
        for pair in points.windows(2) {
            let (wide, narrow) = (pair[0].1 * 1e5, pair[1].1 * 1e5);
            assert!(wide - narrow < 1.5 || wide / narrow < 1.26, "{pair:?}");
        }
    }

    #[test]
    fn chi_square_survival_gives_the_printed_table() {
        // Critical values of the chi-square distribution as printed in any table: (degrees, x, p).
        for (degrees, x, p) in [
            (1, 3.841, 0.05),
            (1, 6.635, 0.01),
            (2, 5.991, 0.05),
            (3, 7.815, 0.05),
            (5, 1.145, 0.95),
            (10, 23.209, 0.01),
            (15, 24.996, 0.05),
            (15, 37.697, 0.001),
            (100, 124.342, 0.05),
        ] {
            let survival = chi_square_survival(x, degrees);
            assert!((survival / p - 1.0).abs() < 1e-3, "{degrees} degrees, {x}: {survival}");
        }
        // Far beyond where e^-y alone underflows: the median is about degrees - 2/3.
        assert!((chi_square_survival(9_999.0 - 2.0 / 3.0, 9_999) - 0.5).abs() < 1e-3);
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

    #[test]
    fn quiet_is_judged_within_a_condition_and_numbers_are_made_equal() {
        // Floors 100 and 1000. Quiet within 10 %: blocks 0, 2, 3 of the first, 1 and 3 of the second; so two of each,
        // and of the first its two quietest, 2 and 3.
        let quiet = quiet_blocks(&[vec![110, 500, 100, 101], vec![2000, 1000, 1101, 1100]], 0.1);
        assert_eq!(quiet, QuietBlocks { kept: vec![vec![2, 3], vec![1, 3]], quiet_n: vec![3, 2] });
    }

    #[test]
    fn a_condition_without_blocks_is_named_and_does_not_empty_the_others() {
        let quiet = quiet_blocks(&[vec![], vec![7, 7, 9]], 0.0);
        assert_eq!(quiet.kept, [vec![], vec![0, 1]]);
        assert_eq!(quiet_blocks(&[[0u64; 0]; 0], 0.0), QuietBlocks { kept: vec![], quiet_n: vec![] });
    }

    proptest! {
        #[test]
        fn quantile_is_the_least_sample_covering_the_share(
            samples in prop::collection::vec(0u64..50, 1..60), percent in 1u64..=100
        ) {
            let quantile = sorted(&samples).quantile(percent as f64 / 100.0);
            // In whole numbers: at least percent of all samples are <= the quantile, and fewer are below it.
            let share = |n: usize| n as u64 * 100;
            let wanted = percent * samples.len() as u64;
            prop_assert!(share(samples.iter().filter(|&&s| s <= quantile).count()) >= wanted);
            prop_assert!(share(samples.iter().filter(|&&s| s < quantile).count()) < wanted);
            prop_assert!(samples.contains(&quantile));
        }

        #[test]
        fn high_water_mark_is_the_first_of_the_largest(samples in prop::collection::vec(0u64..20, 1..40)) {
            let mark = HighWaterMark::of(&samples).expect("samples");
            let largest = *samples.iter().max().expect("samples");
            let first = samples.iter().position(|&s| s == largest).expect("samples") as u64 + 1;
            prop_assert_eq!(mark, HighWaterMark { value: largest, n: samples.len() as u64, last_rose_at: first });
        }

        #[test]
        fn exceedance_claimed_is_missed_with_the_remaining_confidence(n in 1u64..1_000_000, confidence in 0.5f64..0.999) {
            // All n stay below a level that each exceeds with p: (1 - p)^n = 1 - confidence.
            let p = exceedance_at(n, confidence);
            let missed = (n as f64 * (-p).ln_1p()).exp();
            prop_assert!((missed / (1.0 - confidence) - 1.0).abs() < 1e-9);
        }

        #[test]
        fn every_point_of_a_ccdf_is_exact_and_the_ends_are_kept(
            samples in prop::collection::vec(0u64..300, 1..400), points_max in 2usize..40
        ) {
            let points = sorted(&samples).ccdf(points_max);
            prop_assert!(points.len() <= points_max);
            prop_assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 > b.1));
            prop_assert_eq!(points[0].0, *samples.iter().min().expect("samples"));
            prop_assert_eq!(points[points.len() - 1], (*samples.iter().max().expect("samples"), 0.0));
            for (value, share) in points {
                let above = samples.iter().filter(|&&s| s > value).count();
                prop_assert_eq!(share, above as f64 / samples.len() as f64);
            }
        }

        #[test]
        fn kept_blocks_are_quiet_equal_in_number_and_the_quietest(
            medians in prop::collection::vec(prop::collection::vec(100u64..130, 1..12), 1..5)
        ) {
            let result = quiet_blocks(&medians, 0.1);
            let k = result.quiet_n.iter().copied().min().expect("conditions");
            for (medians, kept) in medians.iter().zip(&result.kept) {
                prop_assert_eq!(kept.len(), k);
                prop_assert!(kept.is_sorted_by(|a, b| a < b));
                let loudest = kept.iter().map(|&b| medians[b]).max().expect("some");
                prop_assert!(loudest as f64 <= 1.1 * *medians.iter().min().expect("some") as f64);
                let mut by_value = medians.clone();
                by_value.sort_unstable();
                prop_assert_eq!(loudest, by_value[k - 1]);
            }
        }

        #[test]
        fn chi_square_survival_of_even_degrees_is_a_poisson_sum(x in 0.1f64..60.0, half in 1usize..12) {
            // P(chi2 with 2m degrees > x) = P(Poisson(x/2) < m), multiplied out naively.
            let mut term = (-x / 2.0).exp();
            let mut naive = 0.0;
            for i in 0..half {
                naive += term;
                term *= x / 2.0 / (i + 1) as f64;
            }
            prop_assert!((chi_square_survival(x, 2 * half) - naive).abs() < 1e-12);
        }
    }
}
