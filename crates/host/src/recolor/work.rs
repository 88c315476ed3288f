//! Giving pages their frames, in as many pauses of the process as it takes, each of which is bounded.
//!
//! What a pause needs to know is read while the process runs. In the pause only that is looked at again which may have changed: the
//! mappings of the pages at hand, and what is behind these pages. What changed is left for a later sweep.
//!
//! A page is *moved* (UFFDIO_MOVE) where that can be done. The kernel's own accesses then wait for the page, and it refuses to
//! move a page that is pinned for a device. Neither is true of the other ways, so a process whose memory the kernel or a device may
//! write to at any time is left alone where pages cannot be moved, and the pages that cannot be moved stay.
//! [Linux, mm/userfaultfd.c, move_present_ptes]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use isochrome_model::units::Bytes;

use super::hold::{self, Hold, Patience, Whom};
use super::process::{Pid, Protection, Region};
use super::scratch_area::{HEADER, ScratchArea};
use super::{Limits, RecolorError, claim};
use crate::color::pagemap::PageEntry;
use crate::interrupt::interrupted;
use crate::machine::sysfs::Sysfs;
use crate::sys::agent::{self, DONE, Entry, NEIGHBOR, RUN, Table, Way};
use crate::sys::clock;
use crate::sys::memory::page_bytes;
use crate::sys::userfault;

/// `MADV_DONTNEED_LOCKED`. [Linux, include/uapi/asm-generic/mman-common.h]
pub const DROP_LOCKED: u64 = 24;

/// How a userfaultfd is opened inside the process.
pub const USERFAULT_FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;

/// Attempts at stopping the process are given up after this time in which each was in vain.
const ATTEMPTS_LIMIT: Duration = Duration::from_secs(3);

/// A page that has to move.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Its mapping, by its index among those of the process.
    pub region: usize,
    /// Its address.
    pub page: u64,
    /// The address of the page of the pool whose frame it is to have.
    pub slot: u64,
}

/// What became of a page that had to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has the frame chosen.
    Moved,
    /// It is not resident any more, or has a frame of the colors wanted already.
    Settled,
    /// It has the frame that it had, for this reason.
    Immovable(Cow<'static, str>),
}

/// Pages to be moved, and what was known of their process while it ran.
pub struct Plan<'a> {
    /// The process.
    pub pid: Pid,
    /// Its mappings.
    pub regions: &'a [Region],
    /// The pages, ascending.
    pub pages: &'a [Planned],
    /// Whether a page still has to move, by its address and what is behind it now.
    pub astray: &'a dyn Fn(u64, PageEntry) -> Result<bool, RecolorError>,
    /// How far to go.
    pub limits: &'a Limits,
}

/// A page of the plan that is about to be moved.
#[derive(Clone, Copy)]
struct Due {
    /// Its index in the plan.
    at: usize,
    /// Whether it is to be moved without a userfaultfd.
    without: bool,
    /// Its mapping: first address, end.
    mapping: (u64, u64),
    /// Whether it is a page of a file, not a private copy.
    of_file: bool,
}

/// How a userfaultfd of the process can be had that moves pages.
#[derive(Clone, Copy)]
struct Mover {
    /// As userfaultfd(2) takes them.
    flags: u64,
    /// Whether the kernel itself, when it comes upon a page under way, would get an error instead of waiting.
    for_user_mode: bool,
}

/// A recoloring under way.
struct Work<'a, 'r> {
    plan: &'a Plan<'a>,
    area: &'a mut ScratchArea<'r>,
    pauses: &'a mut Vec<u64>,
    mover: Option<Mover>,
    /// The advice that drops pages.
    advice: u64,
    /// What shows that the kernel or a device may access the memory at any time, if something does.
    sign: Option<&'static str>,
    /// Pages whose fate is open, and whether they are to be moved without a userfaultfd.
    queue: VecDeque<(usize, bool)>,
    fates: Vec<Fate>,
    costs: Costs,
}

/// What the parts of a pause take, as seen so far, in ns.
struct Costs {
    /// To move a page.
    page: f64,
    /// To look at a mapping, prepare it and put it back.
    region: f64,
    /// From the last page moved until the process goes on.
    end: f64,
}

