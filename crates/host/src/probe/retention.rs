//! Retention: the share of the lines primed in a level that is still there after a wait in which the CPU touched nothing.
//!
//! Lost lines were displaced by the kernel while the CPU slept, by CPUs that share the level, or in a virtual machine by unseen
//! neighbors. If a level loses its contents within a task's period anyway, partitioning has no visible effect on the task.

use std::time::{Duration, Instant};

use isochrome_model::machine::{CacheLevel, Holds, Machine, Retention, Waiting};
use isochrome_model::stats::median;
use isochrome_model::units::{Bytes, CpuId, Ns};

use crate::color::eviction::LevelSizes;
use crate::interrupt;
use crate::machine::setting::RealtimeRequest;
use crate::machine::sysfs::Note;
use crate::sys::clock;

use super::{Primed, name, nanoseconds, note, sizes, ticks};

/// Lengths of the waits, in ns. The first one shows the loss by the measurement alone.
const WAITS_NS: [u64; 6] = [0, 10_000, 50_000, 200_000, 1_000_000, 10_000_000];
/// Largest ratio of a wait to its requested length at which a sample counts, because sleeps may end late.
const LATE: f64 = 1.5;
/// Least number of samples for a wait to be reported.
const SAMPLES_MIN: usize = 15;
/// Number of samples per wait after which the measurement ends.
const SAMPLES_WANTED: usize = 30;
/// Time after which the measurement of one level on one CPU ends.
const TIME: Duration = Duration::from_millis(1100);
/// Largest share that may be lost without a wait. Above it, samples after a wait show nothing.
const LOST_AT_ONCE: f64 = 0.5;

/// Waits for `ns` nanoseconds, and returns whether the wait took about that long.
fn wait(ns: u64, waiting: Waiting) -> bool {
    let begin = clock::now();
    match waiting {
        _ if ns == 0 => return true,
        Waiting::Busy => clock::spin_until(isochrome_model::units::Cycles(begin.0 + ticks(ns).0)),
        Waiting::Asleep => std::thread::sleep(Duration::from_nanos(ns)),
    }
    nanoseconds((clock::now().0 - begin.0) as f64) <= LATE * ns as f64
}

/// Summarizes the shares lost in the samples after one wait; `None` if there are too few.
fn summary(cpu: CpuId, waiting: Waiting, wait_ns: u64, shares: &[f64]) -> Option<Retention> {
    (shares.len() >= SAMPLES_MIN).then_some(())?;
    Some(Retention {
        cpu,
        waiting,
        wait_ns: Ns(wait_ns),
        lost_median: median(shares)?,
        lost_min: shares.iter().copied().fold(f64::INFINITY, f64::min),
        lost_max: shares.iter().copied().fold(0.0, f64::max),
        samples: shares.len() as u32,
    })
}

/// Samples the shares lost in waits, for `rounds` rounds, and adds them to `kinds`: the way to wait, the length of the wait, and its shares. Sorts
/// the kinds.
fn sample(primed: &mut Primed, kinds: &mut [(Waiting, u64, Vec<f64>)], rounds: usize, rng: &mut fastrand::Rng) {
    let begin = Instant::now();
    // Each round samples all kinds, so that the samples of each kind are spread over the whole time.
    for _ in 0..rounds {
        if begin.elapsed() > TIME || interrupt::interrupted() {
            break;
        }
        rng.shuffle(kinds);
        for (waiting, ns, shares) in kinds.iter_mut() {
            primed.prime();
            if wait(*ns, *waiting) {
                shares.push(primed.share_gone());
            }
        }
    }
    kinds.sort_by_key(|(waiting, ns, _)| (*waiting == Waiting::Asleep, *ns));
}

