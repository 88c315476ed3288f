//! Priority assignment.

use super::{Analysis, Conditions, CoreTask, Verdict, analyze};

/// Result of [`audsley`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audsley {
    /// Priorities with which all deadlines are met, as indices of tasks, highest first. The analysis itself has checked them.
    Found(Vec<usize>),
    /// No priorities were found with which all deadlines are met.
    Stuck {
        /// Indices of the tasks without a priority, none of which meets its deadline at the lowest priority that is left; or of the
        /// one task that misses its deadline in the analysis of the whole order.
        unplaced: Vec<usize>,
    },
}

/// Assigns priorities by Audsley's method: from the lowest priority up, each goes to any task that meets its deadline with it.
/// \[Audsley1991\]
///
/// This is optimal for analyses in which the order of the tasks above does not matter: `no-interference`, and `ecb-only` at a
/// cold start. In the others γ(j,i) depends on which tasks lie between. There the method is a good heuristic, and only an
/// assignment that passes the whole analysis counts as found.
pub fn audsley<'a>(core: &[CoreTask], conditions: impl Into<Conditions<'a>>, analysis: Analysis) -> Audsley {
    let conditions = conditions.into();
    let mut unplaced: Vec<usize> = (0..core.len()).collect();
    let mut lowest_first = Vec::with_capacity(core.len());
    while !unplaced.is_empty() {
        // Trying the longest deadline first finds the deadline-monotonic order if that order works.
        let mut candidates = unplaced.clone();
        candidates.sort_by_key(|&task| std::cmp::Reverse((core[task].deadline_ns, task)));
        let fits = |candidate: &usize| {
            let order = unplaced.iter().filter(|task| *task != candidate).chain([candidate]);
            let below = lowest_first.iter().rev();
            let tried: Vec<CoreTask> = order.chain(below).map(|&task| core[task]).collect();
            analyze(&tried, conditions, analysis)[unplaced.len() - 1].verdict != Verdict::Misses
        };
        let Some(lowest) = candidates.into_iter().find(fits) else { return Audsley::Stuck { unplaced } };
        unplaced.retain(|&task| task != lowest);
        lowest_first.push(lowest);
    }
    lowest_first.reverse();
    let tried: Vec<CoreTask> = lowest_first.iter().map(|&task| core[task]).collect();
    match analyze(&tried, conditions, analysis).iter().position(|bound| bound.verdict == Verdict::Misses) {
        None => Audsley::Found(lowest_first),
        Some(position) => Audsley::Stuck { unplaced: vec![lowest_first[position]] },
    }
}
