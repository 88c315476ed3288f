//! Interference of programs with each other through caches and memory: the experiment of [Kim2013, §3].
//!
//! A program runs alone, beside others on other CPUs (inter-core), and on one CPU with others, in time slices (intra-core). The time of a run is
//! the time for which the program had a CPU. The control is a run with co-runners that only spin. A run with working co-runners and its control
//! both include the cost of busy other CPUs and of the time slices themselves. So their difference is the effect of the co-runners through
//! caches and memory.

pub mod expected;
pub mod modeled;
mod process;
mod programs;
mod run;
mod section;

use isochrome_model::stats::{BLOCKS_MIN, Effect, SIGNIFICANT, median};
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::{Accepted, Arm, Block, Judged, accept, corrected};

pub use programs::{MoveToColors, Programs, Setup, conditions};
pub use section::section;

/// CPUs on which the other programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// The others run on other CPUs, at the same time. [Kim2013, Figure 2(a)]
    InterCore,
    /// The others run on the same CPU, in time slices. [Kim2013, Figure 2(b)]
    IntraCore,
}

/// Condition of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// CPUs on which the other programs run.
    pub sharing: Sharing,
    /// Number of the program that is measured.
    pub program: usize,
    /// Length of a time slice on a shared CPU, in ns; 0 on different CPUs, and in files of earlier versions.
    #[serde(default)]
    pub slice_ns: Ns,
    /// Method by which the cache is divided among the programs.
    pub partitioning: Partitioning,
}

/// The first values of a sample: the time in ns for which the program had a CPU, and 1 if a co-runner ended before the program and had no
/// replacement, else 0. Hits and misses of each of [`Interference::counted`] follow.
pub const COLUMNS: [&str; 2] = ["cpu_ns", "censored"];

fn cpu(run: &[f64]) -> f64 {
    run[0]
}

/// A block is not accepted if its runs alone are slow, as that shows a disturbance.
pub const JUDGED: Judged = Judged { cost: cpu, canary: None };

/// Result of one condition. Shares refer to the run alone in the same block, and are medians over the accepted blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The condition that the row is about.
    #[serde(flatten)]
    pub condition: Condition,
    /// Time of the program alone, in ns.
    pub alone_ns: f64,
    /// Share by which the run is longer if the others only spin.
    pub control: f64,
    /// Share by which the run is longer if the others work, as in [Kim2013, Figure 3].
    pub together: f64,
    /// The [effect](Effect) of the others' work through caches and memory, as a share.
    pub interference: f64,
    /// 95 % confidence interval of the effect; `None` for fewer than six blocks, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Probability of interference at least as strong without an effect, corrected for all conditions that were measured together. `None` in
    /// files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// Requests to each of [`Interference::counted`], over the accepted blocks in which all runs were counted. Empty without counters.
    #[serde(default, alias = "asked", skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Requests>,
    /// Number of blocks run.
    pub blocks: u64,
    /// Number of accepted blocks.
    pub blocks_quiet: u64,
    /// Number of accepted blocks in which a co-runner had ended before the program. If it is not 0, the interference is a lower bound.
    #[serde(default)]
    pub blocks_censored: u64,
}

/// Median hits and misses of a program in a cache level: alone, while the others spin, and while they work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requests {
    /// Number of requests that hit.
    pub hits: [f64; 3],
    /// Number of requests that missed.
    pub misses: [f64; 3],
}

/// Returns by what share a count is higher with the others than alone; `None` if it is zero alone.
pub fn change([alone, _, together]: [f64; 3]) -> Option<f64> {
    (alone > 0.0).then(|| together / alone - 1.0)
}

/// A cache level whose hits and misses are counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counted {
    /// Name of the level.
    pub level: String,
    /// The counter events that count requests, by their names in the processor's manual.
    pub accesses: Vec<String>,
    /// The counter events that count misses, by their names in the processor's manual.
    pub misses: Vec<String>,
}

/// A cache that is divided among the programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Divided {
    /// Method of dividing the cache.
    pub by: Partitioning,
    /// Number of the cache level.
    pub level: u8,
    /// Number of colors or ways of the level.
    pub count: u32,
    /// Colors or ways of each program.
    pub shares: Vec<Vec<u32>>,
}

/// A program of the experiment, and how many of its pages had its colors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Program {
    /// Command line of the program.
    pub command: String,
    /// Smallest share (0 to 1) of the program's resident pages that were on color at the beginning of a run with colors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<f64>,
}

