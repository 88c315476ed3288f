//! Reads evidence of any version.

use isochrome_model::evidence::{Evidence, Section};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{compare, conflicts, crpd, flood, interference, kernels, miss_ratio, packets, switch};

/// Parses evidence from JSON of any version. Sections that lack their content are made again from their numbers.
///
/// Fails if `text` is not evidence.
pub fn read_evidence(text: &str) -> Result<Evidence, serde_json::Error> {
    let mut evidence = Evidence::read(text)?;
    for section in std::mem::take(&mut evidence.sections) {
        let section = if section.content.is_empty() { made_again(&evidence, section)? } else { section };
        evidence.sections.push(section);
    }
    Ok(evidence)
}

/// Deserializes `numbers` and returns the section made from them.
fn made_of<T: DeserializeOwned>(
    numbers: Value,
    section: impl FnOnce(&T) -> Section,
) -> Result<Section, serde_json::Error> {
    serde_json::from_value(numbers).map(|measured: T| section(&measured))
}

/// Returns `section` made again from its numbers. Sections of unknown experiments are returned as they are.
fn made_again(evidence: &Evidence, section: Section) -> Result<Section, serde_json::Error> {
    let numbers = section.numbers.clone();
    match &section.id[..] {
        "kernels" => {
            made_of(numbers, |measured| kernels::section(measured, &evidence.machine, evidence.palette.as_ref()))
        }
        "conflicts" => made_of(numbers, conflicts::section),
        "crpd" => made_of(numbers, crpd::section),
        "switch" => made_of(numbers, switch::section),
        "compare" => made_of(numbers, compare::section),
        "interference" => made_of(numbers, interference::section),
        "flood" => made_of(numbers, flood::section),
        "packets" => made_of(numbers, packets::section),
        "miss_ratio" => made_of(numbers, miss_ratio::section),
        "run" => made_of(numbers, isochrome_model::running::Run::section),
        "watch" => made_of(numbers, isochrome_model::watch::Watched::section),
        _ => Ok(section),
    }
}
