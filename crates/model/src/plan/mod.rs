//! Which core, which cache partitions: from a task set to a plan.

pub mod allocate;
pub mod allocation;
mod compare;
mod draw;
mod error;
mod explain;
mod heuristics;
mod optimal;
mod text;

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analysis::sensitivity::last_that_holds;
use crate::analysis::{Analysis, Charges, CoreTask, Recurrence, analyze, core_tasks, each_utilization, utilization};
use crate::costs::Costs;
use crate::taskset::locks::shared_lock_where;
use crate::taskset::programs::{Programs, Runnable};
use crate::taskset::{CORE_TASKS_MAX, PartitionSet, Scope, TaskSet};
use crate::units::CpuId;
use allocate::{Groups, Rules, TOLERANCE};
use heuristics::Growth;

pub use compare::{Compared, Comparison, Row, beside_kim2013, compare, figures_14_to_16};
pub use draw::COLORS;
pub use draw::{Timeline, bars, color_map, gantt};
pub use error::PlanError;
pub use explain::{Reason, Remedy, explain, fewest_for_core, remedies};
pub use optimal::Progress;
pub use text::{analysis_text, charged, plan_text};

/// Partitions a plan can distribute, at most.
pub const PLAN_PARTITIONS_MAX: u32 = 64;
/// Tasks a plan can place, at most.
pub const PLAN_TASKS_MAX: usize = 1024;

macro_rules! named {
    ($(#[$doc:meta])* $name:ident, $what:literal, $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),+ })
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(UnknownName { what: $what, text: text.to_owned(), known: [$($text),+].join(", ") }),
                }
            }
        }
    };
}

/// A name that is not one of those known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}\n  hint: there are {known}")]
pub struct UnknownName {
    what: &'static str,
    text: String,
    known: String,
}

named!(
    /// How to plan.
    Method, "a method",
    /// Branch and bound, with a proven bound.
    #[default]
    Optimal = "optimal",
    /// [Kim2013, Algorithms 1-3]
    Cata = "cata",
    /// Best-fit decreasing, an even split of the partitions, no sharing. [Kim2013, §5.5]
    Bfd = "bfd",
    /// Worst-fit decreasing, an even split of the partitions, no sharing. [Kim2013, §5.5]
    Wfd = "wfd",
);

named!(
    /// What to plan for.
    Objective, "an objective",
    /// Fewest partitions, then least utilization with these.
    #[default]
    Partitions = "partitions",
    /// Least utilization, with all partitions.
    Utilization = "utilization",
    /// Largest factor by which all execution times can grow, with all partitions.
    Margin = "margin",
    /// Largest time to refill a partition, with all partitions.
    Refill = "refill",
);

/// What is asked of the planner.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// How.
    pub method: Method,
    /// What for.
    pub objective: Objective,
    /// What for among the plans that are best by `objective`, and so on.
    pub then: &'a [Objective],
    /// The test of deadlines.
    pub analysis: Analysis,
    /// Asked now and then; once true, the best plan so far is returned with the bound proven so far.
    pub should_stop: &'a (dyn Fn() -> bool + Sync),
    /// Called with bounds as they improve.
    pub progress: &'a dyn Fn(Progress),
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self {
            method: Method::default(),
            objective: Objective::default(),
            then: &[],
            analysis: Analysis::default(),
            should_stop: &|| false,
            progress: &|_| {},
        }
    }
}

/// Where every task runs, with which partitions, and how late it can be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Whether every task has a place and meets its deadline.
    pub schedulable: bool,
    /// How it was planned.
    pub method: Method,
    /// What it was planned for.
    pub objective: Objective,
    /// The test that all deadlines passed.
    pub analysis: Analysis,
    /// Partitions in use: of the shared cache, or the most on any core.
    pub partitions_used: u32,
    /// Sum over the cores, cache delays included. [Kim2013, eq. 1]
    pub utilization: f64,
    /// Factor by which all execution times can grow; for the objective `margin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// The largest Δ with which this holds, in ns; for the objective `refill`. The longest time there is stands for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_most_ns: Option<u64>,
    /// No plan has a better value of the objective than this; absent if nothing is proven.
    pub bound: Option<f64>,
    /// Distance of the plan from the bound, as a share of the plan's value; 0 is proven optimal.
    pub gap: Option<f64>,
    /// What the plan reaches of the further objectives, one after the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Goal>,
    /// Bundles that fit no core: their tasks have partitions of their own and run anywhere. [Kim2013, §4.5] What is
    /// proven is proven for plans that take these apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundles_apart: Vec<String>,
    /// The cores that have tasks.
    pub cores: Vec<CorePlan>,
    /// Tasks without a place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced: Vec<String>,
    /// What to run, where the task set says so. `cpu` of a core is then the CPU it runs on, and partition `p` is page color `p - 1`
    /// of the cache level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Programs>,
    /// The machine on which execution times were measured ([`fingerprint`](crate::machine::Machine::fingerprint)): the bounds hold on no
    /// other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The measured costs that the bounds charge: what holds, holds given these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
}

