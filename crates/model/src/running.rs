//! Checks the jobs of programs that run against their timing requirements: bounds, deadlines, budgets.
//!
//! A [`ResponseBound`] follows from the analysis, a [`HighWaterMark`] is an observation. Neither becomes the other, and only [`Tally::push`]
//! compares them. Everything here takes records one by one and keeps a bounded amount of memory, however long a run is.

mod section;

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evidence::RawFile;
use crate::stats::{
    Effect, Gate, HighWaterMark, accepted, blocks_needed, exceedance_at, holm, median, nearest_rank, visible_effect,
};
use crate::taskset::programs::Partitioning;
use crate::units::{Bytes, Color, CpuId, Ns};

/// Confidence of the claims made from observed jobs.
pub const CONFIDENCE: f64 = 0.95;

/// Jobs of a task after which a run may say that its bound holds: the largest of 299 is exceeded with a probability of at most 1 %, with
/// [`CONFIDENCE`].
pub const JOBS_WANTED: u64 = 299;

/// Share of a program's resident pages that may lie outside its colors.
pub const OFF_COLOR_MAX: f64 = 0.01;

/// A job is late by at most this many times the steal time, on a CPU that is busy for at most nine tenths of its time: the CPU makes up for
/// the delay in the time that is left.
pub const STEAL_DELAY_FACTOR: u64 = 10;

/// Share of the jobs expected by the periods below which some are missing.
pub const EXPECTED_MIN: f64 = 0.9;

/// Share of the releases that may be left out because isochrome was held up.
pub const SKIPPED_MAX: f64 = 0.01;

/// The longest response that the analysis allows a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ResponseBound(pub Ns);

/// One job, as it was seen. Times count from the first release of the run, in ns of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobRecord {
    /// Which task, by its place in the run.
    pub task: usize,
    /// Which of its jobs, from 0.
    pub instance: u64,
    /// When it was to begin.
    pub release: Ns,
    /// When it first had the CPU.
    pub start: Ns,
    /// When it was complete.
    pub completion: Ns,
    /// Time it had the CPU, without steal time.
    pub execution: Ns,
    /// Time for which the hypervisor withheld the CPU that can have made the job late: since the CPU last had no job, which may be more than the
    /// job's own response.
    pub steal_time: Ns,
    /// Misses of the partitioned level, where they are counted.
    pub misses: Option<u64>,
    /// How often another thread took the CPU from it.
    pub preemptions: u32,
}

impl JobRecord {
    /// From release to completion.
    pub fn response(&self) -> Ns {
        Ns(self.completion.0.saturating_sub(self.release.0))
    }

    /// The names of the columns of [`csv_line`](Self::csv_line).
    pub const CSV_HEADER: &str = "block,partitioned,task,instance,release_ns,start_ns,completion_ns,response_ns,execution_ns,misses,preemptions,steal_ns\n";

    /// Appends the job as a line of a CSV file; an empty field was not measured.
    ///
    /// `block`: times and instances count from its first release.
    pub fn csv_line(&self, block: u64, partitioned: bool, task: &str, line: &mut String) {
        // For every job: by `write!` it would be a good part of what recording takes.
        let mut digits = itoa::Buffer::new();
        let mut number = |line: &mut String, value: u64, behind: char| {
            line.push_str(digits.format(value));
            line.push(behind);
        };
        number(line, block, ',');
        number(line, u64::from(partitioned), ',');
        line.push_str(task);
        line.push(',');
        let times = [self.release, self.start, self.completion, self.response(), self.execution];
        number(line, self.instance, ',');
        times.into_iter().for_each(|time| number(line, time.0, ','));
        match self.misses {
            Some(misses) => number(line, misses, ','),
            None => line.push(','),
        }
        number(line, u64::from(self.preemptions), ',');
        number(line, self.steal_time.0, '\n');
    }
}

/// The timing requirement of a task: what its jobs are checked against, and what the plan assumes of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// The task.
    pub name: String,
    /// Time between releases.
    pub period: Ns,
    /// Relative deadline.
    pub deadline: Ns,
    /// The bound of its response time; `None` where there is none.
    pub bound: Option<ResponseBound>,
    /// What the bound would be without the cache delays that tasks cause each other (NoCInt of [Kim2013, Table 2]). No bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_interference: Option<Ns>,
    /// Execution time that no job may exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Ns>,
    /// Its worst-case execution time alone on its partitions, C^p.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wcet: Option<Ns>,
    /// Its share of the CPU with all cache delays. [Kim2013, eq. 1]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
}

/// A limit that no job may exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The bound of the response time.
    Bound,
    /// The deadline.
    Deadline,
    /// The budget of execution time.
    Budget,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Bound => "bound",
            Limit::Deadline => "deadline",
            Limit::Budget => "budget",
        })
    }
}

/// How many jobs exceeded a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ViolationCount {
    /// Jobs that exceeded it.
    pub jobs: u64,
    /// Those of them that steal time excuses: it can have caused all of the delay ([`STEAL_DELAY_FACTOR`]).
    #[serde(alias = "stolen")]
    pub excused: u64,
}

impl ViolationCount {
    /// Jobs that steal time does not excuse.
    pub fn own(&self) -> u64 {
        self.jobs - self.excused
    }
}

/// The smallest and the largest of consecutive values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Extent {
    /// Smallest.
    pub low: Ns,
    /// Largest.
    pub high: Ns,
}

/// Values in order, thinned to a few hundred stretches of equal length: of each the smallest and the largest are kept, so that
/// no peak is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Envelope {
    /// Values per stretch; the last may have fewer.
    pub stride: u64,
    /// The stretches.
    pub extents: Vec<Extent>,
    n: u64,
}

impl Default for Envelope {
    fn default() -> Self {
        Envelope { stride: 1, extents: Vec::new(), n: 0 }
    }
}

impl Envelope {
    /// Stretches kept, at most.
    pub const STRETCHES: usize = 512;

