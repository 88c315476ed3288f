//! Life cycle of unmodified programs: they are started, stop at their mark, continue, and end.
//!
//! The progress of an unmodified program cannot be seen from outside, but its end can. So a run is timed from a *mark*, when the program has had
//! a CPU for a given time, to the end of the program. The time of the run is the CPU time in between. At the mark the program is stopped
//! (SIGSTOP) until all programs are ready. The cost of moving its pages falls before the mark and is not included.
//!
//! A message-driven program, whose jobs are started by release messages, need not be started for every run: a run of such a program is a number
//! of jobs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use isochrome_host::interrupt;
use isochrome_host::process::Pid;
use isochrome_host::recolor::RecolorError;
use isochrome_host::run::RunError;
use isochrome_host::run::messages::{MessageDrivenProgram, command};
use isochrome_host::sys::clock::process_cpu;
use isochrome_host::sys::launch::{self, End, Launch};
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_model::units::{CpuId, Ns};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid as RawPid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Setup;
use crate::error::LabError;

/// Priority of programs that have a CPU, below that of this process, which gives time slices.
pub(super) const RUNNING: u8 = 20;
/// Priority of programs that wait for their time slice.
pub(super) const WAITING: u8 = 10;
/// Divisor of the warm-up: a program is moved to its colors after this fraction of its warm-up, when it has most of its memory.
const WARM_UP_SHARE: u64 = 4;
/// Time between two readings of a program's CPU time.
const POLL: Duration = Duration::from_micros(200);
/// Largest number of times that a program is started until it stops at its mark, on its colors.
const STARTS_MAX: u32 = 10;
/// Greatest time that a program may take to reach its mark.
const LIMIT: Duration = Duration::from_secs(20);
/// Share of its time alone below which a program has ended too early to have done the same work.
const EARLY: f64 = 0.25;
/// Number of bytes at the end of a failed program's standard error that are reported.
const STDERR_BYTES: usize = 400;
/// Numbers of SIGKILL, SIGCONT and SIGSTOP.
const KILL: i32 = 9;
const CONTINUE: i32 = 18;
const STOP: i32 = 19;

/// A program that runs or is stopped at its mark. Dropping this value kills the process group of the program, unless the end of the program was
/// reaped: its number may then be that of another group.
pub(super) struct Process {
    pub(super) name: String,
    pub(super) pid: Pid,
    /// Threads of the program at the mark.
    pub(super) threads: Vec<i32>,
    /// CPU time of the program at the mark.
    mark: Ns,
    pub(super) ended: bool,
    /// Standard error of the program, a file in memory.
    stderr: File,
    /// The message-driven program, and the number of jobs of this run that are not complete; `None` for other programs.
    lines: Option<(MessageDrivenProgram, u64)>,
}

/// Options for starting a program.
pub(super) struct Start<'a> {
    pub(super) words: &'a [String],
    /// Whether release messages start the program's jobs. The mark is then the point where the program waits for the first message.
    pub(super) released: bool,
    /// Whether the program has to be on its colors by the end of its warm-up.
    pub(super) timed: bool,
    /// The file by which the program joins the resource group that has its cache ways.
    pub(super) joins: Option<&'a PathBuf>,
    /// Moves the pages of the program to its colors; `None` where it has no colors of its own.
    pub(super) move_to_colors: Option<&'a mut dyn FnMut(Pid) -> Result<(), RecolorError>>,
}

/// Returns the result of `start`, which is called again up to [`STARTS_MAX`] times in all if the program misses its mark.
fn until_at_mark<T>(mut start: impl FnMut() -> Result<T, LabError>) -> Result<T, LabError> {
    for _ in 1..STARTS_MAX {
        match start() {
            Err(LabError::MissedMark { .. }) => {}
            done => return done,
        }
    }
    start()
}

impl Process {
    /// Starts a program, lets it run until its CPU time reaches the warm-up, and stops it. `None` on an interrupt.
    ///
    /// A program that misses its mark is started again: a busy machine moves pages slowly, and stops a program late.
    pub(super) fn start(setup: &Setup, mut start: Start<'_>) -> Result<Option<Process>, LabError> {
        until_at_mark(|| Process::started(setup, &mut start))
    }

