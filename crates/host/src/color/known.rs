//! What is known at present of the colors of pages: by their frame numbers, and by eviction tests.
//!
//! A palette saved earlier is knowledge that saves time. Whatever it says of frames in use is checked on a sample of them; if
//! that shows one wrong color, the palette is put aside, and the frames are measured like those it does not know.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isochrome_model::palette::Palette;
use isochrome_model::palette::decode::Answer;
use isochrome_model::stats::proportion_interval;
use isochrome_model::units::{Color, CpuId, FrameNumber};
use rustix::thread::sched_getcpu;
use schemars::JsonSchema;
use serde::Serialize;

use super::eviction::WalkTicks;
use super::reference::{Numbers, Ready, Reference};
use crate::color::error::ColorError;
use crate::color::pagemap::PageEntry;
use crate::machine::setting::RealtimeRequest;

/// Size of the sample on which a palette is checked. A palette of which 2 % is wrong passes with probability 0.98^512 = 3e-5.
const CHECKED_PAGES: usize = 512;

/// Size of a sample by which the pages of a process are verified.
pub const VERIFIED_PAGES: usize = 256;

/// Most samples that a verification takes while its result is not significant.
const SAMPLES_MAX: usize = 4;

/// Processes with at most this many pages are verified completely.
const VERIFIED_WHOLE: usize = 1024;

/// Frames of a block that a host moves as a whole: 2 MiB in pages of 4 KiB. Where it moves others, further samples find them.
const BLOCK_FRAMES: u64 = 512;

/// A page of a process: its address, and its pagemap entry.
pub type Page = (u64, PageEntry);

/// What is known of the colors of pages of any process.
pub struct KnownColors {
    level: u8,
    colors: u32,
    /// Colors by frame number.
    palette: Option<Palette>,
    /// Whether the user named the palette. If a named palette is wrong, that is an error.
    named: bool,
    /// Pages of known color, by which others are tested; `None` if the palette is trusted.
    reference: Option<Reference>,
    /// CPUs whose caches tests may use.
    cpus: Vec<CpuId>,
    learned: Mutex<Learned>,
}

/// What this process has measured.
#[derive(Default)]
struct Learned {
    /// Colors by frame number.
    frames: HashMap<FrameNumber, Color>,
    /// Colors of pages by process and address, if frame numbers are hidden.
    pages: HashMap<(i32, u64), Color>,
    /// Number of frames whose color by the palette was confirmed, and whether the palette was wrong for any.
    confirmed: usize,
    stale: bool,
    /// Walk times inside a process, once they are measured.
    ticks: Option<WalkTicks>,
}

/// Result of eviction tests of a sample of pages that should have given colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Verified {
    /// Number of pages with a decision.
    pub pages: usize,
    /// Number of these pages that are on color.
    #[serde(rename = "right")]
    pub on_color: usize,
    /// Number of further pages without a decision, because another CPU used them or they went away.
    pub undecided: usize,
}

impl Verified {
    /// Whether at least 99 % of the pages are on color.
    pub fn holds(&self) -> bool {
        100 * self.on_color >= 99 * self.pages
    }

    /// Whether significantly less than 99 % of the pages are on color: more pages of the sample are off color than chance explains.
    pub fn is_refuted(&self) -> bool {
        proportion_interval((self.pages - self.on_color) as u64, self.pages as u64).0 > 0.01
    }

    /// Whether the sample decides if at least 99 % of the pages are on color. It does not if slightly more than 1 % of it is off color.
    pub fn is_decided(&self) -> bool {
        self.holds() || self.is_refuted()
    }

    /// Adds the result for other pages.
    pub fn add(&mut self, other: Verified) {
        self.pages += other.pages;
        self.on_color += other.on_color;
        self.undecided += other.undecided;
    }
}

impl KnownColors {
    /// Knows colors by a palette that is trusted without tests: a rule of the machine, or one for an emulator without caches.
    pub fn trusted(palette: Palette) -> KnownColors {
        let (level, colors) = (palette.level, palette.colors);
        let learned = Mutex::default();
        KnownColors { level, colors, palette: Some(palette), named: true, reference: None, cpus: Vec::new(), learned }
    }

