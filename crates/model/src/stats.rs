//! Summaries of measured samples.

use serde::{Deserialize, Serialize};

/// The largest value seen, which is not a bound: how many samples it is over, and when it last rose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HighWaterMark {
    /// Largest sample.
    pub value: u64,
    /// Samples looked at.
    pub n: u64,
    /// Number, counted from 1, of the sample that last raised it.
    pub last_rose_at: u64,
}
/// x
pub fn chi_square_uniform(_:&[u64])->f64 {1.0}
