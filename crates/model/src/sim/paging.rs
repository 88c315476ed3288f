//! Translation of virtual to physical addresses: the operating system's influence on which sets a task uses.

use std::collections::HashSet;

use rustc_hash::FxHashMap;

use super::{Access, Hierarchy};
use crate::units::{Bytes, Color, FrameNumber};

/// Rule for the frame that a page gets when it is first touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// A page gets the next frame from `first` on.
    Sequential {
        /// First frame.
        first: FrameNumber,
    },
    /// A page gets any of the first `frames` frames that is free, chosen by a seeded generator.
    Random {
        /// Number of frames of the machine.
        frames: u64,
        /// Seed of the generator.
        seed: u64,
    },
    /// Pages get fresh frames of these colors in turn. With one color, all pages conflict.
    Colored {
        /// Colors granted.
        colors: Vec<Color>,
        /// Number of colors of the cache: the color of a frame is its number modulo this.
        color_count: u16,
    },
    /// A page gets any frame under any color: every frame has one physical address per color, whose upper digits are the
    /// frame and whose lowest digit is the color. [Liedtke1997, §3.2]
    Free {
        /// Colors granted, used in turn.
        colors: Vec<Color>,
        /// Number of colors of the cache.
        color_count: u16,
        /// First frame of memory; pages get this and the following frames in order.
        first: FrameNumber,
    },
}

impl Allocation {
    /// Returns the number of memory frames that no other task can use: with colors, all frames of the colors granted, whether
    /// used or not.
    pub fn reserved_frames(&self, memory_frames: u64, used_frames: u64) -> u64 {
        match self {
            Allocation::Colored { colors, color_count } => {
                memory_frames * colors.len() as u64 / u64::from(*color_count)
            }
            _ => used_frames,
        }
    }

    /// Returns by how many bits physical addresses, and so the tags of the cache, must be wider than the memory alone
    /// needs.
    pub fn extra_address_bits(&self) -> u32 {
        match self {
            Allocation::Free { color_count, .. } => u32::from(*color_count).next_power_of_two().ilog2(),
            _ => 0,
        }
    }
}

impl Allocation {
    /// Returns an allocation of the first `granted` of `color_count` colors; `None` if their numbers do not fit into 16 bits.
    pub fn first_colors(granted: u32, color_count: u32) -> Option<Allocation> {
        let color_count = u16::try_from(color_count).ok()?;
        Some(Allocation::Colored { colors: (0..granted as u16).map(Color).collect(), color_count })
    }
}

/// Page table of one task.
#[derive(Clone, Debug)]
pub struct PageTable {
    page_shift: u32,
    allocation: Allocation,
    /// Number by which all frames are shifted up.
    base: u64,
    /// Number of frames handed out so far.
    next: u64,
    rng: fastrand::Rng,
    taken: HashSet<u64>,
    frames: FxHashMap<u64, u64>,
}

impl PageTable {
    /// Creates a table without pages. `page_bytes` must be a power of two; colored allocation needs at least one color.
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

    /// Shifts all frames up by `first`, so that tasks with tables of their own do not share frames. A multiple of the number of
    /// colors leaves every frame its color.
    pub fn starting_at(self, first: FrameNumber) -> PageTable {
        PageTable { base: first.0, ..self }
    }

    /// Returns whether there is a frame for this page.
    pub fn has_frame_for(&self, page: u64) -> bool {
        let full = matches!(self.allocation, Allocation::Random { frames, .. } if self.taken.len() as u64 == frames);
        !full || self.frames.contains_key(&page)
    }

    /// Returns the frame of a page. Panics if [`has_frame_for`](PageTable::has_frame_for) returns false.
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

    /// Translates an access to physical addresses. Only the part in its first page is kept.
    pub fn translate(&mut self, access: Access) -> Access {
        let offset = access.address & ((1 << self.page_shift) - 1);
        let frame = self.frame(access.address >> self.page_shift);
        let bytes = u64::from(access.bytes).min((1 << self.page_shift) - offset) as u32;
        Access { address: frame.0 << self.page_shift | offset, bytes, ..access }
    }

    /// Performs `accesses` in `caches` by physical address. An access that straddles pages is split.
    pub fn run(&mut self, accesses: &[Access], caches: &mut Hierarchy) {
        let shift = self.page_shift;
        for part in accesses.iter().flat_map(|access| access.by_pages(shift)) {
            caches.access(self.translate(part));
        }
    }

    /// Returns how frames are chosen.
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Returns the number of pages that have a frame.
    pub fn pages(&self) -> usize {
        self.frames.len()
    }
}
