//! Memory of chosen colors.
//!
//! A [`FramePool`] holds pages of known colors. A [`ColoredRegion`] is contiguous memory made of some of these pages, with its colors in
//! rotation, so that a task uses its colors in the same manner in every run. [Kim2013, §4.2 and Fig. 7] Pages that were given back are reused
//! first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isochrome_model::units::{Bytes, Color, format_list};

use crate::color::error::ColorError;
use crate::error::SystemError;
use crate::sys::heap;
use crate::sys::memory::{Arena, page_bytes};
use crate::sys::moving::{MoveError, Mover};

/// A pool of pages of known colors, which can be taken and given back.
pub struct FramePool(Arc<Mutex<Stock>>);

struct Stock {
    arena: Arena,
    mover: Mover,
    /// Free pages of each color. The last page is taken first.
    free: Vec<Vec<u32>>,
}

impl FramePool {
    /// Creates a pool of the pages of `arena` whose color is known. The frames of the other pages go back to the system.
    ///
    /// `page_colors`: color of page i of the arena. `colors`: number of colors.
    pub fn new(arena: Arena, page_colors: &[Option<Color>], colors: u32) -> FramePool {
        let mut free = vec![Vec::new(); colors as usize];
        for page in (0..arena.page_count() as u32).rev() {
            match page_colors.get(page as usize).copied().flatten() {
                Some(color) => free[usize::from(color.0)].push(page),
                None => arena.release(page),
            }
        }
        FramePool(Arc::new(Mutex::new(Stock { arena, mover: Mover::open(), free })))
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        // A panic while the pool was locked may have lost pages, but cannot have handed out a page twice.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuffles the free pages of every color, so that the next region consists of other pages.
    pub fn shuffle(&self, rng: &mut fastrand::Rng) {
        for pages in &mut self.stock().free {
            rng.shuffle(pages);
        }
    }

    /// Returns the number of colors.
    pub fn colors(&self) -> u32 {
        self.stock().free.len() as u32
    }

    /// Returns the number of free pages of each color.
    pub fn available(&self) -> Vec<usize> {
        self.stock().free.iter().map(Vec::len).collect()
    }

    /// Takes `pages` pages from the pool as contiguous memory, in which page i has color `colors[i % colors.len()]`.
    ///
    /// Fails, and takes nothing, when a color is out of range or has too few free pages, or when pages cannot be moved.
    pub fn take(&self, colors: &[Color], pages: usize) -> Result<ColoredRegion, ColorError> {
        if colors.is_empty() || pages == 0 {
            return Err(ColorError::NothingAsked);
        }
        let mut stock = self.stock();
        let count = stock.free.len();
        for (i, color) in colors.iter().enumerate() {
            let free =
                stock.free.get(usize::from(color.0)).ok_or(ColorError::NoSuchColor { color: color.0, count })?.len();
            // A color that is named more than once needs the pages of every mention.
            let mentions = colors.iter().filter(|c| *c == color).count();
            let wanted = pages / colors.len() * mentions + usize::from(i < pages % colors.len());
            if free < wanted {
                return Err(ColorError::ColorExhausted { color: color.0, wanted, free });
            }
        }
        let memory = Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?;
        let indices: Vec<u32> = (0..pages as u32).collect();
        let taken: Vec<u32> = colors
            .iter()
            .cycle()
            .take(pages)
            .map(|color| stock.free[usize::from(color.0)].pop().expect("the stock of every color was checked"))
            .collect();
        let mut region = ColoredRegion { memory, colors: colors.to_vec(), pages: taken, stock: Arc::clone(&self.0) };
        let mut begin = 0;
        loop {
            let (from, to) = (&region.pages[begin..], &indices[begin..]);
            let Err(MoveError { moved, source }) = stock.mover.move_pages(&stock.arena, from, &region.memory, to)
            else {
                drop(stock);
                return Ok(region);
            };
            begin += moved;
            let color = usize::from(region.color_of(begin).0);
            // A page without a frame is not listed any more: another one of its color takes its place.
            if source.raw_os_error() == Some(libc::ENOENT)
                && let Some(other) = stock.free[color].pop()
            {
                region.pages[begin] = other;
                continue;
            }
            // Pages that were not moved are still in the pool's arena. Moving them back would replace them by the region's empty pages.
            // The moved pages go back when the region is dropped, which locks the pool.
            let colors: Vec<Color> = region.page_colors().skip(begin).collect();
            for (page, color) in region.pages.drain(begin..).zip(colors).rev() {
                stock.free[usize::from(color.0)].push(page);
            }
            drop(stock);
            return Err(ColorError::MoveFailed { pages, source });
        }
    }
}

/// Contiguous memory whose pages have the chosen colors in rotation. Its pages return to the pool on drop.
pub struct ColoredRegion {
    memory: Arena,
    colors: Vec<Color>,
    /// Number of each page in the pool.
    pages: Vec<u32>,
    stock: Arc<Mutex<Stock>>,
}

impl ColoredRegion {
    /// Returns the memory, which holds what earlier users left in it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// Returns the mapping, to be filled with contents other than plain data.
    pub fn arena_mut(&mut self) -> &mut Arena {
        &mut self.memory
    }

