//! Collecting the samples a palette is inferred from.
//!
//! Color shows when pages evict each other: touch a page, traverse a set of other pages, and see whether the page is still
//! cached. [`discover`] finds eviction sets, one group of pages per color, without being told how many there are; every
//! further page is classified by which group evicts it. What the samples mean is concluded by
//! [`isochrome_model::palette::infer`].

pub mod discover;
pub mod look;

use std::time::{Duration, Instant};

use isochrome_model::geometry::Geometry;
use isochrome_model::palette::infer::{color_of_looks, merge_groups};
use isochrome_model::palette::{Group, Inference, Method, PageSample, Samples, infer, samples};
use isochrome_model::units::{Bytes, Color};

use crate::error::HostError;
use crate::pagemap;
use crate::sys::memory::{Arena, page_bytes};
use look::{LevelSizes, Look, TimedLook};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Cache level to color.
    pub level: u8,
    /// Its shape.
    pub geometry: Geometry,
    /// Size of the next data level inside it.
    pub inner: Bytes,
    /// Pages to classify.
    pub pages: usize,
    /// Seed of every random choice.
    pub seed: u64,
}

/// Classified memory and how it was classified.
pub struct Collection {
    /// The pages. Those up to [`Inference::page_colors`]`.len()` are classified.
    pub arena: Arena,
    /// What was seen.
    pub samples: Samples,
    /// What it means.
    pub inference: Inference,
    /// Whole time.
    pub elapsed: Duration,
    /// Time of classification alone, confirmation of ambiguous pages included.
    pub classifying: Duration,
}

/// Pages classified together at first: more share the cost of a traversal, but when more pages of one color than the
/// cache has ways meet in a batch they evict each other.
const BATCH: usize = 32;
/// Batch of the rounds that confirm ambiguous pages.
const CONFIRMING_BATCH: usize = 8;
/// Rounds of confirmation.
const CONFIRMING_ROUNDS: usize = 8;
/// Traversals of an eviction set per look when classifying.
const PASSES: u32 = 3;

/// Measures the colors of fresh memory by time alone: no privilege, no counters.
pub fn collect_by_timing(request: &Request) -> Result<Collection, HostError> {
    let begin = Instant::now();
    let sizes = LevelSizes {
        line_bytes: request.geometry.line_bytes.0 as usize,
        inner: request.inner,
        level: request.geometry.cache_bytes(),
    };
    let arena = Arena::map(request.pages.max(sizes.pages_needed()))?;
    let mut look = TimedLook::calibrate(&arena, sizes, request.seed)?;
    let (samples, classifying) = collect(&mut look, request, Method::Timing, &arena)?;
    Ok(Collection { inference: infer(&samples), samples, elapsed: begin.elapsed(), classifying, arena })
}

/// Finds groups and classifies pages with any kind of look.
fn collect(
    look: &mut impl Look,
    request: &Request,
    method: Method,
    arena: &Arena,
) -> Result<(Samples, Duration), HostError> {
    let mut rng = fastrand::Rng::with_seed(request.seed);
    let search = discover::Search {
        ways: request.geometry.ways as usize,
        colors_expected: request.geometry.color_count(Bytes(page_bytes() as u64)) as usize,
    };
    let all: Vec<u32> = (0..arena.page_count() as u32).collect();
    let (groups, _) = discover::groups(look, search, &all, &mut rng);
    if groups.is_empty() {
        return Err(HostError::NoEviction { level: request.level });
    }
    let sets: Vec<Vec<u32>> = groups.iter().map(|g| g.set.clone()).collect();
    let cross = cross_evictions(look, &groups);
    let group_colors = merge_groups(&cross);

    let begin = Instant::now();
    let mut pages = vec![PageSample::default(); request.pages];
    // A page of an eviction set is traversed by that very set: it is looked at alone, with the set's other pages.
    for page in groups.iter().flat_map(|g| &g.set).copied().filter(|p| (*p as usize) < request.pages) {
        let others: Vec<Vec<u32>> = sets.iter().map(|set| set.iter().copied().filter(|p| *p != page).collect()).collect();
        for _ in 0..=CONFIRMING_ROUNDS {
            classify(look, &others, &[page], 1, &mut pages);
            if color_of_looks(&pages[page as usize], &group_colors).is_some() {
                break;
            }
        }
    }
    let mut open: Vec<u32> = (0..request.pages as u32).filter(|p| pages[*p as usize].looks.is_empty()).collect();
    for round in 0..=CONFIRMING_ROUNDS {
        let batch = if round == 0 { BATCH } else { CONFIRMING_BATCH };
        classify(look, &sets, &open, batch, &mut pages);
        open.retain(|page| color_of_looks(&pages[*page as usize], &group_colors).is_none());
        // Another mixture of pages in the next round: two that evicted each other are apart then.
        rng.shuffle(&mut open);
        if open.is_empty() {
            break;
        }
    }
    let classifying = begin.elapsed();

    for (page, frame) in pages.iter_mut().zip(pagemap::frames(arena)) {
        page.frame = frame;
    }
    let samples = Samples {
        schema: samples::SCHEMA.to_owned(),
        level: request.level,
        geometry: request.geometry,
        page_bytes: Bytes(page_bytes() as u64),
        method,
        groups: groups.into_iter().map(|g| Group { set: g.set }).collect(),
        cross,
        pages,
    };
    Ok((samples, classifying))
}

/// Adds to each of `open` one look per group.
fn classify(look: &mut impl Look, sets: &[Vec<u32>], open: &[u32], batch: usize, pages: &mut [PageSample]) {
    let mut shares = Vec::with_capacity(batch);
    for batch in open.chunks(batch) {
        for page in batch {
            pages[*page as usize].looks.push(Vec::with_capacity(sets.len()));
        }
        for set in sets {
            look.look(set, batch, PASSES, &mut shares);
            for (page, share) in batch.iter().zip(&shares) {
                let looks = pages[*page as usize].looks.last_mut().expect("a look was begun for every page of the batch");
                looks.push((share * 100.0) as u8);
            }
        }
    }
}

/// Share of a page of group i that the set of group j evicts: the lowest of several looks, over several pages the median.
fn cross_evictions(look: &mut impl Look, groups: &[discover::Group]) -> Vec<Vec<f32>> {
    const PAGES: usize = 3;
    const REPEATS: usize = 4;
    let mut shares = Vec::new();
    let mut pair = |target_group: &discover::Group, by: &discover::Group| {
        let mut lows: Vec<f32> = target_group
            .set
            .iter()
            .take(PAGES)
            .map(|target| {
                // Within its own group the target cannot be part of what is to evict it.
                let set: Vec<u32> = by.set.iter().copied().filter(|p| p != target).collect();
                (0..REPEATS)
                    .map(|_| {
                        look.look(&set, &[*target], PASSES, &mut shares);
                        shares[0]
                    })
                    .fold(1.0, f32::min)
            })
            .collect();
        lows.sort_by(f32::total_cmp);
        lows[lows.len() / 2]
    };
    groups.iter().map(|target| groups.iter().map(|by| pair(target, by)).collect()).collect()
}

/// Colors of pages, by page number.
pub type PageColors = Vec<Option<Color>>;
