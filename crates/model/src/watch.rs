//! The activity of tasks over time, slice by slice: the CPU and the time of each slice, and the cache events in it. [Sebek2002,
//! §3.2]
//!
//! A *slice* is the time from the switch to a thread until the switch away from it. If counters are read at switches, a slice has
//! their counts. Otherwise everything that follows from counts is absent, not zero.

mod cost;
#[cfg(test)]
mod fixture;
mod prometheus;
mod section;
mod slice;
mod task;
mod text;
mod timeline;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Ns;
use task::is_zero;

pub use cost::{COST_GOAL, Cost, RecordCost};
pub use slice::{CSV_HEAD, Counts, CpuSteal, Entry, Gap, Slice, State, SwitchOut, csv_line};
pub use task::{Bucket, TaskStatistics};
pub use text::{COLUMNS, COUNTED};
pub use timeline::Bar;

/// Version of the format of recorded slices.
pub const SCHEMA: &str = "isochrome-slices/2";
/// Previous version, which can be read too. It lacks the state of the watch as a whole.
pub const SCHEMA_BEFORE: &str = "isochrome-slices/1";

/// Maximum number of buckets into which a watch is divided: about as many as a figure can show.
const BUCKETS_MAX: u64 = 120;
/// Length of a bucket of a watch that has just begun, in ns.
const BUCKET_NS_MIN: u64 = 1 << 10;

/// Quantity by which tasks can be sorted, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Time on a CPU.
    #[default]
    Time,
    /// The highest miss ratio of a slice.
    WorstMissRatio,
    /// Number of misses.
    Misses,
    /// The longest slice.
    Slice,
    /// Longest time on a CPU between two sleeps.
    Job,
    /// Number of slices.
    Slices,
}

/// Result of a watch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Watched {
    /// Tasks by the number of their thread.
    pub tasks: BTreeMap<i32, TaskStatistics>,
    /// Tasks that have ended and whose thread numbers other tasks have now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<(i32, TaskStatistics)>,
    /// Number of tasks that were watched but are left out of this result.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// Begin of the first slice; absent without slices.
    pub begin: Option<Ns>,
    /// End of the last slice.
    pub end: Ns,
    /// Length of the buckets into which the watch is divided, in ns: a power of two.
    #[serde(default, rename = "part_ns")]
    pub bucket_ns: u64,
    /// Number of events that the kernel had no room for. If it is not 0, slices are missing.
    pub lost: u64,
    /// Number of times that other programs used the counters of a CPU. If it is not 0, slices are missing.
    #[serde(default)]
    pub counters_taken: u64,
    /// State of the watch as a whole: its cost, steal time, source and notes.
    #[serde(flatten)]
    pub state: State,
}

impl Watched {
    /// Adds the next entry of the record.
    pub fn note(&mut self, entry: &Entry) {
        let slice = match entry {
            Entry::Slice(slice) => slice,
            Entry::Gap(gap) => {
                // During the gap, any task may have run and slept on that CPU. Its later slices may then belong to its next
                // job.
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
        self.tasks.entry(slice.thread).or_insert_with(|| TaskStatistics::new(slice)).note(slice, self.bucket_ns);
    }

    /// Merges buckets until there are few enough.
    fn divide(&mut self) {
        self.bucket_ns = self.bucket_ns.max(BUCKET_NS_MIN);
        let begin = self.begin.unwrap_or(self.end).0;
        while self.end.0 / self.bucket_ns - begin / self.bucket_ns >= BUCKETS_MAX {
            self.bucket_ns *= 2;
            for task in self.tasks.values_mut().chain(self.former.iter_mut().map(|(_, task)| task)) {
                for (at, bucket) in std::mem::take(&mut task.buckets) {
                    task.buckets.entry(at / 2).or_default().merge(bucket);
                }
            }
        }
    }

    /// Returns a copy with only the `rows` tasks that had a CPU longest. The number of the other tasks is added to `left_out`.
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

    /// Returns the length of the watch, in ns.
    pub fn watched_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.begin.unwrap_or(self.end).0)
    }

    /// Whether any events were counted.
    pub fn has_counters(&self) -> bool {
        self.all().any(|(_, task)| task.counts.is_some())
    }

    /// Returns all tasks with the numbers of their threads.
    fn all(&self) -> impl Iterator<Item = (i32, &TaskStatistics)> {
        let former = self.former.iter().map(|(thread, task)| (*thread, task));
        self.tasks.iter().map(|(thread, task)| (*thread, task)).chain(former)
    }

    /// Returns all tasks, sorted by `order`.
    pub fn sorted(&self, order: Order) -> Vec<(i32, &TaskStatistics)> {
        let mut tasks: Vec<_> = self.all().collect();
        // Tasks whose value is not known come last.
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
}

#[cfg(test)]
mod tests {
    use super::fixture::slice;
    use super::*;
    use crate::geometry::Geometry;
    use crate::layout::WIDTH;
    use crate::miss_ratio::{Locality, Task, Touches};
    use crate::sim::{Level, Semantics, Simulator};
    use crate::stats::HighWaterMark;
    use crate::trace::Access;
    use crate::units::{Bytes, CpuId};

