//! How long a task executes alone, against its share of the cache. [Kim2013, Figure 10]
//!
//! A *profiling run* runs some jobs of one task on one number of partitions. Profiling runs of all tasks and shares alternate in random
//! order, so that a disturbance affects all of them alike. Shares are bisected where the curve falls: first 1 and all partitions, then the middle of every
//! stretch over which the typical time changes.

mod runs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::taskset::programs::{Declared, Partitioning, Program, Programs};
use crate::taskset::{Others, Scope, TIME_MAX_NS};
use crate::units::{Bytes, CpuId, Ns};

pub use runs::{CENSORED_MAX, CONFIDENCE, Execution, Point, ProfilingRun};

/// Version of the file.
pub const SCHEMA: &str = "isochrome-profile/1";

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
    /// The measured costs that these refill times, and the other costs the set is charged, come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    /// Whether everything asked for was measured; a profile that was interrupted goes on where it is.
    pub complete: bool,
    /// The tasks.
    pub tasks: Vec<TaskProfile>,
    /// What the task set says besides, for whoever plans.
    #[serde(flatten)]
    pub others: Others,
}

/// What a profile finds out itself, of a set and of a task: what a file says of it is not carried along.
const FOUND: [&str; 11] = [
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
];

impl Profile {
    /// Takes over all that the task set says beyond its programs: it stands in place of what was measured, as the refill times do, or beside
    /// it, for whoever plans. Returns warnings about what is measured anew instead. Fails where a value is of the wrong kind.
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

    /// Has the analysis charge the measured `costs`, but for those that the set states itself. `share`: colors that a partition is made of.
    pub fn charge(&mut self, costs: Costs, share: f64) {
        // The longer of the two refill times is charged; the other one is there to compare.
        let of_partition = costs.refill.map(|refill| (refill.charged_ns.0 as f64 * share).ceil() as u64);
        self.refill_dirty_ns_per_partition = self.refill_dirty_ns_per_partition.max(of_partition);
        for (name, cost) in costs.of_every_set() {
            self.others.entry(name.to_owned()).or_insert_with(|| cost.charged_ns.0.into());
        }
        self.costs = Some(costs);
    }

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
            costs: None,
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
    /// C^p for p = 1, 2, ...: non-increasing, margin included. None for programs without a period, and before they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wcet_ns: Vec<u64>,
    /// Longest time from release to completion in which the task did not execute, margin included, or what the task set says, if that is more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jitter_ns: u64,
    /// What was seen, by number of partitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Point>,
    /// Difference of typical utilization between the fewest and all partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_difference: Option<f64>,
    /// What the task set says of it besides, for whoever plans.
    #[serde(flatten)]
    pub others: Others,
}

fn is_zero(time: &u64) -> bool {
    *time == 0
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
            task.jitter_ns = task.jitter_ns.max(waiting.filter(|waiting| *waiting > 0).map_or(0, with_margin));
            let typical = |point: Option<&Point>| point.map_or(0, Point::typical_ns) as f64;
            let difference = typical(task.measured.first()) - typical(task.measured.last());
            task.utilization_difference = Some(difference / Ns::max(task.program.period, Ns(1)).0 as f64);
        }
    }
}

impl TaskProfile {
    /// A task of which nothing is known.
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
    use crate::costs::{AssumedCost, SAMPLES_MIN};
    use crate::stats::HighWaterMark;
    use crate::taskset::programs::{Jobs, declared, programs};
    use crate::taskset::read::{Overrides, task_set};
    use crate::taskset::{MemoryRule, Platform, Refills, Task};
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
            costs: None,
            complete: false,
            tasks: programs.tasks.into_iter().map(TaskProfile::of).collect(),
            others: Others::new(),
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

    /// Everything that a task set may say to be planned.
    const ALL: &str = r#"cpus = "0-1"
level = 3
method = "both"
cores = 2
cache = "private"
partitions = 8
memory_mib = 64
refill_ns_per_partition = 900
refill_dirty_ns_per_partition = 1100
lines_per_partition = 64
miss_ns = 80
switch_ns = 1500
release_interrupt_ns = 700
preemption_ns = 800
lock_protocol = "immediate_ceiling"
page_bytes = 16384
memory_rule = "kim2013"
cold_start = true
[[tasks]]
name = "a"
command = "a"
period = "1ms"
deadline = "900us"
memory = "64K"
priority = 2
cpu = 1
budget = "300us"
jobs = "marks"
sporadic = true
bundle = "arm"
jitter_ns = 9000
blocking_ns = 2000
nonpreemptive_ns = 3000
locks = [{ name = "bus", longest_ns = 400 }]
exclusive = true
wcet_ns = [5, 4]
[[tasks]]
name = "b"
command = "b"
period = "2ms"
priority = 1
"#;

