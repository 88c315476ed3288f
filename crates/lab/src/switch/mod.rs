//! Cost of passing a CPU from one task to another and back, and the cache's part of that cost: the experiment of [Sebek2002, §3.4].
//!
//! A preemption is two switches: the *interrupt*, from the task that has the CPU to the task that takes it, and the *resume*, back again when
//! the second task is done. In the best case everything the switches touch is in the cache; after a flood none of it is. The time of the best
//! case is the direct part of the cost; all time beyond it is the cache part. [Sebek2002, Table 1]

mod handoff;
mod section;

use isochrome_model::stats::{BLOCKS_MIN, HighWaterMark, SIGNIFICANT};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::{Accepted, Arm, Block, Judged, Quantity, accept, corrected};

pub use handoff::{Switching, conditions, pages_per_color};
pub use section::section;

/// Means by which one task lets the other continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// A word in memory, on which the other waits.
    Futex,
    /// A byte in a pipe.
    Pipe,
    /// A signal, for which the other waits.
    Signal,
    /// A timer of the other task, which expires while this task computes. Only for preemptions.
    Timer,
}

/// Whether the other task takes the CPU or is given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The other task has a higher priority. It takes the CPU as soon as it can run, and gives it back when it waits again.
    Preemption,
    /// Both tasks have the same priority. Each lets the other continue, and then waits until the other does the same.
    Switch,
}

/// Condition of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Whether the CPU is taken or given.
    pub kind: Kind,
    /// Means by which one task lets the other continue.
    pub means: Means,
    /// Whether floods avoid the colors of the tasks.
    pub partitioned: bool,
}

/// The two values of a sample, in ticks: from the last instant of the first task to the first instant of the other, and from the last instant of
/// the other to the first instant of the first task, which continues.
pub const COLUMNS: [&str; 2] = ["interrupt", "resume"];

/// Returns the ticks of both switches together.
fn cost(handoff: &[f64]) -> f64 {
    handoff[0] + handoff[1]
}

/// A block is not accepted if its handoffs after spinning are slow, as that shows a disturbance.
pub const JUDGED: Judged = Judged { cost, canary: None };

/// Times of handoffs of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Median time of the switch to the other task, in ns.
    pub interrupt_ns: f64,
    /// Median time of the switch back, in ns.
    pub resume_ns: f64,
    /// Median time of both switches together, in ns.
    pub cost_ns: f64,
    /// Longest time of both switches together, in ns. This is an observation, not a bound.
    pub cost_ns_max: HighWaterMark,
}

/// Result of one condition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// Condition of the measurement.
    #[serde(flatten)]
    pub condition: Condition,
    /// Handoffs in the best case: the direct part.
    pub best: Cost,
    /// Handoffs after spinning.
    pub control: Cost,
    /// Handoffs after a flood.
    pub flooded: Cost,
    /// Cache part of the interrupt, in ns: the [effect](isochrome_model::stats::Effect) of a flood compared with spinning, each block against
    /// its own control.
    pub cache_interrupt_ns: f64,
    /// Cache part of the resume, in ns, determined in the same way.
    pub cache_resume_ns: f64,
    /// Cache part of both switches together, in ns, determined in the same way.
    pub cache_ns: f64,
    /// 95 % confidence interval of the cache part of both switches, in ns; `None` for fewer than six blocks, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_interval_ns: Option<[f64; 2]>,
    /// Probability of a cache part at least as large without an effect, corrected for all conditions that were measured together. `None` in
    /// files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// Number of blocks run.
    pub blocks: u64,
    /// Number of accepted blocks.
    pub blocks_quiet: u64,
}

/// Result of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Switches {
    /// Cache level that is flooded.
    pub level: u8,
    /// Number of colors left to the tasks in partitioned conditions, and of the cache; absent if colors are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colors: Option<[u32; 2]>,
    /// Results of all conditions.
    pub rows: Vec<Row>,
}

