//! The write buffer: writes to memory that the CPU does not wait for.

use std::collections::VecDeque;

/// Writes that are on their way to memory while the CPU goes on.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteBuffer {
    /// Number of writes that the buffer holds. With 0 the CPU waits for every write.
    pub(super) entries: usize,
    /// Time in cycles at which each write in the buffer is done, ascending.
    pub(super) done_at: VecDeque<u64>,
}

impl WriteBuffer {
    /// Takes a write that lasts `cycles` at the time `now`, and returns the time from which the CPU can go on.
    pub(super) fn accept(&mut self, now: u64, cycles: u64) -> u64 {
        if self.entries == 0 {
            return now + cycles;
        }
        while self.done_at.front().is_some_and(|done| *done <= now) {
            self.done_at.pop_front();
        }
        let free_at = if self.done_at.len() < self.entries { now } else { self.done_at.pop_front().unwrap_or(now) };
        let begins = self.done_at.back().copied().unwrap_or(free_at).max(free_at);
        self.done_at.push_back(begins + cycles);
        free_at
    }
}
