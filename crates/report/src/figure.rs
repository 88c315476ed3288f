//! Figures that are written as SVG files of their own.

use maud::{Markup, PreEscaped, html};

use isochrome_model::evidence::Section;
use isochrome_model::evidence::figure::{Axis, Chart, Dash, Figure, Hue, Line};

use super::chart::{at, draw};
use super::heat::HeatMap;
use isochrome_model::evidence::format;
use isochrome_model::plan::COLORS;
use isochrome_model::printable;
use isochrome_model::profile::{Point, Profile, TaskProfile};
use isochrome_model::sim::Tally;
use isochrome_model::sim::scenario::{CacheOutcome, Outcome};

const WIDTH: f64 = 360.0;
const MARGIN: f64 = 16.0;
const LINE: f64 = 16.0;
const BARS: f64 = 120.0;

/// Draws the misses of a program against its share of a cache, as an SVG file. Element i of `by_ways` is the misses with i ways. `by_colors` has
/// pairs of a number of colors and the misses with it; the last is for all colors.
pub fn miss_curve(title: &str, accesses: u64, by_ways: &[u64], by_colors: &[(u32, u64)]) -> String {
    let percent = |misses: u64| 100.0 * misses as f64 / accesses.max(1) as f64;
    let line = |name: &str, hue, dash, misses: &[(f64, u64)]| {
        Line::new(name, hue, dash, misses.iter().map(|(share, misses)| (*share, percent(*misses))).collect()).marked()
    };
    let share = |count: usize, of: usize| 100.0 * count as f64 / of.max(1) as f64;
    let ways = by_ways.len().saturating_sub(1);
    let by_ways: Vec<_> = by_ways.iter().enumerate().map(|(i, misses)| (share(i, ways), *misses)).collect();
    let colors = by_colors.last().map_or(1, |(colors, _)| *colors as usize);
    let by_colors: Vec<_> = by_colors.iter().map(|(count, misses)| (share(*count as usize, colors), *misses)).collect();
    let highest = by_ways.iter().skip(1).chain(&by_colors).map(|(_, misses)| percent(*misses)).fold(0.0, f64::max);
    let chart = Chart {
        title: title.to_owned(),
        description: "Misses against the share of the cache, given as ways and given as page colors.".to_owned(),
        x: Axis::linear("share of the cache, %", (0.0, 100.0), format::tick),
        y: Axis::linear_rounded("misses per access, %", (0.0, highest.max(f64::MIN_POSITIVE)), format::tick),
        // The point of zero ways is left out: everything misses there, and the point would only flatten the rest.
        lines: vec![
            line("by ways", Hue::Partitioned, Dash::Solid, by_ways.get(1..).unwrap_or_default()),
            line("by colors", Hue::Unpartitioned, Dash::Dashed, &by_colors),
        ],
        rules: Vec::new(),
    };
    file(title, &[draw(&chart.into())])
}

/// Draws the execution times of each task against its number of partitions, as an SVG file: the typical time, the longest seen, and C^p.
/// [Kim2013, Figure 10]
pub fn execution_times(profile: &Profile) -> String {
    let measured: Vec<_> = profile.tasks.iter().filter(|task| !task.wcet_ns.is_empty()).collect();
    let charts: Vec<_> = measured.into_iter().map(|task| draw(&of_task(task, profile.partitions).into())).collect();
    file("Execution times against partitions", &charts)
}

fn of_task(task: &TaskProfile, partitions: u32) -> Chart {
    let micro = |time: u64| time as f64 / 1e3;
    let seen = |time: fn(&Point) -> u64| -> Vec<(f64, f64)> {
        let points = task.measured.iter().filter(|point| !point.runs.is_empty());
        points.map(|point| (f64::from(point.partitions), micro(time(point)))).collect()
    };
    let bound: Vec<_> = (1u32..).zip(&task.wcet_ns).map(|(p, time)| (f64::from(p), micro(*time))).collect();
    let highest = bound.iter().map(|(_, time)| *time).fold(f64::MIN_POSITIVE, f64::max);
    Chart {
        title: task.program.name.clone(),
        description: format!(
            "Execution time of {} against its partitions: typical, longest seen, and the curve that plans use.",
            task.program.name
        ),
        x: Axis::linear(&format!("{}: partitions", task.program.name), (1.0, f64::from(partitions)), format::tick),
        y: Axis::linear_rounded("execution time, µs", (0.0, highest), format::tick),
        lines: vec![
            Line::new("C^p", Hue::Partitioned, Dash::Solid, bound),
            Line::new("longest", Hue::Unpartitioned, Dash::Dotted, seen(Point::high_water_ns)).marked(),
            Line::new("typical", Hue::Alone, Dash::Dashed, seen(Point::typical_ns)).marked(),
        ],
        rules: Vec::new(),
    }
}

