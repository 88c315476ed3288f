//! The Python module `isochrome._isochrome`: the model with numpy arrays as input and output.
//!
//! This crate only converts. Arrays and dictionaries become arguments of `isochrome-model`, and its results become arrays and dictionaries.
//! Long work runs without the interpreter's lock. Dictionaries have the form of the files, and both go through the same readers.

mod convert;
mod document;
mod generator;
mod machine;
mod planning;
mod simulate;

use pyo3::prelude::*;

/// The native module. Users import python/isochrome/__init__.py instead.
#[pymodule]
mod _isochrome {
    #[pymodule_export]
    use super::convert::IsochromeError;
    #[pymodule_export]
    use super::document::{evidence, plan_document, schemas};
    #[pymodule_export]
    use super::generator::{Generator, plan_batch, proportion_interval, uniformity};
    #[pymodule_export]
    use super::machine::{Machine, Palette};
    #[pymodule_export]
    use super::planning::{
        Comparison, Plan, TaskSet, beside_kim2013, compare, figures_14_to_16, plan, response_times,
        response_times_batch,
    };
    #[pymodule_export]
    use super::simulate::{CacheSim, miss_curve};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
