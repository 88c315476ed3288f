//! Keeps a program on its colors: moves it there once it is ready, verifies it by eviction tests, and watches it until it ends.
//!
//! The program runs regardless of its colors. One thread forwards signals, another measures, moves and watches pages, and a third finds
//! colors, for which the program does not wait.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::pace::{GLANCE, LONG, Outcome, Pace, Progress, Readiness, Remedy, Retests, Settling, remedy};
use super::report::{Event, PlacementReport};
use super::{ATTEMPTS, Coloring};
use crate::color::ledger::Owner;
use crate::color::reference::Numbers;
use crate::color::verified::Verified;
use crate::process::Pid;
use crate::recolor::watch::{Watch, family};
use crate::recolor::{self, RecolorError};
use crate::sys::launch::{self, End, Signals};

/// SIGUSR1, with which a program may signal that it is ready.
const READY_SIGNAL: i32 = 10;
/// SIGCHLD, which reports that a child has ended and is not forwarded to the program.
const CHILD_SIGNAL: i32 = 17;

/// A program that was started, and how to keep it on its colors.
#[derive(Clone, Debug)]
pub struct Program {
    /// Process of the program, a child of this one.
    pub pid: Pid,
    /// This process, which holds the colors until the program can hold them.
    pub own: Owner,
    /// Time at which the program was started.
    pub started: Instant,
    /// Condition under which the program is ready to be moved.
    pub ready: Readiness,
    /// Longest time between two checks of the program's pages. Must not be zero.
    pub interval: Duration,
    /// Whether the descendants of the program are moved as well.
    pub follows_forks: bool,
    /// Whether only the expected work is reported and nothing is moved.
    pub dry_run: bool,
}

/// Callbacks with which a [`Keeper`] queries and notifies its caller.
#[derive(Clone, Copy)]
pub struct Hooks<'a> {
    /// Whether the program has reported that it is ready, for [`Readiness::Reported`].
    pub is_ready: &'a (dyn Fn() -> bool + Sync),
    /// Called with every notice.
    pub tell: &'a (dyn Fn(Notice<'_>) + Sync),
    /// Returns the text of an error for the report, with the hints that only the caller can add.
    pub explain: &'a (dyn Fn(&(dyn Error + 'static)) -> String + Sync),
}

/// An event while a program is kept on its colors.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// The program runs but is not on its colors, because of this first error. The last report lists all errors.
    OffColors(&'a str),
    /// The program is still not ready after this time.
    NotReady(Duration),
    /// The program is on its colors for the first time. In a dry run, the report contains the expected work instead.
    Report(&'a PlacementReport),
    /// The caller need not wait any longer: the program is on its colors, or cannot be moved to them now.
    Done,
}

/// Finds colors and reserves them, as [`Coloring::reserved`] does. The error is the reason why no colors could be obtained.
pub type Obtain = dyn Fn() -> Result<Coloring, String> + Send + Sync;

/// Puts a program on its colors and keeps it there.
pub struct Keeper<'a> {
    program: Program,
    obtain: Arc<Obtain>,
    hooks: Hooks<'a>,
    /// The thread that finds colors, until its result is taken.
    obtaining: Option<JoinHandle<Result<Coloring, String>>>,
    /// The program as owner, once the colors belong to it.
    owner: Option<Owner>,
    watch: Watch,
    report: PlacementReport,
    /// The errors so far, each once.
    errors: Vec<String>,
    /// Whether the program has sent the signal that means it is ready.
    signaled: Arc<AtomicBool>,
    settling: Option<Settling>,
    is_ready: bool,
    /// Whether it was reported that the program is not ready.
    is_late: bool,
    pace: Pace,
    progress: Progress,
    /// Number of times that eviction tests failed, or found pages off color after a move.
    attempts: u32,
    /// Number of times that the pages of known color were checked.
    renewals: u32,
    /// Schedule of further tests of the pages; `None` until the program is on its colors.
    retests: Option<Retests>,
}

