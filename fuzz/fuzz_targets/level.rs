//! No text makes the short forms of levels and workloads panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = text.parse::<isochrome_model::sim::Level>();
    let _ = text.parse::<isochrome_model::workload::Workload>();
});
