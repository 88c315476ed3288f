//! `isochrome bench interference`: what unmodified programs cost each other, on different CPUs and on one.

use std::fmt::Write;
use std::panic::resume_unwind;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use isochrome_host::counters::{Counters, usable_slots};
use isochrome_host::events::{LevelEvents, level_events, levels_within};
use isochrome_host::interference::{InterferenceRequest, conditions, interference};
use isochrome_host::interrupt;
use isochrome_host::ledger::Owner;
use isochrome_host::recolor::process::Pid;
use isochrome_host::resctrl;
use isochrome_host::sys::scheduling::Scheduling;
use isochrome_lab::interference::section;
use isochrome_model::evidence::Standing;
use isochrome_model::interference::{Block, Counted, Divided, Interference, Program, conclude, equal_shares, modeled};
use isochrome_model::stats::BLOCKS_MIN;
use isochrome_model::taskset::programs::Partitioning;
use isochrome_model::units::{Color, CpuId, Ns};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::args::{By, ChosenColors, Division, InterferenceOptions, Place};
use crate::coloring::Coloring;
use crate::results::{self, Outcome};
use crate::simulate::named_machine;
use crate::station::{Station, spinner};
use crate::ways::{self, Given};
use crate::{Verdict, evidence, job};

/// Workloads where no programs are named; the last one leaves nothing of a second level of 1 MiB.
const WORKLOADS: [(&str, usize); 3] = [("filter", 8192), ("fft", 4096), ("write", 1024)];

/// How long a built-in program runs from where it is timed.
const RUN_LENGTH: Duration = Duration::from_millis(150);

/// Turns that a run takes alone on a modeled machine.
const MODELED_TURNS: u64 = 4;

