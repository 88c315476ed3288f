//! A plan in the words of other systems: those that give cache ways to programs (resctrl, OCI, pqos, systemd), and those that give page
//! colors or ways to virtual machines and cells (Xen, Bao, Jailhouse) or to control groups (PALLOC).
//!
//! Partitions have numbers from 1 in a plan, colors and ways from 0 elsewhere. Colors keep their numbers. Ways are numbered anew, because
//! most processors take only runs of ways and partitions are interchangeable: see [`ways::arrange`].

mod files;
pub mod ways;

use std::fmt;
use std::str::FromStr;

use crate::plan::{Plan, UnknownName};
pub use files::write;
use ways::WayRules;

/// A system that can keep programs or guests to parts of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Linux resctrl (Intel CAT, AMD QoS, Arm MPAM): a shell script that makes the groups.
    Resctrl,
    /// OCI runtime-spec 1.3, `linux.intelRdt`: a fragment per task.
    Oci,
    /// Xen's cache coloring: a fragment of `xl.cfg` per core.
    Xen,
    /// Jailhouse's `.cache_regions`: a fragment of a cell's configuration per core.
    Jailhouse,
    /// Bao's `.colors`: a fragment of a virtual machine's configuration per core.
    Bao,
    /// Intel's pqos: a shell script.
    Pqos,
    /// systemd: a unit per task that joins its resctrl group before the program begins.
    Systemd,
    /// PALLOC's control groups: a shell script.
    Palloc,
}

impl Target {
    /// All, in the order of [`Target`].
    pub const ALL: [Target; 8] = [
        Target::Resctrl,
        Target::Oci,
        Target::Xen,
        Target::Jailhouse,
        Target::Bao,
        Target::Pqos,
        Target::Systemd,
        Target::Palloc,
    ];
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Target::Resctrl => "resctrl",
            Target::Oci => "oci",
            Target::Xen => "xen",
            Target::Jailhouse => "jailhouse",
            Target::Bao => "bao",
            Target::Pqos => "pqos",
            Target::Systemd => "systemd",
            Target::Palloc => "palloc",
        })
    }
}

impl FromStr for Target {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Target::ALL.into_iter().find(|target| target.to_string() == text).ok_or_else(|| {
            UnknownName::new("a system to export to", text, Target::ALL.map(|target| target.to_string()).join(", "))
        })
    }
}

/// The cache of the machine that the plan goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Its level, 2 or 3.
    pub level: u8,
    /// Number of the instance that serves each core of the plan, in the plan's order; a core without one has the last.
    pub ids: Vec<u32>,
    /// What masks of ways the processor takes; absent where the cache is divided by colors.
    pub ways: Option<WayRules>,
}

impl Cache {
    /// Number of the cache that serves the core at `position` of the plan.
    pub fn id(&self, position: usize) -> u32 {
        self.ids.get(position).or(self.ids.last()).copied().unwrap_or(0)
    }
}

/// A file for the other system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its usual name.
    pub name: String,
    /// What it says.
    pub text: String,
}

/// Why a plan cannot be said in the other system's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Nothing to say: no task has a core.
    #[error("the plan places no task\n  hint: `isochrome plan` says which task fails and what would mend it")]
    Empty,
    /// The plan leaves tasks out.
    #[error("the plan has no place for {}\n  hint: export a plan that is schedulable", tasks.join(", "))]
    Unplaced {
        /// Which.
        tasks: Vec<String>,
    },
    /// A plan's partition does not exist.
    #[error(
        "partition {partition} of task `{task}` is none of 1 to {count}\n  hint: say how many the cache has: --partitions"
    )]
    Partition {
        /// Whose.
        task: String,
        /// Which.
        partition: u32,
        /// How many partitions the cache has.
        count: u32,
    },
    /// Too many colors for a mask.
    #[error("color {color} does not fit a mask of {bits} bits")]
    Mask {
        /// Which.
        color: u32,
        /// How many fit.
        bits: u32,
    },
    /// The target divides a cache by ways, and what the cache takes is not known.
    #[error("{target} divides a cache by ways, and how many this one has is not known\n  hint: --ways 16")]
    NoWays {
        /// What was asked for.
        target: Target,
    },
    /// The target divides caches of other levels only.
    #[error("{target} does not divide caches of level {level}\n  hint: plan for the last level: level = 3")]
    Level {
        /// What was asked for.
        target: Target,
        /// The plan's.
        level: u8,
    },
    /// A program to start is not known.
    #[error("how task `{task}` is started is not known\n  hint: plan a task set that has a `command` for every task")]
    NoCommand {
        /// Which.
        task: String,
    },
    /// Ways.
    #[error(transparent)]
    Ways(#[from] ways::WaysError),
}

impl Plan {
    /// Tasks of a plan that can be exported: `(position of the core, core, task)`.
    fn placed(&self) -> impl Iterator<Item = (usize, &crate::plan::CorePlan, &crate::plan::TaskPlan)> {
        self.cores.iter().enumerate().flat_map(|(at, core)| core.tasks.iter().map(move |task| (at, core, task)))
    }
}
