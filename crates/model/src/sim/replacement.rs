//! Replacement policies: which line of a full set is evicted.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Rule by which a level chooses the line to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Policy {
    /// The least recently used line is replaced.
    Lru,
    /// A binary tree of bits chooses the line. Each bit points away from the half that was used last. The number of ways must be
    /// a power of two.
    TreePlru,
    /// One bit per way, set on use. When the last bit would be set, the others are cleared. The first way whose bit is clear is
    /// replaced. Also known as MRU or NRU.
    BitPlru,
    /// The line that was filled first is replaced.
    Fifo,
    /// A random line is replaced, chosen by a seeded generator.
    Random {
        /// Seed of the generator.
        seed: u64,
    },
    /// Two-bit ages, in the variants that nanoBench names.
    Qlru(Qlru),
}

/// A quad-age policy, named as nanoBench names it: `qlru-h11-m1-r0-u0`, or with `-umo` at the end.
///
/// Every way has an age from 0 to 3; empty ways have age 3 at first. `H` is the age after a hit, `M` the age of a new line, `R`
/// the choice of the line to replace, and `U` the way ages grow when no way has age 3. The policy behaves as in nanoBench's
/// `cacheSim.py` \[Abel2020\], with two additions. If a mask allows only some ways and none of them has age 3, the oldest line
/// is replaced. Under `umo`, ages do not grow on a miss that fills a way which an inclusive level below had emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qlru {
    /// Age after a hit on a line of age 3 (0 to 2) and of age 2 (0 or 1, at most the former); lines of age 1 and 0 become 0.
    pub hit: [u8; 2],
    /// Age of a new line.
    pub insertion: Insertion,
    /// 0 replaces the leftmost line of age 3, and fills empty ways from the left. 1 does the same, and replaces the leftmost line
    /// if none has age 3. 2 does the same as 0, but fills empty ways from the right.
    pub replacement: u8,
    /// Rule by which ages grow.
    pub update: Update,
    /// Whether ages grow only on a miss, before the line to replace is chosen (`umo`), instead of after every access.
    pub on_miss_only: bool,
}

/// Age of a new line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Insertion {
    /// The line always gets this age.
    Age(u8),
    /// The line gets `age` once in `one_in` times on average, else `otherwise`. `mr161`: age 1 once in 16, else 3. `mr21`: age 1
    /// once in 16, else 2; so `mr31` is the same as `mr161`.
    Rarely {
        /// The age that one in `one_in` new lines gets.
        age: u8,
        /// Denominator of the probability of `age`: one new line in this many gets it.
        one_in: u8,
        /// The age of all other new lines.
        otherwise: u8,
    },
}

/// How the ages of a set grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Update {
    /// `u0`: all ages grow until the oldest is 3.
    ToThree,
    /// `u1`: all ages except that of the line just accessed grow until the oldest of them is 3.
    ToThreeButAccessed,
    /// `u2`: all ages grow by one if none is 3.
    ByOne,
    /// `u3`: all ages except that of the line just accessed grow by one if no age of the set is 3.
    ByOneButAccessed,
}

impl Qlru {
    fn age_after_hit(self, age: u8) -> u8 {
        match age {
            3 => self.hit[0],
            2 => self.hit[1],
            _ => 0,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Lru => f.write_str("lru"),
            Policy::TreePlru => f.write_str("tree-plru"),
            Policy::BitPlru => f.write_str("bit-plru"),
            Policy::Fifo => f.write_str("fifo"),
            Policy::Random { seed: 0 } => f.write_str("random"),
            Policy::Random { seed } => write!(f, "random={seed}"),
            Policy::Qlru(Qlru { hit: [three, two], insertion, replacement, update, on_miss_only }) => {
                write!(f, "qlru-h{three}{two}-m")?;
                match insertion {
                    Insertion::Age(age) => write!(f, "{age}")?,
                    Insertion::Rarely { age, one_in, otherwise: 3 } => write!(f, "r{one_in}{age}")?,
                    Insertion::Rarely { age, otherwise, .. } => write!(f, "r{otherwise}{age}")?,
                }
                let suffix = if *on_miss_only { "-umo" } else { "" };
                write!(f, "-r{replacement}-u{}{suffix}", *update as u8)
            }
        }
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> String {
        policy.to_string()
    }
}

impl TryFrom<String> for Policy {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Policy, ConfigError> {
        text.parse()
    }
}

impl FromStr for Policy {
    type Err = ConfigError;

