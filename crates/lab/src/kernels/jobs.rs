//! Running kernels as jobs under the conditions of [Liedtke1997, §5].
//!
//! Task and co-runner alternate on one CPU, like a real-time task and whatever runs between its releases. Before each part of a job the
//! co-runner either floods or, as the paired control, spins for as long as a flood takes; the choice is random. Blocks of all conditions are
//! interleaved at random, and each block runs on other pages.

use std::collections::BTreeMap;

use isochrome_host::color::eviction::{Canaries, TimedEvictionTest, WalkTicks};
use isochrome_host::color::pool::FramePool;
use isochrome_host::color::{ColorError, Target};
use isochrome_host::counters::Counters;
use isochrome_host::error::SystemError;
use isochrome_host::load::flooder::FLOOD_PAGES_PER_WAY;
use isochrome_host::load::kernels::{Filter, Kernel, KernelKind, Matmul, Matrices};
use isochrome_host::sys::clock;
use isochrome_host::sys::heap::{BackingMemory, Heap};
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::flood::{Flood, Leaves};
use isochrome_model::geometry::Geometry;
use isochrome_model::units::{Bytes, Color, Cycles};

use super::{At, Bench, Condition, conclude};
use crate::error::LabError;
use crate::runner::{Experiment, Recorder};
use crate::samples::{Arm, Block, Judged};

/// The work of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// One job of a short kernel of the given size.
    Short(KernelKind, usize),
    /// Matrix multiplication in time slices of the given length, with a flood before each.
    Matmul {
        /// Length of a time slice, in µs.
        slice_us: u64,
    },
    /// Matrix multiplication interrupted by the filter at the given rate.
    Combined {
        /// Interruptions per second of the time of the matrix multiplication.
        rate_hz: u64,
    },
}

/// Number of coefficients of the filter in [`Work::Combined`]. The filter has two arrays of 512 numbers of 64 bits, which are exactly two pages.
/// [Liedtke1997, §5.5]
const COMBINED_TAPS: usize = 511;
/// Number of time slices of one job of the matrix multiplication.
const SLICES: u64 = 4;
/// Pages of a job's heap beyond its working set, for headers and rounding.
const HEAP_SLACK: usize = 4;
/// Number of times that a flood traverses its memory.
const FLOOD_PASSES: u32 = 1;
/// Number of canary pages: few, so that they occupy little of the task's colors.
const CANARY_PAGES: usize = 4;
/// Unrecorded jobs before a block.
const WARM_UP_JOBS: usize = 3;
/// Greatest share of a color that a task's memory may fill. The rest is left for the stack and the kernel. It also allows for replacement that is not
/// exactly LRU.
const COLOR_FILL: f64 = 0.5;

impl Work {
    /// Returns the benchmark that the job belongs to.
    pub fn bench(self) -> Bench {
        match self {
            Work::Short(KernelKind::FilterF64 | KernelKind::FilterI32, _) => Bench::Filter,
            Work::Short(KernelKind::Dct, _) => Bench::Dct,
            Work::Short(KernelKind::Fft, _) => Bench::Fft,
            Work::Matmul { .. } => Bench::Matmul,
            Work::Combined { .. } => Bench::Combined,
        }
    }

    /// Returns the name of the experiment.
    pub fn name(self) -> &'static str {
        match self {
            Work::Short(KernelKind::FilterI32, _) => KernelKind::FilterF64.name(),
            Work::Short(kind, _) => kind.name(),
            Work::Matmul { .. } => "matmul",
            Work::Combined { .. } => "combined",
        }
    }

    /// Returns the name and the value of the problem size.
    pub fn parameter(self) -> (&'static str, u64) {
        match self {
            Work::Short(kind, size) => (kind.sizes().unit, size as u64),
            Work::Matmul { slice_us } => ("slice_us", slice_us),
            Work::Combined { rate_hz } => ("rate_hz", rate_hz),
        }
    }

    /// Returns the element type, `f64` or `i32`.
    pub fn element(self) -> &'static str {
        if matches!(self, Work::Short(KernelKind::FilterI32, _)) { "i32" } else { "f64" }
    }
}

