//! The task and its controls, executed on the calling thread.
//!
//! The lines are visited in one random order, so that no prefetcher predicts it. Under LRU the order makes no difference. The control that
//! always misses has its pages in a quarter of the colors, where they do not fit.

use isochrome_host::color::Target;
use isochrome_host::color::pool::{ColoredRegion, FramePool};
use isochrome_host::counters::Counters;
use isochrome_host::error::SystemError;
use isochrome_host::sys::clock;
use isochrome_host::sys::code::Code;
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::miss_ratio::{Task, Touches, Visit};
use isochrome_model::units::{Bytes, Color, Cycles};

use super::{COLUMNS, Condition};
use crate::error::LabError;
use crate::runner::{Experiment, Recorder};
use crate::samples::{Arm, Judged};

/// Number of timed passes in a sample, after one that is not timed.
const PASSES: u64 = 4;
/// The control that always misses has its pages in one out of this many colors. Without colors it is this many times as large as the task.
const CROWDED: usize = 4;

/// The memory of a walk: of known colors or ordinary.
enum Memory {
    Colored(ColoredRegion),
    Plain(Arena),
}

impl Memory {
    fn take(pool: Option<&FramePool>, colors: &[Color], pages: usize) -> Result<Memory, LabError> {
        match pool {
            Some(pool) => Ok(Memory::Colored(pool.take(colors, pages)?)),
            None => Ok(Memory::Plain(Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?)),
        }
    }

    fn arena(&self) -> &Arena {
        match self {
            Memory::Colored(region) => region.arena(),
            Memory::Plain(arena) => arena,
        }
    }

    fn arena_mut(&mut self) -> &mut Arena {
        match self {
            Memory::Colored(region) => region.arena_mut(),
            Memory::Plain(arena) => arena,
        }
    }
}

/// The visited part of a line: the byte offset where it begins, and its number of words.
type Part = (u64, u64);

/// A loop over parts of lines.
struct Walk<'a> {
    body: Body<'a>,
    accesses: u64,
}

enum Body<'a> {
    Data { arena: &'a Arena, start: u64 },
    Code(Code<'a>),
}

impl<'a> Walk<'a> {
    fn new(memory: &'a mut Memory, parts: &[Part], touches: Touches) -> Result<Walk<'a>, LabError> {
        let accesses = parts.iter().map(|part| part.1).sum();
        match touches {
            Touches::Data => {
                let words: Vec<u64> = parts
                    .iter()
                    .flat_map(|(begin, words)| (0..*words).map(move |word| begin + word * touches.word_bytes()))
                    .collect();
                let arena = memory.arena();
                let next = words.iter().cycle().skip(1);
                arena.link(words.iter().zip(next).map(|(here, next)| (Bytes(*here), Bytes(*next))));
                Ok(Walk { body: Body::Data { arena, start: words[0] }, accesses })
            }
            Touches::Code => {
                let visits: Vec<Visit> = parts
                    .iter()
                    .map(|(offset, words)| Visit { offset: *offset as u32, instructions: *words as u32 })
                    .collect();
                let code = memory.arena_mut().code(&visits).map_err(|source| SystemError::NoCode { source })?;
                Ok(Walk { body: Body::Code(code), accesses })
            }
        }
    }

    fn run(&self, passes: u64) -> Cycles {
        match &self.body {
            Body::Data { arena, start } => arena.chase(*start, (passes * self.accesses) as u32).1,
            Body::Code(code) => code.run(passes),
        }
    }
}

/// Layout of the memory of a task and its controls.
struct Layout {
    pages: usize,
    colors: usize,
    lines_per_page: u64,
    line_bytes: u64,
    /// Divisor of the lines of a page: the control that always hits uses one out of this many lines.
    thinned: u64,
}

impl Layout {
    fn of(task: &Task, colors: usize) -> Layout {
        let line_bytes = task.geometry.line_bytes.0;
        let lines_per_page = page_bytes() as u64 / line_bytes;
        let pages = task.lines.div_ceil(lines_per_page) as usize;
        // The control fills at most half of the ways, so that no replacement policy evicts its lines.
        let thinned = (2 * pages.div_ceil(colors) as u64).div_ceil(u64::from(task.geometry.ways)).max(1);
        Layout { pages, colors, lines_per_page, line_bytes, thinned }
    }

    /// Returns the lines of the control that always hits: an equal share of the lines of each page, but other lines than in the next page of the
    /// same color.
    fn thin(&self) -> Vec<u64> {
        let all = 0..self.pages as u64 * self.lines_per_page;
        all.filter(|line| {
            let (page, within) = (line / self.lines_per_page, line % self.lines_per_page);
            within % self.thinned == page / self.colors as u64 % self.thinned
        })
        .collect()
    }

    fn parts(&self, lines: impl IntoIterator<Item = u64>, task: &Task, rng: &mut fastrand::Rng) -> Vec<Part> {
        let mut parts: Vec<Part> =
            lines.into_iter().map(|line| (line * self.line_bytes, task.words_of(line))).collect();
        rng.shuffle(&mut parts);
        parts
    }
}

/// Returns the number of pages of every color that the pool must have for `task` and its controls.
pub fn pages_per_color(task: &Task, colors: usize) -> usize {
    let own = Layout::of(task, colors).pages.div_ceil(colors);
    own * (2 + CROWDED) + 2
}

/// The experiment of executing a task of one size and its controls.
pub struct Walks<'a> {
    /// Memory whose colors are those of the target; `None` for ordinary memory.
    pub pool: Option<&'a FramePool>,
    /// The cache level whose misses are measured.
    pub target: Target,
    /// The task that is executed.
    pub task: Task,
    /// Counters of misses of the level; `None` if misses cannot be counted.
    pub counters: Option<&'a Counters>,
    /// Number of the try in a search, from 1.
    pub attempt: u64,
}

impl Experiment for Walks<'_> {
    type Condition = Condition;
    const JUDGED: Judged = super::JUDGED;

    fn columns(&self) -> Vec<String> {
        COLUMNS.map(str::to_owned).to_vec()
    }

    fn conditions(&self) -> Vec<Condition> {
        vec![Condition { attempt: self.attempt, lines: self.task.lines }]
    }

    fn block(&mut self, condition: Condition, recorder: &mut Recorder<Condition>) -> Result<(), LabError> {
        let (pool, task, rng) = (self.pool, &self.task, &mut recorder.rng);
        if let Some(pool) = pool {
            pool.shuffle(rng);
        }
        let all: Vec<Color> = (0..pool.map_or(1, FramePool::colors) as u16).map(Color).collect();
        let layout = Layout::of(task, pool.map_or_else(|| target_colors(self.target), |_| all.len()));
        // Without colors, the control that always misses has more pages instead of fewer colors.
        let few_colors = &all[..(all.len() / CROWDED).max(1)];
        let crowded_pages = if all.len() >= CROWDED { layout.pages } else { CROWDED * layout.pages };
        let crowded_lines = 0..crowded_pages as u64 * layout.lines_per_page;

        let mut own = Memory::take(pool, &all, layout.pages)?;
        let mut thin = Memory::take(pool, &all, layout.pages)?;
        let mut crowded = Memory::take(pool, few_colors, crowded_pages)?;
        let own = Walk::new(&mut own, &layout.parts(0..task.lines, task, rng), task.touches)?;
        let thin = Walk::new(&mut thin, &layout.parts(layout.thin(), task, rng), task.touches)?;
        let crowded = Walk::new(&mut crowded, &layout.parts(crowded_lines, task, rng), task.touches)?;
        let ns = 1e9 / clock::rate_hz() as f64;
        let sample = |walk: &Walk<'_>| -> Result<Vec<f64>, LabError> {
            walk.run(1);
            let accesses = (PASSES * walk.accesses) as f64;
            let before = self.counters.map(Counters::read);
            let ticks = walk.run(PASSES);
            // Where counters were taken away, the time is left.
            let counted = self.counters.zip(before).and_then(|(counters, before)| {
                Some(counters.between(&before.ok()?, &counters.read().ok()?).ok()?.values()[0])
            });
            let misses = counted.map_or(f64::NAN, |misses| misses as f64 / accesses);
            Ok(vec![ticks.0 as f64 * ns / accesses, misses])
        };
        recorder.measure(condition, &[Arm::Control, Arm::Treatment, Arm::Extreme], |arm| {
            let walk = match arm {
                Arm::Control | Arm::Reference => &thin,
                Arm::Treatment => &own,
                Arm::Extreme => &crowded,
            };
            sample(walk).map(Some)
        })
    }
}

