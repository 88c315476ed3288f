//! Tasks with a chosen miss ratio: how large they have to be, how they miss under LRU, and their machine code. [Sebek2002, §3.3]
//!
//! A task touches its lines in one fixed order, again and again. *Temporal* locality sets the ratio by the number of lines: if a task is a
//! little larger than the cache, some sets hold one line too many, and all lines of these sets miss. *Spatial* locality sets the ratio by
//! how many words of a line are touched before the next line, from one to all. Combined, each of the two contributes an equal part.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::geometry::Geometry;
use crate::trace::{Access, Kind};

/// Kind of memory contents that a task touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Touches {
    /// Words of 8 bytes, which are loaded.
    #[default]
    Data,
    /// Instructions. The last one that is touched in a line jumps to the next line.
    Code,
}

impl Touches {
    /// Returns the distance from one touched word to the next, in bytes.
    pub fn word_bytes(self) -> u64 {
        match self {
            Touches::Data => 8,
            Touches::Code => 4,
        }
    }

    /// Returns the most words that can be touched in a line.
    ///
    /// For code, these words and the end of the loop fill at most half of a 64-byte line, so that the two halves of a line can be visited
    /// separately.
    fn words_max(self, geometry: Geometry) -> u64 {
        match self {
            Touches::Data => geometry.line_bytes.0 / self.word_bytes(),
            Touches::Code => INSTRUCTIONS_MAX,
        }
    }
}

impl std::fmt::Display for Touches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Touches::Data => "data",
            Touches::Code => "code",
        })
    }
}

/// Most instructions of a visit within a line, including its jump.
pub const INSTRUCTIONS_MAX: u64 = 5;

/// Largest size in bytes of the code for one line: [`INSTRUCTIONS_MAX`] instructions and the end of the loop.
pub const VISIT_BYTES: usize = 32;

/// The kind of locality that sets the ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Locality {
    /// The number of touched words in a line sets the ratio; every line misses.
    Spatial,
    /// The number of lines sets the ratio; one word of each line is touched.
    Temporal,
    /// Both kinds contribute equal parts: each alone would give the square root of the ratio.
    Combined,
}

/// Reasons why no task of this kind has the ratio.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RatioError {
    /// The ratio is not from 0 to 1.
    #[error("a miss ratio of {0} is not between 0 and 1")]
    Outside(f64),
    /// Spatial locality alone does not reach the ratio.
    #[error(
        "a miss ratio of {ratio:.4} by touching more words of a line needs more than {words} words\n  hint: at least {:.1} %, or temporal or combined locality",
        100.0 / *words as f64
    )]
    TooFewWords {
        /// The requested ratio.
        ratio: f64,
        /// Most words that can be touched in a line.
        words: u64,
    },
}

/// A task: a loop over lines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// Kind of memory contents that the task touches.
    pub touches: Touches,
    /// Geometry of the cache in which the task should miss.
    pub geometry: Geometry,
    /// Number of lines that one pass touches.
    pub lines: u64,
    /// Number of touched words in a line, on average over the lines; 1 or more.
    pub words: f64,
}

