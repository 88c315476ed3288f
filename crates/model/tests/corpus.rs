//! Conclusions from recorded raw samples of every experiment: what `isochrome` concluded when it measured comes out of them again.
//!
//! `scripts/corpus.sh` has recorded them. A change of a rule that changes a conclusion says so here, with its reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use isochrome_model::crpd::{self, Crpd};
use isochrome_model::evidence::{self, Conflicts};
use isochrome_model::experiment;
use isochrome_model::flood::{Pattern, verify};
use isochrome_model::interference::{self, Asked, Interference, Run};
use isochrome_model::miss_ratio::measured::{self, Comparison, Passes, Turn};
use isochrome_model::net::{self, Net, Packet};
use isochrome_model::report::conflicts;
use isochrome_model::switch::{self, Handoff, Switches};
use isochrome_model::units::{Cycles, Ns, parse_list};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Exit status of a command whose outcome holds, is a violation, or is inconclusive.
const HOLDS: i32 = 0;
const VIOLATED: i32 = 2;
const INCONCLUSIVE: i32 = 3;

fn text(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What was concluded, and the exit status.
fn recorded(name: &str) -> (Value, i32) {
    (
        serde_json::from_str(&text(&format!("{name}.json"))).unwrap(),
        text(&format!("{name}.status")).trim().parse().unwrap(),
    )
}

/// A line of a file of raw samples, by the names of its columns.
struct Line(BTreeMap<String, String>);

impl Line {
    fn text(&self, column: &str) -> &str {
        self.0.get(column).unwrap_or_else(|| panic!("no column {column}"))
    }

    fn optional(&self, column: &str) -> Option<u64> {
        Some(self.text(column)).filter(|field| !field.is_empty()).map(|field| field.parse().unwrap())
    }

    fn number(&self, column: &str) -> u64 {
        self.optional(column).unwrap_or_else(|| panic!("{column} is empty"))
    }

    fn float(&self, column: &str) -> Option<f64> {
        Some(self.text(column)).filter(|field| !field.is_empty()).map(|field| field.parse().unwrap())
    }

    fn cycles(&self, column: &str) -> Cycles {
        Cycles(self.number(column))
    }

    /// A value that has a name.
    fn named<T: DeserializeOwned>(&self, column: &str) -> T {
        serde_json::from_value(Value::String(self.text(column).to_owned())).unwrap()
    }
}

/// The raw samples of an experiment, block by block.
fn blocks(name: &str) -> Vec<Vec<Line>> {
    let text = text(&format!("{name}.csv"));
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut blocks: Vec<Vec<Line>> = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), head.len(), "{name}: {line}");
        let line =
            Line(head.iter().map(|name| (*name).to_owned()).zip(fields.into_iter().map(str::to_owned)).collect());
        match blocks.last_mut() {
            Some(block) if block[0].text("block") == line.text("block") => block.push(line),
            _ => blocks.push(vec![line]),
        }
    }
    blocks
}

/// The first thing in `now` that `then` does not have or has otherwise, numbers to nine digits; `None` where all of it is there.
fn difference(path: &str, now: &Value, then: &Value) -> Option<String> {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => now.iter().find_map(|(key, value)| match then.get(key) {
            Some(then) => difference(&format!("{path}.{key}"), value, then),
            None => Some(format!("{path}.{key} was not recorded")),
        }),
        (Value::Array(now), Value::Array(then)) if now.len() == then.len() => {
            now.iter().zip(then).enumerate().find_map(|(i, (now, then))| difference(&format!("{path}[{i}]"), now, then))
        }
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64()?, b.as_f64()?);
            let same = (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
            (!same).then(|| format!("{path}: {a}, recorded {b}"))
        }
        _ => (now != then).then(|| format!("{path}: {now}, recorded {then}")),
    }
}

fn assert_concluded(name: &str, key: &str, now: &impl Serialize, then: &Value) {
    assert_eq!(difference(&format!("{name}.{key}"), &serde_json::to_value(now).unwrap(), &then[key]), None);
}

