//! What it costs to watch two threads that pass one CPU to each other: at every switch, and by tasks that poll.
//!
//! `cargo bench -p isochrome-host --bench watch` measures; under `cargo test` the same code runs on a small size. In every round all ways
//! come once, one after the other, and the same work without a watch before each of them: its time is what the others are compared with.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use isochrome_host::error::HostError;
use isochrome_host::events::PAGE_FAULTS;
use isochrome_host::jobs::timeline::Timeline;
use isochrome_host::setting::{RealtimeRequest, allowed_cpus};
use isochrome_host::slices::Slices;
use isochrome_host::sys::clock;
use isochrome_model::stats::median;
use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::Entry;

/// How it is watched.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    /// Time between two looks.
    every: Duration,
    /// What reads the counters, if anything is watched at all.
    reader: Option<Reader>,
}

/// What reads the counters.
#[derive(Clone, Copy)]
enum Reader {
    /// The kernel, at every switch, of this many counters: page faults, which every machine has.
    Kernel(usize),
    /// Nobody: the switches come from a ring of tracefs, which has no room for counts.
    Nobody,
    /// Tasks that poll.
    Tasks(Ns),
}

const fn way(name: &'static str, every_us: u64, reader: Option<Reader>) -> Way {
    Way { name, every: Duration::from_micros(every_us), reader }
}

const WAYS: [Way; 8] = [
    way("every switch, a look each 50 ms", 50_000, Some(Reader::Kernel(0))),
    way("the same with four counters", 50_000, Some(Reader::Kernel(4))),
    way("the same by tracefs, without counts", 50_000, Some(Reader::Nobody)),
    way("every switch, a look each 10 ms", 10_000, Some(Reader::Kernel(0))),
    way("every switch, a look each 100 us", 100, Some(Reader::Kernel(0))),
    way("nothing: it wakes up each 100 us", 100, None),
    way("polled at 500 Hz, a look each 50 ms", 50_000, Some(Reader::Tasks(Ns(2_000_000)))),
    way("polled at 10 kHz, a look each 50 ms", 50_000, Some(Reader::Tasks(Ns(100_000)))),
];

/// Work between two switches.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    switches: usize,
    work: Duration,
}

/// What one round of one way came to.
struct Seen {
    /// Time that the threads took, and without a watch.
    time: f64,
    alone: f64,
    /// CPU time of this process that was not theirs.
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
    match loads.iter().try_for_each(|load| compare(*load, rounds)) {
        Ok(()) => ExitCode::SUCCESS,
        // No right to the events: nothing to measure, and no defect.
        Err(error) => {
            println!("not measured: {error}");
            ExitCode::SUCCESS
        }
    }
}

fn compare(load: Load, rounds: usize) -> Result<(), HostError> {
    let cpus = allowed_cpus()?;
    let (watched, watching) = (cpus[cpus.len() - 1], cpus[0]);
    let mut seen: Vec<Vec<Seen>> = WAYS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (way, seen) in WAYS.iter().zip(&mut seen) {
            seen.push(round(load, *way, watched, watching)?);
        }
    }
    println!("two threads that pass CPU {} to each other {}, watched from CPU {}:", watched.0, load.name, watching.0);
    for (way, seen) in WAYS.iter().zip(&seen) {
        let of = |value: fn(&Seen) -> f64| median(&seen.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN);
        let switches = load.switches as f64;
        println!(
            "  {:36} own {:5.2} % of a CPU at {:6.0} switches/s; a switch and its work {:6.2} us instead of {:6.2}, {:+.2} us; {:.0} seen{}",
            way.name,
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

/// CPU time of this process in seconds.
fn own_time() -> f64 {
    clock::process_cpu(std::process::id() as i32).unwrap_or_default().0 as f64 / 1e9
}

fn round(load: Load, way: Way, watched: CpuId, watching: CpuId) -> Result<Seen, HostError> {
    let alone = pass(load, watched, &mut || false);
    let mut slices = match way.reader {
        Some(Reader::Tasks(period)) => Some(Slices::polled(&[watched], true, &[], period)?),
        Some(Reader::Kernel(counters)) => Some(Slices::open(&[watched], true, &[PAGE_FAULTS; 4][..counters])?),
        Some(Reader::Nobody) | None => None,
    };
    let mut timeline = match way.reader {
        Some(Reader::Nobody) => Some(Timeline::open(&[watched])?),
        _ => None,
    };
    let mut events = Vec::new();
    let (mut entries, mut count, mut lost) = (Vec::new(), 0, false);
    let _settings = RealtimeRequest::new().pin(watching).timer_slack(Ns(1)).apply();
    let before = own_time();
    let with = pass(load, watched, &mut || {
        if let Some(slices) = &mut slices {
            slices.drain(&mut entries);
        }
        if let Some(timeline) = &mut timeline {
            // What cannot be read is not there to be counted either.
            let _ = timeline.drain(&mut events);
            count += events.len();
            events.clear();
        }
        count += entries.len();
        lost |= entries.iter().any(|entry| matches!(entry, Entry::Gap(_)));
        entries.clear();
        std::thread::sleep(way.every);
        true
    });
    let own = own_time() - before - with.used;
    Ok(Seen { time: with.time, alone: alone.time, own, slices: count, lost })
}

/// What passing took.
struct Passed {
    time: f64,
    used: f64,
}

/// Two threads pass `cpu` to each other; `look` is called meanwhile, unless it says that there is nothing to look at.
fn pass(load: Load, cpu: CpuId, look: &mut dyn FnMut() -> bool) -> Passed {
    let turns = load.switches / 2;
    let (to_second, from_first) = sync_channel::<()>(1);
    let (to_first, from_second) = sync_channel::<()>(1);
    let first_turn = to_first.clone();
    let side = move |told: Receiver<()>, tell: SyncSender<()>| {
        let _settings = RealtimeRequest::new().pin(cpu).apply();
        let used = thread_time();
        for _ in 0..turns {
            // The other one ends with its last turn.
            let _ = told.recv();
            let begin = Instant::now();
            while begin.elapsed() < load.work {
                std::hint::spin_loop();
            }
            let _ = tell.send(());
        }
        (thread_time() - used, Instant::now())
    };
    std::thread::scope(|scope| {
        let threads =
            [scope.spawn(move || side(from_second, to_second)), scope.spawn(move || side(from_first, to_first))];
        let begin = Instant::now();
        let _ = first_turn.send(());
        while threads.iter().any(|thread| !thread.is_finished()) && look() {}
        let [first, second] = threads.map(|thread| thread.join().expect("no thread panics"));
        Passed { time: (first.1.max(second.1) - begin).as_secs_f64(), used: first.0 + second.0 }
    })
}

/// CPU time of this thread in seconds.
fn thread_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
