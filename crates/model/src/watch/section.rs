//! The section of a report that shows the activity of tasks over time. [Sebek2002, Figure 6]

use super::{Bar, COLUMNS, COUNTED, Order, TaskStatistics, Watched};
use crate::evidence::figure::{Hue, Track, TrackBar, Tracks};
use crate::evidence::{Section, Standing, format};
use crate::units::Ns;

/// Number of bars in a timeline of the last slices.
const RECENT: u16 = 120;

fn headline(watched: &Watched) -> (Option<Standing>, String, String) {
    let standing = (watched.lost + watched.counters_taken > 0).then_some(Standing::Inconclusive);
    let shown = watched.sorted(Order::Time);
    let Some((_, first)) = shown.first() else {
        return (standing, "No task was seen to get a CPU.".to_owned(), watched.head() + ".");
    };
    let seconds = watched.watched_ns() as f64 / 1e9;
    let share = first.run_ns as f64 / watched.watched_ns().max(1) as f64;
    let mut sentence = format!("{} had a CPU for {} of {seconds:.2} s", first.name, format::share(share));
    let worst = shown.iter().filter_map(|(_, task)| Some((task, task.miss_ratio_worst?)));
    if let Some((task, ratio)) = worst.max_by(|a, b| a.1.total_cmp(&b.1)) {
        let ratio = format::share(ratio);
        sentence.push_str(&format!("; the worst slice, of {}, missed in {ratio} of its accesses", task.name));
    }
    (standing, sentence + ".", watched.head() + ".")
}

fn tracks(
    watched: &Watched,
    title: &str,
    from: Ns,
    tasks: &[(i32, &TaskStatistics)],
    bars: impl Fn(&TaskStatistics) -> Vec<Bar>,
) -> Tracks {
    let span = watched.end.0.saturating_sub(from.0) as f64;
    let (unit, scale) = if span >= 1e9 { ("s", 1e9) } else { ("ms", 1e6) };
    let since = |at: Ns| at.0.saturating_sub(from.0) as f64 / scale;
    let counters = watched.has_counters();
    let bar = |bar: &Bar| TrackBar {
        range: [since(bar.from), since(bar.to)],
        pale: if counters { bar.share } else { 0.0 },
        solid: if counters { bar.miss_ratio.unwrap_or(0.0) } else { bar.share },
    };
    let track = |(thread, task): &(i32, &TaskStatistics)| Track {
        name: task.name.clone(),
        note: format!("thread {thread}"),
        hue: if counters { Hue::Unpartitioned } else { Hue::Partitioned },
        bars: bars(task).iter().map(bar).collect(),
    };
    Tracks {
        title: title.to_owned(),
        description: format!("Of each task, over time: {}.", what(watched)),
        label: format!("{title}, {unit}"),
        span: span / scale,
        tracks: tasks.iter().map(track).collect(),
    }
}

/// Describes the meaning of the bars.
fn what(watched: &Watched) -> &'static str {
    if watched.has_counters() {
        "the miss ratio while it has a CPU, up to 100 %; pale behind it, the share of the time for which it has one"
    } else {
        "the share of the time for which it has a CPU, up to 100 %"
    }
}

