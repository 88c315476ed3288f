//! Tests of what a machine must be able to do.
//!
//! Each test states its requirement. If the machine does not meet it, the test is reported as ignored with the reason, never as passed;
//! `HARDWARE_REQUIRED=1` makes that a failure. To add a test, write its body as a function and add a `hardware_test` to `main`.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use isochrome_host::color::known::{KnownColors, on_a_cpu};
use isochrome_host::color::ledger::{self, GrantRequest, Ledger, Owner, Sharing, Wanted};
use isochrome_host::color::pagemap;
use isochrome_host::color::pool::FramePool;
use isochrome_host::color::reference::{Numbers, Ready, Reference};
use isochrome_host::color::saved::Boot;
use isochrome_host::color::{ColorError, Survey, Target};
use isochrome_host::counters::events::{INSTRUCTIONS, PAGE_FAULTS, Quantity, event};
use isochrome_host::counters::{Counters, usable_slots};
use isochrome_host::error::without_hint;
use isochrome_host::interrupt;
use isochrome_host::load::net::stack::{BYTES_MAX, End, OrdinaryMemory, PORT, Stack, StackRequest, payload};
use isochrome_host::load::net::tap;
use isochrome_host::machine::setting::RealtimeRequest;
use isochrome_host::machine::sysfs::{Processor, Sysfs};
use isochrome_host::probe::{self, ProbeRequest, probe};
use isochrome_host::sched::bpf::BpfEvents;
use isochrome_host::sched::perf::PerfRings;
use isochrome_host::sched::slices::{Slices, proved_events};
use isochrome_host::sched::source::Source;
use isochrome_host::sched::tracefs::Tracefs;
use isochrome_host::sched::{EventKind, SchedEvent};
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_host::sys::tap::Tap;
use isochrome_model::costs::SAMPLES_MIN;
use isochrome_model::machine::{Holds, Machine};
use isochrome_model::miss_ratio::{self, INSTRUCTIONS_MAX, Visit, machine_code};
use isochrome_model::net::{Cost, Reservation};
use isochrome_model::palette::Method;
use isochrome_model::stats::median;
use isochrome_model::units::{Bytes, Color, CpuId, Ns};
use isochrome_model::watch::{Entry, Slice, Watched};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        return interrupt_twice();
    }
    let mut arguments = Arguments::from_args();
    // One at a time: tests that share caches and CPUs would disturb each other.
    arguments.test_threads.get_or_insert(1);
    let trials = vec![
        hardware_test(
            "a_group_is_read_with_all_its_counts",
            may_count_page_faults,
            a_group_is_read_with_all_its_counts,
        ),
        hardware_test("counters_count_a_known_loop_alike", has_counters, counters_count_a_known_loop_alike),
        hardware_test("second_level_misses_are_counted", counts_l2_misses, second_level_misses_are_counted),
        hardware_test("more_events_than_slots_are_refused", has_counters, more_events_than_slots_are_refused),
        hardware_test(
            "page_faults_of_two_threads_that_share_a_cpu_go_to_the_right_one",
            switches_are_recorded,
            page_faults_of_two_threads_that_share_a_cpu_go_to_the_right_one,
        ),
        hardware_test(
            "page_faults_are_those_of_the_right_thread_by_programs_in_the_kernel_too",
            runs_programs_in_the_kernel,
            page_faults_are_those_of_the_right_thread_by_programs_in_the_kernel_too,
        ),
        hardware_test(
            "all_sources_report_the_same_switches_wake_ups_and_times",
            runs_programs_in_the_kernel,
            all_sources_report_the_same_switches_wake_ups_and_times,
        ),
        hardware_test(
            "misses_of_two_threads_that_share_a_cpu_go_to_the_right_one",
            counts_miss_ratios,
            misses_of_two_threads_that_share_a_cpu_go_to_the_right_one,
        ),
        hardware_test(
            "polls_put_counts_down_to_whom_they_interrupt",
            switches_are_recorded,
            polls_put_counts_down_to_whom_they_interrupt,
        ),
        hardware_test(
            "the_machine_code_for_arm_visits_every_line_in_order_in_every_pass",
            has_qemu_for_arm,
            the_machine_code_for_arm_visits_every_line_in_order_in_every_pass,
        ),
        hardware_test("affinity_is_restored_after_drop", has_two_cpus, affinity_is_restored_after_drop),
        hardware_test("settings_are_restored_after_a_panic", has_two_cpus, settings_are_restored_after_a_panic),
        hardware_test("timer_slack_is_set_and_restored", || Ok(()), timer_slack_is_set_and_restored),
        hardware_test("an_impossible_setting_is_reported", || Ok(()), an_impossible_setting_is_reported),
        hardware_test("a_denied_policy_is_reported", || Ok(()), a_denied_policy_is_reported),
        hardware_test("the_policy_is_set_and_restored", fifo_is_permitted, the_policy_is_set_and_restored),
        hardware_test(
            "memory_is_locked_until_the_last_guard_goes",
            may_lock,
            memory_is_locked_until_the_last_guard_goes,
        ),
        hardware_test("the_second_interrupt_ends_the_program", || Ok(()), the_second_interrupt_ends_the_program),
        hardware_test(
            "loads_take_longer_the_further_out_they_are_answered",
            || Ok(()),
            loads_take_longer_the_further_out_they_are_answered,
        ),
        hardware_test(
            "a_probe_fills_facts_within_their_ranges_and_leaves_the_thread_where_it_was",
            || Ok(()),
            a_probe_fills_facts_within_their_ranges_and_leaves_the_thread_where_it_was,
        ),
        hardware_test(
            "packets_of_every_size_cross_the_tap_device_both_ways_unaltered",
            has_tap,
            packets_of_every_size_cross_the_tap_device_both_ways_unaltered,
        ),
        hardware_test(
            "a_tap_device_is_in_no_namespace_but_its_own_and_gone_when_it_is_closed",
            has_tap,
            a_tap_device_is_in_no_namespace_but_its_own_and_gone_when_it_is_closed,
        ),
        hardware_test("prefaulting_stops_before_the_stack_ends", || Ok(()), prefaulting_stops_before_the_stack_ends),
        hardware_test(
            "an_ordinary_users_colors_get_the_machines_numbers_and_programs_keep_theirs",
            has_colors,
            an_ordinary_users_colors_get_the_machines_numbers_and_programs_keep_theirs,
        ),
        hardware_test(
            "what_was_learned_under_numbers_that_another_command_has_replaced_is_forgotten",
            has_colors,
            what_was_learned_under_numbers_that_another_command_has_replaced_is_forgotten,
        ),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Makes a test of `body` that is ignored if `requirement` returns a reason why it cannot run here.
fn hardware_test(
    name: &str,
    requirement: impl FnOnce() -> Result<(), String> + Send + 'static,
    body: impl FnOnce() + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Err(reason) = requirement() {
            return match std::env::var_os("HARDWARE_REQUIRED") {
                Some(value) if value == "1" => Err(Failed::from(format!("HARDWARE_REQUIRED=1, but {reason}"))),
                _ => Ok(Completion::ignored_with(reason)),
            };
        }
        body();
        Ok(Completion::Completed)
    })
}

