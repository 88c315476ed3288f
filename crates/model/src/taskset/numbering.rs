//! The numbers that files give to partitions: from 0 today, from 1 in plans of the first version.

/// Schema of plans whose partitions are numbered from 0, as colors are.
pub const PLAN_SCHEMA: &str = "isochrome-plan/2";
/// Schema of plans whose partitions are numbered from 1, as in \[Kim2013\].
const PLAN_FROM_ONE: &str = "isochrome-plan/1";

/// How a file numbers partitions. Only the readers of files use other numbers than those from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// Number of the first partition in the file.
    first: u32,
}

impl Numbering {
    /// Returns the numbering of a plan, or of an allocation, that names `schema`. A file without a schema counts from 0.
    ///
    /// Fails if plans of this schema are not known.
    pub fn of_plan(schema: Option<&str>) -> Result<Self, UnknownSchema> {
        match schema {
            None | Some(PLAN_SCHEMA) => Ok(Self { first: 0 }),
            Some(PLAN_FROM_ONE) => Ok(Self { first: 1 }),
            Some(other) => Err(UnknownSchema(other.to_owned())),
        }
    }

    /// Returns the partition that has this number in the file; `None` if the number is below that of the first.
    pub fn partition(self, number: u32) -> Option<u32> {
        number.checked_sub(self.first)
    }

    /// Returns the partitions that have these numbers in the file. Fails with the number that is below that of the first.
    pub fn partitions<C: FromIterator<u32>>(self, numbers: impl IntoIterator<Item = u32>) -> Result<C, u32> {
        numbers.into_iter().map(|number| self.partition(number).ok_or(number)).collect()
    }

    /// Returns the numbers that `count` partitions have in the file, in words.
    pub fn range(self, count: u32) -> String {
        format!("{} to {}", self.first, (self.first + count).saturating_sub(1))
    }
}

/// The schema of a file is not one of plans that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schema is `{0}`, not `{PLAN_SCHEMA}`")]
pub struct UnknownSchema(pub String);
