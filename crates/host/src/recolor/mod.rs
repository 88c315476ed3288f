//! Other frames for the pages of a process that runs: contents, addresses and mappings stay, colors change.
//!
//! The process is held still and parked (`hold`); a helper thread made inside it then works off a table on its own
//! ([`agent`]). Frames of the colors asked for come from anonymous memory mapped in the process for that time: as much of it is
//! touched as is needed to find enough of them, and all of it goes back at the end. [`Way`] says how a page gets its frame.
//!
//! Where frame numbers are hidden, colors are told by eviction tests inside the process (`sight`), and only pages that were given a
//! frame are known to have a color.
//!
//! Shared memory, hugetlbfs and memory of devices are not moved, nor what the kernel maps; they are listed.

mod filtered;
mod hold;
pub mod lock;
pub mod process;
mod sight;
pub mod watch;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use isochrome_model::units::{Bytes, Color, FrameNumber};
use serde::Serialize;

use crate::error::HostError;
use crate::pagemap::{self, PageEntry};
use crate::palette::reference::Reference;
use crate::sys::agent::{self, DONE, Entry, NEIGHBOR, RUN, Table, Way};
use crate::sys::memory::{Arena, page_bytes};
use crate::sys::userfault;

pub use hold::repair;
use hold::{Helpers, Hold, Journal, Turn, Whom, is_there};
use process::{PageMap, Pid, Protection, Region};
use sight::Sight;
pub use sight::{Place as PlacedPage, Placed};

/// Why a process was not recolored.
#[derive(Debug, thiserror::Error)]
pub enum RecolorError {
    /// There is no such process.
    #[error("there is no process {pid}\n  hint: `ps -e` lists those there are")]
    NoSuchProcess {
        /// Its number.
        pid: i32,
    },
    /// It ended meanwhile.
    #[error("process {pid} has ended\n  hint: nothing is left to be done")]
    Ended {
        /// Its number.
        pid: i32,
    },
    /// A thread of the kernel has no memory of its own.
    #[error("process {pid} is a thread of the kernel, which has no memory of its own\n  hint: name a program")]
    KernelThread {
        /// Its number.
        pid: i32,
    },
    /// The number is that of a thread.
    #[error("{thread} is a thread of process {pid}\n  hint: name the process: {pid}")]
    NotAProcess {
        /// The number given.
        thread: i32,
        /// The process it belongs to.
        pid: u64,
    },
    /// isochrome cannot stop itself.
    #[error("a process cannot recolor itself\n  hint: run `isochrome recolor` as a program of its own")]
    Itself,
    /// It belongs to another user, or tracing is restricted.
    #[error(
        "process {pid} may not be traced: it belongs to another user, or tracing is restricted\n  hint: run as root, or as its owner with: sysctl kernel.yama.ptrace_scope=0"
    )]
    Denied {
        /// Its number.
        pid: i32,
    },
    /// It is not what it was when it was looked at.
    #[error(
        "process {pid} has begun another program since it was looked at, or mapped memory where there was none\n  hint: try again"
    )]
    Changed {
        /// Its number.
        pid: i32,
    },
    /// Another tracer has it.
    #[error("process {pid} is traced by process {by} already\n  hint: end that debugger or other isochrome first")]
    Traced {
        /// Its number.
        pid: i32,
        /// The tracer.
        by: u64,
    },
    /// A program for another word size.
    #[error("process {pid} is a 32-bit program\n  hint: only programs of this machine's word size can be recolored")]
    WordSize {
        /// Its number.
        pid: i32,
    },
    /// Its system calls are filtered, nobody can tell how.
    #[error(
        "process {pid} filters its system calls (seccomp), and the filter cannot be read: {source}\n  hint: as root, outside of containers, or run the program without its sandbox"
    )]
    Seccomp {
        /// Its number.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its system calls are filtered, and one that is needed is not allowed.
    #[error(
        "thread {thread} of process {pid} is not allowed the system call `{call}` by its filter (seccomp), as a recoloring needs it\n  hint: allow it, or run the program without its sandbox"
    )]
    CallForbidden {
        /// Its number.
        pid: i32,
        /// The thread.
        thread: i32,
        /// The call.
        call: &'static str,
    },
    /// Devices may write to its memory.
    #[error(
        "process {pid} has pinned {bytes} of memory, which devices may write to\n  hint: unpin it, or --force if it is idle"
    )]
    Pinned {
        /// Its number.
        pid: i32,
        /// How much.
        bytes: Bytes,
    },
    /// The kernel may write to its memory meanwhile.
    #[error(
        "process {pid} uses {ring}, through which the kernel may write to its memory at any time\n  hint: --force if no request is in flight"
    )]
    Ring {
        /// Its number.
        pid: i32,
        /// What it uses.
        ring: &'static str,
    },
    /// It has a device's memory mapped.
    #[error(
        "process {pid} maps memory of a device ({name}), which may write to the process's own memory as well\n  hint: --force if it does not"
    )]
    Device {
        /// Its number.
        pid: i32,
        /// The mapping.
        name: String,
    },
    /// Another process runs in the same memory.
    #[error(
        "processes {pid} and {other} share all their memory, as after vfork\n  hint: try again later; programs that stay so cannot be recolored"
    )]
    SharesMemory {
        /// Its number.
        pid: i32,
        /// The other's.
        other: i32,
    },
    /// A thread did not stop.
    #[error(
        "thread {thread} of process {pid} does not stop: it waits for a device or a child\n  hint: try again later"
    )]
    NotStopping {
        /// The process.
        pid: i32,
        /// The thread.
        thread: i32,
    },
    /// There is no place for a few instructions.
    #[error("process {pid} has no unused bytes of executable memory\n  hint: please report the program")]
    NoCave {
        /// Its number.
        pid: i32,
    },
    /// ptrace failed.
    #[error(
        "process {pid}: cannot {action} thread {thread}: {source}\n  hint: `isochrome recolor --repair {pid}` puts back what was changed"
    )]
    Trace {
        /// The process.
        pid: i32,
        /// The thread.
        thread: i32,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call on the process's behalf failed.
    #[error(
        "process {pid} cannot {action}: {source}\n  hint: its limits (`prlimit --pid {pid}`) or vm.max_map_count may be too low; nothing was moved"
    )]
    Refused {
        /// The process.
        pid: i32,
        /// What for.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its memory cannot be read or written.
    #[error(
        "the memory of process {pid}: {source}\n  hint: `isochrome recolor --repair {pid}` puts back what was changed"
    )]
    Memory {
        /// The process.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file of the kernel.
    #[error("{path}: {source}\n  hint: is /proc mounted, and may you read it?")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file of the kernel in an unknown form.
    #[error("{path}: not in the form expected\n  hint: please report it with `uname -r`")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The journal cannot be kept.
    #[error("{path}: {source}\n  hint: the journal keeps what must be put back; its folder must be writable")]
    Journal {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A recoloring was killed, and has not been repaired.
    #[error("an earlier recoloring of process {pid} was cut short\n  hint: isochrome recolor --repair {pid}")]
    Unrepaired {
        /// Its number.
        pid: i32,
    },
    /// Frame numbers are hidden.
    #[error(
        "/proc/PID/pagemap: frame numbers read as zero, CAP_SYS_ADMIN is missing\n  hint: have colors told by time: `isochrome palette --save`, then without --palette; or run as root, or let root give the tool that right once: setcap cap_sys_admin+ep $(command -v isochrome)"
    )]
    FramesHidden,
    /// Colors cannot be told inside of it.
    #[error("process {pid}: the colors of its pages cannot be told by time: {source}")]
    Blind {
        /// Its number.
        pid: i32,
        /// Why.
        source: Box<HostError>,
    },
    /// No colors.
    #[error("no colors were given\n  hint: --colors 0-3")]
    NoColors,
    /// Too few frames of the colors.
    #[error(
        "{wanted} pages need color {color}, but {limit} of memory hold {found}\n  hint: raise --memory, or allow more colors"
    )]
    TooFewFrames {
        /// The scarcest color.
        color: u16,
        /// Pages that need it.
        wanted: usize,
        /// Frames found.
        found: usize,
        /// The limit of memory.
        limit: Bytes,
    },
}

