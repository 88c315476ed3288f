//! Replacement within the partitions of a cache: the assumptions of bounds, and measurements that can contradict them.
//!
//! Bounds charge one refill for each partition that another task displaced. Under LRU that is enough: the misses of a set whose contents were
//! displaced end as soon as the task has loaded its lines again. Under FIFO and PLRU a preemption can cost more misses than it displaced lines,
//! because the state that it leaves in a set still decides which lines are replaced later. \[Burguiere2009\] How many more depends on the policy and
//! the accesses, and random replacement has no limit. \[Reineke2013\] So for an unknown policy nothing is charged, and nothing may be displaced: the
//! contents of a set that only one task uses, and the state by which its lines are replaced, depend on that task alone.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named;
use crate::stats::{median, quantile_interval};
use crate::units::CpuId;

/// Least share of the lines that LRU must be seen to miss where it misses all, for the measurement not to contradict it.
pub const CYCLIC_MIN: f64 = 0.9;
/// Largest share of the lines that LRU may be seen to miss where it misses none, in addition to what a control misses.
pub const REUSED_MAX: f64 = 0.1;

named! {
    /// Assumption of bounds about the replacement policy of the partitioned cache.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Replacement, "an assumption about replacement" {
        /// The least recently used line is replaced, so one refill makes up for a displaced partition.
        #[default]
        Lru = "lru",
        /// Any line may be replaced, so tasks that share partitions have no bound.
        Any = "any",
    }
}

/// Share of the visited lines that were missed, over several blocks of samples: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MissShare {
    /// Median of the blocks.
    pub median: f64,
    /// Lower end of the interval that contains the true median with a confidence of 95 %.
    pub low: f64,
    /// Upper end of this interval.
    pub high: f64,
}

impl MissShare {
    /// Returns the share that `blocks` show, one value for each; `None` for fewer than the six that the interval needs. Values must not be NaN.
    /// Values outside of 0 to 1, which noise causes, count as 0 or 1.
    pub fn of(blocks: &[f64]) -> Option<Self> {
        let blocks: Vec<f64> = blocks.iter().map(|share| share.clamp(0.0, 1.0)).collect();
        let [low, high] = quantile_interval(&blocks, 0.5)?;
        Some(Self { median: median(&blocks)?, low, high })
    }
}

/// Test of a cache level of W ways on one CPU: two measurements whose results LRU determines, and the control of the second.
///
/// Passing both does not prove LRU, as other policies may pass them as well. Failing one disproves it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReplacementTest {
    /// The CPU.
    pub cpu: CpuId,
    /// The cache level.
    pub level: u8,
    /// Number of blocks of samples.
    pub blocks: u32,
    /// Misses where W + 1 pages of a color are visited one after the other, over and over. LRU and FIFO miss all lines.
    pub cyclic: MissShare,
    /// Misses where W pages of a color are visited, then some of the first ones again, then half as many others as fit, and then the first ones are
    /// timed. LRU misses no line, FIFO all of them.
    pub reused: MissShare,
    /// Misses where W pages of a color, which fit, are visited over and over. This is the control of `reused`: other users of the sets cause misses
    /// here, too.
    pub fitting: MissShare,
}

impl ReplacementTest {
    /// Whether one of the results cannot be that of LRU: the interval of the first lies below [`CYCLIC_MIN`], or that of the second above its
    /// control by more than [`REUSED_MAX`].
    pub fn contradicts_lru(&self) -> bool {
        self.cyclic.high < CYCLIC_MIN || self.reused.low > self.fitting.high + REUSED_MAX
    }

    /// Returns the test that a profile holds; `None` if `text` is not a profile, or holds no such test.
    pub fn stated(text: &str) -> Option<ReplacementTest> {
        #[derive(Deserialize)]
        struct Stated {
            replacement_test: Option<ReplacementTest>,
        }
        serde_json::from_str::<Stated>(text).ok()?.replacement_test
    }
}

