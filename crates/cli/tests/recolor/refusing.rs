//! Tests of processes that must not be touched.

use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::Fixture;
use crate::target::left_behind;
use crate::trial::{NotRun, Outcome};

pub fn refusals(fixture: &Fixture) -> Outcome {
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
    unusable_palettes(fixture, pid);
    nobody_is_refused(fixture, pid);
    let mut untried = protected_programs(fixture);
    untried.extend(small_program_is_refused(fixture));
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off, counts.broken_off_epoll), (0, 0, 0));
    if untried.is_empty() { Ok(()) } else { Err(NotRun(format!("the others are refused: {}", untried.join("; ")))) }
}

/// Checks that `command` fails, says `what`, and gives a hint.
fn refused(mut command: Command, what: &str) {
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains(what) && message.contains("hint:"), "`{what}` is not in: {message}");
}

fn unusable_palettes(fixture: &Fixture, pid: u32) {
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
}

/// Checks what a user without privileges is told about a process of another user, and about one of its own.
fn nobody_is_refused(fixture: &Fixture, pid: u32) {
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
}

/// Checks that programs which isochrome must not touch are as they were before. Returns why some could not be started.
fn protected_programs(fixture: &Fixture) -> Vec<String> {
    let mut untried = Vec::new();
    for (mode, what) in [
        ("seccomp", "may not make the system call `restart_syscall`"),
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
    untried
}

/// Checks that a 32-bit program is as it was before. Returns the reason if none could be started.
fn small_program_is_refused(fixture: &Fixture) -> Option<String> {
    let Some(mut other) = small_program(fixture) else {
        return Some("32-bit programs do not run here".to_owned());
    };
    // spawn returns while the kernel still maps the program. Its mappings are complete once it waits in pause (29 on i386).
    let begin = Instant::now();
    let pauses =
        || fs::read_to_string(format!("/proc/{}/syscall", other.id())).is_ok_and(|call| call.starts_with("29 "));
    while !pauses() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the 32-bit program does not wait in pause");
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = outside(other.id());
    refused(fixture.recolor(other.id(), "0-3"), "32-bit program");
    assert_eq!((outside(other.id()), other.try_wait().unwrap()), (before, None));
    other.kill().and_then(|()| other.wait()).unwrap();
    None
}

pub fn filtered(fixture: &Fixture) -> Outcome {
    let mut target = fixture.target("filtered")?;
    let (report, moved) = fixture.moved(target.pid(), "0-3", |_| {});
    assert!(moved > 0);
    assert_eq!(left_behind(&report), Vec::<&Value>::new());
    assert_eq!(target.process.try_wait().unwrap(), None);
    Ok(())
}

/// Returns the externally visible state of a process that a recoloring would change: its mappings, its number of threads, and its tracer.
pub fn outside(pid: u32) -> (String, usize, String) {
    let text = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let tracer = text("status").lines().find(|line| line.starts_with("TracerPid")).unwrap().to_owned();
    (text("maps"), fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(), tracer)
}

/// Starts the smallest 32-bit program, which only waits. `None` if the kernel does not run such programs.
fn small_program(fixture: &Fixture) -> Option<Child> {
    // mov eax, SYS_pause (29 on i386); int 0x80; jmp back.
    const CODE: [u8; 9] = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];
    const BASE: u32 = 0x0804_8000;
    const HEADERS: u32 = 52 + 32;
    let mut program = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves = |program: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|v| program.extend(v.to_le_bytes()));
    let words = |program: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|v| program.extend(v.to_le_bytes()));
    // The header of an executable for the i386: its entry, and the offset of its only program header.
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
