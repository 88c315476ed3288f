//! Sequential eviction tests, which determine the colors of pages with as many tests as the noise of the machine requires.
//!
//! These tests serve to draw frames, to verify moved pages and to check saved colors. A test touches a batch of pages, traverses the eviction sets of
//! some colors, drawn at random, and times a walk over each page.
//!
//! Each test carries its own controls. *Canary pages* have other colors, so they compete with nothing in the test. Two canary pages decide
//! whether the test counts: if one of them is lost, the test was disturbed. Further canary pages estimate how often a page is lost without
//! cause, and the [decision](isochrome_model::palette::decode) is weighed by this rate. The *positive control* is a page of a traversed color,
//! which must be evicted. It reveals an eviction set whose pages were given other frames, because such a set evicts nothing.

use std::time::{Duration, Instant};

use isochrome_model::palette::decode::{Answer, Decoder, TestRates};
use isochrome_model::stats::sign_test;
use isochrome_model::units::Color;

use super::eviction::{EVICTED, EvictionTest};
use crate::color::error::ColorError;
use crate::error::SystemError;
use crate::interrupt;

/// How reliable answers must be, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Largest probability that an answer is wrong.
    pub error: f64,
    /// Time after which pages without an answer stay undecided.
    pub limit: Duration,
}

impl Effort {
    /// Effort for statements about pages: an error of 1e-4 each, within 10 s.
    pub const STATEMENT: Effort = Effort { error: 1e-4, limit: Duration::from_secs(10) };
    /// Effort for frames that are drawn: the same error, with time for many frames.
    pub const DRAW: Effort = Effort { error: 1e-4, limit: Duration::from_secs(60) };
}

/// Assumed probability that a page is evicted when the eviction set of its color is traversed: below what is observed (0.93 to 1).
const EVICTED_RATE: f64 = 0.85;

/// Bounds of the estimated probability that a page is evicted by noise.
const NOISE_MIN: f64 = 0.02;
const NOISE_MAX: f64 = 0.45;

/// Number of passes over a set in a test, and share of its pages that are traversed. Tests are brief as a rule. They are thorough once
/// positive controls have survived so often that a set is in doubt, as with replacement that is far from least-recently-used.
const BRIEF: (u32, f64) = (2, 0.75);
const THOROUGH: (u32, f64) = (3, 1.0);

/// Number of pages of a batch per requested color. Pages of one color evict each other if there are more of them than the cache has ways.
const PER_COLOR: usize = 4;

/// Most pages of a batch, so that the first page does not wait too long for the last.
const BATCH_MAX: usize = 48;

/// Number of tests of each batch before the odds are computed: about as many as a page takes on an undisturbed machine.
const TESTS_AT_ONCE: usize = 6;

/// Number of tests after which a page stays undecided.
const TESTS_MAX: u32 = 96;

/// Number of canary pages that decide whether a test counts, and number of canary pages by which the noise is estimated.
const GATES: usize = 2;
const ESTIMATES: usize = 2;

/// Thresholds of the natural logarithm of the odds that an eviction set still evicts. At or below the first, the set counts as lost. At or
/// below the second, the set is in doubt and traversed thoroughly. The third is the highest value that is kept, since a set that was good for
/// long may become bad.
const SET_LOST: f64 = -9.2;
const SET_DOUBTED: f64 = -2.0;
const SET_KEPT: f64 = 5.0;

/// Assumed upper bound of the probability that a page is evicted by pages that are not an eviction set of its color. It is compared with
/// [`EVICTED_RATE`].
const UNEVICTED_RATE: f64 = 0.5;

/// Number of pages that are screened together, number of tests that must evict a page for it to pass, and number of rounds after which
/// undecided pages pass.
const SCREENED: usize = 48;
const SCREENED_TWICE: u8 = 2;
const SCREENINGS_MAX: usize = 8;

/// Number of tests in a call after which the cause of disturbances is examined for the first time, if most tests are disturbed. The cause is
/// examined again each time the number of tests has doubled.
const TELL_APART_AFTER: u64 = 128;
/// Number of pairs of a test and a control with which the cause is examined.
const TELL_APART_PAIRS: usize = 128;
/// Number of times that the single page of such a control is touched for each page of the set. The page stays in the level and takes less
/// time.
const CONTROL_REPEATS: usize = 8;
/// Largest p-value at which a cause is concluded.
const TELL_APART_ERROR: f64 = 1e-4;

