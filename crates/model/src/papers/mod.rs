//! The figures and tables of the papers, played on modeled machines, with the numbers that the papers print beside them.
//!
//! `papers/KEY.toml` has an entry for each figure: what is played, on which machine, and the numbers that the paper prints, each with
//! the place where it stands. An entry is all that a further figure needs, if one of the kinds of [`Play`] fits it.

mod compared;
pub mod flooded;
mod hardware;
mod loops;
mod packets;
mod pages;
mod played;
mod tasks;

use serde::Deserialize;
use serde::de::Error;

pub use compared::{Agreement, Basis, Compared, NamedLine, NamedValue, Numbers, Printed, Relation, SCHEMA};
pub use hardware::{HardwareNumbers, Left, Measured, OnHardware};
pub use pages::misses_per_pass;
pub use played::Played;

use crate::flood::NoDoublePurge;
use crate::plan::PlanError;
use crate::sim::ConfigError;
use crate::sim::scenario::ScenarioError;
use crate::taskset::Invalid;
use crate::taskset::read::ReadError;
use crate::units::ParseError;
use crate::workload::WorkloadError;

/// Texts of the papers' entries.
static TEXTS: [&str; 5] = [
    include_str!("../../../../papers/hanemaaijer1993.toml"),
    include_str!("../../../../papers/liedtke1997.toml"),
    include_str!("../../../../papers/loeser1999.toml"),
    include_str!("../../../../papers/sebek2002.toml"),
    include_str!("../../../../papers/kim2013.toml"),
];

/// A paper, with the figures of it that can be played.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Key of the bibliography, in small letters.
    pub key: String,
    /// Key of the bibliography.
    pub cited: String,
    /// The figures, in the order of the paper.
    #[serde(rename = "figure")]
    pub figures: Vec<PaperFigure>,
}

/// A figure or a table of a paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// Name in the command, such as `5` or `table-1`.
    pub name: String,
    /// Description of the figure.
    pub title: String,
    /// Place of the figure in the paper.
    pub place: String,
    /// Description of the played model and of its result.
    pub seen: String,
    /// Whether playing takes more than a second or so, too long for a test that runs again and again.
    #[serde(default)]
    pub slow: bool,
    /// The model that is played.
    pub play: Play,
    /// Commands of isochrome that measure the figure on hardware, without the name of the program. `{file}` stands for the beginning of the names of
    /// the files that they write.
    #[serde(default)]
    pub measured: Vec<String>,
    /// Reason why nothing, or only a part, can be measured.
    pub unmeasured: Option<String>,
    /// Page of docs/results with kept measurements of the figure.
    pub page: Option<String>,
    /// Numbers that the paper prints.
    #[serde(rename = "number", default)]
    pub numbers: Vec<Printed>,
}

/// Model that is played for a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Play {
    /// Jobs of programs, with and without a flood before each.
    Jobs(flooded::Jobs),
    /// A matrix multiplication that is flooded after every time slice.
    Slices(flooded::Slices),
    /// The frames of one buffer.
    Map(pages::Buffer),
    /// Numbers of pages of a buffer that share a cache page, over many buffers.
    Histogram(pages::Buffers),
    /// The time to walk over buffers against their conflicts.
    Penalty(pages::Penalty),
    /// The miss ratio of loops around the size of a cache.
    Loop(loops::Loops),
    /// The preemption delay in caches of several associativities.
    Preempted(loops::Loops),
    /// The preemption delay on a machine, against the size of the task.
    Delay(loops::Delay),
    /// The iterations of a task, one of which is preempted.
    Timeline(loops::Timeline),
    /// The refills of a context switch.
    Switch(loops::Switch),
    /// Packets through a network stack after floods.
    Packets(packets::Packets),
    /// Memory and cache of one page color of a machine's outermost level.
    Colors(tasks::Colors),
    /// Execution times of a task set against the number of partitions.
    Curves(tasks::Curves),
    /// Programs side by side on all CPUs, with and without partitions of their own.
    Reservation(tasks::Reservation),
    /// Response times of the tasks of a core: bounds, and a played schedule.
    Responses(tasks::Core),
    /// Utilization of a core with and without sharing of partitions.
    Utilization(tasks::Core),
    /// The planning methods on copies of a task set.
    Methods(tasks::Methods),
}

