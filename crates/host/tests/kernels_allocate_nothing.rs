//! Tests that a job allocates nothing, so that the caller chooses the memory of a kernel when it constructs the kernel.
//!
//! This is a test program of its own, because counting replaces the global allocator.

use isochrome_host::load::kernels::{Kernel, KernelKind};

/// Size of a kernel's structs in addition to its arrays and tables, in bytes.
const STRUCT_BYTES: u64 = 1024;

fn for_each_kernel(mut claim: impl FnMut(KernelKind, usize)) {
    for kind in KernelKind::ALL {
        kind.sizes().sweep.iter().for_each(|&size| claim(kind, size));
    }
}

#[test]
fn a_job_allocates_nothing() {
    for_each_kernel(|kind, size| {
        let mut kernel = kind.build(size).unwrap();
        let jobs = allocation_counter::measure(|| (0..3).for_each(|_| kernel.job()));
        assert_eq!(jobs.count_total, 0, "{kind} {size}");
    });
}

#[test]
fn the_working_set_is_what_the_construction_keeps_allocated() {
    for_each_kernel(|kind, size| {
        let mut kernel: Option<Box<dyn Kernel>> = None;
        let construction = allocation_counter::measure(|| kernel = Some(kind.build(size).unwrap()));
        let (kept, claimed) = (construction.bytes_current as u64, kernel.unwrap().working_set().0);
        assert!(kept.abs_diff(claimed) <= STRUCT_BYTES, "{kind} {size}: {kept} bytes kept, {claimed} claimed");
    });
}
