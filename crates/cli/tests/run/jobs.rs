//! Tests of jobs: their number, what is recorded of each, and the limits that they are checked against.

use std::fs;
use std::process::Command;

use isochrome_host::counters::events::PAGE_FAULTS;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::run::engine::{self, Hooks, OnViolation, Request};
use isochrome_host::run::planned::{self, Planned};
use isochrome_model::running::{JobRecord, Requirement};
use isochrome_model::taskset::programs::Program;
use isochrome_model::units::{CpuId, Ns};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::stalls::StallDetector;
use crate::trial::{NotRun, Outcome};

pub fn every_job(fixture: &Fixture) -> Outcome {
    let fast = fixture.task("fast", &["line", "30"], 1000, 900, "line");
    let plan = fixture.plan("none", vec![fast, fixture.good()]);
    let evidence = fixture.evidence(&plan, &["--duration", "1s"]);
    let run = &evidence.run;
    for name in ["fast", "good"] {
        let mut executions = Vec::new();
        for (number, job) in fixture.jobs(name).iter().enumerate() {
            let [instance, release, start, completion, response, execution, ..] = job[..] else { panic!("{job:?}") };
            assert_eq!(instance, number as u64);
            assert!(release <= start && start <= completion && response == completion - release, "{job:?}");
            assert!(execution <= response, "{name}: {job:?}");
            executions.push(execution);
        }
        // A job computes until its own clock of CPU time has advanced by 30 us or more. The kernel deducts steal time from some of the
        // executions.
        executions.sort_unstable();
        let median = executions[executions.len() / 2];
        assert!(median >= 15_000, "{name}: {median} ns");
    }
    // The verdict follows from the recorded jobs, however much the machine was disturbed.
    let tasks = run["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 2);
    let violated = tasks.iter().any(|task| own(task, "bound_violations") + own(task, "deadline_violations") > 0);
    let violated = violated || !evidence.failures().is_empty();
    let codes: &[i32] = match (violated, evidence.accounted_for()) {
        (true, true) => &[2, 3],
        (true, false) => &[2],
        (false, _) => &[0, 3],
    };
    assert!(codes.contains(&evidence.code), "{run}");
    let late = fixture.jobs("fast").iter().filter(|job| job[4] > 900_000).count() as u64;
    assert_eq!(tasks[0]["bound_violations"]["jobs"], json!(late));
    assert_eq!(tasks[0]["jobs"], json!(fixture.jobs("fast").len()));
    let saved: Value = serde_json::from_str(&fs::read_to_string(fixture.path("out/evidence.json")).unwrap()).unwrap();
    let sum = Command::new("sha256sum").arg(fixture.path("out/jobs.csv")).output().unwrap();
    assert_eq!(saved["raw"][0]["sha256"].as_str().unwrap().as_bytes(), &sum.stdout[..64]);
    let report = fixture.tool(&["report", "--text"]).arg(fixture.path("out")).output().unwrap();
    assert!(String::from_utf8_lossy(&report.stdout).contains("fast"), "{report:?}");
    assert_eq!(fixture.traces(), Vec::<String>::new());
    evidence.undisturbed()?;
    assert_eq!(evidence.failures(), [], "{}", evidence.text);
    for (name, period_us) in [("fast", 1000), ("good", 5000)] {
        let (seen, expected) = (fixture.jobs(name).len() as u64, 1_000_000 / period_us);
        assert!(seen <= expected && seen + evidence.missing_max(period_us) >= expected, "{name}: {seen}");
    }
    Ok(())
}

/// Returns the number of jobs of a task that violated a limit by more than steal time excuses.
fn own(task: &Value, limit: &str) -> u64 {
    task[limit]["jobs"].as_u64().unwrap() - task[limit]["excused"].as_u64().unwrap()
}

pub fn wake_ups(fixture: &Fixture) -> Outcome {
    let log = fixture.path("log");
    let mut timed = fixture.task("timed", &["periodic", "200", "2000", log.to_str().unwrap()], 2000, 1900, "wakeup");
    timed.program["memory_bytes"] = json!(8 << 20);
    let plan = fixture.plan("none", vec![timed]);
    let evidence = fixture.evidence(&plan, &["--duration", "1s"]);
    evidence.undisturbed()?;
    assert_eq!(evidence.failures(), []);
    let seen: Vec<(u64, u64)> = fixture.jobs("timed").iter().map(|job| (job[2], job[3])).collect();
    let text = fs::read_to_string(&log).expect("the program wrote what it saw");
    let own: Vec<(u64, u64)> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(begin, end)| (begin.parse().unwrap(), end.parse().unwrap()))
        .collect();
    assert!(seen.len() as u64 + evidence.missing_max(2000) >= 500, "{}", seen.len());
    // The time of the first release on the program's clock is not known. With the right time, nearly all observed jobs lie near jobs that the
    // program recorded.
    const NEAR: u64 = 500_000;
    let pairs = |zero: u64| {
        let near = |start: u64| own.get(own.partition_point(|own| own.0 < start)).filter(|own| own.0 - start < NEAR);
        seen.iter().filter_map(|seen| Some((*seen, *near(seen.0 + zero)?))).collect::<Vec<_>>()
    };
    // In each job the program starts before its first reading of the clock, and sleeps after its last reading. So each job gives an upper and a
    // lower limit for the time of the first release. The limits of different jobs differ by the jitter of wake-ups, tens of microseconds.
    let room = |pairs: Vec<((u64, u64), (u64, u64))>| {
        let latest = pairs.iter().map(|(seen, own)| own.0 - seen.0).min();
        let earliest = pairs.iter().map(|(seen, own)| own.1 - seen.1).max();
        Some(latest? as i64 - earliest? as i64)
    };
    let zeros = own.iter().flat_map(|own| seen.iter().take(3).map(|seen| own.0 - seen.0 - NEAR / 2));
    let rooms = zeros.map(pairs).filter(|pairs| pairs.len() * 10 > seen.len() * 9).filter_map(room);
    let best = rooms.max().expect("the jobs seen are about the program's own");
    assert!(best >= 0, "{best} ns");
    Ok(())
}

