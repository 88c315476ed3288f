//! Programs of a plan run together: every job is seen, every failure is reported, and the machine is as it was afterwards.
//!
//! Nothing here depends on how long something takes, but on what happens and in what order: hosts are noisy. A test that the machine cannot
//! run is reported as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure.

#[path = "../../host/tests/kernel/mod.rs"]
mod kernel;
mod mounted;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use isochrome_host::counters::events::PAGE_FAULTS;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::run::engine::{self, Hooks, OnViolation, Request};
use isochrome_host::run::planned::{self, Planned};
use isochrome_model::machine::{Fact, Refill, Source};
use isochrome_model::running::{JobRecord, Requirement};
use isochrome_model::taskset::programs::Program;
use isochrome_model::units::{CpuId, Ns};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tempfile::TempDir;

use kernel::State;
use mounted::{Cgroup, Mounted};
use trial::{NotRun, Outcome, run as run_trials, trial};

fn main() -> ExitCode {
    let trials = vec![
        timed("every_job_is_recorded_and_held_against_its_bound", every_job),
        timed("jobs_seen_by_the_scheduler_are_those_that_the_program_sees", wake_ups),
        timed("what_is_counted_of_a_job_is_what_its_own_thread_did", counted),
        timed("a_bound_that_no_job_can_keep_is_violated_by_all_and_can_end_the_run", violations),
        timed("what_a_program_does_wrong_is_named_and_the_others_go_on", failures),
        fixture_trial("without_keep_going_the_first_failure_ends_the_run", first_failure),
        timed("programs_have_their_colors_and_a_comparison_has_both_sides", colors_and_comparison),
        fixture_trial("where_frame_numbers_are_hidden_programs_have_their_colors_by_eviction_tests", hidden_frames),
        fixture_trial("tasks_have_their_ways_while_they_run_and_all_have_all_afterwards", ways),
        fixture_trial("ways_and_colors_together_keep_everybody_else_off_the_tasks_colors", ways_and_colors),
        fixture_trial("a_profile_by_ways_gives_every_visit_its_ways", profile_by_ways),
        fixture_trial("ways_that_cannot_be_had_are_reported_before_anything_runs", no_ways),
        fixture_trial("ways_that_cannot_be_given_back_do_not_take_the_run_away", busy_ways),
        fixture_trial("after_sigkill_ways_are_given_back_and_what_is_busy_is_tried_again", ways_after_sigkill),
        fixture_trial("cpus_of_tasks_are_partitions_where_cgroups_allow_it", partitions),
        fixture_trial("a_partition_that_cannot_be_removed_is_nobodys_cpu_no_more_and_is_tried_again", busy_partition),
        fixture_trial("after_sigkill_partitions_are_taken_back", partitions_after_sigkill),
        timed("memory_of_tasks_is_locked_unless_it_is_not_to_be", locked),
        fixture_trial("a_reservation_that_is_refused_is_reported_with_the_reason", deadline_refused),
        timed("tasks_run_by_deadlines_on_a_cpu_that_is_a_partition", deadline),
        fixture_trial("after_sigterm_other_programs_have_their_cpus_back", sigterm),
        fixture_trial("after_sigkill_the_next_start_puts_everything_back", sigkill),
        fixture_trial("a_full_disk_is_an_error_and_what_was_recorded_stays", full_disk),
        fixture_trial("a_plan_for_another_machine_or_without_programs_is_refused", refusals),
    ];
    run_trials(trials)
}

fn fixture_trial(name: &'static str, test: fn(&Fixture) -> Outcome) -> Trial {
    trial(name, move || test(&Fixture::new()?))
}

/// For tests of how many jobs there are and how long they take. What a hypervisor takes away in the middle of a run is neither announced nor
/// reported in full afterwards; so a failure is shown and has to happen twice.
fn timed(name: &'static str, test: fn(&Fixture) -> Outcome) -> Trial {
    let once = move || test(&Fixture::new()?);
    trial(name, move || std::panic::catch_unwind(once).unwrap_or_else(|_| once()))
}

/// A folder with the program of the tests, and the CPU that its tasks run on.
struct Fixture {
    folder: TempDir,
    cpu: usize,
}

