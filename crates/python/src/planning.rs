//! Task sets, response times, plans.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isochrome_model::analysis::{self, Analysis, Charges, Conditions, CoreTask, Workspace, allotted};
use isochrome_model::plan::{self as planner, Method, Objective, Request};
use isochrome_model::replacement::ReplacementTest;
use isochrome_model::taskset::read::{Overrides, allocation, task_set};
use isochrome_model::taskset::{self, PARTITIONS_MAX, PartitionSet, RefillChoice, TIME_MAX_NS};
use isochrome_model::units::{Bytes, Ns};
use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use rayon::prelude::*;
use serde_json::json;

use crate::convert::{from_python, in_shape, interruptible, read, to_json, to_python, whole_numbers, wrong};

/// Tasks and the machine to run them on.
///
/// ```python
/// >>> curves = np.array([[4000, 3000, 2500, 2400], [9000, 8000, 7900, 7900]])
/// >>> tasks = isochrome.TaskSet.from_arrays(
/// ...     curves, [10_000, 20_000], task_memory_mib=[1, 1], cores=1, partitions=4, memory_mib=64, refill_ns=100
/// ... )
/// >>> tasks
/// TaskSet(2 tasks, 1 cores, 4 partitions, 64 MiB)
/// >>> tasks.wcet_ns().shape, tasks.period_ns()
/// ((2, 4), [10000, 20000])
/// ```
#[pyclass(frozen, module = "isochrome")]
pub struct TaskSet {
    pub set: taskset::TaskSet,
    warnings: Vec<String>,
    /// Test of the replacement policy in the profile.
    replacement_test: Option<ReplacementTest>,
}

#[pymethods]
impl TaskSet {
    /// Creates a task set from a dictionary with the fields of the file. Arguments given by name replace fields of the
    /// dictionary; `refill_ns` is the time in ns to refill one partition.
    #[new]
    #[pyo3(signature = (fields, *, cores = None, partitions = None, memory_mib = None, refill_ns = None))]
    fn new(
        fields: &Bound<'_, PyAny>,
        cores: Option<u32>,
        partitions: Option<u32>,
        memory_mib: Option<u64>,
        refill_ns: Option<u64>,
    ) -> PyResult<TaskSet> {
        Self::from_text(&to_json(fields)?, cores, partitions, memory_mib, refill_ns)
    }

    /// Creates a task set from JSON or TOML text. Arguments given by name replace fields of the text.
    #[staticmethod]
    #[pyo3(signature = (text, *, cores = None, partitions = None, memory_mib = None, refill_ns = None))]
    fn from_text(
        text: &str,
        cores: Option<u32>,
        partitions: Option<u32>,
        memory_mib: Option<u64>,
        refill_ns: Option<u64>,
    ) -> PyResult<TaskSet> {
        let memory = match memory_mib.map(|mib| mib.checked_mul(1 << 20)) {
            Some(None) => return Err(wrong("memory_mib: more than any machine has")),
            known => known.flatten().map(Bytes),
        };
        let refill = refill_ns.map(|time| RefillChoice::Time(Ns(time)));
        let overrides = Overrides { cores, partitions, memory, refill, ..Overrides::default() };
        let (set, warnings) = task_set(text, overrides).map_err(wrong)?;
        Ok(TaskSet { set, warnings, replacement_test: ReplacementTest::stated(text) })
    }

    /// Creates a task set from a JSON or TOML file. Arguments given by name replace fields of the file.
    #[staticmethod]
    #[pyo3(signature = (path, *, cores = None, partitions = None, memory_mib = None, refill_ns = None))]
    fn from_file(
        path: PathBuf,
        cores: Option<u32>,
        partitions: Option<u32>,
        memory_mib: Option<u64>,
        refill_ns: Option<u64>,
    ) -> PyResult<TaskSet> {
        Self::from_text(&read(&path)?, cores, partitions, memory_mib, refill_ns)
            .map_err(|error| wrong(format!("{}: {error}", path.display())))
    }

