//! The experiment on a modeled machine: interference through the caches alone, exact and without noise.
//!
//! A co-runner that spins accesses no memory, so the control is the run alone.

use std::collections::BTreeMap;

use isochrome_model::machine::Holds;
use isochrome_model::sim::MachineModel;
use isochrome_model::sim::scenario::{self, Scenario, ScenarioError, Task, TaskOutcome};
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::{Bytes, Ns, format_list};

use super::{COLUMNS, Condition, Counted, Divided, Interference, Program, Sharing, conclude, equal_shares};
use crate::samples::{Arm, Block, Sample};

/// Least number of time slices that a run takes alone.
const SLICES: u64 = 4;

/// The experiment to simulate.
pub struct Request<'a> {
    /// The simulated machine.
    pub machine: &'a MachineModel,
    /// Clock rate of the machine, in MHz.
    pub mhz: u32,
    /// The programs, as the text of [`Workload`](isochrome_model::workload::Workload)s.
    pub programs: &'a [String],
    /// Lengths of the time slices on a shared CPU, in ns.
    pub slices: &'a [Ns],
}

/// Returns three programs for a machine whose outermost level holds `bytes`: a program whose working set is half of that size, a program that
/// writes as much as that size, and a program that needs the inner levels only.
pub fn programs(bytes: Bytes) -> Vec<String> {
    vec![
        format!("chase:area={},line=64,steps={},seed=1", bytes.0 / 2, bytes.0 / 128),
        format!("walk:area={},stride=64,passes=1,write=1", bytes.0),
        "filter:order=8191,word=8,jobs=1".to_owned(),
    ]
}

/// Simulates the experiment. Returns its results, and a block of one run of each kind for each condition.
///
/// `progress` is called with the number of accesses of the current run from time to time. If it returns `false`, the simulation stops, and
/// conditions that were not finished are missing.
///
/// Fails if a program is not a workload, or if the machine model is invalid.
pub fn play(
    request: &Request,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<(Interference, Vec<Block<Condition>>), ScenarioError> {
    let (divided, count) = (request.divided(), request.programs.len());
    let parts = [Partitioning::None].into_iter().chain(divided.iter().map(|divided| divided.by));
    let shared = request.slices.iter().map(|slice| (Sharing::IntraCore, *slice));
    let sharings: Vec<(Sharing, Ns)> = [(Sharing::InterCore, Ns(0))].into_iter().chain(shared).collect();
    let longest = request.slices.iter().max().copied().unwrap_or_default();
    let mut blocks = Vec::new();
    let mut going = true;
    let mut go_on = |accesses: u64| {
        going &= progress(accesses);
        going
    };
    'all: for program in 0..count {
        // The first job loads the caches, and the second shows how long a job takes. Every condition has the same number of jobs.
        let twice = request.run(program, 2, None, None, &mut go_on)?.cycles;
        let once = request.run(program, 1, None, None, &mut go_on)?.cycles;
        let length = request.cycles(Ns(SLICES.saturating_mul(longest.0)));
        let jobs = 1 + length.div_ceil(twice.saturating_sub(once).max(1));
        for partitioning in parts.clone() {
            let part = divided.iter().find(|divided| divided.by == partitioning);
            let alone = request.run(program, jobs, None, part, &mut go_on)?;
            for (sharing, slice_ns) in sharings.iter().copied() {
                let together = request.run(program, jobs, Some((sharing, slice_ns)), part, &mut go_on)?;
                // An interrupted run is too short to be used.
                if !go_on(0) {
                    break 'all;
                }
                let arms = [(Arm::Reference, &alone), (Arm::Control, &alone), (Arm::Treatment, &together)];
                let samples = arms.map(|(arm, outcome)| Sample { arm, values: request.seen(outcome) }).to_vec();
                let condition = Condition { sharing, program, slice_ns, partitioning };
                blocks.push(Block { condition, steal_ns: 0, elapsed_ns: 1, samples });
            }
        }
    }
    let text = |text: &str| vec![text.to_owned()];
    let measured = Interference {
        modeled: Some(request.machine.name.clone()),
        expected: Vec::new(),
        divided,
        programs: request.programs.iter().map(|text| Program { command: text.clone(), placed: None }).collect(),
        counted: request
            .levels()
            .enumerate()
            .map(|(at, level)| Counted {
                level,
                accesses: text(if at == 0 { "loads and stores" } else { "fetches by the level above" }),
                misses: text("those that found nothing"),
            })
            .collect(),
        rows: conclude(&blocks),
    };
    Ok((measured, blocks))
}