    #[test]
    fn measured_costs_are_charged_but_for_those_that_the_set_states() {
        let cost = |ns: u64| AssumedCost::of(&[ns as f64; SAMPLES_MIN]);
        let costs = Costs {
            cpu: CpuId(0),
            level: 2,
            measured_at: 0,
            refill: cost(1000),
            refill_once_ns: Ns(50),
            preemption: cost(2000),
            switch: cost(3000),
            release_interrupt: None,
        };
        let (declared, _) =
            declared(&ALL.replace("preemption_ns = 800\nlock", "lock").replace("release_interrupt_ns = 700\n", ""))
                .unwrap();
        let mut profile = Profile::begin(declared.programs.clone(), 8, String::new(), 0.0);
        profile.carry(&declared).unwrap();
        profile.charge(costs, 2.0);
        // 10 % are added to each; a partition is two colors; the set states 1500 ns for a switch.
        assert_eq!(profile.refill_dirty_ns_per_partition, Some(2200));
        let stated = |name: &str| profile.others.get(name).and_then(serde_json::Value::as_u64);
        assert_eq!(
            (stated("preemption_ns"), stated("switch_ns"), stated("release_interrupt_ns")),
            (Some(2250), Some(1500), None)
        );
        let text = serde_json::to_string(&profile).unwrap();
        assert_eq!(Costs::stated(&text), Some(costs));
    }

    #[test]
    fn all_that_a_task_set_says_is_planned_by_after_it_was_profiled() {
        let (declared, warnings) = declared(ALL).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let mut profile = Profile::begin(declared.programs.clone(), 8, String::new(), 0.0);
        let warnings = profile.carry(&declared).unwrap();
        assert!(warnings.len() == 1 && warnings[0].starts_with("tasks[0].wcet_ns"), "{warnings:?}");
        let mut calls = 0;
        profile.measure(REQUEST, |t, p, n| Ok::<_, ()>(Some(modeled(t, p, n, &mut calls))), |_| Ok(())).unwrap();
        let text = serde_json::to_string(&profile).unwrap();
        assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
        let (planned, warnings) = task_set(&text, Overrides::default()).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        // The same as if the file said what was measured.
        let curve = |task: usize| format!("wcet_ns = {:?}\n", profile.tasks[task].wcet_ns);
        let said = ALL.replace("wcet_ns = [5, 4]\n", &curve(0)) + &curve(1) + "jitter_ns = 7\n";
        assert_eq!(planned, task_set(&said, Overrides::default()).unwrap().0);
        assert_eq!(programs(&text).unwrap().0, programs(ALL).unwrap().0);
    }

    /// Names every field, so that one which is added has to be in [`ALL`], too.
    #[test]
    fn all_means_every_field_of_a_task_set_and_of_its_programs() {
        let text = format!("{ALL}wcet_ns = 1\n");
        let (set, _) = task_set(&text, Overrides::default()).unwrap();
        let Platform {
            cores,
            partitions,
            memory,
            refill_ns,
            refills,
            switch_ns,
            release_interrupt_ns,
            preemption_ns,
            scope,
            page,
            memory_rule,
            cold_start,
        } = *set.platform();
        let Refills { clean_ns, dirty_ns, serial_ns } = refills;
        assert!(![u64::from(cores), partitions.into(), memory.0, refill_ns].contains(&0));
        assert!(![switch_ns, release_interrupt_ns, preemption_ns].contains(&0));
        assert!(![clean_ns, dirty_ns, serial_ns].contains(&None));
        assert!(cold_start && scope != Scope::default() && memory_rule != MemoryRule::default() && page != Bytes(4096));
        let Task {
            name: _,
            period_ns,
            deadline_ns,
            memory,
            wcet_ns: _,
            jitter_ns,
            blocking_ns,
            nonpreemptive_ns,
            locks,
            priority,
            bundle,
            exclusive,
        } = &set.tasks()[0];
        assert!(![memory.0, *jitter_ns, *blocking_ns, *nonpreemptive_ns].contains(&0) && deadline_ns < period_ns);
        assert!(!locks.is_empty() && priority.is_some() && bundle.is_some() && *exclusive);
        let (all, _) = programs(ALL).unwrap();
        let Programs { cpus, level, method, tasks } = &all;
        assert!(!cpus.is_empty() && *level != 2 && *method != Partitioning::default());
        // A program that is best effort has none of the rest.
        let Program {
            name: _,
            command: _,
            period: _,
            deadline,
            memory,
            priority,
            cpu,
            budget,
            jobs,
            sporadic,
            bundle,
            best_effort: _,
        } = &tasks[0];
        assert!(deadline.0 > 0 && memory.0 > 0 && priority.is_some() && cpu.is_some() && budget.is_some());
        assert!(*jobs != Jobs::default() && *sporadic && bundle.is_some());
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
