//! `isochrome plan` and `isochrome analyze`: the first assigns tasks to cores and partitions, and both bound response times.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use isochrome_host::interrupt;
use isochrome_model::analysis::Analysis;
use isochrome_model::costs::Costs;
use isochrome_model::machine::{self, Machine};
use isochrome_model::plan::allocation::{Analyzed, Core, NoPriorities, audsley_order, schedule};
use isochrome_model::plan::{self, Method, Progress, Request};
use isochrome_model::replacement::{Contradicted, ReplacementTest};
use isochrome_model::supply::SupplyChoice;
use isochrome_model::taskset::programs::{Runnable, runnable};
use isochrome_model::taskset::read::{Overrides, allocation, task_set};
use isochrome_model::taskset::{Platform, TaskSet};
use isochrome_model::units::Bytes;

use crate::args::{AnalyzeOptions, PlanOptions, Priorities, Supply, TaskSetFile};
use crate::progress::{self, Takes};
use crate::verdict::Verdict;
use crate::{files, usage};

/// Schema of the output of `analyze`.
pub const ANALYSIS_SCHEMA: &str = "isochrome-analysis/2";

/// Explanation of the columns of a comparison.
const COMPARED: &str = "
partitions: the fewest with which the method finds a plan; of all: their share;
memory used: the share of their memory that the tasks need; utilization: the
least that the method finds with all partitions; proven bounds: of these two
";

/// Fails if `text` is from a file of another kind, which has no tasks. A profile is a task set.
fn check_kind(file: &TaskSetFile, text: &str) -> Result<()> {
    ensure!(
        files::kind(text).is_none_or(|(_, name, _)| *name == "a profile"),
        files::of_another_kind(&file.tasks, text, "a task set", "")
    );
    Ok(())
}

fn of_text(file: &TaskSetFile, text: &str, overrides: Overrides) -> Result<TaskSet> {
    let (set, warnings) = task_set(text, overrides).with_context(|| file.tasks.display().to_string())?;
    for warning in warnings {
        let hint =
            if warning.contains("not a field") { "\n  hint: docs/reference/planning.md lists the fields" } else { "" };
        eprintln!("warning: {}: {warning}{hint}", file.tasks.display());
    }
    Ok(set)
}

fn overrides(file: &TaskSetFile) -> Overrides {
    Overrides {
        cores: file.cores,
        partitions: file.partitions,
        memory: file.memory,
        refill: file.refill,
        replacement: file.replacement,
        supply: file.supply.map(|supply| match supply {
            Supply::Measured => SupplyChoice::Measured,
            Supply::Full => SupplyChoice::Full,
        }),
        ..Overrides::default()
    }
}

/// Returns the measured test of the replacement policy, from the machine file if one is named and from the profile `text`; `None` if neither has one.
/// A test that contradicts LRU takes precedence.
fn replacement_test(file: &TaskSetFile, text: &str) -> Result<Option<ReplacementTest>> {
    let stated = ReplacementTest::stated(text);
    let Some(path) = &file.machine else { return Ok(stated) };
    let machine: Machine = files::read_json(path, machine::SCHEMA)?;
    let measured = runnable(text)?;
    let level = measured.as_ref().map(|known| known.programs.level);
    ensure!(
        measured.and_then(|known| known.fingerprint).is_none_or(|known| known == machine.fingerprint()),
        "{}: is not the machine on which the profile was measured\n  hint: isochrome probe -o {0}, on that machine",
        path.display()
    );
    let tests = machine.levels.iter().filter_map(|level| level.replacement).map(|fact| fact.value);
    let of_level: Vec<ReplacementTest> = tests.filter(|test| level.is_none_or(|level| level == test.level)).collect();
    let contradicting = of_level.iter().copied().chain(stated).find(ReplacementTest::contradicts_lru);
    if of_level.is_empty() {
        eprintln!(
            "warning: {}: holds no measurement of the replacement policy\n  hint: isochrome probe -o {0}",
            path.display()
        );
    }
    Ok(contradicting.or(of_level.first().copied()).or(stated))
}

