//! Programs of a plan, run together: started, placed, given their priorities, released, watched, ended.
//!
//! What runs on the CPUs of the tasks is the tasks. This program works on others: it reads the scheduler's events in batches, releases
//! jobs that are lines, and holds every response against its bound and its deadline. Whatever ends it, the machine is put back as it was,
//! by this process or, if it is killed, by the next one ([`shielding`](super::shielding)).

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
use crate::sched::jobs::events::JobEvents;
use crate::sys::clock::monotonic;

/// Between two batches of events.
const BATCH: Duration = Duration::from_millis(50);

/// From when all programs are ready to the first release.
const HEAD_START: Ns = Ns(20_000_000);

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
    /// Where the memory of each program lay, block by block, in the order of the programs.
    pub placements: Vec<Vec<BlockPlacement>>,
    /// What became of the releases of each program.
    pub releases: Vec<Releases>,
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

/// Runs the programs of `request`.
///
/// A program that fails is an outcome; an error is what keeps the run from beginning, or from being watched. What was changed on the
/// machine is put back in any case.
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
    session.place();
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
    // They end with their input.
    drop(message_driven);
    session.end();
    for cpu in events.stopped() {
        uncounted = Some(format!("the kernel gave the counters of CPU {} to others meanwhile", cpu.0));
    }
    shield.end_programs();
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
        settings,
        memory,
        notes,
        uncounted,
        interrupted,
        unrecorded,
    })
}
