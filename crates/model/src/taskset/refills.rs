//! Times to refill a partition: known times, and the time that is charged.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Ns, ParseError};

/// Known times to refill a partition, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refills {
    /// Refill time if the displaced lines are clean.
    pub clean_ns: Option<u64>,
    /// Refill time if all displaced lines must be written back.
    pub dirty_ns: Option<u64>,
    /// Refill time with one miss after the other: lines of a partition x miss latency. Measured times are shorter because
    /// misses overlap, but the misses of a task whose loads depend on each other do not overlap.
    pub serial_ns: Option<u64>,
}

impl Refills {
    /// Returns the known times, each with its kind.
    pub fn known(&self) -> impl Iterator<Item = (RefillKind, u64)> {
        let all = [
            (RefillKind::Clean, self.clean_ns),
            (RefillKind::Dirty, self.dirty_ns),
            (RefillKind::Serial, self.serial_ns),
        ];
        all.into_iter().filter_map(|(kind, time)| Some((kind, time?)))
    }
}

/// Kind of a refill time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefillKind {
    /// The displaced lines are clean.
    Clean,
    /// The displaced lines are dirty and are written back.
    Dirty,
    /// One miss follows the other.
    Serial,
}

impl RefillKind {
    /// Returns the name of the kind on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Dirty => "dirty",
            Self::Serial => "serial",
        }
    }
}

/// The refill time that bounds charge, Δ: a known one, or a time given separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefillChoice {
    /// A refill time that the task set contains.
    Known(RefillKind),
    /// The given time.
    Time(Ns),
}

impl FromStr for RefillChoice {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let kinds = [RefillKind::Clean, RefillKind::Dirty, RefillKind::Serial];
        match kinds.into_iter().find(|kind| kind.name() == text) {
            Some(kind) => Ok(Self::Known(kind)),
            None => text.parse().map(Self::Time),
        }
    }
}
