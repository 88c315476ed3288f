//! The state of the server as it is reported to clients, who need not wait for the server itself, and may wait for a change.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Status;

/// Longest time for which a client waits for a change. Then it may ask again.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most clients that wait for a change at a time, half of those that a server has. Others get the present state at once.
const WAITING_MAX: usize = 16;

/// The state that is reported to clients.
pub struct Published {
    reported: Mutex<Reported>,
    changed: Condvar,
}

struct Reported {
    status: Status,
    policy: String,
    /// Number of the state, which grows with every change.
    number: u64,
    waiting: usize,
}

impl Published {
    /// Creates the first state: `status`, and the text of the policy in force.
    pub fn new(status: Status, policy: String) -> Published {
        Published { reported: Mutex::new(Reported { status, policy, number: 1, waiting: 0 }), changed: Condvar::new() }
    }

    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports `status` from now on, at once to those who wait if it differs from the last one.
    pub fn report(&self, status: Status) {
        let mut reported = self.reported();
        if reported.status != status {
            (reported.status, reported.number) = (status, reported.number + 1);
            self.changed.notify_all();
        }
    }

    /// Replaces the text of the policy in force.
    pub fn report_policy(&self, policy: String) {
        self.reported().policy = policy;
    }

    /// Returns the state.
    pub fn status(&self) -> Status {
        self.reported().status.clone()
    }

    /// Returns the text of the policy in force.
    pub fn policy(&self) -> String {
        self.reported().policy.clone()
    }

    /// Waits until the state has another number than `number`, for 1 s at most, and returns the number and the state.
    pub fn next(&self, number: u64) -> (u64, Status) {
        self.next_within(PATIENCE, number)
    }

    fn next_within(&self, patience: Duration, number: u64) -> (u64, Status) {
        let (begin, mut reported) = (Instant::now(), self.reported());
        if reported.waiting < WAITING_MAX {
            reported.waiting += 1;
            while reported.number == number && begin.elapsed() < patience {
                let left = patience.saturating_sub(begin.elapsed());
                reported = self.changed.wait_timeout(reported, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            reported.waiting -= 1;
        }
        (reported.number, reported.status.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_change_is_reported_to_who_waits_and_nothing_else_is() {
        let published = Arc::new(Published::new(Status::default(), "a".to_owned()));
        assert_eq!(published.next(0), (1, Status::default()));
        let waiting = Arc::clone(&published);
        let waiting = thread::spawn(move || waiting.next_within(Duration::from_secs(60), 1));
        while published.reported().waiting == 0 {
            thread::yield_now();
        }
        published.report(Status::default());
        published.report_policy("b".to_owned());
        let changed = Status { colors: 16, ..Status::default() };
        published.report(changed.clone());
        assert_eq!((waiting.join().unwrap(), published.policy()), ((2, changed), "b".to_owned()));
    }

    #[test]
    fn too_many_who_wait_get_the_present_state_at_once() {
        let published = Published::new(Status::default(), String::new());
        published.reported().waiting = WAITING_MAX;
        assert_eq!(published.next(1).0, 1);
    }
}
