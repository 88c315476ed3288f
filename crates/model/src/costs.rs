//! Costs that the response-time analysis charges because they were measured.
//!
//! A measured cost is an assumption of the analysis, not a bound: a bound that rests on it holds *given measured costs*. So every assumed cost
//! is stated with the number of samples, the quantile, the confidence and the margin.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{median, quantile_interval};
use crate::units::{CpuId, Ns};

/// Share of all times that the assumed cost is to cover, before the margin.
pub const QUANTILE: f64 = 0.99;
/// Probability that the sample taken for [`QUANTILE`] is at least that quantile: one end of an interval of 95 %.
pub const CONFIDENCE: f64 = 0.975;
/// Share of the sample taken for [`QUANTILE`] that is added as a margin.
pub const MARGIN: f64 = 0.1;
/// Fewest samples that determine [`QUANTILE`] with [`CONFIDENCE`]: 0.99^368 is the first power below 0.025.
pub const SAMPLES_MIN: usize = 368;

/// A cost that the analysis charges because it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssumedCost {
    /// Charged cost in ns, margin included.
    pub charged_ns: Ns,
    /// Sample in ns that is at least the quantile, with the stated confidence.
    pub high_ns: Ns,
    /// Median of the samples in ns, for comparison.
    pub median_ns: Ns,
    /// Number of samples.
    pub samples: u64,
    /// Share of all times that `high_ns` covers.
    pub quantile: f64,
    /// Probability that `high_ns` covers this share, whatever the distribution of the times.
    pub confidence: f64,
    /// Share that is added to `high_ns`.
    pub margin: f64,
}

impl AssumedCost {
    /// Returns the cost to assume after `times_ns` were measured; `None` for fewer than [`SAMPLES_MIN`]. Times must not be NaN.
    pub fn of(times_ns: &[f64]) -> Option<Self> {
        let [_, high] = quantile_interval(times_ns, QUANTILE)?;
        let whole = |time: f64| Ns(time.max(0.0).ceil() as u64);
        Some(Self {
            charged_ns: whole(high * (1.0 + MARGIN)),
            high_ns: whole(high),
            median_ns: whole(median(times_ns)?),
            samples: times_ns.len() as u64,
            quantile: QUANTILE,
            confidence: CONFIDENCE,
            margin: MARGIN,
        })
    }
}

impl std::fmt::Display for AssumedCost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |time: Ns| time.0 as f64 / 1e3;
        if self.samples == 0 {
            return write!(f, "{:.2} us", us(self.charged_ns));
        }
        write!(
            f,
            "{:.2} us ({:.0} % of {} samples take at most {:.2} us, at {:.1} % confidence, and {:.0} % more are charged; median {:.2} us)",
            us(self.charged_ns),
            self.quantile * 100.0,
            self.samples,
            us(self.high_ns),
            self.confidence * 100.0,
            self.margin * 100.0,
            us(self.median_ns)
        )
    }
}

/// The costs measured on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Costs {
    /// The CPU.
    pub cpu: CpuId,
    /// Cache level whose colors the costs are about.
    pub level: u8,
    /// Time of the measurement, in seconds since 1970 (UTC).
    pub measured_at: u64,
    /// Refill time of one color: the share of one color in the time to refill all colors. A refill is a dependent load of each line, after dirty
    /// lines of the same colors displaced the lines and other pages displaced the TLB entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill: Option<AssumedCost>,
    /// Longest time in ns by which the refill of fewer colors exceeds their share of the time for all colors, margin included. This part of a
    /// refill does not depend on the number of colors. It is charged for each preemption, together with [`preemption`](Self::preemption).
    #[serde(default)]
    pub refill_once_ns: Ns,
    /// Refill time of the private levels inside this level, TLB included, after a preemption that leaves the colors alone: a dependent load of
    /// as many lines as the next level inside holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<AssumedCost>,
    /// Time of one context switch: half of the time for which a task does not run when a task of higher priority is released, does nothing, and
    /// waits again. The interrupt that releases the other task is included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<AssumedCost>,
    /// Time for which the timer interrupt that releases a task of lower priority takes the CPU from the running task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_interrupt: Option<AssumedCost>,
}

/// Returns the refill time of a color to assume, and the time in ns to add once per refill, whatever its size; `None` and 0 if there are too
/// few samples. `times`: for each number of colors, ascending, the measured times in ns of refilling so many colors together.
///
/// Let Δ be the share of one color in the cost of all, and a the largest difference between the cost of k colors and k Δ. Then the refill of k
/// colors costs at most a + k Δ for each k that was measured. So a disturbance that does not depend on the number of colors counts once and not
/// for each color.
pub fn refill_line(times: &[(u32, Vec<f64>)]) -> (Option<AssumedCost>, Ns) {
    let per_color = |(colors, times): &(u32, Vec<f64>)| {
        AssumedCost::of(&times.iter().map(|time| time / f64::from(*colors)).collect::<Vec<_>>())
    };
    let Some(refill) = times.last().and_then(per_color) else { return (None, Ns(0)) };
    let above = |(colors, times): &(u32, Vec<f64>)| {
        let charged = AssumedCost::of(times)?.charged_ns.0;
        Some(charged.saturating_sub(u64::from(*colors) * refill.charged_ns.0))
    };
    (Some(refill), Ns(times.iter().filter_map(above).max().unwrap_or(0)))
}

