//! Context switches of CPUs from performance events, each with the counters of the CPU at the switch.
//!
//! The tracepoint `sched_switch` leads a group of counters on every CPU. Whenever it is hit, the kernel writes a record to the ring of the
//! CPU: the time, the thread that leaves and its state, the thread that comes, and the reading of the whole group. So the counts between
//! two records belong to the thread that had the CPU, and the CPU does no other work than writing records. The rings are in memory shared
//! with the kernel, so reading them takes no system call. Counters are optional: a group of the tracepoint alone reports which thread had
//! the CPU when.
//!
//! Without privilege the kernel gives access neither to tracepoints nor to counts at switches, because the counter of context switches
//! counts in the kernel, which such users cannot observe. It does write records when their own threads get and leave a CPU
//! (`PERF_RECORD_SWITCH`). Each of them is a switch here, from or to an unknown thread.

use std::io;

use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::SwitchOut;

use super::error::SchedError;
use super::source::Source;
use super::tracefs::{fields, tracefs};
use super::{EventKind, SchedEvent, ThreadName, switch_out};
use crate::counters::events::{Code, Event as Counted};
use crate::counters::{CounterError, open_error};
use crate::error::{SystemError, without_hint};
use crate::machine::sysfs::Sysfs;
use crate::sys::mount::Mount;
use crate::sys::perf::{GROUP_LIMIT, GroupReading, Ring};

/// Size of the ring of each CPU, which holds about 29 000 switches.
const RING_BYTES: usize = 1 << 22;
/// Size of the ring without privilege, which kernel.perf_event_mlock_kb permits by default. It holds about 8000 switches.
const OWN_RING_BYTES: usize = 1 << 19;

/// Offsets of fields of the tracepoint: name, number and state of the thread that leaves, number of the thread that comes.
pub(super) type Layout = [usize; 4];

/// Returns the time and the event of a record of kind `kind`. [perf_event_open(2), "MMAP layout"]
///
/// `None` for other kinds, and for records that are cut off.
pub(super) fn parse(kind: u32, body: &[u8], layout: &Layout) -> Option<(Ns, EventKind)> {
    const LOST: u32 = 2;
    const FORK: u32 = 7;
    const SAMPLE: u32 = 9;
    let word = |at: usize| Some(i32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?));
    match kind {
        // The number of the event, the number of records lost, and the time.
        LOST => Some((Ns(long(16)?), EventKind::Lost { records: long(8)? })),
        // Process, parent process, thread, parent thread, and time.
        FORK => Some((Ns(long(16)?), EventKind::Fork { parent: word(12)?, child: word(8)? })),
        // The time; the number of events in the group, the times enabled and running, and the count of each event, beginning with the
        // tracepoint; the length of the tracepoint's fields, and the fields.
        SAMPLE => {
            let events = usize::try_from(long(8)?).ok().filter(|events| (1..=1 + GROUP_LIMIT).contains(events))?;
            let mut reading = GroupReading { enabled_ns: long(16)?, running_ns: long(24)?, ..GroupReading::default() };
            for (position, count) in reading.counts.iter_mut().take(events - 1).enumerate() {
                *count = long(32 + 8 * (1 + position))?;
            }
            let fields = 32 + 8 * events + 4;
            let [name, from, state, to] = layout.map(|offset| fields + offset);
            let what = EventKind::Switch {
                from: word(from)?,
                from_name: ThreadName(body.get(name..name + 16)?.try_into().ok()?),
                // The state is a long, which is read as on 64-bit kernels.
                reason: switch_out(long(state)?),
                to: word(to)?,
                to_name: ThreadName::default(),
                reading,
            };
            Some((Ns(long(0)?), what))
        }
        _ => None,
    }
}