/// CPUs that a process may run on, as the kernel lists them.
fn cpus_of(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

impl Fixture {
    fn new() -> Result<Fixture, NotRun> {
        let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
        if !root {
            return Err(NotRun("real-time priorities and events of the scheduler take root".to_owned()));
        }
        let cpus = cpus_of(std::process::id());
        let cpu: usize = cpus.rsplit([',', '-']).next().and_then(|last| last.parse().ok()).unwrap();
        if cpus == cpu.to_string() {
            return Err(NotRun("there is one CPU only".to_owned()));
        }
        let folder = tempfile::tempdir().unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/task.c");
        match Command::new("cc").args(["-O2", "-o"]).arg(folder.path().join("task")).arg(source).status() {
            Ok(status) => assert!(status.success(), "the program does not compile"),
            Err(_) => return Err(NotRun("there is no C compiler to build the program with".to_owned())),
        }
        Ok(Fixture { folder, cpu })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A task: its mode, the time of a job in us, its period and its bound in us; how its jobs are seen.
    fn task(&self, name: &str, words: &[&str], period_us: u64, bound_us: u64, jobs: &str) -> Task {
        let program = self.path("task").display().to_string();
        let command: Vec<String> =
            std::iter::once(program).chain(words.iter().map(|word| (*word).to_owned())).collect();
        Task {
            plan: json!({
                "name": name, "partitions": [1], "response_ns": bound_us * 1000, "deadline_ns": period_us * 1000,
                "no_interference_ns": bound_us * 900, "wcet_ns": 30_000, "utilization": 0.1,
            }),
            program: json!({
                "name": name, "command": command, "period_ns": period_us * 1000, "deadline_ns": period_us * 1000,
                "memory_bytes": 1 << 20, "jobs": jobs,
            }),
        }
    }

    /// A good program that is released every 5 ms.
    fn good(&self) -> Task {
        self.task("good", &["line", "50"], 5000, 4000, "line")
    }

    fn plan(&self, method: &str, mut tasks: Vec<Task>) -> PathBuf {
        for (place, task) in tasks.iter_mut().enumerate() {
            task.plan["partitions"] = json!([4 * place + 1, 4 * place + 2, 4 * place + 3, 4 * place + 4]);
        }
        let (planned, programs): (Vec<Value>, Vec<Value>) =
            tasks.into_iter().map(|task| (task.plan, task.program)).unzip();
        let plan = json!({
            "schedulable": true, "method": "optimal", "objective": "partitions", "analysis": "kim2013",
            "partitions_used": 4, "utilization": 0.1, "bound": null, "gap": null,
            "cores": [{"cpu": self.cpu, "partitions": [1, 2, 3, 4], "utilization": 0.1, "tasks": planned}],
            "programs": {"cpus": [self.cpu], "level": 2, "method": method, "tasks": programs},
        });
        let path = self.path("plan.json");
        fs::write(&path, plan.to_string()).unwrap();
        path
    }

    /// The command, with a runtime folder of its own.
    fn tool(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
        command.env("ISOCHROME_RUNTIME_DIR", self.path("runtime")).args(words);
        command
    }

    fn run(&self, plan: &Path, options: &[&str]) -> Command {
        let mut command = self.tool(&["run", "--json"]);
        command.arg(plan).arg("-o").arg(self.path("out")).args(options);
        command
    }

    /// Runs a plan on a CPU that others use as well; the evidence.
    fn evidence(&self, plan: &Path, options: &[&str]) -> Evidence {
        let output = self.run(plan, options).arg("--share-cpus").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 2 | 3)), "{}: {text}", output.status);
        Evidence { run: json_of(&output)["sections"][0]["numbers"].clone(), code: output.status.code().unwrap(), text }
    }

    /// Lines of jobs of a task.
    fn jobs(&self, task: &str) -> Vec<Vec<u64>> {
        let text = fs::read_to_string(self.path("out/jobs.csv")).unwrap();
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().unwrap().split(',').collect();
        assert_eq!(header[2..7], ["task", "instance", "release_ns", "start_ns", "completion_ns"]);
        let rows = lines.map(|line| line.split(',').collect::<Vec<_>>()).filter(|row| row[2] == task);
        rows.map(|row| row[3..].iter().map(|field| field.parse().unwrap_or(0)).collect()).collect()
    }

    /// What a run leaves behind when it does not clean up.
    fn traces(&self) -> Vec<String> {
        let mut found = Vec::new();
        let runtime = fs::read_dir(self.path("runtime")).into_iter().flatten().flatten();
        found.extend(
            runtime
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .filter(|name| name.starts_with("run-")),
        );
        let program = self.path("task");
        for process in fs::read_dir("/proc").unwrap().flatten() {
            if fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == program) {
                found.push(format!("process {}", process.file_name().to_string_lossy()));
            }
        }
        found
    }
}

struct Task {
    plan: Value,
    program: Value,
}

struct Evidence {
    run: Value,
    code: i32,
    text: String,
}

impl Evidence {
    fn failures(&self) -> Vec<(String, String)> {
        let failure = |failure: &Value| {
            (failure["task"].as_str().unwrap().to_owned(), failure["what"].as_str().unwrap().to_owned())
        };
        self.run["failures"].as_array().unwrap().iter().map(failure).collect()
    }
}

/// Jobs that were not released, because the host held isochrome up.
fn skipped(run: &Value) -> u64 {
    run["overhead"]["releases_skipped"].as_u64().unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    })
}

/// A program beside the tasks, ended with the test.
struct Bystander(Child);

impl Bystander {
    fn new() -> Bystander {
        Bystander(Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap())
    }

