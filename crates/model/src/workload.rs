//! Workloads: programs as streams of accesses. They are the measured jobs of isochrome, and synthetic tasks with a known
//! outcome.
//!
//! Addresses are virtual and start at 0. Only data accesses are modeled, except in [`Workload::Code`]. The instructions of the
//! other workloads fit into a page and are left out.

use std::fmt;
use std::str::FromStr;

use crate::trace::{Access, Kind};
use crate::units::Bytes;

/// A program that touches memory in a known way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// A walk that touches an area every `stride` bytes, `passes` times: the benchmark of Hanemaaijer (1993).
    Walk {
        /// Size of the area.
        area: Bytes,
        /// Distance between accesses, in bytes.
        stride: Bytes,
        /// Number of times that the area is walked.
        passes: u64,
        /// Whether the walk stores instead of loads.
        write: bool,
    },
    /// A loop of straight code that enters every line once and jumps from each to the next: a task with a fixed miss ratio.
    /// [Sebek2002, §3.3]
    Code {
        /// Size of the code.
        area: Bytes,
        /// Bytes per line.
        line: Bytes,
        /// Number of iterations.
        passes: u64,
    },
    /// A pointer chase in one random cycle through all lines of an area.
    Chase {
        /// Size of the area.
        area: Bytes,
        /// Bytes per line.
        line: Bytes,
        /// Number of loads.
        steps: u64,
        /// Seed of the random cycle.
        seed: u64,
    },
    /// The digital filter of [Liedtke1997, §5.2], with `order` + 1 coefficients, as many samples, and `jobs` outputs. Each
    /// output stores the new sample over the oldest, then loads each coefficient and its sample.
    Filter {
        /// Order of the filter, n in the paper.
        order: u64,
        /// Bytes per number.
        word: Bytes,
        /// Number of outputs.
        jobs: u64,
    },
    /// A multiplication of 64x64 doubles in 8x8 submatrices, with the second matrix stored by columns. [Liedtke1997, §5.4]
    Matmul,
    /// A triple loop over square matrices of doubles, by rows.
    MatmulNaive {
        /// Number of rows of a matrix.
        order: u64,
    },
    /// A triple loop over square matrices in square blocks.
    MatmulBlocked {
        /// Number of rows of a matrix, a multiple of `block`.
        order: u64,
        /// Number of rows of a block.
        block: u64,
    },
    /// An in-place radix-2 Fourier transform of complex doubles with a table of twiddle factors.
    Fft {
        /// Number of points, a power of two.
        points: u64,
    },
    /// A fast cosine transform: a Fourier transform of the same size, with a reordering pass before it and a twiddle pass after
    /// it.
    Dct {
        /// Number of points, a power of two.
        points: u64,
    },
}

/// Error for a text that names no workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a workload: {what}\n  hint: NAME:KEY=VALUE,..., such as walk:area=256K,stride=16,passes=100 or filter:order=256"
)]
pub struct WorkloadError {
    text: String,
    what: String,
}

const DOUBLE: u64 = 8;

fn at(address: u64, bytes: u64, kind: Kind) -> Access {
    Access { address, bytes: bytes as u32, kind }
}

fn load(address: u64) -> Access {
    at(address, DOUBLE, Kind::Read)
}

fn store(address: u64) -> Access {
    at(address, DOUBLE, Kind::Write)
}

