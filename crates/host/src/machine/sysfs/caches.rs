//! The caches that sysfs shows. Where sysfs hides the shape of a cache, the processor's CPUID supplies it.

use std::collections::BTreeMap;

use isochrome_model::geometry::Geometry;
use isochrome_model::machine::{CacheLevel, Fact, Holds, Source};
use isochrome_model::units::{Bytes, CpuId};

use super::{Note, Processor, Sysfs, cpuid};
use crate::error::SystemError;

/// Upper bound of the number of cache folders of a CPU.
const CACHE_INDEX_LIMIT: u32 = 32;

impl Sysfs {
    /// Returns the cache levels, innermost first, and notes on those that had to be left out.
    pub(super) fn levels(
        &self,
        cpus: &[CpuId],
        processor: &Processor,
    ) -> Result<(Vec<CacheLevel>, Vec<Note>), SystemError> {
        let mut found: BTreeMap<(u8, u8), Vec<CacheLevel>> = BTreeMap::new();
        let mut notes: Vec<Note> = Vec::new();
        let mut note = |subject: String, reason: String| {
            if !notes.iter().any(|n| n.subject == subject && n.reason == reason) {
                notes.push(Note { subject, reason, hint: DECLARE.to_owned() });
            }
        };
        for &cpu in cpus {
            let folders = self.cache_folders(cpu);
            if folders.is_empty() {
                note("caches".to_owned(), format!("sysfs shows none ({})", processor.name));
            }
            // CPUID is read at most once per CPU, and only if sysfs lacks a value.
            let identified = std::cell::OnceCell::new();
            for folder in folders {
                let cache = self.read_cache(&folder);
                let Some((level, holds)) = cache.level.zip(cache.holds) else {
                    note(folder, "its level or type is missing or of an unknown kind".to_owned());
                    continue;
                };
                let subject = format!("level {level} ({})", words(holds));
                let geometry = match cache.geometry() {
                    Some(value) => Some(Fact { value, source: Source::Sysfs }),
                    None => identified
                        .get_or_init(|| if self.is_this_machine { cpuid::caches(cpu) } else { Vec::new() })
                        .iter()
                        .find(|known| known.describes(&cache))
                        .and_then(|known| known.geometry())
                        .map(|value| Fact { value, source: Source::Cpuid }),
                };
                let Some(geometry) = geometry else {
                    note(subject, format!("sysfs hides its shape ({})", cache.describe()));
                    continue;
                };
                if cache.size.is_some_and(|size| size != geometry.value.cache_bytes()) {
                    let (size, shape) = (cache.size.unwrap_or_default(), geometry.value.cache_bytes());
                    note(
                        subject.clone(),
                        format!("sysfs says {size}, but sets, ways and line make {shape}; the latter is used"),
                    );
                }
                let Some(group) = self.cpus_in(&format!("{folder}/shared_cpu_list"))?.filter(|g| g.contains(&cpu))
                else {
                    note(subject, "sysfs does not say which CPUs share it".to_owned());
                    continue;
                };
                let kinds = found.entry((level, holds as u8)).or_default();
                // On machines with two types of core one level has two shapes, each with its own groups.
                match kinds.iter_mut().find(|known| known.geometry == geometry) {
                    Some(known) if known.shared_by.value.contains(&group) => {}
                    Some(known) => known.shared_by.value.push(group),
                    None => kinds.push(CacheLevel {
                        level,
                        holds,
                        geometry,
                        shared_by: Fact { value: vec![group], source: Source::Sysfs },
                        sharing_seen: None,
                        load_ns: None,
                        refill: None,
                        replacement: None,
                        retention: Vec::new(),
                    }),
                }
            }
        }
        Ok((found.into_values().flatten().collect(), notes))
    }

    /// Returns the number by which resctrl names the data cache of `level` that serves `cpu`; `None` where sysfs shows no number.
    pub fn cache_id(&self, level: u8, cpu: CpuId) -> Option<u32> {
        let of_data = |folder: &String| {
            let is =
                |file: &str, wanted: &str| self.text(&format!("{folder}/{file}")).is_some_and(|text| text == wanted);
            is("level", &level.to_string()) && !is("type", "Instruction")
        };
        let folder = self.cache_folders(cpu).into_iter().find(of_data)?;
        self.text(&format!("{folder}/id"))?.parse().ok()
    }

    /// Returns the folders of the caches of `cpu`, relative to the root.
    fn cache_folders(&self, cpu: CpuId) -> Vec<String> {
        (0..CACHE_INDEX_LIMIT)
            .map(|index| format!("sys/devices/system/cpu/cpu{}/cache/index{index}", cpu.0))
            .filter(|folder| self.path(folder).is_dir())
            .collect()
    }

