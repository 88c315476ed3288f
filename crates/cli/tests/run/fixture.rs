//! Fixture of the tests of `isochrome run`: a program to run, plans for it, and checks of the journals and processes that a run leaves behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use isochrome_host::machine::sysfs::Sysfs;
use isochrome_model::running::{Reason, Run};
use isochrome_model::units::CpuId;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kernel::State;
use crate::mounted::Mounted;
use crate::stalls::{StallDetector, Stalls};
use crate::trial::NotRun;

/// A folder with the program of the tests, and the CPU of its tasks.
pub struct Fixture {
    pub folder: TempDir,
    pub cpu: usize,
}

/// Returns the CPUs that a process may run on, as the kernel lists them.
pub fn cpus_of(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

impl Fixture {
    pub fn new() -> Result<Fixture, NotRun> {
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

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a task that runs the program of the tests. `words`: its mode, and the time of a job in us; `jobs`: how its jobs are observed.
    pub fn task(&self, name: &str, words: &[&str], period_us: u64, bound_us: u64, jobs: &str) -> Task {
        let program = self.path("task").display().to_string();
        let command: Vec<String> =
            std::iter::once(program).chain(words.iter().map(|word| (*word).to_owned())).collect();
        Task {
            plan: json!({
                "name": name, "partitions": [0], "response_ns": bound_us * 1000, "deadline_ns": period_us * 1000,
                "no_interference_ns": bound_us * 900, "wcet_ns": 30_000, "utilization": 0.1,
            }),
            program: json!({
                "name": name, "command": command, "period_ns": period_us * 1000, "deadline_ns": period_us * 1000,
                "memory_bytes": 1 << 20, "jobs": jobs,
            }),
        }
    }

    /// Returns a task that meets its bound and is released every 5 ms.
    pub fn good(&self) -> Task {
        self.task("good", &["line", "50"], 5000, 4000, "line")
    }

    pub fn plan(&self, method: &str, mut tasks: Vec<Task>) -> PathBuf {
        for (index, task) in tasks.iter_mut().enumerate() {
            task.plan["partitions"] = json!((4 * index..4 * index + 4).collect::<Vec<_>>());
        }
        let (planned, programs): (Vec<Value>, Vec<Value>) =
            tasks.into_iter().map(|task| (task.plan, task.program)).unzip();
        let plan = json!({
            "schema": "isochrome-plan/2", "schedulable": true, "method": "optimal", "objective": "partitions", "analysis": "kim2013",
            "partitions_used": 4, "utilization": 0.1, "bound": null, "gap": null,
            "cores": [{"cpu": self.cpu, "partitions": [0, 1, 2, 3], "utilization": 0.1, "tasks": planned}],
            "programs": {"cpus": [self.cpu], "level": 2, "method": method, "tasks": programs},
        });
        let path = self.path("plan.json");
        fs::write(&path, plan.to_string()).unwrap();
        path
    }

    /// Returns a command that runs isochrome with a runtime folder of its own.
    pub fn tool(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
        command.env("ISOCHROME_RUNTIME_DIR", self.path("runtime")).args(words);
        command
    }

    pub fn run(&self, plan: &Path, options: &[&str]) -> Command {
        let mut command = self.tool(&["run", "--json"]);
        command.arg(plan).arg("-o").arg(self.path("out")).args(options);
        command
    }

    /// Runs a plan on a CPU that other programs use as well, and returns the evidence.
    pub fn evidence(&self, plan: &Path, options: &[&str]) -> Evidence {
        let detector = StallDetector::start(self.cpu);
        let output = self.run(plan, options).arg("--share-cpus").output().unwrap();
        let stalls = detector.stop();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 2 | 3)), "{}: {text}", output.status);
        let run = json_of(&output)["sections"][0]["numbers"].clone();
        Evidence { run, code: output.status.code().unwrap(), text, stalls }
    }

    /// Returns a row of numbers for each recorded job of a task, beginning with its instance; an empty field is 0.
    pub fn jobs(&self, task: &str) -> Vec<Vec<u64>> {
        let text = fs::read_to_string(self.path("out/jobs.csv")).unwrap();
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().unwrap().split(',').collect();
        assert_eq!(header[2..7], ["task", "instance", "release_ns", "start_ns", "completion_ns"]);
        let rows = lines.map(|line| line.split(',').collect::<Vec<_>>()).filter(|row| row[2] == task);
        rows.map(|row| row[3..].iter().map(|field| field.parse().unwrap_or(0)).collect()).collect()
    }

    /// Returns the journals and the processes that a run has left behind.
    pub fn traces(&self) -> Vec<String> {
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

pub struct Task {
    pub plan: Value,
    pub program: Value,
}

/// Evidence of a run, and how long CPUs were withheld during the run.
pub struct Evidence {
    pub run: Value,
    pub code: i32,
    pub text: String,
    pub stalls: Stalls,
}

impl Evidence {
    pub fn failures(&self) -> Vec<(String, String)> {
        let failure = |failure: &Value| {
            (failure["task"].as_str().unwrap().to_owned(), failure["what"].as_str().unwrap().to_owned())
        };
        self.run["failures"].as_array().unwrap().iter().map(failure).collect()
    }

    /// Whether gaps of a CPU that nobody reports may account for the jobs of a task beyond a limit, so that the run is inconclusive.
    pub fn accounted_for(&self) -> bool {
        let (_, reasons) = serde_json::from_value::<Run>(self.run.clone()).unwrap().conclusion();
        reasons.iter().any(|reason| matches!(reason, Reason::Gaps { .. }))
    }

    /// Fails with a reason to ignore the test if the host disturbed the run too much to count jobs.
    pub fn undisturbed(&self) -> Result<(), NotRun> {
        match self.run["overhead"]["lost"].as_u64() {
            Some(lost) if lost > 0 => Err(NotRun(format!("the kernel had no room for {lost} events"))),
            _ => self.stalls.check(),
        }
    }

    /// Returns the largest number of jobs of a task that may be missing: releases that the tool reports as skipped, releases due while a CPU was
    /// withheld, and the last jobs, whose end may not have been observed.
    pub fn missing_max(&self, period_us: u64) -> u64 {
        let skipped = self.run["overhead"]["releases_skipped"].as_u64().unwrap();
        skipped + self.stalls.total.as_micros() as u64 / period_us + 5
    }
}

pub fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    })
}

