//! The reference implementation of the analyses: it plays a schedule event by event, with a cache that remembers which task
//! loaded each partition.
//!
//! It uses no response-time equations. A job refills the partitions that it misses, one after the other, in a time of Δ each. A
//! running task displaces the partitions that it shares, and all of the private levels. A job that holds a lock runs at the
//! priority of the highest task that takes it. A release interrupts any task. No schedule played here may exceed a bound of a
//! sound analysis, and each schedule shows that a smaller bound would be wrong.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Charges, CoreTask};
use crate::taskset::{PARTITIONS_MAX, PartitionSet};

/// A job of the schedule to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the job's task on the core.
    pub task: usize,
    /// Arrival of the job, from which its response time counts, in ns.
    pub arrival_ns: u64,
    /// Release of the job, in ns, later than the arrival by at most the task's jitter.
    pub release_ns: u64,
    /// Execution time of the job, in ns, at most the task's worst case.
    pub execution_ns: u64,
    /// Critical section of the job, if it takes a lock.
    pub section: Option<Section>,
}

/// A critical section of a job: the job holds the lock while its execution passes `start_ns..start_ns + length_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// The lock that is taken, one of the locks of the job's task.
    pub lock: u32,
    /// Execution time before the lock is taken, in ns.
    pub start_ns: u64,
    /// Execution time with the lock, in ns, at most the longest that the task declares for the lock.
    pub length_ns: u64,
}

/// One interval of a schedule, for drawing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Index of the task on the core.
    pub task: usize,
    /// Start of the interval, in ns.
    pub start_ns: u64,
    /// End of the interval, in ns.
    pub end_ns: u64,
    /// Whether the task refilled partitions instead of executing.
    pub refilling: bool,
}

/// A job that was played to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Index of the job's task on the core.
    pub task: usize,
    /// Arrival of the job, in ns.
    pub arrival_ns: u64,
    /// Release of the job, in ns.
    pub release_ns: u64,
    /// Time at which the job first had the CPU, in ns.
    pub start_ns: u64,
    /// Time at which the job was complete, in ns.
    pub completion_ns: u64,
}

/// Outcome of playing a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Longest response time of each task over the jobs that completed, in ns.
    pub responses_ns: Vec<u64>,
    /// The jobs that completed, in the order of their completions.
    pub jobs: Vec<Completed>,
    /// The intervals in which tasks had the CPU, in order.
    pub intervals: Vec<Interval>,
}

struct Job {
    arrival_ns: u64,
    release_ns: u64,
    execution_ns: u64,
    start_ns: u64,
    started: bool,
    /// The lock that the job takes; `None` if it takes no lock.
    held: Option<Held>,
    /// Time for which the job still has to refill the private levels, in ns.
    private_ns: u64,
    /// Partitions that the job still has to refill.
    missing: PartitionSet,
    /// The partition that the job was refilling last, and the time spent on it. The part that was refilled stays until another
    /// task displaces it.
    partial: Option<(u32, u64)>,
    /// Rest of the current nonpreemptive interval, in ns; `None` while no other task waits.
    nonpreemptive_left_ns: Option<u64>,
}

/// The lock of a job. The job takes and releases the lock when the given execution times remain, in ns.
struct Held {
    /// Index of the highest task that takes the lock.
    ceiling: usize,
    taken_ns: u64,
    left_ns: u64,
}

/// Action of a job that has the CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    RefillPrivateLevels,
    /// Refills a partition. `spent_ns`: the time that was spent on it so far.
    Refill {
        partition: u32,
        spent_ns: u64,
    },
    Execute,
}

