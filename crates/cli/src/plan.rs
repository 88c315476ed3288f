//! `isochrome plan` and `isochrome analyze`: task sets in, cores, partitions and bounds out.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use isochrome_host::interrupt;
use isochrome_model::analysis::sensitivity::{Change, largest_refill, largest_scale_ppm};
use isochrome_model::analysis::{
    ASSUMPTIONS, Analysis, Bound, Charges, CoreTask, Verdict as Deadline, analyze as bounds_of, core_task,
    liu_layland_bound, utilization,
};
use isochrome_model::plan::{self, Method, Objective, Plan, Progress, Request};
use isochrome_model::taskset::read::{Overrides, allocation, task_set};
use isochrome_model::taskset::{Task, TaskSet};
use isochrome_model::units::Bytes;
use serde::Serialize;

use crate::args::{AnalyzeOptions, PlanOptions, TaskSetFile};
use crate::{Verdict, files};

fn read(file: &TaskSetFile, overrides: Overrides) -> Result<TaskSet> {
    let text = files::read(&file.tasks)?;
    let (set, warnings) = task_set(&text, overrides).with_context(|| file.tasks.display().to_string())?;
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(set)
}

fn overrides(file: &TaskSetFile) -> Overrides {
    Overrides {
        cores: file.cores,
        partitions: file.partitions,
        memory: file.memory,
        refill_ns: file.refill.map(|refill| refill.0),
        ..Overrides::default()
    }
}

/// Every task `copies` times, as [Kim2013, §5.5] makes larger sets.
fn copied(set: &TaskSet, copies: u32) -> Result<TaskSet> {
    if copies <= 1 {
        return Ok(set.clone());
    }
    ensure!(
        set.tasks().len().saturating_mul(copies as usize) <= 100_000,
        "{copies} copies make more than 100000 tasks"
    );
    let copy = |number: u32| {
        set.tasks().iter().map(move |task| Task { name: format!("{}.{number}", task.name), ..task.clone() })
    };
    let tasks = (1..=copies).flat_map(copy).collect();
    Ok(TaskSet::new(set.platform().clone(), tasks)?.0)
}

/// `isochrome plan`.
pub fn plan(options: &PlanOptions) -> Result<Verdict> {
    let set = copied(&read(&options.file, overrides(&options.file))?, options.copies)?;
    if options.compare {
        files::print(&comparison(&set, options)?)?;
        return Ok(Verdict::Holds);
    }
    let plan = planned(&set, options, options.method, options.objective)?;
    if let Some(path) = &options.output {
        files::write_json(path, &plan)?;
    }
    if let Some(path) = &options.svg {
        files::write(path, &plan::color_map(&plan, set.platform().partitions))?;
    }
    if options.json {
        files::print_json(&plan)?;
    } else {
        files::print(&told(&set, &plan))?;
    }
    Ok(if plan.schedulable { Verdict::Holds } else { Verdict::Violated })
}

fn planned(set: &TaskSet, options: &PlanOptions, method: Method, objective: Objective) -> Result<Plan> {
    let start = Instant::now();
    let limit = Duration::from_nanos(options.time_limit.0);
    let last_told = std::cell::Cell::new(start);
    let progress = |progress: Progress| {
        // Quick plans need no talk.
        if last_told.get().elapsed() > Duration::from_secs(2) {
            last_told.set(Instant::now());
            let best = progress.best.map_or("none yet".to_owned(), |best| format!("{best:.5}"));
            eprintln!("{:.0} s: best {best}, proven bound {:.5}", start.elapsed().as_secs_f64(), progress.bound);
        }
    };
    let should_stop = || start.elapsed() >= limit || interrupt::interrupted();
    let request =
        Request { method, objective, analysis: options.file.analysis, should_stop: &should_stop, progress: &progress };
    Ok(plan::plan(set, &request)?)
}

fn milliseconds(time_ns: Option<u64>) -> String {
    time_ns.map_or_else(|| "late".to_owned(), |time| format!("{:.4}", time as f64 / 1e6))
}

fn numbers(partitions: &[u32]) -> String {
    isochrome_model::units::format_list(partitions)
}

