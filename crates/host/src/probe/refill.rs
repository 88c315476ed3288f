//! Refill time: the time to load the lines of one color of a level again, Δ of [Kim2013, §3].

use isochrome_model::flood::{Flood, Leaves};
use isochrome_model::machine::{Machine, Refill};
use isochrome_model::stats::median;
use isochrome_model::units::{Bytes, Color, CpuId, Ns};

use crate::color::ColorError;
use crate::color::pool::{ColoredRegion, FramePool};
use crate::interrupt;
use crate::load::flooder::FLOOD_PAGES_PER_WAY;
use crate::machine::sysfs::Note;
use crate::sys::clock;
use crate::sys::memory::Arena;

use super::{data_levels, failed, measured, memory, nanoseconds, note};

/// Number of colors measured, spread over all.
const COLORS: usize = 8;
/// Number of samples per color for each kind of flood.
const TRIES: usize = 100;
/// One in this many touches after a flood of another color counts as undisturbed: the fastest ones.
const UNDISTURBED_DIVISOR: usize = 10;
/// Number of traversals in a flood.
const FLOOD_PASSES: u32 = 2;
/// Least ratio of a refill to a touch after a flood of another color. If the ratio is smaller, nothing was evicted.
const EVICTED: f64 = 1.1;

/// Memory of one color: the lines that are refilled, and the memory that floods read (`clean`) or write (`dirty`).
struct Colored {
    region: ColoredRegion,
    pages: Vec<u32>,
    clean: ColoredRegion,
    dirty: ColoredRegion,
}

impl Colored {
    fn take(pool: &FramePool, color: Color, ways: usize) -> Result<Colored, ColorError> {
        let region = pool.take(&[color], ways)?;
        let flood = || pool.take(&[color], FLOOD_PAGES_PER_WAY * ways);
        Ok(Colored { region, pages: (0..ways as u32).collect(), clean: flood()?, dirty: flood()? })
    }

    /// Returns the ticks to touch every line by independent loads in order of addresses.
    #[inline]
    fn touch(&self, line_bytes: usize) -> f64 {
        let begin = clock::now();
        self.region.arena().touch(&self.pages, line_bytes);
        (clock::now().0 - begin.0) as f64
    }

    /// Returns the ticks to touch every line after `flood` was read or written.
    fn touch_after(&self, flood: &ColoredRegion, leaves: Leaves, line_bytes: Bytes) -> f64 {
        self.touch(line_bytes.0 as usize);
        let accesses = Flood { area: flood.size(), line_bytes, passes: FLOOD_PASSES, leaves };
        flood.arena().carry_out(accesses.accesses());
        self.touch(line_bytes.0 as usize)
    }
}

/// The flood between two touches of a color's lines.
#[derive(Clone, Copy)]
enum Between {
    /// The flood reads lines of the same color.
    Clean,
    /// The flood writes lines of the same color.
    Dirty,
    /// The flood reads lines of another color. Like lines of the same color, they evict lines from the inner levels, but not from
    /// this level.
    Other,
}

/// Writes twice the memory that the outermost level holds, so that no other dirty lines stay in the caches.
pub fn purge(last_level: Bytes, line_bytes: Bytes) -> Result<(), ColorError> {
    let arena: Arena = memory(2 * last_level.0)?;
    let flood = Flood { area: Bytes(2 * last_level.0), line_bytes, passes: 2, leaves: Leaves::Dirty };
    arena.carry_out(flood.accesses());
    Ok(())
}

/// Measures the refill time of `level` on the calling thread's CPU, `cpu`, with pages of `pool`.
///
/// The result is the time of one pass over as many lines as a color holds, in order of addresses and as fast as the core and its
/// prefetchers allow. Nothing is subtracted, so the result includes the time of the same pass when all lines are present. The lines come
/// from whichever outer level holds them. In the dirty case all replaced lines have been written.
pub(super) fn measure(
    machine: &mut Machine,
    cpu: CpuId,
    pool: &FramePool,
    level: u8,
    seed: u64,
    notes: &mut Vec<Note>,
) {
    let levels = data_levels(machine, cpu);
    let last_level = levels.last().map(|&i| machine.levels[i].geometry.value.cache_bytes()).unwrap_or_default();
    let Some(index) = levels.into_iter().find(|&i| machine.levels[i].level == level) else {
        return notes.push(failed("refill", "not measured", &ColorError::NoSuchLevel { level }));
    };
    let page_bytes = machine.page_bytes;
    let level = &mut machine.levels[index];
    let geometry = level.geometry.value;
    let ways = geometry.ways as usize;
    let subject = format!("refill of {}", super::name(level));

    let count = COLORS.min(pool.colors() as usize);
    let colors = (0..count).map(|i| Color((i * pool.colors() as usize / count) as u16));
    let colored: Result<Vec<Colored>, ColorError> = colors.map(|color| Colored::take(pool, color, ways)).collect();
    // A victim cache returns dirty lines as dirty, so lines that are to be clean must have been written back to memory once.
    let purged = |colored| purge(last_level.max(geometry.cache_bytes()), geometry.line_bytes).map(|()| colored);
    let colored: Vec<Colored> = match colored.and_then(purged) {
        Ok(colored) => colored,
        Err(reason) => return notes.push(failed(&subject, "not measured", &reason)),
    };

    let mut rng = fastrand::Rng::with_seed(seed);
    let kinds = [Between::Clean, Between::Dirty, Between::Other];
    let mut order: Vec<(usize, usize)> =
        (0..count).flat_map(|color| (0..TRIES * kinds.len()).map(move |i| (color, i % kinds.len()))).collect();
    rng.shuffle(&mut order);
    let mut times: [Vec<f64>; 3] = Default::default();
    for (color, kind) in order {
        if interrupt::interrupted() {
            return;
        }
        let (own, other) = (&colored[color], &colored[(color + 1) % count]);
        times[kind].push(match kinds[kind] {
            Between::Clean => own.touch_after(&own.clean, Leaves::Clean, geometry.line_bytes),
            Between::Dirty => own.touch_after(&own.dirty, Leaves::Dirty, geometry.line_bytes),
            Between::Other => own.touch_after(&other.clean, Leaves::Clean, geometry.line_bytes),
        });
    }
    let [clean, dirty, mut present] = times;
    // Where other programs use the caches, most touches miss lines that these floods have not evicted. The fastest touches show
    // the time when all lines are present.
    present.sort_by(f64::total_cmp);
    let undisturbed = present.len() / UNDISTURBED_DIVISOR;
    let (Some(clean), Some(dirty), Some(&present)) = (median(&clean), median(&dirty), present.get(undisturbed)) else {
        return;
    };
    if clean.min(dirty) < EVICTED * present {
        let (refill, present) = (nanoseconds(clean.min(dirty)), nanoseconds(present));
        notes.push(note(
            &subject,
            format!("{refill:.0} ns after a flood of the color, {present:.0} ns after one of another: the difference is too small"),
            "measure the palette again: `isochrome palette`",
        ));
        return;
    }
    level.refill = Some(measured(Refill {
        clean_ns: Ns(nanoseconds(clean).round() as u64),
        dirty_ns: Ns(nanoseconds(dirty).round() as u64),
        lines: geometry.lines_per_color(page_bytes),
    }));
}