// Requirements.

fn has_counters() -> Result<(), String> {
    match usable_slots() {
        Ok(slots) if slots.usable > 0 => Ok(()),
        Ok(slots) => Err(slots.defect.map_or_else(|| "no counter runs".to_owned(), |defect| defect.to_string())),
        Err(error) => Err(without_hint(&error)),
    }
}

fn may_count_page_faults() -> Result<(), String> {
    Counters::open(&[PAGE_FAULTS]).map(|_| ()).map_err(|error| without_hint(&error))
}

fn counts_l2_misses() -> Result<(), String> {
    has_counters()?;
    let processor = Sysfs::system().processor().map_err(|error| without_hint(&error))?;
    l2_misses(&processor)
        .map(|_| ())
        .ok_or_else(|| format!("no event for second-level misses of {} is known", processor.name))
}

fn l2_misses(processor: &isochrome_host::machine::sysfs::Processor) -> Option<isochrome_host::counters::events::Event> {
    [Quantity::L2DataMisses, Quantity::L2Refills, Quantity::L2Misses].iter().find_map(|&q| event(processor, q))
}

fn has_two_cpus() -> Result<(), String> {
    match allowed_cpus().len() {
        0 | 1 => Err("only one CPU is allowed to this process".to_owned()),
        _ => Ok(()),
    }
}

fn has_colors() -> Result<(), String> {
    let (machine, _) = Sysfs::system().machine().map_err(|error| without_hint(&error))?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    numbered(&machine, folder.path(), None).map(drop).map_err(|error| without_hint(&error))
}

fn fifo_is_permitted() -> Result<(), String> {
    on_a_thread(|| Scheduling::fifo(1).apply()).map_err(|error| format!("SCHED_FIFO: {error}"))
}

fn has_tap() -> Result<(), String> {
    tap::open().map(|_| ()).map_err(|error| without_hint(&error))
}

fn has_qemu_for_arm() -> Result<(), String> {
    let found = std::process::Command::new("qemu-aarch64").arg("--version").output();
    found.map(|_| ()).map_err(|error| format!("qemu-aarch64: {error} (Debian package qemu-user)"))
}

fn may_lock() -> Result<(), String> {
    let settings = RealtimeRequest::new().lock_memory().apply();
    match settings.notes().first() {
        Some(note) => Err(format!("{}: {}", note.subject, note.reason)),
        None => Ok(()),
    }
}

fn runs_programs_in_the_kernel() -> Result<(), String> {
    BpfEvents::of_switches(&[CpuId(allowed_cpus()[0])], &[]).map(drop).map_err(|error| error.to_string())
}

fn switches_are_recorded() -> Result<(), String> {
    match Slices::open(&[CpuId(allowed_cpus()[0])], true, &[]) {
        Ok(_) => Ok(()),
        Err(error) => Err(without_hint(&error)),
    }
}

fn counts_miss_ratios() -> Result<(), String> {
    let processor = Sysfs::system().processor().map_err(|error| without_hint(&error))?;
    proved_events(&processor, 2).map_err(|error| without_hint(&error))?;
    switches_are_recorded()
}

// What they see.

/// Returns a field of the calling thread's status file.
fn status(field: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap_or_default().trim().to_owned()
}

fn allowed_cpus() -> Vec<u32> {
    isochrome_model::units::parse_list(&status("Cpus_allowed_list"), 1 << 16).unwrap()
}

fn timer_slack() -> String {
    std::fs::read_to_string("/proc/thread-self/timerslack_ns")
        .or_else(|_| std::fs::read_to_string(format!("/proc/{}/timerslack_ns", std::process::id())))
        .unwrap()
}

fn on_a_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(body).join().unwrap()
}

// Counters.