    /// Knows colors by `reference`, with tests on the caches of `cpus`, and by a palette with the same numbers, if given.
    ///
    /// `named`: whether a wrong palette is an error; otherwise it is put aside.
    pub fn measured(reference: Reference, palette: Option<Palette>, named: bool, cpus: Vec<CpuId>) -> KnownColors {
        let (level, colors, learned) = (reference.level, reference.colors(), Mutex::default());
        KnownColors { level, colors, palette, named, reference: Some(reference), cpus, learned }
    }

    /// Replaces the pages of known color if they have lost their colors, as [`Reference::renewed`] does; see [`adopt`](Self::adopt).
    pub fn renew(&mut self, folder: &Path, seed: u64) -> Result<Numbers, ColorError> {
        let Some(old) = &self.reference else { return Ok(Numbers::Kept) };
        let ready = on_a_cpu(&self.cpus, || old.renewed(folder, seed))?;
        Ok(self.adopt(ready))
    }

    /// Uses the pages of `ready` for tests from now on, and returns where the numbers of the colors come from.
    ///
    /// If colors have other numbers now, everything learned is forgotten. If another command changed them, so that `ready` found them kept,
    /// this returns [`Numbers::Replaced`].
    pub fn adopt(&mut self, ready: Ready) -> Numbers {
        let Ready { reference, numbers, .. } = ready;
        let differs = self.reference.as_ref().is_none_or(|old| old.numbering != reference.numbering);
        self.reference = Some(reference);
        let learned = self.learned.get_mut().unwrap_or_else(PoisonError::into_inner);
        learned.ticks = None;
        if differs {
            *learned = Learned { stale: true, ..Learned::default() };
        }
        if differs && numbers == Numbers::Kept { Numbers::Replaced } else { numbers }
    }

    /// Returns the cache level.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Returns the number of colors of the level.
    pub fn colors(&self) -> u32 {
        self.colors
    }

    /// Returns the pages of known color; `None` if the palette is trusted and colors are not measured.
    pub fn reference(&self) -> Option<&Reference> {
        self.reference.as_ref()
    }

