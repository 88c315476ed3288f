//! isochrome on Linux: measures and sets up the machine, provides colored memory, moves pages of programs, and runs programs.

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
pub mod server;
pub mod sys;
