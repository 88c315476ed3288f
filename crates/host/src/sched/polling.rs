//! Counters polled by tasks of our own: one on every CPU, of the highest priority, that wakes up at a set rate. [Sebek2002, §3.2.1]
//!
//! It is there to be compared with: a task that polls takes the CPU from the task that it watches, and what was counted between two polls is
//! that of all who had the CPU meanwhile, though it is put down to the one that was interrupted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use isochrome_model::units::{CpuId, Ns};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec};

use super::{EventKind, SchedEvent};
use crate::counters::events::{Code, Event as Counted};
use crate::counters::{CounterError, open_error};
use crate::machine::setting::RealtimeRequest;
use crate::machine::sysfs::Note;
use crate::sys::clock;
use crate::sys::perf::{Group, GroupReading};

/// Tasks that poll, until this is dropped.
pub struct Polling {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    polls: Receiver<SchedEvent>,
    notes: Vec<Note>,
}

impl Polling {
    /// On each of `cpus`, every `period`; `counted` may be empty, and then only the instants are reported.
    ///
    /// Fails where a counter cannot be opened.
    pub fn start(cpus: &[CpuId], period: Ns, counted: &[Counted]) -> Result<Polling, CounterError> {
        let (sender, polls) = mpsc::channel();
        let mut polling = Polling { stop: Arc::default(), threads: Vec::new(), polls, notes: Vec::new() };
        for cpu in cpus.iter().copied() {
            let codes: Vec<Code> = counted.iter().map(|event| event.code).collect();
            let group = if codes.is_empty() { None } else { Some(Group::open_on(cpu.0, &codes)) };
            let group = group.transpose().map_err(|(position, error)| open_error(counted[position].name, error))?;
            let (stop, sender) = (Arc::clone(&polling.stop), sender.clone());
            let (notes_sender, notes_receiver) = mpsc::channel();
            let thread = std::thread::Builder::new().name("poll".to_owned()).spawn(move || {
                let settings = RealtimeRequest::new().pin(cpu).timer_slack(Ns(1)).fifo(99).apply();
                // Who asked may be gone already.
                let _ = notes_sender.send(settings.notes().to_vec());
                poll(cpu, period, group.as_ref(), &stop, &sender);
            });
            let failed =
                |source| CounterError::Failed { event: "poll".to_owned(), action: "starting a task for", source };
            let thread = thread.map_err(failed)?;
            polling.threads.push(thread);
            polling.notes.extend(notes_receiver.recv().into_iter().flatten());
        }
        Ok(polling)
    }

    /// What of priority and place could not be had.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Moves the polls since the last call behind `events`.
    pub fn drain(&self, events: &mut Vec<SchedEvent>) {
        events.extend(self.polls.try_iter());
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has been reported by its panic.
            let _ = thread.join();
        }
    }
}

/// Reads `group` every `period`; instants that have passed meanwhile are left out.
fn poll(cpu: CpuId, period: Ns, group: Option<&Group>, stop: &AtomicBool, polls: &Sender<SchedEvent>) {
    let mut next = clock::monotonic().0;
    while !stop.load(Ordering::Relaxed) {
        let passed = clock::monotonic().0.saturating_sub(next) / period.0;
        next += (1 + passed) * period.0;
        let until = Timespec { tv_sec: (next / 1_000_000_000) as _, tv_nsec: (next % 1_000_000_000) as _ };
        // A signal wakes it early, which is one poll more.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
        // A group that cannot be read did not run.
        let reading = group.map_or(Ok(GroupReading::default()), Group::read).unwrap_or_default();
        if polls.send(SchedEvent { at: clock::monotonic(), cpu, kind: EventKind::Poll { reading } }).is_err() {
            return;
        }
    }
}
