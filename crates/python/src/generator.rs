//! Random task sets, and plans for many of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use isochrome_model::analysis::CoreTask;
use isochrome_model::plan;
use isochrome_model::stats;
use isochrome_model::taskset::generate;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::{from_python, interruptible, to_python, wrong};
use crate::planning::{PlanParameters, TaskSet, on_one_thread};

/// The distribution from which task sets are drawn. Set number `index` under a `seed` is the same on every machine.
///
/// Fields, all by name and all optional: `tasks`, `utilization`, `utilizations` (`uunifast`, `uunifast-discard`, `dirichlet`, `capped`),
/// `caps`, `period_ns` (range), `period_step_ns`, `deadline` (range of shares), `classes` (each with `weight`, `sensitivity` and
/// `knee_partitions`), `profiles_ns`, `task_memory_mib` (range), `task_partitions` (range), `cores`, `partitions`, `memory_mib`,
/// `refill_ns_per_partition`, `switch_ns`. Names end in the unit; `utilization` is the sum over the tasks of a set, 1.0 for one full core.
///
/// ```python
/// >>> generator = isochrome.Generator(tasks=8, utilization=0.75)
/// >>> generator.utilizations(seed=1, count=100).shape
/// (100, 8)
/// ```
#[pyclass(frozen, module = "isochrome")]
pub struct Generator(generate::Generator);

/// Sets that could be made, and the numbers of the other sets with the reason why each could not be made.
type Drawn<T> = (Vec<(u64, T)>, Vec<(u64, String)>);

fn drawn<T, E: ToString>(first: u64, count: u64, make: impl Fn(u64) -> Result<T, E>) -> Drawn<T> {
    let (mut made, mut failed) = (Vec::new(), Vec::new());
    for index in first..first.saturating_add(count) {
        match make(index) {
            Ok(set) => made.push((index, set)),
            Err(error) => failed.push((index, error.to_string())),
        }
    }
    (made, failed)
}

#[pymethods]
impl Generator {
    #[new]
    #[pyo3(signature = (**fields))]
    fn new(py: Python<'_>, fields: Option<Bound<'_, PyDict>>) -> PyResult<Generator> {
        let fields = fields.unwrap_or_else(|| PyDict::new(py));
        let generator: generate::Generator = from_python(&fields)?;
        generator.check().map_err(wrong)?;
        Ok(Generator(generator))
    }

    /// Returns all fields as a dictionary.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0)
    }

    /// Returns set number `index` under `seed`.
    #[pyo3(signature = (*, seed, index))]
    fn task_set(&self, seed: u64, index: u64) -> PyResult<TaskSet> {
        Ok(TaskSet::new_unwarned(self.0.task_set(seed, index).map_err(wrong)?))
    }

    /// Returns the utilizations, 0 to 1, of `count` sets from number `first` on, as an array of sets x tasks.
    #[pyo3(signature = (*, seed, count, first = 0))]
    fn utilizations<'py>(
        &self,
        py: Python<'py>,
        seed: u64,
        count: u64,
        first: u64,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let drawn = py.detach(|| {
            (first..first.saturating_add(count))
                .map(|index| self.0.utilizations(seed, index))
                .collect::<Result<Vec<_>, _>>()
        });
        PyArray2::from_vec2(py, &drawn.map_err(wrong)?).map_err(wrong)
    }

    /// Returns `count` sets on one core each, from number `first` on, as a dictionary of arrays of sets x tasks, highest
    /// priority first. Its keys are the names that `response_times_batch` takes (`wcet_ns`, `period_ns`, `deadline_ns`,
    /// `partitions`), `index` for the numbers of the sets, and `failed` for the numbers of the sets that could not be made,
    /// each with the reason. Times are in ns; `partitions` are masks of 64 bits, so there may be at most 64.
    #[pyo3(signature = (*, seed, count, first = 0))]
    fn batch<'py>(&self, py: Python<'py>, seed: u64, count: u64, first: u64) -> PyResult<Bound<'py, PyDict>> {
        if self.0.partitions > 64 {
            return Err(wrong(format!("partitions: {} do not fit into masks of 64 bits", self.0.partitions)));
        }
        let (made, failed) = py.detach(|| drawn(first, count, |index| self.0.core(seed, index)));
        let (sets, tasks) = (made.len(), self.0.tasks);
        let column = |of: fn(&CoreTask) -> u64| {
            let values: Vec<u64> = made.iter().flat_map(|(_, core)| core.iter().map(of)).collect();
            values.into_pyarray(py).reshape([sets, tasks])
        };
        let batch = PyDict::new(py);
        batch.set_item("wcet_ns", column(|task| task.wcet_ns)?)?;
        batch.set_item("period_ns", column(|task| task.period_ns)?)?;
        batch.set_item("deadline_ns", column(|task| task.deadline_ns)?)?;
        batch.set_item("partitions", column(|task| task.partitions.iter().map(|partition| 1 << partition).sum())?)?;
        batch.set_item("index", made.iter().map(|(index, _)| *index).collect::<Vec<_>>().into_pyarray(py))?;
        batch.set_item("failed", failed)?;
        Ok(batch)
    }

    fn __repr__(&self) -> String {
        format!("Generator({} tasks, utilization {}, {:?})", self.0.tasks, self.0.utilization, self.0.utilizations)
    }
}