impl Job {
    fn new(core: &[CoreTask], arrival: &Arrival, switch_ns: u64) -> Job {
        let execution_ns = arrival.execution_ns.saturating_add(switch_ns.saturating_mul(2));
        let held = arrival.section.map(|section| {
            let takes = |task: &CoreTask| task.holds.iter().any(|hold| hold.lock == section.lock);
            let taken_ns = execution_ns.saturating_sub(section.start_ns);
            Held {
                ceiling: core.iter().position(takes).unwrap_or(arrival.task),
                taken_ns,
                left_ns: taken_ns.saturating_sub(section.length_ns),
            }
        });
        Job {
            arrival_ns: arrival.arrival_ns,
            release_ns: arrival.release_ns,
            execution_ns,
            start_ns: 0,
            started: false,
            held,
            private_ns: 0,
            missing: PartitionSet::default(),
            partial: None,
            nonpreemptive_left_ns: None,
        }
    }

    /// Returns the lock that the job holds now; `None` if it holds no lock.
    fn holding(&self) -> Option<&Held> {
        let now = |held: &&Held| self.execution_ns <= held.taken_ns && self.execution_ns > held.left_ns;
        self.held.as_ref().filter(|_| self.started).filter(now)
    }

    /// Returns the priority of this job of `task`, 0 for the highest. A job that holds a lock precedes the task at the ceiling of
    /// the lock.
    fn priority(&self, task: usize) -> (usize, bool) {
        self.holding().map_or((task, true), |held| (held.ceiling.min(task), false))
    }

    /// Returns the longest nonpreemptive interval that may begin now, at most `most_ns`: it lies within the critical section or
    /// ends before it.
    fn nonpreemptive_ns(&self, most_ns: u64) -> u64 {
        match &self.held {
            Some(held) if self.holding().is_some() => most_ns.min(self.execution_ns - held.left_ns),
            Some(held) if held.taken_ns < self.execution_ns => most_ns.min(self.execution_ns - held.taken_ns - 1),
            _ => most_ns,
        }
    }

    /// Returns the execution time until the job ends, takes its lock or releases it.
    fn undisturbed_ns(&self) -> u64 {
        let Some(held) = &self.held else { return self.execution_ns };
        let next = [held.taken_ns, held.left_ns].into_iter().find(|&rest| rest < self.execution_ns).unwrap_or(0);
        self.execution_ns - next
    }

    /// Returns the action of the job when it has the CPU, and its longest duration in ns.
    fn next_action(&self, charges: Charges) -> (Action, u64) {
        if self.private_ns > 0 {
            return (Action::RefillPrivateLevels, self.private_ns);
        }
        match self.partial.or_else(|| self.missing.iter().next().map(|partition| (partition, 0))) {
            Some((partition, spent_ns)) => (Action::Refill { partition, spent_ns }, charges.refill_ns - spent_ns),
            None => {
                let preemptible_in_ns = self.nonpreemptive_left_ns.filter(|&rest| rest > 0).unwrap_or(u64::MAX);
                (Action::Execute, self.undisturbed_ns().min(preemptible_in_ns))
            }
        }
    }

    /// Carries out `action` for `step` ns, of at most the time of [`next_action`](Self::next_action). `awaited`: as for
    /// [`execute`](Self::execute).
    fn act(&mut self, action: Action, step: u64, charges: Charges, awaited: bool) {
        match action {
            Action::RefillPrivateLevels => self.private_ns -= step,
            Action::Refill { partition, spent_ns } if spent_ns + step == charges.refill_ns => {
                self.missing.remove(partition);
                self.partial = None;
            }
            Action::Refill { partition, spent_ns } => self.partial = Some((partition, spent_ns + step)),
            Action::Execute => self.execute(step, awaited),
        }
    }

    /// Executes the job for `step` ns. `awaited`: whether a higher task waits.
    fn execute(&mut self, step: u64, awaited: bool) {
        self.execution_ns -= step;
        if let Some(rest) = &mut self.nonpreemptive_left_ns {
            *rest -= step.min(*rest);
        }
        // A task that waits for the lock runs as soon as the job releases the lock.
        let left = self.held.as_ref().is_some_and(|held| held.left_ns == self.execution_ns);
        if left && awaited {
            self.nonpreemptive_left_ns = Some(0);
        }
    }

