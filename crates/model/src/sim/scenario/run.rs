//! Carries a scenario out.

use std::collections::VecDeque;
use std::io::Read;

use super::{CacheOutcome, Outcome, Scenario, ScenarioError, Source, TaskAtLevel, TaskOutcome};
use crate::sim::{Access, CacheId, DescribedMachine, Hierarchy, Kind, Level, PageTable, Tally, WayMask};
use crate::trace::{Reader, TraceError};
use crate::units::{Bytes, CpuId, FrameNumber, parse_list};

/// Opens a trace by the name that the scenario gives it.
pub type Open<'a> = dyn FnMut(&str) -> std::io::Result<Box<dyn Read>> + 'a;

/// Bytes of physical addresses that all tasks share out between them.
const ADDRESSES: u64 = 1 << 62;

/// Runs a scenario on a machine.
///
/// `progress` gets the number of accesses from time to time and says whether to go on; an interrupted run ends as it stands.
pub fn run(
    scenario: &Scenario,
    machine: &DescribedMachine,
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

/// A job under way.
struct Job {
    task: usize,
    accesses: Accesses,
    made: u64,
}

/// The accesses of a program, one after the other.
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
    /// Colors in which this task's stores are written through, because another task alone may write there.
    through: Vec<bool>,
    jobs_left: u64,
    background: bool,
    data_only: bool,
    outcome: TaskOutcome,
}

/// Whose turn it is on a CPU.
enum Turn {
    Begins(usize),
    GoesOn(Job),
}

#[derive(Default)]
struct Cpu {
    clock: u64,
    /// The job that runs, on top of those it pre-empted.
    stack: Vec<Job>,
    queue: VecDeque<Turn>,
    /// Whose turn it is, and since when.
    turn_of: Option<usize>,
    turn_began: u64,
}

/// Points at which a task comes in.
struct Releases {
    by: usize,
    /// The task whose accesses are counted; `None` for the CPU's clock.
    of: Option<usize>,
    at: VecDeque<u64>,
    every: Option<u64>,
    /// Multiples of `every` that have passed.
    multiples: u64,
}

impl Releases {
    fn next(&self) -> Option<u64> {
        let regular = self.every.and_then(|every| every.checked_mul(self.multiples + 1));
        self.at.front().copied().into_iter().chain(regular).min()
    }

