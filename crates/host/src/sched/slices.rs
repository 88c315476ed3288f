//! Slices of tasks: intervals in which a thread had a CPU, with the counts of that time.
//!
//! A slice lies between two switches that a [source](super::source) has recorded. Nothing but the recording runs on the watched CPU.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;

use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::{Counts, Entry, Gap, RecordCost, Slice};

use super::error::SchedError;
use super::open;
use super::perf::PerfRings;
use super::polling::Polling;
use super::source::Source;
use super::{EventKind, SchedEvent, ThreadName, cost};
use crate::counters::events::{self, miss_ratio_events};
use crate::counters::{CounterError, Counters, ran_throughout};
use crate::machine::setting::allowed_cpus;
use crate::machine::sysfs::{Note, Processor, Sysfs};
use crate::process::ProcessError;
use crate::sys::clock;
use crate::sys::perf::GroupReading;

/// Maximum number of times that the threads of a process are listed until no new ones appear.
const ATTACH_ROUNDS: usize = 10;

/// Longest time from a poll by a task to its arrival here, in ns.
const POLL_LATE: Ns = Ns(1_000_000);

/// The slices of threads, which are reported when they end.
pub struct Slices {
    switches: Box<dyn Source>,
    polling: Option<Polling>,
    splitter: Splitter,
    /// Events that are not processed yet, ordered by time.
    events: Vec<SchedEvent>,
    seen: u64,
    polls: u64,
}

/// The thread that has a CPU.
struct Running {
    thread: i32,
    since: Ns,
    reading: GroupReading,
}

/// Turns events into slices.
#[derive(Default)]
struct Splitter {
    cpus: Vec<CpuId>,
    /// Threads whose slices are kept, each with the time from which they are kept. `None` keeps the slices of all threads.
    threads: Option<HashMap<i32, Ns>>,
    /// Names of threads, for sources whose switches do not report them.
    names: HashMap<i32, ThreadName>,
    /// Whether switches come with readings of the counters.
    counted: bool,
    /// Whether tasks poll.
    polling: bool,
    running: BTreeMap<CpuId, Running>,
    /// The slice that a poll may have ended, until the reading of the poll arrives.
    held: BTreeMap<CpuId, Slice>,
    /// The reading of the last poll.
    polled: BTreeMap<CpuId, GroupReading>,
}

impl Splitter {
    fn matters(&self, thread: i32) -> bool {
        // Thread 0 is the idle task.
        thread != 0 && self.threads.as_ref().is_none_or(|threads| threads.contains_key(&thread))
    }

    /// Records a gap, in which nothing is known of a CPU: slices that began before it are dropped.
    fn gap(&mut self, gap: Gap, entries: &mut Vec<Entry>) {
        self.running.remove(&gap.cpu);
        // The held slice had ended before the gap. The next poll may have interrupted another thread, and its counts include others.
        entries.extend(self.held.remove(&gap.cpu).map(Entry::Slice));
        self.polled.remove(&gap.cpu);
        entries.push(Entry::Gap(gap));
    }

