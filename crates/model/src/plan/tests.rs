use super::*;
use crate::taskset::tests::{platform, task};
use crate::taskset::{Platform, Task};
use allocate::{Effort, best};

/// [Kim2013, Table 1] with the curves of examples/kim2013-table1.json, `copies` times.
fn table_1(copies: usize, platform: Platform) -> TaskSet {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../../../../examples/kim2013-table1.json")).unwrap();
    let mut tasks: Vec<Task> = Vec::new();
    for copy in 0..copies {
        for known in file["tasks"].as_array().unwrap() {
            let curve: Vec<u64> = known["wcet_ns"].as_array().unwrap().iter().map(|c| c.as_u64().unwrap()).collect();
            let name = format!("{}.{copy}", known["name"].as_str().unwrap());
            tasks.push(task(
                &name,
                known["period_ns"].as_u64().unwrap(),
                known["memory_mib"].as_u64().unwrap(),
                &curve,
            ));
        }
    }
    TaskSet::new(platform, tasks).unwrap().0
}

const DELTA: u64 = 45_300;
const KIM: Rules = Rules { analysis: Analysis::Kim2013, sharing: true };

#[test]
fn table_2_is_the_best_allocation_of_8_partitions() {
    let set = table_1(1, platform(1, 32, 1024, DELTA));
    let found = best(&set, KIM, set.by_priority(), 8, Effort::EXACT);
    let (utilization, mut groups) = found.found.unwrap();
    assert!((utilization - 0.7814).abs() < 5e-5, "{utilization}");
    groups.sort_unstable();
    // Tasks 1, 2 and 3 share three partitions, tasks 1, 3 and 4 share five.
    assert_eq!(groups, [(0b0111, 3), (0b1101, 5)]);
    assert!(found.lower >= utilization - 1e-8, "proven");
    let alone = best(&set, Rules { sharing: false, ..KIM }, set.by_priority(), 8, Effort::EXACT);
    assert!((alone.upper() - 0.89).abs() < 5e-3, "{}", alone.upper());
}

/// Best of all allocations of `partitions` over the members, by trying each: any subset of partitions for every task.
fn exhaustive(set: &TaskSet, members: &[usize], partitions: u32) -> f64 {
    let choices = 1u64 << partitions;
    let charges = Charges::of(set);
    let mut least = f64::INFINITY;
    'codes: for code in 0..choices.pow(members.len() as u32) {
        let mut shares = Vec::new();
        for (place, &task) in members.iter().enumerate() {
            let bits = code / choices.pow(place as u32) % choices;
            if bits == 0 {
                continue 'codes;
            }
            shares
                .push((task, (0..partitions).filter(|partition| bits >> partition & 1 == 1).collect::<PartitionSet>()));
        }
        let core = core_tasks(set, &shares);
        let met = analyze(&core, charges, Analysis::Kim2013).iter().all(|bound| bound.verdict.response_ns().is_some());
        if met && overfull_partition(set, &shares).is_none() {
            least = least.min(utilization(&core, charges));
        }
    }
    least
}

fn random_set(random: &mut fastrand::Rng, count: usize, cores: u32, partitions: u32) -> TaskSet {
    let load = random.u64(2..=8);
    let mut tasks = Vec::new();
    for index in 0..count {
        let period_ns = random.u64(20..=200);
        let mut wcet = 1 + period_ns * random.u64(1..=load) / 10;
        let curve: Vec<u64> = (0..partitions)
            .map(|_| {
                wcet -= random.u64(0..=wcet / 4);
                wcet = wcet.max(1);
                wcet
            })
            .collect();
        let mut task = task(&format!("t{index}"), period_ns, 0, &curve);
        task.deadline_ns -= random.u64(0..=period_ns / 5);
        task.memory = crate::units::Bytes(4096 * random.u64(1..=12));
        tasks.push(task);
    }
    let machine = Platform {
        memory: crate::units::Bytes(u64::from(partitions) * 10 * 4096),
        ..platform(cores, partitions, 1, random.u64(0..=4))
    };
    TaskSet::new(machine, tasks).unwrap().0
}

