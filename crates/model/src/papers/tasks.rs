//! [Kim2013]: what colors divide, execution times, reservation, response times, utilization and planning methods.
//!
//! The task set is that of Table 1. Its programs cannot be played, and the figure with their execution times is not legible in the
//! source, so that the curves in examples/kim2013-table1.json are fitted to the numbers that the paper prints.

use serde::Deserialize;

use super::{Played, Wrong, machine};
use crate::analysis::schedule::{self, Arrival};
use crate::analysis::{Analysis, Charges, CoreTask, analyze, core_task, utilization};
use crate::evidence::figure::{Bar, Bars, Chart, Dash, Hue, Line};
use crate::evidence::format::significant;
use crate::plan::{Method, Objective, Request, plan};
use crate::sim::MachineModel;
use crate::sim::scenario::{self, Scenario, Task, TaskOutcome};
use crate::taskset::PartitionSet;
use crate::taskset::TaskSet;
use crate::taskset::read::{Overrides, task_set};
use crate::units::Bytes;

/// The task set of Table 1.
const SET: &str = include_str!("../../../../examples/kim2013-table1.json");

const HUES: [(Hue, Dash); 4] = [
    (Hue::Unpartitioned, Dash::Solid),
    (Hue::Partitioned, Dash::Dashed),
    (Hue::SingleWriter, Dash::Dotted),
    (Hue::ByWays, Dash::Solid),
];

fn table_1(memory: Bytes) -> Result<TaskSet, Wrong> {
    Ok(task_set(SET, Overrides { cores: Some(4), memory: Some(memory), ..Overrides::default() })?.0)
}

fn bar(name: impl Into<String>, length: f64, hue: Hue, unit: &str) -> Bar {
    Bar { name: name.into(), parts: [0.0, length], hue, text: format!("{}{unit}", significant(length)) }
}

/// Memory and cache of one page color of a machine's outermost level.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Colors {
    /// Name of the modeled machine.
    machine: String,
    /// Clock rate in MHz.
    mhz: f64,
    /// Size of the memory that is divided.
    memory: String,
}

impl Colors {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let model = machine(&self.machine)?;
        let outermost = &model.levels.last().ok_or("no cache".to_owned())?.cache;
        let (geometry, page) = (outermost.geometry, model.page_bytes.0);
        let colors = outermost.color_count(model.page_bytes);
        let frames = self.memory.parse::<Bytes>()?.0 / page;
        let mut per_color = vec![0u64; colors as usize];
        (0..frames).for_each(|frame| per_color[usize::from(outermost.color_of(frame * page, model.page_bytes).0)] += 1);
        let mib = |frames: u64| (frames * page) as f64 / f64::from(1 << 20);
        let mut played = Played::default();
        let bars = (0..)
            .zip(&per_color)
            .map(|(color, frames)| bar(format!("color {color}"), mib(*frames), Hue::Partitioned, " MiB"));
        played.figure(Bars { title: "Memory of each color".to_owned(), bars: bars.collect() });
        played.number("colors", f64::from(colors));
        played.number("lowest bit of the color", f64::from(page.ilog2()));
        played.number("highest bit of the color", f64::from(page.ilog2() + colors.ilog2() - 1));
        played.number("cache of a color, KiB", geometry.cache_bytes().0 as f64 / f64::from(colors) / 1024.0);
        played.number("memory of a color, MiB", mib(per_color.iter().copied().max().unwrap_or(0)));
        let lines = geometry.cache_bytes().0 / geometry.line_bytes.0 / u64::from(colors);
        played.number("lines of a color", lines as f64);
        let cycles = lines * model.timing.memory_read_cycles;
        played.number("refill of a color, one line after the other, us", cycles as f64 / self.mhz);
        Ok(played)
    }
}

/// Execution times of the tasks of Table 1 against the number of partitions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curves {}

