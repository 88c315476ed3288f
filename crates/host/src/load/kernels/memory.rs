//! A walk that loads all lines of its memory, and a writer whose stores evict such lines from a cache.

use std::cell::Cell;
use std::io;

use isochrome_model::units::{Bytes, Cycles};

use crate::sys::memory::{Arena, page_bytes};

/// Size of a line in bytes. If lines are longer, some are touched twice.
const LINE: usize = 64;
/// Number of lines of a window. A writer finishes one window before it begins the next; a window is small enough for the TLB to hold the
/// translations of its pages.
const WINDOW: usize = 1024;
/// A walk along a chain through all lines of some memory, in random order, so that each load waits for the previous one.
pub struct Walk {
    memory: Arena,
    lines: u32,
    at: Cell<u64>,
}

impl Walk {
    /// Makes a walk over `bytes`, rounded up to whole pages.
    pub fn new(bytes: Bytes) -> io::Result<Walk> {
        let memory = Arena::map((bytes.0 as usize).div_ceil(page_bytes()))?;
        let lines = memory.page_count() * page_bytes() / LINE;
        let mut order: Vec<u64> = (0..lines).map(|line| (line * LINE) as u64).collect();
        fastrand::Rng::with_seed(bytes.0).shuffle(&mut order);
        let next = order.iter().cycle().skip(1);
        memory.link(order.iter().zip(next).map(|(here, next)| (Bytes(*here), Bytes(*next))));
        Ok(Walk { memory, lines: lines as u32, at: Cell::new(order[0]) })
    }

    /// Loads every line once and returns the time that this took.
    pub fn pass(&self) -> Cycles {
        let (at, time) = self.memory.chase(self.at.get(), self.lines);
        self.at.set(at);
        time
    }
}

/// A writer to all lines of some memory, in an irregular order, because sequential stores bypass the cache on some processors.
pub struct Writer {
    memory: Arena,
    order: Vec<u16>,
    value: u8,
}

impl Writer {
    /// Makes a writer to `bytes`, rounded up to whole pages.
    pub fn new(bytes: Bytes) -> io::Result<Writer> {
        let memory = Arena::map((bytes.0 as usize).div_ceil(page_bytes()))?;
        let mut order: Vec<u16> = (0..WINDOW as u16).collect();
        fastrand::Rng::with_seed(bytes.0).shuffle(&mut order);
        Ok(Writer { memory, order, value: 0 })
    }

    /// Writes to every line once.
    pub fn pass(&mut self) {
        self.value = self.value.wrapping_add(1);
        for window in self.memory.bytes_mut().chunks_mut(WINDOW * LINE) {
            for line in &self.order {
                if let Some(line) = window.chunks_exact_mut(LINE).nth(usize::from(*line)) {
                    line.fill(self.value);
                }
            }
        }
    }

    /// Whether every byte of the memory still holds the value of the last pass.
    pub fn is_intact(&mut self) -> bool {
        self.memory.bytes_mut().iter().all(|byte| *byte == self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_goes_over_every_line_and_a_writer_writes_to_each() {
        let walk = Walk::new(Bytes(1 << 20)).unwrap();
        let begin = walk.at.get();
        walk.pass();
        assert_eq!((walk.lines, walk.at.get()), (16_384, begin));
        // 80 KiB are not a multiple of a window, which is 64 KiB.
        let mut writer = Writer::new(Bytes(80 << 10)).unwrap();
        writer.pass();
        writer.pass();
        assert!(writer.value == 2 && writer.is_intact());
        writer.memory.bytes_mut()[70_000] = 1;
        assert!(!writer.is_intact());
    }
}
