//! The requirements of a run one by one, each with the reasons against it.

use super::{Limit, Reason, Run, TaskOutcome, Violation};
use crate::evidence::Section;
use crate::units::Ns;

/// A requirement that a run was checked against.
#[derive(Clone, Debug, PartialEq)]
pub struct Check<'a> {
    /// Name of the task; `None` if the requirement is about all tasks.
    pub task: Option<String>,
    /// The required property.
    pub aspect: Aspect,
    /// Limit on the time of each job; `None` if none is given, or the aspect is not a limit.
    pub limit: Option<Ns>,
    /// Longest time seen among the times that the limit applies to; `None` without jobs, or if the aspect is not a limit.
    pub longest: Option<Ns>,
    /// Reasons why the requirement is violated; empty if it is not.
    pub violated: Vec<Reason>,
    /// Reasons why nothing can be concluded about the requirement; empty if it can.
    pub doubts: Vec<Reason>,
    /// The first jobs that exceed the limit.
    pub jobs: Vec<&'a Violation>,
}

/// Property that is required of a task or of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// No job exceeds the limit.
    Limit(Limit),
    /// The program does not fail.
    Program,
    /// There are enough jobs for a conclusion.
    Jobs,
    /// Every release is accounted for.
    Releases,
    /// Memory lies on the colors of the task.
    Placement,
    /// No event of the scheduler was lost.
    Record,
}

impl Aspect {
    /// Returns the name of the aspect in reports.
    pub fn name(self) -> &'static str {
        match self {
            Aspect::Limit(Limit::Bound) => "bound",
            Aspect::Limit(Limit::Deadline) => "deadline",
            Aspect::Limit(Limit::Budget) => "budget",
            Aspect::Program => "program",
            Aspect::Jobs => "jobs",
            Aspect::Releases => "releases",
            Aspect::Placement => "placement",
            Aspect::Record => "record",
        }
    }
}

impl Reason {
    /// Returns the name of the task that the reason is about, `None` for all tasks, and the requirement that it speaks against.
    pub fn speaks_against(&self) -> (Option<&str>, Aspect) {
        let (task, aspect): (&str, Aspect) = match self {
            Reason::Violated { task, limit, .. }
            | Reason::StealTime { task, limit, .. }
            | Reason::Gaps { task, limit, .. } => (task, Aspect::Limit(*limit)),
            Reason::NoBound { task } => (task, Aspect::Limit(Limit::Bound)),
            Reason::Failed(failure) => (&failure.task, Aspect::Program),
            Reason::TooFewJobs { task, .. } | Reason::Few { task, .. } => (task, Aspect::Jobs),
            Reason::Missing { task, .. } | Reason::Absent { task, .. } | Reason::TooClose { task, .. } => {
                (task, Aspect::Releases)
            }
            Reason::OffColor { task, .. } | Reason::Unseen { task } | Reason::Unnamed { task, .. } => {
                (task, Aspect::Placement)
            }
            Reason::Lost { .. } => return (None, Aspect::Record),
            Reason::Skipped { .. } => return (None, Aspect::Releases),
        };
        (Some(task), aspect)
    }
}

impl Run {
    /// Returns the run that `section` is about; `None` if it is about something else.
    pub fn of_section(section: &Section) -> Option<Run> {
        (section.id == "run").then(|| serde_json::from_value(section.numbers.clone()).ok())?
    }

    /// Returns every requirement that the run was checked against: those of each task, in the order of the plan, then those of the run.
    ///
    /// The run is violated if a check is, and inconclusive if none is violated but one is in doubt ([`Run::conclusion`]).
    pub fn checks(&self) -> Vec<Check<'_>> {
        let mut checks: Vec<Check> = self.tasks.iter().flat_map(|task| self.of_task(task)).collect();
        checks.extend([Aspect::Record, Aspect::Releases].map(|aspect| Check::of(None, aspect)));
        let (violated, doubts) = self.reasons();
        for reason in violated {
            about(&mut checks, &reason).violated.push(reason);
        }
        for reason in doubts {
            about(&mut checks, &reason).doubts.push(reason);
        }
        checks
    }

    fn of_task<'a>(&'a self, task: &TaskOutcome) -> Vec<Check<'a>> {
        let requirement = &task.requirement;
        let longest = |times: Option<super::Observed>| times.map(|times| Ns(times.high_water_mark.value));
        let limits = [
            (Limit::Bound, requirement.bound.map(|bound| bound.0), longest(task.response)),
            (Limit::Deadline, Some(requirement.deadline), longest(task.response)),
            (Limit::Budget, requirement.budget, longest(task.execution)),
        ];
        let jobs = |limit: Limit| {
            let of_limit = |job: &&Violation| job.task == requirement.name && job.limits.contains(&limit);
            self.violations.iter().filter(of_limit).collect()
        };
        let limits = limits.into_iter().filter(|(_, limit, _)| limit.is_some()).map(|(which, limit, longest)| Check {
            limit,
            longest,
            jobs: jobs(which),
            ..Check::of(Some(&requirement.name), Aspect::Limit(which))
        });
        let has_colors = !task.placements.is_empty();
        let others = [Aspect::Program, Aspect::Jobs, Aspect::Releases]
            .into_iter()
            .chain(has_colors.then_some(Aspect::Placement));
        limits.chain(others.map(|aspect| Check::of(Some(&requirement.name), aspect))).collect()
    }
}

