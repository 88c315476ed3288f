//! Events that a counter counts while the program runs, such as cache misses.

use std::time::{Duration, Instant};

use isochrome_host::counters::Counters;
use isochrome_host::counters::events::Event;
use isochrome_host::process::Pid;
use isochrome_host::recolor::watch::family;

use super::{MayGoOn, Measure, Reading, Trouble, sleep};

/// Counts an event in all threads that a program and its descendants have when a window begins, in user mode.
pub struct Counts {
    pid: Pid,
    event: Event,
}

impl Counts {
    /// Counts `event` in `pid`, which must be one that [`Counters::open`] has accepted.
    pub fn new(pid: Pid, event: Event) -> Counts {
        Counts { pid, event }
    }
}

impl Measure for Counts {
    fn unit(&self) -> &str {
        "1/s"
    }

    fn window(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble> {
        let failed = |error: &dyn std::fmt::Display| Trouble::Failed(error.to_string());
        let threads = family(self.pid).into_iter().flat_map(|pid| pid.threads().unwrap_or_default());
        let mut counters = Vec::new();
        for thread in threads {
            let opened = Counters::of_thread(&[self.event], thread).map_err(|error| failed(&error))?;
            let before = opened.read().map_err(|error| failed(&error))?;
            counters.push((opened, before));
        }
        let begin = Instant::now();
        sleep(length, may_go_on)?;
        let (mut sum, seconds) = (0, begin.elapsed().as_secs_f64());
        for (counter, before) in &counters {
            let after = counter.read().map_err(|error| failed(&error))?;
            // A thread that had no CPU in this time has counted nothing.
            if after != *before {
                sum += counter.between(before, &after).map_err(|error| failed(&error))?.values()[0];
            }
        }
        Ok(Reading::Statistic(sum as f64 / seconds))
    }
}
