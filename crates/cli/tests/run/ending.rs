//! Tests that a run that ends early restores everything.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::fixture::{Bystander, Fixture, wait_until};
use crate::trial::Outcome;

pub fn sigterm(fixture: &Fixture) -> Outcome {
    let bystander = Bystander::new();
    let before = bystander.cpus();
    let mut run = fixture
        .run(&fixture.plan("none", vec![fixture.good()]), &["--duration", "60s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("a run", || bystander.cpus() != before);
    wait_until("a job", || fs::metadata(fixture.path("out/jobs.csv")).is_ok_and(|file| file.len() > 1000));
    Command::new("kill").arg(run.id().to_string()).status().unwrap();
    wait_until("its end", || run.try_wait().unwrap().is_some());
    assert_eq!(bystander.cpus(), before);
    assert_eq!(fixture.traces(), Vec::<String>::new());
    let evidence: Value =
        serde_json::from_str(&fs::read_to_string(fixture.path("out/evidence.json")).unwrap()).unwrap();
    assert!(evidence["warnings"][0].as_str().unwrap().starts_with("Interrupted"));
    assert!(evidence["sections"][0]["numbers"]["tasks"][0]["jobs"].as_u64().unwrap() > 0);
    Ok(())
}

pub fn sigkill(fixture: &Fixture) -> Outcome {
    let bystander = Bystander::new();
    let before = bystander.cpus();
    let forks = fixture.task("forks", &["forks", "50"], 2000, 1900, "line");
    let plan = fixture.plan("none", vec![fixture.good(), forks]);
    let mut run = fixture.run(&plan, &["--duration", "60s", "--keep-going"]).stdout(Stdio::null()).spawn().unwrap();
    wait_until("a run", || bystander.cpus() != before);
    // The processes are the two programs and a process that one of them started.
    wait_until("three processes", || fixture.traces().iter().filter(|trace| trace.starts_with("process")).count() == 3);
    run.kill().unwrap();
    run.wait().unwrap();
    // The process that a program started outlives the killed run, and other programs are still kept off the CPUs.
    wait_until("the end of the programs", || {
        fixture.traces().iter().filter(|trace| trace.starts_with("process")).count() == 1
    });
    assert_ne!(bystander.cpus(), before);
    let next = fixture.tool(&["ps"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&next.stderr);
    assert!(stderr.contains("a run was killed; 1 of its programs were ended"), "{stderr}");
    assert_eq!(bystander.cpus(), before);
    wait_until("nothing left", || fixture.traces().is_empty());
    let instances = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
    let own = format!("isochrome-{}.", run.id());
    assert!(!instances.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&own)));
    Ok(())
}
