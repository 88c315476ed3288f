//! A cache level of the machine for tests: which pages of the memory under test it holds, by what the program really touched.
//!
//! Between two readings of a counter, the kernel's page table shows which pages were touched, since all are taken out of it at each reading.
//! The order is not known, and need not be: an eviction test touches its targets, then a set, and then walks over one target after the other,
//! each between two readings.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::unistd::Pid;

pub const PAGE_BYTES: u64 = 4096;

/// Bit 63 of a pagemap entry: the page is present. [Linux, Documentation/admin-guide/mm/pagemap.rst]
pub const PRESENT: u64 = 1 << 63;

/// Number of lines that an eviction test walks over (`isochrome_host::color::eviction::STEPS`).
const WALKED_LINES: u64 = 16;

/// A cache with the same number of ways for every color, and the memory whose pages are tested.
pub struct Cache {
    pub ways: usize,
    /// Returns the color of a frame.
    pub color: fn(u64) -> usize,
    /// Returns the frame of a page of the memory under test.
    pub frame: fn(u64) -> u64,
    /// Size of the memory under test, by which it is recognized when it is mapped.
    pub bytes: u64,
    /// First address of the memory under test, once it is mapped.
    pub base: Option<u64>,
    /// Resident pages of each color, the last used one last.
    resident: Vec<VecDeque<u64>>,
}

impl Cache {
    pub fn new(ways: usize, colors: usize, color: fn(u64) -> usize, frame: fn(u64) -> u64, bytes: u64) -> Cache {
        Cache { ways, color, frame, bytes, base: None, resident: vec![VecDeque::new(); colors] }
    }

    pub fn pages(&self) -> u64 {
        self.bytes / PAGE_BYTES
    }

    /// Returns the pages that `pid` has touched since they were last taken out of the page table.
    pub fn touched(&self, pid: Pid) -> Vec<u64> {
        let Some(base) = self.base else { return Vec::new() };
        let mut entries = vec![0; self.pages() as usize * 8];
        let pagemap = File::open(format!("/proc/{pid}/pagemap")).expect("a pagemap");
        pagemap.read_exact_at(&mut entries, base / PAGE_BYTES * 8).expect("entries of the memory under test");
        let is_present = |entry: &[u8]| entry[7] & (PRESENT >> 56) as u8 != 0;
        (0..).zip(entries.chunks_exact(8)).filter(|(_, entry)| is_present(entry)).map(|(page, _)| page).collect()
    }

    /// Lets the cache see that `pages` were touched, and returns the number of misses.
    pub fn touch(&mut self, pages: &[u64]) -> u64 {
        let mut misses = 0;
        for (color, resident) in self.resident.iter_mut().enumerate() {
            let of_color: Vec<u64> =
                pages.iter().copied().filter(|page| (self.color)((self.frame)(*page)) == color).collect();
            misses += of_color.iter().filter(|page| !resident.contains(page)).count() as u64 * WALKED_LINES;
            resident.retain(|page| !of_color.contains(page));
            // More pages than ways, in whatever order, evict each other.
            if of_color.len() > self.ways {
                resident.clear();
                continue;
            }
            resident.extend(of_color);
            while resident.len() > self.ways {
                resident.pop_front();
            }
        }
        misses
    }
}
