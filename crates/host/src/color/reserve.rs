//! A reserve of frames of known color, which are handed over to other processes. [Liedtke1997, §5.1: the memory server]
//!
//! The kernel hands out the frame that was freed last on the same CPU, because the CPU's list of free frames is last in, first out. So memory
//! that is touched on a CPU just after frames of the reserve were freed there gets these frames. Other programs may take some of them in between.
//! The caller therefore reads afterwards which frames have arrived.

use isochrome_model::units::{Bytes, Color, FrameNumber};

use super::known::KnownColors;
use super::pagemap::frames;
use crate::error::SystemError;
use crate::sys::memory::{Arena, page_bytes};

/// Frames that this process holds, by their colors.
pub struct Reserve {
    arena: Arena,
    /// Pages of each color, ascending by frame number. The kernel hands out frames of its upper zone first, so these are given first.
    free: Vec<Vec<u32>>,
    /// Pages whose frames were given away.
    empty: Vec<u32>,
}

impl Reserve {
    /// Takes `size` of memory, and lists its frames by their colors in `known`.
    ///
    /// Frames of unknown color are held, but not listed. If they were freed, the kernel would hand them out again at once.
    pub fn new(known: &KnownColors, size: Bytes) -> Result<Reserve, SystemError> {
        let pages = (size.0 as usize / page_bytes()).max(1);
        let arena = Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?;
        let free = vec![Vec::new(); known.colors() as usize];
        let mut reserve = Reserve { arena, free, empty: (0..pages as u32).collect() };
        reserve.refill(known);
        Ok(reserve)
    }

    /// Takes new frames in place of those that were given away.
    pub fn refill(&mut self, known: &KnownColors) {
        for page in std::mem::take(&mut self.empty) {
            // A page that is only read has no frame of its own.
            self.arena.bytes_mut()[page as usize * page_bytes()] = 1;
        }
        self.list(known, frames(&self.arena, 0..self.arena.page_count()));
    }

    /// Lists the pages by the colors of their `frames`. Colors in `known` are added as they are measured, so a page may get a color later.
    fn list(&mut self, known: &KnownColors, frames: Vec<Option<FrameNumber>>) {
        let mut numbered: Vec<_> = (0u32..).zip(frames).filter_map(|(page, frame)| Some((frame?, page))).collect();
        numbered.sort_unstable_by_key(|(frame, _)| frame.0);
        self.free.iter_mut().for_each(Vec::clear);
        for (frame, page) in numbered {
            if let Some(color) = known.of_frame(frame) {
                self.free[usize::from(color.0)].push(page);
            }
        }
    }

    /// Returns the number of listed frames of `colors`.
    pub fn available(&self, colors: &[Color]) -> usize {
        colors.iter().filter_map(|color| self.free.get(usize::from(color.0))).map(Vec::len).sum()
    }

    /// Returns the number of frames that were given away and not replaced.
    pub fn given(&self) -> usize {
        self.empty.len()
    }

    /// Returns the number of pages that are held, of known color or not.
    pub fn held(&self) -> usize {
        self.arena.page_count() - self.empty.len()
    }

    /// Gives all frames back to the kernel.
    pub fn give_back(&mut self) {
        self.free.iter_mut().for_each(Vec::clear);
        self.empty = (0..self.arena.page_count() as u32).collect();
        self.empty.iter().for_each(|page| self.arena.release(*page));
    }

    /// Frees at most `count` frames, the same number of each of `colors` while it has any left. Returns how many were freed.
    ///
    /// The next pages that are touched on this CPU get these frames, so the caller must stay on the CPU.
    pub fn give(&mut self, colors: &[Color], count: usize) -> usize {
        let mut given = 0;
        while given < count {
            let round = given;
            for color in colors {
                if given < count
                    && let Some(page) = self.free.get_mut(usize::from(color.0)).and_then(Vec::pop)
                {
                    self.arena.release(page);
                    self.empty.push(page);
                    given += 1;
                }
            }
            if given == round {
                break;
            }
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_given_of_all_colors_alike_until_all_are_given() {
        let known = KnownColors::of_bits(16);
        let mut reserve = Reserve::new(&known, Bytes(4 << 20)).unwrap();
        // Page i is taken to have frame i, so each of the 16 colors has 64 pages.
        reserve.list(&known, (0..1024).map(|frame| Some(FrameNumber(frame))).collect());
        let colors = [Color(1), Color(2)];
        assert_eq!((reserve.available(&colors), reserve.held()), (128, 1024));
        assert_eq!(reserve.give(&colors, 20), 20);
        assert_eq!(colors.map(|color| reserve.available(&[color])), [54, 54]);
        assert_eq!((reserve.give(&colors, usize::MAX), reserve.given()), (108, 128));
        assert_eq!(reserve.give(&colors, 1), 0);
        reserve.refill(&known);
        assert_eq!((reserve.given(), reserve.held()), (0, 1024));
        reserve.give_back();
        assert_eq!((reserve.held(), reserve.available(&colors)), (0, 0));
    }
}