pub fn run(options: &InterferenceOptions) -> Result<Verdict> {
    if let (Some(name), Some(mhz)) = (&options.machine, options.mhz) {
        return modeled(options, name, mhz);
    }
    let place =
        Place { cpu: options.cpu, level: options.level, by: By::Auto, memory: options.memory, seed: options.seed };
    let station = Station::new(&place)?;
    let named = if options.program.is_empty() { built_in(options)? } else { options.program.clone() };
    let programs: Vec<Vec<String>> = named.iter().map(|text| command(text)).collect::<Result<_>>()?;
    check(options, programs.len())?;
    let others: Vec<CpuId> = station.allowed.iter().copied().filter(|cpu| *cpu != station.cpu).collect();
    let mut warnings = Vec::new();
    let mut told = |text: String| {
        eprintln!("{text}");
        warnings.push(text);
    };
    let mut divided = Vec::new();
    let asked = |division| options.by.is_empty() || options.by.contains(&division);
    let colored = match asked(Division::Colors).then(|| colored(options, &station, programs.len())).transpose() {
        Ok(None) => None,
        Ok(Some((coloring, lease, part))) => {
            divided.push(part);
            Some((coloring, lease))
        }
        Err(error) => {
            told(format!("No colors, so what they are worth is not shown: {error:#}"));
            None
        }
    };
    let given = || divided_by_ways(&station, programs.len()).and_then(|(given, part)| Ok((given.give()?, given, part)));
    let ways = match asked(Division::Ways).then(given).transpose() {
        Ok(None) => None,
        Ok(Some((ways, given, part))) => {
            divided.push(part);
            given.warning().into_iter().for_each(&mut told);
            Some((ways, given))
        }
        Err(error) => {
            told(format!("No cache ways, so what they are worth is not shown: {error}"));
            None
        }
    };
    let joins = ways
        .as_ref()
        .map_or_else(Vec::new, |(_, given)| (0..programs.len()).filter_map(|at| given.joins(at)).collect());
    if others.len() + 1 < programs.len() {
        told(match others.len() {
            0 => "There is one CPU only: nothing runs on different ones.".to_owned(),
            count => {
                format!("On different CPUs {count} of {} others run at a time, drawn by chance.", programs.len() - 1)
            }
        });
    }
    let levels = levels(&station);
    if levels.is_empty() {
        told("No performance counters of caches here: hits and misses are absent, times only are compared.".to_owned());
    }
    let ordinary = Scheduling::current();
    let settings = station.settle();
    let realtime = settings.notes().iter().all(|note| !note.subject.contains("SCHED_FIFO"));
    if !realtime {
        told("No SCHED_FIFO: programs have no turns, so that they are not compared on one CPU, and whatever else runs disturbs them (hint: run as root).".to_owned());
    }
    let parts: Vec<Partitioning> = divided.iter().map(|divided| divided.by).collect();
    let conditions = conditions(programs.len(), others.len(), realtime, &parts);
    ensure!(!conditions.is_empty(), "neither another CPU nor turns\n  hint: run as root, or on more than one CPU");
    let request = InterferenceRequest {
        programs: &programs,
        cpu: station.cpu,
        others: &others,
        turn: options.turn,
        period: options.period,
        warm_up: options.warm_up,
        conditions: &conditions,
        limit: options.limit,
        realtime,
        joins: &joins,
        levels: &levels,
        blocks: options.blocks as usize,
        seed: station.seed,
    };
    let mut placed: Vec<Option<f64>> = vec![None; programs.len()];
    let mut all = CpuSet::new();
    station.allowed.iter().for_each(|cpu| all.set(cpu.0 as usize));
    let mut place = |program: usize, pid: Pid| {
        let Some((coloring, _)) = &colored else { return Ok(()) };
        let part = divided.iter().find(|divided| divided.by == Partitioning::Colors);
        let colors =
            part.map_or_else(Vec::new, |part| part.shares[program].iter().map(|it| Color(*it as u16)).collect());
        let coloring = coloring.of_another(colors, station.allowed.clone());
        // Helpers inside the program get the CPUs and the priority of the thread that makes them: with a real-time priority on its CPU they
        // would keep each other from running.
        let place = || {
            let _anywhere = sched_setaffinity(None, &all);
            let _ordinary = ordinary.as_ref().map(|ordinary| ordinary.apply());
            coloring.place(&[pid])
        };
        let tally =
            std::thread::scope(|scope| scope.spawn(place).join()).unwrap_or_else(|panic| resume_unwind(panic))?;
        let share = tally.on_color as f64 / tally.resident.max(1) as f64;
        placed[program] = Some(placed[program].map_or(share, |least| least.min(share)));
        Ok(())
    };
    let mut failures = Vec::new();
    let blocks = results::until_quiet(
        "running",
        // Blocks take long: half of those asked for are enough, if they can show something.
        options.blocks.div_ceil(2).max(BLOCKS_MIN as u32).min(options.blocks),
        |round, progress| {
            let request = InterferenceRequest { seed: request.seed.wrapping_add(round), ..request.clone() };
            let measured = interference(&request, &mut place, progress)?;
            failures.extend(measured.failures);
            Ok(measured.blocks)
        },
        |blocks| conclude(blocks).iter().map(|row| row.blocks_quiet).min(),
    )?;
    let mut runs = blocks.iter().flat_map(|block| [&block.alone, &block.control, &block.together]);
    if !levels.is_empty() && runs.any(|run| run.asked.is_empty()) {
        told("Runs without hits and misses: they are counted for programs of one thread only.".to_owned());
    }
    if let [first, ..] = &failures[..] {
        told(format!("{} runs do not count, as programs failed beside others; the first: {first}", failures.len()));
    }
    if let Some((ways, given)) = ways {
        for (number, program) in programs.iter().enumerate() {
            if let Some(what) = given.group_of(number).and_then(|group| ways.changed(group)) {
                told(format!("{} lost its ways meanwhile: {what}", program.join(" ")));
            }
        }
        // Everything is measured: what stays changed is told, and the next start tries again.
        ways.restore().err().map(|error| error.to_string()).into_iter().for_each(&mut told);
    }
    drop(colored);
    warnings.extend(station.notes.iter().chain(settings.notes()).map(evidence::told));
    drop(settings);
    let measured = Interference {
        modeled: None,
        divided,
        programs: programs
            .iter()
            .zip(placed)
            .map(|(words, placed)| Program { command: words.join(" "), placed })
            .collect(),
        beside: others.len().min(programs.len() - 1),
        turn_ns: [options.turn, options.period],
        counted: levels.iter().map(counted).collect(),
        rows: conclude(&blocks),
    };
    let mut section = section(&measured);
    if measured.rows.len() < conditions.len() {
        section.standing = Some(Standing::Inconclusive);
    }
    let outcome = Outcome { station: &station, palette: None, section, raw: csv(&blocks, &measured), warnings };
    results::leave(&options.results, outcome)
}

/// Whether so many programs can share, and have turns.
fn check(options: &InterferenceOptions, programs: usize) -> Result<()> {
    ensure!(programs > 1, "one program has nobody to share with\n  hint: --program once for each of two or more");
    ensure!(
        options.turn.0 > 0 && options.turn.0.saturating_mul(programs as u64) <= options.period.0,
        "{programs} programs have no turn of {} ms each within {} ms\n  hint: a longer --period",
        options.turn.0 as f64 / 1e6,
        options.period.0 as f64 / 1e6
    );
    Ok(())
}

/// The experiment on a modeled machine, where programs are workloads of the simulator.
fn modeled(options: &InterferenceOptions, name: &str, mhz: u32) -> Result<Verdict> {
    let machine = named_machine(name)?;
    let outermost = machine.levels.last().map(|level| level.cache.geometry.cache_bytes()).unwrap_or_default();
    let programs = if options.program.is_empty() { modeled::programs(outermost) } else { options.program.clone() };
    check(options, programs.len())?;
    let turn_ns = [options.turn, options.period];
    let length = Ns(MODELED_TURNS.saturating_mul(options.turn.0));
    let bar = spinner("playing");
    let request = modeled::Request { machine: &machine, mhz, programs: &programs, turn_ns, length };
    let (measured, blocks) = modeled::play(&request, &mut |_| {
        bar.tick();
        !interrupt::interrupted()
    })?;
    bar.finish_and_clear();
    // What the evidence says of the machine it was taken on is not what it is about; the report says so.
    let station = Station::at(None, options.seed.unwrap_or_default())?;
    let warnings = vec![format!("Played on the modeled {}: nothing here was measured.", machine.name)];
    let (section, raw) = (section(&measured), csv(&blocks, &measured));
    results::leave(&options.results, Outcome { station: &station, palette: None, section, raw, warnings })
}