fn hz(recorded: &Value) -> u64 {
    recorded["counter_hz"].as_u64().unwrap()
}

fn kernel(name: &str) {
    let (then, _) = recorded(name);
    let block = |lines: &Vec<Line>| {
        let first = &lines[0];
        let jobs = |of: &[&Line]| -> Vec<experiment::Job> {
            let job = |line: &&Line| experiment::Job {
                cycles: line.cycles("cycles"),
                l2_misses: line.optional("l2_misses"),
                l1_misses: line.optional("l1_misses"),
                lost: line.float("lost"),
            };
            of.iter().map(job).collect()
        };
        // Jobs after the co-runner's work come first; where nothing is flooded both kinds follow spinning.
        let all: Vec<&Line> = lines.iter().collect();
        let (flooded, control) = all.split_at(all.len() / 2);
        let colors = parse_list(&first.text("colors").replace(' ', ","), 1024).unwrap_or_default();
        experiment::Block {
            condition: first.named("condition"),
            jobs: jobs(flooded),
            control: jobs(control),
            colors: colors.into_iter().map(|color| isochrome_model::units::Color(color as u16)).collect(),
            steal_ns: Ns(first.number("steal_ns")),
        }
    };
    let raw = blocks(name);
    let found: Vec<experiment::Block> = raw.iter().map(block).collect();
    let counted: Vec<bool> = raw.iter().map(|lines| lines[0].text("counts") == "true").collect();
    assert_eq!(experiment::kept(&found), counted, "{name}");
    assert_concluded(name, "conditions", &experiment::conclude(&found), &then);
}

#[test]
fn kernels_are_concluded_as_recorded() {
    ["filter", "fft", "matmul"].into_iter().for_each(kernel);
}

#[test]
fn preemption_delays_are_concluded_as_recorded() {
    for name in ["crpd_data", "crpd_code"] {
        let (then, status) = recorded(name);
        let block = |lines: &Vec<Line>| {
            let first = &lines[0];
            let jobs = |flooded: &str| {
                let of = lines.iter().filter(|line| line.text("flooded") == flooded);
                of.map(|line| crpd::Job { alone: line.cycles("alone"), preempted: line.cycles("preempted") }).collect()
            };
            crpd::Block {
                condition: crpd::Condition {
                    walk: first.named("walk"),
                    partitioned: first.text("partitioned") == "1",
                    percent: first.number("percent") as u32,
                },
                lines: first.number("lines"),
                jobs: jobs("1"),
                control: jobs("0"),
            }
        };
        let found: Vec<crpd::Block> = blocks(name).iter().map(block).collect();
        let measured: Crpd = serde_json::from_value(then.clone()).unwrap();
        let points = crpd::conclude(&found, measured.passes, hz(&then));
        assert_concluded(name, "points", &points, &then);
        let measured = Crpd { points, ..measured };
        let now = match measured.is_conclusive() {
            false => INCONCLUSIVE,
            true if measured.holds() => HOLDS,
            true => VIOLATED,
        };
        assert_eq!(now, status, "{name}");
    }
}

#[test]
fn switches_are_concluded_as_recorded() {
    let (then, status) = recorded("switch");
    let block = |lines: &Vec<Line>| {
        let first = &lines[0];
        let mut handoffs = BTreeMap::<switch::Before, Vec<Handoff>>::new();
        for line in lines {
            let handoff = Handoff { interrupt: line.cycles("interrupt"), resume: line.cycles("resume") };
            handoffs.entry(line.named("before")).or_default().push(handoff);
        }
        let condition = switch::Condition {
            kind: first.named("kind"),
            means: first.named("means"),
            partitioned: first.text("partitioned") == "1",
        };
        switch::Block { condition, handoffs }
    };
    let found: Vec<switch::Block> = blocks("switch").iter().map(block).collect();
    let measured: Switches = serde_json::from_value(then.clone()).unwrap();
    let rows = switch::conclude(&found, hz(&then));
    assert_eq!(rows.len(), measured.rows.len());
    for (now, then) in rows.iter().zip(then["rows"].as_array().unwrap()) {
        println!("{now:?}; was {then}");
        // What nine of ten blocks showed is significant.
        assert_eq!(now.has_cache_part(), then["blocks_longer"].as_f64().unwrap() >= 0.9, "{:?}", now.condition);
    }
    // Changed: inconclusive, as of 40 blocks 3 or 4 were within 10 % of the quietest; within 10 % of the lower quartile are 18 or more. The
    // cache parts change with the blocks that show them, by up to a third.
    assert_eq!(status, INCONCLUSIVE);
    assert!(Switches { rows, ..measured }.is_conclusive());
}

