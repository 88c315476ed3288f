//! The cache level to color.

use isochrome_model::geometry::Geometry;
use isochrome_model::machine::{CacheLevel, Holds, Machine};
use isochrome_model::units::{Bytes, CpuId};

use super::discover;
use super::eviction::LevelSizes;
use crate::color::error::ColorError;
use crate::sys::memory::page_bytes;

/// The cache level to color.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Number of the cache level.
    pub level: u8,
    /// Geometry of the level.
    pub geometry: Geometry,
    /// Size of the next data level inside the level.
    pub inner: Bytes,
}

impl Target {
    /// Returns level `level` of `machine`; if it is `None`, the level to color for `cpu`.
    ///
    /// Fails with [`ColorError::NoSuchLevel`] if the machine has no such level, and with [`ColorError::OneColor`] if the level has one color
    /// only, or if no level can be colored.
    pub fn of(machine: &Machine, level: Option<u8>, cpu: CpuId) -> Result<Target, ColorError> {
        let chosen = match level {
            Some(level) => machine.data_level_of(level, cpu).ok_or(ColorError::NoSuchLevel { level })?,
            None => machine.colorable_level(cpu).ok_or(ColorError::OneColor { level: None })?,
        };
        let geometry = chosen.geometry.value;
        if geometry.color_count(machine.page_bytes) < 2 {
            return Err(ColorError::OneColor { level });
        }
        let inner = machine.data_level_of(chosen.level - 1, cpu).map_or(Bytes(0), |l| l.geometry.value.cache_bytes());
        Ok(Target { level: chosen.level, geometry, inner })
    }

    /// Returns the outermost level beyond the first that is private to `cpu`, or else the innermost level beyond the first; `None` if there is
    /// no such level. The level need not be colorable.
    ///
    /// This is the level to flood where nothing can be partitioned.
    pub fn to_flood(machine: &Machine, cpu: CpuId) -> Option<Target> {
        let serves = |level: &&CacheLevel| level.holds != Holds::Instruction && level.level > 1 && level.serves(cpu);
        let data = || machine.levels.iter().filter(serves);
        let chosen = data().filter(|level| level.is_private_to(cpu)).max_by_key(|level| level.level);
        let chosen = chosen.or_else(|| data().min_by_key(|level| level.level))?;
        let inner = machine.data_level_of(chosen.level - 1, cpu).map_or(Bytes(0), |l| l.geometry.value.cache_bytes());
        Some(Target { level: chosen.level, geometry: chosen.geometry.value, inner })
    }

    /// Returns the sizes of the level and of the one inside it.
    pub fn sizes(&self) -> LevelSizes {
        LevelSizes {
            line_bytes: self.geometry.line_bytes.0 as usize,
            inner: self.inner,
            level: self.geometry.cache_bytes(),
        }
    }

    /// Returns the number of pages among which to search for eviction sets: enough to find missing colors, and for the calibration.
    pub(super) fn pages_to_search(&self) -> usize {
        (2 * self.search().pages()).max(self.sizes().pages_needed())
    }

    pub(super) fn search(&self) -> discover::Search {
        discover::Search {
            ways: self.geometry.ways as usize,
            colors_expected: self.geometry.color_count(Bytes(page_bytes() as u64)) as usize,
        }
    }
}
