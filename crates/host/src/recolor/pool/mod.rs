//! Frames for pages that have to move: how many are lacking, which were found, and which page gets which frame.

mod choice;

use std::time::Duration;

use isochrome_model::units::{Bytes, FrameNumber};

use super::classified::{Classified, Donor};
use super::error::RecolorError;
use super::hold::{Hold, is_there};
use super::remote;
use super::scratch_area::ScratchArea;
use super::wanted::{Anew, Wanted};
use crate::color::known::{Page, all_colors};
use crate::color::tester::Effort;
use crate::machine::sysfs::Sysfs;
use crate::process::Pid;
use crate::sys::memory::page_bytes;

/// Frames that were found in the touched memory.
#[derive(Default)]
pub struct Pool {
    /// Pages of allowed colors, in ascending order.
    pub slots: Vec<Slot>,
    /// Number of frames found in the last draw, and the number expected if colors were evenly distributed; `None` before the first draw.
    last: Option<(usize, usize)>,
    /// Number of frames that were lacking of the scarcest color before the last draw.
    scarce: usize,
    /// Number of the first frame of the normal zone; `None` if that is not known.
    normal_zone: Option<u64>,
    /// Whether the frame that the kernel handed out last is in the normal zone; `None` if that is not known.
    last_in_normal_zone: Option<bool>,
    /// Number of draws that only tested from which zone frames come.
    looks: u32,
    /// Whether pages of plain memory can be moved to frames of any zone (UFFDIO_MOVE).
    pub exchanges: bool,
}

/// A page of the pool whose frame has an allowed color.
#[derive(Clone, Copy)]
pub struct Slot {
    /// Address of the page.
    pub address: u64,
    /// Index of its color among those allowed.
    pub color: usize,
    /// Whether its frame is in the zone from which the kernel takes frames first; `None` if that is not known.
    pub in_normal_zone: Option<bool>,
    /// A page that is moved to the frame of the slot. Its own frame then goes to the page that has chosen the slot.
    pub donor: Option<Donor>,
}

/// Divisor of the needed memory. The quotient is the size of the first draw, which shows the share of frames that have the colors.
const FIRST: u64 = 4;
/// Least size of a draw, unless less is needed.
const FIRST_AT_LEAST: Bytes = Bytes(8 << 20);
/// Least size of the first draw if the frames of the process are about evenly distributed over the colors, unless less is needed. Each further draw
/// costs a stop and a reading of the page table.
const FIRST_IF_EVEN: Bytes = Bytes(256 << 20);
/// Number of pages of a process that show how often frames of the colors come.
const SHOWING: usize = 256;

/// Most draws that only test from which zone frames come.
const LOOKS: u32 = 3;
/// Memory touched by a draw that only tests from which zone frames come.
const LOOK: Bytes = Bytes(1 << 20);
/// Time in which the kernel usually has reclaimed the memory that it lacked.
const RECLAIM: Duration = Duration::from_millis(20);

/// Memory to be touched to find frames.
pub struct Draw {
    /// Size of the memory in bytes.
    pub bytes: u64,
    /// Size of huge pages in bytes, if the memory is to be touched in huge pages.
    pub huge: Option<u64>,
    /// Time to wait before the memory is touched.
    pub rest: Duration,
}

/// Numbers of frames that pages off color need.
pub struct Needs {
    /// For each allowed color, the number of frames that pages need because of their places: an even share of each place.
    of_places: Vec<usize>,
    /// Number of frames of any allowed color that the other pages need.
    any: usize,
}

impl Needs {
    /// Returns what the pages off color of `classified` need.
    pub fn of(classified: &Classified, wanted: &Wanted) -> Needs {
        let off_color = classified.off_color.len();
        // An experiment needs the colors in every mapping alike: those that run out would be missing in the last mappings.
        let any =
            if wanted.anew != Anew::Nothing { off_color + off_color / 8 + wanted.colors.len() } else { off_color };
        let mut needs = Needs { of_places: vec![0; wanted.colors.len()], any };
        if wanted.places.is_empty() {
            return needs;
        }
        let mut pages = vec![0usize; wanted.places.len()];
        classified.off_color.iter().filter_map(|page| wanted.place_of(page.address)).for_each(|at| pages[at] += 1);
        needs.any -= pages.iter().sum::<usize>();
        for (place, pages) in wanted.places.iter().zip(pages) {
            place.colors.iter().for_each(|color| needs.of_places[*color] += pages.div_ceil(place.colors.len()));
        }
        needs
    }

