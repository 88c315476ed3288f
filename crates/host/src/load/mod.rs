//! What runs to be measured, and what disturbs it: kernels with data of their own, a network stack, the flooder.

pub mod flooder;
pub mod kernels;
pub mod net;
