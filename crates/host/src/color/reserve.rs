//! A reserve of frames of known color, which are handed over to other processes. [Liedtke1997, §5.1: the memory server]
//!
//! The kernel hands out the frame that was freed last on the same CPU, because the CPU's list of free frames is last in, first out. So memory
//! that is touched on a CPU just after frames of the reserve were freed there gets these frames. Other programs may take some of them in between.
//! The caller therefore reads afterwards which frames have arrived.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use isochrome_model::palette::decode::Answer;
use isochrome_model::units::{Bytes, Color, FrameNumber};

use super::error::ColorError;
use super::known::{KnownColors, all_colors};
use super::local::LocalEvictionTest;
use super::pagemap::frames;
use super::tester::{Effort, Tester};
use crate::error::SystemError;
use crate::sys::memory::{Arena, page_bytes};

/// Most frames that are measured at a time, and the time after which those without a decision are left for later. Meanwhile the server does
/// nothing else.
const MEASURED_AT_ONCE: usize = 4096;
const MEASURING: Effort = Effort { error: 1e-4, limit: Duration::from_millis(500) };

/// Frames that this process holds, by their colors.
pub struct Reserve {
    arena: Arena,
    /// Pages of each color, ascending by frame number. The kernel hands out frames of its upper zone first, so these are given first.
    free: Vec<Vec<u32>>,
    /// Pages whose frames were given away.
    empty: Vec<u32>,
    /// Pages of unknown color.
    unknown: Vec<u32>,
    /// Frames for which tests reached no decision.
    undecided: HashSet<FrameNumber>,
}

impl Reserve {
    /// Takes `size` of memory, and lists its frames by their colors in `known`.
    ///
    /// Frames of unknown color are held, but not listed until they are [measured](Self::measure). If they were freed, the kernel would hand them out
    /// again at once.
    pub fn new(known: &KnownColors, size: Bytes) -> Result<Reserve, SystemError> {
        let pages = (size.0 as usize / page_bytes()).max(1);
        let arena = Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?;
        let free = vec![Vec::new(); known.colors() as usize];
        let empty = (0..pages as u32).collect();
        let mut reserve = Reserve { arena, free, empty, unknown: Vec::new(), undecided: HashSet::new() };
        reserve.refill(known);
        Ok(reserve)
    }

    /// Takes new frames in place of those that were given away.
    pub fn refill(&mut self, known: &KnownColors) {
        self.undecided.clear();
        for page in std::mem::take(&mut self.empty) {
            // A page that is only read has no frame of its own.
            self.arena.bytes_mut()[page as usize * page_bytes()] = 1;
        }
        self.list_all(known);
    }

    fn list_all(&mut self, known: &KnownColors) {
        let frames = frames(&self.arena, 0..self.arena.page_count());
        known.hold(std::process::id() as i32, frames.iter().flatten().copied().collect());
        self.list(known, frames);
    }

    /// Lists the pages by the colors of their `frames`. Colors in `known` are added as they are measured, so a page may get a color later.
    fn list(&mut self, known: &KnownColors, frames: Vec<Option<FrameNumber>>) {
        let mut numbered: Vec<_> = (0u32..).zip(frames).filter_map(|(page, frame)| Some((frame?, page))).collect();
        numbered.sort_unstable_by_key(|(frame, _)| frame.0);
        self.free.iter_mut().for_each(Vec::clear);
        self.unknown.clear();
        for (frame, page) in numbered {
            match known.of_frame(frame) {
                Some(color) => self.free[usize::from(color.0)].push(page),
                None if self.undecided.contains(&frame) => {}
                None => self.unknown.push(page),
            }
        }
    }

