//! The flooder: carries out the patterns of [`isochrome_model::flood`] in memory of chosen colors, and puts them to a test of their own.
//!
//! A region whose pages have all colors in turn lies in the cache as memory at consecutive addresses does on a machine whose frame
//! numbers tell the color; so patterns that are made of set indexes need no frame numbers. Which number a color has does not matter
//! to them, as long as the first level is indexed within a page.

use isochrome_model::flood::verify::{Block, Look};
use isochrome_model::flood::{Chains, DoublePurge, Flood, Leaves, NoDoublePurge, Pattern, Storm};
use isochrome_model::geometry::Geometry;
use isochrome_model::units::{Bytes, Color, Cycles};

use crate::counters::Counters;
use crate::error::HostError;
use crate::events::Quantity;
use crate::interrupt;
use crate::palette::Target;
use crate::palette::look::{STEPS, Walker};
use crate::pool::{ColoredRegion, FramePool};
use crate::probe::refill::purge;
use crate::sys::clock;
use crate::sys::heap::Ground;
use crate::sys::memory::page_bytes;

/// Pages per way and color of a flood: twice the ways evict everything also where replacement only approximates LRU.
pub(crate) const FLOOD_PAGES_PER_WAY: usize = 2;
/// Chains of loads at once: about as many misses as a core can have under way.
const CHAINS: usize = 12;
/// Traversals of what certainly leaves nothing, before the flood itself. Few: a shared outer level is lost to neighbors while they
/// last, and then lines that are gone come from further out than after a flood alone.
const SURE_PASSES: u32 = 2;
/// Pages of a victim in each of its colors.
const VICTIM_PAGES: usize = 2;
/// Turns before a block that are not recorded.
const WARM_UP: usize = 2;

/// A flood, ready to be carried out.
pub struct Flooder<G: Ground = ColoredRegion> {
    memory: G,
    plan: Plan,
    /// Times the pattern is carried out for one flood.
    passes: u32,
    /// How long it takes.
    time: Cycles,
}

enum Plan {
    Flood(Flood),
    Storm(Storm),
    DoublePurge(DoublePurge),
    Chains { starts: [u64; CHAINS], steps: usize },
}

/// The double purge of a flooder that has `colors` colors: between the first level and as much of this one.
fn double_purge(geometry: Geometry, first: Option<Geometry>, colors: usize) -> Result<DoublePurge, NoDoublePurge> {
    let first = first.ok_or(NoDoublePurge::Shape)?;
    let row_bytes = first.set_count * first.line_bytes.0;
    // The first level's index must be that within a page: which other bits of a frame's number it takes is not known.
    if row_bytes == 0 || !(page_bytes() as u64).is_multiple_of(row_bytes) {
        return Err(NoDoublePurge::Shape);
    }
    DoublePurge::new(first, geometry)?.within(colors as u64 * page_bytes() as u64 / row_bytes)
}

impl Flooder {
    /// Pages of each color that a flood takes.
    pub fn pages_per_color(geometry: Geometry, first: Option<Geometry>) -> usize {
        let ways = geometry.ways as usize;
        (FLOOD_PAGES_PER_WAY * ways).max(ways + first.map_or(0, |first| first.ways as usize))
    }

    /// A flood of `colors` of a cache of this `geometry`, whose pages are those of `pool`; `first`: the first data level.
    ///
    /// Fails when the pool has too few pages, and where there is no double purge.
    pub fn new(
        pool: &FramePool,
        geometry: Geometry,
        first: Option<Geometry>,
        colors: &[Color],
        pattern: Pattern,
    ) -> Result<Flooder, HostError> {
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
            // Filled in below, once there is memory to link.
            Pattern::Chains => (Plan::Chains { starts: [0; CHAINS], steps: 0 }, pages),
        };
        let mut flooder = Flooder { memory: pool.take(colors, pages)?, plan, passes: 1, time: Cycles(0) };
        if let Plan::Chains { starts, steps } = &mut flooder.plan {
            let lines = (area.0 / line_bytes.0) as u32;
            let chains = Chains::new(lines, line_bytes, CHAINS, u64::from(lines));
            flooder.memory.arena().link(chains.links());
            *steps = chains.steps();
            // An area of fewer lines than chains has fewer chains; the rest go along the first.
            starts.iter_mut().zip(chains.starts()).for_each(|(start, offset)| *start = offset.0);
        }
        flooder.measure();
        Ok(flooder)
    }

    /// Memory it goes over.
    pub fn size(&self) -> Bytes {
        self.memory.size()
    }
}

