//! Programs that run are moved to other frames, and do not notice.
//!
//! Colors here are bits of the frame number: they need no measurement, and are the same on every machine. A test that the
//! machine cannot run is reported as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure. `RECOLOR_ROUNDS` sets how
//! often the torture tests repeat (50).

mod fixture;
mod trial;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::{Value, json};

use fixture::Fixture;
use trial::{NotRun, Outcome, run as run_trials, trial};

fn main() -> ExitCode {
    let trials = vec![
        fixture_trial("a_program_recolored_again_and_again_reads_what_it_wrote", recolored_again_and_again),
        fixture_trial(
            "a_program_whose_recoloring_is_killed_reads_what_it_wrote_after_a_repair",
            killed_again_and_again,
        ),
        fixture_trial("kernels_that_cannot_move_pages_recolor_all_the_same", recolored_without_moves),
        fixture_trial("a_program_that_reads_by_io_uring_reads_what_is_in_the_file", reading_by_rings),
        fixture_trial("a_program_whose_recoloring_is_killed_as_it_reads_by_io_uring_goes_on", killed_with_rings),
        fixture_trial("a_program_of_java_with_24_threads_keeps_its_data", java),
        fixture_trial("a_program_that_begins_others_all_the_time_is_recolored", beginning_others),
        fixture_trial("a_program_that_is_about_to_open_a_file_is_recolored", opening),
        fixture_trial("two_recolorings_of_a_program_leave_each_others_memory_alone", by_two_at_a_time),
        fixture_trial("a_program_finds_frames_of_a_color_that_another_one_has_taken_all_around", drought),
        fixture_trial("a_program_with_many_mappings_stands_still_for_short_times", many_mappings),
        fixture_trial("a_large_mapping_that_may_only_be_read_is_recolored_in_few_pauses", large_library),
        fixture_trial("a_recoloring_ends_when_it_is_asked_to", interrupted),
        fixture_trial("what_may_be_written_to_by_the_kernel_is_recolored_but_for_what_is_pinned", asynchronous),
        fixture_trial("what_must_not_be_touched_is_refused_and_goes_on", refusals),
        fixture_trial("a_program_whose_filter_allows_the_calls_is_recolored", filtered),
        fixture_trial("a_dry_run_stops_nothing_and_a_second_sweep_finds_nothing", dry_run_and_second_sweep),
        fixture_trial("exec_passes_on_output_input_status_and_signals", exec_is_transparent),
        fixture_trial("exec_moves_when_the_program_says_that_it_is_ready", exec_waits_until_ready),
        fixture_trial("exec_keeps_new_memory_and_children_on_the_colors", exec_follows),
        fixture_trial("exec_goes_along_with_a_program_that_begins_others_in_its_place", exec_goes_along),
        fixture_trial("real_programs_give_the_same_output_on_their_colors", real_programs),
        fixture_trial("redis_serves_a_benchmark_on_its_colors", redis),
    ];
    run_trials(trials)
}

