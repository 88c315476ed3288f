//! Time slices of threads that share a CPU, and what is counted in them.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use isochrome_host::counters::Counters;
use isochrome_host::counters::events::PAGE_FAULTS;
use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::sched::bpf::BpfEvents;
use isochrome_host::sched::perf::PerfRings;
use isochrome_host::sched::slices::{Slices, proved_events};
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::units::{CpuId, Ns};
use isochrome_model::watch::{Entry, Slice, Watched};
use rustix::thread::gettid;

use crate::alternating::{alternate, spin};
use crate::thread::allowed_cpus;

/// Runs two threads that alternate on `cpu`, and returns the time slices that `slices` recorded of each. The first thread takes `per_slice` page
/// faults in each of 50 slices, and the second thread takes none. Page faults stand for cache misses, because the kernel counts page faults on
/// any machine.
fn faults_of_two(mut slices: Slices, cpu: CpuId, per_slice: usize) -> [Vec<Slice>; 2] {
    let mut entries = Vec::new();
    let fault = |thread: usize| {
        if thread == 0 {
            let mut arena = Arena::map(per_slice).unwrap();
            arena.bytes_mut().iter_mut().step_by(page_bytes()).for_each(|byte| *byte = 1);
        }
        spin(Ns(200_000));
    };
    let threads = alternate(cpu, 50, |_| {}, fault);
    slices.follow(threads);
    slices.drain(&mut entries).unwrap();
    let of = |thread: i32| {
        let slices = entries.iter().map(|entry| match entry {
            Entry::Slice(slice) => slice.clone(),
            other => panic!("{other:?}"),
        });
        slices.filter(|slice| slice.thread == thread).collect::<Vec<_>>()
    };
    threads.map(of)
}

fn faults(slices: &[Slice]) -> u64 {
    slices.iter().filter_map(|slice| Some(slice.counts?.accesses)).sum()
}

pub fn page_faults_of_two_threads_that_share_a_cpu_go_to_the_right_one() {
    let cpu = allowed_cpus()[0];
    let source = PerfRings::open(&Sysfs::system().online_cpus().unwrap(), &[PAGE_FAULTS; 4]).unwrap();
    page_faults_go_to_the_right_one(Slices::of(Box::new(source), &[cpu], false, true), cpu);
}

pub fn page_faults_are_those_of_the_right_thread_by_programs_in_the_kernel_too() {
    let cpu = allowed_cpus()[0];
    let source = BpfEvents::of_switches(&[cpu], &[PAGE_FAULTS; 4]).unwrap();
    page_faults_go_to_the_right_one(Slices::of(Box::new(source), &[cpu], false, true), cpu);
}

fn page_faults_go_to_the_right_one(mut slices: Slices, cpu: CpuId) {
    // The cost of a record is measured with the same counters, which continue afterwards.
    let cost = slices.record_cost().unwrap();
    assert!(cost.cpu == cpu && cost.pairs >= 10 && cost.ns_low <= cost.ns && cost.ns <= cost.ns_high, "{cost:?}");
    let [faulting, other] = faults_of_two(slices, cpu, 200);
    assert!(faulting.len() >= 50, "{faulting:?}");
    let counts: Vec<_> = faulting.iter().map(|slice| slice.counts.unwrap()).collect();
    assert!(
        counts.iter().all(|counts| counts.accesses == counts.misses && counts.misses == counts.cycles),
        "{counts:?}"
    );
    // 50 slices of 200 page faults each, and the page faults of starting the thread.
    assert!((10_000..10_300).contains(&faults(&faulting)), "{}", faults(&faulting));
    assert!(faults(&other) < 300, "{}", faults(&other));
}

/// One thread walks over lines that fit the second level, so that its accesses always hit. The other alternates between such lines and far too
/// many, so that half of its accesses miss. Each thread also counts its own accesses and misses, and the reported miss ratio must be within 0.03
/// of its own.
pub fn misses_of_two_threads_that_share_a_cpu_go_to_the_right_one() {
    let sysfs = Sysfs::system();
    let events = &proved_events(&sysfs.processor().unwrap(), 2).unwrap()[..2];
    let (machine, _) = sysfs.machine().unwrap();
    let level = machine.data_level(2).unwrap().geometry.value.cache_bytes();
    // Numbers of 64-byte lines. `few` lines fill a quarter to half of the second level, more than the first level holds; `many` lines are 32
    // MiB.
    let (few, many) = ((level.0 / 256).next_power_of_two() as usize, 1 << 19);
    let cpu = allowed_cpus()[0];
    let mut slices = Slices::open(&[cpu], false, events).unwrap();
    let walk = |missing: bool| {
        let _settings = RealtimeRequest::new().pin(cpu).apply();
        let [near, far] = [few, if missing { many } else { 0 }].map(|lines| vec![1u64; lines * 8]);
        let counters = Counters::open(events).unwrap();
        let (begin, before) = (Instant::now(), counters.read().unwrap());
        let (mut line, mut other) = (0, 0);
        while begin.elapsed().as_secs() < 2 {
            // Every line once, in an order that is hard to predict: a full period of a generator modulo a power of two.
            for _ in 0..few {
                line = (5 * line + black_box(near[8 * line]) as usize) % few;
                if missing {
                    other = (5 * other + black_box(far[8 * other]) as usize) % many;
                }
            }
        }
        let counted = counters.between(&before, &counters.read().unwrap()).unwrap();
        thread::sleep(Duration::from_millis(20));
        let [accesses, misses] = [0, 1].map(|position| counted.values()[position] as f64);
        (gettid().as_raw_nonzero().get(), misses / accesses)
    };
    let threads = thread::scope(|scope| {
        let threads = [false, true].map(|missing| scope.spawn(move || walk(missing)));
        threads.map(|thread| thread.join().unwrap())
    });
    slices.follow(threads.map(|(thread, _)| thread));
    let mut entries = Vec::new();
    slices.drain(&mut entries).unwrap();
    let mut watched = Watched::default();
    entries.iter().for_each(|entry| watched.note(entry));
    for (thread, own) in threads {
        let ratio = watched.tasks[&thread].miss_ratio().unwrap();
        assert!((ratio - own).abs() <= 0.03, "{ratio} instead of {own}");
    }
    // The first level serves some accesses of both threads.
    assert!(threads[0].1 <= 0.1 && (0.4..=0.7).contains(&threads[1].1), "{threads:?}");
}

pub fn polls_put_counts_down_to_whom_they_interrupt() {
    let cpu = allowed_cpus()[0];
    let slices = Slices::polled(&[cpu], false, &[PAGE_FAULTS; 4], Ns(100_000)).unwrap();
    let [faulting, other] = faults_of_two(slices, cpu, 200);
    // A poll just after a switch attributes counts to the wrong thread, and a host that takes the CPU away skips polls. Of the 10 000 page
    // faults, 9950 and more were attributed to the right thread, on an idle machine and beside busy loops.
    let (right, wrong) = (faults(&faulting), faults(&other));
    println!("{right} of 10000 faults put down right, {wrong} wrong");
    assert!(right > wrong && right >= 5000 && right + wrong <= 10_600, "{right} {wrong}");
}
