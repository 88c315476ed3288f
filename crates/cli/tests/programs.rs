//! Tests of programs under `isochrome exec`: how they report that they are ready, the effect of memory pressure on their colors, real
//! programs, and the pair of examples/pair.
//!
//! Colors are bits of the frame number here, so they need no measurement and are the same on every machine. A test that the machine cannot
//! run is reported as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure. `PRESSURE_SECONDS` is the duration of the
//! memory pressure (3 by default), and `PRESSURE_SHARE` its share of the free memory in percent (5 by default); `COMPACTION_SECONDS` is the time for
//! which memory is compacted while a program is recolored (4 by default).

mod fixture;
mod trial;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isochrome_host::sys::memory::{Arena, page_bytes};
use libtest_mimic::Trial;
use serde_json::Value;

use fixture::Fixture;
use trial::{NotRun, Outcome, run as run_trials, trial};

/// File of the kernel that has memory compacted when something is written to it.
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Environment variable that makes this program one of the tested programs.
const ROLE: &str = "ISOCHROME_TEST_ROLE";

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        play(&role);
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        fixture_trial("exec_moves_when_the_program_tells_the_notify_socket_that_it_is_ready", notified_by_socket),
        fixture_trial("a_program_whose_manager_is_no_unix_socket_talks_to_it_itself", notified_elsewhere),
        fixture_trial("exec_moves_when_the_memory_of_the_program_has_settled", settled),
        fixture_trial("what_is_no_way_to_be_ready_is_refused", bad_ready),
        fixture_trial("pages_that_memory_pressure_moves_are_found_and_moved_back", pressure),
        fixture_trial("pages_that_are_moved_while_memory_is_compacted_keep_their_contents", compaction),
        fixture_trial("x264_encodes_the_same_clip_on_its_colors", x264),
        fixture_trial("a_static_go_program_gives_the_same_output_on_its_colors", go),
        fixture_trial("a_static_musl_program_gives_the_same_output_on_its_colors", musl),
        fixture_trial("two_programs_that_hand_over_count_every_job_and_keep_their_data", pair),
    ];
    run_trials(trials)
}

/// Runs this program in a tested role.
fn play(role: &str) {
    let sleep = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
    match role {
        "notify" => {
            let name = std::env::var("NOTIFY_SOCKET").expect("exec names a socket");
            let address = SocketAddr::from_abstract_name(name.strip_prefix('@').expect("an abstract name")).unwrap();
            let tell = |text: &str| UnixDatagram::unbound().unwrap().send_to_addr(text.as_bytes(), &address).unwrap();
            tell("STATUS=READY=1 comes later\n");
            sleep(400);
            tell("STATUS=begun\nREADY=1\n");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "grow" => {
            let mut kept = Vec::new();
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            for _ in 0..40 {
                kept.push(vec![1u8; 1 << 20]);
                longest = longest.max(last.elapsed());
                last = Instant::now();
                sleep(20);
            }
            println!("grown {} {}", std::process::id(), longest.as_millis());
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            assert!(kept.iter().flatten().all(|byte| *byte == 1));
        }
        "steady" => {
            let mut words: Vec<u64> = (0..8 << 20).collect();
            println!("ready {}", std::process::id());
            let (mut wrong, mut rounds) = (0u64, 0u64);
            let input = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
            while !input.is_finished() {
                for (i, word) in words.iter_mut().enumerate() {
                    if *word != i as u64 + rounds {
                        // One of each page says whether it was lost, or is that of an earlier round.
                        if wrong.is_multiple_of(512) {
                            eprintln!("round {rounds}: word {i} is {word}, not {}", i as u64 + rounds);
                        }
                        wrong += 1;
                    }
                    *word = i as u64 + rounds + 1;
                }
                rounds += 1;
                sleep(1);
            }
            println!("{rounds} rounds, {wrong} wrong");
        }
        role => panic!("there is no role {role}"),
    }
}

fn fixture_trial(name: &'static str, test: fn(&Fixture) -> Outcome) -> Trial {
    trial(name, move || test(&Fixture::new()?))
}

impl Fixture {
    /// Returns an `exec` of this program in a role, whose report goes to [`outcome`](Self::outcome).
    fn exec_role(&self, role: &str, ready: &str) -> Command {
        let mut command = self.isochrome("exec", "0-3");
        command.env(ROLE, role).args(["--ready", ready, "--interval", "200ms", "-o"]).arg(self.path("outcome.json"));
        command.arg("--").arg(std::env::current_exe().unwrap());
        command
    }

    fn outcome(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("outcome.json")).unwrap()).unwrap()
    }

    /// Returns the placement of the pages of `pid` without stopping the process; `None` while the pages are being moved, and after the process
    /// has ended.
    fn inspect(&self, pid: u32) -> Option<Value> {
        let mut command = self.isochrome("recolor", "0-3");
        let output = command.args([&pid.to_string(), "--dry-run", "--json"]).output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }
}

