//! Tests that the header, the library and the C example fit together: the example is compiled with warnings as errors, linked with the
//! static and with the shared library, and run. If colors cannot be found, the test is reported as ignored; `HARDWARE_REQUIRED=1` makes
//! that a failure.

#[path = "../../cli/tests/trial/mod.rs"]
mod trial;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use isochrome_host::color::resident;
use isochrome_host::run::marks::{Edge, MarkReader, VARIABLE};
use libtest_mimic::Trial;

use trial::{NotRun, Outcome, run, trial};

fn main() -> ExitCode {
    run(vec![
        trial("the_example_runs_with_the_static_library", || example_runs("run")),
        trial("the_example_runs_with_the_shared_library", || example_runs("shared")),
        trial("jobs_of_a_program_are_marked_for_who_observes_it_and_else_nothing_happens", jobs_are_marked),
        trial("a_program_moves_itself_onto_colors", recolored_by_itself),
        Trial::test("the_library_has_every_function_of_the_header_and_no_other", || {
            every_function();
            Ok(())
        }),
    ])
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c")
}

/// Returns the folder of this test program, where cargo puts the libraries too.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.parent().expect("in a folder").to_owned()
}

/// Returns a `make` command for the example, with the libraries that cargo has built.
fn make(goal: &str) -> Command {
    let variable = |name: &str, path: &Path| format!("{name}={}", path.display());
    let mut make = Command::new("make");
    make.arg("-C").arg(example()).args([goal, "-B"]);
    make.args([variable("LIB", &libraries()), variable("OUT", Path::new(env!("CARGO_TARGET_TMPDIR")))]);
    make
}

fn has_compiler() -> Outcome {
    let found = |program| Command::new(program).arg("--version").output().is_ok();
    if ["make", "cc"].into_iter().all(found) { Ok(()) } else { Err(NotRun("make or cc is missing".to_owned())) }
}

fn example_runs(goal: &str) -> Outcome {
    has_compiler()?;
    let output = make(goal).output().expect("make starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(0) if text.contains("page 5: color 3") => Ok(()),
        // make exits with 2 and prints the exit code of the example, which is 3 if the colors cannot be found.
        Some(2) if text.contains("Error 3") => {
            Err(NotRun(text.lines().find(|line| line.contains("colors")).unwrap_or("").to_owned()))
        }
        code => panic!("{code:?}: {text}"),
    }
}

/// Builds the program `jobs` and returns its path.
fn jobs() -> PathBuf {
    let built = make("jobs").output().expect("make starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("jobs")
}

fn jobs_are_marked() -> Outcome {
    has_compiler()?;
    let program = jobs();
    let mut reader = MarkReader::new(64).expect("a ring");
    let run = |mut command: Command| {
        let output = command.stdin(Stdio::null()).output().expect("the program starts");
        assert!(output.status.success() && output.stdout.starts_with(b"sum "), "{output:?}");
    };
    let mut marks = Vec::new();
    run(Command::new(&program));
    // This descriptor is the program's standard output and no ring.
    let mut wrong = Command::new(&program);
    wrong.env(VARIABLE, "1");
    run(wrong);
    reader.read(&mut marks);
    assert_eq!(marks, []);
    let mut observed = Command::new(&program);
    reader.tell(&mut observed);
    run(observed);
    reader.read(&mut marks);
    let edges: Vec<Edge> = marks.iter().map(|mark| mark.edge).collect();
    assert_eq!(edges, [Edge::Begin, Edge::End].repeat(5));
    assert!(marks.iter().map(|mark| mark.at.0).is_sorted() && reader.lost() == 0, "{marks:?}");
    Ok(())
}

fn recolored_by_itself() -> Outcome {
    resident::mappings(std::process::id()).map_err(|error| NotRun(error.to_string()))?;
    has_compiler()?;
    let command = libraries().join("../isochrome");
    if !command.exists() {
        return Err(NotRun("the isochrome command is not built; cargo build -p isochrome-cli".to_owned()));
    }
    let program = jobs();
    let folder = tempfile::tempdir().expect("a folder");
    let palette = folder.path().join("bits.json");
    std::fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#)
        .expect("a file");
    // The colors are bits of the frame number and not those of the cache, so eviction tests must not judge them.
    let trusting = folder.path().join("isochrome");
    std::fs::write(&trusting, format!("#!/bin/sh\nexec '{}' \"$@\" --trust-palette\n", command.display()))
        .expect("a file");
    std::fs::set_permissions(&trusting, std::fs::Permissions::from_mode(0o755)).expect("its own file");
    let start = |colors: &str, command: &Path| {
        let mut jobs = Command::new(&program);
        jobs.arg(colors).arg(&palette).env("ISOCHROME", command).env("ISOCHROME_RUNTIME_DIR", folder.path());
        jobs.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    for (colors, command, what) in
        [("16", &*trusting, "out of range"), ("0-3", Path::new("/no/such/command"), "into PATH")]
    {
        let output = start(colors, command).wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && said.contains(what) && said.contains("hint:"), "{output:?}");
    }
    let mut moved = start("4-6", &trusting);
    let mut line = String::new();
    BufReader::new(moved.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("sum "), "{line} {:?}", moved.wait_with_output());
    // Only the buffer is checked, because the program may have touched other memory since the move.
    let mappings = resident::mappings(moved.id()).expect("it waits for the end of its input");
    let buffer = mappings.iter().find(|mapping| mapping.name.is_empty() && mapping.pages.len() >= 256).expect("1 MiB");
    let there = buffer.pages.iter().filter(|page| page.frame.is_some_and(|frame| (4..7).contains(&(frame.0 % 16))));
    let there = there.count();
    assert!(there >= 256, "{there} of {} pages", buffer.pages.len());
    let output = moved.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

fn every_function() {
    let header = include_str!("../include/isochrome.h");
    // A declaration is a line that ends in `);` and names the function before the parenthesis.
    let declared = header.lines().filter_map(|line| line.strip_suffix(");")?.split_once('(')).map(|(before, _)| before);
    let name = |before: &str| before.rsplit([' ', '*']).next().unwrap_or_default().to_owned();
    let mut declared: Vec<String> = declared.map(name).collect();
    let source = include_str!("../src/lib.rs");
    let defined = source.lines().filter_map(|line| line.split_once("extern \"C\" fn ")?.1.split_once('('));
    let mut defined: Vec<String> = defined.map(|(name, _)| name.to_owned()).collect();
    declared.sort();
    defined.sort();
    assert!(declared == defined && declared.len() > 5, "{declared:?} against {defined:?}");
}
