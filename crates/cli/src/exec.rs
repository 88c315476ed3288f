//! `isochrome exec`: a program started on chosen colors, and kept there.

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use isochrome_host::doctor::{self, Status};
use isochrome_host::ledger::Owner;
use isochrome_host::recolor::RecolorError;
use isochrome_host::recolor::process::Pid;
use isochrome_host::recolor::watch::{Tally, Watch, family};
use isochrome_host::sys::launch::{self, End, Launch, Signals};
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_host::sysfs::Sysfs;
use isochrome_model::units::{CpuId, Ns, parse_list};
use serde::Serialize;

use crate::args::{ExecOptions, Ready};
use crate::coloring::Coloring;
use crate::{Verdict, files, station};

/// Between two looks at whether a program has settled.
const GLANCE: Duration = Duration::from_millis(20);

/// A program that never settles is moved after this many times the time for which it was to settle.
const PATIENCE: u32 = 20;

/// After this time it is told that a program is not ready yet.
const LONG: Duration = Duration::from_secs(30);

/// SIGUSR1, as which a program may say that it is ready.
const READY_SIGNAL: i32 = 10;

/// SIGTERM.
const END_SIGNAL: i32 = 15;

/// What was done, as written at the end.
#[derive(Serialize)]
struct Outcome {
    /// Time from the start to the first move; nothing where the program ended before.
    ready_ns: Option<u64>,
    #[serde(flatten)]
    tally: Tally,
    /// What of this machine may move pages to other colors.
    movers: Vec<String>,
    /// What went wrong, each once.
    errors: Vec<String>,
}

pub fn run(options: &ExecOptions) -> Result<Verdict> {
    let launch = launch_of(options)?;
    let cpus = match &launch.cpus {
        Some(cpus) => cpus.iter().copied().map(CpuId).collect(),
        None => isochrome_host::setting::allowed_cpus()?,
    };
    let mut coloring = Coloring::of(&options.colors, cpus, station::seed(None))?;
    // Refused before the program has begun.
    let own = Owner::of(std::process::id())?;
    coloring.grant(own.clone(), None)?;
    let interval = Duration::from_nanos(options.interval.0);
    anyhow::ensure!(!interval.is_zero(), "an interval of no time\n  hint: --interval 1s");
    let signals = Signals::keep().context("signals cannot be kept")?;
    launch::adopt_orphans().context("orphans cannot be adopted")?;

    let (program, arguments) = options.command.split_first().context("no program was named")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let ready = Arc::new(AtomicBool::new(false));
    let socket = if options.ready == Ready::SdNotify { Some(notify_socket(&mut command)?) } else { None };
    if matches!(options.ready, Ready::Line(_)) {
        command.stdout(Stdio::piped());
    }
    let begin = Instant::now();
    let mut child = signals.start(&mut command, &launch).with_context(|| {
        format!(
            "{}: cannot be started\n  hint: is it in PATH, and may you use the CPUs and the policy asked for?",
            program.display()
        )
    })?;
    let pid = Pid(child.id() as i32);
    // One that has ended already needs no colors.
    if let Ok(owner) = Owner::of(child.id()) {
        coloring.grant(owner, Some(&own))?;
    }
    let copier = match (&options.ready, child.stdout.take()) {
        (Ready::Line(text), Some(output)) => Some(pass_on(output, text.clone(), Arc::clone(&ready))),
        _ => None,
    };
    if let Some(socket) = socket {
        listen(socket, Arc::clone(&ready));
    }

    let mut waiting = Waiting::new(&options.ready, ready);
    let mut watch = Watch::default();
    let movers = doctor::movers(&Sysfs::system()).into_iter().filter(|mover| mover.status == Status::Limited);
    let movers = movers.map(|mover| mover.name).collect();
    let mut outcome = Outcome { ready_ns: None, tally: Tally::default(), movers, errors: Vec::new() };
    let (mut refused, mut told) = (None, false);
    let mut refusals = 0;
    let mut again = false;
    let mut next = Instant::now();
    let end = loop {
        if let Some(end) = launch::ends(pid.0) {
            break end;
        }
        if Instant::now() >= next {
            if outcome.ready_ns.is_none() && waiting.is_over(pid) {
                outcome.ready_ns = Some(begin.elapsed().as_nanos() as u64);
            }
            if outcome.ready_ns.is_none() && !told && begin.elapsed() > LONG {
                told = true;
                eprintln!(
                    "isochrome: after {} s the program has not said that it is ready; it is not on its colors yet",
                    LONG.as_secs()
                );
            }
            if outcome.ready_ns.is_some() && refused.is_none() {
                let pids = if options.no_follow_forks { vec![pid] } else { family(pid) };
                let first = watch.tally().sweeps == 0;
                again = false;
                for (failed, error) in coloring.with(|wanted| watch.round(&pids, wanted, &coloring.limits)) {
                    if first && failed == pid && looks(&error) < u32::MAX {
                        refusals += 1;
                        if refusals < looks(&error) {
                            again = true;
                            continue;
                        }
                        // It would run, but not as it was asked to.
                        let _ = launch::send(pid.0, END_SIGNAL);
                        refused = Some(error);
                        break;
                    }
                    again |= error.may_pass();
                    let passed = matches!(error, RecolorError::Changed { .. });
                    let error = error.to_string();
                    if !passed && !outcome.errors.contains(&error) {
                        outcome.errors.push(error);
                    }
                }
            }
            next = Instant::now()
                + match outcome.ready_ns {
                    None => GLANCE,
                    Some(_) if again => interval.min(5 * GLANCE),
                    Some(_) => interval,
                };
        }
        let Some(arrival) = signals.next(next.saturating_duration_since(Instant::now())) else { continue };
        match arrival.signal {
            READY_SIGNAL if options.ready == Ready::Signal && outcome.ready_ns.is_none() => {
                waiting.said.store(true, Ordering::Relaxed);
                next = Instant::now();
            }
            signal if arrival.sent && is_passed_on(signal) => {
                let _ = launch::send(pid.0, signal);
            }
            _ => {}
        }
    };
    if let Some(copier) = copier {
        // What the program printed last is on its way; what a program that it left behind prints is not waited for.
        let limit = Instant::now() + Duration::from_secs(1);
        while !copier.is_finished() && Instant::now() < limit {
            std::thread::sleep(GLANCE);
        }
    }
    if let Some(error) = refused {
        return Err(error.into());
    }
    outcome.tally = watch.tally().clone();
    match &options.output {
        Some(path) => files::write_json(path, &outcome)?,
        None => eprint!("{}", text(&outcome)),
    }
    match end {
        End::Code(code) => Ok(Verdict::Ended(ExitCode::from(code as u8))),
        End::Signal(signal) => {
            launch::end_by(signal);
            Ok(Verdict::Ended(ExitCode::from(128 + signal as u8)))
        }
    }
}

