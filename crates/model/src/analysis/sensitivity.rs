//! Sensitivity of a verdict: the largest Δ and execution times for which it holds, and the refill times at which bounds jump.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Analysis, Conditions, CoreTask, Workspace, responses, schedulable};
use crate::taskset::{TIME_MAX_NS, scale_up};

/// How far a value can be changed while all deadlines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The largest value with which all deadlines hold.
    Most(u64),
    /// All deadlines hold with any value.
    Unlimited,
    /// Deadlines are missed even with the smallest value.
    Hopeless,
}

/// Returns the largest refill time Δ, in ns, with which every deadline of the core holds.
pub fn largest_refill<'a>(core: &[CoreTask], conditions: impl Into<Conditions<'a>>, analysis: Analysis) -> Change {
    let (conditions, mut workspace) = (conditions.into(), Workspace::default());
    last_that_holds(0, TIME_MAX_NS, |refill_ns| {
        schedulable(core, conditions.with_refill(refill_ns), analysis, &mut workspace)
    })
}

/// Returns the largest factor, in millionths, by which all execution times can be multiplied while every deadline holds.
pub fn largest_scale_ppm<'a>(core: &[CoreTask], conditions: impl Into<Conditions<'a>>, analysis: Analysis) -> Change {
    let (conditions, mut workspace) = (conditions.into(), Workspace::default());
    last_that_holds(1, TIME_MAX_NS, |ppm| schedulable(&scaled(core, ppm), conditions, analysis, &mut workspace))
}

/// Returns the tasks with execution times multiplied by `ppm` millionths, rounded up.
pub fn scaled(core: &[CoreTask], ppm: u64) -> Vec<CoreTask> {
    core.iter().map(|task| CoreTask { wcet_ns: scale_up(task.wcet_ns, ppm, 1_000_000), ..*task }).collect()
}

/// Returns the last value of `least..=most` for which `holds` returns true. Once `holds` has returned false, it must do so for
/// all larger values.
pub fn last_that_holds(least: u64, most: u64, mut holds: impl FnMut(u64) -> bool) -> Change {
    if !holds(least) {
        return Change::Hopeless;
    }
    if holds(most) {
        return Change::Unlimited;
    }
    let (mut good, mut bad) = (least, most);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if holds(middle) { good = middle } else { bad = middle }
    }
    Change::Most(good)
}

/// A refill time at which a bound jumps by more than the refills themselves, because the window includes one more release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Break {
    /// The last refill time before the jump, in ns.
    pub last_ns: u64,
    /// Bound with that refill time, in ns.
    pub response_before_ns: Option<u64>,
    /// Bound with a refill time that is 1 ns longer, in ns; `None` if it exceeds the deadline.
    pub response_after_ns: Option<u64>,
}

/// Returns the refill times within `range` at which the bound of `task` jumps because of a further preemption, ascending.
pub fn refill_breaks<'a>(
    core: &'a [CoreTask],
    conditions: impl Into<Conditions<'a>>,
    analysis: Analysis,
    task: usize,
    range: RangeInclusive<u64>,
) -> impl Iterator<Item = Break> {
    let (conditions, mut workspace) = (conditions.into(), Workspace::default());
    let mut at = move |refill_ns| {
        let response = responses(core, conditions.with_refill(refill_ns), analysis, &mut workspace).nth(task);
        let response = response.and_then(super::Verdict::response_ns);
        // Number of higher-priority jobs in the window; `None` if the bound exceeds the deadline.
        let above = core.iter().take(task);
        let jobs = response.map(|response| {
            let window = response - core[task].jitter_ns;
            above
                .map(|task| window.saturating_add(task.jitter_ns).div_ceil(task.period_ns))
                .fold(0, u64::saturating_add)
        });
        (jobs, response)
    };
    let (mut from, last) = range.into_inner();
    std::iter::from_fn(move || {
        let (jobs, _) = at(from);
        jobs?;
        let Change::Most(last_ns) = last_that_holds(from, last, |refill_ns| at(refill_ns).0 == jobs) else {
            return None;
        };
        from = last_ns + 1;
        Some(Break { last_ns, response_before_ns: at(last_ns).1, response_after_ns: at(from).1 })
    })
}
