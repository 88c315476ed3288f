//! Errors between this process and the kernel that any task can meet: of files, memory, signals and CPUs.
//!
//! Every higher module has an error type of its own, which contains the errors of the lower modules that it uses. Messages contain the values
//! and, after `hint:`, a remedy. The command adds which of its options would help.

use std::io;
use std::path::PathBuf;

use isochrome_model::units::ParseError;

/// An error with a file, with memory, or with the kernel's permissions.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// A file could not be read.
    #[error("{path}: {source}\n  hint: {hint}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of reading the file.
        source: io::Error,
        /// Remedy for the user, shown after `hint:`.
        hint: &'static str,
    },
    /// A file of the kernel contains text that isochrome does not understand.
    #[error(
        "{path}: `{text}` is not {expected}\n  hint: this kernel writes the file in an unknown form; please report it with `uname -r`"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The text, shortened.
        text: String,
        /// Description of the expected text.
        expected: &'static str,
    },
    /// A file of the kernel does not contain a valid list.
    #[error("{path}: {source}")]
    List {
        /// The file.
        path: PathBuf,
        /// Defect of the list.
        source: ParseError,
    },
    /// A file or folder of isochrome could not be written.
    #[error("{path}: {source}\n  hint: run as root, or name a folder you may write to in ISOCHROME_RUNTIME_DIR")]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// Error of writing the file.
        source: io::Error,
    },
    /// A file or folder is not trusted, because somebody else may have written to it.
    #[error(
        "{path}: its contents are not trusted: {reason}\n  hint: remove it, or name a folder in ISOCHROME_RUNTIME_DIR into which nobody \
         else may write"
    )]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// Reason for the distrust.
        reason: String,
    },
    /// Memory could not be mapped.
    #[error("{pages} pages of memory: {source}\n  hint: lower the requested memory, or raise `ulimit -v`")]
    Memory {
        /// Number of pages requested.
        pages: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// Generated code cannot be executed.
    #[error(
        "memory cannot be made executable: {source}\n  hint: a security policy may forbid it, and code is made for x86-64 and aarch64 only"
    )]
    NoCode {
        /// The kernel's error.
        source: io::Error,
    },
    /// The CPUs on which this thread may run could not be determined.
    #[error(
        "the CPUs this process may run on: {source}\n  hint: run without the filter that blocks sched_getaffinity, such as one of seccomp"
    )]
    Affinity {
        /// The kernel's error.
        source: io::Error,
    },
    /// Signal handlers could not be installed.
    #[error(
        "installing the handler of signal {signal} failed: {source}\n  hint: run without the filter that blocks sigaction, such as one of seccomp"
    )]
    Signal {
        /// Signal number.
        signal: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// A signal has asked the program to finish.
    #[error("interrupted\n  hint: nothing was changed")]
    Interrupted,
}

/// Returns the message of `error` without its hint.
pub fn without_hint(error: &dyn std::error::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