/// A program beside the tasks, which is killed at the end of the test.
pub struct Bystander(pub Child);

impl Bystander {
    pub fn new() -> Bystander {
        Bystander(Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap())
    }

    pub fn cpus(&self) -> String {
        cpus_of(self.0.id())
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what} does not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Fixture {
    /// Mounts a resctrl tree with caches of level 2.
    pub fn resctrl(&self) -> Result<Mounted<State>, NotRun> {
        Mounted::resctrl(2, self.path("resctrl"))
    }

    /// Returns the number of the cache of the tree that serves the tasks: 0 or 1.
    pub fn instance(&self) -> Result<usize, NotRun> {
        let id = Sysfs::system().cache_id(2, CpuId(self.cpu as u32));
        let id = id.ok_or_else(|| NotRun("sysfs does not number the caches".to_owned()))? as usize;
        if id < 2 { Ok(id) } else { Err(NotRun(format!("the tests have caches 0 and 1, this is {id}"))) }
    }

    pub fn programs(&self) -> Vec<String> {
        let found = self.traces().into_iter().filter_map(|trace| Some(trace.strip_prefix("process ")?.to_owned()));
        let mut found: Vec<String> = found.collect();
        found.sort();
        found
    }
}

/// Returns the value that a setting had during a run.
pub fn during(run: &Value, name: &str) -> String {
    let settings = run["settings"].as_array().unwrap();
    let found = settings.iter().find(|setting| setting["name"].as_str().unwrap().starts_with(name));
    found.unwrap_or_else(|| panic!("{run}"))["during"].as_str().unwrap().to_owned()
}
