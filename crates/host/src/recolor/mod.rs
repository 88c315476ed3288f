//! Gives the pages of a running process other frames: contents, addresses and mappings stay, colors change.
//!
//! The process is stopped and parked (`hold`). A helper thread created inside the process then works off a table by itself
//! ([`agent`](crate::sys::agent)). Frames of the wanted colors come from anonymous memory that is mapped in the process for that time.
//! As much of it is touched as is needed to find enough frames, and all of it is given back at the end. The move method
//! ([`MoveMethod`](crate::sys::agent::MoveMethod)) determines how a page gets its frame.
//!
//! Where frame numbers are hidden, colors are found by eviction tests inside the process (`remote`). The color of a page is then known
//! only if the page was tested, or if a recoloring gave the page its frame.
//!
//! Shared memory, hugetlbfs, memory of devices and mappings of the kernel are not moved; the report lists them as immovable.

mod calls;
pub mod census;
mod check;
pub mod claim;
mod classified;
mod error;
mod exclusive;
mod hold;
mod knowledge;
pub mod lock;
mod mover;
mod near;
mod page_map;
mod pool;
mod remote;
mod scratch_area;
mod seccomp;
mod wanted;
pub mod watch;
mod work;

use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, Instant};

use isochrome_model::palette::decode::Answer;
use isochrome_model::units::{Bytes, Color, FrameNumber};
use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::color::ColorError;
use crate::color::known::Page;
use crate::color::pagemap::{self, PageEntry};
use crate::color::reference::Reference;
use crate::color::tester::Effort;
use crate::color::verified::{Verified, samples};
use crate::process::{Pid, Region};
use crate::sys::memory::{Arena, page_bytes};

pub use classified::RegionReport;
use classified::{Classified, Donor, OffColorPage, classify};
pub use error::RecolorError;
use exclusive::ExclusiveLock;
use hold::{Hold, Journal, Patience, Whom};
pub use hold::{end_tracing, repair};
use near::Near;
use pool::{Needs, Pool, Slot};
use scratch_area::ScratchArea;
pub use wanted::{Anew, Limits, MAX_PAUSE, Part, Place, Wanted};
use work::{Exchange, Fate, Plan, Planned};

/// Result of a recoloring, or of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Number of the process.
    pub pid: i32,
    /// Mappings with resident pages, in the order of their addresses.
    pub regions: Vec<RegionReport>,
    /// Duration of each pause, in ns, in which one thread of the process or all of them stood still; empty if the process was only inspected.
    pub pauses_ns: Vec<u64>,
    /// Number of threads of the process.
    pub threads: usize,
    /// Size of the memory that was touched to find frames.
    pub touched: Bytes,
    /// Number of pages that were left because no frame for them was found, or because they are beyond the [part](Limits::part) to move at a time.
    pub waiting: usize,
    /// Addresses of the pages that should have moved and were left, for whatever reason.
    #[serde(skip)]
    pub left: FxHashSet<u64>,
}

impl Report {
    fn sum(&self, count: impl Fn(&RegionReport) -> usize) -> usize {
        self.regions.iter().map(count).sum()
    }

    /// Returns the longest pause in ns; `None` if the process was only inspected.
    pub fn pause_ns_max(&self) -> Option<u64> {
        self.pauses_ns.iter().max().copied()
    }

    /// Returns the number of resident pages.
    pub fn resident(&self) -> usize {
        self.sum(|region| region.resident)
    }

    /// Returns the number of pages that had an allowed color already.
    pub fn on_color(&self) -> usize {
        self.sum(|region| region.on_color)
    }

    /// Returns the number of pages that were moved to an allowed color, or would be.
    pub fn moved(&self) -> usize {
        self.sum(|region| region.moved)
    }

    /// Returns the number of pages off color that cannot be moved.
    pub fn immovable(&self) -> usize {
        self.sum(|region| region.immovable)
    }
}

/// Returns what [`recolor`] would do to `pid`, without stopping or changing the process.
pub fn inspect(pid: Pid, wanted: &Wanted) -> Result<Report, RecolorError> {
    inspect_pages(pid, &pid.regions()?, wanted).map(|(report, _)| report)
}

/// Does the same as [`inspect`] for the mappings `regions`, and also returns the pages, classified by color.
fn inspect_pages(pid: Pid, regions: &[Region], wanted: &Wanted) -> Result<(Report, Classified), RecolorError> {
    let classified = classify(pid, regions, &pid.page_map()?, wanted, zero_frame())?;
    let regions = classified.reports.clone();
    let threads = pid.threads()?.len();
    Ok((Report { pid: pid.0, regions, threads, ..Report::default() }, classified))
}

