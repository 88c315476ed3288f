//! The reference implementation of the analyses: plays a schedule event by event, with a cache that remembers who loaded each partition.
//!
//! It knows nothing of response-time equations. A job refills what it does not find, one partition after the other, Δ
//! each; whatever runs displaces what it shares. No bound of a sound analysis is ever exceeded by any schedule played
//! here, and each schedule shows that a bound below it would be wrong.

use std::collections::VecDeque;

use super::{Charges, CoreTask};
use crate::taskset::{PARTITIONS_MAX, PartitionSet};

/// One job to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of its task on the core.
    pub task: usize,
    /// When it arrives; its response time counts from here.
    pub arrival_ns: u64,
    /// When it is released, at most the task's jitter later.
    pub release_ns: u64,
    /// How long it executes, at most the task's worst case.
    pub execution_ns: u64,
}

/// One stretch of a schedule, for drawing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the task on the core.
    pub task: usize,
    /// From when.
    pub start_ns: u64,
    /// Until when.
    pub end_ns: u64,
    /// Whether it refilled partitions rather than executed.
    pub refilling: bool,
}

/// What a schedule did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Longest response time of each task, over the jobs that completed.
    pub responses_ns: Vec<u64>,
    /// What ran when.
    pub stretches: Vec<Stretch>,
}

struct Job {
    arrival_ns: u64,
    execution_ns: u64,
    started: bool,
    /// Partitions it has yet to refill.
    missing: PartitionSet,
    /// The one it was refilling last, and for how long; what is refilled stays so until somebody displaces it.
    partial: Option<(u32, u64)>,
    /// Rest of the nonpreemptive stretch it is in, once somebody waits for it.
    stretch_ns: Option<u64>,
}

impl Job {
    fn new(arrival: &Arrival, switch_ns: u64) -> Job {
        Job {
            arrival_ns: arrival.arrival_ns,
            execution_ns: arrival.execution_ns.saturating_add(switch_ns.saturating_mul(2)),
            started: false,
            missing: PartitionSet::default(),
            partial: None,
            stretch_ns: None,
        }
    }

    /// Gives the job the CPU, for the first time or again. `owned`: whether a partition still holds the data of its task.
    fn resume(&mut self, task: &CoreTask, owned: impl Fn(u32) -> bool) {
        let wanted = if self.started { &task.useful } else { &task.partitions };
        // What was refilled and is not useful has been used already; losing it costs nothing.
        self.partial = self.partial.filter(|&(partition, _)| owned(partition) || !task.useful.contains(partition));
        wanted.iter().filter(|&partition| !owned(partition)).for_each(|partition| self.missing.insert(partition));
        self.started = true;
        self.stretch_ns = None;
    }
}

/// Partitions that one task alone uses are its own; nobody owns the others.
fn owners_of_unshared_partitions(core: &[CoreTask]) -> Vec<Option<usize>> {
    let mut owners = vec![None; PARTITIONS_MAX as usize];
    let used = core.iter().fold(PartitionSet::default(), |used, task| used.union(&task.partitions));
    for partition in used.iter() {
        let mut users = (0..core.len()).filter(|&task| core[task].partitions.contains(partition));
        if let (Some(only), None) = (users.next(), users.next()) {
            owners[partition as usize] = Some(only);
        }
    }
    owners
}

