//! The report as a table for the terminal.

use std::fmt::Write;

use super::format::Clock;
use super::reading::{FLOODED, Kernel, Reading, Standing, counted, headline, kernels};
use crate::evidence::{Condition, Evidence};

/// Alignment of a table's columns.
#[derive(Clone, Copy)]
enum Column {
    Left,
    Right,
}

/// Per kernel and problem size: c_min, unpredictability, what is lost of the cache, and quiet blocks of each condition. Plain
/// text, at most 100 columns.
pub fn table(evidence: &Evidence) -> String {
    let kernels = kernels(evidence);
    let mut text = String::new();
    let (_, sentence, _) = headline(evidence, &kernels);
    wrap(&mut text, &sentence);
    if !kernels.is_empty() {
        experiments(&mut text, evidence, &kernels);
    }
    if let Some(run) = &evidence.run {
        text.push('\n');
        text.push_str(&super::run::text(run));
    }
    for warning in &evidence.warnings {
        wrap(&mut text, &format!("warning: {warning}"));
    }
    text
}

/// The table of each kernel, and how to read it.
fn experiments(text: &mut String, evidence: &Evidence, kernels: &[Kernel<'_>]) {
    let clock = Clock::of(&evidence.machine);
    let counted = counted(kernels);
    for kernel in kernels {
        text.push('\n');
        wrap(text, &format!("{}, by {}", kernel.title(), kernel.axis()));
        let rows = rows(kernel, clock, counted);
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &rows {
            let mut line = String::new();
            for (i, cell) in row.iter().enumerate() {
                let alignment = if i + 1 == columns { Column::Left } else { Column::Right };
                line.push_str(if i == 0 { "" } else { "  " });
                match alignment {
                    Column::Left => line.push_str(cell),
                    Column::Right => line.push_str(&format!("{cell:>width$}", width = widths[i])),
                }
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text.push('\n');
    wrap(
        text,
        &format!(
            "u unpartitioned, p partitioned, s single-writer. med, max: median and longest job after a flood, over c_min, the shortest \
             undisturbed job ({}). A max is given where u, p and s have equally many jobs. {}quiet: blocks kept, u/p/s. \
             ?: too few quiet blocks or jobs to judge; =: own colors bring nothing. A high-water mark is not a bound.",
            if clock.unit() == "µs" { "microseconds" } else { "ticks of the constant-rate counter" },
            if counted {
                "miss: second-level demand misses, median. "
            } else {
                "lost: share of the task's lines gone before its job, by time, median. No counters on this host. "
            },
        ),
    );
}

fn rows(kernel: &Kernel<'_>, clock: Clock, counted: bool) -> Vec<Vec<String>> {
    let mut heads = vec!["size".to_owned(), format!("c_min {}", clock.unit())];
    heads.extend(["med u", "med p", "med s", "max u", "max p", "max s"].map(str::to_owned));
    heads.extend(if counted { ["miss u", "miss p"] } else { ["lost u", "lost p"] }.map(str::to_owned));
    heads.extend(["quiet".to_owned(), String::new()]);
    let of_reading = |reading: &Reading<'_>| {
        let number = |value: Option<f64>| value.filter(|v| v.is_finite()).map_or("-".to_owned(), short);
        let mut row = vec![plain(&super::format::grouped(reading.size))];
        row.push(number(reading.cycles_min().map(|cycles| clock.number(cycles))));
        row.extend(FLOODED.map(|condition| number(reading.median(condition))));
        row.extend(FLOODED.map(|condition| number(reading.max(condition))));
        row.extend([Condition::Unpartitioned, Condition::Partitioned].map(|condition| {
            let left = if counted {
                reading.misses(condition).map(|m| if m < 9999.5 { format!("{m:.0}") } else { short(m) })
            } else {
                reading.lost(condition).map(|lost| plain(&super::format::share(lost)))
            };
            left.unwrap_or("-".to_owned())
        }));
        row.push(
            FLOODED
                .map(|c| reading.experiment.conditions.get(&c).map_or("-".into(), |o| o.blocks_quiet.to_string()))
                .join("/"),
        );
        row.push(
            match reading.standing() {
                Standing::Holds => "",
                Standing::Violated => "!",
                Standing::NoGain => "=",
                Standing::Inconclusive(_) => "?",
            }
            .to_owned(),
        );
        row
    };
    std::iter::once(heads).chain(kernel.readings.iter().map(of_reading)).collect()
}

/// Three significant digits in at most six characters up to a million.
fn short(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        size if size < 99_999.5 => format!("{value:.0}"),
        _ => format!("{value:.1e}"),
    }
}

/// Text without the narrow spaces that terminals show badly, and without characters that they obey.
pub(super) fn plain(text: &str) -> String {
    let text = text.chars().filter(|&c| c != '\u{202f}');
    text.map(|c| if c.is_control() || c == '\u{a0}' { ' ' } else { c }).collect()
}

/// Appends `paragraph` in lines of at most 100 columns.
pub(super) fn wrap(text: &mut String, paragraph: &str) {
    let mut column = 0;
    for word in plain(paragraph).split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 100 {
            text.push('\n');
            column = 0;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}
