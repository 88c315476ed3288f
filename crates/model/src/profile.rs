//! Execution times of tasks that run alone, by their share of the cache. [Kim2013, Figure 10]
//!
//! A *profiling run* runs some jobs of one task on one number of partitions. Profiling runs of all tasks and shares alternate in random
//! order, so that a disturbance affects all of them alike. Shares are bisected where the curve falls: first 1 and all partitions are
//! measured, then the middle of every interval over which the typical time changes.

mod runs;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::machine::{Fact, Source};
use crate::replacement::ReplacementTest;
use crate::supply::CpuSupply;
use crate::taskset::programs::{Declared, Partitioning, Program, Programs};
use crate::taskset::{Others, Scope, TIME_MAX_NS};
use crate::units::{Bytes, CpuId, Ns};

pub use runs::{CENSORED_MAX, CONFIDENCE, Execution, Point, ProfilingRun};

/// Version of the profile file.
pub const SCHEMA: &str = "isochrome-profile/1";

/// A task whose typical utilization differs by at least this between one partition and all of them is cache-sensitive. [Kim2013, §5.2]
/// calls tasks sensitive whose utilization differs by 10.8 % and 11.8 %, and insensitive those with 0.54 % and 0.56 %.
pub const SENSITIVE: f64 = 0.01;

/// A task set with measured execution times, in the form that `plan` reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// Version of the format: [`SCHEMA`].
    pub schema: String,
    /// Fingerprint of the machine on which the times were measured; absent if the times come from a machine model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Description of how the times were obtained.
    pub by: String,
    /// SHA-256 of the task set that was measured.
    pub input: String,
    /// Margin that is added to every high-water mark, as a share of the mark.
    pub margin: f64,
    /// CPUs for the tasks.
    pub cpus: Vec<CpuId>,
    /// Cache level that is partitioned.
    pub level: u8,
    /// Means by which the level is partitioned.
    pub method: Partitioning,
    /// Number of CPUs, N_C.
    pub cores: u32,
    /// Whether all cores share the partitions, or each core has its own.
    pub cache: Scope,
    /// Number of partitions, N_P.
    pub partitions: u32,
    /// Bytes of memory that can be colored.
    pub memory_bytes: Bytes,
    /// Time to refill a partition if the displaced lines are clean, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_ns_per_partition: Option<u64>,
    /// Time to refill a partition if the displaced lines are dirty and have to be written back, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_dirty_ns_per_partition: Option<u64>,
    /// Measured costs from which these refill times and the other costs charged to the set come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    /// Test of the replacement policy of the level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement_test: Option<ReplacementTest>,
    /// Supply of the CPUs, which bounds charge.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supply: Vec<Fact<CpuSupply>>,
    /// Whether everything requested was measured. Measuring an incomplete profile continues where it stopped.
    pub complete: bool,
    /// Tasks with their measured execution times.
    pub tasks: Vec<TaskProfile>,
    /// Other fields of the task set, carried along for the planner.
    #[serde(flatten)]
    pub others: Others,
}

/// Fields of a set and of a task that a profile determines itself. They are not carried along from a file.
const FOUND: [&str; 12] = [
    "schema",
    "fingerprint",
    "by",
    "input",
    "margin",
    "complete",
    "partitions",
    "measured",
    "utilization_difference",
    "wcet_ns",
    "costs",
    "replacement_test",
];

impl Profile {
    /// Carries over all fields of the task set beyond its programs, for the planner. Some fields, such as the refill times, replace those
    /// of the profile; the others are added. Returns warnings about fields that are measured anew instead. Fails if a value is of the wrong
    /// kind.
    pub fn carry(&mut self, declared: &Declared) -> Result<Vec<String>, serde_json::Error> {
        let mut warnings = Vec::new();
        let mut known = serde_json::to_value(&*self)?;
        let carried = |others: &Others, known: &mut serde_json::Value| {
            let carried = others.iter().filter(|(name, _)| !FOUND.contains(&name.as_str()));
            carried.for_each(|(name, value)| known[name] = value.clone());
        };
        carried(&declared.set, &mut known);
        for (index, others) in declared.tasks.iter().enumerate() {
            carried(others, &mut known["tasks"][index]);
            if others.contains_key("wcet_ns") && !others.contains_key("measured") {
                let name = &self.tasks[index].program.name;
                warnings.push(format!(
                    "tasks[{index}].wcet_ns: the execution times of {name} are measured, and these are not used"
                ));
            }
        }
        *self = serde_json::from_value(known)?;
        Ok(warnings)
    }

