//! Scenarios: several programs on one machine, with their schedule, their shares of the caches and their mutual evictions.
//!
//! Every CPU has a clock that advances by the costs of its accesses. The CPU whose clock is lowest goes next, so the same
//! scenario always gives the same counts. On a CPU, tasks run one after the other in the order of the file, or in time slices
//! of `slice_cycles`. A preemption suspends the running task while another task runs its program once from the first access to
//! the last. Tasks share no memory.

mod run;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Allocation, ConfigError, Interference, Level, LevelCounts, MachineModel, MemoryCounts, Tally, Timing};
use crate::trace::{Format, TraceError};
use crate::units::{Color, FrameNumber, ParseError, parse_list};
use crate::workload::{Workload, WorkloadError};

pub use run::run;

/// Version of the scenario format.
pub const SCHEMA: &str = "isochrome-scenario/1";

/// Maximum number of CPUs, of tasks and of preemptions in a scenario.
const MOST: usize = 256;

/// Programs to run on a modeled machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Version of the format: [`SCHEMA`].
    pub schema: String,
    /// A machine by name or file; `None` if `levels` are given instead.
    pub machine: Option<String>,
    /// Unified levels of each CPU in the short form of the command line, innermost first.
    #[serde(default)]
    pub levels: Vec<String>,
    /// Number of `levels`, counted from the outermost, that all CPUs share.
    #[serde(default)]
    pub shared_levels: usize,
    /// Times of `levels`; if `None`, every access takes one cycle.
    pub timing: Option<Timing>,
    /// Number of CPUs; if `None`, one more than the highest CPU number of the tasks.
    pub cpus: Option<u32>,
    /// Bytes per page; if `None`, the page size of the machine.
    pub page: Option<String>,
    /// Size of the machine's memory. Random pages are taken from this memory, and colors reserve their share of it.
    pub memory: Option<String>,
    /// Time slice of the tasks of a CPU in cycles; if `None`, one task runs after the other.
    pub slice_cycles: Option<u64>,
    /// The tasks of the scenario.
    #[serde(rename = "task", default)]
    pub tasks: Vec<Task>,
    /// The preemptions: which task preempts which, and when.
    #[serde(rename = "preemption", default)]
    pub preemptions: Vec<Preemption>,
}

impl Scenario {
    /// Returns the scenario in which `tasks` run one after the other on `cpus` CPUs of a machine that [`run`] is given.
    pub fn of(cpus: u32, tasks: Vec<Task>) -> Scenario {
        Scenario {
            schema: SCHEMA.to_owned(),
            machine: None,
            levels: Vec::new(),
            shared_levels: 0,
            timing: None,
            cpus: Some(cpus),
            page: None,
            memory: None,
            slice_cycles: None,
            tasks,
            preemptions: Vec::new(),
        }
    }
}

/// A program on a CPU, with its share of the caches.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Name of the task.
    pub name: String,
    /// The CPU that the task runs on.
    #[serde(default)]
    pub cpu: u32,
    /// A built-in workload; `None` if `trace` is given instead.
    pub workload: Option<String>,
    /// File name of a trace.
    pub trace: Option<String>,
    /// Format of the trace: `din`, `lackey`, `u64` or `iso`.
    pub format: Option<String>,
    /// Whether instruction fetches are left out.
    #[serde(default)]
    pub data_only: bool,
    /// Number of jobs, which run one after the other; 0 for a task that only preempts.
    #[serde(default = "one")]
    pub jobs: u64,
    /// Whether the program runs again and again until all tasks that are not in the background have finished.
    #[serde(default)]
    pub background: bool,
    /// How the task gets its pages; if `None`, colored if the task has colors, else sequential.
    pub pages: Option<Pages>,
    /// Colors granted to the task at the outermost level, such as `0-7,12`.
    pub colors: Option<String>,
    /// Ways granted to the task, by level, such as `{ L3 = "0-3" }`. They limit fills, not hits.
    #[serde(default)]
    pub ways: BTreeMap<String, String>,
    /// Whether pages of other tasks in this task's colors are cached write-through, so that no dirty line of theirs is
    /// there. [Liedtke1997, §5.3]
    #[serde(default)]
    pub single_writer: bool,
}

