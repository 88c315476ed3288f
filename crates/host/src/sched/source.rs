//! The common interface of sources of events.

use isochrome_model::units::CpuId;

use super::SchedEvent;
use super::error::SchedError;

/// A source of scheduler events.
pub trait Source {
    /// Appends what was recorded since the last call to `events`, CPU by CPU.
    fn drain(&mut self, events: &mut Vec<SchedEvent>) -> Result<(), SchedError>;

    /// Records from now on when `threads` are woken and start others, and when time is accounted to them, to `others`, or to any thread on
    /// one of the CPUs.
    fn follow(&mut self, threads: &[i32], others: &[i32]) -> Result<(), SchedError>;

    /// Turns the recording of switches of `cpu` on or off.
    fn enable(&mut self, cpu: CpuId, on: bool) -> Result<(), SchedError>;

    /// Adds the records of `thread`, which is running already, and of those that it starts. Does nothing in a source that records all
    /// threads.
    fn attach(&mut self, _thread: i32) -> Result<(), SchedError> {
        Ok(())
    }

    /// Returns the number of records so far that the kernel had no room for.
    fn lost(&self) -> u64;

    /// Stops recording on the CPUs whose counters the kernel has taken off the hardware, and returns these CPUs.
    fn stopped(&mut self) -> Vec<CpuId> {
        Vec::new()
    }

    /// Returns the name of the source, for people.
    fn name(&self) -> &'static str;
}