/// Least share of a canary page's lines that must be evicted for a test to count as disturbed. In an undisturbed test hardly any line is
/// evicted.
pub(crate) const DISTURBED: f32 = 0.25;

/// Determines colors by eviction tests, and tracks the state of the eviction sets and the noise from test to test.
pub struct Tester<E: EvictionTest> {
    /// The eviction test with which single tests are made.
    pub eviction_test: E,
    sets: Vec<Vec<u32>>,
    rng: fastrand::Rng,
    /// Number of canary pages evicted in tests that counted, and number of canary pages walked in these tests. Old tests lose weight.
    lost: f64,
    seen: f64,
    /// Number of tests made, and number of disturbed tests among these.
    tests: u64,
    disturbed: u64,
    /// For each color, the logarithm of the odds that its set evicts.
    evicts: Vec<f64>,
}

/// A page under test.
struct Open {
    /// Index of the page among the targets.
    at: usize,
    decoder: Decoder,
    tests: u32,
}

/// A prepared test of the pages of a batch.
struct Test {
    /// Range of the batch among the pages under test.
    batch: std::ops::Range<usize>,
    /// For each requested color, whether its set is traversed.
    tested: Vec<bool>,
    set: Vec<u32>,
    /// Pages to walk, in this order: a gate, half of the batch, the estimates, the positive control, the other half, the other gate.
    walked: Vec<u32>,
    gates: usize,
    estimates: usize,
    /// The color of the positive control, if there is one.
    positive: Option<usize>,
    /// Number of times that the set is traversed.
    passes: u32,
}

impl Test {
    /// Returns those of `shares` that belong to the pages of the batch.
    fn of_batch<'a>(&self, shares: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
        let first = self.gates.min(1);
        let middle = first + self.batch.len() / 2;
        let behind = middle + self.estimates + usize::from(self.positive.is_some());
        let last = shares.len() - self.gates.saturating_sub(1);
        shares[first..middle].iter().chain(&shares[behind..last]).copied()
    }

    /// Whether a canary page at the beginning or at the end of the walk was evicted although nothing competed with it.
    fn was_disturbed(&self, shares: &[f32]) -> bool {
        let (first, last) = (self.gates.min(1), shares.len() - self.gates.saturating_sub(1));
        shares[..first].iter().chain(&shares[last..]).any(|share| *share >= DISTURBED)
    }
}

impl<E: EvictionTest> Tester<E> {
    /// Creates a tester. `sets`: for each color the pages of an eviction set, numbered as in `eviction_test`.
    pub fn new(eviction_test: E, sets: Vec<Vec<u32>>, seed: u64) -> Tester<E> {
        let rng = fastrand::Rng::with_seed(seed);
        let evicts = vec![0.0; sets.len()];
        Tester { eviction_test, sets, rng, lost: 0.0, seen: 0.0, tests: 0, disturbed: 0, evicts }
    }

    /// Returns the pages of the eviction set of each color.
    pub fn sets(&self) -> &[Vec<u32>] {
        &self.sets
    }

    /// Replaces the eviction sets by `sets`.
    pub fn set_sets(&mut self, sets: Vec<Vec<u32>>) {
        self.evicts = vec![0.0; sets.len()];
        self.sets = sets;
    }

    /// Renumbers the colors: the color with the number `order[i]` gets the number i.
    pub fn renumber(&mut self, order: &[Color]) {
        self.set_sets(order.iter().map(|color| self.sets[usize::from(color.0)].clone()).collect());
    }

    /// Returns the number of colors.
    pub fn colors(&self) -> u32 {
        self.sets.len() as u32
    }

    /// Returns conservative estimates of the rates at which pages are evicted.
    fn rates(&self) -> TestRates {
        // Before the first test, one lost page of twenty is assumed.
        let (lost, seen) = (self.lost + 1.0, self.seen + 20.0);
        let share = lost / seen;
        let upper = share + (share * (1.0 - share) / seen).sqrt();
        TestRates { evicted: EVICTED_RATE, noise: upper.clamp(NOISE_MIN, NOISE_MAX) }
    }

