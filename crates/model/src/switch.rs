//! What it costs to pass a CPU from one task to another and back, and how much of that is the cache's: the experiment of [Sebek2002, §3.4].
//!
//! A pre-emption is two switches: the *interrupt*, from the task that has the CPU to the one that takes it, and the *resume*, back again
//! when that one is done. In the best case everything the switches touch is in the cache; after a flood none of it is. The time of the
//! best case is the direct part, what comes on top of it is the cache part. [Sebek2002, Table 1]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::{BLOCKS_MIN, Effect, Gate, HighWaterMark, SIGNIFICANT, accepted, halves, holm, median};
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
pub struct Handoff {
    /// From the last instant of the task that had the CPU to the first of the other.
    pub interrupt: Cycles,
    /// From the last instant of the other to the first of the task that goes on.
    pub resume: Cycles,
}

impl Handoff {
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

/// Handoffs under one condition, in other memory than those of other blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What was measured.
    pub condition: Condition,
    /// Handoffs by what came before each of their switches.
    pub handoffs: BTreeMap<Before, Vec<Handoff>>,
}

/// What handoffs of one kind took.
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
    /// The cache part of the interrupt, in ns: the [effect](Effect) of a flood over spinning, each block against its own control.
    pub cache_interrupt_ns: f64,
    /// The cache part of the resume, likewise.
    pub cache_resume_ns: f64,
    /// The cache part of both together, likewise.
    pub cache_ns: f64,
    /// Its 95 % confidence interval, in ns; `None` for fewer than six blocks, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_interval_ns: Option<[f64; 2]>,
    /// Probability of a cache part as large without an effect, corrected for all conditions that were measured together. `None` in files of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// Blocks run.
    pub blocks: u64,
    /// Accepted blocks.
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

fn typical(handoffs: &[Handoff], of: impl Fn(Handoff) -> u64) -> f64 {
    median(&handoffs.iter().map(|handoff| of(*handoff) as f64).collect::<Vec<_>>()).unwrap_or_default()
}

