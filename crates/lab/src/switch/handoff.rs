//! Two threads of this process that pass one CPU to each other, and the time of each handoff: the experiment of [Sebek2002, §3.4].
//!
//! The kernel of \[Sebek2002\] has probes at both ends of its switch. Here the two tasks read the clock: the running task right before it wakes
//! the other, and the other as soon as it runs; likewise on the way back. So a handoff contains the system calls by which the tasks wake each
//! other and wait, as it does in programs. The threads share an address space. Between processes the kernel also switches page tables, which is
//! not measured.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};

use isochrome_host::color::Target;
use isochrome_host::color::pool::FramePool;
use isochrome_host::error::SystemError;
use isochrome_host::load::flooder::Flooder;
use isochrome_host::sys::clock;
use isochrome_host::sys::heap::BackingMemory;
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_host::sys::signal::ThreadSignal;
use isochrome_model::units::{Bytes, Color, Cycles, Ns};
use rustix::thread::{Pid, futex};
use rustix::time::{ClockId, Timespec};

use super::{Condition, Kind, Means};
use crate::error::LabError;
use crate::runner::{Experiment, Recorder};
use crate::samples::{Arm, Judged};

/// Number of unrecorded handoffs before each recorded handoff, so that the recorded handoff begins as in the best case.
const WARM_UP: usize = 2;
/// Time from arming the timer to its expiry, in ns, in addition to the time of the flood before it.
const ALARM: u64 = 50_000;
/// Attempts at each requested handoff. An attempt that an unrelated interrupt hits may lack some of its times.
const TRIES: usize = 4;

/// Returns the conditions that the calling thread can measure. Preemptions need SCHED_FIFO, and partitioned conditions need memory of known
/// colors. `colors`: whether there is such memory.
pub fn conditions(colors: bool) -> Vec<Condition> {
    let preempts = Scheduling::current().is_ok_and(|now| now.fifo_priority().is_some_and(|priority| priority < 99));
    let mut conditions = Vec::new();
    for (kind, means) in [
        (Kind::Preemption, Means::Futex),
        (Kind::Preemption, Means::Pipe),
        (Kind::Preemption, Means::Signal),
        (Kind::Preemption, Means::Timer),
        (Kind::Switch, Means::Futex),
        (Kind::Switch, Means::Pipe),
        (Kind::Switch, Means::Signal),
    ] {
        for partitioned in [false, true] {
            if (preempts || kind == Kind::Switch) && (colors || !partitioned) {
                conditions.push(Condition { kind, means, partitioned });
            }
        }
    }
    conditions
}

/// Returns the number of pages of every color that the pool must have, enough for two floods of all colors.
pub fn pages_per_color(target: Target) -> usize {
    2 * Flooder::pages_per_color(target.geometry, None)
}

/// One of the two threads.
#[derive(Clone, Copy)]
enum Side {
    /// The thread that has the CPU at first.
    First,
    /// The thread that gets the CPU.
    Second,
}

/// State that the two threads share.
struct PingPong {
    means: Means,
    kind: Kind,
    signal: Arc<ThreadSignal>,
    /// For each thread, 1 if it may continue, else 0.
    words: [AtomicU32; 2],
    pipes: [(PipeReader, PipeWriter); 2],
    threads: [AtomicI32; 2],
    /// Treatment by the second thread before it gives the CPU back, as the number of an [`Arm`]; 0 for no treatment.
    before: AtomicU8,
    /// Time at which the second thread's timer expires, in ns of CLOCK_MONOTONIC.
    alarm: AtomicU64,
    /// Ticks at which the second thread got the CPU, and (`left`) at which it began to give it back; 0 if it has not yet.
    arrived: AtomicU64,
    left: AtomicU64,
    /// Whether the second thread is to end, and (`ended`) whether it has ended.
    stop: AtomicBool,
    ended: AtomicBool,
}

