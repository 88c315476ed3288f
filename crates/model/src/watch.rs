//! What tasks do over time, slice by slice: who had which CPU from when to when, and what the cache did meanwhile. [Sebek2002, §3.2]
//!
//! A *slice* is the time from the switch to a thread until the switch away from it. Where counters are read at switches, a slice has what they
//! counted; elsewhere it has not, and everything that follows from counts is absent rather than zero.

mod section;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{HighWaterMark, median};
use crate::units::{CpuId, Ns};

/// Version of the form of recorded slices.
pub const SCHEMA: &str = "isochrome-slices/2";
/// The one before, which is read too: without what is known of the watch as a whole.
pub const SCHEMA_BEFORE: &str = "isochrome-slices/1";

/// What counters counted in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Accesses to the level watched.
    pub accesses: u64,
    /// Those that missed.
    pub misses: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// Cycles of the core.
    pub cycles: u64,
}

impl Counts {
    /// Misses per access; `None` without accesses.
    pub fn miss_ratio(self) -> Option<f64> {
        (self.accesses > 0).then(|| self.misses as f64 / self.accesses as f64)
    }

    fn add(&mut self, more: Counts) {
        self.accesses += more.accesses;
        self.misses += more.misses;
        self.instructions += more.instructions;
        self.cycles += more.cycles;
    }
}

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SwitchOut {
    /// Another thread preempted it.
    Preempted,
    /// It sleeps until it is woken.
    Asleep,
    /// It waits for the kernel or a device, or was stopped.
    Blocked,
    /// It has ended.
    Ended,
}

/// Time for which a thread had a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// Which CPU.
    pub cpu: CpuId,
    /// Which thread.
    pub thread: i32,
    /// Its name.
    pub name: String,
    /// From when, by a clock that is never set.
    pub begin: Ns,
    /// Until when.
    pub end: Ns,
    /// How it ended.
    pub left: SwitchOut,
    /// What was counted; absent where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
}

/// Time of a CPU of which nothing is known: slices are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// Which CPU.
    pub cpu: CpuId,
    /// Until when.
    pub end: Ns,
    /// Events that the kernel had no room for; `None` where others had the counters.
    pub lost: Option<u64>,
}

/// What is known of a watch as a whole: each says all that the ones before it did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// The steal time of each CPU. Empty where the kernel does not say.
    #[serde(default, alias = "stolen", skip_serializing_if = "Vec::is_empty")]
    pub steal: Vec<CpuSteal>,
    /// What it cost; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// What it cannot tell, and why.
    pub notes: Vec<String>,
}

/// The share of a CPU's time that is steal time: the hypervisor gave the CPU to others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuSteal {
    /// Which CPU.
    pub cpu: CpuId,
    /// Share of the time.
    pub share: f64,
}

/// What is seen of a CPU, one thing after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entry {
    /// A thread had it.
    Slice(Slice),
    /// It is not known who had it.
    Gap(Gap),
    /// What is known of the watch itself by now.
    State(State),
}

/// Slices with fewer accesses are not asked for their miss ratio: a few misses at the switch would be all of it.
const ACCESSES_MIN: u64 = 1000;
/// Slices kept of each task, for its timeline.
const KEPT: usize = 64;
/// Parts into which a watch is divided, at most: about as many as a figure can show.
const PARTS: u64 = 120;
/// Time of a part of a watch that has just begun.
const PART_NS_MIN: u64 = 1 << 10;

/// What a task did in a part of the watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// Time it had a CPU, in ns.
    pub run_ns: u64,
    /// Part of that time in slices that have a miss ratio, in ns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rated_ns: u64,
    /// The sum of that time, each multiplied by the miss ratio.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub missed_ns: f64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_nothing(number: &f64) -> bool {
    *number == 0.0
}

impl Part {
    fn add(&mut self, run_ns: u64, ratio: Option<f64>) {
        self.run_ns += run_ns;
        if let Some(ratio) = ratio {
            self.rated_ns += run_ns;
            self.missed_ns += run_ns as f64 * ratio;
        }
    }

    fn merge(&mut self, other: Part) {
        self.run_ns += other.run_ns;
        self.rated_ns += other.rated_ns;
        self.missed_ns += other.missed_ns;
    }

    /// The mean miss ratio by time; `None` where no slice has one.
    pub fn miss_ratio(self) -> Option<f64> {
        (self.rated_ns > 0).then(|| self.missed_ns / self.rated_ns as f64)
    }
}

/// What is known of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatistics {
    /// Its name.
    pub name: String,
    /// CPU it had last.
    pub cpu: CpuId,
    /// Slices, each of which ends with a switch.
    pub slices: u64,
    /// Those that ended because another took the CPU.
    pub preemptions: u64,
    /// Slices on another CPU than the one before.
    pub migrations: u64,
    /// Time it had a CPU, in ns.
    pub run_ns: u64,
    /// The longest slice, in ns.
    pub slice_ns_max: HighWaterMark,
    /// The most time on a CPU between two sleeps, or from the last to its end, in ns; absent while neither was seen. Jobs in which slices
    /// are missing are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_ns_max: Option<HighWaterMark>,
    /// All that was counted; absent without counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// Miss ratio of the last slice that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_ratio_now: Option<f64>,
    /// The highest miss ratio of a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_ratio_worst: Option<f64>,
    /// The last slices: begin, end, miss ratio. [Sebek2002, Figure 6]
    pub timeline: VecDeque<(Ns, Ns, Option<f64>)>,
    /// What it did in the parts of the watch, those of [`Watched::part_ns`] since the clock's zero; those in which it had no CPU are left out.
    #[serde(default)]
    pub parts: BTreeMap<u64, Part>,
    /// Whether it has ended.
    #[serde(default)]
    pub ended: bool,
    /// Time on a CPU since it slept; `None` where it is not known whether it has slept, up to when it next does.
    #[serde(skip)]
    job_ns: Option<u64>,
}

