//! `isochrome exec`: a program started on chosen colors, and kept there.
//!
//! The program starts at once and runs whatever happens to its colors. One thread passes signals on; another measures, moves pages
//! and looks after them.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use isochrome_host::color::ledger::Owner;
use isochrome_host::color::reference::Numbers;
use isochrome_host::doctor::{self, Status};
use isochrome_host::machine::setting::allowed_cpus;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::process::{Pid, ProcessError};
use isochrome_host::recolor::watch::{Watch, family};
use isochrome_host::recolor::{self, RecolorError};
use isochrome_host::sys::launch::{self, End, Launch, Signals};
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_model::units::{CpuId, Ns};

use crate::args::{ChosenColors, ExecOptions, Ready};
use crate::coloring::Coloring;
use crate::context::listed_cpus;
use crate::notify::Relay;
use crate::placed::{Event, Placed};
use crate::{Verdict, context, files};

/// Between two looks at whether a program has settled.
const GLANCE: Duration = Duration::from_millis(20);

/// A program that still grows after this time is moved as it grows.
const SETTLE_MAX: Duration = Duration::from_secs(2);

/// Between two looks at the pages of a program that grows.
const GROWING: Duration = Duration::from_millis(100);

/// After this time it is reported that a program is not ready yet.
const LONG: Duration = Duration::from_secs(30);

/// Attempts at placing pages anew after eviction tests found too many of them off color.
pub const ATTEMPTS: u32 = 5;

/// Rounds that bring no page onto its color, after which a program that is not all there is reported as it is.
const IDLE_ROUNDS: u32 = 5;

/// Longest time between two attempts at something that has failed.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// SIGUSR1, as which a program may say that it is ready.
const READY_SIGNAL: i32 = 10;
/// SIGCHLD, which tells that a child has ended, and is not for the program.
const CHILD_SIGNAL: i32 = 17;

/// Exit codes of env(1): it failed itself, the program cannot be executed, the program is not found.
pub const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the program. Ends with its exit status, or with that of env(1) where it does not start.
pub fn run(options: &ExecOptions) -> Verdict {
    start(options).unwrap_or_else(|error| failed(FAILED, &error))
}

/// Says what went wrong, and ends with `code`.
fn failed(code: u8, error: &anyhow::Error) -> Verdict {
    eprintln!("isochrome: {}", crate::error_text(error));
    Verdict::Ended(ExitCode::from(code))
}

