//! Machine models that come from a description, not from measurements.

use serde::{Deserialize, Serialize};

use super::{ConfigError, Costs, Hierarchy, Level, Semantics};
use crate::machine::Holds;
use crate::units::{Bytes, Color};

/// Most cycles that one event may take, so that clocks do not overflow.
const CYCLES_MAX: u64 = 1_000_000;

/// Version of the description.
pub const SCHEMA: &str = "isochrome-described/1";

/// A machine as data sheets and papers describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineModel {
    /// Version of the format: [`SCHEMA`].
    pub schema: String,
    /// Full name of the machine.
    pub name: String,
    /// Source of each fact, in words, including assumptions.
    pub sources: Vec<String>,
    /// Bytes per page.
    pub page_bytes: Bytes,
    /// Caches of one CPU, innermost first.
    pub levels: Vec<LevelModel>,
    /// Switches in which simulators and machines differ.
    #[serde(default)]
    pub semantics: Semantics,
    /// Time of each kind of transfer.
    pub timing: Timing,
}

/// A cache of a machine model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelModel {
    /// Whether the cache holds data, instructions or both.
    pub holds: Holds,
    /// Whether all CPUs share the cache.
    #[serde(default)]
    pub shared: bool,
    /// The cache.
    pub cache: Level,
}

/// Cycles of each event. They are simply added up: nothing overlaps, except writes in a write buffer. An instruction fetch that
/// hits its first level takes one cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Cycles of an access of the program that hits the first level.
    pub access_cycles: u64,
    /// Cycles of a read by the level above, for each level below the first, outwards.
    pub read_cycles: Vec<u64>,
    /// Cycles of a write by the level above, for each level below the first, outwards.
    pub write_cycles: Vec<u64>,
    /// Cycles to read a line from memory.
    pub memory_read_cycles: u64,
    /// Cycles to write a line, or a word that is written through, to memory.
    pub memory_write_cycles: u64,
    /// Number of writes to memory that the write buffer holds without the CPU having to wait; 0 if the CPU waits for each write.
    #[serde(default)]
    pub write_buffer_entries: u32,
}

impl Timing {
    /// Returns a timing for a machine with `levels` data levels in which every access takes one cycle, wherever its line is
    /// found. The clock then counts accesses.
    pub fn by_accesses(levels: usize) -> Timing {
        let nothing = vec![0; levels.saturating_sub(1)];
        Timing {
            access_cycles: 1,
            read_cycles: nothing.clone(),
            write_cycles: nothing,
            memory_read_cycles: 0,
            memory_write_cycles: 0,
            write_buffer_entries: 0,
        }
    }
}

macro_rules! texts {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../../machines/", $name, "/described.json")))),*]
    };
}

/// Texts of the machines that come with isochrome, by the names of their folders.
static TEXTS: [(&str, &str); 13] = texts![
    "486-33",
    "pentium-90",
    "pentium-133",
    "pentium-pro-133",
    "pentium-ii",
    "mpc750",
    "i7-2600",
    "zen3",
    "cortex-a53",
    "imx8mm",
    "cortex-a57",
    "cortex-a72",
    "cortex-a76"
];

impl MachineModel {
    /// Creates a machine with these levels for data and code, given innermost first, in which every access takes one cycle.
    pub fn of_levels(name: &str, levels: impl IntoIterator<Item = Level>) -> MachineModel {
        let level = |(number, cache): (usize, Level)| {
            let cache = cache.named(&format!("L{number}"));
            LevelModel { holds: Holds::Unified, shared: false, cache }
        };
        let levels: Vec<LevelModel> = (1..).zip(levels).map(level).collect();
        MachineModel {
            schema: SCHEMA.to_owned(),
            name: name.to_owned(),
            sources: Vec::new(),
            page_bytes: Bytes(4096),
            semantics: Semantics::default(),
            timing: Timing::by_accesses(levels.len()),
            levels,
        }
    }

