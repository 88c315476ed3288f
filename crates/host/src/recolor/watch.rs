//! Keeps a program on its colors while it runs: moves pages that are new, and pages whose frame the kernel has changed.

use std::collections::BTreeMap;

use isochrome_model::units::Bytes;
use rustc_hash::FxHashSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Anew, Limits, RecolorError, RegionReport, Wanted, claim, end_tracing, inspect_pages, recolor, verify, zero_frame,
};
use crate::color::known::KnownColors;
use crate::color::verified::{VERIFIED_PAGES, Verified};
use crate::process::{Pid, Region};

/// Tally of the work done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Tally {
    /// Number of rounds in which a process was stopped and pages were moved.
    pub sweeps: u64,
    /// Number of moved pages that had been on color in the round before, so that the kernel must have given them other frames since.
    pub drifted: u64,
    /// Longest time for which a process stood still, in ns.
    pub pause_ns_max: u64,
    /// Length of each of the first 4096 pauses, in ns.
    pub pauses_ns: Vec<u64>,
    /// Most memory that was touched to find frames in one sweep.
    #[serde(rename = "touched_bytes_max")]
    pub touched_max: Bytes,
    /// Number of resident pages in the last round.
    pub resident: usize,
    /// Number of resident pages that are on color.
    pub on_color: usize,
    /// Number of resident pages that are off color and can be moved.
    pub off_color: usize,
    /// Number of resident pages that cannot be moved, by reason.
    pub immovable: BTreeMap<String, usize>,
    /// Number of pauses by their length.
    #[serde(skip)]
    pub pauses: PauseCounts,
}

/// Numbers of pauses by their length, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PauseCounts {
    /// Number of pauses in each range of lengths. The ranges end at 1, 2, 5, 10, 15, 20, 25, 50 and 100 ms ([`PauseCounts::LIMITS_NS`]), and the last
    /// one holds longer pauses.
    pub counts: [u64; 10],
    /// Sum of all pauses, in ns.
    pub sum_ns: u64,
}

impl PauseCounts {
    /// Upper limits of the lengths that are counted together, in ns.
    pub const LIMITS_NS: [u64; 9] =
        [1_000_000, 2_000_000, 5_000_000, 10_000_000, 15_000_000, 20_000_000, 25_000_000, 50_000_000, 100_000_000];

    fn add(&mut self, pause_ns: u64) {
        self.counts[Self::LIMITS_NS.partition_point(|limit| *limit < pause_ns)] += 1;
        self.sum_ns += pause_ns;
    }

    /// Adds what has been counted in `later` since `earlier`.
    pub fn add_since(&mut self, earlier: &PauseCounts, later: &PauseCounts) {
        for ((sum, later), earlier) in self.counts.iter_mut().zip(later.counts).zip(earlier.counts) {
            *sum += later - earlier;
        }
        self.sum_ns += later.sum_ns - earlier.sum_ns;
    }
}

impl Tally {
    /// Returns whether 99 % of the movable pages are on color.
    pub fn is_placed(&self) -> bool {
        100 * self.on_color >= 99 * (self.on_color + self.off_color)
    }

    fn add_pauses(&mut self, pauses: &[u64]) {
        pauses.iter().for_each(|pause| self.pauses.add(*pause));
        self.pause_ns_max = self.pause_ns_max.max(pauses.iter().copied().max().unwrap_or(0));
        let kept = PAUSES_KEPT.saturating_sub(self.pauses_ns.len());
        self.pauses_ns.extend(pauses.iter().take(kept));
    }
}

/// Number of pauses that are kept in [`Tally::pauses_ns`].
const PAUSES_KEPT: usize = 4096;

/// Most rounds until pages that could not be moved are tried again. The number of rounds doubles with every failed attempt.
const REST_MAX: u32 = 64;

/// Number of draws that moved no page, after which the pages that are left stay where they are.
const VAIN_DRAWS: u32 = 3;

/// Watches over the colors of processes.
#[derive(Default)]
pub struct Watch {
    seen: BTreeMap<i32, Seen>,
    tally: Tally,
    /// Whether all pages of a process get other frames when it is moved for the first time.
    draws_anew: bool,
}

/// Findings of the last round about a process.
#[derive(Default)]
struct Seen {
    /// Pages that could not be moved.
    stubborn: FxHashSet<u64>,
    /// For each mapping, by its first address, the most frequent reason why its pages could not be moved.
    reasons: BTreeMap<u64, String>,
    /// The pages that are still to get another frame, if the watch draws anew; `None` before it does.
    undrawn: Option<FxHashSet<u64>>,
    /// Number of draws that moved none of these pages.
    drawn_in_vain: u32,
    /// Whether the last tests refuted that the process is on color.
    refuted: bool,
    /// Number of rounds until the stubborn pages are tried again.
    rest: u32,
    /// Number of rounds for which the stubborn pages were left alone the last time.
    rested: u32,
    /// Pages that had an allowed color, in ascending order.
    on_color: Vec<u64>,
    /// The mappings of the process.
    regions: Vec<Region>,
}

