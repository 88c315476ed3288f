//! The flooder: carries out the patterns of [`isochrome_model::flood`] in memory of chosen colors.
//!
//! The pages of a region have all colors in rotation. In the cache, such a region is placed like memory at consecutive addresses on a machine
//! whose frame numbers determine the color. Patterns that are made of set indexes therefore need no frame numbers. The numbers of the colors
//! do not matter either, as long as the first level is indexed within a page.

use isochrome_model::flood::{Chains, DoublePurge, Flood, Leaves, NoDoublePurge, Pattern, Storm};
use isochrome_model::geometry::Geometry;
use isochrome_model::units::{Bytes, Color, Cycles};

use crate::color::pool::{ColoredRegion, FramePool};
use crate::color::{ColorError, Target};
use crate::sys::clock;
use crate::sys::heap::BackingMemory;
use crate::sys::memory::page_bytes;

/// Number of pages per way and color in a flood. Twice the number of ways evicts everything even if replacement only approximates LRU.
pub const FLOOD_PAGES_PER_WAY: usize = 2;
/// Number of chains of loads that are followed at once: about as many as the misses that a core can have outstanding.
const CHAINS: usize = 12;

/// An error of making a flood.
#[derive(Debug, thiserror::Error)]
pub enum FloodError {
    /// The caches do not admit a double purge.
    #[error("{0}\n  hint: the other patterns do not need this")]
    NoDoublePurge(#[from] NoDoublePurge),
    /// The memory of the flood cannot be allocated.
    #[error("{0}")]
    Color(#[from] ColorError),
}

/// A flood that is ready to be carried out.
pub struct Flooder<M: BackingMemory = ColoredRegion> {
    memory: M,
    plan: Plan,
    /// Number of times that the pattern is carried out for one flood.
    passes: u32,
    /// Time that one flood takes.
    time: Cycles,
}

enum Plan {
    Flood(Flood),
    Storm(Storm),
    DoublePurge(DoublePurge),
    Chains { starts: [u64; CHAINS], steps: usize },
}

/// Returns the double purge between the first level and the level of `geometry` that fits into `colors` colors.
fn double_purge(geometry: Geometry, first: Option<Geometry>, colors: usize) -> Result<DoublePurge, NoDoublePurge> {
    let first = first.ok_or(NoDoublePurge::Shape)?;
    let row_bytes = first.set_count * first.line_bytes.0;
    // The first level must be indexed within a page, because it is not known which bits of a frame number its index would take.
    if row_bytes == 0 || !(page_bytes() as u64).is_multiple_of(row_bytes) {
        return Err(NoDoublePurge::Shape);
    }
    DoublePurge::new(first, geometry)?.within(colors as u64 * page_bytes() as u64 / row_bytes)
}

impl Flooder {
    /// Returns the number of pages of each color that a flood needs.
    pub fn pages_per_color(geometry: Geometry, first: Option<Geometry>) -> usize {
        let ways = geometry.ways as usize;
        (FLOOD_PAGES_PER_WAY * ways).max(ways + first.map_or(0, |first| first.ways as usize))
    }

    /// Creates a flood of `colors` of a cache of this `geometry`, with pages of `pool`. `first`: geometry of the first data level.
    ///
    /// Fails if the pool has too few pages of a color, and if `pattern` is a double purge that the caches do not admit.
    pub fn new(
        pool: &FramePool,
        geometry: Geometry,
        first: Option<Geometry>,
        colors: &[Color],
        pattern: Pattern,
    ) -> Result<Flooder, FloodError> {
        let (line_bytes, page_bytes) = (geometry.line_bytes, page_bytes() as u64);
        let pages = colors.len() * FLOOD_PAGES_PER_WAY * geometry.ways as usize;
        let area = Bytes(pages as u64 * page_bytes);
        let flood = |leaves| Plan::Flood(Flood { area, line_bytes, passes: 1, leaves });
        let (plan, pages) = match pattern {
            Pattern::Write => (flood(Leaves::Dirty), pages),
            Pattern::Read => (flood(Leaves::Clean), pages),
            Pattern::Storm => {
                let set_count = colors.len() as u64 * page_bytes / line_bytes.0;
                let depth = FLOOD_PAGES_PER_WAY as u32 * geometry.ways;
                (Plan::Storm(Storm { geometry: Geometry { set_count, ..geometry }, depth }), pages)
            }
            Pattern::DoublePurge => {
                let purge = double_purge(geometry, first, colors.len())?;
                (Plan::DoublePurge(purge), purge.area().0.div_ceil(page_bytes) as usize)
            }
            // The chains are filled in below, once there is memory to link.
            Pattern::Chains => (Plan::Chains { starts: [0; CHAINS], steps: 0 }, pages),
        };
        let mut flooder = Flooder { memory: pool.take(colors, pages)?, plan, passes: 1, time: Cycles(0) };
        if let Plan::Chains { starts, steps } = &mut flooder.plan {
            let lines = (area.0 / line_bytes.0) as u32;
            let chains = Chains::new(lines, line_bytes, CHAINS, u64::from(lines));
            flooder.memory.arena().link(chains.links());
            *steps = chains.steps();
            // If the area has fewer lines than `CHAINS`, there are fewer chains, and the other starts stay at offset 0.
            starts.iter_mut().zip(chains.starts()).for_each(|(start, offset)| *start = offset.0);
        }
        flooder.measure();
        Ok(flooder)
    }

    /// Returns the size of the memory that is accessed.
    pub fn size(&self) -> Bytes {
        self.memory.size()
    }
}

impl<M: BackingMemory> Flooder<M> {
    /// Creates a flood that writes to all of `memory` and does nothing else.
    pub fn writing(memory: M, line_bytes: Bytes) -> Flooder<M> {
        let area = Bytes((memory.arena().page_count() * page_bytes()) as u64);
        let plan = Plan::Flood(Flood { area, line_bytes, passes: 1, leaves: Leaves::Dirty });
        let mut flooder = Flooder { memory, plan, passes: 1, time: Cycles(0) };
        flooder.measure();
        flooder
    }

    /// Carries out the pattern `passes` times for one flood, instead of once.
    pub fn with_passes(mut self, passes: u32) -> Self {
        self.passes = passes;
        self.measure();
        self
    }

    fn measure(&mut self) {
        let mut times = [0u64; 5];
        for time in &mut times {
            let begin = clock::now();
            self.run();
            *time = clock::now().0 - begin.0;
        }
        times.sort_unstable();
        self.time = Cycles(times[2]);
    }

    /// Carries out one flood.
    #[inline]
    pub fn run(&self) {
        for _ in 0..self.passes {
            self.pass();
        }
    }

    #[inline]
    fn pass(&self) {
        let arena = self.memory.arena();
        match &self.plan {
            Plan::Flood(flood) => arena.carry_out(flood.accesses()),
            Plan::Storm(storm) => arena.carry_out(storm.accesses()),
            Plan::DoublePurge(purge) => arena.carry_out(purge.accesses()),
            Plan::Chains { starts, steps } => arena.chase_together(*starts, *steps),
        }
    }

    /// Spins for as long as a flood takes, as the paired control.
    pub fn spin(&self) {
        clock::spin_until(Cycles(clock::now().0 + self.time.0));
    }

    /// Returns the time that a flood takes, the median of five.
    pub fn time(&self) -> Cycles {
        self.time
    }
}

/// Returns the number of colors that a double purge reserves. A victim must not use these colors. [Loeser1999, §3.2.2]
pub fn reserved_colors(first: Option<Geometry>) -> usize {
    let rows = 2 * first.map_or(0, |first| first.set_count * first.line_bytes.0);
    rows.div_ceil(page_bytes() as u64).max(1) as usize
}

/// Returns the number of pages that evict a victim from the levels inside `target`.
pub fn inner_pages(target: Target) -> usize {
    target.sizes().inner_pages()
}
