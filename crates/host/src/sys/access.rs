//! Touching and timing whole pages, line by line.
//!
//! Every page used here carries the same chain: the first word of each line holds the offset, within the page, of the
//! next line to visit. The order is random so that no prefetcher foresees it, and relative so that it survives a move.

use isochrome_model::flood::Access;
use isochrome_model::units::Cycles;

use super::{clock, memory::Arena};

impl Arena {
    /// Writes the chain `order` (each line of a page once, by number) into `page`, which makes the page resident.
    pub fn write_chain(&self, page: u32, order: &[u16], line_bytes: usize) {
        let base = self.page_ptr(page);
        for (line, next) in order.iter().zip(order.iter().cycle().skip(1)) {
            let (line, next) = (*line as usize * line_bytes, *next as usize * line_bytes);
            assert!(line + 8 <= super::memory::page_bytes());
            // SAFETY: `line` lies inside the page, which belongs to this arena, is writable and 8-byte aligned.
            unsafe { base.add(line).cast::<u64>().write_volatile(next as u64) };
        }
    }

    /// Reads every line of `pages` once, independent loads.
    #[inline]
    pub fn touch(&self, pages: &[u32], line_bytes: usize) {
        let page_bytes = super::memory::page_bytes();
        for page in pages {
            let base = self.page_ptr(*page);
            let mut offset = 0;
            while offset < page_bytes {
                // SAFETY: `offset` lies inside the page, which belongs to this arena.
                unsafe { base.add(offset).cast::<u64>().read_volatile() };
                offset += line_bytes;
            }
        }
    }

    /// Carries out `accesses` one after the other. Panics when one lies outside.
    #[inline]
    pub fn carry_out(&self, accesses: impl Iterator<Item = Access>) {
        let base = self.page_ptr(0);
        let size = self.page_count() * super::memory::page_bytes();
        for Access { offset, write } in accesses {
            let offset = offset.0 as usize & !7;
            assert!(offset < size, "an access at {offset} lies outside an arena of {size} bytes");
            // SAFETY: the offset was just checked to lie inside the mapping, which is page-aligned and holds a whole number
            // of pages, so the eight bytes there belong to it; volatile, as only the cache is to notice.
            unsafe {
                let word = base.add(offset).cast::<u64>();
                if write {
                    word.write_volatile(offset as u64);
                } else {
                    word.read_volatile();
                }
            }
        }
    }

    /// Time of a dependent walk over `steps` lines of `page` along its chain, beginning at byte `from` of the page.
    #[inline]
    pub fn walk(&self, page: u32, from: u64, steps: u32) -> Cycles {
        let base = self.page_ptr(page);
        let inside = super::memory::page_bytes() as u64 - 8;
        let mut offset = from;
        let begin = clock::now();
        for _ in 0..steps {
            // SAFETY: the mask keeps the load inside the page, which belongs to this arena, and 8-byte aligned, whatever
            // the page holds.
            offset = unsafe { base.add((offset & inside) as usize).cast::<u64>().read_volatile() };
        }
        std::hint::black_box(offset);
        let end = clock::now();
        Cycles(end.0 - begin.0)
    }
}
