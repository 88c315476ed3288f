//! How long a task executes alone, against its share of the cache. [Kim2013, Figure 10]
//!
//! A *profiling run* runs some jobs of one task on one number of partitions. Profiling runs of all tasks and shares alternate in random
//! order, so that a disturbance affects all of them alike. Shares are bisected where the curve falls: first 1 and all partitions, then the middle of every
//! stretch over which the typical time changes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{HighWaterMark, exceedance_at};
use crate::taskset::programs::{Partitioning, Program, Programs};
use crate::taskset::{Scope, TIME_MAX_NS};
use crate::units::{Bytes, CpuId, Ns};

/// Version of the file.
pub const SCHEMA: &str = "isochrome-profile/1";

/// Confidence level of the statement on how often jobs exceed a high-water mark.
pub const CONFIDENCE: f64 = 0.95;

/// A task whose typical utilization differs by at least this between one partition and all of them is cache-sensitive. [Kim2013, §5.2] calls
/// tasks sensitive that differ by 10.8 % and 11.8 %, and insensitive those of 0.54 % and 0.56 %.
pub const SENSITIVE: f64 = 0.01;

/// A task set with measured execution times: what `plan` reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// [`SCHEMA`].
    pub schema: String,
    /// The machine measured on; absent where times come from a modeled one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// How the times were found, in words.
    pub by: String,
    /// SHA-256 of the task set measured.
    pub input: String,
    /// What of every high-water mark is added to it.
    pub margin: f64,
    /// CPUs for the tasks.
    pub cpus: Vec<CpuId>,
    /// Cache level.
    pub level: u8,
    /// By what means it is partitioned.
    pub method: Partitioning,
    /// CPUs, N_C.
    pub cores: u32,
    /// Whose partitions they are.
    pub cache: Scope,
    /// Partitions, N_P.
    pub partitions: u32,
    /// Memory that can be colored.
    pub memory_bytes: Bytes,
    /// Time to refill a partition when what is displaced is clean, and when it is dirty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_ns_per_partition: Option<u64>,
    /// The same when it is written back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_dirty_ns_per_partition: Option<u64>,
    /// Whether everything asked for was measured; a profile that was interrupted goes on where it is.
    pub complete: bool,
    /// The tasks.
    pub tasks: Vec<TaskProfile>,
}

impl Profile {
    /// A profile of `programs` in which nothing is measured yet. `input`: SHA-256 of their task set; `margin`: share of every high-water mark
    /// that is added to it.
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
            complete: false,
            tasks: programs.tasks.into_iter().map(TaskProfile::of).collect(),
        }
    }
}

/// A task with its measured execution times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskProfile {
    /// The program.
    #[serde(flatten)]
    pub program: Program,
    /// C^p for p = 1, 2, ...: non-increasing, margin included. None for programs without a period, and before they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wcet_ns: Vec<u64>,
    /// Longest time from release to completion in which the task did not execute, margin included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jitter_ns: u64,
    /// What was seen, by number of partitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Point>,
    /// Difference of typical utilization between the fewest and all partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_difference: Option<f64>,
}

fn is_zero(time: &u64) -> bool {
    *time == 0
}

/// All profiling runs of a task on one number of partitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Partitions.
    pub partitions: u32,
    /// The profiling runs, in the order in which they were made.
    #[serde(alias = "visits")]
    pub runs: Vec<ProfilingRun>,
}

/// A profiling run: some jobs of one task on one number of partitions. Times are execution times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProfilingRun {
    /// Jobs.
    pub jobs: u64,
    /// Their times together.
    pub sum_ns: u64,
    /// The median.
    pub median_ns: u64,
    /// The longest.
    pub longest: HighWaterMark,
    /// Longest time from release to completion in which it did not execute.
    pub waiting_ns: u64,
    /// Jobs with steal time, which are left out of all other values.
    #[serde(default, alias = "stolen")]
    pub jobs_with_steal: u64,
    /// Cache misses of all jobs together, where they could be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Cycles per instruction, where they could be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_per_instruction: Option<f64>,
}

