//! No text makes the readers of allocations and of plans panic, and a plan that is read can be written and drawn.
#![no_main]

use isochrome_model::plan::{Plan, color_map};
use isochrome_model::taskset::read::{Overrides, allocation, task_set};
use libfuzzer_sys::fuzz_target;

const SET: &str = r#"{"refill_ns_per_partition": 1, "partitions": 8, "memory_mib": 8, "cores": 2,
    "tasks": [{"name": "a", "period_ns": 9, "wcet_ns": 1}, {"name": "b", "period_ns": 9, "wcet_ns": [2, 1]}]}"#;

fuzz_target!(|text: &str| {
    let (set, _) = task_set(SET, Overrides::default()).expect("a set known to be good");
    let _ = allocation(text, &set);
    if let Ok(plan) = serde_json::from_str::<Plan>(text) {
        serde_json::to_string(&plan).expect("a plan can be written");
        color_map(&plan, 8);
    }
});
