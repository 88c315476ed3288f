//! Heaps on chosen pages, in a program that declares the allocator; and experiments, whose tasks live in such heaps.

use isochrome_host::error::HostError;
use isochrome_host::experiment::{Amount, Bench, Work};
use isochrome_host::kernels::KernelKind;
use isochrome_host::palette::Target;
use isochrome_host::pool::FramePool;
use isochrome_host::sys::heap::{Heap, HeapAllocator};
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_host::sysfs::Sysfs;
use isochrome_model::evidence::Condition;
use isochrome_model::experiment::conclude;
use isochrome_model::geometry::Geometry;
use isochrome_model::units::{Bytes, Color, CpuId};

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

/// A pool whose colors are made up: enough to run experiments on, which then mean nothing.
fn pool(colors: u16, pages_per_color: usize) -> FramePool {
    let pages = usize::from(colors) * pages_per_color;
    let mut arena = Arena::map(pages).unwrap();
    arena.bytes_mut().fill(1);
    let page_colors: Vec<Option<Color>> = (0..pages).map(|i| Some(Color(i as u16 % colors))).collect();
    FramePool::new(arena, &page_colors, u32::from(colors))
}

fn target() -> Target {
    let geometry = Geometry::of_size(Bytes(64 << 10), 4, Bytes(64)).unwrap();
    Target { level: 2, geometry, inner: Bytes(16 << 10) }
}

#[test]
fn every_kernel_runs_under_every_condition_and_computes_the_right_thing() {
    let (pool, sysfs) = (pool(4, 80), Sysfs::system());
    let free = pool.available();
    let bench = Bench::new(&pool, target(), None, &sysfs);
    let amount = Amount { cpu: CpuId(0), blocks: 2, jobs: 3, colors: None, seed: 1 };
    for work in [
        Work::Short(KernelKind::FilterF64, 64),
        Work::Short(KernelKind::FilterI32, 64),
        Work::Short(KernelKind::Dct, 64),
        Work::Short(KernelKind::Fft, 64),
        Work::Matmul { slice_us: 5 },
        Work::Combined { rate_hz: 50_000 },
    ] {
        // Each block checks the kernel's result against its definition.
        let mut last = (0, 0);
        let measured = bench.run(work, &amount, |done, total| last = (done, total)).unwrap();
        assert_eq!(last, (8, 8), "{work}");
        for condition in [Condition::Alone, Condition::Unpartitioned, Condition::Partitioned, Condition::SingleWriter] {
            let blocks: Vec<_> = measured.blocks.iter().filter(|block| block.condition == condition).collect();
            assert_eq!(blocks.len(), 2);
            for block in blocks {
                assert_eq!((block.jobs.len(), block.control.len()), (3, 3));
                assert!(block.jobs.iter().all(|job| job.l2_misses.is_none()));
                let own = matches!(condition, Condition::Partitioned | Condition::SingleWriter);
                assert_eq!(block.colors.is_empty(), !own);
            }
        }
        assert!(conclude(&measured.blocks).len() == 4);
    }
    assert_eq!(pool.available(), free, "every page came back");
}

#[test]
fn a_pool_too_small_for_the_floods_is_refused() {
    let (pool, sysfs) = (pool(4, 7), Sysfs::system());
    let bench = Bench::new(&pool, target(), None, &sysfs);
    let amount = Amount { cpu: CpuId(0), blocks: 1, jobs: 1, colors: None, seed: 1 };
    let error = bench.run(Work::Short(KernelKind::Dct, 64), &amount, |_, _| {}).unwrap_err();
    assert!(matches!(error, HostError::ColorExhausted { .. }), "{error}");
    assert!(error.to_string().contains("hint:"));
}
