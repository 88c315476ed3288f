//! Tests of measuring interference: programs have their shares of a cache only while they run, their failures are reported, and nothing is left
//! running.
//!
//! The tests do not depend on how long something takes. A test that the machine cannot run is reported as ignored, with the reason;
//! `HARDWARE_REQUIRED=1` makes that a failure.

#[path = "../../host/tests/kernel/mod.rs"]
mod kernel;
mod mounted;
mod trial;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use kernel::State;
use mounted::Mounted;
use trial::{NotRun, Outcome, run as run_trials, trial};

fn main() -> ExitCode {
    let trials = vec![
        trial("every_program_has_its_ways_while_it_runs_and_all_have_all_afterwards", || ways(&Fixture::new())),
        trial("after_sigint_nothing_is_left_running_and_all_have_all_ways", || ended(&Fixture::new(), "INT")),
        trial("after_sigkill_nothing_is_left_running_and_the_next_start_gives_ways_back", || {
            ended(&Fixture::new(), "KILL")
        }),
        trial("ways_that_cannot_be_had_are_reported_and_the_rest_is_measured", || no_ways(&Fixture::new())),
        trial("what_a_program_does_wrong_is_named_with_what_to_do", || failures(&Fixture::new())),
        trial("on_a_modeled_machine_hits_and_misses_of_every_level_are_counted", || modeled(&Fixture::new())),
    ];
    run_trials(trials)
}

