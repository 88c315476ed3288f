//! Tests of failures: programs that fail, a full disk, and plans that are refused.

use std::fs;
use std::process::Command;

use isochrome_model::running::JobRecord;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::trial::{NotRun, Outcome};

/// Modes in which the program of the tests fails, each with the text that reports the failure.
const FAILURES: [(&str, &str); 9] = [
    ("crashes", "was ended by signal 6"),
    ("ends", "ended with code 0"),
    ("exits-early", "ended with code 3 before it was ready"),
    ("forks", "started another process"),
    ("spins", "has not slept for"),
    ("hangs", "has not completed a job for"),
    ("stops", "was not complete at the end"),
    ("garbage", "lines that complete no job"),
    ("grows", "of memory of its own, more than the 1 MiB it was planned with"),
];

pub fn failures(fixture: &Fixture) -> Outcome {
    let mut disturbed = Ok(());
    for (mode, named) in FAILURES {
        let bad = fixture.task("bad", &[mode, "50"], 2000, 1900, "line");
        let plan = fixture.plan("none", vec![fixture.good(), bad]);
        let evidence = fixture.evidence(&plan, &["--duration", "1s", "--keep-going"]);
        let failures = evidence.failures();
        let is_named = |failure: &(String, String)| failure.0 == "bad" && failure.1.contains(named);
        assert!(failures.iter().any(is_named), "{mode}: {failures:?}");
        assert_eq!(evidence.code, 2, "{mode}");
        assert_eq!(fixture.traces(), Vec::<String>::new(), "{mode}");
        if let Err(why) = evidence.undisturbed() {
            disturbed = Err(why);
            continue;
        }
        assert_eq!(failures.len(), 1, "{mode}: {failures:?}");
        let good = evidence.run["tasks"][0]["jobs"].as_u64().unwrap();
        assert!(good + evidence.missing_max(5000) >= 200, "{mode}: the other program has done {good} of 200 jobs");
    }
    disturbed
}

pub fn first_failure(fixture: &Fixture) -> Outcome {
    let bad = fixture.task("bad", &["crashes", "50"], 2000, 1900, "line");
    let plan = fixture.plan("none", vec![fixture.good(), bad]);
    let evidence = fixture.evidence(&plan, &["--duration", "20s"]);
    assert_eq!(evidence.failures().len(), 1);
    assert!(evidence.run["duration"].as_u64().unwrap() < 20_000_000_000);
    assert!(!evidence.text.contains("panicked"), "{}", evidence.text);
    Ok(())
}

pub fn full_disk(fixture: &Fixture) -> Outcome {
    let small = fixture.path("out");
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=80k", "tmpfs"]).arg(&small).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return Err(NotRun("no small file system can be mounted".to_owned()));
    }
    let fast = fixture.task("fast", &["line", "20"], 500, 400, "line");
    let output =
        fixture.run(&fixture.plan("none", vec![fast]), &["--duration", "20s", "--share-cpus"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let jobs = fs::read_to_string(small.join("jobs.csv"));
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("further jobs could not be written") && stderr.contains("hint:"), "{stderr}");
    let jobs = jobs.unwrap();
    assert!(jobs.ends_with('\n') && jobs.lines().count() > 100, "{}", jobs.lines().count());
    assert!(jobs.lines().all(|line| line.split(',').count() == JobRecord::CSV_HEADER.split(',').count()));
    assert!(stderr.contains(&format!("the {} jobs before stay readable", jobs.lines().count() - 1)), "{stderr}");
    assert_eq!(fixture.traces(), Vec::<String>::new());
    Ok(())
}

pub fn refusals(fixture: &Fixture) -> Outcome {
    let path = fixture.plan("none", vec![fixture.good()]);
    let plan: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let refused = |change: &dyn Fn(&mut Value), named: &str| {
        let mut changed = plan.clone();
        change(&mut changed);
        fs::write(&path, changed.to_string()).unwrap();
        let output = fixture.run(&path, &[]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(named) && stderr.contains("hint:"), "{stderr}");
    };
    refused(&|plan| plan["fingerprint"] = json!("another"), "measured on another machine");
    refused(&|plan| plan["programs"] = Value::Null, "a plan without programs");
    refused(&|plan| plan["programs"]["tasks"] = json!([]), "no program of this name");
    refused(&|plan| plan["programs"]["tasks"][0]["command"] = json!(["/nowhere/at/all"]), "cannot be started");
    refused(&|plan| plan["cores"] = json!("none"), "not a plan");
    assert_eq!(fixture.traces(), Vec::<String>::new());
    Ok(())
}
