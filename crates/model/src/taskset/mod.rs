//! The task model of [Kim2013, §2.3]: the demand of a real-time task for a core and for a partitioned cache.
//!
//! A cache of `N_P` partitions (page colors, or ways) is shared out among tasks. Giving a task a partition also gives it
//! the memory of that color, `M_total / N_P`, so partitions are counted twice: as cache, and as memory.

mod check;
pub mod generate;
pub(crate) mod locks;
mod numbering;
pub mod partitions;
pub mod programs;
pub mod read;
mod refills;
pub mod rtapp;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::replacement::Replacement;
use crate::supply::ChargedSupply;
use crate::units::{Bytes, CpuId};
use check::{check_platform, check_task, complete_curve};
pub use locks::{Hold, Holds, LOCKS_MAX, Lock};
use locks::{check_locks, numbered};
pub use numbering::{Numbering, PLAN_SCHEMA, UnknownSchema};
pub use partitions::{PARTITIONS_MAX, PartitionSet};
pub use refills::{RefillChoice, RefillKind, Refills};

/// Longest time in a task set, in ns. Sums of times saturate far above it, so a sum that is too large to represent still
/// compares as later than every deadline.
pub const TIME_MAX_NS: u64 = i64::MAX as u64;

/// Maximum number of tasks that one core can run. Every task needs a SCHED_FIFO priority of its own.
///
/// `run` gives tasks the priorities 2 to 47. Priority 1 is the lowest that Linux has. From 48 up, jobs are released and the
/// kernel does its own work. Two tasks of one priority would run in the order of their releases, for which the bounds of
/// isochrome do not hold.
pub const CORE_TASKS_MAX: usize = 46;

/// Fields of a file, by name, that its reader does not interpret but passes on.
pub type Others = BTreeMap<String, serde_json::Value>;

/// Maximum number of tasks that [`TaskSet::copied`] makes.
const COPIES_MAX: usize = 100_000;

/// Whether the partitioned cache is shared by all cores or private to each core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One cache behind all cores (an L3): a partition belongs to one core.
    #[default]
    Shared,
    /// A cache in every core (an L2): each core has all `N_P` partitions, and `1 / N_C` of the memory of each.
    Private,
}

/// Rule for how much memory of each of its partitions a task takes. [Kim2013, eq. 3]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryRule {
    /// Whole pages, dealt round-robin: the fullest partition gets `ceil(pages / |S|)`.
    #[default]
    Pages,
    /// The paper's `M / |S|`, a real number.
    Kim2013,
}

/// Properties of the machine that planning uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Number of cores, `N_C`.
    pub cores: u32,
    /// Number of cache partitions, `N_P`: of the shared cache, or of each core's private cache.
    pub partitions: u32,
    /// Size of the memory that is colored, `M_total`.
    pub memory: Bytes,
    /// Time to refill one partition, Δ, that bounds charge, in ns.
    pub refill_ns: u64,
    /// Known refill times. Δ is one of them, or was given separately.
    pub refills: Refills,
    /// Cost of one context switch, in ns; a job is charged for two.
    pub switch_ns: u64,
    /// Time that the interrupt which releases a job takes from the running job of that core, in ns.
    pub release_interrupt_ns: u64,
    /// Longest time to refill the private levels (L1, TLB) that other tasks displaced, in ns. It is charged at the start of a
    /// job and after each preemption, whichever partitions tasks have.
    pub preemption_ns: u64,
    /// Assumption of bounds about the replacement policy of the partitioned cache.
    pub replacement: Replacement,
    /// Whether partitions belong to a shared cache or to a private cache of each core.
    pub scope: Scope,
    /// Page size.
    pub page: Bytes,
    /// Form of [Kim2013, eq. 3] that is used.
    pub memory_rule: MemoryRule,
    /// Whether bounds must also hold for the first jobs after start, which find even private partitions cold.
    pub cold_start: bool,
    /// Supply of the cores that bounds charge; `None` if they assume that nothing is ever withheld.
    pub supply: Option<ChargedSupply>,
}

impl Platform {
    /// Creates a platform with one shared cache under LRU and pages of 4 KiB. Nothing but refills is charged, partitions are warm at the start,
    /// and nothing is withheld.
    pub fn new(cores: u32, partitions: u32, memory: Bytes, refill_ns: u64) -> Platform {
        Platform {
            cores,
            partitions,
            memory,
            refill_ns,
            refills: Refills::default(),
            switch_ns: 0,
            release_interrupt_ns: 0,
            preemption_ns: 0,
            replacement: Replacement::Lru,
            scope: Scope::Shared,
            page: Bytes(4096),
            memory_rule: MemoryRule::Pages,
            cold_start: false,
            supply: None,
        }
    }
}

