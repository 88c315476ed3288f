//! Timelines as bars: the share of each interval for which a task had a CPU, and its miss ratio. [Sebek2002, Figure 6]

use super::task::KEPT;
use super::{Bucket, TaskStatistics, Watched};
use crate::units::Ns;

/// A bar of a timeline: one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Begin of the interval.
    pub from: Ns,
    /// End of the interval.
    pub to: Ns,
    /// Share of the interval for which a task had a CPU.
    pub share: f64,
    /// Miss ratio of the task in the interval; `None` if no slice has one.
    pub miss_ratio: Option<f64>,
}

impl Bar {
    fn new(from: u64, to: u64, bucket: Bucket) -> Bar {
        let share = bucket.run_ns as f64 / to.saturating_sub(from).max(1) as f64;
        Bar { from: Ns(from), to: Ns(to), share, miss_ratio: bucket.miss_ratio() }
    }
}

impl Watched {
    /// Returns the time since which the slices of all of `tasks` are kept; `None` if nothing was watched since then.
    pub fn kept_since(&self, tasks: &[(i32, &TaskStatistics)]) -> Option<Ns> {
        let kept = tasks.iter().filter(|(_, task)| task.timeline.len() == KEPT);
        let from = kept.filter_map(|(_, task)| Some(task.timeline.front()?.0)).max().or(self.begin);
        from.filter(|from| from.0 < self.end.0)
    }

    /// Returns the whole watch in bars, one for each bucket in which `task` had a CPU.
    pub fn bars(&self, task: &TaskStatistics) -> Vec<Bar> {
        let (Some(begin), width) = (self.begin, self.bucket_ns.max(1)) else { return Vec::new() };
        let bar = |(at, bucket): (&u64, &Bucket)| {
            Bar::new(
                at.saturating_mul(width).max(begin.0),
                at.saturating_add(1).saturating_mul(width).min(self.end.0),
                *bucket,
            )
        };
        task.buckets.iter().map(bar).collect()
    }

    /// Returns the time after `from` as `columns` bars, computed from those slices of `task` that are kept.
    pub fn recent_bars(&self, task: &TaskStatistics, from: Ns, columns: u16) -> Vec<Bar> {
        let span = self.end.0.saturating_sub(from.0);
        let edge = |column: u16| from.0 + (u128::from(span) * u128::from(column) / u128::from(columns)) as u64;
        let bar = |column: u16| {
            let (left, right) = (edge(column), edge(column + 1));
            let mut bucket = Bucket::default();
            for (begin, end, ratio) in &task.timeline {
                bucket.add(end.0.min(right).saturating_sub(begin.0.max(left)), *ratio);
            }
            Bar::new(left, right, bucket)
        };
        (0..columns).map(bar).collect()
    }

    /// Draws the time from `from` on in `columns` characters: the miss ratio of `task` if there are counters, else the share of the time
    /// for which it had a CPU. [Sebek2002, Figure 6]
    pub fn strip(&self, task: &TaskStatistics, from: Ns, columns: u16) -> String {
        const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let counters = self.has_counters();
        let level = |bar: Bar| {
            // A bar without a miss ratio is left blank.
            let height = if counters { bar.miss_ratio.unwrap_or(0.0) } else { bar.share };
            // Heights are rounded up, so that any activity is visible.
            LEVELS[(height * 8.0).ceil().clamp(0.0, 8.0) as usize]
        };
        self.recent_bars(task, from, columns).into_iter().map(level).collect()
    }

    /// Describes the meaning of the bars of [`strip`](Self::strip).
    pub fn strip_head(&self, from: Ns) -> String {
        let what = if self.has_counters() { "miss ratio" } else { "share of the time on a CPU" };
        format!("the last {:.1} ms, {what}", self.end.0.saturating_sub(from.0) as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::fixture::slice;
    use crate::watch::{Counts, Entry, Slice, SwitchOut};

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
    fn strips_show_who_had_the_cpu_when() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 3000, SwitchOut::Preempted)));
        watched.note(&Entry::Slice(slice(8, 0, 3000, 6000, SwitchOut::Preempted)));
        let text = watched.text(10, 88);
        let half = |filled: bool| if filled { "█" } else { " " }.repeat(30);
        assert!(text.contains(&format!("|{}{}|", half(true), half(false))), "{text}");
        assert!(text.contains(&format!("|{}{}|", half(false), half(true))), "{text}");
    }
}
