//! Colors of page frames: the samples that a palette is inferred from, the palettes of this boot, colored memory, and who holds which colors.
//!
//! Pages of one color can evict each other. An eviction test touches a page, traverses a set of other pages, and checks whether the page is
//! still cached. [`discover`] finds eviction sets, one group of pages per color, without knowing how many colors there are. Every further page
//! is classified by the group that evicts it. [`isochrome_model::palette::infer()`] derives the colors from these samples.

mod classify;
pub mod discover;
mod error;
pub mod eviction;
pub mod known;
mod learned;
pub mod ledger;
pub mod local;
#[cfg(test)]
mod modeled;
pub mod pagemap;
pub mod pool;
pub mod reference;
pub mod reserve;
pub mod resident;
pub mod saved;
pub mod source;
mod stock;
mod survey;
mod target;
pub mod tester;
pub mod verified;

pub(crate) use self::classify::PASSES;
pub use self::error::ColorError;
pub use self::survey::{Collection, Survey, Verification, VerifiedShares};
pub use self::target::Target;
