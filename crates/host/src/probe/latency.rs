//! Load latency: the time of a load for which the next load waits, against the size of the memory visited.
//!
//! A chain through all lines of a growing piece of memory, in random order, is followed load by load. While the memory fits
//! into a cache level, that level serves the loads, so each step of the curve is a level.

use std::time::{Duration, Instant};

use isochrome_model::machine::Machine;
use isochrome_model::units::{Bytes, CpuId};

use crate::color::ColorError;
use crate::interrupt;
use crate::machine::sysfs::{Note, Sysfs};
use crate::sys::memory::page_bytes;

use super::{data_levels, failed, measured, memory, memory_limit, nanoseconds, note};

/// Size of the smallest memory visited, in bytes.
const SMALLEST: u64 = 4 << 10;
/// Upper bound of the size of the memory visited, in bytes.
const LARGEST: u64 = 256 << 20;
/// Upper bound of the size of the memory visited, in bytes, if the last level is so large that main memory would not be reached otherwise.
const LARGEST_BEYOND: u64 = 1 << 30;
/// Upper bound of the size of the memory visited, as a multiple of the last level.
const TIMES_LAST_LEVEL: u64 = 4;
/// Number of sizes per doubling.
const PER_OCTAVE: i32 = 4;
/// Least number of loads that are timed together: enough for the time of reading the counter to be negligible.
const STEPS_MIN: usize = 4 << 10;
/// Greatest number of loads that are timed together: few enough for a round to end before neighbors have emptied a shared cache.
const STEPS_MAX: usize = 16 << 10;
/// Least number of rounds for each size. The fastest round counts, because every disturbance makes a round slower.
const ROUNDS_MIN: u32 = 5;
/// Time within which further rounds begin.
const ROUNDS_TIME: Duration = Duration::from_millis(15);
/// Time after which sizes are left out, except for the largest.
const TIME: Duration = Duration::from_secs(2);

/// Returns sizes from [`SMALLEST`] to `largest`, ascending by equal factors, four per doubling, in whole lines.
fn working_sets(largest: Bytes, line_bytes: Bytes) -> Vec<Bytes> {
    let sizes = (0..).map(|i| SMALLEST as f64 * 2f64.powf(f64::from(i) / f64::from(PER_OCTAVE)));
    // Rounding may make the power for a whole number of octaves slightly too small.
    sizes
        .map(|size| Bytes((size + 1e-3) as u64 / line_bytes.0 * line_bytes.0))
        .take_while(|size| *size <= largest)
        .collect()
}

/// Returns the size of the largest memory to visit, given the sizes of the last level and of the memory that may be taken.
fn largest(last_level: Bytes, limit: Bytes) -> Bytes {
    // The largest working set up to this size is at least twice the last level, as `memory_load` requires.
    let beyond_last_level = last_level.0 / 2 * 5;
    let largest = LARGEST.max(beyond_last_level.min(LARGEST_BEYOND));
    Bytes(largest.min(TIMES_LAST_LEVEL * last_level.0).min(limit.0))
}

