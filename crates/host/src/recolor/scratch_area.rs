//! The scratch area: memory mapped inside a process while its pages are moved, and the helpers that work in it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use isochrome_model::units::{Bytes, CpuId};
use rustix::thread::sched_getcpu;

use super::calls::{REFERENCE_MAPPED, REFERENCE_OPENED};
use super::error::RecolorError;
use super::hold::{Hold, Journal, Pace};
use super::mover::Means;
use super::remote;
use super::wanted::{Limits, Wanted};
use crate::color::ColorError;
use crate::color::reference::Reference;
use crate::machine::setting::RealtimeRequest;
use crate::process::{Pid, Region};
use crate::sys::agent::{self, Entry, MoveMethod, RUN, Table};
use crate::sys::clock;
use crate::sys::memory::page_bytes;

/// Least amount of memory that is given back before the area is unmapped.
const AHEAD: Bytes = Bytes(4 << 20);
/// Amount of memory that justifies one more helper to touch it or give it back.
const PER_HELPER: Bytes = Bytes(8 << 20);

/// Memory that a helper touches before the kernel refills pages, so that no other free frame of the CPU is taken for them.
const SOAK: Bytes = Bytes(4 << 20);
/// Most pauses in which such memory is touched.
const SOAKS: u64 = 4;

/// Most helpers that work at the same time.
const HELPERS: u64 = 4;

/// Size of a table of advice, with the stack of a helper, in bytes. Each further helper has its stack at the end of as many bytes more.
const SMALL_TABLE: u64 = 32 << 10;

/// Size of the header of a table, in bytes.
pub const HEADER: u64 = size_of::<Table>() as u64;
/// Size of a helper's stack, in bytes.
const STACK: u64 = 64;

/// Most entries of a table of advice.
const PORTIONS: u64 = (SMALL_TABLE - HEADER - STACK) / size_of::<Entry>() as u64;

/// Bytes that a helper touches at a time. While it touches them, the program can neither map nor unmap memory, and the helper cannot be stopped.
///
/// With pages of 4 KiB these are the bytes of one page table, so that two helpers seldom wait for the lock of a table.
const PORTION: u64 = 2 << 20;

/// Least number of mappings of a running program: text, data, stack and the kernel's mappings. A process with fewer is beginning a program.
const MAPPINGS_AT_LEAST: usize = 5;

/// Most memory that draws may touch, as a fraction (numerator, denominator) of the memory that evenly distributed colors would need.
const DRAWN: (u64, u64) = (5, 4);
/// Memory that draws may touch in addition to [`DRAWN`]. Together with what is soaked it is 64 MiB.
const DRAWN_BESIDE: Bytes = Bytes((64 << 20) - SOAKS * SOAK.0);

/// Returns the bytes of memory that hold enough frames of the allowed colors for `pages` pages, if colors are evenly distributed.
fn even_bytes(pages: usize, wanted: &Wanted) -> u64 {
    (pages * page_bytes()) as u64 * wanted.color_count() as u64 / wanted.colors.len() as u64
}

/// Returns the most bytes of memory that draws may touch for `pages` pages.
fn drawn_bytes_max(pages: usize, wanted: &Wanted) -> u64 {
    even_bytes(pages, wanted) * DRAWN.0 / DRAWN.1 + DRAWN_BESIDE.0
}

/// Memory that is mapped inside a process as long as its pages are moved.
///
/// Dropping the value unmaps the memory.
pub struct ScratchArea<'a> {
    pub pid: Pid,
    pub layout: Layout,
    /// The reference whose pages are mapped in the area, if pages are tested by eviction.
    pub reference: Option<&'a Reference>,
    /// Whether the area stays mapped while the process runs.
    pub left: bool,
    /// How pages can be moved, as found out when the area was mapped for that.
    pub means: Means,
    /// End of the memory of the pool that was touched.
    pub touched: u64,
    /// End of the memory that was touched to take up free frames.
    pub soaked: u64,
    /// The CPU on which frames are drawn, and on which the kernel refills pages.
    pub cpu: usize,
    /// Whether the touched memory was given back.
    given_back: bool,
}

