//! Section of a report for a run: response times against their bounds, utilization, violations, conditions.

mod figures;

use std::fmt;

use super::{
    CONFIDENCE, Comparison, Conclusion, Difference, JOBS_WANTED, Observed, Run, TaskComparison, TaskOutcome,
    UnreportedGaps, Utilization, Violation,
};
use crate::evidence::figure::{Bar, Bars, Hue};
use crate::evidence::format::{self, DASH};
use crate::evidence::{Section, Standing};
use crate::taskset::programs::Partitioning;
use crate::units::Ns;

/// Most reasons that are given in the sentence under the headline. The findings contain all reasons.
const REASONS: usize = 3;

fn micro(time: Ns) -> String {
    format::significant(time.0 as f64 / 1e3)
}

fn optional(time: Option<Ns>) -> String {
    time.map_or_else(|| DASH.to_owned(), micro)
}

fn mark(observed: Option<Observed>) -> Option<Ns> {
    observed.map(|observed| Ns(observed.high_water_mark.value))
}

fn headline(run: &Run) -> (Option<Standing>, String, String) {
    let (conclusion, reasons) = run.conclusion();
    let jobs: u64 = run.tasks.iter().map(|task| task.jobs).sum();
    let mut basis = format!(
        "{} jobs of {} task{} in {}. An observed maximum is not a bound: how often it may be exceeded is stated with it.",
        format::grouped(jobs),
        run.tasks.len(),
        if run.tasks.len() == 1 { "" } else { "s" },
        format::nanoseconds(run.duration.0 as f64)
    );
    let assumed = if conclusion == Conclusion::Holds { run.assumptions() } else { run.doubts() };
    if !assumed.is_empty() {
        basis = format!("{} {basis}", assumed.join(" "));
    }
    if !reasons.is_empty() {
        let mut shown: Vec<String> = reasons.iter().take(REASONS).map(ToString::to_string).collect();
        if reasons.len() > REASONS {
            shown.push(format!("and {} more", reasons.len() - REASONS));
        }
        basis = format!("{}. {basis}", shown.join("; "));
    }
    let (standing, sentence) = match conclusion {
        Conclusion::Holds => (Standing::Holds, "Every job stayed within its bound and its deadline."),
        Conclusion::Violated => (Standing::Violated, "Not every job met its requirements."),
        Conclusion::Inconclusive => (Standing::Inconclusive, "This run cannot tell whether the requirements hold."),
    };
    (Some(standing), sentence.to_owned(), basis)
}

const COLUMNS: [&str; 13] = [
    "task",
    "jobs",
    "period",
    "deadline",
    "bound",
    "NoCInt",
    "longest",
    "p99",
    "mean",
    "exec max",
    "> bound",
    "> deadline",
    "exceeded by ≤",
];

fn row(task: &TaskOutcome) -> Vec<String> {
    let requirement = &task.requirement;
    let violations = |violations: &super::ViolationCount| match violations.excused {
        0 => violations.jobs.to_string(),
        excused => format!("{} ({excused} excused by steal time)", violations.jobs),
    };
    vec![
        requirement.name.clone(),
        task.jobs.to_string(),
        micro(requirement.period),
        micro(requirement.deadline),
        optional(requirement.bound.map(|bound| bound.0)),
        optional(requirement.without_interference),
        optional(mark(task.response)),
        optional(task.response.map(|response| response.p99)),
        optional(task.response.map(|response| Ns(response.mean_ns as u64))),
        optional(mark(task.execution)),
        violations(&task.bound_violations),
        violations(&task.deadline_violations),
        format::probability(task.exceedance()),
    ]
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| DASH.to_owned(), |share| format!("{:.1}", share * 100.0))
}

const UTILIZATIONS: [(&str, Hue); 4] = [
    ("estimated alone", Hue::Alone),
    ("with delays (eq. 1)", Hue::Unpartitioned),
    ("measured worst", Hue::SingleWriter),
    ("measured average", Hue::Partitioned),
];