fn rounds() -> usize {
    std::env::var("RECOLOR_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(50)
}

fn fixture_trial(name: &'static str, test: fn(&Fixture) -> Outcome) -> Trial {
    trial(name, move || test(&Fixture::new()?))
}

impl Fixture {
    fn recolor(&self, pid: u32, colors: &str) -> Command {
        let mut command = self.isochrome("recolor", colors);
        command.args([&pid.to_string(), "--json"]);
        command
    }

    /// The report of a recoloring that must succeed.
    fn recolored(&self, pid: u32, colors: &str) -> Value {
        json(&succeeding(self.recolor(pid, colors)))
    }

    /// How many pages a recoloring would move now.
    fn expected(&self, pid: u32, colors: &str) -> u64 {
        let mut dry = self.recolor(pid, colors);
        dry.arg("--dry-run");
        json(&succeeding(dry))["expected"]["pages"].as_u64().unwrap()
    }

    /// The report of a recoloring that must succeed, by a command that `changed` has changed, and how many pages it moved.
    fn moved(&self, pid: u32, colors: &str, changed: impl Fn(&mut Command)) -> (Value, u64) {
        let expected = self.expected(pid, colors);
        let mut command = self.recolor(pid, colors);
        changed(&mut command);
        let report = json(&succeeding(command));
        let moved = expected.saturating_sub(report["off_color"].as_u64().unwrap());
        (report, moved)
    }

    fn repair(&self, pid: u32) -> bool {
        let mut command = self.tool();
        command.args(["recolor", &pid.to_string(), "--repair", "--json"]);
        json(&succeeding(command))["repaired"].as_bool().unwrap()
    }

    /// The target, built with the machine's C compiler.
    fn target(&self, mode: &str) -> Result<Target, NotRun> {
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
        let mut said = BufReader::new(process.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        if line != "ready\n" {
            return Err(NotRun(format!("this kernel does not do `{mode}`: {}", process.wait().unwrap())));
        }
        let areas = match mode {
            "rings" => 6,
            "vforks" => 2,
            "mappings" | "library" => 1,
            _ => 8 + u64::from(mode == "torture"),
        };
        Ok(Target { process, counts, forks: mode == "torture", areas, _said: said })
    }
}

/// A process that is ended when the test is.
struct Target {
    process: Child,
    counts: PathBuf,
    /// Whether it forks.
    forks: bool,
    /// How many of its threads write memory.
    areas: u64,
    _said: BufReader<std::process::ChildStdout>,
}

/// What a target has counted: see its source.
#[derive(Debug)]
struct Counts {
    rounds: u64,
    wrong: u64,
    broken_off: u64,
    broken_off_epoll: u64,
    waits: u64,
    forks: u64,
    areas: u64,
}

impl Target {
    fn pid(&self) -> u32 {
        self.process.id()
    }

    fn counts(&self) -> Counts {
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

    /// Waits until every thread that works, waits or forks has gone on: what it says then.
    fn goes_on(&self) -> Counts {
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

/// The output of a command that must succeed. One thread of the target joins huge pages, for which it waits for the kernel's own threads,
/// where it cannot be stopped: on a busy machine the tool may say so, and is asked again.
fn succeeding(mut command: Command) -> Output {
    let mut output = command.output().expect("the command starts");
    for _ in 0..20 {
        if !String::from_utf8_lossy(&output.stderr).contains("does not stop") {
            break;
        }
        output = command.output().expect("the command starts");
    }
    assert!(output.status.success(), "{:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

fn sum(report: &Value, key: &str) -> u64 {
    report["regions"].as_array().unwrap().iter().map(|region| region[key].as_u64().unwrap()).sum()
}

/// Pages that were left, those of mappings that are never moved aside.
fn left_behind(report: &Value) -> Vec<&Value> {
    let fixed = |why: &str| why.starts_with("is ") || why.starts_with("holds what");
    let regions = report["regions"].as_array().unwrap().iter();
    regions.filter(|region| region["why"].as_str().is_some_and(|why| !fixed(why))).collect()
}

/// One to eight of the 16 colors.
fn random_colors(rng: &mut fastrand::Rng) -> String {
    let mut colors: Vec<u32> = (0..16).collect();
    rng.shuffle(&mut colors);
    colors.truncate(rng.usize(1..=8));
    colors.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn recolored_again_and_again(fixture: &Fixture) -> Outcome {
    torture(fixture, rounds(), |_| {})
}

/// The same by the way for kernels without UFFDIO_MOVE, in a fifth of the rounds; and killed in the midst of it.
fn recolored_without_moves(fixture: &Fixture) -> Outcome {
    let without = |command: &mut Command| {
        command.env("ISOCHROME_WITHOUT_MOVE", "1");
    };
    torture(fixture, rounds().div_ceil(5), without)?;
    kills(fixture, rounds().div_ceil(5), without)
}

fn torture(fixture: &Fixture, rounds: usize, changed: impl Fn(&mut Command)) -> Outcome {
    let target = fixture.target("torture")?;
    target.goes_on();
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut moved, mut pauses) = (0, Vec::new());
    for round in 0..rounds {
        let (report, pages) = fixture.moved(target.pid(), &random_colors(&mut rng), &changed);
        assert_eq!(left_behind(&report), Vec::<&Value>::new(), "in round {round}");
        moved += pages;
        pauses.extend(pauses_of(&report));
        let counts = target.counts();
        assert_eq!((counts.wrong, counts.broken_off, counts.broken_off_epoll), (0, 0, 0), "in round {round}");
    }
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off, counts.broken_off_epoll), (0, 0, 0));
    pauses.sort_unstable();
    println!("{rounds} recolorings, {moved} pages, median pause {} us, {counts:?}", pauses[pauses.len() / 2] / 1000);
    // Each round but the first finds pages on other colors.
    assert!(moved > 200 * rounds as u64, "{moved}");
    Ok(())
}

/// A target that is not the one tortured otherwise: recolored again and again, it counts nothing wrong.
fn recolored_without_harm(fixture: &Fixture, mode: &str, rounds: usize) -> Outcome {
    let target = fixture.target(mode)?;
    target.goes_on();
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut moved, mut pauses) = (0, Vec::new());
    for round in 0..rounds {
        let (report, pages) = fixture.moved(target.pid(), &random_colors(&mut rng), |_| {});
        moved += pages;
        pauses.extend(pauses_of(&report));
        let counts = target.counts();
        assert_eq!((counts.wrong, counts.broken_off), (0, 0), "in round {round}");
    }
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    pauses.sort_unstable();
    let at = |share: f64| pauses[((pauses.len() - 1) as f64 * share) as usize] / 1000;
    println!(
        "{mode}: {rounds} recolorings, {moved} pages, {} pauses: median {} us, 99 % {} us, longest {} us, {counts:?}",
        pauses.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
    assert!(moved > 50 * rounds as u64, "{moved}");
    Ok(())
}

fn pauses_of(report: &Value) -> Vec<u64> {
    report["pauses_ns"].as_array().unwrap().iter().map(|pause| pause.as_u64().unwrap()).collect()
}

fn reading_by_rings(fixture: &Fixture) -> Outcome {
    recolored_without_harm(fixture, "rings", rounds())
}

fn killed_with_rings(fixture: &Fixture) -> Outcome {
    kill_target(fixture, "rings", rounds().div_ceil(2), |_| {})
}

fn beginning_others(fixture: &Fixture) -> Outcome {
    recolored_without_harm(fixture, "vforks", rounds().div_ceil(5))
}

/// Memory that one recoloring has mapped in the program for its work is not taken for the program's own by another one.
fn by_two_at_a_time(fixture: &Fixture) -> Outcome {
    let target = fixture.target("torture")?;
    target.goes_on();
    let resident = |report: &Value| report["resident"].as_u64().unwrap();
    let own = resident(&fixture.recolored(target.pid(), "0-3"));
    for round in 0..rounds().div_ceil(5) as u32 {
        let color = (4 + 2 * (round % 6)).to_string();
        let mut other = fixture.recolor(target.pid(), &color);
        let other = other.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
        // Somewhere within its work.
        std::thread::sleep(Duration::from_millis(u64::from(5 + 7 * (round % 10))));
        let report = fixture.recolored(target.pid(), "0-3");
        other.wait_with_output().unwrap();
        assert!(resident(&report) < 2 * own, "{} pages where the program has {own}", resident(&report));
    }
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off, counts.broken_off_epoll), (0, 0, 0));
    Ok(())
}

/// Nobody opens the other end of the FIFO, so the program waits in open(2) and has reserved a descriptor that is not open yet.
fn opening(fixture: &Fixture) -> Outcome {
    let fifo = fixture.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo starts").success());
    let mut process = Command::new("sh").args(["-c", "read line < $0", fifo.to_str().unwrap()]).spawn().unwrap();
    let waits = || {
        let state = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        state.contains(") S ") && fs::metadata(format!("/proc/{}/fd", process.id())).unwrap().len() > 3
    };
    let begin = Instant::now();
    while !waits() {
        assert!(begin.elapsed() < Duration::from_secs(10), "the program does not wait");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The way that is dangerous for memory that the kernel writes to meanwhile.
    let (report, moved) = fixture.moved(process.id(), "0-3", |command| {
        command.env("ISOCHROME_WITHOUT_MOVE", "1");
    });
    let left = left_behind(&report).into_iter().cloned().collect::<Vec<_>>();
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(left, Vec::<Value>::new());
    assert!(moved > 50, "{moved}");
    Ok(())
}

/// A program holds the frames of one color in 1 GiB, and gives back all that lie between them: the kernel hands out these first.
fn drought(fixture: &Fixture) -> Outcome {
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if thp.is_empty() || thp.contains("[never]") {
        return Err(NotRun("the kernel has no huge pages, which frames of all colors come with".to_owned()));
    }
    let holder = fixture.target("holder")?;
    let target = fixture.target("alone")?;
    target.goes_on();
    let (report, moved) = fixture.moved(target.pid(), "5", |_| {});
    println!("{moved} pages, {} KiB touched", report["touched_bytes_max"].as_u64().unwrap() / 1024);
    assert_eq!(left_behind(&report), Vec::<&Value>::new());
    assert_eq!(report["off_color"], 0);
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    drop(holder);
    Ok(())
}

fn many_mappings(fixture: &Fixture) -> Outcome {
    let target = fixture.target("mappings")?;
    target.goes_on();
    let (report, moved) = fixture.moved(target.pid(), "0-3", |_| {});
    let pauses = pauses_of(&report);
    let longest = pauses.iter().max().unwrap();
    println!("{moved} pages in {} pauses, the longest {} us", pauses.len(), longest / 1000);
    assert!(moved > 10_000);
    // Twelve times what is allowed, for machines with other things to do; the benchmark says what it is.
    assert!(*longest < 250_000_000, "{longest} ns");
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    Ok(())
}

/// Making all of a mapping writable takes as long as a pause may, so that each moved a single page.
fn large_library(fixture: &Fixture) -> Outcome {
    let target = fixture.target("library")?;
    target.goes_on();
    let mappings = || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
        maps.lines().filter(|line| line.ends_with("counts-library.so")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = mappings();
    let (report, moved) = fixture.moved(target.pid(), "0-7", |_| {});
    let pauses = pauses_of(&report).len() as u64;
    println!("{moved} pages in {pauses} pauses");
    // Half of the 65 536 pages, unless the file was given frames that a program before it has left on these colors.
    assert!(moved > 5_000 && report["off_color"].as_u64().unwrap() < 100, "{report}");
    assert!(20 * pauses < moved, "{moved} pages in {pauses} pauses");
    // What was split for the moves is one mapping again.
    assert_eq!((mappings(), before.len()), (before, 1));
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0));
    Ok(())
}

/// Fills tables with random bytes in 24 threads and checks the sum of each before it is dropped.
const JAVA: &str = r#"
import java.util.Random;
import java.util.zip.CRC32;

public class Sums {
    static long sum(byte[] bytes) {
        CRC32 sum = new CRC32();
        sum.update(bytes);
        return sum.getValue();
    }

    public static void main(String[] arguments) throws Exception {
        for (int number = 0; number < 24; number++) {
            Random random = new Random(number);
            Thread thread = new Thread(() -> {
                byte[][] kept = new byte[256][];
                long[] sums = new long[256];
                for (;;) {
                    int at = random.nextInt(256);
                    if (kept[at] != null && sum(kept[at]) != sums[at]) {
                        System.out.println("wrong");
                        System.exit(1);
                    }
                    kept[at] = new byte[1 + random.nextInt(8192)];
                    random.nextBytes(kept[at]);
                    sums[at] = sum(kept[at]);
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        System.out.println("ready");
        System.in.read();
        System.out.println("right");
    }
}
"#;

fn java(fixture: &Fixture) -> Outcome {
    let source = fixture.path("Sums.java");
    fs::write(&source, JAVA).unwrap();
    let mut command = Command::new("java");
    command.args(["-Xmx128m", "-XX:+UseG1GC"]).arg(&source).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut process) = command.spawn() else { return Err(NotRun("java is not installed".to_owned())) };
    let mut said = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    if line != "ready\n" {
        let _ = process.kill();
        return Err(NotRun(format!("java does not run a program from its source: {}", process.wait().unwrap())));
    }
    let rounds = rounds().div_ceil(10);
    let (mut moved, mut pauses) = (0, Vec::new());
    for round in 0..rounds {
        // Half of the colors: fewer would need more memory than the tests touch.
        let colors = if round % 2 == 0 { "0-7" } else { "8-15" };
        let (report, pages) = fixture.moved(process.id(), colors, |_| {});
        moved += pages;
        pauses.extend(pauses_of(&report));
        assert_eq!(process.try_wait().unwrap(), None, "the program has ended");
    }
    drop(process.stdin.take());
    line.clear();
    said.read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), process.wait().unwrap().code()), ("right\n", Some(0)));
    pauses.sort_unstable();
    println!(
        "java: {rounds} recolorings, {moved} pages, {} pauses, median {} us",
        pauses.len(),
        pauses[pauses.len() / 2] / 1000
    );
    Ok(())
}

/// SIGTERM at any moment, also while another one is waited for: the tool ends, and nothing is left behind.
fn interrupted(fixture: &Fixture) -> Outcome {
    let target = fixture.target("rings")?;
    target.goes_on();
    let mut rng = fastrand::Rng::with_seed(5);
    let begin = Instant::now();
    fixture.recolored(target.pid(), "0-3");
    let whole = begin.elapsed();
    let lock = fs::File::create(fixture.path("recolor.lock")).unwrap();
    for round in 0..rounds().div_ceil(5) {
        if round % 4 == 3 {
            lock.lock().unwrap();
        }
        let mut tool = fixture.recolor(target.pid(), &random_colors(&mut rng));
        let mut tool = tool.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(rng.f64()));
        let asked = Instant::now();
        assert!(Command::new("kill").arg(tool.id().to_string()).status().unwrap().success());
        while tool.try_wait().unwrap().is_none() {
            // The documentation says two seconds; a loaded machine gets more.
            assert!(asked.elapsed() < Duration::from_secs(10), "in round {round} the tool does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        lock.unlock().unwrap();
        assert!(!fixture.repair(target.pid()), "in round {round} something is left to repair");
        let counts = target.goes_on();
        assert_eq!((counts.wrong, counts.broken_off), (0, 0), "in round {round}");
    }
    assert_eq!(journals(fixture), Vec::<String>::new());
    Ok(())
}

fn asynchronous(fixture: &Fixture) -> Outcome {
    let mut untried = Vec::new();
    for mode in ["uring", "pinned", "aio", "device"] {
        let mut target = match fixture.target(mode) {
            Ok(target) => target,
            Err(NotRun(why)) => {
                untried.push(why);
                continue;
            }
        };
        // Without a way to move pages under it, it is left alone as a whole.
        let before = outside(target.pid());
        let mut without = fixture.recolor(target.pid(), "0-3");
        let output = without.env("ISOCHROME_WITHOUT_MOVE", "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("UFFDIO_MOVE") && said.contains("hint:"), "{said}");
        assert_eq!(outside(target.pid()), before, "{mode}");
        let (report, moved) = fixture.moved(target.pid(), "0-3", |_| {});
        let left = |why: &str| report["immovable"][why].as_u64().unwrap_or(0);
        println!("{mode}: {moved} moved, {} pinned", left("is pinned or busy"));
        assert!(moved > 0, "{mode}: {report}");
        assert!(mode == "pinned" || left("is pinned or busy") == 0, "{mode}: {report}");
        // Of 16 pages pinned some have the colors by chance.
        assert!(mode != "pinned" || left("is pinned or busy") > 0, "{mode}: {report}");
        assert_eq!(target.process.try_wait().unwrap(), None, "{mode}");
    }
    if untried.is_empty() { Ok(()) } else { Err(NotRun(format!("the others are moved: {}", untried.join("; ")))) }
}

fn killed_again_and_again(fixture: &Fixture) -> Outcome {
    kills(fixture, rounds(), |_| {})
}

fn kills(fixture: &Fixture, rounds: usize, changed: impl Fn(&mut Command)) -> Outcome {
    kill_target(fixture, "torture", rounds, changed)
}

fn kill_target(fixture: &Fixture, mode: &str, rounds: usize, changed: impl Fn(&mut Command)) -> Outcome {
    let target = fixture.target(mode)?;
    target.goes_on();
    let mut rng = fastrand::Rng::with_seed(2);
    let begin = Instant::now();
    fixture.recolored(target.pid(), "0-3");
    let whole = begin.elapsed();
    let (mut repaired, mut finished) = (0, 0);
    for round in 0..rounds {
        let mut command = fixture.recolor(target.pid(), &random_colors(&mut rng));
        changed(&mut command);
        let mut tool = command.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(rng.f64()));
        let _ = tool.kill();
        finished += usize::from(tool.wait().unwrap().success());
        repaired += usize::from(fixture.repair(target.pid()));
        let counts = target.goes_on();
        // A tool that is killed in the instant between stopping a thread and setting what it goes on with leaves the one call that
        // breaks off when stopped.
        assert_eq!((counts.wrong, counts.broken_off), (0, 0), "in round {round}: {counts:?}");
    }
    println!("{rounds} kills: {finished} came too late, {repaired} left something to repair, {:?}", target.counts());
    let report = fixture.recolored(target.pid(), "4-7");
    assert!(mode != "torture" || left_behind(&report).is_empty(), "{report}");
    let maps = fs::read_to_string(format!("/proc/{}/smaps", target.pid())).unwrap();
    assert!(!maps.contains(" um"), "a userfaultfd is left");
    assert_eq!(journals(fixture), Vec::<String>::new());
    Ok(())
}

/// Journals that are left.
fn journals(fixture: &Fixture) -> Vec<String> {
    let files = fs::read_dir(fixture.folder.path()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("recolor-")).collect()
}

fn refusals(fixture: &Fixture) -> Outcome {
    let refused = |mut command: Command, what: &str| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(what) && said.contains("hint:"), "`{what}` is not in: {said}");
    };
    let target = fixture.target("torture")?;
    target.goes_on();
    let pid = target.pid();
    refused(fixture.recolor(i32::MAX as u32, "0-3"), "there is no process");
    refused(fixture.recolor(2, "0-3"), "thread of the kernel");
    refused(fixture.recolor(pid, "12-16"), "out of range");
    refused(fixture.recolor(pid, ""), "no colors");
    let mut little = fixture.recolor(pid, "3");
    little.args(["--level", "3"]);
    refused(little, "the palette is of level 2");
    let mut little = fixture.tool();
    little.args(["recolor", &pid.to_string(), "--colors", "3", "--max-memory", "64K", "--trust-palette", "--palette"]);
    little.arg(fixture.path("bits.json"));
    refused(little, "the limit is 64 KiB");
    for (palette, what) in [
        (r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"hidden"}"#, "holds no colors of frames"),
        (
            r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"table","frames":[],"colors_of":[],"boot_id":"x"}"#,
            "not a whole",
        ),
        (
            r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits","fingerprint":"of another"}"#,
            "another machine",
        ),
        (
            r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"boot_id":"an earlier one","rule":"table","frames":[],"frame_colors":[]}"#,
            "this is another",
        ),
        ("{", "not a JSON object"),
    ] {
        let path = fixture.path("other.json");
        fs::write(&path, palette).unwrap();
        let mut command = fixture.tool();
        command.args(["recolor", &pid.to_string(), "--colors", "3", "--palette"]).arg(path);
        refused(command, what);
    }
    let as_nobody = || {
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]);
        nobody
    };
    let tool = fixture.path("isochrome");
    fs::copy(env!("CARGO_BIN_EXE_isochrome"), &tool).unwrap();
    for path in [fixture.folder.path(), &tool] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let folder = fixture.path("nobodys");
    fs::create_dir(&folder).and_then(|()| std::os::unix::fs::chown(&folder, Some(65534), Some(65534))).unwrap();
    let by_nobody = |pid: u32| {
        let mut command = as_nobody();
        command.env("ISOCHROME_RUNTIME_DIR", &folder).arg(&tool);
        command.args(["recolor", &pid.to_string(), "--colors", "0", "--trust-palette", "--palette"]);
        command.arg(fixture.path("bits.json"));
        command
    };
    refused(by_nobody(pid), "may not be traced");
    let mut own = as_nobody().args(["sleep", "1000"]).spawn().unwrap();
    let comm = format!("/proc/{}/comm", own.id());
    while fs::read_to_string(&comm).unwrap() != "sleep\n" {
        std::thread::sleep(Duration::from_millis(5));
    }
    refused(by_nobody(own.id()), "frame numbers read as zero");
    own.kill().and_then(|()| own.wait()).unwrap();
    let mut untried = Vec::new();
    for (mode, what) in [
        ("seccomp", "is not allowed the system call `restart_syscall`"),
        ("strict", "the filter cannot be read"),
        ("traced", "is traced by process"),
    ] {
        match fixture.target(mode) {
            Ok(other) => {
                let before = outside(other.pid());
                refused(fixture.recolor(other.pid(), "0-3"), what);
                assert_eq!(outside(other.pid()), before, "{mode}");
            }
            Err(NotRun(why)) => untried.push(why),
        }
    }
    match small_program(fixture) {
        Some(mut other) => {
            // It counts as started while the kernel still maps it.
            let begin = Instant::now();
            while !outside(other.id()).0.contains("[vdso]") && begin.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let before = outside(other.id());
            refused(fixture.recolor(other.id(), "0-3"), "32-bit program");
            assert_eq!((outside(other.id()), other.try_wait().unwrap()), (before, None));
            other.kill().and_then(|()| other.wait()).unwrap();
        }
        None => untried.push("32-bit programs do not run here".to_owned()),
    }
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off, counts.broken_off_epoll), (0, 0, 0));
    if untried.is_empty() { Ok(()) } else { Err(NotRun(format!("the others are refused: {}", untried.join("; ")))) }
}

