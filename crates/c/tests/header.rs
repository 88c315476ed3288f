//! Tests that the header, the library and the C example fit together: the example is compiled with warnings as errors, linked with the
//! static and with the shared library, and run. If colors cannot be found, the test is reported as ignored; `HARDWARE_REQUIRED=1` makes
//! that a failure.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use isochrome_host::color::resident;
use isochrome_host::run::marks::{Edge, MarkReader, VARIABLE};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One at a time: they measure the same cache.
    arguments.test_threads.get_or_insert(1);
    let trials = vec![
        trial("the_example_runs_with_the_static_library", "run"),
        trial("the_example_runs_with_the_shared_library", "shared"),
        Trial::ignorable_test(
            "jobs_of_a_program_are_marked_for_who_observes_it_and_else_nothing_happens",
            jobs_are_marked,
        ),
        Trial::ignorable_test("a_program_moves_itself_onto_colors", recolored_by_itself),
        Trial::test("the_library_has_every_function_of_the_header_and_no_other", every_function),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c")
}

/// Returns the folder where cargo has put the libraries: that of this test.
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

fn no_compiler() -> bool {
    ["make", "cc"].iter().any(|program| Command::new(program).arg("--version").output().is_err())
}

fn trial(name: &'static str, goal: &'static str) -> Trial {
    Trial::ignorable_test(name, move || {
        if no_compiler() {
            return not_run("make or cc is missing");
        }
        let output = make(goal).output()?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        match output.status.code() {
            Some(0) if text.contains("page 5: color 3") => Ok(Completion::Completed),
            // make gives 2 and says what the program gave.
            Some(2) if text.contains("Error 3") => not_run(text.lines().find(|l| l.contains("colors")).unwrap_or("")),
            code => Err(Failed::from(format!("{code:?}: {text}"))),
        }
    })
}

/// Returns the path of the program `jobs`.
fn jobs() -> Result<PathBuf, Failed> {
    let built = make("jobs").output()?;
    if built.status.success() {
        Ok(Path::new(env!("CARGO_TARGET_TMPDIR")).join("jobs"))
    } else {
        Err(Failed::from(String::from_utf8_lossy(&built.stderr).into_owned()))
    }
}

fn jobs_are_marked() -> Result<Completion, Failed> {
    if no_compiler() {
        return not_run("make or cc is missing");
    }
    let program = jobs()?;
    let mut reader = MarkReader::new(64)?;
    let run = |mut command: Command| {
        let output = command.stdin(Stdio::null()).output().expect("the program starts");
        assert!(output.status.success() && output.stdout.starts_with(b"sum "), "{output:?}");
    };
    let mut marks = Vec::new();
    run(Command::new(&program));
    // A number that is no ring: the program's standard output.
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
    Ok(Completion::Completed)
}

fn recolored_by_itself() -> Result<Completion, Failed> {
    let frames = resident::mappings(std::process::id());
    if let Err(error) = frames {
        return not_run(&error.to_string());
    }
    if no_compiler() {
        return not_run("make or cc is missing");
    }
    let command = libraries().join("../isochrome");
    if !command.exists() {
        return not_run("the isochrome command is not built; cargo build -p isochrome-cli");
    }
    let program = jobs()?;
    let folder = tempfile::tempdir()?;
    let palette = folder.path().join("bits.json");
    std::fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#)?;
    // The colors are bits of the frame number and not those of the cache, so eviction tests must not judge them.
    let trusting = folder.path().join("isochrome");
    std::fs::write(&trusting, format!("#!/bin/sh\nexec '{}' \"$@\" --trust-palette\n", command.display()))?;
    std::fs::set_permissions(&trusting, std::fs::Permissions::from_mode(0o755))?;
    let start = |colors: &str, command: &Path| {
        let mut jobs = Command::new(&program);
        jobs.arg(colors).arg(&palette).env("ISOCHROME", command).env("ISOCHROME_RUNTIME_DIR", folder.path());
        jobs.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    for (colors, command, what) in
        [("16", &*trusting, "out of range"), ("0-3", Path::new("/no/such/command"), "into PATH")]
    {
        let output = start(colors, command).wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && said.contains(what) && said.contains("hint:"), "{output:?}");
    }
    let mut moved = start("4-6", &trusting);
    let mut line = String::new();
    BufReader::new(moved.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("sum "), "{line} {:?}", moved.wait_with_output());
    // Its buffer: other memory it may have touched since.
    let mappings = resident::mappings(moved.id()).expect("it waits for the end of its input");
    let buffer = mappings.iter().find(|mapping| mapping.name.is_empty() && mapping.pages.len() >= 256).expect("1 MiB");
    let there = buffer.pages.iter().filter(|page| page.frame.is_some_and(|frame| (4..7).contains(&(frame.0 % 16))));
    let there = there.count();
    assert!(there >= 256, "{there} of {} pages", buffer.pages.len());
    let output = moved.wait_with_output()?;
    assert!(output.status.success(), "{output:?}");
    Ok(Completion::Completed)
}

fn not_run(why: &str) -> Result<Completion, Failed> {
    if std::env::var_os("HARDWARE_REQUIRED").is_some() {
        Err(Failed::from(why))
    } else {
        // On one line, because the list at the end of `make test` has one line per test.
        Ok(Completion::ignored_with(why.lines().collect::<Vec<_>>().join(" ")))
    }
}

fn every_function() -> Result<(), Failed> {
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
    if declared == defined && declared.len() > 5 {
        Ok(())
    } else {
        Err(format!("{declared:?} against {defined:?}").into())
    }
}
