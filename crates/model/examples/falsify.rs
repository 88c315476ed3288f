//! Tries to exceed the bounds of every analysis by random schedules, and reports how close the schedules come.
//!
//! `cargo run --release -p isochrome-model --example falsify -- --sets 1000000 [--first SEED] [--withhold]` prints a table in Markdown. With
//! `--withhold`, a hypervisor takes the cores at times, and the bounds charge their supply. If a bound was exceeded, the program prints the seeds of the first ten such cases, and ends with exit code 2.

use std::process::ExitCode;

use isochrome_model::analysis::falsify::{Tally, Withholding, falsify};

fn option(name: &str) -> Option<u64> {
    std::env::args().skip_while(|argument| argument != name).nth(1)?.parse().ok()
}

fn main() -> ExitCode {
    let first = option("--first").unwrap_or(0);
    let withheld = std::env::args().any(|argument| argument == "--withhold");
    let withholding = if withheld { Withholding::Sometimes } else { Withholding::Never };
    let seeds = first..first.saturating_add(option("--sets").unwrap_or(1_000));
    let (tallies, exceeded) = falsify(seeds, withholding);
    println!("| analysis | sets | bounds | exceeded | reached exactly | mean tightness |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (analysis, Tally { sets, bounds, exceeded, reached, tightness }) in tallies {
        let of_bounds = |value: f64| value / bounds.max(1) as f64;
        println!(
            "| `{analysis}` | {sets} | {bounds} | {exceeded} | {:.1} % | {:.3} |",
            100.0 * of_bounds(reached as f64),
            of_bounds(tightness)
        );
    }
    for (seed, analysis, task) in exceeded.iter().take(10) {
        println!("exceeded: seed {seed}, {analysis}, task {task}");
    }
    if exceeded.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}