    fn push(&mut self, value: Ns) {
        if self.n == self.stride * Self::STRETCHES as u64 {
            self.extents = self
                .extents
                .chunks(2)
                .map(|pair| Extent {
                    low: pair.iter().map(|extent| extent.low).min().unwrap_or_default(),
                    high: pair.iter().map(|extent| extent.high).max().unwrap_or_default(),
                })
                .collect();
            self.stride *= 2;
        }
        if self.n.is_multiple_of(self.stride) {
            self.extents.push(Extent { low: value, high: value });
        } else if let Some(last) = self.extents.last_mut() {
            *last = Extent { low: last.low.min(value), high: last.high.max(value) };
        }
        self.n += 1;
    }
}

/// Counts of values on a scale fine enough for quantiles: each is known to 1/64 of itself.
#[derive(Clone, Debug, Default)]
struct Spread {
    counts: Vec<u64>,
    n: u64,
}

impl Spread {
    /// Values below this have a count each, and each doubling above it has as many counts.
    const FINE: u64 = 64;

    fn place(value: u64) -> usize {
        if value < 2 * Self::FINE {
            return value as usize;
        }
        let shift = u64::from(value.ilog2() - Self::FINE.ilog2());
        (shift * Self::FINE + (value >> shift)) as usize
    }

    /// The largest value of a place.
    fn top(place: usize) -> u64 {
        let (shift, rest) = match place as u64 {
            place if place < 2 * Self::FINE => return place,
            place => (place / Self::FINE - 1, place % Self::FINE + Self::FINE),
        };
        ((rest + 1) << shift).wrapping_sub(1)
    }

    fn push(&mut self, value: u64) {
        let place = Self::place(value);
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
        self.n += 1;
    }

    /// A value that at least a share `q` of all do not exceed, at most 1/64 above the smallest such.
    fn quantile(&self, q: f64) -> Option<u64> {
        if self.n == 0 {
            return None;
        }
        let wanted = nearest_rank(q, self.n as usize) as u64 + 1;
        let mut passed = 0;
        self.counts
            .iter()
            .position(|count| {
                passed += count;
                passed >= wanted
            })
            .map(Self::top)
    }
}

/// A value that was seen and how often: not a bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observed {
    /// Mean, in ns.
    pub mean_ns: f64,
    /// Median, up to 1/64 too large.
    pub median: Ns,
    /// 99 % took at most this, up to 1/64 too large.
    pub p99: Ns,
    /// The largest, with its number of samples.
    pub high_water_mark: HighWaterMark,
}

/// Values as they come.
#[derive(Clone, Debug, Default)]
struct Seen {
    spread: Spread,
    sum: u128,
    mark: Option<HighWaterMark>,
}

impl Seen {
    fn push(&mut self, value: Ns) {
        self.spread.push(value.0);
        self.sum += u128::from(value.0);
        match &mut self.mark {
            Some(mark) => mark.push(value.0),
            None => self.mark = HighWaterMark::of(&[value.0]),
        }
    }

    fn observed(&self) -> Option<Observed> {
        let mark = self.mark?;
        let quantile = |q| Ns(self.spread.quantile(q).unwrap_or(mark.value).min(mark.value));
        Some(Observed {
            mean_ns: self.sum as f64 / mark.n as f64,
            median: quantile(0.5),
            p99: quantile(0.99),
            high_water_mark: mark,
        })
    }
}

/// The jobs of a task so far.
#[derive(Clone, Debug)]
pub struct Tally {
    requirement: Requirement,
    response: Seen,
    execution: Seen,
    responses: Envelope,
    misses: Option<Misses>,
    violations: [ViolationCount; 3],
    preemptions: u64,
    jobs_with_steal: u64,
}

/// Misses of the partitioned level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Misses {
    /// Over all jobs.
    pub sum: u64,
    /// Job by job.
    pub by_instance: Envelope,
}

impl Tally {
    /// Of no jobs.
    pub fn new(requirement: Requirement) -> Tally {
        let none = Seen::default;
        let violations = [ViolationCount::default(); 3];
        Tally {
            requirement,
            response: none(),
            execution: none(),
            responses: Envelope::default(),
            misses: None,
            violations,
            preemptions: 0,
            jobs_with_steal: 0,
        }
    }

    /// The timing requirement of the task.
    pub fn requirement(&self) -> &Requirement {
        &self.requirement
    }

    /// Takes a job into account. Returns the limits that it exceeds.
    pub fn push(&mut self, job: &JobRecord) -> Vec<Limit> {
        let response = job.response();
        self.response.push(response);
        self.execution.push(job.execution);
        self.responses.push(response);
        self.preemptions += u64::from(job.preemptions);
        let has_steal = job.steal_time > Ns(0);
        let late = |limit: Limit| match limit {
            Limit::Bound => response.0 - self.requirement.bound.map_or(response.0, |bound| bound.0.0),
            Limit::Deadline => response.0 - self.requirement.deadline.0,
            Limit::Budget => 0,
        };
        self.jobs_with_steal += u64::from(has_steal);
        if let Some(misses) = job.misses {
            let counted = self.misses.get_or_insert_with(|| Misses { sum: 0, by_instance: Envelope::default() });
            counted.sum += misses;
            counted.by_instance.push(Ns(misses));
        }
        let limits = self.requirement.violated_by(response, job.execution);
        for &limit in &limits {
            // Steal time excuses no more than the delay that it can have caused.
            let excused = has_steal && late(limit) <= STEAL_DELAY_FACTOR * job.steal_time.0;
            let violations = &mut self.violations[limit as usize];
            violations.jobs += 1;
            violations.excused += u64::from(excused);
        }
        limits
    }

    /// What came of the task.
    pub fn outcome(&self) -> TaskOutcome {
        let violations = |limit: Limit| self.violations[limit as usize];
        TaskOutcome {
            requirement: self.requirement.clone(),
            jobs: self.response.spread.n,
            response: self.response.observed(),
            execution: self.execution.observed(),
            responses: self.responses.clone(),
            misses: self.misses.clone(),
            bound_violations: violations(Limit::Bound),
            deadline_violations: violations(Limit::Deadline),
            budget_violations: violations(Limit::Budget),
            preemptions: self.preemptions,
            jobs_with_steal: self.jobs_with_steal,
            placement: None,
        }
    }
}

