//! Tries to exceed the bounds of every analysis by random schedules, and says how close these come.
//!
//! `cargo run --release -p isochrome-model --example falsify -- --sets 1000000 [--first SEED]` prints a table in Markdown. It
//! ends with exit code 2 if a bound was exceeded, and names the cores.

use std::process::ExitCode;

use isochrome_model::analysis::falsify::{Tally, falsify};

fn option(name: &str) -> Option<u64> {
    std::env::args().skip_while(|argument| argument != name).nth(1)?.parse().ok()
}

fn main() -> ExitCode {
    let first = option("--first").unwrap_or(0);
    let (tallies, exceeded) = falsify(first..first.saturating_add(option("--sets").unwrap_or(1_000)));
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
