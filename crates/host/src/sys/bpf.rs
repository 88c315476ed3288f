//! Loads programs that the kernel runs itself (eBPF), attaches them to tracepoints, and reads their results from maps and a ring in memory.
//!
//! [Linux, include/uapi/linux/bpf.h]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::memory::page_bytes;

/// Commands of bpf(2).
const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;

/// `BPF_PROG_TYPE_TRACING` and `BPF_TRACE_RAW_TP`: the arguments of a tracepoint have the types that the kernel's BTF gives them.
const TRACING: u32 = 26;
const TRACE_RAW_TP: u32 = 23;

/// License of the programs. Helpers that read the clock need a license that is compatible with the GPL; isochrome's own license offers MIT.
const LICENSE: &CStr = c"Dual MIT/GPL";

/// Size, in bytes, of the log in which the kernel reports why it refuses a program.
const LOG_BYTES: usize = 1 << 16;

/// Type of a map. [Linux, include/uapi/linux/bpf.h, enum bpf_map_type]
#[derive(Clone, Copy, Debug)]
pub enum MapKind {
    /// Hash table: values by a key of 4 bytes.
    Hash = 1,
    /// Array: values by their index.
    Array = 2,
    /// Performance counters, by CPU.
    PerfEvents = 4,
    /// Ring buffer: records in memory that is shared with the kernel.
    Ring = 27,
}

#[repr(C)]
#[derive(Default)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ElementAttributes {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Attributes for loading a program, up to `attach_btf_id`; the attributes after it are zero.
#[repr(C)]
#[derive(Default)]
struct ProgramAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach: u32,
    btf: u32,
    func_info_bytes: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_bytes: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
}

#[repr(C)]
#[derive(Default)]
struct TracepointAttributes {
    name: u64,
    program: u32,
    padding: u32,
}

/// Makes the system call bpf(2) with `attributes`, and returns its result.
///
/// # Safety
///
/// Every address in `attributes` must be that of as many bytes as `command` reads or writes there.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a live structure; the caller guarantees that the addresses in it are valid.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

fn owned(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the kernel just returned this descriptor, so it is open and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// A map of the kernel, with keys and values of 4 bytes.
#[derive(Debug)]
pub struct Map(OwnedFd);

impl Map {
    /// Creates a map of `entries` entries. For a ring these are bytes: a power of two, at least a page.
    pub fn new(kind: MapKind, entries: u32) -> io::Result<Map> {
        let bytes = if matches!(kind, MapKind::Ring) { 0 } else { 4 };
        let attributes = MapAttributes { kind: kind as u32, key_bytes: bytes, value_bytes: bytes, entries, flags: 0 };
        // SAFETY: the attributes hold no addresses.
        unsafe { bpf(MAP_CREATE, &attributes) }.map(|descriptor| Map(owned(descriptor)))
    }

    /// Sets the value of `key`. In a map of counters the value is a counter's file descriptor.
    pub fn set(&self, key: u32, value: u32) -> io::Result<()> {
        let attributes = ElementAttributes {
            map: self.0.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key) as u64,
            value: std::ptr::from_ref(&value) as u64,
            ..ElementAttributes::default()
        };
        // SAFETY: keys and values of these maps have 4 bytes, as `key` and `value`, which live until the call returns.
        unsafe { bpf(MAP_UPDATE_ELEM, &attributes) }.map(drop)
    }

    /// Returns the value of `key`. Fails with ENOENT if the map does not have it.
    pub fn get(&self, key: u32) -> io::Result<u32> {
        let mut value = 0;
        let attributes = ElementAttributes {
            map: self.0.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key) as u64,
            value: std::ptr::from_mut::<u32>(&mut value) as u64,
            ..ElementAttributes::default()
        };
        // SAFETY: keys and values of these maps have 4 bytes, as `key` and `value`, which live until the call returns.
        unsafe { bpf(MAP_LOOKUP_ELEM, &attributes) }.map(|_| value)
    }

    /// Removes `key` if the map has it.
    pub fn remove(&self, key: u32) -> io::Result<()> {
        let attributes = ElementAttributes {
            map: self.0.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key) as u64,
            ..ElementAttributes::default()
        };
        // SAFETY: keys of these maps have 4 bytes, as `key`, which lives until the call returns.
        match unsafe { bpf(MAP_DELETE_ELEM, &attributes) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the file descriptor by which instructions name the map.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// A program that the kernel's verifier has accepted.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads `instructions` as a program for the tracepoint whose type has the number `tracepoint` in the kernel's BTF. An error contains the
    /// last message of the kernel's verifier.
    pub fn load(instructions: &[u64], tracepoint: u32) -> io::Result<Program> {
        let mut attributes = ProgramAttributes {
            kind: TRACING,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: LICENSE.as_ptr() as u64,
            name: *b"isochrome\0\0\0\0\0\0\0",
            expected_attach: TRACE_RAW_TP,
            attach_btf_id: tracepoint,
            ..ProgramAttributes::default()
        };
        // SAFETY: the instructions are a live slice of `count` words, the license ends with a zero, and no log is requested.
        let refused = match unsafe { bpf(PROG_LOAD, &attributes) } {
            Ok(descriptor) => return Ok(Program(owned(descriptor))),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Err(error),
            Err(error) => error,
        };
        let mut log = vec![0u8; LOG_BYTES];
        (attributes.log_level, attributes.log_bytes, attributes.log) = (1, LOG_BYTES as u32, log.as_mut_ptr() as u64);
        // SAFETY: as above, and the log is a live, exclusively borrowed slice of `log_bytes` bytes.
        match unsafe { bpf(PROG_LOAD, &attributes) } {
            Ok(descriptor) => Ok(Program(owned(descriptor))),
            Err(_) => {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]);
                let last = log.lines().rev().find(|line| !line.starts_with("processed ")).unwrap_or_default();
                Err(io::Error::new(refused.kind(), format!("{refused} ({last})")))
            }
        }
    }

    /// Makes the kernel run the program at every hit of the tracepoint, until the returned descriptor is dropped.
    pub fn attach(&self) -> io::Result<OwnedFd> {
        let attributes = TracepointAttributes { program: self.0.as_raw_fd() as u32, ..TracepointAttributes::default() };
        // SAFETY: the name's address is null, as it must be for a program whose tracepoint is given by its type.
        unsafe { bpf(RAW_TRACEPOINT_OPEN, &attributes) }.map(owned)
    }
}

