//! Several programs on one machine: who runs when, with which part of the caches, and who evicts whom.
//!
//! Every CPU has a clock that the costs of its accesses move on; the CPU whose clock is lowest goes next, so the same scenario
//! always gives the same counts. On a CPU, tasks run one after the other in the order of the file, or in turns of `slice_cycles`.
//! A pre-emption lets a task run once, from the first access of its program to the last, on top of whatever runs; then that goes
//! on. Tasks share no memory.

mod run;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Allocation, ConfigError, DescribedMachine, Interference, Level, LevelCounts, MemoryCounts, Tally, Timing};
use crate::trace::{Format, TraceError};
use crate::units::{Color, FrameNumber, ParseError, parse_list};
use crate::workload::{Workload, WorkloadError};

pub use run::run;

/// Version of the file.
pub const SCHEMA: &str = "isochrome-scenario/1";

/// CPUs, tasks and pre-emptions that a scenario may have.
const MOST: usize = 256;

/// What to run on a modeled machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// [`SCHEMA`].
    pub schema: String,
    /// A machine by name or file; or else `levels`.
    pub machine: Option<String>,
    /// Levels of each CPU in the short form of the command line, innermost first, unified.
    #[serde(default)]
    pub levels: Vec<String>,
    /// How many of `levels`, counted from the outermost, all CPUs share.
    #[serde(default)]
    pub shared_levels: usize,
    /// Times of `levels`; without them every access takes one cycle.
    pub timing: Option<Timing>,
    /// CPUs; as many as the tasks name when left out.
    pub cpus: Option<u32>,
    /// Bytes per page, instead of the machine's.
    pub page: Option<String>,
    /// Memory of the machine: random pages are taken from as much, and with it colors reserve their share of it.
    pub memory: Option<String>,
    /// Cycles after which the tasks of a CPU take turns; without it one runs after the other.
    pub slice_cycles: Option<u64>,
    /// The tasks.
    #[serde(rename = "task", default)]
    pub tasks: Vec<Task>,
    /// Who pre-empts whom when.
    #[serde(rename = "preemption", default)]
    pub preemptions: Vec<Preemption>,
}

/// A program on a CPU, with its part of the caches.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Its CPU.
    #[serde(default)]
    pub cpu: u32,
    /// A built-in workload; or else `trace`.
    pub workload: Option<String>,
    /// File of a trace.
    pub trace: Option<String>,
    /// Form of the trace: `din`, `lackey`, `u64` or `iso`.
    pub format: Option<String>,
    /// Leaves instruction fetches out.
    #[serde(default)]
    pub data_only: bool,
    /// How often the program runs, one job after the other; 0 for a task that only pre-empts.
    #[serde(default = "one")]
    pub jobs: u64,
    /// Runs again and again until all tasks that are not in the background have finished.
    #[serde(default)]
    pub background: bool,
    /// How it gets its pages; colored if it has colors, else sequential.
    pub pages: Option<Pages>,
    /// Colors granted at the outermost level, such as `0-7,12`.
    pub colors: Option<String>,
    /// Ways granted, by level, such as `{ L3 = "0-3" }`. They limit what is filled, not what hits.
    #[serde(default)]
    pub ways: BTreeMap<String, String>,
    /// Pages of other tasks in this task's colors are cached write-through, so that no dirty line of theirs lies there.
    /// [Liedtke1997, §5.3]
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
    /// The next frame.
    Sequential,
    /// Any frame of the memory.
    Random,
    /// A frame of each color granted in turn.
    Colored,
    /// All of the first color granted.
    Conflicting,
    /// Any frame, under each color granted in turn. [Liedtke1997, §3.2]
    Free,
}

/// When a task pre-empts what runs on its CPU. A release that comes while a job of the task is under way is lost, and counted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preemption {
    /// The task that comes in.
    pub by: String,
    /// The task whose accesses are counted, for `at_accesses` and `every_accesses`.
    pub of: Option<String>,
    /// After so many accesses of `of`.
    #[serde(default)]
    pub at_accesses: Vec<u64>,
    /// After each so many accesses of `of`.
    pub every_accesses: Option<u64>,
    /// At these times of the CPU's clock.
    #[serde(default)]
    pub at_cycles: Vec<u64>,
    /// At each multiple of this time.
    pub every_cycles: Option<u64>,
}

/// What cannot be run, and why.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not a scenario.
    #[error("not a scenario: {what}\n  hint: examples/interference.toml shows every setting")]
    Toml {
        /// What is wrong.
        what: String,
    },
    /// Settings that do not fit together.
    #[error("{what}\n  hint: {hint}")]
    Setting {
        /// What is wrong.
        what: String,
        /// What would be right.
        hint: &'static str,
    },
    /// A task cannot be.
    #[error("task {task}: {what}\n  hint: {hint}")]
    Task {
        /// Its name.
        task: String,
        /// What is wrong.
        what: String,
        /// What would be right.
        hint: &'static str,
    },
    /// A task's list, size, workload or trace form does not parse.
    #[error("task {task}: {source}")]
    Parse {
        /// Its name.
        task: String,
        /// Why.
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
        /// Its name.
        task: String,
        /// The file.
        trace: String,
        /// Why.
        source: std::io::Error,
    },
}

