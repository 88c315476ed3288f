//! What programs cost each other through the caches: the experiment of [Kim2013, §3].
//!
//! A program runs to its end alone, beside others on other CPUs (inter-core), and on one CPU with others by turns (intra-core). What a run
//! takes is the time for which the program had a CPU. The control of a run is the same with co-runners that only spin: what other CPUs being busy,
//! or turns by themselves, cost is in both, and what is left between them is what co-runners do to caches and memory.

pub mod modeled;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::{BLOCKS_MIN, Effect, Gate, SIGNIFICANT, accepted, holm, median};
use crate::taskset::programs::Partitioning;
use crate::units::Ns;

/// Where the others run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// On other CPUs, at the same time. [Kim2013, Figure 2(a)]
    InterCore,
    /// On the same CPU, by turns. [Kim2013, Figure 2(b)]
    IntraCore,
}

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Condition {
    /// Where the others run.
    pub sharing: Sharing,
    /// Which program is measured.
    pub program: usize,
    /// By what means every program has a part of a cache of its own.
    pub partitioning: Partitioning,
}

/// How often a program asked a cache level, and what it got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Times it had the line.
    pub hits: u64,
    /// Times it did not.
    pub misses: u64,
}

/// One run of a program, from its mark to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Time for which it had a CPU.
    pub cpu: Ns,
    /// What it got of each of [`Interference::counted`]; empty where nothing was counted.
    pub asked: Vec<Asked>,
}

/// Three runs, one after the other: the one with co-runners between the other two, whose order is random.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What was measured.
    pub condition: Condition,
    /// Nothing else runs.
    pub alone: Run,
    /// The paired control: where co-runners would be, this program spins.
    pub control: Run,
    /// With co-runners.
    pub together: Run,
}

/// What one condition came to. Shares are of the run alone, of the same block; medians over accepted blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    #[serde(flatten)]
    pub condition: Condition,
    /// Time alone, in ns.
    pub alone_ns: f64,
    /// By what share the run is longer where the others only spin.
    pub control: f64,
    /// By what share it is longer with the others: what [Kim2013, Figure 3] shows.
    pub together: f64,
    /// The [effect](Effect) of the others' work, as a share: the part of caches and memory.
    pub interference: f64,
    /// Its 95 % confidence interval; `None` for fewer than six blocks, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Probability of interference as strong without an effect, corrected for all conditions that were measured together. `None` in files of
    /// earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// What it got of each of [`Interference::counted`], over the accepted blocks in which all three runs were counted. Empty without counters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Answers>,
    /// Blocks run.
    pub blocks: u64,
    /// Accepted blocks.
    pub blocks_quiet: u64,
}

/// What a program got of a level alone, where the others spin, and with them: medians.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    /// How often it had the line.
    pub hits: [f64; 3],
    /// How often it did not.
    pub misses: [f64; 3],
}

/// By what share a count is higher with the others than alone; `None` where there was none alone.
pub fn change([alone, _, together]: [f64; 3]) -> Option<f64> {
    (alone > 0.0).then(|| together / alone - 1.0)
}

/// A cache level whose hits and misses are counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Its name.
    pub level: String,
    /// What counts as asking it, by the names of the processor's manual.
    pub accesses: Vec<String>,
    /// What of that counts as a miss.
    pub misses: Vec<String>,
}

/// How a cache is divided among the programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divided {
    /// By what.
    pub by: Partitioning,
    /// Which level.
    pub level: u8,
    /// Colors or ways of that level.
    pub count: u32,
    /// Those of each program.
    pub shares: Vec<Vec<u32>>,
}

/// A program of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its command line.
    pub command: String,
    /// Smallest share of its resident pages that had its colors when a run with colors began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<f64>,
}

/// The experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interference {
    /// The modeled machine, where nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modeled: Option<String>,
    /// Caches whose parts programs had.
    pub divided: Vec<Divided>,
    /// The programs.
    pub programs: Vec<Program>,
    /// Co-runners at a time on other CPUs.
    pub beside: usize,
    /// Time of a turn on a shared CPU, and after which a program has its next.
    pub turn_ns: [Ns; 2],
    /// Levels counted, innermost first; none without counters.
    pub counted: Vec<Counted>,
    /// Every condition.
    pub rows: Vec<Row>,
}