/// Whether a child's end is not to be passed on as a signal.
fn is_passed_on(signal: i32) -> bool {
    /// SIGCHLD.
    const CHILD: i32 = 17;
    signal != CHILD
}

/// After how many looks in vain a program is refused; the largest number: never.
fn looks(error: &RecolorError) -> u32 {
    match error {
        RecolorError::Blind { .. } if error.may_pass() => 10,
        _ if error.may_pass() => u32::MAX,
        // A program that is just beginning another one looks odd for an instant.
        _ => 2,
    }
}

fn launch_of(options: &ExecOptions) -> Result<Launch> {
    let cpus = match &options.cpu {
        Some(list) => {
            let allowed = isochrome_host::setting::allowed_cpus()?;
            let count = allowed.last().map_or(0, |cpu| cpu.0 + 1);
            let cpus = parse_list(list, count)?;
            anyhow::ensure!(
                !cpus.is_empty() && cpus.iter().all(|cpu| allowed.iter().any(|a| a.0 == *cpu)),
                "`{list}` names CPUs that this process may not run on\n  hint: see Cpus_allowed_list in /proc/self/status"
            );
            Some(cpus)
        }
        None => None,
    };
    let scheduling = match (&options.deadline, options.fifo) {
        (Some(text), _) => {
            let malformed = || format!("`{text}` is not RUNTIME:PERIOD\n  hint: --deadline 2ms:10ms");
            let (runtime, period) = text.split_once(':').with_context(malformed)?;
            let (Ns(runtime), Ns(period)) = (runtime.parse()?, period.parse()?);
            anyhow::ensure!(0 < runtime && runtime <= period, malformed());
            Some(Scheduling::deadline(runtime, period, period))
        }
        (None, priority) => priority.map(Scheduling::fifo),
    };
    Ok(Launch { cpus, scheduling, ..Launch::default() })
}

/// Whether a program is ready yet.
struct Waiting {
    settle: Option<Duration>,
    began: Instant,
    resident: u64,
    since: Instant,
    said: Arc<AtomicBool>,
}

impl Waiting {
    fn new(ready: &Ready, said: Arc<AtomicBool>) -> Waiting {
        let settle = if let Ready::Settle(time) = ready { Some(Duration::from_nanos(time.0)) } else { None };
        let now = Instant::now();
        Waiting { settle, began: now, resident: 0, since: now, said }
    }

    fn is_over(&mut self, pid: Pid) -> bool {
        let Some(settle) = self.settle else { return self.said.load(Ordering::Relaxed) };
        let resident = resident_pages(pid);
        if resident > self.resident {
            (self.resident, self.since) = (resident, Instant::now());
        }
        self.since.elapsed() >= settle || self.began.elapsed() >= settle * PATIENCE
    }
}

/// Resident pages of a process; 0 when it has ended.
fn resident_pages(pid: Pid) -> u64 {
    let statm = Sysfs::system().text(&format!("proc/{}/statm", pid.0)).unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

/// Copies the program's output to this one's, and says when a line holds `text`.
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

/// A socket to which the program says that it is ready. [sd_notify(3)]
fn notify_socket(command: &mut Command) -> Result<UnixDatagram> {
    let name = format!("isochrome-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name)?;
    let socket = UnixDatagram::bind_addr(&address).context("a socket for sd_notify")?;
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    Ok(socket)
}

fn listen(socket: UnixDatagram, ready: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut message = [0; 4096];
        while let Ok(bytes) = socket.recv(&mut message) {
            if message[..bytes].split(|byte| *byte == b'\n').any(|line| line == b"READY=1") {
                ready.store(true, Ordering::Relaxed);
            }
        }
    });
}

fn text(outcome: &Outcome) -> String {
    let Tally { sweeps, new, drifted, pause_ns_max, resident, right, left, .. } = outcome.tally;
    let mut text = match outcome.ready_ns {
        None => "isochrome: the program ended before it was ready, and was not moved\n".to_owned(),
        Some(_) => format!(
            "isochrome: {new} pages moved and {drifted} moved back in {sweeps} sweeps, longest pause {:.1} ms; at the last look {right} of \
             {resident} resident pages had the colors, {left} cannot be moved\n",
            pause_ns_max as f64 / 1e6
        ),
    };
    if !outcome.movers.is_empty() {
        text.push_str(&format!(
            "isochrome: what may move pages to other colors here: {} (isochrome doctor tells more)\n",
            outcome.movers.join(", ")
        ));
    }
    for error in &outcome.errors {
        text.push_str(&format!("isochrome: {error}\n"));
    }
    text
}
