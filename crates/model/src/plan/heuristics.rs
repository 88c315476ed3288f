//! The planners of \[Kim2013\]: cache-aware task allocation, and the bin packings it is compared with.

use super::allocate::{Effort, Outcome, Rules, best};
use super::{Objective, Request, Share, Solution};
use crate::analysis::sensitivity::{Change, last_that_holds};
use crate::taskset::{Scope, TIME_MAX_NS, TaskSet, bundles};

/// Most nodes that are visited for an allocation. The best allocation found by then is used. The sets of the paper never need as
/// many nodes.
const NODES: u64 = 200_000;
/// Step of the scaling factor for the objective `margin`, in millionths.
pub(crate) const MARGIN_STEP_PPM: u64 = 100;

/// Shares of all cores, or the tasks that found no core.
pub(crate) type Placement = Result<Vec<Share>, Vec<usize>>;

/// The rule that chooses among the cores that can take a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The fullest core.
    Best,
    /// The emptiest core.
    Worst,
}

/// Runs the heuristic `place` for an objective. It is called as `place(set, rules, partitions, request, spend)`, where `spend`
/// tells whether to use up the remaining partitions.
pub(crate) fn for_objective(
    set: &TaskSet,
    rules: Rules,
    objective: Objective,
    request: &Request,
    place: impl Fn(&TaskSet, Rules, u32, &Request, bool) -> Placement,
) -> Solution {
    let all = set.platform().partitions;
    let mut grown = None;
    let placed = match objective {
        Objective::Partitions => {
            let mut placed = Err(Vec::new());
            for available in 1..=all {
                placed = place(set, rules, available, request, false);
                if placed.is_ok() || (request.should_stop)() {
                    break;
                }
            }
            placed
        }
        Objective::Utilization => place(set, rules, all, request, true),
        Objective::Margin | Objective::Refill => {
            let growth = Growth::of(objective, set);
            let mut at_last = Err((0..set.tasks().len()).collect());
            let last = last_that_holds(growth.least, growth.most, |steps| {
                let placed = if (request.should_stop)() {
                    return false;
                } else {
                    place(&growth.set(set, steps), rules, all, request, true)
                };
                let holds = placed.is_ok();
                if holds {
                    at_last = placed;
                }
                holds
            });
            grown = growth.steps(last);
            at_last
        }
    };
    match placed {
        Ok(shares) => Solution { shares: Some(shares), bound: None, grown, unplaced: Vec::new() },
        Err(unplaced) => Solution { shares: None, bound: None, grown, unplaced },
    }
}

/// The quantity that an objective maximizes, counted in steps.
#[derive(Clone, Copy)]
pub(crate) struct Growth {
    objective: Objective,
    /// Fewest steps.
    pub(crate) least: u64,
    /// Number of steps from which on more make no difference: a plan that holds at this number holds at any number.
    pub(crate) most: u64,
}

impl Growth {
    pub(crate) fn of(objective: Objective, set: &TaskSet) -> Self {
        match objective {
            Objective::Margin => Self { objective, least: 1, most: most_steps(set) },
            // No task can pay for a refill that takes longer than every deadline.
            _ => {
                let longest = set.tasks().iter().map(|task| task.deadline_ns).max().unwrap_or(0);
                Self { objective, least: 0, most: longest.saturating_add(1).min(TIME_MAX_NS) }
            }
        }
    }

    /// Returns the set in which the quantity has grown to this many steps.
    pub(crate) fn set(self, set: &TaskSet, steps: u64) -> TaskSet {
        match self.objective {
            Objective::Margin => set.with_wcet_scaled(steps.saturating_mul(MARGIN_STEP_PPM), 1_000_000),
            _ => set.with_refill(steps),
        }
    }

    /// Returns the steps that a search found; [`TIME_MAX_NS`] if there is no limit, `None` if no plan holds.
    pub(crate) fn steps(self, last: Change) -> Option<u64> {
        match last {
            Change::Most(steps) => Some(steps),
            Change::Unlimited => Some(TIME_MAX_NS),
            Change::Hopeless => None,
        }
    }
}

/// Returns more steps of [`MARGIN_STEP_PPM`] than any plan can have, because some task alone would miss its deadline.
fn most_steps(set: &TaskSet) -> u64 {
    let alone = |task: &crate::taskset::Task| {
        let least = *task.wcet_ns.last().expect("a checked task has a curve");
        u64::try_from(u128::from(task.deadline_ns) * 1_000_000 / u128::from(least) / u128::from(MARGIN_STEP_PPM))
            .unwrap_or(u64::MAX)
    };
    set.tasks().iter().map(alone).min().unwrap_or(0).saturating_add(2)
}

fn allocate(set: &TaskSet, rules: Rules, members: &[usize], partitions: u32, request: &Request) -> Outcome {
    best(set, rules, members, partitions, Effort { nodes: NODES, should_stop: request.should_stop, ..Effort::EXACT })
}

/// Returns `members` and `more` together, by priority.
fn with(set: &TaskSet, members: &[usize], more: &[usize]) -> Vec<usize> {
    let mut all: Vec<usize> = members.iter().chain(more).copied().collect();
    all.sort_by_key(|&task| set.rank(task));
    all
}

/// Returns the bundles in decreasing order of `weight`; those of equal weight keep the order of the file.
fn decreasing(set: &TaskSet, weight: impl Fn(usize) -> f64) -> Vec<Vec<usize>> {
    let mut items = bundles(set.tasks());
    let total = |item: &[usize]| item.iter().map(|&task| weight(task)).sum::<f64>();
    items.sort_by(|a, b| total(b).total_cmp(&total(a)));
    items
}

