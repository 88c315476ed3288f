//! `isochrome profile`: measures how long each task of a set executes alone with each share of the cache.

mod modeled;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use isochrome_host::color::ledger::Owner;
use isochrome_host::coloring::Coloring;
use isochrome_host::counters::events::Event;
use isochrome_host::interrupt;
use isochrome_host::machine::setting::allowed_cpus;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::probe;
use isochrome_host::process::Pid;
use isochrome_host::recolor::watch::Watch;
use isochrome_host::run::profiling::profiling_run;
use isochrome_host::run::shielding;
use isochrome_host::runtime;
use isochrome_host::sched::slices::proved_misses;
use isochrome_model::costs::Costs;
use isochrome_model::layout::{Align, Table};
use isochrome_model::machine::{CacheLevel, Machine, Refill};
use isochrome_model::profile::{CONFIDENCE, Profile, ProfilingRun, Request, SCHEMA};
use isochrome_model::replacement::ReplacementTest;
use isochrome_model::stats::exceedance_at;
use isochrome_model::taskset::Scope;
use isochrome_model::taskset::programs::{Declared, Partitioning, Program, Programs, declared};
use isochrome_model::units::{Color, CpuId, Ns, format_list};
use isochrome_report::figure;

use crate::args::{MeasurementOptions, ProfileOptions};
use crate::coloring::{self, available};
use crate::context::{Context, seed};
use crate::probe::{costs_text, notes_text, saved, supply_text};
use crate::verdict::Verdict;
use crate::ways::{Divided, Given};
use crate::{files, hints, progress};

pub fn run(options: &ProfileOptions) -> Result<Verdict> {
    ensure!(
        options.exceed > 0.0 && options.exceed < 1.0,
        "--exceed {} is not a probability between 0 and 1\n  hint: --exceed 1e-3",
        options.exceed
    );
    for (name, percent) in [("margin", options.margin), ("flat", options.flat)] {
        ensure!((0.0..=1000.0).contains(&percent), "--{name} {percent} is not in 0 to 1000 percent");
    }
    let text = files::read(&options.tasks)?;
    let (mut declared, warnings) = declared(&text).with_context(|| options.tasks.display().to_string())?;
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    resolve(&mut declared.programs, &options.tasks)?;
    let mut profile = match &options.from_trace {
        Some(name) => modeled::run(options, name, declared, &text)?,
        None => measured(options, declared, &text)?,
    };
    if profile.complete {
        files::write_json(&options.output, &profile)?;
    } else {
        eprintln!("interrupted; the same command goes on from {}", options.output.display());
    }
    files::write_if(&options.svg, || figure::execution_times(&profile))?;
    profile.tasks.retain(|task| !task.program.best_effort);
    files::show(options.json, &profile, || profile_text(&profile, files::width()))?;
    Ok(if profile.complete { Verdict::Holds } else { Verdict::Inconclusive })
}

/// Resolves the paths of programs that are named with a slash, relative to the folder of the task set.
fn resolve(programs: &mut Programs, tasks: &Path) -> Result<()> {
    let mut folder = std::env::current_dir()?;
    if let Some(of_file) = tasks.parent().filter(|_| tasks != Path::new("-")) {
        folder.push(of_file);
    }
    for program in &mut programs.tasks {
        if let Some(first) = program.command.first_mut().filter(|first| first.contains('/')) {
            *first = folder.join(&*first).to_string_lossy().into_owned();
        }
    }
    Ok(())
}

/// Copies the fields of the task set other than its programs into the profile, and prints warnings.
fn carry(profile: &mut Profile, options: &ProfileOptions, declared: &Declared) -> Result<()> {
    let warnings = profile.carry(declared).with_context(|| options.tasks.display().to_string())?;
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(())
}

/// Returns the number of partitions to measure with: that of the command line, else that of the task set, else `most`.
fn partitions(options: &ProfileOptions, declared: &Declared, most: u32) -> u32 {
    let declared_most = declared.set.get("partitions").and_then(serde_json::Value::as_u64);
    options.partitions.or(declared_most.map(|most| most.min(u32::MAX.into()) as u32)).unwrap_or(most)
}

