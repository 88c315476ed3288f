//! Gives pages their frames, in as many pauses of the process as necessary, each of bounded length.
//!
//! Most data for a pause are read while the process runs. In the pause, only data that may have changed are read again: the mappings of
//! the pages to move, and the frames behind these pages. Pages that changed are left for a later sweep.
//!
//! A page is *moved* (UFFDIO_MOVE) where that is possible. The kernel's own accesses then wait for the page, and the kernel refuses to
//! move a page that is pinned for a device. The other methods have neither property. So a process whose memory the kernel or a device may
//! write to at any time is left alone if its pages cannot be moved, and single pages of such a process that cannot be moved stay.
//! [Linux, mm/userfaultfd.c, move_present_ptes]

mod mappings;
mod table;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use isochrome_model::units::Bytes;

use self::table::join_runs;
use super::claim;
use super::error::RecolorError;
use super::hold::{Hold, Patience, Whom};
use super::scratch_area::ScratchArea;
use super::wanted::Limits;
use crate::color::pagemap::PageEntry;
use crate::interrupt::interrupted;
use crate::machine::sysfs::Sysfs;
use crate::process::{Pid, Region};
use crate::sys::agent::{DONE, Entry, MoveMethod, RUN};
use crate::sys::memory::page_bytes;

/// Time without a successful stop of the process after which no further attempt is made.
const ATTEMPTS_LIMIT: Duration = Duration::from_secs(3);

/// A page that has to move.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Index of the page's mapping among those of the process.
    pub region: usize,
    /// Address of the page.
    pub page: u64,
    /// Address of the page of the pool whose frame this page should get.
    pub slot: u64,
    /// Whether the frame that the page gets is known to be in the zone from which the kernel takes frames first.
    pub in_normal_zone: bool,
    /// Role of the page in an exchange with the other page of the plan that has the same slot.
    pub exchange: Option<Exchange>,
}

/// Part of a page in an exchange: one page gets the frame of a slot, and its old frame comes into the slot, for another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// The page is on color. It is moved only to give its frame.
    Gives,
    /// The page cannot have the frame that was in the slot.
    Takes,
}

impl Planned {
    /// Whether the page is moved only to give its frame.
    pub fn gives(&self) -> bool {
        self.exchange == Some(Exchange::Gives)
    }
}

/// Outcome for a page that had to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The page has the frame chosen for it.
    Moved,
    /// The page is no longer resident, or has a frame of an allowed color already.
    Settled,
    /// The page keeps its old frame, because the time for this part of the pages is over.
    Unreached,
    /// The page keeps its old frame, for this reason.
    Immovable(Cow<'static, str>),
}

/// Pages to be moved, and what was known of their process while it ran.
pub struct Plan<'a> {
    /// The process whose pages are moved.
    pub pid: Pid,
    /// The mappings of the process.
    pub regions: &'a [Region],
    /// The pages to move, in ascending order.
    pub pages: &'a [Planned],
    /// Whether a page still has to move, given its address and its present pagemap entry.
    pub astray: &'a dyn Fn(u64, PageEntry) -> Result<bool, RecolorError>,
    /// Limits of the work.
    pub limits: &'a Limits,
}

/// A page of the plan that is about to be moved.
#[derive(Clone, Copy)]
struct Due {
    /// Index of the page in the plan.
    at: usize,
    /// Whether the page is moved without a userfaultfd.
    without: bool,
    /// Mapping of the page: first address, end.
    mapping: (u64, u64),
    /// Whether the page belongs to a file and is not a private copy.
    of_file: bool,
}

/// A recoloring in progress.
struct Work<'a, 'r> {
    plan: &'a Plan<'a>,
    area: &'a mut ScratchArea<'r>,
    pauses: &'a mut Vec<u64>,
    /// Sign that the kernel or a device may access the memory at any time; `None` if there is no sign.
    sign: Option<&'static str>,
    /// Pages whose fate is open, as indices into the plan, and whether each is to be moved without a userfaultfd.
    queue: VecDeque<(usize, bool)>,
    fates: Vec<Fate>,
    costs: Costs,
}