fn filtered(fixture: &Fixture) -> Outcome {
    let mut target = fixture.target("filtered")?;
    let (report, moved) = fixture.moved(target.pid(), "0-3", |_| {});
    assert!(moved > 0);
    assert_eq!(left_behind(&report), Vec::<&Value>::new());
    assert_eq!(target.process.try_wait().unwrap(), None);
    Ok(())
}

/// What of a process can be seen from outside that a recoloring would change: its mappings, its threads, who traces it.
fn outside(pid: u32) -> (String, usize, String) {
    let text = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let tracer = text("status").lines().find(|line| line.starts_with("TracerPid")).unwrap().to_owned();
    (text("maps"), fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(), tracer)
}

/// The smallest 32-bit program: it waits. `None` where the kernel does not run such programs.
fn small_program(fixture: &Fixture) -> Option<Child> {
    // mov eax, SYS_pause (29 on i386); int 0x80; jmp back.
    const CODE: [u8; 9] = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];
    const BASE: u32 = 0x0804_8000;
    const HEADERS: u32 = 52 + 32;
    let mut program = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves = |program: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|v| program.extend(v.to_le_bytes()));
    let words = |program: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|v| program.extend(v.to_le_bytes()));
    // An executable for the i386, its entry, where its one segment is described.
    halves(&mut program, &[2, 3]);
    words(&mut program, &[1, BASE + HEADERS, 52, 0, 0]);
    halves(&mut program, &[52, 32, 1, 0, 0, 0]);
    let bytes = HEADERS + CODE.len() as u32;
    words(&mut program, &[1, 0, BASE, BASE, bytes, bytes, 5, 0x1000]);
    program.extend(CODE);
    let path = fixture.path("small");
    fs::write(&path, program).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    Command::new(path).spawn().ok()
}