impl<'a> Keeper<'a> {
    /// Creates a keeper for `program`.
    ///
    /// `obtain` is called on a thread of its own, and again while it fails, unless [`keep`](Self::keep) is given colors.
    pub fn new(program: Program, obtain: Arc<Obtain>, hooks: Hooks<'a>) -> Keeper<'a> {
        let watch = Watch::default();
        let report = PlacementReport::of(Event::End, program.pid.0, watch.tally());
        let settling = match program.ready {
            Readiness::Settled(settle) => Some(Settling::new(settle, Instant::now())),
            Readiness::Signaled | Readiness::Reported => None,
        };
        let pace = Pace::new(program.interval);
        Keeper {
            program,
            obtain,
            hooks,
            obtaining: None,
            owner: None,
            watch,
            report,
            errors: Vec::new(),
            signaled: Arc::default(),
            settling,
            is_ready: false,
            is_late: false,
            pace,
            progress: Progress::default(),
            attempts: 0,
            renewals: 0,
            retests: None,
        }
    }

    /// Records an error, and notifies the caller if it is the first.
    pub fn warn(&mut self, error: String) {
        if !self.errors.contains(&error) {
            if self.errors.is_empty() {
                (self.hooks.tell)(Notice::OffColors(&error));
            }
            self.errors.push(error);
        }
    }

    /// Keeps the program on its colors until it has ended, and forwards to it the signals that arrive here.
    ///
    /// `reserved`: the colors of the program, if they are known already.
    ///
    /// Returns how the program ended, and the last report. Fails if the thread that moves pages panics.
    pub fn keep(self, reserved: Option<Coloring>, signals: &Signals) -> thread::Result<(End, PlacementReport)> {
        let (pid, by_signal) = (self.program.pid, self.program.ready == Readiness::Signaled);
        let signaled = Arc::clone(&self.signaled);
        let (sender, messages) = channel();
        thread::scope(|scope| {
            let keeper = scope.spawn(move || self.keep_on_colors(reserved, &messages));
            while !keeper.is_finished() {
                let Some(arrival) = signals.next(5 * GLANCE) else { continue };
                if arrival.signal == READY_SIGNAL && by_signal && !signaled.load(Ordering::Relaxed) {
                    signaled.store(true, Ordering::Relaxed);
                } else if arrival.sent && arrival.signal != CHILD_SIGNAL {
                    let _ = launch::send(pid.0, arrival.signal);
                }
                // Sending fails only if the other thread has finished, because the program has ended.
                let _ = sender.send(());
            }
            keeper.join()
        })
    }

    fn keep_on_colors(mut self, mut coloring: Option<Coloring>, messages: &Receiver<()>) -> (End, PlacementReport) {
        if let Some(coloring) = &mut coloring {
            self.hand_over(coloring);
        }
        let mut next = Instant::now();
        let end = loop {
            if let Some(end) = launch::ends(self.program.pid.0) {
                break end;
            }
            if Instant::now() >= next {
                let outcome = self.step(&mut coloring);
                next = Instant::now() + self.pace.after(outcome);
            }
            match messages.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(()) if !self.is_ready && coloring.is_some() => next = next.min(Instant::now() + GLANCE),
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(GLANCE),
            }
        };
        let report = self.report.later(Event::End, self.watch.tally()).with_movers();
        (end, PlacementReport { errors: self.errors, ..report })
    }

    /// Does the next step: finds colors, waits until the program is ready, or moves its pages.
    fn step(&mut self, coloring: &mut Option<Coloring>) -> Outcome {
        let mut failed = false;
        if coloring.is_none() {
            let obtain = &self.obtain;
            let obtaining = self.obtaining.get_or_insert_with(|| {
                let obtain = Arc::clone(obtain);
                // If the program ends first, nobody waits for this thread.
                thread::spawn(move || obtain())
            });
            if obtaining.is_finished()
                && let Some(done) = self.obtaining.take()
            {
                *coloring = self.obtained(done);
                failed = coloring.is_none();
            }
        }
        self.check_readiness();
        if let (Some(coloring), Some(owner)) = (coloring.as_mut(), &self.owner)
            && let Some(numbers) = coloring.follow(owner)
        {
            self.report.numbers = Some(numbers);
        }
        match coloring {
            None if failed => Outcome::NoColors,
            None => Outcome::Waiting,
            Some(_) if !self.is_ready => Outcome::Waiting,
            Some(coloring) if self.program.dry_run => {
                self.expect(coloring);
                Outcome::DryRun
            }
            Some(coloring) => self.round(coloring),
        }
    }

