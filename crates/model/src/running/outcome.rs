//! What came of a task: its jobs, its share of the CPU, where its memory lay, its violations and failures.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CONFIDENCE, Envelope, Limit, Misses, Observed, Releases, Requirement, ViolationCount, is_default};
use crate::stats::exceedance_at;
use crate::units::{Color, Ns};

/// What came of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskOutcome {
    /// The timing requirement of the task.
    #[serde(flatten)]
    pub requirement: Requirement,
    /// Its jobs.
    pub jobs: u64,
    /// Their response times; `None` where there were no jobs.
    pub response: Option<Observed>,
    /// Their execution times.
    pub execution: Option<Observed>,
    /// Response times, job by job.
    pub responses: Envelope,
    /// Misses, where they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<Misses>,
    /// Jobs whose response took longer than the bound.
    #[serde(alias = "beyond_bound")]
    pub bound_violations: ViolationCount,
    /// Jobs later than the deadline.
    #[serde(alias = "beyond_deadline")]
    pub deadline_violations: ViolationCount,
    /// Jobs that executed longer than the budget.
    #[serde(alias = "beyond_budget")]
    pub budget_violations: ViolationCount,
    /// How often another thread took the CPU from one of its jobs.
    pub preemptions: u64,
    /// Jobs with steal time.
    #[serde(alias = "stolen_jobs")]
    pub jobs_with_steal: u64,
    /// What became of its releases. `None` in evidence of earlier versions, which also judged no immovable pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub releases: Option<Releases>,
    /// Where its memory lay when most of it was off color, where it was given colors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Where its memory lay at both ends of every block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<BlockPlacement>,
}

impl TaskOutcome {
    /// The outcome with where its memory lay, block by block. Nothing is kept where it could never be seen, as where there are no colors.
    pub fn with_placements(self, mut placements: Vec<BlockPlacement>) -> TaskOutcome {
        if placements.iter().all(|block| *block == BlockPlacement::default()) {
            placements.clear();
        }
        let seen = placements.iter().flat_map(|block| [&block.begin, &block.end]).flatten();
        let worst = seen.max_by(|a, b| a.off_color_share().total_cmp(&b.off_color_share())).cloned();
        TaskOutcome { placement: worst, placements, ..self }
    }

    /// With [`CONFIDENCE`], the probability at most that one more job takes longer than the longest seen.
    pub fn exceedance(&self) -> f64 {
        exceedance_at(self.jobs, CONFIDENCE)
    }

    /// Share of the CPU, by each of the four ways of [Kim2013, Figure 13].
    pub fn utilization(&self) -> Utilization {
        let period = self.requirement.period.0.max(1) as f64;
        Utilization {
            alone: self.requirement.wcet.map(|wcet| wcet.0 as f64 / period),
            with_delays: self.requirement.utilization,
            worst: self.execution.map(|execution| execution.high_water_mark.value as f64 / period),
            average: self.execution.map(|execution| execution.mean_ns / period),
        }
    }
}

/// Share of a CPU that a task takes. [Kim2013, Figure 13]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Utilization {
    /// Estimated without interference: C^p / T.
    pub alone: Option<f64>,
    /// Estimated with all cache delays. [Kim2013, eq. 1]
    pub with_delays: Option<f64>,
    /// The longest execution seen, over the period.
    pub worst: Option<f64>,
    /// The mean execution seen, over the period.
    pub average: Option<f64>,
}

/// Where a program's memory lay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Its colors.
    pub colors: Vec<Color>,
    /// Its resident pages.
    pub resident: u64,
    /// Those that are on color.
    #[serde(alias = "right")]
    pub on_color: u64,
    /// Those that are off color and immovable.
    #[serde(alias = "fixed")]
    pub immovable: u64,
    /// Those of the immovable ones that belong to the kernel, such as that of the clock, or to isochrome, such as the ring of marks. What is used
    /// of them is part of the execution time, as [`ASSUMPTIONS`](crate::analysis::ASSUMPTIONS) says.
    #[serde(default, skip_serializing_if = "is_default")]
    pub system: u64,
    /// The other immovable ones by the reason, which names their mapping.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub why: BTreeMap<String, u64>,
}

/// Reasons that are named in one sentence.
const NAMED: usize = 3;

impl Placement {
    /// The pages of the program itself, those of the kernel and of isochrome apart.
    pub fn own(&self) -> u64 {
        self.resident.saturating_sub(self.system)
    }

    /// Those of its own pages that are off color, movable or not.
    pub fn off_color(&self) -> u64 {
        self.own().saturating_sub(self.on_color)
    }

    /// The share of its own pages that are off color, movable or not.
    pub fn off_color_share(&self) -> f64 {
        self.off_color() as f64 / self.own().max(1) as f64
    }

