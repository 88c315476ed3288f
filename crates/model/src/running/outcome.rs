//! Outcome of a task: its jobs, its share of the CPU, the placement of its memory, its violations and failures.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CONFIDENCE, Envelope, Limit, Misses, Observed, Releases, Requirement, ViolationCount, is_default};
use crate::stats::exceedance_at;
use crate::units::{Color, CpuId, Ns};

/// Outcome of a task in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskOutcome {
    /// The timing requirement of the task.
    #[serde(flatten)]
    pub requirement: Requirement,
    /// Number of jobs of the task.
    pub jobs: u64,
    /// Response times of the jobs; `None` without jobs.
    pub response: Option<Observed>,
    /// Execution times of the jobs; `None` without jobs.
    pub execution: Option<Observed>,
    /// Response times in the order of the jobs.
    pub responses: Envelope,
    /// Misses of the jobs; `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<Misses>,
    /// Number of jobs whose response time exceeded the bound.
    #[serde(alias = "beyond_bound")]
    pub bound_violations: ViolationCount,
    /// Number of jobs that were complete after the deadline.
    #[serde(alias = "beyond_deadline")]
    pub deadline_violations: ViolationCount,
    /// Number of jobs that executed longer than the budget.
    #[serde(alias = "beyond_budget")]
    pub budget_violations: ViolationCount,
    /// Number of times that another thread took the CPU from a job of the task.
    pub preemptions: u64,
    /// Number of jobs with steal time.
    #[serde(alias = "stolen_jobs")]
    pub jobs_with_steal: u64,
    /// CPU of the task; `None` in evidence of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// Account of the releases. `None` in evidence of earlier versions, which did not judge immovable pages either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub releases: Option<Releases>,
    /// The placement with the largest share of memory off color; `None` if no placement was seen, or the task has no colors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Placements of the memory at both ends of every block; empty if none was ever seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<BlockPlacement>,
}

impl TaskOutcome {
    /// Returns the count of the jobs that exceed `limit`.
    pub(super) fn violations(&self, limit: Limit) -> &ViolationCount {
        match limit {
            Limit::Bound => &self.bound_violations,
            Limit::Deadline => &self.deadline_violations,
            Limit::Budget => &self.budget_violations,
        }
    }

    /// Returns the outcome with the placements of the task's memory in each block. If no placement was ever seen, as for a task without
    /// colors, none is kept.
    pub fn with_placements(self, mut placements: Vec<BlockPlacement>) -> TaskOutcome {
        if placements.iter().all(|block| *block == BlockPlacement::default()) {
            placements.clear();
        }
        let seen = placements.iter().flat_map(|block| [&block.begin, &block.end]).flatten();
        let worst = seen.max_by(|a, b| a.off_color_share().total_cmp(&b.off_color_share())).cloned();
        TaskOutcome { placement: worst, placements, ..self }
    }

    /// Returns an upper limit, with [`CONFIDENCE`], on the probability that one more job takes longer than the longest seen.
    pub fn exceedance(&self) -> f64 {
        exceedance_at(self.jobs, CONFIDENCE)
    }

    /// Returns the shares of the CPU that the task takes, estimated and measured. [Kim2013, Figure 13]
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

/// Shares of a CPU that a task takes, estimated and measured. [Kim2013, Figure 13]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Utilization {
    /// Estimate without interference: C^p / T.
    pub alone: Option<f64>,
    /// Estimate with all cache delays. [Kim2013, eq. 1]
    pub with_delays: Option<f64>,
    /// Longest execution time seen, divided by the period.
    pub worst: Option<f64>,
    /// Mean execution time seen, divided by the period.
    pub average: Option<f64>,
}

/// Placement of a program's memory: how many pages lie on and off its colors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Colors of the program.
    pub colors: Vec<Color>,
    /// Number of resident pages of the program.
    pub resident: u64,
    /// Number of resident pages that are on color.
    #[serde(alias = "right")]
    pub on_color: u64,
    /// Number of resident pages that are off color and immovable.
    #[serde(alias = "fixed")]
    pub immovable: u64,
    /// Number of immovable pages that belong to the kernel, such as the page of the clock, or to isochrome, such as the ring of marks. The program's
    /// use of these pages is part of its execution time ([`assumptions`](crate::analysis::assumptions)).
    #[serde(default, skip_serializing_if = "is_default")]
    pub system: u64,
    /// Number of immovable pages that belong neither to the kernel nor to isochrome, by the reason why they cannot be moved. The reason names the
    /// mapping of the pages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub why: BTreeMap<String, u64>,
}

/// Most reasons that are named in one sentence.
const NAMED: usize = 3;

impl Placement {
    /// Returns the number of the program's own pages: all resident pages but those of the kernel and of isochrome.
    pub fn own(&self) -> u64 {
        self.resident.saturating_sub(self.system)
    }

    /// Returns the number of own pages that are off color, movable or not.
    pub fn off_color(&self) -> u64 {
        self.own().saturating_sub(self.on_color)
    }

    /// Returns the share (0 to 1) of own pages that are off color, movable or not.
    pub fn off_color_share(&self) -> f64 {
        self.off_color() as f64 / self.own().max(1) as f64
    }

    /// Returns the share (0 to 1) of the movable pages that are off color.
    pub fn movable_off_color_share(&self) -> f64 {
        let movable = self.resident.saturating_sub(self.immovable);
        movable.saturating_sub(self.on_color) as f64 / movable.max(1) as f64
    }

    /// Returns the number of immovable pages for which no reason is known.
    pub fn unnamed(&self) -> u64 {
        self.immovable.saturating_sub(self.system).saturating_sub(self.why.values().sum())
    }

    /// Describes the pages that are off color: the most frequent reasons, and how many pages could be moved.
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

/// Placements of a program's memory in a block; `None` if a placement could not be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockPlacement {
    /// Placement after the first jobs were released.
    pub begin: Option<Placement>,
    /// Placement after the last job.
    pub end: Option<Placement>,
}

/// A job that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Violation {
    /// Name of the task.
    pub task: String,
    /// Number of the job among the jobs of the task, from 0.
    pub instance: u64,
    /// Limits that the job exceeds.
    pub limits: Vec<Limit>,
    /// Time at which the job was released, in ns from the first release of the run.
    pub release: Ns,
    /// Time from release to completion, or until the violation was noticed if the job was not complete.
    pub response: Ns,
    /// Time for which the job had the CPU; 0 if the job was not complete.
    pub execution: Ns,
    /// Steal time of the job.
    #[serde(alias = "stolen")]
    pub steal_time: Ns,
    /// Intervals on the CPU of the task, beginning shortly before the release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<CpuInterval>,
}

/// An interval on a CPU in which one thread ran, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuInterval {
    /// Beginning of the interval, in ns from the first release of the run.
    pub from: Ns,
    /// End of the interval, in ns from the first release of the run.
    pub to: Ns,
    /// Name of the task or of the other program that ran; empty if nothing ran.
    pub what: String,
}

/// The failure of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Name of the task.
    pub task: String,
    /// Time of the failure, in ns from the first release of the run; 0 if it occurred before that release.
    pub at: Ns,
    /// Description of the failure.
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
