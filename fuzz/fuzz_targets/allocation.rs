//! No text makes the reader of allocations panic.
#![no_main]

use isochrome_model::taskset::read::{Overrides, allocation, task_set};
use libfuzzer_sys::fuzz_target;

const SET: &str = r#"{"refill_ns_per_partition": 1, "partitions": 8, "memory_mib": 8, "cores": 2,
    "tasks": [{"name": "a", "period_ns": 9, "wcet_ns": 1}, {"name": "b", "period_ns": 9, "wcet_ns": [2, 1]}]}"#;

fuzz_target!(|text: &str| {
    let (set, _) = task_set(SET, Overrides::default()).expect("a set known to be good");
    let _ = allocation(text, &set);
});
