//! Colors of pages inside a process, told without frame numbers: a helper there times which pages of known color evict which.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use isochrome_model::palette::PageSample;
use isochrome_model::palette::infer::color_of_looks;
use isochrome_model::units::{Color, Cycles, FrameNumber};

use super::RecolorError;
use super::process::Pid;
use crate::error::HostError;
use crate::palette::look::{EVICTED, Look, STEPS, WalkTicks};
use crate::palette::reference::Reference;
use crate::palette::{PASSES, classify_again};
use crate::sys::agent::{self, LAST};
use crate::sys::clock;
use crate::sys::memory::page_bytes;

/// Memory for requests. Few are made, as each waits until both sides have a CPU.
pub const BYTES: u64 = 256 << 10;

/// In front of it.
const HEADER: u64 = size_of::<agent::Sight>() as u64;

/// Words behind that.
const WORDS: usize = ((BYTES - HEADER) / 8) as usize;

/// The helper waits for as long for the next request, and an answer is waited for as long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Walks of each kind taken to calibrate.
const CALIBRATION_WALKS: usize = 200;

/// A helper that answers, and what its answers mean.
pub struct Sight<'a> {
    pid: Pid,
    memory: File,
    at: u64,
    reference: &'a Reference,
    /// Addresses of pages: first those of the reference.
    pages: Vec<u64>,
    /// Of which the sets of each color are these.
    sets: Vec<Vec<u32>>,
    made: u64,
    ticks: WalkTicks,
    rng: fastrand::Rng,
    /// Why answers are none.
    failed: Option<RecolorError>,
}

/// What lies in front of the requests before the helper begins.
pub fn before(line_bytes: u64) -> agent::Sight {
    let patience = clock::rate_hz() * PATIENCE.as_secs();
    agent::Sight { request: 0, answer: 0, patience, line_bytes, passes: 0, looks: 0, looks_len: 0, left: 0 }
}