    /// Parses `lru`, `tree-plru` or `plru`, `bit-plru` or `mru`, `fifo`, `random` or `random=SEED`,
    /// `qlru-h11-m1-r0-u0[-umo]` (nanoBench's own spelling with underscores and capitals too).
    fn from_str(text: &str) -> Result<Policy, ConfigError> {
        let unknown = || ConfigError::Policy { text: text.to_owned() };
        let name = text.to_ascii_lowercase().replace('_', "-");
        match name.as_str() {
            "lru" => Ok(Policy::Lru),
            "tree-plru" | "plru" => Ok(Policy::TreePlru),
            "bit-plru" | "mru" => Ok(Policy::BitPlru),
            "fifo" => Ok(Policy::Fifo),
            "random" => Ok(Policy::Random { seed: 0 }),
            _ => match name.strip_prefix("random=") {
                Some(seed) => Ok(Policy::Random { seed: seed.parse().map_err(|_| unknown())? }),
                None => parse_qlru(&name).map(Policy::Qlru).ok_or_else(unknown),
            },
        }
    }
}

fn parse_qlru(name: &str) -> Option<Qlru> {
    let mut parts = name.strip_prefix("qlru-")?.split('-');
    let digit = |text: &str, most: u8| text.parse().ok().filter(|age: &u8| text.len() == 1 && *age <= most);
    let (three, two) = parts.next()?.strip_prefix('h')?.split_at_checked(1)?;
    let insertion = parts.next()?.strip_prefix('m')?;
    let insertion = match insertion.strip_prefix('r') {
        Some(rarely) => {
            let (first, age) = rarely.split_at_checked(rarely.len().checked_sub(1)?)?;
            let age = digit(age, 3)?;
            match first.len() {
                1 => Insertion::Rarely { age, one_in: 16, otherwise: digit(first, 3)? },
                _ => Insertion::Rarely { age, one_in: first.parse().ok().filter(|n| *n >= 10)?, otherwise: 3 },
            }
        }
        None => Insertion::Age(digit(insertion, 3)?),
    };
    let replacement = digit(parts.next()?.strip_prefix('r')?, 2)?;
    let update = match parts.next()? {
        "u0" => Update::ToThree,
        "u1" => Update::ToThreeButAccessed,
        "u2" => Update::ByOne,
        "u3" => Update::ByOneButAccessed,
        _ => return None,
    };
    let on_miss_only = match parts.next() {
        None => false,
        Some("umo") => true,
        Some(_) => return None,
    };
    let hit = [digit(three, 2)?, digit(two, 1)?];
    let complete = parts.next().is_none() && hit[1] <= hit[0];
    complete.then_some(Qlru { hit, insertion, replacement, update, on_miss_only })
}

/// The ways that a task may fill: bit i stands for way i. Hits are not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WayMask(pub u64);

impl WayMask {
    /// The mask of every way.
    pub const ALL: WayMask = WayMask(u64::MAX);

    /// Returns whether a task with this mask may fill `way`. Ways beyond the 64th belong to every mask.
    pub fn allows(self, way: usize) -> bool {
        way >= 64 || self.0 >> way & 1 == 1
    }
}

/// The state that the replacement policy keeps for every set.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    ways: usize,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Time at which each line was last used (LRU) or filled (FIFO).
    Stamps {
        on_hit: bool,
        now: u64,
        stamps: Vec<u64>,
    },
    /// Per set, node i of the tree at bit i, with the root at bit 1 and the children of i at 2i and 2i + 1. A set bit means that
    /// the victim is to the right.
    Tree(Vec<u64>),
    /// Per set, the used bits of its ways.
    Used(Vec<u64>),
    Random(fastrand::Rng),
    Ages {
        variant: Qlru,
        ages: Vec<u8>,
        rng: fastrand::Rng,
    },
}

