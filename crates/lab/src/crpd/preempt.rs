//! Measurement of the cache-related delay of a preemption: the experiment of [Sebek2002, §3.5].
//!
//! Task and preempting task alternate in one thread, so the direct cost of a context switch is not part of the delay. The iteration has two
//! passes, so that every line evicted in the middle of the first is missed once, whether it would have been used later in that pass or early in
//! the next. Machine code runs whole passes, so it is preempted between them, with the same effect.

use isochrome_host::color::Target;
use isochrome_host::color::pool::{ColoredRegion, FramePool};
use isochrome_host::error::SystemError;
use isochrome_host::load::flooder::Flooder;
use isochrome_host::sys::clock;
use isochrome_host::sys::code::Code;
use isochrome_host::sys::memory::Arena;
use isochrome_model::flood::Pattern;
use isochrome_model::miss_ratio::{Touches, Visit};
use isochrome_model::units::{Color, Cycles};

use super::{Condition, Walk};
use crate::error::LabError;
use crate::runner::{Experiment, Recorder};
use crate::samples::{Arm, Judged};

/// Number of times that the preempting task writes over its memory. Some caches do not keep a stream of stores, so one pass evicts little. On
/// AMD Zen 5 one pass delays a random walk of half the level by 1.6 us, and two by 8.5 us.
const FLOOD_PASSES: u32 = 2;

/// Number of passes over the working set in an iteration.
pub const PASSES: u32 = 2;
/// Unrecorded jobs before a block.
const WARM_UP: usize = 3;

/// The experiment of preempting a task whose working set lies in some colors.
pub struct Preempting<'a> {
    /// Memory whose colors are those of the target.
    pub pool: &'a FramePool,
    /// The level that is flooded.
    pub target: Target,
    /// Whether the working set is data or code.
    pub touches: Touches,
    /// Number of code lines from one jump to the next. See [`Crpd::lines_per_jump`](super::Crpd::lines_per_jump).
    pub lines_per_jump: u32,
    /// Sizes of the working set, in percent of its colors.
    pub percents: Vec<u32>,
    /// Colors of the working set.
    pub colors: Vec<Color>,
}

/// Returns the number of pages of a working set that fills `percent` of `colors` colors; at least one.
fn pages(target: Target, colors: usize, percent: u32) -> usize {
    (colors * target.geometry.ways as usize * percent as usize).div_ceil(100).max(1)
}

/// The task that is preempted.
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
        experiment: &Preempting,
        walk: Walk,
        rng: &mut fastrand::Rng,
    ) -> Result<Task<'a>, LabError> {
        let line_bytes = experiment.target.geometry.line_bytes.0 as usize;
        let lines = region.size().0 as usize / line_bytes;
        let body = match (experiment.touches, walk) {
            (Touches::Data, Walk::InOrder) => {
                let arena = region.arena();
                Body::InOrder { arena, pages: (0..arena.page_count() as u32).collect(), line_bytes }
            }
            (Touches::Data, Walk::Random) => {
                region.arena().extend_chain(0..lines, line_bytes, rng);
                Body::Random { arena: region.arena() }
            }
            (Touches::Code, walk) => {
                // The first word of the last line is the jump, and the words before it do nothing.
                let words_per_line = line_bytes / Touches::Code.word_bytes() as usize;
                let visit = |line: usize| {
                    let last = (lines - line).min(experiment.lines_per_jump as usize) - 1;
                    Visit { offset: (line * line_bytes) as u32, instructions: (last * words_per_line + 1) as u32 }
                };
                let mut visits: Vec<Visit> =
                    (0..lines).step_by(experiment.lines_per_jump as usize).map(visit).collect();
                if walk == Walk::Random {
                    rng.shuffle(&mut visits);
                }
                Body::Code(region.arena_mut().code(&visits).map_err(|source| SystemError::NoCode { source })?)
            }
        };
        Ok(Task { body, lines: lines as u32 })
    }

    /// Runs one iteration, calls `between` after a quarter or half of it, and returns the ticks of the iteration without those of `between`.
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

    fn job(&self, preempt: impl FnOnce()) -> Vec<f64> {
        // Both iterations are split at the same place, so that both include the cost of the split.
        let alone = self.iterate(|| {});
        let preempted = self.iterate(preempt);
        vec![f64::from(self.lines), alone.0 as f64, preempted.0 as f64]
    }
}

impl Preempting<'_> {
    /// Returns the number of pages of every color that the pool must have, for a flood of all colors and the largest working set.
    pub fn pages_per_color(target: Target, percents: &[u32], colors: usize) -> usize {
        let largest = percents.iter().map(|&percent| pages(target, colors, percent)).max().unwrap_or(0);
        Flooder::pages_per_color(target.geometry, None) + largest.div_ceil(colors.max(1))
    }
}

impl Experiment for Preempting<'_> {
    type Condition = Condition;
    const JUDGED: Judged = super::JUDGED;

    fn columns(&self) -> Vec<String> {
        super::COLUMNS.map(str::to_owned).to_vec()
    }

    fn conditions(&self) -> Vec<Condition> {
        let of = |percent: u32| {
            [(Walk::InOrder, false), (Walk::InOrder, true), (Walk::Random, false), (Walk::Random, true)]
                .map(|(walk, partitioned)| Condition { walk, partitioned, percent })
        };
        self.percents.iter().copied().flat_map(of).collect()
    }

    fn block(&mut self, condition: Condition, recorder: &mut Recorder<Condition>) -> Result<(), LabError> {
        // Placement alone changes results, so each block has other pages.
        self.pool.shuffle(&mut recorder.rng);
        let all = (0..self.pool.colors() as u16).map(Color);
        let flooded: Vec<Color> = all.filter(|color| !(condition.partitioned && self.colors.contains(color))).collect();
        // The preempting task makes every line of its colors dirty.
        let flooder =
            Flooder::new(self.pool, self.target.geometry, None, &flooded, Pattern::Write)?.with_passes(FLOOD_PASSES);
        let mut region = self.pool.take(&self.colors, pages(self.target, self.colors.len(), condition.percent))?;
        let task = Task::new(&mut region, self, condition.walk, &mut recorder.rng)?;
        for _ in 0..WARM_UP {
            task.job(|| {});
        }
        recorder.measure(condition, &[Arm::Control, Arm::Treatment], |arm| {
            // This unrecorded iteration reloads the lines that the last flood or spin has evicted.
            task.iterate(|| {});
            Ok(Some(task.job(|| if arm == Arm::Treatment { flooder.run() } else { flooder.spin() })))
        })
    }
}
