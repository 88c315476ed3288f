//! The cost of watching: that of the watching process, and that of the records that the kernel writes for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::median;
use crate::units::CpuId;

/// Goal for the cost: at most this share of a CPU at 10 000 events a second.
pub const COST_GOAL: f64 = 0.01;

/// Cost of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Share of one CPU that the watching process used.
    pub cpu_share: f64,
    /// Number of times per second that the watching process read the kernel's records.
    #[serde(rename = "looks_per_second")]
    pub reads_per_second: f64,
    /// Number of events per second that the kernel wrote.
    pub events_per_second: f64,
    /// Number of times per second that the polling tasks of the watch took a CPU to read counters; absent if no tasks poll.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls_per_second: Option<f64>,
    /// Cost of an event to the CPU on which it was written; absent if it could not be measured.
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

/// Time that the kernel takes to write a record, on the CPU that the record is about. This time was measured on this machine
/// before the watch, in alternating runs with and without records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordCost {
    /// CPU on which the time was measured.
    pub cpu: CpuId,
    /// Median over the pairs of runs, in ns.
    pub ns: f64,
    /// Lower quartile over the pairs of runs, in ns.
    pub ns_low: f64,
    /// Upper quartile over the pairs of runs, in ns.
    pub ns_high: f64,
    /// Number of pairs of runs, one with and one without records.
    pub pairs: u64,
}

impl RecordCost {
    /// Summarizes the time in ns that a record took in each pair of runs; `None` without pairs.
    pub fn of(cpu: CpuId, pairs: &[f64]) -> Option<RecordCost> {
        let mut sorted = pairs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let quarter = |quarter: usize| sorted.get(sorted.len() * quarter / 4).copied();
        let (ns_low, ns_high) = (quarter(1)?, quarter(3)?);
        Some(RecordCost { cpu, ns: median(pairs)?, ns_low, ns_high, pairs: pairs.len() as u64 })
    }
}
