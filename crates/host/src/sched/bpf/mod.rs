//! Scheduler events from programs that the kernel runs at its tracepoints (eBPF).
//!
//! At every event a program writes one record to a ring in memory that is shared with this process: the time, the CPU, the threads, and the
//! counters of the CPU. The program leaves out CPUs and threads that are not watched, and nothing wakes the reader. This needs root or CAP_BPF
//! and CAP_PERFMON, and Linux 6.0 or newer with a description of its types (`/sys/kernel/btf/vmlinux`).

pub(super) mod btf;
mod program;
mod started;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::SwitchOut;

use self::btf::Btf;
use self::program::{ACCOUNTED, COUNTER_BYTES, FOLLOWED, HEAD_BYTES, Layout, Maps, NAME_BYTES, WATCHED, field, kind};
pub use self::started::StartedProcesses;
use super::error::SchedError;
use super::source::Source;
use super::{EventKind, SchedEvent, ThreadName};
use crate::counters::events::{Code, Event as Counted};
use crate::counters::open_error;
use crate::machine::sysfs::Sysfs;
use crate::sys::bpf::{Map, MapKind, Program, RingMemory};
use crate::sys::perf::{GROUP_LIMIT, Group, GroupReading};

/// Memory for records of each watched CPU, which holds about 50 000 switches, and maximum for all CPUs together.
const RING_BYTES: usize = 1 << 22;
const RING_BYTES_MAX: usize = 1 << 26;

/// Maximum number of threads that can be followed.
const THREADS_MAX: u32 = 1 << 14;

/// Tracepoints, each with its arguments: true for a pointer.
const SWITCH: (&str, &[bool]) = ("sched_switch", &[false, true, true, false]);
const WAKING: (&str, &[bool]) = ("sched_waking", &[true]);
const WAKEUP: (&str, &[bool]) = ("sched_wakeup", &[true]);
const RUNTIME: (&str, &[bool]) = ("sched_stat_runtime", &[true, false]);
const FORK: (&str, &[bool]) = ("sched_process_fork", &[true, true]);
const EXEC: (&str, &[bool]) = ("sched_process_exec", &[true, false, true]);

/// A source of scheduler events by programs in the kernel.
pub struct BpfEvents {
    btf: Btf,
    layout: Layout,
    cpus: Map,
    threads: Map,
    ring: Map,
    records: RingMemory,
    /// For each counted event, a map with its counter by CPU.
    counters: Vec<Map>,
    /// The counters, which stop counting when this is dropped.
    _groups: Vec<Group>,
    /// The attached programs, which are detached when this is dropped.
    attached: Vec<OwnedFd>,
    watched: Vec<CpuId>,
    /// The threads in the map of threads.
    followed: Vec<i32>,
    /// Number of records lost on each CPU up to the last record that was read from it.
    lost: BTreeMap<u32, u32>,
    /// Number of CPUs that the kernel has entries for.
    possible: u32,
    /// Number of records lost up to the time when a CPU was last turned on or off, which makes the kernel count from 0.
    lost_before: u64,
}

fn refused(what: &str, source: std::io::Error) -> SchedError {
    SchedError::Events { path: PathBuf::from(format!("bpf/{what}")), source }
}

impl BpfEvents {
    /// Records from now on the switches on `cpus`, with the counts of `counted` in user mode, and the starts of threads on all CPUs.
    ///
    /// Fails with [`SchedError::Events`] if the kernel runs no programs for this user, with [`SchedError::System`] if it does not
    /// describe its types, and as [`crate::counters`] does.
    pub fn of_switches(cpus: &[CpuId], counted: &[Counted]) -> Result<BpfEvents, SchedError> {
        let mut source = BpfEvents::new(cpus, counted)?;
        source.attach_program(FORK, |maps, layout| program::fork(maps, layout, true))?;
        source.attach_program(SWITCH, program::switch)?;
        Ok(source)
    }

    /// Records from now on the switches on `cpus`, with the counts of `counted` in user mode. Events of single threads are recorded once
    /// [`follow`](Source::follow) names the threads. Fails as [`of_switches`](Self::of_switches) does.
    pub fn of_jobs(cpus: &[CpuId], counted: Option<Counted>) -> Result<BpfEvents, SchedError> {
        let mut source = BpfEvents::new(cpus, counted.as_slice())?;
        source.attach_program(SWITCH, program::switch)?;
        Ok(source)
    }

