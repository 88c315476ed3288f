//! Watches the clock on CPUs for gaps that nobody reports: in the time that the tasks of a run leave, and after the run.
//!
//! A thread reads the clock without end. If two readings are far apart, something else had the CPU in between. The kernel does not account this time
//! to the thread if another thread had the CPU, or a hypervisor that reports steal time. If the kernel does account the time to the thread, nobody
//! reports the gap.
//!
//! The thread has no real-time priority, and beside tasks the lowest of all (SCHED_IDLE), so any other thread that needs the CPU gets it. Only the
//! time that the watching thread had itself counts as watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use isochrome_model::running::UnreportedGaps;
use isochrome_model::units::{CpuId, Ns};

use crate::interrupt;
use crate::machine::setting::RealtimeRequest;
use crate::sys::clock;
use crate::sys::scheduling::Scheduling;

/// Shortest time between two readings that is a gap. The interrupt of a tick takes less on the machines seen.
const THRESHOLD: Ns = Ns(5_000);

/// Shortest gap that is looked for beside tasks. The interrupts that release them are accounted to the thread that is interrupted.
const THRESHOLD_BESIDE: Ns = Ns(20_000);

/// Most gaps that are kept of a watch beside tasks, so that its memory is bounded.
const KEPT_MAX: usize = 1 << 20;

/// Time after which the two clocks are compared again, so that they do not drift apart.
const COMPARED: Ns = Ns(10_000_000);

/// Shortest and longest time for which CPUs are watched after a run. In between it is three times the length of the run: if no gap is seen, exceeding
/// jobs in four intervals are then more than gaps account for.
const WATCHED: [Ns; 2] = [Ns(1_000_000_000), Ns(120_000_000_000)];

/// Returns how long to watch the CPUs of a run of this length.
pub fn watch_length(run: Ns) -> Ns {
    Ns(3 * run.0).clamp(WATCHED[0], WATCHED[1])
}

/// Watches the clock on each of `cpus` for `length`, on all of them at the same time. A CPU that this process may not use is left out. A
/// signal ends the watch.
///
/// `within`: time in which nearly all jobs are complete. `interval`: length of the intervals in which gaps are counted.
pub fn watch(cpus: &[CpuId], length: Ns, within: Ns, interval: Ns) -> Vec<UnreportedGaps> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|cpu| scope.spawn(move || watch_one(*cpu, length))).collect();
        let seen = threads.into_iter().filter_map(|thread| thread.join().ok()?);
        seen.map(|(watched, gaps)| watched.with(within, interval, &gaps)).collect()
    })
}

/// Returns the CPU and the time for which its clock was watched, and the gaps.
fn watch_one(cpu: CpuId, length: Ns) -> Option<(UnreportedGaps, Vec<(Ns, Ns)>)> {
    let settings = RealtimeRequest::new().pin(cpu).apply();
    if !settings.notes().is_empty() {
        return None;
    }
    let end = clock::monotonic().0 + length.0;
    let over = |_: &[Gap]| clock::monotonic().0 >= end || interrupt::interrupted();
    let (watched, gaps) = read(nanoseconds(), || clock::thread_cpu().0, THRESHOLD, over);
    let gaps = gaps.into_iter().map(|gap| (gap.accounted, gap.length)).collect();
    Some((UnreportedGaps::new(cpu, watched, THRESHOLD), gaps))
}

/// A thread that watches the clock on a CPU while tasks run there.
pub struct WatchBeside {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<GapsBeside>>>,
}

/// The gaps of a CPU that were seen while tasks ran there.
#[derive(Debug)]
pub struct GapsBeside {
    watch: UnreportedGaps,
    /// Time of the run at which each gap was over, and its length.
    gaps: Vec<(Ns, Ns)>,
}