/// Does the same as [`parse`] for records of single threads, which have `flags`.
pub(super) fn parse_own(kind: u32, flags: u16, body: &[u8]) -> Option<(Ns, EventKind)> {
    const COMM: u32 = 3;
    const EXIT: u32 = 4;
    const SAMPLE: u32 = 9;
    const SWITCH: u32 = 14;
    const OUT: u16 = 1 << 13;
    const PREEMPTED: u16 = 1 << 14;
    let word = |at: usize| Some(i32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?));
    let switch = |at: u64, from: i32, reason: SwitchOut, to: i32| {
        let (none, reading) = (ThreadName::default(), GroupReading::default());
        Some((Ns(at), EventKind::Switch { from, from_name: none, reason, to, to_name: none, reading }))
    };
    match kind {
        // Process, thread, and time.
        SWITCH => {
            let (thread, at) = (word(4)?, long(8)?);
            // The kernel reports no other state.
            let reason = if flags & PREEMPTED != 0 { SwitchOut::Preempted } else { SwitchOut::Asleep };
            if flags & OUT == 0 { switch(at, 0, reason, thread) } else { switch(at, thread, reason, 0) }
        }
        // Process, parent process, thread, parent thread, and time. This is the last record of a thread.
        EXIT => switch(long(16)?, word(8)?, SwitchOut::Ended, 0),
        // Process, thread, name, and behind the name process, thread, and time.
        COMM => {
            let end = body.len().checked_sub(16)?;
            Some((Ns(long(end + 8)?), EventKind::Named { thread: word(4)?, name: ThreadName::of(body.get(8..end)?) }))
        }
        SAMPLE => None,
        _ => parse(kind, body, &[0; 4]),
    }
}

/// Kind of the records that a source reads.
enum Records {
    /// Hits of the tracepoint, on whole CPUs.
    Tracepoint {
        layout: Layout,
        /// Mount of tracefs, if it is mounted for this process alone.
        _mount: Option<Mount>,
    },
    /// Switches of single threads.
    Threads,
}

/// A source of scheduler events by the rings of performance events.
pub struct PerfRings {
    rings: Vec<(CpuId, Ring)>,
    source: Records,
    lost: u64,
}

/// Returns the kernel's setting of who may use performance events.
fn paranoid() -> String {
    Sysfs::system().text("proc/sys/kernel/perf_event_paranoid").unwrap_or_else(|| "unknown".to_owned())
}

impl PerfRings {
    /// Records from now on the switches and the starts of threads on `cpus`, and with every switch the counts of `counted` in user mode.
    ///
    /// Fails with [`SchedError::SwitchesForbidden`] if this user may not read the kernel's events, and as [`crate::counters`] does if the
    /// counters do not exist or others use them.
    pub fn open(cpus: &[CpuId], counted: &[Counted]) -> Result<PerfRings, SchedError> {
        PerfRings::open_tracepoint(cpus, counted).map_err(|error| match &error {
            SchedError::Events { source, .. } | SchedError::System(SystemError::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                SchedError::SwitchesForbidden { paranoid: paranoid(), refused: without_hint(&error) }
            }
            _ => error,
        })
    }

    fn open_tracepoint(cpus: &[CpuId], counted: &[Counted]) -> Result<PerfRings, SchedError> {
        let (root, mount) = tracefs()?;
        let events = root.join("events/sched");
        let found = fields(&events, "sched_switch", ["prev_comm", "prev_pid", "prev_state", "next_pid"])?;
        let (id, layout) = found.split_first().expect("the number of the event and as many fields as were requested");
        let layout = layout.try_into().expect("as many fields as were requested");
        let codes: Vec<Code> = counted.iter().map(|event| event.code).collect();
        let mut rings = Vec::new();
        for cpu in cpus {
            let ring = Ring::open(cpu.0, *id as u64, &codes, RING_BYTES);
            let mut ring = ring.map_err(|(position, source)| match position {
                Some(position) => open_error(counted[position].name, source).into(),
                None => SchedError::Events { path: events.join("sched_switch"), source },
            })?;
            if let Some(first) = counted.first().filter(|_| !ring.counts()) {
                let source = std::io::Error::from_raw_os_error(libc::EBUSY);
                return Err(CounterError::Failed { event: first.name.to_owned(), action: "starting", source }.into());
            }
            rings.push((*cpu, ring));
        }
        Ok(PerfRings { rings, source: Records::Tracepoint { layout, _mount: mount }, lost: 0 })
    }

