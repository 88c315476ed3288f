//! Prices of the features of a core: the bounds with it, and the bounds of the same cores as if it were not there.

use std::ops::Range;

use super::super::{Analysis, Charges, Conditions, CoreTask, Workspace, responses};
use super::Case;
use crate::supply::Supply;
use crate::taskset::Holds;

/// A feature whose price is found by leaving it out of the analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Refills of displaced partitions.
    Refills,
    /// Refills of displaced private levels.
    PrivateLevels,
    /// Context switches.
    Switches,
    /// Interrupts that release jobs.
    Interrupts,
    /// First jobs that find even their own partitions cold.
    ColdStart,
    /// Locks, or stated blocking times.
    Locks,
    /// Nonpreemptive intervals.
    Nonpreemptive,
    /// Release jitter.
    Jitter,
    /// Time for which the core is withheld.
    Supply,
}

impl Feature {
    /// Every feature, in the order of the table.
    pub const ALL: [Self; 9] = [
        Self::Refills,
        Self::PrivateLevels,
        Self::Switches,
        Self::Interrupts,
        Self::ColdStart,
        Self::Locks,
        Self::Nonpreemptive,
        Self::Jitter,
        Self::Supply,
    ];

    /// Returns the words for the feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refills => "refills of partitions",
            Self::PrivateLevels => "private levels",
            Self::Switches => "context switches",
            Self::Interrupts => "release interrupts",
            Self::ColdStart => "cold start",
            Self::Locks => "locks and blocking",
            Self::Nonpreemptive => "nonpreemptive intervals",
            Self::Jitter => "jitter",
            Self::Supply => "withheld time",
        }
    }

    /// Takes the feature from a core. Returns whether the core had it.
    fn take(self, core: &mut [CoreTask], charges: &mut Charges, supply: &mut Supply) -> bool {
        let before = (core.to_vec(), *charges, supply.clone());
        let each = |core: &mut [CoreTask], change: fn(&mut CoreTask)| core.iter_mut().for_each(change);
        match self {
            Self::Refills => charges.refill_ns = 0,
            Self::PrivateLevels => charges.preemption_ns = 0,
            Self::Switches => charges.switch_ns = 0,
            Self::Interrupts => charges.release_interrupt_ns = 0,
            Self::ColdStart => charges.cold_start = false,
            Self::Locks => each(core, |task| (task.holds, task.blocking_ns) = (Holds::default(), 0)),
            Self::Nonpreemptive => each(core, |task| task.nonpreemptive_ns = 0),
            Self::Jitter => each(core, |task| task.jitter_ns = 0),
            Self::Supply => *supply = Supply::default(),
        }
        (&before.0[..], before.1, &before.2) != (&*core, *charges, &*supply)
    }
}

/// Price of a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// Number of cores that have the feature.
    pub cores: u64,
    /// Number of tasks with a bound within the deadline.
    pub with: u64,
    /// Number of tasks that would have a bound within the deadline without the feature.
    pub without: u64,
    /// Sum of the bounds with the feature as shares of those without it, over tasks that have both.
    pub growth: f64,
}

/// Returns what each feature adds to the bounds of `analysis`, over the cores of these seeds that have it ([`Case::of`]). All of them are
/// withheld at times.
pub fn prices(seeds: Range<u64>, analysis: Analysis) -> Vec<(Feature, Price)> {
    let mut prices = Feature::ALL.map(|feature| (feature, Price::default()));
    let mut workspace = Workspace::default();
    for seed in seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut case = Case::of(seed, &mut random);
        case.withhold(&mut random);
        let all = case.supply();
        let mut bounds = |core: &[CoreTask], charges: Charges, supply: &Supply| -> Vec<Option<u64>> {
            let conditions = Conditions { charges, supply: Some(supply) };
            responses(core, conditions, analysis, &mut workspace).map(|verdict| verdict.response_ns()).collect()
        };
        let with = bounds(&case.analyzed, case.charges, &all);
        for (feature, price) in &mut prices {
            let (mut core, mut charges, mut supply) = (case.analyzed.clone(), case.charges, all.clone());
            if !feature.take(&mut core, &mut charges, &mut supply) {
                continue;
            }
            price.cores += 1;
            for pair in with.iter().zip(bounds(&core, charges, &supply)) {
                price.with += u64::from(pair.0.is_some());
                price.without += u64::from(pair.1.is_some());
                if let (&Some(with), Some(without)) = pair {
                    price.growth += with as f64 / without as f64;
                }
            }
        }
    }
    prices.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bound_is_smaller_with_a_feature_than_without() {
        for (feature, price) in prices(0..2_000, Analysis::PersistenceMultiset) {
            assert!(price.cores > 100, "{feature:?}: {price:?}");
            assert!(price.with <= price.without && price.growth >= price.with as f64, "{feature:?}: {price:?}");
        }
    }
}
