//! The delay that a lower-priority task with a lock causes to the tasks above it.
//!
//! Under the immediate priority ceiling protocol τ(i) waits for at most one lower-priority job, which took a lock with a ceiling
//! of at least i before the window of τ(i) began. The delay is more than the time for which the lock is held:
//!
//! - the holder refills the partitions that it misses while it holds the lock: ω(l,n);
//! - tasks above the ceiling preempt the holder, and it refills what they displaced: the holder joins int(j,i);
//! - the holder displaces what those tasks have loaded: the holder joins hep(i) in ω(j,i).
//!
//! Let `b(j,i)` be the tasks below i that hold a lock whose ceiling lies below j, but not below i. They are added to the tasks that
//! τ(j) affects and to the tasks that affect τ(j). If only the blocking time is known, all tasks below i are added.
//! docs/reference/planning.md has the equations and their proofs.

use std::collections::BTreeMap;

use super::CoreTask;

/// A task below τ(i) that may hold a lock while τ(i) waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// Index of the holder on the core.
    pub(super) task: usize,
    /// Index of the task at the ceiling. Tasks of smaller index preempt the holder while it holds the lock.
    ceiling: usize,
}

/// A lock of one task that can block others.
#[derive(Clone, Copy, Debug)]
struct Section {
    task: usize,
    /// Index of the highest task that takes the lock.
    ceiling: usize,
    longest_ns: u64,
}

/// Blocking of every task of a core.
#[derive(Debug, Default)]
pub(super) struct Blocking {
    /// Longest time for which each task waits for a lower one, including refills, in ns.
    pub(super) time_ns: Vec<u64>,
    /// The locks that can block others, ascending by task.
    sections: Vec<Section>,
}

impl Blocking {
    /// Computes the blocking times. `warm_up_ns`: warm-up delay ω(l,n) of the first job of each task, in ns.
    ///
    /// The blocking time of τ(i) is the largest of these sums, where β(i) is the stated blocking time and np(l) the nonpreemptive
    /// interval of τ(l):
    ///
    /// - `longest + ω(l,n)` for each lock of a task l below i whose ceiling is not below i;
    /// - `β(i) + np(l) + ω(l,n)` for i and each task l below with a nonpreemptive interval, and if β(i) > 0 for all tasks l below.
    ///
    /// A task can also wait for its own last nonpreemptive interval, which delays a higher task past the end of the previous job.
    pub(super) fn prepare(&mut self, core: &[CoreTask], warm_up_ns: &[u64]) {
        let Self { time_ns, sections } = self;
        find_sections(core, sections);
        time_ns.clear();
        time_ns.resize(core.len(), 0);
        let interval = |index: usize| core[index].nonpreemptive_ns.saturating_add(warm_up_ns[index]);
        // The longest `interval` of the tasks from here on that have a nonpreemptive one, and of all tasks below, any of which may
        // be the holder.
        let (mut nonpreemptive, mut below) = (0, 0);
        for (index, task) in core.iter().enumerate().rev() {
            if task.nonpreemptive_ns > 0 {
                nonpreemptive = interval(index).max(nonpreemptive);
            }
            let held = if task.blocking_ns > 0 { below } else { 0 };
            time_ns[index] = task.blocking_ns.saturating_add(held.max(nonpreemptive));
            below = interval(index).max(below);
        }
        for section in sections.iter() {
            let held = section.longest_ns.saturating_add(warm_up_ns[section.task]);
            for time in &mut time_ns[section.ceiling..section.task] {
                *time = held.max(*time);
            }
        }
    }

    /// Finds the tasks that may hold a lock while τ(i) waits, ascending, each once, and writes them to `holders`.
    pub(super) fn holders(&self, core: &[CoreTask], i: usize, holders: &mut Vec<Holder>) {
        holders.clear();
        if core[i].blocking_ns > 0 {
            holders.extend((i + 1..core.len()).map(|task| Holder { task, ceiling: i }));
            return;
        }
        for section in self.sections.iter().filter(|section| section.task > i && section.ceiling <= i) {
            match holders.last_mut() {
                Some(last) if last.task == section.task => last.ceiling = last.ceiling.max(section.ceiling),
                _ => holders.push(Holder { task: section.task, ceiling: section.ceiling }),
            }
        }
    }

    /// Whether all blocking that delays τ(i-1) in some window also delays τ(i) in that window.
    pub(super) fn grows_at(&self, core: &[CoreTask], i: usize) -> bool {
        self.time_ns[i - 1] <= self.time_ns[i] && (core[i - 1].blocking_ns == 0 || core[i].blocking_ns > 0)
    }
}

/// Returns the indices of the `holders` that τ(j) can preempt.
pub(super) fn preempted_by(holders: &[Holder], j: usize) -> impl Iterator<Item = usize> + '_ {
    holders.iter().filter(move |holder| j < holder.ceiling).map(|holder| holder.task)
}

fn find_sections(core: &[CoreTask], sections: &mut Vec<Section>) {
    sections.clear();
    if core.iter().all(|task| task.holds.is_empty()) {
        return;
    }
    let mut ceilings: BTreeMap<u32, usize> = BTreeMap::new();
    for (index, task) in core.iter().enumerate() {
        for hold in task.holds.iter() {
            let ceiling = *ceilings.entry(hold.lock).or_insert(index);
            sections.push(Section { task: index, ceiling, longest_ns: hold.longest_ns });
        }
    }
}
