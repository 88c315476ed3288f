//! Measures the cost of watching two threads that pass one CPU to each other, at every switch and by tasks that poll.
//!
//! `cargo bench -p isochrome-host --bench watch` measures; under `cargo test` the same code runs on a small size. In every round each
//! method runs once, and before it the same work runs without a watch, for comparison.
//!
//! The number of lines that watching evicts is measured in the same way. A thread on the watched CPU fills a level of the cache. It passes
//! the CPU to another thread, which only passes it back, or waits for a poll. Then it measures by time which of its lines are gone. Without
//! a watch it does the same for as long. `-- lines` measures this alone.

use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use isochrome_host::color::eviction::{Canaries, LevelSizes, TimedEvictionTest};
use isochrome_host::color::pool::FramePool;
use isochrome_host::color::{ColorError, Survey, Target};
use isochrome_host::counters::events::PAGE_FAULTS;
use isochrome_host::error::SystemError;
use isochrome_host::machine::setting::{RealtimeRequest, allowed_cpus};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::sched::SchedError;
use isochrome_host::sched::bpf::BpfEvents;
use isochrome_host::sched::perf::PerfRings;
use isochrome_host::sched::slices::Slices;
use isochrome_host::sched::tracefs::Tracefs;
use isochrome_host::sys::clock;
use isochrome_host::sys::heap::BackingMemory;
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::stats::median;
use isochrome_model::units::{Bytes, Color, CpuId, Ns};
use isochrome_model::watch::{Entry, Slice};

/// A method of watching.
#[derive(Clone, Copy)]
struct Method {
    name: &'static str,
    /// Time between two reads of the records.
    every: Duration,
    /// Source of the records; `None` if nothing is watched.
    reader: Option<Reader>,
}

/// Source of the records of switches.
#[derive(Clone, Copy)]
enum Reader {
    /// A program in the kernel, with this many counters of page faults, which every machine has.
    Bpf(usize),
    /// Rings of performance events, with this many counters of page faults.
    Perf(usize),
    /// A ring of tracefs, which has no room for counts.
    Tracefs,
    /// Tasks that poll, with this period.
    Tasks(Ns),
}

/// Largest share of canary lines that a control may lose.
const LOST_MAX: f64 = 0.10;
const fn method(name: &'static str, every_us: u64, reader: Option<Reader>) -> Method {
    Method { name, every: Duration::from_micros(every_us), reader }
}

const METHODS: [Method; 10] = [
    method("program in the kernel, read every 50 ms", 50_000, Some(Reader::Bpf(0))),
    method("the same with four counters", 50_000, Some(Reader::Bpf(4))),
    method("performance events, read every 50 ms", 50_000, Some(Reader::Perf(0))),
    method("the same with four counters", 50_000, Some(Reader::Perf(4))),
    method("tracefs, read every 50 ms", 50_000, Some(Reader::Tracefs)),
    method("program in the kernel, each 10 ms", 10_000, Some(Reader::Bpf(0))),
    method("program in the kernel, each 100 us", 100, Some(Reader::Bpf(0))),
    method("nothing: it wakes up each 100 us", 100, None),
    method("polled at 500 Hz, read every 50 ms", 50_000, Some(Reader::Tasks(Ns(2_000_000)))),
    method("polled at 10 kHz, read every 50 ms", 50_000, Some(Reader::Tasks(Ns(100_000)))),
];

/// Load on the watched CPU: the number of switches, and the work between two switches.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    switches: usize,
    work: Duration,
}

/// Result of one round of one method.
struct Seen {
    /// Duration of the handoffs with a watch, in seconds.
    time: f64,
    /// Duration of the same handoffs without a watch, in seconds.
    alone: f64,
    /// CPU time of this process without that of the threads, in seconds.
    own: f64,
    slices: usize,
    lost: bool,
}