impl RecolorError {
    /// Whether it may be otherwise in a moment.
    pub fn may_pass(&self) -> bool {
        match self {
            RecolorError::NotStopping { .. } | RecolorError::SharesMemory { .. } | RecolorError::Changed { .. } => true,
            RecolorError::Blind { source, .. } => source.may_pass(),
            _ => false,
        }
    }
}

/// What tells the color of a page.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// The number of its frame: `None` where that has no known color.
    Frames(&'a dyn Fn(FrameNumber) -> Option<Color>),
    /// What evicts it. The pages of the process that have a color already are known.
    Evictions(&'a Reference, &'a Placed),
}

/// Which frames a process is to have.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// What tells their colors.
    pub source: Source<'a>,
    /// The colors allowed.
    pub colors: &'a [Color],
    /// How many colors there are.
    pub color_count: u32,
}

impl<'a> Wanted<'a> {
    /// Which of the allowed colors this is, if any.
    fn allowed(&self, color: Option<Color>) -> Option<usize> {
        self.colors.iter().position(|allowed| Some(*allowed) == color)
    }

    /// Which of the allowed colors a page has, if it is known to have one.
    ///
    /// Fails where frame numbers tell and are hidden.
    fn allowed_page(&self, page: u64, entry: PageEntry) -> Result<Option<usize>, RecolorError> {
        Ok(self.allowed(match self.source {
            Source::Frames(color_of) => color_of(entry.frame().ok_or(RecolorError::FramesHidden)?),
            Source::Evictions(_, placed) => {
                placed.get(&page).filter(|placed| placed.frame == entry.frame()).map(|placed| placed.color)
            }
        }))
    }

    fn reference(&self) -> Option<&'a Reference> {
        match self.source {
            Source::Frames(_) => None,
            Source::Evictions(reference, _) => Some(reference),
        }
    }
}

/// How far a recoloring may go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory touched to find frames of the colors; less where the process's group has less left.
    pub memory: Bytes,
    /// Work on processes that use asynchronous I/O or have memory pinned.
    pub force: bool,
}

/// The pages of one mapping, by what became of them or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegionReport {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The file, or the kernel's name in brackets; empty for anonymous memory.
    pub name: String,
    /// Resident pages.
    pub resident: usize,
    /// Pages that had an allowed color.
    pub right: usize,
    /// Pages that were given one, or would be.
    pub moved: usize,
    /// Pages that have none.
    pub left: usize,
    /// Why they were left.
    pub why: Option<String>,
}

/// What a recoloring did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The process.
    pub pid: i32,
    /// Mappings with resident pages, in the order of their addresses.
    pub regions: Vec<RegionReport>,
    /// For how long a thread of the process stood still; nothing where it was only looked at.
    pub pause_ns: Option<u64>,
    /// Its threads.
    pub threads: usize,
    /// Memory touched to find frames.
    pub touched: Bytes,
    /// Where colors are told by evictions, the pages that were given one.
    #[serde(skip)]
    pub placed: Placed,
}

impl Report {
    fn sum(&self, count: impl Fn(&RegionReport) -> usize) -> usize {
        self.regions.iter().map(count).sum()
    }

    /// Resident pages.
    pub fn resident(&self) -> usize {
        self.sum(|region| region.resident)
    }

    /// Pages that had an allowed color.
    pub fn right(&self) -> usize {
        self.sum(|region| region.right)
    }

    /// Pages that were given one.
    pub fn moved(&self) -> usize {
        self.sum(|region| region.moved)
    }

    /// Pages that have none.
    pub fn left(&self) -> usize {
        self.sum(|region| region.left)
    }
}

/// A page that has to move.
struct Stray {
    region: usize,
    page: u64,
    entry: PageEntry,
}

/// What a look at every resident page shows.
struct Look {
    /// What would be done.
    reports: Vec<RegionReport>,
    /// The pages that have to move, ascending.
    strays: Vec<Stray>,
    /// The pages that have an allowed color, ascending.
    in_place: Vec<u64>,
    /// Of each mapping that has strays, its pages of each of the allowed colors.
    held: BTreeMap<usize, Vec<usize>>,
}

/// Looks at every resident page. `keep`: pages that must stay.
fn look(
    regions: &[Region],
    map: &PageMap,
    wanted: &Wanted,
    zero: Option<FrameNumber>,
    keep: &dyn Fn(u64) -> bool,
) -> Result<Look, RecolorError> {
    let mut look = Look { reports: Vec::new(), strays: Vec::new(), in_place: Vec::new(), held: BTreeMap::new() };
    // The vsyscall page lies outside of user space and has no entry.
    for (number, region) in regions.iter().enumerate().filter(|(_, region)| region.name != "[vsyscall]") {
        let mut report = RegionReport {
            start: region.start,
            end: region.end,
            name: region.name.clone(),
            resident: 0,
            right: 0,
            moved: 0,
            left: 0,
            why: None,
        };
        let mut held = vec![0; wanted.colors.len()];
        for (page, entry) in map.resident(region.start, region.end)? {
            if zero.is_some() && entry.frame() == zero {
                continue;
            }
            report.resident += 1;
            if let Some(color) = wanted.allowed_page(page, entry)? {
                report.right += 1;
                look.in_place.push(page);
                held[color] += 1;
            } else if let Some(why) = region.fixed.or(keep(page).then_some("holds what isochrome works with")) {
                report.left += 1;
                report.why = Some(why.to_owned());
            } else {
                report.moved += 1;
                look.strays.push(Stray { region: number, page, entry });
            }
        }
        if report.moved > 0 {
            look.held.insert(number, held);
        }
        if report.resident > 0 {
            look.reports.push(report);
        }
    }
    Ok(look)
}

