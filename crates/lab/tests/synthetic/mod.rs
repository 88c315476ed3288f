//! Invented evidence for the tests of the report: an imaginary machine, and times from simple formulas and a fixed generator.

use std::collections::BTreeMap;

use isochrome_lab::kernels::{self, Condition, Experiment, JobSummary, Kernels, Outcome};
use isochrome_model::evidence::{self, Evidence, PaletteEvidence, RawFile};
use isochrome_model::geometry::Geometry;
use isochrome_model::machine::{self, CacheLevel, Fact, Holds, Machine, Refill, Retention, Source, Waiting};
use isochrome_model::stats::HighWaterMark;
use isochrome_model::units::{Bytes, Color, CpuId, Cycles, Ns};

/// Knuth's 64-bit random generator. It gives the same numbers on every machine and with every version of every crate.
struct Lcg(u64);

impl Lcg {
    /// Draws a number from 0 up to but not including 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn sysfs<T>(value: T) -> Fact<T> {
    Fact { value, source: Source::Sysfs }
}

fn measured<T>(value: T) -> Fact<T> {
    Fact { value, source: Source::Measured }
}

fn level(level: u8, holds: Holds, kib: u64, ways: u32, load_ns: Option<f64>) -> CacheLevel {
    CacheLevel {
        level,
        holds,
        geometry: sysfs(Geometry::of_size(Bytes(kib << 10), ways, Bytes(64)).unwrap()),
        shared_by: sysfs(if level == 3 {
            vec![vec![CpuId(0), CpuId(1)]]
        } else {
            vec![vec![CpuId(0)], vec![CpuId(1)]]
        }),
        sharing_seen: (level > 1).then_some(measured(level == 3)),
        load_ns: load_ns.map(measured),
        refill: None,
        replacement: None,
        retention: vec![],
    }
}

/// Returns an invented virtual machine with two CPUs and sixteen colors.
pub fn machine() -> Machine {
    let mut l2 = level(2, Holds::Unified, 512, 8, Some(4.1));
    l2.refill = Some(measured(Refill { clean_ns: Ns(8_300), dirty_ns: Ns(12_900), lines: 512 }));
    let waits = [10, 50, 200, 800, 3200, 10_000];
    let busy = [0.02, 0.15, 0.54, 0.66, 0.82, 0.93];
    let asleep = [0.05, 0.2, 0.58, 0.74, 0.9, 0.97];
    for cpu in [0, 1] {
        for (waiting, lost) in [(Waiting::Busy, busy), (Waiting::Asleep, asleep)] {
            l2.retention.extend(waits.iter().zip(lost).map(|(&us, lost)| Retention {
                cpu: CpuId(cpu),
                waiting,
                wait_ns: Ns(us * 1000),
                lost_median: lost - 0.01 * f64::from(cpu),
                lost_min: if waiting == Waiting::Busy { 0.0 } else { lost * 0.2 },
                lost_max: (lost * 1.5).min(1.0),
                samples: 40,
            }));
        }
    }
    Machine {
        schema: machine::SCHEMA.into(),
        architecture: "x86_64".into(),
        cpu_model: "Synthetic Processor 2.45 GHz".into(),
        hypervisor: Some("KVM".into()),
        cpus: vec![CpuId(0), CpuId(1)],
        page_bytes: Bytes(4096),
        counter_hz: Some(measured(2_450_000_000)),
        counter_quantum: Some(measured(22.5)),
        memory_load_ns: Some(measured(96.0)),
        latency: vec![],
        costs: None,
        supply: vec![],
        levels: vec![
            level(1, Holds::Data, 32, 8, Some(1.2)),
            level(1, Holds::Instruction, 32, 8, None),
            l2,
            level(3, Holds::Unified, 32 << 10, 16, Some(13.8)),
        ],
    }
}

fn palette(lcg: &mut Lcg) -> PaletteEvidence {
    let eviction = (0..16).map(|i| {
        let row = (0..16).map(|j| if i == j { 0.83 + 0.17 * lcg.unit() } else { 0.12 * lcg.unit() * lcg.unit() });
        row.map(|share| (share * 1000.0).round() / 1000.0).collect()
    });
    let eviction = eviction.collect();
    let per_color: Vec<u64> = (0..16).map(|_| 118 + (14.0 * lcg.unit()) as u64).collect();
    PaletteEvidence {
        level: 2,
        colors: 16,
        colors_expected: 16,
        method: "timing".into(),
        pages: per_color.iter().sum(),
        ambiguous: 7,
        seconds: 2.64,
        us_per_page: 66.0,
        per_color,
        eviction,
        rule: "none: the host backs this guest with 4 KiB pages, so no function of the guest's frame number predicts the color.".into(),
    }
}

