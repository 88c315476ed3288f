//! Giving pages their frames, while the process stands still.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use isochrome_model::units::{Bytes, FrameNumber};

use super::hold::Hold;
use super::pool::Pool;
use super::process::{Protection, Region};
use super::room::{HEADER, Room};
use super::{Limits, Look, Placed, PlacedPage, RecolorError, RegionReport, Wanted, look, zero_frame};
use crate::sys::agent::{self, DONE, Entry, NEIGHBOR, RUN, Table, Way};
use crate::sys::memory::page_bytes;
use crate::sys::userfault;

/// `MADV_DONTNEED_LOCKED`. [Linux, include/uapi/asm-generic/mman-common.h]
pub const DROP_LOCKED: u64 = 24;

/// How a userfaultfd is opened inside the process.
pub const USERFAULT_FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;

/// A recoloring under way.
pub struct Work<'a> {
    pub hold: &'a mut Hold,
    wanted: &'a Wanted<'a>,
    limits: Limits,
    regions: Vec<Region>,
    pub reports: Vec<RegionReport>,
    pub look: Look,
    room: &'a Room<'a>,
    pub placed: Placed,
}

impl<'a> Work<'a> {
    /// Looks at the pages of the process, now that it stands still. `regions`: its mappings a while ago.
    pub fn new(
        hold: &'a mut Hold,
        wanted: &'a Wanted,
        limits: &Limits,
        regions: Vec<Region>,
        room: &'a Room<'a>,
    ) -> Result<Work<'a>, RecolorError> {
        let (pid, cave) = (hold.pid(), hold.cave_page());
        let regions = pid.regions_now(regions, room.area())?;
        // Only now can no other process begin to share the memory.
        pid.check_alone()?;
        let mut look = look(&regions, &pid.page_map()?, wanted, zero_frame(), &|page| page == cave)?;
        let mut reports = std::mem::take(&mut look.reports);
        // Those that the table has no room for.
        for stray in look.strays.drain(room.entries().min(look.strays.len())..) {
            leave(&mut reports, &regions[stray.region], "came while frames were sought");
        }
        Ok(Work { hold, wanted, limits: *limits, regions, reports, look, room, placed: Placed::new() })
    }

    /// Gives every stray page its frame.
    pub fn carry_out(&mut self, pool: &mut Pool) -> Result<(), RecolorError> {
        if self.look.strays.is_empty() {
            return Ok(());
        }
        self.fill(pool)?;
        let slots = pool.choose(&mut self.look);
        let userfault = self.open_userfault()?;
        let table = self.table(slots, userfault)?;
        self.open_protections(&table)?;
        // Else the kernel would join the pages to huge ones again, which have all colors.
        self.hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0])?.ok();
        let given = self.frames_of(pool)?;
        let mut done = self.run(&table, userfault)?;
        // The kernel calls a page of a former huge page busy when the first page of that one is shared since a fork, whatever
        // the page itself is (Linux 6.18, move_pages_pte). A page that is pinned would be busy, too, but who pins is refused.
        let busy: Vec<usize> = (0..done.len()).filter(|at| done[*at].status == -i64::from(libc::EBUSY)).collect();
        if !busy.is_empty() && !self.limits.force {
            let replaced = |at: &usize| Entry { way: Way::Replace as u32, run: 1, status: 0, ..table[*at] };
            let again = self.run(&busy.iter().map(replaced).collect::<Vec<_>>(), None)?;
            busy.iter().zip(again).for_each(|(at, entry)| done[*at] = entry);
        }
        self.account(&done);
        if self.wanted.reference().is_some() {
            let color_of: BTreeMap<u64, usize> = pool.slots.iter().copied().collect();
            let moved: BTreeMap<u64, (usize, Option<FrameNumber>)> = done
                .iter()
                .filter(|entry| entry.status == DONE)
                .map(|done| (done.page, (color_of[&done.slot], given.get(&done.slot).copied().flatten())))
                .collect();
            let map = self.hold.pid().page_map()?;
            for region in &self.regions {
                if moved.range(region.start..region.end).next().is_none() {
                    continue;
                }
                for (page, entry) in map.resident(region.start, region.end)? {
                    // What the kernel has put elsewhere is found astray by the next look.
                    if let Some((color, frame)) = moved.get(&page).filter(|(_, frame)| *frame == entry.frame()) {
                        self.placed.insert(page, PlacedPage { color: self.wanted.colors[*color], frame: *frame });
                    }
                }
            }
        }
        Ok(())
    }

    /// The frames of the pool where colors are told by evictions; none where they are hidden.
    fn frames_of(&self, pool: &Pool) -> Result<BTreeMap<u64, Option<FrameNumber>>, RecolorError> {
        if self.wanted.reference().is_none() {
            return Ok(BTreeMap::new());
        }
        let pages = self.hold.pid().page_map()?.resident(self.room.place.pool, pool.end)?;
        Ok(pages.into_iter().map(|(page, entry)| (page, entry.frame())).collect())
    }

    /// Touches memory until there are enough frames.
    fn fill(&mut self, pool: &mut Pool) -> Result<(), RecolorError> {
        loop {
            let lacking = pool.lacking(&self.look, self.wanted);
            let needed = lacking.bytes(self.wanted);
            if needed == 0 {
                return Ok(());
            }
            let bytes = needed.min(self.room.place.end - pool.end);
            if bytes == 0 {
                let (_, color, wanted) = lacking.scarce;
                return Err(RecolorError::TooFewFrames {
                    color: self.wanted.colors[color].0,
                    wanted,
                    found: pool.slots.iter().filter(|(_, found)| *found == color).count(),
                    limit: Bytes(self.room.place.end - self.room.place.pool),
                });
            }
            let start = pool.end;
            self.populate(start, bytes)?;
            pool.end += bytes;
            if self.wanted.reference().is_some() {
                self.room.make_sight(self.hold)?;
                pool.look(self.wanted, self.room, self.hold.send_off(), start)?;
            } else {
                pool.find(self.hold.pid(), self.wanted, start)?;
            }
        }
    }

    /// Has every page from `start` on touched.
    fn populate(&mut self, start: u64, bytes: u64) -> Result<(), RecolorError> {
        let advice = [start, bytes, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0];
        match self.hold.call(libc::SYS_madvise, advice)? {
            Ok(_) => Ok(()),
            // Linux before 5.14 does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (start..start + bytes).step_by(page_bytes()).try_for_each(|page| self.hold.write(&[1], page))
            }
            Err(source) => {
                Err(RecolorError::Refused { pid: self.hold.pid().0, action: "have that much memory", source })
            }
        }
    }

    /// A userfaultfd of the process that can move pages; `None` where there is none to be had.
    ///
    /// `.1`: whether the kernel itself, when it comes upon a page under way, would get an error instead of waiting.
    fn open_userfault(&mut self) -> Result<Option<(u64, bool)>, RecolorError> {
        // For a test of what kernels without UFFDIO_MOVE do.
        if std::env::var_os("ISOCHROME_WITHOUT_MOVE").is_some() {
            return Ok(None);
        }
        for (mode, for_user_mode) in [(0, false), (userfault::USER_MODE_ONLY as u64, true)] {
            let flags = USERFAULT_FLAGS | mode;
            let Ok(descriptor) = self.hold.call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0])? else { continue };
            let request = [userfault::API, 0, 0];
            let features = self.ioctl(descriptor, u64::from(userfault::UFFDIO_API), request)?.map(|answer| answer[1]);
            let scratch = (self.room.place.scratch, self.room.place.pool);
            if features.is_ok_and(|features| features & userfault::FEATURE_MOVE != 0)
                && self.register(descriptor, scratch)?
            {
                return Ok(Some((descriptor, for_user_mode)));
            }
            self.hold.must("close a userfaultfd", libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
        }
        Ok(None)
    }

    /// An ioctl whose argument is a structure of words, and what became of the structure.
    fn ioctl<const N: usize>(
        &mut self,
        descriptor: u64,
        request: u64,
        words: [u64; N],
    ) -> Result<io::Result<[u64; N]>, RecolorError> {
        let address = self.room.place.table;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.hold.write(&bytes, address)?;
        let outcome = self.hold.call(libc::SYS_ioctl, [descriptor, request, address, 0, 0, 0])?;
        let mut bytes = vec![0; N * 8];
        self.hold.read(&mut bytes, address)?;
        let mut answer = [0; N];
        for (word, bytes) in answer.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
        }
        Ok(outcome.map(|_| answer))
    }

    /// How each page gets its frame. Mappings whose pages are to be moved are registered with the userfaultfd.
    fn table(&mut self, slots: Vec<u64>, userfault: Option<(u64, bool)>) -> Result<Vec<Entry>, RecolorError> {
        let restartable = self.hold.restartable_pages();
        let mut movable: BTreeMap<usize, bool> = BTreeMap::new();
        let mut table: Vec<Entry> = Vec::with_capacity(slots.len());
        let strays = std::mem::take(&mut self.look.strays);
        for (stray, slot) in strays.iter().zip(slots) {
            let region = &self.regions[stray.region];
            let anonymous = !region.of_file && !region.locked;
            let plain = region.protection == Protection { read: true, write: true, execute: false };
            let way = match userfault {
                _ if stray.entry.of_file() => Way::Copy,
                Some((descriptor, for_user_mode)) if anonymous && plain => {
                    let range = (region.start, region.end);
                    // The kernel would end a thread whose area it cannot write to; and whatever is registered cannot be replaced.
                    let written = || restartable.iter().any(|page| (range.0..range.1).contains(page));
                    let registered = match movable.get(&stray.region) {
                        Some(registered) => *registered,
                        None if for_user_mode && written() => false,
                        None => self.register(descriptor, range)?,
                    };
                    movable.insert(stray.region, registered);
                    if registered { Way::Move } else { Way::Replace }
                }
                _ => Way::Replace,
            };
            table.push(Entry { page: stray.page, slot, way: way as u32, run: 1, status: 0 });
        }
        self.look.strays = strays;
        let regions: Vec<usize> = self.look.strays.iter().map(|stray| stray.region).collect();
        join_runs(&mut table, &regions);
        Ok(table)
    }

    /// Registers a mapping, so that whoever touches a page that is under way waits. `false`: the kernel refuses.
    fn register(&mut self, descriptor: u64, (start, end): (u64, u64)) -> Result<bool, RecolorError> {
        let request = [start, end - start, userfault::REGISTER_MODE_MISSING, 0];
        Ok(self.ioctl(descriptor, userfault::UFFDIO_REGISTER, request)?.is_ok())
    }

    /// Makes mappings writable in which the helper has to write.
    fn open_protections(&mut self, table: &[Entry]) -> Result<(), RecolorError> {
        let touched: BTreeSet<usize> = self
            .look
            .strays
            .iter()
            .zip(table)
            .filter(|(_, entry)| entry.way != Way::Move as u32)
            .map(|(stray, _)| stray.region)
            .collect();
        let closed: Vec<Region> = touched
            .into_iter()
            .map(|number| &self.regions[number])
            .filter(|region| !(region.protection.read && region.protection.write))
            .cloned()
            .collect();
        let protections =
            closed.iter().map(|region| (region.start, region.end - region.start, region.protection.bits()));
        self.hold.journal.protections.extend(protections);
        // Once for all, as protecting what is protected does no harm.
        self.hold.journal.write()?;
        for region in closed {
            let (start, bytes) = (region.start, region.end - region.start);
            let open = Protection { read: true, write: true, ..region.protection }.bits();
            self.hold.must("make memory writable", libc::SYS_mprotect, [start, bytes, open, 0, 0, 0])?;
        }
        Ok(())
    }

    /// Has a helper work off the table; the table as it is afterwards. One only: each move would interrupt another one on another CPU,
    /// which takes longer than the move.
    fn run(&mut self, table: &[Entry], userfault: Option<(u64, bool)>) -> Result<Vec<Entry>, RecolorError> {
        let place = self.room.place;
        let header = Table {
            userfault: userfault.map_or(-1, |(descriptor, _)| descriptor as i64),
            count: table.len() as u64,
            advice: self.dropping_advice()?,
            ..self.room.header()
        };
        let mut bytes = agent::bytes_of(&header).to_vec();
        table.iter().for_each(|entry| bytes.extend_from_slice(agent::bytes_of(entry)));
        self.hold.write(&bytes, place.table)?;
        // Pages that are worked with must not be missing when they are needed most.
        self.populate(place.saved, page_bytes() as u64)?;
        self.hold.make_helper(place.code, place.table, place.stack, false)?;
        self.hold.work()?;
        self.hold.read(&mut bytes, place.table)?;
        Ok(bytes[HEADER as usize..].chunks_exact(size_of::<Entry>()).map(agent::record_from).collect())
    }

    /// The advice that drops pages, locked ones too where the kernel can (Linux 5.18).
    fn dropping_advice(&mut self) -> Result<u64, RecolorError> {
        let trial = [self.room.place.scratch, page_bytes() as u64, DROP_LOCKED, 0, 0, 0];
        Ok(match self.hold.call(libc::SYS_madvise, trial)? {
            Ok(_) => DROP_LOCKED,
            Err(_) => libc::MADV_DONTNEED as u64,
        })
    }

    /// Corrects the reports by what really became of the pages.
    fn account(&mut self, done: &[Entry]) {
        for (stray, entry) in self.look.strays.iter().zip(done).filter(|(_, entry)| entry.status != DONE) {
            let why = io::Error::from_raw_os_error(-entry.status as i32).to_string();
            leave(&mut self.reports, &self.regions[stray.region], &why);
        }
    }
}