/// What [`recolor`] would do to `pid`, which goes on undisturbed.
pub fn inspect(pid: Pid, wanted: &Wanted) -> Result<Report, RecolorError> {
    inspect_pages(pid, &pid.regions()?, wanted).map(|(report, _)| report)
}

/// The same of the mappings given, and the pages it is about.
fn inspect_pages(pid: Pid, regions: &[Region], wanted: &Wanted) -> Result<(Report, Look), RecolorError> {
    let look = look(regions, &pid.page_map()?, wanted, zero_frame(), &|_| false)?;
    let regions = look.reports.clone();
    let threads = pid.threads()?.len();
    Ok((Report { pid: pid.0, regions, pause_ns: None, threads, touched: Bytes(0), placed: Placed::new() }, look))
}

/// The frame that all pages share that were read and never written.
fn zero_frame() -> Option<FrameNumber> {
    static ZERO: OnceLock<Option<FrameNumber>> = OnceLock::new();
    *ZERO.get_or_init(|| {
        let arena = Arena::map(1).ok()?;
        arena.touch(&[0], 64);
        pagemap::frames(&arena, 0..1)[0]
    })
}

/// More memory than this is touched, and given back, while the process runs: it takes longer than to stop a thread twice more.
const AHEAD: Bytes = Bytes(4 << 20);

/// Most helpers at a time.
const HELPERS: u64 = 4;

/// Bytes of the table of a helper that touches memory or gives it back, and of its stack.
const SMALL_TABLE: u64 = 16 << 10;

/// Bytes of the head of a table, and of a helper's stack.
const HEADER: u64 = size_of::<Table>() as u64;
const STACK: u64 = 64;

/// Most entries of such a table.
const PORTIONS: u64 = 448;

/// Memory that it touches at a time: meanwhile the program can neither map memory nor unmap it, nor can the helper be stopped.
const PORTION: u64 = 1 << 20;

/// `MADV_DONTNEED_LOCKED`. [Linux, include/uapi/asm-generic/mman-common.h]
const DROP_LOCKED: u64 = 24;

/// How the file of the pages of known color is opened inside the process, and mapped.
const REFERENCE_OPENED: u64 = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
const REFERENCE_MAPPED: u64 = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u64;

/// How a userfaultfd is opened inside the process.
const USERFAULT_FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;

/// Gives the resident pages of `pid` frames of the colors wanted. From then on the kernel makes no huge pages for it.
///
/// Where it fails the process is as it was, unless the error says otherwise.
pub fn recolor(pid: Pid, wanted: &Wanted, limits: &Limits) -> Result<Report, RecolorError> {
    if wanted.colors.is_empty() {
        return Err(RecolorError::NoColors);
    }
    let regions = pid.check(limits.force)?;
    // Hidden frame numbers are found out before the process is stopped.
    let (before, look) = inspect_pages(pid, &regions, wanted)?;
    if before.moved() == 0 {
        return Ok(before);
    }
    let _turn = Turn::wait()?;
    if Journal::left_for(pid)?.is_some() {
        return Err(RecolorError::Unrepaired { pid: pid.0 });
    }
    let mut room = Room::new(pid, &regions, look.strays.len(), limits, wanted.reference())?;
    let mut pool = Pool { slots: Vec::new(), end: room.place.pool };
    let mut pause = Duration::ZERO;
    loop {
        let ahead = pool.lacking(&look, wanted).bytes(wanted).min(room.place.end - pool.end);
        // To tell colors by time takes longer than any stop.
        if ahead <= if wanted.reference().is_some() { 0 } else { AHEAD.0 } {
            break;
        }
        let start = pool.end;
        let mut hold = Hold::new(pid, Whom::One, if room.left { room.area() } else { (0, 0) })?;
        if !room.left {
            room.map(&mut hold)?;
        }
        room.touch_ahead(&mut hold, start, ahead)?;
        let (helpers, stop) = hold.leave()?;
        pause += stop;
        // From here on dropping the room unmaps it.
        room.left = true;
        helpers.wait()?;
        pool.end += ahead;
        if wanted.reference().is_some() {
            let mut hold = Hold::new(pid, Whom::One, room.area())?;
            room.make_sight(&mut hold)?;
            let (helpers, stop) = hold.leave()?;
            pause += stop;
            pool.look(wanted, &room, helpers, start)?;
        } else {
            pool.find(pid, wanted, start)?;
        }
    }
    let mut hold = Hold::new(pid, Whom::All, if room.left { room.area() } else { (0, 0) })?;
    let threads = hold.threads();
    let outcome = Work::new(&mut hold, wanted, limits, regions, &room).and_then(|mut work| {
        if !room.left && !work.look.strays.is_empty() {
            room.map(work.hold)?;
        }
        work.carry_out(&mut pool)?;
        Ok((work.reports, work.placed))
    });
    let touched = Bytes(pool.end - room.place.pool);
    if outcome.is_ok() && touched.0 > AHEAD.0 {
        room.give_back(&mut hold, pool.end)?;
        let (helpers, stop) = hold.leave()?;
        pause += stop;
        room.left = true;
        helpers.wait()?;
        pause += room.unmap()?;
    } else {
        room.left = false;
        pause += hold.resume()?;
    }
    let (regions, placed) = outcome?;
    Ok(Report { pid: pid.0, regions, pause_ns: Some(pause.as_nanos() as u64), threads, touched, placed })
}

/// The memory mapped for the work inside the process.
struct Room<'a> {
    pid: Pid,
    place: Place,
    /// Pages of known color that are part of it, if they are needed.
    reference: Option<&'a Reference>,
    /// Whether it is there while the process goes on.
    left: bool,
}

/// Its parts, one behind the other: code, pages of known color, table and stack, a page to save another one in, scratch pages, pool.
#[derive(Clone, Copy)]
struct Place {
    code: u64,
    reference: u64,
    table: u64,
    stack: u64,
    saved: u64,
    scratch: u64,
    pool: u64,
    end: u64,
}