impl Workload {
    /// Returns the accesses, in order.
    pub fn accesses(self) -> Box<dyn Iterator<Item = Access> + Send> {
        match self {
            Workload::Walk { area, stride, passes, write } => {
                let kind = if write { Kind::Write } else { Kind::Read };
                let pass = move |_| (0..area.0).step_by(stride.0 as usize).map(move |address| at(address, 1, kind));
                Box::new((0..passes).flat_map(pass))
            }
            Workload::Code { area, line, passes } => {
                let pass = move |_| (0..area.0).step_by(line.0 as usize).map(|address| at(address, 4, Kind::Fetch));
                Box::new((0..passes).flat_map(pass))
            }
            Workload::Chase { area, line, steps, seed } => {
                let next = cycle((area.0 / line.0).max(1) as usize, seed);
                let mut here = 0;
                Box::new((0..steps).map(move |_| {
                    let address = here as u64 * line.0;
                    here = next[here] as usize;
                    load(address)
                }))
            }
            Workload::Filter { order, word, jobs } => {
                let taps = order + 1;
                let samples = taps * word.0;
                Box::new((0..jobs).flat_map(move |job| {
                    let newest = job % taps;
                    let sums = (0..taps).flat_map(move |tap| {
                        let sample = (newest + taps - tap) % taps;
                        [at(tap * word.0, word.0, Kind::Read), at(samples + sample * word.0, word.0, Kind::Read)]
                    });
                    std::iter::once(at(samples + newest * word.0, word.0, Kind::Write)).chain(sums)
                }))
            }
            Workload::Matmul => {
                let (b, c) = (64 * 64 * DOUBLE, 2 * 64 * 64 * DOUBLE);
                Box::new((0..64u64).flat_map(move |block| {
                    let (rows, columns) = (block / 8 * 8, block % 8 * 8);
                    (0..64u64).flat_map(move |element| {
                        let (row, column) = (rows + element / 8, columns + element % 8);
                        (0..64)
                            .flat_map(move |k| [load((row * 64 + k) * DOUBLE), load(b + (column * 64 + k) * DOUBLE)])
                            .chain(std::iter::once(store(c + (row * 64 + column) * DOUBLE)))
                    })
                }))
            }
            Workload::MatmulNaive { order } => Workload::MatmulBlocked { order, block: order }.accesses(),
            Workload::MatmulBlocked { order, block } => {
                let blocks = order.checked_div(block).unwrap_or(0);
                let matrix = order * order * DOUBLE;
                let offset = move |row: u64, column: u64| (row * order + column) * DOUBLE;
                let steps = blocks * blocks * blocks;
                Box::new((0..steps).flat_map(move |step| {
                    let corner = [step / blocks / blocks, step / blocks % blocks, step % blocks].map(|i| i * block);
                    (0..block * block).flat_map(move |element| {
                        let (row, column) = (corner[0] + element / block, corner[1] + element % block);
                        let products = (corner[2]..corner[2] + block)
                            .flat_map(move |k| [load(offset(row, k)), load(matrix + offset(k, column))]);
                        let sum = 2 * matrix + offset(row, column);
                        std::iter::once(load(sum)).chain(products).chain(std::iter::once(store(sum)))
                    })
                }))
            }
            Workload::Fft { points } => Box::new(fft(points)),
            Workload::Dct { points } => {
                // Copies even elements forward and odd elements backward into a second array, which is then transformed.
                let number = 2 * DOUBLE;
                let output = move |k: u64| at(k * number, number, Kind::Write);
                let reorder = (0..points).flat_map(move |k| {
                    let from = if 2 * k < points { 2 * k } else { 2 * (points - k) - 1 };
                    [load((2 * points + points / 2) * number + from * DOUBLE), output(k)]
                });
                let twist = (0..points).flat_map(move |k| {
                    let factor = at((points + k % points.max(1)) * number, number, Kind::Read);
                    let input = at(k * number, number, Kind::Read);
                    [input, factor, store((2 * points + points / 2) * number + k * DOUBLE)]
                });
                Box::new(reorder.chain(fft(points)).chain(twist))
            }
        }
    }
}

/// Returns the accesses of the butterflies of a Fourier transform, stage by stage. It has `points` complex doubles at address
/// 0, and the twiddle factors after them.
fn fft(points: u64) -> impl Iterator<Item = Access> + Send {
    let number = 2 * DOUBLE;
    let stages = points.max(1).ilog2();
    (0..stages).flat_map(move |stage| {
        let half = 1u64 << stage;
        (0..points / 2).flat_map(move |butterfly| {
            let upper = butterfly / half * 2 * half + butterfly % half;
            let factor = points + (butterfly % half) * (points / (2 * half));
            let [upper, lower, factor] = [upper, upper + half, factor].map(|i| i * number);
            [
                at(factor, number, Kind::Read),
                at(upper, number, Kind::Read),
                at(lower, number, Kind::Read),
                at(upper, number, Kind::Write),
                at(lower, number, Kind::Write),
            ]
        })
    })
}

/// Returns the successor of each element in one random cycle through all of them (Sattolo's shuffle).
fn cycle(count: usize, seed: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut next: Vec<u32> = (0..count as u32).collect();
    for i in (1..count).rev() {
        next.swap(i, rng.usize(0..i));
    }
    next
}

