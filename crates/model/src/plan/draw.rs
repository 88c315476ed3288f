//! Plans as pictures: which task uses which partitions, and the schedule after the critical instant.

use maud::{Markup, html};

use super::{Compared, Comparison, Plan};
use crate::analysis::schedule::{play, synchronous};
use crate::analysis::{Analysis, Conditions, CoreTask, analyze};
use crate::printable;

/// Colors that most color-blind readers can tell apart as well. [Okabe and Ito]
pub const COLORS: [&str; 8] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a00", "#666666"];
const LABEL: f64 = 150.0;
const CELL: f64 = 18.0;
const ROW: f64 = 22.0;

fn svg(width: f64, height: f64, title: &str, content: Markup) -> String {
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height)
            role="img" font-family="sans-serif" font-size="12" {
            title { (title) }
            rect width=(width) height=(height) fill="#ffffff" {}
            (content)
        }
    };
    printable::lines(&drawing.into_string())
}

/// Draws which task uses which partition on which core, as SVG: a row per task, a column per partition.
pub fn color_map(plan: &Plan, partitions: u32) -> String {
    let rows: usize = plan.cores.iter().map(|core| core.tasks.len() + 1).sum();
    let width = LABEL + f64::from(partitions) * CELL + 20.0;
    let mut y = 8.0;
    let content = html! {
        @for core in &plan.cores {
            text x="8" y=(y + 15.0) font-weight="bold" {
                "CPU " (core.cpu) ", utilization " (format!("{:.3}", core.utilization))
            }
            ({ y += ROW; html! {} })
            @for (index, task) in core.tasks.iter().enumerate() {
                text x="8" y=(y + 15.0) { (task.name) }
                @for partition in 0..partitions {
                    @let used = task.partitions.contains(&partition);
                    rect x=(LABEL + f64::from(partition) * CELL) y=(y + 2.0) width=(CELL - 2.0) height=(ROW - 4.0)
                        fill=(if used { COLORS[index % COLORS.len()] } else if core.partitions.contains(&partition) { "#e8e8e8" } else { "#f8f8f8" }) {
                        title { (task.name) ", partition " (partition) (if used { "" } else { ": not used" }) }
                    }
                }
                ({ y += ROW; html! {} })
            }
        }
    };
    svg(width, rows as f64 * ROW + 16.0, "Cache partitions of each task", content)
}

/// A core whose schedule is drawn.
pub struct Timeline<'a> {
    /// Number of the CPU.
    pub cpu: u32,
    /// Names of the tasks, in the order of `core`.
    pub names: Vec<&'a str>,
    /// Tasks of the core, highest priority first.
    pub core: &'a [CoreTask],
}

/// Draws the schedules of cores whose tasks are all released together, as SVG, one below the other: which task runs when,
/// with refills in black, and the bounds.
pub fn gantt<'a>(timelines: &[Timeline], conditions: impl Into<Conditions<'a>>, analysis: Analysis) -> String {
    let conditions = conditions.into();
    let height = |timeline: &Timeline| timeline.names.len() as f64 * ROW + 2.0 * ROW + 10.0;
    let mut y = 8.0;
    let content = html! {
        @for timeline in timelines {
            (one_core(timeline, conditions, analysis, y))
            ({ y += height(timeline); html! {} })
        }
    };
    svg(LABEL + SPAN + 20.0, y, "Schedule after a common release", content)
}

const SPAN: f64 = 900.0;