/// Checks that each job is charged with its own events while `fast` preempts `slow`. The events are page faults, which every machine counts, and
/// they take the path that misses take.
pub fn counted(fixture: &Fixture) -> Outcome {
    const FAULTS: [u64; 2] = [3, 20];
    let program = |name: &str, us: &str, pages: u64, period: u64| {
        let task = fixture.task(name, &["faults", us, &pages.to_string()], period, period, "line");
        let program: Program = serde_json::from_value(task.program).unwrap();
        let requirement = Requirement {
            name: name.to_owned(),
            period: program.period,
            deadline: program.deadline,
            ..Requirement::default()
        };
        let index = usize::from(name != "fast");
        let scheduling = Some(planned::fifo(index, 2));
        Planned {
            program,
            cpu: CpuId(fixture.cpu as u32),
            scheduling,
            requirement: Some(requirement),
            joins: Vec::new(),
            partitions: Vec::new(),
        }
    };
    let programs = [program("fast", "20", FAULTS[0], 1000), program("slow", "1500", FAULTS[1], 5000)];
    let request = Request {
        programs: &programs,
        length: Ns(1_000_000_000),
        on_violation: OnViolation::Trace,
        watches_gaps: false,
        keep_going: false,
        alone: false,
        // Locked memory has no page faults.
        lock: false,
        counted: Some(PAGE_FAULTS),
        folder: &fixture.path("runtime"),
    };
    let mut jobs: Vec<JobRecord> = Vec::new();
    let mut record = |job: &JobRecord| {
        jobs.push(*job);
        Ok(())
    };
    let detector = StallDetector::start(fixture.cpu);
    let outcome = engine::run(
        &request,
        &mut Hooks { move_to_colors: &mut |_, _| Ok(()), inspect: &mut |_, _| None, record: &mut record },
    );
    let stalls = detector.stop();
    let outcome = outcome.unwrap();
    if let Some(why) = outcome.uncounted {
        return Err(NotRun(why));
    }
    for (task, faults) in FAULTS.into_iter().enumerate() {
        let counted = jobs.iter().filter(|job| job.task == task).filter_map(|job| job.misses);
        let wrong: Vec<u64> = counted.filter(|count| *count != faults).collect();
        assert_eq!(wrong, Vec::<u64>::new(), "instead of {faults}");
    }
    assert_eq!(fixture.traces(), Vec::<String>::new());
    stalls.check()?;
    assert_eq!(outcome.failures, []);
    for (task, period_us) in [1000, 5000].into_iter().enumerate() {
        let counted = jobs.iter().filter(|job| job.task == task && job.misses.is_some()).count() as u64;
        let missing = outcome.overhead.releases_skipped + stalls.total.as_micros() as u64 / period_us;
        let expected = 1_000_000 / period_us;
        // A job that waits for the job before it and begins without a sleep in between has no count.
        assert!((counted + missing) * 10 > expected * 9, "{counted} of {expected}, {missing} missing");
    }
    // `slow` computes for longer than the period of `fast`.
    let preempted = jobs.iter().filter(|job| job.task == 1 && job.preemptions > 0 && job.misses.is_some()).count();
    assert!(preempted > 100, "{preempted}");
    Ok(())
}

