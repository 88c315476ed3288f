//! Why colors are not found, not believed, or not to be had.

use std::io;
use std::path::PathBuf;

use isochrome_model::units::Bytes;

use crate::counters::CounterError;
use crate::error::SystemError;
use crate::process::ProcessError;

/// Trouble with colors: of the machine, of pages, of a palette, and with whose they are.
#[derive(Debug, thiserror::Error)]
pub enum ColorError {
    /// The machine has no such cache level.
    #[error("this machine declares no data cache of level {level}\n  hint: name one that it declares")]
    NoSuchLevel {
        /// Level asked for.
        level: u8,
    },
    /// A level has a single color.
    #[error("{} has a single page color, so pages cannot be kept apart in it\n  hint: where the processor offers it, ways can be partitioned through resctrl", level.map_or_else(|| "every cache level".to_owned(), |l| format!("level {l}")))]
    OneColor {
        /// Level asked for; all where it is none.
        level: Option<u8>,
    },
    /// A region of no pages or no colors was asked for.
    #[error("memory of no pages or no colors was asked for\n  hint: name at least one color and one page")]
    NothingAsked,
    /// A color that does not exist.
    #[error("there is no color {color}: the level has {count} colors, numbered from 0\n  hint: the last is {}", count.saturating_sub(1))]
    NoSuchColor {
        /// Color asked for.
        color: u16,
        /// Colors there are.
        count: usize,
    },
    /// Too few pages of a color.
    #[error(
        "color {color} has {free} free pages, {wanted} are needed\n  hint: raise the memory limit, or use more colors"
    )]
    ColorExhausted {
        /// The color.
        color: u16,
        /// Pages needed of it.
        wanted: usize,
        /// Pages free.
        free: usize,
    },
    /// The kernel refused to move pages.
    #[error(
        "{pages} pages could not be put in place: {source}\n  hint: if this kernel lacks UFFDIO_MOVE (Linux 6.8), raise vm.max_map_count"
    )]
    MoveFailed {
        /// Pages to be moved.
        pages: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A memory limit too small to find colors in.
    #[error("a memory limit of {limit} is too small to tell colors apart, {needed} are needed")]
    TooLittleMemory {
        /// The limit given.
        limit: Bytes,
        /// The least that is needed.
        needed: Bytes,
    },
    /// A walk that hits the level takes about as long as one that misses it.
    #[error(
        "a walk over {lines} cached lines takes {hit_ticks} ticks and over {lines} evicted ones {miss_ticks}: too close to tell apart\n  hint: give the process a CPU of its own, or use hardware counters where there are any"
    )]
    TimingBlurred {
        /// Ticks of a walk that hits, third quartile.
        hit_ticks: u64,
        /// Ticks of a walk that misses, first quartile.
        miss_ticks: u64,
        /// Lines per walk.
        lines: u32,
    },
    /// No set of pages was found that evicts others.
    #[error(
        "no set of pages evicts others from level {level}\n  hint: the level may be larger or shared with a busy neighbor"
    )]
    NoEviction {
        /// Cache level.
        level: u8,
    },
    /// A cache loses its contents by itself faster than they can be looked at.
    #[error(
        "this CPU's cache loses its contents by itself: in {disturbed} of {tests} eviction tests pages were gone that nothing competed with\n  hint: try again when the machine is quieter, or on another CPU"
    )]
    CacheUnsteady {
        /// Tests that were disturbed.
        disturbed: u64,
        /// Tests made.
        tests: u64,
    },
    /// A cache has lost its contents a moment after they were touched.
    #[error(
        "this CPU's cache loses its contents by itself: a walk over {lines} lines touched a moment before takes {hit_ticks} ticks, as long as over evicted ones ({miss_ticks}), and {inner_ticks} where they are in the level inside\n  hint: another program or a neighbor on the host uses this cache: try again later, or on another CPU"
    )]
    CacheNotKept {
        /// Lines of the walk.
        lines: u32,
        /// Ticks of the walk where its lines should be in the level.
        hit_ticks: u64,
        /// Ticks of the walk where its lines were evicted.
        miss_ticks: u64,
        /// Ticks of the walk where its lines are in the level inside.
        inner_ticks: u64,
    },
    /// The helper that times pages inside a process was not given a CPU.
    #[error("the helper that times them does not answer\n  hint: try again when the machine is quieter")]
    NoAnswer,
    /// The requests to the helper that times pages inside a process cannot be read or written.
    #[error("what its memory says of them cannot be read or written: {source}\n  hint: has it ended?")]
    RemoteUnreadable {
        /// What the kernel said.
        source: io::Error,
    },
    /// Frame numbers read as zero.
    #[error(
        "/proc/self/pagemap: frame numbers read as zero, CAP_SYS_ADMIN is missing\n  hint: run as root, or let the palette be measured"
    )]
    FramesHidden,
    /// Eviction tests contradict the colors computed from frame bits.
    #[error(
        "frame-number bits do not give the color here: {wrong} of {tested} {what} fail the eviction test, as in virtual machines and where the set index is hashed\n  hint: let the palette be measured"
    )]
    BitsContradicted {
        /// What was tested: colors or pages.
        what: &'static str,
        /// Those that failed.
        wrong: usize,
        /// How many were tested.
        tested: usize,
    },
    /// Pages of known color are wanted, and their colors are not certain.
    #[error("the palette is in doubt: {doubt}\n  hint: try again when the machine is quieter, or on another CPU")]
    ReferenceInDoubt {
        /// What speaks against them.
        doubt: String,
    },
    /// The eviction set of a color evicts no more.
    #[error(
        "pages of known color {color} do not evict each other any more: they were given other frames\n  hint: try again, and they are measured anew"
    )]
    ReferenceLost {
        /// The color.
        color: u16,
    },
    /// Pages of known color evict those of other colors: some are no longer what they were.
    #[error(
        "pages of known color evict pages of other colors: they were given other frames; of {pairs} eviction tests beside a control without a traversal, {by_set} lost such a page in the test alone, and {by_itself} in the control alone\n  hint: try again, and they are measured anew"
    )]
    ReferenceMixed {
        /// Pairs in which the test alone lost a page that nothing should have competed with.
        by_set: u64,
        /// Pairs in which the control alone did.
        by_itself: u64,
        /// Pairs of a test and its control.
        pairs: usize,
    },
    /// No pages of known color are saved.
    #[error(
        "{path}: no pages of known color are saved for level {level}\n  hint: measure and save them, as the user who will start programs on colors"
    )]
    NoReference {
        /// What would say which they are.
        path: PathBuf,
        /// Cache level.
        level: u8,
    },
    /// A program cannot open the pages of known color.
    #[error(
        "{path}: {source}, as the program opens it\n  hint: it must be able to read the file; if there is none any more, measure and save it anew"
    )]
    NotOpenedThere {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No palette is saved.
    #[error("{path}: no palette of level {level} is saved\n  hint: measure and save it, as root")]
    NoSavedPalette {
        /// Where it would be.
        path: PathBuf,
        /// Cache level.
        level: u8,
    },
    /// The saved palette is of an earlier boot.
    #[error(
        "{path}: the saved palette is stale: it was measured before this boot, and frames have other colors since\n  hint: measure and save it again"
    )]
    SavedPaletteStale {
        /// The file.
        path: PathBuf,
    },
    /// The saved palette is of another machine.
    #[error("{path}: the saved palette is of another machine or cache\n  hint: measure and save it here")]
    SavedPaletteForeign {
        /// The file.
        path: PathBuf,
    },
    /// The saved palette is cut, edited or of another version.
    #[error("{path}: not a whole saved palette of this version\n  hint: measure and save it again")]
    SavedPaletteDamaged {
        /// The file.
        path: PathBuf,
    },
    /// Too few frames that the palette knows could be had to test it.
    #[error(
        "the palette cannot be tested: of {pages} pages of fresh memory it knows the frames of {known}, too few of some color\n  hint: measure more of the memory that is free"
    )]
    PaletteUntested {
        /// Pages looked up.
        pages: usize,
        /// Pages whose frames the palette knows.
        known: usize,
    },
    /// Eviction tests contradict the palette.
    #[error(
        "the palette does not hold any more: {wrong} of {tested} colors fail the eviction test, so frames were remapped\n  hint: measure and save it again"
    )]
    PaletteContradicted {
        /// Colors that failed.
        wrong: usize,
        /// Colors tested.
        tested: usize,
    },
    /// Colors that belong to another.
    #[error(
        "colors {colors} of level {level} belong to {owner} (process {pid}, CPUs {cpus})\n  hint: choose others that are free, or let both be of one group, which shares them"
    )]
    ColorsHeld {
        /// Colors asked for that it holds, as a list.
        colors: String,
        /// Name of the owner.
        owner: String,
        /// Its process.
        pid: u32,
        /// CPUs of its grant, as a list.
        cpus: String,
        /// Cache level.
        level: u8,
    },
    /// Fewer free colors than asked for.
    #[error(
        "{wanted} free colors were asked for, {free} are left; others are held by {held_by}\n  hint: ask for fewer, or end one of them"
    )]
    TooFewFreeColors {
        /// Colors asked for.
        wanted: usize,
        /// Colors that nobody else holds.
        free: usize,
        /// Who holds the others.
        held_by: String,
    },
    /// The counters that eviction tests take cannot be used.
    #[error("{0}")]
    Counter(#[from] CounterError),
    /// The process whose pages are asked about says nothing of itself.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// A file or memory cannot be had, or a signal asked to finish.
    #[error("{0}")]
    System(#[from] SystemError),
}

impl ColorError {
    /// Whether a disturbance can be the cause, so that trying again makes sense.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            ColorError::TimingBlurred { .. }
                | ColorError::NoEviction { .. }
                | ColorError::PaletteContradicted { .. }
                | ColorError::ReferenceInDoubt { .. }
                | ColorError::ReferenceLost { .. }
                | ColorError::ReferenceMixed { .. }
                | ColorError::CacheUnsteady { .. }
                | ColorError::CacheNotKept { .. }
                | ColorError::NoAnswer
        )
    }
}
