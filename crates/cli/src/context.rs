//! The context of every measuring verb: the machine, the CPU to measure on, settings, colored memory.

use anyhow::{Context as _, Result, ensure};
use indicatif::ProgressBar;
use isochrome_host::color::pool::FramePool;
use isochrome_host::color::{Collection, Survey, Target};
use isochrome_host::counters::Counters;
use isochrome_host::counters::events::{Event, Quantity, event, miss_events};
use isochrome_host::machine::setting::{RealtimeRequest, RealtimeSettings};
use isochrome_host::machine::sysfs::{Note, Processor, Sysfs};
use isochrome_host::sys::clock;
use isochrome_lab::runner::Amount;
use isochrome_model::evidence::PaletteEvidence;
use isochrome_model::machine::Machine;
use isochrome_model::miss_ratio::Touches;
use isochrome_model::palette::Method;
use isochrome_model::units::{Bytes, CpuId, Ns, format_list, parse_list};

use crate::args::{By, MeasurementOptions};
use crate::progress::Takes;
use crate::{evidence, progress};

/// SCHED_FIFO priority of measured jobs: above ordinary real-time programs, below what the kernel's own threads use by default.
const FIFO_PRIORITY: u8 = 40;

/// Pages of each color per way: enough for floods of two kinds, and as many again for tasks.
const PAGES_PER_WAY: usize = 6;

/// Bytes of stack that are touched before anything is timed.
const STACK: Bytes = Bytes(256 << 10);

/// Error for colors that were found but cannot be trusted, so that all results with them would be inconclusive.
#[derive(Debug, thiserror::Error)]
#[error(
    "the palette is in doubt: {0}\n  hint: try again when the machine is less busy, or on another CPU (--cpu); `isochrome palette --verify` shows the state"
)]
pub struct InDoubt(String);

