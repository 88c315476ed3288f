//! Frame numbers of this process's pages, where the kernel shows them.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use isochrome_model::units::FrameNumber;

use crate::sys::memory::{Arena, page_bytes};

/// Bits 0-54 of a pagemap entry are the frame number, bit 63 says that the page is present
/// (Documentation/admin-guide/mm/pagemap.rst).
const FRAME_BITS: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;

/// Frames of `pages` of `arena`; `None` when the kernel hides frame numbers (they read as zero without CAP_SYS_ADMIN) or the
/// page is not resident.
pub fn frames(arena: &Arena, pages: Range<usize>) -> Vec<Option<FrameNumber>> {
    let first = arena.address() / page_bytes() + pages.start;
    let mut entries = vec![0u8; pages.len() * 8];
    let read = File::open("/proc/self/pagemap").and_then(|map| map.read_exact_at(&mut entries, first as u64 * 8));
    if read.is_err() {
        return vec![None; pages.len()];
    }
    entries
        .chunks_exact(8)
        .map(|entry| u64::from_ne_bytes(entry.try_into().expect("chunks of eight bytes")))
        .map(|entry| (entry & PRESENT != 0 && entry & FRAME_BITS != 0).then_some(FrameNumber(entry & FRAME_BITS)))
        .collect()
}