fn dry_run_and_second_sweep(fixture: &Fixture) -> Outcome {
    // A fork gives the program other frames for what it writes next, which would be found as well.
    let target = fixture.target("alone")?;
    target.goes_on();
    let mut dry = fixture.recolor(target.pid(), "5-8");
    dry.arg("--dry-run");
    let planned = json(&succeeding(dry));
    assert_eq!((&planned["event"], &planned["moved"]), (&json!("dry_run"), &json!(false)));
    let pages = sum(&planned, "moved");
    assert!(planned["pauses_ns"].as_array().unwrap().is_empty() && pages > 500, "{planned}");
    assert_eq!(planned["expected"]["pages"].as_u64(), Some(pages));
    assert!(!fixture.repair(target.pid()), "there is nothing to repair");
    let (_, moved) = fixture.moved(target.pid(), "5-8", |_| {});
    let (on_color, off_color, immovable) = on_color(fixture, target.pid(), "5-8");
    println!("{moved} moved; then {on_color} on color, {off_color} off color, {immovable} immovable");
    assert!(on_color as f64 >= 0.995 * (on_color + off_color) as f64, "{on_color} on color, {off_color} off color");
    Ok(())
}

fn exec_is_transparent(fixture: &Fixture) -> Outcome {
    let exec = |script: &str| {
        let mut command = fixture.isochrome("exec", "0-3");
        command.args(["--ready", "settle:50ms", "--interval", "100ms", "--", "sh", "-c", script]);
        command
    };
    let output = exec("echo out; echo err >&2; sleep 0.5; exit 7").output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(7), &b"out\n"[..]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("err\n") && said.contains("sweeps"), "{said}");
    let mut child = exec("read line; echo \"$line\"").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through\n");
    // A signal that ends the program ends the tool alike.
    let output = exec("sleep 0.3; kill -KILL $$").output().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(9));
    // One sent to the tool reaches the program.
    let mut child = exec("trap 'echo caught; exit 3' TERM; echo begun; while :; do sleep 0.05; done")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    said.read_to_string(&mut line).unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("begun\ncaught\n", Some(3)));
    let mut missing = fixture.isochrome("exec", "0-3");
    let output = missing.args(["--", "/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be started"));
    let mut not_executable = fixture.isochrome("exec", "0-3");
    let output = not_executable.arg(fixture.path("bits.json")).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    // With --strict it does not start where it cannot get its colors; without, it runs all the same.
    let asked = |strict: bool| {
        let mut command = fixture.isochrome("exec", "0-16");
        command.args(strict.then_some("--strict")).args(["sh", "-c", "echo ran; exit 7"]).output().unwrap()
    };
    let [strict, not] = [true, false].map(asked);
    assert_eq!((strict.status.code(), &*strict.stdout), (Some(125), &b""[..]));
    assert_eq!((not.status.code(), &*not.stdout), (Some(7), &b"ran\n"[..]));
    let said = String::from_utf8_lossy(&not.stderr).into_owned();
    assert!(said.contains("the program runs, but is not on its colors: ") && said.contains("out of range"), "{said}");
    Ok(())
}

