//! No bytes make the reader of this form panic or take memory without bound.
#![no_main]

use isochrome_model::trace::{Format, Reader};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = Reader::new(Format::Iso, "fuzz", bytes).for_each(|_| ());
});
