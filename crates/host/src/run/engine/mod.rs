//! Runs the programs of a plan together: starts, places, prioritizes, releases, watches and ends them.
//!
//! The CPUs of the tasks are left to the tasks. This program works on other CPUs: it reads the scheduler's events in batches, releases the jobs
//! of message-driven programs, and checks every response against its bound and its deadline. However a run ends, the machine is restored: by
//! this process or, if it is killed, by the next invocation ([`shielding`](super::shielding)).

mod memory;
mod session;
mod settings;
mod starting;
mod watching;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use isochrome_model::running::{BlockPlacement, Failure, JobRecord, Overhead, Placement, Releases, Setting, Violation};
use isochrome_model::units::{Bytes, CpuId, Ns};

use self::session::Session;
use self::settings::Settings;
use super::planned::Planned;
use super::shielding::CpuShield;
use crate::counters::events::Event as Counted;
use crate::error::without_hint;
use crate::interrupt;
use crate::machine::steal::CpuTicks;
use crate::machine::sysfs::Sysfs;
use crate::process::Pid;
use crate::run::error::RunError;
use crate::run::gaps::GapsBeside;
use crate::sched::jobs::events::JobEvents;
use crate::sys::clock::monotonic;

/// Time between two batches of events.
const BATCH: Duration = Duration::from_millis(50);

/// Time from when all programs are ready until the first release.
const HEAD_START: Ns = Ns(20_000_000);

/// Action when a job exceeds a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnViolation {
    /// Record the job, and what ran on its CPU around it.
    #[default]
    Trace,
    /// Record the job, and send SIGUSR1 to its program.
    Signal,
    /// Record the job, and end the run.
    Stop,
}

/// Programs to run, and the conditions under which they run.
pub struct Request<'a> {
    /// Programs of the run.
    pub programs: &'a [Planned],
    /// Length of the run, from the first release.
    pub length: Ns,
    /// Action when a job exceeds a limit.
    pub on_violation: OnViolation,
    /// Whether the run continues when a program fails.
    pub keep_going: bool,
    /// Whether other programs are kept off the CPUs of the tasks.
    pub alone: bool,
    /// Whether the memory of tasks is touched beforehand and locked.
    pub lock: bool,
    /// Whether the clock is watched on the CPU of a task from its first job beyond a limit on, for gaps that nobody reports.
    pub watches_gaps: bool,
    /// Event that is counted for every job; `None` to count nothing.
    pub counted: Option<Counted>,
    /// The runtime folder.
    pub folder: &'a Path,
}

/// Function that moves the processes of a program (given by its index) to their colors, once the program is ready. An error is the reason why
/// that is not possible.
pub type MoveToColors<'a> = dyn FnMut(usize, &[Pid]) -> Result<(), String> + 'a;

/// Functions that a run calls for its programs and jobs.
pub struct Hooks<'a> {
    /// Moves the memory of a program to its colors.
    pub move_to_colors: &'a mut MoveToColors<'a>,
    /// Returns where the memory of a program lies; `None` if that cannot be determined.
    pub inspect: &'a mut dyn FnMut(usize, &[Pid]) -> Option<Placement>,
    /// Records a job. An error ends the run.
    pub record: &'a mut dyn FnMut(&JobRecord) -> io::Result<()>,
}

/// Outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Placement of the memory of each program, block by block, in the order of the programs.
    pub placements: Vec<Vec<BlockPlacement>>,
    /// Counts of the releases of each program.
    pub releases: Vec<Releases>,
    /// The first jobs that exceed a limit.
    pub violations: Vec<Violation>,
    /// Failures of programs.
    pub failures: Vec<Failure>,
    /// Cost of observing the run.
    pub overhead: Overhead,
    /// Steal time of the CPUs of the tasks.
    pub steal_time: Ns,
    /// Time from the first release to the end of the run.
    pub duration: Ns,
    /// Gaps that nobody reported, on CPUs on which the clock was watched.
    pub gaps: Vec<GapsBeside>,
    /// Settings that the run changed or depended on, with their values before, during and after the run.
    pub settings: Vec<Setting>,
    /// Name of each program, with the largest amount of memory of its own that it had.
    pub memory: Vec<(String, Bytes)>,
    /// Failures of best-effort programs, memory that could not be locked, and changes that could not be undone.
    pub notes: Vec<String>,
    /// Reason why misses were not counted, or not until the end, although counting was requested.
    pub uncounted: Option<String>,
    /// Whether a signal ended the run.
    pub interrupted: bool,
    /// Error that ended the run because jobs could not be recorded any more.
    pub unrecorded: Option<io::Error>,
}

/// Runs the programs of `request`, and returns the outcome.
///
/// A program that fails is part of the outcome. An error means that the run could not begin, or could not be watched. Changes to the machine are
/// undone in any case.
pub fn run(request: &Request, hooks: &mut Hooks) -> Result<Outcome, RunError> {
    let cpus: Vec<CpuId> =
        request.programs.iter().map(|planned| planned.cpu).collect::<BTreeSet<_>>().into_iter().collect();
    let settings = Settings::hold();
    let shield = CpuShield::new(request.folder, &cpus, request.alone)?;
    let (mut events, uncounted) = JobEvents::open(&cpus, request.counted)?;
    let mut uncounted = uncounted.as_ref().map(|error| without_hint(error));
    let sysfs = Sysfs::system();
    let ticks = || cpus.iter().map(|cpu| CpuTicks::read(&sysfs, Some(*cpu))).collect::<Vec<_>>();

    let mut session = Session::new(request, hooks);
    let mut message_driven = session.start(&shield)?;
    session.get_ready(&mut message_driven);
    let whole = session.prefault();
    session.move_to_colors();
    let locked = session.lock(&whole);
    let threads = session.schedule(&mut events)?;

    let mut duration = Ns(0);
    let before = ticks();
    if !session.stop {
        session.begin = Ns(monotonic().0 + HEAD_START.0);
        (duration, message_driven) = session.watch(&mut events, &cpus, &threads, message_driven)?;
    }
    let begins = session.begins.take().unwrap_or_else(|| vec![None; request.programs.len()]);
    let ends = begins.into_iter().zip(session.placements());
    let placements = ends.map(|(begin, end)| vec![BlockPlacement { begin, end }]).collect();
    // Message-driven programs end when their input is closed, which happens here.
    drop(message_driven);
    session.end();
    for cpu in events.stopped() {
        uncounted = Some(format!("the kernel gave the counters of CPU {} to others during the run", cpu.0));
    }
    shield.end_programs();
    let gaps = session.gaps();
    let steal = before.into_iter().zip(ticks()).filter_map(|(before, after)| Some(after?.steal_since(before?).0));
    let steal_time = Ns(steal.sum());
    let (memory, interrupted) = (session.memory(), interrupt::interrupted());
    drop(events);
    let (settings, trouble) = settings.restore(shield, request.alone, locked);
    let Session { violations, failures, mut notes, unrecorded, overhead, releases, .. } = session;
    notes.extend(trouble);
    Ok(Outcome {
        placements,
        releases,
        violations,
        failures,
        overhead,
        steal_time,
        duration,
        gaps,
        settings,
        memory,
        notes,
        uncounted,
        interrupted,
        unrecorded,
    })
}
