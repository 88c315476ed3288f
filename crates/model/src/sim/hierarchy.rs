//! A hierarchy of caches above memory.

mod transfers;
mod write_buffer;

use std::collections::VecDeque;

use super::cache::{Cache, Slot};
use super::causes::{Interference, Watch, at_least};
use super::counts::{Counts, LevelCounts, MemoryCounts};
use super::{ConfigError, Inclusion, Level, Semantics, WayMask};
use crate::units::{Bytes, CpuId};
use write_buffer::WriteBuffer;

/// Index of a cache in a hierarchy, in the order in which the caches were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub usize);

/// Cycles that a read or a write of a cache takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Cycles of a read.
    pub read_cycles: u64,
    /// Cycles of a write.
    pub write_cycles: u64,
}

/// Caches in a tree above memory.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    caches: Vec<Node>,
    memory: MemoryCounts,
    semantics: Semantics,
    /// The caches at which each CPU enters: for data and for instructions.
    entries: Vec<[CacheId; 2]>,
    /// Ways that a task may fill in a cache, by `[task][cache]`; all ways where the table has no entry.
    way_masks: Vec<Vec<WayMask>>,
    memory_costs: Costs,
    write_buffer: WriteBuffer,
    /// Time in cycles of the CPU that makes the current access.
    clock: u64,
    /// Time in cycles at which the counts were last reset.
    began: u64,
}

#[derive(Clone, Debug)]
struct Node {
    cache: Cache,
    counts: Counts,
    below: Option<CacheId>,
    above: Vec<CacheId>,
    watch: Option<Box<Watch>>,
    costs: Costs,
}

impl Hierarchy {
    /// Creates a chain of unified levels for one CPU, given innermost first.
    pub fn chain(levels: Vec<Level>, semantics: Semantics) -> Result<Hierarchy, ConfigError> {
        let mut hierarchy = Hierarchy::new(semantics);
        let mut below = None;
        for level in levels.into_iter().rev() {
            below = Some(hierarchy.add(level, below)?);
        }
        let entry = below.ok_or_else(|| ConfigError::Hierarchy { what: "a machine without a cache".to_owned() })?;
        hierarchy.enter(entry, entry);
        Ok(hierarchy)
    }

    /// Creates a hierarchy without caches.
    pub fn new(semantics: Semantics) -> Hierarchy {
        Hierarchy {
            caches: Vec::new(),
            memory: MemoryCounts::default(),
            semantics,
            entries: Vec::new(),
            way_masks: Vec::new(),
            memory_costs: Costs::default(),
            write_buffer: WriteBuffer::default(),
            clock: 0,
            began: 0,
        }
    }

    /// Adds a cache above `below`, or above memory.
    pub fn add(&mut self, level: Level, below: Option<CacheId>) -> Result<CacheId, ConfigError> {
        level.check()?;
        let id = CacheId(self.caches.len());
        if let Some(CacheId(below)) = below {
            let under = &mut self.caches[below];
            let (line, under_line) = (level.geometry.line_bytes, under.cache.level.geometry.line_bytes);
            if under.cache.level.inclusion == Inclusion::Exclusive && line != under_line {
                let what = format!(
                    "{} holds whole lines of {}: lines of {under_line} and {line} do not fit",
                    under.cache.level.name, level.name
                );
                return Err(ConfigError::Hierarchy { what });
            }
            under.above.push(id);
        }
        self.caches.push(Node {
            cache: Cache::new(level),
            counts: Counts::default(),
            below,
            above: Vec::new(),
            watch: None,
            costs: Costs::default(),
        });
        Ok(id)
    }

    /// Adds a CPU whose data accesses enter at `data` and whose instruction fetches enter at `instructions`, and returns
    /// its number.
    pub fn enter(&mut self, data: CacheId, instructions: CacheId) -> CpuId {
        self.entries.push([data, instructions]);
        CpuId(self.entries.len() as u32 - 1)
    }

    /// Limits the ways that `task` may fill in a cache. Lines that are already there stay, and hits are not limited.
    pub fn limit_ways(&mut self, task: u16, CacheId(cache): CacheId, mask: WayMask) -> Result<(), ConfigError> {
        let level = &self.caches[cache].cache.level;
        let ways = level.geometry.ways;
        let wrong = |what: String| Err(ConfigError::Level { name: level.name.clone(), what });
        if ways > 64 {
            return wrong(format!("{ways} ways cannot be masked"));
        }
        if mask.0 & (u64::MAX >> (64 - ways)) == 0 {
            return wrong(format!("mask {:#x} allows none of the {ways} ways", mask.0));
        }
        let task = usize::from(task);
        if self.way_masks.len() <= task {
            self.way_masks.resize(task + 1, Vec::new());
        }
        let masks = &mut self.way_masks[task];
        if masks.len() <= cache {
            masks.resize(cache + 1, WayMask::ALL);
        }
        masks[cache] = mask;
        Ok(())
    }

    /// Sets how many cycles reads and writes of a cache take.
    pub fn set_costs(&mut self, CacheId(cache): CacheId, costs: Costs) {
        self.caches[cache].costs = costs;
    }

    /// Sets how many cycles transfers from and to memory take. A write buffer of `write_buffer_entries` takes writes to
    /// memory until it is full, and empties itself one write after the other; reads overtake it. All CPUs share the buffer.
    pub fn set_memory_costs(&mut self, costs: Costs, write_buffer_entries: u32) {
        self.memory_costs = costs;
        self.write_buffer = WriteBuffer { entries: write_buffer_entries as usize, done_at: VecDeque::new() };
    }

