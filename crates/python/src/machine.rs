//! Machines and palettes.

use std::path::PathBuf;

use isochrome_model::machine as measured;
use isochrome_model::palette::{self, Inference, Samples, samples};
use isochrome_model::sim::{MACHINE_MODEL_SCHEMA, MachineModel};
use isochrome_model::units::FrameNumber;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::convert::{in_shape, read, to_json, to_python, whole_numbers, wrong};

/// A machine: described by data sheets and papers, or measured by `isochrome probe`.
///
/// ```python
/// >>> machine = isochrome.Machine.named("i7-2600")
/// >>> machine.page_bytes, machine.colors()
/// (4096, [('L1d', 1), ('L2', 8), ('L3', 32)])
/// ```
#[pyclass(frozen, module = "isochrome")]
pub struct Machine(Known);

enum Known {
    Described(Box<MachineModel>),
    Measured(Box<measured::Machine>),
}

#[derive(Deserialize)]
struct Schema {
    schema: String,
}

#[pymethods]
impl Machine {
    /// Returns a built-in machine, by the name of its folder.
    #[staticmethod]
    fn named(name: &str) -> PyResult<Machine> {
        let known = || MachineModel::names().collect::<Vec<_>>().join(", ");
        let machine = MachineModel::named(name)
            .ok_or_else(|| wrong(format!("{name}: no such machine\n  hint: there are {}", known())))?;
        Ok(Machine(Known::Described(Box::new(machine))))
    }

    /// Returns the names of the built-in machines.
    #[staticmethod]
    fn names() -> Vec<&'static str> {
        MachineModel::names().collect()
    }

    /// Parses a machine from JSON text: a description, or the output of `isochrome probe --json`.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Machine> {
        let Schema { schema } = serde_json::from_str(text).map_err(wrong)?;
        let known = match schema.as_str() {
            MACHINE_MODEL_SCHEMA => Known::Described(serde_json::from_str(text).map_err(wrong)?),
            measured::SCHEMA => Known::Measured(serde_json::from_str(text).map_err(wrong)?),
            _ => return Err(wrong(format!("{schema}: neither {MACHINE_MODEL_SCHEMA} nor {}", measured::SCHEMA))),
        };
        Ok(Machine(known))
    }

    /// Reads a machine from a file with such a text.
    #[staticmethod]
    fn from_file(path: PathBuf) -> PyResult<Machine> {
        Self::from_json(&read(&path)?).map_err(|error| wrong(format!("{}: {error}", path.display())))
    }

    /// Full name of the machine.
    #[getter]
    fn name(&self) -> &str {
        match &self.0 {
            Known::Described(machine) => &machine.name,
            Known::Measured(machine) => &machine.cpu_model,
        }
    }

    /// Bytes per page.
    #[getter]
    fn page_bytes(&self) -> u64 {
        match &self.0 {
            Known::Described(machine) => machine.page_bytes.0,
            Known::Measured(machine) => machine.page_bytes.0,
        }
    }

    /// Returns the number of page colors of each level that holds data, innermost first, each with the name of the level.
    fn colors(&self) -> Vec<(String, u32)> {
        match &self.0 {
            Known::Described(machine) => machine.colors(),
            Known::Measured(machine) => {
                let data = machine.levels.iter().filter(|level| level.holds != measured::Holds::Instruction);
                data.map(|l| (format!("L{}", l.level), l.geometry.value.color_count(machine.page_bytes))).collect()
            }
        }
    }

    /// SHA-256 of the facts that do not change while the machine stays the same; `None` for a machine model.
    #[getter]
    fn fingerprint(&self) -> Option<String> {
        match &self.0 {
            Known::Described(_) => None,
            Known::Measured(machine) => Some(machine.fingerprint()),
        }
    }

    /// Returns the contents of the machine's file as a dictionary.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.0 {
            Known::Described(machine) => to_python(py, machine),
            Known::Measured(machine) => to_python(py, machine),
        }
    }

    fn __repr__(&self) -> String {
        format!("Machine({:?}, colors={:?})", self.name(), self.colors())
    }
}

impl Machine {
    /// Returns the description, for simulations; an error for a measured machine.
    pub fn machine_model(&self) -> PyResult<&MachineModel> {
        match &self.0 {
            Known::Described(machine) => Ok(machine),
            Known::Measured(machine) => Err(wrong(format!(
                "{}: a measured machine has no replacement policies to simulate\n  hint: Machine.named, or CacheSim.of_levels",
                machine.cpu_model
            ))),
        }
    }
}

/// A palette, which maps page frames to the colors of a cache level.
#[pyclass(frozen, module = "isochrome")]
pub struct Palette {
    palette: palette::Palette,
    inference: Option<Inference>,
}

#[pymethods]
impl Palette {
    /// Infers a palette from samples of `isochrome palette --samples FILE`, given as a dictionary or as the file.
    #[staticmethod]
    fn infer(samples: &Bound<'_, PyAny>) -> PyResult<Palette> {
        let text = match samples.extract::<PathBuf>() {
            Ok(path) => read(&path)?,
            Err(_) => to_json(samples)?,
        };
        let samples: Samples = serde_json::from_str(&text).map_err(wrong)?;
        if samples.schema != samples::SCHEMA {
            return Err(wrong(format!("{}: samples are {}", samples.schema, samples::SCHEMA)));
        }
        samples.check().map_err(wrong)?;
        let inference = samples_inferred(samples);
        Ok(Palette { palette: inference.palette.clone(), inference: Some(inference) })
    }

    /// Reads a palette that `isochrome palette -o FILE` has written.
    #[staticmethod]
    fn from_file(path: PathBuf) -> PyResult<Palette> {
        let palette: palette::Palette = serde_json::from_str(&read(&path)?).map_err(wrong)?;
        if palette.schema != palette::SCHEMA {
            return Err(wrong(format!("{}: {} is not {}", path.display(), palette.schema, palette::SCHEMA)));
        }
        Ok(Palette { palette, inference: None })
    }

    /// Number of colors; colors are counted from 0.
    #[getter]
    fn colors(&self) -> u32 {
        self.palette.colors
    }

    /// Cache level that the colors are of: 2 for the L2.
    #[getter]
    fn level(&self) -> u8 {
        self.palette.level
    }

    /// Reasons to doubt the palette, in words; empty if there are none, or if the palette was not inferred here.
    #[getter]
    fn doubts(&self) -> Vec<String> {
        self.inference.iter().flat_map(|inference| &inference.doubts).map(ToString::to_string).collect()
    }

    /// Returns everything that was inferred, as a dictionary; `None` if the palette was not inferred here.
    fn inference<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.inference.as_ref().map(|inference| to_python(py, inference)).transpose()
    }

    /// Returns the color of each frame, as an array of int32 of the same length; -1 for a frame that the palette does not know.
    ///
    /// `frames`: one dimension, the frame numbers: physical addresses divided by the page size.
    fn color_of<'py>(&self, py: Python<'py>, frames: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let frames = whole_numbers(frames, "frames")?;
        let frames = in_shape(&frames, &[frames.as_array().len()], "frames")?;
        let color = |frame: &u64| self.palette.color_of(FrameNumber(*frame)).map_or(-1, |color| i32::from(color.0));
        Ok(py.detach(|| frames.iter().map(color).collect::<Vec<i32>>()).into_pyarray(py))
    }

    fn __repr__(&self) -> String {
        format!("Palette(level={}, colors={}, doubts={})", self.palette.level, self.palette.colors, self.doubts().len())
    }
}

fn samples_inferred(samples: Samples) -> Inference {
    palette::infer(&samples)
}
