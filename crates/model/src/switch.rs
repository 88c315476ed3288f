//! What it costs to pass a CPU from one task to another and back, and how much of that is the cache's: the experiment of [Sebek2002, §3.4].
//!
//! A pre-emption is two switches: the *interrupt*, from the task that has the CPU to the one that takes it, and the *resume*, back again
//! when that one is done. In the best case everything the switches touch is in the cache; after a flood none of it is. The time of the
//! best case is the direct part, what comes on top of it is the cache part. [Sebek2002, Table 1]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::{HighWaterMark, all_quiet, median, quiet_blocks};
use crate::units::Cycles;

/// By what one task lets the other go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// A word in memory that the other waits on.
    Futex,
    /// A byte in a pipe.
    Pipe,
    /// A signal that the other waits for.
    Signal,
    /// Nothing: the other's timer expires while this one computes. Only for pre-emptions.
    Timer,
}

/// Whether the other takes the CPU or is given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The other has a higher priority: it takes the CPU as soon as it can run, and gives it back when it waits again.
    Preemption,
    /// Both have the same priority: each lets the other go on, then waits until that is done to itself.
    Switch,
}

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Condition {
    /// Whether the CPU is taken or given.
    pub kind: Kind,
    /// By what.
    pub means: Means,
    /// Whether floods keep to colors apart from the tasks'.
    pub partitioned: bool,
}

/// The times of one way there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// From the last instant of the task that had the CPU to the first of the other.
    pub interrupt: Cycles,
    /// From the last instant of the other to the first of the task that goes on.
    pub resume: Cycles,
}

impl Passage {
    /// Both.
    fn cost(self) -> u64 {
        self.interrupt.0 + self.resume.0
    }
}

/// What comes before each of the two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Before {
    /// Nothing: best case.
    Nothing,
    /// Spinning for as long as a flood takes: the paired control.
    Spin,
    /// A flood.
    Flood,
}

/// Passages under one condition, in other memory than those of other blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What was measured.
    pub condition: Condition,
    /// Passages by what came before each of their switches.
    pub passages: BTreeMap<Before, Vec<Passage>>,
}

/// What passages of one kind took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Median time there, in ns.
    pub interrupt_ns: f64,
    /// Median time back, in ns.
    pub resume_ns: f64,
    /// Median of both together, in ns.
    pub cost_ns: f64,
    /// The longest of both together. An observation, not a bound.
    pub cost_ns_max: HighWaterMark,
}

/// What one condition came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    #[serde(flatten)]
    pub condition: Condition,
    /// Nothing came before: the direct part.
    pub best: Cost,
    /// After spinning.
    pub control: Cost,
    /// After a flood.
    pub flooded: Cost,
    /// The cache part of the interrupt: after a flood less after spinning, in ns; the median over blocks, each against its own control.
    pub cache_interrupt_ns: f64,
    /// The cache part of the resume, likewise.
    pub cache_resume_ns: f64,
    /// The cache part of both together, likewise.
    pub cache_ns: f64,
    /// Share of the quiet blocks whose passages took longer after a flood than after spinning.
    pub blocks_longer: f64,
    /// Blocks run.
    pub blocks: u64,
    /// Blocks that count.
    pub blocks_quiet: u64,
}

/// The experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Switches {
    /// Cache level that is flooded.
    pub level: u8,
    /// Colors that are left to the tasks in partitioned conditions, and of the cache; absent where colors are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colors: Option<[u32; 2]>,
    /// Every condition.
    pub rows: Vec<Row>,
}

/// Blocks whose control is so much slower than the quietest of the same condition do not count.
const TOLERANCE: f64 = 0.1;

/// Fewest quiet blocks that say anything.
const QUIET_MIN: u64 = 5;

/// Share of the quiet blocks in which a flood must have cost time for there to be a cache part.
const AGREEING: f64 = 0.9;

fn typical(passages: &[Passage], of: impl Fn(Passage) -> u64) -> f64 {
    median(&passages.iter().map(|passage| of(*passage) as f64).collect::<Vec<_>>()).unwrap_or_default()
}

/// The rows of `blocks`, whose times are ticks of `counter_hz` per second. Medians are over all quiet blocks of a condition, maxima over
/// the same number of its quietest blocks for all conditions.
pub fn conclude(blocks: &[Block], counter_hz: u64) -> Vec<Row> {
    let mut by_condition: BTreeMap<Condition, Vec<&Block>> = BTreeMap::new();
    let whole = |block: &&Block| {
        [Before::Nothing, Before::Spin, Before::Flood]
            .iter()
            .all(|before| block.passages.get(before).is_some_and(|passages| !passages.is_empty()))
    };
    for block in blocks.iter().filter(whole) {
        by_condition.entry(block.condition).or_default().push(block);
    }
    let controls: Vec<Vec<u64>> = by_condition
        .values()
        .map(|blocks| {
            blocks.iter().map(|block| typical(&block.passages[&Before::Spin], Passage::cost) as u64).collect()
        })
        .collect();
    let equally_many = quiet_blocks(&controls, TOLERANCE);
    let ns = |ticks: f64| ticks * 1e9 / counter_hz as f64;
    let row = |(at, (condition, blocks)): (usize, (&Condition, &Vec<&Block>))| {
        let (quiet, few) = (all_quiet(&controls[at], TOLERANCE), &equally_many.kept[at]);
        let kept = || quiet.iter().map(|block| blocks[*block]);
        let cost = |before: Before| {
            let passages: Vec<Passage> = kept().flat_map(|block| block.passages[&before].iter().copied()).collect();
            let compared = few.iter().flat_map(|block| &blocks[*block].passages[&before]);
            let costs: Vec<u64> = compared.map(|passage| ns(passage.cost() as f64).round() as u64).collect();
            Some(Cost {
                interrupt_ns: ns(typical(&passages, |passage| passage.interrupt.0)),
                resume_ns: ns(typical(&passages, |passage| passage.resume.0)),
                cost_ns: ns(typical(&passages, Passage::cost)),
                cost_ns_max: HighWaterMark::of(&costs)?,
            })
        };
        // Each block against its own control.
        let effects = |of: fn(Passage) -> u64| -> Vec<f64> {
            let effect = |block: &Block| {
                typical(&block.passages[&Before::Flood], of) - typical(&block.passages[&Before::Spin], of)
            };
            kept().map(|block| ns(effect(block))).collect()
        };
        let both = effects(Passage::cost);
        Some(Row {
            condition: *condition,
            best: cost(Before::Nothing)?,
            control: cost(Before::Spin)?,
            flooded: cost(Before::Flood)?,
            cache_interrupt_ns: median(&effects(|passage| passage.interrupt.0))?,
            cache_resume_ns: median(&effects(|passage| passage.resume.0))?,
            cache_ns: median(&both)?,
            blocks_longer: both.iter().filter(|effect| **effect > 0.0).count() as f64 / both.len() as f64,
            blocks: blocks.len() as u64,
            blocks_quiet: both.len() as u64,
        })
    };
    by_condition.iter().enumerate().filter_map(row).collect()
}

