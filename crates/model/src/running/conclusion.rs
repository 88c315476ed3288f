//! What a run shows, and why: whether its requirements hold, were violated, or neither can be said.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CONFIDENCE, EXPECTED_MIN, Failure, JOBS_WANTED, Limit, OFF_COLOR_MAX, Placement, Reserved, Run, SKIPPED_MAX,
};
use crate::stats::exceedance_at;

/// Conclusion of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// Every job of enough jobs stayed within its bound and its deadline.
    Holds,
    /// Some job did not, or a program failed.
    Violated,
    /// Neither can be said.
    Inconclusive,
}

/// Why a run shows what it shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Jobs took longer than they may, with the CPU theirs.
    Violated {
        /// The task.
        task: String,
        /// What.
        limit: Limit,
        /// How many.
        jobs: u64,
        /// Of how many.
        of: u64,
    },
    /// A program failed.
    Failed(Failure),
    /// Jobs took longer than they may, but steal time excuses all of them.
    StealTime {
        /// The task.
        task: String,
        /// What.
        limit: Limit,
        /// How many.
        jobs: u64,
        /// Of how many.
        of: u64,
    },
    /// Too few jobs.
    TooFewJobs {
        /// The task.
        task: String,
        /// How many.
        jobs: u64,
    },
    /// There is no bound.
    NoBound {
        /// The task.
        task: String,
    },
    /// The kernel had no room for some events, so jobs may be missing.
    Lost {
        /// How many.
        events: u64,
    },
    /// Pages lie outside their colors.
    OffColor {
        /// The task.
        task: String,
        /// Share of those that can be moved.
        share: f64,
    },
    /// Far fewer jobs were seen than its period lets expect.
    Missing {
        /// The task.
        task: String,
        /// Seen.
        jobs: u64,
        /// Expected.
        expected: u64,
    },
    /// Jobs were not released, because this program was held up.
    Skipped {
        /// How many releases.
        releases: u64,
        /// Of how many.
        of: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Violated { task, limit, jobs, of } => {
                write!(f, "{task}: {jobs} of {of} jobs exceeded the {limit}")
            }
            Reason::Failed(Failure { task, what, at }) => {
                write!(f, "{task}: {what}")?;
                if at.0 > 0 { write!(f, ", {:.3} s after the first release", at.0 as f64 / 1e9) } else { Ok(()) }
            }
            Reason::StealTime { task, limit, jobs, of } => {
                write!(
                    f,
                    "{task}: {jobs} of {of} jobs exceeded the {limit}, all by what it can have cost that the hypervisor withheld the CPU"
                )
            }
            Reason::TooFewJobs { task, jobs } => write!(
                f,
                "{task}: {jobs} jobs allow the claim that one more exceeds the longest with a probability of at most {:.2}; {JOBS_WANTED} are asked for",
                exceedance_at(*jobs, CONFIDENCE)
            ),
            Reason::NoBound { task } => write!(f, "{task}: the plan has no bound for it"),
            Reason::Lost { events } => write!(f, "{events} events of the scheduler were lost, so jobs may be missing"),
            Reason::Missing { task, jobs, expected } => {
                write!(f, "{task}: {jobs} jobs were seen where its period lets expect {expected}")
            }
            Reason::Skipped { releases, of } => {
                write!(f, "{releases} of {of} jobs were not released, as isochrome was held up when they were due")
            }
            Reason::OffColor { task, share } => {
                write!(f, "{task}: {:.1} % of its pages that can be moved lay outside its colors", share * 100.0)
            }
        }
    }
}

