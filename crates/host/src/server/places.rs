//! Places: parts of a process's memory that have some of the colors of its class only, by request of the process. [Liedtke1997, §5.1: any application can determine the
//! color of any of its pages within the set of colors that it has]
//!
//! A matrix may have the first two colors of the class and the table beside it the third, so that one does not evict the other.

use std::collections::BTreeSet;

use isochrome_model::policy::Share;
use isochrome_model::units::parse_list;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::notice::Started;
use super::requests::{Peer, RequestError, process_of};
use super::{Server, coloring_of};
use crate::color::ledger::Owner;
use crate::process::{Pid, ProcessError};
use crate::recolor::Place;
use crate::sys::memory::page_bytes;

/// Most places of a process, and of all processes by request of one user.
const PLACES_MAX: usize = 64;
const PLACES_OF_USER_MAX: usize = 4096;

impl Server {
    /// Keeps a part of a member's memory on some of its colors. Returns the outcome, in words.
    pub fn place(&mut self, placing: &Placing, peer: Peer) -> Result<String, RequestError> {
        let pid = process_of(peer, placing.pid)?;
        // It may have been started, or put into its class, a moment ago.
        let this = || Started::These(BTreeSet::from([pid.0]));
        self.look(this());
        let member = self.members.get(&pid.0).ok_or(RequestError::InNoClass { pid: pid.0 })?;
        let class = &self.policy.classes[member.class];
        if class.share == Share::Rest && placing.colors.is_some() {
            return Err(RequestError::Unsteady { class: class.name.clone() });
        }
        let colors = coloring_of(&self.classes[member.class], &member.own).colors().len();
        let owner = Owner::of(pid.0 as u32)?;
        let before = self.requests.places.clone();
        let done = enter(&mut self.requests.places, placing, owner, peer.uid, colors)?;
        if self.requests.places == before {
            return Ok(done);
        }
        if let Err(error) = self.requests.save() {
            self.requests.places = before;
            return Err(RequestError::Server(error.to_string()));
        }
        self.look(this());
        Ok(done)
    }
}

/// A request to keep a part of a process's memory on some of its colors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Placing {
    /// Number of the process; `None` for the process that asks.
    #[serde(default)]
    pub pid: Option<i32>,
    /// Address of the first byte. The place has all pages that contain bytes of the memory.
    pub start: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Some of the process's colors, as a list such as `0-1`, where 0 is its first color; `None` for all of them, as without a place.
    #[serde(default)]
    pub colors: Option<String>,
}

/// A place that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The process.
    owner: Owner,
    /// Number of the user who made the request.
    uid: u32,
    /// The program that the process executed, by the address of its stack.
    program: u64,
    start: u64,
    end: u64,
    /// Indices of the colors among those of the process.
    colors: Vec<u32>,
}

impl Placed {
    /// Whether the process lives and still executes the same program.
    pub fn is_alive(&self) -> bool {
        self.owner.is_alive() && program_of(Pid(self.owner.pid as i32)) == Some(self.program)
    }
}

/// Returns a value that distinguishes the program that `pid` executes from the one that it executed before: the first address of the stack, which the
/// kernel draws at random for each program. [Linux, proc_pid_stat(5), startstack]
fn program_of(pid: Pid) -> Option<u64> {
    const STARTSTACK: usize = 28;
    pid.stat(STARTSTACK).ok()
}

/// Returns the places in `all` of process `pid`, which was started at `started` and has `colors` colors, by their addresses. Places without any of
/// these colors, and places of a program that the process executed before, are left out.
pub fn places_of(all: &[Placed], pid: i32, started: u64, colors: usize) -> Vec<Place> {
    let is_own = |placed: &&Placed| placed.owner.pid as i32 == pid && placed.owner.start_ticks == started;
    let mut own = all.iter().filter(is_own).peekable();
    let program = own.peek().and_then(|_| program_of(Pid(pid)));
    let place = |placed: &Placed| {
        let colors = placed.colors.iter().map(|color| *color as usize).filter(|color| *color < colors);
        Place { start: placed.start, end: placed.end, colors: colors.collect() }
    };
    let own = own.filter(|placed| Some(placed.program) == program);
    let mut places: Vec<Place> = own.map(place).filter(|place| !place.colors.is_empty()).collect();
    places.sort_unstable_by_key(|place| place.start);
    places
}

