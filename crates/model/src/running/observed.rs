//! Statistics of values that are added one by one: mean, quantiles, high-water mark, and their course over time with all peaks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{HighWaterMark, nearest_rank};
use crate::units::Ns;

/// Number of gaps of about the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GapCount {
    /// Shortest length that counts here; the longest is at most 1/64 above.
    pub least: Ns,
    /// Number of gaps.
    pub count: u64,
}

/// Smallest and largest of consecutive values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ValueRange {
    /// Smallest value.
    pub low: Ns,
    /// Largest value.
    pub high: Ns,
}

/// Values in order, reduced to a few hundred intervals of equal length. Each interval keeps its smallest and its largest value,
/// so that no peak is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Envelope {
    /// Number of values in an interval; the last one may have fewer.
    pub stride: u64,
    /// The intervals.
    #[serde(rename = "extents")]
    pub ranges: Vec<ValueRange>,
    n: u64,
}

impl Default for Envelope {
    fn default() -> Self {
        Envelope { stride: 1, ranges: Vec::new(), n: 0 }
    }
}

impl Envelope {
    /// Most intervals that are kept.
    pub const RANGES_MAX: usize = 512;

    pub(super) fn push(&mut self, value: Ns) {
        if self.n == self.stride * Self::RANGES_MAX as u64 {
            self.ranges = self
                .ranges
                .chunks(2)
                .map(|pair| ValueRange {
                    low: pair.iter().map(|range| range.low).min().unwrap_or_default(),
                    high: pair.iter().map(|range| range.high).max().unwrap_or_default(),
                })
                .collect();
            self.stride *= 2;
        }
        if self.n.is_multiple_of(self.stride) {
            self.ranges.push(ValueRange { low: value, high: value });
        } else if let Some(last) = self.ranges.last_mut() {
            *last = ValueRange { low: last.low.min(value), high: last.high.max(value) };
        }
        self.n += 1;
    }
}

/// Counts of values on a scale that is fine enough for quantiles: the relative error is at most 1/64.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    counts: Vec<u64>,
    pub(super) n: u64,
}

impl Spread {
    /// Values below this have a count each, and every doubling above it has as many counts.
    const FINE: u64 = 64;

    fn index(value: u64) -> usize {
        if value < 2 * Self::FINE {
            return value as usize;
        }
        let shift = u64::from(value.ilog2() - Self::FINE.ilog2());
        (shift * Self::FINE + (value >> shift)) as usize
    }

    /// Returns the largest value that is counted at `index`.
    fn top(index: usize) -> u64 {
        let (shift, rest) = match index as u64 {
            index if index < 2 * Self::FINE => return index,
            index => (index / Self::FINE - 1, index % Self::FINE + Self::FINE),
        };
        ((rest + 1) << shift).wrapping_sub(1)
    }

    /// Returns the smallest value that is counted at `index`.
    fn bottom(index: usize) -> u64 {
        index.checked_sub(1).map_or(0, |before| Self::top(before) + 1)
    }

    /// Returns the counts of values, each with the smallest value that it counts, ascending.
    pub(super) fn counts(&self) -> Vec<GapCount> {
        let counted = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(index, count)| GapCount { least: Ns(Self::bottom(index)), count: *count }).collect()
    }

    pub(super) fn push(&mut self, value: u64) {
        let index = Self::index(value);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.n += 1;
    }

    /// Returns a value that a share `q` of all values do not exceed, at most 1/64 above the smallest such value; `None` without
    /// values.
    fn quantile(&self, q: f64) -> Option<u64> {
        if self.n == 0 {
            return None;
        }
        let wanted = nearest_rank(q, self.n as usize) as u64 + 1;
        let mut passed = 0;
        self.counts
            .iter()
            .position(|count| {
                passed += count;
                passed >= wanted
            })
            .map(Self::top)
    }
}

/// Statistics of observed values. They are not bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observed {
    /// Mean of the values, in ns.
    pub mean_ns: f64,
    /// Median, up to 1/64 too large.
    pub median: Ns,
    /// 99 % quantile, up to 1/64 too large.
    pub p99: Ns,
    /// Largest value, with the number of samples.
    pub high_water_mark: HighWaterMark,
}

/// Statistics of values that are added one by one.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) spread: Spread,
    sum: u128,
    mark: Option<HighWaterMark>,
}

impl Seen {
    pub(super) fn push(&mut self, value: Ns) {
        self.spread.push(value.0);
        self.sum += u128::from(value.0);
        match &mut self.mark {
            Some(mark) => mark.push(value.0),
            None => self.mark = HighWaterMark::of(&[value.0]),
        }
    }

    pub(super) fn observed(&self) -> Option<Observed> {
        let mark = self.mark?;
        let quantile = |q| Ns(self.spread.quantile(q).unwrap_or(mark.value).min(mark.value));
        Some(Observed {
            mean_ns: self.sum as f64 / mark.n as f64,
            median: quantile(0.5),
            p99: quantile(0.99),
            high_water_mark: mark,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_envelope_keeps_every_peak_in_its_place(values in proptest::collection::vec(0u64..1_000_000, 1..5000)) {
            let mut envelope = Envelope::default();
            values.iter().for_each(|&value| envelope.push(Ns(value)));
            prop_assert!(envelope.ranges.len() <= Envelope::RANGES_MAX);
            let chunks = values.chunks(envelope.stride as usize);
            let naive: Vec<ValueRange> = chunks
                .map(|chunk| ValueRange { low: Ns(*chunk.iter().min().unwrap()), high: Ns(*chunk.iter().max().unwrap()) })
                .collect();
            prop_assert_eq!(envelope.ranges, naive);
        }

        #[test]
        fn quantiles_of_a_spread_are_those_of_the_values_to_a_64th(
            values in proptest::collection::vec(0u64..100_000_000_000, 1..300), percent in 1u64..=100
        ) {
            let mut spread = Spread::default();
            values.iter().for_each(|&value| spread.push(value));
            let exact = crate::stats::Sorted::of(values).unwrap().quantile(percent as f64 / 100.0);
            let found = spread.quantile(percent as f64 / 100.0).unwrap();
            prop_assert!(exact <= found && found <= exact + exact / 64, "{exact} {found}");
        }

        #[test]
        fn places_of_a_spread_are_in_order_and_cover_everything(value in 0u64..=u64::MAX) {
            let index = Spread::index(value);
            prop_assert!(value <= Spread::top(index));
            prop_assert!(index == 0 || Spread::top(index - 1) < value);
        }
    }
}