/// Returns the zero frame, which is shared by all pages that were read but never written; `None` where frame numbers are hidden.
fn zero_frame() -> Option<FrameNumber> {
    static ZERO: OnceLock<Option<FrameNumber>> = OnceLock::new();
    *ZERO.get_or_init(|| {
        let arena = Arena::map(1).ok()?;
        arena.touch(&[0], 64);
        pagemap::frames(&arena, 0..1)[0]
    })
}

/// Reason why a page stays for which no frame of the colors was found.
pub const LACKS_FRAME: &str = "waits for a frame of the colors";

/// Reason why a page stays that is beyond the part of the pages to move at a time.
const TURN: &str = "waits for its turn";

/// Moves the resident pages of `pid` to frames of the colors wanted, and reports the result. From then on the kernel makes no huge pages
/// for the process.
///
/// Where this fails, the process is as it was before but for its huge pages, unless the error says otherwise.
pub fn recolor(pid: Pid, wanted: &Wanted, limits: &Limits) -> Result<Report, RecolorError> {
    if wanted.colors.is_empty() {
        return Err(RecolorError::NoColors);
    }
    let _exclusive = ExclusiveLock::wait(pid)?;
    claim::give_way(pid, limits)?;
    if Journal::left_for(pid)?.is_some() {
        return Err(RecolorError::Unrepaired { pid: pid.0 });
    }
    // Read under the lock: otherwise the scratch area of another command might be taken for the program's own memory.
    let regions = pid.check_locked()?;
    let (before, mut classified) = inspect_pages(pid, &regions, wanted)?;
    wanted.known.hold(pid.0, std::mem::take(&mut classified.frames));
    if before.moved() == 0 {
        return Ok(before);
    }
    let _near = Near::to(pid);
    let most = limits.part.map_or(usize::MAX, |part| part.pages);
    let later = classified.off_color.split_off(most.min(classified.off_color.len()));
    let doubtful = if wanted.known.has_unchecked_palette() { classified.on_color.len() } else { 0 };
    let needed = Needs::of(&classified, wanted).as_any();
    let mut area = ScratchArea::new(pid, &regions, (needed, needed + doubtful), wanted, limits)?;
    let mut pool = Pool::default();
    let mut pauses = Vec::new();
    draw_frames(pid, &regions, wanted, limits, (&mut area, &mut pool), &mut classified, &mut pauses)?;
    if pool.slots.is_empty() {
        let limit = Bytes(area.layout.soak - area.layout.pool);
        return Err(RecolorError::TooFewFrames { pages: classified.off_color.len(), limit });
    }
    let slots = pool.choose(&mut classified, wanted);
    let pages = planned(&classified.off_color, &slots);
    let donors: FxHashSet<u64> = pages.iter().filter(|planned| planned.gives()).map(|planned| planned.page).collect();
    let zero = zero_frame();
    let astray = |page, entry: PageEntry| {
        let is_off_color = wanted.allowed_page(pid, page, entry).is_none();
        Ok((zero.is_none() || entry.frame() != zero) && is_off_color != donors.contains(&page))
    };
    let plan = Plan { pid, regions: &regions, pages: &pages, astray: &astray, limits };
    let fates = work::carry_out(&plan, &mut area, &mut pauses)?;
    knowledge::record(pid, &regions, wanted, &pool, (&pages, &fates))?;
    let mut reports = classified.reports;
    let mut left = FxHashSet::default();
    let is_unreached = |(planned, fate): &(&Planned, &Fate)| !planned.gives() && **fate == Fate::Unreached;
    let unreached = pages.iter().zip(&fates).filter(is_unreached).count();
    for (planned, fate) in pages.iter().zip(fates).filter(|(planned, _)| !planned.gives()) {
        let Some(report) = report_of(&mut reports, &regions[planned.region]) else { continue };
        match fate {
            Fate::Moved => {}
            Fate::Settled => {
                report.moved -= 1;
                report.resident -= 1;
            }
            Fate::Unreached => {
                report.moved -= 1;
                report.leave(TURN);
                left.insert(planned.page);
            }
            Fate::Immovable(why) => {
                report.moved -= 1;
                report.leave(why.as_ref());
                left.insert(planned.page);
            }
        }
    }
    // Some of these pages came after the draws, or the memory limit held too few frames of the colors.
    let without_frame = || classified.off_color.iter().zip(&slots).filter(|(_, slot)| slot.is_none());
    for (page, why) in without_frame().map(|(page, _)| (page, LACKS_FRAME)).chain(later.iter().map(|page| (page, TURN)))
    {
        let Some(report) = report_of(&mut reports, &regions[page.region]) else { continue };
        report.moved -= 1;
        report.leave(why);
        left.insert(page.address);
    }
    area.remove(&mut pauses)?;
    let touched = Bytes(area.touched - area.layout.pool + area.soaked - area.layout.soak);
    let waiting = without_frame().count() + later.len() + unreached;
    Ok(Report { pid: pid.0, regions: reports, pauses_ns: pauses, threads: before.threads, touched, waiting, left })
}

