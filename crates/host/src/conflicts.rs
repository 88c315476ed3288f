//! The experiment of \[Hanemaaijer1993\]: how the time to walk over a buffer depends on where its pages lie.
//!
//! Buffers as large as the cache are made of pages of balanced, random and deliberately conflicting colors. All exist at once and are
//! walked over in rounds, in random order: whatever else the core does for a while meets them all alike. Noise only lengthens a walk, so
//! the shortest of all rounds counts.

use isochrome_model::evidence::{Conflicts, PlacedWalk, Placing};
use isochrome_model::placement::{ColorShape, Placement};
use isochrome_model::units::{Bytes, Color, Cycles};

use crate::error::HostError;
use crate::interrupt;
use crate::palette::Target;
use crate::pool::{ColoredRegion, FramePool};
use crate::sys::clock;
use crate::sys::memory::page_bytes;

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct ConflictsRequest {
    /// Buffers of each placing.
    pub buffers: usize,
    /// Rounds over all buffers.
    pub rounds: u32,
    /// Seed of every random choice.
    pub seed: u64,
}

/// Walks of each kind over a buffer in one round; one more before them brings in what fits.
const WALKS: usize = 2;

/// A buffer and the shortest walks over it so far.
struct Buffer {
    region: ColoredRegion,
    placing: Placing,
    placement: Placement,
    linear: Cycles,
    random: Cycles,
}

fn shape_of(target: Target, colors: u32) -> ColorShape {
    ColorShape::of(&target.geometry, colors, Bytes(page_bytes() as u64))
}

/// Colors of the pages of all buffers.
fn buffers(request: ConflictsRequest, shape: ColorShape) -> Vec<(Placing, Vec<Color>)> {
    let mut rng = fastrand::Rng::with_seed(request.seed);
    let placings = [Placing::Balanced, Placing::Random, Placing::Conflicting].repeat(request.buffers);
    placings.into_iter().map(|placing| (placing, page_colors(placing, shape, &mut rng))).collect()
}

/// Pages of every color that the pool must have.
pub fn pages_per_color(target: Target, request: ConflictsRequest) -> usize {
    let shape = shape_of(target, target.geometry.color_count(Bytes(page_bytes() as u64)));
    let all = buffers(request, shape).into_iter().flat_map(|(_, colors)| colors);
    Placement::of_colors(all, shape.colors).per_color.into_iter().max().unwrap_or(0) as usize
}

/// Measures on the calling thread, in memory of `pool`, whose colors are those of `target`.
///
/// `progress` is called after each round with the number done and of all; an interrupt ends the run after the round under way. Fails when
/// the pool has fewer pages of a color than [`pages_per_color`] says.
pub fn conflicts(
    pool: &FramePool,
    target: Target,
    request: ConflictsRequest,
    mut progress: impl FnMut(u32, u32),
) -> Result<Conflicts, HostError> {
    let mut rng = fastrand::Rng::with_seed(request.seed);
    let shape = shape_of(target, pool.colors());
    let line_bytes = target.geometry.line_bytes.0 as usize;
    let mut all = Vec::new();
    for (placing, colors) in buffers(request, shape) {
        let region = pool.take(&colors, colors.len())?;
        region.arena().extend_chain(0..lines(&region, line_bytes), line_bytes, &mut rng);
        let placement = Placement::of_colors(colors, shape.colors);
        all.push(Buffer { region, placing, placement, linear: Cycles(u64::MAX), random: Cycles(u64::MAX) });
    }
    let mut done = 0;
    while done < request.rounds && !interrupt::interrupted() {
        rng.shuffle(&mut all);
        for buffer in &mut all {
            walk(buffer, line_bytes);
        }
        done += 1;
        progress(done, request.rounds);
    }
    let ns = |ticks: Cycles| ticks.0 as f64 * 1e9 / clock::rate_hz() as f64;
    let walks = all.iter().map(|buffer| PlacedWalk {
        placing: buffer.placing,
        sum: buffer.placement.sum(shape.ways),
        excess: buffer.placement.excess(shape.ways),
        linear_ns: ns(buffer.linear),
        random_ns: ns(buffer.random),
    });
    Ok(Conflicts {
        level: target.level,
        shape,
        page_bytes: Bytes(page_bytes() as u64),
        pages: u64::from(shape.colors) * u64::from(shape.ways),
        rounds: done,
        // Interrupted before the first round, no buffer was walked over.
        walks: walks.filter(|_| done > 0).collect(),
    })
}

fn lines(region: &ColoredRegion, line_bytes: usize) -> usize {
    region.size().0 as usize / line_bytes
}

/// Walks over `buffer` in order and at random, and keeps the shortest of each.
fn walk(buffer: &mut Buffer, line_bytes: usize) {
    let arena = buffer.region.arena();
    let pages: Vec<u32> = (0..arena.page_count() as u32).collect();
    let steps = lines(&buffer.region, line_bytes) as u32;
    arena.touch(&pages, line_bytes);
    for _ in 0..WALKS {
        let begin = clock::now();
        arena.touch(&pages, line_bytes);
        buffer.linear = buffer.linear.min(Cycles(clock::now().0 - begin.0));
    }
    arena.chase(0, steps);
    for _ in 0..WALKS {
        buffer.random = buffer.random.min(arena.chase(0, steps).1);
    }
}

/// The color of each page of a buffer that is as large as the cache.
fn page_colors(placing: Placing, shape: ColorShape, rng: &mut fastrand::Rng) -> Vec<Color> {
    let (colors, ways) = (shape.colors as u16, shape.ways as usize);
    let mut pages: Vec<Color> = match placing {
        Placing::Balanced => (0..colors).flat_map(|color| std::iter::repeat_n(Color(color), ways)).collect(),
        Placing::Random => (0..usize::from(colors) * ways).map(|_| Color(rng.u16(..colors))).collect(),
        Placing::Conflicting => {
            let mut all: Vec<u16> = (0..colors).collect();
            rng.shuffle(&mut all);
            // So many colors hold twice what fits, as many hold nothing.
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
        // One to eight colors with 16 pages each.
        assert_eq!((sums.iter().min(), sums.iter().max()), (Some(&16), Some(&128)));
    }
}
