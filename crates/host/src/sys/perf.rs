//! A group of performance counters of a thread, read with one system call.
//!
//! `perf-event2` opens the counters. Its group read allocates on every call, which a measured loop must not do, so the group is
//! read here, in the format of perf_event_open(2): number of events, time enabled, time running, then one value per event in
//! the order in which they were opened.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use perf_event::events::{Hardware, Raw, Software};
use perf_event::{Builder, Counter, ReadFormat};

use crate::events::Code;

/// More counters than any processor offers to one thread in one group.
pub const GROUP_LIMIT: usize = 16;

/// Values in front of the counts: number of events, time enabled, time running.
const HEADER: usize = 3;

/// Counters that run together or not at all.
#[derive(Debug)]
pub struct Group {
    leader: File,
    /// Held open: closing a member would take it out of the group.
    members: Vec<Counter>,
}

/// What a group said at one moment.
#[derive(Clone, Copy, Debug)]
pub struct GroupReading {
    /// Time for which counting was asked, in ns.
    pub enabled_ns: u64,
    /// Time for which the group was on the hardware, in ns.
    pub running_ns: u64,
    /// Counts in the order of the events; the rest is 0.
    pub counts: [u64; GROUP_LIMIT],
}

impl Group {
    /// Counters for `codes`, running, for `thread` or else the calling one, on any CPU, in user mode only.
    ///
    /// The error names the position of the event that could not be opened.
    ///
    /// Panics when `codes` is empty or longer than [`GROUP_LIMIT`].
    pub fn open(codes: &[Code], thread: Option<i32>) -> Result<Group, (usize, io::Error)> {
        assert!((1..=GROUP_LIMIT).contains(&codes.len()), "a group holds 1 to {GROUP_LIMIT} events");
        let mut leader = builder(codes[0], thread);
        // Set directly: `Builder::read_format` adds an identification to every value.
        leader.attrs_mut().read_format =
            (ReadFormat::GROUP | ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING).bits();
        let mut leader = leader.build().map_err(|error| (0, error))?;
        let mut members = Vec::with_capacity(codes.len() - 1);
        for (position, &code) in codes.iter().enumerate().skip(1) {
            members.push(builder(code, thread).build_with_group(&mut leader).map_err(|error| (position, error))?);
        }
        leader.enable_group().map_err(|error| (0, error))?;
        let descriptor = leader.into_raw_fd();
        // SAFETY: `into_raw_fd` gave the descriptor up, so it is open and nothing else owns it.
        let leader = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        Ok(Group { leader, members })
    }

    /// The counts now. One system call, no allocation.
    pub fn read(&self) -> io::Result<GroupReading> {
        let mut bytes = [0u8; (HEADER + GROUP_LIMIT) * 8];
        let length = (&self.leader).read(&mut bytes)?;
        let expected = 1 + self.members.len();
        let word = |index: usize| {
            let mut word = [0u8; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_ne_bytes(word)
        };
        // A group in the error state reads as end of file.
        if length != 8 * (HEADER + expected) || word(0) != expected as u64 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel returned no complete group"));
        }
        let mut counts = [0; GROUP_LIMIT];
        for (index, count) in counts.iter_mut().take(expected).enumerate() {
            *count = word(HEADER + index);
        }
        Ok(GroupReading { enabled_ns: word(1), running_ns: word(2), counts })
    }
}

/// User mode only, which kernel.perf_event_paranoid = 2 permits; `perf-event2` excludes kernel and hypervisor by default.
fn builder(code: Code, thread: Option<i32>) -> Builder<'static> {
    let mut builder = match code {
        Code::Instructions => Builder::new(Hardware::INSTRUCTIONS),
        Code::PageFaults => Builder::new(Software::PAGE_FAULTS),
        Code::Raw(config) => Builder::new(Raw::new(config)),
    };
    match thread {
        Some(thread) => builder.observe_pid(thread),
        None => builder.observe_self(),
    };
    builder.any_cpu().exclude_kernel(true).exclude_hv(true);
    builder
}
