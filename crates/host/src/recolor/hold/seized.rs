//! Stopping the threads of a process, one or all, within a time limit. Where that fails, all threads run again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use super::failed;
use super::haste::Haste;
use crate::process::{Pid, ProcessError, status_of};
use crate::recolor::error::RecolorError;
use crate::sys::trace::{self, BlockedCall, Registers, Report, StopLimit, ThreadId};

/// Longest times that a thread may keep the others waiting until it stops.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Limit for a thread that waits for something, such as a device.
    pub(super) waiting: Duration,
    /// Limit for a thread that only waits for a CPU.
    pub(super) runnable: Duration,
}

impl Patience {
    /// Returns the patience for a pause of at most `max_pause`, after `in_vain` failed attempts in a row.
    ///
    /// Each failed attempt doubles the limit for runnable threads: a machine with more runnable threads than CPUs takes a while to schedule
    /// each of them.
    pub fn of(max_pause: Duration, in_vain: u32) -> Patience {
        /// Shortest limit for a waiting thread, and half of the shortest limit for a runnable thread.
        const LEAST: Duration = Duration::from_millis(5);
        /// Longest limit for a runnable thread, unless `max_pause` allows more.
        const MOST: Duration = Duration::from_millis(500);
        let runnable = (max_pause / 4 * 3).max(2 * LEAST);
        Patience {
            waiting: (max_pause / 4).max(LEAST),
            runnable: (runnable * 2u32.pow(in_vain.min(6))).min(MOST.max(runnable)),
        }
    }
}

/// How long to wait, while all threads run, for a thread that cannot be stopped because it waits for a child.
const CHILD_LIMIT: Duration = Duration::from_millis(50);

/// How long to wait for threads that did not stop in time before they are left for [`end_tracing`].
const STRAGGLER_LIMIT: Duration = Duration::from_millis(500);

thread_local! {
    /// Threads that were asked to stop and have not stopped yet. They are released when they stop. Only this thread traces them.
    static STRAGGLERS: RefCell<Vec<(Pid, ThreadId)>> = const { RefCell::new(Vec::new()) };
}

/// Stops tracing threads that were asked to stop, did not stop in time, and have stopped since, and threads that have ended. To be called again and
/// again by a thread that traces, while it has no hold and no helpers.
pub fn end_tracing() {
    release_stragglers();
    trace::reap_ended();
}

/// Releases threads that were asked to stop, did not stop in time, and have stopped since.
fn release_stragglers() {
    STRAGGLERS.with_borrow_mut(|stragglers| {
        let mut made = Vec::new();
        stragglers.retain(|(pid, thread)| !release(*pid, *thread, &mut made));
        stragglers.append(&mut made);
    });
}

/// Releases threads that were asked to stop as soon as they stop, for at most `limit`.
pub fn await_stragglers(limit: Duration) {
    let begin = Instant::now();
    release_stragglers();
    while STRAGGLERS.with_borrow(|stragglers| !stragglers.is_empty()) && begin.elapsed() < limit {
        std::thread::sleep(Duration::from_micros(20));
        release_stragglers();
    }
}

/// Stops tracing a thread that was asked to stop, if it has stopped. Returns whether nothing is left to do for the thread.
///
/// `made` gathers the threads that this thread created, which are traced as well.
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
            // A call that the stop has interrupted is made again.
            let _ = trace::registers(thread).and_then(|registers| put_back(pid, thread, &registers, None));
            0
        }
        Ok(Some(Report::SystemCall)) => 0,
    };
    let _ = trace::detach(thread, signal);
    true
}

/// Threads stopped so far, with the registers they stopped with. Dropping the value releases the threads that it still holds.
pub(super) struct Seized {
    pid: Pid,
    pub(super) threads: Vec<(ThreadId, Registers)>,
    pub(super) haste: Option<Haste>,
    /// Time at which the first thread was asked to stop.
    pub(super) began: Instant,
    /// Whether the process has threads that the kernel created for it, as io_uring does.
    pub(super) has_workers: bool,
    /// The system calls that threads were blocked in before they were stopped.
    blocked: BTreeMap<ThreadId, BlockedCall>,
}

impl Seized {
    fn new(pid: Pid) -> Seized {
        release_stragglers();
        let (threads, blocked) = (Vec::new(), BTreeMap::new());
        Seized { pid, threads, haste: None, began: Instant::now(), has_workers: false, blocked }
    }

