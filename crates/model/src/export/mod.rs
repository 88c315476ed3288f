//! Exports of a plan to other systems: those that give cache ways to programs (resctrl, OCI, pqos, systemd), and those that give page
//! colors or ways to virtual machines and cells (Xen, Bao, Jailhouse) or to control groups (PALLOC).
//!
//! A partition of the plan is the color of the same number. Ways are renumbered, because most processors accept only consecutive ways and
//! partitions are interchangeable: see [`ways::arrange`].

mod files;
pub mod ways;

use crate::named;
use crate::plan::Plan;
pub use files::write;
use ways::WayRules;

named! {
    /// A system that can restrict programs or guests to parts of a cache.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Target, "a system to export to" {
        /// Linux resctrl (Intel CAT, AMD QoS, Arm MPAM): a shell script that makes the groups.
        Resctrl = "resctrl",
        /// OCI runtime-spec 1.3, `linux.intelRdt`: a fragment per task.
        Oci = "oci",
        /// Xen's cache coloring: a fragment of `xl.cfg` per core.
        Xen = "xen",
        /// Jailhouse's `.cache_regions`: a fragment of a cell's configuration per core.
        Jailhouse = "jailhouse",
        /// Bao's `.colors`: a fragment of a virtual machine's configuration per core.
        Bao = "bao",
        /// Intel's pqos: a shell script.
        Pqos = "pqos",
        /// systemd: a unit per task that joins its resctrl group before the program begins.
        Systemd = "systemd",
        /// PALLOC's control groups: a shell script.
        Palloc = "palloc",
    }
}

/// The cache that the plan is exported for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Level of the cache, 2 or 3.
    pub level: u8,
    /// Number of the cache instance that serves each core of the plan, in the plan's order; cores beyond the end use the
    /// last one.
    pub ids: Vec<u32>,
    /// Masks of ways that the processor accepts; `None` if the cache is divided by colors.
    pub ways: Option<WayRules>,
}

impl Cache {
    /// Returns the number of the cache instance that serves the core at `position` of the plan.
    pub fn id(&self, position: usize) -> u32 {
        self.ids.get(position).or(self.ids.last()).copied().unwrap_or(0)
    }
}

/// A file for the other system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Usual name of the file.
    pub name: String,
    /// Content of the file.
    pub text: String,
}

/// Reasons why a plan cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The plan is empty: no task has a core.
    #[error("the plan places no task\n  hint: the text of the plan says which task fails and how to repair the plan")]
    Empty,
    /// Some tasks of the plan have no core.
    #[error("the plan has no place for {}\n  hint: export a plan that is schedulable", tasks.join(", "))]
    Unplaced {
        /// Names of the tasks without a core.
        tasks: Vec<String>,
    },
    /// The plan uses a partition that does not exist.
    #[error(
        "task `{task}` has partition {partition}, and there are {count}, numbered from 0\n  hint: say how many the cache has"
    )]
    Partition {
        /// Name of the task that uses the partition.
        task: String,
        /// Number of the partition.
        partition: u32,
        /// Number of partitions that the cache has.
        count: u32,
    },
    /// A color or a CPU does not fit into a mask of the target.
    #[error("{what} {number} does not fit a mask of {bits} bits")]
    Mask {
        /// `color` or `CPU`.
        what: &'static str,
        /// The number of the color or the CPU.
        number: u32,
        /// Number of bits of the mask.
        bits: u32,
    },
    /// The target divides a cache by ways, but the rules for its masks are not known.
    #[error("{target} divides a cache by ways, and how many this one has is not known\n  hint: say how many")]
    NoWays {
        /// The target.
        target: Target,
    },
    /// The target does not divide caches of this level.
    #[error("{target} does not divide caches of level {level}\n  hint: plan for the last level: level = 3")]
    Level {
        /// The target.
        target: Target,
        /// Level of the plan's cache.
        level: u8,
    },
    /// The command line of a task is not known.
    #[error("how task `{task}` is started is not known\n  hint: plan a task set that has a `command` for every task")]
    NoCommand {
        /// Name of the task.
        task: String,
    },
    /// The partitions cannot be ways of the cache.
    #[error("{0}")]
    Ways(#[from] ways::WaysError),
}

impl Plan {
    /// Returns the tasks of the plan: `(position of the core, core, task)`.
    fn placed(&self) -> impl Iterator<Item = (usize, &crate::plan::CorePlan, &crate::plan::TaskPlan)> {
        self.cores.iter().enumerate().flat_map(|(at, core)| core.tasks.iter().map(move |task| (at, core, task)))
    }
}
