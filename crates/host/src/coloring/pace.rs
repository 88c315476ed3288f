//! Decides when a program that is kept on its colors is inspected next, and when it counts as placed. These decisions touch no process.

use std::time::{Duration, Instant};

use crate::process::ProcessError;
use crate::recolor::RecolorError;
use crate::recolor::watch::Tally;

/// Time between two checks of whether a program is ready.
pub(super) const GLANCE: Duration = Duration::from_millis(20);

/// A program that still grows after this time is moved while it grows.
const SETTLE_MAX: Duration = Duration::from_secs(2);

/// Time between two checks of where the pages of a growing program lie.
const GROWING: Duration = Duration::from_millis(100);

/// After this time a program that is not ready, or not all on its colors, is reported as it is.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// Longest time between two attempts at something that has failed.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Shortest and longest time between two tests of pages that are on color. A test takes some tenths of a second, which a helper thread
/// spends in the program.
const RETEST_MIN: Duration = Duration::from_secs(1);
const RETEST_MAX: Duration = Duration::from_secs(60);

/// Number of rounds without progress after which a program that is not completely on its colors is reported as it is.
const IDLE_ROUNDS: u32 = 5;

/// When a program is ready to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The program is ready once its resident memory has not grown for this time. It is also ready once it has run for two seconds, or for
    /// this time if that is longer.
    Settled(Duration),
    /// The program is ready once it has sent SIGUSR1 to this process.
    Signaled,
    /// The program is ready once it has reported so in another way: [`Hooks::is_ready`](super::Hooks::is_ready).
    Reported,
}

/// Decides whether the resident memory of a program has settled.
pub(super) struct Settling {
    /// Time for which the memory must not have grown.
    settle: Duration,
    began: Instant,
    resident: u64,
    since: Instant,
}

impl Settling {
    pub(super) fn new(settle: Duration, now: Instant) -> Settling {
        Settling { settle, began: now, resident: 0, since: now }
    }

    /// Records that `resident` pages are resident `now`, and returns whether the memory has settled.
    pub(super) fn is_over(&mut self, resident: u64, now: Instant) -> bool {
        if resident > self.resident {
            (self.resident, self.since) = (resident, now);
        }
        now - self.since >= self.settle || now - self.began >= SETTLE_MAX.max(self.settle)
    }
}

/// Outcome of one check of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The program is not ready, or its colors are still being found.
    Waiting,
    /// Colors could not be obtained.
    NoColors,
    /// This is a dry run: only the expected work was reported.
    DryRun,
    /// Pages were moved, or should be inspected again soon.
    Moved,
    /// Nothing was to be done.
    Nothing,
    /// The program could not be inspected, or its pages could not be moved.
    Failed,
}

/// Time until the next check of a program: short while it grows, and longer after every check that finds nothing to do.
pub(super) struct Pace {
    /// The longest pause where nothing fails.
    interval: Duration,
    pause: Duration,
    /// The pause after the last failure.
    retry: Duration,
}

impl Pace {
    pub(super) fn new(interval: Duration) -> Pace {
        Pace { interval, pause: GLANCE, retry: GLANCE }
    }

    /// Returns the pause after a check with this outcome.
    pub(super) fn after(&mut self, outcome: Outcome) -> Duration {
        let shortest = GROWING.min(self.interval);
        if matches!(outcome, Outcome::NoColors | Outcome::Failed) {
            self.retry = (2 * self.retry).min(RETRY_MAX);
        } else if matches!(outcome, Outcome::Moved | Outcome::Nothing) {
            self.retry = GLANCE;
        }
        self.pause = match outcome {
            Outcome::Waiting => GLANCE,
            Outcome::NoColors => self.retry,
            Outcome::DryRun => RETRY_MAX,
            Outcome::Moved => shortest,
            Outcome::Nothing => (2 * self.pause).clamp(shortest, self.interval),
            Outcome::Failed => self.retry.max(GROWING),
        };
        self.pause
    }
}

/// Schedule of repeated tests of a program that is on its colors. A test comes soon after the program has arrived, and soon after pages were
/// found off color. While all pages are on color, the tests become less and less frequent.
pub(super) struct Retests {
    next: Instant,
    pause: Duration,
}

