//! Programs of a plan, run together: started, placed, given their priorities, released, watched, ended.
//!
//! What runs on the CPUs of the tasks is the tasks. This program works on others: it reads the scheduler's events in batches, releases
//! jobs that are lines, and holds every response against its bound and its deadline. Whatever ends it, the machine is put back as it was,
//! by this process or, if it is killed, by the next one ([`shielding`](super::shielding)).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use isochrome_model::running::{Failure, JobRecord, Limit, Overhead, Placement, Requirement, Setting, Violation};
use isochrome_model::taskset::programs::Jobs;
use isochrome_model::units::{Bytes, CpuId, Ns};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::time::{ClockId, clock_gettime};

use super::JobError;
use super::line::{LineProgram, command};
use super::planned::Planned;
use super::releases::{LATE_MAX, Said, Spoken, release};
use super::shielding::{CpuShield, VARIABLE};
use crate::counters::events::Event as Counted;
use crate::error::HostError;
use crate::interrupt;
use crate::machine::idle::{self, IdleHold};
use crate::machine::steal::CpuTicks;
use crate::machine::sysfs::Sysfs;
use crate::recolor::lock;
use crate::recolor::process::Pid;
use crate::run::marks::{Edge, Mark, MarkReader};
use crate::sched::jobs::{JobTracker, Observation, Observed};
use crate::sched::misses::Misses;
use crate::sched::tracefs::Tracefs;
use crate::sched::{EventKind, SchedEvent};
use crate::sys::clock::monotonic;
use crate::sys::launch::{self, Launch};

/// Between two batches of events.
const BATCH: Duration = Duration::from_millis(50);

/// How long a program may take until it is ready.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// Jobs that are done and not counted before a program that is released by lines counts as ready.
const FIRST_JOBS: u32 = 5;

/// A program is ready when its memory has not grown for this long.
const SETTLED: Duration = Duration::from_millis(200);

/// Between two looks at memory.
const LOOK: Ns = Ns(100_000_000);

/// From when all programs are ready to the first release.
const HEAD_START: Ns = Ns(20_000_000);

/// Threads are told apart by their wake-ups in this time, or in three periods.
const CALIBRATION: Ns = Ns(100_000_000);

/// A job that has been under way for four periods and this long is not completed any more.
const OVERDUE: Ns = Ns(200_000_000);

/// Marks that a program can set between two batches.
const MARKS: usize = 1 << 14;

/// Violations reported in full.
const TOLD: usize = 20;

/// Memory that a program may have on top of what it was declared with: its libraries' data, its stack, its allocator.
const MEMORY_SLACK: Bytes = Bytes(1 << 20);

/// Memory that a program of which none was declared may have mapped and never touched, for it to be touched beforehand.
const UNTOUCHED: Bytes = Bytes(64 << 20);

/// Sent to a program whose job was late, where that is asked for.
const SIGUSR1: i32 = 10;
/// Asks a program to end.
const SIGTERM: i32 = 15;
/// Ends a program.
const SIGKILL: i32 = 9;

/// What to do when a job exceeds a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnViolation {
    /// Keep what its CPU did around it.
    #[default]
    Trace,
    /// Also send SIGUSR1 to its program.
    Signal,
    /// Also end the run.
    Stop,
}

/// What to run.
pub struct Request<'a> {
    /// The programs.
    pub programs: &'a [Planned],
    /// For how long, from the first release.
    pub length: Ns,
    /// What to do when a job exceeds a limit.
    pub on_violation: OnViolation,
    /// Whether the others go on when a program fails.
    pub keep_going: bool,
    /// Whether other programs are kept off the CPUs of the tasks.
    pub alone: bool,
    /// Whether the memory of tasks is touched beforehand and locked.
    pub lock: bool,
    /// What is counted of every job.
    pub counted: Option<Counted>,
    /// The runtime folder.
    pub folder: &'a Path,
}

/// Gives the processes of a program their colors, once it is ready; why that is not possible.
pub type Place<'a> = dyn FnMut(usize, &[Pid]) -> Result<(), String> + 'a;

