//! `isochrome plan` and `isochrome analyze`: task sets in, cores, partitions and bounds out.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use isochrome_host::interrupt;
use isochrome_model::analysis::sensitivity::{Change, largest_refill, largest_scale_ppm, refill_breaks};
use isochrome_model::analysis::{
    ASSUMPTIONS, Analysis, Audsley, Bound, BoundOfTask, Charges, CoreTask, Verdict as Deadline, Workspace, allotted,
    analyze as bounds_of, audsley, liu_layland_bound, schedulable, utilization,
};
use isochrome_model::plan::{self, Goal, Method, Objective, Plan, Progress, Request, Timeline};
use isochrome_model::taskset::programs::{Runnable, runnable};
use isochrome_model::taskset::read::{Allocation, Allotted, Overrides, allocation, task_set};
use isochrome_model::taskset::{RefillKind, TIME_MAX_NS, TaskSet};
use isochrome_model::units::{Bytes, format_list};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{AnalyzeOptions, PlanOptions, Priorities, TaskSetFile};
use crate::{Verdict, files};

/// Version of a plan, and of what `analyze` prints.
pub const SCHEMA: &str = "isochrome-plan/1";
pub const ANALYSIS_SCHEMA: &str = "isochrome-analysis/1";

fn of_text(file: &TaskSetFile, text: &str, overrides: Overrides) -> Result<TaskSet> {
    let (set, warnings) = task_set(text, overrides).with_context(|| file.tasks.display().to_string())?;
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(set)
}

fn overrides(file: &TaskSetFile) -> Overrides {
    Overrides {
        cores: file.cores,
        partitions: file.partitions,
        memory: file.memory,
        refill: file.refill,
        ..Overrides::default()
    }
}

/// `isochrome plan`.
pub fn plan(options: &PlanOptions) -> Result<Verdict> {
    let text = files::read(&options.file.tasks)?;
    let shown = || options.file.tasks.display().to_string();
    // Copies of a task have no programs of their own.
    let runnable = if options.copies == 1 { runnable(&text).with_context(shown)? } else { None };
    let mut overrides = overrides(&options.file);
    overrides.cores_default = runnable.as_ref().map(|runnable| runnable.programs.cpus.len() as u32);
    let mut set = of_text(&options.file, &text, overrides)?.copied(options.copies)?;
    if let Some(Runnable { programs, .. }) = &runnable {
        let cpu_of = |name: &str| programs.tasks.iter().find(|program| program.name == name)?.cpu;
        set = set.with_pins(cpu_of).with_context(shown)?;
    }
    let start = Instant::now();
    let limit = Duration::from_nanos(options.time_limit.0);
    let last_reported = std::cell::Cell::new(start);
    let progress = |progress: Progress| {
        // Quick plans need no talk.
        if last_reported.get().elapsed() > Duration::from_secs(2) {
            last_reported.set(Instant::now());
            let best = progress.best.map_or("none yet".to_owned(), |best| format!("{best:.5}"));
            eprintln!("{:.0} s: best {best}, proven bound {:.5}", start.elapsed().as_secs_f64(), progress.bound);
        }
    };
    let should_stop = || start.elapsed() >= limit || interrupt::interrupted();
    let (objective, then) = options.objective.split_first().context("--objective names none")?;
    let request = Request {
        method: options.method,
        objective: *objective,
        then,
        analysis: options.file.analysis,
        should_stop: &should_stop,
        progress: &progress,
    };
    if options.compare {
        files::print(&plan::compare(&set, &request)?.to_string())?;
        return Ok(Verdict::Holds);
    }
    let mut plan = plan::plan(&set, &request)?;
    let reasons = plan::explain(&set, &plan);
    if let Some(runnable) = runnable {
        plan = plan.for_programs(runnable)?;
    }
    if let Some(path) = &options.gantt {
        let (allocated, _) = allocation(&serde_json::to_string(&plan)?, &set)?;
        let cores: Vec<Core> = allocated.iter().map(|core| Core::of(&set, core, plan.analysis)).collect();
        files::write(path, &schedule(&set, &cores, plan.analysis))?;
    }
    files::write_if(&options.svg, || plan::color_map(&plan, set.platform().partitions))?;
    files::leave(&options.output, &files::versioned(SCHEMA, &plan), || plan_text(&set, &plan, &reasons))?;
    Ok(if plan.schedulable { Verdict::Holds } else { Verdict::Violated })
}