    /// Creates a task set from arrays. `wcet_ns`: tasks x partitions, in ns, with `C^p` in column p - 1. `period_ns`, `deadline_ns` (the
    /// periods if it is not given) and `task_memory_mib`: one number per task. `refill_ns`: the time in ns to refill one partition.
    #[staticmethod]
    #[pyo3(signature = (wcet_ns, period_ns, *, task_memory_mib, cores, partitions, memory_mib, refill_ns, deadline_ns = None))]
    #[allow(clippy::too_many_arguments)]
    fn from_arrays(
        wcet_ns: &Bound<'_, PyAny>,
        period_ns: &Bound<'_, PyAny>,
        task_memory_mib: &Bound<'_, PyAny>,
        cores: u32,
        partitions: u32,
        memory_mib: u64,
        refill_ns: u64,
        deadline_ns: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<TaskSet> {
        let curves = whole_numbers(wcet_ns, "wcet_ns")?;
        let &[tasks, count] = curves.as_array().shape() else {
            return Err(wrong("wcet_ns: needs two dimensions, tasks and partitions"));
        };
        let periods = whole_numbers(period_ns, "period_ns")?;
        let deadlines = whole_numbers(deadline_ns.unwrap_or(period_ns), "deadline_ns")?;
        let memory = whole_numbers(task_memory_mib, "task_memory_mib")?;
        let curves = in_shape(&curves, &[tasks, count], "wcet_ns")?;
        let [periods, deadlines, memory] = [
            in_shape(&periods, &[tasks], "period_ns")?,
            in_shape(&deadlines, &[tasks], "deadline_ns")?,
            in_shape(&memory, &[tasks], "task_memory_mib")?,
        ];
        let task = |i: usize| {
            json!({
                "name": format!("task{}", i + 1), "period_ns": periods[i], "deadline_ns": deadlines[i],
                "memory_mib": memory[i], "wcet_ns": curves[i * count..(i + 1) * count],
            })
        };
        let tasks: Vec<_> = (0..tasks).map(task).collect();
        let text = json!({"refill_ns_per_partition": refill_ns, "tasks": tasks}).to_string();
        Self::from_text(&text, Some(cores), Some(partitions), Some(memory_mib), None)
    }

    /// Returns a set with every task `copies` times. [Kim2013, §5.5]
    fn copied(&self, copies: u32) -> PyResult<TaskSet> {
        let copied = TaskSet::new_unwarned(self.set.copied(copies).map_err(wrong)?);
        Ok(TaskSet { replacement_test: self.replacement_test, ..copied })
    }

    /// Warnings about values that were raised, extended or ignored.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// Names of the tasks, in the order of every array of this set.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.set.tasks().iter().map(|task| task.name.clone()).collect()
    }

    /// Numbers of cores and partitions, bytes of memory, costs in ns, and the supply that bounds charge, as a dictionary; names of its
    /// keys end in the unit.
    #[getter]
    fn platform<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let p = self.set.platform();
        to_python(
            py,
            &json!({
                "cores": p.cores, "partitions": p.partitions, "memory_bytes": p.memory.0,
                "refill_ns": p.refill_ns, "switch_ns": p.switch_ns,
                "release_interrupt_ns": p.release_interrupt_ns, "preemption_ns": p.preemption_ns, "supply": p.supply,
            }),
        )
    }

    /// Returns `C^p` of every task in ns, as an array of tasks x partitions.
    fn wcet_ns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let curves: Vec<Vec<u64>> = self.set.tasks().iter().map(|task| task.wcet_ns.clone()).collect();
        PyArray2::from_vec2(py, &curves).map_err(wrong)
    }

    /// Returns the periods of the tasks in ns, one per task.
    fn period_ns(&self) -> Vec<u64> {
        self.set.tasks().iter().map(|task| task.period_ns).collect()
    }

    fn __len__(&self) -> usize {
        self.set.tasks().len()
    }

    fn __repr__(&self) -> String {
        let p = self.set.platform();
        format!(
            "TaskSet({} tasks, {} cores, {} partitions, {})",
            self.set.tasks().len(),
            p.cores,
            p.partitions,
            p.memory
        )
    }

    fn _repr_html_(&self) -> String {
        let row = |task: &taskset::Task| {
            let cells = [
                escaped(&task.name),
                ms(task.period_ns),
                ms(task.deadline_ns),
                task.memory.to_string(),
                ms(task.wcet_ns[0]),
                ms(task.wcet_ns[task.wcet_ns.len() - 1]),
            ];
            format!("<tr><td>{}</td></tr>", cells.join("</td><td>"))
        };
        let rows: String = self.set.tasks().iter().map(row).collect();
        format!(
            "<table><caption>{}</caption><tr><th>task</th><th>period ms</th><th>deadline ms</th><th>memory</th>\
             <th>C, 1 partition, ms</th><th>C, all, ms</th></tr>{rows}</table>",
            escaped(&self.__repr__())
        )
    }
}

