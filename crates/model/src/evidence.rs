//! Evidence: what was run, on what machine, under which conditions, and what came out. One versioned JSON file; raw
//! samples lie beside it and are named in it with their hashes.

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

/// The version before: experiments by kind, without sections. [`Evidence::read`] reads it.
pub const SCHEMA_1: &str = "isochrome-evidence/1";

/// Everything a report is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of isochrome that wrote it.
    pub isochrome: String,
    /// When it was taken, seconds since 1970-01-01 UTC.
    pub taken_unix_s: u64,
    /// The command line that made it.
    pub command: Vec<String>,
    /// Seed of every random choice of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// CPU the experiments ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// The machine, with what was measured of it.
    pub machine: Machine,
    /// [`Machine::fingerprint`] of the machine at that time.
    pub fingerprint: String,
    /// The colors found; absent when the machine has none or they could not be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub palette: Option<PaletteEvidence>,
    /// What was measured, and what follows from it.
    pub sections: Vec<Section>,
    /// What the reader must know to judge the numbers (no counters, noisy host...), most important first.
    pub warnings: Vec<String>,
    /// Files of raw samples, relative to the evidence file.
    pub raw: Vec<RawFile>,
}

/// Where an evidence file of [`SCHEMA_1`] has what, and the section that it becomes.
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
    /// Evidence from JSON of this version or of [`SCHEMA_1`], whose sections have numbers only: their content is to be made from these.
    ///
    /// Fails where `text` is neither, with the reason.
    pub fn read(text: &str) -> Result<Evidence, serde_json::Error> {
        let mut value: Value = serde_json::from_str(text)?;
        if value["schema"] == SCHEMA_1 {
            let counter_hz = value["machine"]["counter_hz"]["value"].clone();
            let sections = OF_SCHEMA_1.into_iter().flat_map(|(key, id)| {
                let numbers = match (id, value.get_mut(key).map(Value::take).unwrap_or_default()) {
                    (_, Value::Null) => Vec::new(),
                    (_, Value::Array(all)) if all.is_empty() => Vec::new(),
                    // What was measured together is one section.
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
    /// SHA-256 of its contents, in hexadecimal.
    pub sha256: String,
}

/// How a palette was found and how sure it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PaletteEvidence {
    /// Cache level colored.
    pub level: u8,
    /// Colors found.
    pub colors: u32,
    /// Colors the geometry leads one to expect.
    pub colors_expected: u32,
    /// How it was measured: `bits`, `timing` or `counters`.
    pub method: String,
    /// Pages classified.
    pub pages: u64,
    /// Pages left without a color after confirmation.
    pub ambiguous: u64,
    /// Time the whole measurement took, in seconds.
    pub seconds: f64,
    /// Time to classify one page, in microseconds.
    pub us_per_page: f64,
    /// Pages of each color.
    pub per_color: Vec<u64>,
    /// Row i, column j: share (0 to 1) of a page of color i that traversing the eviction set of color j evicts.
    pub eviction: Vec<Vec<f64>>,
    /// The rule found for frame numbers, in words, or why there is none.
    pub rule: String,
}
