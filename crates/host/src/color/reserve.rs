//! A reserve of frames of known color, which are handed over to other processes. [Liedtke1997, §5.1: the memory server]
//!
//! The kernel hands out the frame that was freed last on the same CPU, because the CPU's list of free frames is last in, first out. So memory
//! that is touched on a CPU just after frames of the reserve were freed there gets these frames. Other programs may take some of them in between.
//! The caller therefore reads afterwards which frames have arrived.

use std::time::{Duration, Instant};

use isochrome_model::palette::decode::Answer;
use isochrome_model::units::{Bytes, Color, FrameNumber};
use rustc_hash::FxHashSet;

use super::error::ColorError;
use super::known::{KnownColors, all_colors};
use super::local::LocalEvictionTest;
use super::pagemap::{frames, frames_of};
use super::stock::{State, Step, Stock};
use super::tester::{Effort, Tester};
use crate::error::SystemError;
use crate::machine::sysfs::Sysfs;
use crate::process::Pid;
use crate::sys::memory::{Arena, page_bytes};

/// Largest number of frames that are measured at a time, and time after which undecided frames are left for later. The server does nothing else
/// during a measurement.
const MEASURED_AT_ONCE: usize = 2048;
const MEASURING: Effort = Effort { error: 1e-4, limit: Duration::from_millis(500) };

/// Time after which a [search](Reserve::find) takes no more memory.
const SEARCHING: Duration = Duration::from_secs(2);

/// Largest multiple of its size that a reserve holds while it searches for frames of its colors.
const ROOM: usize = 8;
/// Divisor of the memory that would be available without the reserve. The quotient is the other limit of what it holds during a search.
const PART: usize = 4;

/// Frames that this process holds, by their colors.
pub struct Reserve {
    arena: Arena,
    /// Number of pages that had a frame so far: the first ones of the arena.
    begun: usize,
    /// Whether more memory is taken where frames are lacking.
    searches: bool,
    /// The frames that refills provide.
    stock: Stock,
    /// Pages of each color, ascending by frame number but for those that were measured since the last listing. The kernel hands out frames of its upper
    /// zone first, so these are given first.
    free: Vec<Vec<u32>>,
    /// Pages whose frames were given away.
    empty: Vec<u32>,
    /// Pages of unknown color.
    unknown: Vec<u32>,
    /// Frames for which tests reached no decision, or that have none of the colors that were needed.
    undecided: FxHashSet<FrameNumber>,
}

impl Reserve {
    /// Takes `size` of memory, and lists its frames by their colors in `known`.
    ///
    /// Frames of unknown color are held, but not listed until they are [measured](Self::measure). If they were freed, the kernel would hand them out
    /// again at once.
    pub fn new(known: &KnownColors, size: Bytes) -> Result<Reserve, SystemError> {
        let mut reserve = Reserve { searches: false, ..Reserve::searching(known, size)? };
        reserve.take(reserve.arena.page_count());
        reserve.list_all(known);
        Ok(reserve)
    }

    /// Returns a reserve without frames that can [provide](Self::provide) `size` of memory.
    pub fn stocking(known: &KnownColors, size: Bytes) -> Result<Reserve, SystemError> {
        // Where the kernel promises no more memory than there is, the reserve searches in what it may have.
        let mapped = Reserve::searching(known, Bytes(size.0.saturating_mul(ROOM as u64)));
        Ok(Reserve { searches: false, ..mapped.or_else(|_| Reserve::searching(known, size))? })
    }

    /// Whether the reserve can search for `size` of memory.
    pub fn has_room_for(&self, size: Bytes) -> bool {
        (size.0 as usize / page_bytes()).saturating_mul(ROOM) <= self.arena.page_count()
    }

    /// Has [refills](Self::refill) provide `size` of memory in frames of `colors`, of each color alike.
    ///
    /// A reserve of any frames would have few of the colors that are needed after some time: frames of these colors are given away, and the frames that
    /// the kernel gives instead have any color.
    pub fn provide(&mut self, size: Bytes, colors: &[Color]) {
        let mut numbers = vec![0; self.free.len()];
        let each = (size.0 as usize / page_bytes()).div_ceil(colors.len().max(1));
        colors.iter().for_each(|color| numbers[usize::from(color.0)] = each);
        if numbers != self.stock.numbers() {
            self.stock = Stock::new(numbers);
            // They may have one of the new colors.
            self.undecided.clear();
        }
    }

