//! Cache geometry and the arithmetic of page colors.
//!
//! A physical address splits into tag, set index and line offset. Where set-index bits lie above the page offset, the page
//! frame decides them: those bits are the page's *color*, and pages of different colors never share a cache set.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Color, FrameNumber};

/// Size and shape of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Geometry {
    /// Number of sets of the cache, of all slices together; any positive number.
    pub set_count: u64,
    /// Number of lines in a set.
    pub ways: u32,
    /// Bytes per line.
    pub line_bytes: Bytes,
}

impl Geometry {
    /// Returns the geometry of a cache of `cache_bytes`; `None` unless `ways` lines divide it into a whole, positive number of
    /// sets.
    pub fn of_size(cache_bytes: Bytes, ways: u32, line_bytes: Bytes) -> Option<Geometry> {
        let set_bytes = u64::from(ways).checked_mul(line_bytes.0)?;
        (set_bytes > 0 && cache_bytes.0 > 0 && cache_bytes.0.is_multiple_of(set_bytes)).then(|| Geometry {
            set_count: cache_bytes.0 / set_bytes,
            ways,
            line_bytes,
        })
    }

    /// Returns the size of the cache.
    pub fn cache_bytes(&self) -> Bytes {
        Bytes(self.set_count * u64::from(self.ways) * self.line_bytes.0)
    }

    /// Returns the size of the cache; `None` if it is zero or has no number, as in a file that was edited.
    pub fn checked_bytes(&self) -> Option<Bytes> {
        let set_bytes = u64::from(self.ways).checked_mul(self.line_bytes.0)?;
        self.set_count.checked_mul(set_bytes).filter(|bytes| *bytes > 0).map(Bytes)
    }

    /// Returns the number of page colors: `sets x line / page`, at least 1. [Kim2013, §2.2]
    ///
    /// For a sliced cache give the sets of one slice, because the slice hash is independent of the set index. [Kim2013, §5.1]
    pub fn color_count(&self, page_bytes: Bytes) -> u32 {
        u32::try_from(self.set_count * self.line_bytes.0 / page_bytes.0).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the color of a frame if the set index consists of unchanged address bits: the frame number modulo the number of
    /// colors.
    pub fn color_of(&self, frame: FrameNumber, page_bytes: Bytes) -> Color {
        Color((frame.0 % u64::from(self.color_count(page_bytes))) as u16)
    }

    /// Returns the number of lines of one color, which a task with one color can keep in this cache.
    pub fn lines_per_color(&self, page_bytes: Bytes) -> u64 {
        u64::from(self.ways) * self.set_count / u64::from(self.color_count(page_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Bytes = Bytes(4096);

    fn geometry(cache_kib: u64, ways: u32, line: u64) -> Geometry {
        Geometry::of_size(Bytes(cache_kib << 10), ways, Bytes(line)).unwrap()
    }

    #[test]
    fn second_level_colors_of_the_papers_machines() {
        // [Liedtke1997, Table 1]: 486, Pentium 90, Pentium 133, Pentium Pro.
        assert_eq!(geometry(256, 1, 16).color_count(PAGE), 64);
        assert_eq!(geometry(256, 1, 32).color_count(PAGE), 64);
        assert_eq!(geometry(256, 1, 32).color_count(PAGE), 64);
        assert_eq!(geometry(256, 4, 32).color_count(PAGE), 16);
        // [Kim2013, §5.1]: one of the four 2 MiB, 16-way slices of the i7-2600's L3; 2^(11+6-12) = 32.
        assert_eq!(geometry(2048, 16, 64).color_count(PAGE), 32);
    }

    #[test]
    fn first_level_caches_of_the_papers_machines_have_one_color() {
        // [Liedtke1997, Table 1]: 8 KiB 4-way (486), 8 KiB 2-way (Pentium), 8 KiB 4-way (Pentium Pro).
        for (kib, ways, line) in [(8, 4, 16), (8, 2, 32), (8, 4, 32)] {
            assert_eq!(geometry(kib, ways, line).color_count(PAGE), 1);
        }
    }

    #[test]
    fn sizes_that_do_not_divide_are_no_geometry() {
        assert_eq!(Geometry::of_size(Bytes(1000), 3, Bytes(64)), None);
        assert_eq!(Geometry::of_size(Bytes(4096), 0, Bytes(64)), None);
        assert_eq!(Geometry::of_size(Bytes(0), 8, Bytes(64)), None);
        // 12-way 1.5 MiB (a set count that is not a power of two is fine): 1536 KiB / (12 x 64) = 2048 sets.
        assert_eq!(geometry(1536, 12, 64).set_count, 2048);
        assert_eq!(geometry(1280, 20, 64).color_count(PAGE), 16);
    }

    #[test]
    fn a_color_holds_its_share_of_the_lines() {
        // 512 KiB, 8-way, 64 B: 8192 lines over 16 colors.
        let zen3 = geometry(512, 8, 64);
        assert_eq!(zen3.color_count(PAGE), 16);
        assert_eq!(zen3.lines_per_color(PAGE), 512);
        assert_eq!(zen3.cache_bytes(), Bytes(512 << 10));
        assert_eq!(zen3.color_of(FrameNumber(35), PAGE), Color(3));
    }
}
