//! `isochrome run`: runs the programs of a plan together and checks every job against its bound.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use isochrome_host::color::ledger::Owner;
use isochrome_host::coloring::Coloring;
use isochrome_host::counters::events::Event;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::partition::resctrl;
use isochrome_host::probe::{ProbeRequest, retention_of};
use isochrome_host::process::{KERNELS, Pid};
use isochrome_host::recolor::watch::Watch;
use isochrome_host::recolor::{RecolorError, Report};
use isochrome_host::run::blocks::{self, Block};
use isochrome_host::run::engine::{self, Hooks, OnViolation, Outcome, Request};
use isochrome_host::run::gaps;
use isochrome_host::run::marks::RING_NAME;
use isochrome_host::run::planned::{self, PlanMismatch, Planned};
use isochrome_host::run::recording::{BlockRecord, JOBS, Recorder};
use isochrome_host::runtime;
use isochrome_host::sched::slices::proved_misses;
use isochrome_model::evidence::{Evidence, RawFile, format};
use isochrome_model::machine::Waiting;
use isochrome_model::plan::Plan;
use isochrome_model::running::{
    Conclusion, Failure, Placement, Run, Setting, UnreportedGaps, gap_interval, gap_interval_of_run,
};
use isochrome_model::stats::blocks_needed;
use isochrome_model::taskset::programs::{Partitioning, Programs};
use isochrome_model::units::{Color, CpuId, Ns};

use crate::args::{ChosenColors, MeasurementOptions, Policy, RunPlanOptions, ViolationAction};
use crate::context::Context;
use crate::progress::{self, Takes, tell};
use crate::verdict::Verdict;
use crate::ways::{Divided, Given};
use crate::{coloring, evidence, files, hints};

/// Longest run that `--hyperperiods` may request: a day.
const LENGTH_MAX: Ns = Ns(86_400_000_000_000);

