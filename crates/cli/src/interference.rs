//! `isochrome lab interference`: measures how much unmodified programs slow each other down, on different CPUs and on one.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use isochrome_host::color::Target;
use isochrome_host::color::ledger::Owner;
use isochrome_host::coloring::{Coloring, Lease};
use isochrome_host::counters::events::{Event, LevelEvents, level_events, levels_within};
use isochrome_host::counters::{Counters, usable_slots};
use isochrome_host::interrupt;
use isochrome_host::load::kernels::{Walk, Writer};
use isochrome_host::partition::resctrl::{self, Mounted, Ways};
use isochrome_host::process::Pid;
use isochrome_host::recolor::RecolorError;
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_lab::interference::expected::{beside, refill};
use isochrome_lab::interference::{
    Condition, Counted, Divided, Interference, Program, Programs, Setup, Sharing, conclude, conditions, equal_shares,
    modeled, section,
};
use isochrome_lab::runner::{Amount, Experiment};
use isochrome_lab::samples::{Block, csv};
use isochrome_model::evidence::Standing;
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::{Bytes, Color, CpuId, Ns};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::args::{InterferenceOptions, MeasurementOptions};
use crate::context::Context;
use crate::progress::{self, Takes};
use crate::results::{self, Outcome};
use crate::simulate::named_machine;
use crate::verdict::Verdict;
use crate::ways::{self, Given};
use crate::{coloring, hints, job};

/// Default time slices of programs that `--program` names, and of a modeled machine.
const SLICES: [Ns; 1] = [Ns(2_500_000)];
/// Default warm-up of programs that `--program` names.
const WARM_UP: Ns = Ns(1_000_000_000);

/// Default time slices of the built-in programs.
const BUILT_IN_SLICES: [Ns; 4] = [Ns(500_000), Ns(1_000_000), Ns(2_500_000), Ns(10_000_000)];
/// Default warm-up of the built-in programs.
const BUILT_IN_WARM_UP: Ns = Ns(100_000_000);
/// Time that a built-in program runs alone while it is timed.
const RUN_LENGTH: Duration = Duration::from_millis(25);
/// Time after the start of the experiment at which no further block of the built-in programs begins.
const TIME: Duration = Duration::from_secs(115);
/// Least memory of the built-in walk that runs beside a writer on another CPU.
const SHARED_WALK: Bytes = Bytes(2 << 20);
/// Memory that the built-in writer on another CPU writes to.
const SHARED_WRITER: Bytes = Bytes(64 << 20);
/// Number of jobs of a writer that must not end: more than it completes in years.
const ENDLESS: u64 = 1_000_000_000_000;
/// Expected effect, as a share, below which a condition of the built-in programs is not measured.
const HOPELESS: f64 = 0.01;

/// The programs of the experiment, the programs beside each of them, and the number of programs that share divided caches.
struct Chosen {
    programs: Vec<Vec<String>>,
    jobs: Vec<Option<u64>>,
    beside: Vec<Vec<usize>>,
    parties: usize,
    slices: Vec<Ns>,
    warm_up: Ns,
    /// Expected effects, in sentences.
    expected: Vec<String>,
    /// Whether a condition is expected to show an effect.
    hopeful: Box<dyn Fn(&Condition) -> bool>,
}