/// Everything that jobs need to run: memory of known colors, the shape of the cache, and counters if there are any.
pub struct Jobs<'a> {
    /// Memory of known colors; `None` if the machine has no colors, and then only conditions without colors are run.
    pool: Option<&'a FramePool>,
    geometry: Geometry,
    /// Counters of level-2 and level-1 misses, in this order; `None` if misses cannot be counted.
    counters: Option<&'a Counters>,
    /// Times of walks over canary pages.
    walk_ticks: WalkTicks,
    /// Ticks that two readings of the clock take by themselves.
    clock_ticks: Cycles,
    /// Ticks of one step of the matrix multiplication.
    ticks_per_step: f64,
    /// The work of each experiment, with the memory that a job touches.
    works: Vec<(Work, Bytes)>,
    /// Colors of a task in partitioned conditions; `None` for as many colors as the memory of the task needs.
    colors: Option<Vec<Color>>,
}

/// The work that is timed, with the heap that holds its data. Fields drop in order, so the allocations are dropped before the heap that holds
/// them.
struct Task<M: BackingMemory> {
    body: Body,
    _heap: Heap<M>,
}

enum Body {
    Short(Box<dyn Kernel>),
    Long { matmul: Matmul, filter: Option<Filter<f64>>, steps: usize, slices: u64 },
}

impl Body {
    fn make(work: Work, ticks_per_step: f64) -> Result<Body, LabError> {
        let ticks_per_us = clock::rate_hz() as f64 / 1e6;
        let long = |slice_us: f64, filter: Option<Filter<f64>>| -> Result<Body, LabError> {
            let steps = (slice_us * ticks_per_us / ticks_per_step).round().max(1.0) as usize;
            Ok(Body::Long { matmul: Matmul::new(Matrices::allocate())?, filter, steps, slices: SLICES })
        };
        match work {
            Work::Short(kind, size) => Ok(Body::Short(kind.build(size)?)),
            Work::Matmul { slice_us } => long(slice_us as f64, None),
            Work::Combined { rate_hz } => {
                let memory = vec![0.0; Filter::<f64>::memory_len(COMBINED_TAPS)];
                long(1e6 / rate_hz as f64, Some(Filter::new_in(memory, COMBINED_TAPS)?))
            }
        }
    }

    /// Returns the number of parts of a job. The co-runner runs before each part.
    fn parts(&self) -> u64 {
        match self {
            Body::Short(_) => 1,
            Body::Long { slices, .. } => *slices,
        }
    }

    #[inline]
    fn run_part(&mut self) {
        match self {
            Body::Short(kernel) => kernel.job(),
            Body::Long { matmul, filter, steps, .. } => {
                if let Some(filter) = filter {
                    filter.job();
                }
                for _ in 0..*steps {
                    if !matmul.step() {
                        matmul.restart();
                    }
                }
            }
        }
    }

    fn working_set(&self) -> Bytes {
        match self {
            Body::Short(kernel) => kernel.working_set(),
            Body::Long { matmul, filter, .. } => {
                Bytes(matmul.working_set().0 + filter.as_ref().map_or(0, |f| f.working_set().0))
            }
        }
    }

    fn check(&self) -> Result<(), LabError> {
        match self {
            Body::Short(kernel) => kernel.check()?,
            Body::Long { matmul, filter, .. } => {
                matmul.check()?;
                filter.as_ref().map_or(Ok(()), Filter::check)?;
            }
        }
        Ok(())
    }
}

/// The co-runner, which runs between the parts of a job.
struct CoRunner {
    floods: Vec<(Box<dyn BackingMemory>, Flood)>,
}