impl Requirement {
    /// The limits that a job of this response and execution time exceeds.
    pub fn violated_by(&self, response: Ns, execution: Ns) -> Vec<Limit> {
        let limits = [
            (Limit::Bound, self.bound.is_some_and(|bound| response > bound.0)),
            (Limit::Deadline, response > self.deadline),
            (Limit::Budget, self.budget.is_some_and(|budget| execution > budget)),
        ];
        limits.into_iter().filter(|(_, violated)| *violated).map(|(limit, _)| limit).collect()
    }
}

/// Where a program's memory lay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Its colors.
    pub colors: Vec<Color>,
    /// Its resident pages at the end.
    pub resident: u64,
    /// Those that are on color.
    #[serde(alias = "right")]
    pub on_color: u64,
    /// Those that are immovable: shared ones and the kernel's.
    #[serde(alias = "fixed")]
    pub immovable: u64,
}

impl Placement {
    /// The share of the movable pages that are off color.
    pub fn off_color(&self) -> f64 {
        let movable = self.resident.saturating_sub(self.immovable);
        movable.saturating_sub(self.on_color) as f64 / movable.max(1) as f64
    }
}

/// What came of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskOutcome {
    /// The timing requirement of the task.
    #[serde(flatten)]
    pub requirement: Requirement,
    /// Its jobs.
    pub jobs: u64,
    /// Their response times; `None` where there were no jobs.
    pub response: Option<Observed>,
    /// Their execution times.
    pub execution: Option<Observed>,
    /// Response times, job by job.
    pub responses: Envelope,
    /// Misses, where they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<Misses>,
    /// Jobs whose response took longer than the bound.
    #[serde(alias = "beyond_bound")]
    pub bound_violations: ViolationCount,
    /// Jobs later than the deadline.
    #[serde(alias = "beyond_deadline")]
    pub deadline_violations: ViolationCount,
    /// Jobs that executed longer than the budget.
    #[serde(alias = "beyond_budget")]
    pub budget_violations: ViolationCount,
    /// How often another thread took the CPU from one of its jobs.
    pub preemptions: u64,
    /// Jobs with steal time.
    #[serde(alias = "stolen_jobs")]
    pub jobs_with_steal: u64,
    /// Where its memory lay at the end, where it was given colors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

impl TaskOutcome {
    /// With [`CONFIDENCE`], the probability at most that one more job takes longer than the longest seen.
    pub fn exceedance(&self) -> f64 {
        exceedance_at(self.jobs, CONFIDENCE)
    }

    /// Share of the CPU, by each of the four ways of [Kim2013, Figure 13].
    pub fn utilization(&self) -> Utilization {
        let period = self.requirement.period.0.max(1) as f64;
        Utilization {
            alone: self.requirement.wcet.map(|wcet| wcet.0 as f64 / period),
            with_delays: self.requirement.utilization,
            worst: self.execution.map(|execution| execution.high_water_mark.value as f64 / period),
            average: self.execution.map(|execution| execution.mean_ns / period),
        }
    }
}

/// Share of a CPU that a task takes. [Kim2013, Figure 13]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Utilization {
    /// Estimated without interference: C^p / T.
    pub alone: Option<f64>,
    /// Estimated with all cache delays. [Kim2013, eq. 1]
    pub with_delays: Option<f64>,
    /// The longest execution seen, over the period.
    pub worst: Option<f64>,
    /// The mean execution seen, over the period.
    pub average: Option<f64>,
}

/// Something on a CPU around a violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stretch {
    /// Since when, in ns from the first release of the run.
    pub from: Ns,
    /// Until when.
    pub to: Ns,
    /// What ran: a task's name, or that of another program; empty for nothing.
    pub what: String,
}

/// A job that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Violation {
    /// The task.
    pub task: String,
    /// Which job.
    pub instance: u64,
    /// The limits that it exceeds.
    pub limits: Vec<Limit>,
    /// When it was released, in ns from the first release of the run.
    pub release: Ns,
    /// From release to completion; until now for one that is not complete.
    pub response: Ns,
    /// Time on the CPU.
    pub execution: Ns,
    /// The job's steal time.
    #[serde(alias = "stolen")]
    pub steal_time: Ns,
    /// What its CPU did from a little before the release on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Stretch>,
}

/// The failure of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The task.
    pub task: String,
    /// When, in ns from the first release of the run; 0 before it.
    pub at: Ns,
    /// What happened.
    pub what: String,
}

/// Something of the machine, before, during and after the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Which.
    pub name: String,
    /// Before.
    pub before: String,
    /// While the programs ran.
    pub during: String,
    /// Afterwards.
    pub after: String,
}

/// What is reserved on a CPU whose tasks are scheduled by deadlines. [`reservation`](crate::analysis::reservation)
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reserved {
    /// The CPU.
    pub cpu: CpuId,
    /// Σ Q/D over its tasks.
    pub density: f64,
    /// Up to which the kernel admits reservations.
    pub most: f64,
}

impl Reserved {
    /// Whether every task gets in time what is reserved for it.
    pub fn is_proved(&self) -> bool {
        self.density <= self.most
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reserved { cpu, density, most } = self;
        write!(f, "CPU {}: density {density:.3} of at most {most:.3}, ", cpu.0)?;
        f.write_str(match self.is_proved() {
            true => "so a job that needs no more than is reserved for it is complete by its deadline",
            false => "so it is not proved that tasks get in time what is reserved for them",
        })
    }
}

/// What watching took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overhead {
    /// Events of the scheduler read.
    pub events: u64,
    /// Events that the kernel had no room for.
    pub lost: u64,
    /// Time of this program's own threads on CPUs, releases included.
    pub tool_cpu: Ns,
    /// Time of it that went into writing and reading the lines that release jobs and complete them.
    #[serde(default)]
    pub release_cpu: Ns,
    /// Time it was measured over.
    pub elapsed: Ns,
    /// How late lines were written that release jobs, at most.
    pub release_late_max: Ns,
    /// Jobs that were not released, because this program was itself held up when they were due.
    #[serde(default)]
    pub releases_skipped: u64,
    /// For how long after the first that was due, at most.
    #[serde(default)]
    pub held_up_max: Ns,
}

