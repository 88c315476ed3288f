//! The only unsafe code: mappings, timed access, the clock, system calls that no well-kept crate offers.
//!
//! Raw pointers stay inside. Outside, a page is an index into the [`memory::Arena`] that owns it.

pub mod access;
pub mod clock;
pub mod memory;
pub mod moving;
