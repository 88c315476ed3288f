//! Remote eviction tests: a helper inside another process times which of its pages are evicted by pages of known color.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use isochrome_model::units::Cycles;

use super::error::RecolorError;
use super::scratch_area::ScratchArea;
use super::wanted::Wanted;
use crate::color::ColorError;
use crate::color::PASSES;
use crate::color::eviction::{EvictionTest, STEPS, WalkTicks};
use crate::color::known::Page;
use crate::color::reference::Reference;
use crate::color::tester::Tester;
use crate::sys::agent::{self, LAST};
use crate::sys::clock;
use crate::sys::memory::page_bytes;

/// Size of the memory for requests, in bytes. Requests are large and few because each request waits until both sides have a CPU.
pub const BYTES: u64 = 256 << 10;

/// Size of the header in front of the requests, in bytes.
const HEADER: u64 = size_of::<agent::TestHeader>() as u64;

// The helper requires this.
const _: () = assert!(STEPS.is_power_of_two());

/// Number of 64-bit words behind the header.
const WORDS: usize = ((BYTES - HEADER) / 8) as usize;

/// How long the helper waits for the next request, and how long this program waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time between two checks for an answer. Each check may interrupt the helper and disturb its test.
const GLANCE: Duration = Duration::from_micros(300);

/// Number of walks of each kind for the calibration.
const CALIBRATION_WALKS: usize = 200;

/// Eviction tests of the pages of another process, which a helper inside the process makes.
pub struct RemoteEvictionTest<'a> {
    memory: File,
    at: u64,
    reference: &'a Reference,
    /// Addresses of pages: first the reference pages, then the pages under test.
    pages: Vec<u64>,
    /// For each color, the reference pages of that color, as indices into `pages`.
    sets: Vec<Vec<u32>>,
    made: u64,
    ticks: WalkTicks,
    rng: fastrand::Rng,
    /// How long to wait for an answer.
    patience: Duration,
    /// The first failure, after which no more requests are made.
    failed: Option<ColorError>,
}

/// Returns the header that must be in front of the requests before the helper begins.
pub fn before() -> agent::TestHeader {
    let patience = clock::rate_hz() * PATIENCE.as_secs();
    agent::TestHeader { request: 0, answer: 0, patience, passes: 0, tests: 0, tests_len: 0, left: 0 }
}

/// Returns a tester for pages of a process. The tester uses the helper in `area` that has just been created.
///
/// The walk times are measured first if they are not known yet.
pub fn tester<'a>(
    area: &ScratchArea,
    reference: &'a Reference,
    wanted: &Wanted,
) -> Result<Tester<RemoteEvictionTest<'a>>, RecolorError> {
    let remote = RemoteEvictionTest::new(area, reference, wanted)?;
    let sets = remote.sets.clone();
    Ok(Tester::new(remote, sets, fastrand::u64(..)))
}

