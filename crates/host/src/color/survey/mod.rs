//! A survey of memory: eviction sets are found, one for each color, and pages are classified by them.

mod bits;
#[cfg(test)]
mod fixture;
mod verification;

use std::time::{Duration, Instant};

use isochrome_model::evidence::PaletteEvidence;
use isochrome_model::miss_ratio::Touches;
use isochrome_model::palette::infer::{color_of_tests, merge_groups};
use isochrome_model::palette::{Group, Inference, Method, PageSample, Samples, infer, samples};
use isochrome_model::units::{Bytes, Color};

pub use self::verification::{Verification, VerifiedShares};
use super::classify::{CONFIRMING_ROUNDS, classify, classify_again, cross_evictions};
use super::eviction::{ArenaEvictionTest, CountedEvictionTest, TimedEvictionTest};
use super::target::Target;
use super::{discover, pagemap};
use crate::color::error::ColorError;
use crate::counters::miss_counters;
use crate::error::SystemError;
use crate::interrupt;
use crate::machine::sysfs::Processor;
use crate::sys::memory::{Arena, page_bytes};

/// Most surveys that are made while their outcome is in doubt.
const ATTEMPTS: u64 = 3;

/// Time for which starting a survey is tried again after disturbances.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time between two attempts at starting a survey.
const START_REST: Duration = Duration::from_millis(50);

/// Time after which the search for eviction sets ends with those found so far.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(60);

/// A survey in progress: eviction sets are known, and pages are being classified.
pub struct Survey {
    target: Target,
    method: Method,
    eviction_test: Box<dyn ArenaEvictionTest>,
    rng: fastrand::Rng,
    groups: Vec<Vec<u32>>,
    cross: Vec<Vec<f32>>,
    group_colors: Vec<Color>,
    pages: Vec<PageSample>,
    /// First page that has not been touched. The pages before it are ready for tests.
    ready: u32,
    begin: Instant,
    elapsed: Duration,
    classifying: Duration,
    /// Methods that were tried first, and why each was rejected.
    refused: Vec<(Method, ColorError)>,
    /// The method by which pages are tested, and whether it replaces frame bits that turn out to be wrong.
    tested_by: Method,
    bits_may_be_wrong: bool,
}

/// Classified memory, and how it was classified.
pub struct Collection {
    /// The memory. Its first [`Samples::pages`]`.len()` pages are classified.
    pub arena: Arena,
    /// The samples of the classified pages.
    pub samples: Samples,
    /// The colors inferred from the samples.
    pub inference: Inference,
    /// Total time until the last page was classified.
    pub elapsed: Duration,
    /// Time of classification alone, including the confirmation of ambiguous pages.
    pub classifying: Duration,
}

impl Survey {
    /// Maps memory to survey, up to `limit`. Only pages that are tested are touched.
    pub fn memory(target: Target, limit: Bytes) -> Result<Arena, ColorError> {
        let needed = target.sizes().pages_needed();
        let pages = limit.0 as usize / page_bytes();
        if pages < needed {
            let needed = Bytes((needed * page_bytes()) as u64);
            return Err(ColorError::TooLittleMemory { limit, needed });
        }
        Ok(Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?)
    }

    /// Surveys `pages` pages with a survey that `start` begins. Repeats this while the outcome is in doubt, or while disturbances keep the
    /// survey from starting. `start` gets a number to add to its seed.
    ///
    /// Returns the survey and the number of attempts. The time of the survey includes all attempts.
    pub fn patiently(
        pages: usize,
        mut start: impl FnMut(u64) -> Result<Survey, ColorError>,
    ) -> Result<(Survey, u64), ColorError> {
        let begin = Instant::now();
        let (mut attempts, mut doubted) = (0, 0);
        loop {
            let outcome = start(attempts);
            attempts += 1;
            match outcome {
                Ok(mut survey) => {
                    // The time of earlier attempts counts as time of this survey.
                    survey.begin = begin;
                    survey.classify(pages)?;
                    doubted += 1;
                    if doubted == ATTEMPTS || survey.inference().doubts.is_empty() {
                        return Ok((survey, attempts));
                    }
                }
                Err(error) if begin.elapsed() > START_LIMIT || !error.may_pass() => return Err(error),
                Err(_) => std::thread::sleep(START_REST),
            }
        }
    }

