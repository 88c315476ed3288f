//! What the records of a source cost the CPU on which they are written.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use isochrome_model::units::CpuId;
use isochrome_model::watch::RecordCost;
use rustix::time::{ClockId, clock_gettime};

use super::source::Source;
use crate::machine::setting::RealtimeRequest;

/// Pairs of runs, with and without records, which show what a record costs, and how often two threads pass the CPU to each other in a run.
const COST_PAIRS: usize = 15;
const COST_TURNS: usize = 100;
/// How long is waited for such a run, which takes about 1 ms where nobody else has the CPU.
const COST_PATIENCE: Duration = Duration::from_millis(250);

/// What a record of `source` costs `cpu`: two threads pass it to each other, alternating between runs with records and without. The time is that
/// of the two threads; whatever else was recorded until then is gone. `None` where this process may not run there, or records nothing there.
///
/// Takes some 40 ms of that CPU, at ordinary priority.
pub fn record_cost(source: &mut dyn Source, cpu: CpuId) -> Option<RecordCost> {
    let mut events = Vec::new();
    let mut run = |source: &mut dyn Source, on: bool| {
        source.enable(cpu, on).ok()?;
        let used = hand_overs(cpu)?;
        source.drain(&mut events).ok()?;
        let records = events.iter().filter(|event| event.cpu == cpu).count();
        events.clear();
        Some((used, records))
    };
    let mut pairs = Vec::new();
    for pair in 0..COST_PAIRS {
        // What comes second finds a warmer cache.
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

/// Two threads pass `cpu` to each other, [`COST_TURNS`] times: the time that they had it, in ns. `None` where they may not run there, or hardly get to
/// run: then they go on by themselves.
fn hand_overs(cpu: CpuId) -> Option<f64> {
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
            for _ in 0..COST_TURNS {
                // The other one ends with its last turn, and where it could not start.
                let _ = receiver.recv().map(|()| sender.send(()));
            }
            let used = settings.notes().is_empty().then(|| used() - before);
            // Nobody may be waiting any more.
            let _ = done.send(used);
        };
        threads.push(std::thread::Builder::new().name("record cost".to_owned()).spawn(side).ok()?);
    }
    let side = || both.recv_timeout(COST_PATIENCE).ok();
    let used = [side()?, side()?];
    for thread in threads {
        // One that panicked has been reported by its panic.
        let _ = thread.join();
    }
    used.into_iter().sum()
}