fn milliseconds(time_ns: Option<u64>) -> String {
    time_ns.map_or_else(|| "late".to_owned(), |time| format!("{:.4}", time as f64 / 1e6))
}

/// Every core after a common release, drawn.
fn schedule(set: &TaskSet, cores: &[Core], analysis: Analysis) -> String {
    let name = |&task: &usize| set.tasks()[task].name.as_str();
    let timelines = cores.iter().map(|core| {
        let names = core.members.iter().map(name).collect();
        Timeline { cpu: core.cpu, names, core: &core.tasks }
    });
    plan::gantt(&timelines.collect::<Vec<_>>(), Charges::of(set), analysis)
}

fn plan_text(set: &TaskSet, plan: &Plan, reasons: &[plan::Reason]) -> String {
    let mut text = String::new();
    for core in &plan.cores {
        let _ = writeln!(
            text,
            "CPU {}  partitions {}  utilization {:.4}",
            core.cpu,
            format_list(&core.partitions),
            core.utilization
        );
        for task in &core.tasks {
            let reason =
                reasons.iter().find(|reason| reason.task == task.name).map_or("", |reason| reason.text.as_str());
            let _ = writeln!(
                text,
                "  {:<20} partitions {:<16} response {:>10} of {:>10} ms, {} without cache delays\n    {reason}",
                task.name,
                format_list(&task.partitions),
                milliseconds(task.response_ns),
                milliseconds(Some(task.deadline_ns)),
                milliseconds(task.no_interference_ns),
            );
        }
    }
    if plan.schedulable {
        let _ = writeln!(
            text,
            "\nschedulable by {}: {} partitions, utilization {:.4}",
            plan.analysis, plan.partitions_used, plan.utilization
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
            _ => text += "nothing is proven about how good this is (--method optimal does)\n",
        }
    } else {
        // Without a bound every plan is excluded; so is a plan that would need more partitions than there are.
        let excluded = match plan.objective {
            Objective::Partitions => plan.bound.is_none_or(|fewest| fewest > f64::from(set.platform().partitions)),
            Objective::Utilization => plan.bound.is_none(),
            Objective::Margin | Objective::Refill => false,
        };
        // That bundles must be apart one after the other is no proof.
        let proven = plan.method == Method::Optimal && excluded && plan.bundles_apart.is_empty();
        let _ = writeln!(
            text,
            "not schedulable{}: no place for {}\n  hint: `isochrome analyze` on an allocation says what would mend a core",
            if proven { ", proven" } else { " as far as this method can tell" },
            plan.unplaced.join(", "),
        );
    }
    text + &assumptions()
}

fn assumptions() -> String {
    ASSUMPTIONS.iter().fold("\nThis assumes:\n".to_owned(), |text, line| text + "- " + line + "\n")
}

/// What an analysis says of an allocation.
#[derive(Serialize, JsonSchema)]
pub struct Analyzed {
    /// The analysis.
    analysis: Analysis,
    /// Whether all deadlines hold.
    schedulable: bool,
    /// A bound for every task.
    tasks: Vec<BoundOfTask>,
    /// Over all cores.
    utilization: f64,
    /// Whether it would be, with each refill time known.
    refills: Vec<WithRefill>,
    /// How far the verdict carries; without cores of very many tasks.
    cores: Vec<Sensitivity>,
    /// Partitions whose memory does not hold what is put into it, from 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overfull_partitions: Vec<u32>,
}

#[derive(Serialize, JsonSchema)]
struct WithRefill {
    refill: RefillKind,
    refill_ns: u64,
    schedulable: bool,
}

/// How far the verdict on a core carries.
#[derive(Serialize, JsonSchema)]
struct Sensitivity {
    cpu: u32,
    utilization: f64,
    largest_refill_ns: Change,
    largest_scale_ppm: Change,
    /// With the partitions of the core allocated anew; absent for more tasks than can be tried, or if none are enough.
    fewest_partitions: Option<u32>,
    refill_breaks: Vec<Jump>,
}

/// A refill time above which a task is preempted once more.
#[derive(Serialize, JsonSchema)]
struct Jump {
    task: String,
    above_ns: u64,
    response_before_ns: Option<u64>,
    response_after_ns: Option<u64>,
}