    /// How many have come since the last call, now that the count or clock stands at `now`.
    fn passed(&mut self, now: u64) -> u64 {
        let listed = self.at.iter().take_while(|at| **at <= now).count();
        self.at.drain(..listed);
        let multiples = self.every.map_or(0, |every| now / every);
        listed as u64 + multiples - std::mem::replace(&mut self.multiples, multiples)
    }
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    hierarchy: Hierarchy,
    page_bytes: Bytes,
    color_count: u16,
    /// Frames that belong to each task.
    region_frames: u64,
    cpus: Vec<Cpu>,
    actors: Vec<Actor>,
    releases: Vec<Releases>,
    /// Tasks in the foreground with jobs to run.
    unfinished: usize,
    memory_frames: Option<u64>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, machine: &DescribedMachine) -> Result<Simulation<'a>, ScenarioError> {
        let setting = |what: String, hint| Err(ScenarioError::Setting { what, hint });
        let cpu_count = scenario.cpu_count();
        let mut hierarchy = machine.hierarchy(cpu_count)?;
        let page_bytes = scenario.page.as_deref().map_or(Ok(machine.page_bytes), str::parse)?;
        if !page_bytes.0.is_power_of_two() || !(64..=1 << 30).contains(&page_bytes.0) {
            return setting(format!("pages of {page_bytes}"), "`page` is a power of two from 64 to 1G");
        }
        let machine = DescribedMachine { page_bytes, ..machine.clone() };
        let color_count = machine.colors().last().map_or(1, |(_, colors)| *colors);
        let Ok(color_count) = u16::try_from(color_count) else {
            return setting(format!("{color_count} colors"), "give larger pages: a color must fit into 16 bits");
        };
        let outermost = machine.levels.last().map(|level| &level.cache);
        let memory: Option<Bytes> = scenario.memory.as_deref().map(str::parse).transpose()?;
        let memory_frames = memory.map(|memory| memory.0 / page_bytes.0);
        let caches: Vec<CacheId> = hierarchy.caches().map(|(id, _)| id).collect();
        caches.into_iter().for_each(|id| hierarchy.watch(id, page_bytes));
        let mut cpus: Vec<Cpu> = (0..cpu_count).map(|_| Cpu::default()).collect();
        // Whole rows of colors, so that every frame keeps its color.
        let rows = ADDRESSES / page_bytes.0 / scenario.tasks.len() as u64 / u64::from(color_count);
        let region_frames = rows * u64::from(color_count);
        let mut actors = Vec::new();
        for (number, task) in (0..).zip(&scenario.tasks) {
            if task.colors.is_some() && outermost.is_some_and(|level| !level.colors_are_disjoint(page_bytes)) {
                return Err(task.wrong(
                    "pages of different colors share sets: the sets of the outermost level do not fill whole pages"
                        .to_owned(),
                    "leave `colors` out, or give a level with sets of a whole number of pages",
                ));
            }
            let allocation = task.allocation(color_count, memory_frames)?;
            for (level, ways) in &task.ways {
                let found = hierarchy.caches_named(level);
                if found.is_empty() {
                    return Err(task.wrong(
                        format!("there is no level {level}"),
                        "`ways` names levels of the machine, such as L3",
                    ));
                }
                for cache in found {
                    let there = hierarchy.level(cache).geometry.ways.min(64);
                    let ways = task.parsed(parse_list(ways, there))?;
                    let mask = WayMask(ways.iter().fold(0, |mask, way| mask | 1 << way));
                    hierarchy.limit_ways(number, cache, mask)?;
                }
            }
            let mut through = vec![false; usize::from(color_count)];
            for owner in scenario.tasks.iter().filter(|other| other.single_writer && other.name != task.name) {
                owner.granted(color_count)?.iter().for_each(|color| through[usize::from(color.0)] = true);
            }
            let first = FrameNumber(u64::from(number) * region_frames);
            actors.push(Actor {
                cpu: task.cpu as usize,
                source: task.source()?,
                table: PageTable::new(page_bytes, allocation).starting_at(first),
                through,
                jobs_left: task.jobs,
                background: task.background,
                data_only: task.data_only,
                outcome: TaskOutcome {
                    name: task.name.clone(),
                    cpu: task.cpu,
                    jobs: 0,
                    accesses: 0,
                    cycles: 0,
                    preempted: 0,
                    releases_lost: 0,
                    pages: 0,
                    frames_reserved: None,
                    levels: Vec::new(),
                },
            });
        }
        // The background begins when nothing else is there to begin.
        for background in [false, true] {
            for (number, task) in scenario.tasks.iter().enumerate() {
                if task.jobs > 0 && task.background == background {
                    cpus[task.cpu as usize].queue.push_back(Turn::Begins(number));
                }
            }
        }
        let unfinished = actors.iter().filter(|actor| actor.jobs_left > 0 && !actor.background).count();
        let releases = scenario.releases()?;
        Ok(Simulation {
            scenario,
            hierarchy,
            page_bytes,
            color_count,
            region_frames,
            cpus,
            actors,
            releases,
            unfinished,
            memory_frames,
        })
    }

    /// The CPU that goes next: of those with something to do, the one that is furthest behind.
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

    /// One access on a CPU, or the end of a job.
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
                Some(Turn::Begins(task)) => self.begin(task, open)?,
                Some(Turn::GoesOn(job)) => job,
                None => return Ok(()),
            };
            let cpu = &mut self.cpus[number];
            // The next job of a task goes on in its turn.
            if cpu.turn_of.replace(job.task) != Some(job.task) {
                cpu.turn_began = clock;
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
        let turn_over = self.scenario.slice_cycles.is_some_and(|slice| cpu.clock - cpu.turn_began >= slice);
        if turn_over && cpu.stack.len() == 1 && !cpu.queue.is_empty() {
            let job = cpu.stack.pop();
            cpu.queue.extend(job.map(Turn::GoesOn));
        }
        Ok(())
    }

    /// Lets a task come in on its CPU, unless a job of it is under way there.
    fn release(&mut self, task: usize, times: u64, open: &mut Open<'_>) -> Result<(), ScenarioError> {
        if times == 0 {
            return Ok(());
        }
        let cpu = self.actors[task].cpu;
        let suspended =
            self.cpus[cpu].queue.iter().filter_map(|turn| if let Turn::GoesOn(job) = turn { Some(job) } else { None });
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
        // What was to come while it ran is lost.
        for releases in self.releases.iter_mut().filter(|releases| releases.by == task && releases.of.is_none()) {
            actor.outcome.releases_lost += releases.passed(cpu.clock);
        }
        if !cpu.stack.is_empty() || actor.jobs_left == 0 {
            return Ok(());
        }
        if actor.background && self.scenario.slice_cycles.is_none() {
            cpu.queue.push_back(Turn::Begins(task));
        } else if actor.background {
            // Its turn ends when its time is over.
            cpu.queue.push_front(Turn::Begins(task));
        } else {
            actor.jobs_left -= 1;
            if actor.jobs_left > 0 {
                cpu.queue.push_front(Turn::Begins(task));
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

/// Makes a table of so many rows and columns of one that ends where it is empty.
fn fill_up<T: Clone + Default>(table: &mut Vec<Vec<T>>, rows: usize, columns: usize) {
    table.resize(rows, Vec::new());
    table.iter_mut().for_each(|row| row.resize(columns, T::default()));
}

impl Scenario {
    fn releases(&self) -> Result<Vec<Releases>, ScenarioError> {
        let setting = |what: String, hint| Err(ScenarioError::Setting { what, hint });
        let mut all = Vec::new();
        for preemption in &self.preemptions {
            let by = self.task(&preemption.by)?;
            let of = preemption.of.as_deref().map(|name| self.task(name)).transpose()?;
            let (at, every) = match of {
                Some(_) => (&preemption.at_accesses, preemption.every_accesses),
                None => (&preemption.at_cycles, preemption.every_cycles),
            };
            let of_the_other = match of {
                Some(_) => !preemption.at_cycles.is_empty() || preemption.every_cycles.is_some(),
                None => !preemption.at_accesses.is_empty() || preemption.every_accesses.is_some(),
            };
            if of_the_other || at.is_empty() && every.is_none() {
                return setting(
                    format!("when does {} come in?", preemption.by),
                    "give `of` with `at_accesses` or `every_accesses`, or else `at_cycles` or `every_cycles`",
                );
            }
            if every == Some(0) {
                return setting(format!("{} comes in every 0", preemption.by), "give at least 1");
            }
            if of.is_some_and(|of| of == by || self.tasks[of].cpu != self.tasks[by].cpu) {
                return setting(
                    format!("{} cannot pre-empt {}", self.tasks[by].name, preemption.of.as_deref().unwrap_or_default()),
                    "`by` and `of` are two tasks of one CPU",
                );
            }
            let mut at = at.clone();
            at.sort_unstable();
            at.dedup();
            all.push(Releases { by, of, at: at.into(), every, multiples: 0 });
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outcome(text: &str, traces: &[(&str, &str)]) -> Result<Outcome, ScenarioError> {
        let scenario = Scenario::from_toml(&format!("schema = 'isochrome-scenario/1'\n{text}"))?;
        let machine = match scenario.described()? {
            Some(machine) => machine,
            None => DescribedMachine::named(scenario.machine.as_deref().unwrap()).unwrap(),
        };
        let mut open = |name: &str| -> std::io::Result<Box<dyn Read>> {
            match traces.iter().find(|(known, _)| *known == name) {
                Some((_, text)) => Ok(Box::new(std::io::Cursor::new(text.to_string()))),
                None => Err(std::io::ErrorKind::NotFound.into()),
            }
        };
        run(&scenario, &machine, &mut open, &mut |_| true)
    }

    /// 4 sets of 2 ways of 32-byte lines, one page of 128 bytes each: one color.
    const SMALL: &str = "levels = ['256:2:32:lru:wb:wa']\npage = '128'\n";

    #[test]
    fn a_preemption_after_given_accesses_costs_the_refills_it_caused() {
        // Two passes over 4 lines of a cache that holds 8; pre-empted after 4 accesses by a task that fills all of it.
        let outcome = outcome(
            &format!(
                "{SMALL}
                [[task]]
                name = 'control'
                workload = 'walk:area=128,stride=32,passes=2'
                [[task]]
                name = 'flooder'
                workload = 'walk:area=256,stride=32,passes=1,write=1'
                jobs = 0
                [[preemption]]
                by = 'flooder'
                of = 'control'
                at_accesses = [4]"
            ),
            &[],
        )
        .unwrap();
        let [control, flooder] = outcome.tasks.as_slice() else { panic!() };
        assert_eq!((control.jobs, control.accesses, control.preempted, control.cycles), (1, 8, 1, 8));
        assert_eq!((flooder.jobs, flooder.accesses), (1, 8));
        let causes = control.levels[0].tally.causes;
        assert_eq!((causes.cold, causes.extrinsic, causes.capacity, causes.conflict), (4, 4, 0, 0));
        assert_eq!(control.levels[0].tally.lost, 4);
        // Control's 4 lines leave for the flooder's, then 4 of the flooder's, all dirty, for control's.
        let cache = &outcome.caches[0];
        assert_eq!(cache.interference.evictions, [[0, 4], [4, 0]]);
        assert_eq!(cache.interference.extrinsic_by, [[0, 0], [4, 0]]);
        assert_eq!(flooder.levels[0].tally.counts.writebacks, 4);
        assert_eq!(cache.occupancy, [[4], [4]]);
        assert_eq!(outcome.cpu_cycles, [16]);
    }

    #[test]
    fn preemptions_by_the_clock_come_when_it_has_passed_them_and_are_lost_while_a_job_is_under_way() {
        let run = |times: &str| {
            outcome(
                &format!(
                    "{SMALL}
                    [[task]]
                    name = 'a'
                    workload = 'walk:area=32,stride=32,passes=100'
                    [[task]]
                    name = 'b'
                    workload = 'walk:area=32,stride=32,passes=10'
                    jobs = 0
                    [[preemption]]
                    by = 'b'
                    {times}"
                ),
                &[],
            )
            .unwrap()
        };
        // b runs from 20 to 30, so 25 is lost; a's last access ends at 120.
        let outcome = run("at_cycles = [20, 25, 50]");
        assert_eq!((outcome.tasks[1].jobs, outcome.tasks[1].releases_lost, outcome.cpu_cycles[0]), (2, 1, 120));
        // Every 17 cycles b takes 10 of them, so a gets 7: after its first 17, 83 more accesses in 12 pieces.
        let outcome = run("every_cycles = 17");
        assert_eq!((outcome.tasks[1].jobs, outcome.tasks[1].releases_lost), (12, 0));
        // Released in every cycle, b comes after each access of a, the last one included.
        let outcome = run("every_cycles = 1");
        assert_eq!((outcome.tasks[0].jobs, outcome.tasks[1].jobs), (1, 100));
    }

    #[test]
    fn tasks_take_turns_and_the_cpu_that_is_behind_goes_next() {
        let outcome = outcome(
            "levels = ['256:2:32:lru:wb:wa', '1K:2:32:lru:wb:wa']
            shared_levels = 1
            page = '128'
            slice_cycles = 10
            timing = { access_cycles = 1, read_cycles = [9], write_cycles = [0], memory_read_cycles = 90, memory_write_cycles = 0 }
            [[task]]
            name = 'a'
            workload = 'walk:area=32,stride=32,passes=30'
            [[task]]
            name = 'b'
            workload = 'walk:area=32,stride=32,passes=30'
            [[task]]
            name = 'other'
            cpu = 1
            workload = 'walk:area=32,stride=32,passes=1'
            background = true",
            &[],
        )
        .unwrap();
        // Each of a and b misses once, 100 cycles; 29 hits.
        assert_eq!((outcome.tasks[0].cycles, outcome.tasks[1].cycles), (129, 129));
        // The other CPU kept up: a first access of 100 cycles, then as many hits as fit into 258 cycles.
        assert_eq!(outcome.cpu_cycles[0], 258);
        assert!((258..=260).contains(&outcome.cpu_cycles[1]), "{:?}", outcome.cpu_cycles);
        let names: Vec<&str> = outcome.levels.iter().map(|level| level.name.as_str()).collect();
        assert_eq!(names, ["L1.1", "L1.0", "L2"]);
    }

    #[test]
    fn a_turn_lasts_for_its_time_however_short_the_jobs_are() {
        let outcome = outcome(
            "levels = ['64:1:32:lru:wb:wa']
            slice_cycles = 100
            timing = { access_cycles = 1, read_cycles = [], write_cycles = [], memory_read_cycles = 9, memory_write_cycles = 0 }
            [[task]]
            name = 'short'
            workload = 'walk:area=32,stride=32,passes=1'
            jobs = 200
            [[task]]
            name = 'other'
            workload = 'walk:area=32,stride=32,passes=10'
            background = true",
            &[],
        )
        .unwrap();
        let [short, other] = &outcome.tasks[..] else { panic!("{outcome:?}") };
        // Both want the same line. Of short's turns the first access of each misses, for 10 cycles, and 90 hit: 91, 91, 18. In between other
        // has two turns of 91 accesses.
        assert_eq!((short.accesses, short.cycles, other.accesses), (200, 227, 182));
    }

    #[test]
    fn a_single_writer_keeps_dirty_lines_of_others_out_of_its_colors() {
        // 8 colors; the other task writes in all of them.
        let run = |single_writer: bool| {
            outcome(
                &format!(
                    "levels = ['8K:2:32:lru:wb:wa']
                    page = '512'
                    [[task]]
                    name = 'owner'
                    workload = 'walk:area=2K,stride=32,passes=2'
                    colors = '0-1'
                    single_writer = {single_writer}
                    [[task]]
                    name = 'other'
                    workload = 'walk:area=16K,stride=32,passes=1,write=1'
                    jobs = 0
                    [[preemption]]
                    by = 'other'
                    of = 'owner'
                    at_accesses = [64]"
                ),
                &[],
            )
            .unwrap()
        };
        let written_back = |outcome: &Outcome, colors: std::ops::Range<usize>| -> u64 {
            outcome.caches[0].interference.tallies[1][colors].iter().map(|tally| tally.counts.writebacks).sum()
        };
        let (plain, single) = (run(false), run(true));
        assert!(written_back(&plain, 0..2) > 0);
        assert_eq!(written_back(&single, 0..2), 0);
        assert_eq!(written_back(&single, 2..8), written_back(&plain, 2..8));
        assert_eq!(single.tasks[0].levels[0].tally.causes, plain.tasks[0].levels[0].tally.causes);
    }

    #[test]
    fn free_coloring_reserves_what_is_used_and_colors_reserve_their_share() {
        let outcome = outcome(
            "machine = 'pentium-133'
            memory = '5M'
            [[task]]
            name = 'colored'
            workload = 'walk:area=160K,stride=32,passes=2'
            colors = '0-31'
            [[task]]
            name = 'free'
            workload = 'walk:area=160K,stride=32,passes=2'
            colors = '32-63'
            pages = 'free'",
            &[],
        )
        .unwrap();
        let [colored, free] = outcome.tasks.as_slice() else { panic!() };
        assert_eq!((colored.pages, colored.frames_reserved), (40, Some(640)));
        assert_eq!((free.pages, free.frames_reserved), (40, Some(40)));
        let misses = |task: &TaskOutcome| task.levels.iter().find(|level| level.name == "L2").unwrap().tally.causes;
        assert_eq!(misses(colored), misses(free));
        assert_eq!(outcome.caches.last().unwrap().interference.between_tasks(), 0);
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        let task = |settings: &str| format!("{SMALL}[[task]]\nname = 'a'\n{settings}");
        let walk = "workload = 'walk:area=128,stride=32,passes=1'";
        let cases = [
            (String::new(), "either `machine` or `levels`"),
            ("levels = ['256:0:32:lru:wb:wa']".to_owned(), "0 ways"),
            ("levels = ['256:2:32:lru:wb:wa']\nshared_levels = 2".to_owned(), "2 of 1 levels"),
            ("machine = 'zen3'\nshared_levels = 1".to_owned(), "own timing"),
            (SMALL.to_owned(), "no task ever finishes"),
            (task(&format!("{walk}\nbackground = true")), "no task ever finishes"),
            (
                format!(
                    "timing = {{ access_cycles = 1, read_cycles = [], write_cycles = [], memory_read_cycles = 9999999999, \
                     memory_write_cycles = 1 }}\n{}",
                    task(walk)
                ),
                "more than a million cycles",
            ),
            (task("trace = 'x'\nworkload = 'matmul'"), "either `workload` or `trace`"),
            (task("trace = 'missing'"), "missing: entity not found"),
            (task("trace = 'bad'"), "bad:2: unknown label"),
            (task("trace = 'empty'"), "accesses nothing"),
            (task("trace = 'bad'\nformat = 'elf'"), "`elf` is not a trace format"),
            (task("workload = 'sieve'"), "`sieve` is not a workload"),
            (task(&format!("{walk}\ncolors = '0-7'")), "out of range"),
            (task(&format!("{walk}\ncolors = ''")), "no colors"),
            (task(&format!("{walk}\nways = {{ L9 = '0' }}")), "no level L9"),
            (task(&format!("{walk}\nways = {{ L1 = '0-5' }}")), "out of range"),
            (task(&format!("{walk}\nways = {{ L1 = '' }}")), "allows none"),
            (task(&format!("{walk}\npages = 'random'")), "of how much memory"),
            (task(&format!("{walk}\ncolors = '0'\npages = 'random'")), "keep to no colors"),
            (task(&format!("{walk}\ncpu = 4000")), "more than 256"),
            (format!("cpus = 1\n{}", task(&format!("{walk}\ncpu = 1"))), "there is no CPU 1"),
            (format!("{}\n[[task]]\nname = 'a'", task(walk)), "two of this name"),
            (format!("{}\n[[preemption]]\nby = 'b'\nat_cycles = [1]", task(walk)), "task `b`"),
            (format!("{}\n[[preemption]]\nby = 'a'", task(walk)), "when does a come in"),
            (format!("{}\n[[preemption]]\nby = 'a'\nevery_cycles = 0", task(walk)), "every 0"),
            (format!("{}\n[[preemption]]\nby = 'a'\nof = 'a'\nat_accesses = [1]", task(walk)), "cannot pre-empt"),
            (
                format!("memory = '128'\n{}", task("workload = 'walk:area=256,stride=32,passes=1'\npages = 'random'")),
                "more than the memory",
            ),
            (task("pages = 'colourful'"), "not a scenario"),
            (task("sets = 3"), "unknown field"),
        ];
        let traces = [("bad", "0 1\nx 2\n"), ("empty", "")];
        for (text, reason) in cases {
            let error = outcome(&text, &traces).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}\n{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

        /// [Kim2013]: tasks with disjoint colors, ways or both never evict each other at the partitioned level: on the i7-2600 and on
        /// random two-level machines, on one CPU or two, with pre-emptions. Sharing everything, they do.
        #[test]
        fn tasks_in_partitions_of_their_own_never_evict_each_other(
            i7: bool,
            log_sets in 3u32..6,
            log_ways in 1u32..4,
            policy in prop::sample::select(vec!["lru", "tree-plru", "bit-plru", "fifo", "random=3", "qlru-h11-m1-r0-u0"]),
            inclusion in prop::sample::select(vec!["noninclusive", "inclusive", "exclusive"]),
            write_miss in prop::sample::select(vec!["wa", "nwa", "wau"]),
            two_cpus: bool,
            shared_first_level: bool,
            (by_colors, by_ways) in prop::sample::select(vec![(true, false), (false, true), (true, true), (false, false)]),
            split in 1u32..31,
            way_split in 1u32..15,
            seed in 0u64..1000,
        ) {
            // On a random machine every page is 4 lines of 32 bytes; the second level has 4 times the sets of the first.
            let (machine, level, colors, ways) = if i7 {
                ("machine = 'i7-2600'\n".to_owned(), "L3", 32, 16)
            } else {
                let (sets, ways) = (1u64 << log_sets, 1u64 << log_ways);
                let first = format!("{}:2:32:lru:wb:wa", sets * 2 * 32);
                let write_miss = if inclusion == "exclusive" { "wa" } else { write_miss };
                let second = format!("{}:{ways}:32:{policy}:wb:{write_miss}:{inclusion}", 4 * sets * ways * 32);
                let shared = if shared_first_level { 2 } else { 1 };
                (format!("levels = ['{first}', '{second}']\nshared_levels = {shared}\npage = '128'\n"), "L2", sets as u32, ways as u32)
            };
            let (split, way_split) = (1 + split % (colors - 1), 1 + way_split % (ways - 1));
            let part = |task: u32| {
                let colors = match (by_colors, task) {
                    (false, _) => "colors = '0-1'".to_owned(),
                    (true, 0) => format!("colors = '0-{}'", split - 1),
                    (true, _) => format!("colors = '{split}-{}'", colors - 1),
                };
                let ways = match (by_ways, task) {
                    (false, _) => String::new(),
                    (true, 0) => format!("ways = {{ {level} = '0-{}' }}", way_split - 1),
                    (true, _) => format!("ways = {{ {level} = '{way_split}-{}' }}", ways - 1),
                };
                format!("{colors}\n{ways}")
            };
            let area = if i7 { 2 << 20 } else { 64 << 10 };
            let text = format!(
                "{machine}
                [[task]]
                name = 'a'
                workload = 'chase:area={area},line=64,steps=6000,seed={seed}'
                {}
                [[task]]
                name = 'b'
                cpu = {}
                workload = 'walk:area={area},stride=96,passes=1,write=1'
                jobs = 2
                background = {two_cpus}
                {}
                {}",
                part(0),
                u8::from(two_cpus),
                part(1),
                if two_cpus { "" } else { "[[preemption]]\nby = 'b'\nof = 'a'\nevery_accesses = 1500" },
            );
            let outcome = outcome(&text, &[]).unwrap();
            let cache = outcome.caches.iter().find(|cache| cache.name == level).unwrap();
            let extrinsic: u64 = (0..2).map(|task| cache.interference.of_task(task).causes.extrinsic).sum();
            if by_colors || by_ways {
                prop_assert_eq!(cache.interference.between_tasks(), 0, "{}\n{:?}", text, cache.interference.evictions);
                prop_assert_eq!(extrinsic, 0);
            } else if i7 {
                prop_assert!(cache.interference.between_tasks() > 0, "{}", text);
            }
            // The tallies by task and color are the counts of the cache.
            let counts = outcome.levels.iter().find(|counts| counts.name == level).unwrap().counts;
            let mut sum = Tally::default();
            (0..2).for_each(|task| sum += cache.interference.of_task(task));
            prop_assert_eq!(sum.counts, counts);
            let lines: u64 = cache.occupancy.iter().flatten().sum();
            prop_assert!(lines <= cache.lines_per_color * u64::from(cache.colors));
        }
    }
}
