//! Translates the partitions of a plan into ways of this machine's caches. Only this module knows which cache serves which CPU, and which ways
//! are left for everybody else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::partition::resctrl::{self, Group, Mounted, Ways};
use isochrome_host::runtime;
use isochrome_lab::interference::equal_shares;
use isochrome_model::export::ways::{WayRules, arrange, groups, is_shared};
use isochrome_model::machine::Machine;
use isochrome_model::plan::Plan;
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::{Bytes, CpuId};

/// Divisor of the number of ways: all other programs keep this part of the ways if tasks share the rest and colors separate the tasks.
const OTHERS_SHARE: u32 = 4;

/// Name of the group of all tasks, if there is one task only or if colors separate the tasks.
const TASKS: &str = "tasks";

/// The caches of a level, which can be divided by ways.
pub struct Divided {
    level: u8,
    /// Rules for the masks that these caches accept.
    pub rules: WayRules,
    /// Mask of the ways that devices may fill as well.
    shareable: u64,
    /// Number of the cache instance that serves each CPU.
    instance: BTreeMap<CpuId, u32>,
    /// Size of one cache.
    bytes: Bytes,
}

/// An assignment of ways to groups of tasks.
pub struct Given {
    level: u8,
    others: BTreeMap<u32, u64>,
    groups: Vec<Group>,
    /// Name of the group of each task; `None` for a program that is not a task.
    group_of: Vec<Option<String>>,
    shareable: u64,
}

fn all(ways: u32) -> u64 {
    1u64.checked_shl(ways).map_or(u64::MAX, |bit| bit - 1)
}

impl Divided {
    /// Returns the caches of `level` that serve `cpus`.
    pub fn of(sysfs: &Sysfs, machine: &Machine, level: u8, cpus: &[CpuId]) -> Result<Divided> {
        let tree = Mounted::at(&resctrl::root())?;
        let rules = resctrl::rules(&tree, level)?;
        let mut instance = BTreeMap::new();
        for &cpu in cpus {
            let id = sysfs.cache_id(level, cpu).with_context(|| {
                format!("sysfs does not say which cache of level {level} serves CPU {}\n  hint: use colors: method = \"colors\"", cpu.0)
            })?;
            instance.insert(cpu, id);
        }
        let cache = cpus.first().and_then(|cpu| machine.data_level_of(level, *cpu));
        let bytes = cache.map_or(Bytes(0), |cache| cache.geometry.value.cache_bytes());
        Ok(Divided { level, rules, shareable: resctrl::shareable(&tree, level), instance, bytes })
    }

    /// Returns the number of partitions that tasks can have; everybody else keeps one.
    pub fn partitions(&self) -> u32 {
        self.rules.partitions().saturating_sub(1)
    }

    /// Returns the size of a partition.
    pub fn partition_bytes(&self) -> Bytes {
        Bytes(self.bytes.0 / u64::from(self.rules.partitions().max(1)))
    }

    fn given(&self, others: BTreeMap<u32, u64>, groups: Vec<Group>, group_of: Vec<Option<String>>) -> Given {
        Given { level: self.level, others, groups, group_of, shareable: self.shareable }
    }

    /// Assigns `partitions` partitions to a single task on `cpu`.
    pub fn alone(&self, cpu: CpuId, partitions: u32) -> Given {
        let mask = all(partitions * self.rules.least.max(1));
        let id = self.instance[&cpu];
        let group = Group { name: TASKS.to_owned(), masks: BTreeMap::from([(id, mask)]) };
        let others = BTreeMap::from([(id, all(self.rules.count) & !mask)]);
        self.given(others, vec![group], vec![Some(TASKS.to_owned())])
    }

    /// Assigns all ways except those that everybody else keeps to one group of `tasks` tasks, which colors separate.
    pub fn together(&self, tasks: usize) -> Given {
        let others = self.rules.count.div_ceil(OTHERS_SHARE).max(self.rules.least);
        let mask = all(self.rules.count.saturating_sub(others));
        let masks: BTreeMap<u32, u64> = self.instance.values().map(|id| (*id, mask)).collect();
        let rest = masks.keys().map(|id| (*id, all(self.rules.count) & !mask)).collect();
        let group = Group { name: TASKS.to_owned(), masks };
        self.given(rest, vec![group], vec![Some(TASKS.to_owned()); tasks])
    }