    /// Begins a survey with the first method that works here: frame bits confirmed by eviction tests, hardware counters, or time.
    pub fn start(target: Target, limit: Bytes, processor: &Processor, seed: u64) -> Result<Survey, ColorError> {
        let mut refused = Vec::new();
        for method in [Method::Bits, Method::Counters] {
            match Self::start_by(method, target, Self::memory(target, limit)?, processor, seed) {
                Ok(mut survey) => {
                    survey.refused = refused;
                    survey.bits_may_be_wrong = true;
                    return Ok(survey);
                }
                Err(error) => refused.push((method, error)),
            }
        }
        let mut survey = Self::start_by(Method::Timing, target, Self::memory(target, limit)?, processor, seed)?;
        survey.refused = refused;
        Ok(survey)
    }

    /// Begins a survey of `arena` with `method`.
    pub fn start_by(
        method: Method,
        target: Target,
        arena: Arena,
        processor: &Processor,
        seed: u64,
    ) -> Result<Survey, ColorError> {
        let begin = Instant::now();
        let sizes = target.sizes();
        match method {
            Method::Timing => {
                let eviction_test = TimedEvictionTest::calibrate(arena, sizes, seed)?;
                Self::discover(target, method, Box::new(eviction_test), seed, begin)
            }
            Method::Counters => {
                let eviction_test = CountedEvictionTest::new(
                    arena,
                    sizes.line_bytes,
                    miss_counters(processor, target.level, Touches::Data)?,
                    seed,
                );
                Self::discover(target, method, Box::new(eviction_test), seed, begin)
            }
            Method::Bits => {
                let (tested_by, eviction_test) = Self::any_eviction_test(target, arena, processor, seed)?;
                let mut survey = Self::new(target, method, eviction_test, seed, begin);
                survey.tested_by = tested_by;
                Self::confirm_bits(survey)
            }
        }
    }

    /// Returns an eviction test by hardware counters if there are any, or else by time.
    fn any_eviction_test(
        target: Target,
        arena: Arena,
        processor: &Processor,
        seed: u64,
    ) -> Result<(Method, Box<dyn ArenaEvictionTest>), ColorError> {
        let sizes = target.sizes();
        Ok(match miss_counters(processor, target.level, Touches::Data) {
            Ok(counters) => {
                (Method::Counters, Box::new(CountedEvictionTest::new(arena, sizes.line_bytes, counters, seed)))
            }
            Err(_) => (Method::Timing, Box::new(TimedEvictionTest::calibrate(arena, sizes, seed)?)),
        })
    }

    fn new(
        target: Target,
        method: Method,
        eviction_test: Box<dyn ArenaEvictionTest>,
        seed: u64,
        begin: Instant,
    ) -> Survey {
        Survey {
            target,
            method,
            eviction_test,
            rng: fastrand::Rng::with_seed(seed),
            groups: Vec::new(),
            cross: Vec::new(),
            group_colors: Vec::new(),
            pages: Vec::new(),
            ready: 0,
            begin,
            elapsed: Duration::ZERO,
            classifying: Duration::ZERO,
            refused: Vec::new(),
            tested_by: method,
            bits_may_be_wrong: false,
        }
    }

    fn discover(
        target: Target,
        method: Method,
        eviction_test: Box<dyn ArenaEvictionTest>,
        seed: u64,
        begin: Instant,
    ) -> Result<Survey, ColorError> {
        let mut survey = Self::new(target, method, eviction_test, seed, begin);
        survey.find_groups()?;
        Ok(survey)
    }

    /// Finds the eviction sets.
    fn find_groups(&mut self) -> Result<(), ColorError> {
        let begin = Instant::now();
        self.make_ready(self.target.pages_to_search());
        // A large shared level may have more colors than can be found in any useful time.
        let stop = || interrupt::interrupted() || begin.elapsed() > DISCOVERY_LIMIT;
        let (groups, ready) =
            discover::groups(&mut *self.eviction_test, self.target.search(), self.ready, &mut self.rng, &stop);
        self.ready = ready;
        self.eviction_test.failure().map_or(Ok(()), Err)?;
        if interrupt::interrupted() {
            return Err(SystemError::Interrupted.into());
        }
        if groups.is_empty() {
            return Err(ColorError::NoEviction { level: self.target.level });
        }
        self.know(groups.into_iter().map(|group| group.set).collect());
        Ok(())
    }