/// A periodic or sporadic task, `τ = {C^p, T, D, M}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Name of the task, unique in the set.
    pub name: String,
    /// Shortest time between releases, T, in ns.
    pub period_ns: u64,
    /// Relative deadline, `D <= T`, in ns.
    pub deadline_ns: u64,
    /// Memory that the task must have, M.
    pub memory: Bytes,
    /// Worst-case execution times, in ns: `wcet_ns[p - 1]` is `C^p`, the time of the task alone with p warm partitions;
    /// non-increasing.
    pub wcet_ns: Vec<u64>,
    /// Longest delay between arrival and release, in ns.
    pub jitter_ns: u64,
    /// Longest time that one lower-priority task of the same core executes while it holds something that this task waits for,
    /// in ns. It is not known which task that is, so bounds charge the footprint of all of them. See [`locks`](Self::locks).
    pub blocking_ns: u64,
    /// Longest time in which the task cannot be preempted, in ns.
    pub nonpreemptive_ns: u64,
    /// Locks that the task takes, under the immediate priority ceiling protocol.
    pub locks: Vec<Lock>,
    /// Priority as in SCHED_FIFO: the task with the larger number runs first. Either all tasks of a set have a priority, or
    /// none has.
    pub priority: Option<u32>,
    /// Name of the task's bundle. Tasks of one bundle share memory and stay on one core. [Kim2013, §4.5]
    pub bundle: Option<String>,
    /// Whether no other task may use the task's partitions.
    pub exclusive: bool,
}

impl Task {
    /// Creates a task with its deadline at the end of its period, and with zero, empty or absent values in the other fields.
    pub fn new(name: String, period_ns: u64, memory: Bytes, wcet_ns: Vec<u64>) -> Task {
        Task {
            name,
            period_ns,
            deadline_ns: period_ns,
            memory,
            wcet_ns,
            jitter_ns: 0,
            blocking_ns: 0,
            nonpreemptive_ns: 0,
            locks: Vec::new(),
            priority: None,
            bundle: None,
            exclusive: false,
        }
    }
}

/// Tasks and the machine to run them on, checked: every time in range, every curve non-increasing and complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSet {
    platform: Platform,
    tasks: Vec<Task>,
    order: Vec<usize>,
    rank: Vec<usize>,
    holds: Vec<Holds>,
}

/// An error in a task set. `field` is the path of the field, such as `tasks[2].deadline_ns`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Path of the field.
    pub field: String,
    /// Description of the error, and a hint.
    pub problem: String,
}