/// Measures the retention of `level` on `cpu`, and adds the results to `level`. A wait that ended late too often is left out; short sleeps
/// end late on many machines.
pub(super) fn measure(level: &mut CacheLevel, primed: &mut Primed, cpu: CpuId, seed: u64, notes: &mut Vec<Note>) {
    let pinned = RealtimeRequest::new().pin(cpu).timer_slack(Ns(1)).apply();
    if let Some(failed) = pinned.notes().iter().find(|note| note.subject.contains("CPU")) {
        notes.push(failed.clone());
        return;
    }
    let subject = format!("retention of {} on CPU {}", name(level), cpu.0);
    let mut rng = fastrand::Rng::with_seed(seed ^ u64::from(cpu.0));
    // Without a wait busy and asleep are the same.
    let mut kinds: Vec<(Waiting, u64, Vec<f64>)> = WAITS_NS.iter().map(|&ns| (Waiting::Busy, ns, Vec::new())).collect();
    kinds.extend(WAITS_NS[1..].iter().map(|&ns| (Waiting::Asleep, ns, Vec::new())));
    sample(primed, &mut kinds, SAMPLES_WANTED, &mut rng);
    let at_once = median(&kinds[0].2).unwrap_or(1.0);
    if at_once > LOST_AT_ONCE {
        notes.push(note(
            &subject,
            format!("not measured: {:.0} % is gone even without a wait", 100.0 * at_once),
            "something uses this level all the time; try again when the machine and its host are idle",
        ));
        return;
    }
    let mut seen = [false; 2];
    for (waiting, ns, shares) in kinds {
        if let Some(retention) = summary(cpu, waiting, ns, &shares) {
            seen[usize::from(waiting == Waiting::Asleep)] |= ns > 0;
            level.retention.push(retention);
        }
    }
    for (seen, how) in seen.into_iter().zip(["busy", "asleep"]) {
        if !seen {
            let reason = format!("no wait came about {SAMPLES_MIN} times in the given time while the CPU was {how}");
            notes.push(note(
                &subject,
                reason,
                "other programs or the host hold the CPU; run it while nothing else does",
            ));
        }
    }
}

/// Lengths of the waits of a [`Monitor`], in ns. It waits busily, so that no program of this machine gets the CPU during a wait.
const MONITORED_NS: [u64; 3] = [0, 50_000, 1_000_000];
/// Size of the largest level that a [`Monitor`] samples. The eviction test of a level holds four times as much memory for each CPU.
const MONITORED_MAX: Bytes = Bytes(4 << 20);

/// Samples again and again, at little cost, how long cache levels keep their contents while this machine's programs touch nothing.
pub struct Monitor {
    levels: Vec<(CpuId, u8, LevelSizes, Option<Primed>)>,
    rng: fastrand::Rng,
}

impl Monitor {
    /// Returns a monitor of all data levels of `machine` on `cpus`, but for the first level, which the kernel and interrupts empty all the time, and for
    /// those that are larger than 4 MiB.
    pub fn new(machine: &Machine, cpus: &[CpuId], seed: u64) -> Monitor {
        let of = |cpu: CpuId| {
            let is_monitored = move |level: &&CacheLevel| {
                let bytes = level.geometry.value.cache_bytes();
                level.level > 1 && level.holds != Holds::Instruction && level.serves(cpu) && bytes <= MONITORED_MAX
            };
            let levels = machine.levels.iter().filter(is_monitored);
            levels.map(move |level| (cpu, level.level, sizes(machine, level, &[cpu]), None))
        };
        Monitor { levels: cpus.iter().copied().flat_map(of).collect(), rng: fastrand::Rng::with_seed(seed) }
    }

    /// Samples every level on every CPU, some 20 ms each, and returns the levels with their retention. Levels that cannot be measured now are left
    /// out.
    pub fn sample(&mut self) -> Vec<(u8, Retention)> {
        let mut all = Vec::new();
        for (cpu, level, sizes, primed) in &mut self.levels {
            let pinned = RealtimeRequest::new().pin(*cpu).apply();
            if !pinned.notes().is_empty() || interrupt::interrupted() {
                continue;
            }
            if primed.is_none() {
                *primed = Primed::calibrate(*sizes, self.rng.u64(..)).ok();
            }
            let Some(primed) = primed else { continue };
            let mut kinds = MONITORED_NS.map(|ns| (Waiting::Busy, ns, Vec::new()));
            sample(primed, &mut kinds, SAMPLES_MIN + SAMPLES_MIN / 3, &mut self.rng);
            let found = kinds.iter().filter_map(|(waiting, ns, shares)| summary(*cpu, *waiting, *ns, shares));
            all.extend(found.map(|retention| (*level, retention)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_needs_its_samples_and_keeps_the_extremes() {
        let shares: Vec<f64> = (0..15).map(|i| f64::from(i) / 20.0).collect();
        let summary = |shares: &[f64]| super::summary(CpuId(1), Waiting::Asleep, 50_000, shares);
        let all = summary(&shares).unwrap();
        assert_eq!((all.lost_min, all.lost_median, all.lost_max, all.samples), (0.0, 0.35, 0.7, 15));
        assert_eq!(summary(&shares[1..]), None);
    }
}
