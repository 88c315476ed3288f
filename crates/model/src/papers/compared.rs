//! Numbers that a paper prints beside those that were played.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OnHardware, Paper, PaperFigure, Played, Wrong};
use crate::evidence::Section;
use crate::evidence::format::significant;

/// A number that a paper prints.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Description of the number.
    pub what: String,
    /// The number.
    pub printed: f64,
    /// Unit of the number.
    #[serde(default)]
    pub unit: String,
    /// Where the paper prints it.
    pub place: String,
    /// How the number follows from the paper.
    #[serde(default)]
    pub basis: Basis,
    /// Relation that the number here should have to the printed one.
    #[serde(default)]
    pub relation: Relation,
    /// Name of the number here, as [`Played::value`] takes it; `None` if nothing here corresponds to it.
    pub here: Option<String>,
    /// Largest relative difference that counts as agreement; `None` stands for 10 % if the number should be about as large, and for 0 otherwise.
    pub tolerance: Option<f64>,
    /// Cause of a difference, or limit of the comparison.
    pub why: Option<String>,
    /// Location of the corresponding number that was measured on hardware.
    pub hardware: Option<OnHardware>,
}

/// How a number follows from a paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The paper prints the number.
    #[default]
    Printed,
    /// The number is computed from numbers that the paper prints.
    Derived,
    /// The number is read off a curve.
    Curve,
    /// The paper prints the number, and the model was fitted to it, so that agreement shows nothing.
    Fitted,
}

/// Relation that a number should have to the printed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// The number should be about as large as the printed one.
    #[default]
    About,
    /// The number should be at most as large as the printed one.
    AtMost,
    /// The number should be at least as large as the printed one.
    AtLeast,
}

/// Whether a number agrees with the printed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// The number agrees with the printed one.
    Agrees,
    /// The number differs from the printed one.
    Differs,
    /// The model was fitted to the printed number.
    Fitted,
    /// Nothing here corresponds to the printed number.
    Missing,
}

/// A printed number beside the one here.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Compared {
    /// Description of the number.
    pub what: String,
    /// Unit of the number.
    pub unit: String,
    /// Where the paper prints it.
    pub place: String,
    /// How the printed number follows from the paper.
    pub basis: Basis,
    /// Relation that the number here should have to the printed one.
    pub relation: Relation,
    /// The printed number.
    pub printed: f64,
    /// The number here.
    pub here: Option<f64>,
    /// Whether the two numbers agree.
    pub agreement: Agreement,
    /// Largest relative difference that counts as agreement.
    pub tolerance: f64,
    /// Cause of a difference, or limit of the comparison.
    pub why: Option<String>,
}

impl Printed {
    /// Compares the printed number with the one that was played.
    pub(super) fn compare(&self, played: &Played) -> Result<Compared, Wrong> {
        let value = |name: &String| {
            let known: Vec<String> = played.lines().map(|(name, _)| format!("{name} @ X")).collect();
            let numbers: Vec<&str> = played.numbers.iter().map(|(name, _)| name.as_str()).collect();
            played.value(name).ok_or_else(|| {
                Wrong(format!(
                    "nothing played is called `{name}`; there are {}; {}",
                    known.join(", "),
                    numbers.join(", ")
                ))
            })
        };
        let here = self.here.as_ref().map(value).transpose()?;
        let tolerance = self.tolerance.unwrap_or(if self.relation == Relation::About { 0.1 } else { 0.0 });
        let room = tolerance * self.printed.abs();
        let within = |here: f64| match self.relation {
            Relation::About => (here - self.printed).abs() <= room,
            Relation::AtMost => here <= self.printed + room,
            Relation::AtLeast => here >= self.printed - room,
        };
        let agreement = match here {
            None => Agreement::Missing,
            Some(_) if self.basis == Basis::Fitted => Agreement::Fitted,
            Some(here) if within(here) => Agreement::Agrees,
            Some(_) => Agreement::Differs,
        };
        Ok(Compared {
            what: self.what.clone(),
            unit: self.unit.clone(),
            place: self.place.clone(),
            basis: self.basis,
            relation: self.relation,
            printed: self.printed,
            here,
            agreement,
            tolerance,
            why: self.why.clone(),
        })
    }
}