impl<'a> Room<'a> {
    /// Finds a place for it: in a gap between mappings that is large enough and far from what grows.
    fn new(
        pid: Pid,
        regions: &[Region],
        strays: usize,
        limits: &Limits,
        reference: Option<&'a Reference>,
    ) -> Result<Room<'a>, RecolorError> {
        let page = page_bytes() as u64;
        // More pages may have come by the time the process stands still.
        let entries = strays + strays / 4 + 1024;
        let table = HEADER + (entries * size_of::<Entry>()) as u64;
        // A stack of a few words at the end of the table's last page.
        let small = SMALL_TABLE + if reference.is_some() { sight::BYTES } else { 0 };
        let table_bytes = (table + STACK).max(HELPERS * SMALL_TABLE).max(small).next_multiple_of(page);
        let room = pid.memory_room().map_or(u64::MAX, |room| room.0 / 10 * 9);
        let pool_bytes = limits.memory.0.min(room) / page * page;
        let reference_bytes = reference.map_or(0, |reference| reference.bytes.0);
        let bytes = page + reference_bytes + table_bytes + page + RUN as u64 * page + pool_bytes;
        let code = gap(regions, bytes).ok_or(RecolorError::Refused {
            pid: pid.0,
            action: "find a gap between its mappings",
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        })?;
        let table = code + page + reference_bytes;
        let saved = table + table_bytes;
        let scratch = saved + page;
        let pool = scratch + RUN as u64 * page;
        let place =
            Place { code, reference: code + page, table, stack: saved, saved, scratch, pool, end: code + bytes };
        Ok(Room { pid, place, reference, left: false })
    }

    /// First address, bytes.
    fn area(&self) -> (u64, u64) {
        (self.place.code, self.place.end - self.place.code)
    }

    /// Most pages that the table has room for.
    fn entries(&self) -> usize {
        (self.place.stack - self.place.table - STACK - HEADER) as usize / size_of::<Entry>()
    }

    /// Maps it: nothing in it is touched yet, nor locked.
    fn map(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let page = page_bytes() as u64;
        let Place { code, table, end, .. } = self.place;
        if !gap_at(&self.pid.mappings()?, self.area()) {
            return Err(RecolorError::Changed { pid: self.pid.0 });
        }
        hold.journal.area = self.area();
        hold.journal.write()?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // Without access at first: where the program locks all that it maps, touching is not for the kernel to do.
        let executable = libc::PROT_READ | libc::PROT_EXEC;
        for (start, bytes, protection) in [(table, end - table, libc::PROT_NONE), (code, page, executable)] {
            let arguments = [start, bytes, protection as u64, flags as u64, u64::MAX, 0];
            let mapped = hold.call(libc::SYS_mmap, arguments)?;
            // A kernel that does not know the flag (before Linux 4.17) takes the address as a wish.
            let elsewhere = mapped.as_ref().is_ok_and(|address| *address != start);
            if let (true, Ok(address)) = (elsewhere, &mapped) {
                hold.must("unmap memory", libc::SYS_munmap, [*address, bytes, 0, 0, 0, 0])?;
            }
            if elsewhere || mapped.is_err() {
                // What is there is the program's own.
                hold.journal.area = if start == code { (table, end - table) } else { (0, 0) };
                let source = mapped.err().unwrap_or_else(|| io::ErrorKind::AlreadyExists.into());
                return Err(RecolorError::Refused { pid: self.pid.0, action: "map memory", source });
            }
        }
        let rest = [table, end - table, 0, 0, 0, 0];
        hold.must("unlock memory", libc::SYS_munlock, rest)?;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        hold.must("make memory writable", libc::SYS_mprotect, [table, end - table, writable, 0, 0, 0])?;
        // Kernels without huge pages refuse, and need no such advice.
        hold.call(libc::SYS_madvise, [table, end - table, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0])?.ok();
        if let Some(reference) = self.reference {
            self.map_reference(hold, reference)?;
        }
        // No child of the program is to hold the frames.
        hold.must(
            "keep memory from children",
            libc::SYS_madvise,
            [code, end - code, libc::MADV_DONTFORK as u64, 0, 0, 0],
        )?;
        hold.write(agent::code(), code)
    }

    /// Maps the pages of known color, which the program may only read.
    fn map_reference(&self, hold: &mut Hold, reference: &Reference) -> Result<(), RecolorError> {
        let path = CString::new(reference.path.as_os_str().as_bytes()).unwrap_or_default();
        hold.check_reference_allowed()?;
        hold.write(path.as_bytes_with_nul(), self.place.table)?;
        let arguments = [libc::AT_FDCWD as u64, self.place.table, REFERENCE_OPENED, 0, 0, 0];
        let file = hold.call(libc::SYS_openat, arguments)?.map_err(|source| RecolorError::Blind {
            pid: self.pid.0,
            source: Box::new(HostError::NotOpenedThere { path: reference.path.clone(), source }),
        })?;
        // As above: a program that locks all that it maps would fill the holes of the file.
        let (start, bytes) = (self.place.reference, reference.bytes.0);
        let arguments = [start, bytes, libc::PROT_NONE as u64, REFERENCE_MAPPED, file, 0];
        let mapped = hold.must("map the pages of known color", libc::SYS_mmap, arguments);
        hold.must("close a file", libc::SYS_close, [file, 0, 0, 0, 0, 0])?;
        let mapped = mapped?;
        if mapped == start {
            hold.must("unlock memory", libc::SYS_munlock, [start, bytes, 0, 0, 0, 0])?;
            let arguments = [start, bytes, libc::PROT_READ as u64, 0, 0, 0];
            return hold.must("make memory readable", libc::SYS_mprotect, arguments).map(drop);
        }
        hold.must("unmap memory", libc::SYS_munmap, [mapped, bytes, 0, 0, 0, 0])?;
        let source = io::ErrorKind::AlreadyExists.into();
        Err(RecolorError::Refused { pid: self.pid.0, action: "map the pages of known color", source })
    }

    /// Where the helper that looks finds its requests: behind a table of one entry and the stack.
    fn sight(&self) -> u64 {
        self.place.table + SMALL_TABLE
    }

    /// Makes the helper that looks.
    fn make_sight(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let table = self.place.table;
        let line_bytes = self.reference.map_or(0, |reference| reference.geometry.line_bytes.0);
        let header = Table { entries: table + HEADER, count: 1, ..self.header() };
        let entry = Entry { page: self.sight(), slot: 0, way: Way::Look as u32, run: 1, status: 0 };
        hold.write(agent::bytes_of(&header), table)?;
        hold.write(agent::bytes_of(&entry), table + HEADER)?;
        hold.write(agent::bytes_of(&sight::before(line_bytes)), self.sight())?;
        hold.make_helper(self.place.code, table, table + SMALL_TABLE, true)
    }

    /// Makes helpers that touch `bytes` of the pool from `start` on.
    fn touch_ahead(&self, hold: &mut Hold, start: u64, bytes: u64) -> Result<(), RecolorError> {
        self.advise(hold, start, bytes, libc::MADV_POPULATE_WRITE)
    }

    /// Makes helpers that give back what was touched, up to `end`.
    fn give_back(&self, hold: &mut Hold, end: u64) -> Result<(), RecolorError> {
        let scratch = self.place.scratch;
        self.advise(hold, scratch, end - scratch, libc::MADV_DONTNEED)
    }

    /// Makes helpers that give the kernel advice about `bytes` from `start` on.
    fn advise(&self, hold: &mut Hold, start: u64, bytes: u64, advice: libc::c_int) -> Result<(), RecolorError> {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        let helpers = (bytes / AHEAD.0).clamp(1, HELPERS.min(cpus));
        let share = (bytes / helpers).next_multiple_of(page_bytes() as u64);
        for helper in 0..helpers {
            let at = start + helper * share;
            self.adviser(hold, helper, at, share.min(start + bytes - at), advice)?;
        }
        Ok(())
    }

    /// Makes the helper of this number, which gives the kernel advice.
    fn adviser(
        &self,
        hold: &mut Hold,
        number: u64,
        start: u64,
        bytes: u64,
        advice: libc::c_int,
    ) -> Result<(), RecolorError> {
        let portion = bytes.div_ceil(PORTIONS).max(PORTION).next_multiple_of(page_bytes() as u64);
        let table = self.place.table + number * SMALL_TABLE;
        let count = bytes.div_ceil(portion);
        let header = Table { entries: table + HEADER, count, ..self.header() };
        let mut text = agent::bytes_of(&header).to_vec();
        for at in (start..start + bytes).step_by(portion as usize) {
            let slot = portion.min(start + bytes - at);
            let entry = Entry { page: at, slot, way: Way::Advise as u32, run: advice as u32, status: 0 };
            text.extend_from_slice(agent::bytes_of(&entry));
        }
        hold.write(&text, table)?;
        hold.make_helper(self.place.code, table, table + SMALL_TABLE, true)
    }

    /// A table without entries and without a userfaultfd.
    fn header(&self) -> Table {
        Table {
            userfault: -1,
            entries: self.place.table + HEADER,
            count: 0,
            scratch: self.place.scratch,
            page_bytes: page_bytes() as u64,
            advice: libc::MADV_DONTNEED as u64,
            done: 0,
            request: [0; 6],
            saved: self.place.saved,
        }
    }

    /// Unmaps it while the process goes on; how long one of its threads stood still for it.
    fn unmap(&mut self) -> Result<Duration, RecolorError> {
        self.left = false;
        Hold::new(self.pid, Whom::One, self.area())?.resume()
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if self.left {
            // Where this fails the journal stays for a repair.
            let _ = self.unmap();
        }
    }
}

