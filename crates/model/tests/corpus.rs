//! Conclusions from recorded raw samples of every experiment: what `isochrome` concluded when it measured comes out of them again.
//!
//! `scripts/corpus.sh` has recorded them. A change of a rule that changes a conclusion says so here, with its reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use isochrome_model::miss_ratio::measured::{self, Comparison, Passes, Turn};
use serde::Serialize;
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

    fn float(&self, column: &str) -> Option<f64> {
        Some(self.text(column)).filter(|field| !field.is_empty()).map(|field| field.parse().unwrap())
    }
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
