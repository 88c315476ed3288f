use super::*;
use crate::analysis::{Analysis, Conditions, analyze, core_tasks};
use crate::costs::{AssumedCost, SAMPLES_MIN};
use crate::replacement::Replacement;
use crate::stats::HighWaterMark;
use crate::taskset::programs::{Jobs, declared, programs};
use crate::taskset::read::{Overrides, task_set};
use crate::taskset::{MemoryRule, PartitionSet, Platform, Refills, Task};
use proptest::prelude::*;

fn point(partitions: u32, longest: u64) -> Point {
    let longest = HighWaterMark { value: longest, n: 1, last_rose_at: 1 };
    let run = ProfilingRun {
        jobs: 1,
        sum_ns: longest.value,
        median_ns: longest.value,
        longest,
        waiting_ns: 7,
        jobs_with_steal: 0,
        misses: None,
        cycles_per_instruction: None,
    };
    Point { partitions, runs: vec![run] }
}

fn profile(partitions: u32) -> Profile {
    let text = "cpus = \"0\"\n[[tasks]]\nname = \"a\"\ncommand = \"a\"\nperiod = \"1ms\"\n\
                [[tasks]]\nname = \"b\"\ncommand = \"b\"\nperiod = \"1ms\"\n\
                [[tasks]]\nname = \"c\"\ncommand = \"c\"\nbest_effort = true\n";
    let (programs, _) = programs(text).unwrap();
    Profile {
        fingerprint: Some("f".to_owned()),
        by: "made up".to_owned(),
        memory_bytes: Bytes(64 << 20),
        refill_ns_per_partition: Some(1000),
        ..Profile::begin(programs, partitions, String::new(), 0.0)
    }
}

/// Models a profiling run. On the modeled machine, task 0 needs 9 partitions, task 1 needs none, and every third profiling run is
/// disturbed.
fn modeled(task: usize, partitions: u32, jobs: u64, calls: &mut u64) -> ProfilingRun {
    *calls += 1;
    let noise = if calls.is_multiple_of(3) { 30 } else { 0 };
    let time = if task == 0 { 1000 + 500 * u64::from(9u32.saturating_sub(partitions)) } else { 2000 } + noise;
    let longest = HighWaterMark { value: time, n: jobs, last_rose_at: 1 };
    ProfilingRun { jobs, sum_ns: jobs * time, median_ns: time, longest, ..point(1, time).runs[0] }
}

const REQUEST: Request = Request { jobs: 100, jobs_per_run: 50, flat: 0.05, seed: 1 };

#[test]
fn flat_intervals_are_not_measured_and_steep_ones_are() {
    let mut profile = profile(16);
    let mut calls = 0;
    let run = |task, partitions, jobs| Ok::<_, ()>(Some(modeled(task, partitions, jobs, &mut calls)));
    profile.measure(REQUEST, run, |_| Ok(())).unwrap();
    let measured = |task: usize| profile.tasks[task].measured.iter().map(|point| point.partitions).collect::<Vec<_>>();
    // 8 is the middle of 1 and 16. The curve falls by 500 per partition up to 9, and is flat from 9 on, which the point for 10 shows.
    assert_eq!(measured(0), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16]);
    assert_eq!(measured(1), [1, 16]);
    assert!(profile.complete && profile.tasks[2].measured.is_empty());
    for point in &profile.tasks[0].measured {
        assert_eq!((point.jobs(), point.runs.len()), (100, 2));
    }
    let wcet = &profile.tasks[0].wcet_ns;
    assert_eq!(wcet.len(), 16);
    for (p, time) in (1u32..).zip(wcet) {
        let true_time = 1000 + 500 * u64::from(9u32.saturating_sub(p));
        assert!((true_time..=true_time + 30).contains(time), "C^{p} = {time}");
    }
    assert_eq!((profile.tasks[0].is_sensitive(), profile.tasks[1].is_sensitive()), (Some(false), Some(false)));
    // 4000 ns of 1 ms are 0.4 %; of 100 us they would be 4 %.
    let difference = profile.tasks[0].utilization_difference.unwrap();
    assert!((difference - 0.004).abs() < 1e-4, "{difference}");
}

