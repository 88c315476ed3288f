//! Attempts to falsify the bounds: random cores, the schedules that attack them, and how close the schedules come.
//!
//! Times are short and partitions are few, so that tasks collide often. The ordinary tests try some thousand cores; `cargo run
//! --release -p isochrome-model --example falsify` tries any number.

mod draw;
mod price;

use std::ops::Range;

use super::schedule::{Arrival, adversarial, contended, play_with_steal, sporadic, synchronous};
use super::{Analysis, Charges, Conditions, CoreTask, Workspace, responses};
use crate::replacement::Replacement;
use crate::supply::{Gap, Recording, Supply};
use crate::units::Ns;
pub use price::{Feature, Price, prices};

/// Length of a schedule, in ns.
const HORIZON_NS: u64 = 700;

/// A random core.
#[derive(Clone, Debug)]
pub struct Case {
    /// The tasks to play, highest priority first.
    pub core: Vec<CoreTask>,
    /// The tasks of `core` as the analysis gets them. In some cores they state for how long they are blocked, but not by which lock.
    pub analyzed: Vec<CoreTask>,
    /// The charged costs.
    pub charges: Charges,
    /// Times, in ns, in which the core is withheld, within a length of time equal to that of a schedule. They may come at any time.
    pub withheld: Vec<Range<u64>>,
}

/// Whether the random cores are withheld at times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withholding {
    /// Never.
    Never,
    /// In one to six intervals of a schedule, short or long.
    Sometimes,
}

impl Case {
    /// Draws the times in which the core is withheld. They are such that about half of the schedulable cores remain so.
    pub fn withhold(&mut self, random: &mut fastrand::Rng) {
        let mut end = 0;
        for _ in 0..random.u8(1..=6) {
            let start = end + random.u64(1..=HORIZON_NS / 4);
            end = start + if random.bool() { random.u64(1..=3) } else { random.u64(1..=16) };
            if end > HORIZON_NS {
                break;
            }
            self.withheld.push(start..end);
        }
    }

    /// Returns the supply of the core.
    pub fn supply(&self) -> Supply {
        let gap = |taken: &Range<u64>| Gap { start: Ns(taken.start), length: Ns(taken.end - taken.start) };
        Supply::of(&[Recording { length: Ns(HORIZON_NS), gaps: self.withheld.iter().map(gap).collect() }])
    }

    /// Returns the longest response of each task over synchronous, sporadic, adversarial and contended releases, in ns.
    ///
    /// Each schedule is played with the withheld times at several places: as drawn, with one of them at a release or shortly before, and
    /// with one of them anywhere.
    pub fn observed(&self, random: &mut fastrand::Rng) -> Vec<u64> {
        let Self { core, .. } = self;
        let charges = self.played();
        let mut longest = vec![0; core.len()];
        let mut schedules =
            vec![synchronous(core, HORIZON_NS), sporadic(core, HORIZON_NS, random), sporadic(core, HORIZON_NS, random)];
        let locks = core.iter().any(|task| !task.holds.is_empty());
        for target in 0..core.len() {
            schedules.push(adversarial(core, target, HORIZON_NS, random));
            if locks {
                schedules.push(contended(core, target, HORIZON_NS, random));
                schedules.push(contended(core, target, HORIZON_NS, random));
            }
        }
        for arrivals in &schedules {
            for withheld in self.moved(arrivals, random) {
                let played = play_with_steal(core, charges, arrivals, &withheld, HORIZON_NS);
                for (longest, response) in longest.iter_mut().zip(played.responses_ns) {
                    *longest = response.max(*longest);
                }
            }
        }
        longest
    }

    /// Returns the costs that are played. If any policy may replace, a refill takes longer than the analysis is told. On a withheld core it
    /// does not: one refill of each partition is assumed there whatever the policy.
    fn played(&self) -> Charges {
        match self.charges.replacement {
            Replacement::Any if self.withheld.is_empty() => {
                Charges { refill_ns: 4 * self.charges.refill_ns + 1, ..self.charges }
            }
            _ => self.charges,
        }
    }

    /// Returns the withheld times at the places at which a schedule of `arrivals` is played with them.
    fn moved(&self, arrivals: &[Arrival], random: &mut fastrand::Rng) -> Vec<Vec<Range<u64>>> {
        let mut places = vec![self.withheld.clone()];
        let Some(of) = random.choice(&self.withheld) else { return places };
        let Some(at) = random.choice(arrivals) else { return places };
        for place in [at.release_ns, at.release_ns.saturating_sub(of.end - of.start), random.u64(0..HORIZON_NS)] {
            // What would begin before the schedule does not take place.
            let moved = |time: u64| (time + place).checked_sub(of.start);
            let each = self.withheld.iter().filter_map(|it| Some(moved(it.start)?..moved(it.end)?));
            places.push(each.filter(|it| it.start < HORIZON_NS).collect());
        }
        places
    }
}

/// Comparison of the bounds of one analysis with the schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Number of cores tried.
    pub sets: u64,
    /// Number of tasks with a bound within the deadline.
    pub bounds: u64,
    /// Number of bounds that a schedule exceeded. Each of them refutes the analysis.
    pub exceeded: u64,
    /// Number of bounds that a schedule reached exactly.
    pub reached: u64,
    /// Sum, over the bounds, of the longest observed response as a share of the bound.
    pub tightness: f64,
}

/// A bound that was exceeded: the seed of the core, the analysis, and the task.
pub type Exceeded = (u64, Analysis, usize);

/// Compares the bounds for the cores of these seeds with schedules ([`Case::of`]). Returns a tally for every
/// analysis except the optimistic one, and the bounds that were exceeded.
pub fn falsify(seeds: Range<u64>, withholding: Withholding) -> (Vec<(Analysis, Tally)>, Vec<Exceeded>) {
    falsify_supply(seeds, withholding, |supply| supply)
}

/// Does the same as [`falsify`], but the analyses charge the supply that `charged` returns for the supply of each core.
pub(super) fn falsify_supply(
    seeds: Range<u64>,
    withholding: Withholding,
    charged: impl Fn(Supply) -> Supply,
) -> (Vec<(Analysis, Tally)>, Vec<Exceeded>) {
    let analyses = Analysis::ALL.into_iter().filter(|&analysis| analysis != Analysis::NoInterference);
    let mut tallies: Vec<(Analysis, Tally)> = analyses.map(|analysis| (analysis, Tally::default())).collect();
    let mut exceeded = Vec::new();
    let mut workspace = Workspace::default();
    for seed in seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut case = Case::of(seed, &mut random);
        if withholding == Withholding::Sometimes {
            case.withhold(&mut random);
        }
        let supply = charged(case.supply());
        let conditions = Conditions { charges: case.charges, supply: Some(&supply) };
        let longest = case.observed(&mut random);
        for (analysis, tally) in &mut tallies {
            tally.sets += 1;
            let verdicts = responses(&case.analyzed, conditions, *analysis, &mut workspace);
            for (task, (verdict, &longest)) in verdicts.zip(&longest).enumerate() {
                let Some(bound) = verdict.response_ns() else { continue };
                tally.bounds += 1;
                tally.reached += u64::from(longest == bound);
                tally.tightness += longest as f64 / bound as f64;
                if longest > bound {
                    tally.exceeded += 1;
                    exceeded.push((seed, *analysis, task));
                }
            }
        }
    }
    (tallies, exceeded)
}
