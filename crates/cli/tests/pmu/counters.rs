//! Counters of the processor that a script answers: what they count, and their defects.

use std::collections::HashMap;

use nix::libc;

/// Kinds of events, and the bit of an attribute by which counts of the kernel are left out. [Linux, include/uapi/linux/perf_event.h]
const HARDWARE: u32 = 0;
const TRACEPOINT: u64 = 2;
const HW_CACHE: u32 = 3;
const RAW: u32 = 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const INSTRUCTIONS: u64 = 1;
const CYCLES: u64 = 0;

/// Formats of a reading: times and all counts of the group.
const GROUP_WITH_TIMES: u64 = 0b1011;

/// Request for the identification of an event. [Linux, include/uapi/linux/perf_event.h, PERF_EVENT_IOC_ID]
const IOCTL_ID: u32 = 0x8008_2407;

/// Number of instructions and of cycles between two readings, and time between them in ns.
const INSTRUCTIONS_PER_READING: u64 = 1_000_000;
const CYCLES_PER_READING: u64 = 2_000_000;
const NS_PER_READING: u64 = 1_000_000;

/// Number of misses in the second test of a counter, a walk over 262 144 lines. Some lines are hit.
pub const PROVED_MISSES: u64 = 250_000;

/// An event: what it counts, and how it is read.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    kind: u32,
    config: u64,
    format: u64,
    /// Whether another thread is counted.
    other: bool,
}

impl Attributes {
    /// Reads the first 48 bytes of a `perf_event_attr`, for an event of thread `pid`; 0 is the one that opens it.
    pub fn of(bytes: &[u8], pid: i32) -> Attributes {
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Attributes { kind: long(0) as u32, config: long(8), format: long(32), other: pid > 0 }
    }

    /// Whether the processor has to count the event.
    pub fn needs_hardware(&self) -> bool {
        matches!(self.kind, HARDWARE | HW_CACHE | RAW)
    }

    /// Returns the `bytes` of attributes with another event, whose hits are in the kernel.
    pub fn replaced(&self, bytes: &[u8], kind: u64, config: u64) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[..4].copy_from_slice(&(kind as u32).to_ne_bytes());
        bytes[8..16].copy_from_slice(&config.to_ne_bytes());
        let flags = u64::from_ne_bytes(bytes[40..48].try_into().expect("eight bytes")) & !EXCLUDE_KERNEL;
        bytes[40..48].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }
}

/// A defect of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Defect {
    #[default]
    None,
    /// Opening fails with this error number, from the given one of the events on that a program opens.
    Refused(i32, usize),
    /// A group of more counters is refused, as the kernel does it.
    Few(usize),
    /// The counter in this place of a group, counted from 0, stays at 0.
    DeadSlot(usize),
    /// Counters of the raw event of this code stay at 0.
    HiddenEvent(u64),
    /// Counters of misses stay at 0, or all do.
    NoMisses,
    Stuck,
    /// The group is on the hardware for half of the time.
    Multiplexed,
    /// Counts are smaller than before from this reading of a group on.
    JumpsBack(u64),
    /// This reading of a group and all later ones find it taken off the hardware.
    Gone(u64),
    /// The second reading of the counters of other threads than the opening one, and all later readings, find these counters taken off the hardware.
    GoneFromOthers,
}

/// Counters that are read together.
#[derive(Debug, Default)]
struct Group {
    members: Vec<Attributes>,
    counts: Vec<u64>,
    readings: u64,
    running_ns: u64,
}

/// The counters of a machine.
#[derive(Default)]
pub struct Pmu {
    pub defect: Defect,
    /// Counts between two readings of the events with these raw codes.
    pub counts: HashMap<u64, u64>,
    /// Counts between two readings of all other events, unless a cache has counted the misses.
    pub misses: u64,
    /// Raw codes of events, each with the tracepoint that stands for it where the kernel itself reads the counters.
    pub stand_ins: HashMap<u64, u64>,
    /// The tracepoint that stands for all other events.
    pub other_stand_in: Option<u64>,
    /// Number of events that the program has opened.
    pub opened: usize,
    /// Number of readings answered.
    pub readings: u64,
    groups: HashMap<i32, Group>,
    leaders: HashMap<i32, i32>,
}