impl Row {
    /// Whether enough blocks were quiet.
    pub fn is_conclusive(&self) -> bool {
        self.blocks_quiet >= QUIET_MIN
    }

    /// Whether a flood costs time beyond doubt: in nine of ten quiet blocks or more.
    pub fn has_cache_part(&self) -> bool {
        self.cache_ns > 0.0 && self.blocks_longer >= AGREEING
    }
}

impl Switches {
    /// The partitioned row that belongs to `row`.
    pub fn partitioned(&self, row: &Row) -> Option<&Row> {
        let wanted = Condition { partitioned: true, ..row.condition };
        self.rows.iter().find(|row| row.condition == wanted)
    }

    /// Whether every condition had enough quiet blocks, and a flood of all colors costs time in each.
    pub fn is_conclusive(&self) -> bool {
        let open = || self.rows.iter().filter(|row| !row.condition.partitioned);
        open().next().is_some() && self.rows.iter().all(Row::is_conclusive) && open().all(Row::has_cache_part)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A pre-emption of 400 + 600 ns and a switch of 300 + 300; a flood adds 500 + 1000 to either, half of that if it keeps to other colors,
    /// and spinning adds 10 + 10. Every third block is disturbed.
    pub fn modeled() -> Switches {
        let mut blocks = Vec::new();
        for (kind, means, [there, back]) in
            [(Kind::Preemption, Means::Futex, [400, 600]), (Kind::Switch, Means::Pipe, [300, 300])]
        {
            for partitioned in [false, true] {
                for block in 0..9 {
                    let noise = if block % 3 == 2 { 5_000 } else { block };
                    let share = if partitioned { 1 } else { 2 };
                    let passages = |add: [u64; 2]| {
                        let [interrupt, resume] = [there + add[0] + noise, back + add[1] + noise].map(Cycles);
                        vec![Passage { interrupt, resume }; 3]
                    };
                    blocks.push(Block {
                        condition: Condition { kind, means, partitioned },
                        passages: BTreeMap::from([
                            (Before::Nothing, passages([0, 0])),
                            (Before::Spin, passages([10, 10])),
                            (Before::Flood, passages([10 + 250 * share, 10 + 500 * share])),
                        ]),
                    });
                }
            }
        }
        Switches { level: 2, colors: Some([8, 16]), rows: conclude(&blocks, 1_000_000_000) }
    }

    #[test]
    fn the_cache_part_is_that_after_a_flood_less_that_of_the_control() {
        let switches = modeled();
        assert_eq!(switches.rows.len(), 4);
        let row = switches.rows[0];
        assert_eq!(row.condition, Condition { kind: Kind::Preemption, means: Means::Futex, partitioned: false });
        // Blocks 2, 5 and 8 are disturbed.
        assert_eq!((row.blocks, row.blocks_quiet), (9, 6));
        assert_eq!((row.cache_interrupt_ns, row.cache_resume_ns, row.cache_ns), (500.0, 1000.0, 1500.0));
        assert_eq!(row.flooded.cost_ns - row.control.cost_ns, 1500.0);
        // The noise of a quiet block is that of its number, at most 7 on either way.
        assert!((1000.0..1020.0).contains(&row.best.cost_ns), "{}", row.best.cost_ns);
        assert_eq!((row.best.cost_ns_max.n, row.best.cost_ns_max.value), (18, 1014));
        assert_eq!(switches.partitioned(&row).unwrap().cache_ns, 750.0);
        assert!(row.has_cache_part() && switches.is_conclusive());
    }

    #[test]
    fn without_quiet_blocks_or_an_effect_nothing_is_concluded() {
        let mut few = modeled();
        few.rows[3].blocks_quiet = QUIET_MIN - 1;
        assert!(!few.is_conclusive());
        let mut without = modeled();
        without.rows[0].blocks_longer = 0.5;
        assert!(!without.is_conclusive());
        assert!(!Switches { rows: Vec::new(), ..modeled() }.is_conclusive());
        let condition = Condition { kind: Kind::Switch, means: Means::Signal, partitioned: false };
        assert!(conclude(&[Block { condition, passages: BTreeMap::new() }], 1).is_empty());
    }
}