pub fn run(options: &InterferenceOptions) -> Result<Verdict> {
    if let (Some(name), Some(mhz)) = (&options.modeled.machine, options.modeled.mhz) {
        return modeled(options, name, mhz);
    }
    let begin = Instant::now();
    let context = Context::new(&MeasurementOptions::at(options.cpu, options.level).with_seed(options.frames.seed))?;
    let others: Vec<CpuId> = context.allowed.iter().copied().filter(|cpu| *cpu != context.cpu).collect();
    let chosen = match options.program.is_empty() {
        true => built_in(options, &context, &others)?,
        false => named(options, &context)?,
    };
    let programs = &chosen.programs;
    chosen.expected.iter().for_each(|text| eprintln!("{text}"));
    let possible = |realtime: bool, parts: &[Partitioning]| -> Vec<Condition> {
        let all = conditions(&chosen.beside, others.len(), realtime, &chosen.slices, parts);
        all.into_iter().filter(&chosen.hopeful).collect()
    };
    if possible(true, &[]).is_empty() {
        eprintln!("No effect larger than noise is expected here, so nothing is measured.");
        return Ok(Verdict::Inconclusive);
    }
    let mut warnings = Vec::new();
    let mut warn = |text: String| {
        eprintln!("{text}");
        warnings.push(text);
    };
    let Division { colored, ways, divided } = Division::of(options, &context, chosen.parties, &mut warn);
    let joins = ways.iter().flat_map(|(_, given)| (0..chosen.parties).filter_map(move |at| given.joins(at))).collect();
    let levels = levels(&context);
    let ordinary = Scheduling::current();
    let settings = context.settle();
    let realtime = settings.notes().iter().all(|note| !note.subject.contains("SCHED_FIFO"));
    let most = chosen.beside.iter().map(Vec::len).max().unwrap_or_default();
    missing(others.len(), most, &levels, realtime).into_iter().for_each(&mut warn);
    let parts: Vec<Partitioning> = divided.iter().map(|divided| divided.by).collect();
    let setup = Setup {
        programs: programs.clone(),
        beside: chosen.beside.clone(),
        // A walk over 16 lines, which takes next to nothing of a cache.
        spinner: command(&format!("isochrome job --jobs {ENDLESS} walk 1"))?,
        jobs: chosen.jobs,
        conditions: possible(realtime, &parts),
        cpu: context.cpu,
        others,
        warm_up: chosen.warm_up,
        limit: options.limit,
        realtime,
        joins,
        levels,
    };
    ensure!(
        !setup.conditions.is_empty(),
        "neither another CPU nor time slices\n  hint: run as root, or on more than one CPU"
    );
    let limit = options.program.is_empty().then(|| TIME.saturating_sub(begin.elapsed()));
    let amount = Amount { limit, ..context.amount(options.blocks, 1) };
    let Measured { blocks, columns, failures, placed } =
        measure(&setup, &amount, &context, (colored.as_ref(), &divided), ordinary.as_ref().ok())?;
    left_out(&blocks, &failures).into_iter().for_each(&mut warn);
    if let Some((ways, given)) = ways {
        take_back(ways, &given, programs, &mut warn);
    }
    drop(colored);
    warnings.extend(context.warnings(&settings));
    drop(settings);
    let program = |(words, placed): (&Vec<String>, Option<f64>)| Program { command: words.join(" "), placed };
    let measured = Interference {
        modeled: None,
        expected: chosen.expected,
        divided,
        programs: programs.iter().zip(placed).map(program).collect(),
        counted: setup.levels.iter().map(counted).collect(),
        rows: conclude(&blocks),
    };
    let mut section = section(&measured);
    if measured.rows.len() < setup.conditions.len() {
        section.standing = Some(Standing::Inconclusive);
    }
    let outcome = Outcome { context: &context, palette: None, section, raw: csv(&blocks, &columns), warnings };
    results::leave(&options.results, outcome)
}

/// What was measured.
struct Measured {
    blocks: Vec<Block<Condition>>,
    columns: Vec<String>,
    /// Descriptions of failures of programs beside others.
    failures: Vec<String>,
    /// For each program that was moved to its colors, the least share of its resident pages that were on color afterwards.
    placed: Vec<Option<f64>>,
}

