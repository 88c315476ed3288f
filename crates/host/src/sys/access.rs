//! Touching and timing whole pages, line by line.
//!
//! Every page used here carries the same chain: the first word of each line holds the offset, within the page, of the
//! next line to visit. The order is random so that no prefetcher predicts it, and relative so that it survives a move.
//! For load latency one chain goes through a whole arena instead.

use std::ops::Range;

use isochrome_model::flood::Access;
use isochrome_model::units::{Bytes, Cycles};

use super::clock;
use super::memory::{Arena, page_bytes};

/// Panics unless a page is a whole number of lines of `line_bytes` bytes, each of which begins with an aligned word.
///
/// The size of a page is a power of two, so valid sizes are the powers of two from a word to a page. The check needs no division, because
/// [`Arena::touch`] makes it within measured time.
#[inline]
fn assert_page_is_whole_lines(line_bytes: usize) {
    assert!(
        line_bytes.is_power_of_two() && (8..=page_bytes()).contains(&line_bytes),
        "no page is made of lines of {line_bytes} bytes that hold an aligned word"
    );
}

impl Arena {
    /// Writes the chain `order` (each line of a page once, by number) into `page`, which makes the page resident.
    ///
    /// Panics if a line lies outside the page.
    pub fn write_chain(&self, page: u32, order: &[u16], line_bytes: usize) {
        assert_page_is_whole_lines(line_bytes);
        let last = order.iter().max().map_or(0, |line| *line as usize * line_bytes);
        assert!(last < page_bytes(), "a line at {last} lies outside a page");
        let base = self.page_ptr(page);
        for (line, next) in order.iter().zip(order.iter().cycle().skip(1)) {
            let (line, next) = (*line as usize * line_bytes, *next as usize * line_bytes);
            // SAFETY: `line` is no further than the last line, which was checked to begin inside the page, and it begins at a
            // multiple of the line size, which was checked to be at least 8 and to divide the page: so the eight bytes there
            // are aligned and inside the page, which belongs to this arena.
            unsafe { base.add(line).cast::<u64>().write_volatile(next as u64) };
        }
    }

    /// Reads every line of `pages` once, by independent loads. Panics if a page lies outside the arena, or is not a whole number of lines.
    #[inline]
    pub fn touch(&self, pages: &[u32], line_bytes: usize) {
        assert_page_is_whole_lines(line_bytes);
        let page_bytes = page_bytes();
        for page in pages {
            let base = self.page_ptr(*page);
            let mut offset = 0;
            while offset < page_bytes {
                // SAFETY: `offset` is below the end of the page, which belongs to this arena, and a multiple of the line size,
                // which was checked to be at least 8 and to divide the page: the eight bytes there are aligned and inside.
                unsafe { base.add(offset).cast::<u64>().read_volatile() };
                offset += line_bytes;
            }
        }
    }

    /// Reads the given `lines` of each of `pages` once, by independent loads. Panics if a line lies outside its page.
    #[inline]
    pub fn touch_lines(&self, pages: &[u32], lines: &[u16], line_bytes: usize) {
        assert_page_is_whole_lines(line_bytes);
        let last = lines.iter().max().map_or(0, |line| *line as usize * line_bytes);
        assert!(last < page_bytes(), "a line at {last} lies outside a page");
        for page in pages {
            let base = self.page_ptr(*page);
            for line in lines {
                // SAFETY: no line is further than the last, which was checked to begin inside the page, and each begins at a multiple of the
                // line size, which was checked to be at least 8 and to divide the page, which belongs to this arena.
                unsafe { base.add(*line as usize * line_bytes).cast::<u64>().read_volatile() };
            }
        }
    }

