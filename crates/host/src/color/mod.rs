//! Colors of page frames: the samples that a palette is inferred from, the palettes of this boot, colored memory, and who holds which colors.
//!
//! Color shows when pages evict each other: touch a page, traverse a set of other pages, and see whether the page is still
//! cached. [`discover`] finds eviction sets, one group of pages per color, without knowing how many there are; every
//! further page is classified by which group evicts it. What the samples mean is concluded by
//! [`isochrome_model::palette::infer()`].

pub mod discover;
pub mod eviction;
pub mod known;
pub mod ledger;
pub mod local;
#[cfg(test)]
mod modeled;
pub mod pagemap;
pub mod pool;
pub mod reference;
pub mod resident;
pub mod saved;
pub mod tester;

use std::time::{Duration, Instant};

use isochrome_model::evidence::PaletteEvidence;
use isochrome_model::geometry::Geometry;
use isochrome_model::machine::{Holds, Machine};
use isochrome_model::miss_ratio::Touches;
use isochrome_model::palette::infer::{color_of_tests, merge_groups};
use isochrome_model::palette::{Group, Inference, Method, PageSample, Samples, infer, samples};
use isochrome_model::units::{Bytes, Color, CpuId, FrameNumber};
use schemars::JsonSchema;
use serde::Serialize;

use crate::counters::miss_counters;
use crate::error::HostError;
use crate::interrupt;
use crate::machine::sysfs::Processor;
use crate::sys::memory::{Arena, page_bytes};
use eviction::{ArenaEvictionTest, CountedEvictionTest, EvictionTest, LevelSizes, TimedEvictionTest};

/// Surveys tried while their outcome is in doubt.
const ATTEMPTS: u64 = 3;

/// For how long a survey is begun again that a disturbance kept from starting.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time between two such attempts.
const START_REST: Duration = Duration::from_millis(50);

/// The cache level to color.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Level number.
    pub level: u8,
    /// Its shape.
    pub geometry: Geometry,
    /// Size of the next data level inside it.
    pub inner: Bytes,
}

impl Target {
    /// Level `level` of `machine`, or the one to color by default for `cpu`.
    ///
    /// Fails with [`HostError::OneColor`] when the level has one color only or is not known.
    pub fn of(machine: &Machine, level: Option<u8>, cpu: CpuId) -> Result<Target, HostError> {
        let chosen = match level {
            Some(level) => machine.data_level(level).ok_or(HostError::NoSuchLevel { level })?,
            None => machine.colorable_level(cpu).ok_or(HostError::OneColor { level: None })?,
        };
        let geometry = chosen.geometry.value;
        if geometry.color_count(machine.page_bytes) < 2 {
            return Err(HostError::OneColor { level });
        }
        let inner = machine.data_level(chosen.level - 1).map_or(Bytes(0), |l| l.geometry.value.cache_bytes());
        Ok(Target { level: chosen.level, geometry, inner })
    }

    /// The outermost level that `cpu` has to itself, else level 2, whether it can be colored or not: what is flooded where nothing
    /// can be partitioned.
    pub fn to_flood(machine: &Machine, cpu: CpuId) -> Option<Target> {
        let data = || machine.levels.iter().filter(|level| level.holds != Holds::Instruction && level.level > 1);
        let chosen = data().filter(|level| level.is_private_to(cpu)).max_by_key(|level| level.level);
        let chosen = chosen.or_else(|| data().min_by_key(|level| level.level))?;
        let inner = machine.data_level(chosen.level - 1).map_or(Bytes(0), |l| l.geometry.value.cache_bytes());
        Some(Target { level: chosen.level, geometry: chosen.geometry.value, inner })
    }

    /// Sizes of the level and of the one inside it.
    pub fn sizes(&self) -> LevelSizes {
        LevelSizes {
            line_bytes: self.geometry.line_bytes.0 as usize,
            inner: self.inner,
            level: self.geometry.cache_bytes(),
        }
    }

    /// Pages among which eviction sets are sought: enough that missing colors can be filled up, and to measure times by.
    fn pages_to_search(&self) -> usize {
        (2 * self.search().pages()).max(self.sizes().pages_needed())
    }

    fn search(&self) -> discover::Search {
        discover::Search {
            ways: self.geometry.ways as usize,
            colors_expected: self.geometry.color_count(Bytes(page_bytes() as u64)) as usize,
        }
    }
}

