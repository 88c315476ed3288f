//! Conclusion of a run and its reasons: the requirements hold, were violated, or neither can be concluded.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CONFIDENCE, EARLIER_JOBS_MIN, Failure, GapComparison, JOBS_WANTED, Limit, OFF_COLOR_MAX, Placement, Reserved, Run,
    SKIPPED_MAX, TaskOutcome,
};
use crate::evidence::format;
use crate::stats::exceedance_at;
use crate::taskset::programs::Partitioning;
use crate::units::Ns;

/// Conclusion of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// There were enough jobs, every job stayed within its bound and its deadline, and every release and every page is accounted for.
    Holds,
    /// A job exceeded a limit without an excuse, or a program failed.
    Violated,
    /// Neither of the above can be concluded.
    Inconclusive,
}

/// Reason for the conclusion of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Jobs exceeded a limit, and steal time does not excuse them.
    Violated {
        /// Name of the task.
        task: String,
        /// Limit that was exceeded.
        limit: Limit,
        /// Number of jobs that exceeded the limit without an excuse.
        jobs: u64,
        /// Number of all jobs of the task.
        of: u64,
    },
    /// A program failed.
    Failed(Failure),
    /// Jobs exceeded a limit, but steal time excuses all of them.
    StealTime {
        /// Name of the task.
        task: String,
        /// Limit that was exceeded.
        limit: Limit,
        /// Number of jobs that exceeded the limit.
        jobs: u64,
        /// Number of all jobs of the task.
        of: u64,
    },
    /// Jobs exceeded a limit, and gaps of the CPU that nobody reports may have met them.
    Gaps {
        /// Name of the task.
        task: String,
        /// Limit that was exceeded.
        limit: Limit,
        /// Number of jobs that exceeded the limit without an excuse.
        jobs: u64,
        /// Number of all jobs of the task.
        of: u64,
        /// Comparison of the jobs with the gaps.
        compared: GapComparison,
    },
    /// The task had too few jobs for a conclusion.
    TooFewJobs {
        /// Name of the task.
        task: String,
        /// Number of jobs of the task.
        jobs: u64,
    },
    /// The plan has no bound for the task.
    NoBound {
        /// Name of the task.
        task: String,
    },
    /// The kernel had no room for some events, so jobs may be missing.
    Lost {
        /// Number of lost events.
        events: u64,
    },
    /// Pages of the task lie outside its colors.
    OffColor {
        /// Name of the task.
        task: String,
        /// Number of pages outside the colors.
        pages: u64,
        /// Number of pages that were judged.
        of: u64,
        /// Description of the pages outside the colors; empty if none is known.
        what: String,
    },
    /// The placement of the task's pages could not be seen at both ends of every block.
    Unseen {
        /// Name of the task.
        task: String,
    },
    /// Pages of the task cannot be moved, for no known reason.
    Unnamed {
        /// Name of the task.
        task: String,
        /// Number of pages without a known reason.
        pages: u64,
    },
    /// For some releases no job was seen, and no reason is known.
    Missing {
        /// Name of the task.
        task: String,
        /// Number of releases without a job.
        releases: u64,
        /// Number of expected releases.
        of: u64,
    },
    /// Releases of a program that wakes itself did not come in time.
    Absent {
        /// Name of the task.
        task: String,
        /// Number of releases that did not come in time.
        releases: u64,
        /// Number of expected releases.
        of: u64,
        /// Longest allowed delay of a release.
        allowed: Ns,
    },
    /// Releases of a program that wakes itself came sooner than the bounds assume.
    TooClose {
        /// Name of the task.
        task: String,
        /// Number of releases that came too soon.
        releases: u64,
        /// Number of expected releases.
        of: u64,
        /// Least time between two releases.
        least: Ns,
    },
    /// Far fewer jobs were seen than the period lets expect. This applies to runs of earlier versions, which did not count releases.
    Few {
        /// Name of the task.
        task: String,
        /// Number of jobs seen.
        jobs: u64,
        /// Number of jobs expected.
        expected: u64,
    },
    /// Jobs were not released, because isochrome was held up.
    Skipped {
        /// Number of jobs that were not released.
        releases: u64,
        /// Number of all jobs, released or not.
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
                    "{task}: {jobs} of {of} jobs exceeded the {limit}, and the CPU time that the hypervisor withheld can explain all of them"
                )
            }
            Reason::Gaps { task, limit, jobs, of, compared } => {
                write!(f, "{task}: {jobs} of {of} jobs exceeded the {limit}, {compared}; a longer run tells")
            }
            Reason::TooFewJobs { task, jobs } => write!(
                f,
                "{task}: {jobs} jobs allow the claim that one more exceeds the longest with a probability of at most {:.2}; {JOBS_WANTED} are required",
                exceedance_at(*jobs, CONFIDENCE)
            ),
            Reason::NoBound { task } => write!(f, "{task}: the plan has no bound for it"),
            Reason::Lost { events } => write!(f, "{events} events of the scheduler were lost, so jobs may be missing"),
            Reason::Missing { task, releases, of } => {
                write!(f, "{task}: {releases} of {of} releases have no job that was seen, and no reason is known")
            }
            Reason::Absent { task, releases, of, allowed } => write!(
                f,
                "{task}: {releases} of {of} releases did not come within a period and {}, the sum of the jitter that its task set declares \
                 (jitter_ns) and the time to wake it",
                format::nanoseconds(allowed.0 as f64)
            ),
            Reason::TooClose { task, releases, of, least } => write!(
                f,
                "{task}: {releases} of {of} releases came within {} of the one before or too soon after several, contrary to the assumption \
                 of the bounds",
                format::nanoseconds(least.0 as f64)
            ),
            Reason::Few { task, jobs, expected } => {
                write!(f, "{task}: {jobs} jobs were seen, but {expected} are expected by its period")
            }
            Reason::Skipped { releases, of } => {
                write!(f, "{releases} of {of} jobs were not released, as isochrome was held up when they were due")
            }
            Reason::OffColor { task, pages, of, what } => {
                let what = if what.is_empty() { String::new() } else { format!(": {what}") };
                write!(
                    f,
                    "{task}: {pages} of its {of} pages lay outside its colors, {:.1} % where at most {} % are allowed, because bounds take \
                     no account of them{what}",
                    *pages as f64 / (*of).max(1) as f64 * 100.0,
                    OFF_COLOR_MAX * 100.0
                )
            }
            Reason::Unseen { task } => {
                write!(f, "{task}: the placement of its pages could not be seen at both ends of every block")
            }
            Reason::Unnamed { task, pages } => {
                write!(f, "{task}: {pages} of its pages cannot be moved, and no reason is known")
            }
        }
    }
}

