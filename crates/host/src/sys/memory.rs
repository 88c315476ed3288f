//! Memory owned page by page: private and anonymous, or that of a file.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Advice to make pages a huge page. The libc crate has it for some C libraries only. [Linux, include/uapi/asm-generic/mman-common.h]
const MADV_COLLAPSE: i32 = 25;

/// A mapping, unmapped on drop. Its pages are numbered from 0.
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
}

// SAFETY: the mapping is plain memory owned by this value alone; nothing about it is tied to the thread that made it.
unsafe impl Send for Arena {}

/// Returns the bytes per page.
#[inline]
pub fn page_bytes() -> usize {
    static PAGE_BYTES: OnceLock<usize> = OnceLock::new();
    // SAFETY: sysconf reads a constant of the system.
    *PAGE_BYTES.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

impl Arena {
    /// Maps `pages` pages of zeros, without huge pages and not inherited by children.
    pub fn map(pages: usize) -> io::Result<Arena> {
        let arena = Arena::reserve(pages, page_bytes())?;
        arena.advise(libc::MADV_NOHUGEPAGE);
        Ok(arena)
    }

    /// Maps `pages` pages of zeros, in huge pages of `huge_bytes` if the kernel has them, not inherited by children.
    ///
    /// Panics unless `huge_bytes` is a power of two and no smaller than a page.
    pub fn map_huge(pages: usize, huge_bytes: usize) -> io::Result<Arena> {
        assert!(huge_bytes.is_power_of_two() && huge_bytes >= page_bytes(), "no huge page has {huge_bytes} bytes");
        let arena = Arena::reserve(pages, huge_bytes)?;
        arena.advise(libc::MADV_HUGEPAGE);
        Ok(arena)
    }

    /// Maps the first `pages` pages of `file`, shared and not inherited by children. Other processes that map the file see the same frames. The
    /// arena begins at a multiple of `huge_bytes`, a power of two and no smaller than a page, so that pages can be [gathered](Self::gather).
    ///
    /// The file must have at least `pages` pages. Nobody may write to it or shorten it while the arena exists.
    pub fn map_file(file: BorrowedFd, pages: usize, huge_bytes: usize) -> io::Result<Arena> {
        Arena::map_file_as(file, pages, libc::MAP_SHARED, huge_bytes)
    }

    /// Collapses the first `pages` pages into huge pages of `huge_bytes`, one after the other, until the kernel refuses one (Linux 6.1,
    /// MADV_COLLAPSE). Returns the number of pages that were collapsed. Their contents do not change.
    pub fn gather(&self, pages: usize, huge_bytes: usize) -> usize {
        let step = huge_bytes / self.page_bytes;
        let make_huge = |first: &usize| {
            let base = self.page_ptr(*first as u32);
            // SAFETY: the page and the huge page that begins there belong to this arena; the word is written back as it was read, and the
            // advice changes no contents.
            unsafe {
                let word = base.cast::<u64>();
                word.write_volatile(word.read_volatile());
                libc::madvise(base.cast(), huge_bytes, MADV_COLLAPSE) == 0
            }
        };
        let whole = pages.min(self.page_count()) / step;
        (0..whole).map(|huge| huge * step).take_while(make_huge).count() * step
    }

    /// Maps the first `pages` pages of `file` for reading. Other processes that map the file see the same frames. Writing to a page makes a copy
    /// in another frame.
    ///
    /// The file must have at least `pages` pages, and nobody may shorten it while the arena exists.
    pub fn map_file_private(file: BorrowedFd, pages: usize) -> io::Result<Arena> {
        Arena::map_file_as(file, pages, libc::MAP_PRIVATE, page_bytes())
    }

    /// Removes the pages from the TLB. Their contents do not change.
    pub fn forget_translations(&self) {
        let all = libc::PROT_READ | libc::PROT_WRITE;
        for protection in [libc::PROT_READ, all] {
            // SAFETY: the range is this arena's own mapping, whole, and its contents stay. A thread that wrote to it in between would be
            // ended by a signal. If the call fails, the former protection stays.
            unsafe { libc::mprotect(self.base.as_ptr().cast(), self.bytes, protection) };
        }
    }

    fn map_file_as(file: BorrowedFd, pages: usize, sharing: libc::c_int, align: usize) -> io::Result<Arena> {
        let arena = Arena::reserve(pages, align)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, sharing | libc::MAP_FIXED);
        // SAFETY: the new mapping replaces the arena's own mapping as a whole, to which nothing refers yet.
        let base =
            unsafe { libc::mmap(arena.base.as_ptr().cast(), arena.bytes, protection, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if align == page_bytes() {
            arena.advise(libc::MADV_NOHUGEPAGE);
        }
        arena.advise(libc::MADV_DONTFORK);
        Ok(arena)
    }

    /// Maps `pages` fresh pages at a multiple of `align`, a power of two and no smaller than a page.
    fn reserve(pages: usize, align: usize) -> io::Result<Arena> {
        let page_bytes = page_bytes();
        let bytes = pages.checked_mul(page_bytes).filter(|b| *b > 0).ok_or(io::ErrorKind::InvalidInput)?;
        let slack = align - page_bytes;
        let mapped = bytes.checked_add(slack).ok_or(io::ErrorKind::InvalidInput)?;
        // Miri knows no more than private anonymous memory, and no advice about it.
        let reserve = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | reserve);
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice disturbs no other memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let head = base.addr().next_multiple_of(align) - base.addr();
        // SAFETY: the mapping begins at a page, so the next multiple of `align` is at most `slack` further, and `bytes` from
        // there on stay inside. Head and tail are parts of the fresh mapping that nothing refers to.
        let base = unsafe {
            let aligned = base.cast::<u8>().add(head);
            if head > 0 {
                libc::munmap(base, head);
            }
            if slack > head {
                libc::munmap(aligned.add(bytes).cast(), slack - head);
            }
            aligned
        };
        let arena = Arena { base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?, bytes, page_bytes };
        arena.advise(libc::MADV_DONTFORK);
        Ok(arena)
    }

    /// Gives the kernel `advice` about the whole arena. A kernel built without huge pages refuses advice about them; then there is
    /// nothing to avoid or to gain.
    fn advise(&self, advice: libc::c_int) {
        if cfg!(miri) {
            return;
        }
        // SAFETY: the range is this arena's own mapping, and none of the advice used here changes its contents.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }

    /// Returns the number of pages.
    pub fn page_count(&self) -> usize {
        self.bytes / self.page_bytes
    }

    /// Returns the address of the arena, as a key for look-ups and not as a pointer.
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Returns the address of the arena, for an allocator that hands out parts of it.
    pub(super) fn expose(&self) -> usize {
        self.base.as_ptr().expose_provenance()
    }

    /// Returns the whole arena as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable, lives as long as the arena, holds initialized bytes (zeros where
        // nothing was written), and the exclusive borrow keeps every other access away.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// Returns the frame of `page` to the system; the page reads as zeros afterwards.
    pub fn release(&self, page: u32) {
        // SAFETY: the page belongs to this arena, and the chain or zeros it held are not used any more.
        unsafe { libc::madvise(self.page_ptr(page).cast(), self.page_bytes, libc::MADV_DONTNEED) };
    }

    /// Returns a pointer to the first byte of `page`.
    pub(super) fn page_ptr(&self, page: u32) -> *mut u8 {
        let offset = page as usize * self.page_bytes;
        assert!(offset < self.bytes, "page {page} lies outside an arena of {} pages", self.page_count());
        // SAFETY: the offset was just checked to lie inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns a pointer to the first byte of the `count` pages from `first` on. Panics unless all of them lie inside.
    pub(super) fn pages_ptr(&self, first: u32, count: usize) -> *mut u8 {
        let pages = self.page_count();
        let inside = (first as usize).checked_add(count).is_some_and(|end| end <= pages);
        assert!(inside, "{count} pages from {first} on lie outside an arena of {pages} pages");
        self.page_ptr(first)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range is this arena's own mapping, and nothing borrowed from it outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
