//! Misses of each job of a plan.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::counters::Defect;
use super::machine::Machine;
use super::programs::{count, last_cpu, of_jobs};
use crate::trial::{NotRun, Outcome};

/// Tasks, and the misses of each job.
const TASKS: [(&str, u64); 2] = [("few", 7), ("many", 300)];

/// The misses of every job of each task; `None` where the field is empty.
type Misses = BTreeMap<String, Vec<Option<u64>>>;

/// Runs the tasks, and returns their misses and what the command prints.
fn run(machine: &mut Machine) -> Result<(Misses, String), NotRun> {
    if !Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n") {
        return Err(NotRun("real-time priorities and events of the scheduler take root".to_owned()));
    }
    let tasks = TASKS.map(|(name, misses)| {
        let planned = json!({
            "name": name, "partitions": [0], "response_ns": 4_000_000, "deadline_ns": 10_000_000,
            "no_interference_ns": 3_600_000, "wcet_ns": 30_000, "utilization": 0.1,
        });
        let program = json!({
            "name": name, "command": of_jobs(misses), "period_ns": 10_000_000, "deadline_ns": 10_000_000,
            "memory_bytes": 1 << 20, "jobs": "line",
        });
        (planned, program)
    });
    let (planned, programs): (Vec<Value>, Vec<Value>) = tasks.into_iter().unzip();
    let cpu = last_cpu();
    let plan = json!({
        "schema": "isochrome-plan/2", "schedulable": true, "method": "optimal", "objective": "partitions",
        "analysis": "kim2013", "partitions_used": 4, "utilization": 0.1, "bound": null, "gap": null,
        "cores": [{"cpu": cpu, "partitions": [0, 1, 2, 3], "utilization": 0.1, "tasks": planned}],
        "programs": {"cpus": [cpu], "level": 2, "method": "none", "tasks": programs},
    });
    let path = machine.folder.path().join("plan.json").display().to_string();
    let out = machine.folder.path().join("out").display().to_string();
    fs::write(&path, plan.to_string()).expect("a file");
    let output = machine.output(&["run", "--json", &path, "-o", &out, "--duration", "500ms", "--share-cpus"])?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 2 | 3)), "{:?}: {message}", output.status);
    let rows = fs::read_to_string(format!("{out}/jobs.csv")).expect("jobs");
    let mut lines = rows.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().expect("a header");
    let [task, misses] = ["task", "misses"].map(|name| header.iter().position(|column| *column == name).unwrap());
    let mut jobs = Misses::new();
    lines.for_each(|row| jobs.entry(row[task].to_owned()).or_default().push(row[misses].parse().ok()));
    Ok((jobs, String::from_utf8_lossy(&output.stdout).into_owned() + &message))
}

/// Checks that every job that was counted has its own misses.
fn counted(mut machine: Machine) -> Outcome {
    count(&mut machine.kernel.pmu)?;
    let (jobs, message) = run(&mut machine)?;
    for (task, misses) in TASKS {
        let counted: Vec<u64> = jobs[task].iter().flatten().copied().collect();
        // A job that begins without a sleep after the one before it has no count.
        assert!(counted.len() * 2 > jobs[task].len() && counted.len() > 10, "{task}: {jobs:?}\n{message}");
        assert!(counted.iter().all(|count| *count == misses), "{task}: {jobs:?}");
    }
    Ok(())
}

pub fn by_bpf() -> Outcome {
    counted(Machine::new(Defect::None))
}

pub fn by_rings() -> Outcome {
    let mut machine = Machine::new(Defect::None);
    machine.environment.push(("ISOCHROME_WITHOUT_BPF", "1".to_owned()));
    counted(machine)
}

/// Misses of jobs take one counter, so that others may fail.
pub fn with_few_counters() -> Outcome {
    counted(Machine::new(Defect::Few(1)))?;
    counted(Machine::new(Defect::DeadSlot(1)))
}

pub fn uncounted() -> Outcome {
    let mut machine = Machine::new(Defect::NoMisses);
    count(&mut machine.kernel.pmu)?;
    let (jobs, message) = run(&mut machine)?;
    assert!(jobs.values().flatten().all(Option::is_none), "{jobs:?}");
    assert!(message.contains("read 0 during 262144 cache misses"), "{message}");
    Ok(())
}
