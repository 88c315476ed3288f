//! Sets of cache partitions.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of partitions of a cache. A 64 MiB cache of 16 ways has 1024 page colors.
pub const PARTITIONS_MAX: u32 = 1024;
/// Number of words of a [`PartitionSet`].
pub(crate) const WORDS: usize = PARTITIONS_MAX as usize / 64;

/// A set of partitions, numbered from 0.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
#[schemars(with = "Vec<u32>")]
pub struct PartitionSet(pub(crate) [u64; WORDS]);

impl PartitionSet {
    /// Returns the partitions `first .. first + count`. Panics if a number is not below [`PARTITIONS_MAX`].
    pub fn range(first: u32, count: u32) -> Self {
        (first..first + count).collect()
    }

    /// Returns the partitions whose bits are set in `words`, 64 to a word. Words beyond [`PARTITIONS_MAX`] are ignored.
    pub fn from_words(words: &[u64]) -> Self {
        Self(std::array::from_fn(|word| words.get(word).copied().unwrap_or(0)))
    }

    /// Adds a partition. Panics if its number is not below [`PARTITIONS_MAX`].
    pub fn insert(&mut self, partition: u32) {
        assert!(partition < PARTITIONS_MAX, "partition {partition} of at most {PARTITIONS_MAX}");
        self.0[partition as usize / 64] |= 1 << (partition % 64);
    }

    /// Removes a partition.
    pub fn remove(&mut self, partition: u32) {
        if partition < PARTITIONS_MAX {
            self.0[partition as usize / 64] &= !(1 << (partition % 64));
        }
    }

    /// Whether the set contains the partition.
    pub fn contains(&self, partition: u32) -> bool {
        partition < PARTITIONS_MAX && self.0[partition as usize / 64] >> (partition % 64) & 1 == 1
    }

    /// Returns the number of partitions in the set.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Returns the partitions, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().zip(0u32..).flat_map(|(&word, index)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(index * 64 + bit)
            })
        })
    }

    /// Returns the partitions in either set.
    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Returns the partitions in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }
}

impl From<PartitionSet> for Vec<u32> {
    /// Returns the numbers of the partitions, ascending.
    fn from(set: PartitionSet) -> Self {
        set.iter().collect()
    }
}

impl TryFrom<Vec<u32>> for PartitionSet {
    type Error = String;

    fn try_from(numbers: Vec<u32>) -> Result<Self, String> {
        match numbers.iter().find(|number| **number >= PARTITIONS_MAX) {
            Some(number) => Err(format!("{number} is not a partition from 0 to {}", PARTITIONS_MAX - 1)),
            None => Ok(numbers.into_iter().collect()),
        }
    }
}

impl FromIterator<u32> for PartitionSet {
    fn from_iter<I: IntoIterator<Item = u32>>(partitions: I) -> Self {
        let mut set = Self::default();
        for partition in partitions {
            set.insert(partition);
        }
        set
    }
}

impl fmt::Debug for PartitionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lists_what_was_put_into_it() {
        let set: PartitionSet = [1, 63, 64, 1023].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 63, 64, 1023]);
        assert_eq!(set.len(), 4);
        assert!(set.contains(64) && !set.contains(2) && !set.contains(5000));
        assert_eq!(set.intersection(&PartitionSet::range(60, 10)), [63, 64].into_iter().collect());
        assert_eq!(PartitionSet::from_words(&[5, 1]), [0, 2, 64].into_iter().collect());
        assert_eq!(PartitionSet::range(0, 3).union(&PartitionSet::range(2, 2)), PartitionSet::range(0, 4));
    }
}