impl TaskStatistics {
    fn new(slice: &Slice) -> TaskStatistics {
        TaskStatistics {
            name: slice.name.clone(),
            cpu: slice.cpu,
            slices: 0,
            preemptions: 0,
            migrations: 0,
            run_ns: 0,
            slice_ns_max: HighWaterMark { value: 0, n: 0, last_rose_at: 0 },
            job_ns_max: None,
            counts: None,
            miss_ratio_now: None,
            miss_ratio_worst: None,
            timeline: VecDeque::new(),
            parts: BTreeMap::new(),
            ended: false,
            job_ns: Some(0),
        }
    }

    fn note(&mut self, slice: &Slice, part_ns: u64) {
        let time = slice.end.0.saturating_sub(slice.begin.0);
        self.slices += 1;
        self.preemptions += u64::from(slice.left == SwitchOut::Preempted);
        self.migrations += u64::from(self.cpu != slice.cpu);
        self.cpu = slice.cpu;
        if !slice.name.is_empty() {
            self.name.clone_from(&slice.name);
        }
        self.run_ns += time;
        self.job_ns = self.job_ns.map(|job| job + time);
        self.slice_ns_max.push(time);
        if matches!(slice.left, SwitchOut::Asleep | SwitchOut::Ended) {
            match (self.job_ns.replace(0), &mut self.job_ns_max) {
                (Some(job), Some(mark)) => mark.push(job),
                (Some(job), none) => *none = HighWaterMark::of(&[job]),
                (None, _) => {}
            }
        }
        if let Some(counts) = slice.counts {
            self.counts.get_or_insert_default().add(counts);
        }
        let ratio = slice.counts.filter(|counts| counts.accesses >= ACCESSES_MIN).and_then(Counts::miss_ratio);
        if let Some(ratio) = ratio {
            self.miss_ratio_now = Some(ratio);
            self.miss_ratio_worst = Some(self.miss_ratio_worst.map_or(ratio, |worst| worst.max(ratio)));
        }
        if self.timeline.len() == KEPT {
            self.timeline.pop_front();
        }
        self.timeline.push_back((slice.begin, slice.end, ratio));
        self.ended = slice.left == SwitchOut::Ended;
        let mut begin = slice.begin.0;
        while begin < slice.end.0 {
            let part = begin / part_ns;
            let end = slice.end.0.min((part + 1) * part_ns);
            self.parts.entry(part).or_default().add(end - begin, ratio);
            begin = end;
        }
    }

    /// Misses per access over all slices.
    pub fn miss_ratio(&self) -> Option<f64> {
        self.counts?.miss_ratio()
    }

    /// Misses per second on a CPU.
    pub fn misses_per_second(&self) -> Option<f64> {
        (self.run_ns > 0).then_some(self.counts?.misses as f64 * 1e9 / self.run_ns as f64)
    }

    /// Instructions per cycle.
    pub fn instructions_per_cycle(&self) -> Option<f64> {
        let counts = self.counts?;
        (counts.cycles > 0).then(|| counts.instructions as f64 / counts.cycles as f64)
    }
}

/// What the kernel takes to write a record, on the CPU that it is of: measured on this machine before the watch, alternating between with and without records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordCost {
    /// Where it was measured.
    pub cpu: CpuId,
    /// The median of the pairs, in ns.
    pub ns: f64,
    /// A quarter of them was below this.
    pub ns_low: f64,
    /// A quarter of them was above this.
    pub ns_high: f64,
    /// How many there were.
    pub pairs: u64,
}

impl RecordCost {
    /// By what a record took in each pair; `None` without any.
    pub fn of(cpu: CpuId, pairs: &[f64]) -> Option<RecordCost> {
        let mut sorted = pairs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let quarter = |quarter: usize| sorted.get(sorted.len() * quarter / 4).copied();
        let (ns_low, ns_high) = (quarter(1)?, quarter(3)?);
        Some(RecordCost { cpu, ns: median(pairs)?, ns_low, ns_high, pairs: pairs.len() as u64 })
    }
}

/// The share of a CPU that watching is to take at most, at 10 000 events a second.
pub const COST_GOAL: f64 = 0.01;

/// What watching cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Share of one CPU that the watching process took.
    pub cpu_share: f64,
    /// Times per second that it looked.
    pub looks_per_second: f64,
    /// Events per second that the kernel wrote for it.
    pub events_per_second: f64,
    /// Times per second that its tasks took a CPU to read counters; absent where none polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls_per_second: Option<f64>,
    /// What each of the events cost the CPU on which it was written; absent where that could not be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordCost>,
}

