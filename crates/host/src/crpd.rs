//! The cache-related delay of a pre-emption, measured: the experiment of [Sebek2002, §3.5]. What is measured and what follows from it is in
//! [`isochrome_model::crpd`].
//!
//! Task and pre-empting task take turns in one thread, as in all experiments here; what a context switch costs by itself is not part of
//! the delay. The iteration has two passes, so that lines evicted in the middle of the first are all missed once, whether they
//! would have been used later in that pass or early in the next. Machine code runs whole passes, so it is cut between them, with the same effect.

use isochrome_model::crpd::{Block, Condition, Job, Walk};
use isochrome_model::flood::Pattern;
use isochrome_model::miss_ratio::{Touches, Visit};
use isochrome_model::units::{Color, Cycles};

use crate::error::HostError;
use crate::flooder::Flooder;
use crate::interrupt;
use crate::palette::Target;
use crate::pool::{ColoredRegion, FramePool};
use crate::sys::clock;
use crate::sys::code::Code;
use crate::sys::memory::Arena;

/// Passes over the working set in an iteration.
pub const PASSES: u32 = 2;
/// Iterations before a block that are not recorded.
const WARM_UP: usize = 3;

/// How much to run.
#[derive(Clone, Debug)]
pub struct CrpdRequest {
    /// What the working set is.
    pub touches: Touches,
    /// Sizes of the working set, in percent of its colors.
    pub percents: Vec<u32>,
    /// Colors of the working set.
    pub colors: Vec<Color>,
    /// Blocks of each condition.
    pub blocks: usize,
    /// Jobs of each kind in a block.
    pub jobs: usize,
    /// Seed of every random choice.
    pub seed: u64,
}

impl CrpdRequest {
    /// Pages of the working set of `percent`; at least one.
    fn pages(&self, target: Target, percent: u32) -> usize {
        let fits = self.colors.len() * target.geometry.ways as usize;
        (fits * percent as usize).div_ceil(100).max(1)
    }
}

/// The task that is pre-empted.
struct Task<'a> {
    body: Body<'a>,
    lines: u32,
}

