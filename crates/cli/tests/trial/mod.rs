//! Tests that a machine may be unable to run: they are reported as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Outcome of a test.
pub type Outcome = Result<(), NotRun>;

/// Reason why a machine cannot run a test.
pub struct NotRun(pub String);

/// Returns a test with this name.
pub fn trial(name: &'static str, test: impl FnOnce() -> Outcome + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match test() {
        Ok(()) => Ok(Completion::Completed),
        Err(NotRun(why)) if std::env::var_os("HARDWARE_REQUIRED").is_some_and(|value| value == "1") => {
            Err(Failed::from(why))
        }
        // On one line, because the list at the end of `make test` has one line per test.
        Err(NotRun(why)) => Ok(Completion::ignored_with(why.lines().map(str::trim).collect::<Vec<_>>().join(" "))),
    })
}

/// Runs the tests one at a time by default, because they share caches and CPUs.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}
