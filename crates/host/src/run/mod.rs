//! Jobs of programs that run: released, seen, and timed.

pub mod blocks;
pub mod engine;
mod error;
pub mod line;
pub mod marks;
pub mod planned;
pub mod profiling;
pub mod recording;
mod releases;
pub mod shielding;

pub use self::error::RunError;
