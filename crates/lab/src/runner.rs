//! The runner of all experiments: it measures conditions and samples in random order, in rounds, until enough blocks are accepted.

use std::time::{Duration, Instant};

use isochrome_host::interrupt;
use isochrome_host::machine::steal::CpuTicks;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_model::stats::{blocks_needed, visible_effect};
use isochrome_model::units::CpuId;
use serde::Serialize;

use crate::error::LabError;
use crate::samples::{Arm, Block, Judged, Sample, accept};

/// Greatest number of rounds.
const ROUNDS: usize = 4;
/// Number of accepted blocks of each condition that suffice, unless fewer were requested.
const ENOUGH: u64 = 10;

/// An experiment: its conditions, the measurement of a block, and the rule by which blocks are accepted.
pub trait Experiment {
    /// The condition of a block. Samples of different conditions are never mixed.
    type Condition: Copy + Ord + Serialize;

    /// Rule that decides whether a block is accepted.
    const JUDGED: Judged;

    /// Returns the names of a sample's values, in order.
    fn columns(&self) -> Vec<String>;

    /// Returns the conditions to measure.
    fn conditions(&self) -> Vec<Self::Condition>;

    /// Prepares a block of `condition` on memory of its own, warms it up, and has `recorder` measure it.
    fn block(&mut self, condition: Self::Condition, recorder: &mut Recorder<Self::Condition>) -> Result<(), LabError>;
}

/// Amount of measurement, its seed, its CPU and its time limit.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Number of blocks of each condition in a round.
    pub blocks: usize,
    /// Number of samples of each arm in a block.
    pub samples: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// CPU whose steal time is recorded.
    pub cpu: CpuId,
    /// Time after which no further block begins; `None` for no limit.
    pub limit: Option<Duration>,
}

impl Amount {
    /// Returns the number of accepted blocks of each condition that suffice.
    pub fn enough(&self) -> u64 {
        ENOUGH.min(self.blocks as u64)
    }

    /// Returns a sentence on the statistical power: which effects can be significant with this many blocks of each of `conditions` conditions.
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

/// Takes samples and collects them in blocks.
pub struct Recorder<C> {
    /// Random numbers for every random choice.
    pub rng: fastrand::Rng,
    samples: usize,
    sysfs: Sysfs,
    cpu: CpuId,
    blocks: Vec<Block<C>>,
}

impl<C> Recorder<C> {
    /// Returns a recorder without blocks. `amount` gives the number of samples in a block, the seed and the CPU.
    pub fn new(amount: &Amount) -> Recorder<C> {
        let rng = fastrand::Rng::with_seed(amount.seed);
        Recorder { rng, samples: amount.samples, sysfs: Sysfs::system(), cpu: amount.cpu, blocks: Vec::new() }
    }

    /// Measures a block of `condition`: the requested number of samples of each of `arms`, in random order. If `sample` fails, so does this
    /// function; if it returns `None`, the block is discarded.
    pub fn measure(
        &mut self,
        condition: C,
        arms: &[Arm],
        mut sample: impl FnMut(Arm) -> Result<Option<Vec<f64>>, LabError>,
    ) -> Result<(), LabError> {
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

    /// Returns the recorded blocks.
    pub fn into_blocks(self) -> Vec<Block<C>> {
        self.blocks
    }
}

/// Runs `experiment` and returns its blocks. It runs rounds until every condition has enough accepted blocks, at most four. A round goes through
/// all conditions again and again, each time in another random order. So the numbers of blocks of two conditions never differ by more than one.
/// `progress` is called after each block with the number of blocks done in the round and the number of blocks in the round. An interrupt or the
/// time limit ends the run after the current block.
pub fn run<E: Experiment>(
    experiment: &mut E,
    amount: &Amount,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Block<E::Condition>>, LabError> {
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