impl Retests {
    pub(super) fn new(now: Instant) -> Retests {
        Retests { next: now + RETEST_MIN, pause: RETEST_MIN }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Sets the time of the next test. `found`: whether the last one, which ended `now`, found pages off color.
    pub(super) fn after(&mut self, found: bool, now: Instant) {
        self.pause = if found { RETEST_MIN } else { (2 * self.pause).min(RETEST_MAX) };
        self.next = now + self.pause;
    }
}

/// Progress of a program that is moved round by round, to decide whether further rounds are of use.
#[derive(Default)]
pub(super) struct Progress {
    /// Most pages that were on color after a round.
    most_on_color: usize,
    /// Number of rounds since that maximum last rose.
    idle_rounds: u32,
}

impl Progress {
    /// Records where the pages are after a round, and returns whether the program counts as on its colors. It does if 99 % of the movable
    /// pages are on color, or if further rounds bring no more pages onto their colors. `age`: time since the start of the program.
    pub(super) fn has_arrived(&mut self, tally: &Tally, age: Duration) -> bool {
        // As long as each round brings some pages onto their colors, the next round may bring more.
        self.idle_rounds = if tally.on_color > self.most_on_color { 0 } else { self.idle_rounds + 1 };
        let stands_still = self.idle_rounds >= IDLE_ROUNDS || age > LONG;
        self.most_on_color = self.most_on_color.max(tally.on_color);
        tally.resident > 0 && (tally.is_placed() || stands_still)
    }
}

/// What to do about a process that was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Inspect the process again.
    InspectAgain,
    /// Repair the process.
    Repair,
    /// Check the pages of known color, and replace them if they have lost their colors.
    Renew,
    /// Check and replace the pages as in [`Renew`](Remedy::Renew), but report the error if they had not lost their colors.
    RenewLost,
    /// Report the error.
    Report,
}

/// Returns what to do about `error`, given the time `age` since the start of the program.
pub(super) fn remedy(error: &RecolorError, age: Duration) -> Remedy {
    match error {
        // A process that is just beginning another program, or shares its memory for a moment, is inspected again.
        RecolorError::Changed { .. } | RecolorError::SharesMemory { .. } => Remedy::InspectAgain,
        // Another command moves the process, and leaves the measured colors for this command.
        RecolorError::Claimed { .. } => Remedy::InspectAgain,
        // A program that is just beginning may have mapped no code yet in which parked threads could execute instructions.
        RecolorError::NoCave { .. } => Remedy::InspectAgain,
        // A process that began another program while it was held needs only the repair of its journal.
        RecolorError::Unrepaired { .. } => Remedy::Repair,
        RecolorError::Unmeasured { .. } => Remedy::Renew,
        // Frames may seem missing only because pages of known color have lost their colors.
        RecolorError::TooFewFrames { .. } => Remedy::RenewLost,
        // A child of a process that has given up rights may not be traced until it has begun its program.
        RecolorError::Process(ProcessError::Denied { .. }) | RecolorError::NotStopping { .. } if age < SETTLE_MAX => {
            Remedy::InspectAgain
        }
        _ => Remedy::Report,
    }
}

#[cfg(test)]
mod tests {
    use isochrome_model::units::Bytes;

    use super::*;
    use crate::color::ColorError;

    const SECOND: Duration = Duration::from_secs(1);

    fn tally(on_color: usize, off_color: usize) -> Tally {
        Tally { resident: on_color + off_color, on_color, off_color, ..Tally::default() }
    }

    #[test]
    fn a_program_is_on_its_colors_when_99_of_100_pages_are() {
        let arrived = |on_color, off_color| Progress::default().has_arrived(&tally(on_color, off_color), SECOND);
        assert!(arrived(99, 1) && arrived(1, 0));
        assert!(!arrived(98, 2) && !arrived(0, 100));
        // A program without any resident page is not on its colors yet, although nothing is off color.
        assert!(!arrived(0, 0));
    }

