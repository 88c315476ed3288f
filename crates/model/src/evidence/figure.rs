//! Figures as data: what is drawn, on which axes. How it looks is for the report.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::format;
use crate::geometry::Geometry;
use crate::units::Color;

/// Something to draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Lines over axes.
    Chart(Chart),
    /// Horizontal bars.
    Bars(Bars),
    /// Changes to both sides of none.
    Changes(Changes),
    /// What happened over time, one track below the other.
    Tracks(Tracks),
    /// A cache by colors and ways.
    Cache(CacheMap),
}

/// What a line or a bar stands for; the style sheet gives each its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Hue {
    /// The reference: undisturbed, in theory.
    Alone,
    /// Everything is shared.
    Unpartitioned,
    /// Own colors.
    Partitioned,
    /// Own colors that others read.
    SingleWriter,
    /// Own ways.
    ByWays,
    /// Nothing of these.
    Ink,
}

/// How a line is broken, so that lines differ without color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
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

/// One axis of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Axis {
    /// What it measures, with its unit.
    pub label: String,
    /// Whether it is logarithmic.
    pub log: bool,
    /// Where it begins and ends.
    pub range: [f64; 2],
    /// Values that are named, with their names.
    pub ticks: Vec<(f64, String)>,
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
        Axis { label: label.to_owned(), log: false, range: [low, high], ticks }
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
        Axis { label: label.to_owned(), log: true, range: [low, high], ticks }
    }

    /// Ticks at exactly these values instead.
    pub fn with_ticks(mut self, values: &[f64], text: impl Fn(f64) -> String) -> Axis {
        self.ticks = values.iter().map(|&value| (value, text(value))).collect();
        self
    }

    /// Where `value` lies on the axis, 0 to 1; `None` outside.
    pub fn place(&self, value: f64) -> Option<f64> {
        let [low, high] = self.range;
        let place = match self.log {
            false => (value - low) / (high - low),
            true if value > 0.0 => (value / low).ln() / (high / low).ln(),
            true => return None,
        };
        (-1e-6..=1.000_001).contains(&place).then_some(place)
    }
}

/// The round number nearest above `rough`: 1, 2, 2.5 or 5 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power);
    steps.into_iter().find(|&step| step >= rough).unwrap_or(10.0 * power)
}

/// Multiples of `step` from `low` to `high`; at most a hundred, whatever the arguments.
fn multiples(low: f64, high: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (low / step - 1e-6).ceil();
    (0..100).map(move |i| (first + f64::from(i)) * step).take_while(move |&value| value <= high + step * 1e-6)
}

/// A measured point on a line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mark {
    /// Where it lies.
    pub at: (f64, f64),
    /// Drawn hollow: not enough stands behind it.
    pub hollow: bool,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// Its name, written at its end; nothing where it is empty.
    pub name: String,
    /// What it stands for.
    pub hue: Hue,
    /// How it is broken.
    pub dash: Dash,
    /// Its corners (x, y). Points off the axes are left out.
    pub points: Vec<(f64, f64)>,
    /// Points to mark.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Spread around it: (x, lowest y, highest y); empty for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub band: Vec<(f64, f64, f64)>,
}

impl Line {
    /// One without marks and without a spread.
    pub fn new(name: &str, hue: Hue, dash: Dash, points: Vec<(f64, f64)>) -> Line {
        // JSON has no numbers but finite ones.
        let points = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        Line { name: name.to_owned(), hue, dash, points, marks: Vec::new(), band: Vec::new() }
    }

    /// With a mark at every point.
    pub fn marked(mut self) -> Line {
        self.marks = self.points.iter().map(|&at| Mark { at, hollow: false }).collect();
        self
    }
}

/// Lines over two axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Chart {
    /// What it shows, in a few words; for those who do not see it.
    pub title: String,
    /// What is to be seen in it, in a sentence; for those who do not see it.
    pub description: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, drawn in this order, whose names are written at their ends.
    pub lines: Vec<Line>,
    /// Vertical rules: x and what is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<(f64, String)>,
}

impl Chart {
    /// A chart on linear axes from 0, rounded, that hold all points: `x` and `y` are the labels.
    pub fn linear(title: &str, description: &str, [x, y]: [&str; 2], lines: Vec<Line>) -> Chart {
        let points =
            || lines.iter().flat_map(|line| line.points.iter().copied().chain(line.marks.iter().map(|it| it.at)));
        let bands = lines.iter().flat_map(|line| &line.band).map(|band| band.2);
        let (_, right) = extent(points().map(|point| point.0).chain([0.0]));
        let (low, high) = extent(points().map(|point| point.1).chain(bands).chain([0.0]));
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
    /// What the bar stands for.
    pub name: String,
    /// Its parts; negative ones are not drawn.
    pub parts: [f64; 2],
    /// What the second part stands for; the first is the reference.
    pub hue: Hue,
    /// What is written at its end.
    pub text: String,
}

/// Horizontal bars below each other, drawn to one scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bars {
    /// What they show.
    pub title: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// A change to draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// What it is of; empty where it is of the same as the one above.
    pub name: String,
    /// By what share; `None` where there is none.
    pub share: Option<f64>,
    /// What it stands for.
    pub hue: Hue,
}

/// Changes below each other, as bars to both sides of none, from half to half as much again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// What they show.
    pub title: String,
    /// The changes.
    pub changes: Vec<Change>,
}

/// A bar of a [`Track`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrackBar {
    /// Where it begins and ends on the horizontal axis.
    pub range: [f64; 2],
    /// Height of what is drawn pale, 0 to 1.
    pub pale: f64,
    /// Height of what is drawn before it, 0 to 1.
    pub solid: f64,
}

/// What happened to one of several over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Track {
    /// What it is of.
    pub name: String,
    /// What is said below its name.
    pub note: String,
    /// What it stands for.
    pub hue: Hue,
    /// Its bars.
    pub bars: Vec<TrackBar>,
}

/// Tracks below each other, of one horizontal axis from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tracks {
    /// What they show.
    pub title: String,
    /// What is to be seen in them, in a sentence.
    pub description: String,
    /// What the axis measures.
    pub label: String,
    /// Where the axis ends.
    pub span: f64,
    /// The tracks.
    pub tracks: Vec<Track>,
}

/// A cache by colors and ways, and who may do what in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheMap {
    /// The cache.
    pub geometry: Geometry,
    /// Its colors.
    pub colors: u32,
    /// Those of a task.
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
            assert_eq!(axis.place(3.0), Some(0.0));
            assert_eq!(axis.place(f64::NAN), None);
        }
        assert_eq!(Axis::log("", (1.0, 10.0), format::tick).place(0.0), None);
    }
}
