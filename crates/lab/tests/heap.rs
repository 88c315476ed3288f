//! Tests of kernels whose heaps lie on chosen pages. This program declares the allocator that such heaps need.

use isochrome_host::color::eviction::WalkTicks;
use isochrome_host::color::pool::FramePool;
use isochrome_host::color::{ColorError, Target};
use isochrome_host::load::kernels::KernelKind;
use isochrome_host::sys::heap::HeapAllocator;
use isochrome_host::sys::memory::Arena;
use isochrome_lab::error::LabError;
use isochrome_lab::kernels::{Condition, Jobs, Work};
use isochrome_lab::runner::{Amount, Experiment, run};
use isochrome_lab::samples::{Arm, accept};
use isochrome_model::geometry::Geometry;
use isochrome_model::units::{Bytes, Color, CpuId};

#[global_allocator]
static ALLOCATOR: HeapAllocator = HeapAllocator;

/// Returns a pool with invented colors, which is enough to run experiments, but not for meaningful results.
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

/// Returns jobs with invented times of walks, because no processor need have a cache of this geometry.
fn jobs<'a>(pool: Option<&'a FramePool>, work: Work) -> Jobs<'a> {
    let ticks = WalkTicks { hit: 100.0, miss: 1000.0 };
    Jobs::with_walk_ticks(pool, target(), None, &[work], None, ticks).unwrap()
}

fn amount(blocks: usize, samples: usize) -> Amount {
    Amount { blocks, samples, seed: 1, cpu: CpuId(0), limit: None }
}

#[test]
fn every_kernel_runs_under_every_condition_and_computes_the_right_thing() {
    let pool = pool(4, 80);
    let free = pool.available();
    for work in [
        Work::Short(KernelKind::FilterF64, 64),
        Work::Short(KernelKind::FilterI32, 64),
        Work::Short(KernelKind::Dct, 64),
        Work::Short(KernelKind::Fft, 64),
        Work::Matmul { slice_us: 5 },
        Work::Combined { rate_hz: 50_000 },
    ] {
        // Each block checks the kernel's result against its definition.
        let mut jobs = jobs(Some(&pool), work);
        let mut last = (0, 0);
        let blocks = run(&mut jobs, &amount(2, 3), &mut |done, total| last = (done, total)).unwrap();
        assert_eq!(last, (8, 8), "{work:?}");
        // A round has two blocks of each condition, and there are up to four rounds.
        assert!([8, 16, 24, 32].contains(&blocks.len()), "{}", blocks.len());
        for accepted in accept(&blocks, &Jobs::JUDGED) {
            assert_eq!(accepted.run, blocks.len() as u64 / 4);
        }
        for block in &blocks {
            assert_eq!((block.rows(Arm::Treatment).len(), block.rows(Arm::Control).len()), (3, 3));
            assert!(block.samples.iter().all(|job| job.values[0] > 0.0 && job.values[1].is_nan()));
        }
        let experiments = jobs.conclude(&blocks);
        let own = |condition| !experiments[0].conditions[&condition].colors.is_empty();
        use Condition::{Alone, Partitioned, SingleWriter, Unpartitioned};
        assert_eq!([Alone, Unpartitioned, Partitioned, SingleWriter].map(own), [false, false, true, true]);
    }
    assert_eq!(pool.available(), free, "every page came back");
}

#[test]
fn without_colors_the_conditions_that_need_none_still_run() {
    let mut jobs = jobs(None, Work::Short(KernelKind::FilterF64, 64));
    let blocks = run(&mut jobs, &amount(2, 2), &mut |_, _| {}).unwrap();
    let experiments = jobs.conclude(&blocks);
    let ran: Vec<Condition> = experiments[0].conditions.keys().copied().collect();
    assert_eq!(ran, [Condition::Alone, Condition::Unpartitioned]);
}

#[test]
fn a_pool_too_small_for_the_floods_is_refused() {
    let pool = pool(4, 7);
    let mut jobs = jobs(Some(&pool), Work::Short(KernelKind::Dct, 64));
    let error = run(&mut jobs, &amount(1, 1), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, LabError::Color(ColorError::ColorExhausted { .. })), "{error}");
    assert!(error.to_string().contains("hint:"));
}
