//! Measurements of the caches, whose values the machine only declares: load times, which CPUs share them, and how long contents last.
//!
//! All times are read from the constant-rate counter, so neither privileges nor hardware counters are needed. A value that
//! cannot be measured stays unknown, and a note gives the reason.

pub mod costs;
pub mod latency;
pub mod refill;
pub mod replacement;
pub mod retention;
pub mod sharing;
pub mod supply;

use isochrome_model::machine::{CacheLevel, Fact, Holds, Machine, Source};
use isochrome_model::units::{Bytes, CpuId, Cycles};

use crate::color::ColorError;
use crate::color::eviction::{ArenaEvictionTest, LevelSizes, TimedEvictionTest};
use crate::color::pool::FramePool;
use crate::error::SystemError;
use crate::interrupt;
use crate::machine::setting::{RealtimeRequest, RealtimeSettings};
use crate::machine::sysfs::{Note, Sysfs};
use crate::sys::clock;
use crate::sys::memory::{Arena, page_bytes};

/// CPUs to probe, and a seed.
#[derive(Clone, Debug)]
pub struct ProbeRequest {
    /// CPUs to measure. Load latency and refill time are measured on the first CPU, which must be the one on which the colors were found.
    pub cpus: Vec<CpuId>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Largest number of CPUs that are tested against the first CPU for sharing.
const PARTNERS: usize = 4;
/// Most memory that a flood of a level may use. A level that needs more is not tested.
const FLOOD_LIMIT: Bytes = Bytes(512 << 20);

/// Measures this machine, and writes the results into `machine` with [`Source::Measured`]: rate and step of the counter, load latency, the
/// refill time of a color of the pool's level, its replacement policy, the costs that the analysis charges, and for each data level whether CPUs evict each other
/// and how long contents last.
///
/// `machine`: this machine, as [`Sysfs::machine`] declares it. `pool`: pages of known colors of a level; without them refill times are not
/// measured. `progress` is called with a description of the present step. An interrupt ends the probe early with the results so far.
///
/// Returns notes on what could not be measured and why, including CPUs on which the calling thread may not run, and on what contradicts the
/// declared values.
pub fn probe(
    machine: &mut Machine,
    pool: Option<(&FramePool, u8)>,
    request: &ProbeRequest,
    mut progress: impl FnMut(&str),
) -> Vec<Note> {
    let mut notes = Vec::new();
    let cpus = usable(&request.cpus, &mut notes);

    progress("clock");
    machine.counter_hz = Some(measured(clock::rate_hz()));
    machine.counter_quantum = Some(measured(clock::measure_quantum()));

    let first = cpus.first().copied().filter(|first| request.cpus.first() == Some(first));
    if let Some((first, _pinned)) = first.and_then(|first| Some((first, pin(first, &mut notes)?))) {
        progress("load latency");
        latency::measure(machine, first, request.seed, &mut notes);
        if let Some((pool, level)) = pool {
            for (name, measure) in BY_COLOR {
                progress(name);
                measure(machine, first, pool, level, request.seed, &mut notes);
            }
        }
    }

    // Where cores differ, one level has several shapes; each is measured on its own CPUs.
    for index in 0..machine.levels.len() {
        if interrupt::interrupted() {
            break;
        }
        data_level(machine, index, &cpus, PARTNERS, request.seed, &mut progress, &mut notes);
    }
    note_interrupt(&mut notes);
    notes
}

/// Measures how long the contents of data level `level` last on each of the CPUs, and writes it into `machine`. Returns notes as [`probe`] does.
/// That of the first level is not measured.
pub fn retention_of(machine: &mut Machine, level: u8, request: &ProbeRequest) -> Vec<Note> {
    let mut notes = Vec::new();
    let cpus = usable(&request.cpus, &mut notes);
    for index in 0..machine.levels.len() {
        if level > 1 && machine.levels[index].level == level {
            data_level(machine, index, &cpus, 0, request.seed, &mut |_| {}, &mut notes);
        }
    }
    note_interrupt(&mut notes);
    notes
}

fn note_interrupt(notes: &mut Vec<Note>) {
    if interrupt::interrupted() {
        notes.push(note("probe", "interrupted before everything was measured".to_owned(), "run it again"));
    }
}

/// Returns those of `cpus` that this thread can run on, so that no value is attributed to the wrong CPU.
fn usable(cpus: &[CpuId], notes: &mut Vec<Note>) -> Vec<CpuId> {
    cpus.iter().copied().filter(|&cpu| pin(cpu, notes).is_some()).collect()
}

/// Measures a level on those of `cpus` that it serves: whether the first of them and at most `partner_count` other CPUs evict each other's
/// contents, and how long contents last. Levels for instructions are left out; the first level has no retention.
fn data_level(
    machine: &mut Machine,
    index: usize,
    cpus: &[CpuId],
    partner_count: usize,
    seed: u64,
    progress: &mut impl FnMut(&str),
    notes: &mut Vec<Note>,
) {
    let level = &machine.levels[index];
    let served: Vec<CpuId> = cpus.iter().copied().filter(|&cpu| level.serves(cpu)).collect();
    let Some(&first) = served.first().filter(|_| level.holds != Holds::Instruction) else { return };
    let subject = name(level);
    let Some(pinned) = pin(first, notes) else { return };
    progress(&format!("{subject}: calibrating"));
    let partners: Vec<CpuId> = cpus.iter().copied().filter(|&cpu| cpu != first).take(partner_count).collect();
    let missing =
        if partners.is_empty() { "retention was not measured" } else { "sharing and retention were not measured" };
    let mut primed = match Primed::calibrate(sizes(machine, level, &served), seed) {
        Ok(primed) => primed,
        Err(reason) => return notes.push(failed(&subject, missing, &reason)),
    };
    let level = &mut machine.levels[index];
    if !partners.is_empty() {
        progress(&format!("{subject}: sharing"));
        sharing::measure(level, &mut primed, first, &partners, notes);
    }
    drop(pinned);
    level.retention.clear();
    // The retention of the first level is not measured: the kernel and interrupts replace its contents all the time.
    if level.level > 1 {
        for &cpu in &served {
            progress(&format!("{subject}: retention on CPU {}", cpu.0));
            retention::measure(level, &mut primed, cpu, seed, notes);
        }
    }
}

/// A measurement of a cache level with pages of known color: on the CPU of the calling thread, with a pool, a level and a seed. It writes its
/// result into the machine, and adds a note where it fails.
type ByColor = fn(&mut Machine, CpuId, &FramePool, u8, u64, &mut Vec<Note>);

/// All such measurements, with their names, in order.
const BY_COLOR: [(&str, ByColor); 3] =
    [("refill time", refill::measure), ("costs to charge", costs::measure), ("replacement", replacement::measure)];

/// Measures the refill time of a color of `level` on `cpu`, the costs that the analysis charges, and the replacement policy, and writes them into
/// `machine`. Returns notes on what could not be measured and why.
pub fn refill_time(machine: &mut Machine, cpu: CpuId, pool: &FramePool, level: u8, seed: u64) -> Vec<Note> {
    let mut notes = Vec::new();
    if let Some(_pinned) = pin(cpu, &mut notes) {
        for (_, measure) in BY_COLOR {
            measure(machine, cpu, pool, level, seed, &mut notes);
        }
    }
    notes
}

/// Pins the calling thread to `cpu` until the returned guard is dropped. If that fails, adds a note with the reason and returns `None`.
fn pin(cpu: CpuId, notes: &mut Vec<Note>) -> Option<RealtimeSettings> {
    let pinned = RealtimeRequest::new().pin(cpu).apply();
    notes.extend_from_slice(pinned.notes());
    pinned.notes().is_empty().then_some(pinned)
}

fn measured<T>(value: T) -> Fact<T> {
    Fact { value, source: Source::Measured }
}

fn note(subject: &str, reason: String, hint: &str) -> Note {
    Note { subject: subject.to_owned(), reason, hint: hint.to_owned() }
}

/// Returns a note on `subject`: the consequence `what`, and the text and hint of the error that caused it.
fn failed(subject: &str, what: &str, error: &ColorError) -> Note {
    // The hint of this error is about the limit for finding colors, which does not apply here.
    if let ColorError::TooLittleMemory { limit, needed } = error {
        let reason = format!("{what}: {needed} of memory are needed, {limit} may be taken");
        return note(subject, reason, "free some memory: a quarter of what is available is taken, at most 512 MiB");
    }
    let text = error.to_string();
    let (reason, hint) = text.split_once("\n  hint: ").unwrap_or((&text, "run it while nothing else does"));
    note(subject, format!("{what}: {reason}"), hint)
}

fn name(level: &CacheLevel) -> String {
    format!("level {}{}", level.level, if level.holds == Holds::Data { " (data)" } else { "" })
}

/// Returns the indices of the data levels that serve `cpu`, innermost first.
fn data_levels(machine: &Machine, cpu: CpuId) -> Vec<usize> {
    let holds_data = |level: &CacheLevel| level.holds != Holds::Instruction && level.serves(cpu);
    (0..machine.levels.len()).filter(|&i| holds_data(&machine.levels[i])).collect()
}

/// Returns the size of the largest data level that any of `cpus` has inside `level`; 0 for the innermost level. Cores of different kinds may
/// share a level although their inner levels differ.
fn inner_bytes(machine: &Machine, level: &CacheLevel, cpus: &[CpuId]) -> Bytes {
    let inner = |cpu: CpuId| (1..level.level).filter_map(move |inside| machine.data_level_of(inside, cpu));
    let sizes = cpus.iter().flat_map(|&cpu| inner(cpu)).map(|l| l.geometry.value.cache_bytes());
    sizes.max().unwrap_or_default()
}

/// Returns the sizes for an eviction test of `level` on any of `cpus`.
fn sizes(machine: &Machine, level: &CacheLevel, cpus: &[CpuId]) -> LevelSizes {
    LevelSizes {
        line_bytes: level.geometry.value.line_bytes.0 as usize,
        inner: inner_bytes(machine, level, cpus),
        level: level.geometry.value.cache_bytes(),
    }
}

/// Converts nanoseconds to ticks.
fn ticks(ns: u64) -> Cycles {
    Cycles((ns as f64 * clock::rate_hz() as f64 / 1e9) as u64)
}

/// Converts ticks to nanoseconds.
fn nanoseconds(ticks: f64) -> f64 {
    ticks * 1e9 / clock::rate_hz() as f64
}

/// Returns the most memory that a measurement may take: a quarter of the available memory, or [`FLOOD_LIMIT`] if that is unknown.
fn memory_limit(sysfs: &Sysfs) -> Bytes {
    sysfs.memory("MemAvailable").map_or(FLOOD_LIMIT, |available| Bytes(available.0 / 4))
}

/// Maps `bytes` of memory; fails if they exceed [`memory_limit`]. More than a huge page is mapped in huge pages, so that page tables neither
/// cost time nor occupy the cache.
fn memory(bytes: u64) -> Result<Arena, ColorError> {
    let limit = memory_limit(&Sysfs::system());
    if bytes > limit.0 {
        return Err(ColorError::TooLittleMemory { limit, needed: Bytes(bytes) });
    }
    let pages = (bytes as usize).div_ceil(page_bytes());
    let huge = Sysfs::system().huge_page_bytes().unwrap_or(page_bytes());
    let arena = if bytes > huge as u64 { Arena::map_huge(pages, huge) } else { Arena::map(pages) };
    Ok(arena.map_err(|source| SystemError::Memory { pages, source })?)
}

/// Divisor of the size of a level. The quotient is the size of the primed part, which is small enough not to be replaced.
const PRIMED: u64 = 8;
/// Least number of pages that are primed.
const PRIMED_AT_LEAST: usize = 2;
/// Greatest number of primed pages that are walked for one sample.
const SAMPLED: usize = 64;

/// Number of attempts at a calibration.
const CALIBRATIONS: usize = 3;

/// A level that can be primed and tested for evictions by time.
pub struct Primed {
    eviction_test: TimedEvictionTest,
    sizes: LevelSizes,
    /// Pages that evict the targets from the inner level.
    inner: Vec<u32>,
    targets: Vec<u32>,
    sample: Vec<u32>,
    rng: fastrand::Rng,
}

impl Primed {
    /// Calibrates an eviction test of a level on the CPU of the calling thread.
    ///
    /// Fails if hits and misses take about the same time, or if the level is too large for the available memory.
    pub fn calibrate(sizes: LevelSizes, seed: u64) -> Result<Primed, ColorError> {
        if 4 * sizes.level.0 > FLOOD_LIMIT.0 {
            return Err(ColorError::TooLittleMemory { limit: FLOOD_LIMIT, needed: Bytes(4 * sizes.level.0) });
        }
        let calibrate =
            || TimedEvictionTest::calibrate(memory((sizes.pages_needed() * page_bytes()) as u64)?, sizes, seed);
        // A neighbor may empty the level during a calibration, but seldom does so for seconds.
        let mut eviction_test = calibrate();
        for _ in 1..CALIBRATIONS {
            if eviction_test.as_ref().is_err_and(ColorError::may_pass) {
                eviction_test = calibrate();
            }
        }
        let mut eviction_test = eviction_test?;
        // The innermost level has no inner level that could hold the targets as well.
        let inner = if sizes.inner.0 == 0 { 0 } else { sizes.inner_pages() as u32 };
        let targets = (sizes.level.0 / PRIMED) as usize / page_bytes();
        let targets: Vec<u32> = (inner..inner + targets.max(PRIMED_AT_LEAST) as u32).collect();
        eviction_test.make_ready(0..inner + targets.len() as u32);
        let rng = fastrand::Rng::with_seed(seed);
        Ok(Primed { eviction_test, sizes, inner: (0..inner).collect(), sample: targets.clone(), targets, rng })
    }

    /// Brings the targets into the level, and evicts them from the inner level.
    fn prime(&mut self) {
        self.rng.shuffle(&mut self.sample);
        for _ in 0..2 {
            self.eviction_test.prepare(&self.inner, &self.targets, 1);
        }
    }

    /// Returns the share of the sampled primed lines that were evicted.
    fn share_gone(&mut self) -> f64 {
        let sampled = self.sample.len().min(SAMPLED);
        self.eviction_test.share_gone(&self.sample[..sampled])
    }
}
