//! A task with a set miss ratio: predicted against measured, and the figure of both over the size of its loop. [Sebek2002, Figure 5]

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::{Axis, Chart, Dash, Line, Mark, extent};
use super::reading::Standing;
use super::{figure, format, scroll};
use crate::evidence::Evidence;
use crate::geometry::Geometry;
use crate::miss_ratio::measured::{By, Comparison, Executed, QUIET_MIN, Verdict};
use crate::miss_ratio::search::{NEAR, TRIES, found};
use crate::miss_ratio::{Touches, line_ratio, straight_line};
use crate::units::Bytes;

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// What the report begins with where there is nothing else.
pub(super) fn headline(comparison: &Comparison) -> (Option<Standing>, String, String) {
    let basis = format!("Level {}, {}: {}.", comparison.level, comparison.task.touches, lines(comparison));
    let sentence = match comparison.executed {
        Some(executed) if comparison.verdict() != Verdict::Inconclusive => format!(
            "A task made to miss in {} of its accesses was seen to miss in {}.",
            percent(comparison.asked),
            percent(executed.miss_ratio)
        ),
        _ => format!(
            "Whether a task made to miss in {} of its accesses does so cannot be told from this run.",
            percent(comparison.asked)
        ),
    };
    let standing = match comparison.verdict() {
        Verdict::Inconclusive => Some(Standing::Inconclusive(String::new())),
        Verdict::Violated => Some(Standing::Violated),
        // Nothing is promised of a task whose size was not searched.
        Verdict::Holds if comparison.search.is_empty() => None,
        Verdict::Holds => Some(Standing::Holds),
    };
    (standing, sentence, basis)
}

fn lines(comparison: &Comparison) -> String {
    format!("a loop over {} lines ({})", comparison.task.lines, Bytes(comparison.bytes))
}

/// What there is to say of the comparison, a sentence each.
fn findings(comparison: &Comparison) -> Vec<String> {
    let mut found = Vec::new();
    let Some(executed) = comparison.executed else { return found };
    if let Some((apart, why)) = comparison.apart() {
        found.push(format!("{:+.1} points from LRU: {why}", 100.0 * apart));
    }
    if let Some(reason) = &comparison.not_counted {
        found.push(format!("told by time: {reason}"));
    } else if let Some([fitting, missing]) = executed.counted {
        let verdict = match executed.by {
            By::Counters => "as it must be",
            By::Time => "so the counter is not believed, and time tells the ratio",
        };
        found.push(format!(
            "counted of the controls, {fitting:.2} misses per line where all fit and {missing:.2} where none does: {verdict}"
        ));
    }
    if executed.turns_quiet < QUIET_MIN {
        found.push(format!("inconclusive: fewer than {QUIET_MIN} turns were quiet"));
    }
    found.extend(search_finding(comparison));
    found
}

/// How the search ended, aloud.
fn search_finding(comparison: &Comparison) -> Option<String> {
    let (tries, points) = (comparison.search.len(), 100.0 * NEAR);
    let ratio = comparison.miss_ratio().filter(|_| tries > 0)?;
    Some(if found(&comparison.search, comparison.asked) {
        format!(
            "found after {tries} tries: {} lines, measured twice within {points:.0} points of {}",
            comparison.task.lines,
            percent(comparison.asked)
        )
    } else {
        let missed = if tries < TRIES { "ended early" } else { "missed" };
        format!(
            "{missed}: in {tries} tries no size was measured twice within {points:.0} points of {}; the nearest is {} lines, {:+.1} points off",
            percent(comparison.asked),
            comparison.task.lines,
            100.0 * (ratio - comparison.asked)
        )
    })
}

fn quartiles(executed: &Executed) -> String {
    format!("{} to {}", percent(executed.quartiles[0]), percent(executed.quartiles[1]))
}

/// How a ratio was told.
fn by(executed: &Executed) -> &'static str {
    match executed.by {
        By::Counters => "by counters",
        By::Time => "by time",
    }
}

