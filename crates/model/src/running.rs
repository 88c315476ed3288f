//! Checks the jobs of running programs against their timing requirements: bounds, deadlines, budgets.
//!
//! A [`ResponseBound`] follows from the analysis, a [`HighWaterMark`](crate::stats::HighWaterMark) is an observation. They are never
//! converted into each other, and only [`Tally::push`] compares them. Everything here takes records one by one and needs a bounded amount
//! of memory, however long a run is.

mod checks;
mod comparison;
mod conclusion;
mod conditions;
#[cfg(test)]
mod fixture;
mod gaps;
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
use crate::replacement::Contradicted;
use crate::supply::ChargedSupply;
use crate::taskset::programs::Partitioning;
use crate::units::{Bytes, CpuId, Ns};

pub use checks::{Aspect, Check};
pub use comparison::{Comparison, Difference, Side, TaskComparison, Window};
pub use conclusion::{Conclusion, Reason};
pub use conditions::{Overhead, Reserved, Setting};
pub use gaps::{ACCUSED_WRONGLY, GapComparison, NeededGap, UnreportedGaps, gap_interval, gap_interval_of_run};
pub use job::JobRecord;
pub use observed::{Envelope, GapCount, Observed, ValueRange};
pub use outcome::{BlockPlacement, CpuInterval, Failure, Placement, TaskOutcome, Utilization, Violation};
pub use releases::{ReleaseClock, ReleasePattern, Releases};
pub use tally::{Misses, Tally, ViolationCount};

/// Confidence of the claims made from observed jobs.
pub const CONFIDENCE: f64 = 0.95;

/// Fewest jobs of a task with which a run can show that the bound of the task holds. The largest of 299 jobs is exceeded with a probability
/// of at most 1 %, with [`CONFIDENCE`].
pub const JOBS_WANTED: u64 = 299;

/// Largest share of a program's resident pages that may lie outside its colors, not counting pages of the kernel and of isochrome. The
/// bounds take no account of such pages.
pub const OFF_COLOR_MAX: f64 = 0.01;

/// Least share of the jobs expected from the period that a run of an earlier version must have seen. Those versions did not count releases.
const EARLIER_JOBS_MIN: f64 = 0.9;

/// Largest share of the releases that may be left out because isochrome itself was delayed.
pub const SKIPPED_MAX: f64 = 0.01;

/// Longest response time that the analysis allows a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ResponseBound(pub Ns);

/// The timing requirement of a task: the limits that its jobs are checked against, and the assumptions of the plan about the task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// Name of the task.
    pub name: String,
    /// Time between releases.
    pub period: Ns,
    /// Relative deadline.
    pub deadline: Ns,
    /// Bound on the response time; `None` if there is none.
    pub bound: Option<ResponseBound>,
    /// Value that the bound would have without the cache delays that tasks cause each other (NoCInt of [Kim2013, Table 2]). It is not a
    /// bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_interference: Option<Ns>,
    /// Execution time that no job may exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Ns>,
    /// Worst-case execution time C^p of the task alone on its partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wcet: Option<Ns>,
    /// Share of the CPU that the task needs, with all cache delays. [Kim2013, eq. 1]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// Longest delay between an arrival of the task and its release, as the bounds assume it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jitter: Ns,
    /// Whether the period is only the least time between two releases.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sporadic: bool,
    /// Recurrence from which the bound follows, if the plan contains it. Evidence names the plan by its hash instead.
    #[serde(skip)]
    pub recurrence: Option<TaskOnCore>,
}

/// Returns whether a value equals the default, which is read where the field is missing.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A task of a core, given as an index into the recurrence of the core.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskOnCore {
    /// Recurrence from which the bounds of the core follow.
    pub core: Arc<Recurrence>,
    /// Index of the task in the recurrence.
    pub index: usize,
}

impl Requirement {
    /// Returns how the releases of the task may follow each other if the task wakes itself.
    pub fn release_pattern(&self) -> ReleasePattern {
        ReleasePattern { period: self.period, jitter: self.jitter, is_sporadic: self.sporadic }
    }