impl Task {
    /// Returns the task that misses in `geometry` with `ratio` (0 to 1) under LRU. Fails if no task of this kind has the ratio.
    pub fn of_ratio(touches: Touches, geometry: Geometry, ratio: f64, by: Locality) -> Result<Task, RatioError> {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(RatioError::Outside(ratio));
        }
        let words_max = touches.words_max(geometry);
        let words = match by {
            Locality::Temporal => 1.0,
            Locality::Spatial if ratio * (words_max as f64) < 1.0 - 1e-9 => {
                return Err(RatioError::TooFewWords { ratio, words: words_max });
            }
            Locality::Spatial => 1.0 / ratio,
            Locality::Combined => (1.0 / ratio.sqrt()).min(words_max as f64),
        };
        let capacity = geometry.set_count * u64::from(geometry.ways);
        let lines = match by {
            // Twice the size of the cache: every line misses under any usual replacement policy.
            Locality::Spatial => 2 * capacity,
            Locality::Temporal | Locality::Combined => lines_that_miss(geometry, (ratio * words).min(1.0)),
        };
        Ok(Task { touches, geometry, lines, words })
    }

    /// Returns the number of words touched in line `line`. It is chosen so that the average over any number of lines is as near to `words`
    /// as possible.
    pub fn words_of(&self, line: u64) -> u64 {
        let up_to = |lines: u64| (lines as f64 * self.words + 1e-9).floor() as u64;
        (up_to(line + 1) - up_to(line)).max(1)
    }

    /// Returns the number of words touched in one pass over all lines.
    pub fn accesses_per_pass(&self) -> u64 {
        (0..self.lines).map(|line| self.words_of(line)).sum()
    }

    /// Predicts the misses per access under LRU if nothing else is in the cache.
    pub fn predicted(&self) -> f64 {
        line_ratio(self.geometry, self.lines) * self.lines as f64 / self.accesses_per_pass().max(1) as f64
    }

    /// Predicts the misses per access by the straight line of the paper instead. [Sebek2002, Figure 5]
    pub fn predicted_straight(&self) -> f64 {
        straight_line(self.geometry, self.lines) * self.lines as f64 / self.accesses_per_pass().max(1) as f64
    }

    /// Returns the accesses of `passes` passes. Each pass touches the lines in the order of their addresses, which begin at
    /// 0.
    pub fn accesses(self, passes: u64) -> impl Iterator<Item = Access> {
        let kind = match self.touches {
            Touches::Data => Kind::Read,
            Touches::Code => Kind::Fetch,
        };
        let word_bytes = self.touches.word_bytes();
        let line = move |line: u64| {
            let begin = line * self.geometry.line_bytes.0;
            let bytes = word_bytes as u32;
            (0..self.words_of(line)).map(move |word| Access { address: begin + word * word_bytes, bytes, kind })
        };
        (0..passes).flat_map(move |_| (0..self.lines).flat_map(line))
    }
}

/// Returns the share of the lines that miss in every pass of a loop over `lines` lines under LRU: `(S - nN)(n + 1)/S` for S lines,
/// n ways and N sets. It is 0 up to the size of the cache, and 1 once every set has at least one line too many.
pub fn line_ratio(geometry: Geometry, lines: u64) -> f64 {
    let (sets, ways) = (geometry.set_count, u64::from(geometry.ways));
    let excess = lines.saturating_sub(sets * ways);
    if excess >= sets { 1.0 } else { (excess * (ways + 1)) as f64 / lines.max(1) as f64 }
}

/// Returns the miss ratio by the straight line of the paper, from 0 to 1 between the same sizes as [`line_ratio`]:
/// `(task - cache) / cache x ways`. [Sebek2002, Figure 5]
pub fn straight_line(geometry: Geometry, lines: u64) -> f64 {
    let cache = (geometry.set_count * u64::from(geometry.ways)) as f64;
    ((lines as f64 - cache) / cache * f64::from(geometry.ways)).clamp(0.0, 1.0)
}

/// Returns the number of lines of a loop of which the share `ratio` misses: [`line_ratio`] solved for `lines`,
/// `nN(n + 1)/(n + 1 - ratio)`.
fn lines_that_miss(geometry: Geometry, ratio: f64) -> u64 {
    let ways = f64::from(geometry.ways);
    let cache = geometry.set_count as f64 * ways;
    (cache * (ways + 1.0) / (ways + 1.0 - ratio)).round() as u64
}

/// Processors for which machine code can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// x86-64. The number of passes is passed in RDI, as in a C call.
    X86,
    /// aarch64. The number of passes is passed in X0.
    Arm,
}

impl Processor {
    /// Returns the processor that this program runs on; `None` if no code can be generated for it.
    pub fn here() -> Option<Processor> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Processor::X86),
            "aarch64" => Some(Processor::Arm),
            _ => None,
        }
    }
}

/// A piece of code that runs from its first instruction to its jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Offset of the first instruction, in bytes.
    pub offset: u32,
    /// Number of 4-byte instructions including the jump, 1 or more. Up to [`INSTRUCTIONS_MAX`] of them fit into half of a 64-byte
    /// line.
    pub instructions: u32,
}

