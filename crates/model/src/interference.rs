//! What programs cost each other through the caches: the experiment of [Kim2013, §3].
//!
//! A program runs to its end alone, beside others on other CPUs (inter-core), and on one CPU with others by turns (intra-core). What a run
//! takes is the time for which the program had a CPU. The control of a run is the same with co-runners that only spin: what other CPUs being busy,
//! or turns by themselves, cost is in both, and what is left between them is what co-runners do to caches and memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::median;
use crate::units::{Color, Ns};

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
    /// Whether every program has colors of its own.
    pub colored: bool,
}

/// One run of a program, from its mark to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Time for which it had a CPU.
    pub cpu: Ns,
    /// Counts of the events, in the order of [`Interference::events`]; empty without counters.
    pub counts: Vec<u64>,
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

/// What one condition came to. Shares are of the run alone, of the same block; medians over quiet blocks.
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
    /// The difference of these two: the part of caches and memory.
    pub interference: f64,
    /// Share of the quiet blocks in which the run was longer with the others than where they spin.
    pub blocks_longer: f64,
    /// For each event: how often alone, where the others spin, and with them, in the quiet blocks of whose runs all three were counted;
    /// empty where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<[f64; 3]>,
    /// Blocks run.
    pub blocks: u64,
    /// Blocks that count.
    pub blocks_quiet: u64,
}

/// A program of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its command line.
    pub command: String,
    /// Its colors where programs have their own; empty if that was not measured.
    pub colors: Vec<Color>,
    /// Smallest share of its resident pages that had these colors when a run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<f64>,
}

/// The experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interference {
    /// Cache level whose colors programs have; absent where colors were not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// Colors of that level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colors: Option<u32>,
    /// The programs.
    pub programs: Vec<Program>,
    /// Co-runners at a time on other CPUs.
    pub beside: usize,
    /// Time of a turn on a shared CPU, and after which a program has its next.
    pub turn_ns: [Ns; 2],
    /// Events counted, by the names of the processor's manual; none without counters.
    pub events: Vec<String>,
    /// Every condition.
    pub rows: Vec<Row>,
}

/// Blocks whose control takes a share of the run alone that differs by so much from the usual one do not count: something else came or went
/// between the two, and the run with the others is between them.
///
/// Not by the quickest run, as in experiments of microseconds: over the tenth of a second that a run takes, a host changes clocks and neighbors
/// more often than not. Each block is held against itself.
const TOLERANCE: f64 = 0.1;

/// Fewest quiet blocks that say anything.
const QUIET_MIN: u64 = 5;

/// Share of the quiet blocks in which others must have cost time for there to be interference.
const AGREEING: f64 = 0.9;

/// The rows of `blocks`.
pub fn conclude(blocks: &[Block]) -> Vec<Row> {
    let mut by_condition: BTreeMap<Condition, Vec<&Block>> = BTreeMap::new();
    for block in blocks.iter().filter(|block| block.alone.cpu.0 > 0) {
        by_condition.entry(block.condition).or_default().push(block);
    }
    let row = |(condition, blocks): (&Condition, &Vec<&Block>)| {
        let part = |block: &Block| block.control.cpu.0 as f64 / block.alone.cpu.0 as f64;
        let usual = median(&blocks.iter().map(|block| part(block)).collect::<Vec<_>>()).unwrap_or_default();
        let quiet: Vec<&Block> =
            blocks.iter().copied().filter(|block| (part(block) - usual).abs() <= TOLERANCE * usual).collect();
        let typical = |of: &dyn Fn(&Block) -> f64| median(&quiet.iter().map(|block| of(block)).collect::<Vec<_>>());
        let share = |run: &Run, block: &Block| run.cpu.0 as f64 / block.alone.cpu.0 as f64;
        // Only blocks of whose three runs all were counted: what is missing is not zero.
        let runs = |block: &Block| [&block.alone, &block.control, &block.together].map(|run| run.counts.clone());
        let counted: Vec<[Vec<u64>; 3]> = quiet.iter().map(|block| runs(block)).collect();
        let events = counted.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let counted: Vec<_> =
            counted.into_iter().filter(|runs| runs.iter().all(|counts| counts.len() == events)).collect();
        let count = |event: usize, run: usize| {
            median(&counted.iter().map(|runs| runs[run][event] as f64).collect::<Vec<_>>()).unwrap_or_default()
        };
        let longer = quiet.iter().filter(|block| block.together.cpu > block.control.cpu).count();
        Row {
            condition: *condition,
            alone_ns: typical(&|block| block.alone.cpu.0 as f64).unwrap_or_default(),
            control: typical(&|block| share(&block.control, block) - 1.0).unwrap_or_default(),
            together: typical(&|block| share(&block.together, block) - 1.0).unwrap_or_default(),
            interference: typical(&|block| share(&block.together, block) - share(&block.control, block))
                .unwrap_or_default(),
            blocks_longer: longer as f64 / quiet.len().max(1) as f64,
            counts: (0..if counted.is_empty() { 0 } else { events })
                .map(|event| [0, 1, 2].map(|run| count(event, run)))
                .collect(),
            blocks: blocks.len() as u64,
            blocks_quiet: quiet.len() as u64,
        }
    };
    by_condition.iter().map(row).collect()
}