impl Overhead {
    /// Adds that of a further run.
    pub fn add(&mut self, more: &Overhead) {
        self.events += more.events;
        self.lost += more.lost;
        self.tool_cpu.0 += more.tool_cpu.0;
        self.release_cpu.0 += more.release_cpu.0;
        self.elapsed.0 += more.elapsed.0;
        self.release_late_max = self.release_late_max.max(more.release_late_max);
        self.releases_skipped += more.releases_skipped;
        self.held_up_max = self.held_up_max.max(more.held_up_max);
    }

    /// What releasing lines came to, in words.
    pub fn releases(&self) -> String {
        let share = self.release_cpu.0 as f64 / self.elapsed.0.max(1) as f64 * 100.0;
        let us = |time: Ns| time.0 as f64 / 1e3;
        let late = us(self.release_late_max);
        let skipped = match self.releases_skipped {
            0 => String::new(),
            releases => format!(
                ", {releases} not at all, as isochrome itself was held up, for up to {:.0} µs",
                us(self.held_up_max)
            ),
        };
        format!("{share:.2} % of a CPU; lines written at most {late:.0} µs late{skipped}")
    }
}

/// The same set with and without partitions, in pairs of blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Length of a window.
    pub window: Ns,
    /// Blocks of each kind. Programs are started anew for each.
    pub blocks: u64,
    /// Task by task.
    pub tasks: Vec<TaskComparison>,
}

/// Jobs of a task that were released in one window, or in all windows of a block that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The pair of blocks it belongs to.
    pub block: u64,
    /// Its jobs.
    pub jobs: u64,
    /// Sum of their execution times.
    pub execution: Ns,
    /// Sum of their response times.
    pub response: Ns,
    /// Their longest response time.
    pub response_max: Ns,
    /// Sum of their misses; `None` where they were not counted for every job.
    pub misses: Option<u64>,
    /// Time for which the hypervisor withheld the CPU from them.
    pub steal_time: Ns,
}

impl Window {
    /// A window of the pair `block`, without jobs.
    pub fn new(block: u64) -> Window {
        let none = Ns(0);
        Window {
            block,
            jobs: 0,
            execution: none,
            response: none,
            response_max: none,
            misses: Some(0),
            steal_time: none,
        }
    }

    /// Takes a job into account.
    pub fn push(&mut self, job: &JobRecord) {
        self.add(&Window {
            block: self.block,
            jobs: 1,
            execution: job.execution,
            response: job.response(),
            response_max: job.response(),
            misses: job.misses,
            // Steal time before the release is counted with the job before.
            steal_time: job.steal_time.min(job.response()),
        });
    }

    fn add(&mut self, more: &Window) {
        self.jobs += more.jobs;
        self.execution.0 += more.execution.0;
        self.response.0 += more.response.0;
        self.response_max = self.response_max.max(more.response_max);
        self.misses = self.misses.zip(more.misses).map(|(misses, more)| misses + more);
        self.steal_time.0 += more.steal_time.0;
    }

    fn per_job(&self, sum: u64) -> f64 {
        sum as f64 / self.jobs as f64
    }
}

/// One side of a comparison, over its windows that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// Windows run.
    pub windows: u64,
    /// Windows that count.
    #[serde(alias = "quiet")]
    pub accepted: u64,
    /// Jobs in those that count.
    pub jobs: u64,
    /// Execution time of a job, in ns: the mean of a block, and of these the median over all pairs.
    pub execution_ns: f64,
    /// Response time of a job, in ns, likewise.
    pub response_ns: f64,
    /// Longest response time. An observation, not a bound.
    pub response_max: Ns,
    /// Misses of a job, where they are counted, likewise.
    pub misses: Option<f64>,
}

/// By how much the mean of a quantity over the jobs of a block is larger without partitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The effect over all pairs of blocks. Its p-value is corrected for all quantities and tasks of the comparison.
    #[serde(flatten)]
    pub effect: Effect,
    /// The smallest effect that as many pairs, with the spread of these, show in 80 % of all comparisons.
    pub visible: f64,
}

impl Difference {
    /// The effect over pairs of blocks, with the standard deviation in place of [`visible`](Self::visible), which depends on how many effects are
    /// judged together; `None` for no pairs.
    fn of(differences: &[f64]) -> Option<Difference> {
        let effect = Effect::of(differences)?;
        let n = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / n;
        let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
        Some(Difference { effect, visible: (squares / (n - 1.0).max(1.0)).sqrt() })
    }
}

/// One task with and without partitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskComparison {
    /// The task.
    pub name: String,
    /// As planned.
    pub partitioned: Side,
    /// Without partitions.
    pub unpartitioned: Side,
    /// Execution time of a job, in ns. `None` where no pair of blocks is complete, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Difference>,
    /// Response time of a job, in ns, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Difference>,
    /// Misses of a job, where they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<Difference>,
}

impl Comparison {
    /// The comparison of tasks, each with its name and its windows as planned and without partitions, from `blocks` pairs of blocks.
    ///
    /// A pair of blocks gives one difference, as the windows of a block are not independent of each other: they share one start of the programs and
    /// one placement of their memory. All windows count, fast and slow, but those with much steal time ([`accepted`]). A block stands for the mean
    /// of its jobs, so that an effect in a minority of the windows shows as well.
    pub fn of<'a>(
        window: Ns,
        blocks: u64,
        tasks: impl IntoIterator<Item = (&'a str, [&'a [Window]; 2])>,
    ) -> Comparison {
        let compare = |(name, sides)| TaskComparison::of(name, sides, window);
        let mut comparison = Comparison { window, blocks, tasks: tasks.into_iter().map(compare).collect() };
        let mut differences: Vec<&mut Difference> =
            comparison.tasks.iter_mut().flat_map(TaskComparison::differences_mut).collect();
        let p = holm(&differences.iter().map(|difference| difference.effect.p).collect::<Vec<_>>());
        let effects = p.len();
        for (difference, p) in differences.iter_mut().zip(p) {
            difference.effect.p = p;
            difference.visible *= visible_effect(difference.effect.n, effects);
        }
        comparison
    }

    /// Pairs of blocks from which each of the effects that are judged together can be significant.
    pub fn pairs_needed(&self) -> u64 {
        blocks_needed(self.tasks.iter().cloned().map(|mut task| task.differences_mut().count()).sum())
    }
}

