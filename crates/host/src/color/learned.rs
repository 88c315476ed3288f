//! Colors and walk times that this process has measured, and which frames still have their colors.

use std::collections::HashSet;

use isochrome_model::units::{Color, FrameNumber};
use rustc_hash::{FxHashMap, FxHashSet};

use super::eviction::WalkTicks;
use super::saved::BLOCK_FRAMES;
use crate::process::Pid;

/// Colors and walk times that this process has measured.
#[derive(Default)]
pub struct Learned {
    /// Colors by frame number.
    pub frames: FxHashMap<FrameNumber, Color>,
    /// Frames that each process had when they were last listed, and frames measured in it since; empty unless free frames change.
    holders: FxHashMap<i32, Vec<FrameNumber>>,
    /// Colors of pages by process and address, if frame numbers are hidden.
    pub pages: FxHashMap<(i32, u64), Color>,
    /// Number of frames whose color by the palette was confirmed, and number of frames whose color by the palette was wrong.
    pub confirmed: usize,
    pub wrong: usize,
    /// Whether the palette is put aside because it was wrong too often.
    pub stale: bool,
    /// Blocks of frames for which the palette was wrong, by number.
    pub contradicted: HashSet<u64>,
    /// Walk times inside a process, once they are measured.
    pub ticks: Option<WalkTicks>,
}

impl Learned {
    /// Counts frames for which the palette was `right` or `wrong`. If it was wrong for more than 1 %, it is put aside; a single frame says nothing
    /// about the others.
    pub fn count(&mut self, right: usize, wrong: usize) {
        self.confirmed += right;
        self.wrong += wrong;
        self.stale |= self.wrong > 1 && 100 * self.wrong > self.wrong + self.confirmed;
    }

    /// Records that `frame` was measured in `pid`, which has it until [`let_go`](Self::let_go) says otherwise.
    pub fn hold(&mut self, pid: i32, frame: FrameNumber) {
        self.holders.entry(pid).or_default().push(frame);
    }

    /// Records that `now` are all frames of `pid`, and forgets its earlier frames and those of processes that have ended. Frames that another process
    /// has too, as parent and child do, stay known.
    pub fn let_go(&mut self, pid: i32, now: Vec<FrameNumber>) {
        let ended: Vec<i32> =
            self.holders.keys().copied().filter(|of| *of != pid && Pid(*of).start_time().is_none()).collect();
        if ended.is_empty() && self.holders.get(&pid).is_some_and(|before| *before == now) {
            return;
        }
        let before = ended.iter().chain([&pid]).filter_map(|of| self.holders.remove(of));
        let mut gone: FxHashSet<FrameNumber> =
            before.flatten().filter(|frame| self.frames.contains_key(frame)).collect();
        if !now.is_empty() {
            self.holders.insert(pid, now);
        }
        for frame in self.holders.values().flatten() {
            if gone.is_empty() {
                break;
            }
            gone.remove(frame);
        }
        self.frames.retain(|frame, _| !gone.contains(frame));
    }

    /// Whether the palette can be believed for `frame`.
    pub fn believes(&self, frame: FrameNumber) -> bool {
        !self.stale && !self.contradicted.contains(&(frame.0 / BLOCK_FRAMES))
    }
}