/// The comparison for the terminal.
pub fn text(comparison: &Comparison) -> String {
    let geometry = comparison.task.geometry;
    let touches = match comparison.task.touches {
        Touches::Data => "words of memory",
        Touches::Code => "instructions",
    };
    let mut text = format!(
        "{} of level {} ({}, {} ways), {:.2} {touches} of each: {} asked for\n",
        lines(comparison),
        comparison.level,
        geometry.cache_bytes(),
        geometry.ways,
        comparison.task.words,
        percent(comparison.asked)
    );
    let _ = writeln!(
        text,
        "predicted: {} by LRU exactly, {} by the document's straight line [Sebek2002, Figure 5]",
        percent(comparison.predicted_lru),
        percent(comparison.predicted_straight)
    );
    if let Some(modeled) = &comparison.modeled {
        let _ = writeln!(text, "on {} ({}): {}", modeled.machine, modeled.policy, percent(modeled.miss_ratio));
    }
    for (i, tried) in comparison.search.iter().enumerate() {
        let executed = &tried.executed;
        let _ = writeln!(
            text,
            "search {:2}: {:>7} lines {:>8}, quartiles {}, {} of {} turns quiet",
            i + 1,
            tried.lines,
            percent(executed.miss_ratio),
            quartiles(executed),
            executed.turns_quiet,
            executed.turns
        );
    }
    if let Some(executed) = &comparison.executed {
        let _ = writeln!(
            text,
            "measured: {} {}, quartiles {}; {:.2} ns per access, {:.2} where all lines fit, {:.2} where none does; {} of {} turns quiet",
            percent(executed.miss_ratio),
            by(executed),
            quartiles(executed),
            executed.access_ns,
            executed.hit_ns,
            executed.miss_ns,
            executed.turns_quiet,
            executed.turns
        );
    }
    for finding in findings(comparison) {
        let _ = writeln!(text, "  {finding}");
    }
    text
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        @for comparison in &evidence.workloads {
            section id="workload" {
                h2 { "A task with a set miss ratio" }
                p {
                    "A loop that is a little larger than a cache misses in those sets that have one line too many. How many of its lines that are follows exactly from LRU; "
                    "the straight line is the document’s. The point is what was measured, with its quartiles"
                    @if !comparison.search.is_empty() { "; the hollow ones are what a search tried" }
                    "."
                }
                figure.wide { (chart(comparison).svg()) }
                ul { @for finding in findings(comparison) { li { (finding) } } }
                (scroll(html! {
                    table {
                        thead { tr {
                            th scope="col" { "" } th.number scope="col" { "lines" } th.number scope="col" { "misses per access" }
                            th.number scope="col" { "quartiles" } th.number scope="col" { "quiet turns" }
                        } }
                        tbody {
                            (row("asked for", comparison.task.lines, comparison.asked, None))
                            (row("LRU exactly", comparison.task.lines, comparison.predicted_lru, None))
                            (row("straight line", comparison.task.lines, comparison.predicted_straight, None))
                            @if let Some(executed) = &comparison.executed {
                                (row(&format!("measured {}", by(executed)), comparison.task.lines, executed.miss_ratio, Some(executed)))
                            }
                        }
                        @if !comparison.search.is_empty() {
                            tbody {
                                @for (i, tried) in comparison.search.iter().enumerate() {
                                    (row(&format!("try {}", i + 1), tried.lines, tried.executed.miss_ratio, Some(&tried.executed)))
                                }
                            }
                        }
                    }
                }))
            }
        }
    }
}

fn row(name: &str, lines: u64, ratio: f64, executed: Option<&Executed>) -> Markup {
    let shown = |of: &dyn Fn(&Executed) -> String| executed.map_or(format::DASH.to_owned(), of);
    html! {
        tr {
            td { (name) } td.number { (format::grouped(lines)) } td.number { (percent(ratio)) }
            td.number { (shown(&quartiles)) } td.number { (shown(&|executed| format!("{} of {}", executed.turns_quiet, executed.turns))) }
        }
    }
}

