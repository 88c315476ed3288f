//! Sequential eviction tests: which color each of some pages has, by as many tests as the noise of the machine takes.
//!
//! One mechanism serves the verification of what was moved and the check of what was saved. A test touches a batch of pages,
//! traverses the eviction sets of some colors, drawn at random, and times a walk over each page. Each test carries its own
//! control: pages of other colors (*canary pages*) that nothing of the test competes with. Two of them decide whether the test
//! counts, since a test during which they are lost was disturbed, whatever it shows of the pages; others estimate how often a page is
//! lost without cause, which is what the [decision](isochrome_model::palette::decode) is weighed by.

use std::time::{Duration, Instant};

use isochrome_model::palette::decode::{Answer, Decoder, TestRates};
use isochrome_model::units::Color;

use super::PASSES;
use super::look::{EVICTED, Look};
use crate::error::HostError;
use crate::interrupt;

/// How sure an answer must be, and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Probability of a wrong answer.
    pub error: f64,
    /// Time after which pages without an answer are given up.
    pub limit: Duration,
}

impl Effort {
    /// For statements about pages: 1e-4 each, within 10 s.
    pub const STATEMENT: Effort = Effort { error: 1e-4, limit: Duration::from_secs(10) };
    /// For frames that are drawn: as sure, however many there are.
    pub const DRAW: Effort = Effort { error: 1e-4, limit: Duration::from_secs(60) };
}

/// Assumed probability that a page is gone after the eviction set of its color was traversed: below what is seen (0.93 to 1).
const EVICTED_RATE: f64 = 0.85;

/// Bounds of the estimated probability that a page is lost without cause.
const NOISE_MIN: f64 = 0.02;
const NOISE_MAX: f64 = 0.45;

/// Pages of a batch per color asked about: more of one color than the cache has ways would evict each other.
const PER_COLOR: usize = 3;

/// Most pages of a batch: the first must not have to wait too long for the last.
const BATCH_MAX: usize = 48;

/// Tests of each batch that are made together before the odds are looked at: about what a page takes on a quiet machine.
const TESTS_AT_ONCE: usize = 10;

/// Tests of one page after which it is given up.
const TESTS_MAX: u32 = 96;

/// Canary pages that decide whether a test counts, and those that the noise is estimated by.
const GATES: usize = 2;
const ESTIMATES: usize = 2;

/// Share of a canary page's lines from which a test was disturbed: undisturbed, next to nothing is lost.
pub(crate) const DISTURBED: f32 = 0.25;

/// What is known of the eviction sets, and of the noise, from test to test.
pub struct Tester<L: Look> {
    /// Looks at pages.
    pub look: L,
    sets: Vec<Vec<u32>>,
    rng: fastrand::Rng,
    /// Canary pages lost in tests that counted, and how many were looked at; old ones fade.
    lost: f64,
    seen: f64,
    /// Tests made, and those of them that were disturbed.
    tests: u64,
    disturbed: u64,
}

/// A page under test.
struct Open {
    /// Its position among the targets.
    at: usize,
    decoder: Decoder,
    tests: u32,
}

/// A test to be made of the pages of a batch.
struct Test {
    /// Which of the pages under test.
    batch: std::ops::Range<usize>,
    /// For each color asked about, whether its set is traversed.
    tested: Vec<bool>,
    set: Vec<u32>,
    /// A gate, half of the batch, the estimates, the other half, the other gate.
    looked: Vec<u32>,
    gates: usize,
    estimates: usize,
}

impl<L: Look> Tester<L> {
    /// `sets`: for each color the pages of an eviction set, by the numbers that `look` knows them by.
    pub fn new(look: L, sets: Vec<Vec<u32>>, seed: u64) -> Tester<L> {
        let rng = fastrand::Rng::with_seed(seed);
        Tester { look, sets, rng, lost: 0.0, seen: 0.0, tests: 0, disturbed: 0 }
    }

    /// Pages of the eviction set of each color.
    pub fn sets(&self) -> &[Vec<u32>] {
        &self.sets
    }

    /// Uses these sets from now on.
    pub fn set_sets(&mut self, sets: Vec<Vec<u32>>) {
        self.sets = sets;
    }

    /// Gives the color numbered `order[i]` the number i.
    pub fn renumber(&mut self, order: &[Color]) {
        self.sets = order.iter().map(|color| self.sets[usize::from(color.0)].clone()).collect();
    }

    /// How many colors there are.
    pub fn colors(&self) -> u32 {
        self.sets.len() as u32
    }

    /// Estimated rates, on the safe side.
    fn rates(&self) -> TestRates {
        // One lost of twenty is what is assumed before anything was seen.
        let (lost, seen) = (self.lost + 1.0, self.seen + 20.0);
        let share = lost / seen;
        let upper = share + (share * (1.0 - share) / seen).sqrt();
        TestRates { evicted: EVICTED_RATE, noise: upper.clamp(NOISE_MIN, NOISE_MAX) }
    }

