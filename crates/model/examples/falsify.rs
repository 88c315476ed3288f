//! Tries to exceed the bounds of every analysis by random schedules, and reports how close the schedules come.
//!
//! `cargo run --release -p isochrome-model --example falsify -- --sets 1000000 [--first SEED] [--withhold]` prints a table in Markdown. With
//! `--withhold`, a hypervisor takes the cores at times, and the bounds charge their supply. If a bound was exceeded, the program prints the
//! seeds of the first ten such cases, and ends with exit code 2. With `--prices`, it plays nothing and prints what each feature of the cores
//! adds to the bounds. Tables of several ranges of seeds are added up by `--add FILE...`, which reads what was printed with `--json`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;

use isochrome_model::analysis::Analysis;
use isochrome_model::analysis::falsify::{Price, Tally, Withholding, falsify, prices};
use serde_json::{Value, json};

fn option(name: &str) -> Option<u64> {
    std::env::args().skip_while(|argument| argument != name).nth(1)?.parse().ok()
}

fn is_given(name: &str) -> bool {
    std::env::args().any(|argument| argument == name)
}

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip_while(|argument| argument != "--add").skip(1).collect();
    if !files.is_empty() {
        return add(&files);
    }
    let first = option("--first").unwrap_or(0);
    let seeds = first..first.saturating_add(option("--sets").unwrap_or(1_000));
    if is_given("--prices") {
        return print_prices(seeds);
    }
    let withholding = if is_given("--withhold") { Withholding::Sometimes } else { Withholding::Never };
    let (tallies, exceeded) = falsify(seeds, withholding);
    if is_given("--json") {
        for (analysis, Tally { sets, bounds, exceeded, reached, tightness }) in tallies {
            println!("{}", json!([analysis.name(), sets, bounds, exceeded, reached, tightness]));
        }
    } else {
        print(tallies.into_iter().map(|(analysis, tally)| (analysis.name().to_owned(), tally)));
    }
    for (seed, analysis, task) in exceeded.iter().take(10) {
        eprintln!("exceeded: seed {seed}, {analysis}, task {task}");
    }
    if exceeded.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}

fn print(tallies: impl Iterator<Item = (String, Tally)>) {
    println!("| analysis | sets | bounds | exceeded | reached exactly | mean tightness |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (analysis, Tally { sets, bounds, exceeded, reached, tightness }) in tallies {
        let of_bounds = |value: f64| value / bounds.max(1) as f64;
        let (reached, tightness) = (100.0 * of_bounds(reached as f64), of_bounds(tightness));
        println!("| `{analysis}` | {sets} | {bounds} | {exceeded} | {reached:.1} % | {tightness:.3} |");
    }
}

/// Prints the sum of the tables in `files`.
fn add(files: &[String]) -> ExitCode {
    let mut sums: BTreeMap<usize, (String, Tally)> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        for (index, line) in text.lines().enumerate() {
            let row: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{file}: {error}"));
            let number = |column: usize| row[column].as_u64().unwrap_or_else(|| panic!("{file}: {line}"));
            let name = row[0].as_str().unwrap_or_default();
            let (known, sum) = sums.entry(index).or_insert_with(|| (name.to_owned(), Tally::default()));
            assert_eq!(known, name, "{file} has other analyses");
            sum.sets += number(1);
            sum.bounds += number(2);
            sum.exceeded += number(3);
            sum.reached += number(4);
            sum.tightness += row[5].as_f64().unwrap_or_else(|| panic!("{file}: {line}"));
        }
    }
    let exceeded = sums.values().any(|(_, sum)| sum.exceeded > 0);
    print(sums.into_values());
    if exceeded { ExitCode::from(2) } else { ExitCode::SUCCESS }
}

fn print_prices(seeds: Range<u64>) -> ExitCode {
    println!("| feature | cores that have it | bounds with it | without it | bound with it, share of that without |");
    println!("|---|---:|---:|---:|---:|");
    for (feature, Price { cores, with, without, growth }) in prices(seeds, Analysis::PersistenceMultiset) {
        let growth = growth / with.max(1) as f64;
        println!("| {} | {cores} | {with} | {without} | {growth:.3} |", feature.name());
    }
    ExitCode::SUCCESS
}
