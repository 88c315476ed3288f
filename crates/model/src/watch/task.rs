//! Statistics of a task: of all its slices, and of each bucket of the watch.

use std::collections::{BTreeMap, VecDeque};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Watched;
use super::{Counts, Slice, SwitchOut};
use crate::stats::HighWaterMark;
use crate::units::{CpuId, Ns};

/// Slices with fewer accesses than this get no miss ratio, because a few misses at the switch would determine it.
const ACCESSES_MIN: u64 = 1000;

/// Maximum number of slices kept of each task, for its timeline.
pub(super) const KEPT: usize = 64;

/// The activity of a task in one interval of the watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// Time for which the task had a CPU, in ns.
    pub run_ns: u64,
    /// Part of `run_ns` in slices that have a miss ratio, in ns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rated_ns: u64,
    /// Sum of the lengths of the slices that have a miss ratio, in ns, each multiplied by the miss ratio of the slice.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub missed_ns: f64,
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_nothing(number: &f64) -> bool {
    *number == 0.0
}

impl Bucket {
    pub(super) fn add(&mut self, run_ns: u64, ratio: Option<f64>) {
        self.run_ns += run_ns;
        if let Some(ratio) = ratio {
            self.rated_ns += run_ns;
            self.missed_ns += run_ns as f64 * ratio;
        }
    }

    pub(super) fn merge(&mut self, other: Bucket) {
        self.run_ns += other.run_ns;
        self.rated_ns += other.rated_ns;
        self.missed_ns += other.missed_ns;
    }

    /// Returns the mean miss ratio, weighted by time; `None` if no slice has a miss ratio.
    pub fn miss_ratio(self) -> Option<f64> {
        (self.rated_ns > 0).then(|| self.missed_ns / self.rated_ns as f64)
    }
}

/// Statistics of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatistics {
    /// Name of the task.
    pub name: String,
    /// CPU that the task had last.
    pub cpu: CpuId,
    /// Number of slices, each of which ends with a switch.
    pub slices: u64,
    /// Number of slices that ended because another thread took the CPU.
    pub preemptions: u64,
    /// Number of slices on another CPU than the previous slice.
    pub migrations: u64,
    /// Time for which the task had a CPU, in ns.
    pub run_ns: u64,
    /// Longest slice, in ns.
    pub slice_ns_max: HighWaterMark,
    /// Longest time on a CPU between two sleeps, or from the last sleep to the end of the task, in ns; absent as long as
    /// neither was observed. Jobs with missing slices are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_ns_max: Option<HighWaterMark>,
    /// Sum of all counts; absent without counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// Miss ratio of the last slice that has a miss ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_ratio_now: Option<f64>,
    /// Highest miss ratio of a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_ratio_worst: Option<f64>,
    /// The last slices: begin, end, miss ratio. [Sebek2002, Figure 6]
    pub timeline: VecDeque<(Ns, Ns, Option<f64>)>,
    /// Statistics of the buckets of the watch, by their numbers since the clock's zero in units of [`Watched::bucket_ns`]. Buckets in
    /// which the task had no CPU are left out.
    #[serde(default, rename = "parts")]
    pub buckets: BTreeMap<u64, Bucket>,
    /// Whether the task has ended.
    #[serde(default)]
    pub ended: bool,
    /// Time on a CPU since the last sleep, in ns. `None` after a gap until the task sleeps the next time, because the task may
    /// have slept in the gap.
    #[serde(skip)]
    pub(super) job_ns: Option<u64>,
}

impl TaskStatistics {
    pub(super) fn new(slice: &Slice) -> TaskStatistics {
        TaskStatistics {
            name: slice.name.clone(),
            cpu: slice.cpu,
            slices: 0,
            preemptions: 0,
            migrations: 0,
            run_ns: 0,
            slice_ns_max: HighWaterMark { value: 0, n: 0, last_rose_at: 0 },
            job_ns_max: None,
            counts: None,
            miss_ratio_now: None,
            miss_ratio_worst: None,
            timeline: VecDeque::new(),
            buckets: BTreeMap::new(),
            ended: false,
            job_ns: Some(0),
        }
    }

    pub(super) fn note(&mut self, slice: &Slice, bucket_ns: u64) {
        let time = slice.end.0.saturating_sub(slice.begin.0);
        self.slices += 1;
        self.preemptions += u64::from(slice.left == SwitchOut::Preempted);
        self.migrations += u64::from(self.cpu != slice.cpu);
        self.cpu = slice.cpu;
        if !slice.name.is_empty() {
            self.name.clone_from(&slice.name);
        }
        self.run_ns += time;
        self.job_ns = self.job_ns.map(|job| job + time);
        self.slice_ns_max.push(time);
        if matches!(slice.left, SwitchOut::Asleep | SwitchOut::Ended) {
            match (self.job_ns.replace(0), &mut self.job_ns_max) {
                (Some(job), Some(mark)) => mark.push(job),
                (Some(job), none) => *none = HighWaterMark::of(&[job]),
                (None, _) => {}
            }
        }
        if let Some(counts) = slice.counts {
            self.counts.get_or_insert_default().add(counts);
        }
        let ratio = slice.counts.filter(|counts| counts.accesses >= ACCESSES_MIN).and_then(Counts::miss_ratio);
        if let Some(ratio) = ratio {
            self.miss_ratio_now = Some(ratio);
            self.miss_ratio_worst = Some(self.miss_ratio_worst.map_or(ratio, |worst| worst.max(ratio)));
        }
        if self.timeline.len() == KEPT {
            self.timeline.pop_front();
        }
        self.timeline.push_back((slice.begin, slice.end, ratio));
        self.ended = slice.left == SwitchOut::Ended;
        let mut begin = slice.begin.0;
        while begin < slice.end.0 {
            let bucket = begin / bucket_ns;
            let end = slice.end.0.min((bucket + 1) * bucket_ns);
            self.buckets.entry(bucket).or_default().add(end - begin, ratio);
            begin = end;
        }
    }

    /// Returns misses per access over all slices; `None` without counters or accesses.
    pub fn miss_ratio(&self) -> Option<f64> {
        self.counts?.miss_ratio()
    }

    /// Returns misses per second on a CPU; `None` without counters or time on a CPU.
    pub fn misses_per_second(&self) -> Option<f64> {
        (self.run_ns > 0).then_some(self.counts?.misses as f64 * 1e9 / self.run_ns as f64)
    }

    /// Returns instructions per cycle; `None` without counters or cycles.
    pub fn instructions_per_cycle(&self) -> Option<f64> {
        let counts = self.counts?;
        (counts.cycles > 0).then(|| counts.instructions as f64 / counts.cycles as f64)
    }
}
