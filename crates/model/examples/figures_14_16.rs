//! [Kim2013, Figures 14 to 16] again: BFD, WFD, CATA and the optimum on the task set of Table 1, with the paper's ranges beside.
//!
//! `cargo run --release -p isochrome-model --example figures_14_16` prints the tables of docs/planning.md and draws
//! docs/figures-14-16.svg; with `--check` it writes nothing and fails if either is not what it finds.

use std::error::Error;
use std::fmt::Write as _;

use isochrome_model::plan::{Comparison, Method, Request, bars, compare};
use isochrome_model::taskset::read::{Overrides, task_set};
use isochrome_model::units::Bytes;

const SET: &str = "examples/kim2013-table1.json";
const FIGURE: &str = "docs/figures-14-16.svg";
const TABLES: &str = "docs/planning.md";

/// "16 % to 25 %": the least and the most of `values`, shares of one.
fn range(values: impl Iterator<Item = f64>) -> String {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    format!("{:.0} to {:.0}", low * 100.0, high * 100.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(SET).map_err(|error| format!("{SET}: {error}; run this in the repository"))?;
    let mut comparisons: Vec<Comparison> = Vec::new();
    for memory in [1 << 30, 2 << 30] {
        let overrides = Overrides { cores: Some(4), memory: Some(Bytes(memory)), ..Overrides::default() };
        let (set, _) = task_set(&text, overrides)?;
        for copies in [2, 3, 4] {
            comparisons.push(compare(&set.copied(copies)?, &Request::default())?);
        }
    }
    // What CATA saves against `method`, where that one has a plan.
    let saved = |method: Method, of: fn(&isochrome_model::plan::Compared) -> Option<f64>| {
        let pairs = comparisons.iter().filter_map(|all| of(all.of(method)).zip(of(all.of(Method::Cata))));
        range(pairs.map(|(other, cata)| other - cata))
    };
    let mut printed: String = comparisons.iter().map(|comparison| format!("{comparison}\n")).collect();
    let eight = comparisons[0].of(Method::Cata).memory_used.unwrap_or(0.0) * 100.0;
    let without = comparisons.iter().filter(|all| all.of(Method::Bfd).fewest.is_none());
    let without: Vec<String> = without.map(|all| format!("{} tasks in {}", all.tasks, all.memory)).collect();
    let rows = [
        ("partitions CATA saves against BFD, % of all", saved(Method::Bfd, |c| c.share), "16 to 25"),
        ("partitions CATA saves against WFD, % of all", saved(Method::Wfd, |c| c.share), "12 to 19"),
        (
            "memory used better than with BFD, points",
            saved(Method::Bfd, |c| c.memory_used.map(|used| -used)),
            "25 to 39",
        ),
        (
            "memory used better than with WFD, points",
            saved(Method::Wfd, |c| c.memory_used.map(|used| -used)),
            "14 to 35",
        ),
        ("utilization CATA saves against BFD, points", saved(Method::Bfd, |c| c.least), "29 to 44"),
        ("utilization CATA saves against WFD, points", saved(Method::Wfd, |c| c.least), "14 to 49"),
        ("BFD has no plan for", without.join(", "), "16 tasks in 1 GiB"),
        ("memory used by CATA, 8 tasks in 1 GiB", format!("{eight:.0} %"), "97 %"),
    ];
    printed += "| compared | here | [Kim2013] |\n|---|---|---|\n";
    for (what, here, paper) in &rows {
        writeln!(printed, "| {what} | {here} | {paper} |")?;
    }
    let note = |bfd: usize| {
        let (bfd, wfd) = (&rows[bfd], &rows[bfd + 1]);
        format!(
            "CATA against BFD: here {}, paper {}; against WFD: here {}, paper {} points",
            bfd.1, bfd.2, wfd.1, wfd.2
        )
    };
    let notes = [note(0), note(2), note(4)];
    let figure = bars(&comparisons, [&notes[0], &notes[1], &notes[2]]) + "\n";
    if std::env::args().any(|argument| argument == "--check") {
        let same = std::fs::read_to_string(FIGURE)? == figure && std::fs::read_to_string(TABLES)?.contains(&printed);
        return if same { Ok(()) } else { Err(format!("{TABLES} or {FIGURE} is not what the planner finds").into()) };
    }
    print!("{printed}");
    Ok(std::fs::write(FIGURE, figure)?)
}
