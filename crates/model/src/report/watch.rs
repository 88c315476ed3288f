//! What tasks did over time: a timeline of each, and the table of `watch`. [Sebek2002, Figure 6]

use maud::{Markup, html};

use super::chart::{self, Track, TrackBar};
use super::reading::Standing;
use super::{figure, format, scroll};
use crate::evidence::Evidence;
use crate::units::Ns;
use crate::watch::{Bar, COLUMNS, COUNTED, Order, TaskStatistics, Watched};

/// Bars of a timeline of the last slices.
const RECENT: u16 = 120;

/// What the report begins with where there is nothing else.
pub(super) fn headline(watched: &Watched) -> (Option<Standing>, String, String) {
    let standing = (watched.lost + watched.counters_taken > 0)
        .then(|| Standing::Inconclusive("slices are missing: see what was lost".to_owned()));
    let shown = watched.sorted(Order::Time);
    let Some((_, first)) = shown.first() else {
        return (standing, "No task was seen to get a CPU.".to_owned(), watched.head());
    };
    let seconds = watched.watched_ns() as f64 / 1e9;
    let share = first.run_ns as f64 / watched.watched_ns().max(1) as f64;
    let mut sentence = format!("{} had a CPU for {} of {seconds:.2} s", first.name, format::share(share));
    let worst = shown.iter().filter_map(|(_, task)| Some((task, task.miss_ratio_worst?)));
    if let Some((task, ratio)) = worst.max_by(|a, b| a.1.total_cmp(&b.1)) {
        sentence.push_str(&format!(
            "; the worst slice, of {}, missed in {} of its accesses",
            task.name,
            format::share(ratio)
        ));
    }
    (standing, sentence + ".", watched.head())
}

/// The timelines as a file of its own: over all of the watch, and of the last slices.
pub fn figures(watched: &Watched) -> String {
    let shown = watched.sorted(Order::Time);
    figure::file("Tasks over time", &drawings(watched, &shown))
}

/// Both timelines, with their heights; none where nothing was seen.
fn drawings(watched: &Watched, tasks: &[(i32, &TaskStatistics)]) -> Vec<(Markup, f64)> {
    let mut drawn = Vec::new();
    if let Some(begin) = watched.begin.filter(|begin| begin.0 < watched.end.0) {
        drawn.push(drawing(watched, "All of the watch", begin, tasks, |task| watched.bars(task)));
    }
    if let Some(from) = watched.kept_since(tasks).filter(|from| Some(*from) > watched.begin) {
        drawn.push(drawing(watched, "The last slices", from, tasks, |task| watched.recent_bars(task, from, RECENT)));
    }
    drawn
}

fn drawing(
    watched: &Watched,
    title: &str,
    from: Ns,
    tasks: &[(i32, &TaskStatistics)],
    bars: impl Fn(&TaskStatistics) -> Vec<Bar>,
) -> (Markup, f64) {
    let span = watched.end.0.saturating_sub(from.0) as f64;
    let (unit, scale) = if span >= 1e9 { ("s", 1e9) } else { ("ms", 1e6) };
    let since = |at: Ns| at.0.saturating_sub(from.0) as f64 / scale;
    let counters = watched.has_counters();
    let bar = |bar: &Bar| TrackBar {
        from: since(bar.from),
        to: since(bar.to),
        pale: if counters { bar.share } else { 0.0 },
        solid: if counters { bar.miss_ratio.unwrap_or(0.0) } else { bar.share },
    };
    let tracks: Vec<Track> = tasks
        .iter()
        .map(|(thread, task)| Track {
            name: task.name.clone(),
            note: format!("thread {thread}"),
            class: if counters { "unpartitioned" } else { "partitioned" },
            bars: bars(task).iter().map(bar).collect(),
        })
        .collect();
    let description = format!("Of each task, over time: {}.", what(watched));
    (
        chart::tracks(title, &description, (&format!("{title}, {unit}"), span / scale), &tracks),
        chart::tracks_height(tracks.len()),
    )
}

/// What the bars are.
fn what(watched: &Watched) -> &'static str {
    if watched.has_counters() {
        "the miss ratio while it has a CPU, up to 100 %; pale behind it, the share of the time for which it has one"
    } else {
        "the share of the time for which it has a CPU, up to 100 %"
    }
}