/// A survey under way: eviction sets are known, pages are being classified.
pub struct Survey {
    target: Target,
    method: Method,
    eviction_test: Box<dyn ArenaEvictionTest>,
    rng: fastrand::Rng,
    groups: Vec<Vec<u32>>,
    cross: Vec<Vec<f32>>,
    group_colors: Vec<Color>,
    pages: Vec<PageSample>,
    /// Pages fit for tests: those from here on have not been touched.
    ready: u32,
    begin: Instant,
    elapsed: Duration,
    classifying: Duration,
    /// Methods that were tried first and why they did not do.
    refused: Vec<(Method, HostError)>,
    /// The method that pages are tested by, and whether frame bits that turn out to be wrong are given up for it.
    tested_by: Method,
    bits_may_be_wrong: bool,
}

/// What putting colors of frames to the test showed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Confirmed {
    /// Colors tested.
    colors: usize,
    /// Colors that do not evict their own pages, or evict others'.
    wrong: usize,
}

/// Classified memory and how it was classified.
pub struct Collection {
    /// The pages; the first [`Samples::pages`]`.len()` are classified.
    pub arena: Arena,
    /// What was seen.
    pub samples: Samples,
    /// What it means.
    pub inference: Inference,
    /// Whole time until the last page was classified.
    pub elapsed: Duration,
    /// Time of classification alone, confirmation of ambiguous pages included.
    pub classifying: Duration,
}

/// Pages classified together at first: more share the cost of a traversal, but when more pages of one color than the
/// cache has ways meet in a batch they evict each other.
const BATCH: usize = 32;
/// Batch of the rounds that confirm ambiguous pages.
const CONFIRMING_BATCH: usize = 8;
/// Rounds of confirmation.
const CONFIRMING_ROUNDS: usize = 8;
/// Time after which the search for eviction sets ends with those found.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(60);
/// Traversals of an eviction set per test when classifying.
pub(crate) const PASSES: u32 = 3;

/// Eviction tests against a color taken from frame bits, of which this share may fail before the bits are refused: a test is
/// the lowest of several, so a wrong one is rare, and wrong bits fail half of them or more.
const BITS_CONTRADICTED: f64 = 0.1;

/// One of so many pages that frame bits color is tested, and at least so many: where a host gives its guest memory in huge pages now and
/// then, or the set index hashes higher bits, the bits are right for some of the memory.
const BITS_CHECKED: usize = 16;
const BITS_CHECKED_AT_LEAST: usize = 256;

/// Share of the pages tested whose color is not that of their frames' bits, from which the bits are refused.
const BITS_WRONG: f64 = 0.02;

impl Survey {
    /// Memory to survey: up to `limit`, of which only what is tested is touched.
    pub fn memory(target: Target, limit: Bytes) -> Result<Arena, HostError> {
        let needed = target.sizes().pages_needed();
        let pages = limit.0 as usize / page_bytes();
        if pages < needed {
            let needed = Bytes((needed * page_bytes()) as u64);
            return Err(HostError::TooLittleMemory { limit, needed });
        }
        Arena::map(pages).map_err(|source| HostError::Memory { pages, source })
    }

