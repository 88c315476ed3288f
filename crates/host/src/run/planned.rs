//! Programs with their CPU, their priority or reservation, and their timing requirement, as a plan determines them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use isochrome_model::analysis::reservation::{Need, reserve};
use isochrome_model::plan::Plan;
use isochrome_model::running::{Requirement, Reserved, ResponseBound, TaskOnCore};
use isochrome_model::taskset::programs::{Program, Programs};
use isochrome_model::units::{CpuId, Ns};

use crate::machine::sysfs::Sysfs;
use crate::sys::scheduling::Scheduling;

/// Lowest priority of a task: above the kernel's lowest, and far below the priorities that the kernel uses for itself.
const LOWEST_PRIORITY: u8 = 2;

/// Why the programs of a plan cannot be run as planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanMismatch {
    /// The plan has tasks on a CPU that the task set does not name.
    #[error("CPU {0} is not one of the CPUs of its task set", cpu.0)]
    ForeignCpu {
        /// The CPU.
        cpu: CpuId,
    },
    /// A task of the plan has no program.
    #[error("{task}: no program of this name")]
    NoProgram {
        /// The task.
        task: String,
    },
    /// A task has no period.
    #[error("{task}: has no period")]
    NoPeriod {
        /// The task.
        task: String,
    },
    /// The plan has no tasks.
    #[error("a plan without tasks")]
    NoTasks,
    /// A program that is not best effort is missing in the plan.
    #[error("{program}: is not in the plan")]
    NotInPlan {
        /// The program.
        program: String,
    },
    /// The task set names no CPU.
    #[error("no CPUs")]
    NoCpus,
    /// A task has neither a budget nor an execution time.
    #[error("{task}: nothing says how much time to reserve for it")]
    NoTime {
        /// The task.
        task: String,
    },
}

/// A program with its CPU, scheduling and timing requirement.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Program to start.
    pub program: Program,
    /// CPU on which the program runs.
    pub cpu: CpuId,
    /// Scheduling of the program once it is ready; `None` for best effort.
    pub scheduling: Option<Scheduling>,
    /// Timing requirement that the program's jobs are checked against; `None` for best effort.
    pub requirement: Option<Requirement>,
    /// Files through which the process of the program joins groups before it begins ([`Launch::joins`](crate::sys::launch::Launch::joins)).
    pub joins: Vec<PathBuf>,
    /// Partitions that the plan gives the program; empty for best effort.
    pub partitions: Vec<u32>,
}

/// Returns SCHED_FIFO with the priority of the task at `index` among `count` tasks on a CPU. Index 0 has the highest priority.
pub fn fifo(index: usize, count: usize) -> Scheduling {
    Scheduling::fifo((usize::from(LOWEST_PRIORITY) + count - 1 - index).min(47) as u8)
}

/// Returns the programs as `plan` places and schedules them: the tasks CPU by CPU, highest priority first, then the best-effort programs.
pub fn planned(plan: &Plan, programs: &Programs) -> Result<Vec<Planned>, PlanMismatch> {
    let mut left: BTreeMap<&str, &Program> =
        programs.tasks.iter().map(|program| (program.name.as_str(), program)).collect();
    let mut all = Vec::new();
    for core in &plan.cores {
        let cpu = CpuId(core.cpu);
        if !programs.cpus.contains(&cpu) {
            return Err(PlanMismatch::ForeignCpu { cpu });
        }
        let recurrence = core.recurrence.clone().map(Arc::new).filter(|it| it.is_of(core.tasks.len()));
        for (index, task) in core.tasks.iter().enumerate() {
            let name = || task.name.clone();
            let program = left.remove(task.name.as_str()).ok_or_else(|| PlanMismatch::NoProgram { task: name() })?;
            if program.period.0 == 0 {
                return Err(PlanMismatch::NoPeriod { task: name() });
            }
            let requirement = Requirement {
                name: name(),
                period: program.period,
                deadline: Ns(task.deadline_ns),
                bound: task.response_ns.map(|bound| ResponseBound(Ns(bound))),
                without_interference: task.no_interference_ns.map(Ns),
                budget: program.budget,
                wcet: task.wcet_ns.map(Ns),
                utilization: task.utilization,
                jitter: recurrence.as_ref().map_or(Ns(0), |core| Ns(core.tasks[index].jitter_ns)),
                sporadic: program.sporadic,
                // A task without a response-time bound may miss its deadline without any steal time, so nothing is excused.
                recurrence: recurrence
                    .clone()
                    .filter(|_| task.response_ns.is_some())
                    .map(|core| TaskOnCore { core, index }),
            };
            all.push(Planned {
                program: program.clone(),
                cpu,
                scheduling: Some(fifo(index, core.tasks.len())),
                requirement: Some(requirement),
                joins: Vec::new(),
                partitions: task.partitions.clone(),
            });
        }
    }
    if all.is_empty() {
        return Err(PlanMismatch::NoTasks);
    }
    for program in left.into_values() {
        if !program.best_effort {
            return Err(PlanMismatch::NotInPlan { program: program.name.clone() });
        }
        let cpu = program.cpu.or(programs.cpus.first().copied()).ok_or(PlanMismatch::NoCpus)?;
        let program = program.clone();
        all.push(Planned {
            program,
            cpu,
            scheduling: None,
            requirement: None,
            joins: Vec::new(),
            partitions: Vec::new(),
        });
    }
    Ok(all)
}