impl TaskSet {
    /// Wraps a set that was not read from text, so there are no warnings.
    pub fn new_unwarned(set: taskset::TaskSet) -> TaskSet {
        TaskSet { set, warnings: Vec::new(), replacement_test: None }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn ms(time_ns: u64) -> String {
    format!("{:.4}", time_ns as f64 / 1e6)
}

/// Returns bounds for every task of a set under an allocation, with the parts that they consist of.
///
/// `allocation`: a `Plan`, or a dictionary with `cores`, each with `cpu` and `tasks`, each with `name` and `partitions`,
/// numbered from 0. `analysis`: the name of a response-time analysis, as `isochrome analyze --help` lists them. Returns one dictionary
/// for each task, with times in ns; `response_ns` is `None` if the bound exceeds the deadline.
///
/// ```python
/// >>> curves = np.array([[4000, 3000, 2500, 2400], [9000, 8000, 7900, 7900]])
/// >>> tasks = isochrome.TaskSet.from_arrays(
/// ...     curves, [10_000, 20_000], task_memory_mib=[1, 1], cores=1, partitions=4, memory_mib=64, refill_ns=100
/// ... )
/// >>> plan = isochrome.plan(tasks)
/// >>> [(bound["name"], bound["response_ns"]) for bound in isochrome.response_times(tasks, plan)]
/// [('task1', 4100), ('task2', 17500)]
/// ```
#[pyfunction]
#[pyo3(signature = (task_set, allocation, *, analysis = "kim2013"))]
pub fn response_times<'py>(
    py: Python<'py>,
    task_set: PyRef<'py, TaskSet>,
    #[pyo3(from_py_with = allocation_text)] allocation: String,
    analysis: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let analysis: Analysis = analysis.parse().map_err(wrong)?;
    let set = &task_set.set;
    let (allocated, _) = self::allocation(&allocation, set).map_err(wrong)?;
    let mut responses = Vec::new();
    for (cpu, members) in allocated {
        let (members, core) = allotted(set, &members);
        let bounds = analysis::analyze(&core, Conditions::of(set), analysis);
        responses.extend(members.iter().zip(bounds).map(|(task, bound)| bound.of_task(set, *task, cpu)));
    }
    to_python(py, &responses)
}

fn allocation_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<Plan>() {
        Ok(plan) => serde_json::to_string(&plan.get().0).map_err(wrong),
        Err(_) => to_json(value),
    }
}

/// Returns bounds for every task of many cores, in ns; -1 if a bound exceeds the deadline.
///
/// `wcet_ns`, `period_ns`, `deadline_ns`: sets x tasks, every row highest priority first. Without `deadline_ns`, deadlines are
/// the periods. `partitions`: bit masks of the partitions of each task, bit p for partition p, sets x tasks; for more than 64
/// partitions, sets x tasks x words of 64 bits. Without `partitions`, tasks have no cache. `useful`: masks of the partitions that a task uses again
/// after a preemption; without it, all its partitions. `refill_ns`: the time to refill one partition; `switch_ns`,
/// `release_interrupt_ns`, `preemption_ns`: costs of each switch, release and preemption, in ns. `threads`: number of CPUs to use.
///
/// ```python
/// >>> isochrome.response_times_batch([[2000, 5000], [2000, 9000]], [[10_000, 20_000], [10_000, 12_000]]).tolist()
/// [[2000, 7000], [2000, -1]]
/// ```
#[pyfunction]
#[pyo3(signature = (wcet_ns, period_ns, *, deadline_ns = None, partitions = None, useful = None, refill_ns = 0, switch_ns = 0,
    release_interrupt_ns = 0, preemption_ns = 0, analysis = "kim2013", threads = 1))]