/// Durations of the parts of a pause in ns, as estimated from the pauses so far.
struct Costs {
    /// Time to move one page.
    page: f64,
    /// Time to check one mapping, prepare it and restore it.
    region: f64,
    /// Time from the last page moved until the process runs again.
    end: f64,
}

/// Moves the pages of `plan`, and returns the fate of each. `pauses` gathers how long one thread of the process or all stood still, in ns.
///
/// Where this fails, pages that were moved stay moved, and the process runs on as before.
pub fn carry_out(plan: &Plan, area: &mut ScratchArea, pauses: &mut Vec<u64>) -> Result<Vec<Fate>, RecolorError> {
    let mut work = Work {
        plan,
        area,
        pauses,
        sign: plan.pid.asynchronous_io(plan.regions)?,
        queue: in_order(plan).into_iter().map(|page| (page, false)).collect(),
        fates: vec![Fate::Unreached; plan.pages.len()],
        costs: Costs { page: 6e3, region: 15e3, end: 2e6 },
    };
    work.check_io()?;
    work.split_huge_pages()?;
    let begin = Instant::now();
    let is_over = || plan.limits.part.is_some_and(|part| begin.elapsed() > part.time);
    let (mut since, mut in_vain) = (begin, 0);
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
        if is_over() && work.fates.contains(&Fate::Moved) {
            break;
        }
        if !work.queue.is_empty() {
            // The program gets at least as much time as it was stopped for.
            std::thread::sleep(stood.max(Duration::from_millis(1)));
        }
    }
    Ok(work.fates)
}

/// Returns the order in which pages are moved, as indices into the plan.
///
/// The kernel refills pages before the old frames of others become free, which may change where it takes frames from. A page that gives its
/// frame comes just before the page that takes it.
fn in_order(plan: &Plan) -> Vec<usize> {
    let givers: HashMap<u64, usize> =
        (0..).zip(plan.pages).filter(|(_, page)| page.gives()).map(|(at, page)| (page.slot, at)).collect();
    let moved: Vec<usize> = (0..plan.pages.len()).filter(|at| !plan.pages[*at].gives()).collect();
    let (refilled, others): (Vec<usize>, Vec<usize>) =
        moved.into_iter().partition(|at| !plan.regions[plan.pages[*at].region].is_plain_memory());
    let with_giver = |at: usize| givers.get(&plan.pages[at].slot).copied().into_iter().chain([at]);
    refilled.into_iter().flat_map(with_giver).chain(others).collect()
}

impl Work<'_, '_> {
    /// Checks that pages can be moved safely; fails with [`RecolorError::AsynchronousIo`] if the kernel or a device may write to them during the
    /// move.
    fn check_io(&self) -> Result<(), RecolorError> {
        let Some(sign) = self.sign.filter(|_| !self.plan.limits.force) else { return Ok(()) };
        let pid = self.plan.pid;
        let why = match self.area.means.mover {
            None => "this kernel cannot move pages under that (UFFDIO_MOVE, Linux 6.8)".to_owned(),
            Some(mover) if mover.for_user_mode => {
                "it may only open userfaultfds that do not have the kernel wait (see vm.unprivileged_userfaultfd)"
                    .to_owned()
            }
            Some(_) => match (pid.pinned_otherwise()?, pid.unpinned_direct_io()?) {
                (Bytes(0), None) => return Ok(()),
                (Bytes(0), Some(kind)) => {
                    format!("the kernel does not report which pages are in use by direct I/O on a {kind} file system")
                }
                (bytes, _) => format!("nobody can tell what holds {bytes} of its pinned memory"),
            },
        };
        Err(RecolorError::AsynchronousIo { pid: pid.0, sign, why })
    }

    /// Lets a helper split the huge pages that hold pages to move, while the program runs.
    fn split_huge_pages(&mut self) -> Result<(), RecolorError> {
        let blocks = self.huge_blocks();
        if blocks.is_empty() {
            return Ok(());
        }
        self.area.beside(self.pauses, |area, hold| area.split(hold, &blocks))
    }

