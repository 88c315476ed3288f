//! Accounts for every release of a task.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Ns;

/// Account of the releases of a task. Releases before the first release of the run are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Releases {
    /// Number of releases seen: lines written, wake-ups, or marks.
    pub seen: u64,
    /// Number of releases of a periodic program that wakes itself that did not come within the period and the declared jitter.
    pub absent: u64,
    /// Number of releases seen that came sooner after earlier releases than the bounds assume.
    #[serde(default)]
    pub close: u64,
    /// Number of releases that isochrome left out because it was held up.
    pub skipped: u64,
    /// Number of lines that were due but not written when the run ended, because the job before was under way.
    #[serde(default)]
    pub unwritten: u64,
    /// Number of jobs that were under way when the run ended.
    pub unfinished: u64,
}

impl Releases {
    /// Returns the number of releases that were seen without a job and for no known reason, if `jobs` jobs were seen.
    pub fn missing(&self, jobs: u64) -> u64 {
        self.seen.saturating_sub(jobs + self.unfinished)
    }

    /// Returns the number of expected releases.
    pub fn expected(&self) -> u64 {
        self.seen + self.absent + self.skipped + self.unwritten
    }

    /// Adds the releases of a further block.
    pub fn add(&mut self, more: &Releases) {
        self.seen += more.seen;
        self.absent += more.absent;
        self.close += more.close;
        self.skipped += more.skipped;
        self.unwritten += more.unwritten;
        self.unfinished += more.unfinished;
    }
}

/// How the releases of a program that wakes itself may follow each other.
///
/// The n-th release lies between its arrival a(n) and a(n) + J. The arrivals of a periodic task satisfy a(n + 1) = a(n) + T, those of a
/// sporadic task a(n + 1) >= a(n) + T. The bounds assume no more than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReleasePattern {
    /// The period T.
    pub period: Ns,
    /// The jitter J that the task set declares.
    pub jitter: Ns,
    /// Whether T is only the least time between two arrivals.
    pub is_sporadic: bool,
}

/// Longest delay of a wake-up that needs no declared jitter: the time that the interrupt of the timer takes.
const WAKE_UP_MAX: Ns = Ns(100_000);

impl ReleasePattern {
    /// Returns the longest allowed delay of a release: J, and for a periodic task also the time to wake it, at most a tenth of the period.
    pub fn allowed(&self) -> Ns {
        let wake_up = if self.is_sporadic { 0 } else { WAKE_UP_MAX.0.min(self.period.0 / 10) };
        Ns(self.jitter.0.saturating_add(wake_up))
    }
}

/// Counts the releases of a program that wakes itself: those that come, those that are absent, and those that come too soon.
///
/// The clock keeps the earliest and the latest possible arrival of the last release, given all releases so far. A release that is later
/// than the latest arrival allows is not the release that was due. As many releases are then absent as fit in between, however slowly the
/// releases fall behind. A release that comes before its earliest possible arrival is too close to the releases before.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseClock {
    pattern: ReleasePattern,
    /// Latest possible arrival of the last release, in ns; before the first release 0, the beginning.
    latest: i128,
    /// Earliest possible arrival of the last release, in ns; `None` before the first release.
    earliest: Option<i128>,
}

impl ReleaseClock {
    /// Creates the clock of a program before its first release.
    pub fn new(pattern: ReleasePattern) -> ReleaseClock {
        ReleaseClock { pattern, latest: 0, earliest: None }
    }

    fn period(&self) -> i128 {
        self.pattern.period.0.max(1).into()
    }

    fn allowed(&self) -> i128 {
        self.pattern.allowed().0.into()
    }

    /// Returns the number of arrivals after the latest possible arrival of the last release whose releases should have come before `at`; 0
    /// for a sporadic task.
    fn due_before(&self, at: i128) -> i128 {
        if self.pattern.is_sporadic {
            return 0;
        }
        let since = at - self.allowed() - self.latest;
        (since - 1).max(0) / self.period()
    }

    /// Counts the next release, `at` ns after the beginning. The first release may come up to a period after the beginning, because the
    /// timer of the program is not aligned with it.
    pub fn count(&mut self, at: Ns, releases: &mut Releases) {
        releases.seen += 1;
        let at = i128::from(at.0);
        let absent = self.due_before(at);
        releases.absent += absent as u64;
        self.latest = at.min(self.latest + (absent + 1) * self.period());
        let earliest = at - self.allowed();
        let due = self.earliest.map_or(earliest, |before| earliest.max(before + self.period()));
        releases.close += u64::from(due > at);
        self.earliest = Some(if due > at { earliest } else { due });
    }