/// A further objective of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Goal {
    /// What for.
    pub objective: Objective,
    /// What was reached. A utilization after `margin` or `refill` is that of the set grown so far.
    pub value: f64,
    /// No plan equal in the objectives before it has a better value; absent if nothing is proven.
    pub bound: Option<f64>,
    /// Distance from the bound, as a share of the value.
    pub gap: Option<f64>,
}

/// One core of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CorePlan {
    /// Which core, from 0.
    pub cpu: u32,
    /// Partitions it owns, from 1.
    pub partitions: Vec<u32>,
    /// Eq. 1 for it.
    pub utilization: f64,
    /// Its tasks, highest priority first.
    pub tasks: Vec<TaskPlan>,
    /// What the bounds of its tasks follow from, in the same order: a run replays it with the steal time seen. Absent in plans of earlier
    /// versions, and where it was not planned here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<Recurrence>,
}

/// One task of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskPlan {
    /// Its name.
    pub name: String,
    /// Its partitions, from 1.
    pub partitions: Vec<u32>,
    /// The bound; absent when it passes the deadline.
    pub response_ns: Option<u64>,
    /// What the bound would be if no task disturbed another's cache (the paper's NoCInt), which is optimistic. [Kim2013, Table 2]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_interference_ns: Option<u64>,
    /// Its deadline.
    pub deadline_ns: u64,
    /// Its worst-case execution time alone on its partitions, C^p.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wcet_ns: Option<u64>,
    /// What it adds to the utilization of its core. [Kim2013, eq. 1]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
}

impl UnknownName {
    /// `text` is none of the `known`, as a name of `what` has to be.
    pub(crate) fn new(what: &'static str, text: &str, known: String) -> UnknownName {
        UnknownName { what, text: text.to_owned(), known }
    }
}

/// Tasks of one core, by priority, and how they use its partitions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) members: Vec<usize>,
    pub(crate) groups: Groups,
}

impl Share {
    pub(crate) fn partitions(&self) -> u32 {
        self.groups.iter().map(|(_, count)| count).sum()
    }

    /// The partitions of each member, starting at `first`.
    pub(crate) fn sets(&self, first: u32) -> Vec<(usize, PartitionSet)> {
        let mut sets: Vec<(usize, PartitionSet)> =
            self.members.iter().map(|&task| (task, PartitionSet::default())).collect();
        let mut next = first;
        for &(users, count) in &self.groups {
            for (place, (_, set)) in sets.iter_mut().enumerate() {
                if users >> place & 1 == 1 {
                    *set = set.union(&PartitionSet::range(next, count));
                }
            }
            next += count;
        }
        sets
    }
}

/// What a method returns: a share for every core, what it is worth and what is proven.
pub(crate) struct Solution {
    pub(crate) shares: Option<Vec<Share>>,
    /// In the unit of the objective.
    pub(crate) bound: Option<f64>,
    /// Steps of what grows, for such an objective.
    pub(crate) grown: Option<u64>,
    pub(crate) unplaced: Vec<usize>,
}

/// Plans `set` as asked. The result passes an exact re-check by the analysis, or says that it is not schedulable.
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

/// Plans for one objective after the other, each among the plans that are best by those before it.
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
        // The set on which every plan is as good as this one in the objectives so far.
        narrowed = match stage {
            Objective::Partitions => narrowed.with_partitions(reached.partitions_used),
            _ => Growth::of(stage, &narrowed).set(&narrowed, solution.grown.unwrap_or_default()),
        };
        let better = solve(&narrowed, objective, request);
        // Out of time, the plan so far is among the best, with nothing proven about the rest.
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