    /// Carries out `accesses` one after the other. Panics when one lies outside the arena.
    #[inline]
    pub fn carry_out(&self, accesses: impl Iterator<Item = Access>) {
        let base = self.page_ptr(0);
        let size = self.page_count() * page_bytes();
        for Access { offset, write } in accesses {
            let offset = offset.0 as usize & !7;
            assert!(offset < size, "an access at {offset} lies outside an arena of {size} bytes");
            // SAFETY: the offset was just checked to lie inside the mapping, which is page-aligned and holds a whole number of pages, so the
            // eight bytes there belong to the mapping. The accesses are volatile, because their values are not used.
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

    /// Returns the time of a walk of `steps` dependent loads over `page` along its chain, beginning at byte `from` of the page.
    #[inline]
    pub fn walk(&self, page: u32, from: u64, steps: u32) -> Cycles {
        let base = self.page_ptr(page);
        let inside = page_bytes() as u64 - 8;
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

    /// Extends the chain over the first `lines.start` lines of the arena to its first `lines.end` lines. The first word of each line holds
    /// the offset, within the arena, of the next. If `lines.start` is 0, it begins a new chain.
    ///
    /// Each line is inserted behind a random line of the chain, which makes all cyclic orders equally likely.
    pub fn extend_chain(&self, lines: Range<usize>, line_bytes: usize, rng: &mut fastrand::Rng) {
        let size = self.page_count() * page_bytes();
        assert_page_is_whole_lines(line_bytes);
        assert!(lines.end <= size / line_bytes, "{} lines lie outside an arena of {size} bytes", lines.end);
        let base = self.page_ptr(0);
        for line in lines {
            let before = if line == 0 { 0 } else { rng.usize(0..line) } * line_bytes;
            let offset = line * line_bytes;
            // SAFETY: `line` is below the end that was checked to lie inside the mapping, the line before it is no higher, and
            // both offsets are multiples of 8 from a page boundary, so the eight bytes there belong to the arena.
            unsafe {
                let (before, new) = (base.add(before).cast::<u64>(), base.add(offset).cast::<u64>());
                let next = if line == 0 { 0 } else { before.read_volatile() };
                new.write_volatile(next);
                before.write_volatile(if line == 0 { 0 } else { offset as u64 });
            }
        }
    }

    /// Writes chains through the arena: the first word at each offset holds the offset of the line that follows.
    ///
    /// Panics if an offset lies outside the arena, or is not aligned to a word.
    pub fn link(&self, links: impl Iterator<Item = (Bytes, Bytes)>) {
        let base = self.page_ptr(0);
        let size = (self.page_count() * page_bytes()) as u64;
        for (Bytes(from), Bytes(to)) in links {
            let inside = |offset: u64| offset.is_multiple_of(8) && offset < size;
            assert!(inside(from) && inside(to), "a link from {from} to {to} in an arena of {size} bytes");
            // SAFETY: the offset was just checked to be aligned and, as the size is a multiple of eight, to leave eight bytes to the
            // end of the mapping, which belongs to this arena.
            unsafe { base.add(from as usize).cast::<u64>().write_volatile(to) };
        }
    }

    /// Follows `N` chains for `steps` loads each, beginning at `from`. Only loads of the same chain wait for each other.
    ///
    /// Panics if a chain leaves the arena.
    #[inline]
    pub fn chase_together<const N: usize>(&self, mut from: [u64; N], steps: usize) {
        let base = self.page_ptr(0);
        let last = (self.page_count() * page_bytes() - 8) as u64;
        for _ in 0..steps {
            for offset in &mut from {
                assert!((*offset <= last) & offset.is_multiple_of(8), "a chain leaves the arena at {offset}");
                // SAFETY: the offset was just checked to be aligned and to leave eight bytes to the end of the mapping, whatever
                // the arena holds.
                *offset = unsafe { base.add(*offset as usize).cast::<u64>().read_volatile() };
            }
        }
        std::hint::black_box(from);
    }

    /// Follows the arena's chain for `steps` dependent loads from byte `from` on, and returns the byte where it continues and the time.
    ///
    /// Panics when the chain leaves the arena. The check is a branch that the processor predicts, so it adds nothing to the
    /// latency of the chain, which a mask would.
    #[inline]
    pub fn chase(&self, from: u64, steps: u32) -> (u64, Cycles) {
        let base = self.page_ptr(0);
        let last = (self.page_count() * page_bytes() - 8) as u64;
        let mut offset = from;
        let begin = clock::now();
        for _ in 0..steps {
            assert!((offset <= last) & offset.is_multiple_of(8), "the chain leaves the arena at {offset}");
            // SAFETY: the offset was just checked to be aligned and to leave eight bytes to the end of the mapping, whatever
            // the arena holds.
            offset = unsafe { base.add(offset as usize).cast::<u64>().read_volatile() };
        }
        std::hint::black_box(offset);
        let end = clock::now();
        (offset, Cycles(end.0 - begin.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_grows_visits_every_line_once() {
        let arena = Arena::map(4).unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let mut from = 0;
        for end in [1, 2, 64, 200] {
            arena.extend_chain(from..end, 64, &mut rng);
            from = end;
            let mut seen = vec![false; end];
            let mut offset = 0;
            for _ in 0..end {
                offset = arena.chase(offset, 1).0;
                assert!(!std::mem::replace(&mut seen[offset as usize / 64], true));
            }
            assert_eq!(offset, 0);
        }
    }

    #[test]
    fn chains_are_linked_as_they_are_meant_and_links_outside_are_refused() {
        let arena = Arena::map(1).unwrap();
        let offsets = [0u64, 640, 64, 4088];
        let cycle = offsets.iter().zip(offsets.iter().cycle().skip(1));
        arena.link(cycle.map(|(from, to)| (Bytes(*from), Bytes(*to))));
        let mut offset = 0;
        for expected in [640, 64, 4088, 0] {
            offset = arena.chase(offset, 1).0;
            assert_eq!(offset, expected);
        }
        arena.chase_together([0, 64], 9);
        for outside in [page_bytes() as u64, 4, u64::MAX] {
            let link = || arena.link([(Bytes(outside), Bytes(0))].into_iter());
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(link)).is_err(), "{outside}");
        }
    }

    #[test]
    fn lines_that_do_not_make_up_a_page_are_refused() {
        let arena = Arena::map(1).unwrap();
        for line_bytes in [0, 3, 4, 24, 4093, page_bytes() - 8, 2 * page_bytes()] {
            let refused = |access: &dyn Fn()| {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(access));
                assert!(outcome.is_err(), "lines of {line_bytes} bytes");
            };
            refused(&|| arena.touch(&[0], line_bytes));
            refused(&|| arena.write_chain(0, &[0], line_bytes));
            refused(&|| arena.extend_chain(0..1, line_bytes, &mut fastrand::Rng::with_seed(1)));
        }
        for line_bytes in [8, 64, page_bytes()] {
            arena.write_chain(0, &[0, (page_bytes() / line_bytes - 1) as u16], line_bytes);
            arena.touch(&[0], line_bytes);
        }
    }

    #[test]
    #[should_panic(expected = "lies outside a page")]
    fn a_chain_with_a_line_outside_its_page_is_not_written() {
        let arena = Arena::map(2).unwrap();
        arena.write_chain(0, &[0, (page_bytes() / 64) as u16], 64);
    }

    #[test]
    #[should_panic(expected = "leaves the arena")]
    fn a_chain_that_leaves_the_arena_is_not_followed() {
        let mut arena = Arena::map(1).unwrap();
        arena.bytes_mut()[..8].copy_from_slice(&(1u64 << 40).to_ne_bytes());
        arena.chase(0, 2);
    }
}