/// Reasons why a figure cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// There is no such figure.
    #[error("`{name}` is not a figure of a paper that is known here\n  hint: `isochrome lab paper --list` lists them")]
    Unknown {
        /// The name that was given.
        name: String,
    },
    /// An entry names something that does not exist.
    #[error("papers/{key}.toml, figure {figure}: {what}\n  hint: correct the entry; the other entries are examples")]
    Entry {
        /// Key of the paper.
        key: String,
        /// Name of the figure.
        figure: String,
        /// Description of the mistake.
        what: String,
    },
}

/// Description of a mistake in an entry, before it is known which entry it is.
pub(crate) struct Wrong(String);

impl From<String> for Wrong {
    fn from(what: String) -> Wrong {
        Wrong(what)
    }
}

macro_rules! wrong_from {
    ($($error:ty),*) => {
        $(impl From<$error> for Wrong {
            fn from(error: $error) -> Wrong {
                Wrong(error.to_string())
            }
        })*
    };
}
wrong_from!(ConfigError, ScenarioError, WorkloadError, ParseError, PlanError, ReadError, Invalid, NoDoublePurge);

impl Paper {
    /// Returns all papers, by year.
    pub fn all() -> Vec<Paper> {
        // By way of a JSON value, because the code that reads these types takes much longer to compile for TOML.
        let read = |text| serde_json::from_value(toml::from_str(text).map_err(serde_json::Error::custom)?);
        TEXTS.iter().map(|text| read(text).unwrap_or_else(|error| panic!("a test reads them: {error}"))).collect()
    }

    /// Returns the paper that `name` names, with all its figures for `sebek2002`, and with one for `sebek2002/5`.
    pub fn find(name: &str) -> Result<Paper, PaperError> {
        let lower = name.to_lowercase();
        let (key, figure) = lower.split_once('/').map_or((lower.as_str(), None), |(key, figure)| (key, Some(figure)));
        let mut found = Paper::all().into_iter().find(|paper| paper.key == key);
        if let (Some(paper), Some(figure)) = (&mut found, figure) {
            paper.figures.retain(|known| known.name == figure);
        }
        found.filter(|paper| !paper.figures.is_empty()).ok_or_else(|| PaperError::Unknown { name: name.to_owned() })
    }
}

impl PaperFigure {
    /// Returns the name with the key of `paper`, as the command takes it.
    pub fn full_name(&self, paper: &Paper) -> String {
        format!("{}/{}", paper.key, self.name)
    }

    /// Plays the figure. The result is equal on every machine: random choices have fixed seeds, and nothing is timed.
    pub fn play(&self, paper: &Paper) -> Result<Played, PaperError> {
        let played = match &self.play {
            Play::Jobs(jobs) => jobs.play(),
            Play::Slices(slices) => slices.play(),
            Play::Map(buffer) => Ok(buffer.play()),
            Play::Histogram(buffers) => Ok(buffers.play()),
            Play::Penalty(penalty) => penalty.play(),
            Play::Loop(loops) => loops.miss_ratios(),
            Play::Preempted(loops) => loops.delays(),
            Play::Delay(delay) => delay.play(),
            Play::Timeline(timeline) => timeline.play(),
            Play::Switch(switch) => Ok(switch.play()),
            Play::Packets(packets) => packets.play(),
            Play::Colors(colors) => colors.play(),
            Play::Curves(curves) => curves.play(),
            Play::Reservation(reservation) => reservation.play(),
            Play::Responses(core) => Ok(core.responses()),
            Play::Utilization(core) => core.utilization(),
            Play::Methods(methods) => methods.play(),
        };
        played.map_err(|Wrong(what)| self.wrong(paper, what))
    }

    fn wrong(&self, paper: &Paper, what: String) -> PaperError {
        PaperError::Entry { key: paper.key.clone(), figure: self.name.clone(), what }
    }

    /// Compares `played` with the numbers that the paper prints, in their order.
    pub fn compare(&self, paper: &Paper, played: &Played) -> Result<Vec<Compared>, PaperError> {
        let compared = self.numbers.iter().map(|printed| printed.compare(played));
        compared.collect::<Result<_, _>>().map_err(|Wrong(what)| self.wrong(paper, what))
    }
}

/// Returns the modeled machine `name`.
fn machine(name: &str) -> Result<crate::sim::MachineModel, Wrong> {
    crate::sim::MachineModel::named(name).ok_or_else(|| Wrong(format!("`{name}` is not a modeled machine")))
}