    /// Surveys `pages` pages as `start` begins it, again while the outcome is in doubt or a disturbance kept it from starting. `start` is given a
    /// number to add to its seed.
    ///
    /// Gives the survey and how many attempts it took; their time is part of its time.
    pub fn patiently(
        pages: usize,
        mut start: impl FnMut(u64) -> Result<Survey, HostError>,
    ) -> Result<(Survey, u64), HostError> {
        let begin = Instant::now();
        let (mut attempts, mut doubted) = (0, 0);
        loop {
            let outcome = start(attempts);
            attempts += 1;
            match outcome {
                Ok(mut survey) => {
                    // Attempts before this one belong to it.
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

    /// Begins a survey with the first method that works here: frame bits where eviction tests confirm them, hardware
    /// counters, time.
    pub fn start(target: Target, limit: Bytes, processor: &Processor, seed: u64) -> Result<Survey, HostError> {
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
    ) -> Result<Survey, HostError> {
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

    /// An eviction test by counters if there are any, else by time.
    fn any_eviction_test(
        target: Target,
        arena: Arena,
        processor: &Processor,
        seed: u64,
    ) -> Result<(Method, Box<dyn ArenaEvictionTest>), HostError> {
        let sizes = target.sizes();
        Ok(match miss_counters(processor, target.level, Touches::Data) {
            Ok(counters) => {
                (Method::Counters, Box::new(CountedEvictionTest::new(arena, sizes.line_bytes, counters, seed)))
            }
            Err(_) => (Method::Timing, Box::new(TimedEvictionTest::calibrate(arena, sizes, seed)?)),
        })
    }

    /// Groups pages by the color that their frame numbers give, and puts the groups to the eviction test.
    fn confirm_bits(mut survey: Survey) -> Result<Survey, HostError> {
        let geometry = survey.target.geometry;
        let color_of = |frame| Some(geometry.color_of(frame, Bytes(page_bytes() as u64)));
        let tested = survey.confirm(survey.target.search().colors_expected, color_of)?;
        if tested.wrong as f64 > BITS_CONTRADICTED * tested.colors as f64 {
            return Err(HostError::BitsContradicted { what: "colors", wrong: tested.wrong, tested: tested.colors });
        }
        Ok(survey)
    }

    /// Makes one group of each of `colors` colors from pages whose frames have them by `color_of`, touching more memory until every
    /// group is whole, and puts the groups to the eviction test.
    fn confirm(
        &mut self,
        colors: usize,
        color_of: impl Fn(FrameNumber) -> Option<Color>,
    ) -> Result<Confirmed, HostError> {
        let set_len = self.target.search().set_len();
        let mut groups = vec![Vec::new(); colors];
        let (mut pages, mut known) = (0u32, 0);
        while groups.iter().any(|group| group.len() < set_len) {
            if pages as usize == self.pages_at_most() {
                return Err(HostError::PaletteUntested { pages: pages as usize, known });
            }
            self.make_ready(self.target.pages_to_search().max(2 * pages as usize));
            let frames = pagemap::frames(self.eviction_test.arena(), pages as usize..self.ready as usize);
            for (page, frame) in (pages..).zip(frames) {
                let frame = frame.ok_or(HostError::FramesHidden)?;
                if let Some(color) = color_of(frame) {
                    known += 1;
                    groups[usize::from(color.0)].push(page);
                }
            }
            pages = self.ready;
        }
        for group in &mut groups {
            group.truncate(set_len);
        }
        self.know(groups);
        let (wrong, colors) = contradictions(&self.cross);
        Ok(Confirmed { colors, wrong })
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
    ) -> Result<Survey, HostError> {
        let mut survey = Self::new(target, method, eviction_test, seed, begin);
        survey.find_groups()?;
        Ok(survey)
    }

    /// Finds the eviction sets.
    fn find_groups(&mut self) -> Result<(), HostError> {
        let begin = Instant::now();
        self.make_ready(self.target.pages_to_search());
        // A large shared level may hold more colors than can be told apart in any useful time.
        let stop = || interrupt::interrupted() || begin.elapsed() > DISCOVERY_LIMIT;
        let (groups, ready) =
            discover::groups(&mut *self.eviction_test, self.target.search(), self.ready, &mut self.rng, &stop);
        self.ready = ready;
        if interrupt::interrupted() {
            return Err(HostError::Interrupted);
        }
        if groups.is_empty() {
            return Err(HostError::NoEviction { level: self.target.level });
        }
        self.know(groups.into_iter().map(|group| group.set).collect());
        Ok(())
    }

    /// Tests some of the pages of `range` that frame bits have colored.
    ///
    /// Fails with [`HostError::BitsContradicted`] where eviction tests say otherwise.
    fn check_bits(&mut self, range: std::ops::Range<u32>) -> Result<(), HostError> {
        let Survey { target, eviction_test, groups, pages, rng, .. } = self;
        let other = |page: &u32| !groups.iter().any(|group| group.contains(page));
        let count = (range.len() / BITS_CHECKED).max(BITS_CHECKED_AT_LEAST);
        let sample = rng.choose_multiple(range.filter(other), count);
        let colors: Vec<Color> = (0..groups.len() as u16).map(Color).collect();
        classify_again(&mut **eviction_test, groups, &colors, sample.clone(), pages, rng);
        let (mut tested, mut wrong) = (0, 0);
        for page in sample {
            let page = &pages[page as usize];
            let by_bits = page.frame.map(|frame| target.geometry.color_of(frame, Bytes(page_bytes() as u64)));
            if let Some(color) = color_of_tests(page, &colors) {
                tested += 1;
                wrong += usize::from(Some(color) != by_bits);
            }
        }
        if wrong as f64 > BITS_WRONG * f64::from(tested) {
            return Err(HostError::BitsContradicted { what: "pages", wrong, tested: tested as usize });
        }
        Ok(())
    }

    /// Gives the frame bits up, and classifies all pages by eviction tests.
    fn test_instead(&mut self) -> Result<(), HostError> {
        self.method = self.tested_by;
        self.find_groups()?;
        self.pages.iter_mut().for_each(|page| page.tests.clear());
        self.test_pages(0..self.pages.len() as u32);
        Ok(())
    }

    /// Takes in the eviction sets and measures how they act on each other.
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

    /// Pages that the memory limit allows to classify.
    pub fn pages_at_most(&self) -> usize {
        self.eviction_test.arena().page_count()
    }

    /// Pages classified so far.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Colors found.
    pub fn colors(&self) -> u32 {
        self.group_colors.iter().map(|c| u32::from(c.0) + 1).max().unwrap_or(0)
    }

    /// Classifies `more` further pages, as far as the memory limit allows.
    ///
    /// Fails with [`HostError::BitsContradicted`] where frame bits were asked for and are wrong here, and where eviction sets are not found
    /// in their place.
    pub fn classify(&mut self, more: usize) -> Result<(), HostError> {
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
        if self.method != Method::Bits {
            self.test_pages(range);
        } else if let Err(error) = self.check_bits(range) {
            if !self.bits_may_be_wrong {
                return Err(error);
            }
            self.refused.push((Method::Bits, error));
            self.test_instead()?;
        }
        self.classifying += begin.elapsed();
        self.elapsed = self.begin.elapsed();
        Ok(())
    }

    /// Methods that were tried before the one that did, and why they did not do.
    pub fn refused(&self) -> &[(Method, HostError)] {
        &self.refused
    }

    /// Classifies until there are at least `wanted` pages of every color, 1024 pages at a time.
    ///
    /// Fails with [`HostError::ColorExhausted`] when the memory limit is reached before that.
    pub fn classify_until(&mut self, wanted: usize) -> Result<(), HostError> {
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
                return Err(HostError::ColorExhausted { color, wanted, free });
            }
            self.classify(STEP)?;
        }
    }

    fn test_pages(&mut self, range: std::ops::Range<u32>) {
        let Survey { eviction_test, groups, group_colors, pages, rng, .. } = self;
        let undecided = |pages: &[PageSample], page: u32| color_of_tests(&pages[page as usize], group_colors).is_none();
        // A page of an eviction set is traversed by that very set: it is tested alone, with the set's other pages.
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

    /// Puts every color to a test that does not use the eviction sets: do as many of its pages as the cache has ways fit, do half
    /// as many more thrash, and do half as many pages as ways of *every* color together fit?
    ///
    /// A share that must be small is the lowest of several tests, and a color that fails is tested again with other pages, a few times: noise
    /// makes a true color fail now and then, nothing makes a false one pass.
    pub fn verify(&mut self) -> Verification {
        const TRIES: usize = 8;
        let colors = self.inference().page_colors;
        let members = |color: u16| -> Vec<u32> {
            (0u32..).zip(&colors).filter(|(_, c)| **c == Some(Color(color))).map(|(page, _)| page).collect()
        };
        let by_color: Vec<Vec<u32>> = (0..self.colors() as u16).map(members).collect();
        let shares = (0..by_color.len())
            .map(|color| {
                let mut shares = self.verify_color(color, &by_color);
                for _ in 1..TRIES {
                    if shares.is_none_or(|shares| shares.hold()) {
                        break;
                    }
                    shares = self.verify_color(color, &by_color);
                }
                shares
            })
            .collect();
        Verification { shares }
    }

    /// One test of one color; `None` when it has too few pages.
    fn verify_color(&mut self, color: usize, by_color: &[Vec<u32>]) -> Option<VerifiedShares> {
        let ways = self.target.geometry.ways as usize;
        let mut choose = |members: &[u32], count| self.rng.choose_multiple(members.iter().copied(), count);
        let chosen = choose(&by_color[color], ways + ways / 2);
        if chosen.len() < ways + ways / 2 {
            return None;
        }
        // Half the ways of every color, the page under test among its own.
        let mut spread = chosen[..ways / 2].to_vec();
        for (other, members) in by_color.iter().enumerate() {
            if other != color {
                spread.extend(choose(members, ways / 2));
            }
        }
        Some(VerifiedShares {
            fits: self.lost(&chosen[..ways]),
            thrashes: self.thrashed(&chosen),
            spread: self.lost(&spread),
            control: self.lost(&chosen[..1]),
        })
    }

    /// Share of the first of `pages` that is gone after all of them were traversed in turn, the median of tests behind each of which
    /// a test of the page alone loses nothing: replacement luck spares part of it now and then, noise does not count.
    fn thrashed(&mut self, pages: &[u32]) -> f32 {
        const TESTS: usize = 8;
        let (mut gone, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..2 * TESTS {
            self.eviction_test.run(pages, &pages[..1], 4, &mut shares);
            let share = shares[0];
            self.eviction_test.run(&pages[..1], &pages[..1], 4, &mut shares);
            if shares[0] < LOST {
                gone.push(share);
            }
            if gone.len() == TESTS {
                break;
            }
        }
        gone.sort_by(f32::total_cmp);
        gone.get(gone.len() / 2).copied().unwrap_or(0.0)
    }

    /// Share of the first of `pages` that is gone after all of them were traversed in turn, the lowest of several tests.
    fn lost(&mut self, pages: &[u32]) -> f32 {
        self.eviction_test.lowest(pages, pages[0], 4, 8, 0.0)
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

    /// What the samples so far mean.
    pub fn inference(&self) -> Inference {
        infer(&self.samples())
    }

    /// Ends the survey: what was seen, what it means, and the memory.
    pub fn finish(mut self) -> Collection {
        // Of gigabytes of memory there are millions of pages: moved, not copied.
        let pages = std::mem::take(&mut self.pages);
        let samples = Samples { pages, ..self.samples() };
        let inference = infer(&samples);
        let (elapsed, classifying) = (self.elapsed, self.classifying);
        Collection { inference, samples, elapsed, classifying, arena: self.eviction_test.into_arena() }
    }
}

impl Collection {
    /// Time to classify one page, in microseconds.
    pub fn us_per_page(&self) -> f64 {
        self.classifying.as_secs_f64() * 1e6 / self.samples.pages.len().max(1) as f64
    }

    /// What a reader learns of it.
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

/// Share of a page from which something of it is lost: three lines of a walk of 16. What the tool itself and the kernel touch lies in some
/// color, too, and there takes the place of a line or two where pages fill all ways.
const LOST: f32 = 0.2;

/// Shares of a page lost in one color's test of [`Survey::verify`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct VerifiedShares {
    /// With as many pages of the color as ways.
    pub fits: f32,
    /// With half as many more.
    pub thrashes: f32,
    /// With half as many pages as ways of every color.
    pub spread: f32,
    /// With no other page.
    pub control: f32,
}

impl VerifiedShares {
    /// Below 20 % lost over the control where pages fit, half or more where they thrash.
    pub fn hold(self) -> bool {
        self.fits - self.control < LOST && self.spread - self.control < LOST && self.thrashes >= 0.5
    }
}

/// The outcome of [`Survey::verify`], one entry per color.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Verification {
    /// Shares lost; none for a color with too few pages to test.
    pub shares: Vec<Option<VerifiedShares>>,
}

impl Verification {
    /// Colors that failed or could not be tested.
    pub fn failed(&self) -> Vec<u32> {
        (0..).zip(&self.shares).filter(|(_, s)| !s.is_some_and(VerifiedShares::hold)).map(|(color, _)| color).collect()
    }

    /// Whether every color acts as one.
    pub fn holds(&self) -> bool {
        !self.shares.is_empty() && self.failed().is_empty()
    }

    /// The worst color's share of each kind: most lost where pages fit and are spread, least where they thrash, most in
    /// the control.
    pub fn worst(&self) -> VerifiedShares {
        let tested = || self.shares.iter().flatten();
        VerifiedShares {
            fits: tested().map(|s| s.fits).fold(0.0, f32::max),
            thrashes: tested().map(|s| s.thrashes).fold(1.0, f32::min),
            spread: tested().map(|s| s.spread).fold(0.0, f32::max),
            control: tested().map(|s| s.control).fold(0.0, f32::max),
        }
    }
}

/// How many groups are not one color of their own, by their rows of `cross`, and how many there are.
fn contradictions(cross: &[Vec<f32>]) -> (usize, usize) {
    let contradicted = cross.iter().enumerate().filter(|(i, row)| {
        let spared_by_own = row[*i] < eviction::EVICTED / 2.0;
        let evicted_by_another = row.iter().enumerate().any(|(j, share)| j != *i && *share >= eviction::EVICTED);
        spared_by_own || evicted_by_another
    });
    (contradicted.count(), cross.len())
}

/// Adds to each of `open` one test per group.
fn classify(
    eviction_test: &mut dyn EvictionTest,
    sets: &[Vec<u32>],
    open: &[u32],
    batch: usize,
    pages: &mut [PageSample],
) {
    let tests: Vec<(&[u32], &[u32])> =
        open.chunks(batch).flat_map(|targets| sets.iter().map(move |set| (set.as_slice(), targets))).collect();
    for page in open {
        pages[*page as usize].tests.push(Vec::with_capacity(sets.len()));
    }
    for ((_, targets), shares) in tests.iter().zip(eviction_test.run_all(&tests, PASSES)) {
        for (page, share) in targets.iter().zip(shares) {
            let tests = pages[*page as usize].tests.last_mut().expect("a test was begun for every page");
            tests.push((share * 100.0) as u8);
        }
    }
}

/// Tests each of `open`, none of which is part of a set, until its color is decided or that is given up. `set_colors`: the color
/// of each set.
pub(crate) fn classify_again(
    eviction_test: &mut dyn EvictionTest,
    sets: &[Vec<u32>],
    set_colors: &[Color],
    mut open: Vec<u32>,
    pages: &mut [PageSample],
    rng: &mut fastrand::Rng,
) {
    for round in 0..=CONFIRMING_ROUNDS {
        let batch = if round == 0 { BATCH } else { CONFIRMING_BATCH };
        classify(eviction_test, sets, &open, batch, pages);
        open.retain(|page| color_of_tests(&pages[*page as usize], set_colors).is_none());
        if open.is_empty() {
            break;
        }
        // Another mixture of pages in the next round: two that evicted each other are apart then.
        rng.shuffle(&mut open);
    }
}

/// Share of a page of group i that the set of group j evicts: the lowest of several tests, over several pages the median.
fn cross_evictions(eviction_test: &mut dyn EvictionTest, groups: &[Vec<u32>]) -> Vec<Vec<f32>> {
    const PAGES: usize = 3;
    const REPEATS: usize = 4;
    let mut shares = Vec::new();
    let mut pair = |target_group: &[u32], by: &[u32]| {
        let mut lows: Vec<f32> = target_group
            .iter()
            .take(PAGES)
            .map(|target| {
                // Within its own group the target cannot be part of what is to evict it.
                let set: Vec<u32> = by.iter().copied().filter(|p| p != target).collect();
                (0..REPEATS)
                    .map(|_| {
                        eviction_test.run(&set, &[*target], PASSES, &mut shares);
                        shares[0]
                    })
                    .fold(1.0, f32::min)
            })
            .collect();
        lows.sort_by(f32::total_cmp);
        lows[lows.len() / 2]
    };
    groups.iter().map(|target| groups.iter().map(|by| pair(target, by)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use modeled::ModeledEvictionTest;

    /// 16 colors of an 8-way cache, as on Zen 3.
    fn target() -> Target {
        let geometry = Geometry::of_size(Bytes(512 << 10), 8, Bytes(64)).unwrap();
        Target { level: 2, geometry, inner: Bytes(32 << 10) }
    }

    fn survey(eviction_test: ModeledEvictionTest, pages: usize) -> (Collection, Vec<u16>) {
        let truth = eviction_test.colors.clone();
        let mut survey =
            Survey::discover(target(), Method::Timing, Box::new(eviction_test), 1, Instant::now()).unwrap();
        survey.classify(pages).unwrap();
        let truth = truth[..pages].to_vec();
        (survey.finish(), truth)
    }

    /// Share of the pages with a color whose color is the true one, up to numbering; pages without one.
    fn against(truth: &[u16], collection: &Collection) -> (f64, usize) {
        let truth: Vec<Option<Color>> = truth.iter().map(|color| Some(Color(*color))).collect();
        let inference = &collection.inference;
        (isochrome_model::palette::agreement(&inference.page_colors, &truth).unwrap_or(0.0), inference.ambiguous.len())
    }

    #[test]
    fn every_color_of_a_quiet_cache_is_found_and_every_page_classified() {
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
        let error =
            Survey::discover(target(), Method::Timing, Box::new(eviction_test), 1, Instant::now()).err().unwrap();
        assert!(matches!(error, HostError::NoEviction { level: 2 }));
        assert!(error.to_string().contains("hint:"));
    }

    #[test]
    fn classification_goes_on_until_every_color_has_its_pages_or_the_memory_ends() {
        let eviction_test = ModeledEvictionTest::new(16, 8, 4096, 1);
        let mut survey =
            Survey::discover(target(), Method::Timing, Box::new(eviction_test), 1, Instant::now()).unwrap();
        survey.classify_until(50).unwrap();
        assert!(survey.inference().per_color.iter().all(|pages| *pages >= 50));
        assert!(survey.pages() < 4096, "no more than needed");
        // 4096 pages in 16 colors are 256 of each, give or take.
        let error = survey.classify_until(400).unwrap_err();
        assert!(matches!(error, HostError::ColorExhausted { wanted: 400, .. }), "{error}");
    }

    #[test]
    fn verification_passes_true_colors_and_fails_false_ones() {
        let mut survey = Survey::discover(
            target(),
            Method::Timing,
            Box::new(ModeledEvictionTest::new(16, 8, 4096, 1)),
            1,
            Instant::now(),
        )
        .unwrap();
        survey.classify(2048).unwrap();
        assert!(survey.verify().holds());
        // Groups that mix the colors: pages of one "color" no longer thrash.
        for (i, page) in survey.pages.iter_mut().enumerate() {
            for test in &mut page.tests {
                test.fill(0);
                test[i % 16] = 100;
            }
        }
        assert!(!survey.verify().holds());
    }

    #[test]
    fn frame_bits_that_are_right_for_some_of_the_memory_only_are_given_up() {
        let eviction_test = ModeledEvictionTest::new(16, 8, 4096, 1);
        let colors = eviction_test.colors.clone();
        let mut survey = Survey::new(target(), Method::Bits, Box::new(eviction_test), 1, Instant::now());
        survey.tested_by = Method::Timing;
        let of_color = |color| (0u32..).zip(&colors).filter(move |(_, of)| **of == color).map(|(page, _)| page);
        survey.know((0..16).map(|color| of_color(color).take(12).collect()).collect());
        survey.ready = 4096;
        // The last quarter of the memory has frames whose bits say something else.
        let frame = |page: usize, color: u16| FrameNumber(u64::from(if page < 3072 { color } else { color ^ 1 }));
        survey.pages.resize_with(4096, PageSample::default);
        for (page, color) in colors.iter().enumerate() {
            survey.pages[page].frame = Some(frame(page, *color));
        }
        survey.check_bits(0..3072).unwrap();
        let error = survey.check_bits(2048..4096).unwrap_err();
        assert!(matches!(error, HostError::BitsContradicted { what: "pages", .. }), "{error}");
        survey.test_instead().unwrap();
        let found = survey.finish();
        assert_eq!((found.samples.method, against(&colors, &found)), (Method::Timing, (1.0, 0)));
    }

    #[test]
    fn contradicted_bits_are_counted_per_color() {
        let clean = [[1.0, 0.0], [0.0, 1.0]].map(|row| row.to_vec());
        assert_eq!(contradictions(&clean), (0, 2));
        // Frame bits that mean nothing: no set evicts its own color.
        assert_eq!(contradictions(&[[0.1, 0.0], [0.0, 0.2]].map(|row| row.to_vec())), (2, 2));
        // Two bit colors that are one: each evicts the other.
        assert_eq!(contradictions(&[[1.0, 0.9], [0.8, 1.0]].map(|row| row.to_vec())), (2, 2));
    }
}
