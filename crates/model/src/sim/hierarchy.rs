//! Caches above caches above memory.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cache::{Cache, Slot, TaskId};
use super::causes::{Interference, Touch, Watch, at_least};
use super::{ConfigError, Inclusion, Level, Semantics, WayMask, WriteHit, WriteMiss};
use crate::units::{Bytes, CpuId};

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Loads data.
    Read,
    /// Stores data.
    Write,
    /// Fetches an instruction.
    Fetch,
}

/// One access of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// First byte.
    pub address: u64,
    /// Bytes touched, at least 1.
    pub bytes: u32,
    /// What it does.
    pub kind: Kind,
}

impl Access {
    /// A load of one byte.
    pub fn read(address: u64) -> Access {
        Access { address, bytes: 1, kind: Kind::Read }
    }

    /// A store of one byte.
    pub fn write(address: u64) -> Access {
        Access { address, bytes: 1, kind: Kind::Write }
    }

    /// Last byte, at the end of the address space at most.
    pub(crate) fn last(self) -> u64 {
        self.address.saturating_add(u64::from(self.bytes.max(1)) - 1)
    }

    /// Its parts in each of the pages of `1 << page_shift` bytes that it touches.
    pub fn by_pages(self, page_shift: u32) -> impl Iterator<Item = Access> {
        let last = self.last();
        (self.address >> page_shift..=last >> page_shift).map(move |page| {
            let address = self.address.max(page << page_shift);
            let end = last.min(page << page_shift | ((1 << page_shift) - 1));
            Access { address, bytes: (end - address + 1) as u32, kind: self.kind }
        })
    }
}

/// Events at one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Reads: loads and fetches of the program, and fetches by the level above.
    pub reads: u64,
    /// Writes: stores of the program, write-backs and write-throughs of the level above.
    pub writes: u64,
    /// Reads that found nothing.
    pub read_misses: u64,
    /// Writes that found nothing.
    pub write_misses: u64,
    /// Dirty lines (or sectors) written to the level below because they had to leave.
    pub writebacks: u64,
}

/// Events at one named cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LevelCounts {
    /// Name of the cache.
    pub name: String,
    /// Its events.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Transfers from and to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryCounts {
    /// Lines (or sectors) read.
    pub reads: u64,
    /// Lines, sectors or words written.
    pub writes: u64,
}

/// Number of a cache in a hierarchy, in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub usize);

/// On whose behalf an access is made.
#[derive(Clone, Copy, Debug)]
struct Context {
    task: TaskId,
    /// Stores go through to memory, whatever the levels do otherwise.
    write_through: bool,
}

impl Context {
    /// A line on its way down makes room for itself on behalf of the task whose line it is, not of the one that displaced it.
    fn owner(slot: Slot) -> Context {
        Context { task: slot.owner, write_through: false }
    }
}

/// Cycles that a read or a write of a cache takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// By a read.
    pub read_cycles: u64,
    /// By a write.
    pub write_cycles: u64,
}

/// Writes on their way to memory behind the back of the CPU.
#[derive(Clone, Debug, Default)]
struct WriteBuffer {
    /// Writes that fit; without any, writes are waited for.
    entries: usize,
    /// When each of them will be done, in order.
    done_at: VecDeque<u64>,
}

impl WriteBuffer {
    /// Takes a write that lasts `cycles` at the time `now`; returns the time from which the CPU can go on.
    fn accept(&mut self, now: u64, cycles: u64) -> u64 {
        if self.entries == 0 {
            return now + cycles;
        }
        while self.done_at.front().is_some_and(|done| *done <= now) {
            self.done_at.pop_front();
        }
        let free_at = if self.done_at.len() < self.entries { now } else { self.done_at.pop_front().unwrap_or(now) };
        let begins = self.done_at.back().copied().unwrap_or(free_at).max(free_at);
        self.done_at.push_back(begins + cycles);
        free_at
    }
}

/// A write on its way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    /// A store, or one written through: part of a line.
    Store,
    /// What a dirty line of the level above held.
    Back,
    /// A clean line handed to an exclusive level.
    Clean,
}

