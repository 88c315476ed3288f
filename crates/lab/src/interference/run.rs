//! A run in progress, and its counters.

use std::thread;
use std::time::Instant;

use isochrome_host::counters::events::{LevelEvents, events_of_levels};
use isochrome_host::counters::{Counters, Reading};
use isochrome_host::sys::clock;
use isochrome_model::units::{CpuId, Cycles, Ns};

use super::process::{Process, RUNNING, WAITING};
use super::{Condition, Setup, Sharing};
use crate::samples::Arm;

/// A run in progress.
pub(super) struct Run<'r> {
    pub(super) condition: Condition,
    pub(super) arm: Arm,
    pub(super) others: &'r [usize],
    pub(super) subject: Process,
    /// For each of `others`, the process that runs: in a control on one CPU a spinner. `None` if none runs there, and if there is no replacement
    /// for a co-runner that ended.
    pub(super) mates: Vec<Option<Process>>,
    pub(super) counting: Counting,
    /// Whether a co-runner ended before the program and no replacement was ready.
    pub(super) censored: bool,
}

impl Run<'_> {
    pub(super) fn sharing(&self) -> Sharing {
        self.condition.sharing
    }

    pub(super) fn is_in_slices(&self) -> bool {
        self.sharing() == Sharing::IntraCore && self.arm != Arm::Reference
    }

    /// Returns the CPU and the priority of the co-runner at index `at`.
    pub(super) fn target(&self, at: usize, setup: &Setup) -> (CpuId, Option<u8>) {
        match self.sharing() {
            Sharing::InterCore => (setup.others[at], setup.realtime.then_some(RUNNING)),
            Sharing::IntraCore => (setup.cpu, Some(WAITING)),
        }
    }

    /// Gives the CPU to the process of `slot` until `until`: slot 0 is the measured program, and the others are its co-runners. Spins if the
    /// slot has no process.
    pub(super) fn give_slice(&self, slot: usize, until: Instant, in_slices: bool) {
        let left = || until.saturating_duration_since(Instant::now());
        match if slot == 0 { Some(&self.subject) } else { self.mates[slot - 1].as_ref() } {
            Some(process) => {
                if in_slices {
                    process.set_priority(RUNNING);
                }
                thread::sleep(left());
                if in_slices {
                    process.set_priority(WAITING);
                }
            }
            None => {
                let ticks = left().as_nanos() as u64 * clock::rate_hz() / 1_000_000_000;
                clock::spin_until(Cycles(clock::now().0 + ticks));
            }
        }
    }

    /// Returns the values of a run that took `took`, in the order of the columns; `None` if `took` is `None`.
    pub(super) fn values(&self, took: Option<Ns>, levels: &[LevelEvents]) -> Option<Vec<f64>> {
        let time = [took?.0 as f64, f64::from(u8::from(self.censored))];
        Some(time.into_iter().chain(self.counting.requests(levels)).collect())
    }
}

/// Counters of the measured program. They count one thread only, so a run has no counts if the program has more than one or the counters fail.
pub(super) struct Counting {
    counters: Option<(Counters, Reading)>,
    single: bool,
}

impl Counting {
    pub(super) fn of(subject: &Process, levels: &[LevelEvents]) -> Counting {
        let events = events_of_levels(levels);
        let counters = (!events.is_empty() && subject.threads.len() == 1)
            .then(|| Counters::of_thread(&events, subject.pid.0).ok())
            .flatten();
        let counters = counters.and_then(|counters| counters.read().ok().map(|reading| (counters, reading)));
        Counting { counters, single: true }
    }

    /// Records whether `subject` still has at most one thread.
    pub(super) fn note_threads(&mut self, subject: &Process) {
        self.single &= self.counters.is_none() || subject.pid.threads().map_or(true, |threads| threads.len() <= 1);
    }

    /// Returns hits and misses of each level since the beginning of the run; NaN if they were not counted.
    pub(super) fn requests(&self, levels: &[LevelEvents]) -> Vec<f64> {
        let events = events_of_levels(levels);
        let counts = self.counters.as_ref().filter(|_| self.single).and_then(|(counters, before)| {
            Some(counters.between(before, &counters.read().ok()?).ok()?.values().to_vec())
        });
        let of_level = |level: &LevelEvents| match &counts {
            Some(counts) => level.requests(&events, counts).map(|count| count as f64),
            None => [f64::NAN; 2],
        };
        levels.iter().flat_map(of_level).collect()
    }
}