/// Measures all conditions of `setup`. Programs with colors get their share in `divided`, by threads at `ordinary` priority.
fn measure(
    setup: &Setup,
    amount: &Amount,
    context: &Context,
    (colored, divided): (Option<&(Coloring, Lease)>, &[Divided]),
    ordinary: Option<&Scheduling>,
) -> Result<Measured> {
    let mut placed: Vec<Option<f64>> = vec![None; setup.programs.len()];
    let mut move_to_colors = |program: usize, pid: Pid| {
        let Some((coloring, _)) = colored else { return Ok(()) };
        let part = divided.iter().find(|divided| divided.by == Partitioning::Colors);
        let colors = part.and_then(|part| part.shares.get(program)).into_iter().flatten();
        let coloring = coloring.of_another(colors.map(|it| Color(*it as u16)).collect(), context.allowed.clone());
        let share = move_as(&coloring, pid, &context.allowed, ordinary)?;
        placed[program] = Some(placed[program].map_or(share, |least| least.min(share)));
        Ok(())
    };
    let mut experiment = Programs::new(setup, &mut move_to_colors);
    let blocks = results::measure("running", &mut experiment, amount)?;
    let (columns, failures) = (experiment.columns(), experiment.failures.clone());
    drop(experiment);
    Ok(Measured { blocks, columns, failures, placed })
}

/// Returns warnings about what cannot be measured for lack of CPUs, of counters or of privilege. `others`: number of CPUs for other programs;
/// `most`: number of those that the experiment can use.
fn missing(others: usize, most: usize, levels: &[LevelEvents], realtime: bool) -> Vec<String> {
    let mut missing = Vec::new();
    if others < most {
        missing.push(match others {
            0 => "There is only one CPU, so no programs run on different CPUs.".to_owned(),
            count => format!("On different CPUs {count} of {most} others run at a time, drawn by chance."),
        });
    }
    if levels.is_empty() {
        missing.push(
            "No performance counters of caches here: hits and misses are absent, times only are compared.".to_owned(),
        );
    }
    if !realtime {
        missing.push("No SCHED_FIFO: programs have no time slices, so that they are not compared on one CPU, and whatever else runs disturbs them (hint: run as root).".to_owned());
    }
    missing
}

/// Returns warnings about runs without counts, and about runs that do not count because a program failed.
fn left_out(blocks: &[Block<Condition>], failures: &[String]) -> Vec<String> {
    let mut left_out = Vec::new();
    if blocks.iter().flat_map(|block| &block.samples).any(|run| run.values.iter().any(|value| value.is_nan())) {
        left_out.push("Runs without hits and misses: they are counted for programs of one thread only.".to_owned());
    }
    if let [first, ..] = failures {
        left_out.push(format!(
            "{} runs do not count, as programs failed beside others; the first: {first}",
            failures.len()
        ));
    }
    left_out
}

/// Means by which the caches are divided among the programs.
struct Division {
    colored: Option<(Coloring, Lease)>,
    ways: Option<(Ways<Mounted>, Given)>,
    divided: Vec<Divided>,
}

impl Division {
    /// Divides the caches by each method that `options` select and the machine has. `warn` receives the reason for each method that is not
    /// available.
    fn of(options: &InterferenceOptions, context: &Context, parties: usize, warn: &mut impl FnMut(String)) -> Division {
        let mut divided = Vec::new();
        let wanted = |division| options.by.is_empty() || options.by.contains(&division);
        let colored = wanted(Partitioning::Colors).then(|| colored(options, context, parties));
        let colored = had("colors", colored, &mut divided, warn);
        let ways = wanted(Partitioning::Ways).then(|| {
            let (given, part) = divided_by_ways(context, parties)?;
            Ok(((given.give()?, given), part))
        });
        let ways = had("cache ways", ways, &mut divided, warn);
        ways.iter().filter_map(|(_, given)| given.warning()).for_each(warn);
        Division { colored, ways, divided }
    }
}