impl FromStr for Workload {
    type Err = WorkloadError;

    /// Parses `walk:area=256K,stride=16,passes=100[,write=1]`, `code:area=38K,line=32,passes=10`,
    /// `chase:area=1M,line=64,steps=1000000[,seed=1]`, `filter:order=256[,word=8][,jobs=1]`, `matmul`, `matmul-naive:order=100`,
    /// `matmul-blocked:order=128,block=16`, `fft:points=1024`, `dct:points=1024`.
    fn from_str(text: &str) -> Result<Workload, WorkloadError> {
        let wrong = |what: String| WorkloadError { text: text.to_owned(), what };
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut values = Vec::new();
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').ok_or_else(|| wrong(format!("`{setting}` has no value")))?;
            let value: Bytes = value.parse().map_err(|_| wrong(format!("`{value}` is not a number or size")))?;
            values.push((key, value.0));
        }
        let keys: &[&str] = match name {
            "walk" => &["area", "stride", "passes", "write"],
            "code" => &["area", "line", "passes"],
            "chase" => &["area", "line", "steps", "seed"],
            "filter" => &["order", "word", "jobs"],
            "matmul" => &[],
            "matmul-naive" => &["order"],
            "matmul-blocked" => &["order", "block"],
            "fft" | "dct" => &["points"],
            _ => return Err(wrong("unknown name".to_owned())),
        };
        if let Some((unknown, _)) = values.iter().find(|(key, _)| !keys.contains(key)) {
            return Err(wrong(format!("{name} has no `{unknown}`, only {}", keys.join(", "))));
        }
        let get = |key: &str, default: Option<u64>, range: std::ops::RangeInclusive<u64>| {
            let value = values.iter().find(|(name, _)| *name == key).map(|(_, value)| *value).or(default);
            let value = value.ok_or_else(|| wrong(format!("`{key}` is missing")))?;
            let outside = || wrong(format!("{key}={value} is not in {}..={}", range.start(), range.end()));
            if range.contains(&value) { Ok(value) } else { Err(outside()) }
        };
        const AREA: std::ops::RangeInclusive<u64> = 1..=1 << 40;
        const CHASE_AREA: std::ops::RangeInclusive<u64> = 1..=1 << 30;
        let power = |key: &str| {
            let value = get(key, None, 2..=1 << 30)?;
            if value.is_power_of_two() { Ok(value) } else { Err(wrong(format!("{key}={value} is not a power of two"))) }
        };
        Ok(match name {
            "walk" => Workload::Walk {
                area: Bytes(get("area", None, AREA)?),
                stride: Bytes(get("stride", Some(64), AREA)?),
                passes: get("passes", Some(1), AREA)?,
                write: get("write", Some(0), 0..=1)? == 1,
            },
            "code" => Workload::Code {
                area: Bytes(get("area", None, AREA)?),
                line: Bytes(get("line", Some(32), AREA)?),
                passes: get("passes", Some(1), AREA)?,
            },
            "chase" => Workload::Chase {
                area: Bytes(get("area", None, CHASE_AREA)?),
                line: Bytes(get("line", Some(64), 8..=1 << 20)?),
                steps: get("steps", Some(1 << 20), AREA)?,
                seed: get("seed", Some(0), 0..=u64::MAX)?,
            },
            "filter" => Workload::Filter {
                order: get("order", None, 1..=1 << 30)?,
                word: Bytes(get("word", Some(DOUBLE), 1..=16)?),
                jobs: get("jobs", Some(1), AREA)?,
            },
            "matmul" => Workload::Matmul,
            "matmul-naive" => Workload::MatmulNaive { order: get("order", None, 1..=1 << 16)? },
            "matmul-blocked" => {
                let (order, block) = (get("order", None, 1..=1 << 16)?, get("block", None, 1..=1 << 16)?);
                if !order.is_multiple_of(block) {
                    return Err(wrong(format!("order={order} is not a multiple of block={block}")));
                }
                Workload::MatmulBlocked { order, block }
            }
            "fft" => Workload::Fft { points: power("points")? },
            _ => Workload::Dct { points: power("points")? },
        })
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Workload::Walk { area, stride, passes, write } => {
                write!(f, "walk:area={},stride={},passes={passes},write={}", area.0, stride.0, u8::from(write))
            }
            Workload::Code { area, line, passes } => write!(f, "code:area={},line={},passes={passes}", area.0, line.0),
            Workload::Chase { area, line, steps, seed } => {
                write!(f, "chase:area={},line={},steps={steps},seed={seed}", area.0, line.0)
            }
            Workload::Filter { order, word, jobs } => write!(f, "filter:order={order},word={},jobs={jobs}", word.0),
            Workload::Matmul => f.write_str("matmul"),
            Workload::MatmulNaive { order } => write!(f, "matmul-naive:order={order}"),
            Workload::MatmulBlocked { order, block } => write!(f, "matmul-blocked:order={order},block={block}"),
            Workload::Fft { points } => write!(f, "fft:points={points}"),
            Workload::Dct { points } => write!(f, "dct:points={points}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn lines(workload: Workload, line: u64) -> usize {
        workload.accesses().map(|access| access.address / line).collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn a_workload_reads_back_as_it_is_written() {
        let texts = [
            "walk:area=262144,stride=16,passes=100,write=0",
            "code:area=38912,line=32,passes=10",
            "chase:area=1048576,line=64,steps=100,seed=3",
            "filter:order=256,word=8,jobs=2",
            "matmul",
            "matmul-naive:order=100",
            "matmul-blocked:order=128,block=16",
            "fft:points=1024",
            "dct:points=256",
        ];
        for text in texts {
            assert_eq!(text.parse::<Workload>().unwrap().to_string(), text);
        }
        assert_eq!("filter:order=256".parse(), Ok(Workload::Filter { order: 256, word: Bytes(8), jobs: 1 }));
    }

    #[test]
    fn a_workload_that_cannot_be_is_refused_with_the_reason() {
        let cases = [
            ("sieve", "unknown name"),
            ("walk", "`area` is missing"),
            ("walk:area=1K,stride=0", "stride=0 is not in"),
            ("walk:area", "has no value"),
            ("walk:area=big", "not a number or size"),
            ("fft:points=100", "not a power of two"),
            ("matmul-blocked:order=10,block=3", "not a multiple"),
            ("filter:taps=3", "filter has no `taps`, only order, word, jobs"),
        ];
        for (text, reason) in cases {
            let error = text.parse::<Workload>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_filter_touches_two_arrays_of_n_plus_one_words() {
        let filter = Workload::Filter { order: 511, word: Bytes(8), jobs: 1 };
        // 512 taps, each a coefficient and a sample, and the new sample; 2 x 4096 bytes in lines of 32.
        assert_eq!(filter.accesses().count(), 2 * 512 + 1);
        assert_eq!(lines(filter, 32), 2 * 4096 / 32);
    }

    #[test]
    fn matrix_multiplications_load_two_numbers_per_product() {
        assert_eq!(Workload::Matmul.accesses().filter(|a| a.kind == Kind::Read).count(), 2 * 64 * 64 * 64);
        assert_eq!(lines(Workload::Matmul, 4096), 3 * 8);
        let naive = Workload::MatmulNaive { order: 10 };
        let blocked = Workload::MatmulBlocked { order: 10, block: 5 };
        // 100 sums are loaded and stored around 1000 products. With blocks of 5, each sum is loaded and stored twice.
        assert_eq!(naive.accesses().count(), 2 * 100 + 2 * 1000);
        assert_eq!(blocked.accesses().count(), 2 * 200 + 2 * 1000);
        let products = |workload: Workload| workload.accesses().map(|a| a.address).collect::<BTreeSet<_>>();
        assert_eq!(products(naive), products(blocked));
    }

    #[test]
    fn the_chase_visits_every_line_before_it_repeats() {
        let chase = Workload::Chase { area: Bytes(64 << 10), line: Bytes(64), steps: 1024, seed: 1 };
        assert_eq!(lines(chase, 64), 1024);
    }

    #[test]
    fn the_fft_loads_and_stores_two_numbers_per_butterfly() {
        // n/2 log2(n) butterflies of two loads, two stores and a twiddle factor.
        assert_eq!(Workload::Fft { points: 256 }.accesses().count(), 128 * 8 * 5);
        assert_eq!(Workload::Dct { points: 256 }.accesses().count(), 128 * 8 * 5 + 256 * 5);
    }
}