fn succeeding(mut command: Command) -> Output {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

fn sum(report: &Value, key: &str) -> u64 {
    report["regions"].as_array().unwrap().iter().map(|region| region[key].as_u64().unwrap()).sum()
}

/// Returns the number of pages that cannot be moved.
fn immovable(outcome: &Value) -> u64 {
    outcome["immovable"].as_object().unwrap().values().map(|pages| pages.as_u64().unwrap()).sum()
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    found.and_then(|mut child| child.wait()).is_ok()
}

fn notified_by_socket(fixture: &Fixture) -> Outcome {
    let output = fixture.until_on_colors(fixture.exec_role("notify", "sd_notify"), &fixture.path("outcome.json"));
    assert!(output.status.success(), "{output:?}");
    let outcome = fixture.outcome();
    assert!(outcome["seconds_to_colors"].as_f64().is_some_and(|at| at >= 0.4), "{outcome}");
    assert!(outcome["resident"].as_u64().unwrap() > 100, "{outcome}");
    Ok(())
}

fn notified_elsewhere(fixture: &Fixture) -> Outcome {
    let mut command = fixture.isochrome("exec", "0-3");
    command.env("NOTIFY_SOCKET", "vsock:2:99").args(["sh", "-c", "echo $NOTIFY_SOCKET"]);
    let output = succeeding(command);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "vsock:2:99\n");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("NOTIFY_SOCKET=vsock:2:99"), "{message}");
    // With `sd_notify` as its condition, `exec` refuses, because it would never learn that the program is ready.
    let mut command = fixture.exec_role("notify", "sd_notify");
    assert_eq!(command.env("NOTIFY_SOCKET", "vsock:2:99").output().unwrap().status.code(), Some(125));
    Ok(())
}

fn settled(fixture: &Fixture) -> Outcome {
    let mut exec = fixture.exec_role("grow", "settle:300ms");
    let mut exec = exec.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let message = BufReader::new(exec.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let numbers: Vec<u32> =
        message.strip_prefix("grown ").unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
    let [pid, longest_pause] = numbers[..] else { panic!("{message}") };
    let ended = Ended(pid);
    on_colors(fixture, pid, 10_000, Duration::from_secs(60));
    drop(exec.stdin.take());
    assert!(exec.wait().unwrap().success());
    std::mem::forget(ended);
    let outcome = fixture.outcome();
    if longest_pause >= 250 {
        return Err(NotRun(format!("the machine held the program up for {longest_pause} ms, as if it had settled")));
    }
    // The program grows for at least 0.8 s, and must then stay the same for 0.3 s.
    assert!(outcome["seconds_to_colors"].as_f64().is_some_and(|at| at >= 1.1), "{outcome}");
    Ok(())
}

fn bad_ready(fixture: &Fixture) -> Outcome {
    for ready in ["soon", "settle", "settle:soon", "line:", ""] {
        let output = fixture.exec_role("notify", ready).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && message.contains("--ready"), "`{ready}`: {message}");
    }
    Ok(())
}

/// A process that is killed at the end of the test. Such a program would wait forever if only its `exec` were killed.
struct Ended(u32);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.0.to_string()]).stderr(Stdio::null()).status();
    }
}

fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Waits until nearly all pages of `pid`, and more than `pages`, are on color. Returns the numbers of pages on color, off color, and immovable.
fn on_colors(fixture: &Fixture, pid: u32, pages: u64, limit: Duration) -> (u64, u64, u64) {
    let begin = Instant::now();
    loop {
        if let Some(report) = fixture.inspect(pid) {
            let (on_color, off_color, immovable) =
                (sum(&report, "on_color"), sum(&report, "moved"), sum(&report, "immovable"));
            if on_color as f64 >= 0.995 * (on_color + off_color) as f64 && on_color > pages {
                return (on_color, off_color, immovable);
            }
            println!("{on_color} on color, {off_color} off color, {immovable} immovable");
        }
        assert!(begin.elapsed() < limit, "it does not get onto its colors");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn available_bytes() -> usize {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    available.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1024
}

fn pressure(fixture: &Fixture) -> Outcome {
    let time = Duration::from_secs(variable("PRESSURE_SECONDS", 3));
    let share = variable("PRESSURE_SHARE", 5);
    let mut exec = fixture.exec_role("steady", "line:ready");
    let mut exec = exec.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(exec.stdout.take().unwrap()).lines();
    let pid: u32 = lines.next().unwrap().unwrap().strip_prefix("ready ").unwrap().parse().unwrap();
    let ended = Ended(pid);
    on_colors(fixture, pid, 16_000, Duration::from_secs(60));
    let bytes = available_bytes() / 100 * share as usize;
    let (begin, mut rounds) = (Instant::now(), 0);
    while begin.elapsed() < time {
        // Writing one byte of a page is enough to allocate its frame.
        let mut memory = vec![0u8; bytes];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        // The kernel compacts memory by itself when a large block is requested and none is free.
        let _ = fs::write(COMPACT, "1");
        rounds += 1;
        assert_eq!(
            std::hint::black_box(&memory).iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>(),
            bytes.div_ceil(4096) as u64
        );
    }
    let (on_color, off_color, immovable) = on_colors(fixture, pid, 16_000, Duration::from_secs(60));
    drop(exec.stdin.take());
    let counts = lines.next().unwrap().unwrap();
    assert!(exec.wait().unwrap().success());
    // The program has ended by itself, and another process may have its number now.
    std::mem::forget(ended);
    let outcome = fixture.outcome();
    println!(
        "{rounds} times {} MiB in {} s: {} pages drifted and were moved back in {} sweeps; then {on_color} on color, {off_color} off color, \
         {immovable} immovable; {counts}",
        bytes >> 20,
        time.as_secs(),
        outcome["drifted"],
        outcome["sweeps"]
    );
    assert!(counts.ends_with(" 0 wrong") && outcome["errors"] == Value::Array(Vec::new()), "{counts} {outcome}");
    if outcome["drifted"] == 0 {
        return Err(NotRun("the pressure moved no page, so none was moved back".to_owned()));
    }
    Ok(())
}

/// Has the kernel compact memory of which every other page is free, until `stop` is set.
fn compact_until(stop: &AtomicBool) {
    let pages = available_bytes() / 6 / page_bytes();
    while !stop.load(Ordering::Relaxed) {
        let mut arena = Arena::map(pages).unwrap();
        arena.bytes_mut().iter_mut().step_by(page_bytes()).for_each(|byte| *byte = 1);
        (0..pages as u32).step_by(2).for_each(|page| arena.release(page));
        for _ in 0..20 {
            if !stop.load(Ordering::Relaxed) {
                fs::write(COMPACT, "1").unwrap();
            }
        }
    }
}

/// Recolors a program again and again while memory is compacted. Pages that are being moved are then busy from time to time, after which
/// Linux 6.18 moves pages without reporting them.
fn compaction(fixture: &Fixture) -> Outcome {
    if fs::write(COMPACT, "1").is_err() {
        return Err(NotRun("only root may have memory compacted".to_owned()));
    }
    let mut program = Command::new(std::env::current_exe().unwrap());
    let program = program.env(ROLE, "steady").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let ended = Ended(program.id());
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("ready "));
    let time = Duration::from_secs(variable("COMPACTION_SECONDS", 4));
    let stop = AtomicBool::new(false);
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        scope.spawn(|| compact_until(&stop));
        let begin = Instant::now();
        let recolored = |colors: &&str| {
            fixture.isochrome("recolor", colors).args([&program.id().to_string(), "--json"]).output().unwrap()
        };
        let outputs = ["0-3", "4-7"].iter().cycle().take_while(|_| begin.elapsed() < time).map(recolored).collect();
        stop.store(true, Ordering::Relaxed);
        outputs
    });
    drop(program.stdin.take());
    let counts = lines.next().unwrap().unwrap();
    assert!(program.wait().unwrap().success());
    // The program has ended by itself, and another process may have its number now.
    std::mem::forget(ended);
    println!("{} recolorings; {counts}", outputs.len());
    assert!(counts.ends_with(" 0 wrong"), "{counts}");
    for output in outputs {
        assert!(output.status.success(), "{:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Checks that two outputs are the same. Keeps both if they are not, and says where they differ.
fn assert_same(colored: &[u8], plain: &[u8]) {
    if colored == plain {
        return;
    }
    let kept = tempfile::tempdir().unwrap().keep();
    fs::write(kept.join("colored"), colored).unwrap();
    fs::write(kept.join("plain"), plain).unwrap();
    let first = colored.iter().zip(plain).position(|(a, b)| a != b);
    let differing = colored.iter().zip(plain).filter(|(a, b)| a != b).count();
    panic!(
        "{} and {} bytes, the first difference at {first:?}, {differing} bytes differ; both are kept in {}",
        colored.len(),
        plain.len(),
        kept.display()
    );
}

/// Checks that `program` prints the same without and under `exec`. Prints which pages were immovable during the run.
fn same(fixture: &Fixture, program: &Path, arguments: &[&str]) -> Outcome {
    let command = |exec: bool| {
        let mut command = if exec {
            let mut command = fixture.isochrome("exec", "0-3");
            command.args(["--ready", "settle:100ms", "--interval", "200ms", "-o"]).arg(fixture.path("outcome.json"));
            command.arg("--").arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let plain = succeeding(command(false));
    let colored = command(true).spawn().unwrap();
    // The program is the only child of `exec`.
    let children = format!("/proc/{0}/task/{0}/children", colored.id());
    let mut report = Value::Null;
    let colored = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| colored.wait_with_output().unwrap());
        while !waiting.is_finished() {
            let pid = fs::read_to_string(&children).ok().and_then(|list| list.split_whitespace().next()?.parse().ok());
            if let Some(seen) = pid.and_then(|pid| fixture.inspect(pid)) {
                report = seen;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        waiting.join().unwrap()
    });
    assert!(colored.status.success(), "{}", String::from_utf8_lossy(&colored.stderr));
    assert_same(&colored.stdout, &plain.stdout);
    let outcome = fixture.outcome();
    let number = |key: &str| outcome[key].as_u64().unwrap();
    println!(
        "{}: {} of {} pages on colors 0-3, {} cannot be moved",
        program.display(),
        number("on_color"),
        number("resident"),
        immovable(&outcome)
    );
    for region in report["regions"].as_array().into_iter().flatten().filter(|region| region["immovable"] != 0) {
        println!("  {} pages of `{}`: {}", region["immovable"], region["name"], region["why"]);
    }
    if outcome["seconds_to_colors"].is_null() && outcome["errors"] == Value::Array(Vec::new()) {
        return Err(NotRun(format!("{} ended before it was on its colors", program.display())));
    }
    // The number of pages to move depends on chance: the kernel may hand out frames of these colors that an earlier program gave back.
    assert!(
        number("sweeps") > 0 && number("resident") > 50 && outcome["errors"] == Value::Array(Vec::new()),
        "{outcome}"
    );
    // A few pages may have come since the last look, such as those by which the program says its result.
    assert!(number("on_color") + immovable(&outcome) + 16 >= number("resident") * 995 / 1000, "{outcome}");
    Ok(())
}

fn x264(fixture: &Fixture) -> Outcome {
    if !is_there("x264") {
        return Err(NotRun("x264 is not installed; apt-get install x264".to_owned()));
    }
    let (width, height, frames) = (352usize, 288usize, 600usize);
    let mut clip = format!("YUV4MPEG2 W{width} H{height} F25:1 C420\n").into_bytes();
    for frame in 0..frames {
        clip.extend_from_slice(b"FRAME\n");
        // A pattern that moves, and some noise.
        let luma = |i: usize| (i % width * 2 + i / width * 3 + frame * 5 + i * i % 7) as u8;
        clip.extend((0..width * height).map(luma));
        clip.extend((0..width * height / 2).map(|i| (i / 40 + frame) as u8));
    }
    let input = fixture.path("clip.y4m");
    fs::write(&input, clip).unwrap();
    // x264 writes to standard output, because standard output is compared. Each frame is encoded by two threads: with threads that work on
    // frames of their own, x264 r3095 gives other output in half of all runs if a real-time program holds up one of its threads at times.
    same(
        fixture,
        Path::new("x264"),
        &[
            "--quiet",
            "--no-progress",
            "--preset",
            "slow",
            "--threads",
            "2",
            "--sliced-threads",
            "--muxer",
            "raw",
            "-o",
            "/dev/stdout",
            input.to_str().unwrap(),
        ],
    )
}

const GO: &str = r#"package main

import (
	"fmt"
	"sync"
)

func main() {
	var group sync.WaitGroup
	sums := make([]uint64, 8)
	for part := range sums {
		group.Add(1)
		go func(part int) {
			defer group.Done()
			kept := map[uint64][]uint64{}
			for i := uint64(0); i < 200000; i++ {
				kept[i%997] = append(kept[i%997], i*uint64(part+1))
			}
			for round := uint64(0); round < 300; round++ {
				for _, list := range kept {
					for _, value := range list {
						sums[part] += (value + round) % 1013
					}
				}
			}
		}(part)
	}
	group.Wait()
	fmt.Println(sums)
}
"#;

fn go(fixture: &Fixture) -> Outcome {
    if Command::new("go").arg("version").output().is_err() {
        return Err(NotRun("go is not installed; apt-get install golang-go".to_owned()));
    }
    let (source, program) = (fixture.path("sums.go"), fixture.path("sums"));
    fs::write(&source, GO).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "0").env("GO111MODULE", "off");
    succeeding(build);
    same(fixture, &program, &[])
}

const MUSL: &str = r#"#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>

static void *work(void *argument)
{
    unsigned long sum = 0, part = (unsigned long)argument;
    unsigned *kept = malloc(400000 * sizeof *kept);
    for (int round = 0; round < 4000; round++) {
        for (unsigned i = 0; i < 400000; i++)
            kept[i] = i * part + round;
        for (unsigned i = 0; i < 400000; i += 7)
            sum += kept[i];
    }
    free(kept);
    return (void *)sum;
}

int main(void)
{
    pthread_t threads[4];
    for (unsigned long i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 4; i++) {
        void *sum;
        pthread_join(threads[i], &sum);
        printf("%lu\n", (unsigned long)sum);
    }
    return 0;
}
"#;

fn musl(fixture: &Fixture) -> Outcome {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        return Err(NotRun("musl-gcc is not installed; apt-get install musl-tools".to_owned()));
    }
    let (source, program) = (fixture.path("sums.c"), fixture.path("sums"));
    fs::write(&source, MUSL).unwrap();
    let mut build = Command::new("musl-gcc");
    build.args(["-O1", "-static", "-pthread", "-o"]).arg(&program).arg(&source);
    succeeding(build);
    same(fixture, &program, &[])
}

fn pair(fixture: &Fixture) -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Err(NotRun("the programs of examples/pair read the counter of x86-64".to_owned()));
    }
    if ["make", "cc", "chrt", "taskset", "mkfifo"].iter().any(|program| !is_there(program)) {
        return Err(NotRun("make, cc, chrt, taskset or mkfifo is missing".to_owned()));
    }
    if !Command::new("chrt").args(["-f", "40", "true"]).status().unwrap().success() {
        return Err(NotRun("no real-time priority may be had here".to_owned()));
    }
    let runner = std::env::current_exe().unwrap().with_file_name("../examples/pair");
    if !runner.exists() {
        return Err(NotRun("the example is not built; cargo build -p isochrome-cli --example pair".to_owned()));
    }
    let mut make = Command::new("make");
    make.arg("-C").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pair")).args(["programs", "-B"]);
    make.arg(format!("OUT={}", fixture.folder.path().display()));
    succeeding(make);
    let (runs, blocks, jobs) = (2, 6, 20);
    let mut pair = Command::new(runner);
    pair.env("ISOCHROME_RUNTIME_DIR", fixture.folder.path()).args([
        "--isochrome",
        env!("CARGO_BIN_EXE_isochrome"),
        "--json",
    ]);
    pair.arg("--programs")
        .arg(fixture.folder.path())
        .arg("--trust-palette")
        .arg("--palette")
        .arg(fixture.path("bits.json"));
    pair.arg("--csv").arg(fixture.path("pair.csv"));
    for (option, count) in [("--runs", runs), ("--blocks", blocks), ("--jobs", jobs), ("--cpu", 0), ("--seed", 7)] {
        pair.args([option, &count.to_string()]);
    }
    let output = pair.stdout(Stdio::piped()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    // Colors by frame bits need not be those of the cache, so any effect is accepted here.
    assert!(matches!(output.status.code(), Some(0 | 2 | 3)), "{:?} {message}", output.status);
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    for effect in outcome["effects"].as_array().unwrap() {
        assert_eq!(effect["blocks"], runs * blocks, "{outcome}");
    }
    let table = fs::read_to_string(fixture.path("pair.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 2 * runs * blocks * jobs);
    let lost = |line: &str| line.split(',').nth(6).and_then(|lost| lost.parse::<u64>().ok());
    assert!(table.lines().skip(1).all(|line| lost(line).is_some_and(|lost| lost <= 1024)), "{table}");
    let placements = outcome["placements"].as_array().unwrap();
    assert_eq!(placements.len(), 2 * runs);
    for placement in placements {
        let number = |key: &str| placement[key].as_u64().unwrap();
        assert!(number("on_color") + immovable(placement) >= number("resident") * 995 / 1000, "{placement}");
        assert!(number("on_color") > 100, "{placement}");
    }
    std::io::stdout().write_all(&output.stdout).unwrap();
    Ok(())
}
