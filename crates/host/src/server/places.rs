//! Places: parts of a process's memory that have some of the colors of its class only, by request of the process. [Liedtke1997, §5.2]
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
use crate::recolor::Place;
use crate::sys::memory::page_bytes;

/// Most places of a process.
const PLACES_MAX: usize = 64;

impl Server {
    /// Keeps a part of a member's memory on some of its colors. Returns what was done, in words.
    pub fn place(&mut self, placing: &Placing, peer: Peer) -> Result<String, RequestError> {
        let pid = process_of(peer, placing.pid)?;
        // It may have been started, or put into its class, a moment ago.
        let this = || Started::These(BTreeSet::from([pid.0]));
        self.look(this());
        let member = self.members.get(&pid.0).ok_or(RequestError::InNoClass { pid: pid.0 })?;
        let class = &self.policy.classes[member.class];
        if class.share == Share::Rest {
            return Err(RequestError::Unsteady { class: class.name.clone() });
        }
        let colors = coloring_of(&self.classes[member.class], &member.own).colors().len();
        let owner = Owner::of(pid.0 as u32)?;
        let before = self.requests.places.clone();
        let done = enter(&mut self.requests.places, placing, owner, (&class.name, colors))?;
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
    /// Address of the first byte. All pages with bytes of the part belong to it.
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
    start: u64,
    end: u64,
    /// Indices of the colors among those of the process.
    colors: Vec<u32>,
}

impl Placed {
    /// Whether the process lives.
    pub fn is_alive(&self) -> bool {
        self.owner.is_alive()
    }
}

/// Returns the places in `all` of process `pid`, which was started at `started` and has `colors` colors. Places without any of these are left out.
pub fn places_of(all: &[Placed], pid: i32, started: u64, colors: usize) -> Vec<Place> {
    let own = all.iter().filter(|placed| placed.owner.pid as i32 == pid && placed.owner.start_ticks == started);
    let place = |placed: &Placed| {
        let colors = placed.colors.iter().map(|color| *color as usize).filter(|color| *color < colors);
        Place { start: placed.start, end: placed.end, colors: colors.collect() }
    };
    own.map(place).filter(|place| !place.colors.is_empty()).collect()
}

/// Enters the place that `placing` asks for into `all`, for the process `owner`, which has `count` colors of `class`. Earlier places of the process that
/// overlap it are removed. Returns the place in words.
///
/// Fails with [`RequestError::NoSuchColors`], [`RequestError::NoMemory`] and [`RequestError::TooManyPlaces`].
pub fn enter(
    all: &mut Vec<Placed>,
    placing: &Placing,
    owner: Owner,
    (class, count): (&str, usize),
) -> Result<String, RequestError> {
    let page = page_bytes() as u64;
    let end = placing.start.checked_add(placing.bytes).and_then(|end| end.checked_next_multiple_of(page));
    let (start, end) = match end {
        Some(end) if placing.bytes > 0 => (placing.start / page * page, end),
        _ => return Err(RequestError::NoMemory { start: placing.start, bytes: placing.bytes }),
    };
    let colors = placing.colors.as_ref().map(|list| {
        let indices = parse_list(list, count as u32).ok().filter(|indices| !indices.is_empty());
        indices.ok_or_else(|| RequestError::NoSuchColors { class: class.to_owned(), colors: list.clone(), count })
    });
    let colors = colors.transpose()?;
    let is_own = |placed: &Placed| placed.owner == owner;
    let overlaps = |placed: &Placed| is_own(placed) && placed.start < end && start < placed.end;
    if colors.is_some() && all.iter().filter(|placed| is_own(placed) && !overlaps(placed)).count() >= PLACES_MAX {
        return Err(RequestError::TooManyPlaces { pid: owner.pid as i32, most: PLACES_MAX });
    }
    all.retain(|placed| !overlaps(placed));
    let Some(colors) = colors else { return Ok(format!("{start:#x}-{end:#x}: all colors of class {class}")) };
    let text =
        format!("{start:#x}-{end:#x}: colors {} of class {class}", placing.colors.as_deref().unwrap_or_default());
    all.push(Placed { owner, start, end, colors });
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Owner {
        Owner::of(std::process::id()).unwrap()
    }

    fn placing(start: u64, bytes: u64, colors: &str) -> Placing {
        let colors = Some(colors.to_owned()).filter(|colors| !colors.is_empty());
        Placing { pid: None, start, bytes, colors }
    }

    #[test]
    fn a_place_has_whole_pages_and_takes_the_place_of_those_that_it_overlaps() {
        let page = page_bytes() as u64;
        let mut all = Vec::new();
        let mut enter = |placing: Placing| enter(&mut all, &placing, own(), ("control", 4));
        enter(placing(page + 5, page, "0-1")).unwrap();
        enter(placing(8 * page, 1, "3")).unwrap();
        let of = |all: &[Placed], colors| places_of(all, own().pid as i32, own().start_ticks, colors);
        let place = |start, end, colors: &[usize]| Place { start, end, colors: colors.to_vec() };
        let both = vec![place(page, 3 * page, &[0, 1]), place(8 * page, 9 * page, &[3])];
        assert_eq!(of(&all, 4), both);
        assert_eq!(of(&all, 2), both[..1], "a class that has fewer colors now");
        assert_eq!(places_of(&all, own().pid as i32, own().start_ticks + 1, 4), [], "another process");
        let mut enter = |placing: Placing| super::enter(&mut all, &placing, own(), ("control", 4));
        enter(placing(2 * page, page, "2")).unwrap();
        enter(placing(8 * page, page, "")).unwrap();
        assert_eq!(of(&all, 4), [place(2 * page, 3 * page, &[2])]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let page = page_bytes() as u64;
        let mut all = Vec::new();
        for n in 0..PLACES_MAX as u64 {
            enter(&mut all, &placing(2 * n * page, page, "0"), own(), ("control", 2)).unwrap();
        }
        let before = all.clone();
        let mut refused = |placing: Placing| enter(&mut all, &placing, own(), ("control", 2)).unwrap_err();
        assert!(matches!(refused(placing(0, 0, "0")), RequestError::NoMemory { .. }));
        assert!(matches!(refused(placing(u64::MAX, 2, "0")), RequestError::NoMemory { .. }));
        assert!(matches!(refused(placing(u64::MAX - 1, 1, "0")), RequestError::NoMemory { .. }));
        assert!(matches!(refused(placing(0, page, "2")), RequestError::NoSuchColors { .. }));
        assert!(matches!(refused(placing(page, page, "0")), RequestError::TooManyPlaces { .. }));
        assert_eq!(all, before);
        // One that takes the place of another is none too many.
        enter(&mut all, &placing(0, page, "1"), own(), ("control", 2)).unwrap();
    }
}
