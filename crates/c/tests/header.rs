//! The header, the library and the C example fit together: the example is compiled with warnings as errors, linked with the static and
//! with the shared library, and run. Where colors cannot be found it is reported as ignored; `HARDWARE_REQUIRED=1` makes that a failure.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One at a time: they measure the same cache.
    arguments.test_threads.get_or_insert(1);
    let trials = vec![
        trial("the_example_runs_with_the_static_library", "run"),
        trial("the_example_runs_with_the_shared_library", "shared"),
        Trial::test("the_library_has_every_function_of_the_header_and_no_other", every_function),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c")
}

/// Where cargo put the libraries: beside this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.parent().expect("in a folder").to_owned()
}

fn trial(name: &'static str, goal: &'static str) -> Trial {
    Trial::ignorable_test(name, move || {
        if Command::new("make").arg("--version").output().is_err()
            || Command::new("cc").arg("--version").output().is_err()
        {
            return not_run("make or cc is missing");
        }
        let variable = |name: &str, path: &Path| format!("{name}={}", path.display());
        let output = Command::new("make")
            .arg("-C")
            .arg(example())
            .args([
                goal,
                "-B",
                &variable("LIB", &libraries()),
                &variable("OUT", Path::new(env!("CARGO_TARGET_TMPDIR"))),
            ])
            .output()?;
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        match output.status.code() {
            Some(0) if told.contains("page 5: color 3") => Ok(Completion::Completed),
            // make gives 2 and says what the program gave.
            Some(2) if told.contains("Error 3") => not_run(told.lines().find(|l| l.contains("colors")).unwrap_or("")),
            code => Err(Failed::from(format!("{code:?}: {told}"))),
        }
    })
}

fn not_run(why: &str) -> Result<Completion, Failed> {
    if std::env::var_os("HARDWARE_REQUIRED").is_some() {
        Err(Failed::from(why))
    } else {
        Ok(Completion::ignored_with(why))
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
