//! Tests that a machine may be unable to run: they are reported as ignored, with the reason; `HARDWARE_REQUIRED=1` makes that a failure.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// What a test came to.
pub type Outcome = Result<(), NotRun>;

/// Why a machine cannot run a test.
pub struct NotRun(pub String);

/// A test by its name.
pub fn trial(name: &'static str, test: impl FnOnce() -> Outcome + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match test() {
        Ok(()) => Ok(Completion::Completed),
        Err(NotRun(why)) if std::env::var_os("HARDWARE_REQUIRED").is_some() => Err(Failed::from(why)),
        // On one line, as the list at the end of `make test` has it.
        Err(NotRun(why)) => Ok(Completion::ignored_with(why.lines().map(str::trim).collect::<Vec<_>>().join(" "))),
    })
}

/// Runs them one at a time, unless told otherwise: they share caches and CPUs.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}
