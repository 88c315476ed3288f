//! Two threads of this process that pass one CPU to each other, and what that takes: the experiment of [Sebek2002, §3.4]. What is measured
//! and what follows from it is in [`isochrome_model::switch`].
//!
//! The kernel of \[Sebek2002\] has probes at both ends of its switch. Here the two tasks read the clock: the one that has the CPU right before it
//! lets the other go on, the other as soon as it does, and the same on the way back. So a handoff contains the system calls by which the
//! tasks wake each other and wait, as they do in programs. The threads share their address space: between processes the
//! page tables are exchanged as well, which is not measured.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};

use isochrome_model::switch::{Before, Block, Condition, Handoff, Kind, Means};
use isochrome_model::units::{Color, Cycles, Ns};
use rustix::thread::{Pid, futex};
use rustix::time::{ClockId, Timespec};

use crate::error::HostError;
use crate::flooder::Flooder;
use crate::interrupt;
use crate::palette::Target;
use crate::pool::FramePool;
use crate::sys::clock;
use crate::sys::heap::Ground;
use crate::sys::memory::Arena;
use crate::sys::scheduling::Scheduling;
use crate::sys::signal::ThreadSignal;

/// Handoffs before each that counts, so that it begins as in the best case.
const WARM_UP: usize = 2;
/// From the command to a timer until it expires, besides what the flood before it takes, in ns.
const ALARM: u64 = 50_000;
/// Handoffs tried for each that is asked for: one that an interrupt of something else meets may not have all of its times.
const TRIES: usize = 4;

/// How much to run.
#[derive(Clone, Debug)]
pub struct SwitchRequest {
    /// Colors that floods keep out of in partitioned conditions. Without a pool they do not matter.
    pub colors: Vec<Color>,
    /// Blocks of each condition.
    pub blocks: usize,
    /// Handoffs of each kind in a block.
    pub jobs: usize,
    /// Seed of every random choice.
    pub seed: u64,
}

/// The conditions that the calling thread can measure: pre-emptions need SCHED_FIFO, partitions need colors.
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

/// Pages of every color that the pool must have: two floods of all colors.
pub fn pages_per_color(target: Target) -> usize {
    2 * Flooder::pages_per_color(target.geometry, None)
}

/// Which of the two.
#[derive(Clone, Copy)]
enum Side {
    /// Has the CPU at first.
    First,
    /// Gets it.
    Second,
}

/// What the two share.
struct Meeting {
    means: Means,
    kind: Kind,
    signal: Arc<ThreadSignal>,
    /// 1 where the one of this number may go on.
    words: [AtomicU32; 2],
    pipes: [(PipeReader, PipeWriter); 2],
    threads: [AtomicI32; 2],
    /// What the second does before it gives the CPU back.
    before: AtomicU8,
    /// When its timer expires.
    alarm: AtomicU64,
    /// When it got the CPU, and when it began to give it back; 0 for not yet.
    arrived: AtomicU64,
    left: AtomicU64,
    /// Whether it is to end, and whether it has.
    stop: AtomicBool,
    ended: AtomicBool,
}