/// What is done with the programs from outside.
pub struct Hooks<'a> {
    /// Gives a program its colors.
    pub place: &'a mut Place<'a>,
    /// Where the memory of a program lies.
    pub look: &'a mut dyn FnMut(usize, &[Pid]) -> Option<Placement>,
    /// Keeps a job. An error ends the run.
    pub record: &'a mut dyn FnMut(&JobRecord) -> io::Result<()>,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Where the memory of each program lay at the end, in the order of the programs.
    pub placements: Vec<Option<Placement>>,
    /// The first jobs that exceed a limit.
    pub violations: Vec<Violation>,
    /// What went wrong with programs.
    pub failures: Vec<Failure>,
    /// What watching took.
    pub overhead: Overhead,
    /// Steal time of the CPUs of the tasks.
    pub steal_time: Ns,
    /// From the first release to the end.
    pub duration: Ns,
    /// What was changed, and put back.
    pub settings: Vec<Setting>,
    /// Most memory of its own that each program had.
    pub memory: Vec<(String, Bytes)>,
    /// What became of best-effort programs.
    pub notes: Vec<String>,
    /// Why misses were not counted, or not to the end, though they were to be.
    pub uncounted: Option<String>,
    /// Whether a signal ended it.
    pub interrupted: bool,
    /// Why jobs could not be kept any more, and ended it.
    pub unrecorded: Option<io::Error>,
}

/// A program that was started.
struct Started {
    pid: Pid,
    /// Those that are not seen by lines.
    child: Option<Child>,
    gone: bool,
    memory: Bytes,
    /// Where it marks its jobs.
    marks: Option<MarkReader>,
}

/// How process `pid`, a child of this one, has ended; it stays to be waited for.
fn ended(pid: Pid) -> Option<String> {
    let id = rustix::process::Pid::from_raw(pid.0)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(id), options).ok()??;
    Some(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    })
}

/// For how long a job may be under way, in ns, before its program counts as one that never completes it.
fn patience(requirement: &Requirement) -> u64 {
    4 * requirement.period.0 + OVERDUE.0
}

/// Memory of its own that a process has: what is resident, less what it shares with files. [proc_pid_statm(5)]
fn own_memory(pid: Pid) -> Option<Bytes> {
    let text = pid.text("statm").ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(Bytes(resident.checked_sub(shared)? * rustix::param::page_size() as u64))
}

/// The part of [`own_memory`] that are copies of file pages in mappings that the process cannot write: moving them to its colors makes them.
/// [proc_pid_smaps(5)]
fn copies_of_files(pid: Pid) -> Bytes {
    copies_in(&pid.text("smaps").unwrap_or_default())
}

fn copies_in(smaps: &str) -> Bytes {
    let (mut kib, mut in_file) = (0, false);
    for line in smaps.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["Anonymous:", anonymous, _] if in_file => kib += anonymous.parse::<u64>().unwrap_or(0),
            [range, permissions, _, _, inode, ..] if !range.ends_with(':') => {
                in_file = inode != "0" && !permissions.contains('w');
            }
            _ => {}
        }
    }
    Bytes(kib << 10)
}

/// Says to the releasing thread that it is over, also when a panic unwinds.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Everything that changes while programs run.
struct Session<'a, 'h> {
    request: &'a Request<'a>,
    hooks: &'a mut Hooks<'h>,
    names: Vec<String>,
    started: Vec<Started>,
    misses: Option<Misses>,
    violations: Vec<Violation>,
    failures: Vec<Failure>,
    notes: Vec<String>,
    /// Jobs already reported while they were not complete.
    reported: BTreeMap<usize, u64>,
    begin: Ns,
    stop: bool,
    unrecorded: Option<io::Error>,
    overhead: Overhead,
}