impl Run {
    /// Returns the conclusion of the run, and the reasons for it. A violation that steal time excuses makes the run inconclusive instead of
    /// violated.
    pub fn conclusion(&self) -> (Conclusion, Vec<Reason>) {
        let (violated, doubts) = self.reasons();
        match (violated.is_empty(), doubts.is_empty()) {
            (false, _) => (Conclusion::Violated, violated),
            (true, false) => (Conclusion::Inconclusive, doubts),
            (true, true) => (Conclusion::Holds, Vec::new()),
        }
    }

    /// Returns the reasons why the requirements are violated, and those why nothing can be concluded.
    pub(super) fn reasons(&self) -> (Vec<Reason>, Vec<Reason>) {
        let (mut violated, mut doubts) = (Vec::new(), Vec::new());
        // Tasks scheduled by deadlines need no bound if the reservations are proven to fit. Their limits are the deadline and the reserved
        // budget.
        let proved = !self.reserved.is_empty() && self.reserved.iter().all(Reserved::is_proved);
        for task in &self.tasks {
            let name = || task.requirement.name.clone();
            let limits = [
                (Limit::Bound, &task.bound_violations),
                (Limit::Deadline, &task.deadline_violations),
                (Limit::Budget, &task.budget_violations),
            ];
            for (limit, violations) in limits {
                if violations.own() > 0
                    && let Some(compared) = self.met_by_gaps(task, limit)
                {
                    let (jobs, of) = (violations.own(), task.jobs);
                    doubts.push(Reason::Gaps { task: name(), limit, jobs, of, compared });
                } else if violations.own() > 0 {
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
            doubts.extend(self.unaccounted(task));
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
        (violated, doubts)
    }
}

impl Run {
    /// Returns the doubts about a task whose releases or pages are not all accounted for, or whose pages lie outside its colors.
    fn unaccounted(&self, task: &TaskOutcome) -> Vec<Reason> {
        let name = || task.requirement.name.clone();
        let Some(releases) = task.releases else { return self.unaccounted_earlier(task) };
        let mut doubts = Vec::new();
        let (missing, of, pattern) =
            (releases.missing(task.jobs), releases.expected(), task.requirement.release_pattern());
        if missing > 0 {
            doubts.push(Reason::Missing { task: name(), releases: missing, of });
        }
        if releases.absent > 0 {
            doubts.push(Reason::Absent { task: name(), releases: releases.absent, of, allowed: pattern.allowed() });
        }
        if releases.close > 0 {
            let least = Ns(pattern.period.0.saturating_sub(pattern.allowed().0));
            doubts.push(Reason::TooClose { task: name(), releases: releases.close, of, least });
        }
        let has_colors = self.partitioned && matches!(self.method, Partitioning::Colors | Partitioning::Both);
        let unseen = || task.placements.iter().any(|block| block.begin.is_none() || block.end.is_none());
        if has_colors && (task.placements.is_empty() || unseen()) {
            doubts.push(Reason::Unseen { task: name() });
        }
        if let Some(worst) = task.placement.as_ref().filter(|worst| worst.off_color_share() > OFF_COLOR_MAX) {
            let (pages, of, what) = (worst.off_color(), worst.own(), worst.off_color_text());
            doubts.push(Reason::OffColor { task: name(), pages, of, what });
        }
        let placements = task.placements.iter().flat_map(|block| [&block.begin, &block.end]).flatten();
        let pages = placements.map(Placement::unnamed).max().unwrap_or(0);
        if pages > 0 {
            doubts.push(Reason::Unnamed { task: name(), pages });
        }
        doubts
    }

    /// Returns the doubts about a task by the rules of earlier versions, for evidence that they recorded. Nine tenths of the jobs that the period
    /// lets expect are enough. Only pages that can be moved are judged.
    fn unaccounted_earlier(&self, task: &TaskOutcome) -> Vec<Reason> {
        let name = || task.requirement.name.clone();
        let mut doubts = Vec::new();
        let expected = self.duration.0 / task.requirement.period.0.max(1);
        if (task.jobs as f64) < EARLIER_JOBS_MIN * expected.saturating_sub(1) as f64 {
            doubts.push(Reason::Few { task: name(), jobs: task.jobs, expected });
        }
        if let Some(seen) = task.placement.as_ref().filter(|seen| seen.movable_off_color_share() > OFF_COLOR_MAX) {
            let of = seen.resident.saturating_sub(seen.immovable);
            let (pages, what) = (of.saturating_sub(seen.on_color), "pages that can be moved".to_owned());
            doubts.push(Reason::OffColor { task: name(), pages, of, what });
        }
        doubts
    }

    /// Returns whether an earlier version, which did not count releases, recorded the run.
    pub fn is_of_earlier_version(&self) -> bool {
        self.tasks.iter().any(|task| task.releases.is_none())
    }

    /// Returns the assumptions that the conclusion of a run rests on, in addition to those of every bound. If an earlier version recorded
    /// the run, the first assumption names this.
    pub fn assumptions(&self) -> Vec<String> {
        let mut assumed = self.doubts();
        let off_color = self.tasks.iter().filter(|task| task.releases.is_some()).filter_map(|task| {
            let placement = task.placement.as_ref().filter(|placement| placement.off_color() > 0)?;
            let (pages, of, what) = (placement.off_color(), placement.own(), placement.off_color_text());
            Some(format!("{}: {pages} of {of} ({what})", task.requirement.name))
        });
        let off_color: Vec<String> = off_color.collect();
        if !off_color.is_empty() {
            assumed.push(format!(
                "Bounds take no account of pages outside of the colors of their task, of which there may be {} %: {}.",
                OFF_COLOR_MAX * 100.0,
                off_color.join("; ")
            ));
        }
        if let Some(costs) = &self.costs {
            assumed.push(format!(
                "It holds given the measured costs that the bounds charge, which are not bounds themselves (CPU {}, level {}).",
                costs.cpu.0, costs.level
            ));
        }
        if let Some(supply) = &self.supply {
            assumed.push(format!(
                "The bounds charge {supply}. This is an assumption, not a bound. Time that was withheld during the run excuses jobs by itself."
            ));
        }
        assumed
    }

    /// Returns the reasons to doubt the bounds or the record of this run, whatever its conclusion is, as sentences.
    pub fn doubts(&self) -> Vec<String> {
        let recorded = "An earlier version recorded this run, without an account of all releases.";
        let mut doubts: Vec<String> = self.is_of_earlier_version().then(|| recorded.to_owned()).into_iter().collect();
        if let Some(contradicted) = &self.contradicted {
            doubts.push(format!("The bounds that the jobs were checked against are not sound: {contradicted}."));
        }
        doubts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::Costs;
    use crate::machine::Source;
    use crate::replacement::Contradicted;
    use crate::replacement::tests::test_of;
    use crate::running::fixture::{good, job, run, seen};
    use crate::running::{BlockPlacement, JobRecord, Releases, ViolationCount};
    use crate::supply::{ChargedSupply, Supply};
    use crate::units::CpuId;

    #[test]
    fn what_holds_by_measured_costs_says_so() {
        let charged = Run { costs: Some(Costs { level: 2, ..Costs::default() }), ..run(&good(299)) };
        assert_eq!(charged.conclusion(), (Conclusion::Holds, vec![]));
        assert!(
            charged.section().basis.starts_with("It holds given the measured costs"),
            "{}",
            charged.section().basis
        );
        assert!(!run(&good(299)).section().basis.contains("measured costs"));
        let supply = ChargedSupply {
            cpus: vec![CpuId(1)],
            source: Source::Measured,
            watched_ns: Ns(3_800_000_000),
            threshold_ns: Ns(5_000),
            steps: Supply::default(),
        };
        let basis = Run { supply: Some(supply), ..run(&good(299)) }.section().basis;
        assert!(basis.contains("The bounds charge the supply of CPU 1, observed for 3.8 s"), "{basis}");
    }

    #[test]
    fn what_holds_by_bounds_that_a_measurement_contradicts_says_so() {
        let contradicted = Contradicted { tasks: vec!["control".to_owned()], test: test_of(60, 40) };
        let run = Run { contradicted: Some(contradicted), ..run(&good(299)) };
        let basis = run.section().basis;
        assert!(
            basis.starts_with("The bounds that the jobs were checked against are not sound: the bounds assume LRU"),
            "{basis}"
        );
    }

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
        assert!(reasons[0].to_string().ends_with("can explain all of them"), "{}", reasons[0]);
        // 800 exceeds the bound of 500 by 300, which 300 can excuse and 299 cannot.
        for (steal_time, expected) in [(300, Conclusion::Inconclusive), (299, Conclusion::Violated)] {
            jobs[1000].steal_time = Ns(steal_time);
            assert_eq!(run(&jobs).conclusion().0, expected);
        }
    }

    #[test]
    fn one_release_without_a_job_or_a_reason_leaves_it_open() {
        let mut run = run(&good(400));
        let task = || "control".to_owned();
        let seen = |seen| Releases { seen, ..Releases::default() };
        let allowed = Ns(100);
        for (releases, reasons) in [
            (seen(401), vec![Reason::Missing { task: task(), releases: 1, of: 401 }]),
            (Releases { absent: 1, ..seen(400) }, vec![Reason::Absent { task: task(), releases: 1, of: 401, allowed }]),
            (
                Releases { close: 1, ..seen(400) },
                vec![Reason::TooClose { task: task(), releases: 1, of: 400, least: Ns(900) }],
            ),
            // One job was under way at the end, one line waited for it, and three releases were left out, which is less than 1 %.
            (Releases { skipped: 3, unwritten: 1, unfinished: 1, ..seen(401) }, vec![]),
        ] {
            run.tasks[0].releases = Some(releases);
            assert_eq!(run.conclusion().1, reasons);
        }
    }

    #[test]
    fn a_sporadic_task_holds_however_seldom_it_comes() {
        let mut run = run(&good(400));
        run.duration = Ns(1_000_000_000);
        run.tasks[0].requirement.sporadic = true;
        assert_eq!(run.conclusion(), (Conclusion::Holds, vec![]));
    }

    #[test]
    fn evidence_of_earlier_versions_keeps_its_conclusion_and_says_what_it_lacks() {
        let mut run = run(&good(400));
        run.method = Partitioning::Colors;
        run.tasks[0].releases = None;
        // 100 of 140 pages cannot be moved. By the earlier rules they are not judged.
        let placement = Placement { resident: 140, on_color: 40, immovable: 100, ..Placement::default() };
        run.tasks[0].placement = Some(placement.clone());
        assert_eq!(run.conclusion(), (Conclusion::Holds, vec![]));
        let text = run.assumptions().concat();
        assert!(text.contains("without an account of all releases"), "{text}");
        run.tasks[0].placement = Some(Placement { on_color: 39, ..placement });
        let what = "pages that can be moved".to_owned();
        let off_color = Reason::OffColor { task: "control".to_owned(), pages: 1, of: 40, what };
        assert_eq!(run.conclusion().1, [off_color]);
        run.tasks[0].placement = None;
        run.duration = Ns(1000 * 500);
        let few = Reason::Few { task: "control".to_owned(), jobs: 400, expected: 500 };
        assert_eq!(run.conclusion(), (Conclusion::Inconclusive, vec![few]));
    }

    #[test]
    fn every_page_at_both_ends_of_every_block_is_judged() {
        let mut run = run(&good(400));
        (run.method, run.tasks[0].releases) = (Partitioning::Colors, Some(seen(400)));
        let task = || "control".to_owned();
        assert_eq!(run.conclusion().1, [Reason::Unseen { task: task() }]);
        let good = Placement { resident: 102, on_color: 100, immovable: 2, system: 2, ..Placement::default() };
        let both =
            |begin: &Placement, end: &Placement| BlockPlacement { begin: Some(begin.clone()), end: Some(end.clone()) };
        let mut judged = |blocks: Vec<BlockPlacement>| {
            run.tasks[0] = run.tasks[0].clone().with_placements(blocks);
            (run.conclusion().1, run.assumptions().concat())
        };
        assert_eq!(judged(vec![both(&good, &good), both(&good, &good)]), (vec![], String::new()));
        let off = Placement { on_color: 98, ..good.clone() };
        let (reasons, _) = judged(vec![both(&off, &good), both(&good, &good)]);
        let what = "2 that could be moved".to_owned();
        assert_eq!(reasons, [Reason::OffColor { task: task(), pages: 2, of: 100, what }]);
        let half = BlockPlacement { end: None, ..both(&good, &good) };
        assert_eq!(judged(vec![half, both(&good, &good)]).0, [Reason::Unseen { task: task() }]);
        let unnamed = Placement { immovable: 3, resident: 103, on_color: 100, ..good.clone() };
        assert_eq!(judged(vec![both(&good, &unnamed)]).0, [Reason::Unnamed { task: task(), pages: 1 }]);
    }

    #[test]
    fn shared_memory_is_named_and_leaves_a_run_open_only_beyond_the_stated_share() {
        let mut run = run(&good(400));
        run.method = Partitioning::Colors;
        let mut judged = |shared: u64| {
            let why = [("/dev/shm/x is shared memory".to_owned(), shared)].into();
            let placement = Placement {
                resident: 1002,
                on_color: 1000 - shared,
                immovable: 2 + shared,
                system: 2,
                why,
                ..Placement::default()
            };
            let block = BlockPlacement { begin: Some(placement.clone()), end: Some(placement) };
            run.tasks[0] = run.tasks[0].clone().with_placements(vec![block]);
            let (conclusion, reasons) = run.conclusion();
            (
                conclusion,
                reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
                run.assumptions().concat(),
            )
        };
        let (conclusion, _, assumed) = judged(10);
        assert_eq!(conclusion, Conclusion::Holds);
        assert!(assumed.contains("may be 1 %: control: 10 of 1000 (10 as /dev/shm/x is shared memory)"), "{assumed}");
        let (conclusion, reasons, _) = judged(11);
        assert_eq!(conclusion, Conclusion::Inconclusive);
        assert_eq!(
            reasons,
            "control: 11 of its 1000 pages lay outside its colors, 1.1 % where at most 1 % are allowed, because bounds take no account of them: 11 as \
             /dev/shm/x is shared memory"
        );
    }

    #[test]
    fn what_failed_what_was_lost_and_what_lies_elsewhere_is_named() {
        let mut failed = run(&good(299));
        failed.failures.push(Failure { task: "hog".to_owned(), at: Ns(5), what: "ended with code 3".to_owned() });
        assert_eq!(failed.conclusion().0, Conclusion::Violated);
        let mut lossy = run(&good(299));
        lossy.overhead.lost = 7;
        assert_eq!(lossy.conclusion(), (Conclusion::Inconclusive, vec![Reason::Lost { events: 7 }]));
    }
}
