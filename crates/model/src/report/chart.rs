//! Line charts as inline SVG: linear or logarithmic axes, dash styles, bands, marks, labels at the ends of the lines.
//!
//! Colors come from the style sheet, by class, so that one drawing serves light, dark and paper. A chart is drawn 360 units
//! wide, about its width in CSS pixels on a phone, so that its text stays legible there.

use maud::{Markup, html};

use super::format;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 240.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 36.0;
const LEFT: f64 = 52.0;
/// Room right of the plot for the names of the lines.
const NAMES: f64 = 84.0;
/// Distance of two names below each other.
const NAME_LINE: f64 = 13.0;

/// Width of `text` in the chart's letters, roughly.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.0
}

/// A coordinate as SVG text.
pub(super) fn at(coordinate: f64) -> String {
    // Adding zero turns -0.0 into 0.0.
    format!("{:.1}", (coordinate * 10.0).round() / 10.0 + 0.0)
}

#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    Log,
}

/// One axis of a chart.
#[derive(Clone)]
pub struct Axis {
    label: String,
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

/// Smallest and largest finite number among `values`; 0 and 1 when there is none.
pub fn extent(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let finite = values.into_iter().filter(|v| v.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

impl Axis {
    /// Linear axis from `low` to `high`, about five ticks at round numbers, written by `text`.
    pub fn linear(label: &str, (low, high): (f64, f64), text: impl Fn(f64) -> String) -> Axis {
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        let step = round_step((high - low) / 4.5);
        let ticks = multiples(low, high, step).map(|value| (value, text(value))).collect();
        Axis { label: label.to_owned(), scale: Scale::Linear, low, high, ticks }
    }

    /// As [`Axis::linear`], lengthened to the next tick at both ends.
    pub fn linear_rounded(label: &str, (low, high): (f64, f64), text: impl Fn(f64) -> String) -> Axis {
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        let step = round_step((high - low) / 4.5);
        Axis::linear(label, ((low / step).floor() * step, (high / step).ceil() * step), text)
    }

    /// Logarithmic axis from `low` to `high`, both positive; ticks at powers of ten, between them at 2 and 5 when the axis
    /// is short.
    pub fn log(label: &str, (low, high): (f64, f64), text: impl Fn(f64) -> String) -> Axis {
        let low = low.max(f64::MIN_POSITIVE);
        let high = if high > low { high } else { low * 10.0 };
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let short = (high / low).log10() < 2.5;
        let digits: &[f64] = if short { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let ticks = decades
            .flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powi(decade)))
            .filter(|value| (low * 0.999..=high * 1.001).contains(value))
            .map(|value| (value, text(value)))
            .collect();
        Axis { label: label.to_owned(), scale: Scale::Log, low, high, ticks }
    }

    /// Ticks at exactly these values instead.
    pub fn with_ticks(mut self, values: &[f64], text: impl Fn(f64) -> String) -> Axis {
        self.ticks = values.iter().map(|&value| (value, text(value))).collect();
        self
    }

    /// Where `value` lies on the axis, 0 to 1; `None` outside.
    fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Log => return None,
        };
        (-1e-6..=1.000_001).contains(&place).then_some(place)
    }
}

/// The round number nearest above `rough`: 1, 2, 2.5 or 5 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|&step| step >= rough)
        .unwrap_or(10.0 * power)
}

/// Multiples of `step` from `low` to `high`; at most a hundred, whatever the arguments.
fn multiples(low: f64, high: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (low / step - 1e-6).ceil();
    (0..100).map(move |i| (first + f64::from(i)) * step).take_while(move |&value| value <= high + step * 1e-6)
}

/// How a line is broken, so that lines differ without color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dash {
    /// Unbroken.
    Solid,
    /// Round dots.
    Dotted,
    /// Long dashes.
    Dashed,
    /// Unbroken and thin: for the reference.
    Thin,
}

impl Dash {
    /// Its class in the style sheet.
    fn class(self) -> &'static str {
        match self {
            Dash::Solid => "solid",
            Dash::Dotted => "dotted",
            Dash::Dashed => "dashed",
            Dash::Thin => "thin",
        }
    }
}

/// How a line looks: its color by class of the style sheet, and its dashes.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Class that sets the CSS property `--hue`.
    pub class: &'static str,
    /// Its dashes.
    pub dash: Dash,
}

/// A measured point on a line.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Value on the x axis.
    pub x: f64,
    /// Value on the y axis.
    pub y: f64,
    /// Drawn hollow: not enough stands behind it.
    pub hollow: bool,
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name, written at its end; nothing where it is empty.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Its corners (x, y). Points off the axes are left out.
    pub points: Vec<(f64, f64)>,
    /// Points to mark.
    pub marks: Vec<Mark>,
    /// Spread around it: (x, lowest y, highest y); empty for none.
    pub band: Vec<(f64, f64, f64)>,
}