#[test]
fn the_branch_and_bound_finds_what_trying_everything_finds() {
    let mut feasible = 0;
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (count, partitions) = random.choice([(2, 4), (3, 3), (4, 2), (2, 3)]).unwrap();
        let set = random_set(&mut random, count, 1, partitions);
        let found = best(&set, KIM, set.by_priority(), partitions, Effort::EXACT);
        let truth = exhaustive(&set, set.by_priority(), partitions);
        assert!(
            (found.upper() - truth).abs() < 1e-7 || found.upper() == truth,
            "seed {seed}: {} {truth}",
            found.upper()
        );
        assert!((found.lower - truth).abs() < 1e-7 || found.lower == truth, "seed {seed}: {} {truth}", found.lower);
        feasible += u32::from(truth.is_finite());
    }
    assert!((100..290).contains(&feasible), "{feasible}");
}

/// The objective of the best plan for 2 cores, by trying every split of tasks and partitions.
fn exhaustive_plans(set: &TaskSet, partitions: u32) -> (Option<u32>, f64) {
    let count = set.tasks().len();
    let (mut fewest, mut least) = (None, f64::INFINITY);
    for split in 0..1usize << count {
        let side = |bit: usize| -> Vec<usize> {
            set.by_priority().iter().copied().filter(|task| split >> task & 1 == bit).collect()
        };
        let cost = |members: &[usize]| -> Vec<f64> {
            (0..=partitions).map(|k| best(set, KIM, members, k, Effort::EXACT).upper()).collect()
        };
        let (a, b) = (cost(&side(0)), cost(&side(1)));
        for (k, a) in (0u32..).zip(&a) {
            for (l, b) in (0u32..).zip(&b).take_while(|(l, _)| k + l <= partitions) {
                if a + b < f64::INFINITY {
                    fewest = Some(fewest.unwrap_or(k + l).min(k + l));
                    least = least.min(a + b);
                }
            }
        }
    }
    (fewest, least)
}

fn planned(set: &TaskSet, method: Method, objective: Objective) -> Plan {
    plan(set, &Request { method, objective, ..Request::default() }).unwrap()
}

/// Re-checks a plan from its written form alone.
fn recheck(set: &TaskSet, plan: &Plan) {
    let find = |name: &str| set.tasks().iter().position(|task| task.name == name).unwrap();
    let mut owners = std::collections::BTreeMap::new();
    let mut placed = 0;
    for core in &plan.cores {
        let members: Vec<(usize, PartitionSet)> =
            core.tasks.iter().map(|task| (find(&task.name), task.partitions.iter().map(|p| p - 1).collect())).collect();
        placed += members.len();
        assert_eq!(overfull_partition(set, &members), None);
        for bound in analyze(&core_tasks(set, &members), Charges::of(set), plan.analysis) {
            assert!(bound.verdict.response_ns().is_some());
        }
        for partition in &core.partitions {
            assert!(*partition <= set.platform().partitions);
            assert_eq!(owners.insert(*partition, core.cpu), None, "a partition belongs to one core");
        }
    }
    assert_eq!(placed, set.tasks().len());
}

#[test]
fn plans_are_optimal_and_heuristics_never_beat_them() {
    let (mut solved, mut cata_missed) = (0, 0);
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let partitions = random.u32(3..=6);
        let set = random_set(&mut random, 5, 2, partitions);
        let (fewest, least) = exhaustive_plans(&set, partitions);
        let few = planned(&set, Method::Optimal, Objective::Partitions);
        assert_eq!(few.schedulable.then_some(few.partitions_used), fewest, "seed {seed}");
        let low = planned(&set, Method::Optimal, Objective::Utilization);
        assert_eq!(low.schedulable, fewest.is_some(), "seed {seed}");
        if fewest.is_none() {
            continue;
        }
        solved += 1;
        assert!((low.utilization - least).abs() < 1e-7, "seed {seed}: {} {least}", low.utilization);
        assert_eq!((few.gap, low.gap), (Some(0.0), Some(0.0)), "seed {seed}");
        for plan in [&few, &low] {
            recheck(&set, plan);
        }
        for method in [Method::Cata, Method::Bfd, Method::Wfd] {
            let plan = planned(&set, method, Objective::Partitions);
            if plan.schedulable {
                recheck(&set, &plan);
                assert!(plan.partitions_used >= few.partitions_used, "seed {seed} {method}");
                assert!(planned(&set, method, Objective::Utilization).utilization >= low.utilization - 1e-7);
            }
            cata_missed += u32::from(method == Method::Cata && !plan.schedulable);
        }
    }
    assert!(solved > 60 && cata_missed > 0, "{solved} {cata_missed}");
}

