//! Jobs and runs for tests.

use super::{JobRecord, Releases, Requirement, ResponseBound, Run, Tally, TaskOutcome};
use crate::taskset::programs::Partitioning;
use crate::units::{CpuId, Ns};

pub fn requirement() -> Requirement {
    Requirement {
        name: "control".to_owned(),
        period: Ns(1000),
        deadline: Ns(900),
        bound: Some(ResponseBound(Ns(500))),
        without_interference: Some(Ns(400)),
        budget: Some(Ns(300)),
        wcet: Some(Ns(250)),
        utilization: Some(0.3),
        ..Requirement::default()
    }
}

pub fn job(instance: u64, response: u64, execution: u64, steal_time: u64) -> JobRecord {
    JobRecord {
        instance,
        release: Ns(1000 * instance),
        start: Ns(1000 * instance + 10),
        completion: Ns(1000 * instance + response),
        execution: Ns(execution),
        steal_time: Ns(steal_time),
        steals: u32::from(steal_time > 0),
        ..JobRecord::default()
    }
}

pub fn run(jobs: &[JobRecord]) -> Run {
    let mut tally = Tally::new(requirement());
    jobs.iter().for_each(|job| {
        tally.push(job);
    });
    Run {
        cpus: vec![CpuId(1)],
        partitioned: true,
        method: Partitioning::None,
        level: 2,
        duration: Ns(1000 * jobs.len() as u64),
        tasks: vec![TaskOutcome { releases: Some(seen(jobs.len() as u64)), ..tally.outcome() }],
        ..Run::default()
    }
}

/// Returns an account of releases that were all seen.
pub fn seen(releases: u64) -> Releases {
    Releases { seen: releases, ..Releases::default() }
}

pub fn good(n: u64) -> Vec<JobRecord> {
    (0..n).map(|instance| job(instance, 400 + instance % 100, 200, 0)).collect()
}