/// Measures the time of a dependent load in ns for several sizes of memory. The calling thread should be pinned.
///
/// Memory that fits into `last_level` is touched again before each round, so that the caches serve the loads even if neighbors keep
/// emptying them. Larger memory is not touched, so that loads do not find lines that the touching left in the caches. The time includes the
/// address computation of an indexed load and, if the kernel gives no huge pages, page-table walks. When time runs out, all remaining sizes
/// but the largest are left out.
pub fn curve(
    largest: Bytes,
    last_level: Bytes,
    line_bytes: Bytes,
    seed: u64,
    time: Duration,
) -> Result<Vec<(Bytes, f64)>, ColorError> {
    let begin = Instant::now();
    let mut rng = fastrand::Rng::with_seed(seed);
    let arena = memory(largest.0.max(SMALLEST))?;
    let stride = line_bytes.0 as usize;
    let (mut curve, mut chained) = (Vec::new(), 0);
    let sizes = working_sets(largest, line_bytes);
    for (i, &size) in sizes.iter().enumerate() {
        if interrupt::interrupted() {
            break;
        }
        if begin.elapsed() > time && i + 1 < sizes.len() {
            continue;
        }
        let lines = (size.0 / line_bytes.0) as usize;
        arena.extend_chain(chained..lines, stride, &mut rng);
        chained = lines;
        let pages: Vec<u32> = (0..(size.0 as usize).div_ceil(page_bytes()) as u32).collect();
        let steps = lines.clamp(STEPS_MIN, STEPS_MAX) as u32;
        // Each chase continues where the previous one stopped, so in large memory each round visits other lines.
        let (mut from, mut fastest, mut rounds) = (0, f64::INFINITY, 0);
        let rounds_begin = Instant::now();
        while rounds < ROUNDS_MIN || rounds_begin.elapsed() < ROUNDS_TIME {
            if size <= last_level {
                arena.touch(&pages, stride);
            }
            let (end, ticks) = arena.chase(from, steps);
            from = end;
            fastest = fastest.min(ticks.0 as f64 / f64::from(steps));
            rounds += 1;
        }
        curve.push((size, nanoseconds(fastest)));
    }
    Ok(curve)
}

/// Returns the load time of a level of `level` bytes around an inner level of `inner` bytes, in ns; `None` if no size of the curve is suitable.
///
/// The load time is the lowest point of the curve among the suitable sizes: at least four times the inner level, and at most half of the
/// level. In a shared level, which its other users fill, the limit is a quarter if such a size exists, else half. If no size within a limit
/// is four times the inner level, twice is enough.
fn level_load(curve: &[(Bytes, f64)], level: Bytes, inner: Bytes, shared: bool) -> Option<f64> {
    let lowest = |times_inner: u64, limit: u64| {
        let within = curve.iter().filter(|(size, _)| (times_inner * inner.0..=limit).contains(&size.0));
        within.map(|point| point.1).min_by(f64::total_cmp)
    };
    let limits = if shared { [level.0 / 4, level.0 / 2] } else { [level.0 / 2; 2] };
    limits.into_iter().find_map(|limit| lowest(4, limit).or_else(|| lowest(2, limit)))
}

/// Returns the load time of main memory, in ns: the last point of the curve; `None` if its size is less than twice the last level.
fn memory_load(curve: &[(Bytes, f64)], last_level: Bytes) -> Option<f64> {
    curve.last().filter(|(size, _)| size.0 >= 2 * last_level.0).map(|p| p.1)
}

