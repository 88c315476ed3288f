//! The result of analyzing an allocation: bounds, and the sensitivity of the verdict.

use schemars::JsonSchema;
use serde::Serialize;

use super::contradicted::refilled_tasks;
use super::{Timeline, fewest_for_core, gantt, overfull_partition};
use crate::analysis::sensitivity::{Change, largest_refill, largest_scale_ppm, refill_breaks};
use crate::analysis::{
    Analysis, Audsley, Bound, BoundOfTask, Charges, Conditions, CoreTask, Verdict, Workspace, allotted,
    analyze as bounds_of, audsley, schedulable, utilization,
};
use crate::replacement::{Contradicted, Replacement};
use crate::supply::ChargedSupply;
use crate::taskset::read::{Allocation, Allotted};
use crate::taskset::{RefillKind, TaskSet};

/// Result of an analysis of an allocation.
#[derive(Serialize, JsonSchema)]
pub struct Analyzed {
    /// The analysis that was used.
    pub(super) analysis: Analysis,
    /// Costs that the bounds charge.
    pub(super) charges: Charges,
    /// Supply that the bounds charge; absent if they assume that nothing is withheld.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) supply: Option<ChargedSupply>,
    /// Whether all deadlines hold and no partition is overfull.
    pub schedulable: bool,
    /// Bounds of all tasks.
    pub(super) tasks: Vec<BoundOfTask>,
    /// Utilization of all cores together.
    pub(super) utilization: f64,
    /// Whether all deadlines hold with each known refill time.
    pub(super) refills: Vec<WithRefill>,
    /// Sensitivity of each core, except for cores with very many tasks.
    pub(super) cores: Vec<Sensitivity>,
    /// Partitions whose memory is too small for their tasks, numbered from 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overfull_partitions: Vec<u32>,
    /// Tasks that would refill partitions without a limit on their misses, because any policy may replace lines. These tasks, and the tasks that they
    /// delay, have no bounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_bound: Vec<String>,
    /// A measurement that contradicts the assumption of the bounds about the replacement policy. The bounds are then not sound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contradicted: Option<Contradicted>,
}

/// Verdict with one of the known refill times.
#[derive(Serialize, JsonSchema)]
pub struct WithRefill {
    pub(super) refill: RefillKind,
    pub(super) refill_ns: u64,
    pub(super) schedulable: bool,
}

/// Sensitivity of the verdict on a core: how far the parameters of the core can change.
#[derive(Serialize, JsonSchema)]
pub struct Sensitivity {
    pub(super) cpu: u32,
    pub(super) utilization: f64,
    pub(super) largest_refill_ns: Change,
    pub(super) largest_scale_ppm: Change,
    /// Fewest partitions for the core if they are allocated anew; absent if the core has too many tasks to try, or no number
    /// suffices.
    pub(super) fewest_partitions: Option<u32>,
    pub(super) refill_breaks: Vec<Jump>,
}

/// A refill time above which a task is preempted once more.
#[derive(Serialize, JsonSchema)]
pub struct Jump {
    pub(super) task: String,
    pub(super) above_ns: u64,
    pub(super) response_before_ns: Option<u64>,
    pub(super) response_after_ns: Option<u64>,
}

/// Most tasks of a core for which partitions are allocated anew to find a remedy.
pub(super) const ANEW_TASKS_MAX: usize = 16;
/// Most tasks of a core whose sensitivity is computed.
const SENSITIVITY_TASKS_MAX: usize = 256;
/// Most jumps that are reported for a task.
const JUMPS_MAX: usize = 4;

fn sensitivity(set: &TaskSet, core: &Core, analysis: Analysis) -> Sensitivity {
    let conditions = Conditions::of(set);
    let charges = conditions.charges;
    let jumps = |index: usize| {
        let range = 0..=charges.refill_ns.saturating_mul(2);
        let task = set.tasks()[core.members[index]].name.clone();
        refill_breaks(&core.tasks, conditions, analysis, index, range).take(JUMPS_MAX).map(move |jump| Jump {
            task: task.clone(),
            above_ns: jump.last_ns,
            response_before_ns: jump.response_before_ns,
            response_after_ns: jump.response_after_ns,
        })
    };
    Sensitivity {
        cpu: core.cpu,
        utilization: utilization(&core.tasks, charges),
        largest_refill_ns: largest_refill(&core.tasks, conditions, analysis),
        largest_scale_ppm: largest_scale_ppm(&core.tasks, conditions, analysis),
        fewest_partitions: (core.members.len() <= ANEW_TASKS_MAX)
            .then(|| fewest_for_core(set, &core.members, analysis))
            .flatten(),
        refill_breaks: (0..core.members.len()).flat_map(jumps).collect(),
    }
}

