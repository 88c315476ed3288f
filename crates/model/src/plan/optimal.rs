//! The best plan, with a proof.
//!
//! A *column* is a set of tasks on one core with k partitions; its cost is the least utilization of
//! [`allocate::best`](super::allocate::best). A plan is a partition of the tasks into at most `N_C` columns with at most
//! `N_P` partitions together. Exact costs are expensive, and lower bounds (the tables of
//! [`Completions`](super::allocate::Completions), memory) are cheap, so:
//!
//! 1. every column starts with its lower bound;
//! 2. dynamic programming finds the plan of least total bound, a lower bound on every plan;
//! 3. the columns of *that* plan are evaluated exactly, and their bounds raised;
//! 4. repeat until the columns chosen are all exact: the plan is optimal.
//!
//! Any time it stops, the last total is a proven bound, and the best plan seen is the incumbent. Identical tasks are
//! counted, not distinguished, which shrinks 2^16 subsets of a set of four tasks taken four times to 5^4.
//! Where there are too many columns to distribute partitions exactly, partitions are priced (Lagrange) instead, and the
//! bound keeps the duality gap.

use std::collections::HashMap;

use rayon::prelude::*;

use super::allocate::{Completions, Effort, Groups, Outcome, Rules, TOLERANCE, best};
use super::heuristics::{Growth, cata};
use super::{Objective, Request, Share, Solution};
use crate::analysis::sensitivity::{Change, last_that_holds};
use crate::analysis::{Charges, core_tasks, utilization};
use crate::taskset::{Scope, TIME_MAX_NS, Task, TaskSet, bundles};

/// States up to which partitions are distributed exactly.
const EXACT_STATES_MAX: usize = 3_000;
/// States up to which there is a bound at all.
const STATES_MAX: usize = 1 << 16;
/// Nodes of the first look at a column; doubled whenever they do not suffice.
const COLUMN_NODES: u64 = 100_000;
/// Splits whose columns are evaluated at once, where finding splits is what takes long.
const ALTERNATIVES: usize = 16;
/// How well the price of a partition is determined.
const PRICE_STEP: f64 = 1e-7;

/// How far the search has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The best value found, in the unit of the objective.
    pub best: Option<f64>,
    /// No plan is better than this.
    pub bound: f64,
}

pub(crate) fn solve(set: &TaskSet, rules: Rules, objective: Objective, request: &Request) -> Solution {
    match objective {
        Objective::Partitions => {
            let fewest = fewest_partitions(set, rules, request);
            let (Some(shares), Some(least)) = (&fewest.shares, fewest.value) else { return fewest.into_solution() };
            // Among the plans with that many partitions, one of least utilization; the proof is about the number.
            let within = least_utilization(set, rules, request, least as u32, Some(shares.clone()));
            Solution { shares: within.shares.or(fewest.shares), bound: fewest.bound, grown: None, unplaced: Vec::new() }
        }
        Objective::Utilization => {
            let mut start = cata(set, rules, set.platform().partitions, request, true).ok();
            if let Some(stricter) = rules.stricter() {
                start = least_utilization(set, stricter, request, set.platform().partitions, start).shares;
            }
            least_utilization(set, rules, request, set.platform().partitions, start).into_solution()
        }
        Objective::Margin | Objective::Refill => largest(Growth::of(objective, set), set, rules, request),
    }
}

struct Found {
    shares: Option<Vec<Share>>,
    value: Option<f64>,
    bound: Option<f64>,
    tasks: usize,
}

impl Found {
    fn into_solution(self) -> Solution {
        let unplaced = if self.shares.is_some() { Vec::new() } else { (0..self.tasks).collect() };
        Solution { shares: self.shares, bound: self.bound.filter(|bound| bound.is_finite()), grown: None, unplaced }
    }
}

/// Tasks by kind: what the columns are made of.
struct Kinds {
    /// Per kind, its copies: bundles of tasks.
    copies: Vec<Vec<Vec<usize>>>,
    strides: Vec<usize>,
    states: usize,
}

