//! Figures as inline SVG: line charts with dash styles, bands, marks and labels at the ends of the lines, and also bars, changes and tracks.
//!
//! Colors come from the style sheet, by class, so that one drawing serves light, dark and paper. No meaning rests on color alone: lines have names at
//! their ends, dashes and shapes of marks. A figure is drawn 360 units wide, about its width in CSS pixels on a phone, so that its text stays legible
//! there.

use isochrome_model::evidence::figure::{Axis, Bars, Changes, Chart, Dash, Figure, Hue, Line, Track, TrackBar, Tracks};
use isochrome_model::evidence::format;
use maud::{Markup, html};

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 240.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 36.0;
const LEFT: f64 = 52.0;
/// Width right of the plot for the names of the lines.
const NAMES: f64 = 92.0;
/// Vertical distance of two adjacent names.
const NAME_LINE: f64 = 13.0;

/// Returns the approximate width of `text` in the font of the charts.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.3
}

/// Returns `text` without backticks, cut so that it fits into `width`.
pub(super) fn fit(text: &str, width: f64) -> String {
    let text: String = text.chars().filter(|c| *c != '`').collect();
    if text_width(&text) <= width {
        return text;
    }
    let room = (width / text_width("m")) as usize;
    text.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

/// Formats a coordinate for SVG, with one decimal.
pub(super) fn at(coordinate: f64) -> String {
    // Adding zero turns -0.0 into 0.0.
    format!("{:.1}", (coordinate * 10.0).round() / 10.0 + 0.0)
}

/// Returns the class of the style sheet that gives a line or a bar its color.
fn class(hue: Hue) -> &'static str {
    match hue {
        Hue::Alone => "alone",
        Hue::Unpartitioned => "unpartitioned",
        Hue::Partitioned => "partitioned",
        Hue::SingleWriter => "single-writer",
        Hue::ByWays => "by-ways",
        Hue::Ink => "ink",
    }
}

fn dash_class(dash: Dash) -> &'static str {
    match dash {
        Dash::Solid => "solid",
        Dash::Dotted => "dotted",
        Dash::Dashed => "dashed",
        Dash::Thin => "thin",
    }
}

/// Draws `figure` as an SVG element, and returns it with its height.
pub fn draw(figure: &Figure) -> (Markup, f64) {
    match figure {
        Figure::Chart(chart) => (svg(chart), HEIGHT),
        Figure::Bars(drawn) => (bars(drawn), bars_height(drawn.bars.len())),
        Figure::Changes(drawn) => (changes(drawn), changes_height(drawn.changes.len())),
        Figure::Tracks(drawn) => (tracks(drawn), tracks_height(drawn.tracks.len())),
        Figure::Cache(map) => super::cache::picture(&map.geometry, map.colors, &map.task),
    }
}

