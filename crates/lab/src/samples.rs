//! Raw samples: blocks of them, which blocks count, and what follows from those that do.

use std::collections::BTreeMap;

use isochrome_model::stats::{Effect, Gate, HighWaterMark, accepted, halves, holm, median};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What precedes or accompanies a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// Nothing: the best case.
    Reference,
    /// As much time as the treatment takes, without it.
    Control,
    /// What is examined.
    Treatment,
    /// More than the treatment: the worst case.
    Extreme,
}

/// One sample: a value for each of the experiment's columns; NaN where it was not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What preceded it.
    pub arm: Arm,
    /// What was measured.
    pub values: Vec<f64>,
}

/// Samples that were taken together, in the order taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Block<C> {
    /// What distinguishes it from blocks of other conditions.
    pub condition: C,
    /// Time that the hypervisor took meanwhile, in ns.
    pub steal_ns: u64,
    /// Time that the block took, in ns.
    pub elapsed_ns: u64,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// A quantity of a sample, by its values.
pub type Quantity = fn(&[f64]) -> f64;

/// What decides whether a block counts.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// What must not be larger than usual in the controls that decide.
    pub cost: Quantity,
    /// The column that has the share of the canary lines that were gone. Where there is one, a block without it does not count.
    pub canary: Option<usize>,
}

/// The median of a quantity over samples; NaN values are left out, and of none it is 0.
pub fn typical(rows: &[&[f64]], of: impl Fn(&[f64]) -> f64) -> f64 {
    let values: Vec<f64> = rows.iter().map(|row| of(row)).filter(|value| !value.is_nan()).collect();
    median(&values).unwrap_or_default()
}

impl<C: Copy> Block<C> {
    /// The values of the samples of one arm.
    pub fn rows(&self, arm: Arm) -> Vec<&[f64]> {
        self.samples.iter().filter(|sample| sample.arm == arm).map(|sample| &sample.values[..]).collect()
    }

    /// The controls that decide whether the block counts, and those that the treatment is compared with: every other one. Where there is one
    /// control only, the reference decides.
    fn controls(&self) -> [Vec<&[f64]>; 2] {
        match self.rows(Arm::Control) {
            single if single.len() < 2 => [self.rows(Arm::Reference), single],
            controls => halves(&controls),
        }
    }

    /// The controls that the treatment is compared with.
    pub fn compared(&self) -> Vec<&[f64]> {
        let [_, compared] = self.controls();
        compared
    }

    /// The median of a quantity over the samples of `arm`; of the controls over those that the treatment is compared with.
    pub fn median(&self, arm: Arm, of: impl Fn(&[f64]) -> f64) -> f64 {
        match arm {
            Arm::Control => typical(&self.compared(), of),
            _ => typical(&self.rows(arm), of),
        }
    }

    /// By how much a quantity is larger with the treatment than in the control.
    pub fn difference(&self, of: impl Fn(&[f64]) -> f64 + Copy) -> f64 {
        self.median(Arm::Treatment, of) - self.median(Arm::Control, of)
    }

    fn gate(&self, judged: &Judged) -> Gate {
        let [deciding, _] = self.controls();
        let lost = |column: usize| {
            let values: Vec<f64> = deciding.iter().map(|row| row[column]).collect();
            // What was not measured may have been lost.
            if values.iter().any(|value| value.is_nan()) { 1.0 } else { median(&values).unwrap_or(1.0) }
        };
        Gate {
            canaries_lost: judged.canary.map(lost),
            steal: self.steal_ns as f64 / self.elapsed_ns.max(1) as f64,
            control: typical(&deciding, judged.cost),
        }
    }
}

/// The blocks of one condition that count.
#[derive(Clone, Debug)]
pub struct Accepted<'a, C> {
    /// The condition.
    pub condition: C,
    /// How many were run.
    pub run: u64,
    /// Those that count, in the order run.
    pub blocks: Vec<&'a Block<C>>,
}

/// The blocks that count, by condition: the one rule of all experiments, see [`accepted`].
pub fn accept<'a, C: Copy + Ord>(blocks: &'a [Block<C>], judged: &Judged) -> Vec<Accepted<'a, C>> {
    let mut by_condition: BTreeMap<C, Vec<&Block<C>>> = BTreeMap::new();
    for block in blocks {
        by_condition.entry(block.condition).or_default().push(block);
    }
    let accept = |(condition, all): (C, Vec<&'a Block<C>>)| {
        let counts = accepted(&all.iter().map(|block| block.gate(judged)).collect::<Vec<_>>());
        let run = all.len() as u64;
        Accepted { condition, run, blocks: all.into_iter().zip(counts).filter(|it| it.1).map(|it| it.0).collect() }
    };
    by_condition.into_iter().map(accept).collect()
}