impl Kinds {
    /// `None` if there are too many states.
    fn of(set: &TaskSet) -> Option<Self> {
        let tasks = set.tasks();
        let same = |a: &Task, b: &Task| {
            Task { name: String::new(), bundle: None, ..a.clone() }
                == Task { name: String::new(), bundle: None, ..b.clone() }
        };
        let level = |task: &Task| (task.priority, task.deadline_ns);
        let mut copies: Vec<Vec<Vec<usize>>> = Vec::new();
        for item in bundles(tasks) {
            // Copies are interchangeable only if nothing else stands between them in the order of priorities.
            let alone = item.iter().all(|&task| {
                tasks.iter().all(|other| level(other) != level(&tasks[task]) || same(other, &tasks[task]))
            });
            let kind = copies.iter_mut().filter(|_| alone).find(|kind| {
                kind[0].len() == item.len() && kind[0].iter().zip(&item).all(|(&a, &b)| same(&tasks[a], &tasks[b]))
            });
            match kind {
                Some(kind) => kind.push(item),
                None => copies.push(vec![item]),
            }
        }
        let mut strides = Vec::new();
        let mut states: usize = 1;
        for kind in &copies {
            strides.push(states);
            states = states.checked_mul(kind.len() + 1).filter(|&states| states <= STATES_MAX)?;
        }
        Some(Self { copies, strides, states })
    }

    fn counts(&self, state: usize) -> impl Iterator<Item = usize> + '_ {
        self.copies.iter().zip(&self.strides).map(move |(kind, stride)| state / stride % (kind.len() + 1))
    }

    /// The tasks of a state if its copies are those from `taken` on; by priority.
    fn members(&self, set: &TaskSet, state: usize, taken: &[usize]) -> Vec<usize> {
        let mut members = Vec::new();
        for (kind, count) in self.counts(state).enumerate() {
            members.extend(self.copies[kind][taken[kind]..taken[kind] + count].iter().flatten().copied());
        }
        members.sort_by_key(|&task| set.rank(task));
        members
    }

    /// Calls `visit` with every sub-state of `state` that has a copy of its first kind (one of the cores must), and more.
    fn visit_parts(&self, state: usize, mut visit: impl FnMut(usize)) {
        let counts: Vec<usize> = self.counts(state).collect();
        let Some(first) = counts.iter().position(|&count| count > 0) else { return };
        let mut part: Vec<usize> = vec![0; counts.len()];
        part[first] = 1;
        let mut index = self.strides[first];
        'parts: loop {
            visit(index);
            for kind in first..counts.len() {
                if part[kind] < counts[kind] {
                    part[kind] += 1;
                    index += self.strides[kind];
                    continue 'parts;
                }
                let least = usize::from(kind == first);
                index -= (part[kind] - least) * self.strides[kind];
                part[kind] = least;
            }
            break;
        }
    }

    /// The best way to split all tasks over at most `cores` columns: the total, and the columns. With it come the best
    /// ways that begin with other columns, up to `count` ways in all.
    fn split(&self, cores: u32, cost: &[f64], add: fn(f64, f64) -> f64, count: usize) -> Vec<(f64, Vec<usize>)> {
        let all = self.states - 1;
        // tables[c][state]: the best over at most c + 1 cores.
        let mut tables = vec![cost.to_vec()];
        tables[0][0] = 0.0;
        let least = |table: &[f64], state: usize| {
            let mut least = (f64::INFINITY, 0);
            self.visit_parts(state, |part| {
                let total = add(cost[part], table[state - part]);
                if total < least.0 {
                    least = (total, part);
                }
            });
            least
        };
        let cores = (cores as usize).min(self.copies.iter().map(Vec::len).sum());
        for _ in 1..cores.saturating_sub(1) {
            let last = tables.last().expect("there is a first");
            let next: Vec<f64> = (0..self.states)
                .into_par_iter()
                .map(|state| if state == 0 { 0.0 } else { least(last, state).0 })
                .collect();
            tables.push(next);
        }
        let Some(top) = cores.checked_sub(2) else { return vec![(cost[all], vec![all])] };
        let mut firsts = Vec::new();
        self.visit_parts(all, |part| firsts.push((add(cost[part], tables[top][all - part]), part)));
        firsts.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let follow = |(total, first): (f64, usize)| {
            let (mut columns, mut state) = (vec![first], all - first);
            for level in (0..=top).rev().take_while(|_| total < f64::INFINITY) {
                if state == 0 {
                    break;
                }
                let part = if level == 0 { state } else { least(&tables[level - 1], state).1 };
                columns.push(part);
                state -= part;
            }
            (total, columns)
        };
        // Alternatives that are none have no columns; the first tells that there is no way at all.
        let ways = firsts.iter().take(count).take_while(|way| way.0 < f64::INFINITY).count().max(1);
        firsts.into_iter().take(ways).map(follow).collect()
    }

    /// The columns with the tasks they stand for.
    fn shares(&self, set: &TaskSet, columns: &[(usize, Groups)]) -> Vec<Share> {
        let mut taken = vec![0; self.copies.len()];
        let mut shares = Vec::new();
        for (state, groups) in columns {
            shares.push(Share { members: self.members(set, *state, &taken), groups: groups.clone() });
            for (taken, count) in taken.iter_mut().zip(self.counts(*state)) {
                *taken += count;
            }
        }
        shares
    }
}

