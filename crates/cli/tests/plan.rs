//! `plan` and `analyze` from the outside: files and standard input in, exit codes and JSON out.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const TABLE_1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kim2013-table1.json");

fn isochrome(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that never reads its input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn analyze_prints_table_2_of_the_paper() {
    // [Kim2013, Table 2]
    let sets = [
        ("p_streamcluster", (1..=8).collect::<Vec<u32>>()),
        ("p_ferret", vec![1, 2, 3]),
        ("p_canneal", (1..=8).collect()),
        ("p_fluidanimate", (4..=8).collect()),
    ];
    let tasks: Vec<Value> =
        sets.iter().map(|(name, partitions)| json!({"name": name, "partitions": partitions})).collect();
    let allocation = json!({"cores": [{"cpu": 0, "tasks": tasks}]}).to_string();
    let run = |extra: &[&str]| {
        let arguments = ["analyze", TABLE_1, "--allocation", "-", "--json"];
        isochrome(&[&arguments, extra].concat(), &allocation)
    };
    let output = run(&[]);
    let result = json_of(&output);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!((&result["analysis"], &result["schedulable"]), (&json!("kim2013"), &json!(true)));
    let responses: Vec<_> =
        result["tasks"].as_array().unwrap().iter().map(|task| task["response_ns"].clone()).collect();
    assert_eq!(responses, [12_302_400, 25_724_200, 101_358_600, 273_783_300]);

    // A bound past the deadline is null, and exit code 2 says that something does not hold.
    let late = run(&["--refill", "9ms"]);
    assert_eq!(late.status.code(), Some(2));
    assert_eq!(json_of(&late)["tasks"][3]["response_ns"], Value::Null);
}

#[test]
fn a_plan_is_an_allocation_that_analyze_accepts() {
    let common = ["--cores", "4", "--memory", "1G"];
    let planned = isochrome(&[&["plan", TABLE_1, "--json"], &common[..]].concat(), "");
    assert_eq!(planned.status.code(), Some(0));
    let plan = json_of(&planned);
    assert_eq!((&plan["schedulable"], &plan["gap"], &plan["partitions_used"]), (&json!(true), &json!(0.0), &json!(6)));
    let text = String::from_utf8(planned.stdout).unwrap();
    let analyzed = isochrome(&[&["analyze", TABLE_1, "--allocation", "-", "--json"], &common[..]].concat(), &text);
    assert_eq!(analyzed.status.code(), Some(0), "{}", String::from_utf8_lossy(&analyzed.stderr));
    for core in plan["cores"].as_array().unwrap() {
        for task in core["tasks"].as_array().unwrap() {
            let result = json_of(&analyzed);
            let same = result["tasks"].as_array().unwrap().iter().find(|other| other["name"] == task["name"]).cloned();
            assert_eq!(same.unwrap()["response_ns"], task["response_ns"]);
        }
    }
}

#[test]
fn a_set_that_cannot_be_scheduled_ends_with_2_and_a_bad_file_with_1() {
    let set = |wcet: u64| {
        let tasks =
            json!([{"name": "a", "period_ns": 100, "wcet_ns": wcet}, {"name": "b", "period_ns": 100, "wcet_ns": wcet}]);
        json!({"refill_ns_per_partition": 1, "partitions": 2, "memory_mib": 4, "cores": 1, "tasks": tasks}).to_string()
    };
    let plan = |text: &str| isochrome(&["plan", "-", "--json"], text);
    assert_eq!(plan(&set(40)).status.code(), Some(0));
    let late = plan(&set(60));
    assert_eq!((late.status.code(), json_of(&late)["schedulable"].clone()), (Some(2), json!(false)));
    let bad = plan(&set(0));
    assert_eq!(bad.status.code(), Some(1));
    let message = String::from_utf8(bad.stderr).unwrap();
    assert!(message.contains("line 1: tasks[0].wcet_ns"), "{message}");
}