impl<'a> RemoteEvictionTest<'a> {
    fn new(
        area: &ScratchArea,
        reference: &'a Reference,
        wanted: &Wanted,
    ) -> Result<RemoteEvictionTest<'a>, RecolorError> {
        let (pid, at, base) = (area.pid, area.test_requests(), area.layout.reference);
        let page = page_bytes() as u64;
        let pages: Vec<u64> = reference.sets.iter().flatten().map(|number| base + u64::from(*number) * page).collect();
        let mut numbers = 0..pages.len() as u32;
        let sets = reference.sets.iter().map(|set| numbers.by_ref().take(set.len()).collect()).collect();
        let (memory, ticks) = (pid.memory()?, WalkTicks { hit: 0.0, miss: 1.0 });
        let rng = fastrand::Rng::new();
        let mut remote = RemoteEvictionTest {
            memory,
            at,
            reference,
            pages,
            sets,
            made: 0,
            ticks,
            rng,
            patience: PATIENCE,
            failed: None,
        };
        match wanted.known.ticks() {
            Some(ticks) => remote.ticks = ticks,
            None => {
                remote.calibrate().map_err(RecolorError::unmeasured(pid.0))?;
                wanted.known.keep_ticks(remote.ticks);
            }
        }
        Ok(remote)
    }

    /// Limits the wait for an answer to `patience`, for tests during which the process stands still.
    pub fn hurry(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Numbers `pages` for the tests that follow, and returns their numbers. Earlier numbers, other than those of the reference, become void.
    ///
    /// The pages must stay mapped while they are tested.
    pub fn number(&mut self, pages: &[Page]) -> Vec<u32> {
        let first = self.sets.iter().map(Vec::len).sum();
        self.pages.truncate(first);
        self.pages.extend(pages.iter().map(|(address, _)| *address));
        (first as u32..self.pages.len() as u32).collect()
    }

    /// Measures the times of walks whose lines are in the level, and of walks whose lines are further out.
    fn calibrate(&mut self) -> Result<(), ColorError> {
        let inner = self.reference.sizes().inner_pages();
        let ways = self.reference.geometry.ways as usize;
        let colors = self.sets.len();
        let (mut hitting, mut missing) = (Vec::new(), Vec::new());
        for walk in 0..CALIBRATION_WALKS {
            let own = &self.sets[walk % colors];
            let target = own[walk / colors % own.len()];
            // A few pages of each other color stay in the level with the target, but are more than the inner level holds.
            let others = (1..colors).flat_map(|step| self.sets[(walk + step) % colors].iter().take(ways / 2));
            hitting.push((others.copied().take(inner).collect::<Vec<u32>>(), [target]));
            missing.push((own.iter().copied().filter(|page| *page != target).collect::<Vec<u32>>(), [target]));
        }
        let mut walks = |tests: &[(Vec<u32>, [u32; 1])]| {
            let tests: Vec<(&[u32], &[u32])> = tests.iter().map(|(set, target)| (&set[..], &target[..])).collect();
            self.walks(&tests, PASSES).map(|walks| walks.concat())
        };
        let (hits, misses) = (walks(&hitting)?, walks(&missing)?);
        self.ticks = WalkTicks::of(hits, misses)?;
        Ok(())
    }

    /// Returns the walk times of the targets of each of `tests`. A test is a set and its targets.
    ///
    /// Each test touches its targets, touches its set `passes` times, and then walks over part of each target.
    fn walks(&mut self, tests: &[(&[u32], &[u32])], passes: u32) -> Result<Vec<Vec<Cycles>>, ColorError> {
        let mut walks = Vec::with_capacity(tests.len());
        let mut rest = tests;
        while !rest.is_empty() {
            let (request, taken) = self.request(rest);
            let (now, later) = rest.split_at(taken);
            walks.extend(self.answer(&request, now, passes)?);
            rest = later;
        }
        Ok(walks)
    }

    /// Builds the request for as many of `tests` as fit, and returns its words and the number of these tests.
    ///
    /// The words are the tests, then the lists they refer to.
    fn request(&mut self, tests: &[(&[u32], &[u32])]) -> (Vec<u64>, usize) {
        const HEAD: usize = size_of::<agent::Test>() / 8;
        let mut left = WORDS;
        let line_bytes = self.reference.geometry.line_bytes.0;
        let lines = page_bytes() as u64 / line_bytes;
        let touched = self.reference.traversal.touched(lines as usize);
        let fits = |(set, targets): &&(&[u32], &[u32])| {
            let words = HEAD + touched + set.len() + 2 * targets.len();
            left.checked_sub(words).map(|rest| left = rest).is_some()
        };
        let taken = tests.iter().take_while(fits).count();
        let (mut words, mut lists, mut ticks) = (Vec::new(), Vec::new(), self.ticks_at(&tests[..taken]));
        for (set, targets) in &tests[..taken] {
            let mut list = |entries: Vec<u64>| {
                let at = self.at + HEADER + 8 * (HEAD * taken + lists.len()) as u64;
                let len = entries.len() as u64;
                lists.extend(entries);
                [at, len]
            };
            let addresses = |numbers: &[u32]| numbers.iter().map(|n| self.pages[*n as usize]).collect();
            // Each test has another order of lines, because prefetchers learn an order.
            let mut order: Vec<u64> = (0..lines).map(|line| line * line_bytes).collect();
            self.rng.shuffle(&mut order);
            order.truncate(touched);
            words.extend(list(addresses(set)));
            words.extend(list(addresses(targets)));
            words.extend(list(order));
            words.extend([u64::from(STEPS), ticks]);
            ticks += 8 * targets.len() as u64;
        }
        words.append(&mut lists);
        assert!(taken > 0, "a set is too large");
        (words, taken)
    }

    /// Returns the address where the helper writes the times of `tests`.
    fn ticks_at(&self, tests: &[(&[u32], &[u32])]) -> u64 {
        let targets: usize = tests.iter().map(|(_, targets)| targets.len()).sum();
        self.at + HEADER + 8 * (WORDS - targets) as u64
    }

    /// Makes the request `words`, and returns the times of `tests`.
    fn answer(
        &mut self,
        words: &[u64],
        tests: &[(&[u32], &[u32])],
        passes: u32,
    ) -> Result<Vec<Vec<Cycles>>, ColorError> {
        self.write(self.at + HEADER, words)?;
        let passes_at = self.at + offset_of!(agent::TestHeader, passes) as u64;
        self.write(passes_at, &[u64::from(passes), self.at + HEADER, tests.len() as u64])?;
        self.made += 1;
        self.write(self.at + offset_of!(agent::TestHeader, request) as u64, &[self.made])?;
        let begin = Instant::now();
        while self.read(self.at + offset_of!(agent::TestHeader, answer) as u64, 1)? != [self.made] {
            if begin.elapsed() > self.patience {
                return Err(ColorError::NoAnswer);
            }
            // The helper may be waiting for this very CPU.
            std::thread::sleep(GLANCE);
        }
        let ticks_at = self.ticks_at(tests);
        let ticks = self.read(ticks_at, ((self.at + BYTES - ticks_at) / 8) as usize)?;
        let mut ticks = ticks.into_iter().map(Cycles);
        Ok(tests.iter().map(|(_, targets)| ticks.by_ref().take(targets.len()).collect()).collect())
    }

    fn write(&self, at: u64, words: &[u64]) -> Result<(), ColorError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.memory.write_all_at(&bytes, at).map_err(|source| ColorError::RemoteUnreadable { source })
    }

    fn read(&self, at: u64, count: usize) -> Result<Vec<u64>, ColorError> {
        let mut bytes = vec![0; 8 * count];
        self.memory.read_exact_at(&mut bytes, at).map_err(|source| ColorError::RemoteUnreadable { source })?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
        Ok(bytes.chunks_exact(8).map(word).collect())
    }
}

