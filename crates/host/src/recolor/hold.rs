//! A process held still: all threads stopped, and parked, so that none goes on by itself if this program should be killed.
//!
//! The kernel lets traced threads go on when their tracer dies. A thread is therefore *parked* before anything else happens: its
//! next instruction becomes an endless wait, in a few unused bytes of executable memory (the *cave*), and its signals are blocked.
//! What it was about to do is in the journal, a file written before the first change. Whoever dies, the process then waits;
//! [`Hold::resume`] puts everything back, and is what a repair does.
//!
//! To map memory and to make helpers it is enough to hold one thread for an instant. Such memory is in the journal for as long as it
//! is there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Pid as RawPid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::filtered::Judge;
use super::process::{Mappings, Pid, ThreadState, status_of};
use super::{MAX_PAUSE, RecolorError, filtered};
use crate::interrupt::interrupted;
use crate::machine::sysfs::Sysfs;
use crate::runtime;
use crate::sys::agent::{self, CAVE, DEADLINE_AT, WAIT};
use crate::sys::launch;
use crate::sys::memory::page_bytes;
use crate::sys::scheduling::Scheduling;
use crate::sys::trace::{self, Answer, Registers, Report, StopLimit, ThreadId};

/// Signals 1 to 64.
const ALL_SIGNALS: u64 = u64::MAX;

/// What a helper shares with the thread that makes it, as clone(2) takes it.
pub const HELPER_FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM) as u64;

/// What has to be put back in a process, should this program be killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Journal {
    pid: i32,
    start_time: u64,
    threads: Vec<Thread>,
    cave: u64,
    /// What the cave held.
    covered: Vec<u64>,
    /// Memory mapped for the work: first address, bytes. No bytes before it is about to be mapped and once it has been unmapped.
    pub area: (u64, u64),
    /// Mappings whose protection is changed for the work: first address, bytes, protection to put back.
    pub protections: Vec<(u64, u64, u64)>,
    /// The userfaultfd opened for the work.
    pub userfault: Option<i32>,
    /// Userfaultfds that are the program's own, as far as all its threads are held: any other one was opened for the work just before
    /// this journal could say so.
    own_userfaults: Option<Vec<i32>>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Thread {
    id: ThreadId,
    registers: Registers,
    blocked: u64,
}

/// Held while a process is recolored or repaired, so that it happens to one at a time: two would take the frames away that the other
/// one gives back to be taken again.
pub struct Turn {
    /// Locked for as long as it is open.
    _file: File,
    _share: Share,
}

impl Turn {
    /// Waits for it, until this program is asked to end, in order to work on `pid`.
    pub fn wait(pid: Pid) -> Result<Turn, RecolorError> {
        let folder = runtime::folder();
        let path = folder.join("recolor.lock");
        let failed = |source| RecolorError::Journal { path: path.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Turn { _file: file, _share: Share::half_a_cpu() }),
                Err(error) if error != Errno::WOULDBLOCK => return Err(failed(error.into())),
                Err(_) if interrupted() => return Err(RecolorError::Interrupted { pid: pid.0 }),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Journal {
    fn path(pid: Pid) -> PathBuf {
        runtime::folder().join(format!("recolor-{}.json", pid.0))
    }

    /// Where the next journal is written, before it takes the place of the last.
    fn beside(pid: Pid) -> PathBuf {
        runtime::folder().join(format!("recolor-{}.new", pid.0))
    }

    /// The journal left for `pid`, if any. That of an earlier process of this number is removed.
    pub fn left_for(pid: Pid) -> Result<Option<Journal>, RecolorError> {
        let path = Journal::path(pid);
        // Of a tool that was killed as it wrote; there is none in most cases.
        let _ = fs::remove_file(Journal::beside(pid));
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RecolorError::Journal { path, source }),
            Ok(text) => text,
        };
        let journal: Journal = serde_json::from_str(&text)
            .map_err(|error| RecolorError::Journal { path: path.clone(), source: error.into() })?;
        if pid.start_time() == Some(journal.start_time) {
            return Ok(Some(journal));
        }
        journal.remove()?;
        Ok(None)
    }

    /// Written as a whole or not at all. It has to outlive this program, not the machine, so it is not forced to a disk.
    pub fn write(&self) -> Result<(), RecolorError> {
        let path = Journal::path(Pid(self.pid));
        let failed = |source| RecolorError::Journal { path: path.clone(), source };
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        let beside = Journal::beside(Pid(self.pid));
        // Registers are nobody else's business.
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside);
        file.and_then(|mut file| file.write_all(&text)).map_err(failed)?;
        fs::rename(&beside, &path).map_err(failed)
    }

    /// Removes what is left for `pid`.
    pub fn forget(pid: Pid) -> Result<(), RecolorError> {
        Journal::left_for(pid)?.map_or(Ok(()), |journal| journal.remove())
    }

    fn remove(&self) -> Result<(), RecolorError> {
        let path = Journal::path(Pid(self.pid));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(RecolorError::Journal { path, source: error }),
            _ => Ok(()),
        }
    }
}

/// Which threads are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// All: the process stands still.
    All,
    /// One, while the others go on.
    One,
}

/// A process whose threads, or one of them, are stopped and parked.
///
/// Dropped without [`resume`](Self::resume) or [`leave`](Self::leave), it puts back what it can.
pub struct Hold {
    pid: Pid,
    memory: File,
    /// Its mappings.
    pub mappings: Mappings,
    /// What to put back.
    pub journal: Journal,
    /// The thread that issues system calls.
    leader: usize,
    /// Threads that the leader made and that are stopped.
    helpers: Vec<Helper>,
    held_back: Vec<i32>,
    resumed: bool,
    haste: Haste,
    /// When the first thread was asked to stop.
    pub began: Instant,
    /// Whether the kernel or a device may have begun to work on the memory since [`Pid::asynchronous_io`] was asked.
    pub may_have_begun_io: bool,
}

