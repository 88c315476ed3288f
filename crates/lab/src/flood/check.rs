//! The self-check of the flooder: it measures how many lines of a known victim remain after a flood.

use isochrome_host::color::Target;
use isochrome_host::color::eviction::{STEPS, Walker};
use isochrome_host::color::pool::{ColoredRegion, FramePool};
use isochrome_host::counters::Counters;
use isochrome_host::counters::events::Quantity;
use isochrome_host::error::without_hint;
use isochrome_host::load::flooder::{FLOOD_PAGES_PER_WAY, FloodError, Flooder, inner_pages, reserved_colors};
use isochrome_host::probe::refill::purge;
use isochrome_host::sys::clock;
use isochrome_model::flood::{Flood, Leaves, Pattern};
use isochrome_model::geometry::Geometry;
use isochrome_model::units::{Bytes, Color};

use super::{COLUMNS, Condition, NotTried};
use crate::error::LabError;
use crate::runner::{Experiment, Recorder};
use crate::samples::{Arm, Judged};

/// Number of traversals, before the flood itself, of the memory that certainly evicts everything. The number is small, because neighbors fill a
/// shared outer level during the traversals. Evicted lines would then come from further out than after a flood alone.
const SURE_PASSES: u32 = 2;
/// Number of pages of a victim in each of its colors.
const VICTIM_PAGES: usize = 2;
/// Unrecorded tests of each arm before a block.
const WARM_UP: usize = 2;
const ARMS: [Arm; 3] = [Arm::Control, Arm::Treatment, Arm::Extreme];

/// The experiment that tests floods.
pub struct Check<'a> {
    pool: &'a FramePool,
    target: Target,
    /// Counters of misses of the level, and of its write-backs if there are any; `None` without counters.
    counters: Option<&'a Counters>,
    flooders: Vec<(Pattern, Flooder)>,
    /// Patterns that could not be tried.
    pub not_tried: Vec<NotTried>,
    /// Colors of the victim: those that the flooder does not reserve.
    exposed: Vec<Color>,
    /// Memory whose traversal certainly evicts a victim, and (`inner`) memory whose traversal evicts a victim from the inner levels only.
    sure: ColoredRegion,
    inner: ColoredRegion,
}

/// Returns the number of pages of every color that the pool must have to check all patterns.
pub fn pages_to_verify(target: Target, first: Option<Geometry>) -> usize {
    let ways = target.geometry.ways as usize;
    Pattern::ALL.len() * Flooder::pages_per_color(target.geometry, first)
        + FLOOD_PAGES_PER_WAY * ways
        + VICTIM_PAGES
        + inner_pages(target).div_ceil(reserved_colors(first))
}

impl<'a> Check<'a> {
    /// Returns a check of `patterns` in memory of `pool`, whose colors are those of `target`. A flood traverses its pattern `passes` times.
    /// `first` is the first data level, and `last_level` the size of the outermost level.
    pub fn new(
        pool: &'a FramePool,
        target: Target,
        (first, last_level): (Option<Geometry>, Bytes),
        (patterns, passes): (&[Pattern], u32),
        counters: Option<&'a Counters>,
    ) -> Result<Check<'a>, LabError> {
        let all: Vec<Color> = (0..pool.colors() as u16).map(Color).collect();
        let (reserved, exposed) = all.split_at(reserved_colors(first).min(all.len().saturating_sub(1)));
        let line_bytes = target.geometry.line_bytes;
        let (mut flooders, mut not_tried) = (Vec::new(), Vec::new());
        for &pattern in patterns {
            match Flooder::new(pool, target.geometry, first, &all, pattern) {
                Ok(flooder) => flooders.push((pattern, flooder.with_passes(passes))),
                Err(error @ FloodError::NoDoublePurge(_)) => {
                    not_tried.push(NotTried { pattern, reason: without_hint(&error) });
                }
                Err(error) => return Err(error.into()),
            }
        }
        let sure = pool.take(&all, all.len() * FLOOD_PAGES_PER_WAY * target.geometry.ways as usize)?;
        let inner = pool.take(reserved, inner_pages(target))?;
        // Every page is written to before it is read, because all pages that were never written to share one frame of zeros.
        for region in [&sure, &inner] {
            let flood = Flood { area: region.size(), line_bytes, passes: 1, leaves: Leaves::Dirty };
            region.arena().carry_out(flood.accesses());
        }
        // Lines that should be clean must first be written back to memory, because a victim cache returns dirty lines as dirty.
        purge(last_level.max(target.geometry.cache_bytes()), line_bytes)?;
        Ok(Check { pool, target, counters, flooders, not_tried, exposed: exposed.to_vec(), sure, inner })
    }

    fn victim_pages(&self) -> usize {
        self.exposed.len() * VICTIM_PAGES
    }

    /// Returns the number of lines of the victim that each test loads.
    pub fn lines(&self) -> u64 {
        self.victim_pages() as u64 * u64::from(STEPS)
    }

    /// Returns the size of the memory that a flood by `pattern` traverses; 0 if the pattern was not tried.
    pub fn memory(&self, pattern: Pattern) -> Bytes {
        self.flooders.iter().find(|(of, _)| *of == pattern).map_or(Bytes(0), |(_, flooder)| flooder.size())
    }
}

