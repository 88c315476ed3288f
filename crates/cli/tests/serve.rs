//! Tests of the memory server: who is put on which colors, reloading, refusals, and what is left when the server is killed.
//!
//! Colors are bits of the frame number here, so nothing depends on the caches of the machine. A test that the machine cannot run is reported
//! as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure.

#[expect(dead_code, reason = "other tests use the rest of it")]
mod fixture;
mod trial;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use isochrome_host::color::resident;
use serde_json::Value;

use fixture::Fixture;
use trial::{Outcome, run as run_trials, trial};

fn main() -> ExitCode {
    run_trials(vec![
        trial("members_are_put_on_the_colors_of_their_class_and_others_are_left_alone", || placed(&Fixture::new()?)),
        trial("a_policy_is_replaced_as_a_whole_or_not_at_all", || reloaded(&Fixture::new()?)),
        trial("members_outlive_a_server_that_is_killed_and_the_next_one_goes_on", || killed(&Fixture::new()?)),
        trial("a_second_server_and_a_wrong_policy_are_refused", || refused(&Fixture::new()?)),
    ])
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.pid().to_string()]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program that walks over 512 KiB of its own, from a file of its own, whose path is returned as well.
fn walker(fixture: &Fixture, name: &str) -> (Running, PathBuf) {
    let program = fixture.path(name);
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_isochrome"), &program).unwrap();
    }
    let mut command = Command::new(&program);
    command.args(["job", "walk", "512", "--every", "5ms"]).stdout(Stdio::null());
    (Running(command.spawn().unwrap()), program)
}

fn write_policy(fixture: &Fixture, text: &str) -> PathBuf {
    let path = fixture.path("policy.toml");
    fs::write(&path, text).unwrap();
    path
}