pub fn run(options: &RunPlanOptions) -> Result<Verdict> {
    let text = files::read(&options.plan)?;
    let shown = options.plan.display();
    let plan: Plan = serde_json::from_str(&text).with_context(|| {
        files::of_another_kind(&options.plan, &text, "a plan", "isochrome plan profile.json -o plan.json")
    })?;
    let programs = plan.programs.as_ref().with_context(|| {
        format!("{shown}: a plan without programs\n  hint: plan what `isochrome profile taskset.toml -o profile.json` writes")
    })?;
    let mismatch = |error| anyhow!("{shown}: {error}\n  hint: {}", hint(&error));
    let mut planned = planned::planned(&plan, programs).map_err(mismatch)?;
    let reserved = match options.policy {
        Policy::Fifo => Vec::new(),
        Policy::Deadline => planned::reserve_by_deadlines(&mut planned).map_err(mismatch)?,
    };
    let length = length(options, programs)?;
    let mut context = context(options, &plan, programs, &planned)?;
    let means = Means::of(options, &context, &plan, programs, &planned)?;
    let folder = &options.output;
    let unwritable = || format!("{}: cannot create\n  hint: choose another folder with -o", folder.display());
    fs::create_dir_all(folder).with_context(unwritable)?;

    let compared = options.compare.is_some();
    let retention = options.compare.and_then(|_| retention(&mut context, programs));
    let mut recorder = Recorder::new(folder, &planned, compared).with_context(unwritable)?;
    let counted = proved_misses(&context.sysfs.processor()?, programs.level);
    let uncounted = counted.as_ref().err().map(ToString::to_string);
    let counted = counted.ok();
    let count = if compared { blocks::pairs(length) } else { 1 };
    let runtime = runtime::folder();
    let request = request(options, &planned, Ns(length.0 / count), counted, &runtime);
    let (mut outcome, done) = run_blocks(&request, &means, (count, compared), context.seed, &mut recorder)?;
    let uncounted = uncounted.or(outcome.uncounted.take());
    let raw = recorder.close();
    if let (Err(error), None) = (&raw, &outcome.unrecorded) {
        outcome.unrecorded = Some(io::Error::new(error.kind(), error.to_string()));
    }
    let mut inputs = vec![RawFile { path: file_name(&options.plan), sha256: files::sha256(&text) }];
    inputs.extend(executables(programs));
    // By deadlines nobody is checked against the bounds of the plan, so what these rest on does not matter.
    let bounds_count = reserved.is_empty();
    let within = recorder.accused();
    let interval = gap_interval_of_run(outcome.duration);
    // Without jobs that exceed a limit and have no excuse there is nothing to compare gaps with.
    let during = within
        .map(|within| std::mem::take(&mut outcome.gaps).into_iter().map(move |gaps| gaps.summed(within, interval)));
    let mut recorded = Run {
        cpus: programs.cpus.clone(),
        partitioned: programs.method != Partitioning::None,
        method: programs.method,
        reserved,
        level: programs.level,
        duration: outcome.duration,
        tasks: recorder.outcomes(&planned, &outcome),
        violations: outcome.violations,
        failures: outcome.failures,
        overhead: outcome.overhead,
        steal_time: outcome.steal_time,
        gaps: during.into_iter().flatten().collect(),
        settings: outcome.settings,
        costs: plan.costs,
        contradicted: plan.contradicted.clone().filter(|_| bounds_count),
        supply: plan.supply.clone().filter(|_| bounds_count),
        inputs,
        memory: outcome.memory,
        retention,
        comparison: options.compare.map(|_| recorder.compared(&planned, done)),
    };
    if let Some(within) = within.filter(|_| !outcome.interrupted) {
        recorded.gaps.extend(gaps_after(&recorded, within, &planned));
    }
    let mut warnings = warnings(&context, options, &recorded);
    warnings.extend(counting(uncounted, counted));
    warnings.extend(means.ways.as_ref().and_then(Given::warning));
    warnings.extend(outcome.notes.iter().map(|note| note.replace("\n  hint:", "; hint:")));
    let raw_files: Vec<RawFile> = raw.into_iter().collect();
    let evidence = evidence::of(&context, None, vec![recorded.section()], &raw_files, warnings);
    report(options, &evidence, outcome.unrecorded, recorder.written)?;
    Ok(match recorded.conclusion().0 {
        Conclusion::Holds => Verdict::Holds,
        Conclusion::Violated => Verdict::Violated,
        Conclusion::Inconclusive => Verdict::Inconclusive,
    })
}

/// Returns the hint for a plan that cannot be run.
fn hint(mismatch: &PlanMismatch) -> &'static str {
    match mismatch {
        PlanMismatch::NoTasks | PlanMismatch::NotInPlan { .. } => "isochrome plan says why",
        PlanMismatch::NoTime { .. } => "budget = \"1ms\" in the task set, or plan again",
        PlanMismatch::ForeignCpu { .. }
        | PlanMismatch::NoProgram { .. }
        | PlanMismatch::NoPeriod { .. }
        | PlanMismatch::NoCpus => "plan again",
    }
}

/// Returns the context of a run. Fails if the plan is for another machine, or for CPUs that this process may not use.
fn context(options: &RunPlanOptions, plan: &Plan, programs: &Programs, planned: &[Planned]) -> Result<Context> {
    let first_cpu = planned.first().map(|planned| planned.cpu.0);
    let measurement = MeasurementOptions::at(first_cpu, Some(programs.level)).with_seed(options.frames.seed);
    let context = Context::new(&measurement)?;
    if let Some(fingerprint) = &plan.fingerprint {
        ensure!(
            *fingerprint == context.machine.fingerprint(),
            "{}: the times behind its bounds were measured on another machine\n  hint: isochrome profile taskset.toml -o profile.json, here, and plan again",
            options.plan.display()
        );
    }
    for planned in planned {
        ensure!(
            context.allowed.contains(&planned.cpu),
            "{}: CPU {} is not one this process may run on\n  hint: choose other CPUs in the task set",
            planned.program.name,
            planned.cpu.0
        );
    }
    Ok(context)
}

