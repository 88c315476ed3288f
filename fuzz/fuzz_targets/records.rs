//! No bytes in the rings of the kernel, or in its description of its types, make their readers panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| isochrome_host::sched::fuzzing::read_records(bytes));
