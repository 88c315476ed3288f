//! Tests that the recorded raw samples of every experiment lead to the same conclusions as when they were measured.
//!
//! `scripts/corpus.sh` has recorded the samples. If a conclusion differs from the recorded one, a comment in its test states the difference and
//! the cause.

use std::fs;
use std::path::PathBuf;

use isochrome_lab::conflicts::{self, Conflicts};
use isochrome_lab::crpd::{self, Crpd};
use isochrome_lab::flood::{self, Verification};
use isochrome_lab::interference::{self, Interference, Sharing};
use isochrome_lab::kernels::{self, At, Condition, Experiment, Kernels};
use isochrome_lab::miss_ratio::{self, By, Comparison};
use isochrome_lab::packets::{self, Net, Packets};
use isochrome_lab::samples::{Block, read};
use isochrome_lab::switch::{self, Switches};
use isochrome_model::evidence::Standing::{Holds, Inconclusive, NoGain, Violated};
use isochrome_model::evidence::{Section, Standing};
use serde::de::DeserializeOwned;
use serde_json::Value;

fn text(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the recorded numbers of an experiment.
fn recorded(name: &str) -> Value {
    serde_json::from_str(&text(&format!("{name}.json"))).unwrap()
}

fn blocks<C: DeserializeOwned>(name: &str) -> Vec<Block<C>> {
    read(&text(&format!("{name}.csv"))).unwrap()
}

fn hz(recorded: &Value) -> u64 {
    recorded["counter_hz"].as_u64().unwrap()
}

/// Checks that `section` has the standing `expected`, and prints it beside the standing that the recorded exit status implies.
fn assert_stands(name: &str, section: &Section, expected: Standing) {
    let was = match text(&format!("{name}.status")).trim() {
        "0" => Holds,
        "2" => Violated,
        _ => Inconclusive,
    };
    println!("{name}: was {was:?}, is {:?}: {} {}", section.standing, section.headline, section.basis);
    assert_eq!(section.standing, Some(expected), "{name}, was {was:?}");
}

/// Checks that the two numbers of every pair, now and recorded, differ by at most the share `share` (0 to 1) of the recorded one.
fn assert_near(name: &str, pairs: impl IntoIterator<Item = (f64, f64)>, share: f64) {
    let pairs: Vec<(f64, f64)> = pairs.into_iter().collect();
    println!("{name}: now and recorded {pairs:.3?}");
    for (now, then) in pairs {
        assert!((now - then).abs() <= share * then.abs(), "{name}: {now}, recorded {then}");
    }
}

#[test]
fn kernels_are_concluded_as_recorded() {
    for (name, expected) in [("filter", Holds), ("fft", Inconclusive), ("matmul", Inconclusive)] {
        let mut then: Experiment = serde_json::from_value(recorded(name)).unwrap();
        then.parameter.retain(|name, _| ["taps", "points", "slice_us"].contains(&name.as_str()));
        let found: Vec<Block<At>> = blocks(name);
        let At { bench, size, .. } = found[0].condition;
        let colors = then.conditions[&Condition::Partitioned].colors.clone();
        let (conditions, gain_cycles) = kernels::conclude(&found, bench, size, &colors);
        // The recorded medians are over the quietest blocks, which are not the accepted ones: medians differ by up to a tenth.
        let medians = conditions.iter().map(|(condition, outcome)| {
            let of = |outcome: &kernels::Outcome| outcome.jobs.cycles_median.0 as f64;
            (of(outcome), of(&then.conditions[condition]))
        });
        assert_near(name, medians, 0.1);
        let experiments = vec![Experiment { conditions, gain_cycles, ..then }];
        let section = section_of_kernels(experiments, hz(&recorded(name)));
        assert_stands(name, &section, expected);
    }
}

/// Returns the section of `experiments`. Its figures refer to this machine, which has no influence on its standing.
fn section_of_kernels(experiments: Vec<Experiment>, hz: u64) -> Section {
    let machine = isochrome_host::machine::sysfs::Sysfs::system().machine().unwrap().0;
    kernels::section(&Kernels { counter_hz: Some(hz), experiments }, &machine, None)
}

#[test]
fn preemption_delays_are_concluded_as_recorded() {
    for (name, expected) in [("crpd_data", Holds), ("crpd_code", Inconclusive)] {
        let then = recorded(name);
        let was: Crpd = serde_json::from_value(then.clone()).unwrap();
        let points = crpd::conclude(&blocks(name), was.passes, hz(&then));
        assert_eq!(points.len(), was.points.len());
        let now = Crpd { points, ..was.clone() };
        let slopes = now.walks().map(|walk| [&now, &was].map(|it| it.reading(walk).growth.unwrap().slope).into());
        // The recorded slopes use the median over the quietest blocks, and of a block's two middle samples the lower one. Slopes are now effects
        // over all accepted blocks, and use the mean of the two middle samples: a block has four samples of the treatment and two to compare
        // them with. In random order the slope is 32.0 ns per line, and 25.4 was recorded.
        assert_near(name, slopes, 0.30);
        // For data, the standing changes from violated to holds: in random order, a straight line explains 0.97 of the variance of the delays,
        // and 0.93 was recorded.
        assert_stands(name, &crpd::section(&now), expected);
    }
}

#[test]
fn switches_are_concluded_as_recorded() {
    let then = recorded("switch");
    let was: Switches = serde_json::from_value(then.clone()).unwrap();
    let rows = switch::conclude(&blocks("switch"), hz(&then));
    assert_eq!(rows.len(), was.rows.len());
    for (now, then) in rows.iter().zip(then["rows"].as_array().unwrap()) {
        // The cache part is significant exactly if at least nine of ten recorded blocks were longer.
        assert_eq!(now.has_cache_part(), then["blocks_longer"].as_f64().unwrap() >= 0.9, "{:?}", now.condition);
    }
    // The standing changes from inconclusive: only 3 or 4 of 40 blocks are within 10 % of the quietest block, but at least 18 are within 10 % of
    // the lower quartile.
    assert_stands("switch", &switch::section(&Switches { rows, ..was }), Holds);
}

#[test]
fn interference_is_concluded_as_recorded() {
    let then = recorded("interference");
    let was: Interference = serde_json::from_value(then.clone()).unwrap();
    let now = Interference { rows: interference::conclude(&blocks("interference")), ..was };
    assert_eq!(now.rows.len(), 6);
    let longer =
        |was: &Value| was["blocks_longer"].as_f64().unwrap() >= 0.9 && was["interference"].as_f64().unwrap() > 0.0;
    let were = now.rows.iter().zip(then["rows"].as_array().unwrap()).filter(|(_, was)| longer(was));
    let were: Vec<_> = were.map(|(row, _)| (row.condition.sharing, row.condition.program)).collect();
    assert_eq!(were, [(Sharing::IntraCore, 2)]);
    // This conclusion changes: the program took 10 % longer in all of 9 blocks, which is not significant among six conditions (p = 0.14).
    assert!(now.rows.iter().all(|row| !now.interferes(row) && row.blocks_censored == 0));
    assert_stands("interference", &interference::section(&now), NoGain);
}

#[test]
fn packets_are_concluded_as_recorded() {
    let then = recorded("net")["paths"][0].clone();
    let was: Net = serde_json::from_value(then).unwrap();
    let points = packets::conclude(&blocks("net"), was.counter_hz);
    assert_eq!(points.len(), was.points.len());
    let now = Net { points, ..was.clone() };
    // Of two samples to compare with, the mean counts, and not the shorter one as in the recorded results. So a flood makes sending 1500 bytes
    // 40 % longer, and 98 % was recorded.
    let overheads = now.points.iter().map(|now| (now.overhead, was.point(now.condition).unwrap().overhead));
    assert_near("net", overheads, 0.60);
    assert_stands("net", &packets::section(&Packets { paths: vec![now] }), Holds);
}

#[test]
fn floods_are_concluded_as_recorded() {
    let then = recorded("flood");
    let was: Verification = serde_json::from_value(then.clone()).unwrap();
    let memory = |pattern| was.achieved.iter().find(|it| it.pattern == pattern).unwrap().memory;
    let achieved = flood::conclude(&blocks("flood"), was.lines, hz(&then), memory);
    assert_eq!(achieved.len(), was.achieved.len());
    assert_near("flood", achieved.iter().zip(&was.achieved).map(|(now, then)| (now.gone, then.gone)), 0.05);
    let now = Verification { achieved, ..was.clone() };
    assert_eq!(now.worst().map(|worst| worst.pattern), was.worst().map(|worst| worst.pattern));
    assert_stands("flood", &flood::section(&now), Holds);
}

#[test]
fn the_miss_penalty_is_concluded_as_recorded() {
    let then = recorded("conflicts");
    let was: Conflicts = serde_json::from_value(then.clone()).unwrap();
    for (now, then) in [(was.linear(), &then["linear"]), (was.random(), &then["random"])] {
        assert_near("conflicts", [(now.unwrap().ns_per_line, then["ns_per_line"].as_f64().unwrap())], 1e-9);
    }
    assert_stands("conflicts", &conflicts::section(&was), Holds);
}

#[test]
fn a_miss_ratio_is_concluded_as_recorded() {
    let then = recorded("workload");
    let was: Comparison = serde_json::from_value(then.clone()).unwrap();
    let executed = miss_ratio::conclude(&was.task, &blocks("workload")).unwrap();
    // The recorded ratio is the median over those 44 of 60 samples whose control was near the quickest. Here six samples make a block, and 9 of
    // the 10 blocks are accepted.
    assert_near("workload", [(executed.miss_ratio, was.executed.unwrap().miss_ratio)], 0.01);
    assert_eq!((executed.by, executed.blocks, executed.blocks_quiet), (By::Time, 10, 9));
    // The interval is a confidence interval of the ratio; the recorded one, 25 to 36 %, holds the quartiles of single samples. Nothing was
    // required of the ratio, so the section has no standing.
    let [low, high] = executed.interval.unwrap();
    assert!((0.25..0.31).contains(&low) && (0.31..0.36).contains(&high), "{executed:?}");
    let now = Comparison { executed: Some(executed), ..was };
    assert_eq!((text("workload.status").trim(), miss_ratio::section(&now).standing), ("0", None));
}

#[test]
fn samples_are_read_as_they_were_written() {
    let found: Vec<Block<At>> = blocks("filter");
    let columns = kernels::COLUMNS.map(str::to_owned);
    let again: Vec<Block<At>> = read(&isochrome_lab::samples::csv(&found, &columns)).unwrap();
    // Values that were not measured are NaN, which is not equal to itself, so the test compares texts.
    assert!(format!("{found:?}") == format!("{again:?}"));
    assert_eq!(read::<At>("nothing of the kind"), None);
}
