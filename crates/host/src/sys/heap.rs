//! A heap of one's own: code that allocates as it always does gets its memory from chosen pages.
//!
//! Some data can only be placed by placing everything that a piece of code allocates: the tables of a transform, for example, are allocated deep
//! inside a crate. [`HeapAllocator`] is the system allocator except inside [`Heap::enter`], where the thread's allocations come from the heap's
//! own memory. The heap is a pointer that only advances: memory freed in it is not used again.
//!
//! The memory must outlive every allocation made in it, which the type system cannot check. So the heap counts its allocations. A heap that is
//! dropped while some of them live keeps its memory for good.
//!
//! A pointer that is freed belongs to the heap in whose range it lies. Ranges change while other threads free memory, so each range is one
//! atomic word, which no reader sees half written. No reader sees a wrong range either:
//! * A pointer from a heap: the range was stored before the allocation and stays until no allocation of the heap lives. The free comes after the
//!   allocation, so it reads just that range.
//! * A pointer from the system: no arena is mapped at its address while it lives. If an arena was there earlier, its range was cleared before it
//!   was unmapped, and so before the system could allocate the address. The free therefore reads the cleared word or a later one. If an arena is
//!   there later, it is mapped after the free, and its range is stored later still.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::memory::{Arena, page_bytes};

/// Memory that can back a heap. It does not move until it is dropped, and nothing else touches it until then.
///
/// The trait is sealed, because this crate relies on these properties.
pub trait BackingMemory: sealed::Sealed {
    /// Returns the pages of the memory.
    fn arena(&self) -> &Arena;
}

pub(crate) mod sealed {
    /// Restricts [`BackingMemory`](super::BackingMemory) to this crate.
    pub trait Sealed {}
}

impl sealed::Sealed for Arena {}

impl BackingMemory for Arena {
    fn arena(&self) -> &Arena {
        self
    }
}

/// Maximum number of heaps that can exist at a time.
const SLOTS: usize = 32;

/// State of one heap, as the allocator sees it.
struct Slot {
    taken: AtomicBool,
    /// Pages of the heap as a [`PageRange`].
    range: AtomicU64,
    /// Address of the first free byte.
    next: AtomicUsize,
    /// Number of allocations that are not yet freed.
    live: AtomicUsize,
    /// Number of bytes that did not fit and came from the system.
    spilled: AtomicUsize,
}

impl Slot {
    fn range(&self) -> PageRange {
        PageRange(self.range.load(Ordering::Acquire))
    }
}

/// The address range of a heap in one word: the number of its first page, and in the [`COUNT_BITS`] lowest bits its number of pages.
/// A word of zero means no heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageRange(u64);

/// Bits for the number of pages. With pages of 4 KiB this allows heaps up to 64 GiB at addresses below 2^52; Linux places mappings below 2^47
/// or 2^48 unless more is requested.
const COUNT_BITS: u32 = 24;

impl PageRange {
    /// Packs the range of `pages` pages from the address `begin` on. Panics when it does not fit.
    fn new(begin: usize, pages: usize) -> PageRange {
        assert!(begin.is_multiple_of(page_bytes()), "no page begins at {begin:#x}");
        let first = (begin / page_bytes()) as u64;
        assert!(pages < 1 << COUNT_BITS, "a heap of {pages} pages is too large");
        assert!(first < 1 << (u64::BITS - COUNT_BITS), "an arena at {begin:#x} lies too high");
        PageRange(first << COUNT_BITS | pages as u64)
    }

    fn begin(self) -> usize {
        (self.0 >> COUNT_BITS) as usize * page_bytes()
    }

    fn end(self) -> usize {
        self.begin() + (self.0 & ((1 << COUNT_BITS) - 1)) as usize * page_bytes()
    }

    fn contains(self, address: usize) -> bool {
        // Most slots are empty.
        self.0 != 0 && (self.begin()..self.end()).contains(&address)
    }
}

static HEAPS: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        range: AtomicU64::new(0),
        next: AtomicUsize::new(0),
        live: AtomicUsize::new(0),
        spilled: AtomicUsize::new(0),
    }
}; SLOTS];

/// Whether any heap exists. Most programs never make one, and their frees should not search.
static ANY: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Index of the heap that this thread allocates from; `SLOTS` if it is in none.
    static ENTERED: Cell<usize> = const { Cell::new(SLOTS) };
}

/// The system allocator, except inside [`Heap::enter`]. Declare it with `#[global_allocator]` in the program.
pub struct HeapAllocator;

// SAFETY: memory comes from the system allocator or from a heap's arena, in which `next` only advances while the heap
// exists, so no two allocations overlap; a heap's arena outlives its allocations because `Heap` keeps it while any is live,
// and each free is counted where its allocation was, as the head of this file argues.
// Neither path unwinds: the thread-local is a plain constant cell without destructor.
unsafe impl GlobalAlloc for HeapAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let entered = ENTERED.get();
        if let Some(slot) = HEAPS.get(entered) {
            // The range stays as long as the heap can be entered.
            let limit = slot.range().end();
            let mut next = slot.next.load(Ordering::Relaxed);
            loop {
                let address = next.next_multiple_of(layout.align());
                let Some(end) = address.checked_add(layout.size()).filter(|end| *end <= limit) else {
                    slot.spilled.fetch_add(layout.size(), Ordering::Relaxed);
                    break;
                };
                match slot.next.compare_exchange_weak(next, end, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        slot.live.fetch_add(1, Ordering::Relaxed);
                        return std::ptr::with_exposed_provenance_mut(address);
                    }
                    Err(seen) => next = seen,
                }
            }
        }
        // SAFETY: the caller's guarantees about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if ANY.load(Ordering::Relaxed) > 0 {
            let address = pointer.addr();
            for slot in &HEAPS {
                if slot.range().contains(address) {
                    slot.live.fetch_sub(1, Ordering::Release);
                    return;
                }
            }
        }
        // SAFETY: the pointer lies in no heap that existed since it was allocated (see the head of this file), so it came from
        // the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if ENTERED.get() == SLOTS {
            // SAFETY: the caller's guarantees about `layout` are passed on.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as above; what was allocated is `layout.size()` bytes long.
        unsafe {
            let pointer = self.alloc(layout);
            if !pointer.is_null() {
                pointer.write_bytes(0, layout.size());
            }
            pointer
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if ANY.load(Ordering::Relaxed) == 0 {
            // SAFETY: without heaps everything came from the system allocator; the caller's guarantees are passed on.
            return unsafe { System.realloc(pointer, layout, size) };
        }
        // SAFETY: the caller guarantees that `size` rounded up to the alignment does not overflow and that `pointer` was allocated here with
        // `layout`. Both blocks are at least as long as what is copied, and they do not overlap.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
            new
        }
    }
}