fn one() -> u64 {
    1
}

/// How a task gets its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pages {
    /// A page gets the next frame.
    Sequential,
    /// A page gets any frame of the memory.
    Random,
    /// Pages get frames of the granted colors in turn.
    Colored,
    /// All pages get frames of the first granted color.
    Conflicting,
    /// Pages get any frame, under each of the granted colors in turn. [Liedtke1997, §3.2]
    Free,
}

/// A rule for when a task preempts the job that runs on its CPU. A release during a job of the same task is lost, and counted
/// as lost.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preemption {
    /// The task that preempts.
    pub by: String,
    /// The task whose accesses are counted for `at_accesses` and `every_accesses`; `None` if the CPU's clock releases the task.
    pub of: Option<String>,
    /// Numbers of accesses of `of` after which the task is released.
    #[serde(default)]
    pub at_accesses: Vec<u64>,
    /// Period of the releases in accesses of `of`.
    pub every_accesses: Option<u64>,
    /// Times in cycles of the CPU's clock at which the task is released.
    #[serde(default)]
    pub at_cycles: Vec<u64>,
    /// Period of the releases in cycles of the CPU's clock.
    pub every_cycles: Option<u64>,
}

/// Reasons why a scenario cannot be read or run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The text is not a scenario.
    #[error("not a scenario: {what}\n  hint: examples/interference.toml shows every setting")]
    Toml {
        /// Description of the error.
        what: String,
    },
    /// Settings do not fit together.
    #[error("{what}\n  hint: {hint}")]
    Setting {
        /// Description of the error.
        what: String,
        /// Hint on how to correct the settings.
        hint: &'static str,
    },
    /// A task has settings that are not possible.
    #[error("task {task}: {what}\n  hint: {hint}")]
    Task {
        /// Name of the task.
        task: String,
        /// Description of the error.
        what: String,
        /// Hint on how to correct the task.
        hint: &'static str,
    },
    /// A list, a size, the workload or the trace format of a task does not parse.
    #[error("task {task}: {source}")]
    Parse {
        /// Name of the task.
        task: String,
        /// The error of the parser.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A size of the scenario does not parse.
    #[error(transparent)]
    Size(#[from] ParseError),
    /// The machine cannot be modeled.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A trace cannot be opened.
    #[error("task {task}: {trace}: {source}\n  hint: give the path as seen from where isochrome is started")]
    Open {
        /// Name of the task.
        task: String,
        /// File name of the trace.
        trace: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// Outcome of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Outcome {
    /// Events per cache, innermost first. With several CPUs, the caches of the last CPU come first.
    pub levels: Vec<LevelCounts>,
    /// Transfers from and to memory.
    pub memory: MemoryCounts,
    /// Clock of each CPU at the end of the run, in cycles.
    pub cpu_cycles: Vec<u64>,
    /// Outcomes of the tasks, in the order of the file.
    pub tasks: Vec<TaskOutcome>,
    /// Interference at each cache, in the order of `levels`.
    pub caches: Vec<CacheOutcome>,
}

/// Outcome of a task.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TaskOutcome {
    /// Name of the task.
    pub name: String,
    /// CPU of the task.
    pub cpu: u32,
    /// Number of jobs that ran to their end.
    pub jobs: u64,
    /// Number of accesses. An access that straddles pages counts once per page.
    pub accesses: u64,
    /// Number of cycles that these accesses took.
    pub cycles: u64,
    /// Number of times that another task preempted this one.
    pub preempted: u64,
    /// Number of releases that were lost because a job was still running.
    pub releases_lost: u64,
    /// Number of pages touched.
    pub pages: usize,
    /// Number of frames of the scenario's `memory` that no other task can use; `None` without `memory`. With colors these are
    /// all frames of the granted colors, used or not.
    pub frames_reserved: Option<u64>,
    /// Events of the task at each cache that it reached, in the order of the outcome's levels.
    pub levels: Vec<TaskAtLevel>,
}

/// Events of a task at a cache.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TaskAtLevel {
    /// Name of the cache.
    pub name: String,
    /// Events and causes of misses.
    #[serde(flatten)]
    pub tally: Tally,
}