/// Caches in a tree above memory.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    caches: Vec<Node>,
    memory: MemoryCounts,
    semantics: Semantics,
    /// Where each CPU enters: for data and for instructions.
    entries: Vec<[CacheId; 2]>,
    /// Ways each task may fill, per cache; everything where the table ends.
    way_masks: Vec<Vec<WayMask>>,
    memory_costs: Costs,
    write_buffer: WriteBuffer,
    /// The time, in cycles, of the CPU whose access is under way.
    clock: u64,
    /// When counting began.
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
    /// Levels in a row for one CPU, innermost first, unified.
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

    /// No caches yet.
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
                    "{} takes in the lines of {} whole: {under_line} and {line} lines do not fit",
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

    /// Adds a CPU whose data accesses enter at `data` and whose instruction fetches enter at `instructions`.
    pub fn enter(&mut self, data: CacheId, instructions: CacheId) -> CpuId {
        self.entries.push([data, instructions]);
        CpuId(self.entries.len() as u32 - 1)
    }

    /// Limits the ways that `task` fills in a cache. Lines already there stay, and hits are not limited.
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

    /// What reads and writes of a cache cost.
    pub fn set_costs(&mut self, CacheId(cache): CacheId, costs: Costs) {
        self.caches[cache].costs = costs;
    }

    /// What transfers from and to memory cost. A write buffer of some entries takes writes to memory until it is full and
    /// empties itself one write after the other; reads overtake it. One buffer serves all CPUs.
    pub fn set_memory_costs(&mut self, costs: Costs, write_buffer_entries: u32) {
        self.memory_costs = costs;
        self.write_buffer = WriteBuffer { entries: write_buffer_entries as usize, done_at: VecDeque::new() };
    }

    /// Cycles of all accesses since the counts were reset; nothing overlaps except writes in the write buffer.
    pub fn cycles(&self) -> u64 {
        self.clock - self.began
    }

    /// The time at which the last access ended.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Says at which time the next access begins: of several CPUs, each has its own.
    pub fn set_clock(&mut self, cycles: u64) {
        self.clock = cycles;
    }

    /// The caches of this name; of several CPUs, their caches `NAME.0`, `NAME.1`...
    pub fn caches_named(&self, name: &str) -> Vec<CacheId> {
        let is_it = |found: &str| match found.strip_prefix(name) {
            Some("") => true,
            Some(rest) => rest.strip_prefix('.').is_some_and(|cpu| cpu.parse::<u32>().is_ok()),
            None => false,
        };
        (0..self.caches.len()).map(CacheId).filter(|CacheId(id)| is_it(&self.caches[*id].cache.level.name)).collect()
    }

    /// What a cache is like.
    pub fn level(&self, CacheId(cache): CacheId) -> &Level {
        &self.caches[cache].cache.level
    }

    /// All caches, innermost first (in the reverse of the order in which they were added).
    pub fn caches(&self) -> impl Iterator<Item = (CacheId, &Level)> {
        self.caches.iter().enumerate().rev().map(|(id, node)| (CacheId(id), &node.cache.level))
    }

    /// From now on, finds out at this cache who misses and why, by the colors of pages of `page_bytes`.
    pub fn watch(&mut self, CacheId(cache): CacheId, page_bytes: Bytes) {
        let node = &mut self.caches[cache];
        node.watch = Some(Box::new(Watch::new(&node.cache.level, page_bytes)));
    }

    /// What was found out at a watched cache.
    pub fn interference(&self, CacheId(cache): CacheId) -> Option<&Interference> {
        self.caches[cache].watch.as_ref().map(|watch| &watch.seen)
    }

    /// One access of task 0 on CPU 0.
    pub fn access(&mut self, access: Access) {
        self.access_by(CpuId(0), 0, access);
    }

    /// One access of `task` on `cpu`.
    pub fn access_by(&mut self, cpu: CpuId, task: u16, access: Access) {
        self.access_with(cpu, access, Context { task, write_through: false });
    }

    /// One access of `task` on `cpu` to a page that is cached write-through: no level keeps a store of it to itself.
    pub fn access_through(&mut self, cpu: CpuId, task: u16, access: Access) {
        self.access_with(cpu, access, Context { task, write_through: true });
    }

    fn access_with(&mut self, cpu: CpuId, access: Access, context: Context) {
        let [data, instructions] = self.entries[cpu.0 as usize];
        let CacheId(entry) = if access.kind == Kind::Fetch { instructions } else { data };
        let shift = self.caches[entry].cache.line_shift();
        let (first, last) = (access.address >> shift, access.last() >> shift);
        for line in first..=last {
            let start = access.address.max(line << shift);
            let bytes = access.last().min(line << shift | ((1 << shift) - 1)) - start + 1;
            if access.kind == Kind::Write {
                self.write(Some(CacheId(entry)), start, bytes, Write::Store, context);
            } else {
                self.read(Some(CacheId(entry)), start, bytes, context);
            }
        }
    }

    /// Events per cache, innermost first (in the reverse of the order in which they were added).
    pub fn level_counts(&self) -> Vec<LevelCounts> {
        let named = |node: &Node| LevelCounts { name: node.cache.level.name.clone(), counts: node.counts };
        self.caches.iter().rev().map(named).collect()
    }

    /// Events at one cache.
    pub fn counts(&self, CacheId(cache): CacheId) -> Counts {
        self.caches[cache].counts
    }

    /// Transfers from and to memory.
    pub fn memory(&self) -> MemoryCounts {
        self.memory
    }

    /// Forgets all counts; the caches keep their contents.
    pub fn reset_counts(&mut self) {
        self.memory = MemoryCounts::default();
        self.began = self.clock;
        self.caches.iter_mut().for_each(|node| node.counts = Counts::default());
    }

    /// Line numbers in one set, the next to be replaced first; `None` for policies that keep no order.
    pub fn order(&self, CacheId(cache): CacheId, set: usize) -> Option<Vec<u64>> {
        self.caches[cache].cache.order(set)
    }

    /// Whether a cache holds the line of `address`, and whether it is dirty there.
    pub fn holds(&self, CacheId(cache): CacheId, address: u64) -> Option<Held> {
        let cache = &self.caches[cache].cache;
        let line = address >> cache.line_shift();
        let slot = cache.set(cache.set_of(line)).iter().find(|slot| slot.valid != 0 && slot.line == line)?;
        Some(Held { dirty: slot.dirty != 0, task: slot.owner })
    }

    /// Lines a cache holds now: those of task i of color j of pages of `page_bytes` in row i, column j.
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

    /// Lays lines into an empty cache, each set's least recently used first.
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

    fn allowed(&self, cache: usize, context: Context) -> WayMask {
        let masks = self.way_masks.get(usize::from(context.task));
        masks.and_then(|masks| masks.get(cache)).copied().unwrap_or(WayMask::ALL)
    }

    /// Reads `bytes` from `address`. Returns whether an exclusive level handed the line up dirty.
    fn read(&mut self, cache: Option<CacheId>, address: u64, bytes: u64, context: Context) -> bool {
        let Some(CacheId(id)) = cache else {
            self.memory.reads += 1;
            self.clock += self.memory_costs.read_cycles;
            return false;
        };
        let shift = self.caches[id].cache.line_shift();
        let last = address + (bytes - 1);
        let mut dirty = false;
        for line in address >> shift..=last >> shift {
            let start = address.max(line << shift);
            let bytes = last.min(line << shift | ((1 << shift) - 1)) - start + 1;
            dirty |= self.read_line(id, line, start, bytes, context);
        }
        dirty
    }

    fn read_line(&mut self, id: usize, line: u64, start: u64, bytes: u64, context: Context) -> bool {
        let Node { cache, counts, below, watch, costs, .. } = &mut self.caches[id];
        self.clock += costs.read_cycles;
        let set = cache.set_of(line);
        let needed = cache.sectors(start, bytes);
        let exclusive = cache.level.inclusion == Inclusion::Exclusive;
        counts.reads += 1;
        let found = cache.find(set, line);
        if let Some(watch) = watch {
            let missing = needed & !found.map_or(0, |way| cache.slot(set, way).valid);
            watch.access(context.task, line, Touch::Read, missing);
        }
        match found {
            Some(way) if cache.slot(set, way).valid & needed == needed => {
                if exclusive {
                    return std::mem::take(cache.slot(set, way)).dirty != 0;
                }
                cache.touch(set, way);
                false
            }
            _ => {
                counts.read_misses += 1;
                if exclusive {
                    let (below, line_bytes) = (*below, cache.level.geometry.line_bytes.0);
                    return self.read(below, line << self.caches[id].cache.line_shift(), line_bytes, context);
                }
                self.install(id, line, needed, 0, true, context);
                false
            }
        }
    }

    /// Writes `bytes` at `address`.
    fn write(&mut self, cache: Option<CacheId>, address: u64, bytes: u64, write: Write, context: Context) {
        let Some(CacheId(id)) = cache else {
            self.memory.writes += 1;
            self.clock = self.write_buffer.accept(self.clock, self.memory_costs.write_cycles);
            return;
        };
        let shift = self.caches[id].cache.line_shift();
        let last = address + (bytes - 1);
        for line in address >> shift..=last >> shift {
            let start = address.max(line << shift);
            let bytes = last.min(line << shift | ((1 << shift) - 1)) - start + 1;
            self.write_line(id, line, start, bytes, write, context);
        }
    }

    fn write_line(&mut self, id: usize, line: u64, start: u64, bytes: u64, write: Write, context: Context) {
        let refresh = self.semantics.writes_refresh;
        let Node { cache, counts, below, watch, costs, .. } = &mut self.caches[id];
        self.clock += costs.write_cycles;
        let below = *below;
        let set = cache.set_of(line);
        let touched = cache.sectors(start, bytes);
        let (write_hit, write_miss) = (cache.level.write_hit, cache.level.write_miss);
        let through = write_hit == WriteHit::Through || context.write_through && write == Write::Store;
        let dirty = if through || write == Write::Clean { 0 } else { touched };
        counts.writes += 1;
        let found = cache.find(set, line);
        if let Some(watch) = watch {
            let missing = touched & !found.map_or(0, |way| cache.slot(set, way).valid);
            // What a victim cache is given it does not miss.
            let exclusive = cache.level.inclusion == Inclusion::Exclusive;
            watch.access(context.task, line, if exclusive { Touch::Given } else { Touch::Write }, missing);
        }
        // A write-back may complete a line with missing sectors; a store needs the rest of its sector.
        let hit = found.filter(|way| cache.slot(set, *way).valid & touched == touched);
        if let Some(way) = hit {
            cache.slot(set, way).dirty |= dirty;
            if refresh {
                cache.touch(set, way);
            }
            if through {
                self.write(below, start, bytes, write, context);
            }
            return;
        }
        counts.write_misses += 1;
        let around = match write_miss {
            WriteMiss::Allocate => false,
            WriteMiss::Around => true,
            WriteMiss::AllocateUnlessDirty => {
                write == Write::Back && found.is_none() && !self.clean_room(id, set, context)
            }
        };
        if !around {
            let cache = &self.caches[id].cache;
            let covered = bytes == u64::from(touched.count_ones()) * cache.sector_bytes();
            let fetch = match write {
                Write::Store => true,
                Write::Back => !covered || self.semantics.write_backs_fetch,
                Write::Clean => false,
            };
            self.install(id, line, touched, dirty, fetch, context);
        }
        if around || through {
            self.write(below, start, bytes, write, context);
        }
    }

    /// Makes room for a line in the set unless a dirty one would have to leave; says whether there is room now.
    fn clean_room(&mut self, id: usize, set: usize, context: Context) -> bool {
        let allowed = self.allowed(id, context);
        let cache = &mut self.caches[id].cache;
        if cache.empty_way(set, allowed).is_some() {
            return true;
        }
        let way = cache.victim(set, allowed);
        let clean = cache.slot(set, way).dirty == 0;
        if clean {
            self.evict(id, set, way, context);
        }
        clean
    }

    /// Brings `sectors` of a line in and marks `dirty` ones.
    fn install(&mut self, id: usize, line: u64, sectors: u32, dirty: u32, fetch: bool, context: Context) {
        let set = self.caches[id].cache.set_of(line);
        let below = self.caches[id].below;
        let room = if self.semantics.write_back_first { Some(self.make_room(id, set, line, context)) } else { None };
        let mut dirty_above = false;
        if fetch {
            let cache = &self.caches[id].cache;
            let (shift, sector_bytes) = (cache.line_shift(), cache.sector_bytes());
            let present = cache.find(set, line).map_or(0, |way| cache.set(set)[way].valid);
            let missing = sectors & !present;
            for sector in (0..32).filter(|sector| missing >> sector & 1 == 1) {
                dirty_above |= self.read(below, (line << shift) + sector * sector_bytes, sector_bytes, context);
            }
        }
        let way = room.unwrap_or_else(|| self.make_room(id, set, line, context));
        let cache = &mut self.caches[id].cache;
        let before = *cache.slot(set, way);
        let handed_dirty = if dirty_above { sectors } else { 0 };
        let slot = Slot {
            line,
            valid: before.valid | sectors,
            dirty: before.dirty | dirty | handed_dirty,
            owner: context.task,
        };
        if before.valid == 0 {
            cache.fill(set, way, slot);
        } else {
            *cache.slot(set, way) = slot;
            cache.touch(set, way);
        }
    }

    /// A way for `line`: where some of its sectors lie already, else an empty one, else the victim's.
    fn make_room(&mut self, id: usize, set: usize, line: u64, context: Context) -> usize {
        let allowed = self.allowed(id, context);
        let cache = &mut self.caches[id].cache;
        if let Some(way) = cache.find(set, line).or_else(|| cache.empty_way(set, allowed)) {
            return way;
        }
        let way = cache.victim(set, allowed);
        self.evict(id, set, way, context);
        way
    }

    /// Lets a line leave: first from the levels above where this level is inclusive, then to the level below if it is dirty.
    fn evict(&mut self, id: usize, set: usize, way: usize, context: Context) {
        let slot = *self.caches[id].cache.slot(set, way);
        let shift = self.caches[id].cache.line_shift();
        let bytes = 1u64 << shift;
        if self.caches[id].cache.level.inclusion == Inclusion::Inclusive {
            for above in self.caches[id].above.clone() {
                self.invalidate(above, slot.line << shift, bytes, context);
            }
        }
        // What was dirty above has just arrived here.
        let below = self.caches[id].below;
        let slot = self.give_up(id, set, way, context);
        if slot.dirty == 0
            && let Some(CacheId(under)) = below
            && self.caches[under].cache.level.inclusion == Inclusion::Exclusive
        {
            self.write(below, slot.line << shift, bytes, Write::Clean, Context::owner(slot));
        }
    }

    /// Empties a way and writes back what is dirty of its line.
    fn give_up(&mut self, id: usize, set: usize, way: usize, context: Context) -> Slot {
        let Node { cache, counts, below, watch, .. } = &mut self.caches[id];
        let below = *below;
        let slot = std::mem::take(cache.slot(set, way));
        if let Some(watch) = watch {
            watch.eviction(context.task, &slot);
        }
        let (shift, sector_bytes) = (cache.line_shift(), cache.sector_bytes());
        counts.writebacks += u64::from(slot.dirty.count_ones());
        for sector in (0..32).filter(|sector| slot.dirty >> sector & 1 == 1) {
            self.write(
                below,
                (slot.line << shift) + sector * sector_bytes,
                sector_bytes,
                Write::Back,
                Context::owner(slot),
            );
        }
        slot
    }

    /// Removes all lines within `bytes` from `address`, here and above; dirty ones are written back to the level below first.
    fn invalidate(&mut self, CacheId(id): CacheId, address: u64, bytes: u64, context: Context) {
        for above in self.caches[id].above.clone() {
            self.invalidate(above, address, bytes, context);
        }
        let shift = self.caches[id].cache.line_shift();
        for line in address >> shift..=(address + (bytes - 1)) >> shift {
            let cache = &self.caches[id].cache;
            let set = cache.set_of(line);
            if let Some(way) = cache.find(set, line) {
                self.give_up(id, set, way, context);
            }
        }
    }
}

/// A line in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whether any of it would have to be written back.
    pub dirty: bool,
    /// The task that had it installed.
    pub task: u16,
}
