//! Releases the jobs of all message-driven programs of a run on time, by writing lines.
//!
//! One thread writes and reads the lines of all programs. A job is released when its release is due and the program's previous job is complete.
//! A job that has to wait for the previous job counts as released when it was due. So each program has at most one job at a time, and a line
//! that it prints completes this job.
//!
//! Bounds hold for releases that are at least a period apart. If this thread itself is held up, by the hypervisor for example, the releases that fall
//! due in this time are skipped and counted. No bound would hold if all of them were made at once afterwards.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use isochrome_model::units::{CpuId, Ns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::RunError;
use super::messages::MessageDrivenProgram;
use crate::machine::setting::RealtimeRequest;
use crate::sys::clock::monotonic;

/// Priority of the releasing thread: above every task, so that releases are on time, and below the kernel's own threads.
const PRIORITY: u8 = 48;

/// Maximum time between two checks whether the run is over.
const GLANCE: Ns = Ns(20_000_000);

/// Delay up to which a line is still written; a tenth of the task's period if that is more. A line with a longer delay is skipped.
pub const LATE_MAX: Ns = Ns(100_000);

/// A message-driven task: its jobs are released by lines that are written to its program.
pub struct MessageDriven {
    /// Index of the task.
    pub task: usize,
    /// Time between two releases.
    pub period: Ns,
    /// Running program, which is ready.
    pub program: MessageDrivenProgram,
}

/// Message of the releasing thread about a job.
pub enum ReleaseMessage {
    /// A job was released by writing its line.
    Released {
        /// Index of the task.
        task: usize,
        /// Time at which the release was due.
        due: Ns,
        /// Time just before the line was written.
        at: Ns,
        /// Time just after the line was written.
        written: Ns,
        /// Whether the release had to wait for the previous job.
        waited: bool,
    },
    /// The line that completes a job was read.
    Answered {
        /// Index of the task.
        task: usize,
        /// Time just before the line was read.
        at: Ns,
    },
    /// A release was skipped, because it was noticed too late.
    Skipped {
        /// Index of the task.
        task: usize,
        /// Time at which the release was due.
        due: Ns,
        /// Time at which the delay was noticed.
        at: Ns,
    },
    /// A line was due but not written when the run ended, because the previous job was incomplete or this thread was held up.
    Unwritten {
        /// Index of the task.
        task: usize,
        /// Time at which the release was due.
        due: Ns,
    },
    /// The program has ended, or printed lines that complete no job. No more lines are written to it.
    Failed {
        /// Index of the task.
        task: usize,
        /// Cause of the failure.
        error: RunError,
    },
}

struct Talk {
    message_driven: MessageDriven,
    due: Ns,
    /// Due times of releases that wait for the previous job to complete.
    waiting: VecDeque<Ns>,
    outstanding: bool,
    failed: bool,
}

/// Releases the jobs of `message_driven` from `first` on until `over` is set, reports them to `tell`, and returns the programs. `cpu`: the CPU
/// on which this thread is to run.
pub fn release(
    message_driven: Vec<MessageDriven>,
    first: Ns,
    cpu: Option<CpuId>,
    over: &AtomicBool,
    tell: &Sender<ReleaseMessage>,
) -> Vec<MessageDriven> {
    let request = RealtimeRequest::new().fifo(PRIORITY).timer_slack(Ns(1));
    let _settings = cpu.into_iter().fold(request, RealtimeRequest::pin).apply();
    let talk = |message_driven| Talk {
        message_driven,
        due: first,
        waiting: VecDeque::new(),
        outstanding: false,
        failed: false,
    };
    let mut talks: Vec<Talk> = message_driven.into_iter().map(talk).collect();
    while !over.load(Ordering::Relaxed) && talks.iter().any(|talk| !talk.failed) {
        // Delays are measured from here, so that the time for writing other lines makes no line late.
        let begun = monotonic();
        for talk in talks.iter_mut().filter(|talk| !talk.failed) {
            while !talk.failed && talk.due <= monotonic() {
                let due = talk.due;
                let late = begun.0.saturating_sub(due.0) > LATE_MAX.0.max(talk.message_driven.period.0 / 10);
                talk.due.0 += talk.message_driven.period.0;
                if talk.outstanding {
                    // The program may have answered since this thread last read its output.
                    talk.listen(tell);
                }
                if talk.outstanding {
                    talk.waiting.push_back(due);
                } else if late {
                    let _ = tell.send(ReleaseMessage::Skipped { task: talk.message_driven.task, due, at: begun });
                } else {
                    talk.release(due, false, tell);
                }
            }
        }
        // Programs that failed are not polled any more, because the end of a file stays readable forever.
        let mut living: Vec<&mut Talk> = talks.iter_mut().filter(|talk| !talk.failed).collect();
        let next = living.iter().map(|talk| talk.due.0).min().unwrap_or(0);
        let wait = next.saturating_sub(monotonic().0).min(GLANCE.0);
        let ready: Vec<bool> = {
            let outputs = living.iter().map(|talk| talk.message_driven.program.output());
            let mut watched: Vec<PollFd> =
                outputs.map(|output| PollFd::from_borrowed_fd(output, PollFlags::IN)).collect();
            match poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: wait as i64 })) {
                Ok(_) => watched.iter().map(|output| !output.revents().is_empty()).collect(),
                Err(_) => Vec::new(),
            }
        };
        for (talk, _) in living.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            talk.listen(tell);
        }
    }
    let now = monotonic();
    for talk in talks.iter().filter(|talk| !talk.failed) {
        talk.unwritten(now).for_each(|message| {
            let _ = tell.send(message);
        });
    }
    talks.into_iter().map(|talk| talk.message_driven).collect()
}

