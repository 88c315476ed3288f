//! Evidence of a run or an experiment: the machine, the conditions and the results, in one versioned JSON file. Raw samples lie in files beside it,
//! which it names with their hashes.

pub mod figure;
pub mod format;
mod section;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::units::CpuId;

pub use section::{Content, Section, Standing, Table};

/// Version of the evidence file.
pub const SCHEMA: &str = "isochrome-evidence/2";

/// Version of the format before there were sections, which lists experiments by kind. [`Evidence::read`] reads this format too.
pub const SCHEMA_1: &str = "isochrome-evidence/1";

/// Everything from which a report is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Version of the format: [`SCHEMA`].
    pub schema: String,
    /// Version of isochrome that wrote the evidence.
    pub isochrome: String,
    /// Time at which the evidence was made, in seconds since 1970-01-01 UTC.
    pub taken_unix_s: u64,
    /// Command line that made the evidence.
    pub command: Vec<String>,
    /// Seed of all random choices of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// CPU that the experiments ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// The machine, with all that was measured on it.
    pub machine: Machine,
    /// [`Machine::fingerprint`] of the machine when the evidence was made.
    pub fingerprint: String,
    /// The colors that were found; absent if the machine has no colors or they could not be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub palette: Option<PaletteEvidence>,
    /// The measurements, each with its conclusion.
    pub sections: Vec<Section>,
    /// Facts that the reader must know to judge the numbers, such as missing counters or a noisy host, most important first.
    pub warnings: Vec<String>,
    /// Files of raw samples, relative to the evidence file.
    pub raw: Vec<RawFile>,
}

/// Key of each kind of experiment in a file of [`SCHEMA_1`], with the identifier of the section that it becomes.
const OF_SCHEMA_1: [(&str, &str); 10] = [
    ("run", "run"),
    ("watches", "watch"),
    ("experiments", "kernels"),
    ("conflicts", "conflicts"),
    ("crpd", "crpd"),
    ("switches", "switch"),
    ("interference", "interference"),
    ("floods", "flood"),
    ("packets", "packets"),
    ("workloads", "miss_ratio"),
];

impl Evidence {
    /// Parses evidence from JSON of this version or of [`SCHEMA_1`]. Sections from the older version have only numbers, from
    /// which their content has to be made.
    ///
    /// Fails with the reason if `text` is neither.
    pub fn read(text: &str) -> Result<Evidence, serde_json::Error> {
        let mut value: Value = serde_json::from_str(text)?;
        if value["schema"] == SCHEMA_1 {
            let counter_hz = value["machine"]["counter_hz"]["value"].clone();
            let sections = OF_SCHEMA_1.into_iter().flat_map(|(key, id)| {
                let numbers = match (id, value.get_mut(key).map(Value::take).unwrap_or_default()) {
                    (_, Value::Null) => Vec::new(),
                    (_, Value::Array(all)) if all.is_empty() => Vec::new(),
                    // Experiments that were measured together are one section.
                    ("kernels", all) => vec![json!({"experiments": all, "counter_hz": counter_hz})],
                    ("packets", all) => vec![json!({ "paths": all })],
                    (_, Value::Array(all)) => all,
                    (_, one) => vec![one],
                };
                numbers
                    .into_iter()
                    .map(|mut numbers| {
                        if id == "conflicts" {
                            numbers["counter_hz"] = counter_hz.clone();
                        }
                        Section::of_numbers(id, numbers)
                    })
                    .collect::<Vec<_>>()
            });
            let sections: Vec<Section> = sections.collect();
            value["sections"] = serde_json::to_value(sections)?;
        }
        serde_json::from_value(value)
    }
}

/// A file of raw samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RawFile {
    /// Path relative to the evidence file.
    pub path: String,
    /// SHA-256 of the contents of the file, in hexadecimal.
    pub sha256: String,
}

/// How a palette was found, and how reliable it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PaletteEvidence {
    /// Cache level that the colors belong to.
    pub level: u8,
    /// Number of colors found.
    pub colors: u32,
    /// Number of colors to expect from the geometry.
    pub colors_expected: u32,
    /// Method of the measurement: `bits`, `timing` or `counters`.
    pub method: String,
    /// Number of pages classified.
    pub pages: u64,
    /// Number of pages without a color after confirmation.
    pub ambiguous: u64,
    /// Duration of the whole measurement, in seconds.
    pub seconds: f64,
    /// Time to classify one page, in microseconds.
    pub us_per_page: f64,
    /// Number of pages of each color.
    pub per_color: Vec<u64>,
    /// Eviction matrix: row i, column j has the share (0 to 1) of a page of color i that traversing the eviction set of color j
    /// evicts.
    pub eviction: Vec<Vec<f64>>,
    /// The rule that was found for frame numbers, in words, or the reason why no rule was found.
    pub rule: String,
}
