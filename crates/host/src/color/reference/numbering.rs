//! Matches the color numbers of one numbering with those of another, by eviction tests or by frame numbers.

use std::collections::BTreeMap;
use std::path::Path;

use isochrome_model::palette::Palette;
use isochrome_model::palette::decode::Answer;
use isochrome_model::palette::infer;
use isochrome_model::units::Color;

use super::{Reference, new_numbering};
use crate::color::error::ColorError;
use crate::color::local::LocalEvictionTest;
use crate::color::tester::{Effort, Tester};
use crate::sys::memory::Arena;

/// Least number of pages of an eviction set by which its color is matched.
const VOTES_MIN: usize = 3;

/// For each color of another numbering (a color "there"), the same color in this numbering (the color "here"), if it is known. No color here
/// occurs twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order(Vec<Option<Color>>);

impl Order {
    /// Creates an order from votes: for each color there, how many of its pages were found to have each color here. A color here wins by a
    /// majority of the votes, if it has at least [`VOTES_MIN`].
    ///
    /// Pages that have other frames now may have any color. If a color here wins the majority for two colors there, it matches neither.
    fn by_votes(votes: Vec<BTreeMap<Color, usize>>) -> Order {
        let of_most = |votes: BTreeMap<Color, usize>| {
            let all: usize = votes.values().sum();
            let most = votes.into_iter().max_by_key(|(_, count)| *count);
            most.filter(|(_, count)| 2 * count > all && *count >= VOTES_MIN).map(|(color, _)| color)
        };
        let found: Vec<Option<Color>> = votes.into_iter().map(of_most).collect();
        let is_single = |color: &Color| found.iter().flatten().filter(|other| *other == color).count() == 1;
        Order(found.iter().map(|color| color.filter(is_single)).collect())
    }

    /// Returns this order, completed by the matches of `other` that do not contradict it.
    pub fn or(self, other: Order) -> Order {
        if self.0.len() != other.0.len() {
            return if self.0.is_empty() { other } else { self };
        }
        let mut joined = self.0.clone();
        for (mine, theirs) in joined.iter_mut().zip(other.0) {
            *mine = mine.or(theirs.filter(|color| !self.0.contains(&Some(*color))));
        }
        Order(joined)
    }

    /// Whether all colors are known, or all but one, which follows from the others.
    pub fn is_complete(&self) -> bool {
        !self.0.is_empty() && self.0.iter().filter(|color| color.is_none()).count() <= 1
    }

    /// Returns the color here for each color there; `None` if two or more of them are unknown.
    pub fn complete(self, colors: u32) -> Option<Vec<Color>> {
        if self.is_complete() { self.filled(colors) } else { None }
    }

    /// Returns for each color there one of the `colors` here: the known one, or any remaining one if it is unknown. `None` if the numbers of
    /// colors differ.
    pub fn filled(self, colors: u32) -> Option<Vec<Color>> {
        if self.0.len() != colors as usize {
            return None;
        }
        let mut left = (0..colors as u16).map(Color).filter(|color| !self.0.contains(&Some(*color)));
        self.0.iter().map(|color| color.or_else(|| left.next())).collect()
    }
}

/// Returns the color of `tester` that each of `sets` has, and gives `arena` back.
///
/// `arena`: memory with the pages of `sets`. `ready`: whether these pages already hold chains to walk along.
pub fn order_by_eviction(
    tester: &mut Tester<LocalEvictionTest>,
    arena: Arena,
    sets: &[Vec<u32>],
    ready: bool,
) -> (Order, Option<Arena>) {
    let first = tester.eviction_test.set_second(arena, &sets.concat(), ready);
    let order = order_of(tester, first, sets);
    (order, tester.eviction_test.take_second())
}

fn order_of(tester: &mut Tester<LocalEvictionTest>, first: u32, sets: &[Vec<u32>]) -> Order {
    let targets: Vec<u32> = sets.iter().flatten().map(|page| first + page).collect();
    let all: Vec<Color> = (0..tester.colors() as u16).map(Color).collect();
    let Ok(answers) = tester.classify(&targets, &all, Effort::STATEMENT) else { return Order::default() };
    let mut answers = answers.into_iter();
    let votes = sets.iter().map(|set| {
        let mut votes = BTreeMap::<Color, usize>::new();
        for answer in answers.by_ref().take(set.len()).flatten() {
            if let Answer::Color(color) = answer {
                *votes.entry(color).or_default() += 1;
            }
        }
        votes
    });
    Order::by_votes(votes.collect())
}

impl Reference {
    /// Returns, for each color of this reference, the matching color of `tester`.
    pub fn order_by(&self, tester: &mut Tester<LocalEvictionTest>) -> Order {
        self.map().map_or_else(Order::default, |arena| order_by_eviction(tester, arena, &self.sets, true).0)
    }