/// Plans `count` sets of a generator from number `first` on, and returns `(index, schedulable, partitions_used, utilization, failed)`:
/// arrays with one element for each set that was planned, and a list of the numbers of the others, each with the reason.
///
/// Each set is planned on one thread, so that with `checks_limit` the same search stops at the same point on every machine.
#[pyfunction]
#[pyo3(signature = (generator, *, seed, count, method, first = 0, objective = "partitions", analysis = "kim2013", checks_limit = None))]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn plan_batch<'py>(
    py: Python<'py>,
    generator: PyRef<'py, Generator>,
    seed: u64,
    count: u64,
    method: &str,
    first: u64,
    objective: &str,
    analysis: &str,
    checks_limit: Option<u64>,
) -> PyResult<(
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<bool>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<f64>>,
    Vec<(u64, String)>,
)> {
    let parameters = PlanParameters::named(method, objective, &[], analysis, None, checks_limit)?;
    let generator = &generator.0;
    let one = |index: u64, stop: &AtomicBool| {
        let set = generator.task_set(seed, index).map_err(|error| error.to_string())?;
        let planned = catch_unwind(AssertUnwindSafe(|| parameters.request(stop, |request| plan::plan(&set, request))));
        planned.map_err(|_| "the planner failed".to_owned())?.map_err(|error| error.to_string())
    };
    let (made, failed) =
        interruptible(py, |stop| on_one_thread(|| drawn(first, count, |index| one(index, stop))))?.map_err(wrong)?;
    Ok((
        made.iter().map(|(index, _)| *index).collect::<Vec<_>>().into_pyarray(py),
        made.iter().map(|(_, plan)| plan.schedulable).collect::<Vec<_>>().into_pyarray(py),
        made.iter().map(|(_, plan)| plan.partitions_used).collect::<Vec<_>>().into_pyarray(py),
        made.iter().map(|(_, plan)| plan.utilization).collect::<Vec<_>>().into_pyarray(py),
        failed,
    ))
}

/// Returns p-values of tests of whether vectors are uniform over all vectors with the sum `total` and no element above `caps`.
/// Small p-values show that they are not uniform. `vectors`: vectors x elements; `caps`: one for each element.
#[pyfunction]
#[pyo3(signature = (vectors, *, total, caps))]
pub fn uniformity(py: Python<'_>, vectors: Vec<Vec<f64>>, total: f64, caps: Vec<f64>) -> PyResult<Vec<f64>> {
    let found = py.detach(|| generate::uniformity(&vectors, total, &caps));
    let most = generate::UNIFORMITY_TASKS_MAX;
    found.ok_or_else(|| wrong(format!("vectors: need from 2 to {most} numbers each, as many as there are caps")))
}

/// Returns the 95 % interval, low and high, of a probability after `successes` of `n` trials. [Wilson1927]
///
/// ```python
/// >>> low, high = isochrome.proportion_interval(90, 100)
/// >>> round(low, 3), round(high, 3)
/// (0.826, 0.945)
/// ```
#[pyfunction]
pub fn proportion_interval(successes: u64, n: u64) -> (f64, f64) {
    stats::proportion_interval(successes, n)
}
