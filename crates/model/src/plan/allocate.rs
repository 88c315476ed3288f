//! Allocation on one core: the best way to give `k` partitions to a set of tasks. [Kim2013, Algorithm 1], exactly.
//!
//! Partitions are interchangeable: only *which* tasks use a partition matters, so an allocation is a count per nonempty
//! subset of the tasks. Every partition that at least two tasks use costs each of these tasks a warm-up per job. It also
//! costs each of them but the lowest a refill of what the task displaces:
//!
//! ```text
//! U = Σ C(i)^p(i) / T(i) + Σ over shared partitions: Σ 2Δ / T(i) - Δ / T(lowest)
//! ```
//!
//! Tasks are placed from the lowest priority up. A task takes new partitions, which it keeps for itself or opens for others,
//! and joins open ones. Without memory and deadlines, the cheapest completion depends on two numbers only: how many
//! partitions are left and how many are open. So it is tabulated by dynamic programming ([`Completions`]) for all k at once.
//! With memory (Eq. 3) and deadlines (Eq. 2), a branch and bound decides which open partitions are joined. The table is its
//! bound. The analysis of the tasks placed so far prunes it, because further tasks can only delay them.

use crate::analysis::{Analysis, Charges, Conditions, CoreTask, Workspace, core_task, schedulable, utilization};
use crate::replacement::Replacement;
use crate::taskset::{CORE_TASKS_MAX, PartitionSet, Task, TaskSet};

/// Utilizations that differ by less than this count as equal.
pub const TOLERANCE: f64 = 1e-9;

/// Constraints of an allocation besides memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Analysis that tests the deadlines.
    pub analysis: Analysis,
    /// Whether tasks may share partitions.
    pub sharing: bool,
}

impl Rules {
    /// Returns the rules for `set`. Tasks may share partitions if it is known how long a refill takes, which LRU makes so.
    pub(crate) fn of(set: &TaskSet, analysis: Analysis) -> Self {
        Self { analysis, sharing: set.platform().replacement == Replacement::Lru }
    }

    /// Returns whether a utilization above 1 by Eq. 1 proves that this analysis finds a missed deadline. It does if the
    /// delays of Eq. 2 are not less than those of Eq. 1.
    pub(crate) fn overload_is_a_miss(self) -> bool {
        matches!(self.analysis, Analysis::Kim2013 | Analysis::UcbUnion | Analysis::EcbOnly)
    }

    /// Returns rules with a faster analysis that accepts nothing this one rejects; `None` if no such analysis is known.
    pub(crate) fn stricter(self) -> Option<Self> {
        use Analysis::{CombinedMultiset, PersistenceMultiset, UcbUnionMultiset};
        let known = matches!(self.analysis, UcbUnionMultiset | CombinedMultiset | PersistenceMultiset);
        known.then_some(Self { analysis: Analysis::Kim2013, ..self })
    }

    /// Returns the fewest refills that a job pays for joining a partition: the refill of its warm-up, and by some analyses also the refill that it
    /// causes to another task.
    pub(crate) fn least_refills(self) -> f64 {
        match self.analysis {
            _ if self.overload_is_a_miss() => 2.0,
            // A job that finds its partitions warm pays for none.
            Analysis::PersistenceMultiset => 0.0,
            _ => 1.0,
        }
    }

    /// Returns the costs that this analysis charges to jobs.
    pub(crate) fn charges(self, set: &TaskSet) -> Charges {
        Charges::of(set).by(self.analysis)
    }

    /// Returns the cost of preemptions that does not depend on the allocation, in ns: every task but the lowest pays it for
    /// each of its jobs. `members`: the tasks by priority. `jobs`: the number of jobs of each of them.
    pub(crate) fn preemptions_ns(self, set: &TaskSet, members: &[usize], jobs: impl Fn(usize) -> f64) -> f64 {
        let above = members.split_last().map_or(&[][..], |(_, above)| above);
        above.iter().map(|&task| jobs(task)).sum::<f64>() * self.charges(set).preemption_ns as f64
    }
}

/// Least costs of completing an allocation when some tasks are yet to be placed: `at(left, open)`.
#[derive(Clone, Debug)]
pub struct Completions {
    partitions: usize,
    cost: Vec<f64>,
}

