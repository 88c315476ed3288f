//! Performance counters of the calling thread, which are used only after a self-test has shown that they count.
//!
//! Counters fail silently. On one virtual machine the sixth counter of a core reads 0 although its group opens and is `running`. Hypervisors
//! filter single events, and Arm cores accept codes of events that they do not have. Counters therefore pass two tests before use. In the
//! first test, groups of 1, 2, ... counters all count `instructions` over a known loop, which shows how many counters work together. In the
//! second test, an event is counted on a walk through memory, and is refused if it has to be counted there and was not.

mod error;
pub mod events;

use std::collections::HashMap;
use std::hint::black_box;
use std::io;
use std::sync::{Mutex, PoisonError};

use isochrome_model::miss_ratio::{Touches, Visit};
use serde::Serialize;

pub use self::error::CounterError;
use self::events::{Code, Event, INSTRUCTIONS, miss_events};
use crate::error::SystemError;
use crate::machine::sysfs::{Processor, Sysfs};
use crate::sys::memory::{Arena, page_bytes};
use crate::sys::perf::{GROUP_LIMIT, Group, GroupReading};

/// Largest group of counters that is tried. Processors offer 4 to 8 counters to a thread besides fixed ones, and more are not needed at
/// once.
const SLOTS_TRIED: usize = 8;

/// Number of rounds of the known loop, each of at least one instruction.
const LOOP_ROUNDS: u64 = 200_000;

/// Largest relative difference of counters that agree. They start and stop within one system call of each other, in which only kernel
/// instructions run, and those are not counted.
const SLOT_TOLERANCE: f64 = 0.05;

/// Number of lines of the walk for the second test: 16 MiB at 64 bytes, much more than a second level of up to 4 MiB.
const WALK_LINES: usize = 1 << 18;

/// Open counters, in the order of their events.
#[derive(Debug)]
pub struct Counters {
    group: Group,
    events: Vec<Event>,
}

/// Counts at one moment; [`Counters::between`] makes [`Counts`] of two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading(GroupReading);

/// Counts between two readings.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    values: [u64; GROUP_LIMIT],
    len: usize,
}

impl Counts {
    /// Returns one count per event, in the order in which they were opened.
    pub fn values(&self) -> &[u64] {
        &self.values[..self.len]
    }
}

/// Result of the test of how many counters work together on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Slots {
    /// Size of the largest groups of counters that count correctly.
    pub usable: usize,
    /// Defect of the next larger group; `None` if the kernel did not open it.
    pub defect: Option<SlotDefect>,
}

/// A counter that runs but reads wrong values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlotDefect {
    /// Number of counters in the group.
    pub group_size: usize,
    /// Position of the counter in the group, counted from 1.
    pub slot: usize,
    /// Value that the counter read.
    pub read: u64,
    /// Value that the other counters of the group read, or the least number of instructions of the loop.
    pub expected: u64,
}

impl std::fmt::Display for SlotDefect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SlotDefect { group_size, slot, read, expected } = self;
        write!(f, "in a group of {group_size}, counter {slot} reads {read} instead of {expected}")
    }
}

/// Returns how many counters work together, from groups of 1, 2, ... counters that all counted instructions over a loop of at least `least`
/// instructions.
///
/// Within a group the median counts as true if it reaches `least`. A counter that reads 0 or deviates from the median by more than 5 % is
/// bad, and groups of this size or larger are not used.
pub fn judge_slots(groups: &[Vec<u64>], least: u64) -> Slots {
    for (usable, counts) in groups.iter().enumerate() {
        let mut sorted = counts.clone();
        sorted.sort_unstable();
        // By the upper median, if one of two counters reads 0, the other one is believed.
        let expected = sorted.get(sorted.len() / 2).copied().unwrap_or(0).max(least);
        let bad = |count: u64| count < least || count.abs_diff(expected) as f64 > expected as f64 * SLOT_TOLERANCE;
        if let Some(slot) = counts.iter().position(|&count| bad(count)) {
            let defect = SlotDefect { group_size: counts.len(), slot: slot + 1, read: counts[slot], expected };
            return Slots { usable, defect: Some(defect) };
        }
    }
    Slots { usable: groups.len(), defect: None }
}

/// Whether `counted` is plausible for a working counter after at least `misses` misses: at least a quarter of them.
///
/// Prefetchers and luck take some misses away, so this check finds counters that do not count, but not inexact ones.
pub fn counts_misses(counted: u64, misses: u64) -> bool {
    counted >= misses / 4
}

