//! The events that jobs are inferred from: events of the scheduler, and counts of the time for which a thread had a CPU.
//!
//! A count is the difference between two readings of the CPU's counters, when the thread got the CPU and when it left. If the source does
//! not read the counters at switches, [`PerfRings`] do. If these cannot count, or others use the counters, jobs are observed without
//! counts.

use std::collections::BTreeMap;

use isochrome_model::units::CpuId;

use super::{Observation, Observed};
use crate::counters::events::Event as Counted;
use crate::counters::ran_throughout;
use crate::sched::error::SchedError;
use crate::sched::open;
use crate::sched::perf::PerfRings;
use crate::sched::source::Source;
use crate::sched::{EventKind, SchedEvent};
use crate::sys::perf::GroupReading;

/// Events of the CPUs and threads of jobs.
pub struct JobEvents {
    source: Box<dyn Source>,
    /// Source of the counts, if the source of events does not count.
    rings: Option<PerfRings>,
    reported: Option<Reported>,
    events: Vec<SchedEvent>,
}

/// For each CPU, the thread that has it, and the reading of the counters when the thread got it.
#[derive(Default)]
struct Reported(BTreeMap<CpuId, (i32, GroupReading)>);

impl Reported {
    /// Returns the misses of the thread that leaves a CPU, since it got the CPU; `None` if they are not known, also because the counter went
    /// back.
    fn note(&mut self, event: &SchedEvent) -> Option<Observation> {
        match event.kind {
            EventKind::Switch { from, to, reading, .. } => {
                let (had, before) = self.0.insert(event.cpu, (to, reading))?;
                // Some kernels do not report the thread that follows the idle task. The idle task counts nothing in user mode.
                let whole = (had == from || had == 0) && ran_throughout(&before, &reading);
                let count = reading.counts[0].checked_sub(before.counts[0]).filter(|_| whole && from != 0)?;
                Some(Observation { at: event.at, what: Observed::Misses(from, count) })
            }
            EventKind::Lost { .. } => {
                self.0.remove(&event.cpu);
                None
            }
            _ => None,
        }
    }
}

impl JobEvents {
    /// Records the events of `cpus` from now on, with the counts of `counted` in user mode. If the event cannot be counted, the reason is
    /// returned, and jobs are observed without counts.
    ///
    /// Fails as [`open::of_jobs`] does.
    pub fn open(cpus: &[CpuId], counted: Option<Counted>) -> Result<(JobEvents, Option<SchedError>), SchedError> {
        let events = |source, rings, counts: bool| JobEvents {
            source,
            rings,
            reported: counts.then(Reported::default),
            events: Vec::new(),
        };
        if let Some(source) = open::counting_jobs(cpus, counted) {
            return Ok((events(source, None, counted.is_some()), None));
        }
        // The rings must be opened before the source: the kernel reports an event in the order in which listeners were added, so the counts
        // until a switch are known before the switch.
        let (rings, why) = match counted.map(|event| PerfRings::open(cpus, &[event])) {
            Some(Err(error)) => (None, Some(error)),
            rings => (rings.and_then(Result::ok), None),
        };
        let counts = rings.is_some();
        Ok((events(open::of_jobs(cpus)?, rings, counts), why))
    }

    /// Whether counts are reported.
    pub fn are_counted(&self) -> bool {
        self.reported.is_some()
    }

    /// Does the same as [`Source::follow`].
    pub fn follow(&mut self, threads: &[i32], others: &[i32]) -> Result<(), SchedError> {
        self.source.follow(threads, others)
    }

    /// Appends the observations since the last call to `observations`, and returns the number of scheduler events among them.
    pub fn drain(&mut self, observations: &mut Vec<Observation>) -> Result<u64, SchedError> {
        if let (Some(rings), Some(reported)) = (&mut self.rings, &mut self.reported) {
            rings.drain(&mut self.events)?;
            observations.extend(self.events.drain(..).filter_map(|event| reported.note(&event)));
        }
        self.source.drain(&mut self.events)?;
        let seen = self.events.len() as u64;
        for event in self.events.drain(..) {
            if let (None, Some(reported)) = (&self.rings, &mut self.reported) {
                observations.extend(reported.note(&event));
            }
            observations.push(Observation { at: event.at, what: Observed::Scheduler(event.cpu, event.kind) });
        }
        Ok(seen)
    }

    /// Returns the number of records so far that the kernel had no room for, as [`Source::lost`] does.
    pub fn lost(&self) -> u64 {
        self.source.lost()
    }

    /// Returns the CPUs whose counters others have taken for good since the last call.
    pub fn stopped(&mut self) -> Vec<CpuId> {
        self.rings.as_mut().map_or_else(Vec::new, Source::stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::ThreadName;
    use isochrome_model::units::Ns;
    use isochrome_model::watch::SwitchOut;

    /// Returns a switch of a CPU, with the count of its counter and the time for which the counter did not run.
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
            // The thread that followed the idle task was not reported.
            switch(40, 0, 7, 9, 142, 0),
            // The end of 9 was not reported either.
            switch(50, 0, 7, 9, 150, 0),
            switch(55, 1, 8, 0, 5001, 0),
            SchedEvent { at: Ns(60), cpu: CpuId(0), kind: EventKind::Lost { records: 3 } },
            switch(70, 0, 9, 7, 200, 0),
            // The counter was off for 1 ms.
            switch(2_000_000, 0, 7, 9, 210, 1_000_000),
            switch(2_000_010, 0, 9, 7, 211, 1_000_000),
            // The counter goes back.
            switch(2_000_020, 0, 7, 9, 100, 1_000_000),
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
