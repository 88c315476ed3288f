//! Sources of scheduling events.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::sched::bpf::BpfEvents;
use isochrome_host::sched::open;
use isochrome_host::sched::perf::PerfRings;
use isochrome_host::sched::source::Source;
use isochrome_host::sched::tracefs::Tracefs;
use isochrome_host::sched::{EventKind, SchedEvent};
use isochrome_model::stats::median;
use isochrome_model::units::Ns;
use isochrome_model::watch::SwitchOut;

use crate::alternating::{alternate, spin};
use crate::thread::{allowed_cpus, on_a_thread};

/// Two threads pass a CPU to each other while all sources record. All sources must report the same events.
pub fn all_sources_report_the_same_switches_wake_ups_and_times() {
    const HANDOFFS: usize = 200;
    let cpu = allowed_cpus()[0];
    let mut sources: [Box<dyn Source>; 3] = [
        Box::new(BpfEvents::of_jobs(&[cpu], None).unwrap()),
        Box::new(Tracefs::open(&[cpu]).unwrap()),
        Box::new(PerfRings::open(&[cpu], &[]).unwrap()),
    ];
    let follow = |threads: [i32; 2]| sources.iter_mut().for_each(|source| source.follow(&threads, &[]).unwrap());
    let threads = alternate(cpu, HANDOFFS, follow, |_| spin(Ns(20_000)));
    let [by_bpf, by_tracefs, by_perf] = sources.map(|mut source| {
        let mut events = Vec::new();
        source.drain(&mut events).unwrap();
        assert_eq!(source.lost(), 0, "{}", source.name());
        events.sort_by_key(|event| event.at);
        events
    });
    let (expected, expected_at) = switches(&by_tracefs, threads);
    let (found, found_at) = switches(&by_bpf, threads);
    assert!(expected.len() >= HANDOFFS, "{}", expected.len());
    assert_eq!(found, expected);
    assert_eq!(switches(&by_perf, threads).0, expected);
    // The times that two sources report for a switch differ only because the kernel calls one source after the other.
    let apart: Vec<f64> = found_at.iter().zip(&expected_at).map(|(one, other)| one.abs_diff(*other) as f64).collect();
    assert!(median(&apart).unwrap() < 20_000.0, "{:?}", median(&apart));

    for thread in threads {
        let (expected, found) = (wake_ups_and_times(&by_tracefs, thread), wake_ups_and_times(&by_bpf, thread));
        assert!(expected.len() >= HANDOFFS, "{}", expected.len());
        assert!(agree_but_at_the_ends(&found, &expected), "{found:?} and {expected:?}");
    }
}

pub fn programs_in_the_kernel_see_starts_and_executed_programs_but_no_threads() {
    let mut source = open::of_processes().unwrap();
    let mut seen = |process: u32| source.since_last().unwrap().contains(&(process as i32));
    let mut command = Command::new("sh");
    let mut child = command.args(["-c", "read line; exec sleep 60"]).stdin(Stdio::piped()).spawn().unwrap();
    let shell = child.id();
    assert!(seen(shell));
    // The shell waits, so that nothing is seen of it until it executes another program.
    std::thread::sleep(Duration::from_millis(200));
    seen(shell);
    assert!(!seen(shell));
    drop(child.stdin.take());
    let begin = Instant::now();
    while !seen(shell) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the executed program is not seen");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let thread = std::thread::spawn(rustix::thread::gettid).join().unwrap();
    assert!(!seen(thread.as_raw_nonzero().get() as u32));
}

pub fn tracefs_goes_on_recording_one_cpu_when_another_is_turned_off() {
    const SLEEPS: usize = 20;
    let [first, second] = [0, 1].map(|at| allowed_cpus()[at]);
    let mut source = Tracefs::open(&[first, second]).unwrap();
    // Returns the number of recorded switches on each CPU while a thread sleeps again and again on each.
    let mut recorded = |on: bool| {
        source.enable(first, on).unwrap();
        source.drain(&mut Vec::new()).unwrap();
        for cpu in [first, second] {
            on_a_thread(move || {
                let _settings = RealtimeRequest::new().pin(cpu).apply();
                (0..SLEEPS).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
            });
        }
        let mut events = Vec::new();
        source.drain(&mut events).unwrap();
        let is_switch = |event: &&SchedEvent| matches!(event.kind, EventKind::Switch { .. });
        [first, second].map(|cpu| events.iter().filter(is_switch).filter(|event| event.cpu == cpu).count())
    };
    let [off, others] = recorded(false);
    assert!(off == 0 && others >= SLEEPS, "{off} and {others}");
    let both = recorded(true);
    assert!(both.iter().all(|switches| *switches >= SLEEPS), "{both:?}");
}

/// Returns the switches between two threads: from which thread, why, and to which; and their times in ns. The first switch to a thread and the last
/// switch away may lie outside the recording of a source, so only switches between the two are compared.
fn switches(events: &[SchedEvent], threads: [i32; 2]) -> (Vec<(i32, SwitchOut, i32)>, Vec<u64>) {
    let of = |event: &SchedEvent| match event.kind {
        EventKind::Switch { from, reason, to, .. } if threads.contains(&from) && threads.contains(&to) => {
            Some(((from, reason, to), event.at.0))
        }
        _ => None,
    };
    events.iter().filter_map(of).unzip()
}

/// Returns the wake-ups (`None`) of a thread, and the run times that the kernel accounted to it. Events of several threads cannot be compared in
/// order: where a thread is woken from another CPU, one source may report that before an event of the thread's own CPU, and another source after it.
fn wake_ups_and_times(events: &[SchedEvent], thread: i32) -> Vec<Option<Ns>> {
    let of = |event: &SchedEvent| match event.kind {
        EventKind::Wakeup { thread: woken } if woken == thread => Some(None),
        EventKind::Runtime { thread: ran, time } if ran == thread => Some(Some(time)),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// Returns whether two lists are the same without up to eight events at either end. The sources begin to follow the threads one after the other, and
/// are drained one after the other while the threads are still being taken down.
fn agree_but_at_the_ends(one: &[Option<Ns>], other: &[Option<Ns>]) -> bool {
    const ENDS: usize = 8;
    let is_prefix = |one: &[Option<Ns>], other: &[Option<Ns>]| {
        let common = one.len().min(other.len());
        one.len().abs_diff(other.len()) <= ENDS && one[..common] == other[..common]
    };
    (0..=ENDS).any(|skipped| is_prefix(&one[skipped..], other) || is_prefix(one, &other[skipped..]))
}
