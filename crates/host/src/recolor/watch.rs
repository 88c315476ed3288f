//! Keeping a program on its colors while it runs: pages that are new, and pages whose frame the kernel has changed.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::process::{Pid, Region};
use super::{Limits, Placed, RecolorError, Source, Wanted, inspect_pages, recolor};

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Rounds in which a process was stopped and pages were moved.
    pub sweeps: u64,
    /// Pages moved that had not been there in the round before.
    pub new: u64,
    /// Pages moved that had been in place in the round before: the kernel gave them other frames since.
    pub drifted: u64,
    /// Longest time for which a process stood still.
    pub pause_ns_max: u64,
    /// All such times together.
    pub pause_ns_sum: u64,
    /// Resident pages, at the last look.
    pub resident: usize,
    /// Those of allowed colors, at the last look or moved since.
    pub right: usize,
    /// Those that cannot be moved, at the last look.
    pub left: usize,
}

/// Pages that could not be moved are tried again, after twice as many rounds each time that is in vain, up to so many.
const REST_MAX: u32 = 64;

/// Watches over the colors of processes.
#[derive(Default)]
pub struct Watch {
    seen: BTreeMap<i32, Seen>,
    tally: Tally,
}

/// What is known of a process from the round before.
#[derive(Default)]
struct Seen {
    /// Its pages that could not be moved.
    stubborn: HashSet<u64>,
    /// Rounds until these are tried again.
    rest: u32,
    /// For how many rounds they were left alone before.
    rested: u32,
    /// Its pages that had an allowed color, ascending.
    in_place: Vec<u64>,
    /// Its mappings.
    regions: Vec<Region>,
    /// Colors of its pages, where these are told by evictions. What was unmapped and mapped anew between two rounds is not noticed.
    placed: Placed,
}

impl Watch {
    /// What was done so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The colors of the pages of `pid`, where evictions told them.
    pub fn placed(&self, pid: Pid) -> Placed {
        self.seen.get(&pid.0).map(|seen| seen.placed.clone()).unwrap_or_default()
    }

    /// Looks at `pids`, and moves what is not on its color. Processes that have ended are forgotten.
    ///
    /// Errors are those of single processes; the others are looked at all the same.
    pub fn round(&mut self, pids: &[Pid], wanted: &Wanted, limits: &Limits) -> Vec<(Pid, RecolorError)> {
        self.seen.retain(|pid, _| pids.contains(&Pid(*pid)));
        let before = self.tally.clone();
        (self.tally.resident, self.tally.right, self.tally.left) = (0, 0, 0);
        let mut errors = Vec::new();
        for pid in pids {
            match self.look_after(*pid, wanted, limits) {
                Ok(()) | Err(RecolorError::NoSuchProcess { .. } | RecolorError::Ended { .. }) => {}
                Err(error) => errors.push((*pid, error)),
            }
        }
        if self.tally.resident == 0 {
            // All have ended: what was seen of them last stays.
            self.tally = before;
        }
        errors
    }

    fn look_after(&mut self, pid: Pid, wanted: &Wanted, limits: &Limits) -> Result<(), RecolorError> {
        // Known also where this fails: else all pages would be moved once more.
        let mut placed = std::mem::take(&mut self.seen.entry(pid.0).or_default().placed);
        let outcome = self.look_at(pid, wanted, limits, &mut placed);
        self.seen.entry(pid.0).or_default().placed = placed;
        outcome
    }

    fn look_at(&mut self, pid: Pid, wanted: &Wanted, limits: &Limits, placed: &mut Placed) -> Result<(), RecolorError> {
        let seen = self.seen.entry(pid.0).or_default();
        fn now<'a>(wanted: &Wanted<'a>, placed: &'a Placed) -> Wanted<'a> {
            match wanted.source {
                Source::Frames(_) => *wanted,
                Source::Evictions(reference, _) => Wanted { source: Source::Evictions(reference, placed), ..*wanted },
            }
        }
        seen.regions = pid.regions_now(std::mem::take(&mut seen.regions), (0, 0))?;
        let (mut report, mut look) = inspect_pages(pid, &seen.regions, &now(wanted, placed))?;
        // What could not be moved may have been busy with something that has ended since.
        seen.rest = seen.rest.saturating_sub(1);
        let again = seen.rest == 0;
        let lost: HashSet<u64> =
            look.strays.iter().map(|stray| stray.page).filter(|page| again || !seen.stubborn.contains(page)).collect();
        if !lost.is_empty() {
            let mut done = recolor(pid, &now(wanted, placed), limits)?;
            placed.append(&mut done.placed);
            let pause = done.pause_ns.unwrap_or(0);
            self.tally.sweeps += 1;
            self.tally.pause_ns_max = self.tally.pause_ns_max.max(pause);
            self.tally.pause_ns_sum += pause;
            let drifted = lost.iter().filter(|page| seen.in_place.binary_search(page).is_ok()).count();
            self.tally.drifted += drifted as u64;
            self.tally.new += (done.moved() as u64).saturating_sub(drifted as u64);
            seen.regions = pid.regions_now(std::mem::take(&mut seen.regions), (0, 0))?;
            (report, look) = inspect_pages(pid, &seen.regions, &now(wanted, placed))?;
            // Pages that came meanwhile are looked after in the next round.
            let stubborn = look.strays.iter().map(|stray| stray.page);
            let stubborn: HashSet<u64> =
                stubborn.filter(|page| lost.contains(page) || seen.stubborn.contains(page)).collect();
            if again {
                let in_vain = !seen.stubborn.is_empty() && stubborn.len() >= seen.stubborn.len();
                seen.rested = if in_vain { (2 * seen.rested).min(REST_MAX) } else { 1 };
                seen.rest = seen.rested + 1;
            }
            seen.stubborn = stubborn;
        }
        // What is not there any more has no color.
        placed.retain(|page, _| look.in_place.binary_search(page).is_ok());
        seen.in_place = look.in_place;
        self.tally.resident += report.resident();
        self.tally.right += report.right();
        self.tally.left += report.left() + look.strays.len();
        Ok(())
    }
}

/// `pid` and its descendants, as far as they can be seen.
pub fn family(pid: Pid) -> Vec<Pid> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        next += 1;
        family.extend(parent.children());
    }
    family
}