impl Invalid {
    fn at(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

impl TaskSet {
    /// Creates a task set after checking tasks and platform. Also returns warnings about curves that had to be raised or
    /// extended.
    pub fn new(platform: Platform, mut tasks: Vec<Task>) -> Result<(Self, Vec<String>), Invalid> {
        check_platform(&platform)?;
        if tasks.is_empty() {
            return Err(Invalid::at("tasks", "there are none"));
        }
        let mut warnings = Vec::new();
        let mut names = BTreeSet::new();
        for (index, task) in tasks.iter_mut().enumerate() {
            check_task(index, task, &platform)?;
            check_locks(index, &task.locks)?;
            if !names.insert(task.name.clone()) {
                return Err(Invalid::at(format!("tasks[{index}].name"), format!("`{}` is taken already", task.name)));
            }
            complete_curve(task, platform.partitions as usize, &mut warnings);
        }
        let with_priority = tasks.iter().filter(|task| task.priority.is_some()).count();
        if with_priority != 0 && with_priority != tasks.len() {
            let index = tasks.iter().position(|task| task.priority.is_none()).unwrap_or(0);
            return Err(Invalid::at(
                format!("tasks[{index}].priority"),
                "missing, while other tasks have one\n  hint: give every task a priority, or none for deadline-monotonic",
            ));
        }
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        order.sort_by_key(|&task| (std::cmp::Reverse(tasks[task].priority), tasks[task].deadline_ns, task));
        let mut rank = vec![0; tasks.len()];
        for (index, &task) in order.iter().enumerate() {
            rank[task] = index;
        }
        let holds = numbered(&tasks);
        Ok((Self { platform, tasks, order, rank, holds }, warnings))
    }

    /// Returns the machine.
    pub fn platform(&self) -> &Platform {
        &self.platform
    }

    /// Returns the tasks, in the order given.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Returns the indices of the tasks, highest priority first: by priority, then deadline, then position.
    pub fn by_priority(&self) -> &[usize] {
        &self.order
    }

    /// Returns the position of `task` in [`by_priority`](Self::by_priority).
    pub fn rank(&self, task: usize) -> usize {
        self.rank[task]
    }

    /// Returns the locks of `task`. Their numbers are valid for the whole set.
    pub fn holds(&self, task: usize) -> Holds {
        self.holds[task]
    }

    /// Returns the same tasks on another machine, checked again.
    pub fn on(&self, platform: Platform) -> Result<Self, Invalid> {
        Ok(Self::new(platform, self.tasks.clone())?.0)
    }

    /// Returns the set with every execution time scaled by `numerator / denominator`, rounded up.
    ///
    /// Scaled times are at most [`TIME_MAX_NS`], which no realistic deadline can accommodate.
    pub fn with_wcet_scaled(&self, numerator: u64, denominator: u64) -> Self {
        let mut scaled = self.clone();
        for time in scaled.tasks.iter_mut().flat_map(|task| task.wcet_ns.iter_mut()) {
            *time = scale_up(*time, numerator, denominator);
        }
        scaled
    }

    /// Returns a set with every task `copies` times (at least once), as [Kim2013, §5.5] makes larger sets. The names of the
    /// copies are numbered.
    pub fn copied(&self, copies: u32) -> Result<Self, Invalid> {
        if copies <= 1 {
            return Ok(self.clone());
        }
        if self.tasks.len().saturating_mul(copies as usize) > COPIES_MAX {
            return Err(Invalid::at("tasks", format!("{copies} copies make more than {COPIES_MAX} tasks")));
        }
        let copy = |number: u32| {
            self.tasks.iter().map(move |task| Task { name: format!("{}.{number}", task.name), ..task.clone() })
        };
        Ok(Self::new(self.platform.clone(), (1..=copies).flat_map(copy).collect())?.0)
    }

    /// Returns the set on a machine with only `count` of its partitions, each as large as before.
    ///
    /// Panics if `count` is 0 or greater than the number of partitions.
    pub(crate) fn with_partitions(&self, count: u32) -> Self {
        assert!((1..=self.platform.partitions).contains(&count), "{count} of {} partitions", self.platform.partitions);
        let mut changed = self.clone();
        changed.platform.memory =
            Bytes(self.platform.memory.0 / u64::from(self.platform.partitions) * u64::from(count));
        changed.platform.partitions = count;
        changed.tasks.iter_mut().for_each(|task| task.wcet_ns.truncate(count as usize));
        changed
    }

    /// Returns the set with the tasks of a bundle taken apart. They may then run on any core, each with partitions of its own.
    /// [Kim2013, §4.5]
    pub(crate) fn with_bundle_apart(&self, bundle: &str) -> Self {
        let mut changed = self.clone();
        for task in changed.tasks.iter_mut().filter(|task| task.bundle.as_deref() == Some(bundle)) {
            (task.bundle, task.exclusive) = (None, true);
        }
        changed
    }

    /// Returns the set with tasks that must run on one CPU bundled, so that a plan keeps them together. The other tasks of
    /// their bundles join them. It is an error if two tasks of a bundle must run on different CPUs.
    ///
    /// `cpu_of`: the CPU that a task of this name must run on.
    pub fn with_pins(&self, cpu_of: impl Fn(&str) -> Option<CpuId>) -> Result<Self, Invalid> {
        let mut pins: BTreeMap<&str, CpuId> = BTreeMap::new();
        let mut tasks = self.tasks.clone();
        for (index, task) in self.tasks.iter().enumerate() {
            let (Some(bundle), Some(cpu)) = (&task.bundle, cpu_of(&task.name)) else { continue };
            let other = *pins.entry(bundle).or_insert(cpu);
            if other != cpu {
                let problem = format!("CPU {}, while its bundle `{bundle}` is on CPU {}", cpu.0, other.0);
                return Err(Invalid::at(format!("tasks[{index}].cpu"), problem));
            }
        }
        for task in &mut tasks {
            let of_bundle = task.bundle.as_deref().and_then(|bundle| pins.get(bundle).copied());
            if let Some(cpu) = cpu_of(&task.name).or(of_bundle) {
                task.bundle = Some(format!("CPU {}", cpu.0));
            }
        }
        Ok(Self::new(self.platform.clone(), tasks)?.0)
    }

    /// Returns the set with priorities in the given order of task indices, highest first. Tasks that are left out get the
    /// lowest priority.
    pub fn with_priorities(&self, order: &[usize]) -> Self {
        let mut tasks = self.tasks.clone();
        for task in &mut tasks {
            task.priority = Some(0);
        }
        for (priority, &task) in (1u32..).zip(order.iter().rev()) {
            tasks[task].priority = Some(priority);
        }
        Self::new(self.platform.clone(), tasks).expect("priorities make a good set no worse").0
    }

    /// Returns the set with another refill time Δ.
    pub fn with_refill(&self, refill_ns: u64) -> Self {
        let mut changed = self.clone();
        changed.platform.refill_ns = refill_ns.min(TIME_MAX_NS);
        changed
    }

    /// Returns the memory of one partition that one core can use.
    pub fn partition_memory(&self) -> Bytes {
        let Platform { memory, partitions, cores, scope, .. } = self.platform;
        match scope {
            Scope::Shared => Bytes(memory.0 / u64::from(partitions)),
            Scope::Private => Bytes(memory.0 / u64::from(partitions) / u64::from(cores)),
        }
    }

    /// Returns the memory that `task` takes of each of its `count` partitions, to compare with [`capacity`](Self::capacity).
    /// [Kim2013, eq. 3]
    ///
    /// The unit is a page or, for the paper's form, 2^-20 pages (rounded up).
    pub fn memory_per_partition(&self, task: usize, count: u32) -> u64 {
        let count = u64::from(count.max(1));
        match self.platform.memory_rule {
            MemoryRule::Pages => self.tasks[task].memory.0.div_ceil(self.platform.page.0).div_ceil(count),
            MemoryRule::Kim2013 => {
                let parts = (u128::from(self.tasks[task].memory.0) << 20).div_ceil(u128::from(count));
                u64::try_from(parts.div_ceil(u128::from(self.platform.page.0))).unwrap_or(u64::MAX)
            }
        }
    }

    /// Returns the memory of one partition, in the unit of [`memory_per_partition`](Self::memory_per_partition).
    pub fn capacity(&self) -> u64 {
        let pages = self.partition_memory().0 / self.platform.page.0;
        match self.platform.memory_rule {
            MemoryRule::Pages => pages,
            MemoryRule::Kim2013 => {
                let parts = (u128::from(self.partition_memory().0) << 20) / u128::from(self.platform.page.0);
                u64::try_from(parts).unwrap_or(u64::MAX)
            }
        }
    }

    /// Returns the smallest number of partitions whose memory holds `task` alone; `None` if even all of them are too small.
    pub fn fewest_partitions(&self, task: usize) -> Option<u32> {
        (1..=self.platform.partitions).find(|&count| self.memory_per_partition(task, count) <= self.capacity())
    }
}

/// Returns `time * numerator / denominator`, rounded up, at most [`TIME_MAX_NS`].
pub fn scale_up(time: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = (u128::from(time) * u128::from(numerator)).div_ceil(u128::from(denominator.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX).min(TIME_MAX_NS)
}

/// Returns the task indices grouped by bundle, in order of first appearance. A task without a bundle is a group of its own.
pub fn bundles(tasks: &[Task]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, task) in tasks.iter().enumerate() {
        match task.bundle.as_deref().and_then(|name| by_name.get(name)) {
            Some(&group) => groups[group].push(index),
            None => {
                if let Some(name) = task.bundle.as_deref() {
                    by_name.insert(name, groups.len());
                }
                groups.push(vec![index]);
            }
        }
    }
    groups
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn platform(cores: u32, partitions: u32, memory_mib: u64, refill_ns: u64) -> Platform {
        Platform::new(cores, partitions, Bytes(memory_mib << 20), refill_ns)
    }

    pub(crate) fn task(name: &str, period_ns: u64, memory_mib: u64, wcet_ns: &[u64]) -> Task {
        Task::new(name.to_owned(), period_ns, Bytes(memory_mib << 20), wcet_ns.to_vec())
    }

    #[test]
    fn equal_priorities_are_ordered_by_deadline_then_by_position() {
        let (set, _) = TaskSet::new(
            platform(1, 1, 64, 1),
            vec![task("a", 300, 1, &[1]), task("b", 100, 1, &[1]), task("c", 100, 1, &[1])],
        )
        .unwrap();
        assert_eq!(set.by_priority(), [1, 2, 0]);
        assert_eq!(set.rank(0), 2);
    }

    #[test]
    fn whole_pages_can_need_a_partition_more_than_the_papers_division() {
        // The rules differ if the capacity is not a whole number of pages: 9 pages over 2 partitions give each partition 4.5
        // pages. By the paper's division, a task of 9 pages takes 4.5 of each, which fits. In whole pages it takes 5 of each,
        // and only 4 fit.
        let machine = Platform { memory: Bytes(9 * 4096), ..platform(1, 2, 64, 1) };
        let nine_pages = Task { memory: Bytes(9 * 4096), ..task("a", 100, 0, &[1, 1]) };
        let (set, _) = TaskSet::new(machine.clone(), vec![nine_pages.clone()]).unwrap();
        assert_eq!(set.fewest_partitions(0), None);
        let (set, _) =
            TaskSet::new(Platform { memory_rule: MemoryRule::Kim2013, ..machine }, vec![nine_pages]).unwrap();
        assert_eq!(set.fewest_partitions(0), Some(2));
    }

    #[test]
    fn a_scaled_time_never_wraps() {
        assert_eq!(scale_up(TIME_MAX_NS, u64::MAX, 1), TIME_MAX_NS);
        assert_eq!(scale_up(10, 11, 10), 11);
        assert_eq!(scale_up(9, 11, 10), 10); // 9.9 rounded up
    }
}
