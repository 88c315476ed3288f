//! The releases of a task, each accounted for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Ns;

/// What became of the releases of a task. Those before the first release of the run are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Releases {
    /// Releases seen: lines written, wake-ups, marks.
    pub seen: u64,
    /// Releases of a periodic program that wakes itself that did not come within its period and the jitter declared.
    pub absent: u64,
    /// Releases seen that came sooner after those before than the bounds assume.
    #[serde(default)]
    pub close: u64,
    /// Releases that isochrome left out, because it was held up.
    pub skipped: u64,
    /// Lines that were due and not written when the run ended, because the job before was under way.
    #[serde(default)]
    pub unwritten: u64,
    /// Jobs that were under way when the run ended.
    pub unfinished: u64,
}

impl Releases {
    /// Releases seen without a job and for no known reason, where `jobs` jobs were seen.
    pub fn missing(&self, jobs: u64) -> u64 {
        self.seen.saturating_sub(jobs + self.unfinished)
    }

    /// Releases that there should have been.
    pub fn expected(&self) -> u64 {
        self.seen + self.absent + self.skipped + self.unwritten
    }

    /// Adds those of a further block.
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
/// The n-th release lies between its arrival a(n) and a(n) + J. Of a periodic task a(n + 1) = a(n) + T, of a sporadic one a(n + 1) >= a(n) + T,
/// which is all that the bounds assume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReleasePattern {
    /// T.
    pub period: Ns,
    /// J, as the task set declares it.
    pub jitter: Ns,
    /// Whether T is only the least time between two arrivals.
    pub is_sporadic: bool,
}

/// How much later than its timer is due a program may be woken without any jitter declared: what the interrupt of the timer takes.
const WAKE_UP_MAX: Ns = Ns(100_000);

impl ReleasePattern {
    /// How late a release may be: J, and for a periodic task what it takes to wake it, at most a tenth of its period.
    pub fn allowed(&self) -> Ns {
        let wake_up = if self.is_sporadic { 0 } else { WAKE_UP_MAX.0.min(self.period.0 / 10) };
        Ns(self.jitter.0.saturating_add(wake_up))
    }
}

/// Counts the releases of a program that wakes itself: those that come, those that do not, and those that come too soon.
///
/// Of the arrivals it keeps the earliest and the latest that the releases so far leave possible. A release that is later than the latest arrival
/// allows is not the one that was due: as many are absent as fit in between, however slowly the releases fall behind. One that comes before
/// its earliest arrival is too close to those before.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseClock {
    pattern: ReleasePattern,
    /// The latest possible arrival of the last release; 0, the beginning, before the first.
    latest: i128,
    /// The earliest possible arrival of the last release; `None` before the first.
    earliest: Option<i128>,
}

impl ReleaseClock {
    /// The clock of a program before its first release.
    pub fn new(pattern: ReleasePattern) -> ReleaseClock {
        ReleaseClock { pattern, latest: 0, earliest: None }
    }

    fn period(&self) -> i128 {
        self.pattern.period.0.max(1).into()
    }

    fn allowed(&self) -> i128 {
        self.pattern.allowed().0.into()
    }

    /// Arrivals after the latest one of the last release whose releases would have had to come before `at`.
    fn due_before(&self, at: i128) -> i128 {
        if self.pattern.is_sporadic {
            return 0;
        }
        let since = at - self.allowed() - self.latest;
        (since - 1).max(0) / self.period()
    }

    /// Counts the next release, `at` ns after the beginning. The first one may come up to a period after that, because the program's own timer
    /// does not know of it.
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

    /// Counts the releases that are absent between the last one and the end, which lies `duration` after the beginning.
    pub fn end(&self, duration: Ns, releases: &mut Releases) {
        releases.absent += self.due_before(duration.0.into()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIODIC: ReleasePattern = ReleasePattern { period: Ns(1000), jitter: Ns(0), is_sporadic: false };

    /// Absent and too close releases of a task that was released at these times in a run of 10 000.
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
        // What it takes to wake the program is no jitter: up to a tenth of the period, up to 100 us.
        assert_eq!(counted(PERIODIC, (0..10).map(|n| 1000 * n + 10 * n)), (0, 0));
        assert_eq!(ReleasePattern { period: Ns(10_000_000), ..PERIODIC }.allowed(), Ns(100_000));
    }

    #[test]
    fn releases_that_come_a_period_and_a_half_apart_are_not_in_time() {
        // 7 come where 10 are due. Each is later than the one that was due, and sooner than the one after that.
        assert_eq!(counted(PERIODIC, (0..7).map(|n| 1490 * n)), (6, 0));
        // However slowly they fall behind: 8 of 10 in the end.
        let (absent, _) = counted(PERIODIC, (0..8).map(|n| 1250 * n));
        assert!(absent >= 2, "{absent}");
        let slow: Vec<u64> = (0..10).map(|n| 1050 * n).collect();
        assert!(counted(PERIODIC, slow).0 > 0);
    }

    #[test]
    fn a_release_that_is_late_counts_by_the_jitter_that_is_declared() {
        let late = |by: u64| (0..10).map(move |n| 1000 * n + if n == 3 { by } else { 0 });
        // Without it the one that was due is absent, and the next comes too soon after the one that came.
        assert_eq!(counted(PERIODIC, late(100)), (0, 0));
        assert_eq!(counted(PERIODIC, late(600)), (1, 1));
        let declared = ReleasePattern { jitter: Ns(500), ..PERIODIC };
        assert_eq!(counted(declared, late(600)), (0, 0));
        assert_eq!(counted(declared, late(601)), (1, 1));
        // Jitter lets no release be absent.
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
        // Its jitter may bring two nearer to each other, and no third one as well.
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
