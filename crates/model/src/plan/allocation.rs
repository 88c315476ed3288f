//! What an analysis says of an allocation: bounds, and how far the verdict carries.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Timeline, fewest_for_core, gantt, overfull_partition};
use crate::analysis::sensitivity::{Change, largest_refill, largest_scale_ppm, refill_breaks};
use crate::analysis::{
    Analysis, Audsley, Bound, BoundOfTask, Charges, CoreTask, Verdict, Workspace, allotted, analyze as bounds_of,
    audsley, schedulable, utilization,
};
use crate::taskset::read::{Allocation, Allotted};
use crate::taskset::{RefillKind, TaskSet};

/// What an analysis says of an allocation.
#[derive(Serialize, JsonSchema)]
pub struct Analyzed {
    /// The analysis.
    pub(super) analysis: Analysis,
    /// What the bounds charge.
    pub(super) charges: Charges,
    /// Whether all deadlines hold.
    pub schedulable: bool,
    /// A bound for every task.
    pub(super) tasks: Vec<BoundOfTask>,
    /// Over all cores.
    pub(super) utilization: f64,
    /// Whether it would be, with each refill time known.
    pub(super) refills: Vec<WithRefill>,
    /// How far the verdict carries; without cores of very many tasks.
    pub(super) cores: Vec<Sensitivity>,
    /// Partitions whose memory does not hold what is put into it, from 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overfull_partitions: Vec<u32>,
}

/// The verdict with another refill time.
#[derive(Serialize, JsonSchema)]
pub struct WithRefill {
    pub(super) refill: RefillKind,
    pub(super) refill_ns: u64,
    pub(super) schedulable: bool,
}

/// How far the verdict on a core carries.
#[derive(Serialize, JsonSchema)]
pub struct Sensitivity {
    pub(super) cpu: u32,
    pub(super) utilization: f64,
    pub(super) largest_refill_ns: Change,
    pub(super) largest_scale_ppm: Change,
    /// With the partitions of the core allocated anew; absent for more tasks than can be tried, or if none are enough.
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

/// Tasks up to which a core's partitions are allocated anew to see what would help.
pub(super) const ANEW_TASKS_MAX: usize = 16;
/// Tasks up to which a core's sensitivity is looked at.
const SENSITIVITY_TASKS_MAX: usize = 256;
/// Jumps reported of each task.
const JUMPS_MAX: usize = 4;

fn sensitivity(set: &TaskSet, core: &Core, analysis: Analysis) -> Sensitivity {
    let charges = Charges::of(set);
    let jumps = |place: usize| {
        let range = 0..=charges.refill_ns.saturating_mul(2);
        let task = set.tasks()[core.members[place]].name.clone();
        refill_breaks(&core.tasks, charges, analysis, place, range).take(JUMPS_MAX).map(move |jump| Jump {
            task: task.clone(),
            above_ns: jump.last_ns,
            response_before_ns: jump.response_before_ns,
            response_after_ns: jump.response_after_ns,
        })
    };
    Sensitivity {
        cpu: core.cpu,
        utilization: utilization(&core.tasks, charges),
        largest_refill_ns: largest_refill(&core.tasks, charges, analysis),
        largest_scale_ppm: largest_scale_ppm(&core.tasks, charges, analysis),
        fewest_partitions: (core.members.len() <= ANEW_TASKS_MAX)
            .then(|| fewest_for_core(set, &core.members, analysis))
            .flatten(),
        refill_breaks: (0..core.members.len()).flat_map(jumps).collect(),
    }
}

/// A core of an allocation, its tasks by priority.
pub struct Core {
    pub(super) cpu: u32,
    pub(super) members: Vec<usize>,
    pub(super) tasks: Vec<CoreTask>,
    pub(super) bounds: Vec<Bound>,
}

impl Core {
    /// The cores of `allocated`, with the bounds of their tasks.
    pub fn all(set: &TaskSet, allocated: &Allocation, analysis: Analysis) -> Vec<Core> {
        allocated.iter().map(|core| Core::of(set, core, analysis)).collect()
    }

    fn of(set: &TaskSet, (cpu, members): &(u32, Vec<Allotted>), analysis: Analysis) -> Core {
        let (members, tasks) = allotted(set, members);
        let bounds = bounds_of(&tasks, Charges::of(set), analysis);
        Core { cpu: *cpu, members, tasks, bounds }
    }
}

impl Analyzed {
    /// What `analysis` says of `cores`, which are those of `allocated`. `checks_memory`: whether partitions have to hold the memory of their
    /// tasks (eq. 3).
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
            let charges = Charges { refill_ns, ..charges };
            let holds = |core: &Core| schedulable(&core.tasks, charges, analysis, &mut Workspace::default());
            WithRefill { refill, refill_ns, schedulable: overfull_partitions.is_empty() && cores.iter().all(holds) }
        };
        let few_enough = |core: &&Core| core.tasks.len() <= SENSITIVITY_TASKS_MAX;
        Analyzed {
            analysis,
            charges: charges.by(analysis),
            schedulable: overfull_partitions.is_empty()
                && cores.iter().flat_map(|core| &core.bounds).all(|bound| bound.verdict != Verdict::Misses),
            tasks: each.map(|(cpu, task, bound)| bound.of_task(set, task, cpu)).collect(),
            utilization: cores.iter().map(|core| utilization(&core.tasks, charges)).sum(),
            refills: set.platform().refills.known().map(with_refill).collect(),
            cores: cores.iter().filter(few_enough).map(|core| sensitivity(set, core, analysis)).collect(),
            overfull_partitions,
        }
    }
}

/// A core for which no priorities are found.
pub struct NoPriorities {
    /// The core.
    pub cpu: u32,
    /// Tasks none of which can have the lowest priority that is left.
    pub unplaced: Vec<String>,
}

/// All tasks of the allocation by priorities found for each core \[Audsley1991\]; by those of the set where none are found, and which cores these are.
pub fn audsley_order(set: &TaskSet, allocated: &Allocation, analysis: Analysis) -> (Vec<usize>, Vec<NoPriorities>) {
    let (mut order, mut without) = (Vec::new(), Vec::new());
    for (cpu, members) in allocated {
        let (members, tasks) = allotted(set, members);
        let places = match audsley(&tasks, Charges::of(set), analysis) {
            Audsley::Found(places) => places,
            Audsley::Stuck { unplaced } => {
                let name = |place: usize| set.tasks()[members[place]].name.clone();
                without.push(NoPriorities { cpu: *cpu, unplaced: unplaced.into_iter().map(name).collect() });
                (0..members.len()).collect()
            }
        };
        order.extend(places.into_iter().map(|place| members[place]));
    }
    (order, without)
}

/// Every core after a common release, drawn.
pub fn schedule(set: &TaskSet, cores: &[Core], analysis: Analysis) -> String {
    let name = |&task: &usize| set.tasks()[task].name.as_str();
    let timelines = cores.iter().map(|core| {
        let names = core.members.iter().map(name).collect();
        Timeline { cpu: core.cpu, names, core: &core.tasks }
    });
    gantt(&timelines.collect::<Vec<_>>(), Charges::of(set), analysis)
}
