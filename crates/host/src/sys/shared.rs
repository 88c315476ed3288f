//! Memory that several processes share: words that are read and written atomically.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Words of 64 bits in a memfd, a file that exists in memory only. The mapping is removed on drop.
pub struct SharedWords {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping is owned by this value, is tied to no thread, and is accessed through atomic words only.
unsafe impl Send for SharedWords {}
// SAFETY: as above: all access through a shared borrow is atomic.
unsafe impl Sync for SharedWords {}

/// Seals that keep the file from becoming shorter than its mappings. Otherwise a program that touches a page past the end of the file would be
/// killed.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl SharedWords {
    /// Creates `count` words of 0, and returns them with a descriptor that programs started from now on inherit.
    pub fn create(name: &str, count: usize) -> io::Result<(SharedWords, OwnedFd)> {
        // The descriptor is not closed on exec, because other programs inherit it.
        let file = memfd_create(name, MemfdFlags::ALLOW_SEALING)?;
        let bytes = count.checked_mul(size_of::<u64>()).ok_or(io::ErrorKind::InvalidInput)?;
        ftruncate(file.as_fd(), bytes as u64)?;
        fcntl_add_seals(file.as_fd(), SEALS)?;
        Ok((SharedWords::inherited(file.as_raw_fd())?, file))
    }

    /// Maps the words behind a descriptor that another process made by [`create`](Self::create). Fails for any other descriptor, and for
    /// a number that is not a descriptor.
    pub fn inherited(descriptor: RawFd) -> io::Result<SharedWords> {
        // SAFETY: fcntl with this request and fstat touch no memory but the structure, which is live, exclusively borrowed and made of
        // integers, so zeros are valid; a number that is not a descriptor is refused.
        let (seals, bytes) = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            let seals = libc::fcntl(descriptor, libc::F_GET_SEALS);
            if seals < 0 || libc::fstat(descriptor, &mut status) != 0 {
                return Err(io::Error::last_os_error());
            }
            (SealFlags::from_bits_retain(seals as u32), status.st_size as usize)
        };
        if !seals.contains(SealFlags::SHRINK) || bytes == 0 || !bytes.is_multiple_of(size_of::<u64>()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs no other memory. The seal keeps the file from becoming shorter,
        // so every page of the mapping stays valid.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, descriptor, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { base, count: bytes / size_of::<u64>() })
    }

    /// Returns the shared words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is readable and writable, holds `count` words, begins at a page, and lives as long as this value. Other processes
        // may write to it at any time, which atomic words allow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own mapping, and nothing borrowed from it outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}
