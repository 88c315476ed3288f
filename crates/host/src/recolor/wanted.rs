//! The input of a recoloring: which frames a process should have, and the limits of the work.

use std::sync::Mutex;
use std::time::Duration;

use isochrome_model::units::{Bytes, Color};
use rustc_hash::FxHashSet;

use crate::color::known::KnownColors;
use crate::color::pagemap::PageEntry;
use crate::color::reference::Reference;
use crate::color::reserve::Reserve;
use crate::process::Pid;

/// The frames that a process should have.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The known colors of pages.
    pub known: &'a KnownColors,
    /// The allowed colors.
    pub colors: &'a [Color],
    /// Whether pages are distributed evenly over the colors, even where all colors are allowed. \[Hanemaaijer1993\]
    pub spread: bool,
    /// The pages that get another frame even where they have an allowed color.
    pub anew: Anew<'a>,
    /// Frames that are handed over before any are drawn; `None` without a reserve.
    pub reserve: Option<&'a Mutex<Reserve>>,
    /// Parts of the memory whose pages may have some of the allowed colors only; if parts overlap, the first one counts.
    pub places: &'a [Place],
}

/// Pages that get another frame even where they have an allowed color. Such a page does not count as on color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anew<'a> {
    /// No page.
    Nothing,
    /// Every page that can be moved.
    All,
    /// The pages at these addresses.
    Only(&'a FxHashSet<u64>),
}

impl Anew<'_> {
    /// Whether the page at `page` gets another frame.
    fn includes(self, page: u64) -> bool {
        match self {
            Anew::Nothing => false,
            Anew::All => true,
            Anew::Only(pages) => pages.contains(&page),
        }
    }
}

/// A part of a process's memory whose pages may have some of the allowed colors only. [Liedtke1997, §5.1]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// First address.
    pub start: u64,
    /// First address behind the part.
    pub end: u64,
    /// The colors, as indices among the allowed ones; at least one.
    pub colors: Vec<usize>,
}

impl<'a> Wanted<'a> {
    /// Returns the number of colors of the level.
    pub fn color_count(&self) -> usize {
        self.known.colors() as usize
    }

    /// Whether every page counts as on color: all colors are allowed, and pages need not be distributed evenly.
    pub(super) fn anything_goes(&self) -> bool {
        self.colors.len() >= self.color_count() && !self.spread && self.anew == Anew::Nothing && self.places.is_empty()
    }

    /// Returns the index of `color` among the allowed colors; `None` if it is unknown or not allowed.
    pub(super) fn allowed(&self, color: Option<Color>) -> Option<usize> {
        self.colors.iter().position(|allowed| Some(*allowed) == color)
    }

    /// Returns the index of the allowed color that `page` of `pid` has; `None` if its color is unknown or not allowed.
    pub(super) fn allowed_page(&self, pid: Pid, page: u64, entry: PageEntry) -> Option<usize> {
        match () {
            () if self.anew.includes(page) => None,
            () if self.anything_goes() => Some(0),
            () => self.allowed(self.known.of(pid.0, (page, entry))).filter(|color| self.may_have(page, *color)),
        }
    }

    /// Returns the index of the place that the page at `page` is in; `None` if it may have all allowed colors.
    pub(super) fn place_of(&self, page: u64) -> Option<usize> {
        self.places.iter().position(|place| (place.start..place.end).contains(&page))
    }

    /// Whether the page at `page` may have `color`.
    pub(super) fn may_have_color(&self, page: u64, color: Color) -> bool {
        self.allowed(Some(color)).is_some_and(|color| self.may_have(page, color))
    }

    /// Whether the page at `page` may have the allowed color with the index `color`.
    pub(super) fn may_have(&self, page: u64, color: usize) -> bool {
        self.place_of(page).is_none_or(|place| self.places[place].colors.contains(&color))
    }

    /// Returns the pages of known color by which a helper inside the process tests other pages; `None` if no colors are measured.
    pub(super) fn reference(&self) -> Option<&'a Reference> {
        self.known.reference()
    }
}

/// Limits of a recoloring.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most memory to touch to find frames of the colors; less is touched if the control group of the process has less left.
    pub memory: Bytes,
    /// Whether to use every move method even where the kernel or a device may write to the pages during the move.
    pub force: bool,
    /// Longest time that the process may stand still at a time.
    pub max_pause: Duration,
    /// Whether to give way if another command has [claimed](super::claim) the process.
    pub gives_way: bool,
    /// Largest part of the pages to move at a time, so that other processes do not wait long; `None` for all pages.
    pub part: Option<Part>,
}

/// Part of a process's pages that is moved at a time.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Most pages to move.
    pub pages: usize,
    /// Time after which the process is not stopped again to move more.
    pub time: Duration,
}

/// Default of [`Limits::max_pause`].
pub const MAX_PAUSE: Duration = Duration::from_millis(15);
