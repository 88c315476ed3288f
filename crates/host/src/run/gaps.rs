//! Watches the clock on CPUs with nothing to do, for gaps that nobody reports.
//!
//! A thread reads the clock without end. Where two readings are far apart, something else had the CPU. If that was another thread, or a
//! hypervisor that counts what it takes, the kernel did not account the time to this thread. What it did account nobody reports.
//!
//! The thread has no real-time priority, so whoever wants the CPU gets it. Only the time that it had itself counts as watched.

use isochrome_model::running::UnreportedGaps;
use isochrome_model::units::{CpuId, Ns};

use crate::interrupt;
use crate::machine::setting::RealtimeRequest;
use crate::sys::clock;

/// Shortest time between two readings that is a gap. The interrupt of a tick takes less on the machines seen.
const THRESHOLD: Ns = Ns(5_000);

/// Time after which the two clocks are compared again, so that they do not drift apart.
const COMPARED: Ns = Ns(10_000_000);

/// Shortest and longest time for which CPUs are watched after a run. In between it is three times the length of the run: if no gap is seen, jobs of
/// four intervals are then more than gaps account for.
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
    let rate = 1e9 / clock::rate_hz() as f64;
    let now = || (clock::now().0 as f64 * rate) as u64;
    let over = || clock::monotonic().0 >= end || interrupt::interrupted();
    let (watched, gaps) = read(now, || clock::thread_cpu().0, over);
    Some((UnreportedGaps::new(cpu, watched, THRESHOLD), gaps))
}

/// Reads the clock `now` until `over`, which is asked whenever the clocks are compared. Returns the time that `cpu_time` accounted to this
/// thread meanwhile, and the parts of that which were gaps: the time accounted until the end of each, and its length. All times are in ns.
fn read(
    mut now: impl FnMut() -> u64,
    mut cpu_time: impl FnMut() -> u64,
    over: impl Fn() -> bool,
) -> (Ns, Vec<(Ns, Ns)>) {
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
        let is_gap = read.saturating_sub(last) > THRESHOLD.0;
        if !is_gap && read.saturating_sub(compared) < COMPARED.0 {
            last = read;
            continue;
        }
        let (accounted_now, compared_now) = compare(&mut now);
        // What was accounted since the last comparison, but for the time in which the clock was read.
        let length = (accounted_now - accounted).saturating_sub((last - compared) + (compared_now - read));
        if is_gap && length > THRESHOLD.0 {
            gaps.push((Ns(accounted_now - first), Ns(length)));
        }
        if over() {
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
        read(now, || cpu.get(), || number.get() >= readings)
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
}