    fn check_readiness(&mut self) {
        self.is_ready = self.is_ready
            || match &mut self.settling {
                Some(settling) => settling.is_over(resident_pages(self.program.pid), Instant::now()),
                None => self.signaled.load(Ordering::Relaxed) || (self.hooks.is_ready)(),
            };
        if !self.is_ready && !self.is_late && self.program.started.elapsed() > LONG {
            self.is_late = true;
            (self.hooks.tell)(Notice::NotReady(LONG));
        }
    }

    /// Returns the colors that were found; `None` if no colors were found. In that case the caller is warned, and the program runs on as it
    /// is.
    fn obtained(&mut self, obtaining: JoinHandle<Result<Coloring, String>>) -> Option<Coloring> {
        let panicked = |_| Err("the thread that measures colors has ended early".to_owned());
        match obtaining.join().unwrap_or_else(panicked) {
            Ok(mut coloring) => {
                self.hand_over(&mut coloring);
                Some(coloring)
            }
            Err(error) => {
                self.warn(error);
                (self.hooks.tell)(Notice::Done);
                None
            }
        }
    }

    /// Makes the program the owner of the colors.
    fn hand_over(&mut self, coloring: &mut Coloring) {
        // A program that has ended needs no colors.
        if let Ok(owner) = Owner::of(self.program.pid.0 as u32) {
            match coloring.grant(owner.clone(), Some(&self.program.own)) {
                Ok(()) => self.owner = Some(owner),
                Err(error) => self.warn((self.hooks.explain)(&error)),
            }
        }
        self.report.numbers = coloring.numbers().cloned();
        self.watch = coloring.watch();
    }

    /// Inspects the program's pages, and moves those that are off color.
    fn round(&mut self, coloring: &Coloring) -> Outcome {
        let pid = self.program.pid;
        let pids = if self.program.follows_forks { family(pid) } else { vec![pid] };
        let sweeps = self.watch.tally().sweeps;
        let errors = coloring.with(|wanted| self.watch.round(&pids, wanted, &coloring.limits));
        let (mut failed, mut passing) = (false, false);
        for (of, error) in errors {
            let passes = self.passes(coloring, of, &error);
            failed |= !passes && of == pid;
            passing |= passes && of == pid;
            if !passes {
                self.warn((self.hooks.explain)(&error));
            }
        }
        if !failed && !passing {
            self.renewals = 0;
        }
        let moved = self.watch.tally().sweeps > sweeps;
        let has_arrived = self.progress.has_arrived(self.watch.tally(), self.program.started.elapsed());
        if self.report.seconds_to_colors.is_none() && !failed && !passing && has_arrived {
            if let Err(not_yet) = self.arrive(coloring, &pids) {
                return not_yet;
            }
        } else if failed {
            // A service that cannot be moved now is ready nevertheless.
            (self.hooks.tell)(Notice::Done);
        }
        let found = !failed && !passing && !moved && self.test_again(coloring, &pids);
        match (failed, moved || passing || found) {
            (true, _) => Outcome::Failed,
            (_, true) => Outcome::Moved,
            _ => Outcome::Nothing,
        }
    }

    /// Handles `error` of process `pid`, and returns whether the error may be gone in the next round.
    fn passes(&mut self, coloring: &Coloring, pid: Pid, error: &RecolorError) -> bool {
        match remedy(error, self.program.started.elapsed()) {
            Remedy::InspectAgain => true,
            Remedy::Repair => recolor::repair(pid).is_ok(),
            Remedy::Renew => self.renew(coloring, error).is_some(),
            Remedy::RenewLost => self.renew(coloring, error).is_some_and(|numbers| numbers != Numbers::Kept),
            Remedy::Report => false,
        }
    }