    /// Gives the job the CPU, for the first time or again. `owned`: whether a partition still holds the data of its task.
    fn resume(&mut self, task: &CoreTask, now: u64, owned: impl Fn(u32) -> bool) {
        if !self.started {
            self.start_ns = now;
        }
        self.find_missing(task, owned);
        self.started = true;
        self.nonpreemptive_left_ns = None;
    }

    /// Determines the partitions and levels that the job has to refill before it continues. `owned`: as for [`resume`](Self::resume).
    fn find_missing(&mut self, task: &CoreTask, owned: impl Fn(u32) -> bool) {
        let wanted = if self.started { &task.useful } else { &task.partitions };
        // A part that was refilled and is not useful has been used already, so losing it costs nothing.
        self.partial = self.partial.filter(|&(partition, _)| owned(partition) || !task.useful.contains(partition));
        wanted.iter().filter(|&partition| !owned(partition)).for_each(|partition| self.missing.insert(partition));
    }
}

/// Returns for each partition the task that owns it: a task owns the partitions that it alone uses.
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

/// Returns the task that has the CPU next: the task of the highest priority, or the running task while it cannot be preempted; `None` if no
/// job waits.
fn chosen(core: &[CoreTask], queues: &mut [VecDeque<Job>], running: Option<usize>) -> Option<usize> {
    let first = |task: usize| Some((queues[task].front()?.priority(task), task));
    let (_, highest) = (0..core.len()).filter_map(first).min()?;
    let Some(current) = running.filter(|&current| current != highest) else { return Some(highest) };
    let job = queues[current].front_mut().expect("a running task has a job");
    let nonpreemptive_left_ns =
        job.nonpreemptive_left_ns.unwrap_or_else(|| job.nonpreemptive_ns(core[current].nonpreemptive_ns));
    job.nonpreemptive_left_ns = Some(nonpreemptive_left_ns);
    Some(if nonpreemptive_left_ns > 0 { current } else { highest })
}

/// Plays `arrivals` (ascending by release) on a core until all jobs are complete or `horizon_ns` has passed.
///
/// At the start, partitions that one task alone uses are warm unless `charges.cold_start` is set. Shared partitions hold nobody's
/// data.
pub fn play(core: &[CoreTask], charges: Charges, arrivals: &[Arrival], horizon_ns: u64) -> Played {
    play_with_steal(core, charges, arrivals, &[], horizon_ns)
}