/// Measures the curve on the calling thread's CPU, `cpu`, and derives the load times of its levels and of memory from it.
pub(super) fn measure(machine: &mut Machine, cpu: CpuId, seed: u64, notes: &mut Vec<Note>) {
    let levels = data_levels(machine, cpu);
    let Some(&last) = levels.last() else {
        notes.push(note("load latency", "no cache level is known".to_owned(), "`isochrome doctor` says why"));
        return;
    };
    let last = machine.levels[last].geometry.value;
    let line_bytes =
        levels.iter().map(|&i| machine.levels[i].geometry.value.line_bytes).max().unwrap_or(last.line_bytes);
    let largest = largest(last.cache_bytes(), memory_limit(&Sysfs::system()));
    let curve = match curve(largest, last.cache_bytes(), line_bytes, seed, TIME) {
        Ok(curve) => curve,
        Err(reason) => return notes.push(failed("load latency", "not measured", &reason)),
    };

    let mut inner = Bytes(0);
    for index in levels {
        let level = &mut machine.levels[index];
        let bytes = level.geometry.value.cache_bytes();
        let shared = level.shared_by.value.iter().any(|group| group.len() > 1 && group.contains(&cpu));
        level.load_ns = level_load(&curve, bytes, inner, shared).map(measured);
        if level.load_ns.is_none() {
            notes.push(note(
                &super::name(level),
                format!("its load time was not measured: no size lies clearly between {inner} and {bytes}"),
                "free some memory, or run it while nothing else does",
            ));
        }
        inner = bytes;
    }
    machine.memory_load_ns = memory_load(&curve, last.cache_bytes()).map(measured);
    if machine.memory_load_ns.is_none() {
        let reached = curve.last().map_or(Bytes(0), |p| p.0);
        notes.push(note(
            "main memory",
            format!(
                "its load time was not measured: {reached} were visited, the last level holds {}",
                last.cache_bytes()
            ),
            "free some memory: a quarter of what is available is taken, at most 1 GiB",
        ));
    }
    let huge_pages = Sysfs::system().text("sys/kernel/mm/transparent_hugepage/enabled");
    if Sysfs::system().huge_page_bytes().is_none() || huge_pages.is_none_or(|mode| mode.contains("[never]")) {
        notes.push(note(
            "load latency",
            "without huge pages the times of outer levels contain page-table walks".to_owned(),
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ));
    }
    machine.latency = curve;
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn sizes_ascend_four_to_a_doubling_and_end_with_the_largest() {
        let sizes = working_sets(Bytes(64 * KIB), Bytes(64));
        // 4 KiB to 64 KiB are four doublings.
        assert_eq!(sizes.len(), 4 * 4 + 1);
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(sizes.iter().all(|size| size.0 % 64 == 0));
        for octave in 0..=4 {
            assert_eq!(sizes[4 * octave], Bytes((4 * KIB) << octave));
        }
        // 4 KiB x 2^(1/4) = 4870.99, in whole lines 4864.
        assert_eq!(sizes[1], Bytes(4864));
    }

    /// Returns a curve with 1 ns up to 32 KiB, 4 ns up to 512 KiB, 14 ns up to 32 MiB, and 90 ns beyond.
    fn stairs(largest: u64) -> Vec<(Bytes, f64)> {
        let height = |size: Bytes| match size.0 / KIB {
            0..=32 => 1.0,
            33..=512 => 4.0,
            513..=32768 => 14.0,
            _ => 90.0,
        };
        working_sets(Bytes(largest), Bytes(64)).into_iter().map(|size| (size, height(size))).collect()
    }

    #[test]
    fn each_step_of_the_curve_is_read_at_its_level() {
        let curve = stairs(128 << 20);
        assert_eq!(level_load(&curve, Bytes(32 * KIB), Bytes(0), false), Some(1.0));
        assert_eq!(level_load(&curve, Bytes(512 * KIB), Bytes(32 * KIB), false), Some(4.0));
        assert_eq!(level_load(&curve, Bytes(32 << 20), Bytes(512 * KIB), true), Some(14.0));
        assert_eq!(memory_load(&curve, Bytes(32 << 20)), Some(90.0));
    }

    #[test]
    fn main_memory_is_reached_behind_a_large_last_level() {
        let mib = |size: u64| Bytes(size << 20);
        assert_eq!((largest(mib(8), mib(4096)), largest(mib(32), mib(4096))), (mib(32), mib(128)));
        // A server processor with 300 MiB.
        let sizes = working_sets(largest(mib(300), mib(4096)), Bytes(64));
        assert!(sizes.last().is_some_and(|size| *size >= mib(600) && *size <= mib(750)), "{sizes:?}");
        assert_eq!((largest(mib(1152), mib(4096)), largest(mib(300), mib(512))), (mib(1024), mib(512)));
    }

    #[test]
    fn what_the_curve_does_not_reach_is_not_invented() {
        // 48 MiB are less than twice 32 MiB.
        assert_eq!(memory_load(&stairs(48 << 20), Bytes(32 << 20)), None);
        // The curve ends inside the inner level.
        assert_eq!(level_load(&stairs(16 * KIB), Bytes(512 * KIB), Bytes(32 * KIB), false), None);
        // A quarter of 8 MiB is no larger than the inner level of 2 MiB, so half of 8 MiB is the limit.
        let curve = [(Bytes(2 << 20), 5.0), (Bytes(4 << 20), 20.0)];
        assert_eq!(level_load(&curve, Bytes(8 << 20), Bytes(2 << 20), true), Some(20.0));
        assert_eq!(level_load(&[], Bytes(8 << 20), Bytes(0), true), None);
    }
}
