//! `isochrome run`: runs the programs of a plan together and checks every job against its bound.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use isochrome_host::color::ledger::Owner;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::partition::resctrl;
use isochrome_host::probe::{ProbeRequest, probe};
use isochrome_host::recolor::process::Pid;
use isochrome_host::recolor::watch::Watch;
use isochrome_host::recolor::{RecolorError, Report};
use isochrome_host::run::engine::{self, Hooks, OnViolation, Outcome, Planned, Request};
use isochrome_host::sched::slices::proved_events;
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_host::{interrupt, runtime};
use isochrome_model::analysis::reservation::{Need, reserve};
use isochrome_model::evidence::RawFile;
use isochrome_model::machine::Waiting;
use isochrome_model::plan::Plan;
use isochrome_model::running::{
    Comparison, Conclusion, Failure, JobRecord, Placement, Requirement, Reserved, ResponseBound, Run, Setting, Tally,
    TaskOutcome, Window,
};
use isochrome_model::stats::blocks_needed;
use isochrome_model::taskset::programs::{Partitioning, Program, Programs};
use isochrome_model::units::{Color, CpuId, Ns};
use isochrome_report as report;
use sha2::{Digest, Sha256};

use crate::args::{ChosenColors, CompareWith, Place, Policy, RunPlanOptions, ViolationAction};
use crate::coloring::Coloring;
use crate::context::{Context, spinner, tell};
use crate::ways::{Divided, Given};
use crate::{Verdict, evidence, files};

/// Length of a window of a comparison.
const WINDOW: Ns = Ns(250_000_000);

/// Pairs of blocks of a comparison, where the run is long enough for them. Programs are started anew for every block.
const PAIRS: u64 = 20;

/// The shortest and the longest block. A run that is too short for two of the shortest has two that are shorter.
const BLOCK: [Ns; 2] = [Ns(500_000_000), Ns(3_000_000_000)];

/// Pairs of blocks at most.
const PAIRS_MAX: u64 = 1000;

/// Bytes of jobs kept in memory before they are written; they are written every second in any case.
const UNWRITTEN: usize = 64 << 10;

/// The longest hyperperiods make sense to be asked for: a day.
const LENGTH_MAX: Ns = Ns(86_400_000_000_000);

/// A program with the colors that its partitions are; none for best effort.
struct Placed {
    planned: Planned,
    partitions: Vec<u32>,
}

