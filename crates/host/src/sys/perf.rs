//! Groups of performance counters. A [`Group`] counts for one thread or one CPU, and is read with one system call. A [`Ring`] belongs to a CPU,
//! and the kernel writes counts or thread switches to it.
//!
//! `perf-event2` opens the counters and maps the rings. Its group read allocates on every call, which a measured loop must not do. So the group
//! is read here, in the format of perf_event_open(2): number of events, time enabled, time running, then one value per event in the order in
//! which they were opened.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Raw, Software, Tracepoint};
use perf_event::{Builder, Clock, Counter, ReadFormat, SampleFlag, Sampler};
use serde::Serialize;

/// Event to count, in the terms of perf_event_open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The kernel's generic event `instructions`.
    Instructions,
    /// The kernel's generic event `cycles`.
    Cycles,
    /// The kernel's generic event `page-faults`, which needs no hardware.
    PageFaults,
    /// The kernel's generic event `L1-dcache-load-misses`, which the kernel maps to an event of the processor.
    L1DataReadMisses,
    /// The kernel's generic event `L1-icache-load-misses`, which the kernel maps to an event of the processor.
    L1CodeReadMisses,
    /// Number of the event as the processor's manual gives it, `umask << 8 | event` on x86.
    Raw(u64),
}

impl Code {
    /// Whether the event needs a counter of the processor.
    pub fn needs_hardware(self) -> bool {
        self != Code::PageFaults
    }
}

/// Largest number of counters in a group, which is more than any processor offers to one thread.
pub const GROUP_LIMIT: usize = 16;

/// Number of values in front of the counts: number of events, time enabled, time running.
const HEADER: usize = 3;

/// Request that makes a counter write its records to the ring of another counter. [Linux, include/uapi/linux/perf_event.h,
/// PERF_EVENT_IOC_SET_OUTPUT]
const SET_OUTPUT: libc::Ioctl = libc::_IO(b'$' as u32, 5);

/// Counters that are on the hardware together or not at all.
#[derive(Debug)]
pub struct Group {
    leader: File,
    /// Counters of the other events, kept open: closing a member would take it out of the group.
    members: Vec<Counter>,
}

/// Readings of a group at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupReading {
    /// Time for which the group was enabled, in ns.
    pub enabled_ns: u64,
    /// Time for which the group was on the hardware, in ns.
    pub running_ns: u64,
    /// Counts in the order of the events; the rest of the array is 0.
    pub counts: [u64; GROUP_LIMIT],
}

impl Group {
    /// Opens counters for `codes` and starts them: for `thread`, or for the calling thread if `None`, on any CPU, in user mode only.
    ///
    /// The error names the position of the event that could not be opened.
    ///
    /// Panics when `codes` is empty or longer than [`GROUP_LIMIT`].
    pub fn open(codes: &[Code], thread: Option<i32>) -> Result<Group, (usize, io::Error)> {
        Group::of(codes, |counter| {
            if let Some(thread) = thread {
                counter.observe_pid(thread);
            }
        })
    }

    /// Opens counters for `codes` and starts them, as [`open`](Self::open) does, but for all threads that run on `cpu`.
    pub fn open_on(cpu: u32, codes: &[Code]) -> Result<Group, (usize, io::Error)> {
        Group::of(codes, |counter| {
            counter.any_pid().one_cpu(cpu as usize);
        })
    }

    fn of(codes: &[Code], prepare: impl Fn(&mut Builder)) -> Result<Group, (usize, io::Error)> {
        assert!((1..=GROUP_LIMIT).contains(&codes.len()), "a group holds 1 to {GROUP_LIMIT} events");
        let builder = |code| {
            let mut builder = builder(code);
            prepare(&mut builder);
            builder
        };
        let mut leader = builder(codes[0]);
        leader.attrs_mut().read_format = read_format();
        let mut leader = leader.build().map_err(|error| (0, error))?;
        let mut members = Vec::with_capacity(codes.len() - 1);
        for (position, &code) in codes.iter().enumerate().skip(1) {
            members.push(builder(code).build_with_group(&mut leader).map_err(|error| (position, error))?);
        }
        leader.enable_group().map_err(|error| (0, error))?;
        let descriptor = leader.into_raw_fd();
        // SAFETY: `into_raw_fd` gave the descriptor up, so it is open and nothing else owns it.
        let leader = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        Ok(Group { leader, members })
    }