    fn holds(&self, thread: ThreadId) -> bool {
        self.threads.iter().any(|(held, _)| *held == thread)
    }

    /// Stops one thread, preferably one that waits for something.
    pub(super) fn one(pid: Pid) -> Result<Seized, RecolorError> {
        let states = pid.thread_numbers()?.into_iter().filter_map(|thread| Some((thread, pid.thread_state(thread)?)));
        let mut threads: Vec<_> = states.filter(|(_, state)| state.is_running() && !state.is_kernel_worker()).collect();
        threads.sort_by_key(|(_, state)| match state.letter {
            'S' => 0,
            'D' => 2,
            _ => 1,
        });
        let mut seized = Seized::new(pid);
        seized.haste = Some(Haste::begin());
        let mut why: RecolorError = ProcessError::Ended { pid: pid.0 }.into();
        for (thread, _) in threads {
            seized.haste.iter_mut().for_each(|haste| haste.share_cpu_with(pid, thread));
            seized.blocked.extend(pid.waits_in(thread).map(|call| (thread, call)));
            match trace::seize_alone(thread).and_then(|()| trace::interrupt(thread)) {
                // The thread has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(_) if !pid.is_running(thread) => continue,
                Err(source) => return Err(seized.refused(thread, source)),
                Ok(()) => {}
            }
            seized.began = Instant::now();
            // No other thread is held up during the wait, so the limits are long.
            let limit = StopLimit {
                waiting: seized.began + Duration::from_millis(100),
                runnable: seized.began + Duration::from_secs(1),
            };
            match seized.gather(&[thread], limit) {
                Err(error @ RecolorError::NotStopping { .. }) => why = error,
                Err(error) => return Err(error),
                Ok(Some(seen)) => {
                    // Until that time the thread went on, or waited for a CPU as it would have done anyway.
                    seized.began = seen;
                    trace::trace_clones(thread).map_err(failed(pid, thread, "stop"))?;
                    return Ok(seized);
                }
                Ok(None) => {}
            }
        }
        Err(why)
    }

