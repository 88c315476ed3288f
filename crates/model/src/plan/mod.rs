//! Plans a task set: finds a core and cache partitions for every task.

pub mod allocate;
pub mod allocation;
mod compare;
mod contradicted;
mod draw;
mod error;
mod explain;
mod file;
mod heuristics;
mod optimal;
mod search;
mod text;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analysis::{Analysis, Conditions, CoreTask, Recurrence, analyze, core_tasks, each_utilization, utilization};
use crate::costs::Costs;
use crate::named;
use crate::replacement::{Contradicted, Replacement};
use crate::supply::ChargedSupply;
use crate::taskset::programs::{Programs, Runnable};
use crate::taskset::{PartitionSet, TaskSet};
use crate::units::CpuId;
use allocate::Groups;

pub use compare::{Compared, Comparison, Row, beside_kim2013, compare, figures_14_to_16};
pub use draw::COLORS;
pub use draw::{Timeline, bars, color_map, gantt};
pub use error::PlanError;
pub use explain::{Reason, Remedy, explain, fewest_for_core, remedies};
pub use search::plan;
pub use text::{analysis_text, charged, plan_text};

/// Most partitions that a plan can distribute.
pub const PLAN_PARTITIONS_MAX: u32 = 64;
/// Most tasks that a plan can place.
pub const PLAN_TASKS_MAX: usize = 1024;

named! {
    /// Planning method.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Method, "a method" {
        /// Branch and bound, with a proven bound.
        #[default]
        Optimal = "optimal",
        /// Cache-aware task allocation. [Kim2013, Algorithms 1-3]
        Cata = "cata",
        /// Best-fit decreasing, an even split of the partitions, no sharing. [Kim2013, §5.5]
        Bfd = "bfd",
        /// Worst-fit decreasing, an even split of the partitions, no sharing. [Kim2013, §5.5]
        Wfd = "wfd",
    }
}

named! {
    /// Objective of a plan.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Objective, "an objective" {
        /// Fewest partitions, then least utilization with these.
        #[default]
        Partitions = "partitions",
        /// Least utilization, with all partitions.
        Utilization = "utilization",
        /// Largest factor by which all execution times can grow, with all partitions.
        Margin = "margin",
        /// Largest time to refill a partition, with all partitions.
        Refill = "refill",
    }
}

/// Request to the planner.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Planning method.
    pub method: Method,
    /// First objective.
    pub objective: Objective,
    /// Further objectives. Each decides among the plans that are best by the objectives before it.
    pub then: &'a [Objective],
    /// Analysis that tests the deadlines.
    pub analysis: Analysis,
    /// Called now and then. Once it returns true, the best plan so far is returned with the bound proven so far.
    pub should_stop: &'a (dyn Fn() -> bool + Sync),
    /// Called with the bounds as they improve.
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

/// Progress of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Best value found, in the unit of the objective; `None` before a plan is found.
    pub best: Option<f64>,
    /// Proven bound: no plan is better than this.
    pub bound: f64,
}

/// Plan of a task set: the core and the partitions of every task, and bounds on the response times.
// `remote` keeps the derived code for `file`, which adds the schema and reads plans of all versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub struct Plan {
    /// Whether every task has a core and meets its deadline.
    pub schedulable: bool,
    /// Method by which the plan was made.
    pub method: Method,
    /// First objective of the plan.
    pub objective: Objective,
    /// Analysis that tested the deadlines.
    pub analysis: Analysis,
    /// Number of partitions in use: of the shared cache, or the most on any core if caches are private.
    pub partitions_used: u32,
    /// Sum of the utilizations of the cores, cache delays included. [Kim2013, eq. 1]
    pub utilization: f64,
    /// Factor by which all execution times can grow; only for the objective `margin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// Largest refill time Δ with which the plan is schedulable, in ns; only for the objective `refill`. The value 2^63 - 1 means any
    /// refill time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_most_ns: Option<u64>,
    /// Bound on the value of the objective: no plan has a better value; absent if nothing is proven.
    pub bound: Option<f64>,
    /// Distance of the plan from the bound, as a share of the plan's value. 0 means that the plan is proven optimal.
    pub gap: Option<f64>,
    /// Values that the plan reaches for the further objectives, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Goal>,
    /// Bundles that fit no core. Their tasks have partitions of their own and run on any core. [Kim2013, §4.5] The bound is proven only
    /// for plans that take these bundles apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundles_apart: Vec<String>,
    /// The cores that have tasks.
    pub cores: Vec<CorePlan>,
    /// Names of the tasks without a core.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced: Vec<String>,
    /// Programs to run, if the task set names them. The `cpu` of a core is then the CPU on which it runs, and partition `p` is page color `p`
    /// of the cache level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Programs>,
    /// Machine on which the execution times were measured ([`fingerprint`](crate::machine::Machine::fingerprint)). The bounds hold on no
    /// other machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Measured costs that the bounds charge. The bounds hold only if the true costs are no higher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    /// Assumption of the bounds about the replacement policy. With any policy, no tasks share partitions.
    #[serde(default)]
    pub replacement: Replacement,
    /// A measurement that contradicts the assumption about the replacement policy. The bounds are then not sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradicted: Option<Contradicted>,
    /// Supply that the bounds charge; absent if they assume that nothing is ever withheld. The recurrences of the cores are without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supply: Option<ChargedSupply>,
}

