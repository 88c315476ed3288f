//! Runs the command, and checks its output.

use std::process::{Command, Output};

use serde_json::Value;

use crate::trial::NotRun;

pub fn isochrome(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    command.args(arguments);
    command
}

/// Runs `command`. A machine without colors or usable timing is a reason to ignore the test.
pub fn output(mut command: Command) -> Result<Output, NotRun> {
    judged(command.output().expect("the command starts"))
}

pub fn judged(output: Output) -> Result<Output, NotRun> {
    const REASONS: [&str; 8] = [
        "loses its contents by itself",
        "too close to tell apart",
        "single page color",
        "no set of pages evicts",
        "palette is in doubt",
        // Other programs may have taken some of the 64 MiB that were measured.
        "the palette cannot be tested",
        "frame numbers read as zero",
        // On a busy machine, moving a program onto its colors may take longer than the warm-up.
        "longer than its warm-up",
    ];
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let reason = message.lines().find(|line| REASONS.iter().any(|reason| line.contains(reason)));
    match (output.status.code(), reason) {
        (Some(0), _) => Ok(output),
        (Some(3), _) if !message.contains("palette is in doubt") => Ok(output),
        (_, Some(reason)) => Err(NotRun(reason.to_owned())),
        (code, None) => panic!("exit code {code:?}: {message}"),
    }
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

/// Returns a folder whose files keep their frames.
pub fn in_memory() -> Result<tempfile::TempDir, NotRun> {
    tempfile::tempdir_in("/dev/shm").map_err(|error| NotRun(format!("/dev/shm: {error}")))
}

/// Runs the command as a user without privileges, with a runtime folder in memory.
pub struct Nobody(pub tempfile::TempDir);

impl Nobody {
    pub fn new() -> Result<Nobody, NotRun> {
        let folder = in_memory()?;
        // A copy of the program that everybody may run.
        let program = folder.path().join("isochrome");
        std::fs::copy(env!("CARGO_BIN_EXE_isochrome"), &program).unwrap();
        let runtime = folder.path().join("runtime");
        std::fs::create_dir(&runtime).unwrap();
        for (path, mode) in [(folder.path(), 0o755), (&program, 0o755), (&runtime, 0o700)] {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::chown(&runtime, Some(65534), Some(65534))
            .map_err(|error| NotRun(format!("giving a folder away takes root: {error}")))?;
        let nobody = Nobody(folder);
        if !nobody.command(&["--version"]).output().is_ok_and(|output| output.status.success()) {
            return Err(NotRun("becoming an unprivileged user takes root and setpriv".to_owned()));
        }
        Ok(nobody)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(self.0.path().join("isochrome"));
        command.args(arguments);
        command.env("ISOCHROME_RUNTIME_DIR", self.0.path().join("runtime"));
        command
    }

    /// Returns a command that runs `program` as the unprivileged user.
    pub fn program(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]);
        command.arg(program);
        command
    }
}

/// Runs `command`. Exit codes 2 and 3 are answers too: a flood that leaves lines, or a machine that is never undisturbed.
pub fn answer(mut command: Command) -> Result<Output, NotRun> {
    let ran = command.output().expect("the command starts");
    if ran.status.code() == Some(2) { Ok(ran) } else { judged(ran) }
}

/// Returns the report on the evidence that a command has written.
pub fn reported(evidence: &std::path::Path) -> String {
    let report = isochrome(&["report", evidence.to_str().unwrap()]).output().unwrap();
    assert!(report.status.success());
    String::from_utf8(report.stdout).unwrap()
}

/// Fails with a reason to ignore the test if the tool came to no conclusion.
pub fn conclusive(output: &Output) -> Result<(), NotRun> {
    if output.status.code() != Some(3) {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(NotRun(format!("inconclusive: {}", message.lines().last().unwrap_or_default())))
}
