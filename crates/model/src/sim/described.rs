//! Machines that are described, not measured.

use serde::{Deserialize, Serialize};

use super::{CacheId, ConfigError, Hierarchy, Level, Semantics};
use crate::machine::Holds;
use crate::units::{Bytes, Color};

/// Version of the description.
pub const SCHEMA: &str = "isochrome-described/1";

/// A machine as data sheets and papers describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescribedMachine {
    /// [`SCHEMA`].
    pub schema: String,
    /// Full name.
    pub name: String,
    /// Where each fact comes from, in words, assumptions included.
    pub sources: Vec<String>,
    /// Bytes per page.
    pub page_bytes: Bytes,
    /// Caches of one CPU, innermost first.
    pub levels: Vec<DescribedLevel>,
    /// The switches.
    #[serde(default)]
    pub semantics: Semantics,
    /// Time of each kind of transfer.
    pub timing: Timing,
}

/// A cache of a described machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescribedLevel {
    /// What it holds.
    pub holds: Holds,
    /// Whether all CPUs share it.
    #[serde(default)]
    pub shared: bool,
    /// The cache.
    pub cache: Level,
}

/// Cycles that each event takes, simply added up: nothing overlaps, except writes behind a write buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// An access of the program that the first level answers.
    pub access_cycles: u64,
    /// A read by the level above, per level below the first, outwards.
    pub read_cycles: Vec<u64>,
    /// A write by the level above, likewise.
    pub write_cycles: Vec<u64>,
    /// A line read from memory.
    pub memory_read_cycles: u64,
    /// A line, or a word written through, written to memory.
    pub memory_write_cycles: u64,
}

macro_rules! texts {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../../machines/", $name, "/described.json")))),*]
    };
}

/// The machines that come with isochrome, by the names of their folders.
static TEXTS: [(&str, &str); 9] = texts![
    "486-33",
    "pentium-90",
    "pentium-133",
    "pentium-pro-133",
    "pentium-ii",
    "mpc750",
    "i7-2600",
    "zen3",
    "cortex-a72"
];

impl DescribedMachine {
    /// A machine that comes with isochrome.
    pub fn named(name: &str) -> Option<DescribedMachine> {
        let (_, text) = TEXTS.iter().find(|(known, _)| *known == name)?;
        Some(serde_json::from_str(text).expect("the descriptions are tested"))
    }

    /// Names of the machines that come with isochrome.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TEXTS.iter().map(|(name, _)| *name)
    }

    /// The caches of `cpus` CPUs: each its own, and one of every shared level.
    pub fn hierarchy(&self, cpus: u32) -> Result<Hierarchy, ConfigError> {
        let wrong = |what: &str| Err(ConfigError::Hierarchy { what: format!("{}: {what}", self.name) });
        let mut hierarchy = Hierarchy::new(self.semantics);
        let (shared, private): (Vec<_>, Vec<_>) = self.levels.iter().rev().partition(|level| level.shared);
        let mut below = None;
        for level in shared {
            if level.holds != Holds::Unified {
                return wrong("a shared level holds data and instructions");
            }
            below = Some(hierarchy.add(level.cache.clone(), below)?);
        }
        for _ in 0..cpus {
            let mut data = below;
            let mut instructions = below;
            for level in &private {
                match level.holds {
                    Holds::Unified if data == instructions => {
                        data = Some(hierarchy.add(level.cache.clone(), data)?);
                        instructions = data;
                    }
                    Holds::Unified => return wrong("a unified level lies above a split one"),
                    Holds::Data => data = Some(hierarchy.add(level.cache.clone(), data)?),
                    Holds::Instruction => instructions = Some(hierarchy.add(level.cache.clone(), instructions)?),
                }
            }
            match (data, instructions) {
                (Some(data), Some(instructions)) => hierarchy.enter(data, instructions),
                _ => return wrong("no cache for data or for instructions"),
            };
        }
        Ok(hierarchy)
    }

    /// Colors of each data level, innermost first.
    pub fn colors(&self) -> Vec<(String, u32)> {
        let data = self.levels.iter().filter(|level| level.holds != Holds::Instruction);
        data.map(|level| (level.cache.name.clone(), level.cache.color_count(self.page_bytes))).collect()
    }

    /// Cycles of a run of one CPU, from the counts of its data levels.
    pub fn cycles(&self, hierarchy: &Hierarchy, data: &[CacheId]) -> u64 {
        let timing = &self.timing;
        let first = hierarchy.counts(data[0]);
        let lower = data[1..].iter().zip(timing.read_cycles.iter().zip(&timing.write_cycles));
        let lower: u64 = lower
            .map(|(id, (read, write))| {
                let counts = hierarchy.counts(*id);
                counts.reads * read + counts.writes * write
            })
            .sum();
        let memory = hierarchy.memory();
        (first.reads + first.writes) * timing.access_cycles
            + lower
            + memory.reads * timing.memory_read_cycles
            + memory.writes * timing.memory_write_cycles
    }
}

impl Level {
    /// Page colors of this level; of one slice where hashed address bits select it.
    pub fn color_count(&self, page_bytes: Bytes) -> u32 {
        match &self.index {
            super::Index::Xor(masks) => {
                // Index bits that are one address bit each, above the page offset; the others select slices.
                let plain = masks.iter().filter(|mask| mask.count_ones() == 1 && **mask >= page_bytes.0).count();
                1 << plain
            }
            _ => self.geometry.color_count(page_bytes),
        }
    }

    /// Color of a page at a physical address.
    pub fn color_of(&self, address: u64, page_bytes: Bytes) -> Color {
        Color((address / page_bytes.0 % u64::from(self.color_count(page_bytes))) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_description_can_be_modeled_and_says_its_sources() {
        for name in DescribedMachine::names() {
            let machine = DescribedMachine::named(name).unwrap();
            assert_eq!(machine.schema, SCHEMA, "{name}");
            assert!(!machine.sources.is_empty(), "{name}");
            machine.hierarchy(2).unwrap_or_else(|error| panic!("{name}: {error}"));
            let data = machine.levels.iter().filter(|level| level.holds != Holds::Instruction).count();
            assert_eq!(
                (machine.timing.read_cycles.len(), machine.timing.write_cycles.len()),
                (data - 1, data - 1),
                "{name}"
            );
        }
        assert!(DescribedMachine::named("vax").is_none());
    }

    #[test]
    fn the_machines_have_the_colors_of_the_papers() {
        // [Liedtke1997, Table 1]; [Kim2013, §5.1] for one slice of the i7-2600.
        let cases = [("486-33", 64), ("pentium-90", 64), ("pentium-133", 64), ("pentium-pro-133", 16), ("i7-2600", 32)];
        for (name, expected) in cases {
            let colors = DescribedMachine::named(name).unwrap().colors();
            assert_eq!(colors.first().unwrap().1, 1, "{name}: the first level has one color");
            assert_eq!(colors.last().unwrap().1, expected, "{name}");
        }
    }
}