fn utilizations(utilization: Utilization) -> [Option<f64>; 4] {
    [utilization.alone, utilization.with_delays, utilization.worst, utilization.average]
}

/// Returns each of the four utilizations, summed over all tasks; `None` if a task lacks the value.
fn utilization_of_all(run: &Run) -> [Option<f64>; 4] {
    let mut sum = [Some(0.0); 4];
    for task in &run.tasks {
        for (sum, one) in sum.iter_mut().zip(utilizations(task.utilization())) {
            *sum = sum.zip(one).map(|(sum, one)| sum + one);
        }
    }
    sum
}

/// Describes the difference that partitions make for a task, and a reason why there may be none.
fn difference(run: &Run, comparison: &Comparison, compared: &TaskComparison) -> String {
    let period =
        run.tasks.iter().find(|task| task.requirement.name == compared.name).map(|task| task.requirement.period);
    let text = format!("{}: {}", compared.name, side_by_side(comparison, compared));
    match run.retention.zip(period).filter(|(retention, period)| retention < period) {
        Some((retention, period)) => format!(
            "{text}; level {} loses half of its contents within {} here, whatever runs on its CPU, and the period is {}: lines that \
             partitions keep from one job to the next are gone by then",
            run.level,
            format::nanoseconds(retention.0 as f64),
            format::nanoseconds(period.0 as f64)
        ),
        None => text,
    }
}

fn side_by_side(comparison: &Comparison, compared: &TaskComparison) -> String {
    let with = compared.partitioned;
    let quantities = [
        ("execution", compared.execution, with.execution_ns),
        ("response", compared.response, with.response_ns),
        ("misses", compared.misses, with.misses.unwrap_or_default()),
    ];
    let differences: Vec<_> =
        quantities.into_iter().filter_map(|(name, difference, base)| Some((name, difference?, base))).collect();
    let Some((_, Difference { effect, .. }, _)) = differences.first() else {
        return "not compared: no pair of blocks is complete, or an earlier version recorded this".to_owned();
    };
    if effect.n < comparison.pairs_needed() {
        return format!("inconclusive: {} pairs of blocks, {} are needed", effect.n, comparison.pairs_needed());
    }
    let words = |(name, difference, base): &(&str, Difference, f64)| {
        let share = |value: f64| format::overhead(1.0 + value / base);
        let effect = difference.effect;
        let p = format::p_value(effect.p);
        let within = effect
            .interval
            .map_or_else(String::new, |[low, high]| format!("between {} and {}, ", share(low), share(high)));
        match effect.is_significant() {
            true => format!("{name} {} ({within}{p})", share(effect.estimate)),
            false => format!(
                "no significant difference in {name} ({within}{p}; one of {} would be seen in 80 % of such comparisons)",
                format::share(difference.visible / base)
            ),
        }
    };
    format!("without partitions: {}", differences.iter().map(words).collect::<Vec<_>>().join("; "))
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&violation_text(self))
    }
}

fn violation_text(violation: &Violation) -> String {
    let limits: Vec<String> = violation.limits.iter().map(ToString::to_string).collect();
    let steal = match violation.steal_time {
        Ns(0) => String::new(),
        steal_time => format!(", {} of steal time until then", format::nanoseconds(steal_time.0 as f64)),
    };
    format!(
        "{}, job {}, exceeds the {}: released {:.6} s after the first release, complete {} later, executed {}{steal}",
        violation.task,
        violation.instance,
        limits.join(" and the "),
        violation.release.0 as f64 / 1e9,
        format::nanoseconds(violation.response.0 as f64),
        format::nanoseconds(violation.execution.0 as f64)
    )
}

/// Returns the name of the parts of the cache that form a partition.
fn means(method: Partitioning) -> &'static str {
    match method {
        Partitioning::Colors => "colors",
        Partitioning::Ways => "ways",
        Partitioning::Both => "colors, and ways that tasks share,",
        Partitioning::None => "no part",
    }
}