    /// Tests the pages by eviction, and reports that the program is on its colors.
    ///
    /// If the tests find pages off color or cannot be made, the next round tries again. The returned error is then the outcome of this round.
    fn arrive(&mut self, coloring: &Coloring, pids: &[Pid]) -> Result<(), Outcome> {
        let seconds = self.program.started.elapsed().as_secs_f64();
        let verified = match coloring.verify(&mut self.watch, pids) {
            // Pages found off color are moved or measured again before the report.
            Ok(Some(verified)) if self.attempts < attempts_after(verified) => {
                self.attempts += 1;
                // How many pages were on color so far rests on colors that the tests have refuted.
                self.progress = Progress::default();
                return Err(Outcome::Moved);
            }
            Ok(verified) => verified,
            Err(RecolorError::Claimed { .. }) => return Err(Outcome::Moved),
            Err(error) if self.attempts < ATTEMPTS => {
                self.attempts += 1;
                self.renew(coloring, &error);
                return Err(Outcome::Failed);
            }
            Err(error) => {
                self.warn((self.hooks.explain)(&error));
                None
            }
        };
        let report = self.report.clone().later(Event::OnColors, self.watch.tally());
        self.report = PlacementReport { seconds_to_colors: Some(seconds), verified, ..report };
        self.retests = Some(Retests::new(Instant::now()));
        (self.hooks.tell)(Notice::Report(&self.report));
        (self.hooks.tell)(Notice::Done);
        Ok(())
    }

    /// Tests the pages again when that is due. The host of a virtual machine may have moved memory that is in use, which frame numbers do not
    /// show.
    ///
    /// Returns whether pages were found off color. Their colors are forgotten, so that the next round measures and moves them.
    fn test_again(&mut self, coloring: &Coloring, pids: &[Pid]) -> bool {
        let Some(mut retests) = self.retests.take_if(|retests| retests.is_due(Instant::now())) else { return false };
        let found = match coloring.verify(&mut self.watch, pids) {
            Ok(verified) => {
                self.report.verified = verified.or(self.report.verified);
                verified.is_some_and(|verified| verified.on_color < verified.pages)
            }
            // Pages that cannot be tested now are tested later.
            Err(error) => {
                self.renew(coloring, &error);
                false
            }
        };
        retests.after(found, Instant::now());
        self.retests = Some(retests);
        found
    }

    /// Checks the pages of known color if `error` casts doubt on them, a limited number of times.
    ///
    /// Returns where the numbers of the colors come from now; `None` if nothing was checked.
    fn renew(&mut self, coloring: &Coloring, error: &RecolorError) -> Option<Numbers> {
        if self.renewals >= ATTEMPTS {
            return None;
        }
        let numbers = coloring.renew_after(error);
        self.renewals += u32::from(numbers.is_some());
        if let Some(changed) = numbers.clone().filter(|numbers| *numbers != Numbers::Kept) {
            self.report.numbers = Some(changed);
        }
        numbers
    }

    /// Reports the expected work of a recoloring once.
    fn expect(&mut self, coloring: &Coloring) {
        if self.report.expected.is_none()
            && let Ok(report) = coloring.expect(self.program.pid)
        {
            self.report = PlacementReport::expected(&report, coloring);
            (self.hooks.tell)(Notice::Report(&self.report));
        }
    }
}

/// Returns how often to move a program again, given the result of eviction tests: a few pages of a large program do not justify a long
/// wait.
fn attempts_after(verified: Verified) -> u32 {
    match verified {
        Verified { pages, on_color, .. } if on_color >= pages => 0,
        verified if verified.holds() => 1,
        _ => ATTEMPTS,
    }
}

/// Returns the number of resident pages of a process; 0 if it has ended.
fn resident_pages(pid: Pid) -> u64 {
    let statm = pid.text("statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_moved_anew_once_for_a_few_pages_and_a_few_times_for_many() {
        let attempts = [(100, 100), (99, 100), (98, 100), (0, 0)]
            .map(|(on_color, pages)| attempts_after(Verified { pages, on_color, undecided: 0 }));
        assert_eq!(attempts, [0, 1, ATTEMPTS, 0]);
    }
}