/// While it is there, this thread goes before all that is not real-time, where that is permitted: else a loaded machine has the stopped
/// process wait for this program's time slice.
struct Haste {
    /// What it goes back to.
    before: Option<Scheduling>,
    /// The CPUs that it may run on otherwise, while it is kept on that of a held thread.
    cpus: Option<CpuSet>,
}

impl Haste {
    fn begin() -> Haste {
        let ordinary = |now: &Scheduling| now.is_ordinary();
        let before = Scheduling::current().ok().filter(ordinary);
        Haste { before: before.filter(|_| Scheduling::fifo(1).apply().is_ok()), cpus: None }
    }

    /// Keeps this thread on the CPU that `thread` of `pid` ran on last. The two take turns, one system call after the other, and at each
    /// turn the kernel chooses anew who runs on that CPU. It prefers the thread that has run least, so on a CPU that other threads of the
    /// program keep busy, the held thread would wait for the end of a time slice at every call. A real-time thread is not followed: it may
    /// never leave its CPU to this one.
    fn share_cpu_with(&mut self, pid: Pid, thread: ThreadId) {
        let Some(state) = pid.thread_state(thread).filter(ThreadState::is_ordinary) else { return };
        self.cpus = self.cpus.or_else(|| sched_getaffinity(None).ok());
        let mut cpu = CpuSet::new();
        cpu.set(state.cpu);
        // Where it may not run there, it works from where it is.
        let _ = sched_setaffinity(None, &cpu);
    }

    /// The CPUs that this thread may run on while it has no haste.
    fn cpus(&self) -> io::Result<CpuSet> {
        Ok(self.cpus.map_or_else(|| sched_getaffinity(None), Ok)?)
    }
}

impl Drop for Haste {
    fn drop(&mut self) {
        if let Some(cpus) = self.cpus {
            // It was permitted before.
            let _ = sched_setaffinity(None, &cpus);
        }
        if let Some(before) = self.before {
            // It was permitted before.
            let _ = before.apply();
        }
    }
}

/// Gives this thread, and the helpers it makes, the nice value that is worth about half of a CPU, if permitted. Without it, a helper
/// gets only one share among the many threads of a program that keeps all CPUs busy.
struct Share {
    /// What it goes back to.
    before: Option<Scheduling>,
}

impl Share {
    fn half_a_cpu() -> Share {
        /// Ratio of the CPU time of neighboring nice values. [Linux, kernel/sched/core.c, sched_prio_to_weight]
        const STEP: f64 = 1.25;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // This thread is one of them.
        let others = Sysfs::system().running_threads().map_or(0, |running| running.saturating_sub(1));
        let on_each = (others as f64 / cpus as f64).max(1.0);
        let steps = (on_each.ln() / STEP.ln()) as i32;
        let before = Scheduling::current().ok().filter(|now| steps > 0 && now.is_other());
        Share { before: before.filter(|before| before.nicer_by(-steps).apply().is_ok()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // It was permitted before.
            let _ = before.apply();
        }
    }
}

/// Most descriptors that are looked through while the process stands still, which takes about a millisecond.
const DESCRIPTORS_MAX: usize = 500;

/// How a helper is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As this program is while nobody waits for it, but never real-time: for work while the process goes on.
    Calm,
    /// As this program is while the process stands still.
    Hurried,
}

/// A thread that works in the process, and the address of its table.
#[derive(Clone, Copy)]
struct Helper {
    thread: ThreadId,
    table: u64,
}

/// For how long a thread may keep the others waiting until it stops.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// One that waits for something, such as a device.
    waiting: Duration,
    /// One that only waits for a CPU.
    runnable: Duration,
}

impl Patience {
    /// That of a pause of at most `max_pause`, after so many attempts in vain: a machine with more threads to run than CPUs comes round
    /// to each of them only after a while.
    pub fn of(max_pause: Duration, in_vain: u32) -> Patience {
        /// The least.
        const LEAST: Duration = Duration::from_millis(5);
        /// The most, for one that only waits for a CPU.
        const MOST: Duration = Duration::from_millis(500);
        let runnable = (max_pause / 4 * 3).max(2 * LEAST);
        Patience {
            waiting: (max_pause / 4).max(LEAST),
            runnable: (runnable * 2u32.pow(in_vain.min(6))).min(MOST.max(runnable)),
        }
    }
}

/// How long a thread that cannot be stopped as it waits for a child is waited for while all threads run.
const CHILD_LIMIT: Duration = Duration::from_millis(50);

/// How long a thread that did not stop in time is waited for before it is left for later.
const STRAGGLER_LIMIT: Duration = Duration::from_millis(500);

thread_local! {
    /// Threads that were asked to stop and have not, to be let go when they do. They are traced by this thread alone.
    static STRAGGLERS: RefCell<Vec<(Pid, ThreadId)>> = const { RefCell::new(Vec::new()) };
}

/// Lets those threads go that were asked to stop, did not in time, and have stopped since.
pub fn release_stragglers() {
    STRAGGLERS.with_borrow_mut(|stragglers| {
        let mut made = Vec::new();
        stragglers.retain(|(pid, thread)| !release(*pid, *thread, &mut made));
        stragglers.append(&mut made);
    });
}

