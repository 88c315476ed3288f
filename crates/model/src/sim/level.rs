//! Description of one cache level, and the switches in which simulators differ.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Policy;
use crate::geometry::Geometry;
use crate::units::Bytes;

/// Most lines of one level that are modeled: a 4 GiB cache of 64-byte lines.
const LINES_MAX: u64 = 1 << 26;

/// Policy for a write that hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteHit {
    /// The line becomes dirty and is written to the level below when it is replaced.
    Back,
    /// The write goes to the level below at once.
    Through,
}

/// Policy for a write that misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMiss {
    /// The line is installed.
    Allocate,
    /// The write goes to the level below, and the line is not installed.
    Around,
    /// Stores install the line. A write-back from above installs it only if no dirty line has to be evicted for it. Otherwise the
    /// write-back goes to the level below. [Loeser1999, §3.2]
    AllocateUnlessDirty,
}

/// How the contents of a level relate to those of the levels above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inclusion {
    /// The contents are unrelated.
    #[default]
    NonInclusive,
    /// A line that leaves this level is invalidated above, before the victim above is chosen.
    Inclusive,
    /// The level is a victim cache: filled by lines that leave the level above, clean or dirty. A line that is read moves
    /// up.
    Exclusive,
}

/// How a line's address selects its set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Index {
    /// The set is the line number modulo the number of sets, which may be any number.
    #[default]
    Modulo,
    /// The set is address bits unchanged; the number of sets must be a power of two.
    Bits,
    /// Bit i of the set index is the parity of the address bits in mask i. The number of sets must be two to the number of masks.
    /// Masks of the upper index bits can also describe slices.
    Xor(Vec<u64>),
}

/// One level of cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Level {
    /// Name in results, such as `L1d`.
    pub name: String,
    /// Size and shape.
    pub geometry: Geometry,
    /// Policy that chooses the line to replace.
    pub policy: Policy,
    /// Policy for a write that hits.
    pub write_hit: WriteHit,
    /// Policy for a write that misses.
    pub write_miss: WriteMiss,
    /// Relation of the contents to those of the levels above.
    #[serde(default)]
    pub inclusion: Inclusion,
    /// How the set is selected.
    #[serde(default)]
    pub index: Index,
    /// Sectors per line, which are fetched and written back separately under one tag; 1 for an ordinary cache.
    #[serde(default = "one")]
    pub sectors: u32,
}

fn one() -> u32 {
    1
}

/// Reasons why a level or a machine cannot be modeled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not a replacement policy.
    #[error(
        "`{text}` is not a replacement policy\n  hint: lru, tree-plru, bit-plru, fifo, random[=SEED] or one of nanoBench's such as qlru-h11-m1-r0-u0"
    )]
    Policy {
        /// The text that was given.
        text: String,
    },
    /// The text is not the short form of a level.
    #[error(
        "`{text}` is not a cache level: {what}\n  hint: SIZE:WAYS:LINE:POLICY:wb|wt:wa|nwa[:inclusive|exclusive], such as 32K:8:64:lru:wb:wa"
    )]
    Short {
        /// The text that was given.
        text: String,
        /// Description of the error.
        what: String,
    },
    /// The numbers of a level are inconsistent.
    #[error("level {name}: {what}")]
    Level {
        /// Name of the level.
        name: String,
        /// Description of the error.
        what: String,
    },
    /// The levels are inconsistent with each other.
    #[error("{what}")]
    Hierarchy {
        /// Description of the error.
        what: String,
    },
}

impl Level {
    /// Creates an LRU, write-back, write-allocate level. It is not checked here; [`Hierarchy`](super::Hierarchy) does that.
    pub fn lru(name: &str, geometry: Geometry) -> Level {
        Level {
            name: name.to_owned(),
            geometry,
            policy: Policy::Lru,
            write_hit: WriteHit::Back,
            write_miss: WriteMiss::Allocate,
            inclusion: Inclusion::NonInclusive,
            index: Index::Modulo,
            sectors: 1,
        }
    }

    /// Returns the level under another name.
    pub fn named(self, name: &str) -> Level {
        Level { name: name.to_owned(), ..self }
    }

    /// Checks that a level with these numbers can exist.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |what: String| Err(ConfigError::Level { name: self.name.clone(), what });
        let Geometry { set_count, ways, line_bytes } = self.geometry;
        if ways == 0 || set_count == 0 {
            return wrong(format!("{set_count} sets of {ways} ways hold nothing"));
        }
        if !line_bytes.0.is_power_of_two() || line_bytes.0 > 1 << 30 {
            return wrong(format!("a line of {} bytes is not a power of two up to 1 GiB", line_bytes.0));
        }
        match set_count.checked_mul(u64::from(ways)) {
            Some(lines) if lines <= LINES_MAX => {}
            _ => return wrong(format!("{set_count} sets of {ways} ways are more than {LINES_MAX} lines")),
        }
        let needs_bits = matches!(self.policy, Policy::TreePlru | Policy::BitPlru);
        if needs_bits && (ways > 64 || self.policy == Policy::TreePlru && !ways.is_power_of_two()) {
            return wrong(format!("{} does not exist for {ways} ways", self.policy));
        }
        match &self.index {
            Index::Modulo => {}
            Index::Bits if set_count.is_power_of_two() => {}
            Index::Bits => {
                return wrong(format!("{set_count} sets cannot be selected by address bits: no power of two"));
            }
            Index::Xor(masks) if masks.len() < 64 && 1 << masks.len() == set_count => {}
            Index::Xor(masks) => return wrong(format!("{} masks do not select one of {set_count} sets", masks.len())),
        }
        let sectors = u64::from(self.sectors);
        if !sectors.is_power_of_two() || sectors > 32 || sectors > line_bytes.0 {
            return wrong(format!(
                "a line of {} bytes in {sectors} sectors: give a power of two up to 32",
                line_bytes.0
            ));
        }
        if self.inclusion == Inclusion::Exclusive && (self.write_hit == WriteHit::Through || sectors > 1) {
            return wrong("an exclusive level is written back and has no sectors".to_owned());
        }
        Ok(())
    }
}

