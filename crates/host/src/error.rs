//! x
/// x
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// x
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A walk that hits the level takes about as long as one that misses it.
    #[error("a walk over {lines} cached lines takes {hit_ticks} ticks and over {lines} evicted ones {miss_ticks}: too close to tell apart\n  hint: give the process a CPU of its own, or use hardware counters where there are any: `isochrome palette --by counters`")]
    TimingBlurred {
        /// Ticks of a walk that hits, third quartile.
        hit_ticks: u64,
        /// Ticks of a walk that misses, first quartile.
        miss_ticks: u64,
        /// Lines per walk.
        lines: u32,
    },
    /// No set of pages was found that evicts others.
    #[error("no set of pages evicts others from level {level}\n  hint: the level may be larger or shared with a busy neighbor; `isochrome probe` shows how well it keeps its contents")]
    NoEviction {
        /// Cache level.
        level: u8,
    },
    /// A region of no pages or no colors was asked for.
    #[error("memory of no pages or no colors was asked for\n  hint: name at least one color, such as --colors 0-3, and one page")]
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
    #[error("color {color} has {free} free pages, {wanted} are needed\n  hint: raise the memory limit (--memory), or use more colors")]
    ColorExhausted {
        /// The color.
        color: u16,
        /// Pages needed of it.
        wanted: usize,
        /// Pages free.
        free: usize,
    },
    /// The kernel refused to move pages.
    #[error("{pages} pages could not be put in place: {source}\n  hint: if this kernel lacks UFFDIO_MOVE (Linux 6.8), raise vm.max_map_count")]
    MoveFailed {
        /// Pages to be moved.
        pages: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
}
