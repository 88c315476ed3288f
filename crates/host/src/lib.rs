//! isochrome on Linux: collecting samples, colored memory, running jobs.

pub mod error;
pub mod pagemap;
pub mod palette;
pub mod pool;
pub mod sys;
