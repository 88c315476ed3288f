//! Whatever a program writes into the ring of marks that it shares with the observer, the observer reads on, and what it reads or counts as lost is bounded.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use isochrome_host::run::marks::{MarkReader, VARIABLE};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = MarkReader::new(16).expect("a ring can be made");
    let mut command = Command::new("true");
    reader.tell(&mut command);
    let number: i32 = command
        .get_envs()
        .find(|(name, _)| *name == VARIABLE)
        .and_then(|(_, value)| value?.to_str()?.parse().ok())
        .expect("the program is told");
    let ring = File::options().write(true).open(format!("/proc/self/fd/{number}")).expect("the ring is there");
    let mut marks = Vec::new();
    for part in bytes.chunks(320) {
        ring.write_all_at(part, 0).expect("the ring can be written");
        reader.read(&mut marks);
        assert!(marks.len() <= 16 * bytes.len().div_ceil(320));
    }
    reader.lost();
});