impl Cost {
    /// The share of one CPU that the kernel's writing took, summed over the CPUs watched: an estimate, with its quartiles.
    pub fn kernel_share(&self) -> Option<[f64; 3]> {
        let record = self.record?;
        Some([record.ns, record.ns_low, record.ns_high].map(|ns| self.events_per_second * ns.max(0.0) / 1e9))
    }
}

/// What tasks can be sorted by, the most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Time on a CPU.
    #[default]
    Time,
    /// The highest miss ratio of a slice.
    WorstMissRatio,
    /// Misses.
    Misses,
    /// The longest slice.
    Slice,
    /// The most time on a CPU between two sleeps.
    Job,
    /// Slices.
    Slices,
}

/// What is said of every task, and how many characters it takes.
pub const COLUMNS: [(&str, usize); 13] = [
    ("thread", 8),
    ("name", 16),
    ("cpu", 3),
    ("share", 7),
    ("slices", 7),
    ("preempt", 7),
    ("migr", 5),
    ("slice max", 10),
    ("job max", 10),
    ("miss", 7),
    ("worst", 7),
    ("misses/s", 9),
    ("ipc", 5),
];

/// Columns that are empty without counters.
pub const COUNTED: std::ops::Range<usize> = 9..13;

/// A bar of a timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Since when.
    pub from: Ns,
    /// Until when.
    pub to: Ns,
    /// Share of that time for which a task had a CPU.
    pub share: f64,
    /// Its miss ratio meanwhile; absent where no slice has one.
    pub miss_ratio: Option<f64>,
}

impl Bar {
    fn new(from: u64, to: u64, part: Part) -> Bar {
        let share = part.run_ns as f64 / to.saturating_sub(from).max(1) as f64;
        Bar { from: Ns(from), to: Ns(to), share, miss_ratio: part.miss_ratio() }
    }
}

/// What was watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Watched {
    /// Tasks by thread.
    pub tasks: BTreeMap<i32, TaskStatistics>,
    /// Tasks that have ended and whose numbers other ones have now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<(i32, TaskStatistics)>,
    /// Tasks that were seen and are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// When the first slice began.
    pub begin: Option<Ns>,
    /// When the last one ended.
    pub end: Ns,
    /// Time of the parts into which it is divided, in ns: a power of two.
    #[serde(default)]
    pub part_ns: u64,
    /// Events that the kernel had no room for: where there are any, slices are missing.
    pub lost: u64,
    /// Times that others had the counters of a CPU: slices are missing there too.
    #[serde(default)]
    pub counters_taken: u64,
    /// The rest that is known of it.
    #[serde(flatten)]
    pub state: State,
}

impl Watched {
    /// Takes note of what was seen next.
    pub fn note(&mut self, entry: &Entry) {
        let slice = match entry {
            Entry::Slice(slice) => slice,
            Entry::Gap(gap) => {
                // Any task may have come to that CPU and slept there: what follows may belong to its next job.
                self.tasks.values_mut().for_each(|task| task.job_ns = None);
                match gap.lost {
                    Some(events) => self.lost += events,
                    None => self.counters_taken += 1,
                }
                return;
            }
            Entry::State(state) => {
                self.state.clone_from(state);
                return;
            }
        };
        self.begin = Some(self.begin.map_or(slice.begin, |begin| begin.min(slice.begin)));
        self.end = self.end.max(slice.end);
        self.divide();
        // The kernel gives the number of a thread that has ended to another one.
        if self.tasks.get(&slice.thread).is_some_and(|task| task.ended) {
            self.former.extend(self.tasks.remove_entry(&slice.thread));
        }
        self.tasks.entry(slice.thread).or_insert_with(|| TaskStatistics::new(slice)).note(slice, self.part_ns);
    }

    /// Puts parts together until there are few enough.
    fn divide(&mut self) {
        self.part_ns = self.part_ns.max(PART_NS_MIN);
        let begin = self.begin.unwrap_or(self.end).0;
        while self.end.0 / self.part_ns - begin / self.part_ns >= PARTS {
            self.part_ns *= 2;
            for task in self.tasks.values_mut().chain(self.former.iter_mut().map(|(_, task)| task)) {
                for (at, part) in std::mem::take(&mut task.parts) {
                    task.parts.entry(at / 2).or_default().merge(part);
                }
            }
        }
    }

    /// The same with the `rows` tasks that had a CPU longest, and what was seen of the others in sum.
    pub fn longest(&self, rows: usize) -> Watched {
        let mut shown = self.clone();
        (shown.tasks, shown.former) = (BTreeMap::new(), Vec::new());
        for (thread, task) in self.sorted(Order::Time).into_iter().take(rows) {
            let same_number = shown.tasks.insert(thread, task.clone());
            shown.former.extend(same_number.map(|task| (thread, task)));
        }
        shown.left_out += (self.all().count() - shown.all().count()) as u64;
        shown
    }

