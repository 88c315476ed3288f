//! Quantiles, high-water marks and tails of measured samples. Nothing here assumes a distribution.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

/// The largest sample, which is not a bound, with the number of samples and the sample that last raised the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HighWaterMark {
    /// Largest sample.
    pub value: u64,
    /// Number of samples.
    pub n: u64,
    /// Number, counted from 1, of the sample that last raised the mark.
    pub last_rose_at: u64,
}

impl HighWaterMark {
    /// Returns the mark over `samples` in the order they were taken; `None` for no samples.
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

/// Error for two high-water marks that may not be compared, because a maximum grows with its number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "high-water marks of {a_n} and {b_n} samples cannot be compared: a maximum grows with its number of samples\n  \
     hint: compare the first {fewer} samples of both, or a quantile",
    fewer = a_n.min(b_n)
)]
pub struct UnequalSamples {
    /// Number of samples of the first mark.
    pub a_n: u64,
    /// Number of samples of the second mark.
    pub b_n: u64,
}

/// Returns `a / b`; an error if the marks have different numbers of samples.
///
/// Two marks of 0 are equal (1); any other mark is infinitely larger than a mark of 0.
pub fn compare_high_water_marks(a: HighWaterMark, b: HighWaterMark) -> Result<f64, UnequalSamples> {
    match (a.n == b.n, a.value == b.value) {
        (false, _) => Err(UnequalSamples { a_n: a.n, b_n: b.n }),
        (true, true) => Ok(1.0),
        (true, false) => Ok(a.value as f64 / b.value as f64),
    }
}

/// Returns an upper limit on the probability that one more job exceeds the largest of `n` jobs. The limit is true with
/// `confidence` (0 to 1).
///
/// `p = 1 - (1 - confidence)^(1/n)`, the distribution-free tolerance limit of Wilks (Annals of Mathematical Statistics 12,
/// 1941). It holds for independent jobs under the same conditions, whatever their distribution, and not for other conditions.
/// Without samples the limit is 1, which claims nothing.
pub fn exceedance_at(n: u64, confidence: f64) -> f64 {
    assert!((0.0..1.0).contains(&confidence), "confidence {confidence} is not in 0..1");
    if n == 0 {
        return 1.0;
    }
    // ln_1p and exp_m1 keep their digits if p is tiny; 1 - powf would lose them.
    -((-confidence).ln_1p() / n as f64).exp_m1()
}

/// Returns an upper limit on the probability that one more job exceeds the largest of `n` jobs, if `unknown` of the jobs may
/// have exceeded it. The limit is true with `confidence` (0 to 1).
///
/// It is the largest p at which at most `unknown` of `n` jobs exceed with a probability of `1 - confidence`: the upper limit of
/// Clopper and Pearson (Biometrika 26, 1934). It holds whatever decides which jobs are unknown. Without unknown jobs it equals
/// [`exceedance_at`]. If all jobs are unknown it is 1, which claims nothing.
pub fn exceedance_with_unknown(n: u64, unknown: u64, confidence: f64) -> f64 {
    if unknown == 0 || unknown >= n {
        return if unknown >= n { 1.0 } else { exceedance_at(n, confidence) };
    }
    let likely = |p: f64| Binomial::new(p, n).is_ok_and(|exceeding| exceeding.cdf(unknown) > 1.0 - confidence);
    let (mut low, mut high) = (0.0, 1.0);
    // 60 halvings reach the precision of a double.
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        *if likely(middle) { &mut low } else { &mut high } = middle;
    }
    high
}

/// At least one sample, in ascending order, so that every quantile is a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorted(Vec<u64>);

impl Sorted {
    /// Returns `samples` in ascending order; `None` for no samples.
    pub fn of(samples: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut samples: Vec<u64> = samples.into_iter().collect();
        samples.sort_unstable();
        (!samples.is_empty()).then_some(Self(samples))
    }

