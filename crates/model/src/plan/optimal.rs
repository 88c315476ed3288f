//! Finds the best plan, with a proof.
//!
//! A *column* is a set of tasks on one core with k partitions; its cost is the least utilization of
//! [`allocate::best`](super::allocate::best). A plan is a partition of the tasks into at most `N_C` columns with at most
//! `N_P` partitions together. Exact costs are expensive, and lower bounds (the tables of
//! [`Completions`](super::allocate::Completions), memory) are cheap, so:
//!
//! 1. every column starts with its lower bound;
//! 2. dynamic programming finds the plan of least total bound, a lower bound on every plan;
//! 3. the columns of *that* plan are evaluated exactly, and their bounds raised;
//! 4. repeat until the columns chosen are all exact: the plan is optimal.
//!
//! If that takes long, the best plan seen is improved in between: two of its cores at a time are planned anew.
//!
//! Whenever the search stops, the last total is a proven bound, and the incumbent is the best plan seen. Identical tasks are
//! counted, not distinguished, which shrinks 2^16 subsets of a set of four tasks taken four times to 5^4. If there are too
//! many columns to distribute partitions exactly, partitions are priced (Lagrange) instead, and a duality gap remains in the
//! bound.

mod columns;
mod kinds;

use std::collections::HashMap;

use rayon::prelude::*;

use super::allocate::{Effort, Groups, Outcome, Rules, TOLERANCE, best};
use super::heuristics::{Growth, cata};
use super::{Objective, Progress, Request, Share, Solution};
use crate::analysis::sensitivity::{Change, last_that_holds};
use crate::analysis::{core_tasks, utilization};
use crate::taskset::{Scope, TIME_MAX_NS, Task, TaskSet};
use columns::{Columns, column_bounds};
use kinds::Kinds;

/// Most states for which partitions are distributed exactly.
const EXACT_STATES_MAX: usize = 3_000;
/// Nodes of the first evaluation of a column; doubled whenever they do not suffice.
const COLUMN_NODES: u64 = 100_000;
/// Nodes for evaluating a column that may improve the best plan seen, to be multiplied by the number of rounds so far.
const IMPROVING_NODES: u64 = 500;
/// Precision to which the price of a partition is determined.
const PRICE_STEP: f64 = 1e-7;

pub(crate) fn solve(set: &TaskSet, rules: Rules, objective: Objective, request: &Request) -> Solution {
    match objective {
        Objective::Partitions => {
            let fewest = fewest_partitions(set, rules, request);
            let (Some(shares), Some(least)) = (&fewest.shares, fewest.value) else { return fewest.into_solution() };
            // Of the plans with that many partitions, take one of least utilization. The proof concerns the number only.
            let within = least_utilization(set, rules, request, least as u32, Some(shares.clone()));
            Solution { shares: within.shares.or(fewest.shares), bound: fewest.bound, grown: None, unplaced: Vec::new() }
        }
        Objective::Utilization => {
            let mut start = cata(set, rules, set.platform().partitions, request, true).ok();
            if let Some(stricter) = rules.stricter() {
                start = least_utilization(set, stricter, request, set.platform().partitions, start).shares;
            }
            least_utilization(set, rules, request, set.platform().partitions, start).into_solution()
        }
        Objective::Margin | Objective::Refill => largest(Growth::of(objective, set), set, rules, request),
    }
}

struct Found {
    shares: Option<Vec<Share>>,
    value: Option<f64>,
    bound: Option<f64>,
    tasks: usize,
}

impl Found {
    fn into_solution(self) -> Solution {
        let unplaced = if self.shares.is_some() { Vec::new() } else { (0..self.tasks).collect() };
        Solution { shares: self.shares, bound: self.bound.filter(|bound| bound.is_finite()), grown: None, unplaced }
    }
}

fn worth(set: &TaskSet, rules: Rules, shares: &[Share]) -> f64 {
    let charges = rules.charges(set);
    shares.iter().map(|share| utilization(&core_tasks(set, &share.sets(0)), charges)).sum()
}