impl Pmu {
    pub fn with(defect: Defect) -> Pmu {
        Pmu { defect, misses: 100, ..Pmu::default() }
    }

    /// Whether `descriptor` is a counter.
    pub fn has(&self, descriptor: i32) -> bool {
        self.leaders.contains_key(&descriptor)
    }

    /// Whether a counter may be opened in the group of `leader`.
    pub fn may_open(&mut self, leader: Option<i32>) -> Result<(), i32> {
        let size = leader.map_or(0, |leader| self.groups[&leader].members.len());
        let before = self.opened;
        self.opened += 1;
        match self.defect {
            Defect::Refused(error, from) if before >= from => Err(error),
            Defect::Few(most) if size == most => Err(libc::EINVAL),
            _ => Ok(()),
        }
    }

    /// Returns kind and configuration of the event that stands for a counter of a CPU.
    pub fn stand_in(&self, attributes: &Attributes) -> Option<[u64; 2]> {
        let raw = (attributes.kind == RAW).then(|| self.stand_ins.get(&attributes.config).copied()).flatten();
        Some([TRACEPOINT, raw.or(self.other_stand_in)?])
    }

    pub fn opened(&mut self, descriptor: i32, attributes: Attributes, leader: Option<i32>) {
        let leader = leader.unwrap_or(descriptor);
        self.leaders.insert(descriptor, leader);
        let group = self.groups.entry(leader).or_default();
        group.members.push(attributes);
        group.counts.push(0);
    }

    pub fn close(&mut self, descriptor: i32) {
        self.leaders.remove(&descriptor);
        self.groups.remove(&descriptor);
    }

    /// Answers a request to a counter. `identify` gets the identification of the event if it is requested.
    pub fn control(&mut self, descriptor: i32, request: u32, identify: impl FnOnce(u64)) -> i64 {
        if request == IOCTL_ID {
            identify(1000 + descriptor as u64);
        }
        0
    }

    /// Returns what a reading of the group holds. `missed`: number of misses since the last reading, if a cache knows it.
    pub fn read(&mut self, descriptor: i32, missed: Option<u64>) -> Result<Vec<u64>, i32> {
        let Some(group) = self.groups.get_mut(&descriptor) else { return Err(libc::EINVAL) };
        assert_eq!(group.members[0].format, GROUP_WITH_TIMES, "no other format of readings is known here");
        self.readings += 1;
        group.readings += 1;
        let gone = match self.defect {
            Defect::Gone(from) => group.readings >= from,
            Defect::GoneFromOthers => group.members[0].other && group.readings >= 2,
            _ => false,
        };
        if gone {
            return Ok(Vec::new());
        }
        let multiplexed = self.defect == Defect::Multiplexed;
        group.running_ns += if multiplexed { NS_PER_READING / 2 } else { NS_PER_READING };
        // The first window of a counter is that of its test.
        let misses = match missed {
            Some(missed) => missed,
            None if group.readings == 2 => PROVED_MISSES,
            None => self.misses,
        };
        for (place, (event, count)) in group.members.iter().zip(&mut group.counts).enumerate() {
            let is = |config| event.kind == HARDWARE && event.config == config;
            *count += match self.defect {
                Defect::Stuck => 0,
                Defect::DeadSlot(slot) if slot == place => 0,
                _ if is(INSTRUCTIONS) => INSTRUCTIONS_PER_READING,
                _ if is(CYCLES) => CYCLES_PER_READING,
                Defect::NoMisses => 0,
                Defect::HiddenEvent(code) if code == event.config => 0,
                _ => self.counts.get(&event.config).copied().unwrap_or(misses),
            };
            if matches!(self.defect, Defect::JumpsBack(at) if at == group.readings) {
                *count /= 8;
            }
        }
        let enabled_ns = group.readings * NS_PER_READING;
        let head = [group.members.len() as u64, enabled_ns, group.running_ns];
        Ok(head.into_iter().chain(group.counts.iter().copied()).collect())
    }
}
