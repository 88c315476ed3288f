//! Causes of misses: which task evicted the line, and whether more ways or fewer conflicts would have helped.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cache::Slot;
use super::{Counts, Level};
use crate::units::Bytes;

/// Misses of one task at one cache, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Causes {
    /// The line was never in the cache, or a write that goes around never installed it.
    pub cold: u64,
    /// The task's own lines displaced the line, and would have done so in a fully associative LRU cache of the same size as well.
    pub capacity: u64,
    /// The task's own lines displaced the line only because they fell into the same set.
    pub conflict: u64,
    /// Another task displaced the line. [Sebek2002, §1]
    pub extrinsic: u64,
}

/// Events of one task in one color.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// Events. Write-backs are those of the task's lines, no matter which task displaced them.
    #[serde(flatten)]
    pub counts: Counts,
    /// Misses by cause. Lines that a victim cache receives are not misses.
    pub causes: Causes,
    /// Number of lines of the task that others displaced.
    pub lost: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        let (counts, causes) = (&mut self.counts, &mut self.causes);
        counts.reads += other.counts.reads;
        counts.writes += other.counts.writes;
        counts.read_misses += other.counts.read_misses;
        counts.write_misses += other.counts.write_misses;
        counts.writebacks += other.counts.writebacks;
        causes.cold += other.causes.cold;
        causes.capacity += other.causes.capacity;
        causes.conflict += other.causes.conflict;
        causes.extrinsic += other.causes.extrinsic;
        self.lost += other.lost;
    }
}

/// Events at one cache, by task. Tables end where all further entries are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interference {
    /// Tallies; the row is the task, the column the color.
    pub tallies: Vec<Vec<Tally>>,
    /// Evictions; the row is the task whose line was installed, the column the task whose line was evicted.
    pub evictions: Vec<Vec<u64>>,
    /// Extrinsic misses; the row is the task that had displaced the line, the column the task that missed it.
    pub extrinsic_by: Vec<Vec<u64>>,
}

impl Interference {
    /// Returns how many lines of one task were evicted by another, summed over all pairs.
    pub fn between_tasks(&self) -> u64 {
        let off_diagonal = |(by, row): (usize, &Vec<u64>)| -> u64 {
            row.iter().enumerate().filter(|(of, _)| *of != by).map(|(_, count)| count).sum()
        };
        self.evictions.iter().enumerate().map(off_diagonal).sum()
    }

    /// Returns the tally of a task at this cache, summed over all colors.
    pub fn of_task(&self, task: u16) -> Tally {
        let mut sum = Tally::default();
        self.tallies.get(usize::from(task)).into_iter().flatten().for_each(|tally| sum += *tally);
        sum
    }
}

/// Returns the element at `index` of a list. A list that is too short is extended with default elements first.
pub(super) fn at_least<T: Clone + Default>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

/// Kind of an access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Read,
    Write,
    /// The level above hands the line to this cache, a victim cache.
    Given,
}

/// Records the interference at one cache.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub seen: Interference,
    level: Level,
    page_bytes: Bytes,
    /// For each sector that was in the cache before and is not now, the task that displaced it.
    displaced_by: FxHashMap<u64, u16>,
    shadow: FullyAssociative,
}

impl Watch {
    pub fn new(level: &Level, page_bytes: Bytes) -> Watch {
        let capacity = level.geometry.set_count as usize * level.geometry.ways as usize;
        let shadow = FullyAssociative { capacity, now: 0, last: FxHashMap::default(), touches: VecDeque::new() };
        let (seen, displaced_by) = (Interference::default(), FxHashMap::default());
        Watch { seen, level: level.clone(), page_bytes, displaced_by, shadow }
    }

