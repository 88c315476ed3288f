//! The section of a report on a task with a set miss ratio: the predicted ratio against the measured one, and a figure of both over the size of
//! the loop. [Sebek2002, Figure 5]

use isochrome_model::evidence::figure::{Axis, Chart, Dash, Hue, Line, Mark, range_of};
use isochrome_model::evidence::format::{self, DASH};
use isochrome_model::evidence::{Section, Standing};
use isochrome_model::geometry::Geometry;
use isochrome_model::miss_ratio::{Touches, line_ratio, straight_line};
use isochrome_model::stats::BLOCKS_MIN;
use isochrome_model::units::Bytes;

use super::search::{NEAR, TRIES, found};
use super::{By, Comparison, Executed};

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn headline(comparison: &Comparison) -> (Option<Standing>, String, String) {
    let basis = format!(
        "Level {}, {}: a loop over {} lines ({}).",
        comparison.level,
        comparison.task.touches,
        comparison.task.lines,
        Bytes(comparison.bytes)
    );
    let requested = percent(comparison.requested);
    let sentence = match (&comparison.modeled, comparison.executed) {
        (_, Some(executed)) if comparison.standing() != Some(Standing::Inconclusive) => {
            format!(
                "A task made to miss in {requested} of its accesses was seen to miss in {}.",
                percent(executed.miss_ratio)
            )
        }
        (Some(modeled), None) => format!(
            "A task made to miss in {requested} of its accesses misses in {} on the modeled {} ({}).",
            percent(modeled.miss_ratio),
            modeled.machine,
            modeled.policy
        ),
        _ => {
            format!(
                "Whether a task made to miss in {requested} of its accesses does so cannot be concluded from this run."
            )
        }
    };
    (comparison.standing(), sentence, basis)
}

/// Returns the conclusions, one sentence each.
fn findings(comparison: &Comparison) -> Vec<String> {
    let mut found = Vec::new();
    let Some(executed) = comparison.executed else { return found };
    found.push(format!(
        "{:.2} ns per access, {:.2} where all lines fit, {:.2} where none does",
        executed.access_ns, executed.hit_ns, executed.miss_ns
    ));
    if let Some((apart, why)) = comparison.apart() {
        found.push(format!("{:+.1} points from LRU: {why}", 100.0 * apart));
    }
    if let Some(reason) = &comparison.not_counted {
        found.push(format!("measured by time: {reason}"));
    } else if let Some([fitting, missing]) = executed.counted {
        let verdict = match executed.by {
            By::Counters => "as it must be",
            By::Time => "so the counter is not trusted, and the ratio comes from time",
        };
        found.push(format!(
            "counted of the controls, {fitting:.2} misses per line where all fit and {missing:.2} where none does: {verdict}"
        ));
    }
    if executed.blocks_quiet < BLOCKS_MIN {
        found.push(format!("inconclusive: fewer than {BLOCKS_MIN} blocks were accepted"));
    }
    found.extend(search_finding(comparison));
    found
}

/// Returns a sentence on how the search ended; `None` if there was none.
fn search_finding(comparison: &Comparison) -> Option<String> {
    let (tries, points, requested) = (comparison.search.len(), 100.0 * NEAR, percent(comparison.requested));
    let lines = comparison.task.lines;
    let ratio = comparison.executed.filter(|_| tries > 0)?.miss_ratio;
    if found(&comparison.search, comparison.requested) {
        return Some(format!(
            "found after {tries} tries: {lines} lines, measured twice within {points:.0} points of {requested}"
        ));
    }
    let missed = if tries < TRIES { "ended early" } else { "missed" };
    let off = 100.0 * (ratio - comparison.requested);
    Some(format!(
        "{missed}: in {tries} tries no size was measured twice within {points:.0} points of {requested}; the nearest is {lines} lines, {off:+.1} points off"
    ))
}

fn by(executed: &Executed) -> &'static str {
    match executed.by {
        By::Counters => "by counters",
        By::Time => "by time",
    }
}

