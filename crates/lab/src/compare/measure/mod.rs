//! What is measured of a program in a window, without changing the program.

mod calls;
mod command;
mod counts;
mod lines;
mod readers;
mod socket;
mod wakeups;

use std::time::Duration;

pub use calls::{Calls, Reports};
pub use command::LoadGenerator;
pub use counts::Counts;
pub use lines::Lines;
pub use readers::Reader;
pub use socket::{Protocol, Socket, Target};
pub use wakeups::{Quantity, Wakeups};

/// Why nothing was measured in a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The watcher asked to stop: a signal arrived, or a program has ended.
    #[error("the window was broken off")]
    Stopped,
    /// This window failed; the next one may succeed.
    #[error("{0}")]
    Failed(String),
}

/// What was measured in a window.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// Single values, whose statistic is computed here.
    Values(Vec<f64>),
    /// The statistic, as a load generator has computed it.
    Statistic(f64),
}

/// Whether a window may go on. It is asked again and again while a window is measured.
pub type MayGoOn<'a> = dyn FnMut() -> bool + 'a;

/// A measure of a program.
pub trait Measure {
    /// Returns the unit of the values; empty if it is not known.
    fn unit(&self) -> &str;

    /// Measures a window of about `length`. A load generator that is run once per window takes as long as it takes.
    fn window(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble>;
}

/// Time between two readings of what the kernel or a program reports, whose buffers must not overflow.
const BATCH: Duration = Duration::from_millis(50);

/// Time between two questions whether a window may go on.
const GLANCE: Duration = Duration::from_millis(10);

/// Sleeps for `length`. Fails with [`Trouble::Stopped`] as soon as the window may not go on.
fn sleep(length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<(), Trouble> {
    let end = std::time::Instant::now() + length;
    loop {
        if !may_go_on() {
            return Err(Trouble::Stopped);
        }
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(GLANCE));
    }
}