    /// Returns the colors that were measured if the palette was found to be wrong; `None` otherwise.
    pub fn stale(&self) -> Option<HashMap<FrameNumber, Color>> {
        let learned = self.learned();
        (learned.stale && self.palette.is_some()).then(|| learned.frames.clone())
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the color of a page of `pid`; `None` if it is unknown.
    pub fn of(&self, pid: i32, (address, entry): Page) -> Option<Color> {
        match entry.frame() {
            None => self.learned().pages.get(&(pid, address)).copied(),
            Some(frame) => self.of_frame(frame),
        }
    }

    /// Returns the color of a frame; `None` if it is unknown.
    pub fn of_frame(&self, frame: FrameNumber) -> Option<Color> {
        let learned = self.learned();
        let by_palette = || self.palette.as_ref().filter(|_| !learned.stale)?.color_of(frame);
        learned.frames.get(&frame).copied().or_else(by_palette)
    }

    /// Records that a page of `pid` has the color `color`.
    pub fn learn(&self, pid: i32, (address, entry): Page, color: Color) {
        let mut learned = self.learned();
        match entry.frame() {
            None => learned.pages.insert((pid, address), color),
            Some(frame) => learned.frames.insert(frame, color),
        };
    }

    /// Forgets the color of a page of `pid`, and of all frames in the same block. A palette that claims to know it is put aside.
    ///
    /// Where colors change although frame numbers do not, the host of a virtual machine has moved memory, block by block.
    fn forget(&self, pid: i32, (address, entry): Page) {
        let mut learned = self.learned();
        learned.pages.remove(&(pid, address));
        if let Some(frame) = entry.frame() {
            let block = frame.0 / BLOCK_FRAMES * BLOCK_FRAMES;
            let measured = learned.frames.contains_key(&frame);
            for frame in block..block + BLOCK_FRAMES {
                learned.frames.remove(&FrameNumber(frame));
            }
            learned.stale |=
                !measured && self.palette.as_ref().is_some_and(|palette| palette.color_of(frame).is_some());
        }
    }

    /// Forgets the colors of `pages` of `pid` and the walk times, because both were measured in a noisy moment.
    pub fn forget_measured(&self, pid: i32, pages: impl IntoIterator<Item = Page>) {
        pages.into_iter().for_each(|page| self.forget(pid, page));
        self.learned().ticks = None;
    }

    /// Forgets pages of `pid` that are known by address and not among `kept`, because they no longer exist. `kept` is in ascending order.
    pub fn retain(&self, pid: i32, kept: &[u64]) {
        self.learned().pages.retain(|(of, page), _| *of != pid || kept.binary_search(page).is_ok());
    }

    /// Returns the CPUs whose caches tests may use.
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Returns a sample to test of those `pages` of `pid` whose color is in `allowed` and known from the palette alone. It is empty once enough
    /// were confirmed.
    ///
    /// The sample has as many pages of each color as of any other: a palette that is wrong in one color only has few wrong frames among all, but
    /// they may suffice to evict whoever holds that color.
    pub fn to_check(&self, pid: i32, pages: &[Page], allowed: &[Color]) -> Vec<Page> {
        let (Some(palette), true) = (&self.palette, self.reference.is_some()) else { return Vec::new() };
        let learned = self.learned();
        if learned.stale || learned.confirmed >= CHECKED_PAGES {
            return Vec::new();
        }
        let by_palette = |page: &Page| {
            let (address, frame) = (page.0, page.1.frame()?);
            let measured = learned.frames.contains_key(&frame) || learned.pages.contains_key(&(pid, address));
            let color = palette.color_of(frame).filter(|color| !measured && allowed.contains(color))?;
            Some((color, *page))
        };
        evenly_by_color(pages.iter().filter_map(by_palette).collect(), CHECKED_PAGES)
    }

    /// Compares the palette with the `answers` of eviction tests of `sample`, and records the colors that were measured.
    ///
    /// A wrong palette is put aside. If the user named it, this fails with [`ColorError::PaletteContradicted`].
    pub fn judge(&self, pid: i32, sample: &[Page], answers: &[Option<Answer>]) -> Result<(), ColorError> {
        let Some(palette) = &self.palette else { return Ok(()) };
        let (mut wrong, mut right) = (0, 0);
        for (page, answer) in sample.iter().zip(answers) {
            let by_palette = page.1.frame().and_then(|frame| palette.color_of(frame));
            match answer {
                Some(Answer::Color(color)) => {
                    self.learn(pid, *page, *color);
                    if by_palette == Some(*color) { right += 1 } else { wrong += 1 }
                }
                Some(Answer::Other) => wrong += 1,
                Some(Answer::Unsteady) | None => {}
            }
        }
        let mut learned = self.learned();
        learned.confirmed += right;
        learned.stale |= wrong > 0;
        if wrong > 0 && self.named {
            return Err(ColorError::PaletteContradicted { wrong, tested: wrong + right });
        }
        Ok(())
    }

    /// Summarizes the `answers` of eviction tests of a sample of pages of `pid` that should be on color.
    ///
    /// Colors that prove wrong are forgotten, and a palette that claimed them is put aside.
    pub fn verified(&self, pid: i32, sample: &[Page], answers: &[Option<Answer>]) -> Verified {
        let mut verified = Verified::default();
        for (page, answer) in sample.iter().zip(answers) {
            match answer {
                Some(Answer::Color(_)) => verified.on_color += 1,
                Some(Answer::Other) => self.forget(pid, *page),
                Some(Answer::Unsteady) | None => {
                    verified.undecided += 1;
                    continue;
                }
            }
            verified.pages += 1;
        }
        verified
    }

    /// Returns the walk times inside a process; `None` if they are not measured yet.
    pub fn ticks(&self) -> Option<WalkTicks> {
        self.learned().ticks
    }

    /// Records the walk times inside a process.
    pub fn keep_ticks(&self, ticks: WalkTicks) {
        self.learned().ticks = Some(ticks);
    }
}

/// Draws disjoint samples of `pages`, each in ascending order, by which all of them are verified: the first sample, and further ones to
/// add while the result is not decided ([`Verified::is_decided`]).
pub fn samples(pages: &[Page]) -> Vec<Vec<Page>> {
    if pages.len() <= VERIFIED_WHOLE {
        return if pages.is_empty() { Vec::new() } else { vec![pages.to_vec()] };
    }
    let mut drawn = pages.to_vec();
    fastrand::shuffle(&mut drawn);
    let mut samples: Vec<Vec<Page>> = drawn.chunks_exact(VERIFIED_PAGES).map(<[Page]>::to_vec).collect();
    samples.truncate(SAMPLES_MAX);
    samples.iter_mut().for_each(|sample| sample.sort_unstable_by_key(|(address, _)| *address));
    samples
}

/// Draws at most `count` of `items` at random, as evenly over the colors as the items allow.
fn evenly_by_color<T>(mut items: Vec<(Color, T)>, count: usize) -> Vec<T> {
    fastrand::shuffle(&mut items);
    let mut drawn = HashMap::<Color, usize>::new();
    let mut ranked: Vec<(usize, T)> = Vec::with_capacity(items.len());
    for (color, item) in items {
        let rank = drawn.entry(color).or_default();
        *rank += 1;
        ranked.push((*rank, item));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(count);
    ranked.into_iter().map(|(_, item)| item).collect()
}

/// Returns all colors of the level.
pub fn all_colors(known: &KnownColors) -> Vec<Color> {
    (0..known.colors() as u16).map(Color).collect()
}

/// Does `work` on one of `cpus`, preferably the one where this thread runs. If that fails for a reason that may pass, tries the next CPU.
pub fn on_a_cpu<T>(cpus: &[CpuId], mut work: impl FnMut() -> Result<T, ColorError>) -> Result<T, ColorError> {
    let here = CpuId(sched_getcpu() as u32);
    let mut order: Vec<CpuId> = cpus.to_vec();
    order.sort_by_key(|cpu| *cpu != here);
    let mut order = order.into_iter().peekable();
    if order.peek().is_none() {
        return work();
    }
    loop {
        let Some(cpu) = order.next() else { return work() };
        let _pinned = RealtimeRequest::new().pin(cpu).apply();
        match work() {
            Err(error) if error.may_pass() && order.peek().is_some() => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use isochrome_model::palette::Rule;

    use super::*;

    #[test]
    fn a_statement_in_doubt_takes_further_samples_of_other_pages() {
        let verified = |on_color, pages| Verified { on_color, pages, undecided: 0 };
        // 5 of 256 are 2 %, which chance explains where 1 % are off color; 12 of 256 it does not.
        let decided =
            [(254, 256), (251, 256), (244, 256)].map(|(on_color, pages)| verified(on_color, pages).is_decided());
        assert_eq!(decided, [true, false, true]);
        let pages: Vec<Page> = (0..2000).map(|n| (4096 * n, PageEntry::default())).collect();
        let several = samples(&pages);
        let drawn: std::collections::BTreeSet<u64> = several.iter().flatten().map(|page| page.0).collect();
        assert_eq!((several.len(), drawn.len()), (4, 4 * VERIFIED_PAGES));
        assert_eq!(samples(&pages[..1024]).iter().map(Vec::len).collect::<Vec<_>>(), [1024]);
    }

    #[test]
    fn a_frame_that_lost_its_color_makes_those_around_it_unknown() {
        let rule = Rule::Linear { masks: vec![1] };
        let palette = Palette { schema: String::new(), level: 2, colors: 2, rule, fingerprint: None, boot_id: None };
        let known = KnownColors { palette: None, ..KnownColors::trusted(palette) };
        let page = |frame: u64| (frame * 4096, PageEntry::of_frame(FrameNumber(frame)));
        for frame in [511, 512, 600, 1023, 1024] {
            known.learn(1, page(frame), Color(0));
        }
        let verified = known.verified(1, &[page(600)], &[Some(Answer::Other)]);
        assert_eq!((verified.pages, verified.on_color), (1, 0));
        let left = [511, 512, 600, 1023, 1024].map(|frame| known.of(1, page(frame)).is_some());
        assert_eq!(left, [true, false, false, false, true]);
    }

    #[test]
    fn a_sample_has_as_many_of_each_color_as_of_any_other() {
        // 1000 of color 0, 40 of color 1, 3 of color 2.
        let items = (0..1043).map(|n| (Color(if n < 1000 { 0 } else { u16::from(n >= 1040) + 1 }), n)).collect();
        let sample = evenly_by_color(items, 50);
        let of = |from: usize, to: usize| sample.iter().filter(|n| (from..to).contains(*n)).count();
        assert_eq!(sample.len(), 50);
        assert_eq!(of(1040, 1043), 3);
        assert!((23..=24).contains(&of(1000, 1040)) && (23..=24).contains(&of(0, 1000)), "{sample:?}");
        assert_eq!(evenly_by_color(vec![(Color(7), 'a'), (Color(7), 'b')], 50).len(), 2);
    }
}