/// Moves the pages of `pid` to the colors of `coloring`. Returns the share of its resident pages that are on color.
///
/// Helper threads inside the program inherit the CPUs and the priority of the thread that creates them. With a real-time priority on one CPU
/// they would keep each other from running. So the work is done by a thread that may run on all of `cpus`, at `ordinary` priority.
fn move_as(coloring: &Coloring, pid: Pid, cpus: &[CpuId], ordinary: Option<&Scheduling>) -> Result<f64, RecolorError> {
    let mut all = CpuSet::new();
    cpus.iter().for_each(|cpu| all.set(cpu.0 as usize));
    let work = || {
        let _anywhere = sched_setaffinity(None, &all);
        let _ordinary = ordinary.map(Scheduling::apply);
        coloring.move_to_colors(&[pid])
    };
    let tally = std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))?;
    Ok(tally.on_color as f64 / tally.resident.max(1) as f64)
}

/// Restores the division of the ways. `warn` receives the programs that have lost their ways since the division, and the setting that cannot be
/// restored.
fn take_back(ways: Ways<Mounted>, given: &Given, programs: &[Vec<String>], warn: &mut impl FnMut(String)) {
    for (number, program) in programs.iter().enumerate() {
        if let Some(what) = given.group_of(number).and_then(|group| ways.changed(group)) {
            warn(format!("{} lost its ways during the experiment: {what}", program.join(" ")));
        }
    }
    // All measurements are done, so a failure to restore is only reported; the next start of isochrome tries again.
    ways.restore().err().map(|error| error.to_string()).into_iter().for_each(warn);
}

/// Returns a means of dividing the cache, and adds the division to `divided`. `None` if the means was not requested, or if it is not available;
/// `warn` then receives the reason.
fn had<T>(
    what: &str,
    got: Option<Result<(T, Divided)>>,
    divided: &mut Vec<Divided>,
    warn: &mut impl FnMut(String),
) -> Option<T> {
    match got? {
        Ok((part, how)) => {
            divided.push(how);
            Some(part)
        }
        Err(error) => {
            warn(format!("No {what}, so their effect is not measured: {}", hints::text(&*error)));
            None
        }
    }
}

/// Returns the time slices in `options`, or `usual` if there are none. Fails for a slice of length 0.
fn slices(options: &InterferenceOptions, usual: &[Ns]) -> Result<Vec<Ns>> {
    ensure!(options.slice.iter().all(|slice| slice.0 > 0), "the time slice is 0\n  hint: --slice 1ms");
    Ok(if options.slice.is_empty() { usual.to_vec() } else { options.slice.clone() })
}

/// Returns for each program the indexes of all others. Fails if there are fewer than two programs.
fn all_beside(programs: usize) -> Result<Vec<Vec<usize>>> {
    ensure!(programs > 1, "one program alone shares nothing\n  hint: --program once for each of two or more");
    Ok((0..programs).map(|own| (0..programs).filter(|other| *other != own).collect()).collect())
}

/// Formats `lost` as a share of each time slice.
fn of_slices(lost: Ns, slices: &[Ns]) -> String {
    let share = |slice: &Ns| {
        format!("{:.1} % of a time slice of {} ms", 100.0 * lost.0 as f64 / slice.0 as f64, slice.0 as f64 / 1e6)
    };
    slices.iter().map(share).collect::<Vec<_>>().join(", ")
}

/// Returns the programs that `--program` names, each beside all others.
fn named(options: &InterferenceOptions, context: &Context) -> Result<Chosen> {
    let programs: Vec<Vec<String>> = options.program.iter().map(|text| command(text)).collect::<Result<_>>()?;
    let (beside, slices) = (all_beside(programs.len())?, slices(options, &SLICES)?);
    let mut expected = Vec::new();
    if let Some(target) = Target::to_flood(&context.machine, context.cpu) {
        let bytes = target.geometry.cache_bytes();
        let settings = context.settle();
        let lost = refill(&Walk::new(bytes)?, &mut Writer::new(Bytes(2 * bytes.0))?);
        drop(settings);
        expected.push(format!(
            "All of level {} is read again in {} µs, which is {}. A time slice may cost that much there.",
            target.level,
            lost.0 / 1000,
            of_slices(lost, &slices)
        ));
    }
    let (parties, warm_up) = (programs.len(), options.warm_up.unwrap_or(WARM_UP));
    Ok(Chosen {
        jobs: vec![None; programs.len()],
        programs,
        beside,
        parties,
        slices,
        warm_up,
        expected,
        hopeful: Box::new(|_| true),
    })
}

