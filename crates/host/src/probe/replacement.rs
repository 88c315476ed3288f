//! Replacement: whether a level misses the accesses that it would miss under LRU, which replaces the least recently used line.
//!
//! Under LRU, a visit to a line of a set with W ways misses exactly if at least W other lines of the set were visited since the line's last visit.
//! Two orders of visits to pages of one color, that is of one group of sets, check this:
//!
//! - W + 1 pages one after the other, over and over: LRU misses every line. Policies that keep some of the lines, such as random ones, do not.
//! - W pages, the first of these pages again, W/2 further pages, and the first pages once more: LRU misses no line the third time, because it
//!   replaces older lines. FIFO misses all, because it ignores the second visit. As a control, W pages, which fit, are visited over and over. Other
//!   users of the sets cause misses there as well.
//!
//! Every load waits for the previous one. The lines of a page follow each other at random, so that no prefetcher predicts them. Before each
//! visit that counts, pages of other colors displace the lines from the inner level, so that the level under test sees every visit. The time of
//! a visit is compared with visits of the same lines that are known to hit and known to miss, in the same block.

use isochrome_model::machine::Machine;
use isochrome_model::replacement::{MissShare, ReplacementTest};
use isochrome_model::stats::median;
use isochrome_model::units::{Bytes, Color, CpuId};

use crate::color::ColorError;
use crate::color::pool::{ColoredRegion, FramePool};
use crate::interrupt;
use crate::load::flooder::FLOOD_PAGES_PER_WAY;
use crate::machine::sysfs::Note;
use crate::sys::memory::{Arena, page_bytes};

use super::{data_levels, failed, measured, note};

/// Number of blocks, each on a color and pages of its own.
const BLOCKS: usize = 24;
/// Least number of blocks for a result. A block counts if its hits and misses can be distinguished. The interval of the median needs six blocks.
const BLOCKS_MIN: usize = 12;
/// Number of samples of each kind in a block.
const SAMPLES: usize = 7;
/// Number of traversals by which memory displaces other memory.
const PASSES: usize = 3;
/// Number of visits before a timed one in the orders that go on forever. A random policy needs several visits to fill a set.
const VISITS: usize = 8;
/// Least ratio of the times of a miss and a hit at which a block counts.
const TOLD_APART: f64 = 1.25;
/// Size of the memory that displaces the lines from the inner level, as a multiple of the inner level.
const TIMES_INNER: usize = 2;

/// Measures the replacement policy of `level` on the calling thread's CPU, `cpu`, with pages of `pool`, and writes the result into `machine`.
pub(super) fn measure(
    machine: &mut Machine,
    cpu: CpuId,
    pool: &FramePool,
    level: u8,
    seed: u64,
    notes: &mut Vec<Note>,
) {
    let levels = data_levels(machine, cpu);
    let Some(place) = levels.iter().position(|&index| machine.levels[index].level == level) else {
        return notes.push(failed("replacement", "not measured", &ColorError::NoSuchLevel { level }));
    };
    let subject = format!("replacement of {}", super::name(&machine.levels[levels[place]]));
    if place > 1 || pool.colors() < 2 {
        // Levels further out are often filled with what inner levels evict, in an order that is not that of the visits.
        let reason = if place > 1 {
            "not measured: it has several inner levels, whose evictions may fill it"
        } else {
            "not measured: there is one color, so no memory displaces lines from the inner levels alone"
        };
        return notes.push(note(&subject, reason.to_owned(), "state the assumed policy in the task set (replacement)"));
    }
    let geometry = machine.levels[levels[place]].geometry.value;
    if geometry.ways < 2 {
        return notes.push(note(
            &subject,
            "not measured: with one way there is nothing to choose".to_owned(),
            "none is needed",
        ));
    }
    let inner = if place == 0 { Bytes(0) } else { machine.levels[levels[place - 1]].geometry.value.cache_bytes() };
    let (ways, line_bytes) = (geometry.ways as usize, geometry.line_bytes);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut shares: [Vec<f64>; 3] = Default::default();
    for number in 0..BLOCKS {
        if interrupt::interrupted() {
            return;
        }
        pool.shuffle(&mut rng);
        let color = Color((number % pool.colors() as usize) as u16);
        let block = match Block::take(pool, color, ways, inner, line_bytes, &mut rng) {
            Ok(block) => block,
            Err(reason) => return notes.push(failed(&subject, "not measured", &reason)),
        };
        for (share, of_order) in block.shares(&mut rng).into_iter().flatten().zip(&mut shares) {
            of_order.push(share);
        }
    }
    let blocks = shares[0].len();
    let [Some(cyclic), Some(reused), Some(fitting)] =
        shares.map(|shares| MissShare::of(&shares).filter(|_| blocks >= BLOCKS_MIN))
    else {
        let reason = format!("not measured: hits and misses took different times in {blocks} of {BLOCKS} blocks only");
        return notes.push(note(&subject, reason, "run it while nothing else does"));
    };
    let test = ReplacementTest { cpu, level, blocks: blocks as u32, cyclic, reused, fitting };
    machine.levels[levels[place]].replacement = Some(measured(test));
}

