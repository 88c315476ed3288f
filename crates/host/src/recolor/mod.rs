//! Other frames for the pages of a process that runs: contents, addresses and mappings stay, colors change.
//!
//! The process is held still and parked (`hold`); a helper thread made inside it then works off a table on its own
//! ([`agent`]). Frames of the colors asked for come from anonymous memory mapped in the process for that time: as much of it is
//! touched as is needed to find enough of them, and all of it goes back at the end. [`Way`] says how a page gets its frame.
//!
//! Shared memory, hugetlbfs and memory of devices are not moved, nor what the kernel maps; they are listed.

mod hold;
pub mod process;
pub mod watch;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

use isochrome_model::units::{Bytes, Color, FrameNumber};
use serde::Serialize;

use crate::pagemap::{self, PageEntry};
use crate::sys::agent::{self, DONE, Entry, RUN, Table, Way};
use crate::sys::memory::{Arena, page_bytes};
use crate::sys::userfault;

pub use hold::repair;
use hold::{Hold, Journal};
use process::{PageMap, Pid, Protection, Region};

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
    /// Its system calls are filtered.
    #[error(
        "process {pid} filters its system calls (seccomp), so that calls made on its behalf could end it\n  hint: run the program without its sandbox"
    )]
    Seccomp {
        /// Its number.
        pid: i32,
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
    #[error("/proc/PID/pagemap: frame numbers read as zero, CAP_SYS_ADMIN is missing\n  hint: run as root")]
    FramesHidden,
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

/// Which frames a process is to have.
pub struct Wanted<'a> {
    /// Color of a frame; `None` when it is not known.
    pub color_of: &'a dyn Fn(FrameNumber) -> Option<Color>,
    /// The colors allowed.
    pub colors: &'a [Color],
    /// How many colors there are.
    pub color_count: u32,
}

impl Wanted<'_> {
    /// The color of `frame` if it is one of those allowed.
    fn allowed(&self, frame: FrameNumber) -> Option<Color> {
        (self.color_of)(frame).filter(|color| self.colors.contains(color))
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
    /// How long the process stood still; nothing where it was only looked at.
    pub pause_ns: Option<u64>,
    /// Its threads.
    pub threads: usize,
    /// Memory touched to find frames.
    pub touched: Bytes,
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
    /// The color it is to have.
    color: Color,
}

/// What a look at every resident page shows.
struct Look {
    /// What would be done.
    reports: Vec<RegionReport>,
    /// The pages that have to move, ascending.
    strays: Vec<Stray>,
    /// The pages that have an allowed color, ascending.
    in_place: Vec<u64>,
}

/// Looks at every resident page. `keep`: pages that must stay.
fn look(
    regions: &[Region],
    map: &PageMap,
    wanted: &Wanted,
    zero: Option<FrameNumber>,
    keep: &dyn Fn(u64) -> bool,
) -> Result<Look, RecolorError> {
    let page_bytes = page_bytes() as u64;
    let (mut reports, mut strays, mut in_place) = (Vec::new(), Vec::new(), Vec::new());
    for (number, region) in regions.iter().enumerate().filter(|(_, region)| region.resident.0 > 0) {
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
        // Of the allowed colors, how many pages of the mapping have each: the next page gets the rarest, so that neighbors differ.
        let mut held: Vec<(usize, Color)> = wanted.colors.iter().map(|color| (0, *color)).collect();
        for (page, entry) in
            (region.start..).step_by(page_bytes as usize).zip(map.entries(region.start, region.pages())?)
        {
            let Some(frame) = entry.frame().filter(|frame| Some(*frame) != zero) else { continue };
            report.resident += 1;
            if let Some(color) = wanted.allowed(frame) {
                report.right += 1;
                in_place.push(page);
                held.iter_mut().filter(|(_, c)| *c == color).for_each(|(count, _)| *count += 1);
            } else if let Some(why) = region.fixed.or(keep(page).then_some("holds what isochrome works with")) {
                report.left += 1;
                report.why = Some(why.to_owned());
            } else {
                let Some(rarest) = held.iter_mut().min_by_key(|(count, _)| *count) else { continue };
                rarest.0 += 1;
                report.moved += 1;
                strays.push(Stray { region: number, page, entry, color: rarest.1 });
            }
        }
        if report.resident > 0 {
            reports.push(report);
        }
    }
    Ok(Look { reports, strays, in_place })
}

