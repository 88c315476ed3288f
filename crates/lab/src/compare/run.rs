//! The course of the experiment: windows as found, then blocks of windows in random order, until the answer is known or something ends it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use isochrome_host::interrupt;
use isochrome_model::stats::{Crossover, Looks, SIGNIFICANT};

use super::conclude::{LookTaken, Samples, blocks_of};
use super::measure::{Lines, Measure, Reading, Trouble};
use super::party::Party;
use super::place::{Place, PlaceError, is_wrong};
use super::{Condition, Placed, Statistic, Window};

/// Number of windows of each condition in a block.
const EACH: usize = 2;
/// Number of windows in a row without a measurement after which the experiment ends.
const FAILURES_MAX: u32 = 4;
/// Number of windows in a row for which the programs could not be placed after which the experiment ends. Beside a busy CPU a placement fails
/// several times in a row now and then.
const PLACEMENTS_MAX: u32 = 12;
/// Number of wrong placements after which a number of colors is left out of a curve.
const MISPLACED_MAX: u32 = 2;
/// Number of blocks that may be given up, for each one that is wanted, until the experiment ends.
const GIVEN_UP_MAX: u64 = 1;

/// Amount of measurement, and its limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Most blocks.
    pub blocks: u64,
    /// Number of windows before anything is moved, with the pages where they were found.
    pub found: u64,
    /// Length of a window.
    pub window: Duration,
    /// Time after each placement that is not measured.
    pub settle: Duration,
    /// Time after which no further window begins; `None` for no limit.
    pub limit: Option<Duration>,
    /// Seed of the order of the windows.
    pub seed: u64,
    /// The statistic of a window.
    pub statistic: Statistic,
    /// Difference, as a share, below which an effect would not matter.
    pub margin: f64,
    /// Whether the experiment stops as soon as its answer is known.
    pub stops_early: bool,
    /// Numbers of colors of the victim to measure, each in one window of a block, beside one window spread; empty for two windows apart and two
    /// spread.
    pub curve: Vec<u32>,
}

/// The experiment: its programs, their mover, and the measure.
pub struct Experiment<'a> {
    /// Amount of measurement.
    pub settings: &'a Settings,
    /// The program that is measured.
    pub victim: &'a mut Party,
    /// The program beside it.
    pub neighbor: Option<&'a mut Party>,
    /// Mover of the programs.
    pub place: &'a mut dyn Place,
    /// Measure of the victim.
    pub measure: &'a mut dyn Measure,
    /// Reader of the numbers by which the neighbor prints its progress.
    pub neighbor_lines: Option<&'a mut Lines>,
    /// Called before each window.
    pub progress: &'a mut dyn FnMut(Progress),
}

/// Progress of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of windows so far that count.
    pub done: u64,
    /// Most windows.
    pub most: u64,
}

/// Windows and values that were measured, and the end of the experiment.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// All windows in order.
    pub windows: Vec<Window>,
    /// Values of the windows that count, by condition.
    pub samples: Samples,
    /// The numbers of colors of a curve that could be placed.
    pub curve: Vec<u32>,
    /// The interim looks that were taken.
    pub looks: Vec<LookTaken>,
    /// Reason why the experiment ended.
    pub ended: String,
    /// Whether it ended as planned.
    pub as_planned: bool,
    /// State in which the programs were left.
    pub left: Vec<String>,
    /// Windows of programs that were started anew for each, in pairs of one as found and one apart.
    pub restarts: Vec<Window>,
}

/// Reason why the experiment ends.
struct Ending {
    why: String,
    as_planned: bool,
}

impl Ending {
    fn early(why: impl Into<String>) -> Ending {
        Ending { why: why.into(), as_planned: false }
    }

    fn planned(why: impl Into<String>) -> Ending {
        Ending { why: why.into(), as_planned: true }
    }
}

/// Properties that distinguish the windows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Condition of the window.
    pub condition: Condition,
    /// Whether it is the second window of its condition by the drawn labels.
    pub again: bool,
    /// Number of colors of the victim in a curve.
    pub own: Option<u32>,
}

/// Returns the number of windows of a block, for a curve over these numbers of colors or without one.
pub fn block_windows(curve: &[u32]) -> u64 {
    if curve.is_empty() { 2 * EACH as u64 } else { 1 + curve.len() as u64 }
}

