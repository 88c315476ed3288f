//! What was counted while a thread had a CPU: the difference of what the CPU's counters said when it left and when it came.
//!
//! The counters are those of [`perf`](super::perf): read by the kernel at every switch. Where they count nothing, or others have them, jobs are seen all
//! the same, by [`tracefs`](super::tracefs).

use std::collections::BTreeMap;

use isochrome_model::units::CpuId;

use super::jobs::{Observation, Observed};
use super::perf::PerfRings;
use super::{EventKind, SchedEvent};
use crate::counters::events::Event as Counted;
use crate::counters::ran_throughout;
use crate::error::HostError;
use crate::sys::perf::GroupReading;

/// Counts of the threads that have some CPUs.
pub struct Misses {
    switches: PerfRings,
    events: Vec<SchedEvent>,
    reported: Reported,
}

/// Who has each CPU, and what its counters said when it came.
#[derive(Default)]
struct Reported(BTreeMap<CpuId, (i32, GroupReading)>);

impl Reported {
    /// Who leaves a CPU, and what was counted since it came, where that is known.
    fn note(&mut self, event: &SchedEvent) -> Option<Observation> {
        match event.kind {
            EventKind::Switch { from, to, reading, .. } => {
                let (had, before) = self.0.insert(event.cpu, (to, reading))?;
                // Some kernels do not tell to whom an idle CPU gives itself; an idle one counts nothing in user mode.
                let whole = (had == from || had == 0) && ran_throughout(&before, &reading);
                let count = reading.counts[0].wrapping_sub(before.counts[0]);
                (whole && from != 0).then_some(Observation { at: event.at, what: Observed::Misses(from, count) })
            }
            EventKind::Lost { .. } => {
                self.0.remove(&event.cpu);
                None
            }
            _ => None,
        }
    }
}

impl Misses {
    /// Of `event`, on `cpus`, in user mode, from now on.
    ///
    /// To be opened before the [`Tracefs`](super::tracefs::Tracefs): of who waits for the same event of the kernel, the kernel reports first to those that came
    /// first, so that what was counted until a switch is known before the switch is.
    ///
    /// Fails as [`PerfRings::open`] does.
    pub fn open(cpus: &[CpuId], event: Counted) -> Result<Misses, HostError> {
        let switches = PerfRings::open(cpus, &[event])?;
        Ok(Misses { switches, events: Vec::new(), reported: Reported::default() })
    }

    /// Moves what was counted since the last call behind `observations`.
    pub fn drain(&mut self, observations: &mut Vec<Observation>) {
        self.switches.drain(&mut self.events);
        observations.extend(self.events.drain(..).filter_map(|event| self.reported.note(&event)));
    }

    /// The CPUs whose counters others have taken for good since the last call.
    pub fn stopped(&mut self) -> Vec<CpuId> {
        self.switches.stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::ThreadName;
    use isochrome_model::units::Ns;
    use isochrome_model::watch::SwitchOut;

    /// A switch of a CPU, with what its counter says and for how long it did not run.
    fn switch(at: u64, cpu: u32, from: i32, to: i32, count: u64, off: u64) -> SchedEvent {
        let mut reading = GroupReading { enabled_ns: at + off, running_ns: at, ..GroupReading::default() };
        reading.counts[0] = count;
        let none = ThreadName::default();
        let kind = EventKind::Switch { from, from_name: none, reason: SwitchOut::Asleep, to, to_name: none, reading };
        SchedEvent { at: Ns(at), cpu: CpuId(cpu), kind }
    }

    #[test]
    fn a_thread_missed_what_its_cpu_counted_from_its_coming_to_its_leaving() {
        let events = [
            switch(10, 0, 9, 7, 100, 0),
            switch(15, 1, 0, 8, 5000, 0),
            switch(20, 0, 7, 9, 130, 0),
            switch(30, 0, 9, 0, 135, 0),
            // To whom the idle CPU gave itself was not reported.
            switch(40, 0, 7, 9, 142, 0),
            // Nor that 9 had left.
            switch(50, 0, 7, 9, 150, 0),
            switch(55, 1, 8, 0, 5001, 0),
            SchedEvent { at: Ns(60), cpu: CpuId(0), kind: EventKind::Lost { records: 3 } },
            switch(70, 0, 9, 7, 200, 0),
            // The counter was off for 1 ms.
            switch(2_000_000, 0, 7, 9, 210, 1_000_000),
            switch(2_000_010, 0, 9, 7, 211, 1_000_000),
        ];
        let mut reported = Reported::default();
        let seen: Vec<(u64, i32, u64)> = events
            .iter()
            .filter_map(|event| match reported.note(event)? {
                Observation { at, what: Observed::Misses(thread, count) } => Some((at.0, thread, count)),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(seen, [(20, 7, 30), (30, 9, 5), (40, 7, 7), (55, 8, 1), (2_000_010, 9, 1)]);
    }
}