    /// Returns the mapping, for access by page.
    pub fn arena(&self) -> &Arena {
        &self.memory
    }

    /// Returns the size of the region.
    pub fn size(&self) -> Bytes {
        Bytes((self.pages.len() * page_bytes()) as u64)
    }

    fn color_of(&self, page: usize) -> Color {
        self.colors[page % self.colors.len()]
    }

    /// Returns the color of each page.
    pub fn page_colors(&self) -> impl Iterator<Item = Color> + '_ {
        self.colors.iter().copied().cycle().take(self.pages.len())
    }
}

impl heap::sealed::Sealed for ColoredRegion {}

impl heap::BackingMemory for ColoredRegion {
    fn arena(&self) -> &Arena {
        &self.memory
    }
}

impl std::fmt::Debug for ColoredRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let colors: Vec<u32> = self.colors.iter().map(|c| u32::from(c.0)).collect();
        write!(f, "ColoredRegion({}, colors {})", self.size(), format_list(&colors))
    }
}

impl Drop for ColoredRegion {
    fn drop(&mut self) {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        let indices: Vec<u32> = (0..self.pages.len() as u32).collect();
        let moved = match stock.mover.move_pages(&self.memory, &indices, &stock.arena, &self.pages) {
            Ok(()) => self.pages.len(),
            Err(error) => error.moved,
        };
        // Pages that cannot be moved back are freed with the mapping. Their indices in the pool are empty and are never listed again, so the
        // pool only shrinks.
        for (i, page) in self.pages[..moved].iter().enumerate().rev() {
            let color = self.colors[i % self.colors.len()];
            stock.free[usize::from(color.0)].push(*page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a pool of 64 pages in 4 colors, where page i has color i % 4. It involves no cache.
    fn pool() -> FramePool {
        let mut arena = Arena::map(64).unwrap();
        for (i, page) in arena.bytes_mut().chunks_mut(page_bytes()).enumerate() {
            page[0] = i as u8;
        }
        let colors: Vec<Option<Color>> = (0..64).map(|i| Some(Color(i % 4))).collect();
        FramePool::new(arena, &colors, 4)
    }

    /// Lets the pool move `pages` more pages, and then fail once or for good.
    fn tire_after(pool: &FramePool, pages: usize, for_good: bool) {
        pool.stock().mover = Mover::Tiring { left: pages.into(), for_good };
    }

    #[test]
    fn a_page_that_has_lost_its_frame_is_replaced_by_another_one_of_its_color() {
        let pool = pool();
        // The next page of color 1 and the one after it.
        let lost: Vec<u32> = pool.stock().free[1].iter().rev().take(2).copied().collect();
        lost.iter().for_each(|page| pool.stock().arena.release(*page));
        let before = pool.available();
        let mut region = pool.take(&[Color(0), Color(1)], 8).unwrap();
        let found: Vec<u8> = region.bytes_mut().chunks(page_bytes()).map(|page| page[0] % 4).collect();
        assert_eq!(found, [0, 1, 0, 1, 0, 1, 0, 1]);
        drop(region);
        assert_eq!(
            pool.available(),
            [before[0], before[1] - 2, before[2], before[3]],
            "lost pages are not listed again"
        );
        assert_listed_pages_are_intact(&pool);
    }

    /// Takes every page that the pool lists, and checks that each still has the frame it was listed with.
    fn assert_listed_pages_are_intact(pool: &FramePool) {
        pool.stock().mover = Mover::open();
        for (color, free) in pool.available().into_iter().enumerate().filter(|(_, free)| *free > 0) {
            let mut region = pool.take(&[Color(color as u16)], free).unwrap();
            let mut origins = origins(&mut region);
            origins.sort_unstable();
            origins.dedup();
            assert_eq!(origins.len(), free, "every page is listed once");
            // An empty page would read 0, which is the mark of page 0 alone.
            assert!(origins.iter().all(|page| usize::from(page % 4) == color));
        }
    }

    /// Returns the pool's own number of each page of a region, which [`pool`] wrote into its first byte.
    fn origins(region: &mut ColoredRegion) -> Vec<u8> {
        region.bytes_mut().chunks(page_bytes()).map(|page| page[0]).collect()
    }

    #[test]
    fn pool_hands_out_only_the_colors_asked_for_in_turn() {
        let pool = pool();
        let mut region = pool.take(&[Color(1), Color(3)], 5).unwrap();
        assert_eq!(origins(&mut region).iter().map(|page| page % 4).collect::<Vec<_>>(), [1, 3, 1, 3, 1]);
        assert_eq!(region.page_colors().collect::<Vec<_>>(), [1, 3, 1, 3, 1].map(Color));
        assert_eq!(pool.available(), [16, 13, 16, 14]);
    }

    #[test]
    fn returned_pages_are_reused_first() {
        let pool = pool();
        let mut first = pool.take(&[Color(0), Color(2)], 6).unwrap();
        let origin = origins(&mut first);
        drop(first);
        assert_eq!(pool.available(), [16; 4]);
        let mut second = pool.take(&[Color(0), Color(2)], 6).unwrap();
        assert_eq!(origins(&mut second), origin);
    }

    #[test]
    fn a_region_keeps_what_is_written_while_others_come_and_go() {
        let pool = pool();
        let mut kept = pool.take(&[Color(0)], 8).unwrap();
        kept.bytes_mut().fill(0xa5);
        for _ in 0..10 {
            let mut other = pool.take(&[Color(0), Color(1)], 16).unwrap();
            other.bytes_mut().fill(0);
        }
        assert!(kept.bytes_mut().iter().all(|byte| *byte == 0xa5));
    }

    #[test]
    fn a_move_that_fails_midway_takes_nothing() {
        for moved in [0, 1, 5, 7] {
            let pool = pool();
            let free = pool.stock().free.clone();
            tire_after(&pool, moved, false);
            assert!(matches!(pool.take(&[Color(1), Color(3)], 8), Err(ColorError::MoveFailed { pages: 8, .. })));
            assert_eq!(pool.stock().free, free);
            assert_listed_pages_are_intact(&pool);
        }
    }

    #[test]
    fn a_move_that_fails_midway_and_cannot_be_undone_loses_only_what_was_moved() {
        for moved in [0, 1, 5, 7] {
            let pool = pool();
            tire_after(&pool, moved, true);
            assert!(matches!(pool.take(&[Color(1), Color(3)], 8), Err(ColorError::MoveFailed { pages: 8, .. })));
            assert_eq!(pool.available().iter().sum::<usize>(), 64 - moved);
            assert_listed_pages_are_intact(&pool);
        }
    }

    #[test]
    fn a_region_of_which_a_part_cannot_be_moved_back_returns_the_other_part() {
        let pool = pool();
        let region = pool.take(&[Color(1), Color(3)], 8).unwrap();
        tire_after(&pool, 3, true);
        drop(region);
        // Of the pages with colors 1, 3, 1, 3, 1, 3, 1, 3 the first three came back.
        assert_eq!(pool.available(), [16, 14, 16, 13]);
        assert_listed_pages_are_intact(&pool);
    }

    #[test]
    fn what_cannot_be_supplied_is_refused_and_nothing_is_taken() {
        let pool = pool();
        assert!(matches!(pool.take(&[Color(4)], 1), Err(ColorError::NoSuchColor { color: 4, count: 4 })));
        assert!(matches!(
            pool.take(&[Color(2)], 17),
            Err(ColorError::ColorExhausted { color: 2, wanted: 17, free: 16 })
        ));
        // Color 0 is named twice: 32 pages over (0, 0, 1) need 22 pages of color 0.
        assert!(matches!(
            pool.take(&[Color(0), Color(0), Color(1)], 32),
            Err(ColorError::ColorExhausted { color: 0, .. })
        ));
        assert!(matches!(pool.take(&[], 1), Err(ColorError::NothingAsked)));
        assert!(matches!(pool.take(&[Color(0)], 0), Err(ColorError::NothingAsked)));
        assert_eq!(pool.available(), [16; 4]);
    }
}
