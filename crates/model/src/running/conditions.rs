//! Conditions of a run: settings of the machine, reservations, and the cost of observing.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{CpuId, Ns};

/// A setting of the machine, with its values before, during and after the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Name of the setting.
    pub name: String,
    /// Value before the run.
    pub before: String,
    /// Value while the programs ran.
    pub during: String,
    /// Value after the run.
    pub after: String,
}

/// Reservations on a CPU whose tasks are scheduled by deadlines. [`reservation`](crate::analysis::reservation)
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reserved {
    /// CPU of the reservations.
    pub cpu: CpuId,
    /// Density Σ Q/D of the tasks on the CPU.
    pub density: f64,
    /// Largest density that the kernel admits.
    pub most: f64,
}

impl Reserved {
    /// Returns whether it is proven that every task gets its reserved time within its deadline.
    pub fn is_proved(&self) -> bool {
        self.density <= self.most
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reserved { cpu, density, most } = self;
        write!(f, "CPU {}: density {density:.3} of at most {most:.3}, ", cpu.0)?;
        f.write_str(match self.is_proved() {
            true => "so a job that needs no more than its reserved time is complete by its deadline",
            false => "so it is not proved that tasks get their reserved time before their deadlines",
        })
    }
}

/// Cost of observing a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overhead {
    /// Number of scheduler events read.
    pub events: u64,
    /// Number of events that the kernel had no room for.
    pub lost: u64,
    /// CPU time of this program's own threads, including releases.
    pub tool_cpu: Ns,
    /// Part of `tool_cpu` for writing and reading the lines that release and complete jobs.
    #[serde(default)]
    pub release_cpu: Ns,
    /// Time over which the cost was measured.
    pub elapsed: Ns,
    /// Longest delay of a line that releases a job.
    pub release_late_max: Ns,
    /// Number of jobs that were not released, because this program itself was delayed when they were due.
    #[serde(default)]
    pub releases_skipped: u64,
    /// Longest time from a release that was skipped until this program noticed it.
    #[serde(default)]
    pub held_up_max: Ns,
}

impl Overhead {
    /// Adds the overhead of a further run.
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

    /// Describes the releases by lines: their cost and their delays.
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