fn svg(chart: &Chart) -> Markup {
    let right = if chart.lines.iter().any(|line| !line.name.is_empty()) { WIDTH - NAMES } else { WIDTH - 12.0 };
    let floor = HEIGHT - BOTTOM;
    let x = |value: f64| chart.x.position(value).map(|share| LEFT + share * (right - LEFT));
    let y = |value: f64| chart.y.position(value).map(|share| floor - share * (floor - TOP));
    let point = |(px, py): (f64, f64)| Some((x(px)?, y(py)?));
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" {
            title { (chart.title) }
            desc { (chart.description) }
            text.label x="0" y="11" { (fit(&chart.y.label, WIDTH)) }
            @for (value, text) in &chart.y.ticks {
                @if let Some(y) = y(*value) {
                    line.grid x1=(at(LEFT)) y1=(at(y)) x2=(at(right)) y2=(at(y)) {}
                    text.tick x=(at(LEFT - 6.0)) y=(at(y + 3.5)) text-anchor="end" { (fit(text, LEFT)) }
                }
            }
            @for (px, text) in readable_ticks(&chart.x, x) {
                line.stub x1=(at(px)) y1=(at(floor)) x2=(at(px)) y2=(at(floor + 4.0)) {}
                text.tick x=(at(px)) y=(at(floor + 15.0)) text-anchor="middle" { (fit(text, LEFT)) }
            }
            line.axis x1=(at(LEFT)) y1=(at(floor)) x2=(at(right)) y2=(at(floor)) {}
            text.label x=(at(right)) y=(at(HEIGHT - 3.0)) text-anchor="end" { (fit(&chart.x.label, right)) }
            @for (value, text) in &chart.rules {
                @if let Some(px) = x(*value) {
                    @let text = fit(text, WIDTH / 2.0);
                    line.rule x1=(at(px)) y1=(at(TOP)) x2=(at(px)) y2=(at(floor)) {}
                    @if px + text_width(&text) < right {
                        text.note x=(at(px - 1.0)) y=(at(TOP - 4.0)) { (text) }
                    } @else {
                        text.note x=(at(px + 1.0)) y=(at(TOP - 4.0)) text-anchor="end" { (text) }
                    }
                }
            }
            @for line in &chart.lines {
                g class=(class(line.hue)) {
                    @if let Some(outline) = band_outline(line, point) { path.band d=(outline) {} }
                    path class=(format!("line {}", dash_class(line.dash)))
                        d=(polyline(line.points.iter().filter_map(|&p| point(p)))) {}
                    @for mark in &line.marks {
                        @if let Some((px, py)) = point(mark.at) {
                            path class=(if mark.hollow { "mark hollow" } else { "mark" }) d=(mark_outline(line.hue, px, py)) {}
                        }
                    }
                }
            }
            @for (hue, name, y) in names(&chart.lines, y) {
                g class=(class(hue)) { text.name x=(at(right + 7.0)) y=(at(y + 3.5)) { (fit(name, NAMES - 7.0)) } }
            }
        }
    }
}

/// Returns the outline of a mark, whose shape tells lines apart without color: a square, a triangle, a diamond, or a circle for the reference.
fn mark_outline(hue: Hue, x: f64, y: f64) -> String {
    let start = |dx: f64, dy: f64| format!("M{} {}", at(x + dx), at(y + dy));
    match hue {
        Hue::Unpartitioned => start(-2.6, -2.6) + "h5.2v5.2h-5.2z",
        Hue::Partitioned => start(0.0, -3.6) + "l3.5 6h-7z",
        Hue::SingleWriter | Hue::ByWays => start(0.0, -3.8) + "l3.8 3.8l-3.8 3.8l-3.8 -3.8z",
        Hue::Alone | Hue::Ink => start(-2.8, 0.0) + "a2.8 2.8 0 1 0 5.6 0a2.8 2.8 0 1 0 -5.6 0z",
    }
}

/// Returns the ticks of the x axis whose texts do not overlap: the last one, and from the left every one that fits.
fn readable_ticks(axis: &Axis, x: impl Fn(f64) -> Option<f64>) -> Vec<(f64, &str)> {
    let shown = axis.ticks.iter().filter_map(|(value, text)| Some((x(*value)?, text.as_str())));
    let mut shown: Vec<_> = shown.collect();
    shown.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some(last) = shown.pop() else { return shown };
    let half = |text| text_width(text) / 2.0;
    let mut free_from = f64::NEG_INFINITY;
    shown.retain(|&(px, text)| {
        let fits = px - half(text) >= free_from && px + half(text) + 6.0 <= last.0 - half(last.1);
        if fits {
            free_from = px + half(text) + 6.0;
        }
        fits
    });
    shown.push(last);
    shown
}

/// Returns the names of the lines with the heights to write them at: beside the end of the line, pushed apart if they would overlap.
fn names(lines: &[Line], y: impl Fn(f64) -> Option<f64>) -> Vec<(Hue, &str, f64)> {
    let mut names: Vec<_> = lines
        .iter()
        .filter(|line| !line.name.is_empty())
        .filter_map(|line| Some((line.hue, line.name.as_str(), y(line.points.last()?.1)?)))
        .collect();
    names.sort_by(|a, b| a.2.total_cmp(&b.2));
    let last = names.len().saturating_sub(1);
    for i in 1..names.len() {
        names[i].2 = names[i].2.max(names[i - 1].2 + NAME_LINE);
    }
    let mut lowest = HEIGHT - BOTTOM;
    for i in (0..=last).rev().take(names.len()) {
        names[i].2 = names[i].2.min(lowest);
        lowest = names[i].2 - NAME_LINE;
    }
    names
}