    /// Returns a machine that comes with isochrome; `None` if none has this name.
    pub fn named(name: &str) -> Option<MachineModel> {
        let (_, text) = TEXTS.iter().find(|(known, _)| *known == name)?;
        Some(serde_json::from_str(text).expect("the descriptions are tested"))
    }

    /// Returns the names of the machines that come with isochrome.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TEXTS.iter().map(|(name, _)| *name)
    }

    /// Checks that pages and levels with these numbers can exist, so that they have colors.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !self.page_bytes.0.is_power_of_two() {
            let what = format!("{}: a page of {} bytes is not a power of two", self.name, self.page_bytes.0);
            return Err(ConfigError::Hierarchy { what });
        }
        self.levels.iter().try_for_each(|level| level.cache.check())
    }

    /// Creates the caches of `cpus` CPUs: one cache per CPU of every private level, and one of every shared level. If there
    /// are several CPUs, the private caches of CPU i are called `NAME.i`.
    pub fn hierarchy(&self, cpus: u32) -> Result<Hierarchy, ConfigError> {
        self.check()?;
        let wrong = |what: &str| Err(ConfigError::Hierarchy { what: format!("{}: {what}", self.name) });
        let timing = &self.timing;
        let data_levels = self.levels.iter().filter(|level| level.holds != Holds::Instruction).count();
        if [&timing.read_cycles, &timing.write_cycles].iter().any(|cycles| cycles.len() + 1 != data_levels) {
            return wrong("there is no time for each data level below the first");
        }
        let others = [timing.access_cycles, timing.memory_read_cycles, timing.memory_write_cycles];
        if timing.read_cycles.iter().chain(&timing.write_cycles).chain(&others).any(|cycles| *cycles > CYCLES_MAX) {
            return wrong("an event takes more than a million cycles");
        }
        let mut hierarchy = Hierarchy::new(self.semantics);
        let memory = Costs { read_cycles: timing.memory_read_cycles, write_cycles: timing.memory_write_cycles };
        hierarchy.set_memory_costs(memory, timing.write_buffer_entries);
        // `depth`: number of data levels from this level outwards.
        let mut add = |level: &LevelModel, name: &str, below, depth: usize| {
            let id = hierarchy.add(level.cache.clone().named(name), below)?;
            let costs = match (level.holds, data_levels - depth) {
                (Holds::Instruction, _) => Costs { read_cycles: 1, write_cycles: 0 },
                (_, 0) => Costs { read_cycles: timing.access_cycles, write_cycles: timing.access_cycles },
                (_, n) => Costs { read_cycles: timing.read_cycles[n - 1], write_cycles: timing.write_cycles[n - 1] },
            };
            hierarchy.set_costs(id, costs);
            Ok::<_, ConfigError>(Some(id))
        };
        let (shared, private): (Vec<_>, Vec<_>) = self.levels.iter().rev().partition(|level| level.shared);
        let mut below = None;
        for (depth, level) in (1..).zip(&shared) {
            if level.holds != Holds::Unified {
                return wrong("a shared level holds data and instructions");
            }
            below = add(level, &level.cache.name, below, depth)?;
        }
        let mut entries = Vec::new();
        for cpu in 0..cpus {
            let mut data = below;
            let mut instructions = below;
            let mut depth = shared.len();
            for level in &private {
                let name = &level.cache.name;
                let name = if cpus > 1 { format!("{name}.{cpu}") } else { name.clone() };
                depth += usize::from(level.holds != Holds::Instruction);
                match level.holds {
                    Holds::Unified if data == instructions => {
                        data = add(level, &name, data, depth)?;
                        instructions = data;
                    }
                    Holds::Unified => return wrong("a unified level lies above a split one"),
                    Holds::Data => data = add(level, &name, data, depth)?,
                    Holds::Instruction => instructions = add(level, &name, instructions, depth)?,
                }
            }
            entries.push((data, instructions));
        }
        for (data, instructions) in entries {
            match (data, instructions) {
                (Some(data), Some(instructions)) => hierarchy.enter(data, instructions),
                _ => return wrong("no cache for data or for instructions"),
            };
        }
        Ok(hierarchy)
    }

    /// Returns the number of colors of each data level, innermost first.
    pub fn colors(&self) -> Vec<(String, u32)> {
        let data = self.levels.iter().filter(|level| level.holds != Holds::Instruction);
        data.map(|level| (level.cache.name.clone(), level.cache.color_count(self.page_bytes))).collect()
    }
}