/// Generates a function in `bytes` bytes of code, which begins at the first visit. The function takes a number of passes, 1 or more, makes
/// as many passes over `visits` in their order, and returns.
///
/// Panics if there are no visits, or if a visit does not lie inside the code.
pub fn machine_code(processor: Processor, bytes: usize, visits: &[Visit]) -> Vec<u8> {
    let first = visits.first().expect("a loop visits something").offset;
    let mut code = vec![0; bytes];
    for (i, visit) in visits.iter().enumerate() {
        let begin = visit.offset as usize;
        let mut part = Vec::new();
        let jump_to = visits.get(i + 1).map(|next| next.offset);
        match processor {
            Processor::X86 => {
                // nop dword [rax + 0]: 4 bytes.
                (1..visit.instructions).for_each(|_| part.extend([0x0f, 0x1f, 0x40, 0x00]));
                // Displacement of a jump: 32 bits, counted from the end of the jump.
                let displacement = |part: &Vec<u8>, to: u32| {
                    let end = visit.offset as i32 + part.len() as i32 + 4;
                    (to as i32 - end).to_le_bytes()
                };
                match jump_to {
                    Some(next) => {
                        part.push(0xe9);
                        part.extend(displacement(&part, next));
                    }
                    None => {
                        // dec rdi; jnz first; ret
                        part.extend([0x48, 0xff, 0xcf, 0x0f, 0x85]);
                        part.extend(displacement(&part, first));
                        part.push(0xc3);
                    }
                }
            }
            Processor::Arm => {
                let nop = 0xd503_201f_u32;
                (1..visit.instructions).for_each(|_| part.extend(nop.to_le_bytes()));
                // `b` has a displacement of 26 bits in words, counted from its own beginning.
                let branch = |part: &Vec<u8>, to: u32| {
                    let words = (to as i32 - (visit.offset as i32 + part.len() as i32)) / 4;
                    (0x1400_0000 | (words as u32 & 0x03ff_ffff)).to_le_bytes()
                };
                match jump_to {
                    Some(next) => part.extend(branch(&part, next)),
                    None => {
                        // subs x0, x0, #1; b.eq over the next; b first; ret
                        part.extend(0xf100_0400_u32.to_le_bytes());
                        part.extend(0x5400_0040_u32.to_le_bytes());
                        part.extend(branch(&part, first));
                        part.extend(0xd65f_03c0_u32.to_le_bytes());
                    }
                }
            }
        }
        assert!(begin + part.len() <= bytes, "{visit:?} does not lie inside {bytes} bytes");
        code[begin..begin + part.len()].copy_from_slice(&part);
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Level, Semantics, Simulator};
    use crate::units::Bytes;
    use proptest::prelude::*;

    fn geometry(kib: u64, ways: u32) -> Geometry {
        Geometry::of_size(Bytes(kib << 10), ways, Bytes(64)).unwrap()
    }

    /// Returns the misses per access, after the first pass, in a simulated LRU cache of the task's geometry.
    fn simulated(task: Task) -> f64 {
        let mut simulator = Simulator::chain(vec![Level::lru("L", task.geometry)], Semantics::default()).unwrap();
        let mut pass = || {
            simulator.run(&task.accesses(1).collect::<Vec<_>>());
            let counts = simulator.counts().0[0].counts;
            (counts.read_misses, counts.reads)
        };
        pass();
        let (before, after) = (pass(), pass());
        (after.0 - before.0) as f64 / (after.1 - before.1) as f64
    }

    proptest! {
        #[test]
        fn a_simulated_lru_misses_exactly_as_predicted(
            ratio in 0.0..=1.0f64, ways in 1u32..=16, code in any::<bool>(), combined in any::<bool>()
        ) {
            let touches = if code { Touches::Code } else { Touches::Data };
            let by = if combined { Locality::Combined } else { Locality::Temporal };
            let task = Task::of_ratio(touches, geometry(u64::from(ways) * 16, ways), ratio, by).unwrap();
            prop_assert!((simulated(task) - task.predicted()).abs() < 1e-12);
            // The prediction is as near to `ratio` as whole lines and words allow, unless a line has too few words.
            if task.words < touches.words_max(task.geometry) as f64 {
                prop_assert!((task.predicted() - ratio).abs() < 0.01, "{} for {ratio}", task.predicted());
            }
        }
    }

    #[test]
    fn one_to_all_words_of_a_line_miss_with_one_over_their_number() {
        // The ratios of 100, 66, 50 and 33 % are those of [Sebek2002, §3.3].
        for (ratio, words) in [(1.0, 1.0), (2.0 / 3.0, 1.5), (0.5, 2.0), (1.0 / 3.0, 3.0), (0.125, 8.0)] {
            let task = Task::of_ratio(Touches::Data, geometry(512, 8), ratio, Locality::Spatial).unwrap();
            assert!((task.words - words).abs() < 1e-9);
            assert!((task.predicted() - ratio).abs() < 1e-4 && (simulated(task) - task.predicted()).abs() < 1e-12);
        }
        let refused = Task::of_ratio(Touches::Code, geometry(512, 8), 0.1, Locality::Spatial).unwrap_err();
        assert!(refused.to_string().contains("at least 20.0 %"), "{refused}");
        assert!(Task::of_ratio(Touches::Data, geometry(512, 8), 1.5, Locality::Temporal).is_err());
    }

    #[test]
    fn the_papers_example_misses_more_than_its_straight_line_says() {
        // [Sebek2002, §3.3]: 38 KiB in 32 KiB, 2 ways, lines of 32 bytes: 37.5 %; exactly 576 of 1216 lines.
        let cache = Geometry::of_size(Bytes(32 << 10), 2, Bytes(32)).unwrap();
        assert_eq!(straight_line(cache, 1216), 0.375);
        assert_eq!(line_ratio(cache, 1216), 576.0 / 1216.0);
        assert_eq!([line_ratio(cache, 1024), line_ratio(cache, 1536)], [0.0, 1.0]);
    }

    #[test]
    fn a_loop_of_two_lines_is_these_instructions() {
        let visits = [Visit { offset: 64, instructions: 2 }, Visit { offset: 0, instructions: 1 }];
        let x86 = machine_code(Processor::X86, 128, &visits);
        // nop; jmp 0 from 64 + 9 = 73: -73. dec rdi; jnz 64 from 9: 55; ret.
        assert_eq!(x86[64..73], [0x0f, 0x1f, 0x40, 0x00, 0xe9, 0xb7, 0xff, 0xff, 0xff]);
        assert_eq!(x86[..10], [0x48, 0xff, 0xcf, 0x0f, 0x85, 0x37, 0x00, 0x00, 0x00, 0xc3]);
        let words = |code: &[u8]| -> Vec<u32> {
            code.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
        };
        let arm = machine_code(Processor::Arm, 128, &visits);
        // nop; b -17 words. subs x0, x0, #1; b.eq +8; b +14 words, from 8 to 64; ret. As the assembler of LLVM writes them.
        assert_eq!(words(&arm[64..72]), [0xd503_201f, 0x17ff_ffef]);
        assert_eq!(words(&arm[..16]), [0xf100_0400, 0x5400_0040, 0x1400_000e, 0xd65f_03c0]);
    }

    #[test]
    fn a_visit_can_go_on_into_the_next_line() {
        let visits = [Visit { offset: 0, instructions: 17 }, Visit { offset: 128, instructions: 1 }];
        // 16 instructions fill the first line; then jmp 128 from 64 + 5 = 69: 59; b +16 words from 64.
        let x86 = machine_code(Processor::X86, 192, &visits);
        assert_eq!(x86[60..69], [0x0f, 0x1f, 0x40, 0x00, 0xe9, 59, 0, 0, 0]);
        let arm = machine_code(Processor::Arm, 192, &visits);
        assert_eq!(arm[60..68], [0x1f, 0x20, 0x03, 0xd5, 0x10, 0x00, 0x00, 0x14]);
    }
}
