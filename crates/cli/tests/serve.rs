//! Tests of the memory server: who is put on which colors, reloading, refusals, and what is left when the server is killed.
//!
//! Colors are bits of the frame number here, so nothing depends on the caches of the machine. A test that the machine cannot run is reported
//! as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure.

#[expect(dead_code, reason = "other tests use the rest of it")]
mod fixture;
mod trial;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isochrome_host::color::resident;
use isochrome_host::server::places::Placing;
use isochrome_host::server::socket::{self, Ask, Say};
use isochrome_host::sys::memory::page_bytes;
use isochrome_model::placement::ResidentPage;
use serde_json::Value;

use fixture::Fixture;
use trial::{NotRun, Outcome, run as run_trials, trial};

fn main() -> ExitCode {
    run_trials(vec![
        trial("members_are_put_on_the_colors_of_their_class_and_others_are_left_alone", || placed(&Fixture::new()?)),
        trial("a_policy_is_replaced_as_a_whole_or_not_at_all", || reloaded(&Fixture::new()?)),
        trial("in_a_storm_of_policies_the_last_valid_one_is_in_force", || stormed(&Fixture::new()?)),
        trial("members_outlive_a_server_that_is_killed_and_the_next_one_goes_on", || killed(&Fixture::new()?)),
        trial("every_change_is_reported_to_who_follows_until_the_server_ends", || followed(&Fixture::new()?)),
        trial("clients_get_what_their_class_allows_and_nothing_else", || requested(&Fixture::new()?)),
        trial("a_new_member_gets_frames_of_a_reserve_that_the_rest_does_not_use", || stocked(&Fixture::new()?)),
        trial("parts_of_a_members_memory_get_some_of_its_colors", || partitioned(&Fixture::new()?)),
        trial("many_clients_and_nonsense_do_not_keep_others_waiting", || crowded(&Fixture::new()?)),
        trial("a_control_group_gets_a_class_of_its_own_as_long_as_it_has_processes", || contained(&Fixture::new()?)),
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
        assert!(server.0.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(60), "{}", said());
        thread::sleep(Duration::from_millis(20));
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

/// Waits until `done` holds. Fails after a minute, which is long enough on a machine whose CPUs others keep busy.
fn wait_until(fixture: &Fixture, what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        if begin.elapsed() > Duration::from_secs(60) {
            let state = policy(fixture, &["status"]);
            let said = fs::read_to_string(fixture.path("server.err")).unwrap_or_default();
            panic!("{what}:\n{}{said}", String::from_utf8_lossy(&state.stdout));
        }
        thread::sleep(Duration::from_millis(20));
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

/// Whether the member `pid` is on the colors `allowed` of its class, by the server and by the bits of its frames.
fn is_on(fixture: &Fixture, class: usize, pid: u32, allowed: std::ops::Range<u64>) -> bool {
    is_there(fixture, class, pid) && share(pid, allowed) >= 0.99
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
    wait_until(fixture, "the programs are on their colors", || {
        is_there(fixture, 0, early.pid()) && is_there(fixture, 0, late.pid()) && is_there(fixture, 1, batch.pid())
    });
    assert!(share(early.pid(), 0..4) >= 0.99 && share(late.pid(), 0..4) >= 0.99 && share(batch.pid(), 4..16) >= 0.99);
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
    // A program that holds colors by itself is left to its `exec`, and what has the rest keeps off them.
    let report = fixture.path("own.json");
    let mut own = fixture.isochrome("exec", "8-9");
    // `cat` ends when its input does, also if its `exec` is killed.
    own.arg("-o").arg(&report).arg("cat").stdin(Stdio::piped()).stderr(Stdio::null());
    let own = Running(own.spawn().unwrap());
    wait_until(fixture, "the batch program keeps off the colors of another", || share(batch.pid(), 8..10) == 0.0);
    assert!(share(batch.pid(), 4..16) >= 0.99);
    drop((own, late));
    wait_until(fixture, "a program that ended is forgotten", || {
        status(fixture).is_some_and(|status| status["classes"][0]["members"].as_array().unwrap().len() == 1)
    });
    Ok(())
}

fn stocked(fixture: &Fixture) -> Outcome {
    const FRAMES: u64 = 16_384;
    let (name, other) = (fixture.path("control"), fixture.path("batch"));
    let classes = two_classes(&name.display().to_string(), "0-3", &other.display().to_string());
    write_policy(fixture, &format!("reserve = \"{}K\"\n\n{classes}", FRAMES * page_bytes() as u64 / 1024));
    let _server = server(fixture);
    let frames = || status(fixture).map(|status| (status["reserve_pages"].as_u64(), status["reserve_known"].as_u64()));
    wait_until(fixture, "the reserve is full", || frames() == Some((Some(FRAMES), Some(FRAMES))));
    // Members of the class that has the rest get none of them.
    let (batch, _) = walker(fixture, "batch");
    wait_until(fixture, "the other program is on its colors", || is_there(fixture, 1, batch.pid()));
    assert_eq!(frames().unwrap().1, Some(FRAMES));
    let (control, _) = walker(fixture, "control");
    wait_until(fixture, "the program is on its colors", || is_there(fixture, 0, control.pid()));
    // Three quarters of each color are left, so the reserve is not refilled yet.
    let left = frames().unwrap().1;
    assert!((Some(FRAMES / 4 * 3)..Some(FRAMES)).contains(&left), "{left:?}");
    Ok(())
}

fn reloaded(fixture: &Fixture) -> Outcome {
    let (program, control) = walker(fixture, "control");
    let exe = control.display().to_string();
    write_policy(fixture, &two_classes(&exe, "0-3", "/no/such/file"));
    let server = server(fixture);
    wait_until(fixture, "the program is on its colors", || is_there(fixture, 0, program.pid()));
    // What is wrong is refused, with line and reason, and nothing changes.
    for (wrong, reason) in [
        ("[class.control]\ncolors = 99\nmembers = [{ unit = \"*\" }]\n", "control 99"),
        ("[class.control]\n", "line 1"),
        ("nonsense", "line 1"),
    ] {
        write_policy(fixture, wrong);
        fs::write(fixture.path("server.err"), "").unwrap();
        server.signal("-HUP");
        wait_until(fixture, "the server says why", || {
            let said = fs::read_to_string(fixture.path("server.err")).unwrap();
            said.contains("stays in force") && said.contains(reason)
        });
        assert_eq!(status(fixture).unwrap()["classes"][0]["colors"], "0-3");
        let refused = policy(fixture, &["reload"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("stays in force") && said.contains(reason), "{said}");
    }
    let next = write_policy(fixture, &two_classes(&exe, "8-11", "/no/such/file"));
    let diff = policy(fixture, &["diff", &next.display().to_string()]);
    let text = String::from_utf8_lossy(&diff.stdout).into_owned();
    // How many colors the machine itself has does not matter where all of the listed ones exist.
    assert!(!diff.status.success() || text.contains("control: colors 0-3 become 8-11"), "{text}");
    let reloaded = policy(fixture, &["reload"]);
    assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    assert_eq!(status(fixture).unwrap()["classes"][0]["colors"], "8-11", "in force when the command ends");
    wait_until(fixture, "the program is on its new colors", || is_on(fixture, 0, program.pid(), 8..12));
    Ok(())
}

/// Has the server read random policies, three of four of them wrong, `SERVE_RELOADS` of them, 30 by default.
fn stormed(fixture: &Fixture) -> Outcome {
    let reloads = std::env::var("SERVE_RELOADS").map_or(30, |reloads| reloads.parse().expect("SERVE_RELOADS=1000"));
    let (program, control) = walker(fixture, "control");
    let exe = control.display().to_string();
    write_policy(fixture, &two_classes(&exe, "0-3", "/no/such/file"));
    let server = server(fixture);
    let mut rng = fastrand::Rng::with_seed(20);
    let mut valid = "0-3".to_owned();
    for _ in 0..reloads {
        let first = rng.u32(0..12);
        let colors = format!("{first}-{}", first + rng.u32(1..4));
        let right = two_classes(&exe, &colors, "/no/such/file");
        let (text, is_valid) = match rng.u32(0..4) {
            0 => (right, true),
            1 => (right.replace(&colors, "0-99"), false),
            2 => (right[..rng.usize(1..right.len())].to_owned() + "\n[", false),
            _ => (right.replace("members", "member"), false),
        };
        write_policy(fixture, &text);
        fs::write(fixture.path("server.err"), "").unwrap();
        server.signal("-HUP");
        let expected = if is_valid { "was read again" } else { "stays in force" };
        wait_until(fixture, &format!("{expected}: {text}"), || {
            fs::read_to_string(fixture.path("server.err")).unwrap().contains(expected)
        });
        let in_force = |colors: &str| status(fixture).unwrap()["classes"][0]["colors"] == *colors;
        if is_valid {
            valid = colors;
        }
        assert!(in_force(&valid), "{text}");
    }
    wait_until(fixture, "the program is on the colors of the last valid policy", || {
        is_there(fixture, 0, program.pid())
    });
    Ok(())
}

/// Starts a program that writes to 4 MiB of its own all the time. Returns it, and a thread that reads its output until the sender is dropped. When
/// its output is no longer read, the program checks its memory and ends.
fn writer(fixture: &Fixture, name: &str) -> (Child, Sender<()>, JoinHandle<()>) {
    let program = fixture.path(name);
    fs::copy(env!("CARGO_BIN_EXE_isochrome"), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["job", "write", "4096", "--every", "2ms"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let (sender, receiver) = channel::<()>();
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while receiver.try_recv() == Err(TryRecvError::Empty) && output.read(&mut bytes).is_ok_and(|read| read > 0) {}
    });
    (child, sender, reader)
}

/// Kills the server `SERVE_KILLS` times, five times by default.
fn killed(fixture: &Fixture) -> Outcome {
    let kills = std::env::var("SERVE_KILLS").map_or(5, |kills| kills.parse().expect("SERVE_KILLS=200"));
    let (mut program, reading, reader) = writer(fixture, "control");
    let exe = fixture.path("control").display().to_string();
    for kill in 0..kills {
        // Other colors each time, so that there is something to move when the server is killed.
        let colors = ["0-3", "4-7", "8-11", "12-15"][kill % 4];
        write_policy(fixture, &two_classes(&exe, colors, "/no/such/file"));
        let mut first = server(fixture);
        thread::sleep(Duration::from_millis(fastrand::u64(0..150)));
        first.signal("-KILL");
        first.0.wait().unwrap();
        assert!(program.try_wait().unwrap().is_none(), "the member runs on");
    }
    write_policy(fixture, &two_classes(&exe, "0-3", "/no/such/file"));
    let mut last = server(fixture);
    wait_until(fixture, "the next server goes on", || is_on(fixture, 0, program.id(), 0..4));
    last.signal("-TERM");
    assert!(last.0.wait().unwrap().success());
    assert!(program.try_wait().unwrap().is_none() && share(program.id(), 0..4) >= 0.99);
    // The colors are free again, and no journal is left.
    let exec = fixture.isochrome("exec", "0-3").arg("--strict").arg("true").output().unwrap();
    assert!(exec.status.success(), "{}", String::from_utf8_lossy(&exec.stderr));
    let files =
        fs::read_dir(fixture.folder.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let journals: Vec<String> = files.filter(|name| name.starts_with("recolor-")).collect();
    assert!(journals.is_empty(), "{journals:?}");
    // The program finds all of its memory as it wrote it.
    drop(reading);
    reader.join().unwrap();
    assert!(program.wait().unwrap().success(), "a word is wrong");
    Ok(())
}

fn followed(fixture: &Fixture) -> Outcome {
    let program = fixture.path("control");
    write_policy(fixture, &two_classes(&program.display().to_string(), "0-3", "/no/such/file"));
    let mut server = server(fixture);
    let mut follow = fixture.tool();
    follow.args(["policy", "status", "--json", "--follow"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut follow = Running(follow.spawn().unwrap());
    let mut lines = BufReader::new(follow.0.stdout.take().unwrap()).lines();
    let mut members = || {
        let state: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let members = state["classes"][0]["members"].as_array().unwrap().clone();
        members.iter().map(|member| member["pid"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(members(), Vec::<u64>::new());
    let (running, _) = walker(fixture, "control");
    let pid = u64::from(running.pid());
    while members() != [pid] {}
    drop(running);
    while !members().is_empty() {}
    server.signal("-TERM");
    assert!(server.0.wait().unwrap().success());
    wait_until(fixture, "who follows ends with the server", || follow.0.try_wait().unwrap().is_some());
    Ok(())
}

/// Number of the user nobody.
const NOBODY: u32 = 65534;

fn requested(fixture: &Fixture) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(NotRun("only root can run programs as another user".to_owned()));
    }
    // Others may run the copy of isochrome in the folder, and ask the server.
    fs::set_permissions(fixture.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let (others, program) = walker(fixture, "isochrome");
    let text = "[class.control]\ncolors = \"4-7\"\nclients = [\"nobody\"]\n\n[class.closed]\ncolors = 2\nmembers = [{ exe = \"/no/such/file\" }]\n";
    write_policy(fixture, text);
    let mut first = server(fixture);
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.env("ISOCHROME_RUNTIME_DIR", fixture.folder.path()).uid(NOBODY).gid(NOBODY).args(arguments);
        command
    };
    let walk = [program.to_str().unwrap(), "job", "walk", "512", "--every", "5ms"];
    let start = |arguments: &[&str]| {
        let mut command = as_nobody(&[&["exec", "--class", "control"], arguments, &walk[..]].concat());
        Running(command.stdout(Stdio::null()).spawn().unwrap())
    };
    let (all, some) = (start(&[]), start(&["--colors", "0-1"]));
    wait_until(fixture, "a client is on the colors of its class", || is_on(fixture, 0, all.pid(), 4..8));
    wait_until(fixture, "a client is on some colors of its class", || is_on(fixture, 0, some.pid(), 4..6));
    let refusal = |arguments: &[&str]| {
        let output = as_nobody(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (own, theirs) = (all.pid().to_string(), others.pid().to_string());
    for (arguments, why) in [
        (&["exec", "--class", "closed", "true"][..], "user nobody may put nothing into class closed"),
        (&["exec", "--class", "contrl", "true"], "the classes are control, closed"),
        (&["exec", "--class", "control", "--colors", "3-4", "true"], "has 4 colors, 0 to 3"),
        (&["policy", "join", "control", "--pid", &theirs], "belongs to another user"),
        (&["policy", "join", "control", "--pid", "1"], "belongs to another user"),
        (&["policy", "join", "control", "--pid", &own, "--cgroup"], "only root"),
        (&["policy", "join", "--cache", "128K", "--pid", &own], "only root"),
    ] {
        let said = refusal(arguments);
        assert!(said.contains(why), "{said}");
    }
    // What was granted lasts when the server is killed.
    first.signal("-KILL");
    first.0.wait().unwrap();
    let _next = server(fixture);
    wait_until(fixture, "the next server knows its clients", || {
        is_on(fixture, 0, all.pid(), 4..8) && is_on(fixture, 0, some.pid(), 4..6)
    });
    Ok(())
}

fn partitioned(fixture: &Fixture) -> Outcome {
    let (member, control) = walker(fixture, "control");
    let (stranger, _) = walker(fixture, "stranger");
    write_policy(fixture, &two_classes(&control.display().to_string(), "4-7", "/no/such/file"));
    let mut first = server(fixture);
    wait_until(fixture, "the member is on its colors", || is_there(fixture, 0, member.pid()));
    // What it walks over is its largest mapping without a file.
    let mappings = resident::mappings(member.pid()).unwrap();
    let anonymous = mappings.iter().filter(|mapping| mapping.name.is_empty());
    let memory = anonymous.max_by_key(|mapping| mapping.pages.len()).unwrap();
    let (start, middle, end) = (memory.start, memory.start + (256 << 10), memory.end);
    assert!(middle < end, "{start:x}-{end:x}");
    let place = |pid: u32, start: u64, end: u64, colors: Option<&str>| {
        let placing = Placing { pid: Some(pid as i32), start, bytes: end - start, colors: colors.map(str::to_owned) };
        match socket::ask(fixture.folder.path(), Ask::Place(placing)).unwrap() {
            Say::Text(text) => Ok(text),
            Say::Error(error) => Err(error),
            said => panic!("{said:?}"),
        }
    };
    let granted = place(member.pid(), start, middle, Some("1")).unwrap();
    assert!(granted.ends_with("its colors 1"), "{granted}");
    place(member.pid(), middle, end, Some("2-3")).unwrap();
    let are_on = |from: u64, to: u64, colors: std::ops::Range<u64>| {
        let mappings = resident::mappings(member.pid()).unwrap();
        let pages = mappings.iter().flat_map(|mapping| &mapping.pages);
        let is_inside = |page: &&ResidentPage| (from..to).contains(&(page.page * page_bytes() as u64));
        let frames: Vec<u64> = pages.filter(is_inside).filter_map(|page| Some(page.frame?.0)).collect();
        !frames.is_empty() && frames.iter().all(|frame| colors.contains(&(frame % 16)))
    };
    wait_until(fixture, "each part is on its colors", || are_on(start, middle, 5..6) && are_on(middle, end, 6..8));
    wait_until(fixture, "so is the rest", || is_there(fixture, 0, member.pid()));
    for (refused, why) in [
        (place(member.pid(), start, middle, Some("4")), "has 4 colors, 0 to 3"),
        (place(member.pid(), start, start, Some("0")), "are needed"),
        (place(stranger.pid(), start, middle, Some("0")), "is in no class"),
        (place(i32::MAX as u32, start, middle, Some("0")), "hint"),
    ] {
        let error = refused.unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    // The next server knows them.
    first.signal("-KILL");
    first.0.wait().unwrap();
    let _next = server(fixture);
    wait_until(fixture, "the next server keeps the member", || is_there(fixture, 0, member.pid()));
    assert!(are_on(start, middle, 5..6) && are_on(middle, end, 6..8));
    // What two have in common is the later one's; without a list the memory has all colors again.
    place(member.pid(), start, end, Some("0")).unwrap();
    wait_until(fixture, "all of it is on one color", || are_on(start, end, 4..5));
    place(member.pid(), start, end, None).unwrap();
    wait_until(fixture, "the member is on the colors of its class", || {
        is_there(fixture, 0, member.pid()) && are_on(start, end, 4..8)
    });
    // Members of a class that has the rest have no places: they keep off the colors of others.
    place(member.pid(), start, end, Some("0")).unwrap();
    wait_until(fixture, "all of it is on one color again", || are_on(start, end, 4..5));
    let rest = format!("[class.control]\ncache = \"rest\"\nmembers = [{{ exe = \"{}\" }}]\n", control.display());
    write_policy(fixture, &rest);
    assert!(policy(fixture, &["reload"]).status.success());
    let mut other = fixture.isochrome("exec", "4-5");
    let _other = Running(other.arg("cat").stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    wait_until(fixture, "the member keeps off the colors of another", || share(member.pid(), 4..6) == 0.0);
    let unsteady = place(member.pid(), start, end, Some("0")).unwrap_err();
    assert!(unsteady.contains("its colors change"), "{unsteady}");
    Ok(())
}

/// More clients at a time than a server may serve.
const CLIENTS: usize = 10_000;

fn crowded(fixture: &Fixture) -> Outcome {
    write_policy(fixture, &two_classes("/no/such/file", "0-3", "/no/such/file"));
    let mut server = server(fixture);
    let path = fixture.path("serve.sock");
    let (mut silent, mut rng) = (Vec::new(), fastrand::Rng::with_seed(20));
    for number in 0..CLIENTS {
        // A connection that is closed at once is a refusal, too.
        let Ok(mut client) = UnixStream::connect(&path) else { continue };
        let nonsense: Vec<u8> = (0..rng.usize(0..8192)).map(|_| rng.u8(..)).collect();
        match number % 4 {
            0 if silent.len() < 500 => silent.push(client),
            1 => _ = client.write_all(&nonsense),
            2 => {
                _ = client
                    .write_all(b"{\"version\":1,\"ask\":{\"join\":{\"into\":{\"class\":\"control\"},\"pid\":-1}}}\n")
            }
            _ => _ = client.write_all(b"{\"version\":1,\"ask\":\"status\"}\n"),
        }
    }
    assert!(server.0.try_wait().unwrap().is_none(), "the server runs on");
    wait_until(fixture, "others get an answer", || status(fixture).is_some());
    drop(silent);
    server.signal("-TERM");
    assert!(server.0.wait().unwrap().success());
    Ok(())
}

/// Folders in which a control group can be made, of version 2 or 1.
const HIERARCHIES: [&str; 5] =
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"];

/// A control group that is removed when this is dropped.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Result<Group, NotRun> {
        let folders = HIERARCHIES.iter().filter(|folder| Path::new(folder).join("cgroup.procs").exists());
        let made = folders.map(|folder| Path::new(folder).join(name)).find(|group| fs::create_dir(group).is_ok());
        made.map(Group).ok_or_else(|| NotRun("no control group can be made here".to_owned()))
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group whose last process has just ended is busy for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn contained(fixture: &Fixture) -> Outcome {
    let name = format!("isochrome-test-{}", std::process::id());
    let group = Group::new(&name)?;
    let (inside, program) = walker(fixture, "control");
    group.add(inside.pid());
    write_policy(fixture, &two_classes("/no/such/file", "0-3", &program.display().to_string()));
    let _server = server(fixture);
    let state = format!(
        "{{\"ociVersion\":\"1.0.2\",\"id\":\"c1\",\"status\":\"created\",\"pid\":{},\"bundle\":\"/\",\"annotations\":{{\"isochrome.cache\":\"1\"}}}}",
        inside.pid()
    );
    let mut hook = fixture.tool().args(["policy", "join", "--oci", "--strict"]).stdin(Stdio::piped()).spawn().unwrap();
    hook.stdin.take().unwrap().write_all(state.as_bytes()).unwrap();
    assert!(hook.wait().unwrap().success());
    let class = |index: usize| status(fixture).map(|status| status["classes"][index]["class"].clone());
    assert_eq!(class(1).unwrap(), format!("/{name}"), "the class stands before the one that has the rest");
    wait_until(fixture, "the container is on its color", || is_on(fixture, 1, inside.pid(), 4..5));
    // A process that comes later belongs to it as well, and one outside has the rest without the color.
    let (late, _) = walker(fixture, "control");
    let (outside, _) = walker(fixture, "control");
    group.add(late.pid());
    wait_until(fixture, "a later process follows", || is_on(fixture, 1, late.pid(), 4..5));
    wait_until(fixture, "others keep off", || is_on(fixture, 2, outside.pid(), 5..16));
    drop((inside, late));
    wait_until(fixture, "the class goes with its group", || class(1).is_some_and(|class| class == "batch"));
    wait_until(fixture, "its color is left to others", || {
        status(fixture).is_some_and(|status| status["classes"][1]["colors"] == "4-15")
    });
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