/// Returns the windows of a block in random order, for a curve over these numbers of colors or without one.
pub fn order(rng: &mut fastrand::Rng, curve: &[u32]) -> Vec<Cell> {
    let cell = |condition, again, own| Cell { condition, again, own };
    let mut order: Vec<Cell> = match curve {
        [] => [Condition::Spread, Condition::Apart]
            .into_iter()
            .flat_map(|condition| (0..EACH).map(move |number| cell(condition, number > 0, None)))
            .collect(),
        curve => {
            let apart = curve.iter().map(|own| cell(Condition::Apart, false, Some(*own)));
            apart.chain([cell(Condition::Spread, false, None)]).collect()
        }
    };
    rng.shuffle(&mut order);
    order
}

/// Runs the experiment to its end, and leaves the programs as they were found. Returns everything that was measured, whatever ends the experiment.
pub fn run(experiment: Experiment<'_>) -> Recorded {
    let mut course = Course::of(experiment);
    let ending = match course.windows() {
        Ok(ending) | Err(ending) => ending,
    };
    let left = course.experiment.place.restore();
    Recorded { ended: ending.why, as_planned: ending.as_planned, left, ..course.recorded }
}

/// Measures one window of programs that were started for it: as found, where nothing is moved, or apart. `begin` is that of the whole experiment, and
/// `pair` the number of the two windows that are compared. A placement that fails is tried again.
///
/// Fails with the reason if a program has ended or cannot be moved, or on an interrupt.
pub fn once(experiment: Experiment<'_>, begin: Instant, pair: u64, condition: Condition) -> Result<Window, String> {
    let mut course = Course { begin, ..Course::of(experiment) };
    let block = (condition != Condition::AsFound).then_some(pair);
    loop {
        let ended = course.window(block, Cell { condition, again: false, own: None });
        // Nothing was measured where a placement failed, so trying again leaves nothing out by its value.
        let is_misplaced = course.placements > 0 && course.placements < PLACEMENTS_MAX;
        match (ended, course.recorded.windows.pop()) {
            (Ok(false), Some(window)) if is_misplaced && window.value.is_none() => {}
            (Ok(_), Some(window)) => return Ok(Window { block: Some(pair), ..window }),
            (Err(ending), _) => return Err(ending.why),
            (Ok(_), None) => return Err("nothing was measured".to_owned()),
        }
    }
}

/// Returns the typical time from the end of a window to the beginning of one apart whose pages were tested: moving, testing and settling; zero without
/// such windows.
pub fn preparation(windows: &[Window]) -> Duration {
    let gap = |pair: &[Window]| {
        let [before, window] = pair else { return None };
        let is_tested = window.condition == Condition::Apart && !window.again && window.value.is_some();
        is_tested.then_some(window.at_s - before.at_s - before.length_s)
    };
    let gaps: Vec<f64> = windows.windows(2).filter_map(gap).filter(|gap| *gap > 0.0).collect();
    isochrome_model::stats::median(&gaps).map(Duration::from_secs_f64).unwrap_or_default()
}

/// The experiment in progress.
struct Course<'a> {
    experiment: Experiment<'a>,
    rng: fastrand::Rng,
    begin: Instant,
    recorded: Recorded,
    /// Number of windows in a row in which nothing could be measured.
    failures: u32,
    /// Number of windows in a row for which the programs could not be placed.
    placements: u32,
    /// Number of times that the victim could not be placed, by the number of its colors in a curve.
    misplaced: BTreeMap<u32, u32>,
}