    /// The share of the movable pages that are off color.
    pub fn movable_off_color_share(&self) -> f64 {
        let movable = self.resident.saturating_sub(self.immovable);
        movable.saturating_sub(self.on_color) as f64 / movable.max(1) as f64
    }

    /// Immovable pages for which no reason is known.
    pub fn unnamed(&self) -> u64 {
        self.immovable.saturating_sub(self.system).saturating_sub(self.why.values().sum())
    }

    /// What the pages are that are off color, in words: the most frequent reasons, and how many could be moved.
    pub fn off_color_text(&self) -> String {
        let mut why: Vec<(&String, u64)> = self.why.iter().map(|(why, pages)| (why, *pages)).collect();
        why.sort_by_key(|(_, pages)| std::cmp::Reverse(*pages));
        let others: u64 = why.iter().skip(NAMED).map(|(_, pages)| pages).sum();
        let named: u64 = why.iter().map(|(_, pages)| pages).sum();
        let mut parts: Vec<String> = why.iter().take(NAMED).map(|(why, pages)| format!("{pages} as {why}")).collect();
        for (pages, what) in [
            (others, "for other reasons"),
            (self.unnamed(), "for no known reason"),
            (self.off_color().saturating_sub(named + self.unnamed()), "that could be moved"),
        ] {
            if pages > 0 {
                parts.push(format!("{pages} {what}"));
            }
        }
        parts.join(", ")
    }
}

/// Where a program's memory lay in a block; `None` where that could not be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockPlacement {
    /// Once the first jobs were released.
    pub begin: Option<Placement>,
    /// After the last job.
    pub end: Option<Placement>,
}

/// A job that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Violation {
    /// The task.
    pub task: String,
    /// Which job.
    pub instance: u64,
    /// The limits that it exceeds.
    pub limits: Vec<Limit>,
    /// When it was released, in ns from the first release of the run.
    pub release: Ns,
    /// From release to completion; until now for one that is not complete.
    pub response: Ns,
    /// Time on the CPU.
    pub execution: Ns,
    /// The job's steal time.
    #[serde(alias = "stolen")]
    pub steal_time: Ns,
    /// What its CPU did from a little before the release on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Stretch>,
}

/// Something on a CPU around a violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stretch {
    /// Since when, in ns from the first release of the run.
    pub from: Ns,
    /// Until when.
    pub to: Ns,
    /// What ran: a task's name, or that of another program; empty for nothing.
    pub what: String,
}

/// The failure of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The task.
    pub task: String,
    /// When, in ns from the first release of the run; 0 before it.
    pub at: Ns,
    /// What happened.
    pub what: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::fixture::{job, run};
    use crate::stats::HighWaterMark;

    #[test]
    fn pages_that_cannot_be_moved_count_as_off_color_unless_they_are_the_kernels() {
        let mut placement = Placement { resident: 102, on_color: 90, immovable: 7, system: 2, ..Placement::default() };
        assert_eq!((placement.off_color(), placement.off_color_share(), placement.unnamed()), (10, 0.1, 5));
        assert_eq!(placement.off_color_text(), "5 for no known reason, 5 that could be moved");
        placement.why.insert("/dev/shm/x is shared memory".to_owned(), 5);
        assert_eq!((placement.off_color(), placement.unnamed()), (10, 0));
        assert_eq!(placement.off_color_text(), "5 as /dev/shm/x is shared memory, 5 that could be moved");
        let better = Placement { on_color: 100, ..placement.clone() };
        let block = BlockPlacement { begin: Some(better), end: Some(placement.clone()) };
        let outcome = run(&[]).tasks.remove(0).with_placements(vec![block, BlockPlacement::default()]);
        assert_eq!((outcome.placement, outcome.placements.len()), (Some(placement), 2));
    }

    #[test]
    fn the_most_frequent_reasons_are_named_and_the_others_counted() {
        let why = (1..=5).map(|pages| (format!("/{pages} is shared memory"), pages)).collect();
        let placement = Placement { resident: 100, on_color: 85, immovable: 15, why, ..Placement::default() };
        let named = "5 as /5 is shared memory, 4 as /4 is shared memory, 3 as /3 is shared memory, 3 for other reasons";
        assert_eq!(placement.off_color_text(), named);
    }

    #[test]
    fn the_four_utilizations_of_figure_13() {
        let outcome = &run(&[job(0, 400, 200, 0), job(1, 400, 240, 0)]).tasks[0];
        let expected =
            Utilization { alone: Some(0.25), with_delays: Some(0.3), worst: Some(0.24), average: Some(0.22) };
        assert_eq!(outcome.utilization(), expected);
        assert_eq!(outcome.response.unwrap().high_water_mark, HighWaterMark { value: 400, n: 2, last_rose_at: 1 });
    }
}