    /// Records from now on when the calling thread and those that it starts get and leave `cpus`, without counts and without other threads.
    ///
    /// Fails with [`SchedError::OwnSwitchesForbidden`].
    pub fn open_own(cpus: &[CpuId]) -> Result<PerfRings, SchedError> {
        let ring = |cpu: &CpuId| match Ring::open_own(cpu.0, OWN_RING_BYTES) {
            Ok(ring) => Ok((*cpu, ring)),
            Err(source) => Err(SchedError::OwnSwitchesForbidden { paranoid: paranoid(), source }),
        };
        let rings = cpus.iter().map(ring).collect::<Result<_, _>>()?;
        Ok(PerfRings { rings, source: Records::Threads, lost: 0 })
    }
}

impl Source for PerfRings {
    fn drain(&mut self, events: &mut Vec<SchedEvent>) -> Result<(), SchedError> {
        let PerfRings { rings, source, lost } = self;
        for (cpu, ring) in rings {
            ring.drain(|kind, flags, body| {
                let parsed = match source {
                    Records::Tracepoint { layout, .. } => parse(kind, body, layout),
                    Records::Threads => parse_own(kind, flags, body),
                };
                if let Some((at, kind)) = parsed {
                    if let EventKind::Lost { records } = kind {
                        *lost += records;
                    }
                    events.push(SchedEvent { at, cpu: *cpu, kind });
                }
            });
        }
        Ok(())
    }

    /// Does nothing: starts of threads are always recorded; wake-ups and accounted time never are.
    fn follow(&mut self, _threads: &[i32], _others: &[i32]) -> Result<(), SchedError> {
        Ok(())
    }

    fn enable(&mut self, cpu: CpuId, on: bool) -> Result<(), SchedError> {
        for (_, ring) in self.rings.iter_mut().filter(|(of, _)| *of == cpu) {
            ring.enable(on).map_err(|source| SchedError::Events { path: "perf_event_open".into(), source })?;
        }
        Ok(())
    }

