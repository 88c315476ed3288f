//! Finds eviction sets: groups of pages of one color, by eviction tests alone.
//!
//! The search takes one page as the target and random pages that together evict it as the candidate set. It drops pages of the candidate set,
//! some at a time, until about as many are left as the cache has ways. The remaining pages have the target's color, and so does every other
//! page that they evict. Several tests decide whether the candidate set still evicts the target without the dropped pages. A control, which
//! waits as long as a test and touches nothing, guards each positive result against noise. Pages that were dropped by mistake are taken back.

use super::classify::PASSES;
use super::eviction::{ArenaEvictionTest, EVICTED};

/// Sizes for the search of eviction sets. They come from the declared geometry; the number of colors found does not.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Number of ways of the cache.
    pub ways: usize,
    /// Number of colors expected by the geometry, which determines the size of the first candidate set.
    pub colors_expected: usize,
}

impl Search {
    /// Returns the number of pages to search at first: enough that every color has more pages than the cache has ways.
    pub fn pages(&self) -> usize {
        self.ways * self.colors_expected * 5 / 2
    }

    /// Returns the size of an eviction set in pages: more than the ways, since replacement is not exactly least-recently-used.
    pub fn set_len(&self) -> usize {
        self.ways * 7 / 4
    }

    /// Returns how many pages of `colors` colors to test together: few enough that they seldom evict each other.
    fn batch(&self, colors: usize) -> usize {
        (self.ways / 2 * colors).clamp(1, BATCH)
    }

    /// Returns the least size of a usable eviction set in pages.
    pub fn set_len_min(&self) -> usize {
        self.ways * 3 / 2
    }
}

/// Pages of one color that together evict any other page of that color.
#[derive(Clone, Debug)]
pub struct Group {
    /// The pages of the eviction set.
    pub set: Vec<u32>,
    /// All pages known to be of the color, including those of the set.
    pub members: Vec<u32>,
}

/// Number of tests of whether a set evicts a page, and number of these tests in which the set has to evict it. Not all have to succeed,
/// because replacement is not exactly least-recently-used.
const TESTS: u32 = 5;
const NEEDED: u32 = 4;

/// Number of tests, and of passes over the set in each, while a candidate set is reduced. A large set evicts the target nearly always, and
/// a test by it takes long, so few tests suffice. A small set may have lost a page that it needs, and a test by it is short.
const LARGE: (u32, u32) = (2, 2);
const SMALL: (u32, u32) = (4, 3);

/// Most times that dropped pages are taken back into a candidate set before the target is given up.
const TAKEN_BACK: usize = 10;

/// Number of failed attempts in a row after which no further eviction set is sought among the same pages.
const IN_VAIN: usize = 8;

/// Most pages that are tested together, and number of these tests that must evict a page before the page is tested alone.
const BATCH: usize = 32;
const SCREENINGS: usize = 2;

/// Number of tests of a page of each known color by a new set, and how many have to evict the page for the set to be of that color.
const CROSS_TESTS: usize = 5;
const CROSS_NEEDED: usize = 3;

/// Number of rounds in which candidates for an eviction set are tested, each by other pages of their color, to choose the best.
const REFINING_ROUNDS: usize = 3;

/// Pages of the arena that have not been tested yet.
struct Fresh {
    /// Untested pages that are resident, in random order.
    pages: Vec<u32>,
    /// Number of pages made resident so far, and the largest number of pages that may be.
    ready: u32,
    at_most: u32,
}

impl Fresh {
    fn take(&mut self, count: usize) -> Vec<u32> {
        self.pages.split_off(self.pages.len().saturating_sub(count))
    }

    /// Doubles the number of resident pages, up to the limit, and returns whether any were added.
    ///
    /// Adding only a few pages would not suffice: frames come in the order in which they were freed, so the next few may lack the same colors.
    fn double(&mut self, eviction_test: &mut dyn ArenaEvictionTest, rng: &mut fastrand::Rng) -> bool {
        let more = self.ready..(2 * self.ready).min(self.at_most);
        eviction_test.make_ready(more.clone());
        self.ready = more.end;
        self.pages.extend(more.clone());
        rng.shuffle(&mut self.pages);
        !more.is_empty()
    }
}