/// Draws, for each cache that several tasks used, which task evicted whose lines, and whose lines lay in which color at the end, as an SVG file.
pub fn interference(outcome: &Outcome) -> String {
    let names: Vec<&str> = outcome.tasks.iter().map(|task| task.name.as_str()).collect();
    let mut parts = vec![key(&names)];
    let tasks_at = |cache: &&CacheOutcome| {
        let used = |row: &&Vec<Tally>| row.iter().any(|tally| *tally != Tally::default());
        cache.interference.tallies.iter().filter(used).count()
    };
    for cache in outcome.caches.iter().filter(|cache| tasks_at(cache) > 1) {
        parts.push(evictions(cache));
        parts.push(occupancy(cache));
    }
    file("Who evicted whom, and whose lines lie where", &parts)
}

/// Draws the key: number, name and drawing color of each task. Returns it with its height.
fn key(names: &[&str]) -> (Markup, f64) {
    let height = names.len() as f64 * LINE + 4.0;
    let markup = html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(height))) {
            @for (i, name) in names.iter().enumerate() {
                rect x="0" y=(at(i as f64 * LINE + 3.0)) width="10" height="10" fill=(COLORS[i % COLORS.len()]) {}
                text x="16" y=(at(i as f64 * LINE + 12.0)) { (i) " " (name) }
            }
        }
    };
    (markup, height)
}

/// Draws the eviction matrix of a cache. Returns it with its height.
fn evictions(cache: &CacheOutcome) -> (Markup, f64) {
    let matrix = &cache.interference.evictions;
    let most = matrix.iter().flatten().copied().max().unwrap_or(0);
    // Even a single eviction must be visible.
    let shade = |count: &u64| if *count == 0 { 0.0 } else { (*count as f64 / most as f64).max(0.06) };
    let cells: Vec<Vec<f64>> = matrix.iter().map(|row| row.iter().map(shade).collect()).collect();
    let map = HeatMap {
        title: format!("Evictions at {}", cache.name),
        description: format!(
            "{} evictions between tasks. Row: the task whose line came; column: the task whose line went.",
            cache.interference.between_tasks()
        ),
        rows: &format!("{}: evicted by", cache.name),
        columns: &format!("line of   (darkest: {} lines)", format::grouped(most)),
        cells: &cells,
        row_names: &[],
        bars: ("", &[]),
    };
    (map.svg(), map.height())
}

/// Draws the lines of each task in each color of a cache, stacked. Returns the drawing with its height.
fn occupancy(cache: &CacheOutcome) -> (Markup, f64) {
    const LEFT: f64 = 30.0;
    const TOP: f64 = 20.0;
    let height = TOP + BARS + 30.0;
    let width = (WIDTH - LEFT) / f64::from(cache.colors.max(1));
    let tall = |lines: u64| BARS * lines as f64 / cache.lines_per_color.max(1) as f64;
    let stacked = |color: usize| {
        let mut top = TOP + BARS;
        let pieces = cache.occupancy.iter().map(move |row| row.get(color).copied().unwrap_or(0)).enumerate();
        pieces.map(move |(task, lines)| {
            top -= tall(lines);
            (task, top, tall(lines))
        })
    };
    let markup = html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(height))) {
            title { "Lines in each color of " (cache.name) }
            text.label x="0" y="11" { (cache.name) ": lines at the end, of " (format::grouped(cache.lines_per_color)) " per color" }
            @for color in 0..cache.colors as usize {
                @for (task, top, tall) in stacked(color).filter(|(_, _, tall)| *tall > 0.0) {
                    rect x=(at(LEFT + color as f64 * width)) y=(at(top)) width=(at(width)) height=(at(tall))
                        fill=(COLORS[task % COLORS.len()]) {}
                }
            }
            line.axis x1=(at(LEFT)) y1=(at(TOP + BARS)) x2=(at(WIDTH)) y2=(at(TOP + BARS)) {}
            text.tick x=(at(LEFT)) y=(at(TOP + BARS + 14.0)) { "color 0" }
            text.tick x=(at(WIDTH)) y=(at(TOP + BARS + 14.0)) text-anchor="end" { (cache.colors.saturating_sub(1)) }
            text.tick x=(at(LEFT - 5.0)) y=(at(TOP + 8.0)) text-anchor="end" { "full" }
        }
    };
    (markup, height)
}