/// Runs the programs of `request`.
///
/// A program that fails is an outcome; an error is what keeps the run from beginning, or from being watched. What was changed on the
/// machine is put back in any case.
pub fn run(request: &Request, hooks: &mut Hooks) -> Result<Outcome, HostError> {
    let cpus: Vec<CpuId> =
        request.programs.iter().map(|planned| planned.cpu).collect::<BTreeSet<_>>().into_iter().collect();
    let sysfs = Sysfs::system();
    let throttling = || sysfs.text("proc/sys/kernel/sched_rt_runtime_us").unwrap_or_default().trim().to_owned();
    let throttling_before = throttling();
    let latency = || idle::latency(Path::new("/"));
    let latency_before = latency();
    let idle_hold = IdleHold::new(Path::new("/"));
    let latency_during = latency();
    let shield = CpuShield::new(request.folder, &cpus, request.alone)?;
    // Before the tracefs, as it says.
    let misses = request.counted.map(|event| Misses::open(&cpus, event)).transpose();
    let (misses, mut uncounted) = match misses {
        Ok(misses) => (misses, None),
        Err(error) => (None, Some(first_line(&error))),
    };
    let mut tracefs = Tracefs::open(&cpus)?;
    let ticks = || cpus.iter().map(|cpu| CpuTicks::read(&sysfs, Some(*cpu))).collect::<Vec<_>>();

    let mut session = Session {
        request,
        hooks,
        names: request.programs.iter().map(|planned| planned.program.name.clone()).collect(),
        started: Vec::new(),
        misses,
        violations: Vec::new(),
        failures: Vec::new(),
        notes: Vec::new(),
        reported: BTreeMap::new(),
        begin: Ns(u64::MAX),
        stop: false,
        unrecorded: None,
        overhead: Overhead::default(),
    };
    let mut spoken = session.start(&shield)?;
    session.get_ready(&mut spoken);
    let whole = session.prefault();
    session.place();
    let locked = session.lock(&whole);
    let threads = session.schedule(&mut tracefs)?;

    let mut outcome = Outcome {
        placements: vec![None; request.programs.len()],
        violations: Vec::new(),
        failures: Vec::new(),
        overhead: Overhead::default(),
        steal_time: Ns(0),
        duration: Ns(0),
        settings: Vec::new(),
        memory: Vec::new(),
        notes: Vec::new(),
        uncounted: None,
        interrupted: false,
        unrecorded: None,
    };
    let before = ticks();
    if !session.stop {
        session.begin = Ns(monotonic().0 + HEAD_START.0);
        (outcome.duration, spoken) = session.watch(&mut tracefs, &cpus, &threads, spoken)?;
        for task in 0..session.started.len() {
            if !session.started[task].gone {
                outcome.placements[task] = (session.hooks.look)(task, &[session.started[task].pid]);
            }
        }
    }
    // They end with their input.
    drop(spoken);
    session.end();
    for cpu in session.misses.iter_mut().flat_map(Misses::stopped) {
        uncounted = Some(format!("the kernel gave the counters of CPU {} to others meanwhile", cpu.0));
    }
    outcome.uncounted = uncounted;
    shield.end_programs();
    let steal = before.into_iter().zip(ticks()).filter_map(|(before, after)| Some(after?.steal_since(before?).0));
    outcome.steal_time = Ns(steal.sum());
    outcome.memory = session.memory();
    outcome.interrupted = interrupt::interrupted();
    let Session { violations, failures, notes, unrecorded, overhead, .. } = session;
    outcome.overhead = overhead;
    (outcome.violations, outcome.failures, outcome.notes, outcome.unrecorded) =
        (violations, failures, notes, unrecorded);
    drop((tracefs, idle_hold));
    let (moved, staying) = (shield.moved(), shield.staying);
    let others = match &shield.by_affinity {
        _ if !request.alone => ["left", "left", "left"].map(str::to_owned),
        Some(why) => [
            format!("{} threads", moved + staying),
            format!("{staying} threads that may run nowhere else; kept off by affinity: {why}"),
            String::new(),
        ],
        None => ["anywhere", "kept off by a partition of cgroup v2 for each CPU", "anywhere"].map(str::to_owned),
    };
    let restored = shield.restore();
    outcome.notes.extend(restored.trouble);
    let [before, during, after] = others;
    outcome.settings = vec![
        Setting {
            name: "other programs on the CPUs of the tasks".to_owned(),
            before,
            during,
            after: if after.is_empty() { format!("{} threads have their CPUs back", restored.threads) } else { after },
        },
        Setting {
            name: "memory of the tasks".to_owned(),
            before: "not locked".to_owned(),
            during: locked,
            after: "theirs, and they have ended".to_owned(),
        },
        Setting {
            name: "kernel.sched_rt_runtime_us".to_owned(),
            before: throttling_before.clone(),
            during: throttling_before,
            after: throttling(),
        },
        Setting {
            name: "latency of idle CPUs (cpu_dma_latency)".to_owned(),
            before: latency_before,
            during: latency_during,
            after: latency(),
        },
    ];
    Ok(outcome)
}

