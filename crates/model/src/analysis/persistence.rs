//! Persistence over jobs: a task loads a partition again only after another task has loaded something else into it.
//!
//! The loads of one partition in a window belong to one task, then to another one, and so on. So a task m loads the partition at most once
//! more than all others together. Let U be the tasks of hep(i) that use the partition p, e(j,k) the number of times that jobs of τ(j) can
//! preempt jobs of τ(k), and n the numbers of jobs in the window:
//!
//! ```text
//! o(m,p) = Σ k ∈ U, k ≠ m: n(k) + Σ j ∈ U: min(n(j), Σ e(j,k) over k ∈ int(j,i) ∪ b(j,i), k ≠ m, p ∈ S(k))
//! loads of p ≤ 1 + 2 o(m,p),    those of τ(m) ≤ 1 + o(m,p)       for each m ∈ U such that no task of b(m,i) uses p
//! ```
//!
//! If τ(i) uses p, this is never less than what is charged without it. docs/reference/planning.md has the proofs.

use super::Analysis;
use super::blocking::preempted_by;
use super::families::Row;
use super::multiset::{Multiset, Refills};
use crate::taskset::PartitionSet;

impl Multiset<'_> {
    /// Returns the refills of all partitions in a window of τ(i). With the form `EcbUnionMultiset` these are only the warm-ups.
    pub(super) fn loads_of_all(
        &self,
        rows: &[Row],
        window: u64,
        form: Analysis,
        preemptions: &mut Vec<u64>,
    ) -> Refills {
        let tasks = self.core.len();
        preemptions.clear();
        preemptions.resize(rows.len() * tasks, 0);
        for j in 0..rows.len() {
            for k in self.affected(j) {
                preemptions[j * tasks + k] = self.preemptions(rows, window, j, k);
            }
        }
        let used = self.core[..=self.i].iter().fold(PartitionSet::default(), |used, task| used.union(&task.partitions));
        let loads = used.iter().map(|partition| {
            Partition { multiset: self, rows, preemptions, partition }.loads(form == Analysis::UcbUnionMultiset)
        });
        loads.fold(Refills::default(), Refills::and)
    }
}

/// A partition in a window of τ(i).
struct Partition<'a> {
    multiset: &'a Multiset<'a>,
    rows: &'a [Row],
    /// How often τ(j) can preempt τ(k), for each j and k.
    preemptions: &'a [u64],
    partition: u32,
}

impl Partition<'_> {
    fn is_used_by(&self, task: usize) -> bool {
        self.multiset.core[task].partitions.contains(self.partition)
    }

    /// Returns the tasks above i that use the partition.
    fn users(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.multiset.i).filter(|&task| self.is_used_by(task))
    }

    fn is_in(&self, words: &[u64]) -> bool {
        words.get(self.partition as usize / 64).is_some_and(|word| word >> (self.partition % 64) & 1 == 1)
    }

    /// Returns the loads of the partition. `jointly`: with those of preempted jobs; else only those of jobs that begin.
    fn loads(&self, jointly: bool) -> Refills {
        let Multiset { i, core, .. } = *self.multiset;
        let reloads = |j| self.after_preemptions(j, |k| core[k].useful.contains(self.partition));
        let own = u64::from(self.is_used_by(i) && self.is_in(self.multiset.first));
        let charged = Refills {
            warm_ups: self.users().map(|j| self.warm_ups(j)).fold(own, u64::saturating_add),
            preempted: if jointly { self.users().map(reloads).fold(0, u64::saturating_add) } else { 0 },
        };
        if self.is_used_by(i) || !self.is_in(self.multiset.shared) {
            return charged;
        }
        let mut least = charged;
        for m in self.users().filter(|&m| !self.is_used_by_holder(m)) {
            let others = self.loads_by_others(m);
            let one_more = others.saturating_add(1);
            if jointly {
                let most = others.saturating_add(one_more);
                if most < least.total() {
                    let preempted = charged.preempted.min(most);
                    least = Refills { warm_ups: most - preempted, preempted };
                }
            } else {
                let saved = self.warm_ups(m).saturating_sub(one_more);
                least.warm_ups = least.warm_ups.min(charged.warm_ups - saved);
            }
        }
        least
    }

    /// Whether a task that τ(j) preempts while it holds a lock uses the partition.
    fn is_used_by_holder(&self, j: usize) -> bool {
        preempted_by(self.multiset.holders, j).any(|holder| self.is_used_by(holder))
    }

    /// Returns the number of jobs of τ(j) that may find the partition displaced when they begin: of the first by any task, of later ones by
    /// a task that runs in the window.
    fn warm_ups(&self, j: usize) -> u64 {
        let jobs = self.rows[j].jobs;
        let first = if self.is_in(self.multiset.first) { jobs.min(1) } else { 0 };
        let displaced = self.is_in(self.multiset.shared) || self.is_used_by_holder(j);
        first.saturating_add(if displaced { jobs.saturating_sub(1) } else { 0 })
    }

    /// Returns how often one of the tasks k for which `counts` holds may load the partition again after a job of τ(j) preempted it.
    fn after_preemptions(&self, j: usize, counts: impl Fn(usize) -> bool) -> u64 {
        let preempted = self.multiset.affected(j).filter(|&k| counts(k));
        let times = preempted.map(|k| self.preemptions[j * self.multiset.core.len() + k]);
        times.fold(0, u64::saturating_add).min(self.rows[j].jobs)
    }

    /// Returns the most loads of the partition by other tasks than τ(m): o(m,p).
    fn loads_by_others(&self, m: usize) -> u64 {
        let begun = self.users().filter(|&k| k != m).map(|k| self.rows[k].jobs);
        let resumed = self.users().map(|j| self.after_preemptions(j, |k| k != m && self.is_used_by(k)));
        begun.chain(resumed).fold(0, u64::saturating_add)
    }
}