    /// Returns a reserve without frames, which [searches](Self::find) for those that are needed and takes at most `limit` of memory for it.
    pub fn searching(known: &KnownColors, limit: Bytes) -> Result<Reserve, SystemError> {
        let pages = (limit.0 as usize / page_bytes()).max(1);
        let arena = Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?;
        let free = vec![Vec::new(); known.colors() as usize];
        Ok(Reserve {
            arena,
            begun: 0,
            searches: true,
            stock: Stock::new(vec![0; free.len()]),
            free,
            empty: Vec::new(),
            unknown: Vec::new(),
            undecided: FxHashSet::default(),
        })
    }

    /// Takes some frames if too few of those that the reserve [provides](Self::provide) are left, or gives back what a search did not need. To be called
    /// again and again, and [`measure`](Self::measure) in between. `may_search`: whether there is enough memory.
    pub fn refill(&mut self, known: &KnownColors, may_search: bool) {
        let counts: Vec<usize> = self.free.iter().map(Vec::len).collect();
        let awaits_tests = self.has_unknown() && known.reference().is_some();
        let state = State { counts: &counts, held: self.held(), limit: self.limit(), awaits_tests, may_search };
        match self.stock.step(&state, Instant::now()) {
            Step::Wait => return,
            Step::Take(count) => self.take(count),
            Step::GiveBack => self.give_back_surplus(),
        }
        self.list_all(known);
        if self.held() > 0 && self.listed() + self.unknown.len() + self.undecided.len() == 0 {
            // The kernel hides frame numbers.
            self.give_back(known);
        }
    }

    /// Returns the number of pages that the reserve may hold during a search.
    fn limit(&self) -> usize {
        let pages = |bytes: Option<Bytes>| bytes.map_or(usize::MAX, |bytes| bytes.0 as usize / page_bytes());
        let free =
            pages(Sysfs::system().memory("MemAvailable")).min(pages(Pid(std::process::id() as i32).memory_room()));
        let all = self.held().saturating_add(free);
        let most = (self.stock.pages().saturating_mul(ROOM)).min(all / PART).max(self.stock.pages());
        most.min(self.held().saturating_add(free / 10 * 9)).min(self.arena.page_count())
    }

    /// Gives all frames back to the kernel that the reserve does not provide, of known color or not.
    fn give_back_surplus(&mut self) {
        let mut kept = vec![false; self.begun];
        for (number, pages) in self.stock.numbers().iter().zip(&mut self.free) {
            // Those that would be given first are kept.
            pages.drain(..pages.len().saturating_sub(*number));
            pages.iter().for_each(|page| kept[*page as usize] = true);
        }
        self.release_all_but(&kept);
    }

    /// Gives the frames of all pages back to the kernel but those that are `kept`.
    fn release_all_but(&mut self, kept: &[bool]) {
        self.unknown.clear();
        self.undecided.clear();
        let mut stays = kept.to_vec();
        self.empty.iter().for_each(|page| stays[*page as usize] = true);
        let released = (0..self.begun as u32).filter(|page| !stays[*page as usize]);
        for page in released {
            self.arena.release(page);
            self.empty.push(page);
        }
    }

    /// Takes frames for up to `count` pages without a frame, first for the pages whose frames were given away.
    fn take(&mut self, count: usize) {
        let emptied = self.empty.split_off(self.empty.len() - count.min(self.empty.len()));
        let end = self.arena.page_count().min(self.begun + count - emptied.len());
        let fresh = std::mem::replace(&mut self.begun, end)..end;
        for page in emptied.into_iter().map(|page| page as usize).chain(fresh) {
            // A page that is only read has no frame of its own.
            self.arena.bytes_mut()[page * page_bytes()] = 1;
        }
    }