impl Seen {
    /// Records that all pages but those in `left` were drawn anew. These are drawn again until [`VAIN_DRAWS`] draws have moved none of them.
    fn drawn(&mut self, left: FxHashSet<u64>) {
        let in_vain = self.undrawn.as_ref().is_some_and(|before| left.len() >= before.len());
        self.drawn_in_vain += u32::from(in_vain);
        self.undrawn = Some(if self.drawn_in_vain < VAIN_DRAWS { left } else { FxHashSet::default() });
    }
}

impl Watch {
    /// Returns a watch that gives every movable page of a process [another frame](Wanted::anew) when it moves the process for the first time.
    /// Otherwise pages with an allowed color would stay. The kernel hands out first the frames that other programs gave back, which often have few
    /// colors.
    pub fn drawing_anew() -> Watch {
        Watch { draws_anew: true, ..Watch::default() }
    }

    /// Returns the tally of the work done so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether there are pages that could not be moved and that a later round will try again.
    pub fn is_waiting(&self) -> bool {
        self.undrawn() > 0 || self.seen.values().any(|seen| !seen.stubborn.is_empty())
    }

    /// Returns the number of pages that are still to get another frame, although they may have an allowed color.
    pub fn undrawn(&self) -> usize {
        self.seen.values().flat_map(|seen| &seen.undrawn).map(FxHashSet::len).sum()
    }

    /// Inspects `pids`, and moves pages that are off color. Processes that have ended are forgotten.
    ///
    /// Returns the errors by process. After an error in one process the other processes are still handled.
    pub fn round(&mut self, pids: &[Pid], wanted: &Wanted, limits: &Limits) -> Vec<(Pid, RecolorError)> {
        end_tracing();
        self.seen.retain(|pid, _| pids.contains(&Pid(*pid)));
        let before = self.tally.clone();
        (self.tally.resident, self.tally.on_color, self.tally.off_color) = (0, 0, 0);
        self.tally.immovable.clear();
        let mut errors = Vec::new();
        for pid in pids {
            match self.inspect(*pid, wanted, limits) {
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => errors.push((*pid, error)),
            }
        }
        if self.tally.resident == 0 {
            // All processes have ended: the tally keeps their last state.
            self.tally = before;
        }
        errors
    }