    /// Returns the number of pages of any color for which as much memory has to be touched: the color that places need most decides.
    pub fn as_any(&self) -> usize {
        let most = self.of_places.iter().max().copied().unwrap_or_default();
        (self.any + self.of_places.iter().sum::<usize>()).max(most * self.of_places.len())
    }
}

/// Numbers of frames that are still to be found.
pub struct Lacking {
    /// Number of frames that are lacking in all colors together.
    pub frames: usize,
    /// Number of frames of the scarcest color that are lacking.
    pub scarce: usize,
}

impl Lacking {
    /// Returns the bytes of memory to touch to find these frames, if every color is equally likely.
    pub fn bytes(&self, wanted: &Wanted) -> u64 {
        let colors = wanted.color_count().max(1) as u64;
        let pages = (self.frames as u64 * colors / wanted.colors.len() as u64).max(self.scarce as u64 * colors);
        if pages == 0 { 0 } else { (pages + pages / 32 + colors) * page_bytes() as u64 }
    }
}

impl Pool {
    /// Returns the memory to touch next, at most the `left` bytes that may still be touched; `None` if nothing is needed or left.
    ///
    /// The first draw covers only a part of what is needed, unless the frames of the process suggest that all colors are equally frequent.
    pub fn next_draw(&mut self, classified: &Classified, wanted: &Wanted, left: u64) -> Option<Draw> {
        self.needed(classified, wanted, left).or_else(|| self.look(classified, left))
    }

    fn needed(&mut self, classified: &Classified, wanted: &Wanted, left: u64) -> Option<Draw> {
        let page = page_bytes() as u64;
        let lacking = self.lacking(classified, wanted);
        let scarce_before = std::mem::replace(&mut self.scarce, lacking.scarce);
        let needed = lacking.bytes(wanted);
        let part = |of: u64| (needed / of / page * page).max(FIRST_AT_LEAST.0).min(needed);
        // If colors were evenly distributed, each draw would bring as many frames of the scarcest color as of any other.
        let is_missing = |expected: usize| {
            2 * scarce_before.saturating_sub(lacking.scarce) < scarce_before.min(expected / wanted.colors.len())
        };
        let (bytes, is_huge) = match self.last {
            None if seem_even(classified, wanted) => (part(FIRST).max(FIRST_IF_EVEN.0.min(needed)), false),
            None => (part(FIRST), false),
            // If other programs hold frames of these colors, the frames of other colors between them are free, and the kernel hands these
            // out first. Whole huge pages hold all colors, but take longer.
            Some((_, expected)) if is_missing(expected) => (needed, true),
            Some((found, expected)) if 10 * found >= 9 * expected => (needed, false),
            Some((found, expected)) if 2 * found < expected || left < needed / 4 * 5 => (needed, true),
            Some(_) => (part(2), false),
        };
        let huge = Sysfs::system().huge_page_bytes().filter(|_| is_huge).map(|huge| huge as u64);
        let bytes = if needed == 0 { 0 } else { bytes.max(huge.map_or(0, |huge| 2 * huge)).min(left) };
        (bytes > 0).then_some(Draw { bytes, huge, rest: Duration::ZERO })
    }

    /// Returns the memory to touch in order to see whether frames come from the normal zone again; `None` if they do, or if no page depends on it.
    ///
    /// While memory is short, the kernel takes frames from a lower zone. Soon it has reclaimed memory, and takes them from the normal zone.
    fn look(&mut self, classified: &Classified, left: u64) -> Option<Draw> {
        let depends = classified.off_color.iter().any(|page| page.refilled);
        let bytes = LOOK.0.min(left);
        if !depends || self.last_in_normal_zone != Some(false) || self.looks == LOOKS || bytes == 0 {
            return None;
        }
        self.looks += 1;
        Some(Draw { bytes, huge: None, rest: RECLAIM })
    }