/// Most times that the number of resident pages is doubled.
const DOUBLED: u32 = 5;

/// Finds groups among the pages of the arena, and returns the groups and the number of pages that are resident at the end.
///
/// The search ends when further attempts are in vain, when tests no longer work, or when `stop` returns true. `ready` pages are resident already; more pages are made
/// resident while colors are missing.
pub fn groups(
    eviction_test: &mut dyn ArenaEvictionTest,
    search: Search,
    ready: u32,
    rng: &mut fastrand::Rng,
    stop: &dyn Fn() -> bool,
) -> (Vec<Group>, u32) {
    let at_most = (eviction_test.arena().page_count() as u32).min(ready << DOUBLED);
    let mut fresh = Fresh { pages: (0..ready).collect(), ready, at_most };
    rng.shuffle(&mut fresh.pages);
    // Pages of no known color.
    let mut open = fresh.take(search.pages());
    let mut step = search.pages();
    let mut groups = Vec::<Group>::new();
    let mut in_vain = 0;
    while !stop() && eviction_test.works() {
        let missing = search.colors_expected.saturating_sub(groups.len());
        if in_vain >= IN_VAIN {
            if missing == 0 || groups.is_empty() {
                break;
            }
            // The open pages may include too few pages of every missing color.
            in_vain = 0;
            if !fresh.double(eviction_test, rng) {
                step *= 2;
            }
            let mut more = fresh.take(step);
            if more.is_empty() {
                break;
            }
            for group in &mut groups {
                group.take_from(eviction_test, search, &mut more, search.colors_expected, rng);
            }
            open.append(&mut more);
        }
        in_vain += 1;
        let Some(core) = evicted_one(eviction_test, search, &mut open, missing, rng)
            .and_then(|(target, candidates)| reduced(eviction_test, search, target, candidates, rng, stop))
        else {
            continue;
        };
        open.retain(|page| !core.contains(page));
        let mut group = Group { members: core.clone(), set: core };
        group.take_from(eviction_test, search, &mut open, missing, rng);
        open.append(&mut group.give_up_strangers(eviction_test, search));
        if group.members.len() < search.set_len_min() {
            open.append(&mut group.members);
            continue;
        }
        match known_color(eviction_test, &groups, &group, rng) {
            Some(known) => groups[known].members.append(&mut group.members),
            None => {
                groups.push(group);
                in_vain = 0;
            }
        }
    }
    // Sets that are short of pages are filled up with pages that were not tested yet.
    while groups.iter().any(|group| group.members.len() < search.set_len()) && !stop() && eviction_test.works() {
        let mut pages = fresh.take(search.pages() / 2);
        if pages.is_empty() {
            break;
        }
        for group in groups.iter_mut().filter(|group| group.members.len() < search.set_len()) {
            group.take_from(eviction_test, search, &mut pages, search.colors_expected, rng);
        }
    }
    for group in &mut groups {
        group.refine(eviction_test, search, rng);
    }
    (groups, fresh.ready)
}

impl Group {
    /// Moves the pages that the set evicts from `pages` to the members. If the group already has enough members, evicted pages are removed from
    /// `pages` without confirmation and do not become members.
    ///
    /// `colors`: number of colors among `pages`.
    fn take_from(
        &mut self,
        eviction_test: &mut dyn ArenaEvictionTest,
        search: Search,
        pages: &mut Vec<u32>,
        colors: usize,
        rng: &mut fastrand::Rng,
    ) {
        let batch = search.batch(colors);
        let (mut evicted, mut shares) = (pages.clone(), Vec::new());
        for _ in 0..SCREENINGS {
            // Each screening batches the pages differently.
            rng.shuffle(&mut evicted);
            let mut again = Vec::new();
            for targets in evicted.chunks(batch) {
                eviction_test.run(&self.set, targets, PASSES, &mut shares);
                again
                    .extend(targets.iter().zip(&shares).filter(|(_, share)| **share >= EVICTED).map(|(page, _)| *page));
            }
            evicted = again;
        }
        let is_whole = self.members.len() >= 2 * search.set_len();
        evicted.retain(|page| is_whole || eviction_test.evicts(&self.set, *page, PASSES, TESTS, NEEDED));
        pages.retain(|page| !evicted.contains(page));
        if !is_whole {
            self.members.append(&mut evicted);
        }
    }