impl Replacement {
    pub fn new(policy: Policy, sets: usize, ways: usize) -> Replacement {
        let stamps = |on_hit| State::Stamps { on_hit, now: 0, stamps: vec![0; sets * ways] };
        let state = match policy {
            Policy::Lru => stamps(true),
            Policy::Fifo => stamps(false),
            Policy::TreePlru => State::Tree(vec![0; sets]),
            Policy::BitPlru => State::Used(vec![0; sets]),
            Policy::Random { seed } => State::Random(fastrand::Rng::with_seed(seed)),
            Policy::Qlru(variant) => {
                State::Ages { variant, ages: vec![3; sets * ways], rng: fastrand::Rng::with_seed(0) }
            }
        };
        Replacement { ways, state }
    }

    /// Returns the time stamps of a set; `None` for policies that keep none.
    pub fn stamps(&self, set: usize) -> Option<&[u64]> {
        match &self.state {
            State::Stamps { stamps, .. } => Some(&stamps[set * self.ways..][..self.ways]),
            _ => None,
        }
    }

    /// Updates the state after a hit on the line in `way` of the set.
    pub fn hit(&mut self, set: usize, way: usize) {
        let ways = self.ways;
        match &mut self.state {
            State::Stamps { on_hit: true, .. } | State::Tree(_) | State::Used(_) => self.used(set, way),
            State::Stamps { .. } | State::Random(_) => {}
            State::Ages { variant, ages, .. } => {
                let ages = &mut ages[set * ways..][..ways];
                ages[way] = variant.age_after_hit(ages[way]);
                if !variant.on_miss_only {
                    grow(ages, variant.update, Some(way));
                }
            }
        }
    }

    /// Updates the state after a new line was filled into `way` of the set.
    pub fn filled(&mut self, set: usize, way: usize) {
        let ways = self.ways;
        match &mut self.state {
            State::Stamps { .. } | State::Tree(_) | State::Used(_) => self.used(set, way),
            State::Random(_) => {}
            State::Ages { variant, ages, rng } => {
                let ages = &mut ages[set * ways..][..ways];
                ages[way] = match variant.insertion {
                    Insertion::Age(age) => age,
                    Insertion::Rarely { age, one_in, .. } if rng.u8(0..one_in) == 0 => age,
                    Insertion::Rarely { otherwise, .. } => otherwise,
                };
                if !variant.on_miss_only {
                    grow(ages, variant.update, Some(way));
                }
            }
        }
    }

    fn used(&mut self, set: usize, way: usize) {
        match &mut self.state {
            State::Stamps { now, stamps, .. } => {
                *now += 1;
                stamps[set * self.ways + way] = *now;
            }
            State::Tree(trees) => {
                // Leaf `way` is node ways + way; every node on the path is made to point to the other half.
                let mut node = self.ways + way;
                while node > 1 {
                    let came_from_right = node & 1 == 1;
                    node /= 2;
                    trees[set] = trees[set] & !(1 << node) | u64::from(!came_from_right) << node;
                }
            }
            State::Used(sets) => {
                sets[set] |= 1 << way;
                if sets[set].count_ones() as usize == self.ways {
                    sets[set] = 1 << way;
                }
            }
            State::Random(_) | State::Ages { .. } => {}
        }
    }

    /// Returns the empty way to fill; `None` if every allowed way is occupied.
    pub fn empty_way(&self, allowed: WayMask, occupied: impl Fn(usize) -> bool) -> Option<usize> {
        let mut candidates = (0..self.ways).filter(|way| allowed.allows(*way) && !occupied(*way));
        match &self.state {
            State::Ages { variant: Qlru { replacement: 2, .. }, .. } => candidates.next_back(),
            _ => candidates.next(),
        }
    }

