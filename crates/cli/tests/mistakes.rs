//! The most likely mistakes of a beginner, and what the tool answers: what went wrong, why, and what to type.
//!
//! The answers are the page docs/results/mistakes.md; after an intended change run this test with `UPDATE_GOLDEN=1`, and inspect the page. The
//! command lines that it suggests are parsed by `usage::tests` of the command.

mod trial;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use rustix::process::geteuid;
use tempfile::TempDir;

use trial::{NotRun, Outcome, trial};

/// A mistake, and what its answer must be.
struct Mistake {
    title: &'static str,
    /// The words behind `isochrome`. `KERNEL` stands for a thread of the kernel, `ITSELF` for the command's own process.
    line: &'static str,
    code: i32,
    /// Text that the answer must contain: what went wrong.
    says: &'static str,
    /// Text that a hint of the answer must contain: a command or a change.
    suggests: &'static str,
}

/// Title, line, exit code, what the answer says and what it suggests. Linux gives no process a number as large as 4194305.
const MISTAKES: [(&str, &str, i32, &str, &str); 38] = [
    ("No program", "exec", 125, "not provided", "isochrome exec --colors 0-3 ./control"),
    ("No program after the options", "exec --colors 0,1", 125, "PROGRAM ARGS", "isochrome exec --colors 0-3 ./control"),
    ("The program is not there", "exec --colors 0-3 contrl", 127, "contrl: cannot be started", "ls -l ./contrl"),
    (
        "The program is not executable",
        "exec --colors 0-3 ./tasks.json",
        126,
        "Permission denied",
        "chmod +x ./tasks.json",
    ),
    (
        "Colors that are not there",
        "exec --trust-palette --palette bits.json --colors 40 true",
        0,
        "40 in `40` is out of range: there are 16, numbered from 0",
        "the last is 15",
    ),
    ("A range backwards", "exec --colors 3-1 true", 125, "`3-1` is not a list", "such as 0-3,8"),
    ("Colors by name", "exec --colors red true", 125, "`red` is not a list", "such as 0-3,8"),
    (
        "An option before the verb",
        "--colors 0-3 exec true",
        1,
        "unexpected argument '--colors'",
        "isochrome exec --colors 0-3 true",
    ),
    (
        "British spelling",
        "recolour 4711 --colors 0-3",
        1,
        "unrecognized subcommand",
        "isochrome recolor 4711 --colors 0-3",
    ),
    ("A typo", "pallete", 1, "unrecognized subcommand", "isochrome palette"),
    ("A typo in an option", "palette --memroy 1G", 1, "--memroy", "isochrome palette"),
    ("A process that is not there", "recolor 4194305 --colors 0-3", 1, "there is no process 4194305", "ps -e"),
    ("A process of another user", "recolor 1 --colors 0-3", 1, "belongs to another user", "run as root"),
    (
        "A thread of the kernel",
        "recolor KERNEL --colors 0-3",
        1,
        "a thread of the kernel",
        "isochrome recolor PID --colors 0-3",
    ),
    ("Its own process", "recolor ITSELF --colors 0-3", 1, "cannot", "isochrome recolor"),
    ("A size without a unit", "plan tasks.json --cores 4 --memory 64", 1, "memory", "--memory"),
    ("A size in words", "palette --memory lots", 1, "`lots` is not a size", "64K or 2M"),
    ("A time without a unit", "watch --duration 10", 1, "`10` is not a time", "60s"),
    (
        "A file that is not there",
        "plan taskset.toml",
        1,
        "taskset.toml cannot be read",
        "isochrome plan examples/kim2013-table1.json",
    ),
    (
        "A file that is not JSON",
        "plan broken.json",
        1,
        "broken.json: line 1, column 12",
        "isochrome plan examples/kim2013-table1.json",
    ),
    ("Evidence that is not JSON", "report broken.json", 1, "at line 1 column 12", "isochrome demo -o report"),
    (
        "Samples that are cut off",
        "palette --replay cut.json",
        1,
        "cut.json: not a JSON object: EOF",
        "isochrome palette --samples samples.json",
    ),
    (
        "A key that does not exist",
        "plan unknown.toml --cores 1 --memory 1G",
        0,
        "partition is not a field",
        "docs/reference/planning.md",
    ),
    ("Tasks that no CPU can hold", "plan heavy.json", 2, "not schedulable", "isochrome plan heavy.json --cores 2"),
    (
        "A profile in place of a plan",
        "run profile.json",
        1,
        "not a plan but a profile",
        "isochrome plan profile.json -o plan.json",
    ),
    ("A plan in place of a profile", "plan plan.json", 1, "not a task set but a plan", "isochrome run plan.json"),
    ("A task set in place of a plan", "run tasks.json", 1, "tasks.json: not a plan", "isochrome plan"),
    (
        "No allocation",
        "analyze tasks.json",
        1,
        "--allocation <FILE>",
        "isochrome analyze tasks.json --allocation plan.json",
    ),
    ("A folder without evidence", "report empty", 1, "empty: holds no evidence.json", "isochrome demo -o empty"),
    (
        "A server without a policy",
        "serve --config policy.toml",
        1,
        "policy.toml cannot be read",
        "examples/serve/policy.toml",
    ),
    (
        "A policy that is not there",
        "policy check policy.toml",
        1,
        "policy.toml cannot be read",
        "examples/serve/policy.toml",
    ),
    ("No server", "policy status", 1, "no server runs", "isochrome serve --config"),
    (
        "A folder that is not there",
        "plan tasks.json --cores 4 --memory 1G -o results/plan.json",
        1,
        "results/plan.json: cannot write",
        "does the folder exist",
    ),
    ("A full disk", "plan tasks.json --cores 4 --memory 1G -o /dev/full", 1, "/dev/full: cannot write", "df -h"),
    ("A file that is not a trace", "simulate --machine zen3 --trace noise.bin", 1, "noise.bin", "isochrome simulate"),
    (
        "A machine that nobody knows",
        "simulate --machine zen99 --workload matmul",
        1,
        "zen99: no such machine",
        "isochrome simulate machines",
    ),
    ("No experiment", "lab", 1, "Usage: isochrome lab <COMMAND>", "isochrome lab filter"),
    ("A verb of an earlier version", "man", 0, "manual pages written to man", "man man/isochrome.1"),
];

