//! Tasks with a set miss ratio, executed here: [`isochrome_model::miss_ratio`].
//!
//! The lines are visited in one random order, so that no prefetcher foresees it; under LRU the order makes no difference. Where misses of the
//! level are counted, counters tell the ratio. Elsewhere time does, against two controls with as many pages, hence the same translation of
//! addresses: one whose lines all fit, and one whose pages lie in a quarter of the colors, so that none do. They take
//! turns, the task between two of the first control.

use isochrome_model::miss_ratio::{Task, Touches, Visit};
use isochrome_model::stats::{all_quiet, median};
use isochrome_model::units::{Bytes, Color, Cycles};
use serde::Serialize;

use crate::counters::Counters;
use crate::error::HostError;
use crate::interrupt;
use crate::palette::Target;
use crate::pool::{ColoredRegion, FramePool};
use crate::sys::clock;
use crate::sys::memory::{Arena, page_bytes};

/// Passes in a turn that count, after one that does not.
const PASSES: u64 = 4;
/// Quiet turns after which there are enough.
const QUIET_ENOUGH: usize = 20;
/// How many times as many turns are made at most while too few are quiet.
const MORE: usize = 5;
/// Turns whose controls are so much slower than the quietest do not count.
const TOLERANCE: f64 = 0.1;
/// Of how many colors the control that always misses has one, and how many times as large it is where there are no colors.
const CROWDED: usize = 4;

/// How the ratio was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Counters of misses.
    Counters,
    /// Time between that of two controls.
    Time,
}

/// A task that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Executed {
    /// Misses per access: the median over quiet turns.
    pub miss_ratio: f64,
    /// How it was told.
    pub by: By,
    /// Time per access, in ns.
    pub access_ns: f64,
    /// The same of the control that always hits.
    pub hit_ns: f64,
    /// The same of the control that always misses.
    pub miss_ns: f64,
    /// Turns of each.
    pub turns: u64,
    /// Those that count.
    pub turns_quiet: u64,
    /// Whether its pages have colors in turn. Otherwise some sets have more of its lines than others, and the prediction is for another task.
    pub colored: bool,
}

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadRequest {
    /// Turns of the task and of each control.
    pub turns: usize,
    /// Seed of every random choice.
    pub seed: u64,
}

/// Memory of a walk.
enum Memory {
    Colored(ColoredRegion),
    Plain(Arena),
}

