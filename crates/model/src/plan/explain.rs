//! Explains why a task is on its core, and finds changes that repair a set that misses a deadline.

use std::fmt;

use super::allocate::{Effort, Rules, best};
use super::{Allocated, Plan};
use crate::analysis::sensitivity::{Change, largest_refill, largest_scale_ppm, last_that_holds, scaled};
use crate::analysis::{Analysis, Bound, Conditions, CoreTask, Verdict, Workspace, analyze, core_task, schedulable};
use crate::taskset::{PartitionSet, Scope, TaskSet, bundles};

/// Reason for the placement of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// Name of the task.
    pub task: String,
    /// The reason, in a sentence.
    pub text: String,
}

/// A change that by itself makes a core meet all deadlines.
#[derive(Clone, Debug, PartialEq)]
pub enum Remedy {
    /// A longer period of the task that misses its deadline. The deadline grows by the same time.
    Period {
        /// Name of the task.
        task: String,
        /// Shortest period that helps, in ns.
        period_ns: u64,
    },
    /// A shorter refill time.
    Refill {
        /// Longest refill time Δ that helps, in ns.
        refill_ns: u64,
    },
    /// Shorter execution times of all tasks of the core.
    Execution {
        /// Largest factor on the execution times that helps.
        factor: f64,
    },
    /// More partitions for the core, which are allocated anew.
    Partitions {
        /// Fewest partitions that help.
        count: u32,
    },
    /// Another core for the task that misses its deadline, with the partitions that the other core has.
    Move {
        /// Name of the task that misses.
        task: String,
        /// CPU of the core that can take the task.
        cpu: u32,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Period { task, period_ns } => {
                write!(f, "a period of at least {} ms for {task}", *period_ns as f64 / 1e6)
            }
            Self::Refill { refill_ns } => {
                write!(f, "a refill time of at most {} us per partition", *refill_ns as f64 / 1e3)
            }
            Self::Execution { factor } => write!(f, "execution times of at most {factor} times the present ones"),
            Self::Partitions { count } => write!(f, "{count} partitions for the core, allocated anew"),
            Self::Move { task, cpu } => write!(f, "{task} on CPU {cpu} instead, with the partitions that core has"),
        }
    }
}

/// Returns whether an allocation of `partitions` partitions was found with which all `members` meet their deadlines on one
/// core. The search is limited, so false proves nothing.
fn fits(set: &TaskSet, analysis: Analysis, members: &[usize], partitions: u32) -> bool {
    let effort = Effort { any: true, nodes: 100_000, ..Effort::EXACT };
    best(set, Rules::of(set, analysis), members, partitions, effort).found.is_some()
}

/// Returns the fewest partitions for which an allocation was found with which `members` (by priority) meet their deadlines
/// on one core; `None` if there are none.
pub fn fewest_for_core(set: &TaskSet, members: &[usize], analysis: Analysis) -> Option<u32> {
    let most = set.platform().partitions.min(super::PLAN_PARTITIONS_MAX);
    (1..=most).find(|&count| fits(set, analysis, members, count))
}

fn takes(set: &TaskSet, task: usize, lock: u32) -> bool {
    set.holds(task).iter().any(|hold| hold.lock == lock)
}

/// Returns a bundle to take apart when there is no plan: one that fits no core alone, else one without a core, else the one
/// that needs the most memory. `None` if there is no bundle that can be taken apart.
pub(super) fn bundle_in_the_way(set: &TaskSet, plan: &Plan) -> Option<String> {
    // Tasks that share a lock must stay on one core.
    let in_bundle = |bundle: &[usize], lock| bundle.iter().filter(|&&task| takes(set, task, lock)).count();
    let shares_lock = |bundle: &[usize]| {
        let mut holds = bundle.iter().flat_map(|&task| set.holds(task).iter().collect::<Vec<_>>());
        holds.any(|hold| in_bundle(bundle, hold.lock) > 1)
    };
    let together = bundles(set.tasks()).into_iter().filter(|bundle| bundle.len() > 1 && !shares_lock(bundle));
    let weight = |bundle: &Vec<usize>| {
        let mut members = bundle.clone();
        members.sort_by_key(|&task| set.rank(task));
        let memory: u64 = bundle.iter().map(|&task| set.memory_per_partition(task, 1)).fold(0, u64::saturating_add);
        let unplaced = bundle.iter().any(|&task| plan.unplaced.contains(&set.tasks()[task].name));
        (fewest_for_core(set, &members, plan.analysis).is_none(), unplaced, memory)
    };
    let chosen = together.max_by_key(weight)?;
    set.tasks()[chosen[0]].bundle.clone()
}