    fn new(watched: &[CpuId], counted: &[Counted]) -> Result<BpfEvents, SchedError> {
        let btf = Btf::of_kernel()?;
        let layout = Layout::of(&btf)?;
        let possible = possible_cpus()?;
        let map = |kind, entries| Map::new(kind, entries).map_err(|source| refused("map", source));
        let bytes = (RING_BYTES * watched.len()).next_power_of_two().clamp(RING_BYTES, RING_BYTES_MAX);
        let (cpus, threads) = (map(MapKind::Array, possible)?, map(MapKind::Hash, THREADS_MAX)?);
        let ring = map(MapKind::Ring, bytes as u32)?;
        let records = RingMemory::map(&ring, bytes).map_err(|source| refused("ring", source))?;
        let codes: Vec<Code> = counted.iter().map(|event| event.code).collect();
        let counters = codes.iter().map(|_| map(MapKind::PerfEvents, possible)).collect::<Result<Vec<_>, _>>()?;
        let mut groups = Vec::new();
        for cpu in watched.iter().filter(|_| !codes.is_empty()) {
            let group = Group::open_on(cpu.0, &codes);
            let group = group.map_err(|(position, source)| open_error(counted[position].name, source))?;
            for (counter, descriptor) in counters.iter().zip(group.descriptors()) {
                counter.set(cpu.0, descriptor as u32).map_err(|source| refused("counter", source))?;
            }
            groups.push(group);
        }
        for cpu in watched {
            cpus.set(cpu.0, WATCHED).map_err(|source| refused("map", source))?;
        }
        Ok(BpfEvents {
            btf,
            layout,
            cpus,
            threads,
            ring,
            records,
            counters,
            _groups: groups,
            attached: Vec::new(),
            watched: watched.to_vec(),
            followed: Vec::new(),
            lost: BTreeMap::new(),
            possible,
            lost_before: 0,
        })
    }

    fn attach_program(
        &mut self,
        (tracepoint, arguments): (&str, &[bool]),
        instructions: impl FnOnce(&Maps, Layout) -> Vec<u64>,
    ) -> Result<(), SchedError> {
        let counters: Vec<i32> = self.counters.iter().map(Map::number).collect();
        let maps = Maps {
            cpus: self.cpus.number(),
            threads: self.threads.number(),
            ring: self.ring.number(),
            counters: &counters,
        };
        let instructions = instructions(&maps, self.layout);
        self.attached.push(attach(&self.btf, (tracepoint, arguments), &instructions)?);
        Ok(())
    }
}

/// Makes the kernel run `instructions` at every hit of the tracepoint, until the returned descriptor is dropped.
fn attach(btf: &Btf, (tracepoint, arguments): (&str, &[bool]), instructions: &[u64]) -> Result<OwnedFd, SchedError> {
    let number = btf.tracepoint(tracepoint, arguments)?;
    let program = Program::load(instructions, number).map_err(|source| refused(tracepoint, source))?;
    program.attach().map_err(|source| refused(tracepoint, source))
}

/// Returns the number of CPUs that the kernel has entries for.
fn possible_cpus() -> Result<u32, SchedError> {
    Ok(1 + Sysfs::system().online_cpus()?.iter().map(|cpu| cpu.0).max().unwrap_or(0))
}

impl BpfEvents {
    /// Returns the number of records lost on `cpu` since it was last turned on or off.
    fn lost_on(&self, cpu: u32) -> u64 {
        u64::from(self.cpus.get(cpu).map_or(0, |word| word & !WATCHED))
    }
}

impl Source for BpfEvents {
    fn drain(&mut self, events: &mut Vec<SchedEvent>) -> Result<(), SchedError> {
        let (counters, lost) = (self.counters.len(), &mut self.lost);
        self.records.drain(|record| {
            let Some((event, lost_so_far)) = parse(record, counters) else { return };
            let before = lost.insert(event.cpu.0, lost_so_far).unwrap_or(0);
            let records = u64::from(lost_so_far.wrapping_sub(before));
            if records > 0 {
                events.push(SchedEvent { kind: EventKind::Lost { records }, ..event });
            }
            events.push(event);
        });
        Ok(())
    }

    fn follow(&mut self, threads: &[i32], others: &[i32]) -> Result<(), SchedError> {
        let failed = |source| refused("threads", source);
        for gone in self.followed.drain(..) {
            self.threads.remove(gone as u32).map_err(failed)?;
        }
        for (thread, flag) in
            others.iter().map(|thread| (thread, ACCOUNTED)).chain(threads.iter().map(|thread| (thread, FOLLOWED)))
        {
            self.threads.set(*thread as u32, flag).map_err(failed)?;
            self.followed.push(*thread);
        }
        // The program of switches is attached from the beginning.
        if self.attached.len() == 1 && !threads.is_empty() {
            self.attach_program(WAKING, |maps, layout| program::wakeup(maps, layout, kind::WAKING))?;
            self.attach_program(WAKEUP, |maps, layout| program::wakeup(maps, layout, kind::WAKEUP))?;
            self.attach_program(FORK, |maps, layout| program::fork(maps, layout, false))?;
            self.attach_program(RUNTIME, program::runtime)?;
        }
        Ok(())
    }

    fn enable(&mut self, cpu: CpuId, on: bool) -> Result<(), SchedError> {
        // The kernel counts lost records from 0 again.
        self.lost_before += self.lost_on(cpu.0);
        self.lost.remove(&cpu.0);
        let watched = if on && self.watched.contains(&cpu) { WATCHED } else { 0 };
        self.cpus.set(cpu.0, watched).map_err(|source| refused("map", source))
    }

    fn lost(&self) -> u64 {
        // A CPU that has lost a record may never write another one that reports it.
        self.lost_before + (0..self.possible).map(|cpu| self.lost_on(cpu)).sum::<u64>()
    }

