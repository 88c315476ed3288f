//! Runs the programs of a task set, and releases, observes and times their jobs.

pub mod blocks;
pub mod calls;
pub mod engine;
mod error;
pub mod gaps;
pub mod marks;
pub mod messages;
pub mod planned;
pub mod profiling;
pub mod recording;
mod releases;
pub mod shielding;

pub use self::error::RunError;
