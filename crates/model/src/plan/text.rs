//! Plans and analyses in words.

use std::fmt::Write as _;

use super::allocation::{ANEW_TASKS_MAX, Analyzed, Core, WithRefill};
use super::{Goal, Method, Objective, PLAN_PARTITIONS_MAX, Plan, Reason, TaskPlan, remedies};
use crate::analysis::sensitivity::Change;
use crate::analysis::sharing::shared;
use crate::analysis::{Analysis, Charges, Conditions, assumptions, liu_layland_bound, utilization};
use crate::costs::Costs;
use crate::layout::{Align, Table, WIDTH};
use crate::machine::Source;
use crate::replacement::{Contradicted, Replacement};
use crate::supply::ChargedSupply;
use crate::taskset::{CORE_TASKS_MAX, TIME_MAX_NS, TaskSet};
use crate::units::format_list;

fn milliseconds(time_ns: Option<u64>) -> String {
    time_ns.map_or_else(|| "late".to_owned(), |time| format!("{:.4}", time as f64 / 1e6))
}

/// Formats `plan` as text, with the reasons for each placement.
pub fn plan_text(set: &TaskSet, plan: &Plan, reasons: &[Reason]) -> String {
    let mut text = String::new();
    for core in &plan.cores {
        let _ = writeln!(
            text,
            "CPU {}  partitions {}  utilization {:.4}",
            core.cpu,
            format_list(&core.partitions),
            core.utilization
        );
        let heads = ["times in ms", "partitions", "response", "deadline", "no cache delay"];
        let _ = writeln!(text, "  {:<20} {:<16} {:>10} {:>10}  {}", heads[0], heads[1], heads[2], heads[3], heads[4]);
        for task in &core.tasks {
            let reason =
                reasons.iter().find(|reason| reason.task == task.name).map_or("", |reason| reason.text.as_str());
            let _ = writeln!(
                text,
                "  {:<20} {:<16} {:>10} {:>10}  {:>14}\n    {reason}",
                task.name,
                format_list(&task.partitions),
                milliseconds(task.response_ns),
                milliseconds(Some(task.deadline_ns)),
                milliseconds(task.no_interference_ns),
            );
        }
    }
    text += &if plan.schedulable { schedulable_text(plan) } else { unschedulable_text(set, plan) };
    let shares = plan.cores.iter().any(|core| {
        let partitions = |task: &TaskPlan| task.partitions.iter().copied().collect();
        !shared(core.tasks.iter().map(partitions)).is_empty()
    });
    text += &uncharged(Conditions::of(set), plan.analysis, shares);
    text += &charged(plan.costs.as_ref());
    text += &supplied(plan.supply.as_ref());
    text += &unsound(plan.contradicted.as_ref());
    text + &assumed(plan.replacement)
}

/// Formats the measured costs that the bounds charge, with the remark that they are not bounds; empty without costs.
pub fn charged(costs: Option<&Costs>) -> String {
    costs.map_or_else(String::new, |costs| {
        format!("charges costs that were measured on CPU {}, which are not bounds:\n{costs}", costs.cpu.0)
    })
}

/// Formats the measurement that contradicts the bounds; empty without one.
fn unsound(contradicted: Option<&Contradicted>) -> String {
    contradicted.map_or_else(String::new, |contradicted| {
        format!(
            "NOT SOUND: {contradicted}\n  hint: replacement = \"any\" in the task set; tasks then share no partitions\n"
        )
    })
}

/// Returns the condition of a verdict that a measurement contradicts; empty if none does.
fn condition(contradicted: Option<&Contradicted>) -> &'static str {
    if contradicted.is_some() { " if replacement were LRU" } else { "" }
}

/// Formats the supply that the bounds charge, with the remark that it is not a bound; empty without one.
fn supplied(supply: Option<&ChargedSupply>) -> String {
    supply.map_or_else(String::new, |supply| match supply.source {
        Source::Declared => format!("charges {supply}\n"),
        _ => format!(
            "charges {supply}. These are observed maxima, not bounds on the time that a hypervisor or the kernel withholds\n"
        ),
    })
}