impl fmt::Display for ReplacementTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| share * 100.0;
        write!(
            f,
            "{:.0} % of the lines were missed ({:.0} to {:.0}) where LRU misses all, and {:.0} % ({:.0} to {:.0}) where it misses none, {:.0} % in the control",
            percent(self.cyclic.median),
            percent(self.cyclic.low),
            percent(self.cyclic.high),
            percent(self.reused.median),
            percent(self.reused.low),
            percent(self.reused.high),
            percent(self.fitting.median),
        )
    }
}

/// A measurement that contradicts bounds, because the bounds assume LRU and charge refills.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contradicted {
    /// Names of the tasks that are charged for refilling partitions.
    pub tasks: Vec<String>,
    /// The measurement.
    pub test: ReplacementTest,
}

impl Contradicted {
    /// Returns the contradiction between `test` and bounds that charge refills to `tasks`; `None` if nothing contradicts them.
    ///
    /// `replacement`: the assumption of the bounds.
    pub fn of(replacement: Replacement, tasks: Vec<String>, test: Option<ReplacementTest>) -> Option<Self> {
        let test = test.filter(ReplacementTest::contradicts_lru)?;
        (replacement == Replacement::Lru && !tasks.is_empty()).then_some(Self { tasks, test })
    }
}

impl fmt::Display for Contradicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, test } = self;
        write!(
            f,
            "the bounds assume LRU replacement for {}, which the cache was measured not to have (CPU {}, level {}: {test})",
            tasks.join(", "),
            test.cpu.0,
            test.level
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a test whose blocks all show these shares, in percent.
    pub(crate) fn test_of(cyclic: u32, reused: u32) -> ReplacementTest {
        let share = |percent: u32| MissShare::of(&[f64::from(percent) / 100.0; 6]).expect("six blocks are enough");
        let [cyclic, reused, fitting] = [cyclic, reused, 0].map(share);
        ReplacementTest { cpu: CpuId(0), level: 2, blocks: 6, cyclic, reused, fitting }
    }

    #[test]
    fn a_test_contradicts_lru_only_beyond_the_thresholds() {
        assert!(!test_of(100, 0).contradicts_lru() && !test_of(90, 10).contradicts_lru());
        // Of a random policy, and of FIFO.
        assert!(test_of(60, 40).contradicts_lru() && test_of(100, 100).contradicts_lru());
        // The interval decides, not the median: of six blocks it spans all.
        let cyclic = MissShare::of(&[0.5, 0.6, 0.5, 0.6, 0.5, 0.95]).unwrap();
        assert!(!ReplacementTest { cyclic, ..test_of(100, 0) }.contradicts_lru());
        // What is lost in the control as well is not a sign of the policy.
        let fitting = MissShare::of(&[0.35; 6]).unwrap();
        assert!(!ReplacementTest { fitting, ..test_of(100, 40) }.contradicts_lru());
        assert_eq!(MissShare::of(&[0.5; 5]), None);
        assert_eq!(
            MissShare::of(&[-0.1, 0.0, 0.0, 1.2, 1.0, 1.0]),
            Some(MissShare { median: 0.5, low: 0.0, high: 1.0 })
        );
    }

    #[test]
    fn only_bounds_that_charge_refills_under_lru_are_contradicted() {
        let of = |replacement, names: &[&str], test| {
            Contradicted::of(replacement, names.iter().map(ToString::to_string).collect(), test)
        };
        let failed = Some(test_of(60, 40));
        let text = of(Replacement::Lru, &["a", "b"], failed).unwrap().to_string();
        assert!(text.contains("for a, b") && text.contains("60 % of the lines were missed (60 to 60)"), "{text}");
        assert_eq!(of(Replacement::Any, &["a"], failed), None);
        assert_eq!(of(Replacement::Lru, &[], failed), None);
        assert_eq!(of(Replacement::Lru, &["a"], Some(test_of(100, 0))), None);
        assert_eq!(of(Replacement::Lru, &["a"], None), None);
    }

    #[test]
    fn an_assumption_is_read_by_its_name() {
        let parsed = |text: &str| text.parse::<Replacement>();
        assert_eq!((parsed("lru"), parsed("any")), (Ok(Replacement::Lru), Ok(Replacement::Any)));
        let error = parsed("fifo").unwrap_err().to_string();
        assert_eq!(error, "`fifo` is not an assumption about replacement\n  hint: there are lru, any");
    }
}