struct Bin {
    members: Vec<usize>,
    partitions: u32,
}

fn unplaced_after(bins: &[Bin], set: &TaskSet) -> Vec<usize> {
    (0..set.tasks().len()).filter(|task| !bins.iter().any(|bin| bin.members.contains(task))).collect()
}

/// Places tasks by best-fit or worst-fit decreasing over an even split of the partitions, without sharing. [Kim2013, §5.5]
pub(crate) fn even_split(set: &TaskSet, rules: Rules, available: u32, request: &Request, fit: Fit) -> Placement {
    let cores = set.platform().cores;
    let mut bins: Vec<Bin> = (0..cores)
        .map(|core| match set.platform().scope {
            Scope::Shared => {
                Bin { members: Vec::new(), partitions: available / cores + u32::from(core < available % cores) }
            }
            Scope::Private => Bin { members: Vec::new(), partitions: available },
        })
        .collect();
    let share = bins[0].partitions.max(1) as usize;
    let items =
        decreasing(set, |task| set.tasks()[task].wcet_ns[share - 1] as f64 / set.tasks()[task].period_ns as f64);
    let mut groups = vec![Vec::new(); bins.len()];
    for item in items {
        let mut chosen: Option<(f64, usize, _)> = None;
        for (core, bin) in bins.iter().enumerate() {
            let Some((used, found)) =
                allocate(set, rules, &with(set, &bin.members, &item), bin.partitions, request).found
            else {
                continue;
            };
            let better = chosen.as_ref().is_none_or(|&(other, ..)| match fit {
                Fit::Best => used > other,
                Fit::Worst => used < other,
            });
            if better {
                chosen = Some((used, core, found));
            }
        }
        let Some((_, core, found)) = chosen else { return Err(unplaced_after(&bins, set)) };
        bins[core].members = with(set, &bins[core].members, &item);
        groups[core] = found;
    }
    Ok(bins.into_iter().zip(groups).map(|(bin, groups)| Share { members: bin.members, groups }).collect())
}

/// Places tasks by cache-aware task allocation. [Kim2013, Algorithms 1-3]
///
/// Tasks go, in decreasing order of their utilization averaged over p, to the core that they fit best. If a task fits no core,
/// the cores are tried with more partitions, and only the core that the task then fits best keeps them. With `spend`, the
/// remaining partitions then go one by one to the core whose utilization a further partition lowers the most.
pub(crate) fn cata(set: &TaskSet, rules: Rules, available: u32, request: &Request, spend: bool) -> Placement {
    let platform = set.platform();
    let average = |task: usize| {
        let known = &set.tasks()[task];
        let sum: f64 = known.wcet_ns.iter().map(|&wcet| wcet as f64).sum();
        sum / known.wcet_ns.len() as f64 / known.period_ns as f64
    };
    let mut bins: Vec<Bin> = (0..platform.cores).map(|_| Bin { members: Vec::new(), partitions: 0 }).collect();
    let mut left = available;
    for item in decreasing(set, average) {
        let mut chosen = None;
        // With 0 more partitions first, then 1, ...
        for more in 0..=left {
            // Algorithm 2: take the core left with the least space; of equal cores take the last, because the algorithm compares
            // with >=.
            let mut fullest = 0.0;
            for (core, bin) in bins.iter().enumerate() {
                let partitions = bin.partitions + more;
                // A private cache has no more partitions than these.
                if platform.scope == Scope::Private && partitions > available {
                    continue;
                }
                let used = allocate(set, rules, &with(set, &bin.members, &item), partitions, request).upper();
                if used <= 1.0 && used >= fullest {
                    fullest = used;
                    chosen = Some((core, more));
                }
            }
            if chosen.is_some() {
                break;
            }
        }
        let Some((core, more)) = chosen else { return Err(unplaced_after(&bins, set)) };
        bins[core].members = with(set, &bins[core].members, &item);
        bins[core].partitions += more;
        if platform.scope == Scope::Shared {
            left -= more;
        }
    }
    if platform.scope == Scope::Private && spend {
        bins.iter_mut().for_each(|bin| bin.partitions = available);
        left = 0;
    }
    let evaluate = |bin: &Bin, more: u32| match bin.partitions + more {
        partitions if partitions <= available => allocate(set, rules, &bin.members, partitions, request),
        _ => Outcome { found: None, lower: f64::INFINITY },
    };
    let mut outcomes: Vec<Outcome> = bins.iter().map(|bin| evaluate(bin, 0)).collect();
    if spend && left > 0 {
        let mut next: Vec<Outcome> = bins.iter().map(|bin| evaluate(bin, 1)).collect();
        for _ in 0..left {
            let saving = |core: &usize| outcomes[*core].upper() - next[*core].upper();
            let Some(core) = (0..bins.len()).max_by(|a, b| saving(a).total_cmp(&saving(b))) else { break };
            bins[core].partitions += 1;
            outcomes[core] = std::mem::replace(&mut next[core], evaluate(&bins[core], 1));
        }
    }
    let shares = bins.iter().zip(outcomes).map(|(bin, outcome)| {
        let groups = outcome.found.map(|(_, groups)| groups);
        groups.map(|groups| Share { members: bin.members.clone(), groups })
    });
    shares.collect::<Option<Vec<Share>>>().ok_or_else(|| unplaced_after(&[], set))
}