#[test]
fn packets_are_concluded_as_recorded() {
    let (then, status) = recorded("net");
    let block = |lines: &Vec<Line>| {
        let first = &lines[0];
        let packets = |flooded: &str| {
            let of = lines.iter().filter(|line| line.text("flooded") == flooded);
            of.map(|line| Packet { spent: ["driver", "server", "client"].map(|part| line.cycles(part)) }).collect()
        };
        let condition = net::Condition {
            direction: first.named("direction"),
            bytes: first.number("bytes") as usize,
            setting: first.named("setting"),
        };
        net::Block { condition, packets: packets("1"), control: packets("0") }
    };
    let found: Vec<net::Block> = blocks("net").iter().map(block).collect();
    let path = &then["paths"][0];
    let measured: Net = serde_json::from_value(path.clone()).unwrap();
    let points = net::conclude(&found, measured.counter_hz);
    assert_concluded("net", "points", &points, path);
    let measured = Net { points, ..measured };
    let now = match measured.is_conclusive() {
        false => INCONCLUSIVE,
        true if measured.holds() => HOLDS,
        true => VIOLATED,
    };
    assert_eq!(now, status);
}

#[test]
fn interference_is_concluded_as_recorded() {
    let (then, status) = recorded("interference");
    let measured: Interference = serde_json::from_value(then.clone()).unwrap();
    let block = |lines: &Vec<Line>| {
        let first = &lines[0];
        let run = |beside: &str| {
            let line = lines.iter().find(|line| line.text("beside") == beside).unwrap();
            let asked = measured.counted.iter().map_while(|counted| {
                let count = |what: &str| line.optional(&format!("{}_{what}", counted.level));
                Some(Asked { hits: count("hits")?, misses: count("misses")? })
            });
            Run { cpu: Ns(line.number("cpu_ns")), asked: asked.collect() }
        };
        interference::Block {
            condition: interference::Condition {
                sharing: first.named("sharing"),
                program: first.number("program") as usize,
                partitioning: first.named("partitioning"),
            },
            alone: run("nobody"),
            control: run("spinning"),
            together: run("programs"),
        }
    };
    let found: Vec<interference::Block> = blocks("interference").iter().map(block).collect();
    let rows = interference::conclude(&found);
    assert_eq!(rows.len(), measured.rows.len());
    let of = |rows: Vec<&interference::Row>| -> Vec<_> {
        rows.into_iter().map(|row| (row.condition.sharing, row.condition.program)).collect()
    };
    let longer =
        |was: &Value| was["blocks_longer"].as_f64().unwrap() >= 0.9 && was["interference"].as_f64().unwrap() > 0.0;
    let were = rows.iter().zip(then["rows"].as_array().unwrap()).filter(|(_, was)| longer(was)).map(|(row, _)| row);
    // Changed: one program was longer in all of 9 blocks, by 10 %. Of six conditions that is not significant (p = 0.14).
    assert_eq!(of(were.collect()), [(interference::Sharing::IntraCore, 2)]);
    let now = Interference { rows: rows.clone(), ..measured.clone() };
    assert_eq!(of(rows.iter().filter(|row| now.interferes(row)).collect()), []);
    let conclusive = Interference { rows, ..measured }.is_conclusive();
    assert_eq!(if conclusive { HOLDS } else { INCONCLUSIVE }, status);
}