fn exec_waits_until_ready(fixture: &Fixture) -> Outcome {
    let scripts = [
        ("line:now", "sleep 0.3; echo now; sleep 1", "now\n"),
        ("signal", "sleep 0.3; kill -USR1 $PPID; sleep 1", ""),
        ("settle:100ms", "sleep 1", ""),
    ];
    for (ready, script, said) in scripts {
        let outcome = fixture.path("outcome.json");
        let mut command = fixture.isochrome("exec", "0-3");
        command.args(["--ready", ready, "-o"]).arg(&outcome).args(["--", "sh", "-c", script]);
        let output = succeeding(command);
        assert_eq!(String::from_utf8_lossy(&output.stdout), said);
        let outcome: Value = serde_json::from_str(&fs::read_to_string(outcome).unwrap()).unwrap();
        let at = outcome["seconds_to_colors"].as_f64().unwrap_or_else(|| panic!("{ready}: {outcome}"));
        assert!(at >= if ready.starts_with("settle") { 0.1 } else { 0.3 }, "{ready}: {outcome}");
        assert!(outcome["resident"].as_u64().unwrap() > 100, "{ready}: {outcome}");
    }
    Ok(())
}

fn exec_goes_along(fixture: &Fixture) -> Outcome {
    // As wrappers do, again and again; colors are seen to all the time, so that some of it is under way whenever another one begins.
    let script = fixture.path("again.sh");
    // The last thirty stay for long enough to be moved.
    let text = "n=$1; [ $n = 0 ] && exec echo end\n[ $n -lt 30 ] && sleep 0.1\nexec bash \"$0\" $((n - 1))\n";
    fs::write(&script, text).unwrap();
    let outcome = fixture.path("outcome.json");
    let mut command = fixture.isochrome("exec", "0-3");
    command.args(["--ready", "settle:1ms", "--interval", "1ms", "-o"]).arg(&outcome);
    command.args(["--", "bash"]).arg(&script).arg("300");
    assert_eq!(succeeding(command).stdout, b"end\n");
    let outcome: Value = serde_json::from_str(&fs::read_to_string(outcome).unwrap()).unwrap();
    // A sweep takes several stops, between any of which another program may begin: it is given up then, and does no harm.
    assert!(outcome["sweeps"].as_u64().unwrap() > 5, "{outcome}");
    assert_eq!(outcome["errors"], serde_json::json!([]), "{outcome}");
    println!("{outcome}");
    Ok(())
}

