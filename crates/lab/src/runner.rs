//! The one runner: conditions and samples in random order, in rounds, until enough blocks are accepted.

use std::time::{Duration, Instant};

use isochrome_host::error::HostError;
use isochrome_host::interrupt;
use isochrome_host::machine::steal::CpuTicks;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_model::stats::{blocks_needed, visible_effect};
use isochrome_model::units::CpuId;
use serde::Serialize;

use crate::samples::{Arm, Block, Judged, Sample, accept};

/// Rounds of blocks at most.
const ROUNDS: usize = 4;
/// Accepted blocks of each condition that are enough, where as many were asked for.
const ENOUGH: u64 = 10;

/// An experiment: conditions, how a block of one is measured, and what decides whether it counts.
pub trait Experiment {
    /// What distinguishes blocks that are never mixed.
    type Condition: Copy + Ord + Serialize;

    /// What decides whether a block counts.
    const JUDGED: Judged;

    /// Names of a sample's values.
    fn columns(&self) -> Vec<String>;

    /// What is measured.
    fn conditions(&self) -> Vec<Self::Condition>;

    /// Prepares a block of `condition`, on other memory than others, warms it up and has it measured.
    fn block(&mut self, condition: Self::Condition, recorder: &mut Recorder<Self::Condition>) -> Result<(), HostError>;
}

/// How much to run, and where.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Blocks of each condition in a round.
    pub blocks: usize,
    /// Samples of each arm in a block.
    pub samples: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// CPU whose steal time is noted.
    pub cpu: CpuId,
    /// Time after which no further block begins, where there is a limit.
    pub limit: Option<Duration>,
}

impl Amount {
    /// Accepted blocks of each condition that are enough.
    pub fn enough(&self) -> u64 {
        ENOUGH.min(self.blocks as u64)
    }

    /// What can be seen with so many blocks of each of so many conditions, in a sentence.
    pub fn power(&self, conditions: usize) -> String {
        let needed = blocks_needed(conditions);
        let seen = match (self.blocks as u64) < needed {
            true => format!("{} cannot show a significant effect", self.blocks),
            false => format!(
                "{} show one of {:.1} times the spread of the blocks in 80 % of all cases",
                self.blocks,
                visible_effect(self.blocks as u64, conditions)
            ),
        };
        format!("{conditions} conditions: an effect can be significant from {needed} accepted blocks on; {seen}")
    }
}

/// Takes the samples of blocks.
pub struct Recorder<C> {
    /// For every random choice.
    pub rng: fastrand::Rng,
    samples: usize,
    sysfs: Sysfs,
    cpu: CpuId,
    blocks: Vec<Block<C>>,
}

impl<C> Recorder<C> {
    /// For blocks of `amount`.
    pub fn new(amount: &Amount) -> Recorder<C> {
        let rng = fastrand::Rng::with_seed(amount.seed);
        Recorder { rng, samples: amount.samples, sysfs: Sysfs::system(), cpu: amount.cpu, blocks: Vec::new() }
    }

    /// A block of `condition`: as many samples of each of `arms` as are asked for, in random order. A sample that fails ends it; one that gives
    /// `None` makes the block void.
    pub fn measure(
        &mut self,
        condition: C,
        arms: &[Arm],
        mut sample: impl FnMut(Arm) -> Result<Option<Vec<f64>>, HostError>,
    ) -> Result<(), HostError> {
        let mut order = arms.repeat(self.samples);
        self.rng.shuffle(&mut order);
        let (ticks, begin) = (CpuTicks::read(&self.sysfs, Some(self.cpu)), Instant::now());
        let mut samples = Vec::with_capacity(order.len());
        for arm in order {
            let Some(values) = sample(arm)? else { return Ok(()) };
            samples.push(Sample { arm, values });
        }
        let elapsed_ns = begin.elapsed().as_nanos() as u64;
        let after = CpuTicks::read(&self.sysfs, Some(self.cpu));
        let steal_ns = after.zip(ticks).map_or(0, |(after, before)| after.steal_since(before).0);
        self.blocks.push(Block { condition, steal_ns, elapsed_ns, samples });
        Ok(())
    }

    /// What was recorded.
    pub fn into_blocks(self) -> Vec<Block<C>> {
        self.blocks
    }
}

/// The blocks of `experiment`, in rounds until every condition has enough accepted ones, or there were four rounds. In a round the conditions
/// take turns, in another random order each time, so that all have equally many blocks whenever it ends. `progress` is called after each
/// block with the number done and of all; an interrupt, or the time limit, ends the run after the block under way.
pub fn run<E: Experiment>(
    experiment: &mut E,
    amount: &Amount,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Block<E::Condition>>, HostError> {
    let mut recorder = Recorder::new(amount);
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        let mut order = experiment.conditions().repeat(amount.blocks);
        let each = order.len() / amount.blocks.max(1);
        order.chunks_mut(each.max(1)).for_each(|conditions| recorder.rng.shuffle(conditions));
        let total = order.len();
        for (done, condition) in order.into_iter().enumerate() {
            if interrupt::interrupted() || amount.limit.is_some_and(|limit| begin.elapsed() > limit) {
                return Ok(recorder.blocks);
            }
            experiment.block(condition, &mut recorder)?;
            progress(done + 1, total);
        }
        let fewest = accept(&recorder.blocks, &E::JUDGED).iter().map(|accepted| accepted.n()).min();
        if fewest.unwrap_or(0) >= amount.enough() {
            break;
        }
    }
    Ok(recorder.blocks)
}