    /// Counts the releases that are absent between the last release and the end, which lies `duration` after the beginning.
    pub fn end(&self, duration: Ns, releases: &mut Releases) {
        releases.absent += self.due_before(duration.0.into()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIODIC: ReleasePattern = ReleasePattern { period: Ns(1000), jitter: Ns(0), is_sporadic: false };

    /// Returns the numbers of absent and of too close releases of a task that was released at `times` in a run of 10 000 ns.
    fn counted(pattern: ReleasePattern, times: impl IntoIterator<Item = u64>) -> (u64, u64) {
        let (mut clock, mut releases) = (ReleaseClock::new(pattern), Releases::default());
        times.into_iter().for_each(|at| clock.count(Ns(at), &mut releases));
        clock.end(Ns(10_000), &mut releases);
        (releases.absent, releases.close)
    }

    #[test]
    fn a_release_that_did_not_come_is_counted() {
        assert_eq!(counted(PERIODIC, (0..10).map(|n| 1000 * n)), (0, 0));
        assert_eq!(counted(PERIODIC, (0..10).map(|n| 1000 * n + 700)), (0, 0));
        assert_eq!(counted(PERIODIC, (0..10).filter(|n| *n != 4).map(|n| 1000 * n)), (1, 0));
        assert_eq!(counted(PERIODIC, (0..10).filter(|n| ![4, 5, 8].contains(n)).map(|n| 1000 * n + 50)), (3, 0));
        // The time to wake the program is not jitter: up to a tenth of the period, and up to 100 us, are allowed.
        assert_eq!(counted(PERIODIC, (0..10).map(|n| 1000 * n + 10 * n)), (0, 0));
        assert_eq!(ReleasePattern { period: Ns(10_000_000), ..PERIODIC }.allowed(), Ns(100_000));
    }

    #[test]
    fn releases_that_come_a_period_and_a_half_apart_are_not_in_time() {
        // 7 releases come where 10 are due. Each is later than the release that was due, and sooner than the release after that.
        assert_eq!(counted(PERIODIC, (0..7).map(|n| 1490 * n)), (6, 0));
        // Releases that fall behind slowly are found, too: in the end 8 of 10 have come.
        let (absent, _) = counted(PERIODIC, (0..8).map(|n| 1250 * n));
        assert!(absent >= 2, "{absent}");
        let slow: Vec<u64> = (0..10).map(|n| 1050 * n).collect();
        assert!(counted(PERIODIC, slow).0 > 0);
    }

    #[test]
    fn a_release_that_is_late_counts_by_the_jitter_that_is_declared() {
        let late = |by: u64| (0..10).map(move |n| 1000 * n + if n == 3 { by } else { 0 });
        // Without declared jitter, the release that was due is absent, and the next one comes too soon after the late one.
        assert_eq!(counted(PERIODIC, late(100)), (0, 0));
        assert_eq!(counted(PERIODIC, late(600)), (1, 1));
        let declared = ReleasePattern { jitter: Ns(500), ..PERIODIC };
        assert_eq!(counted(declared, late(600)), (0, 0));
        assert_eq!(counted(declared, late(601)), (1, 1));
        // Jitter does not excuse an absent release.
        assert_eq!(counted(declared, (0..10).filter(|n| *n != 4).map(|n| 1000 * n)), (1, 0));
    }

    #[test]
    fn what_does_not_come_at_either_end_is_counted_too() {
        assert_eq!(counted(PERIODIC, (3..10).map(|n| 1000 * n)), (2, 0));
        assert_eq!(counted(PERIODIC, (0..7).map(|n| 1000 * n)), (3, 0));
        assert_eq!(counted(PERIODIC, (0..7).map(|n| 1000 * n - if n > 0 { 101 } else { 0 })), (4, 1));
        assert_eq!(counted(PERIODIC, []), (9, 0));
    }

    #[test]
    fn of_a_sporadic_task_none_is_absent_and_one_that_comes_too_soon_is_named() {
        let sporadic = ReleasePattern { is_sporadic: true, ..PERIODIC };
        assert_eq!(counted(sporadic, [0, 5000, 6000]), (0, 0));
        assert_eq!(counted(sporadic, []), (0, 0));
        assert_eq!(counted(sporadic, [0, 999, 1999, 3500]), (0, 1));
        // Jitter may bring two releases closer to each other, but not a third one as well.
        let jittery = ReleasePattern { jitter: Ns(300), ..sporadic };
        assert_eq!(counted(jittery, [300, 1000, 2000]), (0, 0));
        assert_eq!(counted(jittery, [300, 1000, 1999]), (0, 1));
        assert_eq!(counted(jittery, [300, 999]), (0, 1));
    }

    #[test]
    fn releases_are_seen_left_out_under_way_or_missing() {
        let releases = Releases { seen: 90, absent: 2, close: 1, skipped: 5, unwritten: 3, unfinished: 1 };
        assert_eq!((releases.missing(89), releases.missing(85), releases.expected()), (0, 4, 100));
    }
}