fn one_core(timeline: &Timeline, conditions: Conditions, analysis: Analysis, top: f64) -> Markup {
    let Timeline { cpu, names, core } = timeline;
    let bounds = analyze(core, conditions, analysis);
    // The horizon is long enough for every task to complete or to miss its deadline.
    let horizon = core.iter().map(|task| task.deadline_ns).max().unwrap_or(1).max(1);
    // The horizon is cut to about 2000 jobs, because nobody can see more of a fast task beside a slow one.
    let jobs: u64 = core.iter().map(|task| horizon / task.period_ns + 1).fold(0, u64::saturating_add);
    let horizon = if jobs > 2_000 { (horizon / (jobs / 2_000 + 1)).max(1) } else { horizon };
    let played = play(core, conditions.charges, &synchronous(core, horizon), horizon);
    let x = |time: u64| LABEL + time as f64 / horizon as f64 * SPAN;
    let row = |index: usize| top + (index + 1) as f64 * ROW;
    let below = row(names.len()) + 16.0;
    html! {
        text x="8" y=(top + 15.0) font-weight="bold" { "CPU " (cpu) }
        @for (index, name) in names.iter().enumerate() {
            text x="8" y=(row(index) + 15.0) { (name) }
            line x1=(LABEL) x2=(LABEL + SPAN) y1=(row(index) + ROW - 2.0) y2=(row(index) + ROW - 2.0) stroke="#cccccc" {}
        }
        @for interval in &played.intervals {
            rect x=(format!("{:.2}", x(interval.start_ns))) y=(row(interval.task) + 2.0) height=(ROW - 4.0)
                width=(format!("{:.2}", (x(interval.end_ns) - x(interval.start_ns)).max(0.3)))
                fill=(if interval.refilling { "#222222" } else { COLORS[interval.task % COLORS.len()] }) {}
        }
        @for (index, bound) in bounds.iter().enumerate() {
            @if let Some(response_ns) = bound.verdict.response_ns() {
                @if response_ns <= horizon {
                    line x1=(x(response_ns)) x2=(x(response_ns)) y1=(row(index)) y2=(row(index) + ROW) stroke="#d00000"
                        stroke-width="2" {
                        title { (names.get(index).copied().unwrap_or("")) ": bound " (response_ns as f64 / 1e6) " ms" }
                    }
                }
            }
        }
        text x=(LABEL) y=(below) { "0" }
        text x=(LABEL + SPAN) y=(below) text-anchor="end" { (format!("{:.3} ms", horizon as f64 / 1e6)) }
        text x=(LABEL + SPAN / 2.0) y=(below) text-anchor="middle" { "black: refilling; red: bound" }
    }
}

/// Draws comparisons as three bar charts in SVG: the fewest partitions, the memory used of these, and the least utilization
/// with all partitions. Each chart has one of the notes below it. [Kim2013, Figures 14 to 16]
pub fn bars(comparisons: &[Comparison], notes: [&str; 3]) -> String {
    type Value = fn(&Compared) -> Option<f64>;
    let percent = |value: f64| format!("{:.0} %", value * 100.0);
    let panels: [(&str, Value); 3] = [
        ("Fewest partitions, of all", |compared| compared.share),
        ("Memory used of these partitions", |compared| compared.memory_used),
        ("Least utilization with all partitions", |compared| compared.least),
    ];
    let (width, bar, panel, tall) = (20.0 + comparisons.len() as f64 * GROUP, 26.0, 210.0, 120.0);
    let content = html! {
        @for (number, (title, value)) in panels.into_iter().enumerate() {
            @let top = 34.0 + number as f64 * panel;
            @let all = comparisons.iter().flat_map(|comparison| &comparison.methods).filter_map(value);
            @let most = all.fold(f64::MIN_POSITIVE, f64::max);
            text x="8" y=(top + 4.0) font-weight="bold" { (title) }
            @for (index, comparison) in comparisons.iter().enumerate() {
                @let left = 20.0 + index as f64 * GROUP;
                @for (method, compared) in comparison.methods.iter().enumerate() {
                    @let x = left + method as f64 * (bar + 3.0);
                    @let high = value(compared).map_or(0.0, |value| value / most * tall);
                    rect x=(x) y=(format!("{:.1}", top + 28.0 + tall - high)) width=(bar) height=(format!("{high:.1}")) fill=(COLORS[method]) {}
                    text x=(x + bar / 2.0) y=(format!("{:.1}", top + 24.0 + tall - high)) text-anchor="middle" font-size="9" {
                        (value(compared).map_or("none".to_owned(), percent))
                    }
                }
                text x=(left) y=(top + 43.0 + tall) { (comparison.tasks) " tasks, " (comparison.memory) }
            }
            text x="8" y=(top + 60.0 + tall) font-size="11" fill="#444444" { (notes[number]) }
        }
        @if let Some(comparison) = comparisons.first() {
            @for (method, compared) in comparison.methods.iter().enumerate() {
                rect x=(20.0 + method as f64 * 90.0) y="6" width="12" height="12" fill=(COLORS[method]) {}
                text x=(37.0 + method as f64 * 90.0) y="16" { (compared.method) }
            }
        }
    };
    svg(width, 34.0 + 3.0 * panel, "Methods compared: partitions, memory and utilization", content)
}

/// Width of the bars of one comparison.
const GROUP: f64 = 140.0;
