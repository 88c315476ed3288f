//! No text makes the readers of rt-app's files, and of the programs of task sets and plans, panic.
#![no_main]

use isochrome_model::taskset::{programs, rtapp};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = rtapp::import(text);
    let _ = programs::runnable(text);
    let _ = programs::programs(text);
    let _ = programs::declared(text);
});