impl<G: Ground> Flooder<G> {
    /// Mere writing to all of `memory`.
    pub(crate) fn writing(memory: G, line_bytes: Bytes) -> Flooder<G> {
        let area = Bytes((memory.ground().page_count() * page_bytes()) as u64);
        let plan = Plan::Flood(Flood { area, line_bytes, passes: 1, leaves: Leaves::Dirty });
        let mut flooder = Flooder { memory, plan, passes: 1, time: Cycles(0) };
        flooder.measure();
        flooder
    }

    /// Carries the pattern out so many times for one flood, instead of once.
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

    /// Floods once.
    #[inline]
    pub fn run(&self) {
        for _ in 0..self.passes {
            self.pass();
        }
    }

    #[inline]
    fn pass(&self) {
        let arena = self.memory.ground();
        match &self.plan {
            Plan::Flood(flood) => arena.carry_out(flood.accesses()),
            Plan::Storm(storm) => arena.carry_out(storm.accesses()),
            Plan::DoublePurge(purge) => arena.carry_out(purge.accesses()),
            Plan::Chains { starts, steps } => arena.chase_together(*starts, *steps),
        }
    }

    /// Spins for as long as a flood takes: the paired control.
    pub fn spin(&self) {
        clock::spin_until(Cycles(clock::now().0 + self.time.0));
    }

    /// How long a flood takes: the median of a few.
    pub fn time(&self) -> Cycles {
        self.time
    }
}

/// How much to verify.
#[derive(Clone, Copy, Debug)]
pub struct VerifyRequest {
    /// Blocks of each pattern.
    pub blocks: usize,
    /// Looks of each kind in a block.
    pub looks: usize,
    /// Times a pattern is carried out for one flood.
    pub passes: u32,
    /// Seed of every random choice.
    pub seed: u64,
}

/// What was verified, as it was measured.
pub struct Verified {
    /// Blocks in the order run.
    pub blocks: Vec<Block>,
    /// Lines of the victim looked at each time.
    pub lines: u64,
    /// The floods that could be tried, and the memory each goes over.
    pub memory: Vec<(Pattern, Bytes)>,
    /// Those that could not, and why.
    pub not_tried: Vec<(Pattern, HostError)>,
}

/// The colors that a double purge keeps for itself: a victim must not lie in them. [Loeser1999, §3.2.2]
pub fn reserved_colors(first: Option<Geometry>) -> usize {
    let rows = 2 * first.map_or(0, |first| first.set_count * first.line_bytes.0);
    rows.div_ceil(page_bytes() as u64).max(1) as usize
}

/// Pages of every color that the pool must have to verify all patterns.
pub fn pages_to_verify(target: Target, first: Option<Geometry>) -> usize {
    let ways = target.geometry.ways as usize;
    Pattern::ALL.len() * Flooder::pages_per_color(target.geometry, first)
        + FLOOD_PAGES_PER_WAY * ways
        + VICTIM_PAGES
        + inner_pages(target).div_ceil(reserved_colors(first))
}

/// Pages that push a victim out of the levels inside.
fn inner_pages(target: Target) -> usize {
    target.sizes().inner_pages()
}

/// Kinds of looks: after spinning, after the flood, after nothing was left and the flood.
const KINDS: usize = 3;

