//! Tests of locks, release interrupts and private levels against calculations by hand.

use super::super::schedule::{Arrival, Section};
use super::*;

/// Returns a core with Δ = 3. t1 (C = 2, T = 20) and t3 share partition 1. t2 (C = 4) and t3 share a lock that t3 holds for 5.
fn lock_below_the_ceiling() -> (Vec<CoreTask>, Charges) {
    let mut core = vec![core_task(2, 20, &[1]), core_task(4, 100, &[2]), core_task(5, 200, &[1])];
    core[1].holds.insert(0, 1);
    core[2].holds.insert(0, 5);
    (core, refill(3))
}

#[test]
fn a_lock_costs_the_footprint_of_its_holder() {
    let (core, charges) = lock_below_the_ceiling();
    // B = 5 + ω(3,3) = 8; t1: C + ω(1,3) + γ(1,2) = 2 + 3 + |S1 ∩ (S2 ∪ S3)| 3 = 8; C2 = 4.
    assert_eq!(responses_of(&core, charges, Analysis::Kim2013)[1], Some(20));
    // If only the blocking time is known, t3 is still the only task that can hold the lock.
    let mut unknown = core.clone();
    unknown.iter_mut().for_each(|task| task.holds = Holds::default());
    unknown[1].blocking_ns = 5;
    assert_eq!(responses_of(&unknown, charges, Analysis::Kim2013)[1], Some(20));
    // The blocking time alone would give 4 + 5 + 2 + 3.
    assert!(Analysis::ALL.into_iter().filter(|&analysis| analysis != Analysis::NoInterference).all(|analysis| {
        [&core, &unknown].iter().all(|core| responses_of(core, charges, analysis)[1].is_none_or(|bound| bound >= 19))
    }));
}

#[test]
fn a_holder_that_is_cold_and_preempted_delays_a_task_by_19() {
    let (core, charges) = lock_below_the_ceiling();
    // t3 takes the lock at 0, cold. t2 arrives at 1. t3 refills until 3 and executes until 5; t1 refills until 8 and executes
    // until 10; t3 refills until 13 and leaves the lock at 16; t2 executes until 20.
    let arrival = |task: usize, arrival_ns, section| Arrival {
        task,
        arrival_ns,
        release_ns: arrival_ns,
        execution_ns: core[task].wcet_ns,
        section,
    };
    let section = Some(Section { lock: 0, start_ns: 0, length_ns: 5 });
    let arrivals = [arrival(2, 0, section), arrival(1, 1, None), arrival(0, 5, None)];
    assert_eq!(play(&core, charges, &arrivals, 100).responses_ns, [5, 19, 16]);
}

#[test]
fn a_lock_below_all_users_of_another_blocks_only_those_at_or_below_its_ceiling() {
    // Tasks 1 and 3 take lock 0, tasks 2 and 3 take lock 1. So task 1 waits for lock 0 only, and task 0 never waits.
    let mut core = [core_task(1, 50, &[1]), core_task(1, 60, &[2]), core_task(1, 70, &[3]), core_task(9, 80, &[4])];
    core[1].holds.insert(0, 1);
    core[2].holds.insert(1, 1);
    core[3].holds.insert(0, 2);
    core[3].holds.insert(1, 7);
    let blocking =
        analyze(&core, refill(1), Analysis::Kim2013).iter().map(|bound| bound.blocking_ns).collect::<Vec<_>>();
    assert_eq!(blocking, [0, 2, 7, 0]);
}

#[test]
fn switches_and_release_interrupts_are_on_top_of_execution() {
    // In ns, C1 = 50 us, T1 = 200 us, C2 = 1000 us; nothing is shared.
    let core = [core_task(50_000, 200_000, &[1]), core_task(1_000_000, 10_000_000, &[2])];
    let lowest = |charges: Charges| analyze(&core, charges, Analysis::Kim2013)[1];
    let free = Charges { refill_ns: 5_000, ..Charges::default() };
    // 1000 + 50 n: n = 7 -> 1350 <= 7 * 200.
    assert_eq!(lowest(free).verdict.response_ns(), Some(1_350_000));
    // 1009.2 + 59.2 n: n = 8 -> 1482.8 <= 8 * 200.
    let switches = Charges { switch_ns: 4_600, ..free };
    assert_eq!(lowest(switches).verdict.response_ns(), Some(1_482_800));
    // Each of 9 releases, including its own, adds 1.5 us: 1496.3 <= 8 * 200.
    let releases = Charges { release_interrupt_ns: 1_500, ..switches };
    assert_eq!(lowest(releases).verdict.response_ns(), Some(1_496_300));
    assert_eq!(lowest(releases).interrupts_ns, 13_500);
    assert_eq!(play(&core, releases, &synchronous(&core, 2_000_000), 2_000_000).responses_ns[1], 1_496_300);
    // The higher task pays for the release of the lower one: 50 + 9.2 + 2 * 1.5.
    assert_eq!(analyze(&core, releases, Analysis::Kim2013)[0].verdict.response_ns(), Some(62_200));
}