/// What became of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Outcome {
    /// Events per cache, innermost first; of several CPUs, the caches of the last one come first.
    pub levels: Vec<LevelCounts>,
    /// Transfers from and to memory.
    pub memory: MemoryCounts,
    /// When each CPU had nothing more to do, in cycles.
    pub cpu_cycles: Vec<u64>,
    /// The tasks, in the order of the file.
    pub tasks: Vec<TaskOutcome>,
    /// What happened between them at each cache, in the order of `levels`.
    pub caches: Vec<CacheOutcome>,
}

/// What became of a task.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TaskOutcome {
    /// Its name.
    pub name: String,
    /// Its CPU.
    pub cpu: u32,
    /// Jobs that ran to their end.
    pub jobs: u64,
    /// Accesses; one that straddles pages counts once per page.
    pub accesses: u64,
    /// Cycles of these accesses.
    pub cycles: u64,
    /// Times another task came in between.
    pub preempted: u64,
    /// Releases lost because a job was under way.
    pub releases_lost: u64,
    /// Pages touched.
    pub pages: usize,
    /// Frames of the scenario's `memory` that nobody else can use: with colors, all of the colors granted, used or not.
    pub frames_reserved: Option<u64>,
    /// What it did at each cache it reached, in the order of the outcome's levels.
    pub levels: Vec<TaskAtLevel>,
}

/// What a task did at a cache.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TaskAtLevel {
    /// The cache.
    pub name: String,
    /// Events and causes.
    #[serde(flatten)]
    pub tally: Tally,
}

/// What happened between tasks at a cache.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CacheOutcome {
    /// The cache.
    pub name: String,
    /// Its colors.
    pub colors: u32,
    /// Lines that one color holds.
    pub lines_per_color: u64,
    /// Who evicted whom, and tallies by task and color.
    #[serde(flatten)]
    pub interference: Interference,
    /// Lines at the end. Row: the task; column: the color.
    pub occupancy: Vec<Vec<u64>>,
}

impl Scenario {
    /// Reads a scenario.
    pub fn from_toml(text: &str) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = toml::from_str(text)
            .map_err(|error| ScenarioError::Toml { what: error.to_string().trim_end().to_owned() })?;
        if scenario.schema != SCHEMA {
            return Err(ScenarioError::Toml { what: format!("schema is `{}`, not `{SCHEMA}`", scenario.schema) });
        }
        Ok(scenario)
    }

    /// The machine that `levels` describe; `None` where the scenario names one.
    pub fn described(&self) -> Result<Option<DescribedMachine>, ScenarioError> {
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
            _ => return wrong("a machine is needed, and one only".to_owned(), "give either `machine` or `levels`"),
        }
        let count = self.levels.len();
        if self.shared_levels > count {
            return wrong(
                format!("{} of {count} levels are shared", self.shared_levels),
                "`shared_levels` counts from the outermost",
            );
        }
        let levels = self.levels.iter().map(|text| text.parse()).collect::<Result<Vec<Level>, _>>()?;
        let mut machine = DescribedMachine::of_levels("the scenario's machine", levels);
        machine.levels[count - self.shared_levels..].iter_mut().for_each(|level| level.shared = true);
        machine.timing = self.timing.clone().unwrap_or(machine.timing);
        Ok(Some(machine))
    }

    fn task(&self, name: &str) -> Result<usize, ScenarioError> {
        let found = self.tasks.iter().position(|task| task.name == name);
        found.ok_or_else(|| ScenarioError::Setting {
            what: format!("a pre-emption names the task `{name}`, which there is not"),
            hint: "`by` and `of` are names of tasks",
        })
    }

    fn check(&self, machine: &DescribedMachine) -> Result<(), ScenarioError> {
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
            return wrong(format!("more than {MOST} CPUs, tasks or pre-emptions"), "use fewer");
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

    /// Colors granted, of `color_count`; all when none are named.
    fn granted(&self, color_count: u16) -> Result<Vec<Color>, ScenarioError> {
        let Some(text) = &self.colors else { return Ok((0..color_count).map(Color).collect()) };
        let colors = self.parsed(parse_list(text, u32::from(color_count)))?;
        if colors.is_empty() {
            return Err(self.wrong("no colors".to_owned(), "give a list such as 0-3, or leave `colors` out"));
        }
        Ok(colors.into_iter().map(|color| Color(color as u16)).collect())
    }

    /// How it gets its pages on a machine of `color_count` colors; random ones from `memory_frames`.
    fn allocation(&self, color_count: u16, memory_frames: Option<u64>) -> Result<Allocation, ScenarioError> {
        let colors = self.granted(color_count)?;
        let default = if self.colors.is_some() { Pages::Colored } else { Pages::Sequential };
        Ok(match self.pages.unwrap_or(default) {
            Pages::Sequential | Pages::Random if self.colors.is_some() => {
                return Err(self.wrong(
                    "pages in this order keep to no colors".to_owned(),
                    "with `colors`, `pages` is colored, conflicting or free",
                ));
            }
            Pages::Sequential => Allocation::Sequential { first: FrameNumber(0) },
            Pages::Random => {
                let frames = memory_frames.filter(|frames| *frames > 0).ok_or_else(|| {
                    self.wrong(
                        "random pages of how much memory?".to_owned(),
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
                let format = self.parsed::<Format, TraceError>(self.format.as_deref().unwrap_or("din").parse())?;
                Ok(Source::Trace(trace.clone(), format))
            }
            _ => Err(self.wrong("a program is needed, and one only".to_owned(), "give either `workload` or `trace`")),
        }
    }
}

/// Where a task's accesses come from.
#[derive(Clone, Debug)]
enum Source {
    Workload(Workload),
    Trace(String, Format),
}
