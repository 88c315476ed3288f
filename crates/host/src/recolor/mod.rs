//! Other frames for the pages of a process that runs: contents, addresses and mappings stay, colors change.
//!
//! The process is held still and parked (`hold`); a helper thread made inside it then works off a table on its own
//! ([`agent`](crate::sys::agent)). Frames of the colors asked for come from anonymous memory mapped in the process for that time: as much of it is
//! touched as is needed to find enough of them, and all of it goes back at the end. [`Way`](crate::sys::agent::Way) says how a page gets its frame.
//!
//! Where frame numbers are hidden, colors are told by eviction tests inside the process (`sight`), and only pages that were given a
//! frame are known to have a color.
//!
//! Shared memory, hugetlbfs and memory of devices are not moved, nor what the kernel maps; they are listed.

mod error;
mod filtered;
mod hold;
pub mod lock;
mod pool;
pub mod process;
mod room;
mod sight;
pub mod watch;
mod work;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use isochrome_model::units::{Bytes, Color, FrameNumber};
use serde::Serialize;

use crate::pagemap::{self, PageEntry};
use crate::palette::reference::Reference;
use crate::sys::memory::Arena;

pub use error::RecolorError;
pub use hold::repair;
use hold::{Hold, Journal, Turn, Whom};
use pool::Pool;
use process::{PageMap, Pid, Region};
use room::Room;
pub use sight::{Place as PlacedPage, Placed};
use work::Work;

/// What tells the color of a page.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// The number of its frame: `None` where that has no known color.
    Frames(&'a dyn Fn(FrameNumber) -> Option<Color>),
    /// What evicts it. The pages of the process that have a color already are known.
    Evictions(&'a Reference, &'a Placed),
}

/// Which frames a process is to have.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// What tells their colors.
    pub source: Source<'a>,
    /// The colors allowed.
    pub colors: &'a [Color],
    /// How many colors there are.
    pub color_count: u32,
}

impl<'a> Wanted<'a> {
    /// Which of the allowed colors this is, if any.
    fn allowed(&self, color: Option<Color>) -> Option<usize> {
        self.colors.iter().position(|allowed| Some(*allowed) == color)
    }

    /// Which of the allowed colors a page has, if it is known to have one.
    ///
    /// Fails where frame numbers tell and are hidden.
    fn allowed_page(&self, page: u64, entry: PageEntry) -> Result<Option<usize>, RecolorError> {
        Ok(self.allowed(match self.source {
            Source::Frames(color_of) => color_of(entry.frame().ok_or(RecolorError::FramesHidden)?),
            Source::Evictions(_, placed) => {
                placed.get(&page).filter(|placed| placed.frame == entry.frame()).map(|placed| placed.color)
            }
        }))
    }

    fn reference(&self) -> Option<&'a Reference> {
        match self.source {
            Source::Frames(_) => None,
            Source::Evictions(reference, _) => Some(reference),
        }
    }
}

/// How far a recoloring may go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory touched to find frames of the colors; less where the process's group has less left.
    pub memory: Bytes,
    /// Work on processes that use asynchronous I/O or have memory pinned.
    pub force: bool,
}

/// The pages of one mapping, by what became of them or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegionReport {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The file, or the kernel's name in brackets; empty for anonymous memory.
    pub name: String,
    /// Resident pages.
    pub resident: usize,
    /// Pages that had an allowed color.
    pub right: usize,
    /// Pages that were given one, or would be.
    pub moved: usize,
    /// Pages that have none.
    pub left: usize,
    /// Why they were left.
    pub why: Option<String>,
}

/// What a recoloring did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The process.
    pub pid: i32,
    /// Mappings with resident pages, in the order of their addresses.
    pub regions: Vec<RegionReport>,
    /// For how long a thread of the process stood still; nothing where it was only looked at.
    pub pause_ns: Option<u64>,
    /// Its threads.
    pub threads: usize,
    /// Memory touched to find frames.
    pub touched: Bytes,
    /// Where colors are told by evictions, the pages that were given one.
    #[serde(skip)]
    pub placed: Placed,
}

impl Report {
    fn sum(&self, count: impl Fn(&RegionReport) -> usize) -> usize {
        self.regions.iter().map(count).sum()
    }

    /// Resident pages.
    pub fn resident(&self) -> usize {
        self.sum(|region| region.resident)
    }

    /// Pages that had an allowed color.
    pub fn right(&self) -> usize {
        self.sum(|region| region.right)
    }

    /// Pages that were given one.
    pub fn moved(&self) -> usize {
        self.sum(|region| region.moved)
    }

    /// Pages that have none.
    pub fn left(&self) -> usize {
        self.sum(|region| region.left)
    }
}

/// A page that has to move.
struct Stray {
    region: usize,
    page: u64,
    entry: PageEntry,
}

/// What a look at every resident page shows.
struct Look {
    /// What would be done.
    reports: Vec<RegionReport>,
    /// The pages that have to move, ascending.
    strays: Vec<Stray>,
    /// The pages that have an allowed color, ascending.
    in_place: Vec<u64>,
    /// Of each mapping that has strays, its pages of each of the allowed colors.
    held: BTreeMap<usize, Vec<usize>>,
}