    /// Returns the addresses of the huge pages that hold pages to move and can be split before the pause. A split in the pause would take
    /// milliseconds.
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

    /// Stops the process, moves the pages there is time for, and lets the process run again. Returns how long the process stood still.
    ///
    /// `in_vain`: how many attempts have failed so far.
    fn pause(&mut self, in_vain: u32) -> Result<Duration, RecolorError> {
        let patience = Patience::of(self.plan.limits.max_pause, in_vain);
        let mut hold = Hold::new(self.plan.pid, Whom::All, self.area.range(), patience)?;
        let (moved_by, outcome) = match self.work(&mut hold) {
            Ok(moved_by) => (moved_by, Ok(())),
            // The scratch area stays for the next attempt.
            Err(error) if error.may_pass() => (Instant::now(), Err(error)),
            Err(error) => {
                // Dropping the hold unmaps the scratch area.
                self.area.left = false;
                return Err(error);
            }
        };
        if outcome.is_ok() && self.queue.is_empty() {
            // No frame of the pool is needed any more. In a pause of its own this would stop the program once more.
            self.area.give_back(&mut hold).inspect_err(|_| self.area.left = false)?;
        }
        let (helpers, stood) = hold.leave().inspect_err(|_| self.area.left = false)?;
        // A disturbed pause affects the estimate of a few pauses only, by at most half of the longest pause.
        let end = moved_by.elapsed().min(self.plan.limits.max_pause / 2).as_nanos() as f64;
        self.costs.end = (0.7 * self.costs.end).max(end);
        if outcome.is_err() {
            self.pauses.push(stood.as_nanos() as u64);
        }
        helpers.finish()?;
        outcome.map(|()| stood)
    }

