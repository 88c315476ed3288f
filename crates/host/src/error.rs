//! What can go wrong between isochrome and the machine.

use std::io;
use std::path::PathBuf;

use isochrome_model::units::ParseError;

/// Trouble with the machine or with what it was asked to do; each message carries the values and a hint.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file of the kernel could not be read.
    #[error("{path}: {source}\n  hint: {hint}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// A file of the kernel says something that isochrome does not understand.
    #[error(
        "{path}: `{text}` is not {expected}\n  hint: this kernel writes the file in an unknown form; please report it with `uname -r`"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it says, shortened.
        text: String,
        /// What it should say.
        expected: &'static str,
    },
    /// A list in a file of the kernel is not a list.
    #[error("{path}: {source}")]
    List {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ParseError,
    },
    /// The processor, or the hypervisor above it, offers no performance counters.
    #[error(
        "{event}: this machine offers no such performance counter ({source})\n  hint: in a virtual machine ask the host for a virtual PMU; what isochrome can do by timing it does without counters"
    )]
    CountersAbsent {
        /// The event asked for.
        event: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel keeps performance counters from this user.
    #[error(
        "{event}: performance counters are not permitted, kernel.perf_event_paranoid is {paranoid} ({source})\n  hint: as root: sysctl kernel.perf_event_paranoid=2"
    )]
    CountersForbidden {
        /// The event asked for.
        event: String,
        /// `kernel.perf_event_paranoid`, or `unknown`.
        paranoid: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A performance counter could not be opened or read for another reason.
    #[error(
        "{event}: {action} the performance counter failed: {source}\n  hint: another tool may hold the counters; see `isochrome doctor`"
    )]
    Counters {
        /// The event asked for.
        event: String,
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// More events were asked for than counters work here.
    #[error("{asked} events were asked for, {usable} counters work here{}\n  hint: count fewer events at once", fault.as_deref().map(|f| format!(" ({f})")).unwrap_or_default())]
    CountersTooFew {
        /// Events asked for.
        asked: usize,
        /// Counters that passed the self-test together.
        usable: usize,
        /// What is wrong with the next one, if it failed the self-test.
        fault: Option<String>,
    },
    /// A counter opens and runs but does not count.
    #[error(
        "{event}: the counter runs but read {counted} during {lines} cache misses\n  hint: the hypervisor or the processor does not implement this event; leave it out"
    )]
    CounterDead {
        /// The event.
        event: String,
        /// What it counted.
        counted: u64,
        /// Least number of events that happened.
        lines: u64,
    },
    /// The counters did not count all the time, so their values are not what happened.
    #[error(
        "the counters ran for {running_ns} of {enabled_ns} ns\n  hint: another tool shares them, or the thread ran on a CPU of another type; count fewer events, or pin the thread"
    )]
    CountersInterrupted {
        /// Time for which counting was asked, in ns.
        enabled_ns: u64,
        /// Time for which the group was on the hardware, in ns.
        running_ns: u64,
    },
    /// Signal handlers could not be installed.
    #[error(
        "installing the handler of signal {signal} failed: {source}\n  hint: run outside of what blocks sigaction, such as a seccomp filter"
    )]
    Signal {
        /// Signal number.
        signal: i32,
        /// What the kernel said.
        source: io::Error,
    },
}
