//! Memory locks of other programs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::process::Pid;
use isochrome_host::recolor::lock;
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::units::Bytes;

/// Environment variable that makes this program lock its memory and wait instead of running tests.
pub const LOCKED_CHILD: &str = "ISOCHROME_TEST_LOCK_AND_WAIT";

pub fn lock_and_wait() -> ! {
    let _settings = RealtimeRequest::new().lock_memory().apply();
    // This memory is locked as it is touched.
    let _untouched = Arena::map(64).unwrap();
    println!("ready");
    loop {
        std::thread::park();
    }
}

pub fn touching_the_memory_of_a_program_leaves_its_own_locks() {
    let mut child =
        Command::new(std::env::current_exe().unwrap()).env(LOCKED_CHILD, "1").stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let pid = Pid(child.id() as i32);
    let seen = || (lock::untouched(&pid.regions().unwrap()), pid.status("VmLck").unwrap());
    let before = seen();
    let touched = lock::prefault(pid);
    let after = seen();
    child.kill().unwrap();
    child.wait().unwrap();
    touched.unwrap();
    assert!(before.0.0 >= 64 * page_bytes() as u64 && after.0 == Bytes(0), "{before:?} {after:?}");
    assert!(before.1 != "0 kB" && after.1 == before.1, "{before:?} {after:?}");
}