/// Returns the built-in programs. On one CPU a walk over a quarter of the CPU's own level runs beside a writer to twice the size of that level,
/// and on different CPUs a larger walk runs beside a larger writer. The writers do not end and are not measured. Lines on standard input release the
/// passes of the walks.
fn built_in(options: &InterferenceOptions, context: &Context, others: &[CpuId]) -> Result<Chosen> {
    let target = Target::to_flood(&context.machine, context.cpu).context(
        "no cache is known here to walk over\n  hint: name programs by --program; `isochrome doctor` says what is missing",
    )?;
    let own = target.geometry.cache_bytes();
    // With its own colors the walk has half of the level. It fills half of that: what has no color, such as the kernel, needs room as well.
    let sizes = [Bytes(own.0 / 4), Bytes(2 * own.0), Bytes(SHARED_WALK.0.max(2 * own.0)), SHARED_WRITER];
    let (slices, warm_up) = (slices(options, &BUILT_IN_SLICES)?, options.warm_up.unwrap_or(BUILT_IN_WARM_UP));
    let settings = context.settle();
    let walks = [Walk::new(sizes[0])?, Walk::new(sizes[2])?];
    let lost = refill(&walks[0], &mut Writer::new(sizes[1])?);
    let mut expected = vec![format!(
        "A walk over {}, a quarter of level {}, needs {} µs to refill the level after a writer. That is {}, and the walk is expected to take longer by as much.",
        sizes[0],
        target.level,
        lost.0 / 1000,
        of_slices(lost, &slices)
    )];
    let mut longer = 0.0;
    if let Some(other) = others.first() {
        longer = beside(&walks[1], &mut Writer::new(sizes[3])?, *other);
        expected.push(format!(
            "In a first measurement a walk over {} takes {:+.1} % longer on CPU {} while {} are written on CPU {}.",
            sizes[2],
            100.0 * longer,
            context.cpu.0,
            sizes[3],
            other.0
        ));
    }
    drop(settings);
    let text = |name: &str, options: &str, size: Bytes| format!("isochrome job {options}{name} {}", size.0 >> 10);
    let endless = format!("--jobs {ENDLESS} ");
    let names = [("walk", ""), ("write", &endless[..])];
    let programs =
        sizes.iter().zip(names.iter().cycle()).map(|(size, (name, options))| command(&text(name, options, *size)));
    let programs: Vec<Vec<String>> = programs.collect::<Result<_>>()?;
    let jobs = |size: Bytes| job::jobs_within("walk", (size.0 >> 10) as usize, RUN_LENGTH).map(Some);
    let jobs = vec![jobs(sizes[0])?, None, jobs(sizes[2])?, None];
    let hopeful = move |condition: &Condition| match condition.sharing {
        Sharing::IntraCore => condition.program == 0 && lost.0 as f64 / condition.slice_ns.0 as f64 >= HOPELESS,
        Sharing::InterCore => {
            condition.program == 2 && condition.partitioning == Partitioning::None && longer >= HOPELESS
        }
    };
    let beside = vec![vec![1], vec![], vec![3], vec![]];
    Ok(Chosen { programs, jobs, beside, parties: 2, slices, warm_up, expected, hopeful: Box::new(hopeful) })
}

