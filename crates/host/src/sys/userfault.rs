//! Opens a userfaultfd, and finds out which of its features this kernel offers to this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Feature flag: `UFFDIO_MOVE` works. [Linux, include/uapi/linux/userfaultfd.h, UFFD_FEATURE_MOVE]
pub const FEATURE_MOVE: u64 = 1 << 16;

/// Flag for page faults of user mode only, which needs no privilege.
pub(crate) const USER_MODE_ONLY: libc::c_int = 1;
/// Version of the interface, and its ioctl type.
pub(crate) const API: u64 = 0xaa;

/// `struct uffdio_api`.
#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `UFFDIO_API`: `_IOWR(0xAA, 0x3F, struct uffdio_api)`, the same on x86 and Arm.
pub(crate) const UFFDIO_API: u32 = 3 << 30 | (size_of::<ApiRequest>() as u32) << 16 | 0xaa << 8 | 0x3f;

/// `UFFDIO_REGISTER`: `_IOWR(0xAA, 0, struct uffdio_register)`.
pub(crate) const UFFDIO_REGISTER: u64 = 0xc020_aa00;
/// `UFFDIO_MOVE`: `_IOWR(0xAA, 5, struct uffdio_move)`.
pub(crate) const UFFDIO_MOVE: u64 = 0xc028_aa05;
/// `UFFDIO_REGISTER_MODE_MISSING`: a thread that touches a missing page waits until the page is provided.
pub(crate) const REGISTER_MODE_MISSING: u64 = 1;

/// `USERFAULTFD_IOC_NEW`: `_IO(0xAA, 0)`.
const NEW: u32 = 0xaa << 8;

/// Returns the features of a userfaultfd that handles page faults of user mode only.
pub fn features_for_user_mode() -> io::Result<u64> {
    open_for_user_mode().map(|(_, features)| features)
}

/// Opens a userfaultfd for page faults of user mode only, which needs no privilege, and returns it with its features.
pub(super) fn open_for_user_mode() -> io::Result<(OwnedFd, u64)> {
    let descriptor = open(USER_MODE_ONLY)?;
    let features = features_of(&descriptor)?;
    Ok((descriptor, features))
}

/// Returns the features of a userfaultfd that handles all page faults: opened by the system call, else by /dev/userfaultfd (Linux 6.1 and
/// newer).
pub fn features_for_all_faults() -> io::Result<u64> {
    features_of(&open(0).or_else(|denied| open_by_device().map_err(|_| denied))?)
}

fn open(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: userfaultfd(2) takes a number and touches no memory.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, so it is open and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}

fn open_by_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd")?;
    // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and touches no memory.
    let descriptor = unsafe { libc::ioctl(device.as_raw_fd(), NEW as _, libc::O_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, so it is open and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn features_of(descriptor: &OwnedFd) -> io::Result<u64> {
    let mut request = ApiRequest { api: API, features: 0, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `struct uffdio_api` at the address given, which is a live, exclusively borrowed
    // structure of that layout whose fields are integers.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API as _, &raw mut request) };
    if result == 0 { Ok(request.features) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_number_is_the_kernels() {
        // <linux/userfaultfd.h>: _IOWR(0xAA, 0x3F, 24 bytes) = 0xc018aa3f.
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
    }
}