impl TaskComparison {
    fn of(name: &str, sides: [&[Window]; 2], length: Ns) -> TaskComparison {
        let undisturbed = |windows: &[Window]| -> Vec<Window> {
            let steal = |window: &Window| window.steal_time.0 as f64 / length.0.max(1) as f64;
            let gate = |window| Gate { canaries_lost: None, steal: steal(window), control: 0.0 };
            let counts = accepted(&windows.iter().map(gate).collect::<Vec<_>>());
            windows.iter().zip(counts).filter(|(_, counts)| *counts).map(|(window, _)| *window).collect()
        };
        let counted = sides.map(undisturbed);
        let blocks = counted.each_ref().map(|windows| {
            let mut blocks = BTreeMap::new();
            for window in windows {
                blocks.entry(window.block).or_insert_with(|| Window::new(window.block)).add(window);
            }
            blocks
        });
        let [planned, without] = &blocks;
        let pairs: Vec<[Window; 2]> =
            planned.iter().filter_map(|(block, planned)| Some([*planned, *without.get(block)?])).collect();
        let difference = |value: fn(&Window) -> Option<f64>| {
            let of = |[planned, without]: &[Window; 2]| Some(value(without)? - value(planned)?);
            Difference::of(&pairs.iter().map(of).collect::<Option<Vec<f64>>>()?)
        };
        let side = |at: usize| {
            // As robust as the effect: a mean over blocks would be one that a single disturbance of the whole run decides.
            let typical = |value: fn(&Window) -> Option<f64>| {
                median(&pairs.iter().map(|pair| value(&pair[at])).collect::<Option<Vec<f64>>>()?)
            };
            Side {
                windows: sides[at].len() as u64,
                accepted: counted[at].len() as u64,
                jobs: pairs.iter().map(|pair| pair[at].jobs).sum(),
                execution_ns: typical(execution_ns).unwrap_or_default(),
                response_ns: typical(response_ns).unwrap_or_default(),
                response_max: pairs.iter().map(|pair| pair[at].response_max).max().unwrap_or_default(),
                misses: typical(misses_per_job),
            }
        };
        TaskComparison {
            name: name.to_owned(),
            partitioned: side(0),
            unpartitioned: side(1),
            execution: difference(execution_ns),
            response: difference(response_ns),
            misses: difference(misses_per_job),
        }
    }

    fn differences_mut(&mut self) -> impl Iterator<Item = &mut Difference> {
        [&mut self.execution, &mut self.response, &mut self.misses].into_iter().flatten()
    }
}

fn execution_ns(block: &Window) -> Option<f64> {
    Some(block.per_job(block.execution.0))
}

fn response_ns(block: &Window) -> Option<f64> {
    Some(block.per_job(block.response.0))
}

fn misses_per_job(block: &Window) -> Option<f64> {
    block.misses.map(|misses| block.per_job(misses))
}

/// A task set that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// CPUs of the tasks.
    pub cpus: Vec<CpuId>,
    /// Whether programs had partitions of their own.
    pub partitioned: bool,
    /// By what means.
    #[serde(default)]
    pub method: Partitioning,
    /// What is reserved where tasks are scheduled by deadlines (SCHED_DEADLINE); empty for fixed priorities. The budget of a task is then what is
    /// reserved for its jobs, and it has no bound: those of plans are of fixed priorities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reserved>,
    /// The cache level partitioned.
    pub level: u8,
    /// From the first release to the end.
    pub duration: Ns,
    /// What came of the tasks, in the order of the plan.
    pub tasks: Vec<TaskOutcome>,
    /// The first jobs that exceed a limit.
    pub violations: Vec<Violation>,
    /// Failures of programs, in order.
    #[serde(alias = "faults")]
    pub failures: Vec<Failure>,
    /// What watching took.
    pub overhead: Overhead,
    /// Steal time of the CPUs of the tasks, to the resolution of the kernel's count.
    #[serde(alias = "stolen")]
    pub steal_time: Ns,
    /// What was changed on the machine, and that it was put back.
    pub settings: Vec<Setting>,
    /// The files it was made from, with their hashes.
    pub inputs: Vec<RawFile>,
    /// Memory that a program may use, its name and how much it had at most, where that was watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<(String, Bytes)>,
    /// The shortest wait after which the level has lost half of its contents here though its CPU touched nothing, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Ns>,
    /// The same set without partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// What a run shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// Every job of enough jobs stayed within its bound and its deadline.
    Holds,
    /// Some job did not, or a program failed.
    Violated,
    /// Neither can be said.
    Inconclusive,
}