/// Warns if the bounds are contradicted, and returns the verdict.
fn verdict(schedulable: bool, contradicted: Option<&Contradicted>) -> Verdict {
    if let Some(contradicted) = contradicted {
        eprintln!("warning: not sound: {contradicted}\n  hint: --replacement any");
    }
    match (schedulable, contradicted) {
        (false, _) => Verdict::Violated,
        (true, Some(_)) => Verdict::Inconclusive,
        (true, None) => Verdict::Holds,
    }
}

/// Returns the set on CPUs that are never withheld; `None` if the bounds of the set charge no supply.
fn fully_supplied(set: &TaskSet) -> Result<Option<TaskSet>> {
    let charged = set.platform().supply.as_ref().filter(|charged| !charged.steps.is_full());
    Ok(charged.map(|_| set.on(Platform { supply: None, ..set.platform().clone() })).transpose()?)
}

/// Prints that deadlines are missed because of the time withheld from the CPUs.
fn blame_supply(set: &TaskSet) {
    let Some(charged) = &set.platform().supply else { return };
    eprintln!(
        "warning: the supply of the CPUs is the reason: with the whole CPU at any time, all deadlines hold. The bounds charge {charged}\n  \
         hint: --supply full leaves it out, and then the bounds hold only while no CPU is withheld"
    );
}

/// Suggests what to try for a set for which no plan was found. `pinned`: whether the set says on which CPUs it runs.
fn what_to_try(options: &PlanOptions, set: &TaskSet, pinned: bool) -> String {
    const TIGHTER: Analysis = Analysis::CombinedMultiset;
    // Other verbs plan too.
    let words: Vec<OsString> = match std::env::args_os().nth(1).is_some_and(|verb| verb == "plan") {
        true => std::env::args_os().collect(),
        false => vec!["isochrome".into(), "plan".into(), options.file.tasks.clone().into()],
    };
    let next = if options.method != Method::Optimal {
        usage::with_option(&words, "--method", &Method::Optimal.to_string())
    } else if !pinned {
        usage::with_option(&words, "--cores", &(set.platform().cores + 1).to_string())
    } else {
        usage::with_option(&words, "--analysis", &TIGHTER.to_string())
    };
    format!(
        "\n  hint: give the tasks more cores or partitions, longer periods or shorter execution times, or bound them less pessimistically \
         (--analysis {TIGHTER}); `isochrome analyze FILE --allocation PLAN` shows changes that repair each core of an allocation of your \
         own\n  hint: {next}\n"
    )
}

