//! The only unsafe code of the crate: what Rust cannot check about system calls and memory is argued here, block by block.
//!
//! No raw pointer leaves this module. Outside, a page is an index into the [`memory::Arena`] that owns it.

#![allow(unsafe_code)]

pub mod access;
pub mod agent;
pub mod bpf;
pub mod clock;
pub mod code;
pub mod heap;
pub mod launch;
pub mod lock;
pub mod mapping;
pub mod memory;
pub(crate) mod mount;
pub mod moving;
pub mod perf;
mod registers;
pub mod scan;
pub mod scheduling;
pub mod shared;
pub mod signal;
pub mod tap;
pub mod trace;
pub mod userfault;
