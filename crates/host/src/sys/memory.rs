//! Private anonymous memory, owned page by page.

use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// A private anonymous mapping, unmapped on drop. Its pages are numbered from 0.
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
}

// SAFETY: the mapping is plain memory owned by this value alone; nothing about it is tied to the thread that made it.
unsafe impl Send for Arena {}

/// Bytes per page.
#[inline]
pub fn page_bytes() -> usize {
    static PAGE_BYTES: OnceLock<usize> = OnceLock::new();
    // SAFETY: sysconf reads a constant of the system.
    *PAGE_BYTES.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

impl Arena {
    /// Maps `pages` pages of zeros, without huge pages, not inherited by children.
    pub fn map(pages: usize) -> io::Result<Arena> {
        let page_bytes = page_bytes();
        let bytes = pages.checked_mul(page_bytes).filter(|b| *b > 0).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice disturbs no other memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let arena = Arena { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, bytes, page_bytes };
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTFORK] {
            // A kernel built without huge pages refuses the first; then there is nothing to avoid.
            // SAFETY: the range is this arena's own mapping.
            unsafe { libc::madvise(base, bytes, advice) };
        }
        Ok(arena)
    }

    /// Number of pages.
    pub fn page_count(&self) -> usize {
        self.bytes / self.page_bytes
    }

    /// Where the arena begins: a number to look things up by, not to be followed.
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Where the arena begins, for an allocator that hands out parts of it.
    pub(super) fn expose(&self) -> usize {
        self.base.as_ptr().expose_provenance()
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable, lives as long as the arena, holds initialized bytes (zeros where
        // nothing was written), and the exclusive borrow keeps every other access away.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// Gives the frame of `page` back to the system; the page reads as zeros afterwards.
    pub fn release(&self, page: u32) {
        // SAFETY: the page belongs to this arena, and the chain or zeros it held are used by nobody.
        unsafe { libc::madvise(self.page_ptr(page).cast(), self.page_bytes, libc::MADV_DONTNEED) };
    }

    /// First byte of page `page`.
    pub(super) fn page_ptr(&self, page: u32) -> *mut u8 {
        let offset = page as usize * self.page_bytes;
        assert!(offset < self.bytes, "page {page} lies outside an arena of {} pages", self.page_count());
        // SAFETY: the offset was just checked to lie inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range is this arena's own mapping, and nothing borrowed from it outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
