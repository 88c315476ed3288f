//! Workloads of rt-app (<https://github.com/scheduler-tools/rt-app>) as task sets.
//!
//! A thread with a timer becomes a periodic task that computes for as long as the thread runs between two expiries. A thread
//! without a timer becomes a best-effort program. Settings without a counterpart, such as locks, sleeps and memory copies, are
//! left out and listed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Error for a file that is not a workload of rt-app.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {problem}\n  hint: rt-app's doc/tutorial.txt describes its files")]
pub struct NotRtApp {
    /// Location of the error: names of objects, joined by dots.
    pub location: String,
    /// Description of the error.
    pub problem: String,
}

/// A task set that was made from a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The task set, as TOML.
    pub text: String,
    /// Settings of the workload that were left out, each with its location.
    pub left_out: Vec<String>,
}

/// Work of a thread between two expiries of its timer.
#[derive(Default)]
struct Work {
    run_us: u64,
    period_us: Option<u64>,
}

/// Maximum number of copies of one thread.
const INSTANCES_MAX: u64 = 1000;

fn wrong<T>(location: &str, problem: impl Into<String>) -> Result<T, NotRtApp> {
    Err(NotRtApp { location: location.to_owned(), problem: problem.into() })
}

fn object<'a>(value: &'a Value, location: &str) -> Result<&'a Map<String, Value>, NotRtApp> {
    value.as_object().map_or_else(|| wrong(location, "must be an object"), Ok)
}

fn microseconds(value: &Value, location: &str) -> Result<u64, NotRtApp> {
    match value.as_u64() {
        Some(time) if time <= u64::MAX / 1_000_000 => Ok(time),
        _ => wrong(location, format!("{value} is not a number of microseconds")),
    }
}