    /// Returns the answer for each of `targets`: which of the colors `among` it has; `None` where no decision was reached in time.
    ///
    /// Fails with [`ColorError::CacheUnsteady`] if most tests were disturbed and most pages stay undecided, with [`ColorError::ReferenceLost`]
    /// if an eviction set of these colors no longer evicts, with [`ColorError::ReferenceMixed`] if sets evict pages of other colors, and with
    /// [`SystemError::Interrupted`].
    pub fn classify(
        &mut self,
        targets: &[u32],
        among: &[Color],
        effort: Effort,
    ) -> Result<Vec<Option<Answer>>, ColorError> {
        let answers = self.decide(targets, among, effort)?;
        self.check_sets(among)?;
        Ok(answers)
    }

    /// Fails with [`ColorError::ReferenceLost`] if positive controls have shown that an eviction set of these colors no longer evicts.
    fn check_sets(&self, among: &[Color]) -> Result<(), ColorError> {
        let lost = among.iter().find(|color| self.evicts[usize::from(color.0)] <= SET_LOST);
        lost.map_or(Ok(()), |color| Err(ColorError::ReferenceLost { color: color.0 }))
    }

    /// Returns which of the colors `among` each of `targets` has; `None` if it has none of them or is in doubt.
    ///
    /// Fails as [`classify`](Self::classify) does.
    pub fn colors_of(&mut self, targets: &[u32], among: &[Color]) -> Result<Vec<Option<Color>>, ColorError> {
        let open =
            if among.len() < self.sets.len() { self.screen(targets, among)? } else { (0..targets.len()).collect() };
        let requested: Vec<u32> = open.iter().map(|at| targets[*at]).collect();
        let answers = self.classify(&requested, among, Effort::DRAW)?;
        let mut colors = vec![None; targets.len()];
        for (at, answer) in open.into_iter().zip(answers) {
            if let Some(Answer::Color(color)) = answer {
                colors[at] = Some(color);
            }
        }
        Ok(colors)
    }

    /// Returns the indices of those `targets` that are evicted, or cannot be ruled out, when the sets of the colors `among` are traversed
    /// together.
    fn screen(&mut self, targets: &[u32], among: &[Color]) -> Result<Vec<usize>, ColorError> {
        let mut open: Vec<(usize, u8)> = (0..targets.len()).map(|at| (at, 0)).collect();
        let mut passed = Vec::new();
        let mut size = SCREENED;
        for _ in 0..SCREENINGS_MAX {
            if open.is_empty() || interrupt::interrupted() {
                break;
            }
            // Each round batches the pages differently.
            self.rng.shuffle(&mut open);
            let before = (self.tests, self.disturbed);
            let pages: Vec<u32> = open.iter().map(|(at, _)| targets[*at]).collect();
            let tests: Vec<Test> = (0..pages.len())
                .step_by(size)
                .map(|first| first..(first + size).min(pages.len()))
                .map(|batch| self.prepare(batch.clone(), &pages[batch], among, vec![true; among.len()]))
                .collect();
            let mut rest = Vec::new();
            for (test, shares) in tests.iter().zip(self.make(&tests)) {
                let pages = &open[test.batch.clone()];
                if !self.take_in_controls(test, &shares) {
                    rest.extend_from_slice(pages);
                    continue;
                }
                for ((at, times), share) in pages.iter().zip(test.of_batch(&shares)) {
                    match times + u8::from(share >= EVICTED) {
                        now if now == *times => {}
                        SCREENED_TWICE => passed.push(*at),
                        now => rest.push((*at, now)),
                    }
                }
            }
            self.eviction_test.failure().map_or(Ok(()), Err)?;
            open = rest;
            size = self.shorter(size, before);
        }
        passed.extend(open.into_iter().map(|(at, _)| at));
        self.check_sets(among)?;
        Ok(passed)
    }

    /// Returns how many pages to test together from now on: fewer than `size` if most tests since `before` (tests, disturbed ones) were
    /// disturbed, because a short test is disturbed less often than a long one.
    fn shorter(&self, size: usize, before: (u64, u64)) -> usize {
        if 2 * (self.disturbed - before.1) > self.tests - before.0 { (size / 2).max(2) } else { size }
    }