/// A further objective of a plan, with the value that the plan reaches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Goal {
    /// The objective.
    pub objective: Objective,
    /// Value reached. A utilization after `margin` or `refill` is that of the task set grown so far.
    pub value: f64,
    /// Bound on the value: no plan that is equal in the objectives before has a better value; absent if nothing is proven.
    pub bound: Option<f64>,
    /// Distance of the value from the bound, as a share of the value.
    pub gap: Option<f64>,
}

/// One core of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CorePlan {
    /// Number of the core, from 0; in a plan with programs, number of the CPU.
    pub cpu: u32,
    /// Partitions of the core, numbered from 0.
    pub partitions: Vec<u32>,
    /// Utilization of the core. [Kim2013, eq. 1]
    pub utilization: f64,
    /// Tasks of the core, highest priority first.
    pub tasks: Vec<TaskPlan>,
    /// Recurrence from which the bounds of the tasks follow, with the tasks in the same order. A run replays it with the steal time that
    /// it observes. Absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<Recurrence>,
}

/// One task of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskPlan {
    /// Name of the task.
    pub name: String,
    /// Partitions of the task, numbered from 0.
    pub partitions: Vec<u32>,
    /// Bound on the response time, in ns; absent if it exceeds the deadline.
    pub response_ns: Option<u64>,
    /// Bound that would hold if no task disturbed the cache contents of another (the paper's NoCInt), in ns. It is optimistic.
    /// [Kim2013, Table 2]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_interference_ns: Option<u64>,
    /// Deadline, in ns.
    pub deadline_ns: u64,
    /// Worst-case execution time C^p of the task alone on its partitions, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wcet_ns: Option<u64>,
    /// Utilization that the task adds to its core. [Kim2013, eq. 1]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
}

/// Tasks of one core, by priority, and how they use the partitions of the core.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) members: Vec<usize>,
    pub(crate) groups: Groups,
}

impl Share {
    pub(crate) fn partitions(&self) -> u32 {
        self.groups.iter().map(|(_, count)| count).sum()
    }

    /// Returns the partitions of each member, numbered from `first` on.
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

/// Result of a planning method: a share for every core, and what is proven about the best plan.
pub(crate) struct Solution {
    pub(crate) shares: Option<Vec<Share>>,
    /// Proven bound: partitions, utilization, or steps of the quantity that grows ([`Growth`]).
    pub(crate) bound: Option<f64>,
    /// Steps that the growing quantity reaches; `None` for objectives without one.
    pub(crate) grown: Option<u64>,
    pub(crate) unplaced: Vec<usize>,
}

/// Tasks of each core with their partitions: an allocation to analyze.
pub type Allocated = Vec<Vec<(usize, PartitionSet)>>;

impl Plan {
    /// Returns the plan with the programs to run. Its cores become CPUs of the programs; a core whose tasks name a CPU becomes that CPU.
    /// Fails if tasks name contradicting CPUs, or if there are fewer CPUs than cores.
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

    /// Returns the value of the plan by its first objective.
    pub(super) fn value(&self) -> f64 {
        match self.objective {
            Objective::Partitions => f64::from(self.partitions_used),
            Objective::Utilization => self.utilization,
            Objective::Margin => self.margin.unwrap_or(0.0),
            Objective::Refill => self.refill_most_ns.unwrap_or(0) as f64,
        }
    }
}

/// Returns the cores of a plan with this allocation, with the bounds of all tasks; empty cores are left out.
pub fn core_plans(set: &TaskSet, allocated: &Allocated, analysis: Analysis) -> Vec<CorePlan> {
    let conditions = Conditions::of(set);
    let charges = conditions.charges;
    let mut plans = Vec::new();
    for (cpu, members) in (0u32..).zip(allocated) {
        if members.is_empty() {
            continue;
        }
        let mut ordered = members.clone();
        ordered.sort_by_key(|&(task, _)| set.rank(task));
        let core: Vec<CoreTask> = core_tasks(set, members);
        let all = ordered.iter().fold(PartitionSet::default(), |all, (_, partitions)| all.union(partitions));
        let undisturbed = analyze(&core, conditions, Analysis::NoInterference);
        let bounds = analyze(&core, conditions, analysis).into_iter().zip(undisturbed);
        let mut shares = vec![0.0; core.len()];
        each_utilization(&core, charges, |place, share| shares[place] = share);
        let found = bounds.zip(core.iter().zip(&shares));
        let tasks =
            ordered.iter().zip(found).map(|((task, partitions), ((bound, undisturbed), (own, share)))| TaskPlan {
                name: set.tasks()[*task].name.clone(),
                partitions: Vec::from(*partitions),
                response_ns: bound.verdict.response_ns(),
                no_interference_ns: undisturbed.verdict.response_ns(),
                deadline_ns: set.tasks()[*task].deadline_ns,
                wcet_ns: Some(own.wcet_ns),
                utilization: Some(*share),
            });
        plans.push(CorePlan {
            cpu,
            partitions: Vec::from(all),
            tasks: tasks.collect(),
            utilization: utilization(&core, charges),
            recurrence: Some(Recurrence { analysis, charges, tasks: core }),
        });
    }
    plans
}

/// Returns the first partition whose memory is too small for its tasks; `None` if all are large enough. [Kim2013, eq. 3]
pub fn overfull_partition(set: &TaskSet, members: &[(usize, PartitionSet)]) -> Option<u32> {
    (0..set.platform().partitions).find(|&partition| {
        let users = members.iter().filter(|(_, partitions)| partitions.contains(partition));
        let taken = users
            .map(|&(task, partitions)| set.memory_per_partition(task, partitions.len()))
            .fold(0, u64::saturating_add);
        taken > set.capacity()
    })
}

#[cfg(test)]
mod tests;
