//! Two threads that pass a CPU to each other.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_model::units::{CpuId, Ns};
use rustix::thread::gettid;

/// Runs two threads that pass `cpu` to each other, each `handoffs` times, and returns their numbers. `started` gets these numbers before the first
/// handoff; `work` is what the first (0) or the second (1) thread does whenever it has the CPU.
pub fn alternate(cpu: CpuId, handoffs: usize, started: impl FnOnce([i32; 2]), work: impl Fn(usize) + Sync) -> [i32; 2] {
    let work = &work;
    let run = move |index: usize, numbers: Sender<(usize, i32)>, sender: SyncSender<()>, receiver: Receiver<()>| {
        let _settings = RealtimeRequest::new().pin(cpu).apply();
        numbers.send((index, gettid().as_raw_nonzero().get())).unwrap();
        for _ in 0..handoffs {
            receiver.recv().unwrap();
            work(index);
            // Sending fails if the other thread has already ended.
            let _ = sender.send(());
        }
        // With this sleep, the last slice ends like the others.
        thread::sleep(Duration::from_millis(20));
    };
    thread::scope(|scope| {
        let (to_second, from_first) = sync_channel::<()>(0);
        let (to_first, from_second) = sync_channel::<()>(0);
        let (of_first, numbers) = channel();
        let (of_second, begin) = (of_first.clone(), to_first.clone());
        scope.spawn(move || run(0, of_first, to_second, from_second));
        scope.spawn(move || run(1, of_second, to_first, from_first));
        let mut threads = [0; 2];
        numbers.iter().take(2).for_each(|(index, number)| threads[index] = number);
        started(threads);
        begin.send(()).unwrap();
        threads
    })
}

/// Spins for `time` without making a system call.
pub fn spin(time: Ns) {
    let begin = Instant::now();
    while begin.elapsed().as_nanos() < u128::from(time.0) {
        std::hint::spin_loop();
    }
}
