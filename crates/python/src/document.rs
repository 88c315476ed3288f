//! Documents of the command: evidence, and the schemas of everything that it prints as JSON.

use std::collections::BTreeMap;

use isochrome_model::plan::Plan;
use pyo3::prelude::*;

use crate::convert::{to_python, wrong};

/// Parses evidence from JSON text of any version, checks it, and returns it as plain Python.
#[pyfunction]
pub fn evidence<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    to_python(py, &isochrome_model::evidence::Evidence::read(text).map_err(wrong)?)
}

/// Parses a plan from JSON text of any version, and returns it as plain Python in the present version, with partitions from 0.
#[pyfunction]
pub fn plan_document<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    to_python(py, &serde_json::from_str::<Plan>(text).map_err(wrong)?)
}

macro_rules! schemas {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../docs/reference/schemas/", $name, ".json")))),*]
    };
}

/// Returns the JSON Schema of every document that the command prints or writes, as text by name, such as `plan`.
#[pyfunction]
pub fn schemas() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from(schemas![
        "analysis",
        "compare",
        "conflicts",
        "crpd",
        "curve",
        "doctor",
        "evidence",
        "flood",
        "flooded",
        "interference",
        "kernels",
        "machine",
        "map",
        "miss_ratio",
        "modeled-flood",
        "packets",
        "paper",
        "palette-found",
        "palette-samples",
        "palette",
        "plan",
        "profile",
        "ps",
        "recolor",
        "repair",
        "scenario-outcome",
        "simulation",
        "status",
        "switch",
        "watch",
    ])
}