#[allow(clippy::too_many_arguments)]
pub fn response_times_batch<'py>(
    py: Python<'py>,
    wcet_ns: &Bound<'py, PyAny>,
    period_ns: &Bound<'py, PyAny>,
    deadline_ns: Option<&Bound<'py, PyAny>>,
    partitions: Option<&Bound<'py, PyAny>>,
    useful: Option<&Bound<'py, PyAny>>,
    refill_ns: u64,
    switch_ns: u64,
    release_interrupt_ns: u64,
    preemption_ns: u64,
    analysis: &str,
    threads: usize,
) -> PyResult<Bound<'py, PyArray2<i64>>> {
    let analysis: Analysis = analysis.parse().map_err(wrong)?;
    let wcet = whole_numbers(wcet_ns, "wcet_ns")?;
    let &[sets, tasks] = wcet.as_array().shape() else {
        return Err(wrong("wcet_ns: needs two dimensions, sets and tasks"));
    };
    let period = whole_numbers(period_ns, "period_ns")?;
    let deadline = whole_numbers(deadline_ns.unwrap_or(period_ns), "deadline_ns")?;
    let wcet = in_shape(&wcet, &[sets, tasks], "wcet_ns")?;
    let period = in_shape(&period, &[sets, tasks], "period_ns")?;
    let deadline = in_shape(&deadline, &[sets, tasks], "deadline_ns")?;
    let masks = |masks: Option<&Bound<'py, PyAny>>, name: &str| masks.map(|m| whole_numbers(m, name)).transpose();
    let (partitions, useful) = (masks(partitions, "partitions")?, masks(useful, "useful")?);
    let words = partitions.as_ref().map_or(1, |array| array.as_array().shape().get(2).copied().unwrap_or(1));
    if words > PARTITIONS_MAX as usize / 64 {
        return Err(wrong(format!("partitions: {words} words of 64 are more than {PARTITIONS_MAX} partitions")));
    }
    let shape = match &partitions {
        Some(array) if array.as_array().ndim() == 3 => vec![sets, tasks, words],
        _ => vec![sets, tasks],
    };
    let partitions = partitions.as_ref().map(|array| in_shape(array, &shape, "partitions")).transpose()?;
    let useful = useful.as_ref().map(|array| in_shape(array, &shape, "useful")).transpose()?;
    let responses = py.detach(|| {
        let place = |i: usize| format!("[{}, {}]", i / tasks, i % tasks);
        let late = |&(i, &d): &(usize, &u64)| d > period[i] || d > TIME_MAX_NS || d == 0;
        if let Some((i, d)) = deadline.iter().enumerate().find(late) {
            let problem = format!("{d} is not from 1 to the period {}, nor below 2^63", period[i]);
            return Err(wrong(format!("deadline_ns{}: {problem}", place(i))));
        }
        let set_of = |masks: Option<&[u64]>, at: usize| {
            masks.map(|masks| PartitionSet::from_words(&masks[at * words..(at + 1) * words]))
        };
        let mut responses = vec![-1i64; sets * tasks];
        let charges = Charges { refill_ns, switch_ns, release_interrupt_ns, preemption_ns, ..Charges::default() };
        let analyze = |(workspace, core): &mut (Workspace, Vec<CoreTask>), (set, row): (usize, &mut [i64])| {
            core.clear();
            core.extend((set * tasks..(set + 1) * tasks).map(|at| {
                let all = set_of(partitions, at).unwrap_or_default();
                let useful = set_of(useful, at).map_or(all, |useful| useful.intersection(&all));
                let deadline_ns = deadline[at];
                CoreTask { deadline_ns, useful, ..CoreTask::new(wcet[at], period[at], all) }
            }));
            let verdicts = analysis::responses(core, charges, analysis, workspace);
            for (cell, verdict) in row.iter_mut().zip(verdicts) {
                *cell = verdict.response_ns().map_or(-1, |time| time as i64);
            }
        };
        if tasks == 0 {
            return Ok(responses);
        }
        if threads <= 1 {
            let mut state = <(Workspace, Vec<CoreTask>)>::default();
            responses.chunks_mut(tasks).enumerate().for_each(|row| analyze(&mut state, row));
        } else {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(wrong)?;
            pool.install(|| {
                let rows = responses.par_chunks_mut(tasks).enumerate();
                rows.with_min_len(256).for_each_init(Default::default, analyze);
            });
        }
        Ok(responses)
    })?;
    responses.into_pyarray(py).reshape([sets, tasks])
}

