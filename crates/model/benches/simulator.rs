//! Speed of the simulator as ratios to rivals of the same run: the figures for CI, and absolute numbers for the reader.
//!
//! `cargo bench -p isochrome-model --bench simulator`; `cargo test` runs it once at a small size, which only shows that all
//! ways of counting agree. With a path as argument the trace is also written there as raw u64, for rivals in other processes.

use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant;

use isochrome_model::geometry::Geometry;
use isochrome_model::sim::{Level, LruChain, Semantics, StackDistances, misses_by_sets_and_ways};
use isochrome_model::trace::{Access, Format, Kind, Reader};
use isochrome_model::units::Bytes;
use isochrome_model::workload::Workload;

/// A naive and a blocked matrix multiplication and a pointer chase, one after the other, apart in memory.
fn mixed_trace(scale: u64) -> Vec<Access> {
    let order = 160 * scale / 10;
    let workloads = [
        Workload::MatmulNaive { order },
        Workload::MatmulBlocked { order: order / 16 * 16, block: 16 },
        Workload::Chase { area: Bytes(2 << 20), line: Bytes(64), steps: 9_400_000 * scale * scale / 100, seed: 1 },
    ];
    let placed = workloads.into_iter().zip(0u64..).flat_map(|(workload, i)| {
        workload.accesses().map(move |access| Access { address: access.address + (i << 30), bytes: 1, ..access })
    });
    placed.collect()
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

    /// Whether it hit, and the dirty line that had to leave.
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

/// Reads, writes, read misses, write misses and write-backs of two levels, and transfers of memory.
fn plain(trace: &[Access]) -> ([[u64; 5]; 2], [u64; 2]) {
    let mut levels = [Plain::new(32 << 10, 8), Plain::new(512 << 10, 8)];
    let mut memory = [0; 2];
    for access in trace {
        let (line, write) = (access.address >> 6, access.kind == Kind::Write);
        let [first, second] = &mut levels;
        first.counts[usize::from(write)] += 1;
        // The fetch from below comes before the victim is written back, so the order of the calls differs from their results'.
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

/// The best of some runs, in seconds: the machine may be busy with other things.
fn seconds<T>(runs: usize, mut run: impl FnMut() -> T) -> (f64, T) {
    let mut best: Option<(f64, T)> = None;
    for _ in 0..runs {
        let begin = Instant::now();
        let result = black_box(run());
        let took = begin.elapsed().as_secs_f64();
        if best.as_ref().is_none_or(|(least, _)| took < *least) {
            best = Some((took, result));
        }
    }
    best.expect("at least one run")
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let (scale, runs) = if full { (10, 3) } else { (1, 1) };
    let trace = mixed_trace(scale);
    let rate = |seconds: f64| trace.len() as f64 / seconds / 1e6;
    if let Some(path) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        let words = trace.iter().flat_map(|a| (a.address | u64::from(a.kind == Kind::Write) << 63).to_le_bytes());
        std::fs::write(&path, words.collect::<Vec<u8>>()).expect("the trace can be written");
    }
    let (plain_s, expected) = seconds(runs, || plain(&trace));
    let (fast_s, counts) = seconds(runs, || fast(&trace, Semantics::default()));
    assert_eq!(counts, expected, "the fast path counts as the plain loop");
    let (pycachesim_s, _) = seconds(runs, || fast(&trace, Semantics::pycachesim()));
    println!("{} accesses, 32 KiB 8-way + 512 KiB 8-way, LRU, write-back", trace.len());
    println!("plain scalar loop          {:7.1} million accesses/s", rate(plain_s));
    println!("fast path                  {:7.1} million accesses/s = {:.2}x the loop", rate(fast_s), plain_s / fast_s);
    println!("fast path, pycachesim's way {:6.1} million accesses/s", rate(pycachesim_s));

    let mut text = Vec::new();
    for access in &trace {
        let label = if access.kind == Kind::Write { 1 } else { 0 };
        writeln!(text, "{label} {:x}", access.address).expect("memory takes it");
    }
    let (din_s, din_counts) = seconds(runs, || {
        let mut chain = two_levels(Semantics::default());
        let mut reader = Reader::new(Format::Din, "memory", text.as_slice());
        reader.for_each(|batch| _ = chain.run(batch)).expect("the trace is well-formed");
        chain.counts()
    });
    assert_eq!(din_counts.1.reads, expected.1[0], "the text holds the same accesses");
    drop(text);
    println!(
        "din text, end to end       {:7.1} million accesses/s = {:.2}x the loop from memory",
        rate(din_s),
        plain_s / din_s
    );

    let geometry = Geometry { set_count: 1024, ways: 16, line_bytes: Bytes(64) };
    let (stack_s, _) = seconds(runs, || {
        let mut distances = StackDistances::new(geometry).unwrap();
        distances.run(&trace);
        distances.curve()
    });
    println!(
        "stack distances, 1024 x 16 {:7.1} million accesses/s = {:.2}x the loop",
        rate(stack_s),
        plain_s / stack_s
    );
    let (many_s, _) = seconds(runs, || misses_by_sets_and_ways(&trace, Bytes(64), 4, 16).unwrap());
    println!("80 configurations          {:7.1} million accesses/s = {:.2}x the loop", rate(many_s), plain_s / many_s);
}
