//! Current knowledge of the colors of pages, from frame numbers and from eviction tests.
//!
//! A palette saved earlier saves time. Its colors of frames in use are checked on a sample. Blocks of frames with a wrong color are measured like
//! frames that the palette does not know. If more than 1 % of the checked frames have a wrong color, the palette is put aside, and all frames are
//! measured.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isochrome_model::palette::Palette;
use isochrome_model::palette::decode::Answer;
use isochrome_model::units::{Color, CpuId, FrameNumber};
use rustix::thread::sched_getcpu;

use super::eviction::WalkTicks;
use super::learned::Learned;
use super::reference::{Numbers, Ready, Reference};
use super::saved::{BLOCK_FRAMES, Corrections};
use super::verified::{BlockTests, Verified};
use crate::color::error::ColorError;
use crate::color::pagemap::PageEntry;
use crate::machine::setting::RealtimeRequest;
use crate::machine::sysfs::Sysfs;

/// Size of the sample on which a palette is checked. A palette of which 3 % is wrong passes with a probability of 2e-3, and one of which 5 % is wrong
/// with 6e-7 (at most 5 of 512). The pages of a program are verified once they are moved, even if the palette passes.
const CHECKED_PAGES: usize = 512;

/// A page of a process: its address, and its pagemap entry.
pub type Page = (u64, PageEntry);

/// The known colors of pages of any process.
pub struct KnownColors {
    level: u8,
    colors: u32,
    /// Colors by frame number.
    palette: Option<Palette>,
    /// Whether the user named the palette. If a named palette is wrong, that is an error.
    named: bool,
    /// Pages of known color, by which other pages are tested; `None` if the palette is trusted.
    reference: Option<Reference>,
    /// CPUs whose caches tests may use.
    cpus: Vec<CpuId>,
    /// Whether a frame may get another color while it is free, because the host of this virtual machine takes free memory back.
    free_frames_change: bool,
    learned: Mutex<Learned>,
}

#[cfg(test)]
impl KnownColors {
    /// Returns `colors` colors that are the lowest bits of the frame number.
    pub fn of_bits(colors: u32) -> KnownColors {
        KnownColors::trusted(Palette {
            schema: isochrome_model::palette::SCHEMA.to_owned(),
            level: 2,
            colors,
            rule: isochrome_model::palette::Rule::Bits,
            fingerprint: None,
            boot_id: None,
        })
    }
}

impl KnownColors {
    /// Creates knowledge from a palette that is trusted without tests: a rule of the machine, or a palette for an emulator without caches.
    pub fn trusted(palette: Palette) -> KnownColors {
        let (level, colors) = (palette.level, palette.colors);
        let (learned, cpus, free_frames_change) = (Mutex::default(), Vec::new(), false);
        KnownColors {
            level,
            colors,
            palette: Some(palette),
            named: true,
            reference: None,
            cpus,
            free_frames_change,
            learned,
        }
    }

    /// Creates knowledge from `reference`, with tests on the caches of `cpus`, and from a palette with the same numbers, if given.
    ///
    /// `named`: whether a wrong palette is an error; otherwise it is put aside.
    pub fn measured(reference: Reference, palette: Option<Palette>, named: bool, cpus: Vec<CpuId>) -> KnownColors {
        let (level, colors, learned) = (reference.level, reference.colors(), Mutex::default());
        let free_frames_change = Sysfs::system().reported_block_frames().is_some();
        KnownColors { level, colors, palette, named, reference: Some(reference), cpus, free_frames_change, learned }
    }

    /// Replaces the pages of known color if they have lost their colors, as [`Reference::renewed`] does, and [adopts](Self::adopt) the new
    /// pages. Returns where the numbers of the colors come from.
    pub fn renew(&mut self, folder: &Path, seed: u64) -> Result<Numbers, ColorError> {
        let Some(old) = &self.reference else { return Ok(Numbers::Kept) };
        let ready = on_a_cpu(&self.cpus, || old.renewed(folder, seed))?;
        Ok(self.adopt(ready))
    }

