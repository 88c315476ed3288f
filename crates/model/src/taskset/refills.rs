//! Times to refill a partition: those that are known, and which of them is charged.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Ns, ParseError};

/// Times to refill a partition, as far as they are known, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refills {
    /// When what it displaces was only read.
    pub clean_ns: Option<u64>,
    /// When all of what it displaces has to be written back.
    pub dirty_ns: Option<u64>,
    /// One miss after the other: lines of a partition x miss latency. Measured times are shorter where misses overlap,
    /// and a task whose loads depend on each other does not let them.
    pub serial_ns: Option<u64>,
}

impl Refills {
    /// Those that are known, by name.
    pub fn known(&self) -> impl Iterator<Item = (RefillKind, u64)> {
        let all = [
            (RefillKind::Clean, self.clean_ns),
            (RefillKind::Dirty, self.dirty_ns),
            (RefillKind::Serial, self.serial_ns),
        ];
        all.into_iter().filter_map(|(kind, time)| Some((kind, time?)))
    }
}

/// Which of the [`Refills`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefillKind {
    /// The displaced lines are clean.
    Clean,
    /// What is displaced is written back.
    Dirty,
    /// One miss after the other.
    Serial,
}

impl RefillKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Dirty => "dirty",
            Self::Serial => "serial",
        }
    }
}

/// The refill time that bounds charge, Δ: one of those known, or a time given apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefillChoice {
    /// One of those the task set knows.
    Known(RefillKind),
    /// This time.
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
