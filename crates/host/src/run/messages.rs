//! Message-driven programs: one line on standard input releases a job, and one line on standard output completes it.
//!
//! Before the first release the program prints one line when it is ready. The contents of the lines do not matter.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use isochrome_model::taskset::programs::OWN;
use isochrome_model::units::Ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::RunError;
use crate::process::Pid;
use crate::sys::clock::{monotonic, process_cpu};
use crate::sys::launch::Launch;

/// Number of bytes that are read from a program's output at a time.
const READ_BYTES: usize = 4096;

/// Time that a program has to end by itself before it is killed.
const END_LIMIT: Duration = Duration::from_millis(500);

/// A running message-driven program. Dropping this ends the program.
pub struct MessageDrivenProgram {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// Number of lines that the program still has to print: one at the start, and one for every release.
    owed: u64,
}

/// Times of one job as observed from outside, by CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Time just before the line that released the job was written.
    pub released: Ns,
    /// Time just after the line that completes the job was read.
    pub completed: Ns,
}

/// Returns the command that consists of `words`. A first word [`OWN`] stands for this program itself.
///
/// Panics if `words` is empty.
pub fn command(words: &[String]) -> io::Result<Command> {
    let (program, arguments) = words.split_first().expect("a command has a first word");
    let mut command = if program == OWN { Command::new(std::env::current_exe()?) } else { Command::new(program) };
    command.args(arguments);
    Ok(command)
}

