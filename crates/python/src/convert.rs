//! Conversions between values of Python and of the model.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use numpy::PyReadonlyArrayDyn;
use pyo3::create_exception;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

create_exception!(
    isochrome,
    IsochromeError,
    PyValueError,
    "Input that cannot be used; the message names the field and a remedy."
);

/// Converts an error of the model to a Python exception.
pub fn wrong(error: impl Display) -> PyErr {
    IsochromeError::new_err(error.to_string())
}

/// Reads a file. Errors contain its name.
pub fn read(path: &PathBuf) -> PyResult<String> {
    std::fs::read_to_string(path).map_err(|error| {
        let kind = error.kind();
        std::io::Error::new(kind, format!("{}: {error}", path.display())).into()
    })
}

/// Converts a value of the model to plain Python: dictionaries, lists and numbers.
pub fn to_python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value).map_err(wrong)?;
    py.import("json")?.call_method1("loads", (text,))
}

/// Converts plain Python to JSON. Arrays and numbers of numpy count as lists and numbers.
pub fn to_json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = value.py();
    let options = pyo3::types::PyDict::new(py);
    options.set_item("default", py.import("operator")?.call_method1("methodcaller", ("tolist",))?)?;
    py.import("json")?.call_method("dumps", (value,), Some(&options))?.extract()
}

/// Converts plain Python to a value of the model.
pub fn from_python<T: DeserializeOwned>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    serde_json::from_str(&to_json(value)?).map_err(wrong)
}

/// Converts `values` to whole numbers, not negative, in consecutive rows: a view if numpy has them in this form, else a copy.
pub fn whole_numbers<'py>(values: &Bound<'py, PyAny>, name: &str) -> PyResult<PyReadonlyArrayDyn<'py, u64>> {
    let numpy = values.py().import("numpy")?;
    let array = numpy.call_method1("ascontiguousarray", (values,))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    match kind.as_str() {
        "u" => {}
        "i" => {
            let empty = array.getattr("size")?.extract::<usize>()? == 0;
            if !empty && array.call_method0("min")?.extract::<i64>()? < 0 {
                return Err(wrong(format!("{name}: there are negative numbers")));
            }
        }
        _ => return Err(PyTypeError::new_err(format!("{name}: whole numbers are needed, as of dtype uint64"))),
    }
    let array = array.call_method1("astype", ("uint64", "C", "unsafe", true, false))?;
    array.extract::<PyReadonlyArrayDyn<'py, u64>>()
}

/// Returns the numbers of an array, which must have this shape.
pub fn in_shape<'a>(array: &'a PyReadonlyArrayDyn<'_, u64>, shape: &[usize], name: &str) -> PyResult<&'a [u64]> {
    let found = array.as_array().shape().to_vec();
    if found != shape {
        return Err(wrong(format!("{name}: is of shape {found:?}, not {shape:?}")));
    }
    Ok(array.as_slice()?)
}

/// Runs `work` in a thread of its own without the interpreter's lock, so that Ctrl-C reaches Python while `work` runs. Ctrl-C sets the flag that
/// `work` gets; when `work` has ended, Python's exception is returned.
pub fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce(&AtomicBool) -> T + Send) -> PyResult<T> {
    let (stop, mut interrupted) = (AtomicBool::new(false), Ok(()));
    let stop = &stop;
    let result = py.detach(|| {
        std::thread::scope(|scope| {
            let main = std::thread::current();
            let worker = scope.spawn(move || {
                let result = work(stop);
                main.unpark();
                result
            });
            while !worker.is_finished() {
                std::thread::park_timeout(Duration::from_millis(50));
                if interrupted.is_ok() {
                    interrupted = Python::attach(|py| py.check_signals());
                    stop.store(interrupted.is_err(), Ordering::Relaxed);
                }
            }
            worker.join()
        })
    });
    interrupted?;
    result.map_err(|_| wrong("the model failed; its message is on standard error"))
}
