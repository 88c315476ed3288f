//! Raw samples in blocks, the rule by which blocks are accepted, and statistics over the accepted blocks.

use std::collections::BTreeMap;

use isochrome_model::stats::{Effect, Gate, HighWaterMark, accepted, halves, holm, median};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Treatment of a sample, before or while the sample is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// No treatment: the best case.
    Reference,
    /// Spinning or waiting for as long as the treatment takes, without its effect.
    Control,
    /// The treatment whose effect is examined.
    Treatment,
    /// A stronger treatment: the worst case.
    Extreme,
}

/// One sample: a value for each of the experiment's columns, NaN if it was not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Treatment of the sample.
    pub arm: Arm,
    /// The measured values, one for each column.
    pub values: Vec<f64>,
}

/// Samples that were taken together, in the order in which they were taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Block<C> {
    /// The condition under which the block was measured.
    pub condition: C,
    /// Steal time on the measured CPU during the block, in ns.
    pub steal_ns: u64,
    /// Duration of the block, in ns.
    pub elapsed_ns: u64,
    /// The samples of all arms.
    pub samples: Vec<Sample>,
}

/// Computes a quantity from the values of a sample.
pub type Quantity = fn(&[f64]) -> f64;

/// Rule that decides whether a block is accepted.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// The quantity that must not be larger than usual in the deciding controls.
    pub cost: Quantity,
    /// The column with the share (0 to 1) of evicted canary lines; `None` if the experiment has no canaries. A block that lacks the value is not
    /// accepted.
    pub canary: Option<usize>,
}

/// Returns the median of a quantity over samples, without NaN values; 0 if no value is left.
pub fn typical(rows: &[&[f64]], of: impl Fn(&[f64]) -> f64) -> f64 {
    let values: Vec<f64> = rows.iter().map(|row| of(row)).filter(|value| !value.is_nan()).collect();
    median(&values).unwrap_or_default()
}

impl<C: Copy> Block<C> {
    /// Returns the values of every sample of one arm.
    pub fn rows(&self, arm: Arm) -> Vec<&[f64]> {
        self.samples.iter().filter(|sample| sample.arm == arm).map(|sample| &sample.values[..]).collect()
    }

    /// Splits the controls alternately into those that decide whether the block is accepted and those that the treatment is compared with. If
    /// there are fewer than two controls, the samples of the reference decide.
    fn controls(&self) -> [Vec<&[f64]>; 2] {
        match self.rows(Arm::Control) {
            single if single.len() < 2 => [self.rows(Arm::Reference), single],
            controls => halves(&controls),
        }
    }

    /// Returns the controls that the treatment is compared with.
    pub fn compared(&self) -> Vec<&[f64]> {
        let [_, compared] = self.controls();
        compared
    }

    /// Returns the median of a quantity over the samples of `arm`. For [`Arm::Control`] only the controls that the treatment is compared with
    /// count.
    pub fn median(&self, arm: Arm, of: impl Fn(&[f64]) -> f64) -> f64 {
        match arm {
            Arm::Control => typical(&self.compared(), of),
            _ => typical(&self.rows(arm), of),
        }
    }

    /// Returns by how much the median of a quantity is larger with the treatment than in the control.
    pub fn difference(&self, of: impl Fn(&[f64]) -> f64 + Copy) -> f64 {
        self.median(Arm::Treatment, of) - self.median(Arm::Control, of)
    }

    fn gate(&self, judged: &Judged) -> Gate {
        let [deciding, _] = self.controls();
        let lost = |column: usize| {
            let values: Vec<f64> = deciding.iter().map(|row| row[column]).collect();
            // If a canary was not measured, all canary lines count as lost.
            if values.iter().any(|value| value.is_nan()) { 1.0 } else { median(&values).unwrap_or(1.0) }
        };
        Gate {
            canaries_lost: judged.canary.map(lost),
            steal: self.steal_ns as f64 / self.elapsed_ns.max(1) as f64,
            control: typical(&deciding, judged.cost),
        }
    }
}

/// The accepted blocks of one condition.
#[derive(Clone, Debug)]
pub struct Accepted<'a, C> {
    /// The condition under which the blocks were measured.
    pub condition: C,
    /// Number of blocks that were run.
    pub run: u64,
    /// The accepted blocks, in the order in which they were run.
    pub blocks: Vec<&'a Block<C>>,
}

/// Returns the accepted blocks of each condition. Every experiment uses this rule; see [`accepted`].
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
    /// Returns the number of accepted blocks.
    pub fn n(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns a quantity of every sample of one arm. Samples in which it was not measured (NaN) are left out.
    pub fn values(&self, arm: Arm, of: impl Fn(&[f64]) -> f64) -> Vec<f64> {
        let rows = self.blocks.iter().flat_map(|block| block.rows(arm));
        rows.map(of).filter(|value| !value.is_nan()).collect()
    }

    /// Returns the median of [`Accepted::values`]; 0 without values.
    pub fn median(&self, arm: Arm, of: impl Fn(&[f64]) -> f64) -> f64 {
        median(&self.values(arm, of)).unwrap_or_default()
    }

    /// Returns the largest value of a quantity, rounded to a whole number, with the sample in which it last rose and the number of samples.
    /// `None` without values.
    pub fn longest(&self, arm: Arm, of: impl Fn(&[f64]) -> f64) -> Option<HighWaterMark> {
        let whole: Vec<u64> = self.values(arm, of).into_iter().map(|value| value.max(0.0).round() as u64).collect();
        HighWaterMark::of(&whole)
    }

    /// Returns the effect of the treatment on a quantity; `None` without blocks. Each block is compared with its own control.
    pub fn effect(&self, of: impl Fn(&[f64]) -> f64 + Copy) -> Option<Effect> {
        Effect::of(&self.blocks.iter().map(|block| block.difference(of)).collect::<Vec<_>>())
    }
}

/// Returns `rows` with their p-values corrected by Holm's method for multiple comparisons. Rows without a p-value stay as they are.
pub fn corrected<R>(mut rows: Vec<R>, p: fn(&mut R) -> &mut Option<f64>) -> Vec<R> {
    let mut p: Vec<&mut f64> = rows.iter_mut().filter_map(|row| p(row).as_mut()).collect();
    let judged = holm(&p.iter().map(|p| **p).collect::<Vec<_>>());
    p.iter_mut().zip(judged).for_each(|(p, judged)| **p = judged);
    rows
}

/// Formats every sample as a line of CSV: the number of its block, the condition, the block's steal time and elapsed time, the arm and the
/// values. A value that was not measured is an empty field.
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

/// Parses blocks from `text` that [`csv`] has written; `None` if `text` has another format.
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