/// Lower bounds of all columns: `[state * (K + 1) + k]`, non-increasing in k.
fn column_bounds(set: &TaskSet, rules: Rules, kinds: &Kinds, partitions: u32) -> Vec<f64> {
    let width = partitions as usize + 1;
    let zero = vec![0; kinds.copies.len()];
    let mut ordered: Vec<(Vec<usize>, usize)> = (0..kinds.states)
        .map(|state| (kinds.members(set, state, &zero).iter().map(|&task| set.rank(task)).collect(), state))
        .collect();
    // In this order a state follows those that begin with the same tasks, so their tables can be continued.
    ordered.sort_unstable();
    let capacity = set.capacity();
    let chunks: Vec<&[(Vec<usize>, usize)]> = ordered.chunk_by(|a, b| a.0.first() == b.0.first()).collect();
    let parts: Vec<Vec<(usize, Vec<f64>)>> = chunks
        .into_par_iter()
        .map(|chunk| {
            // By Eq. 1, and with what is certain to be paid by the analysis chosen: beyond 1, somebody is late.
            let mut stack: Vec<(usize, Completions, Completions)> = Vec::new();
            let mut rows = Vec::new();
            for (ranks, state) in chunk {
                let common = stack.iter().zip(ranks).take_while(|((a, ..), b)| a == *b).count();
                stack.truncate(common);
                for (place, &rank) in ranks.iter().enumerate().skip(common) {
                    let task = set.by_priority()[rank];
                    let none = Completions::none(partitions);
                    let (above, least) = stack.last().map_or((&none, &none), |(_, above, least)| (above, least));
                    // Nothing can be saved below a set that does not fit.
                    let next = |above: &Completions, refills| match above.is_hopeless() {
                        true => above.clone(),
                        false => above.before(set, rules, task, place == 0, refills),
                    };
                    let table = next(above, 2.0);
                    let least = if rules.overload_is_a_miss() { table.clone() } else { next(least, 1.0) };
                    stack.push((rank, table, least));
                }
                let memory = ranks
                    .iter()
                    .map(|&rank| set.memory_per_partition(set.by_priority()[rank], 1))
                    .fold(0, u64::saturating_add);
                let row = (0..width).map(|k| match stack.last() {
                    None => 0.0,
                    Some((_, table, least)) => {
                        let bound = table.at(k, 0);
                        if least.at(k, 0) > 1.0 + TOLERANCE || memory > (k as u64).saturating_mul(capacity) {
                            f64::INFINITY
                        } else {
                            bound
                        }
                    }
                });
                rows.push((*state, row.collect()));
            }
            rows
        })
        .collect();
    let mut bounds = vec![f64::INFINITY; kinds.states * width];
    for (state, row) in parts.into_iter().flatten() {
        bounds[state * width..][..width].copy_from_slice(&row);
    }
    bounds
}