/// Ends the tracing of a thread that was asked to stop, if it has stopped. `made`: threads made by it, which are traced as well.
fn release(pid: Pid, thread: ThreadId, made: &mut Vec<(Pid, ThreadId)>) -> bool {
    let signal = match trace::reported(thread) {
        Ok(None) => return false,
        Err(_) | Ok(Some(Report::Gone)) => return true,
        Ok(Some(Report::Signal(signal))) => signal,
        Ok(Some(Report::Cloned(thread))) => {
            made.push((pid, thread));
            0
        }
        Ok(Some(Report::Stopped)) => {
            // A call that breaks off is made again.
            let _ = trace::registers(thread).and_then(|registers| put_back(pid, thread, &registers, None));
            0
        }
        Ok(Some(Report::SystemCall)) => 0,
    };
    let _ = trace::detach(thread, signal);
    true
}

/// Threads stopped so far, with the registers they stopped with; those still here are let go on.
struct Seized {
    pid: Pid,
    threads: Vec<(ThreadId, Registers)>,
    haste: Option<Haste>,
    /// When the first thread was asked to stop.
    began: Instant,
    /// Whether there are threads of the kernel among those of the process.
    has_workers: bool,
}

impl Seized {
    fn new(pid: Pid) -> Seized {
        release_stragglers();
        Seized { pid, threads: Vec::new(), haste: None, began: Instant::now(), has_workers: false }
    }

    fn holds(&self, thread: ThreadId) -> bool {
        self.threads.iter().any(|(held, _)| *held == thread)
    }