/// Parameters of a request to the planner, parsed from their names.
pub struct PlanParameters {
    pub method: Method,
    pub objective: Objective,
    pub then: Vec<Objective>,
    pub analysis: Analysis,
    pub time_limit: Option<Duration>,
    pub checks_limit: Option<u64>,
}

impl PlanParameters {
    pub fn named(
        method: &str,
        objective: &str,
        then: &[String],
        analysis: &str,
        time_limit_s: Option<f64>,
        checks_limit: Option<u64>,
    ) -> PyResult<PlanParameters> {
        Ok(PlanParameters {
            method: method.parse().map_err(wrong)?,
            objective: objective.parse().map_err(wrong)?,
            then: then.iter().map(|name| name.parse()).collect::<Result<_, _>>().map_err(wrong)?,
            analysis: analysis.parse().map_err(wrong)?,
            time_limit: time_limit_s.map(Duration::try_from_secs_f64).transpose().map_err(wrong)?,
            checks_limit,
        })
    }

    /// Calls `work` with a request made of these parameters. The request stops at `stop`, at the time limit, or after
    /// `checks_limit` checks of whether to stop.
    pub fn request<T>(&self, stop: &AtomicBool, work: impl FnOnce(&Request) -> T) -> T {
        let (start, checks) = (Instant::now(), AtomicU64::new(0));
        let should_stop = || {
            let checks = checks.fetch_add(1, Ordering::Relaxed);
            stop.load(Ordering::Relaxed)
                || self.checks_limit.is_some_and(|limit| checks >= limit)
                || self.time_limit.is_some_and(|limit| start.elapsed() >= limit)
        };
        work(&Request {
            method: self.method,
            objective: self.objective,
            then: &self.then,
            analysis: self.analysis,
            should_stop: &should_stop,
            progress: &|_| {},
        })
    }
}

/// Runs `work` on one thread, so that it finds the same result, and stops at the same check, on every machine.
pub fn on_one_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(|error| error.to_string())?;
    Ok(pool.install(work))
}

/// A plan: the core, the partitions and the response time of every task.
#[pyclass(frozen, module = "isochrome")]
pub struct Plan(planner::Plan);

#[pymethods]
impl Plan {
    /// Whether every task is on a core and meets its deadline.
    #[getter]
    fn schedulable(&self) -> bool {
        self.0.schedulable
    }

    /// Number of partitions in use.
    #[getter]
    fn partitions_used(&self) -> u32 {
        self.0.partitions_used
    }

    /// Sum of the utilizations of the cores, cache delays included: 2.0 is two full cores.
    #[getter]
    fn utilization(&self) -> f64 {
        self.0.utilization
    }

    /// Distance of the plan from the proven bound, as a share of the plan. 0 means that the plan is proven optimal; `None` that nothing is
    /// proven.
    #[getter]
    fn gap(&self) -> Option<f64> {
        self.0.gap
    }

    /// Returns the whole plan as a dictionary, as in its file.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0)
    }

    /// Draws which task uses which partition on which core, as SVG. `partitions`: number of partitions of the machine.
    #[pyo3(signature = (*, partitions))]
    fn to_svg(&self, partitions: u32) -> String {
        planner::color_map(&self.0, partitions)
    }

    fn __repr__(&self) -> String {
        let planner::Plan { schedulable, partitions_used, utilization, .. } = &self.0;
        format!(
            "Plan(schedulable={}, partitions_used={partitions_used}, utilization={utilization:.4})",
            if *schedulable { "True" } else { "False" }
        )
    }

    fn _repr_html_(&self) -> String {
        let highest = self.0.cores.iter().flat_map(|core| &core.partitions).max();
        let partitions = highest.map_or(1, |highest| highest + 1);
        format!("<p>{}</p>{}", escaped(&self.__repr__()), planner::color_map(&self.0, partitions))
    }
}

