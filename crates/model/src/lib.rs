//! Models, analyses and plans of isochrome, and the conclusions from its measurements, independent of any operating system.
//!
//! `isochrome-host` collects samples, and this crate draws conclusions from them. It reads no files, no clock and no environment,
//! so every conclusion can be replayed from saved samples on any machine.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod costs;
pub mod evidence;
pub mod export;
pub mod flood;
pub mod geometry;
pub mod gf2;
pub mod layout;
pub mod machine;
pub mod miss_ratio;
pub mod names;
pub mod net;
pub mod palette;
pub mod papers;
pub mod placement;
pub mod plan;
pub mod policy;
pub mod printable;
pub mod profile;
pub mod replacement;
pub mod running;
pub mod seccomp;
pub mod sim;
pub mod stats;
pub mod supply;
pub mod taskset;
pub mod trace;
pub mod units;
pub mod watch;
pub mod workload;
