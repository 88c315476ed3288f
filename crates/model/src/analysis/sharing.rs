//! Tasks whose bounds rest on charged refills, and tasks that have no bound if refills have no limit.

use super::{Bound, Charges, CoreTask, Verdict};
use crate::replacement::Replacement;
use crate::taskset::PartitionSet;

/// Returns for each task of `core` whether it is charged for refilling partitions: others use them too, or it starts with a cold cache.
pub fn refills(core: &[CoreTask], charges: Charges) -> Vec<bool> {
    let shared = shared(core.iter().map(|task| task.partitions));
    core.iter().map(|task| is_refilled(task, &shared, charges)).collect()
}

/// Returns the partitions that two of these sets or more have in common.
pub(crate) fn shared(sets: impl Iterator<Item = PartitionSet>) -> PartitionSet {
    let (mut once, mut twice) = (PartitionSet::default(), PartitionSet::default());
    for set in sets {
        twice = twice.union(&once.intersection(&set));
        once = once.union(&set);
    }
    twice
}

fn is_refilled(task: &CoreTask, shared: &PartitionSet, charges: Charges) -> bool {
    charges.cold_start || !task.partitions.intersection(shared).is_empty()
}

/// Takes the bounds from all tasks that a refill may delay, if any policy may replace. `bounds`: those of the first tasks of `core`.
///
/// These are the tasks that refill partitions, the tasks below them, and the tasks above them that may have to wait for one of them.
pub(super) fn remove_bounds(core: &[CoreTask], charges: Charges, bounds: &mut [Bound]) {
    if charges.replacement == Replacement::Lru {
        return;
    }
    let shared = shared(core.iter().map(|task| task.partitions));
    let is_refilled = |task: &CoreTask| is_refilled(task, &shared, charges);
    let mut above = false;
    for (index, bound) in bounds.iter_mut().enumerate() {
        above |= is_refilled(&core[index]);
        let may_block =
            |below: &CoreTask| core[index].blocking_ns > 0 || below.nonpreemptive_ns > 0 || !below.holds.is_empty();
        if above || core[index + 1..].iter().any(|below| is_refilled(below) && may_block(below)) {
            bound.verdict = Verdict::Misses;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Analysis, analyze};
    use crate::taskset::Holds;

    fn task(wcet_ns: u64, partitions: &[u32]) -> CoreTask {
        CoreTask::new(wcet_ns, 1_000, partitions.iter().copied().collect())
    }

    fn responses(core: &[CoreTask], charges: Charges, analysis: Analysis) -> Vec<Option<u64>> {
        analyze(core, charges, analysis).iter().map(|bound| bound.verdict.response_ns()).collect()
    }

    #[test]
    fn tasks_that_share_and_those_below_them_have_no_bound_if_any_policy_may_replace() {
        let any = Charges { refill_ns: 2, replacement: Replacement::Any, ..Charges::default() };
        let core = [task(10, &[0]), task(20, &[1, 2]), task(30, &[3]), task(40, &[2])];
        // The second and the fourth share. The third does not, but the second delays it for an unknown time.
        let cores: Vec<Analysis> = Analysis::ALL.into_iter().filter(|a| *a != Analysis::NoInterference).collect();
        for &analysis in &cores {
            assert_eq!(responses(&core, any, analysis)[1..], [None; 3], "{analysis}");
            assert!(responses(&core, any, analysis)[0].is_some(), "{analysis}");
        }
        assert_eq!(refills(&core, any), [false, true, false, true]);
        // A lower task that shares delays the first one only if the first one may have to wait for it.
        let mut lock = Holds::default();
        lock.insert(0, 5);
        let locked = core.map(|task| CoreTask { holds: lock, ..task });
        assert_eq!(responses(&locked, any, Analysis::Kim2013), [None; 4]);
        let mut blocked = core;
        blocked[0].blocking_ns = 5;
        assert_eq!(responses(&blocked, any, Analysis::Kim2013), [None; 4]);
        let mut nonpreemptive = core;
        nonpreemptive[3].nonpreemptive_ns = 5;
        assert_eq!(responses(&nonpreemptive, any, Analysis::Kim2013), [None; 4]);
        // The optimistic comparison has no refills in the first place.
        assert_eq!(responses(&core, any, Analysis::NoInterference), [Some(10), Some(30), Some(60), Some(100)]);
    }

    #[test]
    fn without_sharing_the_policy_makes_no_difference() {
        let core = [task(10, &[0]), task(20, &[1, 2]), task(30, &[3])];
        for analysis in Analysis::ALL {
            let lru = Charges { refill_ns: 2, preemption_ns: 3, ..Charges::default() };
            let any = Charges { replacement: Replacement::Any, ..lru };
            assert_eq!(analyze(&core, any, analysis), analyze(&core, lru, analysis), "{analysis}");
            // A cold start is charged with refills of all partitions.
            let cold = responses(&core, Charges { cold_start: true, ..any }, analysis);
            assert_eq!(cold.iter().any(Option::is_some), analysis == Analysis::NoInterference, "{analysis}");
        }
    }
}