impl Curves {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let set = table_1(Bytes(1 << 30))?;
        let mut played = Played::default();
        for (task, (hue, dash)) in set.tasks().iter().zip(HUES) {
            let points = (1..).zip(&task.wcet_ns).map(|(p, ns)| (f64::from(p), *ns as f64 / 1e6)).collect();
            let description =
                format!("Longest execution time of {} against its partitions, alone in the system.", task.name);
            let labels = ["partitions", &format!("{}: C^p, ms", task.name)];
            let chart = Chart::linear(&task.name, &description, labels, vec![Line::new("C^p", hue, dash, points)]);
            played.chart(&task.name, chart);
            if let (Some(most), Some(least)) = (task.wcet_ns.first(), task.wcet_ns.last()) {
                let range = 100.0 * (most - least) as f64 / task.period_ns as f64;
                played.number(format!("{}: utilization with 1 less that with 32, %", task.name), range);
            }
        }
        Ok(played)
    }
}

/// Programs side by side on all CPUs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation {
    /// Name of the modeled machine.
    machine: String,
    /// The programs: name, workload, and colors when they are reserved. Program i runs on CPU i.
    programs: Vec<(String, String, String)>,
    /// Jobs of each; the first loads the caches.
    jobs: u64,
}

impl Reservation {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let model = machine(&self.machine)?;
        let mut played = Played::default();
        let mut bars = Vec::new();
        for (number, (name, ..)) in self.programs.iter().enumerate() {
            let [alone, shared, reserved] = [(false, true), (true, false), (true, true)]
                .map(|(together, reserved)| self.run(&model, number, together, reserved));
            let (alone, shared, reserved) = (alone?, shared?, reserved?);
            let percent = |outcome: &TaskOutcome| 100.0 * (outcome.cycles as f64 / alone.cycles as f64 - 1.0);
            let misses = |outcome: &TaskOutcome| {
                let counts = outcome.levels.iter().filter(|level| level.name == "L3").map(|level| level.tally.counts);
                counts.map(|counts| counts.read_misses as f64).sum::<f64>()
            };
            for (label, outcome, hue) in
                [("shared", &shared, Hue::Unpartitioned), ("reserved", &reserved, Hue::Partitioned)]
            {
                bars.push(bar(format!("{name}, {label}"), percent(outcome).max(0.0), hue, " %"));
                played.number(format!("{name}, {label}: longer than alone with its partitions, %"), percent(outcome));
                played.number(format!("{name}, {label}: L3 misses"), misses(outcome));
            }
            played.number(format!("{name}, alone with its partitions: L3 misses"), misses(&alone));
        }
        let longest = |label: &str| {
            let of = played.numbers.iter().filter(|(name, _)| name.contains(label) && name.contains("longer"));
            of.map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max)
        };
        let (shared, reserved) = (longest(", shared"), longest(", reserved"));
        played.number("longest with the cache shared, %", shared);
        played.number("longest with reservation, %", reserved);
        played.figure(Bars { title: "Longer than alone, beside the other programs".to_owned(), bars });
        Ok(played)
    }

    /// Runs program `number`, alone or beside the others, with its colors reserved or with all.
    fn run(&self, model: &MachineModel, number: usize, together: bool, reserved: bool) -> Result<TaskOutcome, Wrong> {
        let count = self.programs.len();
        let all = format!("0-{}", model.colors().last().map_or(1, |(_, colors)| *colors) - 1);
        let others = (0..count).filter(|other| *other != number && together);
        let task = |at: usize| {
            let (name, workload, colors) = &self.programs[at];
            Task {
                name: name.clone(),
                cpu: at as u32,
                workload: Some(workload.clone()),
                trace: None,
                format: None,
                data_only: false,
                jobs: self.jobs,
                background: at != number,
                pages: None,
                colors: Some(if reserved { colors.clone() } else { all.clone() }),
                ways: Default::default(),
                single_writer: false,
            }
        };
        let tasks = std::iter::once(number).chain(others).map(task).collect();
        let scenario = Scenario::of(count as u32, tasks);
        let no_traces = &mut |_: &str| Err(std::io::Error::other("workloads only"));
        let mut outcome = scenario::run(&scenario, model, no_traces, &mut |_| true)?;
        Ok(outcome.tasks.swap_remove(0))
    }
}