impl FromStr for Level {
    type Err = ConfigError;

    /// Parses `32K:8:64:lru:wb:wa[:inclusive|exclusive|noninclusive]`: size, ways, bytes per line, policy, `wb` or `wt`,
    /// `wa`, `nwa` or `wau` ([`WriteMiss::AllocateUnlessDirty`]). The name is left empty.
    fn from_str(text: &str) -> Result<Level, ConfigError> {
        let short = |what: String| ConfigError::Short { text: text.to_owned(), what };
        let parts: Vec<&str> = text.split(':').collect();
        let (&[size, ways, line, policy, hit, miss], rest) =
            parts.split_first_chunk().ok_or_else(|| short(format!("{} of at least 6 fields given", parts.len())))?;
        let size: Bytes = size.parse().map_err(|_| short(format!("`{size}` is not a size")))?;
        let ways: u32 = ways.parse().map_err(|_| short(format!("`{ways}` is not a number of ways")))?;
        let line: Bytes = line.parse().map_err(|_| short(format!("`{line}` is not a size")))?;
        let geometry = Geometry::of_size(size, ways, line)
            .ok_or_else(|| short(format!("{ways} ways of {line} lines do not divide {size} into whole sets")))?;
        let level = Level {
            policy: policy.parse()?,
            write_hit: match hit {
                "wb" => WriteHit::Back,
                "wt" => WriteHit::Through,
                _ => return Err(short(format!("`{hit}` is neither wb nor wt"))),
            },
            write_miss: match miss {
                "wa" => WriteMiss::Allocate,
                "nwa" => WriteMiss::Around,
                "wau" => WriteMiss::AllocateUnlessDirty,
                _ => return Err(short(format!("`{miss}` is neither wa nor nwa nor wau"))),
            },
            inclusion: match rest {
                [] | ["noninclusive"] => Inclusion::NonInclusive,
                ["inclusive"] => Inclusion::Inclusive,
                ["exclusive"] => Inclusion::Exclusive,
                _ => return Err(short(format!("`{}` is not an inclusion", rest.join(":")))),
            },
            ..Level::lru("", geometry)
        };
        level.check()?;
        Ok(level)
    }
}

/// Points in which simulators and machines differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Semantics {
    /// Whether write hits and incoming write-backs count as use for the replacement policy.
    pub writes_refresh: bool,
    /// Whether a write-back that misses fetches the line before it is installed, even if it covers the whole line.
    pub write_backs_fetch: bool,
    /// Whether the victim is written back before the new line is fetched from below, instead of after. The order matters if both
    /// lines fall into the same set below. [Loeser1999, Table 2] relies on it.
    pub write_back_first: bool,
}

impl Default for Semantics {
    fn default() -> Semantics {
        Semantics { writes_refresh: true, write_backs_fetch: false, write_back_first: false }
    }
}

impl Semantics {
    /// Returns the semantics of pycachesim 0.3: write hits leave the order as it is, and a write-back that misses fetches
    /// the line.
    pub fn pycachesim() -> Semantics {
        Semantics { writes_refresh: false, write_backs_fetch: true, write_back_first: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_says_all_about_a_level() {
        let level: Level = "32K:8:64:lru:wb:wa".parse().unwrap();
        assert_eq!(level, Level::lru("", Geometry { set_count: 64, ways: 8, line_bytes: Bytes(64) }));
        let level: Level = "1536K:12:64:qlru-h11-m1-r0-u0:wt:nwa:inclusive".parse().unwrap();
        assert_eq!(level.geometry.set_count, 2048);
        assert_eq!((level.write_hit, level.write_miss), (WriteHit::Through, WriteMiss::Around));
        assert_eq!(level.inclusion, Inclusion::Inclusive);
    }

    #[test]
    fn what_cannot_exist_is_refused_with_the_reason() {
        let cases = [
            ("32K:8:64:lru:wb", "5 of at least 6"),
            ("32K:0:64:lru:wb:wa", "0 ways"),
            ("32K:7:64:lru:wb:wa", "do not divide"),
            ("32K:8:48:lru:wb:wa", "do not divide"),
            ("36K:8:48:lru:wb:wa", "not a power of two"),
            ("48K:12:64:plru:wb:wa", "tree-plru does not exist for 12 ways"),
            ("32K:8:64:best:wb:wa", "not a replacement policy"),
            ("32K:8:64:lru:xx:wa", "neither wb nor wt"),
            ("32K:8:64:lru:wb:wa:sometimes", "not an inclusion"),
            ("99999999999G:8:64:lru:wb:wa", "not a size"),
            ("1000000G:1:64:lru:wb:wa", "more than"),
            ("32K:8:64:lru:wt:wa:exclusive", "written back"),
        ];
        for (text, reason) in cases {
            let error = text.parse::<Level>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let odd = Level {
            index: Index::Bits,
            ..Level::lru("L2", Geometry { set_count: 96, ways: 1, line_bytes: Bytes(64) })
        };
        assert!(odd.check().unwrap_err().to_string().contains("96 sets cannot be selected"));
    }
}