/// The workloads as programs: with as many jobs as take the time here that a run is to have.
fn built_in(options: &InterferenceOptions) -> Result<Vec<String>> {
    let time = Duration::from_nanos(options.warm_up.0) + RUN_LENGTH;
    let program = |(kernel, size): (&str, usize)| {
        let jobs = job::jobs_within(kernel, size, time)?;
        Ok(format!("isochrome job --jobs {jobs} {kernel} {size}"))
    };
    WORKLOADS.into_iter().map(program).collect()
}

/// The words of a command line.
fn command(text: &str) -> Result<Vec<String>> {
    ensure!(
        !text.contains(['"', '\'', '\\']),
        "`{text}` holds quotes, which are not read here\n  hint: put the command into a script that ends with exec"
    );
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    ensure!(!words.is_empty(), "a --program without a name");
    Ok(words)
}

/// The palette that tells the colors, all of which are this program's as long as the lease is kept, and the share of each program.
fn colored(
    options: &InterferenceOptions,
    station: &Station,
    programs: usize,
) -> Result<(Coloring, crate::coloring::Lease, Divided)> {
    let chosen = ChosenColors {
        colors: Some("all".to_owned()),
        palette: options.palette.clone(),
        level: options.level,
        max_memory: options.memory,
        trust_palette: options.trust_palette,
        ..ChosenColors::default()
    };
    let mut coloring = Coloring::of(&chosen, station.allowed.clone(), station.seed)?;
    let count = coloring.color_count();
    let shares = equal_shares(count, programs).with_context(|| {
        format!("{count} colors for {programs} programs\n  hint: fewer programs, or another --level")
    })?;
    let lease = coloring.lease(Owner::of(std::process::id())?)?;
    let divided = Divided { by: Partitioning::Colors, level: coloring.level(), count, shares };
    Ok((coloring, lease, divided))
}

/// The ways of the outermost level that has some to give, in equal shares.
fn divided_by_ways(station: &Station, programs: usize) -> Result<(Given, Divided)> {
    let of = |level| ways::Divided::of(&station.sysfs, &station.machine, level, &station.allowed);
    let mut levels: Vec<u8> = station.machine.levels.iter().map(|level| level.level).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut found = levels.into_iter().rev().map(of);
    let first = found
        .next()
        .with_context(|| format!("{} tells of no caches\n  hint: isochrome doctor", resctrl::root().display()))?;
    // Where none has, what the outermost says is told.
    let cache = first.or_else(|error| found.find_map(Result::ok).ok_or(error))?;
    let shares = cache.equal_shares(programs)?;
    let divided = Divided { by: Partitioning::Ways, level: cache.level(), count: cache.rules.count, shares };
    Ok((cache.shared_out(&divided.shares)?, divided))
}

/// Levels whose hits and misses this processor has proved to count, as many as it counts at once.
fn levels(station: &Station) -> Vec<LevelEvents> {
    let slots = usable_slots().map_or(0, |slots| slots.usable);
    let counts = |level: &LevelEvents| {
        level.accesses.iter().chain(&level.misses).all(|event| Counters::open(std::slice::from_ref(event)).is_ok())
    };
    // Without counters nothing is tried.
    let known = if slots == 0 { Vec::new() } else { level_events(&station.processor) };
    levels_within(known.into_iter().filter(counts).collect(), slots)
}

fn counted(level: &LevelEvents) -> Counted {
    let names = |events: &[isochrome_host::events::Event]| events.iter().map(|event| event.name.to_owned()).collect();
    Counted { level: format!("L{}", level.level), accesses: names(&level.accesses), misses: names(&level.misses) }
}

/// Every run, one line each; times in ns.
fn csv(blocks: &[Block], measured: &Interference) -> String {
    let mut text = "block,program,sharing,partitioning,beside,cpu_ns".to_owned();
    for Counted { level, .. } in &measured.counted {
        let _ = write!(text, ",{level}_hits,{level}_misses");
    }
    text.push('\n');
    let name = |value: serde_json::Result<serde_json::Value>| {
        value.ok().and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
    };
    for (at, block) in blocks.iter().enumerate() {
        let condition = block.condition;
        let sharing = name(serde_json::to_value(condition.sharing));
        let partitioning = name(serde_json::to_value(condition.partitioning));
        let runs = [("nobody", &block.alone), ("spinning", &block.control), ("programs", &block.together)];
        for (beside, run) in runs {
            let _ = write!(text, "{at},{},{sharing},{partitioning},{beside},{}", condition.program, run.cpu.0);
            for level in 0..measured.counted.len() {
                let _ = match run.asked.get(level) {
                    Some(asked) => write!(text, ",{},{}", asked.hits, asked.misses),
                    None => write!(text, ",,"),
                };
            }
            text.push('\n');
        }
    }
    text
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