/// Tests how many counters work together. This takes a few milliseconds; the first success is kept for the life of the process.
pub fn usable_slots() -> Result<Slots, CounterError> {
    static KNOWN: Mutex<Option<Slots>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(slots) = known.as_ref() {
        return Ok(slots.clone());
    }
    let mut groups = Vec::new();
    for size in 1..=SLOTS_TRIED {
        let group = match Group::open(&vec![Code::Instructions; size], None) {
            Ok(group) => group,
            Err((_, error)) if size == 1 || is_lack_of_memory_or_files(&error) => {
                return Err(open_error(INSTRUCTIONS.name, error));
            }
            // The processor has no more counters. Any other defect would have shown with the first counter.
            Err(_) => break,
        };
        let readings = group.read().and_then(|before| {
            known_loop();
            Ok((before, group.read()?))
        });
        let (before, after) = match readings {
            Ok(readings) => readings,
            Err(error) if size == 1 => return Err(read_error(INSTRUCTIONS.name, error)),
            Err(_) => break,
        };
        // A group that is never on the hardware, or only alternates with others, has more counters than the hardware.
        if !ran_throughout(&before, &after) && size > 1 {
            break;
        }
        // A counter that goes back has counted nothing that can be believed.
        groups.push((0..size).map(|i| after.counts[i].saturating_sub(before.counts[i])).collect());
    }
    Ok(known.insert(judge_slots(&groups, LOOP_ROUNDS)).clone())
}

/// Whether a counter did not open because this process or the kernel has no room for it, which says nothing of the processor.
fn is_lack_of_memory_or_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Runs a loop of at least [`LOOP_ROUNDS`] instructions.
fn known_loop() {
    for round in 0..LOOP_ROUNDS {
        black_box(round);
    }
}

/// Whether the group was on the hardware between two readings, except for the time of a switch: 1 us or 0.1 %.
pub(crate) fn ran_throughout(before: &GroupReading, after: &GroupReading) -> bool {
    let enabled = after.enabled_ns.wrapping_sub(before.enabled_ns);
    let running = after.running_ns.wrapping_sub(before.running_ns);
    running > 0 && enabled.saturating_sub(running) <= (enabled / 1000).max(1000)
}

impl Counters {
    /// Opens counters for `events` that run from now on, for the calling thread on any CPU, in user mode only.
    ///
    /// Fails for more events than counters proved to work together, and for events that prove not to count.
    ///
    /// Panics when `events` is empty or longer than 16.
    pub fn open(events: &[Event]) -> Result<Counters, CounterError> {
        assert!(!events.is_empty(), "there must be an event to count");
        let requested = events.iter().filter(|event| event.code.needs_hardware()).count();
        if requested > 0 {
            let slots = usable_slots()?;
            if requested > slots.usable {
                let defect = slots.defect.as_ref().map(ToString::to_string);
                return Err(CounterError::TooFew { requested, usable: slots.usable, defect });
            }
        }
        for event in events {
            if let Some(touches) = event.quantity.counts_every_random_miss_of() {
                prove(event, touches)?;
            }
        }
        Counters::open_unproved(events, None)
    }

    /// Opens counters for another program's `thread` that run from now on. The `events` must be ones that [`open`](Self::open) has accepted.
    pub fn of_thread(events: &[Event], thread: i32) -> Result<Counters, CounterError> {
        Counters::open_unproved(events, Some(thread))
    }

    fn open_unproved(events: &[Event], thread: Option<i32>) -> Result<Counters, CounterError> {
        let codes: Vec<Code> = events.iter().map(|event| event.code).collect();
        let group =
            Group::open(&codes, thread).map_err(|(position, error)| open_error(events[position].name, error))?;
        Ok(Counters { group, events: events.to_vec() })
    }

    /// Returns the events, in the order of the counts.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the present counts of the one thread that is counted, with one system call and no allocation.
    pub fn read(&self) -> Result<Reading, CounterError> {
        self.group.read().map(Reading).map_err(|source| read_error(self.events[0].name, source))
    }

    /// Returns the counts between two readings. Fails if the counters did not run all the time, since nothing is scaled here, and if one of
    /// them went back.
    pub fn between(&self, before: &Reading, after: &Reading) -> Result<Counts, CounterError> {
        let (before, after) = (&before.0, &after.0);
        if !ran_throughout(before, after) {
            return Err(CounterError::Interrupted {
                enabled_ns: after.enabled_ns.wrapping_sub(before.enabled_ns),
                running_ns: after.running_ns.wrapping_sub(before.running_ns),
            });
        }
        let mut values = [0; GROUP_LIMIT];
        for (index, value) in values.iter_mut().enumerate() {
            let (before, after) = (before.counts[index], after.counts[index]);
            *value = after.checked_sub(before).ok_or_else(|| CounterError::WentBack {
                event: self.events[index].name.to_owned(),
                before,
                after,
            })?;
        }
        Ok(Counts { values, len: self.events.len() })
    }
}