impl<'a> Sight<'a> {
    /// Of the helper of `pid` whose [`agent::Sight`] is at `at`; `reference` is mapped at `base` there. Fails where the reference does not
    /// hold any more.
    pub fn new(pid: Pid, at: u64, reference: &'a Reference, base: u64) -> Result<Sight<'a>, RecolorError> {
        let page = page_bytes() as u64;
        let pages: Vec<u64> = reference.sets.iter().flatten().map(|number| base + u64::from(*number) * page).collect();
        let mut numbers = 0..pages.len() as u32;
        let sets = reference.sets.iter().map(|set| numbers.by_ref().take(set.len()).collect()).collect();
        let (memory, ticks) = (pid.memory()?, WalkTicks { hit: 0.0, miss: 1.0 });
        let rng = fastrand::Rng::new();
        let mut sight = Sight { pid, memory, at, reference, pages, sets, made: 0, ticks, rng, failed: None };
        sight.calibrate()?;
        sight.test()?;
        Ok(sight)
    }

    /// How long walks take whose lines are in the level and further out.
    fn calibrate(&mut self) -> Result<(), RecolorError> {
        let inner = self.reference.sizes().inner_pages();
        let ways = self.reference.geometry.ways as usize;
        let colors = self.sets.len();
        let (mut hitting, mut missing) = (Vec::new(), Vec::new());
        for walk in 0..CALIBRATION_WALKS {
            let own = &self.sets[walk % colors];
            let target = own[walk / colors % own.len()];
            // A few of each other color stay in the level, and are more than the level inside holds.
            let others = (1..colors).flat_map(|step| self.sets[(walk + step) % colors].iter().take(ways / 2));
            hitting.push((others.copied().take(inner).collect::<Vec<u32>>(), [target]));
            missing.push((own.iter().copied().filter(|page| *page != target).collect::<Vec<u32>>(), [target]));
        }
        let mut walks = |looks: &[(Vec<u32>, [u32; 1])]| {
            let looks: Vec<(&[u32], &[u32])> = looks.iter().map(|(set, target)| (&set[..], &target[..])).collect();
            self.walks(&looks, PASSES).map(|walks| walks.concat())
        };
        let (hits, misses) = (walks(&hitting)?, walks(&missing)?);
        self.ticks = WalkTicks::of(hits, misses).map_err(|error| self.blind(error))?;
        Ok(())
    }

    /// Whether the set of each color still evicts a page of it, and spares one of another.
    fn test(&mut self) -> Result<(), RecolorError> {
        const REPEATS: usize = 8;
        let sets = self.sets.clone();
        let pairs = sets.iter().zip(sets.iter().cycle().skip(1));
        let looks: Vec<(&[u32], &[u32])> =
            pairs.flat_map(|(set, next)| [(&set[1..], &set[..1]), (&set[..], &next[..1])]).collect();
        let mut lowest = vec![1.0f32; looks.len()];
        for _ in 0..REPEATS {
            let shares = self.look_at_all(&looks, PASSES);
            lowest.iter_mut().zip(shares.iter().flatten()).for_each(|(low, share)| *low = low.min(*share));
        }
        self.check()?;
        // Replacement luck can spare a page of the color now and then, so half as much is enough.
        let wrong = lowest.chunks(2).filter(|pair| pair[0] < EVICTED / 2.0 || pair[1] >= EVICTED).count();
        if wrong > 0 {
            return Err(self.blind(HostError::PaletteContradicted { wrong, tested: sets.len() }));
        }
        Ok(())
    }

    /// The color of each of `addresses`, pages that nobody unmaps meanwhile; `None` where it is in doubt.
    pub fn colors_of(&mut self, addresses: &[u64]) -> Result<Vec<Option<Color>>, RecolorError> {
        let first = self.pages.len();
        self.pages.extend_from_slice(addresses);
        let mut samples = vec![PageSample::default(); self.pages.len()];
        let open = (first as u32..self.pages.len() as u32).collect();
        let colors: Vec<Color> = (0..self.sets.len() as u16).map(Color).collect();
        let (sets, mut rng) = (self.sets.clone(), self.rng.fork());
        classify_again(self, &sets, &colors, open, &mut samples, &mut rng);
        self.pages.truncate(first);
        self.check()?;
        Ok(samples[first..].iter().map(|sample| color_of_looks(sample, &colors)).collect())
    }

    fn check(&mut self) -> Result<(), RecolorError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn blind(&self, source: HostError) -> RecolorError {
        RecolorError::Blind { pid: self.pid.0, source: Box::new(source) }
    }

    /// Times of walks over part of each of some targets, after these and then `passes` times a set were touched.
    fn walks(&mut self, looks: &[(&[u32], &[u32])], passes: u32) -> Result<Vec<Vec<Cycles>>, RecolorError> {
        let mut walks = Vec::with_capacity(looks.len());
        let mut rest = looks;
        while !rest.is_empty() {
            let (request, taken) = self.request(rest);
            let (now, later) = rest.split_at(taken);
            walks.extend(self.answer(&request, now, passes)?);
            rest = later;
        }
        Ok(walks)
    }

    /// What is written for as many of `looks` as have room: the looks, then what they refer to; and how many these are.
    fn request(&mut self, looks: &[(&[u32], &[u32])]) -> (Vec<u64>, usize) {
        const HEAD: usize = size_of::<agent::Look>() / 8;
        let mut room = WORDS;
        let fits = |(set, targets): &&(&[u32], &[u32])| {
            let words = HEAD + STEPS as usize + set.len() + 2 * targets.len();
            room.checked_sub(words).map(|rest| room = rest).is_some()
        };
        let taken = looks.iter().take_while(fits).count();
        let line_bytes = self.reference.geometry.line_bytes.0;
        let lines = page_bytes() as u64 / line_bytes;
        let (mut words, mut lists, mut ticks) = (Vec::new(), Vec::new(), self.ticks_at(&looks[..taken]));
        for (set, targets) in &looks[..taken] {
            let mut list = |entries: Vec<u64>| {
                let at = self.at + HEADER + 8 * (HEAD * taken + lists.len()) as u64;
                let len = entries.len() as u64;
                lists.extend(entries);
                [at, len]
            };
            let addresses = |numbers: &[u32]| numbers.iter().map(|n| self.pages[*n as usize]).collect();
            // Another order for each, as prefetchers learn.
            let order = self.rng.choose_multiple(0..lines, STEPS as usize);
            words.extend(list(addresses(set)));
            words.extend(list(addresses(targets)));
            words.extend(list(order.into_iter().map(|line| line * line_bytes).collect()));
            words.push(ticks);
            ticks += 8 * targets.len() as u64;
        }
        words.append(&mut lists);
        assert!(taken > 0, "a set is too large");
        (words, taken)
    }

    /// Where the times of `looks` are written.
    fn ticks_at(&self, looks: &[(&[u32], &[u32])]) -> u64 {
        let targets: usize = looks.iter().map(|(_, targets)| targets.len()).sum();
        self.at + HEADER + 8 * (WORDS - targets) as u64
    }

    /// The times of `looks`, which are requested by `words`.
    fn answer(
        &mut self,
        words: &[u64],
        looks: &[(&[u32], &[u32])],
        passes: u32,
    ) -> Result<Vec<Vec<Cycles>>, RecolorError> {
        self.write(self.at + HEADER, words)?;
        let passes_at = self.at + offset_of!(agent::Sight, passes) as u64;
        self.write(passes_at, &[u64::from(passes), self.at + HEADER, looks.len() as u64])?;
        self.made += 1;
        self.write(self.at + offset_of!(agent::Sight, request) as u64, &[self.made])?;
        let begin = Instant::now();
        while self.read(self.at + offset_of!(agent::Sight, answer) as u64, 1)? != [self.made] {
            if begin.elapsed() > PATIENCE {
                return Err(self.blind(HostError::NoAnswer));
            }
            std::thread::yield_now();
        }
        let ticks_at = self.ticks_at(looks);
        let ticks = self.read(ticks_at, ((self.at + BYTES - ticks_at) / 8) as usize)?;
        let mut ticks = ticks.into_iter().map(Cycles);
        Ok(looks.iter().map(|(_, targets)| ticks.by_ref().take(targets.len()).collect()).collect())
    }

    fn write(&self, at: u64, words: &[u64]) -> Result<(), RecolorError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.memory.write_all_at(&bytes, at).map_err(|source| RecolorError::Memory { pid: self.pid.0, source })
    }