impl Meeting {
    fn new(condition: Condition, signal: &Arc<ThreadSignal>) -> io::Result<Meeting> {
        Ok(Meeting {
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

    /// The calling thread is this one.
    fn enter(&self, side: Side) {
        self.threads[side as usize].store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
    }

    /// Lets the other go on.
    #[inline]
    fn wake(&self, other: Side) -> io::Result<()> {
        match self.means {
            // A timer is commanded by a futex.
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

    /// Waits until the calling one may go on.
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

    /// The second: gets the CPU, gives it back, until it is to stop.
    fn second<G: Ground>(&self, flooder: &Flooder<G>) -> io::Result<()> {
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
            prepare(before_of(self.before.load(SeqCst)), flooder);
            self.left.store(clock::now().0, SeqCst);
            if self.kind == Kind::Switch {
                self.wake(Side::First)?;
            }
        }
    }

    /// The first: one handoff; `None` where not all of its times were had.
    fn handoff<G: Ground>(&self, before: Before, flooder: &Flooder<G>) -> io::Result<Option<Handoff>> {
        self.before.store(before as u8, SeqCst);
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
        let between = |from: u64, to: u64| to.checked_sub(from).filter(|ticks| *ticks > 0 && from > 0).map(Cycles);
        let handoff = between(leave.0, arrived).zip(between(left, back.0));
        Ok(handoff.map(|(interrupt, resume)| Handoff { interrupt, resume }))
    }

    /// Computes until a timer has had the other take the CPU: the last instant before, and the first after that.
    fn interrupted<G: Ground>(&self, before: Before, flooder: &Flooder<G>) -> io::Result<Option<(Cycles, Cycles)>> {
        let rate = clock::rate_hz();
        let flood = if before == Before::Nothing { 0 } else { flooder.time().0 * 2_000_000_000 / rate };
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
                // Between the two readings.
                return Ok(Some((at, clock::now())));
            }
        }
    }
}

fn before_of(number: u8) -> Before {
    [Before::Spin, Before::Flood].into_iter().find(|before| *before as u8 == number).unwrap_or(Before::Nothing)
}

#[inline]
fn prepare<G: Ground>(before: Before, flooder: &Flooder<G>) {
    match before {
        Before::Nothing => {}
        Before::Spin => flooder.spin(),
        Before::Flood => flooder.run(),
    }
}

/// Measures between the calling thread and another, both on the CPU that the calling one is pinned to: `conditions`, with floods in memory of
/// `pool`, whose colors are those of `target`, or in ordinary memory.
///
/// `progress` is called after each block with the number done and of all; an interrupt ends the run after the block under way. Fails when
/// the pool has too few pages, and where the kernel does not let threads wake each other.
///
/// Panics when a condition is partitioned and there is no pool.
pub fn switch(
    pool: Option<&FramePool>,
    target: Target,
    conditions: &[Condition],
    request: &SwitchRequest,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Block>, HostError> {
    let mut rng = fastrand::Rng::with_seed(request.seed);
    let mut order = conditions.repeat(request.blocks);
    rng.shuffle(&mut order);
    let signal = ThreadSignal::keep().map_err(|source| HostError::Passing { action: "blocking a signal", source })?;
    let signal = Arc::new(signal);
    let total = order.len();
    let mut blocks = Vec::with_capacity(total);
    let line_bytes = target.geometry.line_bytes;
    for condition in order {
        if interrupt::interrupted() {
            break;
        }
        let each = Flooder::pages_per_color(target.geometry, None);
        let block = match pool {
            Some(pool) => {
                pool.shuffle(&mut rng);
                let all = (0..pool.colors() as u16).map(Color);
                let flooded: Vec<Color> =
                    all.filter(|color| !(condition.partitioned && request.colors.contains(color))).collect();
                let take = || pool.take(&flooded, flooded.len() * each);
                let [first, second] = [take()?, take()?].map(|memory| Flooder::writing(memory, line_bytes));
                block(condition, first, second, &signal, request.jobs, &mut rng)?
            }
            None => {
                assert!(!condition.partitioned, "partitions need colors");
                let pages = each * target.geometry.color_count(page_size()) as usize;
                let take = || Arena::map(pages).map_err(|source| HostError::Memory { pages, source });
                let [first, second] = [take()?, take()?].map(|memory| Flooder::writing(memory, line_bytes));
                block(condition, first, second, &signal, request.jobs, &mut rng)?
            }
        };
        blocks.push(block);
        progress(blocks.len(), total);
    }
    Ok(blocks)
}

fn page_size() -> isochrome_model::units::Bytes {
    isochrome_model::units::Bytes(crate::sys::memory::page_bytes() as u64)
}

fn block<G: Ground + Send + 'static>(
    condition: Condition,
    first: Flooder<G>,
    second: Flooder<G>,
    signal: &Arc<ThreadSignal>,
    jobs: usize,
    rng: &mut fastrand::Rng,
) -> Result<Block, HostError> {
    let failed = |action| move |source| HostError::Passing { action, source };
    let meeting = Arc::new(Meeting::new(condition, signal).map_err(failed("making pipes"))?);
    meeting.enter(Side::First);
    let (ready, is_ready) = sync_channel(1);
    let other = {
        let meeting = Arc::clone(&meeting);
        let begin = move || begin_second(&meeting, &second, &ready);
        std::thread::Builder::new().name("second".to_owned()).spawn(begin).map_err(failed("starting a thread"))?
    };
    // A failure on the way shows when the thread is joined.
    let mut handoffs = BTreeMap::new();
    let mut outcome = Ok(());
    if is_ready.recv().is_ok() {
        match measure(&meeting, &first, jobs, rng) {
            Ok(measured) => handoffs = measured,
            Err(error) => outcome = Err(error),
        }
    }
    if !meeting.ended.load(SeqCst) {
        meeting.stop.store(true, SeqCst);
        outcome = outcome.and(meeting.wake(Side::Second));
    }
    let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    signal.forget();
    ended.and(outcome).map_err(failed("passing the CPU to another thread"))?;
    Ok(Block { condition, handoffs })
}

fn begin_second<G: Ground>(meeting: &Meeting, flooder: &Flooder<G>, ready: &SyncSender<()>) -> io::Result<()> {
    let run = || {
        if meeting.kind == Kind::Preemption {
            let own = Scheduling::current()?.fifo_priority().ok_or(io::ErrorKind::PermissionDenied)?;
            Scheduling::fifo(own + 1).apply()?;
        }
        meeting.enter(Side::Second);
        // Whoever waits for this is gone only if it failed.
        let _ = ready.send(());
        meeting.second(flooder)
    };
    let outcome = run();
    meeting.ended.store(true, SeqCst);
    // The first must not wait for one that has ended.
    outcome.and(meeting.wake(Side::First))
}

/// `jobs` handoffs of each kind, in random order.
fn measure<G: Ground>(
    meeting: &Meeting,
    flooder: &Flooder<G>,
    jobs: usize,
    rng: &mut fastrand::Rng,
) -> io::Result<BTreeMap<Before, Vec<Handoff>>> {
    let mut order = [Before::Nothing, Before::Spin, Before::Flood].repeat(jobs);
    rng.shuffle(&mut order);
    let mut handoffs: BTreeMap<Before, Vec<Handoff>> = BTreeMap::new();
    for before in order {
        for _ in 0..TRIES {
            for _ in 0..WARM_UP {
                meeting.handoff(Before::Nothing, flooder)?;
            }
            if meeting.ended.load(SeqCst) {
                return Ok(handoffs);
            }
            if let Some(handoff) = meeting.handoff(before, flooder)? {
                handoffs.entry(before).or_default().push(handoff);
                break;
            }
        }
    }
    Ok(handoffs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_model::units::Bytes;

    /// Two threads on one CPU, so that either waits for the other.
    fn run(condition: Condition) -> Block {
        let cpus = crate::setting::allowed_cpus().unwrap();
        let _pinned = crate::setting::RealtimeRequest::new().pin(cpus[0]).apply();
        let signal = Arc::new(ThreadSignal::keep().unwrap());
        let flooder = || Flooder::writing(Arena::map(4).unwrap(), Bytes(64));
        block(condition, flooder(), flooder(), &signal, 5, &mut fastrand::Rng::with_seed(1)).unwrap()
    }

    #[test]
    fn every_switch_there_and_back_is_timed() {
        for means in [Means::Futex, Means::Pipe, Means::Signal] {
            let block = run(Condition { kind: Kind::Switch, means, partitioned: false });
            for before in [Before::Nothing, Before::Spin, Before::Flood] {
                assert_eq!(block.handoffs[&before].len(), 5, "{means:?}");
            }
            let all = || block.handoffs.values().flatten();
            assert!(all().all(|handoff| handoff.interrupt.0 > 0 && handoff.resume.0 > 0), "{means:?}");
        }
    }

    #[test]
    fn a_thread_that_cannot_go_on_does_not_leave_the_other_waiting() {
        // Without SCHED_FIFO nobody is pre-empted.
        if Scheduling::current().unwrap().fifo_priority().is_none() {
            let condition = Condition { kind: Kind::Preemption, means: Means::Futex, partitioned: false };
            let signal = Arc::new(ThreadSignal::keep().unwrap());
            let flooder = || Flooder::writing(Arena::map(1).unwrap(), Bytes(64));
            let mut rng = fastrand::Rng::with_seed(1);
            let error = block(condition, flooder(), flooder(), &signal, 5, &mut rng).unwrap_err();
            assert!(error.to_string().contains("hint:"), "{error}");
        }
    }
}