    fn started(setup: &Setup, start: &mut Start<'_>) -> Result<Option<Process>, LabError> {
        let Start { words, released, timed, joins, move_to_colors } = start;
        let name = words.join(" ");
        let failed = |source| RunError::Start { program: name.clone(), source };
        let launch = Launch {
            cpus: Some(vec![setup.cpu.0]),
            // The program has ordinary priority until its mark. With a higher one, it would run on a busy machine while the thread that moves
            // its pages waits for a CPU.
            scheduling: setup.realtime.then(Scheduling::other),
            attached: true,
            own_pid: Vec::new(),
            joins: joins
                .map(|path| File::options().write(true).open(path).map(Arc::new))
                .transpose()
                .map_err(failed)?
                .into_iter()
                .collect(),
            ..Launch::default()
        };
        let stderr = File::from(memfd_create("stderr", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
        let (pid, lines) = if *released {
            let mut program = MessageDrivenProgram::start(words, &launch)?;
            program.ready(LIMIT)?;
            (program.pid(), Some((program, 0)))
        } else {
            let mut command = command(words).map_err(failed)?;
            launch.prepare(&mut command);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr.try_clone().map_err(failed)?);
            (Pid(command.spawn().map_err(failed)?.id() as i32), None)
        };
        let mut process = Process { name, pid, threads: Vec::new(), mark: Ns(0), ended: false, stderr, lines };
        let mut moving = 0;
        if let Some(move_to_colors) = move_to_colors {
            if !process.run_until(Ns(setup.warm_up.0 / WARM_UP_SHARE), setup.warm_up)? {
                return Ok(None);
            }
            let threads = pid.threads()?;
            let before = (process.cpu()?, process.cpu_of(&threads));
            move_to_colors(pid)?;
            // CPU time of helper threads of the program that moved its pages does not count.
            let now = process.cpu()?;
            moving = (now.0 - before.0.0).saturating_sub(process.cpu_of(&threads).saturating_sub(before.1));
            // With a later mark, the program would be timed from another instant than without colors.
            if *timed && now.0 > setup.warm_up.0 + moving {
                let [took, warm_up] = [now.0 - moving, setup.warm_up.0].map(|ns| ns as f64 / 1e6);
                let what = format!(
                    "had a CPU for {took:.0} ms until it was on its colors, longer than its warm-up of {warm_up:.0} ms"
                );
                return Err(LabError::MissedMark { program: process.name.clone(), what, hint: "a longer warm-up" });
            }
        }
        if !process.run_until(Ns(setup.warm_up.0 + moving), setup.warm_up)? {
            return Ok(None);
        }
        process.hold(None)?;
        process.threads = pid.threads()?;
        process.mark = process.cpu()?;
        if process.threads.is_empty() {
            let Some((end, cpu)) = process.end()? else {
                return Err(process.unfit("cannot be stopped at its mark".to_owned(), "a program of one process"));
            };
            let how = process.last_words(end);
            let what = format!("ended at its mark after {:.0} ms on a CPU ({how})", cpu.0 as f64 / 1e6);
            return Err(match end {
                End::Code(0) => {
                    let hint = "a program that takes longer, or a shorter warm-up";
                    LabError::MissedMark { program: process.name.clone(), what, hint }
                }
                _ => process.unfit(what, "run it by hand: it must end by itself with exit code 0"),
            });
        }
        Ok(Some(process))
    }

    pub(super) fn unfit(&self, what: String, hint: &'static str) -> LabError {
        LabError::Unfit { program: self.name.clone(), what, hint }
    }

    fn pipe(&self, source: io::Error) -> LabError {
        RunError::Pipe { program: self.name.clone(), source }.into()
    }

    /// Returns the CPU time of the program so far.
    fn cpu(&self) -> Result<Ns, LabError> {
        process_cpu(self.pid.0).map_err(|source| self.pipe(source))
    }

    /// Returns the CPU time of `threads` so far, in ns.
    fn cpu_of(&self, threads: &[i32]) -> u64 {
        let time = |thread: &i32| -> Option<u64> {
            let text = self.pid.text(&format!("task/{thread}/schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse().ok()
        };
        threads.iter().filter_map(time).sum()
    }

    /// Describes how the program ended, with the end of its standard error.
    fn last_words(&self, end: End) -> String {
        let length = self.stderr.metadata().map_or(0, |about| about.len());
        let mut bytes = vec![0; STDERR_BYTES.min(length as usize)];
        let begin = length - bytes.len() as u64;
        let read = self.stderr.read_at(&mut bytes, begin).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..read]);
        match text.trim() {
            "" => format!("{end}; it wrote nothing to standard error"),
            text => format!("{end}; on standard error: {text}"),
        }
    }

    /// Returns the CPU time from the mark to the end, or as an error the reason why the run is discarded. `cpu` is the total CPU time at the
    /// end, and `alone` is the time of a run alone, if known.
    pub(super) fn judge(&self, end: End, cpu: Ns, alone: Option<Ns>) -> Result<Ns, String> {
        let took = Ns(cpu.0.saturating_sub(self.mark.0));
        match alone {
            _ if end != End::Code(0) => Err(format!("failed ({})", self.last_words(end))),
            Some(alone) if (took.0 as f64) < EARLY * alone.0 as f64 => {
                let [took, alone] = [took, alone].map(|time| time.0 as f64 / 1e6);
                let how = self.last_words(end);
                Err(format!("ended {took:.1} ms behind its mark, and {alone:.1} ms when it ran alone ({how})"))
            }
            _ => Ok(took),
        }
    }

    /// Waits until the program has had a CPU for `cpu`. Returns `false` on an interrupt.
    fn run_until(&mut self, cpu: Ns, warm_up: Ns) -> Result<bool, LabError> {
        if self.lines.is_some() {
            return Ok(!interrupt::interrupted());
        }
        let begin = Instant::now();
        while self.cpu()? < cpu {
            if interrupt::interrupted() {
                return Ok(false);
            }
            if let Some((end, _)) = self.end()? {
                let hint = match end {
                    End::Code(0) => "a program that takes longer, or a shorter warm-up",
                    _ => "run it by hand: it must end by itself with exit code 0",
                };
                let what =
                    format!("ended within its first {} ms on a CPU ({})", warm_up.0 as f64 / 1e6, self.last_words(end));
                return Err(self.unfit(what, hint));
            }
            if begin.elapsed() > LIMIT {
                let what = format!("has not had a CPU for {} ms after {LIMIT:?}", warm_up.0 as f64 / 1e6);
                return Err(self.unfit(what, "a program that computes, in a process of its own, on a CPU that is free"));
            }
            thread::sleep(POLL);
        }
        Ok(true)
    }

    /// Stops the program and waits until it has stopped. A program needs a CPU to stop, so it first gets `priority`, if given.
    pub(super) fn hold(&mut self, priority: Option<u8>) -> Result<(), LabError> {
        if let Some(priority) = priority {
            self.set_priority(priority);
        }
        let pid = WaitId::Pid(RawPid::from_raw(self.pid.0).expect("a process has a number"));
        let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        launch::send(-self.pid.0, STOP).map_err(|source| self.pipe(source))?;
        waitid(pid.clone(), either).map_err(|error| self.pipe(error.into()))?;
        // Consumes the report of the stop, which the kernel would otherwise repeat at the next wait.
        let _ = waitid(pid, WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        Ok(())
    }

    /// Lets the program continue on `cpu`, with `priority` if given.
    pub(super) fn go_on(&self, cpu: CpuId, priority: Option<u8>) -> Result<(), LabError> {
        let mut set = CpuSet::new();
        set.set(cpu.0 as usize);
        for thread in &self.threads {
            // A thread that has ended since needs no CPU.
            let _ = sched_setaffinity(RawPid::from_raw(*thread), &set);
        }
        if let Some(priority) = priority {
            self.set_priority(priority);
        }
        launch::send(-self.pid.0, CONTINUE).map_err(|source| self.pipe(source))
    }

    /// Sets the priority of all current threads, as the program may have started some since its mark.
    pub(super) fn set_priority(&self, priority: u8) {
        for thread in self.pid.threads().unwrap_or_default() {
            let _ = Scheduling::fifo(priority).apply_to(thread);
        }
    }

    /// Releases `jobs` jobs, which make up the next run.
    pub(super) fn release(&mut self, jobs: u64) -> Result<(), LabError> {
        self.mark = self.cpu()?;
        if let Some((program, left)) = &mut self.lines {
            *left = jobs;
            (0..jobs).try_for_each(|_| program.release().map(drop))?;
        }
        Ok(())
    }

    /// Returns how the run ended and the total CPU time by then; `None` if it has not ended.
    pub(super) fn completed(&mut self) -> Result<Option<(End, Ns)>, LabError> {
        let Some((program, left)) = &mut self.lines else { return self.end() };
        *left = left.saturating_sub(program.take()?);
        if *left > 0 { Ok(None) } else { Ok(Some((End::Code(0), self.cpu()?))) }
    }

    /// Returns how the program ended and its total CPU time; `None` if it still runs.
    pub(super) fn end(&mut self) -> Result<Option<(End, Ns)>, LabError> {
        let end = launch::ended(self.pid.0).map_err(|source| self.pipe(source))?;
        self.ended |= end.is_some();
        Ok(end)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            let _ = launch::send(-self.pid.0, KILL);
            let pid = RawPid::from_raw(self.pid.0).expect("a process has a number");
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn a_program_that_misses_its_mark_is_started_up_to_ten_times() {
        let (program, what) = ("sh".to_owned(), "ended".to_owned());
        let missed = || LabError::MissedMark { program: program.clone(), what: what.clone(), hint: "" };
        let unfit = || LabError::Unfit { program: program.clone(), what: what.clone(), hint: "" };
        let started = |misses: u32, fits: bool| {
            let mut starts = 0;
            let result = until_at_mark(|| {
                starts += 1;
                let other = if fits { Ok(()) } else { Err(unfit()) };
                if starts <= misses { Err(missed()) } else { other }
            });
            (result, starts)
        };
        assert!(matches!(started(0, true), (Ok(()), 1)));
        assert!(matches!(started(9, true), (Ok(()), 10)));
        assert!(matches!(started(10, true), (Err(LabError::MissedMark { .. }), 10)));
        assert!(matches!(started(3, false), (Err(LabError::Unfit { .. }), 4)));
    }

    /// Returns the CPU time of a shell that runs a loop itself, or lets a child run it and waits.
    fn cpu_of_a_shell_that_ends(by_a_child: bool) -> Ns {
        let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 3";
        let script = if by_a_child { format!("sh -c '{work}'; exit 3") } else { work.to_owned() };
        let mut child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let pid = child.id() as i32;
        let (end, cpu) = loop {
            if let Some(ended) = launch::ended(pid).unwrap() {
                break ended;
            }
            thread::sleep(POLL);
        };
        assert_eq!(end, End::Code(3));
        assert!(child.wait().is_err(), "its end is taken once");
        cpu
    }

    #[test]
    fn what_the_children_of_a_program_do_is_not_its_own_time() {
        let (own, childs) = (cpu_of_a_shell_that_ends(false), cpu_of_a_shell_that_ends(true));
        assert!(own.0 > 5_000_000 && childs.0 < own.0 / 4, "{own:?} {childs:?}");
    }

    /// Returns a program whose end was reaped.
    fn reaped(pid: Pid, mark: u64) -> Process {
        let stderr = File::open("/dev/null").unwrap();
        Process { name: String::new(), pid, threads: Vec::new(), mark: Ns(mark), ended: true, stderr, lines: None }
    }

    #[test]
    fn a_number_whose_process_was_reaped_is_that_of_others() {
        let mut other = std::process::Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        drop(reaped(Pid(other.id() as i32), 0));
        // SIGKILL would have been delivered by now.
        thread::sleep(Duration::from_millis(20));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn what_a_program_leaves_behind_ends_with_it() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 &"]).process_group(0).stdout(Stdio::piped());
        let (mut child, begin) = (shell.spawn().unwrap(), Instant::now());
        while launch::ended(child.id() as i32).unwrap().is_none() {
            thread::sleep(POLL);
        }
        // The pipe ends when the last process that holds it has ended.
        io::copy(&mut child.stdout.take().unwrap(), &mut io::sink()).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(30) && child.wait().is_err());
    }

    #[test]
    fn a_program_that_does_less_than_alone_has_failed() {
        let process = |mark| reaped(Pid(i32::MAX), mark);
        assert_eq!(process(10).judge(End::Code(0), Ns(110), Some(Ns(100))), Ok(Ns(100)));
        assert_eq!(process(10).judge(End::Code(0), Ns(36), Some(Ns(100))), Ok(Ns(26)));
        assert!(process(10).judge(End::Code(0), Ns(34), Some(Ns(100))).unwrap_err().contains("when it ran alone"));
        assert!(process(10).judge(End::Signal(11), Ns(110), Some(Ns(100))).unwrap_err().contains("signal 11"));
    }
}