/// Interference of tasks at a cache.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CacheOutcome {
    /// Name of the cache.
    pub name: String,
    /// Number of colors of the cache.
    pub colors: u32,
    /// Number of lines that one color holds.
    pub lines_per_color: u64,
    /// Which task evicted which, and tallies by task and color.
    #[serde(flatten)]
    pub interference: Interference,
    /// Number of lines in the cache at the end of the run, by task (row) and color (column).
    pub occupancy: Vec<Vec<u64>>,
}

impl Scenario {
    /// Reads a scenario from TOML, and checks its schema.
    pub fn from_toml(text: &str) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = toml::from_str(text)
            .map_err(|error| ScenarioError::Toml { what: error.to_string().trim_end().to_owned() })?;
        if scenario.schema != SCHEMA {
            return Err(ScenarioError::Toml { what: format!("schema is `{}`, not `{SCHEMA}`", scenario.schema) });
        }
        Ok(scenario)
    }

    /// Returns the machine that `levels` describe; `None` if the scenario names a machine.
    pub fn machine_model(&self) -> Result<Option<MachineModel>, ScenarioError> {
        let wrong = |what: String, hint| Err(ScenarioError::Setting { what, hint });
        match (&self.machine, self.levels.as_slice()) {
            (Some(_), []) if self.timing.is_some() || self.shared_levels > 0 => {
                return wrong(
                    "the machine has its own timing and shared levels".to_owned(),
                    "leave `timing` and `shared_levels` out",
                );
            }
            (Some(_), []) => return Ok(None),
            (None, [_, ..]) => {}
            _ => return wrong("exactly one machine is needed".to_owned(), "give either `machine` or `levels`"),
        }
        let count = self.levels.len();
        if self.shared_levels > count {
            return wrong(
                format!("{} of {count} levels are shared", self.shared_levels),
                "`shared_levels` counts from the outermost",
            );
        }
        let levels = self.levels.iter().map(|text| text.parse()).collect::<Result<Vec<Level>, _>>()?;
        let mut machine = MachineModel::of_levels("the scenario's machine", levels);
        machine.levels[count - self.shared_levels..].iter_mut().for_each(|level| level.shared = true);
        machine.timing = self.timing.clone().unwrap_or(machine.timing);
        Ok(Some(machine))
    }

    fn task(&self, name: &str) -> Result<usize, ScenarioError> {
        let found = self.tasks.iter().position(|task| task.name == name);
        found.ok_or_else(|| ScenarioError::Setting {
            what: format!("a preemption names the task `{name}`, which does not exist"),
            hint: "`by` and `of` are names of tasks",
        })
    }

    fn check(&self, machine: &MachineModel) -> Result<(), ScenarioError> {
        let wrong = |what: String, hint| Err(ScenarioError::Setting { what, hint });
        if machine.timing.access_cycles == 0 {
            return wrong("an access takes no time".to_owned(), "give `access_cycles` of at least 1");
        }
        if !self.tasks.iter().any(|task| task.jobs > 0 && !task.background) {
            return wrong(
                "no task ever finishes".to_owned(),
                "give at least one [[task]] that is not in the background with `jobs` of at least 1",
            );
        }
        if self.tasks.len() > MOST || self.preemptions.len() > MOST || self.cpu_count() as usize > MOST {
            return wrong(format!("more than {MOST} CPUs, tasks or preemptions"), "use fewer");
        }
        for (i, task) in self.tasks.iter().enumerate() {
            if self.tasks[..i].iter().any(|other| other.name == task.name) {
                return Err(task.wrong("there are two of this name".to_owned(), "names tell tasks apart"));
            }
            if task.cpu >= self.cpu_count() {
                return Err(task.wrong(format!("there is no CPU {}", task.cpu), "CPUs are counted from 0"));
            }
        }
        Ok(())
    }

    fn cpu_count(&self) -> u32 {
        self.cpus.unwrap_or_else(|| self.tasks.iter().map(|task| task.cpu.saturating_add(1)).max().unwrap_or(1))
    }
}

