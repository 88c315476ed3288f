//! Tests of `profile` and `plan` from the outside, with programs on a modeled machine.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use isochrome_model::analysis::schedule::{adversarial, play, sporadic, synchronous};
use isochrome_model::analysis::{Charges, CoreTask, core_task};
use isochrome_model::plan::{Plan, TaskPlan};
use isochrome_model::taskset::read::{Overrides, task_set};
use serde_json::{Value, json};

fn isochrome(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    command.args(arguments).current_dir(folder).env("ISOCHROME_RUNTIME_DIR", folder.join("runtime"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn json_in(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

const SET: &str = r#"
cpus = "2-3"
level = 2

[[tasks]]
name = "walk"
command = "./walk"
period = "100us"
memory = "64K"
cpu = 3

[[tasks]]
name = "small"
workload = "filter 64"
period = "50us"
memory = "16K"

[[tasks]]
name = "log"
command = "./log"
best_effort = true
"#;

/// Profiles [`SET`] on the modeled i7-2600 at a nanosecond per cycle.
fn profiled(folder: &Path, more: &[&str]) -> Output {
    fs::write(folder.join("taskset.toml"), SET).unwrap();
    let arguments = [
        "profile",
        "taskset.toml",
        "--from-trace",
        "i7-2600",
        "--mhz",
        "1000",
        "--trace",
        "walk=workload:walk:area=64K,stride=64,passes=1",
        "--trace",
        "small=workload:walk:area=16K,stride=64,passes=4",
        "--margin",
        "0",
    ];
    isochrome(folder, &[&arguments[..], more].concat(), "")
}

#[test]
fn a_modeled_profile_has_the_times_that_can_be_worked_out_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let output = profiled(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = json_in(&folder.path().join("profile.json"));
    assert_eq!(
        (&profile["partitions"], &profile["cache"], &profile["cores"]),
        (&json!(8), &json!("private"), &json!(2))
    );
    // 1024 lines in 16 pages, none of which the first level of 8 pages keeps over a pass. One color of the second level holds 8 pages, so
    // every line comes from the third (4 + 8 + 18 cycles); two colors hold all (4 + 8 cycles).
    let mut expected = vec![12_288; 8];
    expected[0] = 30_720;
    let walk = &profile["tasks"][0];
    assert_eq!(walk["wcet_ns"], json!(expected));
    let points: Vec<&Value> = walk["measured"].as_array().unwrap().iter().map(|point| &point["partitions"]).collect();
    assert_eq!(points, [1, 2, 4, 8]);
    let misses = |point: usize| walk["measured"][point]["runs"][0]["misses"].clone();
    assert_eq!((misses(0), misses(1)), (json!(1024), json!(0)));
    // 4 passes over 256 lines that the first level keeps.
    assert_eq!(profile["tasks"][1]["wcet_ns"], json!(vec![4096; 8]));
    assert_eq!(profile["tasks"][1]["measured"].as_array().unwrap().len(), 2);
    assert_eq!((&profile["tasks"][2]["best_effort"], &profile["tasks"][2]["wcet_ns"]), (&json!(true), &Value::Null));
    // 512 lines of a color, each from memory past the third level: 18 + 200 cycles.
    assert_eq!(profile["refill_ns_per_partition"], json!(512 * 218));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("walk  period 100 us, cache-sensitive: utilization differs by 18.43 %"), "{text}");
    assert!(text.contains("small  period 50 us, not cache-sensitive"), "{text}");
}

#[test]
fn a_plan_of_a_profile_says_what_to_run_where_and_draws_it() {
    let folder = tempfile::tempdir().unwrap();
    profiled(folder.path(), &[]);
    let arguments =
        ["plan", "profile.json", "-o", "plan.json", "--svg", "plan.svg", "--gantt", "gantt.svg", "--refill", "2us"];
    let output = isochrome(folder.path(), &arguments, "");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let plan = json_in(&folder.path().join("plan.json"));
    assert_eq!(plan["programs"]["tasks"].as_array().unwrap().len(), 3);
    assert_eq!(plan["programs"]["tasks"][1]["command"], json!(["isochrome", "job", "filter", "64"]));
    // A program that is named with a slash gets an absolute path.
    let command = plan["programs"]["tasks"][0]["command"][0].as_str().unwrap();
    assert!(Path::new(command).is_absolute() && command.ends_with("walk"), "{command}");
    let of = |name: &str| {
        let cores = plan["cores"].as_array().unwrap();
        let found =
            cores.iter().flat_map(|core| core["tasks"].as_array().unwrap().iter().map(move |task| (core, task)));
        found.into_iter().find(|(_, task)| task["name"] == name).unwrap()
    };
    assert_eq!(of("walk").0["cpu"], json!(3));
    assert!([json!(2), json!(3)].contains(&of("small").0["cpu"]));
    for name in ["walk", "small"] {
        let (with, without) = (&of(name).1["response_ns"], &of(name).1["no_interference_ns"]);
        assert!(with.as_u64().unwrap() >= without.as_u64().unwrap());
    }
    for file in ["plan.svg", "gantt.svg"] {
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(text.starts_with("<svg") && text.contains("walk"), "{file}");
    }
}

/// Workloads that imitate the programs of examples/robot by what a job touches: the same data 20 times, a tree that many points descend, nodes
/// far apart, and a transform.
const ROBOT: [&str; 4] = [
    "filters=workload:walk:area=128K,stride=64,passes=20",
    "features=workload:walk:area=293K,stride=64,passes=7",
    "graph=workload:walk:area=8M,stride=8K,passes=1",
    "spectrum=workload:fft:points=512",
];

#[test]
fn no_schedule_of_the_robots_set_on_a_modeled_machine_exceeds_its_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let set = include_str!("../../../examples/robot/taskset.toml");
    fs::write(folder.path().join("taskset.toml"), set).unwrap();
    let profile = ["profile", "taskset.toml", "--from-trace", "i7-2600", "--mhz", "3400", "--svg", "profile.svg"];
    let traces = ROBOT.iter().flat_map(|trace| ["--trace", trace]);
    let output = isochrome(folder.path(), &profile.into_iter().chain(traces).collect::<Vec<_>>(), "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("filters  period 5000 us, cache-sensitive"), "{text}");
    assert!(text.contains("graph  period 20000 us, not cache-sensitive"), "{text}");
    let figure = fs::read_to_string(folder.path().join("profile.svg")).unwrap();
    assert!(["filters", "features", "graph", "spectrum"].iter().all(|name| figure.contains(name)));

    let plan = ["plan", "profile.json", "-o", "plan.json", "--objective", "utilization"];
    let output = isochrome(folder.path(), &plan, "");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = fs::read_to_string(folder.path().join("profile.json")).unwrap();
    let (set, _) = task_set(&profile, Overrides::default()).unwrap();
    let plan: Plan = serde_json::from_value(json_in(&folder.path().join("plan.json"))).unwrap();
    assert_eq!(plan.cores.len(), 1);
    let index_of = |name: &str| set.tasks().iter().position(|task| task.name == name).unwrap();
    let on_core = |task: &TaskPlan| core_task(&set, index_of(&task.name), task.partitions.iter().copied().collect());
    let core: Vec<CoreTask> = plan.cores[0].tasks.iter().map(on_core).collect();
    let bounds: Vec<u64> = plan.cores[0].tasks.iter().map(|task| task.response_ns.unwrap()).collect();
    let charges = Charges::of(&set);
    let horizon = 4_000_000_000;
    let mut random = fastrand::Rng::with_seed(13);
    let mut arrivals = vec![synchronous(&core, horizon)];
    for target in 0..core.len() {
        arrivals.extend((0..5).map(|_| adversarial(&core, target, horizon, &mut random)));
        arrivals.push(sporadic(&core, horizon, &mut random));
    }
    let mut longest = vec![0; core.len()];
    for arrivals in &arrivals {
        let played = play(&core, charges, arrivals, horizon);
        longest.iter_mut().zip(played.responses_ns).for_each(|(longest, response)| *longest = response.max(*longest));
    }
    for (longest, bound) in longest.iter().zip(&bounds) {
        assert!(*longest > 0 && longest <= bound, "{longest:?} of {bounds:?}");
    }
}

#[test]
fn what_cannot_be_profiled_is_said_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |output: Output| {
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let no_trace = ["profile", "-", "--from-trace", "zen3", "--mhz", "1", "--trace", "walk=workload:matmul"];
    let message = refused(isochrome(folder.path(), &no_trace, SET));
    assert!(
        message.contains("small: no trace of a job is given") && message.contains("--trace small=FILE"),
        "{message}"
    );
    let message = refused(isochrome(folder.path(), &["profile", "-", "--exceed", "2"], SET));
    assert!(message.contains("not a probability"), "{message}");
    let message = refused(isochrome(folder.path(), &["profile", "-"], &SET.replace("\"50us\"", "\"50\"")));
    assert!(message.contains("line 15, column 10: tasks[1].period: `50` is not a time"), "{message}");
    let message = refused(profiled(folder.path(), &["--partitions", "9"]));
    assert!(message.contains("8 colors of L2"), "{message}");
}

#[test]
fn a_built_in_workload_answers_every_line_with_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let output = isochrome(folder.path(), &["job", "filter", "64"], "\n\nanything\n");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "ready\ndone\ndone\ndone\n");
    assert_eq!(isochrome(folder.path(), &["job", "filter", "3"], "").status.code(), Some(1));
    let output = isochrome(folder.path(), &["job", "spin", "100"], "\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "ready\ndone\n");
}

#[test]
fn a_workload_of_rt_app_becomes_a_task_set_that_can_be_planned() {
    let folder = tempfile::tempdir().unwrap();
    let workload =
        r#"{"tasks": {"a": {"run": 1000, "timer": {"ref": "unique", "period": 10000}}, "b": {"run": 5, "lock": "m"}}}"#;
    let imported = isochrome(folder.path(), &["import", "rt-app", "-"], workload);
    assert_eq!(imported.status.code(), Some(0), "{}", String::from_utf8_lossy(&imported.stderr));
    assert_eq!(String::from_utf8(imported.stderr).unwrap(), "left out: tasks.b.lock: has no counterpart\n");
    let text = String::from_utf8(imported.stdout).unwrap();
    let arguments = ["plan", "-", "--json", "--partitions", "4", "--memory", "1M", "--refill", "1us"];
    let plan: Value = serde_json::from_slice(&isochrome(folder.path(), &arguments, &text).stdout).unwrap();
    assert_eq!(plan["cores"][0]["tasks"][0]["response_ns"], json!(1_000_000));
    assert_eq!(plan["programs"]["tasks"][1]["best_effort"], json!(true));
}
