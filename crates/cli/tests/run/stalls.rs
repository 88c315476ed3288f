//! For how long CPUs stood still while a test ran.
//!
//! What a hypervisor takes away is neither announced nor reported in full afterwards. A thread of the highest priority that sleeps again
//! and again notices: whatever else wants its CPU, nothing in this machine keeps it from waking up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isochrome_host::machine::setting::{RealtimeRequest, allowed_cpus};
use isochrome_model::units::{CpuId, Ns};

use crate::trial::NotRun;

/// Above every task, and above the thread that releases jobs.
const PRIORITY: u8 = 90;

/// Between two looks at the clock.
const EVERY: Duration = Duration::from_millis(1);

/// Waking up takes this long at most where nothing is withheld.
const USUAL: Duration = Duration::from_micros(200);

/// A quarter of what a program may take without counting as one that hangs.
const LONGEST_MAX: Duration = Duration::from_millis(50);

/// The share of a run that may be withheld before its jobs are not counted: half of what makes jobs missing for the tool.
const SHARE_MAX: f64 = 0.05;

/// For how long CPUs stood still.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stalls {
    /// At once.
    pub longest: Duration,
    /// Of all CPUs together.
    pub total: Duration,
    /// While this much time passed.
    pub of: Duration,
}

impl Stalls {
    /// Whether jobs can be counted; if not, why.
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

/// Measures [`Stalls`] until it is stopped.
pub struct StallDetector {
    begin: Instant,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(Duration, Duration)>>,
}

impl StallDetector {
    /// On the CPU of the tasks and on that of the thread that releases their jobs.
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

/// The longest time for which `cpu` stood still, and all such times together.
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