/// Formats in a line which costs are assumed to be zero; empty if all are charged. `shares`: whether tasks share partitions.
fn uncharged(conditions: Conditions, analysis: Analysis, shares: bool) -> String {
    let charges = conditions.charges.by(analysis);
    let costs = [
        ("refill of shared partitions", charges.refill_ns > 0 || !(shares || charges.cold_start)),
        ("context switch", charges.switch_ns > 0),
        ("release interrupt", charges.release_interrupt_ns > 0),
        ("refill of private levels", charges.preemption_ns > 0),
        ("withheld CPU", conditions.supply.is_some()),
    ];
    let free: Vec<&str> = costs.into_iter().filter(|(_, charged)| !charged).map(|(cost, _)| cost).collect();
    match free.is_empty() {
        true => String::new(),
        false => {
            format!("charges no {}: bounds hold only for a machine where this costs nothing\n", free.join(", no "))
        }
    }
}

fn schedulable_text(plan: &Plan) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\nschedulable by {}{}: {} partitions, utilization {:.4}",
        plan.analysis,
        condition(plan.contradicted.as_ref()),
        plan.partitions_used,
        plan.utilization
    );
    if let Some(margin) = plan.margin {
        let _ = writeln!(text, "all execution times can grow by a factor of {margin}");
    }
    match plan.refill_most_ns {
        Some(TIME_MAX_NS) => text += "any refill time will do: no partition is shared\n",
        Some(refill_ns) => {
            let _ = writeln!(text, "the refill time can grow to {} us", refill_ns as f64 / 1e3);
        }
        None => {}
    }
    if !plan.bundles_apart.is_empty() {
        let _ = writeln!(
            text,
            "no core takes these bundles; each of their tasks has partitions of its own instead: {}",
            plan.bundles_apart.join(", ")
        );
    }
    for Goal { objective, value, bound, gap } in &plan.then {
        let proven = match (gap, bound) {
            (Some(0.0), _) => "proven optimal".to_owned(),
            (Some(gap), Some(bound)) => format!("at best {bound}, within {:.3} %", gap * 100.0),
            _ => "nothing is proven".to_owned(),
        };
        let value = match objective {
            Objective::Refill if *value >= TIME_MAX_NS as f64 => "any time".to_owned(),
            Objective::Refill => format!("{} us", value / 1e3),
            _ => format!("{value}"),
        };
        let _ = writeln!(text, "then {objective}: {value} ({proven})");
    }
    match (plan.gap, plan.bound) {
        (Some(0.0), _) => text += "proven optimal\n",
        (Some(gap), Some(bound)) => {
            let _ = writeln!(text, "no plan is better than {bound:.5}: within {:.3} % of the optimum", gap * 100.0);
        }
        _ => text += "no bound on the optimum is proven (the method optimal proves one)\n",
    }
    text
}

fn unschedulable_text(set: &TaskSet, plan: &Plan) -> String {
    // An absent bound means that every plan is excluded. So does a bound of more partitions than there are.
    let excluded = match plan.objective {
        Objective::Partitions => plan.bound.is_none_or(|fewest| fewest > f64::from(set.platform().partitions)),
        Objective::Utilization => plan.bound.is_none(),
        Objective::Margin | Objective::Refill => false,
    };
    // Bundles are taken apart one by one, without a proof that this is necessary.
    let proven = plan.method == Method::Optimal && excluded && plan.bundles_apart.is_empty();
    // With so many tasks, the limit of tasks on a core may be the reason, and not the deadlines.
    let limit = match set.tasks().len() > CORE_TASKS_MAX {
        true => format!(", with {CORE_TASKS_MAX} tasks on a core at most (SCHED_FIFO priorities)"),
        false => String::new(),
    };
    format!(
        "not schedulable{}{limit}: no place for {}\n",
        if proven { ", proven" } else { " as far as this method can tell" },
        plan.unplaced.join(", "),
    )
}

fn assumed(replacement: Replacement) -> String {
    assumptions(replacement).iter().fold("\nThis assumes:\n".to_owned(), |text, line| text + "- " + line + "\n")
}