/// First addresses of the parts of a scratch area, in ascending order.
///
/// `code`: instructions of the helpers. `reference`: pages of known color. `table`: requests to a helper, with its `stack` at the end. `saved`:
/// one page that keeps the contents of another page. `scratch`: pages that a run of pages is moved out to. `pool`: frames for pages that
/// must move. `soak`: memory that takes up free frames.
#[derive(Clone, Copy)]
pub struct Layout {
    pub code: u64,
    pub reference: u64,
    pub table: u64,
    pub stack: u64,
    pub saved: u64,
    pub scratch: u64,
    pub pool: u64,
    pub soak: u64,
    pub end: u64,
}

impl<'a> ScratchArea<'a> {
    /// Chooses an address for the area: in a gap between mappings that is wide enough, and far from mappings that grow.
    ///
    /// `off_color`: number of pages to find frames for, if each may have any of the colors. `movable`: this number, and that of pages which may turn
    /// out to be off color as well.
    pub fn new(
        pid: Pid,
        regions: &[Region],
        (off_color, movable): (usize, usize),
        wanted: &Wanted<'a>,
        limits: &Limits,
    ) -> Result<ScratchArea<'a>, RecolorError> {
        let reference = wanted.reference();
        let page = page_bytes() as u64;
        // The rate is measured here, once, because that takes longer than a pause may last.
        clock::rate_hz();
        // More pages may have come by the time the process stands still.
        let entries = off_color + off_color / 4 + 1024;
        let table = HEADER + (entries * size_of::<Entry>()) as u64;
        // A stack of a few words at the end of the table's last page.
        let small = SMALL_TABLE + if reference.is_some() { remote::BYTES } else { 0 };
        let table_bytes = (table + STACK).max(HELPERS * SMALL_TABLE).max(small).next_multiple_of(page);
        let available = pid.memory_room().map_or(u64::MAX, |available| available.0 / 10 * 9);
        let memory = limits.memory.0.min(available);
        // If colors are evenly distributed, this much memory holds enough frames of the allowed colors.
        let even = even_bytes(off_color, wanted);
        if even > memory {
            return Err(RecolorError::TooLittleMemory { pages: off_color, needed: Bytes(even), limit: Bytes(memory) });
        }
        let pool_bytes = drawn_bytes_max(movable, wanted).min(memory) / page * page;
        let reference_bytes = reference.map_or(0, |reference| reference.bytes.0);
        let bytes = page + reference_bytes + table_bytes + page + RUN as u64 * page + pool_bytes + SOAKS * SOAK.0;
        let code = gap(regions, bytes).ok_or_else(|| {
            if regions.len() < MAPPINGS_AT_LEAST {
                return RecolorError::Changed { pid: pid.0 };
            }
            let source = io::Error::from_raw_os_error(libc::ENOMEM);
            RecolorError::Refused { pid: pid.0, action: "find a gap between its mappings", source }
        })?;
        let table = code + page + reference_bytes;
        let saved = table + table_bytes;
        let scratch = saved + page;
        let pool = scratch + RUN as u64 * page;
        let (soak, end) = (pool + pool_bytes, code + bytes);
        let layout = Layout { code, reference: code + page, table, stack: saved, saved, scratch, pool, soak, end };
        let means = Means { mover: None, advice: libc::MADV_DONTNEED as u64 };
        let cpu = sched_getcpu();
        let (touched, soaked) = (pool, soak);
        Ok(ScratchArea { pid, layout, reference, left: false, means, touched, soaked, cpu, given_back: false })
    }

    /// Returns how much memory draws may still touch for `off_color` pages, in bytes.
    pub fn untouched(&self, off_color: usize, wanted: &Wanted) -> u64 {
        let end = self.layout.soak.min(self.layout.pool + drawn_bytes_max(off_color, wanted));
        end.saturating_sub(self.touched) / page_bytes() as u64 * page_bytes() as u64
    }

    /// Returns the memory to touch next to take up free frames: an address and a length in bytes; `None` if there is none left.
    pub fn next_soak(&mut self) -> Option<(u64, u64)> {
        let start = self.soaked;
        self.soaked = (start + SOAK.0).min(self.layout.end);
        (start < self.layout.end).then_some((start, self.soaked - start))
    }

    /// Returns the first address of the area and its length in bytes.
    pub fn range(&self) -> (u64, u64) {
        (self.layout.code, self.layout.end - self.layout.code)
    }

    /// Returns the number of entries that the table can hold.
    pub fn entries(&self) -> usize {
        (self.layout.stack - self.layout.table - STACK - HEADER) as usize / size_of::<Entry>()
    }

    /// Maps the area. Nothing in it is touched or locked yet.
    pub fn map(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let page = page_bytes() as u64;
        let Layout { code, table, end, .. } = self.layout;
        hold.journal.area = self.range();
        hold.journal.write()?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // Mapped without access at first: if the program locks its future mappings, the kernel would otherwise touch all of this memory.
        let executable = libc::PROT_READ | libc::PROT_EXEC;
        for (start, bytes, protection) in [(table, end - table, libc::PROT_NONE), (code, page, executable)] {
            let arguments = [start, bytes, protection as u64, flags as u64, u64::MAX, 0];
            let mapped = hold.call(libc::SYS_mmap, arguments)?;
            // A kernel that does not know the flag (before Linux 4.17) takes the address as a hint.
            let elsewhere = mapped.as_ref().is_ok_and(|address| *address != start);
            if let (true, Ok(address)) = (elsewhere, &mapped) {
                hold.must("unmap memory", libc::SYS_munmap, [*address, bytes, 0, 0, 0, 0])?;
            }
            if elsewhere || mapped.is_err() {
                // The memory at that address is the program's own.
                hold.journal.area = if start == code { (table, end - table) } else { (0, 0) };
                let source = mapped.err().unwrap_or_else(|| io::ErrorKind::AlreadyExists.into());
                return Err(match source.kind() {
                    // The addresses were free a short while ago.
                    io::ErrorKind::AlreadyExists => RecolorError::Changed { pid: self.pid.0 },
                    _ => RecolorError::Refused { pid: self.pid.0, action: "map memory", source },
                });
            }
        }
        let rest = [table, end - table, 0, 0, 0, 0];
        hold.must("unlock memory", libc::SYS_munlock, rest)?;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        hold.must("make memory writable", libc::SYS_mprotect, [table, end - table, writable, 0, 0, 0])?;
        // Kernels without huge pages, or without merging of equal pages, refuse and need no such advice. A process may have all of its
        // memory merged (PR_SET_MEMORY_MERGE, Linux 6.4), and what was only touched is equal.
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_UNMERGEABLE] {
            hold.call(libc::SYS_madvise, [table, end - table, advice as u64, 0, 0, 0])?.ok();
        }
        if let Some(reference) = self.reference {
            self.map_reference(hold, reference)?;
        }
        // Children of the program must not share the frames.
        hold.must(
            "keep memory from children",
            libc::SYS_madvise,
            [code, end - code, libc::MADV_DONTFORK as u64, 0, 0, 0],
        )?;
        hold.write(agent::code(), code)
    }

    /// Maps the pages of known color, which the program may only read.
    fn map_reference(&self, hold: &mut Hold, reference: &Reference) -> Result<(), RecolorError> {
        let shown = reference.path.clone().unwrap_or_default();
        let path = CString::new(shown.as_os_str().as_bytes()).unwrap_or_default();
        hold.check_reference_allowed()?;
        hold.write(path.as_bytes_with_nul(), self.layout.table)?;
        let arguments = [libc::AT_FDCWD as u64, self.layout.table, REFERENCE_OPENED, 0, 0, 0];
        let file = hold.call(libc::SYS_openat, arguments)?.map_err(|source| RecolorError::Unmeasured {
            pid: self.pid.0,
            source: ColorError::NotOpenedThere { path: shown, source },
        })?;
        // Without access at first, as in `map`: if the program locks its future mappings, the kernel would fill the holes of the file.
        let (start, bytes) = (self.layout.reference, reference.bytes.0);
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

    /// Returns the address of the requests to the helper that makes eviction tests: behind a table of one entry and the stack.
    pub fn test_requests(&self) -> u64 {
        self.layout.table + SMALL_TABLE
    }

    /// Creates the helper that makes eviction tests.
    pub fn make_test_helper(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let table = self.layout.table;
        let header = Table { entries: table + HEADER, count: 1, ..self.header() };
        let entry = Entry { page: self.test_requests(), slot: 0, method: MoveMethod::Test as u32, run: 1, status: 0 };
        hold.write(agent::bytes_of(&header), table)?;
        hold.write(agent::bytes_of(&entry), table + HEADER)?;
        hold.write(agent::bytes_of(&remote::before()), self.test_requests())?;
        hold.make_helper(self.layout.code, table, table + SMALL_TABLE, Pace::Calm)
    }

    /// Lets helpers touch the next `bytes` of the pool while the process runs. Maps the area first if it is not mapped yet, and leaves it
    /// mapped. `pauses` gathers how long a thread stood still, in ns.
    pub fn touch(&mut self, bytes: u64, pauses: &mut Vec<u64>) -> Result<(), RecolorError> {
        let start = self.touched;
        self.touched += bytes;
        self.beside(pauses, |area, hold| area.advise(hold, start, bytes, libc::MADV_POPULATE_WRITE))
    }

    /// Does the same as [`touch`](Self::touch), in huge pages of `huge` bytes as far as the kernel has any, and then splits these.
    pub fn touch_huge(&mut self, bytes: u64, huge: u64, pauses: &mut Vec<u64>) -> Result<(), RecolorError> {
        self.refuse_huge_pages(huge, pauses)?;
        let start = self.touched;
        self.touched += bytes;
        let touched = self.beside(pauses, |area, hold| {
            hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 0, 0, 0, 0, 0])?.ok();
            hold.call(libc::SYS_madvise, [start, bytes, libc::MADV_HUGEPAGE as u64, 0, 0, 0])?.ok();
            area.advise(hold, start, bytes, libc::MADV_POPULATE_WRITE)
        });
        let written = if touched.is_ok() { self.write_to(start, bytes) } else { Ok(()) };
        let blocks: Vec<u64> = (start.next_multiple_of(huge)..start + bytes).step_by(huge as usize).collect();
        let split = self.beside(pauses, |area, hold| {
            hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0])?.ok();
            area.split(hold, &blocks)
        });
        touched.and(written).and(split)
    }

    /// Lets a helper mark the mappings of the program as those that get no huge pages of `huge` bytes. Otherwise the kernel might join their pages
    /// while the process may have huge pages for the pool. The mark stays, because the process gets no huge pages after a recoloring either.
    ///
    /// The list of mappings is read just before: where one had grown meanwhile, it would be marked in part, and mremap(2) of the whole would fail.
    fn refuse_huge_pages(&mut self, huge: u64, pauses: &mut Vec<u64>) -> Result<(), RecolorError> {
        let open: Vec<(u64, u64)> = self
            .pid
            .regions()?
            .iter()
            .filter(|region| region.may_have_huge_page(huge))
            .map(|region| (region.start, region.end - region.start))
            .collect();
        for part in open.chunks(self.entries()) {
            self.beside(pauses, |area, hold| area.advise_each(hold, part, libc::MADV_NOHUGEPAGE))?;
        }
        Ok(())
    }

    /// Writes to each page of the `bytes` from `start` on. When the kernel splits a huge page, it takes back the pages that hold only zeros (Linux
    /// 6.12). [Linux, mm/migrate.c, try_to_map_unused_to_zeropage]
    fn write_to(&self, start: u64, bytes: u64) -> Result<(), RecolorError> {
        let memory = self.pid.memory()?;
        for page in (start..start + bytes).step_by(page_bytes()) {
            // A process that has executed another program, or ended, has lost this memory.
            memory.write_all_at(&[1], page).map_err(|_| RecolorError::Changed { pid: self.pid.0 })?;
        }
        Ok(())
    }

    /// Writes to the next `pages` pages of the pool from this process, so that they get the frames that `give` frees. `give` is called with a
    /// number of frames to free before every few pages.
    ///
    /// This works because the kernel takes the frame of a new page from the free frames of the CPU that touches it, also if another process touches
    /// it. The program runs all the time. The area is mapped first if necessary.
    pub fn touch_handed(
        &mut self,
        pages: usize,
        pauses: &mut Vec<u64>,
        mut give: impl FnMut(usize) -> usize,
    ) -> Result<(), RecolorError> {
        /// Frames that are handed over at a time: fewer than the kernel keeps in the list of a CPU.
        const PORTION: usize = 64;
        if !self.left {
            self.beside(pauses, |_, _| Ok(()))?;
        }
        let memory = self.pid.memory()?;
        // On another CPU frames would not arrive, which is seen afterwards.
        let _pinned = RealtimeRequest::new().pin(CpuId(sched_getcpu() as u32)).apply();
        for first in (0..pages).step_by(PORTION) {
            let count = PORTION.min(pages - first);
            give(count);
            for _ in 0..count {
                // A process that has executed another program, or ended, has lost this memory.
                memory.write_all_at(&[1], self.touched).map_err(|_| RecolorError::Changed { pid: self.pid.0 })?;
                self.touched += page_bytes() as u64;
            }
        }
        Ok(())
    }

    /// Lets the helpers that `prepare` creates work in the process while it runs, and waits for them. Maps the area first if necessary.
    pub fn beside(
        &mut self,
        pauses: &mut Vec<u64>,
        prepare: impl FnOnce(&ScratchArea, &mut Hold) -> Result<(), RecolorError>,
    ) -> Result<(), RecolorError> {
        let mut hold = Hold::one(self.pid, if self.left { self.range() } else { (0, 0) })?;
        if !std::mem::take(&mut self.left) {
            self.map(&mut hold)?;
            self.find_means(&mut hold)?;
        }
        prepare(self, &mut hold)?;
        let (helpers, stop) = hold.leave()?;
        pauses.push(stop.as_nanos() as u64);
        // From here on dropping the scratch area unmaps it.
        self.left = true;
        helpers.wait()
    }

    /// Creates helpers that give back the touched memory, if it is so much that unmapping it would take long. Otherwise threads of the program that
    /// map memory would wait for the unmapping.
    pub fn give_back(&mut self, hold: &mut Hold) -> Result<(), RecolorError> {
        let (start, end) = (self.layout.scratch, self.touched);
        if !self.has_much_to_give_back() {
            return Ok(());
        }
        self.given_back = true;
        self.advise(hold, start, end - start, libc::MADV_DONTNEED)
    }

    fn has_much_to_give_back(&self) -> bool {
        !self.given_back && self.touched - self.layout.pool > AHEAD.0
    }

    /// Creates a helper that splits the huge pages at the addresses `blocks`. The kernel splits a huge page when it gets advice about a
    /// part of it.
    pub fn split(&self, hold: &mut Hold, blocks: &[u64]) -> Result<(), RecolorError> {
        let page = page_bytes() as u64;
        let parts: Vec<(u64, u64)> = blocks.iter().map(|block| (*block, page)).take(self.entries()).collect();
        self.advise_each(hold, &parts, libc::MADV_COLD)
    }

    /// Creates a helper that gives the kernel advice (madvise(2)) about each of `ranges`, an address and a length in bytes. There may be as many as the
    /// table has [entries](Self::entries).
    fn advise_each(&self, hold: &mut Hold, ranges: &[(u64, u64)], advice: libc::c_int) -> Result<(), RecolorError> {
        self.write_advice(hold, ranges.iter().copied(), advice)?;
        self.make_adviser(hold, self.layout.stack)
    }

    /// Creates helpers that give the kernel advice (madvise(2)) about `bytes` from `start` on.
    ///
    /// The helpers share one table, and each takes the next portion that nobody has begun. So a helper whose CPU is busy with other programs
    /// keeps the others waiting for at most one portion.
    fn advise(&self, hold: &mut Hold, start: u64, bytes: u64, advice: libc::c_int) -> Result<(), RecolorError> {
        let helpers = (bytes / PER_HELPER.0).clamp(1, HELPERS.min(hold.cpus() as u64));
        self.write_advice(hold, portions(start, bytes), advice)?;
        self.make_adviser(hold, self.layout.table + SMALL_TABLE)?;
        // What lies free on this CPU shall be drawn before pages are refilled there.
        hold.keep_helper_on(self.cpu);
        (2..=helpers).try_for_each(|helper| self.make_adviser(hold, self.layout.table + helper * SMALL_TABLE))
    }

    /// Writes a table of advice (madvise(2)) about the ranges `about`, each an address and a length in bytes.
    fn write_advice(
        &self,
        hold: &Hold,
        about: impl Iterator<Item = (u64, u64)>,
        advice: libc::c_int,
    ) -> Result<(), RecolorError> {
        let entry =
            |(page, slot)| Entry { page, slot, method: MoveMethod::Advise as u32, run: advice as u32, status: 0 };
        let entries: Vec<Entry> = about.map(entry).collect();
        let header = Table { count: entries.len() as u64, ..self.header() };
        let mut text = agent::bytes_of(&header).to_vec();
        entries.iter().for_each(|entry| text.extend_from_slice(agent::bytes_of(entry)));
        hold.write(&text, self.layout.table)
    }

    /// Creates a helper that works off the table of advice. `stack`: the address where its stack ends.
    fn make_adviser(&self, hold: &mut Hold, stack: u64) -> Result<(), RecolorError> {
        hold.make_helper(self.layout.code, self.layout.table, stack, Pace::Calm)
    }

    /// Returns the header of a table without entries and without a userfaultfd.
    pub fn header(&self) -> Table {
        Table {
            userfault: -1,
            entries: self.layout.table + HEADER,
            count: 0,
            scratch: self.layout.scratch,
            page_bytes: page_bytes() as u64,
            advice: libc::MADV_DONTNEED as u64,
            begun: 0,
            request: [0; 6],
            saved: self.layout.saved,
            deadline: u64::MAX,
            ended: 0,
        }
    }

    /// Gives the memory of the area back and unmaps the area, while the process runs. `pauses` gathers how long a thread stood still, in ns.
    pub fn remove(&mut self, pauses: &mut Vec<u64>) -> Result<(), RecolorError> {
        if !std::mem::take(&mut self.left) {
            return Ok(());
        }
        let removed = self.unmap(pauses);
        if removed.is_err() {
            // The journal stays for a repair, unless the process has ended.
            Journal::forget_ended(self.pid);
        }
        removed
    }

    fn unmap(&mut self, pauses: &mut Vec<u64>) -> Result<(), RecolorError> {
        if self.has_much_to_give_back() {
            let mut hold = Hold::one(self.pid, self.range())?;
            self.give_back(&mut hold)?;
            let (helpers, stop) = hold.leave()?;
            pauses.push(stop.as_nanos() as u64);
            helpers.finish()?;
        }
        let stop = Hold::one(self.pid, self.range())?.resume()?;
        pauses.push(stop.as_nanos() as u64);
        Ok(())
    }
}