impl Experiment for Check<'_> {
    type Condition = Condition;
    const JUDGED: Judged = super::JUDGED;

    fn columns(&self) -> Vec<String> {
        let walks = (0..self.victim_pages()).map(|page| format!("walk_{page}"));
        COLUMNS.map(str::to_owned).into_iter().chain(walks).collect()
    }

    fn conditions(&self) -> Vec<Condition> {
        self.flooders.iter().map(|(pattern, _)| Condition { pattern: *pattern }).collect()
    }

    fn block(&mut self, condition: Condition, recorder: &mut Recorder<Condition>) -> Result<(), LabError> {
        let of = |(pattern, _): &&(Pattern, Flooder)| *pattern == condition.pattern;
        let (_, flooder) = self.flooders.iter().find(of).expect("conditions are made of the floods");
        let line_bytes = self.target.geometry.line_bytes;
        // Placement alone changes results, so each block has another victim.
        self.pool.shuffle(&mut recorder.rng);
        let pages: Vec<u32> = (0..self.victim_pages() as u32).collect();
        let memory = self.pool.take(&self.exposed, pages.len())?;
        let mut victim = Walker::new(memory, line_bytes.0 as usize, recorder.rng.u64(..));
        victim.make_ready(0..pages.len() as u32);
        let inside: Vec<u32> = (0..self.inner.arena().page_count() as u32).collect();
        let sure = Flood { area: self.sure.size(), line_bytes, passes: SURE_PASSES, leaves: Leaves::Clean };
        let clock_ticks = clock::overhead();
        let writes_back =
            |counters: &&Counters| counters.events().get(1).is_some_and(|it| it.quantity == Quantity::L2WriteBacks);
        let mut test = |arm: Arm| {
            victim.touch(&pages);
            victim.touch(&pages);
            match arm {
                Arm::Control | Arm::Reference => {
                    flooder.spin();
                    self.inner.arena().touch(&inside, line_bytes.0 as usize);
                }
                Arm::Treatment => flooder.run(),
                Arm::Extreme => {
                    self.sure.arena().carry_out(sure.accesses());
                    flooder.run();
                }
            }
            let before = self.counters.map(Counters::read);
            let walk = |page: &u32| victim.walk(*page, STEPS).0.saturating_sub(clock_ticks.0) as f64;
            let walks: Vec<f64> = pages.iter().map(walk).collect();
            let counts = self.counters.zip(before).and_then(|(counters, before)| {
                Some(counters.between(&before.ok()?, &counters.read().ok()?).ok()?.values().to_vec())
            });
            let count = |at: usize| counts.as_ref().and_then(|counts| counts.get(at)).map_or(f64::NAN, |it| *it as f64);
            let written = if self.counters.as_ref().is_some_and(writes_back) { count(1) } else { f64::NAN };
            [flooder.time().0 as f64, count(0), written].into_iter().chain(walks).collect::<Vec<f64>>()
        };
        for arm in ARMS.into_iter().cycle().take(ARMS.len() * WARM_UP) {
            test(arm);
        }
        recorder.measure(condition, &ARMS, |arm| Ok(Some(test(arm))))
    }
}