/// Memory touched to find frames.
struct Pool {
    /// Pages of allowed colors, ascending: address, and which of the colors.
    slots: Vec<(u64, usize)>,
    /// Behind the last page touched.
    end: u64,
}

/// Frames that are still to be found.
struct Lacking {
    /// In all.
    frames: usize,
    /// Of the scarcest color: how many, which of those allowed, and how many of it are needed.
    scarce: (usize, usize, usize),
}

impl Lacking {
    /// Memory to be touched for them: each page has one of all the colors.
    fn bytes(&self, wanted: &Wanted) -> u64 {
        let colors = u64::from(wanted.color_count.max(1));
        let pages = (self.frames as u64 * colors / wanted.colors.len() as u64).max(self.scarce.0 as u64 * colors);
        if pages == 0 { 0 } else { (pages + pages / 32 + colors) * page_bytes() as u64 }
    }
}

impl Pool {
    /// What is missing for the strays, and for three quarters of an even share of the colors: the last frames of the scarcest color
    /// would cost as much memory as all the others together.
    fn lacking(&self, look: &Look, wanted: &Wanted) -> Lacking {
        let count = wanted.colors.len();
        let mut found = vec![0; count];
        self.slots.iter().for_each(|(_, color)| found[*color] += 1);
        let mut held = vec![0; count];
        look.held.values().flatten().enumerate().for_each(|(at, pages)| held[at % count] += pages);
        let share = (held.iter().sum::<usize>() + look.strays.len()) / count;
        let scarce = (0..count)
            .map(|color| {
                let needed = share.saturating_sub(held[color]).min(look.strays.len());
                ((needed * 3).div_ceil(4).saturating_sub(found[color]), color, needed)
            })
            .max()
            .unwrap_or_default();
        Lacking { frames: look.strays.len().saturating_sub(self.slots.len()), scarce }
    }

    /// Looks for frames from `start` on.
    fn find(&mut self, pid: Pid, wanted: &Wanted, start: u64) -> Result<(), RecolorError> {
        for (address, entry) in pid.page_map()?.resident(start, self.end)? {
            if let Some(color) = wanted.allowed_page(address, entry)? {
                self.slots.push((address, color));
            }
        }
        Ok(())
    }

    /// The same by evictions, which `helpers` time.
    fn look(&mut self, wanted: &Wanted, room: &Room, helpers: Helpers, start: u64) -> Result<(), RecolorError> {
        let Some(reference) = room.reference else { return helpers.wait() };
        let pages: Vec<u64> = (start..self.end).step_by(page_bytes()).collect();
        let colors = Sight::new(room.pid, room.sight(), reference, room.place.reference)
            .and_then(|mut sight| sight.colors_of(&pages))
            .map_err(|error| match is_there(room.pid, room.area()) {
                Ok(true) => error,
                Ok(false) => RecolorError::Changed { pid: room.pid.0 },
                Err(ended) => ended,
            })?;
        helpers.wait()?;
        let found = pages.into_iter().zip(colors).filter_map(|(page, color)| Some((page, wanted.allowed(color)?)));
        self.slots.extend(found);
        Ok(())
    }