impl CoRunner {
    #[inline]
    fn flood(&self) {
        for (memory, flood) in &self.floods {
            memory.arena().carry_out(flood.accesses());
        }
    }
}

impl<'a> Jobs<'a> {
    /// Returns jobs for each of `works` in the memory of `pool`, whose colors are those of `target`; without a pool, in ordinary memory only.
    /// `colors` are the colors of a task in partitioned conditions; with `None`, a task gets as many colors as its memory needs.
    ///
    /// Fails with [`LabError::NoCanaries`] if time does not tell hits from misses, because then no block could be accepted.
    pub fn new(
        pool: Option<&'a FramePool>,
        target: Target,
        counters: Option<&'a Counters>,
        works: &[Work],
        colors: Option<Vec<Color>>,
    ) -> Result<Jobs<'a>, LabError> {
        const CALIBRATIONS: u64 = 3;
        let sizes = target.sizes();
        let calibrated = |seed| -> Result<WalkTicks, ColorError> {
            let arena = Arena::map(1).map_err(|source| SystemError::Memory { pages: 1, source })?;
            Ok(TimedEvictionTest::calibrate(arena, sizes, seed)?.ticks())
        };
        // A disturbance may spoil a calibration.
        let walk_ticks = (1..CALIBRATIONS).map(calibrated).find(Result::is_ok).unwrap_or_else(|| calibrated(0));
        let walk_ticks = walk_ticks.map_err(|why| LabError::NoCanaries { why })?;
        Self::with_walk_ticks(pool, target, counters, works, colors, walk_ticks)
    }

    /// Does the same as [`new`](Self::new) where the times of walks over canary pages are known.
    pub fn with_walk_ticks(
        pool: Option<&'a FramePool>,
        target: Target,
        counters: Option<&'a Counters>,
        works: &[Work],
        colors: Option<Vec<Color>>,
        walk_ticks: WalkTicks,
    ) -> Result<Jobs<'a>, LabError> {
        let ticks_per_step = ticks_per_step()?;
        let with_memory = |work: &Work| Ok((*work, Body::make(*work, ticks_per_step)?.working_set()));
        let works = works.iter().map(with_memory).collect::<Result<_, LabError>>()?;
        let (geometry, clock_ticks) = (target.geometry, clock::overhead());
        Ok(Jobs { pool, geometry, counters, walk_ticks, clock_ticks, ticks_per_step, works, colors })
    }

    /// Returns the result of each problem size, concluded from `blocks`.
    pub fn conclude(&self, blocks: &[Block<At>]) -> Vec<super::Experiment> {
        let experiment = |(work, working_set): &(Work, Bytes)| {
            let (name, value) = work.parameter();
            let (conditions, gain_cycles) = conclude(blocks, work.bench(), value, &self.own_colors(*working_set));
            super::Experiment {
                bench: work.name().to_owned(),
                parameter: BTreeMap::from([(name.to_owned(), value)]),
                element: work.element().to_owned(),
                working_set: *working_set,
                conditions,
                gain_cycles,
            }
        };
        self.works.iter().map(experiment).collect()
    }

    /// Returns the colors of a task with `memory` bytes: the given colors, if any. Otherwise returns the first colors, as many as keep `memory`
    /// within [`COLOR_FILL`] of them, at most half of all colors.
    fn own_colors(&self, memory: Bytes) -> Vec<Color> {
        if let Some(colors) = &self.colors {
            return colors.clone();
        }
        let color_bytes = self.geometry.lines_per_color(Bytes(page_bytes() as u64)) * self.geometry.line_bytes.0;
        let wanted = (memory.0 as f64 / (color_bytes as f64 * COLOR_FILL)).ceil() as u32;
        let all = self.pool.map_or(0, FramePool::colors);
        (0..wanted.clamp(1, (all / 2).max(1)) as u16).map(Color).collect()
    }

    fn block_in<M: BackingMemory>(
        &self,
        [memory, canaries]: [M; 2],
        at: At,
        work: Work,
        own: &[Color],
        recorder: &mut Recorder<At>,
    ) -> Result<(), LabError> {
        let heap = Heap::new(memory)?;
        let body = heap.enter(|| Body::make(work, self.ticks_per_step))?;
        heap.check()?;
        let mut task = Task { body, _heap: heap };
        let line_bytes = self.geometry.line_bytes.0 as usize;
        let mut canaries = Canaries::new(canaries, line_bytes, self.walk_ticks, recorder.rng.u64(..));
        let co_runner = self.co_runner(at.condition, own)?;
        let spin = flood_ticks(&co_runner);
        for _ in 0..WARM_UP_JOBS {
            self.job(&mut task.body, &mut canaries, || {});
        }
        recorder.measure(at, &[Arm::Control, Arm::Treatment], |arm| {
            Ok(Some(if arm == Arm::Treatment && at.condition != Condition::Alone {
                self.job(&mut task.body, &mut canaries, || co_runner.flood())
            } else {
                self.job(&mut task.body, &mut canaries, || clock::spin_until(Cycles(clock::now().0 + spin.0)))
            }))
        })?;
        task.body.check()
    }

    /// Runs one job and returns its values in the order of [`COLUMNS`](super::COLUMNS). `co_run` runs before each part and is not timed.
    #[inline]
    fn job<M: BackingMemory>(&self, body: &mut Body, canaries: &mut Canaries<M>, co_run: impl Fn()) -> Vec<f64> {
        let parts = body.parts();
        let (mut cycles, mut lost) = (0, 0.0);
        let mut misses = [0u64; 2];
        let mut counted = self.counters.is_some();
        for _ in 0..parts {
            canaries.refresh();
            co_run();
            lost += canaries.lost();
            let before = self.counters.map(Counters::read);
            let begin = clock::now();
            body.run_part();
            let end = clock::now();
            cycles += (end.0 - begin.0).saturating_sub(self.clock_ticks.0);
            if let (Some(counters), Some(before)) = (self.counters, before) {
                match before.and_then(|before| counters.between(&before, &counters.read()?)) {
                    Ok(counts) => misses.iter_mut().zip(counts.values()).for_each(|(sum, count)| *sum += count),
                    Err(_) => counted = false,
                }
            }
        }
        let events = self.counters.map_or(0, |counters| counters.events().len());
        let of = |event: usize| if counted && event < events { misses[event] as f64 } else { f64::NAN };
        vec![cycles as f64, of(0), of(1), lost / parts as f64]
    }

    fn co_runner(&self, condition: Condition, own: &[Color]) -> Result<CoRunner, LabError> {
        let flood = |memory: Box<dyn BackingMemory>, leaves: Leaves| -> (Box<dyn BackingMemory>, Flood) {
            let area = Bytes((memory.arena().page_count() * page_bytes()) as u64);
            let flood = Flood { area, line_bytes: self.geometry.line_bytes, passes: FLOOD_PASSES, leaves };
            // Makes the memory resident and dirty before anything is timed.
            memory.arena().carry_out(Flood { passes: 1, leaves: Leaves::Dirty, ..flood }.accesses());
            (memory, flood)
        };
        let Some(pool) = self.pool else {
            let pages = FLOOD_PAGES_PER_WAY * self.geometry.cache_bytes().0 as usize / page_bytes();
            let arena = Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?;
            return Ok(CoRunner { floods: vec![flood(Box::new(arena), Leaves::Dirty)] });
        };
        let colored = |colors: &[Color], leaves: Leaves| -> Result<(Box<dyn BackingMemory>, Flood), LabError> {
            let pages = colors.len() * FLOOD_PAGES_PER_WAY * self.geometry.ways as usize;
            Ok(flood(Box::new(pool.take(colors, pages)?), leaves))
        };
        let all: Vec<Color> = (0..pool.colors() as u16).map(Color).collect();
        let others: Vec<Color> = all.iter().copied().filter(|color| !own.contains(color)).collect();
        let floods = match condition {
            Condition::Alone | Condition::Unpartitioned => vec![colored(&all, Leaves::Dirty)?],
            Condition::Partitioned => vec![colored(&others, Leaves::Dirty)?],
            Condition::SingleWriter => vec![colored(&others, Leaves::Dirty)?, colored(own, Leaves::Clean)?],
        };
        Ok(CoRunner { floods })
    }
}