/// Runs the experiment on a modeled machine, where programs are workloads of the simulator.
fn modeled(options: &InterferenceOptions, name: &str, mhz: u32) -> Result<Verdict> {
    let machine = named_machine(name)?;
    let outermost = machine.levels.last().map(|level| level.cache.geometry.cache_bytes()).unwrap_or_default();
    let programs = if options.program.is_empty() { modeled::programs(outermost) } else { options.program.clone() };
    all_beside(programs.len())?;
    let slices = slices(options, &SLICES)?;
    let bar = progress::step("playing", Takes::Words("seconds to minutes, by the size of the caches"), "the tables");
    let request = modeled::Request { machine: &machine, mhz, programs: &programs, slices: &slices };
    let (measured, blocks) = modeled::play(&request, &mut |_| {
        bar.tick();
        !interrupt::interrupted()
    })?;
    bar.finish_and_clear();
    let raw = csv(&blocks, &request.columns());
    results::leave_modeled(&options.results, &machine.name, section(&measured), &raw)
}

/// Returns the words of a command line. Fails if it is empty or contains quotes.
fn command(text: &str) -> Result<Vec<String>> {
    ensure!(
        !text.contains(['"', '\'', '\\']),
        "`{text}` holds quotes, which are not read here\n  hint: put the command into a script that ends with exec"
    );
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    ensure!(!words.is_empty(), "a --program without a name");
    Ok(words)
}

/// Returns the coloring that divides the cache, the lease of all its colors for this process, and the share of each program. Fails if there are
/// fewer colors than programs.
fn colored(options: &InterferenceOptions, context: &Context, programs: usize) -> Result<((Coloring, Lease), Divided)> {
    let mut coloring =
        coloring::resolve(&options.frames.colors("all", options.level), context.allowed.clone(), context.seed)?;
    let count = coloring.color_count();
    let shares = equal_shares(count, programs).with_context(|| {
        format!("{count} colors for {programs} programs\n  hint: fewer programs, or another --level")
    })?;
    let lease = coloring.lease(Owner::of(std::process::id())?)?;
    let divided = Divided { by: Partitioning::Colors, level: coloring.level(), count, shares };
    Ok(((coloring, lease), divided))
}

/// Returns an assignment of equal shares of the ways, at the outermost level that can be divided.
fn divided_by_ways(context: &Context, programs: usize) -> Result<(Given, Divided)> {
    let of = |level| ways::Divided::of(&context.sysfs, &context.machine, level, &context.allowed);
    let mut levels: Vec<u8> = context.machine.levels.iter().map(|level| level.level).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut found = levels.into_iter().rev().map(of);
    let first = found
        .next()
        .with_context(|| format!("{} knows no caches\n  hint: isochrome doctor", resctrl::root().display()))?;
    // If no level can be divided, the error is that of the outermost level.
    let cache = first.or_else(|error| found.find_map(Result::ok).ok_or(error))?;
    let shares = cache.equal_shares(programs)?;
    let divided = Divided { by: Partitioning::Ways, level: cache.level(), count: cache.rules.count, shares };
    Ok((cache.shared_out(&divided.shares)?, divided))
}

/// Returns the levels whose hits and misses can be counted on this processor, as many as it can count at once.
fn levels(context: &Context) -> Vec<LevelEvents> {
    let slots = usable_slots().map_or(0, |slots| slots.usable);
    let counts = |level: &LevelEvents| {
        level.accesses.iter().chain(&level.misses).all(|event| Counters::open(std::slice::from_ref(event)).is_ok())
    };
    // Without usable counters no event is tried.
    let known = if slots == 0 { Vec::new() } else { level_events(&context.processor) };
    levels_within(known.into_iter().filter(counts).collect(), slots)
}

fn counted(level: &LevelEvents) -> Counted {
    let names = |events: &[Event]| events.iter().map(|event| event.name.to_owned()).collect();
    Counted { level: format!("L{}", level.level), accesses: names(&level.accesses), misses: names(&level.misses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_quotes_is_refused() {
        assert_eq!(command("sort  -n file").unwrap(), ["sort", "-n", "file"]);
        assert!(command("sh -c 'a b'").is_err() && command(" ").is_err());
    }
}
