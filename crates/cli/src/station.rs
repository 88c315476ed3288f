//! What every measuring verb begins with: the machine, a CPU to measure on, settings, colored memory.

use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use isochrome_host::counters::Counters;
use isochrome_host::error::HostError;
use isochrome_host::events::{Event, Quantity, event};
use isochrome_host::palette::{Collection, Survey, Target, miss_event};
use isochrome_host::setting::{RealtimeRequest, RealtimeSettings};
use isochrome_host::sysfs::{Note, Processor, Sysfs};
use isochrome_model::machine::Machine;
use isochrome_model::palette::Method;
use isochrome_model::units::{Bytes, CpuId, Ns};

use crate::args::{By, Place};

/// Priority of measured jobs: above ordinary real-time programs, below what the kernel's own threads use by default.
const FIFO_PRIORITY: u8 = 40;

/// Surveys tried while their outcome is in doubt.
const ATTEMPTS: u64 = 3;

/// Colors that were found but cannot be trusted: what would rest on them is inconclusive.
#[derive(Debug)]
pub struct InDoubt(String);

impl std::fmt::Display for InDoubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the palette is in doubt: {}\n  hint: try again when the machine is quieter, or on another CPU (--cpu); `isochrome palette --verify` \
             shows the state",
            self.0
        )
    }
}

impl std::error::Error for InDoubt {}

/// A machine to measure on.
pub struct Station {
    /// Its files.
    pub sysfs: Sysfs,
    /// What is known of it.
    pub machine: Machine,
    /// What could not be learned.
    pub notes: Vec<Note>,
    /// The processor.
    pub processor: Processor,
    /// Where measurements run.
    pub cpu: CpuId,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Station {
    /// Reads the machine and chooses the CPU; changes nothing.
    pub fn new(place: &Place) -> Result<Station> {
        let sysfs = Sysfs::system();
        let (machine, notes) = sysfs.machine()?;
        let processor = sysfs.processor()?;
        let allowed = isochrome_host::setting::allowed_cpus()?;
        let cpu = match place.cpu {
            Some(cpu) if allowed.contains(&CpuId(cpu)) => CpuId(cpu),
            Some(cpu) => {
                let list: Vec<u32> = allowed.iter().map(|c| c.0).collect();
                anyhow::bail!(
                    "CPU {cpu} is not one this process may run on\n  hint: choose among {}",
                    isochrome_model::units::format_list(&list)
                )
            }
            None => *allowed.last().context("this process may run on no CPU")?,
        };
        Ok(Station { sysfs, machine, notes, processor, cpu, seed: place.seed.unwrap_or_else(|| fastrand::u64(..)) })
    }

    /// Pins the calling thread to the station's CPU, at real-time priority where that is permitted.
    pub fn settle(&self) -> RealtimeSettings {
        RealtimeRequest::new().pin(self.cpu).fifo(FIFO_PRIORITY).timer_slack(Ns(1)).apply()
    }

    /// Pins the calling thread to the station's CPU.
    pub fn pin(&self) -> RealtimeSettings {
        RealtimeRequest::new().pin(self.cpu).apply()
    }

    /// The level to color.
    pub fn target(&self, place: &Place) -> Result<Target> {
        Ok(Target::of(&self.machine, place.level, self.cpu)?)
    }

    /// Surveys `pages` pages as `place` asks, again while the outcome is in doubt or a disturbance kept it from starting.
    pub fn survey(&self, place: &Place, target: Target, pages: usize) -> Result<Survey> {
        for attempt in 0.. {
            let last = attempt + 1 == ATTEMPTS;
            match self.survey_once(place, target, self.seed.wrapping_add(attempt)) {
                Ok(mut survey) => {
                    survey.classify(pages);
                    if last || survey.inference().doubts.is_empty() {
                        return Ok(survey);
                    }
                }
                Err(error) if last || !error.may_pass() => return Err(error.into()),
                Err(_) => {}
            }
        }
        unreachable!("the last attempt returns")
    }

    fn survey_once(&self, place: &Place, target: Target, seed: u64) -> Result<Survey, HostError> {
        match method(place.by) {
            Some(method) => {
                Survey::start_by(method, target, Survey::memory(target, place.memory)?, &self.processor, seed)
            }
            None => Survey::start(target, place.memory, &self.processor, seed),
        }
    }

    /// Finds the colors of enough pages for experiments (floods of every color and tasks, twice over), and verifies them.
    ///
    /// Fails with [`InDoubt`] when the colors cannot be trusted.
    pub fn collect(&self, place: &Place, target: Target) -> Result<Collection> {
        const PAGES_PER_WAY: usize = 6;
        let mut survey = self.survey(place, target, 0)?;
        survey.classify_until(target.geometry.ways as usize * PAGES_PER_WAY)?;
        let mut doubts: Vec<String> = survey.inference().doubts.iter().map(ToString::to_string).collect();
        // One verification can be disturbed; colors that are none never pass.
        if !(0..ATTEMPTS).any(|_| survey.verify().holds()) {
            doubts.push("the colors do not pass an eviction test of their own".to_owned());
        }
        if !doubts.is_empty() {
            return Err(InDoubt(doubts.join("; ")).into());
        }
        Ok(survey.finish())
    }

    /// Counters of level-2 and level-1 misses, where the machine has them.
    pub fn counters(&self) -> Option<Counters> {
        let events: Vec<Event> = [miss_event(&self.processor, 2), event(&self.processor, Quantity::L1DataRefills)]
            .into_iter()
            .flatten()
            .collect();
        // Level 2 must come first; without it the others say little.
        miss_event(&self.processor, 2)?;
        Counters::open(&events).or_else(|_| Counters::open(&events[..1])).ok()
    }
}

/// The method asked for; `None` for the first that works.
pub fn method(by: By) -> Option<Method> {
    match by {
        By::Auto => None,
        By::Bits => Some(Method::Bits),
        By::Timing => Some(Method::Timing),
        By::Counters => Some(Method::Counters),
    }
}

/// A progress bar on standard error; nothing where that is no terminal.
pub fn progress(what: &str, length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length).with_message(what.to_owned());
    let style = ProgressStyle::with_template("{msg:28} {wide_bar} {pos}/{len} {eta:>4}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A sign of life on standard error for work of unknown length; nothing where that is no terminal.
pub fn spinner(what: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// `bytes` in the units of the command line.
pub fn pages_in(bytes: Bytes, page_bytes: Bytes) -> u64 {
    bytes.0 / page_bytes.0.max(1)
}
