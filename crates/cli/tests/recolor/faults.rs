//! Fault injection: in each recoloring one system call of the tool fails with one error, and the program that is recolored must not notice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::target::{Target, journals, left_behind, random_colors};
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

/// Calls before the tool's own code begins, by name and number, and the signal by which they end it if they fail: the program loader has no memory of
/// its own, and the standard library cannot see whether its descriptors are open.
const BEFORE_MAIN: [(&str, usize, i32); 2] = [("mmap", 1, SIGSEGV), ("poll", 1, SIGABRT)];
const SIGABRT: i32 = 6;
const SIGSEGV: i32 = 11;

/// Number of attempts at having a site meet an error.
const ATTEMPTS: u32 = 3;

/// Number of pairs of a site and an error to try, drawn at random from all.
fn faults() -> usize {
    match std::env::var("RECOLOR_FAULTS") {
        Ok(faults) if faults == "all" => usize::MAX,
        faults => faults.ok().and_then(|faults| faults.parse().ok()).unwrap_or(10),
    }
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

/// A call in a trace by `strace -f -y`.
#[derive(Debug, PartialEq)]
struct Call {
    thread: String,
    name: String,
    /// The system call and what it is made on: a path, or the request of an ioctl. Numbers in it are `N`.
    site: String,
}

/// Calls whose first text is a path.
const BY_PATH: &[&str] =
    &["access", "mkdir", "newfstatat", "openat", "readlink", "readlinkat", "rename", "statx", "unlink", "unlinkat"];

impl Call {
    /// Parses `THREAD NAME(ARGUMENTS) = RESULT`. `None` for signals, ends, and the rest of a call that another thread came between.
    fn parse(line: &str, folder: &str) -> Option<Call> {
        let (thread, call) = line.split_once(char::is_whitespace)?;
        let (name, arguments) = call.trim_start().split_once('(')?;
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return None;
        }
        let arguments = arguments.rsplit_once(") = ").map_or(arguments, |(arguments, _)| arguments);
        let arguments = arguments.trim_end_matches("<unfinished ...>");
        let between = |open: &str, close: &str| Some(arguments.split_once(open)?.1.split_once(close)?.0);
        let path = between("\"", "\"").filter(|path| BY_PATH.contains(&name) && !path.is_empty());
        let object = path.or_else(|| between("<", ">")).unwrap_or_default().replace(folder, "FOLDER");
        let request = arguments.split_once(", ").filter(|_| name == "ioctl").map_or("", |(_, request)| request);
        // Requests that strace does not know are `_IOC(A, B, C, D)`.
        let request = request.split_once(if request.starts_with("_IOC(") { ")" } else { "," }).unwrap_or_default().0;
        let site = format!("{name} {} {request}", without_numbers(&object));
        Some(Call { thread: thread.to_owned(), name: name.to_owned(), site: site.trim_end().to_owned() })
    }
}

/// Returns `text` with `N` for each number, decimal or hexadecimal.
fn without_numbers(text: &str) -> String {
    let (mut short, mut word) = (String::new(), String::new());
    for character in text.chars().chain(['.']) {
        if matches!(character, '0'..='9' | 'a'..='f') {
            word.push(character);
            continue;
        }
        short.push_str(if word.bytes().any(|byte| byte.is_ascii_digit()) { "N" } else { &word });
        short.push(character);
        word.clear();
    }
    short.pop();
    short
}