    /// Stops one thread: of those that wait for something, if there are any.
    fn one(pid: Pid) -> Result<Seized, RecolorError> {
        let states = pid.thread_numbers()?.into_iter().filter_map(|thread| Some((thread, pid.thread_state(thread)?)));
        let mut threads: Vec<_> = states.filter(|(_, state)| state.is_running() && !state.is_kernel_worker()).collect();
        threads.sort_by_key(|(_, state)| match state.letter {
            'S' => 0,
            'D' => 2,
            _ => 1,
        });
        let mut seized = Seized::new(pid);
        seized.haste = Some(Haste::begin());
        let mut why = RecolorError::Ended { pid: pid.0 };
        for (thread, _) in threads {
            seized.haste.iter_mut().for_each(|haste| haste.share_cpu_with(pid, thread));
            match trace::seize_alone(thread).and_then(|()| trace::interrupt(thread)) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(_) if !pid.is_running(thread) => continue,
                Err(source) => return Err(seized.refused(thread, source)),
                Ok(()) => {}
            }
            seized.began = Instant::now();
            // Nobody else waits.
            let limit = StopLimit {
                waiting: seized.began + Duration::from_millis(100),
                runnable: seized.began + Duration::from_secs(1),
            };
            match seized.gather(&[thread], limit) {
                Err(error @ RecolorError::NotStopping { .. }) => why = error,
                Err(error) => return Err(error),
                Ok(Some(seen)) => {
                    // It went on until then, or waited for a CPU as it would have without us.
                    seized.began = seen;
                    trace::trace_clones(thread).map_err(failed(pid, thread, "stop"))?;
                    return Ok(seized);
                }
                Ok(None) => {}
            }
        }
        Err(why)
    }

    /// Stops every thread, but no thread of the kernel. No thread is made any more once all that are known have stopped.
    ///
    /// Fails with [`RecolorError::NotStopping`] where a thread would keep the others waiting for longer than `patience` says.
    fn all(pid: Pid, patience: Patience) -> Result<Seized, RecolorError> {
        let mut seized = Seized::new(pid);
        // What is to be known of the threads is read while they run.
        let mut workers = BTreeSet::new();
        let mut known = BTreeMap::new();
        for thread in pid.thread_numbers()? {
            let Some(state) = pid.thread_state(thread).filter(|state| state.is_running()) else { continue };
            if state.is_kernel_worker() {
                workers.insert(thread);
                continue;
            }
            let mut call = pid.waits_in(thread);
            let begin = Instant::now();
            while call.is_some_and(trace::lends_memory) && pid.thread_state(thread).is_some_and(|now| now.letter == 'D')
            {
                if begin.elapsed() > CHILD_LIMIT {
                    return Err(RecolorError::NotStopping { pid: pid.0, thread, stood: Duration::ZERO });
                }
                std::thread::sleep(Duration::from_micros(50));
                call = pid.waits_in(thread);
            }
            known.insert(thread, call.is_some_and(trace::breaks_off));
        }
        seized.haste = Some(Haste::begin());
        seized.began = Instant::now();
        let limit = StopLimit { waiting: seized.began + patience.waiting, runnable: seized.began + patience.runnable };
        let mut new: Vec<ThreadId> = known.keys().copied().collect();
        while !new.is_empty() {
            let mut asked = Vec::new();
            for thread in new {
                let at_once = known.get(&thread).copied().unwrap_or(false);
                match trace::seize(thread).and_then(|()| trace::interrupt(thread)) {
                    // Looked at before the next is asked, so that the call breaks off for as short a time as can be.
                    Ok(()) if at_once => {
                        if let Err(error) = seized.gather(&[thread], limit) {
                            seized.give_up(&asked);
                            return Err(error);
                        }
                    }
                    Ok(()) => asked.push(thread),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    // One that is about to end, as a helper whose work is done, may not be traced any more.
                    Err(_) if !pid.is_running(thread) => {}
                    // One that a traced thread made is traced already, and stops by itself.
                    Err(_) if is_ours(pid, thread) => asked.push(thread),
                    Err(source) => {
                        seized.give_up(&asked);
                        return Err(seized.refused(thread, source));
                    }
                }
            }
            seized.gather(&asked, limit)?;
            new = pid.thread_numbers()?;
            new.retain(|thread| !seized.holds(*thread) && !workers.contains(thread));
            new.retain(|thread| match pid.thread_state(*thread) {
                Some(state) if state.is_kernel_worker() => {
                    workers.insert(*thread);
                    false
                }
                state => state.is_some_and(|state| state.is_running()),
            });
        }
        seized.has_workers = !workers.is_empty();
        if seized.threads.is_empty() { Err(RecolorError::Ended { pid: pid.0 }) } else { Ok(seized) }
    }

    fn refused(&self, thread: ThreadId, source: io::Error) -> RecolorError {
        match source.raw_os_error() {
            // One that did not stop in time is still ours, until it does.
            Some(libc::EPERM) if is_ours(self.pid, thread) => {
                RecolorError::NotStopping { pid: self.pid.0, thread, stood: Duration::ZERO }
            }
            // Nobody may trace what is ending.
            Some(libc::EPERM) if !self.pid.is_running(thread) => RecolorError::Changed { pid: self.pid.0 },
            Some(libc::EPERM) => RecolorError::Denied { pid: self.pid.0 },
            _ => RecolorError::Trace { pid: self.pid.0, thread, action: "stop", source },
        }
    }

    /// Waits until all that were asked to have stopped. Where one does not, all are let go. Gives when the last of them was last seen not to have
    /// stopped yet; `None` where none of them is any more.
    ///
    /// A call that breaks off when it is stopped is made to begin again at once: should this program be killed now, the thread goes on with
    /// what it is found with. The time between is what a kill has to hit for the program to see EINTR.
    fn gather(&mut self, asked: &[ThreadId], limit: StopLimit) -> Result<Option<Instant>, RecolorError> {
        let mut last = None;
        for (i, thread) in asked.iter().enumerate() {
            let stop = || -> io::Result<Option<(Registers, Instant)>> {
                let Some(seen) = trace::stopped(*thread, limit)? else { return Ok(None) };
                let registers = trace::registers(*thread)?;
                if let Some(again) = registers.repeated() {
                    trace::set_registers(*thread, &again)?;
                }
                Ok(Some((registers, seen)))
            };
            match stop() {
                Ok(Some((registers, seen))) => {
                    self.threads.push((*thread, registers));
                    last = Some(seen);
                }
                Ok(None) => {}
                Err(source) => {
                    let stood = self.began.elapsed();
                    self.give_up(&asked[i..]);
                    return Err(match source.kind() {
                        io::ErrorKind::TimedOut => {
                            RecolorError::NotStopping { pid: self.pid.0, thread: *thread, stood }
                        }
                        io::ErrorKind::Unsupported => RecolorError::WordSize { pid: self.pid.0 },
                        _ => failed(self.pid, *thread, "stop")(source),
                    });
                }
            }
        }
        Ok(last)
    }

    /// Has calls that the kernel would restart by a call of its own made again instead: a filter may forbid that one.
    fn begin_again(&mut self) {
        for (_, registers) in &mut self.threads {
            *registers = registers.begun_again().unwrap_or(*registers);
        }
    }

    /// Lets all stopped threads go, then those that were `asked` to stop, as each of them does.
    fn give_up(&mut self, asked: &[ThreadId]) {
        self.let_go();
        self.haste = None;
        STRAGGLERS.with_borrow_mut(|stragglers| stragglers.extend(asked.iter().map(|thread| (self.pid, *thread))));
        let begin = Instant::now();
        while STRAGGLERS.with_borrow(|stragglers| !stragglers.is_empty()) && begin.elapsed() < STRAGGLER_LIMIT {
            release_stragglers();
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn let_go(&mut self) {
        for (thread, registers) in self.threads.drain(..) {
            if put_back(self.pid, thread, &registers, None).is_ok() {
                let _ = trace::detach(thread, 0);
            }
        }
    }
}

impl Drop for Seized {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Whether this program traces `thread`.
fn is_ours(pid: Pid, thread: ThreadId) -> bool {
    let status = pid.text(&format!("task/{thread}/status")).unwrap_or_default();
    status_of(&status, "TracerPid") == std::process::id().to_string()
}

/// Sets what a thread goes on with. `blocked`: the signals it blocks, where that was changed.
fn put_back(pid: Pid, thread: ThreadId, registers: &Registers, blocked: Option<u64>) -> io::Result<()> {
    let repeated = registers.repeated();
    if blocked.is_some() || repeated.is_some() {
        // Also ends a call's own set of blocked signals, which the call, made again, sets again.
        trace::block_signals(thread, blocked.map_or_else(|| trace::blocked_signals(thread), Ok)?)?;
    }
    // A call that a signal with a handler has broken off must end, as it would have without us.
    let registers = repeated.filter(|_| !signal_is_due(pid, thread)).unwrap_or(*registers);
    trace::set_registers(thread, &registers)
}

/// Whether a signal waits that `thread` does not block and handles itself.
fn signal_is_due(pid: Pid, thread: ThreadId) -> bool {
    let status = pid.text(&format!("task/{thread}/status")).unwrap_or_default();
    let signals = |key| u64::from_str_radix(status_of(&status, key), 16).unwrap_or(0);
    (signals("SigPnd") | signals("ShdPnd")) & !signals("SigBlk") & signals("SigCgt") != 0
}

impl Hold {
    /// Stops and parks threads of `pid`. `area`: memory mapped for the work before, or none. `patience`: how long to wait for
    /// threads that do not stop, where all are held.
    ///
    /// Fails with [`RecolorError::Unrepaired`] where an earlier one was cut short, with [`RecolorError::Changed`] where the memory is
    /// not there any more, and with [`RecolorError::NotStopping`] where a thread does not stop in time.
    pub fn new(pid: Pid, whom: Whom, area: (u64, u64), patience: Patience) -> Result<Hold, RecolorError> {
        // What it says would be lost.
        if area.1 == 0 && Journal::left_for(pid)?.is_some() {
            return Err(RecolorError::Unrepaired { pid: pid.0 });
        }
        let start_time = pid.start_time().ok_or(RecolorError::Ended { pid: pid.0 })?;
        let cave = cave_in(pid, &pid.memory()?, area)?;
        let descriptors = if whom == Whom::All { Some(pid.descriptors()?) } else { None };
        let mut seized = match whom {
            Whom::All => Seized::all(pid, patience)?,
            Whom::One => Seized::one(pid)?,
        };
        // Only now: a program that begins another one in its place would leave what was opened before behind.
        let memory = pid.memory()?;
        if area.1 > 0 && !holds_code(&memory, area) {
            // The program has begun another one in its place, of which nothing is to be put right.
            Journal::forget(pid)?;
            return Err(RecolorError::Changed { pid: pid.0 });
        }
        let mappings = Mappings::of(pid)?;
        if !is_cave(&memory, cave) || mappings.executable_end(cave)?.is_none() {
            return Err(RecolorError::Changed { pid: pid.0 });
        }
        let mut threads = Vec::new();
        for (id, registers) in &seized.threads {
            let registers = outside_restartable_sequence(&memory, *id, *registers);
            let blocked = trace::blocked_signals(*id).map_err(failed(pid, *id, "read the signals of"))?;
            threads.push(Thread { id: *id, registers, blocked });
        }
        // One that waits in a call is preferred: its registers hold nothing that the kernel looks at.
        let leader = threads.iter().position(|thread| thread.registers.in_call()).unwrap_or(0);
        let mut judge = Judge::default();
        for (at, thread) in threads.iter().enumerate() {
            judge.check(pid, thread.id, cave + WAIT, at == leader).inspect_err(|_| seized.begin_again())?;
        }
        let may_have_begun_io = match &descriptors {
            Some(found) if found.count == 0 || seized.has_workers => true,
            // A number alone does not tell: whoever was about to open a file has its number back.
            Some(found) if found.count != pid.descriptor_count()? => pid.has_rings(DESCRIPTORS_MAX)?,
            Some(found) => !found.rings.is_empty(),
            None => true,
        };
        let mut covered = vec![0; CAVE.len()];
        memory.read_exact_at(&mut covered, cave).map_err(|source| RecolorError::Memory { pid: pid.0, source })?;
        let covered = words(&covered);
        let own_userfaults = descriptors.map(|found| found.userfaults);
        let (protections, userfault) = (Vec::new(), None);
        let journal =
            Journal { pid: pid.0, start_time, threads, cave, covered, area, protections, userfault, own_userfaults };
        journal.write()?;
        seized.threads.clear();
        let (began, mut haste) = (seized.began, seized.haste.take().unwrap_or_else(Haste::begin));
        haste.share_cpu_with(pid, journal.threads[leader].id);
        let mut hold = Hold {
            pid,
            memory,
            mappings,
            journal,
            leader,
            helpers: Vec::new(),
            held_back: Vec::new(),
            resumed: false,
            haste,
            began,
            may_have_begun_io,
        };
        // From here on dropping the hold puts back whatever was done.
        hold.park()?;
        Ok(hold)
    }

    /// Holds one thread, while the others go on; where none stops, tries again for a while.
    pub fn one(pid: Pid, area: (u64, u64)) -> Result<Hold, RecolorError> {
        /// How long.
        const LIMIT: Duration = Duration::from_secs(2);
        let begin = Instant::now();
        loop {
            match Hold::new(pid, Whom::One, area, Patience::of(MAX_PAUSE, 0)) {
                Err(RecolorError::NotStopping { .. }) if begin.elapsed() < LIMIT && !interrupted() => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome => return outcome,
            }
        }
    }

    fn park(&mut self) -> Result<(), RecolorError> {
        self.fill_cave(&words(&CAVE))?;
        for thread in &self.journal.threads {
            // In this order: a thread that waits with its signals open does no harm before the work has begun.
            trace::set_registers(thread.id, &thread.registers.at(self.journal.cave + WAIT))
                .and_then(|()| trace::block_signals(thread.id, ALL_SIGNALS))
                .map_err(failed(self.pid, thread.id, "park"))?;
        }
        Ok(())
    }

    fn fill_cave(&self, words: &[u64]) -> Result<(), RecolorError> {
        let leader = self.journal.threads[self.leader].id;
        for (i, word) in words.iter().enumerate() {
            trace::poke(leader, self.journal.cave + 8 * i as u64, *word).map_err(failed(
                self.pid,
                leader,
                "write into the memory of",
            ))?;
        }
        Ok(())
    }

    /// The page that the threads wait in.
    pub fn cave_page(&self) -> u64 {
        let page = page_bytes() as u64;
        self.journal.cave / page * page
    }

    /// Pages that the kernel writes to whenever a thread goes on.
    pub fn restartable_pages(&self) -> Vec<u64> {
        let page = page_bytes() as u64;
        let mut pages: Vec<u64> = self
            .journal
            .threads
            .iter()
            .filter_map(|thread| trace::restartable_area(thread.id))
            // The area is aligned to its size, so it lies in one page.
            .map(|area| area / page * page)
            .collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Reads its memory.
    pub fn read(&self, bytes: &mut [u8], address: u64) -> Result<(), RecolorError> {
        self.memory.read_exact_at(bytes, address).map_err(|source| RecolorError::Memory { pid: self.pid.0, source })
    }

    /// Writes its memory.
    pub fn write(&self, bytes: &[u8], address: u64) -> Result<(), RecolorError> {
        self.memory.write_all_at(bytes, address).map_err(|source| RecolorError::Memory { pid: self.pid.0, source })
    }

    /// Has the process issue a system call: what it returned, or the error.
    pub fn call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> Result<io::Result<u64>, RecolorError> {
        let answer = self.answer(number, arguments)?;
        Ok(match answer.result {
            error @ -4095..0 => Err(io::Error::from_raw_os_error(-error as i32)),
            result => Ok(result as u64),
        })
    }

    /// Fails where a filter of the program forbids the calls that open and map pages of known color.
    pub fn check_reference_allowed(&self) -> Result<(), RecolorError> {
        let leader = self.journal.threads[self.leader].id;
        filtered::check_reference(self.pid, leader, self.journal.cave + WAIT)
    }

    fn answer(&mut self, number: libc::c_long, arguments: [u64; 6]) -> Result<Answer, RecolorError> {
        let leader = self.journal.threads[self.leader].id;
        trace::remote_call(leader, self.journal.cave, number, arguments, &mut self.held_back).map_err(failed(
            self.pid,
            leader,
            "issue a system call in",
        ))
    }

    /// As [`call`](Self::call), for calls that must succeed; `action` says what for.
    pub fn must(
        &mut self,
        action: &'static str,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Result<u64, RecolorError> {
        let pid = self.pid.0;
        self.call(number, arguments)?.map_err(|source| RecolorError::Refused { pid, action, source })
    }

    /// Makes a thread in the process that is to run `code` with `argument` and the stack that ends at `stack`, and is stopped as yet.
    /// It runs where and how this program runs, not as the thread that made it, whose time and CPU are the program's.
    pub fn make_helper(&mut self, code: u64, argument: u64, stack: u64, pace: Pace) -> Result<(), RecolorError> {
        let answer = self.answer(libc::SYS_clone, [HELPER_FLAGS, stack, 0, 0, 0, 0])?;
        let helper = answer.made.ok_or_else(|| RecolorError::Refused {
            pid: self.pid.0,
            action: "make a thread",
            source: io::Error::from_raw_os_error(-answer.result as i32),
        })?;
        self.helpers.push(Helper { thread: helper, table: argument });
        let own = match (pace, self.haste.before) {
            (Pace::Calm, Some(before)) => Ok(before),
            // One that waits for requests at the priority of whoever makes them would never let them be made on the same CPU.
            (Pace::Calm, None) => {
                Scheduling::current().map(|own| if own.is_ordinary() { own } else { Scheduling::other() })
            }
            (Pace::Hurried, _) => Scheduling::current(),
        };
        // Where this is refused, it works as the program does.
        let _ = own.and_then(|own| own.apply_to(helper));
        let _ = self.haste.cpus().and_then(|own| Ok(sched_setaffinity(RawPid::from_raw(helper), &own)?));
        let failed = failed(self.pid, helper, "run");
        let registers = trace::registers(helper).map_err(&failed)?;
        trace::set_registers(helper, &registers.at(code).with_argument(argument).with_stack(stack)).map_err(&failed)
    }

    /// On how many CPUs helpers may run.
    pub fn cpus(&self) -> usize {
        self.haste.cpus().map_or(1, |cpus| cpus.count() as usize)
    }

    /// Sends the helpers off, and waits until all have ended.
    pub fn work(&mut self) -> Result<(), RecolorError> {
        self.send_off().finish()
    }

    /// Has the helpers begin.
    pub fn send_off(&mut self) -> Helpers {
        let helpers = std::mem::take(&mut self.helpers);
        for helper in &helpers {
            // One that cannot go on is no more, as is seen when it is waited for.
            let _ = trace::go_on(helper.thread, 0);
        }
        Helpers { pid: self.pid, helpers }
    }

    /// Lets the threads go on, while the memory mapped for the work stays and helpers work. Gives these, and how long the threads
    /// stood still.
    pub fn leave(mut self) -> Result<(Helpers, Duration), RecolorError> {
        self.put_right()?;
        self.let_go()?;
        let stop = self.began.elapsed();
        // Only now, as they would keep this program from a CPU while the threads stand still.
        Ok((self.send_off(), stop))
    }

    /// Puts everything back and lets the process go on. Gives how long it stood still.
    pub fn resume(mut self) -> Result<Duration, RecolorError> {
        self.clear_up()?;
        self.let_go()?;
        Ok(self.began.elapsed())
    }

    /// Takes away what was mapped, opened and made writable.
    fn clear_up(&mut self) -> Result<(), RecolorError> {
        // Helpers that were made but not sent off.
        for Helper { thread: helper, .. } in std::mem::take(&mut self.helpers) {
            let failed = failed(self.pid, helper, "end");
            trace::to_plain_stop(helper, &mut self.held_back).map_err(&failed)?;
            self.end_helper(helper)?;
        }
        self.put_right()?;
        let (area, bytes) = self.journal.area;
        if bytes > 0 {
            self.must("unmap memory", libc::SYS_munmap, [area, bytes, 0, 0, 0, 0])?;
            // Before a thread goes on that may map something else there.
            self.journal.area = (0, 0);
            self.journal.write()?;
        }
        Ok(())
    }

    /// Takes away what was opened and made writable.
    fn put_right(&mut self) -> Result<(), RecolorError> {
        for (address, bytes, protection) in self.journal.protections.clone() {
            self.must("protect memory again", libc::SYS_mprotect, [address, bytes, protection, 0, 0, 0])?;
        }
        self.journal.protections.clear();
        if let Some(descriptor) = self.journal.userfault.take_if(|descriptor| self.pid.is_userfault(*descriptor)) {
            self.must("close a userfaultfd", libc::SYS_close, [descriptor as u64, 0, 0, 0, 0, 0])?;
        }
        Ok(())
    }

    /// Ends a stopped thread that waits in the cave.
    fn end_helper(&mut self, helper: ThreadId) -> Result<(), RecolorError> {
        match trace::remote_call(helper, self.journal.cave, libc::SYS_exit, [0; 6], &mut self.held_back) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            Err(source) => Err(failed(self.pid, helper, "end")(source)),
            Ok(_) => Ok(()),
        }
    }

    /// Unparks all threads and ends the tracing.
    fn let_go(&mut self) -> Result<(), RecolorError> {
        let leader = self.journal.threads[self.leader].id;
        trace::to_plain_stop(leader, &mut self.held_back).map_err(failed(self.pid, leader, "stop"))?;
        for thread in &self.journal.threads {
            put_back(self.pid, thread.id, &thread.registers, Some(thread.blocked)).map_err(failed(
                self.pid,
                thread.id,
                "put back the registers of",
            ))?;
        }
        self.fill_cave(&self.journal.covered)?;
        let threads = std::mem::take(&mut self.journal.threads);
        if self.journal.area.1 > 0 {
            self.journal.write()?;
        } else {
            self.journal.remove()?;
        }
        self.resumed = true;
        for thread in &threads {
            trace::detach(thread.id, 0).map_err(failed(self.pid, thread.id, "let go"))?;
        }
        for signal in self.held_back.drain(..) {
            // It may have ended by now.
            let _ = launch::send(self.pid.0, signal);
        }
        Ok(())
    }
}

/// Threads that work inside a process that goes on. Dropped, they are waited for.
pub struct Helpers {
    pid: Pid,
    helpers: Vec<Helper>,
}

impl Helpers {
    /// Waits until all have ended. Where this program is asked to end meanwhile, they leave the rest of their work undone.
    pub fn wait(mut self) -> Result<(), RecolorError> {
        self.end(true)?;
        if interrupted() { Err(RecolorError::Interrupted { pid: self.pid.0 }) } else { Ok(()) }
    }

    /// Waits until all have done their work and ended.
    pub fn finish(mut self) -> Result<(), RecolorError> {
        self.end(false)
    }

    fn end(&mut self, may_stop: bool) -> Result<(), RecolorError> {
        let mut held_back = Vec::new();
        let helpers = std::mem::take(&mut self.helpers);
        let mut stopped = !may_stop;
        let memory = self.pid.memory();
        let mut stop = || {
            if !stopped && interrupted() {
                stopped = true;
                for helper in &helpers {
                    // A deadline that has passed.
                    let _ = memory.as_ref().map(|memory| memory.write_all_at(&[0; 8], helper.table + DEADLINE_AT));
                }
            }
        };
        let mut wait = |helper: &Helper| wait_for(self.pid, helper.thread, &mut held_back, &mut stop);
        // Every one, whatever became of the others.
        let outcomes: Vec<_> = helpers.iter().map(&mut wait).collect();
        for signal in held_back {
            let _ = launch::send(self.pid.0, signal);
        }
        outcomes.into_iter().collect()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        let _ = self.end(true);
    }
}

/// Waits for the end of a helper that runs. `held_back` gathers signals that it was about to be given; `between` is called now and then.
fn wait_for(
    pid: Pid,
    helper: ThreadId,
    held_back: &mut Vec<i32>,
    between: &mut dyn FnMut(),
) -> Result<(), RecolorError> {
    let failed = failed(pid, helper, "wait for");
    loop {
        match trace::report_within(helper, Duration::from_millis(50)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => between(),
            Err(error) => return Err(failed(error)),
            Ok(Report::Gone) => return Ok(()),
            Ok(Report::Signal(signal)) => {
                held_back.push(signal);
                trace::go_on(helper, 0).map_err(&failed)?;
            }
            Ok(_) => trace::go_on(helper, 0).map_err(&failed)?,
        }
    }
}

/// Whether the memory mapped for the work is still there: a program that has begun another one in its place has lost it.
pub fn is_there(pid: Pid, area: (u64, u64)) -> Result<bool, RecolorError> {
    Ok(area.1 > 0 && holds_code(&pid.memory()?, area))
}

fn holds_code(memory: &File, (start, _): (u64, u64)) -> bool {
    let mut found = vec![0; agent::code().len()];
    memory.read_exact_at(&mut found, start).is_ok() && found == agent::code()
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.resumed {
            return;
        }
        let leader = self.journal.threads[self.leader].id;
        match self.clear_up().and_then(|()| self.let_go()) {
            // The process has ended, or another of its threads has begun another program: nothing is left to put right.
            Err(RecolorError::Ended { .. }) if !is_ours(self.pid, leader) => drop(self.journal.remove()),
            // Nothing more can be done where it fails otherwise; the journal stays for a repair.
            _ => {}
        }
    }
}

fn failed(pid: Pid, thread: ThreadId, action: &'static str) -> impl Fn(io::Error) -> RecolorError {
    move |source| match source.raw_os_error() {
        Some(libc::ESRCH | libc::ECHILD) => RecolorError::Ended { pid: pid.0 },
        _ => RecolorError::Trace { pid: pid.0, thread, action, source },
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of eight bytes"))).collect()
}

/// Zeros at the end of a page of executable memory, where no program goes: in the vDSO, or else in another private mapping of the
/// program's own. `area`: memory mapped for the work.
fn cave_in(pid: Pid, memory: &File, area: (u64, u64)) -> Result<u64, RecolorError> {
    if let Some(vdso) = pid.vdso()
        && let Some(end) = Mappings::of(pid)?.executable_end(vdso)?
        && is_cave(memory, end - CAVE.len() as u64)
    {
        return Ok(end - CAVE.len() as u64);
    }
    let regions: Vec<_> = pid
        .mappings()?
        .into_iter()
        .filter(|region| region.protection.execute && region.protection.read && region.immovable.is_none())
        .filter(|region| region.end <= area.0 || area.0 + area.1 <= region.start)
        .collect();
    let mut caves = regions.iter().map(|region| region.end - CAVE.len() as u64);
    caves.find(|cave| is_cave(memory, *cave)).ok_or(RecolorError::NoCave { pid: pid.0 })
}

/// Whether there are zeros, and a word more of them than needed: the last instruction before the zeros may end in some.
fn is_cave(memory: &File, cave: u64) -> bool {
    let mut found = [0xff; CAVE.len() + 8];
    memory.read_exact_at(&mut found, cave - 8).is_ok() && found.iter().all(|byte| *byte == 0)
}

/// `registers`, but at the abort handler where the thread is within a restartable sequence: a sequence that was left must not be
/// finished, and the kernel would not notice, as it looks while the thread is parked. [rseq(2); Linux, kernel/rseq.c]
fn outside_restartable_sequence(memory: &File, thread: ThreadId, registers: Registers) -> Registers {
    let word = |address: u64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, address).ok().map(|()| u64::from_ne_bytes(bytes))
    };
    let abort = || {
        // struct rseq: rseq_cs at 8; struct rseq_cs: start_ip at 8, post_commit_offset at 16, abort_ip at 24.
        let sequence = word(trace::restartable_area(thread)? + 8).filter(|sequence| *sequence != 0)?;
        let (start, bytes, abort) = (word(sequence + 8)?, word(sequence + 16)?, word(sequence + 24)?);
        (registers.instruction().wrapping_sub(start) < bytes).then_some(abort)
    };
    abort().map_or(registers, |abort| registers.at(abort))
}

