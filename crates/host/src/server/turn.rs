//! Which member is inspected next, and when it is inspected again.

use std::time::{Duration, Instant};

/// Time between two inspections of a member while it grows.
const GROWING: Duration = Duration::from_millis(100);
/// Longest time for which a member counts as new. Also the longest time for which a member that is due waits for others that come first.
pub const COMING: Duration = Duration::from_secs(5);
/// Longest time between two attempts to move a member that cannot be moved.
const REST_MAX: Duration = Duration::from_secs(60);

/// Properties of a member that decide which member comes next.
#[derive(Clone, Copy)]
pub struct Turn {
    pub pid: i32,
    /// Time at which the member is due.
    pub next: Instant,
    /// Whether the member's class has the rest.
    pub has_rest: bool,
    /// Whether the member is new and not on its colors yet.
    pub is_coming: bool,
}

/// Returns the next of `members` that is due at `time`, and whether its class has the rest. New members come first, and members of classes that have
/// the rest come last; they also wait while a member of another class is new. A member that has been due for longer than [`COMING`] waits for nobody.
pub fn next_in_turn(members: impl Iterator<Item = Turn> + Clone, time: Instant) -> Option<(i32, bool)> {
    let is_new = members.clone().any(|member| !member.has_rest && member.is_coming);
    let is_late = |member: &Turn| time >= member.next + COMING;
    let yields = |member: &Turn| member.has_rest && !is_late(member);
    let due = members.filter(|member| member.next <= time && !(is_new && yields(member)));
    due.min_by_key(|member| (yields(member), !member.is_coming && !is_late(member), member.next))
        .map(|member| (member.pid, member.has_rest))
}

/// Returns the time until a member is tried again after this number of failures in a row.
pub fn rest_after(failures: u32) -> Duration {
    (GROWING * 2u32.saturating_pow(failures.min(10))).min(REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_have_the_rest_come_last_but_do_not_wait_for_ever() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let turn = |pid, seconds, has_rest| Turn { pid, next: at(seconds), has_rest, is_coming: false };
        let next = |members: &[Turn], seconds| next_in_turn(members.iter().copied(), at(seconds));
        let (rest, own) = (turn(1, 10, true), turn(2, 11, false));
        assert_eq!(next(&[rest, own], 9), None);
        assert_eq!(next(&[rest, own], 10), Some((1, true)));
        assert_eq!(next(&[rest, own], 12), Some((2, false)));
        // A new member that is not due itself keeps them waiting, others only when they are due.
        let new = Turn { is_coming: true, ..turn(3, 20, false) };
        assert_eq!(next(&[rest, new], 12), None);
        assert_eq!(next(&[rest, turn(3, 20, false)], 12), Some((1, true)));
        // Of members that have the rest, the new one comes first.
        assert_eq!(next(&[rest, Turn { is_coming: true, ..turn(4, 12, true) }], 12), Some((4, true)));
        // New members that never end, or others that are always due, keep them waiting for 5 s.
        assert_eq!(next(&[rest, new], 15), Some((1, true)));
        assert_eq!(next(&[rest, own], 15), Some((1, true)));
        assert_eq!(next(&[rest, Turn { next: at(15), ..new }], 15), Some((1, true)));
        assert_eq!(next(&[own, Turn { next: at(15), ..new }], 15), Some((3, false)));
        assert_eq!(next(&[own, Turn { next: at(16), ..new }], 16), Some((2, false)));
    }

    #[test]
    fn a_member_that_cannot_be_moved_is_tried_less_and_less_often() {
        assert!(rest_after(0) == GROWING && rest_after(3) == 8 * GROWING && rest_after(1000) == REST_MAX);
    }
}