/// Starts a server whose policy is in the fixture's folder, and waits until it answers.
fn server(fixture: &Fixture) -> Running {
    let errors = fs::File::create(fixture.path("server.err")).unwrap();
    let mut command = fixture.tool();
    command.args(["serve", "--trust-palette", "--max-memory", "1G", "--palette"]).arg(fixture.path("bits.json"));
    command.arg("--config").arg(fixture.path("policy.toml")).stderr(errors);
    let mut server = Running(command.spawn().unwrap());
    let begin = Instant::now();
    while status(fixture).is_none() {
        let said = || fs::read_to_string(fixture.path("server.err")).unwrap();
        assert!(server.0.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(20), "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

fn policy(fixture: &Fixture, arguments: &[&str]) -> Output {
    fixture.tool().arg("policy").args(arguments).output().unwrap()
}

/// Returns the state of the server; `None` if none answers.
fn status(fixture: &Fixture) -> Option<Value> {
    let output = policy(fixture, &["status", "--json"]);
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// Returns the member `pid` of the class with this index.
fn member(fixture: &Fixture, class: usize, pid: u32) -> Option<Value> {
    let status = status(fixture)?;
    let members = status["classes"][class]["members"].as_array()?;
    members.iter().find(|member| member["pid"] == pid).cloned()
}

/// Waits until `done` holds, at most ten seconds.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the share of the anonymous pages of `pid` whose color is in `allowed`, by the bits of their frames.
fn share(pid: u32, allowed: std::ops::Range<u64>) -> f64 {
    let mappings = resident::mappings(pid).unwrap();
    let anonymous = mappings.iter().filter(|mapping| mapping.name.is_empty());
    let frames: Vec<u64> =
        anonymous.flat_map(|mapping| &mapping.pages).filter_map(|page| Some(page.frame?.0)).collect();
    frames.iter().filter(|frame| allowed.contains(&(*frame % 16))).count() as f64 / frames.len() as f64
}

fn is_there(fixture: &Fixture, class: usize, pid: u32) -> bool {
    member(fixture, class, pid).is_some_and(|member| member["seconds_to_colors"].is_f64() && member["off_color"] == 0)
}

/// Returns a policy with a class of four colors for the program `exe`, and another for `other`.
fn two_classes(exe: &str, colors: &str, other: &str) -> String {
    format!(
        "[class.control]\ncolors = \"{colors}\"\nmembers = [{{ exe = \"{exe}\" }}]\n\n\
         [class.batch]\ncache = \"rest\"\nmembers = [{{ exe = \"{other}\" }}]\n"
    )
}

fn placed(fixture: &Fixture) -> Outcome {
    let (early, control) = walker(fixture, "control");
    let other = fixture.path("batch");
    write_policy(fixture, &two_classes(&control.display().to_string(), "0-3", &other.display().to_string()));
    let _server = server(fixture);
    // One that was there before, one that comes later, and one that no class wants.
    let (late, _) = walker(fixture, "control");
    let (batch, _) = walker(fixture, "batch");
    let (stranger, _) = walker(fixture, "stranger");
    wait_until("the programs are on their colors", || {
        is_there(fixture, 0, early.pid()) && is_there(fixture, 0, late.pid()) && is_there(fixture, 1, batch.pid())
    });
    assert!(share(early.pid(), 0..4) >= 0.99 && share(late.pid(), 0..4) >= 0.99);
    assert!(share(batch.pid(), 4..16) >= 0.99);
    // A program that is left alone has pages of all colors, as it happens.
    assert!(share(stranger.pid(), 0..16) == 1.0 && member(fixture, 0, stranger.pid()).is_none());
    let explained = policy(fixture, &["explain", &late.pid().to_string()]);
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(text.contains("class control (colors 0-3)") && text.contains("exe ="), "{text}");
    let text = policy(fixture, &["explain", &stranger.pid().to_string()]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("no member matches"));
    // Nobody else gets the colors of a class.
    let exec = fixture.isochrome("exec", "0-1").arg("--strict").arg("true").output().unwrap();
    let error = String::from_utf8_lossy(&exec.stderr).into_owned();
    assert!(exec.status.code() == Some(125) && error.contains("isochrome"), "{error}");
    drop(late);
    wait_until("a program that ended is forgotten", || {
        status(fixture).is_some_and(|status| status["classes"][0]["members"].as_array().unwrap().len() == 1)
    });
    Ok(())
}

fn reloaded(fixture: &Fixture) -> Outcome {
    let (program, control) = walker(fixture, "control");
    let exe = control.display().to_string();
    write_policy(fixture, &two_classes(&exe, "0-3", "/no/such/file"));
    let server = server(fixture);
    wait_until("the program is on its colors", || is_there(fixture, 0, program.pid()));
    // What is wrong is refused, with line and reason, and nothing changes.
    for (wrong, reason) in [
        ("[class.control]\ncolors = 99\nmembers = [{ unit = \"*\" }]\n", "control 99"),
        ("[class.control]\n", "line 1"),
        ("nonsense", "line 1"),
    ] {
        write_policy(fixture, wrong);
        fs::write(fixture.path("server.err"), "").unwrap();
        server.signal("-HUP");
        wait_until("the server says why", || {
            let said = fs::read_to_string(fixture.path("server.err")).unwrap();
            said.contains("stays in force") && said.contains(reason)
        });
        assert_eq!(status(fixture).unwrap()["classes"][0]["colors"], "0-3");
    }
    let next = write_policy(fixture, &two_classes(&exe, "8-11", "/no/such/file"));
    let diff = policy(fixture, &["diff", &next.display().to_string()]);
    let text = String::from_utf8_lossy(&diff.stdout).into_owned();
    // How many colors the machine itself has does not matter where all of the listed ones exist.
    assert!(!diff.status.success() || text.contains("control: colors 0-3 become 8-11"), "{text}");
    server.signal("-HUP");
    wait_until("the program is on its new colors", || {
        is_there(fixture, 0, program.pid()) && share(program.pid(), 8..12) >= 0.99
    });
    Ok(())
}

fn killed(fixture: &Fixture) -> Outcome {
    let (mut program, control) = walker(fixture, "control");
    write_policy(fixture, &two_classes(&control.display().to_string(), "0-3", "/no/such/file"));
    for round in 0..5 {
        let mut first = server(fixture);
        std::thread::sleep(Duration::from_millis(40 * round));
        first.signal("-KILL");
        first.0.wait().unwrap();
        assert!(program.0.try_wait().unwrap().is_none(), "the member runs on");
    }
    let mut last = server(fixture);
    wait_until("the next server goes on", || is_there(fixture, 0, program.pid()) && share(program.pid(), 0..4) >= 0.99);
    last.signal("-TERM");
    assert!(last.0.wait().unwrap().success());
    assert!(program.0.try_wait().unwrap().is_none() && share(program.pid(), 0..4) >= 0.99);
    // The colors are free again.
    let exec = fixture.isochrome("exec", "0-3").arg("--strict").arg("true").output().unwrap();
    assert!(exec.status.success(), "{}", String::from_utf8_lossy(&exec.stderr));
    Ok(())
}

fn refused(fixture: &Fixture) -> Outcome {
    let error = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let nobody = error(fixture.tool().args(["policy", "status"]));
    assert!(nobody.contains("no server runs") && nobody.contains("hint"), "{nobody}");
    let missing = error(fixture.tool().args(["serve", "--config", "/no/such/policy.toml"]));
    assert!(missing.contains("cannot be read") && missing.contains("hint"), "{missing}");
    let path = write_policy(fixture, "[class.a]\ncolors = 2\nmember = 3\n").display().to_string();
    let wrong = error(fixture.tool().args(["policy", "check", &path]));
    assert!(wrong.contains("line 3") && wrong.contains("member"), "{wrong}");
    write_policy(fixture, &two_classes("/no/such/file", "0-3", "/no/such/file"));
    let _server = server(fixture);
    let mut second = fixture.tool();
    second.args(["serve", "--config", &path, "--trust-palette", "--palette"]).arg(fixture.path("bits.json"));
    let second = error(&mut second);
    assert!(second.contains("a server runs already"), "{second}");
    Ok(())
}
