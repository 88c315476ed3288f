//! Tests of CPUs of tasks as partitions of cgroup v2, and of reservations there.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::fixture::{Bystander, Fixture, during, json_of, wait_until};
use crate::mounted::{Cgroup, Mounted};
use crate::stalls::StallDetector;
use crate::trial::{NotRun, Outcome};

pub fn partitions(fixture: &Fixture) -> Outcome {
    let tree = Mounted::of(Cgroup::default(), fixture.path("cgroup"))?;
    let bystander = Bystander::new();
    let before = bystander.cpus();
    let plan = fixture.plan("none", vec![fixture.good()]);
    let mut run = fixture.run(&plan, &["--duration", "1s"]);
    let run = run.env("ISOCHROME_CGROUP", tree.root()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let joined = |state: &Cgroup| state.groups.values().any(|(.., processes)| !processes.is_empty());
    wait_until("a partition with a program", || joined(&tree.state()) && !fixture.programs().is_empty());
    let state = tree.state().clone();
    let group = format!("isochrome-{}-cpu{}", run.id(), fixture.cpu);
    let expected = (fixture.cpu.to_string(), "root".to_owned(), fixture.programs());
    assert_eq!((state.switched_on, state.groups.get(&group)), (true, Some(&expected)));
    // The kernel itself keeps other programs off, so their affinity does not change.
    assert_eq!(bystander.cpus(), before);
    let output = run.wait_with_output().unwrap();
    let run = &json_of(&output)["sections"][0]["numbers"];
    assert_eq!(run["failures"], json!([]));
    assert!(during(run, "other programs").contains("partition of cgroup v2"), "{}", run["settings"]);
    assert_eq!(*tree.state(), Cgroup::default());
    // If the kernel refuses the partition, other programs are kept off by affinity, and the reason is reported.
    let why = "Parent is not a partition root";
    tree.state().invalid = Some(why.to_owned());
    let output = fixture.run(&plan, &["--duration", "300ms"]).env("ISOCHROME_CGROUP", tree.root()).output().unwrap();
    let shown = during(&json_of(&output)["sections"][0]["numbers"], "other programs");
    assert!(shown.contains("affinity") && shown.contains(why), "{shown}");
    assert_eq!(*tree.state(), Cgroup { invalid: Some(why.to_owned()), ..Cgroup::default() });
    assert_eq!(bystander.cpus(), before);
    Ok(())
}

pub fn busy_partition(fixture: &Fixture) -> Outcome {
    let tree = Mounted::of(Cgroup::default(), fixture.path("cgroup"))?;
    let guest = Bystander::new();
    let plan = fixture.plan("none", vec![fixture.good()]);
    let mut run = fixture.run(&plan, &["--duration", "1s"]);
    let run = run.env("ISOCHROME_CGROUP", tree.root()).stdout(Stdio::piped()).spawn().unwrap();
    let group = format!("isochrome-{}-cpu{}", run.id(), fixture.cpu);
    wait_until("a partition", || tree.state().groups.get(&group).is_some_and(|(.., processes)| !processes.is_empty()));
    // A group of another tool, which also needs the controller that the run has enabled.
    let theirs = ("0".to_owned(), "root".to_owned(), Vec::new());
    tree.state().groups.insert("theirs".to_owned(), theirs.clone());
    tree.state().groups.get_mut(&group).unwrap().2.push(guest.0.id().to_string());
    let output = run.wait_with_output().unwrap();
    assert!(json_of(&output)["warnings"].to_string().contains(&format!("{group}: cannot be removed")), "{output:?}");
    // Every program may use the CPU again nevertheless.
    assert_eq!(tree.state().groups[&group].1, "member");
    assert_eq!(fixture.traces().len(), 1, "the journal");
    let next = || fixture.tool(&["ps"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&next().stderr).into_owned();
    assert!(stderr.contains(&format!("{group}: cannot be removed")) && stderr.contains("hint:"), "{stderr}");
    drop(guest);
    assert!(next().status.success());
    let left = Cgroup { switched_on: true, groups: [("theirs".to_owned(), theirs)].into(), ..Cgroup::default() };
    assert_eq!(*tree.state(), left);
    assert_eq!(fixture.traces(), Vec::<String>::new());
    Ok(())
}

pub fn partitions_after_sigkill(fixture: &Fixture) -> Outcome {
    let tree = Mounted::of(Cgroup::default(), fixture.path("cgroup"))?;
    let plan = fixture.plan("none", vec![fixture.good()]);
    let mut run = fixture.run(&plan, &["--duration", "60s"]);
    let mut run = run.env("ISOCHROME_CGROUP", tree.root()).stdout(Stdio::null()).spawn().unwrap();
    wait_until("a job", || fs::metadata(fixture.path("out/jobs.csv")).is_ok_and(|file| file.len() > 1000));
    run.kill().unwrap();
    run.wait().unwrap();
    assert_eq!(tree.state().groups.len(), 1);
    assert!(fixture.tool(&["ps"]).status().unwrap().success());
    assert_eq!(*tree.state(), Cgroup::default());
    wait_until("nothing left", || fixture.traces().is_empty());
    Ok(())
}

pub fn deadline_refused(fixture: &Fixture) -> Outcome {
    if fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap().trim() == "-1" {
        return Err(NotRun("this kernel admits every reservation (kernel.sched_rt_runtime_us)".to_owned()));
    }
    let plan = fixture.plan("none", vec![fixture.good()]);
    // Without a partition the CPU of the task shares a root domain with other CPUs.
    let evidence = fixture.evidence(&plan, &["--duration", "300ms", "--policy", "deadline"]);
    let failures = evidence.failures();
    assert!(failures.len() == 1 && failures[0].1.contains("cannot be given SCHED_DEADLINE"), "{failures:?}");
    assert!(failures[0].1.contains("a root domain of its own"), "{failures:?}");
    Ok(())
}

pub fn deadline(fixture: &Fixture) -> Outcome {
    // Eq. 1 charges a job of either task 0.1 of its period. So each task gets half of the density that the kernel admits.
    let plan = fixture.plan("none", vec![fixture.task("fast", &["line", "50"], 2000, 1900, "line"), fixture.good()]);
    let detector = StallDetector::start(fixture.cpu);
    let output = fixture.run(&plan, &["--duration", "1s", "--policy", "deadline"]).output().unwrap();
    let stalls = detector.stop();
    let run = &json_of(&output)["sections"][0]["numbers"];
    if run["failures"].to_string().contains("a root domain of its own") {
        return Err(NotRun(format!("no CPU can be a partition: {}", during(run, "other programs"))));
    }
    let reserved = &run["reserved"][0];
    let density = reserved["density"].as_f64().unwrap();
    assert!((density - reserved["most"].as_f64().unwrap()).abs() < 1e-3, "{reserved}");
    for (task, period) in run["tasks"].as_array().unwrap().iter().zip([2_000_000.0, 5_000_000.0]) {
        assert_eq!(task["bound"], Value::Null);
        let budget = task["budget"].as_f64().unwrap();
        assert!((budget - period * density / 2.0).abs() < 2.0, "{task}");
    }
    assert_eq!(fixture.traces(), Vec::<String>::new());
    stalls.check()?;
    assert_eq!(run["failures"], json!([]));
    for (task, expected) in run["tasks"].as_array().unwrap().iter().zip([500, 200]) {
        // Some jobs may be missing because of disturbances that are tolerated.
        assert!(10 * task["jobs"].as_u64().unwrap() > 9 * expected, "{task}");
    }
    Ok(())
}