const BAR_LINE: f64 = 18.0;

fn bars_height(bars: usize) -> f64 {
    bars as f64 * BAR_LINE + 4.0
}

/// Draws horizontal bars below each other, to one scale.
fn bars(drawn: &Bars) -> Markup {
    let Bars { title, bars } = drawn;
    let names = bars.iter().map(|bar| text_width(&bar.name)).fold(0.0, f64::max).clamp(124.0, 186.0) + 4.0;
    // The texts at the ends of the bars need room beside the longest one.
    let numbers = bars.iter().map(|bar| text_width(&bar.text)).fold(0.0, f64::max).clamp(64.0, 150.0) + 4.0;
    let most =
        bars.iter().map(|bar| bar.parts.iter().map(|part| part.max(0.0)).sum()).fold(f64::MIN_POSITIVE, f64::max);
    let length = |part: f64| part.max(0.0) / most * (WIDTH - names - numbers);
    let height = bars_height(bars.len());
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(height))) role="img" {
            title { (title) }
            desc { @for bar in bars { (bar.name) ": " (bar.text) ". " } }
            @for (i, bar) in bars.iter().enumerate() {
                @let y = i as f64 * BAR_LINE;
                @let [first, second] = bar.parts.map(length);
                text x="0" y=(at(y + 12.0)) { (fit(&bar.name, names - 4.0)) }
                g.alone { rect.solid x=(at(names)) y=(at(y + 3.0)) width=(at(first)) height="11" {} }
                g class=(class(bar.hue)) { rect.solid x=(at(names + first)) y=(at(y + 3.0)) width=(at(second)) height="11" {} }
                text x=(at(names + first + second + 4.0)) y=(at(y + 12.0)) { (fit(&bar.text, WIDTH - names - first - second - 4.0)) }
            }
        }
    }
}

/// Height of one of the [`tracks`], including the gap to the next.
const TRACK: f64 = 30.0;

/// Returns the height of the drawing of `tracks` tracks.
fn tracks_height(tracks: usize) -> f64 {
    tracks as f64 * TRACK + BOTTOM
}

/// Draws tracks below each other on one horizontal axis from 0 to `span`, with its label.
fn tracks(drawn: &Tracks) -> Markup {
    let Tracks { title, description, label, span, tracks } = drawn;
    const TRACK_NAMES: f64 = 104.0;
    const BAR: f64 = TRACK - 5.0;
    let right = WIDTH - 8.0;
    let axis = Axis::linear(label, (0.0, *span), format::tick);
    let x = |value: f64| TRACK_NAMES + (value / axis.range[1]).clamp(0.0, 1.0) * (right - TRACK_NAMES);
    let floor = tracks.len() as f64 * TRACK;
    let outline = |track: &Track, floor: f64, height: fn(&TrackBar) -> f64| -> String {
        let drawn = track.bars.iter().filter(|bar| height(bar) > 0.0);
        // Every bar is at least 1 high, so that any activity is visible.
        let tall = |bar: &TrackBar| (BAR * height(bar).min(1.0)).max(1.0);
        drawn
            .map(|bar| {
                format!(
                    "M{} {}V{}H{}V{}Z",
                    at(x(bar.range[0])),
                    at(floor),
                    at(floor - tall(bar)),
                    at(x(bar.range[1])),
                    at(floor)
                )
            })
            .collect()
    };
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(tracks_height(tracks.len())))) role="img" {
            title { (title) }
            desc { (description) }
            @for (i, track) in tracks.iter().enumerate() {
                @let floor = (i + 1) as f64 * TRACK;
                text x="0" y=(at(floor - 14.0)) { (fit(&track.name, TRACK_NAMES - 4.0)) }
                text.tick x="0" y=(at(floor - 2.0)) { (fit(&track.note, TRACK_NAMES - 4.0)) }
                g class=(class(track.hue)) {
                    path.band d=(outline(track, floor, |bar| bar.pale)) {}
                    path.filled d=(outline(track, floor, |bar| bar.solid)) {}
                }
                line.grid x1=(at(TRACK_NAMES)) y1=(at(floor)) x2=(at(right)) y2=(at(floor)) {}
            }
            @for (value, text) in &axis.ticks {
                line.stub x1=(at(x(*value))) y1=(at(floor)) x2=(at(x(*value))) y2=(at(floor + 4.0)) {}
                text.tick x=(at(x(*value))) y=(at(floor + 15.0)) text-anchor="middle" { (text) }
            }
            text.label x=(at(right)) y=(at(floor + 31.0)) text-anchor="end" { (fit(&axis.label, right)) }
        }
    }
}