/// Why a run shows what it shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Jobs took longer than they may, with the CPU theirs.
    Violated {
        /// The task.
        task: String,
        /// What.
        limit: Limit,
        /// How many.
        jobs: u64,
        /// Of how many.
        of: u64,
    },
    /// A program failed.
    Failed(Failure),
    /// Jobs took longer than they may, but steal time excuses all of them.
    StealTime {
        /// The task.
        task: String,
        /// What.
        limit: Limit,
        /// How many.
        jobs: u64,
        /// Of how many.
        of: u64,
    },
    /// Too few jobs.
    TooFewJobs {
        /// The task.
        task: String,
        /// How many.
        jobs: u64,
    },
    /// There is no bound.
    NoBound {
        /// The task.
        task: String,
    },
    /// The kernel had no room for some events, so jobs may be missing.
    Lost {
        /// How many.
        events: u64,
    },
    /// Pages lie outside their colors.
    OffColor {
        /// The task.
        task: String,
        /// Share of those that can be moved.
        share: f64,
    },
    /// Far fewer jobs were seen than its period lets expect.
    Missing {
        /// The task.
        task: String,
        /// Seen.
        jobs: u64,
        /// Expected.
        expected: u64,
    },
    /// Jobs were not released, because this program was held up.
    Skipped {
        /// How many.
        releases: u64,
        /// Of how many.
        of: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Violated { task, limit, jobs, of } => {
                write!(f, "{task}: {jobs} of {of} jobs exceeded the {limit}")
            }
            Reason::Failed(Failure { task, what, at }) => {
                write!(f, "{task}: {what}")?;
                if at.0 > 0 { write!(f, ", {:.3} s after the first release", at.0 as f64 / 1e9) } else { Ok(()) }
            }
            Reason::StealTime { task, limit, jobs, of } => {
                write!(
                    f,
                    "{task}: {jobs} of {of} jobs exceeded the {limit}, all by what it can have cost that the hypervisor withheld the CPU"
                )
            }
            Reason::TooFewJobs { task, jobs } => write!(
                f,
                "{task}: {jobs} jobs allow the claim that one more exceeds the longest with a probability of at most {:.2}; {JOBS_WANTED} are asked for",
                exceedance_at(*jobs, CONFIDENCE)
            ),
            Reason::NoBound { task } => write!(f, "{task}: the plan has no bound for it"),
            Reason::Lost { events } => write!(f, "{events} events of the scheduler were lost, so jobs may be missing"),
            Reason::Missing { task, jobs, expected } => {
                write!(f, "{task}: {jobs} jobs were seen where its period lets expect {expected}")
            }
            Reason::Skipped { releases, of } => {
                write!(f, "{releases} of {of} jobs were not released, as isochrome was held up when they were due")
            }
            Reason::OffColor { task, share } => {
                write!(f, "{task}: {:.1} % of its pages that can be moved lay outside its colors", share * 100.0)
            }
        }
    }
}