/// The tasks of a core, highest priority first.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Tasks: name, execution time in us, period in ms, and first and last partition. The paper numbers partitions from 1; bounds depend only
    /// on which partitions are the same.
    tasks: Vec<(String, u64, u64, u32, u32)>,
    /// Time to refill a partition, in ns.
    refill_ns: u64,
    /// Partitions of each task where none are shared.
    #[serde(default)]
    unshared: Vec<u32>,
}

impl Core {
    fn core(&self) -> Vec<CoreTask> {
        let task = |(_, wcet_us, period_ms, first, last): &(String, u64, u64, u32, u32)| {
            CoreTask::new(wcet_us * 1000, period_ms * 1_000_000, PartitionSet::range(*first, last - first + 1))
        };
        self.tasks.iter().map(task).collect()
    }

    fn charges(&self) -> Charges {
        Charges { refill_ns: self.refill_ns, ..Charges::default() }
    }

    /// Plays a hyperperiod from a common release on, and computes the bounds with and without the cache. [Kim2013, Table 2, Figure 12]
    pub(super) fn responses(&self) -> Played {
        let (core, charges) = (self.core(), self.charges());
        let horizon = core.iter().fold(1, |all, task| lcm(all, task.period_ns));
        let mut arrivals: Vec<Arrival> = core
            .iter()
            .enumerate()
            .flat_map(|(task, known)| {
                (0..horizon / known.period_ns).map(move |job| {
                    let at = job * known.period_ns;
                    Arrival { task, arrival_ns: at, release_ns: at, execution_ns: known.wcet_ns, section: None }
                })
            })
            .collect();
        arrivals.sort_by_key(|arrival| arrival.release_ns);
        let run = schedule::play(&core, charges, &arrivals, horizon);
        let bounds = [Analysis::NoInterference, Analysis::Kim2013].map(|analysis| analyze(&core, charges, analysis));
        let mut played = Played::default();
        for (task, (name, ..)) in self.tasks.iter().enumerate() {
            let ms = |ns: u64| ns as f64 / 1e6;
            let mut jobs: Vec<_> = run.jobs.iter().filter(|job| job.task == task).collect();
            jobs.sort_by_key(|job| job.arrival_ns);
            let seen = (1..).zip(jobs).map(|(number, job)| (f64::from(number), ms(job.completion_ns - job.arrival_ns)));
            let mut lines = vec![Line::new("played", Hue::Ink, Dash::Thin, seen.collect()).marked()];
            let last = lines[0].points.last().map_or(1.0, |point| point.0);
            for (label, bounds, hue) in [("NoCInt", &bounds[0], Hue::Alone), ("CInt", &bounds[1], Hue::Unpartitioned)] {
                if let Some(bound) = bounds[task].verdict.response_ns() {
                    played.number(format!("{name}: {label}, ms"), ms(bound));
                    lines.push(Line::new(label, hue, Dash::Dashed, vec![(0.0, ms(bound)), (last, ms(bound))]));
                }
            }
            let longest = run.responses_ns.get(task).copied().unwrap_or(0);
            played.number(format!("{name}: longest played, ms"), ms(longest));
            let description = format!("Response times of the jobs of {name} in a hyperperiod, and two bounds.");
            played.chart(name, Chart::linear(name, &description, ["job", &format!("{name}: response, ms")], lines));
        }
        played
    }