    fn decide(&mut self, targets: &[u32], among: &[Color], effort: Effort) -> Result<Vec<Option<Answer>>, ColorError> {
        let begin = Instant::now();
        let (tests, disturbed) = (self.tests, self.disturbed);
        let mut answers = vec![None; targets.len()];
        let decoder = Decoder::new(among.len());
        let mut open: Vec<Open> =
            (0..targets.len()).map(|at| Open { at, decoder: decoder.clone(), tests: 0 }).collect();
        let mut batch = (PER_COLOR * among.len()).clamp(1, BATCH_MAX);
        let mut tell_apart_after = TELL_APART_AFTER;
        // At least one round runs, so that a thread that had no CPU until the limit still has tests to conclude from.
        let mut rounds = 0;
        while !open.is_empty() && (rounds == 0 || begin.elapsed() < effort.limit) {
            rounds += 1;
            if interrupt::interrupted() {
                return Err(SystemError::Interrupted.into());
            }
            // Each round batches the pages differently, so two pages that evict each other are likely to be apart.
            self.rng.shuffle(&mut open);
            let before = (self.tests, self.disturbed);
            self.round(&mut open, targets, among, batch);
            self.eviction_test.failure().map_or(Ok(()), Err)?;
            open.retain(|open| {
                answers[open.at] = open.decoder.decision(among, effort.error, effort.error);
                answers[open.at].is_none() && open.tests < TESTS_MAX
            });
            batch = self.shorter(batch, before);
            let (made, lost) = (self.tests - tests, self.disturbed - disturbed);
            if made >= tell_apart_after && 2 * lost > made && !open.is_empty() {
                tell_apart_after = 2 * made;
                let left = || begin.elapsed() < effort.limit;
                self.tell_apart(&open, targets, among, batch, left)?;
            }
        }
        let (tests, disturbed) = (self.tests - tests, self.disturbed - disturbed);
        let undecided = answers.iter().filter(|answer| answer.is_none()).count();
        if 2 * undecided > targets.len() && 2 * disturbed > tests {
            return Err(ColorError::CacheUnsteady { disturbed, tests });
        }
        Ok(answers)
    }

    /// Finds out why canary pages are lost: because eviction sets evict pages of other colors, or because the cache loses its contents.
    ///
    /// Each test is paired with a control, which walks the same pages but touches one page of the set instead of all. If pages are lost
    /// significantly more often with the set than in the control, the set evicts them (sign test on the pairs that differ).
    ///
    /// Fails with [`ColorError::ReferenceMixed`] in that case, and as the eviction test does. Returns without a conclusion if the time is up.
    fn tell_apart(
        &mut self,
        open: &[Open],
        targets: &[u32],
        among: &[Color],
        batch: usize,
        is_time_left: impl Fn() -> bool,
    ) -> Result<(), ColorError> {
        let (mut by_set, mut by_itself) = (0, 0);
        for _ in 0..TELL_APART_PAIRS {
            if !is_time_left() {
                return Ok(());
            }
            let from = self.rng.usize(..open.len());
            let range = from..(from + batch).min(open.len());
            let pages: Vec<u32> = open[range.clone()].iter().map(|open| targets[open.at]).collect();
            let tested = self.half(among.len());
            let test = self.prepare(range, &pages, among, tested);
            let Some(first) = test.set.first() else { return Ok(()) };
            let alone = vec![*first; CONTROL_REPEATS * test.set.len()];
            let mut pair = [(&test.set[..], &test.walked[..]), (&alone[..], &test.walked[..])];
            let is_swapped = self.rng.bool();
            if is_swapped {
                pair.swap(0, 1);
            }
            let shares = self.eviction_test.run_all(&pair, test.passes);
            self.eviction_test.failure().map_or(Ok(()), Err)?;
            let lost = [usize::from(is_swapped), usize::from(!is_swapped)].map(|at| test.was_disturbed(&shares[at]));
            by_set += u64::from(lost == [true, false]);
            by_itself += u64::from(lost == [false, true]);
        }
        if sign_test(by_set, by_set + by_itself) < TELL_APART_ERROR {
            return Err(ColorError::ReferenceMixed { by_set, by_itself, pairs: TELL_APART_PAIRS });
        }
        Ok(())
    }

