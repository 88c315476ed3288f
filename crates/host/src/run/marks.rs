//! Marks by which a program itself reports where its jobs begin and end, through `isochrome_job_begin` and `isochrome_job_end` of the C
//! library or through a [`MarkWriter`].
//!
//! The observer creates the ring, and starts the program with its descriptor, whose number is in [`VARIABLE`]. Children of the program
//! inherit both. A mark costs the program one system call and at most one cache line, and never waits. If the observer is too slow, marks
//! are overwritten and counted as lost.
//!
//! The ring is words of 64 bits in shared memory, in the byte order of the machine:
//!
//! | words | |
//! |---|---|
//! | 0 | [`SIGNATURE`] |
//! | 1 | number of marks begun |
//! | 2 to 7 | 0 |
//! | 8 + 2 i, 9 + 2 i | time and label of marks i, i + n, i + 2 n, ... where n is the number of marks that fit |
//!
//! The time is CLOCK_MONOTONIC in ns. The label holds the number of the mark, counted from 1, from bit 24 on. Bit 23 is set if the job
//! ends. Bits 0 to 22 are the number of the thread, which the kernel keeps below 2^22. The label is 0 while the mark is being written.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use isochrome_model::units::Ns;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};

use crate::sys::shared::SharedWords;

/// Environment variable with the number of the ring's descriptor.
pub const VARIABLE: &str = "ISOCHROME_MARKS";
/// First word of the ring: the name and version of the format.
pub const SIGNATURE: u64 = u64::from_ne_bytes(*b"isomark1");

/// Name of the memory file of the ring, by which its mapping is recognized.
pub const RING_NAME: &str = "isochrome-marks";

/// Number of words before the first mark, which fill one cache line.
const HEADER: usize = 8;
/// Index of the word with the number of marks begun.
const BEGUN: usize = 1;
/// Bit of a label that is set if the job ends.
const ENDS: u64 = 1 << 23;
/// Position of the mark's number in a label.
const NUMBER_SHIFT: u32 = 24;

/// The event that a mark reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// A job begins.
    Begin,
    /// A job ends.
    End,
}

/// A mark that a program has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Time of the mark, by CLOCK_MONOTONIC.
    pub at: Ns,
    /// Number of the thread that set the mark.
    pub thread: u32,
    /// Whether a job begins or ends.
    pub edge: Edge,
}

/// Sets marks, from any thread of a program.
pub struct MarkWriter {
    ring: SharedWords,
}

impl MarkWriter {
    /// Returns a writer to the ring that this process was started with; `None` if nobody observes the process.
    pub fn inherited() -> Option<MarkWriter> {
        let descriptor = std::env::var(VARIABLE).ok()?.parse().ok()?;
        let ring = SharedWords::inherited(descriptor).ok()?;
        let words = ring.words();
        (words.first()?.load(Ordering::Relaxed) == SIGNATURE && slots(words).len() >= 2).then_some(MarkWriter { ring })
    }

    /// Sets a mark: a job of the calling thread begins or ends now.
    pub fn mark(&self, edge: Edge) {
        let thread = gettid().as_raw_nonzero().get() as u64;
        let ends = if edge == Edge::End { ENDS } else { 0 };
        let words = self.ring.words();
        let slots = slots(words);
        let number = words[BEGUN].fetch_add(1, Ordering::Relaxed);
        let at = number as usize % (slots.len() / 2) * 2;
        let (time, label) = (&slots[at], &slots[at + 1]);
        label.store(0, Ordering::Relaxed);
        // A reader that still sees the old label also sees the old time.
        fence(Ordering::Release);
        time.store(now(), Ordering::Relaxed);
        label.store((number + 1) << NUMBER_SHIFT | ends | thread, Ordering::Release);
    }
}

