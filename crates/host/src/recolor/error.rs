//! Reasons why a process is not recolored.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use isochrome_model::units::Bytes;

use crate::color::ColorError;
use crate::process::ProcessError;

/// Reasons why a process was not recolored.
#[derive(Debug, thiserror::Error)]
pub enum RecolorError {
    /// The kernel provides no information about the process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The process is a thread of the kernel, which has no memory of its own.
    #[error(
        "process {pid} is a thread of the kernel, which has no memory of its own\n  hint: name a program, which has memory (RSS): `ps -e -o pid,rss,comm` shows it"
    )]
    KernelThread {
        /// The process.
        pid: i32,
    },
    /// The number given is that of a thread.
    #[error("{thread} is a thread of process {pid}\n  hint: name the process: {pid}")]
    NotAProcess {
        /// The number given.
        thread: i32,
        /// The process that the thread belongs to.
        pid: u64,
    },
    /// isochrome cannot stop itself.
    #[error("a process cannot recolor itself\n  hint: let a process of its own do it")]
    Itself,
    /// The process has begun another program since it was inspected, or mapped memory where there was none.
    #[error(
        "process {pid} has begun another program since it was inspected, or mapped memory where there was none\n  hint: try again"
    )]
    Changed {
        /// The process.
        pid: i32,
    },
    /// Another tracer is attached to the process.
    #[error("process {pid} is traced by process {by} already\n  hint: end that debugger or other isochrome first")]
    Traced {
        /// The process.
        pid: i32,
        /// The tracer.
        by: u64,
    },
    /// The process runs a program of another word size.
    #[error("process {pid} is a 32-bit program\n  hint: only programs of this machine's word size can be recolored")]
    WordSize {
        /// The process.
        pid: i32,
    },
    /// The process filters its system calls, and the filter cannot be read.
    #[error(
        "process {pid} filters its system calls (seccomp), and the filter cannot be read: {source}\n  hint: as root, outside of containers, or run the program without its sandbox"
    )]
    Seccomp {
        /// The process.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The process filters its system calls, and the filter forbids one that a recoloring needs.
    #[error(
        "thread {thread} of process {pid} may not make the system call `{call}`, which a recoloring needs, because of its filter \
         (seccomp)\n  hint: allow it, or run the program without its sandbox"
    )]
    CallForbidden {
        /// The process.
        pid: i32,
        /// The thread.
        thread: i32,
        /// Name of the system call that is forbidden.
        call: &'static str,
    },
    /// The kernel or a device may write to the memory of the process at any time, so pages cannot be moved safely.
    #[error(
        "process {pid} uses {sign}, through which its memory may be written at any time, and {why}\n  hint: force it only if no request is in flight"
    )]
    AsynchronousIo {
        /// The process.
        pid: i32,
        /// Name of the mechanism in use that allows such writes.
        sign: &'static str,
        /// Reason why the pages cannot be moved safely.
        why: String,
    },
    /// A signal requested the end of this program during the recoloring.
    #[error(
        "process {pid}: interrupted; moved pages keep their new frames, and nothing else is changed\n  hint: run it again for the rest"
    )]
    Interrupted {
        /// The process.
        pid: i32,
    },
    /// Another command has claimed the process, and this command gives way.
    #[error("process {pid} is being recolored by another isochrome\n  hint: try again when that has ended")]
    Claimed {
        /// The process.
        pid: i32,
    },
    /// Another process runs in the same memory.
    #[error(
        "processes {pid} and {other} share all their memory, as after vfork\n  hint: try again later; programs that stay so cannot be recolored"
    )]
    SharesMemory {
        /// The process.
        pid: i32,
        /// The process that shares the memory.
        other: i32,
    },
    /// A thread did not stop in time.
    #[error(
        "thread {thread} of process {pid} does not stop: it waits for a device or a child\n  hint: try again later"
    )]
    NotStopping {
        /// The process.
        pid: i32,
        /// The thread.
        thread: i32,
        /// How long the other threads stood still before they were released.
        stood: Duration,
    },
    /// The process has no unused executable memory for the few instructions that parked threads execute.
    #[error("process {pid} has no unused bytes of executable memory\n  hint: please report the program")]
    NoCave {
        /// The process.
        pid: i32,
    },
    /// ptrace failed.
    #[error("process {pid}: cannot {action} thread {thread}: {source}\n  hint: a repair undoes the changes")]
    Trace {
        /// The process.
        pid: i32,
        /// The thread.
        thread: i32,
        /// The operation that failed, as the message words it.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A system call on the process's behalf failed.
    #[error(
        "process {pid} cannot {action}: {source}\n  hint: its limits (`prlimit --pid {pid}`), vm.max_map_count or, with vm.overcommit_memory 2, CommitLimit in /proc/meminfo may be too low; nothing was moved"
    )]
    Refused {
        /// The process.
        pid: i32,
        /// What the system call was to do, as the message words it.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The memory of the process cannot be read or written.
    #[error("the memory of process {pid}: {source}\n  hint: a repair undoes the changes")]
    Memory {
        /// The process.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The journal cannot be kept.
    #[error("{path}: {source}\n  hint: the journal keeps the state to restore; its folder must be writable")]
    Journal {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// An earlier recoloring of the process was killed, and its changes have not been repaired.
    #[error("an earlier recoloring of process {pid} was cut short\n  hint: a repair undoes its changes")]
    Unrepaired {
        /// The process.
        pid: i32,
    },
    /// The colors of the pages of the process cannot be measured.
    #[error("process {pid}: the colors of its pages cannot be measured: {source}")]
    Unmeasured {
        /// The process.
        pid: i32,
        /// The reason.
        source: ColorError,
    },
    /// The list of colors is empty.
    #[error("no colors were given")]
    NoColors,
    /// The limit of memory is too small for any draw.
    #[error(
        "finding frames of these colors for {pages} pages takes about {needed} of memory; the limit is {limit}\n  hint: raise the limit, or \
         allow more colors"
    )]
    TooLittleMemory {
        /// Pages to move.
        pages: usize,
        /// Memory that holds enough frames if all colors are equally frequent.
        needed: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The memory touched held no frame of the allowed colors.
    #[error(
        "no frame of these colors for {pages} pages was found in {limit} of memory\n  hint: try again, or allow more colors"
    )]
    TooFewFrames {
        /// Pages to move.
        pages: usize,
        /// Size of the memory that was touched, which is the limit.
        limit: Bytes,
    },
}