    /// The answer for each of `targets`: which of the colors `among` it has; `None` where no decision fell in the time.
    ///
    /// Fails with [`HostError::CacheUnsteady`] where most tests were disturbed, so that nothing can be seen, and with
    /// [`HostError::Interrupted`].
    pub fn classify(
        &mut self,
        targets: &[u32],
        among: &[Color],
        effort: Effort,
    ) -> Result<Vec<Option<Answer>>, HostError> {
        let begin = Instant::now();
        let (tests, disturbed) = (self.tests, self.disturbed);
        let mut answers = vec![None; targets.len()];
        let decoder = Decoder::new(among.len());
        let mut open: Vec<Open> =
            (0..targets.len()).map(|at| Open { at, decoder: decoder.clone(), tests: 0 }).collect();
        let mut batch = (PER_COLOR * among.len()).clamp(1, BATCH_MAX);
        while !open.is_empty() && begin.elapsed() < effort.limit {
            if interrupt::interrupted() {
                return Err(HostError::Interrupted);
            }
            // Another company each time: two pages that evict each other are apart then.
            self.rng.shuffle(&mut open);
            let before = (self.tests, self.disturbed);
            self.round(&mut open, targets, among, batch);
            self.look.failure().map_or(Ok(()), Err)?;
            open.retain(|open| {
                answers[open.at] = open.decoder.decision(among, effort.error, effort.error);
                answers[open.at].is_none() && open.tests < TESTS_MAX
            });
            // A short test is disturbed less often than a long one.
            if 2 * (self.disturbed - before.1) > self.tests - before.0 {
                batch = (batch / 2).max(2);
            }
        }
        let (tests, disturbed) = (self.tests - tests, self.disturbed - disturbed);
        let undecided = answers.iter().filter(|answer| answer.is_none()).count();
        if 2 * undecided > targets.len() && 2 * disturbed > tests {
            return Err(HostError::CacheUnsteady { disturbed, tests });
        }
        Ok(answers)
    }

    /// Makes some tests of all pages that are open, in batches.
    fn round(&mut self, open: &mut [Open], targets: &[u32], among: &[Color], batch: usize) {
        let mut tests = Vec::new();
        for first in (0..open.len()).step_by(batch) {
            let range = first..(first + batch).min(open.len());
            let pages: Vec<u32> = open[range.clone()].iter().map(|open| targets[open.at]).collect();
            for _ in 0..TESTS_AT_ONCE {
                tests.push(self.prepare(range.clone(), &pages, among));
            }
        }
        // Batches in turn, so that what lasts for a moment does not hit one of them alone.
        self.rng.shuffle(&mut tests);
        let looks: Vec<(&[u32], &[u32])> = tests.iter().map(|test| (&test.set[..], &test.looked[..])).collect();
        let shares = self.look.look_at_all(&looks, PASSES);
        for (test, shares) in tests.iter().zip(shares) {
            self.take_in(test, &shares, open);
        }
    }

    /// A test of `pages` by the sets of half of the colors `among`, drawn at random: pages of the others are the control.
    fn prepare(&mut self, batch: std::ops::Range<usize>, pages: &[u32], among: &[Color]) -> Test {
        let mut tested = vec![false; among.len()];
        // Of one candidate it is half of the time none: another color is traversed then.
        let count = if among.len() == 1 { self.rng.usize(..2) } else { among.len() / 2 };
        for at in self.rng.choose_multiple(0..among.len(), count) {
            tested[at] = true;
        }
        let of = |color: &Color| usize::from(color.0);
        let mut traversed: Vec<usize> =
            among.iter().zip(&tested).filter(|(_, tested)| **tested).map(|(color, _)| of(color)).collect();
        if traversed.is_empty() {
            // A control takes as long as a test.
            let others: Vec<usize> =
                (0..self.sets.len()).filter(|color| !among.iter().any(|c| of(c) == *color)).collect();
            traversed.extend(self.rng.choice(&others));
        }
        let quiet: Vec<usize> = (0..self.sets.len()).filter(|color| !traversed.contains(color)).collect();
        let mut canaries: Vec<u32> = Vec::new();
        while !quiet.is_empty() && canaries.len() < GATES + ESTIMATES {
            let color = self.rng.choice(&quiet).copied().unwrap_or_default();
            let page = self.rng.choice(&self.sets[color]).copied();
            canaries.extend(page.filter(|page| !pages.contains(page) && !canaries.contains(page)));
        }
        let (gates, estimates) = canaries.split_at(GATES.min(canaries.len()));
        let (before, after) = pages.split_at(pages.len() / 2);
        let looked = [&gates[..gates.len().min(1)], before, estimates, after, &gates[gates.len().min(1)..]].concat();
        // A page of an eviction set is not looked at by a set that holds it.
        let set = traversed.iter().flat_map(|color| &self.sets[*color]).copied();
        let set = set.filter(|page| !looked.contains(page)).collect();
        Test { batch, tested, set, gates: gates.len(), estimates: estimates.len(), looked }
    }