/// Result of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interference {
    /// Name of the modeled machine, if the experiment was simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modeled: Option<String>,
    /// Effects that were expected beforehand, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<String>,
    /// Caches that were divided among the programs.
    pub divided: Vec<Divided>,
    /// Programs of the experiment.
    pub programs: Vec<Program>,
    /// Levels whose requests were counted, innermost first; empty without counters.
    pub counted: Vec<Counted>,
    /// Results of all conditions.
    pub rows: Vec<Row>,
}

/// Divides `count` colors or ways among `programs` programs. Shares differ by at most one; `None` if there are fewer colors or ways than
/// programs.
pub fn equal_shares(count: u32, programs: usize) -> Option<Vec<Vec<u32>>> {
    let end = |program: usize| (program as u64 * u64::from(count) / programs as u64) as u32;
    (count as usize >= programs)
        .then(|| (0..programs).map(|program| (end(program)..end(program + 1)).collect()).collect())
}

/// Returns one row for each condition in `blocks`.
///
/// The run alone decides whether a block is accepted. The comparison is between the run with others that work and the run with others that spin.
pub fn conclude(blocks: &[Block<Condition>]) -> Vec<Row> {
    corrected(accept(blocks, &JUDGED).iter().filter_map(row).collect(), |row| &mut row.p)
}

/// Returns the row that follows from the accepted blocks of a condition; `None` if no block was accepted.
fn row(accepted: &Accepted<'_, Condition>) -> Option<Row> {
    let longer = |arm| -> Vec<f64> {
        let share = |block: &&Block<Condition>| block.median(arm, cpu) / block.median(Arm::Reference, cpu) - 1.0;
        accepted.blocks.iter().map(share).collect()
    };
    let (control, together) = (longer(Arm::Control), longer(Arm::Treatment));
    let effect = Effect::of(&together.iter().zip(&control).map(|(with, without)| with - without).collect::<Vec<_>>())?;
    Some(Row {
        condition: accepted.condition,
        alone_ns: accepted.median(Arm::Reference, cpu),
        control: median(&control)?,
        together: median(&together)?,
        interference: effect.estimate,
        interval: effect.interval,
        p: Some(effect.p),
        requests: requests(accepted),
        blocks: accepted.run,
        blocks_quiet: effect.n,
        blocks_censored: accepted
            .blocks
            .iter()
            .filter(|block| block.samples.iter().any(|run| run.values[1] > 0.0))
            .count() as u64,
    })
}

/// Returns the requests to each level, over the blocks in which every run was counted. Other blocks are left out, as a missing count is not
/// zero.
fn requests(accepted: &Accepted<'_, Condition>) -> Vec<Requests> {
    let complete = |block: &Block<Condition>| block.samples.iter().all(|run| !run.values.iter().any(|it| it.is_nan()));
    let counted =
        Accepted { blocks: accepted.blocks.iter().copied().filter(|block| complete(block)).collect(), ..*accepted };
    let columns = counted.blocks.first().map_or(0, |block| block.samples[0].values.len());
    let medians = |column: usize| {
        [Arm::Reference, Arm::Control, Arm::Treatment].map(|arm| counted.median(arm, |run| run[column]))
    };
    (COLUMNS.len()..columns).step_by(2).map(|at| Requests { hits: medians(at), misses: medians(at + 1) }).collect()
}

impl Row {
    /// Whether enough blocks were accepted.
    pub fn is_conclusive(&self) -> bool {
        self.blocks_quiet >= BLOCKS_MIN
    }
}

impl Interference {
    /// Returns the rows of `row`'s condition in which programs have parts of a cache of their own.
    pub fn divided_rows(&self, row: &Row) -> impl Iterator<Item = &Row> {
        let open = Condition { partitioning: Partitioning::None, ..row.condition };
        let parts = [Partitioning::Colors, Partitioning::Ways, Partitioning::Both];
        let of = move |partitioning| Condition { partitioning, ..open };
        parts.into_iter().filter_map(move |part| self.rows.iter().find(|row| row.condition == of(part)))
    }

    /// Whether enough blocks of every condition were accepted. On a modeled machine one block is enough, as blocks do not differ.
    pub fn is_conclusive(&self) -> bool {
        !self.rows.is_empty() && (self.modeled.is_some() || self.rows.iter().all(Row::is_conclusive))
    }