/// Tasks up to which a core's partitions are allocated anew to see what would help.
const ANEW_TASKS_MAX: usize = 16;
/// Tasks up to which a core's sensitivity is looked at.
const SENSITIVITY_TASKS_MAX: usize = 256;
/// Jumps reported of each task.
const JUMPS_MAX: usize = 4;

fn sensitivity(set: &TaskSet, core: &Core, analysis: Analysis) -> Sensitivity {
    let charges = Charges::of(set);
    let jumps = |place: usize| {
        let range = 0..=charges.refill_ns.saturating_mul(2);
        let task = set.tasks()[core.members[place]].name.clone();
        refill_breaks(&core.tasks, charges, analysis, place, range).take(JUMPS_MAX).map(move |jump| Jump {
            task: task.clone(),
            above_ns: jump.last_ns,
            response_before_ns: jump.response_before_ns,
            response_after_ns: jump.response_after_ns,
        })
    };
    Sensitivity {
        cpu: core.cpu,
        utilization: utilization(&core.tasks, charges),
        largest_refill_ns: largest_refill(&core.tasks, charges, analysis),
        largest_scale_ppm: largest_scale_ppm(&core.tasks, charges, analysis),
        fewest_partitions: (core.members.len() <= ANEW_TASKS_MAX)
            .then(|| plan::fewest_for_core(set, &core.members, analysis))
            .flatten(),
        refill_breaks: (0..core.members.len()).flat_map(jumps).collect(),
    }
}

/// A core of the allocation, its tasks by priority.
struct Core {
    cpu: u32,
    members: Vec<usize>,
    tasks: Vec<CoreTask>,
    bounds: Vec<Bound>,
}

impl Core {
    fn of(set: &TaskSet, (cpu, members): &(u32, Vec<Allotted>), analysis: Analysis) -> Core {
        let (members, tasks) = allotted(set, members);
        let bounds = bounds_of(&tasks, Charges::of(set), analysis);
        Core { cpu: *cpu, members, tasks, bounds }
    }
}

/// `isochrome analyze`.
pub fn analyze(options: &AnalyzeOptions) -> Result<Verdict> {
    ensure!(
        options.file.tasks != Path::new("-") || options.allocation != Path::new("-"),
        "both files cannot come from standard input"
    );
    let mut overrides = overrides(&options.file);
    // Which memory there is does not change a bound.
    let checks_memory = overrides.memory.is_some();
    overrides.memory_default = Some(Bytes(1 << 60));
    overrides.cores_default = Some(4096);
    let set = of_text(&options.file, &files::read(&options.file.tasks)?, overrides)?;
    let checks_memory = checks_memory || set.platform().memory != Bytes(1 << 60);
    let (allocated, warnings) = allocation(&files::read(&options.allocation)?, &set)
        .with_context(|| options.allocation.display().to_string())?;
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let (analysis, charges) = (options.file.analysis, Charges::of(&set));
    let set = match options.priorities {
        Priorities::File => set,
        Priorities::Audsley => set.with_priorities(&audsley_order(&set, &allocated, analysis)),
    };
    let mut overfull = Vec::new();
    let cores: Vec<Core> = allocated
        .iter()
        .map(|core| {
            let sets: Vec<_> = core.1.iter().map(|member| (member.task, member.partitions)).collect();
            overfull.extend(plan::overfull_partition(&set, &sets).filter(|_| checks_memory));
            Core::of(&set, core, analysis)
        })
        .collect();
    for partition in &overfull {
        eprintln!("warning: partition {partition} has less memory than its tasks need of it (Eq. 3)");
    }
    let each = cores
        .iter()
        .flat_map(|core| core.members.iter().zip(&core.bounds).map(move |(task, bound)| (core.cpu, *task, bound)));
    let analyzed = Analyzed {
        analysis,
        schedulable: overfull.is_empty()
            && cores.iter().flat_map(|core| &core.bounds).all(|bound| bound.verdict != Deadline::Misses),
        tasks: each.map(|(cpu, task, bound)| bound.of_task(&set, task, cpu)).collect(),
        utilization: cores.iter().map(|core| utilization(&core.tasks, charges)).sum(),
        refills: set
            .platform()
            .refills
            .known()
            .map(|(refill, refill_ns)| {
                let charges = Charges { refill_ns, ..charges };
                let holds = |core: &Core| schedulable(&core.tasks, charges, analysis, &mut Workspace::default());
                WithRefill { refill, refill_ns, schedulable: overfull.is_empty() && cores.iter().all(holds) }
            })
            .collect(),
        cores: cores
            .iter()
            .filter(|core| core.tasks.len() <= SENSITIVITY_TASKS_MAX)
            .map(|core| sensitivity(&set, core, analysis))
            .collect(),
        overfull_partitions: overfull,
    };
    files::write_if(&options.svg, || schedule(&set, &cores, analysis))?;
    files::show(options.json, &files::versioned(ANALYSIS_SCHEMA, &analyzed), || {
        analysis_reported(&set, &cores, &analyzed)
    })?;
    Ok(if analyzed.schedulable { Verdict::Holds } else { Verdict::Violated })
}

