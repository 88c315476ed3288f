//! The choice of a source of events for this machine.

use isochrome_model::units::CpuId;

use super::bpf::{BpfEvents, StartedProcesses};
use super::error::SchedError;
use super::perf::PerfRings;
use super::source::Source;
use super::tracefs::Tracefs;
use crate::counters::events::Event as Counted;

/// Environment variable that keeps programs from being loaded into the kernel, for tests and comparisons.
const WITHOUT_BPF: &str = "ISOCHROME_WITHOUT_BPF";

/// The namespace in which the kernel itself numbers processes. [Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO]
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// Opens a source of switches on `cpus` with the counts of `counted`, and of starts of threads on these CPUs and `elsewhere`: by programs
/// in the kernel if possible, else by rings of performance events.
///
/// Fails as [`PerfRings::open`] does.
pub fn of_switches(cpus: &[CpuId], elsewhere: &[CpuId], counted: &[Counted]) -> Result<Box<dyn Source>, SchedError> {
    if let Some(source) = by_bpf(|| BpfEvents::of_switches(cpus, counted)) {
        return Ok(Box::new(source));
    }
    Ok(Box::new(PerfRings::open(if elsewhere.is_empty() { cpus } else { elsewhere }, counted)?))
}

/// Does the same as [`of_jobs`] with a source that reports the counts of `counted` at every switch; `None` if that is impossible.
pub fn counting_jobs(cpus: &[CpuId], counted: Option<Counted>) -> Option<Box<dyn Source>> {
    by_bpf(|| BpfEvents::of_jobs(cpus, counted)).map(|source| Box::new(source) as Box<dyn Source>)
}

/// Opens a source of switches on `cpus`, and of events of single threads once they are [followed](Source::follow), without counts: by
/// programs in the kernel if possible, else by tracefs.
///
/// Fails as [`Tracefs::open`] does.
pub fn of_jobs(cpus: &[CpuId]) -> Result<Box<dyn Source>, SchedError> {
    match counting_jobs(cpus, None) {
        Some(source) => Ok(source),
        None => Ok(Box::new(Tracefs::open(cpus)?)),
    }
}

/// Opens a record of the processes that are started or execute a program; `None` if that is impossible, or if the kernel would report other numbers than
/// those that /proc shows here.
pub fn of_processes() -> Option<StartedProcesses> {
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    if namespace.as_os_str() != FIRST_NAMESPACE {
        return None;
    }
    by_bpf(StartedProcesses::open)
}

/// Opens a source by programs in the kernel; `None` if that fails. The reason does not matter, because other sources exist: a kernel
/// without eBPF or without a description of its types, or a lack of privilege.
fn by_bpf<T>(open: impl FnOnce() -> Result<T, SchedError>) -> Option<T> {
    if std::env::var_os(WITHOUT_BPF).is_some() { None } else { open().ok() }
}