const CHANGE_LINE: f64 = 14.0;

fn changes_height(changes: usize) -> f64 {
    changes as f64 * CHANGE_LINE + 6.0
}

/// Draws changes below each other as bars to the left and right of zero, from -50 to +50 %. Longer bars are cut off there, and the number shows
/// the full change.
fn changes(drawn: &Changes) -> Markup {
    let Changes { title, changes } = drawn;
    const NAMES: f64 = 74.0;
    const NUMBERS: f64 = 72.0;
    /// The change, as a share, whose bar fills one side.
    const FULL: f64 = 0.5;
    let side = (WIDTH - NAMES - NUMBERS) / 2.0;
    let (zero, height) = (NAMES + side, changes_height(changes.len()));
    let percent =
        |share: Option<f64>| share.map_or(format::DASH.to_owned(), |share| format!("{:+.1} %", 100.0 * share));
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(height))) role="img" {
            title { (title) }
            desc { @for change in changes { (change.name) " " (percent(change.share)) ". " } }
            @for (i, change) in changes.iter().enumerate() {
                @let y = i as f64 * CHANGE_LINE;
                text x="0" y=(at(y + 11.0)) { (fit(&change.name, NAMES - 4.0)) }
                @if let Some(share) = change.share {
                    @let end = zero + share.clamp(-FULL, FULL) / FULL * side;
                    g class=(class(change.hue)) { rect.solid x=(at(zero.min(end))) y=(at(y + 2.0)) width=(at((end - zero).abs())) height="10" {} }
                }
                text.tick x=(at(WIDTH)) y=(at(y + 11.0)) text-anchor="end" { (percent(change.share)) }
            }
            line.axis x1=(at(zero)) y1="0" x2=(at(zero)) y2=(at(height)) {}
        }
    }
}

fn polyline(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (x, y) in points {
        path.push(if path.is_empty() { 'M' } else { 'L' });
        path.push_str(&format!("{} {}", at(x), at(y)));
    }
    path
}

/// Returns the outline of a line's band; `None` if the line has no band.
fn band_outline(line: &Line, point: impl Fn((f64, f64)) -> Option<(f64, f64)>) -> Option<String> {
    let upper = line.band.iter().filter_map(|&(x, _, high)| point((x, high)));
    let lower = line.band.iter().rev().filter_map(|&(x, low, _)| point((x, low)));
    let outline = polyline(upper.chain(lower));
    (!outline.is_empty()).then(|| outline + "Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_cut_to_its_room() {
        assert_eq!(fit("`sleep` 1", 60.0), "sleep 1");
        let cut = fit(&"x".repeat(300), 60.0);
        assert!(cut.ends_with("x…") && text_width(&cut) <= 60.0, "{cut}");
    }

    #[test]
    fn names_of_lines_that_end_together_do_not_overlap() {
        let lines = [0.01, 0.0, 0.02, 0.9].map(|y| Line::new("x", Hue::Alone, Dash::Thin, vec![(0.0, y)]));
        let names = names(&lines, |value| Some((1.0 - value) * (HEIGHT - BOTTOM)));
        assert!(names.windows(2).all(|pair| pair[1].2 - pair[0].2 >= NAME_LINE - 1e-9));
        assert!(names.iter().all(|name| name.2 <= HEIGHT - BOTTOM));
    }
}