fn target_colors(target: Target) -> usize {
    target.geometry.color_count(Bytes(page_bytes() as u64)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::miss_ratio::{By, conclude};
    use crate::runner::{Amount, run};
    use isochrome_model::geometry::Geometry;
    use isochrome_model::miss_ratio::Locality;
    use isochrome_model::units::CpuId;
    use std::collections::BTreeMap;

    fn task(touches: Touches) -> Task {
        let geometry = Geometry::of_size(Bytes(64 << 10), 4, Bytes(64)).unwrap();
        Task::of_ratio(touches, geometry, 0.5, Locality::Combined).unwrap()
    }

    #[test]
    fn the_control_that_hits_has_at_most_half_of_the_ways_in_every_set() {
        // 64 KiB, 4 ways: 4 colors of 64 sets.
        for pages_more in 0..9 {
            let mut task = task(Touches::Data);
            task.lines += pages_more * 64;
            let layout = Layout::of(&task, 4);
            let mut sets: BTreeMap<(u64, u64), u64> = BTreeMap::new();
            for line in layout.thin() {
                *sets.entry((line / 64 % 4, line % 64)).or_default() += 1;
            }
            // Half of the 4 ways are 2 lines.
            assert!(sets.values().all(|lines| *lines <= 2), "{sets:?}");
            assert!(sets.len() > 64, "the rest of the sets is not used: {}", sets.len());
        }
    }

    #[test]
    fn both_kinds_of_task_are_executed_and_timed() {
        let geometry = task(Touches::Data).geometry;
        let target = Target { level: 2, geometry, inner: Bytes(4096) };
        for touches in [Touches::Data, Touches::Code] {
            let mut walks = Walks { pool: None, target, task: task(touches), counters: None, attempt: 1 };
            let amount = Amount { blocks: 3, samples: 2, seed: 1, cpu: CpuId(0), limit: None };
            let blocks = run(&mut walks, &amount, &mut |_, _| {}).unwrap();
            let of = |arm| blocks.iter().flat_map(|block| block.rows(arm)).all(|row| row[0] > 0.0 && row[1].is_nan());
            assert!([Arm::Control, Arm::Treatment, Arm::Extreme].into_iter().all(of), "{blocks:?}");
            assert!((3..=12).contains(&blocks.len()));
            let executed = conclude(&walks.task, &blocks);
            assert!(executed.is_none_or(|executed| (executed.by, executed.counted) == (By::Time, None)));
        }
    }
}
