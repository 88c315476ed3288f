//! Programs that are measured, and programs that disturb them: kernels with data of their own, a network stack, the flooder.

pub mod flooder;
pub mod kernels;
pub mod net;
