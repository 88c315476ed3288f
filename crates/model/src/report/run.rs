//! A task set that ran: what it shows, response times against their bounds, utilization, violations.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{Axis, Chart, Dash, Line, Look, at, extent};
use super::reading::Standing;
use super::{format, scroll};
use crate::evidence::Evidence;
use crate::running::{
    CONFIDENCE, Conclusion, JOBS_WANTED, Misses, Observed, Run, Side, TaskComparison, TaskOutcome, Utilization,
    Violation,
};
use crate::taskset::programs::Partitioning;
use crate::units::Ns;

/// Reasons given in the sentence under the headline; all are in the section on tasks.
const REASONS: usize = 3;

fn micro(time: Ns) -> String {
    format::significant(time.0 as f64 / 1e3)
}

fn optional(time: Option<Ns>) -> String {
    time.map_or_else(|| format::DASH.to_owned(), micro)
}

fn mark(observed: Option<Observed>) -> Option<Ns> {
    observed.map(|observed| Ns(observed.high_water_mark.value))
}

/// What the report begins with.
pub(super) fn headline(run: &Run) -> (Option<Standing>, String, String) {
    let (conclusion, reasons) = run.conclusion();
    let jobs: u64 = run.tasks.iter().map(|task| task.jobs).sum();
    let tasks = super::count(run.tasks.len(), "task");
    let basis = format!(
        "{} jobs of {tasks} in {}. An observed maximum is no bound: how often it may be exceeded is stated with it.",
        format::grouped(jobs),
        format::nanoseconds(run.duration.0 as f64)
    );
    let mut told: Vec<String> = reasons.iter().take(REASONS).map(ToString::to_string).collect();
    if reasons.len() > REASONS {
        told.push(format!("and {} more", reasons.len() - REASONS));
    }
    let told = told.join("; ");
    match conclusion {
        Conclusion::Holds => {
            (Some(Standing::Holds), "Every job stayed within its bound and its deadline.".to_owned(), basis)
        }
        Conclusion::Violated => {
            (Some(Standing::Violated), "Not every job did what was promised.".to_owned(), format!("{told}. {basis}"))
        }
        Conclusion::Inconclusive => (
            Some(Standing::Inconclusive(String::new())),
            "No promise was seen broken, but this run cannot say that they hold.".to_owned(),
            format!("{told}. {basis}"),
        ),
    }
}

const COLUMNS: [&str; 12] = [
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
];

fn row(task: &TaskOutcome) -> [String; 12] {
    let promise = &task.promise;
    let beyond = |beyond: crate::running::Beyond| match beyond.stolen {
        0 => beyond.jobs.to_string(),
        stolen => format!("{} ({stolen} stolen)", beyond.jobs),
    };
    [
        promise.name.clone(),
        task.jobs.to_string(),
        micro(promise.period),
        micro(promise.deadline),
        optional(promise.bound.map(|bound| bound.0)),
        optional(promise.without_interference),
        optional(mark(task.response)),
        optional(task.response.map(|response| response.p99)),
        optional(task.response.map(|response| Ns(response.mean_ns as u64))),
        optional(mark(task.execution)),
        beyond(task.beyond_bound),
        beyond(task.beyond_deadline),
    ]
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| format::DASH.to_owned(), |share| format!("{:.1}", share * 100.0))
}

const UTILIZATIONS: [&str; 4] = ["estimated alone", "with delays (eq. 1)", "measured worst", "measured average"];

fn utilizations(utilization: Utilization) -> [Option<f64>; 4] {
    [utilization.alone, utilization.with_delays, utilization.worst, utilization.average]
}

/// Of all tasks together, where each has one.
fn utilization_of_all(run: &Run) -> [Option<f64>; 4] {
    let mut sum = [Some(0.0); 4];
    for task in &run.tasks {
        for (sum, one) in sum.iter_mut().zip(utilizations(task.utilization())) {
            *sum = sum.zip(one).map(|(sum, one)| sum + one);
        }
    }
    sum
}