impl Run {
    /// What the run shows, and why. A violation that steal time excuses makes the run inconclusive instead of violated.
    pub fn conclusion(&self) -> (Conclusion, Vec<Reason>) {
        let (mut violated, mut doubts) = (Vec::new(), Vec::new());
        // By deadlines, what holds for a job is its deadline, and that it needs no more than is reserved.
        let proved = !self.reserved.is_empty() && self.reserved.iter().all(Reserved::is_proved);
        for task in &self.tasks {
            let name = || task.requirement.name.clone();
            let limits = [
                (Limit::Bound, task.bound_violations),
                (Limit::Deadline, task.deadline_violations),
                (Limit::Budget, task.budget_violations),
            ];
            for (limit, violations) in limits {
                if violations.own() > 0 {
                    violated.push(Reason::Violated { task: name(), limit, jobs: violations.own(), of: task.jobs });
                } else if violations.excused > 0 {
                    doubts.push(Reason::StealTime { task: name(), limit, jobs: violations.excused, of: task.jobs });
                }
            }
            if task.requirement.bound.is_none() && !proved {
                doubts.push(Reason::NoBound { task: name() });
            }
            if task.jobs < JOBS_WANTED {
                doubts.push(Reason::TooFewJobs { task: name(), jobs: task.jobs });
            }
            let expected = self.duration.0 / task.requirement.period.0.max(1);
            if (task.jobs as f64) < EXPECTED_MIN * expected.saturating_sub(1) as f64 {
                doubts.push(Reason::Missing { task: name(), jobs: task.jobs, expected });
            }
            if let Some(share) =
                task.placement.as_ref().map(Placement::off_color).filter(|&share| share > OFF_COLOR_MAX)
            {
                doubts.push(Reason::OffColor { task: name(), share });
            }
        }
        violated.extend(self.failures.iter().cloned().map(Reason::Failed));
        if self.overhead.lost > 0 {
            doubts.push(Reason::Lost { events: self.overhead.lost });
        }
        let releases = self.overhead.releases_skipped;
        let of = releases + self.tasks.iter().map(|task| task.jobs).sum::<u64>();
        if releases as f64 > SKIPPED_MAX * of as f64 {
            doubts.push(Reason::Skipped { releases, of });
        }
        match (violated.is_empty(), doubts.is_empty()) {
            (false, _) => (Conclusion::Violated, violated),
            (true, false) => (Conclusion::Inconclusive, doubts),
            (true, true) => (Conclusion::Holds, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::fixture::{good, job, run};
    use crate::running::{JobRecord, ViolationCount};
    use crate::units::{Color, CpuId, Ns};

    #[test]
    fn by_deadlines_a_run_holds_without_a_bound_where_what_is_reserved_fits() {
        let jobs: Vec<JobRecord> = (0..JOBS_WANTED).map(|instance| job(instance, 850, 200, 0)).collect();
        let mut run = run(&jobs);
        run.tasks
            .iter_mut()
            .for_each(|task| (task.requirement.bound, task.bound_violations) = (None, ViolationCount::default()));
        assert_eq!(run.conclusion().0, Conclusion::Inconclusive);
        run.reserved = vec![Reserved { cpu: CpuId(1), density: 0.9, most: 0.95 }];
        assert_eq!(run.conclusion(), (Conclusion::Holds, Vec::new()));
        run.reserved[0].density = 0.96;
        assert_eq!(run.conclusion().1, [Reason::NoBound { task: "control".to_owned() }]);
    }

    #[test]
    fn a_run_holds_with_enough_jobs_within_all_limits() {
        assert_eq!(run(&good(299)).conclusion(), (Conclusion::Holds, vec![]));
        let (conclusion, reasons) = run(&good(298)).conclusion();
        assert_eq!(conclusion, Conclusion::Inconclusive);
        assert_eq!(reasons, [Reason::TooFewJobs { task: "control".to_owned(), jobs: 298 }]);
    }

    #[test]
    fn one_job_beyond_its_bound_violates_however_many_hold() {
        let mut jobs = good(10_000);
        jobs.push(job(10_000, 501, 200, 0));
        let (conclusion, reasons) = run(&jobs).conclusion();
        assert_eq!(conclusion, Conclusion::Violated);
        let violations = Reason::Violated { task: "control".to_owned(), limit: Limit::Bound, jobs: 1, of: 10_001 };
        assert_eq!(reasons, [violations]);
    }

    #[test]
    fn a_job_with_steal_time_that_exceeds_its_bound_leaves_it_open() {
        let mut jobs = good(1000);
        jobs.push(job(1000, 800, 200, 300));
        let (conclusion, reasons) = run(&jobs).conclusion();
        assert_eq!(conclusion, Conclusion::Inconclusive);
        assert!(reasons[0].to_string().ends_with("withheld the CPU"), "{}", reasons[0]);
        // 800 exceeds the bound of 500 by 300, which 30 can excuse and 29 cannot.
        for (steal_time, expected) in [(30, Conclusion::Inconclusive), (29, Conclusion::Violated)] {
            jobs[1000].steal_time = Ns(steal_time);
            assert_eq!(run(&jobs).conclusion().0, expected);
        }
    }

    #[test]
    fn a_task_of_which_few_jobs_were_seen_does_not_hold() {
        let mut silent = run(&good(400));
        silent.duration = Ns(500_000);
        let missing = Reason::Missing { task: "control".to_owned(), jobs: 400, expected: 500 };
        assert_eq!(silent.conclusion(), (Conclusion::Inconclusive, vec![missing]));
    }

    #[test]
    fn what_failed_what_was_lost_and_what_lies_elsewhere_is_named() {
        let mut failed = run(&good(299));
        failed.failures.push(Failure { task: "hog".to_owned(), at: Ns(5), what: "ended with code 3".to_owned() });
        assert_eq!(failed.conclusion().0, Conclusion::Violated);
        let mut lossy = run(&good(299));
        lossy.overhead.lost = 7;
        assert_eq!(lossy.conclusion(), (Conclusion::Inconclusive, vec![Reason::Lost { events: 7 }]));
        let mut drifted = run(&good(299));
        let placement = Placement { colors: vec![Color(0)], resident: 120, on_color: 90, immovable: 20 };
        assert_eq!(placement.off_color(), 0.1);
        drifted.tasks[0].placement = Some(placement);
        assert_eq!(drifted.conclusion().0, Conclusion::Inconclusive);
    }
}