#[test]
fn a_profile_that_was_interrupted_goes_on_where_it_was() {
    let mut whole = profile(16);
    let mut calls = 0;
    whole.measure(REQUEST, |t, p, n| Ok::<_, ()>(Some(modeled(t, p, n, &mut calls))), |_| Ok(())).unwrap();
    let whole_calls = calls;
    let (mut broken, mut calls, mut kept) = (profile(16), 0, String::new());
    for limit in [1, 7, u64::MAX] {
        let begin = calls;
        let run = |t, p, n| {
            let more = calls - begin < limit;
            Ok::<_, ()>(more.then(|| modeled(t, p, n, &mut calls)))
        };
        broken
            .measure(REQUEST, run, |profile| {
                kept = serde_json::to_string(profile).unwrap();
                Ok(())
            })
            .unwrap();
        // The profile that was saved last is all that is needed to continue.
        broken = serde_json::from_str(&kept).unwrap();
    }
    assert!(broken.complete);
    assert_eq!(calls, whole_calls);
    let points =
        |profile: &Profile| profile.tasks[0].measured.iter().map(|p| (p.partitions, p.jobs())).collect::<Vec<_>>();
    assert_eq!(points(&broken), points(&whole));
}

#[test]
fn a_profile_is_a_task_set_that_can_be_planned() {
    let mut profile = profile(16);
    profile.margin = 0.2;
    let mut calls = 0;
    profile.measure(REQUEST, |t, p, n| Ok::<_, ()>(Some(modeled(t, p, n, &mut calls))), |_| Ok(())).unwrap();
    let text = serde_json::to_string_pretty(&profile).unwrap();
    let (set, warnings) = task_set(&text, Overrides::default()).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(set.tasks().len(), 2);
    assert_eq!(set.tasks()[0].wcet_ns, profile.tasks[0].wcet_ns);
    // 7 ns of waiting and a fifth, rounded up.
    assert_eq!((set.tasks()[0].jitter_ns, set.tasks()[0].period_ns), (9, 1_000_000));
    let (read, warnings) = programs(&text).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(read, profile.programs());
}

/// A task set with every field that planning reads.
const ALL: &str = r#"cpus = "0-1"
level = 3
method = "both"
cores = 2
cache = "private"
partitions = 8
memory_mib = 64
refill_ns_per_partition = 900
refill_dirty_ns_per_partition = 1100
lines_per_partition = 64
miss_ns = 80
switch_ns = 1500
release_interrupt_ns = 700
preemption_ns = 800
lock_protocol = "immediate_ceiling"
replacement = "any"
page_bytes = 16384
memory_rule = "kim2013"
cold_start = true
supply = [{ value = { cpu = 0, steps = [{ window_ns = 9, withheld_ns = 5, interruptions = 1 }] }, source = "declared" }]
[[tasks]]
name = "a"
command = "a"
period = "1ms"
deadline = "900us"
memory = "64K"
priority = 2
cpu = 1
budget = "300us"
jobs = "marks"
sporadic = true
bundle = "arm"
jitter_ns = 9000
blocking_ns = 2000
nonpreemptive_ns = 3000
locks = [{ name = "bus", longest_ns = 400 }]
exclusive = true
wcet_ns = [5, 4]
[[tasks]]
name = "b"
command = "b"
period = "2ms"
priority = 1
"#;