impl Watched {
    /// Builds the section of a report.
    pub fn section(&self) -> Section {
        let shown = self.sorted(Order::Time);
        let columns: Vec<usize> =
            (0..COLUMNS.len()).filter(|column| self.has_counters() || !COUNTED.contains(column)).collect();
        let heads: Vec<&str> = columns.iter().map(|column| COLUMNS[*column].0).collect();
        let rows = shown.iter().map(|(thread, task)| {
            let cells = self.cells(*thread, task);
            columns.iter().map(|column| cells[*column].clone()).collect()
        });
        let few = if self.has_counters() {
            " Where a slice has fewer than 1000 accesses its misses are not shown."
        } else {
            ""
        };
        let mut section = Section::new("watch", "What tasks did over time", headline(self), self)
            .text(format!("Slices lie between context switches. [Sebek2002, §3.2] Bars are {}.{few}", what(self)));
        if let Some(begin) = self.begin.filter(|begin| begin.0 < self.end.0) {
            section = section.figure(tracks(self, "All of the watch", begin, &shown, |task| self.bars(task)));
        }
        if let Some(from) = self.kept_since(&shown).filter(|from| Some(*from) > self.begin) {
            let recent = |task: &TaskStatistics| self.recent_bars(task, from, RECENT);
            section = section.figure(tracks(self, "The last slices", from, &shown, recent));
        }
        let mut findings: Vec<String> = self.cost_text().lines().map(str::to_owned).collect();
        if self.left_out > 0 {
            findings.push(format!("{} more tasks had a CPU for less time and are not shown", self.left_out));
        }
        section.table(&heads, rows).findings(findings).text(format!(
            "What would invalidate it: events lost or counters taken, of which there were {} and {} here; steal time within a slice, which \
             counts as the task’s; and the longest slices and jobs are observations, not a bound. The share says who had the CPU, not who used \
             the cache.",
            self.lost, self.counters_taken
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::figure::Figure;
    use crate::units::CpuId;
    use crate::watch::{Counts, Entry, Gap, Slice, SwitchOut};

    /// Returns a watch of two tasks that alternate in slices of 10 ms: `calm` never misses, `wild` misses in half of its
    /// accesses.
    fn two(slices: u64, counters: bool) -> Watched {
        let mut watched = Watched::default();
        for number in 0..slices {
            for (thread, name, begin, end, misses) in [(7, "calm <1>", 0, 6, 0), (8, "wild", 6, 10, 5000)] {
                let counts = counters.then_some(Counts { accesses: 10_000, misses, instructions: 900, cycles: 600 });
                let at = |ms: u64| Ns(1_000_000 * (10 * number + ms));
                let (cpu, name, left) = (CpuId(0), name.to_owned(), SwitchOut::Preempted);
                watched.note(&Entry::Slice(Slice { cpu, thread, name, begin: at(begin), end: at(end), left, counts }));
            }
        }
        watched
    }

    fn bars(watched: &Watched) -> usize {
        let tracks = watched
            .section()
            .figures()
            .filter_map(|figure| match figure {
                Figure::Tracks(tracks) => Some(tracks.clone()),
                _ => None,
            })
            .collect::<Vec<_>>();
        tracks.iter().flat_map(|it| &it.tracks).flat_map(|track| &track.bars).filter(|bar| bar.solid > 0.0).count()
    }

    #[test]
    fn a_timeline_has_bars_where_a_task_misses_and_none_where_it_does_not() {
        // `wild` misses in 4 of every 10 ms, which are about five buckets of the watch.
        let bars_of_misses = bars(&two(10, true));
        assert!((35..=65).contains(&bars_of_misses), "{bars_of_misses}");
        // Without counters, the bars of both tasks show shares of the time.
        assert!(bars(&two(10, false)) > 90);
        assert_eq!(bars(&Watched::default()), 0);
    }

    #[test]
    fn a_figure_does_not_grow_with_the_watch() {
        let [short, long] = [100, 5000].map(|slices| bars(&two(slices, true)));
        assert!(long < 2 * short, "{short} {long}");
    }

    #[test]
    fn the_headline_names_who_ran_longest_and_the_worst_slice_and_doubts_what_has_gaps() {
        let mut watched = two(10, true);
        let section = watched.section();
        assert_eq!(section.standing, None);
        let sentence = section.headline;
        assert!(sentence.starts_with("calm <1> had a CPU for 60") && sentence.contains("of wild, missed in 50"));
        watched.note(&Entry::Gap(Gap { cpu: CpuId(0), end: Ns(1), lost: Some(3) }));
        assert_eq!(watched.section().standing, Some(Standing::Inconclusive));
        assert!(Watched::default().section().headline.contains("No task"));
    }
}