    fn read_cache(&self, folder: &str) -> Described {
        let text = |name: &str| self.text(&format!("{folder}/{name}"));
        // The kernel writes 0 for a value that it does not know.
        let count = |name: &str| text(name).and_then(|t| t.parse::<u64>().ok()).filter(|&n| n > 0);
        Described {
            level: count("level").and_then(|n| u8::try_from(n).ok()),
            holds: text("type").and_then(|t| match t.as_str() {
                "Data" => Some(Holds::Data),
                "Instruction" => Some(Holds::Instruction),
                "Unified" => Some(Holds::Unified),
                _ => None,
            }),
            size: text("size").and_then(|t| t.parse::<Bytes>().ok()).filter(|b| b.0 > 0),
            ways: count("ways_of_associativity").and_then(|n| u32::try_from(n).ok()),
            sets: count("number_of_sets"),
            line: count("coherency_line_size").map(Bytes),
        }
    }
}

const DECLARE: &str = "add the level to the machine file (`isochrome probe -o machine.json`) with set_count, ways and line_bytes from the data sheet, source `declared`";

fn words(holds: Holds) -> &'static str {
    match holds {
        Holds::Data => "data",
        Holds::Instruction => "instructions",
        Holds::Unified => "unified",
    }
}

/// Description of one cache by one source. Values that the source does not give are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Described {
    pub(super) level: Option<u8>,
    pub(super) holds: Option<Holds>,
    pub(super) size: Option<Bytes>,
    pub(super) ways: Option<u32>,
    pub(super) sets: Option<u64>,
    pub(super) line: Option<Bytes>,
}

impl Described {
    /// Returns the shape; `None` unless at least three of size, ways, sets and line are known and consistent.
    pub(super) fn geometry(&self) -> Option<Geometry> {
        match *self {
            Described { ways: Some(ways), sets: Some(set_count), line: Some(line_bytes), .. } => {
                // No cache is so large that this product overflows.
                set_count.checked_mul(u64::from(ways))?.checked_mul(line_bytes.0)?;
                Some(Geometry { set_count, ways, line_bytes })
            }
            Described { size: Some(size), ways: Some(ways), line: Some(line), .. } => {
                Geometry::of_size(size, ways, line)
            }
            Described { size: Some(size), sets: Some(sets), line: Some(line), .. } => {
                let way_bytes = sets.checked_mul(line.0)?;
                let ways = u32::try_from(size.0 / way_bytes).ok()?;
                Geometry::of_size(size, ways, line).filter(|g| g.set_count == sets)
            }
            Described { size: Some(size), sets: Some(sets), ways: Some(ways), .. } => {
                let lines = sets.checked_mul(u64::from(ways))?;
                Geometry::of_size(size, ways, Bytes(size.0 / lines)).filter(|g| g.set_count == sets)
            }
            _ => None,
        }
    }

    /// Whether this describes the same cache as `other`: all values that both contain are equal.
    fn describes(&self, other: &Described) -> bool {
        fn agree<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
            a.zip(b).is_none_or(|(a, b)| a == b)
        }
        self.level == other.level
            && self.holds == other.holds
            && agree(self.size, other.size)
            && agree(self.ways, other.ways)
            && agree(self.sets, other.sets)
            && agree(self.line, other.line)
    }

    fn describe(&self) -> String {
        fn known<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(|| "unknown".to_owned(), |v| v.to_string())
        }
        format!(
            "size {}, ways {}, sets {}, line {}",
            known(self.size),
            known(self.ways),
            known(self.sets),
            known(self.line)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Described = Described {
        level: Some(2),
        holds: Some(Holds::Unified),
        size: Some(Bytes(512 << 10)),
        ways: Some(8),
        sets: Some(1024),
        line: Some(Bytes(64)),
    };

    #[test]
    fn any_three_of_size_ways_sets_and_line_make_the_shape() {
        let full = FULL;
        let shape = Geometry { set_count: 1024, ways: 8, line_bytes: Bytes(64) };
        for partial in [
            full,
            Described { size: None, ..full },
            Described { ways: None, ..full },
            Described { sets: None, ..full },
            Described { line: None, ..full },
        ] {
            assert_eq!(partial.geometry(), Some(shape), "{partial:?}");
        }
        assert_eq!(Described { ways: None, sets: None, ..full }.geometry(), None);
        // Sizes that do not divide, and products beyond 64 bits.
        assert_eq!(Described { ways: None, size: Some(Bytes(1000)), ..full }.geometry(), None);
        assert_eq!(Described { sets: Some(u64::MAX), ..full }.geometry(), None);
        assert_eq!(Described { ways: None, sets: Some(u64::MAX), ..full }.geometry(), None);
    }

    #[test]
    fn another_source_fills_in_only_where_it_means_the_same_cache() {
        let known = FULL;
        let hidden = Described { ways: None, sets: None, ..known };
        assert!(known.describes(&hidden));
        assert!(!known.describes(&Described { size: Some(Bytes(256 << 10)), ..hidden }));
        assert!(!known.describes(&Described { level: Some(3), ..hidden }));
        assert!(!known.describes(&Described { holds: Some(Holds::Data), ..hidden }));
    }
}