/// Returns the figures of `sections` as one SVG file.
pub fn of_sections<'a>(title: &str, sections: impl IntoIterator<Item = &'a Section>) -> String {
    let figures: Vec<&Figure> = sections.into_iter().flat_map(Section::figures).collect();
    file(title, &figures.into_iter().map(draw).collect::<Vec<_>>())
}

/// Returns an SVG file with the drawings `parts` below each other, each given with its height. It uses the style sheet of the reports.
pub(super) fn file(title: &str, parts: &[(Markup, f64)]) -> String {
    let height = parts.iter().map(|(_, height)| height + MARGIN).sum::<f64>() + MARGIN;
    let width = WIDTH + 2.0 * MARGIN;
    let mut top = 0.0;
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {width} {}", at(height))) width=(width) height=(at(height)) role="img" {
            title { (title) }
            style { (PreEscaped(include_str!("figure.css"))) }
            rect width=(width) height=(at(height)) style="fill: var(--paper)" {}
            @for (part, height) in parts {
                ({ top += MARGIN; html! {} })
                svg x=(MARGIN) y=(at(top)) width=(WIDTH) height=(at(*height)) { (part) }
                ({ top += height; html! {} })
            }
        }
    };
    // Names come from programs; control characters have no place in XML.
    printable::lines(&drawing.into_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use isochrome_model::sim::scenario::{Scenario, run};

    #[test]
    fn a_miss_curve_is_a_well_formed_file_with_both_lines() {
        let svg = miss_curve("fft & <more>", 100, &[100, 50, 20], &[(1, 60), (2, 20)]);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let lines = document
            .descendants()
            .filter(|node| node.attribute("class").is_some_and(|class| class.starts_with("line ")));
        assert_eq!(lines.count(), 2);
        for empty in [miss_curve("", 0, &[], &[]), miss_curve("", 0, &[0], &[(1, 0)])] {
            roxmltree::Document::parse(&empty).unwrap();
        }
    }

    #[test]
    fn the_figure_of_a_scenario_shows_each_cache_and_every_task() {
        let text = "schema = 'isochrome-scenario/1'
            levels = ['8K:2:32:lru:wb:wa', '32K:4:32:lru:wb:wa']
            page = '512'
            [[task]]
            name = 'a<b'
            workload = 'walk:area=4K,stride=32,passes=2'
            colors = '0-3'
            [[task]]
            name = 'c'
            workload = 'walk:area=4K,stride=32,passes=2'
            colors = '4-7'";
        let scenario = Scenario::from_toml(text).unwrap();
        let machine = scenario.machine_model().unwrap().unwrap();
        let outcome = run(&scenario, &machine, &mut |_| panic!("no traces"), &mut |_| true).unwrap();
        let svg = interference(&outcome);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let titles: Vec<_> = document
            .descendants()
            .filter(|node| node.has_tag_name("title") || node.tag_name().name() == "title")
            .collect();
        // The file has a title, and there are two titles for each of two caches.
        assert_eq!(titles.len(), 5);
        assert!(svg.contains("0 a&lt;b") && svg.contains("1 c"));
        // Task c fills four colors of each cache, with 32 of its 128 lines in each color. One more rectangle is in the key.
        let bars = document.descendants().filter(|node| node.attribute("fill") == Some(COLORS[1]));
        assert_eq!(bars.count(), 1 + 2 * 4);
    }
}