/// What [`recolor`] would do to `pid`, which goes on undisturbed.
pub fn inspect(pid: Pid, wanted: &Wanted) -> Result<Report, RecolorError> {
    inspect_pages(pid, wanted).map(|(report, _)| report)
}

/// The same, and the pages it is about.
fn inspect_pages(pid: Pid, wanted: &Wanted) -> Result<(Report, Look), RecolorError> {
    let look = look(&pid.regions()?, &pid.page_map()?, wanted, zero_frame(), &|_| false)?;
    let regions = look.reports.clone();
    Ok((Report { pid: pid.0, regions, pause_ns: None, threads: pid.threads()?.len(), touched: Bytes(0) }, look))
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

/// Gives the resident pages of `pid` frames of the colors wanted. From then on the kernel makes no huge pages for it.
///
/// Where it fails the process is as it was, unless the error says otherwise.
pub fn recolor(pid: Pid, wanted: &Wanted, limits: &Limits) -> Result<Report, RecolorError> {
    if wanted.colors.is_empty() {
        return Err(RecolorError::NoColors);
    }
    pid.check(limits.force)?;
    if Journal::left_for(pid)?.is_some() {
        return Err(RecolorError::Unrepaired { pid: pid.0 });
    }
    // Hidden frame numbers are found out before the process is stopped.
    let before = inspect(pid, wanted)?;
    if before.moved() == 0 {
        return Ok(before);
    }
    let mut hold = Hold::new(pid)?;
    let worked = Work::new(&mut hold, wanted, limits).and_then(Work::carry_out);
    let threads = hold.threads();
    let pause = hold.resume();
    let (regions, touched) = worked?;
    Ok(Report { pid: pid.0, regions, pause_ns: Some(pause?.as_nanos() as u64), threads, touched })
}

/// A recoloring under way.
struct Work<'a> {
    hold: &'a mut Hold,
    wanted: &'a Wanted<'a>,
    limits: Limits,
    regions: Vec<Region>,
    reports: Vec<RegionReport>,
    strays: Vec<Stray>,
    /// Address of every part of the memory mapped for the work.
    place: Place,
}

/// The parts of the memory mapped for the work, one behind the other: code, table and stack, a page to save another one in,
/// scratch pages, pool.
#[derive(Clone, Copy)]
struct Place {
    code: u64,
    table: u64,
    stack: u64,
    saved: u64,
    scratch: u64,
    pool: u64,
    end: u64,
}