impl Line {
    /// One without marks and without a spread.
    pub fn plain(name: &str, class: &'static str, dash: Dash, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.to_owned(), look: Look { class, dash }, points, marks: Vec::new(), band: Vec::new() }
    }
}

/// A chart.
pub struct Chart {
    /// What it shows, in a few words; for those who do not see it.
    pub title: String,
    /// What is to be seen in it, in a sentence; for those who do not see it.
    pub description: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, drawn in this order.
    pub lines: Vec<Line>,
    /// Vertical rules: x and what is there.
    pub rules: Vec<(f64, String)>,
    /// Whether the names of the lines are written at their ends.
    pub named_lines: bool,
}

impl Chart {
    /// The chart as an SVG element.
    pub fn svg(&self) -> Markup {
        let right = if self.named_lines { WIDTH - NAMES } else { WIDTH - 12.0 };
        let floor = HEIGHT - BOTTOM;
        let x = |value: f64| self.x.place(value).map(|place| LEFT + place * (right - LEFT));
        let y = |value: f64| self.y.place(value).map(|place| floor - place * (floor - TOP));
        let point = |(px, py): (f64, f64)| Some((x(px)?, y(py)?));
        html! {
            svg.chart viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" {
                title { (self.title) }
                desc { (self.description) }
                text.label x="0" y="11" { (self.y.label) }
                @for (value, text) in &self.y.ticks {
                    @if let Some(y) = y(*value) {
                        line.grid x1=(at(LEFT)) y1=(at(y)) x2=(at(right)) y2=(at(y)) {}
                        text.tick x=(at(LEFT - 6.0)) y=(at(y + 3.5)) text-anchor="end" { (text) }
                    }
                }
                @for (px, text) in self.readable_ticks(x) {
                    line.stub x1=(at(px)) y1=(at(floor)) x2=(at(px)) y2=(at(floor + 4.0)) {}
                    text.tick x=(at(px)) y=(at(floor + 15.0)) text-anchor="middle" { (text) }
                }
                line.axis x1=(at(LEFT)) y1=(at(floor)) x2=(at(right)) y2=(at(floor)) {}
                text.label x=(at(right)) y=(at(HEIGHT - 3.0)) text-anchor="end" { (self.x.label) }
                @for (value, text) in &self.rules {
                    @if let Some(px) = x(*value) {
                        line.rule x1=(at(px)) y1=(at(TOP)) x2=(at(px)) y2=(at(floor)) {}
                        @if px + text_width(text) < right {
                            text.note x=(at(px - 1.0)) y=(at(TOP - 4.0)) { (text) }
                        } @else {
                            text.note x=(at(px + 1.0)) y=(at(TOP - 4.0)) text-anchor="end" { (text) }
                        }
                    }
                }
                @for line in &self.lines {
                    g class=(line.look.class) {
                        @if let Some(outline) = band_outline(line, point) { path.band d=(outline) {} }
                        path class=(format!("line {}", line.look.dash.class()))
                            d=(polyline(line.points.iter().filter_map(|&p| point(p)))) {}
                        @for mark in &line.marks {
                            @if let Some((px, py)) = point((mark.x, mark.y)) {
                                circle class=(if mark.hollow { "mark hollow" } else { "mark" }) cx=(at(px)) cy=(at(py)) r=(if mark.hollow { "3.2" } else { "2.4" }) {}
                            }
                        }
                    }
                }
                @if self.named_lines {
                    @for (class, name, y) in self.names(y) {
                        g class=(class) { text.name x=(at(right + 7.0)) y=(at(y + 3.5)) { (name) } }
                    }
                }
            }
        }
    }

    /// Ticks of the x axis whose texts do not run into each other: the last, then from the left what fits.
    fn readable_ticks(&self, x: impl Fn(f64) -> Option<f64>) -> Vec<(f64, &str)> {
        let placed = self.x.ticks.iter().filter_map(|(value, text)| Some((x(*value)?, text.as_str())));
        let mut placed: Vec<_> = placed.collect();
        placed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(last) = placed.pop() else { return placed };
        let half = |text| text_width(text) / 2.0;
        let mut free_from = f64::NEG_INFINITY;
        placed.retain(|&(px, text)| {
            let fits = px - half(text) >= free_from && px + half(text) + 6.0 <= last.0 - half(last.1);
            if fits {
                free_from = px + half(text) + 6.0;
            }
            fits
        });
        placed.push(last);
        placed
    }

    /// Names of the lines with the heights to write them at: beside the line's end, pushed apart where they would overlap.
    fn names(&self, y: impl Fn(f64) -> Option<f64>) -> Vec<(&'static str, &str, f64)> {
        let mut names: Vec<_> = self
            .lines
            .iter()
            .filter(|line| !line.name.is_empty())
            .filter_map(|line| Some((line.look.class, line.name.as_str(), y(line.points.last()?.1)?)))
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
}

