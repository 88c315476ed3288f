//! Tests that modeled machines reproduce numbers of the papers.

use isochrome_model::geometry::Geometry;
use isochrome_model::papers::misses_per_pass;
use isochrome_model::placement::Placement;
use isochrome_model::sim::{Access, Allocation, Hierarchy, Kind, Level, MachineModel, PageTable, Semantics};
use isochrome_model::units::{Bytes, Color};
use isochrome_model::workload::Workload;

fn level(kib: u64, ways: u32, line: u64) -> Level {
    Level::lru("L", Geometry::of_size(Bytes(kib << 10), ways, Bytes(line)).unwrap())
}

/// Returns the misses per access of a loop over `area` bytes in its steady state.
fn steady_miss_ratio(level: &Level, area: Bytes) -> f64 {
    let line = level.geometry.line_bytes;
    let mut hierarchy = Hierarchy::chain(vec![level.clone()], Semantics::default()).unwrap();
    let mut run = |passes| {
        hierarchy.reset_counts();
        Workload::Code { area, line, passes }.accesses().for_each(|access| hierarchy.access(access));
        let counts = hierarchy.level_counts()[0].counts;
        counts.read_misses as f64 / counts.reads as f64
    };
    run(2);
    run(10)
}

/// Returns `(task - cache) / cache x ways`, limited to 0 to 1. [Sebek2002, Figure 5]
fn sebek_figure_5(area: u64, cache: u64, ways: u32) -> f64 {
    ((area as f64 - cache as f64) / cache as f64 * f64::from(ways)).clamp(0.0, 1.0)
}

#[test]
fn a_loop_larger_than_the_cache_misses_in_every_set_that_has_one_line_too_many() {
    // A loop over S lines in N sets of n ways misses exactly (S - nN)(n + 1)/S: S - nN sets hold n + 1 lines and always miss.
    for (ways, line) in [(1, 32), (2, 32), (4, 32), (8, 32), (8, 64)] {
        let level = level(32, ways, line);
        let (sets, cache) = (level.geometry.set_count, 32 << 10);
        println!("\n32 KiB, {ways} ways, {line}-byte lines\n   KiB   exact %   paper's line %   difference");
        for step in 0..=20 {
            let area = cache + step * (cache / u64::from(ways)) / 20 / line * line;
            let lines = area / line;
            let excess = lines - sets * u64::from(ways);
            let exact = (excess * u64::from(ways + 1)) as f64 / lines as f64;
            let found = steady_miss_ratio(&level, Bytes(area));
            assert!((found - exact).abs() < 1e-12, "{ways} ways, {area} bytes: {found}, exact {exact}");
            let paper = sebek_figure_5(area, cache, ways);
            // The paper's straight line joins the exact values at both ends, and lies below the exact values between them.
            if step == 0 || step == 20 {
                assert!((paper - exact).abs() < 1e-12, "{ways} ways, {area} bytes");
            } else {
                assert!(paper < exact, "{ways} ways, {area} bytes");
            }
            if step % 4 == 0 {
                let [kib, exact, paper] = [area as f64 / 1024.0, 100.0 * exact, 100.0 * paper];
                println!("{kib:6.2} {exact:9.2} {paper:16.2} {:12.2}", exact - paper);
            }
        }
    }
}

#[test]
fn the_papers_example_of_38_kib_in_32_kib_two_way() {
    // [Sebek2002, §3.3]: 37.5 %. Exactly: 1216 lines of 32 bytes, 512 sets of 2: (1216 - 1024) x 3 / 1216 = 47.37 %.
    let found = steady_miss_ratio(&level(32, 2, 32), Bytes(38 << 10));
    let paper = sebek_figure_5(38 << 10, 32 << 10, 2);
    assert_eq!(paper, 0.375);
    assert!((found - 576.0 / 1216.0).abs() < 1e-12, "{found}");
    println!(
        "38 KiB in 32 KiB 2-way: paper {:.1} %, exact {:.2} %, difference {:.2} points",
        37.5,
        100.0 * found,
        100.0 * found - 37.5
    );
}