/// A visit to pages of a region, one after the other: a chain of loads that ends where it begins.
#[derive(Clone, Copy)]
struct Visit {
    start: u64,
    loads: u32,
}

/// Kinds of samples in a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Lines that were visited before, and fill half of the ways at most.
    Hit,
    /// Lines that were displaced.
    Miss,
    /// Visits to one more page than there are ways, over and over.
    Cyclic,
    /// Pages that were visited again before others came.
    Reused,
    /// Visits to as many pages as there are ways, over and over.
    Fitting,
}

/// Memory of one color, and the visits to it.
struct Block {
    own: ColoredRegion,
    /// Visit to one more page than there are ways.
    cycle: Visit,
    /// Visit to as many pages as there are ways.
    all: Visit,
    /// The first pages of `all`.
    first: Visit,
    /// Pages other than those of `all`, half as many as there are ways.
    others: Visit,
    /// Memory of the same color that displaces all pages of the block.
    flood: ColoredRegion,
    /// Memory of other colors that displaces the pages of the block from the inner level; `None` without an inner level.
    inner: Option<ColoredRegion>,
    line_bytes: usize,
}

impl Block {
    fn take(
        pool: &FramePool,
        color: Color,
        ways: usize,
        inner: Bytes,
        line_bytes: Bytes,
        rng: &mut fastrand::Rng,
    ) -> Result<Block, ColorError> {
        let line_bytes = line_bytes.0 as usize;
        let half = ways.div_ceil(2);
        let own = pool.take(&[color], ways + half)?;
        let flood = pool.take(&[color], FLOOD_PAGES_PER_WAY * ways)?;
        let inner_pages = TIMES_INNER * (inner.0 as usize).div_ceil(page_bytes());
        let colors: Vec<Color> = (0..pool.colors() as u16).map(Color).filter(|other| *other != color).collect();
        let inner = (inner_pages > 0).then(|| pool.take(&colors, inner_pages)).transpose()?;
        // A line has room for the links of several visits.
        let mut visit = |word: u64, pages: std::ops::Range<usize>| link(own.arena(), word, pages, line_bytes, rng);
        let (cycle, all) = (visit(0, 0..ways + 1), visit(1, 0..ways));
        // Of LRU's order, so many lines may be displaced by anybody else before the first ones are.
        let (first, others) = (visit(2, 0..(ways / 4).max(1)), visit(3, ways..ways + half));
        Ok(Block { own, cycle, all, first, others, flood, inner, line_bytes })
    }

    /// Returns the time of a visit per load, in ticks.
    fn time(&self, visit: Visit) -> f64 {
        self.own.arena().chase(visit.start, visit.loads).1.0 as f64 / f64::from(visit.loads)
    }

    fn touch(&self, region: &ColoredRegion) {
        let pages: Vec<u32> = (0..region.arena().page_count() as u32).collect();
        for _ in 0..PASSES {
            region.arena().touch(&pages, self.line_bytes);
        }
    }

