//! Fixture for tests: two tasks on one CPU, whose events the tests report.

use isochrome_model::running::JobRecord;
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::SwitchOut;

use super::{JobTracker, Observation, Observed};
use crate::sched::{EventKind, ThreadName};
use crate::sys::perf::GroupReading;

pub(super) const CPU: CpuId = CpuId(1);

/// Tracker in which thread 11 executes the jobs of task 0, and thread 22 those of task 1. Jobs count from 1000 ns on.
pub(super) struct Fixture(pub(super) JobTracker);

impl Fixture {
    pub(super) fn new(jobs: Jobs) -> Fixture {
        Fixture::of(jobs, false)
    }

    pub(super) fn of(jobs: Jobs, counted: bool) -> Fixture {
        let mut watch = JobTracker::new(2, &[CPU], Ns(1000), counted, true);
        watch.follow(0, 11, jobs, CPU, 0);
        watch.follow(1, 22, Jobs::Wakeup, CPU, 1);
        Fixture(watch)
    }

    pub(super) fn switch(&mut self, at: u64, from: i32, reason: SwitchOut, to: i32) -> &mut Self {
        self.event(
            at,
            EventKind::Switch {
                from,
                from_name: ThreadName::default(),
                reason,
                to,
                to_name: ThreadName::default(),
                reading: GroupReading::default(),
            },
        )
    }

    pub(super) fn wake(&mut self, at: u64, thread: i32) -> &mut Self {
        self.event(at, EventKind::Wakeup { thread })
    }

    pub(super) fn event(&mut self, at: u64, what: EventKind) -> &mut Self {
        self.0.note(Observation { at: Ns(at), what: Observed::Scheduler(CPU, what) });
        self
    }

    pub(super) fn fact(&mut self, at: u64, what: Observed) -> &mut Self {
        self.0.note(Observation { at: Ns(at), what });
        self
    }

    /// Returns task, instance, release, start, completion, execution and preemptions of each complete job.
    pub(super) fn jobs(&mut self) -> Vec<(usize, u64, u64, u64, u64, u64, u32)> {
        let mut jobs = Vec::new();
        self.0.take(&mut jobs);
        let row =
            |j: JobRecord| (j.task, j.instance, j.release.0, j.start.0, j.completion.0, j.execution.0, j.preemptions);
        jobs.into_iter().map(row).collect()
    }

    /// Returns task, instance and misses of each complete job.
    pub(super) fn misses(&mut self) -> Vec<(usize, u64, Option<u64>)> {
        let mut jobs = Vec::new();
        self.0.take(&mut jobs);
        jobs.into_iter().map(|job| (job.task, job.instance, job.misses)).collect()
    }
}