/// Returns the number of jobs after which the exceedance probability `exceedance` can be claimed.
fn jobs_for(exceedance: f64) -> u64 {
    let enough = |n: &u64| exceedance_at(*n, CONFIDENCE) <= exceedance;
    let about = ((1.0 - CONFIDENCE).ln() / (-exceedance).ln_1p()) as u64;
    (about.saturating_sub(2).max(1)..).find(enough).unwrap_or(u64::MAX)
}

/// Measures on this machine every point that is missing in the output file, and returns the profile.
fn measured(options: &ProfileOptions, declared: Declared, text: &str) -> Result<Profile> {
    let programs = &declared.programs;
    let seed = seed(options.frames.seed);
    eprintln!("seed {seed}");
    let sysfs = Sysfs::system();
    let (machine, _) = sysfs.machine()?;
    let allowed = allowed_cpus()?;
    for cpu in &programs.cpus {
        ensure!(
            allowed.contains(cpu),
            "CPU {} is not one this process may run on\n  hint: see `cpus` of the task set",
            cpu.0
        );
    }
    let by = |method| [method, Partitioning::Both].contains(&programs.method);
    let divided = || Divided::of(&sysfs, &machine, programs.level, &programs.cpus);
    let divided = by(Partitioning::Ways).then(divided).transpose()?;
    let chosen = options.frames.colors("all", Some(programs.level));
    let coloring = || coloring::resolve(&chosen, programs.cpus.clone(), seed);
    let mut coloring = by(Partitioning::Colors).then(coloring).transpose()?;
    let own = Owner::of(std::process::id())?;
    let _lease = coloring.as_mut().map(|coloring| coloring.lease(own)).transpose()?;
    let most = match (&coloring, &divided) {
        (Some(coloring), _) => coloring.color_count(),
        (None, divided) => divided.as_ref().map_or(1, Divided::partitions),
    };
    let partitions = match programs.method {
        Partitioning::None => 1,
        _ => self::partitions(options, &declared, most),
    };
    ensure!(
        (1..=most).contains(&partitions),
        "--partitions {partitions}: tasks can have 1 to {most} of the level\n  hint: a partition is a color, or as many ways as the smallest mask has, of which everybody else keeps some"
    );
    let mut profile = match kept(options, &machine, text)? {
        Some(profile) => profile,
        None => {
            let means = (coloring.as_ref(), divided.as_ref());
            begun(options, &declared, (partitions, means), &sysfs, &machine, seed, text)?
        }
    };
    let request = Request {
        jobs: jobs_for(options.exceed),
        jobs_per_run: options.jobs_per_run.min(jobs_for(options.exceed)),
        flat: options.flat / 100.0,
        seed,
    };
    let counted = proved_misses(&sysfs.processor()?, profile.level);
    if let Err(error) = &counted {
        eprintln!("misses are not counted: {}", hints::text(error));
    }
    measure_points(options, &mut profile, request, (coloring.as_ref(), divided.as_ref()), counted.ok())?;
    Ok(profile)
}

/// Measures the points that `profile` lacks, each profiling run on other colors, and saves it after every run.
fn measure_points(
    options: &ProfileOptions,
    profile: &mut Profile,
    request: Request,
    (coloring, divided): (Option<&Coloring>, Option<&Divided>),
    counted: Option<Event>,
) -> Result<()> {
    let tasks: Vec<Program> = profile.tasks.iter().map(|task| task.program.clone()).collect();
    let cpu = profile.cpus[0];
    let folder = runtime::folder();
    shielding::restore_left(&folder);
    let mut random = fastrand::Rng::with_seed(request.seed);
    let bar = progress::parts("profiling", 0, format!("isochrome plan {}", options.output.display()));
    let run = |task: usize, partitions: u32, jobs: u64| {
        if interrupt::interrupted() {
            return Ok(None);
        }
        let colored = coloring.map(|coloring| {
            let mut colors: Vec<Color> = (0..coloring.color_count() as u16).map(Color).collect();
            random.shuffle(&mut colors);
            colors.truncate(partitions as usize);
            (coloring, colors)
        });
        let given = divided.map(|divided| match coloring {
            // Points differ in colors only. The ways keep all other programs away, as in a run.
            Some(_) => divided.together(1),
            None => divided.alone(cpu, partitions),
        });
        let request = ProfilingRequest { program: &tasks[task], cpu, jobs, folder: &folder, counted };
        one_run(&request, colored.as_ref().map(|(coloring, colors)| (*coloring, &colors[..])), given.as_ref())
    };
    let keep = |profile: &Profile| {
        let (done, wanted) = jobs_of(profile, request.jobs);
        bar.set_length(wanted);
        bar.set_position(done);
        files::write_json(&options.output, profile)
    };
    profile.measure(request, run, keep)?;
    bar.finish_and_clear();
    Ok(())
}