impl Point {
    /// Jobs of all profiling runs.
    pub fn jobs(&self) -> u64 {
        self.runs.iter().map(|run| run.jobs).sum()
    }

    /// Mean execution time in ns; 0 for no jobs.
    pub fn average_ns(&self) -> f64 {
        let sum: u64 = self.runs.iter().map(|run| run.sum_ns).sum();
        sum as f64 / self.jobs().max(1) as f64
    }

    /// The longest time seen; an observation, not a bound.
    pub fn high_water_ns(&self) -> u64 {
        self.runs.iter().map(|run| run.longest.value).max().unwrap_or(0)
    }

    /// The lowest median of all profiling runs, because disturbances only add.
    pub fn typical_ns(&self) -> u64 {
        self.runs.iter().map(|run| run.median_ns).min().unwrap_or(0)
    }

    /// Misses per job. `None` if they were not counted in every profiling run.
    pub fn misses(&self) -> Option<f64> {
        let sum: Option<u64> = self.runs.iter().map(|run| run.misses).sum();
        sum.filter(|_| self.jobs() > 0).map(|misses| misses as f64 / self.jobs() as f64)
    }

    /// How often a further job may exceed the high-water mark, at most, with [`CONFIDENCE`].
    pub fn exceedance(&self) -> f64 {
        exceedance_at(self.jobs(), CONFIDENCE)
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Jobs per number of partitions, at least.
    pub jobs: u64,
    /// Jobs of one profiling run.
    pub jobs_per_run: u64,
    /// A stretch whose typical times differ by no more than this share is flat.
    pub flat: f64,
    /// Seed of the order.
    pub seed: u64,
}

impl Profile {
    /// The programs.
    pub fn programs(&self) -> Programs {
        let tasks = self.tasks.iter().map(|task| task.program.clone()).collect();
        Programs { cpus: self.cpus.clone(), level: self.level, method: self.method, tasks }
    }

    /// Measures the jobs that the points lack, starting from whatever points there are.
    ///
    /// `run` makes a profiling run: it gets the index of a task, a number of partitions and a number of jobs, and returns `None` to stop.
    /// `keep` is called after every profiling run.
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

    /// Draws C^p from what was measured.
    fn conclude(&mut self) {
        for task in self.tasks.iter_mut().filter(|task| !task.measured.is_empty()) {
            let with_margin = |time: u64| ((time as f64 * (1.0 + self.margin)).ceil() as u64).clamp(1, TIME_MAX_NS);
            task.wcet_ns = envelope(&task.measured, self.partitions).into_iter().map(with_margin).collect();
            let waiting = task.measured.iter().flat_map(|point| &point.runs).map(|run| run.waiting_ns).max();
            task.jitter_ns = waiting.filter(|waiting| *waiting > 0).map_or(0, with_margin);
            let typical = |point: Option<&Point>| point.map_or(0, Point::typical_ns) as f64;
            let difference = typical(task.measured.first()) - typical(task.measured.last());
            task.utilization_difference = Some(difference / Ns::max(task.program.period, Ns(1)).0 as f64);
        }
    }
}

impl TaskProfile {
    /// A task of which nothing is known.
    pub fn of(program: Program) -> TaskProfile {
        TaskProfile { program, wcet_ns: Vec::new(), jitter_ns: 0, measured: Vec::new(), utilization_difference: None }
    }

    /// Whether more cache makes it faster to speak of; `None` before it is measured.
    pub fn is_sensitive(&self) -> Option<bool> {
        self.utilization_difference.map(|difference| difference >= SENSITIVE)
    }

    /// Adds the ends of the range, and the middle of every stretch that is not flat.
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
            if let Err(place) = points.binary_search_by_key(&partitions, |point| point.partitions) {
                points.insert(place, Point { partitions, runs: Vec::new() });
            }
        }
    }
}