fn worth(set: &TaskSet, rules: Rules, shares: &[Share]) -> f64 {
    let charges = Charges { refill_ns: rules.refill_ns(set), ..Charges::of(set) };
    shares.iter().map(|share| utilization(&core_tasks(set, &share.sets(0)), charges)).sum()
}

fn fewest_partitions(set: &TaskSet, rules: Rules, request: &Request) -> Found {
    let platform = set.platform();
    let most = platform.partitions;
    let tasks = set.tasks().len();
    let counted = |shares: &[Share]| {
        let counts = shares.iter().map(Share::partitions);
        f64::from(if platform.scope == Scope::Shared { counts.sum::<u32>() } else { counts.max().unwrap_or(0) })
    };
    let fallback = |bound: Option<f64>| {
        let shares = cata(set, rules, most, request, false).ok();
        let value = shares.as_deref().map(counted);
        Found { value, shares, bound, tasks }
    };
    let memory = (0..tasks).map(|task| set.memory_per_partition(task, 1)).fold(0, u64::saturating_add);
    let by_memory = (memory as f64 / set.capacity() as f64).ceil();
    let Some(kinds) = Kinds::of(set) else {
        return fallback(Some(if platform.scope == Scope::Shared { by_memory } else { 1.0 }));
    };
    let bounds = column_bounds(set, rules, &kinds, most);
    let width = most as usize + 1;
    // The fewest partitions that are not excluded; proven, and as assumed while a column could not be decided.
    let mut proven: Vec<f64> = (0..kinds.states)
        .map(|state| (0..width).find(|k| bounds[state * width + k] < f64::INFINITY).map_or(f64::INFINITY, |k| k as f64))
        .collect();
    let mut assumed = proven.clone();
    let mut exact: HashMap<usize, Groups> = HashMap::from([(0, Vec::new())]);
    let add: fn(f64, f64) -> f64 = if platform.scope == Scope::Shared { |a, b| a + b } else { f64::max };
    let zero = vec![0; kinds.copies.len()];
    loop {
        let (total, columns) = kinds.split(platform.cores, &assumed, add, 1).swap_remove(0);
        let bound = kinds.split(platform.cores, &proven, add, 1)[0].0;
        if total > f64::from(most) {
            return Found { shares: None, value: None, bound: Some(bound), tasks };
        }
        (request.progress)(Progress { best: None, bound });
        let open: Vec<usize> = columns.iter().copied().filter(|state| !exact.contains_key(state)).collect();
        if open.is_empty() {
            let columns: Vec<(usize, Groups)> = columns.iter().map(|&state| (state, exact[&state].clone())).collect();
            let shares = kinds.shares(set, &columns);
            return Found { value: Some(counted(&shares)), shares: Some(shares), bound: Some(bound), tasks };
        }
        if (request.should_stop)() {
            return fallback(Some(bound));
        }
        let effort = Effort { any: true, nodes: COLUMN_NODES * 10, should_stop: request.should_stop, ..Effort::EXACT };
        let looked: Vec<(usize, Outcome)> = open
            .par_iter()
            .map(|&state| (state, best(set, rules, &kinds.members(set, state, &zero), assumed[state] as u32, effort)))
            .collect();
        for (state, outcome) in looked {
            match outcome.found {
                Some((_, groups)) => {
                    exact.insert(state, groups);
                }
                None => {
                    if outcome.lower == f64::INFINITY && proven[state] == assumed[state] {
                        proven[state] += 1.0;
                    }
                    assumed[state] += 1.0;
                    if assumed[state] > f64::from(most) {
                        assumed[state] = f64::INFINITY;
                    }
                    if proven[state] > f64::from(most) {
                        proven[state] = f64::INFINITY;
                    }
                }
            }
        }
    }
}

