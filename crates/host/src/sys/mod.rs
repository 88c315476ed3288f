//! The only unsafe code of the crate: what Rust cannot check about system calls and memory is argued here, block by block.
//! No raw pointer leaves this module.

pub mod perf;
pub mod scheduling;
pub mod userfault;
