//! \[Liedtke1997\] on modeled machines: the unpredictability c_max/c_min of filter, transforms and matrix multiplication.
//!
//! The timing is that of the described machines, in which events add up and nothing overlaps. In addition to the memory accesses
//! the program computes for a fixed time per access. A flood writes as many lines of fresh frames as the second level holds.

use serde::Deserialize;

use super::{Played, Wrong, machine};
use crate::evidence::figure::{Axis, Chart, Dash, Hue, Line};
use crate::evidence::format;
use crate::sim::{Access, Allocation, ConfigError, Hierarchy, MachineModel, PageTable};
use crate::units::{Color, CpuId, FrameNumber};
use crate::workload::Workload;

/// Use of the task's colors by floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There are no floods.
    Alone,
    /// Floods use all colors.
    Unpartitioned,
    /// Floods use the other colors only.
    Partitioned,
    /// Floods use pages of the task's colors too, but only read them. [Liedtke1997, §5.3]
    SingleWriter,
}
use Condition::{Alone, Partitioned, SingleWriter, Unpartitioned};

/// The conditions with floods, with their names and the styles of their lines.
const FLOODED: [(Condition, &str, Hue, Dash); 3] = [
    (Unpartitioned, "unpartitioned", Hue::Unpartitioned, Dash::Solid),
    (SingleWriter, "single-writer", Hue::SingleWriter, Dash::Dashed),
    (Partitioned, "partitioned", Hue::Partitioned, Dash::Dotted),
];

/// A task on a modeled machine, and the floods around it.
struct Run<'a> {
    machine: &'a MachineModel,
    hierarchy: Hierarchy,
    pages: PageTable,
    colors: u16,
    own: u16,
    condition: Condition,
    floods: u64,
}

impl<'a> Run<'a> {
    fn new(machine: &'a MachineModel, own: u16, condition: Condition) -> Result<Run<'a>, ConfigError> {
        let colors = machine.colors().last().map_or(1, |(_, colors)| *colors as u16);
        let own = own.min(colors);
        let allocation = match condition {
            Alone | Unpartitioned => Allocation::Sequential { first: FrameNumber(0) },
            Partitioned | SingleWriter => {
                Allocation::Colored { colors: (0..own).map(Color).collect(), color_count: colors }
            }
        };
        let (hierarchy, pages) = (machine.hierarchy(1)?, PageTable::new(machine.page_bytes, allocation));
        Ok(Run { machine, hierarchy, pages, colors, own, condition, floods: 0 })
    }

    fn flood(&mut self) {
        let (Some(second), page) = (self.machine.levels.last(), self.machine.page_bytes.0) else { return };
        if self.condition == Alone {
            return;
        }
        let geometry = second.cache.geometry;
        let pages = geometry.cache_bytes().0 / page;
        self.floods += 1;
        // Far behind the task's own frames.
        let first = (1 << 20) + self.floods % 4 * pages;
        for frame in first..first + pages {
            let own = frame % u64::from(self.colors) < u64::from(self.own);
            let write = match self.condition {
                Partitioned if own => continue,
                SingleWriter if own => false,
                _ => true,
            };
            for line in (0..page).step_by(geometry.line_bytes.0 as usize) {
                // Read, then written: some of the machines install no line on a write. [Liedtke1997, §5.1]
                let address = frame * page + line;
                self.hierarchy.access_by(CpuId(0), 1, Access::read(address));
                if write {
                    self.hierarchy.access_by(CpuId(0), 1, Access::write(address));
                }
            }
        }
    }

    fn run(&mut self, accesses: &[Access]) -> u64 {
        self.hierarchy.reset_counts();
        self.pages.run(accesses, &mut self.hierarchy);
        self.hierarchy.cycles()
    }
}

/// Returns `c_max/c_min - 1` in percent, for jobs of a workload that computes `compute` cycles per access.
///
/// The task has as many colors of its own as it has pages.
pub fn unpredictability(
    machine: &MachineModel,
    workload: Workload,
    compute: f64,
    condition: Condition,
) -> Result<f64, ConfigError> {
    let accesses: Vec<Access> = workload.accesses().collect();
    let ends = accesses.iter().map(|access| access.address + u64::from(access.bytes));
    let pages = ends.max().unwrap_or(0).div_ceil(machine.page_bytes.0) as u16;
    let job = |condition| {
        let mut run = Run::new(machine, pages, condition)?;
        let mut cycles = 0;
        for _ in 0..3 {
            run.flood();
            cycles = run.run(&accesses);
        }
        Ok::<_, ConfigError>(cycles as f64 + compute * accesses.len() as f64)
    };
    Ok(100.0 * (job(condition)? / job(Alone)? - 1.0))
}

/// Cycles that the matrix multiplication computes per access, in addition to the access itself. A product of two loads takes
/// 4.5 cycles if nothing misses. [Liedtke1997, §5.4]
const PRODUCT_COMPUTE: f64 = 1.25;

/// Returns the accesses of the first eighth of the multiplication: eight rows of a with all of b.
fn eighth() -> Vec<Access> {
    Workload::Matmul.accesses().take(8 * 64 * 129).collect()
}

/// Returns `c_max/c_min - 1` in percent, for a warm matrix multiplication flooded after every slice. It has `own` colors.
pub fn unpredictability_in_slices(
    machine: &MachineModel,
    slice_cycles: u64,
    own: u16,
    condition: Condition,
) -> Result<f64, ConfigError> {
    let accesses = eighth();
    let total = |condition| {
        let mut run = Run::new(machine, own, condition)?;
        run.run(&accesses);
        let mut cycles = 0.0;
        let (mut left, mut used) = (accesses.as_slice(), 0.0);
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(32));
            used += run.run(now) as f64 + PRODUCT_COMPUTE * now.len() as f64;
            left = later;
            if used >= slice_cycles as f64 {
                cycles += used;
                used = 0.0;
                run.flood();
            }
        }
        Ok::<_, ConfigError>(cycles + used)
    };
    Ok(100.0 * (total(condition)? / total(Alone)? - 1.0))
}

