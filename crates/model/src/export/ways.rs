//! Partitions as cache ways, in masks that a processor accepts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Masks of ways that a cache accepts, as described in resctrl's `info/L3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayRules {
    /// Number of ways of the cache, at most 64 (`cbm_mask`).
    pub count: u32,
    /// Fewest ways of a mask (`min_cbm_bits`).
    pub least: u32,
    /// Whether masks may have gaps (`sparse_masks`).
    pub sparse: bool,
    /// Number of classes of service, including the default one (`num_closids`).
    pub classes: u32,
}

impl WayRules {
    /// Returns the largest number of partitions, each with as few ways as a mask may have.
    pub fn partitions(&self) -> u32 {
        self.count / self.least.max(1)
    }
}

/// The ways of every task, and of everything else that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// Mask of ways of each task, by `[position of the core][position of the task]` in the plan.
    pub tasks: Vec<Vec<u64>>,
    /// Mask of the ways that no task uses, for everything else that runs, by core of the plan. Cores that share the cache have the same
    /// mask.
    pub others: Vec<u64>,
}

/// Reasons why partitions cannot be ways of this cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaysError {
    /// The number of ways is not a multiple of the number of partitions.
    #[error(
        "{ways} ways are not a multiple of {partitions} partitions\n  hint: plan with a number of partitions that divides {ways}"
    )]
    Uneven {
        /// Number of ways of the cache.
        ways: u32,
        /// Number of partitions of the plan.
        partitions: u32,
    },
    /// The tasks leave too few ways for the rest of the system.
    #[error(
        "the tasks use {used} of {ways} ways on CPU {cpu}, and everything else that runs needs at least {least}\n  hint: plan with fewer partitions"
    )]
    NoneLeft {
        /// The CPU.
        cpu: u32,
        /// Number of ways that tasks use.
        used: u32,
        /// Number of ways of the cache.
        ways: u32,
        /// Fewest ways of a mask.
        least: u32,
    },
    /// A task has fewer ways than a mask needs.
    #[error(
        "task `{task}` has {has} ways, and this cache takes no mask of fewer than {least}\n  hint: plan with fewer, larger partitions"
    )]
    TooFew {
        /// Name of the task.
        task: String,
        /// Number of ways that the task has.
        has: u32,
        /// Fewest ways of a mask.
        least: u32,
    },
    /// No order of the ways makes the ways of every mask consecutive.
    #[error(
        "in no order of the ways are the partitions of every task on CPU {cpu} a run without gaps, and this cache takes no others\n  hint: the method bfd shares no partitions, which always fits"
    )]
    Gaps {
        /// The CPU.
        cpu: u32,
    },
    /// The search for an order was cut short before it found one, so there may be one.
    #[error(
        "no order of the ways was found within {steps} steps in which the partitions of every task on CPU {cpu} are a run without gaps, as this cache needs them\n  hint: the method bfd shares no partitions, which always fits"
    )]
    CutShort {
        /// The CPU.
        cpu: u32,
        /// Number of steps of the search.
        steps: u32,
    },
    /// The cache has no ways, or more ways than a mask has bits.
    #[error("{ways} ways are not between 1 and the 64 of a mask\n  hint: say how many one cache has")]
    Count {
        /// Number of ways of the cache.
        ways: u32,
    },
    /// More different masks are needed than there are classes of service.
    #[error(
        "{wanted} different sets of ways are needed, and this cache has {classes} classes of service\n  hint: let tasks share partitions"
    )]
    Classes {
        /// Number of masks needed, including the default one.
        wanted: usize,
        /// Number of classes available.
        classes: u32,
    },
}

/// Most steps of the search for an order. A longer search is cut short.
const STEPS_MAX: u32 = 1_000_000;

