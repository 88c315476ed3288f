//! isochrome on Linux: the machine measured and set up, colored memory, pages of programs moved, programs run.

pub mod color;
pub mod coloring;
pub mod counters;
pub mod doctor;
pub mod error;
pub mod interrupt;
pub mod load;
pub mod machine;
pub mod partition;
pub mod probe;
pub mod process;
pub mod recolor;
pub mod record;
pub mod run;
pub mod runtime;
pub mod sched;
pub mod sys;