/// Returns the section of a report on the comparison.
pub fn section(comparison: &Comparison) -> Section {
    let task = comparison.task;
    let touches = match task.touches {
        Touches::Data => "words of memory",
        Touches::Code => "instructions",
    };
    let row = |name: String, lines: u64, ratio: f64, executed: Option<&Executed>| {
        let interval = executed.and_then(|executed| executed.interval);
        vec![
            name,
            lines.to_string(),
            percent(ratio),
            interval.map_or(DASH.to_owned(), |[low, high]| format!("{} to {}", percent(low), percent(high))),
            executed.map_or(DASH.to_owned(), |executed| format!("{}/{}", executed.blocks_quiet, executed.blocks)),
        ]
    };
    let mut rows = vec![
        row("requested".to_owned(), task.lines, comparison.requested, None),
        row("LRU exactly".to_owned(), task.lines, comparison.predicted_lru, None),
        row("straight line".to_owned(), task.lines, comparison.predicted_straight, None),
    ];
    if let Some(modeled) = &comparison.modeled {
        rows.push(row(format!("{} ({})", modeled.machine, modeled.policy), task.lines, modeled.miss_ratio, None));
    }
    let tries = comparison.search.iter().zip(1..);
    rows.extend(
        tries.map(|(tried, i)| {
            row(format!("search {i}"), tried.lines, tried.executed.miss_ratio, Some(&tried.executed))
        }),
    );
    if let Some(executed) = &comparison.executed {
        rows.push(row(format!("measured {}", by(executed)), task.lines, executed.miss_ratio, Some(executed)));
    }
    let geometry = task.geometry;
    Section::new("miss_ratio", "A task with a set miss ratio", headline(comparison), comparison)
        .text(format!(
            "A loop that is a little larger than a cache ({}, {} ways) misses in those sets that have one line too many; of each line it \
             touches {:.2} {touches}. How many of its lines miss follows exactly from LRU; the straight line is the document’s. [Sebek2002, \
             Figure 5] The point is the measured ratio, with its 95 % confidence interval; hollow points are tries of a search.",
            geometry.cache_bytes(),
            geometry.ways,
            task.words
        ))
        .figure(chart(comparison))
        .table(&["", "lines", "misses per access", "interval", "blocks"], rows)
        .findings(findings(comparison))
}

