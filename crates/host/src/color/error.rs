//! Errors of measuring, checking and reserving colors.

use std::io;
use std::path::PathBuf;

use isochrome_model::units::Bytes;

use crate::counters::CounterError;
use crate::error::SystemError;
use crate::process::ProcessError;

/// An error with colors: of the machine, of pages, of a palette, or of the ownership of colors.
#[derive(Debug, thiserror::Error)]
pub enum ColorError {
    /// The machine has no such cache level.
    #[error("this machine declares no data cache of level {level}\n  hint: name one that it declares")]
    NoSuchLevel {
        /// Requested level.
        level: u8,
    },
    /// A level has a single color.
    #[error("{} has a single page color, so pages cannot be kept apart in it\n  hint: where the processor offers it, ways can be partitioned through resctrl", level.map_or_else(|| "every cache level".to_owned(), |l| format!("level {l}")))]
    OneColor {
        /// Requested level; `None` stands for all levels.
        level: Option<u8>,
    },
    /// A region of no pages or no colors was requested.
    #[error("memory of no pages or no colors was requested\n  hint: name at least one color and one page")]
    NothingAsked,
    /// A color that does not exist.
    #[error("there is no color {color}: the level has {count} colors, numbered from 0\n  hint: the last is {}", count.saturating_sub(1))]
    NoSuchColor {
        /// Requested color.
        color: u16,
        /// Number of colors of the level.
        count: usize,
    },
    /// Too few pages of a color.
    #[error(
        "color {color} has {free} free pages, {wanted} are needed\n  hint: raise the memory limit, or use more colors"
    )]
    ColorExhausted {
        /// The color.
        color: u16,
        /// Number of pages of the color that are needed.
        wanted: usize,
        /// Number of free pages of the color.
        free: usize,
    },
    /// The kernel refused to move pages.
    #[error(
        "{pages} pages could not be put in place: {source}\n  hint: if this kernel lacks UFFDIO_MOVE (Linux 6.8), raise vm.max_map_count"
    )]
    MoveFailed {
        /// Number of pages to be moved.
        pages: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// A memory limit too small to find colors in.
    #[error("a memory limit of {limit} is too small to tell colors apart, {needed} are needed")]
    TooLittleMemory {
        /// The limit given.
        limit: Bytes,
        /// The least memory that is needed.
        needed: Bytes,
    },
    /// Walks that hit the level take about as long as walks that miss it.
    #[error(
        "three quarters of the walks over {lines} cached lines take up to {hit_ticks} ticks, and three quarters of those over {lines} evicted ones {miss_ticks} or more: too close to tell apart\n  hint: give the process a CPU of its own, or use hardware counters where there are any"
    )]
    TimingBlurred {
        /// Ticks of a walk that hits, third quartile.
        hit_ticks: u64,
        /// Ticks of a walk that misses, first quartile.
        miss_ticks: u64,
        /// Number of lines per walk.
        lines: u32,
    },
    /// No set of pages was found that evicts other pages.
    #[error(
        "no set of pages evicts others from level {level}\n  hint: the level may be larger or shared with a busy neighbor"
    )]
    NoEviction {
        /// Cache level.
        level: u8,
    },
    /// A cache loses its contents by itself, so fast that most eviction tests are disturbed.
    #[error(
        "this CPU's cache loses its contents by itself: in {disturbed} of {tests} eviction tests, pages were evicted although nothing \
         competed with them\n  hint: try again when the machine is less busy, or on another CPU"
    )]
    CacheUnsteady {
        /// Number of tests that were disturbed.
        disturbed: u64,
        /// Number of tests made.
        tests: u64,
    },
    /// A cache has lost its contents a moment after they were touched.
    #[error(
        "this CPU's cache loses its contents by itself: a walk over {lines} lines touched a moment before takes {hit_ticks} ticks, as long as over evicted ones ({miss_ticks}), and {inner_ticks} where they are in the level inside\n  hint: another program or a neighbor on the host uses this cache: try again later, or on another CPU"
    )]
    CacheNotKept {
        /// Number of lines of the walk.
        lines: u32,
        /// Ticks of the walk where its lines should be in the level.
        hit_ticks: u64,
        /// Ticks of the walk where its lines were evicted.
        miss_ticks: u64,
        /// Ticks of the walk where its lines are in the level inside.
        inner_ticks: u64,
    },
    /// The helper that times pages inside a process did not answer in time.
    #[error("the helper that times them does not answer\n  hint: try again when the machine is less busy")]
    NoAnswer,
    /// The memory of a process through which its helper receives requests cannot be read or written.
    #[error("its memory with the test requests cannot be read or written: {source}\n  hint: has it ended?")]
    RemoteUnreadable {
        /// The kernel's error.
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
        /// Kind of the items that were tested: `colors` or `pages`.
        what: &'static str,
        /// Number of items that failed.
        wrong: usize,
        /// Number of items that were tested.
        tested: usize,
    },
    /// The colors of the pages of known color are not certain.
    #[error("the palette is in doubt: {doubt}\n  hint: try again when the machine is less busy, or on another CPU")]
    ReferenceInDoubt {
        /// Reason for the doubt.
        doubt: String,
    },
    /// The eviction set of a color no longer evicts pages of its color.
    #[error(
        "pages of known color {color} do not evict each other any more: they were given other frames\n  hint: try again, and they are measured anew"
    )]
    ReferenceLost {
        /// The color.
        color: u16,
    },
    /// Pages of known color evict pages of other colors, because some of them have other frames now.
    #[error(
        "pages of known color evict pages of other colors, because they were given other frames. In {pairs} pairs of an eviction test and a control without a traversal, {by_set} lost such a page in the test alone, and {by_itself} in the control alone\n  hint: try again, and they are measured anew"
    )]
    ReferenceMixed {
        /// Number of pairs in which only the test lost a page with which nothing should have competed.
        by_set: u64,
        /// Number of pairs in which only the control lost such a page.
        by_itself: u64,
        /// Number of pairs of a test and its control.
        pairs: usize,
    },
    /// No pages of known color are saved.
    #[error(
        "{path}: no pages of known color are saved for level {level}\n  hint: measure and save them, as the user who will start programs on colors"
    )]
    NoReference {
        /// File that would list the pages.
        path: PathBuf,
        /// Cache level.
        level: u8,
    },
    /// A program cannot open the pages of known color.
    #[error(
        "{path}: {source}, as the program opens it\n  hint: it must be able to read the file; if it no longer exists, measure and save it anew"
    )]
    NotOpenedThere {
        /// The file.
        path: PathBuf,
        /// Error of opening the file.
        source: io::Error,
    },
    /// No palette is saved.
    #[error("{path}: no palette of level {level} is saved\n  hint: measure and save it, as root")]
    NoSavedPalette {
        /// File that would hold the palette.
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
    #[error("{path}: the saved palette is damaged or of another version\n  hint: measure and save it again")]
    SavedPaletteDamaged {
        /// The file.
        path: PathBuf,
    },
    /// The palette knows the frames of too few pages of fresh memory to be tested.
    #[error(
        "the palette cannot be tested: it knows the frames of {known} of {pages} pages of fresh memory, too few of some color\n  hint: measure more of the memory that is free"
    )]
    PaletteUntested {
        /// Number of pages looked up.
        pages: usize,
        /// Number of pages whose frames the palette knows.
        known: usize,
    },
    /// Eviction tests contradict the palette.
    #[error(
        "the palette does not hold any more: {wrong} of {tested} colors fail the eviction test, so frames were remapped\n  hint: measure and save it again"
    )]
    PaletteContradicted {
        /// Number of colors that failed.
        wrong: usize,
        /// Number of colors tested.
        tested: usize,
    },
    /// Requested colors belong to another owner.
    #[error(
        "colors {colors} of level {level} belong to {owner} (process {pid}, CPUs {cpus})\n  hint: choose others that are free, or let both be of one group, which shares them"
    )]
    ColorsHeld {
        /// The requested colors that the owner holds, as a list.
        colors: String,
        /// Name of the owner.
        owner: String,
        /// Process number of the owner.
        pid: u32,
        /// CPUs of the owner's grant, as a list.
        cpus: String,
        /// Cache level.
        level: u8,
    },
    /// Fewer colors are free than were requested.
    #[error(
        "{wanted} free colors were requested, {free} are left; others are held by {held_by}\n  hint: request fewer, or end one of them"
    )]
    TooFewFreeColors {
        /// Number of colors requested.
        wanted: usize,
        /// Number of colors that nobody else holds.
        free: usize,
        /// Owners of the other colors, as a list.
        held_by: String,
    },
    /// The performance counters for eviction tests cannot be used.
    #[error("{0}")]
    Counter(#[from] CounterError),
    /// The process whose pages are to be tested cannot be inspected.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// A file or memory is not available, or a signal has asked the program to finish.
    #[error("{0}")]
    System(#[from] SystemError),
}

impl ColorError {
    /// Whether a disturbance can be the cause of this error, so that trying again makes sense.
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