/// For p = 1 to `partitions` the longest time seen with p partitions or more, or with the nearest fewer where p itself was not measured:
/// the least non-increasing curve above all points. Empty without a point for one partition.
///
/// `points`: ascending.
pub fn envelope(points: &[Point], partitions: u32) -> Vec<u64> {
    let at_least = |p: u32| {
        let first = points.partition_point(|point| point.partitions <= p).checked_sub(1)?;
        points[first..].iter().map(Point::high_water_ns).max()
    };
    (1..=partitions).map_while(at_least).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taskset::programs::programs;
    use crate::taskset::read::{Overrides, task_set};
    use proptest::prelude::*;

    fn point(partitions: u32, longest: u64) -> Point {
        let longest = HighWaterMark { value: longest, n: 1, last_rose_at: 1 };
        let run = ProfilingRun {
            jobs: 1,
            sum_ns: longest.value,
            median_ns: longest.value,
            longest,
            waiting_ns: 7,
            jobs_with_steal: 0,
            misses: None,
            cycles_per_instruction: None,
        };
        Point { partitions, runs: vec![run] }
    }

    fn profile(partitions: u32) -> Profile {
        let text = "cpus = \"0\"\n[[tasks]]\nname = \"a\"\ncommand = \"a\"\nperiod = \"1ms\"\n\
                    [[tasks]]\nname = \"b\"\ncommand = \"b\"\nperiod = \"1ms\"\n\
                    [[tasks]]\nname = \"c\"\ncommand = \"c\"\nbest_effort = true\n";
        let (programs, _) = programs(text).unwrap();
        Profile {
            schema: SCHEMA.to_owned(),
            fingerprint: Some("f".to_owned()),
            by: "made up".to_owned(),
            input: String::new(),
            margin: 0.0,
            cpus: programs.cpus,
            level: programs.level,
            method: programs.method,
            cores: 1,
            cache: Scope::Private,
            partitions,
            memory_bytes: Bytes(64 << 20),
            refill_ns_per_partition: Some(1000),
            refill_dirty_ns_per_partition: None,
            complete: false,
            tasks: programs.tasks.into_iter().map(TaskProfile::of).collect(),
        }
    }

    /// A machine on which task 0 needs 9 partitions and task 1 none, and every third profiling run is disturbed.
    fn modeled(task: usize, partitions: u32, jobs: u64, calls: &mut u64) -> ProfilingRun {
        *calls += 1;
        let noise = if calls.is_multiple_of(3) { 30 } else { 0 };
        let time = if task == 0 { 1000 + 500 * u64::from(9u32.saturating_sub(partitions)) } else { 2000 } + noise;
        let longest = HighWaterMark { value: time, n: jobs, last_rose_at: 1 };
        ProfilingRun { jobs, sum_ns: jobs * time, median_ns: time, longest, ..point(1, time).runs[0] }
    }

    const REQUEST: Request = Request { jobs: 100, jobs_per_run: 50, flat: 0.05, seed: 1 };

    #[test]
    fn flat_stretches_are_not_measured_and_steep_ones_are() {
        let mut profile = profile(16);
        let mut calls = 0;
        let run = |task, partitions, jobs| Ok::<_, ()>(Some(modeled(task, partitions, jobs, &mut calls)));
        profile.measure(REQUEST, run, |_| Ok(())).unwrap();
        let measured =
            |task: usize| profile.tasks[task].measured.iter().map(|point| point.partitions).collect::<Vec<_>>();
        // 8 is the middle of 1 and 16; the curve falls by 500 on either side of 8 and is flat from 9, of which 10 tells.
        assert_eq!(measured(0), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16]);
        assert_eq!(measured(1), [1, 16]);
        assert!(profile.complete && profile.tasks[2].measured.is_empty());
        for point in &profile.tasks[0].measured {
            assert_eq!((point.jobs(), point.runs.len()), (100, 2));
        }
        let wcet = &profile.tasks[0].wcet_ns;
        assert_eq!(wcet.len(), 16);
        for (p, time) in (1u32..).zip(wcet) {
            let true_time = 1000 + 500 * u64::from(9u32.saturating_sub(p));
            assert!((true_time..=true_time + 30).contains(time), "C^{p} = {time}");
        }
        assert_eq!((profile.tasks[0].is_sensitive(), profile.tasks[1].is_sensitive()), (Some(false), Some(false)));
        // 4000 ns of 1 ms are 0.4 %; of 100 us they would be 4 %.
        let difference = profile.tasks[0].utilization_difference.unwrap();
        assert!((difference - 0.004).abs() < 1e-4, "{difference}");
    }

    #[test]
    fn a_profile_that_was_interrupted_goes_on_where_it_was() {
        let mut whole = profile(16);
        let mut calls = 0;
        whole.measure(REQUEST, |t, p, n| Ok::<_, ()>(Some(modeled(t, p, n, &mut calls))), |_| Ok(())).unwrap();
        let whole_calls = calls;
        let (mut broken, mut calls, mut kept) = (profile(16), 0, String::new());
        for limit in [1, 7, u64::MAX] {
            let begin = calls;
            let run = |t, p, n| {
                let more = calls - begin < limit;
                Ok::<_, ()>(more.then(|| modeled(t, p, n, &mut calls)))
            };
            broken
                .measure(REQUEST, run, |profile| {
                    kept = serde_json::to_string(profile).unwrap();
                    Ok(())
                })
                .unwrap();
            // What was written last is all that is needed.
            broken = serde_json::from_str(&kept).unwrap();
        }
        assert!(broken.complete);
        assert_eq!(calls, whole_calls);
        let points =
            |profile: &Profile| profile.tasks[0].measured.iter().map(|p| (p.partitions, p.jobs())).collect::<Vec<_>>();
        assert_eq!(points(&broken), points(&whole));
    }

    #[test]
    fn a_profile_is_a_task_set_that_can_be_planned() {
        let mut profile = profile(16);
        profile.margin = 0.2;
        let mut calls = 0;
        profile.measure(REQUEST, |t, p, n| Ok::<_, ()>(Some(modeled(t, p, n, &mut calls))), |_| Ok(())).unwrap();
        let text = serde_json::to_string_pretty(&profile).unwrap();
        let (set, warnings) = task_set(&text, Overrides::default()).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(set.tasks().len(), 2);
        assert_eq!(set.tasks()[0].wcet_ns, profile.tasks[0].wcet_ns);
        // 7 ns of waiting and a fifth, rounded up.
        assert_eq!((set.tasks()[0].jitter_ns, set.tasks()[0].period_ns), (9, 1_000_000));
        let (read, warnings) = programs(&text).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(read, profile.programs());
    }

    proptest! {
        #[test]
        fn the_envelope_does_not_rise_lies_above_every_point_and_is_the_least_that_does(
            times in proptest::collection::btree_map(2u32..20, 1u64..1000, 0..10),
            first in 1u64..1000,
        ) {
            let mut points = vec![point(1, first)];
            points.extend(times.iter().map(|(partitions, time)| point(*partitions, *time)));
            let curve = envelope(&points, 20);
            prop_assert_eq!(curve.len(), 20);
            prop_assert!(curve.is_sorted_by(|a, b| a >= b));
            for point in &points {
                prop_assert!(curve[point.partitions as usize - 1] >= point.high_water_ns());
            }
            // Every value is that of a point that it may not fall below: one measured with no fewer, or the nearest with fewer.
            for (p, value) in (1u32..).zip(&curve) {
                let nearest = points.iter().rev().find(|point| point.partitions <= p).unwrap().partitions;
                let reason = points.iter().any(|point| point.partitions >= nearest && point.high_water_ns() == *value);
                prop_assert!(reason);
            }
        }
    }
}