/// How long a process may stand still to be repaired, of which it has stood still for longer already.
const REPAIR_LIMIT: Duration = Duration::from_secs(2);

/// Puts right what a recoloring that was killed has left of `pid`. `false`: nothing was left.
pub fn repair(pid: Pid) -> Result<bool, RecolorError> {
    let _turn = Turn::wait(pid)?;
    let Some(mut journal) = Journal::left_for(pid)? else { return Ok(false) };
    let mut seized = Seized::all(pid, Patience { waiting: REPAIR_LIMIT, runnable: REPAIR_LIMIT })?;
    let cave = journal.cave..journal.cave + CAVE.len() as u64;
    let area = journal.area.0..journal.area.0 + journal.area.1;
    let known: Vec<ThreadId> = journal.threads.iter().map(|thread| thread.id).collect();
    let at = |(_, registers): &(ThreadId, Registers)| registers.instruction();
    // A helper that is at work finishes it by itself and ends; only then is the memory it works on looked at.
    let mut held_back = Vec::new();
    for (helper, _) in seized.threads.extract_if(.., |thread| area.contains(&at(thread))) {
        trace::go_on(helper, 0).map_err(failed(pid, helper, "wait for"))?;
        wait_for(pid, helper, &mut held_back, &mut || {})?;
    }
    let (parked, idle): (Vec<ThreadId>, Vec<ThreadId>) = seized
        .threads
        .iter()
        .filter(|thread| cave.contains(&at(thread)))
        .map(|(thread, _)| *thread)
        .partition(|thread| known.contains(thread));
    let memory = pid.memory()?;
    let began = Instant::now();
    if parked.is_empty() {
        // Killed before the first thread was parked, or after the last was let go.
        let mut found = vec![0; CAVE.len()];
        let readable = memory.read_exact_at(&mut found, journal.cave).is_ok();
        if let (true, Some((thread, _))) = (readable && found == CAVE, seized.threads.first()) {
            for (i, word) in journal.covered.iter().enumerate() {
                trace::poke(*thread, journal.cave + 8 * i as u64, *word).map_err(failed(
                    pid,
                    *thread,
                    "write into the memory of",
                ))?;
            }
        }
        drop(seized);
        if is_there(pid, journal.area)? {
            Hold::one(pid, journal.area)?.resume()?;
        }
        journal.remove()?;
        return Ok(true);
    }
    // The others go on as they are: they were not parked yet, or not any more.
    seized.threads.retain(|(thread, _)| !parked.contains(thread) && !idle.contains(thread));
    drop(seized);
    journal.threads.retain(|thread| parked.contains(&thread.id));
    if let (None, Some(own)) = (journal.userfault, &journal.own_userfaults) {
        journal.userfault = pid.descriptors()?.userfaults.into_iter().find(|descriptor| !own.contains(descriptor));
    }
    let mappings = Mappings::of(pid)?;
    let mut hold = Hold {
        pid,
        memory,
        mappings,
        journal,
        leader: 0,
        helpers: Vec::new(),
        held_back,
        resumed: false,
        haste: Haste::begin(),
        began,
        may_have_begun_io: true,
    };
    for helper in idle {
        hold.end_helper(helper)?;
    }
    hold.resume().map(|_| true)
}
