//! The search for the size of a loop with the requested miss ratio, on a machine whose response is unknown and noisy.
//!
//! The search assumes only that larger loops miss more often. It fits a rising curve to all tries so far (isotonic regression), and the next
//! size is where the curve crosses the requested ratio. So later tries outweigh a try that noise has spoiled; bisection would exclude the right
//! size after such a try. A size counts as found if two successive tries of it are near the requested ratio, because the second try was not
//! selected for its outcome.

use isochrome_model::stats::quantile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Executed;

/// Greatest distance from the requested miss ratio at which a try counts as near, as a share.
pub const NEAR: f64 = 0.02;
/// Greatest number of tries of a search; a size that is tried twice counts twice.
pub const TRIES: usize = 24;

/// One try of a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tried {
    /// Number of lines of the loop.
    pub lines: u64,
    /// Result of the try.
    #[serde(flatten)]
    pub executed: Executed,
}

/// Whether the search that made `tries` found a size with the miss ratio `requested`.
pub fn found(tries: &[Tried], requested: f64) -> bool {
    let near = |tried: &Tried| (tried.executed.miss_ratio - requested).abs() <= NEAR;
    matches!(tries, [.., before, last] if before.lines == last.lines && near(before) && near(last))
}

/// Returns the try that is the result of a search: the last one if the search has [`found`] a size, else the one nearest to `requested`. `None` if
/// there are no tries.
pub fn outcome(tries: &[Tried], requested: f64) -> Option<Tried> {
    let apart = |tried: &&Tried| (tried.executed.miss_ratio - requested).abs();
    if found(tries, requested) {
        return tries.last().copied();
    }
    tries.iter().min_by(|a, b| apart(a).total_cmp(&apart(b))).copied()
}

/// Tries sizes from `smallest` to `largest`, beginning with `first`, until a size is found or [`TRIES`] tries are made. Returns every try, in
/// order.
///
/// `measure` executes a loop of the given number of lines. If it returns `None`, the search ends; if it fails, so does the search.
pub fn search<E>(
    requested: f64,
    [smallest, first, largest]: [u64; 3],
    mut measure: impl FnMut(u64) -> Result<Option<Executed>, E>,
) -> Result<Vec<Tried>, E> {
    let mut tries: Vec<Tried> = Vec::new();
    let mut lines = first;
    while tries.len() < TRIES && !found(&tries, requested) {
        let Some(executed) = measure(lines)? else { break };
        tries.push(Tried { lines, executed });
        // A size whose miss ratio is near is tried once more.
        let once = tries.len() < 2 || tries[tries.len() - 2].lines != lines;
        if (executed.miss_ratio - requested).abs() > NEAR || !once {
            lines = crossing(&tries, requested, smallest, largest);
        }
    }
    Ok(tries)
}