    /// Displaces everything from the inner level, and nothing of this color from the level under test.
    fn clear_inner(&self) {
        if let Some(inner) = &self.inner {
            self.touch(inner);
        }
    }

    /// Carries out a visit several times, and returns it.
    fn over_and_over(&self, visit: Visit) -> Visit {
        for _ in 0..VISITS {
            self.time(visit);
            self.clear_inner();
        }
        visit
    }

    /// Returns the time per load of one sample.
    fn sample(&self, kind: Kind) -> f64 {
        self.touch(&self.flood);
        self.clear_inner();
        let timed = match kind {
            Kind::Miss => self.cycle,
            Kind::Hit => self.over_and_over(self.first),
            Kind::Cyclic => self.over_and_over(self.cycle),
            Kind::Fitting => self.over_and_over(self.all),
            Kind::Reused => {
                for visit in [self.all, self.first, self.others] {
                    self.time(visit);
                    self.clear_inner();
                }
                self.first
            }
        };
        self.time(timed)
    }

    /// Returns the shares missed in the two orders of visits and in the control; `None` if hits and misses take about the same time.
    fn shares(&self, rng: &mut fastrand::Rng) -> Option<[f64; 3]> {
        let kinds = [Kind::Hit, Kind::Miss, Kind::Cyclic, Kind::Reused, Kind::Fitting];
        let mut order: Vec<Kind> = kinds.into_iter().cycle().take(SAMPLES * kinds.len()).collect();
        rng.shuffle(&mut order);
        let times: Vec<(Kind, f64)> = order.into_iter().map(|kind| (kind, self.sample(kind))).collect();
        let typical = |kind: Kind| {
            let of_kind = times.iter().filter(|(other, _)| *other == kind).map(|(_, time)| *time);
            median(&of_kind.collect::<Vec<f64>>())
        };
        let (hit, miss) = (typical(Kind::Hit)?, typical(Kind::Miss)?);
        let share = |time: f64| (time - hit) / (miss - hit);
        (miss >= TOLD_APART * hit).then_some(())?;
        Some([share(typical(Kind::Cyclic)?), share(typical(Kind::Reused)?), share(typical(Kind::Fitting)?)])
    }
}

/// Links the lines of `pages`, page by page and in random order within each, by the word number `word` of every line.
fn link(arena: &Arena, word: u64, pages: std::ops::Range<usize>, line_bytes: usize, rng: &mut fastrand::Rng) -> Visit {
    let mut words: Vec<Bytes> = Vec::new();
    for page in pages {
        let mut lines: Vec<usize> = (0..page_bytes() / line_bytes).collect();
        rng.shuffle(&mut lines);
        words.extend(lines.iter().map(|line| Bytes((page * page_bytes() + line * line_bytes) as u64 + 8 * word)));
    }
    let next = words.iter().cycle().skip(1);
    arena.link(words.iter().zip(next).map(|(here, next)| (*here, *next)));
    Visit { start: words[0].0, loads: words.len() as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_visits_of_a_page_have_links_of_their_own_and_go_page_by_page() {
        let arena = Arena::map(4).unwrap();
        let mut rng = fastrand::Rng::with_seed(3);
        let visits = [(0, 0..3), (1, 0..2), (2, 1..4)]
            .map(|(word, pages)| (pages.clone(), link(&arena, word, pages, 64, &mut rng)));
        for (pages, visit) in visits {
            assert_eq!(visit.loads as usize, pages.len() * page_bytes() / 64);
            let mut offset = visit.start;
            let mut seen = Vec::new();
            for _ in 0..visit.loads {
                seen.push(offset as usize / page_bytes());
                offset = arena.chase(offset, 1).0;
            }
            assert_eq!(offset, visit.start);
            let expected: Vec<usize> = pages.flat_map(|page| vec![page; page_bytes() / 64]).collect();
            assert_eq!(seen, expected);
        }
    }
}