/// `count` colors or ways in equal shares, what is left over to some of them; `None` where there are fewer than programs.
pub fn equal_shares(count: u32, programs: usize) -> Option<Vec<Vec<u32>>> {
    let end = |program: usize| (program as u64 * u64::from(count) / programs as u64) as u32;
    (count as usize >= programs)
        .then(|| (0..programs).map(|program| (end(program)..end(program + 1)).collect()).collect())
}

/// The rows of `blocks`.
///
/// The run alone decides whether a block is accepted, and is not part of what is compared: the run with others against that beside others
/// that spin.
pub fn conclude(blocks: &[Block]) -> Vec<Row> {
    let mut by_condition: BTreeMap<Condition, Vec<&Block>> = BTreeMap::new();
    for block in blocks.iter().filter(|block| block.alone.cpu.0 > 0) {
        by_condition.entry(block.condition).or_default().push(block);
    }
    let row = |(condition, blocks): (&Condition, &Vec<&Block>)| {
        let gate = |block: &&Block| Gate { canaries_lost: None, steal: 0.0, control: block.alone.cpu.0 as f64 };
        let counts = accepted(&blocks.iter().map(gate).collect::<Vec<_>>());
        let quiet: Vec<&Block> =
            blocks.iter().zip(counts).filter(|(_, counts)| *counts).map(|(block, _)| *block).collect();
        let typical = |of: &dyn Fn(&Block) -> f64| median(&quiet.iter().map(|block| of(block)).collect::<Vec<_>>());
        let share = |run: &Run, block: &Block| run.cpu.0 as f64 / block.alone.cpu.0 as f64;
        // Only blocks of whose three runs all were counted: what is missing is not zero.
        let runs = |block: &Block| [&block.alone, &block.control, &block.together].map(|run| run.asked.clone());
        let counted: Vec<[Vec<Asked>; 3]> = quiet.iter().map(|block| runs(block)).collect();
        let levels = counted.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let counted: Vec<_> =
            counted.into_iter().filter(|runs| runs.iter().all(|asked| asked.len() == levels)).collect();
        let count = |level: usize, of: fn(&Asked) -> u64| {
            [0, 1, 2].map(|run| {
                let counts: Vec<f64> = counted.iter().map(|runs| of(&runs[run][level]) as f64).collect();
                median(&counts).unwrap_or_default()
            })
        };
        let difference = |block: &&Block| share(&block.together, block) - share(&block.control, block);
        let effect = Effect::of(&quiet.iter().map(difference).collect::<Vec<_>>())?;
        Some(Row {
            condition: *condition,
            alone_ns: typical(&|block| block.alone.cpu.0 as f64).unwrap_or_default(),
            control: typical(&|block| share(&block.control, block) - 1.0).unwrap_or_default(),
            together: typical(&|block| share(&block.together, block) - 1.0).unwrap_or_default(),
            interference: effect.estimate,
            interval: effect.interval,
            p: Some(effect.p),
            asked: (0..if counted.is_empty() { 0 } else { levels })
                .map(|level| Answers {
                    hits: count(level, |asked| asked.hits),
                    misses: count(level, |asked| asked.misses),
                })
                .collect(),
            blocks: blocks.len() as u64,
            blocks_quiet: effect.n,
        })
    };
    let mut rows: Vec<Row> = by_condition.iter().filter_map(row).collect();
    let corrected = holm(&rows.iter().filter_map(|row| row.p).collect::<Vec<_>>());
    rows.iter_mut().zip(corrected).for_each(|(row, p)| row.p = Some(p));
    rows
}

impl Row {
    /// Whether enough blocks were accepted.
    pub fn is_conclusive(&self) -> bool {
        self.blocks_quiet >= BLOCKS_MIN
    }
}