/// Looks at every resident page. `keep`: pages that must stay.
fn look(
    regions: &[Region],
    map: &PageMap,
    wanted: &Wanted,
    zero: Option<FrameNumber>,
    keep: &dyn Fn(u64) -> bool,
) -> Result<Look, RecolorError> {
    let mut look = Look { reports: Vec::new(), strays: Vec::new(), in_place: Vec::new(), held: BTreeMap::new() };
    // The vsyscall page lies outside of user space and has no entry.
    for (number, region) in regions.iter().enumerate().filter(|(_, region)| region.name != "[vsyscall]") {
        let mut report = RegionReport {
            start: region.start,
            end: region.end,
            name: region.name.clone(),
            resident: 0,
            right: 0,
            moved: 0,
            left: 0,
            why: None,
        };
        let mut held = vec![0; wanted.colors.len()];
        for (page, entry) in map.resident(region.start, region.end)? {
            if zero.is_some() && entry.frame() == zero {
                continue;
            }
            report.resident += 1;
            if let Some(color) = wanted.allowed_page(page, entry)? {
                report.right += 1;
                look.in_place.push(page);
                held[color] += 1;
            } else if let Some(why) = region.fixed.or(keep(page).then_some("holds what isochrome works with")) {
                report.left += 1;
                report.why = Some(why.to_owned());
            } else {
                report.moved += 1;
                look.strays.push(Stray { region: number, page, entry });
            }
        }
        if report.moved > 0 {
            look.held.insert(number, held);
        }
        if report.resident > 0 {
            look.reports.push(report);
        }
    }
    Ok(look)
}

/// What [`recolor`] would do to `pid`, which goes on undisturbed.
pub fn inspect(pid: Pid, wanted: &Wanted) -> Result<Report, RecolorError> {
    inspect_pages(pid, &pid.regions()?, wanted).map(|(report, _)| report)
}

/// The same of the mappings given, and the pages it is about.
fn inspect_pages(pid: Pid, regions: &[Region], wanted: &Wanted) -> Result<(Report, Look), RecolorError> {
    let look = look(regions, &pid.page_map()?, wanted, zero_frame(), &|_| false)?;
    let regions = look.reports.clone();
    let threads = pid.threads()?.len();
    Ok((Report { pid: pid.0, regions, pause_ns: None, threads, touched: Bytes(0), placed: Placed::new() }, look))
}

/// The frame that all pages share that were read and never written.
fn zero_frame() -> Option<FrameNumber> {
    static ZERO: OnceLock<Option<FrameNumber>> = OnceLock::new();
    *ZERO.get_or_init(|| {
        let arena = Arena::map(1).ok()?;
        arena.touch(&[0], 64);
        pagemap::frames(&arena, 0..1)[0]
    })
}

/// More memory than this is touched, and given back, while the process runs: it takes longer than to stop a thread twice more.
const AHEAD: Bytes = Bytes(4 << 20);

/// Gives the resident pages of `pid` frames of the colors wanted. From then on the kernel makes no huge pages for it.
///
/// Where it fails the process is as it was, unless the error says otherwise.
pub fn recolor(pid: Pid, wanted: &Wanted, limits: &Limits) -> Result<Report, RecolorError> {
    if wanted.colors.is_empty() {
        return Err(RecolorError::NoColors);
    }
    let regions = pid.check(limits.force)?;
    // Hidden frame numbers are found out before the process is stopped.
    let (before, look) = inspect_pages(pid, &regions, wanted)?;
    if before.moved() == 0 {
        return Ok(before);
    }
    let _turn = Turn::wait()?;
    if Journal::left_for(pid)?.is_some() {
        return Err(RecolorError::Unrepaired { pid: pid.0 });
    }
    let mut room = Room::new(pid, &regions, look.strays.len(), limits, wanted.reference())?;
    let mut pool = Pool { slots: Vec::new(), end: room.place.pool };
    let mut pause = Duration::ZERO;
    loop {
        let ahead = pool.lacking(&look, wanted).bytes(wanted).min(room.place.end - pool.end);
        // To tell colors by time takes longer than any stop.
        if ahead <= if wanted.reference().is_some() { 0 } else { AHEAD.0 } {
            break;
        }
        let start = pool.end;
        let mut hold = Hold::new(pid, Whom::One, if room.left { room.area() } else { (0, 0) })?;
        if !room.left {
            room.map(&mut hold)?;
        }
        room.touch_ahead(&mut hold, start, ahead)?;
        let (helpers, stop) = hold.leave()?;
        pause += stop;
        // From here on dropping the room unmaps it.
        room.left = true;
        helpers.wait()?;
        pool.end += ahead;
        if wanted.reference().is_some() {
            let mut hold = Hold::new(pid, Whom::One, room.area())?;
            room.make_sight(&mut hold)?;
            let (helpers, stop) = hold.leave()?;
            pause += stop;
            pool.look(wanted, &room, helpers, start)?;
        } else {
            pool.find(pid, wanted, start)?;
        }
    }
    let mut hold = Hold::new(pid, Whom::All, if room.left { room.area() } else { (0, 0) })?;
    let threads = hold.threads();
    let outcome = Work::new(&mut hold, wanted, limits, regions, &room).and_then(|mut work| {
        if !room.left && !work.look.strays.is_empty() {
            room.map(work.hold)?;
        }
        work.carry_out(&mut pool)?;
        Ok((work.reports, work.placed))
    });
    let touched = Bytes(pool.end - room.place.pool);
    if outcome.is_ok() && touched.0 > AHEAD.0 {
        room.give_back(&mut hold, pool.end)?;
        let (helpers, stop) = hold.leave()?;
        pause += stop;
        room.left = true;
        helpers.wait()?;
        pause += room.unmap()?;
    } else {
        room.left = false;
        pause += hold.resume()?;
    }
    let (regions, placed) = outcome?;
    Ok(Report { pid: pid.0, regions, pause_ns: Some(pause.as_nanos() as u64), threads, touched, placed })
}
