//! Random cores: drawn task by task, or those of a plan.

use super::super::{Charges, CoreTask, core_tasks};
use super::Case;
use crate::plan::{self, Method, Request};
use crate::replacement::Replacement;
use crate::taskset::{Holds, Lock, MemoryRule, PartitionSet, Platform, Refills, Scope, Task, TaskSet};
use crate::units::Bytes;

impl Case {
    /// Returns the core of a seed. Cores of even seeds are plain. Of every 16 other cores, two are cores of plans, and one allows any replacement
    /// policy.
    pub fn of(seed: u64, random: &mut fastrand::Rng) -> Case {
        let plain = seed.is_multiple_of(2);
        let planned = if matches!(seed % 32, 5 | 21) { Case::planned(random) } else { None };
        let mut case = planned.unwrap_or_else(|| Case::random(random, plain));
        if seed % 32 == 11 {
            case.charges.replacement = Replacement::Any;
        }
        case
    }

    /// Draws a core of 2 to 5 tasks on 1 to 6 partitions; about half of such cores are schedulable. `plain`: uses only what
    /// \[Kim2013\] covers.
    pub fn random(random: &mut fastrand::Rng, plain: bool) -> Case {
        let partitions = random.u32(1..=6);
        let count = random.usize(2..=5);
        let mut core: Vec<CoreTask> = (0..count).map(|_| random_task(random, count, partitions, plain)).collect();
        core.sort_by_key(|task| task.deadline_ns);
        let extra = u64::from(!plain && random.u8(0..4) == 0);
        let mut charges = Charges {
            refill_ns: random.u64(0..=3),
            switch_ns: extra,
            cold_start: !plain && random.bool(),
            ..Charges::default()
        };
        let mut analyzed = core.clone();
        if !plain {
            let sometimes =
                |random: &mut fastrand::Rng, most| if random.u8(0..3) == 0 { random.u64(1..=most) } else { 0 };
            charges.release_interrupt_ns = sometimes(random, 2);
            charges.preemption_ns = sometimes(random, 3);
            if random.u8(0..3) == 0 {
                set_apart(&mut core, partitions, random);
            }
            if random.bool() {
                take_locks(&mut core, random);
            }
            if random.u8(0..4) == 0 {
                random.shuffle(&mut core);
            }
            analyzed.clone_from(&core);
            if random.u8(0..3) == 0 {
                forget_locks(&mut analyzed);
            }
        }
        Case { core, analyzed, charges, withheld: Vec::new() }
    }

    /// Draws a set of 4 to 7 tasks with bundles, some of them with a lock, and plans it for two cores. Returns a core of the plan; `None` if
    /// there is no plan.
    fn planned(random: &mut fastrand::Rng) -> Option<Case> {
        let set = random_set(random);
        let method = random.choice([Method::Cata, Method::Wfd, Method::Bfd])?;
        let made = plan::plan(&set, &Request { method, ..Request::default() }).ok()?;
        let of = random.choice(&made.cores)?;
        let index = |name: &str| set.tasks().iter().position(|task| task.name == name);
        let members = of.tasks.iter().map(|task| Some((index(&task.name)?, task.partitions.iter().copied().collect())));
        let core = core_tasks(&set, &members.collect::<Option<Vec<_>>>()?);
        Some(Case { analyzed: core.clone(), core, charges: Charges::of(&set), withheld: Vec::new() })
    }
}

/// Draws a set of tasks. About half of them are in one of two bundles, each with a lock.
fn random_set(random: &mut fastrand::Rng) -> TaskSet {
    let partitions = random.u32(2..=6);
    let sometimes = |random: &mut fastrand::Rng, most| if random.u8(0..3) == 0 { random.u64(1..=most) } else { 0 };
    let tasks = (0..random.usize(4..=7)).map(|index| {
        let period_ns = random.u64(20..=120);
        let mut wcet_ns = random.u64(1..=period_ns / 3);
        let mut next = || {
            wcet_ns = (wcet_ns - random.u64(0..=wcet_ns / 4)).max(1);
            wcet_ns
        };
        let curve = (0..partitions).map(|_| next()).collect();
        let mut task = Task::new(format!("t{index}"), period_ns, Bytes(4096 * random.u64(1..=12)), curve);
        task.deadline_ns -= random.u64(0..=period_ns / 5);
        task.jitter_ns = sometimes(random, period_ns / 5);
        task.nonpreemptive_ns = sometimes(random, wcet_ns);
        task.exclusive = random.u8(0..8) == 0;
        if random.bool() {
            let bundle = random.choice(["a", "b"]).unwrap_or_default();
            task.bundle = Some(bundle.to_owned());
            task.locks
                .extend(random.bool().then(|| Lock { name: bundle.to_owned(), longest_ns: random.u64(1..=wcet_ns) }));
        }
        task
    });
    let tasks = tasks.collect();
    let platform = Platform {
        cores: 2,
        partitions,
        memory: Bytes(u64::from(partitions) * 10 * 4096),
        refill_ns: random.u64(0..=3),
        refills: Refills::default(),
        switch_ns: sometimes(random, 1),
        release_interrupt_ns: sometimes(random, 2),
        preemption_ns: sometimes(random, 3),
        replacement: Replacement::Lru,
        scope: if random.bool() { Scope::Shared } else { Scope::Private },
        page: Bytes(4096),
        memory_rule: MemoryRule::Pages,
        cold_start: random.bool(),
        supply: None,
    };
    TaskSet::new(platform, tasks).expect("a set within the limits").0
}