    /// Returns the file descriptors of the events, in their order. They stay open as long as the group exists.
    pub fn descriptors(&self) -> Vec<i32> {
        std::iter::once(self.leader.as_raw_fd()).chain(self.members.iter().map(AsRawFd::as_raw_fd)).collect()
    }

    /// Returns the present counts, with one system call and no allocation.
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

/// Records of one CPU that the kernel writes to a ring buffer: either samples of the counters, taken at every hit of a tracepoint, or the
/// times when threads get and leave the CPU.
///
/// The tracepoint leads the group, because the records of an event carry only the counts of its own group. [perf_event_open(2),
/// PERF_SAMPLE_READ]
pub struct Ring {
    sampler: Sampler,
    /// Counters of the other events, kept open: closing a member would take it out of the group, or end its records.
    members: Vec<Counter>,
    cpu: u32,
    pinned: bool,
}

impl Ring {
    /// Opens counters for `codes`, in user mode, of all threads that run on `cpu`. The kernel writes them to a ring of `bytes` bytes at every
    /// hit of tracepoint number `tracepoint` on that CPU, along with the starts and ends of threads.
    ///
    /// A group with counters is *pinned*: it is always on the hardware or fails, because hits are not recorded while other groups are on the
    /// hardware.
    ///
    /// The error names the position of the event that could not be opened, if it is one of `codes`.
    ///
    /// Panics when `codes` is longer than [`GROUP_LIMIT`].
    pub fn open(cpu: u32, tracepoint: u64, codes: &[Code], bytes: usize) -> Result<Ring, (Option<usize>, io::Error)> {
        assert!(codes.len() <= GROUP_LIMIT, "a group holds up to {GROUP_LIMIT} events");
        let mut leader = Builder::new(Tracepoint::with_id(tracepoint));
        // The kernel hits its tracepoints in kernel mode, which must therefore not be excluded. No wake-up is requested.
        leader.any_pid().one_cpu(cpu as usize).include_kernel().task(true).sample_id_all(true).sample_period(1);
        leader.sample(SampleFlag::TIME | SampleFlag::READ | SampleFlag::RAW).clockid(Clock::MONOTONIC);
        leader.pinned(!codes.is_empty());
        leader.attrs_mut().read_format = read_format();
        let mut leader = leader.build().map_err(|error| (None, error))?;
        let mut members = Vec::with_capacity(codes.len());
        for (position, code) in codes.iter().enumerate() {
            let mut member = builder(*code);
            // All events of a group use the same clock. [Linux, kernel/events/core.c, perf_event_open] Members are enabled here and start with
            // their leader: members of a pinned group that are enabled after the leader stay at 0 (Linux 6.18).
            member.any_pid().one_cpu(cpu as usize).clockid(Clock::MONOTONIC).enabled(true);
            members.push(member.build_with_group(&mut leader).map_err(|error| (Some(position), error))?);
        }
        let mut sampler = leader.sampled(bytes).map_err(|error| (None, error))?;
        sampler.enable_group().map_err(|error| (None, error))?;
        Ok(Ring { sampler, members, cpu, pinned: !codes.is_empty() })
    }

    /// Opens a ring of `bytes` bytes for records of the calling thread and of all threads that it starts from now on: the times when they get
    /// and leave `cpu`, start, end and change their names. Needs no privilege at kernel.perf_event_paranoid = 2. [perf_event_open(2),
    /// PERF_RECORD_SWITCH]
    pub fn open_own(cpu: u32, bytes: usize) -> io::Result<Ring> {
        let mut sampler = thread_switches(cpu).build()?.sampled(bytes)?;
        sampler.enable()?;
        Ok(Ring { sampler, members: Vec::new(), cpu, pinned: false })
    }

    /// Adds records of another `thread`, with the same events, to this ring. The ring must come from [`open_own`](Self::open_own).
    pub fn attach(&mut self, thread: i32) -> io::Result<()> {
        let counter = thread_switches(self.cpu).observe_pid(thread).build()?;
        self.add(counter)
    }

