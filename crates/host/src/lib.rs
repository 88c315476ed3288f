//! isochrome on Linux.

pub mod kernels;