    fn name(&self) -> &'static str {
        "programs in the kernel (eBPF)"
    }
}

/// Returns the event that a record describes, and the number of records lost on its CPU so far; `None` if the record is cut off.
pub(super) fn parse(record: &[u8], counters: usize) -> Option<(SchedEvent, u32)> {
    let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let name = |at: usize| Some(ThreadName::of(record.get(at..at + NAME_BYTES)?));
    let (thread, value) = (word(field::THREAD)? as i32, long(field::VALUE)?);
    let kind = match word(field::KIND)? {
        kind::SWITCH => {
            let mut reading = GroupReading::default();
            for counter in 0..counters.min(GROUP_LIMIT) {
                let at = HEAD_BYTES + 2 * NAME_BYTES + counter * COUNTER_BYTES;
                reading.counts[counter] = long(at)?;
                (reading.enabled_ns, reading.running_ns) = (long(at + 8)?, long(at + 16)?);
            }
            EventKind::Switch {
                from: thread,
                from_name: name(HEAD_BYTES)?,
                reason: if value & 1 == 1 { SwitchOut::Preempted } else { left(word(field::STATE)?) },
                to: word(field::OTHER)? as i32,
                to_name: name(HEAD_BYTES + NAME_BYTES)?,
                reading,
            }
        }
        kind::WAKING => EventKind::Waking { thread },
        kind::WAKEUP => EventKind::Wakeup { thread },
        kind::RUNTIME => EventKind::Runtime { thread, time: Ns(value) },
        kind::FORK => EventKind::Fork { parent: thread, child: word(field::OTHER)? as i32 },
        _ => return None,
    };
    let event = SchedEvent { at: Ns(long(field::AT)?), cpu: CpuId(word(field::CPU)?), kind };
    Some((event, word(field::LOST)? & !WATCHED))
}

/// Returns the switch-out reason by the state in `task_struct`, which differs from the state that the kernel prints. [Linux,
/// include/linux/sched.h]
fn left(state: u32) -> SwitchOut {
    const SLEEP: u32 = 1;
    const DEAD: u32 = 0x80;
    match state & 0xff {
        0 => SwitchOut::Preempted,
        bits if bits & DEAD != 0 => SwitchOut::Ended,
        SLEEP => SwitchOut::Asleep,
        _ => SwitchOut::Blocked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, words: [u32; 4], value: u64) -> Vec<u8> {
        let mut record = [kind.to_ne_bytes(), 1u32.to_ne_bytes()].concat();
        record.extend(1000u64.to_ne_bytes());
        words.iter().for_each(|word| record.extend(word.to_ne_bytes()));
        record.extend(value.to_ne_bytes());
        record
    }

    #[test]
    fn a_record_tells_who_left_how_and_what_the_counters_said() {
        let mut bytes = record(kind::SWITCH, [WATCHED | 3, 7, 8, 1], 0);
        bytes.extend(b"one\0rest of it..two\0rest of it..");
        [40u64, 900, 800].iter().for_each(|long| bytes.extend(long.to_ne_bytes()));
        let (event, lost) = parse(&bytes, 1).unwrap();
        let mut reading = GroupReading { enabled_ns: 900, running_ns: 800, ..GroupReading::default() };
        reading.counts[0] = 40;
        let (from_name, to_name) = (ThreadName::of(b"one"), ThreadName::of(b"two"));
        let kind = EventKind::Switch { from: 7, from_name, reason: SwitchOut::Asleep, to: 8, to_name, reading };
        assert_eq!((event, lost), (SchedEvent { at: Ns(1000), cpu: CpuId(1), kind }, 3));
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length], 1).is_none(), "{length}");
        }
    }

    #[test]
    fn states_are_those_of_the_kernel_itself() {
        use SwitchOut::*;
        // Running; interruptible, also freezable; uninterruptible; killable; idle without load; dead; stopped.
        let reasons = [0, 1, 0x2001, 2, 0x102, 0x402, 0x80, 4].map(left);
        assert_eq!(reasons, [Preempted, Asleep, Asleep, Blocked, Blocked, Blocked, Ended, Blocked]);
        let preempted = parse(&[record(kind::SWITCH, [0, 7, 8, 1], 1), vec![0; 32]].concat(), 0).unwrap().0;
        assert!(matches!(preempted.kind, EventKind::Switch { reason: Preempted, .. }), "{preempted:?}");
    }

    #[test]
    fn other_records_tell_whom_they_concern() {
        let kinds = [kind::WAKING, kind::WAKEUP, kind::RUNTIME, kind::FORK, 9]
            .map(|kind| parse(&record(kind, [0, 7, 8, 0], 500), 0).map(|(event, _)| event.kind));
        let expected = [
            Some(EventKind::Waking { thread: 7 }),
            Some(EventKind::Wakeup { thread: 7 }),
            Some(EventKind::Runtime { thread: 7, time: Ns(500) }),
            Some(EventKind::Fork { parent: 7, child: 8 }),
            None,
        ];
        assert_eq!(kinds, expected);
    }
}