/// Page faults are counted without hardware, so this tests the reading itself wherever perf is permitted.
fn a_group_is_read_with_all_its_counts() {
    let counters = Counters::open(&[PAGE_FAULTS; 3]).unwrap();
    let before = counters.read().unwrap();
    let memory = std::hint::black_box(vec![1u8; 64 << 20]);
    let after = counters.read().unwrap();
    drop(memory);
    let counts = counters.between(&before, &after).unwrap();
    // 64 MiB are at least 32 huge pages.
    assert!(matches!(counts.values(), [a, b, c] if *a >= 32 && a == b && b == c), "{counts:?}");
}

fn counters_count_a_known_loop_alike() {
    let slots = usable_slots().unwrap();
    let counters = Counters::open(&vec![INSTRUCTIONS; slots.usable]).unwrap();
    let before = counters.read().unwrap();
    for round in 0..100_000 {
        std::hint::black_box(round);
    }
    let after = counters.read().unwrap();
    let counts = counters.between(&before, &after).unwrap();
    let (least, most) = (*counts.values().iter().min().unwrap(), *counts.values().iter().max().unwrap());
    assert!(least >= 100_000, "{counts:?}");
    assert!(most - least <= most / 20, "{counts:?}");
}

fn second_level_misses_are_counted() {
    let processor = Sysfs::system().processor().unwrap();
    // Opening proves it: a walk that must miss was counted.
    let counters = Counters::open(&[l2_misses(&processor).unwrap()]).unwrap();
    let before = counters.read().unwrap();
    let after = counters.read().unwrap();
    assert!(counters.between(&before, &after).unwrap().values()[0] < 10_000);
}

fn more_events_than_slots_are_refused() {
    let error = Counters::open(&[INSTRUCTIONS; 9]).unwrap_err();
    assert!(error.to_string().contains("hint:"), "{error}");
}

// Machine code.