    /// Whether others that work cost the program of `row` significantly more time than others that spin. A modeled machine needs no
    /// significance.
    pub fn interferes(&self, row: &Row) -> bool {
        let significant = row.is_conclusive() && row.p.is_some_and(|p| p <= SIGNIFICANT);
        (self.modeled.is_some() || significant) && row.interference > 0.0
    }

    /// Returns the row with the strongest significant interference among programs that share the whole cache; `None` if no interference is
    /// significant.
    pub fn worst(&self, sharing: Sharing) -> Option<&Row> {
        let open = |row: &&Row| row.condition.sharing == sharing && row.condition.partitioning == Partitioning::None;
        let open = self.rows.iter().filter(open);
        open.filter(|row| self.interferes(row)).max_by(|a, b| a.interference.total_cmp(&b.interference))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::samples::Sample;

    /// Returns a condition in which the programs share the whole cache.
    pub(crate) fn open(sharing: Sharing, program: usize) -> Condition {
        let slice_ns = if sharing == Sharing::IntraCore { Ns(2_500_000) } else { Ns(0) };
        Condition { sharing, program, slice_ns, partitioning: Partitioning::None }
    }

    /// Returns a block of three runs: alone, beside others that spin, and beside others that work.
    pub(crate) fn block(condition: Condition, runs: [Vec<f64>; 3]) -> Block<Condition> {
        let arms = [Arm::Reference, Arm::Control, Arm::Treatment];
        let samples = arms.into_iter().zip(runs).map(|(arm, values)| Sample { arm, values }).collect();
        Block { condition, steal_ns: 0, elapsed_ns: 1, samples }
    }

    /// Returns results of two programs. Beside the second program, the first is longer by 5 % because other CPUs are busy, and by another 45 %
    /// through caches and memory. Of the latter, colors leave 9 % and ways leave 5 %. The second program loses nothing through caches and
    /// memory.
    pub(crate) fn modeled() -> Interference {
        let mut blocks = Vec::new();
        for sharing in [Sharing::InterCore, Sharing::IntraCore] {
            for program in [0, 1] {
                for partitioning in [Partitioning::None, Partitioning::Colors, Partitioning::Ways] {
                    let cost = match (program, partitioning) {
                        (0, Partitioning::None) => 450,
                        (0, Partitioning::Colors) => 90,
                        (0, _) => 50,
                        _ => 0,
                    };
                    // The last block is disturbed in the run alone, and must not count. The block before it has a disturbed control and must
                    // count, because otherwise the effect would decide which blocks count.
                    for noise in [
                        [0, 0],
                        [1, 2],
                        [2, 1],
                        [3, 3],
                        [4, 4],
                        [5, 2],
                        [6, 1],
                        [7, 3],
                        [8, 4],
                        [9, 0],
                        [3, 500],
                        [500, 0],
                    ] {
                        let run = |us: u64| {
                            let us = us as f64;
                            vec![us * 1000.0, 0.0, 5000.0, us, 2000.0 - us, 0.0]
                        };
                        let condition = Condition { partitioning, ..open(sharing, program) };
                        let (alone, control) = (run(1000 + noise[0]), run(1050 + noise[1]));
                        blocks.push(block(condition, [alone, control, run(1050 + cost + noise[1])]));
                    }
                }
            }
        }
        let program = |command: &str| Program { command: command.to_owned(), placed: Some(0.95) };
        let counted = |level: &str, accesses: &str, misses: &str| Counted {
            level: level.to_owned(),
            accesses: vec![accesses.to_owned()],
            misses: vec![misses.to_owned()],
        };
        let divided =
            |by, level, shares: [[u32; 2]; 2]| Divided { by, level, count: 4, shares: shares.map(Vec::from).to_vec() };
        Interference {
            modeled: None,
            expected: vec!["Half of level 2 is read again in 1000 µs.".to_owned()],
            divided: vec![
                divided(Partitioning::Colors, 2, [[0, 1], [2, 3]]),
                divided(Partitioning::Ways, 3, [[2, 3], [0, 1]]),
            ],
            programs: vec![program("hungry --much"), program("modest")],
            counted: vec![counted("L1", "loads", "L1 misses"), counted("L2", "L1 misses", "L2 misses")],
            rows: conclude(&blocks),
        }
    }

    #[test]
    fn interference_is_what_others_cost_beyond_others_that_spin() {
        let measured = modeled();
        assert_eq!(measured.rows.len(), 12);
        let row = measured.worst(Sharing::InterCore).unwrap();
        assert_eq!((row.condition.program, row.blocks, row.blocks_quiet), (0, 12, 11));
        // p: two of 2^11 assignments of signs, for twelve conditions. The interference is 450 of 1000 to 1009, and the control 50, so both
        // together are 500.
        assert_eq!(row.p, Some(12.0 * 2.0 / 2048.0));
        assert!((row.interference - 0.45).abs() < 0.003 && (row.control - 0.05).abs() < 0.003, "{row:?}");
        assert!((row.together - 0.5).abs() < 0.005, "{row:?}");
        let parts: Vec<f64> = measured.divided_rows(row).map(|row| row.interference).collect();
        assert!(parts.len() == 2 && (parts[0] - 0.09).abs() < 0.003 && (parts[1] - 0.05).abs() < 0.003, "{parts:?}");
        assert!(measured.is_conclusive());
    }

    #[test]
    fn shares_are_equal_and_leave_nothing() {
        let sizes = |count, programs| equal_shares(count, programs).unwrap().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(16, 4), [4; 4]);
        assert_eq!(sizes(16, 3).iter().sum::<usize>(), 16);
        assert!(sizes(16, 3).iter().all(|size| (5..=6).contains(size)));
        assert_eq!(equal_shares(2, 3), None);
    }

