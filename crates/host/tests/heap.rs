//! Tests of heaps on chosen pages, in a program that declares the allocator.

use isochrome_host::sys::heap::{Heap, HeapAllocator};
use isochrome_host::sys::memory::{Arena, page_bytes};

#[global_allocator]
static ALLOCATOR: HeapAllocator = HeapAllocator;

fn heap(pages: usize) -> (Heap<Arena>, std::ops::Range<usize>) {
    let arena = Arena::map(pages).unwrap();
    let range = arena.address()..arena.address() + pages * page_bytes();
    (Heap::new(arena).unwrap(), range)
}

fn address<T>(slice: &[T]) -> usize {
    slice.as_ptr().addr()
}

#[test]
fn allocations_lie_in_the_heap_inside_and_elsewhere_outside() {
    let (heap, range) = heap(4);
    let inside = heap.enter(|| vec![7u64; 100]);
    let outside = vec![7u64; 100];
    assert!(range.contains(&address(&inside)));
    assert!(!range.contains(&address(&outside)));
    assert_eq!(inside, outside);
    assert!(heap.used() >= 800 && heap.spilled() == 0);
}

#[test]
fn a_vector_that_grows_outside_leaves_the_heap_with_its_contents() {
    let (heap, range) = heap(4);
    let mut vector = heap.enter(|| (0..50u32).collect::<Vec<u32>>());
    assert!(range.contains(&address(&vector)));
    vector.extend(50..5000);
    assert!(!range.contains(&address(&vector)));
    assert!(vector.iter().copied().eq(0..5000));
}

#[test]
fn zeroed_memory_of_a_heap_that_was_used_before_is_zero() {
    let (heap, range) = heap(1);
    let zeros = heap.enter(|| {
        drop(vec![0xffu8; 64]);
        vec![0u8; 1000]
    });
    assert!(range.contains(&address(&zeros)));
    assert!(zeros.iter().all(|byte| *byte == 0));
}

#[test]
fn what_does_not_fit_comes_from_the_system_and_is_counted() {
    let (heap, range) = heap(1);
    let large = heap.enter(|| vec![1u8; 2 * page_bytes()]);
    assert!(!range.contains(&address(&large)));
    assert_eq!(heap.spilled(), 2 * page_bytes());
}

#[test]
fn memory_outlives_a_heap_that_is_dropped_too_early() {
    let (heap, range) = heap(2);
    let survivor = heap.enter(|| vec![42u64; 200]);
    drop(heap);
    assert!(range.contains(&address(&survivor)));
    assert!(survivor.iter().all(|number| *number == 42));
}

#[test]
fn alignment_is_kept() {
    let (heap, range) = heap(4);
    #[repr(align(256))]
    struct Wide(#[expect(dead_code, reason = "only its place matters")] u8);
    heap.enter(|| {
        for _ in 0..5 {
            let (_narrow, wide) = (Box::new(1u8), Box::new(Wide(1)));
            let address = std::ptr::from_ref(&*wide).addr();
            assert!(address.is_multiple_of(256) && range.contains(&address));
            std::mem::forget(_narrow);
        }
    });
}

#[test]
fn threads_allocate_in_the_heap_they_entered_only() {
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (heap, range) = heap(4);
                for _ in 0..100 {
                    let bytes = heap.enter(|| vec![1u8; 100]);
                    assert!(range.contains(&address(&bytes)));
                }
            });
        }
    });
}

#[test]
fn heaps_come_and_go_while_other_threads_free() {
    std::thread::scope(|scope| {
        let threads = [0; 2].map(|_| {
            scope.spawn(|| {
                // The largest blocks are mappings of their own, which the kernel may put at addresses of former arenas.
                for size in [100, page_bytes(), 40 << 20].into_iter().cycle().take(30_000) {
                    let mut block = Vec::<u8>::with_capacity(size);
                    block.push(1);
                    drop(std::hint::black_box(block));
                }
            })
        });
        // If a free were counted in the wrong heap, that heap would keep its slot, and the few slots would run out.
        for round in 0.. {
            let (first, _) = heap(1 + round % 300);
            let (second, range) = heap(1 + round % 7);
            let kept = second.enter(|| Box::new(round));
            drop(first);
            assert!(range.contains(&std::ptr::from_ref(&*kept).addr()));
            assert_eq!(*kept, round);
            if threads.iter().all(|thread| thread.is_finished()) {
                break;
            }
        }
    });
}
