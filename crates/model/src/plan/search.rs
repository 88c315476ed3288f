//! The search for a plan, one objective after the other.

use super::allocate::{Rules, TOLERANCE};
use super::heuristics::{self, Growth};
use super::{
    Allocated, Goal, Method, Objective, PLAN_PARTITIONS_MAX, PLAN_TASKS_MAX, Plan, PlanError, Request, Solution,
};
use super::{core_plans, explain, optimal};
use crate::analysis::sensitivity::last_that_holds;
use crate::replacement::Replacement;
use crate::taskset::locks::shared_lock_where;
use crate::taskset::{CORE_TASKS_MAX, Scope, TaskSet};

/// Returns the plan for `set`. A plan that is marked as schedulable has passed an exact check by the analysis. Fails for the reasons in
/// [`PlanError`], which do not include missed deadlines.
pub fn plan(set: &TaskSet, request: &Request) -> Result<Plan, PlanError> {
    let platform = set.platform();
    if platform.partitions > PLAN_PARTITIONS_MAX {
        return Err(PlanError::Partitions { count: platform.partitions });
    }
    if set.tasks().len() > PLAN_TASKS_MAX {
        return Err(PlanError::Tasks { count: set.tasks().len() });
    }
    if set.tasks().len() > CORE_TASKS_MAX * platform.cores as usize {
        return Err(PlanError::Priorities { count: set.tasks().len(), cores: platform.cores });
    }
    if platform.cold_start && platform.replacement == Replacement::Any {
        return Err(PlanError::ColdStart);
    }
    let bundle = |task: usize| set.tasks()[task].bundle.as_deref();
    let apart = |a: usize, b: usize| platform.cores > 1 && (bundle(a).is_none() || bundle(a) != bundle(b));
    if let Some((lock, first, second)) = shared_lock_where(set.tasks(), apart) {
        let name = |task: usize| set.tasks()[task].name.clone();
        return Err(PlanError::Lock { lock: lock.to_owned(), first: name(first), second: name(second) });
    }
    let objectives = [&[request.objective], request.then].concat();
    let behind = objectives.iter().skip_while(|&&objective| objective != Objective::Utilization).skip(1);
    if let Some(&then) =
        behind.enumerate().find(|&(at, &then)| at > 0 || then != Objective::Partitions).map(|(_, then)| then)
    {
        return Err(PlanError::Order { then });
    }
    let mut apart = Vec::new();
    let mut eased = set.clone();
    loop {
        let mut plan = lexicographic(&eased, request);
        if plan.schedulable || (request.should_stop)() {
            plan.bundles_apart = apart;
            return Ok(plan);
        }
        let Some(bundle) = explain::bundle_in_the_way(&eased, &plan) else {
            plan.bundles_apart = apart;
            return Ok(plan);
        };
        eased = eased.with_bundle_apart(&bundle);
        apart.push(bundle);
    }
}

/// Returns the plan for one objective after the other. Each objective decides among the plans that are best by the objectives before it.
fn lexicographic(set: &TaskSet, request: &Request) -> Plan {
    let mut solution = solve(set, request.objective, request);
    let (mut plan, mut stage) = (written_out(set, request.objective, request, &solution), request.objective);
    let mut narrowed = set.clone();
    let mut goals: Vec<Goal> = Vec::new();
    for &objective in request.then.iter().filter(|_| plan.schedulable) {
        let reached = written_out(&narrowed, stage, request, &solution);
        if stage == Objective::Utilization {
            let (fewer, proven) = as_few_as_needed(&narrowed, reached.utilization, request);
            let value = fewer.as_ref().map_or(reached.partitions_used, |(used, _)| *used);
            solution = fewer.map_or(solution, |(_, solution)| solution);
            let bound = proven.then_some(f64::from(value));
            goals.push(Goal { objective, value: f64::from(value), bound, gap: bound.map(|_| 0.0) });
            break;
        }
        // A set for which every plan is as good as this plan by the objectives so far.
        narrowed = match stage {
            Objective::Partitions => narrowed.with_partitions(reached.partitions_used),
            _ => Growth::of(stage, &narrowed).set(&narrowed, solution.grown.unwrap_or_default()),
        };
        let better = solve(&narrowed, objective, request);
        // If time runs out, the plan so far is kept. It is among the best so far, but nothing is proven about this objective.
        let kept = Solution { bound: None, grown: None, ..solution };
        solution = if better.shares.is_some() { better } else { kept };
        let found = written_out(&narrowed, objective, request, &solution);
        goals.push(Goal { objective, value: found.value(), bound: found.bound, gap: found.gap });
        stage = objective;
    }
    if !goals.is_empty() {
        let last = written_out(set, request.objective, request, &solution);
        plan = Plan { partitions_used: last.partitions_used, utilization: last.utilization, cores: last.cores, ..plan };
        plan.then = goals;
    }
    plan
}

