//! Tests of comparing a program spread over all colors and on its own: where its pages are, what ends the experiment, and how the programs are
//! left.
//!
//! Colors are bits of the frame number here, so nothing depends on the caches of the machine, nor on how long something takes. A test that the
//! machine cannot run is reported as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure.

#[expect(dead_code, reason = "other tests use the rest of it")]
mod fixture;
mod trial;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use isochrome_host::color::known::KnownColors;
use isochrome_host::color::reserve::Reserve;
use isochrome_host::color::resident;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_model::units::{Bytes, Color};
use serde_json::Value;

use fixture::Fixture;
use trial::{NotRun, Outcome, run as run_trials, trial};

/// A program that prints the same number again and again, by children of its own.
const PRINTS: &str = "sh -c 'while :; do echo took 5 us; sleep 0.005; done'";

fn main() -> ExitCode {
    let trials = vec![
        trial("programs_are_where_they_should_be_in_every_window_and_end_with_the_experiment", || {
            placed(&Fixture::new()?)
        }),
        trial("frames_of_colors_that_are_rare_in_free_memory_are_found", || rare(&Fixture::new()?)),
        trial("a_process_goes_on_spread_over_all_colors", || left_spread(&Fixture::new()?)),
        trial("a_process_that_held_colors_goes_on_on_them", || left_on_its_colors(&Fixture::new()?)),
        trial("sigint_and_sigterm_finish_and_report", || interrupted(&Fixture::new()?)),
        trial("a_victim_or_a_neighbor_that_is_killed_ends_the_experiment_with_what_was_measured", || {
            killed(&Fixture::new()?)
        }),
        trial("a_load_generator_that_fails_is_told_and_the_process_is_put_back", || failing(&Fixture::new()?)),
        trial("calls_of_a_function_are_timed_and_counted_by_the_kernel", || called(&Fixture::new()?)),
        trial("marked_jobs_and_counted_events_are_measured", || marked(&Fixture::new()?)),
        trial("what_cannot_be_measured_is_refused_before_anything_is_moved", || refused(&Fixture::new()?)),
    ];
    run_trials(trials)
}

/// Returns a comparison of short windows with colors by frame bits.
fn compare(fixture: &Fixture, arguments: &[&str]) -> Command {
    let mut command = fixture.tool();
    command.args(["compare", "--json", "--trust-palette", "--max-memory", "1G", "--palette"]);
    command.arg(fixture.path("bits.json"));
    command.args(["--window", "100ms", "--settle", "10ms", "--warm-up", "200ms", "--found", "2", "--seed", "19"]);
    if !arguments.contains(&"--restarts") {
        command.args(["--restarts", "0"]);
    }
    command.args(arguments);
    command
}

/// Returns the numbers of the result. Fails if the programs could not be placed window after window, which happens on a machine whose CPUs others
/// keep busy: the experiment ends by itself then, and says so.
fn numbers(output: &Output) -> Result<Value, NotRun> {
    let error = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {error}"));
    match result["ended"].as_str() {
        Some(ended) if ended.contains("did not count") && ended.contains("on color") => Err(NotRun(ended.to_owned())),
        _ => Ok(result),
    }
}

fn counting(result: &Value) -> Vec<&Value> {
    result["windows"].as_array().unwrap().iter().filter(|window| window["excluded"].is_null()).collect()
}

/// A process that walks over memory of its own, and knows nothing of the experiment. It is killed when this is dropped.
struct Walker(Child);