impl Row {
    /// Whether others cost time beyond doubt.
    pub fn interferes(&self) -> bool {
        self.blocks_quiet >= QUIET_MIN && self.blocks_longer >= AGREEING && self.interference > 0.0
    }

    /// Whether enough blocks were quiet.
    pub fn is_conclusive(&self) -> bool {
        self.blocks_quiet >= QUIET_MIN
    }
}

impl Interference {
    /// The row of the same program in the same company that differs in whether programs have colors.
    pub fn other(&self, row: &Row) -> Option<&Row> {
        let other = Condition { colored: !row.condition.colored, ..row.condition };
        self.rows.iter().find(|row| row.condition == other)
    }

    /// Whether enough blocks of every condition were quiet.
    pub fn is_conclusive(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(Row::is_conclusive)
    }

    /// The row of the strongest interference beyond doubt without colors.
    pub fn worst(&self, sharing: Sharing) -> Option<&Row> {
        let open = self.rows.iter().filter(|row| row.condition.sharing == sharing && !row.condition.colored);
        open.filter(|row| row.interferes()).max_by(|a, b| a.interference.total_cmp(&b.interference))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two programs: the first is 50 % longer beside the other, 5 % of it since other CPUs are busy, and a fifth of the rest where it has
    /// colors; the second is not touched.
    pub(crate) fn modeled() -> Interference {
        let mut blocks = Vec::new();
        for sharing in [Sharing::InterCore, Sharing::IntraCore] {
            for program in [0, 1] {
                for colored in [false, true] {
                    let cost = match (program, colored) {
                        (0, false) => 450,
                        (0, true) => 90,
                        _ => 0,
                    };
                    // The last two are disturbed, in the run alone and in the control: they must not count.
                    for noise in [[0, 0], [1, 2], [2, 1], [3, 3], [4, 4], [500, 0], [0, 500]] {
                        let run = |ns: u64| Run { cpu: Ns(ns * 1000), counts: vec![ns] };
                        blocks.push(Block {
                            condition: Condition { sharing, program, colored },
                            alone: run(1000 + noise[0]),
                            control: run(1050 + noise[1]),
                            together: run(1050 + cost + noise[1]),
                        });
                    }
                }
            }
        }
        let program = |command: &str, colors: [u16; 2]| Program {
            command: command.to_owned(),
            colors: colors.map(Color).to_vec(),
            placed: Some(0.95),
        };
        Interference {
            level: Some(2),
            colors: Some(4),
            programs: vec![program("hungry --much", [0, 1]), program("modest", [2, 3])],
            beside: 1,
            turn_ns: [Ns(2_500_000), Ns(10_000_000)],
            events: vec!["refills".to_owned()],
            rows: conclude(&blocks),
        }
    }

    #[test]
    fn interference_is_what_others_cost_beyond_others_that_spin() {
        let measured = modeled();
        assert_eq!(measured.rows.len(), 8);
        let row = measured.worst(Sharing::InterCore).unwrap();
        assert_eq!((row.condition.program, row.blocks, row.blocks_quiet), (0, 7, 5));
        // 450 of 1000, at most 1004; control 50, so that together it is 500.
        assert!((row.interference - 0.45).abs() < 0.003 && (row.control - 0.05).abs() < 0.003, "{row:?}");
        assert!((row.together - 0.5).abs() < 0.005, "{row:?}");
        assert!((row.counts[0][2] - 1502.0).abs() <= 2.0, "{row:?}");
        assert!((measured.other(row).unwrap().interference - 0.09).abs() < 0.003);
        assert!(measured.is_conclusive());
    }

    #[test]
    fn a_program_that_is_not_longer_in_most_blocks_is_not_interfered_with() {
        let measured = modeled();
        let modest = measured.rows.iter().filter(|row| row.condition.program == 1);
        assert!(modest.clone().count() == 4 && modest.clone().all(|row| !row.interferes()));
        // 450 in three of five blocks is no agreement.
        let row = Row { blocks_longer: 0.6, ..measured.rows[0].clone() };
        assert!(!row.interferes());
    }

    #[test]
    fn a_run_that_was_not_counted_is_not_counted_as_zero() {
        let condition = Condition { sharing: Sharing::InterCore, program: 0, colored: false };
        let run = |counts: &[u64]| Run { cpu: Ns(1000), counts: counts.to_vec() };
        let block =
            |together: &[u64]| Block { condition, alone: run(&[5]), control: run(&[6]), together: run(together) };
        let row = &conclude(&[block(&[]), block(&[]), block(&[9])])[0];
        assert_eq!((row.blocks_quiet, &row.counts[..]), (3, &[[5.0, 6.0, 9.0]][..]));
        assert!(conclude(&[block(&[])])[0].counts.is_empty());
    }

    #[test]
    fn too_few_quiet_blocks_are_inconclusive() {
        assert!(!Interference { rows: vec![], ..modeled() }.is_conclusive());
        let mut measured = modeled();
        measured.rows[3].blocks_quiet = 4;
        assert!(!measured.is_conclusive());
        assert!(conclude(&[]).is_empty());
    }
}
