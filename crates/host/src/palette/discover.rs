//! Finding eviction sets: groups of pages of one color, from nothing but looks.
//!
//! A page is taken as the target, and a random crowd that evicts it is reduced, group by group, to about as many pages as
//! the cache has ways. What remains shares the target's color; every page of the crowd that the remainder evicts joins it.
//! Several looks decide whether the candidate set without some of its pages still evicts the target. A control guards each answer: a
//! wait that is as long as a look and touches nothing. Pages that were dropped by mistake are taken back.

use super::look::Look;

/// Sizes that steer the search. They come from the declared geometry; the number of colors found does not.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Ways of the cache.
    pub ways: usize,
    /// Colors the geometry leads one to expect: sets the size of the crowd.
    pub colors_expected: usize,
}

impl Search {
    /// Pages among which eviction sets are sought at first: enough that every color has more than its ways.
    pub fn crowd(&self) -> usize {
        self.ways * self.colors_expected * 5 / 2
    }

    /// Pages an eviction set holds: more than the ways, since replacement is not exactly least-recently-used.
    pub fn set_len(&self) -> usize {
        self.ways * 7 / 4
    }
}

/// Pages of one color that together evict any other page of that color.
#[derive(Clone, Debug)]
pub struct Group {
    /// The eviction set.
    pub set: Vec<u32>,
    /// All pages known to be of the color, those of the set among them.
    pub members: Vec<u32>,
}

/// Rounds over what is left without finding a new color, after which the search ends; and as long as colors are missing.
const IDLE_ROUNDS: usize = 3;
const IDLE_ROUNDS_MISSING: usize = 8;

/// Looks at whether a set evicts a page, and in how many of them it has to: replacement is not exactly least-recently-used.
const LOOKS: u32 = 5;
const NEEDED: u32 = 4;

/// Number of looks, and of passes over the set in each, while a candidate set is reduced. A large set evicts the target nearly always, and
/// a look at it takes long, so few looks suffice. A small set may have lost a page that it needs, and a look at it is short.
const LARGE: (u32, u32) = (2, 2);
const SMALL: (u32, u32) = (4, 3);

/// Times that pages dropped from one candidate set are taken back before the target is given up.
const TAKEN_BACK: usize = 10;

/// Targets in vain, before a first set is found, after which the search is given up: what is measured by says nothing then.
const IN_VAIN: usize = 12;

/// Finds the groups among `pages`, until `stop` says so; gives them and the pages that belong to none of them.
pub fn groups(
    look: &mut dyn Look,
    search: Search,
    pages: &[u32],
    rng: &mut fastrand::Rng,
    stop: &dyn Fn() -> bool,
) -> (Vec<Group>, Vec<u32>) {
    let mut fresh = pages.to_vec();
    rng.shuffle(&mut fresh);
    let mut crowd: Vec<u32> = fresh.split_off(fresh.len().saturating_sub(search.crowd()));
    let (mut groups, mut lost) = (Vec::<Group>::new(), Vec::new());
    // Rounds over the crowd that found nothing new, in a row.
    let mut idle_rounds = 0;
    let mut found_in_round = 0;
    while !stop() {
        let Some(target) = crowd.pop() else {
            idle_rounds = if found_in_round == 0 { idle_rounds + 1 } else { 0 };
            let missing = groups.len() < search.colors_expected;
            let idle_most = if missing { IDLE_ROUNDS_MISSING } else { IDLE_ROUNDS };
            if idle_rounds > idle_most || lost.is_empty() && (fresh.is_empty() || !missing) {
                break;
            }
            // What failed once may have been disturbed, or short of pages of its color: try again beside fresh pages.
            found_in_round = 0;
            let more = fresh.split_off(fresh.len().saturating_sub(search.crowd() / 2));
            for page in more.into_iter().chain(std::mem::take(&mut lost)) {
                match groups.iter_mut().find(|g| look.evicts(&g.set, page, 3, LOOKS, NEEDED)) {
                    Some(group) => group.members.push(page),
                    None => crowd.push(page),
                }
            }
            rng.shuffle(&mut crowd);
            continue;
        };
        let others: Vec<u32> = crowd.iter().chain(&lost).copied().collect();
        let Some(mut group) = group_of(look, search, target, &others, rng, stop) else {
            lost.push(target);
            if groups.is_empty() && lost.len() >= IN_VAIN {
                break;
            }
            continue;
        };
        // Pages of known colors only dilute the crowd.
        for pages in [&mut crowd, &mut lost] {
            pages.retain(|page| {
                let mine = group.members.contains(page) || look.evicts(&group.set, *page, 3, LOOKS, NEEDED);
                if mine && !group.members.contains(page) {
                    group.members.push(*page);
                }
                !mine
            });
        }
        // A second set of a known color is evicted by the first.
        let evicted = |by: &Group, look: &mut dyn Look| {
            group.set.iter().take(3).filter(|page| look.evicts(&by.set, **page, 4, LOOKS, NEEDED)).count() >= 2
        };
        match groups.iter_mut().find(|known| evicted(known, look)) {
            Some(known) => known.members.append(&mut group.members),
            None => {
                groups.push(group);
                found_in_round += 1;
            }
        }
    }
    for group in &mut groups {
        refine(look, search, group, rng);
    }
    (groups, lost)
}

