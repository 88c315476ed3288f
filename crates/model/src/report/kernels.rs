//! The experiments, kernel by kernel.

use maud::{Markup, html};

use super::chart::{self, Axis, Chart, Line, Mark};
use super::format::{self, Clock, DASH};
use super::reading::{self, CONDITIONS, FLOODED, Kernel, Reading, exceedance};
use super::{look, scroll, tag};
use crate::evidence::{Condition, Evidence, Outcome};
use crate::machine::Machine;
use crate::units::Cycles;

fn or_dash(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or(DASH.to_owned(), text)
}

fn key(conditions: &[Condition]) -> Markup {
    html! {
        @for &condition in conditions { span { (chart::sample(look(condition))) " " (reading::name(condition)) } " " }
    }
}

/// A range that covers more than this factor is drawn on a logarithmic axis.
const WIDE: f64 = 8.0;

/// Unpredictability against problem size, a figure per kernel.
pub(super) fn unpredictability(evidence: &Evidence, kernels: &[Kernel<'_>]) -> Markup {
    html! {
        section id="unpredictability" {
            h2 { "How much longer does a job take?" }
            @if kernels.is_empty() { p { "No experiment was run." } } @else {
                p {
                    "The median job after a flood, over the shortest undisturbed job, against the problem size: +50 % is 1.5 times as long. Every "
                    "job recorded follows a flood, so the typical one already meets the flooded cache; what lies above it on a shared host is other "
                    "disturbance, which the control shows too."
                }
                p.key { (key(&CONDITIONS)) span { (hollow()) " too few quiet blocks or jobs to judge" } }
                div.figures {
                    @for kernel in kernels {
                        figure {
                            h3 { (kernel.title()) }
                            (size_chart(&evidence.machine, kernel))
                            details { summary { "Numbers" } (size_table(&evidence.machine, kernel)) }
                        }
                    }
                }
            }
        }
    }
}

fn hollow() -> Markup {
    html! { svg.sample viewBox="0 0 10 10" width="10" height="10" aria-hidden="true" { g.alone { circle.mark.hollow cx="5" cy="5" r="3" {} } } }
}

fn size_chart(machine: &Machine, kernel: &Kernel<'_>) -> Markup {
    let overhead = |ratio: f64| (ratio - 1.0) * 100.0;
    let lines: Vec<Line> = CONDITIONS
        .into_iter()
        .map(|condition| {
            let measured =
                kernel.readings.iter().filter_map(|reading| Some((reading, overhead(reading.median(condition)?))));
            let marks: Vec<Mark> = measured
                .map(|(reading, y)| Mark { x: reading.size as f64, y, hollow: reading.doubt(condition).is_some() })
                .collect();
            let points = marks.iter().map(|mark| (mark.x, mark.y)).collect();
            Line { name: reading::name(condition).to_owned(), look: look(condition), points, marks, band: vec![] }
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    if lines.is_empty() {
        return html! { p.nothing { "No quiet block: nothing can be drawn." } };
    }
    let sizes: Vec<f64> = kernel.readings.iter().map(|reading| reading.size as f64).collect();
    let (smallest, largest) = chart::extent(sizes.iter().copied());
    let (low, high) = chart::extent(lines.iter().flat_map(|line| line.points.iter().map(|p| p.1)).chain([0.0]));
    let x = if smallest > 0.0 && largest / smallest >= WIDE { Axis::log } else { Axis::linear };
    // A single size stands in the middle.
    let ends = if smallest < largest { (smallest, largest) } else { (smallest * 0.5, smallest * 1.5) };
    let percent = |value: f64| match value {
        value if value > 0.0 => format!("+{} %", format::tick(value)),
        value => format!("{} %", format::tick(value)),
    };
    let worst = |condition| or_dash(chart_peak(&lines, condition), |peak| format::overhead(1.0 + peak / 100.0));
    Chart {
        title: format!("{}: unpredictability", kernel.title()),
        description: format!(
            "Largest value drawn: unpartitioned {}, partitioned {}, single-writer {}.",
            worst(Condition::Unpartitioned),
            worst(Condition::Partitioned),
            worst(Condition::SingleWriter)
        ),
        x: x(kernel.axis(), ends, format::tick).with_ticks(&sizes, format::tick),
        y: Axis::linear_rounded("time added, median job", (low, high), percent),
        rules: cache_rules(machine, kernel),
        lines,
        named_lines: true,
    }
    .svg()
}

fn chart_peak(lines: &[Line], condition: Condition) -> Option<f64> {
    let line = lines.iter().find(|line| line.name == reading::name(condition))?;
    line.points.iter().map(|point| point.1).max_by(f64::total_cmp)
}

/// Sizes at which the working set outgrows a data cache, for kernels whose working set grows with the size.
fn cache_rules(machine: &Machine, kernel: &Kernel<'_>) -> Vec<(f64, String)> {
    let mut rules = Vec::new();
    for level in (1..=3).filter_map(|level| machine.data_level(level)) {
        let cache = level.geometry.value.cache_bytes();
        let crossing = kernel.readings.windows(2).find_map(|pair| {
            let [small, large] = [&pair[0], &pair[1]].map(|r| (r.size as f64, r.experiment.working_set.0 as f64));
            let limit = cache.0 as f64;
            (small.1 > 0.0 && small.1 <= limit && limit < large.1 && small.0 > 0.0).then(|| {
                let part = (limit / small.1).ln() / (large.1 / small.1).ln();
                small.0 * (large.0 / small.0).powf(part)
            })
        });
        if let Some(size) = crossing {
            rules.push((size, format!("L{} {cache}", level.level)));
        }
    }
    rules
}

fn size_table(machine: &Machine, kernel: &Kernel<'_>) -> Markup {
    let clock = Clock::of(machine);
    let comparable = kernel.readings.iter().all(|reading| FLOODED.iter().any(|&c| reading.max(c).is_some()));
    html! {
        (scroll(html! {
            table {
                thead {
                    tr {
                        th.number scope="col" { "size" }
                        th scope="col" { "condition" }
                        th.number scope="col" { "jobs" }
                        th.number scope="col" { "median" }
                        th.number scope="col" { "p99" }
                        th.number scope="col" { "c" sub { "max" } }
                        th.number scope="col" { "control median" }
                        th.number scope="col" { "control p99" }
                        th.number scope="col" { "quiet blocks" }
                        th.number scope="col" { "steal" }
                    }
                }
                @for reading in &kernel.readings {
                    tbody {
                        tr.size {
                            th.number scope="rowgroup" { (kernel.size_text(reading.size)) }
                            td colspan="9" {
                                "working set " (reading.experiment.working_set) ", c" sub { "min" } " "
                                (reading.cycles_min().map_or(DASH.to_owned(), |cycles| clock.text(cycles))) " "
                                (tag(&reading.standing()))
                                @if let reading::Standing::Inconclusive(why) = reading.standing() { " " small { (why) } }
                            }
                        }
                        @for condition in CONDITIONS {
                            @if let Some(outcome) = reading.experiment.conditions.get(&condition) { (condition_row(reading, condition, outcome)) }
                        }
                    }
                }
            }
        }))
        p.note {
            "Median, p99, c" sub { "max" } " and control are over c" sub { "min" } ". "
            @if !comparable {
                "A dash for c" sub { "max" } ": conditions have different numbers of jobs, and a maximum grows with the number. "
            }
            "Only quiet blocks count."
        }
    }
}

fn condition_row(reading: &Reading<'_>, condition: Condition, outcome: &Outcome) -> Markup {
    let jobs = &outcome.jobs;
    html! {
        tr {
            td {}
            td.name-cell { (chart::sample(look(condition))) " " (reading::name(condition)) }
            td.number { (format::grouped(jobs.n)) }
            td.number { b { (or_dash(reading.median(condition), format::significant)) } }
            td.number { (or_dash(reading.over_min(jobs, |jobs| jobs.cycles_p99), format::significant)) }
            td.number { (or_dash(reading.max(condition), format::significant)) }
            td.number { (or_dash(reading.over_min(&outcome.control, |jobs| jobs.cycles_median), format::significant)) }
            td.number { (or_dash(reading.over_min(&outcome.control, |jobs| jobs.cycles_p99), format::significant)) }
            td.number { (outcome.blocks_quiet) "/" (outcome.blocks) }
            td.number { (format::nanoseconds(outcome.steal_ns.0 as f64)) }
        }
    }
}

/// How often jobs take how long, for each kernel where own colors change most.
pub(super) fn long_jobs(evidence: &Evidence, kernels: &[Kernel<'_>]) -> Markup {
    let shown: Vec<_> = kernels.iter().filter_map(|kernel| Some((kernel, kernel.biggest_effect()?))).collect();
    html! {
        @if !shown.is_empty() {
            section id="long-jobs" {
                h2 { "How rare are long jobs?" }
                p {
                    "Share of jobs that took longer than the time below, for the size of each kernel at which own colors change most. Each line ends at "
                    "its high-water mark, the longest job seen, which is not a bound: with 95 % confidence a further job exceeds it with at most the probability "
                    "given, if jobs are independent and nothing changes."
                }
                p.key { (key(&CONDITIONS)) }
                div.figures { @for (kernel, reading) in shown { (long_jobs_of(evidence, kernel, reading)) } }
            }
        }
    }
}

fn long_jobs_of(evidence: &Evidence, kernel: &Kernel<'_>, reading: &Reading<'_>) -> Markup {
    let clock = Clock::of(&evidence.machine);
    let outcomes: Vec<_> = CONDITIONS.iter().filter_map(|&c| Some((c, reading.outcome(c)?))).collect();
    html! {
        figure {
            h3 { (kernel.title()) ", " (kernel.size_text(reading.size)) }
            @if outcomes.is_empty() { p.nothing { "No quiet block: nothing can be drawn." } } @else {
                (exceedance_chart(clock, &kernel.title(), &outcomes))
                (scroll(html! {
                    table.marks {
                        thead {
                            tr {
                                td {} th.number scope="col" { "jobs" } th.number scope="col" { "high-water mark" }
                                th.number scope="col" { "exceeded by ≤" }
                            }
                        }
                        tbody {
                            @for (condition, outcome) in &outcomes {
                                @let mark = &outcome.high_water_mark;
                                tr {
                                    th scope="row" { (chart::sample(look(*condition))) " " (reading::name(*condition)) }
                                    td.number { (format::grouped(mark.n)) }
                                    td.number { (clock.text(Cycles(mark.value))) }
                                    td.number { (or_dash(exceedance(mark.n), format::probability)) }
                                }
                            }
                        }
                    }
                }))
                details { summary { "Numbers" } (rare_times(clock, &outcomes)) }
            }
        }
    }
}

/// Share of jobs longer than each time, as a staircase: the share stays until the next time.
fn staircase(clock: Clock, outcome: &Outcome, lowest: f64) -> Vec<(f64, f64)> {
    let mut corners = vec![(clock.number(outcome.jobs.cycles_min), 1.0)];
    let mut height = 1.0;
    for &(cycles, share) in &outcome.ccdf {
        let x = clock.number(cycles);
        corners.push((x, height));
        // Nothing exceeds the maximum; on a logarithmic axis that point does not exist.
        if share.is_finite() && share > 0.0 {
            height = share.max(lowest);
            corners.push((x, height));
        }
    }
    corners.push((clock.number(Cycles(outcome.high_water_mark.value)), height));
    corners.retain(|corner| corner.0 > 0.0);
    corners
}

fn exceedance_chart(clock: Clock, kernel: &str, outcomes: &[(Condition, &Outcome)]) -> Markup {
    let most = outcomes.iter().map(|(_, outcome)| outcome.jobs.n).max().unwrap_or(1).max(1);
    let lowest_decade = ((1.0 / most as f64).log10().floor() as i32).min(-1);
    let lowest = 10f64.powi(lowest_decade);
    let decades: Vec<f64> = (lowest_decade..=0).map(|decade| 10f64.powi(decade)).collect();
    let lines: Vec<Line> = outcomes
        .iter()
        .map(|(condition, outcome)| {
            let points = staircase(clock, outcome, lowest);
            let marks = points.last().map(|&(x, y)| Mark { x, y, hollow: false }).into_iter().collect();
            Line { name: reading::name(*condition).to_owned(), look: look(*condition), points, marks, band: vec![] }
        })
        .collect();
    let (shortest, longest) = chart::extent(lines.iter().flat_map(|line| line.points.iter().map(|p| p.0)));
    let label = format!("time of a job, {}", clock.unit());
    let x = if shortest > 0.0 && longest / shortest >= WIDE { Axis::log } else { Axis::linear };
    let medians = outcomes.iter().map(|(condition, outcome)| {
        format!("{} {}", reading::name(*condition), clock.text(outcome.jobs.cycles_median))
    });
    Chart {
        title: format!("{kernel}: share of jobs longer than a time"),
        description: format!("Median jobs: {}.", medians.collect::<Vec<_>>().join(", ")),
        x: x(&label, (shortest, longest), format::tick),
        y: Axis::log("share of jobs that took longer", (lowest, 1.0), chart::power_of_ten)
            .with_ticks(&decades, chart::power_of_ten),
        lines,
        rules: vec![],
        named_lines: false,
    }
    .svg()
}

/// Times that one job in 2, 10, 100... exceeds.
fn rare_times(clock: Clock, outcomes: &[(Condition, &Outcome)]) -> Markup {
    let most = outcomes.iter().map(|(_, outcome)| outcome.jobs.n).max().unwrap_or(1);
    let rarities: Vec<u64> = [2, 10, 100, 1000, 10_000, 100_000].into_iter().filter(|&rarity| rarity <= most).collect();
    // The first recorded time that at most one job in `rarity` exceeds.
    let time = |outcome: &Outcome, rarity: u64| {
        let within = |&&(_, share): &&(Cycles, f64)| share <= 1.0 / rarity as f64;
        (rarity <= outcome.jobs.n).then(|| outcome.ccdf.iter().find(within).map(|point| point.0)).flatten()
    };
    scroll(html! {
        table {
            thead {
                tr {
                    th scope="col" { "jobs longer than" }
                    @for (condition, _) in outcomes { th.number scope="col" { (reading::name(*condition)) } }
                }
            }
            tbody {
                @for rarity in rarities {
                    tr {
                        th scope="row" { "1 in " (format::grouped(rarity)) }
                        @for (_, outcome) in outcomes {
                            td.number { (time(outcome, rarity).map_or(DASH.to_owned(), |cycles| clock.text(cycles))) }
                        }
                    }
                }
                tr {
                    th scope="row" { "longest, job number" }
                    @for (_, outcome) in outcomes { td.number { (format::grouped(outcome.high_water_mark.last_rose_at)) } }
                }
            }
        }
    })
}

/// Share of the task's lines lost before a job, by time, and misses of the second level where they were counted.
pub(super) fn left_in_cache(evidence: &Evidence, kernels: &[Kernel<'_>]) -> Markup {
    let readings = || kernels.iter().flat_map(|kernel| &kernel.readings);
    let timed = readings().any(|reading| CONDITIONS.iter().any(|&c| reading.lost(c).is_some()));
    let counted = reading::counted(kernels);
    let line_bytes = evidence.machine.data_level(2).map(|level| level.geometry.value.line_bytes.0);
    let lines = |reading: &Reading<'_>| {
        let bytes = line_bytes.filter(|&bytes| bytes > 0)?;
        Some(reading.experiment.working_set.0.div_ceil(bytes))
    };
    html! {
        @if !kernels.is_empty() {
            section id="left-in-cache" {
                h2 { "What is left of the task’s cache when its job begins" }
                p {
                    @if timed { "Share of its lines that are gone, by time, of witness pages in the same colors; median. " }
                    @else { "Time could not tell which lines are gone. " }
                    @if counted { "Below it, second-level demand misses per job, median." } @else { "No counters on this host." }
                }
                @if timed || counted {
                    (scroll(html! {
                        table.left {
                            thead {
                                tr {
                                    th.number scope="col" { "size" } th.number.wide-only scope="col" { "lines" }
                                    @for condition in CONDITIONS { th.number scope="col" { (reading::name(condition)) } }
                                }
                            }
                            @for kernel in kernels {
                                tbody {
                                    tr.size { th colspan="6" scope="rowgroup" { (kernel.title()) } }
                                    @for reading in &kernel.readings {
                                        tr {
                                            th.number scope="row" { (kernel.size_text(reading.size)) }
                                            td.number.wide-only { (lines(reading).map_or(DASH.to_owned(), format::grouped)) }
                                            @for condition in CONDITIONS { (left_cell(reading, condition)) }
                                        }
                                    }
                                }
                            }
                        }
                    }))
                }
            }
        }
    }
}

fn left_cell(reading: &Reading<'_>, condition: Condition) -> Markup {
    let misses = reading.misses(condition).map(|misses| misses.round() as u64);
    let misses = html! {
        @if let Some(misses) = misses { small { (format::grouped(misses)) (if misses == 1 { " miss" } else { " misses" }) } }
    };
    match reading.lost(condition) {
        Some(lost) => html! {
            td class=(format!("number bar {}", look(condition).class)) style=(format!("--share:{:.0}%", lost * 100.0)) {
                (format::share(lost)) (misses)
            }
        },
        None => html! { td.number { (DASH) (misses) } },
    }
}
