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
mod releases;
mod section;
mod tally;

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analysis::{Recurrence, Steal};
use crate::costs::Costs;
use crate::evidence::RawFile;
use crate::taskset::programs::Partitioning;
use crate::units::{Bytes, CpuId, Ns};

pub use comparison::{Comparison, Difference, Side, TaskComparison, Window};
pub use conclusion::{Conclusion, Reason};
pub use conditions::{Overhead, Reserved, Setting};
pub use job::JobRecord;
pub use observed::{Envelope, Extent, Observed};
pub use outcome::{BlockPlacement, Failure, Placement, Stretch, TaskOutcome, Utilization, Violation};
pub use releases::{ReleaseClock, ReleasePattern, Releases};
pub use tally::{Misses, Tally, ViolationCount};

/// Confidence of the claims made from observed jobs.
pub const CONFIDENCE: f64 = 0.95;

/// Jobs of a task after which a run may say that its bound holds: the largest of 299 is exceeded with a probability of at most 1 %, with
/// [`CONFIDENCE`].
pub const JOBS_WANTED: u64 = 299;

/// Share of a program's resident pages that may lie outside its colors, those of the kernel and of isochrome apart. The bounds take no account of
/// them.
pub const OFF_COLOR_MAX: f64 = 0.01;

/// Share of the jobs that the period lets expect that had to be seen by earlier versions, which did not count releases.
const EARLIER_JOBS_MIN: f64 = 0.9;

/// Share of the releases that may be left out because isochrome was held up.
pub const SKIPPED_MAX: f64 = 0.01;

/// The longest response that the analysis allows a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ResponseBound(pub Ns);

/// The timing requirement of a task: what its jobs are checked against, and what the plan assumes of the task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Longest delay between its arrival and its release, as the bounds assume it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jitter: Ns,
    /// Whether the period is only the least time between two releases.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sporadic: bool,
    /// What the bound follows from, where the plan says it. Evidence names the plan by its hash instead.
    #[serde(skip)]
    pub recurrence: Option<TaskOnCore>,
}

/// Whether a field is as it is read where it is missing.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A task among those of its core.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskOnCore {
    /// What the bounds of the core follow from.
    pub core: Arc<Recurrence>,
    /// The index of the task in it.
    pub index: usize,
}

impl Requirement {
    /// How releases of the task may follow each other, if it wakes itself.
    pub fn release_pattern(&self) -> ReleasePattern {
        ReleasePattern { period: self.period, jitter: self.jitter, is_sporadic: self.sporadic }
    }

    /// The limits that a job of this response and execution time exceeds.
    pub fn violated_by(&self, response: Ns, execution: Ns) -> Vec<Limit> {
        let limits = [
            (Limit::Bound, self.bound.is_some_and(|bound| response > bound.0)),
            (Limit::Deadline, response > self.deadline),
            (Limit::Budget, self.budget.is_some_and(|budget| execution > budget)),
        ];
        limits.into_iter().filter(|(_, violated)| *violated).map(|(limit, _)| limit).collect()
    }