impl<'a> Work<'a> {
    /// Looks at the pages of the process, now that it stands still.
    fn new(hold: &'a mut Hold, wanted: &'a Wanted, limits: &Limits) -> Result<Work<'a>, RecolorError> {
        let (pid, cave) = (hold.pid(), hold.cave_page());
        let regions = pid.regions()?;
        // Only now can no other process begin to share the memory.
        pid.check_alone()?;
        let Look { reports, strays, .. } =
            look(&regions, &pid.page_map()?, wanted, zero_frame(), &|page| page == cave)?;
        let page = page_bytes() as u64;
        let table = (size_of::<Table>() + strays.len() * size_of::<Entry>()) as u64;
        // A stack of a few words at the end of the table's last page.
        let table_bytes = (table + 64).next_multiple_of(page);
        let room = pid.memory_room().map_or(u64::MAX, |room| room.0 / 10 * 9);
        let limits = Limits { memory: Bytes(limits.memory.0.min(room)), ..*limits };
        let pool_bytes = limits.memory.0 / page * page;
        let bytes = page + table_bytes + page + RUN as u64 * page + pool_bytes;
        // Nobody else can map anything there now, so a repair may unmap it, whatever had been mapped when the tool was killed.
        let code = gap(&regions, bytes).ok_or(RecolorError::Refused {
            pid: pid.0,
            action: "find a gap between its mappings",
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        })?;
        let place = Place {
            code,
            table: code + page,
            stack: code + page + table_bytes,
            saved: code + page + table_bytes,
            scratch: code + 2 * page + table_bytes,
            pool: code + 2 * page + table_bytes + RUN as u64 * page,
            end: code + bytes,
        };
        Ok(Work { hold, wanted, limits, regions, reports, strays, place })
    }

    /// Gives every stray page its frame; what became of the pages, and the memory touched for it.
    fn carry_out(mut self) -> Result<(Vec<RegionReport>, Bytes), RecolorError> {
        if self.strays.is_empty() {
            return Ok((self.reports, Bytes(0)));
        }
        self.map()?;
        let (slots, touched) = self.fill_pool()?;
        let userfault = self.open_userfault()?;
        let table = self.table(slots, userfault)?;
        self.open_protections(&table)?;
        // Else the kernel would join the pages to huge ones again, which have all colors.
        self.hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0])?.ok();
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
        Ok((self.reports, touched))
    }

    /// Maps the memory for the work: nothing in it is touched yet, nor locked.
    fn map(&mut self) -> Result<(), RecolorError> {
        let page = page_bytes() as u64;
        let Place { code, table, end, .. } = self.place;
        self.hold.journal.area = (code, end - code);
        self.hold.journal.write()?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // Without access at first: where the program locks all that it maps, touching is not for the kernel to do.
        let executable = libc::PROT_READ | libc::PROT_EXEC;
        for (start, bytes, protection) in [(table, end - table, libc::PROT_NONE), (code, page, executable)] {
            let arguments = [start, bytes, protection as u64, flags as u64, u64::MAX, 0];
            let mapped = self.hold.call(libc::SYS_mmap, arguments)?;
            // A kernel that does not know the flag (before Linux 4.17) takes the address as a wish.
            let elsewhere = mapped.as_ref().is_ok_and(|address| *address != start);
            if let (true, Ok(address)) = (elsewhere, &mapped) {
                self.hold.must("unmap memory", libc::SYS_munmap, [*address, bytes, 0, 0, 0, 0])?;
            }
            if elsewhere || mapped.is_err() {
                // What is there is the program's own.
                self.hold.journal.area = if start == code { (table, end - table) } else { (0, 0) };
                let source = mapped.err().unwrap_or_else(|| io::ErrorKind::AlreadyExists.into());
                return Err(RecolorError::Refused { pid: self.hold.pid().0, action: "map memory", source });
            }
        }
        let rest = [table, end - table, 0, 0, 0, 0];
        self.hold.must("unlock memory", libc::SYS_munlock, rest)?;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        self.hold.must("make memory writable", libc::SYS_mprotect, [table, end - table, writable, 0, 0, 0])?;
        // Kernels without huge pages refuse, and need no such advice.
        self.hold.call(libc::SYS_madvise, [table, end - table, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0])?.ok();
        self.hold.write(agent::code(), code)
    }

    /// Touches memory until there are enough frames, and gives the address of one for every stray page.
    ///
    /// A page gets the color chosen for it, or, when three quarters of each color's pages have theirs, any that is left: the last
    /// frames of the scarcest color would cost as much memory as all the others together.
    fn fill_pool(&mut self) -> Result<(Vec<u64>, Bytes), RecolorError> {
        let page = page_bytes() as u64;
        let mut demand: BTreeMap<Color, usize> = BTreeMap::new();
        for stray in &self.strays {
            *demand.entry(stray.color).or_default() += 1;
        }
        let map = self.hold.pid().page_map()?;
        let mut found: BTreeMap<Color, Vec<u64>> = BTreeMap::new();
        let mut end = self.place.pool;
        loop {
            let of = |color: &Color| found.get(color).map_or(0, Vec::len);
            let lacking =
                |(color, wanted): (&Color, &usize)| ((wanted * 3).div_ceil(4).saturating_sub(of(color)), *color);
            let (scarce, color) = demand.iter().map(lacking).max().unwrap_or_default();
            let missing = self.strays.len().saturating_sub(found.values().map(Vec::len).sum());
            if scarce == 0 && missing == 0 {
                break;
            }
            // Each page touched has one of all the colors.
            let colors = u64::from(self.wanted.color_count.max(1));
            let estimate = (missing as u64 * colors / self.wanted.colors.len() as u64).max(scarce as u64 * colors);
            let bytes = ((estimate + estimate / 32 + colors) * page).min(self.place.end - end);
            if bytes == 0 {
                return Err(RecolorError::TooFewFrames {
                    color: color.0,
                    wanted: demand[&color],
                    found: of(&color),
                    limit: self.limits.memory,
                });
            }
            self.populate(end, bytes)?;
            for (address, entry) in (end..).step_by(page as usize).zip(map.entries(end, (bytes / page) as usize)?) {
                if let Some(color) = entry.frame().and_then(|frame| self.wanted.allowed(frame)) {
                    found.entry(color).or_default().push(address);
                }
            }
            end += bytes;
        }
        // The first found is the first used, so that neighbors of the pool are moved together.
        found.values_mut().for_each(|slots| slots.reverse());
        let mut slots = Vec::with_capacity(self.strays.len());
        for stray in &self.strays {
            let slot = match found.get_mut(&stray.color).and_then(Vec::pop) {
                None => found.values_mut().max_by_key(|slots| slots.len()).and_then(Vec::pop),
                slot => slot,
            };
            slots.extend(slot);
        }
        Ok((slots, Bytes(end - self.place.pool)))
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
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        for (mode, for_user_mode) in [(0, false), (userfault::USER_MODE_ONLY as u64, true)] {
            let flags = flags | mode;
            let Ok(descriptor) = self.hold.call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0])? else { continue };
            let request = [userfault::API, 0, 0];
            let features = self.ioctl(descriptor, u64::from(userfault::UFFDIO_API), request)?.map(|answer| answer[1]);
            let scratch = (self.place.scratch, self.place.pool);
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
        let address = self.place.table;
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
        let strays = std::mem::take(&mut self.strays);
        for (stray, slot) in strays.iter().zip(slots) {
            let region = &self.regions[stray.region];
            let anonymous = !region.of_file && !region.locked;
            let plain = region.protection == Protection { read: true, write: true, execute: false };
            let way = match userfault {
                _ if stray.entry.of_file() => Way::Copy,
                // The kernel would end a thread whose area it cannot write to.
                Some((_, true)) if restartable.contains(&stray.page) => Way::Replace,
                Some((descriptor, _)) if anonymous && plain => {
                    let range = (region.start, region.end);
                    let registered = match movable.get(&stray.region) {
                        Some(registered) => *registered,
                        None => self.register(descriptor, range)?,
                    };
                    movable.insert(stray.region, registered);
                    if registered { Way::Move } else { Way::Replace }
                }
                _ => Way::Replace,
            };
            table.push(Entry { page: stray.page, slot, way: way as u32, run: 1, status: 0 });
        }
        self.strays = strays;
        let regions: Vec<usize> = self.strays.iter().map(|stray| stray.region).collect();
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
        for region in closed {
            let (start, bytes) = (region.start, region.end - region.start);
            self.hold.journal.protections.push((start, bytes, region.protection.bits()));
            self.hold.journal.write()?;
            let open = Protection { read: true, write: true, ..region.protection }.bits();
            self.hold.must("make memory writable", libc::SYS_mprotect, [start, bytes, open, 0, 0, 0])?;
        }
        Ok(())
    }

    /// Has the helper work off the table; the table as it is afterwards.
    fn run(&mut self, table: &[Entry], userfault: Option<(u64, bool)>) -> Result<Vec<Entry>, RecolorError> {
        let place = self.place;
        let entries = place.table + size_of::<Table>() as u64;
        let header = Table {
            userfault: userfault.map_or(-1, |(descriptor, _)| descriptor as i64),
            entries,
            count: table.len() as u64,
            scratch: place.scratch,
            page_bytes: page_bytes() as u64,
            advice: self.dropping_advice()?,
            done: 0,
            request: [0; 6],
            saved: place.saved,
        };
        let mut bytes = agent::bytes_of(&header).to_vec();
        table.iter().for_each(|entry| bytes.extend_from_slice(agent::bytes_of(entry)));
        self.hold.write(&bytes, place.table)?;
        // Pages that are worked with must not be missing when they are needed most.
        self.populate(place.saved, page_bytes() as u64)?;
        self.hold.run_helper(place.code, place.table, place.stack)?;
        self.hold.read(&mut bytes, place.table)?;
        Ok(bytes[size_of::<Table>()..].chunks_exact(size_of::<Entry>()).map(agent::record_from).collect())
    }

    /// The advice that drops pages, locked ones too where the kernel can (Linux 5.18).
    fn dropping_advice(&mut self) -> Result<u64, RecolorError> {
        /// `MADV_DONTNEED_LOCKED`. [Linux, include/uapi/asm-generic/mman-common.h]
        const DROP_LOCKED: u64 = 24;
        let trial = [self.place.scratch, page_bytes() as u64, DROP_LOCKED, 0, 0, 0];
        Ok(match self.hold.call(libc::SYS_madvise, trial)? {
            Ok(_) => DROP_LOCKED,
            Err(_) => libc::MADV_DONTNEED as u64,
        })
    }

    /// Corrects the reports by what really became of the pages.
    fn account(&mut self, done: &[Entry]) {
        for (stray, entry) in self.strays.iter().zip(done).filter(|(_, entry)| entry.status != DONE) {
            let start = self.regions[stray.region].start;
            let Some(report) = self.reports.iter_mut().find(|report| report.start == start) else { continue };
            report.moved -= 1;
            report.left += 1;
            report.why = Some(io::Error::from_raw_os_error(-entry.status as i32).to_string());
        }
    }
}

