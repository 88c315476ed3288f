//! Takes the jobs of a task one by one and checks each against the timing requirement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gaps::{NeededGap, NeededGaps};
use super::observed::{Envelope, Seen};
use super::{JobRecord, Limit, Requirement, TaskOutcome};
use crate::units::Ns;

/// Number of jobs that exceeded a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ViolationCount {
    /// Number of jobs that exceeded the limit.
    pub jobs: u64,
    /// Number of jobs over the limit that steal time excuses, because it can have caused the whole delay ([`Requirement::is_excused`]).
    #[serde(alias = "stolen")]
    pub excused: u64,
    /// The gaps that nobody reports which the other jobs would have needed not to exceed the limit ([`Requirement::needed_gap`]): the longest
    /// of each interval, in the order of the jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed: Vec<NeededGap>,
}

impl ViolationCount {
    /// Returns the number of jobs that steal time does not excuse.
    pub fn own(&self) -> u64 {
        self.jobs - self.excused
    }
}

/// Misses of the partitioned level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Misses {
    /// Sum of the misses of all jobs.
    pub sum: u64,
    /// Misses in the order of the jobs.
    pub by_instance: Envelope,
}

/// Statistics of the jobs of a task so far.
#[derive(Clone, Debug)]
pub struct Tally {
    requirement: Requirement,
    response: Seen,
    execution: Seen,
    responses: Envelope,
    misses: Option<Misses>,
    violations: [ViolationCount; 3],
    needed: [NeededGaps; 3],
    preemptions: u64,
    jobs_with_steal: u64,
}

impl Tally {
    /// Creates a tally without jobs.
    pub fn new(requirement: Requirement) -> Tally {
        let none = Seen::default;
        Tally {
            requirement,
            response: none(),
            execution: none(),
            responses: Envelope::default(),
            misses: None,
            violations: Default::default(),
            needed: Default::default(),
            preemptions: 0,
            jobs_with_steal: 0,
        }
    }

    /// Returns the timing requirement of the task.
    pub fn requirement(&self) -> &Requirement {
        &self.requirement
    }

    /// Counts a job, and returns the limits that the job exceeds.
    pub fn push(&mut self, job: &JobRecord) -> Vec<Limit> {
        let response = job.response();
        self.response.push(response);
        self.execution.push(job.execution);
        self.responses.push(response);
        self.preemptions += u64::from(job.preemptions);
        self.jobs_with_steal += u64::from(job.steal_time > Ns(0));
        if let Some(misses) = job.misses {
            let counted = self.misses.get_or_insert_with(|| Misses { sum: 0, by_instance: Envelope::default() });
            counted.sum += misses;
            counted.by_instance.push(Ns(misses));
        }
        let limits = self.requirement.violated_by(response, job.execution);
        for &limit in &limits {
            let excused = self.requirement.is_excused(limit, job);
            let violations = &mut self.violations[limit as usize];
            violations.jobs += 1;
            violations.excused += u64::from(excused);
            if !excused {
                self.needed[limit as usize].push(job.release, self.requirement.needed_gap(limit, job));
            }
        }
        limits
    }

    /// Returns the time in which 99 % of the jobs are complete, if jobs exceeded a limit that steal time does not excuse.
    pub fn accused(&self) -> Option<Ns> {
        let accuses = self.violations.iter().any(|violations| violations.own() > 0);
        accuses.then(|| self.response.observed().map(|response| response.p99)).flatten()
    }

    /// Returns the outcome of the task, without its CPU, releases and placements.
    pub fn outcome(&self) -> TaskOutcome {
        let violations = |limit: Limit| ViolationCount {
            needed: self.needed[limit as usize].gaps().to_vec(),
            ..self.violations[limit as usize].clone()
        };
        TaskOutcome {
            requirement: self.requirement.clone(),
            jobs: self.response.spread.n,
            response: self.response.observed(),
            execution: self.execution.observed(),
            responses: self.responses.clone(),
            misses: self.misses.clone(),
            bound_violations: violations(Limit::Bound),
            deadline_violations: violations(Limit::Deadline),
            budget_violations: violations(Limit::Budget),
            preemptions: self.preemptions,
            jobs_with_steal: self.jobs_with_steal,
            cpu: None,
            releases: None,
            placement: None,
            placements: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::fixture::{job, requirement};

    #[test]
    fn a_million_jobs_take_no_more_memory_than_a_few() {
        let mut tally = Tally::new(requirement());
        let memory = allocation_counter::measure(|| {
            for instance in 0..1_000_000 {
                tally.push(&JobRecord { misses: Some(instance % 7), ..job(instance, 400 + instance % 90_000, 200, 0) });
            }
        });
        assert!(memory.bytes_max < 64 << 10, "{} bytes", memory.bytes_max);
        assert_eq!(tally.outcome().jobs, 1_000_000);
    }
}