impl Completions {
    /// Returns the table for no tasks left to place.
    pub fn none(partitions: u32) -> Self {
        let partitions = partitions as usize;
        Self { partitions, cost: vec![0.0; (partitions + 1) * (partitions + 1)] }
    }

    /// Returns the least utilization of the tasks yet to be placed, with `left` partitions unused and `open` ones to join.
    pub fn at(&self, left: usize, open: usize) -> f64 {
        self.cost[left * (self.partitions + 1) + open]
    }

    /// Returns whether the tasks do not fit even with all partitions.
    pub fn is_hopeless(&self) -> bool {
        self.at(self.partitions, 0) == f64::INFINITY
    }

    /// Returns the table with `task` added. The task has a lower priority than all tasks of this table, and is placed before
    /// them.
    ///
    /// `highest`: whether `task` has the highest priority of all, so that no task is left for which it could open partitions.
    /// `refills`: the number of refills that a job pays for joining a partition; 2 by Eq. 1.
    pub fn before(&self, set: &TaskSet, rules: Rules, task: usize, highest: bool, refills: f64) -> Self {
        self.before_placing(&Placing::new(set, rules, task, 1.0 / set.tasks()[task].period_ns as f64, refills), highest)
    }

    fn before_placing(&self, placing: &Placing, highest: bool) -> Self {
        let most = self.partitions;
        let mut table = Self { partitions: most, cost: vec![f64::INFINITY; self.cost.len()] };
        let mut with_new = vec![f64::INFINITY; most + 1];
        for open in 0..=most {
            for (new, best) in with_new.iter_mut().enumerate().take(most - open + 1) {
                let joined_most = if placing.sharing { open } else { 0 };
                *best = (0..=joined_most).map(|joined| placing.cost(new, joined, 0)).fold(f64::INFINITY, f64::min);
            }
            for left in 0..=most - open {
                let mut best = f64::INFINITY;
                for (new, &cost) in with_new.iter().enumerate().take(left + 1) {
                    let opened_most = if highest || !placing.sharing { 0 } else { new };
                    let row = &self.cost[(left - new) * (most + 1)..][open..=(open + opened_most).min(most)];
                    for (opened, rest) in row.iter().enumerate() {
                        best = best.min(cost + placing.opening * opened as f64 + rest);
                    }
                }
                table.cost[left * (most + 1) + open] = best;
            }
        }
        table
    }
}

/// Costs of placing a task, in the unit in which its jobs are weighed: utilization (a job per period), or time in a window.
struct Placing {
    /// Whether the task may share partitions.
    sharing: bool,
    fewest: usize,
    /// `C^p` for p = 1.., each multiplied by the number of jobs.
    own: Vec<f64>,
    /// Cost of each open partition that the task joins.
    joining: f64,
    /// Cost of each partition that the task opens.
    opening: f64,
}

impl Placing {
    /// Computes the costs of placing `task`. `jobs`: the weight of the task. `refills`: the number of refills that a job pays
    /// for joining a partition.
    fn new(set: &TaskSet, rules: Rules, task: usize, jobs: f64, refills: f64) -> Self {
        let charges = rules.charges(set);
        let (refill, per_job) = (charges.refill_ns as f64, charges.per_job_ns() as f64);
        Self {
            sharing: rules.sharing && !set.tasks()[task].exclusive,
            fewest: set.fewest_partitions(task).map_or(usize::MAX, |count| count as usize),
            own: set.tasks()[task].wcet_ns.iter().map(|&wcet| (wcet as f64 + per_job) * jobs).collect(),
            joining: refills * refill * jobs,
            opening: refill * jobs,
        }
    }

    fn cost(&self, new: usize, joined: usize, opened: usize) -> f64 {
        let count = new + joined;
        if count < self.fewest || count > self.own.len() || count == 0 {
            return f64::INFINITY;
        }
        self.own[count - 1] + self.joining * joined as f64 + self.opening * opened as f64
    }
}

/// An allocation: for each group of tasks, the number of partitions that exactly these tasks use. Bit i stands for the i-th
/// task by priority.
pub type Groups = Vec<(u64, u32)>;