/// Returns the request for a block of this `length`.
fn request<'a>(
    options: &RunPlanOptions,
    programs: &'a [Planned],
    length: Ns,
    counted: Option<Event>,
    folder: &'a Path,
) -> Request<'a> {
    Request {
        programs,
        length,
        on_violation: match options.on_violation {
            ViolationAction::Trace => OnViolation::Trace,
            ViolationAction::Signal => OnViolation::Signal,
            ViolationAction::Stop => OnViolation::Stop,
        },
        // The watch would make blocks differ by whether a job has exceeded a limit in them.
        watches_gaps: options.compare.is_none() && Sysfs::system().is_virtual(),
        keep_going: options.keep_going,
        alone: !options.share_cpus,
        lock: !options.no_mlock,
        counted,
        folder,
    }
}

/// Writes evidence and report into the folder of the run, writes the verdicts for CI systems, and prints the evidence. Fails with `unrecorded` if
/// some jobs could not be written. `written`: number of the jobs that were.
fn report(options: &RunPlanOptions, evidence: &Evidence, unrecorded: Option<io::Error>, written: u64) -> Result<()> {
    let folder = &options.output;
    let kept = files::write_json(&folder.join("evidence.json"), evidence)
        .and_then(|()| files::write(&folder.join("index.html"), &isochrome_report::html(evidence)))
        .and_then(|()| files::write_if(&options.junit, || isochrome_report::junit(evidence)));
    if let Some(error) = unrecorded {
        let jobs = folder.join(JOBS);
        return Err(error).with_context(|| {
            format!(
                "{}: further jobs could not be written; the {written} jobs before stay readable\n  hint: choose a folder with more room: -o DIR",
                jobs.display(),
            )
        });
    }
    kept?;
    if options.json {
        files::print_json(evidence)?;
    } else {
        files::print(&isochrome_report::text::table(evidence, files::width()))?;
    }
    eprintln!("evidence and report: {}", folder.join("index.html").display());
    Ok(())
}

