//! `isochrome exec`: starts a program on chosen colors and keeps it there.
//!
//! The program starts at once, and runs even if it cannot get its colors. The host's [`Keeper`] keeps it on its colors; this module prints the
//! keeper's reports.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use isochrome_host::color::ledger::Owner;
use isochrome_host::coloring::report::PlacementReport;
use isochrome_host::coloring::{Coloring, Hooks, Keeper, Notice, Program, Readiness};
use isochrome_host::machine::setting::allowed_cpus;
use isochrome_host::process::Pid;
use isochrome_host::server::requests::{Destination, Join};
use isochrome_host::sys::launch::{self, End, Launch, Signals};
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_model::printable;
use isochrome_model::units::{CpuId, Ns};

use crate::args::{ChosenColors, ExecOptions, Ready};
use crate::context::{listed_cpus, seed};
use crate::notify::Relay;
use crate::placement::line;
use crate::verdict::Verdict;
use crate::{coloring, files, hints, policy};

/// Longest wait for the last output of the program.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// Time between two checks whether the last output has been copied.
const GLANCE: Duration = Duration::from_millis(20);

/// Exit codes of env(1): env itself failed, the program cannot be executed, the program is not found.
pub const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the program. Returns its exit status as verdict, or that of env(1) if the program does not start.
pub fn run(options: &ExecOptions) -> Verdict {
    start(options).unwrap_or_else(|error| failed(FAILED, &error))
}

/// Prints `error` on standard error, and returns the verdict with exit code `code`.
fn failed(code: u8, error: &anyhow::Error) -> Verdict {
    let words: Vec<OsString> = std::env::args_os().collect();
    eprintln!("isochrome: {}", hints::whole(&**error, &words));
    Verdict::Ended(ExitCode::from(code))
}

fn start(options: &ExecOptions) -> Result<Verdict> {
    if let Some(class) = &options.class {
        return start_in_class(class, options);
    }
    let mut launch = launch_of(options)?;
    let cpus = match &launch.cpus {
        Some(cpus) => cpus.iter().copied().map(CpuId).collect(),
        None => allowed_cpus()?,
    };
    coloring::well_formed(&options.colors)?;
    ensure!(options.interval.0 > 0, "the interval is 0\n  hint: --interval 1s");
    let own = Owner::of(std::process::id())?;
    let reserved = options.strict.then(|| reserve(&options.colors, cpus.clone(), own.clone())).transpose()?;
    // Errors that no measurement can change are reported at once.
    let hopeless = coloring::check(&options.colors, &cpus).err().map(|error| hints::text(&*error));
    let signals = Signals::keep().context("signals cannot be kept")?;
    launch::adopt_orphans().context("orphans cannot be adopted")?;

    let (program, arguments) = options.command.split_first().context("no program was named")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let relay = relay_for(options, &mut command, &mut launch)?;
    if matches!(options.ready, Ready::Line(_)) {
        command.stdout(Stdio::piped());
    }
    let started = Instant::now();
    let mut child = match signals.start(&mut command, &launch) {
        Ok(child) => child,
        Err(error) => return Ok(not_started(program, error)),
    };
    let printed = Arc::new(AtomicBool::new(false));
    let copier = match (&options.ready, child.stdout.take()) {
        (Ready::Line(text), Some(output)) => Some(pass_on(output, text.clone(), Arc::clone(&printed))),
        _ => None,
    };
    let is_ready = || match (&options.ready, &relay) {
        (Ready::SdNotify, Some(relay)) => relay.is_ready(),
        _ => printed.load(Ordering::Relaxed),
    };
    let tell = |notice: Notice<'_>| tell(options, relay.as_ref(), notice);
    let program = Program {
        pid: Pid(child.id() as i32),
        own: own.clone(),
        started,
        ready: readiness(&options.ready),
        interval: Duration::from_nanos(options.interval.0),
        follows_forks: !options.no_follow_forks,
        dry_run: options.dry_run,
    };
    let colors = options.colors.clone();
    let obtain = move || reserve(&colors, cpus.clone(), own.clone()).map_err(|error| hints::text(&*error));
    let mut keeper =
        Keeper::new(program, Arc::new(obtain), Hooks { is_ready: &is_ready, tell: &tell, explain: &hints::text });
    if let Some(hopeless) = hopeless {
        keeper.warn(hopeless);
    }
    let kept = keeper.keep(reserved, &signals);
    if let Some(relay) = relay {
        relay.finish();
    }
    let (end, report) = kept.map_err(|_| anyhow!("the thread that moves pages has ended early"))?;
    if let Some(copier) = copier {
        // The last output of the program may still be in the pipe. Output of programs that it left behind is not waited for.
        let limit = Instant::now() + LAST_OUTPUT;
        while !copier.is_finished() && Instant::now() < limit {
            std::thread::sleep(GLANCE);
        }
    }
    publish(options, &report);
    Ok(match end {
        End::Code(code) => Verdict::Ended(ExitCode::from(code as u8)),
        End::Signal(signal) => {
            launch::end_by(signal);
            Verdict::Ended(ExitCode::from(128 + signal as u8))
        }
    })
}