    /// Whether there are frames of unknown color that were not measured yet.
    pub fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Measures the colors of some frames of unknown color by tests of `tester`, and lists them.
    ///
    /// Fails as [`Tester::classify`] does. Frames for which no decision is reached stay unlisted.
    pub fn measure(&mut self, known: &KnownColors, tester: &mut Tester<LocalEvictionTest>) -> Result<(), ColorError> {
        let pages: Vec<u32> = self.unknown.iter().copied().take(MEASURED_AT_ONCE).collect();
        let before = frames(&self.arena, 0..self.arena.page_count());
        let instead = Arena::map(1).map_err(|source| SystemError::Memory { pages: 1, source })?;
        let first = tester.eviction_test.set_second(std::mem::replace(&mut self.arena, instead), &pages, false);
        let numbers: Vec<u32> = pages.iter().map(|page| first + page).collect();
        let begin = Instant::now();
        let answers = tester.classify(&numbers, &all_colors(known), MEASURING);
        let was_cut_short = begin.elapsed() >= MEASURING.limit;
        self.arena = tester.eviction_test.take_second().expect("the tester still has the second memory");
        for (page, answer) in pages.into_iter().zip(answers?) {
            // The kernel may have moved the page to another frame meanwhile.
            let now = frames(&self.arena, page as usize..page as usize + 1)[0];
            let Some(frame) = now.filter(|_| now == before[page as usize]) else { continue };
            match answer {
                Some(Answer::Color(color)) => known.learn_frame(std::process::id() as i32, frame, color),
                None if was_cut_short => {}
                _ => drop(self.undecided.insert(frame)),
            }
        }
        self.list(known, frames(&self.arena, 0..self.arena.page_count()));
        Ok(())
    }

    /// Returns the number of frames of known color.
    pub fn listed(&self) -> usize {
        self.free.iter().map(Vec::len).sum()
    }

    /// Returns the number of listed frames of each of `colors`.
    pub fn available(&self, colors: &[Color]) -> Vec<usize> {
        colors.iter().map(|color| self.free.get(usize::from(color.0)).map_or(0, Vec::len)).collect()
    }

    /// Returns the number of frames that were given away and not replaced.
    pub fn given(&self) -> usize {
        self.empty.len()
    }

    /// Returns the number of pages that are held, of known color or not.
    pub fn held(&self) -> usize {
        self.arena.page_count() - self.empty.len()
    }

    /// Gives all frames back to the kernel. Where free frames change, their colors are forgotten.
    pub fn give_back(&mut self, known: &KnownColors) {
        known.hold(std::process::id() as i32, Vec::new());
        self.free.iter_mut().for_each(Vec::clear);
        self.unknown.clear();
        self.empty = (0..self.arena.page_count() as u32).collect();
        self.empty.iter().for_each(|page| self.arena.release(*page));
    }

    /// Frees at most `count` frames of `colors`, of each color at most as many as its place in `numbers` states, and lowers these numbers. Returns
    /// how many were freed.
    ///
    /// The next pages that are touched on this CPU get these frames, so the caller must stay on the CPU.
    pub fn give(&mut self, colors: &[Color], numbers: &mut [usize], count: usize) -> usize {
        let mut given = 0;
        while given < count {
            let round = given;
            for (color, number) in colors.iter().zip(&mut *numbers) {
                if given < count
                    && *number > 0
                    && let Some(page) = self.free.get_mut(usize::from(color.0)).and_then(Vec::pop)
                {
                    self.arena.release(page);
                    self.empty.push(page);
                    given += 1;
                    *number -= 1;
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
    fn as_many_frames_of_each_color_are_given_as_requested_and_left() {
        let known = KnownColors::of_bits(16);
        let mut reserve = Reserve::new(&known, Bytes(4 << 20)).unwrap();
        // Page i is taken to have frame i, so each of the 16 colors has 64 pages.
        reserve.list(&known, (0..1024).map(|frame| Some(FrameNumber(frame))).collect());
        let colors = [Color(1), Color(2)];
        assert_eq!((reserve.available(&colors), reserve.held()), (vec![64, 64], 1024));
        let mut numbers = [30, 5];
        assert_eq!((reserve.give(&colors, &mut numbers, 20), numbers), (20, [15, 0]));
        assert_eq!(reserve.available(&colors), [49, 59]);
        assert_eq!((reserve.give(&colors, &mut numbers, 20), numbers), (15, [0, 0]));
        // No more are left than these.
        assert_eq!((reserve.give(&colors, &mut [1000, 0], 1000), reserve.given()), (34, 69));
        assert_eq!(reserve.give(&colors, &mut [1, 0], 1), 0);
        reserve.refill(&known);
        assert_eq!((reserve.given(), reserve.held()), (0, 1024));
        reserve.give_back(&known);
        assert_eq!((reserve.held(), reserve.available(&colors)), (0, vec![0, 0]));
    }
}