/// Moves the pages of `plan`; what became of each. `pauses` gathers for how long a thread of the process, or all, stood still, in ns.
///
/// Where it fails, what has been moved stays moved, and the process goes on as it was.
pub fn carry_out(plan: &Plan, area: &mut ScratchArea, pauses: &mut Vec<u64>) -> Result<Vec<Fate>, RecolorError> {
    let pages = plan.pages.len();
    let mut work = Work {
        plan,
        area,
        pauses,
        mover: None,
        advice: libc::MADV_DONTNEED as u64,
        sign: plan.pid.asynchronous_io(plan.regions)?,
        queue: (0..pages).map(|page| (page, false)).collect(),
        fates: vec![Fate::Immovable("was not reached".into()); pages],
        costs: Costs { page: 6e3, region: 15e3, end: 2e6 },
    };
    work.prepare()?;
    let (mut since, mut in_vain) = (Instant::now(), 0);
    while !work.queue.is_empty() {
        if interrupted() {
            return Err(RecolorError::Interrupted { pid: plan.pid.0 });
        }
        claim::give_way(plan.pid, plan.limits)?;
        let stood = match work.pause(in_vain) {
            Ok(stood) => {
                (since, in_vain) = (Instant::now(), in_vain.saturating_sub(1));
                stood
            }
            Err(error) if error.may_pass() && since.elapsed() < ATTEMPTS_LIMIT => {
                in_vain += 1;
                if let RecolorError::NotStopping { stood, .. } = error { stood } else { Duration::ZERO }
            }
            Err(error @ RecolorError::NotStopping { .. }) if work.fates.contains(&Fate::Moved) => {
                let why = error.to_string().lines().next().unwrap_or_default().to_owned();
                for (page, _) in work.queue.drain(..) {
                    work.fates[page] = Fate::Immovable(why.clone().into());
                }
                break;
            }
            Err(error) => return Err(error),
        };
        if !stood.is_zero() {
            work.pauses.push(stood.as_nanos() as u64);
        }
        if !work.queue.is_empty() {
            // The program gets at least as much time as it was stopped for.
            std::thread::sleep(stood.max(Duration::from_millis(1)));
        }
    }
    Ok(work.fates)
}