impl<C: Copy> Accepted<'_, C> {
    /// How many count.
    pub fn n(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// A quantity of every sample of one arm, without those in which it was not measured.
    pub fn values(&self, arm: Arm, of: impl Fn(&[f64]) -> f64) -> Vec<f64> {
        let rows = self.blocks.iter().flat_map(|block| block.rows(arm));
        rows.map(of).filter(|value| !value.is_nan()).collect()
    }

    /// The median of [`Accepted::values`]; 0 of none.
    pub fn median(&self, arm: Arm, of: impl Fn(&[f64]) -> f64) -> f64 {
        median(&self.values(arm, of)).unwrap_or_default()
    }

    /// The longest of a quantity, rounded to whole numbers, when it was seen and in how many samples.
    pub fn longest(&self, arm: Arm, of: impl Fn(&[f64]) -> f64) -> Option<HighWaterMark> {
        let whole: Vec<u64> = self.values(arm, of).into_iter().map(|value| value.max(0.0).round() as u64).collect();
        HighWaterMark::of(&whole)
    }

    /// The effect of the treatment on a quantity: block by block, against the block's own control.
    pub fn effect(&self, of: impl Fn(&[f64]) -> f64 + Copy) -> Option<Effect> {
        Effect::of(&self.blocks.iter().map(|block| block.difference(of)).collect::<Vec<_>>())
    }
}

/// `rows` with the p-values of effects that are judged together corrected by Holm's method; rows without one stay as they are.
pub fn corrected<R>(mut rows: Vec<R>, p: fn(&mut R) -> &mut Option<f64>) -> Vec<R> {
    let mut p: Vec<&mut f64> = rows.iter_mut().filter_map(|row| p(row).as_mut()).collect();
    let judged = holm(&p.iter().map(|p| **p).collect::<Vec<_>>());
    p.iter_mut().zip(judged).for_each(|(p, judged)| **p = judged);
    rows
}

/// Every sample, one line each: the number of its block, the condition, what its block met, its arm and its values, empty where something was not
/// measured.
pub fn csv<C: Serialize>(blocks: &[Block<C>], columns: &[String]) -> String {
    let fields = |condition: &C| match serde_json::to_value(condition) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let names = blocks.first().map(|block| fields(&block.condition).keys().cloned().collect::<Vec<_>>());
    let head = [
        vec!["block".to_owned()],
        names.unwrap_or_default(),
        ["steal_ns", "elapsed_ns", "arm"].map(str::to_owned).to_vec(),
    ];
    let mut lines = vec![[&head.concat(), columns].concat().join(",")];
    for (number, block) in blocks.iter().enumerate() {
        let condition: Vec<String> = fields(&block.condition).values().map(text).collect();
        for sample in &block.samples {
            let arm = serde_json::to_value(sample.arm).as_ref().map(text).unwrap_or_default();
            let mut line = vec![number.to_string()];
            line.extend(condition.iter().cloned());
            line.extend([block.steal_ns.to_string(), block.elapsed_ns.to_string(), arm]);
            line.extend(sample.values.iter().map(|it| if it.is_nan() { String::new() } else { it.to_string() }));
            lines.push(line.join(","));
        }
    }
    lines.join("\n") + "\n"
}

/// The blocks in what [`csv`] has written; `None` where `text` is something else.
pub fn read<C: DeserializeOwned>(text: &str) -> Option<Vec<Block<C>>> {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next()?;
    let behind = head.iter().position(|name| *name == "steal_ns")?;
    let named = |field: &str| serde_json::from_str(field).unwrap_or_else(|_| Value::String(field.to_owned()));
    let mut blocks: Vec<Block<C>> = Vec::new();
    let mut last = None;
    for fields in lines {
        if last.replace(fields[0]) != Some(fields[0]) {
            let condition = (1..behind).map(|at| (head[at].to_owned(), named(fields[at]))).collect();
            blocks.push(Block {
                condition: serde_json::from_value(Value::Object(condition)).ok()?,
                steal_ns: fields[behind].parse().ok()?,
                elapsed_ns: fields[behind + 1].parse().ok()?,
                samples: Vec::new(),
            });
        }
        let arm = serde_json::from_value(named(fields[behind + 2])).ok()?;
        let values = fields[behind + 3..].iter().map(|field| field.parse().unwrap_or(f64::NAN)).collect();
        blocks.last_mut()?.samples.push(Sample { arm, values });
    }
    Some(blocks)
}
