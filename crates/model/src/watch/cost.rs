//! The cost of watching: of the watching process, and of the records that the kernel writes for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::median;
use crate::units::CpuId;

/// Goal for the cost: at most this share of a CPU at 10 000 events a second.
pub const COST_GOAL: f64 = 0.01;

/// What watching cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Share of one CPU that the watching process took.
    pub cpu_share: f64,
    /// Times per second that it looked.
    pub looks_per_second: f64,
    /// Events per second that the kernel wrote for it.
    pub events_per_second: f64,
    /// Times per second that its tasks took a CPU to read counters; absent where none polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls_per_second: Option<f64>,
    /// What each of the events cost the CPU on which it was written; absent where that could not be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordCost>,
}

impl Cost {
    /// Estimates the share of one CPU that the kernel takes to write records, summed over the CPUs watched: median, lower
    /// and upper quartile.
    pub fn kernel_share(&self) -> Option<[f64; 3]> {
        let record = self.record?;
        Some([record.ns, record.ns_low, record.ns_high].map(|ns| self.events_per_second * ns.max(0.0) / 1e9))
    }
}

/// What the kernel takes to write a record, on the CPU that it is of: measured on this machine before the watch, alternating between with and without records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordCost {
    /// Where it was measured.
    pub cpu: CpuId,
    /// The median of the pairs, in ns.
    pub ns: f64,
    /// A quarter of them was below this.
    pub ns_low: f64,
    /// A quarter of them was above this.
    pub ns_high: f64,
    /// How many there were.
    pub pairs: u64,
}

impl RecordCost {
    /// Summarizes the ns that a record took in each pair; `None` without pairs.
    pub fn of(cpu: CpuId, pairs: &[f64]) -> Option<RecordCost> {
        let mut sorted = pairs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let quarter = |quarter: usize| sorted.get(sorted.len() * quarter / 4).copied();
        let (ns_low, ns_high) = (quarter(1)?, quarter(3)?);
        Some(RecordCost { cpu, ns: median(pairs)?, ns_low, ns_high, pairs: pairs.len() as u64 })
    }
}