/// A core of an allocation, with its tasks by priority.
pub struct Core {
    pub(super) cpu: u32,
    pub(super) members: Vec<usize>,
    pub(super) tasks: Vec<CoreTask>,
    pub(super) bounds: Vec<Bound>,
}

impl Core {
    /// Returns the cores of `allocated`, with the bounds of their tasks.
    pub fn all(set: &TaskSet, allocated: &Allocation, analysis: Analysis) -> Vec<Core> {
        allocated.iter().map(|core| Core::of(set, core, analysis)).collect()
    }

    fn of(set: &TaskSet, (cpu, members): &(u32, Vec<Allotted>), analysis: Analysis) -> Core {
        let (members, tasks) = allotted(set, members);
        let bounds = bounds_of(&tasks, Conditions::of(set), analysis);
        Core { cpu: *cpu, members, tasks, bounds }
    }
}

impl Analyzed {
    /// Analyzes `cores`, which must be the cores of `allocated`. `checks_memory`: whether partitions have to hold the memory of
    /// their tasks (eq. 3).
    pub fn of(
        set: &TaskSet,
        allocated: &Allocation,
        cores: &[Core],
        analysis: Analysis,
        checks_memory: bool,
    ) -> Analyzed {
        let charges = Charges::of(set);
        let overfull = |(_, members): &(u32, Vec<Allotted>)| {
            let sets: Vec<_> = members.iter().map(|member| (member.task, member.partitions)).collect();
            overfull_partition(set, &sets).filter(|_| checks_memory)
        };
        let overfull_partitions: Vec<u32> = allocated.iter().filter_map(overfull).collect();
        let each = cores
            .iter()
            .flat_map(|core| core.members.iter().zip(&core.bounds).map(move |(task, bound)| (core.cpu, *task, bound)));
        let with_refill = |(refill, refill_ns)| {
            let conditions = Conditions::of(set).with_refill(refill_ns);
            let holds = |core: &Core| schedulable(&core.tasks, conditions, analysis, &mut Workspace::default());
            WithRefill { refill, refill_ns, schedulable: overfull_partitions.is_empty() && cores.iter().all(holds) }
        };
        let few_enough = |core: &&Core| core.tasks.len() <= SENSITIVITY_TASKS_MAX;
        Analyzed {
            analysis,
            charges: charges.by(analysis),
            supply: set.platform().supply.clone(),
            schedulable: overfull_partitions.is_empty()
                && cores.iter().flat_map(|core| &core.bounds).all(|bound| bound.verdict != Verdict::Misses),
            tasks: each.map(|(cpu, task, bound)| bound.of_task(set, task, cpu)).collect(),
            utilization: cores.iter().map(|core| utilization(&core.tasks, charges)).sum(),
            refills: set.platform().refills.known().map(with_refill).collect(),
            cores: cores.iter().filter(few_enough).map(|core| sensitivity(set, core, analysis)).collect(),
            overfull_partitions,
            without_bound: match charges.by(analysis).replacement {
                Replacement::Lru => Vec::new(),
                Replacement::Any => refilled_tasks(set, cores),
            },
            contradicted: None,
        }
    }
}

/// A core for which no priorities were found.
pub struct NoPriorities {
    /// Number of the core's CPU.
    pub cpu: u32,
    /// Names of the tasks left without a priority. None of them can have the lowest priority that is left.
    pub unplaced: Vec<String>,
}

/// Returns the tasks of the allocation, ordered by the priorities found for each core \[Audsley1991\], and the cores for which
/// no priorities were found. The tasks of these cores keep the priorities of the set.
pub fn audsley_order(set: &TaskSet, allocated: &Allocation, analysis: Analysis) -> (Vec<usize>, Vec<NoPriorities>) {
    let (mut order, mut without) = (Vec::new(), Vec::new());
    for (cpu, members) in allocated {
        let (members, tasks) = allotted(set, members);
        let indices = match audsley(&tasks, Conditions::of(set), analysis) {
            Audsley::Found(indices) => indices,
            Audsley::Stuck { unplaced } => {
                let name = |index: usize| set.tasks()[members[index]].name.clone();
                without.push(NoPriorities { cpu: *cpu, unplaced: unplaced.into_iter().map(name).collect() });
                (0..members.len()).collect()
            }
        };
        order.extend(indices.into_iter().map(|index| members[index]));
    }
    (order, without)
}

/// Draws the schedule of every core after a common release, as SVG.
pub fn schedule(set: &TaskSet, cores: &[Core], analysis: Analysis) -> String {
    let name = |&task: &usize| set.tasks()[task].name.as_str();
    let timelines = cores.iter().map(|core| {
        let names = core.members.iter().map(name).collect();
        Timeline { cpu: core.cpu, names, core: &core.tasks }
    });
    gantt(&timelines.collect::<Vec<_>>(), Conditions::of(set), analysis)
}
