//! Evidence as JUnit XML, which CI systems show as the results of tests.
//!
//! A section is a test suite. A run has a test case for every requirement of every task ([`Run::checks`]); another section has one case, its
//! conclusion. CI systems agree on four outcomes of a case, and each has one meaning here:
//!
//! - passed: the requirement was met, or the effect was shown, or it was shown that there is none
//! - `failure`: the requirement is violated
//! - `error`: nothing can be concluded. It is not a `skipped`, which CI systems let pass.
//! - `skipped`: there was nothing to be shown
//!
//! The elements and attributes are those that Jenkins, GitLab and pytest write or read.

use isochrome_model::evidence::{Evidence, Section, Standing, format};
use isochrome_model::layout;
use isochrome_model::printable;
use isochrome_model::running::{Aspect, Check, Run};
use isochrome_model::units::Ns;
use maud::{Markup, PreEscaped, html};

use super::{command_line, text};

/// Outcome of a test case that did not pass.
struct Outcome {
    /// Name of the element.
    kind: Kind,
    /// The first line, which lists of test cases show.
    message: String,
    /// All reasons, a line each.
    details: Vec<String>,
}

/// Outcomes other than success, as elements of JUnit XML.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Failure,
    Error,
    Skipped,
}

/// A test case.
struct Case {
    /// Subject of the case: the task, or the kind of section.
    of: String,
    /// The required property.
    name: String,
    /// Longest time seen among the times that a limit applies to.
    time: Ns,
    /// The outcome; `None` if the case passed.
    outcome: Option<Outcome>,
}

/// A test suite.
struct Suite<'a> {
    section: &'a Section,
    duration: Ns,
    cases: Vec<Case>,
}

/// Returns the conclusions of `evidence` as a file of JUnit XML.
pub fn junit(evidence: &Evidence) -> String {
    let suites: Vec<Suite> = evidence.sections.iter().map(Suite::of).collect();
    let sum = |kind: Kind| suites.iter().map(|suite| suite.count(kind)).sum::<usize>();
    let tests: usize = suites.iter().map(|suite| suite.cases.len()).sum();
    let duration = Ns(suites.iter().map(|suite| suite.duration.0).sum());
    let document = html! {
        (PreEscaped("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"))
        testsuites name="isochrome" tests=(tests) failures=(sum(Kind::Failure)) errors=(sum(Kind::Error))
            time=(seconds(duration)) {
            @for suite in &suites { "\n" (suite.element(evidence)) }
            "\n"
        }
        "\n"
    };
    // XML 1.0 has no notation for most control characters, not even as references.
    printable::lines(&document.into_string())
}

impl Suite<'_> {
    fn of(section: &Section) -> Suite<'_> {
        match Run::of_section(section) {
            Some(run) => {
                let cases = run.checks().iter().map(Case::of_check).collect();
                Suite { section, duration: run.duration, cases }
            }
            None => Suite { section, duration: Ns(0), cases: vec![Case::of_section(section)] },
        }
    }

    /// Returns the number of cases with the outcome `kind`.
    fn count(&self, kind: Kind) -> usize {
        self.cases.iter().flat_map(|case| &case.outcome).filter(|outcome| outcome.kind == kind).count()
    }

    fn element(&self, evidence: &Evidence) -> Markup {
        html! {
            testsuite name=(self.section.title) tests=(self.cases.len()) failures=(self.count(Kind::Failure)) errors=(self.count(Kind::Error))
                skipped=(self.count(Kind::Skipped)) time=(seconds(self.duration)) timestamp=(timestamp(evidence.taken_unix_s)) {
                "\n" (properties(evidence))
                @for case in &self.cases { "\n" (case.element()) }
                "\n" system-out { (text::section(self.section, layout::WIDTH)) }
                @if !evidence.warnings.is_empty() {
                    "\n" system-err { @for warning in &evidence.warnings { (warning) "\n" } }
                }
                "\n"
            }
        }
    }
}

impl Case {
    fn of_check(check: &Check) -> Case {
        let reasons: Vec<String> = check.violated.iter().chain(&check.doubts).map(ToString::to_string).collect();
        let outcome = reasons.first().map(|first| {
            let kind = if check.violated.is_empty() { Kind::Error } else { Kind::Failure };
            let message = match (check.aspect, check.limit, check.longest) {
                (Aspect::Limit(which), Some(limit), Some(longest)) => {
                    let job = check.jobs.iter().find(|job| job.limits.contains(&which));
                    let job = job.map_or_else(String::new, |job| {
                        format!("; first: job {}, {} after its release", job.instance, time(job.response))
                    });
                    format!("{first}: {which} {}, longest {}{job}", time(limit), time(longest))
                }
                _ => first.clone(),
            };
            let details = reasons.iter().cloned().chain(check.jobs.iter().map(ToString::to_string)).collect();
            Outcome { kind, message, details }
        });
        Case {
            of: check.task.clone().unwrap_or_else(|| "all tasks".to_owned()),
            name: check.aspect.name().to_owned(),
            time: check.longest.unwrap_or_default(),
            outcome,
        }
    }

    fn of_section(section: &Section) -> Case {
        let kind = match section.standing {
            Some(Standing::Holds | Standing::NoGain) => None,
            Some(Standing::Violated) => Some(Kind::Failure),
            Some(Standing::Inconclusive) => Some(Kind::Error),
            None => Some(Kind::Skipped),
        };
        let outcome = kind.map(|kind| Outcome {
            kind,
            message: section.headline.clone(),
            details: vec![section.headline.clone(), section.basis.clone()],
        });
        Case { of: section.id.clone(), name: section.title.clone(), time: Ns(0), outcome }
    }

    fn element(&self) -> Markup {
        html! {
            testcase classname=(self.of) name=(self.name) time=(seconds(self.time)) {
                @if let Some(Outcome { kind, message, details }) = &self.outcome {
                    @match kind {
                        Kind::Failure => failure type="violated" message=(message) { (details.join("\n")) },
                        Kind::Error => error type="inconclusive" message=(message) { (details.join("\n")) },
                        Kind::Skipped => skipped message=(message) {},
                    }
                }
            }
        }
    }
}

/// Returns where and by which command the evidence was made, as properties of a suite.
fn properties(evidence: &Evidence) -> Markup {
    let hypervisor = evidence.machine.hypervisor.clone().unwrap_or_else(|| "none".to_owned());
    let properties = [
        ("isochrome", evidence.isochrome.clone()),
        ("command", command_line(&evidence.command)),
        ("machine", evidence.machine.cpu_model.clone()),
        ("architecture", evidence.machine.architecture.clone()),
        ("hypervisor", hypervisor),
        ("fingerprint", evidence.fingerprint.clone()),
    ];
    let seed = evidence.seed.map(|seed| ("seed", seed.to_string()));
    html! {
        properties {
            @for (name, value) in properties.into_iter().chain(seed) { "\n" property name=(name) value=(value) {} }
            "\n"
        }
    }
}

fn time(ns: Ns) -> String {
    format::nanoseconds(ns.0 as f64)
}

/// Formats a time in seconds, with all its digits.
fn seconds(time: Ns) -> String {
    format!("{}.{:09}", time.0 / 1_000_000_000, time.0 % 1_000_000_000)
}

/// Formats seconds since 1970 as `2026-03-01T09:05:42`, in UTC: the format has no time zone.
fn timestamp(unix_s: u64) -> String {
    format!("{}:{:02}", format::utc(unix_s).trim_end_matches(" UTC").replace(' ', "T"), unix_s % 60)
}
