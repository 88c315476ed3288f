//! The result of a watch as a table of text.

use std::fmt::Write;

use super::{COST_GOAL, CpuSteal, Order, TaskStatistics, Watched};
use crate::layout::{Align, Table};
use crate::printable;
use crate::stats::HighWaterMark;

/// Columns of the table: the heading, and the width in characters.
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

/// Indices of the columns that are empty without counters.
pub const COUNTED: std::ops::Range<usize> = 9..13;

/// Columns in front of a timeline.
const STRIP_AT: usize = 27;

/// Greatest number of bars of a timeline.
const BARS_MAX: usize = 60;

impl Watched {
    /// Summarizes all tasks: their number, the duration, the steal time, and how far the counters can be trusted.
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

    /// Returns the cells of a task's row, in the order of [`COLUMNS`].
    pub fn cells(&self, thread: i32, task: &TaskStatistics) -> [String; COLUMNS.len()] {
        let number = |value: Option<f64>, digits| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        let us = |mark: Option<HighWaterMark>| {
            mark.map_or("-".to_owned(), |mark| format!("{:.1} us", mark.value as f64 / 1e3))
        };
        [
            thread.to_string(),
            printable::line(&task.name),
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

    /// Formats the `rows` tasks that ran longest as a table for a terminal of `width` columns, with the timeline of each.
    pub fn text(&self, rows: usize, width: usize) -> String {
        let mut text = self.head() + "\n";
        let side = |name| if name == "name" { Align::Left } else { Align::Right };
        // Thread and name stand in front of every part of a table that is too wide.
        let mut table = Table::new(COLUMNS.map(|(name, _)| (name, side(name)))).keys(2);
        let mut shown = self.sorted(Order::Time);
        shown.truncate(rows);
        shown.iter().for_each(|(thread, task)| table.row(self.cells(*thread, task)));
        text.push_str(&table.text(width));
        if let Some(from) = self.kept_since(&shown) {
            let _ = writeln!(text, "{}:", self.strip_head(from));
            let bars = width.saturating_sub(STRIP_AT + 1).clamp(1, BARS_MAX) as u16;
            for (thread, task) in shown {
                let (name, strip) = (printable::line(&task.name), self.strip(task, from, bars));
                let _ = writeln!(text, "{thread:>8} {name:16} |{strip}|");
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

    /// Describes the cost of watching in two lines; empty if the cost is not known.
    pub fn cost_text(&self) -> String {
        let Some(cost) = self.state.cost else { return String::new() };
        let polls = cost.polls_per_second.map_or(String::new(), |polls| format!(", polling {polls:.0} times"));
        let by = self.state.source.as_ref().map_or(String::new(), |source| format!(", by {source}"));
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let mut text = format!(
            "watching took {} of a CPU, looking {:.0} times{polls} and seeing {:.0} events a second{by}\n",
            percent(cost.cpu_share),
            cost.reads_per_second,
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
}

#[cfg(test)]
mod tests {
    use crate::layout::{WIDTH, columns};
    use crate::units::CpuId;
    use crate::watch::fixture::{slice, state};
    use crate::watch::{COLUMNS, Cost, Counts, Entry, RecordCost, Slice, State, SwitchOut, Watched, csv_line};

    #[test]
    fn without_counters_nothing_is_said_of_misses() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 400, SwitchOut::Asleep)));
        assert!(watched.text(10, WIDTH).contains("no counters") && !watched.prometheus().contains("misses_total"));
        assert!(watched.prometheus().contains("isochrome_slices_total{thread=\"7\",name=\"task 7\"} 1"));
        assert_eq!(csv_line(&slice(7, 0, 0, 400, SwitchOut::Asleep)), "0,400,0,7,\"task 7\",asleep,,,,\n");
        let counts = Some(Counts { accesses: 4000, misses: 1000, instructions: 9000, cycles: 4500 });
        watched.note(&Entry::Slice(Slice { counts, ..slice(7, 0, 400, 1400, SwitchOut::Asleep) }));
        let task = &watched.tasks[&7];
        assert_eq!((task.miss_ratio_now, task.instructions_per_cycle()), (Some(0.25), Some(2.0)));
        assert!(watched.prometheus().contains("misses_total") && !watched.text(10, WIDTH).contains("no counters"));
    }

    #[test]
    fn what_was_known_of_the_watch_is_known_of_its_replay() {
        let mut watched = Watched::default();
        watched.note(&Entry::Slice(slice(7, 0, 0, 400, SwitchOut::Asleep)));
        watched.note(&Entry::State(state()));
        let text = watched.text(10, WIDTH);
        assert!(text.contains("CPU 0 steal 25.0 %") && text.contains("no counters here"), "{text}");
        // The kernel's records take 10 000 times 2 us (quartiles 1.5 and 2.5 us), and the watching process takes 0.5 % of a
        // CPU.
        assert!(text.contains("2.00 % more (1.50 % to 2.50 %), by 2.00 us each; 2.50 % in all, goal 1.00 %"), "{text}");
        let metrics = watched.prometheus();
        for line in ["steal_ratio{cpu=\"0\"} 0.25", "watch_cpu_ratio 0.005", "watch_kernel_ratio 0.02"] {
            assert!(metrics.contains(&format!("\nisochrome_{line}\n")), "{metrics}");
        }
        assert_eq!(RecordCost::of(CpuId(0), &[]), None);
    }

    #[test]
    fn a_task_that_names_itself_by_escape_sequences_stays_text_in_its_row() {
        let name = "\u{1b}[2J\u{9b}\"\n\u{202e}9 root\0".to_owned();
        let (mut watched, hostile) = (Watched::default(), Slice { name, ..slice(7, 0, 0, 400, SwitchOut::Asleep) });
        watched.note(&Entry::Slice(hostile.clone()));
        for output in [watched.text(10, WIDTH), watched.prometheus(), csv_line(&hostile)] {
            assert!(output.chars().all(|c| crate::printable::is_printable(c) || c == '\n'), "{output:?}");
            assert!(output.lines().all(|line| !line.starts_with("9 root")), "{output}");
        }
        assert_eq!(csv_line(&hostile).lines().count(), 1);
    }

    #[test]
    fn tables_and_timelines_fit_80_columns() {
        let mut watched = Watched::default();
        let counts = Some(Counts { accesses: 4_000_000_000, misses: 3_000_000_000, instructions: 9, cycles: 4500 });
        for thread in [7, 4_194_304] {
            let name = "kworker/u256:12".to_owned();
            let slice = slice(thread, 127, 0, 123_456_789_012, SwitchOut::Preempted);
            watched.note(&Entry::Slice(Slice { name, counts, ..slice }));
        }
        let text = watched.text(10, WIDTH);
        assert!(text.lines().skip(1).all(|line| columns(line) <= WIDTH), "{text}");
        for column in COLUMNS.iter().flat_map(|(name, _)| name.split(' ')) {
            assert!(text.contains(column), "no {column}: {text}");
        }
    }

    #[test]
    fn what_was_not_measured_of_the_cost_is_not_made_up() {
        let cost = Cost { record: None, ..state().cost.unwrap() };
        let watched = Watched { state: State { cost: Some(cost), ..state() }, ..Watched::default() };
        assert!(watched.cost_text().contains("took besides is not known"));
        assert!(!watched.prometheus().contains("kernel_ratio"));
    }
}