/// Shares of the resident pages of `pid` that have `colors` or cannot be moved, by a look that stops nothing.
fn on_color(fixture: &Fixture, pid: u32, colors: &str) -> (u64, u64, u64) {
    let mut look = fixture.recolor(pid, colors);
    look.arg("--dry-run");
    let report = json(&succeeding(look));
    (sum(&report, "on_color"), sum(&report, "moved"), sum(&report, "immovable"))
}

fn exec_follows(fixture: &Fixture) -> Outcome {
    if Command::new("python3").arg("--version").output().is_err() {
        return Err(NotRun("python3 is not installed".to_owned()));
    }
    // A parent that grows, and a child that does, too; each says when it has grown, and waits for the end of its input.
    let grow = "import os,time\nos.fork()\nkept=[]\nfor i in range(60):\n kept.append(bytearray(b'x'*100000))\n \
                time.sleep(0.02)\nos.write(1,b'%d\\n'%os.getpid())\nos.read(0,1)\nassert all(k==b'x'*100000 for k in kept)\n";
    let mut command = fixture.isochrome("exec", "8-11");
    command.args(["--ready", "settle:50ms", "--interval", "200ms", "--", "python3", "-c", grow]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids: Vec<u32> = said.by_ref().take(2).map(|line| line.unwrap().parse().unwrap()).collect();
    if pids.len() < 2 {
        let output = child.wait_with_output().unwrap();
        panic!("{} after {pids:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let begin = Instant::now();
    for pid in pids {
        loop {
            let (on_color, off_color, immovable) = on_color(fixture, pid, "8-11");
            if on_color as f64 >= 0.995 * (on_color + off_color) as f64 && on_color > 1500 {
                println!("process {pid}: {on_color} on color, {off_color} off color, {immovable} immovable");
                break;
            }
            if begin.elapsed() > Duration::from_secs(20) {
                let look = json(&fixture.recolor(pid, "8-11").arg("--dry-run").output().unwrap());
                drop(child.stdin.take());
                let output = child.wait_with_output().unwrap();
                panic!(
                    "{on_color} on color, {off_color} off color: {look}; {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Programs as Debian packages them: package, program, arguments, and what is fed to it.
fn real_programs(fixture: &Fixture) -> Outcome {
    let sql = "create table t(a integer primary key, b text, c real);\
               with recursive n(i) as (select 1 union all select i+1 from n where i<60000) insert into t select i, hex(i*7919), i/3.0 from n;\
               create index u on t(b); select count(*), sum(length(b)), round(sum(c),3) from t where b like '%3%';\
               with recursive n(i) as (select 1 union all select i+1 from n where i<6000000) select sum(i*i%1013) from n;";
    let numeric = "import math,array\nx=array.array('d',(math.sin(i) for i in range(200000)))\ns=0.0\nfor r in range(300):\n \
                   s+=sum(v*v for v in x)\nprint(repr(s))";
    let shell = "i=0; s=0; while [ $i -lt 600000 ]; do i=$((i+1)); s=$(((s+i*i)%1000003)); done; echo $s";
    let programs: [(&str, &str, Vec<&str>); 4] = [
        ("sqlite3", "sqlite3", vec![":memory:", sql]),
        ("python3", "python3", vec!["-c", numeric]),
        ("busybox-static (static)", "busybox", vec!["sh", "-c", shell]),
        ("rt-tests", "cyclictest", vec!["-q", "-t2", "-i1000", "-l1500", "--policy=fifo", "-p50", "-m"]),
    ];
    let (mut ran, mut absent) = (0, Vec::new());
    for (package, program, arguments) in programs {
        let Ok(plain) = Command::new(program).args(&arguments).output() else {
            absent.push(package);
            continue;
        };
        let outcome = fixture.path("outcome.json");
        let mut command = fixture.isochrome("exec", "0-3");
        command.args(["--ready", "settle:100ms", "--interval", "200ms", "-o"]).arg(&outcome).arg("--").arg(program);
        let colored = command.args(&arguments).output().unwrap();
        let said = String::from_utf8_lossy(&colored.stderr).into_owned();
        assert_eq!(colored.status.code(), plain.status.code(), "{program}: {said}");
        // Latencies differ from run to run; how many there were must not.
        let comparable = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            if program == "cyclictest" { format!("{} lines", text.lines().count()) } else { text }
        };
        assert_eq!(comparable(&colored.stdout), comparable(&plain.stdout), "{program}");
        let outcome: Value = serde_json::from_str(&fs::read_to_string(outcome).unwrap()).unwrap();
        println!("{program}: {outcome}");
        assert!(
            outcome["sweeps"].as_u64().unwrap() > 0 && outcome["errors"].as_array().unwrap().is_empty(),
            "{outcome}"
        );
        let number = |key: &str| outcome[key].as_u64().unwrap();
        let immovable: u64 = outcome["immovable"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        let resident = number("resident");
        assert!(resident > 50 && number("on_color") + immovable >= resident * 995 / 1000, "{program}: {outcome}");
        ran += 1;
    }
    match (ran, absent.is_empty()) {
        (_, true) => Ok(()),
        (_, false) => Err(NotRun(format!("{ran} programs passed, but these are not installed: {}", absent.join(", ")))),
    }
}

fn redis(fixture: &Fixture) -> Outcome {
    if Command::new("redis-server").arg("--version").output().is_err() {
        return Err(NotRun("redis-server is not installed".to_owned()));
    }
    let socket = fixture.path("redis.sock");
    let outcome = fixture.path("outcome.json");
    let mut command = fixture.isochrome("exec", "4-7");
    command.args(["--ready", "line:ready to accept", "--interval", "200ms", "-o"]).arg(&outcome);
    command
        .args(["--", "redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(&socket);
    let mut server = command.stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while !socket.exists() {
        assert!(begin.elapsed() < Duration::from_secs(20), "redis-server does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut bench = Command::new("redis-benchmark");
    bench.arg("-s").arg(&socket).args([
        "-n",
        "20000",
        "-c",
        "20",
        "-t",
        "set,get,lpush,lrange_100",
        "-r",
        "5000",
        "-d",
        "200",
        "-q",
    ]);
    let benchmark = succeeding(bench);
    let said = String::from_utf8_lossy(&benchmark.stdout).into_owned();
    assert!(said.matches("requests per second").count() >= 4, "{said}");
    let client = |arguments: &[&str]| {
        let mut client = Command::new("redis-cli");
        client.arg("-s").arg(&socket).args(arguments);
        String::from_utf8_lossy(&succeeding(client).stdout).trim().to_owned()
    };
    assert_eq!(client(&["set", "name", "value"]), "OK");
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(client(&["get", "name"]), "value");
    let pid: u32 = client(&["info", "server"])
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let (on_color, off_color, immovable) = on_color(fixture, pid, "4-7");
    println!("redis-server: {on_color} on color, {off_color} off color, {immovable} immovable\n{said}");
    assert!(on_color as f64 >= 0.995 * (on_color + off_color) as f64);
    let mut stop = Command::new("redis-cli");
    stop.arg("-s").arg(&socket).args(["shutdown", "nosave"]);
    let _ = stop.output();
    assert!(server.wait().unwrap().success());
    println!("{}", fs::read_to_string(outcome).unwrap());
    Ok(())
}
