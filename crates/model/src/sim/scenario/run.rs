//! Runs a scenario.

mod releases;
mod setup;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::Read;

use super::{CacheOutcome, Outcome, Scenario, ScenarioError, Source, TaskAtLevel, TaskOutcome};
use crate::sim::{Access, CacheId, Hierarchy, Kind, Level, MachineModel, PageTable, Tally};
use crate::trace::{Reader, TraceError};
use crate::units::{Bytes, CpuId};
use releases::Releases;

/// Opens a trace by the name that the scenario gives it.
pub type Open<'a> = dyn FnMut(&str) -> std::io::Result<Box<dyn Read>> + 'a;

/// Runs a scenario on a machine.
///
/// `progress` gets the number of accesses from time to time, and returns whether to continue. An interrupted run returns the
/// outcome so far.
pub fn run(
    scenario: &Scenario,
    machine: &MachineModel,
    open: &mut Open<'_>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Outcome, ScenarioError> {
    scenario.check(machine)?;
    let mut simulation = Simulation::new(scenario, machine)?;
    let mut accesses = 0u64;
    while simulation.unfinished > 0 {
        let Some(cpu) = simulation.next_cpu() else { break };
        simulation.step(cpu, open)?;
        accesses += 1;
        if accesses.is_multiple_of(1 << 16) && !progress(accesses) {
            break;
        }
    }
    Ok(simulation.outcome())
}

/// A job that has begun and is not complete.
struct Job {
    task: usize,
    accesses: Accesses,
    made: u64,
}

/// The accesses of a program, in order.
enum Accesses {
    Workload(Box<dyn Iterator<Item = Access> + Send>),
    Trace { reader: Box<Reader<Box<dyn Read>>>, batch: VecDeque<Access> },
}

impl Accesses {
    fn next(&mut self) -> Result<Option<Access>, TraceError> {
        match self {
            Accesses::Workload(accesses) => Ok(accesses.next()),
            Accesses::Trace { reader, batch } => {
                if batch.is_empty() {
                    batch.extend(reader.next_batch()?);
                }
                Ok(batch.pop_front())
            }
        }
    }
}

struct Actor {
    cpu: usize,
    source: Source,
    table: PageTable,
    /// Colors in which stores of this task are written through, because another task is their only writer.
    through: Vec<bool>,
    jobs_left: u64,
    background: bool,
    data_only: bool,
    outcome: TaskOutcome,
}

/// An entry of a CPU's run queue.
enum Queued {
    Begins(usize),
    GoesOn(Job),
}

#[derive(Default)]
struct Cpu {
    clock: u64,
    /// The running job, on top of the jobs that it preempted.
    stack: Vec<Job>,
    queue: VecDeque<Queued>,
    /// The task of the current time slice, which began at `slice_began`.
    slice_of: Option<usize>,
    slice_began: u64,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    hierarchy: Hierarchy,
    page_bytes: Bytes,
    color_count: u16,
    /// Number of frames in each task's region of the physical address space.
    region_frames: u64,
    cpus: Vec<Cpu>,
    actors: Vec<Actor>,
    releases: Vec<Releases>,
    /// Number of foreground tasks that still have jobs to run.
    unfinished: usize,
    memory_frames: Option<u64>,
}

