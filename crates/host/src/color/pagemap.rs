//! Frame numbers of pages, where the kernel shows them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use isochrome_model::placement::ResidentPage;
use isochrome_model::units::FrameNumber;

use crate::sys::memory::{Arena, page_bytes};
use crate::sys::scan;

/// Bits 0 to 54 of a pagemap entry, which are the frame number. Bit 56 is set if the frame is mapped once, bit 61 if the page belongs to a
/// file or is shared, and bit 63 if it is present. [Linux, Documentation/admin-guide/mm/pagemap.rst]
const FRAME_BITS: u64 = (1 << 55) - 1;
const MAPPED_ONCE: u64 = 1 << 56;
const FILE_OR_SHARED: u64 = 1 << 61;
const PRESENT: u64 = 1 << 63;

/// Most entries that are read at once.
const CHUNK: u64 = 1 << 15;

/// The pagemap entry of a page: what the kernel reports about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageEntry(u64);

impl PageEntry {
    /// Whether the page is resident, which means that it has a frame.
    pub fn is_resident(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Returns the frame of a resident page; `None` if the page is not resident or the kernel hides frame numbers, which read as zero
    /// without CAP_SYS_ADMIN.
    pub fn frame(self) -> Option<FrameNumber> {
        (self.is_resident() && self.0 & FRAME_BITS != 0).then_some(FrameNumber(self.0 & FRAME_BITS))
    }

    /// Returns the entry of a resident page with the frame `frame`.
    #[cfg(test)]
    pub fn of_frame(frame: FrameNumber) -> PageEntry {
        PageEntry(PRESENT | frame.0)
    }

    /// Whether other pages have the frame of this page as well.
    pub fn shares_its_frame(self) -> bool {
        self.is_resident() && self.0 & MAPPED_ONCE == 0
    }

    /// Whether the page belongs to a file or to shared memory, and is not a private copy.
    pub fn of_file(self) -> bool {
        self.0 & FILE_OR_SHARED != 0
    }
}

/// Returns the entries of `pagemap` for `count` pages from page number `first` on.
pub fn entries(pagemap: &File, first: u64, count: usize) -> io::Result<Vec<PageEntry>> {
    let mut bytes = vec![0u8; count * 8];
    pagemap.read_exact_at(&mut bytes, first * 8)?;
    Ok(bytes
        .chunks_exact(8)
        .map(|entry| PageEntry(u64::from_ne_bytes(entry.try_into().expect("chunks of eight bytes"))))
        .collect())
}

/// Calls `each` with the number and the entry of every resident page among `pages` (virtual page numbers) of the process that `pagemap`
/// belongs to.
///
/// If the kernel can skip absent pages itself (Linux 6.7), untouched memory costs little. In that case, pages that were only read, which share
/// the frame of zeros, are left out.
pub fn each_resident(pagemap: &File, pages: Range<u64>, mut each: impl FnMut(u64, PageEntry)) -> io::Result<()> {
    let mut at = pages.start;
    while at < pages.end {
        let all = |_| (std::iter::once(at..pages.end).collect(), pages.end);
        let (runs, end) = scan::present(pagemap, at..pages.end).unwrap_or_else(all);
        for run in runs {
            let mut first = run.start;
            while first < run.end {
                let count = CHUNK.min(run.end - first);
                for (page, entry) in (first..).zip(entries(pagemap, first, count as usize)?) {
                    if entry.is_resident() {
                        each(page, entry);
                    }
                }
                first += count;
            }
        }
        at = end;
    }
    Ok(())
}

/// Appends the resident pages among `pages` (virtual page numbers) of the process that `pagemap` belongs to.
pub fn resident(pagemap: &File, pages: Range<u64>, found: &mut Vec<ResidentPage>) -> io::Result<()> {
    each_resident(pagemap, pages, |page, entry| {
        found.push(ResidentPage { page, frame: entry.frame(), anonymous: !entry.of_file() });
    })
}

/// Whether the kernel hides frame numbers from this process.
pub fn hidden() -> bool {
    let Ok(arena) = Arena::map(1) else { return true };
    arena.write_chain(0, &[0], page_bytes());
    frames(&arena, 0..1)[0].is_none()
}

/// Returns the frames of `pages` of `arena`; `None` for a page that is not resident, or if the kernel hides frame numbers.
pub fn frames(arena: &Arena, pages: Range<usize>) -> Vec<Option<FrameNumber>> {
    read_frames(pages.len(), |pagemap| entries(pagemap, number_of(arena, pages.start), pages.len()))
}

/// Does the same as [`frames`] for single pages.
pub fn frames_of(arena: &Arena, pages: &[u32]) -> Vec<Option<FrameNumber>> {
    read_frames(pages.len(), |pagemap| {
        let each = pages.iter().map(|page| entries(pagemap, number_of(arena, *page as usize), 1));
        each.collect::<Result<Vec<_>, _>>().map(|entries| entries.concat())
    })
}

/// Returns the number of a page of `arena` in the address space.
fn number_of(arena: &Arena, page: usize) -> u64 {
    (arena.address() / page_bytes() + page) as u64
}

fn read_frames(count: usize, read: impl FnOnce(&File) -> io::Result<Vec<PageEntry>>) -> Vec<Option<FrameNumber>> {
    match File::open("/proc/self/pagemap").and_then(|pagemap| read(&pagemap)) {
        Ok(entries) => entries.into_iter().map(PageEntry::frame).collect(),
        Err(_) => vec![None; count],
    }
}