    /// Makes the analysis charge the measured `costs`. Costs that the set states itself are kept, except that the longer of a stated and a
    /// measured refill time is charged. `share`: number of colors that form a partition.
    pub fn charge(&mut self, costs: Costs, share: f64) {
        // The analysis charges the longer of the clean and the dirty refill time. The other one is kept for comparison.
        let of_partition = costs.refill.map(|refill| (refill.charged_ns.0 as f64 * share).ceil() as u64);
        self.refill_dirty_ns_per_partition = self.refill_dirty_ns_per_partition.max(of_partition);
        for (name, cost) in costs.of_every_set() {
            self.others.entry(name.to_owned()).or_insert_with(|| cost.charged_ns.0.into());
        }
        self.costs = Some(costs);
    }

    /// Makes the analysis charge the measured supply of the CPUs of the profile. A supply that the set declares itself is kept.
    pub fn charge_supply(&mut self, measured: &[Fact<CpuSupply>]) {
        if self.supply.iter().all(|fact| fact.source == Source::Measured) {
            let of_these = measured.iter().filter(|fact| self.cpus.contains(&fact.value.cpu));
            self.supply = of_these.cloned().collect();
        }
    }

    /// Creates a profile of `programs` in which nothing is measured yet. `input`: SHA-256 of their task set. `margin`: margin added to
    /// every high-water mark, as a share of the mark.
    pub fn begin(programs: Programs, partitions: u32, input: String, margin: f64) -> Profile {
        Profile {
            schema: SCHEMA.to_owned(),
            fingerprint: None,
            by: String::new(),
            input,
            margin,
            cores: programs.cpus.len() as u32,
            cpus: programs.cpus,
            level: programs.level,
            method: programs.method,
            cache: Scope::Private,
            partitions,
            memory_bytes: Bytes(0),
            refill_ns_per_partition: None,
            refill_dirty_ns_per_partition: None,
            costs: None,
            replacement_test: None,
            supply: Vec::new(),
            complete: false,
            tasks: programs.tasks.into_iter().map(TaskProfile::of).collect(),
            others: Others::new(),
        }
    }
}

/// A task with its measured execution times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskProfile {
    /// The program.
    #[serde(flatten)]
    pub program: Program,
    /// C^p for p = 1, 2, ..., in ns: non-increasing, margin included. Empty for best-effort programs, and before the times are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wcet_ns: Vec<u64>,
    /// Longest time from release to completion in which the task did not execute, margin included, or the jitter that the task set states
    /// if that is longer; in ns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jitter_ns: u64,
    /// Measurements by number of partitions, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Point>,
    /// Typical utilization with the fewest partitions minus typical utilization with all partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_difference: Option<f64>,
    /// Other fields that the task set has for the task, carried along for the planner.
    #[serde(flatten)]
    pub others: Others,
}

fn is_zero(time: &u64) -> bool {
    *time == 0
}

/// Parameters of measuring a profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Least number of jobs for each number of partitions.
    pub jobs: u64,
    /// Number of jobs of one profiling run.
    pub jobs_per_run: u64,
    /// Largest share by which typical times may differ over an interval that counts as flat.
    pub flat: f64,
    /// Seed of the random order of profiling runs.
    pub seed: u64,
}

impl Profile {
    /// Returns the programs of the profile.
    pub fn programs(&self) -> Programs {
        let tasks = self.tasks.iter().map(|task| task.program.clone()).collect();
        Programs { cpus: self.cpus.clone(), level: self.level, method: self.method, tasks }
    }

