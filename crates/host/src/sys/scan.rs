//! Finds the resident pages of a process, which the kernel reports in runs (`PAGEMAP_SCAN`, Linux 6.7).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use super::memory::page_bytes;

/// `struct page_region`: a range of addresses, and the categories of all pages in it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`. [Linux, include/uapi/linux/fs.h]
#[repr(C)]
struct Request {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    runs: u64,
    runs_len: u64,
    max_pages: u64,
    inverted: u64,
    mask: u64,
    any_of: u64,
    returned: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u32 = 3 << 30 | (size_of::<Request>() as u32) << 16 | (b'f' as u32) << 8 | 16;

/// `PAGE_IS_PRESENT`.
const PRESENT: u64 = 1 << 3;

/// `PAGE_IS_PFNZERO`: the page was read but never written, and has the one frame that all such pages share.
const ZERO: u64 = 1 << 5;

/// Largest number of runs that one call reports.
const RUNS: usize = 1024;

/// Returns the runs of pages among `pages` (virtual page numbers) that have a frame of their own, and the page where the search ended: the end
/// of `pages`, or earlier if there are too many runs for one call. `pagemap`: /proc/PID/pagemap of the process.
///
/// Fails with `Unsupported` if the kernel reports an end that makes no progress.
pub fn present(pagemap: &File, pages: Range<u64>) -> io::Result<(Vec<Range<u64>>, u64)> {
    let page = page_bytes() as u64;
    let mut runs = [Run::default(); RUNS];
    let mut request = Request {
        size: size_of::<Request>() as u64,
        flags: 0,
        start: pages.start * page,
        end: pages.end * page,
        walk_end: 0,
        runs: runs.as_mut_ptr().expose_provenance() as u64,
        runs_len: RUNS as u64,
        max_pages: 0,
        inverted: ZERO,
        mask: PRESENT | ZERO,
        any_of: 0,
        returned: PRESENT,
    };
    // SAFETY: the kernel reads and writes one `struct pm_scan_arg` at the address of a live, exclusively borrowed structure of that
    // layout, and at most `runs_len` runs at the address of a live array of that many; both are made of integers.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut request) };
    if found < 0 {
        return Err(io::Error::last_os_error());
    }
    let runs: Vec<Range<u64>> = runs[..found as usize].iter().map(|run| run.start / page..run.end / page).collect();
    // When Linux 6.18 returns the largest number of runs, it may report an end that lies before the end of the last run.
    let end = (request.walk_end / page).max(runs.last().map_or(0, |run| run.end));
    if end <= pages.start {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok((runs, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::Arena;

    #[test]
    fn the_request_number_is_the_kernels() {
        // <linux/fs.h>: _IOWR('f', 16, 96 bytes) = 0xc0606610.
        assert_eq!(PAGEMAP_SCAN, 0xc060_6610);
    }

    #[test]
    fn pages_that_were_touched_are_found_in_however_many_runs() {
        let mut arena = Arena::map(4 * RUNS).unwrap();
        for page in (0..4 * RUNS).step_by(2) {
            arena.bytes_mut()[page * page_bytes()] = 1;
        }
        // This page is read and never written.
        assert_eq!(arena.bytes_mut()[page_bytes()], 0);
        let first = (arena.address() / page_bytes()) as u64;
        let pages = first..first + 4 * RUNS as u64;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let (mut at, mut found) = (pages.start, Vec::new());
        while at < pages.end {
            // Kernels before 6.7 do not know the request.
            let Ok((runs, end)) = present(&pagemap, at..pages.end) else { return };
            found.extend(runs.into_iter().flatten().map(|page| page - first));
            at = end;
        }
        assert!(found.iter().copied().eq((0..4 * RUNS as u64).step_by(2)), "{} pages are found", found.len());
    }
}
