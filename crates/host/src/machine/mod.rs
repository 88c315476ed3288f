//! Facts and permissions of this machine, measured or read from the kernel, and its settings: saved, set, restored.

pub mod boot;
pub mod distribution;
pub mod idle;
pub mod setting;
pub mod steal;
pub mod sysfs;
