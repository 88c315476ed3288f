//! Experiments. Each has its own folder with its measurement, its comparison and its conclusions.

pub mod compare;
pub mod conflicts;
pub mod crpd;
pub mod error;
mod evidence;
pub mod flood;
pub mod interference;
pub mod kernels;
pub mod miss_ratio;
pub mod packets;
pub mod runner;
pub mod samples;
pub mod switch;

pub use evidence::read_evidence;

/// Formats a time of `ns` in µs with two decimals.
fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}