/// Chooses the eviction set among all members found: those that random sets of the others evict most reliably.
fn refine(look: &mut dyn Look, search: Search, group: &mut Group, rng: &mut fastrand::Rng) {
    const ROUNDS: usize = 4;
    let mut candidates: Vec<(f32, u32)> = group.members.iter().take(2 * search.set_len()).map(|p| (0.0, *p)).collect();
    let (mut others, mut shares) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        rng.shuffle(&mut candidates);
        for i in 0..candidates.len() {
            others.clear();
            others.extend(
                candidates.iter().map(|(_, page)| *page).filter(|p| *p != candidates[i].1).take(search.set_len()),
            );
            look.look(&others, &[candidates[i].1], 3, &mut shares);
            candidates[i].0 += shares[0];
        }
    }
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
    group.set = candidates.iter().map(|(_, page)| *page).take(search.set_len()).collect();
}

/// The group of `target` among `crowd`, or `None` when the crowd does not evict it or cannot be reduced.
fn group_of(
    look: &mut dyn Look,
    search: Search,
    target: u32,
    crowd: &[u32],
    rng: &mut fastrand::Rng,
    stop: &dyn Fn() -> bool,
) -> Option<Group> {
    // With 1.5 pages per way of each color the set nearly always evicts the target, and it is reduced quickly.
    let enough = search.ways * search.colors_expected * 3 / 2;
    let mut rest = rng.choose_multiple(crowd.iter().copied(), enough);
    if !look.evicts(&rest, target, LARGE.1, LOOKS, NEEDED) {
        return None;
    }
    // Noise looks like eviction, so the pages dropped last may have been needed.
    let mut dropped_pages: Vec<Vec<u32>> = Vec::new();
    let (mut stuck, mut taken_back) = (0, 0);
    while rest.len() > search.ways && stuck < 3 {
        rng.shuffle(&mut rest);
        let step = rest.len().div_ceil(search.ways + 1);
        let mut dropped = false;
        let mut begin = 0;
        while begin < rest.len() && rest.len() > search.ways {
            if stop() {
                return None;
            }
            let end = (begin + step).min(rest.len());
            let without: Vec<u32> = rest[..begin].iter().chain(&rest[end..]).copied().collect();
            let (repeats, passes) = if without.len() > search.crowd() / 4 { LARGE } else { SMALL };
            if look.evicts(&without, target, passes, repeats, repeats) {
                dropped_pages.push(rest[begin..end].to_vec());
                rest = without;
                dropped = true;
            } else {
                begin = end;
            }
        }
        if !dropped && !look.evicts(&rest, target, SMALL.1, LOOKS, NEEDED) {
            taken_back += 1;
            match dropped_pages.pop() {
                Some(pages) if taken_back <= TAKEN_BACK => rest.extend(pages),
                _ => return None,
            }
            continue;
        }
        stuck = if dropped { 0 } else { stuck + 1 };
        // One page at a time and none can go: this is the core.
        if !dropped && step == 1 {
            break;
        }
    }
    if rest.len() > search.ways * 7 / 4 {
        return None;
    }
    rest.push(target);
    let mut members: Vec<u32> = rest.clone();
    for page in crowd {
        if members.len() >= search.set_len() * 3 / 2 {
            break;
        }
        if !rest.contains(page) && look.evicts(&rest, *page, 4, LOOKS, NEEDED) {
            members.push(*page);
        }
    }
    // Every member must be evicted by the others.
    for _ in 0..3 {
        for page in members.clone() {
            let others: Vec<u32> = members.iter().copied().filter(|p| *p != page).take(search.set_len()).collect();
            if !look.evicts(&others, page, 4, LOOKS, NEEDED) {
                members.retain(|p| *p != page);
            }
        }
    }
    if members.len() < search.ways + search.ways / 2 {
        return None;
    }
    Some(Group { set: members.iter().copied().take(search.set_len()).collect(), members })
}