    #[test]
    fn a_program_that_gets_no_further_is_reported_as_it_is_and_one_that_does_is_not() {
        let mut progress = Progress::default();
        // The first round brings 50 pages, four bring nothing, and the next brings one more. From then on five idle rounds are needed.
        let on_color = [50, 50, 50, 50, 50, 51, 51, 51, 51, 51, 51];
        let arrived = on_color.map(|on_color| progress.has_arrived(&tally(on_color, 100 - on_color), SECOND));
        assert_eq!(arrived, [false, false, false, false, false, false, false, false, false, false, true]);
        // After half a minute the program counts as placed.
        assert!(Progress::default().has_arrived(&tally(50, 50), LONG + SECOND));
    }

    #[test]
    fn memory_has_settled_when_it_did_not_grow_for_the_time_or_never_stops_growing() {
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut settling = Settling::new(Duration::from_millis(100), begin);
        assert!(!settling.is_over(10, at(20)) && !settling.is_over(20, at(90)) && !settling.is_over(20, at(189)));
        // Pages that went away do not count as growth.
        assert!(settling.is_over(5, at(190)));
        let mut growing = Settling::new(Duration::from_millis(100), begin);
        let over = (0..=100).map(|round| growing.is_over(round, at(20 * round))).position(|over| over);
        assert_eq!(over, Some(100), "after two seconds");
    }

    #[test]
    fn a_program_that_does_not_grow_is_inspected_less_and_less_often() {
        let mut pace = Pace::new(SECOND);
        assert_eq!(pace.after(Outcome::Waiting), GLANCE);
        let pauses: Vec<u128> = (0..6).map(|_| pace.after(Outcome::Nothing).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pace.after(Outcome::Moved), GROWING);
        // A shorter interval also holds for programs that grow.
        let mut short = Pace::new(Duration::from_millis(30));
        assert_eq!(short.after(Outcome::Moved), Duration::from_millis(30));
        assert_eq!(short.after(Outcome::Nothing), Duration::from_millis(30));
    }

    #[test]
    fn pages_are_tested_again_more_and_more_seldom_until_some_are_off_color() {
        let begin = Instant::now();
        let mut retests = Retests::new(begin);
        assert!(!retests.is_due(begin) && retests.is_due(begin + SECOND));
        let mut now = begin;
        let mut pause = |found| {
            retests.after(found, now);
            let pause = (1..).find(|seconds| retests.is_due(now + *seconds * SECOND)).unwrap();
            now += pause * SECOND;
            pause
        };
        let pauses = [false, false, false, false, false, false, false, true, false].map(&mut pause);
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 1, 2]);
    }

    #[test]
    fn what_fails_is_tried_again_after_twice_the_time_up_to_ten_seconds() {
        let mut pace = Pace::new(SECOND);
        let pauses: Vec<u128> = (0..11).map(|_| pace.after(Outcome::NoColors).as_millis()).collect();
        assert_eq!(pauses, [40, 80, 160, 320, 640, 1280, 2560, 5120, 10_000, 10_000, 10_000]);
        // A successful check resets the pause. After a failure, the next check comes no sooner than for a program that grows.
        pace.after(Outcome::Moved);
        let pauses: Vec<u128> = (0..3).map(|_| pace.after(Outcome::Failed).as_millis()).collect();
        assert_eq!(pauses, [100, 100, 160]);
    }

    #[test]
    fn pages_of_known_color_are_renewed_where_frames_or_colors_could_not_be_found() {
        let few = RecolorError::TooFewFrames { pages: 1, limit: Bytes(1) };
        assert_eq!(remedy(&few, SECOND), Remedy::RenewLost);
        let lost = RecolorError::Unmeasured { pid: 1, source: ColorError::ReferenceLost { color: 0 } };
        assert_eq!(remedy(&lost, SECOND), Remedy::Renew);
        assert_eq!(remedy(&RecolorError::NoColors, SECOND), Remedy::Report);
    }

    #[test]
    fn a_child_that_may_not_be_traced_yet_is_inspected_again_for_two_seconds() {
        let denied = RecolorError::Process(ProcessError::Denied { pid: 1 });
        assert_eq!(remedy(&denied, SECOND), Remedy::InspectAgain);
        assert_eq!(remedy(&denied, SETTLE_MAX), Remedy::Report);
    }
}