fn told(set: &TaskSet, plan: &Plan) -> String {
    let mut text = String::new();
    let reasons = plan::explain(set, plan);
    for core in &plan.cores {
        let _ = writeln!(
            text,
            "CPU {}  partitions {}  utilization {:.4}",
            core.cpu,
            numbers(&core.partitions),
            core.utilization
        );
        for task in &core.tasks {
            let reason =
                reasons.iter().find(|reason| reason.task == task.name).map_or("", |reason| reason.text.as_str());
            let _ = writeln!(
                text,
                "  {:<20} partitions {:<16} response {:>10} of {:>10} ms\n    {reason}",
                task.name,
                numbers(&task.partitions),
                milliseconds(task.response_ns),
                milliseconds(Some(task.deadline_ns)),
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
            Objective::Margin => false,
        };
        let proven = plan.method == Method::Optimal && excluded;
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

/// The methods side by side, as a Markdown table: [Kim2013, Figures 14 to 16].
fn comparison(set: &TaskSet, options: &PlanOptions) -> Result<String> {
    let platform = set.platform();
    let mut text = format!(
        "{} tasks, {} cores, {} partitions, {}\n\n| method | fewest partitions | of all | memory used of that | least utilization with all | proven bounds |\n|---|---:|---:|---:|---:|---|\n",
        set.tasks().len(),
        platform.cores,
        platform.partitions,
        platform.memory,
    );
    let memory: u64 = set.tasks().iter().map(|task| task.memory.0).sum();
    for method in [Method::Bfd, Method::Wfd, Method::Cata, Method::Optimal] {
        let few = planned(set, options, method, Objective::Partitions)?;
        let low = planned(set, options, method, Objective::Utilization)?;
        let or_none = |plan: &Plan, value: String| if plan.schedulable { value } else { "none".to_owned() };
        let share = f64::from(few.partitions_used) / f64::from(platform.partitions);
        let efficiency = memory as f64 / (set.partition_memory().0 as f64 * f64::from(few.partitions_used.max(1)));
        let proven = match (few.bound, low.bound) {
            (Some(few), Some(low)) => format!("{few}, {low:.4}"),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "| {method} | {} | {} | {} | {} | {proven} |",
            or_none(&few, few.partitions_used.to_string()),
            or_none(&few, format!("{:.0} %", share * 100.0)),
            or_none(&few, format!("{:.0} %", efficiency * 100.0)),
            or_none(&low, format!("{:.4}", low.utilization)),
        );
    }
    Ok(text)
}

#[derive(Serialize)]
struct Analyzed {
    analysis: Analysis,
    schedulable: bool,
    tasks: Vec<AnalyzedTask>,
    utilization: f64,
    /// Partitions whose memory does not hold what is put into it, from 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overfull_partitions: Vec<u32>,
}

#[derive(Serialize)]
struct AnalyzedTask {
    name: String,
    cpu: u32,
    response_ns: Option<u64>,
    deadline_ns: u64,
    own_ns: u64,
    interference_ns: u64,
    omega_ns: u64,
    gamma_ns: u64,
    blocking_ns: u64,
}

/// A core of the allocation, its tasks by priority.
struct Core {
    cpu: u32,
    members: Vec<usize>,
    tasks: Vec<CoreTask>,
    bounds: Vec<Bound>,
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
    let set = read(&options.file, overrides)?;
    let checks_memory = checks_memory || set.platform().memory != Bytes(1 << 60);
    let (allocated, warnings) = allocation(&files::read(&options.allocation)?, &set)
        .with_context(|| options.allocation.display().to_string())?;
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let (analysis, charges) = (options.file.analysis, Charges::of(&set));
    let mut overfull = Vec::new();
    let cores: Vec<Core> = allocated
        .iter()
        .map(|(cpu, members)| {
            let sets: Vec<_> = members.iter().map(|member| (member.task, member.partitions)).collect();
            overfull.extend(plan::overfull_partition(&set, &sets).filter(|_| checks_memory));
            let mut ordered = members.clone();
            ordered.sort_by_key(|member| set.rank(member.task));
            let tasks: Vec<CoreTask> = ordered
                .iter()
                .map(|member| CoreTask { useful: member.useful, ..core_task(&set, member.task, member.partitions) })
                .collect();
            let bounds = bounds_of(&tasks, charges, analysis);
            Core { cpu: *cpu, members: ordered.iter().map(|member| member.task).collect(), tasks, bounds }
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
        tasks: each
            .map(|(cpu, task, bound)| AnalyzedTask {
                name: set.tasks()[task].name.clone(),
                cpu,
                response_ns: bound.verdict.response_ns(),
                deadline_ns: set.tasks()[task].deadline_ns,
                own_ns: bound.own_ns,
                interference_ns: bound.interference_ns,
                omega_ns: bound.omega_ns,
                gamma_ns: bound.gamma_ns,
                blocking_ns: bound.blocking_ns,
            })
            .collect(),
        utilization: cores.iter().map(|core| utilization(&core.tasks, charges)).sum(),
        overfull_partitions: overfull,
    };
    if let Some(path) = &options.svg {
        let core = cores.first().context("the allocation has no core to draw")?;
        let names: Vec<&str> = core.members.iter().map(|&task| set.tasks()[task].name.as_str()).collect();
        files::write(path, &plan::gantt(&names, &core.tasks, charges, analysis))?;
    }
    if options.json {
        files::print_json(&analyzed)?;
    } else {
        files::print(&analysis_told(&set, &cores, &analyzed))?;
    }
    Ok(if analyzed.schedulable { Verdict::Holds } else { Verdict::Violated })
}

fn analysis_told(set: &TaskSet, cores: &[Core], analyzed: &Analyzed) -> String {
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
        limit(
            "refill time per partition for which this holds",
            largest_refill(&core.tasks, charges, analyzed.analysis),
            &|ns| format!("{} us", ns as f64 / 1e3),
        );
        limit(
            "factor on all execution times for which this holds",
            largest_scale_ppm(&core.tasks, charges, analyzed.analysis),
            &|ppm| format!("{:.6}", ppm as f64 / 1e6),
        );
        if core.members.len() <= 16 && set.platform().partitions <= plan::PLAN_PARTITIONS_MAX {
            for remedy in plan::remedies(set, &sets, at, analyzed.analysis) {
                let _ = writeln!(text, "  would mend it: {remedy}");
            }
        }
    }
    let verdict = if analyzed.schedulable { "schedulable" } else { "NOT schedulable" };
    let _ =
        writeln!(text, "\n{verdict} by {}; utilization {:.4} over all cores", analyzed.analysis, analyzed.utilization);
    if analyzed.analysis == Analysis::NoInterference {
        text += "this ignores cache delays and is optimistic wherever partitions are shared\n";
    }
    text + &assumptions()
}