/// Makes runs of neighbors of one mapping that are to be moved. `regions`: the mapping of each entry.
fn join_runs(table: &mut [Entry], regions: &[usize]) {
    let page = page_bytes() as u64;
    let mut head = 0;
    for at in 1..table.len() {
        let (before, entry) = (table[at - 1], table[at]);
        let neighbors = entry.way == Way::Move as u32 && before.way == entry.way && before.page + page == entry.page;
        if neighbors && regions[at - 1] == regions[at] && at - head < RUN {
            table[head].run += 1;
        } else {
            head = at;
        }
    }
}

/// An address for `bytes` of memory, far from what may grow: in the highest gap that is wide enough.
fn gap(regions: &[Region], bytes: u64) -> Option<u64> {
    /// Kept free on both sides, for what grows.
    const MARGIN: u64 = 1 << 30;
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
    fn neighbors_are_moved_in_runs() {
        let page = page_bytes() as u64;
        let entry = |number: u64, way: Way| Entry { page: number * page, slot: 0, way: way as u32, run: 1, status: 0 };
        let mut table: Vec<Entry> = (0..RUN as u64 + 2).map(|number| entry(number, Way::Move)).collect();
        table.extend([entry(100, Way::Copy), entry(101, Way::Copy), entry(200, Way::Move)]);
        table.extend([entry(300, Way::Move), entry(301, Way::Move), entry(302, Way::Move)]);
        let mut regions = vec![0; table.len()];
        regions[RUN + 7] = 1;
        join_runs(&mut table, &regions);
        let heads = [(0, RUN as u32), (RUN, 2), (RUN + 2, 1), (RUN + 3, 1), (RUN + 4, 1), (RUN + 5, 2), (RUN + 7, 1)];
        for (at, run) in heads {
            assert_eq!(table[at].run, run, "at {at}");
        }
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
        let (bytes, far) = (10 << 30, 1 << 29);
        let start = gap(&regions, bytes).unwrap();
        assert_eq!(start % page_bytes() as u64, 0);
        assert!(regions.iter().all(|r| start + bytes + far <= r.start || r.end + far <= start), "{start:x}");
        assert!(start + bytes < 0x7ffc_0000_0000, "not above the stack, which is the kernel's");
        // Larger than any gap.
        assert_eq!(gap(&regions, 1 << 47), None);
        assert_eq!(gap(&regions[..1], 4096), None);
    }
}