/// Jobs of programs of several sizes, with and without a flood before each.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    /// Names of modeled machines.
    machines: Vec<String>,
    /// Workloads, by name. `{}` stands for the size.
    workloads: Vec<(String, String)>,
    /// The sizes.
    sizes: Vec<u64>,
    /// Description of a size.
    size: String,
    /// Cycles that a program computes per access, in addition to the access itself.
    compute: f64,
}

impl Jobs {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let mut played = Played::default();
        for name in &self.machines {
            let model = machine(name)?;
            for (program, text) in &self.workloads {
                let mut lines = Vec::new();
                for (condition, label, hue, dash) in FLOODED {
                    let points = self.sizes.iter().map(|&size| {
                        let workload: Workload = text.replace("{}", &size.to_string()).parse()?;
                        Ok((size as f64, unpredictability(&model, workload, self.compute, condition)?))
                    });
                    lines.push(Line::new(label, hue, dash, points.collect::<Result<_, Wrong>>()?));
                }
                let title = if self.workloads.len() > 1 { format!("{name} {program}") } else { name.clone() };
                played.chart(&title, over_sizes(&title, &self.size, &self.sizes, lines));
            }
        }
        Ok(played)
    }
}

/// Returns a chart of `lines` of unpredictabilities over sizes, whose axis is logarithmic.
fn over_sizes(title: &str, size: &str, sizes: &[u64], lines: Vec<Line>) -> Chart {
    let description = format!("c_max/c_min - 1 of jobs on the modeled {title}, against the {size}.");
    let label = format!("{title}: c_max/c_min - 1, %");
    let chart = Chart::linear(title, &description, [size, &label], lines);
    let ends = [sizes.first(), sizes.last()].map(|size| size.map_or(1.0, |size| *size as f64));
    let ticks: Vec<f64> = sizes.iter().map(|size| *size as f64).collect();
    Chart { x: Axis::log(size, (ends[0], ends[1]), format::tick).with_ticks(&ticks, format::tick), ..chart }
}

/// A matrix multiplication that is flooded after every time slice.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slices {
    /// Names of modeled machines, each with its clock rate in MHz and the colors of the task.
    machines: Vec<(String, u64, u16)>,
    /// Lengths of the slices in us.
    slices_us: Vec<u64>,
}

impl Slices {
    pub(super) fn play(&self) -> Result<Played, Wrong> {
        let mut played = Played::default();
        for (name, mhz, own) in &self.machines {
            let model = machine(name)?;
            let mut lines = Vec::new();
            for (condition, label, hue, dash) in FLOODED {
                let points = self
                    .slices_us
                    .iter()
                    .map(|&us| Ok((us as f64, unpredictability_in_slices(&model, us * mhz, *own, condition)?)));
                lines.push(Line::new(label, hue, dash, points.collect::<Result<_, Wrong>>()?));
            }
            played.chart(name, over_sizes(name, "time slice, us", &self.slices_us, lines));
            let mut run = Run::new(&model, *own, Alone)?;
            let accesses = eighth();
            run.run(&accesses);
            let cycles = run.run(&accesses) as f64 + PRODUCT_COMPUTE * accesses.len() as f64;
            played.number(format!("{name}: cycles per product, alone"), cycles / (8.0 * 64.0 * 64.0));
        }
        Ok(played)
    }
}