impl Drop for ScratchArea<'_> {
    fn drop(&mut self) {
        // After a failure the journal records what is left to restore.
        let _ = self.remove(&mut Vec::new());
    }
}

/// Returns at most [`PORTIONS`] ranges that together are the `bytes` from `start` on, each an address and a length in bytes. They end at
/// multiples of [`PORTION`].
fn portions(start: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let (size, end) = (bytes.div_ceil(PORTIONS - 1).next_multiple_of(PORTION), start + bytes);
    let begins = (start / size * size..end).step_by(size as usize);
    begins.map(move |at| (at.max(start), (at + size).min(end) - at.max(start)))
}

/// Bytes kept free on both sides of the area for neighboring mappings that grow.
const MARGIN: u64 = 1 << 30;

/// Returns an address for `bytes` of memory in the highest gap that is wide enough, far from mappings that may grow; `None` if there
/// is no such gap.
fn gap(regions: &[Region], bytes: u64) -> Option<u64> {
    // The [vsyscall] page of the kernel lies outside of the addresses that a program can use.
    let own = regions.iter().position(|region| region.name == "[vsyscall]").unwrap_or(regions.len());
    let mut gaps = regions[..own].windows(2).rev().map(|pair| (pair[0].end, pair[1].start));
    let fitting = gaps.find(|(from, to)| to.saturating_sub(*from) > bytes + 3 * MARGIN)?;
    // Aligned to 64 KiB, the largest base page size.
    Some((fitting.1 - MARGIN - bytes) & !0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn portions_cover_a_range_once_and_share_no_page_table() {
        for (start, bytes) in
            [(5 << 20, 4096), (3 << 20, 206 << 20), (0, 2 << 20), (7 << 16, (PORTIONS * PORTION) + 12345 * 4096)]
        {
            let found: Vec<(u64, u64)> = portions(start, bytes).collect();
            let mut at = start;
            for (begin, length) in &found {
                assert_eq!((*begin, *length > 0), (at, true));
                at += length;
            }
            assert_eq!(at, start + bytes);
            assert!(found.len() as u64 <= PORTIONS && found[1..].iter().all(|(begin, _)| begin % PORTION == 0));
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
        let (bytes, far) = (10 << 30, 1 << 28);
        let start = gap(&regions, bytes).unwrap();
        assert_eq!(start % page_bytes() as u64, 0);
        assert!(regions.iter().all(|r| start + bytes + far <= r.start || r.end + far <= start), "{start:x}");
        assert!(start + bytes < 0x7ffc_0000_0000, "not above the stack, which is the kernel's");
        // Larger than any gap.
        assert_eq!(gap(&regions, 1 << 47), None);
        assert_eq!(gap(&regions[..1], 4096), None);
    }
}