impl PingPong {
    fn new(condition: Condition, signal: &Arc<ThreadSignal>) -> io::Result<PingPong> {
        Ok(PingPong {
            means: condition.means,
            kind: condition.kind,
            signal: Arc::clone(signal),
            words: Default::default(),
            pipes: [io::pipe()?, io::pipe()?],
            threads: Default::default(),
            before: AtomicU8::new(0),
            alarm: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            left: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    /// Registers the calling thread as `side`.
    fn enter(&self, side: Side) {
        self.threads[side as usize].store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
    }

    /// Wakes the other thread.
    #[inline]
    fn wake(&self, other: Side) -> io::Result<()> {
        match self.means {
            // For a timer, the futex tells the second thread to set it.
            Means::Futex | Means::Timer => {
                let word = &self.words[other as usize];
                word.store(1, SeqCst);
                futex::wake(word, futex::Flags::PRIVATE, 1)?;
            }
            Means::Pipe => {
                (&self.pipes[other as usize].1).write_all(&[0])?;
            }
            Means::Signal => {
                let thread = Pid::from_raw(self.threads[other as usize].load(SeqCst));
                self.signal.send(thread.ok_or(io::ErrorKind::NotFound)?)?;
            }
        }
        Ok(())
    }

    /// Waits until the calling thread, which is `own`, may continue.
    #[inline]
    fn wait(&self, own: Side) -> io::Result<()> {
        match self.means {
            Means::Futex | Means::Timer => {
                let word = &self.words[own as usize];
                while word.swap(0, SeqCst) == 0 {
                    match futex::wait(word, futex::Flags::PRIVATE, 0, None) {
                        Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(())
            }
            Means::Pipe => (&self.pipes[own as usize].0).read_exact(&mut [0]),
            Means::Signal => self.signal.wait(),
        }
    }

    /// Runs the second thread, which gets the CPU and gives it back until `stop` is set.
    fn second<M: BackingMemory>(&self, flooder: &Flooder<M>) -> io::Result<()> {
        loop {
            self.wait(Side::Second)?;
            if self.stop.load(SeqCst) {
                return Ok(());
            }
            if self.means == Means::Timer {
                let at = self.alarm.load(SeqCst);
                let at = Timespec { tv_sec: (at / 1_000_000_000) as _, tv_nsec: (at % 1_000_000_000) as _ };
                rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &at)?;
            }
            self.arrived.store(clock::now().0, SeqCst);
            let arms = [Arm::Control, Arm::Treatment];
            prepare(arms.into_iter().find(|arm| *arm as u8 == self.before.load(SeqCst)), flooder);
            self.left.store(clock::now().0, SeqCst);
            if self.kind == Kind::Switch {
                self.wake(Side::First)?;
            }
        }
    }

    /// Makes one handoff, called by the first thread, and returns its two times in ticks; `None` if a time is missing.
    fn handoff<M: BackingMemory>(&self, before: Option<Arm>, flooder: &Flooder<M>) -> io::Result<Option<Vec<f64>>> {
        self.before.store(before.map_or(0, |arm| arm as u8), SeqCst);
        self.arrived.store(0, SeqCst);
        self.left.store(0, SeqCst);
        let (leave, back) = match self.means {
            Means::Timer => match self.interrupted(before, flooder)? {
                Some(times) => times,
                None => return Ok(None),
            },
            _ => {
                prepare(before, flooder);
                let leave = clock::now();
                self.wake(Side::Second)?;
                if self.kind == Kind::Switch {
                    self.wait(Side::First)?;
                }
                (leave, clock::now())
            }
        };
        let (arrived, left) = (self.arrived.load(SeqCst), self.left.load(SeqCst));
        let between = |from: u64, to: u64| to.checked_sub(from).filter(|ticks| *ticks > 0 && from > 0);
        let handoff = between(leave.0, arrived).zip(between(left, back.0));
        Ok(handoff.map(|(interrupt, resume)| vec![interrupt as f64, resume as f64]))
    }

    /// Returns the times of a handoff that begins as in the best case; `None` if none of [`TRIES`] attempts has all of its times, or the second
    /// thread has ended.
    fn sample<M: BackingMemory>(&self, arm: Arm, flooder: &Flooder<M>) -> io::Result<Option<Vec<f64>>> {
        let before = Some(arm).filter(|arm| *arm != Arm::Reference);
        for _ in 0..TRIES {
            for _ in 0..WARM_UP {
                self.handoff(None, flooder)?;
            }
            if self.ended.load(SeqCst) {
                return Ok(None);
            }
            if let Some(handoff) = self.handoff(before, flooder)? {
                return Ok(Some(handoff));
            }
        }
        Ok(None)
    }

    /// Computes until the other thread's timer expires and that thread takes the CPU. Returns the last instant before the preemption and the
    /// first instant after it; `None` if the timer did not preempt in time.
    fn interrupted<M: BackingMemory>(
        &self,
        before: Option<Arm>,
        flooder: &Flooder<M>,
    ) -> io::Result<Option<(Cycles, Cycles)>> {
        let rate = clock::rate_hz();
        let flood = if before.is_none() { 0 } else { flooder.time().0 * 2_000_000_000 / rate };
        let begin = clock::monotonic();
        let alarm = Ns(begin.0 + flood + ALARM);
        self.alarm.store(alarm.0, SeqCst);
        self.wake(Side::Second)?;
        prepare(before, flooder);
        let give_up = clock::now().0 + rate / 100;
        let mut leave = clock::now();
        loop {
            let at = clock::now();
            let left = self.left.load(SeqCst);
            if left == 0 {
                leave = at;
                if at.0 > give_up {
                    return Ok(None);
                }
            } else if at.0 > left {
                return Ok(Some((leave, at)));
            } else {
                // The preemption came between the readings of `at` and `left`.
                return Ok(Some((at, clock::now())));
            }
        }
    }
}

#[inline]
fn prepare<M: BackingMemory>(before: Option<Arm>, flooder: &Flooder<M>) {
    match before {
        Some(Arm::Control) => flooder.spin(),
        Some(Arm::Treatment) => flooder.run(),
        _ => {}
    }
}

/// The experiment of handoffs between the calling thread and another one, both on the CPU that the calling thread is pinned to.
pub struct Switching<'a> {
    pool: Option<&'a FramePool>,
    target: Target,
    colors: Vec<Color>,
    conditions: Vec<Condition>,
    signal: Arc<ThreadSignal>,
}

impl<'a> Switching<'a> {
    /// Returns the experiment with floods in memory of `pool`, whose colors are those of `target`, or in ordinary memory without a pool. In
    /// partitioned conditions floods keep out of `colors`. Fails if a signal cannot be blocked.
    pub fn new(
        pool: Option<&'a FramePool>,
        target: Target,
        colors: Vec<Color>,
        conditions: Vec<Condition>,
    ) -> Result<Switching<'a>, LabError> {
        let signal =
            ThreadSignal::keep().map_err(|source| LabError::Passing { action: "blocking a signal", source })?;
        Ok(Switching { pool, target, colors, conditions, signal: Arc::new(signal) })
    }
}

impl Experiment for Switching<'_> {
    type Condition = Condition;
    const JUDGED: Judged = super::JUDGED;

    fn columns(&self) -> Vec<String> {
        super::COLUMNS.map(str::to_owned).to_vec()
    }

    fn conditions(&self) -> Vec<Condition> {
        self.conditions.clone()
    }

    fn block(&mut self, condition: Condition, recorder: &mut Recorder<Condition>) -> Result<(), LabError> {
        let each = Flooder::pages_per_color(self.target.geometry, None);
        let line_bytes = self.target.geometry.line_bytes;
        match self.pool {
            Some(pool) => {
                pool.shuffle(&mut recorder.rng);
                let all = (0..pool.colors() as u16).map(Color);
                let flooded: Vec<Color> =
                    all.filter(|color| !(condition.partitioned && self.colors.contains(color))).collect();
                let take = || pool.take(&flooded, flooded.len() * each);
                let flooders = [take()?, take()?].map(|memory| Flooder::writing(memory, line_bytes));
                block(condition, flooders, &self.signal, recorder)
            }
            None => {
                assert!(!condition.partitioned, "partitions need colors");
                let pages = each * self.target.geometry.color_count(Bytes(page_bytes() as u64)) as usize;
                let take = || Arena::map(pages).map_err(|source| SystemError::Memory { pages, source });
                let flooders = [take()?, take()?].map(|memory| Flooder::writing(memory, line_bytes));
                block(condition, flooders, &self.signal, recorder)
            }
        }
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> LabError {
    move |source| LabError::Passing { action, source }
}

const PASSING: &str = "passing the CPU to another thread";

fn block<M: BackingMemory + Send + 'static>(
    condition: Condition,
    [first, second]: [Flooder<M>; 2],
    signal: &Arc<ThreadSignal>,
    recorder: &mut Recorder<Condition>,
) -> Result<(), LabError> {
    let pair = Arc::new(PingPong::new(condition, signal).map_err(failed("making pipes"))?);
    pair.enter(Side::First);
    let (ready, is_ready) = sync_channel(1);
    let other = {
        let pair = Arc::clone(&pair);
        let begin = move || begin_second(&pair, &second, &ready);
        std::thread::Builder::new().name("second".to_owned()).spawn(begin).map_err(failed("starting a thread"))?
    };
    // If the second thread fails first, joining it returns the error.
    let mut outcome = Ok(());
    if is_ready.recv().is_ok() {
        let arms = [Arm::Reference, Arm::Control, Arm::Treatment];
        outcome = recorder.measure(condition, &arms, |arm| pair.sample(arm, &first).map_err(failed(PASSING)));
    }
    if !pair.ended.load(SeqCst) {
        pair.stop.store(true, SeqCst);
        outcome = outcome.and(pair.wake(Side::Second).map_err(failed(PASSING)));
    }
    let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    signal.forget();
    ended.map_err(failed(PASSING)).and(outcome)
}

fn begin_second<M: BackingMemory>(pair: &PingPong, flooder: &Flooder<M>, ready: &SyncSender<()>) -> io::Result<()> {
    let run = || {
        if pair.kind == Kind::Preemption {
            let own = Scheduling::current()?.fifo_priority().ok_or(io::ErrorKind::PermissionDenied)?;
            Scheduling::fifo(own + 1).apply()?;
        }
        pair.enter(Side::Second);
        // Sending fails only if the first thread has failed and no longer waits.
        let _ = ready.send(());
        pair.second(flooder)
    };
    let outcome = run();
    pair.ended.store(true, SeqCst);
    // The first thread must not wait for a thread that has ended.
    outcome.and(pair.wake(Side::First))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Amount;
    use crate::samples::Block;
    use isochrome_model::units::CpuId;

    const AMOUNT: Amount = Amount { blocks: 1, samples: 5, seed: 1, cpu: CpuId(0), limit: None };

    /// Runs one block with both threads on one CPU, so that each waits for the other.
    fn run(condition: Condition) -> Result<Vec<Block<Condition>>, LabError> {
        let cpus = isochrome_host::machine::setting::allowed_cpus().unwrap();
        let _pinned = isochrome_host::machine::setting::RealtimeRequest::new().pin(cpus[0]).apply();
        let signal = Arc::new(ThreadSignal::keep().unwrap());
        let flooder = || Flooder::writing(Arena::map(4).unwrap(), Bytes(64));
        let mut recorder = Recorder::new(&AMOUNT);
        block(condition, [flooder(), flooder()], &signal, &mut recorder)?;
        Ok(recorder.into_blocks())
    }

    #[test]
    fn every_switch_there_and_back_is_timed() {
        for means in [Means::Futex, Means::Pipe, Means::Signal] {
            let blocks = run(Condition { kind: Kind::Switch, means, partitioned: false }).unwrap();
            for arm in [Arm::Reference, Arm::Control, Arm::Treatment] {
                assert_eq!(blocks[0].rows(arm).len(), 5, "{means:?}");
            }
            assert!(blocks[0].samples.iter().all(|sample| sample.values.iter().all(|ticks| *ticks > 0.0)), "{means:?}");
        }
    }

    #[test]
    fn a_thread_that_cannot_go_on_does_not_leave_the_other_waiting() {
        // Without SCHED_FIFO the second thread cannot have a higher priority.
        if Scheduling::current().unwrap().fifo_priority().is_none() {
            let error = run(Condition { kind: Kind::Preemption, means: Means::Futex, partitioned: false }).unwrap_err();
            assert!(error.to_string().contains("hint:"), "{error}");
        }
    }
}