/// Returns the plan of this utilization with the fewest partitions found, and their number; `None` if no plan with fewer than all
/// partitions is found. Also returns whether it is proven that no plan needs fewer.
fn as_few_as_needed(set: &TaskSet, utilization: f64, request: &Request) -> (Option<(u32, Solution)>, bool) {
    let most = set.platform().partitions;
    let enough = utilization + TOLERANCE * f64::from(set.platform().cores);
    let (mut found, mut proven) = (None, request.method == Method::Optimal);
    // The search counts the partitions taken away.
    last_that_holds(0, u64::from(most) - 1, |fewer| {
        if fewer == 0 {
            return true;
        }
        let less = set.with_partitions(most - fewer as u32);
        let solution = solve(&less, Objective::Utilization, request);
        let plan = written_out(&less, Objective::Utilization, request, &solution);
        let holds = plan.schedulable && plan.utilization <= enough;
        proven &= holds || solution.bound.is_none_or(|bound| bound > enough);
        if holds {
            found = Some((plan.partitions_used, solution));
        }
        holds
    });
    (found, proven)
}

fn solve(set: &TaskSet, objective: Objective, request: &Request) -> Solution {
    let rules = Rules::of(set, request.analysis);
    match request.method {
        Method::Optimal => optimal::solve(set, rules, objective, request),
        Method::Cata => heuristics::for_objective(set, rules, objective, request, heuristics::cata),
        Method::Bfd | Method::Wfd => {
            let fit = if request.method == Method::Bfd { heuristics::Fit::Best } else { heuristics::Fit::Worst };
            let rules = Rules { sharing: false, ..rules };
            heuristics::for_objective(set, rules, objective, request, |set, rules, available, request, _| {
                heuristics::even_split(set, rules, available, request, fit)
            })
        }
    }
}

/// Returns `solution` as a plan for `set`, with the bounds of its tasks.
fn written_out(set: &TaskSet, objective: Objective, request: &Request, solution: &Solution) -> Plan {
    let complete = solution.shares.is_some();
    let mut first = 0;
    let mut allocated: Allocated = Vec::new();
    let mut partitions_used = 0;
    for share in solution.shares.iter().flatten() {
        allocated.push(share.sets(first));
        match set.platform().scope {
            Scope::Shared => {
                first += share.partitions();
                partitions_used = first;
            }
            Scope::Private => partitions_used = partitions_used.max(share.partitions()),
        }
    }
    let cores = core_plans(set, &allocated, request.analysis);
    let met = cores.iter().flat_map(|core| &core.tasks).all(|task| task.response_ns.is_some());
    let factor = |steps: f64| steps * heuristics::MARGIN_STEP_PPM as f64 / 1e6;
    let mut plan = Plan {
        schedulable: complete && met,
        method: request.method,
        objective,
        analysis: request.analysis,
        partitions_used,
        utilization: cores.iter().map(|core| core.utilization).sum(),
        margin: solution.grown.filter(|_| objective == Objective::Margin).map(|steps| factor(steps as f64)),
        refill_most_ns: solution.grown.filter(|_| objective == Objective::Refill),
        bound: None,
        gap: None,
        then: Vec::new(),
        bundles_apart: Vec::new(),
        cores,
        unplaced: solution.unplaced.iter().map(|&task| set.tasks()[task].name.clone()).collect(),
        programs: None,
        fingerprint: None,
        costs: None,
        replacement: set.platform().replacement,
        contradicted: None,
        supply: set.platform().supply.clone(),
    };
    let value = plan.value();
    plan.bound = solution.bound.map(|bound| match objective {
        // Utilizations are compared with a tolerance, so a lower bound may slightly exceed the value that it bounds.
        Objective::Utilization if complete => bound.min(value),
        Objective::Margin => factor(bound),
        _ => bound,
    });
    plan.gap = plan.bound.filter(|_| complete && value > 0.0).map(|bound| {
        let gap = (value - bound).abs() / value;
        if gap < 2.0 * TOLERANCE * f64::from(set.platform().cores) { 0.0 } else { gap }
    });
    plan
}
