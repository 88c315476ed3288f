//! Readers of the kernel's rings, for the fuzz target `records`.

use super::bpf::{self, btf::Btf};
use super::{perf, tracefs};

/// Reads `bytes` as each kind of data that the kernel writes: a page of tracefs, a record of performance events or of a program in the kernel, and
/// its types.
pub fn read_records(bytes: &[u8]) {
    tracefs::page_events(bytes, |_, _| {});
    for kind in 0..16 {
        perf::parse(kind, bytes, &[0, 16, 24, 32]);
        perf::parse_own(kind, u16::MAX, bytes);
    }
    bpf::parse(bytes, usize::MAX);
    if let Some(types) = Btf::parse(bytes.to_vec()) {
        let _ = types.offset("task_struct", "pid");
        let _ = types.tracepoint("sched_wakeup", &[true]);
    }
}