/// Share of a CPU that the kernel itself reserves for ordinary tasks, unless it was changed. [Linux, kernel/sched/deadline.c, dl_server_init]
const FAIR_SERVER: f64 = 0.05;
/// First version of Linux that reserves a share of each CPU for ordinary tasks.
const FAIR_SERVER_SINCE: (u32, u32) = (6, 12);

/// Returns the share of `cpu` that the kernel admits for all tasks scheduled by deadlines together.
fn admitted(sysfs: &Sysfs, cpu: CpuId) -> f64 {
    let number = |path: &str| -> Option<f64> { sysfs.text(path)?.parse().ok() };
    let limit = |name: &str| number(&format!("proc/sys/kernel/sched_rt_{name}_us"));
    let most = match (limit("runtime"), limit("period")) {
        // A runtime of -1 means that the kernel admits every reservation.
        (Some(runtime), Some(period)) if runtime >= 0.0 => runtime / period,
        _ => return 1.0,
    };
    let of_server = |name: &str| number(&format!("sys/kernel/debug/sched/fair_server/cpu{}/{name}", cpu.0));
    let server = match (of_server("runtime"), of_server("period")) {
        (Some(runtime), Some(period)) => runtime / period,
        // Where debugfs is not mounted, the version has to tell.
        _ => {
            let release = sysfs.text("proc/sys/kernel/osrelease").unwrap_or_default();
            let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
            let version = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
            if version >= FAIR_SERVER_SINCE { FAIR_SERVER } else { 0.0 }
        }
    };
    (most - server).clamp(0.0, 1.0)
}

/// Schedules the tasks by deadlines (SCHED_DEADLINE). Returns the reservations on their CPUs.
///
/// A job's budget is reserved if there is one. Otherwise the time that eq. 1 charges the job, or else its worst-case execution time, is reserved
/// together with a share of the CPU time that is left. The reserved time becomes the budget. The plan's bounds are removed, because they assume
/// fixed priorities.
pub fn reserve_by_deadlines(planned: &mut [Planned]) -> Result<Vec<Reserved>, PlanMismatch> {
    let cpus: BTreeSet<CpuId> = planned.iter().map(|planned| planned.cpu).collect();
    let mut all = Vec::new();
    for cpu in cpus {
        let most = admitted(&Sysfs::system(), cpu);
        let mut tasks: Vec<(&mut Requirement, &mut Option<Scheduling>)> = planned
            .iter_mut()
            .filter(|planned| planned.cpu == cpu)
            .filter_map(|planned| Some((planned.requirement.as_mut()?, &mut planned.scheduling)))
            .collect();
        let needs = tasks.iter().map(|(requirement, _)| need(requirement)).collect::<Result<Vec<_>, _>>()?;
        let (runtimes, density) = reserve(&needs, most);
        for ((requirement, scheduling), runtime) in tasks.iter_mut().zip(runtimes) {
            **scheduling = Some(Scheduling::deadline(runtime, requirement.deadline.0, requirement.period.0));
            (requirement.bound, requirement.budget) = (None, Some(Ns(runtime)));
            requirement.recurrence = None;
        }
        if !tasks.is_empty() {
            all.push(Reserved { cpu, density, most });
        }
    }
    Ok(all)
}

/// Returns the time that a job needs; an error if neither a budget nor an execution time is known.
fn need(requirement: &Requirement) -> Result<Need, PlanMismatch> {
    let charged = requirement.utilization.map(|share| Ns((share * requirement.period.0 as f64).ceil() as u64));
    let time = requirement.budget.or(charged).or(requirement.wcet).filter(|time| time.0 > 0);
    let time = time.ok_or_else(|| PlanMismatch::NoTime { task: requirement.name.clone() })?;
    Ok(Need { time_ns: time.0, fixed: requirement.budget.is_some(), deadline_ns: requirement.deadline.0.max(1) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_the_kernel_reserves_for_ordinary_tasks_is_not_admitted() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let share = || (1000.0 * admitted(&Sysfs::at(folder.path()), CpuId(1))).round() / 1000.0;
        write("proc/sys/kernel/sched_rt_runtime_us", "950000\n");
        write("proc/sys/kernel/sched_rt_period_us", "1000000\n");
        write("proc/sys/kernel/osrelease", "6.1.0-50-amd64\n");
        assert_eq!(share(), 0.95);
        write("proc/sys/kernel/osrelease", "6.12.117+deb13-amd64\n");
        assert_eq!(share(), 0.9);
        write("sys/kernel/debug/sched/fair_server/cpu1/runtime", "100000000\n");
        write("sys/kernel/debug/sched/fair_server/cpu1/period", "1000000000\n");
        assert_eq!(share(), 0.85);
        write("proc/sys/kernel/sched_rt_runtime_us", "-1\n");
        assert_eq!(share(), 1.0);
    }
}
