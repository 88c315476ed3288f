//! Under which conditions a run took place: settings of the machine, reservations, and what watching took.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{CpuId, Ns};

/// Something of the machine, before, during and after the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Which.
    pub name: String,
    /// Before.
    pub before: String,
    /// While the programs ran.
    pub during: String,
    /// Afterwards.
    pub after: String,
}

/// What is reserved on a CPU whose tasks are scheduled by deadlines. [`reservation`](crate::analysis::reservation)
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reserved {
    /// The CPU.
    pub cpu: CpuId,
    /// Σ Q/D over its tasks.
    pub density: f64,
    /// Up to which the kernel admits reservations.
    pub most: f64,
}

impl Reserved {
    /// Whether it is proven that every task gets its reserved time within its deadline.
    pub fn is_proved(&self) -> bool {
        self.density <= self.most
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reserved { cpu, density, most } = self;
        write!(f, "CPU {}: density {density:.3} of at most {most:.3}, ", cpu.0)?;
        f.write_str(match self.is_proved() {
            true => "so a job that needs no more than is reserved for it is complete by its deadline",
            false => "so it is not proved that tasks get in time what is reserved for them",
        })
    }
}

/// What watching took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overhead {
    /// Events of the scheduler read.
    pub events: u64,
    /// Events that the kernel had no room for.
    pub lost: u64,
    /// Time of this program's own threads on CPUs, releases included.
    pub tool_cpu: Ns,
    /// Time of it that went into writing and reading the lines that release jobs and complete them.
    #[serde(default)]
    pub release_cpu: Ns,
    /// Time it was measured over.
    pub elapsed: Ns,
    /// How late lines were written that release jobs, at most.
    pub release_late_max: Ns,
    /// Jobs that were not released, because this program was itself held up when they were due.
    #[serde(default)]
    pub releases_skipped: u64,
    /// For how long after the first that was due, at most.
    #[serde(default)]
    pub held_up_max: Ns,
}

impl Overhead {
    /// Adds that of a further run.
    pub fn add(&mut self, more: &Overhead) {
        self.events += more.events;
        self.lost += more.lost;
        self.tool_cpu.0 += more.tool_cpu.0;
        self.release_cpu.0 += more.release_cpu.0;
        self.elapsed.0 += more.elapsed.0;
        self.release_late_max = self.release_late_max.max(more.release_late_max);
        self.releases_skipped += more.releases_skipped;
        self.held_up_max = self.held_up_max.max(more.held_up_max);
    }

    /// What releasing lines came to, in words.
    pub fn releases(&self) -> String {
        let share = self.release_cpu.0 as f64 / self.elapsed.0.max(1) as f64 * 100.0;
        let us = |time: Ns| time.0 as f64 / 1e3;
        let late = us(self.release_late_max);
        let skipped = match self.releases_skipped {
            0 => String::new(),
            releases => format!(
                ", {releases} not at all, as isochrome itself was held up, for up to {:.0} µs",
                us(self.held_up_max)
            ),
        };
        format!("{share:.2} % of a CPU; lines written at most {late:.0} µs late{skipped}")
    }
}