/// Columns as far as they are known.
struct Columns<'a> {
    set: &'a TaskSet,
    rules: Rules,
    kinds: &'a Kinds,
    width: usize,
    bounds: Vec<f64>,
    found: HashMap<(usize, usize), (f64, Groups)>,
    nodes: HashMap<(usize, usize), u64>,
}

impl Columns<'_> {
    fn bound(&self, state: usize, k: usize) -> f64 {
        self.bounds[state * self.width + k]
    }

    fn is_exact(&self, column: (usize, usize)) -> bool {
        let bound = self.bound(column.0, column.1);
        bound == f64::INFINITY || self.found.get(&column).is_some_and(|found| found.0 <= bound + TOLERANCE)
    }

    /// Evaluates columns, of interest up to `slack` above their bounds.
    fn evaluate(&mut self, columns: &[(usize, usize)], slack: f64, request: &Request) {
        let mut open: Vec<(usize, usize)> = columns.iter().copied().filter(|&column| !self.is_exact(column)).collect();
        open.sort_unstable();
        open.dedup();
        let zero = vec![0; self.kinds.copies.len()];
        let looked: Vec<((usize, usize), Outcome)> = open
            .par_iter()
            .map(|&(state, k)| {
                let nodes = self.nodes.get(&(state, k)).copied().unwrap_or(COLUMN_NODES);
                let effort = Effort {
                    any: false,
                    cutoff: self.bound(state, k) + slack,
                    nodes,
                    should_stop: request.should_stop,
                };
                ((state, k), best(self.set, self.rules, &self.kinds.members(self.set, state, &zero), k as u32, effort))
            })
            .collect();
        for (column, outcome) in looked {
            *self.nodes.entry(column).or_insert(COLUMN_NODES) *= 2;
            if let Some(found) = outcome.found
                && self.found.get(&column).is_none_or(|known| found.0 < known.0)
            {
                self.found.insert(column, found);
            }
            // Fewer partitions are never better.
            for k in 0..=column.1 {
                let bound = &mut self.bounds[column.0 * self.width + k];
                *bound = bound.max(outcome.lower);
            }
        }
    }

    /// The plan made of these columns, if all have an allocation, and its utilization.
    fn plan(&self, columns: &[(usize, usize)]) -> Option<(f64, Vec<Share>)> {
        let mut chosen = Vec::new();
        let mut total = 0.0;
        for column in columns {
            let (used, groups) = self.found.get(column)?;
            total += used;
            chosen.push((column.0, groups.clone()));
        }
        Some((total, self.kinds.shares(self.set, &chosen)))
    }

    /// The plan of least total bound with at most `width - 1` partitions, distributed exactly.
    fn cheapest(&self, cores: u32) -> (f64, Vec<(usize, usize)>) {
        let width = self.width;
        let fewest: Vec<usize> = (0..self.kinds.states)
            .map(|state| (0..width).find(|&k| self.bound(state, k) < f64::INFINITY).unwrap_or(width))
            .collect();
        let mut first = self.bounds.clone();
        first[..width].fill(0.0);
        let mut tables = vec![first];
        let row = |last: &[f64], state: usize, row: &mut [f64]| {
            row.fill(if state == 0 { 0.0 } else { f64::INFINITY });
            self.kinds.visit_parts(state, |part| {
                let rest = &last[(state - part) * width..][..width];
                for k in fewest[part]..width {
                    let bound = self.bound(part, k);
                    for (best, rest) in row[k..].iter_mut().zip(rest) {
                        *best = best.min(bound + rest);
                    }
                }
            });
        };
        let cores = (cores as usize).min(self.kinds.copies.iter().map(Vec::len).sum());
        for _ in 1..cores.saturating_sub(1) {
            let last = tables.last().expect("there is a first");
            let mut next = vec![0.0; last.len()];
            next.par_chunks_mut(width).enumerate().for_each(|(state, next)| row(last, state, next));
            tables.push(next);
        }
        let (mut state, mut left) = (self.kinds.states - 1, width - 1);
        let mut columns = Vec::new();
        let mut total = 0.0;
        for level in (0..cores).rev() {
            if state == 0 {
                break;
            }
            let mut least = (f64::INFINITY, state, left);
            if level == 0 {
                least = (self.bound(state, left), state, left);
            } else {
                let last = &tables[level - 1];
                self.kinds.visit_parts(state, |part| {
                    for k in fewest[part]..=left {
                        let value = self.bound(part, k) + last[(state - part) * width + left - k];
                        if value < least.0 {
                            least = (value, part, k);
                        }
                    }
                });
            }
            if least.0 == f64::INFINITY {
                return (f64::INFINITY, Vec::new());
            }
            total += self.bound(least.1, least.2);
            columns.push((least.1, least.2));
            state -= least.1;
            left -= least.2;
        }
        (total, columns)
    }

    /// The same with a price on partitions: a lower bound, and the columns of the best splits.
    fn priced(&self, cores: u32, price: f64) -> (f64, Vec<Vec<(usize, usize)>>) {
        let choose = |state: usize| {
            (0..self.width)
                .map(|k| (self.bound(state, k) + price * k as f64, k))
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .expect("there is k = 0")
        };
        let cost: Vec<f64> = (0..self.kinds.states).map(|state| choose(state).0).collect();
        let splits = self.kinds.split(cores, &cost, |a, b| a + b, ALTERNATIVES);
        let columns = |(_, states): &(f64, Vec<usize>)| states.iter().map(|&state| (state, choose(state).1)).collect();
        (splits[0].0 - price * (self.width - 1) as f64, splits.iter().map(columns).collect())
    }

    /// The best distribution of the partitions over given sets of tasks, by bound.
    fn distribute(&self, columns: &[(usize, usize)]) -> Option<Vec<(usize, usize)>> {
        let width = self.width;
        let mut totals = vec![vec![0.0; width]];
        for &(state, _) in columns {
            let last = totals.last().expect("there is a first");
            let next = (0..width)
                .map(|left| (0..=left).map(|k| self.bound(state, k) + last[left - k]).fold(f64::INFINITY, f64::min))
                .collect();
            totals.push(next);
        }
        let mut left = width - 1;
        if totals[columns.len()][left] == f64::INFINITY {
            return None;
        }
        let mut distributed = Vec::new();
        for (place, &(state, _)) in columns.iter().enumerate().rev() {
            let value = |k: usize| self.bound(state, k) + totals[place][left - k];
            let k = (0..=left).min_by(|&a, &b| value(a).total_cmp(&value(b)))?;
            distributed.push((state, k));
            left -= k;
        }
        Some(distributed)
    }
}

