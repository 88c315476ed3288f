//! The methods side by side. [Kim2013, Figures 14 to 16]

use std::fmt;

use super::{Method, Objective, PlanError, Request, plan};
use crate::taskset::TaskSet;
use crate::units::Bytes;

/// What one method makes of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Which.
    pub method: Method,
    /// The fewest partitions with which it finds a plan.
    pub fewest: Option<u32>,
    /// The share of all partitions that these are.
    pub share: Option<f64>,
    /// The share of their memory that the tasks need.
    pub memory_used: Option<f64>,
    /// The least utilization it finds with all partitions.
    pub least: Option<f64>,
    /// What is proven about both, for the method that proves.
    pub bounds: Option<(f64, f64)>,
}

/// All methods on one set.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// How many tasks.
    pub tasks: usize,
    /// How many cores.
    pub cores: u32,
    /// How many partitions.
    pub partitions: u32,
    /// How much memory.
    pub memory: Bytes,
    /// The methods, the paper's first.
    pub methods: Vec<Compared>,
}

impl Comparison {
    /// What `method` makes of the set. Panics for a method that was not compared.
    pub fn of(&self, method: Method) -> &Compared {
        self.methods.iter().find(|compared| compared.method == method).expect("every method is compared")
    }
}

/// Plans `set` by every method, once for the fewest partitions and once for the least utilization.
///
/// `request`: how long, and by which analysis; its method and objectives are not used.
pub fn compare(set: &TaskSet, request: &Request) -> Result<Comparison, PlanError> {
    let platform = set.platform();
    let needed: u64 = set.tasks().iter().map(|task| task.memory.0).sum();
    let compared = |method| {
        let planned = |objective| plan(set, &Request { method, objective, then: &[], ..*request });
        let (few, low) = (planned(Objective::Partitions)?, planned(Objective::Utilization)?);
        let fewest = few.schedulable.then_some(few.partitions_used);
        Ok(Compared {
            method,
            fewest,
            share: fewest.map(|count| f64::from(count) / f64::from(platform.partitions)),
            memory_used: fewest.map(|count| needed as f64 / (set.partition_memory().0 as f64 * f64::from(count))),
            least: low.schedulable.then_some(low.utilization),
            bounds: few.bound.zip(low.bound),
        })
    };
    let methods = [Method::Bfd, Method::Wfd, Method::Cata, Method::Optimal].into_iter().map(compared);
    Ok(Comparison {
        tasks: set.tasks().len(),
        cores: platform.cores,
        partitions: platform.partitions,
        memory: platform.memory,
        methods: methods.collect::<Result<_, _>>()?,
    })
}

/// A Markdown table.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, cores, partitions, memory, .. } = self;
        writeln!(f, "{tasks} tasks, {cores} cores, {partitions} partitions, {memory}\n")?;
        writeln!(
            f,
            "| method | fewest partitions | of all | memory used of that | least utilization with all | proven bounds |"
        )?;
        writeln!(f, "|---|---:|---:|---:|---:|---|")?;
        for Compared { method, fewest, share, memory_used, least, bounds } in &self.methods {
            let percent = |share: &Option<f64>| share.map(|share| format!("{:.0} %", share * 100.0));
            let cells = [
                fewest.map(|count| count.to_string()),
                percent(share),
                percent(memory_used),
                least.map(|least| format!("{least:.4}")),
            ];
            let cells = cells.map(|cell| cell.unwrap_or_else(|| "none".to_owned())).join(" | ");
            let proven = bounds.map_or(String::new(), |(few, low)| format!("{few}, {low:.4}"));
            writeln!(f, "| {method} | {cells} | {proven} |")?;
        }
        Ok(())
    }
}