impl Session<'_, '_> {
    /// Starts the programs, at ordinary priority: those that prepare longest do not hold up the others.
    fn start(&mut self, shield: &CpuShield) -> Result<Vec<Spoken>, HostError> {
        let mut spoken = Vec::new();
        for (task, Planned { program, cpu, joins, .. }) in self.request.programs.iter().enumerate() {
            let failed = |source| JobError::Start { program: program.name.clone(), source };
            let open = |path: &PathBuf| {
                let file = File::options().write(true).open(path);
                file.map(Arc::new)
                    .map_err(|error| failed(io::Error::new(error.kind(), format!("{}: {error}", path.display()))))
            };
            let joins = joins.iter().chain(&shield.partition_of(*cpu)).map(open).collect::<Result<_, _>>()?;
            let launch = Launch {
                cpus: Some(vec![cpu.0]),
                scheduling: None,
                environment: vec![(VARIABLE.to_owned(), shield.mark().to_owned())],
                attached: true,
                own_pid: Vec::new(),
                joins,
            };
            let mut marks = None;
            let (pid, child) = if program.jobs == Jobs::Line && !program.best_effort {
                let program = LineProgram::start(&program.command, &launch)?;
                let pid = program.pid();
                spoken.push(Spoken { task, period: self.request.programs[task].program.period, program });
                (pid, None)
            } else {
                let mut command = command(&program.command).map_err(failed)?;
                launch.prepare(&mut command);
                // Standard output is for results.
                command.stdin(Stdio::null()).stdout(Stdio::from(io::stderr()));
                if program.jobs == Jobs::Marks {
                    let reader = MarkReader::new(MARKS).map_err(failed)?;
                    reader.tell(&mut command);
                    marks = Some(reader);
                }
                let child = command.spawn().map_err(failed)?;
                (Pid(child.id() as i32), Some(child))
            };
            self.started.push(Started { pid, child, gone: false, memory: Bytes(0), marks });
        }
        Ok(spoken)
    }

    /// Since the first release.
    fn since_begin(&self) -> Ns {
        Ns(monotonic().0.saturating_sub(self.begin.0))
    }

    /// Records that a program failed. The program is ended, or has ended.
    fn fail(&mut self, task: usize, what: String) {
        if self.request.programs[task].requirement.is_none() {
            // A best-effort program has no requirement that it could violate.
            return self.notes.push(format!("{}: {what}", self.names[task]));
        }
        self.failures.push(Failure { task: self.names[task].clone(), at: self.since_begin(), what });
        self.stop |= !self.request.keep_going;
    }

    fn give_up(&mut self, task: usize, what: String) {
        if !std::mem::replace(&mut self.started[task].gone, true) {
            let _ = launch::send(self.started[task].pid.0, SIGKILL);
            self.fail(task, what);
        }
    }

    /// Names programs that have ended.
    fn look_for_ends(&mut self) {
        for task in 0..self.started.len() {
            if !self.started[task].gone
                && let Some(how) = ended(self.started[task].pid)
            {
                self.started[task].gone = true;
                self.fail(task, how);
            }
        }
    }

    fn get_ready(&mut self, spoken: &mut [Spoken]) {
        for Spoken { task, program, .. } in spoken {
            // The first jobs touch what they need, before it is moved to its place.
            let ready = program
                .ready(READY_LIMIT)
                .and_then(|_| (0..FIRST_JOBS).try_for_each(|_| program.job(READY_LIMIT).map(drop)));
            if let Err(error) = ready {
                // What it ended with says more.
                std::thread::sleep(BATCH);
                match ended(self.started[*task].pid) {
                    Some(how) => self.give_up(*task, format!("{how} before it was ready")),
                    None => self.give_up(*task, first_line(&error)),
                }
            }
        }
        let limit = monotonic().0 + READY_LIMIT.as_nanos() as u64;
        let resident = |pid: Pid| pid.status("VmRSS").unwrap_or_default();
        let (mut last, mut since) = (Vec::new(), monotonic());
        while monotonic().0 < limit && monotonic().0 - since.0 < SETTLED.as_nanos() as u64 && !interrupt::interrupted()
        {
            let now: Vec<String> = self.started.iter().map(|started| resident(started.pid)).collect();
            if now != last {
                (last, since) = (now, monotonic());
            }
            std::thread::sleep(BATCH);
        }
        self.look_for_ends();
    }

    fn place(&mut self) {
        // Again, for pages that came while others were moved.
        for task in (0..self.started.len()).chain(0..self.started.len()) {
            if self.stop || self.started[task].gone {
                continue;
            }
            if let Err(why) = (self.hooks.place)(task, &[self.started[task].pid]) {
                self.give_up(task, format!("cannot be colored: {why}"));
            }
        }
        self.look_for_ends();
    }

    /// The tasks whose memory is to be locked.
    fn to_lock(&self) -> Vec<usize> {
        let tasks = 0..self.started.len();
        let of_task = |task: &usize| self.request.programs[*task].requirement.is_some() && !self.started[*task].gone;
        tasks.filter(|task| self.request.lock && of_task(task)).collect()
    }

