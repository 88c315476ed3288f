//! The isochrome command.
fn main() {}