    /// Measures the jobs that the points lack, starting from the points measured so far.
    ///
    /// `run` makes a profiling run: it gets the index of a task, a number of partitions and a number of jobs, and returns `None` to stop.
    /// `keep` is called after every profiling run and at the end, to save the profile.
    pub fn measure<E>(
        &mut self,
        request: Request,
        mut run: impl FnMut(usize, u32, u64) -> Result<Option<ProfilingRun>, E>,
        mut keep: impl FnMut(&Profile) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut random = fastrand::Rng::with_seed(request.seed);
        let partitions = self.partitions;
        self.complete = false;
        loop {
            let mut wanted: Vec<(usize, u32)> = Vec::new();
            for (index, task) in self.tasks.iter_mut().enumerate().filter(|(_, task)| !task.program.best_effort) {
                task.add_points(partitions, request.flat);
                let unfinished = task.measured.iter().filter(|point| point.jobs() < request.jobs);
                wanted.extend(unfinished.map(|point| (index, point.partitions)));
            }
            if wanted.is_empty() {
                self.complete = true;
                self.conclude();
                return keep(self);
            }
            random.shuffle(&mut wanted);
            for (index, partitions) in wanted {
                let Some(seen) = run(index, partitions, request.jobs_per_run)? else { return Ok(()) };
                let points = &mut self.tasks[index].measured;
                if let Some(point) = points.iter_mut().find(|point| point.partitions == partitions) {
                    point.runs.push(seen);
                }
                keep(self)?;
            }
        }
    }

    /// Computes C^p, jitter and utilization differences from the measurements.
    fn conclude(&mut self) {
        for task in self.tasks.iter_mut().filter(|task| !task.measured.is_empty()) {
            let with_margin = |time: u64| ((time as f64 * (1.0 + self.margin)).ceil() as u64).clamp(1, TIME_MAX_NS);
            task.wcet_ns = envelope(&task.measured, self.partitions).into_iter().map(with_margin).collect();
            let waiting = task.measured.iter().flat_map(|point| &point.runs).map(|run| run.waiting_ns).max();
            task.jitter_ns = task.jitter_ns.max(waiting.filter(|waiting| *waiting > 0).map_or(0, with_margin));
            let typical = |point: Option<&Point>| point.map_or(0, Point::typical_ns) as f64;
            let difference = typical(task.measured.first()) - typical(task.measured.last());
            task.utilization_difference = Some(difference / Ns::max(task.program.period, Ns(1)).0 as f64);
        }
    }
}

impl TaskProfile {
    /// Creates a task without measurements.
    pub fn of(program: Program) -> TaskProfile {
        TaskProfile {
            program,
            wcet_ns: Vec::new(),
            jitter_ns: 0,
            measured: Vec::new(),
            utilization_difference: None,
            others: Others::new(),
        }
    }

    /// Returns whether the task is cache-sensitive, by [`SENSITIVE`]; `None` before it is measured.
    pub fn is_sensitive(&self) -> Option<bool> {
        self.utilization_difference.map(|difference| difference >= SENSITIVE)
    }

    /// Adds points for 1 and for all partitions, and for the middle of every interval that is not flat.
    fn add_points(&mut self, partitions: u32, flat: f64) {
        let points = &mut self.measured;
        let mut wanted = vec![1, partitions];
        for pair in points.windows(2) {
            let (few, many) = (pair[0].typical_ns(), pair[1].typical_ns());
            let known = !pair[0].runs.is_empty() && !pair[1].runs.is_empty();
            if known && few as f64 > many as f64 * (1.0 + flat) {
                wanted.push((pair[0].partitions + pair[1].partitions) / 2);
            }
        }
        for partitions in wanted {
            if let Err(index) = points.binary_search_by_key(&partitions, |point| point.partitions) {
                points.insert(index, Point { partitions, runs: Vec::new() });
            }
        }
    }
}

/// Returns, for p = 1 to `partitions`, the longest time seen with p partitions or more. If p itself was not measured, the nearest smaller
/// number counts as well. This is the least non-increasing curve above all points. It is empty without a point for one partition.
///
/// `points`: ascending.
pub fn envelope(points: &[Point], partitions: u32) -> Vec<u64> {
    let at_least = |p: u32| {
        let first = points.partition_point(|point| point.partitions <= p).checked_sub(1)?;
        points[first..].iter().map(Point::high_water_ns).max()
    };
    (1..=partitions).map_while(at_least).collect()
}
