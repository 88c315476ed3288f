//! What is to be expected of a walk that has something to lose and a writer that takes it away, before anything is measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use isochrome_host::load::kernels::{Walk, Writer};
use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::sys::clock;
use isochrome_model::stats::median;
use isochrome_model::units::{CpuId, Ns};

/// Samples of each measurement.
const SAMPLES: usize = 9;

fn median_ns(mut sample: impl FnMut() -> f64) -> f64 {
    let ticks: Vec<f64> = (0..SAMPLES).map(|_| sample()).collect();
    median(&ticks).unwrap_or_default() * 1e9 / clock::rate_hz() as f64
}

/// What a pass of `walk` takes longer after one of `writer` than after another pass of its own: what the walk is expected to lose in a time slice.
/// It may lose more, as translations of addresses are evicted too.
pub fn refill(walk: &Walk, writer: &mut Writer) -> Ns {
    let longer = median_ns(|| {
        writer.pass();
        let after = walk.pass().0 as f64;
        walk.pass();
        after - walk.pass().0 as f64
    });
    Ns(longer.max(0.0) as u64)
}

/// By what share a pass of `walk` takes longer while `writer` writes on the CPU `other` than while that one spins.
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