impl Task {
    fn wrong(&self, what: String, hint: &'static str) -> ScenarioError {
        ScenarioError::Task { task: self.name.clone(), what, hint }
    }

    fn parsed<T, E: std::error::Error + Send + Sync + 'static>(
        &self,
        result: Result<T, E>,
    ) -> Result<T, ScenarioError> {
        result.map_err(|source| ScenarioError::Parse { task: self.name.clone(), source: Box::new(source) })
    }

    /// Returns the colors out of `color_count` that are granted to the task; all of them if the task names none.
    fn granted(&self, color_count: u16) -> Result<Vec<Color>, ScenarioError> {
        let Some(text) = &self.colors else { return Ok((0..color_count).map(Color).collect()) };
        let colors = self.parsed(parse_list(text, u32::from(color_count)))?;
        if colors.is_empty() {
            return Err(self.wrong("no colors".to_owned(), "give a list such as 0-3, or leave `colors` out"));
        }
        Ok(colors.into_iter().map(|color| Color(color as u16)).collect())
    }

    /// Returns how the task gets its pages on a machine of `color_count` colors. Random pages are taken from
    /// `memory_frames`.
    fn allocation(&self, color_count: u16, memory_frames: Option<u64>) -> Result<Allocation, ScenarioError> {
        let colors = self.granted(color_count)?;
        let default = if self.colors.is_some() { Pages::Colored } else { Pages::Sequential };
        Ok(match self.pages.unwrap_or(default) {
            Pages::Sequential | Pages::Random if self.colors.is_some() => {
                return Err(self.wrong(
                    "pages in this order do not keep to colors".to_owned(),
                    "with `colors`, `pages` is colored, conflicting or free",
                ));
            }
            Pages::Sequential => Allocation::Sequential { first: FrameNumber(0) },
            Pages::Random => {
                let frames = memory_frames.filter(|frames| *frames > 0).ok_or_else(|| {
                    self.wrong(
                        "random pages need the size of the memory".to_owned(),
                        "give the scenario's `memory`, such as \"1G\"",
                    )
                })?;
                let seed =
                    self.name.bytes().fold(0u64, |seed, byte| seed.wrapping_mul(257).wrapping_add(u64::from(byte)));
                Allocation::Random { frames, seed }
            }
            Pages::Colored => Allocation::Colored { colors, color_count },
            Pages::Conflicting => Allocation::Colored { colors: colors[..1].to_vec(), color_count },
            Pages::Free => Allocation::Free { colors, color_count, first: FrameNumber(0) },
        })
    }

    fn source(&self) -> Result<Source, ScenarioError> {
        match (&self.workload, &self.trace) {
            (Some(workload), None) => Ok(Source::Workload(self.parsed::<Workload, WorkloadError>(workload.parse())?)),
            (None, Some(trace)) => {
                let format: Format = self.parsed(self.format.as_deref().unwrap_or("din").parse())?;
                Ok(Source::Trace(trace.clone(), format))
            }
            _ => Err(self.wrong("exactly one program is needed".to_owned(), "give either `workload` or `trace`")),
        }
    }
}

/// Source of a task's accesses.
#[derive(Clone, Debug)]
enum Source {
    Workload(Workload),
    Trace(String, Format),
}
