//! Locks that tasks of one core take, under the immediate priority ceiling protocol.
//!
//! A lock's *ceiling* is the highest priority of all tasks that ever take it. While a task holds the lock, it runs at this
//! priority (SCHED_FIFO with `PTHREAD_PRIO_PROTECT`). So a job waits for at most one lower-priority job, and only before it
//! begins. [Sha1990] This requires that locks nest: of two locks that a task holds at once, the lock taken last is released
//! first. Ceilings are priorities of one CPU, so tasks that share a lock run on the same core.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Invalid, TIME_MAX_NS, Task};

/// Maximum number of locks that one task can take.
pub const LOCKS_MAX: usize = 8;

/// A lock that a task takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Name of the lock; tasks that name the same lock exclude each other.
    pub name: String,
    /// Longest time the task executes while it holds the lock, alone and with its partitions warm, in ns.
    pub longest_ns: u64,
}

/// A lock of a task, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hold {
    /// Number of the lock; the same number is the same lock in all tasks of a core.
    pub lock: u32,
    /// Longest time the task executes while it holds the lock, in ns; 0 in an entry without a lock.
    pub longest_ns: u64,
}

/// The locks of a task, at most [`LOCKS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<Hold>", into = "Vec<Hold>")]
#[schemars(with = "Vec<Hold>")]
pub struct Holds([Hold; LOCKS_MAX]);

impl Holds {
    /// Adds a lock that is held for `longest_ns`, at least 1. Panics if there are [`LOCKS_MAX`] locks already.
    pub fn insert(&mut self, lock: u32, longest_ns: u64) {
        let free = self.0.iter_mut().find(|hold| hold.longest_ns == 0);
        *free.unwrap_or_else(|| panic!("a task takes at most {LOCKS_MAX} locks")) = Hold { lock, longest_ns };
    }

    /// Returns the locks, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Hold> + '_ {
        self.0.iter().copied().take_while(|hold| hold.longest_ns > 0)
    }

    /// Whether the task takes no lock.
    pub fn is_empty(&self) -> bool {
        self.0[0].longest_ns == 0
    }
}

impl From<Holds> for Vec<Hold> {
    fn from(holds: Holds) -> Vec<Hold> {
        holds.iter().collect()
    }
}

impl TryFrom<Vec<Hold>> for Holds {
    type Error = String;

    fn try_from(list: Vec<Hold>) -> Result<Holds, String> {
        if list.len() > LOCKS_MAX || list.iter().any(|hold| hold.longest_ns == 0) {
            return Err(format!("a task takes at most {LOCKS_MAX} locks, each for a time above 0"));
        }
        let mut holds = Holds::default();
        list.iter().for_each(|hold| holds.insert(hold.lock, hold.longest_ns));
        Ok(holds)
    }
}

/// Returns the locks of every task, numbered in the order in which the tasks name them.
pub(super) fn numbered(tasks: &[Task]) -> Vec<Holds> {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let holds_of = |task| {
        let mut holds = Holds::default();
        let Task { locks, .. }: &Task = task;
        for Lock { name, longest_ns } in locks {
            let next = numbers.len() as u32;
            holds.insert(*numbers.entry(name).or_insert(next), *longest_ns);
        }
        holds
    };
    tasks.iter().map(holds_of).collect()
}

/// Checks that the locks of task `index` can be analyzed.
pub(super) fn check_locks(index: usize, locks: &[Lock]) -> Result<(), Invalid> {
    if locks.len() > LOCKS_MAX {
        let problem = format!(
            "{} locks are more than the {LOCKS_MAX} a task can take\n  hint: give locks with the same users one name, and the longest of their times",
            locks.len()
        );
        return Err(Invalid::at(format!("tasks[{index}].locks"), problem));
    }
    for (at, Lock { name, longest_ns }) in locks.iter().enumerate() {
        let path = |field: &str| format!("tasks[{index}].locks[{at}].{field}");
        if name.is_empty() {
            return Err(Invalid::at(path("name"), "is empty"));
        }
        if locks[..at].iter().any(|other| other.name == *name) {
            return Err(Invalid::at(path("name"), format!("`{name}` is there already")));
        }
        match longest_ns {
            0 => return Err(Invalid::at(path("longest_ns"), "a time must be positive, this is 0")),
            1..=TIME_MAX_NS => {}
            _ => {
                let problem = format!("{longest_ns} ns exceeds the longest time, {TIME_MAX_NS} ns");
                return Err(Invalid::at(path("longest_ns"), problem));
            }
        }
    }
    Ok(())
}

/// Returns the name of a lock that two tasks share, with their indices, if `apart` is true of these indices; `None` if there is
/// no such lock.
pub(crate) fn shared_lock_where(tasks: &[Task], apart: impl Fn(usize, usize) -> bool) -> Option<(&str, usize, usize)> {
    let mut users: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, task) in tasks.iter().enumerate() {
        for lock in &task.locks {
            let users = users.entry(&lock.name).or_default();
            if let Some(&other) = users.iter().find(|&&other| other != index && apart(other, index)) {
                return Some((&lock.name, other, index));
            }
            users.push(index);
        }
    }
    None
}
