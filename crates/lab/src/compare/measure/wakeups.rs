//! Jobs of a program by events of the scheduler: a job begins when a thread is woken, and is complete when it sleeps again.

use std::time::Duration;

use isochrome_host::process::Pid;
use isochrome_host::sched::SchedError;
use isochrome_host::sched::jobs::events::JobEvents;
use isochrome_host::sched::jobs::{JobTracker, Observation};
use isochrome_host::sys::clock::monotonic;
use isochrome_model::running::JobRecord;
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{CpuId, Ns};

use super::{BATCH, MayGoOn, Measure, Reading, Trouble, sleep};

/// Most threads that are followed.
const THREADS_MAX: usize = 1024;

/// Time that is measured of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Time from the wake-up to sleep.
    Response,
    /// Time for which the thread had the CPU between wake-up and sleep.
    Execution,
}

/// Follows the jobs of all threads of a program that is bound to one CPU.
pub struct Wakeups {
    pid: Pid,
    cpu: CpuId,
    quantity: Quantity,
    events: JobEvents,
    hypervisor: bool,
}

impl Wakeups {
    /// Records the events of `pid`, which is bound to `cpu`, from now on.
    ///
    /// Fails as [`JobEvents::open`] does.
    pub fn new(pid: Pid, cpu: CpuId, quantity: Quantity) -> Result<Wakeups, SchedError> {
        let (events, _) = JobEvents::open(&[cpu], None)?;
        let hypervisor = isochrome_host::machine::sysfs::Sysfs::system().is_virtual();
        Ok(Wakeups { pid, cpu, quantity, events, hypervisor })
    }

    /// Returns the times of the jobs of a window.
    fn jobs(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Vec<f64>, Trouble> {
        let failed = |error: SchedError| Trouble::Failed(format!("events of the scheduler: {error}"));
        let threads = self.pid.threads().map_err(|error| Trouble::Failed(error.to_string()))?;
        let threads = &threads[..threads.len().min(THREADS_MAX)];
        self.events.follow(threads, &[]).map_err(failed)?;
        // What happened before the window is dropped.
        self.events.drain(&mut Vec::new()).map_err(failed)?;
        let begin = monotonic();
        let mut tracker = JobTracker::new(threads.len(), &[self.cpu], begin, false, self.hypervisor);
        for (task, thread) in threads.iter().enumerate() {
            tracker.follow(task, *thread, Jobs::Wakeup, self.cpu, 0);
        }
        let (mut observations, mut done): (Vec<Observation>, Vec<JobRecord>) = (Vec::new(), Vec::new());
        let (end, mut lost) = (begin.0 + length.as_nanos() as u64, self.events.lost());
        loop {
            let now = monotonic();
            sleep(BATCH.min(Duration::from_nanos(end.saturating_sub(now.0))), may_go_on)?;
            // Events of several CPUs come CPU by CPU. Those before the reading began have all come.
            let horizon = monotonic();
            self.events.drain(&mut observations).map_err(failed)?;
            observations.sort_by_key(|observation| observation.at);
            if std::mem::replace(&mut lost, self.events.lost()) != lost {
                tracker.lose();
            }
            let known = observations.partition_point(|observation| observation.at < horizon);
            observations.drain(..known).for_each(|observation| tracker.note(observation));
            tracker.take(&mut done);
            if horizon.0 >= end {
                break;
            }
        }
        let time = |job: &JobRecord| match self.quantity {
            Quantity::Response => Ns(job.completion.0.saturating_sub(job.release.0)),
            Quantity::Execution => job.execution,
        };
        Ok(done.iter().map(|job| time(job).0 as f64 / 1e3).filter(|time| *time > 0.0).collect())
    }
}

impl Measure for Wakeups {
    fn unit(&self) -> &str {
        "µs"
    }

    fn window(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble> {
        self.jobs(length, may_go_on).map(Reading::Values)
    }
}