    fn note(&mut self, event: &SchedEvent, entries: &mut Vec<Entry>) {
        let SchedEvent { at, cpu, kind } = *event;
        match kind {
            // A thread that a followed thread starts is followed too. A thread that others start may have the number of a followed thread
            // that has ended, and then is not followed. The end of a thread does not show this, because a thread that executes another
            // program takes the number of its process, whose first thread has ended then.
            EventKind::Fork { parent, child } => {
                if let Some(name) = self.names.get(&parent).copied() {
                    self.names.insert(child, name);
                }
                let Some(threads) = &mut self.threads else { return };
                if threads.contains_key(&parent) {
                    threads.insert(child, at);
                } else if threads.get(&child).is_some_and(|since| *since < at) {
                    threads.remove(&child);
                }
            }
            EventKind::Named { thread, name } => drop(self.names.insert(thread, name)),
            EventKind::Waking { .. } | EventKind::Wakeup { .. } | EventKind::Runtime { .. } => {}
            _ if !self.cpus.contains(&cpu) => {}
            EventKind::Lost { records } => self.gap(Gap { cpu, end: at, lost: Some(records) }, entries),
            EventKind::Poll { reading } => {
                // All counts since the last poll are attributed to the thread that this poll has interrupted.
                let before = self.polled.insert(cpu, reading);
                if let (Some(slice), Some(before)) = (self.held.get_mut(&cpu), before)
                    && ran_throughout(&before, &reading)
                {
                    slice.counts = counts(&before, &reading);
                }
            }
            EventKind::Switch { from, from_name, reason, to, reading, .. } => {
                entries.extend(self.held.remove(&cpu).map(Entry::Slice));
                let before = self.running.insert(cpu, Running { thread: to, since: at, reading });
                // Some kernels do not report every switch, so the thread that leaves may not be the one that came.
                let Some(before) = before.filter(|before| before.thread == from) else { return };
                if self.counted && !ran_throughout(&before.reading, &reading) {
                    // While the counters were off, nothing was recorded, so other threads may have had the CPU.
                    entries.push(Entry::Gap(Gap { cpu, end: at, lost: None }));
                } else if self.matters(from) {
                    let counts = self.counted.then(|| counts(&before.reading, &reading)).flatten();
                    let unnamed = from_name == ThreadName::default();
                    let name = if unnamed { self.names.get(&from).copied() } else { Some(from_name) };
                    let (begin, name) = (before.since, name.unwrap_or_default().to_string());
                    let slice = Slice { cpu, thread: from, name, begin, end: at, left: reason, counts };
                    if self.polling {
                        self.held.insert(cpu, slice);
                    } else {
                        entries.push(Entry::Slice(slice));
                    }
                }
            }
        }
    }
}

/// Returns the counts between two readings, whose events are those of [`miss_ratio_events`]; `None` if a counter went back.
fn counts(before: &GroupReading, after: &GroupReading) -> Option<Counts> {
    let since = |position: usize| after.counts[position].checked_sub(before.counts[position]);
    Some(Counts { accesses: since(0)?, misses: since(1)?, instructions: since(2)?, cycles: since(3)? })
}

/// Returns the threads of process `pid`.
///
/// Fails with [`ProcessError::NoSuchProcess`].
pub fn threads_of(pid: u32) -> Result<Vec<i32>, ProcessError> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| ProcessError::NoSuchProcess { pid })?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the events to count for miss ratios of the cache of `level`, after they have proved on the calling thread that they count.
///
/// Fails with [`CounterError::NoMissRatio`], and as [`Counters::open`] does.
pub fn proved_events(processor: &Processor, level: u8) -> Result<[events::Event; 4], CounterError> {
    let events = miss_ratio_events(processor, level)
        .ok_or_else(|| CounterError::NoMissRatio { level, processor: processor.name.clone() })?;
    Counters::open(&events)?;
    Ok(events)
}

/// Returns the event to count for the misses of the cache of `level`, the one of [`proved_events`], after it has proved on the calling thread
/// that it counts. It needs one counter instead of four.
///
/// Fails as [`proved_events`] does.
pub fn proved_misses(processor: &Processor, level: u8) -> Result<events::Event, CounterError> {
    let [_, misses, ..] = miss_ratio_events(processor, level)
        .ok_or_else(|| CounterError::NoMissRatio { level, processor: processor.name.clone() })?;
    Counters::open(&[misses])?;
    Ok(misses)
}

impl Slices {
    /// Opens the slices on `cpus` from now on: of all threads if `all`, else of those named by [`follow`](Self::follow). `counted`: the
    /// events for accesses, misses, instructions and cycles, or empty.
    ///
    /// Fails as [`PerfRings::open`] does.
    pub fn open(cpus: &[CpuId], all: bool, counted: &[events::Event]) -> Result<Slices, SchedError> {
        // A followed thread may start another on any CPU.
        let online = if all { Vec::new() } else { Sysfs::system().online_cpus()? };
        Ok(Slices::of(open::of_switches(cpus, &online, counted)?, cpus, all, !counted.is_empty()))
    }

    /// Does the same as [`open`](Self::open) with the events of `source`. `counted`: whether its switches come with counts.
    pub fn of(source: Box<dyn Source>, cpus: &[CpuId], all: bool, counted: bool) -> Slices {
        let threads = (!all).then(HashMap::new);
        let splitter = Splitter { cpus: cpus.to_vec(), threads, counted, ..Splitter::default() };
        Slices { switches: source, polling: None, splitter, events: Vec::new(), seen: 0, polls: 0 }
    }