/// Opens counters of demand misses of data or code in `level`, with the first event that proves to count them.
///
/// Fails as [`Counters::open`] does, and with [`CounterError::NoMissEvent`] if there are counters but no event for these misses is known.
pub fn miss_counters(processor: &Processor, level: u8, touches: Touches) -> Result<Counters, CounterError> {
    usable_slots()?;
    let mut error = CounterError::NoMissEvent { level, touches, processor: processor.name.clone() };
    for event in miss_events(processor, level, touches) {
        match Counters::open(&[event]) {
            Ok(counters) => return Ok(counters),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

/// Checks that `event` counts the misses of a random walk through data or code. The result is kept for the life of the process.
fn prove(event: &Event, touches: Touches) -> Result<(), CounterError> {
    static PROVED: Mutex<Option<HashMap<Code, u64>>> = Mutex::new(None);
    let mut proved = PROVED.lock().unwrap_or_else(PoisonError::into_inner);
    let proved = proved.get_or_insert_default();
    let counted = match proved.get(&event.code) {
        Some(&counted) => counted,
        None => {
            let counters = Counters::open_unproved(std::slice::from_ref(event), None)?;
            let (before, after) = match touches {
                Touches::Data => {
                    let next = random_cycle(WALK_LINES);
                    let before = counters.read()?;
                    walk(&next);
                    (before, counters.read()?)
                }
                Touches::Code => {
                    let pages = WALK_LINES * LINE_BYTES / page_bytes();
                    let mut arena = Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?;
                    let code = random_jumps(&mut arena)?;
                    let before = counters.read()?;
                    code.run(1);
                    (before, counters.read()?)
                }
            };
            let counted = counters.between(&before, &after)?.values()[0];
            proved.insert(event.code, counted);
            counted
        }
    };
    let lines = WALK_LINES as u64;
    if counts_misses(counted, lines) {
        Ok(())
    } else {
        Err(CounterError::Dead { event: event.name.to_owned(), counted, lines })
    }
}

/// Returns a loop of machine code that jumps through all lines of `arena` in random order, with one jump in each line.
fn random_jumps(arena: &mut Arena) -> Result<crate::sys::code::Code<'_>, SystemError> {
    let lines = arena.page_count() * page_bytes() / LINE_BYTES;
    let mut visits: Vec<Visit> =
        (0..lines).map(|line| Visit { offset: (line * LINE_BYTES) as u32, instructions: 1 }).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut visits);
    arena.code(&visits).map_err(|source| SystemError::NoCode { source })
}

/// Number of words in a line of 64 bytes. Longer lines make fewer misses, which the threshold of a quarter allows for.
const LINE_WORDS: usize = LINE_BYTES / 8;

const LINE_BYTES: usize = 64;

/// Returns a cycle through `lines` lines in random order: the word at the start of each line holds the index of the next.
fn random_cycle(lines: usize) -> Vec<u64> {
    let mut order: Vec<usize> = (0..lines).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let mut next = vec![0; lines * LINE_WORDS];
    for (position, &line) in order.iter().enumerate() {
        next[line * LINE_WORDS] = (order[(position + 1) % lines] * LINE_WORDS) as u64;
    }
    next
}

/// Follows the cycle once by dependent loads.
fn walk(next: &[u64]) {
    let mut at = 0;
    for _ in 0..next.len() / LINE_WORDS {
        at = black_box(next[at as usize]);
    }
}

fn read_error(event: &str, source: io::Error) -> CounterError {
    CounterError::Failed { event: event.to_owned(), action: "reading", source }
}

/// Returns the error for a counter that did not open, chosen by the remedy that would help.
pub(crate) fn open_error(event: &str, source: io::Error) -> CounterError {
    let event = event.to_owned();
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::ENXIO | libc::ENOSYS) => {
            CounterError::Absent { event, source }
        }
        Some(libc::EACCES | libc::EPERM) => {
            let paranoid =
                Sysfs::system().text("proc/sys/kernel/perf_event_paranoid").unwrap_or_else(|| "unknown".to_owned());
            CounterError::Forbidden { event, paranoid, source }
        }
        _ => CounterError::Failed { event, action: "opening", source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns groups of 1 to `size` counters that all read `count`.
    fn agreeing(size: usize, count: u64) -> Vec<Vec<u64>> {
        (1..=size).map(|size| vec![count; size]).collect()
    }

    #[test]
    fn counters_that_agree_are_all_usable() {
        assert_eq!(judge_slots(&agreeing(6, 801_234), 200_000), Slots { usable: 6, defect: None });
        assert_eq!(judge_slots(&[], 200_000), Slots { usable: 0, defect: None });
    }

    #[test]
    fn a_sixth_counter_that_reads_zero_leaves_five() {
        let mut groups = agreeing(8, 801_234);
        for group in &mut groups[5..] {
            group[5] = 0;
        }
        let defect = SlotDefect { group_size: 6, slot: 6, read: 0, expected: 801_234 };
        assert_eq!(judge_slots(&groups, 200_000), Slots { usable: 5, defect: Some(defect) });
    }

    #[test]
    fn a_live_counter_far_off_its_siblings_is_bad() {
        let mut groups = agreeing(4, 800_000);
        groups[2] = vec![800_000, 300_000, 800_100];
        let slots = judge_slots(&groups, 200_000);
        assert_eq!((slots.usable, slots.defect.unwrap().slot), (2, 2));
        // A deviation of 4 % passes.
        groups[2] = vec![800_000, 832_000, 800_000];
        assert_eq!(judge_slots(&groups, 200_000).usable, 4);
    }

    #[test]
    fn a_lone_counter_must_reach_what_the_loop_executes() {
        assert_eq!(judge_slots(&[vec![0]], 200_000).usable, 0);
        assert_eq!(judge_slots(&[vec![199_999]], 200_000).usable, 0);
        // Counters that agree on an impossible count are not believed.
        assert_eq!(judge_slots(&[vec![800_000], vec![7, 7]], 200_000).usable, 1);
    }

    #[test]
    fn of_two_counters_the_one_that_reads_zero_is_blamed() {
        for counts in [vec![0, 800_000], vec![800_000, 0]] {
            let slot = counts.iter().position(|&c| c == 0).unwrap() + 1;
            assert_eq!(judge_slots(&[vec![800_000], counts], 200_000).defect.unwrap().slot, slot);
        }
    }

    #[test]
    fn a_counter_near_zero_on_a_walk_of_misses_is_dead() {
        assert!(!counts_misses(0, 262_144));
        assert!(!counts_misses(300, 262_144));
        assert!(counts_misses(131_072, 262_144));
    }

    #[test]
    fn the_random_walk_visits_every_line_once() {
        let next = random_cycle(64);
        let mut seen = [false; 64];
        let mut at = 0;
        for _ in 0..64 {
            assert!(!std::mem::replace(&mut seen[at / LINE_WORDS], true));
            at = next[at] as usize;
        }
        assert_eq!(at, 0);
    }

    #[test]
    fn the_walk_of_jumps_is_executed_line_by_line() {
        let mut arena = Arena::map(16).unwrap();
        let lines = (16 * page_bytes() / LINE_BYTES) as u64;
        let code = random_jumps(&mut arena).unwrap();
        // Every pass executes as many jumps as there are lines. The bound holds on a processor that executes at most ten jumps in a
        // nanosecond.
        let ticks = (0..5).map(|_| code.run(1000).0).min().unwrap();
        assert!(ticks as f64 * 1e9 / crate::sys::clock::rate_hz() as f64 > 1000.0 * lines as f64 / 10.0, "{ticks}");
    }

    #[test]
    fn without_counters_or_without_an_event_it_is_reported_which() {
        let reason = |level| match miss_counters(&Processor::default(), level, Touches::Code) {
            Ok(_) => "counted",
            Err(CounterError::NoMissEvent { level: 4, touches: Touches::Code, .. }) => "no event",
            Err(_) => "no counter",
        };
        // No event for a fourth level is known on any processor.
        assert_eq!(reason(4), if usable_slots().is_ok() { "no event" } else { "no counter" });
        assert_ne!(reason(1), "no event");
    }

    #[test]
    fn counters_that_alternated_did_not_run_throughout() {
        let at = |enabled_ns, running_ns| GroupReading { enabled_ns, running_ns, counts: [0; GROUP_LIMIT] };
        assert!(ran_throughout(&at(500, 400), &at(10_500, 10_400)));
        assert!(ran_throughout(&at(0, 0), &at(5_000_000, 4_996_000)));
        // First counters that ran half of the time, then counters that never ran.
        assert!(!ran_throughout(&at(0, 0), &at(5_000_000, 2_500_000)));
        assert!(!ran_throughout(&at(0, 0), &at(900, 0)));
    }

    #[test]
    fn absent_and_forbidden_counters_are_distinguished() {
        let error = |number| open_error("instructions", io::Error::from_raw_os_error(number));
        assert!(matches!(error(libc::ENOENT), CounterError::Absent { .. }));
        assert!(matches!(error(libc::EOPNOTSUPP), CounterError::Absent { .. }));
        assert!(matches!(error(libc::EACCES), CounterError::Forbidden { .. }));
        assert!(matches!(error(libc::EPERM), CounterError::Forbidden { .. }));
        assert!(matches!(error(libc::EMFILE), CounterError::Failed { .. }));
    }
}