    /// Records which pages of `pids` are on color, without moving any, so that they can be [verified](Self::verify).
    pub fn look(&mut self, pids: &[Pid], wanted: &Wanted) -> Result<(), RecolorError> {
        for pid in pids {
            let inspected = pid.regions().map_err(RecolorError::from);
            match inspected.and_then(|regions| inspect_pages(*pid, &regions, wanted)) {
                Ok((_, classified)) => self.seen.entry(pid.0).or_default().on_color = classified.on_color,
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tests samples of the pages of `pids` by eviction. Returns `None` if colors are not measured or no page is on color.
    ///
    /// If the samples of a process refute that it is on color, twice in a row or where frame numbers are hidden, its colors were measured in a
    /// noisy moment. All of them are forgotten, so that the next round measures its pages again. The pages of a process that cannot be tested
    /// now count as undecided. If no process can be tested, the last error is returned.
    pub fn verify(&mut self, pids: &[Pid], wanted: &Wanted, limits: &Limits) -> Result<Option<Verified>, RecolorError> {
        let (mut sum, mut untested): (Option<Verified>, _) = (None, None);
        let mut undecided = 0;
        for pid in pids {
            let seen = self.seen.entry(pid.0).or_default();
            let on_color = &seen.on_color[..];
            let mut pauses = Vec::new();
            let verified = verify(*pid, wanted, limits, &mut pauses).and_then(|verified| {
                let is_refuted = verified.is_some_and(|verified| verified.is_refuted());
                // Where frames have numbers, the tests have forgotten the blocks of the wrong frames. That is enough if the host moved
                // these blocks.
                if is_refuted && (seen.refuted || zero_frame().is_none()) {
                    let entries = pid.page_map()?.entries(on_color)?;
                    wanted.known.forget_measured(pid.0, on_color.iter().copied().zip(entries));
                }
                seen.refuted = is_refuted;
                Ok(verified)
            });
            self.tally.add_pauses(&pauses);
            match verified {
                Ok(Some(verified)) => sum.get_or_insert_default().add(verified),
                Ok(None) => {}
                Err(error) if error.is_gone() => {}
                Err(error) if error.may_pass() && !error.doubts_reference() => {
                    undecided += on_color.len().min(VERIFIED_PAGES);
                    untested = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match (&mut sum, untested) {
            (None, Some(error)) => return Err(error),
            (Some(sum), _) => sum.undecided += undecided,
            (None, None) => {}
        }
        Ok(sum)
    }

    /// Hands the known colors of each process over to the `exec` that watches over that process.
    pub fn hand_over(&self, known: &KnownColors) -> Result<(), RecolorError> {
        for (pid, seen) in &self.seen {
            match claim::hand_over(Pid(*pid), known, &seen.on_color) {
                Err(error) if error.is_gone() => {}
                handed => handed?,
            }
        }
        Ok(())
    }

    fn inspect(&mut self, pid: Pid, wanted: &Wanted, limits: &Limits) -> Result<(), RecolorError> {
        claim::give_way(pid, limits)?;
        if limits.gives_way {
            claim::take_over(pid, wanted.known)?;
        }
        let seen = self.seen.entry(pid.0).or_default();
        seen.regions = pid.regions_now(std::mem::take(&mut seen.regions), (0, 0))?;
        let anew = match &seen.undrawn {
            None if self.draws_anew => Anew::All,
            Some(pages) if !pages.is_empty() => Anew::Only(pages),
            _ => Anew::Nothing,
        };
        let draws = anew != Anew::Nothing;
        let first = Wanted { anew, ..*wanted };
        let (mut report, mut classified) = inspect_pages(pid, &seen.regions, &first)?;
        // Pages that could not be moved may have been in a use that has ended since.
        seen.rest = seen.rest.saturating_sub(1);
        let again = seen.rest == 0;
        let lost: FxHashSet<u64> = classified
            .off_color
            .iter()
            .map(|page| page.address)
            .filter(|page| again || !seen.stubborn.contains(page))
            .collect();
        if !lost.is_empty() {
            let done = match recolor(pid, &first, limits) {
                // Other pages may need a frame for their color, which they get without these.
                Err(error) if error.lacks_frames() && matches!(anew, Anew::Only(_)) => {
                    seen.undrawn = Some(FxHashSet::default());
                    return self.inspect(pid, wanted, limits);
                }
                done => done?,
            };
            if draws {
                seen.drawn(done.left);
            }
            self.tally.sweeps += 1;
            self.tally.add_pauses(&done.pauses_ns);
            self.tally.touched_max = self.tally.touched_max.max(done.touched);
            let drifted = |page: &&u64| !draws && seen.on_color.binary_search(page).is_ok();
            self.tally.drifted += lost.iter().filter(drifted).count() as u64;
            seen.regions = pid.regions_now(std::mem::take(&mut seen.regions), (0, 0))?;
            (report, classified) = inspect_pages(pid, &seen.regions, wanted)?;
            // The next round handles the pages that came during this one, and the pages for which no frame was found.
            let tried = if done.waiting > 0 { &[][..] } else { &classified.off_color[..] };
            let stubborn = tried.iter().map(|page| page.address);
            let stubborn: FxHashSet<u64> =
                stubborn.filter(|page| lost.contains(page) || seen.stubborn.contains(page)).collect();
            if again {
                let in_vain = !seen.stubborn.is_empty() && stubborn.len() >= seen.stubborn.len();
                seen.rested = if in_vain { (2 * seen.rested).min(REST_MAX) } else { 1 };
                seen.rest = seen.rested + 1;
            }
            seen.stubborn = stubborn;
            // The reason of a single page is not known any more: the most frequent reason of a mapping stands for all its pages.
            let most =
                |region: &RegionReport| region.why.iter().max_by_key(|(_, pages)| **pages).map(|it| it.0.clone());
            let reasons = done.regions.iter().filter_map(|region| Some((region.start, most(region)?)));
            seen.reasons = reasons.collect();
        } else if draws {
            // The pages that were still to be drawn are gone.
            seen.undrawn = seen.undrawn.take().map(|_| FxHashSet::default());
            (report, classified) = inspect_pages(pid, &seen.regions, wanted)?;
        }
        // Colors known by address are kept only for pages that are on color now.
        wanted.known.retain(pid.0, &classified.on_color);
        wanted.known.hold(pid.0, classified.frames);
        seen.on_color = classified.on_color;
        self.tally.resident += report.resident();
        self.tally.on_color += report.on_color();
        for page in &classified.off_color {
            let start = seen.regions.get(page.region).map(|region| region.start);
            let why =
                start.filter(|_| seen.stubborn.contains(&page.address)).and_then(|start| seen.reasons.get(&start));
            match why {
                Some(why) => *self.tally.immovable.entry(why.clone()).or_default() += 1,
                // This includes a page whose intended frame another program took first: nothing prevents the move of such a page.
                None => self.tally.off_color += 1,
            }
        }
        for (why, pages) in report.regions.iter().flat_map(|region| &region.why) {
            *self.tally.immovable.entry(why.clone()).or_default() += pages;
        }
        Ok(())
    }
}

/// Returns `pid` and its descendants, as far as /proc shows them.
pub fn family(pid: Pid) -> Vec<Pid> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        next += 1;
        family.extend(parent.children());
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_left_are_drawn_again_until_three_draws_moved_none() {
        let mut seen = Seen::default();
        let mut left_after = |pages: std::ops::Range<u64>| {
            seen.drawn(pages.collect());
            seen.undrawn.as_ref().map(FxHashSet::len)
        };
        assert_eq!(left_after(0..9), Some(9));
        // A draw that moves some of them is not in vain.
        assert_eq!([left_after(0..9), left_after(0..4), left_after(0..4)], [Some(9), Some(4), Some(4)]);
        assert_eq!(left_after(0..4), Some(0));
    }
}