#[test]
fn the_papers_sets_need_no_more_partitions_than_their_memory_does() {
    // 18 + 66 + 52 + 50 = 186 MB a copy; 372, 558, 744 MB need 12, 18, 24 partitions of 32 MB and 6, 9, 12 of 64 MB.
    // cata: 12, 19 and 26, the numbers that the requirements of this planner state for the algorithms of the paper; not derived here.
    for (memory, fewest, by_cata) in [(1024, [12, 18, 24], [12, 19, 26]), (2048, [6, 9, 12], [7, 10, 14])] {
        for (copies, (fewest, by_cata)) in (2..).zip(fewest.into_iter().zip(by_cata)) {
            let set = table_1(copies, platform(4, 32, memory, DELTA));
            let optimal = planned(&set, Method::Optimal, Objective::Partitions);
            recheck(&set, &optimal);
            assert_eq!((optimal.partitions_used, optimal.gap), (fewest, Some(0.0)), "{memory} MB, {copies} copies");
            let cata = planned(&set, Method::Cata, Objective::Partitions);
            recheck(&set, &cata);
            assert!(cata.partitions_used <= by_cata, "{memory} MB, {copies} copies: {}", cata.partitions_used);
        }
    }
}

#[test]
fn the_least_utilization_of_16_tasks_on_4_cores_is_proven() {
    for memory in [1024, 2048] {
        let set = table_1(4, platform(4, 32, memory, DELTA));
        let optimal = planned(&set, Method::Optimal, Objective::Utilization);
        recheck(&set, &optimal);
        assert_eq!(optimal.gap, Some(0.0));
        assert!(planned(&set, Method::Cata, Objective::Utilization).utilization >= optimal.utilization);
    }
}

#[test]
fn the_order_of_the_file_and_the_names_change_no_value() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let set = random_set(&mut random, 5, 2, 5);
        let mut tasks = set.tasks().to_vec();
        random.shuffle(&mut tasks);
        for (index, task) in tasks.iter_mut().enumerate() {
            task.name = format!("renamed{index}");
        }
        let distinct =
            tasks.iter().map(|task| task.deadline_ns).collect::<std::collections::BTreeSet<_>>().len() == tasks.len();
        let shuffled = TaskSet::new(set.platform().clone(), tasks).unwrap().0;
        if distinct {
            let (a, b) = (
                planned(&set, Method::Optimal, Objective::Utilization),
                planned(&shuffled, Method::Optimal, Objective::Utilization),
            );
            assert_eq!(a.schedulable, b.schedulable);
            assert!((a.utilization - b.utilization).abs() < 1e-7);
        }
    }
}

#[test]
fn tasks_of_a_bundle_stay_together() {
    let set = table_1(2, platform(4, 32, 1024, DELTA));
    let mut tasks = set.tasks().to_vec();
    tasks[0].bundle = Some("pair".into());
    tasks[6].bundle = Some("pair".into());
    let set = TaskSet::new(set.platform().clone(), tasks).unwrap().0;
    for method in [Method::Optimal, Method::Cata, Method::Bfd, Method::Wfd] {
        let plan = planned(&set, method, Objective::Partitions);
        assert!(plan.schedulable, "{method}");
        let core_of = |task: usize| {
            plan.cores.iter().position(|core| core.tasks.iter().any(|t| t.name == set.tasks()[task].name))
        };
        assert_eq!(core_of(0), core_of(6), "{method}");
    }
}