#[test]
fn measured_costs_are_charged_but_for_those_that_the_set_states() {
    let cost = |ns: u64| AssumedCost::of(&[ns as f64; SAMPLES_MIN]);
    let costs = Costs {
        cpu: CpuId(0),
        level: 2,
        measured_at: 0,
        refill: cost(1000),
        refill_once_ns: Ns(50),
        preemption: cost(2000),
        switch: cost(3000),
        release_interrupt: None,
    };
    let (declared, _) =
        declared(&ALL.replace("preemption_ns = 800\nlock", "lock").replace("release_interrupt_ns = 700\n", ""))
            .unwrap();
    let mut profile = Profile::begin(declared.programs.clone(), 8, String::new(), 0.0);
    profile.carry(&declared).unwrap();
    profile.charge(costs, 2.0);
    // 10 % are added to each; a partition is two colors; the set states 1500 ns for a switch.
    assert_eq!(profile.refill_dirty_ns_per_partition, Some(2200));
    let stated = |name: &str| profile.others.get(name).and_then(serde_json::Value::as_u64);
    assert_eq!(
        (stated("preemption_ns"), stated("switch_ns"), stated("release_interrupt_ns")),
        (Some(2250), Some(1500), None)
    );
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(Costs::stated(&text), Some(costs));
}

#[test]
fn a_task_that_shares_colors_is_charged_for_loads_that_wait_for_each_other() {
    // Touches that overlap take 752 ns per color, and loads along a chain 5168 ns. A task below another one that uses the same 8 colors refills
    // them twice: 12 us by the former, and 82.7 us by the latter.
    let cost = |ns: f64| AssumedCost::of(&[ns; SAMPLES_MIN]);
    let refill = cost(5168.0).unwrap();
    let mut profile = profile(8);
    profile.refill_ns_per_partition = Some(752);
    let charged_ns = |profile: &Profile| {
        let mut calls = 0;
        let mut profile = profile.clone();
        profile.measure(REQUEST, |t, p, n| Ok::<_, ()>(Some(modeled(t, p, n, &mut calls))), |_| Ok(())).unwrap();
        let (set, _) = task_set(&serde_json::to_string(&profile).unwrap(), Overrides::default()).unwrap();
        let members = [0, 1].map(|task| (task, PartitionSet::range(0, 8)));
        let bound = analyze(&core_tasks(&set, &members), Conditions::of(&set), Analysis::Kim2013)[1];
        // The task above pays 8 refills for the start of its job.
        bound.omega_ns / 2 + bound.gamma_ns
    };
    assert_eq!(charged_ns(&profile), 16 * 752);
    let costs = Costs {
        cpu: CpuId(0),
        level: 2,
        measured_at: 0,
        refill: Some(refill),
        refill_once_ns: Ns(0),
        preemption: None,
        switch: None,
        release_interrupt: None,
    };
    profile.charge(costs, 1.0);
    assert_eq!(charged_ns(&profile), 16 * refill.charged_ns.0);
    assert!(16 * refill.charged_ns.0 >= 82_688);
}