fn conditions(run: &Run) -> Vec<String> {
    let overhead = run.overhead;
    let share =
        100.0 * overhead.tool_cpu.0.saturating_sub(overhead.release_cpu.0) as f64 / overhead.elapsed.0.max(1) as f64;
    let cpus: Vec<String> = run.cpus.iter().map(|cpu| cpu.0.to_string()).collect();
    let partitions =
        if run.partitioned { format!("{} of level {}", means(run.method), run.level) } else { "none".to_owned() };
    let mut remarks = vec![format!(
        "CPUs {}; partitions: {partitions}; steal time of these CPUs {}, by the kernel’s count",
        cpus.join(", "),
        format::nanoseconds(run.steal_time.0 as f64)
    )];
    remarks.extend(run.reserved.iter().map(|reserved| {
        format!(
            "scheduled by deadlines, {reserved}; a budget is what is reserved; bounds of a plan are those of fixed priorities, and say \
             nothing here. Reservations take no account of time that is withheld from the CPUs"
        )
    }));
    remarks.push(format!(
        "watching took {share:.2} % of a CPU besides what the kernel needs to write {} events ({} lost); releases took {}",
        overhead.events,
        overhead.lost,
        overhead.releases()
    ));
    remarks.extend(run.gaps.iter().map(gaps_text));
    remarks.extend(run.tasks.iter().filter_map(placement_text));
    remarks.extend(run.tasks.iter().filter_map(releases_text));
    let memory = run.memory.iter().filter(|(_, memory)| memory.0 > 0);
    remarks.extend(memory.map(|(name, memory)| format!("memory of {name}: {memory} of its own at most")));
    remarks.extend(run.inputs.iter().map(|input| format!("{}: SHA-256 {}", input.path, input.sha256)));
    remarks
}

/// Describes the gaps of a CPU that nobody reports.
fn gaps_text(gaps: &UnreportedGaps) -> String {
    let text = |length: Ns| format::nanoseconds(length.0 as f64);
    let longest = gaps.gaps.last().map_or_else(String::new, |gap| format!(", the longest {}", text(gap.least)));
    let when = gaps.from.map_or_else(
        || "afterwards, watched".to_owned(),
        |from| {
            format!(
                "from {} of the run on, watched by a thread that had it when no other thread needed it,",
                text(from)
            )
        },
    );
    format!(
        "CPU {} {when} for {}: {} gaps from {} on that nobody reports{longest}",
        gaps.cpu.0,
        text(gaps.watched),
        format::grouped(gaps.gaps.iter().map(|gap| gap.count).sum()),
        text(gaps.threshold)
    )
}

/// Describes the worst placement of a task's memory; `None` if no placement was seen.
fn placement_text(task: &TaskOutcome) -> Option<String> {
    let placement = task.placement.as_ref()?;
    let off_color = match placement.off_color() {
        0 => String::new(),
        pages if task.releases.is_none() => {
            format!(", {pages} off color, {} of these cannot be moved", placement.immovable)
        }
        pages => format!(", {pages} off color ({})", placement.off_color_text()),
    };
    let system = match placement.system {
        0 => String::new(),
        pages => format!(", {pages} of the kernel or isochrome"),
    };
    let ends = match task.placements.len() {
        0 => String::new(),
        1 => "; the worse end of the run".to_owned(),
        blocks => format!("; the worst of both ends of {blocks} blocks"),
    };
    Some(format!(
        "{}: of {} resident pages {} on its colors{off_color}{system}{ends}",
        task.requirement.name, placement.resident, placement.on_color
    ))
}

/// Describes the account of a task's releases; `None` in evidence of earlier versions.
fn releases_text(task: &TaskOutcome) -> Option<String> {
    let releases = task.releases?;
    let reasons = [
        (releases.skipped, "left out, as isochrome was held up"),
        (releases.unwritten, "left out, as the run ended"),
        (releases.unfinished, "under way at the end"),
        (releases.absent, "absent"),
        (releases.close, "too soon"),
        (releases.missing(task.jobs), "missing"),
    ];
    let reasons: Vec<String> =
        reasons.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!(", {count} {why}")).collect();
    Some(format!(
        "{}: {} releases, {} of them jobs that were seen{}",
        task.requirement.name,
        format::grouped(releases.expected()),
        format::grouped(task.jobs),
        reasons.concat()
    ))
}