/// Draws `n` jobs of about `typical` cycles, with a thin tail of interruptions by the host. Returns their summary, and the share of longer jobs
/// at several times.
fn jobs(lcg: &mut Lcg, n: u64, typical: f64, spread: f64, misses: f64, lost: f64) -> (JobSummary, Vec<(Cycles, f64)>) {
    let mut samples: Vec<u64> = (0..n)
        .map(|_| {
            let (a, b, c) = (lcg.unit(), lcg.unit(), lcg.unit());
            let interrupted = if c > 0.996 { 0.02 / (1.004 - c) * 3000.0 } else { 0.0 };
            (typical * (1.0 + spread * a * b) + interrupted) as u64
        })
        .collect();
    samples.sort_unstable();
    let quantile = |q: f64| Cycles(samples[((n as f64 * q) as usize).min(samples.len() - 1)]);
    let summary = JobSummary {
        n,
        cycles_min: Cycles(samples[0]),
        cycles_median: quantile(0.5),
        cycles_p99: quantile(0.99),
        cycles_p999: quantile(0.999),
        cycles_max: Cycles(samples[samples.len() - 1]),
        l2_misses_median: Some(misses.round()),
        l1_misses_median: Some((misses * 1.3).round()),
        lost_median: Some(lost),
    };
    // The points are every rank near the maximum, and ever fewer ranks further down.
    let mut above = 0;
    let mut ccdf = Vec::new();
    while above < samples.len() {
        ccdf.push((Cycles(samples[samples.len() - 1 - above]), above as f64 / n as f64));
        above += 1 + above / 6;
    }
    ccdf.reverse();
    (summary, ccdf)
}

/// Description of a kernel: its name, its parameter with the element type and the sizes, and for each size the working set in bytes, the
/// undisturbed cycles and the losses.
struct Shape {
    bench: &'static str,
    parameter: &'static str,
    element: &'static str,
    sizes: &'static [u64],
    working_set: fn(u64) -> u64,
    cycles: fn(u64) -> f64,
    /// Number of times that the working set is lost during one job.
    losses: fn(u64) -> f64,
}

const SHAPES: [Shape; 5] = [
    Shape {
        bench: "filter",
        parameter: "taps",
        element: "f64",
        sizes: &[16, 64, 256, 1024, 2048, 4096, 8192],
        working_set: |taps| 16 * taps + 256,
        cycles: |taps| 180.0 + 1.05 * taps as f64,
        losses: |_| 1.0,
    },
    Shape {
        bench: "dct",
        parameter: "points",
        element: "f64",
        sizes: &[64, 256, 1024, 4096],
        working_set: |points| 24 * points,
        cycles: |points| 300.0 + 22.0 * points as f64,
        losses: |_| 1.0,
    },
    Shape {
        bench: "fft",
        parameter: "points",
        element: "f64",
        sizes: &[64, 256, 1024, 4096],
        working_set: |points| 24 * points,
        cycles: |points| 260.0 + 9.0 * points as f64,
        losses: |_| 1.0,
    },
    Shape {
        bench: "matmul",
        parameter: "slice_us",
        element: "f64",
        sizes: &[25, 50, 100, 250, 500, 1000],
        working_set: |_| 98_304,
        cycles: |_| 410_000.0,
        losses: |slice| 170.0 / slice as f64,
    },
    Shape {
        bench: "combined",
        parameter: "rate_hz",
        element: "f64",
        sizes: &[2000, 5000, 10_000, 20_000],
        working_set: |_| 106_496,
        cycles: |_| 410_000.0,
        losses: |rate| rate as f64 * 0.00018,
    },
];