/// Result of [`best`].
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The best allocation found, with its utilization; `None` if none was found.
    pub found: Option<(f64, Groups)>,
    /// Lower bound on the utilization of every allocation; infinite if there is no allocation.
    pub lower: f64,
}

impl Outcome {
    /// Returns the utilization found; infinite if none was found.
    pub fn upper(&self) -> f64 {
        self.found.as_ref().map_or(f64::INFINITY, |found| found.0)
    }
}

/// A window in which the lowest-priority task may complete. By Eq. 2 the task meets its deadline if and only if the demand
/// of one of these windows is no more than its length. Demand is weighed like utilization, by the jobs in the window
/// instead of the jobs per unit of time, so the same kind of table bounds it from below.
struct Window {
    /// End of the window in ns, with room for rounding.
    end_ns: f64,
    placing: Vec<Placing>,
    tables: Vec<Completions>,
    /// Demand that does not depend on the allocation, in ns.
    fixed_ns: f64,
}

impl Window {
    /// Returns the least demand if the `remaining` highest tasks are yet to be placed and the other tasks demand `spent`.
    fn least(&self, remaining: usize, left: usize, open: usize, spent: f64) -> f64 {
        self.fixed_ns + spent + self.tables[remaining].at(left, open)
    }
}

/// Most windows for which tables are made; neighbors are merged if there are more.
const WINDOWS_MAX: usize = 16;
/// Most scheduling points that are considered, both of one task and of all together.
const POINTS_MAX: usize = 4096;

/// Returns the windows that could hold all `members` (by priority) if each had all partitions and paid for none.
fn windows(set: &TaskSet, rules: Rules, members: &[usize], partitions: u32) -> Vec<Window> {
    let task = |index: usize| &set.tasks()[members[index]];
    let lowest = task(members.len() - 1);
    let Some(last) = lowest.deadline_ns.checked_sub(lowest.jitter_ns) else { return Vec::new() };
    let mut points = vec![last];
    for above in members[..members.len() - 1].iter().map(|&task| &set.tasks()[task]) {
        let releases = (1..).map(|job: u64| job.saturating_mul(above.period_ns).saturating_sub(above.jitter_ns));
        points.extend(releases.take_while(|&point| point < last).take(POINTS_MAX).filter(|&point| point > 0));
    }
    points.sort_unstable();
    points.dedup();
    // If there are too many points (some may be cut off), one window serves all of them, with the demand at its start.
    let merged = points.len() > POINTS_MAX;
    let releases = |point: u64, task: &Task| point.saturating_add(task.jitter_ns).div_ceil(task.period_ns);
    let jobs = |point: u64, index: usize| if index + 1 == members.len() { 1 } else { releases(point, task(index)) };
    let per_job = rules.charges(set).per_job_ns() as f64;
    let fixed = |point: u64| {
        let jobs = |task: usize| releases(point, &set.tasks()[task]) as f64;
        lowest.blocking_ns as f64 + rules.preemptions_ns(set, members, jobs)
    };
    let least = |point: u64| -> f64 {
        let own = |index: usize| task(index).wcet_ns[partitions as usize - 1] as f64 + per_job;
        (0..members.len()).map(|index| own(index) * jobs(point, index) as f64).sum::<f64>() + fixed(point)
    };
    let room = |point: u64| point as f64 * (1.0 + TOLERANCE);
    // Each span: the earliest point, at which demand is counted, and the latest point, at which the window ends.
    let mut spans: Vec<(u64, u64)> = if merged {
        vec![(1, last)]
    } else {
        points.into_iter().filter(|&point| least(point) <= room(point)).map(|point| (point, point)).collect()
    };
    let per_window = spans.len().div_ceil(WINDOWS_MAX).max(1);
    spans = spans.chunks(per_window).map(|chunk| (chunk[0].0, chunk[chunk.len() - 1].1)).collect();
    let window = |(first, end): (u64, u64)| {
        let placing: Vec<Placing> = members
            .iter()
            .enumerate()
            .map(|(index, &task)| Placing::new(set, rules, task, jobs(first, index) as f64, rules.least_refills()))
            .collect();
        let mut tables = vec![Completions::none(partitions)];
        for (index, placing) in placing.iter().enumerate() {
            let next = tables[index].before_placing(placing, index == 0);
            tables.push(next);
        }
        Window { end_ns: room(end), placing, tables, fixed_ns: fixed(first) }
    };
    spans.into_iter().map(window).collect()
}

