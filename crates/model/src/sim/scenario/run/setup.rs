//! Sets a scenario up: caches with the ways of each task, tasks with their pages, CPUs with their queues.

use super::{Actor, Cpu, Queued, Simulation};
use crate::sim::scenario::{Scenario, ScenarioError, Task, TaskOutcome};
use crate::sim::{CacheId, Hierarchy, MachineModel, PageTable, WayMask};
use crate::units::{Bytes, FrameNumber, parse_list};

/// Bytes of physical address space that all tasks divide among themselves.
const ADDRESSES: u64 = 1 << 62;

impl<'a> Simulation<'a> {
    /// Sets `scenario` up on `machine`, ready for its first access.
    pub(super) fn new(scenario: &'a Scenario, machine: &MachineModel) -> Result<Simulation<'a>, ScenarioError> {
        let setting = |what: String, hint| Err(ScenarioError::Setting { what, hint });
        let cpu_count = scenario.cpu_count();
        let mut hierarchy = machine.hierarchy(cpu_count)?;
        let page_bytes = scenario.page.as_deref().map_or(Ok(machine.page_bytes), str::parse)?;
        if !page_bytes.0.is_power_of_two() || !(64..=1 << 30).contains(&page_bytes.0) {
            return setting(format!("pages of {page_bytes}"), "`page` is a power of two from 64 to 1G");
        }
        let machine = MachineModel { page_bytes, ..machine.clone() };
        let color_count = machine.colors().last().map_or(1, |(_, colors)| *colors);
        let Ok(color_count) = u16::try_from(color_count) else {
            return setting(format!("{color_count} colors"), "give larger pages: a color must fit into 16 bits");
        };
        let outermost = machine.levels.last().map(|level| &level.cache);
        let memory: Option<Bytes> = scenario.memory.as_deref().map(str::parse).transpose()?;
        let memory_frames = memory.map(|memory| memory.0 / page_bytes.0);
        let caches: Vec<CacheId> = hierarchy.caches().map(|(id, _)| id).collect();
        caches.into_iter().for_each(|id| hierarchy.watch(id, page_bytes));
        // The region of a task consists of whole rows of colors, so that every frame keeps its color.
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
            task.limit_ways(number, &mut hierarchy)?;
            let first = FrameNumber(u64::from(number) * region_frames);
            let table = PageTable::new(page_bytes, allocation).starting_at(first);
            actors.push(Actor::new(task, table, scenario.written_through(task, color_count)?)?);
        }
        let unfinished = actors.iter().filter(|actor| actor.jobs_left > 0 && !actor.background).count();
        let releases = scenario.releases()?;
        Ok(Simulation {
            scenario,
            hierarchy,
            page_bytes,
            color_count,
            region_frames,
            cpus: scenario.queues(cpu_count),
            actors,
            releases,
            unfinished,
            memory_frames,
        })
    }
}

impl Actor {
    fn new(task: &Task, table: PageTable, through: Vec<bool>) -> Result<Actor, ScenarioError> {
        Ok(Actor {
            cpu: task.cpu as usize,
            source: task.source()?,
            table,
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
        })
    }
}

impl Scenario {
    /// Returns for each color whether stores of `task` to it are written through, because another task is its only writer.
    fn written_through(&self, task: &Task, color_count: u16) -> Result<Vec<bool>, ScenarioError> {
        let mut through = vec![false; usize::from(color_count)];
        for owner in self.tasks.iter().filter(|other| other.single_writer && other.name != task.name) {
            owner.granted(color_count)?.iter().for_each(|color| through[usize::from(color.0)] = true);
        }
        Ok(through)
    }

    /// Returns the CPUs, each with a queue of the tasks that begin on it.
    fn queues(&self, cpu_count: u32) -> Vec<Cpu> {
        let mut cpus: Vec<Cpu> = (0..cpu_count).map(|_| Cpu::default()).collect();
        // Background tasks are queued behind all foreground tasks.
        for background in [false, true] {
            for (number, task) in self.tasks.iter().enumerate() {
                if task.jobs > 0 && task.background == background {
                    cpus[task.cpu as usize].queue.push_back(Queued::Begins(number));
                }
            }
        }
        cpus
    }
}

impl Task {
    /// Limits the task, which has this number, to the ways that it was granted in each cache.
    fn limit_ways(&self, number: u16, hierarchy: &mut Hierarchy) -> Result<(), ScenarioError> {
        for (level, ways) in &self.ways {
            let found = hierarchy.caches_named(level);
            if found.is_empty() {
                return Err(
                    self.wrong(format!("there is no level {level}"), "`ways` names levels of the machine, such as L3")
                );
            }
            for cache in found {
                let there = hierarchy.level(cache).geometry.ways.min(64);
                let ways = self.parsed(parse_list(ways, there))?;
                let mask = WayMask(ways.iter().fold(0, |mask, way| mask | 1 << way));
                hierarchy.limit_ways(number, cache, mask)?;
            }
        }
        Ok(())
    }
}
