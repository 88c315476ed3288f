//! Speed of the simulator as ratios to rivals of the same run, and absolute numbers for the reader.
//!
//! `cargo bench -p isochrome-model --bench simulator` checks the ratios against gates that leave room for noise. `cargo test`
//! runs a smaller trace once, and compares the counts. Contenders run alternately, and the best of several runs counts. Runs are
//! timed in CPU time of the thread if the system reports it, so that other programs disturb little. With a path as argument, the
//! trace is also written there as raw u64, for a rival in another process (`scripts/rivals.py speed`).

use std::hint::black_box;
use std::io::Write as _;
use std::process::Command;
use std::time::Instant;

use isochrome_model::geometry::Geometry;
use isochrome_model::sim::{Level, LruChain, Semantics, StackDistances, misses_by_sets_and_ways};
use isochrome_model::trace::{Access, Format, Kind, Reader};
use isochrome_model::units::Bytes;
use isochrome_model::workload::Workload;
use rayon::prelude::*;

/// Returns the accesses of a naive and a blocked matrix multiplication and a pointer chase, one after the other, in separate
/// memory.
fn mixed_trace(scale: u64) -> Vec<Access> {
    let order = 160 * scale / 10;
    let workloads = [
        Workload::MatmulNaive { order },
        Workload::MatmulBlocked { order: order / 16 * 16, block: 16 },
        Workload::Chase { area: Bytes(2 << 20), line: Bytes(64), steps: 9_400_000 * scale * scale / 100, seed: 1 },
    ];
    let accesses = workloads.into_iter().zip(0u64..).flat_map(|(workload, i)| {
        workload.accesses().map(move |access| Access { address: access.address + (i << 30), bytes: 1, ..access })
    });
    accesses.collect()
}

/// The rival: two levels of move-to-front over plain vectors of lines, one access at a time.
#[derive(Default)]
struct Plain {
    sets: Vec<Vec<(u64, bool)>>,
    ways: usize,
    counts: [u64; 5],
}

impl Plain {
    fn new(bytes: usize, ways: usize) -> Plain {
        Plain { sets: vec![Vec::with_capacity(ways + 1); bytes / 64 / ways], ways, counts: [0; 5] }
    }

    /// Performs an access. Returns whether it hit, and the dirty line that was evicted.
    #[inline]
    fn access(&mut self, line: u64, write: bool) -> (bool, Option<u64>) {
        let index = line as usize % self.sets.len();
        let set = &mut self.sets[index];
        if let Some(position) = set.iter().position(|(found, _)| *found == line) {
            let dirty = set[position].1;
            set[..=position].rotate_right(1);
            set[0] = (line, dirty || write);
            return (true, None);
        }
        let victim = if set.len() == self.ways { set.pop() } else { None };
        set.insert(0, (line, write));
        (false, victim.filter(|(_, dirty)| *dirty).map(|(line, _)| line))
    }
}

/// Returns the reads, writes, read misses, write misses and write-backs of two levels, and the reads and writes of memory.
fn plain(trace: &[Access]) -> ([[u64; 5]; 2], [u64; 2]) {
    let mut levels = [Plain::new(32 << 10, 8), Plain::new(512 << 10, 8)];
    let mut memory = [0; 2];
    for access in trace {
        let (line, write) = (access.address >> 6, access.kind == Kind::Write);
        let [first, second] = &mut levels;
        first.counts[usize::from(write)] += 1;
        // The second level sees the fetch of the line before the write-back of the victim, although `access` has already evicted
        // the victim.
        let (hit, victim) = first.access(line, write);
        if hit {
            continue;
        }
        first.counts[2 + usize::from(write)] += 1;
        let requests = std::iter::once((line, false)).chain(victim.map(|line| (line, true)));
        for (line, back) in requests {
            first.counts[4] += u64::from(back);
            second.counts[usize::from(back)] += 1;
            let (hit, victim) = second.access(line, back);
            second.counts[2 + usize::from(back)] += u64::from(!hit);
            memory[0] += u64::from(!hit && !back);
            second.counts[4] += u64::from(victim.is_some());
            memory[1] += u64::from(victim.is_some());
        }
    }
    ([levels[0].counts, levels[1].counts], memory)
}