fn main() -> ExitCode {
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let (rounds, share) = if measuring { (9, 1) } else { (2, 50) };
    let loads = [
        Load { name: "as often as it can", switches: 20_000 / share, work: Duration::ZERO },
        Load { name: "10 000 times a second", switches: 5_000 / share, work: Duration::from_micros(95) },
    ];
    let lines_only = std::env::args().any(|argument| argument == "lines");
    if let Err(error) = loads.iter().filter(|_| !lines_only).try_for_each(|load| compare(*load, rounds)) {
        // Without the right to the events, nothing can be measured. That is not a defect.
        println!("not measured: {error}");
        return ExitCode::SUCCESS;
    }
    match evictions(if measuring { 150 } else { 1 }) {
        Ok(()) => ExitCode::SUCCESS,
        // The machine has no colors, or is too busy to distinguish them.
        Err(error) if error.downcast_ref().is_some_and(is_of_the_machine) => {
            println!("lines evicted: not measured: {error}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn is_of_the_machine(error: &ColorError) -> bool {
    error.may_pass() || matches!(error, ColorError::OneColor { .. } | ColorError::NoSuchLevel { .. })
}

fn compare(load: Load, rounds: usize) -> Result<(), SchedError> {
    let cpus = allowed_cpus()?;
    let (watched, watching) = (cpus[cpus.len() - 1], cpus[0]);
    let mut seen: Vec<Vec<Seen>> = METHODS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (method, seen) in METHODS.iter().zip(&mut seen) {
            seen.push(round(load, *method, watched, watching)?);
        }
    }
    println!("two threads that pass CPU {} to each other {}, watched from CPU {}:", watched.0, load.name, watching.0);
    for (method, seen) in METHODS.iter().zip(&seen) {
        let of = |value: fn(&Seen) -> f64| median(&seen.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN);
        let switches = load.switches as f64;
        println!(
            "  {:36} own {:5.2} % of a CPU at {:6.0} switches/s; a switch and its work {:6.2} us instead of {:6.2}, {:+.2} us; {:.0} seen{}",
            method.name,
            100.0 * of(|seen| seen.own / seen.time),
            switches / of(|seen| seen.time),
            1e6 * of(|seen| seen.time) / switches,
            1e6 * of(|seen| seen.alone) / switches,
            1e6 * of(|seen| seen.time - seen.alone) / switches,
            of(|seen| seen.slices as f64),
            if seen.iter().any(|seen| seen.lost) { ", some lost" } else { "" },
        );
    }
    Ok(())
}

/// Returns the CPU time of this process in seconds.
fn own_time() -> f64 {
    clock::process_cpu(std::process::id() as i32).unwrap_or_default().0 as f64 / 1e9
}

/// A watch in progress, with what it has recorded.
struct Watch {
    slices: Option<Slices>,
    entries: Vec<Entry>,
    count: usize,
    lost: bool,
    /// Slices in which polling tasks had the CPU.
    polls: Vec<Slice>,
}

impl Watch {
    fn open(method: Method, watched: CpuId) -> Result<Watch, SchedError> {
        let (cpus, faults) = ([watched], |counters| &[PAGE_FAULTS; 4][..counters]);
        let by = |source, counters| Slices::of(source, &cpus, true, counters > 0);
        let slices = match method.reader {
            Some(Reader::Bpf(counters)) => {
                Some(by(Box::new(BpfEvents::of_switches(&cpus, faults(counters))?), counters))
            }
            Some(Reader::Perf(counters)) => Some(by(Box::new(PerfRings::open(&cpus, faults(counters))?), counters)),
            Some(Reader::Tracefs) => Some(by(Box::new(Tracefs::open(&cpus)?), 0)),
            Some(Reader::Tasks(period)) => Some(Slices::polled(&cpus, true, &[], period)?),
            None => None,
        };
        Ok(Watch { slices, entries: Vec::new(), count: 0, lost: false, polls: Vec::new() })
    }

    /// Reads the records once all events have arrived.
    fn read_all(&mut self) {
        std::thread::sleep(POLL_SEEN);
        self.read();
    }

    fn read(&mut self) {
        if let Some(slices) = &mut self.slices {
            // Records that cannot be read are only missing in the count.
            let _ = slices.drain(&mut self.entries);
        }
        self.count += self.entries.len();
        for entry in self.entries.drain(..) {
            match entry {
                Entry::Gap(_) => self.lost = true,
                Entry::Slice(slice) if slice.name == "poll" => self.polls.push(slice),
                Entry::Slice(_) | Entry::State(_) => {}
            }
        }
    }
}

fn round(load: Load, method: Method, watched: CpuId, watching: CpuId) -> Result<Seen, SchedError> {
    let alone = pass(load, watched, &mut || false);
    let mut watch = Watch::open(method, watched)?;
    let _settings = RealtimeRequest::new().pin(watching).timer_slack(Ns(1)).apply();
    let before = own_time();
    let with = pass(load, watched, &mut || {
        watch.read();
        std::thread::sleep(method.every);
        true
    });
    let own = own_time() - before - with.used;
    Ok(Seen { time: with.time, alone: alone.time, own, slices: watch.count, lost: watch.lost })
}

/// Result of passing the CPU between two threads.
struct Passed {
    /// Duration of the handoffs, in seconds.
    time: f64,
    /// CPU time of both threads, in seconds.
    used: f64,
}

/// Lets two threads pass `cpu` to each other, and calls `read` all the time, until it reports that there is nothing to read.
fn pass(load: Load, cpu: CpuId, read: &mut dyn FnMut() -> bool) -> Passed {
    let handoffs = load.switches / 2;
    let (to_second, from_first) = sync_channel::<()>(1);
    let (to_first, from_second) = sync_channel::<()>(1);
    let first_turn = to_first.clone();
    let side = move |receiver: Receiver<()>, sender: SyncSender<()>| {
        let _settings = RealtimeRequest::new().pin(cpu).apply();
        let used = thread_time();
        for _ in 0..handoffs {
            // The other thread may have ended after its last handoff, so errors are ignored.
            let _ = receiver.recv();
            let begin = Instant::now();
            while begin.elapsed() < load.work {
                std::hint::spin_loop();
            }
            let _ = sender.send(());
        }
        (thread_time() - used, Instant::now())
    };
    std::thread::scope(|scope| {
        let threads =
            [scope.spawn(move || side(from_second, to_second)), scope.spawn(move || side(from_first, to_first))];
        let begin = Instant::now();
        let _ = first_turn.send(());
        while threads.iter().any(|thread| !thread.is_finished()) && read() {}
        let [first, second] = threads.map(|thread| thread.join().expect("no thread panics"));
        Passed { time: (first.1.max(second.1) - begin).as_secs_f64(), used: first.0 + second.0 }
    })
}

/// Returns the CPU time of this thread in seconds.
fn thread_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Number of samples of each kind in a block. It is small, so that a block ends before a neighbor interferes.
const SAMPLES: usize = 10;
/// Least number of usable samples of each kind in a block.
const SAMPLES_AT_LEAST: usize = 4;
/// Time after which the reading of a polling task has arrived.
const POLL_SEEN: Duration = Duration::from_millis(2);
/// Quarters of the ways of a colored level that are filled. A full level loses a part of its lines at once, because replacement is not exactly
/// LRU.
const QUARTERS_FILLED: usize = 3;
/// Time from filling the last line to walking the first, in ns: enough for a handoff and back in most samples.
const HANDOFF: u64 = 30_000;
/// Time from filling the last line to walking the first around a poll, in ns: enough for the poll in most samples.
const POLL: u64 = 60_000;
/// Largest delay of a usable sample, in ns.
const LATE: u64 = 1_000;
/// Time before a poll at which filling begins, in ns. While it lasts, the lines that the last poll evicted are filled again.
const FILLING: u64 = 150_000;
/// Time before a poll at which filling ends, in ns.
const AHEAD: u64 = 30_000;
/// Size of the memory in which colors are found.
const MEMORY: Bytes = Bytes(64 << 20);
/// Number of attempts at a measurement that a neighbor on the core may spoil.
const ATTEMPTS: u64 = 20;

/// Event between filling a level and walking over it.
#[derive(Clone, Copy)]
enum Between {
    /// A handoff to another thread and back.
    Handoff,
    /// A poll by a task, or the same wait without a watch.
    Poll {
        /// Begin of one of the polls; any time if nothing polls.
        one: Ns,
        every: Ns,
    },
}

impl Between {
    fn time(self) -> u64 {
        match self {
            Between::Handoff => HANDOFF,
            Between::Poll { .. } => POLL,
        }
    }
}

/// A sample: the times at which filling ended and walking began, and the share of the lines that were evicted in between.
struct Sample {
    from: Ns,
    to: Ns,
    lost: f64,
}

/// Median shares of the evicted lines in a block: with a watch, and without it before and afterwards.
struct Block {
    watched: f64,
    control: [f64; 2],
}

impl Block {
    fn is_undisturbed(&self) -> bool {
        self.control.iter().all(|lost| *lost <= LOST_MAX)
    }

    fn control(&self) -> f64 {
        self.control.iter().sum::<f64>() / 2.0
    }
}

/// Measures how many lines of levels 2 and 1 each method of watching evicts.
fn evictions(blocks: usize) -> Result<(), Box<dyn Error>> {
    let cpus = allowed_cpus()?;
    let (watched, watching) = (cpus[cpus.len() - 1], cpus[0]);
    let sysfs = Sysfs::system();
    let (machine, processor) = (sysfs.machine()?.0, sysfs.processor()?);
    let memory = |pages| Arena::map(pages).map_err(|source| SystemError::Memory { pages, source });
    let ticks = |sizes: LevelSizes| {
        patiently(|seed| Ok(TimedEvictionTest::calibrate(memory(sizes.pages_needed())?, sizes, seed)?.ticks()))
    };

    let target = Target::of(&machine, Some(2), watched)?;
    let line_bytes = target.geometry.line_bytes.0 as usize;
    let pinned = RealtimeRequest::new().pin(watched).apply();
    let ways = (target.geometry.ways as usize * QUARTERS_FILLED).div_ceil(4);
    let found = patiently(|seed| {
        let mut survey = Survey::start(target, MEMORY, &processor, seed)?;
        survey.classify_until(ways)?;
        Ok(survey.finish())
    })?;
    let pool = FramePool::new(found.arena, &found.inference.page_colors, found.inference.palette.colors);
    let second = ticks(target.sizes())?;
    let first = ticks(LevelSizes { line_bytes, inner: Bytes(0), level: target.inner });
    drop(pinned);

    let colors: Vec<Color> = (0..pool.colors() as u16).map(Color).collect();
    let region = pool.take(&colors, colors.len() * ways)?;
    let lines = region.size().0 as usize / line_bytes;
    println!("of {lines} lines in level 2, {ways} of {} ways, watching evicts:", target.geometry.ways);
    evicted(Canaries::new(region, line_bytes, second, 1), lines, blocks, watched, watching)?;
    // The calibration fails if other programs use the first level all the time; then nothing is measured there.
    match first {
        Ok(first) => {
            let pages = target.inner.0 as usize / page_bytes();
            let lines = pages * page_bytes() / line_bytes;
            println!("of {lines} lines in level 1, all of it, watching evicts:");
            // Fewer blocks are enough for the first level.
            evicted(Canaries::new(memory(pages)?, line_bytes, first, 1), lines, blocks.div_ceil(5), watched, watching)?;
        }
        Err(error) => println!("level 1: {error}"),
    }
    Ok(())
}

/// Calls `attempt` with one seed after the other until it succeeds.
fn patiently<T>(mut attempt: impl FnMut(u64) -> Result<T, ColorError>) -> Result<T, ColorError> {
    for seed in 1..ATTEMPTS {
        match attempt(seed) {
            Err(error) if error.may_pass() => std::thread::sleep(Duration::from_millis(100)),
            outcome => return outcome,
        }
    }
    attempt(ATTEMPTS)
}

/// Measures every method once in each of the rounds, and prints the results.
fn evicted<M: BackingMemory + Send>(
    mut canaries: Canaries<M>,
    lines: usize,
    rounds: usize,
    watched: CpuId,
    watching: CpuId,
) -> Result<(), SchedError> {
    let mut seen: Vec<Vec<Block>> = METHODS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (method, seen) in METHODS.iter().zip(&mut seen) {
            seen.extend(block(&mut canaries, *method, watched, watching)?);
        }
    }
    for (method, seen) in METHODS.iter().zip(&seen) {
        let undisturbed = || seen.iter().filter(|block| block.is_undisturbed());
        let control = |block: &Block| block.control() * lines as f64;
        let mut more: Vec<f64> = undisturbed().map(|block| (block.watched - block.control()) * lines as f64).collect();
        more.sort_by(f64::total_cmp);
        let kept = format!("{} of {rounds} blocks undisturbed", more.len());
        let quarter = |quarter: usize| more.get(more.len() * quarter / 4);
        match (quarter(1), quarter(2), quarter(3), median(&undisturbed().map(control).collect::<Vec<_>>())) {
            (Some(low), Some(middle), Some(high), Some(control)) => println!(
                "  {:36} {middle:5.0} (quartiles {low:.0} and {high:.0}) besides {control:4.0} without a watch; {kept}",
                method.name
            ),
            _ => match median(&seen.iter().map(control).collect::<Vec<_>>()) {
                Some(gone) => {
                    println!("  {:36}   not to be seen: {gone:4.0} are gone without a watch; {kept}", method.name)
                }
                None => println!("  {:36}   too few samples came about as they should", method.name),
            },
        }
    }
    Ok(())
}

/// Takes samples without a watch, with it, and without it again; `None` if too few of either kind are usable.
fn block<M: BackingMemory + Send>(
    canaries: &mut Canaries<M>,
    method: Method,
    watched: CpuId,
    watching: CpuId,
) -> Result<Option<Block>, SchedError> {
    let _settings = RealtimeRequest::new().pin(watching).timer_slack(Ns(1)).apply();
    // Without a watch there is no poll to align with, so any time serves as its begin.
    let unwatched = match method.reader {
        Some(Reader::Tasks(_)) => Between::Poll { one: Ns(0), every: Ns(1) },
        _ => Between::Handoff,
    };
    let mut between = unwatched;
    let before = samples(canaries, watched, unwatched, &mut || false);
    let mut watch = Watch::open(method, watched)?;
    if let Some(Reader::Tasks(every)) = method.reader {
        // The polls are recorded while the CPU computes, because an idle CPU wakes up late.
        samples(canaries, watched, unwatched, &mut || false);
        watch.read_all();
        let one = watch.polls.last().map_or(Ns(0), |poll| poll.begin);
        between = Between::Poll { one, every };
    }
    let during = samples(canaries, watched, between, &mut || {
        watch.read();
        std::thread::sleep(method.every);
        true
    });
    watch.read_all();
    let polls = std::mem::take(&mut watch.polls);
    drop(watch);
    let after = samples(canaries, watched, unwatched, &mut || false);

    let in_time = |sample: &&Sample| sample.to.0 - sample.from.0 <= between.time() + LATE;
    // With polling, a sample must contain exactly one poll, from its begin to its end.
    let polled = |sample: &&Sample| {
        let mut polls = polls.iter().filter(|poll| poll.end > sample.from && poll.begin < sample.to);
        let one = polls.next().is_some_and(|poll| poll.begin > sample.from && poll.end < sample.to);
        !matches!(between, Between::Poll { .. }) || one && polls.next().is_none()
    };
    let lost = |samples: &mut dyn Iterator<Item = &Sample>| {
        let lost: Vec<f64> = samples.map(|sample| sample.lost).collect();
        median(&lost).filter(|_| lost.len() >= SAMPLES_AT_LEAST)
    };
    let control = [before, after].map(|samples| lost(&mut samples.iter().filter(in_time)));
    let watched = lost(&mut during.iter().filter(in_time).filter(polled));
    Ok(match (watched, control) {
        (Some(watched), [Some(before), Some(after)]) => Some(Block { watched, control: [before, after] }),
        _ => None,
    })
}

/// Returns the samples of a thread on `cpu`. The thread fills the level, waits for the activity in between, and walks over the level. All the time
/// `read` is called until it reports that there is nothing to read.
fn samples<M: BackingMemory + Send>(
    canaries: &mut Canaries<M>,
    cpu: CpuId,
    between: Between,
    read: &mut dyn FnMut() -> bool,
) -> Vec<Sample> {
    let (to_other, from_first) = sync_channel::<()>(1);
    let (to_first, from_other) = sync_channel::<()>(1);
    let wait = |until: u64| while clock::monotonic().0 < until {};
    let mut one = move || {
        canaries.refresh();
        if let Between::Poll { one, every } = between {
            let first = clock::monotonic().0 + FILLING;
            let poll = first + every.0 - (first - one.0) % every.0;
            wait(poll - FILLING);
            while clock::monotonic().0 < poll - AHEAD {
                canaries.refresh();
            }
        }
        let from = clock::monotonic();
        if let Between::Handoff = between {
            // The other thread runs until this one ends, so neither call fails.
            let _ = to_other.send(());
            let _ = from_other.recv();
        }
        wait(from.0 + between.time());
        let to = clock::monotonic();
        Sample { from, to, lost: canaries.lost() }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _settings = RealtimeRequest::new().pin(cpu).apply();
            while from_first.recv().is_ok() && to_first.send(()).is_ok() {}
        });
        let first = scope.spawn(move || {
            let _settings = RealtimeRequest::new().pin(cpu).apply();
            (0..SAMPLES).map(|_| one()).collect()
        });
        while !first.is_finished() && read() {}
        first.join().expect("no thread panics")
    })
}