/// What the tool answered.
struct Answer {
    mistake: Mistake,
    /// Exit code and text; the reason where the machine cannot make the mistake.
    given: Result<(i32, String), String>,
}

fn main() -> ExitCode {
    let folder = Arc::new(prepared());
    let answers = MISTAKES.into_iter().map(|(title, line, code, says, suggests)| {
        let mistake = Mistake { title, line, code, says, suggests };
        Answer { given: answer(&mistake, folder.path()), mistake }
    });
    let answers: Vec<Answer> = answers.collect();
    let page = page(&answers);
    let mut trials: Vec<_> =
        answers.into_iter().map(|answer| trial(answer.mistake.title, move || checked(&answer))).collect();
    trials.push(trial("the_answers_are_those_of_the_page", move || same(&page)));
    trial::run(trials)
}

/// Returns a folder with the files of the mistakes, and with the command where another user may run it.
fn prepared() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
    let tasks = fs::read_to_string(repository.join("examples/kim2013-table1.json")).unwrap();
    file("tasks.json", tasks.as_bytes());
    file("bits.json", br#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#);
    file("broken.json", b"{\"tasks\": [,]}");
    file("cut.json", br#"{"schema":"isochrome-palette-samples/1","pages":["#);
    file("noise.bin", b"\xff\xfe\xfd\n");
    file("profile.json", br#"{"schema":"isochrome-profile/1"}"#);
    file("plan.json", br#"{"schema":"isochrome-plan/2"}"#);
    let of = |key: &str| {
        format!(
            "partitions = 4\nrefill_ns_per_partition = 1000\n{key}\n[[tasks]]\nname = \"control\"\nperiod_ns = 1000000\ndeadline_ns = 1000000\nwcet_ns = [100000, 90000, 80000, 70000]\n"
        )
    };
    file("unknown.toml", of("partition = 4").as_bytes());
    file("heavy.json", br#"{"cores":1,"partitions":2,"memory_mib":64,"refill_ns_per_partition":1000,"tasks":[{"name":"control","period_ns":1000000,"deadline_ns":1000000,"wcet_ns":[2000000,1500000]}]}"#);
    fs::create_dir(folder.path().join("empty")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_isochrome"), folder.path().join("isochrome")).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Makes the mistake in `folder`.
fn answer(mistake: &Mistake, folder: &Path) -> Result<(i32, String), String> {
    let kernel = if mistake.line.contains("KERNEL") {
        kernel_thread().ok_or("no thread of the kernel is visible here")?
    } else {
        0
    };
    let own = folder.join("isochrome");
    let line = mistake.line.replace("KERNEL", &kernel.to_string());
    let mut command = Command::new("sh");
    // A shell that becomes the command knows the number of the command's process.
    command.args(["-c", &format!("exec {} {}", own.display(), line.replace("ITSELF", "$$"))]);
    command.current_dir(folder).env("ISOCHROME_RUNTIME_DIR", folder).stdin(Stdio::null());
    // Root may touch every process, so this mistake is one of the user nobody.
    if mistake.title == "A process of another user" && geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    if !text.contains("hint") {
        text = String::from_utf8_lossy(&output.stdout).into_owned() + &text;
    }
    for number in [kernel, pid].into_iter().filter(|number| *number > 0) {
        text = text.replace(&format!("process {number} "), "process PID ").replace(&format!(" {number} "), " PID ");
    }
    Ok((output.status.code().unwrap_or(-1), text))
}

/// Returns a thread of the kernel: a process without memory.
fn kernel_thread() -> Option<u32> {
    let mut pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(|pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("Kthread:\t1") || *pid == 2 && status.starts_with("Name:\tkthreadd")
    })
}

fn checked(Answer { mistake, given }: &Answer) -> Outcome {
    let (code, text) = given.as_ref().map_err(|why| NotRun(why.clone()))?;
    assert_eq!(*code, mistake.code, "{text}");
    assert!(text.contains(mistake.says), "does not say `{}`: {text}", mistake.says);
    assert!(text.contains(mistake.suggests), "does not suggest `{}`: {text}", mistake.suggests);
    for trace in ["panicked", "RUST_BACKTRACE", "stack backtrace"] {
        assert!(!text.contains(trace), "{text}");
    }
    for line in text.lines().filter(|line| line.contains("(os error")) {
        let named = line.trim_start_matches("isochrome: ").split(':').count() > 1;
        assert!(named, "an error of the system without what it is about: {line}");
    }
    Ok(())
}

/// Returns the page, with the answers that this machine cannot give as the page has them.
fn page(answers: &[Answer]) -> String {
    let before = fs::read_to_string(page_path()).unwrap_or_default();
    let mut page = "# The most likely mistakes\n\nWhat the tool answers to a beginner. The command that makes every mistake and compares the answers with this page:\n`cargo test -p isochrome-cli --test mistakes`; with `UPDATE_GOLDEN=1` it writes the page. PID stands for a number.\n".to_owned();
    for Answer { mistake, given } in answers {
        let head = format!("\n## {}\n", mistake.title);
        match given {
            Ok((code, text)) => {
                let line = mistake.line.replace("KERNEL", "PID").replace("ITSELF", "PID");
                let _ = write!(page, "{head}\n    $ isochrome {line}\n");
                shown(text).lines().for_each(|line| {
                    let _ = writeln!(page, "{}", format!("    {line}").trim_end());
                });
                let _ = writeln!(page, "\nExit code {code}.");
            }
            Err(_) => {
                let kept = before.split_once(&head).map_or("", |(_, rest)| rest);
                let kept = kept.find("\n## ").map_or(kept, |end| &kept[..end]);
                page += &(head + kept);
            }
        }
    }
    page
}

/// Returns the part of an answer that is the same on every machine. It ends with the last hint.
fn shown(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let last =
        lines.iter().rposition(|line| line.trim_start().starts_with("hint:")).unwrap_or(lines.len().saturating_sub(1));
    lines[..=last.min(lines.len().saturating_sub(1))].join("\n")
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/mistakes.md")
}

fn same(page: &str) -> Outcome {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(page_path(), page).unwrap();
    }
    let expected = fs::read_to_string(page_path()).unwrap_or_default();
    let differs = expected.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(expected == *page, "docs/results/mistakes.md differs, first at {differs:?}; see the head of this file");
    Ok(())
}
