//! A task with a set miss ratio on a modeled machine.

use isochrome_model::miss_ratio::Task;
use isochrome_model::sim::{ConfigError, Level, MachineModel, Simulator};
use isochrome_model::trace::Access;

/// Number of unrecorded passes, after which every pass is like the one before. Under LRU this holds from the third pass on; other policies need
/// some more.
const WARM_UP: u64 = 4;
/// Number of passes whose misses are counted.
const PASSES: u64 = 4;

/// Returns the misses per access of `task` in `level` of `machine`.
///
/// Fails if the machine model is invalid.
pub fn miss_ratio(machine: &MachineModel, level: &Level, task: &Task) -> Result<f64, ConfigError> {
    let mut simulator = Simulator::machine(machine)?;
    let pass: Vec<Access> = task.accesses(1).collect();
    let mut misses_after = |passes: u64| {
        (0..passes).for_each(|_| simulator.run(&pass));
        let (levels, _) = simulator.counts();
        levels.iter().find(|counts| counts.name == level.name).map_or(0, |counts| counts.counts.read_misses)
    };
    let before = misses_after(WARM_UP);
    Ok((misses_after(PASSES) - before) as f64 / (PASSES * pass.len() as u64) as f64)
}
