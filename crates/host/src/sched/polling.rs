//! Counters that tasks of isochrome poll: one task of the highest priority on every CPU wakes up at a set rate. [Sebek2002, §3.2.1]
//!
//! Polling exists for comparison. A task that polls takes the CPU from the task that it watches, and the counts between two polls belong to all tasks
//! that had the CPU in between, although they are attributed to the interrupted one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use isochrome_model::units::{CpuId, Ns};

use super::{EventKind, SchedEvent};
use crate::counters::events::{Code, Event as Counted};
use crate::counters::{CounterError, open_error};
use crate::machine::setting::RealtimeRequest;
use crate::machine::sysfs::Note;
use crate::sys::clock;
use crate::sys::perf::{Group, GroupReading};

/// Tasks that poll until this is dropped.
pub struct Polling {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    polls: Receiver<SchedEvent>,
    notes: Vec<Note>,
}

impl Polling {
    /// Starts a task on each of `cpus` that reads the counters of `counted` every `period`. If `counted` is empty, only the times of the
    /// polls are reported.
    ///
    /// Fails if a counter cannot be opened.
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
                // The caller may have given up already.
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

    /// Returns notes on priorities and CPUs that the tasks could not get.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Appends the polls since the last call to `events`.
    pub fn drain(&self, events: &mut Vec<SchedEvent>) {
        events.extend(self.polls.try_iter());
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}

/// Reads `group` every `period` until `stop` is set. Polls that are already overdue are left out.
fn poll(cpu: CpuId, period: Ns, group: Option<&Group>, stop: &AtomicBool, polls: &Sender<SchedEvent>) {
    let mut next = clock::monotonic().0;
    while !stop.load(Ordering::Relaxed) {
        let passed = clock::monotonic().0.saturating_sub(next) / period.0;
        next += (1 + passed) * period.0;
        // A signal may wake the task early, which adds a poll.
        clock::sleep_until(Ns(next));
        // A group that cannot be read counts as not running.
        let reading = group.map_or(Ok(GroupReading::default()), Group::read).unwrap_or_default();
        if polls.send(SchedEvent { at: clock::monotonic(), cpu, kind: EventKind::Poll { reading } }).is_err() {
            return;
        }
    }
}