    /// Returns the number of samples.
    pub fn n(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns the smallest sample.
    pub fn min(&self) -> u64 {
        self.0[0]
    }

    /// Returns the largest sample, which is an observation and not a bound.
    pub fn max(&self) -> u64 {
        self.0[self.0.len() - 1]
    }

    /// Returns the [`quantile`](Self::quantile) at 0.5. For an even number of samples, this is the lower of the middle two.
    pub fn median(&self) -> u64 {
        self.quantile(0.5)
    }

    /// Returns the smallest sample that at least a share `q` (0 to 1) of all samples do not exceed. This is the nearest rank:
    /// the `ceil(q * n)`-th smallest sample, never an interpolated value. For `q = 0` it is the minimum.
    pub fn quantile(&self, q: f64) -> u64 {
        self.0[nearest_rank(q, self.0.len())]
    }

    /// Returns the complementary distribution: pairs `(value, share of samples above the value)`. Values ascend from the
    /// minimum, and shares fall to 0 at the maximum.
    ///
    /// If there are more than `points_max` distinct values (at least 2), some are left out, evenly on a logarithmic scale of
    /// the share. Each point kept has at most `1/ratio` of the share of the point before it, for the smallest ratio that gives
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
        // The number of points kept never rises with the ratio, and a ratio above the number of samples keeps only the first
        // and the last point.
        let (mut few_log, mut many_log) = ((self.0.len() as f64 + 1.0).ln(), 0.0);
        let mut kept = thin(1.0);
        if kept.len() > points_max {
            kept = thin(few_log.exp());
            // After 40 halvings, the ratio is more precise than any ratio of two counts.
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

/// Returns the index of the `ceil(q * n)`-th smallest of `n` ascending samples.
pub(crate) fn nearest_rank(q: f64, n: usize) -> usize {
    assert!((0.0..=1.0).contains(&q), "quantile {q} is not in 0..=1");
    // 0.07 * 100 is a little more than 7 in binary; without the allowance the rank would be 8.
    let rank = (q * n as f64 * (1.0 - 1e-12)).ceil() as usize;
    rank.clamp(1, n) - 1
}

/// Returns the median; `None` for no values. For an even number of values it is the mean of the two in the middle. Values must
/// not be NaN.
///
/// Unlike [`Sorted::median`], the result need not be a sample, because the lower of two values in the middle is too low on
/// average. Medians of different numbers of samples would then differ without an effect, and an experiment compares some
/// samples with half as many.
pub fn median(values: &[f64]) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let values = ascending(values);
    Some((values[last / 2] + values[values.len() / 2]) / 2.0)
}

/// Returns quantile `q` (0 to 1) as defined by [`Sorted::quantile`]; `None` for no values. Values must not be NaN.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let values = ascending(values);
    (!values.is_empty()).then(|| values[nearest_rank(q, values.len())])
}

fn ascending(values: &[f64]) -> Vec<f64> {
    assert!(values.iter().all(|value| !value.is_nan()), "a measured value is NaN");
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Returns an interval that contains quantile `q` (0 to 1) of the sampled distribution with a confidence of at least 95 %,
/// whatever the distribution. Both ends are among the values. `None` if there are too few values: the median needs six. Values
/// must not be NaN.
///
/// The number of values below the quantile is binomial with probability `q`. So the value of rank `low` is above the quantile
/// with a probability of at most 0.025, and the value of rank `high` is below it with a probability of at most 0.025.
/// [Hollander1999, 3.6]
pub fn quantile_interval(values: &[f64], q: f64) -> Option<[f64; 2]> {
    const TAIL: f64 = 0.025;
    let values = ascending(values);
    let below = Binomial::new(q, values.len() as u64).ok()?;
    // Ranks count from 1.
    let low = (1..=values.len()).rev().find(|rank| below.cdf(*rank as u64 - 1) <= TAIL)?;
    let high = (1..=values.len()).find(|rank| below.sf(*rank as u64 - 1) <= TAIL)?;
    Some([values[low - 1], values[high - 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(samples: &[u64]) -> Sorted {
        Sorted::of(samples.iter().copied()).expect("samples")
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
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[2.5]), Some(2.5));
        assert_eq!(median(&[9.0, -1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, -1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn high_water_mark_knows_when_it_last_rose() {
        assert_eq!(HighWaterMark::of(&[]), None);
        let mut mark = HighWaterMark::of(&[3, 7, 5, 7]).expect("samples");
        // The second 7 does not raise the mark.
        assert_eq!(mark, HighWaterMark { value: 7, n: 4, last_rose_at: 2 });
        mark.push(6);
        mark.push(8);
        assert_eq!(mark, HighWaterMark { value: 8, n: 6, last_rose_at: 6 });
    }

    #[test]
    fn samples_for_a_claim_at_95_percent_are_the_known_numbers() {
        // The fewest samples that support each claim: ln(0.05) = -2.995732274, divided by ln(1 - 1e-5) = -1.0000050000333e-5,
        // is 299571.73. The others are computed in the same way.
        for (n, p) in [(299, 1e-2), (2_995, 1e-3), (29_956, 1e-4), (299_572, 1e-5)] {
            assert!(exceedance_at(n, 0.95) <= p && p < exceedance_at(n - 1, 0.95), "{n}");
        }
        // Three heads in a row: 1 - 0.5^3 = 0.875.
        assert!((exceedance_at(3, 0.875) - 0.5).abs() < 1e-15);
        assert_eq!(exceedance_at(0, 0.95), 1.0);
    }

    #[test]
    fn jobs_of_which_nothing_is_known_weaken_the_claim_as_clopper_and_pearson_say() {
        // The one-sided limit at 95 % is 0.3942 for one unknown of 10, and 0.2826 for two of 20.
        assert!((exceedance_with_unknown(10, 1, 0.95) - 0.3942).abs() < 1e-4);
        assert!((exceedance_with_unknown(20, 2, 0.95) - 0.2826).abs() < 1e-4);
        assert_eq!(exceedance_with_unknown(299, 0, 0.95), exceedance_at(299, 0.95));
        assert_eq!((exceedance_with_unknown(0, 0, 0.95), exceedance_with_unknown(7, 7, 0.95)), (1.0, 1.0));
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
    fn an_interval_of_the_median_ends_at_the_ranks_of_the_printed_table() {
        let values = |n: u32| (1..=n).map(f64::from).collect::<Vec<_>>();
        // The interval of 10 values is from the second to the ninth (97.9 %), that of 20 values from the sixth to the fifteenth
        // (95.9 %). That of 6 values covers all.
        assert_eq!(quantile_interval(&values(10), 0.5), Some([2.0, 9.0]));
        assert_eq!(quantile_interval(&values(20), 0.5), Some([6.0, 15.0]));
        assert_eq!(quantile_interval(&values(6), 0.5), Some([1.0, 6.0]));
        assert_eq!(quantile_interval(&values(5), 0.5), None);
        // 0.99^368 = 0.0248 is the first power below 0.025.
        assert_eq!(quantile_interval(&values(367), 0.99), None);
        assert_eq!(quantile_interval(&values(368), 0.99).map(|[_, high]| high), Some(368.0));
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
            // All n stay below a level that each exceeds with probability p: (1 - p)^n = 1 - confidence.
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
    }
}