impl Walker {
    fn start(fixture: &Fixture) -> Walker {
        let mut command = fixture.tool();
        command.args(["job", "walk", "512", "--every", "5ms"]).stdout(Stdio::null());
        Walker(command.spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        // `exec` ends its program, too.
        let _ = Command::new("kill").arg(self.pid()).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// Returns how many anonymous pages of process `pid` have each color, by the bits of their frames.
fn anonymous(pid: u32) -> BTreeMap<u64, usize> {
    let mut colors = BTreeMap::new();
    let mappings = resident::mappings(pid).unwrap();
    for mapping in mappings.iter().filter(|mapping| mapping.name.is_empty()) {
        for frame in mapping.pages.iter().filter_map(|page| page.frame) {
            *colors.entry(frame.0 % 16).or_default() += 1;
        }
    }
    colors
}

fn share_of(colors: &BTreeMap<u64, usize>, allowed: std::ops::Range<u64>) -> f64 {
    let all: usize = colors.values().sum();
    colors.iter().filter(|(color, _)| allowed.contains(color)).map(|(_, pages)| pages).sum::<usize>() as f64
        / all as f64
}

fn placed(fixture: &Fixture) -> Outcome {
    let folder = fixture.path("report");
    let measure = "lines:took ([0-9]+) us";
    let mut command = compare(fixture, &["--victim", PRINTS, "--measure", measure, "--colors", "4", "--restarts", "2"]);
    command.args(["--windows", "16"]);
    command.args(["--neighbor", PRINTS, "--neighbor-lines", "took ([0-9]+) us", "-o"]).arg(&folder);
    let output = command.output().unwrap();
    let result = numbers(&output)?;
    // All values are equal, so an effect above 3 % is ruled out as soon as four blocks can rule out any.
    assert_eq!(output.status.code(), Some(0), "{result:#} {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(result["schema"], "isochrome-compare/2");
    assert_eq!((&result["colors"], &result["victim"]["colors"]), (&16.into(), &serde_json::json!([0, 1, 2, 3])));
    let windows = counting(&result);
    let all = result["windows"].as_array().unwrap();
    assert_eq!(all.iter().filter(|window| window["condition"] == "as_found").count(), 2);
    for window in windows.iter().filter(|window| window["condition"] != "as_found") {
        let placed = window["placed"].as_array().unwrap();
        assert_eq!(placed.len(), 2, "{window}");
        for program in placed {
            assert!(
                program["on_color"].as_f64().unwrap() >= 0.95 && program["moved"].as_u64().unwrap() > 20,
                "{window}"
            );
        }
        // A neighbor that gets no CPU in a window prints nothing there.
        assert!(window["value"] == 5.0 && (window["neighbor"] == 5.0 || window["neighbor"].is_null()), "{window}");
    }
    assert!(windows.iter().any(|window| window["neighbor"] == 5.0), "{result:#}");
    let restarts = result["restarts"].as_array().unwrap();
    let conditions: Vec<_> = restarts.iter().map(|window| (&window["block"], &window["condition"])).collect();
    let once = |pair: u64, condition: &str| {
        conditions.iter().filter(|it| **it == (&pair.into(), &condition.into())).count() == 1
    };
    assert!((0..2).all(|pair| once(pair, "as_found") && once(pair, "apart")) && restarts.len() == 4, "{conditions:?}");
    for window in restarts.iter().filter(|window| window["excluded"].is_null()) {
        let programs = if window["condition"] == "apart" { 2 } else { 0 };
        let placed = window["placed"].as_array().unwrap();
        assert!(placed.len() == programs && window["value"] == 5.0, "{window}");
        assert!(placed.iter().all(|program| program["on_color"].as_f64().unwrap() >= 0.95), "{window}");
    }
    assert_eq!((&result["effect"]["p"], &result["ended"]), (&1.0.into(), &"all windows were measured".into()));
    for file in ["evidence.json", "index.html", "windows.csv"] {
        assert!(fs::metadata(folder.join(file)).unwrap().len() > 500, "{file}");
    }
    for program in ["victim", "neighbor"] {
        let pid = result[program]["pid"].as_u64().unwrap();
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap(), "{program}");
    }
    Ok(())
}

/// File from which isochrome learns the size of huge pages.
const HUGE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";

/// Returns `command` where the kernel seems to have no huge pages.
fn without_huge_pages(fixture: &Fixture, command: &Command) -> Result<Command, NotRun> {
    let nothing = fixture.path("nothing");
    fs::write(&nothing, "").unwrap();
    let mut without = Command::new("unshare");
    without.args(["--mount", "sh", "-c", "[ ! -e $0 ] || mount --bind $1 $0; shift; exec \"$@\"", HUGE]).arg(nothing);
    let can = without.arg("true").output().map_err(|error| NotRun(format!("unshare: {error}")))?;
    if !can.status.success() {
        return Err(NotRun(String::from_utf8_lossy(&can.stderr).into_owned()));
    }
    let mut with = Command::new("unshare");
    with.args(without.get_args().take(without.get_args().count() - 1));
    with.arg(command.get_program()).args(command.get_args());
    with.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ok(with)
}

fn rare(fixture: &Fixture) -> Outcome {
    const HELD: Bytes = Bytes(768 << 20);
    let palette = fs::read_to_string(fixture.path("bits.json")).unwrap();
    let known = KnownColors::trusted(serde_json::from_str(&palette).unwrap());
    if Sysfs::system().memory("MemAvailable").is_none_or(|available| available < Bytes(3 * HELD.0)) {
        return Err(NotRun(format!("less than {} of memory are available", Bytes(3 * HELD.0))));
    }
    // Frames of six colors are given back, one by one between frames that are held: the kernel hands these out first.
    let mut held = Reserve::new(&known, HELD).map_err(|error| NotRun(error.to_string()))?;
    let colors: Vec<Color> = [5, 7, 9, 11, 13, 15].map(Color).to_vec();
    held.give(&colors, &mut held.available(&colors), usize::MAX);
    let walker = Walker::start(fixture);
    let pid = walker.pid();
    let mut arguments = of_pid(&pid, "8");
    arguments.push("--all-windows");
    let output = without_huge_pages(fixture, &compare(fixture, &arguments))?.output().unwrap();
    let result = numbers(&output)?;
    assert_eq!(counting(&result).len(), 2 + 8, "{result:#}");
    let mut recolor = fixture.isochrome("recolor", "0-3");
    let output = without_huge_pages(fixture, recolor.arg(&pid))?.output().unwrap();
    let colors = anonymous(walker.0.id());
    assert!(share_of(&colors, 0..4) > 0.99, "{colors:?} {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Compares `pid` with a load generator that takes a tenth of a second, 3 to 5 in every window.
fn of_pid<'a>(pid: &'a str, windows: &'a str) -> Vec<&'a str> {
    let generator = "command:sleep 0.1; echo took 3";
    vec!["--victim", pid, "--measure", generator, "--number", "took ([0-9]+)", "--windows", windows, "--colors", "0-3"]
}

fn left_spread(fixture: &Fixture) -> Outcome {
    let walker = Walker::start(fixture);
    let output = compare(fixture, &of_pid(&walker.pid(), "16")).output().unwrap();
    let result = numbers(&output)?;
    assert_eq!(output.status.code(), Some(0), "{result:#}");
    assert!(
        result["left"][0].as_str().unwrap().ends_with("was left spread evenly over all colors."),
        "{}",
        result["left"]
    );
    let colors = anonymous(walker.0.id());
    // 128 pages and more, evenly on 16 colors.
    assert!((0.1..0.5).contains(&share_of(&colors, 0..4)), "{colors:?}");
    Ok(())
}

fn left_on_its_colors(fixture: &Fixture) -> Outcome {
    let report = fixture.path("exec.json");
    let mut exec = fixture.isochrome("exec", "8-11");
    exec.arg("-o").arg(&report).args(["--interval", "50ms", "--"]);
    exec.args([env!("CARGO_BIN_EXE_isochrome"), "job", "walk", "512", "--every", "5ms"]);
    let exec = Walker(exec.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let begin = Instant::now();
    while !report.exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "not on its colors");
        std::thread::sleep(Duration::from_millis(20));
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
    let pid = report["pid"].as_u64().unwrap();
    let output = compare(fixture, &of_pid(&pid.to_string(), "16")).output().unwrap();
    let result = numbers(&output)?;
    // The `exec` that watches over it stands aside: windows apart have their pages on 0-3, not on 8-11.
    assert_eq!(counting(&result).len(), 2 + 16, "{result:#}");
    assert!(result["left"][0].as_str().unwrap().ends_with("was left on colors 8-11 as before."), "{}", result["left"]);
    let colors = anonymous(pid as u32);
    assert!(share_of(&colors, 8..12) > 0.95, "{colors:?}");
    drop(exec);
    let _ = Command::new("kill").arg(pid.to_string()).status();
    Ok(())
}

/// Starts a long comparison of `pid`, and returns it once windows are measured.
fn long(fixture: &Fixture, pid: &str, more: &[&str]) -> Child {
    let mut command = compare(fixture, &of_pid(pid, "4000"));
    command.args(["--all-windows"]).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // The program is on other frames when the first window that is not as found begins.
    let before = anonymous(pid.parse().unwrap());
    let begin = Instant::now();
    while anonymous(pid.parse().unwrap()) == before {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing was moved");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(1500));
    child
}

fn interrupted(fixture: &Fixture) -> Outcome {
    for signal in ["INT", "TERM"] {
        let walker = Walker::start(fixture);
        std::thread::sleep(Duration::from_millis(200));
        let child = long(fixture, &walker.pid(), &[]);
        let status = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
        assert!(status.success());
        let output = child.wait_with_output().unwrap();
        let result = numbers(&output)?;
        // Whether it suffices for an answer depends on when the signal came.
        assert!(matches!(output.status.code(), Some(0 | 3)), "{signal}: {output:?}");
        assert_eq!((&result["ended"], &result["as_planned"]), (&"it was interrupted".into(), &false.into()));
        assert!(!counting(&result).is_empty());
        let left = result["left"][0].as_str().unwrap();
        // It says so if frames of some colors were short; where the pages are is looked at below.
        assert!(left.contains("was left spread evenly over all colors"), "{signal}: {left}");
        let colors = anonymous(walker.0.id());
        assert!((0.1..0.5).contains(&share_of(&colors, 0..4)), "{signal}: {colors:?}");
    }
    Ok(())
}

fn killed(fixture: &Fixture) -> Outcome {
    for victim_dies in [true, false] {
        let (victim, neighbor) = (Walker::start(fixture), Walker::start(fixture));
        std::thread::sleep(Duration::from_millis(200));
        let child = long(fixture, &victim.pid(), &["--neighbor", &neighbor.pid()]);
        let (doomed, other) = if victim_dies { (victim, neighbor) } else { (neighbor, victim) };
        drop(doomed);
        let output = child.wait_with_output().unwrap();
        let result = numbers(&output)?;
        let ended = result["ended"].as_str().unwrap();
        let who = if victim_dies { "the victim has ended" } else { "the neighbor has ended" };
        assert!(ended.starts_with(who), "{ended}");
        assert!(!counting(&result).is_empty(), "{result:#}");
        // The one that goes on is put back.
        let left: Vec<&str> = result["left"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(left.len() == 1 && left[0].contains(&other.pid()) && left[0].contains("was left spread"), "{left:?}");
    }
    Ok(())
}

fn failing(fixture: &Fixture) -> Outcome {
    let walker = Walker::start(fixture);
    let (pid, marker) = (walker.pid(), fixture.path("served"));
    // It fails from the fourth window on.
    let generator = format!(
        "command:echo x >> {0}; [ $(wc -l < {0}) -lt 4 ] || {{ echo refused; exit 3; }}; echo took 3",
        marker.display()
    );
    let arguments = ["--victim", &pid, "--measure", &generator, "--number", "took ([0-9]+)", "--colors", "0-3"];
    let output = compare(fixture, &arguments).output().unwrap();
    let result = numbers(&output)?;
    assert_eq!(output.status.code(), Some(3), "{result:#}");
    let ended = result["ended"].as_str().unwrap();
    assert!(ended.starts_with("4 windows in a row did not count") && ended.contains("refused"), "{ended}");
    // Two windows as found, and the first of a block.
    assert_eq!(counting(&result).len(), 3, "{result:#}");
    assert!(result["left"][0].as_str().unwrap().contains("was left spread evenly"));
    // Where nothing could be measured at all, that is an error.
    let never = ["--victim", &pid, "--measure", "command:exit 1", "--number", "took ([0-9]+)", "--found", "0"];
    let output = compare(fixture, &never[..6]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    Ok(())
}

/// Returns the values of the windows that count, and the unit.
fn values(output: &Output) -> Result<(Vec<f64>, String), NotRun> {
    let result = numbers(output)?;
    let values: Vec<f64> = counting(&result).iter().map(|window| window["value"].as_f64().unwrap()).collect();
    assert!(values.len() >= 4, "{result:#} {}", String::from_utf8_lossy(&output.stderr));
    Ok((values, result["unit"].as_str().unwrap().to_owned()))
}

fn called(fixture: &Fixture) -> Outcome {
    if !fs::exists("/sys/bus/event_source/devices/uprobe").unwrap() {
        return Err(NotRun("this kernel has no uprobes".to_owned()));
    }
    let library = resident::mappings(std::process::id()).unwrap().into_iter().find(|it| it.name.contains("/libc.so"));
    let Some(library) = library.map(|mapping| mapping.name) else {
        return Err(NotRun("this program has no libc.so".to_owned()));
    };
    // It sleeps 3 ms at a time, by a function of the library.
    let victim = "python3 -c 'import time\nwhile 1: time.sleep(0.003)'";
    let measured = |what: &str| {
        let what = what.replace("LIBC", &library);
        let arguments = ["--victim", victim, "--measure", &what, "--colors", "0-7", "--windows", "8"];
        values(&compare(fixture, &arguments).output().unwrap())
    };
    let (times, unit) = measured("uprobe:LIBC:clock_nanosleep")?;
    assert!(unit == "µs" && times.iter().all(|time| *time >= 3000.0), "{times:?} {unit}");
    let (rates, unit) = measured("throughput:uprobe:LIBC:clock_nanosleep")?;
    assert!(unit == "1/s" && rates.iter().all(|rate| *rate > 0.0 && *rate <= 334.0), "{rates:?} {unit}");
    Ok(())
}

fn marked(fixture: &Fixture) -> Outcome {
    let walk = format!("{} job walk 64 --every 2ms", fixture.tool().get_program().display());
    let measured = |victim: &str, what: &str| {
        let arguments = ["--victim", victim, "--measure", what, "--colors", "0-7", "--windows", "8"];
        values(&compare(fixture, &arguments).output().unwrap())
    };
    let (rates, unit) = measured(&walk, "throughput:marks")?;
    assert!(unit == "1/s" && rates.iter().all(|rate| *rate > 0.0 && *rate <= 520.0), "{rates:?} {unit}");
    let (times, unit) = measured(&walk, "marks")?;
    assert!(unit == "µs" && times.iter().all(|time| *time > 0.0), "{times:?} {unit}");
    // Memory is mapped, touched and unmapped again and again.
    let touches = "python3 -c 'import mmap\nwhile 1:\n m = mmap.mmap(-1, 1 << 16)\n m[::4096] = bytes(16)\n m.close()'";
    let (faults, unit) = measured(touches, "counter:page-faults")?;
    assert!(unit == "1/s" && faults.iter().all(|faults| *faults > 100.0), "{faults:?} {unit}");
    Ok(())
}

fn refused(fixture: &Fixture) -> Outcome {
    let error = |arguments: &[&str]| {
        let output = compare(fixture, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let walker = Walker::start(fixture);
    let pid = walker.pid();
    let number = ["--number", "took ([0-9]+)"];
    for (arguments, expected) in [
        (vec!["--victim", "2", "--measure", "command:true", number[0], number[1]], "thread of the kernel"),
        (vec!["--victim", "999999999", "--measure", "wakeups"], "there is no process"),
        (vec!["--victim", &pid, "--measure", "lines:took ([0-9]+)"], "its lines cannot be read"),
        (vec!["--victim", "/no/such/program", "--measure", "wakeups"], "cannot be started"),
        (vec!["--victim", "true", "--measure", "lines:([0-9])"], "ended before anything was measured"),
        (vec!["--victim", &pid, "--measure", "command:cat"], "the output format of `cat` is not known"),
        (vec!["--victim", &pid, "--measure", "command:pgbench x"], "prints no median"),
        (vec!["--victim", &pid, "--measure", "socket:ping:192.0.2.1:6379"], "not on this machine"),
        (vec!["--victim", &pid, "--measure", "marks"], "give its command line"),
        (
            vec!["--victim", &pid, "--measure", "uprobe:/proc/self/exe:no_such_function"],
            "no function `no_such_function`",
        ),
        (vec!["--victim", &pid, "--measure", "uprobe:/etc/passwd:main"], "no program or library"),
        (vec!["--victim", &pid, "--measure", "counter:no-such-event"], "page-faults"),
        (vec!["--victim", &pid, "--measure", "command:true", number[0], "took"], "0 groups"),
        (
            vec!["--victim", &pid, "--measure", "command:true", number[0], number[1], "--colors", "16"],
            "16 of 16 colors",
        ),
    ] {
        let error = error(&arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert!(share_of(&anonymous(walker.0.id()), 0..16) == 1.0);
    Ok(())
}
