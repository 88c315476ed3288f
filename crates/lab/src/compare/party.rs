//! A program of the experiment: one that runs already, or one that is started for it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use isochrome_host::process::{Pid, status_of};
use isochrome_host::recolor::watch::family;
use isochrome_host::run::marks::MarkReader;
use isochrome_host::run::messages::command;
use isochrome_host::sys::clock::process_cpu;
use isochrome_host::sys::launch::{self, Launch};
use isochrome_model::units::Ns;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid as RawPid, WaitId, WaitIdOptions, waitid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Number of bytes at the end of a program's standard error that are reported.
const STDERR_BYTES: usize = 300;
/// Number of SIGKILL.
const KILL: i32 = 9;

/// A program of the experiment. Dropping it ends the program if it was started for the experiment.
pub struct Party {
    /// Command line or name of the program.
    pub name: String,
    /// Process of the program.
    pub pid: Pid,
    /// Start time of the process, which distinguishes it from a later one with the same number.
    start_time: u64,
    /// Standard error of a program that was started here, a file in memory; `None` for a program that ran already.
    stderr: Option<File>,
    /// How the program ended, once that is known.
    end: Option<String>,
}

impl Party {
    /// Returns the program that runs as `pid`; `None` if there is none.
    pub fn running(pid: Pid) -> Option<Party> {
        let start_time = pid.start_time()?;
        let name = pid.text("comm").map_or_else(|_| String::new(), |name| name.trim().to_owned());
        Some(Party { name: format!("{name} ({})", pid.0), pid, start_time, stderr: None, end: None })
    }

    /// Starts the program `words`. If its lines are `wanted`, a terminal becomes its standard output, and the other side of the terminal is
    /// returned; else its output is discarded. The program sets its marks for `marks`, if that is given.
    pub fn start(words: &[String], wanted: bool, marks: Option<&MarkReader>) -> io::Result<(Party, Option<OwnedFd>)> {
        let stderr = File::from(memfd_create("stderr", MemfdFlags::CLOEXEC)?);
        let mut command = command(words)?;
        Launch { attached: true, huge_pages: true, ..Launch::default() }.prepare(&mut command);
        command.stdin(Stdio::null()).stderr(stderr.try_clone()?);
        marks.into_iter().for_each(|marks| marks.tell(&mut command));
        let output = if wanted {
            let (ours, theirs) = terminal()?;
            command.stdout(theirs);
            Some(ours)
        } else {
            command.stdout(Stdio::null());
            None
        };
        let pid = Pid(command.spawn()?.id() as i32);
        let start_time = pid.start_time().unwrap_or_default();
        Ok((Party { name: words.join(" "), pid, start_time, stderr: Some(stderr), end: None }, output))
    }

    /// Returns the process and its descendants.
    pub fn family(&self) -> Vec<Pid> {
        family(self.pid)
    }

    /// Returns how the program ended; `None` if it still runs.
    pub fn ended(&mut self) -> Option<String> {
        if self.end.is_none() {
            self.end = match &self.stderr {
                Some(stderr) => match launch::ended(self.pid.0) {
                    Ok(None) => None,
                    Ok(Some((end, _))) => Some(format!("{end}{}", last_words(stderr))),
                    Err(error) => Some(error.to_string()),
                },
                None => (self.pid.start_time() != Some(self.start_time)).then(|| "how is not known".to_owned()),
            };
        }
        self.end.clone()
    }

    /// Returns the time for which the process itself has had a CPU so far; 0 once it has ended.
    pub fn cpu(&self) -> Ns {
        if self.end.is_some() { Ns(0) } else { process_cpu(self.pid.0).unwrap_or_default() }
    }

    /// Returns how often the threads of the process have given up or lost the CPU so far; `None` if that is not known.
    pub fn switches(&self) -> Option<u64> {
        let of_thread = |thread: &i32| -> Option<u64> {
            let text = self.pid.text(&format!("task/{thread}/status")).ok()?;
            let number = |key| status_of(&text, key).parse::<u64>().ok();
            Some(number("voluntary_ctxt_switches")? + number("nonvoluntary_ctxt_switches")?)
        };
        Some(self.pid.threads().ok()?.iter().filter_map(of_thread).sum())
    }

    /// Whether the program was started for the experiment, and ends with it.
    pub fn is_ours(&self) -> bool {
        self.stderr.is_some()
    }
}

/// Returns the end of the text that a program printed on standard error.
fn last_words(stderr: &File) -> String {
    let length = stderr.metadata().map_or(0, |about| about.len());
    let mut bytes = vec![0; STDERR_BYTES.min(length as usize)];
    let begin = length - bytes.len() as u64;
    let read = stderr.read_at(&mut bytes, begin).unwrap_or(0);
    match String::from_utf8_lossy(&bytes[..read]).trim() {
        "" => String::new(),
        said => format!("; on standard error: {}", said.replace('\n', " | ")),
    }
}

/// Returns the two sides of a terminal: ours, and the one for the program.
fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let path = ptsname(&ours, Vec::new())?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let theirs = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    Ok((ours, theirs))
}

impl Drop for Party {
    fn drop(&mut self) {
        if self.stderr.is_some() && self.end.is_none() {
            // A descendant may have left the process group.
            let descendants = self.family();
            let _ = launch::send(-self.pid.0, KILL);
            descendants.iter().for_each(|pid| drop(launch::send(pid.0, KILL)));
            if let Some(pid) = RawPid::from_raw(self.pid.0) {
                let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use regex_lite::Regex;

    use super::*;
    use crate::compare::measure::Lines;

    fn words(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    fn wait(mut party: Party) -> String {
        let begin = Instant::now();
        loop {
            match party.ended() {
                Some(end) => return end,
                None if begin.elapsed() > Duration::from_secs(20) => panic!("it has not ended"),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    #[test]
    fn a_program_that_ends_says_how() {
        let (failing, _) = Party::start(&words("echo out of luck >&2; exit 3"), false, None).unwrap();
        assert_eq!(wait(failing), "exit code 3; on standard error: out of luck");
        let (killed, _) = Party::start(&words("kill -9 $$"), false, None).unwrap();
        assert_eq!(wait(killed), "signal 9");
        assert!(Party::running(Pid(i32::MAX)).is_none());
    }

    #[test]
    fn a_program_that_was_started_here_ends_with_the_experiment_and_another_does_not() {
        let (party, _) = Party::start(&words("exec sleep 60"), false, None).unwrap();
        let pid = party.pid;
        let other = Party::running(pid).unwrap();
        drop(other);
        assert!(pid.start_time().is_some());
        drop(party);
        assert!(pid.start_time().is_none());
    }

    #[test]
    fn a_program_prints_to_a_terminal_line_by_line() {
        // A C library writes whole lines to a terminal only. Python does the same.
        let script = "if [ -t 1 ]; then echo took 7 us; fi; exec sleep 60";
        let (_party, output) = Party::start(&words(script), true, None).unwrap();
        let mut lines = Lines::of(output.unwrap(), Regex::new("took ([0-9]+) us").unwrap());
        let begin = Instant::now();
        loop {
            let numbers = lines.take();
            if numbers == [7.0] {
                break;
            }
            assert!(numbers.is_empty() && begin.elapsed() < Duration::from_secs(20), "{numbers:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