enum Body<'a> {
    InOrder { arena: &'a Arena, pages: Vec<u32>, line_bytes: usize },
    Random { arena: &'a Arena },
    Code(Code<'a>),
}

impl<'a> Task<'a> {
    fn new(
        region: &'a mut ColoredRegion,
        line_bytes: usize,
        touches: Touches,
        walk: Walk,
        rng: &mut fastrand::Rng,
    ) -> Result<Task<'a>, HostError> {
        let lines = region.size().0 as usize / line_bytes;
        let body = match (touches, walk) {
            (Touches::Data, Walk::InOrder) => {
                let arena = region.arena();
                Body::InOrder { arena, pages: (0..arena.page_count() as u32).collect(), line_bytes }
            }
            (Touches::Data, Walk::Random) => {
                region.arena().extend_chain(0..lines, line_bytes, rng);
                Body::Random { arena: region.arena() }
            }
            (Touches::Code, walk) => {
                let visit = |line: usize| Visit { offset: (line * line_bytes) as u32, instructions: 1 };
                let mut visits: Vec<Visit> = (0..lines).map(visit).collect();
                if walk == Walk::Random {
                    rng.shuffle(&mut visits);
                }
                Body::Code(region.arena_mut().code(&visits).map_err(|source| HostError::NoCode { source })?)
            }
        };
        Ok(Task { body, lines: lines as u32 })
    }

    /// One iteration in two parts, with `between` after a quarter or half of it: the time of the parts alone.
    #[inline]
    fn iterate(&self, between: impl FnOnce()) -> Cycles {
        match &self.body {
            Body::InOrder { arena, pages, line_bytes } => {
                let half = pages.len() / 2;
                let touch = |pages: &[u32]| arena.touch(pages, *line_bytes);
                let begin = clock::now();
                touch(&pages[..half]);
                let leave = clock::now();
                between();
                let resume = clock::now();
                touch(&pages[half..]);
                for _ in 1..PASSES {
                    touch(pages);
                }
                let end = clock::now();
                Cycles((leave.0 - begin.0) + (end.0 - resume.0))
            }
            Body::Random { arena } => {
                let half = self.lines / 2;
                let (from, before) = arena.chase(0, half);
                between();
                let (_, after) = arena.chase(from, PASSES * self.lines - half);
                Cycles(before.0 + after.0)
            }
            Body::Code(code) => {
                let before = code.run(1);
                between();
                let after = code.run(u64::from(PASSES - 1));
                Cycles(before.0 + after.0)
            }
        }
    }

    fn job(&self, preempt: impl FnOnce()) -> Job {
        // Both are cut at the same place, so that what the cut costs is in both.
        let alone = self.iterate(|| {});
        Job { alone, preempted: self.iterate(preempt) }
    }
}

/// Measures on the calling thread, in memory of `pool`, whose colors are those of `target`.
///
/// `progress` is called after each block with the number done and of all; an interrupt ends the run after the block under way. Fails when
/// the pool has too few pages, and where memory cannot be made executable for code.
pub fn crpd(
    pool: &FramePool,
    target: Target,
    request: &CrpdRequest,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Block>, HostError> {
    let mut rng = fastrand::Rng::with_seed(request.seed);
    let mut order = Vec::new();
    for &percent in &request.percents {
        for walk in [Walk::InOrder, Walk::Random] {
            for partitioned in [false, true] {
                order.extend(vec![Condition { walk, partitioned, percent }; request.blocks]);
            }
        }
    }
    rng.shuffle(&mut order);
    let all: Vec<Color> = (0..pool.colors() as u16).map(Color).collect();
    let others: Vec<Color> = all.iter().copied().filter(|color| !request.colors.contains(color)).collect();
    let total = order.len();
    let mut blocks = Vec::with_capacity(total);
    for condition in order {
        if interrupt::interrupted() {
            break;
        }
        // Placement alone changes results, so each block has other pages.
        pool.shuffle(&mut rng);
        // The pre-empting task makes every line of its colors dirty.
        let flooded = if condition.partitioned { &others } else { &all };
        let flooder = Flooder::new(pool, target.geometry, None, flooded, Pattern::Write)?;
        let mut region = pool.take(&request.colors, request.pages(target, condition.percent))?;
        let line_bytes = target.geometry.line_bytes.0 as usize;
        let task = Task::new(&mut region, line_bytes, request.touches, condition.walk, &mut rng)?;
        blocks.push(block(&task, &flooder, condition, request, &mut rng));
        progress(blocks.len(), total);
    }
    Ok(blocks)
}

/// Pages of every color that the pool must have: a flood of all colors, and the largest working set.
pub fn pages_per_color(target: Target, request: &CrpdRequest) -> usize {
    let largest = request.percents.iter().map(|&percent| request.pages(target, percent)).max().unwrap_or(0);
    Flooder::pages_per_color(target.geometry, None) + largest.div_ceil(request.colors.len().max(1))
}

fn block(
    task: &Task<'_>,
    flooder: &Flooder,
    condition: Condition,
    request: &CrpdRequest,
    rng: &mut fastrand::Rng,
) -> Block {
    let mut kinds: Vec<bool> = (0..2 * request.jobs).map(|i| i % 2 == 0).collect();
    rng.shuffle(&mut kinds);
    for _ in 0..WARM_UP {
        task.job(|| {});
    }
    let (mut jobs, mut control) = (Vec::with_capacity(request.jobs), Vec::with_capacity(request.jobs));
    for flooded in kinds {
        // What the last flood or spin has left is brought back before the iteration that counts as left alone.
        task.iterate(|| {});
        if flooded {
            jobs.push(task.job(|| flooder.run()));
        } else {
            control.push(task.job(|| flooder.spin()));
        }
    }
    Block { condition, lines: u64::from(task.lines), jobs, control }
}