    /// Uses the pages of `ready` for tests from now on, and returns where the numbers of the colors come from.
    ///
    /// If the colors have other numbers now, everything learned is forgotten, and the palette is put aside. If another command changed the
    /// numbers, `ready` found them kept; the result is [`Numbers::Replaced`] in that case.
    pub fn adopt(&mut self, ready: Ready) -> Numbers {
        let Ready { reference, numbers, .. } = ready;
        let differs = self.reference.as_ref().is_none_or(|old| old.numbering != reference.numbering);
        self.reference = Some(reference);
        let learned = self.learned.get_mut().unwrap_or_else(PoisonError::into_inner);
        learned.ticks = None;
        if differs {
            *learned = Learned::default();
            self.palette = None;
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

    /// Returns the changes to make to the saved palette; `None` if it has all measured colors already, or if the user named the palette.
    ///
    /// If more than 1 % of the checked frames had another color, the saved table is of no use, and only the measured colors are kept.
    pub fn corrections(&self) -> Option<Corrections> {
        let palette = self.palette.as_ref().filter(|_| !self.named)?;
        let learned = self.learned();
        let known = |(frame, color): (&FrameNumber, &Color)| palette.color_of(*frame) == Some(*color);
        if learned.contradicted.is_empty() && learned.frames.iter().all(known) {
            return None;
        }
        let keeps_rest = !learned.stale;
        let measured = learned.frames.iter().map(|(frame, color)| (*frame, (*color, palette.color_of(*frame))));
        let numbering = self.reference.as_ref().map(|reference| reference.numbering.clone());
        Some(Corrections {
            numbering,
            measured: measured.collect(),
            contradicted: learned.contradicted.clone(),
            keeps_rest,
        })
    }

    /// Whether the palette is believed, but not on enough frames that were checked.
    pub fn has_unchecked_palette(&self) -> bool {
        let learned = self.learned();
        self.palette.is_some() && self.reference.is_some() && !learned.stale && learned.confirmed < CHECKED_PAGES
    }

    /// Returns whether the palette is put aside, and the number of blocks for which it was wrong.
    pub fn contradictions(&self) -> (bool, usize) {
        let learned = self.learned();
        (learned.stale, learned.contradicted.len())
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
        let by_palette = || self.palette.as_ref().filter(|_| learned.believes(frame))?.color_of(frame);
        learned.frames.get(&frame).copied().or_else(by_palette)
    }

    /// Records that a page of `pid` has the color `color`.
    pub fn learn(&self, pid: i32, (address, entry): Page, color: Color) {
        match entry.frame() {
            None => drop(self.learned().pages.insert((pid, address), color)),
            Some(frame) => self.learn_frame(pid, frame, color),
        }
    }

    /// Records that a frame of `pid` has the color `color`.
    pub fn learn_frame(&self, pid: i32, frame: FrameNumber, color: Color) {
        let mut learned = self.learned();
        learned.frames.insert(frame, color);
        if self.free_frames_change {
            learned.hold(pid, frame);
        }
    }

    /// Records that tests found none of `colors` for a page. If the palette gives the page one of these colors, the block of its frame is
    /// contradicted.
    pub fn rule_out(&self, (_, entry): Page, colors: &[Color]) {
        if let (Some(frame), Some(palette)) = (entry.frame(), &self.palette)
            && palette.color_of(frame).is_some_and(|color| colors.contains(&color))
        {
            self.learned().contradicted.insert(frame.0 / BLOCK_FRAMES);
        }
    }

    /// Forgets the color of a page of `pid`, and of all frames in the same block.
    ///
    /// If colors change although frame numbers do not, the host of a virtual machine has moved memory, block by block.
    fn forget(&self, pid: i32, (address, entry): Page) {
        let mut learned = self.learned();
        learned.pages.remove(&(pid, address));
        if let Some(frame) = entry.frame() {
            let block = frame.0 / BLOCK_FRAMES;
            for frame in block * BLOCK_FRAMES..(block + 1) * BLOCK_FRAMES {
                learned.frames.remove(&FrameNumber(frame));
            }
            learned.contradicted.insert(block);
        }
    }

    /// Whether the color of a page comes from the palette alone.
    fn is_by_palette(&self, page: Page) -> bool {
        let Some((frame, palette)) = page.1.frame().zip(self.palette.as_ref()) else { return false };
        let learned = self.learned();
        !learned.frames.contains_key(&frame) && learned.believes(frame) && palette.color_of(frame).is_some()
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

    /// Whether a frame may get another color while it is free.
    pub fn free_frames_change(&self) -> bool {
        self.free_frames_change
    }

    /// Records that `frames` are all frames of `pid`. Where free frames change, the colors of its earlier frames, and of frames that were drawn for it
    /// and not used, are forgotten.
    pub fn hold(&self, pid: i32, frames: Vec<FrameNumber>) {
        if self.free_frames_change {
            self.learned().let_go(pid, frames);
        }
    }

    /// Returns the CPUs whose caches tests may use.
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Returns a sample, to be tested, of those `pages` of `pid` whose color is in `allowed` and known from the palette alone. The sample is
    /// empty once enough frames were confirmed.
    ///
    /// The sample has equally many pages of each color, as far as possible. A palette that is wrong in one color only has few wrong frames
    /// among all, but these may suffice to evict the owner of that color.
    pub fn to_check(&self, pid: i32, pages: &[Page], allowed: &[Color]) -> Vec<Page> {
        let Some(palette) = self.palette.as_ref().filter(|_| self.has_unchecked_palette()) else { return Vec::new() };
        let learned = self.learned();
        let by_palette = |page: &Page| {
            let (address, frame) = (page.0, page.1.frame()?);
            let measured = learned.frames.contains_key(&frame) || learned.pages.contains_key(&(pid, address));
            let is_open = !measured && learned.believes(frame);
            let color = palette.color_of(frame).filter(|color| is_open && allowed.contains(color))?;
            Some((color, *page))
        };
        evenly_by_color(pages.iter().filter_map(by_palette).collect(), CHECKED_PAGES)
    }

    /// Compares the palette with the `answers` of eviction tests of `sample`, and records the colors that were measured.
    ///
    /// Blocks of frames for which the palette is wrong are forgotten. If the user named the palette, this fails with [`ColorError::PaletteContradicted`].
    pub fn judge(&self, pid: i32, sample: &[Page], answers: &[Option<Answer>]) -> Result<(), ColorError> {
        let Some(palette) = &self.palette else { return Ok(()) };
        let (mut wrong, mut right) = (0, 0);
        let mut contradicted = Vec::new();
        for (page, answer) in sample.iter().zip(answers) {
            let frame = page.1.frame();
            let color = match answer {
                Some(Answer::Color(color)) => Some(*color),
                Some(Answer::Other) => None,
                Some(Answer::Unsteady) | None => continue,
            };
            if let Some(color) = color {
                self.learn(pid, *page, color);
            }
            if color.is_some() && frame.and_then(|frame| palette.color_of(frame)) == color {
                right += 1;
            } else {
                wrong += 1;
                contradicted.extend(frame.map(|frame| frame.0 / BLOCK_FRAMES));
            }
        }
        let mut learned = self.learned();
        learned.contradicted.extend(contradicted);
        learned.count(right, wrong);
        if wrong > 0 && self.named {
            return Err(ColorError::PaletteContradicted { wrong, tested: wrong + right });
        }
        Ok(())
    }

    /// Summarizes the `answers` of eviction tests of a sample of pages of `pid` that should be on color.
    ///
    /// A color that proves wrong is forgotten. All colors of its block are forgotten, too, unless most of the block's tested pages prove right.
    pub fn verified(&self, pid: i32, sample: &[Page], answers: &[Option<Answer>]) -> Verified {
        let mut verified = Verified::default();
        let (mut right, mut wrong) = (0, 0);
        let mut blocks = HashMap::<u64, BlockTests>::new();
        for (page, answer) in sample.iter().zip(answers) {
            let by_palette = usize::from(self.is_by_palette(*page));
            let block = page.1.frame().map(|frame| blocks.entry(frame.0 / BLOCK_FRAMES).or_default());
            match answer {
                Some(Answer::Color(_)) => {
                    verified.on_color += 1;
                    right += by_palette;
                    block.into_iter().for_each(|block| block.right += 1);
                }
                Some(Answer::Other) => {
                    wrong += by_palette;
                    block.into_iter().for_each(|block| block.wrong += 1);
                }
                Some(Answer::Unsteady) | None => {
                    verified.undecided += 1;
                    continue;
                }
            }
            verified.pages += 1;
        }
        for (page, _) in sample.iter().zip(answers).filter(|(_, answer)| **answer == Some(Answer::Other)) {
            let block = page.1.frame().and_then(|frame| Some((frame, blocks.get(&(frame.0 / BLOCK_FRAMES))?)));
            match block {
                Some((frame, block)) if block.has_kept_its_colors() && self.by_palette(frame).is_none() => {
                    self.learned().frames.remove(&frame);
                }
                _ => self.forget(pid, *page),
            }
        }
        self.learned().count(right, wrong);
        verified
    }

    /// Returns the color of a frame by the palette, whether it is believed or not.
    fn by_palette(&self, frame: FrameNumber) -> Option<Color> {
        self.palette.as_ref()?.color_of(frame)
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

/// Returns at most `count` of `items`, drawn at random as evenly over the colors as the items allow.
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

/// Runs `work` on one of `cpus`, preferably the CPU where this thread runs, and returns its result. If `work` fails for a reason that may
/// pass, the next CPU is tried.
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
    use std::collections::HashSet;

    use isochrome_model::palette::Rule;

    use super::*;

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
        // Of eight tested pages of another block one is off color, and then two.
        let sample: Vec<Page> = (2048..2056).map(page).collect();
        for (wrong, left) in [(1, 7), (2, 0)] {
            sample.iter().for_each(|page| known.learn(1, *page, Color(0)));
            let answer = |at| Some(if at < wrong { Answer::Other } else { Answer::Color(Color(0)) });
            known.verified(1, &sample, &(0..8).map(answer).collect::<Vec<_>>());
            assert_eq!(sample.iter().filter(|page| known.of(1, **page).is_some()).count(), left);
        }
    }

    #[test]
    fn a_frame_that_was_given_back_is_forgotten_where_the_host_takes_free_memory() {
        let page = |frame: u64| (frame * 4096, PageEntry::of_frame(FrameNumber(frame)));
        let frames = |frames: &[u64]| frames.iter().copied().map(FrameNumber).collect::<Vec<_>>();
        // This process, its parent, and one that does not exist (numbers end at 2^22).
        let (own, parent, ended) = (std::process::id() as i32, std::os::unix::process::parent_id() as i32, 1 << 23);
        for free_frames_change in [true, false] {
            let known = KnownColors { free_frames_change, ..KnownColors::of_bits(2) };
            let known = KnownColors { palette: None, ..known };
            let left = || [1, 2, 3, 4].map(|frame| known.of_frame(FrameNumber(frame)).is_some());
            (1..=3).for_each(|frame| known.learn(own, page(frame), Color(0)));
            known.learn(ended, page(4), Color(0));
            // Frame 1 was drawn and not used. Frame 3 is shared with the other process.
            known.hold(own, frames(&[2, 3]));
            known.hold(parent, frames(&[3]));
            assert_eq!(left(), if free_frames_change { [false, true, true, false] } else { [true; 4] });
            // Another process has ended, and nothing else has changed.
            known.learn(ended, page(4), Color(0));
            known.hold(own, frames(&[2, 3]));
            assert_eq!(known.of_frame(FrameNumber(4)).is_none(), free_frames_change);
            known.hold(own, frames(&[2]));
            assert!(known.of_frame(FrameNumber(3)).is_some());
            known.hold(parent, Vec::new());
            assert_eq!(known.of_frame(FrameNumber(3)).is_none(), free_frames_change);
        }
    }

    #[test]
    fn a_table_is_corrected_where_it_was_wrong_and_dropped_where_that_is_often() {
        let known = |frames: Vec<u64>| {
            let colors = vec![Color(0); frames.len()];
            let rule = Rule::Table { frames: frames.into_iter().map(FrameNumber).collect(), colors };
            let palette =
                Palette { schema: String::new(), level: 2, colors: 2, rule, fingerprint: None, boot_id: None };
            KnownColors { named: false, ..KnownColors::trusted(palette) }
        };
        let page = |frame: u64| (frame * 4096, PageEntry::of_frame(FrameNumber(frame)));
        let sample: Vec<Page> = (1..201).map(page).collect();
        let of = |wrong: usize| {
            let known = known((0..2000).collect());
            let answer = |at| Some(if at < wrong { Answer::Color(Color(1)) } else { Answer::Color(Color(0)) });
            known.judge(1, &sample, &(0..200).map(answer).collect::<Vec<_>>()).unwrap();
            known
        };
        let kept = |wrong: usize| [1, 300, 1300].map(|frame| of(wrong).of_frame(FrameNumber(frame)));
        let of = |wrong: usize| of(wrong).corrections();
        // A table that has the measured colors already is not written again.
        assert!(of(0).is_none());
        let (few, many) = (of(2).unwrap(), of(3).unwrap());
        assert_eq!((few.keeps_rest, many.keeps_rest), (true, false));
        assert_eq!(few.contradicted, HashSet::from([0]));
        assert_eq!((few.measured.len(), few.measured[&FrameNumber(1)]), (200, (Color(1), Some(Color(0)))));
        assert_eq!(
            kept(2),
            [Some(Color(1)), None, Some(Color(0))],
            "a page measured, one of the same block, one of another"
        );
        assert_eq!(kept(3), [Some(Color(1)), None, None]);
        // A page with none of the requested colors contradicts the table only if the table gives it one of these colors.
        let known = known(vec![600, 1200]);
        known.rule_out(page(600), &[Color(1)]);
        known.rule_out(page(700), &[Color(0)]);
        assert!(known.corrections().is_none());
        known.rule_out(page(600), &[Color(0)]);
        assert_eq!(known.corrections().unwrap().contradicted, HashSet::from([1]));
    }

    #[test]
    fn a_verification_puts_a_table_aside_only_if_more_than_1_percent_is_wrong() {
        let page = |frame: u64| (frame * 4096, PageEntry::of_frame(FrameNumber(frame * BLOCK_FRAMES)));
        let keeps_rest = |pages: u64, wrong: u64| {
            let frames: Vec<FrameNumber> = (0..2000).map(|block| FrameNumber(block * BLOCK_FRAMES)).collect();
            let colors = vec![Color(0); frames.len()];
            let rule = Rule::Table { frames, colors };
            let palette =
                Palette { schema: String::new(), level: 2, colors: 2, rule, fingerprint: None, boot_id: None };
            let known = KnownColors { named: false, ..KnownColors::trusted(palette) };
            let sample: Vec<Page> = (1..=pages).map(page).collect();
            let answer = |at| Some(if at < wrong { Answer::Other } else { Answer::Color(Color(0)) });
            known.verified(1, &sample, &(0..pages).map(answer).collect::<Vec<_>>());
            known.corrections().unwrap().keeps_rest
        };
        assert!(keeps_rest(256, 1) && keeps_rest(256, 2) && !keeps_rest(256, 3));
        // One page of 16 is more than 1 %, and says nothing of the others.
        assert!(keeps_rest(16, 1) && !keeps_rest(16, 2));
    }

    #[test]
    fn a_sample_has_as_many_of_each_color_as_of_any_other() {
        // 1000 items of color 0, 40 of color 1, 3 of color 2.
        let items = (0..1043).map(|n| (Color(if n < 1000 { 0 } else { u16::from(n >= 1040) + 1 }), n)).collect();
        let sample = evenly_by_color(items, 50);
        let of = |from: usize, to: usize| sample.iter().filter(|n| (from..to).contains(*n)).count();
        assert_eq!(sample.len(), 50);
        assert_eq!(of(1040, 1043), 3);
        assert!((23..=24).contains(&of(1000, 1040)) && (23..=24).contains(&of(0, 1000)), "{sample:?}");
        assert_eq!(evenly_by_color(vec![(Color(7), 'a'), (Color(7), 'b')], 50).len(), 2);
    }
}