/// Returns the size at which the rising curve nearest to `tries` crosses `requested`. Distances are absolute, as a spoiled try may be far off. By
/// assumption nothing misses at `smallest` and everything misses at `largest`.
fn crossing(tries: &[Tried], requested: f64, smallest: u64, largest: u64) -> u64 {
    let mut points: Vec<(f64, f64)> =
        tries.iter().map(|tried| (tried.lines as f64, tried.executed.miss_ratio)).collect();
    points.extend([(smallest as f64, 0.0), (largest as f64, 1.0)]);
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let middle = |points: &[(f64, f64)]| {
        let (x, y): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
        // Of two values this takes the lower one, because a value between them would be neither a tried size nor a measured ratio.
        (quantile(&x, 0.5).unwrap_or_default(), quantile(&y, 0.5).unwrap_or_default())
    };
    // Neighbors that do not rise are merged into one point at their medians. [Barlow1972]
    let mut curve: Vec<Vec<(f64, f64)>> = Vec::new();
    for point in points {
        let mut last = vec![point];
        let falls = |before: &mut Vec<(f64, f64)>, last: &[(f64, f64)]| {
            let (before, last) = (middle(before), middle(last));
            before.0 >= last.0 || before.1 >= last.1
        };
        while let Some(before) = curve.pop_if(|before| falls(before, &last)) {
            last.splice(0..0, before);
        }
        curve.push(last);
    }
    let curve: Vec<(f64, f64)> = curve.iter().map(|points| middle(points)).collect();
    let above = curve.iter().position(|point| point.1 >= requested).unwrap_or(curve.len() - 1);
    let (high, low) = (curve[above], curve[above.saturating_sub(1)]);
    let share = if high.1 > low.1 { ((requested - low.1) / (high.1 - low.1)).clamp(0.0, 1.0) } else { 0.0 };
    ((low.0 + share * (high.0 - low.0)).round() as u64).clamp(smallest, largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::miss_ratio::tests::executed;
    use isochrome_model::geometry::Geometry;
    use isochrome_model::miss_ratio::{Locality, Task, Touches, line_ratio};
    use isochrome_model::sim::{Level, Policy, Semantics, Simulator};
    use isochrome_model::units::Bytes;
    use std::convert::Infallible;

    fn geometry() -> Geometry {
        Geometry::of_size(Bytes(32 << 10), 8, Bytes(64)).unwrap()
    }

    /// Returns the tries of a search in a cache of 512 lines, in which a loop has the miss ratio that `response` returns.
    fn tries(requested: f64, mut response: impl FnMut(u64) -> f64) -> Vec<Tried> {
        let first = Task::of_ratio(Touches::Data, geometry(), requested, Locality::Temporal).unwrap().lines;
        search(requested, [256, first, 1024], |lines| Ok::<_, Infallible>(Some(executed(response(lines))))).unwrap()
    }

    /// Returns the misses per line of a loop in a simulated cache that replaces by `policy`. The lines are consecutive, so that all sets have
    /// about equally many.
    fn simulated(policy: Policy, lines: u64) -> f64 {
        let level = Level { policy, ..Level::lru("L", geometry()) };
        let mut simulator = Simulator::chain(vec![level], Semantics::default()).unwrap();
        let task = Task { lines, ..Task::of_ratio(Touches::Data, geometry(), 0.5, Locality::Temporal).unwrap() };
        let pass: Vec<_> = task.accesses(1).collect();
        let mut misses = || {
            (0..20).for_each(|_| simulator.run(&pass));
            simulator.counts().0[0].counts.read_misses
        };
        let warm = misses();
        (misses() - warm) as f64 / (20 * pass.len()) as f64
    }

    #[test]
    fn a_cache_that_follows_the_prediction_is_tried_twice_at_one_size() {
        let tries = tries(0.33, |lines| line_ratio(geometry(), lines));
        assert_eq!(tries.len(), 2);
        assert!(found(&tries, 0.33) && tries[0].lines == tries[1].lines);
    }

    #[test]
    fn a_simulated_cache_of_any_replacement_is_tuned_to_within_two_points() {
        for policy in [Policy::Lru, Policy::Random { seed: 1 }, Policy::TreePlru, Policy::Fifo] {
            for requested in [0.1, 0.33, 0.5, 0.8] {
                let tries = tries(requested, |lines| simulated(policy, lines));
                let last = outcome(&tries, requested).unwrap();
                assert!(found(&tries, requested), "{policy}: {requested} not found, {tries:?}");
                assert!((simulated(policy, last.lines) - requested).abs() <= NEAR, "{policy}: {requested}, {last:?}");
            }
        }
    }

    #[test]
    fn noise_makes_one_search_of_ten_fail_and_none_end_elsewhere() {
        // Misses begin at half of the cache and rise in a curve; a measurement is off by up to 2 points, and one of ten by up to 30 more.
        let response = |lines: u64| ((lines as f64 - 256.0) / 512.0).clamp(0.0, 1.0).powi(2);
        let (mut lost, mut not_found) = (0, 0);
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut noisy = |lines| {
                let spoiled = if rng.u8(0..10) == 0 { 0.3 * rng.f64() } else { 0.0 };
                response(lines) + 0.04 * (rng.f64() - 0.5) + spoiled
            };
            let tries = tries(0.33, &mut noisy);
            let last = outcome(&tries, 0.33).unwrap();
            if found(&tries, 0.33) {
                // Both last measurements are within 2 points, and each is off by at most 2 points unless both were spoiled.
                lost += u32::from((response(last.lines) - 0.33).abs() > NEAR + 0.02);
            } else {
                not_found += 1;
            }
        }
        assert!(lost == 0 && not_found <= 20, "of 200 searches {lost} ended elsewhere, {not_found} nowhere");
    }

    #[test]
    fn a_ratio_that_no_size_has_is_not_found_and_the_nearest_is_reported() {
        let tries = tries(0.33, |lines| if lines < 700 { 0.2 } else { 0.6 });
        assert!(!found(&tries, 0.33) && tries.len() == TRIES);
        let nearest = outcome(&tries, 0.33).unwrap();
        assert_eq!(nearest.executed.miss_ratio, 0.2);
        // The search closed in on the jump, and every try is listed.
        assert!(tries.iter().any(|tried| (695..700).contains(&tried.lines)), "{tries:?}");
        assert!(tries.iter().any(|tried| (700..705).contains(&tried.lines)), "{tries:?}");
        assert!(outcome(&[], 0.33).is_none());
    }

    #[test]
    fn the_last_try_of_all_counts() {
        let mut count = 0;
        let tries = tries(0.33, |_| {
            count += 1;
            if count < TRIES - 1 { 0.9 } else { 0.33 }
        });
        assert_eq!((tries.len(), count), (TRIES, TRIES));
        assert_eq!(outcome(&tries, 0.33).unwrap(), tries[TRIES - 1]);
    }

    #[test]
    fn an_interrupted_search_keeps_what_it_has() {
        let mut left = 3;
        let tries = search(0.33, [256, 500, 1024], |_| {
            left -= 1;
            Ok::<_, Infallible>((left > 0).then(|| executed(0.9)))
        });
        assert_eq!(tries.unwrap().len(), 2);
        let failed = search(0.33, [256, 500, 1024], |_| Err("no memory"));
        assert_eq!(failed, Err("no memory"));
    }
}
