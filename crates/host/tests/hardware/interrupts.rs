//! Interrupts of this program.

use std::process::{Command, ExitCode};

use isochrome_host::interrupt;
use rustix::process::{Signal, getpid, kill_process};

/// Environment variable that makes this program interrupt itself instead of running tests.
pub const CHILD: &str = "ISOCHROME_TEST_INTERRUPT_TWICE";

pub fn interrupt_twice() -> ExitCode {
    interrupt::install().unwrap();
    assert!(!interrupt::interrupted());
    kill_process(getpid(), Signal::INT).unwrap();
    assert!(interrupt::interrupted());
    kill_process(getpid(), Signal::INT).unwrap();
    // Not reached, because the second interrupt ends the program.
    ExitCode::SUCCESS
}

pub fn the_second_interrupt_ends_the_program() {
    let child = Command::new(std::env::current_exe().unwrap()).env(CHILD, "1").status().unwrap();
    assert_eq!(child.code(), Some(130));
}
