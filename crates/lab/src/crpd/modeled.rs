//! The experiment on a modeled machine: the delay caused by the caches alone, in cycles and without noise.

use std::collections::VecDeque;

use isochrome_model::miss_ratio::Touches;
use isochrome_model::sim::{Access, Allocation, ConfigError, Hierarchy, Kind, Level, MachineModel, PageTable};
use isochrome_model::units::Color;

use super::{Condition, Walk};
use crate::samples::{Arm, Block, Sample};

/// The experiment to simulate.
pub struct Request<'a> {
    /// The simulated machine.
    pub machine: &'a MachineModel,
    /// The cache of the machine that is flooded.
    pub level: &'a Level,
    /// Whether the working set is data or code.
    pub touches: Touches,
    /// Model of how the core fetches ahead.
    pub front_end: FrontEnd,
    /// Orders of the accesses to the working set.
    pub walks: &'a [Walk],
    /// Sizes of the working set, in percent of its colors.
    pub percents: &'a [u32],
    /// Colors of the working set.
    pub colors: &'a [Color],
    /// Number of passes over the working set in an iteration.
    pub passes: u32,
}

/// Model of how a core fetches ahead of execution, along the jumps that its branch predictor has stored.
///
/// The predictor replaces the least recently used jump, so a loop with more jumps than the predictor stores always misses in the predictor.
#[derive(Clone, Copy, Debug)]
pub struct FrontEnd {
    /// Greatest number of lines that are fetched and not yet executed, 1 or more.
    pub ahead: usize,
    /// Number of jumps that the predictor stores.
    pub jumps: usize,
    /// Cycles until the target of a jump is known if the predictor has not stored it.
    pub redirect_cycles: u64,
    /// Number of lines that are executed from one jump to the next, 1 or more.
    pub lines_per_jump: usize,
}

impl FrontEnd {
    /// A core that waits for each line before it fetches the next, so that neither jumps nor their order make a difference.
    pub const SERIAL: FrontEnd = FrontEnd { ahead: 1, jumps: usize::MAX, redirect_cycles: 0, lines_per_jump: 1 };
}

/// Distance in bytes between the addresses of the flood and those of the working set, so that the flood uses other frames of the same colors.
const APART: u64 = 1 << 40;

/// Simulates the experiment, and returns a block for each walk and size, with and without partitions. Times are in cycles.
///
/// Fails if the machine model is invalid.
pub fn play(request: &Request) -> Result<Vec<Block<Condition>>, ConfigError> {
    let block = |condition| {
        let sample = |(arm, flood)| Ok(Sample { arm, values: request.job(condition, flood)? });
        // There is no noise, so the controls are equal: one decides whether the block is accepted, and the treatment is compared with the other.
        let arms = [(Arm::Treatment, true), (Arm::Control, false), (Arm::Control, false)];
        let samples = arms.into_iter().map(sample).collect::<Result<Vec<_>, ConfigError>>()?;
        Ok(Block { condition, steal_ns: 0, elapsed_ns: 1, samples })
    };
    let of = |walk| {
        [false, true].into_iter().flat_map(move |partitioned| {
            request.percents.iter().map(move |&percent| Condition { walk, partitioned, percent })
        })
    };
    request.walks.iter().copied().flat_map(of).map(block).collect()
}