/// Goal and limits of a search.
#[derive(Clone, Copy)]
pub struct Effort<'a> {
    /// Whether to stop at the first allocation found.
    pub any: bool,
    /// Allocations with this utilization or more are not considered.
    pub cutoff: f64,
    /// Most nodes to visit.
    pub nodes: u64,
    /// Called now and then; the search stops if it returns true.
    pub should_stop: &'a (dyn Fn() -> bool + Sync),
}

impl Effort<'static> {
    /// Searches until the optimum is found.
    pub const EXACT: Self = Self { any: false, cutoff: f64::INFINITY, nodes: u64::MAX, should_stop: &|| false };
}

/// Returns one table for each number of tasks yet to be placed: `[i]` is for the i highest of `members`.
pub fn completions(set: &TaskSet, rules: Rules, members: &[usize], partitions: u32) -> Vec<Completions> {
    let mut tables = vec![Completions::none(partitions)];
    for (index, &task) in members.iter().enumerate() {
        let next = tables[index].before(set, rules, task, index == 0, 2.0);
        tables.push(next);
    }
    tables
}

/// Finds the allocation of `partitions` to `members` (by priority) that has the least utilization (Eq. 1) and satisfies Eq.
/// 3 and Eq. 2, or the analysis chosen instead of Eq. 2.
pub fn best(set: &TaskSet, rules: Rules, members: &[usize], partitions: u32, effort: Effort) -> Outcome {
    if members.is_empty() {
        return Outcome { found: Some((0.0, Vec::new())), lower: 0.0 };
    }
    if members.len() > CORE_TASKS_MAX || partitions == 0 {
        return Outcome { found: None, lower: f64::INFINITY };
    }
    let windows = windows(set, rules, members, partitions);
    if windows.iter().all(|window| window.least(members.len(), partitions as usize, 0, 0.0) > window.end_ns) {
        return Outcome { found: None, lower: f64::INFINITY };
    }
    let tables = completions(set, rules, members, partitions);
    let base = CoreTask {
        partitions: PartitionSet::default(),
        useful: PartitionSet::default(),
        ..fullest(set, members[0], partitions)
    };
    let mut search = Search {
        set,
        rules,
        members,
        charges: rules.charges(set),
        capacity: set.capacity(),
        tables: &tables,
        placing: members
            .iter()
            .map(|&task| Placing::new(set, rules, task, 1.0 / set.tasks()[task].period_ns as f64, 2.0))
            .collect(),
        spent: vec![0.0; windows.len()],
        windows,
        memory: members.iter().map(|&task| set.memory_per_partition(task, 1)).collect(),
        // The tasks yet to be placed are given all partitions without the delays, so that they demand the least.
        core: members.iter().map(|&task| CoreTask { ..unplaced(set, task, partitions) }).collect(),
        workspace: Workspace::default(),
        effort,
        nodes: 0,
        abandoned: f64::INFINITY,
        found: None,
        base,
        done: false,
    };
    let limit = if rules.overload_is_a_miss() { 1.0 + TOLERANCE } else { f64::INFINITY };
    search.effort.cutoff = effort.cutoff.min(limit);
    let preemptions = rules.preemptions_ns(set, members, |task| 1.0 / set.tasks()[task].period_ns as f64);
    search.place(members.len(), partitions as usize, preemptions, &[]);
    let found = search.found;
    // Every allocation was seen, or was abandoned at a known bound, or is not below the cutoff.
    let seen = found.as_ref().map_or(f64::INFINITY, |found: &(f64, Groups)| found.0);
    let unseen = if effort.cutoff < limit { effort.cutoff } else { f64::INFINITY };
    Outcome { lower: seen.min(search.abandoned).min(unseen), found }
}

fn fullest(set: &TaskSet, task: usize, partitions: u32) -> CoreTask {
    core_task(set, task, PartitionSet::range(0, partitions))
}

fn unplaced(set: &TaskSet, task: usize, partitions: u32) -> CoreTask {
    CoreTask { partitions: PartitionSet::default(), useful: PartitionSet::default(), ..fullest(set, task, partitions) }
}