impl Work<'_, '_> {
    /// Maps the scratch area unless it is mapped already, finds out how pages can be moved, and has huge pages split, while the program runs.
    fn prepare(&mut self) -> Result<(), RecolorError> {
        let plan = self.plan;
        let blocks = self.huge_blocks();
        let mut hold = Hold::one(plan.pid, if self.area.left { self.area.range() } else { (0, 0) })?;
        let was_left = std::mem::take(&mut self.area.left);
        if !was_left {
            self.area.map(&mut hold)?;
        }
        // Else the kernel would join the pages to huge ones again, which have all colors.
        hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0])?.ok();
        let trial = [self.area.layout.scratch, page_bytes() as u64, DROP_LOCKED, 0, 0, 0];
        if hold.call(libc::SYS_madvise, trial)?.is_ok() {
            self.advice = DROP_LOCKED;
        }
        self.mover = self.find_mover(&mut hold)?;
        self.populate_saved(&mut hold)?;
        let allowed = self.check_io();
        if !blocks.is_empty() && allowed.is_ok() {
            self.area.split(&mut hold, &blocks)?;
        }
        let (helpers, stop) = hold.leave()?;
        // From here on dropping the scratch area unmaps it.
        self.area.left = true;
        self.pauses.push(stop.as_nanos() as u64);
        helpers.wait()?;
        allowed
    }

    /// Refuses a process whose memory may be written to at any time, where pages cannot be moved under that.
    fn check_io(&self) -> Result<(), RecolorError> {
        let Some(sign) = self.sign.filter(|_| !self.plan.limits.force) else { return Ok(()) };
        let pid = self.plan.pid;
        let why = match self.mover {
            None => "this kernel cannot move pages under that (UFFDIO_MOVE, Linux 6.8)".to_owned(),
            Some(mover) if mover.for_user_mode => {
                "it may only open userfaultfds that do not have the kernel wait (see vm.unprivileged_userfaultfd)"
                    .to_owned()
            }
            Some(_) => match (pid.pinned_otherwise()?, pid.unpinned_direct_io()?) {
                (Bytes(0), None) => return Ok(()),
                (Bytes(0), Some(kind)) => {
                    format!("the kernel does not tell which pages are in use by direct I/O on a {kind} file system")
                }
                (bytes, _) => format!("of the memory that it has pinned, nobody can tell what holds {bytes}"),
            },
        };
        Err(RecolorError::AsynchronousIo { pid: pid.0, sign, why })
    }

    /// Huge pages of which a part is to be moved, as far as they may be split beforehand: within a pause that takes milliseconds.
    fn huge_blocks(&self) -> Vec<u64> {
        let Some(size) = Sysfs::system().huge_page_bytes().map(|size| size as u64) else { return Vec::new() };
        let in_huge = |planned: &&Planned| {
            let (region, block) = (&self.plan.regions[planned.region], planned.page & !(size - 1));
            region.huge && !region.locked && region.start <= block && block + size <= region.end
        };
        let mut blocks: Vec<u64> = self.plan.pages.iter().filter(in_huge).map(|page| page.page & !(size - 1)).collect();
        blocks.dedup();
        blocks
    }

    /// How a userfaultfd of the process can be had that moves pages, if it can.
    fn find_mover(&self, hold: &mut Hold) -> Result<Option<Mover>, RecolorError> {
        // For a test of what kernels without UFFDIO_MOVE do.
        if std::env::var_os("ISOCHROME_WITHOUT_MOVE").is_some() {
            return Ok(None);
        }
        for (mode, for_user_mode) in [(0, false), (userfault::USER_MODE_ONLY as u64, true)] {
            let mover = Mover { flags: USERFAULT_FLAGS | mode, for_user_mode };
            let Some((descriptor, features)) = self.open(hold, mover)? else { continue };
            let (start, end) = (self.area.layout.scratch, self.area.layout.pool);
            let request = [start, end - start, userfault::REGISTER_MODE_MISSING, 0];
            let moves = features & userfault::FEATURE_MOVE != 0
                && self.ioctl(hold, descriptor, userfault::UFFDIO_REGISTER, request)?.is_ok();
            hold.must("close a userfaultfd", libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
            hold.journal.userfault = None;
            if moves {
                return Ok(Some(mover));
            }
        }
        Ok(None)
    }

    /// Opens a userfaultfd in the process: its number, and what it can do.
    fn open(&self, hold: &mut Hold, mover: Mover) -> Result<Option<(u64, u64)>, RecolorError> {
        let Ok(descriptor) = hold.call(libc::SYS_userfaultfd, [mover.flags, 0, 0, 0, 0, 0])? else { return Ok(None) };
        hold.journal.userfault = Some(descriptor as i32);
        hold.journal.write()?;
        let answer = self.ioctl(hold, descriptor, u64::from(userfault::UFFDIO_API), [userfault::API, 0, 0])?;
        Ok(Some((descriptor, answer.map_or(0, |answer| answer[1]))))
    }

    /// An ioctl whose argument is a structure of words, and what became of the structure.
    fn ioctl<const N: usize>(
        &self,
        hold: &mut Hold,
        descriptor: u64,
        request: u64,
        words: [u64; N],
    ) -> Result<io::Result<[u64; N]>, RecolorError> {
        let address = self.area.layout.table;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        hold.write(&bytes, address)?;
        let outcome = hold.call(libc::SYS_ioctl, [descriptor, request, address, 0, 0, 0])?;
        let mut bytes = vec![0; N * 8];
        hold.read(&mut bytes, address)?;
        let mut answer = [0; N];
        for (word, bytes) in answer.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
        }
        Ok(outcome.map(|_| answer))
    }

    /// Has the page touched that pages are saved in: it must not be missing when it is needed most.
    fn populate_saved(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let (start, bytes) = (self.area.layout.saved, page_bytes() as u64);
        match hold.call(libc::SYS_madvise, [start, bytes, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0])? {
            Ok(_) => Ok(()),
            // Linux before 5.14 does not know the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => hold.write(&[1], start),
            Err(source) => Err(RecolorError::Refused { pid: self.plan.pid.0, action: "have that much memory", source }),
        }
    }

    /// Stops the process, moves what there is time for, and lets it go on; how long it stood still.
    /// `in_vain`: how often that was tried in vain.
    fn pause(&mut self, in_vain: u32) -> Result<Duration, RecolorError> {
        let patience = Patience::of(self.plan.limits.max_pause, in_vain);
        let mut hold = Hold::new(self.plan.pid, Whom::All, self.area.range(), patience)?;
        let (moved_by, outcome) = match self.work(&mut hold) {
            Ok(moved_by) => (moved_by, Ok(())),
            // The scratch area stays for the next attempt.
            Err(error) if error.may_pass() => (Instant::now(), Err(error)),
            Err(error) => {
                // Dropping the hold unmaps it.
                self.area.left = false;
                return Err(error);
            }
        };
        let (_, stood) = hold.leave().inspect_err(|_| self.area.left = false)?;
        // One that was disturbed counts for a few pauses and not as a whole.
        let end = moved_by.elapsed().min(self.plan.limits.max_pause / 2).as_nanos() as f64;
        self.costs.end = (0.7 * self.costs.end).max(end);
        if outcome.is_err() {
            self.pauses.push(stood.as_nanos() as u64);
        }
        outcome.map(|()| stood)
    }

    /// Moves what there is time for; when that was done.
    fn work(&mut self, hold: &mut Hold) -> Result<Instant, RecolorError> {
        let pid = self.plan.pid;
        // Only now can no other process begin to share the memory.
        pid.check_alone()?;
        let careful = !self.plan.limits.force && (self.sign.is_some() || hold.may_have_begun_io);
        let max_pause = self.plan.limits.max_pause;
        let begin = Instant::now();
        let deadline = hold.began + max_pause - Duration::from_nanos(self.costs.end as u64).min(max_pause / 2);
        // Where it took long to stop the threads, it would be for nothing otherwise.
        let deadline = deadline.max(begin + max_pause / 4);
        let batch = self.batch(deadline.saturating_duration_since(begin));
        let due = self.still_due(hold, batch)?;
        if due.is_empty() {
            return Ok(Instant::now());
        }
        let restartable = match self.mover {
            Some(mover) if mover.for_user_mode => hold.restartable_pages(),
            _ => Vec::new(),
        };
        let way_of = |due: &Due| {
            let region = &self.plan.regions[self.plan.pages[due.at].region];
            let plain = region.protection == Protection { read: true, write: true, execute: false };
            // The kernel would end a thread whose area it cannot write to.
            let written = || restartable.iter().any(|page| (due.mapping.0..due.mapping.1).contains(page));
            let movable = plain && !region.of_file && !region.locked && !due.without;
            match self.mover {
                _ if due.of_file => Way::Copy,
                Some(_) if movable && !written() => Way::Move,
                _ => Way::Replace,
            }
        };
        let mut ways: Vec<Way> = due.iter().map(way_of).collect();
        let userfault = match self.mover {
            Some(mover) if ways.contains(&Way::Move) => self.open(hold, mover)?.map(|(descriptor, _)| descriptor),
            _ => None,
        };
        let refused = self.make_ready(hold, userfault, &due, &mut ways)?;
        let (mut table, mut moving) = (Vec::new(), Vec::new());
        for (due, way) in due.into_iter().zip(ways) {
            if let Some(why) = refused.get(&due.mapping) {
                self.fates[due.at] = Fate::Immovable((*why).into());
            } else if careful && way == Way::Replace {
                self.fates[due.at] = Fate::Immovable("asynchronous I/O may be under way".into());
            } else {
                let Planned { page, slot, .. } = self.plan.pages[due.at];
                table.push(Entry { page, slot, way: way as u32, run: 1, status: 0 });
                moving.push(due);
            }
        }
        let mut mappings: Vec<(u64, u64)> = moving.iter().map(|due| due.mapping).collect();
        join_runs(&mut table, &mappings);
        let ready = Instant::now();
        // However long that took, the next pause would have to do it again.
        let deadline = deadline.max(ready + max_pause / 8);
        mappings.dedup();
        if mappings.len() >= 16 {
            let seen = (ready - begin).as_nanos() as f64 / mappings.len() as f64;
            self.costs.region = 0.5 * self.costs.region + 0.5 * seen.min(100e3);
        }
        let (done, moved_by) = match table.is_empty() {
            true => (Vec::new(), Instant::now()),
            // The helper closes the userfaultfd.
            false => self.run(hold, &table, userfault, Some(deadline))?,
        };
        if !table.is_empty() {
            hold.journal.userfault = None;
        }
        if done.len() >= 4 * RUN {
            let seen = (moved_by - ready).as_nanos() as f64 / done.len() as f64;
            self.costs.page = 0.5 * self.costs.page + 0.5 * seen.min(20e3);
        }
        for (Due { at, .. }, entry) in moving.iter().zip(&done) {
            let busy = entry.status == -i64::from(libc::EBUSY);
            self.fates[*at] = match entry.status {
                DONE => Fate::Moved,
                // The kernel calls a page of a former huge page busy when the first page of that one is shared since a fork, whatever
                // the page itself is (Linux 6.18, move_pages_pte). A page that is pinned would be busy, too.
                _ if busy && !careful && self.sign.is_none() => {
                    self.queue.push_back((*at, true));
                    continue;
                }
                _ if busy => Fate::Immovable("is pinned or busy".into()),
                error => Fate::Immovable(io::Error::from_raw_os_error(-error as i32).to_string().into()),
            };
        }
        // What there was no time for comes first in the next pause.
        moving.drain(done.len()..).rev().for_each(|due| self.queue.push_front((due.at, due.without)));
        self.put_back_protections(hold)?;
        Ok(moved_by)
    }

    /// Takes from the queue what can be moved in so much time, and in the same way: whoever drops a page and touches it again would wait for
    /// good where its mapping is registered for another page of it.
    fn batch(&mut self, time: Duration) -> Vec<(usize, bool)> {
        let mut left = 1.2 * time.as_nanos() as f64;
        let mut batch: Vec<(usize, bool)> = Vec::new();
        let mut region = usize::MAX;
        // The table is also used to register their mappings, and the scratch memory.
        while batch.len() + 1 < self.area.entries() {
            let Some((at, without)) = self.queue.front() else { break };
            if batch.last().is_some_and(|(_, of_the_last)| of_the_last != without) {
                break;
            }
            let planned = &self.plan.pages[*at];
            left -= self.costs.page + if planned.region == region { 0.0 } else { self.costs.region };
            if left < 0.0 && !batch.is_empty() {
                break;
            }
            region = planned.region;
            batch.extend(self.queue.pop_front());
        }
        batch
    }

    /// What of these pages is still to be moved, and can be.
    fn still_due(&mut self, hold: &Hold, mut batch: Vec<(usize, bool)>) -> Result<Vec<Due>, RecolorError> {
        let plan = self.plan;
        let cave = hold.cave_page();
        batch.sort_unstable();
        let pages: Vec<u64> = batch.iter().map(|(at, _)| plan.pages[*at].page).collect();
        let entries = plan.pid.page_map()?.entries(&pages)?;
        let mut due: Vec<Due> = Vec::with_capacity(batch.len());
        for ((at, without), entry) in batch.into_iter().zip(entries) {
            let planned = &plan.pages[at];
            if !entry.is_resident() || !(plan.astray)(planned.page, entry)? {
                self.fates[at] = Fate::Settled;
                continue;
            }
            if planned.page == cave {
                self.fates[at] = Fate::Immovable("holds what isochrome works with".into());
                continue;
            }
            let of_the_last =
                due.last().filter(|last| plan.pages[last.at].region == planned.region && planned.page < last.mapping.1);
            let mapping = match of_the_last {
                Some(last) => Some(last.mapping),
                None => hold.mappings.around(planned.page, &plan.regions[planned.region])?,
            };
            match mapping {
                // Nothing of a file is in a mapping without one.
                Some(_) if entry.of_file() && !plan.regions[planned.region].of_file => {
                    self.fates[at] = Fate::Immovable("is of another kind than its mapping".into());
                }
                Some(mapping) => due.push(Due { at, without, mapping, of_file: entry.of_file() }),
                None => self.fates[at] = Fate::Immovable("its mapping has changed".into()),
            }
        }
        Ok(due)
    }

    /// Registers the mappings whose pages are to be moved, so that whoever touches a page that is under way waits, and makes those parts of
    /// mappings writable in which the helper has to write. `ways`: corrected where a mapping cannot be registered. Mappings whose pages must stay, with the reason.
    fn make_ready(
        &self,
        hold: &mut Hold,
        userfault: Option<u64>,
        due: &[Due],
        ways: &mut [Way],
    ) -> Result<BTreeMap<(u64, u64), &'static str>, RecolorError> {
        let mut refused = BTreeMap::new();
        let entry = |(start, end): (u64, u64), way: Way, run: u64| Entry {
            page: start,
            slot: end - start,
            way: way as u32,
            run: run as u32,
            status: 0,
        };
        if let Some(descriptor) = userfault {
            // The scratch memory, then the mappings.
            let mut mappings = vec![(self.area.layout.scratch, self.area.layout.pool)];
            mappings.extend(due.iter().zip(&*ways).filter(|(_, way)| **way == Way::Move).map(|(due, _)| due.mapping));
            mappings.dedup();
            let table: Vec<Entry> = mappings.iter().map(|mapping| entry(*mapping, Way::Register, descriptor)).collect();
            let mut cannot = BTreeSet::new();
            for (mapping, entry) in mappings.iter().zip(self.run(hold, &table, None, None)?.0) {
                if entry.status == -i64::from(libc::EBUSY) {
                    refused.insert(*mapping, "is served by the program's own userfaultfd");
                } else if entry.status != 0 {
                    cannot.insert(*mapping);
                }
            }
            let nowhere = cannot.contains(&mappings[0]);
            for (due, way) in due.iter().zip(ways.iter_mut()) {
                if *way == Way::Move && (nowhere || cannot.contains(&due.mapping)) {
                    *way = Way::Replace;
                }
            }
        }
        let protection = |due: &Due| self.plan.regions[self.plan.pages[due.at].region].protection;
        let writing: Vec<Due> =
            due.iter().zip(&*ways).filter(|(_, way)| **way != Way::Move).map(|(due, _)| *due).collect();
        let closed: Vec<_> = writing
            .chunk_by(|due, next| due.mapping == next.mapping)
            .map(|dues| (dues[0].mapping, self.opened(dues), protection(&dues[0])))
            .filter(|(.., protection)| !(protection.read && protection.write))
            .collect();
        if closed.is_empty() {
            return Ok(refused);
        }
        let protections = closed.iter().map(|(_, (start, end), protection)| (*start, end - start, protection.bits()));
        hold.journal.protections.extend(protections);
        // Once for all, as protecting what is protected does no harm.
        hold.journal.write()?;
        let open = |(_, range, protection): &(_, (u64, u64), Protection)| {
            entry(*range, Way::Protect, Protection { read: true, write: true, ..*protection }.bits())
        };
        let table: Vec<Entry> = closed.iter().map(open).collect();
        for ((mapping, ..), entry) in closed.iter().zip(self.run(hold, &table, None, None)?.0) {
            if entry.status != 0 {
                refused.insert(*mapping, "cannot be made writable");
            }
        }
        Ok(refused)
    }

    /// The part of their mapping that is made writable for `dues`, pages of one mapping, ascending: up to the next page of the plan.
    ///
    /// The kernel visits every resident page between these addresses, which would take a whole pause where a program's code is large. It
    /// splits the mapping there, and joins it again once all of it was writable for a moment: the parts of a mapping must not leave gaps.
    /// [Linux, mm/mprotect.c, mprotect_fixup: VM_ACCOUNT stays]
    fn opened(&self, dues: &[Due]) -> (u64, u64) {
        let (first, last) = (dues[0], dues[dues.len() - 1]);
        let (start, end) = first.mapping;
        let planned = |at: usize| self.plan.pages.get(at).map(|planned| planned.page);
        let inside = |page: &u64| (start..end).contains(page);
        let goes_on = first.at.checked_sub(1).and_then(planned).is_some_and(|page| inside(&page));
        let begin = if goes_on { self.plan.pages[first.at].page } else { start };
        (begin, planned(last.at + 1).filter(inside).unwrap_or(end))
    }

    /// Gives mappings the protection that they had.
    fn put_back_protections(&self, hold: &mut Hold) -> Result<(), RecolorError> {
        let entry = |(page, slot, bits): &(u64, u64, u64)| Entry {
            page: *page,
            slot: *slot,
            way: Way::Protect as u32,
            run: *bits as u32,
            status: 0,
        };
        let table: Vec<Entry> = hold.journal.protections.iter().map(entry).collect();
        // Few calls take less time than a helper; and what fails is tried, and reported, where the process is let go.
        if table.len() > 4 && self.run(hold, &table, None, None)?.0.iter().all(|entry| entry.status == 0) {
            hold.journal.protections.clear();
        }
        Ok(())
    }

    /// Has a helper work off the table, up to the deadline; what is finished of it, and when that was. The helper closes the userfaultfd. One only: each move would
    /// interrupt another one on another CPU, which takes longer than the move.
    fn run(
        &self,
        hold: &mut Hold,
        table: &[Entry],
        userfault: Option<u64>,
        deadline: Option<Instant>,
    ) -> Result<(Vec<Entry>, Instant), RecolorError> {
        let layout = self.area.layout;
        let ticks = |deadline: Instant| {
            let left = deadline.saturating_duration_since(Instant::now());
            clock::now().0 + (left.as_secs_f64() * clock::rate_hz() as f64) as u64
        };
        let header = Table {
            userfault: userfault.map_or(-1, |descriptor| descriptor as i64),
            count: table.len() as u64,
            advice: self.advice,
            deadline: deadline.map_or(u64::MAX, ticks),
            ..self.area.header()
        };
        let mut bytes = agent::bytes_of(&header).to_vec();
        table.iter().for_each(|entry| bytes.extend_from_slice(agent::bytes_of(entry)));
        hold.write(&bytes, layout.table)?;
        hold.make_helper(layout.code, layout.table, layout.stack, hold::Pace::Hurried)?;
        hold.work()?;
        hold.read(&mut bytes, layout.table)?;
        let header: Table = agent::record_from(&bytes[..HEADER as usize]);
        let done = bytes[HEADER as usize..].chunks_exact(size_of::<Entry>()).map(agent::record_from);
        let since = clock::now().0.saturating_sub(header.ended) as f64 / clock::rate_hz() as f64;
        let ended = Instant::now().checked_sub(Duration::from_secs_f64(since)).unwrap_or_else(Instant::now);
        Ok((done.take(header.done as usize).collect(), ended))
    }
}

/// Makes runs of what is to be moved, and tells neighbors of one mapping. `mappings`: that of each entry.
fn join_runs(table: &mut [Entry], mappings: &[(u64, u64)]) {
    let page = page_bytes() as u64;
    let mut head = 0;
    for at in 1..table.len() {
        let before = table[at - 1];
        let entry = &mut table[at];
        if entry.way != Way::Move as u32 || before.way != entry.way || at - head >= RUN {
            head = at;
            continue;
        }
        if before.page + page == entry.page && mappings[at - 1] == mappings[at] {
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
        let mut mappings = vec![(0, 1); table.len()];
        mappings[RUN + 7..].fill((1, 2));
        join_runs(&mut table, &mappings);
        let found: Vec<u32> = table.iter().map(|entry| entry.run).collect();
        let mut expected = vec![NEIGHBOR; RUN];
        expected[0] = RUN as u32;
        // Two are left over, two are copied, then four: 300 does not follow 200, and 302 lies in another mapping.
        expected.extend([2, NEIGHBOR, 1, 1, 4, 1, NEIGHBOR, 1]);
        assert_eq!(found, expected);
    }
}
