//! What is wanted of a recoloring: which frames a process is to have, and how far it may go.

use std::time::Duration;

use isochrome_model::units::{Bytes, Color};

use crate::color::known::KnownColors;
use crate::color::pagemap::PageEntry;
use crate::color::reference::Reference;
use crate::process::Pid;

/// Which frames a process is to have.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// What tells the colors of pages.
    pub known: &'a KnownColors,
    /// The colors allowed.
    pub colors: &'a [Color],
    /// Whether pages are to be dealt evenly over the colors, also where all colors are allowed. \[Hanemaaijer1993\]
    pub spread: bool,
}

impl<'a> Wanted<'a> {
    /// How many colors there are.
    pub fn color_count(&self) -> usize {
        self.known.colors() as usize
    }

    /// Whether every page is on color, whatever its color is.
    pub(super) fn anything_goes(&self) -> bool {
        self.colors.len() >= self.color_count() && !self.spread
    }

    /// Which of the allowed colors this is, if any.
    pub(super) fn allowed(&self, color: Option<Color>) -> Option<usize> {
        self.colors.iter().position(|allowed| Some(*allowed) == color)
    }

    /// Which of the allowed colors a page of `pid` has, if it is known to have one.
    pub(super) fn allowed_page(&self, pid: Pid, page: u64, entry: PageEntry) -> Option<usize> {
        if self.anything_goes() { Some(0) } else { self.allowed(self.known.of(pid.0, (page, entry))) }
    }

    /// Pages of known color by which a helper inside the process tells the colors of others.
    pub(super) fn reference(&self) -> Option<&'a Reference> {
        self.known.reference()
    }
}

/// How far a recoloring may go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory touched to find frames of the colors; less where the process's group has less left.
    pub memory: Bytes,
    /// Move pages in every way also where the kernel or a device may write to them meanwhile.
    pub force: bool,
    /// For how long the process may stand still at a time.
    pub max_pause: Duration,
    /// Whether to stand aside where another command has [claimed](super::claim) the process.
    pub gives_way: bool,
}

/// [`Limits::max_pause`] where nothing else is asked for.
pub const MAX_PAUSE: Duration = Duration::from_millis(15);