    /// For how long it was watched, in ns.
    pub fn watched_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.begin.unwrap_or(self.end).0)
    }

    /// Whether anything was counted.
    pub fn has_counters(&self) -> bool {
        self.all().any(|(_, task)| task.counts.is_some())
    }

    /// All tasks with the numbers of their threads.
    fn all(&self) -> impl Iterator<Item = (i32, &TaskStatistics)> {
        let former = self.former.iter().map(|(thread, task)| (*thread, task));
        self.tasks.iter().map(|(thread, task)| (*thread, task)).chain(former)
    }

    /// All tasks, in this order.
    pub fn sorted(&self, order: Order) -> Vec<(i32, &TaskStatistics)> {
        let mut tasks: Vec<_> = self.all().collect();
        // What is not known comes last.
        let key = |task: &TaskStatistics| match order {
            Order::Time => task.run_ns as f64,
            Order::WorstMissRatio => task.miss_ratio_worst.unwrap_or(-1.0),
            Order::Misses => task.counts.map_or(-1.0, |counts| counts.misses as f64),
            Order::Slice => task.slice_ns_max.value as f64,
            Order::Job => task.job_ns_max.map_or(-1.0, |mark| mark.value as f64),
            Order::Slices => task.slices as f64,
        };
        tasks.sort_by(|(_, a), (_, b)| key(b).total_cmp(&key(a)));
        tasks
    }

    /// What holds of all tasks together: how many, for how long, the steal time, and how far the counters can be trusted.
    pub fn head(&self) -> String {
        let seconds = self.watched_ns() as f64 / 1e9;
        let tasks = (self.tasks.len() + self.former.len()) as u64 + self.left_out;
        let mut text = format!("{tasks} tasks in {seconds:.2} s");
        for CpuSteal { cpu, share } in &self.state.steal {
            let _ = write!(text, ", CPU {} steal {:.1} %", cpu.0, 100.0 * share);
        }
        if self.lost > 0 {
            let _ = write!(text, ", {} events lost: slices are missing", self.lost);
        }
        if self.counters_taken > 0 {
            let _ = write!(text, ", others had the counters {} times: slices are missing", self.counters_taken);
        }
        if !self.has_counters() {
            text.push_str("; no counters: misses and instructions are not known");
        }
        text
    }

    /// What is said of a task, column by column as in [`COLUMNS`].
    pub fn cells(&self, thread: i32, task: &TaskStatistics) -> [String; COLUMNS.len()] {
        let number = |value: Option<f64>, digits| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        let us = |mark: Option<HighWaterMark>| {
            mark.map_or("-".to_owned(), |mark| format!("{:.1} us", mark.value as f64 / 1e3))
        };
        [
            thread.to_string(),
            task.name.clone(),
            task.cpu.0.to_string(),
            percent(Some(task.run_ns as f64 / self.watched_ns().max(1) as f64)),
            task.slices.to_string(),
            task.preemptions.to_string(),
            task.migrations.to_string(),
            us(Some(task.slice_ns_max)),
            us(task.job_ns_max),
            percent(task.miss_ratio_now),
            percent(task.miss_ratio_worst),
            number(task.misses_per_second(), 0),
            number(task.instructions_per_cycle(), 2),
        ]
    }

    /// From when on the slices of all of `tasks` are kept; `None` where there are none.
    pub fn kept_since(&self, tasks: &[(i32, &TaskStatistics)]) -> Option<Ns> {
        let kept = tasks.iter().filter(|(_, task)| task.timeline.len() == KEPT);
        let from = kept.filter_map(|(_, task)| Some(task.timeline.front()?.0)).max().or(self.begin);
        from.filter(|from| from.0 < self.end.0)
    }

    /// All of the watch in bars: what `task` did in each part of it.
    pub fn bars(&self, task: &TaskStatistics) -> Vec<Bar> {
        let (Some(begin), width) = (self.begin, self.part_ns.max(1)) else { return Vec::new() };
        let bar = |(at, part): (&u64, &Part)| {
            Bar::new(
                at.saturating_mul(width).max(begin.0),
                at.saturating_add(1).saturating_mul(width).min(self.end.0),
                *part,
            )
        };
        task.parts.iter().map(bar).collect()
    }

    /// The time from `from` on in `columns` bars, by the slices of `task` that are kept.
    pub fn recent_bars(&self, task: &TaskStatistics, from: Ns, columns: u16) -> Vec<Bar> {
        let span = self.end.0.saturating_sub(from.0);
        let edge = |column: u16| from.0 + (u128::from(span) * u128::from(column) / u128::from(columns)) as u64;
        let bar = |column: u16| {
            let (left, right) = (edge(column), edge(column + 1));
            let mut part = Part::default();
            for (begin, end, ratio) in &task.timeline {
                part.add(end.0.min(right).saturating_sub(begin.0.max(left)), *ratio);
            }
            Bar::new(left, right, part)
        };
        (0..columns).map(bar).collect()
    }

    /// The time from `from` on in `columns` bars: the miss ratio of `task` where anything is counted, else the share of the time for which it
    /// had a CPU. [Sebek2002, Figure 6]
    pub fn strip(&self, task: &TaskStatistics, from: Ns, columns: u16) -> String {
        const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let counters = self.has_counters();
        let level = |bar: Bar| {
            // What has no miss ratio says nothing of it.
            let height = if counters { bar.miss_ratio.unwrap_or(0.0) } else { bar.share };
            // Whatever there was is seen.
            LEVELS[(height * 8.0).ceil().clamp(0.0, 8.0) as usize]
        };
        self.recent_bars(task, from, columns).into_iter().map(level).collect()
    }

    /// What the bars of [`strip`](Self::strip) mean.
    pub fn strip_head(&self, from: Ns) -> String {
        let what = if self.has_counters() { "miss ratio" } else { "share of the time on a CPU" };
        format!("the last {:.1} ms, {what}", self.end.0.saturating_sub(from.0) as f64 / 1e6)
    }

    /// What watching cost, if it is known: two lines.
    pub fn cost_text(&self) -> String {
        let Some(cost) = self.state.cost else { return String::new() };
        let polls = cost.polls_per_second.map_or(String::new(), |polls| format!(", polling {polls:.0} times"));
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let mut text = format!(
            "watching took {} of a CPU, looking {:.0} times{polls} and seeing {:.0} events a second\n",
            percent(cost.cpu_share),
            cost.looks_per_second,
            cost.events_per_second
        );
        let goal = percent(COST_GOAL);
        let _ = match (cost.kernel_share(), cost.record) {
            (Some([share, low, high]), Some(record)) => write!(
                text,
                "the kernel's records took about {} more ({} to {}), by {:.2} us each; {} in all, goal {goal}",
                percent(share),
                percent(low),
                percent(high),
                record.ns / 1e3,
                percent(cost.cpu_share + share),
            ),
            _ => write!(text, "what the kernel's records took besides is not known; goal {goal} in all"),
        };
        text
    }

    /// The longest-running `rows` tasks as a table, with the timeline of each.
    pub fn text(&self, rows: usize) -> String {
        let mut text = self.head() + "\n";
        let line = |cells: [&str; COLUMNS.len()]| {
            let cells = cells.iter().zip(COLUMNS).map(|(cell, (name, width))| match name {
                "name" => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join(" ") + "\n"
        };
        text.push_str(&line(COLUMNS.map(|(name, _)| name)));
        let mut shown = self.sorted(Order::Time);
        shown.truncate(rows);
        for (thread, task) in &shown {
            text.push_str(&line(self.cells(*thread, task).each_ref().map(String::as_str)));
        }
        if let Some(from) = self.kept_since(&shown) {
            let _ = writeln!(text, "{}:", self.strip_head(from));
            for (thread, task) in shown {
                let _ = writeln!(text, "{thread:>8} {:16} |{}|", task.name, self.strip(task, from, 60));
            }
        }
        if self.state.cost.is_some() {
            let _ = writeln!(text, "{}", self.cost_text());
        }
        for note in &self.state.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }

    /// In the text form of Prometheus.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let escape = |name: &str| name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
        let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&TaskStatistics) -> Option<f64>| {
            let values: Vec<_> =
                self.tasks.iter().filter_map(|(thread, task)| Some((thread, task, value(task)?))).collect();
            if values.is_empty() {
                return;
            }
            let _ = writeln!(text, "# HELP isochrome_{name} {help}\n# TYPE isochrome_{name} {kind}");
            for (thread, task, value) in values {
                let name_of_task = escape(&task.name);
                let _ = writeln!(text, "isochrome_{name}{{thread=\"{thread}\",name=\"{name_of_task}\"}} {value}");
            }
        };
        family("run_seconds_total", "counter", "Time on a CPU.", &|task| Some(task.run_ns as f64 / 1e9));
        family("slices_total", "counter", "Times it got a CPU.", &|task| Some(task.slices as f64));
        family("preemptions_total", "counter", "Times a CPU was taken from it.", &|task| Some(task.preemptions as f64));
        family("migrations_total", "counter", "Times it got another CPU.", &|task| Some(task.migrations as f64));
        family("slice_seconds_max", "gauge", "Longest slice seen; no bound.", &|task| {
            Some(task.slice_ns_max.value as f64 / 1e9)
        });
        family("job_seconds_max", "gauge", "Most time on a CPU between two sleeps; no bound.", &|task| {
            Some(task.job_ns_max?.value as f64 / 1e9)
        });
        family("instructions_total", "counter", "Instructions retired.", &|task| {
            Some(task.counts?.instructions as f64)
        });
        family("cycles_total", "counter", "Cycles of the core.", &|task| Some(task.counts?.cycles as f64));
        family("instructions_per_cycle", "gauge", "Instructions per cycle, over all of the watch.", &|task| {
            task.instructions_per_cycle()
        });
        family("misses_total", "counter", "Cache misses.", &|task| Some(task.counts?.misses as f64));
        family("accesses_total", "counter", "Cache accesses.", &|task| Some(task.counts?.accesses as f64));
        family("miss_ratio_worst", "gauge", "Highest miss ratio of a slice.", &|task| task.miss_ratio_worst);
        let mut single = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
            if !values.is_empty() {
                let _ = writeln!(text, "# HELP isochrome_{name} {help}\n# TYPE isochrome_{name} {kind}");
            }
            for (labels, value) in values {
                let _ = writeln!(text, "isochrome_{name}{labels} {value}");
            }
        };
        let plain = |value: f64| vec![(String::new(), value)];
        let known = |value: Option<f64>| value.map_or(Vec::new(), plain);
        let lost = "Events that the kernel had no room for.";
        single("events_lost_total", "counter", lost, &plain(self.lost as f64));
        let taken = "Times that others had the counters of a CPU.";
        single("counters_taken_total", "counter", taken, &plain(self.counters_taken as f64));
        let steal = self.state.steal.iter().map(|steal| (format!("{{cpu=\"{}\"}}", steal.cpu.0), steal.share));
        let help = "Share of the time of a CPU that the hypervisor gave to others.";
        single("steal_ratio", "gauge", help, &steal.collect::<Vec<_>>());
        let cost = self.state.cost;
        let own = "Share of one CPU that watching takes.";
        single("watch_cpu_ratio", "gauge", own, &known(cost.map(|cost| cost.cpu_share)));
        let kernel = "Share of one CPU that the kernel takes to write events, estimated.";
        single("watch_kernel_ratio", "gauge", kernel, &known(cost.and_then(|cost| Some(cost.kernel_share()?[0]))));
        let events = "Events that the kernel writes per second.";
        single("watch_events_per_second", "gauge", events, &known(cost.map(|cost| cost.events_per_second)));
        text
    }
}

