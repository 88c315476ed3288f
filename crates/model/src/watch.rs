//! What tasks do over time, slice by slice: who had which CPU from when to when, and what the cache did meanwhile. [Sebek2002, §3.2]
//!
//! A *slice* is the time from the switch to a thread until the switch away from it. Where counters are read at switches, a slice has what they
//! counted; elsewhere it has not, and everything that follows from counts is absent rather than zero.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::stats::HighWaterMark;
use crate::units::{CpuId, Ns};

/// Version of the form of recorded slices.
pub const SCHEMA: &str = "isochrome-slices/1";

/// What counters counted in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// How a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Left {
    /// Another took the CPU from it.
    Preempted,
    /// It sleeps: a job is done.
    Asleep,
    /// It waits for the kernel or a device, or was stopped.
    Blocked,
    /// It has ended.
    Ended,
}

/// Time for which a thread had a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    pub left: Left,
    /// What was counted; absent where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
}

/// Slices with fewer accesses are not asked for their miss ratio: a few misses at the switch would be all of it.
const ACCESSES_MIN: u64 = 1000;
/// Slices kept of each task, for its timeline.
const KEPT: usize = 64;

/// What is known of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The most time on a CPU between two sleeps, in ns; absent while it has not slept.
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
    /// Time on a CPU since it slept.
    #[serde(skip)]
    job_ns: u64,
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
            job_ns: 0,
        }
    }

    fn note(&mut self, slice: &Slice) {
        let time = slice.end.0.saturating_sub(slice.begin.0);
        self.slices += 1;
        self.preemptions += u64::from(slice.left == Left::Preempted);
        self.migrations += u64::from(self.cpu != slice.cpu);
        self.cpu = slice.cpu;
        if !slice.name.is_empty() {
            self.name.clone_from(&slice.name);
        }
        self.run_ns += time;
        self.job_ns += time;
        self.slice_ns_max.push(time);
        if slice.left == Left::Asleep {
            let job = std::mem::take(&mut self.job_ns);
            match &mut self.job_ns_max {
                Some(mark) => mark.push(job),
                None => self.job_ns_max = HighWaterMark::of(&[job]),
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

/// What watching cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Share of one CPU that the watching process took.
    pub cpu_share: f64,
    /// Times per second that it looked.
    pub looks_per_second: f64,
    /// Events per second that the kernel wrote for it.
    pub events_per_second: f64,
}

/// What was watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    /// Tasks by thread.
    pub tasks: BTreeMap<i32, TaskStatistics>,
    /// When the first slice began.
    pub begin: Option<Ns>,
    /// When the last one ended.
    pub end: Ns,
    /// Share of the time that the hypervisor stole from each CPU; absent where the kernel does not say.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stolen: BTreeMap<CpuId, f64>,
    /// Events that the kernel had no room for: where there are any, slices are missing.
    pub lost: u64,
    /// What it cost; absent where slices were replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

impl Watched {
    /// Takes note of a slice.
    pub fn note(&mut self, slice: &Slice) {
        self.begin = Some(self.begin.map_or(slice.begin, |begin| begin.min(slice.begin)));
        self.end = self.end.max(slice.end);
        self.tasks.entry(slice.thread).or_insert_with(|| TaskStatistics::new(slice)).note(slice);
    }

    /// For how long it was watched, in ns.
    pub fn watched_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.begin.unwrap_or(self.end).0)
    }

    /// Whether anything was counted.
    pub fn has_counters(&self) -> bool {
        self.tasks.values().any(|task| task.counts.is_some())
    }

    /// Tasks, those that ran longest first.
    fn by_time(&self) -> Vec<(i32, &TaskStatistics)> {
        let mut tasks: Vec<_> = self.tasks.iter().map(|(thread, task)| (*thread, task)).collect();
        tasks.sort_by_key(|(_, task)| std::cmp::Reverse(task.run_ns));
        tasks
    }

    /// The longest-running `rows` tasks as a table, with the timeline of each over the last `rows` slices.
    pub fn text(&self, rows: usize) -> String {
        let seconds = self.watched_ns() as f64 / 1e9;
        let mut text = format!("{} tasks in {seconds:.2} s", self.tasks.len());
        for (cpu, stolen) in &self.stolen {
            let _ = write!(text, ", CPU {} stolen {:.1} %", cpu.0, 100.0 * stolen);
        }
        if self.lost > 0 {
            let _ = write!(text, ", {} events lost: slices are missing", self.lost);
        }
        let counters = self.has_counters();
        let _ =
            writeln!(text, "{}", if counters { "" } else { "; no counters: misses and instructions are not known" });
        let _ = writeln!(
            text,
            "{:>8} {:16} {:>3} {:>7} {:>7} {:>7} {:>5} {:>10} {:>10} {:>7} {:>7} {:>9} {:>5}",
            "thread",
            "name",
            "cpu",
            "share",
            "slices",
            "preempt",
            "migr",
            "slice max",
            "job max",
            "miss",
            "worst",
            "misses/s",
            "ipc"
        );
        let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        let us = |mark: Option<HighWaterMark>| {
            mark.map_or("-".to_owned(), |mark| format!("{:.1} us", mark.value as f64 / 1e3))
        };
        for (thread, task) in self.by_time().into_iter().take(rows) {
            let share = task.run_ns as f64 / self.watched_ns().max(1) as f64;
            let number = |value: Option<f64>, digits| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
            let _ = writeln!(
                text,
                "{thread:>8} {:16} {:>3} {:>7} {:>7} {:>7} {:>5} {:>10} {:>10} {:>7} {:>7} {:>9} {:>5}",
                task.name,
                task.cpu.0,
                format!("{:.1} %", 100.0 * share),
                task.slices,
                task.preemptions,
                task.migrations,
                us(Some(task.slice_ns_max)),
                us(task.job_ns_max),
                percent(task.miss_ratio_now),
                percent(task.miss_ratio_worst),
                number(task.misses_per_second(), 0),
                number(task.instructions_per_cycle(), 2),
            );
        }
        text.push_str(&self.strips(rows));
        if let Some(cost) = self.cost {
            let _ = writeln!(
                text,
                "watching took {:.2} % of a CPU, looking {:.0} times and seeing {:.0} events a second",
                100.0 * cost.cpu_share,
                cost.looks_per_second,
                cost.events_per_second
            );
        }
        text
    }

    /// A strip per task over the time for which the slices of all that are shown are kept: its miss ratio where it is known, else the share
    /// of the time for which it had a CPU. [Sebek2002, Figure 6]
    fn strips(&self, rows: usize) -> String {
        const COLUMNS: u64 = 60;
        const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let shown: Vec<_> = self.by_time().into_iter().take(rows).collect();
        let kept = shown.iter().filter(|(_, task)| task.timeline.len() == KEPT);
        let from = kept.filter_map(|(_, task)| Some(task.timeline.front()?.0)).max().or(self.begin);
        let Some(from) = from.filter(|from| from.0 < self.end.0) else { return String::new() };
        let span = self.end.0 - from.0;
        let edge = |column: u64| from.0 + (span as u128 * u128::from(column) / u128::from(COLUMNS)) as u64;
        let mut text = format!(
            "the last {:.1} ms, {}:\n",
            span as f64 / 1e6,
            if self.has_counters() { "miss ratio" } else { "share of the time on a CPU" }
        );
        for (thread, task) in shown {
            let _ = write!(text, "{thread:>8} {:16} |", task.name);
            for column in 0..COLUMNS {
                let (left, right) = (edge(column), edge(column + 1));
                let (mut time, mut missed) = (0.0, 0.0);
                for (begin, end, ratio) in &task.timeline {
                    let within = end.0.min(right).saturating_sub(begin.0.max(left)) as f64;
                    time += within;
                    missed += within * ratio.unwrap_or(0.0);
                }
                let height = if self.has_counters() {
                    missed / f64::max(time, 1.0)
                } else {
                    time / (right - left).max(1) as f64
                };
                // Whatever there was is seen.
                text.push(LEVELS[(height * 8.0).ceil().clamp(0.0, 8.0) as usize]);
            }
            text.push_str("|\n");
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
        family("misses_total", "counter", "Cache misses.", &|task| Some(task.counts?.misses as f64));
        family("accesses_total", "counter", "Cache accesses.", &|task| Some(task.counts?.accesses as f64));
        family("miss_ratio_worst", "gauge", "Highest miss ratio of a slice.", &|task| task.miss_ratio_worst);
        let _ = writeln!(
            text,
            "# HELP isochrome_events_lost_total Events that the kernel had no room for.\n# TYPE isochrome_events_lost_total counter\nisochrome_events_lost_total {}",
            self.lost
        );
        text
    }
}

/// The head of [`csv_line`]s.
pub const CSV_HEAD: &str = "begin_ns,end_ns,cpu,thread,name,left,accesses,misses,instructions,cycles\n";

/// A slice as a line of CSV; counts that are absent are empty.
pub fn csv_line(slice: &Slice) -> String {
    let left = match slice.left {
        Left::Preempted => "preempted",
        Left::Asleep => "asleep",
        Left::Blocked => "blocked",
        Left::Ended => "ended",
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

    fn slice(thread: i32, cpu: u32, begin: u64, end: u64, left: Left) -> Slice {
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
            watched.note(&Slice { counts, ..slice(thread, 0, turn * 100, turn * 100 + 100, Left::Preempted) });
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
            slice(7, 0, 1000, 1400, Left::Preempted),
            slice(8, 0, 1400, 1500, Left::Ended),
            slice(7, 1, 1500, 1600, Left::Asleep),
            slice(7, 1, 2000, 2300, Left::Asleep),
        ] {
            watched.note(&slice);
        }
        let task = &watched.tasks[&7];
        assert_eq!((task.slices, task.preemptions, task.migrations, task.run_ns), (3, 1, 1, 800));
        // 400 + 100, then 300.
        assert_eq!(task.job_ns_max, Some(HighWaterMark { value: 500, n: 2, last_rose_at: 1 }));
        assert_eq!((watched.watched_ns(), task.slice_ns_max.value), (1300, 400));
        assert_eq!(watched.tasks[&8].job_ns_max, None);
    }

    #[test]
    fn without_counters_nothing_is_said_of_misses() {
        let mut watched = Watched::default();
        watched.note(&slice(7, 0, 0, 400, Left::Asleep));
        assert!(watched.text(10).contains("no counters") && !watched.prometheus().contains("misses_total"));
        assert!(watched.prometheus().contains("isochrome_slices_total{thread=\"7\",name=\"task 7\"} 1"));
        assert_eq!(csv_line(&slice(7, 0, 0, 400, Left::Asleep)), "0,400,0,7,\"task 7\",asleep,,,,\n");
        let counts = Some(Counts { accesses: 4000, misses: 1000, instructions: 9000, cycles: 4500 });
        watched.note(&Slice { counts, ..slice(7, 0, 400, 1400, Left::Asleep) });
        let task = &watched.tasks[&7];
        assert_eq!((task.miss_ratio_now, task.instructions_per_cycle()), (Some(0.25), Some(2.0)));
        assert!(watched.prometheus().contains("misses_total") && !watched.text(10).contains("no counters"));
    }

    #[test]
    fn strips_show_who_had_the_cpu_when() {
        let mut watched = Watched::default();
        watched.note(&slice(7, 0, 0, 3000, Left::Preempted));
        watched.note(&slice(8, 0, 3000, 6000, Left::Preempted));
        let text = watched.text(10);
        let half = |filled: bool| if filled { "█" } else { " " }.repeat(30);
        assert!(text.contains(&format!("|{}{}|", half(true), half(false))), "{text}");
        assert!(text.contains(&format!("|{}{}|", half(false), half(true))), "{text}");
    }

    #[test]
    fn slices_read_back_as_they_were_recorded() {
        let one = Slice { counts: Some(Counts { misses: 3, ..Counts::default() }), ..slice(1, 2, 3, 4, Left::Blocked) };
        for slice in [one, slice(9, 0, 1, 2, Left::Ended)] {
            assert_eq!(serde_json::from_str::<Slice>(&serde_json::to_string(&slice).unwrap()).unwrap(), slice);
        }
    }
}