/// A plan of this utilization with fewer partitions, if there is one, and how many; and whether it is proven that it
/// takes so many.
fn as_few_as_needed(set: &TaskSet, utilization: f64, request: &Request) -> (Option<(u32, Solution)>, bool) {
    let most = set.platform().partitions;
    let enough = utilization + TOLERANCE * f64::from(set.platform().cores);
    let (mut found, mut proven) = (None, request.method == Method::Optimal);
    // Counts partitions taken away.
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
    let rules = Rules { analysis: request.analysis, sharing: true };
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

/// The members of a plan that say where tasks run, as an allocation to analyze.
pub type Allocated = Vec<Vec<(usize, PartitionSet)>>;

impl Plan {
    /// The plan with what to run: its cores become the CPUs of the programs, each task on its own where it names one.
    pub fn for_programs(mut self, runnable: Runnable) -> Result<Plan, PlanError> {
        let Runnable { programs, fingerprint, costs } = runnable;
        let wish = |core: &CorePlan| -> Result<Option<CpuId>, PlanError> {
            let pinned = |task: &TaskPlan| {
                let program = programs.tasks.iter().find(|program| program.name == task.name)?;
                Some((program.name.clone(), program.cpu?))
            };
            let mut pinned = core.tasks.iter().filter_map(pinned);
            let Some((first, cpu)) = pinned.next() else { return Ok(None) };
            match pinned.find(|(_, other)| *other != cpu) {
                Some((second, _)) => Err(PlanError::Pins { first, second }),
                None => Ok(Some(cpu)),
            }
        };
        let wishes: Vec<Option<CpuId>> = self.cores.iter().map(wish).collect::<Result<_, _>>()?;
        let mut free: Vec<CpuId> = programs.cpus.iter().copied().filter(|cpu| !wishes.contains(&Some(*cpu))).collect();
        free.reverse();
        let cores = self.cores.len();
        for (core, wish) in self.cores.iter_mut().zip(wishes) {
            let cpu = wish.or_else(|| free.pop());
            core.cpu = cpu.ok_or(PlanError::Cpus { cores, cpus: programs.cpus.len() })?.0;
        }
        self.cores.sort_by_key(|core| core.cpu);
        if let Some(twice) = self.cores.windows(2).find(|pair| pair[0].cpu == pair[1].cpu) {
            let name = |core: &CorePlan| core.tasks.first().map(|task| task.name.clone()).unwrap_or_default();
            return Err(PlanError::Pins { first: name(&twice[0]), second: name(&twice[1]) });
        }
        Ok(Plan { programs: Some(programs), fingerprint, costs, ..self })
    }

    /// Its value by its first objective.
    fn value(&self) -> f64 {
        match self.objective {
            Objective::Partitions => f64::from(self.partitions_used),
            Objective::Utilization => self.utilization,
            Objective::Margin => self.margin.unwrap_or(0.0),
            Objective::Refill => self.refill_most_ns.unwrap_or(0) as f64,
        }
    }
}

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
    };
    let value = plan.value();
    plan.bound = solution.bound.map(|bound| match objective {
        // Utilizations are compared with a tolerance, so a bound may lie a hair beyond the value it bounds.
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

/// An allocation with its bounds, in the form of a plan's cores; empty cores are left out.
pub fn core_plans(set: &TaskSet, allocated: &Allocated, analysis: Analysis) -> Vec<CorePlan> {
    let charges = Charges::of(set);
    let mut plans = Vec::new();
    for (cpu, members) in (0u32..).zip(allocated) {
        if members.is_empty() {
            continue;
        }
        let mut ordered = members.clone();
        ordered.sort_by_key(|&(task, _)| set.rank(task));
        let core: Vec<CoreTask> = core_tasks(set, members);
        let numbers = |partitions: &PartitionSet| partitions.iter().map(|partition| partition + 1).collect::<Vec<_>>();
        let all = ordered.iter().fold(PartitionSet::default(), |all, (_, partitions)| all.union(partitions));
        let undisturbed = analyze(&core, charges, Analysis::NoInterference);
        let bounds = analyze(&core, charges, analysis).into_iter().zip(undisturbed);
        let mut shares = vec![0.0; core.len()];
        each_utilization(&core, charges, |place, share| shares[place] = share);
        let found = bounds.zip(core.iter().zip(&shares));
        let tasks =
            ordered.iter().zip(found).map(|((task, partitions), ((bound, undisturbed), (own, share)))| TaskPlan {
                name: set.tasks()[*task].name.clone(),
                partitions: numbers(partitions),
                response_ns: bound.verdict.response_ns(),
                no_interference_ns: undisturbed.verdict.response_ns(),
                deadline_ns: set.tasks()[*task].deadline_ns,
                wcet_ns: Some(own.wcet_ns),
                utilization: Some(*share),
            });
        plans.push(CorePlan {
            cpu,
            partitions: numbers(&all),
            tasks: tasks.collect(),
            utilization: utilization(&core, charges),
            recurrence: Some(Recurrence { analysis, charges, tasks: core }),
        });
    }
    plans
}

/// Whether every partition's memory holds what its tasks take of it. [Kim2013, eq. 3] The first that does not, from 1.
pub fn overfull_partition(set: &TaskSet, members: &[(usize, PartitionSet)]) -> Option<u32> {
    (0..set.platform().partitions)
        .find(|&partition| {
            let users = members.iter().filter(|(_, partitions)| partitions.contains(partition));
            let taken = users
                .map(|&(task, partitions)| set.memory_per_partition(task, partitions.len()))
                .fold(0, u64::saturating_add);
            taken > set.capacity()
        })
        .map(|partition| partition + 1)
}

#[cfg(test)]
mod tests;