/// The mapped memory of a ring: the positions up to which the reader has read and the kernel has written, and the records. The records are
/// mapped twice in a row, so that each of them is contiguous.
#[derive(Debug)]
pub struct RingMemory {
    consumer: *mut libc::c_void,
    producer: *mut libc::c_void,
    bytes: usize,
}

// SAFETY: the mappings belong to the process, and the fields are their addresses; only `&mut self` reads or writes there.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Maps the memory of `map`, which is a ring of `bytes` bytes.
    pub fn map(map: &Map, bytes: usize) -> io::Result<RingMemory> {
        let page = page_bytes();
        let map_at = |length: usize, protection: libc::c_int, offset: usize| {
            // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
            let address = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    protection,
                    libc::MAP_SHARED,
                    map.0.as_raw_fd(),
                    offset as libc::off_t,
                )
            };
            if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address) }
        };
        let consumer = map_at(page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        match map_at(page + 2 * bytes, libc::PROT_READ, page) {
            Ok(producer) => Ok(RingMemory { consumer, producer, bytes }),
            Err(error) => {
                // SAFETY: the mapping was made above, and nothing refers to it.
                unsafe { libc::munmap(consumer, page) };
                Err(error)
            }
        }
    }

    /// Passes every record since the last call to `each`, oldest first. Makes no system call.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        const BUSY: u32 = 1 << 31;
        const DISCARDED: u32 = 1 << 30;
        const HEADER: usize = 8;
        // SAFETY: the first word of each mapping is a position, aligned to a page, that the kernel reads and writes atomically.
        let (consumer, producer) =
            unsafe { (AtomicU64::from_ptr(self.consumer.cast()), AtomicU64::from_ptr(self.producer.cast())) };
        let mut at = consumer.load(Ordering::Relaxed);
        while at < producer.load(Ordering::Acquire) {
            let offset = page_bytes() + (at as usize & (self.bytes - 1));
            // SAFETY: positions are multiples of 8, so the offset is that of an aligned word within the mapping, which the kernel wrote
            // before it moved the producer's position, and changes atomically.
            let length = unsafe { AtomicU32::from_ptr(self.producer.byte_add(offset).cast()) }.load(Ordering::Acquire);
            if length & BUSY != 0 {
                break;
            }
            let bytes = (length & !DISCARDED) as usize;
            if length & DISCARDED == 0 && bytes <= self.bytes {
                // SAFETY: the record lies within the mapping, as its memory is mapped twice and no record is longer than the ring. The kernel
                // does not write to it before the consumer's position has passed it, which happens after `each` has returned.
                each(unsafe { std::slice::from_raw_parts(self.producer.byte_add(offset + HEADER).cast(), bytes) });
            }
            at += (bytes + HEADER).next_multiple_of(8) as u64;
            consumer.store(at, Ordering::Release);
        }
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: both mappings were made by `map` with these lengths, and no reference to them is left.
        unsafe {
            libc::munmap(self.consumer, page_bytes());
            libc::munmap(self.producer, page_bytes() + 2 * self.bytes);
        }
    }
}