    /// Returns the name of the source of switches, for people.
    pub fn source(&self) -> &'static str {
        self.switches.name()
    }

    /// Does the same as [`open`](Self::open) without privilege and without counts. The threads are those named by [`attach`](Self::attach),
    /// and those that the calling thread starts from now on and [`follow`](Self::follow) names. Switches do not report whether a thread
    /// slept or waited.
    ///
    /// Fails as [`PerfRings::open_own`] does.
    pub fn open_own(cpus: &[CpuId]) -> Result<Slices, SchedError> {
        let switches = PerfRings::open_own(&Sysfs::system().online_cpus()?)?;
        Ok(Slices::of(Box::new(switches), cpus, false, false))
    }

    /// Measures the cost of a record on one of the watched CPUs, as [`cost::record_cost`] does. Call this before threads are followed.
    pub fn record_cost(&mut self) -> Option<RecordCost> {
        let allowed = allowed_cpus().ok()?;
        let cpu = self.splitter.cpus.iter().rev().find(|cpu| allowed.contains(cpu))?;
        cost::record_cost(&mut *self.switches, *cpu)
    }

    /// Follows all threads of process `pid`, and those that they start.
    ///
    /// Fails with [`ProcessError::NoSuchProcess`], and as [`Source::attach`] does.
    pub fn attach(&mut self, pid: u32) -> Result<(), SchedError> {
        let mut attached = HashSet::new();
        // Repeated, because threads may have started others before they were attached.
        for _ in 0..ATTACH_ROUNDS {
            let threads = match threads_of(pid) {
                // The process has ended since then.
                Err(_) if !attached.is_empty() => break,
                threads => threads?,
            };
            let fresh: Vec<i32> = threads.into_iter().filter(|thread| attached.insert(*thread)).collect();
            if fresh.is_empty() {
                break;
            }
            for thread in &fresh {
                self.switches.attach(*thread)?;
                // A thread that has ended since then has no name.
                let name = fs::read(format!("/proc/{thread}/comm")).unwrap_or_default();
                self.splitter.names.insert(*thread, ThreadName::of(name.trim_ascii_end()));
            }
            self.follow(fresh);
        }
        Ok(())
    }

    /// Does the same as [`open`](Self::open), but tasks poll the counters every `period`.
    pub fn polled(cpus: &[CpuId], all: bool, counted: &[events::Event], period: Ns) -> Result<Slices, SchedError> {
        let mut slices = Slices::open(cpus, all, &[])?;
        slices.polling = Some(Polling::start(cpus, period, counted)?);
        slices.splitter.polling = !counted.is_empty();
        Ok(slices)
    }

    /// Returns notes on priorities and CPUs that the polling tasks could not get.
    pub fn notes(&self) -> &[Note] {
        self.polling.as_ref().map_or(&[], Polling::notes)
    }

    /// Follows `threads` and those that they start, from the beginning if nothing was drained yet, else from now on.
    pub fn follow(&mut self, threads: impl IntoIterator<Item = i32>) {
        let now = clock::monotonic();
        self.splitter.threads.get_or_insert_default().extend(threads.into_iter().map(|thread| (thread, now)));
    }

    /// Appends the slices that have ended since the last call to `entries`, in the order of their ends.
    ///
    /// Fails as the source does.
    pub fn drain(&mut self, entries: &mut Vec<Entry>) -> Result<(), SchedError> {
        // Events that a CPU records while the ring of another is read wait until the other's events of that time are read. So do the
        // readings of polling tasks that have not arrived yet.
        let late = if self.polling.is_some() { POLL_LATE.0 } else { 0 };
        let until = Ns(clock::monotonic().0.saturating_sub(late));
        let waiting = self.events.len();
        self.switches.drain(&mut self.events)?;
        let read = self.events.len();
        self.seen += (read - waiting) as u64;
        if let Some(polling) = &self.polling {
            polling.drain(&mut self.events);
            self.polls += (self.events.len() - read) as u64;
        }
        self.events.sort_by_key(|event| event.at);
        let ready = self.events.partition_point(|event| event.at <= until);
        for event in self.events.drain(..ready) {
            self.splitter.note(&event, entries);
        }
        Ok(())
    }

    /// Returns the number of events read so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Returns the number of polls read so far; `None` if no tasks poll.
    pub fn polls(&self) -> Option<u64> {
        self.polling.as_ref().map(|_| self.polls)
    }

    /// Returns a gap for every watched CPU whose counters others have taken for good since the last call. The CPU has no slices from then
    /// on.
    pub fn stopped(&mut self) -> Vec<Entry> {
        let end = clock::monotonic();
        let mut stopped = self.switches.stopped();
        stopped.retain(|cpu| self.splitter.cpus.contains(cpu));
        let mut entries = Vec::new();
        stopped.into_iter().for_each(|cpu| self.splitter.gap(Gap { cpu, end, lost: None }, &mut entries));
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_model::watch::SwitchOut::{self, Asleep, Preempted};

    fn switch(at: u64, cpu: u32, from: i32, reason: SwitchOut, to: i32) -> SchedEvent {
        let (name, reading) = (ThreadName(*b"task\0\0\0\0\0\0\0\0\0\0\0\0"), GroupReading::default());
        // The counters ran all the time.
        let reading = GroupReading { enabled_ns: at, running_ns: at, ..reading };
        SchedEvent {
            at: Ns(at),
            cpu: CpuId(cpu),
            kind: EventKind::Switch { from, from_name: name, reason, to, to_name: name, reading },
        }
    }

    /// Returns `event`, with these counts and with counters that were enabled but did not run for `off`.
    fn counted(mut event: SchedEvent, counts: [u64; 4], off: u64) -> SchedEvent {
        let EventKind::Switch { reading, .. } = &mut event.kind else { panic!("{event:?}") };
        reading.counts[..4].copy_from_slice(&counts);
        reading.enabled_ns += off;
        event
    }

    fn split(splitter: &mut Splitter, events: &[SchedEvent]) -> (Vec<Slice>, Vec<Gap>) {
        let mut entries = Vec::new();
        events.iter().for_each(|event| splitter.note(event, &mut entries));
        let (mut slices, mut gaps) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Entry::Slice(slice) => slices.push(slice),
                Entry::Gap(gap) => gaps.push(gap),
                Entry::State(state) => panic!("{state:?}"),
            }
        }
        (slices, gaps)
    }

    fn splitter(threads: Option<HashMap<i32, Ns>>) -> Splitter {
        Splitter { cpus: vec![CpuId(0), CpuId(1)], threads, ..Splitter::default() }
    }

    #[test]
    fn a_slice_lasts_from_the_switch_to_a_thread_until_the_switch_away() {
        let (slices, _) = split(
            &mut splitter(Some(HashMap::from([(7, Ns(5))]))),
            &[
                switch(10, 0, 5, Preempted, 7),
                SchedEvent { at: Ns(15), cpu: CpuId(0), kind: EventKind::Fork { parent: 7, child: 8 } },
                switch(30, 0, 7, Preempted, 8),
                switch(35, 1, 0, Preempted, 7),
                switch(50, 0, 8, Asleep, 5),
                switch(55, 1, 7, Asleep, 0),
                // The beginning of this slice was not recorded.
                switch(70, 1, 7, Asleep, 0),
                switch(90, 0, 5, Asleep, 0),
                // This CPU is not watched.
                switch(91, 2, 0, Preempted, 7),
                switch(92, 2, 7, Asleep, 0),
            ],
        );
        let seen: Vec<_> = slices.iter().map(|s| (s.thread, s.cpu.0, s.begin.0, s.end.0, s.left)).collect();
        assert_eq!(
            seen,
            [
                (7, 0, 10, 30, SwitchOut::Preempted),
                (8, 0, 30, 50, SwitchOut::Asleep),
                (7, 1, 35, 55, SwitchOut::Asleep)
            ]
        );
        assert_eq!((slices[0].name.as_str(), slices[0].counts), ("task", None));
    }

    #[test]
    fn a_stranger_with_the_number_of_a_task_that_has_ended_is_not_watched() {
        let fork =
            |at, parent, child| SchedEvent { at: Ns(at), cpu: CpuId(1), kind: EventKind::Fork { parent, child } };
        let mut splitter = splitter(Some(HashMap::from([(7, Ns(5))])));
        let (slices, _) = split(
            &mut splitter,
            &[
                // This thread was followed after its start, so its fork, read later, is ignored.
                fork(3, 1, 7),
                fork(10, 7, 8),
                switch(20, 0, 0, Preempted, 8),
                switch(30, 0, 8, SwitchOut::Ended, 0),
                fork(40, 1, 8),
                switch(50, 0, 0, Preempted, 8),
                switch(60, 0, 8, Asleep, 7),
                switch(70, 0, 7, Asleep, 0),
            ],
        );
        assert_eq!(slices.iter().map(|s| (s.thread, s.begin.0)).collect::<Vec<_>>(), [(8, 20), (7, 60)]);
    }

    #[test]
    fn threads_without_a_name_in_their_records_have_that_of_who_started_them_until_another_is_reported() {
        let name = |name: &[u8]| ThreadName::of(name);
        let unnamed = |at, from, left, to| {
            let mut event = switch(at, 0, from, left, to);
            let EventKind::Switch { from_name: name, .. } = &mut event.kind else { panic!("{event:?}") };
            *name = ThreadName::default();
            event
        };
        let on = |at, cpu, what| SchedEvent { at: Ns(at), cpu: CpuId(cpu), kind: what };
        let mut splitter = splitter(Some(HashMap::from([(7, Ns(5))])));
        let (slices, _) = split(
            &mut splitter,
            &[
                on(6, 1, EventKind::Named { thread: 7, name: name(b"sh") }),
                on(10, 1, EventKind::Fork { parent: 7, child: 8 }),
                unnamed(20, 0, Asleep, 8),
                unnamed(30, 8, Asleep, 0),
                // This CPU is not watched.
                on(35, 2, EventKind::Named { thread: 8, name: name(b"sleep") }),
                unnamed(40, 0, Asleep, 8),
                unnamed(50, 8, SwitchOut::Ended, 0),
            ],
        );
        assert_eq!(slices.iter().map(|slice| slice.name.as_str()).collect::<Vec<_>>(), ["sh", "sleep"]);
    }

    #[test]
    fn a_poll_after_lost_records_is_not_put_down_to_who_ran_before_them() {
        let mut splitter = Splitter { polling: true, ..splitter(None) };
        let poll = |at, accesses| {
            let mut reading = GroupReading { enabled_ns: at, running_ns: at, ..GroupReading::default() };
            reading.counts[0] = accesses;
            SchedEvent { at: Ns(at), cpu: CpuId(0), kind: EventKind::Poll { reading } }
        };
        let (slices, gaps) = split(
            &mut splitter,
            &[
                switch(10, 0, 0, Preempted, 7),
                switch(20, 0, 7, Preempted, 99),
                poll(25, 1000),
                switch(30, 0, 99, Asleep, 7),
                switch(40, 0, 7, Asleep, 8),
                // The lost records were switches from 8 to others, and from these to 99.
                SchedEvent { at: Ns(50), cpu: CpuId(0), kind: EventKind::Lost { records: 3 } },
                poll(55, 5000),
                switch(60, 0, 99, Asleep, 9),
                switch(70, 0, 9, Preempted, 99),
                poll(75, 5100),
                switch(80, 0, 99, Asleep, 0),
                switch(90, 0, 0, Preempted, 7),
            ],
        );
        let seen: Vec<_> = slices.iter().map(|s| (s.thread, s.end.0, s.counts.map(|c| c.accesses))).collect();
        assert_eq!(seen, [(7, 20, None), (99, 30, None), (7, 40, None), (9, 70, Some(100)), (99, 80, None)]);
        assert_eq!(gaps.len(), 1);
    }

    #[test]
    fn a_slice_in_which_a_counter_went_back_has_no_counts() {
        let mut splitter = Splitter { counted: true, ..splitter(None) };
        let (slices, gaps) = split(
            &mut splitter,
            &[
                counted(switch(10, 0, 5, Preempted, 7), [100, 50, 1000, 2000], 0),
                counted(switch(20, 0, 7, Preempted, 8), [300, 49, 1400, 2200], 0),
                counted(switch(30, 0, 8, Preempted, 7), [500, 150, 1500, 2900], 0),
            ],
        );
        let seen: Vec<_> =
            slices.iter().map(|slice| (slice.thread, slice.counts.map(|counts| counts.misses))).collect();
        assert_eq!((seen, gaps), (vec![(7, None), (8, Some(101))], vec![]));
    }

    #[test]
    fn what_a_cpu_counted_between_two_switches_is_that_of_who_had_it() {
        let mut splitter = Splitter { counted: true, ..splitter(None) };
        let (slices, gaps) = split(
            &mut splitter,
            &[
                counted(switch(10, 0, 5, Preempted, 7), [100, 50, 1000, 2000], 0),
                counted(switch(20, 1, 0, Preempted, 9), [7, 7, 7, 7], 0),
                counted(switch(30, 0, 7, Preempted, 8), [300, 50, 1400, 2200], 0),
                counted(switch(40, 0, 8, Preempted, 7), [500, 150, 1500, 2900], 0),
            ],
        );
        let seen: Vec<_> = slices.iter().map(|slice| (slice.thread, slice.counts.unwrap())).collect();
        let counts = |accesses, misses, instructions, cycles| Counts { accesses, misses, instructions, cycles };
        assert_eq!(seen, [(7, counts(200, 0, 400, 200)), (8, counts(200, 100, 100, 700))]);
        assert_eq!(gaps, []);
    }

    #[test]
    fn what_a_poll_reads_is_put_down_to_whom_it_interrupts() {
        let mut splitter = Splitter { polling: true, ..splitter(None) };
        let poll = |at, accesses, off| {
            let mut reading = GroupReading { enabled_ns: at + off, running_ns: at, ..GroupReading::default() };
            reading.counts[0] = accesses;
            SchedEvent { at: Ns(at), cpu: CpuId(0), kind: EventKind::Poll { reading } }
        };
        let (slices, _) = split(
            &mut splitter,
            &[
                switch(10, 0, 0, Preempted, 7),
                switch(20, 0, 7, Preempted, 99),
                // Nothing was read before the first poll.
                poll(25, 1000, 0),
                switch(30, 0, 99, Asleep, 7),
                switch(40, 0, 7, Asleep, 8),
                switch(50, 0, 8, Preempted, 99),
                // These counts belong to 8, and to 7 until 40.
                poll(55, 1600, 0),
                switch(60, 0, 99, Asleep, 8),
                switch(70, 0, 8, Preempted, 99),
                // The counters were off.
                poll(75, 1700, 5_000_000),
                switch(80, 0, 99, Asleep, 0),
                switch(90, 0, 0, Preempted, 7),
            ],
        );
        let seen: Vec<_> = slices.iter().map(|slice| (slice.thread, slice.end.0, slice.counts)).collect();
        let counts = |accesses| Some(Counts { accesses, ..Counts::default() });
        let expected = [
            (7, 20, None),
            (99, 30, None),
            (7, 40, None),
            (8, 50, counts(600)),
            (99, 60, None),
            (8, 70, None),
            (99, 80, None),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn where_records_are_lost_or_counters_were_off_there_is_a_gap_and_no_slice() {
        let mut splitter = Splitter { counted: true, ..splitter(None) };
        let (slices, gaps) = split(
            &mut splitter,
            &[
                switch(10, 0, 5, Preempted, 7),
                // The lost records were switches from 7 to 8 and back.
                SchedEvent { at: Ns(20), cpu: CpuId(0), kind: EventKind::Lost { records: 2 } },
                switch(30, 0, 7, Preempted, 8),
                switch(40, 0, 8, Preempted, 7),
                // The counters were not on the hardware for 1 ms.
                counted(switch(1_100_000, 0, 7, Preempted, 8), [0; 4], 1_000_000),
                counted(switch(1_200_000, 0, 8, Asleep, 0), [0; 4], 1_000_000),
            ],
        );
        assert_eq!(slices.iter().map(|s| (s.thread, s.begin.0)).collect::<Vec<_>>(), [(8, 30), (8, 1_100_000)]);
        let gap = |end, lost| Gap { cpu: CpuId(0), end: Ns(end), lost };
        assert_eq!(gaps, [gap(20, Some(2)), gap(1_100_000, None)]);
    }
}