/// Returns changes each of which makes core `at` meet every deadline by itself; empty if the core meets them already. `cpus`: the CPU
/// of each core.
pub fn remedies(set: &TaskSet, allocated: &Allocated, cpus: &[u32], at: usize, analysis: Analysis) -> Vec<Remedy> {
    let conditions = Conditions::of(set);
    let mut ordered = allocated[at].clone();
    ordered.sort_by_key(|&(task, _)| set.rank(task));
    let core: Vec<CoreTask> = ordered.iter().map(|&(task, partitions)| core_task(set, task, partitions)).collect();
    let bounds = analyze(&core, conditions, analysis);
    let missed = |bound: &Bound| bound.verdict == Verdict::Misses;
    let Some(index) = bounds.iter().position(missed) else { return Vec::new() };
    let name = |task: usize| set.tasks()[task].name.clone();
    let mut found = Vec::new();
    let mut workspace = Workspace::default();

    // Only this task is slowed. A further miss of a task below it may remain.
    let longest = core[index].period_ns.saturating_mul(64);
    let slowed = |period_ns: u64| {
        let mut core = core.clone();
        let grown = period_ns - core[index].period_ns;
        core[index].period_ns = period_ns;
        core[index].deadline_ns = core[index].deadline_ns.saturating_add(grown);
        core
    };
    let late = last_that_holds(core[index].period_ns, longest, |period_ns| {
        !schedulable(&slowed(period_ns), conditions, analysis, &mut workspace)
    });
    if let Change::Most(period_ns) = late {
        found.push(Remedy::Period { task: name(ordered[index].0), period_ns: period_ns + 1 });
    }
    if let Change::Most(refill_ns) = largest_refill(&core, conditions, analysis) {
        found.push(Remedy::Refill { refill_ns });
    }
    if let Change::Most(ppm) = largest_scale_ppm(&core, conditions, analysis)
        && schedulable(&scaled(&core, ppm), conditions, analysis, &mut workspace)
    {
        found.push(Remedy::Execution { factor: ppm as f64 / 1e6 });
    }
    let union = |members: &[(usize, PartitionSet)]| {
        members.iter().fold(PartitionSet::default(), |all, (_, set)| all.union(set)).len()
    };
    let members: Vec<usize> = ordered.iter().map(|&(task, _)| task).collect();
    let elsewhere: u32 = match set.platform().scope {
        Scope::Shared => {
            allocated.iter().enumerate().filter(|&(core, _)| core != at).map(|(_, members)| union(members)).sum()
        }
        Scope::Private => 0,
    };
    let most = set.platform().partitions.saturating_sub(elsewhere).min(super::PLAN_PARTITIONS_MAX);
    if let Some(count) = (union(&ordered)..=most).find(|&count| count > 0 && fits(set, analysis, &members, count)) {
        found.push(Remedy::Partitions { count });
    }
    let moved = ordered[index].0;
    // A task stays on one core with the tasks with which it shares a lock.
    let tied =
        members.iter().any(|&other| other != moved && set.holds(moved).iter().any(|hold| takes(set, other, hold.lock)));
    let elsewhere = cpus.iter().zip(allocated).enumerate().filter(|&(core, _)| core != at && !tied);
    for (_, (&cpu, others)) in elsewhere {
        let mut with: Vec<usize> = others.iter().map(|&(task, _)| task).chain([moved]).collect();
        with.sort_by_key(|&task| set.rank(task));
        let without: Vec<CoreTask> =
            core.iter().enumerate().filter(|&(other, _)| other != index).map(|(_, task)| *task).collect();
        if union(others) > 0
            && fits(set, analysis, &with, union(others))
            && schedulable(&without, conditions, analysis, &mut workspace)
        {
            found.push(Remedy::Move { task: name(moved), cpu });
            break;
        }
    }
    found
}

