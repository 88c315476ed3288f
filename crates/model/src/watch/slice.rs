//! Entries of the record of a CPU: slices, gaps, and the state of the watch itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Cost;
use crate::printable;
use crate::units::{CpuId, Ns};

/// Counts of the events in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Number of accesses to the watched level.
    pub accesses: u64,
    /// Number of accesses that missed.
    pub misses: u64,
    /// Number of instructions retired.
    pub instructions: u64,
    /// Number of cycles of the core.
    pub cycles: u64,
}

impl Counts {
    /// Returns misses per access; `None` without accesses.
    pub fn miss_ratio(self) -> Option<f64> {
        (self.accesses > 0).then(|| self.misses as f64 / self.accesses as f64)
    }

    pub(super) fn add(&mut self, more: Counts) {
        self.accesses += more.accesses;
        self.misses += more.misses;
        self.instructions += more.instructions;
        self.cycles += more.cycles;
    }
}

/// Reason why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SwitchOut {
    /// Another thread preempted this thread.
    Preempted,
    /// The thread sleeps until it is woken.
    Asleep,
    /// The thread waits for the kernel or a device, or was stopped.
    Blocked,
    /// The thread has ended.
    Ended,
}

/// A time interval in which a thread had a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// CPU of the slice.
    pub cpu: CpuId,
    /// Number of the thread.
    pub thread: i32,
    /// Name of the thread.
    pub name: String,
    /// Begin of the slice, by CLOCK_MONOTONIC.
    pub begin: Ns,
    /// End of the slice.
    pub end: Ns,
    /// Reason why the thread left the CPU.
    pub left: SwitchOut,
    /// Counts of events in the slice; absent without counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
}

/// A time interval in which nothing is known of a CPU, so slices are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// CPU of the gap.
    pub cpu: CpuId,
    /// End of the gap.
    pub end: Ns,
    /// Number of events that the kernel had no room for; `None` if other programs used the counters.
    pub lost: Option<u64>,
}

/// State of a watch as a whole. Each state includes what the earlier ones contain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// Steal time of each CPU; empty if the kernel does not report it.
    #[serde(default, alias = "stolen", skip_serializing_if = "Vec::is_empty")]
    pub steal: Vec<CpuSteal>,
    /// Cost of the watch; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Source of the switches; absent in records of versions that did not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Notes on what the watch cannot report, and why.
    pub notes: Vec<String>,
}

/// Share of a CPU's time that is steal time, in which the hypervisor gave the CPU to others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuSteal {
    /// CPU of the steal time.
    pub cpu: CpuId,
    /// Share of the time, 0 to 1.
    pub share: f64,
}

/// An entry of the record of a CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entry {
    /// A thread had the CPU.
    Slice(Slice),
    /// It is not known which thread had the CPU.
    Gap(Gap),
    /// The state of the watch itself so far.
    State(State),
}

/// Header line of a file of [`csv_line`]s.
pub const CSV_HEAD: &str = "begin_ns,end_ns,cpu,thread,name,left,accesses,misses,instructions,cycles\n";

/// Formats a slice as a line of CSV; absent counts are empty fields.
pub fn csv_line(slice: &Slice) -> String {
    let left = match slice.left {
        SwitchOut::Preempted => "preempted",
        SwitchOut::Asleep => "asleep",
        SwitchOut::Blocked => "blocked",
        SwitchOut::Ended => "ended",
    };
    let number = |of: fn(Counts) -> u64| slice.counts.map_or_else(String::new, |counts| of(counts).to_string());
    format!(
        "{},{},{},{},\"{}\",{left},{},{},{},{}\n",
        slice.begin.0,
        slice.end.0,
        slice.cpu.0,
        slice.thread,
        printable::line(&slice.name).replace('"', "\"\""),
        number(|counts| counts.accesses),
        number(|counts| counts.misses),
        number(|counts| counts.instructions),
        number(|counts| counts.cycles)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::fixture::{slice, state};

    #[test]
    fn slices_read_back_as_they_were_recorded() {
        let one =
            Slice { counts: Some(Counts { misses: 3, ..Counts::default() }), ..slice(1, 2, 3, 4, SwitchOut::Blocked) };
        let gap = |lost| Entry::Gap(Gap { cpu: CpuId(1), end: Ns(7), lost });
        let state = Entry::State(state());
        for entry in
            [Entry::Slice(one), Entry::Slice(slice(9, 0, 1, 2, SwitchOut::Ended)), gap(Some(3)), gap(None), state]
        {
            assert_eq!(serde_json::from_str::<Entry>(&serde_json::to_string(&entry).unwrap()).unwrap(), entry);
        }
    }
}