    /// The address of a page of the pool for every stray.
    ///
    /// A page gets the color that its mapping has least of, so that neighbors differ; but a neighbor of the slot before is taken where that
    /// color is not much ahead, as neighbors are moved together.
    fn choose(&self, look: &mut Look) -> Vec<u64> {
        let page = page_bytes() as u64;
        let count = self.slots.iter().map(|(_, color)| color + 1).max().unwrap_or(0);
        let mut free: Vec<Vec<usize>> = vec![Vec::new(); count];
        // The first found is the first used.
        self.slots.iter().enumerate().rev().for_each(|(at, (_, color))| free[*color].push(at));
        let mut taken = vec![false; self.slots.len()];
        let mut chosen = Vec::with_capacity(look.strays.len());
        let mut next = usize::MAX;
        for stray in &look.strays {
            let Some(held) = look.held.get_mut(&stray.region) else { break };
            let most = held.iter().min().map_or(0, |least| least + least / 8);
            let neighbor = next < self.slots.len()
                && !taken[next]
                && self.slots[next - 1].0 + page == self.slots[next].0
                && held[self.slots[next].1] <= most;
            let at = if neighbor {
                Some(next)
            } else {
                free.iter_mut().for_each(|slots| while slots.pop_if(|at| taken[*at]).is_some() {});
                (0..count)
                    .filter(|color| !free[*color].is_empty())
                    .min_by_key(|color| held[*color])
                    .and_then(|c| free[c].pop())
            };
            let Some(at) = at else { break };
            taken[at] = true;
            held[self.slots[at].1] += 1;
            chosen.push(self.slots[at].0);
            next = at + 1;
        }
        chosen
    }
}

/// A recoloring under way.
struct Work<'a> {
    hold: &'a mut Hold,
    wanted: &'a Wanted<'a>,
    limits: Limits,
    regions: Vec<Region>,
    reports: Vec<RegionReport>,
    look: Look,
    room: &'a Room<'a>,
    placed: Placed,
}

