//! Comparison of the planning methods. [Kim2013, Figures 14 to 16]

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Method, Objective, PlanError, Request, bars, plan};
use crate::taskset::TaskSet;
use crate::units::Bytes;

/// Result of one method on a task set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The method.
    pub method: Method,
    /// Fewest partitions with which the method finds a plan; `None` if it finds none.
    pub fewest: Option<u32>,
    /// The fewest partitions as a share (0 to 1) of all partitions.
    pub share: Option<f64>,
    /// Share (0 to 1) of the memory of the fewest partitions that the tasks need.
    pub memory_used: Option<f64>,
    /// Least utilization that the method finds with all partitions; `None` if it finds no plan.
    pub least: Option<f64>,
    /// Proven lower bounds on the fewest partitions and on the least utilization; `None` for methods that prove none.
    pub bounds: Option<(f64, f64)>,
}

/// Results of all methods on one task set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Number of tasks.
    pub tasks: usize,
    /// Number of cores.
    pub cores: u32,
    /// Number of partitions.
    pub partitions: u32,
    /// Size of the memory.
    pub memory: Bytes,
    /// Results of the methods, those of the paper first.
    pub methods: Vec<Compared>,
}

impl Comparison {
    /// Returns the result of `method`. Panics for a method that was not compared.
    pub fn of(&self, method: Method) -> &Compared {
        self.methods.iter().find(|compared| compared.method == method).expect("every method is compared")
    }
}

/// A row of three cells: the compared quantity, the result here, and the result that [Kim2013, §5.5] reports.
pub type Row = [String; 3];

/// Compares the results for one set, taken with more and more copies and memory, with those that [Kim2013, §5.5] reports.
/// Returns a row for each quantity.
///
/// Ranges are over all comparisons in which both methods have a plan. The first comparison must be that of 8 tasks in 1
/// GiB.
pub fn beside_kim2013(comparisons: &[Comparison]) -> Vec<Row> {
    // Range of what CATA saves against `method`, over the comparisons in which both have a plan.
    let saved = |method: Method, of: fn(&Compared) -> Option<f64>| {
        let pairs = comparisons.iter().filter_map(|all| of(all.of(method)).zip(of(all.of(Method::Cata))));
        let (low, high) = pairs
            .map(|(other, cata)| other - cata)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low > high { "none".to_owned() } else { format!("{:.0} to {:.0}", low * 100.0, high * 100.0) }
    };
    let unused = |c: &Compared| c.memory_used.map(|used| -used);
    let without = comparisons.iter().filter(|all| all.of(Method::Bfd).fewest.is_none());
    let without: Vec<String> = without.map(|all| format!("{} tasks in {}", all.tasks, all.memory)).collect();
    let first = comparisons.first().and_then(|all| all.of(Method::Cata).memory_used);
    let rows = [
        ("partitions CATA saves against BFD, % of all", saved(Method::Bfd, |c| c.share), "16 to 25"),
        ("partitions CATA saves against WFD, % of all", saved(Method::Wfd, |c| c.share), "12 to 19"),
        ("memory used better than with BFD, points", saved(Method::Bfd, unused), "25 to 39"),
        ("memory used better than with WFD, points", saved(Method::Wfd, unused), "14 to 35"),
        ("utilization CATA saves against BFD, points", saved(Method::Bfd, |c| c.least), "29 to 44"),
        ("utilization CATA saves against WFD, points", saved(Method::Wfd, |c| c.least), "14 to 49"),
        ("BFD has no plan for", without.join(", "), "16 tasks in 1 GiB"),
        (
            "memory used by CATA, 8 tasks in 1 GiB",
            first.map_or("none".to_owned(), |used| format!("{:.0} %", used * 100.0)),
            "97 %",
        ),
    ];
    rows.map(|(what, here, paper)| [what.to_owned(), here, paper.to_owned()]).to_vec()
}

/// Draws [Kim2013, Figures 14 to 16] for these comparisons. A note below each figure names the numbers to compare.
pub fn figures_14_to_16(comparisons: &[Comparison]) -> String {
    let rows = beside_kim2013(comparisons);
    let note = |bfd: usize| {
        let ([_, bfd, paper_bfd], [_, wfd, paper_wfd]) = (&rows[bfd], &rows[bfd + 1]);
        format!("CATA against BFD: here {bfd}, paper {paper_bfd}; against WFD: here {wfd}, paper {paper_wfd} points")
    };
    let notes = [note(0), note(2), note(4)];
    bars(comparisons, [&notes[0], &notes[1], &notes[2]]) + "\n"
}

/// Plans `set` by every method, once for the fewest partitions and once for the least utilization.
///
/// `request`: supplies the stop condition and the analysis. Its method and objectives are not used.
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

/// Formats the comparison as a Markdown table.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, cores, partitions, memory, .. } = self;
        writeln!(f, "{tasks} tasks, {cores} cores, {partitions} partitions, {memory}\n")?;
        writeln!(f, "| method | partitions | of all | memory used | utilization | proven bounds |")?;
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
