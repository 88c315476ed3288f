//! No text makes the reader of policies panic, and what it reads can be given colors or is refused.
#![no_main]

use isochrome_model::policy::{assign, read};
use isochrome_model::units::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(policy) = read(text) {
        let _ = assign(&policy, 16, Bytes(64 << 10));
    }
});