impl Compared {
    /// Returns the row of a table: the description, the paper's number with its place, the number here, their ratio, and the judgment.
    fn row(&self) -> Vec<String> {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        let about = match self.relation {
            Relation::About => "",
            Relation::AtMost => "at most ",
            Relation::AtLeast => "at least ",
        };
        let basis = match self.basis {
            Basis::Printed | Basis::Fitted => "",
            Basis::Derived => ", derived",
            Basis::Curve => ", read off a curve",
        };
        let judgment = match self.agreement {
            Agreement::Agrees if self.tolerance > 0.0 => {
                format!("agrees within {} %", as_printed(100.0 * self.tolerance))
            }
            Agreement::Agrees => "agrees".to_owned(),
            Agreement::Differs => "differs".to_owned(),
            Agreement::Fitted => "fitted to it".to_owned(),
            Agreement::Missing => "not modeled".to_owned(),
        };
        let ratio =
            self.here.filter(|_| self.printed != 0.0).map_or(String::new(), |here| significant(here / self.printed));
        vec![
            self.what.clone(),
            format!("{about}{}{unit} ({}{basis})", as_printed(self.printed), self.place),
            self.here.map_or("–".to_owned(), |here| four_digits(here) + &unit),
            ratio,
            judgment,
        ]
    }
}

/// Version of [`Numbers`] as they are printed.
pub const SCHEMA: &str = "isochrome-paper/1";

/// All numbers of a figure.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Numbers {
    /// Key of the paper in the bibliography.
    pub paper: String,
    /// Name of the figure, as the command takes it.
    pub figure: String,
    /// Place of the figure in the paper.
    pub place: String,
    /// The numbers that the paper prints, beside those here.
    pub compared: Vec<Compared>,
    /// The lines of the drawings.
    pub lines: Vec<NamedLine>,
    /// Single numbers.
    pub values: Vec<NamedValue>,
}

/// A line of a drawing.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NamedLine {
    /// Name of the line.
    pub name: String,
    /// Points (x, y) of the line.
    pub points: Vec<(f64, f64)>,
}

/// A single number.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NamedValue {
    /// Name of the number, with its unit.
    pub name: String,
    /// The number.
    pub value: f64,
}

/// Formats a number as a paper prints it: with as many decimals as it needs.
pub(super) fn as_printed(number: f64) -> String {
    format!("{}", (number * 1e6).round() / 1e6)
}

/// Formats a number with four significant digits, or with all digits of the whole part.
pub(super) fn four_digits(number: f64) -> String {
    let whole = if number.abs() < 1.0 { 0 } else { number.abs().log10().floor() as usize + 1 };
    format!("{number:.*}", 4usize.saturating_sub(whole.max(1)))
}

impl PaperFigure {
    /// Returns the section of a report on the played figure, beside the numbers that the paper prints.
    pub fn section(&self, paper: &Paper, played: &Played, compared: &[Compared]) -> Section {
        let count = |agreement| compared.iter().filter(|it| it.agreement == agreement).count();
        let judged = count(Agreement::Agrees) + count(Agreement::Differs);
        let headline = match judged {
            0 => "Nothing here can be held against a number of the paper.".to_owned(),
            _ => format!("{} of {judged} numbers agree with those of the paper.", count(Agreement::Agrees)),
        };
        let numbers = self.numbers_of(paper, played, compared);
        let title = format!("{}: {}", self.full_name(paper), self.title);
        let whys = compared.iter().filter_map(|it| Some(format!("{}: {}", it.what, it.why.as_ref()?)));
        let mut section = Section::new("paper", &title, (None, self.seen.clone(), headline), &numbers)
            .table(&["number", "paper", "here", "here/paper", ""], compared.iter().map(Compared::row))
            .findings(whys.collect())
            .reference(
                &["name", "value"],
                played.numbers.iter().map(|(name, value)| vec![name.clone(), four_digits(*value)]),
            );
        if let Some(reason) = &self.unmeasured {
            section = section.text(reason);
        }
        played.figures.iter().fold(section, |section, (_, figure)| section.figure(figure.clone()))
    }
    /// Returns all numbers of the played figure, beside those that the paper prints.
    pub fn numbers_of(&self, paper: &Paper, played: &Played, compared: &[Compared]) -> Numbers {
        let lines = played.lines().map(|(name, points)| NamedLine { name, points: points.to_vec() });
        let values = played.numbers.iter().map(|(name, value)| NamedValue { name: name.clone(), value: *value });
        Numbers {
            paper: paper.cited.clone(),
            figure: self.full_name(paper),
            place: self.place.clone(),
            compared: compared.to_vec(),
            lines: lines.collect(),
            values: values.collect(),
        }
    }
}