fn fewest_partitions(set: &TaskSet, rules: Rules, request: &Request) -> Found {
    let platform = set.platform();
    let most = platform.partitions;
    let tasks = set.tasks().len();
    let counted = |shares: &[Share]| {
        let counts = shares.iter().map(Share::partitions);
        f64::from(if platform.scope == Scope::Shared { counts.sum::<u32>() } else { counts.max().unwrap_or(0) })
    };
    let fallback = |bound: Option<f64>| {
        let shares = cata(set, rules, most, request, false).ok();
        let value = shares.as_deref().map(counted);
        Found { value, shares, bound, tasks }
    };
    let memory = (0..tasks).map(|task| set.memory_per_partition(task, 1)).fold(0, u64::saturating_add);
    let by_memory = (memory as f64 / set.capacity() as f64).ceil();
    let Some(kinds) = Kinds::of(set) else {
        return fallback(Some(if platform.scope == Scope::Shared { by_memory } else { 1.0 }));
    };
    let bounds = column_bounds(set, rules, &kinds, most);
    let width = most as usize + 1;
    // For each state, the fewest partitions that are not excluded: by proof, and by assumption if a column could not be
    // decided.
    let mut proven: Vec<f64> = (0..kinds.states)
        .map(|state| (0..width).find(|k| bounds[state * width + k] < f64::INFINITY).map_or(f64::INFINITY, |k| k as f64))
        .collect();
    let mut assumed = proven.clone();
    let mut exact: HashMap<usize, Groups> = HashMap::from([(0, Vec::new())]);
    let add: fn(f64, f64) -> f64 = if platform.scope == Scope::Shared { |a, b| a + b } else { f64::max };
    let zero = vec![0; kinds.copies.len()];
    loop {
        let (total, columns) = kinds.split(platform.cores, &assumed, add, 1).swap_remove(0);
        let bound = kinds.split(platform.cores, &proven, add, 1)[0].0;
        if total > f64::from(most) {
            return Found { shares: None, value: None, bound: Some(bound), tasks };
        }
        (request.progress)(Progress { best: None, bound });
        let open: Vec<usize> = columns.iter().copied().filter(|state| !exact.contains_key(state)).collect();
        if open.is_empty() {
            let columns: Vec<(usize, Groups)> = columns.iter().map(|&state| (state, exact[&state].clone())).collect();
            let shares = kinds.shares(set, &columns);
            return Found { value: Some(counted(&shares)), shares: Some(shares), bound: Some(bound), tasks };
        }
        if (request.should_stop)() {
            return fallback(Some(bound));
        }
        let effort = Effort { any: true, nodes: COLUMN_NODES * 10, should_stop: request.should_stop, ..Effort::EXACT };
        let evaluated: Vec<(usize, Outcome)> = open
            .par_iter()
            .map(|&state| (state, best(set, rules, &kinds.members(set, state, &zero), assumed[state] as u32, effort)))
            .collect();
        for (state, outcome) in evaluated {
            match outcome.found {
                Some((_, groups)) => {
                    exact.insert(state, groups);
                }
                None => {
                    if outcome.lower == f64::INFINITY && proven[state] == assumed[state] {
                        proven[state] += 1.0;
                    }
                    assumed[state] += 1.0;
                    if assumed[state] > f64::from(most) {
                        assumed[state] = f64::INFINITY;
                    }
                    if proven[state] > f64::from(most) {
                        proven[state] = f64::INFINITY;
                    }
                }
            }
        }
    }
}

/// The search for the price of a partition, which lies between `low` and `high`. `high` is doubled until the cheapest split uses no more
/// partitions than there are, at most up to `most`, a price at which the fewest partitions are the cheapest.
struct PriceSearch {
    low: f64,
    high: f64,
    most: f64,
    /// Whether `high` is known to be high enough.
    is_enough: bool,
}

impl PriceSearch {
    fn price(&self) -> f64 {
        (self.low + self.high) / 2.0
    }

    fn is_over(&self) -> bool {
        self.high - self.low <= PRICE_STEP
    }

    /// Goes on with lower prices if at the current price there are partitions to spare, else with higher prices.
    fn narrow(&mut self, to_spare: bool) {
        if self.is_over() {
            return;
        }
        let price = self.price();
        if to_spare {
            (self.high, self.is_enough) = (price, true);
        } else {
            self.low = price;
            if !self.is_enough && self.high < self.most {
                self.high = self.most.min(2.0 * self.high);
            }
        }
    }
}