    /// Makes several tests of all open pages, in batches, and updates their odds.
    fn round(&mut self, open: &mut [Open], targets: &[u32], among: &[Color], batch: usize) {
        let mut tests = Vec::new();
        for first in (0..open.len()).step_by(batch) {
            let range = first..(first + batch).min(open.len());
            let pages: Vec<u32> = open[range.clone()].iter().map(|open| targets[open.at]).collect();
            for _ in 0..TESTS_AT_ONCE {
                let tested = self.half(among.len());
                tests.push(self.prepare(range.clone(), &pages, among, tested));
            }
        }
        // The tests of all batches are mixed, so that a short disturbance does not hit one batch alone.
        self.rng.shuffle(&mut tests);
        for (test, shares) in tests.iter().zip(self.make(&tests)) {
            if self.take_in_controls(test, &shares) {
                let rates = self.rates();
                for (open, share) in open[test.batch.clone()].iter_mut().zip(test.of_batch(&shares)) {
                    open.decoder.observe(&test.tested, share >= EVICTED, rates);
                    open.tests += 1;
                }
            }
        }
    }

    /// Returns which of `colors` colors are tested: a random half. Pages of the other colors are the control. A single color is tested half of
    /// the time.
    fn half(&mut self, colors: usize) -> Vec<bool> {
        let mut tested = vec![false; colors];
        let count = if colors == 1 { self.rng.usize(..2) } else { colors / 2 };
        for at in self.rng.choose_multiple(0..colors, count) {
            tested[at] = true;
        }
        tested
    }

    /// Returns the number of passes over a set in the next tests, and the share of its pages that are traversed.
    fn traversal(&self) -> (u32, f64) {
        if self.evicts.iter().any(|odds| *odds <= SET_DOUBTED) { THOROUGH } else { BRIEF }
    }

    /// Makes `tests`, which were prepared with the same number of passes, and returns the share of each walked page that was evicted.
    fn make(&mut self, tests: &[Test]) -> Vec<Vec<f32>> {
        let pairs: Vec<(&[u32], &[u32])> = tests.iter().map(|test| (&test.set[..], &test.walked[..])).collect();
        let passes = tests.first().map_or(THOROUGH.0, |test| test.passes);
        self.eviction_test.run_all(&pairs, passes)
    }

    /// Prepares a test of `pages` by the sets of those colors of `among` that are `tested`. If no color is tested, the set of a color outside
    /// of `among` is traversed.
    fn prepare(&mut self, batch: std::ops::Range<usize>, pages: &[u32], among: &[Color], tested: Vec<bool>) -> Test {
        let of = |color: &Color| usize::from(color.0);
        let mut traversed: Vec<usize> =
            among.iter().zip(&tested).filter(|(_, tested)| **tested).map(|(color, _)| of(color)).collect();
        if traversed.is_empty() {
            // A test of no color traverses another set, so that it takes as long as any other test.
            let others: Vec<usize> =
                (0..self.sets.len()).filter(|color| !among.iter().any(|c| of(c) == *color)).collect();
            traversed.extend(self.rng.choice(&others));
        }
        let untraversed: Vec<usize> = (0..self.sets.len()).filter(|color| !traversed.contains(color)).collect();
        let mut canaries: Vec<u32> = Vec::new();
        while !untraversed.is_empty() && canaries.len() < GATES + ESTIMATES {
            let color = self.rng.choice(&untraversed).copied().unwrap_or_default();
            let page = self.rng.choice(&self.sets[color]).copied();
            canaries.extend(page.filter(|page| !pages.contains(page) && !canaries.contains(page)));
        }
        let (gates, estimates) = canaries.split_at(GATES.min(canaries.len()));
        let (before, after) = pages.split_at(pages.len() / 2);
        let positive = self.rng.choice(&traversed).copied();
        let controls = positive.and_then(|color| self.rng.choice(&self.sets[color]).copied());
        let controls: Vec<u32> = controls.into_iter().filter(|page| !pages.contains(page)).collect();
        let positive = positive.filter(|_| !controls.is_empty());
        let (first, last) = gates.split_at(gates.len().min(1));
        let walked = [first, before, estimates, &controls, after, last].concat();
        // A page that is walked is left out of the traversed sets.
        let (passes, share) = self.traversal();
        let mut set = Vec::new();
        for color in &traversed {
            let pages = &self.sets[*color];
            let count = (pages.len() as f64 * share).ceil() as usize;
            let spared = pages.iter().copied().filter(|page| !walked.contains(page));
            set.extend(self.rng.choose_multiple(spared, count));
        }
        Test { batch, tested, set, gates: gates.len(), estimates: estimates.len(), positive, passes, walked }
    }