fn two_levels(semantics: Semantics) -> LruChain {
    let level = |kib: u64| Level::lru("", Geometry::of_size(Bytes(kib << 10), 8, Bytes(64)).unwrap());
    LruChain::new(&[level(32), level(512)], semantics).unwrap()
}

fn fast(trace: &[Access], semantics: Semantics) -> ([[u64; 5]; 2], [u64; 2]) {
    let mut chain = two_levels(semantics);
    assert_eq!(chain.run(trace), trace.len());
    let (levels, memory) = chain.counts();
    let counts = |i: usize| {
        let c = levels[i].counts;
        [c.reads, c.writes, c.read_misses, c.write_misses, c.writebacks]
    };
    ([counts(0), counts(1)], [memory.reads, memory.writes])
}

/// Returns the CPU time of this thread, in seconds.
#[cfg(target_os = "linux")]
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the wall-clock time in seconds, because only Linux reports the CPU time of a thread here.
#[cfg(not(target_os = "linux"))]
fn cpu_seconds() -> f64 {
    seconds()
}

/// Returns the time in seconds since some fixed instant.
fn seconds() -> f64 {
    static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    BEGIN.elapsed().as_secs_f64()
}

/// A piece of work to be timed.
struct Contender<'a> {
    name: &'static str,
    /// Least ratio to the speed of the plain loop that `cargo bench` accepts: about two thirds of the ratio on a busy machine.
    /// Code that the compiler no longer vectorizes is far below.
    gate: f64,
    run: Box<dyn FnMut() + Send + 'a>,
    best_seconds: f64,
}

impl<'a> Contender<'a> {
    fn new<T>(name: &'static str, gate: f64, mut run: impl FnMut() -> T + Send + 'a) -> Contender<'a> {
        Contender { name, gate, run: Box::new(move || _ = black_box(run())), best_seconds: f64::INFINITY }
    }
}

/// Runs the contenders alternately, and keeps the best time of each.
fn compete(contenders: &mut [Contender], rounds: usize, seconds: fn() -> f64) {
    for _ in 0..rounds {
        for contender in contenders.iter_mut() {
            let begin = seconds();
            (contender.run)();
            contender.best_seconds = contender.best_seconds.min(seconds() - begin);
        }
    }
}

/// Prints the rates. Panics if `gates` is set and a contender is below its gate.
fn tell(contenders: &[Contender], accesses: usize, gates: bool) {
    let loop_seconds = contenders[0].best_seconds;
    for Contender { name, gate, best_seconds, .. } in contenders {
        let (rate, ratio) = (accesses as f64 / best_seconds / 1e6, loop_seconds / best_seconds);
        println!("{name:28}{rate:7.1} million accesses/s = {ratio:.2}x the loop");
        assert!(!gates || ratio >= *gate, "{name}: {ratio:.2} times the speed of the plain loop, less than {gate}");
    }
}

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started")
}

fn din(trace: &[Access]) -> Vec<u8> {
    let mut text = Vec::new();
    for access in trace {
        let label = if access.kind == Kind::Write { 1 } else { 0 };
        writeln!(text, "{label} {:x}", access.address).expect("memory takes it");
    }
    text
}

/// Simulates eight independent machines on one trace.
fn independent(trace: &[Access]) {
    (0..8u32).into_par_iter().for_each(|i| {
        let level = |kib: u64, ways| Level::lru("", Geometry::of_size(Bytes(kib << 10), ways, Bytes(64)).unwrap());
        let mut chain = LruChain::new(&[level(32, 8), level(64 << (i / 2), 8)], Semantics::default()).unwrap();
        black_box(chain.run(trace));
    });
}