    /// Touches the memory of the tasks, so that it has its place before it is needed; of which tasks all of it.
    ///
    /// What a program has mapped and never touched may be far more than it will ever use: that counts as part of it only within the memory
    /// it was declared with.
    fn prefault(&mut self) -> Vec<bool> {
        let mut whole = vec![false; self.started.len()];
        for task in self.to_lock() {
            let (pid, declared) = (self.started[task].pid, self.request.programs[task].program.memory);
            let room = if declared.0 > 0 {
                (declared.0 + MEMORY_SLACK.0 + copies_of_files(pid).0)
                    .saturating_sub(own_memory(pid).unwrap_or_default().0)
            } else {
                UNTOUCHED.0
            };
            let untouched = pid.regions().map(|regions| lock::untouched(&regions));
            whole[task] = untouched.is_ok_and(|untouched| untouched.0 <= room) && lock::prefault(pid).is_ok();
        }
        whole
    }

    /// Locks the memory of the tasks, once it has its place; what came of it, in words.
    fn lock(&mut self, whole: &[bool]) -> String {
        let mut locked_memory = Vec::new();
        for task in self.to_lock() {
            let (pid, name) = (self.started[task].pid, &self.names[task]);
            match lock::lock(pid, whole[task]) {
                Ok(()) => {
                    let locked = pid.status("VmLck").unwrap_or_default();
                    let how = if whole[task] { "" } else { ", as it is touched" };
                    locked_memory.push(format!("{name}: {locked} locked{how}"));
                }
                Err(error) => {
                    let why = error.to_string();
                    self.notes
                        .push(format!("{name}: its memory is not locked: {}", why.lines().next().unwrap_or_default()));
                }
            }
        }
        self.look_for_ends();
        if locked_memory.is_empty() { "not locked".to_owned() } else { locked_memory.join("; ") }
    }

    /// Gives the programs their priorities, and finds the thread of each that does the jobs.
    fn schedule(&mut self, tracefs: &mut Tracefs) -> Result<Vec<Option<i32>>, HostError> {
        let (mut threads, mut others) = (Vec::<Vec<i32>>::new(), Vec::new());
        for task in 0..self.started.len() {
            let found = self.started[task].pid.threads().unwrap_or_default();
            if let Some(scheduling) = self.request.programs[task].scheduling.filter(|_| !self.started[task].gone) {
                if scheduling.is_deadline() && found.len() > 1 {
                    let what = format!("has {} threads, and SCHED_DEADLINE reserves time for one", found.len());
                    self.give_up(task, what);
                }
                for thread in &found {
                    if let Err(error) = scheduling.apply_to(*thread)
                        && error.raw_os_error() != Some(libc::ESRCH)
                    {
                        let why = if scheduling.is_deadline() { refused_deadline(&error) } else { "" };
                        self.give_up(task, format!("cannot be given {scheduling}: {error}{why}"));
                        break;
                    }
                }
                threads.push(found);
            } else {
                others.extend(found);
                threads.push(Vec::new());
            }
        }
        let all: Vec<i32> = threads.iter().flatten().copied().collect();
        tracefs.follow(&all, &others)?;
        let longest = self.request.programs.iter().map(|planned| 3 * planned.program.period.0).max().unwrap_or(0);
        let several = threads.iter().any(|threads| threads.len() > 1);
        let time = if several { longest.clamp(CALIBRATION.0, 2_000_000_000) } else { 0 };
        let mut events = Vec::new();
        tracefs.drain(&mut events)?;
        events.clear();
        std::thread::sleep(Duration::from_nanos(time));
        tracefs.drain(&mut events)?;
        let woken = |thread: i32| {
            events
                .iter()
                .filter(|event| matches!(event.kind, EventKind::Wakeup { thread: woken } if woken == thread))
                .count()
        };
        Ok(threads
            .iter()
            .zip(self.request.programs)
            .map(|(threads, planned)| {
                let expected = (time / planned.program.period.0.max(1)) as usize;
                threads.iter().copied().min_by_key(|&thread| woken(thread).abs_diff(expected))
            })
            .collect())
    }

