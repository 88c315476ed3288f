//! The supply of a CPU, seen by a thread that does nothing but read the clock.
//!
//! A gap is a pair of readings that are further apart than a threshold. Between them the hypervisor, the kernel or a thread of higher
//! priority had the CPU. The thread cannot tell which, and a task cannot either, so all gaps count.
//!
//! The thread has the lowest real-time priority that a run gives its tasks. The kernel takes the CPU from such threads when they have used up the
//! time that it leaves to them in every period (RT throttling; kernel.sched_rt_runtime_us). The tasks of a schedulable set never use up that time. So
//! the thread watches in bursts, and pauses in between for long enough that it is not throttled.

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use isochrome_model::machine::Machine;
use isochrome_model::supply::{CpuSupply, Gap, Recording, Supply};
use isochrome_model::units::{CpuId, Cycles, Ns, format_list};

use super::{measured, nanoseconds, note, ticks};
use crate::interrupt;
use crate::machine::setting::RealtimeRequest;
use crate::machine::sysfs::{Note, Sysfs};
use crate::sys::clock;

/// Longest time between two readings of the clock that is not a gap.
///
/// The interrupt of a tick, which takes less than this on the machines seen, is not a gap. A program that is profiled is interrupted by ticks as
/// well, so they are part of its execution time. Anything that takes longer counts as a gap, ticks included.
const THRESHOLD: Ns = Ns(5_000);
/// Longest time for which the clock is watched without a pause. A longer window is assumed to lose no less than such windows together.
const BURST: Ns = Ns(800_000_000);
/// Share of the time that the kernel leaves to real-time threads which a burst may use.
const SHARE: f64 = 0.8;
/// SCHED_FIFO priority of the thread: the lowest one of the tasks of a run.
const PRIORITY: u8 = 2;
/// Number of gaps in a burst for which memory is kept ready, so that recording a gap causes no page fault.
const GAPS: usize = 1 << 18;

/// Lengths of a burst and of the period after which the next burst begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bursts {
    burst: Ns,
    period: Ns,
}

impl Bursts {
    /// Returns bursts during which the kernel throttles no thread. In every period of the kernel, real-time threads use at most [`SHARE`] of the time
    /// that it leaves to them, because the bursts have the same period.
    ///
    /// Without throttling, bursts have the same pauses, because a kernel from 6.12 on serves other threads that wait for about a second.
    fn of(sysfs: &Sysfs) -> Bursts {
        let setting = |name: &str| sysfs.text(&format!("proc/sys/kernel/{name}"))?.parse::<i64>().ok();
        let period = setting("sched_rt_period_us").filter(|period| *period > 0).map_or(1_000_000, i64::unsigned_abs);
        // -1 means that nothing is throttled.
        let runtime = setting("sched_rt_runtime_us").and_then(|runtime| u64::try_from(runtime).ok());
        let runtime = runtime.unwrap_or(period).min(period);
        let burst = ((runtime * 1000) as f64 * SHARE) as u64;
        Bursts { burst: Ns(burst.min(BURST.0)), period: Ns(period * 1000) }
    }
}

/// Watches the clock on each of `cpus` for `time`, and writes the supply of each into `machine`. Half of the CPUs are watched at a time, so that the
/// others can do the other work of the machine. Returns notes on CPUs that could not be watched, or only without a real-time priority, and why.
///
/// `progress` is called with a description of the present step. An interrupt ends the measurement; the CPUs that are being watched are left out.
pub fn measure(machine: &mut Machine, cpus: &[CpuId], time: Ns, mut progress: impl FnMut(&str)) -> Vec<Note> {
    let mut notes = Vec::new();
    machine.supply.clear();
    let bursts = Bursts::of(&Sysfs::system());
    for together in cpus.chunks((cpus.len() / 2).max(1)) {
        let named = format_list(&together.iter().map(|cpu| cpu.0).collect::<Vec<_>>());
        progress(&format!("supply of CPU {named}"));
        let watched: Vec<Watched> = thread::scope(|scope| {
            let watchers: Vec<_> =
                together.iter().map(|&cpu| scope.spawn(move || watch_cpu(cpu, time, bursts))).collect();
            watchers.into_iter().map(|watcher| watcher.join().expect("a watcher does not panic")).collect()
        });
        for watched in watched {
            match watched {
                Watched::Supply(supply) => machine.supply.push(measured(supply)),
                Watched::Not(reasons) => notes.extend(reasons),
                Watched::Interrupted => {}
            }
        }
        if interrupt::interrupted() {
            break;
        }
    }
    let ordinary = machine.supply.iter().filter(|supply| !supply.value.realtime).map(|supply| supply.value.cpu.0);
    let ordinary: Vec<u32> = ordinary.collect();
    if !ordinary.is_empty() {
        let cpus = format_list(&ordinary);
        let reason = format!("CPU {cpus}: watched without a real-time priority, so other programs count as gaps");
        notes.push(note("supply", reason, "run it as root with the right to set priorities (CAP_SYS_NICE)"));
    }
    notes
}

