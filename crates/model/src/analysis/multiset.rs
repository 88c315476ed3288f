//! Refills that are counted over all preemptions of a window together. [Altmeyer2012, §4]

use super::blocking::{Holder, preempted_by};
use super::families::{Row, common, jobs_in, settle};
use super::{Analysis, CoreTask};

/// Memory that the multiset forms reuse.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    worst: Vec<(u64, u64)>,
    /// For each pair of tasks how often the first can preempt the second.
    pub(super) preemptions: Vec<u64>,
}

/// Number of refills of partitions in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Refills {
    /// Refills when jobs begin, as far as they are not charged with each job.
    pub(super) warm_ups: u64,
    /// Refills when preempted jobs go on.
    pub(super) preempted: u64,
}

impl Refills {
    pub(super) fn total(self) -> u64 {
        self.warm_ups.saturating_add(self.preempted)
    }

    pub(super) fn and(self, more: Refills) -> Refills {
        Refills {
            warm_ups: self.warm_ups.saturating_add(more.warm_ups),
            preempted: self.preempted.saturating_add(more.preempted),
        }
    }
}

/// The task τ(i), and what the multiset forms use of the tasks above it.
pub(super) struct Multiset<'a> {
    pub(super) core: &'a [CoreTask],
    pub(super) i: usize,
    /// Window of each task above, in ns; `None` if the window passes the deadline. Without windows, every job can preempt every task
    /// below.
    pub(super) windows: &'a [Option<u64>],
    /// For each task, the union of its partitions and those of all tasks above it.
    pub(super) unions: &'a [u64],
    /// Tasks below i that may hold a lock while τ(i) waits.
    pub(super) holders: &'a [Holder],
    /// Partitions that the first job of a task in the window may miss.
    pub(super) first: &'a [u64],
    /// Partitions used by two tasks or more of hep(i).
    pub(super) shared: &'a [u64],
}

impl Multiset<'_> {
    /// Returns the window of τ(i), in ns, by the better form of `analysis`, whether the window settled in time, and the refills of
    /// partitions in it that are not part of the rows.
    ///
    /// `refill`: time to refill a partition, in ns. `delays`: time that interrupts and a withheld core take in a window, in ns.
    pub(super) fn window<const W: usize>(
        &self,
        analysis: Analysis,
        rows: &mut [Row],
        fixed: u64,
        deadline: Option<u64>,
        (refill, delays): (u64, &dyn Fn(u64) -> u64),
        scratch: &mut Scratch,
    ) -> (u64, bool, Refills) {
        let forms: &[Analysis] = match analysis {
            Analysis::UcbUnionMultiset => &[Analysis::UcbUnionMultiset],
            Analysis::EcbUnionMultiset => &[Analysis::EcbUnionMultiset],
            _ => &[Analysis::UcbUnionMultiset, Analysis::EcbUnionMultiset],
        };
        let persistence = analysis == Analysis::PersistenceMultiset;
        let mut best = (u64::MAX, false, Refills::default());
        for &form in forms {
            rows.iter_mut().for_each(|row| (row.jobs, row.until) = (0, 0));
            let mut refills = Refills::default();
            let delay = |rows: &[Row], window| {
                refills = match persistence {
                    true => self.loads::<W>(rows, window, form, scratch),
                    false => self.refills::<W>(rows, window, form, &mut scratch.worst),
                };
                refills.total().saturating_mul(refill).saturating_add(delays(window))
            };
            let (window, met) = settle(self.core, rows, fixed, fixed, deadline, delay);
            if (!met, window) < (!best.1, best.0) {
                best = (window, met, refills);
            }
        }
        best
    }

    /// Returns the tasks that τ(j) can preempt in a window of τ(i).
    pub(super) fn affected(&self, j: usize) -> impl Iterator<Item = usize> + use<'_> {
        (j + 1..=self.i).chain(preempted_by(self.holders, j))
    }

    /// Returns how often jobs of τ(j) can preempt jobs of τ(k) in the window: E_j(R_k) E_k(R_i), never more than E_j(R_i).
    pub(super) fn preemptions(&self, rows: &[Row], window: u64, j: usize, k: usize) -> u64 {
        match self.windows.get(k) {
            Some(&Some(above)) if k < self.i => {
                jobs_in(above, &self.core[j]).saturating_mul(jobs_in(window, &self.core[k])).min(rows[j].jobs)
            }
            _ => rows[j].jobs,
        }
    }

    /// Returns the refills of partitions after all preemptions in a window of τ(i) together.
    fn refills<const W: usize>(
        &self,
        rows: &[Row],
        window: u64,
        form: Analysis,
        worst: &mut Vec<(u64, u64)>,
    ) -> Refills {
        let mut preempted: u64 = 0;
        for (j, row) in rows.iter().enumerate() {
            let preemptions = |k| self.preemptions(rows, window, j, k);
            if form == Analysis::EcbUnionMultiset {
                worst.clear();
                let evicting = &self.unions[j * W..(j + 1) * W];
                let reloads = |k: usize| (common::<W>(&self.core[k].useful.0, evicting), preemptions(k));
                worst.extend(self.affected(j).map(reloads));
                worst.sort_unstable_by(|a, b| b.cmp(a));
                let mut left = row.jobs;
                for &(partitions, times) in worst.iter() {
                    let times = times.min(left);
                    preempted = preempted.saturating_add(partitions.saturating_mul(times));
                    left -= times;
                }
            } else {
                for partition in self.core[j].partitions.iter() {
                    let useful = self.affected(j).filter(|&k| self.core[k].useful.contains(partition));
                    let times = useful.map(preemptions).fold(0, u64::saturating_add);
                    preempted = preempted.saturating_add(times.min(row.jobs));
                }
            }
        }
        Refills { warm_ups: 0, preempted }
    }

    /// Returns the refills of partitions in a window of τ(i), where none is refilled more often than others can have displaced it.
    fn loads<const W: usize>(&self, rows: &[Row], window: u64, form: Analysis, scratch: &mut Scratch) -> Refills {
        let after = match form {
            Analysis::EcbUnionMultiset => self.refills::<W>(rows, window, form, &mut scratch.worst),
            _ => Refills::default(),
        };
        after.and(self.loads_of_all(rows, window, form, &mut scratch.preemptions))
    }
}