/// A heap in memory of its own, in which allocations can be made.
pub struct Heap<M: BackingMemory> {
    backing: Option<M>,
    slot: usize,
}

/// Why allocations could not be made in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    /// The maximum number of heaps exists already.
    #[error(
        "{SLOTS} heaps exist already\n  hint: memory that outlived its heap is kept for good; this is a bug, please report it"
    )]
    TooMany,
    /// Nothing is allocated in the heap.
    #[error(
        "a task's memory does not lie on the chosen pages\n  hint: the program must declare isochrome_host::sys::heap::HeapAllocator as its global allocator"
    )]
    NoAllocator,
    /// A task allocates more than its declared working set.
    #[error(
        "a task needs {} bytes, {spilled} more than it declares\n  hint: this is a bug in the kernel's working set, please report it with \
         the command line", used + spilled
    )]
    TooSmall {
        /// Bytes in the heap.
        used: usize,
        /// Bytes that did not fit.
        spilled: usize,
    },
}

impl<M: BackingMemory> Heap<M> {
    /// Makes a heap in the pages of `backing`. Panics if `backing` has 2^24 pages or more.
    pub fn new(backing: M) -> Result<Heap<M>, HeapError> {
        let range = PageRange::new(backing.arena().expose(), backing.arena().page_count());
        let slot = HEAPS.iter().position(|slot| !slot.taken.swap(true, Ordering::AcqRel)).ok_or(HeapError::TooMany)?;
        let known = &HEAPS[slot];
        known.next.store(range.begin(), Ordering::Relaxed);
        known.live.store(0, Ordering::Relaxed);
        known.spilled.store(0, Ordering::Relaxed);
        known.range.store(range.0, Ordering::Release);
        ANY.fetch_add(1, Ordering::Relaxed);
        Ok(Heap { backing: Some(backing), slot })
    }

    /// Runs `make` with this thread's allocations made in the heap. Allocations that do not fit come from the system, and
    /// [`spilled`](Self::spilled) counts them.
    ///
    /// This works only if the program declares [`HeapAllocator`] as its global allocator; [`used`](Self::used) shows whether it does.
    pub fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        struct Leave(usize);
        impl Drop for Leave {
            fn drop(&mut self) {
                ENTERED.set(self.0);
            }
        }
        let _leave = Leave(ENTERED.replace(self.slot));
        make()
    }

    /// Returns the bytes allocated so far, freed ones included. Zero after an allocation shows that the program lacks the allocator.
    pub fn used(&self) -> usize {
        HEAPS[self.slot].next.load(Ordering::Relaxed) - HEAPS[self.slot].range().begin()
    }

    /// Returns the bytes that did not fit into the heap and came from the system.
    pub fn spilled(&self) -> usize {
        HEAPS[self.slot].spilled.load(Ordering::Relaxed)
    }

    /// Fails if nothing was allocated in the heap, or if some allocations did not fit.
    pub fn check(&self) -> Result<(), HeapError> {
        match (self.used(), self.spilled()) {
            (0, _) => Err(HeapError::NoAllocator),
            (_, 0) => Ok(()),
            (used, spilled) => Err(HeapError::TooSmall { used, spilled }),
        }
    }
}

impl<M: BackingMemory> Drop for Heap<M> {
    fn drop(&mut self) {
        let slot = &HEAPS[self.slot];
        if slot.live.load(Ordering::Acquire) > 0 {
            // Something allocated here still lives: memory and slot stay as they are for the rest of the process.
            std::mem::forget(self.backing.take());
            return;
        }
        // The range is cleared before the memory is given back, which happens after this function.
        slot.range.store(0, Ordering::Release);
        ANY.fetch_sub(1, Ordering::Relaxed);
        slot.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_survives_packing() {
        let page = page_bytes();
        let first_page_limit = 1usize << (u64::BITS - COUNT_BITS);
        for (first, pages) in [(1, 1), (0x0007_ffff_ffff, 3), (first_page_limit - 1, (1 << COUNT_BITS) - 1)] {
            let range = PageRange::new(first * page, pages);
            assert_eq!((range.begin(), range.end()), (first * page, (first + pages) * page));
            assert!(range.contains(first * page) && range.contains((first + pages) * page - 1));
            assert!(!range.contains(first * page - 1) && !range.contains((first + pages) * page));
        }
    }

    #[test]
    fn no_range_holds_nothing() {
        assert!(!PageRange(0).contains(0) && !PageRange(0).contains(page_bytes()));
    }

    #[test]
    #[should_panic(expected = "too large")]
    fn a_heap_whose_size_does_not_fit_is_refused() {
        PageRange::new(page_bytes(), 1 << COUNT_BITS);
    }
}