    /// Computes the utilization by Eq. 1, with and without shared partitions. [Kim2013, Figure 13]
    pub(super) fn utilization(&self) -> Result<Played, Wrong> {
        let set = table_1(Bytes(1 << 30))?;
        let charges = self.charges();
        let mut first = 0;
        let unshared: Vec<CoreTask> = (0..)
            .zip(&self.unshared)
            .map(|(task, count)| {
                first += count;
                core_task(&set, task, PartitionSet::range(first - count, *count))
            })
            .collect();
        let percent = |core: &[CoreTask], charges| 100.0 * utilization(core, charges);
        let values = [
            ("without sharing", percent(&unshared, charges), Hue::Unpartitioned),
            ("sharing, NoCInt", percent(&self.core(), Charges::default()), Hue::Alone),
            ("sharing, CInt", percent(&self.core(), charges), Hue::Partitioned),
        ];
        let mut played = Played::default();
        let bars = values.iter().map(|(name, value, hue)| bar(*name, *value, *hue, " %")).collect();
        played.figure(Bars { title: "Utilization of the core".to_owned(), bars });
        values.iter().for_each(|(name, value, _)| played.number(format!("{name}, %"), *value));
        played.number("saved by sharing, points", values[0].1 - values[2].1);
        Ok(played)
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Quantity by which the methods are compared.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    /// Fewest partitions, in % of all.
    Partitions,
    /// Memory used of these partitions, in %.
    Memory,
    /// Least utilization with all partitions, in %.
    Utilization,
}

/// The paper's planning methods on copies of its task set, for 4 cores and 32 partitions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Methods {
    by: By,
    /// Numbers of copies of the set.
    copies: Vec<u32>,
    /// Sizes of the memory.
    memories: Vec<String>,
}

const METHODS: [(Method, &str, Hue); 3] = [
    (Method::Bfd, "BFD", Hue::Unpartitioned),
    (Method::Wfd, "WFD", Hue::SingleWriter),
    (Method::Cata, "CATA", Hue::Partitioned),
];

impl Methods {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let mut played = Played::default();
        let mut bars = Vec::new();
        // What CATA is better by than each other method, in points.
        let mut better: [Vec<f64>; 2] = Default::default();
        for memory in &self.memories {
            let set = table_1(memory.parse()?)?;
            for copies in &self.copies {
                let set = set.copied(*copies)?;
                let mut values = [None; 3];
                for ((method, ..), value) in METHODS.iter().zip(&mut values) {
                    *value = self.by.of(&set, *method)?;
                }
                for ((_, name, hue), value) in METHODS.into_iter().zip(values) {
                    let name = format!("{name}, {} tasks, {memory}", set.tasks().len());
                    value.iter().for_each(|value| played.number(format!("{name}, %"), *value));
                    bars.push(match value {
                        Some(value) => bar(name, value, hue, " %"),
                        None => Bar { name, parts: [0.0, 0.0], hue, text: "no plan".to_owned() },
                    });
                }
                for (other, better) in values.iter().zip(&mut better) {
                    let sign = if matches!(self.by, By::Memory) { -1.0 } else { 1.0 };
                    better.extend(other.zip(values[2]).map(|(other, cata)| sign * (other - cata)));
                }
            }
        }
        for (better, name) in better.iter().zip(["BFD", "WFD"]) {
            let range =
                better.iter().fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| [low.min(*x), high.max(*x)]);
            played.number(format!("CATA better than {name}, least, points"), range[0]);
            played.number(format!("CATA better than {name}, most, points"), range[1]);
        }
        played.figure(Bars { title: "Methods on copies of the task set".to_owned(), bars });
        Ok(played)
    }
}

impl By {
    /// Plans `set` by `method`. Returns the compared quantity in percent; `None` without a plan.
    fn of(self, set: &TaskSet, method: Method) -> Result<Option<f64>, Wrong> {
        let objective = if matches!(self, By::Utilization) { Objective::Utilization } else { Objective::Partitions };
        let found = plan(set, &Request { method, objective, ..Request::default() })?;
        let needed: u64 = set.tasks().iter().map(|task| task.memory.0).sum();
        let partitions = f64::from(found.partitions_used);
        let share = match self {
            By::Partitions => partitions / f64::from(set.platform().partitions),
            By::Memory => needed as f64 / (set.partition_memory().0 as f64 * partitions),
            By::Utilization => found.utilization,
        };
        Ok(found.schedulable.then_some(100.0 * share))
    }
}