/// Arranges ways for the tasks of a plan with `partitions` partitions per cache, such that the cache accepts every mask.
///
/// Partitions that different tasks use together stay together: partitions are only renumbered, in the same way for all tasks of a cache. If
/// masks must not have gaps, this searches for an order in which the partitions of each task are consecutive (the consecutive-ones property).
/// Cores with disjoint partitions share a cache; if cores use the same partitions, each core has a cache of its own.
///
/// Fails with [`WaysError`].
pub fn arrange(plan: &Plan, partitions: u32, rules: &WayRules) -> Result<Arrangement, WaysError> {
    if !(1..=64).contains(&rules.count) {
        return Err(WaysError::Count { ways: rules.count });
    }
    if partitions == 0 || !rules.count.is_multiple_of(partitions) {
        return Err(WaysError::Uneven { ways: rules.count, partitions });
    }
    let each = rules.count / partitions;
    let shared = is_shared(plan);
    let mut next = 0;
    let mut arrangement = Arrangement { tasks: Vec::new(), others: Vec::new() };
    for core in &plan.cores {
        if !shared {
            next = 0;
        }
        let sets: Vec<&[u32]> = core.tasks.iter().map(|task| task.partitions.as_slice()).collect();
        let order = if rules.sparse { Ok(Some(in_use(&sets))) } else { consecutive(&sets) };
        let order = order
            .map_err(|CutShort| WaysError::CutShort { cpu: core.cpu, steps: STEPS_MAX })?
            .ok_or(WaysError::Gaps { cpu: core.cpu })?;
        let position: BTreeMap<u32, u32> = order.into_iter().zip(next..).collect();
        next += position.len() as u32;
        if next * each + rules.least.max(1) > rules.count {
            return Err(WaysError::NoneLeft {
                cpu: core.cpu,
                used: (next * each).min(rules.count),
                ways: rules.count,
                least: rules.least.max(1),
            });
        }
        let run = |partition: &u32| ones(each) << (position[partition] * each);
        let masks: Vec<u64> = sets.iter().map(|set| set.iter().map(run).fold(0, |mask, ways| mask | ways)).collect();
        for (task, mask) in core.tasks.iter().zip(&masks) {
            if mask.count_ones() < rules.least.max(1) {
                return Err(WaysError::TooFew {
                    task: task.name.clone(),
                    has: mask.count_ones(),
                    least: rules.least.max(1),
                });
            }
        }
        arrangement.tasks.push(masks);
        arrangement.others.push(ones(rules.count) & !ones(next * each));
    }
    if shared {
        let rest = ones(rules.count) & !ones(next * each);
        arrangement.others.fill(rest);
    }
    let wanted = 1 + groups(plan, &arrangement).len();
    if wanted > rules.classes as usize {
        return Err(WaysError::Classes { wanted, classes: rules.classes });
    }
    Ok(arrangement)
}

/// Returns whether the cores of the plan share one cache, that is, whether their partitions are disjoint.
pub fn is_shared(plan: &Plan) -> bool {
    let mut all: Vec<u32> = plan.cores.iter().flat_map(|core| core.partitions.iter().copied()).collect();
    all.sort_unstable();
    all.windows(2).all(|pair| pair[0] != pair[1])
}

/// Groups tasks of one core that have the same ways, and so need only one class: from `(position of the core, mask)` to the
/// positions of the tasks.
pub fn groups(plan: &Plan, arrangement: &Arrangement) -> BTreeMap<(usize, u64), Vec<usize>> {
    let mut groups: BTreeMap<(usize, u64), Vec<usize>> = BTreeMap::new();
    for (core, masks) in arrangement.tasks.iter().enumerate().take(plan.cores.len()) {
        for (task, mask) in masks.iter().enumerate() {
            groups.entry((core, *mask)).or_default().push(task);
        }
    }
    groups
}

/// Returns a mask of the lowest `count` bits.
fn ones(count: u32) -> u64 {
    1u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1)
}

fn in_use(sets: &[&[u32]]) -> Vec<u32> {
    let mut used: Vec<u32> = sets.concat();
    used.sort_unstable();
    used.dedup();
    used
}

/// The search took more than [`STEPS_MAX`] steps.
#[derive(Debug, PartialEq, Eq)]
struct CutShort;

/// Finds an order of all partitions in which the partitions of each set are consecutive; `None` if no such order exists.
///
/// Partitions that are in the same sets stay side by side, so the depth-first search orders these types of partitions: a set that has begun
/// must continue until it is complete.
fn consecutive(sets: &[&[u32]]) -> Result<Option<Vec<u32>>, CutShort> {
    let mut types: BTreeMap<Vec<usize>, Vec<u32>> = BTreeMap::new();
    for partition in in_use(sets) {
        let of = sets.iter().enumerate().filter(|(_, set)| set.contains(&partition)).map(|(at, _)| at).collect();
        types.entry(of).or_default().push(partition);
    }
    let types: Vec<(Vec<usize>, Vec<u32>)> = types.into_iter().collect();
    // Number of types of each set that are not in the order yet.
    let mut left = vec![0; sets.len()];
    types.iter().flat_map(|(of, _)| of).for_each(|set| left[*set] += 1);
    let total = left.clone();
    let mut order = Vec::with_capacity(types.len());
    let mut steps = 0;
    let found = extend(&types, &total, &mut left, &mut order, &mut steps)?;
    Ok(found.then(|| order.iter().flat_map(|at| types[*at].1.iter().copied()).collect()))
}