/// Outcome of watching a CPU.
enum Watched {
    Supply(CpuSupply),
    /// The thread may not run there.
    Not(Vec<Note>),
    Interrupted,
}

/// Watches the clock on `cpu`, to which the calling thread is pinned, for `time`.
fn watch_cpu(cpu: CpuId, time: Ns, bursts: Bursts) -> Watched {
    let pinned = RealtimeRequest::new().pin(cpu).apply();
    if !pinned.notes().is_empty() {
        return Watched::Not(pinned.notes().to_vec());
    }
    let priority = RealtimeRequest::new().fifo(PRIORITY).apply();
    let realtime = priority.notes().is_empty();
    let Some(recordings) = watch(time, bursts) else { return Watched::Interrupted };
    Watched::Supply(CpuSupply {
        cpu,
        measured_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        watched_ns: Ns(recordings.iter().map(|recording| recording.length.0).sum()),
        threshold_ns: THRESHOLD,
        realtime,
        gaps: recordings.iter().map(|recording| recording.gaps.len() as u64).sum(),
        steps: Supply::of(&recordings),
    })
}

/// Watches the clock in bursts, for about `time` with pauses and at least one burst; `None` after an interrupt.
fn watch(time: Ns, Bursts { burst, period }: Bursts) -> Option<Vec<Recording>> {
    let count = (time.0 / period.0.max(1)).max(1);
    // The memory is touched now, and not while the clock is watched.
    let mut gaps = vec![(Cycles(1), Cycles(1)); GAPS];
    let begin = clock::monotonic().0 + (period.0 - burst.0) / 2;
    let mut recordings = Vec::new();
    for number in 0..count {
        clock::sleep_until(Ns(begin + number * period.0));
        if interrupt::interrupted() {
            return None;
        }
        gaps.clear();
        let length = watch_once(burst, &mut gaps);
        recordings.push(recording(length, &gaps));
    }
    Some(recordings)
}

/// Reads the clock until `burst` is over, and adds the times between readings that are gaps. Ends early if there is no memory left for gaps.
/// Returns the time from the first reading to the last one.
fn watch_once(burst: Ns, gaps: &mut Vec<(Cycles, Cycles)>) -> Cycles {
    let threshold = ticks(THRESHOLD.0).0;
    let begin = clock::now().0;
    let (mut last, end) = (begin, begin + ticks(burst.0).0);
    while last < end && gaps.len() < gaps.capacity() {
        let now = clock::now().0;
        if now.saturating_sub(last) > threshold {
            gaps.push((Cycles(last - begin), Cycles(now - begin)));
        }
        last = now;
    }
    Cycles(last - begin)
}

/// Returns the recording of `gaps`, in ns. No gap becomes shorter by rounding.
fn recording(length: Cycles, gaps: &[(Cycles, Cycles)]) -> Recording {
    let ns = |ticks: Cycles| nanoseconds(ticks.0 as f64);
    let gap = |&(start, end): &(Cycles, Cycles)| {
        // A gap is separated from the next one by one reading at least, which takes more than a nanosecond.
        let start_ns = ns(start).floor() as u64;
        Gap { start: Ns(start_ns), length: Ns((ns(end).floor() as u64).saturating_sub(start_ns).max(1)) }
    };
    Recording { length: Ns(ns(length).ceil() as u64), gaps: gaps.iter().map(gap).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_use_less_than_the_kernel_leaves_to_real_time_threads() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = folder.path().join("proc/sys/kernel");
        std::fs::create_dir_all(&kernel).unwrap();
        let with = |runtime: &str, period: &str| {
            std::fs::write(kernel.join("sched_rt_runtime_us"), runtime).unwrap();
            std::fs::write(kernel.join("sched_rt_period_us"), period).unwrap();
            let Bursts { burst, period } = Bursts::of(&Sysfs::at(folder.path()));
            (burst.0 / 1_000_000, period.0 / 1_000_000)
        };
        assert_eq!(with("950000\n", "1000000\n"), (760, 1000));
        assert_eq!(with("400000\n", "500000\n"), (320, 500));
        assert_eq!(with("-1\n", "1000000\n"), (800, 1000));
        // Bursts are no longer than what is watched at once.
        assert_eq!(with("4000000\n", "5000000\n"), (800, 5000));
    }

    #[test]
    fn gaps_lie_within_their_recording_and_apart() {
        let ticks = |us: u64| ticks(us * 1000);
        let recording =
            recording(ticks(900), &[(ticks(10), ticks(30)), (ticks(30), ticks(50)), (ticks(880), ticks(900))]);
        assert_eq!(recording.gaps.len(), 3);
        // This panics if gaps overlap or exceed the recording.
        let supply = Supply::of(&[recording]);
        assert!((39_000..41_000).contains(&supply.withheld_ns(40_000)), "{supply:?}");
    }
}