impl<'a> Work<'a> {
    /// Looks at the pages of the process, now that it stands still. `regions`: its mappings a while ago.
    fn new(
        hold: &'a mut Hold,
        wanted: &'a Wanted,
        limits: &Limits,
        regions: Vec<Region>,
        room: &'a Room<'a>,
    ) -> Result<Work<'a>, RecolorError> {
        let (pid, cave) = (hold.pid(), hold.cave_page());
        let regions = pid.regions_now(regions, room.area())?;
        // Only now can no other process begin to share the memory.
        pid.check_alone()?;
        let mut look = look(&regions, &pid.page_map()?, wanted, zero_frame(), &|page| page == cave)?;
        let mut reports = std::mem::take(&mut look.reports);
        // Those that the table has no room for.
        for stray in look.strays.drain(room.entries().min(look.strays.len())..) {
            leave(&mut reports, &regions[stray.region], "came while frames were sought");
        }
        Ok(Work { hold, wanted, limits: *limits, regions, reports, look, room, placed: Placed::new() })
    }

    /// Gives every stray page its frame.
    fn carry_out(&mut self, pool: &mut Pool) -> Result<(), RecolorError> {
        if self.look.strays.is_empty() {
            return Ok(());
        }
        self.fill(pool)?;
        let slots = pool.choose(&mut self.look);
        let userfault = self.open_userfault()?;
        let table = self.table(slots, userfault)?;
        self.open_protections(&table)?;
        // Else the kernel would join the pages to huge ones again, which have all colors.
        self.hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0])?.ok();
        let given = self.frames_of(pool)?;
        let mut done = self.run(&table, userfault)?;
        // The kernel calls a page of a former huge page busy when the first page of that one is shared since a fork, whatever
        // the page itself is (Linux 6.18, move_pages_pte). A page that is pinned would be busy, too, but who pins is refused.
        let busy: Vec<usize> = (0..done.len()).filter(|at| done[*at].status == -i64::from(libc::EBUSY)).collect();
        if !busy.is_empty() && !self.limits.force {
            let replaced = |at: &usize| Entry { way: Way::Replace as u32, run: 1, status: 0, ..table[*at] };
            let again = self.run(&busy.iter().map(replaced).collect::<Vec<_>>(), None)?;
            busy.iter().zip(again).for_each(|(at, entry)| done[*at] = entry);
        }
        self.account(&done);
        if self.wanted.reference().is_some() {
            let color_of: BTreeMap<u64, usize> = pool.slots.iter().copied().collect();
            let moved: BTreeMap<u64, (usize, Option<FrameNumber>)> = done
                .iter()
                .filter(|entry| entry.status == DONE)
                .map(|done| (done.page, (color_of[&done.slot], given.get(&done.slot).copied().flatten())))
                .collect();
            let map = self.hold.pid().page_map()?;
            for region in &self.regions {
                if moved.range(region.start..region.end).next().is_none() {
                    continue;
                }
                for (page, entry) in map.resident(region.start, region.end)? {
                    // What the kernel has put elsewhere is found astray by the next look.
                    if let Some((color, frame)) = moved.get(&page).filter(|(_, frame)| *frame == entry.frame()) {
                        self.placed.insert(page, PlacedPage { color: self.wanted.colors[*color], frame: *frame });
                    }
                }
            }
        }
        Ok(())
    }

    /// The frames of the pool where colors are told by evictions; none where they are hidden.
    fn frames_of(&self, pool: &Pool) -> Result<BTreeMap<u64, Option<FrameNumber>>, RecolorError> {
        if self.wanted.reference().is_none() {
            return Ok(BTreeMap::new());
        }
        let pages = self.hold.pid().page_map()?.resident(self.room.place.pool, pool.end)?;
        Ok(pages.into_iter().map(|(page, entry)| (page, entry.frame())).collect())
    }

    /// Touches memory until there are enough frames.
    fn fill(&mut self, pool: &mut Pool) -> Result<(), RecolorError> {
        loop {
            let lacking = pool.lacking(&self.look, self.wanted);
            let needed = lacking.bytes(self.wanted);
            if needed == 0 {
                return Ok(());
            }
            let bytes = needed.min(self.room.place.end - pool.end);
            if bytes == 0 {
                let (_, color, wanted) = lacking.scarce;
                return Err(RecolorError::TooFewFrames {
                    color: self.wanted.colors[color].0,
                    wanted,
                    found: pool.slots.iter().filter(|(_, found)| *found == color).count(),
                    limit: Bytes(self.room.place.end - self.room.place.pool),
                });
            }
            let start = pool.end;
            self.populate(start, bytes)?;
            pool.end += bytes;
            if self.wanted.reference().is_some() {
                self.room.make_sight(self.hold)?;
                pool.look(self.wanted, self.room, self.hold.send_off(), start)?;
            } else {
                pool.find(self.hold.pid(), self.wanted, start)?;
            }
        }
    }

    /// Has every page from `start` on touched.
    fn populate(&mut self, start: u64, bytes: u64) -> Result<(), RecolorError> {
        let advice = [start, bytes, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0];
        match self.hold.call(libc::SYS_madvise, advice)? {
            Ok(_) => Ok(()),
            // Linux before 5.14 does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (start..start + bytes).step_by(page_bytes()).try_for_each(|page| self.hold.write(&[1], page))
            }
            Err(source) => {
                Err(RecolorError::Refused { pid: self.hold.pid().0, action: "have that much memory", source })
            }
        }
    }

    /// A userfaultfd of the process that can move pages; `None` where there is none to be had.
    ///
    /// `.1`: whether the kernel itself, when it comes upon a page under way, would get an error instead of waiting.
    fn open_userfault(&mut self) -> Result<Option<(u64, bool)>, RecolorError> {
        // For a test of what kernels without UFFDIO_MOVE do.
        if std::env::var_os("ISOCHROME_WITHOUT_MOVE").is_some() {
            return Ok(None);
        }
        for (mode, for_user_mode) in [(0, false), (userfault::USER_MODE_ONLY as u64, true)] {
            let flags = USERFAULT_FLAGS | mode;
            let Ok(descriptor) = self.hold.call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0])? else { continue };
            let request = [userfault::API, 0, 0];
            let features = self.ioctl(descriptor, u64::from(userfault::UFFDIO_API), request)?.map(|answer| answer[1]);
            let scratch = (self.room.place.scratch, self.room.place.pool);
            if features.is_ok_and(|features| features & userfault::FEATURE_MOVE != 0)
                && self.register(descriptor, scratch)?
            {
                return Ok(Some((descriptor, for_user_mode)));
            }
            self.hold.must("close a userfaultfd", libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
        }
        Ok(None)
    }

    /// An ioctl whose argument is a structure of words, and what became of the structure.
    fn ioctl<const N: usize>(
        &mut self,
        descriptor: u64,
        request: u64,
        words: [u64; N],
    ) -> Result<io::Result<[u64; N]>, RecolorError> {
        let address = self.room.place.table;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.hold.write(&bytes, address)?;
        let outcome = self.hold.call(libc::SYS_ioctl, [descriptor, request, address, 0, 0, 0])?;
        let mut bytes = vec![0; N * 8];
        self.hold.read(&mut bytes, address)?;
        let mut answer = [0; N];
        for (word, bytes) in answer.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
        }
        Ok(outcome.map(|_| answer))
    }

    /// How each page gets its frame. Mappings whose pages are to be moved are registered with the userfaultfd.
    fn table(&mut self, slots: Vec<u64>, userfault: Option<(u64, bool)>) -> Result<Vec<Entry>, RecolorError> {
        let restartable = self.hold.restartable_pages();
        let mut movable: BTreeMap<usize, bool> = BTreeMap::new();
        let mut table: Vec<Entry> = Vec::with_capacity(slots.len());
        let strays = std::mem::take(&mut self.look.strays);
        for (stray, slot) in strays.iter().zip(slots) {
            let region = &self.regions[stray.region];
            let anonymous = !region.of_file && !region.locked;
            let plain = region.protection == Protection { read: true, write: true, execute: false };
            let way = match userfault {
                _ if stray.entry.of_file() => Way::Copy,
                Some((descriptor, for_user_mode)) if anonymous && plain => {
                    let range = (region.start, region.end);
                    // The kernel would end a thread whose area it cannot write to; and whatever is registered cannot be replaced.
                    let written = || restartable.iter().any(|page| (range.0..range.1).contains(page));
                    let registered = match movable.get(&stray.region) {
                        Some(registered) => *registered,
                        None if for_user_mode && written() => false,
                        None => self.register(descriptor, range)?,
                    };
                    movable.insert(stray.region, registered);
                    if registered { Way::Move } else { Way::Replace }
                }
                _ => Way::Replace,
            };
            table.push(Entry { page: stray.page, slot, way: way as u32, run: 1, status: 0 });
        }
        self.look.strays = strays;
        let regions: Vec<usize> = self.look.strays.iter().map(|stray| stray.region).collect();
        join_runs(&mut table, &regions);
        Ok(table)
    }

    /// Registers a mapping, so that whoever touches a page that is under way waits. `false`: the kernel refuses.
    fn register(&mut self, descriptor: u64, (start, end): (u64, u64)) -> Result<bool, RecolorError> {
        let request = [start, end - start, userfault::REGISTER_MODE_MISSING, 0];
        Ok(self.ioctl(descriptor, userfault::UFFDIO_REGISTER, request)?.is_ok())
    }

    /// Makes mappings writable in which the helper has to write.
    fn open_protections(&mut self, table: &[Entry]) -> Result<(), RecolorError> {
        let touched: std::collections::BTreeSet<usize> = self
            .look
            .strays
            .iter()
            .zip(table)
            .filter(|(_, entry)| entry.way != Way::Move as u32)
            .map(|(stray, _)| stray.region)
            .collect();
        let closed: Vec<Region> = touched
            .into_iter()
            .map(|number| &self.regions[number])
            .filter(|region| !(region.protection.read && region.protection.write))
            .cloned()
            .collect();
        let protections =
            closed.iter().map(|region| (region.start, region.end - region.start, region.protection.bits()));
        self.hold.journal.protections.extend(protections);
        // Once for all, as protecting what is protected does no harm.
        self.hold.journal.write()?;
        for region in closed {
            let (start, bytes) = (region.start, region.end - region.start);
            let open = Protection { read: true, write: true, ..region.protection }.bits();
            self.hold.must("make memory writable", libc::SYS_mprotect, [start, bytes, open, 0, 0, 0])?;
        }
        Ok(())
    }

    /// Has a helper work off the table; the table as it is afterwards. One only: each move would interrupt another one on another CPU,
    /// which takes longer than the move.
    fn run(&mut self, table: &[Entry], userfault: Option<(u64, bool)>) -> Result<Vec<Entry>, RecolorError> {
        let place = self.room.place;
        let header = Table {
            userfault: userfault.map_or(-1, |(descriptor, _)| descriptor as i64),
            count: table.len() as u64,
            advice: self.dropping_advice()?,
            ..self.room.header()
        };
        let mut bytes = agent::bytes_of(&header).to_vec();
        table.iter().for_each(|entry| bytes.extend_from_slice(agent::bytes_of(entry)));
        self.hold.write(&bytes, place.table)?;
        // Pages that are worked with must not be missing when they are needed most.
        self.populate(place.saved, page_bytes() as u64)?;
        self.hold.make_helper(place.code, place.table, place.stack, false)?;
        self.hold.work()?;
        self.hold.read(&mut bytes, place.table)?;
        Ok(bytes[HEADER as usize..].chunks_exact(size_of::<Entry>()).map(agent::record_from).collect())
    }

    /// The advice that drops pages, locked ones too where the kernel can (Linux 5.18).
    fn dropping_advice(&mut self) -> Result<u64, RecolorError> {
        let trial = [self.room.place.scratch, page_bytes() as u64, DROP_LOCKED, 0, 0, 0];
        Ok(match self.hold.call(libc::SYS_madvise, trial)? {
            Ok(_) => DROP_LOCKED,
            Err(_) => libc::MADV_DONTNEED as u64,
        })
    }

    /// Corrects the reports by what really became of the pages.
    fn account(&mut self, done: &[Entry]) {
        for (stray, entry) in self.look.strays.iter().zip(done).filter(|(_, entry)| entry.status != DONE) {
            let why = io::Error::from_raw_os_error(-entry.status as i32).to_string();
            leave(&mut self.reports, &self.regions[stray.region], &why);
        }
    }
}