    /// Whether steal time explains that `job` exceeds `limit`.
    ///
    /// It does where the recurrence that the bound follows from, replayed with the job's steal time and what that displaced, reaches the response
    /// ([`Recurrence::response_with`]), at any utilization. Without the recurrence, as in plans of earlier versions and where tasks are
    /// scheduled by deadlines, it explains what it delays at least: a response that exceeds the limit by no more than the steal time. By
    /// deadlines that is all, where what is reserved is proved to fit. It never explains an execution time, which leaves it out.
    pub fn is_excused(&self, limit: Limit, job: &JobRecord) -> bool {
        let allowed = match limit {
            Limit::Bound => self.bound.map_or(self.deadline, |bound| bound.0),
            Limit::Deadline => self.deadline,
            Limit::Budget => return false,
        };
        let response = job.response().0;
        let (time_ns, times, before_ns) = (job.steal_time.0, u64::from(job.steals), job.steal_before.0);
        let steal = Steal { time_ns, times, before_ns };
        let allowed = match &self.recurrence {
            _ if steal == Steal::default() => return false,
            Some(TaskOnCore { core, index }) => {
                core.response_with(*index, steal, core.earlier_jobs(*index, job.busy), response)
            }
            None => allowed.0.saturating_add(steal.time_ns),
        };
        response <= allowed
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
    /// The measured costs that the bounds charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
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
    use super::fixture::{job, requirement};
    use super::*;
    use crate::analysis::{Analysis, Charges, CoreTask};
    use crate::taskset::PartitionSet;

    #[test]
    fn a_response_equal_to_its_bound_holds_and_one_more_nanosecond_does_not() {
        assert_eq!(requirement().violated_by(Ns(500), Ns(300)), []);
        assert_eq!(requirement().violated_by(Ns(501), Ns(300)), [Limit::Bound]);
        assert_eq!(requirement().violated_by(Ns(901), Ns(301)), [Limit::Bound, Limit::Deadline, Limit::Budget]);
    }

    /// The lower one of two tasks on a core, execution times and periods in us.
    fn lower(tasks: [(u64, u64); 2], bound_us: u64) -> Requirement {
        let task = |(wcet, period)| CoreTask::new(1000 * wcet, 1000 * period, PartitionSet::range(0, 1));
        let (analysis, charges) = (Analysis::default(), Charges::default());
        let core = Arc::new(Recurrence { analysis, charges, tasks: tasks.map(task).to_vec() });
        Requirement {
            period: Ns(1000 * tasks[1].1),
            deadline: Ns(1000 * tasks[1].1),
            bound: Some(ResponseBound(Ns(1000 * bound_us))),
            recurrence: Some(TaskOnCore { core, index: 1 }),
            ..requirement()
        }
    }

    fn excused(requirement: &Requirement, limit: Limit, response_us: u64, steal_us: u64) -> bool {
        requirement.is_excused(limit, &job(0, 1000 * response_us, 200, 1000 * steal_us))
    }

    #[test]
    fn a_millisecond_of_steal_time_does_not_excuse_a_delay_of_ten() {
        // 2.3 ms and 10 ms of 100 ms: a bound of 12.3 ms, and 13.3 ms with a millisecond withheld.
        let task = lower([(2_300, 100_000), (10_000, 100_000)], 12_300);
        assert!(excused(&task, Limit::Bound, 13_300, 1000));
        assert!(!excused(&task, Limit::Bound, 13_301, 1000));
        assert!(!excused(&task, Limit::Bound, 22_300, 1000));
    }

    #[test]
    fn thirty_microseconds_excuse_the_preemption_that_they_let_in() {
        // 1 of 2 ms and 0.99 of 4 ms: a bound of 1.99 ms, and 3.02 ms with 30 us withheld.
        let task = lower([(1000, 2000), (990, 4000)], 1990);
        assert!(excused(&task, Limit::Bound, 3020, 30));
        assert!(!excused(&task, Limit::Bound, 3021, 30));
        assert!(!excused(&task, Limit::Bound, 3020, 0));
    }

    #[test]
    fn a_backlog_excuses_a_job_only_where_its_busy_period_had_time_for_it() {
        // 62 of 100 us below 26 of 70: the first job of a busy period takes 114 us, the third 116, if nothing is refilled.
        let task = lower([(26, 70), (62, 100)], 88);
        let late = |busy_us: u64| JobRecord { busy: Ns(1000 * busy_us), steals: 1, ..job(0, 115_000, 62_000, 0) };
        assert!(!task.is_excused(Limit::Bound, &late(199)) && task.is_excused(Limit::Bound, &late(200)));
    }

    #[test]
    fn no_steal_time_excuses_an_execution_time_and_a_plan_without_the_recurrence_allows_the_steal_time_alone() {
        let mut task = lower([(1000, 2000), (990, 4000)], 1990);
        assert!(!excused(&task, Limit::Budget, 1990, 1000));
        task.recurrence = None;
        assert!(excused(&task, Limit::Bound, 2020, 30) && !excused(&task, Limit::Bound, 2021, 30));
        assert!(excused(&task, Limit::Deadline, 4030, 30) && !excused(&task, Limit::Deadline, 4031, 30));
    }
}
