//! Priority assignment.

use super::{Analysis, Charges, CoreTask, Verdict, analyze};

/// Result of [`audsley`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audsley {
    /// Priorities with which all deadlines are met, as indices of tasks, highest first. The analysis itself has checked them.
    Found(Vec<usize>),
    /// No task of those left can have the lowest priority that is left.
    Stuck {
        /// Indices of the tasks without a priority.
        unplaced: Vec<usize>,
    },
}

/// Assigns priorities by Audsley's method: from the lowest priority up, any task that meets its deadline with it may have it.
/// \[Audsley1991\]
///
/// This is optimal for analyses in which the order of the tasks above does not matter: `no-interference`, and `ecb-only` at a
/// cold start. In the others γ(j,i) depends on which tasks lie between, so the method is a good heuristic, and only an assignment
/// that passes the whole analysis counts as found.
pub fn audsley(core: &[CoreTask], charges: Charges, analysis: Analysis) -> Audsley {
    let mut unplaced: Vec<usize> = (0..core.len()).collect();
    let mut lowest_first = Vec::with_capacity(core.len());
    while !unplaced.is_empty() {
        // Trying the longest deadline first finds the deadline-monotonic order where that one works.
        let mut candidates = unplaced.clone();
        candidates.sort_by_key(|&task| std::cmp::Reverse((core[task].deadline_ns, task)));
        let fits = |candidate: &usize| {
            let order = unplaced.iter().filter(|task| *task != candidate).chain([candidate]);
            let below = lowest_first.iter().rev();
            let tried: Vec<CoreTask> = order.chain(below).map(|&task| core[task]).collect();
            analyze(&tried, charges, analysis)[unplaced.len() - 1].verdict != Verdict::Misses
        };
        let Some(lowest) = candidates.into_iter().find(fits) else { return Audsley::Stuck { unplaced } };
        unplaced.retain(|&task| task != lowest);
        lowest_first.push(lowest);
    }
    lowest_first.reverse();
    let tried: Vec<CoreTask> = lowest_first.iter().map(|&task| core[task]).collect();
    match analyze(&tried, charges, analysis).iter().position(|bound| bound.verdict == Verdict::Misses) {
        None => Audsley::Found(lowest_first),
        Some(position) => Audsley::Stuck { unplaced: vec![lowest_first[position]] },
    }
}
