//! Kinds of identical tasks: counts tasks by kind instead of distinguishing them, and splits the resulting states into
//! columns.

use rayon::prelude::*;

use crate::plan::Share;
use crate::plan::allocate::Groups;
use crate::taskset::{Task, TaskSet, bundles};

/// Most states for which a bound is computed.
const STATES_MAX: usize = 1 << 16;

/// Tasks grouped by kind. Columns are made of copies of each kind.
pub(super) struct Kinds {
    /// Copies of each kind, where a copy is a bundle of tasks.
    pub(super) copies: Vec<Vec<Vec<usize>>>,
    strides: Vec<usize>,
    pub(super) states: usize,
}

impl Kinds {
    /// Groups the tasks of `set` by kind; `None` if there are too many states.
    pub(super) fn of(set: &TaskSet) -> Option<Self> {
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

    pub(super) fn counts(&self, state: usize) -> impl Iterator<Item = usize> + '_ {
        self.copies.iter().zip(&self.strides).map(move |(kind, stride)| state / stride % (kind.len() + 1))
    }

    /// Returns the state of these tasks, which must be whole copies.
    pub(super) fn state_of(&self, members: &[usize]) -> usize {
        let held = |kind: &Vec<Vec<usize>>| kind.iter().filter(|copy| members.contains(&copy[0])).count();
        self.copies.iter().zip(&self.strides).map(|(kind, stride)| held(kind) * stride).sum()
    }

    /// Returns the tasks of a state, by priority. `taken`: for each kind, the number of copies that other columns have taken
    /// already.
    pub(super) fn members(&self, set: &TaskSet, state: usize, taken: &[usize]) -> Vec<usize> {
        let mut members = Vec::new();
        for (kind, count) in self.counts(state).enumerate() {
            members.extend(self.copies[kind][taken[kind]..taken[kind] + count].iter().flatten().copied());
        }
        members.sort_by_key(|&task| set.rank(task));
        members
    }

    /// Calls `visit` with every sub-state of `state` that has at least one copy of the first kind in `state`, because one of
    /// the cores must have such a copy.
    pub(super) fn visit_parts(&self, state: usize, mut visit: impl FnMut(usize)) {
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

    /// Finds the best way to split all tasks over at most `cores` columns: the total, and the columns. Returns it with the
    /// best ways that begin with other columns, up to `count` ways in all.
    pub(super) fn split(
        &self,
        cores: u32,
        cost: &[f64],
        add: fn(f64, f64) -> f64,
        count: usize,
    ) -> Vec<(f64, Vec<usize>)> {
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
        // An infinite total stands for no way. The first entry is kept even then, to show that no way exists.
        let ways = firsts.iter().take(count).take_while(|way| way.0 < f64::INFINITY).count().max(1);
        firsts.into_iter().take(ways).map(follow).collect()
    }

    /// Returns the share of each column: the tasks that the column stands for, and how they use its partitions.
    pub(super) fn shares(&self, set: &TaskSet, columns: &[(usize, Groups)]) -> Vec<Share> {
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
