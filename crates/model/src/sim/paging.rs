//! From virtual to physical addresses: the operating system's part in which sets a task uses.

use std::collections::HashSet;

use rustc_hash::FxHashMap;

use super::{Access, Hierarchy};
use crate::units::{Bytes, Color, FrameNumber};

/// Which frame a page gets when it is first touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// The next frame from `first` on.
    Sequential {
        /// First frame.
        first: FrameNumber,
    },
    /// Any of the first `frames` frames that is free, by a seeded generator.
    Random {
        /// Frames of the machine.
        frames: u64,
        /// Seed.
        seed: u64,
    },
    /// A fresh frame of each of these colors in turn. One color alone makes all pages conflict.
    Colored {
        /// Colors granted.
        colors: Vec<Color>,
        /// Colors there are: a frame's color is its number modulo these.
        color_count: u16,
    },
    /// Any frame under any color: every frame answers to one physical address per color, of which the upper digits are the
    /// frame and the lowest the color. [Liedtke1997, §3.2]
    Free {
        /// Colors granted, used in turn.
        colors: Vec<Color>,
        /// Colors there are.
        color_count: u16,
        /// First frame of memory; the following ones are taken in order.
        first: FrameNumber,
    },
}

impl Allocation {
    /// Frames of memory that nobody else can use: with colors, all frames of the colors granted, used or not.
    pub fn reserved_frames(&self, memory_frames: u64, used_frames: u64) -> u64 {
        match self {
            Allocation::Colored { colors, color_count } => {
                memory_frames * colors.len() as u64 / u64::from(*color_count)
            }
            _ => used_frames,
        }
    }

    /// Bits that physical addresses, and so the tags of the cache, must be wider than memory alone needs.
    pub fn extra_address_bits(&self) -> u32 {
        match self {
            Allocation::Free { color_count, .. } => u32::from(*color_count).next_power_of_two().ilog2(),
            _ => 0,
        }
    }
}

impl Allocation {
    /// The first `granted` of `color_count` colors; `None` where their numbers do not fit into 16 bits.
    pub fn first_colors(granted: u32, color_count: u32) -> Option<Allocation> {
        let color_count = u16::try_from(color_count).ok()?;
        Some(Allocation::Colored { colors: (0..granted as u16).map(Color).collect(), color_count })
    }
}

/// Pages of one task.
#[derive(Clone, Debug)]
pub struct PageTable {
    page_shift: u32,
    allocation: Allocation,
    /// The lowest frame.
    base: u64,
    /// Frames handed out so far.
    next: u64,
    rng: fastrand::Rng,
    taken: HashSet<u64>,
    frames: FxHashMap<u64, u64>,
}

impl PageTable {
    /// No pages yet. `page_bytes` is a power of two; colored allocation needs at least one color.
    pub fn new(page_bytes: Bytes, allocation: Allocation) -> PageTable {
        assert!(page_bytes.0.is_power_of_two(), "pages of {page_bytes}");
        let seed = if let Allocation::Random { seed, .. } = allocation { seed } else { 0 };
        if let Allocation::Colored { colors, .. } | Allocation::Free { colors, .. } = &allocation {
            assert!(!colors.is_empty(), "a task without colors has no memory");
        }
        let (taken, frames) = (HashSet::new(), FxHashMap::default());
        PageTable {
            page_shift: page_bytes.0.trailing_zeros(),
            allocation,
            base: 0,
            next: 0,
            rng: fastrand::Rng::with_seed(seed),
            taken,
            frames,
        }
    }

    /// Lays all frames so much higher, so that tasks with tables of their own do not share frames. A multiple of the colors there
    /// are leaves every frame its color.
    pub fn starting_at(self, first: FrameNumber) -> PageTable {
        PageTable { base: first.0, ..self }
    }

    /// Whether there is a frame for this page.
    pub fn has_frame_for(&self, page: u64) -> bool {
        let full = matches!(self.allocation, Allocation::Random { frames, .. } if self.taken.len() as u64 == frames);
        !full || self.frames.contains_key(&page)
    }

    /// The frame of a page; it panics where [`has_frame_for`](PageTable::has_frame_for) says no.
    pub fn frame(&mut self, page: u64) -> FrameNumber {
        if let Some(frame) = self.frames.get(&page) {
            return FrameNumber(*frame);
        }
        let number = self.next;
        self.next += 1;
        let frame = match &self.allocation {
            Allocation::Sequential { first } => first.0 + number,
            Allocation::Random { frames, .. } => {
                assert!((self.taken.len() as u64) < *frames, "all {frames} frames are taken");
                loop {
                    let frame = self.rng.u64(0..*frames);
                    if self.taken.insert(frame) {
                        break frame;
                    }
                }
            }
            Allocation::Colored { colors, color_count } => {
                let color = colors[(number % colors.len() as u64) as usize];
                number / colors.len() as u64 * u64::from(*color_count) + u64::from(color.0)
            }
            Allocation::Free { colors, color_count, first } => {
                let color = colors[(number % colors.len() as u64) as usize];
                (first.0 + number) * u64::from(*color_count) + u64::from(color.0)
            }
        };
        let frame = self.base + frame;
        self.frames.insert(page, frame);
        FrameNumber(frame)
    }

    /// The same access by physical address. An access that straddles pages is followed only in its first page.
    pub fn translate(&mut self, access: Access) -> Access {
        let offset = access.address & ((1 << self.page_shift) - 1);
        let frame = self.frame(access.address >> self.page_shift);
        let bytes = u64::from(access.bytes).min((1 << self.page_shift) - offset) as u32;
        Access { address: frame.0 << self.page_shift | offset, bytes, ..access }
    }

    /// Does `accesses` in `caches` by physical address, those that straddle pages in parts.
    pub fn run(&mut self, accesses: &[Access], caches: &mut Hierarchy) {
        let shift = self.page_shift;
        for part in accesses.iter().flat_map(|access| access.by_pages(shift)) {
            caches.access(self.translate(part));
        }
    }

    /// How frames are chosen.
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Pages that have a frame.
    pub fn pages(&self) -> usize {
        self.frames.len()
    }
}