    /// Notes from which zone the kernel takes frames, given the page that was touched last.
    pub fn note_zone(&mut self, last: Page) {
        self.normal_zone = Sysfs::system().normal_zone_start();
        self.last_in_normal_zone = in_normal_zone(last.1.frame(), self.normal_zone);
    }

    /// Whether the kernel would probably refill a page with the frame of `slot`, once the frame is free: it takes frames from one zone.
    fn refills(&self, slot: &Slot) -> bool {
        slot.in_normal_zone.zip(self.last_in_normal_zone).is_none_or(|(frame, last)| frame == last)
    }

    /// Returns the pages whose frames the kernel would refill other pages with, once these pages are moved to slots whose frames it would not take.
    fn donors<'c>(&self, classified: &'c Classified) -> impl Iterator<Item = &'c Donor> {
        let (start, last) = (self.normal_zone, self.last_in_normal_zone.filter(|_| self.exchanges));
        let donates = move |donor: &&Donor| last.is_some() && in_normal_zone(donor.frame, start) == last;
        classified.donors.iter().filter(donates)
    }

    /// Returns the number of slots of each allowed color.
    fn found(&self, wanted: &Wanted) -> Vec<usize> {
        let mut found = vec![0; wanted.colors.len()];
        self.slots.iter().for_each(|slot| found[slot.color] += 1);
        found
    }

    /// Returns how many frames of each allowed color to take from a reserve that has `available` of them, at most `room` in all.
    ///
    /// Frames that places need come first. Frames for the other pages are taken from the colors that have the fewest, as long as the reserve has
    /// these colors, and then from the remaining colors.
    pub fn needed_of_reserve(
        &self,
        classified: &Classified,
        wanted: &Wanted,
        available: &[usize],
        mut room: usize,
    ) -> Vec<usize> {
        let (Needs { of_places, any }, found) = (Needs::of(classified, wanted), self.found(wanted));
        let mut taken = vec![0; available.len()];
        for (at, needed) in of_places.iter().enumerate() {
            taken[at] = needed.saturating_sub(found[at]).min(available[at]).min(room);
            room -= taken[at];
        }
        let for_any: usize = found.iter().zip(&of_places).map(|(found, needed)| found.saturating_sub(*needed)).sum();
        for _ in 0..any.saturating_sub(for_any).min(room) {
            let available = (0..taken.len()).filter(|color| taken[*color] < available[*color]);
            let Some(color) =
                available.min_by_key(|color| (found[*color] + taken[*color]).saturating_sub(of_places[*color]))
            else {
                break;
            };
            taken[color] += 1;
        }
        taken
    }

    /// Returns the frames that are missing for all pages off color, and for each color to get three quarters of an even share.
    ///
    /// A full even share is not demanded: the last frames of the scarcest color would cost as much memory as all others together.
    pub fn lacking(&self, classified: &Classified, wanted: &Wanted) -> Lacking {
        let count = wanted.colors.len();
        let Needs { of_places, any } = Needs::of(classified, wanted);
        let found = self.found(wanted);
        let mut held = vec![0; count];
        classified.held.values().flatten().enumerate().for_each(|(at, pages)| held[at % count] += pages);
        let share = (held.iter().sum::<usize>() + any) / count;
        let enough = if wanted.anew != Anew::Nothing { share } else { 3 * share / 4 };
        let lacking = |color: usize| {
            let needed = of_places[color] + enough.saturating_sub(held[color]).min(any);
            needed.saturating_sub(found[color])
        };
        let scarce = (0..count).map(lacking).max().unwrap_or_default();
        let in_places: usize = of_places.iter().zip(&found).map(|(needed, found)| needed.saturating_sub(*found)).sum();
        let refilled = classified.off_color.iter().filter(|page| page.refilled).count();
        let refilling = self.slots.iter().filter(|slot| self.refills(slot)).count() + self.donors(classified).count();
        let of_all = classified.off_color.len().saturating_sub(self.slots.len());
        Lacking { frames: of_all.max(in_places).max(refilled.saturating_sub(refilling)), scarce }
    }

    /// Finds the colors of `pages`, which were touched last, while the process runs, and adds those of allowed colors to the pool.
    ///
    /// `pauses` gathers how long a thread stood still, in ns.
    pub fn find(
        &mut self,
        wanted: &Wanted,
        area: &ScratchArea,
        pages: Vec<Page>,
        pauses: &mut Vec<u64>,
    ) -> Result<(), RecolorError> {
        let (pid, known, before) = (area.pid, wanted.known, self.slots.len());
        let expected = pages.len() * wanted.colors.len() / wanted.color_count().max(1);
        let checked = known.to_check(pid.0, &pages, wanted.colors);
        let unknown = |pages: &[Page]| -> Vec<Page> {
            pages.iter().filter(|page| known.of(pid.0, **page).is_none()).copied().collect()
        };
        if let Some(reference) = area.reference
            && !(checked.is_empty() && unknown(&pages).is_empty())
        {
            let mut hold = Hold::one(pid, area.range())?;
            area.make_test_helper(&mut hold)?;
            let (helpers, stop) = hold.leave()?;
            pauses.push(stop.as_nanos() as u64);
            let tested = remote::tester(area, reference, wanted).and_then(|mut tester| {
                let unmeasured = RecolorError::unmeasured(pid.0);
                if !checked.is_empty() {
                    let numbers = tester.eviction_test.number(&checked);
                    let answers =
                        tester.classify(&numbers, &all_colors(known), Effort::STATEMENT).map_err(&unmeasured)?;
                    known.judge(pid.0, &checked, &answers).map_err(&unmeasured)?;
                }
                let open = unknown(&pages);
                let numbers = tester.eviction_test.number(&open);
                let colors = tester.colors_of(&numbers, wanted.colors).map_err(&unmeasured)?;
                Ok(open.into_iter().zip(colors).collect::<Vec<_>>())
            });
            let tested = tested.map_err(|error| match is_there(pid, area.range()) {
                Ok(true) => error,
                Ok(false) => RecolorError::Changed { pid: pid.0 },
                Err(ended) => ended,
            });
            helpers.wait()?;
            for (page, color) in tested? {
                match color {
                    Some(color) => known.learn(pid.0, page, color),
                    None => known.rule_out(page, wanted.colors),
                }
            }
        }
        let normal_zone = Sysfs::system().normal_zone_start();
        for page in pages {
            let in_normal_zone = in_normal_zone(page.1.frame(), normal_zone);
            if let Some(color) = wanted.allowed(known.of(pid.0, page)) {
                self.slots.push(Slot { address: page.0, color, in_normal_zone, donor: None });
            }
        }
        self.last = Some((self.slots.len() - before, expected));
        Ok(())
    }

    /// Keeps those slots whose pages are still known to have their color. `pages`: the resident pages of the pool, ascending.
    pub fn retain(&mut self, pid: Pid, wanted: &Wanted, pages: &[Page]) {
        self.slots.retain(|slot| {
            let page = pages.binary_search_by_key(&slot.address, |page| page.0).ok();
            page.and_then(|at| wanted.allowed(wanted.known.of(pid.0, pages[at]))) == Some(slot.color)
        });
    }
}