    #[test]
    fn misses_of_two_tasks_that_alternate_go_to_the_right_one() {
        // One task fits into the cache, the other misses half of the time. They use one cache in slices of 40 passes.
        let geometry = Geometry::of_size(Bytes(64 << 10), 8, Bytes(64)).unwrap();
        let mut simulator = Simulator::chain(vec![Level::lru("L", geometry)], Semantics::default()).unwrap();
        let half = Task::of_ratio(Touches::Data, geometry, 0.5, Locality::Temporal).unwrap();
        let none = Task { lines: 100, ..half };
        let apart = |access: Access| Access { address: access.address + (1 << 30), ..access };
        let mut watched = Watched::default();
        let mut before = (0, 0);
        for slice_number in 0..20u64 {
            let first = slice_number % 2 == 0;
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
                ..slice(thread, 0, slice_number * 100, slice_number * 100 + 100, SwitchOut::Preempted)
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
        // The first job takes 400 + 100 ns, the second 300 ns.
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
    fn a_task_that_gets_the_number_of_one_that_has_ended_is_another() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 400, SwitchOut::Preempted)));
        watched.note(&Entry::Slice(slice(7, 0, 500, 600, SwitchOut::Ended)));
        watched.note(&Entry::Slice(Slice { name: "new".to_owned(), ..slice(7, 0, 700, 1000, SwitchOut::Asleep) }));
        assert_eq!((watched.tasks[&7].name.as_str(), watched.tasks[&7].run_ns), ("new", 300));
        let sorted: Vec<_> = watched.sorted(Order::Time).iter().map(|(_, task)| task.run_ns).collect();
        assert_eq!(sorted, [500, 300]);
        assert!(watched.text(10, WIDTH).contains("2 tasks"));
        // There is one series per thread, because Prometheus does not accept two series of the same name.
        assert_eq!(watched.prometheus().matches("isochrome_slices_total{thread=\"7\"").count(), 1);
        let one = watched.longest(1);
        assert_eq!((one.sorted(Order::Time)[0].1.run_ns, one.left_out), (500, 1));
        assert!(one.text(10, WIDTH).contains("2 tasks") && one.tasks.len() == 1);
        assert_eq!(watched.longest(2).former.len(), 1);
    }

    #[test]
    fn the_parts_of_a_watch_hold_all_of_its_time_however_long_it_is() {
        let mut watched = Watched::default();
        let counts = |misses| Some(Counts { accesses: 1000, misses, ..Counts::default() });
        let mut run = 0;
        for slice_number in 0..100_000u64 {
            let begin = 7_000_000_000_000 + slice_number * 1_000_000;
            let seconds = Slice { counts: counts(250), ..slice(7, 0, begin, begin + 300_000, SwitchOut::Asleep) };
            run += 300_000;
            watched.note(&Entry::Slice(seconds));
        }
        let buckets = &watched.tasks[&7].buckets;
        assert!((BUCKETS_MAX / 2..=BUCKETS_MAX).contains(&(buckets.len() as u64)), "{}", buckets.len());
        assert_eq!(buckets.values().map(|bucket| bucket.run_ns).sum::<u64>(), run);
        assert!(buckets.values().all(|bucket| (bucket.miss_ratio().unwrap() - 0.25).abs() < 1e-9));
    }

    #[test]
    fn tasks_are_sorted_by_what_is_asked_for_and_the_unknown_comes_last() {
        let mut watched = Watched::default();
        let counts = |misses| Some(Counts { accesses: 1000, misses, ..Counts::default() });
        // Task 1 has the longest slice, task 2 misses most often, and task 3 runs longest in all, without counts.
        watched.note(&Entry::Slice(Slice { counts: counts(10), ..slice(1, 0, 0, 500, SwitchOut::Preempted) }));
        watched.note(&Entry::Slice(Slice { counts: counts(900), ..slice(2, 0, 500, 600, SwitchOut::Asleep) }));
        watched.note(&Entry::Slice(slice(3, 0, 600, 1000, SwitchOut::Preempted)));
        watched.note(&Entry::Slice(slice(3, 0, 1000, 1300, SwitchOut::Preempted)));
        let order = |order| watched.sorted(order).iter().map(|(thread, _)| *thread).collect::<Vec<_>>();
        assert_eq!(order(Order::Time), [3, 1, 2]);
        assert_eq!(order(Order::WorstMissRatio), [2, 1, 3]);
        assert_eq!(order(Order::Misses), [2, 1, 3]);
        assert_eq!(order(Order::Slice), [1, 3, 2]);
        // Only task 2 has slept.
        assert_eq!(order(Order::Job)[0], 2);
        assert_eq!(order(Order::Slices)[0], 3);
    }

    #[test]
    fn gaps_are_reported_and_counted() {
        let mut watched = Watched::default();
        assert!(!watched.text(10, WIDTH).contains("missing"));
        for lost in [Some(3), Some(4), None] {
            watched.note(&Entry::Gap(Gap { cpu: CpuId(0), end: Ns(1), lost }));
        }
        assert_eq!((watched.lost, watched.counters_taken), (7, 1));
        let text = watched.text(10, WIDTH);
        assert!(text.contains("7 events lost") && text.contains("others had the counters 1 times"), "{text}");
        assert!(watched.prometheus().contains("isochrome_counters_taken_total 1"));
    }
}