    /// Assigns `shares` of the ways, the same in every cache, to programs that may run on any of the CPUs. Everybody else may use all ways.
    /// Fails if there are too few classes of service.
    pub fn shared_out(&self, shares: &[Vec<u32>]) -> Result<Given> {
        ensure!(
            shares.len() < self.rules.classes as usize,
            "{} programs need as many classes of service, and one more for everything else: level {} has {}\n  hint: fewer programs",
            shares.len(),
            self.level,
            self.rules.classes
        );
        let of_all = |mask: u64| self.instance.values().map(|id| (*id, mask)).collect::<BTreeMap<_, _>>();
        let group = |(number, share): (usize, &Vec<u32>)| Group {
            name: (number + 1).to_string(),
            masks: of_all(share.iter().fold(0, |mask, way| mask | 1 << way)),
        };
        let made: Vec<Group> = shares.iter().enumerate().map(group).collect();
        let group_of = made.iter().map(|group| Some(group.name.clone())).collect();
        Ok(self.given(of_all(all(self.rules.count)), made, group_of))
    }

    /// Returns equal shares of the ways for `programs` programs, in masks that the cache accepts.
    pub fn equal_shares(&self, programs: usize) -> Result<Vec<Vec<u32>>> {
        let (partitions, each) = (self.rules.partitions().min(64), self.rules.least.max(1));
        let shares = equal_shares(partitions, programs).with_context(|| {
            format!("level {} can be divided among {partitions} programs by ways\n  hint: fewer programs", self.level)
        })?;
        // Returns the ways of the partitions in `share`.
        let ways = |share: Vec<u32>| share.into_iter().flat_map(|at| at * each..(at + 1) * each).collect();
        Ok(shares.into_iter().map(ways).collect())
    }

    /// Returns the number of the level.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Assigns ways to the tasks of `plan`, in the order of the plan, as `method` requires.
    pub fn planned(&self, plan: &Plan, method: Partitioning) -> Result<Given> {
        if method == Partitioning::Both {
            return Ok(self.together(plan.cores.iter().map(|core| core.tasks.len()).sum()));
        }
        let arranged = arrange(plan, self.rules.partitions(), &self.rules)?;
        let instance: Vec<u32> = plan.cores.iter().map(|core| self.instance[&CpuId(core.cpu)]).collect();
        let distinct = instance.iter().collect::<BTreeSet<_>>().len() == instance.len();
        ensure!(
            distinct || is_shared(plan),
            "the plan gives the same partitions to several CPUs, which share a cache of level {} here\n  hint: cache = \"shared\" in the task set, and plan again",
            self.level
        );
        let mut made = Vec::new();
        let mut group_of: Vec<Vec<Option<String>>> =
            plan.cores.iter().map(|core| vec![None; core.tasks.len()]).collect();
        for (number, ((core, mask), members)) in groups(plan, &arranged).into_iter().enumerate() {
            let name = (number + 1).to_string();
            made.push(Group { name: name.clone(), masks: BTreeMap::from([(instance[core], mask)]) });
            members.into_iter().for_each(|task| group_of[core][task] = Some(name.clone()));
        }
        let others = instance.into_iter().zip(arranged.others).collect();
        Ok(self.given(others, made, group_of.concat()))
    }
}

impl Given {
    /// Applies the assignment, from now on until the returned value is dropped or restored.
    pub fn give(&self) -> Result<Ways<Mounted>> {
        let tree = Mounted::at(&resctrl::root())?;
        Ok(Ways::give(tree, self.level, &self.others, &self.groups, &runtime::folder())?)
    }

    /// Returns the name of a task's group; `None` for a program that is not a task.
    pub fn group_of(&self, task: usize) -> Option<&str> {
        self.group_of.get(task)?.as_deref()
    }

    /// Returns the file by which a task joins its group; `None` for a program that is not a task.
    pub fn joins(&self, task: usize) -> Option<PathBuf> {
        self.group_of(task).map(resctrl::tasks_of)
    }

    /// Returns a description of the assignment: the masks of all groups, by cache.
    pub fn description(&self) -> String {
        let masks = |masks: &BTreeMap<u32, u64>| {
            masks.iter().map(|(id, mask)| format!("{id}={mask:x}")).collect::<Vec<_>>().join(";")
        };
        let groups = self.groups.iter().map(|group| format!("group {}: {}", group.name, masks(&group.masks)));
        let groups: Vec<String> = groups.collect();
        format!("L{}: others {}, {}", self.level, masks(&self.others), groups.join(", "))
    }

    /// Returns a warning if devices may also fill ways of tasks.
    pub fn warning(&self) -> Option<String> {
        let of_tasks = self.groups.iter().flat_map(|group| group.masks.values()).fold(0, |sum, mask| sum | mask);
        let both = of_tasks & self.shareable;
        (both != 0).then(|| {
            format!(
                "Devices may load into ways {both:x} of level {}, which tasks have (shareable_bits of resctrl).",
                self.level
            )
        })
    }
}