    /// Updates the estimates by the controls of a test, and returns whether the test counts.
    fn take_in_controls(&mut self, test: &Test, shares: &[f32]) -> bool {
        self.tests += 1;
        if test.was_disturbed(shares) {
            self.disturbed += 1;
            return false;
        }
        let gone = |share: &f32| *share >= EVICTED;
        let middle = test.gates.min(1) + test.batch.len() / 2;
        let estimates = &shares[middle..middle + test.estimates];
        // Noise comes and goes: what was seen hundreds of tests ago counts less.
        self.seen = self.seen * 0.998 + test.estimates as f64;
        self.lost = self.lost * 0.998 + estimates.iter().filter(|share| gone(share)).count() as f64;
        if let Some(color) = test.positive {
            let evicted = gone(&shares[middle + test.estimates]);
            let ratio = match evicted {
                true => EVICTED_RATE / UNEVICTED_RATE,
                false => (1.0 - EVICTED_RATE) / (1.0 - UNEVICTED_RATE),
            };
            let before = self.evicts[color];
            // A thorough traversal may evict pages that a brief one spares, so only a thorough traversal can show that a set is lost.
            let lowest = if test.passes < THOROUGH.0 { SET_DOUBTED.min(before) } else { f64::NEG_INFINITY };
            self.evicts[color] = (before + ratio.ln()).clamp(lowest, SET_KEPT);
        }
        true
    }

