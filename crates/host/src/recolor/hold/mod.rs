//! Holding a process still: all its threads are stopped and parked, so that none resumes by itself if this program is killed.
//!
//! The kernel resumes traced threads when their tracer dies. A thread is therefore *parked* before anything else happens: its next
//! instruction becomes an endless wait, in a few unused bytes of executable memory (the *cave*), and its signals are blocked. The journal, a
//! file written before the first change, records the registers that each thread resumes with. If this program dies, the process waits until
//! a repair restores everything with [`Hold::resume`].
//!
//! To map memory and to create helpers it is enough to hold one thread for an instant. Such memory is recorded in the journal as long as it
//! is mapped.

mod cave;
mod haste;
mod helpers;
mod journal;
mod repair;
mod seized;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use self::cave::{cave_in, is_cave};
use self::haste::Haste;
use self::helpers::Helper;
use self::journal::Thread;
use self::seized::{Seized, is_ours, put_back, signal_is_due};
use super::error::RecolorError;
use super::seccomp;
use super::seccomp::Judge;
use super::wanted::MAX_PAUSE;
use crate::interrupt::interrupted;
use crate::process::{Mappings, Pid, ProcessError};
use crate::sys::agent::{self, CAVE, WAIT};
use crate::sys::launch;
use crate::sys::memory::page_bytes;
use crate::sys::trace::{self, Answer, Registers, ThreadId};

pub use self::helpers::{Helpers, Pace};
pub use self::journal::Journal;
pub use self::repair::repair;
pub use self::seized::{Patience, await_stragglers, end_tracing};

/// Mask of the signals 1 to 64.
const ALL_SIGNALS: u64 = u64::MAX;

/// Most descriptors that are examined while the process stands still. This many take about a millisecond.
const DESCRIPTORS_MAX: usize = 500;

/// The threads to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// All threads: the process stands still.
    All,
    /// One thread, while the others run.
    One,
}

/// A process whose threads, or one of them, are stopped and parked.
///
/// A hold that is dropped without [`resume`](Self::resume) or [`leave`](Self::leave) restores what it can.
pub struct Hold {
    pid: Pid,
    memory: File,
    /// The mappings of the process.
    pub mappings: Mappings,
    /// The record of what has to be restored.
    pub journal: Journal,
    /// Index of the thread that issues system calls, in the journal's threads.
    leader: usize,
    /// Threads that the leader created and that have not been started yet.
    helpers: Vec<Helper>,
    held_back: Vec<i32>,
    resumed: bool,
    haste: Haste,
    /// Time at which the first thread was asked to stop.
    pub began: Instant,
    /// Whether the kernel or a device may have begun to work on the memory since [`Pid::asynchronous_io`] was called.
    pub may_have_begun_io: bool,
}