impl WatchBeside {
    /// Begins to watch the clock on `cpu`. `begin`: time of the monotonic clock at which the run began.
    pub fn begin(cpu: CpuId, begin: Ns) -> WatchBeside {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || watch_beside(cpu, begin, &ends));
        WatchBeside { over, thread: Some(thread) }
    }

    /// Asks the watch to end. It ends once its thread has the CPU.
    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of the watch, which takes as long as tasks keep the CPU. `None` if this process may not use the CPU, or there were too
    /// many gaps to keep.
    pub fn end(mut self) -> Option<GapsBeside> {
        self.stop();
        self.thread.take()?.join().ok()?
    }
}

impl Drop for WatchBeside {
    fn drop(&mut self) {
        self.stop();
    }
}

impl GapsBeside {
    /// Returns the time for which the thread had the CPU.
    pub fn watched(&self) -> Ns {
        self.watch.watched
    }

    /// Sums up the gaps. `within`: time in which nearly all jobs are complete. `interval`: length of the intervals in which gaps are counted.
    pub fn summed(self, within: Ns, interval: Ns) -> UnreportedGaps {
        self.watch.with(within, interval, &self.gaps)
    }
}

fn watch_beside(cpu: CpuId, begin: Ns, ends: &AtomicBool) -> Option<GapsBeside> {
    // First of all, so that no task waits for this thread.
    Scheduling::idle().apply().ok()?;
    let settings = RealtimeRequest::new().pin(cpu).apply();
    if !settings.notes().is_empty() {
        return None;
    }
    let now = nanoseconds();
    let (from, counter) = (clock::monotonic().0.saturating_sub(begin.0), now());
    let over = |gaps: &[Gap]| ends.load(Ordering::Relaxed) || gaps.len() >= KEPT_MAX;
    let (watched, gaps) = read(&now, || clock::thread_cpu().0, THRESHOLD_BESIDE, over);
    let watch = UnreportedGaps { from: Some(Ns(from)), ..UnreportedGaps::new(cpu, watched, THRESHOLD_BESIDE) };
    let of_run = |gap: Gap| (Ns(from + gap.at.0.saturating_sub(counter)), gap.length);
    (gaps.len() < KEPT_MAX).then(|| GapsBeside { watch, gaps: gaps.into_iter().map(of_run).collect() })
}

/// Returns the clock that is read: the counter, in ns.
fn nanoseconds() -> impl Fn() -> u64 {
    let rate = 1e9 / clock::rate_hz() as f64;
    move || (clock::now().0 as f64 * rate) as u64
}

/// A gap.
struct Gap {
    /// Time at which the gap was over, by the clock that is read.
    at: Ns,
    /// Time accounted to the thread until the gap was over.
    accounted: Ns,
    length: Ns,
}