pub fn run(options: &RunPlanOptions) -> Result<Verdict> {
    let text = files::read(&options.plan)?;
    let shown = options.plan.display();
    let plan: Plan = serde_json::from_str(&text)
        .with_context(|| format!("{shown}: not a plan\n  hint: isochrome plan profile.json -o plan.json"))?;
    let programs = plan.programs.as_ref().with_context(|| {
        format!("{shown}: a plan without programs\n  hint: plan what `isochrome profile taskset.toml -o profile.json` writes")
    })?;
    let mut placed = placed(&plan, programs).with_context(|| shown.to_string())?;
    let reserved = match options.policy {
        Policy::Fifo => Vec::new(),
        Policy::Deadline => by_deadlines(&mut placed).with_context(|| shown.to_string())?,
    };
    let length = length(options, programs)?;
    let first_cpu = placed.first().map(|placed| placed.planned.cpu.0);
    let place = Place { seed: options.frames.seed, ..Place::at(first_cpu, Some(programs.level)) };
    let mut context = Context::new(&place)?;
    if let Some(fingerprint) = &plan.fingerprint {
        ensure!(
            *fingerprint == context.machine.fingerprint(),
            "{shown}: the times behind its bounds were measured on another machine\n  hint: isochrome profile taskset.toml -o profile.json, here, and plan again"
        );
    }
    for planned in placed.iter().map(|placed| &placed.planned) {
        ensure!(
            context.allowed.contains(&planned.cpu),
            "{}: CPU {} is not one this process may run on\n  hint: choose other CPUs in the task set",
            planned.program.name,
            planned.cpu.0
        );
    }
    let by = |methods: &[Partitioning]| methods.contains(&programs.method);
    let colors = by(&[Partitioning::Colors, Partitioning::Both]);
    let coloring = if colors { Some(coloring(options, programs.level, &placed, context.seed)?) } else { None };
    let given = if by(&[Partitioning::Ways, Partitioning::Both]) {
        let divided = Divided::of(&context.sysfs, &context.machine, programs.level, &programs.cpus)?;
        Some(divided.planned(&plan, programs.method).with_context(|| shown.to_string())?)
    } else {
        None
    };
    let folder = &options.output;
    fs::create_dir_all(folder)
        .with_context(|| format!("{}: cannot create\n  hint: choose another folder with -o", folder.display()))?;

    let retention = options.compare.and_then(|_| retention(&mut context, programs));
    let mut recorder = Recorder::new(folder, &placed, options.compare.is_some())?;
    let mut rng = fastrand::Rng::with_seed(context.seed);
    let blocks = if options.compare.is_some() { pairs(length) } else { 1 };
    let block = Ns(length.0 / blocks);
    let planned: Vec<Planned> = placed.iter().map(|placed| placed.planned.clone()).collect();
    let counted = proved_events(&context.sysfs.processor()?, programs.level).map(|[_, misses, ..]| misses);
    let mut uncounted = counted.as_ref().err().map(ToString::to_string);
    let counted = counted.ok();
    if options.compare.is_some() {
        let tasks = placed.iter().filter(|placed| placed.planned.requirement.is_some()).count();
        let needed = blocks_needed(tasks * if counted.is_some() { 3 } else { 2 });
        eprintln!("{blocks} pairs of blocks; a difference can be significant from {needed} on");
    }
    let request = Request {
        programs: &planned,
        length: block,
        on_violation: match options.on_violation {
            ViolationAction::Trace => OnViolation::Trace,
            ViolationAction::Signal => OnViolation::Signal,
            ViolationAction::Stop => OnViolation::Stop,
        },
        keep_going: options.keep_going,
        alone: !options.share_cpus,
        lock: !options.no_mlock,
        counted,
        folder: &runtime::folder(),
    };
    // As planned; the other side of a comparison is kept apart.
    let mut sum: Option<Outcome> = None;
    let mut done = 0;
    'blocks: for number in 0..blocks {
        let mut sides = vec![true];
        if options.compare == Some(CompareWith::None) {
            sides.push(false);
            rng.shuffle(&mut sides);
        }
        for side in sides {
            let means = Means { coloring: coloring.as_ref().filter(|_| side), given: given.as_ref().filter(|_| side) };
            if blocks > 1 {
                eprintln!(
                    "block {} of {blocks}, {}",
                    number + 1,
                    if side { "as planned" } else { "without partitions" }
                );
            }
            let outcome = one_block(&request, &placed, means, &mut recorder.block(number, side))?;
            let over = outcome.interrupted || outcome.unrecorded.is_some() || !outcome.failures.is_empty();
            if side {
                sum = Some(match sum.take() {
                    Some(sum) => together(sum, outcome),
                    None => outcome,
                });
            } else if !outcome.failures.is_empty() || outcome.unrecorded.is_some() {
                // A failure without partitions does not count against the plan, but nothing more can be compared.
                eprintln!("without partitions: {:?}", outcome.failures);
                if let Some(sum) = &mut sum {
                    sum.unrecorded = sum.unrecorded.take().or(outcome.unrecorded);
                }
            }
            if over || interrupt::interrupted() {
                break 'blocks;
            }
        }
        done = number + 1;
    }
    let mut outcome = sum.context("interrupted before anything was run as planned")?;
    uncounted = uncounted.or(outcome.uncounted.take());
    let raw = recorder.close();
    if let (Err(error), None) = (&raw, &outcome.unrecorded) {
        outcome.unrecorded = Some(io::Error::new(error.kind(), error.to_string()));
    }
    let mut inputs = vec![RawFile { path: file_name(&options.plan), sha256: files::sha256(&text) }];
    inputs.extend(executables(programs));
    let tasks = recorder.outcomes(true, &outcome.placements);
    let comparison = options.compare.map(|_| recorder.compared(&placed, done));
    let recorded = Run {
        cpus: programs.cpus.clone(),
        partitioned: !by(&[Partitioning::None]),
        method: programs.method,
        reserved,
        level: programs.level,
        duration: outcome.duration,
        tasks,
        violations: outcome.violations,
        failures: outcome.failures,
        overhead: outcome.overhead,
        steal_time: outcome.steal_time,
        settings: outcome.settings,
        inputs,
        memory: outcome.memory,
        retention,
        comparison,
    };
    let mut warnings = warnings(&context, options, &recorded);
    match (uncounted, counted) {
        (Some(why), _) => {
            warnings.push(format!("Misses per job were not counted: {}", why.lines().next().unwrap_or_default()))
        }
        (None, Some(event)) => {
            warnings.push(format!("Misses per job are {}, in user mode ({}).", event.name, event.source))
        }
        (None, None) => {}
    }
    warnings.extend(given.as_ref().and_then(Given::warning));
    warnings.extend(outcome.notes.iter().map(|note| note.replace("\n  hint:", "; hint:")));
    let raw_files: Vec<RawFile> = raw.into_iter().collect();
    let evidence = evidence::of(&context, None, vec![recorded.section()], &raw_files, warnings);
    let (conclusion, _) = recorded.conclusion();
    let written = files::write_json(&folder.join("evidence.json"), &evidence)
        .and_then(|()| files::write(&folder.join("index.html"), &report::html(&evidence)));
    if let Some(error) = outcome.unrecorded {
        let jobs = folder.join("jobs.csv");
        return Err(error).with_context(|| {
            format!(
                "{}: jobs could not be written any more; the {} before stay readable\n  hint: choose a folder with more room: -o DIR",
                jobs.display(),
                recorder.written
            )
        });
    }
    written?;
    if options.json {
        files::print_json(&evidence)?;
    } else {
        files::print(&report::text::table(&evidence))?;
    }
    eprintln!("evidence and report: {}", folder.join("index.html").display());
    Ok(match conclusion {
        Conclusion::Holds => Verdict::Holds,
        Conclusion::Violated => Verdict::Violated,
        Conclusion::Inconclusive => Verdict::Inconclusive,
    })
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// The shortest wait after which the level has lost half of its contents on one of the CPUs, whatever runs there.
fn retention(context: &mut Context, programs: &Programs) -> Option<Ns> {
    let request = ProbeRequest { cpus: programs.cpus.clone(), seed: context.seed };
    let bar = spinner("retention");
    for note in probe(&mut context.machine, None, &request, |_| {}) {
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

/// How long to run.
fn length(options: &RunPlanOptions, programs: &Programs) -> Result<Ns> {
    let length = match options.hyperperiods {
        None => options.duration,
        Some(times) => {
            let mut periods = programs.periodic().map(|program| program.period.0.max(1));
            let multiple = periods.try_fold(1u64, least_common_multiple);
            let length = multiple.and_then(|multiple| multiple.checked_mul(times)).filter(|ns| *ns <= LENGTH_MAX.0);
            Ns(length.context("so many hyperperiods take more than a day\n  hint: --duration 30s")?)
        }
    };
    ensure!(length.0 > 0, "a run of no time\n  hint: --duration 30s");
    Ok(length)
}

/// Pairs of blocks of a comparison in which each kind runs for `length`.
fn pairs(length: Ns) -> u64 {
    let [shortest, longest] = BLOCK;
    (length.0 / shortest.0).min(PAIRS).max(length.0 / longest.0).clamp(2, PAIRS_MAX)
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}

/// The programs with their places in the plan: the tasks CPU by CPU, highest priority first, then what is best effort.
fn placed(plan: &Plan, programs: &Programs) -> Result<Vec<Placed>> {
    let mut left: BTreeMap<&str, &Program> =
        programs.tasks.iter().map(|program| (program.name.as_str(), program)).collect();
    let mut placed = Vec::new();
    for core in &plan.cores {
        let cpu = CpuId(core.cpu);
        ensure!(programs.cpus.contains(&cpu), "CPU {} is not one of its CPUs\n  hint: plan again", cpu.0);
        for (place, task) in core.tasks.iter().enumerate() {
            let program = left
                .remove(task.name.as_str())
                .with_context(|| format!("{}: no program of this name\n  hint: plan again", task.name))?;
            ensure!(program.period.0 > 0, "{}: has no period\n  hint: plan again", task.name);
            let requirement = Requirement {
                name: task.name.clone(),
                period: program.period,
                deadline: Ns(task.deadline_ns),
                bound: task.response_ns.map(|bound| ResponseBound(Ns(bound))),
                without_interference: task.no_interference_ns.map(Ns),
                budget: program.budget,
                wcet: task.wcet_ns.map(Ns),
                utilization: task.utilization,
            };
            let scheduling = Some(engine::fifo(place, core.tasks.len()));
            let planned = Planned {
                program: program.clone(),
                cpu,
                scheduling,
                requirement: Some(requirement),
                joins: Vec::new(),
            };
            placed.push(Placed { planned, partitions: task.partitions.clone() });
        }
    }
    ensure!(!placed.is_empty(), "a plan without tasks\n  hint: isochrome plan says why");
    for program in left.into_values() {
        ensure!(program.best_effort, "{}: has no place in the plan\n  hint: isochrome plan says why", program.name);
        let cpu = program.cpu.or(programs.cpus.first().copied()).context("no CPUs\n  hint: plan again")?;
        let planned = Planned { program: program.clone(), cpu, scheduling: None, requirement: None, joins: Vec::new() };
        placed.push(Placed { planned, partitions: Vec::new() });
    }
    Ok(placed)
}

/// Has the tasks scheduled by deadlines; what is reserved on their CPUs.
///
/// A job's budget, or else what eq. 1 charges it, is reserved, and what the CPU has left on top; the budget is then what is reserved. Bounds
/// of the plan are those of fixed priorities.
fn by_deadlines(placed: &mut [Placed]) -> Result<Vec<Reserved>> {
    let number = |name: &str| -> Option<f64> { Sysfs::system().text(&format!("proc/sys/kernel/{name}"))?.parse().ok() };
    let most = match (number("sched_rt_runtime_us"), number("sched_rt_period_us")) {
        // -1: everything is admitted.
        (Some(runtime), Some(period)) if runtime >= 0.0 => (runtime / period).min(1.0),
        _ => 1.0,
    };
    let cpus: BTreeSet<CpuId> = placed.iter().map(|placed| placed.planned.cpu).collect();
    let mut all = Vec::new();
    for cpu in cpus {
        let mut tasks: Vec<(&mut Requirement, &mut Option<Scheduling>)> = placed
            .iter_mut()
            .map(|placed| &mut placed.planned)
            .filter(|planned| planned.cpu == cpu)
            .filter_map(|planned| Some((planned.requirement.as_mut()?, &mut planned.scheduling)))
            .collect();
        let need = |requirement: &Requirement| {
            let charged = requirement.utilization.map(|share| Ns((share * requirement.period.0 as f64).ceil() as u64));
            let time = requirement.budget.or(charged).or(requirement.wcet).filter(|time| time.0 > 0);
            let time = time.with_context(|| {
                format!("{}: nothing says how much time to reserve for it\n  hint: budget = \"1ms\" in the task set, or plan again", requirement.name)
            })?;
            Ok(Need {
                time_ns: time.0,
                fixed: requirement.budget.is_some(),
                deadline_ns: requirement.deadline.0.max(1),
            })
        };
        let needs = tasks.iter().map(|(requirement, _)| need(requirement)).collect::<Result<Vec<_>>>()?;
        let (runtimes, density) = reserve(&needs, most);
        for ((requirement, scheduling), runtime) in tasks.iter_mut().zip(runtimes) {
            **scheduling = Some(Scheduling::deadline(runtime, requirement.deadline.0, requirement.period.0));
            (requirement.bound, requirement.budget) = (None, Some(Ns(runtime)));
        }
        if !tasks.is_empty() {
            all.push(Reserved { cpu, density, most });
        }
    }
    Ok(all)
}

/// The palette, for all programs.
fn coloring(options: &RunPlanOptions, level: u8, placed: &[Placed], seed: u64) -> Result<Coloring> {
    // Each program gets colors of its own; tasks of a plan may share partitions.
    let group = Some(format!("run-{}", std::process::id()));
    let chosen = ChosenColors { group, ..options.frames.colors("0", Some(level)) };
    let mut cpus: Vec<CpuId> = placed.iter().map(|placed| placed.planned.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let coloring = Coloring::of(&chosen, cpus, seed)?;
    let most = placed.iter().flat_map(|placed| &placed.partitions).max().copied().unwrap_or(0);
    ensure!(
        most <= coloring.color_count(),
        "the plan has partition {most}, the cache {} colors\n  hint: plan with as many partitions as colors",
        coloring.color_count()
    );
    Ok(coloring)
}

/// What partitions are made of; nothing where there are none.
struct Means<'a> {
    coloring: Option<&'a Coloring>,
    given: Option<&'a Given>,
}

/// Runs the programs once.
fn one_block(request: &Request, placed: &[Placed], means: Means, block: &mut BlockRecord) -> Result<Outcome> {
    let Means { coloring, given } = means;
    let joining = |(task, planned): (usize, &Planned)| {
        let joins = given.and_then(|given| given.joins(task)).into_iter().collect();
        Planned { joins, ..planned.clone() }
    };
    let programs: Vec<Planned> = request.programs.iter().enumerate().map(joining).collect();
    let request = &Request { programs: &programs, ..*request };
    // Best effort has what no task has.
    let taken: Vec<u32> = placed.iter().flat_map(|placed| placed.partitions.iter().copied()).collect();
    let colors = |task: usize, count: u32| -> Vec<Color> {
        let own = &placed[task].partitions;
        let partitions = (1..=count).filter(|partition| match placed[task].planned.requirement {
            Some(_) => own.contains(partition),
            None => !taken.contains(partition),
        });
        partitions.map(|partition| Color(partition as u16 - 1)).collect()
    };
    let of = |task: usize| {
        let coloring = coloring?;
        let colors = colors(task, coloring.color_count());
        (!colors.is_empty()).then(|| coloring.of_another(colors, vec![placed[task].planned.cpu]))
    };
    // By program: where evictions tell colors, they are known of what was moved.
    let watches: RefCell<Vec<Watch>> = RefCell::new(placed.iter().map(|_| Watch::default()).collect());
    let mask = || std::fs::read_to_string(resctrl::root().join("schemata")).unwrap_or_default();
    let before = mask();
    let ways = given.map(Given::give).transpose()?;
    let mut hooks = Hooks {
        place: &mut |task, pids| {
            let Some(mut coloring) = of(task) else { return Ok(()) };
            for pid in pids {
                let owner = Owner::of(pid.0 as u32).map_err(|error| error.to_string())?;
                coloring.grant(owner, None).map_err(|error| format!("{error:#}"))?;
            }
            coloring.place_again(&mut watches.borrow_mut()[task], pids).map(drop).map_err(|error| error.to_string())
        },
        look: &mut |task, pids| {
            let coloring = of(task)?;
            let reports: Result<Vec<_>, RecolorError> = pids.iter().map(|pid: &Pid| coloring.look(*pid)).collect();
            let sum = |count: fn(&Report) -> usize| -> Option<u64> {
                Some(reports.as_ref().ok()?.iter().map(|report| count(report) as u64).sum())
            };
            Some(Placement {
                colors: coloring.colors().to_vec(),
                resident: sum(|report| report.resident())?,
                on_color: sum(|report| report.on_color())?,
                immovable: sum(|report| report.immovable())?,
            })
        },
        record: &mut |job| block.record(job),
    };
    let mut outcome = engine::run(request, &mut hooks)?;
    block.end();
    if let (Some(ways), Some(given)) = (ways, given) {
        for (task, placed) in placed.iter().enumerate() {
            if let Some(what) = given.group_of(task).and_then(|group| ways.changed(group)) {
                let task = placed.planned.program.name.clone();
                outcome.failures.push(Failure { task, at: outcome.duration, what: format!("lost its ways: {what}") });
            }
        }
        let name = "ways (schemata of resctrl)".to_owned();
        // The jobs are measured: what stays changed is reported, and the next start tries again.
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

/// Two blocks as one.
fn together(mut sum: Outcome, next: Outcome) -> Outcome {
    let Outcome {
        placements,
        violations,
        failures,
        overhead,
        steal_time,
        duration,
        settings,
        memory,
        notes,
        uncounted,
        interrupted,
        unrecorded,
    } = next;
    sum.placements = placements;
    sum.violations.extend(violations);
    sum.failures.extend(failures);
    sum.notes.extend(notes);
    sum.overhead.add(&overhead);
    sum.steal_time.0 += steal_time.0;
    sum.duration.0 += duration.0;
    sum.settings = settings;
    for ((_, most), (_, memory)) in sum.memory.iter_mut().zip(memory) {
        *most = (*most).max(memory);
    }
    sum.uncounted = sum.uncounted.or(uncounted);
    sum.interrupted |= interrupted;
    sum.unrecorded = sum.unrecorded.or(unrecorded);
    sum
}

/// The programs' own files.
fn executables(programs: &Programs) -> Vec<RawFile> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let mut words: Vec<&String> = programs.tasks.iter().filter_map(|program| program.command.first()).collect();
    words.sort();
    words.dedup();
    let hashed = |word: &String| {
        let found = if word.contains('/') {
            Some(PathBuf::from(word))
        } else {
            std::env::split_paths(&places).map(|place| place.join(word)).find(|path| path.is_file())
        };
        Some(RawFile { path: word.clone(), sha256: files::sha256(fs::read(found?).ok()?) })
    };
    words.into_iter().filter_map(hashed).collect()
}

/// What the reader must know to judge the run, most important first.
fn warnings(context: &Context, options: &RunPlanOptions, run: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(hypervisor) = &context.machine.hypervisor {
        warnings.push(format!(
            "This is a virtual machine ({hypervisor}): jobs with steal time are marked where the kernel learns of it; time \
             that a host takes without telling looks like execution, or like a late start."
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
        warnings.push("Where memory lay at the end could not be seen.".to_owned());
    }
    warnings
}

/// Records the jobs of a run: writes them to a file, and keeps the tallies of both sides.
struct Recorder {
    path: PathBuf,
    file: File,
    hash: Sha256,
    unwritten: String,
    unwritten_jobs: u64,
    last: Instant,
    bytes: u64,
    /// Jobs in the file.
    written: u64,
    names: Vec<String>,
    /// The tallies of the run as planned, and of the run without partitions.
    tallies: [Vec<Option<Tally>>; 2],
    /// The windows of each side by task. They are filled only if the sides are compared.
    windows: [Vec<Vec<Window>>; 2],
    comparing: bool,
}

impl Recorder {
    fn new(folder: &Path, placed: &[Placed], comparing: bool) -> Result<Recorder> {
        let path = folder.join("jobs.csv");
        let shown = path.display().to_string();
        let file = File::create(&path)
            .with_context(|| format!("{shown}: cannot create\n  hint: choose another folder with -o"))?;
        let requirements: Vec<Option<Requirement>> =
            placed.iter().map(|placed| placed.planned.requirement.clone()).collect();
        let tallies = || requirements.iter().map(|requirement| requirement.clone().map(Tally::new)).collect();
        let windows = || vec![Vec::new(); placed.len()];
        Ok(Recorder {
            path,
            file,
            hash: Sha256::new(),
            unwritten: JobRecord::CSV_HEADER.to_owned(),
            unwritten_jobs: 0,
            last: Instant::now(),
            bytes: 0,
            written: 0,
            names: placed.iter().map(|placed| placed.planned.program.name.clone()).collect(),
            tallies: [tallies(), tallies()],
            windows: [windows(), windows()],
            comparing,
        })
    }

    fn block(&mut self, number: u64, partitioned: bool) -> BlockRecord<'_> {
        let tasks = self.names.len();
        BlockRecord { recorder: self, number, partitioned, window: vec![(0, Window::new(number)); tasks] }
    }

    /// Writes what is not written yet. After an error the file ends with the last whole job that was written before.
    fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(self.unwritten.as_bytes());
        if written.is_err() {
            // The end of a line that was cut off belongs to no job.
            let _ = self.file.set_len(self.bytes);
        } else {
            self.bytes += self.unwritten.len() as u64;
            self.written += self.unwritten_jobs;
            self.hash.update(self.unwritten.as_bytes());
        }
        self.unwritten.clear();
        self.unwritten_jobs = 0;
        self.last = Instant::now();
        written
    }

    fn close(&mut self) -> io::Result<RawFile> {
        self.flush()?;
        self.file.sync_all()?;
        let sha256 = self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(RawFile { path: file_name(&self.path), sha256 })
    }

    fn outcomes(&self, partitioned: bool, placements: &[Option<Placement>]) -> Vec<TaskOutcome> {
        let tallies = self.tallies[usize::from(!partitioned)].iter().zip(placements);
        tallies
            .filter_map(|(tally, placement)| {
                Some(TaskOutcome { placement: placement.clone(), ..tally.as_ref()?.outcome() })
            })
            .collect()
    }

    fn compared(&self, placed: &[Placed], blocks: u64) -> Comparison {
        let tasks = placed.iter().enumerate().filter(|(_, placed)| placed.planned.requirement.is_some());
        let sides = |task: usize| self.windows.each_ref().map(|side| &side[task][..]);
        Comparison::of(WINDOW, blocks, tasks.map(|(task, _)| (self.names[task].as_str(), sides(task))))
    }
}

/// Records the jobs of one block.
struct BlockRecord<'a> {
    recorder: &'a mut Recorder,
    number: u64,
    partitioned: bool,
    /// By task: the number of the window that is open, and its jobs so far.
    window: Vec<(u64, Window)>,
}

impl BlockRecord<'_> {
    fn record(&mut self, job: &JobRecord) -> io::Result<()> {
        let side = usize::from(!self.partitioned);
        if let Some(tally) = &mut self.recorder.tallies[side][job.task] {
            tally.push(job);
        }
        if self.recorder.comparing {
            let number = job.release.0 / WINDOW.0;
            if self.window[job.task].0 != number {
                self.close_window(job.task);
                self.window[job.task].0 = number;
            }
            self.window[job.task].1.push(job);
        }
        let Recorder { names, unwritten, .. } = &mut *self.recorder;
        job.csv_line(self.number, self.partitioned, &names[job.task], unwritten);
        self.recorder.unwritten_jobs += 1;
        if self.recorder.unwritten.len() > UNWRITTEN || self.recorder.last.elapsed() > Duration::from_secs(1) {
            self.recorder.flush()?;
        }
        Ok(())
    }

    fn close_window(&mut self, task: usize) {
        let window = std::mem::replace(&mut self.window[task].1, Window::new(self.number));
        if window.jobs > 0 {
            self.recorder.windows[usize::from(!self.partitioned)][task].push(window);
        }
    }

    fn end(&mut self) {
        (0..self.window.len()).for_each(|task| self.close_window(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_has_twenty_pairs_of_blocks_unless_they_were_shorter_than_half_a_second_or_longer_than_three() {
        let of = |ms: u64| pairs(Ns(ms * 1_000_000));
        assert_eq!([400, 1000, 5000, 10_000, 60_000, 90_000].map(of), [2, 2, 10, 20, 20, 30]);
    }
}