/// The difference in words, and why there may be none.
fn difference(run: &Run, compared: &TaskComparison) -> String {
    let period = run.tasks.iter().find(|task| task.promise.name == compared.name).map(|task| task.promise.period);
    match run.retention.zip(period).filter(|(retention, period)| retention < period) {
        Some((retention, period)) => format!(
            "{}; level {} loses half of its contents within {} here, whatever runs on its CPU, and the period is {}: what partitions keep \
             from one job to the next is gone by then",
            side_by_side(compared),
            run.level,
            format::nanoseconds(retention.0 as f64),
            format::nanoseconds(period.0 as f64)
        ),
        None => side_by_side(compared),
    }
}

fn side_by_side(compared: &TaskComparison) -> String {
    let (with, without) = (compared.partitioned, compared.unpartitioned);
    if !compared.is_conclusive() {
        return format!(
            "inconclusive: {} and {} quiet windows, {} are needed",
            with.quiet,
            without.quiet,
            TaskComparison::WINDOWS_MIN
        );
    }
    let change = |value: fn(&Side) -> f64| format::overhead(value(&without) / value(&with).max(1.0));
    let misses = match (with.misses, without.misses) {
        (Some(with), Some(without)) => {
            format!(", {} misses per job instead of {}", format::significant(without), format::significant(with))
        }
        _ => String::new(),
    };
    format!(
        "without partitions: execution {}, response {}{misses}",
        change(|side| side.execution_ns),
        change(|side| side.response_ns)
    )
}

/// The run in a few lines for the terminal.
pub fn text(run: &Run) -> String {
    let mut text = String::new();
    let rows: Vec<[String; 12]> =
        std::iter::once(COLUMNS.map(str::to_owned)).chain(run.tasks.iter().map(row)).collect();
    table(&mut text, &rows);
    let _ =
        writeln!(text, "times in microseconds; NoCInt: what the bound would be without cache interference, no bound");
    for task in &run.tasks {
        let _ = writeln!(
            text,
            "  {}: one more job exceeds the longest with a probability of at most {} ({:.0} % confidence); {} preemptions",
            task.promise.name,
            format::probability(task.exceedance()),
            CONFIDENCE * 100.0,
            task.preemptions
        );
    }
    let utilizations = utilization_of_all(run).map(percent);
    let shown: Vec<String> =
        UTILIZATIONS.iter().zip(utilizations).map(|(name, value)| format!("{name} {value} %")).collect();
    let _ = writeln!(text, "utilization: {}", shown.join(", "));
    if let Some(comparison) = &run.comparison {
        let _ = writeln!(
            text,
            "\nagainst the same set without partitions, over quiet windows of {}:",
            format::nanoseconds(comparison.window.0 as f64)
        );
        for task in &comparison.tasks {
            let side = |side: &Side| {
                format!(
                    "{} of {} windows, {} jobs, execution {} µs, response {} µs, longest {} µs",
                    side.quiet,
                    side.windows,
                    side.jobs,
                    format::significant(side.execution_ns / 1e3),
                    format::significant(side.response_ns / 1e3),
                    micro(side.response_max)
                )
            };
            let _ = writeln!(
                text,
                "  {}: {}\n    as planned: {}\n    without:    {}",
                task.name,
                difference(run, task),
                side(&task.partitioned),
                side(&task.unpartitioned)
            );
        }
    }
    for reserved in &run.reserved {
        let _ = writeln!(text, "scheduled by deadlines, {reserved}; {BY_DEADLINES}");
    }
    let overhead = run.overhead;
    let share = |time: u64| time as f64 / overhead.elapsed.0.max(1) as f64 * 100.0;
    let _ = writeln!(
        text,
        "watching took {:.2} % of a CPU besides what the kernel needs to write {} events ({} lost); releases took {}",
        share(overhead.tool_cpu.0.saturating_sub(overhead.release_cpu.0)),
        overhead.events,
        overhead.lost,
        overhead.releases()
    );
    let (_, reasons) = run.conclusion();
    for reason in &reasons {
        let _ = writeln!(text, "  {reason}");
    }
    text
}

