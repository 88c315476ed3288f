//! The best allocations and plans, found by trying all of them.

use super::*;

/// Returns the least utilization of all allocations of `partitions` to the members, by trying any subset of partitions for every
/// task.
fn exhaustive(set: &TaskSet, members: &[usize], partitions: u32, analysis: Analysis) -> f64 {
    let choices = 1u64 << partitions;
    let charges = Charges::of(set);
    let mut least = f64::INFINITY;
    'codes: for code in 0..choices.pow(members.len() as u32) {
        let mut shares = Vec::new();
        for (index, &task) in members.iter().enumerate() {
            let bits = code / choices.pow(index as u32) % choices;
            if bits == 0 {
                continue 'codes;
            }
            shares
                .push((task, (0..partitions).filter(|partition| bits >> partition & 1 == 1).collect::<PartitionSet>()));
        }
        let core = core_tasks(set, &shares);
        let met = analyze(&core, charges, analysis).iter().all(|bound| bound.verdict.response_ns().is_some());
        if met && overfull_partition(set, &shares).is_none() && exclusive_ones_are_alone(set, &shares) {
            least = least.min(utilization(&core, charges));
        }
    }
    least
}

#[test]
fn the_branch_and_bound_finds_what_trying_everything_finds() {
    let feasible: u64 = (0..SETS)
        .into_par_iter()
        .map(|seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            let (count, partitions) = random.choice([(2, 4), (3, 3), (4, 2), (2, 3)]).unwrap();
            let set = random_set(&mut random, count, 1, partitions);
            let analysis = if random.bool() { Analysis::Kim2013 } else { random.choice(Analysis::ALL).unwrap() };
            let rules = Rules { analysis, sharing: true };
            let found = best(&set, rules, set.by_priority(), partitions, Effort::EXACT);
            // Without interference nothing is refilled, so utilizations contain no refills either.
            let nothing = || Platform { refill_ns: 0, preemption_ns: 0, ..set.platform().clone() };
            let free = if analysis == Analysis::NoInterference { set.on(nothing()).unwrap() } else { set.clone() };
            let truth = exhaustive(&free, set.by_priority(), partitions, analysis);
            for value in [found.upper(), found.lower] {
                assert!((value - truth).abs() < 1e-7 || value == truth, "seed {seed} {analysis}: {value} {truth}");
            }
            u64::from(truth.is_finite())
        })
        .sum();
    assert!(feasible > SETS / 4 && feasible < SETS - 100, "{feasible}");
}

/// Returns the fewest partitions and the least utilization of all plans for 2 cores, by trying every split of tasks and partitions.
pub(super) fn exhaustive_plans(set: &TaskSet, partitions: u32) -> (Option<u32>, f64) {
    let count = set.tasks().len();
    let shared = set.platform().scope == Scope::Shared;
    let (mut fewest, mut least) = (None, f64::INFINITY);
    for split in 0..1usize << count {
        let side = |bit: usize| -> Vec<usize> {
            set.by_priority().iter().copied().filter(|task| split >> task & 1 == bit).collect()
        };
        let cost = |members: &[usize]| -> Vec<f64> {
            (0..=partitions).map(|k| best(set, KIM, members, k, Effort::EXACT).upper()).collect()
        };
        let (a, b) = (cost(&side(0)), cost(&side(1)));
        for (k, a) in (0u32..).zip(&a) {
            for (l, b) in (0u32..).zip(&b).take_while(|(l, _)| !shared || k + l <= partitions) {
                if a + b < f64::INFINITY {
                    let used = if shared { k + l } else { k.max(l) };
                    fewest = Some(fewest.unwrap_or(used).min(used));
                    least = least.min(a + b);
                }
            }
        }
    }
    (fewest, least)
}

/// Checks the planner against all possible plans, for `count` sets.
fn plans_against_all_plans(count: u64) {
    let solved: u64 = (0..count)
        .into_par_iter()
        .map(|seed| {
            let set = random_two_cores(&mut fastrand::Rng::with_seed(seed));
            let (fewest, least) = exhaustive_plans(&set, set.platform().partitions);
            let few = planned(&set, Method::Optimal, Objective::Partitions);
            assert_eq!(few.schedulable.then_some(few.partitions_used), fewest, "seed {seed}");
            let low = planned(&set, Method::Optimal, Objective::Utilization);
            assert_eq!(low.schedulable, fewest.is_some(), "seed {seed}");
            if fewest.is_none() {
                return 0;
            }
            assert!((low.utilization - least).abs() < 1e-7, "seed {seed}: {} {least}", low.utilization);
            assert_eq!((few.gap, low.gap), (Some(0.0), Some(0.0)), "seed {seed}");
            1
        })
        .sum();
    assert!(solved > count / 5, "{solved} of {count}");
}

#[test]
fn plans_are_the_best_of_all_plans_of_2000_sets() {
    plans_against_all_plans(2_000);
}

#[test]
#[ignore = "as plans_are_the_best_of_all_plans_of_2000_sets, a minute or two; run with --release"]
fn plans_are_the_best_of_all_plans_of_10_000_sets() {
    plans_against_all_plans(SETS);
}
