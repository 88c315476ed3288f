//! What this machine is and allows, measured or asked of the kernel, and its settings: saved, set, restored.

pub mod idle;
pub mod setting;
pub mod steal;
pub mod sysfs;