fn start(options: &ExecOptions) -> Result<Verdict> {
    let mut launch = launch_of(options)?;
    let cpus = match &launch.cpus {
        Some(cpus) => cpus.iter().copied().map(CpuId).collect(),
        None => allowed_cpus()?,
    };
    ensure!(options.interval.0 > 0, "an interval of no time\n  hint: --interval 1s");
    let own = Owner::of(std::process::id())?;
    let prepared = options.strict.then(|| granted(&options.colors, cpus.clone(), own.clone())).transpose()?;
    // What is wrong whatever is measured is said at once.
    let hopeless = Coloring::check(&options.colors, &cpus).err().map(|error| crate::error_text(&error));
    let signals = Signals::keep().context("signals cannot be kept")?;
    launch::adopt_orphans().context("orphans cannot be adopted")?;

    let (program, arguments) = options.command.split_first().context("no program was named")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let ready = Arc::new(AtomicBool::new(false));
    // Also where it is not what is waited for: the program speaks to its service manager through us, as we are the main process.
    let waits_for_it = options.ready == Ready::SdNotify;
    let needs_relay = waits_for_it || std::env::var_os("NOTIFY_SOCKET").is_some();
    let relay = match needs_relay.then(|| Relay::new(&mut command, &mut launch)).transpose() {
        Err(error) if !waits_for_it => {
            let error = crate::error_text(&error);
            eprintln!("isochrome: the program is left to talk to its service manager itself: {error}");
            None
        }
        relay => relay?,
    };
    if matches!(options.ready, Ready::Line(_)) {
        command.stdout(Stdio::piped());
    }
    let begin = Instant::now();
    let mut child = match signals.start(&mut command, &launch) {
        Ok(child) => child,
        Err(error) => return Ok(not_started(program, error)),
    };
    let pid = Pid(child.id() as i32);
    let copier = match (&options.ready, child.stdout.take()) {
        (Ready::Line(text), Some(output)) => Some(pass_on(output, text.clone(), Arc::clone(&ready))),
        _ => None,
    };
    let (sender, messages) = channel();
    let kept = std::thread::scope(|scope| {
        let mut keeper = Keeper::new(options, pid, own, cpus, begin, Arc::clone(&ready), relay.as_ref());
        if let Some(hopeless) = hopeless {
            keeper.warn(hopeless);
        }
        let keeper = scope.spawn(move || keeper.keep(prepared, &messages));
        while !keeper.is_finished() {
            let Some(arrival) = signals.next(5 * GLANCE) else { continue };
            if arrival.signal == READY_SIGNAL && options.ready == Ready::Signal && !ready.load(Ordering::Relaxed) {
                ready.store(true, Ordering::Relaxed);
            } else if arrival.sent && arrival.signal != CHILD_SIGNAL {
                let _ = launch::send(pid.0, arrival.signal);
            }
            // Where nobody listens any more the program has ended.
            let _ = sender.send(());
        }
        keeper.join()
    });
    if let Some(relay) = relay {
        relay.finish();
    }
    let (end, report) = kept.map_err(|_| anyhow!("the thread that moves pages has ended early"))?;
    if let Some(copier) = copier {
        // What the program printed last is on its way; what a program that it left behind prints is not waited for.
        let limit = Instant::now() + Duration::from_secs(1);
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

/// Says that the program does not start, and why.
fn not_started(program: &OsString, error: std::io::Error) -> Verdict {
    let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    let hint = "is it in PATH, and may you use the CPUs and the policy asked for?";
    failed(code, &anyhow!(error).context(format!("{}: cannot be started\n  hint: {hint}", program.display())))
}

/// Colors for a program, which are its own from now on.
fn granted(chosen: &ChosenColors, cpus: Vec<CpuId>, own: Owner) -> Result<Coloring> {
    let mut coloring = Coloring::of(chosen, cpus, context::seed(chosen.frames.seed))?;
    coloring.limits.gives_way = true;
    coloring.grant(own, None)?;
    Ok(coloring)
}

/// Prints a report, and writes it where that was asked for.
fn publish(options: &ExecOptions, report: &Placed) {
    if let Some(path) = &options.output
        && let Err(error) = files::write_json(path, report)
    {
        eprintln!("isochrome: {}", crate::error_text(&error));
    }
    if options.json {
        eprintln!("{}", serde_json::to_string(report).expect("a report is plain data"));
    } else if options.output.is_none() {
        eprintln!("isochrome: {}", report.line());
    }
}

/// What puts a program on its colors and keeps it there.
struct Keeper<'a> {
    options: &'a ExecOptions,
    pid: Pid,
    own: Owner,
    /// The program, once the colors are its own.
    owner: Option<Owner>,
    cpus: Vec<CpuId>,
    begin: Instant,
    watch: Watch,
    waiting: Waiting,
    report: Placed,
    /// What went wrong so far, each once.
    errors: Vec<String>,
    /// How often pages were moved and turned out to be off color.
    attempts: u32,
    /// Times that the pages of known color were checked.
    renewals: u32,
    /// Most pages that were on color after a round.
    most_on_color: usize,
    /// Rounds since there were more.
    idle_rounds: u32,
    /// Passes on what the program says to its service manager.
    relay: Option<&'a Relay>,
}

impl<'a> Keeper<'a> {
    fn new(
        options: &'a ExecOptions,
        pid: Pid,
        own: Owner,
        cpus: Vec<CpuId>,
        begin: Instant,
        ready: Arc<AtomicBool>,
        relay: Option<&'a Relay>,
    ) -> Keeper<'a> {
        let watch = Watch::default();
        let report = Placed::of(Event::End, pid.0, watch.tally());
        let waiting = Waiting::new(&options.ready, ready);
        Keeper {
            options,
            pid,
            own,
            owner: None,
            cpus,
            begin,
            watch,
            waiting,
            report,
            errors: Vec::new(),
            attempts: 0,
            renewals: 0,
            most_on_color: 0,
            idle_rounds: 0,
            relay,
        }
    }

    /// Looks after the program until it has ended.
    fn keep(mut self, prepared: Option<Coloring>, messages: &Receiver<()>) -> (End, Placed) {
        let mut coloring = prepared;
        if let Some(prepared) = &mut coloring {
            self.hand_over(prepared);
        }
        let interval = Duration::from_nanos(self.options.interval.0);
        let (mut ready, mut reported) = (false, false);
        let mut preparing = None;
        let (mut pause, mut retry) = (GLANCE, GLANCE);
        let mut next = Instant::now();
        let end = loop {
            if let Some(end) = launch::ends(self.pid.0) {
                break end;
            }
            if Instant::now() >= next {
                let mut failed = false;
                if coloring.is_none() {
                    let begun = preparing.get_or_insert_with(|| self.prepare());
                    if begun.is_finished()
                        && let Some(done) = preparing.take()
                    {
                        coloring = self.prepared(done);
                        failed = coloring.is_none();
                    }
                }
                let said = self.options.ready == Ready::SdNotify && self.relay.is_some_and(Relay::said_ready);
                ready |= said || self.waiting.is_over(self.pid);
                if !ready && !reported && self.begin.elapsed() > LONG {
                    reported = true;
                    let seconds = LONG.as_secs();
                    eprintln!(
                        "isochrome: after {seconds} s the program has not said that it is ready; it is not on its colors yet"
                    );
                }
                if let (Some(coloring), Some(owner)) = (&mut coloring, &self.owner)
                    && let Some(numbers) = coloring.follow(owner)
                {
                    self.report.numbers = Some(numbers);
                }
                pause = match &coloring {
                    None if failed => {
                        retry = (2 * retry).min(RETRY_MAX);
                        retry
                    }
                    None => GLANCE,
                    Some(_) if !ready => GLANCE,
                    Some(coloring) if self.options.dry_run => {
                        self.expect(coloring);
                        RETRY_MAX
                    }
                    // A program that grows is looked at again soon, one that does not less and less often.
                    Some(coloring) => match self.round(coloring) {
                        Round::Moved => {
                            retry = GLANCE;
                            GROWING.min(interval)
                        }
                        Round::Failed => {
                            retry = (2 * retry).min(RETRY_MAX);
                            retry.max(GROWING)
                        }
                        Round::Nothing => {
                            retry = GLANCE;
                            (2 * pause).clamp(GROWING.min(interval), interval)
                        }
                    },
                };
                next = Instant::now() + pause;
            }
            match messages.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(()) if !ready && coloring.is_some() => next = next.min(Instant::now() + GLANCE),
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(GLANCE),
            }
        };
        let movers = doctor::movers(&Sysfs::system()).into_iter().filter(|mover| mover.status == Status::Limited);
        let movers = movers.map(|mover| mover.name).collect();
        (end, Placed { movers, errors: self.errors, ..self.report.later(Event::End, self.watch.tally()) })
    }

    /// Begins to find out about colors while the program runs. Nobody waits for it should the program end before.
    fn prepare(&self) -> JoinHandle<Result<Coloring>> {
        let (colors, cpus, own) = (self.options.colors.clone(), self.cpus.clone(), self.own.clone());
        std::thread::spawn(move || granted(&colors, cpus, own))
    }

    /// Takes over what was found out. Where that failed the program runs on as it is, with a warning.
    fn prepared(&mut self, preparing: JoinHandle<Result<Coloring>>) -> Option<Coloring> {
        let found =
            preparing.join().unwrap_or_else(|_| Err(anyhow!("the thread that measures colors has ended early")));
        match found {
            Ok(mut coloring) => {
                self.hand_over(&mut coloring);
                Some(coloring)
            }
            Err(error) => {
                self.warn(crate::error_text(&error));
                self.release();
                None
            }
        }
    }

    /// Makes the program the owner of the colors.
    fn hand_over(&mut self, coloring: &mut Coloring) {
        // One that has ended already needs no colors.
        if let Ok(owner) = Owner::of(self.pid.0 as u32) {
            match coloring.grant(owner.clone(), Some(&self.own)) {
                Ok(()) => self.owner = Some(owner),
                Err(error) => self.warn(crate::error_text(&error)),
            }
        }
        self.report.numbers = coloring.numbers().cloned();
    }

    /// Lets the service manager know that the program is ready.
    fn release(&self) {
        if let Some(relay) = self.relay {
            relay.release();
        }
    }

    /// Says once that something went wrong.
    fn warn(&mut self, error: String) {
        if !self.errors.contains(&error) {
            if self.errors.is_empty() {
                eprintln!("isochrome: the program runs, but is not on its colors: {error}");
            }
            self.errors.push(error);
        }
    }

    /// Looks at the program's pages, and moves those that are off color.
    fn round(&mut self, coloring: &Coloring) -> Round {
        let pids = if self.options.no_follow_forks { vec![self.pid] } else { family(self.pid) };
        let sweeps = self.watch.tally().sweeps;
        let errors = coloring.with(|wanted| self.watch.round(&pids, wanted, &coloring.limits));
        let (mut failed, mut passing) = (false, false);
        for (pid, error) in errors {
            let passes = match error {
                // One that is just beginning another program, or shares its memory for a moment, is looked at again.
                RecolorError::Changed { .. } | RecolorError::SharesMemory { .. } => true,
                // Another command moves it, and leaves what it has measured.
                RecolorError::Claimed { .. } => true,
                // What lies where nothing is mapped yet belongs to a program that is just being begun.
                RecolorError::NoCave { .. } => true,
                // One that began another program while it was held has nothing left to repair but the journal.
                RecolorError::Unrepaired { .. } => recolor::repair(pid).is_ok(),
                RecolorError::Unmeasured { .. } => self.renew(coloring, &error).is_some(),
                // Where pages of known color have lost it, there may be frames after all.
                RecolorError::TooFewFrames { .. } => {
                    self.renew(coloring, &error).is_some_and(|numbers| numbers != Numbers::Kept)
                }
                // Until it has begun its program, the child of a process that has given up rights may not be traced.
                RecolorError::Process(ProcessError::Denied { .. }) | RecolorError::NotStopping { .. } => {
                    self.begin.elapsed() < SETTLE_MAX
                }
                _ => false,
            };
            failed |= !passes && pid == self.pid;
            passing |= passes && pid == self.pid;
            if !passes {
                self.warn(error.to_string());
            }
        }
        if !failed && !passing {
            self.renewals = 0;
        }
        let tally = self.watch.tally();
        let moved = tally.sweeps > sweeps;
        // What waits for a frame may get one in the next round, as long as each of them brings some.
        let placed = 100 * tally.on_color >= 99 * (tally.on_color + tally.off_color);
        self.idle_rounds = if tally.on_color > self.most_on_color { 0 } else { self.idle_rounds + 1 };
        let stands_still = self.idle_rounds >= IDLE_ROUNDS || self.begin.elapsed() > LONG;
        self.most_on_color = self.most_on_color.max(tally.on_color);
        let (resident, settled) = (tally.resident > 0, placed || stands_still);
        if self.report.seconds_to_colors.is_none() && !failed && !passing && resident && settled {
            let seconds = self.begin.elapsed().as_secs_f64();
            let verified = match coloring.with(|wanted| self.watch.verify(&pids, wanted, &coloring.limits)) {
                // What was found off color is moved first, or measured again; a few pages of a large program are no reason to wait for long.
                Ok(Some(verified))
                    if verified.on_color < verified.pages
                        && self.attempts < if verified.holds() { 1 } else { ATTEMPTS } =>
                {
                    self.attempts += 1;
                    return Round::Moved;
                }
                Ok(verified) => verified,
                Err(RecolorError::Claimed { .. }) => return Round::Moved,
                Err(error) if self.attempts < ATTEMPTS => {
                    self.attempts += 1;
                    self.renew(coloring, &error);
                    return Round::Failed;
                }
                Err(error) => {
                    self.warn(error.to_string());
                    None
                }
            };
            let report = self.report.clone().later(Event::OnColors, self.watch.tally());
            self.report = Placed { seconds_to_colors: Some(seconds), verified, ..report };
            publish(self.options, &self.report);
            self.release();
        } else if failed {
            // A service that cannot be moved now is ready all the same.
            self.release();
        }
        match (failed, moved || passing) {
            (true, _) => Round::Failed,
            (_, true) => Round::Moved,
            _ => Round::Nothing,
        }
    }

    /// Has the pages of known color checked where `error` casts doubt on them. What became of the numbers, where that was done.
    fn renew(&mut self, coloring: &Coloring, error: &RecolorError) -> Option<Numbers> {
        if self.renewals >= ATTEMPTS {
            return None;
        }
        let numbers = coloring.renew_after(error);
        self.renewals += u32::from(numbers.is_some());
        if let Some(changed) = numbers.clone().filter(|numbers| *numbers != Numbers::Kept) {
            self.report.numbers = Some(changed);
        }
        numbers
    }

    /// Says what would be done.
    fn expect(&mut self, coloring: &Coloring) {
        if self.report.expected.is_none()
            && let Ok(report) = coloring.look(self.pid)
        {
            self.report = Placed::expected(&report, coloring);
            publish(self.options, &self.report);
        }
    }
}

/// What came of a look at a program's pages.
enum Round {
    /// Pages were moved.
    Moved,
    /// Nothing was to be done.
    Nothing,
    /// The program itself could not be looked at, or moved.
    Failed,
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
        self.since.elapsed() >= settle || self.began.elapsed() >= SETTLE_MAX.max(settle)
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