/// Counts a page that was to move as left, and says why.
fn leave(reports: &mut [RegionReport], region: &Region, why: &str) {
    let Some(report) = reports.iter_mut().find(|report| report.start == region.start) else { return };
    report.moved -= 1;
    report.left += 1;
    report.why = Some(why.to_owned());
}

/// Makes runs of what is to be moved, and tells neighbors of one mapping. `regions`: the mapping of each entry.
fn join_runs(table: &mut [Entry], regions: &[usize]) {
    let page = page_bytes() as u64;
    let mut head = 0;
    for at in 1..table.len() {
        let before = table[at - 1];
        let entry = &mut table[at];
        if entry.way != Way::Move as u32 || before.way != entry.way || at - head >= RUN {
            head = at;
            continue;
        }
        if before.page + page == entry.page && regions[at - 1] == regions[at] {
            entry.run = NEIGHBOR;
        }
        table[head].run += 1;
    }
}

/// Kept free on both sides of memory mapped for the work, for what grows.
const MARGIN: u64 = 1 << 30;

/// Whether there is still room for the area, an address and the bytes behind it, where [`gap`] found it.
fn gap_at(regions: &[Region], (start, bytes): (u64, u64)) -> bool {
    // What a program maps next lies right below the gap's upper end.
    let (from, to) = (start.saturating_sub(MARGIN / 2), start + bytes + MARGIN / 2);
    regions.iter().all(|region| region.end <= from || to <= region.start)
}

/// An address for `bytes` of memory, far from what may grow: in the highest gap that is wide enough.
fn gap(regions: &[Region], bytes: u64) -> Option<u64> {
    // What the kernel maps for itself lies outside of what a program can have.
    let own = regions.iter().position(|region| region.name == "[vsyscall]").unwrap_or(regions.len());
    let mut gaps = regions[..own].windows(2).rev().map(|pair| (pair[0].end, pair[1].start));
    let fitting = gaps.find(|(from, to)| to.saturating_sub(*from) > bytes + 3 * MARGIN)?;
    // Aligned to the largest page there is.
    Some((fitting.1 - MARGIN - bytes) & !0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_moved_in_runs_and_neighbors_of_one_mapping_together() {
        let page = page_bytes() as u64;
        let entry = |number: u64, way: Way| Entry { page: number * page, slot: 0, way: way as u32, run: 1, status: 0 };
        let mut table: Vec<Entry> = (0..RUN as u64 + 2).map(|number| entry(number, Way::Move)).collect();
        table.extend([entry(100, Way::Copy), entry(101, Way::Copy), entry(200, Way::Move)]);
        table.extend([entry(300, Way::Move), entry(301, Way::Move), entry(302, Way::Move)]);
        let mut regions = vec![0; table.len()];
        regions[RUN + 7..].fill(1);
        join_runs(&mut table, &regions);
        let found: Vec<u32> = table.iter().map(|entry| entry.run).collect();
        let mut expected = vec![NEIGHBOR; RUN];
        expected[0] = RUN as u32;
        // Two are left over, two are copied, then four: 300 does not follow 200, and 302 lies in another mapping.
        expected.extend([2, NEIGHBOR, 1, 1, 4, 1, NEIGHBOR, 1]);
        assert_eq!(found, expected);
    }

    #[test]
    fn neighbors_of_the_pool_are_used_together_and_colors_evenly() {
        let page = page_bytes() as u64;
        // Of 16 colors the first four are allowed. A frame is missing, behind which the pages of the colors are no longer in step.
        let found = (0..400).filter(|n| n % 16 < 4 && *n != 33).map(|n| (n * page, (n % 16) as usize));
        let pool = Pool { slots: found.collect(), end: 400 * page };
        let stray = |n| Stray { region: 0, page: n * page, entry: PageEntry::default() };
        let mut look = Look {
            reports: Vec::new(),
            strays: (0..64).map(stray).collect(),
            in_place: Vec::new(),
            held: BTreeMap::from([(0, vec![0, 1, 0, 0])]),
        };
        let chosen = pool.choose(&mut look);
        let distinct: std::collections::BTreeSet<u64> = chosen.iter().copied().collect();
        assert_eq!((chosen.len(), distinct.len()), (64, 64));
        let runs = 1 + chosen.windows(2).filter(|pair| pair[0] + page != pair[1]).count();
        assert!(runs <= 24, "{runs} runs where at best there are 16");
        // 65 pages in four colors.
        assert!(look.held[&0].iter().all(|pages| (14..=18).contains(pages)), "{:?}", look.held);
    }

    #[test]
    fn memory_for_the_work_lies_far_from_every_mapping() {
        let maps = "\
            555500000000-555500001000 r-xp 00000000 00:01 1 /bin/x\n\
            555501000000-555502000000 rw-p 00000000 00:00 0 [heap]\n\
            7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
            7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
        let regions = process::regions_of(maps).unwrap();
        let (bytes, far) = (10 << 30, 1 << 28);
        let start = gap(&regions, bytes).unwrap();
        assert_eq!(start % page_bytes() as u64, 0);
        assert!(regions.iter().all(|r| start + bytes + far <= r.start || r.end + far <= start), "{start:x}");
        // There is none any more once something is mapped near it.
        assert!(gap_at(&regions, (start, bytes)));
        let near = |at: u64| Region { start: at, end: at + 4096, ..regions[0].clone() };
        assert!(!gap_at(&[near(start + bytes + far)], (start, bytes)) && !gap_at(&[near(start - far)], (start, bytes)));
        assert!(start + bytes < 0x7ffc_0000_0000, "not above the stack, which is the kernel's");
        // Larger than any gap.
        assert_eq!(gap(&regions, 1 << 47), None);
        assert_eq!(gap(&regions[..1], 4096), None);
    }
}