impl RecolorError {
    /// Returns a function that turns an error of a measurement into a [`RecolorError`] about `pid`.
    pub(super) fn unmeasured<E: Into<ColorError>>(pid: i32) -> impl Fn(E) -> RecolorError {
        move |source| RecolorError::Unmeasured { pid, source: source.into() }
    }

    /// Whether the process does not exist, or has ended.
    pub fn is_gone(&self) -> bool {
        match self {
            RecolorError::Process(error) => error.is_gone(),
            // Of the memory of a process that has ended the kernel reads and writes 0 bytes.
            RecolorError::Memory { source, .. }
            | RecolorError::Unmeasured { source: ColorError::RemoteUnreadable { source }, .. } => {
                matches!(source.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero)
            }
            _ => false,
        }
    }

    /// Whether the same operation may succeed a moment later.
    pub fn may_pass(&self) -> bool {
        match self {
            RecolorError::NotStopping { .. } | RecolorError::SharesMemory { .. } | RecolorError::Changed { .. } => true,
            RecolorError::TooFewFrames { .. } => true,
            RecolorError::Unmeasured { source, .. } => source.may_pass(),
            _ => false,
        }
    }

    /// Whether no frames were found for the pages, or finding them takes more memory than may be touched.
    pub fn lacks_frames(&self) -> bool {
        matches!(self, RecolorError::TooFewFrames { .. } | RecolorError::TooLittleMemory { .. })
    }

    /// Whether the pages of known color may be unusable: the kernel may have given them frames of other colors, or another command may have
    /// replaced them and removed their file.
    pub fn doubts_reference(&self) -> bool {
        match self {
            // If pages of several known colors have the same color in fact, no frame is evicted by only one of these colors.
            RecolorError::TooFewFrames { .. } => true,
            RecolorError::Unmeasured { source, .. } => matches!(
                source,
                ColorError::ReferenceLost { .. }
                    | ColorError::ReferenceMixed { .. }
                    | ColorError::TimingBlurred { .. }
                    | ColorError::NotOpenedThere { .. }
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_memory_is_gone_has_ended() {
        let mut program = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // Once it has ended, its memory cannot be opened any more.
        let memory = std::fs::File::open(format!("/proc/{}/mem", program.id())).unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
        let source = std::os::unix::fs::FileExt::read_exact_at(&memory, &mut [0; 8], 4096).unwrap_err();
        assert!(RecolorError::Memory { pid: 1, source }.is_gone());
        let source = io::ErrorKind::PermissionDenied.into();
        assert!(!RecolorError::Memory { pid: 1, source }.is_gone());
    }

    /// If another command replaces the pages of known color and removes their file, the old file can never be opened again.
    #[test]
    fn a_reference_whose_file_is_gone_is_renewed() {
        let gone = ColorError::NotOpenedThere { path: "gone".into(), source: io::ErrorKind::NotFound.into() };
        assert!(RecolorError::unmeasured(1)(gone).doubts_reference());
        assert!(!RecolorError::NoColors.doubts_reference());
        // If all pages of known color have the same color in fact, no frames are found.
        assert!(RecolorError::TooFewFrames { pages: 1, limit: Bytes(1) }.doubts_reference());
    }
}
