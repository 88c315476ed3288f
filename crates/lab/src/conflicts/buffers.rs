//! The experiment of \[Hanemaaijer1993\]: how the time to walk over a buffer depends on where its pages lie.
//!
//! Buffers as large as the cache are made of pages of balanced, random and deliberately conflicting colors. All buffers exist at once and are
//! walked over in rounds, in random order, so that a passing disturbance of the core affects all of them alike. Noise only lengthens a walk, so
//! the shortest of all rounds counts.

use isochrome_host::color::Target;
use isochrome_host::color::pool::{ColoredRegion, FramePool};
use isochrome_host::sys::clock;
use isochrome_host::sys::memory::page_bytes;
use isochrome_model::placement::{ColorShape, Placement};
use isochrome_model::units::{Bytes, Color};

use super::{BufferWalk, Condition, Conflicts, Placing};
use crate::error::LabError;
use crate::runner::{Experiment, Recorder};
use crate::samples::{Arm, Block, Judged, accept};

/// Number of timed walks of each kind over a buffer in one round, after an untimed walk that loads the lines that fit.
const WALKS: usize = 2;

/// The experiment of walking over buffers, which all exist at once.
pub struct Walks {
    shape: ColorShape,
    level: u8,
    line_bytes: usize,
    buffers: Vec<(Condition, ColoredRegion, Placement)>,
}

fn shape_of(target: Target, colors: u32) -> ColorShape {
    ColorShape::of(&target.geometry, colors, Bytes(page_bytes() as u64))
}

/// Returns the colors of the pages of `count` buffers of each placing.
fn colors_of_buffers(count: u32, seed: u64, shape: ColorShape) -> Vec<(Condition, Vec<Color>)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let placings = [Placing::Balanced, Placing::Random, Placing::Conflicting].repeat(count as usize);
    let condition = |(placing, buffer)| Condition { placing, buffer };
    placings.into_iter().zip(0..).map(condition).map(|it| (it, page_colors(it.placing, shape, &mut rng))).collect()
}

/// Returns the number of pages of every color that the pool must have for `count` buffers of each placing.
pub fn pages_per_color(target: Target, count: u32, seed: u64) -> usize {
    let shape = shape_of(target, target.geometry.color_count(Bytes(page_bytes() as u64)));
    let all = colors_of_buffers(count, seed, shape).into_iter().flat_map(|(_, colors)| colors);
    Placement::of_colors(all, shape.colors).per_color.into_iter().max().unwrap_or(0) as usize
}

impl Walks {
    /// Returns walks over `count` buffers of each placing in memory of `pool`, whose colors are those of `target`.
    ///
    /// Fails if the pool has fewer pages of a color than [`pages_per_color`] returns.
    pub fn new(pool: &FramePool, target: Target, count: u32, seed: u64) -> Result<Walks, LabError> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let shape = shape_of(target, pool.colors());
        let line_bytes = target.geometry.line_bytes.0 as usize;
        let mut buffers = Vec::new();
        for (condition, colors) in colors_of_buffers(count, seed, shape) {
            let region = pool.take(&colors, colors.len())?;
            region.arena().extend_chain(0..lines(&region, line_bytes), line_bytes, &mut rng);
            buffers.push((condition, region, Placement::of_colors(colors, shape.colors)));
        }
        Ok(Walks { shape, level: target.level, line_bytes, buffers })
    }

    /// Returns the result of all accepted `blocks`. The shortest walk over each buffer counts, as noise only lengthens a walk.
    pub fn conclude(&self, blocks: &[Block<Condition>]) -> Conflicts {
        let accepted = accept(blocks, &super::JUDGED);
        let walk = |(condition, _, placement): &(Condition, ColoredRegion, Placement)| {
            let of = accepted.iter().find(|accepted| accepted.condition == *condition)?;
            let shortest = |column: usize| of.values(Arm::Treatment, |ns| ns[column]).into_iter().reduce(f64::min);
            Some(BufferWalk {
                placing: condition.placing,
                sum: placement.sum(self.shape.ways),
                excess: placement.excess(self.shape.ways),
                linear_ns: shortest(0)?,
                random_ns: shortest(1)?,
            })
        };
        Conflicts {
            level: self.level,
            shape: self.shape,
            page_bytes: Bytes(page_bytes() as u64),
            pages: u64::from(self.shape.colors) * u64::from(self.shape.ways),
            rounds: accepted.iter().map(|accepted| accepted.n()).min().unwrap_or(0) as u32,
            counter_hz: Some(clock::rate_hz()),
            walks: self.buffers.iter().filter_map(walk).collect(),
        }
    }
}

