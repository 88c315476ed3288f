//! isochrome on Linux: collecting samples, colored memory, running jobs.

pub mod conflicts;
pub mod counters;
pub mod doctor;
pub mod error;
pub mod events;
pub mod experiment;
pub mod interrupt;
pub mod jobs;
pub mod kernels;
pub mod ledger;
pub mod marks;
pub mod pagemap;
pub mod palette;
pub mod pool;
pub mod probe;
pub mod recolor;
pub mod record;
pub mod resident;
pub mod runtime;
pub mod setting;
pub mod steal;
pub mod sys;
pub mod sysfs;