#[test]
fn the_preemption_delay_grows_to_the_cache_size_and_is_gone_at_one_way_more() {
    // [Sebek2002, Figure 7]: 32 KiB 8-way, lines of 32 bytes: linear to 100 %, zero from 1 + 1/8 = 112.5 % on.
    let cache = level(32, 8, 32);
    let delay = |percent: u64| {
        let area = Bytes((32 << 10) * percent / 1000 / 32 * 32);
        let line = Bytes(32);
        let mut hierarchy = Hierarchy::chain(vec![cache.clone()], Semantics::default()).unwrap();
        let pass = |hierarchy: &mut Hierarchy| {
            hierarchy.reset_counts();
            Workload::Code { area, line, passes: 1 }.accesses().for_each(|access| hierarchy.access(access));
            hierarchy.level_counts()[0].counts.read_misses
        };
        pass(&mut hierarchy);
        let alone = pass(&mut hierarchy);
        // The preempting task replaces everything.
        let other = (0..1024u64).map(|line| Access { kind: Kind::Fetch, ..Access::read((1 << 30) + line * 32) });
        other.for_each(|access| hierarchy.access(access));
        pass(&mut hierarchy) - alone
    };
    for tenths in (0..=1000).step_by(125) {
        assert_eq!(delay(tenths), 1024 * tenths / 1000, "{} %", tenths as f64 / 10.0);
    }
    // Above 100 % the delay falls linearly: with every additional line, the 8 other lines of its set miss even without
    // preemption.
    for lines_over in 0..=128u64 {
        let tenths = 1000 + lines_over * 1000 / 1024;
        let over = (32 << 10) * tenths / 1000 / 32 - 1024;
        assert_eq!(delay(tenths), 1024 - 8 * over, "{} % of the cache", tenths as f64 / 10.0);
    }
    assert_eq!(delay(1125), 0);
    assert_eq!(delay(1500), 0);
}

/// Returns `sum` of [Hanemaaijer1993] for the frames of a buffer: the number of pages that share a cache page with another.
fn conflict_sum(frames: &[u64], cache_pages: usize) -> u64 {
    let colors = frames.iter().map(|frame| Color((frame % cache_pages as u64) as u16));
    Placement::of_colors(colors, cache_pages as u32).sum(1)
}

#[test]
fn simulated_time_is_linear_in_sum_with_the_miss_penalty_as_slope() {
    // [Hanemaaijer1993]: 256 KiB direct-mapped, 16-byte lines; 256 lines per page; each page in conflict misses in every line of
    // every pass: time = base + sum x 256 x penalty per pass.
    const PENALTY: u64 = 30;
    let cache = level(256, 1, 16);
    for buffer_pages in [64u64, 256] {
        let mut base = None;
        for seed in 0..12 {
            let mut table = PageTable::new(Bytes(4096), Allocation::Random { frames: 1280, seed });
            let mut hierarchy = Hierarchy::chain(vec![cache.clone()], Semantics::default()).unwrap();
            let mut pass = |hierarchy: &mut Hierarchy| {
                hierarchy.reset_counts();
                let walk =
                    Workload::Walk { area: Bytes(buffer_pages << 12), stride: Bytes(16), passes: 1, write: false };
                walk.accesses().for_each(|access| hierarchy.access(table.translate(access)));
                hierarchy.memory().reads
            };
            pass(&mut hierarchy);
            let misses = pass(&mut hierarchy);
            let frames: Vec<u64> = (0..buffer_pages).map(|page| table.frame(page).0).collect();
            let sum = conflict_sum(&frames, 64);
            let cycles = buffer_pages * 256 + misses * PENALTY;
            // All seeds have one base, so the line is straight, with a slope of 256 lines x the penalty.
            assert_eq!(*base.get_or_insert(cycles - sum * 256 * PENALTY), cycles - sum * 256 * PENALTY, "seed {seed}");
        }
        assert_eq!(base, Some(buffer_pages * 256), "without conflicts every access hits");
    }
}