/// All tasks of the allocation by priorities found for each core; by those of the set where none are found.
fn audsley_order(set: &TaskSet, allocated: &Allocation, analysis: Analysis) -> Vec<usize> {
    let mut order = Vec::new();
    for (cpu, members) in allocated {
        let (members, tasks) = allotted(set, members);
        let places = match audsley(&tasks, Charges::of(set), analysis) {
            Audsley::Found(places) => places,
            Audsley::Stuck { unplaced } => {
                let names: Vec<&str> =
                    unplaced.iter().map(|&place| set.tasks()[members[place]].name.as_str()).collect();
                eprintln!(
                    "warning: CPU {cpu}: no priorities found; none of these can have the lowest left: {}",
                    names.join(", ")
                );
                (0..members.len()).collect()
            }
        };
        order.extend(places.into_iter().map(|place| members[place]));
    }
    order
}

fn analysis_reported(set: &TaskSet, cores: &[Core], analyzed: &Analyzed) -> String {
    let charges = Charges::of(set);
    let mut text = String::new();
    let ms = |time: u64| format!("{:.4}", time as f64 / 1e6);
    let sets = cores
        .iter()
        .map(|core| core.members.iter().copied().zip(core.tasks.iter().map(|task| task.partitions)).collect())
        .collect();
    for (at, core) in cores.iter().enumerate() {
        let used = utilization(&core.tasks, charges);
        let _ = writeln!(
            text,
            "CPU {}  utilization {used:.4} (Eq. 1; as a test for D = T it would have to be at most {:.4})\n  {:<20} {:>11} {:>11} {:>10} {:>12} {:>9} {:>9}",
            core.cpu,
            liu_layland_bound(core.tasks.len()),
            "times in ms",
            "response",
            "deadline",
            "own",
            "interference",
            "warm-up",
            "CRPD"
        );
        for (&task, bound) in core.members.iter().zip(&core.bounds) {
            let known = &set.tasks()[task];
            let _ = writeln!(
                text,
                "  {:<20} {:>11} {:>11} {:>10} {:>12} {:>9} {:>9}",
                known.name,
                milliseconds(bound.verdict.response_ns()),
                ms(known.deadline_ns),
                ms(bound.own_ns),
                ms(bound.interference_ns),
                ms(bound.omega_ns),
                ms(bound.gamma_ns),
            );
        }
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
        if core.members.len() <= ANEW_TASKS_MAX && set.platform().partitions <= plan::PLAN_PARTITIONS_MAX {
            for remedy in plan::remedies(set, &sets, at, analyzed.analysis) {
                let _ = writeln!(text, "  would mend it: {remedy}");
            }
        }
    }
    let verdict = if analyzed.schedulable { "schedulable" } else { "NOT schedulable" };
    let _ =
        writeln!(text, "\n{verdict} by {}; utilization {:.4} over all cores", analyzed.analysis, analyzed.utilization);
    for WithRefill { refill, refill_ns, schedulable } in &analyzed.refills {
        let verdict = if *schedulable { "schedulable" } else { "NOT schedulable" };
        let _ = writeln!(text, "with the {} refill time, {} us: {verdict}", refill.name(), *refill_ns as f64 / 1e3);
    }
    let _ = writeln!(text, "the bounds charge a refill time of {} us", charges.refill_ns as f64 / 1e3);
    if analyzed.analysis == Analysis::NoInterference {
        text += "this ignores cache delays and is optimistic wherever partitions are shared\n";
    }
    text + &assumptions()
}
