//! Which page off color gets which of the frames that were found.

use super::{Pool, Slot};
use crate::recolor::classified::Classified;
use crate::recolor::wanted::Wanted;
use crate::sys::memory::page_bytes;

/// A mapping may have more pages of one color than of another by one in this many, so that neighbors can be moved together.
const AHEAD: usize = 8;

impl Pool {
    /// Chooses a page of the pool for each page off color; `None` where no suitable page is left.
    ///
    /// A page gets the color that its mapping has least of, so that neighbors differ. But a neighbor of the previous slot is taken if its
    /// color is not much ahead, because neighbors are moved together. A color of which the mapping has no page yet must not be ahead in all
    /// mappings either: many small mappings would have the colors in which the frames happen to come.
    ///
    /// Pages that the kernel [refills](crate::recolor::classified::OffColorPage::refilled) choose first, because they can only get frames of the
    /// zone from which the kernel takes frames. Where no slot has such a frame, a page on color gives its own and moves to a slot of the same
    /// color: the [donor](Slot::donor) of the slot.
    pub fn choose(&self, classified: &mut Classified, wanted: &Wanted) -> Vec<Option<Slot>> {
        let page = page_bytes() as u64;
        let count = self.slots.iter().map(|slot| slot.color + 1).max().unwrap_or(0);
        // The slots found first are used first.
        let by_color = |suits: &dyn Fn(&Slot) -> bool| {
            let mut lists = vec![Vec::new(); count];
            self.slots
                .iter()
                .enumerate()
                .rev()
                .filter(|(_, slot)| suits(slot))
                .for_each(|(at, slot)| lists[slot.color].push(at));
            lists
        };
        let (mut refilling, mut others) = (by_color(&|slot| self.refills(slot)), by_color(&|slot| !self.refills(slot)));
        let mut donors = vec![Vec::new(); count];
        for donor in self.donors(classified).filter(|donor| donor.color < count) {
            donors[donor.color].push(*donor);
        }
        let mut taken = vec![false; self.slots.len()];
        // Between colors that a mapping has equally often, the pages of all mappings decide. Of many small mappings each would begin with the
        // same color otherwise. What a large mapping has more of does not count, because small ones would have to make up for it.
        let mut everywhere = vec![0; count];
        for held in classified.held.values() {
            everywhere.iter_mut().zip(held).for_each(|(sum, pages)| *sum += pages.min(&AHEAD));
        }
        let mut chosen = vec![None; classified.off_color.len()];
        let mut next = usize::MAX;
        let any = |_: usize| true;
        // Then come pages that may have few colors.
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        order.sort_by_key(|at| {
            let page = &classified.off_color[*at];
            (!page.refilled, wanted.place_of(page.address).is_none())
        });
        for page_at in order {
            let off_color = &classified.off_color[page_at];
            let may_have = |color: usize| wanted.may_have(off_color.address, color);
            let Some(held) = classified.held.get_mut(&off_color.region) else { continue };
            let least = |pages: &[usize]| pages.iter().min().copied().unwrap_or_default();
            let not_ahead = |color: usize| match held[color] {
                0 => everywhere[color] == least(&everywhere),
                pages => pages <= least(held) + least(held) / AHEAD,
            };
            let neighbor = next < self.slots.len()
                && !taken[next]
                && (!off_color.refilled || self.refills(&self.slots[next]))
                && self.slots[next - 1].address + page == self.slots[next].address
                && not_ahead(self.slots[next].color)
                && may_have(self.slots[next].color);
            let pop = |lists: &mut [Vec<usize>], of: &dyn Fn(usize) -> bool| {
                lists.iter_mut().for_each(|slots| while slots.pop_if(|at| taken[*at]).is_some() {});
                let left = (0..count).filter(|color| !lists[*color].is_empty() && may_have(*color) && of(*color));
                left.min_by_key(|color| (held[*color], everywhere[*color])).and_then(|color| lists[color].pop())
            };
            let at = match (neighbor, off_color.refilled) {
                (true, _) => Some(next),
                (false, true) => {
                    pop(&mut refilling, &any).or_else(|| pop(&mut others, &|color| !donors[color].is_empty()))
                }
                (false, false) => pop(&mut others, &any).or_else(|| pop(&mut refilling, &any)),
            };
            let Some(at) = at else { continue };
            taken[at] = true;
            let slot = self.slots[at];
            everywhere[slot.color] += usize::from(held[slot.color] < AHEAD);
            held[slot.color] += 1;
            let donor = if off_color.refilled && !self.refills(&slot) { donors[slot.color].pop() } else { None };
            let in_normal_zone = if donor.is_some() { self.last_in_normal_zone } else { slot.in_normal_zone };
            chosen[page_at] = Some(Slot { in_normal_zone, donor, ..slot });
            next = at + 1;
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use isochrome_model::units::FrameNumber;

    use super::*;
    use crate::color::known::KnownColors;
    use crate::recolor::classified::{Donor, OffColorPage};
    use crate::recolor::pool::tests::{anywhere, slot};

    /// Returns how many of 32 mappings of one page get each color, from slots at `distance` pages whose colors are `color_of`. Another mapping
    /// chooses first: it has `held` pages of the colors, and one page that is off color.
    fn of_small_mappings(distance: u64, color_of: impl Fn(u64) -> u64, held: Vec<usize>) -> Vec<usize> {
        let page = page_bytes() as u64;
        let slots = (0..400).map(|n| slot(distance * n * page, color_of(n), true)).collect();
        let pool = Pool { slots, ..Pool::default() };
        let none = vec![0; held.len()];
        let off_color = |n| OffColorPage { region: n, address: 2 * n as u64 * page, refilled: false };
        let small = (1..33).map(|n| (n, none.clone()));
        let mut classified = Classified {
            off_color: (0..33).map(off_color).collect(),
            held: BTreeMap::from_iter(small.chain([(0, held)])),
            ..Classified::default()
        };
        let known = KnownColors::of_bits(16);
        let chosen = pool.choose(&mut classified, &anywhere(&known));
        let mut of_color = none;
        chosen[1..].iter().flatten().for_each(|slot| of_color[slot.color] += 1);
        of_color
    }

    #[test]
    fn pages_of_many_small_mappings_get_different_colors() {
        // No slot has a neighbor.
        assert_eq!(of_small_mappings(2, |n| n % 8, vec![0; 8]), [4; 8]);
        // Neighbors have the same color, as the kernel hands them out after a program that had one color, then another, gave them back.
        let in_runs = of_small_mappings(1, |n| n / 16 % 4, vec![0; 4]);
        assert!(in_runs.iter().all(|pages| (7..=9).contains(pages)), "{in_runs:?}");
        // A large mapping has as many pages of two colors as it may, so that neighbors could be moved together. Small ones do not make up for that.
        assert_eq!(of_small_mappings(2, |n| n % 4, vec![112, 100, 100, 112]), [8; 4]);
    }

    #[test]
    fn neighbors_of_the_pool_are_used_together_and_colors_evenly() {
        let page = page_bytes() as u64;
        // Of 16 colors the first four are allowed. The frame of page 33 is missing, which interrupts a run of neighbors.
        let found = (0..400).filter(|n| n % 16 < 4 && *n != 33).map(|n| slot(n * page, n % 16, true));
        let pool = Pool { slots: found.collect(), ..Pool::default() };
        let off_color = |n| OffColorPage { region: 0, address: n * page, refilled: false };
        let mut classified = Classified {
            off_color: (0..64).map(off_color).collect(),
            held: BTreeMap::from([(0, vec![0, 1, 0, 0])]),
            ..Classified::default()
        };
        let known = KnownColors::of_bits(16);
        let chosen = pool.choose(&mut classified, &anywhere(&known));
        let chosen: Vec<u64> = chosen.iter().flatten().map(|slot| slot.address).collect();
        let distinct: BTreeSet<u64> = chosen.iter().copied().collect();
        assert_eq!((chosen.len(), distinct.len()), (64, 64));
        let runs = 1 + chosen.windows(2).filter(|pair| pair[0] + page != pair[1]).count();
        assert!(runs <= 24, "{runs} runs where at best there are 16");
        // 65 pages in four colors.
        assert!(classified.held[&0].iter().all(|pages| (14..=18).contains(pages)), "{:?}", classified.held);
    }

    #[test]
    fn pages_that_the_kernel_refills_get_frames_even_where_there_are_too_few_for_all_pages() {
        let page = page_bytes() as u64;
        // 60 frames of one zone for 70 pages of memory and, behind them, 30 pages of a file.
        let pool = Pool {
            slots: (0..60).map(|n| slot(n * page, n % 4, true)).collect(),
            last_in_normal_zone: Some(true),
            ..Pool::default()
        };
        let off_color = |n| OffColorPage { region: usize::from(n >= 70), address: n * page, refilled: n >= 70 };
        let mut classified = Classified {
            off_color: (0..100).map(off_color).collect(),
            held: BTreeMap::from([(0, vec![0; 4]), (1, vec![0; 4])]),
            ..Classified::default()
        };
        let known = KnownColors::of_bits(16);
        let chosen = pool.choose(&mut classified, &anywhere(&known));
        assert_eq!((chosen[..70].iter().flatten().count(), chosen[70..].iter().flatten().count()), (30, 30));
        assert!(classified.held.values().flatten().all(|pages| (7..=8).contains(pages)), "{:?}", classified.held);
    }

    #[test]
    fn pages_that_the_kernel_refills_get_frames_of_pages_that_can_have_those_of_another_zone() {
        let page = page_bytes() as u64;
        // 2 frames of the zone from which the kernel takes frames, and 40 of another one.
        let slots = (0..42).map(|n| slot(n * page, n % 4, n < 2)).collect();
        let (normal_zone, last_in_normal_zone) = (Some(100), Some(true));
        let mut pool = Pool { slots, normal_zone, last_in_normal_zone, ..Pool::default() };
        // 30 pages of a file are off color. Of 40 pages of memory on color, those of the first color are in the other zone.
        let donor = |n: u64| Donor {
            region: 1,
            address: (1000 + n) * page,
            color: n as usize % 4,
            frame: Some(FrameNumber(if n.is_multiple_of(4) { 99 } else { 100 + n })),
        };
        let classified = || Classified {
            off_color: (0..30).map(|n| OffColorPage { region: 0, address: n * page, refilled: true }).collect(),
            donors: (0..40).map(donor).collect(),
            held: BTreeMap::from([(0, vec![0; 4])]),
            ..Classified::default()
        };
        let known = KnownColors::of_bits(16);
        let wanted = anywhere(&known);
        // Where pages cannot be moved to any zone, 28 pages have to wait, and more is drawn for them.
        assert_eq!(pool.choose(&mut classified(), &wanted).iter().flatten().count(), 2);
        assert_eq!(pool.lacking(&classified(), &wanted).frames, 28);
        pool.exchanges = true;
        assert_eq!(pool.lacking(&classified(), &wanted).frames, 0);
        let chosen: Vec<Slot> = pool.choose(&mut classified(), &wanted).into_iter().flatten().collect();
        assert_eq!(chosen.len(), 30);
        assert!(chosen.iter().all(|slot| slot.in_normal_zone == Some(true)));
        let (donors, own): (Vec<&Slot>, Vec<&Slot>) = chosen.iter().partition(|slot| slot.donor.is_some());
        assert_eq!((donors.len(), own.len()), (28, 2));
        let donated: BTreeSet<u64> = donors.iter().flat_map(|slot| slot.donor).map(|donor| donor.address).collect();
        assert_eq!(donated.len(), 28, "no page is moved twice");
        assert!(
            donors.iter().all(|slot| slot.donor.is_some_and(|donor| donor.color == slot.color && donor.color != 0))
        );
    }
}
