//! Lower bounds of all columns, exact costs of the evaluated columns, and the best plans made of these.

use std::collections::HashMap;

use rayon::prelude::*;

use super::{COLUMN_NODES, Kinds, worth};
use crate::plan::allocate::{Completions, Effort, Groups, Outcome, Rules, TOLERANCE, best};
use crate::plan::{Request, Share};
use crate::taskset::{Scope, TaskSet};

/// Most pairs of columns that are tried when two cores are planned anew. If no proof is sought, many short searches find more than a few
/// long ones.
const PAIRS: usize = 64;

/// Number of splits whose columns are evaluated at once if finding splits is what takes long.
const ALTERNATIVES: usize = 16;

/// Returns lower bounds of all columns with K = `partitions`: `[state * (K + 1) + k]`, non-increasing in k.
pub(super) fn column_bounds(set: &TaskSet, rules: Rules, kinds: &Kinds, partitions: u32) -> Vec<f64> {
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
            // Two tables: costs by Eq. 1, and the costs that the chosen analysis is certain to charge. If the latter exceed 1, a task
            // misses its deadline.
            let mut stack: Vec<(usize, Completions, Completions)> = Vec::new();
            let mut rows = Vec::new();
            for (ranks, state) in chunk {
                let common = stack.iter().zip(ranks).take_while(|((a, ..), b)| a == *b).count();
                stack.truncate(common);
                for (index, &rank) in ranks.iter().enumerate().skip(common) {
                    let task = set.by_priority()[rank];
                    let none = Completions::none(partitions);
                    let (above, least) = stack.last().map_or((&none, &none), |(_, above, least)| (above, least));
                    // A set that does not fit does not fit with further tasks either.
                    let next = |above: &Completions, refills| match above.is_hopeless() {
                        true => above.clone(),
                        false => above.before(set, rules, task, index == 0, refills),
                    };
                    let table = next(above, 2.0);
                    let least =
                        if rules.overload_is_a_miss() { table.clone() } else { next(least, rules.least_refills()) };
                    stack.push((rank, table, least));
                }
                let memory = ranks
                    .iter()
                    .map(|&rank| set.memory_per_partition(set.by_priority()[rank], 1))
                    .fold(0, u64::saturating_add);
                let members: Vec<usize> = ranks.iter().map(|&rank| set.by_priority()[rank]).collect();
                let preemptions = rules.preemptions_ns(set, &members, |task| 1.0 / set.tasks()[task].period_ns as f64);
                let row = (0..width).map(|k| match stack.last() {
                    None => 0.0,
                    Some((_, table, least)) => {
                        let bound = table.at(k, 0) + preemptions;
                        if least.at(k, 0) + preemptions > 1.0 + TOLERANCE
                            || memory > (k as u64).saturating_mul(capacity)
                        {
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

/// The columns, each with a lower bound and the best allocation found.
pub(super) struct Columns<'a> {
    set: &'a TaskSet,
    rules: Rules,
    kinds: &'a Kinds,
    pub(super) width: usize,
    bounds: Vec<f64>,
    found: HashMap<(usize, usize), (f64, Groups)>,
    nodes: HashMap<(usize, usize), u64>,
}

impl<'a> Columns<'a> {
    /// Creates all columns at their lower bounds; only the empty column is known exactly.
    pub(super) fn new(set: &'a TaskSet, rules: Rules, kinds: &'a Kinds, partitions: u32) -> Columns<'a> {
        Columns {
            set,
            rules,
            kinds,
            width: partitions as usize + 1,
            bounds: column_bounds(set, rules, kinds, partitions),
            found: HashMap::from([((0, 0), (0.0, Vec::new()))]),
            nodes: HashMap::new(),
        }
    }

    pub(super) fn bound(&self, state: usize, k: usize) -> f64 {
        self.bounds[state * self.width + k]
    }

    /// Returns the largest finite bound.
    pub(super) fn costliest(&self) -> f64 {
        self.bounds.iter().copied().filter(|bound| bound.is_finite()).fold(0.0, f64::max)
    }

    pub(super) fn is_exact(&self, column: (usize, usize)) -> bool {
        let bound = self.bound(column.0, column.1);
        bound == f64::INFINITY || self.found.get(&column).is_some_and(|found| found.0 <= bound + TOLERANCE)
    }

    /// Evaluates columns, looking only for costs less than `slack` above their bounds.
    pub(super) fn evaluate(&mut self, columns: &[(usize, usize)], slack: f64, request: &Request) {
        let mut open: Vec<(usize, usize)> = columns.iter().copied().filter(|&column| !self.is_exact(column)).collect();
        open.sort_unstable();
        open.dedup();
        self.search(&open, slack, request, |nodes| nodes);
        for column in open {
            *self.nodes.entry(column).or_insert(COLUMN_NODES) *= 2;
        }
    }

    /// Searches the columns in parallel, and raises their bounds. `nodes`: returns the nodes for a column, given the nodes that are due
    /// for it.
    fn search(&mut self, columns: &[(usize, usize)], slack: f64, request: &Request, nodes: impl Fn(u64) -> u64 + Sync) {
        let zero = vec![0; self.kinds.copies.len()];
        let evaluated: Vec<((usize, usize), Outcome)> = columns
            .par_iter()
            .map(|&(state, k)| {
                let due = self.nodes.get(&(state, k)).copied().unwrap_or(COLUMN_NODES);
                let effort = Effort {
                    any: false,
                    cutoff: self.bound(state, k) + slack,
                    nodes: nodes(due),
                    should_stop: request.should_stop,
                };
                ((state, k), best(self.set, self.rules, &self.kinds.members(self.set, state, &zero), k as u32, effort))
            })
            .collect();
        for (column, outcome) in evaluated {
            if let Some(found) = outcome.found
                && self.found.get(&column).is_none_or(|known| found.0 < known.0)
            {
                self.found.insert(column, found);
            }
            // The bound also holds with fewer partitions, which are never better.
            for k in 0..=column.1 {
                let bound = &mut self.bounds[column.0 * self.width + k];
                *bound = bound.max(outcome.lower);
            }
        }
    }

    /// Returns `plan` and its utilization after planning two cores at a time anew until that no longer helps. Each time, the tasks and
    /// partitions of both cores and the unused partitions are divided again in the ways of least bound. `nodes`: most nodes for a column.
    pub(super) fn improved(
        &mut self,
        plan: &[Share],
        cores: u32,
        nodes: u64,
        request: &Request,
    ) -> Option<(f64, Vec<Share>)> {
        let mut columns: Vec<(usize, usize)> = plan.iter().map(|share| self.remember(share)).collect();
        columns.resize(cores as usize, (0, 0));
        let pairs: Vec<(usize, usize)> = (0..columns.len()).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
        // Pairs are tried in turn until a whole round has improved nothing.
        let mut in_vain = 0;
        for &(a, b) in pairs.iter().cycle() {
            if in_vain == pairs.len() || (request.should_stop)() {
                break;
            }
            let used: usize = columns.iter().map(|column| column.1).sum();
            let spare = (self.width - 1).saturating_sub(used);
            match self.divided_anew([columns[a], columns[b]], spare, nodes, request) {
                Some(better) => ([columns[a], columns[b]], in_vain) = (better, 0),
                None => in_vain += 1,
            }
        }
        columns.retain(|column| column.0 > 0);
        self.plan(&columns)
    }

    /// Divides the tasks of two columns anew, with at most `spare` more partitions together. Returns the first division found
    /// that costs less; `None` if none is found.
    fn divided_anew(
        &mut self,
        pair: [(usize, usize); 2],
        spare: usize,
        nodes: u64,
        request: &Request,
    ) -> Option<[(usize, usize); 2]> {
        let cost = |columns: &Columns, pair: &[(usize, usize); 2]| -> f64 {
            pair.iter().map(|column| columns.found.get(column).map_or(f64::INFINITY, |found| found.0)).sum()
        };
        let least = |columns: &Columns, pair: &[(usize, usize); 2]| -> f64 {
            pair.iter().map(|&(state, k)| columns.bound(state, k)).sum()
        };
        let value = cost(self, &pair) - TOLERANCE;
        let (all, most) = (pair[0].0 + pair[1].0, self.width - 1);
        let partitions = match self.set.platform().scope {
            Scope::Shared => pair[0].1 + pair[1].1 + spare,
            Scope::Private => 2 * most,
        };
        let mut ways: Vec<(f64, [(usize, usize); 2])> = Vec::new();
        self.kinds.visit_parts(all, |part| {
            for k in partitions.saturating_sub(most)..=partitions.min(most) {
                let pair = [(part, k), (all - part, partitions - k)];
                ways.push((least(self, &pair), pair));
            }
        });
        ways.retain(|(bound, _)| *bound < value);
        ways.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (_, pair) in ways.into_iter().take(PAIRS) {
            if (request.should_stop)() {
                return None;
            }
            let slack = value - least(self, &pair);
            if slack > 0.0 {
                let open: Vec<(usize, usize)> =
                    pair.into_iter().filter(|column| !self.found.contains_key(column)).collect();
                self.search(&open, slack, request, |_| nodes);
                if cost(self, &pair) < value {
                    return Some(pair);
                }
            }
        }
        None
    }

    /// Records the allocation of a core as one for the column of the core, and returns the column.
    fn remember(&mut self, share: &Share) -> (usize, usize) {
        let k = match self.set.platform().scope {
            Scope::Shared => share.partitions() as usize,
            Scope::Private => self.width - 1,
        };
        let column = (self.kinds.state_of(&share.members), k);
        let cost = worth(self.set, self.rules, std::slice::from_ref(share));
        if self.found.get(&column).is_none_or(|found| cost < found.0) {
            self.found.insert(column, (cost, share.groups.clone()));
        }
        column
    }

    /// Returns the plan made of these columns, and its utilization; `None` if a column has no allocation.
    pub(super) fn plan(&self, columns: &[(usize, usize)]) -> Option<(f64, Vec<Share>)> {
        let mut chosen = Vec::new();
        let mut total = 0.0;
        for column in columns {
            let (used, groups) = self.found.get(column)?;
            total += used;
            chosen.push((column.0, groups.clone()));
        }
        Some((total, self.kinds.shares(self.set, &chosen)))
    }

    /// Returns the least total bound of all plans with at most `width - 1` partitions, distributed exactly, and the columns of that plan.
    /// The bound is infinite if there is no plan.
    pub(super) fn cheapest(&self, cores: u32) -> (f64, Vec<(usize, usize)>) {
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

    /// Like [`cheapest`](Self::cheapest), but every column has all partitions: returns the least total bound, and the
    /// columns of the best splits.
    pub(super) fn with_all(&self, cores: u32) -> (f64, Vec<Vec<(usize, usize)>>) {
        let all = self.width - 1;
        let cost: Vec<f64> = (0..self.kinds.states).map(|state| self.bound(state, all)).collect();
        let splits = self.kinds.split(cores, &cost, |a, b| a + b, ALTERNATIVES);
        let columns = |(_, states): &(f64, Vec<usize>)| states.iter().map(|&state| (state, all)).collect();
        (splits[0].0, splits.iter().map(columns).collect())
    }

    /// Like [`cheapest`](Self::cheapest), but with a price on partitions: returns a lower bound, and the columns of the
    /// best splits.
    pub(super) fn priced(&self, cores: u32, price: f64) -> (f64, Vec<Vec<(usize, usize)>>) {
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

    /// Returns the columns with the partitions distributed so that the total bound is least; `None` if no distribution fits.
    pub(super) fn distribute(&self, columns: &[(usize, usize)]) -> Option<Vec<(usize, usize)>> {
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
        for (index, &(state, _)) in columns.iter().enumerate().rev() {
            let value = |k: usize| self.bound(state, k) + totals[index][left - k];
            let k = (0..=left).min_by(|&a, &b| value(a).total_cmp(&value(b)))?;
            distributed.push((state, k));
            left -= k;
        }
        Some(distributed)
    }
}