impl Experiment for Walks {
    type Condition = Condition;
    const JUDGED: Judged = super::JUDGED;

    fn columns(&self) -> Vec<String> {
        super::COLUMNS.map(str::to_owned).to_vec()
    }

    fn conditions(&self) -> Vec<Condition> {
        self.buffers.iter().map(|(condition, ..)| *condition).collect()
    }

    fn block(&mut self, condition: Condition, recorder: &mut Recorder<Condition>) -> Result<(), LabError> {
        let region = &self.buffers[condition.buffer as usize].1;
        let arena = region.arena();
        let pages: Vec<u32> = (0..arena.page_count() as u32).collect();
        let steps = lines(region, self.line_bytes) as u32;
        let ns = |ticks: u64| ticks as f64 * 1e9 / clock::rate_hz() as f64;
        let linear = || {
            let begin = clock::now();
            arena.touch(&pages, self.line_bytes);
            clock::now().0 - begin.0
        };
        let random = || arena.chase(0, steps).1.0;
        let shortest = |walk: &dyn Fn() -> u64| {
            walk();
            (0..WALKS).map(|_| walk()).min().unwrap_or_default()
        };
        recorder.measure(condition, &[Arm::Treatment], |_| Ok(Some(vec![ns(shortest(&linear)), ns(shortest(&random))])))
    }
}

fn lines(region: &ColoredRegion, line_bytes: usize) -> usize {
    region.size().0 as usize / line_bytes
}

/// Returns the color of each page of a buffer that is as large as the cache.
fn page_colors(placing: Placing, shape: ColorShape, rng: &mut fastrand::Rng) -> Vec<Color> {
    let (colors, ways) = (shape.colors as u16, shape.ways as usize);
    let mut pages: Vec<Color> = match placing {
        Placing::Balanced => (0..colors).flat_map(|color| std::iter::repeat_n(Color(color), ways)).collect(),
        Placing::Random => (0..usize::from(colors) * ways).map(|_| Color(rng.u16(..colors))).collect(),
        Placing::Conflicting => {
            let mut all: Vec<u16> = (0..colors).collect();
            rng.shuffle(&mut all);
            // This many colors get twice as many pages as they have ways, and equally many colors get none.
            let overfull = rng.usize(1..=all.len() / 2);
            let held = |i: usize| {
                if i < overfull {
                    2 * ways
                } else if i < 2 * overfull {
                    0
                } else {
                    ways
                }
            };
            all.iter().enumerate().flat_map(|(i, color)| std::iter::repeat_n(Color(*color), held(i))).collect()
        }
    };
    rng.shuffle(&mut pages);
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placing_fills_the_cache_and_conflicts_as_it_says() {
        let shape = ColorShape { colors: 16, ways: 8, page_lines: 64 };
        let mut rng = fastrand::Rng::with_seed(1);
        let mut sums = Vec::new();
        for _ in 0..100 {
            for placing in [Placing::Balanced, Placing::Random, Placing::Conflicting] {
                let placement = Placement::of_colors(page_colors(placing, shape, &mut rng), 16);
                assert_eq!(placement.pages(), 128);
                match placing {
                    Placing::Balanced => assert_eq!(placement.sum(8), 0),
                    Placing::Random => assert!(placement.sum(8) > 0),
                    Placing::Conflicting => {
                        assert_eq!(placement.sum(8), 2 * placement.excess(8));
                        sums.push(placement.sum(8));
                    }
                }
            }
        }
        // One to eight overfull colors have 16 pages each.
        assert_eq!((sums.iter().min(), sums.iter().max()), (Some(&16), Some(&128)));
    }
}
