//! No text makes the reader of scenarios panic.
#![no_main]

use isochrome_model::sim::scenario::Scenario;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = Scenario::from_toml(text);
});
