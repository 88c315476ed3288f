//! Figures as data: drawings and their axes. The report decides how a figure looks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::format;
use crate::geometry::Geometry;
use crate::units::Color;

/// A drawing in a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Lines over axes.
    Chart(Chart),
    /// Horizontal bars.
    Bars(Bars),
    /// Bars for increases and decreases, to the right and left of zero.
    Changes(Changes),
    /// Events over time, in tracks below each other.
    Tracks(Tracks),
    /// A cache, drawn by colors and ways.
    Cache(CacheMap),
}

/// The meaning of a line or a bar, to which the style sheet assigns a color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Hue {
    /// The reference: undisturbed, or in theory.
    Alone,
    /// Tasks share the whole cache.
    Unpartitioned,
    /// The task has colors of its own.
    Partitioned,
    /// The task has colors of its own that others may read.
    SingleWriter,
    /// The task has cache ways of its own.
    ByWays,
    /// None of the other meanings.
    Ink,
}

/// Dash style of a line, which distinguishes lines without color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dash {
    /// A solid line.
    Solid,
    /// Round dots.
    Dotted,
    /// Long dashes.
    Dashed,
    /// A thin solid line, for the reference.
    Thin,
}

/// One axis of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Axis {
    /// Measured quantity, with its unit.
    pub label: String,
    /// Whether the axis is logarithmic.
    pub log: bool,
    /// First and last value of the axis.
    pub range: [f64; 2],
    /// Values with a label, each with its text.
    pub ticks: Vec<(f64, String)>,
}

/// Returns the smallest and the largest finite number among `values`; 0 and 1 if no number is finite.
pub fn range_of(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let finite = values.into_iter().filter(|v| v.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

impl Axis {
    /// Returns a linear axis from `low` to `high`, with about five ticks at round numbers. `text` formats their labels.
    pub fn linear(label: &str, (low, high): (f64, f64), text: impl Fn(f64) -> String) -> Axis {
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        let step = round_step((high - low) / 4.5);
        let ticks = multiples(low, high, step).map(|value| (value, text(value))).collect();
        Axis { label: label.to_owned(), log: false, range: [low, high], ticks }
    }

    /// Returns the same axis as [`Axis::linear`], but with both ends extended to the next tick.
    pub fn linear_rounded(label: &str, (low, high): (f64, f64), text: impl Fn(f64) -> String) -> Axis {
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        let step = round_step((high - low) / 4.5);
        Axis::linear(label, ((low / step).floor() * step, (high / step).ceil() * step), text)
    }

    /// Returns a logarithmic axis from `low` to `high`, both positive, with ticks at powers of ten, and between them at 2 and 5
    /// if the axis is short.
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
        Axis { label: label.to_owned(), log: true, range: [low, high], ticks }
    }

    /// Returns this axis with ticks at exactly these values.
    pub fn with_ticks(mut self, values: &[f64], text: impl Fn(f64) -> String) -> Axis {
        self.ticks = values.iter().map(|&value| (value, text(value))).collect();
        self
    }

    /// Returns the position of `value` on the axis, 0 to 1; `None` outside the axis.
    pub fn position(&self, value: f64) -> Option<f64> {
        let [low, high] = self.range;
        let position = match self.log {
            false => (value - low) / (high - low),
            true if value > 0.0 => (value / low).ln() / (high / low).ln(),
            true => return None,
        };
        (-1e-6..=1.000_001).contains(&position).then_some(position)
    }
}

/// Returns the smallest round number that is at least `rough`: 1, 2, 2.5 or 5 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power);
    steps.into_iter().find(|&step| step >= rough).unwrap_or(10.0 * power)
}

/// Returns the multiples of `step` from `low` to `high`, at most a hundred whatever the arguments are.
fn multiples(low: f64, high: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (low / step - 1e-6).ceil();
    (0..100).map(move |i| (first + f64::from(i)) * step).take_while(move |&value| value <= high + step * 1e-6)
}

/// A measured point on a line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mark {
    /// Coordinates of the point.
    pub at: (f64, f64),
    /// Whether the mark is hollow, which means that too few samples support the point.
    pub hollow: bool,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// Name of the line, which is written at its end; may be empty.
    pub name: String,
    /// Meaning of the line.
    pub hue: Hue,
    /// Dash style of the line.
    pub dash: Dash,
    /// Corners (x, y) of the line. Points outside the axes are left out.
    pub points: Vec<(f64, f64)>,
    /// Points with a mark.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Band around the line: (x, lowest y, highest y); empty for no band.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub band: Vec<(f64, f64, f64)>,
}