fn table(text: &mut String, rows: &[[String; 12]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..12).map(width).collect();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| match column {
            0 => format!("{cell:<width$}", width = widths[0]),
            _ => format!("{cell:>width$}", width = widths[column]),
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    let Some(run) = &evidence.run else { return html! {} };
    let (_, reasons) = run.conclusion();
    html! {
        section id="tasks" {
            h2 { "Every task against its bound" }
            p {
                "Response times from release to completion, in microseconds. A bound is what the analysis promises; “longest” is what was seen, in so \
                many jobs. NoCInt is what the bound would be without the delays that tasks cause each other in the cache: measured times may exceed it. "
                (JOBS_WANTED) " jobs are asked for before a bound is said to hold."
            }
            (scroll(html! {
                table {
                    thead { tr { @for (place, name) in COLUMNS.iter().enumerate() { th.number[place > 0] scope="col" { (name) } } th.number scope="col" { "exceeded by ≤" } } }
                    tbody {
                        @for task in &run.tasks {
                            tr {
                                @for (place, cell) in row(task).into_iter().enumerate() { td.number[place > 0] { (cell) } }
                                td.number { (format::probability(task.exceedance())) }
                            }
                        }
                    }
                }
            }))
            @if !reasons.is_empty() { ul { @for reason in &reasons { li { (reason.to_string()) } } } }
        }
        section id="responses" {
            h2 { "Response time, job by job" }
            div.figures {
                @for task in &run.tasks { @if task.jobs > 0 { figure { h3 { (task.promise.name) } (responses(task)) figcaption { (caption(task)) } } } }
            }
        }
        (misses(run))
        section id="utilization" {
            h2 { "Utilization, estimated and measured" }
            p { "Share of the CPU by task, in percent: C over T alone on its partitions; with all cache delays; by the longest execution seen; by the mean. As in [Kim2013, Figure 13]." }
            figure.wide { (bars(run)) }
            p.key { @for (place, name) in UTILIZATIONS.iter().enumerate() { span { (swatch(place)) " " (name) } } }
            (scroll(html! {
                table {
                    thead { tr { th scope="col" { "task" } @for name in UTILIZATIONS { th.number scope="col" { (name) } } } }
                    tbody {
                        @for task in &run.tasks { tr { td { (task.promise.name) } @for value in utilizations(task.utilization()) { td.number { (percent(value)) } } } }
                        tr { th scope="row" { "all" } @for value in utilization_of_all(run) { td.number { (percent(value)) } } }
                    }
                }
            }))
        }
        (comparison(run))
        (violations(run))
        (conditions(run))
    }
}

/// The range of all responses as a band, the longest as a line, bound and deadline as lines.
fn responses(task: &TaskOutcome) -> Markup {
    let us = |time: Ns| time.0 as f64 / 1e3;
    let stride = task.responses.stride as f64;
    let middle = |place: usize| (place as f64 + 0.5) * stride;
    let extents = &task.responses.extents;
    let last = (task.jobs as f64).max(1.0);
    let highest = extents.iter().map(|extent| us(extent.high));
    let bound = task.promise.bound.map(|bound| us(bound.0));
    let (_, high) = extent(highest.chain(bound));
    // A deadline far above would press everything else to the ground; it is in the caption.
    let deadline = Some(us(task.promise.deadline)).filter(|deadline| *deadline <= 1.5 * high);
    let level = |name: &str, class, dash, value: Option<f64>| {
        let line = |value| Line {
            name: name.to_owned(),
            look: Look { class, dash },
            points: vec![(0.0, value), (last, value)],
            marks: vec![],
            band: vec![],
        };
        value.map(line)
    };
    let seen = Line {
        name: "longest".to_owned(),
        look: Look { class: "partitioned", dash: Dash::Thin },
        points: extents.iter().enumerate().map(|(place, extent)| (middle(place), us(extent.high))).collect(),
        marks: vec![],
        band: extents
            .iter()
            .enumerate()
            .map(|(place, extent)| (middle(place), us(extent.low), us(extent.high)))
            .collect(),
    };
    let lines = [
        Some(seen),
        level("bound", "unpartitioned", Dash::Solid, bound),
        level("deadline", "ink", Dash::Dashed, deadline),
    ];
    Chart {
        title: format!("Response times of {}", task.promise.name),
        description: "The band spans the shortest and the longest response of as many jobs as lie below a point."
            .to_owned(),
        x: Axis::linear("job", (0.0, last), format::tick),
        y: Axis::linear_rounded("µs", (0.0, deadline.map_or(high, |deadline| deadline.max(high))), format::tick),
        lines: lines.into_iter().flatten().collect(),
        rules: vec![],
        named_lines: true,
    }
    .svg()
}

fn caption(task: &TaskOutcome) -> String {
    let bound =
        task.promise.bound.map_or_else(|| "no bound".to_owned(), |bound| format!("bound {} µs", micro(bound.0)));
    let stride = match task.responses.stride {
        1 => "every job".to_owned(),
        stride => format!("shortest and longest of {stride} jobs at a time"),
    };
    format!("{stride}; {bound}, deadline {} µs", micro(task.promise.deadline))
}

fn misses(run: &Run) -> Markup {
    let counted: Vec<(&TaskOutcome, &Misses)> =
        run.tasks.iter().filter_map(|task| Some((task, task.misses.as_ref()?))).collect();
    if counted.is_empty() {
        return html! {};
    }
    html! {
        section id="misses" {
            h2 { "Misses, job by job" }
            div.figures {
                @for (task, misses) in counted {
                    @let places = misses.by_instance.extents.iter().enumerate();
                    @let x = |place: usize| (place as f64 + 0.5) * misses.by_instance.stride as f64;
                    @let (_, high) = extent(misses.by_instance.extents.iter().map(|extent| extent.high.0 as f64));
                    figure {
                        h3 { (task.promise.name) }
                        (Chart {
                            title: format!("Misses of {}", task.promise.name),
                            description: "The band spans the fewest and the most misses of as many jobs as lie below a point.".to_owned(),
                            x: Axis::linear("job", (0.0, task.jobs.max(1) as f64), format::tick),
                            y: Axis::linear_rounded("misses", (0.0, high), format::tick),
                            lines: vec![Line {
                                name: "most".to_owned(),
                                look: Look { class: "partitioned", dash: Dash::Thin },
                                points: places.clone().map(|(place, extent)| (x(place), extent.high.0 as f64)).collect(),
                                marks: vec![],
                                band: places.map(|(place, extent)| (x(place), extent.low.0 as f64, extent.high.0 as f64)).collect(),
                            }],
                            rules: vec![],
                            named_lines: true,
                        }.svg())
                        figcaption { (format::grouped(misses.sum)) " in all" }
                    }
                }
            }
        }
    }
}

/// Classes of the four ways to state a utilization.
const BARS: [&str; 4] = ["alone", "unpartitioned", "single-writer", "partitioned"];

fn swatch(place: usize) -> Markup {
    html! { svg.swatch viewBox="0 0 22 12" width="22" height="12" aria-hidden="true" { g class=(BARS[place]) { rect.solid width="22" height="12" {} } } }
}

fn bars(run: &Run) -> Markup {
    const HEIGHT: f64 = 160.0;
    const BAR: f64 = 15.0;
    const GROUP: f64 = 80.0;
    let groups: Vec<(&str, [Option<f64>; 4])> =
        run.tasks.iter().map(|task| (task.promise.name.as_str(), utilizations(task.utilization()))).collect();
    let (_, most) = extent(groups.iter().flat_map(|(_, values)| values.iter().flatten().copied()).chain([0.01]));
    let width = (groups.len() as f64 * GROUP + 10.0).max(360.0);
    html! {
        svg.chart viewBox=(format!("0 0 {width} {}", HEIGHT + 40.0)) role="img" {
            title { "Utilization by task" }
            @for (place, (name, values)) in groups.iter().enumerate() {
                @let left = place as f64 * GROUP + 10.0;
                @for (bar, value) in values.iter().enumerate() {
                    @let x = left + bar as f64 * (BAR + 1.0);
                    @if let Some(value) = value {
                        @let tall = value / most * HEIGHT;
                        g class=(BARS[bar]) { rect.solid x=(at(x)) y=(at(HEIGHT + 16.0 - tall)) width=(at(BAR)) height=(at(tall)) { title { (name) ", " (UTILIZATIONS[bar]) ": " (percent(Some(*value))) " %" } } }
                        text.tick x=(at(x + BAR / 2.0)) y=(at(HEIGHT + 12.0 - tall)) text-anchor="middle" font-size="7" { (format!("{:.0}", value * 100.0)) }
                    }
                }
                text.label x=(at(left)) y=(at(HEIGHT + 32.0)) { (name) }
            }
            line.axis x1="4" y1=(at(HEIGHT + 16.0)) x2=(at(width)) y2=(at(HEIGHT + 16.0)) {}
        }
    }
}

fn comparison(run: &Run) -> Markup {
    let Some(comparison) = &run.comparison else { return html! {} };
    let number = |value: f64| format::significant(value / 1e3);
    html! {
        section id="comparison" {
            h2 { "With and without partitions" }
            p {
                "The same programs in " (comparison.blocks) " blocks of each kind, alternating in random order, equally long. A window of "
                (format::nanoseconds(comparison.window.0 as f64)) " counts if its median execution time is at most 10 % above that of the quietest window of its \
                kind, and equally many count of both kinds. Times are medians over these windows, in microseconds."
            }
            (scroll(html! {
                table {
                    thead { tr {
                        th scope="col" { "task" } th scope="col" { "" } th.number scope="col" { "quiet windows" } th.number scope="col" { "jobs" } th.number scope="col" { "execution" }
                        th.number scope="col" { "response" } th.number scope="col" { "longest response" } th.number scope="col" { "misses per job" }
                    } }
                    tbody {
                        @for task in &comparison.tasks {
                            @for (name, side) in [("as planned", &task.partitioned), ("without", &task.unpartitioned)] {
                                tr {
                                    td { (task.name) } td { (name) } td.number { (side.quiet) " of " (side.windows) } td.number { (format::grouped(side.jobs)) }
                                    td.number { (number(side.execution_ns)) } td.number { (number(side.response_ns)) } td.number { (micro(side.response_max)) }
                                    td.number { (side.misses.map_or_else(|| format::DASH.to_owned(), format::significant)) }
                                }
                            }
                            tr { td colspan="8" { small { (task.name) ": " (difference(run, task)) } } }
                        }
                    }
                }
            }))
        }
    }
}

fn violations(run: &Run) -> Markup {
    if run.violations.is_empty() {
        return html! {};
    }
    html! {
        section id="violations" {
            h2 { "Jobs beyond a limit" }
            p { "The first " (run.violations.len()) ", with what their CPU did from a little before the release until completion." }
            @for violation in &run.violations { (one_violation(violation)) }
        }
    }
}

fn one_violation(violation: &Violation) -> Markup {
    let limits: Vec<String> = violation.limits.iter().map(ToString::to_string).collect();
    let first = violation.timeline.first().map_or(violation.release, |stretch| stretch.from).min(violation.release);
    let end = Ns(violation.release.0 + violation.response.0);
    let span = (end.0.saturating_sub(first.0)).max(1) as f64;
    let x = |time: Ns| 2.0 + time.0.saturating_sub(first.0) as f64 / span * 716.0;
    html! {
        figure {
            h3 { (violation.task) ", job " (violation.instance) ": beyond the " (limits.join(" and the ")) }
            @if !violation.timeline.is_empty() {
                svg.chart viewBox="0 0 720 40" role="img" {
                    title { "What the CPU did" }
                    @for stretch in &violation.timeline {
                        @let width = (x(stretch.to) - x(stretch.from)).max(0.4);
                        @let class = if stretch.what == violation.task { "partitioned" } else if stretch.what.is_empty() { "idle" } else { "unpartitioned" };
                        g class=(class) { rect.solid x=(at(x(stretch.from))) y="6" width=(at(width)) height="16" {
                            title { @if stretch.what.is_empty() { "idle" } @else { (stretch.what) } ", " (format::nanoseconds((stretch.to.0.saturating_sub(stretch.from.0)) as f64)) }
                        } }
                        @if width > 6.5 * stretch.what.len() as f64 { text.note x=(at(x(stretch.from) + 2.0)) y="34" { (stretch.what) } }
                    }
                    line.rule x1=(at(x(violation.release))) y1="0" x2=(at(x(violation.release))) y2="26" {}
                }
            }
            figcaption {
                "released " (format!("{:.6}", violation.release.0 as f64 / 1e9)) " s after the first release, complete " (format::nanoseconds(violation.response.0 as f64)) " later, executed "
                (format::nanoseconds(violation.execution.0 as f64))
                @if violation.stolen.0 > 0 { ", " (format::nanoseconds(violation.stolen.0 as f64)) " stolen until then" }
            }
        }
    }
}

/// What a run by deadlines is held against.
const BY_DEADLINES: &str =
    "a budget is what is reserved; bounds of a plan are those of fixed priorities, and say nothing here";

/// What partitions are made of.
fn means(method: Partitioning) -> &'static str {
    match method {
        Partitioning::Colors => "colors",
        Partitioning::Ways => "ways",
        Partitioning::Both => "colors, and ways that tasks share,",
        Partitioning::None => "no part",
    }
}