    /// Takes more memory until there are as many frames of each of `colors` as its entry in `numbers` states, if this reserve
    /// [searches](Self::searching).
    ///
    /// The kernel hands out first the frames that were freed last. An earlier search or draw was offered these frames and rejected them. Frames of
    /// the colors come only after them, even if they are rare. Rejected frames are held, too, so they are in the way only once. The search ends at
    /// the limit of the reserve, at nine tenths of the memory that the control group has left, or after 2 s.
    pub fn find(&mut self, known: &KnownColors, colors: &[Color], numbers: &[usize]) {
        let needed = colors.iter().zip(numbers).filter(|(_, number)| **number > 0);
        needed.for_each(|(color, _)| self.stock.need(usize::from(color.0)));
        let room = Pid(std::process::id() as i32).memory_room();
        let room = room.map_or(usize::MAX, |room| room.0 as usize / 10 * 9 / page_bytes());
        let (begin, searched) = (Instant::now(), self.searches);
        self.search(colors, numbers, room, |reserve, count| {
            reserve.take(count);
            reserve.list_all(known);
            begin.elapsed() < SEARCHING
        });
        if searched && !self.searches {
            self.give_back(known);
        }
    }

    /// Calls `take` with a number of pages to take frames for until there are enough frames of the colors. Takes at most `room` pages in all, and
    /// stops if `take` returns that its time is over. A reserve that receives only frames of unknown colors stops searching.
    fn search(
        &mut self,
        colors: &[Color],
        numbers: &[usize],
        mut room: usize,
        mut take: impl FnMut(&mut Reserve, usize) -> bool,
    ) {
        let (mut count, mut is_in_time) = (0, true);
        while self.searches && is_in_time {
            let lacking = |(number, available): (&usize, usize)| number.saturating_sub(available);
            let scarce = numbers.iter().zip(self.available(colors)).map(lacking).max().unwrap_or(0);
            // So many hold enough frames if all colors come alike. If they do not, each step takes twice as much as the one before.
            let expected = scarce * self.free.len();
            let untaken = self.empty.len() + self.arena.page_count() - self.begun;
            count = (expected + expected / 32).max(2 * count).min(untaken).min(room);
            if scarce == 0 || count == 0 {
                return;
            }
            let listed = self.listed();
            is_in_time = take(self, count);
            self.searches = self.listed() > listed;
            room -= count;
        }
    }

