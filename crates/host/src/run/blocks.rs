//! Runs the blocks of a run. The programs are started anew for each block. In a comparison, each block as planned is paired with a block without
//! partitions, in random order.

use isochrome_model::units::Ns;

use super::engine::Outcome;
use crate::interrupt;

/// Preferred number of pairs of blocks in a comparison; shorter or longer runs have fewer or more.
const PAIRS: u64 = 20;

/// Lengths of the shortest and the longest block. A run that is too short for two of the shortest blocks has two shorter ones.
const BLOCK: [Ns; 2] = [Ns(500_000_000), Ns(3_000_000_000)];

/// Maximum number of pairs of blocks.
const PAIRS_MAX: u64 = 1000;

/// A block to be run.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Number of the block, from 0.
    pub number: u64,
    /// Whether the block runs with the planned partitions.
    pub partitioned: bool,
}

/// Returns the number of pairs of blocks in a comparison in which each side runs for `length` in total.
pub fn pairs(length: Ns) -> u64 {
    let [shortest, longest] = BLOCK;
    (length.0 / shortest.0).min(PAIRS).max(length.0 / longest.0).clamp(2, PAIRS_MAX)
}

/// Runs `blocks` blocks as planned and, if `compared`, pairs each with a block without partitions. Stops after a block that was interrupted,
/// that had a failure, or whose jobs could not be recorded.
///
/// Returns the sum of the outcomes of the planned blocks (`None` if none was run) and the number of complete pairs. A failure without partitions
/// does not count against the plan, but it ends the comparison.
pub fn run<E>(
    blocks: u64,
    compared: bool,
    rng: &mut fastrand::Rng,
    mut one: impl FnMut(Block) -> Result<Outcome, E>,
) -> Result<(Option<Outcome>, u64), E> {
    let mut sum: Option<Outcome> = None;
    for number in 0..blocks {
        let mut sides = vec![true];
        if compared {
            sides.push(false);
            rng.shuffle(&mut sides);
        }
        for partitioned in sides {
            let outcome = one(Block { number, partitioned })?;
            let over = outcome.interrupted || outcome.unrecorded.is_some() || !outcome.failures.is_empty();
            match &mut sum {
                Some(sum) if partitioned => sum.add(outcome),
                None if partitioned => sum = Some(outcome),
                Some(sum) => sum.unrecorded = sum.unrecorded.take().or(outcome.unrecorded),
                None => {}
            }
            if over || interrupt::interrupted() {
                return Ok((sum, number));
            }
        }
    }
    Ok((sum, blocks))
}

impl Outcome {
    /// Adds the outcome of the next block.
    fn add(&mut self, next: Outcome) {
        let Outcome {
            placements,
            releases,
            violations,
            failures,
            overhead,
            steal_time,
            duration,
            gaps,
            settings,
            memory,
            notes,
            uncounted,
            interrupted,
            unrecorded,
        } = next;
        for (all, more) in self.placements.iter_mut().zip(placements) {
            all.extend(more);
        }
        self.releases.iter_mut().zip(&releases).for_each(|(all, more)| all.add(more));
        self.violations.extend(violations);
        self.failures.extend(failures);
        self.notes.extend(notes);
        self.overhead.add(&overhead);
        self.steal_time.0 += steal_time.0;
        self.duration.0 += duration.0;
        self.gaps.extend(gaps);
        self.settings = settings;
        for ((_, most), (_, memory)) in self.memory.iter_mut().zip(memory) {
            *most = (*most).max(memory);
        }
        self.uncounted = self.uncounted.take().or(uncounted);
        self.interrupted |= interrupted;
        self.unrecorded = self.unrecorded.take().or(unrecorded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_has_twenty_pairs_of_blocks_unless_they_were_shorter_than_half_a_second_or_longer_than_three() {
        let of = |ms: u64| pairs(Ns(ms * 1_000_000));
        assert_eq!([400, 1000, 5000, 10_000, 60_000, 90_000].map(of), [2, 2, 10, 20, 20, 30]);
    }
}