impl Experiment for Jobs<'_> {
    type Condition = At;
    const JUDGED: Judged = super::JUDGED;

    fn columns(&self) -> Vec<String> {
        super::COLUMNS.map(str::to_owned).to_vec()
    }

    fn conditions(&self) -> Vec<At> {
        use Condition::{Alone, Partitioned, SingleWriter, Unpartitioned};
        let conditions: &[Condition] = match self.pool {
            Some(_) => &[Alone, Unpartitioned, Partitioned, SingleWriter],
            None => &[Alone, Unpartitioned],
        };
        let of = |(work, _): &(Work, Bytes)| {
            let (bench, size) = (work.bench(), work.parameter().1);
            conditions.iter().map(move |&condition| At { bench, size, condition }).collect::<Vec<_>>()
        };
        self.works.iter().flat_map(of).collect()
    }

    fn block(&mut self, at: At, recorder: &mut Recorder<At>) -> Result<(), LabError> {
        let of = |(work, _): &&(Work, Bytes)| (work.bench(), work.parameter().1) == (at.bench, at.size);
        let &(work, working_set) = self.works.iter().find(of).expect("conditions are made of the works");
        let own = self.own_colors(working_set);
        let pages = [working_set.0.div_ceil(page_bytes() as u64) as usize + HEAP_SLACK, CANARY_PAGES];
        if let Some(pool) = self.pool {
            pool.shuffle(&mut recorder.rng);
        }
        if let Some(pool) = self.pool.filter(|_| has_own_colors(at.condition)) {
            let take = |pages| pool.take(&own, pages);
            self.block_in([take(pages[0])?, take(pages[1])?], at, work, &own, recorder)
        } else {
            let map = |pages| Arena::map(pages).map_err(|source| SystemError::Memory { pages, source });
            self.block_in([map(pages[0])?, map(pages[1])?], at, work, &own, recorder)
        }
    }
}

