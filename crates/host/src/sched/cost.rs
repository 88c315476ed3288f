//! Measures the cost of a record to the CPU on which a source writes it.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use isochrome_model::units::CpuId;
use isochrome_model::watch::RecordCost;
use rustix::time::{ClockId, clock_gettime};

use super::source::Source;
use crate::machine::setting::RealtimeRequest;

/// Number of pairs of runs, with and without records, and number of times that each of two threads passes on the CPU in a run.
const COST_PAIRS: usize = 15;
const COST_HANDOFFS: usize = 100;
/// Longest wait for such a run, which takes about 1 ms on an idle CPU. Other programs or a hypervisor may hold the CPU meanwhile.
const COST_PATIENCE: Duration = Duration::from_secs(2);

/// Measures the cost of a record of `source` to `cpu`: two threads pass the CPU to each other, in alternating runs with and without
/// records, and the CPU times of the threads are compared. Events recorded until then are discarded. `None` if this process may not run on
/// `cpu`, or records nothing there.
///
/// The measurement takes about 40 ms of CPU time, at ordinary priority.
pub fn record_cost(source: &mut dyn Source, cpu: CpuId) -> Option<RecordCost> {
    let mut events = Vec::new();
    let mut run = |source: &mut dyn Source, on: bool| {
        source.enable(cpu, on).ok()?;
        let used = handoffs(cpu)?;
        source.drain(&mut events).ok()?;
        let records = events.iter().filter(|event| event.cpu == cpu).count();
        events.clear();
        Some((used, records))
    };
    let mut pairs = Vec::new();
    for pair in 0..COST_PAIRS {
        // The order alternates, because the second run finds a warmer cache.
        let first = pair % 2 == 0;
        let (Some(one), Some(other)) = (run(source, first), run(source, !first)) else { break };
        let ((with, records), (without, _)) = if first { (one, other) } else { (other, one) };
        if records > 0 {
            pairs.push((with - without) / records as f64);
        }
    }
    source.enable(cpu, true).ok()?;
    RecordCost::of(cpu, &pairs)
}

/// Lets two threads pass `cpu` to each other [`COST_HANDOFFS`] times, and returns their CPU time in ns. `None` if they may not run there, or do not
/// finish in time; in the latter case the threads go on until they finish.
fn handoffs(cpu: CpuId) -> Option<f64> {
    let (to_second, from_first) = sync_channel::<()>(1);
    let (to_first, from_second) = sync_channel::<()>(1);
    let (done, both) = sync_channel(2);
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    to_first.send(()).ok()?;
    let mut threads = Vec::new();
    for (receiver, sender) in [(from_second, to_second), (from_first, to_first)] {
        let done = done.clone();
        let side = move || {
            let settings = RealtimeRequest::new().pin(cpu).apply();
            let before = used();
            for _ in 0..COST_HANDOFFS {
                // Fails after the last handoff of the other thread, or if that thread could not start.
                let _ = receiver.recv().map(|()| sender.send(()));
            }
            let used = settings.notes().is_empty().then(|| used() - before);
            // The caller may have given up.
            let _ = done.send(used);
        };
        threads.push(std::thread::Builder::new().name("record cost".to_owned()).spawn(side).ok()?);
    }
    let side = || both.recv_timeout(COST_PATIENCE).ok();
    let used = [side()?, side()?];
    for thread in threads {
        // A panic of the thread was already reported.
        let _ = thread.join();
    }
    used.into_iter().sum()
}
