//! Costs that the response-time analysis charges, measured under the conditions that it assumes.

use std::time::{SystemTime, UNIX_EPOCH};

use isochrome_model::costs::{AssumedCost, Costs, refill_line};
use isochrome_model::flood::{Flood, Leaves};
use isochrome_model::geometry::Geometry;
use isochrome_model::machine::Machine;
use isochrome_model::units::{Bytes, Color, CpuId, Cycles, Ns};

use crate::color::ColorError;
use crate::color::pool::{ColoredRegion, FramePool};
use crate::error::SystemError;
use crate::load::flooder::FLOOD_PAGES_PER_WAY;
use crate::machine::setting::RealtimeRequest;
use crate::machine::sysfs::Note;
use crate::sys::clock;
use crate::sys::memory::{Arena, page_bytes};

use super::{failed, inner_bytes, nanoseconds, note, ticks};

/// Number of samples of each cost, for each number of colors. The quantile that is charged is the sixth longest of this many samples. The quantile of
/// 400 samples would be the longest, and a single gap of a virtual CPU that no kernel reports would then be charged at every switch.
const SAMPLES: usize = 1200;
/// Largest number of color sets on which the refill of one number of colors is measured.
const REGIONS: usize = 4;
/// Number of traversals of the memory that displaces the chained lines.
const FLOOD_PASSES: u32 = 2;
/// Number of pages that are read, one line each, to displace the entries of the TLB: more than the TLB of any processor has.
const TLB_PAGES: usize = 8192;

/// Time between two releases.
const PERIOD: Ns = Ns(1_000_000);
/// Time before and after each release in which a thread watches the clock.
const WATCHED: Ns = Ns(300_000);
/// Longest time between two readings of the clock while the watching thread runs. After a longer time the thread was away.
const AWAY: Ns = Ns(200);
/// Largest share of the releases after which the watching thread may not have been away.
const UNSEEN_MAX: f64 = 0.01;

/// Measures the costs of `level` on the calling thread's CPU, `cpu`, with pages of `pool`, and writes them into `machine`.
///
/// A cost that could not be measured stays absent, and a note gives the reason.
pub(super) fn measure(
    machine: &mut Machine,
    cpu: CpuId,
    pool: &FramePool,
    level: u8,
    seed: u64,
    notes: &mut Vec<Note>,
) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let Some(known) = machine.data_level_of(level, cpu) else {
        return notes.push(failed("costs", "not measured", &ColorError::NoSuchLevel { level }));
    };
    let geometry = known.geometry.value;
    let inner = inner_bytes(machine, known, &[cpu]);
    let (refill, refill_once_ns) = refills(pool, geometry, &mut rng).map_or_else(
        |reason| {
            notes.push(failed("refill time to charge", "not measured", &reason));
            (None, Ns(0))
        },
        |times| refill_line(&times),
    );
    let preemption = private_levels(pool, geometry, inner, &mut rng).unwrap_or_else(|reason| {
        notes.push(failed("refill of private levels", "not measured", &reason));
        None
    });
    let mut away = |subject: &str, waiting: u8, watching: u8| match times_away(cpu, waiting, watching) {
        Ok(times) => times,
        Err(reason) => {
            notes.extend(reason.into_iter().map(|reason| Note { subject: subject.to_owned(), ..reason }));
            Vec::new()
        }
    };
    let there_and_back = away("context switch", 3, 2);
    let switch = AssumedCost::of(&there_and_back.iter().map(|time| time / 2.0).collect::<Vec<_>>());
    let release_interrupt = AssumedCost::of(&away("release interrupt", 2, 3));
    let measured_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    machine.costs =
        Some(Costs { cpu, level, measured_at, refill, refill_once_ns, preemption, switch, release_interrupt });
}

/// Memory whose lines are chained in random order, and memory that displaces it from a cache.
struct Displaced {
    chained: ColoredRegion,
    lines: u32,
    flood: ColoredRegion,
    line_bytes: Bytes,
}

impl Displaced {
    fn new((chained, flood): (ColoredRegion, ColoredRegion), line_bytes: Bytes, rng: &mut fastrand::Rng) -> Displaced {
        let lines = (chained.size().0 / line_bytes.0) as usize;
        chained.arena().extend_chain(0..lines, line_bytes.0 as usize, rng);
        Displaced { chained, lines: lines as u32, flood, line_bytes }
    }

    /// Returns the CPU time of following the chain once, in ns, after dirty lines have displaced the chained lines from the cache. Each load
    /// waits for the previous load. `displace_tlb` displaces the entries of the TLB.
    fn time(&self, displace_tlb: impl Fn(&Arena)) -> f64 {
        let arena = self.chained.arena();
        arena.chase(0, self.lines);
        displace_tlb(arena);
        let (area, passes) = (self.flood.size(), FLOOD_PASSES);
        let flood = Flood { area, line_bytes: self.line_bytes, passes, leaves: Leaves::Dirty };
        self.flood.arena().carry_out(flood.accesses());
        // CPU time is read, because steal time is not a cost of the refill.
        let begin = clock::thread_cpu();
        arena.chase(0, self.lines);
        (clock::thread_cpu().0 - begin.0) as f64
    }
}

