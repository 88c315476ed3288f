//! Decides the color of a page from a sequence of eviction tests.
//!
//! A test touches the page, traverses the eviction sets of some colors (the *tested* colors) and sees whether the page is gone. A
//! page of a tested color should be gone, any other page should still be there. Each result shifts the odds between the possible
//! answers by its likelihood. The page is decided once the odds of one answer against all others together reach `(1 - error) /
//! error`: the sequential probability ratio test of Wald (1945) for more than two hypotheses, which bounds the probability of a
//! wrong decision by `error` as long as the assumed rates are not better than the true ones.
//!
//! Pages that are gone whatever is traversed (because another CPU writes to them, say) have an answer of their own, so that they
//! are not mistaken for pages of some color.

use crate::units::Color;

/// Error rates of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TestRates {
    /// Probability that a page of a tested color is gone. It is below 1, since replacement spares some pages.
    pub evicted: f64,
    /// Probability that a page of another color is gone.
    pub noise: f64,
}

/// Probability that an unsteady page, which is lost whatever is traversed, is found gone.
const UNSTEADY_GONE: f64 = 0.7;

/// Odds of an unsteady page against each other answer before the first test. Such pages are rare, and ruling them out at even
/// odds would take twice as many tests of every page.
const UNSTEADY_ODDS: f64 = 1e-2;

/// Decision about a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The page has this color.
    Color(Color),
    /// The page has none of the candidate colors.
    Other,
    /// The page is lost whatever is traversed, so its color cannot be observed.
    Unsteady,
}

/// The odds of the possible answers for one page.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// Logarithms of the probabilities of each candidate, of no candidate, and of an unsteady page, up to a common term.
    log_odds: Vec<f64>,
}

impl Decoder {
    /// Creates a decoder for a page about which nothing is known: every color, and no color, is equally likely. `candidates`: the
    /// number of candidate colors.
    ///
    /// The odds are even, not those of a page drawn at random, because the error bound has to hold for every kind of page.
    pub fn new(candidates: usize) -> Decoder {
        let mut log_odds = vec![0.0; candidates + 1];
        log_odds.push(UNSTEADY_ODDS.ln());
        Decoder { log_odds }
    }

    /// Updates the odds by one test result. `tested`: for each candidate, whether its eviction set was traversed.
    pub fn observe(&mut self, tested: &[bool], gone: bool, rates: TestRates) {
        let likelihood = |probability: f64| (if gone { probability } else { 1.0 - probability }).max(1e-6).ln();
        let (evicted, noise) = (likelihood(rates.evicted), likelihood(rates.noise));
        let (colors, rest) = self.log_odds.split_at_mut(tested.len());
        for (odds, tested) in colors.iter_mut().zip(tested) {
            *odds += if *tested { evicted } else { noise };
        }
        rest[0] += noise;
        rest[1] += likelihood(UNSTEADY_GONE.max(rates.noise));
    }

    /// Returns the probabilities of each candidate, of no candidate, and of an unsteady page; they add up to 1.
    fn probabilities(&self) -> Vec<f64> {
        let highest = self.log_odds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut probabilities: Vec<f64> = self.log_odds.iter().map(|odds| (odds - highest).exp()).collect();
        let sum: f64 = probabilities.iter().sum();
        probabilities.iter_mut().for_each(|probability| *probability /= sum);
        probabilities
    }

    /// Returns the answer whose probability of being wrong is at most `error`, or `error_other` if the answer is not a color;
    /// `None` while there is no such answer. `candidates`: the candidate colors.
    pub fn decision(&self, candidates: &[Color], error: f64, error_other: f64) -> Option<Answer> {
        let probabilities = self.probabilities();
        let (best, probability) = probabilities.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let wrong = 1.0 - probability;
        match candidates.get(best) {
            Some(color) => (wrong <= error).then_some(Answer::Color(*color)),
            None if wrong > error_other => None,
            None if best == candidates.len() => Some(Answer::Other),
            None => Some(Answer::Unsteady),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: TestRates = TestRates { evicted: 0.85, noise: 0.02 };

    /// A linear congruential generator, which is good enough here. [Knuth1997, MMIX]
    struct Chance(u64);

    impl Chance {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    fn colors(count: u16) -> Vec<Color> {
        (0..count).map(Color).collect()
    }

    /// Tests random halves of `count` candidates until there is a decision. Returns the answer and the number of tests. `gone`:
    /// whether the page is gone, given which candidates were tested.
    fn decide(count: u16, chance: &mut Chance, gone: impl Fn(&[bool], &mut Chance) -> bool) -> (Answer, usize) {
        let mut decoder = Decoder::new(usize::from(count));
        for test in 1.. {
            let tested: Vec<bool> = (0..count).map(|_| chance.next() < 0.5).collect();
            let gone = gone(&tested, chance);
            decoder.observe(&tested, gone, RATES);
            if let Some(answer) = decoder.decision(&colors(count), 1e-4, 1e-4) {
                return (answer, test);
            }
        }
        unreachable!()
    }

    #[test]
    fn pages_get_their_color_with_no_more_errors_than_stated_when_rates_are_as_assumed() {
        let mut chance = Chance(1);
        for count in [1u16, 4, 16] {
            let (mut wrong, mut tests) = (0, 0);
            for page in 0..20_000usize {
                let color = page % usize::from(count);
                let (answer, used) = decide(count, &mut chance, |tested, chance| {
                    chance.next() < if tested[color] { RATES.evicted } else { RATES.noise }
                });
                wrong += usize::from(answer != Answer::Color(Color(color as u16)));
                tests += used;
            }
            // With an error probability of 1e-4, two errors of 20 000 are expected, and more than nine occur once in 20 000 such
            // tests.
            assert!(wrong <= 9, "{count} candidates: {wrong} of 20000 wrong");
            assert!(tests < 20_000 * 25, "{count} candidates: {} tests each", tests as f64 / 20_000.0);
        }
    }

    #[test]
    fn pages_of_no_candidate_color_and_unsteady_pages_get_no_color() {
        let mut chance = Chance(2);
        for _ in 0..5_000 {
            let other = decide(4, &mut chance, |_, chance| chance.next() < RATES.noise).0;
            assert_eq!(other, Answer::Other);
            assert_eq!(decide(4, &mut chance, |_, _| true).0, Answer::Unsteady);
        }
    }

    #[test]
    fn one_result_decides_nothing() {
        let mut decoder = Decoder::new(1);
        decoder.observe(&[true], true, RATES);
        assert_eq!(decoder.decision(&colors(1), 1e-4, 1e-4), None);
        // Each time the page is gone, the odds against `Other` grow by a factor of 0.85 / 0.02 = 42. Each time the page stays
        // while another color is tested, the odds against `Unsteady` grow by a factor of 0.98 / 0.3.
        for _ in 0..8 {
            decoder.observe(&[true], true, RATES);
            decoder.observe(&[false], false, RATES);
        }
        assert_eq!(decoder.decision(&colors(1), 1e-4, 1e-4), Some(Answer::Color(Color(0))));
    }
}
