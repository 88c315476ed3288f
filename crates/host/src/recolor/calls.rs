//! Arguments of system calls that a process is made to issue. A seccomp filter of the program may check these arguments.

/// Flags of clone(2): what a helper shares with the thread that makes it.
pub(super) const HELPER_FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM) as u64;

/// `MADV_DONTNEED_LOCKED`. [Linux, include/uapi/asm-generic/mman-common.h]
pub(super) const DROP_LOCKED: u64 = libc::MADV_DONTNEED_LOCKED as u64;

/// Flags with which a userfaultfd is opened inside the process.
pub(super) const USERFAULT_FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;

/// Flags with which the file of the pages of known color is opened inside the process.
pub(super) const REFERENCE_OPENED: u64 = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;

/// Flags with which the file of the pages of known color is mapped inside the process.
pub(super) const REFERENCE_MAPPED: u64 = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u64;