#[test]
fn the_measured_supply_of_the_cpus_of_a_profile_is_charged_unless_the_set_declares_one() {
    let measured = |cpu| {
        let text = format!(r#"{{"source": "measured", "value": {{"cpu": {cpu}, "gaps": 3, "steps": []}}}}"#);
        serde_json::from_str::<Fact<CpuSupply>>(&text).unwrap()
    };
    let mut profile = profile(16);
    profile.charge_supply(&[measured(0), measured(7)]);
    assert_eq!(profile.supply, [measured(0)]);
    // What was measured later replaces it, and what is declared does not.
    profile.charge_supply(&[]);
    assert_eq!(profile.supply, []);
    let declared = Fact { source: Source::Declared, ..measured(0) };
    profile.supply = vec![declared.clone()];
    profile.charge_supply(&[measured(0)]);
    assert_eq!(profile.supply, [declared]);
}

#[test]
fn all_that_a_task_set_says_is_planned_by_after_it_was_profiled() {
    let (declared, warnings) = declared(ALL).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let mut profile = Profile::begin(declared.programs.clone(), 8, String::new(), 0.0);
    let warnings = profile.carry(&declared).unwrap();
    assert!(warnings.len() == 1 && warnings[0].starts_with("tasks[0].wcet_ns"), "{warnings:?}");
    let mut calls = 0;
    profile.measure(REQUEST, |t, p, n| Ok::<_, ()>(Some(modeled(t, p, n, &mut calls))), |_| Ok(())).unwrap();
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
    let (planned, warnings) = task_set(&text, Overrides::default()).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    // The result is the same as if the file stated the measured values.
    let curve = |task: usize| format!("wcet_ns = {:?}\n", profile.tasks[task].wcet_ns);
    let said = ALL.replace("wcet_ns = [5, 4]\n", &curve(0)) + &curve(1) + "jitter_ns = 7\n";
    assert_eq!(planned, task_set(&said, Overrides::default()).unwrap().0);
    assert_eq!(programs(&text).unwrap().0, programs(ALL).unwrap().0);
}

/// Names every field, so that a new field has to be added to [`ALL`], too.
#[test]
fn all_means_every_field_of_a_task_set_and_of_its_programs() {
    let text = format!("{ALL}wcet_ns = 1\n");
    let (set, _) = task_set(&text, Overrides::default()).unwrap();
    let Platform {
        cores,
        partitions,
        memory,
        refill_ns,
        refills,
        switch_ns,
        release_interrupt_ns,
        preemption_ns,
        replacement,
        scope,
        page,
        memory_rule,
        cold_start,
        ref supply,
    } = *set.platform();
    let Refills { clean_ns, dirty_ns, serial_ns } = refills;
    assert!(![u64::from(cores), partitions.into(), memory.0, refill_ns].contains(&0));
    assert!(![switch_ns, release_interrupt_ns, preemption_ns].contains(&0));
    assert!(![clean_ns, dirty_ns, serial_ns].contains(&None));
    assert!(replacement != Replacement::default());
    assert!(supply.as_ref().is_some_and(|supply| supply.steps.withheld_ns(9) == 5));
    assert!(cold_start && scope != Scope::default() && memory_rule != MemoryRule::default() && page != Bytes(4096));
    let Task {
        name: _,
        period_ns,
        deadline_ns,
        memory,
        wcet_ns: _,
        jitter_ns,
        blocking_ns,
        nonpreemptive_ns,
        locks,
        priority,
        bundle,
        exclusive,
    } = &set.tasks()[0];
    assert!(![memory.0, *jitter_ns, *blocking_ns, *nonpreemptive_ns].contains(&0) && deadline_ns < period_ns);
    assert!(!locks.is_empty() && priority.is_some() && bundle.is_some() && *exclusive);
    let (all, _) = programs(ALL).unwrap();
    let Programs { cpus, level, method, tasks } = &all;
    assert!(!cpus.is_empty() && *level != 2 && *method != Partitioning::default());
    // A best-effort program has none of the other fields.
    let Program {
        name: _,
        command: _,
        period: _,
        deadline,
        memory,
        priority,
        cpu,
        budget,
        jobs,
        sporadic,
        bundle,
        best_effort: _,
    } = &tasks[0];
    assert!(deadline.0 > 0 && memory.0 > 0 && priority.is_some() && cpu.is_some() && budget.is_some());
    assert!(*jobs != Jobs::default() && *sporadic && bundle.is_some());
}

proptest! {
    #[test]
    fn the_envelope_does_not_rise_lies_above_every_point_and_is_the_least_that_does(
        times in proptest::collection::btree_map(2u32..20, 1u64..1000, 0..10),
        first in 1u64..1000,
    ) {
        let mut points = vec![point(1, first)];
        points.extend(times.iter().map(|(partitions, time)| point(*partitions, *time)));
        let curve = envelope(&points, 20);
        prop_assert_eq!(curve.len(), 20);
        prop_assert!(curve.is_sorted_by(|a, b| a >= b));
        for point in &points {
            prop_assert!(curve[point.partitions as usize - 1] >= point.high_water_ns());
        }
        // Every value is that of a point with at least p partitions, or of the nearest point with fewer.
        for (p, value) in (1u32..).zip(&curve) {
            let nearest = points.iter().rev().find(|point| point.partitions <= p).unwrap().partitions;
            let reason = points.iter().any(|point| point.partitions >= nearest && point.high_water_ns() == *value);
            prop_assert!(reason);
        }
    }
}
