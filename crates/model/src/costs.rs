//! Costs that the response-time analysis charges because they were measured.
//!
//! A measured cost is an assumption of the analysis, not a bound: a bound that rests on it holds *given measured costs*. What is assumed is
//! therefore stated with the number of samples, the quantile, the confidence and the margin.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{median, quantile_interval};
use crate::units::{CpuId, Ns};

/// Share of all times that the assumed cost is to cover, before the margin.
pub const QUANTILE: f64 = 0.99;
/// Probability that the sample taken for that quantile is not below it: one end of an interval of 95 %.
pub const CONFIDENCE: f64 = 0.975;
/// Share that is added to it.
pub const MARGIN: f64 = 0.1;
/// Fewest samples that tell that quantile with that confidence: 0.99^368 is the first power below 0.025.
pub const SAMPLES_MIN: usize = 368;

/// A cost that the analysis charges because it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssumedCost {
    /// What is charged, the margin included.
    pub charged_ns: Ns,
    /// A sample that is at least the quantile, with the confidence stated.
    pub high_ns: Ns,
    /// The median sample, to compare.
    pub median_ns: Ns,
    /// Number of samples.
    pub samples: u64,
    /// Share of all times that `high_ns` covers.
    pub quantile: f64,
    /// Probability with which it does so, whatever the distribution of the times.
    pub confidence: f64,
    /// Share that is added to `high_ns`.
    pub margin: f64,
}

impl AssumedCost {
    /// The cost to assume after `times_ns` were measured; `None` for fewer than [`SAMPLES_MIN`]. Times must not be NaN.
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
    /// The level whose colors they are about.
    pub level: u8,
    /// When they were measured, in seconds since 1970 (UTC).
    pub measured_at: u64,
    /// Refill time of one color: a dependent load of each of its lines, after dirty lines of the same colors displaced them and the TLB was
    /// displaced as well; the share of one color in the time for all colors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill: Option<AssumedCost>,
    /// Longest time by which the refill of fewer colors exceeds their share of that time, margin included: what disturbs a refill, once for each
    /// preemption. It is charged together with [`preemption`](Self::preemption).
    #[serde(default)]
    pub refill_once_ns: Ns,
    /// Refill of the private levels inside, TLB included, after a preemption that leaves the colors alone: a dependent load of each line that
    /// the first level holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<AssumedCost>,
    /// One context switch: half of the time that a task is away when a task of higher priority is released, does nothing and waits again. The interrupt that
    /// releases it is included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<AssumedCost>,
    /// The timer interrupt that releases a task of lower priority: the time for which it takes the CPU from the task that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_interrupt: Option<AssumedCost>,
}

/// The refill time of a color to assume, and what is to be added once, after `times` were measured: for each number of colors, ascending, the
/// times in ns of refilling so many together.
///
/// With Δ the share of one color in the cost of all, and a the largest difference between the cost of k colors and k Δ, the refill of
/// k colors costs at most a + k Δ for each k that was measured. So what disturbs a refill, whatever it refills, counts once and not for each color.
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
    /// The costs that a set has besides the refill time, by the name under which it states them.
    pub fn of_every_set(&self) -> impl Iterator<Item = (&'static str, AssumedCost)> {
        let once = self.refill_once_ns.0;
        let preemption = self.preemption.map(|cost| AssumedCost { charged_ns: Ns(cost.charged_ns.0 + once), ..cost });
        let costs = [
            ("preemption_ns", preemption),
            ("switch_ns", self.switch),
            ("release_interrupt_ns", self.release_interrupt),
        ];
        costs.into_iter().filter_map(|(name, cost)| Some((name, cost?)))
    }

    /// The measured costs that a profile holds; `None` where `text` is none, or one without measured costs.
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
            writeln!(f, "    of preemption_ns, {once:.2} us are for what disturbs a refill, once whatever it refills")?;
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
        // With the fewest samples the quantile is covered by the largest alone.
        let cost = AssumedCost::of(&times(SAMPLES_MIN)).expect("enough samples");
        assert_eq!((cost.high_ns, cost.charged_ns, cost.median_ns), (Ns(368), Ns(405), Ns(185)));
    }

    #[test]
    fn the_line_of_refills_covers_every_number_of_colors() {
        // A refill takes 1000 ns for each color, and 5000 more whatever it refills.
        let times = [1, 2, 4].map(|colors| (colors, vec![f64::from(1000 * colors + 5000); SAMPLES_MIN]));
        let (refill, once) = refill_line(&times);
        // 9000 ns and 10 % more for all four colors; 6600 ns for one, of which 2475 are its share.
        let charged = refill.expect("enough samples").charged_ns.0;
        assert!((2475..=2476).contains(&charged) && (4124..=4126).contains(&once.0), "{charged} {once:?}");
        for (colors, times) in &times {
            let together = AssumedCost::of(times).expect("enough samples").charged_ns.0;
            assert!(once.0 + u64::from(*colors) * charged >= together, "{colors}");
        }
        assert_eq!(refill_line(&[(1, vec![1.0; 3])]), (None, Ns(0)));
    }

    #[test]
    fn a_cost_is_missed_as_seldom_as_it_says() {
        // Of times that are equally likely from 0 to 1, the quantile of 99 % is 0.99.
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