impl Simulation<'_> {
    /// Returns the CPU that goes next: of the CPUs with something to do, the one whose clock is lowest; `None` if no CPU has
    /// anything to do.
    fn next_cpu(&self) -> Option<usize> {
        let time = |(number, cpu): (usize, &Cpu)| {
            let idle = cpu.stack.is_empty() && cpu.queue.is_empty();
            Some((if idle { cpu.clock.max(self.next_release(number)?) } else { cpu.clock }, number))
        };
        self.cpus.iter().enumerate().filter_map(time).min().map(|(_, number)| number)
    }

    fn next_release(&self, cpu: usize) -> Option<u64> {
        let here = self.releases.iter().filter(|releases| releases.of.is_none() && self.actors[releases.by].cpu == cpu);
        here.filter_map(Releases::next).min()
    }

    /// Performs one access on a CPU, or ends the running job if it has no access left.
    fn step(&mut self, number: usize, open: &mut Open<'_>) -> Result<(), ScenarioError> {
        let cpu = &mut self.cpus[number];
        if cpu.stack.is_empty() && cpu.queue.is_empty() {
            let next = self.next_release(number).unwrap_or(0);
            let cpu = &mut self.cpus[number];
            cpu.clock = cpu.clock.max(next);
        }
        let clock = self.cpus[number].clock;
        for release in 0..self.releases.len() {
            let Releases { by, of, .. } = self.releases[release];
            if of.is_none() && self.actors[by].cpu == number {
                let passed = self.releases[release].passed(clock);
                self.release(by, passed, open)?;
            }
        }
        if self.cpus[number].stack.is_empty() {
            let job = match self.cpus[number].queue.pop_front() {
                Some(Queued::Begins(task)) => self.begin(task, open)?,
                Some(Queued::GoesOn(job)) => job,
                None => return Ok(()),
            };
            let cpu = &mut self.cpus[number];
            // The next job of a task continues in the same time slice.
            if cpu.slice_of.replace(job.task) != Some(job.task) {
                cpu.slice_began = clock;
            }
            cpu.stack.push(job);
        }
        let cpu = &mut self.cpus[number];
        let Some(job) = cpu.stack.last_mut() else { return Ok(()) };
        let task = job.task;
        let Some(access) = job.accesses.next()? else { return self.end_job(number) };
        let actor = &mut self.actors[task];
        if actor.data_only && access.kind == Kind::Fetch {
            return Ok(());
        }
        job.made += 1;
        for part in access.by_pages(self.page_bytes.0.trailing_zeros()) {
            let full = || {
                let what = "its pages are more than the memory has".to_owned();
                Err(self.scenario.tasks[task].wrong(what, "give more `memory`"))
            };
            if !actor.table.has_frame_for(part.address / self.page_bytes.0) {
                return full();
            }
            let physical = actor.table.translate(part);
            if physical.address / self.page_bytes.0 / self.region_frames != task as u64 {
                return full();
            }
            let color = physical.address / self.page_bytes.0 % u64::from(self.color_count);
            self.hierarchy.set_clock(cpu.clock);
            let (on, task) = (CpuId(number as u32), task as u16);
            if actor.through[color as usize] {
                self.hierarchy.access_through(on, task, physical);
            } else {
                self.hierarchy.access_by(on, task, physical);
            }
            let now = self.hierarchy.clock();
            actor.outcome.cycles += now - cpu.clock;
            actor.outcome.accesses += 1;
            cpu.clock = now;
        }
        let made = actor.outcome.accesses;
        for release in 0..self.releases.len() {
            if self.releases[release].of == Some(task) {
                let passed = self.releases[release].passed(made);
                self.release(self.releases[release].by, passed, open)?;
            }
        }
        let cpu = &mut self.cpus[number];
        let slice_over = self.scenario.slice_cycles.is_some_and(|slice| cpu.clock - cpu.slice_began >= slice);
        if slice_over && cpu.stack.len() == 1 && !cpu.queue.is_empty() {
            let job = cpu.stack.pop();
            cpu.queue.extend(job.map(Queued::GoesOn));
        }
        Ok(())
    }

    /// Releases a task `times` times on its CPU. The first release starts a job, unless a job of the task is still running
    /// there. All other releases are counted as lost.
    fn release(&mut self, task: usize, times: u64, open: &mut Open<'_>) -> Result<(), ScenarioError> {
        if times == 0 {
            return Ok(());
        }
        let cpu = self.actors[task].cpu;
        let suspended = self.cpus[cpu]
            .queue
            .iter()
            .filter_map(|queued| if let Queued::GoesOn(job) = queued { Some(job) } else { None });
        let under_way = self.cpus[cpu].stack.iter().chain(suspended).any(|job| job.task == task);
        self.actors[task].outcome.releases_lost += times - u64::from(!under_way);
        if !under_way {
            let job = self.begin(task, open)?;
            if let Some(below) = self.cpus[cpu].stack.last() {
                self.actors[below.task].outcome.preempted += 1;
            }
            self.cpus[cpu].stack.push(job);
        }
        Ok(())
    }

    fn begin(&self, task: usize, open: &mut Open<'_>) -> Result<Job, ScenarioError> {
        let accesses = match &self.actors[task].source {
            Source::Workload(workload) => Accesses::Workload(workload.accesses()),
            Source::Trace(trace, format) => {
                let input = open(trace).map_err(|source| ScenarioError::Open {
                    task: self.scenario.tasks[task].name.clone(),
                    trace: trace.clone(),
                    source,
                })?;
                Accesses::Trace { reader: Box::new(Reader::new(*format, trace, input)), batch: VecDeque::new() }
            }
        };
        Ok(Job { task, accesses, made: 0 })
    }

    fn end_job(&mut self, number: usize) -> Result<(), ScenarioError> {
        let cpu = &mut self.cpus[number];
        let Some(Job { task, made, .. }) = cpu.stack.pop() else { return Ok(()) };
        if made == 0 {
            let what = "its program accesses nothing".to_owned();
            return Err(
                self.scenario.tasks[task].wrong(what, "is the trace empty, or only instructions with `data_only`?")
            );
        }
        let actor = &mut self.actors[task];
        actor.outcome.jobs += 1;
        // Releases that came while the job ran are lost.
        for releases in self.releases.iter_mut().filter(|releases| releases.by == task && releases.of.is_none()) {
            actor.outcome.releases_lost += releases.passed(cpu.clock);
        }
        if !cpu.stack.is_empty() || actor.jobs_left == 0 {
            return Ok(());
        }
        if actor.background && self.scenario.slice_cycles.is_none() {
            cpu.queue.push_back(Queued::Begins(task));
        } else if actor.background {
            // The next job of the task continues in the same time slice.
            cpu.queue.push_front(Queued::Begins(task));
        } else {
            actor.jobs_left -= 1;
            if actor.jobs_left > 0 {
                cpu.queue.push_front(Queued::Begins(task));
            } else {
                self.unfinished -= 1;
            }
        }
        Ok(())
    }

    fn outcome(self) -> Outcome {
        let Simulation { hierarchy, page_bytes, actors, cpus, memory_frames, .. } = self;
        let cache = |(id, level): (CacheId, &Level)| {
            let colors = level.color_count(page_bytes);
            let (tasks, columns) = (actors.len(), colors as usize);
            let mut interference = hierarchy.interference(id).cloned().unwrap_or_default();
            let mut occupancy = hierarchy.occupancy(id, page_bytes);
            fill_up(&mut interference.tallies, tasks, columns);
            fill_up(&mut interference.evictions, tasks, tasks);
            fill_up(&mut interference.extrinsic_by, tasks, tasks);
            fill_up(&mut occupancy, tasks, columns);
            let lines_per_color = level.geometry.set_count * u64::from(level.geometry.ways) / u64::from(colors);
            CacheOutcome { name: level.name.clone(), colors, lines_per_color, interference, occupancy }
        };
        let caches: Vec<CacheOutcome> = hierarchy.caches().map(cache).collect();
        let tasks = (0..).zip(actors).map(|(number, actor): (u16, Actor)| {
            let at = |cache: &CacheOutcome| TaskAtLevel {
                name: cache.name.clone(),
                tally: cache.interference.of_task(number),
            };
            let levels = caches.iter().map(at);
            let pages = actor.table.pages();
            TaskOutcome {
                pages,
                frames_reserved: memory_frames
                    .map(|frames| actor.table.allocation().reserved_frames(frames, pages as u64)),
                levels: levels.filter(|at| at.tally != Tally::default()).collect(),
                ..actor.outcome
            }
        });
        let tasks = tasks.collect();
        let cpu_cycles = cpus.iter().map(|cpu| cpu.clock).collect();
        Outcome { levels: hierarchy.level_counts(), memory: hierarchy.memory(), cpu_cycles, tasks, caches }
    }
}

/// Extends `table`, whose rows may be missing or short, with default elements to `rows` rows of `columns` elements.
fn fill_up<T: Clone + Default>(table: &mut Vec<Vec<T>>, rows: usize, columns: usize) {
    table.resize(rows, Vec::new());
    table.iter_mut().for_each(|row| row.resize(columns, T::default()));
}
