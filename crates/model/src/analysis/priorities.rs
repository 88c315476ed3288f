//! Priority assignment.

use super::{Analysis, Charges, CoreTask, Verdict, analyze};

/// Outcome of [`audsley`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audsley {
    /// With these priorities (indices, highest first) all deadlines are met; re-checked by the analysis itself.
    Found(Vec<usize>),
    /// None of these tasks can take the lowest priority left.
    Stuck {
        /// The tasks for which no place was found.
        unplaced: Vec<usize>,
    },
}

/// Audsley's assignment: from the lowest priority up, any task that meets its deadline there may have it. \[Audsley1991\]
///
/// Optimal for analyses in which the order among the tasks above does not matter: `no-interference` and `ecb-only` at a
/// cold start. In the others γ(j,i) depends on which tasks lie between, so it is a good heuristic, and only an assignment
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
        let Some(place) = candidates.into_iter().find(fits) else { return Audsley::Stuck { unplaced } };
        unplaced.retain(|&task| task != place);
        lowest_first.push(place);
    }
    lowest_first.reverse();
    let tried: Vec<CoreTask> = lowest_first.iter().map(|&task| core[task]).collect();
    match analyze(&tried, charges, analysis).iter().position(|bound| bound.verdict == Verdict::Misses) {
        None => Audsley::Found(lowest_first),
        Some(place) => Audsley::Stuck { unplaced: vec![lowest_first[place]] },
    }
}
