//! Measures of a running program, which are taken in windows without changing the program.

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

/// Reason why nothing was measured in a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The watcher asked to stop: a signal arrived, or a program has ended.
    #[error("the window was interrupted")]
    Stopped,
    /// This window failed; the next one may succeed.
    #[error("{0}")]
    Failed(String),
}

/// Measurements of a window.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// Single values, whose statistic is computed here.
    Values(Vec<f64>),
    /// The statistic, as a load generator has computed it.
    Statistic(f64),
}

/// Returns whether a window may go on. This is called again and again while a window is measured.
pub type MayGoOn<'a> = dyn FnMut() -> bool + 'a;

/// A measure of a program.
pub trait Measure {
    /// Returns the unit of the values; empty if it is not known.
    fn unit(&self) -> &str;

    /// Measures a window of about `length`. If a load generator is run once per window, the window lasts until the generator ends.
    fn window(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble>;
}

/// Time between two readings of the buffers with reports of the kernel or of a program, which must not overflow.
const BATCH: Duration = Duration::from_millis(50);

/// Time between two checks of whether a window may go on.
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