impl Run {
    /// What the run shows, and why. A violation that steal time excuses makes the run inconclusive instead of violated.
    pub fn conclusion(&self) -> (Conclusion, Vec<Reason>) {
        let (mut violated, mut doubts) = (Vec::new(), Vec::new());
        // By deadlines, what holds for a job is its deadline, and that it needs no more than is reserved.
        let proved = !self.reserved.is_empty() && self.reserved.iter().all(Reserved::is_proved);
        for task in &self.tasks {
            let name = || task.requirement.name.clone();
            let limits = [
                (Limit::Bound, task.bound_violations),
                (Limit::Deadline, task.deadline_violations),
                (Limit::Budget, task.budget_violations),
            ];
            for (limit, violations) in limits {
                if violations.own() > 0 {
                    violated.push(Reason::Violated { task: name(), limit, jobs: violations.own(), of: task.jobs });
                } else if violations.excused > 0 {
                    doubts.push(Reason::StealTime { task: name(), limit, jobs: violations.excused, of: task.jobs });
                }
            }
            if task.requirement.bound.is_none() && !proved {
                doubts.push(Reason::NoBound { task: name() });
            }
            if task.jobs < JOBS_WANTED {
                doubts.push(Reason::TooFewJobs { task: name(), jobs: task.jobs });
            }
            let expected = self.duration.0 / task.requirement.period.0.max(1);
            if (task.jobs as f64) < EXPECTED_MIN * expected.saturating_sub(1) as f64 {
                doubts.push(Reason::Missing { task: name(), jobs: task.jobs, expected });
            }
            if let Some(share) =
                task.placement.as_ref().map(Placement::off_color).filter(|&share| share > OFF_COLOR_MAX)
            {
                doubts.push(Reason::OffColor { task: name(), share });
            }
        }
        violated.extend(self.failures.iter().cloned().map(Reason::Failed));
        if self.overhead.lost > 0 {
            doubts.push(Reason::Lost { events: self.overhead.lost });
        }
        let releases = self.overhead.releases_skipped;
        let of = releases + self.tasks.iter().map(|task| task.jobs).sum::<u64>();
        if releases as f64 > SKIPPED_MAX * of as f64 {
            doubts.push(Reason::Skipped { releases, of });
        }
        match (violated.is_empty(), doubts.is_empty()) {
            (false, _) => (Conclusion::Violated, violated),
            (true, false) => (Conclusion::Inconclusive, doubts),
            (true, true) => (Conclusion::Holds, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requirement() -> Requirement {
        Requirement {
            name: "control".to_owned(),
            period: Ns(1000),
            deadline: Ns(900),
            bound: Some(ResponseBound(Ns(500))),
            without_interference: Some(Ns(400)),
            budget: Some(Ns(300)),
            wcet: Some(Ns(250)),
            utilization: Some(0.3),
        }
    }

    fn job(instance: u64, response: u64, execution: u64, steal_time: u64) -> JobRecord {
        JobRecord {
            instance,
            release: Ns(1000 * instance),
            start: Ns(1000 * instance + 10),
            completion: Ns(1000 * instance + response),
            execution: Ns(execution),
            steal_time: Ns(steal_time),
            ..JobRecord::default()
        }
    }

    fn run(jobs: &[JobRecord]) -> Run {
        let mut tally = Tally::new(requirement());
        jobs.iter().for_each(|job| {
            tally.push(job);
        });
        Run {
            cpus: vec![CpuId(1)],
            partitioned: true,
            method: Partitioning::Colors,
            reserved: Vec::new(),
            level: 2,
            duration: Ns(1000 * jobs.len() as u64),
            tasks: vec![tally.outcome()],
            violations: Vec::new(),
            failures: Vec::new(),
            overhead: Overhead::default(),
            steal_time: Ns(0),
            settings: Vec::new(),
            inputs: Vec::new(),
            memory: Vec::new(),
            retention: None,
            comparison: None,
        }
    }

    fn good(n: u64) -> Vec<JobRecord> {
        (0..n).map(|instance| job(instance, 400 + instance % 100, 200, 0)).collect()
    }

    #[test]
    fn a_job_is_a_line_with_an_empty_field_for_what_was_not_measured() {
        let (mut lines, job) = (String::new(), job(3, 850, 200, 7));
        job.csv_line(2, true, "control", &mut lines);
        JobRecord { misses: Some(18), preemptions: 1, ..job }.csv_line(0, false, "b", &mut lines);
        let expected = "2,1,control,3,3000,3010,3850,850,200,,0,7\n0,0,b,3,3000,3010,3850,850,200,18,1,7\n";
        assert_eq!(lines, expected);
        assert_eq!(JobRecord::CSV_HEADER.split(',').count(), expected.lines().next().unwrap().split(',').count());
    }

    #[test]
    fn by_deadlines_a_run_holds_without_a_bound_where_what_is_reserved_fits() {
        let jobs: Vec<JobRecord> = (0..JOBS_WANTED).map(|instance| job(instance, 850, 200, 0)).collect();
        let mut run = run(&jobs);
        run.tasks
            .iter_mut()
            .for_each(|task| (task.requirement.bound, task.bound_violations) = (None, ViolationCount::default()));
        assert_eq!(run.conclusion().0, Conclusion::Inconclusive);
        run.reserved = vec![Reserved { cpu: CpuId(1), density: 0.9, most: 0.95 }];
        assert_eq!(run.conclusion(), (Conclusion::Holds, Vec::new()));
        run.reserved[0].density = 0.96;
        assert_eq!(run.conclusion().1, [Reason::NoBound { task: "control".to_owned() }]);
    }

    #[test]
    fn a_run_holds_with_enough_jobs_within_all_limits() {
        assert_eq!(run(&good(299)).conclusion(), (Conclusion::Holds, vec![]));
        let (conclusion, reasons) = run(&good(298)).conclusion();
        assert_eq!(conclusion, Conclusion::Inconclusive);
        assert_eq!(reasons, [Reason::TooFewJobs { task: "control".to_owned(), jobs: 298 }]);
    }

    #[test]
    fn a_response_equal_to_its_bound_holds_and_one_more_nanosecond_does_not() {
        assert_eq!(requirement().violated_by(Ns(500), Ns(300)), []);
        assert_eq!(requirement().violated_by(Ns(501), Ns(300)), [Limit::Bound]);
        assert_eq!(requirement().violated_by(Ns(901), Ns(301)), [Limit::Bound, Limit::Deadline, Limit::Budget]);
    }

    #[test]
    fn one_job_beyond_its_bound_violates_however_many_hold() {
        let mut jobs = good(10_000);
        jobs.push(job(10_000, 501, 200, 0));
        let (conclusion, reasons) = run(&jobs).conclusion();
        assert_eq!(conclusion, Conclusion::Violated);
        let violations = Reason::Violated { task: "control".to_owned(), limit: Limit::Bound, jobs: 1, of: 10_001 };
        assert_eq!(reasons, [violations]);
    }

    #[test]
    fn a_job_with_steal_time_that_exceeds_its_bound_leaves_it_open() {
        let mut jobs = good(1000);
        jobs.push(job(1000, 800, 200, 300));
        let (conclusion, reasons) = run(&jobs).conclusion();
        assert_eq!(conclusion, Conclusion::Inconclusive);
        assert!(reasons[0].to_string().ends_with("withheld the CPU"), "{}", reasons[0]);
        // 800 exceeds the bound of 500 by 300, which 30 can excuse and 29 cannot.
        for (steal_time, expected) in [(30, Conclusion::Inconclusive), (29, Conclusion::Violated)] {
            jobs[1000].steal_time = Ns(steal_time);
            assert_eq!(run(&jobs).conclusion().0, expected);
        }
    }

    #[test]
    fn a_task_of_which_few_jobs_were_seen_does_not_hold() {
        let mut silent = run(&good(400));
        silent.duration = Ns(500_000);
        let missing = Reason::Missing { task: "control".to_owned(), jobs: 400, expected: 500 };
        assert_eq!(silent.conclusion(), (Conclusion::Inconclusive, vec![missing]));
    }

    #[test]
    fn what_failed_what_was_lost_and_what_lies_elsewhere_is_named() {
        let mut failed = run(&good(299));
        failed.failures.push(Failure { task: "hog".to_owned(), at: Ns(5), what: "ended with code 3".to_owned() });
        assert_eq!(failed.conclusion().0, Conclusion::Violated);
        let mut lossy = run(&good(299));
        lossy.overhead.lost = 7;
        assert_eq!(lossy.conclusion(), (Conclusion::Inconclusive, vec![Reason::Lost { events: 7 }]));
        let mut drifted = run(&good(299));
        let placement = Placement { colors: vec![Color(0)], resident: 120, on_color: 90, immovable: 20 };
        assert_eq!(placement.off_color(), 0.1);
        drifted.tasks[0].placement = Some(placement);
        assert_eq!(drifted.conclusion().0, Conclusion::Inconclusive);
    }

    #[test]
    fn a_million_jobs_take_no_more_memory_than_a_few() {
        let mut tally = Tally::new(requirement());
        let memory = allocation_counter::measure(|| {
            for instance in 0..1_000_000 {
                tally.push(&JobRecord { misses: Some(instance % 7), ..job(instance, 400 + instance % 90_000, 200, 0) });
            }
        });
        assert!(memory.bytes_max < 64 << 10, "{} bytes", memory.bytes_max);
        assert_eq!(tally.outcome().jobs, 1_000_000);
    }

    #[test]
    fn the_four_utilizations_of_figure_13() {
        let outcome = &run(&[job(0, 400, 200, 0), job(1, 400, 240, 0)]).tasks[0];
        let expected =
            Utilization { alone: Some(0.25), with_delays: Some(0.3), worst: Some(0.24), average: Some(0.22) };
        assert_eq!(outcome.utilization(), expected);
        assert_eq!(outcome.response.unwrap().high_water_mark, HighWaterMark { value: 400, n: 2, last_rose_at: 1 });
    }

    /// A window of ten jobs of `execution` ns each, which respond 5 ns later.
    fn window(block: u64, execution: u64) -> Window {
        let mut window = Window::new(block);
        (0..10).for_each(|instance| window.push(&job(instance, execution + 5, execution, 0)));
        window
    }

    fn compared(sides: [&[Window]; 2]) -> TaskComparison {
        Comparison::of(Ns(10_000), 20, [("a", sides)]).tasks.remove(0)
    }

    #[test]
    fn a_comparison_has_a_difference_for_every_pair_of_blocks() {
        // Pair by pair 10, 11, ... 15 ns more without partitions; of the block without a partner nothing is used.
        let planned: Vec<Window> = (0..6).map(|block| window(block, 100 + block % 3)).collect();
        let without: Vec<Window> = (0..7).map(|block| window(block, 110 + block % 3 + block)).collect();
        let task = compared([&planned, &without]);
        let execution = task.execution.unwrap();
        assert_eq!((execution.effect.n, execution.effect.estimate), (6, 12.5));
        // Of six of one sign 2 of 64 assignments of signs are as extreme; execution and response are judged together.
        assert_eq!((execution.effect.p, task.response.unwrap().effect.p), (0.0625, 0.0625));
        assert_eq!((task.partitioned.execution_ns, task.unpartitioned.response_ns), (101.0, 118.5));
        assert_eq!((task.unpartitioned.windows, task.unpartitioned.accepted, task.unpartitioned.jobs), (7, 7, 60));
        assert_eq!((task.misses, task.partitioned.misses), (None, None));
        // The deviation of 10 to 15 is 1.87; of two effects, 80 % of comparisons of six pairs show 3.08 √(π/18) = 1.29 of it.
        assert!((execution.visible - 2.41).abs() < 0.01, "{execution:?}");
    }

    #[test]
    fn misses_are_compared_where_every_job_was_counted() {
        let counted = |block, misses: Option<u64>| {
            let mut window = window(block, 100);
            window.misses = misses;
            window
        };
        let planned: Vec<Window> = (0..8).map(|block| counted(block, Some(10 * block))).collect();
        let without: Vec<Window> = (0..8).map(|block| counted(block, Some(10 * block + 20))).collect();
        let task = compared([&planned, &without]);
        assert_eq!((task.misses.unwrap().effect.estimate, task.partitioned.misses), (2.0, Some(3.5)));
        let [first, rest @ ..] = &planned[..] else { panic!() };
        let partly = [&[Window { misses: None, ..*first }], rest].concat();
        assert_eq!(compared([&partly, &without]).misses, None);
        let mut pushed = Window::new(0);
        pushed.push(&JobRecord { misses: Some(3), ..job(0, 9, 9, 0) });
        assert_eq!(pushed.misses, Some(3));
    }

    #[test]
    fn a_difference_in_most_windows_is_not_selected_away() {
        // 12 of 20 windows take half as long again without partitions: 30 % more on average. By the windows near the quickest of either kind it
        // was 100 against 101, and conclusive.
        let planned: Vec<Window> = (0..20).map(|block| window(block, 100 + block % 3)).collect();
        let without: Vec<Window> = (0..20).map(|block| window(block, if block % 5 < 3 { 150 } else { 101 })).collect();
        let execution = compared([&planned, &without]).execution.unwrap().effect;
        assert!(
            execution.is_significant() && execution.interval.is_some_and(|[low, high]| low < 29.0 && high > 29.0),
            "{execution:?}"
        );
    }

    #[test]
    fn windows_with_much_steal_time_do_not_count_and_slow_ones_do() {
        let planned: Vec<Window> = (0..6).map(|block| window(block, 100)).collect();
        let mut without: Vec<Window> = (0..6).map(|block| window(block, 200)).collect();
        // 5 % of 10 000 ns, and more.
        without[1].steal_time = Ns(500);
        without[2].steal_time = Ns(501);
        let task = compared([&planned, &without]);
        assert_eq!((task.partitioned.accepted, task.unpartitioned.accepted), (6, 5));
        assert_eq!(task.execution.unwrap().effect.n, 5);
        // A job that waits for 30 ns has at most 30 ns of steal time, however much there was before.
        let mut window = Window::new(0);
        window.push(&job(0, 30, 20, 5000));
        assert_eq!(window.steal_time, Ns(30));
    }

    #[test]
    fn comparisons_of_earlier_versions_are_read() {
        let side = r#"{"windows":12,"quiet":5,"jobs":60,"execution_ns":100.0,"response_ns":105.0,"response_max":9,"misses":null}"#;
        let task = format!(r#"{{"name":"a","partitioned":{side},"unpartitioned":{side}}}"#);
        let task: TaskComparison = serde_json::from_str(&task).unwrap();
        assert_eq!((task.partitioned.accepted, task.execution), (5, None));
    }

    proptest! {
        #[test]
        fn an_envelope_keeps_every_peak_in_its_place(values in proptest::collection::vec(0u64..1_000_000, 1..5000)) {
            let mut envelope = Envelope::default();
            values.iter().for_each(|&value| envelope.push(Ns(value)));
            prop_assert!(envelope.extents.len() <= Envelope::STRETCHES);
            let stretches = values.chunks(envelope.stride as usize);
            let naive: Vec<Extent> = stretches
                .map(|stretch| Extent { low: Ns(*stretch.iter().min().unwrap()), high: Ns(*stretch.iter().max().unwrap()) })
                .collect();
            prop_assert_eq!(envelope.extents, naive);
        }

        #[test]
        fn quantiles_of_a_spread_are_those_of_the_values_to_a_64th(
            values in proptest::collection::vec(0u64..100_000_000_000, 1..300), percent in 1u64..=100
        ) {
            let mut spread = Spread::default();
            values.iter().for_each(|&value| spread.push(value));
            let exact = crate::stats::Sorted::of(values).unwrap().quantile(percent as f64 / 100.0);
            let found = spread.quantile(percent as f64 / 100.0).unwrap();
            prop_assert!(exact <= found && found <= exact + exact / 64, "{exact} {found}");
        }

        #[test]
        fn places_of_a_spread_are_in_order_and_cover_everything(value in 0u64..=u64::MAX) {
            let place = Spread::place(value);
            prop_assert!(value <= Spread::top(place));
            prop_assert!(place == 0 || Spread::top(place - 1) < value);
        }
    }
}