fn conditions(run: &Run) -> Markup {
    let overhead = run.overhead;
    let share = |time: u64| time as f64 / overhead.elapsed.0.max(1) as f64 * 100.0;
    html! {
        section id="conditions" {
            h2 { "Under which conditions" }
            dl {
                dt { "CPUs" } dd { (run.cpus.iter().map(|cpu| cpu.0.to_string()).collect::<Vec<_>>().join(", ")) }
                dt { "Partitions" } dd { @if run.partitioned { (means(run.method)) " of level " (run.level) } @else { "none" } }
                @for reserved in &run.reserved { dt { "Scheduled by deadlines" } dd { (reserved.to_string()) "; " (BY_DEADLINES) } }
                dt { "Stolen" } dd { (format::nanoseconds(run.stolen.0 as f64)) " of these CPUs’ time, by the kernel’s count" }
                dt { "Watching" } dd {
                    (format!("{:.2}", share(overhead.tool_cpu.0.saturating_sub(overhead.release_cpu.0)))) " % of a CPU, besides what the kernel needs to write "
                    (format::grouped(overhead.events)) " events; " (overhead.lost) " lost"
                }
                dt { "Releases" } dd { (overhead.releases()) }
                @for task in &run.tasks { @if let Some(placement) = &task.placement {
                    dt { (task.promise.name) } dd { (placement.right) " of " (placement.resident) " resident pages on its colors, " (placement.fixed) " cannot be moved" }
                } }
                @for (name, memory) in &run.memory { @if memory.0 > 0 { dt { "Memory of " (name) } dd { (memory) " of its own at most" } } }
                @for input in &run.inputs { dt { (input.path) } dd { code.hash { (input.sha256) } } }
            }
            (scroll(html! {
                table {
                    thead { tr { th scope="col" { "setting" } th scope="col" { "before" } th scope="col" { "while it ran" } th scope="col" { "afterwards" } } }
                    tbody { @for setting in &run.settings { tr { td { (setting.name) } td { (setting.before) } td { (setting.during) } td { (setting.after) } } } }
                }
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::{
        Comparison, Fault, JobRecord, Limit, Overhead, Placement, Promise, ResponseBound, Setting, Stretch, Tally,
        Window,
    };
    use crate::units::{Color, CpuId};

    /// A run of two tasks, the second of which is late once.
    fn run() -> Run {
        let tally = |name: &str, late: bool| {
            let promise = Promise {
                name: name.to_owned(),
                period: Ns(1_000_000),
                deadline: Ns(900_000),
                bound: Some(ResponseBound(Ns(500_000))),
                without_interference: Some(Ns(400_000)),
                budget: None,
                wcet: Some(Ns(250_000)),
                utilization: Some(0.3),
            };
            let mut tally = Tally::new(promise);
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
            tally.outcome()
        };
        let placement = Placement { colors: vec![Color(0)], resident: 100, right: 90, fixed: 10 };
        let windows = |execution: u64| {
            vec![
                Window {
                    jobs: 9,
                    execution: Ns(execution),
                    response: Ns(execution),
                    response_max: Ns(execution),
                    misses: None
                };
                6
            ]
        };
        Run {
            cpus: vec![CpuId(1)],
            partitioned: true,
            method: Partitioning::Colors,
            reserved: Vec::new(),
            level: 2,
            duration: Ns(400_000_000),
            tasks: vec![TaskOutcome { placement: Some(placement), ..tally("con<trol", false) }, tally("log", true)],
            violations: vec![Violation {
                task: "log".to_owned(),
                instance: 7,
                limits: vec![Limit::Bound],
                release: Ns(7_000_000),
                response: Ns(600_000),
                execution: Ns(200_000),
                stolen: Ns(0),
                timeline: vec![
                    Stretch { from: Ns(6_900_000), to: Ns(7_400_000), what: "con<trol".to_owned() },
                    Stretch { from: Ns(7_400_000), to: Ns(7_600_000), what: "log".to_owned() },
                ],
            }],
            faults: vec![Fault { task: "log".to_owned(), at: Ns(1), what: "ended with code 1".to_owned() }],
            overhead: Overhead { events: 5, tool_cpu: Ns(1_000_000), elapsed: Ns(400_000_000), ..Overhead::default() },
            stolen: Ns(0),
            settings: vec![Setting { name: "s".into(), before: "a".into(), during: "b".into(), after: "a".into() }],
            inputs: vec![],
            memory: vec![],
            retention: Some(Ns(50_000)),
            comparison: Some(Comparison {
                window: Ns(250_000_000),
                blocks: 2,
                tasks: vec![TaskComparison::of("log", &windows(100_000), &windows(150_000))],
            }),
        }
    }

    #[test]
    fn the_text_states_bound_high_water_mark_and_claim_of_every_task() {
        let text = text(&run());
        let row = text.lines().find(|line| line.starts_with("log ")).expect("a row");
        // 500 us bound, 400 us without interference, 600 us seen, once beyond the bound.
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..7], ["log", "400", "1000", "900", "500", "400", "600"]);
        assert_eq!(cells[10..], ["1", "0"]);
        assert!(text.contains("at most 0.007 (95 % confidence)"), "{text}");
        assert!(text.contains("without partitions: execution +50"), "{text}");
        assert!(text.contains("loses half of its contents within 50.0"), "{text}");
        assert!(text.contains("watching took 0.25 % of a CPU"), "{text}");
        assert!(text.contains("log: 1 of 400 jobs were beyond the bound"), "{text}");
    }

    #[test]
    fn the_headline_is_the_conclusion() {
        let mut run = run();
        assert_eq!(headline(&run).0, Some(Standing::Violated));
        run.faults.clear();
        run.tasks.truncate(1);
        assert_eq!(headline(&run).0, Some(Standing::Holds));
        run.overhead.lost = 1;
        let (standing, _, basis) = headline(&run);
        assert_eq!(standing, Some(Standing::Inconclusive(String::new())));
        assert!(basis.contains("1 events of the scheduler were lost"), "{basis}");
    }

    #[test]
    fn every_part_of_a_run_is_drawn_and_well_formed() {
        let run = run();
        let pages =
            [bars(&run), comparison(&run), violations(&run), conditions(&run), misses(&run), responses(&run.tasks[0])];
        for page in pages {
            let text = format!("<div>{}</div>", page.into_string());
            // Void elements of HTML have no end; there are none in these parts.
            roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(text.len() > 200, "{text}");
            assert!(!text.contains("con<trol"), "{text}");
        }
    }
}