fn least_utilization(
    set: &TaskSet,
    rules: Rules,
    request: &Request,
    partitions: u32,
    start: Option<Vec<Share>>,
) -> Found {
    let platform = set.platform();
    let tasks = set.tasks().len();
    let mut incumbent = start.map(|shares| (worth(set, rules, &shares), shares));
    let done = |incumbent: Option<(f64, Vec<Share>)>, bound: Option<f64>| {
        let (value, shares) = incumbent.unzip();
        Found { shares, value, bound, tasks }
    };
    let Some(kinds) = Kinds::of(set) else {
        // Bound for tasks that have all partitions to themselves and no delays.
        let own = |task: &Task| task.wcet_ns[partitions as usize - 1] as f64 / task.period_ns as f64;
        return done(incumbent, Some(set.tasks().iter().map(own).sum()));
    };
    let mut columns = Columns::new(set, rules, &kinds, partitions);
    let exact = platform.scope == Scope::Shared && kinds.states <= EXACT_STATES_MAX;
    // Only shared partitions have a price.
    let mut search = PriceSearch {
        low: 0.0,
        high: if platform.scope == Scope::Shared { 0.1 } else { 0.0 },
        most: f64::from(platform.cores) * columns.costliest(),
        is_enough: false,
    };
    let mut proven: f64 = 0.0;
    let mut rounds: u32 = 0;
    loop {
        let (bound, chosen) = if exact {
            let (bound, chosen) = columns.cheapest(platform.cores);
            (bound, vec![chosen])
        } else if platform.scope == Scope::Private {
            columns.with_all(platform.cores)
        } else {
            let (bound, chosen) = columns.priced(platform.cores, search.price());
            let used: usize = chosen[0].iter().map(|column| column.1).sum();
            search.narrow(used < columns.width);
            (bound, chosen)
        };
        proven = proven.max(bound);
        if bound == f64::INFINITY {
            // No plan is better than the incumbent. Without an incumbent no plan exists.
            let bound = incumbent.as_ref().map_or(f64::INFINITY, |incumbent| incumbent.0);
            return done(incumbent, Some(bound));
        }
        let candidates: Vec<Vec<(usize, usize)>> = if exact || platform.scope == Scope::Private {
            chosen.clone()
        } else {
            chosen.iter().filter_map(|columns_of| columns.distribute(columns_of)).collect()
        };
        let best_value = incumbent.as_ref().map(|incumbent| incumbent.0);
        (request.progress)(Progress { best: best_value, bound: proven });
        let upper = best_value.unwrap_or(f64::INFINITY);
        if proven >= upper - TOLERANCE * platform.cores as f64 || (request.should_stop)() {
            return done(incumbent, Some(proven.min(upper)));
        }
        let wanted: Vec<(usize, usize)> = chosen.iter().chain(&candidates).flatten().copied().collect();
        let all_exact = wanted.iter().all(|&column| columns.is_exact(column));
        columns.evaluate(&wanted, (upper - bound).max(0.0) + TOLERANCE * 10.0, request);
        for (value, shares) in candidates.iter().filter_map(|candidate| columns.plan(candidate)) {
            if incumbent.as_ref().is_none_or(|incumbent| value < incumbent.0) {
                incumbent = Some((value, shares));
            }
        }
        rounds += 1;
        // Improve seldom, with an effort that grows with the rounds so far, so that a near proof is not delayed.
        if rounds.is_power_of_two()
            && let Some((value, shares)) = &incumbent
            && let Some(better) = columns.improved(shares, platform.cores, IMPROVING_NODES * u64::from(rounds), request)
            && better.0 < *value
        {
            incumbent = Some(better);
        }
        // With prices, the bound may stay below every plan: the duality gap.
        if !exact && all_exact && search.is_over() && rounds > 40 {
            return done(incumbent, Some(proven));
        }
    }
}