impl EvictionTest for RemoteEvictionTest<'_> {
    fn failure(&mut self) -> Option<ColorError> {
        self.failed.take()
    }

    fn run(&mut self, set: &[u32], targets: &[u32], passes: u32, shares: &mut Vec<f32>) {
        *shares = self.run_all(&[(set, targets)], passes).remove(0);
    }

    fn run_all(&mut self, tests: &[(&[u32], &[u32])], passes: u32) -> Vec<Vec<f32>> {
        let walks = if self.failed.is_some() { Ok(Vec::new()) } else { self.walks(tests, passes) };
        match walks {
            Ok(walks) if walks.len() == tests.len() => {
                let shares =
                    |walks: Vec<Cycles>| walks.into_iter().map(|ticks| self.ticks.share_missing(ticks)).collect();
                walks.into_iter().map(shares).collect()
            }
            // A test without an answer counts as noise, and the failure is reported at the end.
            failed => {
                self.failed = self.failed.take().or(failed.err());
                tests.iter().map(|(_, targets)| vec![1.0; targets.len()]).collect()
            }
        }
    }
}

impl Drop for RemoteEvictionTest<'_> {
    fn drop(&mut self) {
        // If this fails, the helper ends by itself after `PATIENCE`.
        let _ = self.write(self.at + offset_of!(agent::TestHeader, request) as u64, &[LAST]);
    }
}