/// Counts a page that was to move as left, and says why.
fn leave(reports: &mut [RegionReport], region: &Region, why: &str) {
    let Some(report) = reports.iter_mut().find(|report| report.start == region.start) else { return };
    report.moved -= 1;
    report.left += 1;
    report.why = Some(why.to_owned());
}

/// Makes runs of what is to be moved, and tells neighbors of one mapping. `regions`: the mapping of each entry.
fn join_runs(table: &mut [Entry], regions: &[usize]) {
    let page = page_bytes() as u64;
    let mut head = 0;
    for at in 1..table.len() {
        let before = table[at - 1];
        let entry = &mut table[at];
        if entry.way != Way::Move as u32 || before.way != entry.way || at - head >= RUN {
            head = at;
            continue;
        }
        if before.page + page == entry.page && regions[at - 1] == regions[at] {
            entry.run = NEIGHBOR;
        }
        table[head].run += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_moved_in_runs_and_neighbors_of_one_mapping_together() {
        let page = page_bytes() as u64;
        let entry = |number: u64, way: Way| Entry { page: number * page, slot: 0, way: way as u32, run: 1, status: 0 };
        let mut table: Vec<Entry> = (0..RUN as u64 + 2).map(|number| entry(number, Way::Move)).collect();
        table.extend([entry(100, Way::Copy), entry(101, Way::Copy), entry(200, Way::Move)]);
        table.extend([entry(300, Way::Move), entry(301, Way::Move), entry(302, Way::Move)]);
        let mut regions = vec![0; table.len()];
        regions[RUN + 7..].fill(1);
        join_runs(&mut table, &regions);
        let found: Vec<u32> = table.iter().map(|entry| entry.run).collect();
        let mut expected = vec![NEIGHBOR; RUN];
        expected[0] = RUN as u32;
        // Two are left over, two are copied, then four: 300 does not follow 200, and 302 lies in another mapping.
        expected.extend([2, NEIGHBOR, 1, 1, 4, 1, NEIGHBOR, 1]);
        assert_eq!(found, expected);
    }
}