/// A bar of two parts, one behind the other.
pub struct Bar {
    /// What it is of.
    pub name: String,
    /// Its parts; negative ones are not drawn.
    pub parts: [f64; 2],
    /// Class of the second part; the first is that of the reference.
    pub class: &'static str,
    /// What is written at its end.
    pub text: String,
}

/// Horizontal bars below each other, drawn to one scale.
pub fn bars(title: &str, bars: &[Bar]) -> Markup {
    const BAR_NAMES: f64 = 128.0;
    const NUMBERS: f64 = 64.0;
    const LINE: f64 = 18.0;
    let most =
        bars.iter().map(|bar| bar.parts.iter().map(|part| part.max(0.0)).sum()).fold(f64::MIN_POSITIVE, f64::max);
    let place = |part: f64| part.max(0.0) / most * (WIDTH - BAR_NAMES - NUMBERS);
    let height = bars.len() as f64 * LINE + 4.0;
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(height))) role="img" {
            title { (title) }
            @for (i, bar) in bars.iter().enumerate() {
                @let y = i as f64 * LINE;
                @let [first, second] = bar.parts.map(place);
                text x="0" y=(at(y + 12.0)) { (bar.name) }
                g.alone { rect.solid x=(at(BAR_NAMES)) y=(at(y + 3.0)) width=(at(first)) height="11" {} }
                g class=(bar.class) { rect.solid x=(at(BAR_NAMES + first)) y=(at(y + 3.0)) width=(at(second)) height="11" {} }
                text x=(at(BAR_NAMES + first + second + 4.0)) y=(at(y + 12.0)) { (bar.text) }
            }
        }
    }
}

/// A bar of a [`Track`].
pub struct TrackBar {
    /// Where it begins on the horizontal axis.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// Height of what is drawn pale, 0 to 1.
    pub pale: f64,
    /// Height of what is drawn before it, 0 to 1.
    pub solid: f64,
}

/// What happened to one of several over time.
pub struct Track {
    /// What it is of.
    pub name: String,
    /// What is said below its name.
    pub note: String,
    /// Class that sets the CSS property `--hue`.
    pub class: &'static str,
    /// Its bars.
    pub bars: Vec<TrackBar>,
}

/// Height of each of [`tracks`], with what is between two.
const TRACK: f64 = 30.0;

/// Height of the drawing of so many tracks.
pub fn tracks_height(tracks: usize) -> f64 {
    tracks as f64 * TRACK + BOTTOM
}

/// Tracks below each other, of one horizontal axis from 0 to `span` with its label.
pub fn tracks(title: &str, description: &str, (label, span): (&str, f64), tracks: &[Track]) -> Markup {
    const TRACK_NAMES: f64 = 104.0;
    const BAR: f64 = TRACK - 5.0;
    let right = WIDTH - 8.0;
    let axis = Axis::linear(label, (0.0, span), format::tick);
    let x = |value: f64| TRACK_NAMES + (value / axis.high).clamp(0.0, 1.0) * (right - TRACK_NAMES);
    let floor = tracks.len() as f64 * TRACK;
    let outline = |track: &Track, floor: f64, height: fn(&TrackBar) -> f64| -> String {
        let drawn = track.bars.iter().filter(|bar| height(bar) > 0.0);
        // Whatever there was is seen.
        let tall = |bar: &TrackBar| (BAR * height(bar).min(1.0)).max(1.0);
        drawn
            .map(|bar| {
                format!("M{} {}V{}H{}V{}Z", at(x(bar.from)), at(floor), at(floor - tall(bar)), at(x(bar.to)), at(floor))
            })
            .collect()
    };
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(tracks_height(tracks.len())))) role="img" {
            title { (title) }
            desc { (description) }
            @for (i, track) in tracks.iter().enumerate() {
                @let floor = (i + 1) as f64 * TRACK;
                text x="0" y=(at(floor - 14.0)) { (track.name) }
                text.tick x="0" y=(at(floor - 2.0)) { (track.note) }
                g class=(track.class) {
                    path.band d=(outline(track, floor, |bar| bar.pale)) {}
                    path.filled d=(outline(track, floor, |bar| bar.solid)) {}
                }
                line.grid x1=(at(TRACK_NAMES)) y1=(at(floor)) x2=(at(right)) y2=(at(floor)) {}
            }
            @for (value, text) in &axis.ticks {
                line.stub x1=(at(x(*value))) y1=(at(floor)) x2=(at(x(*value))) y2=(at(floor + 4.0)) {}
                text.tick x=(at(x(*value))) y=(at(floor + 15.0)) text-anchor="middle" { (text) }
            }
            text.label x=(at(right)) y=(at(floor + 31.0)) text-anchor="end" { (axis.label) }
        }
    }
}