    fn list_all(&mut self, known: &KnownColors) {
        let frames = frames(&self.arena, 0..self.begun);
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

    /// Measures the colors of some frames of unknown color by tests of `tester`, and lists those that have a color of which there are too few.
    ///
    /// Fails as [`Tester::classify`] does. Frames for which no decision is reached stay unlisted.
    pub fn measure(&mut self, known: &KnownColors, tester: &mut Tester<LocalEvictionTest>) -> Result<(), ColorError> {
        let pages: Vec<u32> = self.unknown.iter().copied().take(MEASURED_AT_ONCE).collect();
        let before = frames_of(&self.arena, &pages);
        let instead = Arena::map(1).map_err(|source| SystemError::Memory { pages: 1, source })?;
        let first = tester.eviction_test.set_second(std::mem::replace(&mut self.arena, instead), &pages, false);
        let numbers: Vec<u32> = pages.iter().map(|page| first + page).collect();
        let begin = Instant::now();
        let answers = tester.classify(&numbers, &self.lacking(known), MEASURING);
        let was_cut_short = begin.elapsed() >= MEASURING.limit;
        self.arena = tester.eviction_test.take_second().expect("the tester still has the second memory");
        let (answers, now) = (answers?, frames_of(&self.arena, &pages));
        let mut open = self.unknown.split_off(pages.len());
        for (at, (page, answer)) in pages.into_iter().zip(answers).enumerate() {
            let Some(frame) = now[at] else { continue };
            match answer {
                // The kernel has moved the page to another frame.
                _ if now[at] != before[at] => open.push(page),
                Some(Answer::Color(color)) => {
                    known.learn_frame(std::process::id() as i32, frame, color);
                    self.free[usize::from(color.0)].push(page);
                }
                None if was_cut_short => open.push(page),
                _ => drop(self.undecided.insert(frame)),
            }
        }
        self.unknown = open;
        if !self.has_unknown() {
            self.list_all(known);
        }
        Ok(())
    }

    /// Returns the colors of which the stock has too few frames, and all colors for a reserve without a stock.
    fn lacking(&self, known: &KnownColors) -> Vec<Color> {
        let is_lacking = |color: &Color| {
            let at = usize::from(color.0);
            self.free[at].len() < self.stock.numbers()[at]
        };
        let lacking: Vec<Color> = all_colors(known).into_iter().filter(is_lacking).collect();
        if lacking.is_empty() { all_colors(known) } else { lacking }
    }

    /// Returns the number of frames of known color.
    pub fn listed(&self) -> usize {
        self.free.iter().map(Vec::len).sum()
    }

    /// Returns the number of frames of known color that the reserve is to [provide](Self::provide).
    pub fn provided(&self) -> usize {
        self.free.iter().zip(self.stock.numbers()).map(|(pages, number)| pages.len().min(*number)).sum()
    }

    /// Returns the number of listed frames of each of `colors`.
    pub fn available(&self, colors: &[Color]) -> Vec<usize> {
        colors.iter().map(|color| self.free.get(usize::from(color.0)).map_or(0, Vec::len)).collect()
    }

    /// Returns the number of pages that are held, of known color or not.
    pub fn held(&self) -> usize {
        self.begun - self.empty.len()
    }

    /// Gives all frames back to the kernel. Where free frames change, their colors are forgotten. Refills take others after a minute.
    pub fn give_back(&mut self, known: &KnownColors) {
        known.hold(std::process::id() as i32, Vec::new());
        self.free.iter_mut().for_each(Vec::clear);
        self.release_all_but(&vec![false; self.begun]);
        self.empty.clear();
        self.begun = 0;
        self.stock.rest(Instant::now());
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
        assert_eq!((reserve.give(&colors, &mut [1000, 0], 1000), reserve.held()), (34, 1024 - 69));
        assert_eq!(reserve.give(&colors, &mut [1, 0], 1), 0);
        reserve.give_back(&known);
        assert_eq!((reserve.held(), reserve.available(&colors)), (0, vec![0, 0]));
    }

    /// Searches for `numbers` frames of `colors` as if page i got the frame whose number `frame` states. Returns the number of steps.
    fn search(reserve: &mut Reserve, known: &KnownColors, numbers: [usize; 2], frame: impl Fn(u64) -> u64) -> usize {
        let mut steps = 0;
        reserve.search(&[Color(1), Color(2)], &numbers, usize::MAX, |reserve, count| {
            steps += 1;
            reserve.begun += count;
            assert!(reserve.begun <= reserve.arena.page_count());
            reserve.list(known, (0..reserve.begun as u64).map(|page| Some(FrameNumber(frame(page)))).collect());
            true
        });
        steps
    }

    #[test]
    fn a_search_goes_on_behind_frames_that_were_given_back_until_there_are_enough_of_each_color() {
        let known = KnownColors::of_bits(16);
        let reserve = || Reserve::searching(&known, Bytes(256 << 20)).unwrap();
        // Where all colors come alike, one step suffices.
        let mut even = reserve();
        assert_eq!(search(&mut even, &known, [64, 10], |page| page), 1);
        assert_eq!((even.held(), search(&mut even, &known, [66, 66], |page| page)), (1056, 0));
        // The kernel first hands out 20 000 frames of the last eight colors, as after a draw for the other eight.
        let given_back = |page| if page < 20_000 { 2 * (page - page % 8) + 8 + page % 8 } else { 20_000 + page };
        let mut rare = reserve();
        let steps = search(&mut rare, &known, [64, 10], given_back);
        let found = rare.available(&[Color(1), Color(2)]);
        assert!(steps <= 6 && found[0] >= 64 && found[1] >= 10, "{found:?} after {steps} steps");
        assert!(rare.held() < 2 * 21_024, "{}", rare.held());
        // A color that does not come at all ends the search at its limit.
        let mut without = reserve();
        search(&mut without, &known, [64, 10], |page| page / 15 * 16 + page % 15 + u64::from(page % 15 > 0));
        assert_eq!((without.held(), without.available(&[Color(1)])), (without.arena.page_count(), vec![0]));
    }

    #[test]
    fn nothing_is_searched_by_a_reserve_of_fixed_size_nor_where_colors_of_frames_are_not_known() {
        let known = KnownColors::of_bits(16);
        let mut fixed = Reserve::new(&known, Bytes(1 << 20)).unwrap();
        assert_eq!(search(&mut fixed, &known, [1000, 1000], |page| page), 0);
        fixed.find(&known, &[Color(1)], &[1000]);
        assert_eq!(fixed.held(), 256);
        let mut unknown = Reserve::searching(&known, Bytes(1 << 20)).unwrap();
        let mut steps = 0;
        for _ in 0..2 {
            unknown.search(&[Color(1)], &[4], usize::MAX, |reserve, count| {
                (steps, reserve.begun) = (steps + 1, reserve.begun + count);
                true
            });
        }
        assert_eq!(steps, 1);
    }

    /// Refills until nothing more is taken, as if page i got the frame whose number `frame` states. Returns how many refills have taken frames.
    fn fill(reserve: &mut Reserve, known: &KnownColors, frame: impl Fn(u64) -> u64) -> usize {
        let mut held = usize::MAX;
        let mut taken = 0;
        while reserve.held() != held {
            held = reserve.held();
            reserve.refill(known, true);
            taken += usize::from(reserve.held() > held);
            let empty: FxHashSet<u32> = reserve.empty.iter().copied().collect();
            let frame = |page| (!empty.contains(&(page as u32))).then(|| FrameNumber(frame(page)));
            reserve.list(known, (0..reserve.begun as u64).map(frame).collect());
        }
        taken
    }

    #[test]
    fn a_reserve_provides_frames_of_its_colors_and_gives_the_others_back() {
        let known = KnownColors::of_bits(16);
        let all: Vec<Color> = (0..6).map(Color).collect();
        let mut reserve = Reserve::stocking(&known, Bytes(8 << 20)).unwrap();
        reserve.provide(Bytes(8 << 20), &all[1..5]);
        fill(&mut reserve, &known, |page| page);
        assert_eq!((reserve.available(&all), reserve.held()), (vec![0, 512, 512, 512, 512, 0], 2048));
        // What is given away is found again once a quarter of a color is missing.
        let needs = |reserve: &mut Reserve, number: usize| {
            reserve.find(&known, &all[2..3], &[number]);
            assert_eq!(reserve.give(&all[2..3], &mut [number], number), number);
        };
        needs(&mut reserve, 128);
        assert_eq!((fill(&mut reserve, &known, |page| page), reserve.provided()), (0, 1920));
        needs(&mut reserve, 1);
        assert!(fill(&mut reserve, &known, |page| page) > 0);
        assert_eq!((reserve.available(&all), reserve.held()), (vec![0, 512, 512, 512, 512, 0], 2048));
        // A color that does not come at all ends the search at its limit. What was found is kept.
        let mut without = Reserve::stocking(&known, Bytes(8 << 20)).unwrap();
        without.provide(Bytes(8 << 20), &all[1..5]);
        let frame = |page: u64| page / 15 * 16 + page % 15 + u64::from(!page.is_multiple_of(15));
        fill(&mut without, &known, frame);
        assert_eq!((without.available(&all), without.held()), (vec![0, 0, 512, 512, 512, 0], 1536));
        // Other colors take the place of the former ones.
        without.provide(Bytes(8 << 20), &all[2..6]);
        fill(&mut without, &known, frame);
        assert_eq!((without.available(&all), without.held()), (vec![0, 0, 512, 512, 512, 512], 2048));
    }

    #[test]
    fn frames_that_were_given_away_are_replaced_before_more_memory_is_taken() {
        let known = KnownColors::of_bits(16);
        let all: Vec<Color> = (0..16).map(Color).collect();
        let mut reserve = Reserve::searching(&known, Bytes(1 << 20)).unwrap();
        reserve.take(160);
        reserve.list(&known, (0..160).map(|frame| Some(FrameNumber(frame))).collect());
        assert_eq!((reserve.give(&all, &mut [10; 16], 96), reserve.held()), (96, 64));
        reserve.take(100);
        assert_eq!((reserve.empty.len(), reserve.held(), reserve.begun), (0, 164, 164));
        reserve.take(1000);
        assert_eq!((reserve.held(), reserve.begun), (256, 256));
    }
}