/// Returns a profile that holds the refill time, and no measured point yet.
fn begun(
    options: &ProfileOptions,
    declared: &Declared,
    (partitions, (coloring, divided)): (u32, (Option<&Coloring>, Option<&Divided>)),
    sysfs: &Sysfs,
    machine: &Machine,
    seed: u64,
    text: &str,
) -> Result<Profile> {
    let programs = declared.programs.clone();
    let (level, cpu) = (programs.level, programs.cpus[0]);
    let refills = ["refill_ns_per_partition", "refill_dirty_ns_per_partition"];
    let states_refill = refills.iter().any(|name| declared.set.contains_key(*name));
    let measured = refill_time(options, machine, level, cpu, seed);
    let Measured { refill, costs, replacement } = match states_refill {
        // The refill time that the set states is charged. The other costs are measured if possible.
        true => {
            let measured = measured.unwrap_or_default();
            Measured { refill: None, costs: measured.costs.map(|costs| Costs { refill: None, ..costs }), ..measured }
        }
        false => measured?,
    };
    let known = machine.data_level_of(level, cpu);
    // The refill time is measured for a color, and scaled to the size of a partition.
    let size = |level: &CacheLevel| {
        level.geometry.value.cache_bytes().0 / u64::from(level.geometry.value.color_count(machine.page_bytes))
    };
    let color_bytes = known.map_or(1, size).max(1);
    let share = match (coloring, divided) {
        (None, Some(divided)) => divided.partition_bytes().0 as f64 / color_bytes as f64,
        _ => 1.0,
    };
    let of_partition = |time: Ns| (time.0 as f64 * share).ceil() as u64;
    let is_private = known
        .is_some_and(|level| programs.cpus.iter().all(|cpu| level.is_private_to(*cpu)) || programs.cpus.len() == 1);
    let mut profile = Profile {
        fingerprint: Some(machine.fingerprint()),
        by: format!(
            "each task alone at its period on CPU {}, at least {} jobs of each point; execution is the time it had the CPU less steal time",
            cpu.0,
            jobs_for(options.exceed)
        ),
        cache: if is_private { Scope::Private } else { Scope::Shared },
        memory_bytes: match coloring {
            Some(coloring) => coloring.limits.memory,
            None => options.frames.memory.unwrap_or(available(sysfs)?),
        },
        refill_ns_per_partition: refill.map(|refill| of_partition(refill.clean_ns)),
        refill_dirty_ns_per_partition: refill.map(|refill| of_partition(refill.dirty_ns)),
        replacement_test: replacement,
        ..Profile::begin(programs, partitions, files::sha256(text), options.margin / 100.0)
    };
    carry(&mut profile, options, declared)?;
    if let Some(costs) = costs {
        profile.charge(costs, share);
    }
    if let Some(path) = &options.machine {
        charge_supply(&mut profile, path, &saved(path, machine)?);
    }
    Ok(profile)
}

/// Makes the analysis charge the supply that the machine file at `path` holds. Warns of CPUs whose supply it does not hold.
fn charge_supply(profile: &mut Profile, path: &Path, saved: &Machine) {
    profile.charge_supply(&saved.supply);
    let is_known = |cpu: &CpuId| profile.supply.iter().any(|fact| fact.value.cpu == *cpu);
    let unknown: Vec<u32> = profile.cpus.iter().filter(|cpu| !is_known(cpu)).map(|cpu| cpu.0).collect();
    if !unknown.is_empty() && !profile.supply.is_empty() {
        eprintln!(
            "warning: {}: contains no supply of CPU {}; bounds charge the supply of the other CPUs\n  hint: `isochrome probe` without --cpu measures all CPUs",
            path.display(),
            format_list(&unknown)
        );
    }
}