/// Puts `patterns` to the test of [`isochrome_model::flood::verify`] on the calling thread, in memory of `pool`, whose colors are those of
/// `target`; `first`: the first data level; `last_level`: size of the outermost.
///
/// `counters`: misses of the level, and after them its write-backs where there are any. `progress` is called after each block with the
/// number done and of all; an interrupt ends it after the block under way.
#[allow(clippy::too_many_arguments)]
pub fn verify(
    pool: &FramePool,
    target: Target,
    first: Option<Geometry>,
    last_level: Bytes,
    patterns: &[Pattern],
    counters: Option<&Counters>,
    request: VerifyRequest,
    mut progress: impl FnMut(usize, usize),
) -> Result<Verified, HostError> {
    let mut rng = fastrand::Rng::with_seed(request.seed);
    let all: Vec<Color> = (0..pool.colors() as u16).map(Color).collect();
    let (reserved, exposed) = all.split_at(reserved_colors(first).min(all.len().saturating_sub(1)));
    let (line_bytes, ways) = (target.geometry.line_bytes, target.geometry.ways as usize);

    let (mut flooders, mut not_tried) = (Vec::new(), Vec::new());
    for &pattern in patterns {
        match Flooder::new(pool, target.geometry, first, &all, pattern) {
            Ok(flooder) => flooders.push((pattern, flooder.with_passes(request.passes))),
            Err(error @ HostError::NoDoublePurge(_)) => not_tried.push((pattern, error)),
            Err(error) => return Err(error),
        }
    }
    let sure = pool.take(&all, all.len() * FLOOD_PAGES_PER_WAY * ways)?;
    let sure_flood = Flood { area: sure.size(), line_bytes, passes: SURE_PASSES, leaves: Leaves::Clean };
    let inner = pool.take(reserved, inner_pages(target))?;
    let inside: Vec<u32> = (0..inner.arena().page_count() as u32).collect();
    // Every page is written to before it is read: one that never was is the same page of zeros as all others.
    for region in [&sure, &inner] {
        region
            .arena()
            .carry_out(Flood { area: region.size(), line_bytes, passes: 1, leaves: Leaves::Dirty }.accesses());
    }
    // What is to be clean must have been written back all the way once: a victim cache hands dirty lines back dirty.
    purge(last_level.max(target.geometry.cache_bytes()), line_bytes)?;

    let victim_pages = exposed.len() * VICTIM_PAGES;
    let pages: Vec<u32> = (0..victim_pages as u32).collect();
    let clock_ticks = clock::overhead();
    let mut order = (0..flooders.len()).collect::<Vec<_>>().repeat(request.blocks);
    rng.shuffle(&mut order);
    let total = order.len();
    let mut blocks = Vec::with_capacity(total);
    for at in order {
        if interrupt::interrupted() {
            break;
        }
        let (pattern, flooder) = &flooders[at];
        // Placement alone changes results, so each block has another victim.
        pool.shuffle(&mut rng);
        let mut victim = Walker::new(pool.take(exposed, victim_pages)?, line_bytes.0 as usize, rng.u64(..));
        victim.make_ready(0..victim_pages as u32);
        let mut look = |kind: usize| {
            victim.prepare(&pages, &pages, 1);
            match kind {
                0 => {
                    flooder.spin();
                    inner.arena().touch(&inside, line_bytes.0 as usize);
                }
                1 => flooder.run(),
                _ => {
                    sure.arena().carry_out(sure_flood.accesses());
                    flooder.run();
                }
            }
            let before = counters.map(Counters::read);
            let mut walks = Vec::with_capacity(pages.len());
            for &page in &pages {
                walks.push(Cycles(victim.walk(page, STEPS).0.saturating_sub(clock_ticks.0)));
            }
            let counts = counters.zip(before).and_then(|(counters, before)| {
                let counts = counters.between(&before.ok()?, &counters.read().ok()?).ok()?;
                Some(counts.values().to_vec())
            });
            let writes_back = |counters: &&Counters| {
                counters.events().get(1).is_some_and(|event| event.quantity == Quantity::L2WriteBacks)
            };
            Look {
                walks,
                misses: counts.as_ref().and_then(|counts| counts.first().copied()),
                write_backs: counters
                    .filter(writes_back)
                    .and(counts.as_ref())
                    .and_then(|counts| counts.get(1).copied()),
            }
        };
        let mut kinds: Vec<usize> = (0..KINDS * request.looks).map(|i| i % KINDS).collect();
        rng.shuffle(&mut kinds);
        for kind in (0..KINDS).cycle().take(KINDS * WARM_UP) {
            look(kind);
        }
        let mut looks: [Vec<Look>; KINDS] = Default::default();
        for kind in kinds {
            looks[kind].push(look(kind));
        }
        let [hit, flooded, sure] = looks;
        blocks.push(Block { pattern: *pattern, flood: flooder.time(), hit, flooded, sure });
        progress(blocks.len(), total);
    }
    Ok(Verified {
        blocks,
        lines: victim_pages as u64 * u64::from(STEPS),
        memory: flooders.iter().map(|(pattern, flooder)| (*pattern, flooder.size())).collect(),
        not_tried,
    })
}
