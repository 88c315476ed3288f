//! Checks the jobs of programs that run against their timing requirements: bounds, deadlines, budgets.
//!
//! A [`ResponseBound`] follows from the analysis, a [`HighWaterMark`](crate::stats::HighWaterMark) is an observation. Neither becomes the
//! other, and only [`Tally::push`] compares them. Everything here takes records one by one and keeps a bounded amount of memory, however long
//! a run is.

mod comparison;
mod conclusion;
mod conditions;
#[cfg(test)]
mod fixture;
mod job;
mod observed;
mod outcome;
mod section;
mod tally;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evidence::RawFile;
use crate::taskset::programs::Partitioning;
use crate::units::{Bytes, CpuId, Ns};

pub use comparison::{Comparison, Difference, Side, TaskComparison, Window};
pub use conclusion::{Conclusion, Reason};
pub use conditions::{Overhead, Reserved, Setting};
pub use job::JobRecord;
pub use observed::{Envelope, Extent, Observed};
pub use outcome::{Failure, Placement, Stretch, TaskOutcome, Utilization, Violation};
pub use tally::{Misses, Tally, ViolationCount};

/// Confidence of the claims made from observed jobs.
pub const CONFIDENCE: f64 = 0.95;

/// Jobs of a task after which a run may say that its bound holds: the largest of 299 is exceeded with a probability of at most 1 %, with
/// [`CONFIDENCE`].
pub const JOBS_WANTED: u64 = 299;

/// Share of a program's resident pages that may lie outside its colors.
pub const OFF_COLOR_MAX: f64 = 0.01;

/// A job is late by at most this many times the steal time, on a CPU that is busy for at most nine tenths of its time: the CPU makes up for
/// the delay in the time that is left.
pub const STEAL_DELAY_FACTOR: u64 = 10;

/// Share of the jobs expected by the periods below which some are missing.
pub const EXPECTED_MIN: f64 = 0.9;

/// Share of the releases that may be left out because isochrome was held up.
pub const SKIPPED_MAX: f64 = 0.01;

/// The longest response that the analysis allows a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ResponseBound(pub Ns);

/// The timing requirement of a task: what its jobs are checked against, and what the plan assumes of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// The task.
    pub name: String,
    /// Time between releases.
    pub period: Ns,
    /// Relative deadline.
    pub deadline: Ns,
    /// The bound of its response time; `None` where there is none.
    pub bound: Option<ResponseBound>,
    /// What the bound would be without the cache delays that tasks cause each other (NoCInt of [Kim2013, Table 2]). No bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_interference: Option<Ns>,
    /// Execution time that no job may exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Ns>,
    /// Its worst-case execution time alone on its partitions, C^p.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wcet: Option<Ns>,
    /// Its share of the CPU with all cache delays. [Kim2013, eq. 1]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
}

impl Requirement {
    /// The limits that a job of this response and execution time exceeds.
    pub fn violated_by(&self, response: Ns, execution: Ns) -> Vec<Limit> {
        let limits = [
            (Limit::Bound, self.bound.is_some_and(|bound| response > bound.0)),
            (Limit::Deadline, response > self.deadline),
            (Limit::Budget, self.budget.is_some_and(|budget| execution > budget)),
        ];
        limits.into_iter().filter(|(_, violated)| *violated).map(|(limit, _)| limit).collect()
    }
}

/// A limit that no job may exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The bound of the response time.
    Bound,
    /// The deadline.
    Deadline,
    /// The budget of execution time.
    Budget,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Bound => "bound",
            Limit::Deadline => "deadline",
            Limit::Budget => "budget",
        })
    }
}

/// A task set that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// CPUs of the tasks.
    pub cpus: Vec<CpuId>,
    /// Whether programs had partitions of their own.
    pub partitioned: bool,
    /// By what means.
    #[serde(default)]
    pub method: Partitioning,
    /// What is reserved where tasks are scheduled by deadlines (SCHED_DEADLINE); empty for fixed priorities. The budget of a task is then what is
    /// reserved for its jobs, and it has no bound: those of plans are of fixed priorities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reserved>,
    /// The cache level partitioned.
    pub level: u8,
    /// From the first release to the end.
    pub duration: Ns,
    /// What came of the tasks, in the order of the plan.
    pub tasks: Vec<TaskOutcome>,
    /// The first jobs that exceed a limit.
    pub violations: Vec<Violation>,
    /// Failures of programs, in order.
    #[serde(alias = "faults")]
    pub failures: Vec<Failure>,
    /// What watching took.
    pub overhead: Overhead,
    /// Steal time of the CPUs of the tasks, to the resolution of the kernel's count.
    #[serde(alias = "stolen")]
    pub steal_time: Ns,
    /// What was changed on the machine, and that it was put back.
    pub settings: Vec<Setting>,
    /// The files it was made from, with their hashes.
    pub inputs: Vec<RawFile>,
    /// Memory that a program may use, its name and how much it had at most, where that was watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<(String, Bytes)>,
    /// The shortest wait after which the level has lost half of its contents here though its CPU touched nothing, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Ns>,
    /// The same set without partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

#[cfg(test)]
mod tests {
    use super::fixture::requirement;
    use super::*;

    #[test]
    fn a_response_equal_to_its_bound_holds_and_one_more_nanosecond_does_not() {
        assert_eq!(requirement().violated_by(Ns(500), Ns(300)), []);
        assert_eq!(requirement().violated_by(Ns(501), Ns(300)), [Limit::Bound]);
        assert_eq!(requirement().violated_by(Ns(901), Ns(301)), [Limit::Bound, Limit::Deadline, Limit::Budget]);
    }
}
