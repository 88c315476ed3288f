//! What sources of events have in common, and which one serves here.

use isochrome_model::units::CpuId;

use super::SchedEvent;
use super::bpf::BpfEvents;
use super::error::SchedError;
use super::perf::PerfRings;
use super::tracefs::Tracefs;
use crate::counters::events::Event as Counted;

/// With this in the environment no program is loaded into the kernel, as where that is not permitted: for tests, and to compare.
const WITHOUT_BPF: &str = "ISOCHROME_WITHOUT_BPF";

/// Where events of the scheduler come from.
pub trait Source {
    /// Moves what was recorded since the last call behind `events`, CPU by CPU.
    fn drain(&mut self, events: &mut Vec<SchedEvent>) -> Result<(), SchedError>;

    /// Records from now on when `threads` are woken and start others, and when time is accounted to them, to `others`, or to whoever has
    /// one of the CPUs.
    fn follow(&mut self, threads: &[i32], others: &[i32]) -> Result<(), SchedError>;

    /// Has switches of `cpu` recorded, or not.
    fn enable(&mut self, cpu: CpuId, on: bool) -> Result<(), SchedError>;

    /// `thread`, which had started before, is recorded with those that it starts, where only single threads are.
    fn attach(&mut self, _thread: i32) -> Result<(), SchedError> {
        Ok(())
    }

    /// Records so far that the kernel had no room for.
    fn lost(&self) -> u64;

    /// Gives up the CPUs whose counters the kernel has taken off the hardware: nothing is recorded there any more.
    fn stopped(&mut self) -> Vec<CpuId> {
        Vec::new()
    }

    /// Its name, in words.
    fn name(&self) -> &'static str;
}

/// Switches of `cpus` with what `counted` came to, and starts of threads on all of them and `elsewhere`: by programs in the kernel where it runs
/// such, else by rings of performance events.
///
/// Fails as [`PerfRings::open`] does.
pub fn of_switches(cpus: &[CpuId], elsewhere: &[CpuId], counted: &[Counted]) -> Result<Box<dyn Source>, SchedError> {
    if let Some(source) = by_bpf(|| BpfEvents::of_switches(cpus, counted)) {
        return Ok(Box::new(source));
    }
    Ok(Box::new(PerfRings::open(if elsewhere.is_empty() { cpus } else { elsewhere }, counted)?))
}

/// As [`of_jobs`], where the source itself tells with a switch what `counted` came to.
pub fn counting_jobs(cpus: &[CpuId], counted: Option<Counted>) -> Option<Box<dyn Source>> {
    by_bpf(|| BpfEvents::of_jobs(cpus, counted)).map(|source| Box::new(source) as Box<dyn Source>)
}

/// Switches of `cpus`, and what concerns single threads once they are [followed](Source::follow), without counts: by programs in the kernel where it
/// runs such, else by tracefs.
///
/// Fails as [`Tracefs::open`] does.
pub fn of_jobs(cpus: &[CpuId]) -> Result<Box<dyn Source>, SchedError> {
    match counting_jobs(cpus, None) {
        Some(source) => Ok(source),
        None => Ok(Box::new(Tracefs::open(cpus)?)),
    }
}

/// What reason it has that a kernel runs no programs, others do: a kernel without them, or without its description, or no right to load them.
fn by_bpf(open: impl FnOnce() -> Result<BpfEvents, SchedError>) -> Option<BpfEvents> {
    if std::env::var_os(WITHOUT_BPF).is_some() { None } else { open().ok() }
}
