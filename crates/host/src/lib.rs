//! isochrome on Linux.
