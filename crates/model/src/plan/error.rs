//! Reasons why no plan can be made.

use super::{Objective, PLAN_PARTITIONS_MAX, PLAN_TASKS_MAX};
use crate::taskset::CORE_TASKS_MAX;

/// Reason why no plan can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many partitions to plan with.
    #[error(
        "{count} partitions are more than the {PLAN_PARTITIONS_MAX} a plan can distribute\n  hint: plan with fewer, each standing for several page colors"
    )]
    Partitions {
        /// Number of partitions.
        count: u32,
    },
    /// A further objective has nothing left to decide.
    #[error(
        "`{then}` cannot follow `utilization`: hardly any two plans have the same one\n  hint: name utilization last, or only partitions after it"
    )]
    Order {
        /// The objective that follows.
        then: Objective,
    },
    /// Tasks name CPUs that contradict the cores on which the method places the tasks.
    #[error(
        "`{first}` and `{second}` name CPUs (cpu) on which the method does not place them together\n  hint: let one of them go anywhere, or plan for the CPUs one by one"
    )]
    Pins {
        /// Name of a task.
        first: String,
        /// Name of another task.
        second: String,
    },
    /// The plan has more cores than the task set names CPUs.
    #[error("the plan takes {cores} cores, and `cpus` names {cpus}\n  hint: plan for no more than that")]
    Cpus {
        /// Number of cores of the plan.
        cores: usize,
        /// Number of CPUs that the task set names.
        cpus: usize,
    },
    /// Too many tasks for the priorities that the cores have.
    #[error(
        "{count} tasks on {cores} cores: a core can run {CORE_TASKS_MAX} at most, each with a SCHED_FIFO priority of its own\n  hint: plan for more cores, or make one program of several tasks"
    )]
    Priorities {
        /// Number of tasks of the set.
        count: usize,
        /// Number of cores of the machine.
        cores: u32,
    },
    /// Tasks that share a lock may be placed on different cores.
    #[error(
        "`{first}` and `{second}` share the lock `{lock}`, and a plan may place them on different cores\n  hint: a priority ceiling holds on one core; put both into one bundle"
    )]
    Lock {
        /// Name of the lock.
        lock: String,
        /// Name of a task that takes the lock.
        first: String,
        /// Name of another task that takes the lock.
        second: String,
    },
    /// A cold start is charged, but no policy is assumed that would bound it.
    #[error(
        "a cold start is charged with one refill of each partition, which is not a bound where any policy may replace lines (replacement)\n  \
         hint: leave out cold_start, and let nothing depend on the first jobs"
    )]
    ColdStart,
    /// Too many tasks to plan for.
    #[error(
        "{count} tasks are more than the {PLAN_TASKS_MAX} a plan can place\n  hint: plan in parts; an analysis has no such limit"
    )]
    Tasks {
        /// Number of tasks.
        count: usize,
    },
}