/// Plans a task set: assigns every task to a core and to cache partitions so that all deadlines hold and `objective` is met as well as possible.
///
/// `method`, `objective`, `analysis`: names as `isochrome plan --help` lists them. `then`: further objectives. `time_limit_s`: the search ends after
/// this many seconds with the best plan so far. `checks_limit`: maximum number of times that the search may check whether to stop, a limit that does
/// not depend on the machine.
///
/// ```python
/// >>> curves = np.array([[4000, 3000, 2500, 2400], [9000, 8000, 7900, 7900]])
/// >>> tasks = isochrome.TaskSet.from_arrays(
/// ...     curves, [10_000, 20_000], task_memory_mib=[1, 1], cores=1, partitions=4, memory_mib=64, refill_ns=100
/// ... )
/// >>> isochrome.plan(tasks)
/// Plan(schedulable=True, partitions_used=1, utilization=0.8750)
/// ```
#[pyfunction]
#[pyo3(signature = (task_set, *, method = "optimal", objective = "partitions", then = Vec::new(), analysis = "kim2013",
    time_limit_s = None, checks_limit = None))]
#[allow(clippy::too_many_arguments)]
pub fn plan(
    py: Python<'_>,
    task_set: PyRef<'_, TaskSet>,
    method: &str,
    objective: &str,
    then: Vec<String>,
    analysis: &str,
    time_limit_s: Option<f64>,
    checks_limit: Option<u64>,
) -> PyResult<Plan> {
    let parameters = PlanParameters::named(method, objective, &then, analysis, time_limit_s, checks_limit)?;
    let set = &task_set.set;
    let plan = interruptible(py, |stop| parameters.request(stop, |request| planner::plan(set, request)))?;
    plan.map(|plan| Plan(plan.checked_against(task_set.replacement_test))).map_err(wrong)
}

/// A comparison of all methods on one set. [Kim2013, §5.5]
#[pyclass(frozen, module = "isochrome")]
#[derive(Clone)]
pub struct Comparison(planner::Comparison);

#[pymethods]
impl Comparison {
    /// Creates a comparison from a dictionary that `to_dict` returned.
    #[staticmethod]
    fn from_dict(fields: &Bound<'_, PyAny>) -> PyResult<Comparison> {
        let comparison: planner::Comparison = from_python(fields)?;
        let compared = |method| comparison.methods.iter().any(|compared| compared.method == method);
        match [Method::Bfd, Method::Wfd, Method::Cata, Method::Optimal].into_iter().find(|method| !compared(*method)) {
            Some(method) => Err(wrong(format!("methods: {method} is missing"))),
            None => Ok(Comparison(comparison)),
        }
    }

    /// Returns the whole comparison as a dictionary: numbers of `tasks`, `cores` and `partitions`, `memory` in bytes, and `methods`, one
    /// dictionary each.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0)
    }

    /// Returns the comparison as a table in Markdown.
    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

/// Plans a set by every method, for the fewest partitions and for the least utilization. Planning runs on one thread, so that
/// among equally good plans it finds the same one on every machine. `analysis`, `time_limit_s`, `checks_limit`: as for `plan`.
#[pyfunction]
#[pyo3(signature = (task_set, *, analysis = "kim2013", time_limit_s = None, checks_limit = None))]
pub fn compare(
    py: Python<'_>,
    task_set: PyRef<'_, TaskSet>,
    analysis: &str,
    time_limit_s: Option<f64>,
    checks_limit: Option<u64>,
) -> PyResult<Comparison> {
    let parameters = PlanParameters::named("optimal", "partitions", &[], analysis, time_limit_s, checks_limit)?;
    let set = &task_set.set;
    let comparison = interruptible(py, |stop| {
        let compared =
            || parameters.request(stop, |request| planner::compare(set, request)).map_err(|error| error.to_string());
        on_one_thread(compared).and_then(|comparison| comparison)
    })?;
    comparison.map(Comparison).map_err(wrong)
}

fn unwrapped(comparisons: &[PyRef<'_, Comparison>]) -> Vec<planner::Comparison> {
    comparisons.iter().map(|comparison| comparison.0.clone()).collect()
}

/// Compares results with those of [Kim2013, §5.5]. Returns rows of three texts: the quantity, its value here, and its value in
/// the paper.
#[pyfunction]
pub fn beside_kim2013(comparisons: Vec<PyRef<'_, Comparison>>) -> Vec<[String; 3]> {
    planner::beside_kim2013(&unwrapped(&comparisons))
}

/// Draws [Kim2013, Figures 14 to 16] for these comparisons, as SVG.
#[pyfunction]
pub fn figures_14_to_16(comparisons: Vec<PyRef<'_, Comparison>>) -> String {
    planner::figures_14_to_16(&unwrapped(&comparisons))
}