    /// Makes this reference the numbering of the machine, and saves it in `folder`.
    ///
    /// `rule`: how frame numbers determine colors. `order`: for each color of `rule`, the present number of that color here.
    pub fn adopt(&mut self, folder: &Path, rule: &Palette, order: &[Color]) -> Result<(), ColorError> {
        self.renumber(order);
        self.rule = Some(rule.clone());
        self.numbering = new_numbering();
        self.save(folder, None)
    }

    /// Returns, for each color of `palette`, the color here whose pages have frames of that color. Returns `None` if the palette knows frames
    /// of no color here, or only of some; the palette then has to use the same numbers.
    ///
    /// Fails with [`ColorError::PaletteContradicted`] if the palette gives the frames of one color here several colors, or two colors here the
    /// same color.
    pub fn order_by_frames(
        &self,
        tester: &Tester<LocalEvictionTest>,
        palette: &Palette,
    ) -> Result<Option<Vec<Color>>, ColorError> {
        let mut order = vec![None; palette.colors as usize];
        let (mut known, mut wrong) = (0, 0);
        for (color, set) in self.sets.iter().enumerate() {
            let mut votes = BTreeMap::<Color, usize>::new();
            for frame in set.iter().filter_map(|page| tester.eviction_test.frame(*page)) {
                if let Some(of_frame) = palette.color_of(frame) {
                    *votes.entry(of_frame).or_default() += 1;
                }
            }
            let all: usize = votes.values().sum();
            known += usize::from(all > 0);
            let most = votes.into_iter().max_by_key(|(_, count)| *count);
            let here = Some(Color(color as u16));
            match most.filter(|(_, count)| 10 * count >= 9 * all) {
                Some((number, _)) if order.get(usize::from(number.0)) == Some(&None) => {
                    order[usize::from(number.0)] = here
                }
                _ => wrong += usize::from(all > 0),
            }
        }
        match order.into_iter().collect() {
            _ if known == 0 => Ok(None),
            Some(order) if wrong == 0 => Ok(Some(order)),
            // A table that knows pages of some colors only says nothing about the numbers of the others.
            None if wrong == 0 => Ok(None),
            _ => Err(ColorError::PaletteContradicted { wrong, tested: self.sets.len() }),
        }
    }

    /// Returns the rule by which frame numbers determine colors; `None` if frame numbers are hidden, or if no linear function determines the
    /// colors.
    pub(super) fn linear_rule(&self, tester: &Tester<LocalEvictionTest>) -> Option<Palette> {
        let frames = (0u16..).zip(&self.sets).flat_map(|(color, set)| {
            set.iter().filter_map(move |page| Some((tester.eviction_test.frame(*page)?, Color(color))))
        });
        infer::linear_palette(self.level, self.colors(), &frames.collect::<Vec<_>>())
    }

    /// Renumbers the colors: the color with the number `order[i]` gets the number i.
    pub(super) fn renumber(&mut self, order: &[Color]) {
        self.sets = order.iter().map(|color| self.sets[usize::from(color.0)].clone()).collect();
        // The rule still uses the old numbers.
        self.rule = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(votes: &[(u16, usize)]) -> BTreeMap<Color, usize> {
        votes.iter().map(|(color, count)| (Color(*color), *count)).collect()
    }

    /// If the pages of two colors have lost their colors, the other colors must keep their numbers. Otherwise a program is on the wrong colors
    /// until it follows.
    #[test]
    fn colors_that_can_be_matched_keep_their_numbers_where_others_cannot() {
        let found = vec![votes(&[(2, 9)]), votes(&[(0, 3), (1, 3)]), votes(&[(3, 10), (0, 2)]), votes(&[])];
        let order = Order::by_votes(found);
        assert_eq!(order, Order(vec![Some(Color(2)), None, Some(Color(3)), None]));
        assert!(!order.is_complete() && order.clone().complete(4).is_none());
        assert_eq!(order.clone().filled(4), Some([2, 0, 3, 1].map(Color).to_vec()));
        // A second attempt finds matches that the first one lacks.
        let again = order.or(Order(vec![Some(Color(0)), Some(Color(1)), None, None]));
        assert_eq!(again.complete(4), Some([2, 1, 3, 0].map(Color).to_vec()));
    }

    #[test]
    fn a_color_that_two_colors_seem_to_be_is_neither() {
        let order = Order::by_votes(vec![votes(&[(1, 9)]), votes(&[(1, 8)]), votes(&[(0, 9)])]);
        assert_eq!(order, Order(vec![None, None, Some(Color(0))]));
        assert_eq!(Order::default().filled(3), None);
        assert_eq!(order.filled(2), None, "another number of colors");
    }
}
