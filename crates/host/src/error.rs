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
}