/// Becomes the program, after the memory server has put this process into `class`.
fn start_in_class(class: &str, options: &ExecOptions) -> Result<Verdict> {
    let (program, arguments) = options.command.split_first().context("no program was named")?;
    let into = Destination::Class(class.to_owned());
    policy::join(Join { into, pid: None, group: false, colors: options.colors.colors.clone() })?;
    let error = Command::new(program).args(arguments).exec();
    Ok(not_started(program, error))
}

/// Returns the relay between the program and its service manager; `None` if no relay is needed, or if none can be created and nothing waits for
/// its messages. A relay is needed whenever there is a service manager, because the manager knows this process, and not the program, as the
/// service.
fn relay_for(options: &ExecOptions, command: &mut Command, launch: &mut Launch) -> Result<Option<Relay>> {
    let waits_for_it = options.ready == Ready::SdNotify;
    let needs_relay = waits_for_it || std::env::var_os("NOTIFY_SOCKET").is_some();
    match needs_relay.then(|| Relay::new(command, launch)).transpose() {
        Err(error) if !waits_for_it => {
            let error = hints::text(&*error);
            eprintln!("isochrome: the program sends messages to its service manager directly: {error}");
            Ok(None)
        }
        relay => relay,
    }
}

/// Prints why the program does not start, and returns the exit code of env(1) for that.
fn not_started(program: &OsString, error: std::io::Error) -> Verdict {
    let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    let shown = program.display();
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => format!("is it in PATH? One in this folder is ./{shown}: ls -l ./{shown}"),
        _ => format!("may it be executed (chmod +x {shown}), and may you use these CPUs and this policy?"),
    };
    failed(code, &anyhow!(error).context(format!("{shown}: cannot be started\n  hint: {hint}")))
}

/// Reserves colors for a program; they belong to this process until the program can have them.
fn reserve(chosen: &ChosenColors, cpus: Vec<CpuId>, own: Owner) -> Result<Coloring> {
    Ok(coloring::resolve(chosen, cpus, seed(chosen.frames.seed))?.reserved(own)?)
}

fn readiness(ready: &Ready) -> Readiness {
    match ready {
        Ready::Settle(time) => Readiness::Settled(Duration::from_nanos(time.0)),
        Ready::Signal => Readiness::Signaled,
        Ready::SdNotify | Ready::Line(_) => Readiness::Reported,
    }
}

/// Handles `notice` about the program: prints it on standard error, publishes its report, or lets the service manager know that the program is
/// ready.
fn tell(options: &ExecOptions, relay: Option<&Relay>, notice: Notice<'_>) {
    match notice {
        Notice::OffColors(error) => eprintln!("isochrome: the program runs, but is not on its colors: {error}"),
        Notice::NotReady(time) => {
            let seconds = time.as_secs();
            eprintln!(
                "isochrome: after {seconds} s the program has not reported that it is ready; it is not on its colors yet"
            );
        }
        Notice::Report(report) => publish(options, report),
        // The service manager may learn now that the program is ready.
        Notice::Done => relay.into_iter().for_each(Relay::release),
    }
}

/// Writes a report to the output file if there is one. Prints it with `--json`, or if there is no output file.
fn publish(options: &ExecOptions, report: &PlacementReport) {
    if let Some(path) = &options.output
        && let Err(error) = files::write_json(path, report)
    {
        eprintln!("isochrome: {}", hints::text(&*error));
    }
    if options.json {
        eprintln!("{}", printable::json(&serde_json::to_string(report).expect("a report is plain data")));
    } else if options.output.is_none() {
        eprintln!("isochrome: {}", line(report));
    }
}

fn launch_of(options: &ExecOptions) -> Result<Launch> {
    let listed = |list: &String| listed_cpus(list, &allowed_cpus()?);
    let cpus = options.cpu.as_ref().map(listed).transpose()?;
    let scheduling = match (&options.deadline, options.fifo) {
        (Some(text), _) => {
            let malformed = || format!("`{text}` is not RUNTIME:PERIOD\n  hint: --deadline 2ms:10ms");
            let (runtime, period) = text.split_once(':').with_context(malformed)?;
            let (Ns(runtime), Ns(period)) = (runtime.parse()?, period.parse()?);
            ensure!(0 < runtime && runtime <= period, malformed());
            Some(Scheduling::deadline(runtime, period, period))
        }
        (None, priority) => priority.map(Scheduling::fifo),
    };
    let cpus = cpus.map(|cpus| cpus.iter().map(|cpu| cpu.0).collect());
    Ok(Launch { cpus, scheduling, ..Launch::default() })
}

/// Starts a thread that copies the program's standard output to that of this process, and sets `ready` once a line contains `text`.
fn pass_on(output: std::process::ChildStdout, text: String, ready: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if line.windows(text.len()).any(|part| part == text.as_bytes()) {
                ready.store(true, Ordering::Relaxed);
            }
            let mut out = std::io::stdout().lock();
            if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                return;
            }
            line.clear();
        }
    })
}