    #[test]
    fn hits_and_misses_of_a_level_are_compared_with_those_alone() {
        let measured = modeled();
        let row = measured.worst(Sharing::IntraCore).unwrap();
        // The first level has about 1002 misses alone and 500 more together. The second level has 500 hits fewer.
        let [first, second] = row.requests[..] else { panic!("{row:?}") };
        assert!((first.misses[2] - 1502.0).abs() <= 2.0 && (change(first.misses).unwrap() - 0.5).abs() < 0.005);
        assert_eq!(change(first.hits), Some(0.0));
        assert!((change(second.hits).unwrap() + 0.5).abs() < 0.005, "{second:?}");
        // Without misses alone there is no share.
        assert_eq!(change(second.misses), None);
    }

    #[test]
    fn what_is_not_significant_is_no_interference() {
        let measured = modeled();
        let modest = measured.rows.iter().filter(|row| row.condition.program == 1);
        assert!(modest.clone().count() == 6 && modest.clone().all(|row| !measured.interferes(row)));
        for p in [Some(0.06), None] {
            assert!(!measured.interferes(&Row { p, ..measured.rows[0].clone() }));
        }
    }

    #[test]
    fn a_run_that_was_not_counted_is_not_counted_as_zero() {
        let run = |misses: f64| vec![1000.0, 0.0, 0.0, misses];
        let of = |together: f64| block(open(Sharing::InterCore, 0), [run(5.0), run(6.0), run(together)]);
        let row = &conclude(&[of(f64::NAN), of(f64::NAN), of(9.0)])[0];
        assert_eq!((row.blocks_quiet, row.requests[0].misses), (3, [5.0, 6.0, 9.0]));
        assert!(conclude(&[of(f64::NAN)])[0].requests.is_empty());
    }

    #[test]
    fn a_run_that_outlasted_its_co_runners_is_kept_and_said_to_be_a_lower_limit() {
        // Runs are longest where co-runners ran out: without these blocks the interference would seem weaker.
        let of = |together: f64| {
            let censored = if together > 1500.0 { 1.0 } else { 0.0 };
            block(open(Sharing::InterCore, 0), [vec![1000.0, 0.0], vec![1000.0, 0.0], vec![together, censored]])
        };
        let row = &conclude(&[1400.0, 1600.0, 1600.0].map(of))[0];
        assert_eq!((row.blocks_quiet, row.blocks_censored), (3, 2));
        assert!(row.interference > 0.5, "{row:?}");
    }

    #[test]
    fn too_few_accepted_blocks_are_inconclusive() {
        assert!(!Interference { rows: vec![], ..modeled() }.is_conclusive());
        let mut measured = modeled();
        measured.rows[3].blocks_quiet = BLOCKS_MIN - 1;
        assert!(!measured.is_conclusive());
        // A model has no noise.
        measured.modeled = Some("i7-2600".to_owned());
        assert!(measured.is_conclusive());
        assert!(conclude(&[]).is_empty());
    }
}