/// Returns the moves that give pages off color their slots, in ascending order of the pages.
fn planned(off_color: &[OffColorPage], slots: &[Option<Slot>]) -> Vec<Planned> {
    let mut pages = Vec::new();
    for (page, slot) in off_color.iter().zip(slots) {
        let Some(Slot { address: slot, in_normal_zone, donor, .. }) = *slot else { continue };
        let in_normal_zone = in_normal_zone == Some(true);
        let taking = Planned { region: page.region, page: page.address, slot, in_normal_zone, exchange: None };
        match donor {
            None => pages.push(taking),
            Some(Donor { region, address: page, .. }) => {
                pages.push(Planned { exchange: Some(Exchange::Takes), ..taking });
                pages.push(Planned { region, page, exchange: Some(Exchange::Gives), ..taking });
            }
        }
    }
    pages.sort_unstable_by_key(|planned| planned.page);
    pages
}

/// Touches memory in `area` until `pool` has enough frames of the colors, or the memory limit is reached.
fn draw_frames(
    pid: Pid,
    regions: &[Region],
    wanted: &Wanted,
    limits: &Limits,
    (area, pool): (&mut ScratchArea, &mut Pool),
    classified: &mut Classified,
    pauses: &mut Vec<u64>,
) -> Result<(), RecolorError> {
    draw_from_reserve(pid, regions, wanted, (area, pool), classified, pauses)?;
    // All touched memory is kept until the last draw, because the kernel hands out freed frames again at once.
    let left =
        |area: &ScratchArea, classified: &Classified| area.untouched(Needs::of(classified, wanted).as_any(), wanted);
    while let Some(draw) = pool.next_draw(classified, wanted, left(area, classified)) {
        claim::give_way(pid, limits)?;
        std::thread::sleep(draw.rest);
        let start = area.touched;
        match draw.huge {
            Some(huge) => area.touch_huge(draw.bytes, huge, pauses)?,
            None => area.touch(draw.bytes, pauses)?,
        }
        pool.exchanges = area.means.mover.is_some();
        let pages = touched_pages(pid, start, area.touched)?;
        pages.last().inspect(|last| pool.note_zone(**last));
        find_frames(pid, regions, wanted, (area, pool), pages, classified, pauses)?;
    }
    Ok(())
}

/// Has frames of the reserve handed over as long as most of them arrive, and has the reserve search for those that it lacks. Does nothing
/// without a reserve.
fn draw_from_reserve(
    pid: Pid,
    regions: &[Region],
    wanted: &Wanted,
    (area, pool): (&mut ScratchArea, &mut Pool),
    classified: &mut Classified,
    pauses: &mut Vec<u64>,
) -> Result<(), RecolorError> {
    let Some(reserve) = wanted.reserve else { return Ok(()) };
    let mut reserve = reserve.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let room = area.untouched(Needs::of(classified, wanted).as_any(), wanted) as usize / page_bytes();
        let of = |available: &[usize]| pool.needed_of_reserve(classified, wanted, available, room);
        reserve.find(wanted.known, wanted.colors, &of(&vec![usize::MAX; wanted.colors.len()]));
        let mut numbers = of(&reserve.available(wanted.colors));
        let count: usize = numbers.iter().sum();
        if count == 0 {
            return Ok(());
        }
        let (start, before) = (area.touched, pool.slots.len());
        area.touch_handed(count, pauses, |frames| reserve.give(wanted.colors, &mut numbers, frames))?;
        let pages = touched_pages(pid, start, area.touched)?;
        find_frames(pid, regions, wanted, (area, pool), pages, classified, pauses)?;
        if pool.slots.len().saturating_sub(before) < count / 2 {
            return Ok(());
        }
    }
}