/// Formats the result of an analysis of the cores of an allocation as text.
pub fn analysis_text(set: &TaskSet, cores: &[Core], analyzed: &Analyzed) -> String {
    let charges = Charges::of(set);
    let mut text = String::new();
    let sets = cores
        .iter()
        .map(|core| core.members.iter().copied().zip(core.tasks.iter().map(|task| task.partitions)).collect())
        .collect();
    let cpus: Vec<u32> = cores.iter().map(|core| core.cpu).collect();
    for (at, core) in cores.iter().enumerate() {
        text += &core_text(set, core, analyzed);
        if core.members.len() <= ANEW_TASKS_MAX && set.platform().partitions <= PLAN_PARTITIONS_MAX {
            for remedy in remedies(set, &sets, &cpus, at, analyzed.analysis) {
                let _ = writeln!(text, "  would repair it: {remedy}");
            }
        }
    }
    let verdict = if analyzed.schedulable { "schedulable" } else { "NOT schedulable" };
    let _ = writeln!(
        text,
        "\n{verdict} by {}{}; utilization {:.4} over all cores",
        analyzed.analysis,
        condition(analyzed.contradicted.as_ref()),
        analyzed.utilization
    );
    if !analyzed.without_bound.is_empty() {
        let _ = writeln!(
            text,
            "no bound for {} and the tasks that they delay: they share partitions or start with a cold cache, and where any policy may \
             replace lines, nothing limits their misses",
            analyzed.without_bound.join(", ")
        );
    }
    for WithRefill { refill, refill_ns, schedulable } in &analyzed.refills {
        let verdict = if *schedulable { "schedulable" } else { "NOT schedulable" };
        let _ = writeln!(text, "with the {} refill time, {} us: {verdict}", refill.name(), *refill_ns as f64 / 1e3);
    }
    let _ = writeln!(text, "the bounds charge a refill time of {} us", charges.refill_ns as f64 / 1e3);
    if analyzed.analysis == Analysis::NoInterference {
        text += "this ignores cache delays and is optimistic wherever partitions are shared\n";
    }
    let shares = cores.iter().any(|core| !shared(core.tasks.iter().map(|task| task.partitions)).is_empty());
    text += &uncharged(Conditions::of(set), analyzed.analysis, shares);
    text += &supplied(analyzed.supply.as_ref());
    text += &unsound(analyzed.contradicted.as_ref());
    text + &assumed(charges.replacement)
}

/// Formats the bounds of a core's tasks, and the sensitivity of the verdict.
fn core_text(set: &TaskSet, core: &Core, analyzed: &Analyzed) -> String {
    let charges = Charges::of(set);
    let mut text = String::new();
    let ms = |time: u64| format!("{:.4}", time as f64 / 1e6);
    let used = utilization(&core.tasks, charges);
    let withheld = analyzed.supply.is_some();
    let _ = writeln!(
        text,
        "CPU {}  utilization {used:.4} (Eq. 1; as a test for D = T: at most {:.4})",
        core.cpu,
        liu_layland_bound(core.tasks.len()),
    );
    let heads = ["response", "deadline", "own", "interference", "warm-up", "CRPD"];
    let heads = heads.into_iter().chain(withheld.then_some("withheld")).map(|head| (head, Align::Right));
    let mut table = Table::new([("times in ms", Align::Left)].into_iter().chain(heads)).indented(2);
    for (&task, bound) in core.members.iter().zip(&core.bounds) {
        let known = &set.tasks()[task];
        let times = [known.deadline_ns, bound.own_ns, bound.interference_ns, bound.omega_ns, bound.gamma_ns];
        let times = times.into_iter().chain(withheld.then_some(bound.withheld_ns)).map(ms);
        let cells = [known.name.clone(), milliseconds(bound.verdict.response_ns())];
        table.row(cells.into_iter().chain(times));
    }
    text += &table.text(WIDTH);
    let mut limit = |what: &str, change: Change, shown: &dyn Fn(u64) -> String| {
        let _ = match change {
            Change::Most(value) => writeln!(text, "  {what}: at most {}", shown(value)),
            Change::Unlimited => writeln!(text, "  {what}: any"),
            Change::Hopeless => writeln!(text, "  {what}: none helps"),
        };
    };
    if let Some(known) = analyzed.cores.iter().find(|known| known.cpu == core.cpu) {
        limit("refill time per partition for which this holds", known.largest_refill_ns, &|ns| {
            format!("{} us", ns as f64 / 1e3)
        });
        limit("factor on all execution times for which this holds", known.largest_scale_ppm, &|ppm| {
            format!("{:.6}", ppm as f64 / 1e6)
        });
        if let Some(count) = known.fewest_partitions {
            let _ = writeln!(text, "  partitions that are enough, allocated anew: {count}");
        }
        for jump in &known.refill_breaks {
            let _ = writeln!(
                text,
                "  above a refill time of {} us {} is preempted once more: {} -> {} ms",
                jump.above_ns as f64 / 1e3,
                jump.task,
                milliseconds(jump.response_before_ns),
                milliseconds(jump.response_after_ns),
            );
        }
    }
    text
}
