//! The experiment on a modeled machine: what the caches alone make of it, in cycles and without noise.

use isochrome_model::miss_ratio::Touches;
use isochrome_model::sim::{Access, Allocation, ConfigError, DescribedMachine, Hierarchy, Kind, Level, PageTable};
use isochrome_model::units::Color;

use super::{Condition, Walk};
use crate::samples::{Arm, Block, Sample};

/// What to play.
pub struct Request<'a> {
    /// The machine.
    pub machine: &'a DescribedMachine,
    /// Its cache that is flooded.
    pub level: &'a Level,
    /// What the working set is.
    pub touches: Touches,
    /// Sizes of the working set, in percent of its colors.
    pub percents: &'a [u32],
    /// Colors of the working set.
    pub colors: &'a [Color],
    /// Passes over the working set in an iteration.
    pub passes: u32,
}

/// Frames of the flood lie so much further up: others, of the same colors.
const APART: u64 = 1 << 40;

/// A block of one job for each size, with and without partitions; times are cycles.
///
/// Misses are waited for one by one, so the order of a walk makes no difference: there is one.
///
/// Fails where the machine is described wrongly.
pub fn play(request: &Request) -> Result<Vec<Block<Condition>>, ConfigError> {
    let mut blocks = Vec::new();
    for partitioned in [false, true] {
        for &percent in request.percents {
            let condition = Condition { walk: Walk::InOrder, partitioned, percent };
            let lines = request.lines(percent);
            let sample = |(arm, flood)| Ok(Sample { arm, values: request.job(lines, partitioned, flood)? });
            // Without noise one control decides, and the same is compared with.
            let arms = [(Arm::Treatment, true), (Arm::Control, false), (Arm::Control, false)];
            let samples = arms.into_iter().map(sample).collect::<Result<Vec<_>, ConfigError>>()?;
            blocks.push(Block { condition, steal_ns: 0, elapsed_ns: 1, samples });
        }
    }
    Ok(blocks)
}

impl Request<'_> {
    fn color_count(&self) -> u32 {
        self.level.geometry.color_count(self.machine.page_bytes)
    }

    fn lines(&self, percent: u32) -> u64 {
        let fit = self.level.geometry.lines_per_color(self.machine.page_bytes) * self.colors.len() as u64;
        (fit * u64::from(percent) / 100).max(1)
    }

    /// `lines` lines after each other, in pages of `colors` by turns.
    fn walk(&self, lines: u64, colors: &[Color]) -> Vec<Access> {
        let (line, kind) =
            (self.level.geometry.line_bytes.0, if self.touches == Touches::Code { Kind::Fetch } else { Kind::Read });
        let allocation = Allocation::Colored { colors: colors.to_vec(), color_count: self.color_count() as u16 };
        let mut pages = PageTable::new(self.machine.page_bytes, allocation);
        (0..lines).map(|number| pages.translate(Access { kind, ..Access::read(number * line) })).collect()
    }

    fn job(&self, lines: u64, partitioned: bool, flood: bool) -> Result<Vec<f64>, ConfigError> {
        let set = self.walk(lines, self.colors);
        let others =
            (0..self.color_count() as u16).map(Color).filter(|color| !partitioned || !self.colors.contains(color));
        let others: Vec<Color> = others.collect();
        // Twice what the cache holds there.
        let per_color = 2 * self.level.geometry.lines_per_color(self.machine.page_bytes);
        let floods = if others.is_empty() { Vec::new() } else { self.walk(per_color * others.len() as u64, &others) };
        let mut caches = self.machine.hierarchy(1)?;
        let half = self.passes as usize * set.len() / 2;
        let iteration = || set.iter().cycle().take(self.passes as usize * set.len());
        run(&mut caches, iteration());
        let alone = run(&mut caches, iteration());
        let mut preempted = run(&mut caches, iteration().take(half));
        if flood {
            floods.iter().for_each(|access| caches.access(Access { address: access.address + APART, ..*access }));
        }
        preempted += run(&mut caches, iteration().skip(half));
        Ok([lines, alone, preempted].map(|value| value as f64).to_vec())
    }
}

/// Cycles that `accesses` take.
fn run<'a>(caches: &mut Hierarchy, accesses: impl Iterator<Item = &'a Access>) -> u64 {
    caches.reset_counts();
    accesses.for_each(|access| caches.access(*access));
    caches.cycles()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crpd::conclude;

    #[test]
    fn a_line_that_the_flood_took_costs_a_miss_and_colors_keep_it() {
        let machine = DescribedMachine::named("i7-2600").unwrap();
        let level = machine.levels.iter().find(|level| level.cache.name.contains("L2")).unwrap();
        let colors: Vec<Color> = (0..4).map(Color).collect();
        let percents = [50, 100, 130];
        let request = Request {
            machine: &machine,
            level: &level.cache,
            touches: Touches::Data,
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
        // Half of the lines, half of the delay; none in colors of its own; less where little is kept anyway.
        assert!(delay(false, 50) > 0.0);
        assert!((delay(false, 100) / delay(false, 50) - 2.0).abs() < 0.2, "{} {}", delay(false, 100), delay(false, 50));
        assert!(delay(true, 50) < 0.1 * delay(false, 50), "{}", delay(true, 50));
        assert!(delay(false, 130) < 0.5 * delay(false, 100), "{}", delay(false, 130));
    }
}