/// Plays `arrivals` as [`play`] does, but a hypervisor takes the CPU in the intervals `steal` (ascending, apart from each other). In these intervals
/// nothing runs and interrupts wait. Afterwards neither partitions nor private levels hold anything.
pub fn play_with_steal(
    core: &[CoreTask],
    charges: Charges,
    arrivals: &[Arrival],
    steal: &[Range<u64>],
    horizon_ns: u64,
) -> Played {
    let mut owners =
        if charges.cold_start { vec![None; PARTITIONS_MAX as usize] } else { owners_of_unshared_partitions(core) };
    let mut queues: Vec<VecDeque<Job>> = core.iter().map(|_| VecDeque::new()).collect();
    let mut played = Played { responses_ns: vec![0; core.len()], ..Played::default() };
    let mut coming = arrivals.iter().peekable();
    let mut steal = steal.iter().peekable();
    // Whether the job that ran when the hypervisor took the CPU has yet to find out what it lost.
    let mut displaced = false;
    let mut now = 0;
    let mut running: Option<usize> = None;
    // The task whose data the private levels hold, and the time for which interrupts still have the CPU.
    let mut resident: Option<usize> = None;
    let mut interrupted_ns: u64 = 0;
    while now < horizon_ns {
        while let Some(next) = coming.next_if(|next| next.release_ns <= now) {
            queues[next.task].push_back(Job::new(core, next, charges.switch_ns));
            interrupted_ns = interrupted_ns.saturating_add(charges.release_interrupt_ns);
        }
        if steal.peek().is_some_and(|taken| taken.start <= now) {
            owners.fill(None);
            (resident, displaced) = (None, true);
            let end_ns = steal.peek().map_or(now, |taken| taken.end).min(horizon_ns);
            if end_ns > now {
                now = coming.peek().map_or(end_ns, |next| next.release_ns.min(end_ns));
            } else {
                steal.next();
            }
            continue;
        }
        let undisturbed_until = steal.peek().map_or(horizon_ns, |taken| taken.start.min(horizon_ns));
        if interrupted_ns > 0 {
            let until = coming.peek().map_or(undisturbed_until, |next| next.release_ns.min(undisturbed_until));
            let step = interrupted_ns.min(until - now);
            (now, interrupted_ns) = (now + step, interrupted_ns - step);
            continue;
        }
        let Some(chosen) = chosen(core, &mut queues, running) else {
            match coming.peek() {
                Some(next) => now = next.release_ns,
                None => break,
            }
            running = None;
            continue;
        };
        let (above, rest) = queues.split_at_mut(chosen);
        let job = rest[0].front_mut().expect("a chosen task has a job");
        let resumes = running != Some(chosen) || !job.started;
        if resumes || displaced {
            let owned = |partition: u32| owners[partition as usize] == Some(chosen);
            if resumes {
                job.resume(&core[chosen], now, owned)
            } else {
                job.find_missing(&core[chosen], owned)
            }
            (running, displaced) = (Some(chosen), false);
            if resident.replace(chosen) != Some(chosen) {
                job.private_ns = charges.preemption_ns;
            }
        }
        let (action, mut step) = job.next_action(charges);
        if let Action::Refill { partition, .. } = action {
            owners[partition as usize] = Some(chosen);
        }
        if let Some(next) = coming.peek() {
            step = step.min(next.release_ns - now);
        }
        step = step.min(undisturbed_until - now);
        if step > 0 {
            let refilling = action != Action::Execute;
            played.intervals.push(Interval { task: chosen, start_ns: now, end_ns: now + step, refilling });
        }
        now += step;
        job.act(action, step, charges, above.iter().any(|queue| !queue.is_empty()));
        if action == Action::Execute && job.execution_ns == 0 {
            let Job { arrival_ns, release_ns, start_ns, .. } = *job;
            played.responses_ns[chosen] = played.responses_ns[chosen].max(now - arrival_ns);
            played.jobs.push(Completed { task: chosen, arrival_ns, release_ns, start_ns, completion_ns: now });
            queues[chosen].pop_front();
            running = None;
        }
    }
    played
}

/// Returns a release of every task at time 0 and after each period: the critical instant without caches.
pub fn synchronous(core: &[CoreTask], horizon_ns: u64) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for (task, known) in core.iter().enumerate() {
        let mut arrival_ns = 0;
        while arrival_ns < horizon_ns {
            let (release_ns, execution_ns) = (arrival_ns, known.wcet_ns);
            arrivals.push(Arrival { task, arrival_ns, release_ns, execution_ns, section: None });
            arrival_ns = arrival_ns.saturating_add(known.period_ns);
        }
    }
    arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
    arrivals
}

/// Returns releases with random offsets, gaps and jitter, where most jobs take their worst case.
pub fn sporadic(core: &[CoreTask], horizon_ns: u64, random: &mut fastrand::Rng) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for (task, known) in core.iter().enumerate() {
        let mut arrival_ns = random.u64(0..known.period_ns);
        // Full jitter once and none afterwards brings two releases closest together.
        while arrival_ns < horizon_ns {
            let jitter = if random.bool() { known.jitter_ns } else { random.u64(0..=known.jitter_ns) };
            let execution_ns = if random.u8(0..4) > 0 { known.wcet_ns } else { random.u64(1..=known.wcet_ns) };
            let section = critical_section(known, execution_ns, random);
            arrivals.push(Arrival { task, arrival_ns, release_ns: arrival_ns + jitter, execution_ns, section });
            let gap = if random.u8(0..4) > 0 { 0 } else { random.u64(0..known.period_ns) };
            arrival_ns += known.period_ns + gap;
        }
    }
    arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
    arrivals
}