/// Plays `arrivals` (ascending by release) on a core, until all jobs are done or `horizon_ns` has passed.
///
/// At the start, partitions of one task are warm unless `charges.cold_start`; shared ones hold nobody's data.
pub fn play(core: &[CoreTask], charges: Charges, arrivals: &[Arrival], horizon_ns: u64) -> Played {
    let mut owners =
        if charges.cold_start { vec![None; PARTITIONS_MAX as usize] } else { owners_of_unshared_partitions(core) };
    let mut queues: Vec<VecDeque<Job>> = core.iter().map(|_| VecDeque::new()).collect();
    let mut played = Played { responses_ns: vec![0; core.len()], stretches: Vec::new() };
    let mut coming = arrivals.iter().peekable();
    let mut now = 0;
    let mut running: Option<usize> = None;
    while now < horizon_ns {
        while let Some(next) = coming.next_if(|next| next.release_ns <= now) {
            queues[next.task].push_back(Job::new(next, charges.switch_ns));
        }
        let Some(highest) = queues.iter().position(|queue| !queue.is_empty()) else {
            match coming.peek() {
                Some(next) => now = next.release_ns,
                None => break,
            }
            running = None;
            continue;
        };
        let chosen = match running {
            Some(current) if current > highest => {
                let job = queues[current].front_mut().expect("a running task has a job");
                let stretch = job.stretch_ns.get_or_insert(core[current].nonpreemptive_ns);
                if *stretch > 0 { current } else { highest }
            }
            _ => highest,
        };
        let job = queues[chosen].front_mut().expect("a chosen task has a job");
        if running != Some(chosen) || !job.started {
            job.resume(&core[chosen], |partition| owners[partition as usize] == Some(chosen));
            running = Some(chosen);
        }
        // Refill a missing partition, or execute.
        let refill = job.partial.or_else(|| job.missing.iter().next().map(|partition| (partition, 0)));
        let mut step = match refill {
            Some((partition, spent_ns)) => {
                owners[partition as usize] = Some(chosen);
                charges.refill_ns - spent_ns
            }
            None => job.execution_ns.min(job.stretch_ns.filter(|&rest| rest > 0).unwrap_or(u64::MAX)),
        };
        if let Some(next) = coming.peek() {
            step = step.min(next.release_ns - now);
        }
        step = step.min(horizon_ns - now);
        if step > 0 {
            let refilling = refill.is_some();
            played.stretches.push(Stretch { task: chosen, start_ns: now, end_ns: now + step, refilling });
        }
        now += step;
        match refill {
            Some((partition, spent_ns)) if spent_ns + step == charges.refill_ns => {
                job.missing.remove(partition);
                job.partial = None;
            }
            Some((partition, spent_ns)) => job.partial = Some((partition, spent_ns + step)),
            None => {
                job.execution_ns -= step;
                if let Some(rest) = &mut job.stretch_ns {
                    *rest -= step.min(*rest);
                }
                if job.execution_ns == 0 {
                    let response = now - job.arrival_ns;
                    played.responses_ns[chosen] = played.responses_ns[chosen].max(response);
                    queues[chosen].pop_front();
                    running = None;
                }
            }
        }
    }
    played
}

/// The first job of every task at time 0, further ones after exactly a period: the critical instant without caches.
pub fn synchronous(core: &[CoreTask], horizon_ns: u64) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for (task, known) in core.iter().enumerate() {
        let mut arrival_ns = 0;
        while arrival_ns < horizon_ns {
            arrivals.push(Arrival { task, arrival_ns, release_ns: arrival_ns, execution_ns: known.wcet_ns });
            arrival_ns = arrival_ns.saturating_add(known.period_ns);
        }
    }
    arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
    arrivals
}

/// Random offsets, gaps and jitter; most jobs take their worst case.
pub fn sporadic(core: &[CoreTask], horizon_ns: u64, random: &mut fastrand::Rng) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for (task, known) in core.iter().enumerate() {
        let mut arrival_ns = random.u64(0..known.period_ns);
        // Full jitter once, none afterwards, brings two releases closest together.
        while arrival_ns < horizon_ns {
            let jitter = if random.bool() { known.jitter_ns } else { random.u64(0..=known.jitter_ns) };
            let execution_ns = if random.u8(0..4) > 0 { known.wcet_ns } else { random.u64(1..=known.wcet_ns) };
            arrivals.push(Arrival { task, arrival_ns, release_ns: arrival_ns + jitter, execution_ns });
            let gap = if random.u8(0..4) > 0 { 0 } else { random.u64(0..known.period_ns) };
            arrival_ns += known.period_ns + gap;
        }
    }
    arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
    arrivals
}

/// Attacks τ(target): lower tasks start first, so that its job and all above it find their partitions displaced; the
/// tasks above are then released together with it, or one after the other to preempt as deeply as possible.
pub fn adversarial(core: &[CoreTask], target: usize, horizon_ns: u64, random: &mut fastrand::Rng) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let instant =
        core.iter().skip(target + 1).map(|task| task.wcet_ns).fold(1, u64::saturating_add).min(horizon_ns / 2);
    for (task, known) in core.iter().enumerate() {
        let mut arrival_ns = match task.cmp(&target) {
            std::cmp::Ordering::Greater => random.u64(0..=instant),
            std::cmp::Ordering::Equal => instant,
            // Each interval in which a higher task arrives lies within the execution of the one it preempts.
            std::cmp::Ordering::Less => instant + random.u64(0..=(target - task) as u64 * 3),
        };
        while arrival_ns < horizon_ns {
            arrivals.push(Arrival { task, arrival_ns, release_ns: arrival_ns, execution_ns: known.wcet_ns });
            arrival_ns += known.period_ns;
        }
    }
    arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
    arrivals
}