pub fn violations(fixture: &Fixture) -> Outcome {
    let hopeless = || fixture.task("hopeless", &["line", "100"], 5000, 50, "line");
    let plan = fixture.plan("none", vec![hopeless()]);
    let evidence = fixture.evidence(&plan, &["--duration", "500ms"]);
    assert_eq!(evidence.code, 2);
    let task = &evidence.run["tasks"][0];
    assert_eq!(task["bound_violations"]["jobs"], task["jobs"]);
    if Sysfs::system().is_virtual() {
        // From the first of these jobs on, or after the run where no other process may use the CPU.
        let watched = evidence.run["gaps"].as_array().expect("the clock was watched for gaps");
        assert!(watched.iter().all(|gaps| gaps["watched"].as_u64() > Some(0)), "{watched:?}");
    }
    let first = &evidence.run["violations"][0];
    assert_eq!((first["task"].as_str(), first["instance"].as_u64()), (Some("hopeless"), Some(0)));
    // A job that is overdue before it gets the CPU is reported at that moment, so its timeline does not contain the job itself.
    let timelines = evidence.run["violations"].as_array().unwrap().iter().flat_map(|one| one["timeline"].as_array());
    assert!(timelines.flatten().any(|slice| slice["what"] == "hopeless"), "{}", evidence.run["violations"]);
    let stopped = fixture.evidence(&plan, &["--duration", "20s", "--on-violation", "stop"]);
    assert!(stopped.run["duration"].as_u64().unwrap() < 20_000_000_000, "{}", stopped.run["duration"]);
    assert!(stopped.run["violations"].as_array().is_some_and(|all| !all.is_empty()));
    // Few jobs run until the stop. Steal time may excuse each of them, and gaps may account for them.
    let violated = own(&stopped.run["tasks"][0], "bound_violations") > 0 || !stopped.failures().is_empty();
    let expected = if violated && !stopped.accounted_for() { 2 } else { 3 };
    assert_eq!(stopped.code, expected, "{}", stopped.run);
    // SIGUSR1 ends a program that does not expect it.
    let signaled = fixture.evidence(&plan, &["--duration", "20s", "--on-violation", "signal"]);
    assert_eq!(signaled.failures(), [("hopeless".to_owned(), "was ended by signal 10".to_owned())]);
    Ok(())
}
