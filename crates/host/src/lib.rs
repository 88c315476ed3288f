//! isochrome on Linux.

pub mod counters;
pub mod doctor;
pub mod error;
pub mod events;
pub mod interrupt;
pub mod setting;
pub mod sys;
pub mod sysfs;