/// The figure as a file of its own.
pub fn svg(comparison: &Comparison) -> String {
    let chart = chart(comparison);
    figure::file(&chart.title, &[(chart.svg(), 240.0)])
}

/// Misses per line of a loop against its size: by LRU exactly, by the document's straight line, predicted for the task, and measured.
/// [Sebek2002, Figure 5]
fn chart(comparison: &Comparison) -> Chart {
    let task = &comparison.task;
    let geometry = task.geometry;
    let capacity = geometry.set_count * u64::from(geometry.ways);
    let sizes = || comparison.search.iter().map(|tried| tried.lines).chain([task.lines]);
    let first = sizes().min().unwrap_or(capacity).min(capacity);
    let last = sizes().max().unwrap_or(capacity).max(capacity + geometry.set_count);
    let (first, last) = (first - first / 20, last + last / 20);
    let share = |lines: u64| 100.0 * lines as f64 / capacity as f64;
    let curve = |ratio: fn(Geometry, u64) -> f64| -> Vec<(f64, f64)> {
        // Both bend at these two, and the steps in between follow the curve.
        let mut sizes: Vec<u64> = (first..=last).step_by(((last - first) / 100).max(1) as usize).collect();
        sizes.extend([capacity, capacity + geometry.set_count, last]);
        sizes.sort_unstable();
        sizes.into_iter().map(|lines| (share(lines), 100.0 * ratio(geometry, lines))).collect()
    };
    let per_line = task.accesses_per_pass() as f64 / task.lines.max(1) as f64;
    let at = |lines: u64, ratio: f64| (share(lines), 100.0 * ratio * per_line);
    let marked = |(x, y): (f64, f64), hollow, line: Line| Line { marks: vec![Mark { x, y, hollow }], ..line };
    let mut lines = vec![
        marked(
            (share(task.lines), 100.0 * line_ratio(geometry, task.lines)),
            false,
            Line::plain("LRU", "alone", Dash::Solid, curve(line_ratio)),
        ),
        marked(
            (share(task.lines), 100.0 * straight_line(geometry, task.lines)),
            false,
            Line::plain("straight", "single-writer", Dash::Dashed, curve(straight_line)),
        ),
    ];
    // A point with its quartiles is a line from one to the other.
    let point = |name, lines, executed: &Executed, hollow| {
        let whisker = [executed.quartiles[0], executed.miss_ratio, executed.quartiles[1]];
        let points = whisker.map(|ratio| at(lines, ratio));
        // It ends at the point, beside which its name is written.
        let end = vec![points[0], points[2], points[1]];
        marked(points[1], hollow, Line::plain(name, "unpartitioned", Dash::Thin, end))
    };
    lines.extend(comparison.search.iter().map(|tried| point("", tried.lines, &tried.executed, true)));
    match (&comparison.executed, comparison.miss_ratio()) {
        (Some(executed), _) => lines.push(point("measured", task.lines, executed, false)),
        (None, Some(modeled)) => {
            let modeled = at(task.lines, modeled);
            lines.push(marked(modeled, false, Line::plain("modeled", "unpartitioned", Dash::Thin, vec![modeled])));
        }
        (None, None) => {}
    }
    let (low, high) = extent(lines.iter().flat_map(|line| &line.points).map(|point| point.1).chain([0.0, 100.0]));
    Chart {
        title: format!("Misses of a loop in level {}", comparison.level),
        description: "Misses per line of a loop against its size: exactly under LRU, by a straight line, and measured, with quartiles."
            .to_owned(),
        x: Axis::linear("size of the loop, % of the cache", (share(first), share(last)), format::tick),
        y: Axis::linear_rounded("misses per line, %", (low, high), format::tick),
        lines,
        rules: vec![(share(task.lines), format!("task: {} lines", format::grouped(task.lines)))],
        named_lines: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::miss_ratio::measured::tests::task;
    use crate::miss_ratio::search::Tried;
    use crate::miss_ratio::{Locality, Task};

    fn executed(miss_ratio: f64) -> Executed {
        Executed {
            miss_ratio,
            quartiles: [miss_ratio - 0.05, miss_ratio + 0.04],
            by: By::Time,
            access_ns: 5.0,
            hit_ns: 2.0,
            miss_ns: 12.0,
            counted: None,
            turns: 200,
            turns_quiet: 60,
        }
    }

    /// A search in which these sizes had these ratios, the last of which it ended with.
    fn searched(tries: &[(u64, f64)]) -> Comparison {
        let (lines, ratio) = *tries.last().unwrap();
        let mut comparison = Comparison::of(Task { lines, ..task() }, 2, 16, Locality::Temporal, 0.33);
        comparison.executed = Some(executed(ratio));
        comparison.colored = true;
        comparison.search = tries.iter().map(|&(lines, ratio)| Tried { lines, executed: executed(ratio) }).collect();
        comparison
    }

    #[test]
    fn predicted_and_measured_stand_side_by_side_with_why_they_differ() {
        let mut comparison = Comparison::of(task(), 2, 16, Locality::Temporal, 0.33);
        comparison.executed = Some(executed(0.2));
        comparison.colored = true;
        comparison.not_counted = Some("this machine offers no counters".to_owned());
        let told = text(&comparison);
        assert!(told.contains("predicted: 33.0 % by LRU exactly, 30.5 % by"), "{told}");
        assert!(told.contains("measured: 20.0 % by time, quartiles 15.0 % to 24.0 %"), "{told}");
        assert!(told.contains("-13.0 points from LRU: this cache does not replace by exact LRU"), "{told}");
        assert!(told.contains("told by time: this machine offers no counters"), "{told}");
        assert_eq!(headline(&comparison).0, None, "nothing was promised");
        if let Some(executed) = &mut comparison.executed {
            (executed.by, executed.counted, executed.turns_quiet) = (By::Counters, Some([0.01, 0.98]), 9);
        }
        comparison.not_counted = None;
        let told = text(&comparison);
        assert!(told.contains("by counters") && told.contains("0.01 misses per line where all fit and 0.98"), "{told}");
        assert!(told.contains("inconclusive: fewer than 10 turns were quiet"), "{told}");
    }

    #[test]
    fn a_search_that_ends_elsewhere_says_so_and_lists_its_last_try() {
        let found = searched(&[(8504, 0.2), (8700, 0.34), (8700, 0.32)]);
        assert!(text(&found).contains("found after 3 tries: 8700 lines"), "{}", text(&found));
        assert_eq!(headline(&found).0, Some(Standing::Holds));
        let early = [(8700, 0.6), (8504, 0.2), (8600, 0.24)];
        assert_eq!(headline(&searched(&early)).0, Some(Standing::Inconclusive(String::new())));
        let missed = searched(&early.repeat(TRIES / 3));
        let told = text(&missed);
        assert!(told.contains("missed: in 24 tries no size") && told.contains("8600 lines, -9.0 points off"), "{told}");
        assert!(told.contains("search 24:    8600 lines   24.0 %"), "{told}");
        assert_eq!(headline(&missed).0, Some(Standing::Violated));
    }

    #[test]
    fn the_figure_has_both_curves_the_task_and_every_try_with_its_quartiles() {
        let svg = svg(&searched(&[(8504, 0.2), (8700, 0.34), (8700, 0.32)]));
        let document = roxmltree::Document::parse(&svg).unwrap();
        let of_class = |class: &str| {
            document.descendants().filter(|node| node.attribute("class").is_some_and(|c| c == class)).count()
        };
        // The task on both curves and measured; three tries.
        assert_eq!((of_class("mark"), of_class("mark hollow")), (3, 3));
        assert_eq!((of_class("line solid"), of_class("line dashed"), of_class("line thin")), (1, 1, 4));
        assert!(svg.contains("task: 8700 lines"), "{svg}");
        assert!(svg.contains(">measured<") && !svg.contains("NaN"));
        // A name is not written for every try.
        assert_eq!(of_class("name"), 3);
    }
}
