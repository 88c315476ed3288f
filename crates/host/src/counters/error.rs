//! Errors of performance counters that cannot be used or count wrong.

use std::io;

use isochrome_model::miss_ratio::Touches;

use crate::error::SystemError;

/// An error with performance counters.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// The processor, or the hypervisor above it, offers no performance counters.
    #[error(
        "{event}: this machine offers no such performance counter ({source})\n  hint: in a virtual machine ask the host for a virtual PMU; \
         isochrome times instead of counting where it can"
    )]
    Absent {
        /// The requested event.
        event: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel keeps performance counters from this user.
    #[error(
        "{event}: performance counters are not permitted, kernel.perf_event_paranoid is {paranoid} ({source})\n  hint: as root: sysctl kernel.perf_event_paranoid=2"
    )]
    Forbidden {
        /// The requested event.
        event: String,
        /// `kernel.perf_event_paranoid`, or `unknown`.
        paranoid: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A performance counter could not be opened or read, for another reason.
    #[error("{event}: {action} the performance counter failed: {source}\n  hint: {}", hint_of_failure(source))]
    Failed {
        /// The requested event.
        event: String,
        /// Action that failed: `opening` or `reading`.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// More events were requested than counters work here.
    #[error("{requested} events were requested, {usable} counters work here{}\n  hint: {}", defect.as_deref().map(|f| format!(" ({f})")).unwrap_or_default(), hint_of_few(*usable))]
    TooFew {
        /// Number of events requested.
        requested: usize,
        /// Number of counters that passed the self-test together.
        usable: usize,
        /// Defect of the next counter, if it failed the self-test.
        defect: Option<String>,
    },
    /// A counter opens and runs but does not count.
    #[error(
        "{event}: the counter runs but read {counted} during {lines} cache misses\n  hint: the hypervisor or the processor does not implement this event; leave it out"
    )]
    Dead {
        /// The event.
        event: String,
        /// Value that the counter read.
        counted: u64,
        /// Least number of events that happened.
        lines: u64,
    },
    /// The counters did not count all the time, so their values are too small.
    #[error(
        "the counters ran for {running_ns} of {enabled_ns} ns\n  hint: another tool shares them, or the thread ran on a CPU of another type; count fewer events, or pin the thread"
    )]
    Interrupted {
        /// Time for which the counters were enabled, in ns.
        enabled_ns: u64,
        /// Time for which the group was on the hardware, in ns.
        running_ns: u64,
    },
    /// A counter read less than before.
    #[error(
        "{event}: the counter went back from {before} to {after}\n  hint: the hypervisor does not keep the counters of this machine; use time instead"
    )]
    WentBack {
        /// The event.
        event: String,
        /// The earlier value.
        before: u64,
        /// The later value.
        after: u64,
    },
    /// No event is known that counts the misses of a level.
    #[error(
        "no event is known that counts the misses of {touches} in level {level} on `{processor}`\n  hint: use time instead"
    )]
    NoMissEvent {
        /// Cache level.
        level: u8,
        /// Kind of access that misses: data or code.
        touches: Touches,
        /// Processor model.
        processor: String,
    },
    /// No events are known from which the miss ratio of a level follows.
    #[error(
        "no events are known that count accesses and misses of level {level} on `{processor}`\n  hint: another level may have them"
    )]
    NoMissRatio {
        /// Cache level.
        level: u8,
        /// Processor model.
        processor: String,
    },
    /// The memory or the code for the self-test could not be made.
    #[error("{0}")]
    System(#[from] SystemError),
}

/// Returns the remedy for a counter that cannot be opened or read.
fn hint_of_failure(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "every counter is an open file; allow more of them (ulimit -n)",
        _ => "another tool may hold the counters",
    }
}

/// Returns the remedy where only `usable` counters work.
fn hint_of_few(usable: usize) -> &'static str {
    match usable {
        0 => "in a virtual machine the host may show counters that do not count; use time instead",
        _ => "count fewer events at once",
    }
}
