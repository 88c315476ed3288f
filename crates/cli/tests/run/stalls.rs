//! Measures how long the host withheld CPUs while a test ran.
//!
//! A hypervisor neither announces steal time nor reports all of it afterwards. A thread of the highest priority that sleeps again and again
//! notices it, because nothing else on this machine can keep it from waking up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isochrome_host::machine::setting::{RealtimeRequest, allowed_cpus};
use isochrome_model::units::{CpuId, Ns};

use crate::trial::NotRun;

/// Priority above every task, and above the thread that releases jobs.
const PRIORITY: u8 = 90;

/// Time between two readings of the clock.
const EVERY: Duration = Duration::from_millis(1);

/// Longest time that waking up takes if no CPU is withheld.
const USUAL: Duration = Duration::from_micros(200);

/// Longest stall at which jobs are counted: a tenth of the time after which a program counts as hanging.
const LONGEST_MAX: Duration = Duration::from_millis(50);

/// Largest withheld share of a run at which jobs are counted: half of the share at which the tool reports missing jobs.
const SHARE_MAX: f64 = 0.05;

/// Times for which CPUs were withheld.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stalls {
    /// Longest single time.
    pub longest: Duration,
    /// Sum of the times of all CPUs.
    pub total: Duration,
    /// Length of the measurement.
    pub of: Duration,
}

impl Stalls {
    /// Checks whether jobs can be counted, and returns the reason if not.
    pub fn check(&self) -> Result<(), NotRun> {
        if self.longest <= LONGEST_MAX && self.total.as_secs_f64() <= SHARE_MAX * self.of.as_secs_f64() {
            return Ok(());
        }
        Err(NotRun(format!(
            "the host withheld CPUs for {} ms of {} ms, {} ms at once",
            self.total.as_millis(),
            self.of.as_millis(),
            self.longest.as_millis()
        )))
    }
}

/// A measurement of [`Stalls`] that runs until it is stopped.
pub struct StallDetector {
    begin: Instant,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(Duration, Duration)>>,
}

impl StallDetector {
    /// Starts to measure, on the CPU of the tasks and on that of the thread that releases their jobs.
    pub fn start(cpu: usize) -> StallDetector {
        let tasks = CpuId(cpu as u32);
        let releases = allowed_cpus().unwrap().into_iter().find(|cpu| *cpu != tasks);
        let over = Arc::new(AtomicBool::new(false));
        let threads = std::iter::once(tasks).chain(releases).map(|cpu| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || measure(cpu, &over))
        });
        StallDetector { begin: Instant::now(), threads: threads.collect(), over }
    }

    pub fn stop(self) -> Stalls {
        self.over.store(true, Ordering::Relaxed);
        let of = self.begin.elapsed();
        let found = self.threads.into_iter().map(|thread| thread.join().unwrap());
        found.fold(Stalls { of, ..Stalls::default() }, |all, (longest, total)| Stalls {
            longest: all.longest.max(longest),
            total: all.total + total,
            of,
        })
    }
}

/// Returns the longest time for which `cpu` was withheld, and the sum of all such times.
fn measure(cpu: CpuId, over: &AtomicBool) -> (Duration, Duration) {
    let _settings = RealtimeRequest::new().timer_slack(Ns(1)).fifo(PRIORITY).pin(cpu).apply();
    let (mut longest, mut total) = (Duration::ZERO, Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        std::thread::sleep(EVERY);
        let late = begin.elapsed().saturating_sub(EVERY);
        if late > USUAL {
            longest = longest.max(late);
            total += late;
        }
    }
    (longest, total)
}