impl Memory {
    fn take(pool: Option<&FramePool>, colors: &[Color], pages: usize) -> Result<Memory, HostError> {
        match pool {
            Some(pool) => Ok(Memory::Colored(pool.take(colors, pages)?)),
            None => Ok(Memory::Plain(Arena::map(pages).map_err(|source| HostError::Memory { pages, source })?)),
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

/// Part of a line that is visited: the byte where it begins, and how many words.
type Part = (u64, u64);

/// A loop over parts of lines.
struct Walk<'a> {
    body: Body<'a>,
    accesses: u64,
}

enum Body<'a> {
    Data { arena: &'a Arena, start: u64 },
    Code(crate::sys::code::Code<'a>),
}

impl<'a> Walk<'a> {
    fn new(memory: &'a mut Memory, parts: &[Part], touches: Touches) -> Result<Walk<'a>, HostError> {
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
                let code = memory.arena_mut().code(&visits).map_err(|source| HostError::NoCode { source })?;
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

/// How the memory of a task and its controls is laid out.
struct Layout {
    pages: usize,
    colors: usize,
    lines_per_page: u64,
    line_bytes: u64,
    /// Of how many lines of a page the control that always hits has one.
    thinned: u64,
}

impl Layout {
    fn of(task: &Task, colors: usize) -> Layout {
        let line_bytes = task.geometry.line_bytes.0;
        let lines_per_page = page_bytes() as u64 / line_bytes;
        let pages = task.lines.div_ceil(lines_per_page) as usize;
        // Half of the ways, by which no replacement loses a line.
        let thinned = (2 * pages.div_ceil(colors) as u64).div_ceil(u64::from(task.geometry.ways)).max(1);
        Layout { pages, colors, lines_per_page, line_bytes, thinned }
    }

    /// Lines of the control that always hits: of each page an equal part, another one than of the next page of its color.
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

/// Pages of every color that the pool must have for `task`: its own, and those of the controls.
pub fn pages_per_color(task: &Task, colors: usize) -> usize {
    let own = Layout::of(task, colors).pages.div_ceil(colors);
    own * (2 + CROWDED) + 2
}

/// Executes `task` on the calling thread, in memory of `pool` if there is one, whose colors are those of `target`.
///
/// `counters`: of misses of the level first. An interrupt ends it after the turn under way; `None` when there was none by then. Fails when
/// the pool has too few pages, and where memory cannot be made executable.
pub fn execute(
    pool: Option<&FramePool>,
    target: Target,
    task: &Task,
    counters: Option<&Counters>,
    request: &WorkloadRequest,
) -> Result<Option<Executed>, HostError> {
    let mut rng = fastrand::Rng::with_seed(request.seed);
    let all: Vec<Color> = (0..pool.map_or(1, FramePool::colors) as u16).map(Color).collect();
    let layout = Layout::of(task, pool.map_or_else(|| target_colors(target), |_| all.len()));
    // Without colors to crowd into there are more pages instead.
    let crowd = &all[..(all.len() / CROWDED).max(1)];
    let crowded_pages = if all.len() >= CROWDED { layout.pages } else { CROWDED * layout.pages };

    let mut own = Memory::take(pool, &all, layout.pages)?;
    let mut thin = Memory::take(pool, &all, layout.pages)?;
    let mut crowded = Memory::take(pool, crowd, crowded_pages)?;
    let walks = [
        Walk::new(&mut own, &layout.parts(0..task.lines, task, &mut rng), task.touches)?,
        Walk::new(&mut thin, &layout.parts(layout.thin(), task, &mut rng), task.touches)?,
        Walk::new(
            &mut crowded,
            &layout.parts(0..crowded_pages as u64 * layout.lines_per_page, task, &mut rng),
            task.touches,
        )?,
    ];
    let ns = 1e9 / clock::rate_hz() as f64;
    let time = |walk: &Walk<'_>| {
        walk.run(1);
        walk.run(PASSES).0 as f64 * ns / (PASSES * walk.accesses) as f64
    };
    let [own, thin, crowded] = &walks;
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut counted = Vec::new();
    let mut quiet = Vec::new();
    while times[0].len() < MORE * request.turns && !interrupt::interrupted() {
        for _ in 0..request.turns {
            // The task between two controls: what disturbs others' lines disturbs those of one of them.
            let before = time(thin);
            own.run(1);
            let reading = counters.map(Counters::read).transpose()?;
            let ticks = own.run(PASSES);
            if let (Some(counters), Some(reading)) = (counters, reading) {
                let counts = counters.between(&reading, &counters.read()?)?;
                counted.push(counts.values()[0] as f64 / (PASSES * own.accesses) as f64);
            }
            times[0].push(ticks.0 as f64 * ns / (PASSES * own.accesses) as f64);
            times[1].push(before.max(time(thin)));
            times[2].push(time(crowded));
        }
        let picoseconds: Vec<u64> = times[1].iter().map(|ns| (ns * 1000.0) as u64).collect();
        quiet = all_quiet(&picoseconds, TOLERANCE);
        if quiet.len() >= QUIET_ENOUGH {
            break;
        }
    }
    if times[0].is_empty() {
        return Ok(None);
    }
    let of = |values: &[f64]| median(&quiet.iter().map(|turn| values[*turn]).collect::<Vec<_>>()).unwrap_or_default();
    let share = |turn: &usize| (times[0][*turn] - times[1][*turn]) / (times[2][*turn] - times[1][*turn]);
    let shares: Vec<f64> = quiet.iter().map(share).filter(|share| share.is_finite()).collect();
    // Of the lines; of the accesses, as many as there are words of a line.
    let per_access = task.lines as f64 / task.accesses_per_pass() as f64;
    let by_time = median(&shares).unwrap_or_default() * per_access;
    let (miss_ratio, by) = if counted.is_empty() { (by_time, By::Time) } else { (of(&counted), By::Counters) };
    Ok(Some(Executed {
        miss_ratio,
        by,
        access_ns: of(&times[0]),
        hit_ns: of(&times[1]),
        miss_ns: of(&times[2]),
        turns: times[0].len() as u64,
        turns_quiet: quiet.len() as u64,
        colored: pool.is_some(),
    }))
}

fn target_colors(target: Target) -> usize {
    let page = isochrome_model::units::Bytes(page_bytes() as u64);
    target.geometry.color_count(page) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_model::geometry::Geometry;
    use isochrome_model::miss_ratio::Locality;
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
            // Equal parts of a page differ by a line, pages by a page.
            assert!(sets.values().all(|lines| *lines <= 2), "{sets:?}");
            assert!(sets.len() > 64, "the rest of the sets is not used: {}", sets.len());
        }
    }

    #[test]
    fn both_kinds_of_task_are_executed_and_timed() {
        let geometry = task(Touches::Data).geometry;
        let target = Target { level: 2, geometry, inner: Bytes(4096) };
        for touches in [Touches::Data, Touches::Code] {
            let request = WorkloadRequest { turns: 3, seed: 1 };
            let executed = execute(None, target, &task(touches), None, &request).unwrap().unwrap();
            assert!(executed.access_ns > 0.0 && executed.hit_ns > 0.0 && executed.miss_ns > 0.0, "{executed:?}");
            assert_eq!((executed.by, executed.colored), (By::Time, false));
            assert!((3..=15).contains(&executed.turns));
        }
    }
}
