//! How accesses travel through the caches: which level fetches, which writes back, and which lines are evicted.

use super::{CacheId, Hierarchy, Node};
use crate::sim::cache::{Slot, TaskId};
use crate::sim::causes::Touch;
use crate::sim::{Access, Inclusion, Kind, WayMask, WriteHit, WriteMiss};
use crate::units::CpuId;

/// The task on whose behalf an access is made, and how its stores are treated.
#[derive(Clone, Copy, Debug)]
struct Context {
    task: TaskId,
    /// Whether stores go through to memory, whatever the write policy of the levels.
    write_through: bool,
}

impl Context {
    /// Returns the context in which a displaced line moves down. It makes room on behalf of the task that owns the line, not
    /// of the task that displaced it.
    fn owner(slot: Slot) -> Context {
        Context { task: slot.owner, write_through: false }
    }
}

/// Kind of a write that a level receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    /// A store of the program, or one that the level above wrote through; it covers a part of a line.
    Store,
    /// A write-back of dirty data that leave the level above.
    Back,
    /// A clean line that the level above hands to an exclusive level.
    Clean,
}

impl Hierarchy {
    /// Performs one access of task 0 on CPU 0.
    pub fn access(&mut self, access: Access) {
        self.access_by(CpuId(0), 0, access);
    }

    /// Performs one access of `task` on `cpu`.
    pub fn access_by(&mut self, cpu: CpuId, task: u16, access: Access) {
        self.access_with(cpu, access, Context { task, write_through: false });
    }

    /// Performs one access of `task` on `cpu` to a page that is cached write-through: no level keeps a store to itself.
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

    fn allowed(&self, cache: usize, context: Context) -> WayMask {
        let masks = self.way_masks.get(usize::from(context.task));
        masks.and_then(|masks| masks.get(cache)).copied().unwrap_or(WayMask::ALL)
    }

    /// Reads `bytes` from `address`. Returns whether an exclusive level handed up a dirty line.
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
            // A line that is handed to a victim cache does not count as a miss.
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

    /// Makes room for a line in the set unless a dirty line would have to be evicted. Returns whether there is room now.
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

    /// Installs `sectors` of `line` and marks the sectors in `dirty` as dirty. `fetch`: whether missing sectors are read
    /// from the level below.
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

    /// Returns the way for `line`: the one that holds some of its sectors, else an empty one, else that of a victim, which
    /// is evicted.
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

    /// Evicts a line: first from the levels above if this level is inclusive, then to the level below if the line is dirty
    /// or the level below is exclusive.
    fn evict(&mut self, id: usize, set: usize, way: usize, context: Context) {
        let slot = *self.caches[id].cache.slot(set, way);
        let shift = self.caches[id].cache.line_shift();
        let bytes = 1u64 << shift;
        if self.caches[id].cache.level.inclusion == Inclusion::Inclusive {
            for above in self.caches[id].above.clone() {
                self.invalidate(above, slot.line << shift, bytes, context);
            }
        }
        // Dirty data of the levels above have just been written to this line.
        let below = self.caches[id].below;
        let slot = self.give_up(id, set, way, context);
        if slot.dirty == 0
            && let Some(CacheId(under)) = below
            && self.caches[under].cache.level.inclusion == Inclusion::Exclusive
        {
            self.write(below, slot.line << shift, bytes, Write::Clean, Context::owner(slot));
        }
    }

    /// Empties a way, writes the dirty sectors of its line back, and returns what the way held.
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

    /// Invalidates all lines within `bytes` from `address`, here and in the levels above; dirty ones are written back to the
    /// level below first.
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