/// A folder with programs, which are shell scripts that count.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Fixture { folder };
        fixture.script("counts", "count");
        fixture.script("other", "count");
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a script, in which `count` stands for some work.
    fn script(&self, name: &str, text: &str) {
        let count = "count() { i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; }\n";
        fs::write(self.path(name), format!("{count}{text}\n")).unwrap();
    }

    fn bench(&self, programs: &[&str], options: &[&str]) -> Command {
        // Placing a program on colors takes longer than these programs run.
        let mut command = self.tool(&["lab", "interference", "--by", "ways", "--json"]);
        for (option, usual) in [("--blocks", "1"), ("--warm-up", "3ms")] {
            if !options.contains(&option) {
                command.args([option, usual]);
            }
        }
        for program in programs {
            command.arg("--program").arg(format!("sh {}", self.path(program).display()));
        }
        command.args(options);
        command
    }

    fn tool(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
        command.args(arguments).env("ISOCHROME_RUNTIME_DIR", self.path("runtime"));
        command.env("ISOCHROME_RESCTRL", self.path("nowhere"));
        command
    }

    fn resctrl(&self) -> Result<Mounted<State>, NotRun> {
        Mounted::resctrl(2, self.path("resctrl"))
    }

    /// Returns the process IDs of running scripts of this folder.
    fn running(&self) -> Vec<String> {
        let of_this_folder = |entry: &fs::DirEntry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.starts_with("sh\0") && line.contains(self.folder.path().to_str().unwrap())
        };
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries.filter(of_this_folder).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let begin = Instant::now();
    while !reached() {
        assert!(begin.elapsed() < Duration::from_secs(60), "not reached: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text_of(output)))
}

/// Fails if the caches have no numbers, because caches without numbers cannot be divided.
fn numbered() -> Result<(), NotRun> {
    let id = isochrome_host::machine::sysfs::Sysfs::system().cache_id(2, isochrome_model::units::CpuId(0));
    id.map(drop).ok_or_else(|| NotRun("sysfs does not number the caches".to_owned()))
}

fn ways(fixture: &Fixture) -> Outcome {
    numbered()?;
    let tree = fixture.resctrl()?;
    let mut bench = fixture.bench(&["counts", "other"], &[]);
    let run =
        bench.env("ISOCHROME_RESCTRL", tree.root()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = run.wait_with_output().unwrap();
    let result = json_of(&output);
    let written = tree.state().written.clone();
    // In every cache, everybody else keeps all ways and each program gets half of them.
    let mask = |line: &str| line.rsplit_once('=').unwrap().1.to_owned();
    assert_eq!(written.iter().map(|line| mask(line)).collect::<Vec<_>>()[..3], ["ffff", "ff", "ff00"], "{written:?}");
    let divided = result["divided"].as_array().unwrap();
    let by_ways = divided.iter().find(|divided| divided["by"] == "ways").unwrap();
    assert_eq!((by_ways["level"].clone(), by_ways["count"].clone()), (json!(2), json!(16)));
    assert_eq!(by_ways["shares"], json!([(0..8).collect::<Vec<_>>(), (8..16).collect::<Vec<_>>()]));
    assert_eq!(tree.state().groups, State::new(2).groups);
    assert!(!fixture.path("runtime/resctrl.json").exists());
    assert_eq!(fixture.running(), Vec::<String>::new());
    // Of two programs, beside each other and in turns, with and without ways. What was disturbed in every block has no row.
    let rows = result["rows"].as_array().unwrap();
    let of = |by: &str| rows.iter().filter(|row| row["partitioning"] == by).count();
    assert!(of("ways") <= 4 && of("none") <= 4 && of("ways") + of("none") == rows.len(), "{result}");
    assert!(
        of("ways") > 0 || of("none") < 4,
        "nothing was measured with ways, and nothing was disturbed without: {result}"
    );
    match of("ways") > 0 && of("none") > 0 {
        true => Ok(()),
        false => Err(NotRun(format!("the host disturbed all blocks of {} of 8 conditions", 8 - rows.len()))),
    }
}

fn ended(fixture: &Fixture, signal: &str) -> Outcome {
    numbered()?;
    let tree = fixture.resctrl()?;
    // These are more blocks than end before the signal.
    let mut bench = fixture.bench(&["counts", "other"], &["--blocks", "1000"]);
    bench.env("ISOCHROME_RESCTRL", tree.root()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run: Child = bench.spawn().unwrap();
    let joined = |group: &str| tree.state().tasks.get(group).is_some_and(|tasks| !tasks.is_empty());
    wait_until("a program in each group", || joined("isochrome-1") && joined("isochrome-2"));
    assert!(Command::new("kill").args(["-s", signal, &run.id().to_string()]).status().unwrap().success());
    if signal == "INT" {
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", text_of(&output));
        assert_eq!(json_of(&output)["programs"].as_array().unwrap().len(), 2);
    } else {
        run.wait().unwrap();
        let next = fixture.tool(&["ps"]).env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
        assert!(text_of(&next).contains("all have all cache ways"), "{}", text_of(&next));
    }
    assert_eq!(tree.state().groups, State::new(2).groups);
    wait_until("nothing left running", || fixture.running().is_empty());
    Ok(())
}

fn no_ways(fixture: &Fixture) -> Outcome {
    numbered()?;
    let output = fixture.bench(&["counts", "other"], &[]).output().unwrap();
    assert!(
        text_of(&output).contains("No cache ways") && text_of(&output).contains("mount -t resctrl"),
        "{}",
        text_of(&output)
    );
    let result = json_of(&output);
    assert!(result["rows"].as_array().unwrap().iter().all(|row| row["partitioning"] == "none"));
    // There is one class of service too few.
    let tree = fixture.resctrl()?;
    tree.state().classes = 2;
    let output = fixture.bench(&["counts", "other"], &[]).env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    assert!(text_of(&output).contains("2 programs need as many classes of service"), "{}", text_of(&output));
    assert_eq!(tree.state().written, Vec::<String>::new());
    Ok(())
}

fn failures(fixture: &Fixture) -> Outcome {
    let been = fixture.path("been");
    let been = been.display();
    fixture.script(
        "fails",
        &format!("count; [ -e {been} ] && {{ echo {been} is in the way >&2; exit 5; }}; touch {been}"),
    );
    fixture.script("alone", "count; echo no input >&2; exit 4");
    fixture.script("quick", "exit 0");
    fixture.script("forever", "while :; do :; done");
    let refused = |programs: &[&str], options: &[&str], named: &[&str]| {
        let output = fixture.bench(programs, options).output().unwrap();
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("hint:") && named.iter().all(|named| text.contains(named)), "{named:?}: {text}");
        assert_eq!(fixture.running(), Vec::<String>::new());
    };
    refused(
        &["counts", "fails"],
        &["--blocks", "9"],
        &["exit code 5", "is in the way", "3 times one after the other", "twice at the same time"],
    );
    refused(&["counts", "alone"], &[], &["exit code 4; on standard error: no input", "run it by hand"]);
    refused(&["counts", "quick"], &["--warm-up", "50ms"], &["ended within its first 50 ms", "--warm-up"]);
    refused(&["counts", "forever"], &["--limit", "300ms"], &["has not ended", "--limit"]);
    refused(&["counts"], &["--program", "/no/such/program"], &["/no/such/program", "cannot be started"]);
    refused(&["counts"], &[], &["shares nothing", "--program"]);
    Ok(())
}

fn modeled(fixture: &Fixture) -> Outcome {
    let evidence = fixture.path("evidence.json");
    let raw = fixture.path("runs.csv");
    let programs = ["walk:area=192K,stride=64,passes=1,write=0", "walk:area=1M,stride=64,passes=1,write=1"];
    let mut command =
        fixture.tool(&["lab", "interference", "--json", "--machine", "i7-2600", "--mhz", "3400", "--slice", "100us"]);
    command
        .args(programs.iter().flat_map(|program| ["--program", program]))
        .arg("-o")
        .arg(&evidence)
        .arg("--raw")
        .arg(&raw);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    let result = json_of(&output);
    let levels: Vec<&str> =
        result["counted"].as_array().unwrap().iter().map(|it| it["level"].as_str().unwrap()).collect();
    assert_eq!((levels.len(), levels[2]), (3, "L3"));
    // Two programs run on two CPUs and on one, each with the whole cache, with colors and with ways.
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 3);
    let row = |sharing: &str| {
        let of = |row: &&Value| row["sharing"] == sharing && row["program"] == 0 && row["partitioning"] == "none";
        rows.iter().find(of).unwrap()
    };
    // The program uses 192 KiB of a second level of 256 KiB. Beside a program on another CPU it keeps its lines; in time slices with a program
    // of 1 MiB it does not.
    let misses = |row: &Value| [0, 2].map(|at| row["requests"][1]["misses"][at].as_f64().unwrap());
    let [alone, together] = misses(row("inter_core"));
    assert!(alone > 0.0 && together == alone, "{result}");
    let [alone, together] = misses(row("intra_core"));
    assert!(together >= 2.0 * alone, "{result}");
    assert_eq!(fs::read_to_string(&raw).unwrap().lines().count(), 1 + 3 * rows.len());
    let report = fixture.tool(&["report", evidence.to_str().unwrap()]).output().unwrap();
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(report.contains("i7-2600") && report.contains("nothing here was measured"), "{report}");
    Ok(())
}
