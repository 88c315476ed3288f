//! Why lines were missing: who evicted whom, and what would have helped.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

/// Misses of one task at one cache, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Causes {
    /// The line was never there.
    pub cold: u64,
    /// The task's own lines displaced it, and would have in a fully associative LRU cache of the same size as well.
    pub capacity: u64,
    /// The task's own lines displaced it, only because of the sets they fell into.
    pub conflict: u64,
    /// Another task displaced it. [Sebek2002, §1]
    pub extrinsic: u64,
}

/// What happened at one cache, by task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interference {
    /// Misses by task.
    pub misses: Vec<Causes>,
    /// Row: the task whose access evicted; column: the task whose line went.
    pub evictions: Vec<Vec<u64>>,
}

impl Interference {
    /// Evictions of one task's lines by another, over all pairs.
    pub fn between_tasks(&self) -> u64 {
        let off_diagonal = |(by, row): (usize, &Vec<u64>)| -> u64 {
            row.iter().enumerate().filter(|(of, _)| *of != by).map(|(_, count)| count).sum()
        };
        self.evictions.iter().enumerate().map(off_diagonal).sum()
    }
}

/// Watches one cache.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub seen: Interference,
    /// The task that displaced each line that was there once and is not now.
    displaced_by: HashMap<u64, u16>,
    shadow: FullyAssociative,
}

impl Watch {
    pub fn new(lines: usize) -> Watch {
        let shadow = FullyAssociative { capacity: lines, now: 0, stamps: HashMap::new(), lines: BTreeMap::new() };
        Watch { seen: Interference::default(), displaced_by: HashMap::new(), shadow }
    }

    pub fn access(&mut self, task: u16, line: u64, hit: bool) {
        let hit_in_shadow = self.shadow.access(line);
        if hit {
            return;
        }
        let misses = &mut self.seen.misses;
        misses.resize(misses.len().max(usize::from(task) + 1), Causes::default());
        let causes = &mut misses[usize::from(task)];
        match self.displaced_by.remove(&line) {
            None => causes.cold += 1,
            Some(by) if by != task => causes.extrinsic += 1,
            Some(_) if hit_in_shadow => causes.conflict += 1,
            Some(_) => causes.capacity += 1,
        }
    }

    pub fn eviction(&mut self, by: u16, of: u16, line: u64) {
        self.displaced_by.insert(line, by);
        let tasks = usize::from(by.max(of)) + 1;
        let evictions = &mut self.seen.evictions;
        let tasks = tasks.max(evictions.len());
        evictions.resize(tasks, Vec::new());
        evictions.iter_mut().for_each(|row| row.resize(tasks, 0));
        evictions[usize::from(by)][usize::from(of)] += 1;
    }
}

/// A cache without sets, to tell conflicts from lack of room.
#[derive(Clone, Debug)]
struct FullyAssociative {
    capacity: usize,
    now: u64,
    stamps: HashMap<u64, u64>,
    lines: BTreeMap<u64, u64>,
}

impl FullyAssociative {
    fn access(&mut self, line: u64) -> bool {
        self.now += 1;
        let before = self.stamps.insert(line, self.now);
        if let Some(before) = before {
            self.lines.remove(&before);
        }
        self.lines.insert(self.now, line);
        if self.lines.len() > self.capacity
            && let Some((_, oldest)) = self.lines.pop_first()
        {
            self.stamps.remove(&oldest);
        }
        before.is_some()
    }
}