    /// Adds the records of `thread`, and does nothing if it has ended. Fails with [`SchedError::ThreadNotWatched`].
    fn attach(&mut self, thread: i32) -> Result<(), SchedError> {
        let Records::Threads = self.source else { return Ok(()) };
        for (_, ring) in &mut self.rings {
            match ring.attach(thread) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                attached => attached.map_err(|source| SchedError::ThreadNotWatched { thread, source })?,
            }
        }
        Ok(())
    }

    fn lost(&self) -> u64 {
        self.lost
    }

    fn stopped(&mut self) -> Vec<CpuId> {
        self.rings.extract_if(.., |(_, ring)| !ring.counts()).map(|(cpu, _)| cpu).collect()
    }

    fn name(&self) -> &'static str {
        "rings of performance events"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets of the fields on Linux 6.18.
    const LAYOUT: Layout = [8, 24, 32, 56];

    fn longs(longs: &[u64]) -> Vec<u8> {
        longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
    }

    /// Returns the record of a switch at time 1000, from thread 7, called `task`, which sleeps, to thread 8.
    fn switch_record() -> Vec<u8> {
        // Three events: the tracepoint, hit 5 times, and two counters.
        let mut body = longs(&[1000, 3, 900, 800, 5, 40, 10]);
        body.extend(68u32.to_ne_bytes());
        let mut raw = vec![0; 64];
        raw[8..12].copy_from_slice(b"task");
        raw[24..28].copy_from_slice(&7i32.to_ne_bytes());
        raw[32..40].copy_from_slice(&1u64.to_ne_bytes());
        raw[56..60].copy_from_slice(&8i32.to_ne_bytes());
        body.extend(raw);
        body
    }

    #[test]
    fn a_record_tells_who_left_how_and_what_the_counters_said() {
        let (at, what) = parse(9, &switch_record(), &LAYOUT).unwrap();
        let EventKind::Switch { from, from_name, reason, to, reading, .. } = what else { panic!("{what:?}") };
        assert_eq!((at, from, from_name.to_string().as_str(), reason, to), (Ns(1000), 7, "task", SwitchOut::Asleep, 8));
        // The count of the tracepoint itself is left out.
        assert_eq!((reading.enabled_ns, reading.running_ns, &reading.counts[..3]), (900, 800, &[40, 10, 0][..]));
    }

    #[test]
    fn starts_and_losses_are_read() {
        let mut fork: Vec<u8> = [20i32, 10, 21, 11].iter().flat_map(|word| word.to_ne_bytes()).collect();
        fork.extend(longs(&[500, 500]));
        assert_eq!(parse(7, &fork, &LAYOUT), Some((Ns(500), EventKind::Fork { parent: 11, child: 21 })));
        assert_eq!(parse(2, &longs(&[3, 12, 600]), &LAYOUT), Some((Ns(600), EventKind::Lost { records: 12 })));
    }

    #[test]
    fn records_of_single_threads_tell_when_each_had_its_cpu_and_its_name() {
        const OUT: u16 = 1 << 13;
        let words = |words: &[i32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let at = |words: Vec<u8>, at: u64| [words, longs(&[at])].concat();
        let comm = [words(&[7, 8]), b"task\0\0\0\0".to_vec(), at(words(&[7, 8]), 5)].concat();
        let mut name = [0; 16];
        name[..4].copy_from_slice(b"task");
        assert_eq!(parse_own(3, 0, &comm), Some((Ns(5), EventKind::Named { thread: 8, name: ThreadName(name) })));
        let fork = [at(words(&[8, 7, 8, 7]), 10), at(words(&[7, 7]), 10)].concat();
        assert_eq!(parse_own(7, 0, &fork), Some((Ns(10), EventKind::Fork { parent: 7, child: 8 })));
        let switch = |kind, flags, body: &[u8]| match parse_own(kind, flags, body) {
            Some((at, EventKind::Switch { from, reason, to, .. })) => (at.0, from, reason, to),
            other => panic!("{other:?}"),
        };
        let own = |time| at(words(&[8, 8]), time);
        assert_eq!(switch(14, 0, &own(20)), (20, 0, SwitchOut::Asleep, 8));
        assert_eq!(switch(14, OUT, &own(30)), (30, 8, SwitchOut::Asleep, 0));
        assert_eq!(switch(14, OUT | 1 << 14, &own(40)), (40, 8, SwitchOut::Preempted, 0));
        assert_eq!(switch(4, 0, &at(words(&[8, 7, 8, 7]), 50)), (50, 8, SwitchOut::Ended, 0));
        // Samples were not requested.
        assert_eq!(parse_own(9, 0, &switch_record()), None);
        for (kind, body) in [(14, own(1)), (4, own(1)), (3, words(&[7, 8, 1]))] {
            assert_eq!(parse_own(kind, 0, &body[..body.len() - 1]), None);
        }
    }

    #[test]
    fn records_that_are_cut_off_or_mean_nothing_say_nothing() {
        let whole = switch_record();
        for cut in 0..whole.len() - 4 {
            assert_eq!(parse(9, &whole[..cut], &LAYOUT), None, "{cut}");
        }
        // Kinds that were not requested, and a group larger than the record.
        assert_eq!(parse(5, &whole, &LAYOUT), None);
        for events in [0, 18, u64::MAX] {
            let mut garbage = whole.clone();
            garbage[8..16].copy_from_slice(&events.to_ne_bytes());
            assert_eq!(parse(9, &garbage, &LAYOUT), None);
        }
    }
}