/// Returns the sites of a recoloring, each with its system call and the numbers of its calls among those of the same system call in their thread.
fn sites(fixture: &Fixture, pid: u32) -> Result<BTreeMap<String, (String, Vec<usize>)>, NotRun> {
    let path = fixture.path("trace").display().to_string();
    let traced = traced(fixture, pid, "0-3", &path, &["-y"]).output();
    let output = traced.map_err(|_| NotRun("strace is not installed".to_owned()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(NotRun(format!("a recoloring cannot be traced here: {said}")));
    }
    let folder = fixture.folder.path().display().to_string();
    let mut made: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut sites: BTreeMap<String, (String, Vec<usize>)> = BTreeMap::new();
    for line in fs::read_to_string(&path).unwrap().lines() {
        let Some(Call { thread, name, site }) = Call::parse(line, &folder) else { continue };
        if LEFT_ALONE.contains(&name.as_str()) {
            continue;
        }
        let number = made.entry((thread, name.clone())).or_default();
        *number += 1;
        sites.entry(site).or_insert_with(|| (name, Vec::new())).1.push(*number);
    }
    Ok(sites)
}

/// Outcome of the faults at one site.
#[derive(Default)]
struct Tally {
    calls: usize,
    /// The errors that were met there.
    met: BTreeSet<&'static str>,
    faults: usize,
    failed: usize,
    repaired: usize,
}

/// Returns a table of the sites that met faults, in Markdown. A fault that harms the program ends the test, so no row has one.
fn table(tallies: &BTreeMap<String, Tally>) -> String {
    let mut text = "| call | calls | errors met | faults | recolorings failed | repaired | harmed |\n|---|---|---|---|---|---|---|\n".to_owned();
    let mut sum = [0; 5];
    let mut row = |site: &str, numbers: [usize; 5]| {
        let [calls, met, faults, failed, repaired] = numbers;
        let _ = writeln!(text, "| {site} | {calls} | {met} | {faults} | {failed} | {repaired} | 0 |");
    };
    for (site, tally) in tallies.iter().filter(|(_, tally)| tally.faults > 0) {
        let numbers = [tally.calls, tally.met.len(), tally.faults, tally.failed, tally.repaired];
        sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        row(&site.replace('|', "\\|"), numbers);
    }
    row(&format!("these, of {} x {} errors", tallies.len(), ERRORS.len()), sum);
    text
}

/// Recolors the target, whose `at`th call of `name` fails with `error`, and enters the outcome for the sites that met it. Fails if the tool did not
/// say what was wrong.
fn fail(
    fixture: &Fixture,
    target: &Target,
    colors: &str,
    (name, at, error): (&str, usize, &'static str),
    tallies: &mut BTreeMap<String, Tally>,
) -> Result<(), String> {
    let fault = format!("{name} number {at} fails with {error}");
    let (trace, inject) = (fixture.path("trace"), format!("inject={name}:error={error}:when={at}"));
    let options = ["-y", "-e", &format!("trace={name}"), "-e", &inject];
    let mut command = traced(fixture, target.pid(), colors, &trace.display().to_string(), &options);
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
    let is_told = match (status.code(), status.signal()) {
        (Some(0), _) => true,
        (Some(1 | 3), _) => said.contains("isochrome: "),
        (Some(127), _) => said.contains("shared librar"),
        (_, Some(signal)) => BEFORE_MAIN.contains(&(name, at, signal)) && said.is_empty(),
        _ => false,
    };
    // The standard library panics or aborts if a new thread has no memory for the signal of a stack overflow. No program can answer for that.
    let is_of_library = said.contains("failed to allocate an alternative stack");
    if !(is_of_library || (is_told && !said.contains("panicked"))) {
        return Err(format!("{fault}: {status}: {said}"));
    }
    let _trial = Trial { fault, said };
    let repaired = fixture.repair(target.pid());
    let folder = fixture.folder.path().display().to_string();
    // A recoloring that makes fewer of these calls than the first one did meets no fault.
    let trace = fs::read_to_string(trace).unwrap();
    let injected = trace.lines().filter(|line| line.ends_with("(INJECTED)"));
    let met: BTreeSet<String> = injected.filter_map(|line| Some(Call::parse(line, &folder)?.site)).collect();
    for site in met {
        let tally = tallies.entry(site).or_default();
        tally.met.insert(error);
        tally.faults += 1;
        tally.failed += usize::from(!status.success());
        tally.repaired += usize::from(repaired);
    }
    let counts = target.goes_on();
    assert_eq!((counts.wrong, counts.broken_off), (0, 0), "{counts:?}");
    assert_eq!(journals(fixture), Vec::<String>::new());
    Ok(())
}

/// Checks that a program continues unharmed whichever system call of a recoloring fails, and that the tool either reports the failure or succeeds.
///
/// Recolorings differ in how many calls they make, thousands of them reads of /proc. So each site fails with each error: at its first call, then, where
/// that met another site, at others.
pub fn every_call_fails_once(fixture: &Fixture) -> Outcome {
    let target = fixture.target("alone")?;
    target.goes_on();
    let sites = sites(fixture, target.pid())?;
    let mut all: Vec<(&String, &'static str)> =
        sites.keys().flat_map(|site| ERRORS.map(|error| (site, error))).collect();
    let mut rng = fastrand::Rng::with_seed(6);
    rng.shuffle(&mut all);
    all.truncate(faults());
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for (site, (_, calls)) in &sites {
        tallies.insert(site.clone(), Tally { calls: calls.len(), ..Tally::default() });
    }
    let mut unsaid = Vec::new();
    for attempt in 0..ATTEMPTS {
        for (site, error) in &all {
            if tallies[*site].met.contains(error) {
                continue;
            }
            let (name, calls) = &sites[*site];
            let at = if attempt == 0 { calls[0] } else { *rng.choice(calls).unwrap() };
            let done = fail(fixture, &target, &random_colors(&mut rng), (name.as_str(), at, *error), &mut tallies);
            unsaid.extend(done.err());
        }
    }
    println!("{}", table(&tallies));
    let met = all.iter().filter(|(site, error)| tallies[*site].met.contains(error)).count();
    println!("{met} of {} pairs of a call and an error were met", all.len());
    assert_eq!(unsaid, Vec::<String>::new());
    // Two thirds are met. At least half must be, less three standard deviations of a sample of so many: more than half of ten are not always met.
    assert!(met as f64 > all.len() as f64 / 2.0 - 1.5 * (all.len() as f64).sqrt(), "{met} of {}", all.len());
    let report = fixture.recolored(target.pid(), "4-7");
    assert!(left_behind(&report).is_empty(), "{report}");
    let maps = fs::read_to_string(format!("/proc/{}/smaps", target.pid())).unwrap();
    assert!(!maps.contains(" um"), "a userfaultfd is left");
    Ok(())
}