fn largest(growth: Growth, set: &TaskSet, rules: Rules, request: &Request) -> Solution {
    let most = f64::from(set.platform().partitions);
    let mut kept: Option<Vec<Share>> = None;
    let mut undecided = false;
    let last = last_that_holds(growth.least, growth.most, |steps| {
        if (request.should_stop)() {
            undecided = true;
            return false;
        }
        let fewest = fewest_partitions(&growth.set(set, steps), rules, request);
        undecided |= fewest.shares.is_none() && fewest.bound.is_none_or(|bound| bound <= most);
        let holds = fewest.shares.is_some();
        if holds {
            kept = fewest.shares;
        }
        holds
    });
    // Every larger number of steps was refuted, from the next step on.
    let bound = match last {
        Change::Most(steps) if !undecided => Some((steps + 1) as f64),
        Change::Unlimited => Some(TIME_MAX_NS as f64),
        _ => None,
    };
    let unplaced = if kept.is_some() { Vec::new() } else { (0..set.tasks().len()).collect() };
    Solution { shares: kept, bound, grown: growth.steps(last), unplaced }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::plan::tests::{exclusive_ones_are_alone, random_set};
    use crate::plan::{Method, overfull_partition, plan};
    use crate::taskset::tests::{platform, task};

    #[test]
    fn partitions_worth_more_than_a_tenth_of_a_cpu_are_priced_too() {
        // Alone on a partition a task takes 0.25 of a CPU, on two it takes 0.12. So three partitions serve 8 tasks on two of them and 4 tasks on
        // one, 8 * 0.12 + 4 * 0.25 = 1.96. A fourth partition would save 0.52, and two cannot serve all tasks. All tasks differ by a few ns, so
        // that there are 2^12 states, too many to distribute partitions exactly.
        let tasks = (0..12).map(|at| task(&at.to_string(), 1_000_000, 0, &[250_000 - at, 120_000 - at, 120_000 - at]));
        let (set, _) = TaskSet::new(platform(2, 3, 64, 0), tasks.collect()).unwrap();
        assert!(Kinds::of(&set).unwrap().states > EXACT_STATES_MAX);
        let request = Request { method: Method::Optimal, objective: Objective::Utilization, ..Request::default() };
        let plan = plan(&set, &request).unwrap();
        assert!((plan.utilization - 1.96).abs() < 1e-3, "{}", plan.utilization);
        assert!(plan.bound.unwrap() > plan.utilization - 1e-6, "{:?}", plan.bound);
    }

    #[test]
    fn plans_that_are_improved_two_cores_at_a_time_are_plans_and_nearly_always_the_best() {
        let mut random = fastrand::Rng::with_seed(12);
        let (mut sets, mut best, mut improved) = (0, 0, 0);
        while sets < 200 {
            let set = random_set(&mut random, 5, 3, 4);
            let request = Request { objective: Objective::Utilization, ..Request::default() };
            let rules = Rules { analysis: request.analysis, sharing: true };
            let Ok(start) = cata(&set, rules, set.platform().partitions, &request, true) else { continue };
            let kinds = Kinds::of(&set).unwrap();
            let mut columns = Columns::new(&set, rules, &kinds, set.platform().partitions);
            let (value, shares) = columns.improved(&start, 3, 10_000, &request).unwrap();
            sets += 1;
            let members: Vec<_> = shares.iter().flat_map(|share| &share.members).copied().collect();
            assert_eq!(members.len(), set.tasks().len(), "set {sets}");
            assert!((worth(&set, rules, &shares) - value).abs() < 1e-9, "set {sets}");
            assert!(value <= worth(&set, rules, &start) + TOLERANCE, "set {sets}");
            let mut first = 0;
            for share in &shares {
                let members = share.sets(first);
                first += share.partitions();
                assert!(overfull_partition(&set, &members).is_none() && exclusive_ones_are_alone(&set, &members));
            }
            assert!(first <= set.platform().partitions, "set {sets}");
            let optimum = plan(&set, &Request { method: Method::Optimal, ..request }).unwrap().utilization;
            assert!(value >= optimum - 1e-6, "set {sets}: {value} is below the optimum {optimum}");
            best += u32::from(value <= optimum + 1e-6);
            improved += u32::from(value < worth(&set, rules, &start) - 1e-6);
        }
        assert!(best >= 180, "{best} of {sets} are the best, {improved} were improved");
        println!("{best} of {sets} are the best, {improved} were improved");
    }

    #[test]
    fn seven_tasks_have_a_plan_that_is_proven_optimal_after_few_looks() {
        // Without a limit these sets take 2 to 81 checks of whether to stop.
        const LOOKS: u64 = 500;
        let mut random = fastrand::Rng::with_seed(7);
        let mut sets = 0;
        for _ in 0..40 {
            let set = random_set(&mut random, 7, 2, 6);
            let looks = AtomicU64::new(0);
            let should_stop = || looks.fetch_add(1, Ordering::Relaxed) >= LOOKS;
            let request =
                Request { objective: Objective::Utilization, should_stop: &should_stop, ..Request::default() };
            let found = plan(&set, &request).unwrap();
            assert!(looks.load(Ordering::Relaxed) < LOOKS, "{}", found.utilization);
            if found.schedulable {
                sets += 1;
                assert!(found.gap.is_some_and(|gap| gap < 1e-6), "{:?}", found.gap);
            }
        }
        assert!(sets >= 5, "{sets}");
    }
}