/// The head of [`csv_line`]s.
pub const CSV_HEAD: &str = "begin_ns,end_ns,cpu,thread,name,left,accesses,misses,instructions,cycles\n";

/// A slice as a line of CSV; counts that are absent are empty.
pub fn csv_line(slice: &Slice) -> String {
    let left = match slice.left {
        SwitchOut::Preempted => "preempted",
        SwitchOut::Asleep => "asleep",
        SwitchOut::Blocked => "blocked",
        SwitchOut::Ended => "ended",
    };
    let number = |of: fn(Counts) -> u64| slice.counts.map_or_else(String::new, |counts| of(counts).to_string());
    format!(
        "{},{},{},{},\"{}\",{left},{},{},{},{}\n",
        slice.begin.0,
        slice.end.0,
        slice.cpu.0,
        slice.thread,
        slice.name.replace('"', "\"\""),
        number(|counts| counts.accesses),
        number(|counts| counts.misses),
        number(|counts| counts.instructions),
        number(|counts| counts.cycles)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::miss_ratio::{Locality, Task, Touches};
    use crate::sim::{Level, Semantics, Simulator};
    use crate::trace::Access;
    use crate::units::Bytes;

    fn slice(thread: i32, cpu: u32, begin: u64, end: u64, left: SwitchOut) -> Slice {
        let (cpu, begin, end) = (CpuId(cpu), Ns(begin), Ns(end));
        Slice { cpu, thread, name: format!("task {thread}"), begin, end, left, counts: None }
    }

    #[test]
    fn misses_of_two_tasks_that_take_turns_go_to_the_right_one() {
        // One that fits into the cache, one that misses half of the time, on one cache; slices of 40 passes.
        let geometry = Geometry::of_size(Bytes(64 << 10), 8, Bytes(64)).unwrap();
        let mut simulator = Simulator::chain(vec![Level::lru("L", geometry)], Semantics::default()).unwrap();
        let half = Task::of_ratio(Touches::Data, geometry, 0.5, Locality::Temporal).unwrap();
        let none = Task { lines: 100, ..half };
        let apart = |access: Access| Access { address: access.address + (1 << 30), ..access };
        let mut watched = Watched::default();
        let mut before = (0, 0);
        for turn in 0..20u64 {
            let first = turn % 2 == 0;
            let accesses: Vec<Access> =
                if first { none.accesses(40).map(apart).collect() } else { half.accesses(40).collect() };
            simulator.run(&accesses);
            let counts = simulator.counts().0[0].counts;
            let counted = Counts {
                accesses: counts.reads - before.0,
                misses: counts.read_misses - before.1,
                ..Counts::default()
            };
            before = (counts.reads, counts.read_misses);
            let thread = if first { 1 } else { 2 };
            let counts = Some(counted);
            watched.note(&Entry::Slice(Slice {
                counts,
                ..slice(thread, 0, turn * 100, turn * 100 + 100, SwitchOut::Preempted)
            }));
        }
        let [none, half] = [1, 2].map(|thread| watched.tasks[&thread].miss_ratio().unwrap());
        assert!(none <= 0.03 && (half - 0.5).abs() <= 0.03, "{none} {half}");
        assert!(watched.tasks[&2].miss_ratio_worst.unwrap() >= half);
        assert_eq!(watched.tasks[&1].timeline.len(), 10);
    }

    #[test]
    fn jobs_end_with_sleep_and_migrations_are_counted() {
        let mut watched = Watched::default();
        for slice in [
            slice(7, 0, 1000, 1400, SwitchOut::Preempted),
            slice(8, 0, 1400, 1500, SwitchOut::Ended),
            slice(7, 1, 1500, 1600, SwitchOut::Asleep),
            slice(7, 1, 2000, 2300, SwitchOut::Asleep),
        ] {
            watched.note(&Entry::Slice(slice));
        }
        let task = &watched.tasks[&7];
        assert_eq!((task.slices, task.preemptions, task.migrations, task.run_ns), (3, 1, 1, 800));
        // 400 + 100, then 300.
        assert_eq!(task.job_ns_max, Some(HighWaterMark { value: 500, n: 2, last_rose_at: 1 }));
        assert_eq!((watched.watched_ns(), task.slice_ns_max.value), (1300, 400));
        assert_eq!(watched.tasks[&8].job_ns_max, HighWaterMark::of(&[100]), "its end is the end of its job");
    }

    #[test]
    fn jobs_are_not_put_together_over_a_gap() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 400, SwitchOut::Preempted)));
        watched.note(&Entry::Gap(Gap { cpu: CpuId(0), end: Ns(1000), lost: Some(1) }));
        watched.note(&Entry::Slice(slice(7, 0, 1000, 1300, SwitchOut::Asleep)));
        assert_eq!(watched.tasks[&7].job_ns_max, None);
        watched.note(&Entry::Slice(slice(7, 0, 2000, 2200, SwitchOut::Asleep)));
        assert_eq!(watched.tasks[&7].job_ns_max, HighWaterMark::of(&[200]));
    }

    #[test]
    fn slices_with_too_few_accesses_do_not_lower_the_miss_ratio_of_the_timeline() {
        let counted = |begin, accesses| Slice {
            counts: Some(Counts { accesses, misses: accesses, ..Counts::default() }),
            ..slice(7, 0, begin, begin + 100, SwitchOut::Preempted)
        };
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(counted(0, 1000)));
        watched.note(&Entry::Slice(counted(100, 999)));
        assert_eq!(watched.strip(&watched.tasks[&7], Ns(0), 1), "█");
    }

    #[test]
    fn without_counters_nothing_is_said_of_misses() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 400, SwitchOut::Asleep)));
        assert!(watched.text(10).contains("no counters") && !watched.prometheus().contains("misses_total"));
        assert!(watched.prometheus().contains("isochrome_slices_total{thread=\"7\",name=\"task 7\"} 1"));
        assert_eq!(csv_line(&slice(7, 0, 0, 400, SwitchOut::Asleep)), "0,400,0,7,\"task 7\",asleep,,,,\n");
        let counts = Some(Counts { accesses: 4000, misses: 1000, instructions: 9000, cycles: 4500 });
        watched.note(&Entry::Slice(Slice { counts, ..slice(7, 0, 400, 1400, SwitchOut::Asleep) }));
        let task = &watched.tasks[&7];
        assert_eq!((task.miss_ratio_now, task.instructions_per_cycle()), (Some(0.25), Some(2.0)));
        assert!(watched.prometheus().contains("misses_total") && !watched.text(10).contains("no counters"));
    }

    #[test]
    fn strips_show_who_had_the_cpu_when() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 3000, SwitchOut::Preempted)));
        watched.note(&Entry::Slice(slice(8, 0, 3000, 6000, SwitchOut::Preempted)));
        let text = watched.text(10);
        let half = |filled: bool| if filled { "█" } else { " " }.repeat(30);
        assert!(text.contains(&format!("|{}{}|", half(true), half(false))), "{text}");
        assert!(text.contains(&format!("|{}{}|", half(false), half(true))), "{text}");
    }

    #[test]
    fn slices_read_back_as_they_were_recorded() {
        let one =
            Slice { counts: Some(Counts { misses: 3, ..Counts::default() }), ..slice(1, 2, 3, 4, SwitchOut::Blocked) };
        let gap = |lost| Entry::Gap(Gap { cpu: CpuId(1), end: Ns(7), lost });
        let state = Entry::State(state());
        for entry in
            [Entry::Slice(one), Entry::Slice(slice(9, 0, 1, 2, SwitchOut::Ended)), gap(Some(3)), gap(None), state]
        {
            assert_eq!(serde_json::from_str::<Entry>(&serde_json::to_string(&entry).unwrap()).unwrap(), entry);
        }
    }

    /// A quarter of CPU 0's time is steal time; 10 000 records a second of 1 to 3 us each, and 0.5 % of a CPU to read them.
    fn state() -> State {
        let pairs = [1000.0, 1500.0, 2000.0, 2500.0, 3000.0];
        let cost = Cost {
            cpu_share: 0.005,
            looks_per_second: 20.0,
            events_per_second: 10_000.0,
            polls_per_second: None,
            record: RecordCost::of(CpuId(0), &pairs),
        };
        let steal = vec![CpuSteal { cpu: CpuId(0), share: 0.25 }];
        State { steal, cost: Some(cost), notes: vec!["no counters here".to_owned()] }
    }

    #[test]
    fn what_was_known_of_the_watch_is_known_of_its_replay() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 400, SwitchOut::Asleep)));
        watched.note(&Entry::State(state()));
        let text = watched.text(10);
        assert!(text.contains("CPU 0 steal 25.0 %") && text.contains("no counters here"), "{text}");
        // 10 000 times 2 us, with quartiles of 1.5 and 2.5 us; a half percent besides.
        assert!(text.contains("2.00 % more (1.50 % to 2.50 %), by 2.00 us each; 2.50 % in all, goal 1.00 %"), "{text}");
        let metrics = watched.prometheus();
        for line in ["steal_ratio{cpu=\"0\"} 0.25", "watch_cpu_ratio 0.005", "watch_kernel_ratio 0.02"] {
            assert!(metrics.contains(&format!("\nisochrome_{line}\n")), "{metrics}");
        }
        assert_eq!(RecordCost::of(CpuId(0), &[]), None);
    }

    #[test]
    fn what_was_not_measured_of_the_cost_is_not_made_up() {
        let cost = Cost { record: None, ..state().cost.unwrap() };
        let watched = Watched { state: State { cost: Some(cost), ..state() }, ..Watched::default() };
        assert!(watched.cost_text().contains("took besides is not known"));
        assert!(!watched.prometheus().contains("kernel_ratio"));
    }

    #[test]
    fn a_task_that_gets_the_number_of_one_that_has_ended_is_another() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 400, SwitchOut::Preempted)));
        watched.note(&Entry::Slice(slice(7, 0, 500, 600, SwitchOut::Ended)));
        watched.note(&Entry::Slice(Slice { name: "new".to_owned(), ..slice(7, 0, 700, 1000, SwitchOut::Asleep) }));
        assert_eq!((watched.tasks[&7].name.as_str(), watched.tasks[&7].run_ns), ("new", 300));
        let sorted: Vec<_> = watched.sorted(Order::Time).iter().map(|(_, task)| task.run_ns).collect();
        assert_eq!(sorted, [500, 300]);
        assert!(watched.text(10).contains("2 tasks"));
        // One series per thread: two of the same name would be an error to whoever reads them.
        assert_eq!(watched.prometheus().matches("isochrome_slices_total{thread=\"7\"").count(), 1);
        let one = watched.longest(1);
        assert_eq!((one.sorted(Order::Time)[0].1.run_ns, one.left_out), (500, 1));
        assert!(one.text(10).contains("2 tasks") && one.tasks.len() == 1);
        assert_eq!(watched.longest(2).former.len(), 1);
    }

    #[test]
    fn the_parts_of_a_watch_hold_all_of_its_time_however_long_it_is() {
        let mut watched = Watched::default();
        let counts = |misses| Some(Counts { accesses: 1000, misses, ..Counts::default() });
        let mut run = 0;
        for turn in 0..100_000u64 {
            let begin = 7_000_000_000_000 + turn * 1_000_000;
            let seconds = Slice { counts: counts(250), ..slice(7, 0, begin, begin + 300_000, SwitchOut::Asleep) };
            run += 300_000;
            watched.note(&Entry::Slice(seconds));
        }
        let parts = &watched.tasks[&7].parts;
        assert!((PARTS / 2..=PARTS).contains(&(parts.len() as u64)), "{}", parts.len());
        assert_eq!(parts.values().map(|part| part.run_ns).sum::<u64>(), run);
        assert!(parts.values().all(|part| (part.miss_ratio().unwrap() - 0.25).abs() < 1e-9));
    }

    #[test]
    fn instructions_per_cycle_are_reported_to_prometheus() {
        let mut watched = Watched::default();
        let counts = Some(Counts { accesses: 4000, misses: 1000, instructions: 9000, cycles: 4500 });
        watched.note(&Entry::Slice(Slice { counts, ..slice(7, 0, 400, 1400, SwitchOut::Asleep) }));
        let metrics = watched.prometheus();
        assert!(metrics.contains("isochrome_instructions_per_cycle{thread=\"7\",name=\"task 7\"} 2\n"), "{metrics}");
        assert!(metrics.contains("isochrome_cycles_total{thread=\"7\",name=\"task 7\"} 4500\n"), "{metrics}");
    }

    #[test]
    fn tasks_are_sorted_by_what_is_asked_for_and_the_unknown_comes_last() {
        let mut watched = Watched::default();
        let counts = |misses| Some(Counts { accesses: 1000, misses, ..Counts::default() });
        // 1 runs longest at once, 2 misses most often, 3 runs longest in all, without counts.
        watched.note(&Entry::Slice(Slice { counts: counts(10), ..slice(1, 0, 0, 500, SwitchOut::Preempted) }));
        watched.note(&Entry::Slice(Slice { counts: counts(900), ..slice(2, 0, 500, 600, SwitchOut::Asleep) }));
        watched.note(&Entry::Slice(slice(3, 0, 600, 1000, SwitchOut::Preempted)));
        watched.note(&Entry::Slice(slice(3, 0, 1000, 1300, SwitchOut::Preempted)));
        let order = |order| watched.sorted(order).iter().map(|(thread, _)| *thread).collect::<Vec<_>>();
        assert_eq!(order(Order::Time), [3, 1, 2]);
        assert_eq!(order(Order::WorstMissRatio), [2, 1, 3]);
        assert_eq!(order(Order::Misses), [2, 1, 3]);
        assert_eq!(order(Order::Slice), [1, 3, 2]);
        // 2 alone has slept.
        assert_eq!(order(Order::Job)[0], 2);
        assert_eq!(order(Order::Slices)[0], 3);
    }

    #[test]
    fn gaps_are_reported_and_counted() {
        let mut watched = Watched::default();
        assert!(!watched.text(10).contains("missing"));
        for lost in [Some(3), Some(4), None] {
            watched.note(&Entry::Gap(Gap { cpu: CpuId(0), end: Ns(1), lost }));
        }
        assert_eq!((watched.lost, watched.counters_taken), (7, 1));
        let text = watched.text(10);
        assert!(text.contains("7 events lost") && text.contains("others had the counters 1 times"), "{text}");
        assert!(watched.prometheus().contains("isochrome_counters_taken_total 1"));
    }
}