#[derive(Clone, Copy, Debug)]
struct Group {
    users: u64,
    count: u32,
    /// Memory that the users of the group take of each of its partitions.
    load: u64,
    /// Whether other tasks may join.
    open: bool,
}

struct Search<'a> {
    set: &'a TaskSet,
    rules: Rules,
    members: &'a [usize],
    charges: Charges,
    capacity: u64,
    tables: &'a [Completions],
    placing: Vec<Placing>,
    memory: Vec<u64>,
    core: Vec<CoreTask>,
    workspace: Workspace,
    windows: Vec<Window>,
    /// Demand of the tasks placed so far on each window.
    spent: Vec<f64>,
    effort: Effort<'a>,
    nodes: u64,
    /// Least lower bound of the branches that were not searched because the effort ran out.
    abandoned: f64,
    found: Option<(f64, Groups)>,
    base: CoreTask,
    done: bool,
}

/// Placement of a task, without the choice of the open partitions that the task joins.
#[derive(Clone, Copy)]
struct Step {
    bound: f64,
    kept: u32,
    opened: u32,
    joined: u32,
}

impl Search<'_> {
    fn cutoff(&self) -> f64 {
        self.effort.cutoff.min(self.found.as_ref().map_or(f64::INFINITY, |found| found.0)) - TOLERANCE
    }

    /// Places the lowest of the `remaining` highest tasks at every position that may be the best, and then the tasks above it.
    fn place(&mut self, remaining: usize, left: usize, cost: f64, groups: &[Group]) {
        if remaining == 0 {
            self.complete(groups);
            return;
        }
        // The memory not yet taken must hold the tasks that are yet to be placed.
        let free = groups
            .iter()
            .filter(|group| group.open)
            .map(|group| u64::from(group.count).saturating_mul(self.capacity - group.load))
            .fold((left as u64).saturating_mul(self.capacity), u64::saturating_add);
        if self.memory[..remaining].iter().fold(0, |sum: u64, memory| sum.saturating_add(*memory)) > free {
            return;
        }
        let task = remaining - 1;
        let open: u32 = groups.iter().filter(|group| group.open).map(|group| group.count).sum();
        let sharing = self.placing[task].sharing;
        let mut steps = Vec::new();
        for new in 0..=left as u32 {
            let opened_most = if task == 0 || !sharing { 0 } else { new };
            for joined in 0..=if sharing { open } else { 0 } {
                let own = self.placing[task].cost(new as usize, joined as usize, 0);
                if own == f64::INFINITY {
                    continue;
                }
                for opened in 0..=opened_most {
                    let rest = self.tables[task].at(left - new as usize, (open + opened) as usize);
                    let bound = cost + own + self.placing[task].opening * f64::from(opened) + rest;
                    if bound < self.cutoff() {
                        steps.push(Step { bound, kept: new - opened, opened, joined });
                    }
                }
            }
        }
        steps.sort_by(|a, b| a.bound.total_cmp(&b.bound));
        for step in steps {
            if self.done || step.bound >= self.cutoff() {
                break;
            }
            if self.nodes >= self.effort.nodes {
                self.abandoned = self.abandoned.min(step.bound);
                break;
            }
            let count = step.kept + step.opened + step.joined;
            let load = self.set.memory_per_partition(self.members[task], count);
            if load > self.capacity {
                continue;
            }
            let (new, after) = (step.kept + step.opened, left - (step.kept + step.opened) as usize);
            let price = move |placing: &Placing| placing.cost(new as usize, step.joined as usize, step.opened as usize);
            let mut fits = false;
            for (window, spent) in self.windows.iter().zip(&mut self.spent) {
                *spent += price(&window.placing[task]);
                fits |= window.least(task, after, (open + step.opened) as usize, *spent) <= window.end_ns;
            }
            if !fits {
                self.unspend(task, price);
                continue;
            }
            let cost = cost + price(&self.placing[task]);
            let mut next = Vec::with_capacity(groups.len() * 2 + 2);
            self.core[task] = core_task(self.set, self.members[task], PartitionSet::range(0, count));
            self.join(task, left, cost, step, load, groups, 0, step.joined, &mut next);
            self.core[task] = unplaced(self.set, self.members[task], self.tables[0].partitions as u32);
            self.unspend(task, price);
        }
    }

    fn unspend(&mut self, task: usize, price: impl Fn(&Placing) -> f64) {
        for (window, spent) in self.windows.iter().zip(&mut self.spent) {
            *spent -= price(&window.placing[task]);
        }
    }

    /// Chooses which open partitions `task` joins: `joined` of them, among the groups from index `from` on.
    #[allow(clippy::too_many_arguments)]
    fn join(
        &mut self,
        task: usize,
        left: usize,
        cost: f64,
        step: Step,
        load: u64,
        groups: &[Group],
        from: usize,
        joined: u32,
        next: &mut Vec<Group>,
    ) {
        if self.done {
            return;
        }
        let Some(group) = groups.get(from) else {
            if joined == 0 {
                self.descend(task, left, cost, step, load, next);
            }
            return;
        };
        let room = if group.open && group.load + load <= self.capacity { group.count } else { 0 };
        let later: u32 = groups[from + 1..]
            .iter()
            .filter(|group| group.open && group.load + load <= self.capacity)
            .map(|group| group.count)
            .sum();
        let fewest = joined.saturating_sub(later);
        // Join many partitions of the first, widely shared groups first. This tends to be the cheapest choice that satisfies
        // Eq. 2.
        for take in (fewest..=room.min(joined)).rev() {
            let mark = next.len();
            if take > 0 {
                next.push(Group { users: group.users | 1 << task, count: take, load: group.load + load, open: true });
            }
            if take < group.count {
                next.push(Group { count: group.count - take, ..*group });
            }
            self.join(task, left, cost, step, load, groups, from + 1, joined - take, next);
            next.truncate(mark);
        }
    }

    fn descend(&mut self, task: usize, left: usize, cost: f64, step: Step, load: u64, next: &mut Vec<Group>) {
        self.nodes += 1;
        if self.nodes.is_multiple_of(256) && (self.effort.should_stop)() {
            self.effort.nodes = 0;
        }
        if self.nodes > self.effort.nodes {
            self.abandoned = self.abandoned.min(step.bound);
            return;
        }
        let mark = next.len();
        for (count, open) in [(step.kept, false), (step.opened, true)] {
            if count > 0 {
                next.push(Group { users: 1 << task, count, load, open });
            }
        }
        self.assign(next, task);
        let conditions = Conditions { charges: self.charges, ..Conditions::of(self.set) };
        let mut passes = |rules: Rules| schedulable(&self.core, conditions, rules.analysis, &mut self.workspace);
        if self.rules.stricter().is_some_and(&mut passes) || passes(self.rules) {
            let groups = next.clone();
            self.place(task, left - (step.kept + step.opened) as usize, cost, &groups);
        }
        next.truncate(mark);
    }

    /// Assigns the partitions of the groups, numbered consecutively, to the tasks from index `lowest_placed` on.
    fn assign(&mut self, groups: &[Group], lowest_placed: usize) {
        for task in &mut self.core[lowest_placed..] {
            (task.partitions, task.useful) = (self.base.partitions, self.base.useful);
        }
        let mut first = 0;
        for group in groups {
            for (index, task) in self.core.iter_mut().enumerate().skip(lowest_placed) {
                if group.users >> index & 1 == 1 {
                    for partition in first..first + group.count {
                        task.partitions.insert(partition);
                    }
                    task.useful = task.partitions;
                }
            }
            first += group.count;
        }
    }

    /// Records the allocation if it is better than the best so far. All tasks are placed, and [`descend`](Self::descend)
    /// has analyzed them.
    fn complete(&mut self, groups: &[Group]) {
        // A partition that was opened and never joined means the same allocation as one that was kept, which is cheaper.
        if groups.iter().any(|group| group.open && group.users.count_ones() == 1) {
            return;
        }
        let utilization = utilization(&self.core, self.charges);
        if utilization < self.cutoff() {
            let mut merged: Groups = Vec::new();
            for group in groups {
                match merged.iter_mut().find(|(users, _)| *users == group.users) {
                    Some((_, count)) => *count += group.count,
                    None => merged.push((group.users, group.count)),
                }
            }
            self.found = Some((utilization, merged));
            self.done = self.effort.any;
        }
    }
}