/// A change to draw: what of, by what share, in which hue.
pub struct Change {
    /// What it is of; empty where it is of the same as the one above.
    pub name: String,
    /// By what share; `None` where there is none.
    pub share: Option<f64>,
    /// Class of its bar.
    pub class: &'static str,
}

/// Changes below each other as bars to both sides of none, from half to half as much again; what is beyond is cut off there and told by its number alone.
pub fn changes(title: &str, changes: &[Change], text: impl Fn(f64) -> String) -> Markup {
    const NAMES: f64 = 74.0;
    const NUMBERS: f64 = 72.0;
    const LINE: f64 = 14.0;
    /// What fills a side.
    const FULL: f64 = 0.5;
    let side = (WIDTH - NAMES - NUMBERS) / 2.0;
    let (zero, height) = (NAMES + side, changes.len() as f64 * LINE + 6.0);
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {}", at(height))) role="img" {
            title { (title) }
            @for (i, change) in changes.iter().enumerate() {
                @let y = i as f64 * LINE;
                text x="0" y=(at(y + 11.0)) { (change.name) }
                @if let Some(share) = change.share {
                    @let end = zero + share.clamp(-FULL, FULL) / FULL * side;
                    g class=(change.class) { rect.solid x=(at(zero.min(end))) y=(at(y + 2.0)) width=(at((end - zero).abs())) height="10" {} }
                }
                text.tick x=(at(WIDTH)) y=(at(y + 11.0)) text-anchor="end" { (change.share.map_or(format::DASH.to_owned(), &text)) }
            }
            line.axis x1=(at(zero)) y1="0" x2=(at(zero)) y2=(at(height)) {}
        }
    }
}

/// A short piece of a line, for a key in running text.
pub fn sample(look: Look) -> Markup {
    html! {
        svg.sample viewBox="0 0 30 10" width="30" height="10" aria-hidden="true" {
            g class=(look.class) { path class=(format!("line {}", look.dash.class())) d="M2 5H28" {} }
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

/// Outline of a line's band; `None` when it has none.
fn band_outline(line: &Line, point: impl Fn((f64, f64)) -> Option<(f64, f64)>) -> Option<String> {
    let upper = line.band.iter().filter_map(|&(x, _, high)| point((x, high)));
    let lower = line.band.iter().rev().filter_map(|&(x, low, _)| point((x, low)));
    let outline = polyline(upper.chain(lower));
    (!outline.is_empty()).then(|| outline + "Z")
}

/// Text of a power of ten on a probability axis: `1`, `10⁻²`.
pub fn power_of_ten(value: f64) -> String {
    match value.log10().round() as i32 {
        0 => "1".to_owned(),
        exponent => format!("10{}", format::superscript(&exponent.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis) -> Vec<f64> {
        axis.ticks.iter().map(|tick| tick.0).collect()
    }

    #[test]
    fn ticks_are_round_numbers_inside_the_axis() {
        assert_eq!(ticks(&Axis::linear("", (0.0, 9.0), format::tick)), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(&Axis::linear_rounded("", (-3.0, 240.0), format::tick)), [-100.0, 0.0, 100.0, 200.0, 300.0]);
        assert_eq!(ticks(&Axis::log("", (3.0, 80.0), format::tick)), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(ticks(&Axis::log("", (1e-4, 1.0), format::tick)).len(), 5);
    }

    #[test]
    fn an_axis_without_extent_still_places_its_value() {
        for axis in [Axis::linear("", (3.0, 3.0), format::tick), Axis::log("", (3.0, 3.0), format::tick)] {
            assert_eq!(axis.place(3.0), Some(0.0));
            assert_eq!(axis.place(f64::NAN), None);
        }
        assert_eq!(Axis::log("", (1.0, 10.0), format::tick).place(0.0), None);
    }

    #[test]
    fn names_of_lines_that_end_together_do_not_overlap() {
        let look = Look { class: "alone", dash: Dash::Thin };
        let line = |y| Line { name: "x".into(), look, points: vec![(0.0, y)], marks: vec![], band: vec![] };
        let axis = || Axis::linear("", (0.0, 1.0), format::tick);
        let chart = Chart {
            title: String::new(),
            description: String::new(),
            x: axis(),
            y: axis(),
            lines: [0.01, 0.0, 0.02, 0.9].map(line).into(),
            rules: vec![],
            named_lines: true,
        };
        let names = chart.names(|value| Some((1.0 - value) * (HEIGHT - BOTTOM)));
        assert!(names.windows(2).all(|pair| pair[1].2 - pair[0].2 >= NAME_LINE - 1e-9));
        assert!(names.iter().all(|name| name.2 <= HEIGHT - BOTTOM));
    }
}