#[test]
fn floods_are_concluded_as_recorded() {
    let (then, status) = recorded("flood");
    let block = |lines: &Vec<Line>| {
        let first = &lines[0];
        let looks = |before: &str| {
            let mut looks: Vec<(u64, verify::Look)> = Vec::new();
            for line in lines.iter().filter(|line| line.text("before") == before) {
                let number = line.number("look");
                if looks.last().is_none_or(|(last, _)| *last != number) {
                    let (misses, write_backs) = (line.optional("misses"), line.optional("write_backs"));
                    looks.push((number, verify::Look { walks: Vec::new(), misses, write_backs }));
                }
                looks.last_mut().unwrap().1.walks.push(line.cycles("ticks"));
            }
            looks.into_iter().map(|(_, look)| look).collect()
        };
        verify::Block {
            pattern: first.text("flood").parse().unwrap(),
            flood: first.cycles("flood_ticks"),
            hit: looks("spin"),
            flooded: looks("flood"),
            sure: looks("sure"),
        }
    };
    let found: Vec<verify::Block> = blocks("flood").iter().map(block).collect();
    let measured: verify::Verification = serde_json::from_value(then.clone()).unwrap();
    let memory = |pattern: Pattern| measured.achieved.iter().find(|it| it.pattern == pattern).unwrap().memory;
    let achieved = verify::conclude(&found, measured.lines, hz(&then), memory);
    assert_concluded("flood", "achieved", &achieved, &then);
    let measured = verify::Verification { achieved, ..measured };
    let now = measured.worst().map_or(INCONCLUSIVE, |worst| if worst.falls_short() { VIOLATED } else { HOLDS });
    assert_eq!(now, status);
}

#[test]
fn a_miss_ratio_is_concluded_as_recorded() {
    let (then, status) = recorded("workload");
    let measured: Comparison = serde_json::from_value(then.clone()).unwrap();
    let text = text("workload.csv");
    let head: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let turn = |line: &str| {
        let fields = head.iter().map(|name| (*name).to_owned()).zip(line.split(',').map(str::to_owned));
        let line = Line(fields.collect());
        let passes = |of: &str| Passes {
            access_ns: line.float(&format!("{of}_ns")).unwrap(),
            misses: line.float(&format!("{of}_misses")),
        };
        Turn { task: passes("task"), fitting: passes("fitting"), missing: passes("missing") }
    };
    let turns: Vec<Turn> = text.lines().skip(1).map(turn).collect();
    let executed = measured::conclude(&measured.task, &turns);
    assert_concluded("workload", "executed", &executed, &then);
    let now = match (Comparison { executed, ..measured }).verdict() {
        measured::Verdict::Holds => HOLDS,
        measured::Verdict::Violated => VIOLATED,
        measured::Verdict::Inconclusive => INCONCLUSIVE,
    };
    assert_eq!(now, status);
}

#[test]
fn the_miss_penalty_is_concluded_as_recorded() {
    let (then, status) = recorded("conflicts");
    let measured: Conflicts = serde_json::from_value(then.clone()).unwrap();
    let penalty = |of: fn(&evidence::PlacedWalk) -> f64| measured.penalty(|walk| walk.sum, of, Some(hz(&then)));
    assert_concluded("conflicts", "linear", &penalty(|walk| walk.linear_ns), &then);
    assert_concluded("conflicts", "random", &penalty(|walk| walk.random_ns), &then);
    assert_eq!(if conflicts::is_conclusive(&measured) { HOLDS } else { INCONCLUSIVE }, status);
}

#[test]
fn what_differs_is_found() {
    let then = json!({"a": [1.0, 2.0], "more": true});
    assert_eq!(difference("", &json!({"a": [1.0, 2.0 + 1e-10]}), &then), None);
    for (now, found) in [
        (json!({"a": [1.0, 2.1]}), ".a[1]: 2.1, recorded 2"),
        (json!({"a": [1.0]}), ".a: [1.0], recorded [1.0,2.0]"),
        (json!({"b": 1}), ".b was not recorded"),
        (json!({"a": [1.0, "2"]}), ".a[1]: \"2\", recorded 2.0"),
    ] {
        assert_eq!(difference("", &now, &then).as_deref(), Some(found));
    }
}