fn has_own_colors(condition: Condition) -> bool {
    matches!(condition, Condition::Partitioned | Condition::SingleWriter)
}

/// Returns the median time of five floods, in ticks.
fn flood_ticks(co_runner: &CoRunner) -> Cycles {
    let mut times = [0u64; 5];
    for time in &mut times {
        let begin = clock::now();
        co_runner.flood();
        *time = clock::now().0 - begin.0;
    }
    times.sort_unstable();
    Cycles(times[2])
}

/// Returns the ticks of one step of the matrix multiplication with warm caches, by the shortest of several products.
fn ticks_per_step() -> Result<f64, LabError> {
    let mut matmul = Matmul::new(Matrices::allocate())?;
    let mut shortest = u64::MAX;
    for _ in 0..50 {
        matmul.restart();
        let begin = clock::now();
        while matmul.step() {}
        shortest = shortest.min(clock::now().0 - begin.0);
    }
    Ok(shortest as f64 / Matmul::STEPS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_refused_where_time_does_not_tell_lost_canary_lines() {
        // The pages that should evict a level of 4 KiB fit into every first level, so nothing is evicted.
        let geometry = Geometry { set_count: 64, ways: 1, line_bytes: Bytes(64) };
        let target = Target { level: 2, geometry, inner: Bytes(0) };
        let refused = Jobs::new(None, target, None, &[Work::Short(KernelKind::Dct, 8)], None).err();
        let text = refused.expect("no block could be accepted").to_string();
        assert!(text.contains("no block can be accepted") && text.contains("hint:"), "{text}");
    }
}