    /// Returns the limits that a job with this response time and execution time exceeds.
    pub fn violated_by(&self, response: Ns, execution: Ns) -> Vec<Limit> {
        let limits = [
            (Limit::Bound, self.bound.is_some_and(|bound| response > bound.0)),
            (Limit::Deadline, response > self.deadline),
            (Limit::Budget, self.budget.is_some_and(|budget| execution > budget)),
        ];
        limits.into_iter().filter(|(_, violated)| *violated).map(|(limit, _)| limit).collect()
    }

    /// Returns whether steal time explains that `job` exceeds `limit`.
    ///
    /// The recurrence from which the bound follows is replayed with the job's steal time and the displacements that it caused in the cache
    /// ([`Recurrence::response_with`]). Steal time explains the violation if the replayed response is at least that of the job, at any utilization.
    ///
    /// Plans of earlier versions and tasks scheduled by deadlines have no recurrence. Steal time then explains a response that exceeds the
    /// limit by no more than the steal time. For tasks scheduled by deadlines this covers the whole delay if the reservations are proven to
    /// fit. Steal time never explains an execution time, because execution times leave it out.
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

    /// Returns the shortest gap that nobody reports with which `job` would not exceed `limit`.
    ///
    /// For an execution time this is the excess over the budget. For a response time it is the time that the replay of the recurrence, as in
    /// [`is_excused`](Self::is_excused), needs in addition to the job's steal time.
    pub fn needed_gap(&self, limit: Limit, job: &JobRecord) -> Ns {
        if limit == Limit::Budget {
            return Ns(job.execution.0.saturating_sub(self.budget.unwrap_or_default().0));
        }
        let with = |gap: u64| JobRecord {
            steal_time: Ns(job.steal_time.0.saturating_add(gap)),
            steals: job.steals.saturating_add(1),
            ..*job
        };
        let (mut short, mut long) = (0, job.response().0);
        while long - short > 1 {
            let middle = short + (long - short) / 2;
            match self.is_excused(limit, &with(middle)) {
                true => long = middle,
                false => short = middle,
            }
        }
        Ns(long)
    }
}

/// A limit that no job may exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The bound on the response time.
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

/// Record of a run of a task set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// CPUs of the tasks.
    pub cpus: Vec<CpuId>,
    /// Whether programs had partitions of their own.
    pub partitioned: bool,
    /// Means by which the cache level was partitioned.
    #[serde(default)]
    pub method: Partitioning,
    /// Reservations on each CPU if tasks are scheduled by deadlines (SCHED_DEADLINE); empty for fixed priorities. The budget of a task is
    /// then the time reserved for each of its jobs. The task has no bound, because the bounds of plans are for fixed priorities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reserved>,
    /// Cache level that was partitioned.
    pub level: u8,
    /// Time from the first release to the end.
    pub duration: Ns,
    /// Outcomes of the tasks, in the order of the plan.
    pub tasks: Vec<TaskOutcome>,
    /// The first jobs that exceed a limit.
    pub violations: Vec<Violation>,
    /// Failures of programs, in the order in which they occurred.
    #[serde(alias = "faults")]
    pub failures: Vec<Failure>,
    /// Cost of observing the run.
    pub overhead: Overhead,
    /// Steal time of the CPUs of the tasks, to the resolution of the kernel's count.
    #[serde(alias = "stolen")]
    pub steal_time: Ns,
    /// Gaps that nobody reports, by CPU, during the run and then after it; empty if the clock was not watched for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<UnreportedGaps>,
    /// Settings of the machine, with their values before, during and after the run.
    pub settings: Vec<Setting>,
    /// The measured costs that the bounds charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    /// The measurement that contradicts the assumption of the bounds about the replacement policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradicted: Option<Contradicted>,
    /// The supply that the bounds charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supply: Option<ChargedSupply>,
    /// Input files of the run, such as the plan and the programs, with their hashes.
    pub inputs: Vec<RawFile>,
    /// Name of each program, with the most memory of its own that it had; empty if memory was not watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<(String, Bytes)>,
    /// Shortest wait after which the level has lost half of its contents although its CPU touched nothing; `None` if this was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Ns>,
    /// Comparison of the same set with and without partitions.
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

    /// Returns the lower one of two tasks on a core. `tasks`: execution time and period of each, in us.
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
