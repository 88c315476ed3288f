//! Mounts a file system of the kernel where no other process sees it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// A mount that no other process sees. It vanishes when the last open file on it is closed.
#[derive(Debug)]
pub(crate) struct Mount(OwnedFd);

impl Mount {
    /// Mounts a file system of type `kind`, such as `tracefs`. Needs CAP_SYS_ADMIN.
    pub fn new(kind: &str) -> io::Result<Mount> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        Ok(Mount(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?))
    }

    /// Returns the path of the file system's root, valid in this process only.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}
