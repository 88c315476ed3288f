//! Plans as pictures: who uses which partitions, and what the critical instant looks like.

use maud::{Markup, html};

use super::Plan;
use crate::analysis::twin::{play, synchronous};
use crate::analysis::{Analysis, Charges, CoreTask, analyze};

/// Colors that also differ for most color-blind readers. [Okabe and Ito]
pub(crate) const COLORS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a00", "#666666"];
const LABEL: f64 = 150.0;
const CELL: f64 = 18.0;
const ROW: f64 = 22.0;

fn svg(width: f64, height: f64, title: &str, content: Markup) -> String {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height)
            role="img" font-family="sans-serif" font-size="12" {
            title { (title) }
            rect width=(width) height=(height) fill="#ffffff" {}
            (content)
        }
    }
    .into_string()
}

/// Which task uses which partition on which core, as SVG: a row per task, a column per partition.
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
            @for (place, task) in core.tasks.iter().enumerate() {
                text x="8" y=(y + 15.0) { (task.name) }
                @for partition in 1..=partitions {
                    @let used = task.partitions.contains(&partition);
                    rect x=(LABEL + f64::from(partition - 1) * CELL) y=(y + 2.0) width=(CELL - 2.0) height=(ROW - 4.0)
                        fill=(if used { COLORS[place % COLORS.len()] } else if core.partitions.contains(&partition) { "#e8e8e8" } else { "#f8f8f8" }) {
                        title { (task.name) ", partition " (partition) (if used { "" } else { ": not used" }) }
                    }
                }
                ({ y += ROW; html! {} })
            }
        }
    };
    svg(width, rows as f64 * ROW + 16.0, "Cache partitions of each task", content)
}

/// A core when all tasks are released together, as SVG: what runs when, refills in a darker tone, and the bounds.
///
/// `names`: of the tasks, highest priority first, as in `core`.
pub fn gantt(names: &[&str], core: &[CoreTask], charges: Charges, analysis: Analysis) -> String {
    let bounds = analyze(core, charges, analysis);
    // Far enough for every task to complete or to miss.
    let horizon = core.iter().map(|task| task.deadline_ns).max().unwrap_or(1).max(1);
    // A fast task beside a slow one would draw more than anybody can see.
    let jobs: u64 = core.iter().map(|task| horizon / task.period_ns + 1).fold(0, u64::saturating_add);
    let horizon = if jobs > 2_000 { (horizon / (jobs / 2_000 + 1)).max(1) } else { horizon };
    let played = play(core, charges, &synchronous(core, horizon), horizon);
    let span = 900.0;
    let x = |time: u64| LABEL + time as f64 / horizon as f64 * span;
    let content = html! {
        @for (place, name) in names.iter().enumerate() {
            @let y = 8.0 + place as f64 * ROW;
            text x="8" y=(y + 15.0) { (name) }
            line x1=(LABEL) x2=(LABEL + span) y1=(y + ROW - 2.0) y2=(y + ROW - 2.0) stroke="#cccccc" {}
        }
        @for stretch in &played.stretches {
            @let y = 8.0 + stretch.task as f64 * ROW;
            rect x=(format!("{:.2}", x(stretch.start_ns))) y=(y + 2.0) height=(ROW - 4.0)
                width=(format!("{:.2}", (x(stretch.end_ns) - x(stretch.start_ns)).max(0.3)))
                fill=(if stretch.refilling { "#222222" } else { COLORS[stretch.task % COLORS.len()] }) {}
        }
        @for (place, bound) in bounds.iter().enumerate() {
            @if let Some(response_ns) = bound.verdict.response_ns() {
                @if response_ns <= horizon {
                    @let y = 8.0 + place as f64 * ROW;
                    line x1=(x(response_ns)) x2=(x(response_ns)) y1=(y) y2=(y + ROW) stroke="#d00000" stroke-width="2" {
                        title { (names.get(place).copied().unwrap_or("")) ": bound " (response_ns as f64 / 1e6) " ms" }
                    }
                }
            }
        }
        text x=(LABEL) y=(names.len() as f64 * ROW + 24.0) { "0" }
        text x=(LABEL + span) y=(names.len() as f64 * ROW + 24.0) text-anchor="end" { (format!("{:.3} ms", horizon as f64 / 1e6)) }
        text x=(LABEL + span / 2.0) y=(names.len() as f64 * ROW + 24.0) text-anchor="middle" { "black: refilling; red: bound" }
    };
    svg(LABEL + span + 20.0, names.len() as f64 * ROW + 34.0, "Schedule after a common release", content)
}