/// Returns a sentence on which misses of each job were counted, or on why none were. `None` if neither is known.
fn counting(uncounted: Option<String>, counted: Option<Event>) -> Option<String> {
    if let Some(why) = uncounted {
        return Some(format!("Misses per job were not counted: {}", why.lines().next().unwrap_or_default()));
    }
    counted.map(|event| format!("Misses per job are {}, in user mode ({}).", event.name, event.source))
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Measures retention. Returns the shortest busy wait after which the level has lost half of its contents on one of the CPUs; `None` if no wait
/// was long enough.
fn retention(context: &mut Context, programs: &Programs) -> Option<Ns> {
    let request = ProbeRequest { cpus: programs.cpus.clone(), seed: context.seed };
    let bar = progress::step("how long the cache keeps its contents", Takes::Words("seconds for each CPU"), "the run");
    for note in retention_of(&mut context.machine, programs.level, &request) {
        tell(&bar, &format!("note: {}: {}", note.subject, note.reason));
    }
    bar.finish_and_clear();
    let of = |cpu: &CpuId| {
        let seen = context.machine.data_level_of(programs.level, *cpu)?.retention.iter();
        let lost = seen.filter(|seen| seen.cpu == *cpu && seen.waiting == Waiting::Busy && seen.lost_median >= 0.5);
        lost.map(|seen| seen.wait_ns).min()
    };
    programs.cpus.iter().filter_map(of).min()
}

/// Returns the length of the run. Fails if it is zero, or if the hyperperiods take more than a day.
fn length(options: &RunPlanOptions, programs: &Programs) -> Result<Ns> {
    let length = match options.hyperperiods {
        None => options.duration,
        Some(times) => {
            let mut periods = programs.periodic().map(|program| program.period.0.max(1));
            let multiple = periods.try_fold(1u64, least_common_multiple);
            let length = multiple.and_then(|multiple| multiple.checked_mul(times)).filter(|ns| *ns <= LENGTH_MAX.0);
            Ns(length.context("this many hyperperiods take more than a day\n  hint: --duration 30s")?)
        }
    };
    ensure!(length.0 > 0, "the length of the run is 0\n  hint: --duration 30s");
    Ok(length)
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}

/// Resolves the colors for all programs of the plan.
fn coloring(options: &RunPlanOptions, level: u8, planned: &[Planned], seed: u64) -> Result<Coloring> {
    // Each program is granted its colors separately. The grants share a group, because tasks of a plan may share partitions.
    let group = Some(format!("run-{}", std::process::id()));
    let chosen = ChosenColors { group, ..options.frames.colors("0", Some(level)) };
    let mut cpus: Vec<CpuId> = planned.iter().map(|planned| planned.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let coloring = coloring::resolve(&chosen, cpus, seed)?;
    let count = coloring.color_count();
    if let Some(partition) = planned.iter().flat_map(|planned| &planned.partitions).find(|one| **one >= count) {
        anyhow::bail!(
            "the plan has partition {partition}, the cache {count} colors, numbered from 0\n  hint: plan with as many partitions as colors"
        );
    }
    Ok(coloring)
}

/// Means by which programs get partitions: colors, cache ways, both or neither.
#[derive(Default)]
struct Means {
    coloring: Option<Coloring>,
    ways: Option<Given>,
}

impl Means {
    /// Returns the means that the plan's method needs. Fails if this machine does not have them, or has too few partitions.
    fn of(
        options: &RunPlanOptions,
        context: &Context,
        plan: &Plan,
        programs: &Programs,
        planned: &[Planned],
    ) -> Result<Means> {
        let by = |method| [method, Partitioning::Both].contains(&programs.method);
        let coloring = || coloring(options, programs.level, planned, context.seed);
        let ways = || {
            let divided = Divided::of(&context.sysfs, &context.machine, programs.level, &programs.cpus)?;
            divided.planned(plan, programs.method).with_context(|| options.plan.display().to_string())
        };
        Ok(Means {
            coloring: by(Partitioning::Colors).then(coloring).transpose()?,
            ways: by(Partitioning::Ways).then(ways).transpose()?,
        })
    }
}

/// Runs `count` blocks as planned, and if `compared` as many without partitions. Returns the outcome of those as planned, and the number of
/// complete pairs.
fn run_blocks(
    request: &Request,
    means: &Means,
    (count, compared): (u64, bool),
    seed: u64,
    recorder: &mut Recorder,
) -> Result<(Outcome, u64)> {
    if compared {
        let tasks = request.programs.iter().filter(|planned| planned.requirement.is_some()).count();
        let needed = blocks_needed(tasks * if request.counted.is_some() { 3 } else { 2 });
        eprintln!("{count} pairs of blocks; a difference can be significant from {needed} on");
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let (sum, done) = blocks::run(count, compared, &mut rng, |Block { number, partitioned }| {
        if count > 1 {
            let kind = if partitioned { "as planned" } else { "without partitions" };
            eprintln!("block {} of {count}, {kind}", number + 1);
        }
        let outcome = one_block(request, means, partitioned, &mut recorder.block(number, partitioned))?;
        if !partitioned && !outcome.failures.is_empty() {
            eprintln!("without partitions: {:?}", outcome.failures);
        }
        anyhow::Ok(outcome)
    })?;
    Ok((sum.context("interrupted before anything was run as planned")?, done))
}

/// Watches the CPUs of the programs for gaps that nobody reports, if the gaps seen during the run leave open why jobs exceeded limits. Without a
/// hypervisor there is nobody who could cause such gaps.
fn gaps_after(run: &Run, within: Ns, programs: &[Planned]) -> Vec<UnreportedGaps> {
    if !Sysfs::system().is_virtual() || !run.leaves_gaps_open() {
        return Vec::new();
    }
    let length = gaps::watch_length(run.duration);
    let text = format::nanoseconds(length.0 as f64);
    eprintln!(
        "jobs exceeded limits: watching the CPUs for {text}, in case the hypervisor withholds them without a report"
    );
    let cpus: BTreeSet<CpuId> = programs.iter().map(|planned| planned.cpu).collect();
    let _bar = progress::step("watching the CPUs", Takes::For(Duration::from_nanos(length.0)), "the report");
    gaps::watch(&cpus.into_iter().collect::<Vec<_>>(), length, within, gap_interval(run.duration))
}

/// Runs the programs for one block, and returns the outcome.
///
/// Where the plan gives colors, all pages that can be moved are drawn anew, evenly over the colors of the program or, without partitions, over all.
/// The kernel hands out first the frames that the programs of the previous block gave back, and these often have few colors.
fn one_block(request: &Request, means: &Means, partitioned: bool, block: &mut BlockRecord) -> Result<Outcome> {
    let (coloring, given) = (means.coloring.as_ref(), means.ways.as_ref().filter(|_| partitioned));
    let joining = |(task, planned): (usize, &Planned)| {
        let joins = given.and_then(|given| given.joins(task)).into_iter().collect();
        Planned { joins, ..planned.clone() }
    };
    let programs: Vec<Planned> = request.programs.iter().enumerate().map(joining).collect();
    let request = &Request { programs: &programs, ..*request };
    let planned = request.programs;
    // Best-effort programs get the partitions that no task has.
    let taken: Vec<u32> = planned.iter().flat_map(|planned| planned.partitions.iter().copied()).collect();
    let colors = |task: usize, count: u32| -> Vec<Color> {
        let own = &planned[task].partitions;
        let partitions = (0..count).filter(|partition| match planned[task].requirement {
            _ if !partitioned => true,
            Some(_) => own.contains(partition),
            None => !taken.contains(partition),
        });
        partitions.map(|partition| Color(partition as u16)).collect()
    };
    let of = |task: usize| {
        let coloring = coloring?;
        let colors = colors(task, coloring.color_count());
        (!colors.is_empty()).then(|| coloring.of_another(colors, vec![planned[task].cpu]))
    };
    // One watch per program. If eviction tests find the colors, the watch keeps the colors of the pages that were moved.
    let watches: RefCell<Vec<Watch>> = RefCell::new(planned.iter().map(|_| Watch::drawing_anew()).collect());
    let mask = || std::fs::read_to_string(resctrl::root().join("schemata")).unwrap_or_default();
    let before = mask();
    let ways = given.map(Given::give).transpose()?;
    let mut hooks = Hooks {
        move_to_colors: &mut |task, pids| {
            let Some(mut coloring) = of(task) else { return Ok(()) };
            if partitioned {
                for pid in pids {
                    let owner = Owner::of(pid.0 as u32).map_err(|error| hints::text(&error))?;
                    coloring.grant(owner, None).map_err(|error| hints::text(&error))?;
                }
            }
            let watch = &mut watches.borrow_mut()[task];
            coloring.move_watched(watch, pids).map(drop).map_err(|error| hints::text(&error))
        },
        inspect: &mut |task, pids| {
            let coloring = of(task).filter(|_| partitioned)?;
            let reports: Result<Vec<_>, RecolorError> = pids.iter().map(|pid: &Pid| coloring.inspect(*pid)).collect();
            Some(placement(coloring.colors().to_vec(), &reports.ok()?))
        },
        record: &mut |job| block.record(job),
    };
    let bar = progress::step("running the programs", Takes::For(Duration::from_nanos(request.length.0)), "");
    let mut outcome = engine::run(request, &mut hooks)?;
    drop(bar);
    block.end();
    if let (Some(ways), Some(given)) = (ways, given) {
        for (task, planned) in planned.iter().enumerate() {
            if let Some(what) = given.group_of(task).and_then(|group| ways.changed(group)) {
                let task = planned.program.name.clone();
                outcome.failures.push(Failure { task, at: outcome.duration, what: format!("lost its ways: {what}") });
            }
        }
        let name = "ways (schemata of resctrl)".to_owned();
        // All jobs are measured, so a failure to restore is only reported; the next start of isochrome tries again.
        outcome.notes.extend(ways.restore().err().map(|error| error.to_string()));
        let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        outcome.settings.push(Setting {
            name,
            before: one_line(before),
            during: given.description(),
            after: one_line(mask()),
        });
    }
    Ok(outcome)
}

/// Returns the placement of a program's memory, from the reports on its processes. Immovable pages for which a report gives no reason are
/// counted without a reason here too.
fn placement(colors: Vec<Color>, reports: &[Report]) -> Placement {
    let sum = |count: fn(&Report) -> usize| -> u64 { reports.iter().map(|report| count(report) as u64).sum() };
    let mut placement = Placement {
        colors,
        resident: sum(Report::resident),
        on_color: sum(Report::on_color),
        immovable: sum(Report::immovable),
        ..Placement::default()
    };
    for region in reports.iter().flat_map(|report| &report.regions) {
        let is_ring = region.name.strip_prefix("/memfd:").is_some_and(|name| name.starts_with(RING_NAME));
        let name = if region.name.is_empty() { "anonymous memory" } else { &region.name };
        for (reason, pages) in &region.why {
            let counted = match is_ring || reason == KERNELS {
                true => &mut placement.system,
                false => placement.why.entry(format!("{name} {reason}")).or_default(),
            };
            *counted += *pages as u64;
        }
    }
    placement
}

/// Returns the names and hashes of the programs' executable files, for the evidence.
fn executables(programs: &Programs) -> Vec<RawFile> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut words: Vec<&String> = programs.tasks.iter().filter_map(|program| program.command.first()).collect();
    words.sort();
    words.dedup();
    let hashed = |word: &String| {
        let found = if word.contains('/') {
            Some(PathBuf::from(word))
        } else {
            std::env::split_paths(&folders).map(|folder| folder.join(word)).find(|path| path.is_file())
        };
        Some(RawFile { path: word.clone(), sha256: files::sha256(fs::read(found?).ok()?) })
    };
    words.into_iter().filter_map(hashed).collect()
}

/// Returns the warnings that a reader needs to judge the run, the most important first.
fn warnings(context: &Context, options: &RunPlanOptions, run: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(hypervisor) = &context.machine.hypervisor {
        warnings.push(format!(
            "This is a virtual machine ({hypervisor}): jobs with steal time are marked where the kernel learns of it; time that a host \
             takes without a report looks like execution, or like a late start."
        ));
    }
    if options.share_cpus {
        warnings.push("Other programs were left on the CPUs of the tasks.".to_owned());
    }
    if context.allowed.iter().all(|cpu| run.cpus.contains(cpu)) {
        warnings.push("There is no CPU besides those of the tasks: this program worked on one of them.".to_owned());
    }
    let colored = matches!(run.method, Partitioning::Colors | Partitioning::Both);
    if colored && run.tasks.iter().all(|task| task.placement.is_none()) {
        warnings.push("The placement of the memory at the end could not be read.".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use isochrome_host::recolor::RegionReport;

    use super::*;

    #[test]
    fn pages_that_cannot_be_moved_are_named_by_mapping_and_reason() {
        let region = |name: &str, on_color: usize, why: &[(&str, usize)]| RegionReport {
            start: 0,
            end: 0,
            name: name.to_owned(),
            resident: on_color + why.iter().map(|(_, pages)| pages).sum::<usize>(),
            on_color,
            moved: 0,
            immovable: why.iter().map(|(_, pages)| pages).sum(),
            why: why.iter().map(|(reason, pages)| ((*reason).to_owned(), *pages)).collect(),
        };
        let regions = vec![
            region("", 50, &[("has a protection key", 1), ("waits for a frame of the colors", 2)]),
            region("/dev/shm/x", 40, &[("is shared memory", 3)]),
            region("/memfd:isochrome-marks (deleted)", 0, &[("is shared memory", 65)]),
            region("[vvar]", 0, &[(KERNELS, 4)]),
        ];
        let report = Report { pid: 1, regions, threads: 1, ..Report::default() };
        let placement = placement(vec![Color(0)], &[report]);
        assert_eq!((placement.resident, placement.on_color, placement.immovable), (165, 90, 75));
        assert_eq!((placement.system, placement.unnamed(), placement.off_color()), (69, 0, 6));
        let named: Vec<(&str, u64)> = placement.why.iter().map(|(why, pages)| (why.as_str(), *pages)).collect();
        let expected = [
            ("/dev/shm/x is shared memory", 3),
            ("anonymous memory has a protection key", 1),
            ("anonymous memory waits for a frame of the colors", 2),
        ];
        assert_eq!(named, expected);
    }
}