#[test]
fn a_task_that_holds_a_lock_at_its_end_does_not_push_a_higher_job_into_its_next_window() {
    // t2 holds the lock for its whole job; t1 waits for it and runs afterwards. The interference of the whole window is charged,
    // so a job of t1 that is delayed past the end of t2 is still in the window of t2: 8 + 4 n, n = 2 -> 16 <= 2 * 10.
    let mut core = [core_task(4, 10, &[1]), core_task(8, 16, &[2])];
    core[0].holds.insert(0, 1);
    core[1].holds.insert(0, 8);
    let bound = responses_of(&core, refill(0), Analysis::Kim2013)[1];
    assert_eq!(bound, Some(16));
    // All offsets of t1 are tried, with t2 released as often as possible.
    for offset in 0..160 {
        let job = |task: usize, arrival_ns, section| Arrival {
            task,
            arrival_ns,
            release_ns: arrival_ns,
            execution_ns: core[task].wcet_ns,
            section,
        };
        let section = Some(Section { lock: 0, start_ns: 0, length_ns: 8 });
        let mut arrivals: Vec<Arrival> = (0..20).map(|k| job(1, k * 16, section)).collect();
        arrivals.extend((0..20).map(|k| job(0, offset + k * 10, None)));
        arrivals.sort_by_key(|arrival| (arrival.release_ns, arrival.task));
        let played = play(&core, refill(0), &arrivals, 320);
        assert!(Some(played.responses_ns[1]) <= bound, "offset {offset}: {}", played.responses_ns[1]);
    }
}

#[test]
fn releases_of_lower_tasks_interrupt_a_higher_one() {
    // C = 10, plus 1 for its own release; the tasks below have T = 4 and 3: R = 11 + ceil(R/4) + ceil(R/3) = 11 -> 11 + 3 + 4 =
    // 18 -> 11 + 5 + 6 = 22 -> 11 + 6 + 8 = 25 -> 11 + 7 + 9 = 27 -> 27.
    let core = [core_task(10, 100, &[1]), core_task(1, 4, &[2]), core_task(1, 3, &[3])];
    let charges = Charges { release_interrupt_ns: 1, ..Charges::default() };
    let bound = analyze(&core, charges, Analysis::Kim2013)[0];
    assert_eq!((bound.verdict.response_ns(), bound.interrupts_ns), (Some(27), 17));
    assert_eq!(play(&core, charges, &synchronous(&core, 60), 60).responses_ns[0], 27);
}

#[test]
fn private_levels_are_refilled_at_the_start_and_after_each_preemption() {
    // No partition is shared. t2 takes 3 + C = 13; t1 takes 3 to start, 2 to execute, and 3 for what it displaces.
    let core = [core_task(2, 50, &[1]), core_task(10, 100, &[2])];
    let charges = Charges { preemption_ns: 3, ..Charges::default() };
    for analysis in Analysis::ALL.into_iter().filter(|&analysis| analysis != Analysis::NoInterference) {
        let bound = analyze(&core, charges, analysis)[1];
        assert_eq!((bound.omega_ns, bound.gamma_ns, bound.verdict.response_ns()), (6, 3, Some(21)), "{analysis}");
    }
    let arrival = |task: usize, arrival_ns| Arrival {
        task,
        arrival_ns,
        release_ns: arrival_ns,
        execution_ns: core[task].wcet_ns,
        section: None,
    };
    assert_eq!(play(&core, charges, &[arrival(1, 0), arrival(0, 4)], 60).responses_ns, [5, 21]);
}