/// Explains why each task of a plan has its core and its partitions.
pub fn explain(set: &TaskSet, plan: &Plan) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for core in &plan.cores {
        for planned in &core.tasks {
            let Some(index) = set.tasks().iter().position(|task| task.name == planned.name) else { continue };
            let task = &set.tasks()[index];
            let count = planned.partitions.len();
            let sharers: Vec<&str> = core
                .tasks
                .iter()
                .filter(|other| {
                    other.name != planned.name && other.partitions.iter().any(|p| planned.partitions.contains(p))
                })
                .map(|other| other.name.as_str())
                .collect();
            let least = set.fewest_partitions(index).unwrap_or(0);
            let gain = (task.wcet_ns[0] - task.wcet_ns[count - 1]) as f64 / task.period_ns as f64;
            let mut text = match count as u32 {
                1 => "one partition holds its memory".to_owned(),
                few if few == least && least > 1 => format!("its memory needs {least} partitions"),
                _ => format!("{count} partitions save {:.2} % of the CPU against one", gain * 100.0),
            };
            if sharers.is_empty() {
                text += "; it shares none";
            } else {
                let warm_up = sharers.len().min(1) as u64 * set.platform().refill_ns;
                let per_job = warm_up
                    * planned
                        .partitions
                        .iter()
                        .filter(|p| {
                            core.tasks.iter().any(|other| other.name != planned.name && other.partitions.contains(p))
                        })
                        .count() as u64;
                text += &format!(
                    "; sharing with {} costs {:.3} ms of warm-up per job",
                    sharers.join(", "),
                    per_job as f64 / 1e6
                );
            }
            let slack = planned.response_ns.map(|response| planned.deadline_ns - response);
            if let Some(slack) = slack {
                text += &format!("; {:.2} ms are left before its deadline", slack as f64 / 1e6);
            }
            reasons.push(Reason { task: planned.name.clone(), text });
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taskset::TaskSet;
    use crate::taskset::tests::{platform, task};

    #[test]
    fn every_remedy_named_mends_the_core() {
        // C = 40 + 70 of T = 100 and 120 with D = T: R2 = 70 + 2 40 > 120.
        let tasks = vec![task("a", 100, 0, &[40, 30]), task("b", 120, 0, &[70, 50]), task("c", 500, 0, &[1, 1])];
        let (set, _) = TaskSet::new(platform(2, 4, 64, 1), tasks).unwrap();
        let one = |partition| PartitionSet::range(partition, 1);
        let allocated = vec![vec![(0, one(0)), (1, one(0))], vec![(2, one(1))]];
        let found = remedies(&set, &allocated, &[2, 5], 0, Analysis::Kim2013);
        // R = 70 + 1 + 2 (40 + 1 + 1) = 155; with T = D = 155 it holds, and no shorter: at 154 it misses.
        assert!(found.contains(&Remedy::Period { task: "b".into(), period_ns: 155 }), "{found:?}");
        // With two partitions each: 50 + 30 = 80 <= 100, and delays of at most 2 2 + 2.
        assert!(found.contains(&Remedy::Partitions { count: 2 }), "{found:?}");
        assert!(found.contains(&Remedy::Move { task: "b".into(), cpu: 5 }), "{found:?}");
        // No refill time helps: 70 + 2 40 is too much without any.
        assert!(!found.iter().any(|remedy| matches!(remedy, Remedy::Refill { .. })), "{found:?}");
        assert!(remedies(&set, &allocated, &[2, 5], 1, Analysis::Kim2013).is_empty());
    }
}