/// Enters the place that user `uid` asks for by `placing` into `all`, for the process `owner`, which has `count` colors. Where it
/// overlaps earlier places of the process, these are cut, so that two arrays may meet in a page. Returns the place in words.
///
/// Fails with [`RequestError::ColorsOutOfRange`], [`RequestError::NoMemory`] and [`RequestError::TooManyPlaces`].
pub fn enter(
    all: &mut Vec<Placed>,
    placing: &Placing,
    owner: Owner,
    uid: u32,
    count: usize,
) -> Result<String, RequestError> {
    let (pid, page) = (owner.pid as i32, page_bytes() as u64);
    let end = placing.start.checked_add(placing.bytes).and_then(|end| end.checked_next_multiple_of(page));
    let (start, end) = match end {
        Some(end) if placing.bytes > 0 => (placing.start / page * page, end),
        _ => return Err(RequestError::NoMemory { start: placing.start, bytes: placing.bytes }),
    };
    let colors = placing.colors.as_ref().map(|list| {
        let indices = parse_list(list, count as u32).ok().filter(|indices| !indices.is_empty());
        indices.ok_or_else(|| RequestError::ColorsOutOfRange { pid, colors: list.clone(), count })
    });
    let colors = colors.transpose()?;
    let program = program_of(Pid(pid)).ok_or(ProcessError::Ended { pid })?;
    let own = |placed: &&Placed| placed.owner == owner && placed.program == program;
    let mut entered = Vec::new();
    for placed in all.iter().filter(own) {
        let parts = [(placed.start, placed.end.min(start)), (placed.start.max(end), placed.end)];
        let left = parts.into_iter().filter(|(from, to)| from < to);
        entered.extend(left.map(|(from, to)| Placed { start: from, end: to, ..placed.clone() }));
    }
    let text = match &placing.colors {
        Some(list) => format!("{start:#x}-{end:#x} of process {pid}: its colors {list}"),
        None => format!("{start:#x}-{end:#x} of process {pid}: all its colors"),
    };
    if let Some(colors) = colors {
        entered.push(Placed { owner: owner.clone(), uid, program, start, end, colors });
    }
    entered.sort_unstable_by_key(|placed| placed.start);
    let of_user = all.iter().filter(|placed| placed.uid == uid && placed.owner != owner).count() + entered.len();
    if entered.len() > PLACES_MAX || of_user > PLACES_OF_USER_MAX {
        return Err(RequestError::TooManyPlaces { pid, most: PLACES_MAX, of_user: PLACES_OF_USER_MAX });
    }
    all.retain(|placed| placed.owner != owner);
    all.extend(entered);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Owner {
        Owner::of(std::process::id()).unwrap()
    }

    /// Enters a place of this process in a class of four colors.
    fn enter(all: &mut Vec<Placed>, start: u64, bytes: u64, colors: &str) -> Result<String, RequestError> {
        let colors = Some(colors.to_owned()).filter(|colors| !colors.is_empty());
        super::enter(all, &Placing { pid: None, start, bytes, colors }, own(), 0, 4)
    }

    #[test]
    fn a_place_has_whole_pages_and_is_cut_off_those_that_it_overlaps() {
        let page = page_bytes() as u64;
        let mut all = Vec::new();
        enter(&mut all, page + 5, page, "0-1").unwrap();
        enter(&mut all, 8 * page, 1, "3").unwrap();
        let of = |all: &[Placed], colors| places_of(all, own().pid as i32, own().start_ticks, colors);
        let place = |start: u64, end: u64, colors: &[usize]| Place {
            start: start * page,
            end: end * page,
            colors: colors.to_vec(),
        };
        let both = vec![place(1, 3, &[0, 1]), place(8, 9, &[3])];
        assert_eq!(of(&all, 4), both);
        assert_eq!(of(&all, 2), both[..1], "a class that has fewer colors now");
        assert_eq!(places_of(&all, own().pid as i32, own().start_ticks + 1, 4), [], "another process");
        // Two arrays that meet in a page: it has the colors of the later one.
        enter(&mut all, 2 * page + 5, page, "2").unwrap();
        enter(&mut all, 8 * page, page, "").unwrap();
        assert_eq!(of(&all, 4), [place(1, 2, &[0, 1]), place(2, 4, &[2])]);
        // One in the middle of another leaves both ends.
        enter(&mut all, 0, 10 * page, "0").unwrap();
        enter(&mut all, 4 * page, page, "1").unwrap();
        assert_eq!(of(&all, 4), [place(0, 4, &[0]), place(4, 5, &[1]), place(5, 10, &[0])]);
        let before = all.clone();
        enter(&mut all, 4 * page, page, "1").unwrap();
        assert_eq!(all, before, "the same once more");
        assert!(all.iter().all(Placed::is_alive));
        // The process has executed another program.
        all.iter_mut().for_each(|placed| placed.program += 16);
        assert!(of(&all, 4).is_empty() && !all.iter().any(Placed::is_alive));
        enter(&mut all, 0, 1, "0").unwrap();
        assert_eq!(of(&all, 4), [place(0, 1, &[0])]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let page = page_bytes() as u64;
        let mut all = Vec::new();
        for n in 0..PLACES_MAX as u64 {
            enter(&mut all, 2 * n * page, page, "0").unwrap();
        }
        let before = all.clone();
        let mut refused = |start, bytes, colors| enter(&mut all, start, bytes, colors).unwrap_err();
        assert!(matches!(refused(0, 0, "0"), RequestError::NoMemory { .. }));
        assert!(matches!(refused(u64::MAX, 2, "0"), RequestError::NoMemory { .. }));
        assert!(matches!(refused(u64::MAX - 1, 1, "0"), RequestError::NoMemory { .. }));
        assert!(matches!(refused(0, page, "4"), RequestError::ColorsOutOfRange { .. }));
        assert!(matches!(refused(page, page, "0"), RequestError::TooManyPlaces { .. }));
        assert_eq!(all, before);
        // A place that replaces another one is accepted.
        enter(&mut all, 0, page, "1").unwrap();
        let of_another = Placed { owner: Owner { pid: 1, ..own() }, ..all[0].clone() };
        all.extend(vec![of_another; PLACES_OF_USER_MAX]);
        assert!(matches!(enter(&mut all, 0, page, "0"), Err(RequestError::TooManyPlaces { .. })), "of all processes");
    }
}