/// Returns an executable file that calls the code at `entry` of `code` with `passes`, and exits with 42 plus what the code leaves of that
/// number.
fn arm_program(code: &[u8], entry: u32, passes: u32) -> Vec<u8> {
    // From the ELF specification: a header of 64 bytes, a program header of 56, then the caller; the code begins with the second page.
    const ADDRESS: u64 = 0x40_0000;
    const CALLER: u64 = 0x80;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    file.extend([2u16, 183].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([ADDRESS + CALLER, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    let size = (ARM_CODE - ADDRESS) + code.len() as u64;
    file.extend([1u32, 5].map(u32::to_le_bytes).concat());
    file.extend([0, ADDRESS, ADDRESS, size, size, 4096].map(u64::to_le_bytes).concat());
    file.resize(CALLER as usize, 0);
    let call_at = ADDRESS + CALLER + 4;
    let distance = ((ARM_CODE + u64::from(entry) - call_at) / 4) as u32;
    // mov x0, passes; bl entry; add x0, x0, #42; mov x8, #93 (exit); svc #0
    let caller = [0xd280_0000 | passes << 5, 0x9400_0000 | distance, 0x9100_a800, 0xd280_0ba8, 0xd400_0001];
    file.extend(caller.map(u32::to_le_bytes).concat());
    file.resize((ARM_CODE - ADDRESS) as usize, 0);
    file.extend(code);
    file
}

const ARM_CODE: u64 = 0x40_1000;

/// QEMU logs the address of every instruction that it executes.
fn the_machine_code_for_arm_visits_every_line_in_order_in_every_pass() {
    const PASSES: u32 = 3;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut visits: Vec<Visit> =
        (0..1024).map(|line| Visit { offset: 64 * line, instructions: 1 + line % INSTRUCTIONS_MAX as u32 }).collect();
    rng.shuffle(&mut visits);
    let code = machine_code(miss_ratio::Processor::Arm, 64 << 10, &visits);

    let folder = tempfile::tempdir().unwrap();
    let [program, log] = ["loop", "log"].map(|name| folder.path().join(name));
    std::fs::write(&program, arm_program(&code, visits[0].offset, PASSES)).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut qemu = std::process::Command::new("qemu-aarch64");
    // An instruction is a block, under the option's older name and its newer one.
    let help =
        String::from_utf8(std::process::Command::new("qemu-aarch64").arg("-h").output().unwrap().stdout).unwrap();
    qemu.arg(if help.contains("-one-insn-per-tb") { "-one-insn-per-tb" } else { "-singlestep" });
    let status = qemu.args(["-d", "exec,nochain", "-D"]).arg(&log).arg(&program).status().unwrap();
    assert_eq!(status.code(), Some(42), "the loop returns when no pass is left");

    // Trace 0: 0x7f... [flags/address/flags/flags]
    let log = std::fs::read_to_string(log).unwrap();
    let address = |line: &str| u64::from_str_radix(line.strip_prefix("Trace ")?.split('/').nth(1)?, 16).ok();
    let executed: Vec<u64> = log.lines().filter_map(address).filter(|address| *address >= ARM_CODE).collect();
    let mut expected = Vec::new();
    for pass in 1..=PASSES {
        for (i, visit) in visits.iter().enumerate() {
            // The last visit ends with a subtraction, a branch over the jump to the first one, and that jump; at last with a return behind it.
            let count = u64::from(visit.instructions) + if i + 1 == visits.len() { 2 } else { 0 };
            let begin = ARM_CODE + u64::from(visit.offset);
            expected.extend((0..count).map(|instruction| begin + 4 * instruction));
            if pass == PASSES && i + 1 == visits.len() {
                *expected.last_mut().unwrap() += 4;
            }
        }
    }
    let differs = executed.iter().zip(&expected).position(|(executed, expected)| executed != expected);
    assert!(executed == expected, "{} of {} instructions, first other: {differs:?}", executed.len(), expected.len());
}

// Settings.

/// Returns the counts that `slices` report for two threads, after all of them. The kernel counts page faults on any machine, as it counts
/// misses on some. `faulting` faults `per_slice` times in each of 50 slices, the other thread never faults, and both alternate on one CPU.
fn faults_of_two(mut slices: Slices, cpu: CpuId, per_slice: usize) -> [Vec<Slice>; 2] {
    const HANDOFFS: usize = 50;
    let mut entries = Vec::new();
    let threads = std::thread::scope(|scope| {
        let (to_second, from_first) = std::sync::mpsc::sync_channel::<()>(0);
        let (to_first, from_second) = std::sync::mpsc::sync_channel::<()>(0);
        let alternate =
            |sender: std::sync::mpsc::SyncSender<()>, receiver: std::sync::mpsc::Receiver<()>, faults: usize| {
                let _settings = RealtimeRequest::new().pin(cpu).apply();
                for _ in 0..HANDOFFS {
                    receiver.recv().unwrap();
                    if faults > 0 {
                        let mut arena = Arena::map(faults).unwrap();
                        arena.bytes_mut().iter_mut().step_by(page_bytes()).for_each(|byte| *byte = 1);
                    }
                    spin(Ns(200_000));
                    // The other may have had all its turns.
                    let _ = sender.send(());
                }
                // The last slice ends with a sleep too.
                std::thread::sleep(std::time::Duration::from_millis(20));
                rustix::thread::gettid().as_raw_nonzero().get()
            };
        let first_begins = to_first.clone();
        let first = scope.spawn(move || alternate(to_second, from_second, per_slice));
        let second = scope.spawn(move || alternate(to_first, from_first, 0));
        first_begins.send(()).unwrap();
        let threads = [first.join().unwrap(), second.join().unwrap()];
        slices.follow(threads);
        threads
    });
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

/// Spins for `time` without making a system call.
fn spin(time: Ns) {
    let begin = std::time::Instant::now();
    while begin.elapsed().as_nanos() < u128::from(time.0) {
        std::hint::spin_loop();
    }
}

fn faults(slices: &[Slice]) -> u64 {
    slices.iter().filter_map(|slice| Some(slice.counts?.accesses)).sum()
}

fn page_faults_of_two_threads_that_share_a_cpu_go_to_the_right_one() {
    let cpu = CpuId(allowed_cpus()[0]);
    let source = PerfRings::open(&Sysfs::system().online_cpus().unwrap(), &[PAGE_FAULTS; 4]).unwrap();
    page_faults_go_to_the_right_one(Slices::of(Box::new(source), &[cpu], false, true), cpu);
}

fn page_faults_are_those_of_the_right_thread_by_programs_in_the_kernel_too() {
    let cpu = CpuId(allowed_cpus()[0]);
    let source = BpfEvents::of_switches(&[cpu], &[PAGE_FAULTS; 4]).unwrap();
    page_faults_go_to_the_right_one(Slices::of(Box::new(source), &[cpu], false, true), cpu);
}

fn page_faults_go_to_the_right_one(mut slices: Slices, cpu: CpuId) {
    // What a record costs is measured with the same counters, which go on afterwards.
    let cost = slices.record_cost().unwrap();
    assert!(cost.cpu == cpu && cost.pairs >= 10 && cost.ns_low <= cost.ns && cost.ns <= cost.ns_high, "{cost:?}");
    let [faulting, other] = faults_of_two(slices, cpu, 200);
    assert!(faulting.len() >= 50, "{faulting:?}");
    let counts: Vec<_> = faulting.iter().map(|slice| slice.counts.unwrap()).collect();
    assert!(
        counts.iter().all(|counts| counts.accesses == counts.misses && counts.misses == counts.cycles),
        "{counts:?}"
    );
    // 50 turns of 200 pages; what starting a thread takes comes on top.
    assert!((10_000..10_300).contains(&faults(&faulting)), "{}", faults(&faulting));
    assert!(faults(&other) < 300, "{}", faults(&other));
}

/// Two threads pass a CPU to each other, and all sources record it at once. Their events must be the same.
fn all_sources_report_the_same_switches_wake_ups_and_times() {
    const HANDOFFS: usize = 200;
    let cpu = CpuId(allowed_cpus()[0]);
    let pass = |sender: std::sync::mpsc::SyncSender<()>, receiver: std::sync::mpsc::Receiver<()>| {
        let _settings = RealtimeRequest::new().pin(cpu).apply();
        for _ in 0..HANDOFFS {
            receiver.recv().unwrap();
            spin(Ns(20_000));
            // The other may have had all its turns.
            let _ = sender.send(());
        }
    };
    let thread = || rustix::thread::gettid().as_raw_nonzero().get();
    let mut sources: [Box<dyn Source>; 3] = [
        Box::new(BpfEvents::of_jobs(&[cpu], None).unwrap()),
        Box::new(Tracefs::open(&[cpu]).unwrap()),
        Box::new(PerfRings::open(&[cpu], &[]).unwrap()),
    ];
    let threads = std::thread::scope(|scope| {
        let (to_second, from_first) = std::sync::mpsc::sync_channel::<()>(0);
        let (to_first, from_second) = std::sync::mpsc::sync_channel::<()>(0);
        let (tell, told) = std::sync::mpsc::channel();
        let (first_begins, also) = (to_first.clone(), tell.clone());
        let first = scope.spawn(move || tell.send(thread()).map(|()| pass(to_second, from_second)));
        let second = scope.spawn(move || also.send(thread()).map(|()| pass(to_first, from_first)));
        let threads = [told.recv().unwrap(), told.recv().unwrap()];
        sources.iter_mut().for_each(|source| source.follow(&threads, &[]).unwrap());
        first_begins.send(()).unwrap();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
        threads
    });
    let events = sources.map(|mut source| {
        let mut events = Vec::new();
        source.drain(&mut events).unwrap();
        assert_eq!(source.lost(), 0, "{}", source.name());
        events.sort_by_key(|event| event.at);
        events
    });
    let concerns = |thread: i32| threads.contains(&thread);
    // The last that leaves may do so when no source looks any more, and the first may have come before one did.
    let switches = |events: &[SchedEvent]| {
        let of = |event: &SchedEvent| match event.kind {
            EventKind::Switch { from, reason, to, .. } if concerns(from) && concerns(to) => Some((from, reason, to)),
            _ => None,
        };
        events.iter().filter_map(of).collect::<Vec<_>>()
    };
    let [by_bpf, by_tracefs, by_perf] = &events;
    let expected = switches(by_tracefs);
    assert!(expected.len() >= HANDOFFS, "{}", expected.len());
    assert_eq!(switches(by_bpf), expected);
    assert_eq!(switches(by_perf), expected);
    let others = |events: &[SchedEvent]| {
        let of = |event: &SchedEvent| match event.kind {
            EventKind::Wakeup { thread } if concerns(thread) => Some((thread, None)),
            EventKind::Runtime { thread, time } if concerns(thread) => Some((thread, Some(time))),
            _ => None,
        };
        events.iter().filter_map(of).collect::<Vec<_>>()
    };
    let expected = others(by_tracefs);
    assert!(expected.len() >= 2 * HANDOFFS, "{}", expected.len());
    // One of the two is followed a little earlier: what one source has seen before the other is left out.
    let seen = others(by_bpf);
    let common = expected.len().min(seen.len());
    assert!(expected.len().abs_diff(seen.len()) <= 8, "{} and {}", expected.len(), seen.len());
    assert_eq!(seen[seen.len() - common..], expected[expected.len() - common..]);
    // Of the same switch two sources say the same time, as far as one is called after the other.
    let times = |events: &[SchedEvent]| {
        let of = |event: &SchedEvent| match event.kind {
            EventKind::Switch { from, to, .. } if concerns(from) && concerns(to) => Some(event.at.0),
            _ => None,
        };
        events.iter().filter_map(of).collect::<Vec<_>>()
    };
    let apart: Vec<f64> =
        times(by_bpf).iter().zip(times(by_tracefs)).map(|(one, other)| one.abs_diff(other) as f64).collect();
    assert!(median(&apart).unwrap() < 20_000.0, "{:?}", median(&apart));
}

/// One thread walks over lines that fit the second level, so that its accesses always hit. The other alternates between such lines and far
/// too many, so that half of its accesses miss. Each also counts for itself, and exactly these counts must be reported for it.
fn misses_of_two_threads_that_share_a_cpu_go_to_the_right_one() {
    let sysfs = Sysfs::system();
    let events = &proved_events(&sysfs.processor().unwrap(), 2).unwrap()[..2];
    let (machine, _) = sysfs.machine().unwrap();
    let level = machine.data_level(2).unwrap().geometry.value.cache_bytes();
    // Lines of 64 bytes: a quarter to half of the level, which is more than the first one, and 32 MiB.
    let (few, many) = ((level.0 / 256).next_power_of_two() as usize, 1 << 19);
    let cpu = CpuId(allowed_cpus()[0]);
    let mut slices = Slices::open(&[cpu], false, events).unwrap();
    let walk = |missing: bool| {
        let _settings = RealtimeRequest::new().pin(cpu).apply();
        let [near, far] = [few, if missing { many } else { 0 }].map(|lines| vec![1u64; lines * 8]);
        let counters = Counters::open(events).unwrap();
        let (begin, before) = (std::time::Instant::now(), counters.read().unwrap());
        let (mut line, mut other) = (0, 0);
        while begin.elapsed().as_secs() < 2 {
            // Every line once, in an order that is hard to predict: a full period of a generator modulo a power of two.
            for _ in 0..few {
                line = (5 * line + std::hint::black_box(near[8 * line]) as usize) % few;
                if missing {
                    other = (5 * other + std::hint::black_box(far[8 * other]) as usize) % many;
                }
            }
        }
        let counted = counters.between(&before, &counters.read().unwrap()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let [accesses, misses] = [0, 1].map(|position| counted.values()[position] as f64);
        (rustix::thread::gettid().as_raw_nonzero().get(), misses / accesses)
    };
    let threads = std::thread::scope(|scope| {
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
    // The first level takes some accesses of both.
    assert!(threads[0].1 <= 0.1 && (0.4..=0.7).contains(&threads[1].1), "{threads:?}");
}

fn polls_put_counts_down_to_whom_they_interrupt() {
    let cpu = CpuId(allowed_cpus()[0]);
    let slices = Slices::polled(&[cpu], false, &[PAGE_FAULTS; 4], Ns(100_000)).unwrap();
    let [faulting, other] = faults_of_two(slices, cpu, 200);
    // A poll that comes just after a switch gives the other what it did not do, and a host that takes the CPU away leaves out polls: of the 10 000
    // faults 9950 and more were put down right, idle and beside busy loops.
    let (right, wrong) = (faults(&faulting), faults(&other));
    println!("{right} of 10000 faults put down right, {wrong} wrong");
    assert!(right > wrong && right >= 5000 && right + wrong <= 10_600, "{right} {wrong}");
}

fn affinity_is_restored_after_drop() {
    let before = allowed_cpus();
    let last = *before.last().unwrap();
    let settings = RealtimeRequest::new().pin(CpuId(last)).apply();
    assert_eq!(settings.notes(), []);
    assert_eq!(allowed_cpus(), [last]);
    drop(settings);
    assert_eq!(allowed_cpus(), before);
}

fn settings_are_restored_after_a_panic() {
    let before = (allowed_cpus(), timer_slack(), Scheduling::current().unwrap().to_string());
    let last = *before.0.last().unwrap();
    // Thread of its own: its panic message is expected and goes to the captured output.
    let outcome = std::panic::catch_unwind(|| {
        let _settings = RealtimeRequest::new().pin(CpuId(last)).timer_slack(Ns(1)).fifo(1).apply();
        assert_eq!(allowed_cpus(), [last]);
        std::panic::resume_unwind(Box::new("a job failed"));
    });
    assert!(outcome.is_err());
    assert_eq!((allowed_cpus(), timer_slack(), Scheduling::current().unwrap().to_string()), before);
}

fn timer_slack_is_set_and_restored() {
    let before = timer_slack();
    let settings = RealtimeRequest::new().timer_slack(Ns(1)).apply();
    assert_eq!(settings.notes(), []);
    assert_eq!(settings.changes().len(), 1);
    assert_eq!(timer_slack().trim(), "1");
    assert_eq!(settings.restore(), []);
    assert_eq!(timer_slack(), before);
}

fn an_impossible_setting_is_reported() {
    let before = allowed_cpus();
    for absent in [1023, u32::MAX] {
        let settings = RealtimeRequest::new().pin(CpuId(absent)).apply();
        assert_eq!(settings.notes().len(), 1);
        assert!(!settings.notes()[0].hint.is_empty());
        assert_eq!(settings.changes(), []);
    }
    assert_eq!(allowed_cpus(), before);
}

/// Without the capability and with a limit of 0 the kernel denies the policy to every user.
fn a_denied_policy_is_reported() {
    let limit = getrlimit(Resource::Rtprio);
    setrlimit(Resource::Rtprio, Rlimit { current: Some(0), ..limit }).unwrap();
    on_a_thread(|| {
        let held = capabilities(None).unwrap();
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..held }).unwrap();
        let settings = RealtimeRequest::new().fifo(1).apply();
        assert_eq!(settings.notes()[0].subject, "SCHED_FIFO 1");
        assert!(settings.notes()[0].hint.contains("cap_sys_nice"));
        assert_eq!(settings.changes(), []);
    });
    setrlimit(Resource::Rtprio, limit).unwrap();
}

fn the_policy_is_set_and_restored() {
    let before = Scheduling::current().unwrap().to_string();
    let settings = RealtimeRequest::new().timer_slack(Ns(1)).fifo(7).apply();
    assert_eq!(settings.notes(), []);
    assert_eq!(Scheduling::current().unwrap().to_string(), "SCHED_FIFO 7");
    assert_eq!(settings.restore(), []);
    assert_eq!(Scheduling::current().unwrap().to_string(), before);
}

fn memory_is_locked_until_the_last_guard_goes() {
    let outer = RealtimeRequest::new().lock_memory().apply();
    assert_ne!(status("VmLck"), "0 kB");
    on_a_thread(|| drop(RealtimeRequest::new().lock_memory().apply()));
    assert_ne!(status("VmLck"), "0 kB");
    drop(outer);
    assert_eq!(status("VmLck"), "0 kB");
}

fn prefaulting_stops_before_the_stack_ends() {
    let stack = 1 << 20;
    let thread = std::thread::Builder::new().stack_size(stack).spawn(move || {
        assert_eq!(RealtimeRequest::new().prefault_stack(Bytes(64 << 10)).apply().notes(), []);
        // More than there is must not overflow it, and is said.
        assert_eq!(RealtimeRequest::new().prefault_stack(Bytes(64 << 20)).apply().notes().len(), 1);
    });
    thread.unwrap().join().unwrap();
}

// Probing.

fn loads_take_longer_the_further_out_they_are_answered() {
    let (machine, _) = Sysfs::system().machine().unwrap();
    let last = machine.levels.iter().map(|l| l.geometry.value.cache_bytes()).max().unwrap_or(Bytes(32 << 20));
    let largest = Bytes((2 * last.0).clamp(16 << 20, 128 << 20));
    let curve = probe::latency::curve(largest, last, Bytes(64), 1).unwrap();
    assert!(curve.len() > 8, "{curve:?}");
    // Noise only lengthens: the fastest of each doubling is compared, with room for what noise is left.
    let octaves: Vec<f64> =
        curve.chunks(4).map(|points| points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min)).collect();
    assert!(octaves.windows(2).all(|pair| pair[1] > 0.6 * pair[0]), "{octaves:?}");
    if last.0 * 2 <= largest.0 && curve.last().is_some_and(|p| p.0.0 > last.0) {
        assert!(octaves[octaves.len() - 1] > 3.0 * octaves[0], "{octaves:?}");
    }
}

/// Returns pages of known colors with the level; `None` if the machine or its noise does not let colors be found.
fn pool(machine: &Machine, cpu: u32) -> Option<(FramePool, u8)> {
    let _pinned = RealtimeRequest::new().pin(CpuId(cpu)).apply();
    let target = Target::of(machine, None, CpuId(cpu)).ok()?;
    let mut survey = Survey::start_by(
        Method::Timing,
        target,
        Survey::memory(target, Bytes(32 << 20)).ok()?,
        &Processor::default(),
        1,
    )
    .ok()?;
    survey.classify(100 * target.geometry.color_count(machine.page_bytes) as usize).ok()?;
    let collection = survey.finish();
    let colors = collection.inference.palette.colors;
    Some((FramePool::new(collection.arena, &collection.inference.page_colors, colors), target.level))
}

fn a_probe_fills_facts_within_their_ranges_and_leaves_the_thread_where_it_was() {
    let before = (allowed_cpus(), timer_slack());
    let (mut machine, _) = Sysfs::system().machine().unwrap();
    let fingerprint = machine.fingerprint();
    let cpus = before.0.iter().take(2).copied().map(CpuId).collect();
    let pool = pool(&machine, before.0[0]);
    let colored = pool.as_ref().map(|(pool, level)| (pool, *level));
    let begin = std::time::Instant::now();
    let notes = probe(&mut machine, colored, &ProbeRequest { cpus, seed: 1 }, |_| {});
    println!("{:?}\n{machine:#?}\n{notes:#?}", begin.elapsed());
    assert_eq!((allowed_cpus(), timer_slack()), before);
    assert_eq!(machine.fingerprint(), fingerprint, "measured values are not part of the machine's identity");
    assert!(machine.counter_hz.unwrap().value > 1_000_000);
    assert!(machine.counter_quantum.unwrap().value >= 1.0);
    for level in &machine.levels {
        if let Some(refill) = level.refill {
            assert_eq!(refill.value.lines, level.geometry.value.lines_per_color(machine.page_bytes));
            assert!(refill.value.clean_ns.0 > 0 && refill.value.dirty_ns.0 > 0);
        }
        for sample in &level.retention {
            assert!(
                0.0 <= sample.lost_min
                    && sample.lost_min <= sample.lost_median
                    && sample.lost_median <= sample.lost_max
            );
            assert!(sample.lost_max <= 1.0 && sample.samples >= 15);
        }
        if level.holds == Holds::Instruction {
            assert!(level.sharing_seen.is_none() && level.retention.is_empty() && level.load_ns.is_none());
        }
    }
    if let Some(costs) = &machine.costs {
        for (name, cost) in costs.of_every_set().chain(costs.refill.map(|cost| ("refill", cost))) {
            assert!(
                0 < cost.median_ns.0 && cost.median_ns <= cost.high_ns && cost.high_ns < cost.charged_ns,
                "{name}: {cost}"
            );
            assert!(cost.samples as usize >= SAMPLES_MIN, "{name}: {cost}");
        }
        // Lines that come from outside the level, one after the other, take longer than lines in it.
        let level = machine.data_level_of(costs.level, costs.cpu).unwrap();
        if let (Some(cost), Some(load)) = (costs.refill, level.load_ns) {
            let lines = level.geometry.value.lines_per_color(machine.page_bytes);
            assert!(cost.high_ns.0 as f64 > lines as f64 * load.value, "{cost}, a load takes {} ns", load.value);
        }
    }
    for note in notes {
        assert!(!note.subject.is_empty() && !note.reason.is_empty() && !note.hint.is_empty(), "{note:?}");
    }
}

// Numbers of colors.

/// Returns pages of known color in `folder`, with the numbers of `machines`.
fn numbered(machine: &Machine, folder: &Path, machines: Option<&Reference>) -> Result<Ready, ColorError> {
    let cpus: Vec<CpuId> = allowed_cpus().into_iter().map(CpuId).collect();
    let target = Target::of(machine, None, cpus[0])?;
    let boot = Boot::of(machine, &Sysfs::system());
    on_a_cpu(&cpus, || Reference::obtain_as(folder, target, 1, &boot, machines))
}

fn an_ordinary_users_colors_get_the_machines_numbers_and_programs_keep_theirs() {
    let (machine, _) = Sysfs::system().machine().unwrap();
    let (machines, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let theirs = numbered(&machine, machines.path(), None).unwrap().reference;
    let before = numbered(&machine, own.path(), None).unwrap();
    assert_eq!(before.numbers, Numbers::New);
    let owner = Owner::of(std::process::id()).unwrap();
    let cache = machine.data_level(before.reference.level).unwrap();
    let colors = before.reference.colors();
    let (first, last) = (Color(0), Color(colors as u16 - 1));
    let request = GrantRequest {
        owner: owner.clone(),
        sharing: Sharing::Exclusive,
        cache,
        color_count: colors,
        cpus: vec![CpuId(allowed_cpus()[0])],
        wanted: Wanted::Colors(vec![first, last]),
    };
    Ledger::open(own.path()).unwrap().grant(request).unwrap();

    let mut now = numbered(&machine, own.path(), Some(&theirs)).unwrap();
    assert_eq!((&now.numbers, &now.reference.numbering), (&Numbers::Machines, &theirs.numbering));
    let in_order: Vec<Color> = (0..colors as u16).map(Color).collect();
    assert_eq!(theirs.order_by(&mut now.tester).complete(now.tester.colors()), Some(in_order));
    // Known by their pages, the program's colors are those that it had.
    let number_now = |color: Color| {
        let page = before.reference.sets[usize::from(color.0)][0];
        Color(now.reference.sets.iter().position(|set| set.contains(&page)).unwrap() as u16)
    };
    let mut expected = [first, last].map(number_now).to_vec();
    expected.sort_unstable();
    assert_eq!(ledger::colors_of(own.path(), &owner, now.reference.level), Some(expected));
    // Whoever comes next finds the numbers as they are.
    let next = numbered(&machine, own.path(), Some(&theirs)).unwrap();
    assert_eq!((next.numbers, next.reference.sets), (Numbers::Kept, now.reference.sets));
}

fn what_was_learned_under_numbers_that_another_command_has_replaced_is_forgotten() {
    let (machine, _) = Sysfs::system().machine().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let find = || numbered(&machine, folder.path(), None).unwrap();
    let first = find().reference;
    let file = folder.path().join(format!("reference-l{}", first.level));
    let cpus = allowed_cpus().into_iter().map(CpuId).collect();
    let mut known = KnownColors::measured(first, None, false, cpus);
    let arena = Arena::map(1).unwrap();
    arena.touch(&[0], 64);
    let address = arena.address() as u64;
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let page = (address, pagemap::entries(&pagemap, address / page_bytes() as u64, 1).unwrap()[0]);
    known.learn(1, page, Color(0));
    assert_eq!((known.adopt(find()), known.of(1, page)), (Numbers::Kept, Some(Color(0))));

    std::fs::remove_file(file).unwrap();
    let others = find();
    assert_eq!((others.numbers, find().numbers), (Numbers::New, Numbers::Kept));
    assert_eq!((known.adopt(find()), known.of(1, page)), (Numbers::Replaced, None));
}

// Packets.

fn packets_of_every_size_cross_the_tap_device_both_ways_unaltered() {
    let Tap { card, socket } = tap::open().unwrap();
    let reservation = Reservation { packets_per_s: 10_000, bytes_max: BYTES_MAX, burst: 100_000 };
    let cost = Cost { packet: Ns(1000), byte_ps: 250 };
    let request = StackRequest { end: End::Near, cost, limit_ppm: 900_000, reservation };
    let mut stack = Stack::build(&OrdinaryMemory, request, Some(card)).unwrap();
    let mut received = vec![0; BYTES_MAX + 1];
    // The first packet waits until the kernel has reported its hardware address.
    stack.send(1, 0).unwrap();
    stack.settle();
    assert_eq!(socket.recv(&mut received).unwrap(), 1);
    for bytes in 1..=BYTES_MAX {
        let stamp = bytes as u8;
        stack.send(bytes, stamp).unwrap();
        let (came, from) = socket.recv_from(&mut received).unwrap();
        assert_eq!((came, from), (bytes, (End::Near.address(), PORT).into()));
        assert!(received[..bytes].iter().copied().eq(payload(bytes, stamp)), "{bytes} bytes sent");

        let packet: Vec<u8> = payload(bytes, stamp).map(|byte| !byte).collect();
        socket.send_to(&packet, from).unwrap();
        stack.request(bytes).unwrap();
        stack.take(bytes).unwrap();
        assert!(stack.check(bytes, stamp).is_err(), "what was received is not what was sent");
        socket.send_to(&received[..bytes], from).unwrap();
        stack.take(bytes).unwrap();
        stack.check(bytes, stamp).unwrap();
    }
    assert!(stack.take(1).is_err(), "nothing else was on the wire");
}

/// Returns the network devices that the calling thread sees.
fn network_devices() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

fn network_namespace() -> std::path::PathBuf {
    std::fs::read_link("/proc/thread-self/ns/net").unwrap()
}

fn a_tap_device_is_in_no_namespace_but_its_own_and_gone_when_it_is_closed() {
    let (before, own) = (network_devices(), network_namespace());
    let tap = tap::open().unwrap();
    assert_eq!((network_devices(), network_namespace()), (before.clone(), own.clone()));
    drop(tap);
    on_a_thread(move || {
        let tap = Tap::open_here(tap::wire()).unwrap();
        assert_ne!(network_namespace(), own);
        assert_eq!(network_devices(), ["lo", "tap0"]);
        drop(tap);
        assert_eq!(network_devices(), ["lo"]);
    });
    // The namespaces had no name, no thread is left in one, and nothing that is open holds one.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let held: Vec<_> = open.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    assert!(held.iter().all(|target| !target.ends_with("tun") && !target.to_string_lossy().starts_with("net:")));
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let elsewhere = threads.filter_map(|thread| std::fs::read_link(thread.path().join("ns/net")).ok());
    assert!(elsewhere.into_iter().all(|namespace| namespace == network_namespace()));
    assert_eq!(network_devices(), before);
}

// Interrupts.

/// Environment variable of the run of this program that interrupts itself.
const CHILD: &str = "ISOCHROME_TEST_INTERRUPT_TWICE";

fn interrupt_twice() -> ExitCode {
    interrupt::install().unwrap();
    assert!(!interrupt::interrupted());
    kill_process(getpid(), Signal::INT).unwrap();
    assert!(interrupt::interrupted());
    kill_process(getpid(), Signal::INT).unwrap();
    // Not reached.
    ExitCode::SUCCESS
}

fn the_second_interrupt_ends_the_program() {
    let child = std::process::Command::new(std::env::current_exe().unwrap()).env(CHILD, "1").status().unwrap();
    assert_eq!(child.code(), Some(130));
}