/// Returns one row for each condition in `blocks`. Times in `blocks` are ticks of a counter of `counter_hz` Hz.
pub fn conclude(blocks: &[Block<Condition>], counter_hz: u64) -> Vec<Row> {
    let ns = |ticks: f64| ticks * 1e9 / counter_hz as f64;
    let (interrupt, resume): (Quantity, Quantity) = (|handoff| handoff[0], |handoff| handoff[1]);
    let row = |accepted: &Accepted<'_, Condition>| {
        let of_arm = |arm| {
            Some(Cost {
                interrupt_ns: ns(accepted.median(arm, interrupt)),
                resume_ns: ns(accepted.median(arm, resume)),
                cost_ns: ns(accepted.median(arm, cost)),
                cost_ns_max: accepted.longest(arm, |handoff| ns(cost(handoff)))?,
            })
        };
        let both = accepted.effect(|handoff| ns(cost(handoff)))?;
        Some(Row {
            condition: accepted.condition,
            best: of_arm(Arm::Reference)?,
            control: of_arm(Arm::Control)?,
            flooded: of_arm(Arm::Treatment)?,
            cache_interrupt_ns: ns(accepted.effect(interrupt)?.estimate),
            cache_resume_ns: ns(accepted.effect(resume)?.estimate),
            cache_ns: both.estimate,
            cache_interval_ns: both.interval,
            p: Some(both.p),
            blocks: accepted.run,
            blocks_quiet: both.n,
        })
    };
    corrected(accept(blocks, &JUDGED).iter().filter_map(row).collect(), |row| &mut row.p)
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
    /// Returns the row of the condition that is partitioned and otherwise equals that of `row`; `None` if it was not measured.
    pub fn partitioned(&self, row: &Row) -> Option<&Row> {
        let wanted = Condition { partitioned: true, ..row.condition };
        self.rows.iter().find(|row| row.condition == wanted)
    }

    /// Whether enough blocks of every condition were accepted, and a flood of all colors costs significant time in every unpartitioned one.
    pub fn is_conclusive(&self) -> bool {
        let open = || self.rows.iter().filter(|row| !row.condition.partitioned);
        open().next().is_some() && self.rows.iter().all(Row::is_conclusive) && open().all(Row::has_cache_part)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::samples::Sample;

    /// Returns a block in which each arm has the given handoffs, in ticks.
    fn block(condition: Condition, arms: [(Arm, Vec<[u64; 2]>); 3]) -> Block<Condition> {
        let sample = |(arm, handoff): (Arm, [u64; 2])| Sample { arm, values: handoff.map(|it| it as f64).to_vec() };
        let samples =
            arms.into_iter().flat_map(|(arm, all)| all.into_iter().map(move |it| (arm, it))).map(sample).collect();
        Block { condition, steal_ns: 0, elapsed_ns: 1, samples }
    }

    /// Returns results of a preemption of 400 + 600 ns and of a switch of 300 + 300 ns. A flood adds 500 + 1000 ns to either, half of that if it
    /// keeps to other colors, and spinning adds 10 + 10 ns. Every third block is disturbed.
    pub(crate) fn modeled() -> Switches {
        let mut blocks = Vec::new();
        for (kind, means, [there, back]) in
            [(Kind::Preemption, Means::Futex, [400, 600]), (Kind::Switch, Means::Pipe, [300, 300])]
        {
            for partitioned in [false, true] {
                for block in 0..12 {
                    let noise = if block % 3 == 2 { 5_000 } else { block };
                    let share = if partitioned { 1 } else { 2 };
                    let handoffs = |add: [u64; 2]| vec![[there + add[0] + noise, back + add[1] + noise]; 4];
                    let arms = [
                        (Arm::Reference, handoffs([0, 0])),
                        (Arm::Control, handoffs([10, 10])),
                        (Arm::Treatment, handoffs([10 + 250 * share, 10 + 500 * share])),
                    ];
                    blocks.push(super::tests::block(Condition { kind, means, partitioned }, arms));
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
        // The noise of an accepted block is its number, so at most 10 in each direction.
        assert!((1000.0..1020.0).contains(&row.best.cost_ns), "{}", row.best.cost_ns);
        assert_eq!((row.best.cost_ns_max.n, row.best.cost_ns_max.value), (32, 1020));
        assert_eq!(switches.partitioned(&row).unwrap().cache_ns, 750.0);
        assert!(row.has_cache_part() && switches.is_conclusive());
    }

    #[test]
    fn whether_a_block_counts_does_not_depend_on_what_is_compared() {
        let condition = Condition { kind: Kind::Switch, means: Means::Pipe, partitioned: false };
        // The treatment is compared with the second of the two controls. Neither of these decides whether the block is accepted.
        let block = |compared, flooded| {
            let controls = vec![[100, 0], [compared, 0]];
            let arms =
                [(Arm::Reference, vec![[100, 0]]), (Arm::Control, controls), (Arm::Treatment, vec![[flooded, 0]])];
            block(condition, arms)
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
        assert!(conclude(&[], 1).is_empty());
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