/// Gives the lowest task a partition of its own and more time, and the highest one less. The highest task is then released often while the lowest
/// one waits, which does not use what the others share.
fn set_apart(core: &mut [CoreTask], partition: u32, random: &mut fastrand::Rng) {
    let [highest, .., lowest] = core else { return };
    lowest.partitions = [partition].into_iter().collect();
    lowest.useful = lowest.partitions;
    (lowest.period_ns, lowest.deadline_ns) = (2 * lowest.period_ns, 2 * lowest.period_ns);
    (highest.period_ns, highest.wcet_ns) = (random.u64(10..=24), random.u64(1..=2));
    highest.deadline_ns = highest.period_ns;
    highest.jitter_ns = highest.jitter_ns.min(highest.period_ns / 4);
    for task in [lowest, highest] {
        task.nonpreemptive_ns = task.nonpreemptive_ns.min(task.wcet_ns);
    }
}

fn random_task(random: &mut fastrand::Rng, count: usize, partitions: u32, plain: bool) -> CoreTask {
    let period_ns = random.u64(8..=120);
    let mut set: PartitionSet = (0..partitions).filter(|_| random.bool()).collect();
    set.insert(random.u32(0..partitions));
    let mut task = CoreTask::new(random.u64(1..=1 + period_ns / (count as u64 + 1)), period_ns, set);
    if !plain {
        task.deadline_ns = period_ns - random.u64(0..=period_ns / 4);
        task.useful = set.iter().filter(|_| random.u8(0..3) > 0).collect();
        task.jitter_ns = if random.u8(0..4) == 0 { random.u64(0..=period_ns / 4) } else { 0 };
        task.nonpreemptive_ns = if random.u8(0..4) == 0 { random.u64(1..=task.wcet_ns) } else { 0 };
    }
    task
}

/// Adds one or two locks, each taken by about half of the tasks. In some cores the lowest task is long, so that it can hold a
/// lock over several jobs of higher tasks.
fn take_locks(core: &mut [CoreTask], random: &mut fastrand::Rng) {
    if let Some(lowest) = core.last_mut().filter(|_| random.u8(0..3) == 0) {
        let longer = 3 * lowest.period_ns;
        (lowest.period_ns, lowest.deadline_ns, lowest.wcet_ns) = (longer, longer, random.u64(10..=40));
        lowest.nonpreemptive_ns = lowest.nonpreemptive_ns.min(lowest.wcet_ns);
    }
    for lock in 0..random.u32(1..=2) {
        for task in core.iter_mut() {
            if random.bool() {
                let longest_ns = if random.bool() { task.wcet_ns } else { random.u64(1..=task.wcet_ns) };
                task.holds.insert(lock, longest_ns);
            }
        }
    }
}

/// Replaces the locks of each task by the longest time for which it is blocked.
fn forget_locks(core: &mut [CoreTask]) {
    let played = core.to_vec();
    let takes = |task: &CoreTask, lock| task.holds.iter().any(|hold| hold.lock == lock);
    for (index, task) in core.iter_mut().enumerate() {
        let blocks = |lock| played[..=index].iter().any(|task| takes(task, lock));
        let held = played[index + 1..].iter().flat_map(|below| below.holds.iter()).filter(|hold| blocks(hold.lock));
        task.blocking_ns = held.map(|hold| hold.longest_ns).max().unwrap_or(0);
        task.holds = Holds::default();
    }
}
