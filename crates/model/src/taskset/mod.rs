//! The task model of [Kim2013, §2.3]: what a real-time task needs of a core and of a partitioned cache.
//!
//! A cache of `N_P` partitions (page colors, or ways) is shared out among tasks. Giving a task a partition also gives it
//! the memory of that color, `M_total / N_P`, so partitions are counted twice: as cache, and as memory.

mod check;
pub mod generate;
pub(crate) mod locks;
pub mod partitions;
pub mod programs;
pub mod read;
mod refills;
pub mod rtapp;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, CpuId};
use check::{check_platform, check_task, complete_curve};
pub use locks::{Hold, Holds, LOCKS_MAX, Lock};
use locks::{check_locks, numbered};
pub use partitions::{PARTITIONS_MAX, PartitionSet};
pub use refills::{RefillChoice, RefillKind, Refills};

/// No time in a task set exceeds this. Sums of times saturate far above it, so that a sum too large to represent still
/// compares as "later than every deadline", which is the truth about it.
pub const TIME_MAX_NS: u64 = i64::MAX as u64;

/// Tasks that one core can run, at most: every one needs a SCHED_FIFO priority of its own.
///
/// `run` gives tasks the priorities 2 to 47. Below them is the lowest that Linux has; from 48 up, jobs are released and
/// the kernel does its own work. Two tasks of one priority would run in the order of their releases, for which no bound
/// here holds.
pub const CORE_TASKS_MAX: usize = 46;

/// Fields of a file that whoever reads it carries along for others, by name.
pub type Others = BTreeMap<String, serde_json::Value>;

/// Tasks that [`TaskSet::copied`] makes, at most.
const COPIES_MAX: usize = 100_000;

/// Whose partitions they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One cache behind all cores (an L3): a partition belongs to one core.
    #[default]
    Shared,
    /// A cache in every core (an L2): each core has all `N_P` partitions, and `1 / N_C` of the memory of each.
    Private,
}

/// How much of a partition's memory a task takes. [Kim2013, eq. 3]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryRule {
    /// Whole pages, dealt round-robin: the fullest partition gets `ceil(pages / |S|)`.
    #[default]
    Pages,
    /// The paper's `M / |S|`, a real number.
    Kim2013,
}

/// The machine, as far as planning sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Cores, `N_C`.
    pub cores: u32,
    /// Cache partitions, `N_P`: of the shared cache, or of each core's own.
    pub partitions: u32,
    /// Memory that is colored, `M_total`.
    pub memory: Bytes,
    /// Time to refill one partition that bounds charge, Δ.
    pub refill_ns: u64,
    /// The refill times known, Δ being one of them or given apart.
    pub refills: Refills,
    /// Cost of one context switch; a job pays for two.
    pub switch_ns: u64,
    /// Time that the interrupt which releases a job takes from whatever runs on that core, in ns.
    pub release_interrupt_ns: u64,
    /// Longest time to refill the private levels (L1, TLB) that other tasks displaced, in ns: paid at the start of a job
    /// and after each preemption, whichever partitions tasks have.
    pub preemption_ns: u64,
    /// Whose partitions they are.
    pub scope: Scope,
    /// Page size.
    pub page: Bytes,
    /// Which form of Eq. 3.
    pub memory_rule: MemoryRule,
    /// Whether bounds must also hold for the first jobs after start, which find even private partitions cold.
    pub cold_start: bool,
}

/// A periodic or sporadic task, `τ = {C^p, T, D, M}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its name, unique in the set.
    pub name: String,
    /// Shortest time between releases, T.
    pub period_ns: u64,
    /// Relative deadline, `D <= T`.
    pub deadline_ns: u64,
    /// Memory it must have, M.
    pub memory: Bytes,
    /// `wcet_ns[p - 1]` is `C^p`, its worst-case execution time alone with p warm partitions; non-increasing.
    pub wcet_ns: Vec<u64>,
    /// Longest delay between arrival and release.
    pub jitter_ns: u64,
    /// Longest time that one lower-priority task of its core executes while it holds something that this task waits for,
    /// in ns. Which task that is, is not known: bounds charge the footprint of all of them. See [`locks`](Self::locks).
    pub blocking_ns: u64,
    /// Longest stretch in which it cannot be preempted.
    pub nonpreemptive_ns: u64,
    /// Locks it takes, under the immediate priority ceiling protocol.
    pub locks: Vec<Lock>,
    /// Priority as in SCHED_FIFO: the larger number runs first. Either all tasks have one or none.
    pub priority: Option<u32>,
    /// Tasks of one bundle share memory and stay on one core. [Kim2013, §4.5]
    pub bundle: Option<String>,
    /// No other task uses its partitions.
    pub exclusive: bool,
}

impl Task {
    /// A task with its deadline at the end of its period, and nothing that the other fields tell.
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

/// What is wrong with a task set. `place` names the field, such as `tasks[2].deadline_ns`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Invalid {
    /// The field.
    pub place: String,
    /// What is wrong with its value, and a hint.
    pub problem: String,
}

impl Invalid {
    fn at(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }
}

