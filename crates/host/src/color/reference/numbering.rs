//! The numbers of colors: those of one numbering are matched with those of another, by eviction tests or by frame numbers.

use std::collections::BTreeMap;
use std::path::Path;

use isochrome_model::palette::Palette;
use isochrome_model::palette::decode::Answer;
use isochrome_model::palette::infer;
use isochrome_model::units::Color;

use super::{Reference, new_numbering};
use crate::color::local::LocalEvictionTest;
use crate::color::tester::{Effort, Tester};
use crate::error::HostError;
use crate::sys::memory::Arena;

/// Pages of an eviction set by which its color is matched, at least.
const VOTES_MIN: usize = 3;

/// For each of `sets`, which are pages of `arena`, the color of `tester` that most of them have; `None` where that is not one each.
/// `ready`: whether the pages hold chains to walk along. Gives the memory back.
pub fn order_by_eviction(
    tester: &mut Tester<LocalEvictionTest>,
    arena: Arena,
    sets: &[Vec<u32>],
    ready: bool,
) -> (Option<Vec<Color>>, Option<Arena>) {
    let first = tester.eviction_test.set_second(arena, &sets.concat(), ready);
    let order = order_of(tester, first, sets);
    (order, tester.eviction_test.take_second())
}

fn order_of(tester: &mut Tester<LocalEvictionTest>, first: u32, sets: &[Vec<u32>]) -> Option<Vec<Color>> {
    if sets.len() != tester.colors() as usize {
        return None;
    }
    let targets: Vec<u32> = sets.iter().flatten().map(|page| first + page).collect();
    let all: Vec<Color> = (0..tester.colors() as u16).map(Color).collect();
    let mut answers = tester.classify(&targets, &all, Effort::STATEMENT).ok()?.into_iter();
    let mut order = Vec::new();
    for set in sets {
        let mut votes = BTreeMap::<Color, usize>::new();
        for answer in answers.by_ref().take(set.len()).flatten() {
            if let Answer::Color(color) = answer {
                *votes.entry(color).or_default() += 1;
            }
        }
        // Pages that have other frames now have any color.
        let all_votes: usize = votes.values().sum();
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        let color = most.filter(|(_, count)| 2 * count > all_votes && *count >= VOTES_MIN).map(|(color, _)| color);
        order.push(color.filter(|color| !order.contains(&Some(*color))));
    }
    // A single one that cannot be matched is the one that is left.
    let mut left = all.into_iter().filter(|color| !order.contains(&Some(*color)));
    let last = left.next().filter(|_| left.next().is_none());
    order.iter().map(|color| color.or(last)).collect()
}

impl Reference {
    /// For each color of this reference, the color of `tester` that most of its pages have; `None` where that is not one each.
    pub fn numbers_by(&self, tester: &mut Tester<LocalEvictionTest>) -> Option<Vec<Color>> {
        order_by_eviction(tester, self.map()?, &self.sets, true).0
    }

    /// Makes this the numbering of the machine: colors get the numbers that `rule` gives their frames, by `order`.
    pub fn adopt(&mut self, folder: &Path, rule: &Palette, order: &[Color]) -> Result<(), HostError> {
        self.renumber(order);
        self.rule = Some(rule.clone());
        self.numbering = new_numbering();
        self.save(folder, None)
    }

    /// For each color of `palette`, the color here whose pages have frames of it: `None` where the palette knows no frame of theirs, so
    /// that its numbers have to be the same.
    ///
    /// Fails with [`HostError::PaletteContradicted`] where frames of one color here have several by the palette.
    pub fn order_by_frames(
        &self,
        tester: &Tester<LocalEvictionTest>,
        palette: &Palette,
    ) -> Result<Option<Vec<Color>>, HostError> {
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
            _ => Err(HostError::PaletteContradicted { wrong, tested: self.sets.len() }),
        }
    }

    /// How frame numbers lead to colors, where they can be seen and a linear function does it.
    pub(super) fn linear_rule(&self, tester: &Tester<LocalEvictionTest>) -> Option<Palette> {
        let frames = (0u16..).zip(&self.sets).flat_map(|(color, set)| {
            set.iter().filter_map(move |page| Some((tester.eviction_test.frame(*page)?, Color(color))))
        });
        infer::linear_palette(self.level, self.colors(), &frames.collect::<Vec<_>>())
    }

    /// Gives the color numbered `order[i]` the number i.
    pub(super) fn renumber(&mut self, order: &[Color]) {
        self.sets = order.iter().map(|color| self.sets[usize::from(color.0)].clone()).collect();
        // A rule has numbers of its own.
        self.rule = None;
    }
}