    /// Records an access of `task` to a line. `missing`: the sectors that were needed and absent, one bit each.
    pub fn access(&mut self, task: u16, line: u64, touch: Touch, missing: u32) {
        let hit_in_shadow = self.shadow.access(line);
        let color = self.color_of(line);
        let tally = at_least(at_least(&mut self.seen.tallies, usize::from(task)), color);
        let (count, misses) = match touch {
            Touch::Read => (&mut tally.counts.reads, &mut tally.counts.read_misses),
            Touch::Write | Touch::Given => (&mut tally.counts.writes, &mut tally.counts.write_misses),
        };
        *count += 1;
        if missing == 0 {
            return;
        }
        *misses += 1;
        let mut displaced_by = None;
        for sector in (0..32).filter(|sector| missing >> sector & 1 == 1) {
            let found = self.displaced_by.remove(&(line * u64::from(self.level.sectors) + sector));
            displaced_by = displaced_by.or(found);
        }
        if touch == Touch::Given {
            return;
        }
        match displaced_by {
            None => tally.causes.cold += 1,
            Some(by) if by != task => {
                tally.causes.extrinsic += 1;
                let by_whom = at_least(&mut self.seen.extrinsic_by, usize::from(by));
                *at_least(by_whom, usize::from(task)) += 1;
            }
            Some(_) if hit_in_shadow => tally.causes.conflict += 1,
            Some(_) => tally.causes.capacity += 1,
        }
    }

    /// Records that the line `gone` was evicted for a line of the task `by`.
    pub fn eviction(&mut self, by: u16, gone: &Slot) {
        for sector in (0..32).filter(|sector| gone.valid >> sector & 1 == 1) {
            self.displaced_by.insert(gone.line * u64::from(self.level.sectors) + sector, by);
        }
        let color = self.color_of(gone.line);
        let tally = at_least(at_least(&mut self.seen.tallies, usize::from(gone.owner)), color);
        tally.counts.writebacks += u64::from(gone.dirty.count_ones());
        tally.lost += u64::from(gone.owner != by);
        *at_least(at_least(&mut self.seen.evictions, usize::from(by)), usize::from(gone.owner)) += 1;
    }

    fn color_of(&self, line: u64) -> usize {
        let address = line << self.level.geometry.line_bytes.0.trailing_zeros();
        usize::from(self.level.color_of(address, self.page_bytes).0)
    }
}

/// A fully associative LRU cache of the same size, which tells conflict misses from capacity misses.
#[derive(Clone, Debug)]
struct FullyAssociative {
    capacity: usize,
    now: u64,
    /// Time of the last touch of each line that is present.
    last: FxHashMap<u64, u64>,
    /// Touches in order of time, including those that are not the last of their line.
    touches: VecDeque<(u64, u64)>,
}

impl FullyAssociative {
    fn access(&mut self, line: u64) -> bool {
        self.now += 1;
        let there = self.last.insert(line, self.now).is_some();
        self.touches.push_back((self.now, line));
        while self.last.len() > self.capacity
            && let Some((touched, oldest)) = self.touches.pop_front()
        {
            if self.last.get(&oldest) == Some(&touched) {
                self.last.remove(&oldest);
            }
        }
        // Each cleanup removes more touches than it keeps, so its cost per access is bounded.
        if self.touches.len() > 2 * self.capacity.max(1) + self.last.len() {
            self.touches.retain(|(touched, line)| self.last.get(line) == Some(touched));
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_without_sets_holds_the_lines_touched_last() {
        let mut random = fastrand::Rng::with_seed(1);
        for capacity in [0, 1, 7, 64] {
            let mut shadow =
                FullyAssociative { capacity, now: 0, last: FxHashMap::default(), touches: VecDeque::new() };
            let mut order: Vec<u64> = Vec::new();
            for step in 0..5000 {
                // Few lines over and over, then more than there is room for.
                let line = random.u64(..if step / 500 % 2 == 0 { 10 } else { 100 });
                let there = order.iter().position(|other| *other == line);
                assert_eq!(shadow.access(line), there.is_some());
                if let Some(position) = there {
                    order.remove(position);
                }
                order.push(line);
                if order.len() > capacity {
                    order.remove(0);
                }
                assert!(shadow.touches.len() <= 3 * capacity.max(1) + 1);
            }
        }
    }
}