impl Request<'_> {
    /// Returns the names of the columns of a sample.
    pub fn columns(&self) -> Vec<String> {
        let counts = self.levels().flat_map(|level| [format!("{level}_hits"), format!("{level}_misses")]);
        COLUMNS.map(str::to_owned).into_iter().chain(counts).collect()
    }

    fn cycles(&self, time: Ns) -> u64 {
        (u128::from(time.0) * u128::from(self.mhz) / 1000) as u64
    }

    /// Returns the names of the levels that hold data, innermost first.
    fn levels(&self) -> impl Iterator<Item = String> {
        self.machine.colors().into_iter().map(|(name, _)| name)
    }

    /// Returns the equal divisions of the outermost level among the programs: by colors and by cache ways. Leaves out a division that has too
    /// few colors or ways for the programs.
    fn divided(&self) -> Vec<Divided> {
        let data: Vec<_> = self.machine.levels.iter().filter(|level| level.holds != Holds::Instruction).collect();
        let number = data.len() as u8;
        let Some(outermost) = data.last().map(|level| &level.cache) else { return Vec::new() };
        let disjoint = outermost.colors_are_disjoint(self.machine.page_bytes);
        let colors = if disjoint { outermost.color_count(self.machine.page_bytes) } else { 0 };
        let parts = [(Partitioning::Colors, colors), (Partitioning::Ways, outermost.geometry.ways.min(64))];
        let divided = |(by, count)| {
            equal_shares(count, self.programs.len()).map(|shares| Divided { by, level: number, count, shares })
        };
        parts.into_iter().filter_map(divided).collect()
    }

    /// Simulates `jobs` jobs of `program`, alone or while the others run again and again, and returns the outcome of the program. `part` gives
    /// every program its share of the divided level.
    fn run(
        &self,
        program: usize,
        jobs: u64,
        sharing: Option<(Sharing, Ns)>,
        part: Option<&Divided>,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<TaskOutcome, ScenarioError> {
        let outermost = self.levels().last().unwrap_or_default();
        let others = (0..self.programs.len()).filter(|other| *other != program && sharing.is_some());
        let task = |(at, number): (usize, usize)| {
            let share = |by| part.filter(|part| part.by == by).map(|part| format_list(&part.shares[number]));
            Task {
                name: (number + 1).to_string(),
                cpu: if matches!(sharing, Some((Sharing::InterCore, _))) { at as u32 } else { 0 },
                workload: Some(self.programs[number].clone()),
                trace: None,
                format: None,
                data_only: false,
                jobs: if at == 0 { jobs } else { 1 },
                background: at > 0,
                pages: None,
                colors: share(Partitioning::Colors),
                ways: share(Partitioning::Ways)
                    .map(|ways| (outermost.clone(), ways))
                    .into_iter()
                    .collect::<BTreeMap<_, _>>(),
                single_writer: false,
            }
        };
        // The number of CPUs is fixed, so that every run has the same caches.
        let cpus = self.programs.len() as u32;
        let tasks = [program].into_iter().chain(others).enumerate().map(task).collect();
        let slice = sharing.filter(|(sharing, _)| *sharing == Sharing::IntraCore).map(|(_, slice)| self.cycles(slice));
        let scenario = Scenario { slice_cycles: slice, ..Scenario::of(cpus, tasks) };
        let mut no_trace = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let mut outcome = scenario::run(&scenario, self.machine, &mut no_trace, progress)?;
        Ok(outcome.tasks.swap_remove(0))
    }

    /// Returns the values of a run as a measurement by counters would report them. In outer levels, fetches by the inner levels count as
    /// requests, and their write-backs do not.
    fn seen(&self, outcome: &TaskOutcome) -> Vec<f64> {
        let requests = |(at, name): (usize, String)| {
            // A program on the first CPU has the first of each level's caches, or the only one.
            let of = |it: &&scenario::TaskAtLevel| it.name == name || it.name.strip_suffix(".0") == Some(&name);
            let counts = outcome.levels.iter().find(of).map(|it| it.tally.counts).unwrap_or_default();
            let (writes, write_misses) = if at == 0 { (counts.writes, counts.write_misses) } else { (0, 0) };
            let misses = counts.read_misses + write_misses;
            [(counts.reads + writes).saturating_sub(misses), misses].map(|count| count as f64)
        };
        let ns = (u128::from(outcome.cycles) * 1000 / u128::from(self.mhz.max(1))) as f64;
        [ns, 0.0].into_iter().chain(self.levels().enumerate().flat_map(requests)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> MachineModel {
        // 8 colors of 4 ways in the shared level, 128 KiB.
        let text = "schema = 'isochrome-scenario/1'
            levels = ['8K:2:64:lru:wb:wa', '128K:4:64:lru:wb:wa']
            shared_levels = 1
            timing = { access_cycles = 1, read_cycles = [9], write_cycles = [0], memory_read_cycles = 10, memory_write_cycles = 0 }";
        Scenario::from_toml(text).unwrap().machine_model().unwrap().unwrap()
    }

    fn played(programs: &[&str]) -> Interference {
        let programs: Vec<String> = programs.iter().map(|text| (*text).to_owned()).collect();
        let machine = machine();
        let request = Request { machine: &machine, mhz: 1000, programs: &programs, slices: &[Ns(20_000), Ns(100_000)] };
        play(&request, &mut |_| true).unwrap().0
    }

    fn row(measured: &Interference, sharing: Sharing, partitioning: Partitioning) -> &super::super::Row {
        let slice_ns = if sharing == Sharing::IntraCore { Ns(20_000) } else { Ns(0) };
        let condition = Condition { sharing, program: 0, slice_ns, partitioning };
        measured.rows.iter().find(|row| row.condition == condition).unwrap()
    }

    #[test]
    fn a_co_runner_on_another_cpu_takes_lines_of_the_shared_level_and_neither_colors_nor_ways_let_it() {
        // The program reads 64 KiB, half of the level, byte by byte, and so has two of the four lines of each set. The co-runner writes twice
        // the size of the level, line by line. It brings more than two new lines into each set before the program returns to that set.
        let measured =
            played(&["walk:area=64K,stride=1,passes=1,write=0", "walk:area=256K,stride=64,passes=1,write=1"]);
        assert_eq!(measured.rows.len(), 2 * 3 * 3);
        let open = row(&measured, Sharing::InterCore, Partitioning::None);
        assert!(measured.interferes(open) && open.together > 0.05, "{open:?}");
        let [first, second] = open.requests[..] else { panic!("{open:?}") };
        // The program has a first level of its own, so its hits and misses there are the same in both runs.
        assert_eq!((first.hits[0], first.misses[0]), (first.hits[2], first.misses[2]));
        assert_eq!(second.hits[0] + second.misses[0], first.misses[0]);
        // Alone each line misses once.
        assert_eq!(second.misses[0], 1024.0);
        assert!(second.misses[2] > 2.0 * second.misses[0], "{second:?}");
        for partitioning in [Partitioning::Colors, Partitioning::Ways] {
            let own = row(&measured, Sharing::InterCore, partitioning);
            assert_eq!(own.requests[1].misses, [1024.0; 3], "{own:?}");
            // The program runs as many jobs as without a partition.
            assert_eq!(own.requests[0].misses[0], first.misses[0]);
            assert_eq!(own.together, 0.0);
        }
    }

    #[test]
    fn on_one_cpu_the_first_level_is_lost_at_every_time_slice_whatever_the_outermost_keeps() {
        let measured = played(&["walk:area=4K,stride=64,passes=1,write=0", "walk:area=64K,stride=64,passes=1,write=1"]);
        for partitioning in [Partitioning::None, Partitioning::Colors, Partitioning::Ways] {
            let row = row(&measured, Sharing::IntraCore, partitioning);
            // Each of the 64 lines is fetched once if the program is alone, and again after every time slice of the other.
            assert_eq!(row.requests[0].misses[0], 64.0);
            assert!(row.requests[0].misses[2] >= 5.0 * 64.0, "{row:?}");
        }
        let own = row(&measured, Sharing::IntraCore, Partitioning::Colors);
        assert_eq!(own.requests[1].misses[2], 64.0);
    }

    #[test]
    fn what_was_interrupted_is_not_concluded_from() {
        let programs = ["walk:area=4K,stride=64,passes=1,write=0".to_owned(), "matmul".to_owned()];
        let machine = machine();
        let request = Request { machine: &machine, mhz: 1000, programs: &programs, slices: &[Ns(20_000)] };
        assert!(play(&request, &mut |_| false).unwrap().0.rows.is_empty());
        let wrong = ["walk:area=4K".to_owned(), "nothing".to_owned()];
        let error = play(&Request { programs: &wrong, ..request }, &mut |_| true).unwrap_err().to_string();
        assert!(error.contains("hint"), "{error}");
    }
}