impl<'a> Course<'a> {
    fn of(experiment: Experiment<'a>) -> Course<'a> {
        Course {
            rng: fastrand::Rng::with_seed(experiment.settings.seed),
            begin: Instant::now(),
            recorded: Recorded { curve: experiment.settings.curve.clone(), ..Recorded::default() },
            failures: 0,
            placements: 0,
            misplaced: BTreeMap::new(),
            experiment,
        }
    }

    /// Measures all windows. Both results end the experiment: `Err` in the middle of a block.
    fn windows(&mut self) -> Result<Ending, Ending> {
        let settings = self.experiment.settings;
        for _ in 0..settings.found {
            self.window(None, Cell { condition: Condition::AsFound, again: false, own: None })?;
        }
        let looks = Looks::of(settings.blocks);
        let mut complete = 0;
        for block in 0..settings.blocks * (1 + GIVEN_UP_MAX) {
            let mut counts = true;
            let curve = self.recorded.curve.clone();
            for cell in order(&mut self.rng, &curve) {
                counts &= self.window(Some(block), cell)?;
                if !counts {
                    // The rest of the block would be of no use.
                    break;
                }
            }
            if !counts {
                // A large program may find too few frames of a few colors.
                self.recorded.curve.retain(|own| self.misplaced.get(own).is_none_or(|times| *times < MISPLACED_MAX));
                if !settings.curve.is_empty() && self.recorded.curve.is_empty() {
                    return Err(Ending::early("the victim could not be placed on any number of colors"));
                }
                continue;
            }
            complete += 1;
            if complete == settings.blocks && !settings.curve.is_empty() {
                return Ok(Ending::planned("all windows were measured"));
            }
            if let Some(look) = looks.due(complete).filter(|_| settings.curve.is_empty()) {
                let effect = Crossover::of(&blocks_of(&self.recorded.windows, |window| window.value), look.level);
                self.recorded.looks.extend(effect.map(|effect| LookTaken { look, effect }));
                let is_answered = effect.is_some_and(|effect| {
                    effect.differs() || effect.at_most().is_some_and(|most| most <= settings.margin)
                });
                if complete == settings.blocks {
                    return Ok(Ending::planned("all windows were measured"));
                }
                if is_answered && settings.stops_early {
                    return Ok(Ending::planned("the answer was known"));
                }
            }
        }
        let last = self.recorded.windows.iter().rev().find_map(|window| window.excluded.as_deref());
        Ok(Ending::early(format!("too many windows did not count, the last: {}", last.unwrap_or_default())))
    }

    /// Checks whether a further window may begin.
    fn check(&mut self) -> Result<(), Ending> {
        if interrupt::interrupted() {
            return Err(Ending::early("it was interrupted"));
        }
        if let Some(end) = self.experiment.victim.ended() {
            return Err(Ending::early(format!("the victim has ended ({end})")));
        }
        if let Some(end) = self.experiment.neighbor.as_mut().and_then(|neighbor| neighbor.ended()) {
            return Err(Ending::early(format!("the neighbor has ended ({end})")));
        }
        if self.experiment.settings.limit.is_some_and(|limit| self.begin.elapsed() > limit) {
            return Err(Ending::planned("its time was over"));
        }
        Ok(())
    }

    /// Measures a window, and returns whether it counts.
    fn window(&mut self, block: Option<u64>, cell: Cell) -> Result<bool, Ending> {
        self.check()?;
        let Cell { condition, again, own } = cell;
        let done = self.recorded.windows.iter().filter(|window| window.excluded.is_none()).count() as u64;
        let most = self.experiment.settings.found
            + self.experiment.settings.blocks * block_windows(&self.experiment.settings.curve);
        (self.experiment.progress)(Progress { done, most });
        let placed = match block {
            None => Ok(Vec::new()),
            Some(_) => self.placed(cell),
        };
        let mut window = Window {
            block,
            condition,
            again,
            own,
            at_s: self.begin.elapsed().as_secs_f64(),
            length_s: 0.0,
            value: None,
            values: 0,
            neighbor: None,
            neighbor_cpu: None,
            switches: None,
            placed: Vec::new(),
            excluded: None,
        };
        let mut is_placed = false;
        let outcome = match placed {
            Ok(placed) => {
                window.excluded = is_wrong(&placed);
                is_placed = window.excluded.is_none();
                window.placed = placed;
                if let (Some(own), true) = (own, window.excluded.is_some()) {
                    *self.misplaced.entry(own).or_default() += 1;
                }
                // A window that does not count anyway is not measured.
                if window.excluded.is_some() { Ok(()) } else { self.measure(&mut window) }
            }
            Err(PlaceError::Failed(why)) => {
                window.excluded = Some(format!("not placed: {why}"));
                Ok(())
            }
            Err(PlaceError::Refused(why)) => Err(Ending::early(format!("a program cannot be moved: {why}"))),
        };
        let counts = outcome.is_ok() && window.excluded.is_none();
        let is_unmeasured = is_placed && window.value.is_none();
        match (counts, is_unmeasured) {
            (true, _) => (self.failures, self.placements) = (0, 0),
            (false, true) => self.failures += 1,
            (false, false) => self.placements += 1,
        }
        let why = window.excluded.clone();
        if outcome.is_ok() {
            self.recorded.windows.push(window);
        }
        outcome?;
        // A program that has ended explains best why a window failed.
        if !counts {
            self.check()?;
        }
        match why {
            Some(why) if self.failures >= FAILURES_MAX || self.placements >= PLACEMENTS_MAX => {
                let number = if is_unmeasured { FAILURES_MAX } else { PLACEMENTS_MAX };
                Err(Ending::early(format!("{number} windows in a row did not count, the last: {why}")))
            }
            _ => Ok(counts),
        }
    }

    fn placed(&mut self, Cell { condition, again, own }: Cell) -> Result<Vec<Placed>, PlaceError> {
        if let Some(own) = own {
            self.experiment.place.divide(own);
        }
        let mut placed = self.experiment.place.place(condition)?;
        // Eviction tests take some tenths of a second, so one window of each condition in a block has them.
        if !again {
            self.experiment.place.verify(condition, &mut placed);
        }
        Ok(placed)
    }

    /// Waits until the programs have settled, measures the window, and checks the placement again.
    fn measure(&mut self, window: &mut Window) -> Result<(), Ending> {
        let begin_s = |begin: &Instant| begin.elapsed().as_secs_f64();
        let Experiment { settings, victim, neighbor, measure, neighbor_lines, place, .. } = &mut self.experiment;
        let settled = Instant::now() + settings.settle;
        while Instant::now() < settled && !interrupt::interrupted() {
            std::thread::sleep(settled.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)));
        }
        let cpu = |party: &Option<&mut Party>| party.as_ref().map(|party| party.cpu());
        let (cpu_before, switches_before) = (cpu(neighbor), victim.switches());
        neighbor_lines.as_mut().into_iter().for_each(|lines| drop(lines.take()));
        let begin = Instant::now();
        window.at_s = begin_s(&self.begin);
        let reading = measure.window(settings.window, &mut || {
            !interrupt::interrupted()
                && victim.ended().is_none()
                && neighbor.as_mut().is_none_or(|neighbor| neighbor.ended().is_none())
        });
        window.length_s = begin_s(&begin);
        let theirs = neighbor_lines.as_mut().map(|lines| lines.take());
        if let (Some(before), Some(after)) = (cpu_before, cpu(neighbor)) {
            window.neighbor_cpu = Some(after.0.saturating_sub(before.0) as f64 / 1e9 / window.length_s);
        }
        if let (Some(before), Some(after)) = (switches_before, victim.switches()) {
            window.switches = Some(after.saturating_sub(before) as f64 / window.length_s);
        }
        window.neighbor = theirs.and_then(|values| Statistic::Median.of(&values, window.length_s));
        let values = match reading {
            Ok(Reading::Values(values)) => {
                window.values = values.len() as u64;
                window.value = settings.statistic.of(&values, window.length_s);
                values
            }
            Ok(Reading::Statistic(value)) => {
                window.value = Some(value);
                vec![value]
            }
            Err(Trouble::Stopped) => {
                window.excluded = Some("interrupted".to_owned());
                return Ok(());
            }
            Err(Trouble::Failed(why)) => {
                window.excluded = Some(why);
                return Ok(());
            }
        };
        if window.value.is_none_or(|value| !(value.is_finite() && value > 0.0)) {
            let needed = settings.statistic.values_needed();
            window.excluded = Some(match values.len() {
                few if few < needed => format!("{few} values, and {} takes {needed}", settings.statistic.name()),
                _ => "the values are not positive numbers".to_owned(),
            });
            return Ok(());
        }
        if window.block.is_some() {
            window.excluded = match place.look_again(window.condition, &mut window.placed) {
                Ok(()) => is_wrong(&window.placed),
                Err(error) => Some(format!("not verified: {error}")),
            };
        }
        if window.excluded.is_none() {
            self.recorded.samples.add(window.condition, values, &mut self.rng);
        }
        Ok(())
    }
}

/// Returns the interim analysis whose interval is reported: the last one that was planned and due, or for an experiment that
/// ended between two of them, the next one.
pub(super) fn last_look(recorded: &Recorded, settings: &Settings) -> Option<LookTaken> {
    if !settings.curve.is_empty() {
        return None;
    }
    let blocks = settings.blocks;
    let complete = blocks_of(&recorded.windows, |window| window.value);
    if let Some(taken) = recorded.looks.last().filter(|taken| taken.look.blocks == complete.len() as u64) {
        return Some(*taken);
    }
    let look = Looks::of(blocks).last(complete.len() as u64);
    debug_assert!(look.level <= SIGNIFICANT);
    Crossover::of(&complete, look.level).map(|effect| LookTaken { look, effect })
}
