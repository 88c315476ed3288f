//! Tests of `doctor --fix` and `--undo` on the kernel that runs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::trial::{NotRun, Outcome};

/// Settings that `doctor --fix` may change, where the kernel has them.
const SETTINGS: [&str; 7] = [
    "/proc/sys/vm/compact_unevictable_allowed",
    "/proc/sys/vm/compaction_proactiveness",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/kernel/numa_balancing",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/module/page_reporting/parameters/page_reporting_order",
];

fn settings() -> BTreeMap<&'static str, String> {
    SETTINGS.into_iter().filter_map(|file| Some((file, fs::read_to_string(file).ok()?))).collect()
}

/// Runs `isochrome doctor` with a runtime folder of its own.
fn doctor(folder: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    command.arg("doctor").args(options).env("ISOCHROME_RUNTIME_DIR", folder).output().expect("the command starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the names of the checks that `doctor --fix` can fix.
fn fixable(folder: &Path) -> Vec<String> {
    let found: Value = serde_json::from_slice(&doctor(folder, &["--json"]).stdout).expect("doctor prints JSON");
    let checks = found["checks"].as_array().expect("checks").iter();
    let all = checks.filter(|check| check["fixable"] == true);
    all.map(|check| check["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Undoes the changes of `doctor --fix` when it is dropped, also if the test fails.
struct Undo<'a>(&'a Path);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        doctor(self.0, &["--undo"]);
    }
}

pub fn fix_and_undo() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(NotRun("settings of the kernel are changed by root only".to_owned()));
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (before, findings) = (settings(), fixable(folder));
    if findings.is_empty() {
        return Err(NotRun("every harmless setting is made here already".to_owned()));
    }
    let _undo = Undo(folder);
    let would = stdout(&doctor(folder, &["--fix", "--dry-run"]));
    assert!(findings.iter().all(|finding| would.contains(finding.as_str())), "{findings:?}: {would}");
    let refused = doctor(folder, &["--fix"]);
    assert_eq!(refused.status.code(), Some(1), "nobody can be asked here");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--yes"));
    assert_eq!(settings(), before);

    let fixed = doctor(folder, &["--fix", "--yes"]);
    let message = String::from_utf8_lossy(&fixed.stderr).into_owned();
    if message.contains("Read-only file system") {
        return Err(NotRun(message));
    }
    assert_eq!(fixed.status.code(), Some(0), "{message}");
    assert_eq!(fixable(folder), [""; 0], "{}", stdout(&fixed));
    let changed = settings().into_iter().filter(|(file, text)| before[file] != *text).count();
    assert_eq!(changed, findings.len(), "{}", stdout(&fixed));

    let undone = doctor(folder, &["--undo"]);
    assert_eq!(undone.status.code(), Some(0), "{}", String::from_utf8_lossy(&undone.stderr));
    assert_eq!(settings(), before, "{}", stdout(&undone));
    assert_eq!(stdout(&undone).matches("restored: ").count(), findings.len(), "{}", stdout(&undone));
    assert!(stdout(&doctor(folder, &["--undo"])).contains("nothing to undo"));
    Ok(())
}

pub fn without_root() -> Outcome {
    // `setpriv` is part of util-linux, but a checkout in a folder of root cannot be executed by others.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("isochrome");
    fs::copy(env!("CARGO_BIN_EXE_isochrome"), &copy).unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for option in ["--fix", "--undo"] {
        let before = settings();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy).args(["doctor", option]);
        let output = command.output().map_err(|error| NotRun(format!("setpriv: {error}")))?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        if message.contains("setpriv:") {
            return Err(NotRun(message));
        }
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("only root") && message.contains("hint:") && message.contains(option), "{message}");
        assert_eq!(settings(), before);
    }
    Ok(())
}