fn least_utilization(
    set: &TaskSet,
    rules: Rules,
    request: &Request,
    partitions: u32,
    start: Option<Vec<Share>>,
) -> Found {
    let platform = set.platform();
    let tasks = set.tasks().len();
    let mut incumbent = start.map(|shares| (worth(set, rules, &shares), shares));
    let done = |incumbent: Option<(f64, Vec<Share>)>, bound: Option<f64>| {
        let (value, shares) = incumbent.unzip();
        Found { shares, value, bound, tasks }
    };
    let Some(kinds) = Kinds::of(set) else {
        // Every task with all partitions to itself and no delays.
        let own = |task: &Task| task.wcet_ns[partitions as usize - 1] as f64 / task.period_ns as f64;
        return done(incumbent, Some(set.tasks().iter().map(own).sum()));
    };
    let bounds = column_bounds(set, rules, &kinds, partitions);
    let mut columns = Columns {
        set,
        rules,
        kinds: &kinds,
        width: partitions as usize + 1,
        bounds,
        found: HashMap::new(),
        nodes: HashMap::new(),
    };
    columns.found.insert((0, 0), (0.0, Vec::new()));
    let exact = platform.scope == Scope::Shared && kinds.states <= EXACT_STATES_MAX;
    // The price of a partition is between nothing and all the utilization there is.
    let (mut low, mut high) = (0.0, if platform.scope == Scope::Shared { 0.1 } else { 0.0 });
    let mut proven: f64 = 0.0;
    let mut rounds = 0;
    loop {
        let price = (low + high) / 2.0;
        let (bound, chosen) = if exact {
            let (bound, chosen) = columns.cheapest(platform.cores);
            (bound, vec![chosen])
        } else if platform.scope == Scope::Private {
            let cost: Vec<f64> = (0..kinds.states).map(|state| columns.bound(state, columns.width - 1)).collect();
            let splits = kinds.split(platform.cores, &cost, |a, b| a + b, ALTERNATIVES);
            let with_all =
                |(_, states): &(f64, Vec<usize>)| states.iter().map(|&state| (state, columns.width - 1)).collect();
            (splits[0].0, splits.iter().map(with_all).collect())
        } else {
            let (bound, chosen) = columns.priced(platform.cores, price);
            let used: usize = chosen[0].iter().map(|column| column.1).sum();
            if high - low > PRICE_STEP {
                if used > columns.width - 1 { low = price } else { high = price }
            }
            (bound, chosen)
        };
        proven = proven.max(bound);
        if bound == f64::INFINITY {
            // No plan is below the incumbent; without one there is none at all.
            let bound = incumbent.as_ref().map_or(f64::INFINITY, |incumbent| incumbent.0);
            return done(incumbent, Some(bound));
        }
        let candidates: Vec<Vec<(usize, usize)>> = if exact || platform.scope == Scope::Private {
            chosen.clone()
        } else {
            chosen.iter().filter_map(|columns_of| columns.distribute(columns_of)).collect()
        };
        let best_value = incumbent.as_ref().map(|incumbent| incumbent.0);
        (request.progress)(Progress { best: best_value, bound: proven });
        let upper = best_value.unwrap_or(f64::INFINITY);
        if proven >= upper - TOLERANCE * platform.cores as f64 || (request.should_stop)() {
            return done(incumbent, Some(proven.min(upper)));
        }
        let wanted: Vec<(usize, usize)> = chosen.iter().chain(&candidates).flatten().copied().collect();
        let all_exact = wanted.iter().all(|&column| columns.is_exact(column));
        columns.evaluate(&wanted, (upper - bound).max(0.0) + TOLERANCE * 10.0, request);
        for (value, shares) in candidates.iter().filter_map(|candidate| columns.plan(candidate)) {
            if incumbent.as_ref().is_none_or(|incumbent| value < incumbent.0) {
                incumbent = Some((value, shares));
            }
        }
        rounds += 1;
        // With prices, the bound may stay below every plan: the duality gap.
        if !exact && all_exact && high - low <= PRICE_STEP && rounds > 40 {
            return done(incumbent, Some(proven));
        }
    }
}

fn largest(growth: Growth, set: &TaskSet, rules: Rules, request: &Request) -> Solution {
    let most = f64::from(set.platform().partitions);
    let mut kept: Option<Vec<Share>> = None;
    let mut undecided = false;
    let last = last_that_holds(growth.least, growth.most, |steps| {
        if (request.should_stop)() {
            undecided = true;
            return false;
        }
        let fewest = fewest_partitions(&growth.set(set, steps), rules, request);
        undecided |= fewest.shares.is_none() && fewest.bound.is_none_or(|bound| bound <= most);
        let holds = fewest.shares.is_some();
        if holds {
            kept = fewest.shares;
        }
        holds
    });
    // Every larger one was refuted, from the next step on.
    let bound = match last {
        Change::Most(steps) if !undecided => Some((steps + 1) as f64),
        Change::Unlimited => Some(TIME_MAX_NS as f64),
        _ => None,
    };
    let unplaced = if kept.is_some() { Vec::new() } else { (0..set.tasks().len()).collect() };
    Solution { shares: kept, bound, grown: growth.steps(last), unplaced }
}
