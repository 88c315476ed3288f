//! Fault injection: in each recoloring one system call of the tool fails, drawn at random, and the program that is recolored must not notice.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::target::{journals, left_behind, random_colors};
use crate::trial::{NotRun, Outcome};

/// Calls that are never made to fail. Most of them cannot fail in these ways, and libraries rely on that. ptrace and waitid fail only if the
/// traced thread ends, which `torture::ending` tries.
const LEFT_ALONE: &[&str] = &[
    "arch_prctl",
    "brk",
    "clock_nanosleep",
    "close",
    "execve",
    "exit",
    "exit_group",
    "futex",
    "getegid",
    "geteuid",
    "getgid",
    "getpid",
    "getrandom",
    "gettid",
    "getuid",
    "madvise",
    "ptrace",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
    "waitid",
];

const ERRORS: [&str; 5] = ["ENOMEM", "EAGAIN", "EINTR", "ESRCH", "ENOSPC"];

/// A tool that neither ends nor moves on for this long hangs. Stopping the program is tried for seconds, and a busy machine needs more.
const HANGS: Duration = Duration::from_secs(60);

/// Number of faults to try, drawn at random from all.
fn faults() -> usize {
    std::env::var("RECOLOR_FAULTS").ok().and_then(|faults| faults.parse().ok()).unwrap_or(25)
}

/// Returns a recoloring of `pid` under strace, with these options of strace. What strace itself prints goes to `trace`.
fn traced(fixture: &Fixture, pid: u32, colors: &str, trace: &str, options: &[&str]) -> Command {
    let recolor = fixture.recolor(pid, colors);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", trace]).args(options).arg(recolor.get_program()).args(recolor.get_args());
    for (name, value) in recolor.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

/// Says what was tried and what the tool said, if a check panics.
struct Trial {
    fault: String,
    said: String,
}

impl Drop for Trial {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}\n{}", self.fault, self.said);
        }
    }
}

/// Returns how often each system call is made by the thread of a recoloring that makes it most often.
fn calls(fixture: &Fixture, pid: u32) -> Result<BTreeMap<String, usize>, NotRun> {
    let path = fixture.path("trace").display().to_string();
    let traced = traced(fixture, pid, "0-3", &path, &[]).output();
    let output = traced.map_err(|_| NotRun("strace is not installed".to_owned()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(NotRun(format!("a recoloring cannot be traced here: {said}")));
    }
    let mut of_threads: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in fs::read_to_string(&path).unwrap().lines() {
        // `THREAD NAME(ARGUMENTS) = RESULT`; the rest of a call that another thread came between begins with `<`.
        let Some((thread, call)) = line.split_once(char::is_whitespace) else { continue };
        let Some((name, _)) = call.trim_start().split_once('(') else { continue };
        if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && !LEFT_ALONE.contains(&name) {
            *of_threads.entry((name.to_owned(), thread.to_owned())).or_default() += 1;
        }
    }
    let mut most = BTreeMap::new();
    for ((name, _), count) in of_threads {
        let known = most.entry(name).or_insert(0);
        *known = count.max(*known);
    }
    Ok(most)
}

/// Checks that a program goes on unharmed whichever system call of a recoloring fails, and that the tool says something, or succeeds.
pub fn every_call_fails_once(fixture: &Fixture) -> Outcome {
    let target = fixture.target("alone")?;
    target.goes_on();
    let calls = calls(fixture, target.pid())?;
    let mut all: Vec<(&str, usize, &str)> = Vec::new();
    for (name, count) in &calls {
        all.extend((1..=*count).flat_map(|at| ERRORS.map(|error| (name.as_str(), at, error))));
    }
    let mut rng = fastrand::Rng::with_seed(6);
    rng.shuffle(&mut all);
    let possible = all.len();
    all.truncate(faults());
    let (trace, mut injected, mut failed, mut repaired) = (fixture.path("trace").display().to_string(), 0, 0, 0);
    for (name, at, error) in &all {
        let fault = format!("{name} number {at} fails with {error}");
        let inject = format!("inject={name}:error={error}:when={at}");
        let options = ["-e", &format!("trace={name}"), "-e", &inject];
        let colors = random_colors(&mut rng);
        let mut command = traced(fixture, target.pid(), &colors, &trace, &options);
        let said = fs::File::create(fixture.path("said")).unwrap();
        let mut tool = command.stdout(Stdio::null()).stderr(said).spawn().unwrap();
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = tool.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < HANGS, "{fault}: the tool hangs");
            std::thread::sleep(Duration::from_millis(2));
        };
        let said = fs::read_to_string(fixture.path("said")).unwrap();
        // The program loader ends with 127 if it cannot map a library.
        let is_told = match status.code() {
            Some(0) => true,
            Some(1 | 3) => said.contains("isochrome: "),
            Some(127) => said.contains("shared librar"),
            _ => false,
        };
        assert!(is_told && !said.contains("panicked"), "{fault}: {status}: {said}");
        let _trial = Trial { fault, said };
        // A recoloring that makes fewer of these calls than the first one did meets no fault.
        let is_injected = fs::read_to_string(&trace).unwrap().contains("(INJECTED)");
        injected += usize::from(is_injected);
        failed += usize::from(is_injected && !status.success());
        repaired += usize::from(fixture.repair(target.pid()));
        let counts = target.goes_on();
        assert_eq!((counts.wrong, counts.broken_off), (0, 0), "{counts:?}");
        assert_eq!(journals(fixture), Vec::<String>::new());
    }
    println!(
        "{injected} of {} faults met, of {possible} possible ones ({} system calls, {} errors each): {failed} recolorings failed, {repaired} left \
         something to repair",
        all.len(),
        calls.len(),
        ERRORS.len()
    );
    assert!(2 * injected > all.len(), "{injected} of {} faults were met", all.len());
    let report = fixture.recolored(target.pid(), "4-7");
    assert!(left_behind(&report).is_empty(), "{report}");
    let maps = fs::read_to_string(format!("/proc/{}/smaps", target.pid())).unwrap();
    assert!(!maps.contains(" um"), "a userfaultfd is left");
    Ok(())
}