#[test]
fn the_tables_of_1993_come_out_of_the_simulator() {
    // The tables have all rows of [Hanemaaijer1993]: histogram, sum, and seconds of 100 passes. Each table, of one machine and
    // buffer size, has the seconds without conflicts and the penalty that the document derives. The seconds without conflicts
    // for 1024 KiB are four times those for 256 KiB. For its worst case of 64 pages the document states 4 places of 4 pages,
    // but its sum and time are those of 16 places.
    type Row = (&'static [u64], u64, f64);
    let tables: [(&str, f64, f64, &[Row]); 5] = [
        (
            "(1) 40 MHz, 256 KiB",
            0.58,
            980e-9,
            &[
                (&[64], 0, 0.58),
                (&[60, 2], 4, 0.70),
                (&[38, 13], 26, 1.24),
                (&[36, 14], 28, 1.30),
                (&[34, 15], 30, 1.37),
                (&[32, 8, 4, 1], 32, 1.40),
                (&[29, 10, 5], 35, 1.46),
                (&[27, 14, 3], 37, 1.52),
                (&[26, 16, 2], 38, 1.54),
                (&[25, 15, 3], 39, 1.57),
                (&[23, 16, 3], 41, 1.62),
                (&[22, 15, 4], 42, 1.65),
                (&[0, 0, 0, 16], 64, 2.18),
            ],
        ),
        (
            "(2) 40 MHz, faster memory, 256 KiB",
            0.58,
            780e-9,
            &[
                (&[50, 7], 14, 0.86),
                (&[46, 9], 18, 0.94),
                (&[32, 16], 32, 1.22),
                (&[28, 18], 36, 1.30),
                (&[24, 14, 4], 40, 1.39),
                (&[21, 20, 1], 43, 1.44),
            ],
        ),
        ("(3) 33 MHz, 256 KiB", 0.50, 1004e-9, &[(&[64], 0, 0.50), (&[36, 14], 28, 1.22)]),
        (
            "(1) 1024 KiB",
            4.0 * 0.58,
            980e-9,
            &[
                (&[4, 7, 15, 15, 12, 4, 1, 3, 2], 252, 8.77),
                (&[2, 8, 17, 18, 7, 4, 2, 4, 0, 1], 254, 8.82),
                (&[0, 0, 0, 64], 256, 8.86),
            ],
        ),
        (
            "(1) 64 KiB",
            0.13,
            980e-9,
            &[(&[16], 0, 0.13), (&[14, 1], 2, 0.19), (&[13, 0, 1], 3, 0.21), (&[12, 2], 4, 0.24), (&[8, 4], 8, 0.34)],
        ),
    ];
    for (name, base, penalty, rows) in tables {
        println!("\n{name}\n  sum   misses per pass   simulated s   measured s");
        for (histogram, sum, measured) in rows {
            let (found, misses) = misses_per_pass(histogram).unwrap();
            assert_eq!((found, misses), (*sum, 256 * sum), "{name}: {histogram:?}");
            let simulated = base + 100.0 * misses as f64 * penalty;
            println!("{sum:5} {misses:17} {simulated:13.3} {measured:12.2}");
            // The document gives the times in hundredths.
            assert!(
                (simulated / measured - 1.0).abs() < 0.03 || (simulated - measured).abs() < 0.015,
                "{name}: {histogram:?}"
            );
        }
    }
}

#[test]
fn a_partition_of_the_i7_2600_takes_4096_lines_to_refill() {
    // [Kim2013, §5.1]: 8 MiB in 32 colors, 256 KiB each: 4096 lines of 64 bytes.
    let machine = MachineModel::named("i7-2600").unwrap();
    assert_eq!(machine.colors().last().unwrap().1, 32);
    let mut hierarchy = machine.hierarchy(1).unwrap();
    let colors = vec![Color(7)];
    let mut table = PageTable::new(Bytes(4096), Allocation::Colored { colors, color_count: 32 });
    let walk = Workload::Walk { area: Bytes(256 << 10), stride: Bytes(64), passes: 1, write: false };
    let mut pass = |hierarchy: &mut Hierarchy| {
        hierarchy.reset_counts();
        walk.accesses().for_each(|access| hierarchy.access(table.translate(access)));
        hierarchy.memory().reads
    };
    assert_eq!(pass(&mut hierarchy), 4096);
    assert_eq!(pass(&mut hierarchy), 0, "the partition holds all 64 pages");
}
