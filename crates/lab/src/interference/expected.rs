//! Estimate of the interference between a walk over cached data and a writer that evicts these data, made before the experiment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use isochrome_host::load::kernels::{Walk, Writer};
use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::sys::clock;
use isochrome_model::stats::median;
use isochrome_model::units::{CpuId, Ns};

/// Number of samples of each measurement.
const SAMPLES: usize = 9;

fn median_ns(mut sample: impl FnMut() -> f64) -> f64 {
    let ticks: Vec<f64> = (0..SAMPLES).map(|_| sample()).collect();
    median(&ticks).unwrap_or_default() * 1e9 / clock::rate_hz() as f64
}

/// Returns by how much a pass of `walk` is longer after a pass of `writer` than after another pass of `walk`. This is the expected loss in a
/// time slice. The real loss may be larger, because address translations are evicted too.
pub fn refill(walk: &Walk, writer: &mut Writer) -> Ns {
    let longer = median_ns(|| {
        writer.pass();
        let after = walk.pass().0 as f64;
        walk.pass();
        after - walk.pass().0 as f64
    });
    Ns(longer.max(0.0) as u64)
}

/// Returns by what share a pass of `walk` is longer while `writer` writes on the CPU `other` than while that CPU spins.
pub fn beside(walk: &Walk, writer: &mut Writer, other: CpuId) -> f64 {
    let (over, writes) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _pinned = RealtimeRequest::new().pin(other).apply();
            while !over.load(Ordering::Relaxed) {
                if writes.load(Ordering::Relaxed) {
                    writer.pass();
                }
            }
        });
        let [spinning, writing] = [false, true].map(|writing| {
            writes.store(writing, Ordering::Relaxed);
            walk.pass();
            median_ns(|| walk.pass().0 as f64)
        });
        over.store(true, Ordering::Relaxed);
        writing / spinning - 1.0
    })
}