    /// Returns the cycles of all accesses since the counts were reset. Nothing overlaps except writes in the write buffer.
    pub fn cycles(&self) -> u64 {
        self.clock - self.began
    }

    /// Returns the time in cycles at which the last access ended.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Sets the time in cycles at which the next access begins: each of several CPUs has its own clock.
    pub fn set_clock(&mut self, cycles: u64) {
        self.clock = cycles;
    }

    /// Returns the cache called `name`, or the caches `NAME.0`, `NAME.1`... of several CPUs.
    pub fn caches_named(&self, name: &str) -> Vec<CacheId> {
        let is_it = |found: &str| match found.strip_prefix(name) {
            Some("") => true,
            Some(rest) => rest.strip_prefix('.').is_some_and(|cpu| cpu.parse::<u32>().is_ok()),
            None => false,
        };
        (0..self.caches.len()).map(CacheId).filter(|CacheId(id)| is_it(&self.caches[*id].cache.level.name)).collect()
    }

    /// Returns the level that a cache models.
    pub fn level(&self, CacheId(cache): CacheId) -> &Level {
        &self.caches[cache].cache.level
    }

    /// Returns all caches, innermost first (in the reverse of the order in which they were added).
    pub fn caches(&self) -> impl Iterator<Item = (CacheId, &Level)> {
        self.caches.iter().enumerate().rev().map(|(id, node)| (CacheId(id), &node.cache.level))
    }

    /// Records from now on which task misses at this cache and why, by color of pages of `page_bytes`.
    pub fn watch(&mut self, CacheId(cache): CacheId, page_bytes: Bytes) {
        let node = &mut self.caches[cache];
        node.watch = Some(Box::new(Watch::new(&node.cache.level, page_bytes)));
    }

    /// Returns the interference at a watched cache, such as which task evicted whose lines; `None` if the cache is not
    /// watched.
    pub fn interference(&self, CacheId(cache): CacheId) -> Option<&Interference> {
        self.caches[cache].watch.as_ref().map(|watch| &watch.seen)
    }

    /// Returns the event counts of every cache, innermost first (in the reverse of the order in which they were added).
    pub fn level_counts(&self) -> Vec<LevelCounts> {
        let named = |node: &Node| LevelCounts { name: node.cache.level.name.clone(), counts: node.counts };
        self.caches.iter().rev().map(named).collect()
    }

    /// Returns the event counts of one cache.
    pub fn counts(&self, CacheId(cache): CacheId) -> Counts {
        self.caches[cache].counts
    }

    /// Returns the transfers from and to memory.
    pub fn memory(&self) -> MemoryCounts {
        self.memory
    }

    /// Resets all counts; the caches keep their contents.
    pub fn reset_counts(&mut self) {
        self.memory = MemoryCounts::default();
        self.began = self.clock;
        self.caches.iter_mut().for_each(|node| node.counts = Counts::default());
    }

    /// Returns the line numbers in one set, the next to be replaced first; `None` for policies that keep no order.
    pub fn order(&self, CacheId(cache): CacheId, set: usize) -> Option<Vec<u64>> {
        self.caches[cache].cache.order(set)
    }

    /// Returns the state of the line of `address` in a cache; `None` if the cache does not hold the line.
    pub fn holds(&self, CacheId(cache): CacheId, address: u64) -> Option<Held> {
        let cache = &self.caches[cache].cache;
        let line = address >> cache.line_shift();
        let slot = cache.set(cache.set_of(line)).iter().find(|slot| slot.valid != 0 && slot.line == line)?;
        Some(Held { dirty: slot.dirty != 0, task: slot.owner })
    }

    /// Counts the lines that a cache holds now: row i, column j has those of task i in color j, for pages of `page_bytes`.
    pub fn occupancy(&self, CacheId(cache): CacheId, page_bytes: Bytes) -> Vec<Vec<u64>> {
        let cache = &self.caches[cache].cache;
        let mut lines: Vec<Vec<u64>> = Vec::new();
        for slot in cache.slots().iter().filter(|slot| slot.valid != 0) {
            let color = cache.level.color_of(slot.line << cache.line_shift(), page_bytes);
            let of_task = at_least(&mut lines, usize::from(slot.owner));
            *at_least(of_task, usize::from(color.0)) += 1;
        }
        lines
    }

    /// Fills an empty cache with `lines`, each set's least recently used first, and sets its counts.
    pub(super) fn set_state(&mut self, CacheId(id): CacheId, counts: Counts, lines: &[(u64, bool)]) {
        let Node { cache, counts: of_node, .. } = &mut self.caches[id];
        *of_node = counts;
        for (line, dirty) in lines {
            let set = cache.set_of(*line);
            let way = cache.empty_way(set, WayMask::ALL).expect("no more lines than ways");
            cache.fill(set, way, Slot { line: *line, valid: 1, dirty: u32::from(*dirty), owner: 0 });
        }
    }

    pub(super) fn set_memory(&mut self, memory: MemoryCounts) {
        self.memory = memory;
    }
}

/// State of a line in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whether any sector of the line would have to be written back.
    pub dirty: bool,
    /// The task that caused the line to be installed.
    pub task: u16,
}