/// The rows of `blocks`, whose times are ticks of `counter_hz` per second.
///
/// Half of the handoffs after spinning decide whether a block is accepted, the others are what handoffs after a flood are compared with.
pub fn conclude(blocks: &[Block], counter_hz: u64) -> Vec<Row> {
    let mut by_condition: BTreeMap<Condition, Vec<&Block>> = BTreeMap::new();
    let whole = |block: &&Block| {
        let measured = |before| block.handoffs.get(&before).map_or(0, Vec::len);
        measured(Before::Nothing) > 0 && measured(Before::Flood) > 0 && measured(Before::Spin) > 1
    };
    for block in blocks.iter().filter(whole) {
        by_condition.entry(block.condition).or_default().push(block);
    }
    let ns = |ticks: f64| ticks * 1e9 / counter_hz as f64;
    let row = |(condition, blocks): (&Condition, &Vec<&Block>)| {
        let controls = |block: &Block| halves(&block.handoffs[&Before::Spin]);
        let gate = |block: &&Block| {
            let [deciding, _] = controls(block);
            Gate { canaries_lost: None, steal: 0.0, control: typical(&deciding, Handoff::cost) }
        };
        let counts = accepted(&blocks.iter().map(gate).collect::<Vec<_>>());
        let kept: Vec<&Block> =
            blocks.iter().zip(counts).filter(|(_, counts)| *counts).map(|(block, _)| *block).collect();
        let cost = |before: Before| {
            let handoffs: Vec<Handoff> =
                kept.iter().flat_map(|block| block.handoffs[&before].iter().copied()).collect();
            let costs: Vec<u64> = handoffs.iter().map(|handoff| ns(handoff.cost() as f64).round() as u64).collect();
            Some(Cost {
                interrupt_ns: ns(typical(&handoffs, |handoff| handoff.interrupt.0)),
                resume_ns: ns(typical(&handoffs, |handoff| handoff.resume.0)),
                cost_ns: ns(typical(&handoffs, Handoff::cost)),
                cost_ns_max: HighWaterMark::of(&costs)?,
            })
        };
        let effect = |of: fn(Handoff) -> u64| {
            let difference = |block: &&Block| {
                let [_, compared] = controls(block);
                ns(typical(&block.handoffs[&Before::Flood], of) - typical(&compared, of))
            };
            Effect::of(&kept.iter().map(difference).collect::<Vec<_>>())
        };
        let both = effect(Handoff::cost)?;
        Some(Row {
            condition: *condition,
            best: cost(Before::Nothing)?,
            control: cost(Before::Spin)?,
            flooded: cost(Before::Flood)?,
            cache_interrupt_ns: effect(|handoff| handoff.interrupt.0)?.estimate,
            cache_resume_ns: effect(|handoff| handoff.resume.0)?.estimate,
            cache_ns: both.estimate,
            cache_interval_ns: both.interval,
            p: Some(both.p),
            blocks: blocks.len() as u64,
            blocks_quiet: both.n,
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

    /// Whether a flood costs significantly more time than spinning.
    pub fn has_cache_part(&self) -> bool {
        self.cache_ns > 0.0 && self.p.is_some_and(|p| p <= SIGNIFICANT)
    }
}

impl Switches {
    /// The partitioned row that belongs to `row`.
    pub fn partitioned(&self, row: &Row) -> Option<&Row> {
        let wanted = Condition { partitioned: true, ..row.condition };
        self.rows.iter().find(|row| row.condition == wanted)
    }

    /// Whether enough blocks of every condition were accepted, and a flood of all colors costs time in each.
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
                for block in 0..12 {
                    let noise = if block % 3 == 2 { 5_000 } else { block };
                    let share = if partitioned { 1 } else { 2 };
                    let handoffs = |add: [u64; 2]| {
                        let [interrupt, resume] = [there + add[0] + noise, back + add[1] + noise].map(Cycles);
                        vec![Handoff { interrupt, resume }; 4]
                    };
                    blocks.push(Block {
                        condition: Condition { kind, means, partitioned },
                        handoffs: BTreeMap::from([
                            (Before::Nothing, handoffs([0, 0])),
                            (Before::Spin, handoffs([10, 10])),
                            (Before::Flood, handoffs([10 + 250 * share, 10 + 500 * share])),
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
        // Blocks 2, 5, 8 and 11 are disturbed.
        assert_eq!((row.blocks, row.blocks_quiet), (12, 8));
        assert_eq!((row.cache_interrupt_ns, row.cache_resume_ns, row.cache_ns), (500.0, 1000.0, 1500.0));
        assert_eq!(row.cache_interval_ns, Some([1500.0, 1500.0]));
        // Two of 2^8 assignments of signs, four conditions.
        assert_eq!(row.p, Some(4.0 * 2.0 / 256.0));
        assert_eq!(row.flooded.cost_ns - row.control.cost_ns, 1500.0);
        // The noise of an accepted block is that of its number, at most 10 on either way.
        assert!((1000.0..1020.0).contains(&row.best.cost_ns), "{}", row.best.cost_ns);
        assert_eq!((row.best.cost_ns_max.n, row.best.cost_ns_max.value), (32, 1020));
        assert_eq!(switches.partitioned(&row).unwrap().cache_ns, 750.0);
        assert!(row.has_cache_part() && switches.is_conclusive());
    }

    #[test]
    fn whether_a_block_counts_does_not_depend_on_what_is_compared() {
        let condition = Condition { kind: Kind::Switch, means: Means::Pipe, partitioned: false };
        let handoff = |cost| Handoff { interrupt: Cycles(cost), resume: Cycles(0) };
        // Of the two controls the second is compared with: it and the treatment may be as slow as they like.
        let block = |compared, flooded| Block {
            condition,
            handoffs: BTreeMap::from([
                (Before::Nothing, vec![handoff(100)]),
                (Before::Spin, vec![handoff(100), handoff(compared)]),
                (Before::Flood, vec![handoff(flooded)]),
            ]),
        };
        let row = conclude(&[block(100, 150), block(900, 150), block(100, 9000)], 1_000_000_000)[0];
        assert_eq!((row.blocks, row.blocks_quiet), (3, 3));
    }

    #[test]
    fn without_accepted_blocks_or_an_effect_nothing_is_concluded() {
        let mut few = modeled();
        few.rows[3].blocks_quiet = BLOCKS_MIN - 1;
        assert!(!few.is_conclusive());
        let mut without = modeled();
        without.rows[0].p = Some(0.06);
        assert!(!without.is_conclusive());
        assert!(!Switches { rows: Vec::new(), ..modeled() }.is_conclusive());
        let condition = Condition { kind: Kind::Switch, means: Means::Signal, partitioned: false };
        assert!(conclude(&[Block { condition, handoffs: BTreeMap::new() }], 1).is_empty());
    }

    #[test]
    fn rows_of_earlier_versions_are_read_and_say_nothing_of_significance() {
        let mut row = serde_json::to_value(modeled().rows[0]).unwrap();
        let fields = row.as_object_mut().unwrap();
        fields.remove("p");
        fields.remove("cache_interval_ns");
        fields.insert("blocks_longer".to_owned(), 1.0.into());
        let row: Row = serde_json::from_value(row).unwrap();
        assert!(row.p.is_none() && !row.has_cache_part());
    }
}
