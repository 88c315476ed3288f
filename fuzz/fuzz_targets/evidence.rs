//! No text makes the reader of evidence panic, and what it reads can be reported in every form, with nothing of it taken for markup.
#![no_main]

use isochrome_model::evidence::Evidence;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(evidence) = Evidence::read(text) {
        assert!(!isochrome_report::html(&evidence).contains("<script"));
        isochrome_report::text::table(&evidence, 80);
        isochrome_report::markdown(&evidence);
    }
});