/// Whether the frames of the process, which the kernel handed out not long ago, are about evenly distributed over the allowed colors.
fn seem_even(classified: &Classified, wanted: &Wanted) -> bool {
    let (on_color, off_color) = (classified.on_color.len(), classified.off_color.len());
    let pages = on_color + off_color;
    let expected = pages * wanted.colors.len() / wanted.color_count().max(1);
    pages >= SHOWING && 4 * on_color.abs_diff(expected) < expected
}

/// Whether `frame` is in the zone that begins with the frame `start`; `None` if one of them is not known.
fn in_normal_zone(frame: Option<FrameNumber>, start: Option<u64>) -> Option<bool> {
    frame.zip(start).map(|(frame, start)| frame.0 >= start)
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use isochrome_model::units::Color;

    use super::*;
    use crate::color::known::KnownColors;
    use crate::recolor::classified::OffColorPage;
    use crate::recolor::wanted::Place;

    pub fn slot(address: u64, color: u64, in_normal_zone: bool) -> Slot {
        Slot { address, color: color as usize, in_normal_zone: Some(in_normal_zone), donor: None }
    }

    /// Returns a request for frames of four colors, without places.
    pub fn anywhere(known: &KnownColors) -> Wanted<'_> {
        const FIRST: [Color; 4] = [Color(0), Color(1), Color(2), Color(3)];
        Wanted { known, colors: &FIRST, spread: true, anew: Anew::Nothing, reserve: None, places: &[] }
    }

    #[test]
    fn pages_of_a_place_get_its_colors_and_enough_is_drawn_for_them() {
        let page = page_bytes() as u64;
        let known = KnownColors::of_bits(16);
        // Of 48 pages the last 16 must have the second color, and 8 before them the third or the fourth.
        let places = [
            Place { start: 32 * page, end: 48 * page, colors: vec![1] },
            Place { start: 24 * page, end: 32 * page, colors: vec![2, 3] },
        ];
        let wanted = Wanted { places: &places, ..anywhere(&known) };
        let mut classified = Classified {
            off_color: (0..48).map(|n| OffColorPage { region: 0, address: n * page, refilled: false }).collect(),
            held: BTreeMap::from([(0, vec![0; 4])]),
            ..Classified::default()
        };
        let needs = Needs::of(&classified, &wanted);
        assert_eq!((&needs.of_places[..], needs.any), (&[0, 16, 4, 4][..], 24));
        // As many pages of any color are found where 16 of the second color are.
        assert_eq!(needs.as_any(), 64);
        // 10 pages of each color: too few of the second one.
        let pool = Pool { slots: (0..40).map(|n| slot(n * page, n % 4, true)).collect(), ..Pool::default() };
        let lacking = pool.lacking(&classified, &wanted);
        assert_eq!((lacking.frames, lacking.scarce), (8, 10), "16 + 4 of the second, 3/4 of an even share of the rest");
        // From a reserve come the 6 more that places need of the second color. Of the 24 others 22 have a slot: 10, 0, 6 and 6.
        let of_reserve = |available: [usize; 4], room| pool.needed_of_reserve(&classified, &wanted, &available, room);
        assert_eq!(of_reserve([9, 9, 9, 9], 100), [0, 8, 0, 0]);
        assert_eq!(of_reserve([0, 7, 0, 9], 100), [0, 7, 0, 1]);
        assert_eq!((of_reserve([9, 4, 0, 0], 100), of_reserve([9, 9, 9, 9], 3)), (vec![2, 4, 0, 0], vec![0, 3, 0, 0]));
        let chosen = pool.choose(&mut classified, &wanted);
        let colors: Vec<Option<usize>> = chosen.iter().map(|slot| slot.map(|slot| slot.color)).collect();
        assert!(colors[32..].iter().flatten().all(|color| *color == 1), "{colors:?}");
        assert!(colors[24..32].iter().all(|color| matches!(color, Some(2 | 3))), "{colors:?}");
        // All of the second color are theirs, and 22 slots are left for the 24 pages without a place.
        assert_eq!(colors[32..].iter().flatten().count(), 10);
        assert_eq!(colors[..24].iter().flatten().count(), 22);
    }

    #[test]
    fn pages_that_the_kernel_refills_get_frames_of_the_zone_that_it_takes_them_from() {
        let page = page_bytes() as u64;
        // Four colors. The last 20 of 100 slots are in a lower zone, where the pages of the second mapping would come last.
        let found = (0..100).map(|n| slot(n * page, n % 4, n < 80));
        let mut pool = Pool { slots: found.collect(), last_in_normal_zone: Some(true), ..Pool::default() };
        let off_color = |n| OffColorPage { region: usize::from(n >= 70), address: n * page, refilled: n >= 70 };
        let known = KnownColors::of_bits(16);
        let classified = || Classified {
            off_color: (0..90).map(off_color).collect(),
            held: BTreeMap::from([(0, vec![0; 4]), (1, vec![0; 4])]),
            ..Classified::default()
        };
        let choose = |pool: &Pool| {
            let mut classified = classified();
            let chosen = pool.choose(&mut classified, &anywhere(&known));
            let distinct: std::collections::BTreeSet<u64> = chosen.iter().flatten().map(|slot| slot.address).collect();
            assert_eq!(chosen.iter().flatten().count(), distinct.len());
            (chosen, classified.held[&1].clone())
        };
        let (chosen, held) = choose(&pool);
        assert_eq!((chosen.iter().flatten().count(), held), (90, vec![5; 4]));
        assert!(chosen[70..].iter().flatten().all(|slot| slot.in_normal_zone == Some(true)));
        assert!(pool.look(&classified(), 1 << 24).is_none(), "frames come from the normal zone");
        // While memory is short, the kernel takes frames from the lower zone. It soon has reclaimed some, which is looked for.
        pool.last_in_normal_zone = Some(false);
        assert_eq!(
            choose(&pool).0[70..].iter().flatten().filter(|slot| slot.in_normal_zone == Some(false)).count(),
            20
        );
        let looks = std::iter::from_fn(|| pool.look(&classified(), 1 << 24)).count();
        assert_eq!(looks, LOOKS as usize);
        // Frames of the other zone would be of no use, so more are drawn, and pages wait if there are none.
        pool.last_in_normal_zone = Some(true);
        pool.slots = (0..100).map(|n| slot(n * page, n % 4, n < 12)).collect();
        assert_eq!(pool.lacking(&classified(), &anywhere(&known)).frames, 8);
        let chosen = choose(&pool).0;
        assert_eq!((chosen[..70].iter().flatten().count(), chosen[70..].iter().flatten().count()), (70, 12));
    }

    #[test]
    fn huge_pages_are_touched_where_a_color_does_not_come() {
        let page = page_bytes() as u64;
        let known = KnownColors::of_bits(16);
        let all: Vec<Color> = (0..16).map(Color).collect();
        let wanted = Wanted { known: &known, colors: &all, spread: true, anew: Anew::All, reserve: None, places: &[] };
        let off_color = (0..128).map(|n| OffColorPage { region: 0, address: n * page, refilled: false }).collect();
        let held = BTreeMap::from([(0, vec![0; 16])]);
        let classified = Classified { off_color, held, ..Classified::default() };
        let mut pool = Pool::default();
        assert!(pool.next_draw(&classified, &wanted, 1 << 24).is_some_and(|draw| draw.huge.is_none()));
        // 180 frames come, none of which has one of the first four colors.
        pool.slots = (0..180).map(|n| slot(n * page, 4 + n % 12, true)).collect();
        pool.last = Some((180, 180));
        if Sysfs::system().huge_page_bytes().is_some() {
            assert!(pool.next_draw(&classified, &wanted, 1 << 24).is_some_and(|draw| draw.huge.is_some()));
        }
        // Frames of all colors come, and nothing more is needed.
        pool.slots = (0..180).map(|n| slot(n * page, n % 16, true)).collect();
        assert!(pool.next_draw(&classified, &wanted, 1 << 24).is_none());
    }

    #[test]
    fn the_first_draw_is_all_that_is_needed_if_the_process_has_the_colors_as_often_as_chance_would_have_it() {
        let page = page_bytes() as u64;
        let known = KnownColors::of_bits(16);
        let wanted = anywhere(&known);
        let first_draw = |on_color: u64, off_color: u64| {
            let off = |n| OffColorPage { region: 0, address: n * page, refilled: false };
            let classified = Classified {
                on_color: (0..on_color).map(|n| (off_color + n) * page).collect(),
                off_color: (0..off_color).map(off).collect(),
                held: BTreeMap::from([(0, vec![0; wanted.colors.len()])]),
                ..Classified::default()
            };
            let mut pool = Pool::default();
            let needed = pool.lacking(&classified, &wanted).bytes(&wanted);
            (pool.next_draw(&classified, &wanted, u64::MAX).unwrap().bytes, needed)
        };
        let share = wanted.colors.len() as u64;
        // Of 16 384 pages as many are on color as chance would have it.
        let (drawn, needed) = first_draw(1024 * share, 1024 * (16 - share));
        assert_eq!(drawn, needed);
        // None is, as of a program that is on other colors.
        let (drawn, needed) = first_draw(0, 16 << 10);
        assert!(drawn <= needed / 4, "{drawn} of {needed}");
        // However much is needed, not more is touched before it was seen what comes.
        let (drawn, needed) = first_draw(share << 20, (16 - share) << 20);
        assert!(drawn <= needed / 4, "{drawn} of {needed}");
    }
}