    /// Records the eviction sets, and measures which of them evict each other's pages.
    fn know(&mut self, groups: Vec<Vec<u32>>) {
        self.cross = cross_evictions(&mut *self.eviction_test, &groups);
        self.group_colors = merge_groups(&self.cross);
        self.groups = groups;
    }

    fn make_ready(&mut self, pages: usize) {
        let end = pages.min(self.eviction_test.arena().page_count()) as u32;
        if end > self.ready {
            self.eviction_test.make_ready(self.ready..end);
            self.ready = end;
        }
    }

    /// Returns the number of pages that the memory limit allows to classify.
    pub fn pages_at_most(&self) -> usize {
        self.eviction_test.arena().page_count()
    }

    /// Returns the number of pages classified so far.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the number of colors found.
    pub fn colors(&self) -> u32 {
        self.group_colors.iter().map(|c| u32::from(c.0) + 1).max().unwrap_or(0)
    }

    /// Classifies `more` further pages, within the memory limit.
    ///
    /// Fails if tests no longer work, as after the counters were taken away, and with [`ColorError::BitsContradicted`] if frame bits were requested and are wrong here. If frame bits are given up instead, fails
    /// if no eviction sets are found to replace them.
    pub fn classify(&mut self, more: usize) -> Result<(), ColorError> {
        let first = self.pages.len();
        let end = (first + more).min(self.pages_at_most());
        self.make_ready(end);
        let begin = Instant::now();
        self.pages.resize_with(end, PageSample::default);
        let frames = pagemap::frames(self.eviction_test.arena(), first..end);
        for (page, frame) in self.pages[first..].iter_mut().zip(frames) {
            page.frame = frame;
        }
        let range = first as u32..end as u32;
        let mut checked = Ok(());
        if self.method == Method::Bits {
            checked = self.check_bits(range);
        } else {
            self.test_pages(range);
        }
        // Pages that could not be tested contradict no frame bits.
        self.eviction_test.failure().map_or(Ok(()), Err)?;
        if let Err(error) = checked {
            if !self.bits_may_be_wrong {
                return Err(error);
            }
            self.refused.push((Method::Bits, error));
            self.test_instead()?;
            self.eviction_test.failure().map_or(Ok(()), Err)?;
        }
        self.classifying += begin.elapsed();
        self.elapsed = self.begin.elapsed();
        Ok(())
    }

    /// Returns the methods that were tried before the one in use, and why each was rejected.
    pub fn refused(&self) -> &[(Method, ColorError)] {
        &self.refused
    }

    /// Classifies until there are at least `wanted` pages of every color, 1024 pages at a time.
    ///
    /// Fails with [`ColorError::ColorExhausted`] if the memory limit is reached before that.
    pub fn classify_until(&mut self, wanted: usize) -> Result<(), ColorError> {
        const STEP: usize = 1024;
        loop {
            let per_color = self.inference().per_color;
            let (color, free) = per_color
                .iter()
                .enumerate()
                .min_by_key(|(_, pages)| **pages)
                .map_or((0, 0), |(color, pages)| (color as u16, *pages as usize));
            if free >= wanted {
                return Ok(());
            }
            if self.pages() == self.pages_at_most() {
                return Err(ColorError::ColorExhausted { color, wanted, free });
            }
            self.classify(STEP)?;
        }
    }

    fn test_pages(&mut self, range: std::ops::Range<u32>) {
        let Survey { eviction_test, groups, group_colors, pages, rng, .. } = self;
        let undecided = |pages: &[PageSample], page: u32| color_of_tests(&pages[page as usize], group_colors).is_none();
        // A page of an eviction set is part of the set that would test it, so it is tested alone, by the set's other pages.
        for page in groups.iter().flatten().copied().filter(|page| range.contains(page)) {
            let others: Vec<Vec<u32>> =
                groups.iter().map(|g| g.iter().copied().filter(|p| *p != page).collect()).collect();
            for _ in 0..=CONFIRMING_ROUNDS {
                classify(&mut **eviction_test, &others, &[page], 1, pages);
                if !undecided(pages, page) {
                    break;
                }
            }
        }
        let open = range.filter(|page| pages[*page as usize].tests.is_empty()).collect();
        classify_again(&mut **eviction_test, groups, group_colors, open, pages, rng);
    }

