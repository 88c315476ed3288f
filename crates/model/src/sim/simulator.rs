//! A simulator of one program on one CPU that takes the fastest exact path.

use super::{
    Access, CacheId, ConfigError, Hierarchy, Level, LevelCounts, LruChain, MachineModel, MemoryCounts, Semantics,
};

/// Counts events of a program on a chain of levels, or on a machine model.
#[derive(Debug)]
pub struct Simulator {
    state: State,
    levels: Vec<Level>,
    semantics: Semantics,
}

#[derive(Debug)]
enum State {
    Fast(LruChain),
    General(Hierarchy),
}

impl Simulator {
    /// Creates a chain of unified levels, given innermost first.
    pub fn chain(levels: Vec<Level>, semantics: Semantics) -> Result<Simulator, ConfigError> {
        let general = Hierarchy::chain(levels.clone(), semantics)?;
        let state = match LruChain::new(&levels, semantics) {
            Some(chain) => State::Fast(chain),
            None => State::General(general),
        };
        Ok(Simulator { state, levels, semantics })
    }

    /// Creates the caches of one CPU of a machine.
    pub fn machine(machine: &MachineModel) -> Result<Simulator, ConfigError> {
        if machine.levels.iter().all(|level| level.holds == crate::machine::Holds::Unified) {
            let levels = machine.levels.iter().map(|level| level.cache.clone()).collect();
            return Simulator::chain(levels, machine.semantics);
        }
        let hierarchy = machine.hierarchy(1)?;
        Ok(Simulator { state: State::General(hierarchy), levels: Vec::new(), semantics: machine.semantics })
    }

    /// Performs `accesses`.
    pub fn run(&mut self, accesses: &[Access]) {
        let mut left = accesses;
        if let State::Fast(chain) = &mut self.state {
            left = &accesses[chain.run(accesses)..];
            if !left.is_empty() {
                // The program touches more regions than the fast path can tell apart, so the general path continues.
                self.state = State::General(chain.to_hierarchy(&self.levels, self.semantics));
            }
        }
        if let State::General(hierarchy) = &mut self.state {
            left.iter().for_each(|access| hierarchy.access(*access));
        }
    }

    /// Returns the events per cache, innermost first, and the transfers from and to memory.
    pub fn counts(&self) -> (Vec<LevelCounts>, MemoryCounts) {
        match &self.state {
            State::Fast(chain) => chain.counts(),
            State::General(hierarchy) => (hierarchy.level_counts(), hierarchy.memory()),
        }
    }
}

/// State carried from the fast path into a hierarchy. Each level, innermost first, has its counts and its lines. A line is a
/// line number and whether the line is dirty; the lines of each set are in order, least recently used first.
pub(super) struct Carried {
    pub levels: Vec<(super::Counts, Vec<(u64, bool)>)>,
    pub memory: MemoryCounts,
}

impl Hierarchy {
    /// Creates a chain of the levels in the given state.
    pub(super) fn resume(levels: &[Level], semantics: Semantics, carried: Carried) -> Hierarchy {
        let mut hierarchy = Hierarchy::chain(levels.to_vec(), semantics).expect("the levels were checked before");
        for (depth, (counts, lines)) in carried.levels.into_iter().enumerate() {
            let id = CacheId(levels.len() - 1 - depth);
            hierarchy.set_state(id, counts, &lines);
        }
        hierarchy.set_memory(carried.memory);
        hierarchy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::units::Bytes;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        /// Each region is 2^20 lines of 64 bytes; the fast path tells 2047 of them apart.
        #[test]
        fn a_program_that_roams_the_whole_address_space_is_counted_exactly(
            accesses in proptest::collection::vec((0u64..2500, 0u64..300, any::<bool>()), 6000..9000)
        ) {
            let geometry = |set_count, ways| Geometry { set_count, ways, line_bytes: Bytes(64) };
            let levels = vec![Level::lru("L1", geometry(4, 2)), Level::lru("L2", geometry(16, 4))];
            let address = |region: u64, line: u64| (region << 26) | (line << 6);
            let accesses: Vec<Access> = accesses
                .into_iter()
                .map(|(region, line, write)| (address(region, line), write))
                .map(|(address, write)| if write { Access::write(address) } else { Access::read(address) })
                .collect();
            let mut simulator = Simulator::chain(levels.clone(), Semantics::default()).unwrap();
            let mut plain = Hierarchy::chain(levels, Semantics::default()).unwrap();
            accesses.chunks(100).for_each(|chunk| simulator.run(chunk));
            accesses.iter().for_each(|access| plain.access(*access));
            prop_assert!(matches!(simulator.state, State::General(_)));
            prop_assert_eq!(simulator.counts(), (plain.level_counts(), plain.memory()));
        }
    }
}