    /// Starts `counter`, which writes its records to this ring from now on.
    fn add(&mut self, mut counter: Counter) -> io::Result<()> {
        // SAFETY: both descriptors are open, and this call takes no pointer.
        let done = unsafe { libc::ioctl(counter.as_raw_fd(), SET_OUTPUT, self.sampler.as_raw_fd()) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        counter.enable()?;
        self.members.push(counter);
        Ok(())
    }

    /// Opens a ring of `bytes` bytes to which the kernel writes a record whenever a thread on `cpu` enters the function at `offset` of the file
    /// `path`, or returns from it, in whatever process.
    ///
    /// Returns the ring, and the identifiers of the two events in the records: of entering and of returning. [Linux,
    /// Documentation/trace/uprobetracer.rst]
    pub fn open_calls(cpu: u32, path: &Path, offset: u64, bytes: usize) -> io::Result<(Ring, [u64; 2])> {
        let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
        let kind = kind.trim().parse().map_err(io::Error::other)?;
        let path = CString::new(path.as_os_str().as_bytes())?;
        let open = |returns: bool| {
            // The event is set directly: `UProbe` of `perf-event2` is not an event that its `Builder` takes (0.7.4).
            let mut builder = Builder::new(Software::DUMMY);
            builder.any_pid().one_cpu(cpu as usize).include_kernel().sample_period(1);
            builder.sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::ID).clockid(Clock::MONOTONIC);
            let attributes = builder.attrs_mut();
            (attributes.type_, attributes.config) = (kind, u64::from(returns));
            (attributes.uprobe_path, attributes.probe_offset) = (path.as_ptr().addr() as u64, offset);
            builder.build()
        };
        let (returning, entering) = (open(true)?, open(false)?);
        let identifiers = [entering.id(), returning.id()];
        let mut ring = Ring { sampler: entering.sampled(bytes)?, members: Vec::new(), cpu, pinned: false };
        ring.add(returning)?;
        ring.sampler.enable()?;
        Ok((ring, identifiers))
    }

    /// Starts or stops the writing of records. Only the leader is switched: its members follow it.
    pub fn enable(&mut self, on: bool) -> io::Result<()> {
        if on { self.sampler.enable() } else { self.sampler.disable() }
    }

    /// Calls `each` with every record since the last drain, oldest first: its kind, its flags and the bytes after its header. Makes no system
    /// call.
    pub fn drain(&mut self, mut each: impl FnMut(u32, u16, &[u8])) {
        while let Some(record) = self.sampler.next_record() {
            each(record.ty(), record.misc(), &record.to_contiguous());
        }
    }

    /// Whether the group is on the hardware. The kernel takes a pinned group off the hardware for good if other groups get the counters first.
    pub fn counts(&mut self) -> bool {
        // A group that was taken off reads as end of file.
        !self.pinned || self.sampler.read_group().is_ok()
    }
}

/// Returns the builder of an event that records when the calling thread and the threads that it starts get and leave `cpu`.
fn thread_switches(cpu: u32) -> Builder<'static> {
    let mut builder = Builder::new(Software::DUMMY);
    builder.observe_self().one_cpu(cpu as usize).inherit(true).exclude_kernel(true).exclude_hv(true);
    builder.context_switch(true).task(true).comm(true).sample_id_all(true);
    builder.sample(SampleFlag::TID | SampleFlag::TIME).clockid(Clock::MONOTONIC);
    builder
}

/// Returns the format in which [`Group::read`] and the records of [`Ring`] give counts. It is set directly, because `Builder::read_format` adds
/// an identification to every value.
fn read_format() -> u64 {
    (ReadFormat::GROUP | ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING).bits()
}

fn read_misses(which: CacheId) -> Cache {
    Cache { which, operation: CacheOp::READ, result: CacheResult::MISS }
}

/// Returns a builder of an event in user mode only, which kernel.perf_event_paranoid = 2 permits; `perf-event2` excludes kernel and
/// hypervisor by default.
fn builder(code: Code) -> Builder<'static> {
    let mut builder = match code {
        Code::Instructions => Builder::new(Hardware::INSTRUCTIONS),
        Code::Cycles => Builder::new(Hardware::CPU_CYCLES),
        Code::PageFaults => Builder::new(Software::PAGE_FAULTS),
        Code::L1DataReadMisses => Builder::new(read_misses(CacheId::L1D)),
        Code::L1CodeReadMisses => Builder::new(read_misses(CacheId::L1I)),
        Code::Raw(config) => Builder::new(Raw::new(config)),
    };
    builder.observe_self().any_cpu().exclude_kernel(true).exclude_hv(true);
    builder
}