    /// Takes in what a test shows, unless it was disturbed.
    fn take_in(&mut self, test: &Test, shares: &[f32], open: &mut [Open]) {
        self.tests += 1;
        let gone = |share: &f32| *share >= EVICTED;
        let first = test.gates.min(1);
        let last = shares.len() - test.gates.saturating_sub(1);
        if shares[..first].iter().chain(&shares[last..]).any(|share| *share >= DISTURBED) {
            self.disturbed += 1;
            return;
        }
        let middle = first + test.batch.len() / 2;
        let estimated = middle..middle + test.estimates;
        // Noise comes and goes: what was seen hundreds of tests ago counts less.
        self.seen = self.seen * 0.998 + test.estimates as f64;
        self.lost = self.lost * 0.998 + shares[estimated.clone()].iter().filter(|share| gone(share)).count() as f64;
        let rates = self.rates();
        let of_pages = (first..last).filter(|at| !estimated.contains(at)).map(|at| shares[at]);
        for (open, share) in open[test.batch.clone()].iter_mut().zip(of_pages) {
            open.decoder.observe(&test.tested, gone(&share), rates);
            open.tests += 1;
        }
    }

    /// Classifies the pages of the eviction sets themselves, each without itself: the answers, color by color.
    pub fn classify_sets(&mut self, effort: Effort) -> Result<Vec<Vec<Option<Answer>>>, HostError> {
        let colors: Vec<Color> = (0..self.sets.len() as u16).map(Color).collect();
        let pages: Vec<u32> = self.sets.concat();
        let mut answers = self.classify(&pages, &colors, effort)?.into_iter();
        Ok(self.sets.iter().map(|set| answers.by_ref().take(set.len()).collect()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::modeled::ModeledLook;

    /// A tester whose sets are the first pages of each color, 14 of each.
    fn tester(mut look: ModeledLook, seed: u64) -> Tester<ModeledLook> {
        let mut sets = vec![Vec::new(); 16];
        for (page, color) in (0u32..).zip(&look.colors) {
            let set: &mut Vec<u32> = &mut sets[usize::from(*color)];
            if set.len() < 14 {
                set.push(page);
            }
        }
        look.luck = 0.05;
        Tester::new(look, sets, seed)
    }

    /// Share of wrong answers and of none among pages 1000 to 3000, asked about the first `count` colors.
    fn classify(tester: &mut Tester<ModeledLook>, count: u16, effort: Effort) -> (usize, usize) {
        let targets: Vec<u32> = (1000..3000).collect();
        let among: Vec<Color> = (0..count).map(Color).collect();
        let answers = tester.classify(&targets, &among, effort).unwrap();
        let (mut wrong, mut open) = (0, 0);
        for (page, answer) in targets.iter().zip(answers) {
            let color = tester.look.colors[*page as usize];
            let right = if color < count { Answer::Color(Color(color)) } else { Answer::Other };
            match answer {
                None => open += 1,
                Some(answer) => wrong += usize::from(answer != right),
            }
        }
        (wrong, open)
    }

    #[test]
    fn pages_get_their_color_on_a_quiet_and_on_a_noisy_cache() {
        for (seed, noise) in [(1, 0.0), (2, 0.05), (3, 0.2)] {
            for count in [1, 4, 16] {
                let mut look = ModeledLook::new(16, 8, 4096, seed);
                look.noise = noise;
                let (wrong, open) = classify(&mut tester(look, seed), count, Effort::STATEMENT);
                // 1e-4 of 2000 pages each; the pages a test cannot tell from unsteady ones are few.
                assert!(wrong <= 3, "noise {noise}, {count} colors: {wrong} wrong");
                assert!(open <= 20, "noise {noise}, {count} colors: {open} open");
            }
        }
    }

    #[test]
    fn a_page_in_the_wrong_eviction_set_is_found() {
        let mut tester = tester(ModeledLook::new(16, 8, 4096, 5), 5);
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
    fn a_cache_that_loses_everything_is_called_unsteady_in_the_time_given() {
        let mut look = ModeledLook::new(16, 8, 4096, 6);
        look.decay = 1.0;
        let mut tester = tester(look, 6);
        let among: Vec<Color> = (0..4).map(Color).collect();
        let limit = Duration::from_millis(100);
        let outcome = tester.classify(&[1000, 1001, 1002], &among, Effort { limit, ..Effort::STATEMENT });
        assert!(matches!(outcome, Err(HostError::CacheUnsteady { .. })), "{outcome:?}");
    }
}