pub(super) fn section(evidence: &Evidence) -> Markup {
    html! {
        @for watched in &evidence.watches {
            @let shown = watched.sorted(Order::Time);
            @let columns: Vec<usize> = (0..COLUMNS.len()).filter(|column| watched.has_counters() || !COUNTED.contains(column)).collect();
            section id="watch" {
                h2 { "What tasks did over time" }
                p {
                    "Slices lie between context switches. [Sebek2002, §3.2] Bars are " (what(watched)) "."
                    @if watched.has_counters() { " Where a slice has fewer than 1000 accesses nothing is said of its misses." }
                }
                @for (drawing, _) in drawings(watched, &shown) { figure.wide { (drawing) } }
                (scroll(html! {
                    table {
                        thead { tr { @for column in &columns { th.number[*column != 1] scope="col" { (COLUMNS[*column].0) } } } }
                        tbody {
                            @for (thread, task) in &shown {
                                @let cells = watched.cells(*thread, task);
                                tr { @for column in &columns { td.number[*column != 1].name-cell[*column == 1] { (cells[*column]) } } }
                            }
                        }
                    }
                }))
                @if watched.left_out > 0 { p.note { (watched.left_out) " more tasks had a CPU for less time and are not shown." } }
                p.note { (watched.head()) "." }
                @for line in watched.cost_text().lines() { p.note { (line) "." } }
                p {
                    "What would invalidate it: events lost or counters taken, of which there were " (watched.lost) " and " (watched.counters_taken)
                    " here; time stolen within a slice, which counts as the task’s; and the longest slices and jobs are observations, not a bound. The share says who had the CPU, not who used the cache."
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::CpuId;
    use crate::watch::{Counts, Entry, Gap, Left, Slice};

    /// Two tasks that take turns of 10 ms: `calm` misses never, `wild` in half of its accesses.
    fn two(turns: u64, counters: bool) -> Watched {
        let mut watched = Watched::default();
        for turn in 0..turns {
            for (thread, name, begin, end, misses) in [(7, "calm <1>", 0, 6, 0), (8, "wild", 6, 10, 5000)] {
                let counts = counters.then_some(Counts { accesses: 10_000, misses, instructions: 900, cycles: 600 });
                let at = |ms: u64| Ns(1_000_000 * (10 * turn + ms));
                let (cpu, name, left) = (CpuId(0), name.to_owned(), Left::Preempted);
                watched.note(&Entry::Slice(Slice { cpu, thread, name, begin: at(begin), end: at(end), left, counts }));
            }
        }
        watched
    }

    fn filled(svg: &str) -> usize {
        let document = roxmltree::Document::parse(svg).unwrap();
        let paths = document.descendants().filter(|node| node.attribute("class") == Some("filled"));
        paths.map(|path| path.attribute("d").unwrap().matches('M').count()).sum()
    }

    #[test]
    fn a_timeline_has_bars_where_a_task_misses_and_none_where_it_does_not() {
        // Five parts or so of each turn: 4 of 10 ms miss.
        let svg = figures(&two(10, true));
        assert!(
            svg.contains("calm &lt;1&gt;") && svg.contains("thread 8") && svg.contains("All of the watch, ms"),
            "{svg}"
        );
        let bars = filled(&svg);
        assert!((35..=65).contains(&bars), "{bars}");
        // Without counters the bars are the shares of both.
        assert!(filled(&figures(&two(10, false))) > 90);
        roxmltree::Document::parse(&figures(&Watched::default())).unwrap();
    }

    #[test]
    fn a_figure_does_not_grow_with_the_watch() {
        let [short, long] = [100, 5000].map(|turns| figures(&two(turns, true)).len());
        assert!(long < 2 * short && long < 100_000, "{short} {long}");
    }

    #[test]
    fn the_headline_names_who_ran_longest_and_the_worst_slice_and_doubts_what_has_gaps() {
        let mut watched = two(10, true);
        let (standing, sentence, _) = headline(&watched);
        assert_eq!(standing, None);
        assert!(
            sentence.starts_with("calm <1> had a CPU for 60") && sentence.contains("of wild, missed in 50"),
            "{sentence}"
        );
        watched.note(&Entry::Gap(Gap { cpu: CpuId(0), end: Ns(1), lost: Some(3) }));
        assert!(matches!(headline(&watched).0, Some(Standing::Inconclusive(_))));
        assert!(headline(&Watched::default()).1.contains("No task"));
    }
}