impl Costs {
    /// Returns the costs that a task set has besides the refill time, each with its name in the task set.
    pub fn of_every_set(&self) -> impl Iterator<Item = (&'static str, AssumedCost)> {
        // The part that is charged once per refill is charged even if the private levels could not be measured.
        let private = self.preemption.unwrap_or_default();
        let charged_ns = Ns(private.charged_ns.0 + self.refill_once_ns.0);
        let preemption = (charged_ns > Ns(0)).then_some(AssumedCost { charged_ns, ..private });
        let costs = [
            ("preemption_ns", preemption),
            ("switch_ns", self.switch),
            ("release_interrupt_ns", self.release_interrupt),
        ];
        costs.into_iter().filter_map(|(name, cost)| Some((name, cost?)))
    }

    /// Returns the measured costs that a profile holds; `None` if `text` is not a profile, or holds no measured costs.
    pub fn stated(text: &str) -> Option<Costs> {
        #[derive(Deserialize)]
        struct Stated {
            costs: Option<Costs>,
        }
        serde_json::from_str::<Stated>(text).ok()?.costs
    }
}

impl std::fmt::Display for Costs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let refill = self.refill.map(|cost| ("refill time of a color", cost));
        let named = self.of_every_set();
        for (name, cost) in refill.into_iter().chain(named) {
            writeln!(f, "    {name}: {cost}")?;
        }
        if self.refill_once_ns > Ns(0) {
            let once = self.refill_once_ns.0 as f64 / 1e3;
            writeln!(
                f,
                "    {once:.2} us of preemption_ns are for disturbances of a refill, once per refill of any size"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_covers_the_quantile_with_its_confidence_and_a_margin() {
        let times = |n: usize| (1..=n).map(|time| time as f64).collect::<Vec<_>>();
        assert_eq!(AssumedCost::of(&times(SAMPLES_MIN - 1)), None);
        // With the fewest samples, only the largest sample covers the quantile.
        let cost = AssumedCost::of(&times(SAMPLES_MIN)).expect("enough samples");
        assert_eq!((cost.high_ns, cost.charged_ns, cost.median_ns), (Ns(368), Ns(405), Ns(185)));
    }

    #[test]
    fn the_line_of_refills_covers_every_number_of_colors() {
        // A refill takes 1000 ns for each color, and 5000 ns more for any number of colors.
        let times = [1, 2, 4].map(|colors| (colors, vec![f64::from(1000 * colors + 5000); SAMPLES_MIN]));
        let (refill, once) = refill_line(&times);
        // 9000 ns and 10 % more for all four colors; 6600 ns for one color, whose share is 2475 ns.
        let charged = refill.expect("enough samples").charged_ns.0;
        assert!((2475..=2476).contains(&charged) && (4124..=4126).contains(&once.0), "{charged} {once:?}");
        for (colors, times) in &times {
            let together = AssumedCost::of(times).expect("enough samples").charged_ns.0;
            assert!(once.0 + u64::from(*colors) * charged >= together, "{colors}");
        }
        assert_eq!(refill_line(&[(1, vec![1.0; 3])]), (None, Ns(0)));
    }

    #[test]
    fn what_disturbs_a_refill_is_charged_without_private_levels_too() {
        let charged =
            |costs: Costs| costs.of_every_set().map(|(name, cost)| (name, cost.charged_ns)).collect::<Vec<_>>();
        assert_eq!(charged(Costs { refill_once_ns: Ns(5), ..Costs::default() }), [("preemption_ns", Ns(5))]);
        assert_eq!(charged(Costs::default()), []);
    }

    #[test]
    fn a_cost_is_missed_as_seldom_as_it_says() {
        // For times distributed uniformly from 0 to 1 s, the quantile of 99 % is 0.99 s.
        let mut random = fastrand::Rng::with_seed(18);
        let missed = (0..2000).filter(|_| {
            let times: Vec<f64> = (0..500).map(|_| random.f64() * 1e9).collect();
            AssumedCost::of(&times).expect("enough samples").high_ns < Ns(990_000_000)
        });
        let missed = missed.count();
        // 50 of 2000 are expected at most; 80 is more than four standard deviations away.
        assert!((1..=80).contains(&missed), "{missed} of 2000");
    }
}