    /// Classifies the pages of the eviction sets themselves, and returns the answers color by color. Each page is tested by its set without
    /// the page.
    ///
    /// A set that no longer evicts is not an error here, but shows in the answers.
    pub fn classify_sets(&mut self, effort: Effort) -> Result<Vec<Vec<Option<Answer>>>, ColorError> {
        let colors: Vec<Color> = (0..self.sets.len() as u16).map(Color).collect();
        let pages: Vec<u32> = self.sets.concat();
        let mut answers = self.decide(&pages, &colors, effort)?.into_iter();
        Ok(self.sets.iter().map(|set| answers.by_ref().take(set.len()).collect()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::modeled::ModeledEvictionTest;

    /// Returns a tester whose sets are the first 14 pages of each color.
    fn tester(mut eviction_test: ModeledEvictionTest, seed: u64) -> Tester<ModeledEvictionTest> {
        let mut sets = vec![Vec::new(); 16];
        for (page, color) in (0u32..).zip(&eviction_test.colors) {
            let set: &mut Vec<u32> = &mut sets[usize::from(*color)];
            if set.len() < 14 {
                set.push(page);
            }
        }
        eviction_test.luck = 0.05;
        Tester::new(eviction_test, sets, seed)
    }

    /// Returns the numbers of wrong and of missing answers among pages 1000 to 3000, for the first `count` colors.
    fn classify(tester: &mut Tester<ModeledEvictionTest>, count: u16, effort: Effort) -> (usize, usize) {
        let targets: Vec<u32> = (1000..3000).collect();
        let among: Vec<Color> = (0..count).map(Color).collect();
        let answers = tester.classify(&targets, &among, effort).unwrap();
        let (mut wrong, mut open) = (0, 0);
        for (page, answer) in targets.iter().zip(answers) {
            let color = tester.eviction_test.colors[*page as usize];
            let right = if color < count { Answer::Color(Color(color)) } else { Answer::Other };
            match answer {
                None => open += 1,
                Some(answer) => wrong += usize::from(answer != right),
            }
        }
        (wrong, open)
    }

    #[test]
    fn pages_get_their_color_on_an_undisturbed_and_on_a_noisy_cache() {
        for (seed, noise) in [(1, 0.0), (2, 0.05), (3, 0.2)] {
            for count in [1, 4, 16] {
                let mut eviction_test = ModeledEvictionTest::new(16, 8, 4096, seed);
                eviction_test.noise = noise;
                let (wrong, open) = classify(&mut tester(eviction_test, seed), count, Effort::STATEMENT);
                // Each of the 2000 answers is wrong with a probability of at most 1e-4, and few pages stay undecided.
                assert!(wrong <= 3, "noise {noise}, {count} colors: {wrong} wrong");
                assert!(open <= 20, "noise {noise}, {count} colors: {open} open");
            }
        }
    }

    #[test]
    fn a_page_in_the_wrong_eviction_set_is_found() {
        let mut tester = tester(ModeledEvictionTest::new(16, 8, 4096, 5), 5);
        let stranger = tester.sets[7][3];
        tester.sets[2][5] = stranger;
        let answers = tester.classify_sets(Effort::STATEMENT).unwrap();
        assert_eq!(answers[2][5], Some(Answer::Color(Color(7))));
        let wrong = |(color, answers): (usize, &Vec<Option<Answer>>)| {
            answers.iter().filter(|answer| **answer != Some(Answer::Color(Color(color as u16)))).count()
        };
        assert_eq!(answers.iter().enumerate().map(wrong).sum::<usize>(), 1);
    }

    #[test]
    fn an_eviction_set_whose_pages_have_lost_their_color_is_found() {
        for among in [vec![Color(2)], vec![Color(1), Color(2), Color(3), Color(4)]] {
            let mut tester = tester(ModeledEvictionTest::new(16, 8, 4096, 5), 5);
            let targets: Vec<u32> = (1000..3000).collect();
            assert!(tester.colors_of(&targets, &among).is_ok(), "all sets evict");
            // Seven of the 14 pages have frames of another color now.
            let Tester { eviction_test, sets, .. } = &mut tester;
            sets[2][..7].iter().for_each(|page| eviction_test.colors[*page as usize] = 9);
            let lost = tester.colors_of(&targets, &among);
            assert!(matches!(lost, Err(ColorError::ReferenceLost { color: 2 })), "{lost:?}");
        }
    }

    /// Frames that were freed last are often of few colors. Eviction sets of such pages must not be mistaken for an unsteady cache after a
    /// long wait.
    #[test]
    fn eviction_sets_of_a_few_colors_are_distinguished_from_a_cache_that_loses_its_contents() {
        for (seed, real) in [(1, 1), (2, 2), (3, 3)] {
            let mut tester = tester(ModeledEvictionTest::new(16, 8, 4096, seed), seed);
            let Tester { eviction_test, sets, .. } = &mut tester;
            (0u16..).zip(sets.concat()).for_each(|(n, page)| eviction_test.colors[page as usize] = n % real);
            let targets: Vec<u32> = (1000..3000).collect();
            let outcome = tester.classify(&targets, &[1, 2, 3, 4].map(Color), Effort::STATEMENT);
            assert!(matches!(outcome, Err(ColorError::ReferenceMixed { .. })), "{real} colors: {outcome:?}");
        }
    }

    #[test]
    fn sets_that_brief_traversals_spare_are_traversed_thoroughly_and_not_lost() {
        let mut tester = tester(ModeledEvictionTest::new(16, 8, 4096, 8), 8);
        // Three quarters of a set are too few to evict for sure, but the whole set is enough.
        tester.eviction_test.luck = 0.5;
        let (wrong, _) = classify(&mut tester, 4, Effort::STATEMENT);
        assert!(wrong <= 3, "{wrong} wrong");
    }

    #[test]
    fn a_cache_that_loses_everything_is_called_unsteady_in_the_time_given() {
        let mut eviction_test = ModeledEvictionTest::new(16, 8, 4096, 6);
        eviction_test.decay = 1.0;
        let mut tester = tester(eviction_test, 6);
        let among: Vec<Color> = (0..4).map(Color).collect();
        let limit = Duration::from_millis(100);
        let outcome = tester.classify(&[1000, 1001, 1002], &among, Effort { limit, ..Effort::STATEMENT });
        assert!(matches!(outcome, Err(ColorError::CacheUnsteady { .. })), "{outcome:?}");
    }
}
