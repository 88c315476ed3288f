//! The outcome of playing a figure.

use std::fmt::Write as _;

use crate::evidence::figure::{Chart, Figure};

/// Outcome of playing a figure: drawings, and numbers by name.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// The drawings, each with a name that is put before the names of its lines; empty for none.
    pub figures: Vec<(String, Figure)>,
    /// Single numbers, by name.
    pub numbers: Vec<(String, f64)>,
}

impl Played {
    /// Adds a drawing without a name.
    pub(crate) fn figure(&mut self, figure: impl Into<Figure>) {
        self.figures.push((String::new(), figure.into()));
    }

    /// Adds a chart whose lines are known by `name` and their own names.
    pub(crate) fn chart(&mut self, name: &str, chart: Chart) {
        self.figures.push((name.to_owned(), chart.into()));
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, name: impl Into<String>, value: f64) {
        self.numbers.push((name.into(), value));
    }

    /// Returns the points of all lines, by the full names of the lines, in their order.
    pub fn lines(&self) -> impl Iterator<Item = (String, &[(f64, f64)])> {
        let charts = self.figures.iter().filter_map(|(name, figure)| match figure {
            Figure::Chart(chart) => Some((name, chart)),
            _ => None,
        });
        charts.flat_map(|(name, chart)| {
            chart.lines.iter().map(move |line| (format!("{name} {}", line.name).trim().to_owned(), &line.points[..]))
        })
    }

    /// Returns the number that `name` names: a single number, or `LINE @ X` for the point of a line at X. `None` if there is none.
    pub fn value(&self, name: &str) -> Option<f64> {
        if let Some((_, value)) = self.numbers.iter().find(|(known, _)| known == name) {
            return Some(*value);
        }
        let (line, x) = name.rsplit_once(" @ ")?;
        let x: f64 = x.parse().ok()?;
        let (_, points) = self.lines().find(|(known, _)| known == line)?;
        points.iter().find(|point| (point.0 - x).abs() < 1e-9).map(|point| point.1)
    }

    /// Returns all points and numbers as CSV. A number has no x.
    pub fn csv(&self) -> String {
        let mut csv = String::from("name,x,y\n");
        for (name, points) in self.lines() {
            points.iter().for_each(|(x, y)| writeln!(csv, "\"{name}\",{x},{y}").expect("strings do not fail"));
        }
        for (name, value) in &self.numbers {
            writeln!(csv, "\"{name}\",,{value}").expect("strings do not fail");
        }
        csv
    }
}