/// Returns releases that attack τ(target). Lower tasks start first, so that the job of the target and all higher jobs find their partitions
/// displaced. The higher tasks are released together with the target, or one after the other for the deepest preemptions.
pub fn adversarial(core: &[CoreTask], target: usize, horizon_ns: u64, random: &mut fastrand::Rng) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let instant =
        core.iter().skip(target + 1).map(|task| task.wcet_ns).fold(1, u64::saturating_add).min(horizon_ns / 2);
    for (task, known) in core.iter().enumerate() {
        let mut arrival_ns = match task.cmp(&target) {
            std::cmp::Ordering::Greater => random.u64(0..=instant),
            std::cmp::Ordering::Equal => instant,
            // A higher task may arrive later than the tasks between it and the target, so that it can preempt them.
            std::cmp::Ordering::Less => instant + random.u64(0..=(target - task) as u64 * 3),
        };
        while arrival_ns < horizon_ns {
            let (release_ns, execution_ns) = (arrival_ns, known.wcet_ns);
            let section = critical_section(known, execution_ns, random);
            arrivals.push(Arrival { task, arrival_ns, release_ns, execution_ns, section });
            arrival_ns += known.period_ns;
        }
    }
    arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
    arrivals
}

/// Returns releases that attack τ(target) through a lock. A lower task with a cold cache takes a lock just before the target and some higher
/// tasks are released. The other higher tasks preempt the holder one after the other. Without such a lock this does the same as
/// [`adversarial`].
pub fn contended(core: &[CoreTask], target: usize, horizon_ns: u64, random: &mut fastrand::Rng) -> Vec<Arrival> {
    let mut arrivals = adversarial(core, target, horizon_ns, random);
    let takes = |task: &CoreTask, lock| task.holds.iter().any(|hold| hold.lock == lock);
    let blocks = |lock| core[..=target].iter().any(|task| takes(task, lock));
    let holders: Vec<(usize, crate::taskset::Hold)> = (target + 1..core.len())
        .flat_map(|task| core[task].holds.iter().map(move |hold| (task, hold)))
        .filter(|(_, hold)| blocks(hold.lock))
        .collect();
    let Some((holder, hold)) = random.choice(holders) else { return arrivals };
    // This is late enough for the other lower tasks to complete and to displace all that they can.
    let lower = core[target + 1..].iter().map(|task| task.wcet_ns).fold(8, u64::saturating_add);
    let instant = lower.saturating_mul(3).min(horizon_ns / 2);
    let length_ns = hold.longest_ns.min(core[holder].wcet_ns);
    let section = Some(Section { lock: hold.lock, start_ns: 0, length_ns });
    let mut next = vec![None; core.len()];
    for arrival in &mut arrivals {
        let task = arrival.task;
        let first = match task.cmp(&target) {
            std::cmp::Ordering::Equal => instant,
            std::cmp::Ordering::Less => instant + random.u64(0..=length_ns + 3),
            std::cmp::Ordering::Greater if task == holder => instant - random.u64(1..=3),
            std::cmp::Ordering::Greater => random.u64(0..=instant / 3),
        };
        if task == holder && next[task].is_none() {
            arrival.section = section;
        }
        let arrival_ns = *next[task].get_or_insert(first);
        (arrival.arrival_ns, arrival.release_ns) = (arrival_ns, arrival_ns);
        next[task] = Some(arrival_ns + core[task].period_ns);
    }
    arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
    arrivals
}

/// Draws a critical section for a job that executes for `execution_ns`: one of its task's locks, in most cases held as long as possible;
/// `None` if the task takes no locks.
fn critical_section(task: &CoreTask, execution_ns: u64, random: &mut fastrand::Rng) -> Option<Section> {
    let hold = random.choice(task.holds.iter().collect::<Vec<_>>())?;
    let longest = hold.longest_ns.min(execution_ns);
    let length_ns = if random.u8(0..4) > 0 { longest } else { random.u64(1..=longest) };
    let start_ns = if random.bool() { 0 } else { random.u64(0..=execution_ns - length_ns) };
    Some(Section { lock: hold.lock, start_ns, length_ns })
}
