//! Speed of the analysis of cores, compared with the crate response-time-analysis on the same cores in the same run. That crate
//! does not model caches.
//!
//! `cargo bench -p isochrome-model --bench analysis` measures. `cargo test --benches` analyzes a few cores, and only checks that
//! both give the same bounds without cache delays. `-- --write FILE` also writes the cores, with their bounds without cache
//! delays, for scripts/planning_rivals.py. A second table has the speed of every family of analyses on the same cores.

use std::hint::black_box;
use std::time::Instant;

use isochrome_model::analysis::{Analysis, Charges, CoreTask, Verdict, Workspace, responses, schedulable};
use isochrome_model::replacement::Replacement;
use isochrome_model::taskset::PartitionSet;
use response_time_analysis::arrival::Sporadic;
use response_time_analysis::demand::RBF;
use response_time_analysis::fixed_priority::fully_preemptive::dedicated_uniproc_rta;
use response_time_analysis::time::{Duration, Service};
use response_time_analysis::wcet::Scalar;

/// Returns `count` schedulable cores of `tasks` tasks: periods log-uniform over 10 ms to 1 s, utilization 0.6 to 0.8, 32
/// partitions.
fn cores(tasks: usize, count: usize) -> Vec<Vec<CoreTask>> {
    let mut random = fastrand::Rng::with_seed(tasks as u64);
    let mut found = Vec::new();
    let mut workspace = Workspace::default();
    while found.len() < count {
        let total = 0.6 + 0.2 * random.f64();
        let shares: Vec<f64> = (0..tasks).map(|_| random.f64() + 0.1).collect();
        let sum: f64 = shares.iter().sum();
        let mut core: Vec<CoreTask> = shares
            .iter()
            .map(|share| {
                let period_ns = (1e7 * 100f64.powf(random.f64())) as u64;
                let partitions = PartitionSet::range(random.u32(0..24), random.u32(1..=8));
                CoreTask::new(((period_ns as f64 * share / sum * total) as u64).max(1), period_ns, partitions)
            })
            .collect();
        core.sort_by_key(|task| task.period_ns);
        // A missed deadline ends an analysis early, so only cores are kept that take the whole analysis.
        if schedulable(&core, CHARGES, Analysis::Kim2013, &mut workspace) {
            found.push(core);
        }
    }
    found
}

const CHARGES: Charges = Charges {
    refill_ns: 45_300,
    switch_ns: 0,
    release_interrupt_ns: 0,
    preemption_ns: 0,
    cold_start: false,
    replacement: Replacement::Lru,
};

fn ours(core: &[CoreTask], charges: Charges, workspace: &mut Workspace) -> u64 {
    responses(core, charges, Analysis::Kim2013, workspace).map(|verdict| verdict.response_ns().unwrap_or(0)).sum()
}

fn theirs(core: &[CoreTask]) -> u64 {
    let demands: Vec<RBF<Sporadic, Scalar>> = core
        .iter()
        .map(|task| {
            let arrivals = Sporadic::new_zero_jitter(Duration::from(task.period_ns));
            RBF::new(arrivals, Scalar::new(Service::from(task.wcet_ns)))
        })
        .collect();
    core.iter()
        .enumerate()
        .map(|(i, task)| {
            let bound = dedicated_uniproc_rta(&demands[i], &demands[..i], Duration::from(task.deadline_ns));
            bound.map_or(0, u64::from)
        })
        .sum()
}

/// Returns a core and its bounds without cache delays as JSON, for tools that model no cache delays.
fn described(core: &[CoreTask]) -> serde_json::Value {
    let charges = Charges { refill_ns: 0, ..CHARGES };
    let mut workspace = Workspace::default();
    let bounds: Vec<Option<u64>> =
        responses(core, charges, Analysis::Kim2013, &mut workspace).map(Verdict::response_ns).collect();
    let tasks: Vec<_> =
        core.iter().map(|task| serde_json::json!({"period_ns": task.period_ns, "wcet_ns": task.wcet_ns})).collect();
    serde_json::json!({"tasks": tasks, "responses_ns": bounds})
}

/// Returns the cores analyzed per second: the best of several rounds, which other load on the machine disturbs least.
fn rate(cores: &[Vec<CoreTask>], rounds: usize, mut analyze: impl FnMut(&[CoreTask]) -> u64) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        for core in cores {
            black_box(analyze(black_box(core)));
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    cores.len() as f64 / best
}

/// Prints the speed of every family of analyses, and the share of the tasks that it bounds within their deadlines.
fn families(rounds: usize, measure: bool) {
    let mut workspace = Workspace::default();
    let sizes = [(8, 2_000), (16, 500), (32, 100)].map(|(tasks, count)| cores(tasks, if measure { count } else { 20 }));
    println!("\ntask sets per second on one core, all response times of each, by family");
    println!("| analysis | n = 8 | n = 16 | n = 32 | bounds within deadlines |\n|---|---:|---:|---:|---:|");
    for analysis in Analysis::ALL {
        let rates = sizes.each_ref().map(|cores| {
            rate(cores, rounds, |core| {
                let bounds = responses(core, CHARGES, analysis, &mut workspace);
                bounds.map(|verdict| verdict.response_ns().unwrap_or(0)).sum()
            })
        });
        let verdicts: Vec<Verdict> = sizes
            .iter()
            .flatten()
            .flat_map(|core| responses(core, CHARGES, analysis, &mut workspace).collect::<Vec<_>>())
            .collect();
        let bounded = verdicts.iter().filter(|verdict| **verdict != Verdict::Misses).count();
        let share = 100.0 * bounded as f64 / verdicts.len() as f64;
        println!("| `{analysis}` | {:.0} | {:.0} | {:.0} | {share:.1} % |", rates[0], rates[1], rates[2]);
    }
}

fn main() {
    let measure = std::env::args().any(|argument| argument == "--bench");
    let written = std::env::args().skip_while(|argument| argument != "--write").nth(1);
    let mut all = serde_json::Map::new();
    let mut workspace = Workspace::default();
    println!("task sets per second on one core, all response times of each");
    println!("| n | kim2013 | response-time-analysis, no caches | ratio |\n|---:|---:|---:|---:|");
    for (tasks, count) in [(8, 20_000), (16, 5_000), (32, 1_000)] {
        let cores = cores(tasks, if measure { count } else { 20 });
        for core in &cores {
            let apart = Charges { refill_ns: 0, ..CHARGES };
            assert_eq!(ours(core, apart, &mut workspace), theirs(core), "without cache delays both bound alike");
            assert!(
                responses(core, CHARGES, Analysis::Kim2013, &mut workspace).all(|verdict| verdict != Verdict::Misses)
            );
        }
        all.insert(tasks.to_string(), cores.iter().take(100).map(|core| described(core)).collect());
        let rounds = if measure { 15 } else { 1 };
        let ours = rate(&cores, rounds, |core| ours(core, CHARGES, &mut workspace));
        let theirs = rate(&cores, rounds, theirs);
        println!("| {tasks} | {ours:.0} | {theirs:.0} | {:.1} |", ours / theirs);
    }
    families(if measure { 5 } else { 1 }, measure);
    if let Some(path) = written {
        std::fs::write(path, serde_json::Value::Object(all).to_string()).expect("a file that can be written");
    }
}
