//! Reproduces [Kim2013, Figures 14 to 16]: BFD, WFD, CATA and the optimum on the task set of Table 1, beside the paper's ranges.
//!
//! `cargo run --release -p isochrome-model --example figures_14_16` prints the tables of docs/reference/planning.md and draws
//! docs/reference/figures-14-16.svg. With `--check` it writes nothing, and fails if one of the two files differs from its results.

use std::error::Error;
use std::fmt::Write as _;

use isochrome_model::plan::{Comparison, Request, beside_kim2013, compare, figures_14_to_16};
use isochrome_model::taskset::read::{Overrides, task_set};
use isochrome_model::units::Bytes;

const SET: &str = "examples/kim2013-table1.json";
const FIGURE: &str = "docs/reference/figures-14-16.svg";
const TABLES: &str = "docs/reference/planning.md";

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
    let mut printed: String = comparisons.iter().map(|comparison| format!("{comparison}\n")).collect();
    printed += "| compared | here | [Kim2013] |\n|---|---|---|\n";
    for [what, here, paper] in &beside_kim2013(&comparisons) {
        writeln!(printed, "| {what} | {here} | {paper} |")?;
    }
    let figure = figures_14_to_16(&comparisons);
    if std::env::args().any(|argument| argument == "--check") {
        let same = std::fs::read_to_string(FIGURE)? == figure && std::fs::read_to_string(TABLES)?.contains(&printed);
        return if same { Ok(()) } else { Err(format!("{TABLES} or {FIGURE} is not what the planner finds").into()) };
    }
    print!("{printed}");
    Ok(std::fs::write(FIGURE, figure)?)
}
