//! The modeled machine: caches as sets of lines, driven by accesses instead of time.
//!
//! A [`Hierarchy`] is a tree of caches with memory at its root; every CPU enters at a leaf. It is exact, not statistical: the
//! same accesses give the same counts, and where simulators are known to differ the choice is a named switch ([`Semantics`]).
//!
//! Counting: a write-back or a write-through from the level above is a write to the level below, and a fetch is a read of it.
//! Dirty lines left at the end are not counted. An access that straddles lines counts once per line touched.

mod access;
mod blocks;
mod cache;
mod causes;
mod colors;
mod counts;
mod curve;
mod hierarchy;
mod level;
mod lru;
mod machine_model;
mod paging;
mod purge;
mod recency;
#[cfg(test)]
mod reference;
mod replacement;
pub mod scenario;
mod simulator;

pub use access::{Access, Kind};
pub use blocks::UsefulBlocks;
pub use causes::{Causes, Interference, Tally};
pub use colors::ColorCurve;
pub use counts::{Counts, LevelCounts, MemoryCounts};
pub use curve::{MissCurve, StackDistances, misses_by_sets_and_ways};
pub use hierarchy::{CacheId, Costs, Held, Hierarchy};
pub use level::{ConfigError, Inclusion, Index, Level, Semantics, WriteHit, WriteMiss};
pub use lru::LruChain;
pub use machine_model::{LevelModel, MachineModel, SCHEMA as MACHINE_MODEL_SCHEMA, Timing};
pub use paging::{Allocation, PageTable};
pub use purge::{Exaggeration, FloodCheck, FloodResult, SearchError};
pub use replacement::{Insertion, Policy, Qlru, Update, WayMask};
pub use simulator::Simulator;
