//! A heap of one's own: code that allocates as it always does gets its memory from chosen pages.
//!
//! Some things can only be placed by placing what they allocate: the tables of a transform, for one, are made deep inside
//! a crate. [`HeapAllocator`] is the system allocator except inside [`Heap::enter`], where the thread's allocations come
//! from the heap's own memory. The heap is a mere pointer that advances: memory freed in it is not used again.
//!
//! The memory must outlive every allocation made in it, which the type system cannot see. So the heap counts them, and a
//! heap that is dropped while some live keeps its memory for good instead of giving it back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::memory::Arena;

/// Memory that can serve as a heap: it stays where it is until dropped, and nobody else touches it meanwhile. Only this crate
/// says of what that is true.
pub trait Ground: sealed::Sealed {
    /// The pages.
    fn ground(&self) -> &Arena;
}

pub(crate) mod sealed {
    /// Keeps [`Ground`](super::Ground) to this crate.
    pub trait Sealed {}
}

impl sealed::Sealed for Arena {}

impl Ground for Arena {
    fn ground(&self) -> &Arena {
        self
    }
}

/// Heaps that can exist at a time.
const SLOTS: usize = 32;

/// What the allocator knows of one heap.
struct Slot {
    taken: AtomicBool,
    begin: AtomicUsize,
    end: AtomicUsize,
    /// First free byte.
    next: AtomicUsize,
    /// Allocations not yet freed.
    live: AtomicUsize,
    /// Bytes that did not fit and came from the system.
    spilled: AtomicUsize,
}

static HEAPS: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        next: AtomicUsize::new(0),
        live: AtomicUsize::new(0),
        spilled: AtomicUsize::new(0),
    }
}; SLOTS];

/// Whether any heap exists: most programs never make one, and their frees should not search.
static ANY: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The heap this thread allocates from; `SLOTS` for none.
    static ENTERED: Cell<usize> = const { Cell::new(SLOTS) };
}

/// The system allocator, except inside [`Heap::enter`]. Declare it with `#[global_allocator]` in the program.
pub struct HeapAllocator;

// SAFETY: memory comes from the system allocator or from a heap's arena, in which `next` only advances while the heap
// exists, so no two allocations overlap; a heap's arena outlives its allocations because `Heap` keeps it while any is live.
// Neither path unwinds: the thread-local is a plain constant cell without destructor.
unsafe impl GlobalAlloc for HeapAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let entered = ENTERED.get();
        if let Some(slot) = HEAPS.get(entered) {
            let mut next = slot.next.load(Ordering::Relaxed);
            loop {
                let address = next.next_multiple_of(layout.align());
                let Some(end) = address.checked_add(layout.size()).filter(|e| *e <= slot.end.load(Ordering::Relaxed))
                else {
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
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if ANY.load(Ordering::Relaxed) > 0 {
            let address = pointer.addr();
            for slot in &HEAPS {
                if (slot.begin.load(Ordering::Acquire)..slot.end.load(Ordering::Acquire)).contains(&address) {
                    slot.live.fetch_sub(1, Ordering::Release);
                    return;
                }
            }
        }
        // SAFETY: the pointer lies in no heap, so it came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if ENTERED.get() == SLOTS {
            // SAFETY: the caller's promises about `layout` are passed on.
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
            // SAFETY: without heaps everything came from the system allocator; the caller's promises are passed on.
            return unsafe { System.realloc(pointer, layout, size) };
        }
        // SAFETY: the caller promises that `size` rounded up to the alignment does not overflow, that `pointer` was allocated
        // here with `layout`, and both blocks are at least as long as what is copied and do not overlap.
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

/// Memory that allocations can be made in.
pub struct Heap<G: Ground> {
    ground: Option<G>,
    slot: usize,
}

/// No more heaps can exist at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{SLOTS} heaps exist already")]
pub struct TooManyHeaps;

impl<G: Ground> Heap<G> {
    /// A heap in the pages of `ground`.
    pub fn new(ground: G) -> Result<Heap<G>, TooManyHeaps> {
        let slot = HEAPS.iter().position(|slot| !slot.taken.swap(true, Ordering::AcqRel)).ok_or(TooManyHeaps)?;
        let (begin, bytes) = {
            let arena = ground.ground();
            (arena.expose(), arena.page_count() * super::memory::page_bytes())
        };
        let known = &HEAPS[slot];
        known.next.store(begin, Ordering::Relaxed);
        known.live.store(0, Ordering::Relaxed);
        known.spilled.store(0, Ordering::Relaxed);
        known.begin.store(begin, Ordering::Release);
        known.end.store(begin + bytes, Ordering::Release);
        ANY.fetch_add(1, Ordering::Relaxed);
        Ok(Heap { ground: Some(ground), slot })
    }

    /// Runs `make` with this thread's allocations made in the heap; what does not fit comes from the system and is counted by
    /// [`spilled`](Self::spilled).
    ///
    /// Only when the program declares [`HeapAllocator`] as its global allocator; see [`used`](Self::used).
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

    /// Bytes allocated so far, freed ones included. Zero after an allocation: the program lacks the allocator.
    pub fn used(&self) -> usize {
        HEAPS[self.slot].next.load(Ordering::Relaxed) - HEAPS[self.slot].begin.load(Ordering::Relaxed)
    }

    /// Bytes that did not fit.
    pub fn spilled(&self) -> usize {
        HEAPS[self.slot].spilled.load(Ordering::Relaxed)
    }
}

impl<G: Ground> Drop for Heap<G> {
    fn drop(&mut self) {
        let slot = &HEAPS[self.slot];
        if slot.live.load(Ordering::Acquire) > 0 {
            // Something allocated here still lives: memory and slot stay as they are for the rest of the process.
            std::mem::forget(self.ground.take());
            return;
        }
        slot.end.store(0, Ordering::Release);
        slot.begin.store(0, Ordering::Release);
        ANY.fetch_sub(1, Ordering::Relaxed);
        slot.taken.store(false, Ordering::Release);
    }
}
