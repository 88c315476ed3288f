//! Tests of watching tasks over time.

use std::process::Command;

use serde_json::Value;

use crate::fixture::{Nobody, isochrome, json};
use crate::trial::{NotRun, Outcome};

/// Returns the result of `command`. An error that names `lacking` is a reason to ignore the test.
fn watched(mut command: Command, lacking: &str) -> Result<Value, NotRun> {
    let output = command.output().expect("the command starts");
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(1) && message.contains(lacking) {
        return Err(NotRun(message.lines().next().unwrap_or_default().to_owned()));
    }
    Ok(json(&output))
}

pub fn watch() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let mut command = isochrome(&["watch", "--json", "--record"]);
    command.arg(&record).args(["--", "sh", "-c", "for i in 1 2 3 4 5; do sleep 0.1; done"]);
    let result = watched(command, "events")?;
    let tasks: Vec<&Value> = result["tasks"].as_object().unwrap().values().collect();
    // The watch begins before the shell. The shell sleeps while each of its five children runs; each child becomes `sleep`, sleeps, and
    // ends. Some kernels do not report a switch from the idle task. A child that ran only on an otherwise idle CPU then has no slice, or
    // keeps the name it had before it became `sleep`.
    let named = |name: &str| tasks.iter().filter(|task| task["name"] == name).count();
    assert!(named("sh") >= 1 && named("sleep") >= 1 && named("sh") + named("sleep") == tasks.len(), "{result}");
    assert!((4..=6).contains(&tasks.len()), "{result}");
    assert!(tasks.iter().all(|task| task["run_ns"].as_u64().unwrap() > 0));
    let replayed = isochrome(&["watch", "--json", "--replay", record.to_str().unwrap()]).output().unwrap();
    let replayed = json(&replayed);
    assert_eq!(replayed["tasks"], result["tasks"]);
    // The record also has the notes and the cost of the watch as a whole.
    assert_eq!(replayed["notes"], result["notes"]);
    let [reported, again] = [&result, &replayed].map(|of| of["cost"]["cpu_share"].as_f64().unwrap());
    assert!(reported > 0.0 && (reported - again).abs() < 1e-9, "{reported} {again}");
    let record_ns = result["cost"]["record"]["ns"].as_f64().unwrap();
    assert!((-1000.0..1e6).contains(&record_ns), "{result}");
    Ok(())
}

pub fn watch_unprivileged() -> Outcome {
    let nobody = Nobody::new()?;
    let evidence = nobody.0.path().join("runtime/watch.json");
    let program = ["--", "sh", "-c", "for i in 1 2 3 4 5; do sleep 0.1; done"];
    let mut command = nobody.command(&["watch", "--json", "-o", evidence.to_str().unwrap()]);
    command.args(program);
    let result = watched(command, "perf_event_paranoid")?;
    let tasks: Vec<&Value> = result["tasks"].as_object().unwrap().values().collect();
    let named = |name: &str| tasks.iter().filter(|task| task["name"] == name).count();
    // The watch begins before the shell, so it sees the shell and all that it starts, and nothing else.
    assert!(named("sh") >= 1 && named("sleep") >= 4 && named("sh") + named("sleep") == tasks.len(), "{result}");
    assert!(tasks.iter().all(|task| task["run_ns"].as_u64().unwrap() > 0 && task["ended"] == true), "{result}");
    assert!(tasks.iter().all(|task| task["counts"].is_null()), "{result}");
    assert!(result["notes"][0].as_str().unwrap().contains("reports to this user only"), "{result}");
    let report = isochrome(&["report", evidence.to_str().unwrap()]).output().unwrap();
    assert!(String::from_utf8_lossy(&report.stdout).contains("What tasks did over time"));

    // The user may watch their own process that started before, with its threads, but no process of another user.
    let mut sleeper = nobody.program("sh").args(["-c", "while :; do sleep 0.05; done"]).spawn().unwrap();
    let pid = sleeper.id().to_string();
    let own = nobody.command(&["watch", "--json", "--duration", "3s", &pid]).output().unwrap();
    let strangers =
        nobody.command(&["watch", "--json", "--duration", "1s", &std::process::id().to_string()]).output().unwrap();
    let everybody = nobody.command(&["watch", "--cpu", "0", "--duration", "1s"]).output().unwrap();
    // The process may have ended, so errors are ignored.
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    assert!(json(&own)["tasks"][&pid]["slices"].as_u64().unwrap() >= 3, "{own:?}");
    for (refused, reported) in [(strangers, "processes of one's own"), (everybody, "setcap cap_perfmon")] {
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains(reported), "{refused:?}");
    }
    Ok(())
}

pub fn watch_polls() -> Outcome {
    let command = isochrome(&["watch", "--json", "--duration", "3s", "--cpu", "0", "--poll", "500Hz"]);
    let result = watched(command, "events")?;
    // A host that takes the CPU away makes polls rarer, never more frequent.
    let polls = result["cost"]["polls_per_second"].as_f64().unwrap();
    assert!((50.0..=510.0).contains(&polls), "{result}");
    assert!(result["cost"]["cpu_share"].as_f64().unwrap() > 0.0);
    // The task that polls is watched too.
    let poll = result["tasks"].as_object().unwrap().values().find(|task| task["name"] == "poll").unwrap();
    assert!(poll["slices"].as_f64().unwrap() >= 0.9 * polls, "{result}");
    Ok(())
}