    /// Moves the pages there is time for while the process stands still. Returns the time at which the last page was moved.
    fn work(&mut self, hold: &mut Hold) -> Result<Instant, RecolorError> {
        let pid = self.plan.pid;
        // Checked only now, because no other process can begin to share the memory while this one stands still.
        pid.check_alone()?;
        let careful = !self.plan.limits.force && (self.sign.is_some() || hold.may_have_begun_io);
        let max_pause = self.plan.limits.max_pause;
        let begin = Instant::now();
        let deadline = hold.began + max_pause - Duration::from_nanos(self.costs.end as u64).min(max_pause / 2);
        // Even after a long stop of the threads some time is left for moving pages; otherwise the stop would be useless.
        let deadline = deadline.max(begin + max_pause / 4);
        // Otherwise the kernel would join the pages to huge pages again, which have all colors.
        hold.call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as u64, 1, 0, 0, 0, 0])?.ok();
        let batch = self.batch(deadline.saturating_duration_since(begin));
        let due = self.still_due(hold, batch)?;
        if due.is_empty() {
            return Ok(Instant::now());
        }
        let mut methods = self.methods(hold, &due);
        let userfault = match self.area.means.mover {
            Some(mover) if methods.contains(&MoveMethod::Move) => {
                self.area.open_userfault(hold, mover)?.map(|(descriptor, _)| descriptor)
            }
            _ => None,
        };
        let refused = self.make_ready(hold, userfault, &due, &mut methods)?;
        let mut due: Vec<(Due, MoveMethod)> = due.into_iter().zip(methods).collect();
        due.sort_by_key(|(_, method)| *method == MoveMethod::Move);
        let is_uncertain =
            |(due, method): &(Due, MoveMethod)| *method != MoveMethod::Move && !self.plan.pages[due.at].in_normal_zone;
        let soaked = due.iter().any(is_uncertain) && self.soak(hold)?;
        let (mut table, moving) = self.table(due, &refused, careful);
        let mut mappings: Vec<(u64, u64)> = moving.iter().map(|due| due.mapping).collect();
        join_runs(&mut table, &mappings);
        let ready = Instant::now();
        // Even after long preparations some time is left for moving pages; the next pause would have to repeat the preparations.
        let deadline = deadline.max(ready + max_pause / 8);
        mappings.dedup();
        if mappings.len() >= 16 {
            let seen = (ready - begin).as_nanos() as f64 / mappings.len() as f64;
            self.costs.region = 0.5 * self.costs.region + 0.5 * seen.min(100e3);
        }
        let (done, moved_by) = match table.is_empty() {
            true => (Vec::new(), Instant::now()),
            // The helper closes the userfaultfd.
            false => self.run(hold, &table, (userfault, Some(deadline)), soaked.then_some(self.area.cpu))?,
        };
        if !table.is_empty() {
            hold.journal.userfault = None;
        }
        if done.len() >= 4 * RUN {
            let seen = (moved_by - ready).as_nanos() as f64 / done.len() as f64;
            self.costs.page = 0.5 * self.costs.page + 0.5 * seen.min(20e3);
        }
        let is_page = |entry: &Entry| entry.method != MoveMethod::Advise as u32;
        for (Due { at, .. }, entry) in moving.iter().zip(&done).filter(|(_, entry)| is_page(entry)) {
            let busy = entry.status == -i64::from(libc::EBUSY);
            self.fates[*at] = match entry.status {
                DONE => Fate::Moved,
                // For a page of a former huge page the kernel also reports EBUSY if the first page of the huge page is shared since a
                // fork, even if the page itself is not (Linux 6.18, move_pages_pte). A pinned page is reported as busy, too.
                _ if busy && !careful && self.sign.is_none() && !self.plan.pages[*at].gives() => {
                    self.queue.push_back((*at, true));
                    continue;
                }
                error => Fate::Immovable(refusal(-error as i32)),
            };
        }
        // Pages that there was no time for come first in the next pause.
        let left = moving.iter().zip(&table).skip(done.len()).filter(|(_, entry)| is_page(entry));
        left.rev().for_each(|(due, _)| self.queue.push_front((due.at, due.without)));
        self.put_back_protections(hold)?;
        Ok(moved_by)
    }

    /// Returns the table of the pages `due`, which come in this order, and the page of each entry. Records the fate of the pages that must stay.
    ///
    /// The frames that pages give come into their slots before any other frame becomes free.
    fn table(
        &mut self,
        due: Vec<(Due, MoveMethod)>,
        refused: &BTreeMap<(u64, u64), &'static str>,
        careful: bool,
    ) -> (Vec<Entry>, Vec<Due>) {
        let (mut giving, mut filling, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (due, method) in due {
            if let Some(why) = refused.get(&due.mapping) {
                self.fates[due.at] = Fate::Immovable((*why).into());
                continue;
            }
            if careful && method == MoveMethod::Replace {
                self.fates[due.at] = Fate::Immovable("asynchronous I/O may be under way".into());
                continue;
            }
            let Planned { page, slot, exchange, .. } = self.plan.pages[due.at];
            if exchange == Some(Exchange::Takes) {
                // The slot is empty, and gets a frame that became free last.
                let (method, run) = (MoveMethod::Advise as u32, libc::MADV_POPULATE_WRITE as u32);
                filling.push((Entry { page: slot, slot: page_bytes() as u64, method, run, status: 0 }, due));
            }
            let list = if exchange == Some(Exchange::Gives) { &mut giving } else { &mut others };
            list.push((Entry { page, slot, method: method as u32, run: 1, status: 0 }, due));
        }
        giving.into_iter().chain(filling).chain(others).unzip()
    }

    /// Lets a helper touch memory that is not used, on the CPU on which frames were drawn. Returns whether it has touched any.
    ///
    /// A page that the kernel refills gets the frame that was freed last on the CPU, but in the zone that the kernel prefers, as long as
    /// frames of that zone are free on this CPU. The memory takes up those that became free since the frames were drawn.
    fn soak(&mut self, hold: &mut Hold) -> Result<bool, RecolorError> {
        let Some((page, slot)) = self.area.next_soak() else { return Ok(false) };
        let (method, run) = (MoveMethod::Advise as u32, libc::MADV_POPULATE_WRITE as u32);
        // Kernels that do not know this advice (before Linux 5.14) refuse it.
        self.run(hold, &[Entry { page, slot, method, run, status: 0 }], (None, None), Some(self.area.cpu))?;
        Ok(true)
    }

    /// Chooses the move method for each page of `due`, on the assumption that its mapping can be registered.
    fn methods(&self, hold: &Hold, due: &[Due]) -> Vec<MoveMethod> {
        let restartable = match self.area.means.mover {
            Some(mover) if mover.for_user_mode => hold.restartable_pages(),
            _ => Vec::new(),
        };
        let way_of = |due: &Due| {
            let region = &self.plan.regions[self.plan.pages[due.at].region];
            // The kernel would kill a thread if it could not write to the restartable-sequence area of the thread.
            let written = || restartable.iter().any(|page| (due.mapping.0..due.mapping.1).contains(page));
            let movable = region.is_plain_memory() && !due.without;
            match self.area.means.mover {
                _ if due.of_file => MoveMethod::Copy,
                Some(_) if movable && !written() => MoveMethod::Move,
                _ => MoveMethod::Replace,
            }
        };
        due.iter().map(way_of).collect()
    }

    /// Takes from the queue the pages that can be moved within `time`, either all with or all without a userfaultfd.
    ///
    /// The two kinds must not mix: without a userfaultfd, the helper drops a page and touches it again. It would wait forever if the mapping
    /// were registered for another page of the batch.
    fn batch(&mut self, time: Duration) -> Vec<(usize, bool)> {
        let mut left = 1.2 * time.as_nanos() as f64;
        let mut batch: Vec<(usize, bool)> = Vec::new();
        let mut region = usize::MAX;
        // The table is also used to register the mappings of these pages, and the scratch memory; a page that takes part in an exchange has two entries.
        while 2 * batch.len() + 1 < self.area.entries() {
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

    /// Returns the pages of `batch` that still have to move and can move, and records the fate of the others.
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
                // A page of a file cannot lie in a mapping without a file.
                Some(_) if entry.of_file() && !plan.regions[planned.region].of_file => {
                    self.fates[at] = Fate::Immovable("is of another kind than its mapping".into());
                }
                Some(mapping) => due.push(Due { at, without, mapping, of_file: entry.of_file() }),
                None => self.fates[at] = Fate::Immovable("its mapping has changed".into()),
            }
        }
        Ok(due)
    }
}