/// Returns the words that hold the marks, each a pair of time and label.
fn slots(words: &[AtomicU64]) -> &[AtomicU64] {
    words.get(HEADER..).unwrap_or_default()
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads the marks that programs set in a ring.
pub struct MarkReader {
    ring: SharedWords,
    descriptor: OwnedFd,
    /// Number of marks read or lost so far.
    seen: u64,
    lost: u64,
}

impl MarkReader {
    /// Creates a ring for `capacity` marks, at least one.
    ///
    /// Programs that this process starts later inherit the descriptor, but use it only if [`tell`](Self::tell) has named it to them.
    pub fn new(capacity: usize) -> io::Result<MarkReader> {
        let words = capacity.max(1).checked_mul(2).and_then(|words| words.checked_add(HEADER));
        let (ring, descriptor) = SharedWords::create(RING_NAME, words.ok_or(io::ErrorKind::InvalidInput)?)?;
        ring.words()[0].store(SIGNATURE, Ordering::Relaxed);
        Ok(MarkReader { ring, descriptor, seen: 0, lost: 0 })
    }

    /// Makes the program that `command` starts set its marks in this ring.
    pub fn tell(&self, command: &mut Command) {
        command.env(VARIABLE, self.descriptor.as_raw_fd().to_string());
    }

    /// Appends the marks set since the last call to `marks`, in the order in which they were begun.
    ///
    /// If a thread has begun a mark but not completed it, later marks wait for the next call. If the thread was killed at this point, they
    /// wait until the ring has wrapped around, and the mark counts as lost.
    pub fn read(&mut self, marks: &mut Vec<Mark>) {
        let words = self.ring.words();
        let slots = slots(words);
        let capacity = (slots.len() / 2) as u64;
        let begun = words[BEGUN].load(Ordering::Acquire);
        // Older marks have been overwritten.
        let first = begun.saturating_sub(capacity).max(self.seen);
        self.lost += first - self.seen;
        self.seen = first;
        while self.seen < begun {
            let at = (self.seen % capacity) as usize * 2;
            let label = slots[at + 1].load(Ordering::Acquire);
            let time = slots[at].load(Ordering::Relaxed);
            // The time must be read before the label is read again, which shows whether the two belong together.
            fence(Ordering::Acquire);
            let number = label >> NUMBER_SHIFT;
            if number <= self.seen || slots[at + 1].load(Ordering::Relaxed) != label {
                return;
            }
            self.seen += 1;
            if number > self.seen {
                self.lost += 1;
                continue;
            }
            marks.push(Mark {
                at: Ns(time),
                thread: (label & (ENDS - 1)) as u32,
                edge: if label & ENDS == 0 { Edge::Begin } else { Edge::End },
            });
        }
    }

    /// Returns the number of marks that were overwritten before they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Returns a writer to the ring of `reader`.
    fn writer(reader: &MarkReader) -> MarkWriter {
        MarkWriter { ring: SharedWords::inherited(reader.descriptor.as_raw_fd()).unwrap() }
    }

    #[test]
    fn marks_arrive_in_order_with_thread_and_time() {
        let mut reader = MarkReader::new(8).unwrap();
        let writer = writer(&reader);
        let before = now();
        let mut marks = Vec::new();
        for round in 0..5 {
            writer.mark(Edge::Begin);
            writer.mark(Edge::End);
            reader.read(&mut marks);
            assert_eq!(marks.len(), 2 * (round + 1));
        }
        assert!(marks.iter().all(|mark| mark.thread == gettid().as_raw_nonzero().get() as u32));
        assert!(marks.iter().step_by(2).all(|mark| mark.edge == Edge::Begin));
        assert!(marks.iter().skip(1).step_by(2).all(|mark| mark.edge == Edge::End));
        let times: Vec<u64> = [before].into_iter().chain(marks.iter().map(|mark| mark.at.0)).chain([now()]).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(reader.lost(), 0);
    }

    #[test]
    fn marks_that_were_not_read_in_time_are_counted_and_the_newest_are_kept() {
        let mut reader = MarkReader::new(4).unwrap();
        let writer = writer(&reader);
        for _ in 0..9 {
            writer.mark(Edge::Begin);
        }
        writer.mark(Edge::End);
        let mut marks = Vec::new();
        reader.read(&mut marks);
        let edges: Vec<Edge> = marks.iter().map(|mark| mark.edge).collect();
        assert_eq!(edges, [Edge::Begin, Edge::Begin, Edge::Begin, Edge::End]);
        assert_eq!(reader.lost(), 6);
    }

    #[test]
    fn a_mark_that_is_being_written_holds_up_those_behind_it_and_none_is_torn() {
        let mut reader = MarkReader::new(4).unwrap();
        let writer = writer(&reader);
        writer.mark(Edge::Begin);
        writer.mark(Edge::End);
        let words = writer.ring.words();
        let label = words[HEADER + 1].swap(0, Ordering::Relaxed);
        let mut marks = Vec::new();
        reader.read(&mut marks);
        assert_eq!((marks.len(), reader.lost()), (0, 0));
        words[HEADER + 1].store(label, Ordering::Relaxed);
        reader.read(&mut marks);
        assert_eq!((marks.len(), reader.lost()), (2, 0));
    }

    #[test]
    fn threads_that_mark_at_once_lose_nothing_that_is_not_counted() {
        const MARKS: usize = 20_000;
        let mut reader = MarkReader::new(1024).unwrap();
        let writers = [writer(&reader), writer(&reader), writer(&reader)];
        let mut marks = Vec::new();
        thread::scope(|scope| {
            let threads = writers.iter().map(|writer| {
                scope.spawn(move || {
                    for _ in 0..MARKS / 2 {
                        writer.mark(Edge::Begin);
                        writer.mark(Edge::End);
                    }
                })
            });
            let threads: Vec<_> = threads.collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                reader.read(&mut marks);
            }
        });
        reader.read(&mut marks);
        assert_eq!(marks.len() as u64 + reader.lost(), 3 * MARKS as u64);
    }

    #[test]
    fn what_is_no_ring_is_not_written_to() {
        assert!(SharedWords::inherited(-1).is_err());
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(SharedWords::inherited(file.as_raw_fd()).is_err(), "a file that may become shorter");
    }
}
