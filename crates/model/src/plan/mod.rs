//! Which core, which cache partitions: from a task set to a plan.

pub mod allocate;
mod draw;
mod explain;
mod heuristics;
mod optimal;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::analysis::{Analysis, Charges, CoreTask, analyze, core_tasks, utilization};
use crate::taskset::{PartitionSet, Scope, TaskSet};
use allocate::{Groups, Rules};

pub(crate) use draw::COLORS;
pub use draw::{color_map, gantt};
pub use explain::{Reason, Remedy, explain, remedies};
pub use optimal::Progress;

/// Partitions a plan can distribute, at most.
pub const PLAN_PARTITIONS_MAX: u32 = 64;
/// Tasks a plan can place, at most.
pub const PLAN_TASKS_MAX: usize = 1024;

macro_rules! named {
    ($(#[$doc:meta])* $name:ident, $what:literal, $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
);

/// What is asked of the planner.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// How.
    pub method: Method,
    /// What for.
    pub objective: Objective,
    /// The test of deadlines.
    pub analysis: Analysis,
    /// Asked now and then; once true, the best plan so far is returned with the bound proven so far.
    pub should_stop: &'a (dyn Fn() -> bool + Sync),
    /// Told about bounds as they improve.
    pub progress: &'a dyn Fn(Progress),
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self {
            method: Method::default(),
            objective: Objective::default(),
            analysis: Analysis::default(),
            should_stop: &|| false,
            progress: &|_| {},
        }
    }
}

/// Where every task runs, with which partitions, and how late it can be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// No plan has a better value of the objective than this; absent if nothing is proven.
    pub bound: Option<f64>,
    /// Distance of the plan from the bound, as a share of the plan's value; 0 is proven optimal.
    pub gap: Option<f64>,
    /// The cores that have tasks.
    pub cores: Vec<CorePlan>,
    /// Tasks without a place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced: Vec<String>,
}

/// One core of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorePlan {
    /// Which core, from 0.
    pub cpu: u32,
    /// Partitions it owns, from 1.
    pub partitions: Vec<u32>,
    /// Eq. 1 for it.
    pub utilization: f64,
    /// Its tasks, highest priority first.
    pub tasks: Vec<TaskPlan>,
}

/// One task of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskPlan {
    /// Its name.
    pub name: String,
    /// Its partitions, from 1.
    pub partitions: Vec<u32>,
    /// The bound; absent when it passes the deadline.
    pub response_ns: Option<u64>,
    /// Its deadline.
    pub deadline_ns: u64,
}

/// Why there cannot be a plan at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many partitions to plan with.
    #[error(
        "{count} partitions are more than the {PLAN_PARTITIONS_MAX} a plan can distribute\n  hint: plan with fewer, each standing for several page colors"
    )]
    Partitions {
        /// How many.
        count: u32,
    },
    /// Too many tasks to plan for.
    #[error(
        "{count} tasks are more than the {PLAN_TASKS_MAX} a plan can place\n  hint: plan in parts; `analyze` has no such limit"
    )]
    Tasks {
        /// How many.
        count: usize,
    },
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
    pub(crate) margin: Option<f64>,
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
    let rules = Rules { analysis: request.analysis, sharing: true };
    let solution = match request.method {
        Method::Optimal => optimal::solve(set, rules, request),
        Method::Cata => heuristics::for_objective(set, rules, request, heuristics::cata),
        Method::Bfd | Method::Wfd => {
            let fit = if request.method == Method::Bfd { heuristics::Fit::Best } else { heuristics::Fit::Worst };
            let rules = Rules { sharing: false, ..rules };
            heuristics::for_objective(set, rules, request, |set, rules, available, request, _| {
                heuristics::even_split(set, rules, available, request, fit)
            })
        }
    };
    Ok(written_out(set, request, solution))
}

/// The members of a plan that say where tasks run, as an allocation to analyze.
pub type Allocated = Vec<Vec<(usize, PartitionSet)>>;

fn written_out(set: &TaskSet, request: &Request, solution: Solution) -> Plan {
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
    let utilization = cores.iter().map(|core| core.utilization).sum();
    let value = match request.objective {
        Objective::Partitions => f64::from(partitions_used),
        Objective::Utilization => utilization,
        Objective::Margin => solution.margin.unwrap_or(0.0),
    };
    // Utilizations are compared with a tolerance, so a bound may lie a hair beyond the value it bounds.
    let bound = solution.bound.map(|bound| match request.objective {
        Objective::Utilization if complete => bound.min(value),
        _ => bound,
    });
    let gap = bound.filter(|_| complete && value > 0.0).map(|bound| {
        let gap = (value - bound).abs() / value;
        if gap < 2.0 * allocate::TOLERANCE * set.platform().cores as f64 { 0.0 } else { gap }
    });
    let met = cores.iter().flat_map(|core| &core.tasks).all(|task| task.response_ns.is_some());
    Plan {
        schedulable: complete && met,
        method: request.method,
        objective: request.objective,
        analysis: request.analysis,
        partitions_used,
        utilization,
        margin: solution.margin,
        bound,
        gap,
        cores,
        unplaced: solution.unplaced.iter().map(|&task| set.tasks()[task].name.clone()).collect(),
    }
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
        let tasks = ordered.iter().zip(analyze(&core, charges, analysis)).map(|((task, partitions), bound)| TaskPlan {
            name: set.tasks()[*task].name.clone(),
            partitions: numbers(partitions),
            response_ns: bound.verdict.response_ns(),
            deadline_ns: set.tasks()[*task].deadline_ns,
        });
        plans.push(CorePlan {
            cpu,
            partitions: numbers(&all),
            tasks: tasks.collect(),
            utilization: utilization(&core, charges),
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
