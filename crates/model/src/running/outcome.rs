//! What came of a task: its jobs, its share of the CPU, where its memory lay, its violations and failures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CONFIDENCE, Envelope, Limit, Misses, Observed, Requirement, ViolationCount};
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
    /// Where its memory lay at the end, where it was given colors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

impl TaskOutcome {
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Its colors.
    pub colors: Vec<Color>,
    /// Its resident pages at the end.
    pub resident: u64,
    /// Those that are on color.
    #[serde(alias = "right")]
    pub on_color: u64,
    /// Those that are immovable: shared ones and the kernel's.
    #[serde(alias = "fixed")]
    pub immovable: u64,
}

impl Placement {
    /// The share of the movable pages that are off color.
    pub fn off_color(&self) -> f64 {
        let movable = self.resident.saturating_sub(self.immovable);
        movable.saturating_sub(self.on_color) as f64 / movable.max(1) as f64
    }
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
    fn the_four_utilizations_of_figure_13() {
        let outcome = &run(&[job(0, 400, 200, 0), job(1, 400, 240, 0)]).tasks[0];
        let expected =
            Utilization { alone: Some(0.25), with_delays: Some(0.3), worst: Some(0.24), average: Some(0.22) };
        assert_eq!(outcome.utilization(), expected);
        assert_eq!(outcome.response.unwrap().high_water_mark, HighWaterMark { value: 400, n: 2, last_rose_at: 1 });
    }
}
