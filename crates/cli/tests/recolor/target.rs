//! Fixture of the tests of `recolor`: a program to move, and its counts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::Fixture;
use crate::trial::NotRun;

pub fn rounds() -> usize {
    std::env::var("RECOLOR_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(10)
}

impl Fixture {
    pub fn recolor(&self, pid: u32, colors: &str) -> Command {
        let mut command = self.isochrome("recolor", colors);
        command.args([&pid.to_string(), "--json"]);
        command
    }

    /// Recolors `pid`, which must succeed, and returns the report.
    pub fn recolored(&self, pid: u32, colors: &str) -> Value {
        json(&succeeding(self.recolor(pid, colors)))
    }

    /// Returns the number of pages that a recoloring would move now.
    pub fn expected(&self, pid: u32, colors: &str) -> u64 {
        let mut dry = self.recolor(pid, colors);
        dry.arg("--dry-run");
        json(&succeeding(dry))["expected"]["pages"].as_u64().unwrap()
    }

    /// Recolors by a command that `changed` has modified, which must succeed. Returns the report and the number of pages moved.
    pub fn moved(&self, pid: u32, colors: &str, changed: impl Fn(&mut Command)) -> (Value, u64) {
        let expected = self.expected(pid, colors);
        let mut command = self.recolor(pid, colors);
        changed(&mut command);
        let report = json(&succeeding(command));
        let moved = expected.saturating_sub(report["off_color"].as_u64().unwrap());
        (report, moved)
    }

    pub fn repair(&self, pid: u32) -> bool {
        let mut command = self.tool();
        command.args(["recolor", &pid.to_string(), "--repair", "--json"]);
        json(&succeeding(command))["repaired"].as_bool().unwrap()
    }

    /// Builds the target with the machine's C compiler, and starts it in `mode`.
    pub fn target(&self, mode: &str) -> Result<Target, NotRun> {
        let program = self.path("target");
        if !program.exists() {
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recolor/target.c");
            let built = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).status();
            match built {
                Ok(status) => assert!(status.success(), "the target does not compile"),
                Err(_) => return Err(NotRun("there is no C compiler to build the target with".to_owned())),
            }
        }
        let counts = self.path(&format!("counts-{mode}"));
        let mut process =
            Command::new(program).arg(mode).arg(&counts).stdout(Stdio::piped()).spawn().expect("the target starts");
        let mut line = String::new();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        lines.read_line(&mut line).unwrap();
        if line != "ready\n" {
            return Err(NotRun(format!("this kernel does not do `{mode}`: {}", process.wait().unwrap())));
        }
        let areas = match mode {
            "rings" => 6,
            "vforks" => 2,
            "mappings" | "library" => 1,
            _ => 8 + u64::from(mode == "torture"),
        };
        Ok(Target { process, counts, forks: mode == "torture", areas, _output: lines })
    }
}

/// A process that is killed at the end of the test.
pub struct Target {
    pub process: Child,
    counts: PathBuf,
    /// Whether the process forks.
    forks: bool,
    /// Number of threads that count themselves in [`Counts::areas`] once they have begun.
    pub areas: u64,
    _output: BufReader<std::process::ChildStdout>,
}

/// Counts that a target keeps; its source explains them.
#[derive(Debug)]
pub struct Counts {
    pub rounds: u64,
    pub wrong: u64,
    pub broken_off: u64,
    pub broken_off_epoll: u64,
    pub waits: u64,
    pub forks: u64,
    pub areas: u64,
}

impl Target {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn counts(&self) -> Counts {
        let bytes = fs::read(&self.counts).unwrap();
        let word = |at: usize| u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
        Counts {
            rounds: word(0),
            wrong: word(1),
            broken_off: word(2),
            broken_off_epoll: word(3),
            waits: word(4),
            forks: word(5),
            areas: word(6),
        }
    }

    /// Waits until every thread that works, waits or forks has made progress, and returns the counts.
    pub fn goes_on(&self) -> Counts {
        let begin = Instant::now();
        while self.counts().areas < self.areas {
            assert!(begin.elapsed() < Duration::from_secs(60), "the target does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        let before = self.counts();
        loop {
            let now = self.counts();
            if now.rounds >= before.rounds + 20
                && now.waits >= before.waits + 6
                && (now.forks > before.forks || !self.forks)
            {
                return now;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "the target stands still: {now:?} after {before:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a command that must succeed once every thread of the program can be stopped, and returns its output.
///
/// One thread of the target joins huge pages. While it does, it waits for the kernel's own threads, and no signal reaches it. The tool must report
/// that and change nothing. This function tries again until the thread can be stopped; any other failure fails the test.
pub fn succeeding(mut command: Command) -> Output {
    let begin = Instant::now();
    loop {
        let output = command.output().expect("the command starts");
        if output.status.success() {
            return output;
        }
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && message.contains("does not stop"), "{:?} {message}", output.status);
        assert!(begin.elapsed() < Duration::from_secs(60), "a thread cannot be stopped for a minute: {message}");
        println!("{}", message.trim_end());
    }
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

pub fn sum(report: &Value, key: &str) -> u64 {
    report["regions"].as_array().unwrap().iter().map(|region| region[key].as_u64().unwrap()).sum()
}

/// Returns the entries of pages that were not moved, without those of mappings that are never moved.
pub fn left_behind(report: &Value) -> Vec<&Value> {
    let fixed = |why: &str| why.starts_with("is ") || why.starts_with("holds what");
    let regions = report["regions"].as_array().unwrap().iter();
    regions.filter(|region| region["why"].as_object().unwrap().keys().any(|why| !fixed(why))).collect()
}

/// Returns a list of one to eight of the 16 colors, drawn at random.
pub fn random_colors(rng: &mut fastrand::Rng) -> String {
    let mut colors: Vec<u32> = (0..16).collect();
    rng.shuffle(&mut colors);
    colors.truncate(rng.usize(1..=8));
    colors.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

pub fn pauses_of(report: &Value) -> Vec<u64> {
    report["pauses_ns"].as_array().unwrap().iter().map(|pause| pause.as_u64().unwrap()).collect()
}

/// Returns the names of the journals that are left.
pub fn journals(fixture: &Fixture) -> Vec<String> {
    let files = fs::read_dir(fixture.folder.path()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("recolor-")).collect()
}

/// Returns the numbers of resident pages of `pid` that are on `colors`, that would be moved, and that are immovable, without stopping the
/// process.
pub fn on_color(fixture: &Fixture, pid: u32, colors: &str) -> (u64, u64, u64) {
    let mut command = fixture.recolor(pid, colors);
    command.arg("--dry-run");
    let report = json(&succeeding(command));
    (sum(&report, "on_color"), sum(&report, "moved"), sum(&report, "immovable"))
}