/// A profiling run: the program, and how it is run.
struct ProfilingRequest<'a> {
    program: &'a Program,
    cpu: CpuId,
    jobs: u64,
    folder: &'a Path,
    counted: Option<Event>,
}

/// Runs jobs of a task on the colors `colored`, or in the ways `given`, and returns their measurements; `None` if the run was interrupted.
fn one_run(
    request: &ProfilingRequest,
    colored: Option<(&Coloring, &[Color])>,
    given: Option<&Given>,
) -> Result<Option<ProfilingRun>> {
    let ways = given.map(Given::give).transpose()?;
    let joins = given.and_then(|given| given.joins(0)).into_iter().collect();
    let mut move_to_colors = |_: usize, pids: &[Pid]| {
        let Some((coloring, colors)) = colored else { return Ok(()) };
        let coloring = coloring.of_another(colors.to_vec(), vec![request.cpu]);
        coloring.move_watched(&mut Watch::drawing_anew(), pids).map(drop).map_err(|error| hints::text(&error))
    };
    let ProfilingRequest { program, cpu, jobs, folder, counted } = *request;
    let run = profiling_run(program, cpu, jobs, folder, joins, counted, &mut move_to_colors)?;
    if let Some(ways) = ways {
        ways.restore()?;
    }
    Ok(run)
}

/// Returns the number of jobs done, and the number wanted.
fn jobs_of(profile: &Profile, jobs: u64) -> (u64, u64) {
    let points = || profile.tasks.iter().flat_map(|task| &task.measured);
    (points().map(|point| point.jobs().min(jobs)).sum(), points().count() as u64 * jobs)
}

/// Returns the profile in the output file; `None` if there is none or `--again` is given. Fails if it has another task set, machine or margin.
fn kept(options: &ProfileOptions, machine: &Machine, text: &str) -> Result<Option<Profile>> {
    let path = &options.output;
    if options.again || !path.exists() {
        return Ok(None);
    }
    let profile: Profile = files::read_json(path, SCHEMA)?;
    let same = profile.input == files::sha256(text)
        && profile.fingerprint.as_ref() == Some(&machine.fingerprint())
        && profile.margin == options.margin / 100.0;
    ensure!(
        same,
        "{}: is the profile of another task set, another machine or another margin\n  hint: --again replaces it, -o FILE writes elsewhere",
        path.display()
    );
    eprintln!("going on from {}", path.display());
    Ok(Some(profile))
}

/// Attempts at measuring the refill time.
const REFILL_ATTEMPTS: u64 = 20;

/// Inputs of the bounds for a level, besides execution times; each is `None` if it was not measured.
#[derive(Default)]
struct Measured {
    refill: Option<Refill>,
    costs: Option<Costs>,
    replacement: Option<ReplacementTest>,
}

impl Measured {
    fn of(machine: &Machine, level: u8, cpu: CpuId) -> Measured {
        let known = machine.data_level_of(level, cpu);
        Measured {
            refill: known.and_then(|level| level.refill).map(|fact| fact.value),
            costs: machine.costs.filter(|costs| costs.level == level),
            replacement: known.and_then(|level| level.replacement).map(|fact| fact.value),
        }
    }
}