impl TaskSet {
    /// Checks tasks and platform. Also returns warnings: curves that had to be raised or extended.
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
        for (place, &task) in order.iter().enumerate() {
            rank[task] = place;
        }
        let holds = numbered(&tasks);
        Ok((Self { platform, tasks, order, rank, holds }, warnings))
    }

    /// The machine.
    pub fn platform(&self) -> &Platform {
        &self.platform
    }

    /// The tasks, in the order given.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Indices of the tasks, highest priority first: by priority, then deadline, then position.
    pub fn by_priority(&self) -> &[usize] {
        &self.order
    }

    /// Place of each task in [`by_priority`](Self::by_priority).
    pub fn rank(&self, task: usize) -> usize {
        self.rank[task]
    }

    /// The locks of `task`, by numbers that hold for the whole set.
    pub fn holds(&self, task: usize) -> Holds {
        self.holds[task]
    }

    /// The same tasks on another machine, checked again.
    pub fn on(&self, platform: Platform) -> Result<Self, Invalid> {
        Ok(Self::new(platform, self.tasks.clone())?.0)
    }

    /// The set with every execution time scaled by `numerator / denominator`, rounded up.
    ///
    /// Times stop at [`TIME_MAX_NS`], which no deadline can accommodate.
    pub fn with_wcet_scaled(&self, numerator: u64, denominator: u64) -> Self {
        let mut scaled = self.clone();
        for time in scaled.tasks.iter_mut().flat_map(|task| task.wcet_ns.iter_mut()) {
            *time = scale_up(*time, numerator, denominator);
        }
        scaled
    }

    /// Every task `copies` times (at least once), as [Kim2013, §5.5] makes larger sets; copies are numbered in the names.
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

    /// The set with a machine of `count` of its partitions, each as large as it was.
    ///
    /// Panics if `count` is none or more than there are.
    pub(crate) fn with_partitions(&self, count: u32) -> Self {
        assert!((1..=self.platform.partitions).contains(&count), "{count} of {} partitions", self.platform.partitions);
        let mut changed = self.clone();
        changed.platform.memory =
            Bytes(self.platform.memory.0 / u64::from(self.platform.partitions) * u64::from(count));
        changed.platform.partitions = count;
        changed.tasks.iter_mut().for_each(|task| task.wcet_ns.truncate(count as usize));
        changed
    }

    /// The set with the tasks of a bundle taken apart: free to run anywhere, each with partitions of its own.
    /// [Kim2013, §4.5]
    pub(crate) fn with_bundle_apart(&self, bundle: &str) -> Self {
        let mut changed = self.clone();
        for task in changed.tasks.iter_mut().filter(|task| task.bundle.as_deref() == Some(bundle)) {
            (task.bundle, task.exclusive) = (None, true);
        }
        changed
    }

    /// The set with tasks that must run on one CPU bundled, so that a plan keeps them together; their bundles come with them.
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

    /// The set with priorities in the given order of its tasks, highest first; those left out come last.
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

    /// The set with another refill time Δ.
    pub fn with_refill(&self, refill_ns: u64) -> Self {
        let mut changed = self.clone();
        changed.platform.refill_ns = refill_ns.min(TIME_MAX_NS);
        changed
    }

    /// Memory of one partition that one core can use.
    pub fn partition_memory(&self) -> Bytes {
        let Platform { memory, partitions, cores, scope, .. } = self.platform;
        match scope {
            Scope::Shared => Bytes(memory.0 / u64::from(partitions)),
            Scope::Private => Bytes(memory.0 / u64::from(partitions) / u64::from(cores)),
        }
    }

    /// What `task` takes of each of its `count` partitions, against [`capacity`](Self::capacity). [Kim2013, eq. 3]
    ///
    /// In pages, or, for the paper's form, in 2^-20 pages (rounded up).
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

    /// What one partition holds, in the unit of [`memory_per_partition`](Self::memory_per_partition).
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

    /// Fewest partitions whose memory holds `task` alone; `None` if even all of them are too small.
    pub fn fewest_partitions(&self, task: usize) -> Option<u32> {
        (1..=self.platform.partitions).find(|&count| self.memory_per_partition(task, count) <= self.capacity())
    }
}

/// `time * numerator / denominator`, rounded up, at most [`TIME_MAX_NS`].
pub fn scale_up(time: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = (u128::from(time) * u128::from(numerator)).div_ceil(u128::from(denominator.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX).min(TIME_MAX_NS)
}

/// Task indices grouped by bundle, tasks without one alone; in order of first appearance.
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
        Platform {
            cores,
            partitions,
            memory: Bytes(memory_mib << 20),
            refill_ns,
            refills: Refills::default(),
            switch_ns: 0,
            release_interrupt_ns: 0,
            preemption_ns: 0,
            scope: Scope::Shared,
            page: Bytes(4096),
            memory_rule: MemoryRule::Pages,
            cold_start: false,
        }
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
        // 3 partitions of 2 pages; a task of 5 pages: 5/3 = 1.67 <= 2 fits in pages too (ceil 2).
        // With partitions of 5 pages and a task of 11 pages on 2 partitions: 5.5 > 5 fails both; 3 partitions: 3.67, ceil 4.
        // They differ where capacity is not whole: 9 pages over 2 partitions is 4.5 pages of capacity each.
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
