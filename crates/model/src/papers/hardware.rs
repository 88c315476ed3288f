//! The numbers of a paper beside those that were measured on a machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compared::{as_printed, four_digits};
use super::{Paper, PaperFigure};
use crate::evidence::{Evidence, Section};

/// Location of a number in the JSON that the commands of a figure leave.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnHardware {
    /// End of the file's name, after `{file}`.
    pub file: String,
    /// Place of the number: a JSON pointer (RFC 6901). A step `KEY=VALUE,KEY=VALUE` takes the first element of an array that has these values.
    pub at: String,
    /// Place of a number to divide by.
    pub over: Option<String>,
    /// Factor, such as that between two units.
    #[serde(default = "one")]
    pub times: f64,
    /// Quantity that is measured here, in place of the one that the paper measured.
    pub what: String,
    /// Unit of the number, if it is not that of the paper's number.
    pub unit: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// A file that a command of a figure left.
pub struct Left {
    /// End of the file's name, after `{file}`.
    pub file: String,
    /// Contents of the file.
    pub json: Value,
}

/// A printed number beside the one that was measured on a machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Measured {
    /// Description of the paper's number.
    pub what: String,
    /// The printed number.
    pub printed: f64,
    /// Unit of the printed number.
    pub unit: String,
    /// Quantity that was measured.
    pub here: String,
    /// Value that was measured.
    pub value: f64,
    /// Unit of the measured value.
    pub here_unit: String,
}

/// The numbers of a section about hardware.
#[derive(Serialize, JsonSchema)]
pub struct HardwareNumbers {
    /// Name of the figure, as the command takes it.
    pub figure: String,
    /// The paper's numbers beside those that were measured.
    pub measured: Vec<Measured>,
}

impl OnHardware {
    /// Returns the number in the files `left`; `None` if it is not there, for example because an experiment was refused.
    fn value(&self, left: &[Left]) -> Option<f64> {
        let json = &left.iter().find(|left| left.file == self.file)?.json;
        let over = self.over.as_ref().map_or(Some(1.0), |over| at(json, over)?.as_f64());
        Some(at(json, &self.at)?.as_f64()? * self.times / over?)
    }
}

/// Returns the value at `pointer` in `json`.
fn at<'a>(json: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).try_fold(json, |json, step| match step.contains('=') {
        true => json.as_array()?.iter().find(|element| has(element, step)),
        false => json.pointer(&format!("/{step}")),
    })
}

/// Whether `element` has the values of `step`, such as `bytes=1,setting=flooded`.
fn has(element: &Value, step: &str) -> bool {
    step.split(',').all(|pair| {
        let Some((key, wanted)) = pair.split_once('=') else { return false };
        let is = |value: &Value| {
            value.as_str() == Some(wanted) || serde_json::from_str::<Value>(wanted).is_ok_and(|wanted| wanted == *value)
        };
        element.get(key).is_some_and(is)
    })
}

impl PaperFigure {
    /// Returns the section of a report on the files that the figure's commands left on a machine: the conclusion of each file, and the paper's
    /// numbers beside the measured ones. The numbers are not judged, because they come from another machine.
    pub fn hardware_section(&self, paper: &Paper, left: &[Left]) -> Section {
        let evidence = left.iter().filter_map(|left| serde_json::from_value::<Evidence>(left.json.clone()).ok());
        let concluded: Vec<String> =
            evidence.flat_map(|evidence| evidence.sections).map(|section| section.headline).collect();
        let measured: Vec<Measured> = self
            .numbers
            .iter()
            .filter_map(|printed| {
                let hardware = printed.hardware.as_ref()?;
                Some(Measured {
                    what: printed.what.clone(),
                    printed: printed.printed,
                    unit: printed.unit.clone(),
                    here: hardware.what.clone(),
                    value: hardware.value(left)?,
                    here_unit: hardware.unit.as_ref().unwrap_or(&printed.unit).clone(),
                })
            })
            .collect();
        let title = format!("{}: {}, on hardware", self.full_name(paper), self.title);
        let headline = match measured.len() {
            0 => "No number of the paper has one beside it.".to_owned(),
            1 => "One number of the paper has one beside it.".to_owned(),
            count => format!("{count} numbers of the paper have one beside them."),
        };
        let basis = "Another machine, so that nothing is judged.".to_owned();
        let rows = measured.iter().map(Measured::row).collect::<Vec<_>>();
        let numbers = HardwareNumbers { figure: self.full_name(paper), measured };
        let section = Section::new("paper-hardware", &title, (None, basis, headline), &numbers).findings(concluded);
        if rows.is_empty() { section } else { section.table(&["number", "paper", "measured", ""], rows) }
    }
}

impl Measured {
    /// Returns the row of a table: the description, the paper's number, the number here, and the description of the latter.
    fn row(&self) -> Vec<String> {
        let with = |number: String, unit: &str| format!("{number} {unit}").trim_end().to_owned();
        vec![
            self.what.clone(),
            with(as_printed(self.printed), &self.unit),
            with(four_digits(self.value), &self.here_unit),
            self.here.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_is_found_by_the_values_beside_it() {
        let json = json!({"points": [{"bytes": 1, "way": "send", "ns": 4.0}, {"bytes": 64, "way": "send", "ns": 5.0}]});
        let left = [Left { file: ".json".to_owned(), json }];
        let of = |at: &str, over: Option<&str>| OnHardware {
            file: ".json".to_owned(),
            at: at.to_owned(),
            over: over.map(str::to_owned),
            times: 10.0,
            what: String::new(),
            unit: None,
        };
        assert_eq!(of("/points/bytes=64,way=send/ns", None).value(&left), Some(50.0));
        assert_eq!(of("/points/bytes=64,way=send/ns", Some("/points/0/ns")).value(&left), Some(12.5));
        assert_eq!(of("/points/nothing=nothing/ns", None).value(&left), None);
        assert_eq!(of("/points/bytes=2/ns", None).value(&left), None);
        assert_eq!(of("/points/7/ns", None).value(&left), None);
    }
}
