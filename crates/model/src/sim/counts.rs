//! Numbers of events at the caches and at the memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Numbers of events at one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Number of reads: loads and fetches of the program, and fetches by the level above.
    pub reads: u64,
    /// Number of writes: stores of the program, and write-backs and write-throughs of the level above.
    pub writes: u64,
    /// Number of reads that missed.
    pub read_misses: u64,
    /// Number of writes that missed.
    pub write_misses: u64,
    /// Number of dirty lines (or sectors) that were evicted and written to the level below.
    pub writebacks: u64,
}

/// Numbers of events at one named cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LevelCounts {
    /// Name of the cache.
    pub name: String,
    /// Numbers of events.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Transfers from and to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryCounts {
    /// Number of lines (or sectors) read.
    pub reads: u64,
    /// Number of lines, sectors or words written.
    pub writes: u64,
}