    fn samples(&self) -> Samples {
        Samples {
            schema: samples::SCHEMA.to_owned(),
            level: self.target.level,
            geometry: self.target.geometry,
            page_bytes: Bytes(page_bytes() as u64),
            method: self.method,
            groups: self.groups.iter().map(|set| Group { set: set.clone() }).collect(),
            cross: self.cross.clone(),
            pages: self.pages.clone(),
        }
    }

    /// Returns the colors inferred from the samples so far.
    pub fn inference(&self) -> Inference {
        infer(&self.samples())
    }

    /// Ends the survey, and returns the samples, the inferred colors, and the memory.
    pub fn finish(mut self) -> Collection {
        // Gigabytes of memory have millions of pages, so the samples are moved, not copied.
        let pages = std::mem::take(&mut self.pages);
        let samples = Samples { pages, ..self.samples() };
        let inference = infer(&samples);
        let (elapsed, classifying) = (self.elapsed, self.classifying);
        Collection { inference, samples, elapsed, classifying, arena: self.eviction_test.into_arena() }
    }
}

impl Collection {
    /// Returns the mean time to classify one page, in microseconds.
    pub fn us_per_page(&self) -> f64 {
        self.classifying.as_secs_f64() * 1e6 / self.samples.pages.len().max(1) as f64
    }

    /// Returns the evidence of the survey for reports.
    pub fn evidence(&self) -> PaletteEvidence {
        PaletteEvidence {
            level: self.samples.level,
            colors: self.inference.palette.colors,
            colors_expected: self.inference.colors_expected,
            method: self.samples.method.name().to_owned(),
            pages: self.samples.pages.len() as u64,
            ambiguous: self.inference.ambiguous.len() as u64,
            seconds: self.elapsed.as_secs_f64(),
            us_per_page: self.us_per_page(),
            per_color: self.inference.per_color.clone(),
            eviction: self.inference.eviction.clone(),
            rule: self.inference.rule_in_words.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::{against, discovered, survey};
    use super::*;
    use crate::color::modeled::ModeledEvictionTest;

    #[test]
    fn every_color_of_an_undisturbed_cache_is_found_and_every_page_classified() {
        let (collection, truth) = survey(ModeledEvictionTest::new(16, 8, 4096, 1), 4096);
        assert_eq!(collection.inference.palette.colors, 16);
        assert_eq!(against(&truth, &collection), (1.0, 0));
        assert_eq!(collection.inference.doubts, []);
    }

    #[test]
    fn noise_and_replacement_luck_hide_no_color() {
        for seed in 0..5 {
            let mut eviction_test = ModeledEvictionTest::new(16, 8, 4096, seed);
            (eviction_test.noise, eviction_test.luck) = (0.05, 0.1);
            let (collection, truth) = survey(eviction_test, 2048);
            assert_eq!(collection.inference.palette.colors, 16, "seed {seed}");
            let (agreement, ambiguous) = against(&truth, &collection);
            assert!(agreement >= 0.995, "seed {seed}: {agreement}");
            assert!(ambiguous <= 10, "seed {seed}: {ambiguous} of 2048");
        }
    }

    #[test]
    fn colors_that_no_page_has_are_missed_aloud() {
        let (collection, truth) = survey(ModeledEvictionTest::new(10, 8, 4096, 3), 1024);
        assert_eq!(collection.inference.palette.colors, 10);
        assert_eq!(against(&truth, &collection), (1.0, 0));
        assert!(matches!(collection.inference.doubts[..], [infer::Doubt::Count { found: 10, expected: 16 }]));
    }

    #[test]
    fn a_cache_in_which_nothing_evicts_is_an_error() {
        let eviction_test = ModeledEvictionTest::new(16, 5000, 4096, 1);
        let error = discovered(eviction_test).err().unwrap();
        assert!(matches!(error, ColorError::NoEviction { level: 2 }));
        assert!(error.to_string().contains("hint:"));
    }

    #[test]
    fn classification_goes_on_until_every_color_has_its_pages_or_the_memory_ends() {
        let eviction_test = ModeledEvictionTest::new(16, 8, 4096, 1);
        let mut survey = discovered(eviction_test).unwrap();
        survey.classify_until(50).unwrap();
        assert!(survey.inference().per_color.iter().all(|pages| *pages >= 50));
        assert!(survey.pages() < 4096, "no more than needed");
        // 4096 pages in 16 colors are 256 of each, give or take.
        let error = survey.classify_until(400).unwrap_err();
        assert!(matches!(error, ColorError::ColorExhausted { wanted: 400, .. }), "{error}");
    }
}
