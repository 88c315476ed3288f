//! When a reserve takes frames, and when it gives back those that it does not need.

use std::time::{Duration, Instant};

/// Largest number of frames that are taken at a time, but for the first ones.
const TAKEN_AT_ONCE: usize = 1 << 14;
/// Longest time of a search. The frames that it does not need are held meanwhile.
const SEARCHING: Duration = Duration::from_secs(120);
/// Time between the end of a search that did not find everything and the next search.
const SEARCHED_AGAIN: Duration = Duration::from_secs(60);

/// The frames that a reserve provides, and the search for them.
///
/// A search takes frames until there are enough of each color, and only then are all others given back: if one were given back before, the kernel would
/// hand it out next.
pub struct Stock {
    /// Number of frames of each color that are provided.
    numbers: Vec<usize>,
    /// Time at which the present search began; `None` between searches.
    searching_since: Option<Instant>,
    /// Whether frames of these colors were needed since the last search began. Otherwise another search would find no more than the last one.
    is_needed: bool,
    /// Time before which no search begins, if the last one ended early.
    next_search: Option<Instant>,
}

/// What a reserve has to do for its stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Wait,
    /// Take this number of frames.
    Take(usize),
    /// Give back all frames that the stock does not need. The search has ended.
    GiveBack,
}

/// State of a reserve.
pub struct State<'a> {
    /// Number of frames of each color.
    pub counts: &'a [usize],
    /// Number of frames that are held, of known color or not.
    pub held: usize,
    /// Number of frames that may be held.
    pub limit: usize,
    /// Whether colors of some frames are to be measured.
    pub awaits_tests: bool,
    /// Whether there is enough memory for a search.
    pub may_search: bool,
}

impl Stock {
    /// Returns a stock that provides these numbers of frames of each color.
    pub fn new(numbers: Vec<usize>) -> Stock {
        Stock { numbers, searching_since: None, is_needed: true, next_search: None }
    }

    /// Returns the number of frames of each color that are provided.
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// Returns the number of all frames that are provided.
    pub fn pages(&self) -> usize {
        self.numbers.iter().sum()
    }

    /// Records that frames of a color are needed.
    pub fn need(&mut self, color: usize) {
        self.is_needed |= self.numbers[color] > 0;
    }

    /// Ends the search, and delays the next one.
    pub fn rest(&mut self, now: Instant) {
        (self.searching_since, self.next_search) = (None, Some(now + SEARCHED_AGAIN));
    }

    /// Returns what to do in this `state`. A search begins if there are less than three quarters of the frames of some color.
    pub fn step(&mut self, state: &State, now: Instant) -> Step {
        let has_less = |quarters: usize| {
            state.counts.iter().zip(&self.numbers).any(|(count, number)| 4 * count < quarters * number)
        };
        let (is_short, is_full) = (has_less(3), !has_less(4));
        let Some(since) = self.searching_since else {
            let may_begin = state.may_search && self.next_search.is_none_or(|next| now >= next);
            if is_short && self.is_needed && may_begin {
                (self.searching_since, self.is_needed) = (Some(now), false);
                return self.step(state, now);
            }
            return Step::Wait;
        };
        let has_no_room = state.held >= state.limit && !state.awaits_tests;
        if is_full || has_no_room || !state.may_search || now - since > SEARCHING {
            match is_full {
                true => self.searching_since = None,
                false => self.rest(now),
            }
            return Step::GiveBack;
        }
        match (state.awaits_tests, state.held) {
            (true, _) => Step::Wait,
            // As many as suffice if all of them are needed.
            (false, 0) => Step::Take(self.pages().min(state.limit)),
            (false, held) => Step::Take(TAKEN_AT_ONCE.min(state.limit - held)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(counts: &[usize], held: usize) -> State<'_> {
        State { counts, held, limit: 100_000, awaits_tests: false, may_search: true }
    }

    #[test]
    fn a_search_takes_frames_until_there_are_enough_of_each_color() {
        let (mut stock, begin) = (Stock::new(vec![0, 4000, 4000]), Instant::now());
        let step = |stock: &mut Stock, state: State| stock.step(&state, begin);
        assert_eq!(step(&mut stock, state(&[0, 0, 0], 0)), Step::Take(8000));
        assert_eq!(step(&mut stock, State { awaits_tests: true, ..state(&[0, 0, 0], 8000) }), Step::Wait);
        assert_eq!(step(&mut stock, state(&[900, 900, 900], 8000)), Step::Take(TAKEN_AT_ONCE));
        assert_eq!(step(&mut stock, state(&[4000, 4000, 3999], 90_000)), Step::Take(10_000));
        assert_eq!(step(&mut stock, state(&[4000, 4000, 4001], 90_000)), Step::GiveBack);
        // Then it waits until a quarter of a color was needed and given away.
        assert_eq!(step(&mut stock, state(&[0, 4000, 3000], 7000)), Step::Wait);
        assert_eq!(step(&mut stock, state(&[0, 4000, 2999], 6999)), Step::Wait);
        stock.need(0);
        assert_eq!(step(&mut stock, state(&[0, 4000, 2999], 6999)), Step::Wait);
        stock.need(2);
        assert_eq!(step(&mut stock, state(&[0, 4000, 2999], 6999)), Step::Take(TAKEN_AT_ONCE));
    }

    #[test]
    fn a_search_ends_where_memory_or_time_is_over_and_is_not_repeated_in_vain() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let few = [0, 10, 4000];
        let ended: [(State, u64); 3] = [
            (state(&few, 100_000), 1),
            (State { may_search: false, ..state(&few, 20_000) }, 1),
            (State { awaits_tests: true, ..state(&few, 20_000) }, 121),
        ];
        for (end, seconds) in ended {
            let mut stock = Stock::new(vec![0, 4000, 4000]);
            assert_eq!(stock.step(&state(&[0; 3], 0), begin), Step::Take(8000));
            assert_eq!(stock.step(&end, at(seconds)), Step::GiveBack);
            // Nobody needs more than was found.
            assert_eq!(stock.step(&state(&few, 4010), at(seconds + 1000)), Step::Wait);
            stock.need(1);
            assert_eq!(stock.step(&state(&few, 4010), at(seconds + 59)), Step::Wait);
            assert_eq!(stock.step(&state(&few, 4010), at(seconds + 60)), Step::Take(TAKEN_AT_ONCE));
        }
        let mut none = Stock::new(vec![0; 3]);
        assert_eq!(none.step(&state(&[0; 3], 0), begin), Step::Wait);
    }
}
