//! Why there cannot be a plan at all.

use super::{Objective, PLAN_PARTITIONS_MAX, PLAN_TASKS_MAX};
use crate::taskset::CORE_TASKS_MAX;

/// Why there cannot be a plan at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many partitions to plan with.
    #[error(
        "{count} partitions are more than the {PLAN_PARTITIONS_MAX} a plan can distribute\n  hint: plan with fewer, each standing for several page colors"
    )]
    Partitions {
        /// How many.
        count: u32,
    },
    /// Nothing is left for a further objective to decide.
    #[error(
        "`{then}` cannot follow `utilization`: hardly two plans have the same\n  hint: name utilization last, or only partitions after it"
    )]
    Order {
        /// The objective that follows.
        then: Objective,
    },
    /// Tasks are tied to CPUs in a way that was not found.
    #[error(
        "`{first}` and `{second}` name CPUs (cpu) on which the method does not place them together\n  hint: let one of them go anywhere, or plan for the CPUs one by one"
    )]
    Pins {
        /// A task.
        first: String,
        /// Another one.
        second: String,
    },
    /// More cores are planned for than there are CPUs.
    #[error("the plan takes {cores} cores, and `cpus` names {cpus}\n  hint: plan for no more than that")]
    Cpus {
        /// Cores of the plan.
        cores: usize,
        /// CPUs of the task set.
        cpus: usize,
    },
    /// Too many tasks for the priorities that the cores have.
    #[error(
        "{count} tasks on {cores} cores: a core can run {CORE_TASKS_MAX} at most, each with a SCHED_FIFO priority of its own\n  hint: plan for more cores, or make one program of several tasks"
    )]
    Priorities {
        /// Tasks of the set.
        count: usize,
        /// Cores of the machine.
        cores: u32,
    },
    /// Tasks that share a lock may be placed on different cores.
    #[error(
        "`{first}` and `{second}` share the lock `{lock}`, and a plan may place them on different cores\n  hint: a priority ceiling holds on one core; put both into one bundle"
    )]
    Lock {
        /// The lock.
        lock: String,
        /// A task that takes it.
        first: String,
        /// Another one.
        second: String,
    },
    /// Too many tasks to plan for.
    #[error(
        "{count} tasks are more than the {PLAN_TASKS_MAX} a plan can place\n  hint: plan in parts; an analysis has no such limit"
    )]
    Tasks {
        /// How many.
        count: usize,
    },
}