    /// Watches over the programs until it is over; for how long, and those that lines are written to.
    fn watch(
        &mut self,
        tracefs: &mut Tracefs,
        cpus: &[CpuId],
        threads: &[Option<i32>],
        spoken: Vec<Spoken>,
    ) -> Result<(Ns, Vec<Spoken>), HostError> {
        let hypervisor = Sysfs::system().is_virtual();
        let mut watch = JobTracker::new(self.started.len(), cpus, self.begin, self.misses.is_some(), hypervisor);
        for (task, Planned { program, cpu, .. }) in self.request.programs.iter().enumerate() {
            if let Some(thread) = threads[task].filter(|_| !self.started[task].gone) {
                watch.follow(task, thread, program.jobs, *cpu);
            }
        }
        let (over, (tell, said)) = (AtomicBool::new(false), mpsc::channel());
        let first = self.begin;
        let cpu_time = |of: ClockId| {
            let time = clock_gettime(of);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let elsewhere = crate::machine::setting::allowed_cpus()?.into_iter().find(|cpu| !cpus.contains(cpu));
        let cpu_before = cpu_time(ClockId::ProcessCPUTime);
        let (result, (spoken, releases)) = std::thread::scope(|scope| {
            let over = Over(&over);
            let releasing = (!spoken.is_empty()).then(|| {
                let over = over.0;
                scope.spawn(move || {
                    let spoken = release(spoken, first, elsewhere, over, &tell);
                    (spoken, Ns(cpu_time(ClockId::ThreadCPUTime)))
                })
            });
            let result = self.batches(tracefs, &mut watch, &said);
            drop(over);
            // A panic there has been reported, and leaves no programs.
            (result, releasing.and_then(|thread| thread.join().ok()).unwrap_or_default())
        });
        self.overhead.tool_cpu = Ns(cpu_time(ClockId::ProcessCPUTime) - cpu_before);
        self.overhead.release_cpu = releases;
        self.overhead.elapsed = self.since_begin();
        let marks = self.started.iter().filter_map(|started| started.marks.as_ref());
        self.overhead.lost = tracefs.lost() + marks.map(MarkReader::lost).sum::<u64>();
        result?;
        Ok((self.since_begin().min(self.request.length), spoken))
    }

    fn batches(
        &mut self,
        tracefs: &mut Tracefs,
        watch: &mut JobTracker,
        said: &mpsc::Receiver<Said>,
    ) -> Result<(), HostError> {
        let (mut events, mut observations, mut jobs) =
            (Vec::<SchedEvent>::new(), Vec::<Observation>::new(), Vec::new());
        let mut horizon = Ns(0);
        let mut looked = Ns(0);
        let mut lost = tracefs.lost();
        let end = Ns(self.begin.0 + self.request.length.0);
        let requirements = self.request.programs.iter().filter_map(|planned| planned.requirement.as_ref());
        let patience = requirements.map(patience).max().unwrap_or(0);
        loop {
            std::thread::sleep(BATCH);
            let now = monotonic();
            let over = self.stop || interrupt::interrupted() || self.started.iter().all(|one| one.gone);
            let awaited =
                || now.0 < end.0 + patience && (0..self.started.len()).any(|task| self.pending(task, watch).is_some());
            let last = over || (now >= end && !awaited());
            tracefs.drain(&mut events)?;
            self.overhead.events += events.len() as u64;
            if let Some(misses) = &mut self.misses {
                misses.drain(&mut observations);
            }
            if tracefs.lost() > lost {
                lost = tracefs.lost();
                watch.lose();
            }
            for event in events.drain(..) {
                if let EventKind::Fork { parent, child } = event.kind {
                    self.forked(parent, child);
                }
                observations.push(Observation { at: event.at, what: Observed::Scheduler(event.cpu, event.kind) });
            }
            for said in said.try_iter() {
                self.hear(said, &mut observations);
            }
            self.read_marks(watch, &mut observations);
            // What happened before the batch before this one was read has arrived by now.
            observations.sort_by_key(|observation| observation.at);
            let ripe = if last { observations.len() } else { observations.partition_point(|one| one.at < horizon) };
            for observation in observations.drain(..ripe) {
                watch.note(observation);
            }
            // All that happened before this is noted.
            let known = std::mem::replace(&mut horizon, now);
            if last {
                self.unfinished(now, watch);
                watch.lose();
            }
            watch.take(&mut jobs);
            for job in jobs.drain(..) {
                self.complete(&job, watch);
            }
            if last {
                self.look_for_ends();
                return Ok(());
            }
            self.overdue(known, watch);
            self.look_for_ends();
            if now.0 >= looked.0 + LOOK.0 {
                looked = now;
                self.look_at_memory();
            }
            for task in 0..self.started.len() {
                if self.started[task].gone {
                    watch.forget(task);
                }
            }
        }
    }

    fn hear(&mut self, said: Said, observations: &mut Vec<Observation>) {
        match said {
            Said::Released { task, due, at, written, waited } => {
                // A line that is written late by this program is not the task's failure; one that waits for the job before is.
                let release = if waited { due } else { at };
                if !waited {
                    let late = &mut self.overhead.release_late_max;
                    *late = (*late).max(Ns(at.0.saturating_sub(due.0)));
                }
                observations.push(Observation { at, what: Observed::Released(task, release) });
                if written.0 - at.0 > LATE_MAX.0 {
                    observations.push(Observation { at: written, what: Observed::HeldUp(task, at) });
                }
            }
            Said::Skipped { due, at } => {
                self.overhead.releases_skipped += 1;
                self.overhead.held_up_max = self.overhead.held_up_max.max(Ns(at.0 - due.0));
            }
            Said::Answered { task, at } => observations.push(Observation { at, what: Observed::Answered(task) }),
            Said::Failed { task, error } => {
                self.look_for_ends();
                self.give_up(task, first_line(&error));
            }
        }
    }

    fn read_marks(&mut self, watch: &mut JobTracker, observations: &mut Vec<Observation>) {
        let mut marks: Vec<Mark> = Vec::new();
        for (task, started) in self.started.iter_mut().enumerate() {
            let Some(reader) = &mut started.marks else { continue };
            reader.read(&mut marks);
            for Mark { at, thread, edge } in marks.drain(..) {
                // Which thread does the jobs, its marks tell.
                if watch.thread(task) != Some(thread as i32) {
                    watch.follow(task, thread as i32, Jobs::Marks, self.request.programs[task].cpu);
                }
                let what = if edge == Edge::Begin { Observed::Begins(task) } else { Observed::Ends(task) };
                observations.push(Observation { at, what });
            }
        }
    }

    fn complete(&mut self, job: &JobRecord, watch: &JobTracker) {
        if job.release >= self.request.length {
            return;
        }
        let Some(requirement) = &self.request.programs[job.task].requirement else { return };
        let limits = requirement.violated_by(job.response(), job.execution);
        if let Err(error) = (self.hooks.record)(job) {
            self.unrecorded.get_or_insert(error);
            self.stop = true;
        }
        if !limits.is_empty() && self.reported.get(&job.task) != Some(&job.instance) {
            self.violated(job, limits, watch);
        }
    }

    fn violated(&mut self, job: &JobRecord, limits: Vec<Limit>, watch: &JobTracker) {
        if self.violations.len() < TOLD {
            let before = Ns(job.release.0.saturating_sub(job.response().0 / 2));
            self.violations.push(Violation {
                task: self.names[job.task].clone(),
                instance: job.instance,
                limits,
                release: job.release,
                response: job.response(),
                execution: job.execution,
                steal_time: job.steal_time,
                timeline: watch.timeline(job.task, before, job.completion, &self.names),
            });
        }
        match self.request.on_violation {
            OnViolation::Trace => {}
            OnViolation::Signal => {
                let _ = launch::send(self.started[job.task].pid.0, SIGUSR1);
            }
            OnViolation::Stop => self.stop = true,
        }
    }

    /// When the job of `task` was released that counts and is not complete, and its number.
    fn pending(&self, task: usize, watch: &JobTracker) -> Option<(Ns, u64)> {
        let counts = self.request.programs[task].requirement.is_some() && !self.started[task].gone;
        let end = Ns(self.begin.0 + self.request.length.0);
        watch.pending(task).filter(|(release, _)| counts && *release < end)
    }

    /// Names tasks with a job that is not complete at the end and exceeds a limit already, because no record of it will come.
    fn unfinished(&mut self, now: Ns, watch: &JobTracker) {
        for task in 0..self.started.len() {
            let Some(requirement) = &self.request.programs[task].requirement else { continue };
            let Some((release, instance)) = self.pending(task, watch) else { continue };
            let response = Ns(now.0.saturating_sub(release.0));
            if let Some(limit) = requirement.violated_by(response, Ns(0)).first() {
                let since = response.0 as f64 / 1e6;
                self.fail(task, format!("its job {instance} was not complete at the end, {since:.1} ms after its release, which exceeds its {limit}"));
            }
        }
    }

    /// Jobs that are not complete though they should be, and tasks that never sleep.
    fn overdue(&mut self, now: Ns, watch: &mut JobTracker) {
        for task in 0..self.started.len() {
            if self.started[task].gone {
                continue;
            }
            let Some(requirement) = &self.request.programs[task].requirement else { continue };
            if let Some((release, instance)) = self.pending(task, watch) {
                let response = Ns(now.0.saturating_sub(release.0));
                let limits = requirement.violated_by(response, Ns(0));
                if !limits.is_empty() && self.reported.get(&task) != Some(&instance) {
                    self.reported.insert(task, instance);
                    let release = Ns(release.0 - self.begin.0);
                    let completion = Ns(release.0 + response.0);
                    let job = JobRecord { task, instance, release, completion, ..JobRecord::default() };
                    self.violated(&job, limits, watch);
                }
            }
            let patience = patience(requirement);
            if let Some(awake) = watch.awake(task, now).filter(|awake| awake.0 > patience) {
                let what =
                    format!("has not slept for {:.0} ms and keeps the CPU from the others", awake.0 as f64 / 1e6);
                self.give_up(task, what);
            } else if let Some((release, _)) = self
                .pending(task, watch)
                // One that waits for the CPU is late because of others.
                .filter(|(release, _)| watch.asleep(task) && now.0 > release.0 + patience)
            {
                let since = (now.0 - release.0) as f64 / 1e6;
                self.give_up(task, format!("has not completed a job for {since:.0} ms"));
            }
        }
    }

    fn forked(&mut self, parent: i32, child: i32) {
        let of = |started: &Started| Path::new(&format!("/proc/{}/task/{parent}", started.pid.0)).exists();
        let Some(task) = self.started.iter().position(of) else { return };
        // A thread of its own is no other process.
        if !Path::new(&format!("/proc/{}/task/{child}", self.started[task].pid.0)).exists() {
            self.fail(task, format!("started another process ({child}), which is not part of the plan"));
        }
    }

    fn look_at_memory(&mut self) {
        for task in 0..self.started.len() {
            let started = &mut self.started[task];
            let Some(memory) = own_memory(started.pid).filter(|_| !started.gone) else { continue };
            started.memory = started.memory.max(memory);
            let declared = self.request.programs[task].program.memory;
            let allowed = declared.0 + MEMORY_SLACK.0;
            // Copies are looked for where they matter: that takes longer.
            let too_much = || memory.0 > allowed + copies_of_files(started.pid).0;
            if declared.0 > 0 && memory.0 > allowed && too_much() {
                self.give_up(
                    task,
                    format!("has {memory} of memory of its own, more than the {declared} it was planned with"),
                );
            }
        }
    }

    fn memory(&self) -> Vec<(String, Bytes)> {
        self.names.iter().cloned().zip(self.started.iter().map(|started| started.memory)).collect()
    }

    /// Asks the programs to end, and waits a little.
    fn end(&mut self) {
        for started in self.started.iter().filter(|started| started.child.is_some() && !started.gone) {
            let _ = launch::send(started.pid.0, SIGTERM);
        }
        let limit = monotonic().0 + 500_000_000;
        while monotonic().0 < limit && self.started.iter().any(|one| one.child.is_some() && ended(one.pid).is_none()) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Why the kernel refuses SCHED_DEADLINE. [sched(7); Linux, Documentation/scheduler/sched-deadline.rst]
fn refused_deadline(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "; it may run on one CPU, which must be a root domain of its own: a partition of cgroup v2's cpuset, for which the controller must not be \
             bound to cgroup v1, or kernel.sched_rt_runtime_us = -1, which turns admission off"
        }
        Some(libc::EBUSY) => {
            "; the reservations on its CPU are more than kernel.sched_rt_runtime_us in every kernel.sched_rt_period_us admits"
        }
        Some(libc::EINVAL) => {
            "; a period lies between kernel.sched_deadline_period_min_us and _max_us, a runtime is at least 1024 ns and at most the deadline"
        }
        _ => "",
    }
}

/// An error without its hint.
fn first_line(error: &dyn std::error::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_what_is_anonymous_in_files_that_cannot_be_written() {
        let mapping =
            |head: &str, anonymous| format!("{head}\nSize: 900 kB\nAnonymous: {anonymous} kB\nVmFlags: rd mr mw me\n");
        let smaps = [
            mapping("55d0c4a00000-55d0c4b00000 r-xp 00001000 fe:00 1234                       /usr/bin/task", 16),
            mapping("55d0c4b00000-55d0c4c00000 rw-p 00002000 fe:00 1234                       /usr/bin/task", 64),
            mapping("55d0c5000000-55d0c5100000 rw-p 00000000 00:00 0                          [heap]", 256),
            mapping("7f0000000000-7f0000100000 r--p 00000000 00:00 0 ", 512),
            mapping("7f0000200000-7f0000300000 r--p 00000000 fe:00 77                         /lib/libc.so.6", 8),
        ];
        assert_eq!(copies_in(&smaps.concat()), Bytes(24 << 10));
    }
}