/// Reads the clock `now` until `over` returns true, which is called whenever the clocks are compared. Returns the time that `cpu_time` accounted to
/// this thread in the watch, and the parts of this time that were gaps of more than `threshold`. All times are in ns.
fn read(
    mut now: impl FnMut() -> u64,
    mut cpu_time: impl FnMut() -> u64,
    threshold: Ns,
    over: impl Fn(&[Gap]) -> bool,
) -> (Ns, Vec<Gap>) {
    let mut gaps = Vec::new();
    // Both clocks at the same time, as far as can be told.
    let mut compare = |now: &mut dyn FnMut() -> u64| loop {
        let (before, accounted, after) = (now(), cpu_time(), now());
        if after.saturating_sub(before) <= THRESHOLD.0 {
            return (accounted, after);
        }
    };
    // The thread has had the CPU from the last comparison until the last reading.
    let (mut accounted, mut compared) = compare(&mut now);
    let (first, mut last) = (accounted, compared);
    loop {
        let read = now();
        let is_gap = read.saturating_sub(last) > threshold.0;
        if !is_gap && read.saturating_sub(compared) < COMPARED.0 {
            last = read;
            continue;
        }
        let (accounted_now, compared_now) = compare(&mut now);
        // What was accounted since the last comparison, but for the time in which the clock was read.
        let length = (accounted_now - accounted).saturating_sub((last - compared) + (compared_now - read));
        if is_gap && length > threshold.0 {
            gaps.push(Gap { at: Ns(read), accounted: Ns(accounted_now - first), length: Ns(length) });
        }
        if over(&gaps) {
            return (Ns(accounted_now - first), gaps);
        }
        (accounted, compared, last) = (accounted_now, compared_now, compared_now);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Reads clocks that stand still at some readings: the number of the reading, the time it takes in ns, and how much of that the kernel
    /// accounts to the thread. Any other reading takes 20 ns.
    fn read_with(events: &[(u64, u64, u64)], readings: u64) -> (Ns, Vec<(Ns, Ns)>) {
        let (time, cpu, number) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let now = || {
            number.set(number.get() + 1);
            let at = events.iter().find(|(at, ..)| *at == number.get());
            let (takes, accounted) = at.map_or((20, 20), |(_, takes, accounted)| (*takes, *accounted));
            time.set(time.get() + takes);
            cpu.set(cpu.get() + accounted);
            time.get()
        };
        let (watched, gaps) = read(now, || cpu.get(), THRESHOLD, |_| number.get() >= readings);
        (watched, gaps.into_iter().map(|gap| (gap.accounted, gap.length)).collect())
    }

    fn lengths(gaps: &[(Ns, Ns)]) -> Vec<Ns> {
        gaps.iter().map(|(_, length)| *length).collect()
    }

    #[test]
    fn a_gap_is_what_the_kernel_accounts_to_a_thread_that_does_nothing() {
        // A preemption of 300 us, a gap of 80 us, an interrupt of 3 us, and a gap of 200 us of which 150 were withheld and reported.
        let events = [(1000, 300_000, 0), (2000, 80_000, 80_000), (3000, 3000, 3000), (4000, 200_000, 50_000)];
        let (watched, gaps) = read_with(&events, 1_000_000);
        assert_eq!(lengths(&gaps), [Ns(80_000), Ns(50_000)]);
        assert!(gaps[0].0 < gaps[1].0 && gaps[1].0 < watched, "{gaps:?}");
        assert!((20_000_000..20_600_000).contains(&watched.0), "{watched:?}");
    }

    #[test]
    fn a_gap_is_seen_on_either_side_of_a_comparison_of_the_clocks_and_not_within() {
        // The clocks are compared after 500 000 readings, by two more.
        let of = |at| lengths(&read_with(&[(at, 80_000, 80_000)], 1_100_000).1);
        let (seen, not_seen): (Vec<u64>, Vec<u64>) = (499_990..500_010).partition(|at| of(*at) == [Ns(80_000)]);
        assert_eq!((seen.len(), not_seen.len()), (18, 2), "{not_seen:?}");
        assert!(not_seen.iter().all(|at| of(*at).is_empty()));
    }

    #[test]
    fn a_cpu_is_watched_for_as_long_as_it_is_had() {
        let cpu = crate::machine::setting::allowed_cpus().unwrap()[0];
        let [seen] = &watch(&[cpu], Ns(30_000_000), Ns(0), Ns(1_000_000_000))[..] else {
            panic!("the process may use this CPU")
        };
        assert!(seen.cpu == cpu && seen.watched > Ns(0) && seen.watched < Ns(2_000_000_000), "{seen:?}");
    }

    #[test]
    fn a_watch_beside_tasks_ends_when_it_is_told_to_and_knows_the_time_of_the_run() {
        let cpu = crate::machine::setting::allowed_cpus().unwrap()[0];
        let second = 1_000_000_000;
        let watch = WatchBeside::begin(cpu, Ns(clock::monotonic().0 - second));
        std::thread::sleep(std::time::Duration::from_millis(200));
        let seen = watch.end().expect("the process may use this CPU");
        assert!(seen.watched() < Ns(60 * second), "{seen:?}");
        let summed = seen.summed(Ns(0), Ns(second));
        let from = summed.from.unwrap();
        assert!(summed.cpu == cpu && (second..60 * second).contains(&from.0), "{summed:?}");
        assert!(summed.numbers.iter().all(|number| (1..120).contains(number)), "{summed:?}");
    }
}