/// Prints how much faster two threads simulate independent machines than one thread. As a control, it prints the same for two
/// processes, which share nothing but the hardware: the two CPUs may be threads of one core, and other programs may run.
fn scaling(trace: &[Access]) {
    let threads = |count| {
        let pool = pool(count);
        let best = (0..3).map(|_| {
            let begin = Instant::now();
            pool.install(|| independent(trace));
            begin.elapsed().as_secs_f64()
        });
        best.fold(f64::INFINITY, f64::min)
    };
    let processes = |count| {
        let best = (0..3).map(|_| {
            let program = std::env::current_exe().expect("this program has a path");
            let mut children: Vec<_> =
                (0..count).map(|_| Command::new(&program).arg(ALONE).spawn().expect("it starts again")).collect();
            let begin = Instant::now();
            assert!(children.iter_mut().all(|child| child.wait().expect("it ends").success()));
            begin.elapsed().as_secs_f64()
        });
        best.fold(f64::INFINITY, f64::min)
    };
    println!("8 independent machines: {:.2}x as fast on two threads as on one", threads(1) / threads(2));
    println!("control: two processes do {:.2}x the work of one in the same time", 2.0 * processes(1) / processes(2));
}

/// Argument that makes this program a process of the control in `scaling`.
const ALONE: &str = "--alone";

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let (scale, rounds) = if full { (10, 5) } else { (2, 1) };
    let trace = mixed_trace(scale);
    if std::env::args().any(|argument| argument == ALONE) {
        return pool(1).install(|| independent(&trace));
    }
    let path = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if let Some(path) = &path {
        let words = trace.iter().flat_map(|a| (a.address | u64::from(a.kind == Kind::Write) << 63).to_le_bytes());
        std::fs::write(path, words.collect::<Vec<u8>>()).expect("the trace can be written");
        println!("counts, pycachesim's way: {:?}", fast(&trace, Semantics::pycachesim()));
    }
    let expected = plain(&trace);
    assert_eq!(fast(&trace, Semantics::default()), expected, "the fast path counts as the plain loop");
    let text = din(&trace);
    let from_text = || {
        let mut chain = two_levels(Semantics::default());
        let mut reader = Reader::new(Format::Din, "memory", text.as_slice());
        reader.for_each(|batch| _ = chain.run(batch)).expect("the trace is well-formed");
        chain.counts()
    };
    assert_eq!(from_text().1.reads, expected.1[0], "the text holds the same accesses");
    let stack_distances = || {
        let mut distances = StackDistances::new(Geometry { set_count: 1024, ways: 16, line_bytes: Bytes(64) }).unwrap();
        distances.run(&trace);
        distances.curve()
    };
    let mut contenders = [
        Contender::new("plain scalar loop", 1.0, || plain(&trace)),
        Contender::new("fast path", 1.3, || fast(&trace, Semantics::default())),
        Contender::new("fast path, pycachesim's way", 1.3, || fast(&trace, Semantics::pycachesim())),
        Contender::new("din text, end to end", 0.5, from_text),
        Contender::new("stack distances, 1024 x 16", 1.5, stack_distances),
        Contender::new("80 configurations", 0.4, || misses_by_sets_and_ways(&trace, Bytes(64), 4, 16)),
    ];
    // The contenders run on one thread, so that the CPU time of this thread covers all their work.
    pool(1).install(|| compete(&mut contenders, rounds, cpu_seconds));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{} accesses, 32 KiB 8-way + 512 KiB 8-way, LRU, write-back; load {load}", trace.len());
    println!("one thread, by its CPU time:");
    tell(&contenders, trace.len(), full);
    if full && path.is_none() {
        contenders.iter_mut().for_each(|contender| contender.best_seconds = f64::INFINITY);
        let threads = rayon::current_num_threads();
        pool(threads).install(|| compete(&mut contenders, rounds, seconds));
        println!("{threads} threads, by the clock (the loop and the fast path use one):");
        tell(&contenders, trace.len(), false);
    }
    drop(contenders);
    if full && path.is_none() {
        scaling(&trace);
    }
}