/// Returns the reason for a page that was not moved because of the error `code` of a system call.
fn refusal(code: i32) -> Cow<'static, str> {
    match code {
        libc::EBUSY | libc::EAGAIN => "is pinned or busy".into(),
        libc::ENOENT => "is gone".into(),
        _ => format!("is refused by the kernel: {}", io::Error::from_raw_os_error(code)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::regions_of;
    use crate::recolor::MAX_PAUSE;

    #[test]
    fn a_page_that_the_kernel_does_not_move_has_a_reason_in_words() {
        assert_eq!(refusal(libc::EAGAIN), "is pinned or busy");
        assert_eq!(refusal(libc::EINVAL), "is refused by the kernel: Invalid argument (os error 22)");
    }

    #[test]
    fn pages_that_are_refilled_come_first_and_each_just_behind_the_page_that_gives_its_frame() {
        let maps = "1000-9000 rw-p 00000000 00:00 0 \na000-f000 r-xp 00000000 00:01 1 /lib/libc.so\n";
        let regions = regions_of(maps).unwrap();
        let page = |region, page, slot, gives: bool| {
            let exchange = gives.then_some(Exchange::Gives);
            Planned { region, page, slot, in_normal_zone: true, exchange }
        };
        let pages = [
            page(0, 0x1000, 100, false),
            page(0, 0x2000, 101, true),
            page(0, 0x3000, 102, false),
            page(0, 0x4000, 103, true),
            page(1, 0xa000, 103, false),
            page(1, 0xb000, 104, false),
            page(1, 0xc000, 101, false),
        ];
        let limits =
            Limits { memory: Bytes(1 << 20), force: false, max_pause: MAX_PAUSE, gives_way: false, part: None };
        let plan = Plan { pid: Pid(1), regions: &regions, pages: &pages, astray: &|_, _| Ok(true), limits: &limits };
        assert_eq!(in_order(&plan), [3, 4, 5, 1, 6, 0, 2]);
    }
}