/// Returns the refill time of a color, the costs to charge and the test of replacement: from the machine file if one is given, else measured
/// here.
fn refill_time(options: &ProfileOptions, machine: &Machine, level: u8, cpu: CpuId, seed: u64) -> Result<Measured> {
    if let Some(path) = &options.machine {
        let saved = saved(path, machine)?;
        let measured = Measured::of(&saved, level, cpu);
        let hint = format!("hint: isochrome probe --level {level} -o FILE");
        ensure!(measured.refill.is_some(), "{}: holds no refill time of level {level}\n  {hint}", path.display());
        return Ok(measured);
    }
    let measurement = MeasurementOptions::at(Some(cpu.0), Some(level));
    let mut context = Context::at(measurement.cpu, seed)?;
    let target = context.target(&measurement)?;
    let collect = || {
        let _settings = context.settle();
        context.collect(&measurement, target, None)
    };
    // Colors that are in doubt now may not be in doubt in a moment, so a second attempt is made.
    let hint = "measure it when the machine is idle: isochrome probe -o machine.json, then --machine machine.json";
    let (_, pool) =
        collect().or_else(|_| collect()).with_context(|| format!("no refill time of a color\n  hint: {hint}"))?;
    // The times may be too blurred to distinguish for a while, as when another program uses the cache, so there are several attempts.
    let mut notes = Vec::new();
    for attempt in 0..REFILL_ATTEMPTS {
        notes = probe::refill_time(&mut context.machine, cpu, &pool, level, seed.wrapping_add(attempt));
        if Measured::of(&context.machine, level, cpu).refill.is_some() {
            break;
        }
    }
    eprint!("{}", notes_text(&notes));
    Ok(Measured::of(&context.machine, level, cpu))
}

/// Formats the profile as tables.
fn profile_text(profile: &Profile, width: usize) -> String {
    let mut text = String::new();
    for task in profile.tasks.iter().filter(|task| !task.measured.is_empty()) {
        let period = task.program.period.0.max(1) as f64;
        let sensitive = match (task.is_sensitive(), task.utilization_difference) {
            (Some(sensitive), Some(difference)) => format!(
                "{}: utilization differs by {:.2} % between {} and {} partitions",
                if sensitive { "cache-sensitive" } else { "not cache-sensitive" },
                difference * 100.0,
                task.measured.first().map_or(1, |point| point.partitions),
                task.measured.last().map_or(1, |point| point.partitions)
            ),
            _ => "not complete".to_owned(),
        };
        let _ = writeln!(text, "{}  period {} us, {sensitive}", task.program.name, period / 1e3);
        let has_misses = task.measured.iter().any(|point| point.misses().is_some());
        let heads = ["partitions", "typical", "average", "longest", "C^p (us)", "jobs", "exceeded by"];
        let heads = heads.into_iter().chain(has_misses.then_some("misses")).map(|head| (head, Align::Right));
        let mut table = Table::new(heads).indented(2);
        for point in task.measured.iter().filter(|point| !point.runs.is_empty()) {
            let bound = task.wcet_ns.get(point.partitions as usize - 1);
            let cells = [
                point.partitions.to_string(),
                format!("{:.2}", point.typical_ns() as f64 / 1e3),
                format!("{:.2}", point.average_ns() / 1e3),
                format!("{:.2}", point.high_water_ns() as f64 / 1e3),
                bound.map_or_else(|| "-".to_owned(), |time| format!("{:.2}", *time as f64 / 1e3)),
                point.jobs().to_string(),
                point.exceedance().map_or_else(|| "no claim".to_owned(), |share| format!("<= {share:.1e}")),
            ];
            table.row(cells.into_iter().chain(point.misses().map(|misses| format!("{misses:.1}"))));
        }
        text += &table.text(width);
        if task.jitter_ns > 0 {
            let _ =
                writeln!(text, "  waits up to {:.2} us between release and completion", task.jitter_ns as f64 / 1e3);
        }
    }
    let _ = writeln!(
        text,
        "C^p is the longest time seen with p partitions or more, and {:.0} % of it: an observation, not a proof. A further job exceeds the \
         longest with at most the probability given, at {:.0} % confidence, if jobs are independent and nothing changes.",
        profile.margin * 100.0,
        CONFIDENCE * 100.0
    );
    if let Some(costs) = &profile.costs {
        text.push_str(&costs_text(costs));
    }
    profile.supply.iter().for_each(|fact| text.push_str(&supply_text(&fact.value)));
    if let (Some(clean), Some(dirty)) = (profile.refill_ns_per_partition, profile.refill_dirty_ns_per_partition) {
        let _ = writeln!(
            text,
            "refill of a partition: {:.2} us clean, {:.2} us dirty; the longer one is charged",
            clean as f64 / 1e3,
            dirty as f64 / 1e3
        );
    }
    text
}