/// Measures the refill of 1, 2, 4, ... and all colors, and returns times for each number of colors, in ns.
fn refills(pool: &FramePool, geometry: Geometry, rng: &mut fastrand::Rng) -> Result<Vec<(u32, Vec<f64>)>, ColorError> {
    let all = pool.colors() as usize;
    let ways = geometry.ways as usize;
    let mut counts: Vec<usize> = (0..).map(|power| 1 << power).take_while(|count| *count < all).collect();
    counts.push(all);
    let tlb = Arena::map(TLB_PAGES).map_err(|source| SystemError::Memory { pages: TLB_PAGES, source })?;
    let tlb_pages: Vec<u32> = (0..TLB_PAGES as u32).collect();
    let mut times = Vec::new();
    for count in counts {
        let of_count = REGIONS.min(all / count);
        let mut regions = Vec::new();
        for first in (0..of_count).map(|region| region * all / of_count) {
            let colors: Vec<Color> = (first..first + count).map(|color| Color((color % all) as u16)).collect();
            let pages = ways * count;
            let taken = (pool.take(&colors, pages)?, pool.take(&colors, FLOOD_PAGES_PER_WAY * pages)?);
            regions.push(Displaced::new(taken, geometry.line_bytes, rng));
        }
        let mut order: Vec<&Displaced> = regions.iter().cycle().take(SAMPLES).collect();
        rng.shuffle(&mut order);
        let time = |region: &Displaced| region.time(|_| tlb.touch(&tlb_pages, page_bytes()));
        times.push((count as u32, order.into_iter().map(time).collect()));
    }
    Ok(times)
}

/// Measures the time to load as many lines as the inner levels hold, `inner` bytes, after a task with other colors of this level has displaced
/// them; `None` where there is no inner level or only one color.
fn private_levels(
    pool: &FramePool,
    geometry: Geometry,
    inner: Bytes,
    rng: &mut fastrand::Rng,
) -> Result<Option<AssumedCost>, ColorError> {
    let pages = (inner.0 as usize).div_ceil(page_bytes());
    if pages == 0 || pool.colors() < 2 {
        return Ok(None);
    }
    let half = (pool.colors() / 2) as u16;
    let [own, other] = [0..half, half..2 * half].map(|colors| colors.map(Color).collect::<Vec<_>>());
    let taken = (pool.take(&own, pages)?, pool.take(&other, FLOOD_PAGES_PER_WAY * pages)?);
    let displaced = Displaced::new(taken, geometry.line_bytes, rng);
    let times: Vec<f64> = (0..SAMPLES).map(|_| displaced.time(Arena::forget_translations)).collect();
    Ok(AssumedCost::of(&times))
}

/// Returns how long a thread on `cpu` did not run when a timer released another thread there, in ns for each release.
///
/// The first thread has SCHED_FIFO priority `watching`, the second `waiting`. If the second thread gets the CPU, it waits for its next release
/// at once. Fails with notes if the settings are refused, or if the first thread went on running too often.
fn times_away(cpu: CpuId, waiting: u8, watching: u8) -> Result<Vec<f64>, Vec<Note>> {
    let begin = clock::monotonic().0 + 10 * PERIOD.0;
    let release = |number: usize| Ns(begin + number as u64 * PERIOD.0);
    let realtime = move |priority| RealtimeRequest::new().pin(cpu).fifo(priority).apply();
    let times = std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let settings = realtime(waiting);
            (0..SAMPLES).for_each(|number| clock::sleep_until(release(number)));
            settings.notes().to_vec()
        });
        let settings = realtime(watching);
        let seen: Vec<Option<Cycles>> = (0..SAMPLES)
            .map(|number| {
                clock::sleep_until(Ns(release(number).0 - WATCHED.0));
                first_away(release(number))
            })
            .collect();
        let mut refused = settings.notes().to_vec();
        drop(settings);
        refused.extend(waiter.join().expect("a thread that only waits does not panic"));
        if refused.is_empty() { Ok(seen) } else { Err(refused) }
    })?;
    let seen: Vec<f64> = times.iter().flatten().map(|away| nanoseconds(away.0 as f64)).collect();
    if (seen.len() as f64) < (1.0 - UNSEEN_MAX) * SAMPLES as f64 {
        let reason = format!("{} of {SAMPLES} releases took no time that could be seen", SAMPLES - seen.len());
        return Err(vec![note("", reason, "state the cost in the task set")]);
    }
    Ok(seen)
}

/// Watches the clock around `release`, and returns the length of this thread's first absence after `release`; `None` if there was none.
fn first_away(release: Ns) -> Option<Cycles> {
    let (begin, now) = (clock::now(), clock::monotonic());
    let at = begin.0 + ticks(release.0.saturating_sub(now.0)).0;
    let (end, away) = (at + ticks(WATCHED.0).0, ticks(AWAY.0).0);
    let (mut last, mut first) = (begin.0, None);
    while last < end {
        let now = clock::now().0;
        if first.is_none() && now >= at && now - last > away {
            first = Some(Cycles(now - last));
        }
        last = now;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_gaps_among_the_samples_are_not_charged() {
        let charged = |gaps: usize| {
            let times: Vec<f64> = (0..SAMPLES).map(|sample| if sample < gaps { 2e6 } else { 1e4 }).collect();
            AssumedCost::of(&times).expect("enough samples").high_ns
        };
        assert_eq!([0, 5, 6].map(charged), [10_000, 10_000, 2_000_000].map(Ns));
    }
}