/// Adds the comparison of the tasks with and without partitions.
fn with_comparison(section: Section, run: &Run, comparison: &Comparison) -> Section {
    let number = |value: f64| format::significant(value / 1e3);
    let cells = comparison.tasks.iter().flat_map(|task| {
        [("as planned", &task.partitioned), ("without", &task.unpartitioned)].map(|(name, side)| {
            vec![
                task.name.clone(),
                name.to_owned(),
                format!("{}/{}", side.accepted, side.windows),
                format::grouped(side.jobs),
                number(side.execution_ns),
                number(side.response_ns),
                micro(side.response_max),
                side.misses.map_or_else(|| DASH.to_owned(), format::significant),
            ]
        })
    });
    section
        .heading("With and without partitions")
        .text(format!(
            "The same programs in {} pairs of blocks, one of each kind, in random order and equally long. Windows of {} count, fast and slow, \
             unless the hypervisor took more than 5 % of one. Times are means of a block’s jobs, of these the medians over all pairs, in microseconds. A difference \
             is that of the two blocks of a pair, with its 95 % confidence interval; p-values are corrected for all tasks and quantities.",
            comparison.blocks,
            format::nanoseconds(comparison.window.0 as f64)
        ))
        .table(&["task", "", "windows", "jobs", "execution", "response", "longest response", "misses per job"], cells)
        .findings(comparison.tasks.iter().map(|task| difference(run, comparison, task)).collect())
}

/// Adds the shares of the CPU that each task takes, estimated and measured.
fn with_utilization(section: Section, run: &Run) -> Section {
    let names = UTILIZATIONS.map(|(name, _)| name);
    let shares =
        |name: &str, shares: [Option<f64>; 4]| [name.to_owned()].into_iter().chain(shares.map(percent)).collect();
    let of_tasks = run.tasks.iter().map(|task| shares(&task.requirement.name, utilizations(task.utilization())));
    let bars = run.tasks.iter().flat_map(|task| {
        let kinds = UTILIZATIONS.into_iter().zip(utilizations(task.utilization()));
        kinds.map(|((name, hue), share)| Bar {
            name: format!("{}: {name}", task.requirement.name),
            parts: [0.0, share.unwrap_or(0.0)],
            hue,
            text: percent(share),
        })
    });
    section
        .heading("Utilization, estimated and measured")
        .text("Share of the CPU by task, in percent: C over T alone on its partitions; with all cache delays; by the longest execution seen; by the mean. As in [Kim2013, Figure 13].")
        .figure(Bars { title: "Utilization by task, %".to_owned(), bars: bars.collect() })
        .table(&[&["task"], &names[..]].concat(), of_tasks.chain([shares("all", utilization_of_all(run))]))
}