/// Draws the misses per line of a loop against its size: by exact LRU, by the straight line of the paper, and as measured. [Sebek2002, Figure 5]
fn chart(comparison: &Comparison) -> Chart {
    let task = &comparison.task;
    let geometry = task.geometry;
    let capacity = geometry.set_count * u64::from(geometry.ways);
    let sizes = || comparison.search.iter().map(|tried| tried.lines).chain([task.lines]);
    let first = sizes().min().unwrap_or(capacity).min(capacity);
    let last = sizes().max().unwrap_or(capacity).max(capacity + geometry.set_count);
    let (first, last) = (first - first / 20, last + last / 20);
    let share = |lines: u64| 100.0 * lines as f64 / capacity as f64;
    let curve = |name: &str, hue, dash, ratio: fn(Geometry, u64) -> f64| {
        // Both curves bend at the first two of these sizes, and the steps in between follow the curve.
        let mut sizes: Vec<u64> = (first..=last).step_by(((last - first) / 100).max(1) as usize).collect();
        sizes.extend([capacity, capacity + geometry.set_count, last]);
        sizes.sort_unstable();
        let at = |lines: u64| (share(lines), 100.0 * ratio(geometry, lines));
        let marks = vec![Mark { at: at(task.lines), hollow: false }];
        Line { marks, ..Line::new(name, hue, dash, sizes.into_iter().map(at).collect()) }
    };
    let per_line = task.accesses_per_pass() as f64 / task.lines.max(1) as f64;
    let at = |lines: u64, ratio: f64| (share(lines), 100.0 * ratio * per_line);
    // A point with its interval is drawn as a line between the ends of the interval. The line then returns to the point, because its name is
    // written beside its last end.
    let point = |name: &str, lines, ratios: [f64; 3], hollow| {
        let points = ratios.map(|ratio| at(lines, ratio));
        let marks = vec![Mark { at: points[1], hollow }];
        Line { marks, ..Line::new(name, Hue::Unpartitioned, Dash::Thin, vec![points[0], points[2], points[1]]) }
    };
    let spread = |it: &Executed| {
        let [low, high] = it.interval.unwrap_or([it.miss_ratio; 2]);
        [low, it.miss_ratio, high]
    };
    let mut lines = vec![
        curve("LRU", Hue::Alone, Dash::Solid, line_ratio),
        curve("straight", Hue::SingleWriter, Dash::Dashed, straight_line),
    ];
    lines.extend(comparison.search.iter().map(|tried| point("", tried.lines, spread(&tried.executed), true)));
    lines.extend(match (&comparison.executed, &comparison.modeled) {
        (Some(executed), _) => Some(point("measured", task.lines, spread(executed), false)),
        (None, Some(modeled)) => Some(point("modeled", task.lines, [modeled.miss_ratio; 3], false)),
        (None, None) => None,
    });
    let (low, high) = range_of(lines.iter().flat_map(|line| &line.points).map(|point| point.1).chain([0.0, 100.0]));
    Chart {
        title: format!("Misses of a loop in level {}", comparison.level),
        description: "Misses per line of a loop against its size: exactly under LRU, by a straight line, and measured, with its interval."
            .to_owned(),
        x: Axis::linear("size of the loop, % of the cache", (share(first), share(last)), format::tick),
        y: Axis::linear_rounded("misses per line, %", (low, high), format::tick),
        lines,
        rules: vec![(share(task.lines), format!("task: {} lines", format::grouped(task.lines)))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::miss_ratio::search::Tried;
    use crate::miss_ratio::tests::{executed, task};
    use isochrome_model::miss_ratio::{Locality, Task};
    use isochrome_report::chart::draw;

    /// Returns the text of `section` in lines so long that sentences are seldom broken.
    fn text(section: &Section) -> String {
        isochrome_report::text::section(section, 200)
    }

    /// Returns the comparison after a search whose tries had these sizes and ratios; the last try is its result.
    fn searched(tries: &[(u64, f64)]) -> Comparison {
        let (lines, ratio) = *tries.last().unwrap();
        let mut comparison = Comparison::of(Task { lines, ..task() }, 2, 16, Locality::Temporal, 0.33);
        comparison.executed = Some(executed(ratio));
        comparison.colored = true;
        comparison.search = tries.iter().map(|&(lines, ratio)| Tried { lines, executed: executed(ratio) }).collect();
        comparison
    }

    fn words(comparison: &Comparison) -> String {
        text(&section(comparison)).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn predicted_and_measured_stand_side_by_side_with_why_they_differ() {
        let mut comparison = Comparison::of(task(), 2, 16, Locality::Temporal, 0.33);
        comparison.executed = Some(executed(0.2));
        comparison.colored = true;
        comparison.not_counted = Some("this machine offers no counters".to_owned());
        let text = words(&comparison);
        for part in [
            "LRU exactly 8504 33.0 %",
            "straight line 8504 30.5 %",
            "measured by time 8504 20.0 % 15.0 % to 24.0 % 15/20",
            "-13.0 points from LRU: this cache does not replace by exact LRU",
            "measured by time: this machine offers no counters",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(section(&comparison).standing, None, "nothing was required");
        if let Some(executed) = &mut comparison.executed {
            (executed.by, executed.counted, executed.blocks_quiet) = (By::Counters, Some([0.01, 0.98]), 5);
        }
        comparison.not_counted = None;
        let text = words(&comparison);
        assert!(text.contains("by counters") && text.contains("0.01 misses per line where all fit and 0.98"), "{text}");
        assert!(text.contains("inconclusive: fewer than 6 blocks were accepted"), "{text}");
    }

    #[test]
    fn a_search_that_ends_elsewhere_says_so_and_lists_its_last_try() {
        let found = searched(&[(8504, 0.2), (8700, 0.34), (8700, 0.32)]);
        assert!(words(&found).contains("found after 3 tries: 8700 lines"), "{}", words(&found));
        assert_eq!(section(&found).standing, Some(Standing::Holds));
        let early = [(8700, 0.6), (8504, 0.2), (8600, 0.24)];
        assert_eq!(section(&searched(&early)).standing, Some(Standing::Inconclusive));
        let missed = searched(&early.repeat(TRIES / 3));
        let text = words(&missed);
        assert!(text.contains("missed: in 24 tries no size") && text.contains("8600 lines, -9.0 points off"), "{text}");
        assert!(text.contains("search 24 8600 24.0 %"), "{text}");
        assert_eq!(section(&missed).standing, Some(Standing::Violated));
    }

    #[test]
    fn the_figure_has_both_curves_the_task_and_every_try_with_its_interval() {
        let section = section(&searched(&[(8504, 0.2), (8700, 0.34), (8700, 0.32)]));
        let svg = draw(section.figures().next().unwrap()).0.into_string();
        let of_class = |class: &str| svg.matches(&format!("class=\"{class}\"")).count();
        // Marks: the task on both curves, and its measured ratio. Hollow marks: three tries.
        assert_eq!((of_class("mark"), of_class("mark hollow")), (3, 3));
        assert_eq!((of_class("line solid"), of_class("line dashed"), of_class("line thin")), (1, 1, 4));
        assert!(svg.contains("task: 8700 lines") && svg.contains(">measured<") && !svg.contains("NaN"), "{svg}");
        // A name is not written for every try.
        assert_eq!(of_class("name"), 3);
    }
}