fn extend(
    types: &[(Vec<usize>, Vec<u32>)],
    total: &[usize],
    left: &mut [usize],
    order: &mut Vec<usize>,
    steps: &mut u32,
) -> Result<bool, CutShort> {
    if order.len() == types.len() {
        return Ok(true);
    }
    let open: Vec<usize> = (0..left.len()).filter(|set| left[*set] > 0 && left[*set] < total[*set]).collect();
    for next in 0..types.len() {
        *steps += 1;
        if *steps > STEPS_MAX {
            return Err(CutShort);
        }
        if order.contains(&next) || !open.iter().all(|set| types[next].0.contains(set)) {
            continue;
        }
        order.push(next);
        types[next].0.iter().for_each(|set| left[*set] -= 1);
        if extend(types, total, left, order, steps)? {
            return Ok(true);
        }
        types[next].0.iter().for_each(|set| left[*set] += 1);
        order.pop();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn is_run(order: &[u32], set: &[u32]) -> bool {
        let mut at: Vec<usize> = set.iter().map(|p| order.iter().position(|o| o == p).unwrap()).collect();
        at.sort_unstable();
        at.windows(2).all(|pair| pair[0] + 1 == pair[1])
    }

    #[test]
    fn sets_that_overlap_in_a_chain_are_put_in_order() {
        let sets: [&[u32]; 3] = [&[1, 5], &[5, 2], &[2, 9, 4]];
        let order = consecutive(&sets).unwrap().unwrap();
        assert!(sets.iter().all(|set| is_run(&order, set)), "{order:?}");
    }

    #[test]
    fn three_sets_that_meet_in_pairs_have_no_order() {
        // The triangle: each pair of sets shares one partition, so every set would have to lie between the two others.
        assert_eq!(consecutive(&[&[1, 2], &[2, 3], &[3, 1]]), Ok(None));
    }

    #[test]
    fn a_search_that_is_cut_short_does_not_claim_that_there_is_no_order() {
        // Task `s` has the partitions 1 to 12. Each of 1 to 10 belongs to one more task; 11 and 12 are shared with `u` and `t`. So 13, 11, 1 to
        // 10, 12, 14 is an order. A search that begins with 1 tries all orders of 2 to 10 behind it, although none leads to an order of all.
        let mut sets: Vec<Vec<u32>> = (1..=10).map(|partition| vec![partition]).collect();
        sets.extend([(1..=12).collect(), vec![11, 13], vec![12, 14]]);
        let order: Vec<u32> = [13, 11].into_iter().chain(1..=10).chain([12, 14]).collect();
        assert!(sets.iter().all(|set| is_run(&order, set)));
        let tasks: Vec<_> = sets
            .iter()
            .enumerate()
            .map(|(at, set)| json!({ "name": at.to_string(), "partitions": set, "response_ns": 1, "deadline_ns": 1 }))
            .collect();
        let plan = json!({
            "schedulable": true, "method": "optimal", "objective": "partitions", "analysis": "kim2013",
            "partitions_used": 14, "utilization": 0.1, "bound": null, "gap": null,
            "cores": [{ "cpu": 0, "partitions": order, "utilization": 0.1, "tasks": tasks }],
        });
        let rules = WayRules { count: 16, least: 1, sparse: false, classes: 16 };
        let error = arrange(&serde_json::from_value(plan).unwrap(), 16, &rules).unwrap_err().to_string();
        assert!(error.starts_with("no order of the ways was found within 1000000 steps"), "{error}");
    }

    /// Whether an order exists in which all sets are consecutive, by trying all orders.
    fn has_order(sets: &[&[u32]], rest: &mut Vec<u32>, order: &mut Vec<u32>) -> bool {
        if rest.is_empty() {
            return sets.iter().all(|set| is_run(order, set));
        }
        (0..rest.len()).any(|at| {
            let next = rest.remove(at);
            order.push(next);
            let found = has_order(sets, rest, order);
            order.pop();
            rest.insert(at, next);
            found
        })
    }

    proptest! {
        #[test]
        fn an_order_is_found_whenever_there_is_one(masks in prop::collection::vec(1u32..64, 1..5)) {
            let sets: Vec<Vec<u32>> = masks.iter().map(|mask| (0..6).filter(|bit| mask >> bit & 1 == 1).collect()).collect();
            let sets: Vec<&[u32]> = sets.iter().map(Vec::as_slice).collect();
            let exists = has_order(&sets, &mut in_use(&sets), &mut Vec::new());
            match consecutive(&sets).unwrap() {
                Some(order) => prop_assert!(exists && sets.iter().all(|set| is_run(&order, set))),
                None => prop_assert!(!exists),
            }
        }
    }
}
