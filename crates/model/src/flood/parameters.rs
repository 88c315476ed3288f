//! Parameters of a flood: the ways of the first level and of the flooded one, n1 and n2 of [Loeser1999, §3.2], and their source.
//!
//! The caches that the system declares are checked against the sizes that loads measured. A virtual machine may be shown a smaller cache
//! than it has, and a flood made for that size leaves lines of other tasks. A flood made for a larger cache than there is leaves no more
//! lines than one that fits. So the measured size counts only if it is larger.

use std::fmt;

use crate::geometry::Geometry;
use crate::machine::Source;
use crate::units::Bytes;

/// Least factor between two sizes that counts as a difference, because the curve of loads rises over an octave.
const APART: u64 = 2;

/// The cache level that a flood is made for, with its declared geometry and its measured size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Number of the level.
    pub level: u8,
    /// Geometry that the system declares.
    pub declared: Geometry,
    /// Size that loads measured; `None` if it was not measured.
    pub felt: Option<Bytes>,
}

impl Parameters {
    /// Returns the geometry to make the flood for. If loads measured a larger cache, the geometry has the declared sets, and as many ways
    /// as these need to hold the measured size.
    pub fn geometry(&self) -> Geometry {
        match self.felt {
            Some(felt) if self.source() == Source::Measured => {
                let way_bytes = (self.declared.set_count * self.declared.line_bytes.0).max(1);
                Geometry { ways: u32::try_from(felt.0.div_ceil(way_bytes)).unwrap_or(u32::MAX), ..self.declared }
            }
            _ => self.declared,
        }
    }

    /// Returns where the number of ways comes from.
    pub fn source(&self) -> Source {
        let larger = self.felt.is_some_and(|felt| felt.0 >= APART * self.declared.cache_bytes().0);
        if larger { Source::Measured } else { Source::Sysfs }
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, ways) = (self.declared.cache_bytes(), self.geometry().ways);
        write!(f, "L{}: ", self.level)?;
        // Sizes of the latency curve can be any number of lines, so they are rounded down to whole KiB.
        match self.felt.map(|felt| Bytes(felt.0 >> 10 << 10)) {
            None => write!(f, "{ways} ways, {bytes}, by sysfs; not measured"),
            Some(felt) if self.source() == Source::Measured => write!(
                f,
                "{ways} ways, measured: sysfs says {bytes} in {} ways, and loads showed {felt}",
                self.declared.ways
            ),
            Some(felt) if felt.0 * APART <= bytes.0 => write!(
                f,
                "{ways} ways by sysfs, which says {bytes}, though loads showed {felt} only: a flood that is too large leaves no more than \
                 one that fits"
            ),
            Some(felt) => write!(f, "{ways} ways, {bytes}, by sysfs; loads showed {felt}, which agrees"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(felt: Option<u64>) -> Parameters {
        let declared = Geometry::of_size(Bytes(512 << 10), 8, Bytes(64)).unwrap();
        Parameters { level: 2, declared, felt: felt.map(|kib| Bytes(kib << 10)) }
    }

    #[test]
    fn a_cache_that_is_felt_larger_than_it_is_said_to_be_has_more_ways() {
        let larger = parameters(Some(2048));
        assert_eq!(
            (larger.geometry().ways, larger.geometry().set_count, larger.source()),
            (32, 1024, Source::Measured)
        );
        assert!(
            larger.to_string().contains("L2: 32 ways, measured: sysfs says 512 KiB in 8 ways, and loads showed 2 MiB"),
            "{larger}"
        );
    }

    #[test]
    fn what_agrees_or_is_smaller_is_left_as_it_is_said() {
        for (felt, words) in
            [(Some(430), "agrees"), (Some(900), "agrees"), (Some(200), "showed 200 KiB only"), (None, "not measured")]
        {
            let same = parameters(felt);
            assert_eq!((same.geometry(), same.source()), (same.declared, Source::Sysfs));
            assert!(same.to_string().contains(words) && same.to_string().contains("8 ways"), "{same}");
        }
    }
}