impl Interference {
    /// The rows of the same program in the same company in which programs have parts of a cache.
    pub fn divided_rows(&self, row: &Row) -> impl Iterator<Item = &Row> {
        let Condition { sharing, program, .. } = row.condition;
        let parts = [Partitioning::Colors, Partitioning::Ways, Partitioning::Both];
        let of = move |partitioning| Condition { sharing, program, partitioning };
        parts.into_iter().filter_map(move |part| self.rows.iter().find(|row| row.condition == of(part)))
    }

    /// Whether enough blocks of every condition were accepted, or nothing could be otherwise.
    pub fn is_conclusive(&self) -> bool {
        !self.rows.is_empty() && (self.modeled.is_some() || self.rows.iter().all(Row::is_conclusive))
    }

    /// Whether others cost the program of `row` significantly more time than others that spin.
    pub fn interferes(&self, row: &Row) -> bool {
        let significant = row.is_conclusive() && row.p.is_some_and(|p| p <= SIGNIFICANT);
        (self.modeled.is_some() || significant) && row.interference > 0.0
    }

    /// The row of the strongest significant interference among programs that share everything.
    pub fn worst(&self, sharing: Sharing) -> Option<&Row> {
        let open = |row: &&Row| row.condition.sharing == sharing && row.condition.partitioning == Partitioning::None;
        let open = self.rows.iter().filter(open);
        open.filter(|row| self.interferes(row)).max_by(|a, b| a.interference.total_cmp(&b.interference))
    }
}

#[cfg(any(test, feature = "fixtures"))]
#[allow(dead_code, unused_imports, missing_docs)]
pub mod tests {
    use super::*;

    /// Two programs: the first is 50 % longer beside the other, 5 % of it since other CPUs are busy, and a fifth of the rest where it has
    /// colors; the second is not touched.
    pub fn modeled() -> Interference {
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
                    // The last one is disturbed in the run alone, and must not count. One whose control is disturbed does, as the effect would decide
                    // whether it counts otherwise.
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
                        let run = |ns: u64| Run {
                            cpu: Ns(ns * 1000),
                            asked: vec![Asked { hits: 5000, misses: ns }, Asked { hits: 2000 - ns, misses: 0 }],
                        };
                        blocks.push(Block {
                            condition: Condition { sharing, program, partitioning },
                            alone: run(1000 + noise[0]),
                            control: run(1050 + noise[1]),
                            together: run(1050 + cost + noise[1]),
                        });
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
            divided: vec![
                divided(Partitioning::Colors, 2, [[0, 1], [2, 3]]),
                divided(Partitioning::Ways, 3, [[2, 3], [0, 1]]),
            ],
            programs: vec![program("hungry --much"), program("modest")],
            beside: 1,
            turn_ns: [Ns(2_500_000), Ns(10_000_000)],
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
        // 450 of 1000, at most 1009; control 50, so that together it is 500. Two of 2^11 assignments of signs, twelve conditions.
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
    fn hits_and_misses_of_a_level_are_held_against_those_alone() {
        let measured = modeled();
        let row = measured.worst(Sharing::IntraCore).unwrap();
        // 1002 misses alone and 500 more together; as many hits of the second level fewer.
        let [first, second] = row.asked[..] else { panic!("{row:?}") };
        assert!((first.misses[2] - 1502.0).abs() <= 2.0 && (change(first.misses).unwrap() - 0.5).abs() < 0.005);
        assert_eq!(change(first.hits), Some(0.0));
        assert!((change(second.hits).unwrap() + 0.5).abs() < 0.005, "{second:?}");
        // Of none there is no share.
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
        let condition = Condition { sharing: Sharing::InterCore, program: 0, partitioning: Partitioning::None };
        let asked = |misses: &u64| Asked { hits: 0, misses: *misses };
        let run = |misses: &[u64]| Run { cpu: Ns(1000), asked: misses.iter().map(asked).collect() };
        let block =
            |together: &[u64]| Block { condition, alone: run(&[5]), control: run(&[6]), together: run(together) };
        let row = &conclude(&[block(&[]), block(&[]), block(&[9])])[0];
        assert_eq!((row.blocks_quiet, row.asked[0].misses), (3, [5.0, 6.0, 9.0]));
        assert!(conclude(&[block(&[])])[0].asked.is_empty());
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
