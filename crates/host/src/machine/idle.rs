//! Keeps idle CPUs out of deep idle states, because leaving one delays the next job by tens to hundreds of microseconds.
//!
//! The kernel keeps CPUs out of idle states that take longer to leave than the latency requested, for as long as
//! /dev/cpu_dma_latency stays open [Linux, Documentation/power/pm_qos_interface.rst]. So nothing has to be restored, even after SIGKILL.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

const PATH: &str = "dev/cpu_dma_latency";

/// An idle-state hold: keeps all CPUs out of deep idle states until it is dropped.
pub struct IdleHold {
    _held: Option<File>,
}

impl IdleHold {
    /// Starts the hold. The hold has no effect if this user may not write to the file below `root`.
    pub fn new(root: &Path) -> IdleHold {
        let file = OpenOptions::new().write(true).open(root.join(PATH));
        IdleHold { _held: file.ok().filter(|mut file| file.write_all(&0_i32.to_ne_bytes()).is_ok()) }
    }
}

/// Returns the latency limit that is in force now, formatted as the value of a setting.
pub fn latency(root: &Path) -> String {
    let mut value = [0; 4];
    match File::open(root.join(PATH)).and_then(|mut file| file.read_exact(&mut value)) {
        Ok(()) => format!("{} us", i32::from_ne_bytes(value)),
        Err(_) => "not offered to this user".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_latency_is_asked_for_and_a_kernel_without_the_file_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let _nothing = IdleHold::new(root.path());
        assert_eq!(latency(root.path()), "not offered to this user");
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join(PATH), 2000_i32.to_ne_bytes()).unwrap();
        assert_eq!(latency(root.path()), "2000 us");
        let _hold = IdleHold::new(root.path());
        assert_eq!(latency(root.path()), "0 us");
    }
}
