//! What fails between this process and the kernel, whatever the work: files, memory, signals, CPUs.
//!
//! Every room above has an error of its own, which contains those of the rooms below it that it uses. Messages carry the values and, behind
//! `hint:`, what to do; which option of the command would help, the command adds.

use std::io;
use std::path::PathBuf;

use isochrome_model::units::ParseError;

/// Trouble with a file, with memory, or with what the kernel permits.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// A file of the kernel could not be read.
    #[error("{path}: {source}\n  hint: {hint}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// A file of the kernel says something that isochrome does not understand.
    #[error(
        "{path}: `{text}` is not {expected}\n  hint: this kernel writes the file in an unknown form; please report it with `uname -r`"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it says, shortened.
        text: String,
        /// What it should say.
        expected: &'static str,
    },
    /// A list in a file of the kernel is not a list.
    #[error("{path}: {source}")]
    List {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ParseError,
    },
    /// A file of isochrome's own could not be written.
    #[error("{path}: {source}\n  hint: run as root, or name a folder you may write to in ISOCHROME_RUNTIME_DIR")]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is in a folder, or a file, may have been written by somebody else.
    #[error(
        "{path}: what it holds is not believed: {reason}\n  hint: remove it, or name a folder in ISOCHROME_RUNTIME_DIR into which nobody else may write"
    )]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// What speaks against it.
        reason: String,
    },
    /// Memory could not be had.
    #[error("{pages} pages of memory: {source}\n  hint: lower the memory asked for, or raise `ulimit -v`")]
    Memory {
        /// Pages asked for.
        pages: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// Code that was made cannot be executed.
    #[error(
        "memory cannot be made executable: {source}\n  hint: a security policy may forbid it, and code is made for x86-64 and aarch64 only"
    )]
    NoCode {
        /// What the kernel said.
        source: io::Error,
    },
    /// The CPUs this thread may run on could not be learned.
    #[error(
        "the CPUs this process may run on: {source}\n  hint: run outside of what blocks sched_getaffinity, such as a seccomp filter"
    )]
    Affinity {
        /// What the kernel said.
        source: io::Error,
    },
    /// Signal handlers could not be installed.
    #[error(
        "installing the handler of signal {signal} failed: {source}\n  hint: run outside of what blocks sigaction, such as a seccomp filter"
    )]
    Signal {
        /// Signal number.
        signal: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A signal asked to finish.
    #[error("interrupted\n  hint: nothing was changed")]
    Interrupted,
}

/// Returns the message of `error` without its hint.
pub fn without_hint(error: &dyn std::error::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