impl Line {
    /// Returns a line without marks and without a band.
    pub fn new(name: &str, hue: Hue, dash: Dash, points: Vec<(f64, f64)>) -> Line {
        // JSON can represent only finite numbers.
        let points = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        Line { name: name.to_owned(), hue, dash, points, marks: Vec::new(), band: Vec::new() }
    }

    /// Returns this line with a mark at every point.
    pub fn marked(mut self) -> Line {
        self.marks = self.points.iter().map(|&at| Mark { at, hollow: false }).collect();
        self
    }
}

/// A line chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Chart {
    /// Title of the chart, for screen readers.
    pub title: String,
    /// Description of the chart in a sentence, for screen readers.
    pub description: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, drawn in this order. Their names are written at their ends.
    pub lines: Vec<Line>,
    /// Vertical rules, each with its x and its label.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<(f64, String)>,
}

impl Chart {
    /// Returns a chart on linear axes from 0 to a round number beyond all points. `x` and `y` are the labels.
    pub fn linear(title: &str, description: &str, [x, y]: [&str; 2], lines: Vec<Line>) -> Chart {
        let points =
            || lines.iter().flat_map(|line| line.points.iter().copied().chain(line.marks.iter().map(|it| it.at)));
        let bands = lines.iter().flat_map(|line| &line.band).map(|band| band.2);
        let (_, right) = range_of(points().map(|point| point.0).chain([0.0]));
        let (low, high) = range_of(points().map(|point| point.1).chain(bands).chain([0.0]));
        Chart {
            title: title.to_owned(),
            description: description.to_owned(),
            x: Axis::linear(x, (0.0, right), format::tick),
            y: Axis::linear_rounded(y, (low, high), format::tick),
            lines,
            rules: Vec::new(),
        }
    }
}

/// A bar of two parts, one behind the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bar {
    /// Name of the bar.
    pub name: String,
    /// Lengths of the parts; negative ones are not drawn.
    pub parts: [f64; 2],
    /// Meaning of the second part; the first is the reference.
    pub hue: Hue,
    /// Text at the end of the bar.
    pub text: String,
}

/// Horizontal bars below each other, to one scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bars {
    /// Title of the drawing.
    pub title: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// A change to draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Name of the quantity that changes; empty if it is the same as in the row above.
    pub name: String,
    /// The change, as a share; `None` if it is not known.
    pub share: Option<f64>,
    /// Meaning of the bar.
    pub hue: Hue,
}

/// Changes below each other, as bars to both sides of zero, from -50 to +50 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// Title of the drawing.
    pub title: String,
    /// The changes.
    pub changes: Vec<Change>,
}

/// A bar of a [`Track`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrackBar {
    /// Start and end of the bar on the horizontal axis.
    pub range: [f64; 2],
    /// Height of the pale part, 0 to 1.
    pub pale: f64,
    /// Height of the solid part, which is drawn over the pale one, 0 to 1.
    pub solid: f64,
}

/// Events of one task over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Track {
    /// Name of the task.
    pub name: String,
    /// Note below the name.
    pub note: String,
    /// Meaning of the bars.
    pub hue: Hue,
    /// Bars of the track.
    pub bars: Vec<TrackBar>,
}

/// Tracks below each other, on one horizontal axis from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tracks {
    /// Title of the drawing.
    pub title: String,
    /// Description of the drawing, in a sentence.
    pub description: String,
    /// Label of the axis.
    pub label: String,
    /// Largest value on the axis.
    pub span: f64,
    /// The tracks.
    pub tracks: Vec<Track>,
}

/// A cache drawn by colors and ways, with the colors that a task has in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheMap {
    /// Geometry of the cache.
    pub geometry: Geometry,
    /// Number of colors of the cache.
    pub colors: u32,
    /// Colors of the task.
    pub task: Vec<Color>,
}

macro_rules! figure_from {
    ($($kind:ident of $data:ty),*) => {
        $(impl From<$data> for Figure {
            fn from(data: $data) -> Figure {
                Figure::$kind(data)
            }
        })*
    };
}
figure_from!(Chart of Chart, Bars of Bars, Changes of Changes, Tracks of Tracks, Cache of CacheMap);

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
            assert_eq!(axis.position(3.0), Some(0.0));
            assert_eq!(axis.position(f64::NAN), None);
        }
        assert_eq!(Axis::log("", (1.0, 10.0), format::tick).position(0.0), None);
    }
}