/// The machine that a verb measures on, the CPU it measures on, and the seed of its random choices.
pub struct Context {
    /// The files that describe the machine.
    pub sysfs: Sysfs,
    /// Description of the machine.
    pub machine: Machine,
    /// Notes about facts of the machine that could not be learned.
    pub notes: Vec<Note>,
    /// The processor.
    pub processor: Processor,
    /// CPUs this process may run on.
    pub allowed: Vec<CpuId>,
    /// The CPU that measurements run on.
    pub cpu: CpuId,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Context {
    /// Reads the machine as [`Context::at`] does, and prints the CPU and the seed. The seed is drawn if `measurement` has none.
    pub fn new(measurement: &MeasurementOptions) -> Result<Context> {
        let context = Context::at(measurement.cpu, seed(measurement.seed))?;
        eprintln!("on CPU {}, seed {}", context.cpu.0, context.seed);
        Ok(context)
    }

    /// Reads the machine and chooses the CPU, by default the last allowed one. Changes nothing.
    pub fn at(cpu: Option<u32>, seed: u64) -> Result<Context> {
        ensure!(
            clock::usable(),
            "this processor's counter cannot be read in order (no RDTSCP)\n  hint: in a virtual machine, ask the host to pass it on"
        );
        let sysfs = Sysfs::system();
        let (machine, notes) = sysfs.machine()?;
        let processor = sysfs.processor()?;
        let allowed = isochrome_host::machine::setting::allowed_cpus()?;
        let cpu = match cpu {
            Some(cpu) if allowed.contains(&CpuId(cpu)) => CpuId(cpu),
            Some(cpu) => {
                let list: Vec<u32> = allowed.iter().map(|c| c.0).collect();
                let hint = format!("hint: choose among {}", format_list(&list));
                anyhow::bail!("CPU {cpu} is not one this process may run on\n  {hint}")
            }
            None => *allowed.last().context("this process may run on no CPU")?,
        };
        Ok(Context { sysfs, machine, notes, processor, allowed, cpu, seed })
    }

    /// Pins the calling thread to the CPU of the context, at real-time priority if that is permitted.
    pub fn settle(&self) -> RealtimeSettings {
        // Memory is not locked: a lock does not keep frames in place, and pages that are used all the time are not swapped.
        RealtimeRequest::new().pin(self.cpu).fifo(FIFO_PRIORITY).timer_slack(Ns(1)).prefault_stack(STACK).apply()
    }

    /// Pins the calling thread to the CPU of the context.
    pub fn pin(&self) -> RealtimeSettings {
        RealtimeRequest::new().pin(self.cpu).apply()
    }

    /// Returns warnings about facts of the machine that could not be learned, and about settings that could not be made.
    pub fn warnings(&self, settings: &RealtimeSettings) -> Vec<String> {
        self.notes.iter().chain(settings.notes()).map(evidence::note_text).collect()
    }

    /// Returns the amount of `blocks` blocks of `samples` samples, with the seed and the CPU of this context.
    pub fn amount(&self, blocks: u32, samples: u32) -> Amount {
        Amount { blocks: blocks as usize, samples: samples as usize, seed: self.seed, cpu: self.cpu, limit: None }
    }

    /// Returns the cache level to color: that of `measurement`, or the default one.
    pub fn target(&self, measurement: &MeasurementOptions) -> Result<Target> {
        Ok(Target::of(&self.machine, measurement.level, self.cpu)?)
    }

    /// Surveys `pages` pages with the options in `measurement`. Returns the survey and the number of attempts; see [`Survey::patiently`].
    pub fn survey(&self, measurement: &MeasurementOptions, target: Target, pages: usize) -> Result<(Survey, u64)> {
        let start = |attempt| {
            let (memory, seed) = (measurement.memory(), self.seed.wrapping_add(attempt));
            match method(measurement.by) {
                Some(method) => {
                    Survey::start_by(method, target, Survey::memory(target, memory)?, &self.processor, seed)
                }
                None => Survey::start(target, memory, &self.processor, seed),
            }
        };
        Ok(Survey::patiently(pages, start)?)
    }

    /// Finds the colors of enough pages for experiments, which need floods of every color and memory of tasks, and verifies the colors.
    ///
    /// Fails with [`InDoubt`] if the colors cannot be trusted.
    ///
    /// `own`: number of colors of the task, if it was chosen already.
    pub fn collect(
        &self,
        measurement: &MeasurementOptions,
        target: Target,
        own: Option<usize>,
    ) -> Result<(PaletteEvidence, FramePool)> {
        /// Number of pages of the largest task, including canary pages, with room to spare.
        const TASK_PAGES: usize = 64;
        let task = own.map_or(0, |colors| TASK_PAGES.div_ceil(colors.max(1)));
        self.collect_pages(measurement, target, target.geometry.ways as usize * PAGES_PER_WAY + task)
    }

    /// Does the same as [`Context::collect`] for a task without colors, and finds at least `pages` pages of every color.
    pub fn collect_at_least(
        &self,
        measurement: &MeasurementOptions,
        target: Target,
        pages: usize,
    ) -> Result<(PaletteEvidence, FramePool)> {
        self.collect_pages(measurement, target, pages.max(target.geometry.ways as usize * PAGES_PER_WAY))
    }

    /// Finds `wanted` pages of every color on the CPU of the context, and verifies the colors. Returns evidence of the palette, and the pages.
    ///
    /// Fails with [`InDoubt`] if the colors cannot be trusted.
    pub fn collect_pages(
        &self,
        measurement: &MeasurementOptions,
        target: Target,
        wanted: usize,
    ) -> Result<(PaletteEvidence, FramePool)> {
        let _settings = self.pin();
        let _bar = finding_colors("the measurements with these colors");
        let (mut survey, _) = self.survey(measurement, target, 0)?;
        survey.classify_until(wanted)?;
        let mut doubts: Vec<String> = survey.inference().doubts.iter().map(ToString::to_string).collect();
        let failed = survey.verify().failed();
        if !failed.is_empty() {
            doubts.push(format!("color {} fails an eviction test of its own", format_list(&failed)));
        }
        if !doubts.is_empty() {
            return Err(InDoubt(doubts.join("; ")).into());
        }
        let found = survey.finish();
        let evidence = found.evidence();
        let Collection { arena, inference, .. } = found;
        Ok((evidence, FramePool::new(arena, &inference.page_colors, inference.palette.colors)))
    }

    /// Opens counters of the data misses of `level`, by the first event that proves to count them, and of `also` if the machine counts both.
    /// `None` if the misses cannot be counted.
    pub fn counters(&self, level: u8, also: Option<Quantity>) -> Option<Counters> {
        let also = also.and_then(|quantity| event(&self.processor, quantity));
        miss_events(&self.processor, level, Touches::Data).find_map(|misses| {
            let events: Vec<Event> = [misses].into_iter().chain(also).collect();
            Counters::open(&events).or_else(|_| Counters::open(&events[..1])).ok()
        })
    }
}

/// Returns the CPUs in `list`. Fails if one of them is not in `may`, or if the list is empty.
pub fn listed_cpus(list: &str, may: &[CpuId]) -> Result<Vec<CpuId>> {
    let may = may.iter().map(|cpu| cpu.0).collect::<Vec<_>>();
    let cpus = parse_list(list, may.iter().max().map_or(0, |last| last + 1))?;
    ensure!(
        !cpus.is_empty() && cpus.iter().all(|cpu| may.contains(cpu)),
        "`{list}` names no CPU, or a CPU that is not available\n  hint: choose among {}",
        format_list(&may)
    );
    Ok(cpus.into_iter().map(CpuId).collect())
}

/// Returns the requested seed, or a random one if none was requested.
pub fn seed(requested: Option<u64>) -> u64 {
    // Few digits, so that people can copy the seed without mistakes.
    requested.unwrap_or_else(|| fastrand::u64(..1_000_000))
}

/// Returns the requested method; `None` for [`By::Auto`], which uses the first method that works.
pub fn method(by: By) -> Option<Method> {
    match by {
        By::Auto => None,
        By::Bits => Some(Method::Bits),
        By::Timing => Some(Method::Timing),
        By::Counters => Some(Method::Counters),
    }
}

/// Begins the progress step of finding the colors, which `next` follows.
pub fn finding_colors(next: &'static str) -> ProgressBar {
    progress::step("finding colors", Takes::Words("seconds; a minute or more on a busy machine"), next)
}