/// Carries out `isochrome plan`.
pub fn plan(options: &PlanOptions) -> Result<Verdict> {
    let text = files::read(&options.file.tasks)?;
    check_kind(&options.file, &text)?;
    let shown = || options.file.tasks.display().to_string();
    // Copies of a task have no programs of their own.
    let runnable = if options.copies == 1 { runnable(&text).with_context(shown)? } else { None };
    let pinned = runnable.is_some();
    let mut overrides = overrides(&options.file);
    overrides.cores_default = runnable.as_ref().map(|runnable| runnable.programs.cpus.len() as u32);
    let mut set = of_text(&options.file, &text, overrides)?.copied(options.copies)?;
    if let Some(Runnable { programs, .. }) = &runnable {
        let cpu_of = |name: &str| programs.tasks.iter().find(|program| program.name == name)?.cpu;
        set = set.with_pins(cpu_of).with_context(shown)?;
    }
    let test = replacement_test(&options.file, &text)?;
    let start = Instant::now();
    let limit = Duration::from_nanos(options.time_limit.0);
    let bar = progress::step("searching", Takes::AtMost(limit), "the plan");
    let progress = |Progress { best, bound }: Progress| {
        let best = best.map_or("none yet".to_owned(), |best| format!("{best:.5}"));
        bar.set_message(format!("searching (at most {limit:.0?}): best {best}, proven bound {bound:.5}"));
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
        files::print(&format!("{}{COMPARED}", plan::compare(&set, &request)?))?;
        return Ok(Verdict::Holds);
    }
    let mut plan = plan::plan(&set, &request)?.checked_against(test);
    if !plan.schedulable
        && let Some(full) = fully_supplied(&set)?
        && plan::plan(&full, &request)?.schedulable
    {
        blame_supply(&set);
    }
    let reasons = plan::explain(&set, &plan);
    if let Some(runnable) = runnable {
        plan = plan.for_programs(runnable)?;
    }
    if let Some(path) = &options.gantt {
        let (allocated, _) = allocation(&serde_json::to_string(&plan)?, &set)?;
        let cores = Core::all(&set, &allocated, plan.analysis);
        files::write(path, &schedule(&set, &cores, plan.analysis))?;
    }
    files::write_if(&options.svg, || plan::color_map(&plan, set.platform().partitions))?;
    files::leave(&options.output, &plan, || {
        let hint = if plan.schedulable { String::new() } else { what_to_try(options, &set, pinned) };
        plan::plan_text(&set, &plan, &reasons) + &hint
    })?;
    Ok(verdict(plan.schedulable, plan.contradicted.as_ref()))
}

/// Carries out `isochrome analyze`.
pub fn analyze(options: &AnalyzeOptions) -> Result<Verdict> {
    ensure!(
        options.file.tasks != Path::new("-") || options.allocation != Path::new("-"),
        "both files cannot come from standard input"
    );
    let mut overrides = overrides(&options.file);
    // Bounds do not depend on the size of the memory, so the set need not state it.
    let checks_memory = overrides.memory.is_some();
    overrides.memory_default = Some(Bytes(1 << 60));
    overrides.cores_default = Some(4096);
    let text = files::read(&options.file.tasks)?;
    check_kind(&options.file, &text)?;
    let set = of_text(&options.file, &text, overrides)?;
    let checks_memory = checks_memory || set.platform().memory != Bytes(1 << 60);
    let (allocated, warnings) = allocation(&files::read(&options.allocation)?, &set)
        .with_context(|| options.allocation.display().to_string())?;
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let analysis = options.file.analysis;
    let set = match options.priorities {
        Priorities::File => set,
        Priorities::Audsley => {
            let (order, without) = audsley_order(&set, &allocated, analysis);
            for NoPriorities { cpu, unplaced } in without {
                eprintln!(
                    "warning: CPU {cpu}: no priorities found; none of these tasks can have the lowest priority that is left: {}",
                    unplaced.join(", ")
                );
            }
            set.with_priorities(&order)
        }
    };
    let cores = Core::all(&set, &allocated, analysis);
    let test = replacement_test(&options.file, &text)?;
    let analyzed = Analyzed::of(&set, &allocated, &cores, analysis, checks_memory).checked_against(&set, &cores, test);
    for partition in &analyzed.overfull_partitions {
        eprintln!("warning: partition {partition} has less memory than its tasks need of it (Eq. 3)");
    }
    if !analyzed.schedulable
        && let Some(full) = fully_supplied(&set)?
        && Analyzed::of(&full, &allocated, &Core::all(&full, &allocated, analysis), analysis, checks_memory).schedulable
    {
        blame_supply(&set);
    }
    files::write_if(&options.svg, || schedule(&set, &cores, analysis))?;
    files::show(options.json, &files::versioned(ANALYSIS_SCHEMA, &analyzed), || {
        plan::analysis_text(&set, &cores, &analyzed) + &plan::charged(Costs::stated(&text).as_ref())
    })?;
    Ok(verdict(analyzed.schedulable, analyzed.contradicted.as_ref()))
}
