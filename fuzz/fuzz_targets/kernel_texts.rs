//! No text of /proc or /sys makes its reader panic: a kernel of another version may say what nobody has seen.
#![no_main]

use std::path::Path;

use isochrome_host::machine::sysfs::Processor;
use isochrome_host::partition::resctrl::Schemata;
use isochrome_host::process::{regions_of, status_of};
use isochrome_host::sys::trace::BlockedCall;
use isochrome_model::units::parse_list;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Some(regions) = regions_of(text) {
        for region in regions {
            region.kind();
            region.permissions();
        }
    }
    Processor::from_cpuinfo(text);
    status_of(text, "State");
    BlockedCall::parse(text);
    let _ = Schemata::parse(text, Path::new("schemata"));
    let _ = parse_list(text, 64);
});