    fn read(&self, at: u64, count: usize) -> Result<Vec<u64>, RecolorError> {
        let mut bytes = vec![0; 8 * count];
        self.memory.read_exact_at(&mut bytes, at).map_err(|source| RecolorError::Memory { pid: self.pid.0, source })?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
        Ok(bytes.chunks_exact(8).map(word).collect())
    }
}

impl Look for Sight<'_> {
    fn look(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>) {
        *shares = self.look_at_all(&[(set, targets)], passes).remove(0);
    }

    fn look_at_all(&mut self, looks: &[(&[u32], &[u32])], passes: u32) -> Vec<Vec<f32>> {
        let walks = if self.failed.is_some() { Ok(Vec::new()) } else { self.walks(looks, passes) };
        match walks {
            Ok(walks) if walks.len() == looks.len() => {
                let shares =
                    |walks: Vec<Cycles>| walks.into_iter().map(|ticks| self.ticks.share_missing(ticks)).collect();
                walks.into_iter().map(shares).collect()
            }
            // Without an answer a look says nothing: it counts as noise, and the failure is told at the end.
            failed => {
                self.failed = self.failed.take().or(failed.err());
                looks.iter().map(|(_, targets)| vec![1.0; targets.len()]).collect()
            }
        }
    }
}

impl Drop for Sight<'_> {
    fn drop(&mut self) {
        // Where this fails the helper goes by itself after a while.
        let _ = self.write(self.at + offset_of!(agent::Sight, request) as u64, &[LAST]);
    }
}

/// A page that was given a frame of a color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The color.
    pub color: Color,
    /// The frame, where its number can be seen: the page has lost its color when it has another one.
    pub frame: Option<FrameNumber>,
}

/// Such pages of a process, by address.
pub type Placed = BTreeMap<u64, Place>;