    fn cpus(&self) -> String {
        cpus_of(self.0.id())
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what} does not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn every_job(fixture: &Fixture) -> Outcome {
    let fast = fixture.task("fast", &["line", "30"], 1000, 900, "line");
    let plan = fixture.plan("none", vec![fast, fixture.good()]);
    let Evidence { run, code, text } = fixture.evidence(&plan, &["--duration", "1s"]);
    assert_eq!(run["failures"], json!([]), "{text}");
    for (name, expected) in [("fast", 1000), ("good", 200)] {
        let jobs = fixture.jobs(name);
        // Of the last ones the end may not have been seen.
        let least = expected - 5 - skipped(&run) as usize;
        assert!((least..=expected).contains(&jobs.len()), "{name}: {}", jobs.len());
        for (number, job) in jobs.iter().enumerate() {
            let [instance, release, start, completion, response, execution, .., steal_ns] = job[..] else {
                panic!("{job:?}")
            };
            assert_eq!(instance, number as u64);
            assert!(release <= start && start <= completion && response == completion - release, "{job:?}");
            // It computes until its own account says 30 us, and cannot have executed longer than it took. The kernel begins that account
            // before it tells of the switch; an exit to the hypervisor in between takes up to 15 us. Of a job with steal time, or of
            // the one after it, the kernel may have deducted more than its own steal time.
            let least = if steal_ns == 0 { 15_000 } else { 0 };
            assert!((least..=response).contains(&execution), "{name}: {job:?}");
        }
    }
    // The verdict is that of the jobs, whatever the machine did meanwhile.
    let own =
        |task: &Value, limit: &str| task[limit]["jobs"].as_u64().unwrap() - task[limit]["excused"].as_u64().unwrap();
    let tasks = run["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 2);
    let violated = tasks.iter().any(|task| own(task, "bound_violations") + own(task, "deadline_violations") > 0);
    assert_eq!(code == 2, violated, "{run}");
    let late = fixture.jobs("fast").iter().filter(|job| job[4] > 900_000).count() as u64;
    assert_eq!(tasks[0]["bound_violations"]["jobs"], json!(late));
    assert_eq!(tasks[0]["jobs"], json!(fixture.jobs("fast").len()));
    let evidence: Value =
        serde_json::from_str(&fs::read_to_string(fixture.path("out/evidence.json")).unwrap()).unwrap();
    let sum = Command::new("sha256sum").arg(fixture.path("out/jobs.csv")).output().unwrap();
    assert_eq!(evidence["raw"][0]["sha256"].as_str().unwrap().as_bytes(), &sum.stdout[..64]);
    let report = fixture.tool(&["report", "--text"]).arg(fixture.path("out")).output().unwrap();
    assert!(String::from_utf8_lossy(&report.stdout).contains("fast"), "{report:?}");
    assert_eq!(fixture.traces(), Vec::<String>::new());
    Ok(())
}

fn wake_ups(fixture: &Fixture) -> Outcome {
    let log = fixture.path("log");
    let mut timed = fixture.task("timed", &["periodic", "200", "2000", log.to_str().unwrap()], 2000, 1900, "wakeup");
    timed.program["memory_bytes"] = json!(8 << 20);
    let plan = fixture.plan("none", vec![timed]);
    let evidence = fixture.evidence(&plan, &["--duration", "1s"]);
    assert_eq!(evidence.failures(), []);
    let seen: Vec<(u64, u64)> = fixture.jobs("timed").iter().map(|job| (job[2], job[3])).collect();
    let text = fs::read_to_string(&log).expect("the program wrote what it saw");
    let own: Vec<(u64, u64)> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(begin, end)| (begin.parse().unwrap(), end.parse().unwrap()))
        .collect();
    assert!(seen.len() > 300, "{}", seen.len());
    // Where the first release lies on its clock is not known, only that nearly all jobs seen then lie about its own.
    const NEAR: u64 = 500_000;
    let pairs = |zero: u64| {
        let near = |start: u64| own.get(own.partition_point(|own| own.0 < start)).filter(|own| own.0 - start < NEAR);
        seen.iter().filter_map(|seen| Some((*seen, *near(seen.0 + zero)?))).collect::<Vec<_>>()
    };
    // It starts before it reads its clock first, and sleeps after it reads it last: the first release was no later than the one says, no earlier
    // than the other, by every job. Between two sides of different jobs lie the tens of microseconds by which wake-ups jitter.
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

/// Page faults, which every machine counts, by the path that misses take: `fast` pre-empts `slow`, and each has its own.
fn counted(fixture: &Fixture) -> Outcome {
    const FAULTS: [u64; 2] = [3, 20];
    let program = |name: &str, us: &str, pages: u64, period: u64| {
        let task = fixture.task(name, &["faults", us, &pages.to_string()], period, period, "line");
        let program: Program = serde_json::from_value(task.program).unwrap();
        let requirement = Requirement {
            name: name.to_owned(),
            period: program.period,
            deadline: program.deadline,
            bound: None,
            without_interference: None,
            budget: None,
            wcet: None,
            utilization: None,
        };
        let place = usize::from(name != "fast");
        let scheduling = Some(planned::fifo(place, 2));
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
    let outcome =
        engine::run(&request, &mut Hooks { place: &mut |_, _| Ok(()), look: &mut |_, _| None, record: &mut record });
    let outcome = outcome.unwrap();
    if let Some(why) = outcome.uncounted {
        return Err(NotRun(why));
    }
    assert_eq!(outcome.failures, []);
    for (task, (faults, expected)) in FAULTS.into_iter().zip([1000, 200]).enumerate() {
        let of_task: Vec<&JobRecord> = jobs.iter().filter(|job| job.task == task).collect();
        let counted: Vec<u64> = of_task.iter().filter_map(|job| job.misses).collect();
        // Of one that waits for the job before and goes on without sleeping nothing is known.
        assert!(counted.len() * 10 > expected * 9, "{} of {}", counted.len(), of_task.len());
        assert!(counted.iter().all(|count| *count == faults), "{counted:?}");
    }
    let preempted = jobs.iter().filter(|job| job.task == 1 && job.preemptions > 0 && job.misses.is_some()).count();
    assert!(preempted > 100, "{preempted}");
    assert_eq!(fixture.traces(), Vec::<String>::new());
    Ok(())
}

fn violations(fixture: &Fixture) -> Outcome {
    let hopeless = || fixture.task("hopeless", &["line", "100"], 5000, 50, "line");
    let plan = fixture.plan("none", vec![hopeless()]);
    let evidence = fixture.evidence(&plan, &["--duration", "500ms"]);
    assert_eq!(evidence.code, 2);
    let task = &evidence.run["tasks"][0];
    assert_eq!(task["bound_violations"]["jobs"], task["jobs"]);
    let first = &evidence.run["violations"][0];
    assert_eq!((first["task"].as_str(), first["instance"].as_u64()), (Some("hopeless"), Some(0)));
    // One that is overdue before it has the CPU is reported as it is then, without itself in its timeline.
    let timelines = evidence.run["violations"].as_array().unwrap().iter().flat_map(|one| one["timeline"].as_array());
    assert!(timelines.flatten().any(|stretch| stretch["what"] == "hopeless"), "{}", evidence.run["violations"]);
    let stopped = fixture.evidence(&plan, &["--duration", "20s", "--on-violation", "stop"]);
    assert!(stopped.run["duration"].as_u64().unwrap() < 5_000_000_000, "{}", stopped.run["duration"]);
    assert!(stopped.run["violations"].as_array().is_some_and(|all| !all.is_empty()));
    assert_eq!(stopped.code, 2);
    // SIGUSR1 ends a program that does not expect it.
    let signaled = fixture.evidence(&plan, &["--duration", "20s", "--on-violation", "signal"]);
    assert_eq!(signaled.failures(), [("hopeless".to_owned(), "was ended by signal 10".to_owned())]);
    Ok(())
}

/// What a program does wrong, and how that is named.
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

fn failures(fixture: &Fixture) -> Outcome {
    for (mode, named) in FAILURES {
        let bad = fixture.task("bad", &[mode, "50"], 2000, 1900, "line");
        let plan = fixture.plan("none", vec![fixture.good(), bad]);
        let evidence = fixture.evidence(&plan, &["--duration", "1500ms", "--keep-going"]);
        let failures = evidence.failures();
        assert!(failures.len() == 1 && failures[0].0 == "bad" && failures[0].1.contains(named), "{mode}: {failures:?}");
        assert_eq!(evidence.code, 2, "{mode}");
        let good = evidence.run["tasks"][0]["jobs"].as_u64().unwrap() + skipped(&evidence.run);
        assert!(good > 290, "{mode}: the other program has done {good} of 300 jobs");
        assert_eq!(fixture.traces(), Vec::<String>::new(), "{mode}");
    }
    Ok(())
}

fn first_failure(fixture: &Fixture) -> Outcome {
    let bad = fixture.task("bad", &["crashes", "50"], 2000, 1900, "line");
    let plan = fixture.plan("none", vec![fixture.good(), bad]);
    let evidence = fixture.evidence(&plan, &["--duration", "20s"]);
    assert_eq!(evidence.failures().len(), 1);
    assert!(evidence.run["duration"].as_u64().unwrap() < 5_000_000_000);
    assert!(evidence.text.is_empty() || !evidence.text.contains("panicked"), "{}", evidence.text);
    Ok(())
}

fn colors_and_comparison(fixture: &Fixture) -> Outcome {
    let palette = fixture.path("bits.json");
    fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#).unwrap();
    let fast = fixture.task("fast", &["line", "50"], 1000, 900, "line");
    let plan = fixture.plan("colors", vec![fast, fixture.good()]);
    let options = [
        "--duration",
        "1s",
        "--memory",
        "1G",
        "--compare",
        "none",
        "--trust-palette",
        "--palette",
        palette.to_str().unwrap(),
    ];
    let Evidence { run, text, .. } = fixture.evidence(&plan, &options);
    assert_eq!(run["failures"], json!([]), "{text}");
    for (task, first) in run["tasks"].as_array().unwrap().iter().zip([0, 4]) {
        let placement = &task["placement"];
        assert_eq!(placement["colors"], json!([first, first + 1, first + 2, first + 3]));
        let number = |name: &str| placement[name].as_u64().unwrap();
        let off = number("resident") - number("on_color") - number("immovable");
        assert!(off * 100 <= number("resident"), "{placement}");
    }
    let compared = run["comparison"]["tasks"].as_array().unwrap();
    for (task, jobs) in compared.iter().zip([1000, 200]) {
        for side in ["partitioned", "unpartitioned"] {
            // Two blocks of half a second each, in windows of a quarter; a job that is late may be in one more.
            assert!((4..=6).contains(&task[side]["windows"].as_u64().unwrap()), "{task}");
            assert!(task[side]["jobs"].as_u64().unwrap() <= jobs, "{task}");
        }
        // Two pairs show no difference, and say so.
        assert!(task["execution"]["n"].as_u64().is_none_or(|pairs| pairs <= 2), "{task}");
    }
    Ok(())
}

fn hidden_frames(fixture: &Fixture) -> Outcome {
    // What lasts for the boot lies in memory.
    let folder = tempfile::tempdir_in("/dev/shm").map_err(|error| NotRun(format!("/dev/shm: {error}")))?;
    let ran = |command: &mut Command| -> Result<(Output, String), NotRun> {
        let output = command.env("ISOCHROME_RUNTIME_DIR", folder.path()).output();
        let output = output.map_err(|error| NotRun(format!("{}: {error}", command.get_program().display())))?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output, stderr))
    };
    let (saved, stderr) = ran(&mut fixture.tool(&["palette", "--save", "--memory", "1G"]))?;
    if !saved.status.success() || !folder.path().join("reference-l2").exists() {
        return Err(NotRun(stderr.lines().last().unwrap_or_default().to_owned()));
    }
    let mut good = fixture.good();
    // Eviction tests take memory of the program that they are within.
    good.program["memory_bytes"] = json!(8 << 20);
    let plan = fixture.plan("colors", vec![good]);
    let mut run = Command::new("setpriv");
    run.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).arg(env!("CARGO_BIN_EXE_isochrome"));
    run.args(["run", "--json", "--share-cpus", "--duration", "500ms", "-o"]).arg(fixture.path("out")).arg(plan);
    let (output, stderr) = ran(&mut run)?;
    let reasons = ["cannot be told by time", "events of the scheduler cannot be recorded"];
    if reasons.iter().any(|reason| stderr.contains(reason)) {
        return Err(NotRun(stderr));
    }
    let run = &json_of(&output)["sections"][0]["numbers"];
    assert_eq!(run["failures"], json!([]));
    let placement = &run["tasks"][0]["placement"];
    assert_eq!(placement["colors"], json!([0, 1, 2, 3]));
    let number = |name: &str| placement[name].as_u64().unwrap();
    let off = number("resident") - number("on_color") - number("immovable");
    assert!(number("on_color") > 0 && off * 100 <= number("resident"), "{placement}");
    Ok(())
}