/// Returns the check that `reason` speaks against, which is added if there is none: best-effort programs, which have no requirements, can fail too.
fn about<'c, 'a>(checks: &'c mut Vec<Check<'a>>, reason: &Reason) -> &'c mut Check<'a> {
    let (task, aspect) = reason.speaks_against();
    let at =
        checks.iter().position(|check| check.task.as_deref() == task && check.aspect == aspect).unwrap_or_else(|| {
            checks.push(Check::of(task, aspect));
            checks.len() - 1
        });
    &mut checks[at]
}

impl<'a> Check<'a> {
    /// Returns a check without reasons against it.
    fn of(task: Option<&str>, aspect: Aspect) -> Check<'a> {
        Check {
            task: task.map(str::to_owned),
            aspect,
            limit: None,
            longest: None,
            violated: Vec::new(),
            doubts: Vec::new(),
            jobs: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::fixture::{good, job, run};
    use crate::running::{Conclusion, Failure};

    /// Returns the conclusion that follows from the checks alone.
    fn concluded(checks: &[Check]) -> Conclusion {
        if checks.iter().any(|check| !check.violated.is_empty()) {
            Conclusion::Violated
        } else if checks.iter().any(|check| !check.doubts.is_empty()) {
            Conclusion::Inconclusive
        } else {
            Conclusion::Holds
        }
    }

    #[test]
    fn the_checks_say_what_the_conclusion_says() {
        let late = |steal| good(400).into_iter().chain([job(400, 800, 200, steal)]).collect::<Vec<_>>();
        let mut lost = run(&good(400));
        lost.overhead.lost = 1;
        let mut unbounded = run(&good(400));
        unbounded.tasks[0].requirement.bound = None;
        let mut failed = run(&good(10));
        failed.failures.push(Failure { task: "hog".to_owned(), at: Ns(5), what: "ended with code 3".to_owned() });
        let mut skipped = run(&good(400));
        skipped.overhead.releases_skipped = 40;
        for (run, expected) in [
            (run(&good(400)), Conclusion::Holds),
            (run(&good(10)), Conclusion::Inconclusive),
            (run(&late(0)), Conclusion::Violated),
            (run(&late(300)), Conclusion::Inconclusive),
            (lost, Conclusion::Inconclusive),
            (unbounded, Conclusion::Inconclusive),
            (failed, Conclusion::Violated),
            (skipped, Conclusion::Inconclusive),
        ] {
            assert_eq!(run.conclusion().0, expected);
            assert_eq!(concluded(&run.checks()), expected, "{:?}", run.checks());
        }
    }

    #[test]
    fn a_violated_bound_leaves_the_other_requirements_as_they_are() {
        let mut run = run(&good(10).into_iter().chain([job(10, 501, 200, 0)]).collect::<Vec<_>>());
        run.violations.push(Violation {
            task: "control".to_owned(),
            instance: 10,
            limits: vec![Limit::Bound],
            release: Ns(10_000),
            response: Ns(501),
            execution: Ns(200),
            steal_time: Ns(0),
            timeline: Vec::new(),
        });
        let checks = run.checks();
        let of = |name: &str| checks.iter().find(|check| check.task.is_some() && check.aspect.name() == name).unwrap();
        assert_eq!((of("bound").limit, of("bound").longest), (Some(Ns(500)), Some(Ns(501))));
        assert_eq!((of("bound").violated.len(), of("bound").jobs.len()), (1, 1));
        assert!(
            of("deadline").violated.is_empty() && of("deadline").doubts.is_empty() && of("deadline").jobs.is_empty()
        );
        // The conclusion is `violated` and mentions no doubt; that there are too few jobs is seen all the same.
        assert_eq!(of("jobs").doubts, [Reason::TooFewJobs { task: "control".to_owned(), jobs: 11 }]);
    }
}
