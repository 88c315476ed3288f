//! Statistics of measured samples: every interval, test and estimate of isochrome, in one place.
//!
//! A high-water mark is an observation, not a bound. [`exceedance_at`] limits the probability that it is exceeded, and
//! [`compare_high_water_marks`] refuses to compare marks of unequal sample counts. An [`Effect`] is a paired difference per
//! block with its confidence interval; [`holm`] corrects the p-values of several effects that are judged together. [`accepted`]
//! selects the blocks that count, by values that the effect cannot influence. A [`Crossover`] compares two conditions of one running
//! program by the randomization of their order alone, and [`Looks`] let such an experiment stop as soon as its answer is known. [`concentration`] says
//! whether values are more alike than others of the same kind.

mod blocks;
mod concentration;
mod counts;
mod crossover;
mod effect;
mod line;
mod summary;

pub use blocks::{Gate, accepted, halves};
pub use concentration::concentration;
pub use counts::{chi_square_uniform, proportion_interval, sign_test};
pub use crossover::{Crossover, CrossoverBlock, Look, Looks};
pub use effect::{BLOCKS_MIN, Effect, SIGNIFICANT, blocks_needed, holm, visible_effect};
pub use line::{Line, Straightness};
pub(crate) use summary::nearest_rank;
pub use summary::{
    HighWaterMark, Sorted, UnequalSamples, compare_high_water_marks, exceedance_at, exceedance_with_unknown, median,
    quantile, quantile_interval,
};
