//! Events of the scheduler, and the slices of threads and jobs of tasks that are inferred from them.
//!
//! Events come from a [`source`], which is chosen when it is [opened](open): programs in the kernel ([`bpf`]), the rings of performance events ([`perf`]), or those of tracefs
//! ([`tracefs`]). Counts may come from tasks that poll instead ([`polling`]). Every source appends [`SchedEvent`]s CPU by CPU; readers of
//! several CPUs sort them by time.

pub mod bpf;
pub mod cost;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod jobs;
pub mod open;
pub mod perf;
pub mod polling;
pub mod slices;
pub mod source;
pub mod tracefs;

use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::SwitchOut;

pub use self::error::SchedError;
use crate::sys::perf::GroupReading;

/// An event of the scheduler on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedEvent {
    /// Time, by CLOCK_MONOTONIC.
    pub at: Ns,
    /// The CPU on which it happened.
    pub cpu: CpuId,
    /// Kind of the event, with its data.
    pub kind: EventKind,
}

/// Kind of the event, with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The CPU passed from one thread to another.
    Switch {
        /// The thread that had the CPU; 0 for the idle task.
        from: i32,
        /// Name of the thread that had the CPU; empty if the source does not report it.
        from_name: ThreadName,
        /// Switch-out reason of the thread that had the CPU.
        reason: SwitchOut,
        /// The thread that has the CPU from now on; 0 for the idle task.
        to: i32,
        /// Name of the thread that has the CPU from now on; empty if the source does not report it.
        to_name: ThreadName,
        /// The counters of the CPU; a default reading if the source has no counters.
        reading: GroupReading,
    },
    /// A thread is about to be made runnable. This comes from the CPU that wakes it, and may come before the thread has left its own CPU.
    Waking {
        /// The thread.
        thread: i32,
    },
    /// A sleeping thread was made runnable. This may come from its own CPU, once that CPU serves the interrupt by which another CPU requests the
    /// wake-up.
    Wakeup {
        /// The thread.
        thread: i32,
    },
    /// The kernel accounted run time to a thread, without steal time.
    Runtime {
        /// The thread.
        thread: i32,
        /// Time since the last accounting, or since the thread got the CPU.
        time: Ns,
    },
    /// A thread or process was started.
    Fork {
        /// The thread that started it.
        parent: i32,
        /// The new thread.
        child: i32,
    },
    /// A thread has a new name from now on.
    Named {
        /// The thread.
        thread: i32,
        /// The new name of the thread.
        name: ThreadName,
    },
    /// The kernel had no room for some records before this event.
    Lost {
        /// Number of lost records.
        records: u64,
    },
    /// A task of isochrome that polls has read the counters of its CPU.
    Poll {
        /// The reading.
        reading: GroupReading,
    },
}

/// Returns the switch-out reason by the bits of `prev_state`. [Linux, include/trace/events/sched.h]
fn switch_out(state: u64) -> SwitchOut {
    const SLEEP: u64 = 1;
    const EXIT: u64 = 0x30;
    const PREEMPTED: u64 = 0x100;
    match state {
        0 => SwitchOut::Preempted,
        bits if bits & PREEMPTED != 0 => SwitchOut::Preempted,
        bits if bits & EXIT != 0 => SwitchOut::Ended,
        SLEEP => SwitchOut::Asleep,
        _ => SwitchOut::Blocked,
    }
}

/// The name of a thread, padded with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadName(pub [u8; 16]);

impl ThreadName {
    /// Makes a name of the first 16 bytes of `text`, up to a zero.
    fn of(text: &[u8]) -> ThreadName {
        let mut name = [0; 16];
        name.iter_mut().zip(text.iter().take_while(|byte| **byte != 0)).for_each(|(to, from)| *to = *from);
        ThreadName(name)
    }
}

impl std::fmt::Display for ThreadName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        f.write_str(&String::from_utf8_lossy(&self.0[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_those_that_the_kernel_prints() {
        use SwitchOut::*;
        let reasons = [0, 0x100, 1, 2, 0x10, 0x20, 4].map(switch_out);
        assert_eq!(reasons, [Preempted, Preempted, Asleep, Blocked, Ended, Ended, Blocked]);
    }
}
