//! The frames behind the pages of a process.

use std::fs::File;

use crate::color::pagemap::{self, PageEntry};
use crate::process::{Pid, ProcessError};
use crate::sys::memory::page_bytes;

/// The frames behind a process's pages.
pub struct PageMap {
    pid: Pid,
    file: File,
}

impl Pid {
    /// Opens /proc/PID/pagemap, which lists the frames behind the pages of the process.
    pub fn page_map(self) -> Result<PageMap, ProcessError> {
        Ok(PageMap { pid: self, file: File::open(self.path("pagemap")).map_err(self.failed("pagemap"))? })
    }
}

impl PageMap {
    /// Returns the resident pages from `start` up to `end`, in ascending order: the address of each, and its pagemap entry.
    pub fn resident(&self, start: u64, end: u64) -> Result<Vec<(u64, PageEntry)>, ProcessError> {
        let page = page_bytes() as u64;
        let mut found = Vec::new();
        pagemap::each_resident(&self.file, start / page..end / page, |number, entry| {
            found.push((number * page, entry));
        })
        .map_err(self.pid.failed("pagemap"))?;
        Ok(found)
    }

    /// Returns the pagemap entry of each of `pages`, which are addresses in ascending order.
    pub fn entries(&self, pages: &[u64]) -> Result<Vec<PageEntry>, ProcessError> {
        /// Largest gap between two pages, in pages, whose entries are read as well because that takes less time than another system call.
        const GAP: u64 = 64;
        let page = page_bytes() as u64;
        let mut found = Vec::with_capacity(pages.len());
        for near in pages.chunk_by(|one, next| next - one <= GAP * page) {
            let (first, last) = (near[0] / page, near[near.len() - 1] / page);
            let count = (last - first + 1) as usize;
            let entries = pagemap::entries(&self.file, first, count).map_err(self.pid.failed("pagemap"))?;
            found.extend(near.iter().map(|address| entries[(address / page - first) as usize]));
        }
        Ok(found)
    }
}
