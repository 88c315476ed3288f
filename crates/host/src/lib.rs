//! isochrome on Linux.

pub mod counters;
pub mod error;
pub mod events;
pub mod sys;
pub mod sysfs;
