//! One cache: its lines, and the sets and ways they are in.

use super::replacement::Replacement;
use super::{Index, Level, WayMask};

/// Number of a task. The caller numbers the tasks.
pub(super) type TaskId = u16;

/// A way of a set and the line in it; the way is empty if no sector is valid.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    /// Line number: the address divided by the bytes per line.
    pub line: u64,
    /// Valid sectors, one bit each.
    pub valid: u32,
    /// Dirty sectors, one bit each.
    pub dirty: u32,
    /// The task that caused the line to be installed.
    pub owner: TaskId,
}

#[derive(Clone, Debug)]
enum SetIndex {
    Mask(u64),
    Modulo(u64),
    /// Masks that apply to the line number, not to the address.
    Xor(Vec<u64>),
}

#[derive(Clone, Debug)]
pub(super) struct Cache {
    pub level: Level,
    line_shift: u32,
    set_index: SetIndex,
    ways: usize,
    slots: Vec<Slot>,
    replacement: Replacement,
}

impl Cache {
    /// Creates an empty cache for `level`, which must have been checked.
    pub fn new(level: Level) -> Cache {
        let (sets, ways) = (level.geometry.set_count as usize, level.geometry.ways as usize);
        let line_shift = level.geometry.line_bytes.0.trailing_zeros();
        let set_index = match &level.index {
            Index::Xor(masks) => SetIndex::Xor(masks.iter().map(|mask| mask >> line_shift).collect()),
            _ if sets.is_power_of_two() => SetIndex::Mask(sets as u64 - 1),
            _ => SetIndex::Modulo(sets as u64),
        };
        let replacement = Replacement::new(level.policy, sets, ways);
        Cache { line_shift, set_index, ways, slots: vec![Slot::default(); sets * ways], replacement, level }
    }

    pub fn line_shift(&self) -> u32 {
        self.line_shift
    }

    pub fn set_of(&self, line: u64) -> usize {
        (match &self.set_index {
            SetIndex::Mask(mask) => line & mask,
            SetIndex::Modulo(sets) => line % sets,
            SetIndex::Xor(masks) => {
                masks.iter().enumerate().map(|(bit, mask)| u64::from((line & mask).count_ones() & 1) << bit).sum()
            }
        }) as usize
    }

    /// Returns the sectors that `bytes` from `address` touch, one bit each. They must lie within one line.
    pub fn sectors(&self, address: u64, bytes: u64) -> u32 {
        let sector_shift = self.line_shift - self.level.sectors.trailing_zeros();
        let in_line = |address: u64| (address & ((1 << self.line_shift) - 1)) >> sector_shift;
        let (first, last) = (in_line(address), in_line(address + (bytes - 1)));
        (u32::MAX >> (31 - (last - first))) << first
    }

    /// Returns the bytes of one sector.
    pub fn sector_bytes(&self) -> u64 {
        self.level.geometry.line_bytes.0 / u64::from(self.level.sectors)
    }

    /// Returns the way that holds any sector of `line`; `None` if no way does.
    pub fn find(&self, set: usize, line: u64) -> Option<usize> {
        self.set(set).iter().position(|slot| slot.valid != 0 && slot.line == line)
    }

    pub fn set(&self, set: usize) -> &[Slot] {
        &self.slots[set * self.ways..][..self.ways]
    }

    pub fn slot(&mut self, set: usize, way: usize) -> &mut Slot {
        &mut self.slots[set * self.ways + way]
    }

    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub fn touch(&mut self, set: usize, way: usize) {
        self.replacement.hit(set, way);
    }

    pub fn fill(&mut self, set: usize, way: usize, slot: Slot) {
        self.slots[set * self.ways + way] = slot;
        self.replacement.filled(set, way);
    }

    pub fn empty_way(&self, set: usize, allowed: WayMask) -> Option<usize> {
        self.replacement.empty_way(allowed, |way| self.set(set)[way].valid != 0)
    }

    /// Returns the way whose line is replaced; all allowed ways must be occupied. Call it once per line, because random
    /// replacement draws a number.
    pub fn victim(&mut self, set: usize, allowed: WayMask) -> usize {
        self.replacement.victim(set, allowed)
    }

    /// Returns the lines of a set in the order of replacement, the next victim first, without empty ways; `None` for policies
    /// that keep no order.
    pub fn order(&self, set: usize) -> Option<Vec<u64>> {
        let stamps = self.replacement.stamps(set)?;
        let mut lines: Vec<_> = self.set(set).iter().zip(stamps).filter(|(slot, _)| slot.valid != 0).collect();
        lines.sort_by_key(|(_, stamp)| **stamp);
        Some(lines.into_iter().map(|(slot, _)| slot.line).collect())
    }
}
