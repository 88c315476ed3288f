//! The cache simulator.

use std::sync::{Mutex, MutexGuard};

use isochrome_model::geometry::Geometry;
use isochrome_model::sim::{Access, ColorCurve, Level, Semantics, Simulator, StackDistances};
use isochrome_model::units::Bytes;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use serde::Serialize;

use crate::convert::{in_shape, to_python, whole_numbers, wrong};
use crate::machine::Machine;

/// Number of accesses that are converted at a time, few enough to stay in the cache.
const BATCH: usize = 4096;

/// An exact simulator of a chain of caches, driven by arrays of addresses.
///
/// ```python
/// >>> caches = isochrome.CacheSim.of_levels(["32K:8:64:lru:wb:wa"])
/// >>> caches.run(np.tile(np.arange(0, 64 << 10, 64), 2))
/// >>> caches
/// CacheSim(L1 2048 misses)
/// ```
#[pyclass(frozen, module = "isochrome")]
pub struct CacheSim(Mutex<Simulator>);

#[derive(Serialize)]
struct Counts {
    levels: Vec<isochrome_model::sim::LevelCounts>,
    memory: isochrome_model::sim::MemoryCounts,
}

#[pymethods]
impl CacheSim {
    /// Creates the caches of one CPU of `machine`.
    #[new]
    fn new(machine: PyRef<'_, Machine>) -> PyResult<CacheSim> {
        Ok(CacheSim(Mutex::new(Simulator::machine(machine.machine_model()?).map_err(wrong)?)))
    }

    /// Creates a chain of levels in the short form, innermost first, such as `["32K:8:64:lru:wb:wa", "512K:8:64:lru:wb:wa"]`.
    ///
    /// `pycachesim`: whether to count as pycachesim does where simulators differ.
    #[staticmethod]
    #[pyo3(signature = (levels, *, pycachesim = false))]
    fn of_levels(levels: Vec<String>, pycachesim: bool) -> PyResult<CacheSim> {
        let level =
            |(i, text): (usize, &String)| Ok(text.parse::<Level>().map_err(wrong)?.named(&format!("L{}", i + 1)));
        let levels = levels.iter().enumerate().map(level).collect::<PyResult<Vec<_>>>()?;
        let semantics = if pycachesim { Semantics::pycachesim() } else { Semantics::default() };
        Ok(CacheSim(Mutex::new(Simulator::chain(levels, semantics).map_err(wrong)?)))
    }

    /// Runs accesses, in their order; the caches keep their contents for the next call.
    ///
    /// `addresses`: one dimension, whole numbers, in bytes. `writes`: one bool for each address; without it all accesses are loads.
    /// `access_bytes`: the size of each access.
    #[pyo3(signature = (addresses, *, writes = None, access_bytes = 1))]
    fn run(
        &self,
        py: Python<'_>,
        addresses: &Bound<'_, PyAny>,
        writes: Option<PyReadonlyArray1<'_, bool>>,
        access_bytes: u32,
    ) -> PyResult<()> {
        each_batch(py, addresses, writes, access_bytes, |batch| self.simulator().run(batch))
    }

    /// Returns the events so far as a dictionary: `levels`, innermost first, each with its `name` and numbers of accesses, and `memory`
    /// with numbers of line transfers.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (levels, memory) = py.detach(|| self.simulator().counts());
        to_python(py, &Counts { levels, memory })
    }

    fn __repr__(&self) -> String {
        let (levels, _) = self.simulator().counts();
        let misses =
            levels.iter().map(|l| format!("{} {} misses", l.name, l.counts.read_misses + l.counts.write_misses));
        format!("CacheSim({})", misses.collect::<Vec<_>>().join(", "))
    }
}

impl CacheSim {
    fn simulator(&self) -> MutexGuard<'_, Simulator> {
        // After a panic in a run, the counts still show how far the run came.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn each_batch(
    py: Python<'_>,
    addresses: &Bound<'_, PyAny>,
    writes: Option<PyReadonlyArray1<'_, bool>>,
    access_bytes: u32,
    mut each: impl FnMut(&[Access]) + Send,
) -> PyResult<()> {
    use isochrome_model::sim::Kind;
    let addresses = whole_numbers(addresses, "addresses")?;
    let addresses = in_shape(&addresses, &[addresses.as_array().len()], "addresses")?;
    let writes = writes.as_ref().map(|writes| writes.as_slice()).transpose()?;
    if let Some(writes) = writes
        && writes.len() != addresses.len()
    {
        return Err(wrong(format!("writes: {} for {} addresses", writes.len(), addresses.len())));
    }
    if access_bytes == 0 {
        return Err(wrong("access_bytes: an access touches at least one byte"));
    }
    py.detach(|| {
        let mut batch = Vec::with_capacity(BATCH);
        for (chunk, part) in addresses.chunks(BATCH).enumerate() {
            batch.clear();
            let stores = |i: usize| writes.is_some_and(|writes| writes[chunk * BATCH + i]);
            batch.extend(part.iter().enumerate().map(|(i, &address)| {
                let kind = if stores(i) { Kind::Write } else { Kind::Read };
                Access { address, bytes: access_bytes, kind }
            }));
            each(&batch);
        }
    });
    Ok(())
}

/// Counts the misses of a program for each share of a level under LRU, and returns `(misses_by_ways, misses_by_colors)`.
///
/// `addresses`: one dimension, whole numbers, in bytes. `cache_bytes`, `ways`, `line_bytes`: the level. `page_bytes`: the page size of its
/// colors. `access_bytes`: the size of each access. `misses_by_ways[n]` has the misses with n ways, n = 0 to `ways`. `misses_by_colors` is
/// a pair of arrays of one length: numbers of colors, and the misses with each number.
///
/// ```python
/// >>> loop = np.tile(np.arange(0, 32 << 10, 64), 3)
/// >>> by_ways, (colors, misses) = isochrome.miss_curve(loop, cache_bytes=64 << 10, ways=4)
/// >>> by_ways.tolist(), colors.tolist(), misses.tolist()
/// ([1536, 1536, 512, 512, 512], [1, 2, 3, 4], [1536, 512, 512, 512])
/// ```
#[pyfunction]
#[pyo3(signature = (addresses, *, cache_bytes, ways, line_bytes = 64, page_bytes = 4096, access_bytes = 1))]
#[allow(clippy::type_complexity, clippy::too_many_arguments)]
pub fn miss_curve<'py>(
    py: Python<'py>,
    addresses: &Bound<'py, PyAny>,
    cache_bytes: u64,
    ways: u32,
    line_bytes: u64,
    page_bytes: u64,
    access_bytes: u32,
) -> PyResult<(Bound<'py, PyArray1<u64>>, (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<u64>>))> {
    let geometry = Geometry::of_size(Bytes(cache_bytes), ways, Bytes(line_bytes)).ok_or_else(|| {
        wrong(format!("{ways} ways of lines of {line_bytes} bytes do not divide {cache_bytes} bytes into whole sets"))
    })?;
    let mut by_ways = StackDistances::new(geometry).map_err(wrong)?;
    let mut by_colors = ColorCurve::new(geometry, Bytes(page_bytes)).map_err(wrong)?;
    each_batch(py, addresses, None, access_bytes, |batch| {
        by_ways.run(batch);
        by_colors.run(batch);
    })?;
    let (colors, misses): (Vec<u32>, Vec<u64>) = by_colors.misses().into_iter().unzip();
    Ok((by_ways.curve().misses_by_ways.into_pyarray(py), (colors.into_pyarray(py), misses.into_pyarray(py))))
}