impl Run {
    /// Returns the section of a report for this run.
    pub fn section(&self) -> Section {
        let (_, reasons) = self.conclusion();
        let mut section = Section::new("run", "Every task against its bound", headline(self), self)
            .text(format!(
                "Response times from release to completion, in microseconds. A bound follows from the analysis; “longest” is the longest \
                 one seen, in this many jobs. NoCInt is the bound without the delays that tasks cause each other in the cache. It is not a \
                 bound: measured times may exceed it. {JOBS_WANTED} jobs are needed before a bound is said to hold. One more job exceeds \
                 the longest with at most \
                 the probability in the last column ({:.0} % confidence).",
                CONFIDENCE * 100.0
            ))
            .table(&COLUMNS, self.tasks.iter().map(row))
            .findings(reasons.iter().map(ToString::to_string).collect());
        if let Some(comparison) = &self.comparison {
            section = with_comparison(section, self, comparison);
        }
        section = with_utilization(section, self);
        for task in self.tasks.iter().filter(|task| task.jobs > 0) {
            section = section.figure(figures::responses(task));
            if let Some(misses) = &task.misses {
                section = section.figure(figures::misses(task, misses));
            }
        }
        if !self.violations.is_empty() {
            section = section
                .heading("Jobs that exceed a limit")
                .findings(self.violations.iter().map(violation_text).collect());
            for violation in self.violations.iter().filter(|violation| !violation.timeline.is_empty()) {
                section = section.figure(figures::timeline(violation));
            }
        }
        let settings = self
            .settings
            .iter()
            .map(|it| vec![it.name.clone(), it.before.clone(), it.during.clone(), it.after.clone()]);
        section
            .heading("Under which conditions")
            .findings(conditions(self))
            .reference(&["setting", "before", "while it ran", "afterwards"], settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::{
        BlockPlacement, CpuInterval, Failure, JobRecord, Limit, Overhead, Placement, Releases, Requirement,
        ResponseBound, Setting, Side, Tally, Window,
    };
    use crate::stats::Effect;
    use crate::units::{Color, CpuId};

    /// Returns the outcome of 400 jobs, the eighth of which exceeds its bound if `late`.
    fn outcome(name: &str, late: bool) -> TaskOutcome {
        let requirement = Requirement {
            name: name.to_owned(),
            period: Ns(1_000_000),
            deadline: Ns(900_000),
            bound: Some(ResponseBound(Ns(500_000))),
            without_interference: Some(Ns(400_000)),
            budget: None,
            wcet: Some(Ns(250_000)),
            utilization: Some(0.3),
            ..Requirement::default()
        };
        let mut tally = Tally::new(requirement);
        for instance in 0..400 {
            let response = if late && instance == 7 { 600_000 } else { 300_000 + instance };
            tally.push(&JobRecord {
                instance,
                release: Ns(instance * 1_000_000),
                completion: Ns(instance * 1_000_000 + response),
                execution: Ns(200_000),
                misses: late.then_some(instance),
                ..JobRecord::default()
            });
        }
        let releases = Releases { seen: 400, skipped: 3, ..Releases::default() };
        TaskOutcome { releases: Some(releases), ..tally.outcome() }
    }

    /// Returns a comparison of six blocks, in which jobs of `log` execute for longer without partitions.
    fn comparison() -> Comparison {
        let windows = |execution: u64| -> Vec<Window> {
            let window = |block| Window {
                jobs: 9,
                execution: Ns(9 * execution),
                response: Ns(9 * execution),
                misses: None,
                ..Window::new(block)
            };
            (0..6).map(window).collect()
        };
        Comparison::of(Ns(250_000_000), 6, [("log", [&windows(100_000)[..], &windows(150_000)[..]])])
    }

    /// Returns a run of two tasks, the second of which is late once.
    fn run() -> Run {
        let placement = Placement {
            colors: vec![Color(0)],
            resident: 502,
            on_color: 497,
            immovable: 4,
            system: 2,
            why: [("/dev/shm/x is shared memory".to_owned(), 2)].into(),
        };
        let block = BlockPlacement { begin: Some(placement.clone()), end: Some(placement) };
        Run {
            cpus: vec![CpuId(1)],
            partitioned: true,
            method: Partitioning::Colors,
            reserved: Vec::new(),
            level: 2,
            duration: Ns(400_000_000),
            tasks: vec![outcome("con<trol", false).with_placements(vec![block]), outcome("log", true)],
            violations: vec![Violation {
                task: "log".to_owned(),
                instance: 7,
                limits: vec![Limit::Bound],
                release: Ns(7_000_000),
                response: Ns(600_000),
                execution: Ns(200_000),
                steal_time: Ns(0),
                timeline: vec![
                    CpuInterval { from: Ns(6_900_000), to: Ns(7_400_000), what: "con<trol".to_owned() },
                    CpuInterval { from: Ns(7_400_000), to: Ns(7_600_000), what: "log".to_owned() },
                ],
            }],
            failures: vec![Failure { task: "log".to_owned(), at: Ns(1), what: "ended with code 1".to_owned() }],
            overhead: Overhead { events: 5, tool_cpu: Ns(1_000_000), elapsed: Ns(400_000_000), ..Overhead::default() },
            steal_time: Ns(0),
            gaps: Vec::new(),
            settings: vec![Setting { name: "s".into(), before: "a".into(), during: "b".into(), after: "a".into() }],
            costs: None,
            contradicted: None,
            supply: None,
            inputs: vec![],
            memory: vec![],
            retention: Some(Ns(50_000)),
            comparison: Some(comparison()),
        }
    }

    fn said(run: &Run) -> String {
        serde_json::to_string(&run.section().content).unwrap()
    }

    #[test]
    fn the_section_states_bound_high_water_mark_and_claim_of_every_task() {
        let run = run();
        // 500 us bound, 400 us without interference, 600 us seen, once above the bound.
        let cells = row(&run.tasks[1]);
        assert_eq!(cells[..7], ["log", "400", "1000", "900", "500", "400", "600"]);
        assert_eq!(cells[10..], ["1", "0", "0.007"]);
        let said = said(&run);
        for part in [
            "95 % confidence",
            // There are six pairs. Each of two effects can be significant from 7 pairs on.
            "log: inconclusive: 6 pairs of blocks, 7 are needed",
            "loses half of its contents within 50.0",
            "watching took 0.25 % of a CPU",
            "log: 1 of 400 jobs exceeded the bound",
            "log, job 7, exceeds the",
            "con<trol: of 502 resident pages 497 on its colors, 3 off color (2 as /dev/shm/x is shared memory, 1 that could be moved), 2 of the kernel \
             or isochrome; the worse end of the run",
            "con<trol: 403 releases, 400 of them jobs that were seen, 3 left out, as isochrome was held up",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn a_comparison_says_the_difference_or_what_would_have_been_seen() {
        let effect = Effect { estimate: 30.0, interval: Some([20.0, 45.0]), p: 0.012, n: 20 };
        let execution = Difference { effect, visible: 12.0 };
        let unclear = Effect { estimate: -1.0, interval: Some([-3.0, 2.0]), p: 0.4, n: 20 };
        let response = Difference { effect: unclear, visible: 4.0 };
        let side = Side { execution_ns: 100.0, response_ns: 200.0, ..Side::default() };
        let task = TaskComparison {
            name: "log".to_owned(),
            partitioned: side,
            unpartitioned: side,
            execution: Some(execution),
            response: Some(response),
            misses: None,
        };
        let comparison = Comparison { window: Ns(1), blocks: 20, tasks: vec![task] };
        assert_eq!(
            side_by_side(&comparison, &comparison.tasks[0]).replace('\u{a0}', " "),
            "without partitions: execution +30 % (between +20 % and +45 %, p = 0.012); no significant difference in response (between −1.5 % and \
             +1.0 %, p = 0.400; one of 2.0 % would be seen in 80 % of such comparisons)"
        );
        let earlier = TaskComparison { execution: None, response: None, ..comparison.tasks[0].clone() };
        assert!(side_by_side(&comparison, &earlier).starts_with("not compared"));
    }

    #[test]
    fn the_headline_is_the_conclusion() {
        let mut run = run();
        assert_eq!(run.section().standing, Some(Standing::Violated));
        run.failures.clear();
        run.tasks.truncate(1);
        let section = run.section();
        assert_eq!(section.standing, Some(Standing::Holds));
        assert!(section.basis.starts_with("Bounds take no account of pages outside"), "{}", section.basis);
        run.overhead.lost = 1;
        let section = run.section();
        assert_eq!(section.standing, Some(Standing::Inconclusive));
        assert!(section.basis.contains("1 events of the scheduler were lost"), "{}", section.basis);
    }

    #[test]
    fn every_part_of_a_run_is_drawn() {
        // Figures: the utilization, the responses of two tasks, the misses of one task, and a violation.
        let section = run().section();
        assert_eq!(section.figures().count(), 5);
        assert!(
            section
                .figures()
                .any(|it| matches!(it, crate::evidence::figure::Figure::Tracks(it) if it.tracks.len() == 2))
        );
    }
}
