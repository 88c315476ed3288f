//! Flooding: access patterns that leave a cache in the state a task likes least.
//!
//! The pattern is decided here and carried out elsewhere, on real memory or on a modeled cache.

use crate::units::Bytes;

/// What a flood leaves behind in the lines it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Lines that must be written back before they can be replaced.
    Dirty,
    /// Lines that can be replaced at once.
    Clean,
}

/// One access of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Offset into the flooder's memory, at the beginning of a line.
    pub offset: Bytes,
    /// Whether it writes.
    pub write: bool,
}

/// A flood of the whole of a memory area, line by line: the naive flooder of [Liedtke1997, §5.1].
///
/// With as many lines of a color as the cache has ways, each touched twice or more, it displaces everything else of that color
/// under least-recently-used replacement; twice as many lines do so under the approximations in use. The patterns of
/// Löser and Härtig [Loeser1999, §3.2] for the state in which two write-backs precede each refill are not among this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood {
    /// Size of the area.
    pub area: Bytes,
    /// Bytes per line.
    pub line_bytes: Bytes,
    /// Times the area is traversed.
    pub passes: u32,
    /// State of the lines afterwards.
    pub leaves: Leaves,
}

impl Flood {
    /// The accesses, in order.
    pub fn accesses(self) -> impl Iterator<Item = Access> {
        let lines = self.area.0 / self.line_bytes.0.max(1);
        let write = self.leaves == Leaves::Dirty;
        (0..self.passes)
            .flat_map(move |_| (0..lines).map(move |line| Access { offset: Bytes(line * self.line_bytes.0), write }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_touched_once_per_pass_in_order() {
        let flood = Flood { area: Bytes(256), line_bytes: Bytes(64), passes: 2, leaves: Leaves::Dirty };
        let offsets: Vec<u64> = flood.accesses().map(|a| a.offset.0).collect();
        assert_eq!(offsets, [0, 64, 128, 192, 0, 64, 128, 192]);
        assert!(flood.accesses().all(|a| a.write));
        assert!(Flood { leaves: Leaves::Clean, ..flood }.accesses().all(|a| !a.write));
    }

    #[test]
    fn an_empty_area_is_no_flood() {
        let flood = Flood { area: Bytes(63), line_bytes: Bytes(64), passes: 3, leaves: Leaves::Clean };
        assert_eq!(flood.accesses().count(), 0);
    }
}