    /// Returns the way whose line is to be replaced, one of the allowed ways. All allowed ways must be occupied.
    pub fn victim(&mut self, set: usize, allowed: WayMask) -> usize {
        let ways = self.ways;
        let mut candidates = (0..ways).filter(|way| allowed.allows(*way));
        let chosen = match &mut self.state {
            State::Stamps { stamps, .. } => candidates.min_by_key(|way| stamps[set * ways + way]),
            State::Tree(trees) => {
                let mut node = 1;
                while node < ways {
                    // If the mask allows no way of the half pointed to, the other half is taken.
                    let preferred = 2 * node + (trees[set] >> node & 1) as usize;
                    node = if subtree_allows(preferred, ways, allowed) { preferred } else { preferred ^ 1 };
                }
                Some(node - ways)
            }
            State::Used(sets) => {
                let first = candidates.clone().next();
                candidates.find(|way| sets[set] >> way & 1 == 0).or(first)
            }
            State::Random(rng) => {
                let count = candidates.clone().count();
                candidates.nth(rng.usize(0..count))
            }
            State::Ages { variant, ages, .. } => {
                let ages = &mut ages[set * ways..][..ways];
                if variant.on_miss_only {
                    grow(ages, variant.update, None);
                }
                // nanoBench leaves R0 and R2 undefined if no line has age 3. Here the leftmost line is replaced, as under R1,
                // or the oldest allowed line if there is a mask.
                let all = candidates.clone().count() == ways;
                let oldest = candidates.clone().max_by_key(|way| (ages[*way], Reverse(*way)));
                candidates.find(|way| ages[*way] == 3).or(if all { Some(0) } else { oldest })
            }
        };
        chosen.expect("a mask allows at least one way of the level")
    }
}

fn subtree_allows(mut node: usize, ways: usize, allowed: WayMask) -> bool {
    let mut leaves = 1;
    while node < ways {
        node *= 2;
        leaves *= 2;
    }
    (node - ways..node - ways + leaves).any(|way| allowed.allows(way))
}

/// Lets the ages of a set grow as `update` says. `accessed`: the way just accessed.
fn grow(ages: &mut [u8], update: Update, accessed: Option<usize>) {
    let spared = match update {
        Update::ToThree | Update::ByOne => None,
        Update::ToThreeButAccessed | Update::ByOneButAccessed => accessed,
    };
    let growing = (0..ages.len()).filter(|way| Some(*way) != spared);
    let growth = match update {
        Update::ToThree | Update::ToThreeButAccessed => 3 - growing.clone().map(|way| ages[way]).max().unwrap_or(3),
        Update::ByOne | Update::ByOneButAccessed => u8::from(!ages.contains(&3)),
    };
    growing.for_each(|way| ages[way] += growth);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_back_as_it_is_written() {
        for name in ["lru", "tree-plru", "bit-plru", "fifo", "random", "random=7", "qlru-h11-m1-r0-u0"] {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        for name in ["qlru-h00-mr161-r1-u2", "qlru-h11-mr20-r0-u0", "qlru-h21-m2-r2-u3-umo"] {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        assert_eq!("QLRU_H11_MR31_R1_U2".parse::<Policy>(), "qlru-h11-mr161-r1-u2".parse());
        assert_eq!("QLRU_H11_M1_R0_U0".parse::<Policy>().unwrap().to_string(), "qlru-h11-m1-r0-u0");
        for bad in [
            "",
            "lruu",
            "random=",
            "qlru",
            "qlru-h31-m1-r0-u0",
            "qlru-h01-m1-r0-u0",
            "qlru-h11-mr41-r0-u0",
            "qlru-h11-m4-r0-u0",
            "qlru-h11-m1-r0-u0-x",
            "qlru-h-m-r-u",
        ] {
            assert!(bad.parse::<Policy>().is_err(), "{bad}");
        }
    }
}
