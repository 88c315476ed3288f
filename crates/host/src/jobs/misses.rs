//! What was counted while a thread had a CPU: the difference of what the CPU's counters said when it left and when it came.
//!
//! The counters are those of [`crate::switches`]: read by the kernel at every switch. Where they count nothing, or others have them, jobs are seen all
//! the same, by [`timeline`](super::timeline).

use std::collections::BTreeMap;

use isochrome_model::units::CpuId;

use super::watch::{Fact, Happening};
use crate::counters::ran_throughout;
use crate::error::HostError;
use crate::events::Event as Counted;
use crate::switches::{Event, Switches, What};
use crate::sys::perf::GroupReading;

/// Counts of the threads that have some CPUs.
pub struct Misses {
    switches: Switches,
    events: Vec<Event>,
    told: Told,
}

/// Who has each CPU, and what its counters said when it came.
#[derive(Default)]
struct Told(BTreeMap<CpuId, (i32, GroupReading)>);

impl Told {
    /// Who leaves a CPU, and what was counted since it came, where that is known.
    fn note(&mut self, event: &Event) -> Option<Happening> {
        match event.what {
            What::Switch { from, to, reading, .. } => {
                let (had, before) = self.0.insert(event.cpu, (to, reading))?;
                // Some kernels do not tell to whom an idle CPU gives itself; an idle one counts nothing in user mode.
                let whole = (had == from || had == 0) && ran_throughout(&before, &reading);
                let count = reading.counts[0].wrapping_sub(before.counts[0]);
                (whole && from != 0).then_some(Happening { at: event.at, what: Fact::Missed(from, count) })
            }
            What::Lost { .. } => {
                self.0.remove(&event.cpu);
                None
            }
            What::Fork { .. } | What::Named { .. } | What::Poll { .. } => None,
        }
    }
}

impl Misses {
    /// Of `event`, on `cpus`, in user mode, from now on.
    ///
    /// To be opened before the [`Timeline`](super::timeline::Timeline): of who waits for the same event of the kernel, those that came first are told
    /// first, so that what was counted until a switch is known before the switch is.
    ///
    /// Fails as [`Switches::open`] does.
    pub fn open(cpus: &[CpuId], event: Counted) -> Result<Misses, HostError> {
        let switches = Switches::open(cpus, &[event])?;
        Ok(Misses { switches, events: Vec::new(), told: Told::default() })
    }

    /// Moves what was counted since the last call behind `happenings`.
    pub fn drain(&mut self, happenings: &mut Vec<Happening>) {
        self.switches.drain(&mut self.events);
        happenings.extend(self.events.drain(..).filter_map(|event| self.told.note(&event)));
    }

    /// The CPUs whose counters others have taken for good since the last call.
    pub fn stopped(&mut self) -> Vec<CpuId> {
        self.switches.stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::timeline::{Left, Name};
    use isochrome_model::units::Ns;

    /// A switch of a CPU, with what its counter says and for how long it did not run.
    fn switch(at: u64, cpu: u32, from: i32, to: i32, count: u64, off: u64) -> Event {
        let mut reading = GroupReading { enabled_ns: at + off, running_ns: at, ..GroupReading::default() };
        reading.counts[0] = count;
        let what = What::Switch { from, name: Name::default(), left: Left::Asleep, to, reading };
        Event { at: Ns(at), cpu: CpuId(cpu), what }
    }

    #[test]
    fn a_thread_missed_what_its_cpu_counted_from_its_coming_to_its_leaving() {
        let events = [
            switch(10, 0, 9, 7, 100, 0),
            switch(15, 1, 0, 8, 5000, 0),
            switch(20, 0, 7, 9, 130, 0),
            switch(30, 0, 9, 0, 135, 0),
            // To whom the idle CPU gave itself was not told.
            switch(40, 0, 7, 9, 142, 0),
            // Nor that 9 had left.
            switch(50, 0, 7, 9, 150, 0),
            switch(55, 1, 8, 0, 5001, 0),
            Event { at: Ns(60), cpu: CpuId(0), what: What::Lost { records: 3 } },
            switch(70, 0, 9, 7, 200, 0),
            // The counter was off for 1 ms.
            switch(2_000_000, 0, 7, 9, 210, 1_000_000),
            switch(2_000_010, 0, 9, 7, 211, 1_000_000),
        ];
        let mut told = Told::default();
        let seen: Vec<(u64, i32, u64)> = events
            .iter()
            .filter_map(|event| match told.note(event)? {
                Happening { at, what: Fact::Missed(thread, count) } => Some((at.0, thread, count)),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(seen, [(20, 7, 30), (30, 9, 5), (40, 7, 7), (55, 8, 1), (2_000_010, 9, 1)]);
    }
}