impl Hold {
    /// Stops and parks threads of `pid`. `area`: memory that was mapped for the work before, or an empty range. `patience`: how long to
    /// wait for threads that do not stop, if all threads are held.
    ///
    /// Fails with [`RecolorError::Unrepaired`] if an earlier recoloring was cut short, with [`RecolorError::Changed`] if `area` or the
    /// cave is not there any more, and with [`RecolorError::NotStopping`] if a thread does not stop in time.
    pub fn new(pid: Pid, whom: Whom, area: (u64, u64), patience: Patience) -> Result<Hold, RecolorError> {
        // The journal of this hold would replace the earlier journal.
        if area.1 == 0 && Journal::left_for(pid)?.is_some() {
            return Err(RecolorError::Unrepaired { pid: pid.0 });
        }
        let start_time = pid.start_time().ok_or(ProcessError::Ended { pid: pid.0 })?;
        let cave = cave_in(pid, &pid.memory()?, area)?;
        let descriptors = if whom == Whom::All { Some(pid.descriptors()?) } else { None };
        let mut seized = match whom {
            Whom::All => Seized::all(pid, patience)?,
            Whom::One => Seized::one(pid)?,
        };
        // Opened only now: a file opened before would show the old memory if the process executed another program in between.
        let memory = pid.memory()?;
        if area.1 > 0 && !holds_code(&memory, area) {
            // The process has executed another program, in which nothing has to be restored.
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
        // A thread that waits in a system call is preferred: its registers hold nothing that the kernel examines.
        let leader = threads.iter().position(|thread| thread.registers.in_call()).unwrap_or(0);
        let mut judge = Judge::default();
        for (at, thread) in threads.iter().enumerate() {
            judge.check(pid, thread.id, cave + WAIT, at == leader).inspect_err(|_| seized.begin_again())?;
        }
        let may_have_begun_io = match &descriptors {
            Some(_) if seized.has_workers => true,
            // A different count does not prove a new ring: a thread that is interrupted in open(2) gives its descriptor number back. Before Linux
            // 6.2 there is no count.
            Some(found) if found.count == 0 || found.count != pid.descriptor_count()? => {
                pid.has_rings(DESCRIPTORS_MAX)?
            }
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
        // From here on dropping the hold restores everything.
        hold.park()?;
        Ok(hold)
    }

    /// Stops and parks one thread while the others run. If no thread stops in time, this is tried again for up to two seconds.
    pub fn one(pid: Pid, area: (u64, u64)) -> Result<Hold, RecolorError> {
        /// Time after which no further attempt is made.
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
        if self.journal.threads[self.leader].registers.calls_to_sleep() {
            self.stop_in_its_call(self.leader)?;
        }
        self.fill_cave(&words(&CAVE))?;
        for thread in &self.journal.threads {
            // Signals are blocked last: a thread that waits with its signals unblocked does no harm before the work has begun.
            trace::set_registers(thread.id, &thread.registers.at(self.journal.cave + WAIT))
                .and_then(|()| trace::block_signals(thread.id, ALL_SIGNALS))
                .map_err(failed(self.pid, thread.id, "park"))?;
        }
        Ok(())
    }

    /// Makes a thread that has stopped in a system call stop in the same call once more, and keeps the registers that it has then.
    ///
    /// The kernel acts at the end of a stop in a call: it continues a sleep, and ends a wait for which a signal has come. If the thread leaves its
    /// first stop for other calls, as the leader does for the calls of the work, these actions are lost. After the second stop, the registers show
    /// that the sleep goes on or that the wait has ended.
    fn stop_in_its_call(&mut self, at: usize) -> Result<(), RecolorError> {
        let Thread { id, registers, .. } = self.journal.threads[at];
        let mut next = trace::CALL_INSTRUCTION;
        if self.read(&mut next, registers.instruction()).is_err() || next != trace::CALL_INSTRUCTION {
            return Ok(());
        }
        trace::set_registers(id, &registers)
            .and_then(|()| trace::block_signals(id, ALL_SIGNALS))
            .and_then(|()| trace::stop_in_call(id, &mut self.held_back))
            .and_then(|()| trace::registers(id))
            .map(|now| self.journal.threads[at].registers = now)
            .map_err(failed(self.pid, id, "stop"))
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

    /// Returns the address of the page with the cave that parked threads wait in.
    pub fn cave_page(&self) -> u64 {
        let page = page_bytes() as u64;
        self.journal.cave / page * page
    }

    /// Returns the pages with the restartable-sequence areas of the threads, to which the kernel writes whenever a thread resumes.
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

    /// Reads memory of the process from `address` on into `bytes`.
    pub fn read(&self, bytes: &mut [u8], address: u64) -> Result<(), RecolorError> {
        self.memory.read_exact_at(bytes, address).map_err(|source| RecolorError::Memory { pid: self.pid.0, source })
    }

    /// Writes `bytes` into the memory of the process from `address` on.
    pub fn write(&self, bytes: &[u8], address: u64) -> Result<(), RecolorError> {
        self.memory.write_all_at(bytes, address).map_err(|source| RecolorError::Memory { pid: self.pid.0, source })
    }

    /// Makes the process issue a system call, and returns the result of the call: its value or its error.
    pub fn call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> Result<io::Result<u64>, RecolorError> {
        let answer = self.answer(number, arguments)?;
        Ok(match answer.result {
            error @ -4095..0 => Err(io::Error::from_raw_os_error(-error as i32)),
            result => Ok(result as u64),
        })
    }

    /// Checks that no filter of the program forbids the calls that open and map pages of known color; fails otherwise.
    pub fn check_reference_allowed(&self) -> Result<(), RecolorError> {
        let leader = self.journal.threads[self.leader].id;
        seccomp::check_reference(self.pid, leader, self.journal.cave + WAIT)
    }

    fn answer(&mut self, number: libc::c_long, arguments: [u64; 6]) -> Result<Answer, RecolorError> {
        let leader = self.journal.threads[self.leader].id;
        trace::remote_call(leader, self.journal.cave, number, arguments, &mut self.held_back).map_err(failed(
            self.pid,
            leader,
            "issue a system call in",
        ))
    }

    /// Does the same as [`call`](Self::call) for calls that must succeed.
    ///
    /// Fails with [`RecolorError::Refused`] if the call fails. `action` names what the call is to do.
    pub fn must(
        &mut self,
        action: &'static str,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Result<u64, RecolorError> {
        let pid = self.pid.0;
        self.call(number, arguments)?.map_err(|source| RecolorError::Refused { pid, action, source })
    }

    /// Lets the threads run again while the memory for the work stays mapped, and starts the helpers.
    ///
    /// Returns the helpers, and how long the threads stood still.
    pub fn leave(mut self) -> Result<(Helpers, Duration), RecolorError> {
        self.put_right()?;
        let gone = match self.let_go() {
            Err(error) if !self.resumed => return Err(error),
            gone => gone,
        };
        let stop = self.began.elapsed();
        // The helpers start only now: earlier they could keep this program from a CPU while the threads stand still. If the threads go on after
        // an error, so must the helpers, which are waited for as they are dropped: their memory may be unmapped next.
        let helpers = self.send_off();
        gone?;
        Ok((helpers, stop))
    }

    /// Restores everything and lets the process run again. Returns how long it stood still.
    pub fn resume(mut self) -> Result<Duration, RecolorError> {
        self.clear_up()?;
        self.let_go()?;
        Ok(self.began.elapsed())
    }

    /// Undoes everything that was done for the work: ends helpers, closes what was opened, restores protections, and unmaps memory.
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
            // Recorded before the threads go on, because they may map something else there. If that fails, a repair looks at what is mapped there.
            self.journal.area = (0, 0);
            let _ = self.journal.write();
        }
        Ok(())
    }

    /// Restores protections that were changed, and closes the userfaultfd that was opened.
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

    /// Unparks all threads and stops tracing them.
    fn let_go(&mut self) -> Result<(), RecolorError> {
        let leader = self.journal.threads[self.leader].id;
        trace::to_plain_stop(leader, &mut self.held_back).map_err(failed(self.pid, leader, "stop"))?;
        for at in 0..self.journal.threads.len() {
            let Thread { id, registers, blocked } = self.journal.threads[at];
            // The leader leaves no later stop, so that from now on a signal ends its wait whenever it comes.
            let is_needed = at == self.leader && !registers.calls_to_break_off();
            if registers.calls_to_wait() && (is_needed || signal_is_due(self.pid, id, blocked)) {
                self.stop_in_its_call(at)?;
            }
        }
        for thread in &self.journal.threads {
            put_back(self.pid, thread.id, &thread.registers, Some(thread.blocked)).map_err(failed(
                self.pid,
                thread.id,
                "put back the registers of",
            ))?;
        }
        self.fill_cave(&self.journal.covered)?;
        let threads = std::mem::take(&mut self.journal.threads);
        let noted = if self.journal.area.1 > 0 { self.journal.write() } else { self.journal.remove() };
        // The threads go on even if that fails, because the disk is full, say. A repair then finds that they are not where the journal says.
        self.resumed = true;
        for thread in &threads {
            // A process that is killed in this instant leaves nothing to restore, but a journal of what is mapped in it.
            let detached = trace::detach(thread.id, 0).inspect_err(|_| Journal::forget_ended(self.pid));
            detached.map_err(failed(self.pid, thread.id, "let go"))?;
        }
        for signal in self.held_back.drain(..) {
            // The process may have ended by now.
            let _ = launch::send(self.pid.0, signal);
        }
        noted
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.resumed {
            return;
        }
        let leader = self.journal.threads[self.leader].id;
        match self.clear_up().and_then(|()| self.let_go()) {
            // The process has ended, or another of its threads has executed another program: nothing is left to restore.
            Err(RecolorError::Process(ProcessError::Ended { .. })) if !is_ours(self.pid, leader) => {
                drop(self.journal.remove())
            }
            // After any other error the threads wait, as they would if this program had been killed, and the journal stays for a repair.
            Err(_) => {
                // Helpers, too. Threads that are not traced stay as they are.
                for thread in self.pid.thread_numbers().unwrap_or_default() {
                    let _ = trace::detach(thread, 0);
                }
                Journal::forget_ended(self.pid);
            }
            Ok(()) => {}
        }
    }
}

/// Whether the memory mapped for the work is still there. A process that has executed another program (execve(2)) has lost it.
pub fn is_there(pid: Pid, area: (u64, u64)) -> Result<bool, RecolorError> {
    Ok(area.1 > 0 && holds_code(&pid.memory()?, area))
}

fn holds_code(memory: &File, (start, _): (u64, u64)) -> bool {
    let mut found = vec![0; agent::code().len()];
    memory.read_exact_at(&mut found, start).is_ok() && found == agent::code()
}

/// Returns `registers`, moved to the abort handler if the thread is within a restartable sequence.
///
/// An interrupted sequence must not be finished. The kernel would not notice the interruption, because it checks the thread only while
/// the thread is parked. [rseq(2); Linux, kernel/rseq.c]
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

fn failed(pid: Pid, thread: ThreadId, action: &'static str) -> impl Fn(io::Error) -> RecolorError {
    move |source| match source.raw_os_error() {
        Some(libc::ESRCH | libc::ECHILD) => ProcessError::Ended { pid: pid.0 }.into(),
        _ => RecolorError::Trace { pid: pid.0, thread, action, source },
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of eight bytes"))).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_whose_hold_could_not_be_ended_can_be_repaired() {
        let mut program = Command::new("sleep").arg("3").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = Pid(program.id() as i32);
        let sleeps = || pid.waits_in(pid.0).is_some_and(|call| call.number == libc::SYS_clock_nanosleep);
        let begin = Instant::now();
        while !sleeps() && begin.elapsed() < Duration::from_secs(2) {
            std::thread::yield_now();
        }
        let mut hold = Hold::one(pid, (0, 0)).unwrap();
        // No memory begins there, so its protection cannot be restored.
        hold.journal.protections.push((1, 4096, libc::PROT_READ as u64));
        drop(hold);
        let repaired = repair(pid);
        let (begin, mut status) = (Instant::now(), None);
        while status.is_none() && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
            status = program.try_wait().unwrap();
        }
        let _ = program.kill();
        program.wait().unwrap();
        assert!(repaired.unwrap(), "there was nothing to repair");
        assert!(status.is_some_and(|status| status.success()), "it does not go on");
    }
}
