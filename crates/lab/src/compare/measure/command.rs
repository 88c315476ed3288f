//! A load generator that is run once per window.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use isochrome_host::sys::launch::{self, End, Launch};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid as RawPid, WaitId, WaitIdOptions, waitid};

use super::super::Statistic;
use super::readers::{Found, Reader};
use super::{GLANCE, MayGoOn, Measure, Reading, Trouble};

/// Longest time that a load generator may run, unless ten windows are longer.
const LIMIT: Duration = Duration::from_secs(60);
/// Number of bytes at the end of an output that are shown where it cannot be read.
const SHOWN: usize = 200;
/// Number of SIGKILL.
const KILL: i32 = 9;

/// A load generator, and the reader of its output.
pub struct LoadGenerator {
    /// Command line, for a shell.
    pub command: String,
    /// Reader of the generator's output.
    pub reader: Reader,
    /// The statistic that is read.
    pub statistic: Statistic,
}

/// A load generator that runs. Dropping it kills what is left of its process group.
struct Running {
    pid: i32,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let _ = launch::send(-self.pid, KILL);
            if let Some(pid) = RawPid::from_raw(self.pid) {
                let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            }
        }
    }
}

impl LoadGenerator {
    fn start(&self, output: &File) -> io::Result<Running> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        Launch { attached: true, huge_pages: true, ..Launch::default() }.prepare(&mut command);
        Ok(Running { pid: command.spawn()?.id() as i32, ended: false })
    }
}

/// Returns all that was written to `file`.
fn text_of(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |about| about.len() as usize)];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    // Progress is written over itself by carriage returns.
    String::from_utf8_lossy(&bytes[..read]).replace('\r', "\n")
}

/// Returns the end of `text`, on one line.
fn end_of(text: &str) -> String {
    let text = text.trim();
    let start = text.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
    match text[start..].trim() {
        "" => "it printed nothing".to_owned(),
        end => format!("it printed: {}", end.replace('\n', " | ")),
    }
}

impl Measure for LoadGenerator {
    fn unit(&self) -> &str {
        self.reader.unit(self.statistic)
    }

    fn window(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble> {
        let failed = |what: String| Trouble::Failed(format!("`{}` {what}", self.command));
        let output = memfd_create("output", MemfdFlags::CLOEXEC).map(File::from);
        let output = output.map_err(|error| failed(format!("has no output: {error}")))?;
        let mut running = self.start(&output).map_err(|error| failed(format!("cannot be started: {error}")))?;
        let (begin, limit) = (Instant::now(), LIMIT.max(10 * length));
        loop {
            if let Some((end, _)) = launch::ended(running.pid).map_err(|error| failed(error.to_string()))? {
                running.ended = true;
                let text = text_of(&output);
                if end != End::Code(0) {
                    return Err(failed(format!("ended with {end}; {}", end_of(&text))));
                }
                return match self.reader.read(&text, self.statistic) {
                    Some(Found::Numbers(numbers)) => Ok(Reading::Values(numbers)),
                    Some(Found::Statistic(value)) => Ok(Reading::Statistic(value)),
                    None => Err(failed(format!("printed no {}; {}", self.statistic.name(), end_of(&text)))),
                };
            }
            if !may_go_on() {
                return Err(Trouble::Stopped);
            }
            if begin.elapsed() > limit {
                return Err(failed(format!("has not ended after {} s", limit.as_secs())));
            }
            std::thread::sleep(GLANCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use regex_lite::Regex;

    use super::*;

    fn window(command: &str, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble> {
        let reader = Reader::Numbers(Regex::new("took ([0-9.]+)").unwrap());
        let mut generator = LoadGenerator { command: command.to_owned(), reader, statistic: Statistic::Mean };
        generator.window(Duration::from_millis(10), may_go_on)
    }

    #[test]
    fn what_a_load_generator_prints_is_read_and_its_failures_are_told() {
        assert_eq!(window("echo took 3; echo took 4.5 >&2", &mut || true), Ok(Reading::Values(vec![3.0, 4.5])));
        let failed = |command: &str| match window(command, &mut || true) {
            Err(Trouble::Failed(what)) => what,
            other => panic!("{other:?}"),
        };
        assert!(failed("echo refused; exit 3").contains("ended with exit code 3; it printed: refused"));
        assert!(failed("true").contains("printed no mean; it printed nothing"));
        assert!(failed("kill -9 $$").contains("signal 9"));
    }

    #[test]
    fn a_load_generator_that_is_broken_off_leaves_nothing_behind() {
        let marker = format!("{}", 4000 + std::process::id());
        let begin = Instant::now();
        let mut asked = 0;
        let mut may_go_on = || {
            asked += 1;
            asked < 5
        };
        assert_eq!(window(&format!("sleep {marker} & sleep {marker}"), &mut may_go_on), Err(Trouble::Stopped));
        assert!(begin.elapsed() < Duration::from_secs(20));
        let is_sleep = |line: String| line == format!("sleep\0{marker}\0");
        let is_left = || {
            let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
            processes.any(|entry| std::fs::read_to_string(entry.path().join("cmdline")).is_ok_and(is_sleep))
        };
        // A killed process remains until it gets a CPU to end on.
        while is_left() {
            assert!(begin.elapsed() < Duration::from_secs(60), "a process of the load generator is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