#[test]
fn private_caches_give_every_core_all_partitions() {
    // Each core has 8 partitions, but only half of the memory of each.
    let machine = Platform { scope: crate::taskset::Scope::Private, ..platform(2, 8, 1024, DELTA) };
    let set = table_1(1, machine);
    let plan = planned(&set, Method::Optimal, Objective::Utilization);
    assert!(plan.schedulable);
    assert_eq!(plan.gap, Some(0.0));
    assert!(plan.cores.iter().all(|core| core.partitions.iter().all(|&partition| partition <= 8)));
    assert_eq!(plan.cores.len(), 2);
}

#[test]
fn the_margin_is_the_last_factor_with_a_plan() {
    let set = table_1(2, platform(2, 32, 1024, DELTA));
    let found = planned(&set, Method::Optimal, Objective::Margin);
    let margin = found.margin.unwrap();
    assert!(margin > 1.0 && found.bound.unwrap() - margin < 1.1e-4, "{margin} {:?}", found.bound);
    let scaled = |factor: f64| set.with_wcet_scaled((factor * 1e6).round() as u64, 1_000_000);
    assert!(planned(&scaled(margin), Method::Optimal, Objective::Partitions).schedulable);
    assert!(!planned(&scaled(found.bound.unwrap()), Method::Optimal, Objective::Partitions).schedulable);
}

#[test]
fn a_plan_stopped_at_once_is_honest_about_its_gap() {
    let set = table_1(4, platform(4, 32, 1024, DELTA));
    let request = Request { objective: Objective::Utilization, should_stop: &|| true, ..Request::default() };
    let plan = plan(&set, &request).unwrap();
    let proven = planned(&set, Method::Optimal, Objective::Utilization).utilization;
    assert!(plan.bound.is_none_or(|bound| bound <= proven + 1e-7));
    if plan.schedulable {
        assert!(plan.gap.unwrap() > 0.0);
    }
}

#[test]
#[ignore = "takes a minute; run with --release"]
fn sixteen_distinct_tasks_are_planned_to_within_a_percent() {
    use std::time::Instant;
    let set = table_1(4, platform(4, 32, 1024, DELTA));
    let mut random = fastrand::Rng::with_seed(7);
    let mut tasks = set.tasks().to_vec();
    for task in &mut tasks {
        let factor = random.u64(900..=1100);
        task.period_ns = task.period_ns * random.u64(900..=1100) / 1000;
        task.deadline_ns = task.period_ns;
        task.wcet_ns.iter_mut().for_each(|time| *time = *time * factor / 1000);
    }
    let set = TaskSet::new(set.platform().clone(), tasks).unwrap().0;
    let start = Instant::now();
    let stop = || start.elapsed().as_secs() >= 60;

    let request = Request { objective: Objective::Utilization, should_stop: &stop, ..Request::default() };
    let plan = plan(&set, &request).unwrap();
    recheck(&set, &plan);
    assert!(plan.gap.unwrap() <= 0.01, "{:?}", plan.gap);
}

#[test]
fn pictures_show_every_task_and_partition_and_are_well_formed() {
    let set = table_1(1, platform(1, 8, 256, DELTA));
    let plan = planned(&set, Method::Optimal, Objective::Utilization);
    let map = color_map(&plan, 8);
    let parsed = roxmltree::Document::parse(&map).unwrap();
    // 4 tasks of 8 partitions, and the background.
    assert_eq!(parsed.descendants().filter(|node| node.has_tag_name("rect")).count(), 4 * 8 + 1);
    let names: Vec<&str> = plan.cores[0].tasks.iter().map(|task| task.name.as_str()).collect();
    let members: Vec<(usize, PartitionSet)> = (0..4).map(|task| (task, PartitionSet::range(0, 8))).collect();
    let drawn = gantt(&names, &core_tasks(&set, &members), Charges::of(&set), Analysis::Kim2013);
    roxmltree::Document::parse(&drawn).unwrap();
    assert!(names.iter().all(|name| drawn.contains(name)));
}