fn experiment(lcg: &mut Lcg, shape: &Shape, size: u64) -> Experiment {
    let working_set = (shape.working_set)(size);
    let lines = working_set as f64 / 64.0;
    let undisturbed = (shape.cycles)(size);
    let losses = (shape.losses)(size);
    let condition = |lcg: &mut Lcg, condition: Condition| {
        let (missed, penalty) = match condition {
            Condition::Alone => (0.0, 0.0),
            Condition::Unpartitioned => (0.93, 34.0),
            Condition::Partitioned => (0.08, 32.0),
            Condition::SingleWriter => (0.93, 13.0),
        };
        // Every flood also causes first-level misses.
        let first_level = if condition == Condition::Alone { 0.0 } else { 2.2 };
        let typical = undisturbed + losses * lines * (missed * penalty + first_level);
        // The host was noisy for the smallest filter in its own colors, and no block of the largest Fourier transform was accepted.
        let (blocks, blocks_quiet) = match (shape.bench, size, condition) {
            ("filter", 16, Condition::Partitioned) => (40, 3),
            ("fft", 4096, _) => (40, 0),
            ("filter", ..) => (40, 31),
            (_, _, Condition::Unpartitioned) => (40, 29),
            _ => (40, 26),
        };
        let n = blocks_quiet * 120;
        let none = JobSummary::default();
        let (summary, ccdf) = match n {
            0 => (none.clone(), vec![]),
            n => jobs(lcg, n, typical, 0.06, lines * missed * losses.max(1.0), missed),
        };
        let control = if n == 0 { none } else { jobs(lcg, n, undisturbed, 0.05, 0.0, 0.0).0 };
        let own = condition == Condition::Partitioned || condition == Condition::SingleWriter;
        Outcome {
            high_water_mark: HighWaterMark { value: summary.cycles_max.0, n, last_rose_at: n * 2 / 3 },
            jobs: summary,
            control,
            blocks,
            blocks_quiet,
            colors: if own { (0..4).map(Color).collect() } else { vec![] },
            ccdf,
            steal_ns: Ns(n * 310),
            effect_cycles: None,
        }
    };
    let conditions = [Condition::Alone, Condition::Unpartitioned, Condition::Partitioned, Condition::SingleWriter];
    Experiment {
        bench: shape.bench.into(),
        parameter: BTreeMap::from([(shape.parameter.to_owned(), size)]),
        element: shape.element.into(),
        working_set: Bytes(working_set),
        conditions: conditions.into_iter().map(|c| (c, condition(lcg, c))).collect(),
        gain_cycles: None,
    }
}

/// Made-up results of the kernels, and the rest of the evidence.
pub struct Made {
    /// Results of the kernels.
    pub kernels: Kernels,
    /// The evidence without the kernels.
    pub rest: Evidence,
}

impl Made {
    /// Returns the whole evidence.
    pub fn evidence(&self) -> Evidence {
        let section = kernels::section(&self.kernels, &self.rest.machine, self.rest.palette.as_ref());
        Evidence { sections: vec![section], ..self.rest.clone() }
    }

    /// Returns the outcomes of all conditions.
    pub fn outcomes(&mut self) -> impl Iterator<Item = &mut Outcome> {
        self.kernels.experiments.iter_mut().flat_map(|experiment| experiment.conditions.values_mut())
    }
}

/// Makes evidence in which nothing is absent.
pub fn full() -> Made {
    let lcg = &mut Lcg(1997);
    let rest = minimal();
    let rest = Evidence {
        machine: machine(),
        palette: Some(palette(lcg)),
        command: ["isochrome", "bench", "all", "--cpu", "0", "--colors", "0-3", "-o", "evidence of today.json"]
            .map(str::to_owned)
            .into(),
        warnings: vec![
            "This is made-up evidence for the tests of the report; no machine was measured.".into(),
            "The level-2 cache is not private: half of its contents are gone after about 170 µs.".into(),
        ],
        raw: vec![RawFile {
            path: "evidence/jobs.csv".into(),
            sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
        }],
        ..rest
    };
    let of_shape = |shape: &Shape| shape.sizes.iter().map(|&size| experiment(lcg, shape, size)).collect::<Vec<_>>();
    let experiments = SHAPES.iter().flat_map(of_shape).collect();
    Made { kernels: Kernels { counter_hz: Some(2_450_000_000), experiments }, rest }
}

/// Makes evidence with as little as its type allows.
pub fn minimal() -> Evidence {
    let fingerprint = machine().fingerprint();
    let facts =
        Machine { hypervisor: None, counter_hz: None, counter_quantum: None, memory_load_ns: None, ..machine() };
    Evidence {
        seed: Some(7),
        cpu: Some(CpuId(1)),
        schema: evidence::SCHEMA.into(),
        isochrome: "0.1.0".into(),
        taken_unix_s: 1_767_225_600,
        command: vec![],
        fingerprint,
        machine: Machine { levels: vec![], ..facts },
        palette: None,
        sections: vec![],
        warnings: vec![],
        raw: vec![],
    }
}