    /// Stops every thread except those that the kernel created for the process. Once all known threads have stopped, no more are created.
    ///
    /// Fails with [`RecolorError::NotStopping`] where a thread would keep the others waiting for longer than `patience` allows.
    pub(super) fn all(pid: Pid, patience: Patience) -> Result<Seized, RecolorError> {
        let mut seized = Seized::new(pid);
        // The states and system calls of the threads are read while the threads run.
        let mut workers = BTreeSet::new();
        let mut new = Vec::new();
        for thread in pid.thread_numbers()? {
            let Some(state) = pid.thread_state(thread).filter(|state| state.is_running()) else { continue };
            if state.is_kernel_worker() {
                workers.insert(thread);
                continue;
            }
            let mut call = pid.waits_in(thread);
            let begin = Instant::now();
            while call.is_some_and(|call| trace::lends_memory(call.number))
                && pid.thread_state(thread).is_some_and(|now| now.letter == 'D')
            {
                if begin.elapsed() > CHILD_LIMIT {
                    return Err(RecolorError::NotStopping { pid: pid.0, thread, stood: Duration::ZERO });
                }
                std::thread::sleep(Duration::from_micros(50));
                call = pid.waits_in(thread);
            }
            new.push(thread);
            seized.blocked.extend(call.map(|call| (thread, call)));
        }
        seized.haste = Some(Haste::begin());
        seized.began = Instant::now();
        let limit = StopLimit { waiting: seized.began + patience.waiting, runnable: seized.began + patience.runnable };
        while !new.is_empty() {
            let mut asked = Vec::new();
            for thread in new {
                let at_once = seized.blocked.get(&thread).is_some_and(|call| trace::may_be_interrupted(call.number));
                match trace::seize(thread).and_then(|()| trace::interrupt(thread)) {
                    // This thread is examined before the next one is stopped, so that its call is interrupted only for a short time.
                    Ok(()) if at_once => {
                        if let Err(error) = seized.gather(&[thread], limit) {
                            seized.give_up(&asked);
                            return Err(error);
                        }
                    }
                    Ok(()) => asked.push(thread),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    // A thread that is about to end, such as a helper whose work is done, cannot be traced any more.
                    Err(_) if !pid.is_running(thread) => {}
                    // A thread that a traced thread created is traced already, and stops by itself.
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
        if seized.threads.is_empty() { Err(ProcessError::Ended { pid: pid.0 }.into()) } else { Ok(seized) }
    }

    fn refused(&self, thread: ThreadId, source: io::Error) -> RecolorError {
        match source.raw_os_error() {
            // This program still traces a thread that did not stop in time, until that thread stops.
            Some(libc::EPERM) if is_ours(self.pid, thread) => {
                RecolorError::NotStopping { pid: self.pid.0, thread, stood: Duration::ZERO }
            }
            // A thread that is ending cannot be traced.
            Some(libc::EPERM) if !self.pid.is_running(thread) => RecolorError::Changed { pid: self.pid.0 },
            Some(libc::EPERM) => ProcessError::Denied { pid: self.pid.0 }.into(),
            _ => RecolorError::Trace { pid: self.pid.0, thread, action: "stop", source },
        }
    }

    /// Waits until all threads of `asked`, which were asked to stop, have stopped. If one does not stop in time, all are released.
    ///
    /// Returns the time at which the last of these threads was last seen running; `None` if all of them have ended.
    ///
    /// An interrupted system call is set up for a restart at once, because the thread would resume with its present registers if this program
    /// were killed now. The thread sees EINTR only if this program is killed before that.
    fn gather(&mut self, asked: &[ThreadId], limit: StopLimit) -> Result<Option<Instant>, RecolorError> {
        let mut last = None;
        for (i, thread) in asked.iter().enumerate() {
            let stop = || -> io::Result<Option<(Registers, Instant)>> {
                let Some(seen) = trace::stopped(*thread, limit)? else { return Ok(None) };
                let registers = trace::registers(*thread)?;
                if let Some(again) = registers.repeated() {
                    trace::set_registers(*thread, &again)?;
                }
                let again = self.blocked.get(thread).and_then(|call| registers.repeated_as(call));
                if let Some(again) = again {
                    trace::set_registers(*thread, &again)?;
                }
                Ok(Some((again.unwrap_or(registers), seen)))
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

    /// Prepares calls that the kernel would continue by restart_syscall(2) to be made again instead, because a filter may forbid it.
    pub(super) fn begin_again(&mut self) {
        for (_, registers) in &mut self.threads {
            *registers = registers.begun_again().unwrap_or(*registers);
        }
    }

    /// Releases all stopped threads, then those that were `asked` to stop, each when it stops.
    fn give_up(&mut self, asked: &[ThreadId]) {
        self.let_go();
        self.haste = None;
        STRAGGLERS.with_borrow_mut(|stragglers| stragglers.extend(asked.iter().map(|thread| (self.pid, *thread))));
        await_stragglers(STRAGGLER_LIMIT);
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
pub(super) fn is_ours(pid: Pid, thread: ThreadId) -> bool {
    let status = pid.text(&format!("task/{thread}/status")).unwrap_or_default();
    status_of(&status, "TracerPid") == std::process::id().to_string()
}

/// Sets the registers that a thread resumes with. `blocked`: the signals that it blocks then; `None` if they were not changed.
pub(super) fn put_back(pid: Pid, thread: ThreadId, registers: &Registers, blocked: Option<u64>) -> io::Result<()> {
    let repeated = registers.repeated();
    if blocked.is_some() || repeated.is_some() {
        // This also ends the temporary signal mask of a call such as ppoll(2). When the call is made again, it sets the mask again.
        trace::block_signals(thread, blocked.map_or_else(|| trace::blocked_signals(thread), Ok)?)?;
    }
    // A call that a signal with a handler has interrupted must end, as it would have without the stop.
    let is_due = || trace::blocked_signals(thread).is_ok_and(|blocked| signal_is_due(pid, thread, blocked));
    let registers = repeated.filter(|_| !is_due()).unwrap_or(*registers);
    trace::set_registers(thread, &registers)
}

/// Whether a signal is pending for `thread` that has a handler and is not among those `blocked`.
pub(super) fn signal_is_due(pid: Pid, thread: ThreadId, blocked: u64) -> bool {
    let status = pid.text(&format!("task/{thread}/status")).unwrap_or_default();
    let signals = |key| u64::from_str_radix(status_of(&status, key), 16).unwrap_or(0);
    (signals("SigPnd") | signals("ShdPnd")) & !blocked & signals("SigCgt") != 0
}