/// Whether `key` is an event called `name`. Several events of one name differ in the digits that follow the name.
fn is_event(key: &str, name: &str) -> bool {
    key.strip_prefix(name).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Converts a workload. Every task becomes the built-in workload `spin`, with the time that it computes as `wcet_ns`.
pub fn import(text: &str) -> Result<Imported, NotRtApp> {
    let root: Value = serde_json::from_str(text).or_else(|error| wrong("file", error.to_string()))?;
    let root = object(&root, "file")?;
    let mut left_out = Vec::new();
    for section in root.keys().filter(|key| !["tasks", "global"].contains(&key.as_str())) {
        left_out.push(format!("{section}: is not known here"));
    }
    if let Some(global) = root.get("global") {
        left_out.extend(
            object(global, "global")?.keys().map(|key| format!("global.{key}: belongs to a run, not to a task set")),
        );
    }
    let Some(tasks) = root.get("tasks") else { return wrong("tasks", "is missing") };
    let (mut body, mut cpus) = (String::new(), BTreeSet::new());
    for (name, task) in object(tasks, "tasks")? {
        let location = format!("tasks.{name}");
        one(name, object(task, &location)?, &location, &mut body, &mut cpus, &mut left_out)?;
    }
    if cpus.is_empty() {
        cpus.insert(0);
    }
    let list = crate::units::format_list(&cpus.into_iter().collect::<Vec<_>>());
    Ok(Imported { text: format!("cpus = \"{list}\"\n{body}"), left_out })
}

fn one(
    name: &str,
    task: &Map<String, Value>,
    location: &str,
    body: &mut String,
    cpus: &mut BTreeSet<u32>,
    left_out: &mut Vec<String>,
) -> Result<(), NotRtApp> {
    let mut work = Work::default();
    let mut deadline_us = None;
    let mut budget_us = None;
    let mut cpu = None;
    let mut instances = 1;
    for (key, value) in task {
        let at = format!("{location}.{key}");
        match key.as_str() {
            "instance" => match value.as_u64() {
                Some(count @ 0..=INSTANCES_MAX) => instances = count,
                _ => return wrong(&at, format!("{value} is not a number of copies up to {INSTANCES_MAX}")),
            },
            "cpus" => {
                let numbers = value.as_array().map(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
                let Some(Some(numbers)) = numbers else { return wrong(&at, "must be a list of CPUs") };
                let numbers: Option<Vec<u32>> =
                    numbers.into_iter().map(|cpu| u32::try_from(cpu).ok().filter(|cpu| *cpu < 8192)).collect();
                let Some(numbers) = numbers else { return wrong(&at, "names no CPU") };
                match numbers.as_slice() {
                    [one] => cpu = Some(*one),
                    [] => {}
                    _ => left_out.push(format!("{at}: a task runs on one CPU, and planning chooses it")),
                }
                cpus.extend(numbers);
            }
            "dl-period" => {
                work.period_us.get_or_insert(microseconds(value, &at)?);
            }
            "dl-deadline" => deadline_us = Some(microseconds(value, &at)?),
            "dl-runtime" => budget_us = Some(microseconds(value, &at)?),
            "priority" | "policy" => {
                left_out.push(format!("{at}: priorities are deadline-monotonic unless every task has one"));
            }
            "phases" => phases(value, &at, &mut work, left_out)?,
            _ => event(key, value, &at, 1, &mut work, left_out)?,
        }
    }
    for copy in 1..=instances {
        let called = if instances == 1 { name.to_owned() } else { format!("{name}-{copy}") };
        let mut line = |text: String| {
            let _ = writeln!(body, "{text}");
        };
        // A JSON string is also a TOML string.
        line(format!("\n[[tasks]]\nname = {}", Value::from(called.as_str())));
        line(format!("workload = \"spin {}\"", work.run_us.max(1)));
        match work.period_us {
            Some(period) => {
                line(format!("period = \"{period}us\"\nwcet_ns = {}", work.run_us.max(1).saturating_mul(1000)));
                deadline_us.iter().for_each(|deadline| line(format!("deadline = \"{deadline}us\"")));
                budget_us.iter().for_each(|budget| line(format!("budget = \"{budget}us\"")));
            }
            None => line("best_effort = true".to_owned()),
        }
        cpu.iter().for_each(|cpu| line(format!("cpu = {cpu}")));
    }
    Ok(())
}

/// Adds up the work of a thread in all of its phases.
fn phases(phases: &Value, location: &str, work: &mut Work, left_out: &mut Vec<String>) -> Result<(), NotRtApp> {
    for (phase, value) in object(phases, location)? {
        let at = format!("{location}.{phase}");
        let phase = object(value, &at)?;
        let times = match phase.get("loop") {
            None => 1,
            Some(times) => match times.as_u64() {
                Some(times) => times,
                None => {
                    left_out.push(format!("{at}.loop: {times} is taken as once"));
                    1
                }
            },
        };
        for (key, value) in phase.iter().filter(|(key, _)| *key != "loop") {
            event(key, value, &format!("{at}.{key}"), times, work, left_out)?;
        }
    }
    Ok(())
}

fn event(
    key: &str,
    value: &Value,
    location: &str,
    times: u64,
    work: &mut Work,
    left_out: &mut Vec<String>,
) -> Result<(), NotRtApp> {
    if is_event(key, "run") || is_event(key, "runtime") {
        work.run_us = work.run_us.saturating_add(microseconds(value, location)?.saturating_mul(times));
    } else if is_event(key, "timer") {
        let period = object(value, location)?.get("period");
        let Some(period) = period else { return wrong(location, "has no period") };
        let period = microseconds(period, &format!("{location}.period"))?;
        match work.period_us {
            Some(known) if known != period => {
                left_out.push(format!("{location}: a second period; {known} us is used"));
            }
            _ => work.period_us = Some(period),
        }
        if times != 1 {
            left_out.push(format!("{location}: the phase has {times} periods and is taken as one job"));
        }
    } else {
        left_out.push(format!("{location}: has no counterpart"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taskset::programs::programs;

    /// A workload in the form of rt-app's doc/examples.
    const WORKLOAD: &str = r#"{
  "tasks": {
    "control": {
      "instance": 2, "cpus": [1], "policy": "SCHED_FIFO", "priority": 20,
      "run": 1000, "timer": {"ref": "unique", "period": 10000}
    },
    "vision": {
      "dl-runtime": 3000, "dl-deadline": 15000, "cpus": [0, 1],
      "phases": {"look": {"loop": 2, "run0": 500, "run1": 250, "lock": "map"}, "wait": {"timer": {"ref": "v", "period": 20000}}}
    },
    "log": {"run": 200, "sleep": 1000},
    "absent": {"instance": 0, "run": 1}
  },
  "global": {"duration": 10, "calibration": "CPU0"}
}"#;

    #[test]
    fn threads_with_timers_become_tasks_and_the_rest_is_named() {
        let Imported { text, left_out } = import(WORKLOAD).unwrap();
        let (set, warnings) = programs(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(warnings.is_empty(), "{warnings:?}");
        let by_name = |name: &str| set.tasks.iter().find(|task| task.name == name).unwrap();
        assert_eq!(set.tasks.len(), 4);
        assert_eq!(set.cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>(), [0, 1]);
        for name in ["control-1", "control-2"] {
            let task = by_name(name);
            assert_eq!((task.period.0, task.deadline.0, task.cpu.map(|cpu| cpu.0)), (10_000_000, 10_000_000, Some(1)));
            assert_eq!(task.command, ["isochrome", "job", "spin", "1000"]);
        }
        let vision = by_name("vision");
        // Twice 500 us and 250 us.
        assert_eq!(vision.command[3], "1500");
        assert_eq!((vision.period.0, vision.deadline.0, vision.budget.unwrap().0), (20_000_000, 15_000_000, 3_000_000));
        assert!(by_name("log").best_effort);
        for what in [
            "tasks.vision.phases.look.lock",
            "tasks.log.sleep",
            "tasks.control.priority",
            "tasks.vision.cpus",
            "global.duration",
        ] {
            assert!(left_out.iter().any(|line| line.starts_with(what)), "{what} in {left_out:#?}");
        }
    }

    #[test]
    fn what_is_no_workload_is_named_with_its_place() {
        let location = |from: &str, to: &str| import(&WORKLOAD.replace(from, to)).unwrap_err().location;
        assert_eq!(location("\"run\": 1000", "\"run\": -1"), "tasks.control.run");
        assert_eq!(location("\"period\": 20000", "\"no\": 1"), "tasks.vision.phases.wait.timer");
        assert_eq!(location("\"instance\": 2", "\"instance\": 1e9"), "tasks.control.instance");
        assert_eq!(location("\"tasks\"", "\"taks\""), "tasks");
        assert_eq!(location("{\n  \"tasks\"", "[\n  \"tasks\""), "file");
    }
}
