//! isochrome on Linux.

pub mod error;
pub mod sysfs;