    /// Removes and returns the pages of the set that the other members do not evict, and makes a new set of the remaining members.
    fn give_up_strangers(&mut self, eviction_test: &mut dyn ArenaEvictionTest, search: Search) -> Vec<u32> {
        let mut strangers = Vec::new();
        for page in self.set.clone() {
            let others: Vec<u32> =
                self.members.iter().rev().copied().filter(|other| *other != page).take(search.set_len()).collect();
            if !eviction_test.evicts(&others, page, PASSES, TESTS, NEEDED) {
                self.members.retain(|member| *member != page);
                strangers.push(page);
            }
        }
        self.set = self.members.iter().copied().take(search.set_len()).collect();
        strangers
    }

    /// Chooses the eviction set among all members: the pages that random sets of the other members evict most reliably.
    fn refine(&mut self, eviction_test: &mut dyn ArenaEvictionTest, search: Search, rng: &mut fastrand::Rng) {
        let mut candidates: Vec<(f32, u32)> =
            self.members.iter().take(2 * search.set_len()).map(|page| (0.0, *page)).collect();
        let (mut others, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..REFINING_ROUNDS {
            rng.shuffle(&mut candidates);
            for i in 0..candidates.len() {
                let (_, page) = candidates[i];
                others.clear();
                others.extend(candidates.iter().map(|(_, other)| *other).filter(|o| *o != page).take(search.set_len()));
                eviction_test.run(&others, &[page], PASSES, &mut shares);
                candidates[i].0 += shares[0];
            }
        }
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.set = candidates.iter().map(|(_, page)| *page).take(search.set_len()).collect();
    }
}

/// Returns the index in `groups` of the group that has the color of `group`; `None` if there is no such group. Two groups have one color if
/// the set of each evicts pages of the other.
fn known_color(
    eviction_test: &mut dyn ArenaEvictionTest,
    groups: &[Group],
    group: &Group,
    rng: &mut fastrand::Rng,
) -> Option<usize> {
    let mut gone = vec![0; groups.len()];
    let mut shares = Vec::new();
    for _ in 0..CROSS_TESTS {
        // One page of each known color, so that no page evicts another.
        let pages: Vec<u32> = groups.iter().filter_map(|known| rng.choice(&known.members).copied()).collect();
        for (pages, gone) in pages.chunks(BATCH).zip(gone.chunks_mut(BATCH)) {
            eviction_test.run(&group.set, pages, PASSES, &mut shares);
            gone.iter_mut().zip(&shares).for_each(|(gone, share)| *gone += usize::from(*share >= EVICTED));
        }
    }
    let mut evicts = |known: &Group| {
        let pages = group.members.iter().take(3);
        pages.filter(|page| eviction_test.evicts(&known.set, **page, PASSES, TESTS, NEEDED)).count() >= 2
    };
    (0..groups.len()).find(|at| gone[*at] >= CROSS_NEEDED && evicts(&groups[*at]))
}

/// Returns a page of `open` and a candidate set of other pages that together evict it; `None` if no such page is found.
///
/// `missing`: number of expected colors that have not been found yet.
fn evicted_one(
    eviction_test: &mut dyn ArenaEvictionTest,
    search: Search,
    open: &mut [u32],
    missing: usize,
    rng: &mut fastrand::Rng,
) -> Option<(u32, Vec<u32>)> {
    rng.shuffle(open);
    // With 1.5 pages per way of each color, the candidates nearly always evict the other pages, and few of them have to be dropped.
    let enough = search.ways * (missing + 1) * 3 / 2;
    let (candidates, others) = open.split_at(enough.min(open.len() * 3 / 4));
    let mut shares = Vec::new();
    for targets in others.chunks(search.batch(missing)) {
        eviction_test.run(candidates, targets, LARGE.1, &mut shares);
        let gone = targets.iter().zip(&shares).filter(|(_, share)| **share >= EVICTED);
        for (target, _) in gone.take(2) {
            if eviction_test.evicts(candidates, *target, LARGE.1, TESTS, NEEDED) {
                return Some((*target, candidates.to_vec()));
            }
        }
    }
    None
}

/// Reduces `rest`, which evicts `target`, to about as many pages as the cache has ways. Returns these and `target`, all of one color;
/// `None` if `rest` cannot be reduced that far.
fn reduced(
    eviction_test: &mut dyn ArenaEvictionTest,
    search: Search,
    target: u32,
    mut rest: Vec<u32>,
    rng: &mut fastrand::Rng,
    stop: &dyn Fn() -> bool,
) -> Option<Vec<u32>> {
    // Noise looks like eviction, so the pages dropped last may have been needed.
    let mut dropped_pages: Vec<Vec<u32>> = Vec::new();
    let (mut stuck, mut taken_back) = (0, 0);
    while rest.len() > search.ways && stuck < 3 {
        rng.shuffle(&mut rest);
        let step = rest.len().div_ceil(search.ways + 1);
        let mut dropped = false;
        let mut begin = 0;
        while begin < rest.len() && rest.len() > search.ways {
            if stop() || !eviction_test.works() {
                return None;
            }
            let end = (begin + step).min(rest.len());
            let without: Vec<u32> = rest[..begin].iter().chain(&rest[end..]).copied().collect();
            let (repeats, passes) = if without.len() > search.pages() / 4 { LARGE } else { SMALL };
            if eviction_test.evicts(&without, target, passes, repeats, repeats) {
                dropped_pages.push(rest[begin..end].to_vec());
                rest = without;
                dropped = true;
            } else {
                begin = end;
            }
        }
        if !dropped && !eviction_test.evicts(&rest, target, SMALL.1, TESTS, NEEDED) {
            taken_back += 1;
            match dropped_pages.pop() {
                Some(pages) if taken_back <= TAKEN_BACK => rest.extend(pages),
                _ => return None,
            }
            continue;
        }
        stuck = if dropped { 0 } else { stuck + 1 };
        // No single page can be dropped any more, so the set is minimal.
        if !dropped && step == 1 {
            break;
        }
    }
    if rest.len() > search.set_len() {
        return None;
    }
    rest.push(target);
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::modeled::ModeledEvictionTest;

    #[test]
    fn colors_that_the_first_pages_lack_are_found_in_more_memory() {
        for seed in 0..5 {
            let mut eviction_test = ModeledEvictionTest::new(16, 8, 1 << 14, seed);
            // The first 2048 pages lack the last four colors, as if a program on these colors had taken their frames.
            eviction_test.colors[..2048].iter_mut().filter(|color| **color >= 12).for_each(|color| *color -= 12);
            let search = Search { ways: 8, colors_expected: 16 };
            let mut rng = fastrand::Rng::with_seed(seed);
            let (groups, ready) = groups(&mut eviction_test, search, 1024, &mut rng, &|| false);
            let color_of = |group: &Group| -> Option<u16> {
                let mut colors = group.set.iter().map(|page| eviction_test.colors[*page as usize]);
                let first = colors.next()?;
                colors.all(|color| color == first).then_some(first)
            };
            let mut found: Vec<Option<u16>> = groups.iter().map(color_of).collect();
            found.sort_unstable();
            assert_eq!(found, (0..16).map(Some).collect::<Vec<_>>(), "seed {seed}");
            assert!(ready > 2048, "seed {seed}: {ready} pages were made resident");
        }
    }
}