impl Talk {
    /// Returns a message for each line that was due before `now` and has not been written.
    fn unwritten(&self, now: Ns) -> impl Iterator<Item = ReleaseMessage> {
        let (task, period) = (self.message_driven.task, self.message_driven.period.0.max(1));
        let missed = (self.due.0..now.0).step_by(period as usize).map(Ns);
        self.waiting.iter().copied().chain(missed).map(move |due| ReleaseMessage::Unwritten { task, due })
    }

    fn fail(&mut self, error: RunError, tell: &Sender<ReleaseMessage>) {
        self.failed = true;
        // The receiver may be gone when the run is over.
        let _ = tell.send(ReleaseMessage::Failed { task: self.message_driven.task, error });
    }

    fn release(&mut self, due: Ns, waited: bool, tell: &Sender<ReleaseMessage>) {
        match self.message_driven.program.release() {
            Ok(at) => {
                self.outstanding = true;
                let written = monotonic();
                let _ =
                    tell.send(ReleaseMessage::Released { task: self.message_driven.task, due, at, written, waited });
            }
            Err(error) => self.fail(error, tell),
        }
    }

    fn listen(&mut self, tell: &Sender<ReleaseMessage>) {
        let at = monotonic();
        match self.message_driven.program.take() {
            Ok(0) => {}
            Ok(_) => {
                self.outstanding = false;
                let _ = tell.send(ReleaseMessage::Answered { task: self.message_driven.task, at });
                if let Some(due) = self.waiting.pop_front() {
                    self.release(due, true, tell);
                }
            }
            Err(error) => self.fail(error, tell),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::sys::launch::Launch;

    #[test]
    fn lines_that_wait_for_a_job_when_it_is_over_are_reported() {
        const PERIOD: u64 = 5_000_000;
        let limit = Duration::from_secs(20);
        let script = "echo ready; read line; exec sleep 100".to_owned();
        let mut program = MessageDrivenProgram::start(&["sh".into(), "-c".into(), script], &Launch::default()).unwrap();
        program.ready(limit).unwrap();
        let (first, over, (tell, heard)) = (monotonic(), AtomicBool::new(false), channel());
        std::thread::scope(|scope| {
            let (tell, over) = (&tell, &over);
            let messages = vec![MessageDriven { task: 3, period: Ns(PERIOD), program }];
            scope.spawn(move || release(messages, first, None, over, tell));
            std::thread::sleep(Duration::from_millis(100));
            over.store(true, Ordering::Relaxed);
        });
        let until = monotonic();
        let mut due: Vec<u64> = heard
            .try_iter()
            .map(|message| match message {
                ReleaseMessage::Released { task: 3, due, waited: false, .. }
                | ReleaseMessage::Skipped { task: 3, due, .. }
                | ReleaseMessage::Unwritten { task: 3, due } => due.0,
                _ => panic!("the program does not answer"),
            })
            .collect();
        due.sort_unstable();
        let expected: Vec<u64> = (first.0..until.0).step_by(PERIOD as usize).take(due.len()).collect();
        assert_eq!(due, expected);
        assert!(due.len() >= 10, "{}", due.len());
    }
}