impl MessageDrivenProgram {
    /// Starts the program `words` with the settings in `launch`.
    pub fn start(words: &[String], launch: &Launch) -> Result<MessageDrivenProgram, RunError> {
        let name = words.first().cloned().unwrap_or_default();
        let failed = |source| RunError::Start { program: name.clone(), source };
        let mut command = command(words).map_err(failed)?;
        launch.prepare(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.expect("its standard output is a pipe");
        // Reads and writes must not block: a line may have any length, and a program may stop reading.
        rustix::io::ioctl_fionbio(&output, true).map_err(|error| failed(error.into()))?;
        if let Some(input) = &input {
            rustix::io::ioctl_fionbio(input, true).map_err(|error| failed(error.into()))?;
        }
        Ok(MessageDrivenProgram { name, child, input, output, owed: 1 })
    }

    /// Returns the process of the program.
    pub fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    /// Returns the descriptor of the program's output. It is readable when there are lines to [`take`](Self::take).
    pub fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    /// Waits up to `limit` for the line that reports that the program is ready, and returns the time of its arrival.
    pub fn ready(&mut self, limit: Duration) -> Result<Ns, RunError> {
        self.line("get ready", limit)
    }

    /// Releases a job, and returns the time just before its line was written.
    pub fn release(&mut self) -> Result<Ns, RunError> {
        let released = monotonic();
        match self.input.as_mut().map(|input| input.write_all(b"\n")) {
            Some(Ok(())) => {
                self.owed += 1;
                Ok(released)
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(RunError::Late { program: self.name.clone(), action: "take a job", limit: Duration::ZERO })
            }
            _ => Err(RunError::Ended { program: self.name.clone(), action: "take a job" }),
        }
    }

    /// Waits up to `limit` for the line that completes the oldest released job, and returns the time of its arrival.
    pub fn complete(&mut self, limit: Duration) -> Result<Ns, RunError> {
        self.line("complete a job", limit)
    }

    /// Releases a job, waits up to `limit` until it is complete, and returns its times.
    pub fn job(&mut self, limit: Duration) -> Result<Seen, RunError> {
        let released = self.release()?;
        Ok(Seen { released, completed: self.complete(limit)? })
    }

    /// Takes the lines that have arrived, without waiting, and returns their number. Fails if there are more lines than released jobs.
    pub fn take(&mut self) -> Result<u64, RunError> {
        let mut bytes = [0; READ_BYTES];
        let mut lines = 0;
        loop {
            match self.output.read(&mut bytes) {
                Ok(0) if lines == 0 => {
                    return Err(RunError::Ended { program: self.name.clone(), action: "complete a job" });
                }
                Ok(length) => {
                    lines += bytes[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
                    // A short read means that nothing is left.
                    if length < READ_BYTES {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(RunError::Pipe { program: self.name.clone(), source }),
            }
        }
        match self.owed.checked_sub(lines) {
            Some(owed) => self.owed = owed,
            None => return Err(RunError::Unreleased { program: self.name.clone(), lines: lines - self.owed }),
        }
        Ok(lines)
    }

    /// Returns the CPU time of the program since its start.
    pub fn cpu(&self) -> Result<Ns, RunError> {
        process_cpu(self.pid().0).map_err(|source| RunError::Pipe { program: self.name.clone(), source })
    }

    fn line(&mut self, action: &'static str, limit: Duration) -> Result<Ns, RunError> {
        let until = monotonic().0.saturating_add(limit.as_nanos() as u64);
        loop {
            let left = until.saturating_sub(monotonic().0);
            let wait = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
            match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&wait)) {
                Ok(0) => return Err(RunError::Late { program: self.name.clone(), action, limit }),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(RunError::Pipe { program: self.name.clone(), source: error.into() }),
            }
            let taken = self.take().map_err(|error| match error {
                RunError::Ended { program, .. } => RunError::Ended { program, action },
                other => other,
            })?;
            if taken > 0 {
                return Ok(monotonic());
            }
        }
    }
}

impl Drop for MessageDrivenProgram {
    fn drop(&mut self) {
        // The program should end at the end of its input.
        self.input = None;
        let until = monotonic().0 + END_LIMIT.as_nanos() as u64;
        while monotonic().0 < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> MessageDrivenProgram {
        MessageDrivenProgram::start(&["sh".into(), "-c".into(), script.into()], &Launch::default()).unwrap()
    }

    #[test]
    fn every_line_releases_a_job_and_every_answer_completes_one() {
        let mut program = shell("echo ready; while read line; do echo done; done");
        let ready = program.ready(LIMIT).unwrap();
        let mut last = ready;
        for _ in 0..20 {
            let seen = program.job(LIMIT).unwrap();
            assert!(last <= seen.released && seen.released < seen.completed);
            last = seen.completed;
        }
        assert!(program.cpu().unwrap().0 > 0);
    }

    #[test]
    fn a_program_that_ends_is_late_or_answers_too_often_is_named() {
        let mut ended = shell("echo ready; read line");
        ended.ready(LIMIT).unwrap();
        let error = ended.job(LIMIT).unwrap_err();
        assert!(matches!(error, RunError::Ended { action: "complete a job", .. }), "{error}");
        let mut late = shell("echo ready; read line; sleep 30");
        late.ready(LIMIT).unwrap();
        let error = late.job(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, RunError::Late { .. }), "{error}");
        let mut often = shell("echo ready; read line; printf 'one\\ntwo\\nthree\\n'; read line");
        often.ready(LIMIT).unwrap();
        let mut jobs = (0..3).map(|_| often.job(LIMIT));
        assert!(jobs.any(|job| matches!(job, Err(RunError::Unreleased { .. }))));
        assert!(matches!(shell("exit 3").ready(LIMIT), Err(RunError::Ended { action: "get ready", .. })));
        let missing = MessageDrivenProgram::start(&["/nowhere/at/all".into()], &Launch::default());
        assert!(matches!(missing, Err(RunError::Start { .. })));
    }

    #[test]
    fn a_line_without_end_takes_no_memory_and_completes_nothing() {
        let mut program = shell("echo ready; read line; head -c 300000 /dev/zero; echo; read line");
        program.ready(LIMIT).unwrap();
        program.job(LIMIT).unwrap();
    }

    #[test]
    fn a_program_that_does_not_listen_is_ended_all_the_same() {
        let mut program = shell("echo ready; exec sleep 100");
        program.ready(LIMIT).unwrap();
        let pid = program.pid().0;
        drop(program);
        assert!(process_cpu(pid).is_err());
    }
}