impl Request<'_> {
    fn color_count(&self) -> u32 {
        self.level.geometry.color_count(self.machine.page_bytes)
    }

    fn lines(&self, percent: u32) -> u64 {
        let fit = self.level.geometry.lines_per_color(self.machine.page_bytes) * self.colors.len() as u64;
        (fit * u64::from(percent) / 100).max(1)
    }

    /// Returns accesses to `lines` consecutive lines, in pages of alternating `colors`.
    fn walk(&self, lines: u64, colors: &[Color]) -> Vec<Access> {
        let (line, kind) =
            (self.level.geometry.line_bytes.0, if self.touches == Touches::Code { Kind::Fetch } else { Kind::Read });
        let allocation = Allocation::Colored { colors: colors.to_vec(), color_count: self.color_count() as u16 };
        let mut pages = PageTable::new(self.machine.page_bytes, allocation);
        (0..lines).map(|number| pages.translate(Access { kind, ..Access::read(number * line) })).collect()
    }

    fn job(&self, condition: Condition, flood: bool) -> Result<Vec<f64>, ConfigError> {
        let lines = self.lines(condition.percent);
        let mut set = self.walk(lines, self.colors);
        if condition.walk == Walk::Random {
            let mut pieces: Vec<&[Access]> = set.chunks(self.front_end.lines_per_jump).collect();
            // The last piece may be shorter than the others, so it stays last.
            let whole = pieces.len() - 1;
            fastrand::Rng::with_seed(lines).shuffle(&mut pieces[..whole]);
            set = pieces.concat();
        }
        let others = (0..self.color_count() as u16)
            .map(Color)
            .filter(|color| !condition.partitioned || !self.colors.contains(color));
        let others: Vec<Color> = others.collect();
        // The flood has twice the lines that the cache holds in these colors.
        let per_color = 2 * self.level.geometry.lines_per_color(self.machine.page_bytes);
        let floods = if others.is_empty() { Vec::new() } else { self.walk(per_color * others.len() as u64, &others) };
        let mut caches = self.machine.hierarchy(1)?;
        let predicted = set.len().div_ceil(self.front_end.lines_per_jump) <= self.front_end.jumps;
        let run = |caches: &mut Hierarchy, accesses: &mut dyn Iterator<Item = (usize, &Access)>| {
            self.front_end.run(caches, condition.walk, predicted, accesses)
        };
        let half = self.passes as usize * set.len() / 2;
        let iteration = || set.iter().enumerate().cycle().take(self.passes as usize * set.len());
        run(&mut caches, &mut iteration());
        let alone = run(&mut caches, &mut iteration());
        let mut preempted = run(&mut caches, &mut iteration().take(half));
        if flood {
            floods.iter().for_each(|access| caches.access(Access { address: access.address + APART, ..*access }));
        }
        preempted += run(&mut caches, &mut iteration().skip(half));
        Ok([lines, alone, preempted].map(|value| value as f64).to_vec())
    }
}

impl FrontEnd {
    /// Returns the cycles that `accesses` take. Each access comes with its position in the working set. `predicted` tells whether the predictor
    /// has stored the jumps.
    fn run<'a>(
        &self,
        caches: &mut Hierarchy,
        walk: Walk,
        predicted: bool,
        accesses: impl Iterator<Item = (usize, &'a Access)>,
    ) -> u64 {
        // `executed`: times at which the last lines were executed, as many as are fetched ahead. `known`: time from which the address of the
        // next line is known.
        let mut executed = VecDeque::from(vec![0; self.ahead]);
        let mut known = 0;
        for (position, access) in accesses {
            let before = caches.clock();
            caches.access(*access);
            let latency = caches.clock() - before;
            let (last, room) = (executed[self.ahead - 1], executed[0]);
            if !predicted && position % self.lines_per_jump == 0 {
                known = last + self.redirect_cycles;
            }
            // Lines that follow in memory are fetched ahead even if the predictor has not stored the jump.
            let fetched = if walk == Walk::InOrder { room } else { room.max(known) };
            executed.pop_front();
            executed.push_back((fetched + latency).max(known).max(last + 1));
        }
        executed[self.ahead - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crpd::conclude;

    #[test]
    fn a_line_that_the_flood_took_costs_a_miss_and_colors_keep_it() {
        let machine = MachineModel::named("i7-2600").unwrap();
        let level = machine.levels.iter().find(|level| level.cache.name.contains("L2")).unwrap();
        let colors: Vec<Color> = (0..4).map(Color).collect();
        let percents = [50, 100, 130];
        let request = Request {
            machine: &machine,
            level: &level.cache,
            touches: Touches::Data,
            front_end: FrontEnd::SERIAL,
            walks: &[Walk::InOrder],
            percents: &percents,
            colors: &colors,
            passes: 4,
        };
        let points = conclude(&play(&request).unwrap(), 4, 1_000_000_000);
        let delay = |partitioned: bool, percent: u32| {
            let of = |point: &&crate::crpd::Point| {
                point.condition.partitioned == partitioned && point.condition.percent == percent
            };
            points.iter().find(of).unwrap().delay_ns
        };
        // Half of the lines have half of the delay. In own colors there is almost none. At 130 % it is less, because few lines stay cached even
        // without a flood.
        assert!(delay(false, 50) > 0.0);
        assert!((delay(false, 100) / delay(false, 50) - 2.0).abs() < 0.2, "{} {}", delay(false, 100), delay(false, 50));
        assert!(delay(true, 50) < 0.1 * delay(false, 50), "{}", delay(true, 50));
        assert!(delay(false, 130) < 0.5 * delay(false, 100), "{}", delay(false, 130));
    }
}
