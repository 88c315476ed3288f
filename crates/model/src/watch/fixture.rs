//! Test fixtures: slices, and states of a watch.

use super::{Cost, CpuSteal, RecordCost, Slice, State, SwitchOut};
use crate::units::{CpuId, Ns};

pub fn slice(thread: i32, cpu: u32, begin: u64, end: u64, left: SwitchOut) -> Slice {
    let (cpu, begin, end) = (CpuId(cpu), Ns(begin), Ns(end));
    Slice { cpu, thread, name: format!("task {thread}"), begin, end, left, counts: None }
}

/// Returns a state in which a quarter of CPU 0's time is steal time, 10 000 records a second take 1 to 3 us each, and
/// reading them takes 0.5 % of a CPU.
pub fn state() -> State {
    let pairs = [1000.0, 1500.0, 2000.0, 2500.0, 3000.0];
    let cost = Cost {
        cpu_share: 0.005,
        reads_per_second: 20.0,
        events_per_second: 10_000.0,
        polls_per_second: None,
        record: RecordCost::of(CpuId(0), &pairs),
    };
    let steal = vec![CpuSteal { cpu: CpuId(0), share: 0.25 }];
    let source = Some("tracefs".to_owned());
    State { steal, cost: Some(cost), source, notes: vec!["no counters here".to_owned()] }
}