impl Fixture {
    /// A mounted tree of caches of level 2.
    fn resctrl(&self) -> Result<Mounted<State>, NotRun> {
        Mounted::resctrl(2, self.path("resctrl"))
    }

    /// Which of the two caches of the tree serves the tasks.
    fn instance(&self) -> Result<usize, NotRun> {
        let id = Sysfs::system().cache_id(2, CpuId(self.cpu as u32));
        let id = id.ok_or_else(|| NotRun("sysfs does not number the caches".to_owned()))? as usize;
        if id < 2 { Ok(id) } else { Err(NotRun(format!("the tests have caches 0 and 1, this is {id}"))) }
    }

    fn programs(&self) -> Vec<String> {
        let found = self.traces().into_iter().filter_map(|trace| Some(trace.strip_prefix("process ")?.to_owned()));
        let mut found: Vec<String> = found.collect();
        found.sort();
        found
    }
}

fn ways(fixture: &Fixture) -> Outcome {
    let (tree, id) = (fixture.resctrl()?, fixture.instance()?);
    let fast = fixture.task("fast", &["line", "50"], 1000, 900, "line");
    let plan = fixture.plan("ways", vec![fast, fixture.good()]);
    let options = ["--duration", "1500ms", "--share-cpus"];
    let mut run = fixture.run(&plan, &options);
    let run = run.env("ISOCHROME_RESCTRL", tree.root()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Each joins before it begins.
    wait_until("ways for both", || tree.state().tasks.len() == 2 && fixture.programs().len() == 2);
    let groups = tree.state().groups.clone();
    let mut tasks: Vec<String> = tree.state().tasks.values().flatten().cloned().collect();
    tasks.sort();
    // Every program has one thread.
    assert_eq!(tasks, fixture.programs());
    let here = |group: &str| groups[group][id];
    assert_eq!((here(""), here("isochrome-1"), here("isochrome-2")), (0xff00, 0xf, 0xf0));
    let output = run.wait_with_output().unwrap();
    let run = json_of(&output)["sections"][0]["numbers"].clone();
    assert_eq!((run["failures"].clone(), run["method"].clone()), (json!([]), json!("ways")));
    let setting =
        run["settings"].as_array().unwrap().iter().find(|one| one["name"].as_str().unwrap().starts_with("ways"));
    let setting = setting.expect("a setting");
    assert_eq!(setting["before"], setting["after"]);
    assert!(setting["during"].as_str().unwrap().contains(&format!("others {id}=ff00, group 1: {id}=f")), "{setting}");
    assert_eq!(tree.state().groups, State::new(2).groups);
    assert!(!fixture.path("runtime/resctrl.json").exists());
    // Of the two sides of a comparison one has ways.
    tree.state().written.clear();
    let compare = ["--duration", "500ms", "--share-cpus", "--compare", "none"];
    let output = fixture.run(&plan, &compare).env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    assert_eq!(json_of(&output)["sections"][0]["numbers"]["comparison"]["blocks"], json!(2));
    let given = tree.state().written.iter().filter(|line| line.starts_with("isochrome-1 ")).count();
    assert_eq!(given, 2);
    Ok(())
}

fn ways_and_colors(fixture: &Fixture) -> Outcome {
    let (tree, id) = (fixture.resctrl()?, fixture.instance()?);
    let palette = fixture.path("bits.json");
    fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#).unwrap();
    let plan = fixture.plan("both", vec![fixture.good(), fixture.task("other", &["line", "50"], 2000, 1900, "line")]);
    let options = [
        "--duration",
        "500ms",
        "--share-cpus",
        "--memory",
        "1G",
        "--trust-palette",
        "--palette",
        palette.to_str().unwrap(),
    ];
    let output = fixture.run(&plan, &options).env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    let run = &json_of(&output)["sections"][0]["numbers"];
    assert_eq!(run["failures"], json!([]));
    for (task, first) in run["tasks"].as_array().unwrap().iter().zip([0, 4]) {
        assert_eq!(task["placement"]["colors"], json!([first, first + 1, first + 2, first + 3]));
    }
    // A quarter of 16 ways is everybody else's.
    let written = tree.state().written.clone();
    assert_eq!(written[..2], [format!(" L2:{id}=f000"), format!("isochrome-tasks L2:{id}=fff")]);
    assert_eq!(tree.state().groups, State::new(2).groups);
    Ok(())
}

fn profile_by_ways(fixture: &Fixture) -> Outcome {
    let (tree, id) = (fixture.resctrl()?, fixture.instance()?);
    // Ways in pairs: two are the smallest mask, and everybody else keeps two.
    tree.state().least = 2;
    let mut machine = Sysfs::system().machine().unwrap().0;
    let refill = Refill { clean_ns: Ns(1000), dirty_ns: Ns(2000), lines: 64 };
    for level in &mut machine.levels {
        level.refill = Some(Fact { value: refill, source: Source::Measured });
    }
    let level = machine.data_level_of(2, CpuId(fixture.cpu as u32)).unwrap().geometry.value;
    let colors = level.color_count(machine.page_bytes);
    fs::write(fixture.path("machine.json"), serde_json::to_vec(&machine).unwrap()).unwrap();
    let text = format!(
        "cpus = \"{}\"\nmethod = \"ways\"\n[[tasks]]\nname = \"good\"\ncommand = \"./task line 50\"\nperiod = \"2ms\"\njobs = \"line\"\n",
        fixture.cpu
    );
    fs::write(fixture.path("taskset.toml"), text).unwrap();
    let mut command = fixture.tool(&["profile", "--json", "--exceed", "0.2", "--jobs-per-run", "14", "--flat", "1000"]);
    command
        .args(["--machine", "machine.json", "-o", "profile.json", "taskset.toml"])
        .current_dir(fixture.folder.path());
    let output = command.env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile: Value = serde_json::from_str(&fs::read_to_string(fixture.path("profile.json")).unwrap()).unwrap();
    // Eight pairs; refilling one takes as long as its share of the cache.
    assert_eq!((profile["partitions"].clone(), profile["method"].clone()), (json!(7), json!("ways")));
    assert_eq!(profile["refill_ns_per_partition"], json!((1000 * colors).div_ceil(8)));
    let measured = profile["tasks"][0]["measured"].as_array().unwrap();
    assert_eq!(measured.iter().map(|point| &point["partitions"]).collect::<Vec<_>>(), [&json!(1), &json!(7)]);
    let written: Vec<String> = tree.state().written.clone();
    let masks = |mask: &str| written.contains(&format!("isochrome-tasks L2:{id}={mask}"));
    assert!(masks("3") && masks("3fff"), "{written:?}");
    assert_eq!(tree.state().groups, State::new(2).groups);
    let plan = fixture.tool(&["plan", "profile.json", "--json"]).current_dir(fixture.folder.path()).output().unwrap();
    assert_eq!(json_of(&plan)["programs"]["method"], json!("ways"), "{}", String::from_utf8_lossy(&plan.stderr));
    Ok(())
}

fn no_ways(fixture: &Fixture) -> Outcome {
    let tree = fixture.resctrl()?;
    fixture.instance()?;
    let plan = fixture.plan("ways", vec![fixture.good(), fixture.task("other", &["line", "50"], 2000, 1900, "line")]);
    let refused = |root: &Path, named: &[&str]| {
        let output = fixture.run(&plan, &["--share-cpus"]).env("ISOCHROME_RESCTRL", root).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(named.iter().all(|named| stderr.contains(named)) && stderr.contains("hint:"), "{stderr}");
        assert_eq!(fixture.traces(), Vec::<String>::new());
    };
    refused(&fixture.path("nowhere"), &["mount -t resctrl"]);
    // Classes of service are there, but others have them.
    for number in 0..14 {
        tree.state().make(&format!("theirs-{number}")).unwrap();
    }
    let before = tree.state().groups.clone();
    refused(tree.root(), &["making group isochrome-2", "Out of CLOSIDs"]);
    assert_eq!(tree.state().groups, before);
    tree.state().classes = 2;
    refused(tree.root(), &["3 different sets of ways are needed"]);
    tree.state().classes = 32;
    tree.state().least = 3;
    refused(tree.root(), &["16 ways are not a multiple of 5 partitions"]);
    tree.state().least = 1;
    // An exclusive group of another tool has what the default one would have.
    let mut state = tree.state();
    state.exclusive = Some("theirs-0".to_owned());
    state.groups.insert("theirs-0".to_owned(), [0xff00; 2]);
    state.groups.insert(String::new(), [0xff; 2]);
    drop(state);
    let before = tree.state().groups.clone();
    refused(tree.root(), &["writing L2:", "Overlaps with exclusive group"]);
    assert_eq!(tree.state().groups, before);
    assert!(!fixture.path("runtime/resctrl.json").exists());
    Ok(())
}

fn busy_ways(fixture: &Fixture) -> Outcome {
    let tree = fixture.resctrl()?;
    fixture.instance()?;
    let plan = fixture.plan("ways", vec![fixture.good()]);
    let mut run = fixture.run(&plan, &["--duration", "1s", "--share-cpus"]);
    let run = run.env("ISOCHROME_RESCTRL", tree.root()).stdout(Stdio::piped()).spawn().unwrap();
    wait_until("ways", || !tree.state().tasks.is_empty());
    tree.state().busy = Some("isochrome-1".to_owned());
    let evidence = json_of(&run.wait_with_output().unwrap());
    assert!(evidence["warnings"].to_string().contains("removing group isochrome-1"), "{}", evidence["warnings"]);
    assert!(evidence["sections"][0]["numbers"]["tasks"][0]["jobs"].as_u64().unwrap() > 0);
    tree.state().busy = None;
    assert!(fixture.tool(&["ps"]).env("ISOCHROME_RESCTRL", tree.root()).status().unwrap().success());
    assert_eq!(tree.state().groups, State::new(2).groups);
    Ok(())
}

fn ways_after_sigkill(fixture: &Fixture) -> Outcome {
    let tree = fixture.resctrl()?;
    fixture.instance()?;
    let plan = fixture.plan("ways", vec![fixture.good()]);
    let mut run = fixture.run(&plan, &["--duration", "60s", "--share-cpus"]);
    let mut run = run.env("ISOCHROME_RESCTRL", tree.root()).stdout(Stdio::null()).spawn().unwrap();
    wait_until("ways", || !tree.state().tasks.is_empty());
    let next = || fixture.tool(&["ps"]).env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    let stderr_of = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    // Who lives is left alone.
    assert_eq!(stderr_of(&next()), "");
    assert_eq!(tree.state().names(), ["isochrome-1"]);
    run.kill().unwrap();
    run.wait().unwrap();
    tree.state().busy = Some("isochrome-1".to_owned());
    let busy = stderr_of(&next());
    assert!(busy.contains("removing group isochrome-1") && busy.contains("hint:"), "{busy}");
    assert_eq!(tree.state().names(), ["isochrome-1"]);
    tree.state().busy = None;
    let restored = stderr_of(&next());
    assert!(restored.contains("all have all cache ways"), "{restored}");
    assert_eq!(tree.state().groups, State::new(2).groups);
    wait_until("nothing left", || fixture.traces().is_empty());
    Ok(())
}

fn during(run: &Value, name: &str) -> String {
    let settings = run["settings"].as_array().unwrap();
    let found = settings.iter().find(|setting| setting["name"].as_str().unwrap().starts_with(name));
    found.unwrap_or_else(|| panic!("{run}"))["during"].as_str().unwrap().to_owned()
}

fn partitions(fixture: &Fixture) -> Outcome {
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
    // It is the kernel that keeps others off then.
    assert_eq!(bystander.cpus(), before);
    let output = run.wait_with_output().unwrap();
    let run = &json_of(&output)["sections"][0]["numbers"];
    assert_eq!(run["failures"], json!([]));
    assert!(during(run, "other programs").contains("partition of cgroup v2"), "{}", run["settings"]);
    assert_eq!(*tree.state(), Cgroup::default());
    // Where the kernel says that it is none, others are kept off by affinity, and the reason is reported.
    let why = "Parent is not a partition root";
    tree.state().invalid = Some(why.to_owned());
    let output = fixture.run(&plan, &["--duration", "300ms"]).env("ISOCHROME_CGROUP", tree.root()).output().unwrap();
    let shown = during(&json_of(&output)["sections"][0]["numbers"], "other programs");
    assert!(shown.contains("affinity") && shown.contains(why), "{shown}");
    assert_eq!(*tree.state(), Cgroup { invalid: Some(why.to_owned()), ..Cgroup::default() });
    assert_eq!(bystander.cpus(), before);
    Ok(())
}

fn busy_partition(fixture: &Fixture) -> Outcome {
    let tree = Mounted::of(Cgroup::default(), fixture.path("cgroup"))?;
    let guest = Bystander::new();
    let plan = fixture.plan("none", vec![fixture.good()]);
    let mut run = fixture.run(&plan, &["--duration", "1s"]);
    let run = run.env("ISOCHROME_CGROUP", tree.root()).stdout(Stdio::piped()).spawn().unwrap();
    let group = format!("isochrome-{}-cpu{}", run.id(), fixture.cpu);
    wait_until("a partition", || tree.state().groups.get(&group).is_some_and(|(.., processes)| !processes.is_empty()));
    // Somebody else's, who also needs the controller that is on by now.
    let theirs = ("0".to_owned(), "root".to_owned(), Vec::new());
    tree.state().groups.insert("theirs".to_owned(), theirs.clone());
    tree.state().groups.get_mut(&group).unwrap().2.push(guest.0.id().to_string());
    let output = run.wait_with_output().unwrap();
    assert!(json_of(&output)["warnings"].to_string().contains(&format!("{group}: cannot be removed")), "{output:?}");
    // Its CPU is everybody's all the same.
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

fn partitions_after_sigkill(fixture: &Fixture) -> Outcome {
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

fn locked(fixture: &Fixture) -> Outcome {
    let plan = fixture.plan("none", vec![fixture.good()]);
    let spawn = |options: &[&str]| {
        let mut run = fixture.run(&plan, options);
        run.args(["--share-cpus", "--duration", "700ms"]).stdout(Stdio::piped()).spawn().unwrap()
    };
    let lines = || fs::read_to_string(fixture.path("out/jobs.csv")).map_or(0, |text| text.lines().count());
    let run = spawn(&[]);
    let locked = |program: &String| {
        let status = fs::read_to_string(format!("/proc/{program}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("VmLck:") && !line.ends_with("\t       0 kB"))
    };
    wait_until("locked memory", || fixture.programs().iter().any(locked));
    let run = &json_of(&run.wait_with_output().unwrap())["sections"][0]["numbers"];
    assert_eq!(run["failures"], json!([]));
    let shown = during(run, "memory of the tasks");
    assert!(shown.starts_with("good: ") && shown.ends_with("kB locked"), "{shown}");
    assert!(lines() > 100);
    let run = &json_of(&spawn(&["--no-mlock"]).wait_with_output().unwrap())["sections"][0]["numbers"];
    assert_eq!(during(run, "memory of the tasks"), "not locked");
    Ok(())
}

fn deadline_refused(fixture: &Fixture) -> Outcome {
    if fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap().trim() == "-1" {
        return Err(NotRun("this kernel admits every reservation (kernel.sched_rt_runtime_us)".to_owned()));
    }
    let plan = fixture.plan("none", vec![fixture.good()]);
    // No partition, so its CPU is one of several of a root domain.
    let evidence = fixture.evidence(&plan, &["--duration", "300ms", "--policy", "deadline"]);
    let failures = evidence.failures();
    assert!(failures.len() == 1 && failures[0].1.contains("cannot be given SCHED_DEADLINE"), "{failures:?}");
    assert!(failures[0].1.contains("a root domain of its own"), "{failures:?}");
    Ok(())
}

fn deadline(fixture: &Fixture) -> Outcome {
    // Eq. 1 charges a job 0.1 of its period, in a tenth of the density that the kernel admits.
    let plan = fixture.plan("none", vec![fixture.task("fast", &["line", "50"], 2000, 1900, "line"), fixture.good()]);
    let output = fixture.run(&plan, &["--duration", "1s", "--policy", "deadline"]).output().unwrap();
    let run = &json_of(&output)["sections"][0]["numbers"];
    if run["failures"].to_string().contains("a root domain of its own") {
        return Err(NotRun(format!("no CPU can be a partition: {}", during(run, "other programs"))));
    }
    assert_eq!(run["failures"], json!([]));
    let reserved = &run["reserved"][0];
    let density = reserved["density"].as_f64().unwrap();
    assert!((density - reserved["most"].as_f64().unwrap()).abs() < 1e-3, "{reserved}");
    for (task, period) in run["tasks"].as_array().unwrap().iter().zip([2_000_000.0, 5_000_000.0]) {
        assert_eq!(task["bound"], Value::Null);
        let budget = task["budget"].as_f64().unwrap();
        assert!((budget - period * density / 2.0).abs() < 2.0, "{task}");
        assert!(task["jobs"].as_u64().unwrap() as f64 > 0.9 * 1e9 / period, "{task}");
    }
    assert_eq!(fixture.traces(), Vec::<String>::new());
    Ok(())
}

fn sigterm(fixture: &Fixture) -> Outcome {
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

fn sigkill(fixture: &Fixture) -> Outcome {
    let bystander = Bystander::new();
    let before = bystander.cpus();
    let forks = fixture.task("forks", &["forks", "50"], 2000, 1900, "line");
    let plan = fixture.plan("none", vec![fixture.good(), forks]);
    let mut run = fixture.run(&plan, &["--duration", "60s", "--keep-going"]).stdout(Stdio::null()).spawn().unwrap();
    wait_until("a run", || bystander.cpus() != before);
    // Two programs and what one of them started.
    wait_until("three processes", || fixture.traces().iter().filter(|trace| trace.starts_with("process")).count() == 3);
    run.kill().unwrap();
    run.wait().unwrap();
    // Started while CPUs were kept off, by a program that was kept off itself.
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

fn full_disk(fixture: &Fixture) -> Outcome {
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
    assert!(stderr.contains("could not be written any more") && stderr.contains("hint:"), "{stderr}");
    let jobs = jobs.unwrap();
    assert!(jobs.ends_with('\n') && jobs.lines().count() > 100, "{}", jobs.lines().count());
    assert!(jobs.lines().all(|line| line.split(',').count() == 12));
    assert!(stderr.contains(&format!("the {} before stay readable", jobs.lines().count() - 1)), "{stderr}");
    assert_eq!(fixture.traces(), Vec::<String>::new());
    Ok(())
}

fn refusals(fixture: &Fixture) -> Outcome {
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