/// Finds the colors of `pages`, which were touched last, and classifies everything again if the tests contradict the palette.
fn find_frames(
    pid: Pid,
    regions: &[Region],
    wanted: &Wanted,
    (area, pool): (&ScratchArea, &mut Pool),
    pages: Vec<Page>,
    classified: &mut Classified,
    pauses: &mut Vec<u64>,
) -> Result<(), RecolorError> {
    let contradictions = wanted.known.contradictions();
    pool.find(wanted, area, pages, pauses)?;
    if wanted.known.contradictions() != contradictions {
        // The palette also determined colors of the program's pages, so these are classified again.
        *classified = inspect_pages(pid, regions, wanted)?.1;
        let pages = pid.page_map()?.resident(area.layout.pool, area.touched)?;
        pool.retain(pid, wanted, &pages);
    }
    Ok(())
}

/// Returns the report on `region`; `None` if the region was not inspected.
fn report_of<'r>(reports: &'r mut [RegionReport], region: &Region) -> Option<&'r mut RegionReport> {
    let at = reports.binary_search_by_key(&region.start, |report| report.start).ok()?;
    reports.get_mut(at)
}

/// Returns the resident pages between two addresses. Waits for missing pages as long as more become resident, because on a loaded machine
/// a helper may have ended before its last pages are resident.
fn touched_pages(pid: Pid, start: u64, end: u64) -> Result<Vec<Page>, RecolorError> {
    const PATIENCE: Duration = Duration::from_millis(500);
    let pages = ((end - start) / page_bytes() as u64) as usize;
    let (mut most, mut since) = (0, Instant::now());
    loop {
        let resident = pid.page_map()?.resident(start, end)?;
        if resident.len() >= pages || since.elapsed() > PATIENCE {
            return Ok(resident);
        }
        if resident.len() > most {
            (most, since) = (resident.len(), Instant::now());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Most rounds in which pages are tested until they are decided.
const VERIFYING_ROUNDS: u32 = 8;
/// Increase of the wait before a round, from each round to the next.
const VERIFYING_REST: Duration = Duration::from_millis(10);

/// Number of pages that are tested in one pause.
const ASKED_AT_ONCE: usize = 96;

/// Tests by eviction a sample of those pages of `pid` that should be on color, and further samples while the result is not significant.
///
/// The process stands still for the tests; `pauses` gathers these times in ns. Returns `None` if colors are not measured or no page is
/// on color.
fn verify(pid: Pid, wanted: &Wanted, limits: &Limits, pauses: &mut Vec<u64>) -> Result<Option<Verified>, RecolorError> {
    let known = wanted.known;
    let on_color = |(page, entry): Page| wanted.allowed_page(pid, page, entry).is_some();
    let (regions, pages) = readable_pages(pid, &on_color)?;
    let samples = samples(&pages);
    if known.reference().is_none() || wanted.anything_goes() || samples.is_empty() {
        return Ok(None);
    }
    let mut asking = Asking::new(pid, &regions, wanted, limits)?;
    let mut verified = Verified::default();
    for mut open in samples {
        for round in 0..VERIFYING_ROUNDS {
            // A disturbance may pass, so each round begins after a longer wait.
            std::thread::sleep(round * VERIFYING_REST);
            let mut undecided = Vec::new();
            for part in open.chunks(ASKED_AT_ONCE) {
                let requested = asking.ask(part.to_vec(), wanted.colors, pauses)?;
                let (decided, open): (Vec<_>, Vec<_>) = requested.into_iter().partition(|(_, answer)| answer.is_some());
                let in_place = |(page, answer): (Page, Option<Answer>)| match answer {
                    Some(Answer::Color(color)) if !wanted.may_have_color(page.0, color) => (page, Some(Answer::Other)),
                    answer => (page, answer),
                };
                let (pages, answers): (Vec<_>, Vec<_>) = decided.into_iter().map(in_place).unzip();
                verified.add(known.verified(pid.0, &pages, &answers));
                undecided.extend(open.into_iter().map(|(page, _)| page));
            }
            open = undecided;
            if open.is_empty() {
                break;
            }
        }
        verified.undecided += open.len();
        if verified.is_decided() {
            break;
        }
    }
    asking.end(pauses)?;
    Ok(Some(verified))
}

/// Measures the unknown colors of pages of `pid`, in pauses between which the process runs.
///
/// Returns the number of pages whose color was unknown, and how many of them are known now.
pub fn measure(pid: Pid, wanted: &Wanted, limits: &Limits) -> Result<(usize, usize), RecolorError> {
    let known = wanted.known;
    let (regions, pages) = readable_pages(pid, &|page| known.of(pid.0, page).is_none())?;
    if known.reference().is_none() || pages.is_empty() {
        return Ok((pages.len(), 0));
    }
    let mut asking = Asking::new(pid, &regions, wanted, limits)?;
    let mut found = 0;
    for part in pages.chunks(ASKED_AT_ONCE) {
        for (page, answer) in asking.ask(part.to_vec(), wanted.colors, &mut Vec::new())? {
            if let Some(Answer::Color(color)) = answer {
                known.learn(pid.0, page, color);
                found += 1;
            }
        }
    }
    asking.end(&mut Vec::new())?;
    Ok((pages.len(), found))
}

/// Returns the mappings of `pid`, and its resident pages that can be moved and read and for which `chosen` holds.
fn readable_pages(pid: Pid, chosen: &dyn Fn(Page) -> bool) -> Result<(Vec<Region>, Vec<Page>), RecolorError> {
    let (regions, map, zero) = (pid.check()?, pid.page_map()?, zero_frame());
    let mut pages = Vec::new();
    for region in regions.iter().filter(|region| region.immovable.is_none() && region.protection.read) {
        let resident = map.resident(region.start, region.end)?;
        let own = |(_, entry): &Page| zero.is_none() || entry.frame() != zero;
        pages.extend(resident.into_iter().filter(|page| own(page) && chosen(*page)));
    }
    Ok((regions, pages))
}

/// Eviction tests of pages of a process that stands still during each test, so that no page under test goes away.
struct Asking<'a> {
    pid: Pid,
    wanted: &'a Wanted<'a>,
    limits: &'a Limits,
    reference: &'a Reference,
    area: ScratchArea<'a>,
    _exclusive: ExclusiveLock,
}

impl<'a> Asking<'a> {
    /// Maps a scratch area inside the process, and measures the walk times there while the process runs, if they are unknown.
    fn new(
        pid: Pid,
        regions: &[Region],
        wanted: &'a Wanted<'a>,
        limits: &'a Limits,
    ) -> Result<Asking<'a>, RecolorError> {
        let reference = wanted.reference().ok_or(RecolorError::NoColors)?;
        let exclusive = ExclusiveLock::wait(pid)?;
        claim::give_way(pid, limits)?;
        let mut area = ScratchArea::new(pid, regions, (0, 0), wanted, limits)?;
        let mut hold = Hold::one(pid, (0, 0))?;
        area.map(&mut hold)?;
        let calibrates = wanted.known.ticks().is_none();
        if calibrates {
            area.make_test_helper(&mut hold)?;
        }
        let (helpers, _) = hold.leave()?;
        area.left = true;
        let calibrated = if calibrates { remote::tester(&area, reference, wanted).map(drop) } else { Ok(()) };
        helpers.wait()?;
        calibrated?;
        Ok(Asking { pid, wanted, limits, reference, area, _exclusive: exclusive })
    }

    /// Tests `pages`, in ascending order, in one pause of the process. Returns the pages that still have the same frame, each with its answer,
    /// which is `None` where the tests did not decide.
    fn ask(
        &mut self,
        mut pages: Vec<Page>,
        among: &[Color],
        pauses: &mut Vec<u64>,
    ) -> Result<Vec<(Page, Option<Answer>)>, RecolorError> {
        let map = self.pid.page_map()?;
        let mut hold = Hold::new(self.pid, Whom::All, self.area.range(), Patience::of(self.limits.max_pause, 0))?;
        // A page that was unmapped or replaced since then cannot be tested.
        let addresses: Vec<u64> = pages.iter().map(|(page, _)| *page).collect();
        let mut now = map.entries(&addresses)?.into_iter();
        pages.retain(|(_, entry)| now.next().is_some_and(|now| now == *entry));
        self.area.make_test_helper(&mut hold)?;
        let helpers = hold.send_off();
        let effort = Effort { limit: self.limits.max_pause / 2, ..Effort::STATEMENT };
        let answers = remote::tester(&self.area, self.reference, self.wanted).and_then(|mut tester| {
            tester.eviction_test.hurry(effort.limit);
            let numbers = tester.eviction_test.number(&pages);
            tester.classify(&numbers, among, effort).map_err(RecolorError::unmeasured(self.pid.0))
        });
        helpers.wait()?;
        pauses.push(hold.leave()?.1.as_nanos() as u64);
        let answers = match answers {
            // The helper was kept from a CPU, or the cache was too disturbed in that moment.
            Err(RecolorError::Unmeasured {
                source: ColorError::NoAnswer | ColorError::CacheUnsteady { .. }, ..
            }) => {
                vec![None; pages.len()]
            }
            answers => answers?,
        };
        Ok(pages.into_iter().zip(answers).collect())
    }

    fn end(mut self, pauses: &mut Vec<u64>) -> Result<(), RecolorError> {
        self.area.remove(pauses)
    }
}