impl Level {
    /// Returns the number of page colors of this level, or of one slice if hashed address bits select the slice.
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

    /// Returns whether pages of different colors share no set. They may share one if the sets are not a whole number of pages.
    pub fn colors_are_disjoint(&self, page_bytes: Bytes) -> bool {
        let bytes = self.geometry.set_count * self.geometry.line_bytes.0;
        matches!(self.index, super::Index::Xor(_)) || bytes.is_multiple_of(page_bytes.0)
    }

    /// Returns the color of the page at a physical address.
    pub fn color_of(&self, address: u64, page_bytes: Bytes) -> Color {
        Color((address / page_bytes.0 % u64::from(self.color_count(page_bytes))) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Access;

    #[test]
    fn every_description_can_be_modeled_and_says_its_sources() {
        for name in MachineModel::names() {
            let machine = MachineModel::named(name).unwrap();
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
        assert!(MachineModel::named("vax").is_none());
    }

    #[test]
    fn pages_that_cannot_be_divided_into_are_refused() {
        for page_bytes in [0, 3, 4097] {
            let machine = MachineModel { page_bytes: Bytes(page_bytes), ..MachineModel::named("zen3").unwrap() };
            assert!(machine.check().is_err() && machine.hierarchy(1).is_err(), "{page_bytes}");
        }
    }

    #[test]
    fn the_machines_have_the_colors_of_the_papers() {
        // [Liedtke1997, Table 1]; [Kim2013, §5.1] for one slice of the i7-2600.
        let cases = [("486-33", 64), ("pentium-90", 64), ("pentium-133", 64), ("pentium-pro-133", 16), ("i7-2600", 32)];
        for (name, expected) in cases {
            let colors = MachineModel::named(name).unwrap().colors();
            assert_eq!(colors.first().unwrap().1, 1, "{name}: the first level has one color");
            assert_eq!(colors.last().unwrap().1, expected, "{name}");
        }
    }

    #[test]
    fn a_write_buffer_hides_writes_until_it_is_full() {
        let machine = |write_buffer_entries| {
            let text = "256:2:32:lru:wt:nwa";
            let cache = text.parse::<Level>().unwrap().named("L1");
            let level = LevelModel { holds: Holds::Unified, shared: false, cache };
            let mut timing = Timing::by_accesses(1);
            (timing.memory_read_cycles, timing.memory_write_cycles) = (50, 10);
            timing.write_buffer_entries = write_buffer_entries;
            let mut machine = MachineModel::named("zen3").unwrap();
            (machine.levels, machine.timing) = (vec![level], timing);
            machine.hierarchy(1).unwrap()
        };
        let cycles = |write_buffer_entries, writes: u64| {
            let mut hierarchy = machine(write_buffer_entries);
            (0..writes).for_each(|i| hierarchy.access(Access::write(i * 32)));
            hierarchy.cycles()
        };
        // A store takes one cycle, and ten more for memory unless the buffer has room. The first write is done at 1 + 10 = 11.
        // The 4th store, which ends at 4, has to wait until then. From then on, a store goes on whenever a write is done.
        assert_eq!(cycles(0, 10), 110);
        assert_eq!([1, 2, 3, 4, 5].map(|writes| cycles(3, writes)), [1, 2, 3, 11, 21]);
        // A read overtakes the writes, and they are done during the read.
        let mut hierarchy = machine(3);
        (0..3).for_each(|i| hierarchy.access(Access::write(i * 32)));
        hierarchy.access(Access::read(1 << 20));
        assert_eq!(hierarchy.cycles(), 3 + 51);
        hierarchy.reset_counts();
        (0..3).for_each(|i| hierarchy.access(Access::write(i * 32)));
        assert_eq!(hierarchy.cycles(), 3);
    }
}
